/* Lines of other trainers' logs: a mark, the step, and numbers with labels. */
#include "logs/formats.h"

#include <ctype.h>

bool span_begins(struct span s, const char *prefix)
{
	size_t n = strlen(prefix);
	return s.n >= n && !memcmp(s.p, prefix, n);
}

/* Does what isspace() does in the C locale. */
static inline bool is_space(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

struct span span_trim(struct span s)
{
	while (s.n && is_space(*s.p))
		s.p++, s.n--;
	while (s.n && is_space(s.p[s.n - 1]))
		s.n--;
	return s;
}

const char *span_find(struct span s, const char *text)
{
	return s.n ? memmem(s.p, s.n, text, strlen(text)) : NULL;
}

static bool is_word_byte(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

/* Returns true if the byte p of a line does not continue a word. */
static bool begins_word(const char *line, const char *p)
{
	return p == line || !is_word_byte(*p) || !is_word_byte(p[-1]);
}

const char *span_find_word(struct span s, const char *text)
{
	const char *end = s.p + s.n;
	for (const char *p = s.p; p < end; p++) {
		p = span_find((struct span){p, (size_t)(end - p)}, text);
		if (!p || begins_word(s.p, p))
			return p;
	}
	return NULL;
}

/* ---- numbers --------------------------------------------------------------------- */

static const char *skip_blanks(struct span s)
{
	size_t n = 0;
	while (n < s.n && (s.p[n] == ' ' || s.p[n] == '\t'))
		n++;
	return s.p + n;
}

/* Returns true for a comma and exactly three digits. */
static bool is_thousands(const char *p, const char *end)
{
	return end - p >= 4 && *p == ',' && isdigit((unsigned char)p[1]) &&
	       isdigit((unsigned char)p[2]) && isdigit((unsigned char)p[3]) &&
	       (end - p == 4 || !isdigit((unsigned char)p[4]));
}

/* Reads a number with commas between thousands, the first one at p. Returns the byte after it. */
static const char *scan_thousands(
	const char *s, const char *p, const char *end, double *v)
{
	char text[64];
	size_t n = (size_t)(p - s);
	if (n > 4)
		return NULL;
	memcpy(text, s, n);
	while (is_thousands(p, end) && n + 4 < sizeof(text)) {
		memcpy(text + n, p + 1, 3);
		n += 3, p += 4;
	}
	while (p < end && (*p == '.' || isdigit((unsigned char)*p)) && n < sizeof(text))
		text[n++] = *p++;
	return scan_double(text, text + n, v) == text + n ? p : NULL;
}

const char *scan_number(struct span s, double *v)
{
	const char *end = s.p + s.n, *begin = skip_blanks(s);
	const char *p = scan_double(begin, end, v);
	/* "nan" and "nanms", but not "info" */
	bool is_other_word = p > begin && isalpha((unsigned char)p[-1]) && p < end &&
			     isalpha((unsigned char)*p) && *p != 'm';
	if (p == begin || is_other_word)
		return NULL;
	if (is_thousands(p, end)) {
		const char *q = scan_thousands(begin, p, end, v);
		return q ? q : p;
	}
	return p;
}

bool number_continues(struct span rest)
{
	const char *p = rest.p, *end = rest.p + rest.n;
	if (p == end)
		return false;
	if (*p == ',' || *p == '.')
		return p + 1 < end && isdigit((unsigned char)p[1]);
	while (p < end && isalpha((unsigned char)*p))
		p++;
	bool is_rate = p > rest.p && p < end && *p == '/'; /* tok/s, it/s */
	return !is_rate && is_word_byte(*rest.p) && scale_of_suffix(rest) == 1 &&
	       !span_begins(rest, "s");
}

const char *scan_step(struct span s, int64_t *step)
{
	double v;
	const char *p = scan_number(s, &v);
	if (!p || !(v >= 0 && v <= 0x1p53) || v != (double)(int64_t)v)
		return NULL;
	*step = (int64_t)v;
	return p;
}

static const struct {
	const char *name;
	double scale;
} units[] = {
	{"ms", 1e-3},
	{"s", 1},
	{"m", 60},
	{"%", 1e-2},
	{"GiB", 0x1p30},
	{"MiB", 0x1p20},
	{"G", 1e9},
	{"k", 1e3},
	{"K", 1e3},
	{"M", 1e6},
	{"B", 1e9},
	{"T", 1e12},
};

bool scale_of_unit(const char *unit, double *scale)
{
	*scale = !strcmp(unit, "inverse") ? INVERSE : BY_SUFFIX;
	if (*scale == INVERSE || !strcmp(unit, "suffix"))
		return true;
	for (size_t i = 0; i < ARRAY_LEN(units); i++) {
		*scale = units[i].scale;
		if (!strcmp(unit, units[i].name))
			return true;
	}
	return false;
}

double scale_of_suffix(struct span rest)
{
	const char *p = skip_blanks(rest);
	rest = (struct span){p, (size_t)(rest.p + rest.n - p)};
	for (size_t i = 0; i < ARRAY_LEN(units); i++)
		if (span_begins(rest, units[i].name))
			return units[i].scale;
	return 1;
}

/* Returns the index of the first label that a text begins with; -1: none. */
static int find_label(const struct line_kind *k, struct span s)
{
	for (int i = k->first[(unsigned char)*s.p] - 1; i >= 0 && i < k->n_labels; i++) {
		const struct label *l = &k->label[i];
		if (s.n >= l->len && !memcmp(s.p, l->text, l->len) && !l->is_before)
			return i;
	}
	return -1;
}

/* Sets the column of a label to v, in the unit of the label or, without one, of the rest. */
static void set_column(struct build *b, const struct label *l, double v, struct span rest)
{
	v = convert_unit(v, l->scale != BY_SUFFIX ? l->scale : scale_of_suffix(rest));
	/* nanoGPT prints -100 until it has measured the MFU. */
	if (!(v < 0 && !strcmp(l->column, "mfu")))
		build_set(b, b->line.step, span_of(l->column), v);
}

/* Returns true if a text begins like a number, after blanks. */
static bool begins_like_number(struct span s)
{
	const char *p = skip_blanks(s);
	return begins_as_number(p, s.p + s.n);
}

/* Records the first word of a text as an unreadable value, if it begins like a number. */
static bool record_unread_label(struct build *b, const char *column, struct span s)
{
	const char *p = skip_blanks(s);
	struct span word = {p, 0};
	while (p + word.n < s.p + s.n && !is_space(p[word.n]) && p[word.n] != '|')
		word.n++;
	return build_add_unread(b, b->line.step, span_of(column), word);
}

/* Parses the numbers after labels. The first number begins the row. */
static bool parse_labels(
	struct build *b, struct span s, const struct line_kind *k, int64_t step)
{
	bool has_values = false;
	const char *end = s.p + s.n;
	for (const char *p = s.p; p < end; p++) {
		double v;
		struct span rest = {p, (size_t)(end - p)};
		if (!k->first[(unsigned char)*p] || !begins_word(s.p, p))
			continue;
		int i = find_label(k, rest);
		if (i < 0)
			continue;
		const char *number = p + k->label[i].len;
		struct span text = {number, (size_t)(end - number)};
		const char *after = scan_number(text, &v);
		if (!after && !begins_like_number(text))
			continue;
		if (!has_values)
			build_begin_row(b, step, k->is_training);
		has_values = true;
		struct span tail = {after, after ? (size_t)(end - after) : 0};
		bool is_unread = (!after || number_continues(tail)) &&
				 record_unread_label(b, k->label[i].column, text);
		if (after && !is_unread)
			set_column(b, &k->label[i], v, tail);
		p = after ? after - 1 : number;
	}
	return has_values;
}

/* Parses "/1000" after a step: the number of steps of the run. Returns the byte after it. */
static const char *parse_total(struct build *b, struct span rest)
{
	int64_t total;
	const char *p = rest.n > 1 && *rest.p == '/'
				? scan_step((struct span){rest.p + 1, rest.n - 1}, &total)
				: NULL;
	if (!p)
		return rest.p;
	build_set_total(b, total);
	return p;
}

/* Parses the numbers before labels, such as "12.34 ms". */
static void parse_before_labels(
	struct build *b, struct span line, const struct line_kind *k)
{
	for (int i = 0; i < k->n_labels; i++) {
		const struct label *l = &k->label[i];
		const char *found = l->is_before ? span_find(line, l->text) : NULL,
			   *p = found;
		double v;
		while (p && p > line.p && (p[-1] == '.' || isdigit((unsigned char)p[-1])))
			p--;
		if (p && p < found && scan_double(p, found, &v) == found)
			build_set(b, b->line.step, span_of(l->column),
				convert_unit(v, l->scale));
	}
}

/* Parses a line such as "val loss 4.1", printed before the step that follows the evaluation. */
static void parse_alone_line(struct build *b, struct span line, const struct line_kind *k)
{
	double v;
	size_t n = k->label->len;
	const char *p = span_begins(line, k->mark)
				? scan_number((struct span){line.p + n, line.n - n}, &v)
				: NULL;
	struct span rest = {p, p ? (size_t)(line.p + line.n - p) : 0};
	if (p && !span_trim(rest).n)
		build_set(b, max64(b->line.trained, 0), span_of(k->label->column),
			convert_unit(v, k->label->scale));
}

/* Returns true if the rest of a line has the mark and the step of a second row. */
static bool has_second_row(struct span rest, const struct line_kind *k)
{
	const char *end = rest.p + rest.n;
	const char *p = k->is_training && !k->whole_line && !k->reads_named
				? span_find_word(rest, k->mark)
				: NULL;
	int64_t step;
	p = p ? p + strlen(k->mark) : NULL;
	return p && scan_step((struct span){p, (size_t)(end - p)}, &step);
}

/* Counts the labels that a number follows, up to two. */
static int count_labels(struct span line, const struct line_kind *k)
{
	int n = 0;
	double v;
	const char *end = line.p + line.n;
	for (int i = 0; i < k->n_labels && n < 2; i++) {
		const struct label *l = &k->label[i];
		const char *p = l->is_before ? NULL : span_find_word(line, l->text);
		p = p ? p + l->len : NULL;
		n += p && scan_number((struct span){p, (size_t)(end - p)}, &v);
	}
	return n;
}

/* Counts the fields "| name: number |", up to three. */
static int count_fields(struct span line)
{
	int n = 0;
	double v;
	const char *end = line.p + line.n;
	for (const char *p = line.p; n < 3 && (p = memchr(p, '|', (size_t)(end - p)));
		p++) {
		const char *colon = memchr(p, ':', (size_t)(end - p));
		const char *next = memchr(p + 1, '|', (size_t)(end - p - 1));
		n += colon && next && colon < next &&
		     scan_number(
			     (struct span){colon + 1, (size_t)(next - colon - 1)}, &v);
	}
	return n;
}

/* Returns true for a part of a training row, as in garbled logs: some of its values, and only one
 * of the mark and `needs`. */
static bool is_garbled_row(struct span line, const struct line_kind *k)
{
	if (!k->is_training || !k->needs || k->no_step || k->reads_named)
		return false;
	if (k->fields.assign)
		return k->fields.delimiter == '|' && span_find(line, "loss: ") &&
		       !span_find_word(line, k->mark) && count_fields(line) >= 3;
	return (span_find_word(line, k->mark) || span_find(line, k->needs)) &&
	       count_labels(line, k) >= 2;
}

/* Counts a training row that other output cuts or mixes with, and keeps the first one. */
static void record_garbled(struct build *b, struct span line)
{
	struct garbled *g = &b->garbled;
	line = span_trim(line);
	if (!g->n++)
		snprintf(g->first, sizeof(g->first), "%.*s",
			(int)min64((int64_t)line.n, 40), line.p);
}

/* ---- kinds of lines ---------------------------------------------------------------------- */

/* Parses a line of a kind. *lost: set to the text that is where the step should be. */
static bool parse_kind(
	struct build *b, struct span line, const struct line_kind *k, struct span *lost)
{
	const char *end = line.p + line.n, *p = span_find_word(line, k->mark);
	int64_t step;
	if (!p)
		return false;
	size_t n = strlen(k->mark);
	if (k->no_step)
		return parse_named(b,
			k->whole_line ? line
				      : (struct span){p + n, (size_t)(end - p) - n},
			k, b->line.step);
	p += n;
	struct span number = {p, (size_t)(end - p)};
	p = scan_step(number, &step);
	if (!p || number_continues((struct span){p, (size_t)(end - p)})) {
		if (k->is_training && begins_like_number(number) && k->needs &&
			span_find(k->whole_line ? line : number, k->needs))
			*lost = number;
		return false;
	}
	struct span rest = {p, (size_t)(end - p)};
	if (k->needs && !span_find(k->whole_line ? line : rest, k->needs))
		return false;
	if (has_second_row(rest, k))
		return false;
	rest.p = parse_total(b, rest);
	rest.n = (size_t)(end - rest.p);
	if (k->whole_line)
		rest = line;
	if (k->fields.assign	 ? !parse_fields(b, rest, k, step)
		: k->reads_named ? !parse_named(b, rest, k, step)
				 : !parse_labels(b, rest, k, step))
		return false;
	build_set_time(b, b->line.step, time_of_line(line));
	parse_before_labels(b, line, k);
	return true;
}

bool parse_kinds(struct build *b, const struct log_format *f, struct span line)
{
	struct span lost = {NULL, 0};
	for (int i = 0; i < f->n_kinds; i++) {
		const struct line_kind *k = &f->kinds[i];
		if (k->is_alone)
			parse_alone_line(b, line, k);
		else if (parse_kind(b, line, k, &lost))
			return true;
	}
	if (lost.p)
		build_add_lost_row(b, lost);
	for (int i = 0; i < f->n_kinds && !lost.p; i++)
		if (is_garbled_row(line, &f->kinds[i])) {
			record_garbled(b, line);
			break;
		}
	return false;
}
