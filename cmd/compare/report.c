/* Writes a report of the kind that its name says. */
#include "compare/report.h"
#include "base/file.h"

int report_write(const struct report *r, const char *path, struct err *e)
{
	struct str text = {0};
	int kind = page_kind(path, e);
	if (kind < 0)
		return -1;
	(kind == PAGE_HTML ? report_html : report_md)(r, &text);
	int rc = file_replace(path, &text, e);
	str_free(&text);
	return rc;
}
