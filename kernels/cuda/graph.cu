/* CUDA graphs: a sequence of operations is captured once and launched again by one call. The
 * stream is captured, so that each kernel and copy is a node of the graph with its arguments.
 * device_put() writes to pinned memory that the graph owns and its copies read; a refill
 * writes new data to this memory. */
#include "kernels/cuda/cuda_internal.h"

enum { LINE = 64 };

/* A device_put(): its destination and its pinned memory. */
struct slot {
	void *to;
	size_t n_bytes;
	char *memory; /* pinned */
};

/* Capturing: between begin and end; refilling: between refill and launch. */
enum graph_state { GRAPH_IDLE, GRAPH_CAPTURING, GRAPH_REFILLING };

struct graph {
	enum graph_state state;
	const char *rejected; /* why the capture cannot become a graph, or NULL */
	cudaGraphExec_t exec;
	cudaEvent_t done; /* the last launch */
	struct slot *slot;
	int64_t n_slots, next; /* the slot to refill next */
	int64_t n_read;	       /* slots that are read before the readback completes */
	char **page;	       /* pinned, of STAGE_BYTES */
	int64_t n_pages;
	void **free_later; /* device memory to be freed with the graph */
	int64_t n_free_later;
	size_t at; /* offset in the last page */
};

static struct graph *get_graph(struct device *d)
{
	struct cuda_device *c = cuda_of(d);
	if (c->graph)
		return c->graph;
	c->graph = (struct graph *)xcalloc(1, sizeof(*c->graph));
	c->graph->done = cuda_create_event(d);
	return c->graph;
}

bool cuda_graph_capturing(struct device *d)
{
	const struct graph *g = cuda_of(d)->graph;
	return g && g->state == GRAPH_CAPTURING;
}

bool cuda_graph_idle(struct device *d)
{
	const struct graph *g = cuda_of(d)->graph;
	return !g || g->state == GRAPH_IDLE;
}

void cuda_graph_reject(struct device *d, const char *why)
{
	BUG_ON(!cuda_graph_capturing(d));
	cuda_of(d)->graph->rejected = why;
}

/* Frees the previous graph's resources, after its last launch is complete. */
static void clear_graph(struct device *d, struct graph *g)
{
	cuda_await(d, g->done, "graph");
	if (g->exec)
		cuda_check(d, cudaGraphExecDestroy(g->exec), "graph");
	g->exec = NULL;
	for (int64_t i = 0; i < g->n_pages; i++)
		cuda_check(d, cudaFreeHost(g->page[i]), "pinned memory");
	for (int64_t i = 0; i < g->n_free_later; i++)
		cuda_check(d, cudaFree(g->free_later[i]), "free");
	g->n_slots = g->next = g->n_read = g->n_pages = g->n_free_later = 0;
	g->at = 0;
	g->rejected = NULL;
}

/* Waits for the last launch, and frees the graph with the memory that it uses. */
void cuda_graph_free(struct device *d)
{
	struct graph *g = cuda_of(d)->graph;
	if (!g)
		return;
	clear_graph(d, g);
	cudaEventDestroy(g->done);
	free(g->slot);
	free(g->page);
	free(g->free_later);
	free(g);
	cuda_of(d)->graph = NULL;
}

void cuda_graph_free_later(struct device *d, void *p)
{
	struct graph *g = cuda_of(d)->graph;
	if (!g || !g->exec) {
		cuda_wait(d);
		cuda_check(d, cudaFree(p), "free");
		return;
	}
	g->free_later = (void **)xrealloc(
		g->free_later, (size_t)(g->n_free_later + 1) * sizeof(*g->free_later));
	g->free_later[g->n_free_later++] = p;
}

/* Adds a page of pinned memory. The relaxed mode allows the allocation during a capture. */
static void add_page(struct device *d, struct graph *g)
{
	cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
	cuda_check(d, cudaThreadExchangeStreamCaptureMode(&mode), "pinned memory");
	char *page = cuda_alloc_pinned(d, STAGE_BYTES);
	cuda_check(d, cudaThreadExchangeStreamCaptureMode(&mode), "pinned memory");
	g->page = (char **)xrealloc(g->page, (size_t)(g->n_pages + 1) * sizeof(*g->page));
	g->page[g->n_pages++] = page;
	g->at = 0;
}

/* Adds a slot of pinned memory for a put of n_bytes to the captured graph. */
static struct slot *add_slot(struct device *d, struct graph *g, void *to, size_t n_bytes)
{
	if (!g->n_pages || n_bytes > STAGE_BYTES - g->at)
		add_page(d, g);
	g->slot = (struct slot *)xrealloc(
		g->slot, (size_t)(g->n_slots + 1) * sizeof(*g->slot));
	struct slot *s = &g->slot[g->n_slots++];
	s->to = to;
	s->n_bytes = n_bytes;
	s->memory = g->page[g->n_pages - 1] + g->at;
	g->at = (size_t)min64(round_up((int64_t)(g->at + n_bytes), LINE), STAGE_BYTES);
	return s;
}

bool cuda_graph_put(struct device *d, void *to, const void *from, size_t n_bytes)
{
	struct graph *g = cuda_of(d)->graph;
	if (cuda_graph_idle(d))
		return false;
	for (size_t at = 0, n; at < n_bytes; at += n) {
		n = (size_t)min64((int64_t)(n_bytes - at), STAGE_BYTES);
		char *target = (char *)to + at;
		bool capturing = g->state == GRAPH_CAPTURING;
		BUG_ON(!capturing && g->next == g->n_slots);
		struct slot *s =
			capturing ? add_slot(d, g, target, n) : &g->slot[g->next++];
		BUG_ON(s->to != target || s->n_bytes != n);
		memcpy(s->memory, (const char *)from + at, n);
		if (capturing)
			cuda_copy_async(d, target, s->memory, n, "put");
	}
	return true;
}

void cuda_graph_readback(struct device *d)
{
	struct graph *g = cuda_of(d)->graph;
	g->n_read = g->n_slots;
}

/* Frees the last graph and begins a capture; false, with a warning, if launches must be single. */
bool cuda_graph_begin(struct device *d)
{
	struct cuda_device *c = cuda_of(d);
	if (c->waits || c->profile) {
		warn("%s: no CUDA graph: PT_CUDA_SYNC and profiles need single launches",
			c->model);
		return false;
	}
	struct graph *g = get_graph(d);
	BUG_ON(g->state != GRAPH_IDLE);
	clear_graph(d, g);
	cuda_check(d, cuda_streams_join(d), "graph");
	cuda_check(d,
		cudaStreamBeginCapture(cuda_stream(d), cudaStreamCaptureModeThreadLocal),
		"graph");
	g->state = GRAPH_CAPTURING;
	return true;
}

/* Ends the capture and makes the graph; false, with a warning, if that is not possible. */
bool cuda_graph_end(struct device *d)
{
	struct graph *g = cuda_of(d)->graph;
	cudaGraph_t graph = NULL;
	BUG_ON(!cuda_graph_capturing(d));
	cuda_streams_join(d); /* if it fails, so does the end of the capture */
	g->state = GRAPH_IDLE;
	cuda_streams_forget(d);
	cudaError_t rc = cudaStreamEndCapture(cuda_stream(d), &graph);
	if (rc == cudaSuccess && !g->rejected)
		rc = cudaGraphInstantiate(&g->exec, graph, 0);
	if (graph)
		cudaGraphDestroy(graph);
	if (rc != cudaSuccess) {
		cudaGetLastError();
		g->exec = NULL;
		g->rejected = cudaGetErrorString(rc);
	}
	if (g->rejected)
		warn("%s: no CUDA graph: %s; launching kernels one by one",
			cuda_of(d)->model, g->rejected);
	return !g->rejected;
}

/* Waits until the device has read the last launch's data, and begins a refill. */
void cuda_graph_refill(struct device *d)
{
	struct graph *g = cuda_of(d)->graph;
	BUG_ON(!g || !g->exec || g->state != GRAPH_IDLE);
	bool early =
		g->n_read && g->n_read == g->n_slots; /* before the launch is complete */
	cudaEvent_t read = early ? cuda_of(d)->readback.done : g->done;
	cuda_await(d, read, "graph");
	g->state = GRAPH_REFILLING;
	g->next = 0;
}

/* Launches the graph after all enqueued work; ends a refill. */
void cuda_graph_launch(struct device *d)
{
	struct cuda_device *c = cuda_of(d);
	struct graph *g = c->graph;
	const struct cuda_launch l = {"graph"};
	BUG_ON(!g || !g->exec || g->state == GRAPH_CAPTURING);
	BUG_ON(g->state == GRAPH_REFILLING && g->next != g->n_slots);
	g->state = GRAPH_IDLE;
	cuda_check(d, cuda_streams_join(d), "graph");
	cuda_before_launch(d, &l);
	cuda_check(d, cudaGraphLaunch(g->exec, cuda_stream(d)), "graph");
	cuda_after_launch(d, "graph");
	cuda_check(d, cudaEventRecord(g->done, cuda_stream(d)), "graph");
}
