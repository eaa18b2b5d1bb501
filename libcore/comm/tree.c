/* The canonical tree: which nodes there are, and how leaves become them. */
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
