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
	struct {
		int64_t leaving, stop, save;
	} all = {leaves, y->wish_stop, run_save_due(r)};
	if (!apart_several(r))
		return true;
	comm_sum_i64(r->all, (int64_t *)&all, 3);
	y->stop = all.stop;
	y->save = all.save;
	r->all_have = comm_min_i64(r->all, r->have);
	return !all.leaving;
}

/* Is it the end of the steps that the workers do apart? */
static bool sync_due(const struct run *r)
{
	const struct trainer *t = &r->t;
	int64_t apart = t->step - t->o.edit.warmup;
	if (!t->edit || apart <= 0)
		return false;
	return apart % t->o.edit.interval == 0 || t->step == t->o.steps;
}

/* Mean loss of all workers since the last time, each as long as it took. */
static double loss_of_all(const struct run *r)
{
	const struct trainer *t = &r->t;
	struct {
		double loss, steps;
	} mine = {t->apart_loss, (double)(t->step - t->synced)}, *all;
	double loss = 0, steps = 0;
	all = xcalloc((size_t)r->sync->size, sizeof(*all));
	comm_allgather(r->sync, &mine, all, sizeof(mine));
	for (int i = 0; i < r->sync->size; i++) {
		loss += all[i].loss;
		steps += all[i].steps;
	}
	free(all);
	return loss / steps;
}

/* Collective over all workers, of which all are there. */
static void synchronise(struct run *r)
{
	struct trainer *t = &r->t;
	struct syncing *y = &r->syncing;
	double waited = comm_waited();
	int64_t sent = r->sync->sent;
	edit_sync(t->edit, t->step - t->synced, &y->r);
	y->sent = r->sync->sent - sent;
	y->loss = loss_of_all(r);
	y->waited = comm_waited() - waited;
	y->done = true;
	t->synced = t->step;
	t->apart_loss = 0;
	if (y->r.all_left_out)
		run_event(r, "%d units were left out by all: they are where they were",
			y->r.all_left_out);
	if (y->r.anomalies)
		run_event(r,
			"%d units of this worker were left out of the synchronisation",
			y->r.anomalies);
}

/* Of these a supervisor restarts what lost a worker, so that at most an interval is lost. */
static bool save_of_sync(const struct trainer *t)
{
	int64_t n = t->o.ckpt_syncs;
	return n && (t->step == t->o.edit.warmup || edit_syncs(t->edit) % n == 0);
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
	if (t->step == t->o.edit.warmup) {
		edit_anchor(t->edit);
		s->save |= save_of_sync(t);
	}
	if (!sync_due(r))
		return true;
	if (!apart_meet(r, false))
		return false;
	synchronise(r);
	if (apart_several(r)) {
		s->stop = y->stop;
		s->save = y->save;
	}
	s->save |= save_of_sync(t);
	return true;
}

bool apart_begin(struct run *r)
{
	return r->t.step >= r->t.o.edit.warmup || apart_meet(r, false);
}

/* ---- what is said of it ---------------------------------------------------------- */

bool apart_agreed(const struct run *r)
{
	const struct trainer *t = &r->t;
	return !t->edit || r->sync->size == 1 || t->synced == t->step;
}

void apart_row(const struct run *r, struct row *row)
{
	const struct syncing *s = &r->syncing;
	row_set(row, COL_SYNC, (double)edit_syncs(r->t.edit));
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
	row_set(row, COL_SYNC_WAIT, s->waited);
}
