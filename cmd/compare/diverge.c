/* Do tests differ from their controls by more than replicas do, and where? */
#include "compare/judge_internal.h"

#include <math.h>

/* Fewer rows of a block allow no statement about a single pair, or about the noise. */
enum { LEAST_BLOCK = 4, LEAST_NOISE_BLOCK = 16 };

/* ---- values that are not finite --------------------------------------------------------- */

static bool controls_finite(const struct curves *c, int64_t row)
{
	for (int i = 0; i < c->n_control; i++)
		if (!isfinite(curve_of(c, CONTROL, i)[row]))
			return false;
	return true;
}

bool turns_nonfinite(const struct judging *j, struct verdict_result *r)
{
	const struct curves *c = &j->all;
	for (int64_t row = 0; row < c->n; row++)
		for (int i = 0; i < c->n_test; i++) {
			double v = curve_of(c, TEST, i)[row];
			/* a rule of others: no run that is accepted may end so */
			if (isfinite(v) || !(j->o->rule || controls_finite(c, row)))
				continue;
			r->onset = r->onset_last = c->at[row];
			str_printf(&r->reason, "%s of %s is %s at %s %.0f",
				column_name(j), run_log_brief(j->log[TEST][i]),
				isnan(v) ? "nan" : "infinite", by_name(j), c->at[row]);
			return true;
		}
	return false;
}

/* ---- equal arithmetic --------------------------------------------------------------------- */

bool should_be_identical(const struct judging *j, struct verdict_result *r)
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
			"they differ from %s %.0f (%lld ULP)",
			by_name(j), r->differs_at, (long long)r->differs_ulps);
		return true;
	}
	return false;
}

/* ---- a sequential test over blocks -------------------------------------------------------- */

/*
 * The runs are looked at once in each whole block of rows, as they are while they train; how a block
 * is judged does not depend on the rows after it. Block k has share_of_block(k) of the probability of a
 * false alarm, and the rows after the last whole block, which are judged once when the runs have ended,
 * have SHARE_OF_END of it. The sum of all shares is 1, so the probability that any look raises a
 * false alarm, in a run of any length, is at most `alarm`, however the looks depend on each other
 * (Bonferroni).
 */
static const double SHARE_OF_END = 0.125;

/* The first EQUAL_BLOCKS blocks, which are 98,303 rows, have three quarters of it in equal parts; the
 * others an eighth, in parts that fall as 1 / i^2, of which the sum is pi^2 / 6. */
static double share_of_block(int k)
{
	enum { EQUAL_BLOCKS = 32 };
	const double pi = acos(-1), i = k - EQUAL_BLOCKS + 1;
	return k < EQUAL_BLOCKS ? 0.75 / EQUAL_BLOCKS : 0.125 * 6 / (pi * pi * i * i);
}

double level_of_look(const struct verdict_result *r)
{
	return r->alarm * share_of_block(0);
}

/* A test and the control with its batches, of each unit that has both. */
static bool is_first_of_unit(const struct judging *j, int test)
{
	int unit = j->unit[TEST][test];
	for (int t = 0; t < test; t++)
		if (j->unit[TEST][t] == unit && partner_of(j, t) >= 0)
			return false;
	return unit >= 0 && partner_of(j, test) >= 0;
}

static int count_pairs(const struct judging *j)
{
	int n = 0;
	for (int t = 0; t < j->n_runs[TEST]; t++)
		n += is_first_of_unit(j, t);
	return n;
}

/* Differences that do not count: smaller ones than the margin, if that was given; and of a
 * single pair, of which no replicas say what is usual. */
static double tolerated(const struct judging *j, int64_t from, int64_t to)
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
	bool steps = j->o->by == COL_STEP;
	r->onset = j->finite.at[from];
	r->onset_last = j->finite.at[to - 1];
	if (r->onset == r->onset_last)
		str_printf(reason,
			steps ? "first shown in step %.0f: "
			      : "first shown at %.0f tokens: ",
			r->onset);
	else
		str_printf(reason,
			steps ? "first shown in steps %.0f to %.0f: "
			      : "first shown at %.0f to %.0f tokens: ",
			r->onset, r->onset_last);
}

static void find_means(const struct judging *j, int64_t from, int64_t to, double level,
	struct verdict_result *r, struct str *reason)
{
	if (is_single(j) && to - from < LEAST_BLOCK)
		return;
	struct estimate e = estimate_difference(j, from, to, MEAN);
	double zone = tolerated(j, from, to);
	if (!e.df || !(fabs(e.mean) > zone) ||
		!(student_p((fabs(e.mean) - zone) / e.se, e.df) <= level))
		return;
	r->found_higher |= e.mean > 0;
	r->found_lower |= e.mean < 0;
	if (reason->len) /* only the first is reported */
		return;
	begin_onset(j, from, to, r, reason);
	r->at_onset =
		(struct interval){e.mean, zone + student_quantile(level, e.df) * e.se};
	str_printf(reason, "%.3g %s, and the band is +-%.3g", fabs(e.mean),
		e.mean > 0 ? "higher" : "lower", r->at_onset.half_width);
}

/* Runs that read the same batches share most of their noise. The test of its correlation is Fisher's;
 * first differences of independent noise have correlated neighbours, which costs a third of their
 * number. */
static void compare_noise(const struct judging *j, int test, int64_t from, int64_t to,
	double level, struct verdict_result *r, struct str *reason)
{
	int64_t n = to - from;
	int a = partner_of(j, test), b = j->n_runs[CONTROL] + test;
	double c =
		n < LEAST_NOISE_BLOCK ? (double)NAN : noise_correlation(j, a, b, from, n);
	double z = student_quantile(level, MAX_DF + 1);
	if (share_values(j, a, b, from, n) ||
		!(atanh(c) + z / sqrt((double)(n - 1) / 1.5 - 3) < atanh(SHARED_NOISE)))
		return;
	begin_onset(j, from, to, r, reason);
	str_printf(reason,
		"the noise of %s has a correlation of %.2f only, as if the runs read "
		"different batches",
		column_name(j), c);
}

/* The looks at the mean and at the noise share the level. The noise of evaluations is not the
 * noise of the batches. With a reason, which is the first difference, only means are looked at. */
static void look_at_rows(const struct judging *j, int64_t from, int64_t to, double level,
	struct verdict_result *r, struct str *reason)
{
	bool noise = to - from >= LEAST_NOISE_BLOCK && !is_evaluation(j);
	int n_pairs = noise ? count_pairs(j) : 0;
	find_means(j, from, to, n_pairs ? level / 2 : level, r, reason);
	for (int t = 0; t < j->n_runs[TEST] && n_pairs && !reason->len; t++)
		if (is_first_of_unit(j, t))
			compare_noise(j, t, from, to, level / 2 / n_pairs, r, reason);
}

/* The rows after the last whole block; with that block, if they are less than half of the next. */
static void look_at_end(
	const struct judging *j, struct verdict_result *r, struct str *reason)
{
	int64_t n = j->finite.n, from = block_begin(block_count(n) - 1);
	bool all_judged = block_begin(whole_blocks(n)) == n;
	if (!all_judged)
		look_at_rows(j, from, n, r->alarm * SHARE_OF_END, r, reason);
}

/* Which runs read the same batches is known from their logs, or after some rows; before, runs that
 * grow are not judged, since each block must be judged in one way only. */
static bool design_is_settled(const struct judging *j)
{
	bool settled = j->finite.n >= 2 * LEAST_NOISE_BLOCK;
	const struct properties *all = j->stated;
	for (int i = 1; i < j->n_runs[CONTROL] + j->n_runs[TEST] && !settled; i++)
		if (same_batches(&all[0], &all[i]) < 0)
			return false;
	return true;
}

bool differs(const struct judging *j, struct verdict_result *r, struct str *reason)
{
	int n = whole_blocks(j->finite.n);
	if (j->o->growing && !design_is_settled(j))
		return false;
	for (int k = 0; k < n; k++)
		look_at_rows(j, block_begin(k), block_begin(k + 1),
			r->alarm * share_of_block(k), r, reason);
	if (!j->o->growing)
		look_at_end(j, r, reason);
	return reason->len > 0;
}
