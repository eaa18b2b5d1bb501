/* Lines of other trainers' logs: a text, the step, and numbers behind labels. */
#include "logs/logs_internal.h"

#include <ctype.h>
#include <limits.h>

/* ---- spans ----------------------------------------------------------------------- */

bool span_begins(struct span s, const char *with)
{
	size_t n = strlen(with);
	return s.n >= n && !memcmp(s.p, with, n);
}

/* As isspace() says in the C locale. */
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

static bool in_word(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

static bool begins_word(const char *line, const char *at)
{
	return at == line || !in_word(*at) || !in_word(at[-1]);
}

const char *span_find_word(struct span s, const char *text)
{
	const char *end = s.p + s.n;
	for (const char *at = s.p; at < end; at++) {
		at = span_find((struct span){at, (size_t)(end - at)}, text);
		if (!at || begins_word(s.p, at))
			return at;
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

static bool is_thousands(const char *p, const char *end)
{
	return end - p >= 4 && *p == ',' && isdigit((unsigned char)p[1]) &&
	       isdigit((unsigned char)p[2]) && isdigit((unsigned char)p[3]) &&
	       (end - p == 4 || !isdigit((unsigned char)p[4]));
}

/* Digits from s to p, and groups of three behind commas. */
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
	bool word = p > begin && isalpha((unsigned char)p[-1]) && p < end &&
		    isalpha((unsigned char)*p) && *p != 'm';
	if (p == begin || word)
		return NULL;
	if (is_thousands(p, end)) {
		const char *q = scan_thousands(begin, p, end, v);
		return q ? q : p;
	}
	return p;
}

bool goes_on(struct span behind)
{
	const char *p = behind.p, *end = behind.p + behind.n;
	if (p == end)
		return false;
	if (*p == ',' || *p == '.')
		return p + 1 < end && isdigit((unsigned char)p[1]);
	while (p < end && isalpha((unsigned char)*p))
		p++;
	bool rate = p > behind.p && p < end && *p == '/'; /* tok/s, it/s */
	return !rate && in_word(*behind.p) && scale_of_suffix(behind) == 1 &&
	       !span_begins(behind, "s");
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

/* ---- units ----------------------------------------------------------------------- */

static const struct {
	const char *name;
	double scale;
} units[] = {
	{"ms", 1e-3},
	{"s", 1},
	{"m", 60},
	{"%", 1e-2},
	{"GiB", 0x1p30},
	{"G", 1e9},
	{"k", 1e3},
	{"K", 1e3},
	{"M", 1e6},
	{"B", 1e9},
	{"T", 1e12},
};

/* The factor of a unit; 0: "time" and "count", by the suffix behind the number. */
static double scale_of(const char *unit)
{
	if (unit && (!strcmp(unit, "time") || !strcmp(unit, "count")))
		return 0;
	for (size_t i = 0; unit && i < ARRAY_LEN(units); i++)
		if (!strcmp(unit, units[i].name))
			return units[i].scale;
	return 1;
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

/* ---- lines ----------------------------------------------------------------------- */

static void know_kind(struct known_kind *known, const struct line_kind *k)
{
	int i = 0;
	for (; i < MOST_LABELS && k->labels[i].text; i++) {
		size_t len = strlen(k->labels[i].text);
		unsigned char letter = (unsigned char)*k->labels[i].text;
		BUG_ON(len > UCHAR_MAX);
		known->len[i] = (unsigned char)len;
		known->scale[i] = scale_of(k->labels[i].unit);
		if (!known->first[letter])
			known->first[letter] = (unsigned char)(i + 1);
	}
	BUG_ON(k->labels[i].text);
	known->ready = true;
}

/* The number of the first label that s begins with; -1: none. */
static int label_at(
	const struct known_kind *known, const struct label *labels, struct span s)
{
	int i = known->first[(unsigned char)*s.p] - 1;
	for (; i >= 0 && labels[i].text; i++)
		if (s.n >= known->len[i] && !memcmp(s.p, labels[i].text, known->len[i]))
			return i;
	return -1;
}

static void set_labelled(struct build *b, const struct label *labels,
	struct known_kind *known, int i, double v, struct span rest)
{
	v = scaled(v, known->scale[i] > 0 ? known->scale[i] : scale_of_suffix(rest));
	/* nanoGPT prints -100 until it has measured the MFU. */
	if (v < 0 && !strcmp(labels[i].column, "mfu"))
		return;
	if (!known->name[i])
		known->name[i] = build_name(b, span_of(labels[i].column));
	build_set_known(b, b->step, known->name[i], v);
}

/* Not a number, though it begins as one. */
static bool begins_unread(struct span s)
{
	const char *p = skip_blanks(s);
	return begins_as_number(p, s.p + s.n);
}

/* A word that begins as a number does. */
static bool take_unread(struct build *b, const char *column, struct span s)
{
	const char *p = skip_blanks(s);
	struct span word = {p, 0};
	while (p + word.n < s.p + s.n && !is_space(p[word.n]) && p[word.n] != '|')
		word.n++;
	return build_unread(b, b->step, span_of(column), word);
}

/* Takes the numbers behind labels; the row begins with the first of them. */
static bool take_labels(struct build *b, struct span s, const struct line_kind *k,
	struct known_kind *known, int64_t step)
{
	bool any = false;
	const char *end = s.p + s.n;
	for (const char *p = s.p; p < end; p++) {
		double v;
		struct span rest = {p, (size_t)(end - p)};
		if (!known->first[(unsigned char)*p] || !begins_word(s.p, p))
			continue;
		int i = label_at(known, k->labels, rest);
		if (i < 0)
			continue;
		const char *number = p + known->len[i];
		struct span text = {number, (size_t)(end - number)};
		const char *behind = scan_number(text, &v);
		if (!behind && !begins_unread(text))
			continue;
		if (!any)
			build_row(b, step, k->training);
		any = true;
		struct span after = {behind, behind ? (size_t)(end - behind) : 0};
		bool unread = (!behind || goes_on(after)) &&
			      take_unread(b, k->labels[i].column, text);
		if (behind && !unread)
			set_labelled(b, k->labels, known, i, v, after);
		p = behind ? behind - 1 : number;
	}
	return any;
}

/* "/1000" behind a step: the number of steps. */
static const char *take_total(struct build *b, struct span rest)
{
	int64_t total;
	const char *p = rest.n > 1 && *rest.p == '/'
				? scan_step((struct span){rest.p + 1, rest.n - 1}, &total)
				: NULL;
	if (!p)
		return rest.p;
	build_total(b, total);
	return p;
}

bool take_kinds(struct build *b, struct span line, const struct line_kind *kinds)
{
	const char *end = line.p + line.n;
	struct span lost = {NULL, 0};
	for (const struct line_kind *k = kinds; k->mark; k++) {
		BUG_ON(k - kinds >= MOST_KINDS);
		struct known_kind *known = &b->kind[k - kinds];
		int64_t step;
		const char *p = span_find_word(line, k->mark);
		if (!p)
			continue;
		p += strlen(k->mark);
		struct span number = {p, (size_t)(end - p)};
		p = scan_step(number, &step);
		if (!p || goes_on((struct span){p, (size_t)(end - p)})) {
			if (k->training && begins_unread(number) && k->needs &&
				span_find(k->whole ? line : number, k->needs))
				lost = number;
			continue;
		}
		struct span rest = {p, (size_t)(end - p)};
		if (k->needs && !span_find(k->whole ? line : rest, k->needs))
			continue;
		rest.p = take_total(b, rest);
		rest.n = (size_t)(end - rest.p);
		if (k->whole)
			rest = line;
		if (k->labels && !known->ready)
			know_kind(known, k);
		if (k->labels ? take_labels(b, rest, k, known, step)
			      : take_fields(b, rest, k, step)) {
			build_clock(b, step, time_of_line(line));
			return true;
		}
	}
	if (lost.p)
		build_lost_row(b, lost);
	return false;
}
