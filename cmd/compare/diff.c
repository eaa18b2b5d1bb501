/* The exact comparison of two runs. */
#include "compare/compare.h"
#include "options/options.h"

#include <math.h>

static bool have_same_bits(float a, float b)
{
	return !memcmp(&a, &b, sizeof(a));
}

/* Returns true if x is neither a float nor the decimal text of one, with up to nine digits. */
static bool needs_double(double x)
{
	char text[NUM_TEXT];
	snprintf(text, sizeof(text), "%.9g", x);
	return isfinite(x) && (double)(float)x != x && strtod(text, NULL) != x;
}

bool same_as_logged(double a, double b)
{
	return have_same_bits((float)a, (float)b) &&
	       (a == b || !needs_double(a) || !needs_double(b));
}

bool log_is_from_pt(const struct run_log *l)
{
	return !l->info.format || !strcmp(l->info.format, "pt-run");
}

bool few_are_missing(int64_t n, int64_t n_common)
{
	enum { PART = 10 };
	return n * PART <= n_common + n;
}

int curve_direction(const struct curve_diff *c)
{
	if (c->n_higher + c->n_lower < c->n_differ || (c->n_higher && c->n_lower))
		return 0;
	return (c->n_higher > 0) - (c->n_lower > 0);
}

/* Adds two values of a row that both runs have to the comparison. */
static void add_pair(struct curve_diff *c, const struct compare_opts *o, double key,
	double x, double y)
{
	float a = (float)x, b = (float)y;
	c->n_common++;
	if (same_as_logged(x, y)) {
		if (!isfinite(a) && !c->n_nonfinite++)
			c->first_nonfinite = key;
		return;
	}
	struct value_pair p = {key, a, b, fabs((double)a - (double)b), float_ulps(a, b)};
	if (have_same_bits(a, b))
		p = (struct value_pair){key, x, y, fabs(x - y), 0};
	c->n_higher += p.test > p.control;
	c->n_lower += p.test < p.control;
	if (!c->n_differ++)
		c->first = c->largest = c->max_ulp = p;
	if (!(p.abs / fabs(p.control) <= c->max_relative) && !isnan(c->max_relative))
		c->max_relative = p.abs / fabs(p.control);
	if (p.abs > c->largest.abs || (isnan(p.abs) && !isnan(c->largest.abs)))
		c->largest = p;
	if (p.ulp > c->max_ulp.ulp)
		c->max_ulp = p;
	/* (a tolerance relative to an infinite control would accept anything) */
	if (isfinite(p.abs) && p.abs <= o->atol + o->rtol * fabs((double)a))
		return;
	if (!c->n_beyond++)
		c->beyond = p;
}

/* Counts a value that only one run has. */
static void add_lone(struct curve_diff *c, double key, bool in_control)
{
	if (!c->only_control && !c->only_test)
		c->first_only = key;
	++*(in_control ? &c->only_control : &c->only_test);
}

/* Counts the values of a log that cannot be read, which differ from everything. Lowers
 * c->first_unread to the first one. */
static int64_t count_unread(const struct run_log *l, struct curve_diff *c, int key_column)
{
	int64_t n = 0;
	int column = run_log_find(l, c->name);
	for (int64_t i = 0; i < l->n_rows; i++) {
		if (!is_unread(run_log_value(l, i, column)))
			continue;
		double key = run_log_value(l, i, key_column);
		if (!n++ && !(c->first_unread <= key))
			c->first_unread = key;
	}
	return n;
}

static bool has_unread(const struct curve_diff *c)
{
	return c->unread_control || c->unread_test;
}

/* Compares the column c->name of two runs, and sets the verdict. */
static void compare_curve(const struct run_log *control, const struct run_log *test,
	const struct compare_opts *o, struct curve_diff *c)
{
	struct log_rows r[] = {{control, run_log_find(control, c->name)},
		{test, run_log_find(test, c->name)}};
	double key;
	for (int n; (n = log_rows_next(r, 2, o->by, &key)) > 0;) {
		c->n_ending = n == 2 ? 0 : c->n_ending + 1;
		if (n == 2)
			add_pair(c, o, key, r[0].v, r[1].v);
		else
			add_lone(c, key, r[0].has_row);
	}
	c->first_unread = NAN;
	c->unread_control = count_unread(control, c, o->by);
	c->unread_test = count_unread(test, c, o->by);
	int64_t n_lone = c->only_control + c->only_test;
	if (!o->strict_end && few_are_missing(c->n_ending, c->n_common))
		n_lone -= c->n_ending;
	c->has_lone = !o->common && (n_lone || has_unread(c));
	bool has_pairs = c->n_common || (c->only_control && c->only_test);
	c->verdict = !has_pairs					  ? VERDICT_NOTHING
		     : !c->n_common || c->has_lone || c->n_beyond ? VERDICT_DIFFERENT
		     : c->n_differ				  ? VERDICT_WITHIN
								  : VERDICT_IDENTICAL;
}

/* The maximum length of a text: each line is searched for in the whole other text. */
enum { MAX_ARITHMETIC = 1 << 14 };

/* Lists the options of the arithmetic that differ. */
static void compare_arithmetic(
	const struct run_log *control, const struct run_log *test, struct run_diff *d)
{
	uint64_t a = control->info.arithmetic, b = test->info.arithmetic;
	struct err e;
	d->are_from_pt = log_is_from_pt(control) && log_is_from_pt(test);
	d->arithmetic_differs = a && b && a != b;
	if (!d->arithmetic_differs || !control->arithmetic.len || !test->arithmetic.len ||
		control->arithmetic.len > MAX_ARITHMETIC ||
		test->arithmetic.len > MAX_ARITHMETIC)
		return;
	const struct conf_text first = {&control->arithmetic, ""};
	const struct conf_text second = {&test->arithmetic, ""};
	conf_diff(&first, &second, "", ":", ", ", &d->arithmetic, &e);
}

/* Returns true for a curve that only one run has; some have no evaluations or synchronizations. */
static bool is_in_one_run(const struct curve_diff *c)
{
	return c->verdict == VERDICT_NOTHING &&
	       (c->only_control || c->only_test || has_unread(c));
}

/* Compares the judged column, if only it is compared or if it is not one of the curves, and sets
 * its curve in *d. Returns true if both runs have values of it. */
static bool compare_judged(const struct run_log *control, const struct run_log *test,
	const struct compare_opts *o, struct run_diff *d)
{
	int known = column_find(o->column);
	bool is_curve = known >= 0 && columns[known].curve;
	struct curve_diff *c = &d->curve[is_curve ? known : N_COLUMNS];
	if (is_curve && !o->only_column)
		return false;
	c->name = o->column;
	compare_curve(control, test, o, c);
	d->verdict = c->verdict;
	d->missing = o->only_column && is_in_one_run(c) ? c->name : NULL;
	return c->n_common > 0;
}

void compare_runs(const struct run_log *control, const struct run_log *test,
	const struct compare_opts *o, struct run_diff *d)
{
	bool any_shared = false;
	*d = (struct run_diff){.verdict = VERDICT_IDENTICAL};
	compare_arithmetic(control, test, d);
	for (int c = 0; c < N_CURVES; c++)
		d->curve[c].verdict = VERDICT_NOTHING;
	for (int c = 0; c < N_COLUMNS; c++) {
		if (!columns[c].curve || o->only_column)
			continue;
		d->curve[c].name = columns[c].name;
		compare_curve(control, test, o, &d->curve[c]);
		bool is_shared = d->curve[c].n_common > 0;
		if (columns[c].every && is_in_one_run(&d->curve[c]) &&
			(!o->column || !strcmp(o->column, columns[c].name)))
			d->missing = columns[c].name;
		/* With o->common, a curve without common rows is ignored. */
		if (d->curve[c].verdict == VERDICT_NOTHING || (o->common && !is_shared))
			continue;
		any_shared |= is_shared;
		if (d->curve[c].verdict > d->verdict)
			d->verdict = d->curve[c].verdict;
	}
	if (!any_shared && !d->missing && o->column)
		any_shared = compare_judged(control, test, o, d);
	d->unread_rows = control->unread.n_rows + test->unread.n_rows;
	if (d->unread_rows && !o->common && d->verdict < VERDICT_DIFFERENT)
		d->verdict = VERDICT_DIFFERENT;
	if (!any_shared || d->missing)
		d->verdict = VERDICT_NOTHING;
}

/* Counts the values that differ or that only one run has, in all curves. */
static int64_t count_differences(const struct run_diff *d)
{
	int64_t n = 0;
	for (int c = 0; c < N_CURVES; c++)
		n += d->curve[c].n_differ + d->curve[c].only_control +
		     d->curve[c].only_test;
	return n;
}

int run_diff_cmp(const struct run_diff *a, const struct run_diff *b)
{
	int64_t x = count_differences(a), y = count_differences(b);
	if (a->verdict != b->verdict)
		return a->verdict < b->verdict ? -1 : 1;
	if (x != y)
		return x < y ? -1 : 1;
	double far_a = a->curve[COL_LOSS].largest.abs;
	double far_b = b->curve[COL_LOSS].largest.abs;
	return far_a < far_b ? -1 : far_a > far_b;
}

void run_diff_release(struct run_diff *d)
{
	str_free(&d->arithmetic);
}

/* ---- printing -------------------------------------------------------------------- */

/* Prints two values that differ, such as "first at step 7: 2.5, 2.25 (test - control: -0.25)". */
static void print_pair(const struct value_pair *p, const char *what, int key_column,
	bool with_ulps, struct str *out)
{
	char a[NUM_TEXT], b[NUM_TEXT], at[NUM_TEXT];
	snprintf(at, sizeof(at), "%.0f", p->at);
	bool are_doubles = isfinite(p->abs) &&
			   (p->control != (float)p->control || p->test != (float)p->test);
	str_printf(out, "%s %s %s: %s, %s", what, columns[key_column].name, at,
		are_doubles ? text_double(a, p->control)
			    : text_float(a, (float)p->control),
		are_doubles ? text_double(b, p->test) : text_float(b, (float)p->test));
	if (!isfinite(p->abs)) /* NaN and infinity have no distance */
		return;
	str_printf(out, " (test - control: %+.3g", p->test - p->control);
	if (with_ulps)
		str_printf(out, ", %lld ULP", (long long)p->ulp);
	str_putc(out, ')');
}

/* Prints the line of a curve: how many values differ, where, and by how much. */
static void print_curve(const struct curve_diff *c, const struct compare_opts *o,
	bool with_ulps, struct str *out)
{
	int direction = curve_direction(c);
	str_printf(out, "  %-10s ", c->name);
	if (is_in_one_run(c))
		str_puts(out, "not compared");
	else if (!c->n_common)
		str_puts(out, "no value in common");
	else if (!c->n_differ)
		str_printf(out, "identical, %lld value%s", (long long)c->n_common,
			plural(c->n_common));
	else {
		str_printf(out, "%lld of %lld values differ", (long long)c->n_differ,
			(long long)c->n_common);
		if (o->rtol > 0 || o->atol > 0)
			str_printf(out, ", %lld beyond the tolerance",
				(long long)c->n_beyond);
		if (direction && c->n_differ > 1)
			str_printf(out, ", all %s", direction > 0 ? "higher" : "lower");
		print_pair(&c->first, "; first at", o->by, with_ulps, out);
		print_pair(&c->largest, "; largest at", o->by, with_ulps, out);
	}
	if (c->only_control)
		str_printf(out, "; %lld only in the control", (long long)c->only_control);
	if (c->only_test)
		str_printf(out, "; %lld only in the test", (long long)c->only_test);
	if (c->only_control || c->only_test)
		str_printf(out, ", from %s %.0f", columns[o->by].name, c->first_only);
	if (has_unread(c))
		str_printf(out,
			"; %lld in the control and %lld in the test cannot be read, the "
			"first at %s %.0f",
			(long long)c->unread_control, (long long)c->unread_test,
			columns[o->by].name, c->first_unread);
	str_putc(out, '\n');
}

void append_nonfinite(const struct run_diff *d, int key_column, struct str *out)
{
	const struct curve_diff *c = &d->curve[COL_LOSS];
	if (c->n_nonfinite)
		str_printf(out,
			"; %lld value%s of loss %s NaN or infinite in both, from %s %.0f",
			(long long)c->n_nonfinite, plural(c->n_nonfinite),
			c->n_nonfinite == 1 ? "is" : "are", columns[key_column].name,
			c->first_nonfinite);
}

/* Returns true if a line `key: control, test` is about an option that one of the logs lacks. */
static bool is_in_one_log(const char *line, int n)
{
	const char *colon = memchr(line, ':', (size_t)n); /* NULL: a value's next line */
	return colon && n >= 3 &&
	       (!strncmp(colon, ": -, ", 5) || !strncmp(line + n - 3, ", -", 3));
}

/* Introduces the differences. Options that only one version of pt-train has may have no effect. */
void arithmetic_print(const struct run_diff *d, struct str *out)
{
	const char *lines = d->arithmetic.len ? d->arithmetic.s : "";
	bool all_absent = *lines;
	for (const char *p = lines, *end; (end = strchr(p, '\n')); p = end + 1)
		all_absent &= is_in_one_log(p, (int)(end - p));
	str_puts(out,
		all_absent
			? "  options that one of the logs lacks, as it is from another version:\n"
		: d->verdict == VERDICT_IDENTICAL
			? "  different arithmetic, but the same bits in these runs\n"
			: "  different arithmetic: do not expect equal bits\n");
	for (const char *p = lines, *end; (end = strchr(p, '\n')); p = end + 1)
		str_printf(out, "    %.*s\n", (int)(end - p), p);
}

void run_diff_print(
	const struct run_diff *d, const struct compare_opts *o, struct str *out)
{
	for (int c = 0; c < N_CURVES; c++)
		if (d->curve[c].verdict != VERDICT_NOTHING || is_in_one_run(&d->curve[c]))
			print_curve(&d->curve[c], o, d->are_from_pt, out);
	if (d->unread_rows)
		str_printf(out, "  %lld row%s cannot be read\n",
			(long long)d->unread_rows, plural(d->unread_rows));
	if (d->arithmetic_differs)
		arithmetic_print(d, out);
}
