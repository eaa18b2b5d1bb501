/* The epilogues of matmul_hopper.h, which each warp computes for its 16 rows of a tile, one panel
 * at a time. Traits of the kind select the code. All values are rounded, and sums are added, as the
 * separate kernels do it. */
#pragma once

#include "kernels/cuda/gelu.h"
#include "kernels/cuda/matmul_panels.h"
#include "kernels/cuda/softmax.h"

template <typename S, typename E> struct matmul_epilogue : matmul_panels<S, E> {
	typedef matmul_panels<S, E> panels;
	using panels::buffer, panels::wait_buffer, panels::store, panels::write;
	using panels::panels, panels::PANELS, panels::PIECES, panels::x, panels::w;
	using panels::warp, panels::lane, panels::g, panels::t, panels::row, panels::col;
	float sums[TILE_N / PANEL][4] =
		{}; /* sums of the thread's columns; see add_rows() */

	/* Computes and stores the results of the warp's rows of a tile from its sums c. */
	__device__ inline void finish(float (&c)[TILE_N / 8][4], struct matmul_place at)
	{
#pragma unroll
		for (int j = 0; j < PANELS; j++)
			if constexpr (E::AUX == AUX_STREAM)
				add_stream(c, j);
			else
				finish_panel(c, j);
		if constexpr (E::STATS)
			store_stats(c);
		if constexpr (E::SUMS)
			if (at.last)
				store_sums();
	}

	/* Computes and stores panel j of the result. With STATS, c becomes the rounded result. */
	__device__ inline void finish_panel(float (&c)[TILE_N / 8][4], int j)
	{
		__nv_bfloat16 *panel = buffer(warp, E::AUX == AUX_GELU ? 0 : j % 2);
		float2 b[PIECES] = {};
		uint32_t v[2][PIECES], a[2][PIECES] = {};
		if constexpr (E::BIAS)
			this->bias_panel(b, j);
		wait_buffer();
		if constexpr (E::AUX == AUX_SLOPE)
			this->aux_panel(a, panel, j);
#pragma unroll
		for (int i = 0; i < PIECES; i++)
#pragma unroll
			for (int h = 0; h < 2; h++) {
				float(&acc)[4] = c[j * PIECES + i];
				float low = acc[2 * h] + b[i].x,
				      high = acc[2 * h + 1] + b[i].y;
				v[h][i] = result(low, high, a[h][i]);
				if constexpr (E::STATS) {
					acc[2 * h] = two_of(v[h][i]).x;
					acc[2 * h + 1] = two_of(v[h][i]).y;
				}
			}
		write(panel, v);
		if constexpr (E::AUX == AUX_GELU) {
			store(&x.aux, x.aux_rows, panel, j);
#pragma unroll
			for (int i = 0; i < PIECES * 2; i++) {
				float2 two = two_of(v[i % 2][i / 2]);
				v[i % 2][i / 2] =
					both<__nv_bfloat16>(gelu_tanh<true>(two.x, 0),
						gelu_tanh<true>(two.y, 0));
			}
			panel = buffer(warp, 1);
			wait_buffer();
			write(panel, v);
		}
		store(&x.y, x.y_rows, panel, j);
		if constexpr (E::SUMS)
			add_rows(j);
	}

	/* Returns two elements of the result, or of GELU's argument. */
	__device__ inline uint32_t result(float low, float high, uint32_t aux) const
	{
		if constexpr (E::AUX == AUX_SLOPE) {
			float2 up = rounded(low, high), a = two_of(aux);
			float unused = 0;
			low = up.x * gelu_tanh_slope<true>(a.x, unused);
			high = up.y * gelu_tanh_slope<true>(a.y, unused);
		}
		return both<__nv_bfloat16>(low, high);
	}

	/* Stores y = aux + (round(c) + bias) for panel j, in fp32. */
	__device__ inline void add_stream(float (&c)[TILE_N / 8][4], int j) const
	{
		float2 b[PIECES];
		this->bias_panel(b, j);
#pragma unroll
		for (int i = 0; i < PIECES; i++)
#pragma unroll
			for (int h = 0; h < 2; h++) {
				const float(&acc)[4] = c[j * PIECES + i];
				int r = row + g + 8 * h,
				    at = col + j * PANEL + 8 * i + 2 * t;
				int64_t place = (int64_t)r * x.n + at;
				if (r >= x.m || at >= x.n)
					continue;
				float2 sum = rounded(acc[2 * h] + 0, acc[2 * h + 1] + 0);
				float2 to = *(const float2 *)((const float *)x.aux_rows +
							      place);
				if (x.bias)
					sum = {sum.x + b[i].x, sum.y + b[i].y};
				*(float2 *)((float *)x.y_rows + place) = {
					to.x + sum.x, to.y + sum.y};
			}
	}

	/* Stores the softmax statistics of the warp's rows. */
	__device__ inline void store_stats(const float (&c)[TILE_N / 8][4]) const
	{
#pragma unroll
		for (int h = 0; h < 2; h++) {
			int r = row + g + 8 * h;
			struct softmax_state state = softmax_of_tile(c, h, x.real - col);
			if (t == 0 && r < x.m)
				x.tiles[(int64_t)r * x.order.n_tiles + col / TILE_N] =
					state;
		}
	}

	/* ---- sums over rows -------------------------------------------------------------
	 *
	 * columns.cu cuts the rows into runs, and adds every eighth row of a run in ascending
	 * order, then the eight sums. A warpgroup has all tiles of a run, one after the other. A thread
	 * adds the rows of one residue modulo 8, in 4 columns of each panel. */

	/* Adds panel j's rows to `sums`, once all warps of the warpgroup have stored them. */
	__device__ inline void add_rows(int j)
	{
		enum { ROWS = GROUP_ROWS / 8 };
		int thread = (int)threadIdx.x % WARPGROUP, first = thread / 16;
		int c = thread % 16 * 4, left = x.m - (row - warp % 4 * STORE_ROWS);
		turn_wait(SUMS_TURN + w, WARPGROUP);
#pragma unroll
		for (int k = 0; k < ROWS; k++) {
			const __nv_bfloat16 *panel = buffer(4 * w + k / 2, j % 2);
			uint2 v = *(const uint2 *)(piece<PANEL>(panel, first + k % 2 * 8,
							   c / 8) +
						   c % 8);
			if (first + 8 * k >= left)
				continue;
			float2 low = two_of(v.x), high = two_of(v.y);
			sums[j][0] += low.x;
			sums[j][1] += low.y;
			sums[j][2] += high.x;
			sums[j][3] += high.y;
		}
	}

	/* Adds the eight sums of each column, and stores the results of the run. The first buffer
	 * of warp j of the warpgroup has the sums of panel j. */
	__device__ inline void store_sums()
	{
		int thread = (int)threadIdx.x % WARPGROUP,
		    rows = x.order.pieces * GROUP_ROWS;
		int run = row / rows; /* which begins before row m, or has no result */
		if (lane == 0)
			stores_wait<0>();
		turn_wait(SUMS_TURN + w, WARPGROUP); /* all buffers have been read */
#pragma unroll
		for (int j = 0; j < PANELS; j++) {
			float4 *to = (float4 *)buffer(4 * w + j, 0) + thread;
			*to = {sums[j][0], sums[j][1], sums[j][2], sums[j][3]};
			sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0;
		}
		turn_wait(SUMS_TURN + w, WARPGROUP);
#pragma unroll
		for (int i = 0; i < TILE_N / WARPGROUP; i++) {
			int c = i * WARPGROUP + thread;
			const float *parts =
				(const float *)buffer(4 * w + c / PANEL, 0) + c % PANEL;
			float total = 0;
#pragma unroll
			for (int k = 0; k < 8; k++)
				total += parts[k * PANEL];
			if (run * rows < x.m && col + c < x.n)
				x.part[(int64_t)run * x.n + col + c] = total;
		}
		turn_wait(SUMS_TURN + w, WARPGROUP);
	}
};
