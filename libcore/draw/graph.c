/* Scales, ticks and thinning, for graphs as text and as pictures. */
#include "draw/graph.h"

#include <math.h>

/* ---- scales ------------------------------------------------------------------------ */

bool scale_has(const struct scale *s, double v)
{
	return isfinite(v) && (!s->log || v > 0);
}

/* Returns the position of v, from 0 (low) to 1 (high). Halves prevent an overflow of high - low. */
double scale_at(const struct scale *s, double v)
{
	double low = s->low / 2, high = s->high / 2;
	v /= 2;
	if (s->log) {
		low = log10(s->low);
		high = log10(s->high);
		v = log10(2 * v);
	}
	return high > low ? (v - low) / (high - low) : 0.5;
}

static void widen(struct scale *s, double v)
{
	s->low = fmin(s->low, v);
	s->high = fmax(s->high, v);
}

void scale_settle(struct scale *y, const struct graph_point *p, int64_t n)
{
	enum { FEW = 10 };
	scoped_ptr double *v = xmalloc((size_t)(n + 1) * sizeof(*v));
	int64_t n_values = 0;
	double min_x = n ? p[0].x + (p[n - 1].x / 10 - p[0].x / 10) : 0;
	for (int64_t k = 0; k < n; k++)
		if ((n < FEW || p[k].x >= min_x) && scale_has(y, p[k].y))
			v[n_values++] = p[k].y;
	if (n_values) {
		qsort(v, (size_t)n_values, sizeof(*v), compare_doubles);
		double low = v[n_values / 20], high = v[n_values - 1 - n_values / 20];
		double margin = high > low ? 2 * (high - low) : INFINITY;
		int64_t first = 0, last = n_values - 1;
		while (v[first] < low - margin)
			first++;
		while (v[last] > high + margin)
			last--;
		widen(y, v[first]);
		widen(y, v[last]);
	}
}

struct scale scale_shown(const struct scale *whole, const struct scale *settled)
{
	bool log = whole->log && settled->low > 0;
	double whole_span = log ? log10(whole->high) - log10(whole->low)
				: whole->high / 2 - whole->low / 2;
	double settled_span = log ? log10(settled->high) - log10(settled->low)
				  : settled->high / 2 - settled->low / 2;
	return settled_span > 0 && whole_span > 2 * settled_span ? *settled : *whole;
}

void scale_count_outside(const struct scale *y, double v, struct outside *o)
{
	o->total++;
	if (v >= y->low && v <= y->high)
		return;
	o->low = o->n ? fmin(o->low, v) : v;
	o->high = o->n++ ? fmax(o->high, v) : v;
}

void outside_print(const struct outside *o, struct str *out)
{
	if (!o->n)
		return;
	str_printf(out, "%lld of %lld points %s outside the graph: %.5g", (long long)o->n,
		(long long)o->total, o->n == 1 ? "is" : "are", o->low);
	if (o->high > o->low)
		str_printf(out, " to %.5g", o->high);
}

bool graph_scales(const struct graph *g, struct scale *x, struct scale *y)
{
	*x = (struct scale){INFINITY, -INFINITY, g->log_x};
	*y = (struct scale){INFINITY, -INFINITY, g->log_y};
	struct scale settled = *y;
	for (int i = 0; i < g->n_series; i++) {
		const struct graph_series *s = &g->series[i];
		for (int64_t k = 0; k < s->n; k++) {
			if (!scale_has(x, s->p[k].x) || !scale_has(y, s->p[k].y))
				continue;
			widen(x, s->p[k].x);
			widen(y, s->p[k].y);
		}
		if (g->settled)
			scale_settle(&settled, s->p, s->n);
	}
	if (g->settled && settled.low <= settled.high)
		*y = scale_shown(y, &settled);
	return x->low <= x->high;
}

/* ---- ticks ------------------------------------------------------------------------- */

static void add_tick(struct ticks *t, const struct scale *s, double v)
{
	/* (a multiple of the step may miss an end of the range by a rounding error) */
	double position = scale_has(s, v) ? scale_at(s, v) : -1;
	if (t->n < MAX_TICKS && position >= -1e-9 && position <= 1 + 1e-9)
		t->v[t->n++] = v;
}

/* Returns the smallest of 1, 2, 5 times a power of ten that is at least v. */
static double round_up_step(double v)
{
	double power = pow(10, floor(log10(v)));
	static const double steps[] = {1, 2, 5};
	for (size_t i = 0; i < ARRAY_LEN(steps); i++)
		if (steps[i] * power >= v * (1 - 1e-9))
			return steps[i] * power;
	return 10 * power;
}

/* Adds up to `max` ticks at multiples of a round step. Returns the step; 0: one tick only. */
static double add_linear_ticks(const struct scale *s, int max, struct ticks *t)
{
	double step = s->high > s->low ? round_up_step(s->high / max - s->low / max) : 0;
	if (!(step > 0) || !isfinite(step) || s->low + step == s->low) {
		add_tick(t, s, s->low);
		return 0;
	}
	double first = ceil(s->low / step - 1e-9);
	for (int i = 0; i <= max; i++)
		add_tick(t, s, (first + i) * step);
	return step;
}

/* Adds powers of ten; for up to two decades also 2 and 5 times them. */
static void add_log_ticks(const struct scale *s, int max, struct ticks *t)
{
	int low = (int)floor(log10(s->low)), high = (int)ceil(log10(s->high));
	bool is_short_range = high - low <= 2 && max >= 6;
	int step = (int)ceil_div(max64(high - low, 1), max);
	for (int k = low; k <= high; k += step) {
		add_tick(t, s, pow(10, k));
		if (is_short_range) {
			add_tick(t, s, 2 * pow(10, k));
			add_tick(t, s, 5 * pow(10, k));
		}
	}
}

/* Writes a tick's label with a suffix such as k. largest: of |ticks|; step: between ticks, or 0. */
static void tick_text(char *label, double v, double largest, double step)
{
	static const char suffixes[] = " kMGTPE";
	int power = 0;
	while (largest >= 1e5 && power < 6 && largest >= 1000 * pow(1000, power))
		power++;
	double unit = pow(1000, power);
	double digits = step > 0 ? -floor(log10(step / unit) + 1e-9) : 0;
	if (step > 0 && digits <= 6 && largest < 1e21)
		snprintf(label, NUM_TEXT, "%.*f%.*s", digits > 0 ? (int)digits : 0,
			v == 0 ? 0.0 : v / unit, power > 0, &suffixes[power]);
	else
		snprintf(label, NUM_TEXT, "%.6g%.*s", v / unit, power > 0,
			&suffixes[power]);
}

void ticks_choose(const struct scale *s, int max, struct ticks *t)
{
	double step = 0;
	*t = (struct ticks){0};
	max = max < 1 ? 1 : max >= MAX_TICKS ? MAX_TICKS - 1 : max;
	if (s->log && s->high > s->low)
		add_log_ticks(s, max, t);
	if (t->n < 2) { /* also for a logarithmic range without powers of ten */
		t->n = 0;
		step = add_linear_ticks(s, max, t);
	}
	for (int i = 0; i < t->n; i++)
		tick_text(t->text[i], t->v[i],
			s->log && step == 0 ? fabs(t->v[i])
					    : fmax(fabs(s->low), fabs(s->high)),
			step);
}

/* ---- fewer points ------------------------------------------------------------------ */

/* Copies the points at four indices, sorted and each once, to p + n_out. Returns the new n_out. */
static int64_t copy_points(struct graph_point *p, int64_t n_out, const int64_t index[4])
{
	struct graph_point kept[4] = {{0}};
	int n = 0;
	int64_t lower = min64(index[1], index[2]), higher = max64(index[1], index[2]);
	const int64_t order[4] = {index[0], lower, higher, index[3]};
	for (int i = 0; i < 4; i++)
		if (i == 0 || order[i] != order[i - 1])
			kept[n++] = p[order[i]];
	memcpy(&p[n_out], kept, (size_t)n * sizeof(*kept));
	return n_out + n;
}

int64_t points_thin(
	struct graph_point *p, int64_t n, const struct scale *x, int64_t groups)
{
	int64_t n_out = 0;
	for (int64_t k = 0; k < n;) {
		int64_t index[4] = {k, k, k, k}; /* first, lowest, highest, last */
		int64_t group = (int64_t)(scale_at(x, p[k].x) * (double)groups);
		for (; k < n && (int64_t)(scale_at(x, p[k].x) * (double)groups) == group;
			k++) {
			index[1] = p[k].y < p[index[1]].y ? k : index[1];
			index[2] = p[k].y > p[index[2]].y ? k : index[2];
			index[3] = k;
		}
		n_out = copy_points(p, n_out, index);
	}
	return n_out;
}
