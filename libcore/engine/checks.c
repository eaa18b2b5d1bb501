/* Checks of a step by integers (checks.h). A check is a row of step_checks[]. */
#include "engine/checks.h"

#include "engine/audit.h"
#include "engine/check_replicas.h"

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

const struct step_check step_checks[N_STEP_CHECKS] = {
	[STEP_CHECK_SUMS] = {.is_on = checks_sums,
		.enqueue_word = enqueue_word_of_sums,
		.alarm = locate_sums,
		.verdict = judge_sums},
	[STEP_CHECK_REPLICAS] = {.is_on = replicas_are_checked,
		.word = replicas_word,
		.alarm = replicas_heal,
		.verdict = replicas_verdict},
	[STEP_CHECK_AUDIT] = {.is_on = checks_audit,
		.word = audit_word,
		.alarm = audit_trial,
		.verdict = judge_audit},
};

bool checks_are_on(const struct trainer *t)
{
	for (int i = 0; i < N_STEP_CHECKS; i++)
		if (step_checks[i].is_on(t))
			return true;
	return false;
}

void checks_enqueue(struct trainer *t)
{
	enum { FLOATS = sizeof(uint64_t) / sizeof(float) };
	for (int i = 0; i < N_STEP_CHECKS && checks_are_on(t); i++) {
		const struct step_check *x = &step_checks[i];
		uint64_t *word = &t->end->check[i], here;
		if (!x->is_on(t)) {
			t->d.k->zero(&t->d, mat((float *)(void *)word, 1, FLOATS));
		} else if (x->enqueue_word) {
			x->enqueue_word(t, word);
		} else {
			here = x->word(t);
			device_put(&t->d, word, &here, sizeof(here));
		}
	}
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
	if (r->checked == CHECKED_SPORADIC && checks_alarmed(r->check_word)) {
		str_puts(&r->found, "; but the step is wrong again");
		r->checked = CHECKED_PERSISTENT;
	}
}
