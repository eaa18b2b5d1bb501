/*
 * The sums of gradients over ranks: of a bucket at once, or round by round.
 *
 * With hybrid sharding (HSDP), a sum has two steps: over the ranks of the shards, then over the
 * replicas of each shard. The second one begins when the first is complete, in the same order on all
 * ranks, in the background.
 */
#include "parallel/store_internal.h"

#include "comm/simulate.h"

#include <stdlib.h>
#include <string.h>

/* ---- nodes ----------------------------------------------------------------------- */

static void add_nodes(struct sum_nodes *nodes, const struct tree_stack *stack, int buffer)
{
	int n = nodes->n + stack->n;
	nodes->node = xrealloc(nodes->node, (size_t)(n + 1) * sizeof(*nodes->node));
	nodes->buffer = xrealloc(nodes->buffer, (size_t)(n + 1) * sizeof(*nodes->buffer));
	for (int i = 0; i < stack->n; i++, nodes->n++) {
		nodes->node[nodes->n] = stack->node[i];
		nodes->buffer[nodes->n] = buffer + i;
	}
}

/* Those of the second sum. */
static void set_replica_nodes(struct store *s, struct bucket *b, int use, int64_t round)
{
	for (int r = 0; r < b->replicas.c->size; r++) {
		struct sum_nodes *nodes = &b->replicas.nodes[r];
		nodes->n = 0;
		for (int u = 0; u < bucket_uses(b); u++) {
			struct tree_stack stack = {.n = 0};
			if (use < 0 || u == use)
				bucket_push_replica(
					s, b, b->replicas.ranks[r], u, round, &stack);
			BUG_ON(stack.n > 1);
			add_nodes(nodes, &stack, u);
		}
	}
}

void bucket_set_nodes(struct store *s, struct bucket *b, int use, int64_t round)
{
	for (int r = 0; r < b->leaves->c->size; r++) {
		struct sum_nodes *nodes = &b->leaves->nodes[r];
		int depth[2] = {0};
		nodes->n = 0;
		for (int u = 0; u < bucket_uses(b); u++) {
			struct tree_stack stack = {.n = 0};
			if (use >= 0 && u != use)
				continue;
			depth[u] =
				bucket_push(s, b, b->leaves->ranks[r], u, round, &stack);
			add_nodes(nodes, &stack, u * depth[0]);
		}
		if (r == b->leaves->c->rank && !round && use != 1) {
			b->depth = depth[0] > 1 ? depth[0] : 1;
			b->n_buffers = b->depth * (b->by_use ? 1 : bucket_uses(b));
		}
	}
	if (b->last != b->leaves)
		set_replica_nodes(s, b, use, round);
}

/* The leaves that were written must be those that all ranks expect. */
static void check_nodes(const struct bucket *b)
{
	const struct sum_nodes *mine = &b->leaves->nodes[b->leaves->c->rank];
	for (int i = 0; i < b->n_entries; i++) {
		int n = 0;
		for (int u = 0; u < bucket_uses(b); u++)
			n += b->entry[i].stack[u].n;
		BUG_ON(n != mine->n);
	}
}

/* ---- rounds ---------------------------------------------------------------------- */

/* The nodes of a round's micro-batches in one use, of all ranks, and of those that a last round is
 * short of: then the nodes are aligned as in other rounds. */
static int nodes_of_round(const struct store *s, const struct bucket *b, int use,
	int64_t round, struct tree_node nodes[static TREE_MAX_NODES])
{
	int64_t ranks = s->c.microbatches.ranks;
	int top = b->all.plan.levels - (bucket_uses(b) > 1);
	int n = tree_nodes(round * ranks, (round + 1) * ranks, nodes);
	while (nodes[n - 1].index << nodes[n - 1].level >= s->c.microbatches.n_micro)
		n--; /* without leaves */
	for (int i = 0; i < n; i++) {
		const int64_t at[N_LEAF_AXES] = {[LEAF_USE] = use,
			[LEAF_MICRO] = nodes[i].index << nodes[i].level};
		int level = nodes[i].level + leaf_micro_level(&b->shape);
		level = level < top ? level : top;
		nodes[i] = (struct tree_node){level, leaf_index(&b->shape, at) >> level};
	}
	return n;
}

/* Sets the nodes of the next round: those that the ranks contribute, and those of their sums. */
static void begin_round(struct store *s, struct bucket *b, int use)
{
	int64_t round = b->round[use > 0 ? use : 0]++;
	bucket_set_nodes(s, b, use, round);
	for (int u = 0; u < bucket_uses(b); u++) {
		b->round_node[u] = xrealloc(
			b->round_node[u], TREE_MAX_NODES * sizeof(*b->round_node[u]));
		b->n_round_nodes = nodes_of_round(s, b, u, round, b->round_node[u]);
	}
}

/* Pushes a sum, that of node `of`, on the stack of a use; `from`: its first float in the buffers. */
static void push_sum(struct bucket *b, int use, struct tree_stack *stack,
	struct tree_node of, struct mat sum, int64_t from)
{
	struct device *d = b->all.plan.d;
	float **buffer = b->round_buffer[use];
	int top = b->all.plan.levels - (bucket_uses(b) > 1);
	d->k->copy(d, mat(buffer[stack->n] + from, 1, sum.cols), sum);
	int merges = leaf_push_node(stack, &b->shape, top, of);
	for (int i = stack->n + merges - 1; merges > 0; merges--, i--) {
		struct mat left = mat(buffer[i - 1] + from, 1, sum.cols);
		d->k->add(d, left, left, mat(buffer[i] + from, 1, sum.cols));
	}
}

static bool has_parts(const struct tree_part *parts, int n_parts, struct tree_node of)
{
	for (int i = 0; i < n_parts; i++) {
		const struct tree_node *x = &parts[i].node;
		if (x->level <= of.level && x->index >> (of.level - x->level) == of.index)
			return true;
	}
	return false;
}

/* The nodes that the sums of a round change, of the stack of a use. */
static struct node_range range_of(
	struct bucket *b, int use, const struct tree_part *parts, int n_parts)
{
	struct tree_stack stack = b->round_sums_before[use];
	struct node_range r = {stack.n, stack.n, stack.n, stack.n};
	int top = b->all.plan.levels - (bucket_uses(b) > 1);
	for (int i = 0; i < b->n_round_nodes && use < bucket_uses(b); i++) {
		if (!has_parts(parts, n_parts, b->round_node[use][i]))
			continue;
		r.top = r.top > stack.n + 1 ? r.top : stack.n + 1;
		leaf_push_node(&stack, &b->shape, top, b->round_node[use][i]);
		r.low = r.low < stack.n - 1 ? r.low : stack.n - 1;
		r.writes = stack.n;
	}
	return r;
}

/* The sums of a round, from float `first` of the piece; `block` is of the same size. */
struct pushing {
	const struct tree_part *parts;
	struct tree_part *block;
	int n_parts;
	int64_t first;
};

static void push_block(struct bucket *b, const struct pushing *x, int64_t at, int64_t n)
{
	struct device *d = b->all.plan.d;
	int next = 0;
	tree_cut(x->parts, x->n_parts, at - x->first, n, x->block);
	for (int u = 0; u < bucket_uses(b); u++) {
		b->round_sums[u] = b->round_sums_before[u];
		for (int i = 0; i < b->n_round_nodes; i++) {
			struct tree_node of = b->round_node[u][i];
			struct mat sum = tree_add(
				d, x->block, x->n_parts, &next, of, (struct mat){0});
			if (sum.p)
				push_sum(b, u, &b->round_sums[u], of, sum,
					at - b->round_first);
		}
	}
	BUG_ON(next != x->n_parts);
}

static void push_run(struct bucket *b, int64_t at, int64_t n, void *with)
{
	int64_t block = b->all.plan.d->sum_block;
	for (int64_t from = 0; from < n; from += block)
		push_block(b, with, at + from, min64(block, n - from));
}

/* Pushes the sums of a round on the stacks of its uses, a block of floats at a time. */
static void push_sums(void *with, const struct tree_part *parts, int n_parts,
	int64_t first, int64_t len)
{
	struct bucket *b = with;
	struct pushing x = {.parts = parts,
		.block = xcalloc((size_t)n_parts + 1, sizeof(*x.block)),
		.n_parts = n_parts,
		.first = first};
	const struct node_range range[2] = {
		range_of(b, 0, parts, n_parts), range_of(b, 1, parts, n_parts)};
	nodes_visit(b, range, first, len, push_run, &x);
	free(x.block);
}

/* ---- sums ------------------------------------------------------------------------ */

/* The result of the first of two sums: this replica's nodes of the second. */
static void take_replica_sums(void *with, const struct tree_part *parts, int n_parts,
	int64_t first, int64_t len)
{
	struct bucket *b = with;
	struct device *d = b->all.plan.d;
	const struct sum_nodes *mine = &b->replicas.nodes[b->replicas.c->rank];
	struct tree_part *block = xcalloc((size_t)n_parts + 1, sizeof(*block));
	for (int64_t from = 0; from < len; from += d->sum_block) {
		int64_t n = min64(d->sum_block, len - from);
		int next = 0;
		tree_cut(parts, n_parts, from, n, block);
		for (int i = 0; i < mine->n; i++) {
			float *to = b->replica_sum[mine->buffer[i]] + first + from;
			d->k->copy(d, mat(to, 1, n),
				tree_add(d, block, n_parts, &next, mine->node[i],
					(struct mat){0}));
		}
		BUG_ON(next != n_parts);
	}
	free(block);
}

/* The node that a round's sum is, if it is only one. */
static const struct tree_node *only_round_node(const struct bucket *b)
{
	return bucket_uses(b) == 1 && b->n_round_nodes == 1 ? b->round_node[0] : NULL;
}

/* The last sum of a bucket: over its group, or over the replicas. */
static void begin_last(struct bucket *b, bool round_robin)
{
	struct sum_group *g = b->last;
	const struct sum_call call = {.plan = &g->plan,
		.nodes = g->nodes,
		.buffer = g == b->leaves ? b->buffer : b->replica_sum,
		.take = round_robin ? push_sums : NULL,
		.takes = only_round_node(b),
		.with = b,
		.result = b->g,
		.queue = g->queue,
		.shared = b->shared,
		.from = b->from,
		.slot = b->slot};
	b->sum = tree_sum_begin(&call);
}

/* Begins the second sums of buckets whose first one is complete. */
static void advance(void *with)
{
	struct store *s = with;
	struct store_impl *o = s->impl;
	while (o->n_pending && tree_sum_done(o->pending[0]->sum)) {
		struct bucket *b = o->pending[0];
		memmove(o->pending, o->pending + 1,
			(size_t)--o->n_pending * sizeof(struct bucket *));
		b->pending = false;
		simulate_chain(true); /* a plan's first sum is not complete */
		tree_sum_end(b->sum);
		begin_last(b, s->c.microbatches.round_robin);
		simulate_chain(false);
	}
}

static void begin_first(struct store *s, struct bucket *b)
{
	const struct sum_nodes *mine = &b->replicas.nodes[b->replicas.c->rank];
	const struct sum_call call = {.plan = &b->shards.plan,
		.nodes = b->shards.nodes,
		.buffer = b->buffer,
		.take = take_replica_sums,
		.takes = mine->n == 1 ? mine->node : NULL,
		.with = b,
		.queue = b->shards.queue};
	b->sum = tree_sum_begin(&call);
	if (comm_has_stream(b->shards.plan.c)) { /* the second follows in its stream */
		int before = comm_stream_begin(b->shards.plan.c);
		tree_sum_end(b->sum);
		begin_last(b, s->c.microbatches.round_robin);
		comm_stream_end(b->shards.plan.c, before);
		if (!comm_overlaps()) /* also in the device's own stream */
			reduce_end(s, b);
		return;
	}
	b->pending = true;
	s->impl->pending[s->impl->n_pending++] = b;
	advance(s);
}

struct pending {
	struct store *s;
	const struct bucket *b;
};

static bool is_not_pending(void *with)
{
	struct pending *x = with;
	advance(x->s);
	return !x->b->pending;
}

void reduce_end(struct store *s, struct bucket *b)
{
	const struct comm_what what = {"tree sum of shards", 0, b->all.c->seq};
	if (b->pending)
		comm_wait_for(b->all.c, is_not_pending, &(struct pending){s, b}, &what);
	if (b->sum)
		tree_sum_end(b->sum);
	b->sum = NULL;
	free(b->round_parts);
	b->round_parts = NULL;
}

static void begin_sum(struct store *s, struct bucket *b)
{
	reduce_end(s, b);
	memcpy(b->round_sums_before, b->round_sums, sizeof(b->round_sums));
	if (!b->all.c->planned)
		check_nodes(b);
	if (b->last != b->leaves)
		begin_first(s, b);
	else
		begin_last(b, s->c.microbatches.round_robin);
}

void store_reduce(struct store *s, int unit, int use, bool last)
{
	struct store_impl *o = s->impl;
	if (s->c.microbatches.round_robin) /* also a rank without leaves in this round */
		grads_take_lease(s, unit);
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_buckets; b++) {
		if (!bucket_has_unit(b, unit))
			continue;
		bool deferred = use == 1 && !b->by_use && !b->tied; /* for use 0 */
		if (deferred)
			continue;
		if (s->c.microbatches.round_robin) {
			reduce_end(s, b); /* it uses the nodes */
			begin_round(s, b, b->by_use ? use : -1);
			begin_sum(s, b);
		} else if (last && --b->units_left == 0) {
			begin_sum(s, b);
		}
	}
	for (int i = 0; i < N_PLACES; i++)
		if (o->lease[i].unit == unit)
			o->lease[i].open = false;
}

/* Round-robin: the sum of the rounds, which all replicas of a shard receive. */
static void finish_rounds(struct bucket *b)
{
	struct sum_group *g = b->last;
	int64_t first, len = sum_piece(&g->plan, g->c->rank, &first);
	int n = 0;
	for (int r = 0; r < g->c->size; r++)
		g->nodes[r].n = 0;
	b->round_parts = xcalloc((size_t)(b->round_sums[0].n + b->round_sums[1].n + 1),
		sizeof(*b->round_parts));
	for (int u = 0; u < 2; u++)
		for (int i = 0; i < b->round_sums[u].n; i++)
			b->round_parts[n++] = (struct tree_part){b->round_sums[u].node[i],
				mat(b->round_buffer[u][i], 1, len)};
	const struct sum_call call = {.plan = &g->plan,
		.nodes = g->nodes,
		.buffer = b->buffer,
		.extra = b->round_parts,
		.n_extra = n,
		.result = b->g,
		.queue = g->queue};
	b->sum = tree_sum_begin(&call);
}

/* Use 0 is on the first stage, use 1 on the last. */
void reduce_add_other(struct store *s, float *mine, float *other, int64_t n)
{
	struct comm *pair = mesh_group(s->c.mesh,
		(struct mesh_part){.axes = AXIS_BIT(AXIS_PP), .pp_ends = true});
	int64_t n_bytes = n * (int64_t)sizeof(float);
	struct comm_requests r = {.c = pair};
	comm_send(&r, mine, n_bytes, !pair->rank, TAG_TIED);
	comm_recv(&r, other, n_bytes, !pair->rank, TAG_TIED);
	comm_start(&r);
	comm_wait(&r);
	comm_requests_free(&r);
	s->c.device->k->add(
		s->c.device, mat(mine, 1, n), mat(mine, 1, n), mat(other, 1, n));
}

static void finish_grads(struct store *s)
{
	struct store_impl *o = s->impl;
	struct bucket *end = o->bucket + o->n_buckets;
	for (struct bucket *b = o->bucket; b < end && s->c.microbatches.round_robin; b++)
		finish_rounds(b);
	for (struct bucket *b = o->bucket; b < end; b++) {
		reduce_end(s, b);
		if (b->tied)
			reduce_add_other(s, b->g, b->other, b->shard[s->impl->shard].n);
	}
}

void store_step_end(struct store *s)
{
	struct store_impl *o = s->impl;
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_buckets; b++)
		reduce_end(s, b);
	if (is_offloaded(s, STORE_GRAD))
		offload_finish_grads(s);
	else
		finish_grads(s);
	grads_begin_step(s);
}

/* ---- opening --------------------------------------------------------------------- */

/* Does this rank take part in second sums, which begin in the background? */
static bool has_second_sums(const struct store *s)
{
	for (int i = 0; i < s->impl->n_buckets; i++)
		if (s->impl->bucket[i].last != s->impl->bucket[i].leaves)
			return !s->c.mesh->world->planned;
	return false;
}

void reduce_open(struct store *s)
{
	s->impl->pending =
		xcalloc((size_t)s->impl->n_buckets + 1, sizeof(struct bucket *));
	if (has_second_sums(s))
		comm_background(advance, s);
}

void reduce_close(struct store *s)
{
	if (s->impl->pending && has_second_sums(s))
		comm_background_end(advance, s);
	free(s->impl->pending);
	s->impl->pending = NULL;
}
