/* The canonical tree: sums whose bits do not depend on who holds which leaves. */
#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>

int tree_nodes(int64_t begin, int64_t end, struct tree_node out[static TREE_MAX_NODES])
{
	int n = 0;
	while (begin < end) {
		int level = 0;
		while (begin % ((int64_t)2 << level) == 0 &&
			begin + ((int64_t)2 << level) <= end)
			level++;
		out[n++] = (struct tree_node){level, begin >> level};
		begin += (int64_t)1 << level;
	}
	return n;
}

/* ---- pushing leaves -------------------------------------------------------------- */

static int merge(struct tree_stack *s)
{
	int merges = 0;
	while (s->n >= 2) {
		struct tree_node *a = &s->node[s->n - 2], *b = &s->node[s->n - 1];
		bool halves = a->level == b->level && a->index % 2 == 0 &&
			      a->index + 1 == b->index;
		if (!halves)
			break;
		*a = (struct tree_node){a->level + 1, a->index / 2};
		s->n--;
		merges++;
	}
	return merges;
}

int tree_push(struct tree_stack *s, int64_t index)
{
	BUG_ON(s->n == TREE_MAX_NODES);
	s->node[s->n++] = (struct tree_node){0, index};
	return merge(s);
}

int tree_finish(struct tree_stack *s, int64_t end)
{
	int merges = 0;
	while (s->n >= 1) {
		struct tree_node *top = &s->node[s->n - 1];
		if (top->index % 2 || (top->index + 1) << top->level >= end)
			break;
		*top = (struct tree_node){top->level + 1, top->index / 2};
		merges += merge(s);
	}
	return merges;
}

/* Before leaf m is pushed the stack is the nodes of [begin, m). Most of them has the last m,
 * or one that leaves its bits somewhere downwards and has ones from there on. */
int tree_depth(int64_t begin, int64_t end)
{
	struct tree_node nodes[TREE_MAX_NODES];
	int64_t last = end - 1;
	if (begin >= end)
		return 0;
	int most = tree_nodes(begin, last, nodes);
	for (int bit = 0; bit < 62 && last >> bit; bit++) {
		int64_t m = (last ^ ((int64_t)1 << bit)) | (((int64_t)1 << bit) - 1);
		if (!(last >> bit & 1) || m < begin)
			continue;
		int n = tree_nodes(begin, m, nodes);
		most = most > n ? most : n;
	}
	return most + 1;
}

/* ---- sums over a group ----------------------------------------------------------- */

enum phase { EXCHANGE, GATHER, DONE };

struct tree_sum {
	struct comm *c;
	struct device *d;
	const int64_t *begin;
	float *const *parts;
	float *result, *scratch;
	int64_t n;
	enum phase phase;
	struct comm_req *reqs; /* [size][2] */
	int tag;
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

/* What all ranks hold of this rank's piece, leaf order. */
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

/* The sum of node (level, index), taking held nodes from *at on. NULL: no such leaves. */
static float *tree_eval(struct device *d, const struct held *held, int n_held, int *at,
	int level, int64_t index, int64_t len)
{
	if (*at == n_held)
		return NULL;
	const struct held *h = &held[*at];
	int64_t first = h->node.index << h->node.level;
	if (first >= (index + 1) << level)
		return NULL;
	if (h->node.level == level && h->node.index == index) {
		++*at;
		return h->p;
	}
	BUG_ON(level == 0);
	float *left = tree_eval(d, held, n_held, at, level - 1, 2 * index, len);
	float *right = tree_eval(d, held, n_held, at, level - 1, 2 * index + 1, len);
	if (left && right)
		d->k->add(d, mat(left, 1, len), mat(left, 1, len), mat(right, 1, len));
	return left ? left : right;
}

/* Sums what the ranks hold of this rank's piece. */
static void finish_piece(struct tree_sum *s)
{
	struct comm *c = s->c;
	int64_t at = piece_begin(c, s->n, c->rank), len = piece_len(c, s->n, c->rank);
	struct held *held = xmalloc(sizeof(*held));
	int n_held = 0;
	float *from = s->scratch;
	for (int r = 0; r < c->size; r++) {
		struct tree_node nodes[TREE_MAX_NODES];
		int n = tree_nodes(s->begin[r], s->begin[r + 1], nodes);
		held = xrealloc(held, (size_t)(n_held + n + 1) * sizeof(*held));
		for (int i = 0; i < n; i++) {
			held[n_held].node = nodes[i];
			held[n_held++].p = r == c->rank ? s->parts[i] + at : from;
			from += r == c->rank ? 0 : len;
		}
	}
	qsort(held, (size_t)n_held, sizeof(*held), by_leaf);
	int level = 0, next = 0;
	while (((int64_t)1 << level) < s->begin[c->size])
		level++;
	float *sum = tree_eval(s->d, held, n_held, &next, level, 0, len);
	BUG_ON(next != n_held);
	if (sum && sum != s->result + at)
		memcpy(s->result + at, sum, (size_t)len * sizeof(float));
	else if (!sum)
		memset(s->result + at, 0, (size_t)len * sizeof(float));
	free(held);
}

static void begin_exchange(struct tree_sum *s)
{
	struct comm *c = s->c;
	int64_t mine = piece_len(c, s->n, c->rank);
	int n_nodes = nodes_of(s->begin, c->rank);
	float *to = s->scratch;
	for (int r = 0; r < c->size; r++) {
		int n = nodes_of(s->begin, r);
		if (r == c->rank || !n || !mine)
			continue;
		comm_recv_begin(c, to, n * mine * (int64_t)sizeof(float), r, s->tag,
			&s->reqs[2 * r]);
		to += n * mine;
	}
	for (int i = 1; i < c->size; i++) {
		int r = (c->rank + i) % c->size;
		int64_t at = piece_begin(c, s->n, r), len = piece_len(c, s->n, r);
		if (!n_nodes || !len)
			continue;
		const float *from = s->parts[0] + at;
		if (n_nodes > 1) {
			from = to;
			for (int k = 0; k < n_nodes; k++, to += len)
				memcpy(to, s->parts[k] + at, (size_t)len * sizeof(float));
		}
		comm_send_begin(c, from, n_nodes * len * (int64_t)sizeof(float), r,
			s->tag, &s->reqs[2 * r + 1]);
	}
}

static void begin_gather(struct tree_sum *s)
{
	struct comm *c = s->c;
	int64_t at = piece_begin(c, s->n, c->rank), mine = piece_len(c, s->n, c->rank);
	for (int i = 1; i < c->size; i++) {
		int r = (c->rank + i) % c->size;
		int64_t len = piece_len(c, s->n, r);
		if (len)
			comm_recv_begin(c, s->result + piece_begin(c, s->n, r),
				len * (int64_t)sizeof(float), r, s->tag, &s->reqs[2 * r]);
		if (mine)
			comm_send_begin(c, s->result + at, mine * (int64_t)sizeof(float),
				r, s->tag, &s->reqs[2 * r + 1]);
	}
}

static bool requests_done(struct tree_sum *s)
{
	for (int i = 0; i < 2 * s->c->size; i++)
		if (!comm_test(s->c, &s->reqs[i]))
			return false;
	return true;
}

static void poll_sum(void *with)
{
	struct tree_sum *s = with;
	if (s->phase == EXCHANGE && requests_done(s)) {
		finish_piece(s);
		begin_gather(s);
		s->phase = GATHER;
	}
	if (s->phase == GATHER && requests_done(s))
		s->phase = DONE;
}

struct tree_sum *tree_sum_begin(struct comm *c, struct device *d, const int64_t *begin,
	float *const *parts, int64_t n, float *result, float *scratch)
{
	enum { TAGS = 1 << 16 };
	struct tree_sum *s = xcalloc(1, sizeof(*s));
	*s = (struct tree_sum){.c = c,
		.d = d,
		.begin = begin,
		.parts = parts,
		.n = n,
		.result = result,
		.scratch = scratch};
	s->reqs = xcalloc((size_t)c->size * 2, sizeof(*s->reqs));
	s->tag = (int)(++c->seq % TAGS);
	if (c->size == 1) {
		finish_piece(s);
		s->phase = DONE;
		return s;
	}
	begin_exchange(s);
	comm_background(poll_sum, s);
	return s;
}

bool tree_sum_done(struct tree_sum *s)
{
	if (s->phase != DONE)
		poll_sum(s);
	return s->phase == DONE;
}

void tree_sum_end(struct tree_sum *s)
{
	if (s->c->size > 1) {
		while (!tree_sum_done(s)) {
			int i = 0;
			while (i < 2 * s->c->size && comm_test(s->c, &s->reqs[i]))
				i++;
			if (i < 2 * s->c->size)
				comm_wait(s->c, &s->reqs[i]);
		}
		comm_background_end(poll_sum, s);
	}
	free(s->reqs);
	free(s);
}
