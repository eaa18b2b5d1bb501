/* Checkpoints of a run: when one is due, how it is written, and which are kept. */
#include "referee/check_replicas.h"
#include "train/train_internal.h"

#include <math.h>

static bool has_lowest_loss(const struct run *r)
{
	const struct trainer *t = &r->t;
	return !isnan(t->best_val_loss) && t->val_loss == t->best_val_loss &&
	       r->saver.eval_step == t->step;
}

/* Removes outdated checkpoints, in the background: the main function of a thread. */
static void *prune_thread(void *run)
{
	const struct run *r = run;
	ckpt_prune(r->dir.ckpt_path, r->t.o.keep, r->saver.prune_to);
	return NULL;
}

void save_wait_prune(struct run *r)
{
	if (r->saver.pruning)
		pthread_join(r->saver.pruner, NULL);
	r->saver.pruning = false;
}

/* Removes old checkpoints in a thread, since removing large files takes a while. */
static void start_prune(struct run *r)
{
	save_wait_prune(r);
	if (!r->t.o.keep)
		return;
	r->saver.prune_to = r->saver.all_have;
	r->saver.pruning = !pthread_create(&r->saver.pruner, NULL, prune_thread, r);
	if (!r->saver.pruning)
		prune_thread(r);
}

/* Updates the links latest.h5 and best.h5, and removes old checkpoints. */
static int update_links_and_prune(struct run *r, struct err *e)
{
	const struct saving *s = &r->saver.now;
	if (ckpt_set_link(r->dir.ckpt_path, "latest.h5", s->step, e) ||
		(s->best && ckpt_set_link(r->dir.ckpt_path, "best.h5", s->step, e)))
		return -1;
	start_prune(r);
	return 0;
}

/* Reports that a checkpoint failed, and sets the time of the next attempt, within a minute: a full
 * disk does not end a run of weeks, and the old checkpoints stay. */
static void report_failure(struct run *r, const struct err *e)
{
	enum { RETRY_SECS = 60 };
	double secs = r->t.o.ckpt_secs;
	bool last = r->t.step == r->t.o.steps || r->now.stop;
	secs = secs > 0 && secs < RETRY_SECS ? secs : RETRY_SECS;
	r->saver.failed = true;
	r->saver.retry_at = clock_seconds() + secs;
	if (run_is_first(r) && last)
		warn("the checkpoint of step %lld was not written: %s",
			(long long)r->saver.now.step, e->msg);
	else if (run_is_first(r))
		warn("the checkpoint of step %lld was not written: %s; training continues, "
		     "and the next attempt is within %g s",
			(long long)r->saver.now.step, e->msg, secs);
	report_event(r, "checkpoint failed: %s", e->msg);
}

/* Reports in the journal and on stderr that the checkpoint was written, or with rc != 0 that it
 * failed. */
static void report_saving_end(struct run *r, int rc, const struct err *e)
{
	struct saving *s = &r->saver.now;
	if (rc) {
		report_failure(r, e);
	} else {
		double seconds = clock_seconds() - s->begin;
		r->saver.saved_step = r->saver.have = s->step;
		r->saver.retry_at = 0;
		report_event(r, "checkpoint %s (%s, %.3g s, stalled %.3g s)", s->path.s,
			s->why, seconds, s->stalled);
		info("wrote %s in %.3g s; training waited %.3g s for it", s->path.s,
			seconds, s->stalled);
	}
	r->saver.saved_at = clock_seconds();
	str_free(&s->path);
	report_publish(r, 0);
}

void save_end(struct run *r)
{
	struct err e = {0};
	double begin = clock_seconds();
	if (!r->t.copy.writing)
		return;
	run_watchdog_files(r, true);
	int rc = state_save_end(&r->t, &e);
	if (!rc) {
		if (run_is_first(r))
			update_links_and_prune(r, &e);
		rc = comm_agree(r->world, &e);
	}
	run_watchdog_files(r, false);
	r->saver.now.stalled += clock_seconds() - begin;
	report_saving_end(r, rc, &e);
}

bool save_check_state(struct run *r, const char *before)
{
	struct trainer *t = &r->t;
	scoped_str found = {0};
	bool known = t->state_is_wrong || r->saver.checked;
	r->saver.checked = true;
	if (!known && replicas_check_now(t, &found)) {
		report_event(r, "step %lld: before %s: %s", (long long)t->step, before,
			found.s);
		if (run_is_first(r))
			warn("step %lld: before %s: %s", (long long)t->step, before,
				found.s);
		run_vault_withdraw_wrong(r);
	}
	return !t->state_is_wrong;
}

void save_now(struct run *r, const char *why, enum save_mode mode)
{
	const bool background = mode == SAVE_IN_BACKGROUND;
	struct trainer *t = &r->t;
	struct err e = {0};
	if (!t->o.ckpt || r->saver.saved_step == t->step ||
		r->saver.tried_step == t->step)
		return;
	if (!run_writes_ckpt(r)) { /* the first worker writes for all */
		r->saver.saved_step = t->step;
		return;
	}
	double begin = clock_seconds();
	r->saver.tried_step = t->step;
	if (!save_check_state(r, "a checkpoint"))
		return;
	save_end(r);
	run_watchdog_files(r, true);
	save_wait_prune(r);
	r->saver.now = (struct saving){
		.step = t->step, .why = why, .best = has_lowest_loss(r), .begin = begin};
	ckpt_set_path(&r->saver.now.path, r->dir.ckpt_path, t->step);
	int rc = state_save_begin(t, r->saver.now.path.s, background, &e);
	run_watchdog_files(r, false);
	r->saver.now.stalled = clock_seconds() - begin;
	if (rc)
		report_saving_end(r, rc, &e);
	else if (!background || t->copy.state == COPY_NONE)
		save_end(r);
}

bool save_is_due(const struct run *r)
{
	double now = clock_seconds();
	if (!run_is_first(r) || !run_writes_ckpt(r) || r->t.copy.writing)
		return false;
	return (r->t.o.ckpt_secs > 0 && now - r->saver.saved_at >= r->t.o.ckpt_secs) ||
	       (r->saver.retry_at > 0 && now >= r->saver.retry_at);
}
