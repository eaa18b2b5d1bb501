/* Around launches: error reports, times of kernels, and ranges for profilers. */
#include "kernels/cuda/cuda_internal.h"

#include <nvtx3/nvToolsExt.h>

/* Appends a launch argument; ".." for a struct. */
static void append_arg(struct str *out, const struct cuda_arg *a)
{
	char text[NUM_TEXT];
	if (a->kind == 'i')
		str_printf(out, "%lld", (long long)a->i);
	else if (a->kind == 'f')
		str_puts(out, text_float(text, (float)a->f));
	else if (a->kind == 'p')
		str_printf(out, "%p", a->p);
	else
		str_puts(out, "..");
}

/* Appends a launch: its name, grid, block, shared memory and arguments. */
static void append_launch(struct str *out, const struct cuda_launch *l)
{
	str_puts(out, l->name);
	if (l->grid.x)
		str_printf(out, " <%u x %u x %u blocks of %u x %u, %zu bytes shared>",
			l->grid.x, l->grid.y, l->grid.z, l->block.x, l->block.y,
			l->shared_bytes);
	for (int i = 0; i < l->n_args; i++) {
		str_puts(out, i ? ", " : " (");
		append_arg(out, &l->args[i]);
	}
	str_puts(out, l->n_args ? ")" : "");
}

/* Ends the program, and lists the last launches: a later runtime call returns a kernel's error. */
static NORETURN void die_with_launches(
	struct device *d, const char *error, const char *what)
{
	struct cuda_device *c = cuda_of(d);
	struct str text = {};
	int64_t first = max64(0, c->n_launches - (c->waits ? 1 : LAUNCHES_KEPT));
	for (int64_t i = c->n_launches - 1; i >= first; i--) {
		str_puts(&text, "\n  ");
		append_launch(&text, &c->last[i % LAUNCHES_KEPT]);
	}
	const char *launches = text.s ? text.s : " none";
	if (c->waits)
		die(EX_FAILED, "%s: %s: %s; the failing launch:%s", c->model, what, error,
			launches);
	die(EX_FAILED,
		"%s: %s, detected at %s: an earlier launch failed; PT_CUDA_SYNC=yes shows which; "
		"the last launches, the latest first:%s",
		c->model, error, what, launches);
}

void cuda_check(struct device *d, cudaError_t rc, const char *what)
{
	if (rc == cudaSuccess)
		return;
	if (rc == cudaErrorMemoryAllocation)
		die(EX_FAILED,
			"%s: out of memory at %s: CUDA needs more than the planned memory, "
			"such as for kernels at their first launch%s",
			cuda_of(d)->model, what, advice_on(ADVICE_GPU_MEMORY));
	struct str text = {};
	str_printf(&text, "%s (%s)", cudaGetErrorString(rc), cudaGetErrorName(rc));
	die_with_launches(d, text.s, what);
}

void cuda_check_shared(struct device *d, const char *name, size_t n_bytes)
{
	const struct cuda_device *c = cuda_of(d);
	if (n_bytes > c->max_shared_bytes)
		die(EX_FAILED,
			"%s: %s needs %zu bytes of shared memory for heads or rows of "
			"this size, but a block has only %zu%s",
			c->model, name, n_bytes, c->max_shared_bytes,
			advice_on(ADVICE_SHARED_MEMORY));
}

enum { TIMED = 1024, KERNELS_TIMED = 128 };

struct row {
	const char *name;
	int64_t n_calls;
	double ms;
};

struct timed {
	int row;
	cudaEvent_t begin, end;
};

/* Launches with times that are not read yet, and the sums of the times that are. */
struct profile {
	struct timed timed[TIMED];
	struct row rows[KERNELS_TIMED];
	int n_timed, n_rows;
};

/* Returns the index of the row of a kernel, which is added if it is missing. */
static int get_row(struct profile *p, const char *name)
{
	int i = 0;
	while (i < p->n_rows && strcmp(p->rows[i].name, name))
		i++;
	BUG_ON(i == KERNELS_TIMED);
	if (i == p->n_rows)
		p->rows[p->n_rows++] = {name, 0, 0};
	return i;
}

/* Waits for the timed launches, adds their times to their kernels' rows, and forgets them. */
static void read_times(struct device *d, struct profile *p)
{
	for (int i = 0; i < p->n_timed; i++) {
		float ms = 0;
		cuda_check(d, cudaEventSynchronize(p->timed[i].end), "profile");
		cuda_check(d,
			cudaEventElapsedTime(&ms, p->timed[i].begin, p->timed[i].end),
			"profile");
		p->rows[p->timed[i].row].n_calls++;
		p->rows[p->timed[i].row].ms += (double)ms;
	}
	p->n_timed = 0;
}

/* Starts timing every launch; creates the events for it. */
void cuda_profile_begin(struct device *d)
{
	struct cuda_device *c = cuda_of(d);
	BUG_ON(c->profile);
	struct profile *p = (struct profile *)xcalloc(1, sizeof(*p));
	for (int i = 0; i < TIMED; i++) {
		cuda_check(d, cudaEventCreate(&p->timed[i].begin), "profile");
		cuda_check(d, cudaEventCreate(&p->timed[i].end), "profile");
	}
	c->profile = p;
}

static int slowest_first(const void *a, const void *b)
{
	double x = ((const struct row *)a)->ms, y = ((const struct row *)b)->ms;
	return (x < y) - (x > y);
}

/* Appends the table of times, slowest kernel first, and stops timing; nothing if not timing. */
void cuda_profile_end(struct device *d, struct str *out)
{
	struct cuda_device *c = cuda_of(d);
	struct profile *p = c->profile;
	double total = 0;
	if (!p)
		return;
	read_times(d, p);
	qsort(p->rows, (size_t)p->n_rows, sizeof(*p->rows), slowest_first);
	for (int i = 0; i < p->n_rows; i++)
		total += p->rows[i].ms;
	str_puts(out, "kernel              calls     total ms      mean us       %\n");
	for (int i = 0; i < p->n_rows; i++) {
		const struct row *r = &p->rows[i];
		str_printf(out, "%-16s %8lld %12.3f %12.2f %7.2f\n", r->name,
			(long long)r->n_calls, r->ms, 1e3 * r->ms / (double)r->n_calls,
			total > 0 ? 100 * r->ms / total : 0);
	}
	for (int i = 0; i < TIMED; i++) {
		cudaEventDestroy(p->timed[i].begin);
		cudaEventDestroy(p->timed[i].end);
	}
	free(p);
	c->profile = NULL;
}

/* Ends the program if an argument of a launch is a host address that the device cannot access. */
static void check_pointers(struct device *d, const struct cuda_launch *l)
{
	for (int i = 0; i < l->n_args; i++) {
		struct cudaPointerAttributes a;
		if (l->args[i].kind != 'p' || !l->args[i].p)
			continue;
		cuda_check(d, cudaPointerGetAttributes(&a, l->args[i].p), l->name);
		if (a.type == cudaMemoryTypeUnregistered)
			die(EX_FAILED,
				"%s: argument %d of the kernel is an address in host "
				"memory",
				l->name, i);
	}
}

/* Records an operation; checks its pointers if launches are synchronous; times it if profiling. */
void cuda_before_in(struct device *d, const struct cuda_launch *l, cudaStream_t stream)
{
	struct cuda_device *c = cuda_of(d);
	BUG_ON(!cuda_graph_idle(d) && !cuda_graph_capturing(d));
	c->last[c->n_launches++ % LAUNCHES_KEPT] = *l;
	if (c->waits && l->grid.x)
		check_pointers(d, l);
	struct profile *p = c->profile;
	if (!p)
		return;
	if (p->n_timed == TIMED)
		read_times(d, p);
	p->timed[p->n_timed].row = get_row(p, l->name);
	cuda_check(d, cudaEventRecord(p->timed[p->n_timed].begin, stream), l->name);
}

/* Ends the timing of an operation if profiling; waits for it if launches are synchronous. */
void cuda_after_in(struct device *d, const char *name, cudaStream_t stream)
{
	struct cuda_device *c = cuda_of(d);
	if (c->profile)
		cuda_check(d,
			cudaEventRecord(
				c->profile->timed[c->profile->n_timed++].end, stream),
			name);
	if (c->waits)
		cuda_check(d, cudaStreamSynchronize(stream), name);
}

void cuda_before_launch(struct device *d, const struct cuda_launch *l)
{
	cuda_before_in(d, l, cuda_stream(d));
}

void cuda_after_launch(struct device *d, const char *name)
{
	cuda_after_in(d, name, cuda_stream(d));
}

void cuda_range(struct device *d, const char *name)
{
	(void)d;
	nvtxRangePushA(name);
}

void cuda_range_end(struct device *d)
{
	(void)d;
	nvtxRangePop();
}
