/* Vocabulary files of byte-pair encoding: those that are taken encode any bytes, and give them back. */
#include "tests/fuzz/fuzz.h"
#include "token/token.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS, MERGES, JSON, N_FORMATS };

/* The printable character of GPT-2 for a byte. */
static void put_byte(struct str *out, int byte)
{
	static const char kept[] = "\x21\x7e\xa1\xac\xae\xff";
	uint8_t text[4];
	uint32_t code = 256;
	for (int b = 0; b <= byte; b++) {
		bool printable = false;
		for (int i = 0; i < 6; i += 2)
			printable |= b >= (uint8_t)kept[i] && b <= (uint8_t)kept[i + 1];
		if (b == byte && printable)
			code = (uint32_t)byte;
		else if (b < byte && !printable)
			code++;
	}
	if (code == '"' || code == '\\')
		str_putc(out, '\\');
	str_add(out, text, (size_t)utf8_encode(code, text));
}

/* The 256 bytes, so that the input need not have them. */
static void put_bytes(struct str *out, int format)
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	for (int b = 0; b < 256; b++) {
		if (format == RANKS)
			str_printf(out, "%c%c== %d\n", digits[b >> 2],
				digits[(b & 3) << 4], b);
		else {
			str_putc(out, '"');
			put_byte(out, b);
			str_printf(out, "\": %d, ", b);
		}
	}
}

/* The files as the input says. Returns the path to read. */
static const char *write_files(struct bytes *b, int format, bool complete)
{
	static char path[4096];
	struct str text = {0};
	char *first = take_text(b, 4096);
	if (format == RANKS) {
		if (complete)
			put_bytes(&text, format);
		str_puts(&text, first);
	} else {
		str_puts(&text, format == JSON ? "{\"model\": {\"vocab\": {" : "{");
		if (complete)
			put_bytes(&text, format);
		str_puts(&text, first);
	}
	char *second = format == MERGES ? take_text(b, 4096) : NULL;
	const char *name = format == MERGES ? "vocab.json" : "vocabulary";
	snprintf(path, sizeof(path), "%s", fuzz_file(name, text.s, text.len));
	if (second)
		snprintf(path, sizeof(path), "%s",
			fuzz_file("merges.txt", second, strlen(second)));
	str_free(&text);
	free(first);
	free(second);
	return path;
}

static void use(
	const struct bpe *b, const struct vocab *v, const struct bytes *in, bool special)
{
	struct err e = {0};
	struct str back = {0};
	struct encoder *s = encoder_open(b, &e);
	FUZZ_ON(!s);
	encoder_special(s, special);
	uint32_t *ids = xcalloc(in->n + 1, sizeof(*ids));
	int64_t n, n_bytes = (int64_t)in->n;
	int64_t used =
		encoder_put(s, (const char *)in->p, n_bytes, true, ids, n_bytes, &n, &e);
	FUZZ_ON((used < 0) != (e.code != 0) || (used >= 0 && used != n_bytes));
	for (int64_t i = 0; i < n && used >= 0; i++) {
		FUZZ_ON(ids[i] >= v->n);
		str_add(&back, v->bytes + v->offset[ids[i]],
			(size_t)(v->offset[ids[i] + 1] - v->offset[ids[i]]));
	}
	FUZZ_ON(used > 0 && (back.len != in->n || memcmp(back.s, in->p, in->n)));
	str_free(&back);
	free(ids);
	encoder_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct bytes in = {data, n};
	struct vocab v;
	struct bpe_rules r;
	struct err e = {0};
	uint8_t how = take_byte(&in), pattern = take_byte(&in);
	char *regex =
		pattern < 6 ? xstrdup(split_patterns[pattern].name) : take_text(&in, 60);
	const char *path = write_files(&in, how % N_FORMATS, how & 64);
	int rc = bpe_read(&v, &r, path, how & 32 ? &bpe_models[pattern % 5] : NULL,
		pattern == 255 ? NULL : regex, &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	free(regex);
	if (rc)
		return 0;
	struct bpe *b = bpe_open(&v, &r, &e);
	FUZZ_ON(!b != (e.code != 0));
	if (b)
		use(b, &v, &in, how & 128);
	bpe_close(b);
	vocab_free(&v);
	bpe_rules_free(&r);
	return 0;
}
