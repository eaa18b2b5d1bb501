/* Prints reports as a page (the parts that need no script) and as Markdown, to paste into a pull
 * request. share/report has the interactive curves. */
#include "report/report.h"
#include "compare/speed.h"

PAGE_EMBED(report_curves_html, "share/report/curves.html");
PAGE_EMBED(report_curves_css, "share/report/curves.css");
PAGE_EMBED(report_page_js, "share/report/page.js");
/* Markup, style and script of the page's curves. */
extern const char report_curves_html[], report_curves_css[], report_page_js[];

/* The context of all functions below. */
struct view {
	const struct report *r;
	struct figures figures;
	char **names; /* [r->n], of the runs */
};

/* Prints the names of the controls or of the tests, at most MAX_NAMES. */
static void print_names(const struct view *v, bool are_controls, struct str *out)
{
	enum { MAX_NAMES = 4 };
	int n = 0;
	for (int i = 0; i < v->r->n; i++) {
		if ((v->r->runs[i].control < 0) != are_controls || n++ >= MAX_NAMES)
			continue;
		str_puts(out, n > 1 ? ", " : "");
		str_puts(out, v->names[i]);
	}
	if (n > MAX_NAMES)
		str_printf(out, " and %d more", n - MAX_NAMES);
}

static void print_title(const void *context, struct str *out)
{
	const struct view *v = context;
	if (v->r->n > report_count_controls(v->r)) {
		print_names(v, false, out);
		str_puts(out, " against ");
	}
	print_names(v, true, out);
}

static void print_verdict(struct str *out, const struct report_run *run)
{
	struct str words = {0};
	report_append_verdict(run, &words);
	html_badge(out, run->tone, words.s);
	str_free(&words);
}

/* Prints text with links from "step 12" to the curves at that step. */
static void print_linked(struct str *out, const char *text)
{
	static const char word[] = "step ";
	for (const char *at; (at = strstr(text, word));) {
		const char *number = at + strlen(word);
		size_t digits = strspn(number, "0123456789");
		struct str prefix = {0};
		str_add(&prefix, text, (size_t)(at - text));
		html_text(out, prefix.s);
		str_free(&prefix);
		if (digits && digits < 17)
			str_printf(out, "<a href=\"#step=%.*s\">%s%.*s</a>", (int)digits,
				number, word, (int)digits, number);
		else
			str_printf(out, "%s%.*s", word, (int)digits, number);
		text = number + digits;
	}
	html_text(out, text);
}

/* Appends the part of the verdict after ": " as HTML, with links to its steps; nothing if
 * it has none. */
static void print_reason(struct str *out, const struct report_run *run)
{
	const char *reason = run->verdict ? strstr(run->verdict, ": ") : NULL;
	if (!reason)
		return;
	str_puts(out, "<span class=\"reason\">");
	print_linked(out, reason + 2);
	str_puts(out, "</span>");
}

/* Returns true if both runs are controls, or both are tests, with the same verdict text. */
static bool have_same_verdict(const struct report_run *a, const struct report_run *b)
{
	struct str x = {0}, y = {0};
	report_append_verdict(a, &x);
	report_append_verdict(b, &y);
	bool is_same = (a->control < 0) == (b->control < 0) && !strcmp(x.s, y.s);
	str_free(&x);
	str_free(&y);
	return is_same;
}

/* Returns true if all runs with the verdict words of `run` have the same reason. The reason is then
 * printed in the summary, otherwise in the table. */
static bool has_one_reason(const struct report *r, int run)
{
	const struct report_run *x = &r->runs[run];
	for (int i = 0; i < r->n; i++)
		if (x->verdict && r->runs[i].verdict &&
			strcmp(r->runs[i].verdict, x->verdict) != 0 &&
			have_same_verdict(&r->runs[i], x))
			return false;
	return true;
}

/* Prints the names of all runs with the verdict words of run `first`, and their reason. */
static void print_group(const struct view *v, int first, struct str *out)
{
	enum { MAX_NAMES = 4 };
	const struct report_run *runs = v->r->runs;
	struct str names = {0};
	int n = 0;
	for (int i = first; i < v->r->n; i++)
		if (have_same_verdict(&runs[i], &runs[first]) && n++ < MAX_NAMES)
			str_printf(&names, "%s%s", n > 1 ? ", " : "", v->names[i]);
	if (n > MAX_NAMES)
		str_printf(&names, " and %d more", n - MAX_NAMES);
	str_puts(out, "<li>");
	print_verdict(out, &runs[first]);
	str_puts(out, " ");
	html_element(out, "bdi", NULL, names.s);
	if (has_one_reason(v->r, first))
		print_reason(out, &runs[first]);
	str_puts(out, "</li>\n");
	str_free(&names);
}

/* Returns true for a test whose verdict words no earlier run has. */
static bool begins_group(const struct report *r, int run)
{
	for (int i = 0; i < run; i++)
		if (have_same_verdict(&r->runs[i], &r->runs[run]))
			return false;
	return r->runs[run].control >= 0;
}

static void print_summary(const void *context, struct doc *d)
{
	const struct view *v = context;
	str_puts(d->out, "<ul class=\"verdicts\">\n");
	for (int i = 0; i < v->r->n; i++)
		if (begins_group(v->r, i))
			print_group(v, i, d->out);
	str_puts(d->out, "</ul>");
}

/* ---- runs -------------------------------------------------------------------------- */

/* Prints a table cell. On narrow screens, a label replaces the column's heading. */
static void print_cell(
	struct str *out, const char *label, const char *text, bool is_number)
{
	str_printf(out, "<td class=\"%s\" data-label=\"%s\">",
		is_number	? "number"
		: text && *text ? ""
				: "absent",
		label);
	html_text(out, text && *text ? text : "–");
	str_puts(out, "</td>");
}

enum { LAYOUT, TECHNIQUES, SPEED, MFU, MEMORY, N_FACTS };

static const char *fact_name(const struct report *r, int fact)
{
	static const char *const names[N_FACTS] = {
		"Layout", "Techniques", NULL, ">MFU", ">Peak memory"};
	return fact == SPEED ? speed_heading(choose_speed_column(r->logs, r->n))
			     : names[fact];
}

/* Prints a fact of a run, such as its layout; nothing if the log lacks it. */
static void print_fact(
	const struct report *r, const struct run_log *l, int fact, struct str *out)
{
	int columns_of[N_FACTS] = {[MFU] = COL_MFU, [MEMORY] = COL_MEM};
	char text[NUM_TEXT];
	columns_of[SPEED] = choose_speed_column(r->logs, r->n);
	if (fact == LAYOUT) {
		str_puts(out, l->info.layout ? l->info.layout : "");
	} else if (fact == TECHNIQUES) {
		report_append_techniques(l, out);
		if (!out->len && l->config.len)
			str_puts(out, "default");
	} else {
		struct speed s = measure_speed(l, 1, columns_of[fact]);
		if (s.value == s.value)
			str_puts(out, speed_format(text, columns_of[fact], s.value));
	}
}

/* Prints the row of a run. shown[fact]: the table has the column. */
static void print_run(const struct view *v, int run, const struct str *facts,
	const bool *shown, struct str *out)
{
	str_puts(out, "<tr><th><bdi title=\"");
	html_text(out, v->r->logs[run].name);
	str_puts(out, "\">");
	html_text(out, v->names[run]);
	str_puts(out, "</bdi></th><td class=\"sparks\">");
	figure_print_spark(&v->figures, run, out);
	str_puts(out, "</td><td class=\"verdict-cell\">");
	print_verdict(out, &v->r->runs[run]);
	if (!has_one_reason(v->r, run))
		print_reason(out, &v->r->runs[run]);
	str_puts(out, "</td>");
	for (int k = 0; k < N_FACTS; k++) {
		const char *name = fact_name(v->r, k);
		if (shown[k])
			print_cell(out, name + (*name == '>'), facts[k].s, *name == '>');
	}
	str_puts(out, "</tr>\n");
}

/* Appends the section "Runs": a row per run, and a column per fact that any run has. */
static void print_table(const struct view *v, struct doc *d)
{
	const char *head[3 + N_FACTS] = {"Run", v->r->column, "Verdict"};
	int n = 3;
	bool shown[N_FACTS] = {0};
	struct str(*facts)[N_FACTS] = xcalloc((size_t)v->r->n, sizeof(*facts));
	for (int i = 0; i < v->r->n; i++)
		for (int k = 0; k < N_FACTS; k++) {
			print_fact(v->r, &v->r->logs[i], k, &facts[i][k]);
			shown[k] |= facts[i][k].len > 0;
		}
	for (int k = 0; k < N_FACTS; k++)
		if (shown[k])
			head[n++] = fact_name(v->r, k);
	doc_section(d, "runs", "Runs");
	if (*v->figures.list.path) {
		str_puts(d->out, "<p class=\"note\">in ");
		html_text(d->out, v->figures.list.path);
		str_puts(d->out, "</p>\n");
	}
	doc_head(d, "runs", head, n);
	for (int i = 0; i < v->r->n; i++)
		print_run(v, i, facts[i], shown, d->out);
	doc_table_end(d);
	doc_section_end(d);
	for (int i = 0; i < v->r->n; i++)
		for (int k = 0; k < N_FACTS; k++)
			str_free(&facts[i][k]);
	free(facts);
}

/* Appends a note that names the columns without a figure; nothing if all have one. */
static void print_omitted_columns(const struct figures *f, struct str *out)
{
	enum { MAX_NAMES = 40 };
	if (!f->left_out.n)
		return;
	str_puts(out, "<p class=\"note\">Not shown (choose a column by --column): ");
	for (int64_t i = 0; i < min64(f->left_out.n, MAX_NAMES); i++) {
		str_puts(out, i ? ", " : "");
		html_text(out, f->left_out.v[i]);
	}
	str_puts(out, f->left_out.n > MAX_NAMES ? ", ...</p>\n" : "</p>\n");
}

/* Appends the section "Curves": a legend, and all figures as SVG. */
static void print_curves(const struct view *v, struct doc *d)
{
	doc_section(d, "curves", "Curves");
	str_puts(d->out, report_curves_html);
	figure_print_legend(&v->figures, d->out);
	str_puts(d->out, "<div id=\"plots\">\n");
	for (int i = 0; i < v->figures.n; i++)
		figure_print_svg(&v->figures, i, d->out);
	str_puts(d->out, "</div>\n");
	print_omitted_columns(&v->figures, d->out);
	doc_section_end(d);
}

/* Appends a row of the speed table: both values, the change and its 95 % interval. */
static void print_measure(struct doc *d, const struct speed_diff *x)
{
	char text[NUM_TEXT];
	doc_row(d);
	doc_cell(d, CELL_TEXT, speed_name(x->column));
	doc_cell(d, CELL_TEXT, x->words);
	doc_cell(d, CELL_NUMBER, speed_format(text, x->column, x->control.value));
	doc_cell(d, CELL_NUMBER, speed_format(text, x->column, x->test.value));
	snprintf(text, sizeof(text), "%+.2f %%", 100 * (x->ratio - 1));
	doc_cell(d, CELL_NUMBER, text);
	snprintf(text, sizeof(text), "%+.2f to %+.2f %%", 100 * (x->low - 1),
		100 * (x->high - 1));
	doc_cell(d, CELL_NUMBER, x->high > x->low ? text : NULL);
	doc_row_end(d);
}

/* Appends the section "Speed and memory"; nothing if the logs have no such column in common. */
static void print_speed(const struct view *v, struct doc *d)
{
	const struct report *r = v->r;
	static const char *const head[] = {"Measurement", "Statement", ">Control",
		">Test", ">Change", ">95 % interval"};
	struct speed_diff diffs[MAX_SPEEDS];
	bool has_speed = false;
	for (int i = 0; i < r->n; i++) {
		int n = r->runs[i].control < 0
				? 0
				: speed_compare(r->logs, report_count_controls(r),
					  &r->logs[i], 1, diffs);
		if (n && !has_speed) {
			doc_section(d, "speed", "Speed and memory");
			doc_head(d, "speed", head, ARRAY_LEN(head));
		}
		has_speed |= n > 0;
		if (n) {
			str_printf(d->out, "<tr><th colspan=\"%zu\">", ARRAY_LEN(head));
			html_text(d->out, v->names[i]);
			str_puts(d->out, "</th></tr>\n");
		}
		for (int k = 0; k < n; k++)
			print_measure(d, &diffs[k]);
	}
	if (!has_speed)
		return;
	doc_table_end(d);
	str_puts(d->out,
		"<p class=\"note\">Medians over all steps except the first tenth (2 to 100 "
		"steps); the interval covers the noise within the runs.</p>\n");
	doc_section_end(d);
}

/* Appends the section "Comparison": for each test, the lines that pt-compare prints. */
static void print_details(const struct view *v, struct doc *d)
{
	const struct report *r = v->r;
	enum { MAX_OPEN = 8 };
	doc_section(d, "details", "Comparison");
	for (int i = 0; i < r->n; i++) {
		if (r->runs[i].control < 0 || !r->runs[i].details)
			continue;
		str_printf(
			d->out, "<details%s><summary>", r->n <= MAX_OPEN ? " open" : "");
		html_text(d->out, v->names[i]);
		str_puts(d->out, " against ");
		html_text(d->out, v->names[r->runs[i].control]);
		str_puts(d->out, "</summary>\n<pre>");
		print_linked(d->out, r->runs[i].details);
		str_puts(d->out, "</pre></details>\n");
	}
	doc_section_end(d);
}

/* Appends the options and environment in which the runs differ, as a table. */
static void print_differences(const struct view *v, struct doc *d)
{
	const struct report *r = v->r;
	const bool is_page = d->kind == PAGE_HTML;
	struct differences list;
	differences_init(r, &list);
	doc_section(d, "differences", "Options and environment");
	if (list.n) {
		doc_markup(d, "", "\nDifferences in options and environment:\n");
		doc_table(d, "differences");
		doc_column(d, "", false);
		if (is_page)
			doc_column(d, "of", false);
		for (int i = 0; i < r->n; i++)
			doc_column(d, v->names[i], false);
		doc_rows(d);
	} else
		doc_markup(d, "<p>No difference is logged.</p>\n",
			"\nNo difference in options or environment is logged.\n");
	for (int64_t k = 0; k < list.n; k++) {
		doc_row(d);
		doc_cell(d, CELL_HEADING, list.v[k].key);
		if (is_page)
			doc_cell(d, CELL_TEXT, list.v[k].group);
		for (int i = 0; i < r->n; i++)
			doc_cell(d, CELL_TEXT, list.v[k].value[i]);
		doc_row_end(d);
	}
	if (list.n)
		doc_table_end(d);
	doc_section_end(d);
	differences_release(&list);
}

/* ---- Markdown ---------------------------------------------------------------------- */

/* Appends the table of all runs, in Markdown: its facts and its verdict. */
static void print_md_runs(const struct view *v, struct doc *d)
{
	const struct report *r = v->r;
	const char *head[2 + N_FACTS] = {"Run"};
	for (int k = 0; k < N_FACTS; k++)
		head[1 + k] = fact_name(r, k);
	head[1 + N_FACTS] = "Verdict";
	doc_head(d, NULL, head, ARRAY_LEN(head));
	for (int i = 0; i < r->n; i++) {
		scoped_str text = {0};
		doc_row(d);
		doc_cell(d, CELL_HEADING, v->names[i]);
		for (int k = 0; k < N_FACTS; k++) {
			str_clear(&text);
			print_fact(r, &r->logs[i], k, &text);
			if (k == TECHNIQUES && !text.len)
				str_puts(&text, "default");
			doc_cell(d, CELL_TEXT, text.s);
		}
		str_clear(&text);
		report_append_verdict(&r->runs[i], &text);
		doc_cell(d, CELL_TEXT, text.s);
		doc_row_end(d);
	}
}

/* Appends what is known of test i and its control, in Markdown. */
static void print_md_details(const struct view *v, int i, struct str *out)
{
	const struct report *r = v->r;
	const struct report_run *run = &r->runs[i];
	struct speed_diff d[MAX_SPEEDS];
	scoped_str lines = {0};
	int n = speed_compare(r->logs, report_count_controls(r), &r->logs[i], 1, d);
	str_puts(&lines, run->details ? run->details : "");
	speed_print(d, n, &lines);
	str_puts(out, "\n**");
	md_text(out, v->names[i]);
	str_puts(out, "** against ");
	md_text(out, v->names[run->control]);
	str_puts(out, run->verdict ? ": " : "");
	md_text(out, run->verdict ? run->verdict : "");
	str_puts(out, "\n\n");
	md_block(out, lines.len ? lines.s : "");
}

/* Appends the curves as a text graph, or the error message if they cannot be drawn. */
static void print_md_graph(const struct report *r, struct str *out)
{
	const struct graph_style style = {
		.marks = MARKS_ASCII, .width = 90, .height = 20};
	struct curve_plot c;
	struct str text = {0};
	struct err e;
	const struct series_opts o = {report_count_controls(r), r->one_set, false};
	if (curve_plot_init(&c, r->logs, r->n, &o, r->column, r->axis, &e)) {
		str_puts(&text, e.msg);
	} else {
		c.graph.settled = !r->whole_range;
		graph_text(&c.graph, &style, &text);
		curve_plot_release(&c);
	}
	str_putc(out, '\n');
	md_block(out, text.s);
	str_free(&text);
}

/* Appends all sections of the HTML page. context: a struct view. */
static void print_body(const void *context, struct doc *d)
{
	const struct view *v = context;
	print_table(v, d);
	print_curves(v, d);
	if (v->r->n == 1)
		return;
	print_speed(v, d);
	print_details(v, d);
	print_differences(v, d);
}

/* Appends the whole report as Markdown. context: a struct view. */
static void print_markdown(const void *context, struct doc *d)
{
	const struct view *v = context;
	print_md_runs(v, d);
	for (int i = 0; i < v->r->n; i++)
		if (v->r->runs[i].control >= 0)
			print_md_details(v, i, d->out);
	print_md_graph(v->r, d->out);
	if (v->r->n > 1)
		print_differences(v, d);
}

static void print_data(const void *context, struct str *out)
{
	const struct view *v = context;
	report_print_data(&v->figures, out);
}

static const struct page page = {"pt-compare", print_title, print_summary, print_body,
	print_markdown, report_curves_css, report_page_js, print_data};

static void view_init(struct view *v, const struct report *r)
{
	*v = (struct view){.r = r};
	figures_init(&v->figures, r);
	v->names = v->figures.list.names;
}

void report_print_page(const struct report *r, enum page_kind kind, struct str *out)
{
	struct view v;
	view_init(&v, r);
	page_print(&page, &v, kind, out);
	figures_release(&v.figures);
}

int report_write(const struct report *r, const char *path, struct err *e)
{
	struct view v;
	view_init(&v, r);
	int rc = page_write(&page, &v, path, e);
	figures_release(&v.figures);
	return rc;
}
