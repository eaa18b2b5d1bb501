/* Counts the words of texts in a hash table. */
#include "vocab/vocab.h"

enum { FIRST_SLOTS = 1 << 12 };

int train_words_open(struct train_words *w, const char *pattern, struct err *e)
{
	*w = (struct train_words){.n_slots = FIRST_SLOTS};
	w->splitter = splitter_open(pattern, e);
	if (!w->splitter)
		return -1;
	w->slots = xcalloc(FIRST_SLOTS, sizeof(*w->slots));
	return 0;
}

void train_words_close(struct train_words *w)
{
	splitter_close(w->splitter);
	free(w->slots);
	free(w->bytes);
	*w = (struct train_words){0};
}

/* Doubles the hash table of words, and inserts all words again. */
static void grow_word_table(struct train_words *w)
{
	struct train_word *old = w->slots;
	int64_t n_old = w->n_slots;
	w->n_slots *= 2;
	w->slots = xcalloc((size_t)w->n_slots, sizeof(*w->slots));
	for (int64_t i = 0; i < n_old; i++) {
		if (!old[i].count)
			continue;
		int64_t k = old[i].hash & (w->n_slots - 1);
		while (w->slots[k].count)
			k = (k + 1) & (w->n_slots - 1);
		w->slots[k] = old[i];
	}
	free(old);
}

/* Copies a word's bytes to w->bytes, sets x->at to their place, and counts the word. */
static void store_word(struct train_words *w, struct train_word *x, const char *word)
{
	if (w->capacity - w->n_bytes < x->n_bytes) {
		w->capacity = 2 * w->capacity + TRAIN_MAX_WORD;
		w->bytes = xrealloc(w->bytes, w->capacity);
	}
	x->at = w->n_bytes;
	memcpy(w->bytes + x->at, word, x->n_bytes);
	w->n_bytes += x->n_bytes;
	w->n++;
}

/* Returns the first 8 bytes of a word, padded with zeros. `readable`: bytes that may be read. */
static uint64_t word_head(const char *word, uint32_t n, int64_t readable)
{
	uint64_t x = 0;
	if (readable < 8) {
		memcpy(&x, word, n < 8 ? n : 8);
		return x;
	}
	memcpy(&x, word, 8);
	return n < 8 ? x & ((UINT64_C(1) << 8 * n) - 1) : x;
}

/* Adds to the count of a word. `readable`: bytes that may be read from `word` on. (32 bits of hash
 * suffice: 2^32 words do not fit into memory.) */
static void count_word(struct train_words *w, const char *word, uint32_t n,
	int64_t readable, int64_t times)
{
	uint64_t head = word_head(word, n, readable);
	uint32_t hash = (uint32_t)(n > 8 ? hash_bytes(word, n, 0) : hash_mix(head + n));
	int64_t k = hash & (w->n_slots - 1);
	for (; w->slots[k].count; k = (k + 1) & (w->n_slots - 1)) {
		struct train_word *x = &w->slots[k];
		if (x->head == head && x->n_bytes == n &&
			(n <= 8 || (x->hash == hash &&
					   !memcmp(w->bytes + x->at, word, n)))) {
			x->count += times;
			return;
		}
	}
	w->slots[k] = (struct train_word){
		.count = times, .head = head, .n_bytes = n, .hash = hash};
	store_word(w, &w->slots[k], word);
	if (2 * w->n > w->n_slots)
		grow_word_table(w);
}

int train_words_add(struct train_words *w, const char *text, int64_t n, struct err *e)
{
	enum { MANY = 1024 };
	uint32_t ends[MANY];
	for (int64_t at = 0; at < n;) {
		int k = split_words(w->splitter, text + at, n - at, true, ends, MANY, e);
		if (k < 0)
			return -1;
		uint32_t begin = 0;
		for (int i = 0; i < k; i++) {
			for (; ends[i] - begin > TRAIN_MAX_WORD; begin += TRAIN_MAX_WORD)
				count_word(w, text + at + begin, TRAIN_MAX_WORD,
					n - at - begin, 1);
			if (ends[i] - begin > 1) /* one byte has no pair */
				count_word(w, text + at + begin, ends[i] - begin,
					n - at - begin, 1);
			begin = ends[i];
		}
		at += begin;
	}
	return 0;
}

void train_words_merge(struct train_words *to, const struct train_words *from)
{
	for (int64_t i = 0; i < from->n_slots; i++) {
		const struct train_word *x = &from->slots[i];
		if (x->count)
			count_word(to, from->bytes + x->at, x->n_bytes,
				(int64_t)(from->n_bytes - x->at), x->count);
	}
}
