/* Local SGD: starts workers, saves their state, and resumes with another number of workers. */
#include "train/train_internal.h"

#include <math.h>

/* ---- the start ------------------------------------------------------------------- */

int local_sgd_open(struct run *r, struct train_opts *o, struct err *e)
{
	struct local_sgd *x = &r->local;
	if (o->eval_only) /* all ranks evaluate one worker's parameters */
		o->edit.workers = 0;
	int n = (int)o->edit.workers;
	if (!n || o->dry_run)
		return 0;
	if (r->all->size % n)
		return err_set(e, EX_USAGE,
			"--edit-workers: %d rank%s cannot be divided into %d workers",
			r->all->size, r->all->size == 1 ? "" : "s", n);
	int ranks = r->all->size / n; /* consecutive ranks per worker */
	o->resolved.worker = r->all->rank / ranks;
	x->sync = comm_split(r->all, r->all->rank % ranks, "workers");
	x->control = comm_dup(x->sync, "control");
	if (n > 1)
		r->world = comm_split(r->all, o->resolved.worker, "worker");
	if (n > 1 && o->edit.async)
		comm_notify_open(&x->notify, r->all, run_is_first(r));
	return 0;
}

int local_sgd_check_devices(struct run *r, struct err *e)
{
	bool has_gpu = r->t.d.discrete;
	if (!r->local.sync || r->local.sync->size == 1)
		return 0;
	if (agree_on_start(r, e)) /* a worker may have failed before it had a device */
		return -1;
	trainer_query_free_memory(&r->t);
	if (comm_min_i64(r->all, has_gpu) == comm_max_i64(r->all, has_gpu))
		return 0;
	r->error_agreed = true;
	return err_set(e, EX_USAGE,
		"some workers have a GPU for each of their ranks, but others do not; give "
		"--device cuda or cpu");
}

static void add_gradients(void *context, int64_t *sum, int64_t n)
{
	struct local_sgd *x = context;
	comm_sum_i64(x->sync, sum, n);
}

static void average_gradient(void *context)
{
	struct local_sgd *x = context;
	edit_mean_gradient(x->edit);
}

static int64_t max_over_workers(void *context, int64_t own)
{
	struct local_sgd *x = context;
	return comm_max_i64(x->sync, own);
}

static void sum_over_workers(void *context, int64_t *v, int64_t n)
{
	struct local_sgd *x = context;
	comm_sum_i64(x->control, v, n);
}

/* Opens the state of a worker, and connects the trainer to the other workers. */
void local_sgd_build(struct run *r)
{
	struct trainer *t = &r->t;
	struct edit_config c = t->o.edit.config;
	c.seed = (uint64_t)t->o.seed;
	if (!r->local.sync)
		return;
	t->data.set->counted = comm_max_i64(r->local.sync, t->data.set->counted);
	r->local.edit = edit_new(&c, r->world, r->local.sync, t->store, &t->d);
	r->local.peers = (struct peers){.with = &r->local,
		.n = r->local.sync->size,
		.add = add_gradients,
		.mean_gradient = average_gradient,
		.largest = max_over_workers,
		.sum = sum_over_workers};
	t->peers = &r->local.peers;
}

void local_sgd_close(struct run *r)
{
	comm_notify_close(&r->local.notify);
	edit_free(r->local.edit);
	free(r->local.replay);
}

/* ---- replay ---------------------------------------------------------------------- */

/* Reads the log of this worker in a run directory. Fails if that run had more workers. */
static int read_worker_log(const char *dir, const struct train_opts *o, struct str *path,
	struct run_log *log, struct err *e)
{
	str_printf(path, "%s/worker-%lld", dir, (long long)o->edit.workers);
	if (file_exists(path->s))
		return err_set(e, EX_USAGE, "%s: has more workers than %lld", dir,
			(long long)o->edit.workers);
	str_clear(path);
	str_printf(path, o->resolved.worker ? "%s/worker-%d" : "%s", dir,
		o->resolved.worker);
	return run_log_read(log, path->s, e);
}

/* Reads the steps of this worker up to each synchronization. If the log has gaps, keeps only
 * the synchronizations after the last gap, which must include all that will be replayed. */
static int read_steps(struct local_sgd *x, const struct train_opts *o, struct err *e)
{
	struct run_log log = {0};
	scoped_str path = {0};
	int rc = read_worker_log(o->edit.replay, o, &path, &log, e);
	x->replay = xcalloc((size_t)log.n_rows + 1, sizeof(*x->replay));
	for (int64_t i = 0; i < log.n_rows && !rc; i++) {
		const struct row row = run_log_row(&log, i);
		if (!row_has(&row, COL_SYNCS) || !row_has(&row, COL_LOCAL_STEPS))
			continue;
		int64_t before = (int64_t)row.v[COL_SYNCS] - 1;
		if (before !=
			x->n_replay) /* a gap: an earlier run, or without this worker */
			x->first_replay = x->n_replay = before;
		x->replay[x->n_replay++ - x->first_replay] =
			(int64_t)row.v[COL_LOCAL_STEPS];
	}
	int64_t next = edit_syncs(x->edit);
	if (!rc && !x->n_replay)
		rc = err_set(e, EX_DATAERR, "%s: no synchronization to replay", path.s);
	if (!rc && x->first_replay > next)
		rc = err_set(e, EX_DATAERR,
			"%s: the log lacks synchronization %lld; resume from a checkpoint "
			"after synchronization %lld (--resume)",
			path.s, (long long)next + 1, (long long)x->first_replay);
	run_log_free(&log);
	return rc;
}

/* Returns the step of the last synchronization to replay. Collective over sync. */
static int64_t last_replayed_step(const struct run *r)
{
	const struct local_sgd *x = &r->local;
	int64_t step = max64(r->t.o.edit.warmup, x->synced);
	for (int64_t i = edit_syncs(x->edit); i < x->n_replay; i++)
		step += comm_max_i64(x->sync, x->replay[i - x->first_replay]);
	return step;
}

/* Reads the steps to replay on the first rank of each worker, and sends them to its ranks. */
int local_sgd_read_replay(struct run *r, struct err *e)
{
	struct local_sgd *x = &r->local;
	const char *dir = r->t.o.edit.replay;
	if (!dir || !x->sync)
		return 0;
	if (run_is_first(r))
		read_steps(x, &r->t.o, e);
	if (agree_on_start(r, e))
		return -1;
	comm_bcast(r->world, &x->n_replay, sizeof(x->n_replay), 0);
	comm_bcast(r->world, &x->first_replay, sizeof(x->first_replay), 0);
	int64_t n = x->n_replay - x->first_replay;
	if (!run_is_first(r))
		x->replay = xcalloc((size_t)n, sizeof(*x->replay));
	comm_bcast(r->world, x->replay, n * (int64_t)sizeof(*x->replay), 0);
	if (comm_min_i64(r->all, x->n_replay) != comm_max_i64(r->all, x->n_replay))
		err_set(e, EX_DATAERR,
			"%s: the logs of its workers have different numbers of synchronizations",
			dir);
	else if (last_replayed_step(r) > r->t.o.steps)
		err_set(e, EX_USAGE,
			"%s: the run has more than %lld steps; give a larger --steps",
			dir, (long long)r->t.o.steps);
	return agree_on_start(r, e);
}

/* ---- the numbers of a worker in a checkpoint --------------------------------------- */

static struct local_sgd *trainer_local_sgd(const struct trainer *t)
{
	return t->peers ? t->peers->with : NULL;
}

/* Returns the numbers to save; NULL without workers, unless workers have skipped samples before. */
static double *save_numbers(const struct trainer *t, int64_t *n)
{
	const struct local_sgd *x = trainer_local_sgd(t);
	if (!x && !t->n_unseen)
		return NULL;
	if (x)
		edit_wait(x->edit);
	*n = OWN_NUMBERS + (x ? edit_state_size(x->edit) : 0);
	double *v = xcalloc((size_t)*n, sizeof(*v));
	v[UNSEEN] = (double)t->n_unseen;
	if (!x) /* a run that had workers, and is resumed without */
		return v;
	v[SYNCED] = (double)x->synced;
	v[LOSS_SUM] = x->loss_sum;
	v[WARMUP] = (double)t->o.edit.warmup;
	edit_state_export(x->edit, v + OWN_NUMBERS);
	return v;
}

static int set_numbers_error(const struct ckpt *c, struct err *e)
{
	return err_set(e, EX_DATAERR, "%s: the state of local SGD is invalid", c->path);
}

/* Returns the last synchronization's step, or without workers the checkpoint's; -1: invalid. */
static int64_t synced_step(const struct ckpt *c)
{
	double step = (double)c->info.step;
	if (!c->info.workers)
		return c->info.step;
	if (c->n_numbers < OWN_NUMBERS ||
		!(c->numbers[SYNCED] >= 0 && c->numbers[SYNCED] <= step))
		return -1;
	return (int64_t)c->numbers[SYNCED];
}

/* Checks whose checkpoint it is: worker k resumes from worker k modulo the previous number. */
static int check_worker(const struct trainer *t, const struct ckpt *c, struct err *e)
{
	int64_t before = max64(1, t->o.resolved.from_workers);
	if (c->info.workers == t->o.resolved.from_workers &&
		c->info.worker == t->o.resolved.worker % before)
		return 0;
	return err_set(e, EX_DATAERR,
		"%s: belongs to worker %lld of %lld, but worker %d of %lld resumes from worker "
		"%lld of %lld; give --resume the first worker's checkpoint",
		c->path, (long long)c->info.worker, (long long)c->info.workers,
		t->o.resolved.worker, (long long)t->o.edit.workers,
		(long long)(t->o.resolved.worker % before),
		(long long)t->o.resolved.from_workers);
}

/* Restores the state of a worker from its numbers in a checkpoint. */
static int load_worker(struct trainer *t, const struct ckpt *c, struct err *e)
{
	struct local_sgd *x = trainer_local_sgd(t);
	double step = (double)t->step, warmup = (double)t->o.edit.warmup;
	const double *v = c->numbers;
	if (check_worker(t, c, e))
		return -1;
	if (!c->info.workers) { /* in the warm-up, or at its end */
		x->synced = t->step;
		edit_anchor(x->edit);
		return 0;
	}
	if (c->n_numbers != OWN_NUMBERS + edit_state_size(x->edit))
		return err_set(e, EX_DATAERR,
			"%s: was saved with other anomaly detectors or units than these options "
			"give",
			c->path);
	if (!(v[SYNCED] >= 0 && v[SYNCED] <= step && isfinite(v[LOSS_SUM])))
		return set_numbers_error(c, e);
	if ((v[WARMUP] <= step) != (warmup <= step)) /* only one has ended */
		return err_set(e, EX_USAGE,
			"--edit-warmup-steps %g: the run is at step %g, but was started with %g; "
			"give the same",
			warmup, step, v[WARMUP]);
	x->synced = (int64_t)v[SYNCED];
	/* a run that resumes from the anchor has no steps since then */
	x->loss_sum = x->synced < t->step ? v[LOSS_SUM] : 0;
	if (edit_state_restore(x->edit, v + OWN_NUMBERS, t->step - t->o.edit.warmup, e))
		return err_prefix(e, "%s: ", c->path);
	return 0;
}

/* Loads the numbers of a worker; a run without workers may resume from them, too. */
static int load_numbers(
	struct trainer *t, const struct ckpt *c, bool from_anchor, struct err *e)
{
	struct local_sgd *x = trainer_local_sgd(t);
	double n = c && c->n_numbers >= OWN_NUMBERS ? c->numbers[UNSEEN] : 0;
	if (!(n >= 0 && n <= (double)t->samples))
		return set_numbers_error(c, e);
	t->n_unseen = (int64_t)n;
	if (!x)
		return 0;
	x->from_anchor = from_anchor;
	return load_worker(t, c, e);
}

/* ---- another number of workers ------------------------------------------------------ */

int local_sgd_check_ckpt(const struct ckpt *c, int64_t workers, struct err *e)
{
	int64_t synced = synced_step(c);
	if (synced < 0)
		return set_numbers_error(c, e);
	if (workers == c->info.workers || synced == c->info.step ||
		ckpt_find_group(c, "anchor") >= 0)
		return 0;
	return err_set(e, EX_DATAERR,
		"%s: its %lld workers have differed since step %lld and keep no anchor, so "
		"%lld workers cannot resume from it; --resume a checkpoint of a "
		"synchronization (--ckpt-syncs), or resume with %lld workers up to one",
		c->path, (long long)c->info.workers, (long long)synced,
		(long long)workers, (long long)c->info.workers);
}

int local_sgd_check_usable(void *context, const struct ckpt *c, struct err *e)
{
	const struct train_opts *o = context;
	if (!o->edit.workers || o->eval_only)
		return 0;
	return local_sgd_check_ckpt(c, o->edit.workers, e);
}

/* Chooses the state to resume: with another number of workers, the last synchronization's. */
int local_sgd_choose_state(const struct train_opts *o, const struct ckpt *c,
	struct ckpt_info *info, bool *from_anchor, struct err *e)
{
	struct train_opts saved;
	*info = c->info;
	info->format = info->created_by = NULL;
	*from_anchor = false;
	if (o->eval_only || c->info.workers == o->edit.workers)
		return 0;
	if (local_sgd_check_ckpt(c, o->edit.workers, e))
		return -1;
	int64_t synced = synced_step(c), past = c->info.step - synced;
	if (state_options(c, &saved, e))
		return -1;
	bool streams = edit_streams(&saved.edit.config);
	int64_t batch = saved.batch;
	opts_free(&train_program, &saved);
	/* With fragments, workers have only the same anchor, never the same parameters. Its
	 * fragments were synchronized at different steps. */
	*from_anchor = past > 0 || streams;
	if (!past || streams)
		return 0;
	info->step = synced;
	info->samples -= min64(past, info->samples / batch) * batch;
	/* (the steps in between may have had another batch) */
	info->samples = synced ? max64(info->samples, synced) : 0;
	info->loss = info->val_loss = (double)NAN; /* they belong to dropped steps */
	info->skipped_steps = min64(info->skipped_steps, synced);
	info->loss_scale_good = min64(info->loss_scale_good, synced);
	return 0;
}

const struct saved_numbers local_sgd_numbers = {
	.save = save_numbers, .choose = local_sgd_choose_state, .load = load_numbers};

/* ---- the run directory of a run that resumes ---------------------------------------- */

/* Returns true if this worker resumes at an earlier step than its checkpoint's. */
static bool resumes_earlier(const struct run *r)
{
	return r->t.loaded_step > r->t.step;
}

/* Saves the earlier step at which the workers resume, before later checkpoints are removed. */
static int save_resumed_step(struct run *r, struct err *e)
{
	struct trainer *t = &r->t;
	scoped_str path = {0};
	bool writes = run_writes_ckpt(r);
	ckpt_set_path(&path, r->dir.ckpt_path, t->step);
	int rc = writes ? state_save(t, path.s, e) : 0;
	if (!rc && writes && run_is_first(r))
		ckpt_set_link(r->dir.ckpt_path, "latest.h5", t->step, e);
	if (comm_agree(r->all, e)) {
		r->error_agreed = true;
		return -1;
	}
	r->saver.saved_step = t->step;
	r->saver.have = writes ? t->step : INT64_MAX;
	return 0;
}

int local_sgd_settle(struct run *r, struct err *e)
{
	struct trainer *t = &r->t;
	if (!r->dir.ckpt_path)
		return 0;
	if (resumes_earlier(r) && t->o.ckpt && save_resumed_step(r, e))
		return -1;
	/* Later checkpoints are no longer part of this run, like later rows of the journal. */
	if (run_is_first(r))
		ckpt_remove_after(
			r->dir.ckpt_path, t->step, t->o.ckpt ? -1 : t->loaded_step);
	return 0;
}

void local_sgd_report_resume(struct run *r)
{
	const struct trainer *t = &r->t;
	const struct train_opts *o = &t->o;
	scoped_str text = {0};
	if (o->resolved.from_workers == o->edit.workers || !r->dir.ckpt_path)
		return;
	if (o->edit.ckpt == EDIT_CKPT_RANK0 && o->resolved.from_workers == 1)
		str_printf(&text,
			"all %lld workers resume from the first one's checkpoint",
			(long long)o->edit.workers);
	else
		str_printf(&text, "resuming with %lld workers instead of %lld",
			(long long)o->edit.workers, (long long)o->resolved.from_workers);
	if (resumes_earlier(r))
		str_printf(&text,
			"; step %lld was between two synchronizations: back to step %lld",
			(long long)t->loaded_step, (long long)t->step);
	if (r->local.from_anchor && edit_streams(&o->edit.config))
		str_puts(&text, "; each fragment is at its last synchronization");
	info("%s", text.s);
	report_event(r, "%s", text.s);
}
