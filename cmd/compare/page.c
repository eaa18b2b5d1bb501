/* The files of share/report that are for curves. */
#include "compare/report.h"

PAGE_EMBED(report_curves_html, "share/report/curves.html");
PAGE_EMBED(report_curves_css, "share/report/curves.css");
PAGE_EMBED(report_page_js, "share/report/page.js");
