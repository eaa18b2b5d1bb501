/* Sums over rows, by runs of consecutive rows. */
#pragma once

#include "kernels/cuda/vector.h"

struct column_runs {
	int64_t rows, n; /* rows of a run; number of runs */
};

/* Returns the runs of `rows` rows; row_elements: elements of the result of a run. */
struct column_runs cuda_column_runs(int64_t rows, int64_t row_elements);
/* The results of up to three sums over the same rows; NULL: not wanted. */
struct column_sums {
	float *out[3];
	int n;
};

/* Enqueues to->out[i] = the sum of part[run][i] over n runs; part[run][to->n][cols]. */
void cuda_join_runs(struct device *d, const char *name, int64_t cols,
	const struct column_sums *to, const float *part, int64_t n);

/* Stores a warp's N sums per lane in shared memory, with neighboring lanes in neighboring banks. */
template <int N>
static __device__ inline void store_warp_sums(
	float (&sums)[WARPS_PER_BLOCK][N * WARP], const float (&x)[N])
{
	for (int k = 0; k < N; k++)
		sums[warp_number()][k * WARP + lane_number()] = x[k];
}

/* Sets part[SUMS][cols] to the sums of the warps, in order, for columns [first, first + COLS). */
template <int SUMS, int COLS>
static __device__ inline void sum_over_warps(float *part,
	const float (&sums)[SUMS][WARPS_PER_BLOCK][COLS], int64_t first, int64_t cols)
{
	for (int at = (int)threadIdx.x; at < SUMS * COLS; at += THREADS) {
		int sum_index = at / COLS, slot = at % COLS;
		int64_t col = first + slot % WARP * (COLS / WARP) + slot / WARP;
		float total = 0;
		for (int w = 0; w < WARPS_PER_BLOCK; w++)
			total += sums[sum_index][w][slot];
		if (col < cols)
			part[sum_index * cols + col] = total;
	}
}
