/* The tiles of matmul_hopper.h: their shape in shared memory, their order, and the kinds of
 * matmuls. */
#pragma once

#include "kernels/cuda/attn_hopper.h"
#include "kernels/cuda/cuda_internal.h"
#include "kernels/cuda/groups.h"
#include "kernels/cuda/matmul.h"

enum {
	TILE_M = 64 * CONSUMERS,
	TILE_N = MATMUL_TILE_N,
	TILE_WARPS = CONSUMERS * WARPGROUP / WARP,
	STORE_ROWS = 16,		  /* rows that a warp stores at once */
	STORE_PANEL = STORE_ROWS * PANEL, /* elements */
	LAG_TURN = 1,
	SUMS_TURN = 2 /* and 3 */, /* named barriers */
	LAG_STAGES = 2
};

/*
 * STAGES: stages of the ring, with 64 columns of both operands each. BY_TMA: TMA stores results,
 * not lanes with 16 bytes each. OVER: a warpgroup enqueues the matmuls of a stage before the
 * matmuls of the previous stage are complete. PAIR: clusters of two blocks compute neighboring rows
 * and the same columns of the result; each copies half of w's tile for both.
 */
template <int STAGE_COUNT, bool BY_TMA_, bool LAG_, bool OVER_, bool PAIR_>
struct matmul_shape {
	static constexpr int STAGES = STAGE_COUNT, BLOCKS = PAIR_ ? 2 : 1;
	static constexpr bool BY_TMA = BY_TMA_, LAG = LAG_, OVER = OVER_, PAIR = PAIR_;
	static constexpr int FEW_REGISTERS = 40, MANY_REGISTERS = 232;
	static constexpr int STAGE = (TILE_M + TILE_N) * PANEL; /* elements */
	static constexpr int STAGED = 2 * STORE_PANEL;		/* elements of a warp */
	static constexpr int TILES =
		(STAGES * STAGE + TILE_WARPS * STAGED) * 2; /* bytes */
	static_assert(registers_fit(FEW_REGISTERS, MANY_REGISTERS), "registers");
};

template <int STAGES> struct matmul_rest {
	float bias[TILE_WARPS][PANEL];
	uint64_t full[STAGES], free[STAGES];
};

/* The order of tiles: all rows of a section of columns, then the next section. So tiles that are
 * computed at the same time need few rows of x and w, which stay in the L2 cache. */
struct matmul_order {
	int m_tiles, n_tiles, section; /* columns of tiles */
	int items;
	/* An item is `pieces` tiles below each other. The rows of the second warpgroup begin
	 * `apart` rows after the rows of the first, and the rows of the next item `rows` later. */
	int rows, pieces, apart;
};

struct matmul_args {
	CUtensorMap x, w, y, aux;
	int m, n, steps;		 /* stages that a tile takes */
	const struct group_tile *groups; /* [m_tiles], with GROUPS: the tiles of rows */
	int block_rows;			 /* with GROUPS: rows of w per group */
	bool wide_bias;			 /* fp32, not bf16 */
	const void *bias;		 /* or NULL */
	void *y_rows, *aux_rows;	 /* [m][n] */
	float *part;			 /* [run][n]: the sums of the rows of a run */
	struct softmax_state *tiles;	 /* [m][n_tiles] */
	int real;			 /* columns that `tiles` counts */
	struct matmul_order order;
};

template <typename S> struct matmul_buffers {
	__nv_bfloat16 *x, *w,
		*staged; /* [STAGES][TILE_M][PANEL], [STAGES][TILE_N][PANEL] */
	struct matmul_rest<S::STAGES> *rest;

	__device__ inline explicit matmul_buffers(unsigned char *shared)
	{
		x = (__nv_bfloat16 *)align_tiles(shared);
		w = x + S::STAGES * TILE_M * PANEL;
		staged = w + S::STAGES * TILE_N * PANEL;
		rest = (struct matmul_rest<S::STAGES> *)(staged + TILE_WARPS * S::STAGED);
	}
};

/* ---- which tiles ---------------------------------------------------------------------- */

struct matmul_place {
	int row, col;	/* the first of the block's results */
	bool last;	/* the last piece of its item */
	int end, block; /* with GROUPS: rows [row, end) of a tile use this block of w */
};

template <typename S>
static __device__ inline struct matmul_place item_place(
	const struct matmul_order &o, int item)
{
	int per_section = o.section * o.m_tiles, first = item / per_section * o.section;
	int in_section = min(o.section, o.n_tiles - first), i = item % per_section;
	int tile = i / in_section * S::BLOCKS + (int)blockIdx.x % S::BLOCKS;
	return {tile * o.rows, (first + i % in_section) * TILE_N, false, 0, 0};
}

/* Calls fn(place) for each of the block's tiles. */
template <typename S, typename E, typename F>
static __device__ inline void for_each_tile(const struct matmul_args &x, F fn)
{
	for (int item = (int)blockIdx.x / S::BLOCKS; item < x.order.items;
		item += (int)gridDim.x / S::BLOCKS) {
		struct matmul_place at = item_place<S>(x.order, item);
		if constexpr (E::GROUPS) {
			const struct group_tile tile = x.groups[at.row / TILE_M];
			at = {tile.row, at.col, true, tile.end, tile.block};
			if (tile.row < tile.end)
				fn(at);
			continue;
		}
		for (int i = 1; i <= x.order.pieces; i++, at.row += GROUP_ROWS) {
			at.last = i == x.order.pieces;
			fn(at);
		}
	}
}

/* ---- kinds of matmuls ------------------------------------------------------------------- */

/* How a kind uses the matrix aux: it writes GELU's argument, multiplies by GELU's derivative there,
 * or adds the fp32 matrix. */
enum aux_use { AUX_NONE, AUX_GELU, AUX_SLOPE, AUX_STREAM };

template <bool TRANSPOSED_, enum aux_use AUX_ = AUX_NONE, bool SUMS_ = false,
	bool STATS_ = false>
struct epilogue_of {
	static constexpr bool TRANSPOSED = TRANSPOSED_; /* x w, not x w^T */
	static constexpr enum aux_use AUX = AUX_;
	static constexpr bool SUMS = SUMS_;   /* sums over the rows of the result */
	static constexpr bool STATS = STATS_; /* softmax statistics of the result */
	static constexpr bool BIAS = !TRANSPOSED && !STATS;
	static constexpr bool GROUPS = false; /* a block of w for each group of rows */
	static constexpr bool LEAVES = false; /* x^T w, not x w: see groups_hopper.cu */
};

template <enum matmul_kind KIND> struct epilogue_row;
#define EPILOGUE(kind, ...)                                                         \
	template <> struct epilogue_row<MATMUL_##kind> : epilogue_of<__VA_ARGS__> { \
	};
EPILOGUE(FWD, false)
EPILOGUE(GELU, false, AUX_GELU)
EPILOGUE(RESIDUAL, false, AUX_STREAM)
EPILOGUE(XENT, false, AUX_NONE, false, true)
EPILOGUE(BWD, true)
EPILOGUE(DGELU, true, AUX_SLOPE)
EPILOGUE(DGELU_SUMS, true, AUX_SLOPE, true)
#undef EPILOGUE
