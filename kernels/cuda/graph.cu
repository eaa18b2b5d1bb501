/*
 * Graphs: what was asked for once, done again by one call. The stream is captured, so that each
 * kernel and copy goes into the graph with its arguments. What the program puts goes into pinned
 * memory that stays, from which the graph's copies read; to put other data is to write there.
 */
#include "kernels/cuda/cuda_internal.h"

#include <stdlib.h>
#include <string.h>

enum { LINE = 64 };

/* n bytes that are put, and where they wait. */
struct slot {
	void *to;
	size_t n_bytes;
	char *place;
};

/* Notes: between begin and end; refills: between refill and launch. */
enum graph_state { GRAPH_RESTS, GRAPH_NOTES, GRAPH_REFILLS };

struct graph {
	enum graph_state state;
	const char *spoiled; /* why there will be no graph; NULL: nothing */
	cudaGraphExec_t exec;
	cudaEvent_t done; /* when it was launched last */
	struct slot *slot;
	int64_t n_slots, next; /* which is refilled next */
	int64_t n_read;	       /* that are read when the `later` of a launch has come */
	char **page;	       /* pinned, of STAGE_BYTES */
	int64_t n_pages;
	void **outlived; /* the device's, that others have done with */
	int64_t n_outlived;
	size_t at; /* in the last one */
};

static struct graph *graph_of(struct device *d)
{
	struct cuda_device *c = cuda_of(d);
	if (c->graph)
		return c->graph;
	c->graph = (struct graph *)xcalloc(1, sizeof(*c->graph));
	cuda_check(d, cudaEventCreateWithFlags(&c->graph->done, cudaEventDisableTiming),
		"events");
	return c->graph;
}

bool cuda_graph_notes(struct device *d)
{
	const struct graph *g = cuda_of(d)->graph;
	return g && g->state == GRAPH_NOTES;
}

bool cuda_graph_rests(struct device *d)
{
	const struct graph *g = cuda_of(d)->graph;
	return !g || g->state == GRAPH_RESTS;
}

void cuda_graph_spoil(struct device *d, const char *why)
{
	BUG_ON(!cuda_graph_notes(d));
	cuda_of(d)->graph->spoiled = why;
}

/* What the graph of before had. Its copies are done when its memory goes. */
static void graph_clear(struct device *d, struct graph *g)
{
	cuda_check(d, cudaEventSynchronize(g->done), "graph");
	if (g->exec)
		cuda_check(d, cudaGraphExecDestroy(g->exec), "graph");
	g->exec = NULL;
	for (int64_t i = 0; i < g->n_pages; i++)
		cuda_check(d, cudaFreeHost(g->page[i]), "pinned memory");
	for (int64_t i = 0; i < g->n_outlived; i++)
		cuda_check(d, cudaFree(g->outlived[i]), "free");
	g->n_slots = g->next = g->n_read = g->n_pages = g->n_outlived = 0;
	g->at = 0;
	g->spoiled = NULL;
}

void cuda_graph_free(struct device *d)
{
	struct graph *g = cuda_of(d)->graph;
	if (!g)
		return;
	graph_clear(d, g);
	cudaEventDestroy(g->done);
	free(g->slot);
	free(g->page);
	free(g->outlived);
	free(g);
	cuda_of(d)->graph = NULL;
}

void cuda_graph_outlived(struct device *d, void *p)
{
	struct graph *g = cuda_of(d)->graph;
	if (!g || !g->exec) {
		cuda_wait(d);
		cuda_check(d, cudaFree(p), "free");
		return;
	}
	g->outlived = (void **)xrealloc(
		g->outlived, (size_t)(g->n_outlived + 1) * sizeof(*g->outlived));
	g->outlived[g->n_outlived++] = p;
}

/* ---- what is put ---------------------------------------------------------------------- */

/* Pinning memory waits for nothing that is captured, which CUDA has to be told. */
static void new_page(struct device *d, struct graph *g)
{
	cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
	void *page;
	cuda_check(d, cudaThreadExchangeStreamCaptureMode(&mode), "pinned memory");
	cuda_check(d, cudaMallocHost(&page, STAGE_BYTES), "pinned memory");
	cuda_check(d, cudaThreadExchangeStreamCaptureMode(&mode), "pinned memory");
	g->page = (char **)xrealloc(g->page, (size_t)(g->n_pages + 1) * sizeof(*g->page));
	g->page[g->n_pages++] = (char *)page;
	g->at = 0;
}

static struct slot *new_slot(struct device *d, struct graph *g, void *to, size_t n_bytes)
{
	if (!g->n_pages || n_bytes > STAGE_BYTES - g->at)
		new_page(d, g);
	g->slot = (struct slot *)xrealloc(
		g->slot, (size_t)(g->n_slots + 1) * sizeof(*g->slot));
	struct slot *s = &g->slot[g->n_slots++];
	s->to = to;
	s->n_bytes = n_bytes;
	s->place = g->page[g->n_pages - 1] + g->at;
	g->at = (size_t)min64(round_up((int64_t)(g->at + n_bytes), LINE), STAGE_BYTES);
	return s;
}

bool cuda_graph_put(struct device *d, void *to, const void *from, size_t n_bytes)
{
	struct graph *g = cuda_of(d)->graph;
	if (cuda_graph_rests(d))
		return false;
	for (size_t at = 0, n; at < n_bytes; at += n) {
		n = (size_t)min64((int64_t)(n_bytes - at), STAGE_BYTES);
		char *there = (char *)to + at;
		bool notes = g->state == GRAPH_NOTES;
		BUG_ON(!notes && g->next == g->n_slots);
		struct slot *s = notes ? new_slot(d, g, there, n) : &g->slot[g->next++];
		BUG_ON(s->to != there || s->n_bytes != n);
		memcpy(s->place, (const char *)from + at, n);
		if (notes)
			cuda_check(d,
				cudaMemcpyAsync(there, s->place, n, cudaMemcpyDefault,
					cuda_stream(d)),
				"put");
	}
	return true;
}

void cuda_graph_readback(struct device *d)
{
	struct graph *g = cuda_of(d)->graph;
	g->n_read = g->n_slots;
}

/* ---- from the beginning to the launch --------------------------------------------------- */

bool cuda_graph_begin(struct device *d)
{
	struct cuda_device *c = cuda_of(d);
	if (c->waits || c->profile) {
		warn("%s: kernels that are looked at one by one make no graph", c->model);
		return false;
	}
	struct graph *g = graph_of(d);
	BUG_ON(g->state != GRAPH_RESTS);
	graph_clear(d, g);
	cuda_check(d, cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal),
		"graph");
	g->state = GRAPH_NOTES;
	return true;
}

bool cuda_graph_end(struct device *d)
{
	struct graph *g = cuda_of(d)->graph;
	cudaGraph_t graph = NULL;
	BUG_ON(!cuda_graph_notes(d));
	g->state = GRAPH_RESTS;
	cudaError_t rc = cudaStreamEndCapture(cuda_stream(d), &graph);
	if (rc == cudaSuccess && !g->spoiled)
		rc = cudaGraphInstantiate(&g->exec, graph, 0);
	if (graph)
		cudaGraphDestroy(graph);
	if (rc != cudaSuccess) {
		cudaGetLastError();
		g->exec = NULL;
		g->spoiled = cudaGetErrorString(rc);
	}
	if (g->spoiled)
		warn("%s: no graph: %s", cuda_of(d)->model, g->spoiled);
	return !g->spoiled;
}

void cuda_graph_refill(struct device *d)
{
	struct graph *g = cuda_of(d)->graph;
	BUG_ON(!g || !g->exec || g->state != GRAPH_RESTS);
	bool early = g->n_read && g->n_read == g->n_slots; /* before it is done */
	cudaEvent_t read = early ? cuda_of(d)->readback.came : g->done;
	cuda_check(d, cudaEventSynchronize(read), "graph");
	g->state = GRAPH_REFILLS;
	g->next = 0;
}

void cuda_graph_launch(struct device *d)
{
	struct cuda_device *c = cuda_of(d);
	struct graph *g = c->graph;
	struct cuda_launch l;
	BUG_ON(!g || !g->exec || g->state == GRAPH_NOTES);
	BUG_ON(g->state == GRAPH_REFILLS && g->next != g->n_slots);
	g->state = GRAPH_RESTS;
	l.name = "graph";
	l.grid.x = 0;
	l.n_args = 0;
	cuda_before(d, &l);
	cuda_check(d, cudaGraphLaunch(g->exec, c->stream), "graph");
	cuda_after(d, "graph");
	cuda_check(d, cudaEventRecord(g->done, c->stream), "graph");
}
