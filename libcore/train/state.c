/* The training state, to and from checkpoints. */
#include "train/train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- saving ---------------------------------------------------------------------- */

/* A checkpoint has the groups of the store, by the same numbers. */
static void give_rows(
	void *with, int group, int tensor, int64_t row, int64_t n, int to, float *out)
{
	struct trainer *t = with;
	store_collect(t->store, group, tensor, row, n, to, out);
}

static struct ckpt_tensor *describe(const struct model *m)
{
	struct ckpt_tensor *list = xcalloc((size_t)m->n_tensors, sizeof(*list));
	for (int i = 0; i < m->n_tensors; i++) {
		const struct tensor *t = &m->tensors[i];
		snprintf(list[i].name, sizeof(list[i].name), "%s", t->name);
		list[i].ndim = t->ndim;
		memcpy(list[i].dims, t->dims, sizeof(t->dims));
	}
	return list;
}

void train_store_groups(const struct train_opts *o, struct store_groups *g)
{
	struct edit_config c;
	struct optim_config optim;
	train_edit_config(o, &c);
	train_optim_config(o, &optim);
	store_groups_begin(g);
	optim_add_groups(&optim, g);
	if (o->edit.workers)
		edit_add_groups(&c, g);
}

/* The names of all groups of the store. Returns their number. */
static int name_groups(const struct train_opts *o, const char *names[CKPT_MAX_GROUPS])
{
	struct store_groups g = {.n = 0};
	train_store_groups(o, &g);
	for (int i = 0; i < g.n; i++)
		names[i] = g.of[i].name;
	return g.n;
}

/* Is the group in the checkpoint that the run goes on from? One of a run without workers has
 * nothing of local SGD, and what a worker could not send yet is not for one more worker that
 * begins from its checkpoint. */
static bool is_resumed(const struct train_opts *o, const struct store_group *g)
{
	bool more = o->worker >= o->from_workers;
	return g->owner != STORE_OUTER ||
	       (o->from_workers && !(more && !strcmp(g->name, "residual")));
}

/* What a worker keeps beside groups: when the workers agreed last, its sum of losses since
 * then, when they part, the samples that nobody saw; and what edit.h says. Allocated. */
enum { OWN_NUMBERS = 4 };

static double *worker_numbers(const struct trainer *t, int64_t *n)
{
	*n = OWN_NUMBERS + edit_state_size(t->edit);
	double *x = xcalloc((size_t)*n, sizeof(*x));
	x[0] = (double)t->synced;
	x[1] = t->apart_loss;
	x[2] = (double)t->o.edit.warmup;
	x[3] = (double)t->unseen;
	edit_state_get(t->edit, x + OWN_NUMBERS);
	return x;
}

int64_t state_synced(const struct ckpt *c)
{
	double step = (double)c->info.step;
	if (!c->info.workers)
		return c->info.step;
	if (c->n_numbers < OWN_NUMBERS || !(c->numbers[0] >= 0 && c->numbers[0] <= step))
		return -1;
	return (int64_t)c->numbers[0];
}

/* When the number of workers changes, worker k goes on as k modulo the number before. */
static int is_mine(const struct trainer *t, const struct ckpt *c, struct err *e)
{
	int64_t were = max64(1, t->o.from_workers);
	if (c->info.workers == t->o.from_workers && c->info.worker == t->o.worker % were)
		return 0;
	return err_set(e, EX_DATAERR,
		"%s: of worker %lld of %lld, and worker %d of %lld goes on with that of "
		"worker %lld of %lld: name the first worker's, which finds the others",
		c->path, (long long)c->info.worker, (long long)c->info.workers,
		t->o.worker, (long long)t->o.edit.workers,
		(long long)(t->o.worker % were), (long long)t->o.from_workers);
}

static int take_numbers_of_worker(struct trainer *t, const struct ckpt *c, struct err *e)
{
	double step = (double)t->step, warmup = (double)t->o.edit.warmup;
	const double *x = c->numbers;
	if (is_mine(t, c, e))
		return -1;
	if (!c->info.workers) { /* they part here, or have a warm-up to end */
		t->synced = t->step;
		edit_anchor(t->edit);
		return 0;
	}
	if (c->n_numbers != OWN_NUMBERS + edit_state_size(t->edit))
		return err_set(e, EX_DATAERR,
			"%s: other detectors or units than these options say", c->path);
	if (!(x[0] >= 0 && x[0] <= step && isfinite(x[1])))
		return err_set(
			e, EX_DATAERR, "%s: numbers of a worker that cannot be", c->path);
	if ((x[2] <= step) != (warmup <= step)) /* they have parted, or have not */
		return err_set(e, EX_USAGE,
			"edit-warmup-steps %g: the run is at step %g, and it was %g",
			warmup, step, x[2]);
	t->synced = (int64_t)x[0];
	t->apart_loss = t->synced < t->step ? x[1] : 0; /* it may have gone back there */
	if (edit_state_put(t->edit, x + OWN_NUMBERS, t->step - t->o.edit.warmup, e))
		return err_prefix(e, "%s: ", c->path);
	return 0;
}

/* Also a run goes on with it that has no workers any more. */
static int take_unseen(struct trainer *t, const struct ckpt *c, struct err *e)
{
	double n = c && c->n_numbers >= OWN_NUMBERS ? c->numbers[3] : 0;
	if (!(n >= 0 && n <= (double)t->samples))
		return err_set(
			e, EX_DATAERR, "%s: numbers of a worker that cannot be", c->path);
	t->unseen = (int64_t)n;
	return 0;
}

/* All but the hash of the parameters; both allocated texts are the caller's. */
static struct ckpt_write what_to_save(
	const struct trainer *t, struct str *config, struct ckpt_tensor **tensors)
{
	train_config(&t->o, config);
	*tensors = describe(&t->model);
	struct ckpt_write w = {
		.comm = t->world,
		.info =
			{
				.format = "pt-checkpoint",
				.created_by = "pt-train " PT_VERSION,
				.version = CKPT_VERSION,
				.step = t->step,
				.samples = t->samples,
				.tokens = (t->samples - t->unseen) * t->model.c.context,
				.loss = t->loss,
				.val_loss = t->val_loss,
				.best_val_loss = t->best_val_loss,
				.loss_scale = t->o.dtype == PRECISION_FP16
						      ? (double)t->loss_scale
						      : 0,
				.loss_scale_good = t->scale_good,
				.skipped_steps = t->skipped,
				.data_hash = t->data->hash,
				.workers = t->o.edit.workers,
				.worker = t->o.worker,
			},
		.config = config->s,
		.tokenizer = &t->data->tokenizer,
		.tensors = *tensors,
		.n_tensors = t->model.n_tensors,
		.source = give_rows,
		.source_threads = store_is_whole(t->store) && !t->d.apart,
		.one_writes = t->o.load == LOAD_BROADCAST,
	};
	w.n_groups = name_groups(&t->o, w.groups);
	return w;
}

int64_t state_copy_bytes(
	const struct train_opts *o, const struct model *m, int rank, int ranks)
{
	struct comm world = {.rank = rank, .size = ranks};
	if (!o->ckpt || o->ckpt_wait || o->eval_only || o->offload)
		return 0; /* what had no room in memory has none for a copy */
	struct ckpt_tensor *tensors = describe(m);
	struct ckpt_write w = {.comm = &world,
		.tensors = tensors,
		.n_tensors = m->n_tensors,
		.one_writes = o->load == LOAD_BROADCAST};
	w.n_groups = name_groups(o, w.groups);
	int64_t n_bytes = ckpt_copy_bytes(&w);
	free(tensors);
	return n_bytes;
}

/* Is there memory for it now? Pages that nobody has touched are nobody's yet. */
static bool find_memory(struct trainer *t)
{
	struct comm_place place;
	comm_place(&place);
	int64_t available = memory_available();
	if (available && t->plan.copy_bytes > available / place.local_size)
		return false;
	return !arena_try(&t->copy, "checkpoint", (size_t)t->plan.copy_bytes);
}

/* Collective. Makes it once, for all checkpoints of the run. */
static void make_copy(struct trainer *t)
{
	if (t->copies != COPY_PLANNED)
		return;
	t->copies = comm_min_i64(t->world, find_memory(t)) ? COPY_MADE : COPY_NONE;
	if (t->copies == COPY_NONE) {
		arena_release(&t->copy);
		trainer_warn_of_copy(t);
	} else if (t->plan.copy_bytes) { /* all threads touch the pages, not the first */
		int64_t n = t->plan.copy_bytes / (int64_t)sizeof(float);
		if (!t->d.apart)
			t->d.k->zero(&t->d, mat((float *)(void *)t->copy.base, 1, n));
	}
}

int trainer_save_begin(struct trainer *t, const char *path, bool behind, struct err *e)
{
	struct str config = {0};
	struct ckpt_tensor *tensors;
	double *numbers = NULL;
	struct ckpt_write w = what_to_save(t, &config, &tensors);
	w.path = path;
	w.info.param_hash = store_hash(t->store);
	w.with = t;
	if (t->edit)
		edit_settle(t->edit);
	if (t->edit)
		w.numbers = numbers = worker_numbers(t, &w.n_numbers);
	if (behind)
		make_copy(t);
	behind = behind && t->copies == COPY_MADE;
	float *copy = behind ? (float *)(void *)t->copy.base : NULL;
	int rc = ckpt_write_begin(&t->writing, &w, copy, e);
	free(tensors);
	free(numbers);
	str_free(&config);
	return rc;
}

int trainer_save_end(struct trainer *t, struct err *e)
{
	int rc = ckpt_write_end(t->writing, e);
	t->writing = NULL;
	return rc;
}

bool trainer_saved(const struct trainer *t)
{
	return t->writing && ckpt_write_done(t->writing);
}

int trainer_save(struct trainer *t, const char *path, struct err *e)
{
	return trainer_save_begin(t, path, false, e) || trainer_save_end(t, e) ? -1 : 0;
}

int64_t trainer_ckpt_bytes(const struct trainer *t)
{
	struct str config = {0};
	struct ckpt_tensor *tensors;
	struct ckpt_write w = what_to_save(t, &config, &tensors);
	int64_t n_bytes = ckpt_bytes(&w);
	free(tensors);
	str_free(&config);
	return n_bytes;
}

/* ---- loading --------------------------------------------------------------------- */

int state_check_model(const struct ckpt *c, const struct model *m, struct err *e)
{
	for (int i = 0; i < m->n_tensors; i++) {
		const struct tensor *t = &m->tensors[i];
		int k = ckpt_find(c, t->name);
		if (k < 0)
			return err_set(e, EX_DATAERR,
				"%s: has no tensor %s: another model", c->path, t->name);
		const struct ckpt_tensor *f = &c->tensors[k];
		if (f->ndim != t->ndim || f->dims[0] != t->dims[0] ||
			(t->ndim == 2 && f->dims[1] != t->dims[1]))
			return err_set(e, EX_DATAERR,
				"%s: %s is [%lld, %lld] there and [%lld, %lld] here: "
				"another model",
				c->path, t->name, (long long)f->dims[0],
				(long long)f->dims[1], (long long)t->dims[0],
				(long long)t->dims[1]);
	}
	if (c->n_tensors != m->n_tensors)
		return err_set(e, EX_DATAERR,
			"%s: has %d tensors, the model %d: another model", c->path,
			c->n_tensors, m->n_tensors);
	return 0;
}

/* Rows of the embedding mean something only by the vocabulary. */
static int check_vocabulary(
	const struct ckpt *c, const struct data_set *data, struct err *e)
{
	if (!c->tokenizer.kind || tokenizer_same(&c->tokenizer, &data->tokenizer))
		return 0;
	return err_set(e, EX_DATAERR,
		"%s: its vocabulary is not that of the data: prepare them with the same",
		c->path);
}

/* A piece of a tensor: from the file, or from rank 0 which has it. */
static int read_piece(const struct ckpt *c, struct comm *send, int group,
	const struct tensor *t, int64_t row, int64_t n, float *out, struct err *e)
{
	int rc = c ? ckpt_read_rows(c, group, ckpt_find(c, t->name), row, n, out, e) : 0;
	if (!send)
		return rc;
	if (comm_agree(send, e))
		return -1;
	int64_t width = t->ndim == 1 ? 1 : t->dims[1];
	comm_bcast(send, out, n * width * (int64_t)sizeof(float), 0);
	return 0;
}

/* Of the checkpoint's group, what this rank has of the store's. */
static int load_group(struct store *s, const struct ckpt *c, struct comm *send, int from,
	int to, struct err *e)
{
	enum { BLOCK_FLOATS = 1 << 18, BLOCKS = 4 }; /* as files are written */
	float *piece = NULL;
	int rc = 0;
	for (int i = 0; i < s->c.n_tensors && !rc; i++) {
		const struct tensor *t = &s->c.tensors[i];
		int64_t width = t->ndim == 1 ? 1 : t->dims[1];
		int64_t rows = BLOCKS * max64(1, BLOCK_FLOATS / width);
		piece = xrealloc(piece, (size_t)(rows * width) * sizeof(float));
		for (int64_t r = 0; r < t->dims[0] && !rc; r += rows) {
			int64_t n = min64(rows, t->dims[0] - r);
			if (!send && !store_wants(s, i, r, n))
				continue;
			rc = read_piece(c, send, from, t, r, n, piece, e);
			if (!rc)
				store_put(s, to, i, r, n, piece);
		}
	}
	free(piece);
	return rc;
}

struct store *state_inference(
	struct model *m, struct device *d, struct mesh *alone, struct arena *memory)
{
	struct store_config c = {.mesh = alone,
		.device = d,
		.tensors = m->tensors,
		.n_tensors = m->n_tensors,
		.n_units = m->n_units,
		.part = {.n = m->tp, .here = m->tp},
		.chunks = m->cp,
		.deal = {.ranks = 1}};
	return store_open(&c, memory);
}

int state_load_model(struct store *s, const struct ckpt *c, struct err *e)
{
	return load_group(s, c, NULL, CKPT_MODEL, STORE_PARAM, e);
}

/* ---- the whole model on one rank ------------------------------------------------- */

bool trainer_is_whole(const struct trainer *t)
{
	return t->mesh.degree[AXIS_TP] == 1 && t->mesh.degree[AXIS_PP] == 1 &&
	       t->o.zero < 3 && t->o.offload != OFFLOAD_PARAMS;
}

static void open_whole_store(struct whole *w, struct trainer *t)
{
	struct arena size;
	struct err e = {0};
	if (model_init(&w->model, &t->model.c, 0, &e))
		die_err(&e); /* it could, once */
	mesh_alone(&w->alone);
	arena_measure(&size, "a whole model");
	store_free(state_inference(&w->model, &t->d, &w->alone, &size));
	w->device = &t->d;
	device_arena(w->device, &w->memory, "a whole model", size.peak_bytes);
	w->store = state_inference(&w->model, &t->d, &w->alone, &w->memory);
}

void state_whole_open(struct whole *w, struct trainer *t)
{
	enum { PIECE_FLOATS = 1 << 20 };
	*w = (struct whole){.store = NULL};
	if (t->world->rank == 0)
		open_whole_store(w, t);
	for (int i = 0; i < t->model.n_tensors; i++) {
		const struct tensor *x = &t->model.tensors[i];
		int64_t width = x->ndim == 1 ? 1 : x->dims[1];
		int64_t rows = max64(1, PIECE_FLOATS / width);
		float *piece = xcalloc((size_t)(rows * width), sizeof(*piece));
		for (int64_t r = 0; r < x->dims[0]; r += rows) {
			int64_t n = min64(rows, x->dims[0] - r);
			store_collect(t->store, STORE_PARAM, i, r, n, 0, piece);
			if (w->store)
				store_put(w->store, STORE_PARAM, i, r, n, piece);
		}
		free(piece);
	}
}

void state_whole_close(struct whole *w)
{
	if (!w->store)
		return;
	struct comm *self = w->alone.world;
	store_free(w->store);
	mesh_close(&w->alone);
	comm_free(self);
	device_arena_release(w->device, &w->memory);
	model_free(&w->model);
}

/* ---- loading into a run ---------------------------------------------------------- */

/* A run may go on in fp16 that began without, or the other way. */
static int take_scale(
	struct trainer *t, const struct ckpt_info *info, const char *path, struct err *e)
{
	bool scaled = info->loss_scale >= 0x1p-126 && info->loss_scale <= 0x1p126;
	if (info->loss_scale_good < 0 || info->loss_scale_good > info->step ||
		info->skipped_steps < 0 || info->skipped_steps > info->step ||
		!(scaled || info->loss_scale == 0))
		return err_set(e, EX_DATAERR,
			"%s: a loss scale of %g, %lld good and %lld skipped of %lld "
			"steps cannot be",
			path, info->loss_scale, (long long)info->loss_scale_good,
			(long long)info->skipped_steps, (long long)info->step);
	t->skipped = info->skipped_steps;
	if (t->o.dtype == PRECISION_FP16 && info->loss_scale > 0) {
		t->loss_scale = (float)info->loss_scale;
		t->scale_good = info->loss_scale_good;
	}
	return 0;
}

static void take_numbers(struct trainer *t, const struct ckpt_info *info)
{
	t->step = info->step;
	t->samples = info->samples;
	t->loss = info->loss;
	t->val_loss = info->val_loss;
	t->best_val_loss = info->best_val_loss;
	if (info->data_hash && info->data_hash != t->data->hash && t->world->rank == 0)
		warn("the checkpoint was trained on other data");
}

/* The state of one optimizer means nothing to another. */
static int check_optimizer(const struct trainer *t, const struct ckpt *c, struct err *e)
{
	struct train_opts saved;
	if (opts_from_text(&train_program, &saved, c->config.s, true, e))
		return err_prefix(e, "%s: ", c->path);
	if (saved.optimizer == t->o.optimizer)
		return 0;
	return err_set(e, EX_USAGE,
		"%s: was trained with --optimizer %s, whose state %s cannot use: resume "
		"with "
		"%s, or begin a new run from its parameters, with --init-from",
		c->path, optimizer_names[saved.optimizer],
		optimizer_names[t->o.optimizer], optimizer_names[saved.optimizer]);
}

/* The number in the file of each group of the store: -1, it is not taken up. Some may be missing. */
static int find_groups(const struct trainer *t, const struct ckpt *c, bool weights_only,
	int from[STORE_MAX_GROUPS], struct err *e)
{
	const struct store_groups *groups = &t->store->c.groups;
	for (int g = 0; g < groups->n; g++) {
		const struct store_group *x = &groups->of[g];
		from[g] = -1;
		if (weights_only ? g != STORE_PARAM : !is_resumed(&t->o, x))
			continue;
		from[g] = ckpt_find_group(c, x->name);
		if (from[g] < 0 && x->owner == STORE_OUTER)
			return err_set(e, EX_DATAERR,
				"%s: has no %s, which workers that train apart need",
				c->path, x->name);
		if (from[g] < 0 && t->world->rank == 0) /* as of a run that begins */
			warn("%s: has no %s, which begins with zeros", c->path, x->name);
	}
	return 0;
}

/* A wire that sends everything has no use for what another one owes, and owes it no more. */
static void warn_of_residual(const struct trainer *t, const struct ckpt *c)
{
	bool drops = ckpt_find_group(c, "residual") >= 0 &&
		     store_groups_find(&t->store->c.groups, "residual") < 0;
	if (drops && t->o.edit.workers && t->o.worker == 0 && t->world->rank == 0)
		warn("%s: what its workers could not send yet is dropped: --edit-wire is "
		     "fp32, which keeps no residual",
			c->path);
}

int trainer_load(struct trainer *t, const char *path, bool weights_only, struct err *e)
{
	bool one_reads = t->o.load == LOAD_BROADCAST;
	struct comm *send = one_reads && t->world->size > 1 ? t->world : NULL;
	struct ckpt *c = NULL;
	if (!send || t->world->rank == 0) {
		if (!ckpt_open(&c, path, e) && !check_vocabulary(c, t->data, e))
			state_check_model(c, &t->model, e);
	}
	int from[STORE_MAX_GROUPS] = {0};
	if (c && !e->code && !weights_only)
		check_optimizer(t, c, e);
	if (c && !e->code)
		find_groups(t, c, weights_only, from, e);
	struct ckpt_info info = {0};
	bool back = false;
	if (c && !e->code && !weights_only)
		elastic_info(&t->o, c, &info, &back, e);
	if (c && !e->code && !weights_only)
		warn_of_residual(t, c);
	int rc = comm_agree(t->world, e);
	if (back)
		from[STORE_PARAM] = ckpt_find_group(c, "anchor");
	if (send && !rc)
		comm_bcast(send, from, sizeof(from), 0);
	for (int g = 0; g < t->store->c.groups.n && !rc; g++) {
		if (from[g] < 0)
			continue;
		load_group(t->store, c, send, from[g], g, e);
		rc = comm_agree(t->world, e);
	}
	if (!rc)
		store_updated(t->store, false);
	if (!rc && !weights_only) {
		t->from_step = c ? c->info.step : 0;
		t->went_back = back;
		if (send)
			comm_bcast(send, &info, sizeof(info), 0);
		if (send)
			comm_bcast(send, &t->from_step, sizeof(t->from_step), 0);
		rc = take_scale(t, &info, path, e);
		if (!rc)
			take_numbers(t, &info);
		if (!rc)
			rc = take_unseen(t, c, e);
		if (!rc && t->edit)
			take_numbers_of_worker(t, c, e);
		rc = comm_agree(t->world, e); /* rank 0 may have seen more of it */
	}
	ckpt_close(c);
	return rc;
}
