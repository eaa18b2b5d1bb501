/* Shared by the files of experts. */
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/group_grid.h"

struct row_groups; /* experts.h */

/* The gradients of blocks of weights that a launch computes. */
struct leaf_args {
	struct {
		void *p;
		const float *before;
		int group, first_col, rows, type;
	} of[LEAVES_AT_ONCE];
};
static_assert(sizeof(struct leaf_args) <= 3 << 10, "a launch has 4 KiB of arguments");

/* The tiles of `rows` rows of each group; n: of the list, which is in device memory until the next
 * cuda_workspace(). */
struct group_tiles {
	const struct group_tile *list;
	int64_t n;
};

/* Lists the tiles of all groups; capacity: the rows that there may be. */
struct group_tiles cuda_list_tiles(
	struct device *d, const struct row_groups *groups, int64_t capacity, int rows);

/* Sets logits[rows][E] = h wr^T in fp32. */
void cuda_router_logits(
	struct device *d, const char *name, float *logits, struct mat h, struct mat wr);

/* Enqueues y = x w^T, or x w if `transposed`, by the matmuls of groups for sm_90a (matmul.h).
 * Returns false, with nothing done, if they are not enabled (PT_LAB_ON) or do not support the
 * device, the types, the shapes or the addresses; none of this depends on the layout of a run. */
bool cuda_groups_hopper(struct device *d, bool transposed, struct mat y, struct mat x,
	struct mat w, const struct row_groups *groups);

/* The same for dw = dy^T x of n leaves, of at most `rows` rows each. */
bool cuda_leaves_hopper(struct device *d, const struct leaf_args *leaves, int n,
	int64_t rows, struct mat dy, struct mat x, const struct row_groups *groups);
