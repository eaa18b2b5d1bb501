/*
 * page: reports as a page for a browser or as Markdown. The page is one file, which asks for nothing else. Texts
 * come from files that are not trusted, and are escaped.
 */
#ifndef DRAW_PAGE_H
#define DRAW_PAGE_H

#include "base/base.h"

enum page_kind { PAGE_HTML, PAGE_MD };
/* By the suffix of a name: .html or .md; else -1 with *e set. */
int page_kind(const char *path, struct err *e);

enum report_tone { REPORT_NEUTRAL, REPORT_GOOD, REPORT_UNCLEAR, REPORT_BAD };

/* A page: its frame and its style are the same for all programs. Functions put what they are named after. */
typedef void page_put(const void *of, struct str *out);
struct page {
	const char *program;
	page_put *title;   /* text without markup */
	page_put *summary; /* what stands below the title */
	page_put *body;
	const char *style;  /* besides that of all pages */
	const char *script; /* NULL: none, and none may run */
	page_put *data;	    /* of the script, as JSON */
};
void page_html(const struct page *p, const void *of, struct str *out);

/* Text, escaped; for control characters and what is no UTF-8 there are question marks, and what turns the direction of
 * text is left out. */
void html_text(struct str *out, const char *s);
/* class: NULL for none. */
void html_element(struct str *out, const char *name, const char *class, const char *text);
void html_badge(struct str *out, enum report_tone tone, const char *words);
/* A section with a heading, whose id is "h-" and `id`; up to html_section_end(). */
void html_section(struct str *out, const char *id, const char *heading);
void html_section_end(struct str *out);
/* For a table that scrolls if it is wide, in this section; up to html_scroll_end(). */
void html_scroll(struct str *out, const char *id);
void html_scroll_end(struct str *out);
/* A table with a heading; words that begin with '>' are headings of numbers. */
void html_head(struct str *out, const char *const *words, int n);
void html_foot(struct str *out);
/* NULL or "": a dash. */
void html_cell(struct str *out, const char *text, bool number);

/* Text that begins no construct and ends no cell of a table. */
void md_text(struct str *out, const char *s);
void md_cell(struct str *out, const char *s); /* NULL or "": a dash */
/* Lines as a block of code, which none of them can end. */
void md_block(struct str *out, const char *text);

/* A file as the assembler reads it, with a NUL at its end: const char symbol[]. */
#define PAGE_EMBED(symbol, file)                                        \
	__asm__(".section .rodata\n.global " #symbol "\n" #symbol ":\n" \
		".incbin \"" file "\"\n.byte 0\n.previous\n")

#endif
