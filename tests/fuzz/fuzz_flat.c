/* A line of JSON: what the parser of flat objects takes, jansson takes too, with the same pairs. */
#include "tests/fuzz/fuzz.h"
#include "logs/logs_internal.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static void check_pair(const struct flat_pair *p, json_t *object)
{
	const json_t *j = json_object_getn(object, p->key.p, p->key.n);
	FUZZ_ON(!j);
	if (p->kind == FLAT_STRING) {
		FUZZ_ON(!json_is_string(j) || json_string_length(j) != p->text.n ||
			memcmp(json_string_value(j), p->text.p, p->text.n) != 0);
	} else if (p->kind == FLAT_WORD) {
		FUZZ_ON(!json_is_boolean(j) && !json_is_null(j));
	} else {
		double v = json_number_value(j);
		FUZZ_ON(!json_is_number(j) || memcmp(&v, &p->v, sizeof(v)) != 0);
	}
}

/* The pairs have the order of the text, which jansson keeps. */
static void check_order(const struct flat_pair *pairs, json_t *object)
{
	const char *key;
	json_t *v;
	int i = 0;
	json_object_foreach(object, key, v)
	{
		FUZZ_ON(pairs[i].key.n != strlen(key) ||
			memcmp(pairs[i].key.p, key, pairs[i].key.n) != 0);
		i++;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct flat_pair pairs[MOST_FLAT];
	/* (of its exact size, so that AddressSanitizer sees a parser that reads too far) */
	char *text = xmalloc(n);
	memcpy(text, data, n);
	int count = flat_object((struct span){text, n}, pairs);
	if (count >= 0) {
		json_error_t why;
		json_t *object = json_loadb(text, n, 0, &why);
		FUZZ_ON(!json_is_object(object) ||
			json_object_size(object) != (size_t)count);
		for (int i = 0; i < count; i++)
			check_pair(&pairs[i], object);
		check_order(pairs, object);
		json_decref(object);
	}
	free(text);
	return count < 0 ? -1 : 0;
}
