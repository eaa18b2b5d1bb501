/* The options and the progress that a checkpoint has saved: for programs that read checkpoints and do not
 * train, too, so this calls neither the trainer nor MPI. */
#include "train/state.h"

#include "train/local_sgd.h"

/* The samples that slower workers have skipped; -1 if the checkpoint does not say, and INT64_MAX if they
 * cannot be. */
static int64_t unseen_samples(const struct ckpt *c)
{
	if (c->n_numbers < OWN_NUMBERS)
		return -1;
	double n = c->numbers[UNSEEN];
	return n >= 0 && n <= (double)c->info.samples ? (int64_t)n : INT64_MAX;
}

/* Are the tokens those of the samples? Workers that are slower than others skip some; what has parameters
 * only, as pt-ckpt makes it of any run, does not say how many. */
static bool tokens_agree(const struct ckpt *c, const struct train_opts *saved)
{
	const struct ckpt_info *i = &c->info;
	int64_t context = saved->model.context, unseen = unseen_samples(c);
	int64_t used = i->tokens / context;
	if (i->tokens % context || i->samples > INT64_MAX / context)
		return false;
	if (unseen < 0 && c->groups.n == 1)
		return used <= i->samples;
	return used == i->samples - max64(0, unseen);
}

int state_options(const struct ckpt *c, struct train_opts *saved, struct err *e)
{
	const struct ckpt_info *i = &c->info;
	if (opts_from_text(&train_program, saved, c->config.s, true, e)) {
		opts_free(&train_program, saved);
		return err_prefix(e, "%s: ", c->path);
	}
	/* (a run may have been resumed with another batch, so only its least is known; what other
	 * programs have trained has steps, and no samples) */
	bool possible = !i->samples || (i->step > 0 && i->samples >= i->step);
	if (possible && tokens_agree(c, saved))
		return 0;
	opts_free(&train_program, saved);
	return err_set(e, EX_DATAERR,
		"%s: %lld steps, %lld samples and %lld tokens do not agree, with sequences of %lld",
		c->path, (long long)i->step, (long long)i->samples, (long long)i->tokens,
		(long long)saved->model.context);
}

int state_check(const struct ckpt *c, struct err *e)
{
	struct train_opts saved;
	if (state_options(c, &saved, e))
		return -1;
	opts_free(&train_program, &saved);
	return 0;
}
