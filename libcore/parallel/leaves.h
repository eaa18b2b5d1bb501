/*
 * The leaves of a gradient, as leaves of the canonical tree: a sum over the uses of a (tied)
 * weight, over micro-batches, over chunks of sequences, and over the users in which virtual
 * slices share a weight.
 */
#ifndef PARALLEL_LEAVES_H
#define PARALLEL_LEAVES_H

#include "comm/tree.h"

/*
 * Leaves have coordinates (use, micro, chunk, user), the last one fastest. Each but the first
 * takes a power of two of indices, so that all leaves of a chunk, of a micro-batch, of a use
 * are a node of their own.
 */
enum leaf_axis { LEAF_USE, LEAF_MICRO, LEAF_CHUNK, LEAF_USER, N_LEAF_AXES };

struct leaf_shape {
	int64_t n[N_LEAF_AXES];
};

/* Leaves that a rank holds: [first, end) along each axis. */
struct leaf_box {
	int64_t first[N_LEAF_AXES], end[N_LEAF_AXES];
};

int64_t leaf_index(const struct leaf_shape *t, const int64_t at[N_LEAF_AXES]);
/* Levels from a leaf up to the root, and up to the node of a micro-batch. */
int leaf_levels(const struct leaf_shape *t);
int leaf_micro_level(const struct leaf_shape *t);
/* As tree_push, for a leaf (level 0) or a whole node of such a tree; halves that have no leaf
 * count as present. Nodes grow to `top` levels at most. */
int leaf_push_node(
	struct tree_stack *s, const struct leaf_shape *t, int top, struct tree_node node);
/* Pushes the leaves of a box, which is in one use, on an empty stack. Returns the positions
 * that this takes at the worst moment. */
int leaf_push_box(struct tree_stack *s, const struct leaf_shape *t, int top,
	const struct leaf_box *box);

#endif
