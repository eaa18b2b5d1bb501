/* Writes a report as HTML, or as Markdown for a pull request. share/report has the style. */
#include "check/report.h"

#include <math.h>

PAGE_EMBED(report_heat_css, "share/report/heat.css");
extern const char report_heat_css[];

static void append_title(const void *report, struct str *out)
{
	const struct check_report *r = report;
	const struct step_files *f = &r->c->files;
	str_printf(out, f->two_runs ? "One step of %s and %s" : "The step from %s to %s",
		f->before.name, f->after.name);
}

/* Appends the verdict and its reason. report: a struct check_report. */
static void append_summary(const void *report, struct doc *d)
{
	const struct check_report *r = report;
	const struct check_verdict *v = step_verdict(r->c);
	scoped_str reason = {0};
	append_verdict_reason(r->c, &reason);
	if (d->kind == PAGE_HTML) {
		str_puts(d->out, "<p class=\"verdict\">");
		html_badge(d->out, v->tone, v->word);
	} else
		str_printf(d->out, "**%s**:", v->word);
	str_puts(d->out, " ");
	doc_text(d, reason.s);
	doc_markup(d, "</p>", "\n");
}

/* Appends the section "What was checked": a table of facts about the step. */
static void append_facts(const struct check_report *r, struct doc *d)
{
	static const char *const head[] = {"Checked", ""};
	struct str text = {0};
	doc_section(d, "checked", "What was checked");
	if (d->kind == PAGE_HTML) { /* without a heading */
		html_scroll(d->out, "checked");
		str_puts(d->out, "<table class=\"facts\">\n<tbody>\n");
	} else
		doc_head(d, NULL, head, ARRAY_LEN(head));
	for (int i = 0; i < N_REPORT_FACTS; i++) {
		const char *name = report_fact(r, i, &text);
		if (!name)
			continue;
		doc_row(d);
		doc_cell(d, CELL_HEADING, name);
		doc_cell(d, CELL_TEXT, text.s);
		doc_row_end(d);
	}
	str_free(&text);
	doc_table_end(d);
	doc_section_end(d);
}

/* Appends the section "Scale": expected and seen values, and a note if it was not checked. */
static void append_scales(const struct check_report *r, struct doc *d)
{
	const char *const head[] = {
		d->kind == PAGE_HTML ? "" : "Scale", ">Expected", ">Seen"};
	struct report_scale s[MAX_REPORT_SCALES];
	char text[NUM_TEXT];
	int n = list_report_scales(r->c, s);
	if (n) {
		doc_section(d, "scale", "Scale");
		doc_head(d, "scale", head, ARRAY_LEN(head));
	}
	for (int i = 0; i < n; i++) {
		doc_row(d);
		doc_cell(d, CELL_HEADING, s[i].name);
		doc_cell(d, CELL_NUMBER, format_number(text, 6, s[i].expected));
		doc_cell(d, CELL_NUMBER, format_number(text, 6, s[i].seen));
		doc_row_end(d);
	}
	if (n)
		doc_table_end(d);
	if (report_scale_note(r->c))
		doc_note(d, report_scale_note(r->c));
	if (n)
		doc_section_end(d);
}

/* Appends finding k as a list item: its text, its tensors and what it means. */
static void append_finding(const struct check_report *r, int k, struct doc *d)
{
	const struct finding *f = &r->c->findings[k];
	const bool note = is_note(f);
	scoped_str names = {0};
	report_tensors(r, k, &names);
	doc_markup(d, "<li>", note ? "- note: " : "- ");
	if (d->kind == PAGE_HTML)
		html_badge(d->out, note ? REPORT_UNCLEAR : REPORT_BAD,
			note ? "note" : "wrong");
	doc_markup(d, " <strong>", "**");
	doc_text(d, f->text);
	doc_markup(d, "</strong>", "**");
	if (names.len) {
		doc_markup(d, "<p>", ": ");
		str_printf(d->out, "%d tensor%s", f->n, plural(f->n));
		doc_markup(d, ": <code>", ", ");
		doc_text(d, names.s);
		doc_markup(d, "</code></p>\n", "");
	}
	doc_markup(d, "<p class=\"note\">", names.len ? ". " : ": ");
	doc_text(d, finding_meaning(r->c, k));
	doc_markup(d, "</p></li>\n", "\n");
}

/* Appends the section "Findings"; nothing if there are none. */
static void append_findings(const struct check_report *r, struct doc *d)
{
	const struct step_check *c = r->c;
	const struct tensor_check *first = first_wrong_gradient(c);
	if (!c->n_findings)
		return;
	doc_section(d, "findings", "Findings");
	if (first && d->kind == PAGE_HTML) {
		str_puts(d->out,
			"<p>The first wrong gradient in backward order belongs to ");
		html_text(d->out, first->name);
		str_printf(d->out, ": residual %.2g, bound %.2g.</p>\n",
			first->gradient.value, first->gradient.bound);
	}
	doc_markup(d, "<ol class=\"findings\">\n", "\n");
	for (int k = 0; k < c->n_findings; k++)
		append_finding(r, k, d);
	doc_markup(d, "</ol>\n", "");
	doc_section_end(d);
}

/* Appends the text that a cell of a map shows under the pointer. */
static void append_cell_title(
	const struct tensor_check *x, enum check_test t, struct str *out)
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

/* Appends the cell of tensor i in the map of test t; i < 0: an empty cell. */
static void html_cell(
	const struct step_check *c, int i, enum check_test t, struct str *out)
{
	struct str text = {0};
	if (i < 0) {
		str_puts(out, "<td></td>");
		return;
	}
	const struct map_mark m = mark_of_cell(c, &c->tensors[i], t);
	append_cell_title(&c->tensors[i], t, &text);
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

/* Appends the map of a test: tensors in rows, layers in columns; nothing if no cell has a color. */
static void html_map(const struct check_report *r, enum check_test t, struct str *out)
{
	enum { MAX_LABELED_LAYERS = 48 };
	bool many = r->n_layers > MAX_LABELED_LAYERS;
	if (!has_colored_cell(r, t))
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
			html_cell(r->c, row->tensors[i], t, out);
		str_puts(out, "</tr>\n");
		str_free(&name);
	}
	html_table_end(out);
	str_puts(out, "</div>\n");
}

/* Appends the section "Maps": a key to its signs, and a map per test. */
static void html_maps(const struct check_report *r, struct doc *d)
{
	doc_section(d, "maps", "Maps");
	str_puts(d->out,
		"<p class=\"note\">The distance of each tensor from what is right, relative to "
		"its bound: the largest distance that rounding explains. Within: <span "
		"class=\"key w0\">·</span> below 1/100, <span class=\"key w1\">·</span> below "
		"1/10, <span class=\"key w2\">·</span> more. Beyond: <span class=\"key "
		"b0\">×</span> below 10 times, <span class=\"key b1\">×</span> below 100, <span "
		"class=\"key b2\">×</span> below 1000, <span class=\"key b3\">×</span> more, "
		"<span class=\"key b3\">!</span> not finite. – is not tested. Point at a cell for "
		"its values.</p>\n<div class=\"maps\">\n");
	for (enum check_test t = 0; t < N_CHECK_TESTS; t++)
		html_map(r, t, d->out);
	str_puts(d->out, "</div>\n");
	doc_section_end(d);
}

/* Appends tensor i as a row of the table: sizes, distances, and the numbers of its findings. */
static void html_tensor(const struct step_check *c, int i, struct doc *d)
{
	const struct tensor_check *x = &c->tensors[i];
	char text[NUM_TEXT];
	scoped_str found = {0};
	bool bad = false;
	for (enum check_test t = 0; t < N_CHECK_TESTS; t++)
		bad |= mark_of_cell(c, x, t).beyond;
	str_printf(d->out, "<tr id=\"t%d\"%s>", i, bad ? " class=\"wrong\"" : "");
	doc_cell(d, CELL_HEADING, x->name);
	doc_cell(d, CELL_NUMBER, format_number(text, 15, (double)x->n));
	doc_cell(d, CELL_NUMBER, format_number(text, 4, x->norm));
	doc_cell(d, CELL_NUMBER,
		format_number(text, 6, known_or_nan(x->gradient.tested, x->factor)));
	for (enum check_test t = 0; t < N_CHECK_TESTS; t++) {
		const struct distance *at = distance_in(x, t);
		snprintf(text, sizeof(text), "%.2g of %.2g", at->value, at->bound);
		doc_cell(d, CELL_NUMBER, at->tested ? text : NULL);
	}
	for (int k = 0; k < c->n_findings; k++)
		if (has_finding(x, k))
			str_printf(&found, "%s%d", found.len ? ", " : "", k + 1);
	doc_cell(d, CELL_NUMBER, found.s);
	doc_row_end(d);
}

/* Appends the section "Tensors": a table that is closed at first if it is long. */
static void html_tensors(const struct check_report *r, struct doc *d)
{
	static const char *const head[] = {"Tensor", ">Elements", ">Gradient's norm",
		">Factor", ">Gradient", ">Moments", ">Update", ">Findings"};
	enum { MAX_OPEN_ROWS = 100 };
	doc_section(d, "tensors", "Tensors");
	str_printf(d->out,
		"<details%s><summary>%d tensor%s in forward order: residuals and their "
		"bounds</summary>\n",
		r->c->n <= MAX_OPEN_ROWS ? " open" : "", r->c->n, plural(r->c->n));
	doc_head(d, "tensors", head, ARRAY_LEN(head));
	for (int k = 0; k < r->c->n; k++)
		html_tensor(r->c, r->c->order[k], d);
	doc_table_end(d);
	str_puts(d->out, "</details>\n");
	doc_section_end(d);
}

/* Appends a row's name, padded to the width of the longest. */
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

/* Appends the map of test t as a code block; nothing if no cell has a color. */
static void md_map(const struct check_report *r, enum check_test t, struct str *out)
{
	struct str text = {0};
	if (!has_colored_cell(r, t))
		return;
	str_printf(&text, "%s\n", check_test_names[t]);
	for (int k = 0; k < r->n_rows; k++) {
		const struct map_row *row = &r->rows[k];
		md_row_name(r, row, &text);
		for (int i = 0; i < row->n; i++)
			str_puts(&text,
				row->tensors[i] < 0
					? " "
					: mark_of_cell(r->c,
						  &r->c->tensors[row->tensors[i]], t)
						  .sign);
		str_puts(&text, "\n");
	}
	str_puts(out, "\n");
	md_block(out, text.s);
	str_free(&text);
}

/* Appends a table of the first tensors beyond a bound. */
static void md_tensors(const struct check_report *r, struct doc *d)
{
	enum { MAX_ROWS = 40 };
	static const char *const head[] = {
		"Beyond its bound", "Test", ">Residual", ">Bound", ">Factor"};
	const struct step_check *c = r->c;
	int n = 0;
	char text[NUM_TEXT];
	for (int k = 0; k < c->n; k++) {
		const struct tensor_check *x = &c->tensors[c->order[k]];
		for (enum check_test t = 0; t < N_CHECK_TESTS; t++) {
			const struct distance *at = distance_in(x, t);
			if (!at->wrong || n++ >= MAX_ROWS)
				continue;
			if (n == 1)
				doc_head(d, NULL, head, ARRAY_LEN(head));
			doc_row(d);
			doc_cell(d, CELL_TEXT, x->name);
			doc_cell(d, CELL_TEXT, check_test_names[t]);
			doc_cell(d, CELL_NUMBER, format_number(text, 2, at->value));
			doc_cell(d, CELL_NUMBER, format_number(text, 2, at->bound));
			doc_cell(d, CELL_NUMBER,
				format_number(text, 6,
					known_or_nan(t == TEST_GRADIENT, x->factor)));
			doc_row_end(d);
		}
	}
	if (n > MAX_ROWS)
		str_printf(d->out, "\nand %d more.\n", n - MAX_ROWS);
}

static void append_html_body(const void *report, struct doc *d)
{
	const struct check_report *r = report;
	append_findings(r, d);
	append_facts(r, d);
	append_scales(r, d);
	html_maps(r, d);
	html_tensors(r, d);
}

/* Appends the whole report as Markdown. report: a struct check_report. */
static void append_markdown(const void *report, struct doc *d)
{
	const struct check_report *r = report;
	append_summary(r, d);
	append_findings(r, d);
	append_facts(r, d);
	append_scales(r, d);
	str_puts(d->out,
		"\nDistances, one column per layer: · within bounds, × beyond, ! not "
		"finite, – not tested.\n");
	for (enum check_test t = 0; t < N_CHECK_TESTS; t++)
		md_map(r, t, d->out);
	md_tensors(r, d);
}

int step_check_report(const struct step_check *c, const struct strs *batch,
	const char *path, struct err *e)
{
	static const struct page page = {.program = "pt-check",
		.title = append_title,
		.summary = append_summary,
		.body = append_html_body,
		.markdown = append_markdown,
		.style = report_heat_css};
	struct check_report r;
	report_maps_init(&r, c, batch);
	int rc = page_write(&page, &r, path, e);
	report_maps_release(&r);
	return rc;
}
