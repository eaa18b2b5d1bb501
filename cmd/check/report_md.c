/* A report in Markdown, to be pasted into a pull request. */
#include "check/report.h"

#include <math.h>

/* ---- Markdown ------------------------------------------------------------------------- */

static void md_verdict(const struct check_report *r, struct str *out)
{
	struct str text = {0};
	str_printf(out, "**%s**: ", verdict_of(r->c)->word);
	report_reason(r->c, &text);
	md_text(out, text.s);
	str_puts(out, "\n");
	str_free(&text);
}

static void md_facts(const struct check_report *r, struct str *out)
{
	struct str text = {0};
	str_puts(out, "\n| Checked | |\n| --- | --- |\n");
	for (int i = 0; i < N_REPORT_FACTS; i++) {
		const char *name = report_fact(r, i, &text);
		if (!name)
			continue;
		str_puts(out, "|");
		md_cell(out, name);
		md_cell(out, text.s);
		str_puts(out, "\n");
	}
	str_free(&text);
}

static void md_scales(const struct check_report *r, struct str *out)
{
	struct report_scale s[MAX_REPORT_SCALES];
	char text[NUM_TEXT];
	int n = report_scales(r->c, s);
	str_puts(out, n ? "\n| Scale | Expected | Seen |\n| --- | ---: | ---: |\n" : "");
	for (int i = 0; i < n; i++) {
		str_puts(out, "|");
		md_cell(out, s[i].name);
		md_cell(out, report_number(text, 6, s[i].expected));
		md_cell(out, report_number(text, 6, s[i].seen));
		str_puts(out, "\n");
	}
	if (report_unscaled(r->c))
		str_printf(out, "\n%s\n", report_unscaled(r->c));
}

static void md_findings(const struct check_report *r, struct str *out)
{
	const struct step_check *c = r->c;
	for (int k = 0; k < c->n_findings; k++) {
		struct str names = {0};
		report_tensors(r, k, &names);
		str_printf(out, "%s- %s**", k ? "" : "\n",
			is_note(&c->findings[k]) ? "note: " : "");
		md_text(out, c->findings[k].text);
		str_puts(out, "**");
		if (names.len) {
			str_printf(out, ": %d tensor%s, ", c->findings[k].n,
				plural(c->findings[k].n));
			md_text(out, names.s);
		}
		str_printf(out, "%s %s\n", names.len ? "." : ":", finding_meaning(c, k));
		str_free(&names);
	}
}

/* The names of the rows, all of one length. */
static void md_row_name(
	const struct check_report *r, const struct map_row *row, struct str *out)
{
	size_t widest = 0, begin = out->len;
	for (int k = 0; k < r->n_rows; k++) {
		struct str name = {0};
		map_row_name(&r->rows[k], &name);
		widest = name.len > widest ? name.len : widest;
		str_free(&name);
	}
	map_row_name(row, out);
	str_printf(out, "%*s", (int)(begin + widest - out->len + 2), "");
}

static void md_map(const struct check_report *r, enum check_test t, struct str *out)
{
	struct str text = {0};
	if (!map_has(r, t))
		return;
	str_printf(&text, "%s\n", check_test_names[t]);
	for (int k = 0; k < r->n_rows; k++) {
		const struct map_row *row = &r->rows[k];
		md_row_name(r, row, &text);
		for (int i = 0; i < row->n; i++)
			str_puts(&text,
				row->of[i] < 0
					? " "
					: map_mark(r->c, &r->c->of[row->of[i]], t).sign);
		str_puts(&text, "\n");
	}
	str_puts(out, "\n");
	md_block(out, text.s);
	str_free(&text);
}

static void md_tensors(const struct check_report *r, struct str *out)
{
	enum { MOST = 40 };
	const struct step_check *c = r->c;
	int n = 0;
	char text[NUM_TEXT];
	for (int k = 0; k < c->n; k++) {
		const struct tensor_check *x = &c->of[c->order[k]];
		for (enum check_test t = 0; t < N_CHECK_TESTS; t++) {
			const struct distance *d = distance_in(x, t);
			if (!d->wrong || n++ >= MOST)
				continue;
			str_puts(out,
				n == 1 ? "\n| Beyond its bound | Test | Residual | Bound | "
					 "Factor |\n| --- | --- | ---: | ---: | ---: |\n"
				       : "");
			str_puts(out, "|");
			md_cell(out, x->name);
			md_cell(out, check_test_names[t]);
			md_cell(out, report_number(text, 2, d->value));
			md_cell(out, report_number(text, 2, d->bound));
			md_cell(out,
				report_number(text, 6,
					report_known(t == TEST_GRADIENT, x->factor)));
			str_puts(out, "\n");
		}
	}
	if (n > MOST)
		str_printf(out, "\nand %d more.\n", n - MOST);
}

void check_report_md(const struct check_report *r, struct str *out)
{
	md_verdict(r, out);
	md_findings(r, out);
	md_facts(r, out);
	md_scales(r, out);
	str_puts(out,
		"\nDistances, a column a layer: · within bounds, × beyond, ! not finite, "
		"– not tested.\n");
	for (enum check_test t = 0; t < N_CHECK_TESTS; t++)
		md_map(r, t, out);
	md_tensors(r, out);
}
