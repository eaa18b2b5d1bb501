/* The leaves of a gradient: their indices in the canonical tree, and the nodes of boxes of them. */
#include "parallel/leaves.h"

/* The bits of an index below each coordinate. Returns the number of all bits. */
static int shifts(const struct leaf_shape *t, int shift[N_LEAF_AXES])
{
	int at = 0;
	for (int a = N_LEAF_AXES - 1; a >= 0; a--) {
		shift[a] = at;
		while ((int64_t)1 << (at - shift[a]) < t->n[a])
			at++;
	}
	return at;
}

int64_t leaf_index(const struct leaf_shape *t, const int64_t at[N_LEAF_AXES])
{
	int shift[N_LEAF_AXES];
	int64_t index = 0;
	shifts(t, shift);
	for (int a = 0; a < N_LEAF_AXES; a++)
		index |= at[a] << shift[a];
	return index;
}

int leaf_levels(const struct leaf_shape *t)
{
	int shift[N_LEAF_AXES];
	return shifts(t, shift);
}

int leaf_micro_level(const struct leaf_shape *t)
{
	int shift[N_LEAF_AXES];
	shifts(t, shift);
	return shift[LEAF_MICRO];
}

/* Does [begin, end) contain the index of a leaf? */
static bool any_leaf(const struct leaf_shape *t, int64_t begin, int64_t end)
{
	int shift[N_LEAF_AXES];
	int64_t at[N_LEAF_AXES];
	shifts(t, shift);
	for (int a = 0; a < N_LEAF_AXES; a++)
		at[a] = a ? (begin >> shift[a]) &
					(((int64_t)1 << (shift[a - 1] - shift[a])) - 1)
			  : begin >> shift[a];
	/* A coordinate beyond its range carries into the one before it. */
	for (int a = N_LEAF_AXES - 1; a > 0; a--) {
		if (at[a] < t->n[a])
			continue;
		at[a - 1]++;
		for (int b = a; b < N_LEAF_AXES; b++)
			at[b] = 0;
	}
	return at[LEAF_USE] < t->n[LEAF_USE] && leaf_index(t, at) < end;
}

int leaf_push_node(
	struct tree_stack *s, const struct leaf_shape *t, int top, struct tree_node node)
{
	int merges = 0;
	BUG_ON(s->n == TREE_MAX_NODES);
	s->node[s->n++] = node;
	for (;;) {
		struct tree_node *n = &s->node[s->n - 1];
		int64_t after = (n->index + 1) << n->level;
		int more = n->level < top ? tree_merge(s) : 0;
		merges += more;
		if (more)
			continue;
		if (n->level >= top || n->index % 2 ||
			any_leaf(t, after, after + ((int64_t)1 << n->level)))
			return merges;
		*n = (struct tree_node){n->level + 1, n->index / 2};
	}
}

/* Pushes whole micro-batches as nodes of many, since there may be 10^9 of them. Returns 0 if the box
 * is not of whole micro-batches. */
static int push_micros(struct tree_stack *s, const struct leaf_shape *t, int top,
	const struct leaf_box *box)
{
	struct tree_node nodes[TREE_MAX_NODES];
	struct tree_stack one = {.n = 0};
	struct leaf_box first = *box;
	int micro_level = leaf_micro_level(t), depth = 0;
	for (int a = LEAF_CHUNK; a < N_LEAF_AXES; a++)
		if (box->first[a] > 0 || box->end[a] < t->n[a])
			return 0;
	if (box->end[LEAF_MICRO] - box->first[LEAF_MICRO] < 2)
		return 0;
	int n = tree_nodes(box->first[LEAF_MICRO], box->end[LEAF_MICRO], nodes);
	for (int i = 0; i < n; i++)
		if (micro_level + nodes[i].level > top)
			return 0;
	first.end[LEAF_MICRO] = box->first[LEAF_MICRO] + 1;
	int inner = leaf_push_box(&one, t, micro_level, &first);
	for (int i = 0; i < n; i++) {
		int level = micro_level + nodes[i].level;
		const int64_t at[N_LEAF_AXES] = {[LEAF_USE] = box->first[LEAF_USE],
			[LEAF_MICRO] = nodes[i].index << nodes[i].level};
		int positions = s->n + nodes[i].level + inner;
		depth = depth > positions ? depth : positions;
		leaf_push_node(
			s, t, top, (struct tree_node){level, leaf_index(t, at) >> level});
	}
	return depth;
}

int leaf_push_box(struct tree_stack *s, const struct leaf_shape *t, int top,
	const struct leaf_box *box)
{
	int depth = push_micros(s, t, top, box);
	int64_t at[N_LEAF_AXES] = {box->first[LEAF_USE]};
	if (depth)
		return depth;
	for (at[1] = box->first[1]; at[1] < box->end[1]; at[1]++)
		for (at[2] = box->first[2]; at[2] < box->end[2]; at[2]++)
			for (at[3] = box->first[3]; at[3] < box->end[3]; at[3]++) {
				depth = depth > s->n + 1 ? depth : s->n + 1;
				leaf_push_node(s, t, top,
					(struct tree_node){0, leaf_index(t, at)});
			}
	return depth;
}
