/* The canonical tree: nodes of a range of leaves, merging, sums. */
#include "comm/tree.h"

#include <stdlib.h>

int tree_levels(int64_t n)
{
	int levels = 0;
	while ((int64_t)1 << levels < n)
		levels++;
	return levels;
}

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

/* Merges the halves that are on top of the stack; returns how often. */
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

/* Before leaf m is pushed, the stack holds the nodes of [begin, m). Their number is largest for the
 * last m, or for an m that equals it above some bit, has 0 at that bit and ones below. */
int tree_depth(int64_t begin, int64_t end)
{
	struct tree_node nodes[TREE_MAX_NODES];
	int64_t last = end - 1;
	if (begin >= end)
		return 0;
	int depth = tree_nodes(begin, last, nodes);
	for (int bit = 0; bit < 62 && last >> bit; bit++) {
		int64_t m = (last ^ ((int64_t)1 << bit)) | (((int64_t)1 << bit) - 1);
		if (!(last >> bit & 1) || m < begin)
			continue;
		int n = tree_nodes(begin, m, nodes);
		depth = depth > n ? depth : n;
	}
	return depth + 1;
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
