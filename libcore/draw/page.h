/* page: reports as a page for a browser or as Markdown. The page is one self-contained file.
 * Texts come from untrusted files, and are escaped. */
#pragma once

#include "base/base.h"

enum page_kind { PAGE_HTML, PAGE_MD };
/* Returns the kind for the suffix of a name, .html or .md; -1 with *e set for other suffixes. */
int page_kind(const char *path, struct err *e);

enum report_tone {
	REPORT_NEUTRAL,
	REPORT_GOOD,
	REPORT_BETTER,
	REPORT_UNCLEAR,
	REPORT_BAD
};

/* A report that is being written, of either kind. */
struct doc {
	enum page_kind kind;
	struct str *out;
	struct str rule; /* Markdown: the line below the heading of the current table */
};

/* A kind of report. All programs share the frame and the style of pages. */
typedef void page_put(const void *report, struct doc *d);
struct page {
	const char *program;
	void (*title)(const void *report, struct str *out); /* text without markup */
	page_put *summary; /* the part below the title of a page */
	page_put *body;
	page_put *markdown; /* the whole report as Markdown */
	const char *style;  /* added to the common style */
	const char *script; /* NULL: scripts are disabled */
	void (*data)(const void *report, struct str *out); /* for the script, as JSON */
};
/* Appends the report. */
void page_print(
	const struct page *p, const void *report, enum page_kind kind, struct str *out);
/* Writes the report to a file, HTML or Markdown by its suffix. Returns 0, or -1 with *e set. */
int page_write(const struct page *p, const void *report, const char *path, struct err *e);

/* ---- both kinds ---- */

/* Appends one of two texts with markup, by the kind of document. */
void doc_markup(struct doc *d, const char *html, const char *markdown);
void doc_text(struct doc *d, const char *text); /* appends escaped text */
void doc_note(struct doc *d, const char *text);
/* Begins a section with a heading of id "h-" + `id`; nothing in Markdown. */
void doc_section(struct doc *d, const char *id, const char *heading);
void doc_section_end(struct doc *d);
/* Begins a table in the section: columns, then rows of cells. A wide table scrolls. */
void doc_table(struct doc *d, const char *id);
/* Adds a column with this heading to the table; numbers are aligned on the right. */
void doc_column(struct doc *d, const char *heading, bool number);
void doc_rows(struct doc *d); /* after the last column */
/* Begins a table with these columns and then its rows; '>' begins headings of numbers. */
void doc_head(struct doc *d, const char *id, const char *const *words, int n);
void doc_row(struct doc *d);
enum cell { CELL_TEXT, CELL_NUMBER, CELL_HEADING };
/* Appends a cell of the current row, escaped. NULL or "": a dash. */
void doc_cell(struct doc *d, enum cell kind, const char *text);
void doc_row_end(struct doc *d);
void doc_table_end(struct doc *d);

/* ---- HTML ---- */

/* Appends escaped text. Control characters and bytes that are not UTF-8 become question marks;
 * characters that change the direction of text are removed. */
void html_text(struct str *out, const char *s);
/* Appends an element; `class` may be NULL. */
void html_element(struct str *out, const char *name, const char *class, const char *text);
void html_badge(struct str *out, enum report_tone tone, const char *words);
void html_scroll(struct str *out, const char *id); /* before a table of its own */
void html_table_end(struct str *out);

/* ---- Markdown ---- */

/* Appends text, escaped so that it cannot begin a construct or end a table cell. */
void md_text(struct str *out, const char *s);
/* Appends lines as a code block, which no line can end. */
void md_block(struct str *out, const char *text);

/* Embeds a file, with a NUL at its end, as const char symbol[]. */
#define PAGE_EMBED(symbol, file)                                        \
	__asm__(".section .rodata\n.global " #symbol "\n" #symbol ":\n" \
		".incbin \"" file "\"\n.byte 0\n.previous\n")
