/* Matmuls of groups of rows by the kernel of matmul_hopper.h: a tile has rows of one group, and
 * the group's block of the weights. */
#include "kernels/cuda/groups.h"
#include "kernels/cuda/matmul_launch.h"

/* Rows of a tile that are another group's are computed, but not stored; so TMA, which stores all
 * rows of a box, cannot store. */
typedef matmul_shape<4, false, true, true, false> shape;

template <bool TRANSPOSED> struct group_epilogue : epilogue_of<TRANSPOSED> {
	static constexpr bool BIAS = false, GROUPS = true;
};

template <bool TRANSPOSED>
static bool run_groups(struct device *d, struct mat y, struct mat x, struct mat w,
	const struct row_groups *groups)
{
	typedef group_epilogue<TRANSPOSED> epilogue;
	const char *name = TRANSPOSED ? "groups_bwd_x_wgmma" : "groups_fwd_wgmma";
	int64_t block_rows = w.rows / (groups->n / groups->per_block);
	struct matmul_call call = {};
	struct matmul_args args;
	call.y = y;
	call.x = x;
	call.w = w;
	/* The last stage would have rows of the next block, times zeros, or times NaN. */
	if (TRANSPOSED && block_rows % PANEL)
		return false;
	if (!matmul_prepare(d, &traits_of<shape, epilogue>, &call, &args))
		return false;
	const struct group_tiles tiles = cuda_list_tiles(d, groups, x.rows, TILE_M);
	int64_t items = tiles.n * args.order.n_tiles;
	BUG_ON(items > INT32_MAX / 2);
	args.groups = tiles.list;
	args.block_rows = (int)block_rows;
	args.order.m_tiles = (int)tiles.n;
	args.order.items = (int)items;
	launch_matmul<shape, epilogue>(d, name, args);
	return true;
}

bool cuda_groups_hopper(struct device *d, bool transposed, struct mat y, struct mat x,
	struct mat w, const struct row_groups *groups)
{
	return cuda_lab_on(d, LAB_GROUPS) &&
	       (transposed ? run_groups<true> : run_groups<false>)(d, y, x, w, groups);
}
