/* JSON objects without objects or arrays in them, fast: most lines of logs are such. All else is left to
 * jansson. */
#include "logs/logs_internal.h"

static const char *skip_space(const char *p, const char *end)
{
	while (p < end && (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r'))
		p++;
	return p;
}

static bool is_digit(const char *p, const char *end)
{
	return p < end && *p >= '0' && *p <= '9';
}

static const char *skip_digits(const char *p, const char *end)
{
	while (is_digit(p, end))
		p++;
	return p;
}

/* The byte behind a string of ASCII without escapes; NULL: it is another one. */
static const char *take_string(const char *p, const char *end, struct span *s)
{
	if (p == end || *p != '"')
		return NULL;
	s->p = ++p;
	while (p < end && *p >= ' ' && *p != '"' && *p != '\\' && *p != 0x7f)
		p++;
	s->n = (size_t)(p - s->p);
	return p < end && *p == '"' ? p + 1 : NULL;
}

/* The byte behind a number of JSON, in which there is less than strtod() accepts. An integer is one of
 * at most 18 digits, and not -0, which jansson makes 0. */
static const char *take_number(const char *p, const char *end, double *v)
{
	enum { INTEGER_DIGITS = 18 };
	const char *begin = p, *digits = p + (p < end && *p == '-');
	p = skip_digits(digits, end);
	if (p == digits || (*digits == '0' && p > digits + 1))
		return NULL;
	const char *whole = p;
	if (p < end && *p == '.') {
		if (!is_digit(p + 1, end))
			return NULL;
		p = skip_digits(p + 1, end);
	}
	if (p < end && (*p | 0x20) == 'e') {
		p++;
		p += p < end && (*p == '+' || *p == '-');
		if (!is_digit(p, end))
			return NULL;
		p = skip_digits(p, end);
	}
	if (p == whole &&
		(p - digits > INTEGER_DIGITS || (*begin == '-' && *digits == '0')))
		return NULL;
	return scan_double(begin, end, v) == p ? p : NULL;
}

/* true, false or null */
static const char *take_word(const char *p, const char *end)
{
	static const char *const words[] = {"true", "false", "null"};
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (span_begins((struct span){p, (size_t)(end - p)}, words[i]))
			return p + strlen(words[i]);
	return NULL;
}

static const char *take_value(const char *p, const char *end, struct flat_pair *pair)
{
	pair->kind = p < end && *p == '"'   ? FLAT_STRING
		     : p < end && *p >= 'a' ? FLAT_WORD
					    : FLAT_NUMBER;
	if (pair->kind == FLAT_STRING)
		return take_string(p, end, &pair->text);
	return pair->kind == FLAT_WORD ? take_word(p, end)
				       : take_number(p, end, &pair->v);
}

static bool is_new_key(const struct flat_pair *pairs, int n, struct span key)
{
	for (int i = 0; i < n; i++)
		if (pairs[i].key.n == key.n && !memcmp(pairs[i].key.p, key.p, key.n))
			return false;
	return true;
}

int flat_object(struct span line, struct flat_pair pairs[AT_LEAST(MOST_FLAT)])
{
	const char *p = line.p, *end = line.p + line.n;
	int n = 0;
	if (!line.n || *p != '{')
		return -1;
	for (char behind = ','; behind == ',' && n < MOST_FLAT; n++) {
		struct flat_pair *pair = &pairs[n];
		p = take_string(skip_space(p + 1, end), end, &pair->key);
		p = p ? skip_space(p, end) : end;
		if (p == end || *p != ':' || !is_new_key(pairs, n, pair->key))
			return -1;
		p = take_value(skip_space(p + 1, end), end, pair);
		p = p ? skip_space(p, end) : end;
		if (p == end || (*p != ',' && *p != '}'))
			return -1;
		behind = *p;
	}
	return p + 1 == end && *p == '}' ? n : -1;
}
