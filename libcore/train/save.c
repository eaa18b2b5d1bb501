/* Checkpoints of a run: when one is due, what came of it, and which are kept. */
#include "train/loop.h"

#include <math.h>

static bool is_best(const struct run *r)
{
	const struct trainer *t = &r->t;
	return !isnan(t->best_val_loss) && t->val_loss == t->best_val_loss &&
	       r->eval_step == t->step;
}

static void *prune(void *with)
{
	const struct run *r = with;
	ckpt_prune(r->ckpt_folder, r->t.o.keep, r->prune_to);
	return NULL;
}

void save_close(struct run *r)
{
	if (r->pruning)
		pthread_join(r->pruner, NULL);
	r->pruning = false;
}

/* Removing a large file takes a while, for which nobody needs to wait. */
static void begin_prune(struct run *r)
{
	save_close(r);
	if (!r->t.o.keep)
		return;
	r->prune_to = r->all_have;
	r->pruning = !pthread_create(&r->pruner, NULL, prune, r);
	if (!r->pruning)
		prune(r);
}

/* Marks what was saved, and begins to remove what is not to be kept. */
static int keep_house(struct run *r, struct err *e)
{
	const struct saving *s = &r->saving;
	if (ckpt_mark(r->ckpt_folder, "latest.h5", s->step, e) ||
		(s->best && ckpt_mark(r->ckpt_folder, "best.h5", s->step, e)))
		return -1;
	begin_prune(r);
	return 0;
}

/* A run of weeks does not end for a disk that is full today. What it has is kept, and tried
 * again: at the next checkpoint, and before, since the next may be far. */
static void not_saved(struct run *r, const struct err *e)
{
	enum { RETRY_SECS = 60 };
	double secs = r->t.o.ckpt_secs;
	bool last = r->t.step == r->t.o.steps || r->stop;
	secs = secs > 0 && secs < RETRY_SECS ? secs : RETRY_SECS;
	r->failed = true;
	r->retry_at = clock_seconds() + secs;
	if (run_first(r) && last)
		warn("the checkpoint of step %lld was not written: %s",
			(long long)r->saving.step, e->msg);
	else if (run_first(r))
		warn("the checkpoint of step %lld was not written: %s; training goes on, "
		     "and the next is tried after %g s at the latest",
			(long long)r->saving.step, e->msg, secs);
	run_event(r, "checkpoint failed: %s", e->msg);
}

/* What came of it, at once or later. */
static void conclude(struct run *r, int rc, const struct err *e)
{
	struct saving *s = &r->saving;
	if (rc) {
		not_saved(r, e);
	} else {
		double seconds = clock_seconds() - s->begin;
		r->saved_step = r->have = s->step;
		r->retry_at = 0;
		run_event(r, "checkpoint %s (%s, %.3g s, stalled %.3g s)", s->path.s,
			s->why, seconds, s->stalled);
		info("checkpoint %s: %.3g s, for which training stalled %.3g s",
			s->path.s, seconds, s->stalled);
	}
	r->saved_at = clock_seconds();
	str_free(&s->path);
	run_publish(r, 0);
}

void save_end(struct run *r)
{
	struct err e = {0};
	double begin = clock_seconds();
	if (!r->t.writing)
		return;
	int rc = trainer_save_end(&r->t, &e);
	if (!rc) {
		if (run_first(r))
			keep_house(r, &e);
		rc = comm_agree(r->world, &e);
	}
	r->saving.stalled += clock_seconds() - begin;
	conclude(r, rc, &e);
}

void save_now(struct run *r, const char *why, bool behind)
{
	struct trainer *t = &r->t;
	struct err e = {0};
	if (!t->o.ckpt || r->saved_step == t->step || r->tried_step == t->step)
		return;
	double begin = clock_seconds();
	save_end(r);
	save_close(r);
	r->tried_step = t->step;
	r->saving = (struct saving){
		.step = t->step, .why = why, .best = is_best(r), .begin = begin};
	ckpt_name(&r->saving.path, r->ckpt_folder, t->step);
	int rc = trainer_save_begin(t, r->saving.path.s, behind, &e);
	r->saving.stalled = clock_seconds() - begin;
	if (rc)
		conclude(r, rc, &e);
	else if (!behind || t->copies == COPY_NONE)
		save_end(r);
}

bool save_due(const struct run *r)
{
	double now = clock_seconds();
	if (!run_first(r) || r->t.writing)
		return false;
	return (r->t.o.ckpt_secs > 0 && now - r->saved_at >= r->t.o.ckpt_secs) ||
	       (r->retry_at > 0 && now >= r->retry_at);
}
