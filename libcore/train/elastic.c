/* Another number of workers than a checkpoint is of: what a run takes up of it. */
#include "train/loop.h"

#include <math.h>

/* ---- may it? --------------------------------------------------------------------- */

int elastic_check(const struct ckpt *c, int64_t workers, struct err *e)
{
	int64_t synced = state_synced(c);
	if (synced < 0)
		return err_set(
			e, EX_DATAERR, "%s: numbers of a worker that cannot be", c->path);
	if (workers == c->info.workers || synced == c->info.step ||
		ckpt_find_group(c, "anchor") >= 0)
		return 0;
	return err_set(e, EX_DATAERR,
		"%s: its %lld workers have not agreed since step %lld and keep no "
		"anchor, so %lld cannot go on with it: name a checkpoint of a "
		"synchronisation, as --ckpt-syncs writes them, or go on with %lld "
		"workers up to one",
		c->path, (long long)c->info.workers, (long long)synced,
		(long long)workers, (long long)c->info.workers);
}

int elastic_usable(void *with, const struct ckpt *c, struct err *e)
{
	const struct train_opts *o = with;
	return o->edit.workers && !o->eval_only ? elastic_check(c, o->edit.workers, e)
						: 0;
}

/* ---- what is taken up ------------------------------------------------------------ */

int elastic_info(const struct train_opts *o, const struct ckpt *c, struct ckpt_info *info,
	bool *back, struct err *e)
{
	struct train_opts saved;
	*info = c->info;
	info->format = info->created_by = NULL;
	*back = false;
	if (o->eval_only || c->info.workers == o->edit.workers)
		return 0;
	if (elastic_check(c, o->edit.workers, e))
		return -1;
	int64_t synced = state_synced(c), past = c->info.step - synced;
	if (opts_from_text(&train_program, &saved, c->config.s, true, e))
		return err_prefix(e, "%s: ", c->path);
	/* A fragment at a time they never have the same, but in their anchor; of that each
	 * fragment is as old as its own synchronisation, so no step is that of all. */
	bool streams = saved.edit.fragments > 1 || saved.edit.delay > 0;
	*back = past > 0 || streams;
	if (!past || streams)
		return 0;
	info->step = synced;
	info->samples -= min64(past, info->samples / max64(1, saved.batch)) * saved.batch;
	info->loss = info->val_loss = (double)NAN; /* of steps that are no more */
	info->skipped_steps = min64(info->skipped_steps, synced);
	info->loss_scale_good = min64(info->loss_scale_good, synced);
	return 0;
}

/* ---- in the run's folder --------------------------------------------------------- */

/* Has this worker gone back to where they last agreed? */
static bool went_back(const struct run *r)
{
	return r->t.from_step > r->t.step;
}

/* Nothing is removed before all workers have the step that they went back to. */
static int save_step(struct run *r, struct err *e)
{
	struct trainer *t = &r->t;
	struct str path = {0};
	int rc = trainer_save(t, ckpt_name(&path, r->ckpt_folder, t->step), e);
	if (!rc && run_first(r))
		ckpt_mark(r->ckpt_folder, "latest.h5", t->step, e);
	str_free(&path);
	if (comm_agree(r->all, e)) {
		r->told = true;
		return -1;
	}
	r->saved_step = r->have = t->step;
	return 0;
}

int elastic_settle(struct run *r, struct err *e)
{
	struct trainer *t = &r->t;
	if (!r->ckpt_folder)
		return 0;
	if (went_back(r) && t->o.ckpt && save_step(r, e))
		return -1;
	/* As the journal's rows: what lies beyond is not of this run any more. */
	if (run_first(r))
		ckpt_drop(r->ckpt_folder, t->step, t->o.ckpt ? -1 : t->from_step);
	return 0;
}

void elastic_say(struct run *r)
{
	const struct trainer *t = &r->t;
	const struct train_opts *o = &t->o;
	struct str text = {0};
	if (o->from_workers == o->edit.workers || !r->ckpt_folder)
		return;
	str_printf(&text, "going on with %lld workers, it was %lld",
		(long long)o->edit.workers, (long long)o->from_workers);
	if (went_back(r))
		str_printf(&text,
			"; step %lld was between two synchronisations: back to step "
			"%lld, "
			"where they agreed",
			(long long)t->from_step, (long long)t->step);
	if (t->went_back && (o->edit.fragments > 1 || o->edit.delay > 0))
		str_printf(&text, "; each fragment is as when it was synchronised last");
	info("%s", text.s);
	run_event(r, "%s", text.s);
	str_free(&text);
}
