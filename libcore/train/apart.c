/* Workers that train apart: how they begin, where they meet, and what is said of it. */
#include "train/loop.h"

#include <math.h>
#include <stdlib.h>

/* ---- the start ------------------------------------------------------------------- */

int apart_open(struct run *r, struct train_opts *o, struct err *e)
{
	if (o->eval_only) /* of one's parameters, by all ranks */
		o->edit.workers = 0;
	int n = (int)o->edit.workers;
	if (!n || o->dry_run)
		return 0;
	if (r->all->size % n)
		return err_set(e, EX_USAGE, "%d ranks cannot be shared out to %d workers",
			r->all->size, n);
	int ranks = r->all->size / n;
	o->worker = r->all->rank / ranks;
	r->sync = comm_split(r->all, r->all->rank % ranks, "workers");
	if (n > 1)
		r->world = comm_split(r->all, o->worker, "worker");
	if (n > 1 && o->edit.async)
		comm_notify_open(&r->syncing.notify, r->all, run_first(r));
	return 0;
}

void apart_close(struct run *r)
{
	comm_notify_close(&r->syncing.notify);
	free(r->syncing.replay);
}

int apart_same_device(struct run *r, struct err *e)
{
	bool apart = r->t.d.apart;
	if (!apart_several(r))
		return 0;
	r->told = comm_agree(r->all, e); /* a worker may have ended before it has any */
	if (r->told)
		return -1;
	trainer_see_room(&r->t);
	if (comm_min_i64(r->all, apart) == comm_max_i64(r->all, apart))
		return 0;
	r->told = true; /* all see it */
	return err_set(e, EX_USAGE,
		"some workers have found a GPU for each of their ranks, and others have "
		"not: give --device cuda or cpu");
}

/* The steps that this worker did up to each synchronisation, from the log of a run: the last
 * ones of which none is missing, and among them all that are to come. */
static int read_steps(struct syncing *y, const char *folder, const struct train_opts *o,
	const struct edit *edit, struct err *e)
{
	struct run_log log = {0};
	struct str path = {0};
	str_printf(&path, "%s/worker-%lld", folder, (long long)o->edit.workers);
	if (file_exists(path.s)) {
		err_set(e, EX_USAGE, "%s: is of more workers than %lld", folder,
			(long long)o->edit.workers);
		str_free(&path);
		return -1;
	}
	str_clear(&path);
	str_printf(&path, o->worker ? "%s/worker-%d" : "%s", folder, o->worker);
	int rc = run_log_read(&log, path.s, e);
	y->replay = xcalloc((size_t)log.n_rows + 1, sizeof(*y->replay));
	for (int64_t i = 0; i < log.n_rows && !rc; i++) {
		const struct row *row = &log.rows[i];
		if (!row_has(row, COL_SYNC) || !row_has(row, COL_SYNC_STEPS))
			continue;
		int64_t before = (int64_t)row->v[COL_SYNC] - 1;
		if (before != y->n_replay) /* without this worker, or not in this log */
			y->first_replay = y->n_replay = before;
		y->replay[y->n_replay++ - y->first_replay] =
			(int64_t)row->v[COL_SYNC_STEPS];
	}
	int64_t next = edit_syncs(edit);
	if (!rc && !y->n_replay)
		rc = err_set(e, EX_DATAERR, "%s: no synchronisation to replay", path.s);
	if (!rc && y->first_replay > next)
		rc = err_set(e, EX_DATAERR,
			"%s: synchronisation %lld is not there: go on from a checkpoint "
			"that has seen the first %lld (--resume)",
			path.s, (long long)next + 1, (long long)y->first_replay);
	run_log_free(&log);
	str_free(&path);
	return rc;
}

static int64_t steps_to_repeat(const struct syncing *y, int64_t sync)
{
	return y->replay[sync - y->first_replay];
}

/* Collective over sync: the step after the last synchronisation that was read. */
static int64_t last_of(const struct run *r)
{
	const struct syncing *y = &r->syncing;
	int64_t step = max64(r->t.o.edit.warmup, r->t.synced);
	for (int64_t i = edit_syncs(r->t.edit); i < y->n_replay; i++)
		step += comm_max_i64(r->sync, steps_to_repeat(y, i));
	return step;
}

int apart_replay(struct run *r, const char *folder, struct err *e)
{
	struct syncing *y = &r->syncing;
	if (!folder || !r->sync)
		return 0;
	if (run_first(r))
		read_steps(y, folder, &r->t.o, r->t.edit, e);
	if (comm_agree(r->all, e))
		goto told;
	comm_bcast(r->world, &y->n_replay, sizeof(y->n_replay), 0);
	comm_bcast(r->world, &y->first_replay, sizeof(y->first_replay), 0);
	int64_t n = y->n_replay - y->first_replay;
	if (!run_first(r))
		y->replay = xcalloc((size_t)n, sizeof(*y->replay));
	comm_bcast(r->world, y->replay, n * (int64_t)sizeof(*y->replay), 0);
	if (comm_min_i64(r->all, y->n_replay) != comm_max_i64(r->all, y->n_replay))
		err_set(e, EX_DATAERR, "%s: its workers did not synchronise as often",
			folder);
	else if (last_of(r) > r->t.o.steps)
		err_set(e, EX_USAGE, "%s: has more than %lld steps: give as many --steps",
			folder, (long long)r->t.o.steps);
	if (!comm_agree(r->all, e))
		return 0;
told:
	r->told = true;
	return -1;
}

int apart_agree(struct run *r, int rc, struct err *e)
{
	if (!r->sync || r->told)
		return rc;
	return comm_agree(r->all, e) ? -1 : rc;
}

int apart_ready(struct run *r, struct err *e)
{
	if (!r->sync)
		return 0;
	r->told = comm_agree(r->all, e);
	return r->told ? -1 : 0;
}

/* ---- where they meet ------------------------------------------------------------- */

bool apart_several(const struct run *r)
{
	return r->sync && r->sync->size > 1;
}

bool apart_meet(struct run *r, bool leaves)
{
	struct syncing *y = &r->syncing;
	const struct trainer *t = &r->t;
	struct {
		int64_t leaving, stop, save, ends, steps;
	} all = {leaves, y->wish_stop, save_due(r), t->step >= t->o.steps,
		run_first(r) ? t->step - t->synced : 0};
	if (!r->sync)
		return true;
	if (leaves)
		comm_notify_send(&y->notify, y->meetings + 1);
	comm_sum_i64(r->all, (int64_t *)&all, 5);
	y->meetings++;
	y->enough = all.stop || all.ends || all.steps >= t->o.edit.min_total;
	y->due = clock_seconds() + t->o.edit.sync_time;
	if (!apart_several(r))
		return true;
	y->stop = all.stop;
	y->save = all.save;
	r->all_have = comm_min_i64(r->all, r->have);
	return !all.leaving;
}

/* The next synchronisation is where the run did it that is repeated. */
static bool repeats(const struct run *r)
{
	return edit_syncs(r->t.edit) < r->syncing.n_replay;
}

/* Asked at the end of a step, of each rank: the first one has the clock, and gets
 * notifications. */
static bool wants_to_meet(void *with)
{
	struct run *r = with;
	struct syncing *y = &r->syncing;
	return run_first(r) && !repeats(r) &&
	       (clock_seconds() >= y->due ||
		       comm_notify_received(&y->notify, y->meetings + 1));
}

/* A worker by itself: who will stop, or is done, does not wait until it is time. */
static bool meets_in_time(struct run *r, const struct step_result *s)
{
	const struct trainer *t = &r->t;
	struct syncing *y = &r->syncing;
	if (repeats(r))
		return t->step - t->synced == steps_to_repeat(y, edit_syncs(t->edit));
	if (y->wish_stop || t->step >= t->o.steps) {
		comm_notify_send(&y->notify, y->meetings + 1);
		return true;
	}
	return s->meet > 0;
}

/* What is synchronised: a fragment, or these. */
enum { NOTHING = -1, EVERYTHING = -2 };

static int64_t steps_apart(const struct run *r)
{
	return r->t.step - r->t.o.edit.warmup;
}

static int what_is_due(struct run *r, const struct step_result *s)
{
	const struct trainer *t = &r->t;
	if (!t->edit || steps_apart(r) <= 0)
		return NOTHING;
	if (t->o.edit.async)
		return meets_in_time(r, s) ? EVERYTHING : NOTHING;
	if (t->step == t->o.steps)
		return EVERYTHING;
	int f = edit_due(t->edit, steps_apart(r));
	return f == 0 && edit_fragments(t->edit) == 1 && !t->o.edit.delay ? EVERYTHING
									  : f;
}

/* What all workers did since the last time, each as long as it took. */
static void add_up(struct run *r, int64_t *most)
{
	struct trainer *t = &r->t;
	struct {
		double loss;
		int64_t steps;
	} mine = {t->apart_loss, t->step - t->synced}, *all;
	int64_t steps = 0;
	double loss = 0;
	*most = 0;
	all = xcalloc((size_t)r->sync->size, sizeof(*all));
	comm_allgather(r->sync, &mine, all, sizeof(mine));
	for (int i = 0; i < r->sync->size; i++) {
		loss += all[i].loss;
		steps += all[i].steps;
		*most = max64(*most, all[i].steps);
	}
	free(all);
	r->syncing.loss = loss / (double)steps;
	t->unseen += (*most * r->sync->size - steps) * train_batch(&t->o);
}

void apart_finish(struct run *r)
{
	struct syncing *y = &r->syncing;
	double waited = comm_waited();
	if (!y->under_way)
		return;
	edit_end(r->t.edit, 0, &y->r);
	y->under_way = false;
	y->ended = true;
	y->waited += comm_waited() - waited;
	if (!y->holds)
		return;
	y->holds = false;
	apart_row(r, &y->row);
	run_row(r, &y->row);
}

bool apart_hold(struct run *r, const struct row *row)
{
	struct syncing *y = &r->syncing;
	if (!y->under_way)
		return false;
	y->holds = true;
	y->row = *row;
	return true;
}

/* A unit that is used for the first time since a synchronisation began. */
static void before_use(void *with, int unit)
{
	struct run *r = with;
	double waited = comm_waited();
	if (!r->syncing.under_way)
		return;
	edit_arrive(r->t.edit, unit);
	r->syncing.waited += comm_waited() - waited;
}

static void tell(struct run *r)
{
	const struct edit_result *e = &r->syncing.r;
	if (e->all_left_out)
		run_event(r, "%d units were left out by all: they are where they were",
			e->all_left_out);
	if (e->anomalies)
		run_event(r,
			"%d units of this worker were left out of the synchronisation",
			e->anomalies);
}

/* Collective over all workers, of which all are there. */
static void synchronise(struct run *r, int what)
{
	struct trainer *t = &r->t;
	struct syncing *y = &r->syncing;
	double waited = comm_waited();
	int64_t most, sent = r->sync->sent;
	y->steps = t->step - t->synced;
	y->before = t->synced;
	add_up(r, &most);
	y->sent_before += r->sync->sent - sent; /* which is not for it */
	int64_t steps = t->o.edit.compat ? t->step - t->skipped : y->steps;
	y->begun = true;
	if (what != EVERYTHING) {
		struct edit_result before = y->r; /* of another fragment that ended now */
		edit_begin(t->edit, what, steps, &y->r);
		y->r.reduced = before.reduced;
		y->r.clip = before.clip;
		if (!t->o.edit.delay)
			edit_end(t->edit, what, &y->r);
		y->ended |= !t->o.edit.delay;
	} else if (t->step < t->o.steps && !t->o.graph && edit_arrives_by_unit(t->edit)) {
		edit_begin(t->edit, 0, steps, &y->r);
		y->under_way = true;
	} else {
		edit_sync(t->edit, steps, &y->r);
		y->ended = true;
	}
	y->waited = comm_waited() - waited;
	trainer_pass_over(t, most - y->steps);
	t->synced = t->step;
	t->apart_loss = 0;
	y->due = clock_seconds() + t->o.edit.sync_time;
	tell(r);
}

/* A fragment that has been under way for long enough. */
static void end_delayed(struct run *r)
{
	const struct trainer *t = &r->t;
	struct syncing *y = &r->syncing;
	if (!t->edit || !t->o.edit.delay || t->step == t->o.steps)
		return;
	int f = edit_due(t->edit, steps_apart(r) - t->o.edit.delay);
	if (f < 0 || !edit_is_begun(t->edit, f))
		return;
	edit_end(t->edit, f, &y->r);
	y->ended = true;
}

/* Of these a supervisor restarts what lost a worker, so that at most an interval is lost. */
static bool save_of_sync(const struct trainer *t)
{
	int64_t n = t->o.ckpt_syncs;
	return n && (t->step == t->o.edit.warmup || edit_syncs(t->edit) % n == 0);
}

/* Where the workers part. */
static void part(struct run *r)
{
	edit_anchor(r->t.edit);
	r->syncing.due = clock_seconds() + r->t.o.edit.sync_time;
	r->syncing.sent_before = r->sync->sent;
}

bool apart_step(struct run *r, struct step_result *s)
{
	struct syncing *y = &r->syncing;
	struct trainer *t = &r->t;
	if (!r->sync)
		return true;
	apart_finish(r);
	y->begun = y->ended = false;
	/* Who stops or saves alone would leave the others behind. */
	if (apart_several(r)) {
		y->wish_stop |= s->stop > 0;
		s->stop = 0;
		s->save = t->step <= t->o.edit.warmup && y->save;
	}
	t->apart_loss += (double)s->loss;
	if (t->step <= t->o.edit.warmup) {
		t->synced = t->step;
		t->apart_loss = 0;
	}
	if (t->step == t->o.edit.warmup) {
		part(r);
		s->save |= save_of_sync(t);
	}
	end_delayed(r);
	int what = what_is_due(r, s);
	if (what == NOTHING)
		return true;
	double waited = comm_waited();
	if (!apart_meet(r, false))
		return false;
	y->met = comm_waited() - waited;
	if (t->o.edit.async && !repeats(r) && !y->enough)
		return true;
	synchronise(r, what);
	if (apart_several(r)) {
		s->stop = y->stop;
		s->save = y->save;
	}
	s->save |= save_of_sync(t);
	return true;
}

void apart_start(struct run *r)
{
	struct trainer *t = &r->t;
	if (!t->edit)
		return;
	if (t->step == t->o.edit.warmup)
		edit_anchor(t->edit);
	r->syncing.due = clock_seconds() + t->o.edit.sync_time;
	r->syncing.sent_before = r->sync->sent;
	store_before_use(t->store, before_use, r);
	if (t->o.edit.async) {
		t->wants_to_meet = wants_to_meet;
		t->with = r;
	}
}

bool apart_begin(struct run *r)
{
	return r->t.step >= r->t.o.edit.warmup || apart_meet(r, false);
}

/* ---- what is said of it ---------------------------------------------------------- */

bool apart_due(const struct run *r, int64_t n)
{
	const struct trainer *t = &r->t;
	if (!t->o.edit.async || t->step <= t->o.edit.warmup)
		return n > 0 && t->step % n == 0;
	return n > 0 && r->syncing.begun && t->step / n > r->syncing.before / n;
}

bool apart_agreed(const struct run *r)
{
	const struct trainer *t = &r->t;
	if (!t->edit)
		return true;
	bool whole = edit_fragments(t->edit) == 1 && !t->o.edit.delay;
	return r->sync->size == 1 ||
	       (t->synced == t->step && (whole || t->step == t->o.steps));
}

bool apart_has_news(const struct run *r)
{
	return r->syncing.begun || r->syncing.ended;
}

void apart_row(struct run *r, struct row *row)
{
	struct syncing *s = &r->syncing;
	bool anchor = !isnan(s->r.norm);
	if (s->begun) {
		row_set(row, COL_SYNC, (double)edit_syncs(r->t.edit));
		row_set(row, COL_SYNC_STEPS, (double)s->steps);
		if (!isnan(s->loss))
			row_set(row, COL_SYNC_LOSS, s->loss);
		row_set(row, COL_SYNC_WEIGHT, s->r.weight);
		row_set(row, COL_SYNC_WAIT, s->waited + s->met);
	}
	if (s->begun && anchor) {
		row_set(row, COL_SYNC_NORM, s->r.norm);
		row_set(row, COL_SYNC_ANOMALIES, (double)s->r.anomalies);
	}
	if (s->ended && !isnan(s->r.reduced)) {
		row_set(row, COL_SYNC_REDUCED, s->r.reduced);
		row_set(row, COL_SYNC_CLIP, s->r.clip);
	}
	row_set(row, COL_SYNC_SENT, (double)(r->sync->sent - s->sent_before));
	s->sent_before = r->sync->sent;
}
