/* Reports as a page: the parts that need no script. share/report has the rest. */
#include "compare/report.h"
#include "compare/speed.h"

#include <stdlib.h>
#include <string.h>

static void put_text(struct str *out, const char *s)
{
	for (; *s; s++) {
		const char *escape = *s == '<'	 ? "&lt;"
				     : *s == '>' ? "&gt;"
				     : *s == '&' ? "&amp;"
				     : *s == '"' ? "&quot;"
						 : NULL;
		if (escape)
			str_puts(out, escape);
		else if ((unsigned char)*s >= ' ' || *s == '\n' || *s == '\t')
			str_putc(out, *s);
	}
}

static void put_element(
	struct str *out, const char *name, const char *class, const char *text)
{
	str_printf(out, "<%s%s%s%s>", name, class ? " class=\"" : "", class ? class : "",
		class ? "\"" : "");
	put_text(out, text);
	str_printf(out, "</%s>", name);
}

static void put_cell(struct str *out, const char *text, bool number)
{
	bool absent = !text || !*text;
	put_element(out, "td",
		number	 ? "number"
		: absent ? "absent"
			 : NULL,
		absent ? "–" : text);
}

/* A heading that begins with '>' is that of numbers. */
static void put_head(struct str *out, const char *const *words, int n)
{
	str_puts(out, "<table>\n<thead><tr>");
	for (int i = 0; i < n; i++) {
		bool number = *words[i] == '>';
		put_element(out, "th", number ? "number" : NULL, words[i] + number);
	}
	str_puts(out, "</tr></thead>\n<tbody>\n");
}

static void put_foot(struct str *out)
{
	str_puts(out, "</tbody>\n</table>\n");
}

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
		put_text(out, r->logs[i].name);
	}
	if (n > MOST)
		str_printf(out, " and %d more", n - MOST);
}

static void put_title(const struct report *r, struct str *out)
{
	put_names(r, false, out);
	str_puts(out, " against ");
	put_names(r, true, out);
}

static void put_verdict(struct str *out, const struct report_run *run)
{
	static const char *const classes[] = {
		"badge", "badge good", "badge unclear", "badge bad"};
	struct str words = {0};
	report_words(run, &words);
	put_element(out, "span", classes[run->tone], words.s);
	str_free(&words);
}

static void put_reason(struct str *out, const struct report_run *run)
{
	const char *reason = run->verdict ? strstr(run->verdict, ": ") : NULL;
	put_text(out, reason ? reason : "");
}

static void put_summary(const struct report *r, struct str *out)
{
	str_puts(out, "<ul class=\"verdicts\">\n");
	for (int i = 0; i < r->n; i++) {
		if (r->runs[i].control < 0)
			continue;
		str_puts(out, "<li>");
		put_verdict(out, &r->runs[i]);
		str_puts(out, " ");
		put_text(out, r->logs[i].name);
		put_reason(out, &r->runs[i]);
		str_puts(out, "</li>\n");
	}
	str_puts(out, "</ul>");
}

static void put_speed_cell(struct str *out, const struct run_log *l, int column)
{
	char text[NUM_TEXT];
	struct speed s = speed_of(l, 1, column);
	put_cell(
		out, s.value == s.value ? speed_text(text, column, s.value) : NULL, true);
}

static void put_table(const struct report *r, struct str *out)
{
	static const char *const head[] = {"Run", "Layout", "Techniques", ">Tokens/s",
		">MFU", ">Peak memory", "Verdict"};
	put_head(out, head, ARRAY_LEN(head));
	for (int i = 0; i < r->n; i++) {
		const struct run_log *l = &r->logs[i];
		struct str words = {0};
		report_techniques(l, &words);
		str_puts(out, "<tr>");
		put_element(out, "th", NULL, l->name);
		put_cell(out, l->info.layout, false);
		put_cell(out, words.len ? words.s : "default", false);
		put_speed_cell(out, l, COL_TPS);
		put_speed_cell(out, l, COL_MFU);
		put_speed_cell(out, l, COL_MEM);
		str_puts(out, "<td>");
		put_verdict(out, &r->runs[i]);
		str_puts(out, "</td></tr>\n");
		str_free(&words);
	}
	put_foot(out);
}

/* ---- speed and memory -------------------------------------------------------------- */

static void put_measure(struct str *out, const struct speed_diff *d, const char *test)
{
	char text[NUM_TEXT];
	str_puts(out, "<tr>");
	put_element(out, "th", NULL, test);
	put_cell(out, speed_name(d->column), false);
	put_cell(out, speed_text(text, d->column, d->control.value), true);
	put_cell(out, speed_text(text, d->column, d->test.value), true);
	snprintf(text, sizeof(text), "%+.2f %%", 100 * (d->ratio - 1));
	put_cell(out, text, true);
	snprintf(text, sizeof(text), "%+.2f to %+.2f %%", 100 * (d->low - 1),
		100 * (d->high - 1));
	put_cell(out, d->high > d->low ? text : NULL, true);
	put_cell(out, d->words, false);
	str_puts(out, "</tr>\n");
}

static void put_speed(const struct report *r, struct str *out)
{
	static const char *const head[] = {"Test", "Measurement", ">Control", ">Test",
		">Change", ">95 % interval", "Statement"};
	struct speed_diff d[MAX_SPEEDS];
	str_puts(out,
		"<section aria-labelledby=\"h-speed\">\n<h2 id=\"h-speed\">Speed and memory</h2>\n"
		"<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"h-speed\">\n");
	put_head(out, head, ARRAY_LEN(head));
	for (int i = 0; i < r->n; i++) {
		if (r->runs[i].control < 0)
			continue;
		int n = speed_compare(r->logs, report_controls(r), &r->logs[i], 1, d);
		for (int k = 0; k < n; k++)
			put_measure(out, &d[k], r->logs[i].name);
	}
	put_foot(out);
	str_puts(out,
		"</div>\n<p class=\"note\">Medians over steps without the first tenth (2 to 100 "
		"steps); the interval is that of the noise within the runs.</p>\n</section>");
}

/* ---- details and differences -------------------------------------------------------- */

static void put_details(const struct report *r, struct str *out)
{
	str_puts(out,
		"<section aria-labelledby=\"h-details\">\n<h2 id=\"h-details\">Comparison</h2>\n");
	for (int i = 0; i < r->n; i++) {
		if (r->runs[i].control < 0 || !r->runs[i].details)
			continue;
		str_puts(out, "<details open><summary>");
		put_text(out, r->logs[i].name);
		str_puts(out, " against ");
		put_text(out, r->logs[r->runs[i].control].name);
		str_puts(out, "</summary>\n");
		put_element(out, "pre", NULL, r->runs[i].details);
		str_puts(out, "</details>\n");
	}
	str_puts(out, "</section>");
}

static void put_differences(const struct report *r, struct str *out)
{
	struct differences d;
	differences_of(r, &d);
	str_puts(out,
		"<section aria-labelledby=\"h-differences\">\n<h2 id=\"h-differences\">"
		"Options and environment</h2>\n");
	if (!d.n) {
		str_puts(out, "<p>No difference is logged.</p>\n</section>");
		return;
	}
	str_puts(out,
		"<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"h-differences\">\n"
		"<table>\n<thead><tr><th></th><th>of</th>");
	for (int i = 0; i < r->n; i++)
		put_element(out, "th", NULL, r->logs[i].name);
	str_puts(out, "</tr></thead>\n<tbody>\n");
	for (int64_t k = 0; k < d.n; k++) {
		str_puts(out, "<tr>");
		put_element(out, "th", NULL, d.v[k].key);
		put_cell(out, d.v[k].group, false);
		for (int i = 0; i < r->n; i++)
			put_cell(out, d.v[k].value[i], false);
		str_puts(out, "</tr>\n");
	}
	put_foot(out);
	str_puts(out, "</div>\n</section>");
	differences_free(&d);
}

/* ---- the page ---------------------------------------------------------------------- */

static void put_style(const struct report *r, struct str *out)
{
	(void)r;
	str_puts(out, report_page_css);
}

static void put_script(const struct report *r, struct str *out)
{
	(void)r;
	str_puts(out, report_page_js);
}

static void put_footer(const struct report *r, struct str *out)
{
	char now[NUM_TEXT];
	(void)r;
	str_printf(out, "pt-compare %s, %s", PT_VERSION, clock_text(now, clock_wall()));
}

static const struct {
	const char *mark;
	void (*put)(const struct report *r, struct str *out);
} parts[] = {
	{"@TITLE@", put_title},
	{"@STYLE@", put_style},
	{"@SUMMARY@", put_summary},
	{"@TABLE@", put_table},
	{"@SPEED@", put_speed},
	{"@DETAILS@", put_details},
	{"@DIFFERENCES@", put_differences},
	{"@DATA@", report_data},
	{"@SCRIPT@", put_script},
	{"@FOOTER@", put_footer},
};

/* Puts the part whose mark is at the begin of a text; returns the length of the mark. */
static size_t put_part(const struct report *r, const char *at, struct str *out)
{
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		size_t len = strlen(parts[i].mark);
		if (strncmp(at, parts[i].mark, len) != 0)
			continue;
		parts[i].put(r, out);
		return len;
	}
	BUG_ON(*at);
	return 0;
}

void report_html(const struct report *r, struct str *out)
{
	for (const char *p = report_page_html, *at; *p; p = at) {
		at = strchr(p, '@');
		if (!at)
			at = p + strlen(p);
		str_add(out, p, (size_t)(at - p));
		at += put_part(r, at, out);
	}
}
