/* The tables for encoding: token pairs that merge, tokens by their bytes, tokens found in text. */
#include "token/bpe_internal.h"

static uint64_t hash_table_size(int64_t n)
{
	uint64_t size = 64;
	while (size < 2 * (uint64_t)n)
		size *= 2;
	return size;
}

uint32_t bpe_find_token(const struct bpe *b, const char *bytes, int64_t n)
{
	for (uint64_t i = hash_bytes(bytes, (size_t)n, 0);; i++) {
		uint32_t id = b->by_bytes[i & b->bytes_mask];
		int64_t len;
		if (id == BPE_NONE)
			return id;
		const char *p = token_bytes(b->vocab, id, &len);
		if (len == n && !memcmp(p, bytes, (size_t)n))
			return id;
	}
}

static void insert_token(struct bpe *b, uint32_t id)
{
	int64_t len;
	const char *p = token_bytes(b->vocab, id, &len);
	uint64_t i = hash_bytes(p, (size_t)len, 0);
	while (b->by_bytes[i & b->bytes_mask] != BPE_NONE)
		i++;
	b->by_bytes[i & b->bytes_mask] = id;
}

/* Indexes the tokens that merges can make, by their bytes: all tokens except special ones. If an
 * added token has the same bytes as a token of the vocabulary, merges make the latter. */
static int index_bytes(struct bpe *b, struct err *e)
{
	enum { WORDS, ADDED, SPECIAL };
	const struct vocab *v = b->vocab;
	const struct bpe_rules *r = b->rules;
	scoped_ptr uint8_t *kind = xcalloc((size_t)v->n, 1);
	uint64_t size = hash_table_size(v->n);
	b->bytes_mask = size - 1;
	b->by_bytes = xmalloc(size * sizeof(*b->by_bytes));
	memset(b->by_bytes, 0xff, size * sizeof(*b->by_bytes));
	int rc = 0;
	for (int64_t i = 0; i < r->n_added; i++)
		kind[r->added[i].id] = r->added[i].flags & BPE_SPECIAL ? SPECIAL : ADDED;
	for (uint8_t k = WORDS; k <= ADDED && !rc; k++)
		for (uint32_t id = 0; id < v->n && !rc; id++) {
			int64_t len;
			const char *p = token_bytes(v, id, &len);
			if (!len || kind[id] != k)
				continue;
			uint32_t first = bpe_find_token(b, p, len);
			if (first == BPE_NONE)
				insert_token(b, id);
			else if (k == WORDS)
				rc = err_set(e, EX_DATAERR,
					"tokens %u and %u have the same bytes", first,
					id);
		}
	for (int c = 0; c < 256; c++) {
		char byte = (char)c;
		b->byte_id[c] = bpe_find_token(b, &byte, 1);
		b->lacks_bytes |= b->byte_id[c] == BPE_NONE;
	}
	return rc;
}

static void alloc_pairs(struct bpe *b, int64_t n)
{
	uint64_t size = hash_table_size(n);
	b->pairs = xmalloc(size * sizeof(*b->pairs));
	b->pair_mask = size - 1;
	memset(b->pairs, 0xff, size * sizeof(*b->pairs));
}

/* Adds a pair of tokens that merge. Returns -1 if the pair is already in the table. */
static int insert_pair(
	struct bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t token)
{
	struct bpe_pair *p = bpe_find_pair(b, left, right);
	if (p->key != UINT64_MAX)
		return -1;
	*p = (struct bpe_pair){(uint64_t)left << 32 | right, {rank, token}};
	return 0;
}

/* Builds the table of merges, from pairs of tokens to rank and result. Fails if one is invalid. */
static int index_merges(struct bpe *b, struct err *e)
{
	const struct bpe_rules *r = b->rules;
	const struct vocab *v = b->vocab;
	scoped_str both = {0};
	int rc = 0;
	alloc_pairs(b, r->n_merges);
	for (int64_t i = 0; i < r->n_merges && !rc; i++) {
		uint32_t left = r->merges[2 * i], right = r->merges[2 * i + 1];
		int64_t n_left, n_right;
		if (left >= v->n || right >= v->n) {
			rc = err_set(e, EX_DATAERR,
				"merge %lld has a token outside the vocabulary",
				(long long)i + 1);
			break;
		}
		const char *p = token_bytes(v, left, &n_left);
		const char *q = token_bytes(v, right, &n_right);
		str_clear(&both);
		str_add(&both, p, (size_t)n_left);
		str_add(&both, q, (size_t)n_right);
		uint32_t token = n_left && n_right
					 ? bpe_find_token(b, both.s, (int64_t)both.len)
					 : BPE_NONE;
		if (token == BPE_NONE)
			rc = err_set(e, EX_DATAERR,
				"merge %lld makes a token that is not in the vocabulary",
				(long long)i + 1);
		else if (insert_pair(b, left, right, (uint32_t)i, token))
			rc = err_set(e, EX_DATAERR, "merge %lld occurs twice",
				(long long)i + 1);
	}
	return rc;
}

/* Returns the number of token pairs that merge to ranked token `id`; `insert`: also adds them. */
static int64_t index_ranked_token(struct bpe *b, uint32_t id, bool insert)
{
	int64_t len, n = 0, n_ranked = b->rules->n_ranked;
	const char *p = token_bytes(b->vocab, id, &len);
	if (bpe_find_token(b, p, len) != id) /* (a special token among them) */
		return 0;
	for (int64_t k = 1; k < len; k++) {
		uint32_t left = bpe_find_token(b, p, k);
		uint32_t right =
			left < n_ranked ? bpe_find_token(b, p + k, len - k) : BPE_NONE;
		if (right >= n_ranked)
			continue;
		n++;
		if (insert)
			insert_pair(b, left, right, id, id);
	}
	return n;
}

/* Makes the table of pairs for a vocabulary whose ranks determine the merges. */
static int index_ranks(struct bpe *b, struct err *e)
{
	int64_t n = 0, len;
	if (b->rules->n_ranked > b->vocab->n)
		return err_set(
			e, EX_DATAERR, "the vocabulary has more ranks than tokens");
	for (uint32_t id = 0; id < b->rules->n_ranked; id++) {
		token_bytes(b->vocab, id, &len);
		if (len > BPE_MAX_RANKED)
			return err_set(e, EX_DATAERR,
				"token %u has %lld bytes, more than %d", id,
				(long long)len, BPE_MAX_RANKED);
		n += index_ranked_token(b, id, false);
	}
	alloc_pairs(b, n);
	for (uint32_t id = 0; id < b->rules->n_ranked; id++)
		index_ranked_token(b, id, true);
	return 0;
}

/* Makes a table of the merges of two bytes, which are looked up most often. */
static void index_byte_pairs(struct bpe *b)
{
	b->byte_pairs = xmalloc((size_t)(1 << 16) * sizeof(*b->byte_pairs));
	for (int i = 0; i < 1 << 16; i++)
		b->byte_pairs[i] =
			bpe_find_merge(b, b->byte_id[i >> 8], b->byte_id[i & 255]);
}

static int compare_bytes(const char *a, int64_t n_a, const char *b, int64_t n_b)
{
	int order = memcmp(a, b, (size_t)min64(n_a, n_b));
	return order ? order : (n_a > n_b) - (n_a < n_b);
}

static int compare_ids(const void *a, const void *b, void *vocab)
{
	int64_t n_a, n_b;
	const char *p = token_bytes(vocab, *(const uint32_t *)a, &n_a);
	const char *q = token_bytes(vocab, *(const uint32_t *)b, &n_b);
	return compare_bytes(p, n_a, q, n_b);
}

static int longest_first(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return (x < y) - (x > y);
}

/* Makes the set of added tokens to be found in original (or normalized) text. */
static void make_added_set(struct bpe *b, bool includes_special, bool in_normalized)
{
	const struct bpe_rules *r = b->rules;
	struct added_set *a = &b->added[includes_special][in_normalized];
	a->ids = xcalloc((size_t)r->n_added + 1, sizeof(*a->ids));
	a->lengths = xcalloc((size_t)r->n_added + 1, sizeof(*a->lengths));
	a->only_first = -1;
	int n_first = 0;
	for (int64_t i = 0; i < r->n_added; i++) {
		int64_t len;
		const char *p = token_bytes(b->vocab, r->added[i].id, &len);
		unsigned flags = r->added[i].flags;
		if (!len ||
			(flags & BPE_SPECIAL &&
				(!includes_special || flags & BPE_STRIPS)) ||
			(flags & BPE_NORMALIZED) != (in_normalized ? BPE_NORMALIZED : 0))
			continue;
		n_first += !a->first[(uint8_t)*p];
		a->first[(uint8_t)*p] = true;
		a->only_first = n_first == 1 ? (uint8_t)*p : -1;
		a->ids[a->n] = r->added[i].id;
		a->lengths[a->n++] = len;
	}
	qsort_r(a->ids, (size_t)a->n, sizeof(*a->ids), compare_ids, (void *)b->vocab);
	qsort(a->lengths, (size_t)a->n, sizeof(*a->lengths), longest_first);
	for (int64_t i = 0; i < a->n; i++)
		if (!i || a->lengths[i] != a->lengths[i - 1])
			a->lengths[a->n_lengths++] = a->lengths[i];
}

/* Returns the token of set `a` with exactly these bytes; BPE_NONE: none. */
static uint32_t find_added_exact(
	const struct bpe *b, const struct added_set *a, const char *p, int64_t n)
{
	int64_t low = 0, high = a->n;
	while (low < high) {
		int64_t mid = (low + high) / 2, len;
		const char *q = token_bytes(b->vocab, a->ids[mid], &len);
		int order = compare_bytes(q, len, p, n);
		if (!order)
			return a->ids[mid];
		*(order < 0 ? &low : &high) = order < 0 ? mid + 1 : mid;
	}
	return BPE_NONE;
}

int64_t bpe_find_added(const struct bpe *b, const struct added_set *a, const char *text,
	int64_t n, bool final, uint32_t *id)
{
	*id = BPE_NONE;
	if (!a->n)
		return n;
	for (int64_t i = 0; i < n; i++) {
		if (a->only_first >= 0) {
			const char *hit =
				memchr(text + i, a->only_first, (size_t)(n - i));
			if (!hit)
				return n;
			i = hit - text;
		} else if (!a->first[(uint8_t)text[i]])
			continue;
		if (!final && i + a->lengths[0] > n)
			return i;
		for (int64_t k = 0; k < a->n_lengths; k++) {
			if (i + a->lengths[k] > n)
				continue;
			*id = find_added_exact(b, a, text + i, a->lengths[k]);
			if (*id != BPE_NONE)
				return i;
		}
	}
	return n;
}

/* Rejects a token to be found in normalized text, unless the token's own text is normalized. */
static int check_token_normalized(
	const struct vocab *v, const struct bpe_rules *r, uint32_t id, struct err *e)
{
	struct normalized x = {0};
	int64_t len;
	const char *p = token_bytes(v, id, &len);
	int rc = r->normalizer ? normalize(r->normalizer, p, len, &x, e) : 0;
	if (!rc && x.changes.n)
		rc = err_set(e, EX_DATAERR,
			"the text of added token %u is not in normalization form %s, which is "
			"not supported",
			id, normal_forms[r->normalizer]);
	normalized_release(&x);
	return rc;
}

/* Fails if the rules of an untrusted tokenizer file contradict each other or the vocabulary. */
static int check_rules(const struct vocab *v, const struct bpe_rules *r, struct err *e)
{
	if (r->end_of_text != BPE_NONE && r->end_of_text >= v->n)
		return err_set(
			e, EX_DATAERR, "the end-of-text token is outside the vocabulary");
	BUG_ON(r->normalizer >= N_NORMAL_FORMS);
	for (int64_t i = 0; i < r->n_added; i++) {
		unsigned flags = r->added[i].flags;
		if (r->added[i].id >= v->n)
			return err_set(e, EX_DATAERR,
				"an added token is outside the vocabulary");
		if (flags & BPE_NORMALIZED &&
			check_token_normalized(v, r, r->added[i].id, e))
			return -1;
		if (flags > (BPE_SPECIAL | BPE_NORMALIZED | BPE_STRIPS) ||
			(flags & BPE_STRIPS && !(flags & BPE_SPECIAL)))
			return err_set(e, EX_DATAERR,
				"the added token %u has invalid flags", r->added[i].id);
	}
	return 0;
}

int bpe_check_special(const struct vocab *v, const struct bpe_rules *r, struct err *e)
{
	for (int64_t i = 0; i < r->n_added; i++) {
		int64_t len;
		const char *p = token_bytes(v, r->added[i].id, &len);
		if (r->added[i].flags & BPE_STRIPS)
			return err_set(e, EX_DATAERR,
				"the special token '%.*s' has lstrip, rstrip or single_word, "
				"with which pt cannot find it in text",
				(int)min64(len, 60), p);
	}
	return 0;
}

struct bpe *bpe_open(const struct vocab *v, const struct bpe_rules *r, struct err *e)
{
	if (check_rules(v, r, e))
		return NULL;
	struct bpe *b = xcalloc(1, sizeof(*b));
	b->vocab = v;
	b->rules = r;
	b->whole_words = r->whole_words || !r->n_merges;
	struct encoder *s = NULL;
	if (index_bytes(b, e) || (r->n_merges ? index_merges(b, e) : index_ranks(b, e)) ||
		!(s = encoder_open(b, e))) { /* (opened only to check the patterns) */
		bpe_close(b);
		return NULL;
	}
	encoder_close(s);
	index_byte_pairs(b);
	for (int i = 0; i < 4; i++)
		make_added_set(b, i & 1, i & 2);
	return b;
}

void bpe_close(struct bpe *b)
{
	if (!b)
		return;
	for (int i = 0; i < 4; i++) {
		free(b->added[i & 1][i >> 1].ids);
		free(b->added[i & 1][i >> 1].lengths);
	}
	free(b->byte_pairs);
	free(b->pairs);
	free(b->by_bytes);
	free(b);
}
