/* Workers that train apart: how they begin, where they meet, and what is said of it. */
#include "train/loop.h"

#include <math.h>
#include <stdlib.h>

/* ---- the start ------------------------------------------------------------------- */

static bool first_rank(const struct run *r)
{
	return r->world->rank == 0;
}

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
		comm_bell_open(&r->syncing.bell, r->all, r->world->rank == 0);
	return 0;
}

void apart_close(struct run *r)
{
	comm_bell_close(&r->syncing.bell);
	free(r->syncing.replay);
}

/* The steps that this worker did up to each synchronisation, from the log of a run. */
static int read_steps(struct syncing *y, const char *folder, int worker, struct err *e)
{
	struct run_log log = {0};
	struct str path = {0};
	str_printf(&path, worker ? "%s/worker-%d" : "%s", folder, worker);
	int rc = run_log_read(&log, path.s, e);
	y->replay = xcalloc((size_t)log.n_rows + 1, sizeof(*y->replay));
	for (int64_t i = 0; i < log.n_rows && !rc; i++) {
		const struct row *row = &log.rows[i];
		if (!row_has(row, COL_SYNC))
			continue;
		y->replay[y->n_replay++] = (int64_t)row->v[COL_SYNC_STEPS];
		if ((int64_t)row->v[COL_SYNC] != y->n_replay ||
			!row_has(row, COL_SYNC_STEPS))
			rc = err_set(e, EX_DATAERR,
				"%s: synchronisation %lld is not there", path.s,
				(long long)y->n_replay);
	}
	if (!rc && !y->n_replay)
		rc = err_set(e, EX_DATAERR, "%s: no synchronisation to replay", path.s);
	run_log_free(&log);
	str_free(&path);
	return rc;
}

int apart_replay(struct run *r, const char *folder, struct err *e)
{
	struct syncing *y = &r->syncing;
	if (!folder)
		return 0;
	if (first_rank(r))
		read_steps(y, folder, r->t.o.worker, e);
	if (comm_agree(r->world, e))
		return -1;
	comm_bcast(r->world, &y->n_replay, sizeof(y->n_replay), 0);
	if (!first_rank(r))
		y->replay = xcalloc((size_t)y->n_replay, sizeof(*y->replay));
	comm_bcast(r->world, y->replay, y->n_replay * (int64_t)sizeof(*y->replay), 0);
	return 0;
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
	} all = {leaves, y->wish_stop, run_save_due(r), t->step >= t->o.steps,
		first_rank(r) ? t->step - t->synced : 0};
	if (!r->sync)
		return true;
	if (leaves)
		comm_bell_ring(&y->bell, y->meetings + 1);
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

/* Asked at the end of a step, of each rank: the first one has the clock and hears the bell. */
static bool wants_to_meet(void *with)
{
	struct run *r = with;
	struct syncing *y = &r->syncing;
	return first_rank(r) && !y->replay &&
	       (clock_seconds() >= y->due || comm_bell_heard(&y->bell, y->meetings + 1));
}

/* A worker by itself: who will stop, or is done, does not wait until it is time. */
static bool meets_in_time(struct run *r, const struct step_result *s)
{
	const struct trainer *t = &r->t;
	struct syncing *y = &r->syncing;
	int64_t n = edit_syncs(t->edit);
	if (y->replay)
		return n < y->n_replay ? t->step - t->synced == y->replay[n]
				       : t->step >= t->o.steps;
	if (y->wish_stop || t->step >= t->o.steps) {
		comm_bell_ring(&y->bell, y->meetings + 1);
		return true;
	}
	return s->meet > 0;
}

/* Is it the end of the steps that the workers do apart? */
static bool sync_due(struct run *r, const struct step_result *s)
{
	const struct trainer *t = &r->t;
	int64_t apart = t->step - t->o.edit.warmup;
	if (!t->edit || apart <= 0)
		return false;
	if (t->o.edit.async)
		return meets_in_time(r, s);
	return apart % t->o.edit.interval == 0 || t->step == t->o.steps;
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

/* Collective over all workers, of which all are there. */
static void synchronise(struct run *r)
{
	struct trainer *t = &r->t;
	struct syncing *y = &r->syncing;
	double waited = comm_waited();
	int64_t sent = r->sync->sent, most;
	y->steps = t->step - t->synced;
	y->before = t->synced;
	edit_sync(t->edit, t->o.edit.compat ? t->step - t->skipped : y->steps, &y->r);
	y->sent = r->sync->sent - sent;
	add_up(r, &most);
	y->waited = comm_waited() - waited;
	y->done = true;
	trainer_pass_over(t, most - y->steps);
	t->synced = t->step;
	t->apart_loss = 0;
	y->due = clock_seconds() + t->o.edit.sync_time;
	if (y->r.all_left_out)
		run_event(r, "%d units were left out by all: they are where they were",
			y->r.all_left_out);
	if (y->r.anomalies)
		run_event(r,
			"%d units of this worker were left out of the synchronisation",
			y->r.anomalies);
}

/* Where the workers part. */
static void part(struct run *r)
{
	edit_anchor(r->t.edit);
	r->syncing.due = clock_seconds() + r->t.o.edit.sync_time;
}

bool apart_step(struct run *r, struct step_result *s)
{
	struct syncing *y = &r->syncing;
	struct trainer *t = &r->t;
	y->done = false;
	if (!r->sync)
		return true;
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
	if (t->step == t->o.edit.warmup)
		part(r);
	if (!sync_due(r, s))
		return true;
	double waited = comm_waited();
	if (!apart_meet(r, false))
		return false;
	y->met = comm_waited() - waited;
	if (t->o.edit.async && !y->replay && !y->enough)
		return true;
	synchronise(r);
	if (apart_several(r)) {
		s->stop = y->stop;
		s->save = y->save;
	}
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
	return n > 0 && r->syncing.done && t->step / n > r->syncing.before / n;
}

bool apart_agreed(const struct run *r)
{
	const struct trainer *t = &r->t;
	return !t->edit || r->sync->size == 1 || t->synced == t->step;
}

void apart_row(const struct run *r, struct row *row)
{
	const struct syncing *s = &r->syncing;
	row_set(row, COL_SYNC, (double)edit_syncs(r->t.edit));
	row_set(row, COL_SYNC_STEPS, (double)s->steps);
	if (!isnan(s->loss))
		row_set(row, COL_SYNC_LOSS, s->loss);
	if (!isnan(s->r.norm)) {
		row_set(row, COL_SYNC_NORM, s->r.norm);
		row_set(row, COL_SYNC_REDUCED, s->r.reduced);
		row_set(row, COL_SYNC_ANOMALIES, (double)s->r.anomalies);
		row_set(row, COL_SYNC_CLIP, s->r.clip);
	}
	row_set(row, COL_SYNC_WEIGHT, s->r.weight);
	row_set(row, COL_SYNC_SENT, (double)s->sent);
	row_set(row, COL_SYNC_WAIT, s->waited + s->met);
}
