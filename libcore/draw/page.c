/* Reports as pages and as Markdown. The frame and the style of pages are in share/report. */
#include "draw/page.h"
#include "base/file.h"
#include "base/utf8.h"

PAGE_EMBED(page_frame, "share/report/page.html");
PAGE_EMBED(page_style, "share/report/page.css");
extern const char page_frame[], page_style[];

int page_kind(const char *path, struct err *e)
{
	static const char *const suffixes[] = {[PAGE_HTML] = ".html", [PAGE_MD] = ".md"};
	for (int i = 0; i < (int)ARRAY_LEN(suffixes); i++)
		if (strlen(path) > strlen(suffixes[i]) && text_ends(path, suffixes[i]))
			return i;
	return err_set(e, EX_USAGE, "--report: '%s' ends in none of .html, .md", path);
}

/* ---- HTML -------------------------------------------------------------------------- */

/* Returns true for a character that changes the direction of text, even of text next to it: U+200E,
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
	scoped_ptr char *copy = text_printable(xstrdup(s));
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
		"badge", "badge good", "badge better", "badge unclear", "badge bad"};
	html_element(out, "span", classes[tone], words);
}

void html_scroll(struct str *out, const char *id)
{
	str_printf(out,
		"<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"h-%s\">\n",
		id);
}

void html_table_end(struct str *out)
{
	str_puts(out, "</tbody>\n</table>\n</div>\n");
}

/* ---- both kinds -------------------------------------------------------------------- */

void doc_markup(struct doc *d, const char *html, const char *markdown)
{
	str_puts(d->out, d->kind == PAGE_HTML ? html : markdown);
}

void doc_text(struct doc *d, const char *text)
{
	(d->kind == PAGE_HTML ? html_text : md_text)(d->out, text ? text : "");
}

void doc_note(struct doc *d, const char *text)
{
	doc_markup(d, "<p class=\"note\">", "\n");
	doc_text(d, text);
	doc_markup(d, "</p>", "\n");
}

void doc_section(struct doc *d, const char *id, const char *heading)
{
	if (d->kind != PAGE_HTML)
		return;
	str_printf(
		d->out, "<section aria-labelledby=\"h-%s\">\n<h2 id=\"h-%s\">", id, id);
	html_text(d->out, heading);
	str_puts(d->out, "</h2>\n");
}

void doc_section_end(struct doc *d)
{
	doc_markup(d, "</section>\n", "");
}

void doc_table(struct doc *d, const char *id)
{
	if (d->kind == PAGE_HTML)
		html_scroll(d->out, id);
	doc_markup(d, "<table>\n<thead><tr>", d->out->len ? "\n|" : "|");
}

void doc_column(struct doc *d, const char *heading, bool number)
{
	if (d->kind == PAGE_HTML) {
		html_element(d->out, "th", number ? "number" : NULL, heading);
		return;
	}
	str_puts(d->out, *heading ? " " : "");
	md_text(d->out, heading);
	str_puts(d->out, " |");
	str_puts(&d->rule, number ? " ---: |" : " --- |");
}

void doc_rows(struct doc *d)
{
	doc_markup(d, "</tr></thead>\n<tbody>", "\n|");
	str_printf(d->out, "%s\n", d->rule.s ? d->rule.s : "");
	str_free(&d->rule);
}

void doc_head(struct doc *d, const char *id, const char *const *words, int n)
{
	doc_table(d, id);
	for (int i = 0; i < n; i++)
		doc_column(d, words[i] + (*words[i] == '>'), *words[i] == '>');
	doc_rows(d);
}

void doc_row(struct doc *d)
{
	doc_markup(d, "<tr>", "|");
}

void doc_cell(struct doc *d, enum cell kind, const char *text)
{
	bool is_empty = !text || !*text;
	if (d->kind == PAGE_MD) {
		str_puts(d->out, " ");
		md_text(d->out, is_empty ? "-" : text);
		str_puts(d->out, " |");
	} else if (kind == CELL_HEADING) {
		html_element(d->out, "th", NULL, text);
	} else {
		html_element(d->out, "td",
			kind == CELL_NUMBER ? "number"
			: is_empty	    ? "absent"
					    : NULL,
			is_empty ? "–" : text);
	}
}

void doc_row_end(struct doc *d)
{
	doc_markup(d, "</tr>\n", "\n");
}

void doc_table_end(struct doc *d)
{
	if (d->kind == PAGE_HTML)
		html_table_end(d->out);
}

/* ---- the page ---------------------------------------------------------------------- */

enum part { POLICY, TITLE, STYLE, SUMMARY, BODY, FOOTER, SCRIPT, N_PARTS };
static const char *const part_marks[N_PARTS] = {
	"@POLICY@", "@TITLE@", "@STYLE@", "@SUMMARY@", "@BODY@", "@FOOTER@", "@SCRIPT@"};

/* Appends what replaces a mark in the frame of pages. */
static void append_part(
	const struct page *p, const void *report, enum part part, struct doc *d)
{
	scoped_str title = {0};
	char now[NUM_TEXT];
	switch (part) {
	case POLICY:
		str_puts(d->out, p->script ? "; script-src 'unsafe-inline'" : "");
		break;
	case TITLE:
		p->title(report, &title);
		doc_text(d, title.s);
		break;
	case STYLE:
		str_puts(d->out, page_style);
		str_puts(d->out, p->style ? p->style : "");
		break;
	case SUMMARY:
		p->summary(report, d);
		break;
	case BODY:
		p->body(report, d);
		break;
	case FOOTER:
		str_printf(d->out, "%s %s, %s", p->program, PT_VERSION,
			clock_text(now, clock_wall()));
		break;
	case SCRIPT:
		if (!p->script)
			break;
		str_puts(d->out, "<script type=\"application/json\" id=\"data\">");
		p->data(report, d->out);
		str_printf(d->out, "</script>\n<script>\n%s\n</script>\n", p->script);
		break;
	case N_PARTS:
		bug(__FILE__, __LINE__, "unknown mark in the frame of pages");
	}
}

void page_print(
	const struct page *p, const void *report, enum page_kind kind, struct str *out)
{
	struct doc d = {.kind = kind, .out = out};
	if (kind == PAGE_MD) {
		p->markdown(report, &d);
		return;
	}
	const char *s = page_frame;
	for (const char *at; (at = strchr(s, '@'));) {
		enum part part = 0;
		while (part < N_PARTS - 1 &&
			strncmp(at, part_marks[part], strlen(part_marks[part])) != 0)
			part++;
		str_add(out, s, (size_t)(at - s));
		append_part(p, report, part, &d);
		s = at + strlen(part_marks[part]);
	}
	str_puts(out, s);
}

int page_write(const struct page *p, const void *report, const char *path, struct err *e)
{
	scoped_str text = {0};
	int kind = page_kind(path, e);
	if (kind < 0)
		return -1;
	page_print(p, report, (enum page_kind)kind, &text);
	return file_replace(path, &text, e);
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

void md_block(struct str *out, const char *text)
{
	for (const char *p = text; *p; p += strcspn(p, "\n"), p += *p == '\n') {
		str_puts(out, "    ");
		for (const char *q = p; *q && *q != '\n'; q++)
			str_putc(out, (unsigned char)*q < ' ' ? ' ' : *q);
		str_putc(out, '\n');
	}
}
