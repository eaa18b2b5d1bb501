/* The canonical tree: which nodes there are, how leaves become them, and their sums. */
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

/* ---- trees with coordinates ------------------------------------------------------- */

/* Bits of an index below each coordinate. */
static void shifts(const struct tree_shape *t, int shift[N_TREE_AXES])
{
	int at = 0;
	for (int a = N_TREE_AXES - 1; a >= 0; a--) {
		shift[a] = at;
		while ((int64_t)1 << (at - shift[a]) < t->n[a])
			at++;
	}
}

int64_t tree_index(const struct tree_shape *t, const int64_t at[N_TREE_AXES])
{
	int shift[N_TREE_AXES];
	int64_t index = 0;
	shifts(t, shift);
	for (int a = 0; a < N_TREE_AXES; a++)
		index |= at[a] << shift[a];
	return index;
}

int tree_levels(const struct tree_shape *t)
{
	int shift[N_TREE_AXES], at;
	shifts(t, shift);
	for (at = shift[TREE_USE]; (int64_t)1 << (at - shift[TREE_USE]) < t->n[TREE_USE];)
		at++;
	return at;
}

int tree_micro_level(const struct tree_shape *t)
{
	int shift[N_TREE_AXES];
	shifts(t, shift);
	return shift[TREE_MICRO];
}

/* Is there a leaf at `begin` or behind it, below `end`? */
static bool any_leaf(const struct tree_shape *t, int64_t begin, int64_t end)
{
	int shift[N_TREE_AXES];
	int64_t at[N_TREE_AXES];
	shifts(t, shift);
	for (int a = 0; a < N_TREE_AXES; a++)
		at[a] = a ? (begin >> shift[a]) &
					(((int64_t)1 << (shift[a - 1] - shift[a])) - 1)
			  : begin >> shift[a];
	/* A coordinate that is too large carries into the one before it. */
	for (int a = N_TREE_AXES - 1; a > 0; a--) {
		if (at[a] < t->n[a])
			continue;
		at[a - 1]++;
		for (int b = a; b < N_TREE_AXES; b++)
			at[b] = 0;
	}
	return at[TREE_USE] < t->n[TREE_USE] && tree_index(t, at) < end;
}

int tree_push_node(
	struct tree_stack *s, const struct tree_shape *t, int top, struct tree_node node)
{
	int merges = 0;
	BUG_ON(s->n == TREE_MAX_NODES);
	s->node[s->n++] = node;
	for (;;) {
		struct tree_node *n = &s->node[s->n - 1];
		int64_t after = (n->index + 1) << n->level;
		int more = n->level < top ? merge(s) : 0;
		merges += more;
		if (more)
			continue;
		if (n->level >= top || n->index % 2 ||
			any_leaf(t, after, after + ((int64_t)1 << n->level)))
			return merges;
		*n = (struct tree_node){n->level + 1, n->index / 2};
	}
}

/* Whole micro-batches are pushed by nodes of many: there may be a thousand million of them.
 * Returns 0 where the box is no such. */
static int push_micros(struct tree_stack *s, const struct tree_shape *t, int top,
	const struct tree_box *box)
{
	struct tree_node nodes[TREE_MAX_NODES];
	struct tree_stack one = {.n = 0};
	struct tree_box first = *box;
	int micro_level = tree_micro_level(t), depth = 0;
	for (int a = TREE_CHUNK; a < N_TREE_AXES; a++)
		if (box->first[a] > 0 || box->end[a] < t->n[a])
			return 0;
	if (box->end[TREE_MICRO] - box->first[TREE_MICRO] < 2)
		return 0;
	int n = tree_nodes(box->first[TREE_MICRO], box->end[TREE_MICRO], nodes);
	for (int i = 0; i < n; i++)
		if (micro_level + nodes[i].level > top)
			return 0;
	first.end[TREE_MICRO] = box->first[TREE_MICRO] + 1;
	int inner = tree_push_box(&one, t, micro_level, &first);
	for (int i = 0; i < n; i++) {
		int level = micro_level + nodes[i].level;
		const int64_t at[N_TREE_AXES] = {[TREE_USE] = box->first[TREE_USE],
			[TREE_MICRO] = nodes[i].index << nodes[i].level};
		int positions = s->n + nodes[i].level + inner;
		depth = depth > positions ? depth : positions;
		tree_push_node(
			s, t, top, (struct tree_node){level, tree_index(t, at) >> level});
	}
	return depth;
}

int tree_push_box(struct tree_stack *s, const struct tree_shape *t, int top,
	const struct tree_box *box)
{
	int depth = push_micros(s, t, top, box);
	int64_t at[N_TREE_AXES] = {box->first[TREE_USE]};
	if (depth)
		return depth;
	for (at[1] = box->first[1]; at[1] < box->end[1]; at[1]++)
		for (at[2] = box->first[2]; at[2] < box->end[2]; at[2]++)
			for (at[3] = box->first[3]; at[3] < box->end[3]; at[3]++) {
				depth = depth > s->n + 1 ? depth : s->n + 1;
				tree_push_node(s, t, top,
					(struct tree_node){0, tree_index(t, at)});
			}
	return depth;
}

/* ---- sums ------------------------------------------------------------------------ */

static int by_leaf(const void *a, const void *b)
{
	const struct tree_part *x = a, *y = b;
	int64_t i = x->node.index << x->node.level, j = y->node.index << y->node.level;
	return (i > j) - (i < j);
}

void tree_sort(struct tree_part *parts, int n)
{
	qsort(parts, (size_t)n, sizeof(*parts), by_leaf);
}

struct mat tree_add(struct device *d, const struct tree_part *parts, int n, int *at,
	struct tree_node sum, struct mat to)
{
	struct mat none = {0};
	if (*at == n)
		return none;
	const struct tree_part *part = &parts[*at];
	if (part->node.index << part->node.level >= (sum.index + 1) << sum.level)
		return none;
	if (part->node.level == sum.level && part->node.index == sum.index) {
		++*at;
		return part->x;
	}
	BUG_ON(sum.level == 0);
	struct tree_node half = {sum.level - 1, 2 * sum.index};
	struct mat left = tree_add(d, parts, n, at, half, none);
	half.index++;
	struct mat right = tree_add(d, parts, n, at, half, none);
	if (!left.p || !right.p)
		return left.p ? left : right;
	to = to.p ? to : left;
	d->k->add(d, to, left, right);
	return to;
}
