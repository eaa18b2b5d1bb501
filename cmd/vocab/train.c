/* Merging pairs. Each pair of tokens has its count and a list of words in which it has occurred. A
 * priority queue orders the pairs by the counts that they had when they were queued. Counts can
 * only fall, so the first pair whose count is still the queued one is the most frequent pair. A
 * merge visits the words of its pair, and changes the counts of the pairs with neighboring tokens.
 * These changes are summed by neighbor and applied once. */
#include "vocab/vocab.h"

enum { MAX_TOKENS = 1 << 24 };
#define NO_TOKEN UINT32_MAX

struct list {
	uint32_t *v;
	uint32_t n, capacity;
};

struct token_pair {
	uint64_t key; /* left token << 32 | right token */
	int64_t count;
	struct list words; /* each word once; some may not have the pair any more */
	bool is_partial;   /* the list lacks words that have the pair */
};

struct queued {
	int64_t count;
	uint64_t key;
};

/* The change of a merge to the pairs with one neighbor. */
struct change {
	int64_t count;
	struct list words;
};

struct trainer {
	const struct train_config *c;
	/* The words: word w has tokens [begin[w], begin[w] + n[w]), and occurs count[w] times. */
	uint32_t *tokens, *n;
	size_t *begin;
	int64_t *count;
	uint32_t n_words;
	/* The pairs, and a hash table of their indices + 1. */
	struct token_pair *pairs;
	int64_t n_pairs;
	uint32_t *slots;
	int64_t n_slots;
	struct queued *queue; /* a heap, the most frequent pair first */
	int64_t n_queue;
	/* The changes of a merge by left [0] and right [1] neighbor, and which are not zero. */
	struct change *change[2];
	struct list changed[2];
	/* The vocabulary, and a hash table of its ids + 1. */
	struct str bytes;
	int64_t *offset, n_tokens, max_tokens;
	uint32_t *ids;
	int64_t n_ids;
};

static void list_append(struct list *l, uint32_t x)
{
	if (l->n == l->capacity) {
		l->capacity = l->capacity < 4 ? 4 : l->capacity + l->capacity / 2;
		l->v = xrealloc(l->v, l->capacity * sizeof(*l->v));
	}
	l->v[l->n++] = x;
}

static void list_release(struct list *l)
{
	free(l->v);
	*l = (struct list){0};
}

static uint64_t pair_key(uint32_t left, uint32_t right)
{
	return (uint64_t)left << 32 | right;
}

/* Doubles the hash table of pairs, and inserts all pairs again. */
static void grow_slots(struct trainer *t)
{
	t->n_slots = max64(1 << 16, 2 * t->n_slots);
	free(t->slots);
	t->slots = xcalloc((size_t)t->n_slots, sizeof(*t->slots));
	for (int64_t i = 0; i < t->n_pairs; i++) {
		uint64_t k = hash_mix(t->pairs[i].key) & (uint64_t)(t->n_slots - 1);
		while (t->slots[k])
			k = (k + 1) & (uint64_t)(t->n_slots - 1);
		t->slots[k] = (uint32_t)i + 1;
	}
}

/* Finds a pair, or adds it with count 0. Valid until the next call. */
static struct token_pair *find_or_add_pair(struct trainer *t, uint64_t key)
{
	if (2 * t->n_pairs >= t->n_slots)
		grow_slots(t);
	uint64_t k = hash_mix(key) & (uint64_t)(t->n_slots - 1);
	for (; t->slots[k]; k = (k + 1) & (uint64_t)(t->n_slots - 1))
		if (t->pairs[t->slots[k] - 1].key == key)
			return &t->pairs[t->slots[k] - 1];
	t->pairs = xgrow(t->pairs, t->n_pairs, sizeof(*t->pairs));
	t->slots[k] = (uint32_t)++t->n_pairs;
	struct token_pair *p = &t->pairs[t->n_pairs - 1];
	*p = (struct token_pair){.key = key};
	return p;
}

static bool is_more_frequent(struct queued a, struct queued b)
{
	return a.count != b.count ? a.count > b.count : a.key < b.key;
}

static void queue_push(struct trainer *t, const struct token_pair *p)
{
	struct queued x = {p->count, p->key};
	t->queue = xgrow(t->queue, t->n_queue, sizeof(*t->queue));
	int64_t i = t->n_queue++;
	for (; i && is_more_frequent(x, t->queue[(i - 1) / 2]); i = (i - 1) / 2)
		t->queue[i] = t->queue[(i - 1) / 2];
	t->queue[i] = x;
}

/* Removes the most frequent pair from the heap, and returns it. */
static struct queued queue_pop(struct trainer *t)
{
	struct queued *q = t->queue, first = q[0], x = q[--t->n_queue];
	int64_t i = 0, n = t->n_queue;
	for (int64_t k = 1; k < n; k = 2 * i + 1) {
		k += k + 1 < n && is_more_frequent(q[k + 1], q[k]);
		if (!is_more_frequent(q[k], x))
			break;
		q[i] = q[k];
		i = k;
	}
	q[i] = x;
	return first;
}

/* Queues a pair; one that is too rare only loses its list of words, because counts only fall. */
static void enqueue(struct trainer *t, struct token_pair *p)
{
	if (p->count >= t->c->min_count) {
		queue_push(t, p);
		return;
	}
	p->is_partial = p->is_partial || p->words.n;
	list_release(&p->words);
}

/* Sets the token of each byte, in the order of the characters that GPT-2 writes for bytes. */
static void set_byte_tokens(uint32_t token_of[N_BYTES])
{
	uint32_t code[N_BYTES], n = 0;
	byte_level_codes(code);
	for (int printable = 1; printable >= 0; printable--)
		for (int b = 0; b < N_BYTES; b++)
			if ((code[b] < N_BYTES) == printable)
				token_of[b] = n++;
}

/* Copies the words of w to t, as sequences of byte tokens with their counts. */
static void words_to_tokens(struct trainer *t, const struct train_words *w)
{
	uint32_t token_of[N_BYTES];
	set_byte_tokens(token_of);
	t->tokens = xmalloc(w->n_bytes * sizeof(*t->tokens));
	t->n = xmalloc((size_t)w->n * sizeof(*t->n));
	t->begin = xmalloc((size_t)w->n * sizeof(*t->begin));
	t->count = xmalloc((size_t)w->n * sizeof(*t->count));
	for (size_t i = 0; i < w->n_bytes; i++)
		t->tokens[i] = token_of[(uint8_t)w->bytes[i]];
	for (int64_t i = 0; i < w->n_slots; i++) {
		if (!w->slots[i].count)
			continue;
		t->begin[t->n_words] = w->slots[i].at;
		t->n[t->n_words] = w->slots[i].n_bytes;
		t->count[t->n_words++] = w->slots[i].count;
	}
}

/* Counts the pairs of bytes and lists the words that have them. */
static void count_pairs(struct trainer *t)
{
	enum { N = N_BYTES * N_BYTES };
	scoped_ptr int64_t *counts = xcalloc(N, sizeof(*counts));
	scoped_ptr struct list *words = xcalloc(N, sizeof(*words));
	for (uint32_t w = 0; w < t->n_words; w++) {
		const uint32_t *s = t->tokens + t->begin[w];
		for (uint32_t i = 0; i + 1 < t->n[w]; i++) {
			uint32_t k = s[i] * N_BYTES + s[i + 1];
			counts[k] += t->count[w];
			if (!words[k].n || words[k].v[words[k].n - 1] != w)
				list_append(&words[k], w);
		}
	}
	for (uint32_t k = 0; k < N; k++) {
		if (!counts[k])
			continue;
		struct token_pair *p =
			find_or_add_pair(t, pair_key(k / N_BYTES, k % N_BYTES));
		p->count = counts[k];
		p->words = words[k];
		enqueue(t, p);
	}
}

/* Returns the token with these bytes; NO_TOKEN: none, and *slot is the free slot for it. */
static uint32_t find_token(
	const struct trainer *t, const char *bytes, size_t n, uint64_t *slot)
{
	uint64_t k = hash_bytes(bytes, n, 0) & (uint64_t)(t->n_ids - 1);
	for (; t->ids[k]; k = (k + 1) & (uint64_t)(t->n_ids - 1)) {
		uint32_t id = t->ids[k] - 1;
		if (t->offset[id + 1] - t->offset[id] == (int64_t)n &&
			!memcmp(t->bytes.s + t->offset[id], bytes, n))
			return id;
	}
	*slot = k;
	return NO_TOKEN;
}

/* Returns the token with these bytes; adds it, unless another pair has the same bytes. */
static uint32_t add_token(struct trainer *t, const char *bytes, size_t n)
{
	uint64_t slot;
	uint32_t id = find_token(t, bytes, n, &slot);
	if (id != NO_TOKEN)
		return id;
	t->ids[slot] = (uint32_t)++t->n_tokens;
	str_add(&t->bytes, bytes, n);
	t->offset[t->n_tokens] = (int64_t)t->bytes.len;
	return (uint32_t)t->n_tokens - 1;
}

static uint32_t add_merged_token(struct trainer *t, uint32_t left, uint32_t right)
{
	scoped_str bytes = {0};
	const uint32_t parts[] = {left, right};
	for (int i = 0; i < 2; i++)
		str_add(&bytes, t->bytes.s + t->offset[parts[i]],
			(size_t)(t->offset[parts[i] + 1] - t->offset[parts[i]]));
	return add_token(t, bytes.s, bytes.len);
}

static int64_t count_special(const struct train_config *c)
{
	return (c->end_of_text != NULL) + c->special.n;
}

/* Allocates the tables of tokens for the whole vocabulary, and adds the 256 bytes as tokens. */
static void add_byte_tokens(struct trainer *t)
{
	uint32_t token_of[N_BYTES];
	char byte[N_BYTES];
	t->max_tokens = t->c->vocab - count_special(t->c);
	t->offset = xcalloc((size_t)t->c->vocab + 1, sizeof(*t->offset));
	for (t->n_ids = 1024; t->n_ids < 2 * t->max_tokens;)
		t->n_ids *= 2;
	t->ids = xcalloc((size_t)t->n_ids, sizeof(*t->ids));
	for (int s = 0; s < 2; s++)
		t->change[s] = xcalloc((size_t)t->max_tokens, sizeof(*t->change[s]));
	set_byte_tokens(token_of);
	for (int b = 0; b < N_BYTES; b++)
		byte[token_of[b]] = (char)b;
	for (int i = 0; i < N_BYTES; i++)
		add_token(t, &byte[i], 1);
}

/* Adds a word's count to the change of the pairs with a neighbor. */
static void record_change(struct trainer *t, int side, uint32_t neighbor, uint32_t word)
{
	struct change *c = &t->change[side][neighbor];
	if (!c->count)
		list_append(&t->changed[side], neighbor);
	c->count += t->count[word];
	if (!c->words.n || c->words.v[c->words.n - 1] != word)
		list_append(&c->words, word);
}

/* Replaces the pair in a word by the merged token, and records the changes of neighbors. */
static void merge_word(
	struct trainer *t, uint32_t word, uint32_t left, uint32_t right, uint32_t merged)
{
	uint32_t *s = t->tokens + t->begin[word], n = t->n[word], k = 0;
	for (uint32_t i = 0; i < n; i++) {
		if (s[i] != left || i + 1 == n || s[i + 1] != right) {
			s[k++] = s[i];
			continue;
		}
		if (k)
			record_change(t, 0, s[k - 1], word);
		if (i + 2 < n)
			record_change(t, 1, s[i + 2], word);
		s[k++] = merged;
		i++;
	}
	t->n[word] = k;
}

/* Adds a change to the pair of the merged token and a neighbor, and moves the words to it. */
static void add_to_pair(struct trainer *t, uint64_t key, struct change *c)
{
	struct token_pair *p = find_or_add_pair(t, key);
	p->count += c->count;
	if (!p->words.n) {
		list_release(&p->words);
		p->words = c->words;
		p->words.v = xrealloc(p->words.v, p->words.n * sizeof(*p->words.v));
		p->words.capacity = p->words.n;
		c->words = (struct list){0};
		return;
	}
	for (uint32_t i = 0; i < c->words.n; i++)
		list_append(&p->words, c->words.v[i]);
	list_release(&c->words);
}

/* Applies the recorded changes: pairs with the merged token gain what pairs with its parts lose. */
static void apply_changes(
	struct trainer *t, uint32_t left, uint32_t right, uint32_t merged)
{
	/* (passes: increments, then decrements, then the queue) */
	for (int pass = 0; pass < 3; pass++)
		for (int side = 0; side < 2; side++)
			for (uint32_t i = 0; i < t->changed[side].n; i++) {
				uint32_t x = t->changed[side].v[i];
				struct change *c = &t->change[side][x];
				uint64_t new_key =
					side ? pair_key(merged, x) : pair_key(x, merged);
				if (pass == 0)
					add_to_pair(t, new_key, c);
				else if (pass == 1)
					find_or_add_pair(t, side ? pair_key(right, x)
								 : pair_key(x, left))
						->count -= c->count;
				else
					enqueue(t, find_or_add_pair(t, new_key));
			}
	for (int side = 0; side < 2; side++) {
		for (uint32_t i = 0; i < t->changed[side].n; i++)
			t->change[side][t->changed[side].v[i]].count = 0;
		t->changed[side].n = 0;
	}
}

/* Adds a token that merges a pair, appends the merge to *r, and replaces the pair in all
 * words. */
static void merge_pair(struct trainer *t, uint64_t key, struct bpe_rules *r)
{
	uint32_t left = (uint32_t)(key >> 32), right = (uint32_t)key;
	struct token_pair *p = find_or_add_pair(t, key);
	struct list words = p->words;
	bool is_partial = p->is_partial;
	uint32_t merged = add_merged_token(t, left, right);
	p->words = (struct list){0};
	r->merges[2 * r->n_merges] = left;
	r->merges[2 * r->n_merges++ + 1] = right;
	if (is_partial)
		for (uint32_t w = 0; w < t->n_words; w++)
			merge_word(t, w, left, right, merged);
	else
		for (uint32_t i = 0; i < words.n; i++)
			merge_word(t, words.v[i], left, right, merged);
	list_release(&words);
	apply_changes(t, left, right, merged);
	p = find_or_add_pair(t, key);
	p->count = 0;
}

/* Merges the most frequent pairs until the vocabulary is full or all pairs are too rare. */
static void merge_pairs(struct trainer *t, struct bpe_rules *r)
{
	int64_t max_merges = max64(0, t->max_tokens - N_BYTES);
	r->merges = xmalloc((size_t)(2 * max_merges + 1) * sizeof(*r->merges));
	while (t->n_tokens < t->max_tokens && r->n_merges < max_merges && t->n_queue) {
		struct queued q = queue_pop(t);
		struct token_pair *p = find_or_add_pair(t, q.key);
		if (p->count == q.count)
			merge_pair(t, q.key, r);
		else if (p->count >= t->c->min_count && p->count < q.count)
			queue_push(t, p);
		if (t->c->bar && !(r->n_merges & 63))
			progress_update(t->c->bar, (double)r->n_merges, NULL);
	}
}

static void trainer_release(struct trainer *t)
{
	for (int64_t i = 0; i < t->n_pairs; i++)
		list_release(&t->pairs[i].words);
	for (int s = 0; s < 2; s++) {
		free(t->change[s]);
		list_release(&t->changed[s]);
	}
	free(t->tokens);
	free(t->n);
	free(t->begin);
	free(t->count);
	free(t->pairs);
	free(t->slots);
	free(t->queue);
	free(t->ids);
}

/* Adds a special token to the vocabulary, and marks it as special in the rules. */
static void add_special(struct trainer *t, struct bpe_rules *r, const char *text)
{
	r->added = xgrow(r->added, r->n_added, sizeof(*r->added));
	r->added[r->n_added++] = (struct bpe_added){(uint32_t)t->n_tokens, BPE_SPECIAL};
	str_puts(&t->bytes, text);
	t->offset[++t->n_tokens] = (int64_t)t->bytes.len;
}

/* Sets *v to the tokens, followed by the special tokens. */
static void finish_vocab(struct trainer *t, struct vocab *v, struct bpe_rules *r)
{
	if (t->c->end_of_text) {
		r->end_of_text = (uint32_t)t->n_tokens;
		add_special(t, r, t->c->end_of_text);
	}
	for (int64_t i = 0; i < t->c->special.n; i++)
		add_special(t, r, t->c->special.v[i]);
	*v = (struct vocab){t->n_tokens, (uint8_t *)t->bytes.s, t->offset};
}

/* Checks that special tokens have two bytes or more, and that no text occurs twice. */
static int check_special(const struct train_config *c, struct err *e)
{
	for (int64_t i = 0; i < c->special.n; i++) {
		const char *text = c->special.v[i];
		bool is_repeated = strs_find(&c->special, text) < i ||
				   (c->end_of_text && !strcmp(text, c->end_of_text));
		if (strlen(text) < 2 || is_repeated)
			return err_set(e, EX_USAGE, "--special-token '%.80s' %s", text,
				is_repeated ? "is given twice"
					    : "is shorter than two bytes");
	}
	return 0;
}

int train_bpe(const struct train_words *words, const struct train_config *c,
	struct vocab *v, struct bpe_rules *r, struct err *e)
{
	struct trainer t = {.c = c};
	*r = (struct bpe_rules){.pattern = xstrdup(c->pattern), .end_of_text = BPE_NONE};
	int64_t minimum = N_BYTES + count_special(c);
	if (check_special(c, e))
		return -1;
	if (c->vocab < minimum || c->vocab > MAX_TOKENS)
		return err_set(e, EX_USAGE,
			"a vocabulary of %lld tokens is out of range: the "
			"minimum is %lld, for the bytes%s",
			(long long)c->vocab, (long long)minimum,
			minimum > N_BYTES ? " and special tokens" : "");
	if (words->n > UINT32_MAX - 1)
		return err_set(
			e, EX_DATAERR, "the text has more than 2^32 distinct words");
	add_byte_tokens(&t);
	words_to_tokens(&t, words);
	count_pairs(&t);
	merge_pairs(&t, r);
	finish_vocab(&t, v, r);
	trainer_release(&t);
	return 0;
}
