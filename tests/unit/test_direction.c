/* The direction of verdicts: better, worse, or diverged; columns whose sense is known; rows that
 * are missing at the end. */
#include "tests/support/support.h"
#include "compare/judge_internal.h"
#include "compare/outcome.h"

#include <math.h>
#include <string.h>

enum { ROWS = 320 };

/* A value that settles from `from` at `to`, and then moves. */
struct curve {
	double from, to;
	double shift;	/* at the end; it grows from step 80 to 160 */
	double rise;	/* from step 128 on, */
	int64_t length; /* for so many steps; 0: to the end */
};

static double value_at(const struct curve *c, int64_t step)
{
	double x = c->to + (c->from - c->to) * exp(-(double)step / 40);
	x += c->shift * fmin(1, fmax(0, (double)(step - 80) / 80));
	bool risen = step >= 128 && (!c->length || step < 128 + c->length);
	return risen ? x + c->rise : x;
}

/* Batches and seed of a run; all of its noise is of the batches. */
static struct run_log log_of(
	const struct curve *c, int column, uint64_t batches, int64_t n_rows)
{
	struct run_log l = {.name = xstrdup("a log")};
	for (int64_t step = 1; step <= n_rows; step++) {
		struct row r = {.has = 0};
		row_set(&r, COL_STEP, (double)step);
		row_set(&r, column,
			(float)(value_at(c, step) + 0.03 * test_normal(batches, step) +
				1e-4 * test_normal(
					       batches + 7000 + (uint64_t)(c->shift != 0),
					       step)));
		run_log_add(&l, &r);
	}
	return l;
}

static void judge_pair(const struct curve *control, const struct curve *test, int column,
	int sense, struct verdict_result *r)
{
	const struct judge_opts o = {.column = column, .by = COL_STEP, .sense = sense};
	struct run_log logs[] = {
		log_of(control, column, 1, ROWS), log_of(test, column, 1, ROWS)};
	const struct run_log *a = &logs[0], *b = &logs[1];
	judge(&a, 1, &b, 1, &o, r);
	run_log_free(&logs[0]);
	run_log_free(&logs[1]);
}

static void check_pair(const struct curve *test, int column, int sense, enum verdict v,
	int direction, const char *says)
{
	const struct curve loss = {.from = 5, .to = 2}, reward = {.from = 0, .to = 2};
	struct verdict_result r;
	judge_pair(column == COL_REWARD ? &reward : &loss, test, column, sense, &r);
	if (r.verdict != v || r.direction != direction || !strstr(r.reason.s, says))
		fail_msg("%s: %s", verdict_names[r.verdict], r.reason.s);
	assert_true(r.shown == (v >= VERDICT_BETTER && v != VERDICT_UNDECIDED));
	verdict_result_release(&r);
}

TEST(better_and_worse)
{
	const struct curve same = {.from = 5, .to = 2}, lower = {5, 2, -0.1, 0, 0},
			   higher = {5, 2, 0.1, 0, 0};
	const struct curve more = {0, 2, 0.1, 0, 0}, less = {0, 2, -0.1, 0, 0};
	check_pair(&same, COL_LOSS, 0, VERDICT_IDENTICAL, 0, "");
	check_pair(&lower, COL_LOSS, 0, VERDICT_BETTER, -1, "at the end loss is 0.1 +-");
	check_pair(&lower, COL_LOSS, 0, VERDICT_BETTER, -1, " lower (test 1.9");
	check_pair(&higher, COL_LOSS, 0, VERDICT_WORSE, 1, " higher (test 2.1");
	check_pair(&more, COL_REWARD, 0, VERDICT_BETTER, 1, "reward is 0.1");
	check_pair(&less, COL_REWARD, 0, VERDICT_WORSE, -1, "reward is 0.1");
	/* of a column whose sense is not known, and as the user sets it */
	check_pair(&lower, COL_GRAD_NORM, 0, VERDICT_DIFFERENT, -1,
		"specify which is better by --column grad_norm:min or grad_norm:max");
	check_pair(&lower, COL_GRAD_NORM, -1, VERDICT_BETTER, -1, "");
	check_pair(&lower, COL_LOSS, 1, VERDICT_WORSE, -1, "");
}

/* The end decides: a difference that is gone by then is neither better nor worse. */
TEST(difference_that_is_gone)
{
	const struct curve c = {5, 2, 0, 0.5, 63}, late = {5, 2, -0.1, 0.3, 12};
	check_pair(&c, COL_LOSS, 0, VERDICT_DIFFERENT, 0, "; first shown in steps ");
	check_pair(&late, COL_LOSS, 0, VERDICT_BETTER, -1, "");
}

/* The controls gain 1.8 from the first eighth to the best one. */
TEST(curve_that_does_not_come_back)
{
	struct curve c = {5, 2, 0, 0.7, 0};
	check_pair(&c, COL_LOSS, 0, VERDICT_DIVERGED, 1, "loss of a log was 2.2");
	c.rise = 0.2; /* a small part of what was learnt */
	check_pair(&c, COL_LOSS, 0, VERDICT_WORSE, 1, "at the end loss is 0.2");
	c = (struct curve){5, 3.5, 0, 0, 0}; /* far off, but it never was better */
	check_pair(&c, COL_LOSS, 0, VERDICT_WORSE, 1, "at the end loss is 1.5");
	c = (struct curve){5, 2, 0.05, 3, 30}; /* a spike that comes back */
	check_pair(&c, COL_LOSS, 0, VERDICT_WORSE, 1, "at the end loss is 0.05");
	c = (struct curve){0, 2, 0, -0.7, 0}; /* a reward that collapses */
	check_pair(&c, COL_REWARD, 0, VERDICT_DIVERGED, -1, "reward of a log was 1.8");
	c = (struct curve){5, 9, 0, 0, 0}; /* it never learns */
	check_pair(&c, COL_LOSS, 0, VERDICT_DIVERGED, 1, "and ends at 8.99");
}

/* Both end where they have lost as much: the test is worse, and that is all. */
TEST(controls_that_rise_too)
{
	const struct curve control = {5, 2, 0, 1, 0}, test = {5, 2, 0.2, 1, 0};
	struct verdict_result r;
	judge_pair(&control, &test, COL_LOSS, 0, &r);
	if (r.verdict != VERDICT_WORSE)
		fail_msg("%s: %s", verdict_names[r.verdict], r.reason.s);
	verdict_result_release(&r);
}

/* ---- not worse ----------------------------------------------------------------------- */

/* Sets of other seeds, with a deviation between them; the tests are worse by so much. */
static enum verdict judge_sets(uint64_t seed, double worse, int n)
{
	struct run_log logs[16];
	const struct run_log *p[16];
	const struct judge_opts o = {
		.column = COL_LOSS, .by = COL_STEP, .margin = 0.02, .one_sided = true};
	struct verdict_result r;
	for (int i = 0; i < 2 * n; i++) {
		struct curve c = {.from = 5, .to = 2};
		uint64_t run = 100 * seed + (uint64_t)i;
		c.to += 0.02 * test_normal(run, 0) + (i < n ? 0 : worse);
		logs[i] = log_of(&c, COL_LOSS, run, 96);
		p[i] = &logs[i];
	}
	judge(p, n, p + n, n, &o, &r);
	for (int i = 0; i < 2 * n; i++)
		run_log_free(&logs[i]);
	verdict_result_release(&r);
	return r.verdict;
}

/* At the edge of the margin it is said with a probability of at most 1 - confidence; and far on
 * the good side always. */
TEST(not_worse)
{
	enum { N = 200 };
	int n_edge = 0, n_better = 0, n_between = 0;
	for (uint64_t i = 1; i <= N; i++) {
		n_edge += judge_sets(i, 0.02 * 2.3, 4) <= VERDICT_NOT_WORSE;
		n_better += judge_sets(i, -0.1, 4) <= VERDICT_NOT_WORSE;
		n_between += judge_sets(i, -0.03, 4) == VERDICT_NOT_WORSE;
	}
	assert_true(n_edge <= N * 0.05 + 3 * sqrt(N * 0.05 * 0.95));
	assert_true(n_better >= N * 0.98);
	assert_true(n_between > 0); /* neither equivalent nor better was shown */
}

/* ---- names ----------------------------------------------------------------------------- */

TEST(senses_of_names)
{
	static const char *const lower[] = {"loss", "val_loss", "train_loss", "lm loss",
		"loss/train", "train/loss", "lm loss value", "aux_loss", "val_bpb", "ppl",
		"eval/perplexity", "eval_nll", "dt", "WER"};
	static const char *const higher[] = {"accuracy", "train_acc", "eval/acc",
		"reward", "rewards/mean", "mfu", "tps", "tokens/s", "tokens_per_second",
		"eval_bleu", "eval_f1", "F1", "Accuracy", "throughput"};
	static const char *const neither[] = {"grad_norm", "lr", "loss_scale", "step",
		"reward_std", "entropy", "glossary", "accent", "", "mem", "loss_weight"};
	for (size_t i = 0; i < ARRAY_LEN(lower); i++)
		assert_int_equal(column_sense(lower[i]), -1);
	for (size_t i = 0; i < ARRAY_LEN(higher); i++)
		assert_int_equal(column_sense(higher[i]), 1);
	for (size_t i = 0; i < ARRAY_LEN(neither); i++)
		assert_int_equal(column_sense(neither[i]), 0);
}

/* ---- two columns ------------------------------------------------------------------------- */

/* A loss and a val_loss of the test, which are so much higher than the control's. */
static void judge_columns(double loss, double val_loss, struct outcomes *all)
{
	struct run_log logs[2];
	for (int i = 0; i < 2; i++) {
		struct curve c = {5, 2, i ? loss : 0, 0, 0},
			     v = {5, 2, i ? val_loss : 0, 0, 0};
		struct run_log other = log_of(&v, COL_VAL_LOSS, 2, ROWS);
		logs[i] = log_of(&c, COL_LOSS, 1, ROWS);
		for (int64_t row = 3; row < ROWS; row += 4)
			run_log_set(&logs[i], row, COL_VAL_LOSS,
				run_log_value(&other, row, COL_VAL_LOSS));
		run_log_free(&other);
	}
	const struct runs runs = {logs, 2, 1};
	const struct outcome_opts o = {
		.exact = {.by = COL_STEP}, .column = "loss", .validation = true};
	outcomes_init(&runs, &o, all);
	run_log_free(&logs[0]);
	run_log_free(&logs[1]);
}

TEST(columns_that_disagree)
{
	static const struct {
		double loss, val_loss;
		enum verdict v;
		const char *says;
	} some[] = {
		{-0.1, 0.1, VERDICT_DIFFERENT, "loss is better and val_loss worse: "},
		{0.1, -0.1, VERDICT_DIFFERENT, "loss is worse and val_loss better: "},
		{-0.1, -0.1, VERDICT_BETTER, "; val_loss: better"},
		{0.1, 1e-5, VERDICT_WORSE, "; val_loss: equivalent"},
		{1e-5, 0.1, VERDICT_WORSE, "; loss: equivalent"},
		{1e-5, -0.1, VERDICT_BETTER, "; loss: equivalent"},
	};
	for (size_t i = 0; i < ARRAY_LEN(some); i++) {
		struct outcomes all;
		judge_columns(some[i].loss, some[i].val_loss, &all);
		if (all.worst != some[i].v || !strstr(all.v[0].reason.s, some[i].says))
			fail_msg("%s: %s", verdict_names[all.worst], all.v[0].reason.s);
		outcomes_release(&all);
	}
}

/* ---- rows that are missing at the end ---------------------------------------------------- */

static enum verdict judge_short(
	int64_t control_rows, int64_t test_rows, bool whole, const char *says)
{
	const struct curve c = {.from = 5, .to = 2}, d = {5, 2, 1e-5, 0, 0};
	const struct judge_opts o = {
		.column = COL_LOSS, .by = COL_STEP, .strict_end = whole};
	struct run_log logs[] = {log_of(&c, COL_LOSS, 1, control_rows),
		log_of(&d, COL_LOSS, 1, test_rows)};
	const struct run_log *a = &logs[0], *b = &logs[1];
	struct verdict_result r;
	judge(&a, 1, &b, 1, &o, &r);
	if (!strstr(r.reason.s, says))
		fail_msg("%s: %s", verdict_names[r.verdict], r.reason.s);
	run_log_free(&logs[0]);
	run_log_free(&logs[1]);
	verdict_result_release(&r);
	return r.verdict;
}

/* Few rows that are missing at the end do not decide. */
TEST(runs_that_end_early)
{
	assert_int_equal(
		judge_short(ROWS, ROWS - 8, false, "; the test ends 8 steps earlier"),
		VERDICT_EQUIVALENT);
	assert_int_equal(
		judge_short(ROWS - 1, ROWS, false, "; the control ends 1 step earlier"),
		VERDICT_EQUIVALENT);
	assert_int_equal(
		judge_short(ROWS, ROWS - 8, true, "8 rows are in some runs only"),
		VERDICT_DIFFERENT);
	assert_int_equal(
		judge_short(ROWS, ROWS - 80, false, "80 rows are in some runs only"),
		VERDICT_DIFFERENT);
}
