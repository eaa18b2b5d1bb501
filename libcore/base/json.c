/* JSON values. */
#include "base/json.h"

#include <math.h>

/* Returns true if jansson needs at most 16 n bytes + 96 MiB, by estimate; else sets *line. */
static bool fits_memory_limit(const char *text, size_t n, int *line)
{
	enum { OBJECT = 256, ARRAY = 144, MEMBER = 64, ELEMENT = 32, TEXT = 64 };
	size_t limit = 16 * n + ((size_t)96 << 20), cost = 0;
	bool quoted = false;
	*line = 1;
	for (size_t i = 0; i < n && cost <= limit; i++) {
		char c = text[i];
		*line += c == '\n';
		if (quoted && c == '\\')
			i++;
		else if (c == '"') {
			quoted = !quoted;
			cost += quoted ? TEXT : 0;
		} else if (!quoted)
			cost += c == '{'   ? OBJECT
				: c == '[' ? ARRAY
				: c == ':' ? MEMBER
				: c == ',' ? ELEMENT
					   : 0;
	}
	return cost <= limit;
}

json_t *load_json(const char *text, size_t n, size_t flags, json_error_t *why)
{
	enum { ALWAYS_PARSED = 1 << 20 };
	json_error_t own = {0};
	int line = 0;
	if (n <= ALWAYS_PARSED || fits_memory_limit(text, n, &line))
		return json_loadb(text, n, flags, why);
	why = why ? why : &own;
	*why = (json_error_t){.line = line};
	snprintf(why->text, sizeof(why->text),
		"parsing would take more than 16 times the memory of the text");
	return NULL;
}

const char *json_kind(const json_t *j)
{
	static const char *const kinds[] = {[JSON_OBJECT] = "an object",
		[JSON_ARRAY] = "a list",
		[JSON_STRING] = "a string",
		[JSON_INTEGER] = "a number",
		[JSON_REAL] = "a number",
		[JSON_TRUE] = "true",
		[JSON_FALSE] = "false",
		[JSON_NULL] = "null"};
	return j ? kinds[json_typeof(j)] : "missing";
}

void put_json(json_t *object, const char *key, json_t *value)
{
	BUG_ON(!value || json_object_set_new(object, key, value));
}

json_t *number_json(double v)
{
	return isfinite(v) ? json_real(v) : json_null();
}

json_t *text_json(const char *s)
{
	json_t *j = json_string(s);
	scoped_str ascii = {0};
	if (j)
		return j;
	for (; *s; s++)
		str_putc(&ascii, *s & 0x80 ? '?' : *s);
	j = json_string(ascii.s ? ascii.s : "");
	return j;
}
