/* The output of Keras' fit(): one line per epoch, and its progress bar. */
#include "logs/named.h"

#include <ctype.h>

/* Parses "Epoch 3/10". */
static bool parse_epoch(struct build *b, struct span line)
{
	static const char mark[] = "Epoch ";
	size_t n = sizeof(mark) - 1;
	int64_t epoch, total;
	const char *end = line.p + line.n;
	if (!span_begins(line, mark))
		return false;
	const char *p = scan_step((struct span){line.p + n, line.n - n}, &epoch);
	p = p && p < end && *p == '/'
		    ? scan_step((struct span){p + 1, (size_t)(end - p - 1)}, &total)
		    : NULL;
	if (p != end)
		return false;
	b->plain.epoch = epoch;
	build_total(b, total);
	return true;
}

/* Returns the byte after "100/100" of a complete epoch, a line that begins with "- ", or NULL. */
static const char *after_bar(struct span line)
{
	int64_t n, total;
	const char *end = line.p + line.n, *p = scan_step(line, &n);
	if (!p)
		return span_begins(line, "- ") ? line.p : NULL;
	if (p == end || *p != '/')
		return NULL;
	p = scan_step((struct span){p + 1, (size_t)(end - p - 1)}, &total);
	return p && n == total && total > 0 ? p : NULL;
}

/* Returns the time of a step in "2s 5ms/step"; NAN: not stated. */
static double time_of_step(struct span line)
{
	static const struct {
		const char *name;
		double scale;
	} units[] = {{"us/step", 1e-6}, {"ms/step", 1e-3}, {"s/step", 1}};
	double v;
	for (size_t i = 0; i < ARRAY_LEN(units); i++) {
		const char *at = span_find(line, units[i].name), *p = at;
		while (p && p > line.p && (isdigit((unsigned char)p[-1]) || p[-1] == '.'))
			p--;
		if (p && p < at && scan_double(p, at, &v) == at)
			return v * units[i].scale;
	}
	return NAN;
}

/* Reads a row from the bar of a complete epoch, since earlier bars have means of a part of it. */
bool line_keras(struct build *b, struct span line)
{
	struct named f[MAX_NAMED];
	while (line.n && (line.p[line.n - 1] == '\b' ||
				 isspace((unsigned char)line.p[line.n - 1])))
		line.n--;
	while (line.n && (*line.p == '\b' || isspace((unsigned char)*line.p)))
		line.p++, line.n--;
	if (parse_epoch(b, line) || b->plain.epoch < 0)
		return false;
	const char *p = after_bar(line), *end = line.p + line.n;
	int n = p ? find_named((struct span){p, (size_t)(end - p)}, f) : 0;
	bool has_loss = false;
	for (int i = 0; i < n; i++)
		has_loss |= f[i].name.n == 4 && !memcmp(f[i].name.p, "loss", 4);
	if (!has_loss)
		return false;
	begin_named_row(b, b->plain.epoch);
	for (int i = 0; i < n; i++)
		if (f[i].name.n != 3 || memcmp(f[i].name.p, "ETA", 3) != 0)
			set_named(b, b->line.step, &f[i]);
	double time = time_of_step(line);
	if (isfinite(time))
		build_set(b, b->line.step, SPAN("dt"), time);
	return true;
}
