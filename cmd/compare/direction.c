/* The direction of a difference: higher or lower, better or worse, or diverged. */
#include "compare/judge_internal.h"

#include <math.h>

/* The course of a curve. */
struct path {
	double first, best, last; /* medians of eighths of the rows */
	double error;		  /* standard error of each median */
};

/* Returns the median of part `part` of n_parts equal parts of x[n]. */
static double median_of_part(const double *x, int64_t n, int n_parts, int part)
{
	int64_t from = part_begin(n, n_parts, part);
	int64_t len = part_begin(n, n_parts, part + 1) - from;
	scoped_ptr double *copy = xcalloc((size_t)len + 1, sizeof(*copy));
	memcpy(copy, x + from, (size_t)len * sizeof(*copy));
	return median(copy, len);
}

/* Summarizes a curve by the medians of its eighths. */
static struct path path_of(const double *x, int64_t n, int sense)
{
	const double median_error = 1.2533; /* over a mean's error, for normal noise */
	enum { PARTS = 8 };
	int n_parts = n < PARTS ? (int)n : PARTS;
	struct path p = {.first = median_of_part(x, n, n_parts, 0)};
	p.best = p.first;
	for (int k = 1; k < n_parts; k++) {
		p.last = median_of_part(x, n, n_parts, k);
		if (k < n_parts - 1 && sense * (p.last - p.best) > 0)
			p.best = p.last;
	}
	p.error = median_error * step_noise(x, n) * sqrt((double)n_parts / (double)n);
	return p;
}

/* Returns true if a curve lost a quarter of the controls' gain, and more than its noise. */
static bool has_lost(const struct path *p, double gain, int sense)
{
	const double quarter = 0.25, sigmas = 3 * sqrt(2);
	double lost = sense * (p->best - p->last);
	return gain > 0 && lost >= quarter * gain && lost > sigmas * p->error;
}

bool lost_what_was_learned(const struct judging *j, int sense, struct str *why)
{
	int64_t n = j->finite.n;
	int n_control = j->n_runs[CONTROL];
	double gain = 0;
	bool has_loss_of_gain = false;
	if (n < MIN_ROWS_OF_REPLICAS)
		return false;
	for (int i = 0; i < n_control; i++) {
		struct path p = path_of(curve_of(&j->finite, CONTROL, i), n, sense);
		gain += sense * (p.best - p.first) / n_control;
	}
	for (int i = 0; i < n_control; i++) {
		struct path p = path_of(curve_of(&j->finite, CONTROL, i), n, sense);
		if (has_lost(&p, gain, sense))
			return false;
	}
	for (int i = 0; i < j->n_runs[TEST] && !has_loss_of_gain; i++) {
		struct path p = path_of(curve_of(&j->finite, TEST, i), n, sense);
		has_loss_of_gain = has_lost(&p, gain, sense);
		if (has_loss_of_gain)
			str_printf(why, "%s of %s was %.4g and ends at %.4g",
				column_name(j), run_log_brief(j->log[TEST][i]), p.best,
				p.last);
	}
	return has_loss_of_gain;
}

/* Returns the sign of the difference at the end, if a difference with that sign was found. */
static int direction_at_end(const struct verdict_result *r)
{
	const struct interval *i = &r->difference;
	if (i->value - i->half_width > 0)
		return r->found_higher;
	return i->value + i->half_width < 0 ? -r->found_lower : 0;
}

enum verdict judge_direction(const struct judging *j, struct verdict_result *r)
{
	r->direction = direction_at_end(r);
	if (!r->direction || !r->sense)
		return VERDICT_DIFFERENT;
	if (r->direction == r->sense)
		return VERDICT_BETTER;
	return lost_what_was_learned(j, r->sense, &r->reason) ? VERDICT_DIVERGED
							      : VERDICT_WORSE;
}

bool is_not_worse(const struct verdict_result *r)
{
	double mean = -r->sense * r->difference.value + r->difference.half_width;
	double slope = -r->sense * r->slope.value + r->slope.half_width;
	return r->sense && mean <= r->margin && slope <= r->slope_margin;
}
