/* Growing strings, numbers from and to text, and similar names. */
#include "base/base.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>

void str_free(struct str *b)
{
	free(b->s);
	*b = (struct str){0};
}

void str_clear(struct str *b)
{
	b->len = 0;
	if (b->s)
		b->s[0] = '\0';
}

void str_reserve(struct str *b, size_t n_bytes)
{
	if (b->len + n_bytes + 1 <= b->cap)
		return;
	b->cap = (b->len + n_bytes + 1) * 3 / 2 + 32;
	b->s = xrealloc(b->s, b->cap);
}

void str_add(struct str *b, const void *p, size_t n_bytes)
{
	str_reserve(b, n_bytes);
	if (n_bytes)
		memcpy(b->s + b->len, p, n_bytes);
	b->len += n_bytes;
	b->s[b->len] = '\0';
}

void str_puts(struct str *b, const char *s)
{
	str_add(b, s, strlen(s));
}

void str_putc(struct str *b, char c)
{
	str_add(b, &c, 1);
}

static void append_format(struct str *b, const char *fmt, va_list ap)
{
	va_list second_ap;
	va_copy(second_ap, ap);
	int n = vsnprintf(NULL, 0, fmt, ap);
	BUG_ON(n < 0);
	str_reserve(b, (size_t)n);
	vsnprintf(b->s + b->len, (size_t)n + 1, fmt, second_ap);
	va_end(second_ap);
	b->len += (size_t)n;
}

void str_printf(struct str *b, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	append_format(b, fmt, ap);
	va_end(ap);
}

char *text_printf(const char *fmt, ...)
{
	struct str b = {0};
	va_list ap;
	va_start(ap, fmt);
	append_format(&b, fmt, ap);
	va_end(ap);
	return b.s;
}

bool str_ends(const struct str *b, const char *end)
{
	size_t n = strlen(end);
	return b->len >= n && !memcmp(b->s + b->len - n, end, n);
}

bool text_ends(const char *text, const char *end)
{
	return str_ends(&(struct str){(char *)text, strlen(text), 0}, end);
}

void strs_add(struct strs *l, const char *s)
{
	l->v = xrealloc(l->v, (size_t)(l->n + 1) * sizeof(*l->v));
	l->v[l->n++] = xstrdup(s);
}

int64_t strs_find(const struct strs *l, const char *s)
{
	for (int64_t i = 0; i < l->n; i++)
		if (!strcmp(l->v[i], s))
			return i;
	return -1;
}

int compare_texts(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

int compare_int64(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return (x > y) - (x < y);
}

int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

void strs_sort(struct strs *l)
{
	if (l->n)
		qsort(l->v, (size_t)l->n, sizeof(*l->v), compare_texts);
}

void strs_free(struct strs *l)
{
	for (int64_t i = 0; i < l->n; i++)
		free(l->v[i]);
	free(l->v);
	*l = (struct strs){0};
}

/* Parses the integer at the beginning of a text; *end points after it. */
static int parse_digits(const char *s, char **end, int64_t *out)
{
	errno = 0;
	*out = strtoll(s, end, 10);
	return isspace((unsigned char)*s) || *end == s || errno ? -1 : 0;
}

int parse_int(const char *s, int64_t *out)
{
	char *end;
	int64_t v;
	if (parse_digits(s, &end, &v) || *end)
		return -1;
	*out = v;
	return 0;
}

int parse_size(const char *s, int64_t *out)
{
	static const char suffixes[] = "KMGT";
	char *end;
	int64_t v;
	if (parse_digits(s, &end, &v) || v < 0)
		return -1;
	if (*end) {
		const char *f = strchr(suffixes, toupper((unsigned char)*end));
		int shift = f ? 10 * (int)(f - suffixes + 1) : 0;
		if (!f || end[1] || v > INT64_MAX >> shift)
			return -1;
		v <<= shift;
	}
	*out = v;
	return 0;
}

int parse_double(const char *s, double *out)
{
	char *end;
	if (!*s || isspace((unsigned char)*s))
		return -1;
	errno = 0;
	double v = strtod(s, &end);
	if (*end || end == s || (errno == ERANGE && isinf(v)))
		return -1;
	*out = v;
	return 0;
}

char *text_double(char buf[static NUM_TEXT], double x)
{
	for (int digits = 6; digits <= 17; digits++) {
		snprintf(buf, NUM_TEXT, "%.*g", digits, x);
		if (strtod(buf, NULL) == x || isnan(x))
			break;
	}
	return buf;
}

char *text_float(char buf[static NUM_TEXT], float x)
{
	for (int digits = 6; digits <= 9; digits++) {
		snprintf(buf, NUM_TEXT, "%.*g", digits, (double)x);
		if (strtof(buf, NULL) == x || isnan(x))
			break;
	}
	return buf;
}

int64_t float_ulps(float a, float b)
{
	int32_t i, j;
	if (isnan(a) || isnan(b))
		return isnan(a) && isnan(b) ? 0 : INT64_MAX;
	memcpy(&i, &a, sizeof(i));
	memcpy(&j, &b, sizeof(j));
	/* from sign and magnitude to two's complement */
	int64_t x = i < 0 ? (int64_t)INT32_MIN - i : i;
	int64_t y = j < 0 ? (int64_t)INT32_MIN - j : j;
	return x > y ? x - y : y - x;
}

/* Writes x with three digits, in the largest unit that leaves at least 1. */
static char *text_scaled(char *buf, double x, double base, const char *const *units)
{
	int u = 0;
	while (fabs(x) >= base * 0.9995 && units[u + 1])
		x /= base, u++;
	int digits = u == 0 || fabs(x) >= 99.95 ? 0 : fabs(x) >= 9.995 ? 1 : 2;
	snprintf(buf, NUM_TEXT, "%.*f%s", digits, x, units[u]);
	return buf;
}

char *text_bytes(char buf[static NUM_TEXT], double n_bytes)
{
	static const char *const units[] = {
		" B", " KiB", " MiB", " GiB", " TiB", " PiB", NULL};
	return text_scaled(buf, n_bytes, 1024, units);
}

char *text_count(char buf[static NUM_TEXT], double n)
{
	static const char *const units[] = {"", " K", " M", " G", " T", " P", " E", NULL};
	return text_scaled(buf, n, 1000, units);
}

/* Returns the Levenshtein distance, computed in one row. Names are short. */
static int64_t edit_distance(const char *a, const char *b)
{
	int64_t row[65];
	int64_t n_b = min64((int64_t)strlen(b), 64);
	for (int64_t j = 0; j <= n_b; j++)
		row[j] = j;
	for (int64_t i = 1; *a; a++, i++) {
		int64_t diagonal = row[0];
		row[0] = i;
		for (int64_t j = 1; j <= n_b; j++) {
			int64_t change = diagonal + (*a != b[j - 1]);
			diagonal = row[j];
			row[j] = min64(change, min64(row[j], row[j - 1]) + 1);
		}
	}
	return row[n_b];
}

const char *nearest(const char *name, const char *const *names, int64_t n)
{
	const char *best = NULL;
	int64_t best_distance = max64(2, (int64_t)strlen(name) / 3) + 1;
	for (int64_t i = 0; i < n; i++) {
		int64_t d = edit_distance(name, names[i]);
		if (d < best_distance)
			best = names[i], best_distance = d;
	}
	return best;
}

int env_switch(const char *name)
{
	const char *value = getenv(name);
	if (!value || !*value)
		return -1;
	if (strcmp(value, "yes") && strcmp(value, "no"))
		die(EX_USAGE, "%s: '%s' is neither yes nor no", name, value);
	return !strcmp(value, "yes");
}
