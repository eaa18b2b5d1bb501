/* Verdicts about evaluations, whose digits and noise are not those of the loss. */
#include "tests/support/support.h"
#include "compare/compare.h"

#include <math.h>
#include <stdlib.h>

/* A loss that falls from 5 to 2, with noise and a part of its own. */
struct falling {
	uint64_t seed;
	double own, noise, shift;
	int64_t n;
};

static double loss_at(const struct falling *c, int64_t step)
{
	return 2 + 3 * exp(-(double)step / 60) + c->noise * test_normal(c->seed, step) +
	       c->own * test_normal(c->seed + 77000, 1) + c->shift;
}

/* With COL_LOSS in full, or in so many decimals. */
static struct run_log log_of(const struct falling *c, int decimals)
{
	struct run_log l = {.name = xstrdup("a log")};
	for (int64_t step = 1; step <= c->n; step++) {
		struct row r = {.has = 0};
		char text[NUM_TEXT];
		snprintf(text, sizeof(text), "%.*f", decimals, loss_at(c, step));
		row_set(&r, COL_STEP, (double)step);
		row_set(&r, COL_LOSS, (float)strtod(text, NULL));
		if (decimals < 7)
			row_set(&r, COL_LOSS, strtod(text, NULL));
		run_log_add(&l, &r);
	}
	return l;
}

static void judge_logs(
	struct run_log *logs, int n_control, int column, struct verdict_result *r)
{
	const struct run_log *p[8];
	const struct judge_opts o = {.column = column, .by = COL_STEP};
	for (int i = 0; i <= n_control; i++)
		p[i] = &logs[i];
	judge(p, n_control, p + n_control, 1, &o, r);
	for (int i = 0; i <= n_control; i++)
		run_log_free(&logs[i]);
}

/* Evaluations of two decimals, beside a loss of seven digits. */
TEST(replicas_in_few_digits)
{
	int n_shown = 0;
	for (int i = 0; i < 50; i++) {
		struct run_log logs[5];
		struct verdict_result r;
		for (int k = 0; k < 5; k++) {
			struct falling c = {.noise = 0.003,
				.own = 0.001,
				.n = 160,
				.seed = 100 * (uint64_t)i + k};
			logs[k] = log_of(&c, 2);
			logs[k].digits = 7;
		}
		judge_logs(logs, 4, COL_LOSS, &r);
		n_shown += r.shown;
		verdict_result_release(&r);
	}
	assert_in_range(n_shown, 0, 1);
}

/* Of other seeds; their evaluations are on batches of their own, the same ones, or on one fixed set. */
static struct run_log evaluated(const struct falling *c, double common)
{
	struct run_log l = log_of(c, 9);
	struct falling own = *c;
	own.noise = 0;
	for (int64_t i = 0; i < l.n_rows; i++)
		run_log_set(&l, i, COL_VAL_LOSS,
			(float)(loss_at(&own, i + 1) + common * test_normal(4, i)));
	return l;
}

TEST(evaluations_of_other_seeds)
{
	int n_shown = 0;
	for (int i = 0; i < 100; i++) {
		struct falling c = {.own = 0.02, .noise = 0.06, .n = 1000}, d = c;
		struct verdict_result r;
		c.seed = 2 * (uint64_t)i;
		d.seed = c.seed + 1;
		d.shift = i % 20 == 19 ? 0.4 : 0;
		struct run_log logs[] = {
			evaluated(&c, i % 2 ? 0.02 : 0), evaluated(&d, i % 2 ? 0.02 : 0)};
		judge_logs(logs, 1, COL_VAL_LOSS, &r);
		assert_int_equal(r.design, DESIGN_ALONE);
		if (d.shift > 0)
			assert_int_equal(r.verdict, VERDICT_WORSE);
		else
			n_shown += r.shown;
		verdict_result_release(&r);
	}
	assert_in_range(n_shown, 0, 2);
}
