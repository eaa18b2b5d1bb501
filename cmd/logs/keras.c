/* The output of Keras' fit(): one line per epoch, and its progress bar. */
#include "logs/named.h"

#include <ctype.h>

/* Parses "Epoch 3/10": the epoch of the lines below, and the number of epochs. */
static bool parse_epoch_line(struct build *b, struct span line)
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
	build_set_total(b, total);
	return true;
}

/* Returns the byte after "100/100" of a complete epoch, a line that begins with "- ", or NULL. */
static const char *skip_complete_bar(struct span line)
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

/* Returns the seconds per step in a line with "2s 5ms/step"; NAN: not stated. */
static double parse_time_per_step(struct span line)
{
	static const struct {
		const char *name;
		double scale;
	} units[] = {{"us/step", 1e-6}, {"ms/step", 1e-3}, {"s/step", 1}};
	double v;
	for (size_t i = 0; i < ARRAY_LEN(units); i++) {
		const char *unit = span_find(line, units[i].name), *p = unit;
		while (p && p > line.p && (isdigit((unsigned char)p[-1]) || p[-1] == '.'))
			p--;
		if (p && p < unit && scan_double(p, unit, &v) == unit)
			return v * units[i].scale;
	}
	return NAN;
}

/* Parses the progress bar of a complete epoch: earlier bars have the mean of a part of it. */
bool parse_keras_line(struct build *b, struct span line)
{
	struct named f[MAX_NAMED];
	while (line.n && (line.p[line.n - 1] == '\b' ||
				 isspace((unsigned char)line.p[line.n - 1])))
		line.n--;
	while (line.n && (*line.p == '\b' || isspace((unsigned char)*line.p)))
		line.p++, line.n--;
	if (parse_epoch_line(b, line) || b->plain.epoch < 0)
		return false;
	const char *p = skip_complete_bar(line), *end = line.p + line.n;
	int n = p ? find_named_numbers((struct span){p, (size_t)(end - p)}, f) : 0;
	bool has_loss = false;
	for (int i = 0; i < n; i++)
		has_loss |= f[i].name.n == 4 && !memcmp(f[i].name.p, "loss", 4);
	if (!has_loss)
		return false;
	begin_named_row(b, b->plain.epoch);
	for (int i = 0; i < n; i++)
		if (f[i].name.n != 3 || memcmp(f[i].name.p, "ETA", 3) != 0)
			set_named_column(b, b->line.step, &f[i]);
	double time = parse_time_per_step(line);
	if (isfinite(time))
		build_set(b, b->line.step, SPAN("dt"), time);
	return true;
}
