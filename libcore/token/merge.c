/* Merges the bytes of a word to tokens: each step merges the leftmost adjacent pair of lowest rank.
 * In a short word, a step scans all pairs; a heap makes long words O(n log n). */
#include "token/bpe_internal.h"

enum { MAX_SHORT = 24 };

/* Encodes a word of at most MAX_SHORT bytes by linear search. Returns the number of tokens. */
static int64_t merge_short_word(const struct bpe *b, const uint8_t *word, int n,
	uint32_t out[AT_LEAST(MAX_SHORT)])
{
	struct bpe_merge m[MAX_SHORT + 1]; /* m[i]: of tokens i and i + 1 */
	for (int i = 0; i < n; i++)
		out[i] = b->byte_id[word[i]];
	for (int i = 0; i + 1 < n; i++)
		m[i] = bpe_find_byte_merge(b, word[i], word[i + 1]);
	while (n > 1) {
		int at = 0;
		uint32_t best = m[0].rank;
		for (int i = 1; i + 1 < n; i++) {
			at = m[i].rank < best ? i : at;
			best = m[i].rank < best ? m[i].rank : best;
		}
		if (best == BPE_NONE)
			break;
		out[at] = m[at].token;
		n--;
		for (int i = at + 1; i < n; i++) {
			out[i] = out[i + 1];
			m[i - 1] = m[i];
		}
		if (at > 0)
			m[at - 1] = bpe_find_merge(b, out[at - 1], out[at]);
		if (at + 1 < n)
			m[at] = bpe_find_merge(b, out[at], out[at + 1]);
	}
	return n;
}

/* A linked list of tokens, indexed by their first bytes, and a heap of candidate merges: rank << 32
 * | index of the left token. Candidates for pairs that no longer exist are stale and ignored. */
struct token_list {
	uint32_t *id, *next, *prev; /* [n]; id BPE_NONE: no token begins here */
	int64_t n;
	uint64_t *heap;
	size_t n_heap, cap_heap;
};

/* Moves element i down to its place in the min-heap. */
static void heap_sift_down(struct token_list *l, size_t i)
{
	uint64_t x = l->heap[i];
	for (size_t child; (child = 2 * i + 1) < l->n_heap; i = child) {
		if (child + 1 < l->n_heap && l->heap[child + 1] < l->heap[child])
			child++;
		if (l->heap[child] >= x)
			break;
		l->heap[i] = l->heap[child];
	}
	l->heap[i] = x;
}

static void heap_push(struct token_list *l, uint64_t x)
{
	if (l->n_heap == l->cap_heap) {
		l->cap_heap += l->cap_heap / 2;
		l->heap = xrealloc(l->heap, l->cap_heap * sizeof(*l->heap));
	}
	size_t i = l->n_heap++;
	for (; i && l->heap[(i - 1) / 2] > x; i = (i - 1) / 2)
		l->heap[i] = l->heap[(i - 1) / 2];
	l->heap[i] = x;
}

/* Returns the merge of token `at` with the next token; BPE_NONE: none. */
static struct bpe_merge merge_at(
	const struct bpe *b, const struct token_list *l, int64_t at)
{
	uint32_t next = l->next[at];
	return next < l->n ? bpe_find_merge(b, l->id[at], l->id[next])
			   : (struct bpe_merge){BPE_NONE, BPE_NONE};
}

/* Adds the merge of token `at` with the next token, if they merge, to the heap. */
static void push_pair(const struct bpe *b, struct token_list *l, uint32_t at)
{
	uint32_t rank = merge_at(b, l, at).rank;
	if (rank != BPE_NONE)
		heap_push(l, (uint64_t)rank << 32 | at);
}

/* Fills the list with the word's bytes as tokens, and the heap with their merges. */
static void list_fill(const struct bpe *b, struct token_list *l, const uint8_t *word)
{
	size_t n = (size_t)l->n;
	for (size_t i = 0; i < n; i++) {
		l->id[i] = b->byte_id[word[i]];
		l->next[i] = (uint32_t)i + 1;
		l->prev[i] = (uint32_t)i - 1;
	}
	for (size_t i = 0; i + 1 < n; i++) {
		uint32_t rank = bpe_find_byte_merge(b, word[i], word[i + 1]).rank;
		if (rank != BPE_NONE)
			l->heap[l->n_heap++] = (uint64_t)rank << 32 | i;
	}
	for (size_t i = l->n_heap / 2; i-- > 0;)
		heap_sift_down(l, i);
}

/* Removes the first candidate from the heap, and merges its tokens unless it is stale. */
static void pop_and_merge(const struct bpe *b, struct token_list *l)
{
	uint64_t first = l->heap[0];
	uint32_t at = (uint32_t)first;
	l->heap[0] = l->heap[--l->n_heap];
	if (l->n_heap)
		heap_sift_down(l, 0);
	if (l->id[at] == BPE_NONE)
		return;
	struct bpe_merge m = merge_at(b, l, at);
	if (m.rank != first >> 32)
		return;
	uint32_t next = l->next[at];
	l->id[at] = m.token;
	l->id[next] = BPE_NONE;
	l->next[at] = l->next[next];
	if (l->next[at] < l->n)
		l->prev[l->next[at]] = at;
	push_pair(b, l, at);
	if (at > 0)
		push_pair(b, l, l->prev[at]);
}

/* Encodes a long word; candidates for merges are on a heap. Returns the number of tokens. */
static int64_t merge_long(
	const struct bpe *b, const uint8_t *word, int64_t n, uint32_t *out)
{
	struct token_list l = {.n = n, .id = out, .cap_heap = (size_t)n + 16};
	int64_t n_out = 0;
	l.next = xmalloc((size_t)n * sizeof(uint32_t));
	l.prev = xmalloc((size_t)n * sizeof(uint32_t));
	l.heap = xmalloc(l.cap_heap * sizeof(*l.heap));
	list_fill(b, &l, word);
	while (l.n_heap)
		pop_and_merge(b, &l);
	for (int64_t i = 0; i < n; i = l.next[i])
		out[n_out++] = l.id[i];
	free(l.next);
	free(l.prev);
	free(l.heap);
	return n_out;
}

int64_t merge_word(const struct bpe *b, const uint8_t *word, int64_t n, uint32_t *out)
{
	if (n > MAX_SHORT)
		return merge_long(b, word, n, out);
	uint32_t ids[MAX_SHORT];
	n = merge_short_word(b, word, (int)n, ids);
	memcpy(out, ids, (size_t)n * sizeof(*out));
	return n;
}
