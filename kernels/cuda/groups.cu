/* Matmuls of groups of rows, and of the router. */
#include "kernels/cuda/group_tiles.h"
#include "kernels/cuda/groups.h"

extern "C" {
#include "kernels/experts.h"
}

static dim3 checked_grid(struct group_grid g)
{
	BUG_ON(!group_grid_fits(g));
	return dim3((unsigned)g.x, (unsigned)g.y, (unsigned)g.z);
}

/* ---- matmuls of the router ------------------------------------------------------------- */

/* y = a b, or y += a b, in fp32, for operands of different types. */
template <typename SA, bool ACROSS_A, typename SB, bool ACROSS_B>
static __global__ void __launch_bounds__(GROUP_THREADS)
	mixed_matmul_kernel(struct group_result y, group_operand<SA, ACROSS_A> a,
		group_operand<SB, ACROSS_B> b, int64_t n_k, bool add)
{
	int64_t row = (int64_t)blockIdx.y * GROUP_TILE_ROWS;
	int64_t col = (int64_t)blockIdx.x * GROUP_COLS;
	group_sums<float> c = {};
	a.p += row * (ACROSS_A ? 1 : a.stride);
	b.p += col * (ACROSS_B ? 1 : b.stride);
	a.lines -= row;
	b.lines -= col;
	group_matmul<float>(c, a, b, n_k);
	c.each([&](int i, int j, float &x) {
		int64_t at = (row + i) * y.stride + col + j;
		if (i < a.lines && j < b.lines)
			set_result(y, at, add ? result_at(y, at) + x : x);
	});
}

template <typename SA, bool ACROSS_A, typename SB, bool ACROSS_B>
static void launch_mixed(struct device *d, const char *name, struct mat y, struct mat a,
	struct mat b, int64_t n_k, bool add)
{
	typedef group_side<float, SA, ACROSS_A, GROUP_TILE_ROWS> rows;
	typedef group_side<float, SB, ACROSS_B, GROUP_COLS> cols;
	const SA *p = (const SA *)a.p;
	const SB *q = (const SB *)b.p;
	const group_operand<SA, ACROSS_A> left = {
		p, a.cols, y.rows, in_packs(a.cols, rows::N, p)};
	const group_operand<SB, ACROSS_B> right = {
		q, b.cols, y.cols, in_packs(b.cols, cols::N, q)};
	const dim3 grid = checked_grid(matrices_grid(y.rows, y.cols, 1));
	launch(d, name, grid, GROUP_THREADS, 0,
		mixed_matmul_kernel<SA, ACROSS_A, SB, ACROSS_B>, group_result_of(y), left,
		right, n_k, add);
}

void cuda_router_logits(
	struct device *d, const char *name, float *logits, struct mat h, struct mat wr)
{
	struct mat z = mat(logits, h.rows, wr.rows);
	call_by_type(h.type, [&](auto t) {
		launch_mixed<decltype(t), false, float, false>(
			d, name, z, h, wr, h.cols, false);
	});
}

void cuda_route_bwd_x(struct device *d, struct mat dh, struct mat dz, struct mat wr)
{
	BUG_ON(dh.rows != dz.rows || dz.cols != wr.rows || dh.cols != wr.cols);
	launch_mixed<float, false, float, true>(
		d, "route_bwd_x", dh, dz, wr, dz.cols, true);
}

void cuda_route_bwd_w(struct device *d, struct mat dw, struct mat dz, struct mat h)
{
	BUG_ON(dw.rows != dz.cols || dw.cols != h.cols || dz.rows != h.rows);
	call_by_type(h.type, [&](auto t) {
		launch_mixed<float, true, decltype(t), true>(
			d, "route_bwd_w", dw, dz, h, h.rows, false);
	});
}

/* ---- rows of groups -------------------------------------------------------------------- */

enum { TABLE_THREADS = 256 };

static __device__ inline int block_begin(const struct row_groups &g, int64_t block)
{
	return g.offsets[block * g.per_block];
}

static __device__ inline int block_tiles(
	const struct row_groups &g, int64_t block, int tile_rows)
{
	int rows = block_begin(g, block + 1) - block_begin(g, block);
	return (rows + tile_rows - 1) / tile_rows;
}

/* Lists the tiles of all blocks of weights, after the empty ranges; a thread has every
 * TABLE_THREADS-th block. */
static __global__ void __launch_bounds__(TABLE_THREADS) list_tiles_kernel(
	struct group_tile *tiles, struct row_groups g, int n_tiles, int tile_rows)
{
	const int blocks = (int)(g.n / g.per_block);
	int at = n_tiles, next = 0;
	for (int b = 0; b < blocks; b++)
		at -= block_tiles(g, b, tile_rows);
	for (int i = (int)threadIdx.x; i < at; i += TABLE_THREADS)
		tiles[i] = {0, 0, 0};
	for (int b = (int)threadIdx.x; b < blocks; b += TABLE_THREADS) {
		for (; next < b; next++)
			at += block_tiles(g, next, tile_rows);
		int first = block_begin(g, b), end = block_begin(g, b + 1);
		for (int i = 0; i < block_tiles(g, b, tile_rows); i++) {
			int row = first + i * tile_rows;
			tiles[at + i] = {b, row, min(row + tile_rows, end)};
		}
	}
}

struct group_tiles cuda_list_tiles(
	struct device *d, const struct row_groups *groups, int64_t capacity, int rows)
{
	int64_t n = group_max_tiles(capacity, groups->n / groups->per_block, rows);
	struct group_tile *tiles =
		(struct group_tile *)cuda_workspace(d, (size_t)n * sizeof(*tiles));
	launch(d, "list_tiles", 1, TABLE_THREADS, 0, list_tiles_kernel, tiles, *groups,
		(int)n, rows);
	return {tiles, n};
}

/* y[i] = x[i] w^T, or x[i] w with ACROSS, for the rows and the block of a tile. */
template <typename T, bool ACROSS>
static __global__ void __launch_bounds__(GROUP_THREADS) groups_kernel(
	struct group_result y, group_operand<T, false> x, group_operand<T, ACROSS> w,
	int64_t block_size, int64_t n_k, const struct group_tile *tiles)
{
	const struct group_tile tile = tiles[blockIdx.y];
	int64_t col = (int64_t)blockIdx.x * GROUP_COLS;
	group_sums<T> c = {};
	if (tile.row == tile.end)
		return;
	x.p += tile.row * x.stride;
	x.lines = tile.end - tile.row;
	w.p += tile.block * block_size + col * (ACROSS ? 1 : w.stride);
	w.lines -= col;
	group_matmul<T>(c, x, w, n_k);
	c.each([&](int i, int j, float &v) {
		if (i < x.lines && j < w.lines)
			set_result(y, (tile.row + i) * y.stride + col + j, v);
	});
}

template <bool ACROSS>
static void multiply_groups(struct device *d, const char *name, struct mat y,
	struct mat x, struct mat w, const struct row_groups *g)
{
	int64_t blocks = g->n / g->per_block;
	BUG_ON(x.type != w.type || g->n % g->per_block || w.rows % blocks);
	if (cuda_groups_hopper(d, ACROSS, y, x, w, g))
		return;
	const struct group_tiles tiles = cuda_list_tiles(d, g, x.rows, GROUP_TILE_ROWS);
	const dim3 grid = checked_grid(groups_grid(y.cols, tiles.n));
	call_by_type(x.type, [&](auto t) {
		using T = decltype(t);
		const T *p = (const T *)x.p, *q = (const T *)w.p;
		const group_operand<T, false> left = {
			p, x.cols, 0, in_packs(x.cols, PER_PACK<T>, p)};
		const group_operand<T, ACROSS> right = {
			q, w.cols, y.cols, in_packs(w.cols, PER_PACK<T>, q)};
		launch(d, name, grid, GROUP_THREADS, 0, groups_kernel<T, ACROSS>,
			group_result_of(y), left, right, w.rows / blocks * w.cols, x.cols,
			tiles.list);
	});
}

void cuda_groups_fwd(struct device *d, struct mat y, struct mat x, struct mat w,
	const struct row_groups *groups)
{
	BUG_ON(x.cols != w.cols || y.cols * (groups->n / groups->per_block) != w.rows);
	multiply_groups<false>(d, "groups_fwd", y, x, w, groups);
}

void cuda_groups_bwd_x(struct device *d, struct mat dx, struct mat dy, struct mat w,
	const struct row_groups *groups)
{
	BUG_ON(dx.cols != w.cols || dy.cols * (groups->n / groups->per_block) != w.rows);
	multiply_groups<true>(d, "groups_bwd_x", dx, dy, w, groups);
}

/* ---- leaves ---------------------------------------------------------------------------- */

/* dw = dy^T x of the rows of one group. */
template <typename T>
static __global__ void __launch_bounds__(GROUP_THREADS)
	leaves_kernel(struct leaf_args leaves, group_operand<T, true> dy,
		group_operand<T, true> x, const int32_t *offsets)
{
	const auto &leaf = leaves.of[blockIdx.z];
	int64_t row = (int64_t)blockIdx.y * GROUP_TILE_ROWS;
	int64_t col = (int64_t)blockIdx.x * GROUP_COLS, cols = x.lines;
	int64_t first = offsets[leaf.group], n_k = offsets[leaf.group + 1] - first;
	const struct group_result dw = {leaf.p, (enum dtype)leaf.type, cols};
	group_sums<T> c = {};
	if (row >= leaf.rows)
		return;
	dy.p += first * dy.stride + leaf.first_col + row;
	dy.lines = leaf.rows - row;
	x.p += first * x.stride + col;
	x.lines -= col;
	if (leaf.before)
		c.each([&](int i, int j, float &v) {
			if (i < dy.lines && j < x.lines)
				v = leaf.before[(row + i) * cols + col + j];
		});
	group_matmul<T>(c, dy, x, n_k);
	c.each([&](int i, int j, float &v) {
		if (i < dy.lines && j < x.lines)
			set_result(dw, (row + i) * cols + col + j, v);
	});
}

/* Returns the arguments for n leaves, and their largest number of rows. */
static struct leaf_args args_of_leaves(
	const struct group_leaf *leaves, int n, struct mat x, int64_t *rows)
{
	struct leaf_args args = {};
	*rows = 0;
	for (int i = 0; i < n; i++) {
		const struct group_leaf *l = &leaves[i];
		BUG_ON(l->dw.cols != x.cols);
		args.of[i] = {l->dw.p, l->before, (int)l->group, (int)l->first_col,
			(int)l->dw.rows, (int)l->dw.type};
		*rows = max64(*rows, l->dw.rows);
	}
	return args;
}

/* Returns true if the columns of all leaves are aligned for packs of n. */
static bool columns_in_packs(const struct group_leaf *leaves, int n_leaves, int64_t n)
{
	bool whole = true;
	for (int i = 0; i < n_leaves; i++)
		whole &= leaves[i].first_col % n == 0;
	return whole;
}

void cuda_groups_bwd_w(struct device *d, const struct group_leaf *leaves, int n_leaves,
	struct mat dy, struct mat x, const struct row_groups *groups)
{
	BUG_ON(dy.type != x.type);
	call_by_type(x.type, [&](auto t) {
		using T = decltype(t);
		const T *p = (const T *)dy.p, *q = (const T *)x.p;
		bool whole = columns_in_packs(leaves, n_leaves, PER_PACK<T>);
		const group_operand<T, true> left = {
			p, dy.cols, 0, whole && in_packs(dy.cols, PER_PACK<T>, p)};
		const group_operand<T, true> right = {
			q, x.cols, x.cols, in_packs(x.cols, PER_PACK<T>, q)};
		for (int i = 0; i < n_leaves; i += LEAVES_AT_ONCE) {
			int n = (int)min64(LEAVES_AT_ONCE, n_leaves - i);
			int64_t rows;
			struct leaf_args args = args_of_leaves(leaves + i, n, x, &rows);
			if (cuda_leaves_hopper(d, &args, n, rows, dy, x, groups))
				continue;
			const dim3 grid = checked_grid(matrices_grid(rows, x.cols, n));
			launch(d, "groups_bwd_w", grid, GROUP_THREADS, 0,
				leaves_kernel<T>, args, left, right, groups->offsets);
		}
	});
}
