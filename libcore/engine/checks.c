/* Checks of a step by integers (checks.h). A check is a row of step_checks[]. */
#include "engine/checks.h"

#include "engine/check_replicas.h"

static bool checks_sums(const struct trainer *t)
{
	return t->o.check_sums;
}

static uint64_t word_of_sums(struct trainer *t)
{
	return store_check_word(t->store);
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

const struct step_check step_checks[N_STEP_CHECKS] = {
	[STEP_CHECK_SUMS] = {checks_sums, word_of_sums, locate_sums, judge_sums},
	[STEP_CHECK_REPLICAS] = {replicas_are_checked, replicas_word, replicas_heal,
		replicas_verdict},
};

void checks_words(struct trainer *t, uint64_t word[N_STEP_CHECKS])
{
	for (int i = 0; i < N_STEP_CHECKS; i++)
		word[i] = step_checks[i].is_on(t) ? step_checks[i].word(t) : 0;
}

static bool is_wrong(uint64_t word)
{
	return word % GRID_PRIME;
}

bool checks_alarmed(const uint64_t word[N_STEP_CHECKS])
{
	for (int i = 0; i < N_STEP_CHECKS; i++)
		if (is_wrong(word[i]))
			return true;
	return false;
}

void checks_begin_again(struct trainer *t, const uint64_t word[N_STEP_CHECKS])
{
	for (int i = 0; i < N_STEP_CHECKS; i++)
		if (is_wrong(word[i]))
			step_checks[i].alarm(t);
}

void checks_end_again(
	struct trainer *t, const uint64_t word[N_STEP_CHECKS], struct step_result *r)
{
	str_printf(&r->found, "step %lld: ", (long long)t->step + 1);
	for (int i = 0, n = 0; i < N_STEP_CHECKS; i++) {
		if (!is_wrong(word[i]) && !is_wrong(r->check_word[i]))
			continue;
		str_add(&r->found, "; ", n++ ? 2 : 0);
		if (!is_wrong(word[i])) {
			str_puts(&r->found,
				"computed again, the step fails another check");
			r->checked = CHECKED_PERSISTENT;
			continue;
		}
		enum checked verdict = step_checks[i].verdict(t, &r->found);
		if (verdict > r->checked)
			r->checked = verdict;
	}
}
