/* JSON as Python's json.dumps with ensure_ascii=False, and so transformers' tojson, writes it. */
#include "chat/template.h"

#include <jansson.h>

/* Appends a JSON string. Bytes of 0x80 and above are not escaped. */
static void append_string(struct str *out, const char *text, size_t n)
{
	static const char special[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
	str_putc(out, '"');
	for (size_t i = 0; i < n; i++) {
		const char *escape = text[i] ? strchr(special, text[i]) : NULL;
		if (escape)
			str_printf(out, "\\%c", names[escape - special]);
		else if ((uint8_t)text[i] < 0x20)
			str_printf(out, "\\u%04x", text[i]);
		else
			str_putc(out, text[i]);
	}
	str_putc(out, '"');
}

/* Appends a number with the fewest digits that restore it. The digits of a power of two may be
 * above the nearest ones: the next float above it is twice as far away as the next one below. */
static void append_real(struct str *out, double x)
{
	char text[NUM_TEXT];
	int digits = 0;
	for (bool same = false; !same;) {
		snprintf(text, sizeof(text), "%.*e", digits++, x);
		char *last = strchr(text, 'e') - 1;
		same = strtod(text, NULL) == x;
		if (!same && *last < '9') {
			++*last;
			same = strtod(text, NULL) == x;
		}
	}
	int exponent = atoi(strchr(text, 'e') + 1);
	if (exponent < -4 || exponent >= 16)
		str_puts(out, text);
	else
		str_printf(out, "%.*f", exponent < digits - 2 ? digits - 1 - exponent : 1,
			x);
}

static void append_value(struct str *out, const json_t *j, int indent, int depth);

/* Appends the text before item i of a list or object: a comma unless i is 0, or a new line. */
static void append_separator(struct str *out, size_t i, int indent, int depth)
{
	if (i)
		str_puts(out, indent ? "," : ", ");
	if (indent)
		str_printf(out, "\n%*s", indent * depth, "");
}

/* Appends a list or an object. Stops after MAX_JSON bytes, so the caller must check the length. */
static void append_items(struct str *out, const json_t *j, int indent, int depth)
{
	bool is_list = json_is_array(j);
	size_t i = 0;
	const char *name;
	json_t *value;
	str_putc(out, is_list ? '[' : '{');
	for (; i < json_array_size(j) && out->len < MAX_JSON; i++) {
		append_separator(out, i, indent, depth + 1);
		append_value(out, json_array_get(j, i), indent, depth + 1);
	}
	json_object_foreach((json_t *)j, name, value)
	{
		if (out->len >= MAX_JSON)
			break;
		append_separator(out, i++, indent, depth + 1);
		append_string(out, name, strlen(name));
		str_puts(out, ": ");
		append_value(out, value, indent, depth + 1);
	}
	if (i && indent)
		str_printf(out, "\n%*s", indent * depth, "");
	str_putc(out, is_list ? ']' : '}');
}

/* Appends any JSON value. `indent`: spaces per level; 0: all on one line. */
static void append_value(struct str *out, const json_t *j, int indent, int depth)
{
	if (json_is_string(j))
		append_string(out, json_string_value(j), json_string_length(j));
	else if (json_is_integer(j))
		str_printf(out, "%lld", (long long)json_integer_value(j));
	else if (json_is_real(j))
		append_real(out, json_real_value(j));
	else if (json_is_array(j) || json_is_object(j))
		append_items(out, j, indent, depth);
	else
		str_puts(out, json_is_true(j)	 ? "true"
			      : json_is_false(j) ? "false"
						 : "null");
}

bool tojson(struct str *out, const json_t *j, int indent)
{
	append_value(out, j, indent, 0);
	return out->len < MAX_JSON;
}
