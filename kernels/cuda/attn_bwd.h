/* Shared by the attention backwards of attn_bwd.cu and attn_hopper_bwd.cu. */
#pragma once

#include "kernels/cuda/attn.h"

struct bwd_args {
	struct heads q, k, v, o, dout, dq, dk, dv;
	const float *lse;
	float *delta;
	struct tile_runs q_runs, k_runs;
	int n_heads, group;
	float scale,
		score; /* factor of gradients; factor from q k^T to units of scores */
	struct drop drop;
	bool begin;
	struct starts starts;
};

/* Stores a warp's rows of a gradient times `scale`; adds them unless x.begin. */
template <typename T, int D, int MT>
static __device__ inline void store_gradient_tile(struct heads to,
	const struct bwd_args &x, int batch, int head, struct tile_span own, int row,
	const float (&c)[MT][D / 8][4], float scale)
{
	float factor[MT][2];
	for (int i = 0; i < MT * 2; i++)
		factor[i / 2][i % 2] = scale;
	store_tile_rows<T, D>(to, batch, head, own, row, c, factor, !x.begin);
}
