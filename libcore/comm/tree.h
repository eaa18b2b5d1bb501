/*
 * The canonical tree of sums of activations over virtual slices. (Gradients are sums of integers, see sum.h.)
 *
 * A sum over n leaves is one binary tree over their indices: node (level, i) is the sum of
 * leaves [i 2^level, (i+1) 2^level) that exist, as its left half plus its right half; a
 * half that does not exist adds nothing. The tree is a function of n alone, so the sum has the
 * same bits, whichever rank holds which leaves.
 */
#ifndef COMM_TREE_H
#define COMM_TREE_H

#include "base/base.h"
#include "kernels/kernels.h"

struct tree_node {
	int level;
	int64_t index;
};

enum { TREE_MAX_NODES = 128 };

/* The level of the root of n leaves: the smallest number whose power of two is not less than n. */
int tree_levels(int64_t n);
/* The fewest nodes whose leaves are exactly [begin, end), in ascending order. */
int tree_nodes(int64_t begin, int64_t end, struct tree_node out[static TREE_MAX_NODES]);

/*
 * Leaves are pushed on a stack in ascending order; the two halves of a node are merged into it. The
 * node at position p of the stack is in buffer p, so n leaves need log2(n) + 1 buffers.
 */
struct tree_stack {
	struct tree_node node[TREE_MAX_NODES];
	int n;
};

/* Pushes leaf `index`, the next one. Returns how many times buffer top-1 must now become buffer
 * top-1 plus buffer top (top: the last one in use, one less after each time). */
int tree_push(struct tree_stack *s, int64_t index);
/* No other leaf below `end` exists: merges across halves that stay empty; returns how often, as tree_push() does. */
int tree_finish(struct tree_stack *s, int64_t end);
/* The largest number of buffers that pushing leaves [begin, end) needs. */
int tree_depth(int64_t begin, int64_t end);

/* A node and the sum of its leaves, or some rows of that. */
struct tree_part {
	struct tree_node node;
	struct mat x;
};

/* Sorts parts in the order of their leaves. */
void tree_sort(struct tree_part *parts, int n);
/* Sums the parts of node `sum`, beginning with sorted part *at, and advances *at past them. The sum
 * is written to `to`, or if that is NULL over the first of the parts; a single part is returned
 * as it is. p is NULL if the node has no parts. */
struct mat tree_add(struct device *d, const struct tree_part *parts, int n, int *at,
	struct tree_node sum, struct mat to);

#endif
