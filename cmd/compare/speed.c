/* Measures and compares speed and memory of runs. */
#include "compare/speed.h"
#include "compare/curve.h"
#include "stats/stats.h"

#include <math.h>

static const struct measure {
	int column;
	const char *name;
	bool peak;		 /* use the maximum instead of the median */
	const char *more, *less; /* the words for a test with larger, smaller values */
} measures[] = {
	{COL_TPS, "tokens/s", false, "faster", "slower"},
	{COL_TPS_PER_GPU, "tokens/s per rank", false, "faster", "slower"},
	{COL_DT, "time of a step", false, "slower", "faster"},
	{COL_SPS, "samples/s", false, "faster", "slower"},
	{COL_MFU, "MFU", false, "higher", "lower"},
	{COL_MEM, "peak memory of a rank", true, "more", "less"},
};

_Static_assert(ARRAY_LEN(measures) <= MAX_SPEEDS, "MAX_SPEEDS includes all measures");

static const struct measure *find_measure(int column)
{
	for (size_t i = 0; i < ARRAY_LEN(measures); i++)
		if (measures[i].column == column)
			return &measures[i];
	return NULL;
}

const char *speed_name(int column)
{
	const struct measure *m = find_measure(column);
	return m ? m->name : columns[column].name;
}

const char *speed_heading(int column)
{
	return column == COL_DT		   ? ">Time of a step"
	       : column == COL_TPS_PER_GPU ? ">Tokens/s per rank"
	       : column == COL_SPS	   ? ">Samples/s"
					   : ">Tokens/s";
}

char *speed_format(char buf[AT_LEAST(NUM_TEXT)], int column, double v)
{
	if (!isfinite(v))
		snprintf(buf, NUM_TEXT, "-");
	else if (column == COL_MEM)
		text_bytes(buf, v);
	else if (column == COL_MFU)
		snprintf(buf, NUM_TEXT, "%.3g %%%s", 100 * v,
			v > 2 ? " (impossible)"
			      : ""); /* (fp8 runs divide by bf16's peak) */
	else if (column == COL_DT)
		snprintf(buf, NUM_TEXT, "%.4g %s", v < 1 ? 1000 * v : v,
			v < 1 ? "ms" : "s");
	else
		snprintf(buf, NUM_TEXT, v < 1e4 ? "%.4g" : "%.0f", v);
	return buf;
}

/* Returns the standard error of the median of n values, from the medians of blocks. */
static double standard_error(const double *v, int64_t n)
{
	double m[SPEED_BLOCKS], *copy = xmalloc((size_t)n * sizeof(*copy));
	for (int b = 0; b < SPEED_BLOCKS; b++) {
		int64_t begin = part_begin(n, SPEED_BLOCKS, b);
		int64_t end = part_begin(n, SPEED_BLOCKS, b + 1);
		memcpy(copy, v + begin, (size_t)(end - begin) * sizeof(*v));
		m[b] = median(copy, end - begin);
	}
	free(copy);
	double center = median(m, SPEED_BLOCKS);
	for (int b = 0; b < SPEED_BLOCKS; b++)
		m[b] = fabs(m[b] - center);
	return 1.2533 * 1.4826 * median(m, SPEED_BLOCKS) / sqrt(SPEED_BLOCKS);
}

/* Measures one run. The value and its error are natural logarithms. */
static struct speed measure_run(const struct run_log *l, const struct measure *m)
{
	struct speed s = {.value = NAN, .error = NAN, .df = SPEED_BLOCKS - 1};
	double *v = xmalloc((size_t)(l->n_rows + 1) * sizeof(*v)), peak = -INFINITY;
	int64_t n = 0;
	for (int64_t i = 0; i < l->n_rows; i++) {
		double x = run_log_value(l, i, m->column);
		if (!isfinite(x) || x <= 0)
			continue;
		v[n++] = log(x);
		peak = fmax(peak, x);
	}
	s.n_skipped = min64(max64(n / 10, 2), 100);
	if (m->peak && n) {
		s = (struct speed){.value = log(peak), .df = s.df, .n_rows = n};
	} else if (n > s.n_skipped) {
		s.n_rows = n - s.n_skipped;
		if (s.n_rows >= SPEED_BLOCKS)
			s.error = standard_error(v + s.n_skipped, s.n_rows);
		s.value = median(v + s.n_skipped, s.n_rows);
	} else if (n) { /* such as the mean of a whole run */
		s.value = v[n - 1];
		s.n_rows = 1;
		s.n_skipped = n - 1;
	}
	free(v);
	return s;
}

/* Raises the error to the standard error of a mean of runs with this deviation, which was estimated
 * from n runs, if that is larger. */
static void widen_error(struct speed *s, double deviation, int n)
{
	double between = deviation / sqrt(s->n_runs);
	if (n < 2 || s->error >= between)
		return;
	s->error = between;
	s->df = n - 1;
}

/* Measures several runs, combined by the geometric mean. */
static struct speed measure_runs(
	const struct run_log *logs, int n, const struct measure *m)
{
	struct speed total = {.df = SPEED_BLOCKS - 1};
	double sum = 0, squares = 0, within = 0;
	int k = 0;
	for (int i = 0; i < n; i++) {
		struct speed s = measure_run(&logs[i], m);
		if (!isfinite(s.value))
			continue;
		double delta = s.value - (k ? sum / k : 0);
		sum += s.value;
		k++;
		squares += delta * (s.value - sum / k); /* Welford */
		within += s.error * s.error;
		total.n_rows += s.n_rows;
		total.n_skipped += s.n_skipped;
	}
	if (!k)
		return (struct speed){.value = NAN, .error = NAN};
	total.value = m->peak ? round(exp(sum / k)) : exp(sum / k); /* (whole bytes) */
	total.error = sqrt(within) / k;
	total.n_runs = k;
	total.deviation = k > 1 ? sqrt(squares / (k - 1)) : 0;
	widen_error(&total, total.deviation, k);
	return total;
}

struct speed measure_speed(const struct run_log *logs, int n, int column)
{
	const struct measure *m = find_measure(column);
	BUG_ON(!m);
	return measure_runs(logs, n, m);
}

int choose_speed_column(const struct run_log *logs, int n)
{
	static const int kinds[] = {COL_TPS, COL_TPS_PER_GPU, COL_SPS, COL_DT};
	for (size_t k = 0; k < ARRAY_LEN(kinds); k++)
		for (int i = 0; i < n; i++)
			if (curve_has_column(&logs[i], kinds[k]))
				return kinds[k];
	return COL_TPS;
}

/* Returns the ratio of two medians with its 95 % interval, still without words. */
static struct speed_diff compare_measure(
	const struct measure *m, struct speed a, struct speed b)
{
	struct speed_diff d = {m->column, a, b, b.value / a.value, NAN, NAN, NULL};
	double x = a.error, y = b.error;
	int df = a.df < b.df ? a.df : b.df;
	double width = student_quantile(0.05, df > 1 ? df : 1) * sqrt(x * x + y * y);
	d.low = d.ratio * exp(-width);
	d.high = d.ratio * exp(width);
	return d;
}

/* Returns the logarithm of the speed-up of the test. */
static double log_gain(const struct speed_diff *d)
{
	return d->column == COL_DT ? -log(d->ratio) : log(d->ratio);
}

/* Returns half the width of the interval of the ratio's logarithm. */
static double half_width(const struct speed_diff *d)
{
	return log(d->high / d->ratio);
}

/* Returns true if two measures are of the same quantity within their noise, such as tokens per
 * second and the time of a step. If one is per rank and one is not, only rounding may differ. */
static bool is_same_quantity(const struct speed_diff *a, const struct speed_diff *b)
{
	const double rounding = 0.02;
	bool is_per_rank[] = {a->column == COL_TPS_PER_GPU || a->column == COL_MFU,
		b->column == COL_TPS_PER_GPU || b->column == COL_MFU};
	double noise =
		is_per_rank[0] == is_per_rank[1] ? half_width(a) + half_width(b) : 0;
	return !find_measure(a->column)->peak && !find_measure(b->column)->peak &&
	       fabs(log_gain(a) - log_gain(b)) < fmax(rounding, noise);
}

/* Widens the intervals of all measures of the same quantity as measure `first` to a common one, so
 * that their statements agree. done[]: measures with such an interval. */
static void widen_intervals(struct speed_diff *d, int n, int first, bool *done)
{
	bool same[MAX_SPEEDS] = {false};
	double low = INFINITY, high = -INFINITY, wide = NAN;
	for (int i = first + 1; i < n && !done[first]; i++) {
		same[i] = !done[i] && is_same_quantity(&d[first], &d[i]);
		same[first] |= same[i];
	}
	for (int i = first; i < n; i++) {
		if (!same[i])
			continue;
		done[i] = true;
		low = fmin(low, log_gain(&d[i]));
		high = fmax(high, log_gain(&d[i]));
		wide = fmax(wide, half_width(&d[i]));
	}
	for (int i = first; i < n; i++) {
		if (!same[i])
			continue;
		bool is_time = d[i].column == COL_DT;
		d[i].low = exp(is_time ? -high - wide : low - wide);
		d[i].high = exp(is_time ? -low + wide : high + wide);
	}
}

/* Sets the words about a measurement from its ratio and interval. */
static void set_statement(struct speed_diff *d)
{
	const struct measure *m = find_measure(d->column);
	d->words = isnan(d->low)   ? "too few steps for a statement"
		   : d->low > 1	   ? m->more
		   : d->high < 1   ? m->less
		   : d->ratio == 1 ? "the same"
				   : "no difference beyond noise";
}

int speed_compare(const struct run_log *control, int n_control,
	const struct run_log *test, int n_test, struct speed_diff d[MAX_SPEEDS])
{
	int n = 0;
	bool has_tokens = false; /* samples/s, a later measure, are then redundant */
	for (size_t i = 0; i < ARRAY_LEN(measures); i++) {
		struct speed a = measure_runs(control, n_control, &measures[i]);
		struct speed b = measure_runs(test, n_test, &measures[i]);
		if (a.n_runs == 1)
			widen_error(&a, b.deviation, b.n_runs);
		if (b.n_runs == 1)
			widen_error(&b, a.deviation, a.n_runs);
		int column = measures[i].column;
		if (!isfinite(a.value) || !isfinite(b.value) ||
			(column == COL_SPS && has_tokens))
			continue;
		has_tokens |= column == COL_TPS || column == COL_TPS_PER_GPU;
		d[n++] = compare_measure(&measures[i], a, b);
	}
	bool done[MAX_SPEEDS] = {false};
	for (int i = 0; i < n; i++)
		widen_intervals(d, n, i, done);
	for (int i = 0; i < n; i++)
		set_statement(&d[i]);
	return n;
}

/* Appends how far the test is from the control, such as "+12.00 % (+9.00 to +15.00)". */
static void print_change(const struct speed_diff *d, struct str *out)
{
	double change = 100 * (d->ratio - 1);
	str_printf(out, "%+.2f %%", change);
	if (d->high > d->low)
		str_printf(out, " (%+.2f to %+.2f)", 100 * (d->low - 1),
			100 * (d->high - 1));
}

void speed_print(const struct speed_diff *d, int n, struct str *out)
{
	char a[NUM_TEXT], b[NUM_TEXT];
	for (int i = 0; i < n; i++) {
		str_printf(out, "  %-21s %s: control %s, test %s, ",
			speed_name(d[i].column), d[i].words,
			speed_format(a, d[i].column, d[i].control.value),
			speed_format(b, d[i].column, d[i].test.value));
		print_change(&d[i], out);
		str_putc(out, '\n');
	}
}
