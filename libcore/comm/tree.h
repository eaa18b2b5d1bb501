/* The canonical tree of sums of activations over virtual slices. (For gradients see sum.h.)
 *
 * A sum over n leaves is one binary tree over their indices: node (level, i) is the sum of leaves
 * [i 2^level, (i+1) 2^level) that exist, as its left half plus its right half; a half that does
 * not exist adds nothing. The bits do not depend on which rank holds which leaves. */
#pragma once

#include "base/base.h"
#include "kernels/kernels.h"

struct tree_node {
	int level;
	int64_t index;
};

enum { TREE_MAX_NODES = 128 };

/* Returns the level of the root of n leaves: log2(n), rounded up. */
int tree_levels(int64_t n);
/* Finds the fewest nodes that cover exactly the leaves [begin, end), in ascending order. */
int tree_nodes(int64_t begin, int64_t end, struct tree_node out[static TREE_MAX_NODES]);

/*
 * Returns the number of additions after leaf `index`. Leaves from `begin` on are pushed on a stack
 * of buffers in ascending order, and two halves of a node are added as soon as both are there: the
 * top buffer is added to the one below it and popped. At the end the stack holds the tree_nodes().
 */
int tree_merges(int64_t begin, int64_t index);
/* Returns the largest number of buffers that leaves [begin, end) need. */
int tree_depth(int64_t begin, int64_t end);

/* A node and the sum of its leaves, or some rows of that sum. */
struct tree_part {
	struct tree_node node;
	struct mat x;
};

/* Sums the parts of node `sum`, beginning with part *at, and advances *at past them. Parts are in
 * the order of their leaves. The sum is written to `to`, or if that is NULL, over the first part;
 * a single part is returned unchanged. Returns a mat with p == NULL if the node has no parts. */
struct mat tree_add(struct device *d, const struct tree_part *parts, int n, int *pos,
	struct tree_node sum, struct mat to);
