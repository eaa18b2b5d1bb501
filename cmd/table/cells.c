/* Rows of records, which columns.c writes, as JSON values or as integers. */
#include "base/json.h"
#include "table/table.h"

struct cursor {
	const char *at;
	int64_t memory; /* bytes that the values may still take */
};

static int64_t take_int(struct cursor *c)
{
	int64_t x;
	memcpy(&x, c->at, sizeof(x));
	c->at += sizeof(x);
	return x;
}

static const char *take_bytes(struct cursor *c, int64_t n)
{
	const char *at = c->at;
	c->at += n;
	return at;
}

static json_t *take_value(struct cursor *c, struct err *e);

static json_t *take_text(struct cursor *c, struct err *e)
{
	int64_t n = take_int(c);
	json_t *text = json_stringn(take_bytes(c, n), (size_t)n);
	if (!text)
		err_set(e, EX_DATAERR, "a text is not UTF-8");
	return text;
}

static json_t *take_list(struct cursor *c, bool is_plain, struct err *e)
{
	json_t *list = json_array();
	int64_t n = take_int(c);
	for (int64_t i = 0; i < n && list; i++) {
		json_t *x = is_plain ? json_integer(take_int(c)) : take_value(c, e);
		if (!x || json_array_append_new(list, x)) {
			json_decref(list);
			list = NULL;
		}
	}
	return list;
}

static json_t *take_object(struct cursor *c, struct err *e)
{
	json_t *object = json_object();
	scoped_str name = {0};
	int64_t n = take_int(c);
	for (int64_t i = 0; i < n && object; i++) {
		int64_t length = take_int(c);
		str_clear(&name);
		str_add(&name, take_bytes(c, length), (size_t)length);
		json_t *x = take_value(c, e);
		if (!x || json_object_set_new(object, name.s ? name.s : "", x)) {
			if (x)
				err_set(e, EX_DATAERR,
					"the name of a field is not UTF-8");
			json_decref(object);
			object = NULL;
		}
	}
	return object;
}

static json_t *take_value(struct cursor *c, struct err *e)
{
	enum { VALUE_BYTES = 64, OBJECT_BYTES = 512 };
	double x;
	c->memory -= *c->at == 'O' ? OBJECT_BYTES : VALUE_BYTES;
	if (c->memory < 0) {
		err_set(e, EX_DATAERR, "the row has too many values");
		return NULL;
	}
	switch (*c->at++) {
	case 'F':
		return json_false();
	case 'T':
		return json_true();
	case 'I':
		return json_integer(take_int(c));
	case 'D':
		memcpy(&x, take_bytes(c, sizeof(x)), sizeof(x));
		return x - x == 0 ? json_real(x) : json_null(); /* JSON has no infinity */
	case 'S':
		return take_text(c, e);
	case 'V':
		return take_list(c, true, e);
	case 'L':
		return take_list(c, false, e);
	case 'O':
		return take_object(c, e);
	default:
		return json_null();
	}
}

json_t *row_to_json(const char *row, int64_t n, struct err *e)
{
	enum { PER_BYTE = 16, FREE_BYTES = 96 << 20 }; /* as load_json() allows */
	struct cursor c = {row, PER_BYTE * n + FREE_BYTES};
	return take_value(&c, e);
}

static void skip_value(struct cursor *c)
{
	int64_t n;
	switch (*c->at++) {
	case 'I':
	case 'D':
		take_int(c);
		break;
	case 'S':
		take_bytes(c, take_int(c));
		break;
	case 'V':
		take_bytes(c, take_int(c) * (int64_t)sizeof(int64_t));
		break;
	case 'L':
		for (n = take_int(c); n; n--)
			skip_value(c);
		break;
	case 'O':
		for (n = take_int(c); n; n--) {
			take_bytes(c, take_int(c));
			skip_value(c);
		}
		break;
	default:
		break;
	}
}

bool row_find_integers(const char *row, const char *name, struct cell_integers *out)
{
	struct cursor c = {.at = row + 1};
	for (int64_t n = *row == 'O' ? take_int(&c) : 0; n; n--) {
		int64_t length = take_int(&c);
		const char *at = take_bytes(&c, length);
		if (length == (int64_t)strlen(name) &&
			!memcmp(at, name, (size_t)length)) {
			bool found = *c.at++ == 'V';
			out->n = found ? take_int(&c) : 0;
			out->at = c.at;
			return found;
		}
		skip_value(&c);
	}
	return false;
}
