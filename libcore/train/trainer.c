/* Opening and closing what a run holds. */
#include "train/train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- data ------------------------------------------------------------------------ */

/* The files of a data-parallel rank: those that are the same one's have the same. */
static struct strs own_files(const struct train_opts *o, int rank, int ranks)
{
	struct strs mine = {0};
	for (int64_t i = 0; i < o->data.n; i++)
		if (!o->data_per_rank || i % ranks == rank)
			strs_add(&mine, o->data.v[i]);
	return mine;
}

static int open_here(struct data_set *d, const struct train_opts *o,
	const struct comm *world, struct err *e)
{
	int degree[N_AXES];
	if (loader_reader(world->rank, world->size, d->readers) != world->rank)
		return 0;
	if (train_degrees(o, world->size, degree, e))
		return -1;
	int ranks = degree[AXIS_DP] * degree[AXIS_FSDP];
	struct strs files = own_files(o, train_data_rank(degree, world->rank), ranks);
	int rc = 0;
	if (!files.n && o->data_per_rank && o->data.n)
		rc = err_set(e, EX_USAGE, "data-per-rank: %lld files for %d ranks",
			(long long)o->data.n, ranks);
	rc = rc || corpus_open(&d->corpus, &files, o->data_per_rank, e);
	strs_free(&files);
	return rc;
}

/* Rank 0 tells those that do not read what they need to know. */
static int share_data(struct data_set *d, bool own, struct comm *world, struct err *e)
{
	struct str packed = {0};
	if (d->corpus) {
		tokenizer_pack(corpus_tokenizer(d->corpus), &packed);
		for (int s = 0; s < N_SPLITS; s++)
			d->tokens[s] = corpus_tokens(d->corpus, (enum split)s);
		d->hash = corpus_hash(d->corpus);
	}
	uint64_t vocab = hash_bytes(packed.s, packed.len, 0);
	struct {
		int64_t tokens[N_SPLITS];
		uint64_t hash, vocab;
	} first = {{d->tokens[0], d->tokens[1]}, d->hash, vocab};
	comm_bcast(world, &first, sizeof(first), 0);
	if (d->corpus && first.vocab != vocab)
		err_set(e, EX_DATAERR,
			"the data of this rank have another vocabulary than rank 0's");
	else if (d->corpus && !own && first.hash != d->hash)
		err_set(e, EX_DATAERR,
			"the data of this rank are others than rank 0's "
			"(--data-per-rank means that)");
	if (comm_agree(world, e))
		return -1;
	comm_bcast_str(world, &packed, 0);
	if (!d->corpus) {
		memcpy(d->tokens, first.tokens, sizeof(d->tokens));
		d->hash = first.hash;
	}
	int rc = tokenizer_unpack(&d->tokenizer, &packed, e);
	str_free(&packed);
	return rc;
}

int data_open(
	struct data_set *d, const struct train_opts *o, struct comm *world, struct err *e)
{
	bool stream = false;
	for (int64_t i = 0; i < o->data.n; i++)
		stream |= corpus_is_stream(o->data.v[i]);
	/* A stream can be read once: rank 0 reads it for all (only it has standard input). */
	comm_bcast(world, &stream, sizeof(stream), 0);
	int64_t readers = stream ? 1 : o->readers ? o->readers : world->size;
	*d = (struct data_set){.readers = (int)min64(readers, world->size)};
	comm_watch_hold(stream);
	open_here(d, o, world, e);
	int rc = comm_agree(world, e);
	comm_watch_hold(false);
	if (rc || share_data(d, o->data_per_rank, world, e)) {
		data_close(d);
		return -1;
	}
	return 0;
}

void data_close(struct data_set *d)
{
	corpus_close(d->corpus);
	tokenizer_free(&d->tokenizer);
	*d = (struct data_set){0};
}

/* ---- how long a start takes ------------------------------------------------------- */

void start_phase_ends(struct start *s, enum start_phase phase)
{
	double now = clock_seconds();
	s->seconds[phase] += now - s->last;
	s->last = now;
}

void start_print(const struct start *s, struct str *out)
{
	static const char *const names[START_PHASES] = {"program", "data", "device",
		"plan", "self-test", "memory", "weights", "files", "products"};
	str_printf(out, "start: %.2f s", s->last - s->began);
	for (int i = 0; i < START_PHASES; i++)
		str_printf(out, "%s %s %.2f", i ? "," : ":", names[i], s->seconds[i]);
}

/* ---- the trainer ----------------------------------------------------------------- */

void trainer_warn_of_copy(const struct trainer *t)
{
	char text[NUM_TEXT];
	if (t->world->rank == 0)
		warn("no memory for a copy of what a checkpoint holds (%s a rank): "
		     "training waits until it is written",
			text_bytes(text, (double)t->plan.copy_bytes));
}

/* Collective. What the ranks of this host need together of something: where there are several
 * hosts, as if all needed as much as the one that needs most. */
static double of_this_host(struct trainer *t, int64_t mine)
{
	struct comm_place place;
	int64_t sum = mine, most = comm_max_i64(t->world, mine);
	comm_place(&place);
	comm_sum_i64(t->world, &sum, 1);
	if (place.n_hosts == 1 && place.local_size == t->world->size)
		return (double)sum;
	return (double)most * place.local_size;
}

/* Collective. What all ranks together that have this rank's GPU need of it; where there are
 * several hosts, or ranks of other workers, as if all needed as much as the one that needs
 * most. */
static int64_t of_this_gpu(const struct trainer *t, int64_t mine)
{
	struct comm_place place;
	struct need {
		int64_t number, n_bytes;
	} own = {t->d.number, mine}, *all = xcalloc((size_t)t->world->size, sizeof(*all));
	int64_t sum = 0, most = comm_max_i64(t->world, mine);
	int sharers = 0;
	comm_place(&place);
	comm_allgather(t->world, &own, all, sizeof(own));
	for (int r = 0; r < t->world->size; r++) {
		sum += all[r].number == t->d.number ? all[r].n_bytes : 0;
		sharers += all[r].number == t->d.number;
	}
	free(all);
	return place.n_hosts == 1 && sharers == t->d.sharers ? sum : most * t->d.sharers;
}

/* Collective. */
static int check_device(const struct trainer *t, struct err *e)
{
	char need[NUM_TEXT], has[NUM_TEXT];
	int64_t mine = plan_on_device(&t->plan), room = t->o.memory;
	if (!room) { /* what kernels have is no longer free */
		mine = of_this_gpu(t, mine - DEVICE_WORK_BYTES);
		room = t->room;
	}
	if (mine <= room)
		return 0;
	return err_set(e, EX_FAILED,
		"out of memory: the GPU is to hold %s%s, and has %s for it; --dry-run "
		"shows "
		"the plan, and a smaller --micro-batch, --recompute full, --offload or "
		"--dtype bf16 need less",
		text_bytes(need, (double)mine),
		t->d.sharers > 1 && !t->o.memory ? " of the ranks that share it" : "",
		text_bytes(has, (double)room));
}

/* Collective. What is planned is touched in the first step: better to refuse than to be
 * killed then. Without the copy it would be slower, which is no reason to refuse. */
static int check_memory(struct trainer *t, struct err *e)
{
	struct comm_place place;
	char need[NUM_TEXT], has[NUM_TEXT];
	bool apart = t->d.apart;
	int64_t available = memory_available(), limit = apart ? 0 : t->o.memory;
	int64_t mine = plan_total(&t->plan) - t->plan.copy_bytes -
		       (apart ? plan_on_device(&t->plan) : 0);
	int64_t most = comm_max_i64(t->world, mine);
	double bytes = of_this_host(t, mine);
	double copy = of_this_host(t, t->plan.copy_bytes);
	comm_place(&place);
	if (apart && check_device(t, e))
		return -1;
	if (limit && most > limit)
		return err_set(e, EX_FAILED,
			"out of memory: a rank needs %s, and --memory gives it %s; "
			"--dry-run shows the plan",
			text_bytes(need, (double)most), text_bytes(has, (double)limit));
	t->copies =
		t->o.ckpt && !t->o.ckpt_wait && !t->o.offload ? COPY_PLANNED : COPY_NONE;
	if (limit && comm_max_i64(t->world, plan_total(&t->plan)) > limit)
		t->copies = COPY_NONE;
	if (!available || bytes + copy < (double)available)
		return 0;
	t->copies = COPY_NONE;
	if (bytes < (double)available)
		return 0;
	return err_set(e, EX_FAILED,
		"out of memory: %d rank%s on %s need%s %s, and %s are free; --dry-run "
		"shows "
		"the plan",
		place.local_size, place.local_size == 1 ? "" : "s", place.host,
		place.local_size == 1 ? "s" : "", text_bytes(need, bytes),
		text_bytes(has, (double)available));
}

/* Collective. Memory may be short on one host alone. */
static void agree_on_copies(struct trainer *t)
{
	bool here = t->copies == COPY_PLANNED;
	if (!comm_min_i64(t->world, here))
		t->copies = COPY_NONE;
	if (t->copies == COPY_NONE && t->plan.copy_bytes)
		trainer_warn_of_copy(t);
	if (t->copies == COPY_NONE)
		t->plan.copy_bytes = 0;
}

int train_order(const struct train_opts *o, const struct model *m,
	const struct data_set *data, struct order *out, struct err *e)
{
	int64_t tokens = data->tokens[SPLIT_TRAIN];
	if (order_init(out, (enum sampling)o->sampling, (uint64_t)o->seed, tokens,
		    m->c.context, 0))
		return err_set(e, EX_DATAERR,
			"%lld training tokens, but one sample needs %lld (--context and "
			"one more)",
			(long long)tokens, (long long)m->c.context + 1);
	return 0;
}

static void tick(void *with)
{
	(void)with;
	comm_poll();
}

/* Of float8 a scale is made from the weight as it is, not rounded; so it travels so. */
static enum dtype wire_dtype(const struct train_opts *o)
{
	if (o->gather_dtype == GATHER_FP32)
		return DT_F32;
	return o->dtype == PRECISION_BF16   ? DT_BF16
	       : o->dtype == PRECISION_FP16 ? DT_F16
					    : DT_F32;
}

/* What products take, where that is stored otherwise than parameters are. */
static enum dtype copy_dtype(const struct trainer *t)
{
	if (!t->d.narrow || t->o.dtype == PRECISION_FP32)
		return DT_F32;
	return t->o.dtype == PRECISION_FP16 ? DT_F16 : DT_BF16;
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
		.part = t->part,
		.chunks = m->cp,
		.deal = t->deal,
		.zero = (int)o->zero,
		.flat = o->fsdp_kind == FSDP_FLAT,
		.bucket_bytes = o->bucket_bytes,
		.reshard = (enum reshard)o->reshard,
		.tile = o->tile > 0,
		.wire = wire_dtype(o),
		.offload = (enum offload)o->offload,
		.spill = t->spill,
		.copy = copy_dtype(t)};
	struct pass_config p = {.mesh = &t->mesh,
		.batch = o->micro_batch,
		.seed = (uint64_t)o->seed,
		.sp = o->sp,
		.async_tp = o->async_tp && comm_overlaps(),
		.gather_kv = o->cp_comm == CP_GATHER};
	struct optim_config optim;
	train_store_groups(o, &c.groups);
	t->store = store_open(&c, &t->run);
	train_optim_config(o, &optim);
	t->optim = optim_open(&optim, t->store, &t->d);
	pass_init(&t->pass, m, &t->d, t->store, &p, &t->run);
	t->pass.plain_kernels = o->kernels == KERNELS_REF;
	t->pass.cp_rounds = o->cp_accumulate == CP_BF16;
	pass_precision(&t->pass, (enum precision)o->dtype, o->float8_skip_ends, &t->run);
	t->pass.tick = tick;
	t->terms = arena_alloc(&t->run, sizeof(*t->terms));
	t->end = arena_alloc(&t->run, sizeof(*t->end));
}

void trainer_build_pipe(struct trainer *t)
{
	const struct train_opts *o = &t->o;
	struct err e = {0};
	pass_recompute(&t->pass, (enum recompute)o->recompute, &t->micro);
	if (schedule_open(&t->schedule, (enum schedule_kind)o->pp_schedule,
		    t->mesh.degree[AXIS_PP], t->n_stages,
		    deal_count(&t->deal, t->data_rank), &e))
		die_err(&e);
	pipe_open(&t->pipe, &t->pass, &t->schedule, t->stages, t->mesh.axis[AXIS_PP],
		&t->micro);
}

void trainer_dismantle(struct trainer *t)
{
	optim_free(t->optim);
	store_free(t->store);
	pass_close(&t->pass);
	pipe_close(&t->pipe);
	schedule_free(&t->schedule);
	free(t->stages);
	free((void *)t->part.used);
}

static void open_compute(struct trainer *t)
{
	struct device *d = &t->d;
	device_arena(d, &t->run, "parameters and their state", (size_t)t->plan.run_bytes);
	device_arena(d, &t->micro, "activations", (size_t)t->plan.micro_bytes);
	device_arena(d, &t->scratch, "scratch", (size_t)t->plan.scratch_bytes);
	t->d.scratch = &t->scratch;
	mesh_open(&t->mesh, t->world, t->o.degree);
	trainer_arrange(t);
	trainer_build_store(t);
	trainer_build_pipe(t);
	start_phase_ends(&t->start, START_MEMORY);
	init_parts(t->store, (uint64_t)t->o.seed);
	store_updated(t->store, false);
	d->k->wait(d);
	start_phase_ends(&t->start, START_WEIGHTS);
}

/* What this rank may take; of a GPU its kernels have some already. */
static int64_t limit_of(const struct trainer *t)
{
	struct comm_place place;
	if (t->d.apart && !t->o.memory)
		return t->room / max64(1, t->d.sharers) + DEVICE_WORK_BYTES;
	comm_place(&place);
	return plan_limit(&t->o, place.local_size);
}

/* Collective. Plans this rank; with --recompute auto, with the least of it that lets every
 * rank keep to its limit, or all. */
static void make_plan(struct trainer *t)
{
	bool search = t->o.recompute == RECOMPUTE_AUTO;
	int64_t limit = limit_of(t);
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
	comm_device(NULL);
	device_close(&t->d);
}

int trainer_prepare(struct trainer *t, const struct train_opts *o, struct comm *world,
	struct data_set *data, struct err *e)
{
	*t = (struct trainer){.o = *o,
		.world = world,
		.data = data,
		.loss = (double)NAN,
		.val_loss = (double)NAN,
		.best_val_loss = (double)NAN,
		.loss_scale = o->dtype == PRECISION_FP16 ? (float)o->loss_scale : 1,
		.graph = o->graph ? GRAPH_WANTED : GRAPH_NONE};
	if (!train_resolve(&t->o, world->size, e) &&
		!train_device_open(&t->o, &t->d, e) &&
		!model_init(&t->model, &t->o.model, data->tokenizer.vocab.n, e) &&
		!train_check(&t->o, &t->model, e))
		train_order(&t->o, &t->model, data, &t->order, e);
	if (!e->code)
		faults_open(&t->faults, &t->o, world->size, e);
	int rc = comm_agree(world, e);
	if (!rc) {
		train_device_agree(&t->o, world, &t->d, e);
		rc = comm_agree(world, e);
	}
	if (rc)
		close_device(t);
	else
		trainer_see_room(t);
	return rc;
}

void trainer_see_room(struct trainer *t)
{
	int64_t used;
	device_memory(&t->d, &used, &t->room);
}

int trainer_fit(struct trainer *t, struct err *e)
{
	comm_device(&t->d);
	make_plan(t);
	if (t->o.eval_only) /* which touches little of it */
		return 0;
	check_memory(t, e);
	int rc = comm_agree(t->world, e);
	if (rc)
		close_device(t);
	start_phase_ends(&t->start, START_PLAN);
	return rc ? -1 : 0;
}

int trainer_build(struct trainer *t, struct err *e)
{
	const struct train_opts *o = &t->o;
	int rc = 0;
	if (o->offload) {
		int64_t n_bytes = t->plan.store.spilled;
		t->spill = t->d.apart ? spill_open_host(&t->d, n_bytes, e)
				      : spill_open(o->offload_to, n_bytes, e);
		rc = comm_agree(t->world, e);
	}
	if (rc) {
		spill_close(t->spill);
		close_device(t);
		return -1;
	}
	agree_on_copies(t);
	open_compute(t);
	struct loader_config c = {.comm = t->world,
		.corpus = t->data->corpus,
		.readers = t->data->readers,
		.context = t->model.c.context};
	t->loader = loader_open(&c);
	return 0;
}

int trainer_open(struct trainer *t, const struct train_opts *o, struct comm *world,
	struct data_set *data, struct err *e)
{
	if (trainer_prepare(t, o, world, data, e) || trainer_fit(t, e))
		return -1;
	return trainer_build(t, e);
}

void trainer_close(struct trainer *t)
{
	BUG_ON(t->writing);
	if (t->next) {
		loader_end(t->loader, t->next);
		fetch_free(t->next);
	}
	loader_close(t->loader);
	trainer_dismantle(t);
	spill_close(t->spill);
	mesh_close(&t->mesh);
	device_arena_release(&t->d, &t->run);
	device_arena_release(&t->d, &t->micro);
	device_arena_release(&t->d, &t->scratch);
	arena_release(&t->copy);
	close_device(t);
	*t = (struct trainer){0};
}
