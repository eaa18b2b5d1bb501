/* The differences between two runs. */
#include "base/options.h"
#include "compare/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Index of the first row from i that has the column and the key; n_rows: none. */
static int64_t next_with(const struct run_log *l, int64_t i, int column, int by)
{
	while (i < l->n_rows &&
		!(row_has(&l->rows[i], column) && row_has(&l->rows[i], by)))
		i++;
	return i;
}

static void add_pair(
	struct curve_diff *c, const struct compare_opts *o, double at, float a, float b)
{
	c->n_common++;
	if (!memcmp(&a, &b, sizeof(a)))
		return;
	struct value_pair p = {at, a, b, fabs((double)a - (double)b), float_ulps(a, b)};
	if (!c->n_differ++)
		c->first = c->largest = c->most_ulp = p;
	if (p.abs > c->largest.abs || (isnan(p.abs) && !isnan(c->largest.abs)))
		c->largest = p;
	if (p.ulp > c->most_ulp.ulp)
		c->most_ulp = p;
	/* A relative tolerance of an infinite control would accept anything. */
	if (!isfinite(p.abs) || p.abs > o->atol + o->rtol * fabs((double)a))
		c->n_beyond++;
}

static void add_lone(struct curve_diff *c, double at, bool in_control)
{
	if (!c->only_control && !c->only_test)
		c->first_only = at;
	++*(in_control ? &c->only_control : &c->only_test);
}

static void compare_curve(const struct run_log *control, const struct run_log *test,
	const struct compare_opts *o, struct curve_diff *c)
{
	int64_t i = next_with(control, 0, c->column, o->by);
	int64_t j = next_with(test, 0, c->column, o->by);
	while (i < control->n_rows || j < test->n_rows) {
		const struct row *a = i < control->n_rows ? &control->rows[i] : NULL;
		const struct row *b = j < test->n_rows ? &test->rows[j] : NULL;
		double x = a ? a->v[o->by] : INFINITY, y = b ? b->v[o->by] : INFINITY;
		if (x == y)
			add_pair(c, o, x, (float)a->v[c->column], (float)b->v[c->column]);
		else
			add_lone(c, x < y ? x : y, x < y);
		if (x <= y)
			i = next_with(control, i + 1, c->column, o->by);
		if (y <= x)
			j = next_with(test, j + 1, c->column, o->by);
	}
	bool lone = !o->common && (c->only_control || c->only_test);
	bool both = c->n_common || (c->only_control && c->only_test);
	c->verdict = !both				   ? VERDICT_NOTHING
		     : !c->n_common || lone || c->n_beyond ? VERDICT_DIFFER
		     : c->n_differ			   ? VERDICT_WITHIN
							   : VERDICT_SAME;
}

/* ---- arithmetic ------------------------------------------------------------------ */

/* A limit, because each line is searched for in the whole other text. */
enum { MOST_ARITHMETIC = 1 << 14 };

static void compare_arithmetic(
	const struct run_log *control, const struct run_log *test, struct run_diff *d)
{
	uint64_t a = control->info.arithmetic, b = test->info.arithmetic;
	struct err e;
	d->other_arithmetic = a && b && a != b;
	if (!d->other_arithmetic || !control->arithmetic.len || !test->arithmetic.len ||
		control->arithmetic.len > MOST_ARITHMETIC ||
		test->arithmetic.len > MOST_ARITHMETIC)
		return;
	const struct conf_text first = {&control->arithmetic, ""};
	const struct conf_text second = {&test->arithmetic, ""};
	conf_diff(&first, &second, "", ":", ", ", &d->arithmetic, &e);
}

/* Some runs have no evaluations, or no synchronisations. */
static bool is_of_one(const struct curve_diff *c)
{
	return c->verdict == VERDICT_NOTHING && (c->only_control || c->only_test);
}

void compare_runs(const struct run_log *control, const struct run_log *test,
	const struct compare_opts *o, struct run_diff *d)
{
	bool any = false;
	*d = (struct run_diff){.verdict = VERDICT_SAME};
	compare_arithmetic(control, test, d);
	for (int c = 0; c < N_COLUMNS; c++) {
		d->curve[c].column = c;
		d->curve[c].verdict = VERDICT_NOTHING;
		if (!columns[c].curve)
			continue;
		compare_curve(control, test, o, &d->curve[c]);
		bool shared = d->curve[c].n_common > 0;
		if (columns[c].every && is_of_one(&d->curve[c]))
			d->missing = columns[c].name;
		/* With o->common, a curve without common rows is ignored. */
		if (d->curve[c].verdict == VERDICT_NOTHING || (o->common && !shared))
			continue;
		any |= shared;
		if (d->curve[c].verdict > d->verdict)
			d->verdict = d->curve[c].verdict;
	}
	if (!any || d->missing)
		d->verdict = VERDICT_NOTHING;
}

void run_diff_free(struct run_diff *d)
{
	str_free(&d->arithmetic);
}

/* ---- printing -------------------------------------------------------------------- */

static void print_pair(
	const struct value_pair *p, const char *what, int by, struct str *out)
{
	char a[NUM_TEXT], b[NUM_TEXT], at[NUM_TEXT];
	snprintf(at, sizeof(at), "%.0f", p->at);
	str_printf(out, "%s %s %s: %s, %s (|Δ| %.3g, ", what, columns[by].name, at,
		text_float(a, p->control), text_float(b, p->test), p->abs);
	if (p->ulp == INT64_MAX)
		str_puts(out, "NaN)");
	else
		str_printf(out, "%lld ULP)", (long long)p->ulp);
}

static void print_curve(
	const struct curve_diff *c, const struct compare_opts *o, struct str *out)
{
	str_printf(out, "  %-10s ", columns[c->column].name);
	if (is_of_one(c))
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
		print_pair(&c->first, "; first at", o->by, out);
		print_pair(&c->largest, "; largest at", o->by, out);
	}
	if (c->only_control)
		str_printf(out, "; %lld only in the control", (long long)c->only_control);
	if (c->only_test)
		str_printf(out, "; %lld only in the test", (long long)c->only_test);
	if (c->only_control || c->only_test)
		str_printf(out, ", from %s %.0f", columns[o->by].name, c->first_only);
	str_putc(out, '\n');
}

/* Is a line `key: control, test` of an option that one of the logs does not have? */
static bool is_absent(const char *line, int n)
{
	const char *colon =
		memchr(line, ':', (size_t)n); /* a value may have several lines */
	return colon && n >= 3 &&
	       (!strncmp(colon, ": -, ", 5) || !strncmp(line + n - 3, ", -", 3));
}

/* Options that only one version of pt-train has may have no effect in these runs. */
static void print_arithmetic(const char *lines, struct str *out)
{
	bool absent = *lines;
	for (const char *p = lines, *end; (end = strchr(p, '\n')); p = end + 1)
		absent &= is_absent(p, (int)(end - p));
	str_puts(out,
		absent ? "  options that one of the logs does not have, which is of "
			 "another version:\n"
		       : "  different arithmetic: equal bits are not to be expected\n");
	for (const char *p = lines, *end; (end = strchr(p, '\n')); p = end + 1)
		str_printf(out, "    %.*s\n", (int)(end - p), p);
}

void run_diff_print(
	const struct run_diff *d, const struct compare_opts *o, struct str *out)
{
	static const char *const words[] = {
		[VERDICT_SAME] = "identical bit for bit",
		[VERDICT_WITHIN] = "the same within the tolerance",
		[VERDICT_DIFFER] = "they differ",
		[VERDICT_NOTHING] = "they have no value in common",
	};
	for (int c = 0; c < N_COLUMNS; c++)
		if (d->curve[c].verdict != VERDICT_NOTHING || is_of_one(&d->curve[c]))
			print_curve(&d->curve[c], o, out);
	if (d->other_arithmetic)
		print_arithmetic(d->arithmetic.len ? d->arithmetic.s : "", out);
	if (d->missing)
		str_printf(out, "verdict: only one of them has values of %s by %s\n",
			d->missing, columns[o->by].name);
	else
		str_printf(out, "verdict: %s\n", words[d->verdict]);
}

/* ---- a table --------------------------------------------------------------------- */

void compare_table(const struct run_log *logs, int n, int column, int by, struct str *out)
{
	int64_t *at = xcalloc((size_t)n, sizeof(*at));
	char num[NUM_TEXT];
	str_printf(out, "# %s", columns[by].name);
	for (int i = 0; i < n; i++) {
		str_printf(out, "\t%s", logs[i].name);
		at[i] = next_with(&logs[i], 0, column, by);
	}
	str_putc(out, '\n');
	for (;;) {
		double key = INFINITY;
		for (int i = 0; i < n; i++)
			if (at[i] < logs[i].n_rows && logs[i].rows[at[i]].v[by] < key)
				key = logs[i].rows[at[i]].v[by];
		if (isinf(key))
			break;
		str_printf(out, "%.0f", key);
		for (int i = 0; i < n; i++) {
			const struct row *r =
				at[i] < logs[i].n_rows ? &logs[i].rows[at[i]] : NULL;
			bool here = r && r->v[by] == key;
			str_printf(out, "\t%s",
				here ? text_float(num, (float)r->v[column]) : "-");
			if (here)
				at[i] = next_with(&logs[i], at[i] + 1, column, by);
		}
		str_putc(out, '\n');
	}
	free(at);
}
