/* A report as a page. share/report has its style. */
#include "check/report.h"

#include <math.h>

PAGE_EMBED(report_heat_css, "share/report/heat.css");
extern const char report_heat_css[];

/* ---- HTML ----------------------------------------------------------------------------- */

static void put_title(const void *of, struct str *out)
{
	const struct check_report *r = of;
	const struct step_files *f = &r->c->files;
	str_printf(out, f->two_runs ? "One step of %s and %s" : "The step from %s to %s",
		f->before.name, f->after.name);
}

static void put_summary(const void *of, struct str *out)
{
	const struct check_report *r = of;
	struct str reason = {0};
	const struct check_verdict *v = verdict_of(r->c);
	report_reason(r->c, &reason);
	str_puts(out, "<p class=\"verdict\">");
	html_badge(out, v->tone, v->word);
	str_puts(out, " ");
	html_text(out, reason.s);
	str_puts(out, "</p>");
	str_free(&reason);
}

static void html_facts(const struct check_report *r, struct str *out)
{
	struct str text = {0};
	html_section(out, "checked", "What was checked");
	html_scroll(out, "checked");
	str_puts(out, "<table class=\"facts\">\n<tbody>\n");
	for (int i = 0; i < N_REPORT_FACTS; i++) {
		const char *name = report_fact(r, i, &text);
		if (!name)
			continue;
		str_puts(out, "<tr>");
		html_element(out, "th", NULL, name);
		html_cell(out, text.s, false);
		str_puts(out, "</tr>\n");
	}
	str_free(&text);
	html_foot(out);
	html_scroll_end(out);
	html_section_end(out);
}

static void html_scales(const struct check_report *r, struct str *out)
{
	static const char *const head[] = {"", ">Expected", ">Seen"};
	struct report_scale s[MAX_REPORT_SCALES];
	char text[NUM_TEXT];
	int n = report_scales(r->c, s);
	if (!n)
		return;
	html_section(out, "scale", "Scale");
	html_scroll(out, "scale");
	html_head(out, head, ARRAY_LEN(head));
	for (int i = 0; i < n; i++) {
		str_puts(out, "<tr>");
		html_element(out, "th", NULL, s[i].name);
		html_cell(out, report_number(text, 6, s[i].expected), true);
		html_cell(out, report_number(text, 6, s[i].seen), true);
		str_puts(out, "</tr>\n");
	}
	html_foot(out);
	html_scroll_end(out);
	if (report_unscaled(r->c))
		html_element(out, "p", "note", report_unscaled(r->c));
	html_section_end(out);
}

static void html_findings(const struct check_report *r, struct str *out)
{
	const struct step_check *c = r->c;
	const struct tensor_check *first = report_first(c);
	if (!c->n_findings)
		return;
	html_section(out, "findings", "Findings");
	if (first) {
		str_puts(
			out, "<p>The first wrong gradient in backward order is that of ");
		html_text(out, first->name);
		str_printf(out, ": residual %.2g, bound %.2g.</p>\n",
			first->gradient.value, first->gradient.bound);
	}
	str_puts(out, "<ol class=\"findings\">\n");
	for (int k = 0; k < c->n_findings; k++) {
		struct str names = {0};
		bool note = is_note(&c->findings[k]);
		report_tensors(r, k, &names);
		str_puts(out, "<li>");
		html_badge(
			out, note ? REPORT_UNCLEAR : REPORT_BAD, note ? "note" : "wrong");
		str_puts(out, " ");
		html_element(out, "strong", NULL, c->findings[k].text);
		if (names.len) {
			str_printf(out, "<p>%d tensor%s: ", c->findings[k].n,
				plural(c->findings[k].n));
			html_element(out, "code", NULL, names.s);
			str_puts(out, "</p>\n");
		}
		html_element(out, "p", "note", finding_meaning(c, k));
		str_puts(out, "</li>\n");
		str_free(&names);
	}
	str_puts(out, "</ol>\n");
	html_section_end(out);
}

/* What a place of a map shows when one points at it. */
static void put_numbers(const struct tensor_check *x, enum check_test t, struct str *out)
{
	const struct distance *d = distance_in(x, t);
	str_printf(out, "%s: ", x->name);
	if (x->nonfinite)
		str_puts(out, "not finite; ");
	if (!d->tested && !d->wrong)
		str_puts(out, "not tested");
	else
		str_printf(out, "residual %.2g, bound %.2g", d->value, d->bound);
	if (t == TEST_GRADIENT && d->tested)
		str_printf(out, ", factor %.6g", x->factor);
	if (t == TEST_UPDATE && d->tested)
		str_printf(out, ", learning rate %.4g", x->lr);
	if (t == TEST_UPDATE && d->tested && x->decays)
		str_printf(out, ", weight decay %.3g", x->decay);
}

static void html_place(
	const struct step_check *c, int i, enum check_test t, struct str *out)
{
	struct str text = {0};
	if (i < 0) {
		str_puts(out, "<td></td>");
		return;
	}
	const struct map_mark m = map_mark(c, &c->of[i], t);
	put_numbers(&c->of[i], t, &text);
	str_puts(out, "<td");
	if (m.step >= 0)
		str_printf(out, " class=\"%c%d\"", m.beyond ? 'b' : 'w', m.step);
	str_puts(out, " title=\"");
	html_text(out, text.s);
	if (m.beyond)
		str_printf(out, "\"><a href=\"#t%d\">%s</a></td>", i, m.sign);
	else
		str_printf(out, "\">%s</td>", m.sign);
	str_free(&text);
}

static void html_map(const struct check_report *r, enum check_test t, struct str *out)
{
	enum { MANY = 48 };
	bool many = r->n_layers > MANY;
	if (!map_has(r, t))
		return;
	str_puts(out, "<div>");
	html_element(out, "h3", NULL, check_test_names[t]);
	html_scroll(out, "maps");
	str_printf(out, "<table class=\"heat%s%s\">\n<thead><tr><th>layer</th>",
		t == TEST_GRADIENT ? "" : " small", many ? " many" : "");
	for (int i = 0; i < r->n_layers; i++)
		if (many && i % 10)
			str_puts(out, "<th></th>");
		else
			str_printf(out, "<th>%lld</th>", (long long)r->layers[i]);
	str_puts(out, "</tr></thead>\n<tbody>\n");
	for (int k = 0; k < r->n_rows; k++) {
		const struct map_row *row = &r->rows[k];
		struct str name = {0};
		map_row_name(row, &name);
		str_puts(out, "<tr>");
		html_element(out, "th", NULL, name.s ? name.s : "");
		for (int i = 0; i < row->n; i++)
			html_place(r->c, row->of[i], t, out);
		str_puts(out, "</tr>\n");
		str_free(&name);
	}
	html_foot(out);
	html_scroll_end(out);
	str_puts(out, "</div>\n");
}

static void html_maps(const struct check_report *r, struct str *out)
{
	html_section(out, "maps", "Maps");
	str_puts(out,
		"<p class=\"note\">The distance of each tensor from what is right, compared with the "
		"largest that rounding explains. Within: "
		"<span class=\"key w0\">·</span> below 1/100 of it, <span class=\"key w1\">·</span> "
		"below 1/10, <span class=\"key w2\">·</span> more. Beyond: "
		"<span class=\"key b0\">×</span> below 10 times, <span class=\"key b1\">×</span> "
		"below 100, <span class=\"key b2\">×</span> below 1000, "
		"<span class=\"key b3\">×</span> more, <span class=\"key b3\">!</span> not finite. "
		"– is not tested. Point at a place for its numbers.</p>\n"
		"<div class=\"maps\">\n");
	for (enum check_test t = 0; t < N_CHECK_TESTS; t++)
		html_map(r, t, out);
	str_puts(out, "</div>\n");
	html_section_end(out);
}

static void html_tensor(const struct step_check *c, int i, struct str *out)
{
	const struct tensor_check *x = &c->of[i];
	char text[NUM_TEXT];
	struct str found = {0};
	bool bad = false;
	for (enum check_test t = 0; t < N_CHECK_TESTS; t++)
		bad |= map_mark(c, x, t).beyond;
	str_printf(out, "<tr id=\"t%d\"%s>", i, bad ? " class=\"wrong\"" : "");
	html_element(out, "th", NULL, x->name);
	html_cell(out, report_number(text, 15, (double)x->n), true);
	html_cell(out, report_number(text, 4, x->norm), true);
	html_cell(out,
		report_number(text, 6, report_known(x->gradient.tested, x->factor)),
		true);
	for (enum check_test t = 0; t < N_CHECK_TESTS; t++) {
		const struct distance *d = distance_in(x, t);
		snprintf(text, sizeof(text), "%.2g of %.2g", d->value, d->bound);
		html_cell(out, d->tested ? text : NULL, true);
	}
	for (int k = 0; k < c->n_findings; k++)
		if (has_finding(x, k))
			str_printf(&found, "%s%d", found.len ? ", " : "", k + 1);
	html_cell(out, found.s, true);
	str_puts(out, "</tr>\n");
	str_free(&found);
}

static void html_tensors(const struct check_report *r, struct str *out)
{
	static const char *const head[] = {"Tensor", ">Elements", ">Gradient's norm",
		">Factor", ">Gradient", ">Moments", ">Update", ">Findings"};
	enum { OPEN = 100 };
	html_section(out, "tensors", "Tensors");
	str_printf(out,
		"<details%s><summary>%d tensor%s in forward order: residuals and their bounds</summary>\n",
		r->c->n <= OPEN ? " open" : "", r->c->n, plural(r->c->n));
	html_scroll(out, "tensors");
	html_head(out, head, ARRAY_LEN(head));
	for (int k = 0; k < r->c->n; k++)
		html_tensor(r->c, r->c->order[k], out);
	html_foot(out);
	html_scroll_end(out);
	str_puts(out, "</details>\n");
	html_section_end(out);
}

static void put_body(const void *of, struct str *out)
{
	const struct check_report *r = of;
	html_findings(r, out);
	html_facts(r, out);
	html_scales(r, out);
	html_maps(r, out);
	html_tensors(r, out);
}

void check_report_html(const struct check_report *r, struct str *out)
{
	static const struct page page = {.program = "pt-check",
		.title = put_title,
		.summary = put_summary,
		.body = put_body,
		.style = report_heat_css};
	page_html(&page, r, out);
}
