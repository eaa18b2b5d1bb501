/* Reports as a page: the parts that need no script. share/report has the curves. */
#include "compare/report.h"
#include "compare/speed.h"

#include <stdlib.h>
#include <string.h>

/* ---- runs -------------------------------------------------------------------------- */

/* The first names of one side. */
static void put_names(const struct report *r, bool controls, struct str *out)
{
	enum { MOST = 4 };
	int n = 0;
	for (int i = 0; i < r->n; i++) {
		if ((r->runs[i].control < 0) != controls || n++ >= MOST)
			continue;
		str_puts(out, n > 1 ? ", " : "");
		str_puts(out, r->logs[i].name);
	}
	if (n > MOST)
		str_printf(out, " and %d more", n - MOST);
}

static void put_title(const void *of, struct str *out)
{
	const struct report *r = of;
	put_names(r, false, out);
	str_puts(out, " against ");
	put_names(r, true, out);
}

static void put_verdict(struct str *out, const struct report_run *run)
{
	struct str words = {0};
	report_words(run, &words);
	html_badge(out, run->tone, words.s);
	str_free(&words);
}

static void put_reason(struct str *out, const struct report_run *run)
{
	const char *reason = run->verdict ? strstr(run->verdict, ": ") : NULL;
	html_text(out, reason ? reason : "");
}

static void put_summary(const void *of, struct str *out)
{
	const struct report *r = of;
	str_puts(out, "<ul class=\"verdicts\">\n");
	for (int i = 0; i < r->n; i++) {
		if (r->runs[i].control < 0)
			continue;
		str_puts(out, "<li>");
		put_verdict(out, &r->runs[i]);
		str_puts(out, " ");
		html_text(out, r->logs[i].name);
		put_reason(out, &r->runs[i]);
		str_puts(out, "</li>\n");
	}
	str_puts(out, "</ul>");
}

static void put_speed_cell(struct str *out, const struct run_log *l, int column)
{
	char text[NUM_TEXT];
	struct speed s = speed_of(l, 1, column);
	html_cell(
		out, s.value == s.value ? speed_text(text, column, s.value) : NULL, true);
}

static void put_table(const struct report *r, struct str *out)
{
	static const char *const head[] = {"Run", "Layout", "Techniques", ">Tokens/s",
		">MFU", ">Peak memory", "Verdict"};
	html_section(out, "runs", "Runs");
	html_scroll(out, "runs");
	html_head(out, head, ARRAY_LEN(head));
	for (int i = 0; i < r->n; i++) {
		const struct run_log *l = &r->logs[i];
		struct str words = {0};
		report_techniques(l, &words);
		str_puts(out, "<tr>");
		html_element(out, "th", NULL, l->name);
		html_cell(out, l->info.layout, false);
		html_cell(out, words.len ? words.s : "default", false);
		put_speed_cell(out, l, COL_TPS);
		put_speed_cell(out, l, COL_MFU);
		put_speed_cell(out, l, COL_MEM);
		str_puts(out, "<td>");
		put_verdict(out, &r->runs[i]);
		str_puts(out, "</td></tr>\n");
		str_free(&words);
	}
	html_foot(out);
	html_scroll_end(out);
	html_section_end(out);
}

/* ---- speed and memory -------------------------------------------------------------- */

static void put_measure(struct str *out, const struct speed_diff *d, const char *test)
{
	char text[NUM_TEXT];
	str_puts(out, "<tr>");
	html_element(out, "th", NULL, test);
	html_cell(out, speed_name(d->column), false);
	html_cell(out, speed_text(text, d->column, d->control.value), true);
	html_cell(out, speed_text(text, d->column, d->test.value), true);
	snprintf(text, sizeof(text), "%+.2f %%", 100 * (d->ratio - 1));
	html_cell(out, text, true);
	snprintf(text, sizeof(text), "%+.2f to %+.2f %%", 100 * (d->low - 1),
		100 * (d->high - 1));
	html_cell(out, d->high > d->low ? text : NULL, true);
	html_cell(out, d->words, false);
	str_puts(out, "</tr>\n");
}

static void put_speed(const struct report *r, struct str *out)
{
	static const char *const head[] = {"Test", "Measurement", ">Control", ">Test",
		">Change", ">95 % interval", "Statement"};
	struct speed_diff d[MAX_SPEEDS];
	html_section(out, "speed", "Speed and memory");
	html_scroll(out, "speed");
	html_head(out, head, ARRAY_LEN(head));
	for (int i = 0; i < r->n; i++) {
		if (r->runs[i].control < 0)
			continue;
		int n = speed_compare(r->logs, report_controls(r), &r->logs[i], 1, d);
		for (int k = 0; k < n; k++)
			put_measure(out, &d[k], r->logs[i].name);
	}
	html_foot(out);
	html_scroll_end(out);
	str_puts(out,
		"<p class=\"note\">Medians over steps without the first tenth (2 to 100 "
		"steps); the interval is that of the noise within the runs.</p>\n");
	html_section_end(out);
}

/* ---- details and differences -------------------------------------------------------- */

static void put_details(const struct report *r, struct str *out)
{
	html_section(out, "details", "Comparison");
	for (int i = 0; i < r->n; i++) {
		if (r->runs[i].control < 0 || !r->runs[i].details)
			continue;
		str_puts(out, "<details open><summary>");
		html_text(out, r->logs[i].name);
		str_puts(out, " against ");
		html_text(out, r->logs[r->runs[i].control].name);
		str_puts(out, "</summary>\n");
		html_element(out, "pre", NULL, r->runs[i].details);
		str_puts(out, "</details>\n");
	}
	html_section_end(out);
}

static void put_differences(const struct report *r, struct str *out)
{
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
		html_element(out, "th", NULL, r->logs[i].name);
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
	const struct report *r = of;
	put_table(r, out);
	str_puts(out, report_curves_html);
	put_speed(r, out);
	put_details(r, out);
	put_differences(r, out);
}

static void put_data(const void *of, struct str *out)
{
	report_data(of, out);
}

void report_html(const struct report *r, struct str *out)
{
	const struct page page = {"pt-compare", put_title, put_summary, put_body,
		report_curves_css, report_page_js, put_data};
	page_html(&page, r, out);
}
