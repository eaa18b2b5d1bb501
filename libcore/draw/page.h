/*
 * page: reports as a page for a browser or as Markdown. The page is one file, which asks for nothing else. Texts
 * come from files that are not trusted, and are escaped.
 */
#pragma once

#include "base/base.h"

enum page_kind { PAGE_HTML, PAGE_MD };
/* By the suffix of a name: .html or .md; else -1 with *e set. */
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
	struct str rule; /* Markdown: below the heading of the current table */
};

/* A report. Frame and style of pages are the same for all programs. */
typedef void page_put(const void *of, struct doc *d);
struct page {
	const char *program;
	void (*title)(const void *of, struct str *out); /* text without markup */
	page_put *summary; /* what stands below the title of a page */
	page_put *body;
	page_put *markdown;			       /* all of it */
	const char *style;			       /* besides that of all pages */
	const char *script;			       /* NULL: none, and none may run */
	void (*data)(const void *of, struct str *out); /* of the script, as JSON */
};
/* Appends the report. */
void page_put_all(
	const struct page *p, const void *of, enum page_kind kind, struct str *out);
/* Writes a file of the kind that its suffix says. 0, or -1 with *e set. */
int page_write(const struct page *p, const void *of, const char *path, struct err *e);

/* ---- both kinds ---- */

/* Markup, as it is: the one or the other. */
void doc_markup(struct doc *d, const char *html, const char *markdown);
void doc_text(struct doc *d, const char *text); /* escaped */
void doc_note(struct doc *d, const char *text);
/* A section of a page with a heading, whose id is "h-" and `id`; Markdown has none. */
void doc_section(struct doc *d, const char *id, const char *heading);
void doc_section_end(struct doc *d);
/* A table in this section, which scrolls if it is wide: columns, rows of cells. */
void doc_table(struct doc *d, const char *id);
void doc_column(struct doc *d, const char *heading, bool number);
void doc_rows(struct doc *d); /* after the last column */
/* All three; words that begin with '>' are headings of numbers. */
void doc_head(struct doc *d, const char *id, const char *const *words, int n);
void doc_row(struct doc *d);
enum cell { CELL_TEXT, CELL_NUMBER, CELL_HEADING };
void doc_cell(struct doc *d, enum cell kind, const char *text); /* NULL or "": a dash */
void doc_row_end(struct doc *d);
void doc_table_end(struct doc *d);

/* ---- HTML ---- */

/* Text, escaped; for control characters and what is no UTF-8 there are question marks, and what turns the direction of
 * text is left out. */
void html_text(struct str *out, const char *s);
/* class: NULL for none. */
void html_element(struct str *out, const char *name, const char *class, const char *text);
void html_badge(struct str *out, enum report_tone tone, const char *words);
void html_scroll(struct str *out, const char *id); /* before a table of its own */
void html_table_end(struct str *out);

/* ---- Markdown ---- */

/* Text that begins no construct and ends no cell of a table. */
void md_text(struct str *out, const char *s);
/* Lines as a block of code, which none of them can end. */
void md_block(struct str *out, const char *text);

/* A file as the assembler reads it, with a NUL at its end: const char symbol[]. */
#define PAGE_EMBED(symbol, file)                                        \
	__asm__(".section .rodata\n.global " #symbol "\n" #symbol ":\n" \
		".incbin \"" file "\"\n.byte 0\n.previous\n")
