/* The canonical tree: nodes of a range of leaves, and sums. */
#include "comm/tree.h"

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

/* Counts nodes that a leaf completes. Bit k of index: right half of its node at level k + 1. */
int tree_merges(int64_t begin, int64_t index)
{
	int n = 0;
	while (index >> n & 1 && ((index >> n) - 1) << n >= begin)
		n++;
	return n;
}

int tree_depth(int64_t begin, int64_t end)
{
	int depth = 0, n = 0;
	for (int64_t i = begin; i < end; i++) {
		depth = ++n > depth ? n : depth;
		n -= tree_merges(begin, i);
	}
	return depth;
}

struct mat tree_add(struct device *d, const struct tree_part *parts, int n, int *pos,
	struct tree_node sum, struct mat to)
{
	struct mat none = {0};
	if (*pos == n)
		return none;
	const struct tree_part *part = &parts[*pos];
	if (part->node.index << part->node.level >= (sum.index + 1) << sum.level)
		return none;
	if (part->node.level == sum.level && part->node.index == sum.index) {
		++*pos;
		return part->x;
	}
	BUG_ON(sum.level == 0);
	struct tree_node half = {sum.level - 1, 2 * sum.index};
	struct mat left = tree_add(d, parts, n, pos, half, none);
	half.index++;
	struct mat right = tree_add(d, parts, n, pos, half, none);
	if (!left.p || !right.p)
		return left.p ? left : right;
	to = to.p ? to : left;
	d->k->add(d, to, left, right);
	return to;
}
