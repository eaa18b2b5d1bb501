/*
 * Sums over a group, by the canonical tree. The vector is cut into one piece a rank; a rank
 * finishes the tree of its own piece, for all.
 *
 * Ranks that share memory read each other's nodes where they lie, and write the sum where
 * it belongs: each byte is moved once, and nothing is packed. Others exchange messages:
 * the nodes of a piece go to its rank, and the sum comes back.
 */
#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>

enum phase { EXCHANGE, GATHER, DONE };

struct tree_sum {
	struct comm *c;
	struct device *d;
	const int64_t *begin;
	struct sum_place at;
	enum phase phase;
	uint64_t seq;
	struct comm_req *reqs; /* [size][2]: without shared memory */
};

static int64_t piece_begin(const struct comm *c, int64_t n, int rank)
{
	return min64(n, round_up(ceil_div(n, c->size), 16) * rank);
}

static int64_t piece_len(const struct comm *c, int64_t n, int rank)
{
	return piece_begin(c, n, rank + 1) - piece_begin(c, n, rank);
}

static int nodes_of(const int64_t *begin, int rank)
{
	struct tree_node nodes[TREE_MAX_NODES];
	return tree_nodes(begin[rank], begin[rank + 1], nodes);
}

/* Parts go out one after the other, so a rank with several nodes packs them first. */
int64_t tree_scratch(const struct comm *c, const int64_t *begin, int64_t n)
{
	if (c->size == 1)
		return 0;
	int64_t mine = nodes_of(begin, c->rank), all = 0;
	for (int r = 0; r < c->size; r++)
		all += nodes_of(begin, r);
	int64_t longest = piece_len(c, n, 0);
	int64_t packed = mine > 1 ? mine * longest * (c->size - 1) : 0;
	return (all - mine) * longest + packed;
}

int64_t tree_bytes_sent(const struct comm *c, const int64_t *begin, int64_t n)
{
	if (c->size == 1)
		return 0;
	int64_t mine = piece_len(c, n, c->rank);
	int64_t floats = nodes_of(begin, c->rank) * (n - mine) + mine * (c->size - 1);
	return floats * (int64_t)sizeof(float);
}

/* ---- the tree of a piece --------------------------------------------------------- */

/* What the ranks hold of this rank's piece, in leaf order. */
struct held {
	struct tree_node node;
	float *p;
};

static int by_leaf(const void *a, const void *b)
{
	const struct held *x = a, *y = b;
	int64_t i = x->node.index << x->node.level, j = y->node.index << y->node.level;
	return (i > j) - (i < j);
}

/* The sum of node (level, index), of floats [from, from + len), taking held nodes from *at
 * on. It is left in the memory of one of them, which nobody else reads: it is of this
 * rank's piece. NULL: no such leaves. */
static float *tree_eval(struct device *d, const struct held *held, int n_held, int *at,
	int level, int64_t index, int64_t from, int64_t len)
{
	if (*at == n_held)
		return NULL;
	const struct held *h = &held[*at];
	int64_t first = h->node.index << h->node.level;
	if (first >= (index + 1) << level)
		return NULL;
	if (h->node.level == level && h->node.index == index) {
		++*at;
		return h->p + from;
	}
	BUG_ON(level == 0);
	float *left = tree_eval(d, held, n_held, at, level - 1, 2 * index, from, len);
	float *right =
		tree_eval(d, held, n_held, at, level - 1, 2 * index + 1, from, len);
	if (left && right)
		d->k->add(d, mat(left, 1, len), mat(left, 1, len), mat(right, 1, len));
	return left ? left : right;
}

/* Node 0 of a rank, as it is seen from here. */
static float *first_of(const struct tree_sum *s, int rank)
{
	if (rank == s->c->rank)
		return s->at.first;
	const struct comm_shared *m = s->at.shared;
	int64_t at = (char *)s->at.first - m->data[s->c->rank];
	return (float *)(void *)(m->data[rank] + at);
}

/* Those of this rank lie where they were, those of others there too, or were received. */
static struct held *find_held(struct tree_sum *s, int *n_held)
{
	struct comm *c = s->c;
	int64_t at = piece_begin(c, s->at.n, c->rank);
	int64_t len = piece_len(c, s->at.n, c->rank);
	struct held *held = xmalloc(sizeof(*held));
	float *received = s->at.scratch;
	*n_held = 0;
	for (int r = 0; r < c->size; r++) {
		struct tree_node nodes[TREE_MAX_NODES];
		int n = tree_nodes(s->begin[r], s->begin[r + 1], nodes);
		held = xrealloc(held, (size_t)(*n_held + n + 1) * sizeof(*held));
		for (int i = 0; i < n; i++) {
			bool seen = r == c->rank || s->at.shared;
			held[*n_held].node = nodes[i];
			held[*n_held].p =
				seen ? first_of(s, r) + i * s->at.stride + at : received;
			received += seen ? 0 : len;
			++*n_held;
		}
	}
	qsort(held, (size_t)*n_held, sizeof(*held), by_leaf);
	return held;
}

static void put_result(struct tree_sum *s, float *to, const float *sum, int64_t len)
{
	struct device *d = s->d;
	if (!sum)
		d->k->zero(d, mat(to, 1, len));
	else if (sum != to)
		d->k->copy(d, mat(to, 1, len), mat((float *)sum, 1, len));
}

/* In blocks that stay in the cache from the first addition to the last copy. */
static void finish_piece(struct tree_sum *s)
{
	enum { BLOCK = 1 << 15 };
	struct comm *c = s->c;
	int64_t at = piece_begin(c, s->at.n, c->rank);
	int64_t len = piece_len(c, s->at.n, c->rank);
	int n_held, level = 0;
	struct held *held = find_held(s, &n_held);
	while (((int64_t)1 << level) < s->begin[c->size])
		level++;
	for (int64_t from = 0; from < len; from += BLOCK) {
		int64_t n = min64(BLOCK, len - from);
		int next = 0;
		float *sum = tree_eval(s->d, held, n_held, &next, level, 0, from, n);
		BUG_ON(next != n_held);
		for (int r = 0; r < c->size; r++)
			if (r == c->rank || s->at.shared)
				put_result(s, first_of(s, r) + at + from, sum, n);
	}
	free(held);
}

/* ---- by messages ----------------------------------------------------------------- */

static int tag_of(const struct tree_sum *s)
{
	enum { TAGS = 1 << 16 };
	return (int)(s->seq % TAGS);
}

static void begin_exchange(struct tree_sum *s)
{
	struct comm *c = s->c;
	int64_t mine = piece_len(c, s->at.n, c->rank);
	int n_nodes = nodes_of(s->begin, c->rank);
	float *to = s->at.scratch;
	for (int r = 0; r < c->size; r++) {
		int n = nodes_of(s->begin, r);
		if (r == c->rank || !n || !mine)
			continue;
		comm_recv_begin(c, to, n * mine * (int64_t)sizeof(float), r, tag_of(s),
			&s->reqs[2 * r]);
		to += n * mine;
	}
	for (int i = 1; i < c->size; i++) {
		int r = (c->rank + i) % c->size;
		int64_t at = piece_begin(c, s->at.n, r), len = piece_len(c, s->at.n, r);
		if (!n_nodes || !len)
			continue;
		const float *from = s->at.first + at;
		if (n_nodes > 1) {
			from = to;
			for (int k = 0; k < n_nodes; k++, to += len)
				memcpy(to, s->at.first + k * s->at.stride + at,
					(size_t)len * sizeof(float));
		}
		comm_send_begin(c, from, n_nodes * len * (int64_t)sizeof(float), r,
			tag_of(s), &s->reqs[2 * r + 1]);
	}
}

static void begin_gather(struct tree_sum *s)
{
	struct comm *c = s->c;
	int64_t n = s->at.n, at = piece_begin(c, n, c->rank);
	int64_t mine = piece_len(c, n, c->rank);
	for (int i = 1; i < c->size; i++) {
		int r = (c->rank + i) % c->size;
		int64_t len = piece_len(c, n, r);
		if (len)
			comm_recv_begin(c, s->at.first + piece_begin(c, n, r),
				len * (int64_t)sizeof(float), r, tag_of(s),
				&s->reqs[2 * r]);
		if (mine)
			comm_send_begin(c, s->at.first + at,
				mine * (int64_t)sizeof(float), r, tag_of(s),
				&s->reqs[2 * r + 1]);
	}
}

static bool requests_done(struct tree_sum *s)
{
	for (int i = 0; i < 2 * s->c->size; i++)
		if (!comm_test(s->c, &s->reqs[i]))
			return false;
	return true;
}

/* ---- both ------------------------------------------------------------------------ */

/* With shared memory, a rank says first that its nodes are there, then that its piece is
 * finished everywhere. */
static void enter(struct tree_sum *s, enum phase phase)
{
	if (s->at.shared)
		comm_shared_say(s->at.shared, s->at.slot, 2 * s->seq + (uint64_t)phase);
	else if (phase == EXCHANGE)
		begin_exchange(s);
	else
		begin_gather(s);
	s->phase = phase;
}

/* Have all ranks come as far as this one? */
static bool all_here(struct tree_sum *s)
{
	if (s->at.shared)
		return comm_shared_said(
			s->at.shared, s->at.slot, 2 * s->seq + (uint64_t)s->phase);
	return requests_done(s);
}

static void poll_sum(void *with)
{
	struct tree_sum *s = with;
	if (s->phase == EXCHANGE && all_here(s)) {
		finish_piece(s);
		enter(s, GATHER);
	}
	if (s->phase == GATHER && all_here(s))
		s->phase = DONE;
}

struct tree_sum *tree_sum_begin(struct comm *c, struct device *d, const int64_t *begin,
	const struct sum_place *at)
{
	struct tree_sum *s = xcalloc(1, sizeof(*s));
	*s = (struct tree_sum){.c = c, .d = d, .begin = begin, .at = *at};
	s->seq = ++c->seq;
	s->reqs = xcalloc((size_t)c->size * 2, sizeof(*s->reqs));
	if (c->size == 1) {
		finish_piece(s);
		s->phase = DONE;
		return s;
	}
	enter(s, EXCHANGE);
	comm_background(poll_sum, s);
	return s;
}

bool tree_sum_done(struct tree_sum *s)
{
	if (s->phase != DONE)
		poll_sum(s);
	return s->phase == DONE;
}

static bool is_done(void *with)
{
	return tree_sum_done(with);
}

void tree_sum_end(struct tree_sum *s)
{
	if (s->c->size > 1) {
		const struct comm_req what = {.what = "tree sum",
			.n_bytes = s->at.n * (int64_t)sizeof(float),
			.seq = s->seq};
		comm_wait_for(s->c, is_done, s, &what);
		comm_background_end(poll_sum, s);
	}
	free(s->reqs);
	free(s);
}
