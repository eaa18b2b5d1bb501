/* Detects whether tests differ from their controls by more than replicas do, and where. */
#include "compare/judge_internal.h"

#include <math.h>

/* The minimum number of rows to judge the mean of a single pair, and to judge the noise. */
enum { MIN_BLOCK = 4, MIN_NOISE_BLOCK = 16 };

static bool are_controls_finite(const struct curves *c, int64_t row)
{
	for (int i = 0; i < c->n_control; i++)
		if (!isfinite(curve_of(c, CONTROL, i)[row]))
			return false;
	return true;
}

bool detect_nonfinite(const struct judging *j, struct verdict_result *r)
{
	const struct curves *c = &j->all;
	for (int64_t row = 0; row < c->n; row++)
		for (int i = 0; i < c->n_test; i++) {
			double v = curve_of(c, TEST, i)[row];
			/* with a rule: a run with such a value is never accepted */
			if (isfinite(v) || !(j->o->rule || are_controls_finite(c, row)))
				continue;
			r->onset = r->onset_last = c->at[row];
			str_printf(&r->reason, "%s of %s is %s at %s %.0f",
				column_name(j), run_log_brief(j->log[TEST][i]),
				isnan(v) ? "nan" : "infinite", by_name(j), c->at[row]);
			return true;
		}
	return false;
}

bool detect_broken_identity(const struct judging *j, struct verdict_result *r)
{
	if (!r->n_differ || j->o->statistics_only)
		return false;
	for (int t = 0; t < j->n_runs[TEST]; t++) {
		int64_t n;
		int c = nearest_control(j, t, &n);
		if (!n || !same_arithmetic(j->log[CONTROL][c], j->log[TEST][t]))
			continue;
		r->onset = r->onset_last = r->differs_at;
		str_printf(&r->reason,
			"the logs state the same arithmetic, so the bits must be equal; "
			"they differ from %s %.0f on (%lld ULP)",
			by_name(j), r->differs_at, (long long)r->differs_ulps);
		return true;
	}
	return false;
}

/* ---- a sequential test over blocks -------------------------------------------------------- */

/* The runs are judged once per whole block of rows, also while they train; the result of a block
 * does not depend on the rows after it. Block k has share_of_block(k) of the probability of a
 * false alarm. The rows after the last whole block are judged once when the runs have ended, with
 * SHARE_OF_END of it. All shares sum to 1, so the probability that any look raises a false alarm,
 * in a run of any length, is at most `alarm`, even if looks depend on each other (Bonferroni). */
static const double SHARE_OF_END = 0.125;

/* Returns the share of block k. The first EQUAL_BLOCKS blocks (98,303 rows) share three quarters
 * equally; all further blocks share an eighth, in parts that fall as 1 / i^2 (sum: pi^2 / 6). */
static double share_of_block(int k)
{
	enum { EQUAL_BLOCKS = 32 };
	const double pi = acos(-1), i = k - EQUAL_BLOCKS + 1;
	return k < EQUAL_BLOCKS ? 0.75 / EQUAL_BLOCKS : 0.125 * 6 / (pi * pi * i * i);
}

double block_alarm(const struct verdict_result *r)
{
	return r->alarm * share_of_block(0);
}

/* Returns true for the first test of its unit that has a control with the same batches. */
static bool is_first_of_unit(const struct judging *j, int test)
{
	int unit = j->unit[TEST][test];
	for (int t = 0; t < test; t++)
		if (j->unit[TEST][t] == unit && find_partner(j, t) >= 0)
			return false;
	return unit >= 0 && find_partner(j, test) >= 0;
}

static int count_pairs(const struct judging *j)
{
	int n = 0;
	for (int t = 0; t < j->n_runs[TEST]; t++)
		n += is_first_of_unit(j, t);
	return n;
}

/* Returns the difference that does not count in rows [from, to): the margin, if given; else the
 * default margin for a single pair, which has no replicas to show what is usual. */
static double tolerated_difference(const struct judging *j, int64_t from, int64_t to)
{
	double margin = j->o->margin;
	if (!(margin > 0))
		margin = is_single(j) ? DEFAULT_MARGIN : 0;
	return fraction_of_loss(j, margin, from, to);
}

/* Sets the onset, and appends "first shown in steps 64 to 95: ". */
static void begin_onset(const struct judging *j, int64_t from, int64_t to,
	struct verdict_result *r, struct str *reason)
{
	bool by_steps = j->o->by == COL_STEP;
	r->onset = j->finite.at[from];
	r->onset_last = j->finite.at[to - 1];
	if (r->onset == r->onset_last)
		str_printf(reason,
			by_steps ? "first shown in step %.0f: "
				 : "first shown at %.0f tokens: ",
			r->onset);
	else
		str_printf(reason,
			by_steps ? "first shown in steps %.0f to %.0f: "
				 : "first shown at %.0f to %.0f tokens: ",
			r->onset, r->onset_last);
}

/* Tests the difference of the means in rows [from, to) at a level of significance. If they
 * differ, records the direction in *r, and describes the first difference in *reason. */
static void test_means(const struct judging *j, int64_t from, int64_t to, double level,
	struct verdict_result *r, struct str *reason)
{
	if (is_single(j) && to - from < MIN_BLOCK)
		return;
	struct estimate e = estimate_difference(j, from, to, MEAN);
	double zone = tolerated_difference(j, from, to);
	if (!e.df || !(fabs(e.mean) > zone) ||
		!(student_p((fabs(e.mean) - zone) / e.se, e.df) <= level))
		return;
	r->found_higher |= e.mean > 0;
	r->found_lower |= e.mean < 0;
	if (reason->len) /* only the first difference is reported */
		return;
	begin_onset(j, from, to, r, reason);
	r->at_onset =
		(struct interval){e.mean, zone + student_quantile(level, e.df) * e.se};
	str_printf(reason, "%.3g %s, and the band is +-%.3g", fabs(e.mean),
		e.mean > 0 ? "higher" : "lower", r->at_onset.half_width);
}

/* Tests the correlation of the noise by Fisher's test: runs that read the same batches share most
 * of it. In first differences of independent noise, neighbors are correlated, which costs a third
 * of their number. */
static void test_noise(const struct judging *j, int test, int64_t from, int64_t to,
	double level, struct verdict_result *r, struct str *reason)
{
	int64_t n = to - from;
	int a = find_partner(j, test), b = j->n_runs[CONTROL] + test;
	double c =
		n < MIN_NOISE_BLOCK ? (double)NAN : noise_correlation(j, a, b, from, n);
	double z = student_quantile(level, MAX_DF + 1);
	if (share_values(j, a, b, from, n) ||
		!(atanh(c) + z / sqrt((double)(n - 1) / 1.5 - 3) < atanh(SHARED_NOISE)))
		return;
	begin_onset(j, from, to, r, reason);
	str_printf(reason,
		"the noise of %s has a correlation of only %.2f, as if the runs read "
		"different batches",
		column_name(j), c);
}

/* Tests the means and the noise of rows [from, to), which share the level. Evaluations do not show
 * the noise of the batches. After a first difference, only means are tested. */
static void judge_rows(const struct judging *j, int64_t from, int64_t to, double level,
	struct verdict_result *r, struct str *reason)
{
	bool has_noise = to - from >= MIN_NOISE_BLOCK && !is_evaluation(j);
	int n_pairs = has_noise ? count_pairs(j) : 0;
	test_means(j, from, to, n_pairs ? level / 2 : level, r, reason);
	for (int t = 0; t < j->n_runs[TEST] && n_pairs && !reason->len; t++)
		if (is_first_of_unit(j, t))
			test_noise(j, t, from, to, level / 2 / n_pairs, r, reason);
}

/* Tests the rows after the last whole block; together with it, if they are under half a block. */
static void judge_last_rows(
	const struct judging *j, struct verdict_result *r, struct str *reason)
{
	int64_t n = j->finite.n, from = block_begin(block_count(n) - 1);
	bool are_all_judged = block_begin(whole_blocks(n)) == n;
	if (!are_all_judged)
		judge_rows(j, from, n, r->alarm * SHARE_OF_END, r, reason);
}

/* Returns true once it is known, from the logs or after some rows, which runs read the same
 * batches. Growing runs are not judged before, since each block may be judged in one way only. */
static bool is_design_settled(const struct judging *j)
{
	bool is_settled = j->finite.n >= 2 * MIN_NOISE_BLOCK;
	const struct properties *stated = j->stated;
	for (int i = 1; i < j->n_runs[CONTROL] + j->n_runs[TEST] && !is_settled; i++)
		if (same_batches(&stated[0], &stated[i]) < 0)
			return false;
	return true;
}

bool detect_difference(
	const struct judging *j, struct verdict_result *r, struct str *reason)
{
	int n = whole_blocks(j->finite.n);
	if (j->o->is_growing && !is_design_settled(j))
		return false;
	for (int k = 0; k < n; k++)
		judge_rows(j, block_begin(k), block_begin(k + 1),
			r->alarm * share_of_block(k), r, reason);
	if (!j->o->is_growing)
		judge_last_rows(j, r, reason);
	return reason->len > 0;
}
