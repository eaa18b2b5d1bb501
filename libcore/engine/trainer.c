/* Prepares and builds a trainer: device, memory, store, pass, pipeline. */
#include "engine/engine.h"

#include <math.h>

#include "engine/backend.h"
#include "engine/checks.h"
#include "engine/deal.h"
#include "engine/shares.h"
#include "engine/step.h"

void start_times_add(struct start_times *s, enum start_phase phase)
{
	double now = clock_seconds();
	s->seconds[phase] += now - s->last;
	s->last = now;
}

void start_times_print(const struct start_times *s, struct str *out)
{
	static const char *const names[START_PHASES] = {"program", "data", "device",
		"plan", "self-test", "memory", "weights", "files", "algorithms"};
	str_printf(out, "start: %.2f s", s->last - s->began);
	for (int i = 0; i < START_PHASES; i++)
		str_printf(out, "%s %s %.2f", i ? "," : ":", names[i], s->seconds[i]);
}

/* Returns the type in which weights are gathered; offloaded float8 weights are read in fp32. */
static enum dtype wire_dtype(const struct train_opts *o)
{
	bool fp32 =
		o->dtype == PRECISION_FLOAT8 && offloads_params((enum offload)o->offload);
	return fp32 || o->gather_dtype == GATHER_FP32 ? DT_F32 : options_gemm_dtype(o);
}

/* Alignment of the gradients' memory: more than any kernel or library needs. */
enum { GRADIENTS_ALIGN = 4096 };

/* Returns true if rank 0 of the pipeline has its last stage too. */
static bool pipeline_ends_share_rank(const struct trainer *t)
{
	int ranks = t->mesh.degree[AXIS_PP], stages = ranks * t->layout.n_stages;
	return !schedule_stage_rank(
		(enum schedule_kind)t->o.pp_schedule, ranks, stages - 1);
}

/* Creates the store of parameters, gradients and optimizer state, in t->memory.run. */
static void open_store(struct trainer *t, const struct optim_config *optim)
{
	const struct train_opts *o = &t->o;
	const struct model *m = &t->model;
	struct store_config c = {.mesh = &t->mesh,
		.device = &t->d,
		.tensors = m->tensors,
		.n_tensors = m->n_tensors,
		.n_units = m->n_units,
		.part = t->layout.part,
		.has_both_ends = pipeline_ends_share_rank(t),
		.chunks = m->cp,
		.microbatches = t->layout.microbatches,
		.zero = (int)o->zero,
		.workers = o->edit.warmup ? (int)o->edit.workers : 0,
		.flat = o->fsdp_kind == FSDP_FLAT,
		.bucket_bytes = o->bucket_bytes,
		.check_sums = o->check_sums,
		.seed = (uint64_t)o->seed,
		.reshard = (enum reshard)o->reshard,
		.tile = o->tile > 0,
		.wire = wire_dtype(o),
		.offload = (enum offload)o->offload,
		.offload_outer = o->edit.offload,
		.offload_backend = t->memory.offload_backend,
		.gradient_memory = t->memory.gradient_memory,
		.copy = options_gemm_dtype(o)};
	store_groups_begin(&c.groups);
	optim_add_groups(optim, &c.groups);
	if (o->edit.workers)
		edit_add_groups(&o->edit.config, &c.groups);
	t->store = store_new(&c, &t->memory.run);
}

/* Initializes the forward and backward pass from the options. */
static void open_pass(struct trainer *t)
{
	const struct train_opts *o = &t->o;
	struct pass_config p = {.mesh = &t->mesh,
		.batch = o->micro_batch,
		.seed = (uint64_t)o->seed,
		.precision = (enum precision)o->dtype,
		.residual = o->residual_dtype == RESIDUAL_BF16 ? DT_BF16 : DT_F32,
		.sp = o->sp,
		.async_tp = o->async_tp && comm_overlaps(),
		.gather_kv = o->cp_comm == CP_GATHER,
		.plain_kernels = o->kernels == KERNELS_REF,
		.cp_rounds = o->cp_accumulate == CP_BF16,
		.loss_terms = {(float)o->label_smoothing, (float)o->z_loss},
		.expert_room = o->expert_room,
		.documents = o->packing == PACKING_DOCUMENTS};
	pass_init(&t->pass, &t->model, &t->d, t->store, &p, &t->memory.run);
}

void trainer_build_state(struct trainer *t)
{
	struct optim_config optim;
	options_set_optim(&t->o, &optim);
	if (t->o.dtype == PRECISION_FLOAT8)
		model_set_float8(&t->model, t->o.float8_skip_ends);
	open_store(t, &optim);
	t->optim = optim_open(&optim, t->store, &t->d);
	open_pass(t);
	t->terms = arena_alloc(&t->memory.run, sizeof(*t->terms));
	t->end = arena_alloc(&t->memory.run, sizeof(*t->end));
}

/* Makes the schedule of n micro-batches. */
static void make_schedule(struct trainer *t, int64_t n)
{
	struct err e = {0};
	if (schedule_init(&t->schedule, (enum schedule_kind)t->o.pp_schedule,
		    t->mesh.degree[AXIS_PP], t->layout.n_stages, n, &e))
		die_err(&e);
}

void trainer_set_turns(struct trainer *t)
{
	schedule_release(&t->schedule);
	make_schedule(
		t, microbatches_count(&t->layout.microbatches, t->layout.data_rank));
	pipe_use_schedule(&t->pipe, &t->schedule);
}

void trainer_build_pipe(struct trainer *t)
{
	const struct train_opts *o = &t->o;
	const struct microbatches *mb = &t->layout.microbatches;
	pass_recompute(&t->pass, (enum recompute)o->recompute, o->recompute_every,
		&t->memory.micro);
	int64_t n = microbatches_count(mb, t->layout.data_rank);
	make_schedule(t, n);
	pipe_open(&t->pipe, &t->pass, &t->schedule, mb->begin ? shares_max_turns(mb) : n,
		t->layout.stages, &t->mesh, &t->memory.micro);
}

void trainer_dismantle(struct trainer *t)
{
	optim_close(t->optim);
	store_free(t->store);
	if (t->router_losses)
		device_shared_free(&t->d, t->router_losses);
	pass_release(&t->pass);
	pipe_close(&t->pipe);
	schedule_release(&t->schedule);
	layout_free(&t->layout);
}

int64_t trainer_gradients_at(const struct trainer *t)
{
	const struct train_opts *o = &t->o;
	int64_t all = (int64_t)t->memory.micro.peak_bytes, offset = all;
	scoped_ptr int64_t *live = xcalloc((size_t)t->model.n_units, sizeof(*live));
	/* (workers exchange pseudo-gradients while they compute) */
	if (!o->edit.workers && !o->tile && !t->layout.begin &&
		!offloads_grads((enum offload)o->offload) &&
		pipe_live_bytes(&t->pipe, all, live))
		offset = round_up(
			store_gradients_offset(t->store, live, all), GRADIENTS_ALIGN);
	return min64(offset, all);
}

int64_t trainer_shared_bytes(const struct trainer_sizes *s)
{
	return s->micro + s->gradients -
	       max64(s->micro, s->gradient_memory + s->gradients);
}

int64_t trainer_peak_bytes(const struct trainer *t)
{
	const struct trainer_memory *m = &t->memory;
	size_t arenas = m->run.peak_bytes + m->micro.peak_bytes + m->scratch.peak_bytes;
	return (int64_t)arenas + store_peak_bytes(t->store) - m->shared;
}

/* Allocates the activations, in one arena with the gradients if they share memory. */
static void allocate_activations(struct trainer *t, const struct trainer_sizes *sizes)
{
	struct trainer_memory *m = &t->memory;
	m->shared = trainer_shared_bytes(sizes);
	if (!m->shared) {
		device_arena_init(&t->d, &m->micro, "activations", (size_t)sizes->micro);
		return;
	}
	device_arena_init(&t->d, &m->both, "activations and gradients",
		(size_t)(sizes->micro + sizes->gradients - m->shared));
	arena_init_over(&m->micro, "activations", m->both.base, (size_t)sizes->micro);
	m->gradient_memory = m->both.base + sizes->gradient_memory;
}

static void release_activations(struct trainer *t)
{
	struct trainer_memory *m = &t->memory;
	device_arena_release(&t->d, m->shared ? &m->both : &m->micro);
}

/* Allocates memory and builds the trainer in it; initializes parameters without a checkpoint. */
static void build_on_device(struct trainer *t, const struct trainer_sizes *sizes)
{
	struct device *d = &t->d;
	device_arena_init(
		d, &t->memory.run, "parameters and their state", (size_t)sizes->run);
	allocate_activations(t, sizes);
	device_arena_init(d, &t->memory.scratch, "scratch", (size_t)sizes->scratch);
	t->d.scratch = &t->memory.scratch;
	mesh_open(&t->mesh, t->world, t->o.resolved.degree);
	layout_assign(&t->layout, &t->o, &t->mesh, &t->model);
	trainer_build_state(t);
	BUG_ON(t->memory.shared && store_gradients_bytes(t->store) > sizes->gradients);
	trainer_build_pipe(t);
	deal_open(t);
	checks_prepare(t);
	start_times_add(&t->start, START_MEMORY);
	if (!t->o.resume && !t->o.init_from) { /* else state_load() sets all parameters */
		init_parts(t->store, (uint64_t)t->o.seed);
		store_updated(t->store, false);
		device_wait(d);
	}
	start_times_add(&t->start, START_WEIGHTS);
}

void trainer_abandon(struct trainer *t)
{
	model_release(&t->model);
	comm_device_close();
	device_close(&t->d);
}

int trainer_prepare(struct trainer *t, const struct train_opts *o, struct comm *world,
	struct dataset *data, struct err *e)
{
	*t = (struct trainer){.o = *o,
		.world = world,
		.data = {.set = data},
		.loss = (double)NAN,
		.val_loss = (double)NAN,
		.best_val_loss = (double)NAN,
		.loss_scale = o->dtype == PRECISION_FP16 ? (float)o->loss_scale : 1,
		.graph = {.state = o->graph ? GRAPH_WANTED : GRAPH_NONE}};
	if (!layout_resolve(&t->o, world->size, e) && !backend_open(&t->o, &t->d, e) &&
		!options_model_init(&t->o, &t->model, data->tokenizer.vocab.n, e) &&
		!layout_check(&t->o, &t->model, e))
		dataset_order(data, &t->o, &t->model, &t->data.order, e);
	if (!comm_agree(world, e))
		backend_agree(&t->o, world, &t->d, e);
	if (comm_agree(world, e)) {
		trainer_abandon(t);
		return -1;
	}
	trainer_query_free_memory(t);
	return 0;
}

void trainer_query_free_memory(struct trainer *t)
{
	int64_t used;
	device_memory(&t->d, &used, &t->memory.gpu_free);
}

int trainer_connect(
	struct trainer *t, struct comm *all, struct comm *workers, struct err *e)
{
	const struct train_opts *o = &t->o;
	if (comm_device_open(all, &t->d, (enum comm_library)o->comm, e)) {
		trainer_abandon(t);
		return -1;
	}
	comm_device_part(all, t->world);
	if (workers)
		comm_device_part(all, workers);
	trainer_query_free_memory(t); /* the library has allocated some */
	if (!o->graph || t->world->nccl || t->world->size == 1)
		return 0;
	trainer_abandon(t);
	return err_set(e, EX_USAGE,
		"--cuda-graph needs NCCL with several ranks: MPI messages go through host "
		"memory, and a graph cannot contain MPI calls");
}

int trainer_build(struct trainer *t, const struct trainer_sizes *sizes, struct err *e)
{
	const struct train_opts *o = &t->o;
	int64_t n_bytes = sizes->offloaded;
	bool offload = options_offload(o);
	if (offload)
		t->memory.offload_backend =
			!t->d.discrete ? offload_file_open(o->offload_to, n_bytes, e)
			: o->offload_to
				? offload_staged_open(&t->d, o->offload_to, n_bytes, e)
				: offload_host_open(&t->d, n_bytes, e);
	if (offload && comm_agree(t->world, e)) {
		offload_backend_close(t->memory.offload_backend);
		trainer_abandon(t);
		return -1;
	}
	t->copy.bytes = sizes->copy;
	t->copy.state = sizes->copies ? COPY_PLANNED : COPY_NONE;
	build_on_device(t, sizes);
	struct loader_config c = {.comm = t->world,
		.corpus = t->data.set->corpus,
		.readers = t->data.set->readers,
		.context = t->model.c.context};
	t->data.loader = loader_open(&c);
	return 0;
}

void trainer_close(struct trainer *t)
{
	BUG_ON(t->copy.writing);
	step_drop_next(t);
	str_free(&t->changes);
	str_free(&t->origin);
	loader_close(t->data.loader);
	deal_close(&t->deal);
	checks_release(t);
	trainer_dismantle(t);
	offload_backend_close(t->memory.offload_backend);
	mesh_close(&t->mesh);
	device_arena_release(&t->d, &t->memory.run);
	release_activations(t);
	device_arena_release(&t->d, &t->memory.scratch);
	arena_release(&t->copy.arena);
	trainer_abandon(t);
	*t = (struct trainer){0};
}
