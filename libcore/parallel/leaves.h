/* The leaves of a gradient in the canonical tree: a sum over the uses of a (tied) weight, micro-batches,
 * chunks of sequences, and the virtual slices that share a slice of the weight (its users). */
#ifndef PARALLEL_LEAVES_H
#define PARALLEL_LEAVES_H

#include "comm/tree.h"

/* The coordinates of a leaf, the last one fastest. Each but the first takes a power of two of indices,
 * so that the leaves of a chunk, of a micro-batch and of a use each form a node of the tree. */
enum leaf_axis { LEAF_USE, LEAF_MICRO, LEAF_CHUNK, LEAF_USER, N_LEAF_AXES };

struct leaf_shape {
	int64_t n[N_LEAF_AXES];
};

/* Leaves that a rank holds: [first, end) along each axis. */
struct leaf_box {
	int64_t first[N_LEAF_AXES], end[N_LEAF_AXES];
};

int64_t leaf_index(const struct leaf_shape *t, const int64_t at[N_LEAF_AXES]);
/* The levels of the root, and of the node of a micro-batch, above the leaves. */
int leaf_levels(const struct leaf_shape *t);
int leaf_micro_level(const struct leaf_shape *t);
/* As tree_push(), for a leaf (level 0) or a whole node of such a tree; a node whose sibling has no
 * leaves becomes its parent. Nodes are merged up to level `top`. */
int leaf_push_node(
	struct tree_stack *s, const struct leaf_shape *t, int top, struct tree_node node);
/* Pushes the leaves of a box, which lies in one use, on an empty stack. Returns the largest depth
 * of the stack on the way. */
int leaf_push_box(struct tree_stack *s, const struct leaf_shape *t, int top,
	const struct leaf_box *box);

#endif
