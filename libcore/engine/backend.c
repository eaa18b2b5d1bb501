/* The device of a run, and the options that GPUs or CPUs do not support. */
#include "engine/backend.h"

/* The widest head and the longest row of the residual stream that the GPU kernels support. */
enum { MAX_HEAD = 256, MAX_DIM = 32768 };

/* Rejects a model that only CPUs support. */
static int check_gpu(const struct train_opts *o, struct err *e)
{
	const struct model_config *m = &o->model;
	const struct mistake mistakes[] = {
		{(m->head_dim ? m->head_dim : m->dim / max64(1, m->heads)) > MAX_HEAD,
			"heads of more than 256 channels are supported on CPUs only"},
		{m->dim > MAX_DIM,
			"a --dim of more than 32768 is supported on CPUs only"},
		{m->qk_norm_all, "--qk-norm-all is supported on CPUs only"},
		{o->check_replicas, "--check-replicas is supported on CPUs only"},
		{o->check_memory, "--check-memory is supported on CPUs only"},
	};
	return options_reject(mistakes, ARRAY_LEN(mistakes), e);
}

/* Rejects the first option that only GPUs support. */
static int check_cpu(const struct train_opts *o, struct err *e)
{
	const struct mistake mistakes[] = {
		{o->numerics == NUMERICS_FAST,
			"--numerics fast needs a GPU: a CPU has only --numerics exact"},
		{o->offload && !o->offload_to,
			"--offload on a CPU needs --offload-to DIRECTORY, on a fast disk"},
		{o->edit.offload && !o->offload_to,
			"--edit-offload on a CPU needs --offload-to DIRECTORY, on a fast disk"},
		{o->self_test == SELF_TEST_YES,
			"--self-test needs a GPU: it compares the GPU's kernels with the CPU's"},
		{o->profile, "--profile needs a GPU; use perf(1) on a CPU"},
		{o->graph, "--cuda-graph needs a GPU"},
		{o->comm == COMM_NCCL, "--comm nccl needs GPUs"},
		{o->algorithms,
			"--gemm-algorithms needs a GPU: a CPU has only one algorithm"},
	};
	return options_reject(mistakes, ARRAY_LEN(mistakes), e);
}

/* Fails if other options cannot be used with --cuda-graph. */
static int check_graph(const struct train_opts *o, struct err *e)
{
	const struct mistake mistakes[] = {
		{o->offload != OFFLOAD_NONE && o->offload_to,
			"--cuda-graph cannot be used with --offload-to: a graph has only kernels "
			"and copies, but the host reads and writes files"},
		{o->edit.config.delay > 0,
			"--cuda-graph cannot be used with --edit-sync-delay: a graph repeats "
			"the same step, but fragments are synchronized in some steps only"},
		{o->ep > 1,
			"--cuda-graph cannot be used with --ep: a graph repeats the same messages, "
			"but the router decides how many rows each rank gets"},
	};
	return o->graph ? options_reject(mistakes, ARRAY_LEN(mistakes), e) : 0;
}

int backend_choose(const struct train_opts *o, enum device_kind *kind, struct err *e)
{
	struct err cpu_only = {0};
	*kind = (enum device_kind)o->device;
	if (*kind != DEVICE_CPU && check_gpu(o, &cpu_only)) {
		if (*kind == DEVICE_CUDA)
			return err_set(e, EX_USAGE,
				"--device cuda: %s; change that option, or give --device cpu",
				cpu_only.msg);
		*kind = DEVICE_CPU;
	}
	if ((*kind == DEVICE_CPU && check_cpu(o, e)) ||
		(o->profile && options_parse_steps(o, "profile", o->profile,
				       &(int64_t){0}, &(int64_t){0}, e)))
		return -1;
	return check_graph(o, e);
}

int64_t backend_threads(int64_t wanted)
{
	const struct comm_place *place = comm_place();
	if (wanted)
		return wanted;
	return max64(1, min64(cpu_count(), place->processors / place->local_size));
}

void backend_count_sharers(struct train_opts *o, struct comm *all)
{
	enum device_kind kind;
	bool on_cpu = backend_choose(o, &kind, &(struct err){0}) || kind == DEVICE_CPU;
	o->resolved.gpu_sharers = on_cpu ? 0 : comm_gpu_sharers(all);
}

int backend_open(struct train_opts *o, struct device *d, struct err *e)
{
	enum device_kind kind;
	const struct device_options options = {.threads = (int)o->threads,
		.exact = o->numerics == NUMERICS_EXACT,
		.measure = gemm_algorithms_measured(o),
		.memory_bytes = o->memory,
		.ranks = comm_place()->local_size,
		.rank = comm_place()->local_rank,
		.sharers = o->resolved.gpu_sharers};
	if (backend_choose(o, &kind, e) || device_open(d, kind, &options, e))
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
	bool all_discrete = comm_min_i64(world, d->discrete);
	if (all_discrete || !d->discrete)
		return 0;
	device_close(d);
	device_open_cpu(d, (int)o->threads);
	o->device = DEVICE_CPU;
	return backend_choose(o, &kind, e);
}

const char *backend_identity(const struct device *d)
{
	return d->discrete ? d->name : "CPU";
}
