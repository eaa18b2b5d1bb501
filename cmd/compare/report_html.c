/* Reports as a page: the parts that need no script. share/report has the curves. */
#include "compare/report.h"
#include "compare/speed.h"

#include <stdlib.h>
#include <string.h>

/* What the functions of the page know. */
struct view {
	const struct report *r;
	struct figures figures;
	char **names; /* of the runs */
};

/* ---- verdicts ---------------------------------------------------------------------- */

/* The first names of one side. */
static void put_names(const struct view *v, bool controls, struct str *out)
{
	enum { MOST = 4 };
	int n = 0;
	for (int i = 0; i < v->r->n; i++) {
		if ((v->r->runs[i].control < 0) != controls || n++ >= MOST)
			continue;
		str_puts(out, n > 1 ? ", " : "");
		str_puts(out, v->names[i]);
	}
	if (n > MOST)
		str_printf(out, " and %d more", n - MOST);
}

static void put_title(const void *of, struct str *out)
{
	const struct view *v = of;
	if (v->r->n > report_controls(v->r)) {
		put_names(v, false, out);
		str_puts(out, " against ");
	}
	put_names(v, true, out);
}

static void put_verdict(struct str *out, const struct report_run *run)
{
	struct str words = {0};
	report_words(run, &words);
	html_badge(out, run->tone, words.s);
	str_free(&words);
}

/* Text in which "step 12" leads to the curves at that step. */
static void put_linked(struct str *out, const char *text)
{
	static const char word[] = "step ";
	for (const char *at; (at = strstr(text, word));) {
		const char *number = at + strlen(word);
		size_t digits = strspn(number, "0123456789");
		struct str before = {0};
		str_add(&before, text, (size_t)(at - text));
		html_text(out, before.s);
		str_free(&before);
		if (digits && digits < 17)
			str_printf(out, "<a href=\"#step=%.*s\">%s%.*s</a>", (int)digits,
				number, word, (int)digits, number);
		else
			str_printf(out, "%s%.*s", word, (int)digits, number);
		text = number + digits;
	}
	html_text(out, text);
}

static void put_reason(struct str *out, const struct report_run *run)
{
	const char *reason = run->verdict ? strstr(run->verdict, ": ") : NULL;
	if (!reason)
		return;
	str_puts(out, "<span class=\"reason\">");
	put_linked(out, reason + 2);
	str_puts(out, "</span>");
}

static bool same_words(const struct report_run *a, const struct report_run *b)
{
	struct str x = {0}, y = {0};
	report_words(a, &x);
	report_words(b, &y);
	bool same = (a->control < 0) == (b->control < 0) && !strcmp(x.s, y.s);
	str_free(&x);
	str_free(&y);
	return same;
}

/* Whether all runs with the words of this one's verdict have its reason, too: it then stands in the summary, and
 * else in the table. */
static bool has_one_reason(const struct report *r, int run)
{
	const struct report_run *of = &r->runs[run];
	for (int i = 0; i < r->n; i++)
		if (of->verdict && r->runs[i].verdict &&
			strcmp(r->runs[i].verdict, of->verdict) != 0 &&
			same_words(&r->runs[i], of))
			return false;
	return true;
}

/* The runs whose verdict has the words of this one's, which is the first of them. */
static void put_group(const struct view *v, int first, struct str *out)
{
	enum { MOST = 4 };
	const struct report_run *runs = v->r->runs;
	struct str names = {0};
	int n = 0;
	for (int i = first; i < v->r->n; i++)
		if (same_words(&runs[i], &runs[first]) && n++ < MOST)
			str_printf(&names, "%s%s", n > 1 ? ", " : "", v->names[i]);
	if (n > MOST)
		str_printf(&names, " and %d more", n - MOST);
	str_puts(out, "<li>");
	put_verdict(out, &runs[first]);
	str_puts(out, " ");
	html_element(out, "bdi", NULL, names.s);
	if (has_one_reason(v->r, first))
		put_reason(out, &runs[first]);
	str_puts(out, "</li>\n");
	str_free(&names);
}

static bool begins_group(const struct report *r, int run)
{
	for (int i = 0; i < run; i++)
		if (same_words(&r->runs[i], &r->runs[run]))
			return false;
	return r->runs[run].control >= 0;
}

static void put_summary(const void *of, struct str *out)
{
	const struct view *v = of;
	str_puts(out, "<ul class=\"verdicts\">\n");
	for (int i = 0; i < v->r->n; i++)
		if (begins_group(v->r, i))
			put_group(v, i, out);
	str_puts(out, "</ul>");
}

/* ---- runs -------------------------------------------------------------------------- */

/* Where a cell is told apart by its words, on a narrow screen, it has a label. */
static void put_cell(struct str *out, const char *label, const char *text, bool number)
{
	str_printf(out, "<td class=\"%s\" data-label=\"%s\">",
		number		? "number"
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
	return fact == SPEED ? speed_heading(speed_shown(r->logs, r->n)) : names[fact];
}

/* A fact of a run; nothing if the log does not say. */
static void put_fact(
	const struct report *r, const struct run_log *l, int fact, struct str *out)
{
	int columns_of[N_FACTS] = {[MFU] = COL_MFU, [MEMORY] = COL_MEM};
	char text[NUM_TEXT];
	columns_of[SPEED] = speed_shown(r->logs, r->n);
	if (fact == LAYOUT) {
		str_puts(out, l->info.layout ? l->info.layout : "");
	} else if (fact == TECHNIQUES) {
		report_techniques(l, out);
		if (!out->len && l->config.len)
			str_puts(out, "default");
	} else {
		struct speed s = speed_of(l, 1, columns_of[fact]);
		if (s.value == s.value)
			str_puts(out, speed_text(text, columns_of[fact], s.value));
	}
}

static void put_run(const struct view *v, int run, const struct str *facts,
	const bool *shown, struct str *out)
{
	str_puts(out, "<tr><th><bdi title=\"");
	html_text(out, v->r->logs[run].name);
	str_puts(out, "\">");
	html_text(out, v->names[run]);
	str_puts(out, "</bdi></th><td class=\"sparks\">");
	figure_spark(&v->figures, run, out);
	str_puts(out, "</td><td class=\"verdict-cell\">");
	put_verdict(out, &v->r->runs[run]);
	if (!has_one_reason(v->r, run))
		put_reason(out, &v->r->runs[run]);
	str_puts(out, "</td>");
	for (int k = 0; k < N_FACTS; k++) {
		const char *name = fact_name(v->r, k);
		if (shown[k])
			put_cell(out, name + (*name == '>'), facts[k].s, *name == '>');
	}
	str_puts(out, "</tr>\n");
}

static void put_table(const struct view *v, struct str *out)
{
	const char *head[3 + N_FACTS] = {"Run", v->r->column, "Verdict"};
	int n = 3;
	bool shown[N_FACTS] = {0};
	struct str(*facts)[N_FACTS] = xcalloc((size_t)v->r->n, sizeof(*facts));
	for (int i = 0; i < v->r->n; i++)
		for (int k = 0; k < N_FACTS; k++) {
			put_fact(v->r, &v->r->logs[i], k, &facts[i][k]);
			shown[k] |= facts[i][k].len > 0;
		}
	for (int k = 0; k < N_FACTS; k++)
		if (shown[k])
			head[n++] = fact_name(v->r, k);
	html_section(out, "runs", "Runs");
	if (*v->figures.list.path) {
		str_puts(out, "<p class=\"note\">in ");
		html_text(out, v->figures.list.path);
		str_puts(out, "</p>\n");
	}
	html_scroll(out, "runs");
	html_head(out, head, n);
	for (int i = 0; i < v->r->n; i++)
		put_run(v, i, facts[i], shown, out);
	html_foot(out);
	html_scroll_end(out);
	html_section_end(out);
	for (int i = 0; i < v->r->n; i++)
		for (int k = 0; k < N_FACTS; k++)
			str_free(&facts[i][k]);
	free(facts);
}

/* ---- curves ------------------------------------------------------------------------ */

static void put_left_out(const struct figures *f, struct str *out)
{
	enum { MOST = 40 };
	if (!f->left_out.n)
		return;
	str_puts(out, "<p class=\"note\">Not shown, which --column does: ");
	for (int64_t i = 0; i < min64(f->left_out.n, MOST); i++) {
		str_puts(out, i ? ", " : "");
		html_text(out, f->left_out.v[i]);
	}
	str_puts(out, f->left_out.n > MOST ? ", ...</p>\n" : "</p>\n");
}

static void put_curves(const struct view *v, struct str *out)
{
	html_section(out, "curves", "Curves");
	str_puts(out, report_curves_html);
	figure_legend(&v->figures, out);
	str_puts(out, "<div id=\"plots\">\n");
	for (int i = 0; i < v->figures.n; i++)
		figure_svg(&v->figures, i, out);
	str_puts(out, "</div>\n");
	put_left_out(&v->figures, out);
	html_section_end(out);
}

/* ---- speed and memory -------------------------------------------------------------- */

static void put_measure(struct str *out, const struct speed_diff *d)
{
	char text[NUM_TEXT];
	str_puts(out, "<tr>");
	html_cell(out, speed_name(d->column), false);
	html_cell(out, d->words, false);
	html_cell(out, speed_text(text, d->column, d->control.value), true);
	html_cell(out, speed_text(text, d->column, d->test.value), true);
	snprintf(text, sizeof(text), "%+.2f %%", 100 * (d->ratio - 1));
	html_cell(out, text, true);
	snprintf(text, sizeof(text), "%+.2f to %+.2f %%", 100 * (d->low - 1),
		100 * (d->high - 1));
	html_cell(out, d->high > d->low ? text : NULL, true);
	str_puts(out, "</tr>\n");
}

static void put_speed(const struct view *v, struct str *out)
{
	const struct report *r = v->r;
	static const char *const head[] = {"Measurement", "Statement", ">Control",
		">Test", ">Change", ">95 % interval"};
	struct speed_diff d[MAX_SPEEDS];
	struct str rows = {0};
	for (int i = 0; i < r->n; i++) {
		if (r->runs[i].control < 0)
			continue;
		int n = speed_compare(r->logs, report_controls(r), &r->logs[i], 1, d);
		if (n) {
			str_printf(&rows, "<tr><th colspan=\"%zu\">", ARRAY_LEN(head));
			html_text(&rows, v->names[i]);
			str_puts(&rows, "</th></tr>\n");
		}
		for (int k = 0; k < n; k++)
			put_measure(&rows, &d[k]);
	}
	if (!rows.len) /* no log says */
		return;
	html_section(out, "speed", "Speed and memory");
	html_scroll(out, "speed");
	html_head(out, head, ARRAY_LEN(head));
	str_add(out, rows.s, rows.len);
	str_free(&rows);
	html_foot(out);
	html_scroll_end(out);
	str_puts(out,
		"<p class=\"note\">Medians over steps without the first tenth (2 to 100 "
		"steps); the interval is that of the noise within the runs.</p>\n");
	html_section_end(out);
}

/* ---- details and differences -------------------------------------------------------- */

static void put_details(const struct view *v, struct str *out)
{
	const struct report *r = v->r;
	enum { MOST_OPEN = 8 };
	html_section(out, "details", "Comparison");
	for (int i = 0; i < r->n; i++) {
		if (r->runs[i].control < 0 || !r->runs[i].details)
			continue;
		str_printf(out, "<details%s><summary>", r->n <= MOST_OPEN ? " open" : "");
		html_text(out, v->names[i]);
		str_puts(out, " against ");
		html_text(out, v->names[r->runs[i].control]);
		str_puts(out, "</summary>\n<pre>");
		put_linked(out, r->runs[i].details);
		str_puts(out, "</pre></details>\n");
	}
	html_section_end(out);
}

static void put_differences(const struct view *v, struct str *out)
{
	const struct report *r = v->r;
	struct differences d;
	differences_of(r, &d);
	html_section(out, "differences", "Options and environment");
	if (!d.n) {
		str_puts(out, "<p>No difference is logged.</p>\n");
		html_section_end(out);
		return;
	}
	html_scroll(out, "differences");
	str_puts(out, "<table>\n<thead><tr><th></th><th>of</th>");
	for (int i = 0; i < r->n; i++)
		html_element(out, "th", NULL, v->names[i]);
	str_puts(out, "</tr></thead>\n<tbody>\n");
	for (int64_t k = 0; k < d.n; k++) {
		str_puts(out, "<tr>");
		html_element(out, "th", NULL, d.v[k].key);
		html_cell(out, d.v[k].group, false);
		for (int i = 0; i < r->n; i++)
			html_cell(out, d.v[k].value[i], false);
		str_puts(out, "</tr>\n");
	}
	html_foot(out);
	html_scroll_end(out);
	html_section_end(out);
	differences_free(&d);
}

/* ---- the page ---------------------------------------------------------------------- */

static void put_body(const void *of, struct str *out)
{
	const struct view *v = of;
	put_table(v, out);
	put_curves(v, out);
	if (v->r->n == 1)
		return;
	put_speed(v, out);
	put_details(v, out);
	put_differences(v, out);
}

static void put_data(const void *of, struct str *out)
{
	const struct view *v = of;
	report_data(&v->figures, out);
}

void report_html(const struct report *r, struct str *out)
{
	const struct page page = {"pt-compare", put_title, put_summary, put_body,
		report_curves_css, report_page_js, put_data};
	struct view v = {.r = r};
	figures_init(&v.figures, r);
	v.names = v.figures.list.names;
	page_html(&page, &v, out);
	figures_free(&v.figures);
}
