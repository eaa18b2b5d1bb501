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

/* ---- bits and tolerances --------------------------------------------------------------- */

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

/* Finds the first row where a test differs from its nearest control, and counts such values. */
static void find_first_difference(const struct judging *j, struct verdict_result *r)
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

/* Returns true if some rows that only some runs have count as a difference. */
static bool has_lone(const struct judging *j, const struct verdict_result *r)
{
	return r->n_lone > r->n_ending && !j->o->common;
}

static bool is_identical(const struct judging *j, struct verdict_result *r)
{
	if (r->n_differ || has_lone(j, r))
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

static bool is_within(const struct judging *j, struct verdict_result *r)
{
	if (!(j->o->rtol > 0 || j->o->atol > 0) || has_lone(j, r))
		return false;
	for (int t = 0; t < j->n_runs[TEST]; t++) {
		bool any = false;
		for (int c = 0; c < j->n_runs[CONTROL] && !any; c++)
			any = test_is_within(j, t, c);
		if (!any)
			return false;
	}
	str_printf(&r->reason,
		"each of %lld values of %s differs by at most %g + %g |control|",
		(long long)j->all.n, column_name(j), j->o->atol, j->o->rtol);
	return true;
}

/* ---- vacuous ----------------------------------------------------------------------- */

/* Returns true if the mean fell from the first to the last values by more than noise explains. */
static bool fell(const double *x, int64_t n, double *from, double *to)
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

static bool never_finite(const double *x, int64_t n)
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

/* Returns true if a run of the set has no finite value; appends which one. */
static bool any_never_finite(const struct judging *j, enum set s, struct str *why)
{
	for (int i = 0; i < j->n_runs[s]; i++) {
		if (!never_finite(curve_of(&j->all, s, i), j->all.n))
			continue;
		str_printf(why, "%s has no finite %s", run_log_brief(j->log[s][i]),
			column_name(j));
		return true;
	}
	return false;
}

/* Returns true if a run of the set has a constant loss; appends which one. */
static bool any_constant(const struct judging *j, enum set s, struct str *why)
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

/* Returns true if the loss of each control fell; otherwise appends which one did not. */
static bool controls_learned(const struct judging *j, struct str *why)
{
	scoped_ptr double *x = xcalloc((size_t)j->all.n + 1, sizeof(*x));
	bool all = true;
	for (int i = 0; i < j->n_runs[CONTROL] && all && is_loss(j->o->column); i++) {
		double from = 0, to = 0;
		int64_t n = copy_finite(curve_of(&j->all, CONTROL, i), j->all.n, x);
		all = n < MIN_ROWS_TO_LEARN || fell(x, n, &from, &to);
		if (!all)
			str_printf(why,
				"%s of %s went from %.6g to %.6g, a change within its noise",
				column_name(j), run_log_brief(j->log[CONTROL][i]), from,
				to);
	}
	return all;
}

/* ---- the verdict ----------------------------------------------------------------------- */

/* Judges a difference that was shown; `found`: where it first was, in words. */
static enum verdict judge_shown(
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

/* Judges runs without a shown difference. unjudged: a test has rows that no statistics cover. */
static enum verdict judge_unshown(
	const struct judging *j, struct verdict_result *r, bool unjudged)
{
	bool equivalent = is_equivalent(r);
	if (!equivalent && !unjudged && j->o->one_sided && is_not_worse(r)) {
		explain_end(j, r);
		str_printf(&r->reason, ", not worse by more than the margin of %.3g",
			r->margin);
		return VERDICT_NOT_WORSE;
	}
	if (!equivalent && !unjudged) {
		explain_undecided(j, r);
		return VERDICT_UNDECIDED;
	}
	explain_end(j, r);
	explain_margin(r);
	return unjudged ? VERDICT_DIFFERENT : VERDICT_EQUIVALENT;
}

static enum verdict judge_statistically(const struct judging *j, struct verdict_result *r)
{
	scoped_str constant = {0}, found = {0};
	r->shown = should_be_identical(j, r);
	if (r->shown)
		return VERDICT_DIFFERENT;
	if (j->finite.n < (is_single(j) ? MIN_ROWS : MIN_ROWS_OF_REPLICAS)) {
		str_printf(&r->reason, "%lld value%s of %s: too few for statistics",
			(long long)j->finite.n, plural(j->finite.n), column_name(j));
		return VERDICT_DIFFERENT;
	}
	bool unjudged =
		any_constant(j, TEST, &constant) || r->n_nonfinite || has_lone(j, r);
	estimate_end(j, r);
	r->shown = differs(j, r, &found);
	enum verdict v =
		r->shown ? judge_shown(j, r, &found) : judge_unshown(j, r, unjudged);
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
	bool accepted = rule_apply(rule, &j->all, &why);
	bool lone = has_lone(j, r);
	if (accepted && turns_nonfinite(j, r)) {
		str_printf(&r->reason, "; the rule %s itself accepts it: %s", rule->name,
			why.s);
		str_free(&why);
		return VERDICT_DIVERGED;
	}
	str_free(&r->reason);
	r->reason = why;
	return accepted && !lone ? VERDICT_WITHIN : VERDICT_DIFFERENT;
}

static bool all_comparable(const struct judging *j, struct str *why)
{
	bool all = true;
	for (int t = 0; t < j->n_runs[TEST] && all; t++)
		all = comparable(j->log[CONTROL][0], j->log[TEST][t], why);
	for (int c = 1; c < j->n_runs[CONTROL] && all; c++)
		all = comparable(j->log[CONTROL][0], j->log[CONTROL][c], why);
	return all;
}

/* Judges comparable runs. Agreement with controls that learned nothing means nothing, except for
 * equal bits of a loss that is neither constant nor NaN. */
static enum verdict judge_comparable(const struct judging *j, struct verdict_result *r)
{
	if (any_never_finite(j, CONTROL, &r->reason) ||
		any_constant(j, CONTROL, &r->reason))
		return VERDICT_VACUOUS;
	r->learned = controls_learned(j, &r->note);
	r->shown = any_never_finite(j, TEST, &r->reason) ||
		   (!j->o->rule && turns_nonfinite(j, r));
	if (r->shown)
		return VERDICT_DIVERGED;
	if (!r->learned && r->n_differ) {
		str_puts(&r->reason, r->note.s);
		return VERDICT_VACUOUS;
	}
	if (j->o->rule > 0)
		return apply_rule(j, r);
	if (is_identical(j, r))
		return VERDICT_IDENTICAL;
	if (is_within(j, r))
		return VERDICT_WITHIN;
	return judge_statistically(j, r);
}

/* Appends the rows and controls that were not used. */
static void explain_rows(const struct judging *j, struct verdict_result *r)
{
	int64_t n_lone = r->n_lone - r->n_ending;
	if (has_lone(j, r))
		str_printf(&r->reason,
			"; %lld row%s in some runs only; --common ignores such rows",
			(long long)n_lone, n_lone == 1 ? " is" : "s are");
	if (r->ending.len)
		str_printf(&r->reason, "; %s", r->ending.s);
	if (r->n_nonfinite && r->verdict == VERDICT_DIFFERENT)
		str_printf(&r->reason, "; %lld row%s a value that is not finite",
			(long long)r->n_nonfinite,
			r->n_nonfinite == 1 ? " has" : "s have");
	if (j->left_out.len)
		str_printf(&r->reason, "; %s", j->left_out.s);
}

static void decide(const struct judging *j, struct verdict_result *r)
{
	if (!j->all.n) {
		str_printf(&r->reason, "the runs have no %s at the same %s",
			column_name(j), by_name(j));
		r->verdict = VERDICT_NOTHING;
	} else if (!all_comparable(j, &r->reason) && r->n_differ) {
		r->verdict = VERDICT_NOT_COMPARABLE;
	} else {
		str_clear(&r->reason);
		r->verdict = judge_comparable(j, r);
		explain_rows(j, r);
	}
}

static void find_correlation(const struct judging *j, struct verdict_result *r)
{
	int c = partner_of(j, 0);
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
	find_first_difference(&j, r);
	find_spikes(&j, r);
	find_correlation(&j, r);
	decide(&j, r);
	judging_free(&j); /* except `ending`, which moved to *r */
}

void verdict_result_free(struct verdict_result *r)
{
	str_free(&r->reason);
	str_free(&r->note);
	str_free(&r->ending);
}
