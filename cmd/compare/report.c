/* Writes a report of the kind that its name says. */
#include "compare/report.h"
#include "base/file.h"

#include <string.h>

static const struct {
	const char *suffix;
	void (*print)(const struct report *r, struct str *out);
} kinds[] = {
	{".html", report_html},
	{".md", report_md},
};

static int kind_of(const char *path)
{
	size_t len = strlen(path);
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		size_t suffix = strlen(kinds[i].suffix);
		if (len > suffix && !strcmp(path + len - suffix, kinds[i].suffix))
			return (int)i;
	}
	return -1;
}

int report_check(const char *path, struct err *e)
{
	return kind_of(path) >= 0
		       ? 0
		       : err_set(e, EX_USAGE, "report: '%s' ends in none of .html, .md",
				 path);
}

int report_write(const struct report *r, const char *path, struct err *e)
{
	struct str text = {0};
	if (report_check(path, e))
		return -1;
	kinds[kind_of(path)].print(r, &text);
	int rc = file_replace(path, &text, e);
	str_free(&text);
	return rc;
}
