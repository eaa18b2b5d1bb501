/* Saves the state of a trainer to checkpoints, and loads it. */
#include "engine/state.h"
#include "engine/step.h"

/* ---- saving ---------------------------------------------------------------------- */

/* Collects rows for ckpt_write. Groups have the same numbers in checkpoint and store. */
static void collect_rows(
	void *arg, int group, int tensor, int64_t row, int64_t n, int to, float *out)
{
	struct trainer *t = arg;
	store_collect(t->store, group, tensor, row, n, to, out);
}

/* Describes the tensors and groups of a checkpoint; free the result with
 * state_free_description(). */
static struct ckpt_write describe_tensors(const struct trainer *t)
{
	const struct store_groups *groups = &t->store->c.groups;
	struct ckpt_tensor *list = xcalloc((size_t)t->model.n_tensors, sizeof(*list));
	struct ckpt_write w = {.comm = t->world,
		.tensors = list,
		.n_tensors = t->model.n_tensors,
		.n_groups = groups->n,
		.one_writes = t->o.load == LOAD_BROADCAST};
	for (int i = 0; i < t->model.n_tensors; i++) {
		const struct tensor *tensor = &t->model.tensors[i];
		snprintf(list[i].name, sizeof(list[i].name), "%s", tensor->name);
		list[i].ndim = tensor->ndim;
		memcpy(list[i].dims, tensor->dims, sizeof(tensor->dims));
		list[i].stateless = tensor->frozen;
	}
	for (int g = 0; g < groups->n; g++)
		w.groups[g] = groups->list[g].name;
	return w;
}

/* Describes everything of a checkpoint except hash and numbers, without a collective. */
static struct ckpt_write describe_state(const struct trainer *t)
{
	struct str config = {0};
	struct ckpt_write w = describe_tensors(t);
	options_print_saved(&t->o, &config);
	w.config = config.s;
	w.origin = t->origin.s;
	w.tokenizer = &t->data.set->tokenizer;
	w.source = collect_rows;
	w.source_threads = store_is_whole(t->store) && !t->d.discrete;
	w.info = (struct ckpt_info){
		.format = "pt-checkpoint",
		.created_by = "pt-train " PT_VERSION,
		.version = CKPT_VERSION,
		.step = t->step,
		.samples = t->samples,
		.tokens = (t->samples - t->n_unseen) * t->model.c.context,
		.loss = t->loss,
		.val_loss = t->val_loss,
		.best_val_loss = t->best_val_loss,
		.loss_scale = t->o.dtype == PRECISION_FP16 ? (double)t->loss_scale : 0,
		.loss_scale_good = t->scale_good,
		.skipped_steps = t->skipped,
		.data_hash = t->data.set->hash,
		.grid = GRID_EXPONENT,
		.order = PASS_VERSION,
		.workers = t->o.edit.ckpt == EDIT_CKPT_RANK0
				   ? min64(1, t->o.edit.workers) /* one file for all */
				   : t->o.edit.workers,
		.worker = t->o.resolved.worker,
	};
	return w;
}

void state_free_description(struct ckpt_write *w)
{
	free((void *)w->tensors);
	free((void *)w->config);
	free((void *)w->numbers);
	free((void *)w->load);
}

/* Returns the load of the experts for a checkpoint, and sets *n; NULL: the run has none. */
static double *get_load(struct trainer *t, int64_t *n)
{
	const struct model_config *c = &t->model.c;
	*n = c->layers * c->experts;
	if (!t->pass.router.load)
		return NULL;
	scoped_ptr float *load = xcalloc((size_t)*n, sizeof(*load));
	double *out = xcalloc((size_t)*n, sizeof(*out));
	device_get(&t->d, load, t->pass.router.load, (size_t)*n * sizeof(*load));
	for (int64_t i = 0; i < *n; i++)
		out[i] = (double)load[i];
	return out;
}

struct ckpt_write state_describe(struct trainer *t)
{
	struct ckpt_write w = describe_state(t);
	w.with = t;
	w.info.param_hash = store_hash(t->store);
	w.numbers = t->numbers ? t->numbers->save(t, &w.n_numbers) : NULL;
	w.load = get_load(t, &w.n_load);
	return w;
}

int64_t state_copy_bytes(const struct trainer *t)
{
	const struct train_opts *o = &t->o;
	if (!o->ckpt || o->ckpt_wait || o->eval_only || options_offload(o))
		return 0; /* offloaded state has no copy in memory */
	struct ckpt_write w = describe_tensors(t);
	int64_t n_bytes = ckpt_copy_bytes(&w);
	state_free_description(&w);
	return n_bytes;
}

int64_t state_part_bytes(const struct trainer *t)
{
	struct ckpt_write w = describe_tensors(t);
	w.one_writes = false;
	int64_t n_bytes = ckpt_copy_bytes(&w);
	state_free_description(&w);
	return n_bytes;
}

void state_warn_no_copy(const struct trainer *t, int64_t n_bytes)
{
	char text[NUM_TEXT];
	if (t->world->rank == 0)
		warn("no memory for a copy of the state (%s per rank): "
		     "training waits while a checkpoint is written",
			text_bytes(text, (double)n_bytes));
}

/* Allocates the copy if its memory is free, else returns false. (Untouched pages are free.) */
static bool try_allocate_copy(struct trainer *t)
{
	int64_t available = memory_available();
	if (available && t->copy.bytes > available / comm_place()->local_size)
		return false;
	return !arena_try_init(&t->copy.arena, "checkpoint", (size_t)t->copy.bytes);
}

/* Collective. Allocates the copy once, for all checkpoints of the run. */
static void allocate_copy(struct trainer *t)
{
	if (t->copy.state != COPY_PLANNED)
		return;
	t->copy.state =
		comm_min_i64(t->world, try_allocate_copy(t)) ? COPY_ALLOCATED : COPY_NONE;
	if (t->copy.state == COPY_NONE) {
		arena_release(&t->copy.arena);
		state_warn_no_copy(t, t->copy.bytes);
	} else if (t->copy.bytes && !t->d.discrete) { /* all threads touch its pages */
		t->d.k->zero(&t->d, mat((float *)(void *)t->copy.arena.base, 1,
					    t->copy.bytes / (int64_t)sizeof(float)));
	}
}

int state_save_begin(struct trainer *t, const char *path, bool background, struct err *e)
{
	struct ckpt_write w = state_describe(t);
	w.path = path;
	if (background)
		allocate_copy(t);
	background = background && t->copy.state == COPY_ALLOCATED;
	float *copy = background ? (float *)(void *)t->copy.arena.base : NULL;
	int rc = ckpt_write_begin(&t->copy.writing, &w, copy, e);
	state_free_description(&w);
	return rc;
}

int state_save_end(struct trainer *t, struct err *e)
{
	int rc = ckpt_write_end(t->copy.writing, e);
	t->copy.writing = NULL;
	return rc;
}

bool state_save_done(const struct trainer *t)
{
	return t->copy.writing && ckpt_write_done(t->copy.writing);
}

int state_save(struct trainer *t, const char *path, struct err *e)
{
	return state_save_begin(t, path, false, e) || state_save_end(t, e) ? -1 : 0;
}

int64_t state_file_bytes(const struct trainer *t)
{
	struct ckpt_write w = describe_state(t);
	int64_t n_bytes = ckpt_estimate_bytes(&w);
	state_free_description(&w);
	return n_bytes;
}

/* ---- the whole model on one rank ------------------------------------------------- */

bool state_is_whole(const struct trainer *t)
{
	return t->mesh.degree[AXIS_TP] == 1 && t->mesh.degree[AXIS_PP] == 1 &&
	       t->o.zero < 3 && !offloads_params((enum offload)t->o.offload);
}

void state_gather(struct trainer *t, struct inference *x)
{
	enum { PIECE_FLOATS = 1 << 20 };
	struct err e = {0};
	*x = (struct inference){.store = NULL};
	if (t->world->rank == 0) {
		if (model_init(&x->model, &t->model.c, 0, &e))
			die_err(&e); /* it succeeded when the run started */
		inference_open(x, &t->d);
	}
	for (int i = 0; i < t->model.n_tensors; i++) {
		const struct tensor *tensor = &t->model.tensors[i];
		int64_t width = tensor_width(tensor);
		int64_t rows = max64(1, PIECE_FLOATS / width);
		scoped_ptr float *piece = xcalloc((size_t)(rows * width), sizeof(*piece));
		for (int64_t r = 0; r < tensor->dims[0]; r += rows) {
			int64_t n = min64(rows, tensor->dims[0] - r);
			store_collect(t->store, STORE_PARAM, i, r, n, 0, piece);
			if (x->store)
				store_write_rows(x->store, STORE_PARAM, i, r, n, piece);
		}
	}
}

/* ---- loading --------------------------------------------------------------------- */

/* Restores the loss scale. A run that began in another type may resume in fp16, and vice versa. */
static int set_loss_scale(
	struct trainer *t, const struct ckpt_info *info, const char *path, struct err *e)
{
	bool is_scaled = info->loss_scale >= 0x1p-126 && info->loss_scale <= 0x1p126;
	if (info->loss_scale_good < 0 || info->loss_scale_good > info->step ||
		info->skipped_steps < 0 || info->skipped_steps > info->step ||
		!(is_scaled || info->loss_scale == 0))
		return err_set(e, EX_DATAERR,
			"%s: a loss scale of %g with %lld good and %lld skipped of %lld "
			"steps is impossible",
			path, info->loss_scale, (long long)info->loss_scale_good,
			(long long)info->skipped_steps, (long long)info->step);
	t->skipped = info->skipped_steps;
	if (t->o.dtype == PRECISION_FP16 && info->loss_scale > 0) {
		t->loss_scale = (float)info->loss_scale;
		t->scale_good = info->loss_scale_good;
	}
	return 0;
}

static void set_progress(struct trainer *t, const struct ckpt_info *info)
{
	t->step = info->step;
	t->samples = info->samples;
	t->loss = info->loss;
	t->val_loss = info->val_loss;
	t->best_val_loss = info->best_val_loss;
}

/* Fails if checkpoint and data have different vocabularies, as the embedding's rows need one. */
static int check_vocabulary(
	const struct ckpt *c, const struct dataset *data, struct err *e)
{
	if (!c->tokenizer.kind || tokenizer_equal(&c->tokenizer, &data->tokenizer))
		return 0;
	const char *saved_form = tokenizer_normalizer(&c->tokenizer),
		   *data_form = tokenizer_normalizer(&data->tokenizer);
	if (strcmp(saved_form, data_form) != 0)
		return err_set(e, EX_DATAERR,
			"%s: its tokenizer has the normalizer %s, but the data's has %s: prepare "
			"the data again",
			c->path, saved_form, data_form);
	return err_set(e, EX_DATAERR,
		"%s: its vocabulary (%s of %lld tokens) differs from the data's (%s of %lld): "
		"prepare the data with the same vocabulary",
		c->path, c->tokenizer.kind->name, (long long)c->tokenizer.vocab.n,
		data->tokenizer.kind->name, (long long)data->tokenizer.vocab.n);
}

/* Rejects a checkpoint of another optimizer, whose state cannot be used. */
static int check_optimizer(const struct trainer *t, const struct train_opts *saved,
	const char *path, struct err *e)
{
	if (saved->optimizer == t->o.optimizer)
		return 0;
	return err_set(e, EX_USAGE,
		"%s: was trained with --optimizer %s, so its state does not fit %s; resume with "
		"%s, "
		"or begin a new run from its parameters, with --init-from",
		path, optimizer_names[saved->optimizer], optimizer_names[t->o.optimizer],
		optimizer_names[saved->optimizer]);
}

static bool equal_lists(const struct strs *a, const struct strs *b)
{
	bool same = a->n == b->n;
	for (int64_t i = 0; i < a->n && same; i++)
		same = !strcmp(a->v[i], b->v[i]);
	return same;
}

/* Checks --freeze. A checkpoint has neither state nor an anchor of frozen tensors. Warns if the
 * list has changed, and fails if local SGD would need their state. */
static int check_frozen(const struct trainer *t, const struct train_opts *saved,
	const char *path, bool anchor, struct err *e)
{
	if (equal_lists(&saved->freeze, &t->o.freeze))
		return 0;
	if (t->o.edit.workers || anchor)
		return err_set(e, EX_USAGE,
			"%s: %s needs the --freeze with which it began, since a checkpoint has no "
			"state of frozen tensors",
			path,
			t->o.edit.workers ? "local SGD"
					  : "local SGD between two synchronizations");
	if (t->world->rank == 0)
		warn("%s: was trained with another --freeze: the optimizer state of previously "
		     "frozen tensors begins at zero",
			path);
	return 0;
}

/* Returns true if the steps of the checkpoint have the same learning rates with these options. */
static bool have_same_rates(
	const struct trainer *t, const struct train_opts *saved, int64_t steps)
{
	for (int64_t i = 1; i <= steps; i++)
		if (lr_at(saved, i) != lr_at(&t->o, i))
			return false;
	return true;
}

static bool begins_with(const char *line, const char *const *words)
{
	while (*words && strncmp(line, *words, strlen(*words)))
		words++;
	return *words != NULL;
}

/* Sets t->changes to the changed options that determine results: "virtual tp=1,cp=1 -> tp=2,cp=1;
 * ...". More steps change results only if the learning rate decayed over them. */
static int list_changes(
	struct trainer *t, const struct train_opts *saved, int64_t steps, struct err *e)
{
	static const char *const lr_options[] = {
		"steps ", "decay-steps ", "wsd-decay ", NULL};
	static const char *const ignored[] = {"eval-windows ", NULL};
	bool same = have_same_rates(t, saved, steps);
	scoped_str old = {0}, new = {0}, lines = {0};
	options_print_result_options(saved, t->o.device, &old);
	options_print_result_options(&t->o, t->o.device, &new);
	const struct conf_text a = {&old, "checkpoint"}, b = {&new, "options"};
	int rc = conf_diff(&a, &b, "", "", " -> ", &lines, e);
	str_clear(&t->changes);
	for (char *line = lines.s, *end; line && *line; line = end + 1) {
		end = strchr(line, '\n');
		*end = '\0';
		if (!begins_with(line, ignored) &&
			!(same && begins_with(line, lr_options)))
			str_printf(&t->changes, "%s%s", t->changes.len ? "; " : "", line);
	}
	return rc;
}

/* Rejects a checkpoint that these options cannot resume. Sets t->changes. */
static int check_options(
	struct trainer *t, const struct ckpt *c, bool anchor, struct err *e)
{
	struct train_opts saved;
	if (state_options(c, &saved, e))
		return -1;
	int rc = check_optimizer(t, &saved, c->path, e) ||
		 check_frozen(t, &saved, c->path, anchor, e) ||
		 list_changes(t, &saved, c->info.step, e);
	opts_free(&train_program, &saved);
	if (rc)
		return -1;
	if (c->info.data_hash && c->info.step && c->info.grid != GRID_EXPONENT)
		str_printf(&t->changes, "%ssums %s -> grid-%d",
			t->changes.len ? "; " : "",
			c->info.grid ? "on another grid" : "tree", GRID_EXPONENT);
	if (c->info.data_hash && c->info.step && c->info.order != PASS_VERSION)
		str_printf(&t->changes, "%sorder %lld -> %d", t->changes.len ? "; " : "",
			(long long)c->info.order, PASS_VERSION);
	if (t->o.resume_exact && t->changes.len)
		return err_set(e, EX_USAGE,
			"%s: --resume-exact: this layout or these options change the "
			"arithmetic: %s",
			c->path, t->changes.s);
	return 0;
}

/* Sets t->other_data, which --resume-exact rejects. (Other programs save no hash of the data.) */
static int check_data(struct trainer *t, const struct ckpt *c, struct err *e)
{
	uint64_t saved_hash = c->info.data_hash, data_hash = t->data.set->hash;
	t->other_data = saved_hash && saved_hash != data_hash;
	if (!t->other_data || !t->o.resume_exact)
		return 0;
	return err_set(e, EX_DATAERR,
		"%s: --resume-exact: the data differ: their hash was 0x%016llx, and is 0x%016llx; "
		"give the same data, or drop --resume-exact",
		c->path, (unsigned long long)saved_hash, (unsigned long long)data_hash);
}

/* Returns true if a group is loaded from the checkpoint. A checkpoint without workers has no groups
 * of local SGD, and only one of several workers that resume from it gets its residual. */
static bool loads_group(const struct train_opts *o, const struct store_group *g)
{
	bool more = o->resolved.worker >= o->resolved.from_workers;
	return g->owner != STORE_OUTER ||
	       (o->resolved.from_workers && !(more && !strcmp(g->name, "residual")));
}

/* Sets from[] to the number of each store group in the file; -1: not loaded. Warns of a missing
 * group, or fails if local SGD needs it. */
static int choose_groups(const struct trainer *t, const struct ckpt *c, bool weights_only,
	int from[STORE_MAX_GROUPS], struct err *e)
{
	const struct store_groups *groups = &t->store->c.groups;
	for (int g = 0; g < groups->n; g++) {
		const struct store_group *x = &groups->list[g];
		from[g] = -1;
		if (weights_only ? g != STORE_PARAM : !loads_group(&t->o, x))
			continue;
		from[g] = ckpt_find_group(c, x->name);
		if (from[g] < 0 && x->owner == STORE_OUTER)
			return err_set(e, EX_DATAERR,
				"%s: the group %s is missing, but local SGD needs it",
				c->path, x->name);
		if (from[g] < 0 && t->world->rank == 0) /* as at the start of a run */
			warn("%s: %s is missing, and starts at zero", c->path, x->name);
	}
	return 0;
}

/* Warns that --edit-wire fp32, which has no residual, drops the residual of another wire format. */
static void warn_of_residual(const struct trainer *t, const struct ckpt *c)
{
	bool drops = ckpt_find_group(c, "residual") >= 0 &&
		     store_groups_find(&t->store->c.groups, "residual") < 0;
	if (drops && t->o.edit.workers && t->o.resolved.worker == 0 &&
		t->world->rank == 0)
		warn("%s: the residuals of its workers are dropped: --edit-wire is "
		     "fp32, which keeps no residual",
			c->path);
}

/* A checkpoint, and the parts of it that are loaded. */
struct source {
	struct ckpt *c; /* NULL where rank 0 reads for all */
	struct selection {
		int from[STORE_MAX_GROUPS]; /* its group for each group of the store; -1: none */
		struct ckpt_info info; /* for the step that the run resumes at */
		int64_t step;	       /* the file's step */
		bool anchor;	       /* load the anchor as parameters */
	} what;
};

/* Checks that this run can load the checkpoint s->c, and sets s->what. */
static int check_source(
	struct trainer *t, bool weights_only, struct source *s, struct err *e)
{
	struct selection *what = &s->what;
	if (check_vocabulary(s->c, t->data.set, e) || weights_check(s->c, &t->model, e))
		return -1;
	str_clear(&t->origin);
	str_add(&t->origin, s->c->origin.s, s->c->origin.len);
	if (weights_only)
		return choose_groups(t, s->c, true, what->from, e);
	what->info = s->c->info;
	what->info.format = what->info.created_by = NULL;
	if ((t->numbers &&
		    t->numbers->choose(&t->o, s->c, &what->info, &what->anchor, e)) ||
		check_options(t, s->c, what->anchor, e) || check_data(t, s->c, e) ||
		choose_groups(t, s->c, false, what->from, e))
		return -1;
	if (what->anchor)
		what->from[STORE_PARAM] = ckpt_find_group(s->c, "anchor");
	what->step = s->c->info.step;
	warn_of_residual(t, s->c);
	return 0;
}

/* Opens a checkpoint, and checks that this run can load it. */
static int open_source(struct trainer *t, const char *path, bool weights_only,
	struct source *s, struct err *e)
{
	ckpt_opener *open = weights_only && t->open_model ? t->open_model : ckpt_open;
	return open(&s->c, path, e) || check_source(t, weights_only, s, e) ? -1 : 0;
}

/* Collective. Loads the groups of tensors. `send`: rank 0 reads for all. */
static int load_groups(
	struct trainer *t, const struct source *s, struct comm *send, struct err *e)
{
	for (int g = 0; g < t->store->c.groups.n; g++) {
		if (s->what.from[g] < 0)
			continue;
		weights_load(t->store, s->c, send, s->what.from[g], g, e);
		if (comm_agree(t->world, e))
			return -1;
	}
	store_updated(t->store, false);
	return 0;
}

/* Collective. Broadcasts *n numbers of rank 0. Returns a copy, which the caller frees. */
static double *broadcast_numbers(struct comm *send, const double *from, int64_t *n)
{
	comm_bcast(send, n, sizeof(*n), 0);
	size_t n_bytes = (size_t)*n * sizeof(double);
	double *copy = xcalloc(1, n_bytes + 1);
	if (from && n_bytes)
		memcpy(copy, from, n_bytes);
	comm_bcast(send, copy, (int64_t)n_bytes, 0);
	return copy;
}

/* Collective. Broadcasts the numbers and the load in rank 0's file to all ranks. */
static struct ckpt broadcast_all_numbers(
	const struct source *s, const char *path, struct comm *send)
{
	struct ckpt c = {.path = (char *)path, .info = s->what.info};
	c.n_numbers = s->c ? s->c->n_numbers : 0;
	c.n_load = s->c ? s->c->n_load : 0;
	c.numbers = broadcast_numbers(send, s->c ? s->c->numbers : NULL, &c.n_numbers);
	c.load = broadcast_numbers(send, s->c ? s->c->load : NULL, &c.n_load);
	return c;
}

/* Sets the load of the experts; a file without it was saved by a run that balances otherwise. */
static int set_load(struct trainer *t, const struct ckpt *c, struct err *e)
{
	const struct model_config *m = &t->model.c;
	int64_t n = m->layers * m->experts;
	if (!t->pass.router.load || !c->n_load)
		return 0;
	if (c->n_load != n)
		return err_set(e, EX_DATAERR,
			"%s: router.load has %lld values, not %lld layers x %lld experts",
			c->path, (long long)c->n_load, (long long)m->layers,
			(long long)m->experts);
	scoped_ptr float *load = xcalloc((size_t)n, sizeof(*load));
	for (int64_t i = 0; i < n; i++) {
		if (!(c->load[i] >= 0 && c->load[i] <= 1))
			return err_set(e, EX_DATAERR,
				"%s: router.load has %g, which is not between 0 and 1",
				c->path, c->load[i]);
		load[i] = (float)c->load[i];
	}
	device_put(&t->d, t->pass.router.load, load, (size_t)n * sizeof(*load));
	return 0;
}

/* Collective. Loads everything except the tensors. `send`: only rank 0 has the file. */
static int load_progress(struct trainer *t, const struct source *s, const char *path,
	struct comm *send, struct err *e)
{
	struct ckpt numbers = {.numbers = NULL};
	if (send)
		numbers = broadcast_all_numbers(s, path, send);
	const struct ckpt *c = send ? &numbers : s->c;
	t->loaded_step = s->what.step;
	if (!set_loss_scale(t, &s->what.info, path, e) && !set_load(t, c, e)) {
		set_progress(t, &s->what.info);
		if (t->numbers)
			t->numbers->load(t, c, s->what.anchor, e);
	}
	free(numbers.numbers);
	free(numbers.load);
	return comm_agree(t->world, e); /* rank 0 may have found an error in the file */
}

int state_load(struct trainer *t, const char *path, bool weights_only, struct err *e)
{
	bool rank0_reads = t->o.load == LOAD_BROADCAST && t->world->size > 1;
	struct comm *send = rank0_reads ? t->world : NULL;
	struct source s = {.c = NULL};
	if (!send || t->world->rank == 0)
		open_source(t, path, weights_only, &s, e);
	int rc = comm_agree(t->world, e);
	if (send && !rc)
		comm_bcast(send, &s.what, sizeof(s.what), 0);
	rc = rc || load_groups(t, &s, send, e) ||
	     (!weights_only && load_progress(t, &s, path, send, e));
	ckpt_close(s.c);
	return rc ? -1 : 0;
}

int state_load_from(
	struct trainer *t, struct ckpt *c, state_loader *load, void *with, struct err *e)
{
	struct source s = {.c = c};
	check_source(t, false, &s, e);
	if (comm_agree(t->world, e) || load(with, t->store, s.what.from, e))
		return -1;
	store_updated(t->store, false);
	if (store_hash(t->store) != c->info.param_hash)
		return err_set(e, EX_DATAERR,
			"%s: the parameters do not have the hash that was saved with them",
			c->path);
	return load_progress(t, &s, c->path, NULL, e);
}
