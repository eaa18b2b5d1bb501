/* The files of share/report, as the assembler reads them, each with a NUL at its end. */
#include "compare/report.h"

#define EMBED(symbol, file)                                             \
	__asm__(".section .rodata\n.global " #symbol "\n" #symbol ":\n" \
		".incbin \"" file "\"\n.byte 0\n.previous\n")

EMBED(report_page_html, "share/report/page.html");
EMBED(report_page_css, "share/report/page.css");
EMBED(report_page_js, "share/report/page.js");
