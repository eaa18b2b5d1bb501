/* Reads the files of GPT-2: tokens written with a printable character for each byte, and merges. */
#include "base/file.h"
#include "base/json.h"
#include "token/vocab_internal.h"

/* Returns the byte that a character stands for; -1: none. Printable characters of Latin-1 stand for
 * themselves, and the characters from U+0100 on for the remaining bytes. */
static int byte_of_char(uint32_t code)
{
	static const struct {
		uint8_t first, last;
	} printable[] = {{33, 126}, {161, 172}, {174, 255}};
	int n_others = 0, last = -1;
	for (size_t i = 0; i < ARRAY_LEN(printable); i++) {
		if (code >= printable[i].first && code <= printable[i].last)
			return (int)code;
		int gap = printable[i].first - last - 1;
		if (code >= N_BYTES && (int)code - N_BYTES < n_others + gap)
			return last + 1 + (int)code - N_BYTES - n_others;
		n_others += gap;
		last = printable[i].last;
	}
	return -1;
}

void byte_level_codes(uint32_t code[N_BYTES])
{
	for (uint32_t c = 0; c < 2 * N_BYTES; c++)
		if (byte_of_char(c) >= 0)
			code[byte_of_char(c)] = c;
}

/* Appends the bytes that the characters of text stand for. Returns -1 if one stands for none. */
static int decode_byte_level(const char *text, struct str *out)
{
	int64_t n = (int64_t)strlen(text);
	for (int64_t i = 0; i < n;) {
		uint32_t code;
		int len = utf8_decode(text + i, n - i, &code);
		int byte = len > 0 ? byte_of_char(code) : -1;
		if (byte < 0)
			return -1;
		str_putc(out, (char)byte);
		i += len;
	}
	return 0;
}

json_t *parse_vocab_json(const struct str *text, const char *path, struct err *e)
{
	json_error_t at;
	scoped_str copy = {0};
	str_add(&copy, text->s, text->len);
	for (char *p = copy.s; (p = strchr(p, '\\')) && p[1]; p += 2)
		if (!strncmp(p, "\\u0000", 6))
			memcpy(p, "\\ufdd0", 6);
	json_t *j = load_json(copy.s, copy.len, JSON_REJECT_DUPLICATES, &at);
	if (!j)
		err_set(e, EX_DATAERR, "%s: line %d: %s", path, at.line, at.text);
	return j;
}

/* Sets *id from a JSON integer. Fails, naming the token, if it is not a valid id. */
static int parse_vocab_id(
	const json_t *number, const char *text, uint32_t *id, struct err *e)
{
	json_int_t i = json_is_integer(number) ? json_integer_value(number) : -1;
	if (i < 0 || i >= MAX_VOCAB_IDS)
		return err_set(e, EX_DATAERR, "token '%.60s' has no valid id", text);
	*id = (uint32_t)i;
	return 0;
}

int read_byte_level_vocab(
	const json_t *vocab, const json_t *skip, struct vocab_builder *b, struct err *e)
{
	const char *text;
	json_t *number;
	scoped_str bytes = {0};
	int rc = 0;
	json_object_foreach((json_t *)vocab, text, number)
	{
		uint32_t id = 0;
		rc = parse_vocab_id(number, text, &id, e);
		if (rc)
			break;
		if (skip && json_object_get(skip, text))
			continue;
		str_clear(&bytes);
		if (!*text || decode_byte_level(text, &bytes)) {
			rc = err_set(e, EX_DATAERR,
				"token '%.60s' (ID %u) has a character that is not one of GPT-2's "
				"characters for bytes",
				text, id);
			break;
		}
		vocab_builder_add(b, id, bytes.s, bytes.len);
	}
	return rc;
}

int read_byte_level_merge(const json_t *vocab, const char *left, const char *right,
	struct bpe_rules *r, struct err *e)
{
	const char *text[3] = {left, right};
	uint32_t id[3];
	scoped_str both = {0};
	str_puts(&both, left);
	str_puts(&both, right);
	text[2] = both.s;
	int rc = 0;
	for (int i = 0; i < 3 && !rc; i++) {
		const json_t *number = json_object_get(vocab, text[i]);
		if (!number)
			rc = err_set(e, EX_DATAERR,
				i < 2 ? "'%.60s' is not in the vocabulary"
				      : "the merged token '%.60s' is not in the vocabulary",
				text[i]);
		else
			rc = parse_vocab_id(number, text[i], &id[i], e);
	}
	if (!rc)
		rules_add_merge(r, id[0], id[1]);
	return rc;
}

/* Adds the merges of a merges.txt, one per line, and cuts its lines. */
static int read_merge_lines(const json_t *vocab, const struct str *merges,
	const char *path, struct bpe_rules *r, struct err *e)
{
	long long number = 1;
	for (char *line = merges->s, *end; *line; line = end, number++) {
		end = line + strcspn(line, "\n");
		if (*end)
			*end++ = '\0';
		line[strcspn(line, "\r")] = '\0';
		if (!*line || (number == 1 && !strncmp(line, "#version", 8)))
			continue;
		char *space = strchr(line, ' ');
		if (!space || space == line || !space[1] || strchr(space + 1, ' '))
			return err_set(e, EX_DATAERR,
				"%s: line %lld: a merge must be two tokens separated by a space",
				path, number);
		*space = '\0';
		if (read_byte_level_merge(vocab, line, space + 1, r, e))
			return err_prefix(e, "%s: line %lld: ", path, number);
	}
	return r->n_merges ? 0
			   : err_set(e, EX_DATAERR, "%s: the file has no merges", path);
}

/* Marks tokens that are neither a byte nor made by a merge as special. */
static void mark_unmade_special(
	const struct vocab *v, struct bpe_rules *r, const json_t *vocab)
{
	scoped_ptr bool *made = xcalloc((size_t)v->n, sizeof(*made));
	scoped_str both = {0};
	/* (found by text, since the rules do not store the tokens that merges make) */
	scoped_ptr const char **text = xcalloc((size_t)v->n, sizeof(*text));
	const char *key;
	json_t *number;
	json_object_foreach((json_t *)vocab, key, number)
	{
		text[json_integer_value(number)] = key;
	}
	for (int64_t i = 0; i < r->n_merges; i++) {
		str_clear(&both);
		str_puts(&both, text[r->merges[2 * i]]);
		str_puts(&both, text[r->merges[2 * i + 1]]);
		made[json_integer_value(json_object_get(vocab, both.s))] = true;
	}
	for (uint32_t id = 0; id < v->n; id++)
		if (!made[id] && v->offset[id + 1] - v->offset[id] > 1)
			rules_add_token(r, id, BPE_SPECIAL);
}

/* Makes the vocabulary; adds the special tokens of model m, or NULL, that the file lacks. */
static int finish_vocab(struct vocab_builder *b, const struct bpe_model *m,
	const json_t *vocab, struct vocab *v, struct err *e)
{
	int64_t first_optional = m ? b->n : INT64_MAX;
	if (m && b->n)
		vocab_builder_add_model(b, m, vocab);
	return vocab_builder_finish(b, first_optional, v, e);
}

int read_merges(const struct str *merges, const char *path, const char *vocab_path,
	const struct bpe_model *m, struct vocab *v, struct bpe_rules *r, struct err *e)
{
	scoped_str text = {0};
	struct vocab_builder b = {0};
	json_auto_t *vocab = NULL;
	int rc = file_read(vocab_path, MAX_VOCAB_FILE, &text, e);
	if (!rc)
		rc = (vocab = parse_vocab_json(&text, vocab_path, e)) ? 0 : -1;
	if (!rc && !json_is_object(vocab))
		rc = err_set(e, EX_DATAERR,
			"%s: the file is not a JSON object {token: id}", vocab_path);
	if (!rc && (read_byte_level_vocab(vocab, NULL, &b, e) ||
			   finish_vocab(&b, m, vocab, v, e)))
		rc = err_prefix(e, "%s: ", vocab_path);
	if (!rc)
		rc = read_merge_lines(vocab, merges, path, r, e);
	if (!rc)
		mark_unmade_special(v, r, vocab);
	vocab_builder_release(&b);
	return rc;
}
