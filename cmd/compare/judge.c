/* The verdict on a set of tests, and its reason. */
#include "compare/judge_internal.h"

#include <math.h>

const char *const verdict_names[] = {"identical", "within", "equivalent", "better",
	"not-worse", "undecided", "different", "worse", "diverged", "vacuous",
	"not-comparable", "nothing", NULL};
const char *const design_names[] = {
	"none", "paired", "replicas", "same-batches", "alone", NULL};

static const double DEFAULT_ALARM = 0.005, DEFAULT_CONFIDENCE = 0.95;

/* The minimum number of rows to detect whether a loss falls. */
enum { MIN_ROWS_TO_LEARN = 16 };

int nearest_control(const struct judging *j, int test, int64_t *n_differ)
{
	int best = 0;
	*n_differ = INT64_MAX;
	for (int i = 0; i < j->n_runs[CONTROL] && *n_differ; i++) {
		const double *a = curve_of(&j->all, CONTROL, i);
		const double *b = curve_of(&j->all, TEST, test);
		int64_t n = 0;
		for (int64_t row = 0; row < j->all.n; row++)
			n += !same_as_logged(a[row], b[row]);
		if (n < *n_differ) {
			*n_differ = n;
			best = i;
		}
	}
	return best;
}

/* Sets r->differs_at to the first row where a test differs from its nearest control, and
 * r->n_differ to the number of such values. */
static void record_first_difference(const struct judging *j, struct verdict_result *r)
{
	r->differs_at = NAN;
	for (int t = 0; t < j->n_runs[TEST]; t++) {
		int64_t n;
		int c = nearest_control(j, t, &n);
		r->n_differ += n;
		for (int64_t row = 0; row < j->all.n && n; row++) {
			double a = curve_of(&j->all, CONTROL, c)[row];
			double b = curve_of(&j->all, TEST, t)[row];
			if (same_as_logged(a, b))
				continue;
			if (!(r->differs_at <= j->all.at[row])) {
				r->differs_at = j->all.at[row];
				r->differs_ulps = float_ulps((float)a, (float)b);
			}
			break;
		}
	}
}

/* Returns true if rows that only some runs have count as a difference. */
static bool has_lone_rows(const struct judging *j, const struct verdict_result *r)
{
	return r->n_lone > r->n_ending && !j->o->common;
}

/* Returns true if all values are identical, and then appends the reason. */
static bool explain_if_identical(const struct judging *j, struct verdict_result *r)
{
	if (r->n_differ || has_lone_rows(j, r))
		return false;
	str_printf(&r->reason, "%lld value%s of %s equal ", (long long)j->all.n,
		plural(j->all.n), column_name(j));
	if (j->log[CONTROL][0]->digits)
		str_printf(&r->reason, "in the %d digits logged",
			j->log[CONTROL][0]->digits);
	else
		str_puts(&r->reason, "bit for bit");
	if (!r->learned)
		str_printf(&r->reason, "; nothing was learned: %s", r->note.s);
	return true;
}

/* Returns true if a test is within --atol and --rtol of a control in all rows. */
static bool test_is_within(const struct judging *j, int test, int control)
{
	const double *a = curve_of(&j->all, CONTROL, control);
	const double *b = curve_of(&j->all, TEST, test);
	for (int64_t row = 0; row < j->all.n; row++)
		if (!same_as_logged(a[row], b[row]) &&
			!(fabs(a[row] - b[row]) <=
				j->o->atol + j->o->rtol * fabs(a[row])))
			return false;
	return true;
}

/* Returns true if each test is within the tolerance of a control, and then appends the reason. */
static bool explain_if_within(const struct judging *j, struct verdict_result *r)
{
	if (!(j->o->rtol > 0 || j->o->atol > 0) || has_lone_rows(j, r))
		return false;
	for (int t = 0; t < j->n_runs[TEST]; t++) {
		bool has_match = false;
		for (int c = 0; c < j->n_runs[CONTROL] && !has_match; c++)
			has_match = test_is_within(j, t, c);
		if (!has_match)
			return false;
	}
	str_printf(&r->reason,
		"each of %lld values of %s differs by at most %g + %g |control|",
		(long long)j->all.n, column_name(j), j->o->atol, j->o->rtol);
	return true;
}

/* Returns true if the mean fell by more than noise explains, from the first twentieth to the last
 * quarter of the values; *from, *to: these means. */
static bool did_fall(const double *x, int64_t n, double *from, double *to)
{
	int64_t head = max64(1, n / 20), tail = max64(1, n / 4);
	double noise = step_noise(x, n);
	*from = mean_of(x, head);
	*to = mean_of(x + n - tail, tail);
	return *from - *to > 3 * noise * sqrt(1.0 / (double)head + 1.0 / (double)tail);
}

static bool is_constant(const double *x, int64_t n)
{
	for (int64_t i = 1; i < n; i++)
		if (!same_as_logged(x[i], x[0]))
			return false;
	return true;
}

static bool is_never_finite(const double *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		if (isfinite(x[i]))
			return false;
	return true;
}

/* Returns true for columns that training lowers; other columns may be constant. */
static bool is_loss(int column)
{
	return column == COL_LOSS || column == COL_TRAIN_LOSS || column == COL_VAL_LOSS ||
	       column == COL_VAL_BPB;
}

/* Returns true if a run of the set has no finite value, and then appends its name. */
static bool find_never_finite(const struct judging *j, enum set s, struct str *why)
{
	for (int i = 0; i < j->n_runs[s]; i++) {
		if (!is_never_finite(curve_of(&j->all, s, i), j->all.n))
			continue;
		str_printf(why, "%s has no finite %s", run_log_brief(j->log[s][i]),
			column_name(j));
		return true;
	}
	return false;
}

/* Returns true if a run of the set has a constant loss, and then appends its name. */
static bool find_constant(const struct judging *j, enum set s, struct str *why)
{
	for (int i = 0; i < j->n_runs[s] && is_loss(j->o->column); i++) {
		const double *x = curve_of(&j->all, s, i);
		if (j->all.n < MIN_ROWS || !is_constant(x, j->all.n))
			continue;
		str_printf(why, "%s of %s is constant: %g", column_name(j),
			run_log_brief(j->log[s][i]), x[0]);
		return true;
	}
	return false;
}

static int64_t copy_finite(const double *x, int64_t n, double *to)
{
	int64_t count = 0;
	for (int64_t i = 0; i < n; i++)
		if (isfinite(x[i]))
			to[count++] = x[i];
	return count;
}

/* Returns true if the loss of each control fell; otherwise appends the first that did not. */
static bool controls_learned(const struct judging *j, struct str *why)
{
	scoped_ptr double *x = xcalloc((size_t)j->all.n + 1, sizeof(*x));
	bool ok = true;
	for (int i = 0; i < j->n_runs[CONTROL] && ok && is_loss(j->o->column); i++) {
		double from = 0, to = 0;
		int64_t n = copy_finite(curve_of(&j->all, CONTROL, i), j->all.n, x);
		ok = n < MIN_ROWS_TO_LEARN || did_fall(x, n, &from, &to);
		if (!ok)
			str_printf(why,
				"%s of %s went from %.6g to %.6g, a change within its noise",
				column_name(j), run_log_brief(j->log[CONTROL][i]), from,
				to);
	}
	return ok;
}

/* ---- the verdict ----------------------------------------------------------------------- */

/* Judges a difference that was shown. found: where it was first shown, in words. */
static enum verdict judge_shown_difference(
	const struct judging *j, struct verdict_result *r, const struct str *found)
{
	enum verdict v = judge_direction(j, r);
	explain_end(j, r);
	explain_margin(r);
	str_printf(&r->reason, "; %s", found->s);
	if (r->direction && !r->sense)
		str_printf(&r->reason,
			"; specify which is better by --column %s:min or %s:max",
			column_name(j), column_name(j));
	return v;
}

/* Judges runs without a shown difference. is_unjudged: a test has rows that no statistics cover. */
static enum verdict judge_without_difference(
	const struct judging *j, struct verdict_result *r, bool is_unjudged)
{
	bool is_equal = is_equivalent(r);
	if (!is_equal && !is_unjudged && j->o->one_sided && is_not_worse(r)) {
		explain_end(j, r);
		str_printf(&r->reason, ", not worse by more than the margin of %.3g",
			r->margin);
		return VERDICT_NOT_WORSE;
	}
	if (!is_equal && !is_unjudged) {
		explain_undecided(j, r);
		return VERDICT_UNDECIDED;
	}
	explain_end(j, r);
	explain_margin(r);
	return is_unjudged ? VERDICT_DIFFERENT : VERDICT_EQUIVALENT;
}

/* Judges by statistics: detects a difference, or else tests for equivalence. */
static enum verdict judge_statistically(const struct judging *j, struct verdict_result *r)
{
	scoped_str constant = {0}, found = {0};
	r->shown = detect_broken_identity(j, r);
	if (r->shown)
		return VERDICT_DIFFERENT;
	if (j->finite.n < (is_single(j) ? MIN_ROWS : MIN_ROWS_OF_REPLICAS)) {
		str_printf(&r->reason, "%lld value%s of %s: too few for statistics",
			(long long)j->finite.n, plural(j->finite.n), column_name(j));
		return VERDICT_DIFFERENT;
	}
	bool is_unjudged = find_constant(j, TEST, &constant) || r->n_nonfinite ||
			   has_lone_rows(j, r);
	estimate_end(j, r);
	r->shown = detect_difference(j, r, &found);
	enum verdict v = r->shown ? judge_shown_difference(j, r, &found)
				  : judge_without_difference(j, r, is_unjudged);
	if (constant.len)
		str_printf(&r->reason, "; %s", constant.s);
	return v;
}

/* Judges by the rule of another project. Whatever the rule, a row that only some runs have is a
 * difference, and a test with a value that is not finite is rejected: many rules let a NaN pass. */
static enum verdict apply_rule(const struct judging *j, struct verdict_result *r)
{
	const struct rule *rule = &rules[j->o->rule];
	struct str why = {0};
	bool is_accepted = rule_accepts_all(rule, &j->all, &why);
	bool has_lone = has_lone_rows(j, r);
	if (is_accepted && detect_nonfinite(j, r)) {
		str_printf(&r->reason, "; the rule %s itself accepts it: %s", rule->name,
			why.s);
		str_free(&why);
		return VERDICT_DIVERGED;
	}
	str_free(&r->reason);
	r->reason = why;
	return is_accepted && !has_lone ? VERDICT_WITHIN : VERDICT_DIFFERENT;
}

static bool are_all_comparable(const struct judging *j, struct str *why)
{
	bool ok = true;
	for (int t = 0; t < j->n_runs[TEST] && ok; t++)
		ok = are_comparable(j->log[CONTROL][0], j->log[TEST][t], why);
	for (int c = 1; c < j->n_runs[CONTROL] && ok; c++)
		ok = are_comparable(j->log[CONTROL][0], j->log[CONTROL][c], why);
	return ok;
}

/* Judges comparable runs. Agreement with controls that learned nothing means nothing, except for
 * equal bits of a loss that is neither constant nor NaN. */
static enum verdict judge_comparable(const struct judging *j, struct verdict_result *r)
{
	if (find_never_finite(j, CONTROL, &r->reason) ||
		find_constant(j, CONTROL, &r->reason))
		return VERDICT_VACUOUS;
	r->learned = controls_learned(j, &r->note);
	r->shown = find_never_finite(j, TEST, &r->reason) ||
		   (!j->o->rule && detect_nonfinite(j, r));
	if (r->shown)
		return VERDICT_DIVERGED;
	if (!r->learned && r->n_differ) {
		str_puts(&r->reason, r->note.s);
		return VERDICT_VACUOUS;
	}
	if (j->o->rule > 0)
		return apply_rule(j, r);
	if (explain_if_identical(j, r))
		return VERDICT_IDENTICAL;
	if (explain_if_within(j, r))
		return VERDICT_WITHIN;
	return judge_statistically(j, r);
}

/* Appends the rows and controls that were not used. Rows that are not finite are left out of the
 * statistics; only VERDICT_DIFFERENT may be due to them. */
static void explain_unused(const struct judging *j, struct verdict_result *r)
{
	int64_t n_inner = r->n_lone - r->n_ending;
	if (has_lone_rows(j, r))
		str_printf(&r->reason,
			"; %lld row%s in some runs only; --common ignores such rows",
			(long long)n_inner, n_inner == 1 ? " is" : "s are");
	if (r->ending.len)
		str_printf(&r->reason, "; %s", r->ending.s);
	if (r->n_nonfinite && r->verdict == VERDICT_DIFFERENT)
		str_printf(&r->reason, "; %lld row%s a value that is not finite",
			(long long)r->n_nonfinite,
			r->n_nonfinite == 1 ? " has" : "s have");
	if (j->left_out.len)
		str_printf(&r->reason, "; %s", j->left_out.s);
}

/* Sets the verdict and its reason. */
static void set_verdict(const struct judging *j, struct verdict_result *r)
{
	if (!j->all.n) {
		str_printf(&r->reason, "the runs have no %s at the same %s",
			column_name(j), by_name(j));
		r->verdict = VERDICT_NOTHING;
	} else if (!are_all_comparable(j, &r->reason) && r->n_differ) {
		r->verdict = VERDICT_NOT_COMPARABLE;
	} else {
		str_clear(&r->reason);
		r->verdict = judge_comparable(j, r);
		explain_unused(j, r);
	}
}

/* Sets the correlation of the noise of the first test and its partner, or the first control. */
static void set_correlation(const struct judging *j, struct verdict_result *r)
{
	int c = find_partner(j, 0);
	r->correlation =
		noise_correlation(j, c < 0 ? 0 : c, j->n_runs[CONTROL], 0, j->finite.n);
}

void judge(const struct run_log *const *control, int n_control,
	const struct run_log *const *test, int n_test, const struct judge_opts *o,
	struct verdict_result *r)
{
	const struct interval none = {NAN, NAN};
	struct judging j;
	BUG_ON(n_control < 1 || n_test < 1);
	judging_init(&j, control, n_control, test, n_test, o);
	*r = (struct verdict_result){.design = j.design,
		.n_control = j.n_units[CONTROL],
		.n_test = j.n_units[TEST],
		.n_rows = j.finite.n,
		.n_lone = j.all.n_lone,
		.n_ending = j.n_ending,
		.ending = j.ending,
		.sense = o->sense ? o->sense : column_sense(column_name(&j)),
		.n_nonfinite = j.all.n - j.finite.n,
		.n_left_out = n_control - j.n_runs[CONTROL],
		.first = j.all.n ? j.all.at[0] : (double)NAN,
		.last = j.all.n ? j.all.at[j.all.n - 1] : (double)NAN,
		.onset = NAN,
		.onset_last = NAN,
		.at_onset = none,
		.alarm = o->alarm > 0 ? o->alarm : DEFAULT_ALARM,
		.confidence = o->confidence > 0 ? o->confidence : DEFAULT_CONFIDENCE,
		.final_control = NAN,
		.final_test = NAN,
		.difference = none,
		.slope = none,
		.margin = NAN,
		.slope_margin = NAN};
	record_first_difference(&j, r);
	record_spikes(&j, r);
	set_correlation(&j, r);
	set_verdict(&j, r);
	judging_release(&j); /* except `ending`, which moved to *r */
}

void verdict_result_release(struct verdict_result *r)
{
	str_free(&r->reason);
	str_free(&r->note);
	str_free(&r->ending);
}
