/* Preparing and building a trainer: device, plan, memory, store, pass, pipeline. */
#include "engine/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend.h"
#include "job/local_sgd.h"
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

void trainer_warn_no_copy(const struct trainer *t)
{
	char text[NUM_TEXT];
	if (t->world->rank == 0)
		warn("no memory for a copy of the state (%s a rank): "
		     "training waits until it is written",
			text_bytes(text, (double)t->plan.copy_bytes));
}

/* Collective. The bytes that `sharers` ranks need together, which share a GPU or a host, their `key`.
 * With several hosts, or sharers of other workers, each counts as the rank that needs most. */
static double shared_bytes(
	const struct trainer *t, int64_t key, int sharers, int64_t mine)
{
	struct need {
		int64_t key, n_bytes;
	} own = {key, mine}, *all = xcalloc((size_t)t->world->size, sizeof(*all));
	int64_t sum = 0, most = 0;
	int n = 0;
	comm_allgather(t->world, &own, all, sizeof(own));
	for (int r = 0; r < t->world->size; r++) {
		sum += all[r].key == key ? all[r].n_bytes : 0;
		n += all[r].key == key;
		most = max64(most, all[r].n_bytes);
	}
	free(all);
	return comm_place()->n_hosts == 1 && n == sharers ? (double)sum
							  : (double)most * sharers;
}

/* Collective. */
static int check_gpu_memory(const struct trainer *t, struct err *e)
{
	char need[NUM_TEXT], has[NUM_TEXT];
	int64_t planned = plan_on_device(&t->plan);
	double bytes = (double)planned, room = (double)t->o.memory;
	if (!t->o.memory) { /* the kernels' workspace is allocated already */
		bytes = shared_bytes(
			t, t->d.number, t->d.sharers, planned - DEVICE_WORK_BYTES);
		room = (double)t->memory.gpu_free;
	}
	if (bytes <= room)
		return 0;
	return err_set(e, EX_FAILED,
		"out of memory: the GPU needs %s%s, and has %s; --dry-run shows "
		"the plan, and a smaller --micro-batch, --recompute full, --offload or "
		"--dtype bf16 need less",
		text_bytes(need, bytes),
		t->d.sharers > 1 && !t->o.memory ? " for the ranks that share it" : "",
		text_bytes(has, room));
}

/* Collective. The first step touches all planned memory: a run that does not fit is refused now, and
 * not killed then. The copy of a checkpoint is optional. */
static int check_memory(struct trainer *t, struct err *e)
{
	const struct comm_place *place = comm_place();
	char need[NUM_TEXT], has[NUM_TEXT];
	bool discrete = t->d.discrete;
	int64_t available = memory_available(), limit = discrete ? 0 : t->o.memory;
	int64_t mine = plan_total(&t->plan) - t->plan.copy_bytes -
		       (discrete ? plan_on_device(&t->plan) : 0);
	int64_t most = comm_max_i64(t->world, mine);
	double bytes = shared_bytes(t, 0, place->local_size, mine);
	double copy = shared_bytes(t, 0, place->local_size, t->plan.copy_bytes);
	if (discrete && check_gpu_memory(t, e))
		return -1;
	if (limit && most > limit)
		return err_set(e, EX_FAILED,
			"out of memory: a rank needs %s, and --memory gives it %s; "
			"--dry-run shows the plan",
			text_bytes(need, (double)most), text_bytes(has, (double)limit));
	bool room = !available || bytes + copy < (double)available;
	if (limit && comm_max_i64(t->world, plan_total(&t->plan)) > limit)
		room = false;
	if (room && t->o.ckpt && !t->o.ckpt_wait && !options_offload(&t->o))
		t->copy.state = COPY_PLANNED;
	if (!available || bytes < (double)available)
		return 0;
	return err_set(e, EX_FAILED,
		"out of memory: %d rank%s on %s need%s %s, and %s are free; --dry-run shows "
		"the plan",
		place->local_size, plural(place->local_size), place->host,
		place->local_size == 1 ? "s" : "", text_bytes(need, bytes),
		text_bytes(has, (double)available));
}

/* Collective. Memory may be short on one host alone. */
static void agree_on_copies(struct trainer *t)
{
	if (!comm_min_i64(t->world, t->copy.state == COPY_PLANNED))
		t->copy.state = COPY_NONE;
	if (t->copy.state == COPY_NONE && t->plan.copy_bytes)
		trainer_warn_no_copy(t);
	if (t->copy.state == COPY_NONE)
		t->plan.copy_bytes = 0;
}

/* Offloaded float8 weights are read in fp32, so the store keeps no copies in fewer bits. */
static enum dtype wire_dtype(const struct train_opts *o)
{
	bool fp32 =
		o->dtype == PRECISION_FLOAT8 && offloads_params((enum offload)o->offload);
	return fp32 || o->gather_dtype == GATHER_FP32 ? DT_F32 : options_gemm_dtype(o);
}

void trainer_build_store(struct trainer *t)
{
	const struct train_opts *o = &t->o;
	struct model *m = &t->model;
	struct store_config c = {.mesh = &t->mesh,
		.device = &t->d,
		.tensors = m->tensors,
		.n_tensors = m->n_tensors,
		.n_units = m->n_units,
		.part = t->layout.part,
		.chunks = m->cp,
		.microbatches = t->layout.microbatches,
		.zero = (int)o->zero,
		.workers = o->edit.warmup ? (int)o->edit.workers : 0,
		.flat = o->fsdp_kind == FSDP_FLAT,
		.bucket_bytes = o->bucket_bytes,
		.reshard = (enum reshard)o->reshard,
		.tile = o->tile > 0,
		.wire = wire_dtype(o),
		.offload = (enum offload)o->offload,
		.offload_outer = o->edit.offload,
		.offload_backend = t->memory.offload_backend,
		.copy = options_gemm_dtype(o)};
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
		.documents = o->packing == PACKING_DOCUMENTS};
	struct optim_config optim;
	options_optim(o, &optim);
	if (o->dtype == PRECISION_FLOAT8)
		model_set_float8(m, o->float8_skip_ends);
	store_groups_begin(&c.groups);
	optim_add_groups(&optim, &c.groups);
	if (o->edit.workers)
		edit_add_groups(&o->edit.config, &c.groups);
	t->store = store_open(&c, &t->memory.run);
	t->optim = optim_open(&optim, t->store, &t->d);
	pass_init(&t->pass, m, &t->d, t->store, &p, &t->memory.run);
	t->terms = arena_alloc(&t->memory.run, sizeof(*t->terms));
	t->end = arena_alloc(&t->memory.run, sizeof(*t->end));
}

void trainer_build_pipe(struct trainer *t)
{
	const struct train_opts *o = &t->o;
	struct err e = {0};
	pass_recompute(&t->pass, (enum recompute)o->recompute, o->recompute_every,
		&t->memory.micro);
	if (schedule_open(&t->schedule, (enum schedule_kind)o->pp_schedule,
		    t->mesh.degree[AXIS_PP], t->layout.n_stages,
		    microbatches_count(&t->layout.microbatches, t->layout.data_rank), &e))
		die_err(&e);
	pipe_open(&t->pipe, &t->pass, &t->schedule, t->layout.stages, &t->mesh,
		&t->memory.micro);
}

void trainer_dismantle(struct trainer *t)
{
	optim_free(t->optim);
	store_free(t->store);
	pass_close(&t->pass);
	pipe_close(&t->pipe);
	schedule_free(&t->schedule);
	layout_free(&t->layout);
}

static void open_compute(struct trainer *t)
{
	struct device *d = &t->d;
	device_arena(d, &t->memory.run, "parameters and their state",
		(size_t)t->plan.run_bytes);
	device_arena(d, &t->memory.micro, "activations", (size_t)t->plan.micro_bytes);
	device_arena(d, &t->memory.scratch, "scratch", (size_t)t->plan.scratch_bytes);
	t->d.scratch = &t->memory.scratch;
	mesh_open(&t->mesh, t->world, t->o.degree);
	layout_assign(&t->layout, &t->o, &t->mesh, &t->model);
	trainer_build_store(t);
	trainer_build_pipe(t);
	start_times_add(&t->start, START_MEMORY);
	if (!t->o.resume && !t->o.init_from) { /* or state_load() fills all of them */
		init_parts(t->store, (uint64_t)t->o.seed);
		store_updated(t->store, false);
		device_wait(d);
	}
	start_times_add(&t->start, START_WEIGHTS);
}

/* The bytes that this rank may use; on a GPU, with the workspace that its kernels already have. */
static int64_t memory_limit(const struct trainer *t)
{
	if (t->d.discrete && !t->o.memory)
		return t->memory.gpu_free / max64(1, t->d.sharers) + DEVICE_WORK_BYTES;
	return plan_limit(&t->o, comm_place()->local_size);
}

/* Collective. Plans this rank. --recompute auto: the least recomputation with which every rank fits
 * into its limit. */
static void make_plan(struct trainer *t)
{
	bool search = t->o.recompute == RECOMPUTE_AUTO;
	int64_t limit = memory_limit(t);
	if (search)
		t->o.recompute = RECOMPUTE_NONE;
	for (;; t->o.recompute++) {
		plan_make(&t->o, &t->model, t->world->rank, &t->plan);
		int64_t mine = plan_needed(&t->o, &t->plan);
		if (!search || t->o.recompute == RECOMPUTE_FULL)
			break;
		if (!limit || comm_max_i64(t->world, mine > limit) == 0)
			break;
	}
	if (search)
		info("recompute: %s", recompute_names[t->o.recompute]);
}

static void close_device(struct trainer *t)
{
	faults_close(&t->faults);
	model_free(&t->model);
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
		!model_init(&t->model, &t->o.model, data->tokenizer.vocab.n, e) &&
		!layout_check(&t->o, &t->model, e) &&
		!dataset_order(data, &t->o, &t->model, &t->data.order, e))
		faults_open(&t->faults, &t->o, world->size, e);
	if (!comm_agree(world, e))
		backend_agree(&t->o, world, &t->d, e);
	if (comm_agree(world, e)) {
		close_device(t);
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
		close_device(t);
		return -1;
	}
	comm_device_part(all, t->world);
	if (workers)
		comm_device_part(all, workers);
	trainer_query_free_memory(t); /* the library has taken some */
	if (!o->graph || t->world->nccl || t->world->size == 1)
		return 0;
	close_device(t);
	return err_set(e, EX_USAGE,
		"--cuda-graph needs NCCL with several ranks: by MPI, their messages go through "
		"the host's memory, and a graph has no MPI calls");
}

int trainer_fit(struct trainer *t, struct err *e)
{
	make_plan(t);
	if (t->o.eval_only) /* an evaluation touches little of it */
		return 0;
	check_memory(t, e);
	start_times_add(&t->start, START_PLAN);
	if (!comm_agree(t->world, e))
		return 0;
	close_device(t);
	return -1;
}

int trainer_build(struct trainer *t, struct err *e)
{
	const struct train_opts *o = &t->o;
	int64_t n_bytes = t->plan.store.offloaded;
	bool offload = options_offload(o);
	if (offload)
		t->memory.offload_backend =
			!t->d.discrete ? offload_file_open(o->offload_to, n_bytes, e)
			: o->offload_to
				? offload_staged_open(&t->d, o->offload_to, n_bytes, e)
				: offload_host_open(&t->d, n_bytes, e);
	if (offload && comm_agree(t->world, e)) {
		offload_backend_close(t->memory.offload_backend);
		close_device(t);
		return -1;
	}
	agree_on_copies(t);
	open_compute(t);
	struct loader_config c = {.comm = t->world,
		.corpus = t->data.set->corpus,
		.readers = t->data.set->readers,
		.context = t->model.c.context,
		.documents = o->packing == PACKING_DOCUMENTS};
	t->data.loader = loader_open(&c);
	return 0;
}

int trainer_open(struct trainer *t, const struct train_opts *o, struct comm *world,
	struct dataset *data, struct err *e)
{
	if (trainer_prepare(t, o, world, data, e) || trainer_connect(t, world, NULL, e) ||
		trainer_fit(t, e))
		return -1;
	return trainer_build(t, e);
}

void trainer_close(struct trainer *t)
{
	BUG_ON(t->copy.writing);
	step_drop_next(t);
	str_free(&t->changes);
	loader_close(t->data.loader);
	trainer_dismantle(t);
	offload_backend_close(t->memory.offload_backend);
	mesh_close(&t->mesh);
	device_arena_release(&t->d, &t->memory.run);
	device_arena_release(&t->d, &t->memory.micro);
	device_arena_release(&t->d, &t->memory.scratch);
	arena_release(&t->copy.arena);
	close_device(t);
	*t = (struct trainer){0};
}
