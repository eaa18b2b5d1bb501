/* The checks of a step (engine/checks.h): a check is a row of referee_checks[]. */
#include "referee/referee.h"

#include "referee/audit.h"
#include "referee/check_replicas.h"

static bool checks_sums(const struct trainer *t)
{
	return t->o.check_sums;
}

static void enqueue_word_of_sums(struct trainer *t, uint64_t *word)
{
	store_check_sums(t->store, word);
}

static void locate_sums(struct trainer *t)
{
	store_locate_sums(t->store);
}

static enum checked judge_sums(struct trainer *t, struct str *out)
{
	scoped_str where = {0};
	bool wrong = store_located_sums(t->store, &where);
	if (wrong)
		str_printf(out, "sums of gradients are wrong, twice: %s", where.s);
	else
		str_printf(out, "a sum of gradients was wrong; computed again it was "
				"right: sporadic");
	return wrong ? CHECKED_PERSISTENT : CHECKED_SPORADIC;
}

static bool checks_audit(const struct trainer *t)
{
	return t->audit && t->audit->plan.audited;
}

static enum checked judge_audit(struct trainer *t, struct str *out)
{
	str_puts(out, t->audit->found.s);
	return t->audit->outcome;
}

const struct check_row referee_checks[N_STEP_CHECKS] = {
	[STEP_CHECK_SUMS] = {.is_on = checks_sums,
		.enqueue_word = enqueue_word_of_sums,
		.alarm = locate_sums,
		.verdict = judge_sums},
	[STEP_CHECK_REPLICAS] = {.is_on = replicas_are_checked,
		.word = replicas_word,
		.alarm = replicas_heal,
		.verdict = replicas_verdict,
		.open = replicas_open,
		.close = replicas_close,
		.after_step = replicas_after_step},
	[STEP_CHECK_AUDIT] = {.is_on = checks_audit,
		.word = audit_word,
		.alarm = audit_trial,
		.alarm_again = audit_trial_again,
		.verdict = judge_audit,
		.open = audit_open,
		.close = audit_close,
		.plan_step = audit_plan_step,
		.begin_step = audit_begin_step,
		.end_step = audit_end_step,
		.reads_again = true},
};
