/* Parses lines of any log by a user's regular expression; its named groups are columns. */
#include "logs/formats.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* Limits for hostile patterns and lines. PCRE2's own limit restarts at each byte where a match may
 * begin, so steps are counted here, by callouts: at most MAX_STEPS, plus STEPS_OF_LINE per line. A
 * step may read a whole line, so lines above MAX_LINE bytes are not tried. */
enum { MAX_STEPS = 10000000, STEPS_OF_LINE = 10000, MAX_LINE = 4096, MAX_KIB = 65536 };

int pattern_open(struct log_formats *f, const char *regex, struct err *e)
{
	int number;
	uint32_t n;
	PCRE2_SIZE at;
	PCRE2_UCHAR why[128];
	f->regex = pcre2_compile((PCRE2_SPTR)regex, PCRE2_ZERO_TERMINATED,
		PCRE2_UTF | PCRE2_MATCH_INVALID_UTF | PCRE2_AUTO_CALLOUT, &number, &at,
		NULL);
	if (!f->regex) {
		pcre2_get_error_message(number, why, sizeof(why));
		return err_set(e, EX_USAGE, "--pattern '%s': character %zu: %s", regex,
			at, (char *)why);
	}
	pcre2_pattern_info(f->regex, PCRE2_INFO_NAMECOUNT, &n);
	if (!n)
		return err_set(e, EX_USAGE,
			"--pattern '%s': no named group, such as (?<loss>[0-9.]+)",
			regex);
	f->pattern = (struct log_format){.name = "pattern", .line = parse_pattern_line};
	return 0;
}

void pattern_close(struct log_formats *f)
{
	pcre2_code_free(f->regex);
}

/* A line that the pattern matches. */
struct match {
	const pcre2_code *code;
	struct span line;
	const PCRE2_SIZE *found;
};

/* Gets the i-th named group and its text. Returns false if there are fewer groups. */
static bool get_group(
	const struct match *m, uint32_t i, struct span *name, struct span *text)
{
	uint32_t n, bytes;
	PCRE2_SPTR table;
	pcre2_pattern_info(m->code, PCRE2_INFO_NAMECOUNT, &n);
	pcre2_pattern_info(m->code, PCRE2_INFO_NAMEENTRYSIZE, &bytes);
	pcre2_pattern_info(m->code, PCRE2_INFO_NAMETABLE, &table);
	if (i >= n)
		return false;
	PCRE2_SPTR entry = table + (size_t)i * bytes; /* two bytes: its number */
	size_t number = (size_t)entry[0] << 8 | entry[1];
	PCRE2_SIZE from = m->found[2 * number], to = m->found[2 * number + 1];
	*name = span_of((const char *)entry + 2);
	*text = from == PCRE2_UNSET || to < from
			? (struct span){NULL, 0}
			: span_trim((struct span){m->line.p + from, to - from});
	return true;
}

/* Begins a row. Without a group `step`, rows are counted. Returns false for an invalid step. */
static bool begin_match_row(struct build *b, const struct match *m)
{
	struct span name, text;
	int64_t step = b->table.rows++;
	bool is_training = false;
	for (uint32_t i = 0; get_group(m, i, &name, &text); i++) {
		is_training |= name.n == 4 && text.n && !memcmp(name.p, "loss", 4);
		if (!name_is_step(name) || !text.n)
			continue;
		if (scan_step(text, &step) != text.p + text.n) {
			build_add_lost_row(b, text);
			return false;
		}
	}
	build_begin_row(b, step, is_training);
	return true;
}

/* Adds a row with the values of the named groups. */
static void add_groups(struct build *b, const struct match *m)
{
	struct span name, text;
	if (!begin_match_row(b, m))
		return;
	for (uint32_t i = 0; get_group(m, i, &name, &text); i++) {
		double v;
		const char *after = text.n ? scan_number(text, &v) : NULL;
		struct span rest = {after, after ? (size_t)(text.p + text.n - after) : 0};
		if (!text.n || name_is_step(name))
			continue;
		if (after && !number_continues(rest))
			build_set(b, b->line.step, name, v * scale_of_suffix(rest));
		else
			build_add_unread(b, b->line.step, name, text);
	}
}

/* Stops a match after too many steps. PCRE2 calls it at each one. */
static int count_match_step(pcre2_callout_block *block, void *build)
{
	struct build *b = build;
	(void)block;
	return b->pattern.steps++ < MAX_STEPS + b->pattern.lines * STEPS_OF_LINE
		       ? 0
		       : PCRE2_ERROR_CALLOUT;
}

/* Adds the groups of the user's regular expression to b if it matches the line. Counts
 * lines; after a match that took too many steps, all lines are skipped. */
bool parse_pattern_line(struct build *b, struct span line)
{
	const pcre2_code *code = b->opts->formats->regex;
	b->pattern.lines++;
	b->pattern.n_long += line.n > MAX_LINE;
	if (line.n > MAX_LINE || b->pattern.too_hard)
		return false;
	pcre2_match_data *data = pcre2_match_data_create_from_pattern(code, NULL);
	pcre2_match_context *limits = pcre2_match_context_create(NULL);
	BUG_ON(!data || !limits);
	pcre2_set_heap_limit(limits, MAX_KIB);
	pcre2_set_callout(limits, count_match_step, b);
	int rc = pcre2_match(code, (PCRE2_SPTR)line.p, line.n, 0, 0, data, limits);
	if (rc > 0)
		add_groups(
			b, &(struct match){code, line, pcre2_get_ovector_pointer(data)});
	b->pattern.too_hard = rc < 0 && rc != PCRE2_ERROR_NOMATCH;
	pcre2_match_context_free(limits);
	pcre2_match_data_free(data);
	return rc > 0;
}
