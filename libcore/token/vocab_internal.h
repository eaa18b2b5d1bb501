/* Shared by the readers of vocabulary files. */
#pragma once

#include "token/token.h"

#include <jansson.h>

enum { MAX_VOCAB_FILE = 1 << 28, MAX_VOCAB_IDS = 1 << 24 };

/* ---- vocab.c: tokens in any order ------------------------------------------------ */

struct vocab_builder {
	struct str bytes;
	struct vocab_item {
		uint32_t id;
		size_t at, len;
	} * items;
	int64_t n;
};

void vocab_builder_add(struct vocab_builder *b, uint32_t id, const char *bytes, size_t n);
/* Adds the special tokens of a model that are not in the object `vocab` (NULL: empty), and the last
 * id that the model reserves. The builder must not be empty. */
void vocab_builder_add_model(
	struct vocab_builder *b, const struct bpe_model *m, const json_t *vocab);
/* Makes the vocabulary. Each id must occur once; ids from first_optional on may be missing, and
 * then have no bytes. Releases the builder, also on an error. */
int vocab_builder_finish(
	struct vocab_builder *b, int64_t first_optional, struct vocab *v, struct err *e);
void vocab_builder_release(struct vocab_builder *b);

void rules_add_token(struct bpe_rules *r, uint32_t id, unsigned flags);
void rules_add_merge(struct bpe_rules *r, uint32_t left, uint32_t right);

/* ---- byte_level.c ---------------------------------------------------------------- */

/* Adds all tokens of a JSON object {text: id} to b, except the texts in `skip`, or NULL. */
int read_byte_level_vocab(
	const json_t *vocab, const json_t *skip, struct vocab_builder *b, struct err *e);
/* Adds a merge of two tokens of the JSON object `vocab`, {text: id}. */
int read_byte_level_merge(const json_t *vocab, const char *left, const char *right,
	struct bpe_rules *r, struct err *e);

/* ---- oniguruma.c ------------------------------------------------------------------ */

/* Appends the PCRE2 equivalent of a regular expression of tokenizer.json, in one line. */
int regex_of_oniguruma(const char *regex, struct str *out, struct err *e);

/* ---- the formats ----------------------------------------------------------------- */

/* Parse the contents of a file; `path` is its name in messages. */
int read_merges(const struct str *merges, const char *path, const char *vocab_path,
	const struct bpe_model *m, struct vocab *v, struct bpe_rules *r, struct err *e);
int read_ranks(const struct str *text, const char *path, const struct bpe_model *m,
	struct vocab *v, struct bpe_rules *r, struct err *e);
int read_tokenizer_json(const struct str *text, const char *path, struct vocab *v,
	struct bpe_rules *r, struct err *e);
/* Reads a parsed tekken.json. */
int read_tekken(
	const json_t *j, struct vocab_builder *b, struct bpe_rules *r, struct err *e);
/* Appends the bytes of text[0..n). Returns -1 if it is not base64. */
int base64_decode(const char *text, size_t n, struct str *out);
/* U+FDD0, a noncharacter: replaces U+0000, which jansson rejects in keys. */
#define VOCAB_NUL "\xef\xb7\x90"
/* Returns the parsed JSON of a vocabulary, with VOCAB_NUL for \u0000; NULL with *e set. */
json_t *parse_vocab_json(const struct str *text, const char *path, struct err *e);
