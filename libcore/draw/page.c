/* Reports as pages and as Markdown. share/report has the frame of the pages and their style. */
#include "draw/page.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

PAGE_EMBED(page_frame, "share/report/page.html");
PAGE_EMBED(page_style, "share/report/page.css");
extern const char page_frame[], page_style[];

int page_kind(const char *path, struct err *e)
{
	static const char *const suffixes[] = {[PAGE_HTML] = ".html", [PAGE_MD] = ".md"};
	for (int i = 0; i < (int)ARRAY_LEN(suffixes); i++)
		if (strlen(path) > strlen(suffixes[i]) && text_ends(path, suffixes[i]))
			return i;
	return err_set(e, EX_USAGE, "report: '%s' ends in none of .html, .md", path);
}

/* ---- HTML -------------------------------------------------------------------------- */

/* A character that turns the direction of text around, and with it what others have written beside it: U+200E,
 * U+200F, U+202A to U+202E, U+2066 to U+2069. */
static bool is_direction_mark(const char *s)
{
	const unsigned char *c = (const unsigned char *)s;
	return c[0] == 0xe2 &&
	       ((c[1] == 0x80 && (c[2] == 0x8e || c[2] == 0x8f ||
					 (c[2] >= 0xaa && c[2] <= 0xae))) ||
		       (c[1] == 0x81 && c[2] >= 0xa6 && c[2] <= 0xa9));
}

void html_text(struct str *out, const char *s)
{
	char *copy = text_printable(xstrdup(s));
	for (s = copy; *s; s++) {
		const char *escape = *s == '<'	 ? "&lt;"
				     : *s == '>' ? "&gt;"
				     : *s == '&' ? "&amp;"
				     : *s == '"' ? "&quot;"
						 : NULL;
		if (escape)
			str_puts(out, escape);
		else if (is_direction_mark(s))
			s += 2;
		else
			str_putc(out, *s);
	}
	free(copy);
}

void html_element(struct str *out, const char *name, const char *class, const char *text)
{
	str_printf(out, "<%s%s%s%s>", name, class ? " class=\"" : "", class ? class : "",
		class ? "\"" : "");
	html_text(out, text);
	str_printf(out, "</%s>", name);
}

void html_badge(struct str *out, enum report_tone tone, const char *words)
{
	static const char *const classes[] = {
		"badge", "badge good", "badge unclear", "badge bad"};
	html_element(out, "span", classes[tone], words);
}

void html_section(struct str *out, const char *id, const char *heading)
{
	str_printf(out, "<section aria-labelledby=\"h-%s\">\n<h2 id=\"h-%s\">", id, id);
	html_text(out, heading);
	str_puts(out, "</h2>\n");
}

void html_section_end(struct str *out)
{
	str_puts(out, "</section>\n");
}

void html_scroll(struct str *out, const char *id)
{
	str_printf(out,
		"<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"h-%s\">\n",
		id);
}

void html_scroll_end(struct str *out)
{
	str_puts(out, "</div>\n");
}

void html_head(struct str *out, const char *const *words, int n)
{
	str_puts(out, "<table>\n<thead><tr>");
	for (int i = 0; i < n; i++) {
		bool number = *words[i] == '>';
		html_element(out, "th", number ? "number" : NULL, words[i] + number);
	}
	str_puts(out, "</tr></thead>\n<tbody>\n");
}

void html_foot(struct str *out)
{
	str_puts(out, "</tbody>\n</table>\n");
}

void html_cell(struct str *out, const char *text, bool number)
{
	bool absent = !text || !*text;
	html_element(out, "td",
		number	 ? "number"
		: absent ? "absent"
			 : NULL,
		absent ? "–" : text);
}

/* ---- the page ---------------------------------------------------------------------- */

static void put_style(const struct page *p, const void *of, struct str *out)
{
	(void)of;
	str_puts(out, page_style);
	str_puts(out, p->style ? p->style : "");
}

static void put_policy(const struct page *p, const void *of, struct str *out)
{
	(void)of;
	str_puts(out, p->script ? "; script-src 'unsafe-inline'" : "");
}

static void put_title(const struct page *p, const void *of, struct str *out)
{
	scoped_str text = {0};
	p->title(of, &text);
	html_text(out, text.s ? text.s : "");
}

static void put_summary(const struct page *p, const void *of, struct str *out)
{
	p->summary(of, out);
}

static void put_body(const struct page *p, const void *of, struct str *out)
{
	p->body(of, out);
}

static void put_footer(const struct page *p, const void *of, struct str *out)
{
	char now[NUM_TEXT];
	(void)of;
	str_printf(
		out, "%s %s, %s", p->program, PT_VERSION, clock_text(now, clock_wall()));
}

static void put_script(const struct page *p, const void *of, struct str *out)
{
	if (!p->script)
		return;
	str_puts(out, "<script type=\"application/json\" id=\"data\">");
	p->data(of, out);
	str_puts(out, "</script>\n<script>\n");
	str_puts(out, p->script);
	str_puts(out, "\n</script>\n");
}

static const struct {
	const char *mark;
	void (*put)(const struct page *p, const void *of, struct str *out);
} parts[] = {
	{"@POLICY@", put_policy},
	{"@TITLE@", put_title},
	{"@STYLE@", put_style},
	{"@SUMMARY@", put_summary},
	{"@BODY@", put_body},
	{"@FOOTER@", put_footer},
	{"@SCRIPT@", put_script},
};

/* Puts the part whose mark is at the begin of a text; returns the length of the mark. */
static size_t put_part(
	const struct page *p, const void *of, const char *at, struct str *out)
{
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		size_t len = strlen(parts[i].mark);
		if (strncmp(at, parts[i].mark, len) != 0)
			continue;
		parts[i].put(p, of, out);
		return len;
	}
	BUG_ON(*at);
	return 0;
}

void page_html(const struct page *p, const void *of, struct str *out)
{
	for (const char *s = page_frame, *at; *s; s = at) {
		at = strchr(s, '@');
		if (!at)
			at = s + strlen(s);
		str_add(out, s, (size_t)(at - s));
		at += put_part(p, of, at, out);
	}
}

/* ---- Markdown ---------------------------------------------------------------------- */

void md_text(struct str *out, const char *s)
{
	for (; *s; s++) {
		if (strchr("\\`*_{}[]<>#|~&!", *s))
			str_putc(out, '\\');
		str_putc(out, (unsigned char)*s < ' ' ? ' ' : *s);
	}
}

void md_cell(struct str *out, const char *s)
{
	str_puts(out, " ");
	md_text(out, s && *s ? s : "-");
	str_puts(out, " |");
}

void md_block(struct str *out, const char *text)
{
	for (const char *p = text; *p; p += strcspn(p, "\n"), p += *p == '\n') {
		str_puts(out, "    ");
		for (const char *q = p; *q && *q != '\n'; q++)
			str_putc(out, (unsigned char)*q < ' ' ? ' ' : *q);
		str_putc(out, '\n');
	}
}
