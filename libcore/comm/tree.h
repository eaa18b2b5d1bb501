/*
 * The canonical tree of sums of activations over virtual slices. (Gradients are sums of integers, see sum.h.)
 *
 * A sum over n leaves is one binary tree over their indices: node (level, i) is the sum of
 * leaves [i 2^level, (i+1) 2^level) that exist, as its left half plus its right half; a
 * half that does not exist adds nothing. The tree is a function of n alone, so the sum has the
 * same bits, whichever rank holds which leaves.
 */
#pragma once

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
 * Leaves from `begin` on are put on a stack of buffers in ascending order, and two halves of a node are added
 * as soon as both are there: after leaf `index`, so many times, the second buffer from the top plus the
 * top one, which is free then. What is left are the tree_nodes(); if they are all leaves of the tree,
 * adding them in the same way gives its root.
 */
int tree_merges(int64_t begin, int64_t index);
/* The largest number of buffers that leaves [begin, end) need. */
int tree_depth(int64_t begin, int64_t end);

/* A node and the sum of its leaves, or some rows of that. */
struct tree_part {
	struct tree_node node;
	struct mat x;
};

/* Sums the parts of node `sum`, beginning with part *at, and advances *at past them. Parts are in the order
 * of their leaves. The sum is written to `to`, or if that is NULL over the first of the parts; a single part
 * is returned as it is. p is NULL if the node has no parts. */
struct mat tree_add(struct device *d, const struct tree_part *parts, int n, int *at,
	struct tree_node sum, struct mat to);
