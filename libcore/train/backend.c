/* The device of a run, and the options that GPUs or CPUs do not support. */
#include "train/backend.h"

#include <stdlib.h>

/* The largest head and the longest row of the residual stream that the GPU's kernels support. */
enum { MOST_HEAD = 256, MOST_DIM = 32768 };

/* An option that only CPUs support; NULL: none is given. */
static const char *cpu_only_option(const struct train_opts *o)
{
	const struct model_config *m = &o->model;
	const struct {
		bool asked;
		const char *what;
	} some[] = {
		{o->edit.workers > 0 && o->offload != OFFLOAD_NONE,
			"--edit-workers with --offload is supported on CPUs only"},
		{o->offload_to,
			"--offload-to is for CPUs, and what a GPU offloads goes to "
			"the memory of its host"},
		{m->dim / max64(1, m->heads) > MOST_HEAD,
			"heads of more than 256 channels (dim / heads) are for CPUs"},
		{m->dim > MOST_DIM,
			"a --dim of more than 32768 is supported on CPUs only"},
	};
	for (size_t i = 0; i < ARRAY_LEN(some); i++)
		if (some[i].asked)
			return some[i].what;
	return NULL;
}

/* Does a step need no other rank? */
static bool is_alone(const struct train_opts *o)
{
	for (int a = 0; a < N_AXES; a++)
		if (o->degree[a] > 1)
			return false;
	return true;
}

/* A CUDA graph captures one stream and its arguments: not the copies of --offload in other streams,
 * the messages of the host, or fragments of streaming. */
static int check_graph(const struct train_opts *o, enum device_kind kind, struct err *e)
{
	if (!o->graph)
		return 0;
	if (kind == DEVICE_CPU)
		return err_set(e, EX_USAGE, "--cuda-graph needs a GPU");
	if (o->offload != OFFLOAD_NONE)
		return err_set(
			e, EX_USAGE, "--cuda-graph is not supported with --offload");
	if (!is_alone(o))
		return err_set(
			e, EX_USAGE, "--cuda-graph is not supported with several ranks");
	if (o->edit.delay > 0)
		return err_set(e, EX_USAGE,
			"--cuda-graph is not supported with --edit-sync-delay");
	return 0;
}

int backend_choose(const struct train_opts *o, enum device_kind *kind, struct err *e)
{
	const char *what = cpu_only_option(o);
	*kind = what && o->device == DEVICE_AUTO ? DEVICE_CPU
						 : (enum device_kind)o->device;
	if (*kind == DEVICE_CUDA && what)
		return err_set(e, EX_USAGE,
			"device cuda: %s: change that, or give --device cpu", what);
	if (*kind == DEVICE_CPU && o->numerics == NUMERICS_FAST)
		return err_set(e, EX_USAGE,
			"--numerics fast needs a GPU: a CPU has only --numerics exact");
	if (*kind == DEVICE_CPU && o->offload && !o->offload_to)
		return err_set(e, EX_USAGE,
			"--offload on a CPU needs --offload-to DIRECTORY, on a fast disk");
	if (*kind == DEVICE_CPU && o->self_test == SELF_TEST_YES)
		return err_set(e, EX_USAGE,
			"--self-test needs a GPU, whose kernels it compares with the CPU's");
	if (*kind == DEVICE_CPU && o->profile)
		return err_set(
			e, EX_USAGE, "--profile needs a GPU; for a CPU there is perf(1)");
	if (backend_profile_steps(o, &(int64_t){0}, &(int64_t){0}, e) ||
		check_graph(o, *kind, e))
		return -1;
	if (*kind == DEVICE_CPU && o->algorithms)
		return err_set(
			e, EX_USAGE, "--gemm-algorithms needs a GPU: a CPU has only one");
	return 0;
}

void backend_count_sharers(struct train_opts *o, struct comm *all)
{
	struct comm_place place;
	enum device_kind kind;
	comm_place(&place);
	bool none = backend_choose(o, &kind, &(struct err){0}) || kind == DEVICE_CPU;
	uint64_t mine = none ? 0 : device_gpu(place.local_rank);
	uint64_t *each = xcalloc((size_t)all->size, sizeof(*each));
	comm_allgather(all, &mine, each, sizeof(mine));
	o->gpu_sharers = 0;
	for (int r = 0; r < all->size && mine; r++)
		o->gpu_sharers += each[r] == mine;
	free(each);
}

int backend_open(struct train_opts *o, struct device *d, struct err *e)
{
	enum device_kind kind;
	struct comm_place place;
	comm_place(&place);
	const struct device_options how = {.threads = (int)o->threads,
		.exact = o->numerics == NUMERICS_EXACT,
		.measure = gemm_algorithms_measured(o),
		.memory_bytes = o->memory,
		.ranks = place.local_size,
		.rank = place.local_rank,
		.sharers = o->gpu_sharers};
	if (backend_choose(o, &kind, e) || device_open(d, kind, &how, e))
		return -1;
	o->device = d->discrete ? DEVICE_CUDA : DEVICE_CPU;
	if (backend_choose(o, &kind, e)) { /* --device auto has become the CPU */
		device_close(d);
		return -1;
	}
	return 0;
}

int backend_agree(
	struct train_opts *o, struct comm *world, struct device *d, struct err *e)
{
	enum device_kind kind;
	bool all = comm_min_i64(world, d->discrete);
	if (all || !d->discrete)
		return 0;
	device_close(d);
	device_cpu(d, (int)o->threads);
	o->device = DEVICE_CPU;
	return backend_choose(o, &kind, e);
}

void backend_identity(const struct device *d, struct str *out)
{
	str_puts(out, d->discrete ? d->name : device_blas());
}

/* ---- FIRST:LAST ------------------------------------------------------------------- */

int backend_profile_steps(
	const struct train_opts *o, int64_t *first, int64_t *last, struct err *e)
{
	char *end;
	*first = *last = 0;
	if (!o->profile)
		return 0;
	*first = strtoll(o->profile, &end, 10);
	*last = *end == ':' ? strtoll(end + 1, &end, 10) : *first;
	if (*end || *first < 1 || *last < *first)
		return err_set(e, EX_USAGE,
			"profile '%s': give the first step and the last, as in 10:12",
			o->profile);
	if (*first > o->steps)
		return err_set(e, EX_USAGE, "profile '%s': the run has %lld steps",
			o->profile, (long long)o->steps);
	return 0;
}
