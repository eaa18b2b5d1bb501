/* Values of JSON. */
#include "base/json.h"

#include <math.h>

void put_json(json_t *to, const char *key, json_t *value)
{
	BUG_ON(!value || json_object_set_new(to, key, value));
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
