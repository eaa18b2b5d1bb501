/* Whether the ends of the curves are shown to be equivalent. */
#include "compare/judge_internal.h"

#include <math.h>

double fraction_of_loss(
	const struct judging *j, double fraction, int64_t from, int64_t to)
{
	return fraction * fabs(set_mean(j, CONTROL, from, to));
}

/* Two one-sided tests (TOST): the interval of this confidence on each side is within the margin. */
static struct interval interval_of(const struct estimate *e, double confidence)
{
	double t = e->df ? student_quantile(2 * (1 - confidence), e->df) : (double)NAN;
	return (struct interval){e->mean, t * e->se};
}

static bool is_inside(const struct interval *i, double margin)
{
	return fabs(i->value) + i->half_width <= margin;
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
	/* so that the difference would not grow by more than the margin in as many rows again */
	r->slope_margin = r->margin / (j->finite.at[n - 1] - j->finite.at[half]);
}

bool is_equivalent(const struct verdict_result *r)
{
	return is_inside(&r->difference, r->margin) &&
	       is_inside(&r->slope, r->slope_margin);
}

void explain_end(const struct judging *j, struct verdict_result *r)
{
	str_printf(&r->reason,
		"%sat the end %s differs by %.3g +-%.2g, %s the margin of %.3g",
		r->reason.len ? "; " : "", column_name(j), r->difference.value,
		r->difference.half_width,
		is_inside(&r->difference, r->margin) ? "within"
		: fabs(r->difference.value) - r->difference.half_width > r->margin
			? "beyond"
			: "which does not settle",
		r->margin);
}

/* How many replicas of each would give the interval half of the margin's width. */
void advise(const struct judging *j, struct verdict_result *r)
{
	if (is_inside(&r->difference, r->margin)) {
		str_printf(&r->reason, ", but its slope by %.3g +-%.2g, margin %.3g",
			r->slope.value, r->slope.half_width, r->slope_margin);
	} else if (j->design == DESIGN_SAME_BATCHES) {
		str_puts(&r->reason,
			": give four controls of other rounding (another micro-batch, or virtual "
			"degrees), or controls and tests of three or more seeds, the same for both");
	} else if (is_single(j)) {
		str_puts(&r->reason,
			": give controls and tests of three or more seeds, the same for both");
	} else {
		double n = j->n_units[CONTROL];
		double more = r->difference.half_width / (r->margin / 2);
		str_printf(&r->reason, ": it may need %.0f controls and as many tests",
			ceil(n * more * more));
	}
}
