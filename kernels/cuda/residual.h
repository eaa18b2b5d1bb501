/* Dropout and the residual sum of one pack, in registers. */
#pragma once

#include "kernels/cuda/vector.h"

/* Applies dropout to the N elements from `at` on. Philox blocks begin at multiples of 4 channels
 * of the whole tensor, but packs need not. The scaled value is rounded (no fma), so that
 * add_residual() gives the bits of the unfused kernels. */
template <int N>
static __device__ inline void apply_dropout(
	float (&x)[N], const struct dropout &o, struct vector_place at)
{
	const float p = o.p, keep = 1.0f / (1.0f - p);
	int64_t channel = o.first_col + at.col;
	struct vector_place in = pack_place(o.first_row + at.row, o.seq_rows, 1);
	uint32_t sample = (uint32_t)(o.first_sample + in.row);
	uint32_t pos = (uint32_t)o.pos[at.row], first = (uint32_t)(channel >> 2);
	uint32_t step = __ldg(o.step);
	int skip = (int)(channel & 3);
	uint32_t word[N + 4];
#pragma unroll
	for (int b = 0; b <= N / 4; b++) {
		struct philox_block r = {};
		if (b < N / 4 || skip)
			r = philox(o.key, first + (uint32_t)b, pos, sample, step);
		for (int i = 0; i < 4; i++)
			word[4 * b + i] = r.x[i];
	}
#pragma unroll
	for (int j = 0; j < N; j++) {
		uint32_t even = skip & 1 ? word[j + 1] : word[j];
		uint32_t odd = skip & 1 ? word[j + 3] : word[j + 2];
		x[j] = philox_uniform(skip & 2 ? odd : even) < p ? 0
								 : __fmul_rn(x[j], keep);
	}
}

/* Adds dropout(sum + bias) to x, for the N elements from `at` on. */
template <int N, typename T>
static __device__ inline void add_residual(float (&x)[N], const packed<T, N> &sum,
	const float *bias, const struct dropout &o, bool drops, struct vector_place at,
	int64_t left, bool whole)
{
	float v[N], b[N];
	unpack(v, sum);
	if (bias) {
		load(b, bias + at.col, left, whole);
		for (int j = 0; j < N; j++)
			v[j] += b[j];
	}
	if (drops)
		apply_dropout(v, o, at);
	for (int j = 0; j < N; j++)
		x[j] = x[j] + v[j];
}
