/* Tiles of matmuls for experts and their router. An element of a result is one chain of additions
 * in fp32 over its terms in steps of 16 (of 1 with fp32 operands), the last one filled up with
 * zeros. So its bits depend on its row, its column and the number of terms: not on the shape, which
 * is how many rows chose an expert. */
#pragma once

#include "kernels/cuda/mma.h"
#include "kernels/cuda/vector.h"

extern "C" {
#include "kernels/cuda/group_grid.h"
}

static_assert(GROUP_CUT % GROUP_TERMS == 0, "a leaf that continues begins with a step");

/* Rows or columns of terms in device memory: term k of line i is p[i * stride + k], or with ACROSS
 * p[k * stride + i]. */
template <typename S, bool ACROSS> struct group_operand {
	const S *p;
	int64_t stride, lines;
	bool whole; /* aligned for packs */
};

/* Loads GROUP_TERMS terms of LINES lines, first into registers, then into shared memory as T. */
template <typename T, typename S, bool ACROSS, int LINES> struct group_side {
	enum {
		N = 16 / (sizeof(T) > sizeof(S) ? sizeof(T) : sizeof(S)),
		WIDTH = ACROSS ? LINES : GROUP_TERMS,
		PITCH = WIDTH + 16 / sizeof(T),
		SIZE = (LINES * GROUP_TERMS / WIDTH) * PITCH,
		PACKS = LINES * GROUP_TERMS / N / GROUP_THREADS
	};
	packed<S, N> held[PACKS];

	static __device__ inline int line_of(int i)
	{
		return (i * GROUP_THREADS + (int)threadIdx.x) / (WIDTH / N);
	}

	static __device__ inline int place_of(int i)
	{
		return (i * GROUP_THREADS + (int)threadIdx.x) % (WIDTH / N) * N;
	}

	/* Terms [k, n_k) and lines that the operand lacks are 0. */
	__device__ inline void fetch_terms(
		const group_operand<S, ACROSS> &x, int64_t k, int64_t n_k)
	{
#pragma unroll
		for (int i = 0; i < PACKS; i++) {
			int64_t line = line_of(i), at = place_of(i), left;
			if (ACROSS) {
				left = k + line < n_k ? x.lines - at : 0;
				line += k;
			} else {
				left = line < x.lines ? n_k - k - at : 0;
				at += k;
			}
			held[i] = fetch<N>(left > 0 ? x.p + line * x.stride + at : x.p,
				left, x.whole);
		}
	}

	__device__ inline void store_terms(T *to) const
	{
#pragma unroll
		for (int i = 0; i < PACKS; i++) {
			float x[N];
			unpack(x, held[i]);
			store(to + line_of(i) * PITCH + place_of(i), x, (int64_t)N, true);
		}
	}

	static __device__ inline const T *address(const T *from, int line, int k)
	{
		return from + (ACROSS ? k * PITCH + line : line * PITCH + k);
	}
};

/* The elements of a tile that a thread computes: on tensor cores, a warp has 32 x 32. */
template <typename T> struct group_sums {
	enum { MT = 2, NT = 4, COL_WARPS = GROUP_COLS / (8 * NT) };
	float c[MT][NT][4];

	/* Calls fn(row, column, element) for each element. */
	template <typename F> __device__ inline void each(F fn)
	{
		int row = warp_number() / COL_WARPS * 16 * MT + lane_number() / 4;
		int col = warp_number() % COL_WARPS * 8 * NT + lane_number() % 4 * 2;
#pragma unroll
		for (int m = 0; m < MT; m++)
#pragma unroll
			for (int n = 0; n < NT; n++)
#pragma unroll
				for (int e = 0; e < 4; e++)
					fn(row + 16 * m + e / 2 * 8, col + 8 * n + e % 2,
						c[m][n][e]);
	}

	template <typename A, bool ACROSS>
	static __device__ inline void load_rows(
		uint32_t (&x)[4], const T *left, int row, int k)
	{
		int l = lane_number();
		if (ACROSS)
			ldmatrix_transposed(x, A::address(left, row + l / 8 % 2 * 8,
						       k + l / 16 * 8 + l % 8));
		else
			ldmatrix(x, A::address(left, row + l % 16, k + l / 16 * 8));
	}

	template <typename B, bool ACROSS>
	static __device__ inline void load_cols(
		uint32_t (&y)[4], const T *right, int col, int k)
	{
		int l = lane_number();
		if (ACROSS)
			ldmatrix_transposed(
				y, B::address(right, col + l / 16 * 8, k + l % 16));
		else
			ldmatrix(y, B::address(right, col + l / 16 * 8 + l % 8,
					    k + l / 8 % 2 * 8));
	}

	template <typename A, bool ACROSS_A, typename B, bool ACROSS_B>
	__device__ inline void multiply(const T *left, const T *right)
	{
		int row = warp_number() / COL_WARPS * 16 * MT;
		int col = warp_number() % COL_WARPS * 8 * NT;
#pragma unroll
		for (int k = 0; k < GROUP_TERMS; k += 16) {
			uint32_t x[MT][4], y[4];
#pragma unroll
			for (int m = 0; m < MT; m++)
				load_rows<A, ACROSS_A>(x[m], left, row + 16 * m, k);
#pragma unroll
			for (int n = 0; n < NT; n += 2) {
				load_cols<B, ACROSS_B>(y, right, col + 8 * n, k);
#pragma unroll
				for (int m = 0; m < MT; m++) {
					mma(c[m][n], x[m], y, T());
					mma(c[m][n + 1], x[m], y + 2, T());
				}
			}
		}
	}
};

/* In fp32: 4 rows and 8 columns, 16 apart. */
template <> struct group_sums<float> {
	enum { R = 4, C = 8, SIDE = GROUP_COLS / C };
	float c[R][C];

	template <typename F> __device__ inline void each(F fn)
	{
		int row = (int)threadIdx.x / SIDE * R, col = (int)threadIdx.x % SIDE;
#pragma unroll
		for (int i = 0; i < R; i++)
#pragma unroll
			for (int j = 0; j < C; j++)
				fn(row + i, col + SIDE * j, c[i][j]);
	}

	template <typename A, bool, typename B, bool>
	__device__ inline void multiply(const float *left, const float *right)
	{
		int row = (int)threadIdx.x / SIDE * R, col = (int)threadIdx.x % SIDE;
#pragma unroll 4
		for (int k = 0; k < GROUP_TERMS; k++) {
			float x[R], y[C];
#pragma unroll
			for (int i = 0; i < R; i++)
				x[i] = *A::address(left, row + i, k);
#pragma unroll
			for (int j = 0; j < C; j++)
				y[j] = *B::address(right, col + SIDE * j, k);
#pragma unroll
			for (int i = 0; i < R; i++)
#pragma unroll
				for (int j = 0; j < C; j++)
					c[i][j] = fmaf(x[i], y[j], c[i][j]);
		}
	}
};

/* c += a b over n_k terms. */
template <typename T, typename SA, bool ACROSS_A, typename SB, bool ACROSS_B>
static __device__ inline void group_matmul(group_sums<T> &c,
	const group_operand<SA, ACROSS_A> &a, const group_operand<SB, ACROSS_B> &b,
	int64_t n_k)
{
	typedef group_side<T, SA, ACROSS_A, GROUP_TILE_ROWS> rows;
	typedef group_side<T, SB, ACROSS_B, GROUP_COLS> cols;
	__shared__ __align__(16) T left[rows::SIZE], right[cols::SIZE];
	rows x;
	cols y;
	x.fetch_terms(a, 0, n_k);
	y.fetch_terms(b, 0, n_k);
	for (int64_t k = 0; k < n_k; k += GROUP_TERMS) {
		__syncthreads(); /* the last terms are read */
		x.store_terms(left);
		y.store_terms(right);
		__syncthreads();
		x.fetch_terms(a, k + GROUP_TERMS, n_k);
		y.fetch_terms(b, k + GROUP_TERMS, n_k);
		c.template multiply<rows, ACROSS_A, cols, ACROSS_B>(left, right);
	}
}

/* A result in device memory, of any type. */
struct group_result {
	void *p;
	enum dtype type;
	int64_t stride;
};

static __device__ inline float result_at(const struct group_result &y, int64_t i)
{
	return y.type == DT_F32	   ? ((const float *)y.p)[i]
	       : y.type == DT_BF16 ? widen(((const __nv_bfloat16 *)y.p)[i])
				   : widen(((const __half *)y.p)[i]);
}

static __device__ inline void set_result(const struct group_result &y, int64_t i, float x)
{
	if (y.type == DT_F32)
		((float *)y.p)[i] = x;
	else if (y.type == DT_BF16)
		((__nv_bfloat16 *)y.p)[i] = narrow<__nv_bfloat16>(x);
	else
		((__half *)y.p)[i] = narrow<__half>(x);
}

static inline struct group_result group_result_of(struct mat m)
{
	return {m.p, m.type, m.cols};
}
