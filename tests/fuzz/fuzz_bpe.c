/* Vocabulary files of byte-pair encoding: those that are taken encode any bytes, and give them back; or what normalization
 * makes of them, however the text is cut. */
#include "tests/fuzz/fuzz.h"
#include "token/bpe_internal.h"

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

/* A text is normalized as its parts are, and what is normal stays so. */
static void use_normal(enum normal_form form, const char *text, int64_t n)
{
	struct normalized all = {0}, parts = {0}, again = {0};
	struct err e = {0};
	const uint8_t *table = normal_table(form);
	int64_t cut = find_normal_cut(table, text, n - n / 3, &e);
	FUZZ_ON(cut < 0 || cut > n || normalize(form, text, n, &all, &e) ||
		normalize(form, text, cut, &parts, &e) ||
		normalize(form, text + cut, n - cut, &parts, &e));
	FUZZ_ON(all.text.len != parts.text.len ||
		(all.text.len && memcmp(all.text.s, parts.text.s, all.text.len)));
	FUZZ_ON((int64_t)all.text.len > n * normal_growth(form));
	FUZZ_ON(is_normalized(table, text, n) && all.changes.n);
	FUZZ_ON(normalize(form, all.text.s, (int64_t)all.text.len, &again, &e) ||
		again.changes.n);
	normalized_release(&all);
	normalized_release(&parts);
	normalized_release(&again);
}

/* The bytes of the tokens are those of the text, but where it changes. */
static void check_back(struct encoder *s, const struct bytes *in, const struct str *back)
{
	struct text_changes c = {0};
	struct err e = {0};
	int64_t n = (int64_t)in->n, at = 0, to = 0;
	FUZZ_ON(encoder_find_changes(s, (const char *)in->p, n, 0, &c, &e));
	for (int64_t i = 0; i <= c.n; i++) {
		int64_t begin = i < c.n ? c.v[i].begin : n, same = begin - at;
		FUZZ_ON(same < 0 || to + same > (int64_t)back->len);
		FUZZ_ON(same && memcmp(back->s + to, in->p + at, (size_t)same));
		FUZZ_ON(i < c.n && c.v[i].to != to + same);
		at = i < c.n ? c.v[i].end : n;
		to = i < c.n ? c.v[i].to_end : to + same;
	}
	FUZZ_ON(to != (int64_t)back->len);
	free(c.v);
}

/* The same tokens from pieces. */
static void check_pieces(struct encoder *s, int64_t growth, const struct bytes *in,
	const uint32_t *want, int64_t n_want)
{
	const char *text = (const char *)in->p;
	int64_t all = (int64_t)in->n, k = 0, now = 5, used, n;
	uint32_t *ids = xcalloc((size_t)(all * growth) + 1, sizeof(*ids));
	struct err e = {0};
	for (int64_t at = 0; at < all; at += used) {
		now = min64(now, all - at);
		used = encoder_encode(
			s, text + at, now, at + now == all, ids, now * growth, &n, &e);
		FUZZ_ON(used < 0 || (!used && at + now == all) || k + n > n_want ||
			memcmp(ids, want + k, (size_t)n * sizeof(*ids)));
		k += n;
		now = used ? 5 : 2 * now;
	}
	FUZZ_ON(k != n_want);
	free(ids);
}

static void use(
	const struct bpe *b, const struct vocab *v, const struct bytes *in, bool special)
{
	struct err e = {0};
	struct str back = {0};
	struct encoder *s = encoder_open(b, &e);
	FUZZ_ON(!s);
	encoder_allow_special(s, special);
	int64_t growth = normal_growth(b->rules->normalizer);
	int64_t n, n_bytes = (int64_t)in->n, room = n_bytes * growth;
	uint32_t *ids = xcalloc((size_t)room + 1, sizeof(*ids));
	int64_t used =
		encoder_encode(s, (const char *)in->p, n_bytes, true, ids, room, &n, &e);
	FUZZ_ON((used < 0) != (e.code != 0) || (used >= 0 && used != n_bytes));
	for (int64_t i = 0; i < n && used >= 0; i++) {
		FUZZ_ON(ids[i] >= v->n);
		str_add(&back, v->bytes + v->offset[ids[i]],
			(size_t)(v->offset[ids[i] + 1] - v->offset[ids[i]]));
	}
	if (used >= 0)
		check_back(s, in, &back);
	if (used >= 0 && split_pattern_find(b->rules->pattern)) /* (others have limits) */
		check_pieces(s, growth, in, ids, n);
	if (b->rules->normalizer)
		use_normal(b->rules->normalizer, (const char *)in->p, n_bytes);
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
	if (how & 16)
		r.normalizer = (enum normal_form)(NORMAL_NFC + (how & 3));
	struct bpe *b = bpe_open(&v, &r, &e);
	FUZZ_ON(!b != (e.code != 0));
	if (b)
		use(b, &v, &in, how & 128);
	bpe_close(b);
	vocab_release(&v);
	bpe_rules_release(&r);
	return 0;
}
