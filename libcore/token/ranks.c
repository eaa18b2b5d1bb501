/* Reads rank files of tiktoken: each line has a token's bytes in base64, a space and its rank. */
#include "token/vocab_internal.h"

static int base64_value(char c)
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const char *p = c ? strchr(digits, c) : NULL;
	return p ? (int)(p - digits) : -1;
}

int base64_decode(const char *text, size_t n, struct str *out)
{
	if (!n || n % 4)
		return -1;
	for (size_t i = 0; i < n; i += 4) {
		bool last = i + 4 == n;
		int pad = last && text[n - 1] == '=' ? 1 + (text[n - 2] == '=') : 0;
		uint32_t bits = 0;
		for (size_t k = 0; k < 4; k++) {
			int digit = (int)k >= 4 - pad ? 0 : base64_value(text[i + k]);
			if (digit < 0)
				return -1;
			bits = bits << 6 | (uint32_t)digit;
		}
		if (bits & ((1u << 8 * pad) - 1)) /* not the canonical form */
			return -1;
		for (int k = 0; k < 3 - pad; k++)
			str_putc(out, (char)(bits >> (16 - 8 * k)));
	}
	return 0;
}

/* Adds the token of a line "base64 rank" to the vocabulary. Ranks must be consecutive. */
static int read_rank_line(struct vocab_builder *b, struct str *bytes, const char *line,
	size_t n, struct err *e)
{
	const char *space = memchr(line, ' ', n);
	size_t n_text = space ? (size_t)(space - line) : n;
	char number[16];
	int64_t rank;
	if (!space || n - n_text - 1 >= sizeof(number))
		return err_set(e, EX_DATAERR,
			"the line is not a base64 token, a space and a rank");
	memcpy(number, space + 1, n - n_text - 1);
	number[n - n_text - 1] = '\0';
	str_clear(bytes);
	if (base64_decode(line, n_text, bytes))
		return err_set(e, EX_DATAERR, "the token is not base64");
	if (parse_int(number, &rank) || rank < 0 || rank >= MAX_VOCAB_IDS)
		return err_set(e, EX_DATAERR, "'%s' is not a rank", number);
	if (rank != b->n)
		return err_set(e, EX_DATAERR, "the rank of the token is %lld, not %lld",
			(long long)rank, (long long)b->n);
	vocab_builder_add(b, (uint32_t)rank, bytes->s, bytes->len);
	return 0;
}

/* Adds the tokens of all lines; empty lines are skipped. Errors name the line. */
static int read_rank_lines(struct vocab_builder *b, const struct str *text, struct err *e)
{
	scoped_str bytes = {0};
	long long number = 1;
	int rc = 0;
	for (const char *line = text->s; *line && !rc; number++) {
		size_t n = strcspn(line, "\n");
		const char *end = line + n + (line[n] == '\n');
		n -= n && line[n - 1] == '\r';
		if (n && read_rank_line(b, &bytes, line, n, e))
			rc = err_prefix(e, "line %lld: ", number);
		line = end;
	}
	return rc;
}

/* Adds the special tokens of a model, and the ids that the model reserves. */
static int add_model_tokens(struct vocab_builder *b, const struct bpe_model *m,
	struct bpe_rules *r, struct err *e)
{
	if (m->n_ranked && m->n_ranked != r->n_ranked)
		return err_set(e, EX_DATAERR, "the file has %lld tokens, but %s has %lld",
			(long long)r->n_ranked, m->name, (long long)m->n_ranked);
	vocab_builder_add_model(b, m, NULL);
	for (int i = 0; m->special[i].text; i++)
		rules_add_token(r, m->special[i].id, BPE_SPECIAL);
	return 0;
}

int read_ranks(const struct str *text, const char *path, const struct bpe_model *m,
	struct vocab *v, struct bpe_rules *r, struct err *e)
{
	struct vocab_builder b = {0};
	int rc = read_rank_lines(&b, text, e);
	r->n_ranked = b.n;
	if (!rc && m)
		rc = add_model_tokens(&b, m, r, e);
	rc = rc || vocab_builder_finish(&b, r->n_ranked, v, e);
	vocab_builder_release(&b);
	return rc ? err_prefix(e, "%s: ", path) : 0;
}
