/* The tiles and grids of the matmuls of experts: host functions in C, so that a test can compute
 * them at the sizes of real models without running a kernel. */
#pragma once

#include "base/base.h"

/* A block computes GROUP_TILE_ROWS x GROUP_COLS elements, in steps of GROUP_TERMS terms. */
enum { GROUP_TILE_ROWS = 64, GROUP_COLS = 128, GROUP_TERMS = 32, GROUP_THREADS = 256 };
enum { LEAVES_AT_ONCE = 48 }; /* leaves of a launch, which fit into its arguments */

/* Rows [row, end) of a tile, which use this block of the weights; an empty range: no tile. */
struct group_tile {
	int block, row, end;
};

struct group_grid {
	int64_t x, y, z;
};

/* Returns the maximum number of tiles of tile_rows rows that `rows` rows of all blocks of weights
 * have: each block except one has a tile that is not full. */
static inline int64_t group_max_tiles(int64_t rows, int64_t blocks, int64_t tile_rows)
{
	return ceil_div(rows, tile_rows) + blocks - 1;
}

/* Returns the grid of a result with `cols` columns and n_tiles tiles of rows. */
static inline struct group_grid groups_grid(int64_t cols, int64_t n_tiles)
{
	return (struct group_grid){ceil_div(cols, GROUP_COLS), n_tiles, 1};
}

/* Returns the grid of one matrix, or of n matrices. */
static inline struct group_grid matrices_grid(int64_t rows, int64_t cols, int64_t n)
{
	return (struct group_grid){
		ceil_div(cols, GROUP_COLS), ceil_div(rows, GROUP_TILE_ROWS), n};
}

/* Returns the grid that ranks the slots of groups, `threads` slots per block. */
static inline struct group_grid slots_grid(
	int64_t groups, int64_t max_slots, int64_t threads)
{
	return (struct group_grid){groups, ceil_div(max_slots, threads), 1};
}

/* The tiles of the matmuls by warpgroups (groups_hopper.cu), which the blocks of a small grid
 * divide. */
enum { WIDE_TILE_ROWS = 128, WIDE_TILE_COLS = 256 };

/* Returns the tiles of a result with `cols` columns and n_tiles tiles of rows. */
static inline int64_t wide_tiles(int64_t n_tiles, int64_t cols)
{
	return n_tiles * ceil_div(cols, WIDE_TILE_COLS);
}

/* Returns the tiles of n leaves of at most `rows` rows. */
static inline int64_t wide_leaf_tiles(int64_t rows, int64_t cols, int64_t n)
{
	return n * wide_tiles(ceil_div(rows, WIDE_TILE_ROWS), cols);
}

/* Returns true if a kernel can count the tiles. */
static inline bool wide_tiles_fit(int64_t n)
{
	return n <= INT32_MAX / 2;
}

/* Returns true if a GPU can launch the grid. */
static inline bool group_grid_fits(struct group_grid g)
{
	return g.x <= INT32_MAX && g.y <= UINT16_MAX && g.z <= UINT16_MAX;
}
