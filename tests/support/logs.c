#include "tests/support/logs.h"
#include "tests/support/support.h"

#include "base/file.h"

#include <math.h>

void assert_value(const struct run_log *l, const struct want *w)
{
	int c = run_log_find(l, w->column);
	if (c < 0)
		fail_msg("%s: no column %s", l->info.format, w->column);
	for (int64_t i = 0; i < l->n_rows; i++) {
		if (run_log_value(l, i, COL_STEP) != (double)w->step)
			continue;
		double v = run_log_value(l, i, c);
		if (isnan(w->v) ? is_absent(v) || !isnan(v)
				: !(fabs(v - w->v) <= 1e-12 * fabs(w->v)))
			fail_msg("%s: %s of step %lld is %.17g", l->info.format,
				w->column, (long long)w->step, v);
		return;
	}
	fail_msg("%s: no step %lld", l->info.format, (long long)w->step);
}

const struct log_options *how_of(const char *format)
{
	static struct log_options known[64];
	struct err e = {0};
	for (size_t i = 0; i < ARRAY_LEN(known); i++) {
		struct log_options *how = &known[i];
		const char *name = format ? format : "auto";
		if (how->formats && !strcmp(how->format, name))
			return how;
		if (how->formats)
			continue;
		how->format = xstrdup(name);
		if (log_options_load(how, &e))
			fail_msg("%s", e.msg);
		return how;
	}
	fail_msg("too many formats");
	return NULL;
}

const char *write_bytes(const char *name, const struct str *s)
{
	struct err e = {0};
	const char *path = test_path(name);
	if (file_replace(path, s, &e))
		fail_msg("%s", e.msg);
	return path;
}
