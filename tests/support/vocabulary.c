#include "tests/support/vocabulary.h"

#include "tests/support/support.h"

#include <jansson.h>
#include <stdlib.h>

static json_t *load_model(void)
{
	json_error_t why;
	json_t *all = json_load_file("tests/golden/tokens/tokenizer.json", 0, &why);
	if (!all)
		die(EX_IOERR, "tests/golden/tokens/tokenizer.json: %s", why.text);
	json_t *model = json_incref(json_object_get(all, "model"));
	json_decref(all);
	return model;
}

const char *vocabulary_merges(void)
{
	json_t *model = load_model(), *vocab = json_object_get(model, "vocab"), *pair;
	struct str out = {0};
	size_t i;
	str_puts(&out, "#version: 0.2\n");
	json_array_foreach(json_object_get(model, "merges"), i, pair)
		str_printf(&out, "%s %s\n", json_string_value(json_array_get(pair, 0)),
			json_string_value(json_array_get(pair, 1)));
	json_object_set_new(vocab, "<|endoftext|>",
		json_integer((json_int_t)json_object_size(vocab)));
	char *text = json_dumps(vocab, 0);
	test_file("vocab.json", text);
	const char *path = test_file("merges.txt", out.s);
	json_decref(model);
	free(text);
	str_free(&out);
	return path;
}

/* Appends bytes in base64. */
static void put_base64(struct str *out, const uint8_t *x, int n)
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	for (int i = 0; i < n; i += 3) {
		int bits = x[i] << 16 | (i + 1 < n ? x[i + 1] << 8 : 0) |
			   (i + 2 < n ? x[i + 2] : 0);
		for (int k = 0; k < 4; k++)
			str_printf(out, "%c",
				i + k > n ? '=' : digits[bits >> (18 - 6 * k) & 63]);
	}
}

/* Returns the byte that stands as this character in GPT-2's form. */
static uint8_t byte_of(int c)
{
	if (c < 256)
		return (uint8_t)c;
	c -= 256;
	return (uint8_t)(c < 33 ? c : c < 67 ? c - 33 + 127 : 173);
}

const char *vocabulary_ranks(void)
{
	json_t *model = load_model(), *id;
	struct str out = {0};
	const char *token;
	json_object_foreach(
		json_object_get(model, "vocab"), token, id) /* in the order of ids */
	{
		uint8_t bytes[512];
		int n = 0;
		for (const uint8_t *p = (const uint8_t *)token; *p;
			p += *p < 0x80 ? 1 : 2)
			bytes[n++] = byte_of(
				*p < 0x80 ? *p : (*p & 0x1f) << 6 | (p[1] & 0x3f));
		put_base64(&out, bytes, n);
		str_printf(&out, " %d\n", (int)json_integer_value(id));
	}
	const char *path = test_file("ranks.tiktoken", out.s);
	json_decref(model);
	str_free(&out);
	return path;
}
