/* Shared by the attention forwards of attn_fwd.cu and attn_hopper_fwd.cu. */
#pragma once

#include "kernels/cuda/attn.h"

struct fwd_args {
	struct heads o, q, k, v;
	float *max, *sum;
	struct tile_runs q_runs, k_runs;
	int n_heads, group;
	float score; /* factor from q k^T to units of scores */
	struct drop drop;
	bool begin, end;
	struct starts starts;
};

/* A lane's part of the online softmax of its rows: 2 in each of MT tiles. */
template <int D, int MT> struct running {
	float o[MT][D / 8][4];
	float top[MT][2]; /* the largest score so far, in units */
	float sum[MT][2]; /* sum over the keys of this lane's columns */
};

/* Starts an online softmax: no keys yet. */
template <int D, int MT>
static __device__ inline void init_running(struct running<D, MT> &a)
{
#pragma unroll
	for (int i = 0; i < MT * D / 2; i++)
		a.o[i / (D / 2)][i / 4 % (D / 8)][i % 4] = 0;
#pragma unroll
	for (int i = 0; i < MT * 2; i++) {
		a.top[i / 2][i % 2] = -INFINITY;
		a.sum[i / 2][i % 2] = 0;
	}
}

/* Returns the index of a row in max and sum. */
static __device__ inline int64_t state_index(
	const struct fwd_args &x, int batch, int head, struct tile_span s, int row)
{
	return ((int64_t)batch * x.n_heads + head) * x.q.rows + s.row + row;
}

/* Replaces scores by probabilities relative to the new running maximum, and updates a.top and
 * a.sum. Sets the factors `rescale` for a.o, which the caller applies. Returns false if all factors
 * of the warp are 1, as they usually are after the first keys. */
template <typename T, int D, int MT, int NT>
static __device__ inline bool softmax(struct running<D, MT> &a, float (&rescale)[MT][2],
	float (&s)[MT][NT][4], float score)
{
	bool fades = false;
#pragma unroll
	for (int i = 0; i < MT * 2; i++) {
		int m = i / 2, e = i % 2 * 2;
		float top = fmaxf(s[m][0][e], s[m][0][e + 1]);
#pragma unroll
		for (int n = 1; n < NT; n++)
			top = fmaxf(top, fmaxf(s[m][n][e], s[m][n][e + 1]));
		top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
		top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2));
		top = fmaxf(a.top[m][i % 2], top * score);
		float base = top == -INFINITY ? 0 : top, sum = 0;
		rescale[m][i % 2] = exp_units<T>(a.top[m][i % 2] - base);
		fades |= rescale[m][i % 2] != 1;
		a.top[m][i % 2] = top;
#pragma unroll
		for (int n = 0; n < NT; n++) {
			s[m][n][e] = exp_units<T>(fmaf(s[m][n][e], score, -base));
			s[m][n][e + 1] = exp_units<T>(fmaf(s[m][n][e + 1], score, -base));
			sum += s[m][n][e] + s[m][n][e + 1];
		}
		a.sum[m][i % 2] = fmaf(a.sum[m][i % 2], rescale[m][i % 2], sum);
	}
	return __any_sync(ALL_LANES, fades);
}

/* Multiplies each row of the output in registers by its factor. */
template <int D, int MT>
static __device__ inline void rescale_sums(
	struct running<D, MT> &a, const float (&rescale)[MT][2])
{
#pragma unroll
	for (int m = 0; m < MT; m++)
#pragma unroll
		for (int n = 0; n < D / 8; n++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				a.o[m][n][e] *= rescale[m][e / 2];
}

/* Stores the softmax state of these rows; sets the factor of their output. */
template <typename T, int D, int MT>
static __device__ inline void store_fwd_state(float (&factor)[MT][2],
	const struct running<D, MT> &a, const struct fwd_args &x, int batch, int head,
	struct tile_span own, int row)
{
	int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
	for (int i = 0; i < MT * 2; i++) {
		int r = row + 8 * i + g;
		float sum = a.sum[i / 2][i % 2], top = a.top[i / 2][i % 2];
		sum += __shfl_xor_sync(ALL_LANES, sum, 1);
		sum += __shfl_xor_sync(ALL_LANES, sum, 2);
		factor[i / 2][i % 2] = x.end ? 1 / sum : 1;
		if (t != 0 || r < own.from || r >= own.to)
			continue;
		int64_t at = state_index(x, batch, head, own, r);
		x.max[at] = x.end ? log_units<T>(top, sum) : top;
		x.sum[at] = sum;
	}
}

/* Stores the softmax state and the output of these rows. */
template <typename T, int D, int MT>
static __device__ inline void store_fwd_result(const struct running<D, MT> &a,
	const struct fwd_args &x, int batch, int head, struct tile_span own, int row)
{
	float factor[MT][2];
	store_fwd_state<T>(factor, a, x, batch, head, own, row);
	store_tile_rows<T, D>(x.o, batch, head, own, row, a.o, factor, false);
}
