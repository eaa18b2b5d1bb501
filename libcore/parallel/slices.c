/*
 * Tensor and sequence parallelism: sums over virtual slices, and gathers of rows.
 *
 * A rank has the nodes of the canonical tree that its own slices are, for all rows. It sends
 * the rows of each other rank's pieces there, and finishes the tree of its own: the bytes of
 * a ring reduce-scatter.
 */
#include "parallel/parallel.h"

#include <stdlib.h>

/* Messages of one tag arrive in order; sums of gradients, which are under way in the same
 * group meanwhile, use those below. */
enum { TAG_SLICES = 1 << 16 };

int64_t slice_piece(const struct slices *s, int64_t rows, int i, int64_t *first)
{
	*first = part_begin(rows, s->n, i);
	return part_begin(rows, s->n, i + 1) - *first;
}

/* Rows of the pieces of all slices of a rank, which are neighbours. */
static int64_t rank_rows(const struct slices *s, int64_t rows, int rank, int64_t *first)
{
	*first = part_begin(rows, s->n, rank * s->here);
	return part_begin(rows, s->n, (rank + 1) * s->here) - *first;
}

int64_t slice_rows(const struct slices *s, int64_t rows, int64_t *first)
{
	if (s->sp)
		return rank_rows(s, rows, s->axis->rank, first);
	*first = 0;
	return rows;
}

/* ---- messages -------------------------------------------------------------------- */

/* What a rank has begun with its peers. */
struct mail {
	struct comm *c;
	struct comm_req *reqs;
	int n;
};

static struct mail mail_begin(struct comm *c, int messages)
{
	return (struct mail){c, xcalloc((size_t)messages, sizeof(struct comm_req)), 0};
}

static void mail_to(struct mail *m, struct mat x, int peer)
{
	int64_t n_bytes = mat_size(x) * (int64_t)sizeof(float);
	if (n_bytes)
		comm_send_begin(m->c, x.p, n_bytes, peer, TAG_SLICES, &m->reqs[m->n++]);
}

static void mail_from(struct mail *m, struct mat x, int peer)
{
	int64_t n_bytes = mat_size(x) * (int64_t)sizeof(float);
	if (n_bytes)
		comm_recv_begin(m->c, x.p, n_bytes, peer, TAG_SLICES, &m->reqs[m->n++]);
}

static void mail_end(struct mail *m)
{
	for (int i = 0; i < m->n; i++)
		comm_wait(m->c, &m->reqs[i]);
	free(m->reqs);
}

/* Every rank has its rows of x, and gets those of the others. */
static void gather_rows(const struct slices *s, struct mat x)
{
	struct comm *c = s->axis;
	struct mail mail = mail_begin(c, 2 * c->size);
	int64_t at, n = rank_rows(s, x.rows, c->rank, &at);
	struct mat mine = mat_rows(x, at, n);
	for (int i = 1; i < c->size; i++) {
		int from = (c->rank - i + c->size) % c->size;
		n = rank_rows(s, x.rows, from, &at);
		mail_from(&mail, mat_rows(x, at, n), from);
		mail_to(&mail, mine, (c->rank + i) % c->size);
	}
	mail_end(&mail);
}

struct mat slice_gather(
	const struct slices *s, struct device *d, struct mat here, struct mat room)
{
	int64_t first, n = slice_rows(s, room.rows, &first);
	BUG_ON(here.rows != n || here.cols != room.cols);
	if (s->axis->size == 1 || !s->sp)
		return here;
	struct mat mine = mat_rows(room, first, n);
	if (mine.p != here.p && n)
		d->k->copy(d, mine, here);
	gather_rows(s, room);
	return room;
}

/* ---- sums ------------------------------------------------------------------------ */

void slice_sum_begin(struct slice_sum *x, const struct slices *s, struct device *d,
	struct mat out, int64_t rows)
{
	*x = (struct slice_sum){.s = s,
		.d = d,
		.out = out,
		.rows = rows,
		.n = rows,
		.next = s->first,
		.mark = arena_mark(d->scratch)};
	int depth = tree_depth(s->first, s->first + s->here);
	bool whole = out.rows == rows; /* the result can hold a part */
	for (int i = 0; i < depth; i++)
		x->part[i] = i == 0 && whole ? out.p
					     : arena_floats(d->scratch, rows * out.cols);
}

void slice_sum_rows(struct slice_sum *x, int64_t first, int64_t n)
{
	BUG_ON(x->next != x->s->first); /* in the middle of a sum */
	x->first = first;
	x->n = n;
}

static struct mat part_of(const struct slice_sum *x, int i)
{
	struct mat whole = mat(x->part[i], x->rows, x->out.cols);
	return mat_rows(whole, x->first, x->n);
}

struct mat slice_sum_slot(struct slice_sum *x)
{
	return part_of(x, x->stack.n);
}

static void merge(struct slice_sum *x, int merges)
{
	for (int top = x->stack.n + merges - 1; merges > 0; merges--, top--)
		x->d->k->add(
			x->d, part_of(x, top - 1), part_of(x, top - 1), part_of(x, top));
}

/* Levels of the tree over all slices. */
static int levels_of(const struct slices *s)
{
	int level = 0;
	while (1 << level < s->n)
		level++;
	return level;
}

void slice_sum_push(struct slice_sum *x)
{
	const struct slices *s = x->s;
	merge(x, tree_push(&x->stack, x->next++));
	if (x->next < s->first + s->here)
		return;
	if (s->axis->size == 1) {
		merge(x, tree_finish(&x->stack, 1 << levels_of(s)));
		BUG_ON(x->stack.n != 1);
	}
	x->stack.n = 0;
	x->next = s->first;
}

/* A node that is known of this rank's rows. */
struct known {
	struct tree_node node;
	struct mat x;
};

/* Rows of nodes, on their way between the ranks. */
struct slice_exchange {
	struct mail mail;
	struct known *known; /* those of this rank, then those that come */
	int n_known;
};

static int by_leaf(const void *a, const void *b)
{
	const struct known *x = a, *y = b;
	int64_t i = x->node.index << x->node.level, j = y->node.index << y->node.level;
	return (i > j) - (i < j);
}

/* The sum of node (level, index), of known nodes from *at on; left in `to`, or without one
 * in the memory of the first of them. Nothing: there are no such leaves. */
static struct mat finish_tree(struct device *d, const struct known *known, int n_known,
	int *at, int level, int64_t index, struct mat to)
{
	struct mat none = {0};
	if (*at == n_known)
		return none;
	const struct known *k = &known[*at];
	if (k->node.index << k->node.level >= (index + 1) << level)
		return none;
	if (k->node.level == level && k->node.index == index) {
		++*at;
		return k->x;
	}
	BUG_ON(level == 0);
	struct mat left = finish_tree(d, known, n_known, at, level - 1, 2 * index, none);
	struct mat right =
		finish_tree(d, known, n_known, at, level - 1, 2 * index + 1, none);
	if (!left.p || !right.p)
		return left.p ? left : right;
	to = to.p ? to : left;
	d->k->add(d, to, left, right);
	return to;
}

/* The slices of a rank, as nodes. */
static int nodes_of(const struct slices *s, int rank, struct tree_node *nodes)
{
	return tree_nodes(rank * s->here, (rank + 1) * s->here, nodes);
}

static void poll_exchange(void *with)
{
	struct slice_exchange *e = with;
	for (int i = 0; i < e->mail.n; i++)
		comm_test(e->mail.c, &e->mail.reqs[i]);
}

/* Rows of this rank's nodes go to their ranks, and of other ranks' nodes come here. */
static void begin_exchange(struct slice_sum *x)
{
	const struct slices *s = x->s;
	struct comm *c = s->axis;
	struct tree_node nodes[TREE_MAX_NODES];
	struct slice_exchange *e = xcalloc(1, sizeof(*e));
	int64_t at, mine = rank_rows(s, x->rows, c->rank, &at);
	int own = nodes_of(s, c->rank, nodes);
	e->mail = mail_begin(c, s->n + c->size * own);
	e->known = xcalloc((size_t)s->n, sizeof(*e->known));
	for (; e->n_known < own; e->n_known++) {
		struct mat whole = mat(x->part[e->n_known], x->rows, x->out.cols);
		e->known[e->n_known] =
			(struct known){nodes[e->n_known], mat_rows(whole, at, mine)};
	}
	for (int i = 1; i < c->size; i++) {
		int from = (c->rank - i + c->size) % c->size;
		int n = nodes_of(s, from, nodes);
		for (int k = 0; k < n; k++) {
			float *room = arena_floats(x->d->scratch, mine * x->out.cols);
			struct mat got = mat(room, mine, x->out.cols);
			mail_from(&e->mail, got, from);
			e->known[e->n_known++] = (struct known){nodes[k], got};
		}
		int to = (c->rank + i) % c->size;
		int64_t theirs, rows = rank_rows(s, x->rows, to, &theirs);
		for (int k = 0; k < own; k++) {
			struct mat whole = mat(x->part[k], x->rows, x->out.cols);
			mail_to(&e->mail, mat_rows(whole, theirs, rows), to);
		}
	}
	x->exchange = e;
	comm_background(poll_exchange, e);
}

void slice_sum_send(struct slice_sum *x)
{
	BUG_ON(x->next != x->s->first || x->exchange);
	if (x->s->axis->size > 1 && x->s->async)
		begin_exchange(x);
}

/* This rank's rows of the sum, into `to`. */
static void sum_rows(struct slice_sum *x, struct mat to)
{
	struct slice_exchange *e = x->exchange;
	int at = 0;
	mail_end(&e->mail);
	comm_background_end(poll_exchange, e);
	qsort(e->known, (size_t)e->n_known, sizeof(*e->known), by_leaf);
	struct mat sum =
		finish_tree(x->d, e->known, e->n_known, &at, levels_of(x->s), 0, to);
	BUG_ON(at != e->n_known);
	if (sum.p != to.p)
		x->d->k->copy(x->d, to, sum);
	free(e->known);
	free(e);
	x->exchange = NULL;
}

void slice_sum_end(struct slice_sum *x)
{
	const struct slices *s = x->s;
	BUG_ON(x->next != s->first);
	if (s->axis->size > 1) {
		int64_t first = 0, n = rank_rows(s, x->rows, s->axis->rank, &first);
		BUG_ON(x->out.rows != (s->sp ? n : x->rows));
		if (!x->exchange)
			begin_exchange(x);
		sum_rows(x, s->sp ? x->out : mat_rows(x->out, first, n));
		if (!s->sp)
			gather_rows(s, x->out);
	}
	arena_reset(x->d->scratch, x->mark);
}
