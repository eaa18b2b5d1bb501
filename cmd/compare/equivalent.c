/* Tests whether the ends of the curves are equivalent. */
#include "compare/judge_internal.h"

#include <math.h>

double fraction_of_loss(
	const struct judging *j, double fraction, int64_t from, int64_t to)
{
	return fraction * fabs(set_mean(j, CONTROL, from, to));
}

void estimate_end(const struct judging *j, struct verdict_result *r)
{
	int64_t n = j->finite.n, quarter = n - max64(1, n / 4), half = n / 2;
	struct estimate mean = estimate_difference(j, quarter, n, MEAN);
	struct estimate slope = estimate_difference(j, half, n, SLOPE);
	r->difference = interval_of(&mean, r->confidence);
	r->slope = interval_of(&slope, r->confidence);
	r->final_control = set_mean(j, CONTROL, quarter, n);
	r->final_test = set_mean(j, TEST, quarter, n);
	r->margin = fraction_of_loss(
		j, j->o->margin > 0 ? j->o->margin : DEFAULT_MARGIN, quarter, n);
	double sd = set_sd(j, CONTROL, quarter, n);
	if (!(j->o->margin > 0) && sd > r->margin)
		r->margin = sd;
	/* the slope at which the difference grows by the margin in as many rows again */
	r->slope_margin = r->margin / (j->finite.at[n - 1] - j->finite.at[half]);
}

bool is_equivalent(const struct verdict_result *r)
{
	return is_inside(&r->difference, r->margin) &&
	       is_inside(&r->slope, r->slope_margin);
}

/* Appends "at the end loss is 0.1 +-0.02 lower (test 2.4, control 2.5)". with_interval is false if
 * the interval would rest on an assumption about replicas. */
static void append_end(
	const struct judging *j, struct verdict_result *r, bool with_interval)
{
	double d = r->difference.value;
	str_printf(&r->reason, "%sat the end %s is ", r->reason.len ? "; " : "",
		column_name(j));
	if (d != 0)
		str_printf(&r->reason, "%.3g ", fabs(d));
	else
		str_puts(&r->reason, "the same ");
	if (with_interval)
		str_printf(&r->reason, "+-%.2g ", r->difference.half_width);
	str_printf(&r->reason, "%s(test %.5g, control %.5g)",
		d > 0	? "higher "
		: d < 0 ? "lower "
			: "",
		r->final_test, r->final_control);
}

void explain_end(const struct judging *j, struct verdict_result *r)
{
	append_end(j, r, true);
}

void explain_margin(struct verdict_result *r)
{
	str_printf(&r->reason, ", %s the margin of %.3g",
		is_inside(&r->difference, r->margin)   ? "within"
		: is_beyond(&r->difference, r->margin) ? "beyond"
						       : "neither within nor beyond",
		r->margin);
}

/* Appends "12000 steps", the length with `times` the rows. Returns false if that is too long. */
static bool append_length(const struct judging *j, double times, struct str *out)
{
	enum { MAX_TIMES = 16 };
	double end = times * j->finite.at[j->finite.n - 1];
	if (!(times > 0 && times <= MAX_TIMES && end > 0))
		return false;
	double unit = pow(10, floor(log10(end)) - 1);
	str_printf(out, "%.0f %s", ceil(end / unit) * unit,
		j->o->by == COL_STEP ? "steps" : "tokens");
	return true;
}

/* Returns the number of units per set that would give the interval this half-width. */
static double units_for_interval(
	const struct judging *j, const struct interval *i, double half_width)
{
	double n = j->n_units[CONTROL], m = j->n_units[TEST];
	double units = j->design == DESIGN_PAIRED ? n : 2 / (1 / n + 1 / m);
	double ratio = i->half_width / half_width;
	return fmax(ceil(units * ratio * ratio), fmax(fmax(n, m), 3));
}

enum { MAX_UNITS = 32 };
/* Returns the number of units per set that would show the difference, if it is as large as
 * estimated; 0: more than MAX_UNITS. */
static int units_to_differ(const struct judging *j, const struct verdict_result *r)
{
	int64_t rows = j->finite.n, n = j->n_units[CONTROL], m = j->n_units[TEST];
	bool paired = j->design == DESIGN_PAIRED;
	struct estimate e = estimate_difference(j, rows - max64(1, rows / 4), rows, MEAN);
	double sd =
		e.se / sqrt(paired ? 1.0 / (double)n : 1.0 / (double)n + 1.0 / (double)m);
	double zone = j->o->margin > 0 ? r->margin : 0;
	for (int64_t k = max64(n, m) + (n == m); k <= MAX_UNITS; k++) {
		double t = student_quantile(block_alarm(r), paired ? k - 1 : 2 * k - 2);
		if (fabs(e.mean) > zone + t * sd * sqrt((paired ? 1.0 : 2.0) / (double)k))
			return (int)k;
	}
	return 0;
}

/* Appends the further runs that would decide, for a design with one unit per set. */
static void advise_single(const struct judging *j, struct str *out)
{
	int n = j->n_seeds[CONTROL], all = n + j->n_seeds[TEST];
	int missing = 4 - all > 2 - n ? 4 - all : 2 - n;
	if (j->design == DESIGN_SAME_BATCHES)
		str_puts(out,
			"four controls with different rounding (another micro-batch, or "
			"virtual degrees), or ");
	else
		str_printf(out,
			"%d more control%s, so that the runs can be judged as "
			"replicas, or ",
			missing, plural(missing));
	str_puts(out, "controls and tests with three or more seeds, the same for both");
}

/* Returns true if the tests differ from each other by far more than the controls do. */
static bool tests_are_unlike(const struct judging *j)
{
	enum { TIMES = 4 };
	int64_t n = j->finite.n, from = n - max64(1, n / 4);
	return set_sd(j, TEST, from, n) > TIMES * set_sd(j, CONTROL, from, n);
}

/* Appends the number of runs that may decide, for a design with several units per set. */
static void advise_sets(const struct judging *j, double n, struct str *out)
{
	if (n <= MAX_UNITS)
		str_printf(
			out, "; a decision may take %.0f controls and as many tests", n);
	else if (tests_are_unlike(j))
		str_puts(out, "; the tests differ from each other by far more than the "
			      "controls do; give only tests of the same configuration");
	else
		str_printf(out,
			"; a decision may take more than %d controls and as many tests, or a "
			"larger --margin",
			MAX_UNITS);
}

/* Appends what may decide. With more rows, the error of a mean falls as their root, the
 * error of a slope one power faster, and the margin of a slope in proportion to the rows. */
static void advise(const struct judging *j, struct verdict_result *r)
{
	bool is_mean_inside = is_inside(&r->difference, r->margin);
	const struct interval *i = is_mean_inside ? &r->slope : &r->difference;
	double margin = is_mean_inside ? r->slope_margin : r->margin;
	double spare = is_mean_inside ? margin : margin - fabs(i->value);
	double error = is_mean_inside ? i->half_width + fabs(i->value) : i->half_width;
	struct str *out = &r->reason;
	if (!is_single(j)) {
		int n = is_beyond(&r->difference, r->margin) ? units_to_differ(j, r) : 0;
		advise_sets(j, n ? n : units_for_interval(j, i, margin / 2), out);
		return;
	}
	str_puts(out, "; a decision may take ");
	/* the assumed error between different batches or replicas does not fall with the length */
	bool has_length = (is_mean_inside || j->design == DESIGN_SAME_BATCHES) &&
			  spare > 0 &&
			  append_length(j, error * error / (spare * spare), out);
	str_puts(out, has_length ? ", or " : "");
	advise_single(j, out);
}

/* Appends the number of independent runs. */
static void append_seeds(const struct judging *j, struct str *out)
{
	int n = j->n_seeds[CONTROL], m = j->n_seeds[TEST];
	if (n == 1 && m == 1)
		str_puts(out, "one run each");
	else
		str_printf(out, "%d control%s and %d test%s", n, plural(n), m, plural(m));
}

void explain_undecided(const struct judging *j, struct verdict_result *r)
{
	bool is_alone = j->design == DESIGN_ALONE;
	struct str *out = &r->reason;
	append_end(j, r, !is_alone);
	if (is_alone) {
		str_puts(out, "; whether another seed differs as much is unknown: ");
		append_seeds(j, out);
	} else if (is_inside(&r->difference, r->margin)) {
		str_printf(out,
			", within the margin of %.3g, but the slope of the difference is "
			"%.3g +-%.2g, and its margin is %.3g",
			r->margin, r->slope.value, r->slope.half_width, r->slope_margin);
	} else if (is_beyond(&r->difference, r->margin)) {
		str_printf(out,
			", probably more than the margin of %.3g, which is not shown at "
			"--alarm %g",
			r->margin, r->alarm);
	} else {
		explain_margin(r);
	}
	advise(j, r);
}
