/*
 * The replicated store (DDP): every rank has all parameters, gradients and optimizer
 * state. Gradients are summed in buckets of whole units, begun as soon as the backward has
 * passed them, while it goes on. Every rank updates everything; the gradient's norm and
 * hashes are shared out.
 */
#include "parallel/parallel.h"

#include <stdlib.h>

/* Units from `unit` on, up to the next bucket's, are reduced together. */
struct bucket {
	int unit;
	struct sum_place at;
	struct tree_sum *sum; /* under way */
};

/* The gradient of one slice of one tensor: a stack of tree nodes. */
struct grad {
	struct tree_stack stack;
	int64_t n_leaves; /* pushed in this step */
};

struct replicated {
	float *p, *m, *v;
	/* Gradients, which other ranks of this host may reach. */
	struct arena grad_memory, exchange;
	struct comm_shared *shared; /* or else ranks send messages */
	/* Position i of all stacks: floats at place[i][tensor], -1 for those whose stacks are
	 * never so deep. Nodes that ranks exchange are at positions that all tensors have, and
	 * lie there as the parameters do. */
	int n_positions;
	float **position;
	int64_t **place;
	struct grad **grads; /* [tensor][slice] */
	struct bucket *buckets;
	int n_buckets;
};

static struct replicated *own(const struct store *s)
{
	return s->own;
}

/* ---- leaves ---------------------------------------------------------------------- */

static int64_t leaves_of(const struct store *s, const struct tensor *t)
{
	return (int64_t)t->uses * t->pieces * s->c.chunks;
}

/* Leaves of a micro-batch take a power of two of indices, so that a micro-batch is a node. */
static int64_t leaf_span(const struct store *s, const struct tensor *t)
{
	int64_t span = 1;
	while (span < leaves_of(s, t))
		span *= 2;
	return span;
}

static int64_t first_micro(const struct store *s)
{
	return s->deal[s->c.dp->rank];
}

static int64_t end_micro(const struct store *s)
{
	return s->deal[s->c.dp->rank + 1];
}

/* The next leaf goes on the stack; tells how many nodes it completes. */
static int push_leaf(const struct store *s, const struct tensor *t, struct grad *g)
{
	int64_t n = leaves_of(s, t), span = leaf_span(s, t);
	int64_t micro = first_micro(s) + g->n_leaves / n, inner = g->n_leaves % n;
	g->n_leaves++;
	int merges = tree_push(&g->stack, micro * span + inner);
	if (inner == n - 1)
		merges += tree_finish(&g->stack, (micro + 1) * span);
	return merges;
}

/* How deep the stack of a tensor gets: on the nodes of whole micro-batches come those of
 * one. A rank without micro-batches has one buffer, for the result. */
static int depth_of(const struct store *s, const struct tensor *t)
{
	int micro = tree_depth(first_micro(s), end_micro(s));
	return micro ? micro - 1 + tree_depth(0, leaves_of(s, t)) : 1;
}

static struct mat leaf_at(
	struct store *s, const struct tensor *t, int slice, int position)
{
	struct replicated *r = own(s);
	int64_t i = t - s->c.tensors;
	BUG_ON(position >= r->n_positions || r->place[position][i] < 0);
	int64_t at = r->place[position][i] + tensor_at(t, slice) - t->offset;
	return mat(r->position[position] + at, t->rows, t->cols);
}

struct mat store_param(struct store *s, const struct tensor *t, int slice)
{
	return mat(own(s)->p + tensor_at(t, slice), t->rows, t->cols);
}

struct mat store_leaf(struct store *s, const struct tensor *t, int slice)
{
	return leaf_at(s, t, slice, own(s)->grads[t - s->c.tensors][slice].stack.n);
}

void store_leaf_done(struct store *s, const struct tensor *t, int slice)
{
	struct grad *g = &own(s)->grads[t - s->c.tensors][slice];
	int merges = push_leaf(s, t, g);
	for (int top = g->stack.n + merges - 1; merges > 0; merges--, top--) {
		struct mat left = leaf_at(s, t, slice, top - 1);
		s->c.device->k->add(s->c.device, left, left, leaf_at(s, t, slice, top));
	}
}

void store_drop(struct store *s)
{
	for (int i = 0; i < s->c.n_tensors; i++)
		for (int slice = 0; slice < s->c.tensors[i].slices; slice++)
			own(s)->grads[i][slice] = (struct grad){.n_leaves = 0};
}

/* ---- the operations -------------------------------------------------------------- */

static void nothing(struct store *s, int unit)
{
	(void)s, (void)unit;
}

static void reduce(struct store *s, int unit)
{
	struct replicated *r = own(s);
	for (int i = 0; i < r->n_buckets; i++) {
		struct bucket *b = &r->buckets[i];
		if (b->unit == unit)
			b->sum = tree_sum_begin(s->c.dp, s->c.device, s->deal, &b->at);
	}
}

static void step_end(struct store *s)
{
	struct replicated *r = own(s);
	for (int i = 0; i < r->n_buckets; i++) {
		BUG_ON(!r->buckets[i].sum);
		tree_sum_end(r->buckets[i].sum);
		r->buckets[i].sum = NULL;
	}
	store_drop(s);
}

static void free_replicated(struct store *s)
{
	struct replicated *r = own(s);
	if (r->shared)
		comm_shared_close(r->shared);
	else
		arena_release(&r->grad_memory);
	arena_release(&r->exchange);
	for (int i = 0; i < s->c.n_tensors && r->grads; i++)
		free(r->grads[i]);
	for (int i = 0; i < r->n_positions; i++)
		free(r->place[i]);
	free(r->grads);
	free(r->place);
	free(r->position);
	free(r->buckets);
	free(r);
}

static const struct store_ops replicated_ops = {
	.name = "replicated",
	.use = nothing,
	.done = nothing,
	.reduce = reduce,
	.step_end = step_end,
	.free = free_replicated,
};

/* ---- making it ------------------------------------------------------------------- */

/* Memory for gradients: shared, where ranks can share. It may still be too much of it. */
static void open_grads(struct store *s, bool measuring, int64_t n_bytes)
{
	struct replicated *r = own(s);
	struct comm *dp = s->c.dp;
	struct err e = {0};
	s->bytes.grads = n_bytes;
	bool share = dp->size > 1 && dp->shares && !measuring;
	if (share)
		r->shared = comm_shared_open(dp, n_bytes, s->c.n_units, &e);
	if (share && !r->shared && dp->rank == 0)
		warn("%s: ranks send messages instead, which takes more memory", e.msg);
	if (measuring)
		arena_measure(&r->grad_memory, "gradients");
	else if (r->shared)
		arena_over(&r->grad_memory, "gradients", r->shared->data[dp->rank],
			(size_t)n_bytes);
	else
		arena_init(&r->grad_memory, "gradients", (size_t)n_bytes);
}

static void place_grads(struct store *s, bool measuring)
{
	struct replicated *r = own(s);
	const struct store_config *c = &s->c;
	int *depth = xcalloc((size_t)c->n_tensors, sizeof(*depth));
	int64_t total = 0;
	r->grads = xcalloc((size_t)c->n_tensors, sizeof(*r->grads));
	for (int i = 0; i < c->n_tensors; i++) {
		const struct tensor *t = &c->tensors[i];
		depth[i] = depth_of(s, t);
		r->grads[i] = xcalloc((size_t)t->slices, sizeof(**r->grads));
		r->n_positions = depth[i] > r->n_positions ? depth[i] : r->n_positions;
		total += depth[i] * (tensor_at(t, t->slices) - t->offset);
	}
	open_grads(s, measuring, total * (int64_t)sizeof(float));
	r->position = xcalloc((size_t)r->n_positions, sizeof(*r->position));
	r->place = xcalloc((size_t)r->n_positions, sizeof(*r->place));
	for (int p = 0; p < r->n_positions; p++) {
		int64_t at = 0;
		r->place[p] = xcalloc((size_t)c->n_tensors, sizeof(**r->place));
		for (int i = 0; i < c->n_tensors; i++) {
			const struct tensor *t = &c->tensors[i];
			bool here = p < depth[i];
			r->place[p][i] = here ? at : -1;
			at += here ? tensor_at(t, t->slices) - t->offset : 0;
		}
		r->position[p] = arena_floats(&r->grad_memory, at);
	}
	free(depth);
}

/* From the last unit to the first, as the backward passes them. */
static void place_buckets(struct store *s)
{
	struct replicated *r = own(s);
	const struct store_config *c = &s->c;
	int64_t end = c->n_floats;
	r->buckets = xcalloc((size_t)c->n_units, sizeof(*r->buckets));
	for (int i = c->n_tensors - 1; i >= 0; i--) {
		const struct tensor *t = &c->tensors[i];
		bool unit_begins = i == 0 || c->tensors[i - 1].unit != t->unit;
		int64_t n = end - t->offset;
		if (!unit_begins ||
			(n * (int64_t)sizeof(float) < c->bucket_bytes && i > 0))
			continue;
		struct bucket *b = &r->buckets[r->n_buckets];
		b->unit = t->unit;
		b->at = (struct sum_place){.first = r->position[0] + t->offset,
			.stride = c->n_floats,
			.n = n,
			.shared = r->shared,
			.slot = r->n_buckets++};
		s->bytes.sent += tree_bytes_sent(c->dp, s->deal, n);
		end = t->offset;
	}
}

/* What messages need, where ranks do not share memory. */
static void open_exchange(struct store *s, bool measuring)
{
	struct replicated *r = own(s);
	if (r->shared || (measuring && s->c.dp->shares))
		return;
	for (int i = 0; i < r->n_buckets; i++)
		s->bytes.buffers +=
			round_up(tree_scratch(s->c.dp, s->deal, r->buckets[i].at.n), 16) *
			(int64_t)sizeof(float);
	if (measuring)
		arena_measure(&r->exchange, "exchange");
	else
		arena_init(&r->exchange, "exchange", (size_t)s->bytes.buffers);
	for (int i = 0; i < r->n_buckets; i++) {
		struct sum_place *at = &r->buckets[i].at;
		at->scratch =
			arena_floats(&r->exchange, tree_scratch(s->c.dp, s->deal, at->n));
	}
}

static void add_part(struct part **list, int64_t *n, struct part part)
{
	if (!part.rows)
		return;
	*list = xrealloc(*list, (size_t)(*n + 1) * sizeof(**list));
	(*list)[(*n)++] = part;
}

/* Every rank updates all; what is counted is shared out by rows, vectors in turn. */
static void list_parts(struct store *s)
{
	struct replicated *r = own(s);
	int rank = s->c.dp->rank, size = s->c.dp->size, turn = 0;
	for (int i = 0; i < s->c.n_tensors; i++) {
		const struct tensor *t = &s->c.tensors[i];
		for (int slice = 0; slice < t->slices; slice++) {
			int64_t at = tensor_at(t, slice);
			struct part all = {t, slice, 0, t->rows, r->p + at,
				r->position[0] + at, r->m + at, r->v + at};
			add_part(&s->updated, &s->n_updated, all);
			int64_t row = part_begin(t->rows, size, rank);
			int64_t rows = part_begin(t->rows, size, rank + 1) - row;
			if (t->ndim == 1) {
				row = 0;
				rows = turn++ % size == rank;
			}
			int64_t skip = row * t->cols;
			add_part(&s->counted, &s->n_counted,
				(struct part){t, slice, row, rows, all.p + skip,
					all.g + skip, all.m + skip, all.v + skip});
		}
	}
}

struct store *store_replicated(const struct store_config *c, struct arena *run)
{
	struct store *s = xcalloc(1, sizeof(*s));
	struct replicated *r = xcalloc(1, sizeof(*r));
	int64_t *deal = xcalloc((size_t)c->dp->size + 1, sizeof(*deal));
	for (int i = 0; i <= c->dp->size; i++)
		deal[i] = part_begin(c->n_micro, c->dp->size, i);
	*s = (struct store){.ops = &replicated_ops, .c = *c, .deal = deal, .own = r};
	r->p = arena_floats(run, c->n_floats);
	s->whole = r->p;
	s->bytes.params = c->n_floats * (int64_t)sizeof(float);
	if (!c->n_micro)
		return s; /* to be read only */
	r->m = arena_floats(run, c->n_floats);
	r->v = arena_floats(run, c->n_floats);
	s->whole_m = r->m;
	s->whole_v = r->v;
	s->bytes.optimizer = 2 * s->bytes.params;
	place_grads(s, arena_measuring(run));
	place_buckets(s);
	open_exchange(s, arena_measuring(run));
	list_parts(s);
	return s;
}
