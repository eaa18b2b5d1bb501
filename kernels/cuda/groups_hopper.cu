/* Matmuls of groups of rows by the kernel of matmul_hopper.h: a tile has rows of one group, and
 * the group's block of the weights. And leaves, by a kernel with the same ring of stages: a stage
 * has 64 rows of one group, in columns of dy and of x. */
#include "kernels/cuda/groups.h"
#include "kernels/cuda/matmul_launch.h"

extern "C" {
#include "kernels/experts.h"
}

/* Rows of a tile that are another group's are computed, but not stored; so TMA, which stores all
 * rows of a box, cannot store. */
typedef matmul_shape<4, false, true, true, false> shape;

static_assert((int)WIDE_TILE_ROWS == (int)TILE_M && (int)WIDE_TILE_COLS == (int)TILE_N,
	"group_grid.h");

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
	int64_t items = wide_tiles(tiles.n, y.cols);
	BUG_ON(!wide_tiles_fit(items));
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

/* ---- leaves ---------------------------------------------------------------------------- */

struct leaf_epilogue : epilogue_of<true> {
	static constexpr bool BIAS = false, LEAVES = true;
};

struct leaf_matmul {
	CUtensorMap dy, x;
	struct leaf_args leaves;
	const int32_t *offsets;
	int cols, items;
	struct matmul_order
		order; /* the order for one leaf with the largest number of rows */
};
static_assert(sizeof(struct leaf_matmul) <= 4 << 10, "the arguments of a launch");

/* A tile of a leaf, which is a sum over rows [first, first + n) of dy and x. */
struct leaf_place {
	int leaf, row, col, first, n;
};

/* Calls fn(place) for each of the block's tiles. */
template <typename F>
static __device__ inline void for_each_leaf_tile(const struct leaf_matmul &x, F fn)
{
	for (int item = (int)blockIdx.x; item < x.items; item += (int)gridDim.x) {
		int leaf = item / x.order.items, group = x.leaves.of[leaf].group;
		const struct matmul_place at =
			item_place<shape>(x.order, item % x.order.items);
		int first = x.offsets[group], n = x.offsets[group + 1] - first;
		if (at.row < x.leaves.of[leaf].rows)
			fn({leaf, at.row, at.col, first, n});
	}
}

static __device__ inline int leaf_steps(const struct leaf_place &at)
{
	return (at.n + PANEL - 1) / PANEL;
}

/* Barriers of stages whose last rows are another group's: the copies have arrived, but these rows
 * are not yet zeros. They lie where other kinds stage results. */
static __device__ inline uint64_t *landed_barriers(const struct matmul_buffers<shape> &s)
{
	return (uint64_t *)s.staged;
}

/* Runs the producer thread: enqueues copies of all stages of all of the block's tiles. */
static __device__ inline void leaf_produce(
	const struct leaf_matmul &x, const struct matmul_buffers<shape> &s)
{
	int use = 0;
	for_each_leaf_tile(x, [&](const struct leaf_place &at) {
		int col = x.leaves.of[at.leaf].first_col + at.row;
		for (int k = 0; k < at.n; k += PANEL, use++) {
			struct ring_use t = ring_use_at<shape::STAGES>(use);
			bool is_cut = at.n - k < PANEL;
			uint64_t *full = is_cut ? &landed_barriers(s)[t.place]
						: &s.rest->full[t.place];
			__nv_bfloat16 *a = s.x + t.place * TILE_M * PANEL;
			__nv_bfloat16 *b = s.w + t.place * TILE_N * PANEL;
			barrier_wait(&s.rest->free[t.place], t.parity ^ 1);
			barrier_expect(full, shape::STAGE * 2);
#pragma unroll
			for (int i = 0; i < TILE_M / PANEL; i++)
				tile_load(a + i * PANEL * PANEL, &x.dy, full,
					col + i * PANEL, 0, at.first + k, 0);
#pragma unroll
			for (int i = 0; i < TILE_N / PANEL; i++)
				tile_load(b + i * PANEL * PANEL, &x.x, full,
					at.col + i * PANEL, 0, at.first + k, 0);
		}
	});
}

/* Sets rows [first, PANEL) of panels to 0, by a warp. */
static __device__ inline void clear_rows(__nv_bfloat16 *panels, int n, int first)
{
	for (int i = 0; i < n; i++)
		for (int j = first * PANEL + lane_id() * 8; j < PANEL * PANEL;
			j += WARP * 8)
			clear_piece(panels + i * PANEL * PANEL + j);
}

/* Runs the warp that clears, in the last stage of a tile, the rows of the next group: they may be
 * anything, NaN, too. */
static __device__ inline void leaf_clear(
	const struct leaf_matmul &x, const struct matmul_buffers<shape> &s)
{
	int use = 0;
	unsigned parities = 0; /* bit i: of the next phase of stage i's barrier */
	for_each_leaf_tile(x, [&](const struct leaf_place &at) {
		int left = at.n % PANEL;
		use += leaf_steps(at);
		if (!left)
			return;
		int place = ring_use_at<shape::STAGES>(use - 1).place;
		barrier_wait(&landed_barriers(s)[place], (int)(parities >> place & 1));
		parities ^= 1u << place;
		clear_rows(s.x + place * TILE_M * PANEL, TILE_M / PANEL, left);
		clear_rows(s.w + place * TILE_N * PANEL, TILE_N / PANEL, left);
		publish_stores();
		warp_arrive(&s.rest->full[place]);
	});
}

/* Calls fn(index in the leaf, index in the thread's sums) for pairs of neighbors of a tile; the
 * second of a pair follows the first in both. */
template <typename F>
static __device__ inline void each_of_leaf(
	const struct leaf_matmul &x, const struct leaf_place &at, int w, F fn)
{
	int lane = lane_id(), warp = (int)threadIdx.x % WARPGROUP / WARP;
	int row = at.row + w * GROUP_ROWS + warp * 16 + lane / 4;
#pragma unroll
	for (int i = 0; i < TILE_N / 4; i++) {
		int r = row + i % 2 * 8, col = at.col + i / 2 * 8 + lane % 4 * 2;
		if (r < x.leaves.of[at.leaf].rows && col < x.cols)
			fn((int64_t)r * x.cols + col, 2 * i);
	}
}

static __device__ inline void store_two(void *to, int type, int64_t i, float2 v)
{
	if (type == DT_F32)
		*(float2 *)((float *)to + i) = v;
	else
		*(uint32_t *)((__nv_bfloat16 *)to + i) = both<__nv_bfloat16>(v.x, v.y);
}

/* Sets a tile of a group without rows. */
static __device__ inline void leaf_without_rows(
	const struct leaf_matmul &x, const struct leaf_place &at, int w)
{
	const auto &leaf = x.leaves.of[at.leaf];
	each_of_leaf(x, at, w, [&](int64_t i, int) {
		store_two(leaf.p, leaf.type, i, {0, 0});
	});
}

/* Runs consumer warpgroup w: computes its rows of all of the block's tiles, and stores them. */
static __device__ inline void leaf_consume(
	const struct leaf_matmul &x, const struct matmul_buffers<shape> &s, int w)
{
	int use = 0;
	for_each_leaf_tile(x, [&](const struct leaf_place &at) {
		const auto &leaf = x.leaves.of[at.leaf];
		float c[TILE_N / 8][4];
		int steps = leaf_steps(at);
		if (!steps) {
			leaf_without_rows(x, at, w);
			return;
		}
		multiply_tile<shape, leaf_epilogue>(c, s, use, steps, w);
		use += steps;
		each_of_leaf(x, at, w, [&](int64_t i, int j) {
			store_two(leaf.p, leaf.type, i,
				{c[j / 4][j % 4], c[j / 4][j % 4 + 1]});
		});
	});
}

/* Computes leaves by a producer, a warp that clears rows, and two consumer warpgroups per block. */
static __global__ void __launch_bounds__(HOPPER_THREADS, 1)
	hopper_leaves(const __grid_constant__ struct leaf_matmul x)
{
	if constexpr (HOPPER) {
		SHARED(shared);
		const struct matmul_buffers<shape> s(shared);
		int w = warpgroup_id();
		if (threadIdx.x == 0) {
			for (int i = 0; i < shape::STAGES; i++) {
				barrier_make(&s.rest->full[i], 1);
				barrier_make(&s.rest->free[i], TILE_WARPS);
				barrier_make(&landed_barriers(s)[i], 1);
			}
			publish_barriers();
		}
		__syncthreads();
		if (w == 0) {
			registers_fewer<shape::FEW_REGISTERS>();
			if (threadIdx.x == 0)
				leaf_produce(x, s);
			if (threadIdx.x / WARP == 1)
				leaf_clear(x, s);
		} else {
			registers_more<shape::MANY_REGISTERS>();
			leaf_consume(x, s, w - 1);
		}
	} else {
		__trap(); /* PTX of another architecture, compiled by the driver */
	}
}

/* Two elements are stored at once. */
static bool leaves_aligned(const struct leaf_args *leaves, int n)
{
	uintptr_t all = 0;
	for (int i = 0; i < n; i++)
		all |= (uintptr_t)leaves->of[i].p;
	return all % 8 == 0;
}

static bool any_before(const struct leaf_args *leaves, int n)
{
	bool any = false;
	for (int i = 0; i < n; i++)
		any |= leaves->of[i].before != NULL;
	return any;
}

bool cuda_leaves_hopper(struct device *d, const struct leaf_args *leaves, int n,
	int64_t rows, struct mat dy, struct mat x, const struct row_groups *groups)
{
	constexpr const struct matmul_traits *how = &traits_of<shape, leaf_epilogue>;
	if (!cuda_lab_on(d, LAB_GROUPS) || !cuda_of(d)->map_encode)
		return false;
	/* (ptxas serializes matmuls whose sums begin with loaded numbers) */
	if (!matmul_supports(dy) || !matmul_supports(x) || !leaves_aligned(leaves, n) ||
		any_before(leaves, n))
		return false;
	const struct matmul_order order = matmul_tile_order(how, rows, x.cols, 0);
	int64_t items = wide_leaf_tiles(rows, x.cols, n);
	BUG_ON(!wide_tiles_fit(items) || items != (int64_t)order.items * n);
	const struct leaf_matmul args = {matmul_map(d, dy, PANEL),
		matmul_map(d, x, PANEL), *leaves, groups->offsets, (int)x.cols,
		(int)items, order};
	launch(d, "groups_bwd_w_wgmma",
		dim3((unsigned)min64(items, cuda_of(d)->multiprocessors)),
		dim3(HOPPER_THREADS), matmul_shared_bytes<shape>(), hopper_leaves, args);
	return true;
}
