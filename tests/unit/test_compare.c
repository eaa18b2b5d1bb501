/* compare: how rows are matched, what differs and by how much, verdicts, the table. */
#include "tests/support/support.h"
#include "compare/curve.h"
#include "compare/outcome.h"

#include <math.h>
#include <string.h>

static const struct compare_opts exact = {.by = COL_STEP};

/* A log from lines as pt-train prints them. */
static struct run_log log_of(const char *lines)
{
	struct run_log l = {.name = xstrdup("a log")};
	struct err e;
	for (; *lines; lines += strcspn(lines, "\n") + 1)
		assert_int_equal(run_log_line(&l, lines, strcspn(lines, "\n"), &e), 0);
	return l;
}

static struct run_diff diff_of(
	const char *control, const char *test, const struct compare_opts *o)
{
	struct run_log a = log_of(control), b = log_of(test);
	struct run_diff d;
	compare_runs(&a, &b, o, &d);
	run_log_free(&a);
	run_log_free(&b);
	return d;
}

static enum verdict verdict_of(
	const char *control, const char *test, const struct compare_opts *o)
{
	struct run_diff d = diff_of(control, test, o);
	run_diff_release(&d);
	return d.verdict;
}

#define ABC "step=1 tokens=10 loss=3\nstep=2 tokens=20 loss=2\nstep=3 tokens=30 loss=1\n"

TEST(same_bits)
{
	struct run_diff d = diff_of(ABC, ABC, &exact);
	const struct curve_diff *c = &d.curve[COL_LOSS];
	assert_int_equal(d.verdict, VERDICT_IDENTICAL);
	assert_true(c->n_common == 3 && c->n_differ == 0 && c->n_beyond == 0);
	assert_int_equal(c->verdict, VERDICT_IDENTICAL);
	assert_int_equal(d.curve[COL_VAL_LOSS].verdict, VERDICT_NOTHING);
	assert_false(d.arithmetic_differs);
	run_diff_release(&d);
}

/* Times may differ, tokens and learning rates are no results: only curves count. */
TEST(only_curves_count)
{
	assert_int_equal(verdict_of("step=1 loss=1 dt=1 lr=1 mem=5 mfu=0.1\n",
				 "step=1 loss=1 dt=2 lr=2 mem=6 tps=3\n", &exact),
		VERDICT_IDENTICAL);
	assert_int_equal(
		verdict_of("step=1 dt=1\n", "step=1 dt=1\n", &exact), VERDICT_NOTHING);
	static const int curves[] = {
		COL_LOSS, COL_GRAD_NORM, COL_TRAIN_LOSS, COL_VAL_LOSS};
	for (size_t i = 0; i < ARRAY_LEN(curves); i++) {
		char a[64], b[64];
		snprintf(a, sizeof(a), "step=1 %s=1\n", columns[curves[i]].name);
		snprintf(b, sizeof(b), "step=1 %s=1.0000001\n", columns[curves[i]].name);
		assert_int_equal(verdict_of(a, a, &exact), VERDICT_IDENTICAL);
		struct run_diff d = diff_of(a, b, &exact);
		assert_int_equal(d.verdict, VERDICT_DIFFERENT);
		assert_int_equal(d.curve[curves[i]].n_differ, 1);
		run_diff_release(&d);
	}
}

TEST(where_and_how_much)
{
	struct run_diff d = diff_of(
		"step=5 loss=4\nstep=6 loss=4\nstep=7 loss=0.001\nstep=8 loss=4\nstep=9 "
		"loss=2\n",
		"step=5 loss=4\nstep=6 loss=4.0000005\nstep=7 loss=0.0011\nstep=8 "
		"loss=3\n"
		"step=9 loss=2\n",
		&exact);
	const struct curve_diff *c = &d.curve[COL_LOSS];
	assert_int_equal(d.verdict, VERDICT_DIFFERENT);
	assert_true(c->n_common == 5 && c->n_differ == 3 && c->n_beyond == 3);
	assert_true(c->first.at == 6 && c->first.control == 4);
	assert_int_equal(c->first.ulp, 1);
	assert_true(c->first.abs == 0x1p-21);
	assert_true(c->largest.at == 8 && c->largest.abs == 1 && c->largest.test == 3);
	/* half of the 2^23 floats of [2, 4) */
	assert_int_equal(c->largest.ulp, 1 << 22);
	assert_true(c->max_ulp.at == 8);
	run_diff_release(&d);
}

TEST(units_of_the_last_place)
{
	const float most = 3.4028235e38f, least = 1e-45f;
	assert_int_equal(float_ulps(1, 1), 0);
	assert_int_equal(float_ulps(0.0f, -0.0f), 0);
	assert_int_equal(float_ulps(1, nextafterf(1, 2)), 1);
	assert_int_equal(float_ulps(1, nextafterf(1, 0)), 1);
	assert_int_equal(float_ulps(-least, least), 2);
	assert_int_equal(float_ulps(0, least), 1);
	assert_int_equal(float_ulps(most, INFINITY), 1);
	assert_int_equal(float_ulps(1, 2), 1 << 23);
	assert_int_equal(float_ulps(-1, 1), 2 * (int64_t)0x3f800000);
	assert_int_equal(float_ulps(-INFINITY, INFINITY), 2 * (int64_t)0x7f800000);
	assert_true(float_ulps(NAN, 1) == INT64_MAX && float_ulps(1, NAN) == INT64_MAX);
	for (int64_t i = 0; i < 1000; i++) {
		float x = (float)test_normal(1, i), y = x;
		for (int64_t k = 0; k < i % 7; k++)
			y = nextafterf(y, -INFINITY);
		assert_int_equal(float_ulps(x, y), i % 7);
		assert_int_equal(float_ulps(y, x), i % 7);
	}
}

/* ---- numbers that are none ------------------------------------------------------- */

TEST(not_a_number)
{
	static const struct compare_opts wide = {.by = COL_STEP, .rtol = 1, .atol = 1e30};
	/* the same in both is the same */
	assert_int_equal(verdict_of("step=1 loss=nan\n", "step=1 loss=nan\n", &exact),
		VERDICT_IDENTICAL);
	/* no tolerance makes it a number */
	assert_int_equal(verdict_of("step=1 loss=nan\n", "step=1 loss=1\n", &wide),
		VERDICT_DIFFERENT);
	assert_int_equal(verdict_of("step=1 loss=1\n", "step=1 loss=nan\n", &wide),
		VERDICT_DIFFERENT);
	/* it is the largest difference, before and after others */
	struct run_diff d = diff_of("step=1 loss=1\nstep=2 loss=1\nstep=3 loss=1\n",
		"step=1 loss=9\nstep=2 loss=nan\nstep=3 loss=5\n", &exact);
	const struct curve_diff *c = &d.curve[COL_LOSS];
	assert_true(c->first.at == 1 && c->largest.at == 2 && c->max_ulp.at == 2);
	assert_true(isnan(c->largest.abs) && c->largest.ulp == INT64_MAX);
	struct str text = {0};
	run_diff_print(&d, &exact, &text);
	assert_non_null(strstr(text.s, "largest at step 2: 1, nan"));
	/* from which nothing has a distance */
	assert_null(strstr(text.s, "1, nan (|"));
	str_free(&text);
	run_diff_release(&d);
}

TEST(infinite)
{
	static const struct compare_opts wide = {.by = COL_STEP, .rtol = 0.5, .atol = 1};
	assert_int_equal(verdict_of("step=1 loss=inf\n", "step=1 loss=inf\n", &exact),
		VERDICT_IDENTICAL);
	assert_int_equal(verdict_of("step=1 loss=inf\n", "step=1 loss=1\n", &wide),
		VERDICT_DIFFERENT);
	assert_int_equal(verdict_of("step=1 loss=1\n", "step=1 loss=inf\n", &wide),
		VERDICT_DIFFERENT);
	assert_int_equal(verdict_of("step=1 loss=inf\n", "step=1 loss=-inf\n", &wide),
		VERDICT_DIFFERENT);
}

/* ---- tolerance ------------------------------------------------------------------- */

TEST(tolerance)
{
	static const struct {
		double rtol, atol;
		const char *test; /* the control is 4 */
		enum verdict verdict;
	} some[] = {
		{0, 0, "4", VERDICT_IDENTICAL},
		{0, 0, "4.0000005", VERDICT_DIFFERENT},
		{0, 0.5, "4.5", VERDICT_WITHIN},
		{0, 0.5, "3.5", VERDICT_WITHIN},
		{0, 0.5, "4.500001", VERDICT_DIFFERENT},
		{0.25, 0, "5", VERDICT_WITHIN},
		{0.25, 0, "5.000001", VERDICT_DIFFERENT},
		{0.25, 0.5, "5.5", VERDICT_WITHIN}, /* they add up */
		{0.25, 0.5, "2.5", VERDICT_WITHIN},
		{0.25, 0.5, "2.4", VERDICT_DIFFERENT},
		{0.25, 0, "2.999",
			VERDICT_DIFFERENT}, /* of the control, not of the test */
		{0.25, 0, "-4", VERDICT_DIFFERENT},
	};
	for (size_t i = 0; i < ARRAY_LEN(some); i++) {
		char line[64];
		struct compare_opts o = {COL_STEP, some[i].rtol, some[i].atol, false};
		snprintf(line, sizeof(line), "step=1 loss=%s\n", some[i].test);
		assert_int_equal(
			verdict_of("step=1 loss=4\n", line, &o), some[i].verdict);
	}
	const struct compare_opts tenth = {.by = COL_STEP, .rtol = 0.1};
	assert_int_equal(verdict_of("step=1 loss=-4\n", "step=1 loss=-4.1\n", &tenth),
		VERDICT_WITHIN);
	/* one beyond it is enough, whatever the others do */
	const struct compare_opts o = {.by = COL_STEP, .atol = 0.5};
	struct run_diff d =
		diff_of(ABC, "step=1 loss=3.1\nstep=2 loss=2\nstep=3 loss=2\n", &o);
	assert_true(d.curve[COL_LOSS].n_differ == 2 && d.curve[COL_LOSS].n_beyond == 1);
	assert_int_equal(d.verdict, VERDICT_DIFFERENT);
	run_diff_release(&d);
	/* zeros of two signs are equal values, but not equal bits */
	assert_int_equal(verdict_of("step=1 loss=0\n", "step=1 loss=-0\n", &exact),
		VERDICT_WITHIN);
}

/* ---- alignment ------------------------------------------------------------------- */

TEST(by_tokens)
{
	/* the test took batches of twice the size */
	static const char test[] = "step=1 tokens=20 loss=2\nstep=2 tokens=40 loss=7\n";
	const struct compare_opts common = {.by = COL_TOKENS, .common = true};
	assert_int_equal(verdict_of(ABC, test, &exact), VERDICT_DIFFERENT);
	struct run_diff d = diff_of(ABC, test, &common);
	const struct curve_diff *c = &d.curve[COL_LOSS];
	assert_int_equal(d.verdict, VERDICT_IDENTICAL);
	assert_true(c->n_common == 1 && c->only_control == 2 && c->only_test == 1);
	assert_true(c->first_only == 10);
	run_diff_release(&d);
	/* rows without tokens cannot be matched by them */
	assert_int_equal(verdict_of("step=1 loss=1\n", "step=1 loss=1\n", &common),
		VERDICT_NOTHING);
}

TEST(missing_rows)
{
	static const struct compare_opts common = {.by = COL_STEP, .common = true};
	static const char less[] = "step=1 loss=3\nstep=3 loss=1\n";
	static const char other[] = "step=7 loss=3\n";
	struct run_diff d = diff_of(ABC, less, &exact);
	const struct curve_diff *c = &d.curve[COL_LOSS];
	assert_int_equal(d.verdict, VERDICT_DIFFERENT);
	assert_true(c->n_common == 2 && c->n_differ == 0);
	assert_true(c->only_control == 1 && c->only_test == 0 && c->first_only == 2);
	run_diff_release(&d);
	d = diff_of(less, ABC "step=4 loss=0\n", &exact);
	assert_int_equal(d.verdict, VERDICT_DIFFERENT);
	assert_true(
		d.curve[COL_LOSS].only_test == 2 && d.curve[COL_LOSS].only_control == 0);
	run_diff_release(&d);
	assert_int_equal(verdict_of(ABC, less, &common), VERDICT_IDENTICAL);
	assert_int_equal(verdict_of(less, ABC, &common), VERDICT_IDENTICAL);
	assert_int_equal(verdict_of(ABC, "step=3 loss=9\n", &common), VERDICT_DIFFERENT);
	assert_int_equal(verdict_of(ABC, other, &exact), VERDICT_NOTHING);
	assert_int_equal(verdict_of(ABC, other, &common), VERDICT_NOTHING);
	assert_int_equal(verdict_of(ABC, "", &exact), VERDICT_NOTHING);
	assert_int_equal(verdict_of("", "", &exact), VERDICT_NOTHING);
}

/* A curve that one run has not measured is not compared. */
TEST(missing_curves)
{
	static const struct compare_opts common = {.by = COL_STEP, .common = true};
	static const char more[] =
		"step=1 loss=3 val_loss=4\nstep=2 loss=2\nstep=3 loss=1\n";
	assert_int_equal(verdict_of(ABC, more, &exact), VERDICT_IDENTICAL);
	assert_int_equal(verdict_of(more, ABC, &exact), VERDICT_IDENTICAL);
	assert_int_equal(verdict_of(ABC, more, &common), VERDICT_IDENTICAL);
	assert_int_equal(verdict_of(more, more, &exact), VERDICT_IDENTICAL);
	/* the worst curve is the verdict, be it the first or the last */
	assert_int_equal(verdict_of(more, "step=1 loss=2 val_loss=4\n", &common),
		VERDICT_DIFFERENT);
	assert_int_equal(
		verdict_of(more,
			"step=1 loss=3 val_loss=5\nstep=2 loss=2\nstep=3 loss=1\n",
			&common),
		VERDICT_DIFFERENT);
}

/* ---- arithmetic ------------------------------------------------------------------ */

static bool says(const struct run_diff *d, const char *words)
{
	struct str out = {0};
	run_diff_print(d, &exact, &out);
	bool said = strstr(out.s, words);
	str_free(&out);
	return said;
}

TEST(other_arithmetic)
{
	struct run_diff d =
		diff_of("# meta arithmetic = 0x1\n# arith lr = 0.1\n# arith seed = "
			"1\n# arith old = x\n" ABC,
			"# meta arithmetic = 0x2\n# arith seed = 1\n# arith lr = 0.2\n# "
			"arith new = "
			"y\n" ABC,
			&exact);
	assert_int_equal(
		d.verdict, VERDICT_IDENTICAL); /* the bits are equal all the same */
	assert_true(d.arithmetic_differs);
	assert_string_equal(d.arithmetic.s, "lr: 0.1, 0.2\nold: x, -\nnew: -, y\n");
	assert_true(says(&d, "different arithmetic"));
	run_diff_release(&d);
	/* of another version */
	d = diff_of("# meta arithmetic = 0x1\n# arith old = \"x\\n\"\n" ABC,
		"# meta arithmetic = 0x2\n# arith new = y\n" ABC, &exact);
	assert_true(d.arithmetic_differs && says(&d, "different arithmetic"));
	run_diff_release(&d);
	d = diff_of("# meta arithmetic = 0x1\n# arith old = x\n" ABC,
		"# meta arithmetic = 0x2\n# arith new = y\n" ABC, &exact);
	assert_true(d.arithmetic_differs && says(&d, "as it is from another version"));
	assert_false(says(&d, "different arithmetic"));
	run_diff_release(&d);
	d = diff_of(
		"# meta arithmetic = 0x1\n" ABC, "# meta arithmetic = 0x1\n" ABC, &exact);
	assert_false(d.arithmetic_differs);
	run_diff_release(&d);
	d = diff_of(ABC, "# meta arithmetic = 0x1\n" ABC, &exact); /* not known */
	assert_false(d.arithmetic_differs);
	run_diff_release(&d);
}

/* Of arithmetic that is no config, or longer than any, nothing is said; and nothing is kept:
 * `make fuzz` found a leak. */
TEST(damaged_arithmetic)
{
	struct str lines = {0};
	struct run_diff d = diff_of("# meta arithmetic = 0x1\n# arith lr = 0.1\n" ABC,
		"# meta arithmetic = 0x2\n# arith lr = 0.2\n# arith LR 0.2\n" ABC,
		&exact);
	assert_true(d.arithmetic_differs);
	assert_int_equal(d.arithmetic.len, 0);
	run_diff_release(&d);
	str_puts(&lines, "# meta arithmetic = 0x1\n" ABC);
	for (int i = 0; i < 50000; i++)
		str_puts(&lines, "# arith a = 1\n");
	d = diff_of("# meta arithmetic = 0x2\n# arith a = 1\n" ABC, lines.s, &exact);
	assert_true(d.arithmetic_differs);
	assert_int_equal(d.arithmetic.len, 0);
	run_diff_release(&d);
	str_free(&lines);
}

/* ---- words ----------------------------------------------------------------------- */

TEST(what_people_read)
{
	static const struct compare_opts wide = {.by = COL_STEP, .atol = 0.1};
	static const struct {
		const char *control, *test;
		const struct compare_opts *o;
		const char *says;
	} some[] = {
		{ABC, ABC, &exact,
			"  loss       identical, 3 values\nverdict: identical bit for "
			"bit\n"},
		{"step=1 loss=4\n", "step=1 loss=3\n", &exact,
			"  loss       1 of 1 values differ; first at step 1: 4, 3 (test - "
			"control: -1, 4194304 ULP); largest at step 1: 4, 3 (test - "
			"control: -1, 4194304 ULP)\nverdict: different: "},
		{ABC, "step=1 loss=3\nstep=2 loss=2.05\nstep=3 loss=1\n", &wide,
			"verdict: the same within the tolerance\n"},
		{ABC, "step=1 loss=3\n", &exact,
			"  loss       identical, 1 value; 2 only in the control, from "
			"step 2\n"
			"verdict: different: "},
		{ABC, "step=4 loss=3\n", &exact,
			"  loss       no value in common; 3 only in the control; 1 only "
			"in the "
			"test, from step 1\nverdict: they have no value in common: "},
	};
	for (size_t i = 0; i < ARRAY_LEN(some); i++) {
		struct str text = {0};
		struct run_log logs[] = {log_of(some[i].control), log_of(some[i].test)};
		const struct runs runs = {logs, 2, 1};
		const struct outcome_opts o = {.exact = *some[i].o, .column = "loss"};
		struct outcomes all;
		outcomes_init(&runs, &o, &all);
		outcome_print(&all.v[0], &o, &text);
		if (!strstr(text.s, some[i].says))
			fail_msg("%s", text.s);
		str_free(&text);
		outcomes_release(&all);
		run_log_free(&logs[0]);
		run_log_free(&logs[1]);
	}
}

TEST(side_by_side)
{
	struct str out = {0};
	struct run_log logs[] = {
		log_of("step=1 tokens=5 loss=3\nstep=2 tokens=10\nstep=3 "
		       "tokens=15 loss=0.1\n"),
		log_of("step=1 tokens=5\nstep=2 tokens=10 loss=2\nstep=3 tokens=15 "
		       "loss=-0\n"),
		log_of("")};
	curve_print_table(logs, 3, "loss", AXIS_STEPS, &out);
	assert_string_equal(out.s, "# step\ta log\ta log\ta log\n"
				   "1\t3\t-\t-\n2\t-\t2\t-\n3\t0.1\t-0\t-\n");
	str_clear(&out);
	curve_print_table(logs, 2, "loss", AXIS_TOKENS, &out);
	assert_string_equal(out.s, "# tokens\ta log\ta log\n"
				   "5\t3\t-\n10\t-\t2\n15\t0.1\t-0\n");
	str_free(&out);
	for (size_t i = 0; i < ARRAY_LEN(logs); i++)
		run_log_free(&logs[i]);
}

/* More digits than a float has are not lost; other texts of one float are equal. */
TEST(digits_of_doubles)
{
	assert_true(same_as_logged(0.1, 0.1) && same_as_logged(0.1, (double)0.1f));
	assert_true(same_as_logged(2.34567899, (double)2.34567899f));
	assert_true(same_as_logged(0.1 + 1e-15, (double)0.1f));
	assert_false(same_as_logged(0.12345678901, 0.12345678902));
	assert_false(same_as_logged(0.0, -0.0));
	assert_false(same_as_logged(1, (double)1.0000001f));
	assert_true(same_as_logged(NAN, NAN));
}
