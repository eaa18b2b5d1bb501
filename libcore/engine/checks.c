/* Checks of a step by integers (checks.h). */
#include "engine/checks.h"

/* Returns the end of the rows of a trainer. */
static const struct check_row *end_of(const struct trainer *t)
{
	return t->checks ? t->checks + N_STEP_CHECKS : NULL;
}

void checks_prepare(struct trainer *t)
{
	for (const struct check_row *x = t->checks; x != end_of(t); x++)
		if (x->open)
			x->open(t);
}

void checks_release(struct trainer *t)
{
	for (const struct check_row *x = t->checks; x != end_of(t); x++)
		if (x->close)
			x->close(t);
}

bool checks_plan_step(struct trainer *t)
{
	bool eager = false;
	for (const struct check_row *x = t->checks; x != end_of(t); x++)
		eager |= x->plan_step && x->plan_step(t);
	return eager;
}

void checks_begin_step(struct trainer *t)
{
	for (const struct check_row *x = t->checks; x != end_of(t); x++)
		if (x->begin_step)
			x->begin_step(t);
}

void checks_end_step(struct trainer *t)
{
	for (const struct check_row *x = t->checks; x != end_of(t); x++)
		if (x->end_step)
			x->end_step(t);
}

void checks_after_step(struct trainer *t)
{
	for (const struct check_row *x = t->checks; x != end_of(t); x++)
		if (x->after_step)
			x->after_step(t);
}

bool checks_read_again(const struct trainer *t, const uint64_t word[N_STEP_CHECKS])
{
	bool again = false;
	for (const struct check_row *x = t->checks; x != end_of(t); x++)
		again |= x->reads_again && word[x - t->checks] % GRID_PRIME;
	return again;
}

bool checks_are_on(const struct trainer *t)
{
	for (const struct check_row *x = t->checks; x != end_of(t); x++)
		if (x->is_on(t))
			return true;
	return false;
}

void checks_enqueue(struct trainer *t)
{
	enum { FLOATS = sizeof(uint64_t) / sizeof(float) };
	for (int i = 0; i < N_STEP_CHECKS && checks_are_on(t); i++) {
		const struct check_row *x = &t->checks[i];
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
			t->checks[i].alarm(t);
}

void checks_end_again(
	struct trainer *t, const uint64_t word[N_STEP_CHECKS], struct step_result *r)
{
	str_printf(&r->found, "step %lld: ", (long long)t->step + 1);
	for (int i = 0, n = 0; i < N_STEP_CHECKS; i++) {
		const struct check_row *x = &t->checks[i];
		bool again = is_wrong(r->check_word[i]);
		if (!is_wrong(word[i]) && !again)
			continue;
		str_add(&r->found, "; ", n++ ? 2 : 0);
		if (again && x->alarm_again)
			x->alarm_again(t);
		if (!is_wrong(word[i])) {
			str_puts(&r->found,
				"computed again, the step fails another check");
			r->checked = CHECKED_PERSISTENT;
			if (!x->alarm_again)
				continue;
			str_puts(&r->found, ": ");
		}
		enum checked verdict = x->verdict(t, &r->found);
		if (verdict > r->checked)
			r->checked = verdict;
	}
	if (r->checked == CHECKED_SPORADIC && checks_alarmed(r->check_word)) {
		str_puts(&r->found, "; but the step is wrong again");
		r->checked = CHECKED_PERSISTENT;
	}
}
