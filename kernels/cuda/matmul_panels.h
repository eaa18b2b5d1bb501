/* The panels of an epilogue: a warp's 16 rows and 64 columns of a tile, in shared memory. */
#pragma once

#include "kernels/cuda/matmul_tiles.h"

/* Returns two bf16 elements as floats. */
static __device__ inline float2 two_of(uint32_t bits)
{
	return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)};
}

/* Returns two floats, rounded to bf16. */
static __device__ inline float2 rounded(float low, float high)
{
	return two_of(both<__nv_bfloat16>(low, high));
}

template <typename S, typename E> struct matmul_panels {
	enum {
		PANELS = TILE_N / PANEL,
		PIECES = PANEL / 8,
		EACH = STORE_ROWS * PIECES / WARP
	};
	const struct matmul_args &x;
	const struct matmul_buffers<S> &s;
	const int w, warp, lane, g, t;
	int row, col;	     /* the first of the warp's results in this tile */
	int end;	     /* rows from this one on are not stored */
	float2 bias[PANELS]; /* bias of columns 64 j + 2 lane, + 1 */
	uint4 ahead[EACH];   /* the lane's pieces of the next panel of aux */

	__device__ inline matmul_panels(const struct matmul_args &x_,
		const struct matmul_buffers<S> &s_, int w_, int warp_)
	    : x(x_), s(s_), w(w_), warp(warp_), lane(lane_id()), g(lane_id() / 4),
	      t(lane_id() % 4)
	{
	}

	/* Returns panel buffer i of a warp. */
	__device__ inline __nv_bfloat16 *buffer(int of_warp, int i) const
	{
		return s.staged + of_warp * S::STAGED + i * STORE_PANEL;
	}

	/* ---- before the matmul: loads -------------------------------------------------- */

	/* Sets the warp's place in a tile, and starts the loads that its epilogue needs. */
	__device__ inline void begin(struct matmul_place at)
	{
		row = at.row + w * x.order.apart + warp % 4 * STORE_ROWS;
		col = at.col;
		end = E::GROUPS ? at.end : x.m;
		if constexpr (E::BIAS)
			load_bias();
		if constexpr (E::AUX == AUX_SLOPE)
			load_aux(0);
	}

	/* Loads this lane's bias of each panel; 0 without a bias. */
	__device__ inline void load_bias()
	{
#pragma unroll
		for (int j = 0; j < PANELS; j++) {
			int at = col + j * PANEL + 2 * lane;
			bool has_bias = x.bias && at < x.n; /* n is even */
			bias[j] = {0, 0};
			if (has_bias && x.wide_bias)
				bias[j] = __ldg((const float2 *)x.bias + at / 2);
			else if (has_bias)
				bias[j] =
					two_of(__ldg((const uint32_t *)x.bias + at / 2));
		}
	}

	/* Starts to load this lane's pieces of panel j of aux; 0 outside the matrix. */
	__device__ inline void load_aux(int j)
	{
#pragma unroll
		for (int i = 0; i < EACH; i++) {
			int r = row + (i * WARP + lane) / PIECES;
			int c = col + j * PANEL + lane % PIECES * 8;
			ahead[i] = {0, 0, 0, 0};
			if (r < x.m && c < x.n)
				ahead[i] = __ldg((
					const uint4 *)((const __nv_bfloat16 *)x.aux_rows +
						       (int64_t)r * x.n + c));
		}
	}

	/* ---- panels -------------------------------------------------------------------- */

	/* Blocks until the warp may overwrite the buffer of its store before the last one. */
	__device__ inline void wait_buffer() const
	{
		if (S::BY_TMA && lane == 0)
			stores_wait<1>();
		__syncwarp();
	}

	/* Sets `to` to panel j of aux, through a buffer, at the places of the lane's sums: word i
	 * of half h has columns 8 i + 2 t, + 1 of row g + 8 h. Starts to load the next panel. */
	__device__ inline void aux_panel(
		uint32_t (&to)[2][PIECES], __nv_bfloat16 *panel, int j)
	{
#pragma unroll
		for (int i = 0; i < EACH; i++)
			*(uint4 *)piece<PANEL>(panel, (i * WARP + lane) / PIECES,
				lane % PIECES) = ahead[i];
		if (j + 1 < PANELS)
			load_aux(j + 1);
		__syncwarp();
#pragma unroll
		for (int i = 0; i < PIECES; i++) {
			const __nv_bfloat16 *from = piece<PANEL>(panel, g, i) + 2 * t;
			to[0][i] = *(const uint32_t *)from;
			to[1][i] = *(const uint32_t *)(from + 8 * PANEL); /* same order */
		}
	}

	/* Moves the bias of panel j to the lanes that need it. */
	__device__ inline void bias_panel(float2 (&to)[PIECES], int j) const
	{
		float2 *all = (float2 *)s.rest->bias[warp];
		__syncwarp(); /* the panel before has been read */
		all[lane] = bias[j];
		__syncwarp();
#pragma unroll
		for (int i = 0; i < PIECES; i++)
			to[i] = all[4 * i + t];
	}

	/* Stores a panel of the result from a buffer to global memory. */
	__device__ inline void store(const CUtensorMap *map, void *rows,
		const __nv_bfloat16 *panel, int j) const
	{
		if (S::BY_TMA) {
			publish_stores();
			__syncwarp();
			if (lane == 0) {
				tile_store(map, panel, col + j * PANEL, 0, row, 0);
				stores_commit();
			}
			return;
		}
		__syncwarp();
#pragma unroll
		for (int i = 0; i < EACH; i++) {
			int r = (i * WARP + lane) / PIECES, c = lane % PIECES;
			uint4 v = *(const uint4 *)piece<PANEL>(panel, r, c);
			int at = col + j * PANEL + c * 8;
			if (row + r < end && at < x.n)
				*(uint4 *)((__nv_bfloat16 *)rows +
					   (int64_t)(row + r) * x.n + at) = v;
		}
		__syncwarp();
	}

	/* Writes the lane's elements to a panel buffer; v is laid out as in aux_panel(). */
	__device__ inline void write(
		__nv_bfloat16 *panel, const uint32_t (&v)[2][PIECES]) const
	{
#pragma unroll
		for (int i = 0; i < PIECES; i++) {
			__nv_bfloat16 *to = piece<PANEL>(panel, g, i) + 2 * t;
			*(uint32_t *)to = v[0][i];
			*(uint32_t *)(to + 8 * PANEL) = v[1][i];
		}
	}
};
