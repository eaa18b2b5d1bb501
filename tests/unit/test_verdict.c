/* Verdicts: rates of errors on curves that were drawn at random, the rules of other projects, and curves that
 * are none. */
#include "tests/support/support.h"
#include "compare/compare.h"
#include "compare/judge_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- curves ---------------------------------------------------------------------- */

enum { MAX_RUNS = 20 };

/* A loss that falls from 5 to 2, with noise of its batches and a part of its own. */
struct curve {
	uint64_t batches, seed;
	double own;   /* deviation from seed to seed */
	double noise; /* noise of batches */
	double shift; /* from step `from` on */
	int64_t from, n;
	int64_t other_batches; /* from this step on; 0: never */
};

static double loss_at(const struct curve *c, int64_t step)
{
	bool other = c->other_batches && step >= c->other_batches;
	double noise = test_normal(other ? c->batches + 5000 : c->batches, step);
	double loss = 2 + 3 * exp(-(double)step / 60) + c->noise * noise;
	loss += c->own * test_normal(c->seed + 77000, 1);
	loss += 1e-4 * test_normal(c->seed + 99000, step); /* rounding */
	return step >= c->from ? loss + c->shift : loss;
}

/* A row of a later step. */
static void add_row(struct run_log *l, int64_t step, double loss)
{
	struct row r = {.has = 0};
	row_set(&r, COL_STEP, (double)step);
	row_set(&r, COL_LOSS, loss);
	run_log_add(l, &r);
}

static struct run_log log_of(const struct curve *c)
{
	struct run_log l = {.name = xstrdup("a curve")};
	for (int64_t step = 1; step <= c->n; step++)
		add_row(&l, step, (float)loss_at(c, step));
	return l;
}

static const struct judge_opts plain = {.column = COL_LOSS, .by = COL_STEP};

static void judge_logs(struct run_log *logs, int n_control, int n_test,
	const struct judge_opts *o, struct verdict_result *r)
{
	const struct run_log *p[2 * MAX_RUNS];
	for (int i = 0; i < n_control + n_test; i++)
		p[i] = &logs[i];
	judge(p, n_control, p + n_control, n_test, o, r);
	assert_true(r->reason.len && !strchr(r->reason.s, '\n'));
	for (int i = 0; i < n_control + n_test; i++)
		run_log_free(&logs[i]);
}

/* Runs of seeds from `seed` on: controls, and tests that are like `test`; with `paired` the i-th
 * test has the batches of the i-th control. */
static void judge_sets(const struct curve *test, int n_control, int n_test, bool paired,
	uint64_t seed, const struct judge_opts *o, struct verdict_result *r)
{
	struct run_log logs[2 * MAX_RUNS];
	for (int i = 0; i < n_control + n_test; i++) {
		struct curve c = *test;
		bool is_test = i >= n_control;
		c.seed = seed * 100 + (uint64_t)i;
		c.batches = paired && is_test ? c.seed - (uint64_t)n_control : c.seed;
		if (!is_test) {
			c.shift = 0;
			c.other_batches = 0;
		}
		logs[i] = log_of(&c);
	}
	judge_logs(logs, n_control, n_test, o, r);
}

/* v: VERDICT_DIFFERENT counts whatever differences are shown. */
static int count_verdict(const struct curve *test, int n_control, int n_test, bool paired,
	int n_trials, const struct judge_opts *o, enum verdict v, enum design design)
{
	int count = 0;
	for (int i = 0; i < n_trials; i++) {
		struct verdict_result r;
		judge_sets(test, n_control, n_test, paired, (uint64_t)i + 1, o, &r);
		assert_int_equal(r.design, design);
		count += v == VERDICT_DIFFERENT ? r.shown : r.verdict == v;
		verdict_result_release(&r);
	}
	return count;
}

static const struct curve like_control = {.own = 0.01, .noise = 0.05, .n = 160};

/* ---- rates of errors ----------------------------------------------------------------- */

/* At most the stated rate, with three standard deviations of the binomial distribution. */
static void assert_rate(int count, int n, double rate)
{
	assert_true(count <= n * rate + 3 * sqrt(n * rate * (1 - rate)));
}

TEST(false_alarms)
{
	const struct judge_opts o = {.column = COL_LOSS, .by = COL_STEP, .alarm = 0.05};
	enum { N = 300 };
	struct curve near = like_control;
	int n = count_verdict(
		&like_control, 6, 1, false, N, &o, VERDICT_DIFFERENT, DESIGN_REPLICAS);
	assert_rate(n, N, 0.05);
	assert_true(n > 0); /* the level is used, not only kept */
	assert_rate(count_verdict(&like_control, 4, 4, false, N, &o, VERDICT_DIFFERENT,
			    DESIGN_REPLICAS),
		N, 0.05);
	assert_rate(count_verdict(&like_control, 5, 5, true, N, &o, VERDICT_DIFFERENT,
			    DESIGN_PAIRED),
		N, 0.05);
	assert_rate(count_verdict(&like_control, 1, 1, false, N, &o, VERDICT_DIFFERENT,
			    DESIGN_ALONE),
		N, 0.05);
	near.own = 0.002; /* the curves differ by less than 0.5 % */
	assert_rate(count_verdict(&near, 1, 1, true, N, &o, VERDICT_DIFFERENT,
			    DESIGN_SAME_BATCHES),
		N, 0.05);
}

/* Whether any of the looks at a run that grows, and the last one, shows a difference. */
static bool alarm_while_growing(
	struct run_log *logs, int n_control, int n_test, const struct judge_opts *o)
{
	const struct run_log *p[2 * MAX_RUNS];
	const int64_t n = logs[0].n_rows;
	bool alarm = false;
	for (int64_t rows = 1; rows <= n && !alarm; rows++) {
		struct judge_opts now = *o;
		struct verdict_result r;
		if (rows > 16 && rows % 4 && rows < n)
			continue;
		now.is_growing = rows < n;
		for (int i = 0; i < n_control + n_test; i++) {
			logs[i].n_rows = rows;
			p[i] = &logs[i];
		}
		judge(p, n_control, p + n_control, n_test, &now, &r);
		alarm = r.shown;
		verdict_result_release(&r);
	}
	return alarm;
}

static int count_alarms(const struct curve *like, int n_control, int n_test, bool paired,
	int n_trials, const struct judge_opts *o)
{
	int count = 0;
	for (int trial = 0; trial < n_trials; trial++) {
		struct run_log logs[2 * MAX_RUNS];
		for (int i = 0; i < n_control + n_test; i++) {
			struct curve c = *like;
			c.seed = ((uint64_t)trial + 1) * 100 + (uint64_t)i;
			c.batches = paired && i >= n_control
					    ? c.seed - (uint64_t)n_control
					    : c.seed;
			logs[i] = log_of(&c);
		}
		count += alarm_while_growing(logs, n_control, n_test, o);
		for (int i = 0; i < n_control + n_test; i++)
			run_log_free(&logs[i]);
	}
	return count;
}

TEST(false_alarms_while_growing)
{
	const struct judge_opts o = {
		.column = COL_LOSS, .by = COL_STEP, .alarm = 0.05, .common = true};
	enum { N = 200 };
	struct curve like = like_control;
	like.n = 250; /* the last block is not whole */
	like.own = 0; /* so that what one block shows says nothing of the next */
	int n = count_alarms(&like, 4, 4, false, N, &o);
	assert_rate(n, N, 0.05);
	assert_true(n > 0);
	assert_rate(count_alarms(&like, 4, 4, true, N / 2, &o), N / 2, 0.05);
	assert_rate(count_alarms(&like_control, 6, 1, false, N / 2, &o), N / 2, 0.05);
	like.own = 0.002; /* the curves differ by less than 0.5 % */
	assert_rate(count_alarms(&like, 1, 1, true, N / 2, &o), N / 2, 0.05);
}

TEST(detections)
{
	enum { N = 40 };
	struct curve c = like_control;
	c.from = 96;
	c.shift = 0.05; /* five deviations between seeds */
	assert_true(count_verdict(&c, 10, 10, false, N, &plain, VERDICT_WORSE,
			    DESIGN_REPLICAS) >= 38);
	/* the noise of the batches cancels in pairs */
	c.shift = 0.04;
	assert_true(count_verdict(&c, 10, 10, true, N, &plain, VERDICT_WORSE,
			    DESIGN_PAIRED) >= 38);
	c.shift = -0.1; /* beyond 0.5 % of the loss */
	assert_true(count_verdict(&c, 1, 1, true, N, &plain, VERDICT_BETTER,
			    DESIGN_SAME_BATCHES) >= 38);
	c.shift = 2; /* one pair of other batches shows no less */
	assert_true(count_verdict(&c, 1, 1, false, N, &plain, VERDICT_DIVERGED,
			    DESIGN_ALONE) >= 38);
}

TEST(onset_of_a_difference)
{
	struct curve c = like_control;
	struct verdict_result r;
	c.from = 65;
	c.shift = 0.1;
	judge_sets(&c, 8, 8, true, 3, &plain, &r);
	assert_int_equal(r.verdict, VERDICT_WORSE);
	assert_true(r.onset == 64 && r.onset_last == 95); /* rows 63 to 94 */
	assert_near(r.at_onset.value, 0.1 * 31 / 32, 0.02);
	assert_true(r.at_onset.half_width > 0 && r.at_onset.half_width < 0.1);
	assert_near(r.difference.value, 0.1, 0.02);
	verdict_result_release(&r);
}

TEST(equivalence)
{
	enum { N = 200 };
	const struct judge_opts o = {.column = COL_LOSS, .by = COL_STEP, .margin = 0.02};
	struct curve c = like_control;
	assert_true(count_verdict(&c, 8, 8, false, 40, &o, VERDICT_EQUIVALENT,
			    DESIGN_REPLICAS) >= 38);
	assert_true(count_verdict(&c, 8, 8, true, 40, &o, VERDICT_EQUIVALENT,
			    DESIGN_PAIRED) >= 38);
	/* at the edge of the margin it is wrong to say so */
	c.shift = 0.02 * 2.3;
	assert_rate(count_verdict(
			    &c, 8, 8, false, N, &o, VERDICT_EQUIVALENT, DESIGN_REPLICAS),
		N, 0.05);
	/* and two replicas of each settle nothing */
	c = like_control;
	c.own = 0.05;
	struct verdict_result r;
	judge_sets(&c, 2, 2, false, 1, &plain, &r);
	assert_int_equal(r.verdict, VERDICT_UNDECIDED);
	assert_non_null(strstr(r.reason.s, "controls and as many tests"));
	verdict_result_release(&r);
}

/* Rounding that the replicas of one seed show, and a difference that is larger. */
TEST(replicas_of_one_seed)
{
	struct curve c = like_control;
	struct run_log logs[5];
	struct verdict_result r;
	c.own = 0;
	for (int bug = 0; bug < 2; bug++) {
		for (int i = 0; i < 5; i++) {
			c.seed = (uint64_t)i + 1;
			c.shift = i == 4 && bug ? 2e-3 : 0;
			logs[i] = log_of(&c);
		}
		judge_logs(logs, 4, 1, &plain, &r);
		assert_int_equal(r.design, DESIGN_REPLICAS);
		assert_int_equal(r.verdict, bug ? VERDICT_WORSE : VERDICT_EQUIVALENT);
		assert_true(r.correlation > 0.99);
		verdict_result_release(&r);
	}
}

TEST(other_batches)
{
	struct curve c = like_control;
	struct verdict_result r;
	c.n = 400;
	c.own = 0;
	c.other_batches = 256;
	judge_sets(&c, 1, 1, true, 1, &plain, &r);
	assert_int_equal(r.design, DESIGN_SAME_BATCHES);
	assert_int_equal(r.verdict, VERDICT_DIFFERENT);
	assert_true(r.onset == 256);
	assert_non_null(strstr(r.reason.s, "different batches"));
	verdict_result_release(&r);
}

/* A curve as a log has it that prints so many decimals. */
static struct run_log printed(const struct curve *c, int decimals)
{
	struct run_log l = {.name = xstrdup("a log"), .digits = decimals + 1};
	for (int64_t step = 1; step <= c->n; step++) {
		char text[NUM_TEXT];
		snprintf(text, sizeof(text), "%.*f", decimals, loss_at(c, step));
		add_row(&l, step, strtod(text, NULL));
	}
	return l;
}

static enum design design_of(const struct curve *c, int decimals, bool same, int others)
{
	struct curve test = *c;
	struct verdict_result r;
	test.seed = c->seed + 1;
	test.batches = c->batches + !same;
	struct run_log logs[] = {printed(c, decimals), printed(&test, others)};
	judge_logs(logs, 1, 1, &plain, &r);
	verdict_result_release(&r);
	return r.design;
}

/* Fewer digits do not hide common batches, and are no sign of them where the curves have little noise. */
TEST(batches_in_few_digits)
{
	struct curve c = {.noise = 0.05, .n = 160, .batches = 7, .seed = 7};
	for (int i = 0; i < 2; i++) {
		bool same = i > 0;
		enum design d = same ? DESIGN_SAME_BATCHES : DESIGN_ALONE;
		assert_int_equal(design_of(&c, 6, same, 4), d);
		assert_int_equal(design_of(&c, 6, same, 2), d);
		assert_int_equal(design_of(&c, 1, same, 6), d);
	}
	c.noise = 0.0005;
	assert_int_equal(design_of(&c, 2, false, 2), DESIGN_ALONE);
	assert_int_equal(design_of(&c, 6, false, 2), DESIGN_ALONE);
	/* a steep start, in which noise is nothing */
	c = (struct curve){.noise = 0.008, .n = 600, .batches = 7, .seed = 7};
	assert_int_equal(design_of(&c, 6, true, 6), DESIGN_SAME_BATCHES);
	assert_int_equal(design_of(&c, 6, false, 6), DESIGN_ALONE);
}

/* Where noise is larger than the last digit, the errors of rounding average out, and where it is not, they may not. */
TEST(means_of_few_digits)
{
	struct curve c = {.noise = 0.05, .n = 640, .batches = 7, .seed = 7};
	for (int i = 0; i < 2; i++) {
		struct curve test = c;
		struct verdict_result r;
		test.seed = 8;
		struct run_log logs[] = {printed(&c, 2), printed(&test, 2)};
		judge_logs(logs, 1, 1, &plain, &r);
		assert_int_equal(r.verdict, i ? VERDICT_UNDECIDED : VERDICT_EQUIVALENT);
		verdict_result_release(&r);
		c.noise = 0.001;
	}
}

/* Three runs of other seeds are no replicas, and are told what is missing. What is assumed of one run is
 * less of a mean of two. */
TEST(three_seeds)
{
	struct curve c = like_control;
	struct verdict_result one, two, r;
	judge_sets(&c, 1, 1, false, 1, &plain, &one);
	judge_sets(&c, 2, 1, false, 1, &plain, &two);
	assert_true(one.design == DESIGN_ALONE && two.design == DESIGN_ALONE);
	assert_non_null(strstr(one.reason.s, "2 more controls, so that"));
	assert_non_null(strstr(two.reason.s, "1 more control, so that"));
	assert_near(
		two.difference.half_width / one.difference.half_width, sqrt(0.75), 0.1);
	verdict_result_release(&one);
	verdict_result_release(&two);
	/* beyond the margin, and not yet shown to be a difference: so many runs show it */
	c.shift = 0.08;
	c.noise = 0;
	judge_sets(&c, 3, 1, false, 2, &plain, &r);
	assert_int_equal(r.verdict, VERDICT_UNDECIDED);
	assert_non_null(strstr(r.reason.s, "probably more than the margin"));
	assert_non_null(strstr(r.reason.s, "may take 4 controls and as many tests"));
	verdict_result_release(&r);
	judge_sets(&c, 4, 4, false, 2, &plain, &r);
	assert_int_equal(r.verdict, VERDICT_WORSE);
	verdict_result_release(&r);
}

/* ---- verdicts that need no statistics -------------------------------------------------- */

static struct run_log log_from(const char *lines)
{
	struct run_log l = {.name = xstrdup("a log")};
	struct err e;
	for (; *lines; lines += strcspn(lines, "\n") + 1)
		assert_int_equal(run_log_line(&l, lines, strcspn(lines, "\n"), &e), 0);
	return l;
}

static void check_lines(const char *control, const char *test, const struct judge_opts *o,
	enum verdict v, const char *says)
{
	struct run_log logs[] = {log_from(control), log_from(test)};
	struct verdict_result r;
	judge_logs(logs, 1, 1, o, &r);
	if (r.verdict != v || !strstr(r.reason.s, says))
		print_error("%s: %s\n", verdict_names[r.verdict], r.reason.s);
	assert_int_equal(r.verdict, v);
	assert_non_null(strstr(r.reason.s, says));
	verdict_result_release(&r);
}

#define ABC "step=1 loss=3\nstep=2 loss=2\nstep=3 loss=1\n"

TEST(few_values)
{
	static const struct judge_opts wide = {
		.column = COL_LOSS, .by = COL_STEP, .atol = 0.1};
	static const struct judge_opts common = {
		.column = COL_LOSS, .by = COL_STEP, .common = true};
	check_lines(ABC, ABC, &plain, VERDICT_IDENTICAL,
		"3 values of loss equal bit for bit");
	check_lines(ABC, "step=1 loss=3\n", &plain, VERDICT_DIFFERENT, "too few");
	check_lines(ABC, "step=1 loss=3\n", &common, VERDICT_IDENTICAL, "1 value ");
	check_lines(ABC, "step=1 loss=3\nstep=2 loss=2.05\nstep=3 loss=1\n", &wide,
		VERDICT_WITHIN, "0.1 + 0 |control|");
	check_lines(ABC, "step=1 loss=3\nstep=2 loss=2.2\nstep=3 loss=1\n", &wide,
		VERDICT_DIFFERENT, "too few");
	check_lines(ABC, "step=1 loss=3\nstep=2 loss=nan\nstep=3 loss=1\n", &wide,
		VERDICT_DIVERGED, "loss of a log is nan at step 2");
	check_lines(ABC, "step=4 loss=3\n", &plain, VERDICT_NOTHING,
		"no loss at the same step");
	check_lines(ABC, "", &plain, VERDICT_NOTHING, "no loss");
	check_lines(ABC, "step=1 loss=3\nstep=2 loss=2.0000002\nstep=3 loss=1\n", &plain,
		VERDICT_DIFFERENT, "too few");
}

TEST(not_comparable)
{
	check_lines("# arith batch = 8\n# arith warmup = 5\n" ABC,
		"# arith batch = 16\n# arith warmup = 6\nstep=1 loss=3\nstep=2 loss=2.5\n",
		&plain, VERDICT_NOT_COMPARABLE, "batch: 8, 16; warmup: 5, 6");
	check_lines("step=1 tokens=10 loss=3\n", "step=1 tokens=20 loss=4\n", &plain,
		VERDICT_NOT_COMPARABLE, "tokens after step 1: 10, 20");
	/* the padding of the vocabulary is no other model */
#define SHAPE "# arith dim = 8\n# arith layers = 2\n"
	check_lines(SHAPE "# arith parameters = 3840\n" ABC,
		SHAPE "# arith parameters = 3856\nstep=1 loss=4\n", &plain,
		VERDICT_DIFFERENT, "too few");
	check_lines("# arith parameters = 3840\n" ABC,
		SHAPE "# arith parameters = 3856\nstep=1 loss=4\n", &plain,
		VERDICT_NOT_COMPARABLE, "parameters: 3840, 3856");
	/* what one of them does not state is no difference, nor is the learning rate */
	check_lines("# arith batch = 8\n# arith lr = 1\n" ABC,
		"# arith lr = 2\nstep=1 loss=4\n", &plain, VERDICT_DIFFERENT, "too few");
	check_lines("# arith batch = 8\n" ABC, "# arith batch = 16\n" ABC, &plain,
		VERDICT_IDENTICAL, "");
	check_lines("# meta arithmetic = 0x1\n" ABC,
		"# meta arithmetic = 0x1\nstep=1 loss=3\nstep=2 loss=2.0000002\nstep=3 loss=1\n",
		&plain, VERDICT_DIFFERENT,
		"the bits must be equal; they differ from step 2 on (1 ULP)");
	check_lines("# meta arithmetic = 0x1\n# arith numerics = fast\n" ABC,
		"# meta arithmetic = 0x1\nstep=1 loss=3\nstep=2 loss=2.0000002\n", &plain,
		VERDICT_DIFFERENT, "too few");
}

static void check_curves(const struct curve *control, const struct curve *test,
	enum verdict v, const char *says)
{
	struct run_log logs[] = {log_of(control), log_of(test)};
	struct verdict_result r;
	judge_logs(logs, 1, 1, &plain, &r);
	assert_int_equal(r.verdict, v);
	assert_non_null(strstr(r.reason.s, says));
	verdict_result_release(&r);
}

static void judge_prefixes(const struct curve *control, int n_control,
	const int64_t *control_rows, const struct curve *test, int64_t test_rows,
	const struct judge_opts *o, struct verdict_result *r)
{
	struct run_log logs[2 * MAX_RUNS];
	for (int i = 0; i <= n_control; i++) {
		struct curve c = i < n_control ? *control : *test;
		c.seed = (uint64_t)i + 1;
		c.n = i < n_control ? control_rows[i] : test_rows;
		logs[i] = log_of(&c);
	}
	judge_logs(logs, n_control, 1, o, r);
}

/* A control that ends before the others hides no rows of the tests. */
TEST(controls_left_out)
{
	static const int64_t rows[] = {160, 160, 160, 160, 40};
	struct curve c = like_control, bug = like_control;
	struct verdict_result r;
	c.own = bug.own = 0;
	bug.shift = 0.01;
	bug.from = 80;
	judge_prefixes(&c, 5, rows, &bug, 160, &plain, &r);
	assert_int_equal(r.verdict, VERDICT_WORSE);
	assert_true(r.n_rows == 160 && r.n_left_out == 1 && r.n_lone == 0);
	assert_non_null(strstr(r.reason.s, "ends at step 40, so it is not used"));
	verdict_result_release(&r);
	/* unless only common rows are asked for */
	const struct judge_opts common = {
		.column = COL_LOSS, .by = COL_STEP, .common = true};
	judge_prefixes(&c, 5, rows, &bug, 160, &common, &r);
	assert_int_equal(r.verdict, VERDICT_EQUIVALENT);
	assert_true(r.n_rows == 40 && r.n_left_out == 0);
	verdict_result_release(&r);
	/* and neither does one with a value that is not finite */
	struct run_log logs[6];
	for (int i = 0; i < 6; i++) {
		struct curve x = i < 5 ? c : bug;
		x.seed = (uint64_t)i + 1;
		logs[i] = log_of(&x);
	}
	for (int64_t row = 60; row < 160; row++)
		run_log_set(&logs[2], row, COL_LOSS, (double)NAN);
	judge_logs(logs, 5, 1, &plain, &r);
	assert_int_equal(r.verdict, VERDICT_WORSE);
	assert_true(r.n_rows == 160 && r.n_left_out == 1);
	assert_non_null(strstr(r.reason.s, "not finite, so it is not used"));
	verdict_result_release(&r);
}

/* A test that stopped early was not shown to be equivalent. */
TEST(rows_of_some)
{
	static const int64_t rows[] = {160, 160, 160, 160};
	const struct judge_opts common = {
		.column = COL_LOSS, .by = COL_STEP, .common = true};
	struct curve c = like_control;
	struct verdict_result r;
	c.own = 0;
	judge_prefixes(&c, 4, rows, &c, 120, &plain, &r);
	assert_int_equal(r.verdict, VERDICT_DIFFERENT);
	assert_true(r.n_lone == 40 && r.n_left_out == 0);
	assert_non_null(strstr(r.reason.s, "40 rows are in some runs only"));
	verdict_result_release(&r);
	judge_prefixes(&c, 4, rows, &c, 120, &common, &r);
	assert_int_equal(r.verdict, VERDICT_EQUIVALENT);
	verdict_result_release(&r);
}

/* A column that is looked at need not change. */
TEST(constant_columns)
{
	const struct judge_opts lr = {.column = COL_LR, .by = COL_STEP};
	struct str lines = {0};
	for (int step = 1; step <= 30; step++)
		str_printf(&lines, "step=%d loss=%g lr=0.001\n", step, 3 - 0.01 * step);
	check_lines(lines.s, lines.s, &lr, VERDICT_IDENTICAL, "30 values of lr equal");
	str_free(&lines);
}

/* Runs of which nothing can be learnt. */
TEST(vacuous)
{
	struct curve flat = like_control, learns = like_control;
	struct str constant = {0}, nan = {0}, falls = {0};
	for (int step = 1; step <= 30; step++) {
		str_printf(&constant, "step=%d loss=4.85\n", step);
		str_printf(&nan, "step=%d loss=nan\n", step);
	}
	check_lines(constant.s, constant.s, &plain, VERDICT_VACUOUS, "is constant: 4.85");
	check_lines(nan.s, nan.s, &plain, VERDICT_VACUOUS, "no finite loss");
	check_lines(nan.s, constant.s, &plain, VERDICT_VACUOUS, "no finite loss");
	/* a control that learns, and a test that does not */
	for (int step = 1; step <= 30; step++)
		str_printf(&falls, "step=%d loss=%g\n", step, 3 - 0.05 * step);
	check_lines(falls.s, nan.s, &plain, VERDICT_DIVERGED, "no finite loss");
	check_lines(falls.s, constant.s, &plain, VERDICT_WORSE, "is constant: 4.85");
	check_lines(constant.s, falls.s, &plain, VERDICT_VACUOUS, "is constant: 4.85");
	str_free(&falls);
	str_free(&constant);
	str_free(&nan);
	/* noise, and no fall: what is left of a curve after 20,000 steps; equal bits are equal */
	for (int same = 0; same < 2; same++) {
		struct run_log logs[2] = {{.name = xstrdup("a")}, {.name = xstrdup("b")}};
		struct verdict_result r;
		for (int i = 0; i < 2; i++) {
			flat.seed = same ? 0 : (uint64_t)i;
			for (int64_t step = 1; step <= 100; step++)
				add_row(&logs[i], step, loss_at(&flat, step + 20000));
		}
		judge_logs(logs, 1, 1, &plain, &r);
		assert_int_equal(r.verdict, same ? VERDICT_IDENTICAL : VERDICT_VACUOUS);
		assert_false(r.learned);
		assert_non_null(strstr(r.reason.s, "within its noise"));
		verdict_result_release(&r);
	}
	check_curves(&learns, &learns, VERDICT_IDENTICAL, "160 values");
}

TEST(spikes)
{
	struct curve c = like_control;
	struct verdict_result r;
	c.n = 300;
	struct run_log logs[] = {log_of(&c), log_of(&c)};
	run_log_set(&logs[1], 249, COL_LOSS, 3.5);
	run_log_set(&logs[1], 99, COL_LOSS, 9); /* before there are 128 values */
	judge_logs(logs, 1, 1, &plain, &r);
	assert_true(r.n_spikes == 1 && r.n_control_spikes == 0);
	assert_true(r.spike[0].at == 250 && r.spike[0].value == 3.5);
	verdict_result_release(&r);
}

/* ---- rules of others ----------------------------------------------------------------- */

static int rule_of(const char *name)
{
	for (int i = 0; i < n_rules; i++)
		if (!strcmp(rules[i].name, name))
			return i;
	fail_msg("no rule %s", name);
	return -1;
}

/* n losses of 4, of which the test has others in `n_wrong` of the last steps. */
static bool rule_accepts(
	const char *name, int n, double control, double test, int n_wrong)
{
	struct run_log logs[2] = {{.name = xstrdup("a")}, {.name = xstrdup("b")}};
	const struct judge_opts o = {
		.column = COL_LOSS, .by = COL_STEP, .rule = rule_of(name)};
	struct verdict_result r;
	for (int i = 0; i < 2; i++)
		for (int64_t step = 1; step <= n; step++) {
			/* a fall, so that something was learnt */
			double loss = control + 3.0 * (double)(n - step) / n;
			if (i && step > n - n_wrong)
				loss += test - control;
			add_row(&logs[i], step, loss);
		}
	judge_logs(logs, 1, 1, &o, &r);
	bool accepted = r.verdict == VERDICT_WITHIN;
	assert_true(accepted || r.verdict == VERDICT_DIFFERENT);
	verdict_result_release(&r);
	return accepted;
}

TEST(rules_for_pairs)
{
	assert_true(rule_accepts("torchtitan", 100, 4, 4, 0));
	assert_false(rule_accepts("torchtitan", 100, 4, 4.000001, 1));
	/* five decimals, of each fifth step */
	assert_true(rule_accepts("megatron", 100, 4, 4.000001, 100));
	assert_false(rule_accepts("megatron", 100, 4, 4.0001, 1));
	assert_true(rule_accepts("megatron", 99, 4, 5, 4));
	assert_true(rule_accepts("megatron-approximate", 100, 4, 4.1, 100));
	assert_true(rule_accepts("megatron-approximate", 100, 4, 5, 5));   /* one value */
	assert_false(rule_accepts("megatron-approximate", 100, 4, 5, 10)); /* two of 21 */
}

/* Runs that a rule lets pass, as its source does, though they end in NaN. */
TEST(no_rule_accepts_nan)
{
	for (int k = 0; k < 2 * n_rules; k++) {
		struct run_log logs[2] = {{.name = xstrdup("a")}, {.name = xstrdup("b")}};
		const struct judge_opts o = {COL_LOSS, COL_STEP, .rule = k / 2};
		struct verdict_result r;
		for (int64_t step = 1; step <= 102; step++)
			for (int i = 0; i < 2; i++) /* k odd: of both */
				add_row(&logs[i], step,
					step == 102 && (i || k & 1)
						? NAN
						: 4 - (double)step / 99);
		judge_logs(logs, 1, 1, &o, &r);
		assert_true(r.verdict > VERDICT_EQUIVALENT || k == 1);
		if (k > 1 && r.verdict == VERDICT_DIVERGED)
			assert_non_null(
				strstr(r.reason.s, "is nan at step 102; the rule"));
		verdict_result_release(&r);
	}
}

/* ---- anything ---------------------------------------------------------------------- */

static double any_value(uint64_t seed, int64_t i)
{
	static const double odd[] = {
		NAN, INFINITY, -INFINITY, 0, -0.0, 1e308, -1e308, 5e-324, 1e-300, 3.4e38};
	double u = test_uniform(seed, i);
	if (u < 0.3)
		return odd[(int)(u / 0.3 * ARRAY_LEN(odd))];
	return test_normal(seed, i) * pow(10, 20 * u - 10);
}

/* Curves of NaN, infinity and large numbers, of any length: a verdict, whatever it is. */
TEST(anything)
{
	struct run_log logs[6];
	for (uint64_t seed = 1; seed <= 400; seed++) {
		int n_control = 1 + (int)(seed % 3), n_test = 1 + (int)(seed / 3 % 3);
		for (int i = 0; i < n_control + n_test; i++) {
			int64_t n =
				(int64_t)(test_uniform(seed, i) * (seed % 7 ? 12 : 300));
			logs[i] = (struct run_log){
				.name = xstrdup("x"), .digits = (int)(seed % 4)};
			for (int64_t row = 0; row < n; row++)
				add_row(&logs[i], 3 * row + i % 2 * (row & 1),
					any_value(seed + 1000 * (uint64_t)i, row));
		}
		const struct judge_opts o = {.column = COL_LOSS,
			.by = COL_STEP,
			.rule = (int)(seed % (uint64_t)n_rules),
			.rtol = seed % 5 ? 0 : 1,
			.common = seed & 1};
		struct verdict_result r;
		judge_logs(logs, n_control, n_test, &o, &r);
		assert_true(r.verdict <= VERDICT_NOTHING);
		verdict_result_release(&r);
	}
}
