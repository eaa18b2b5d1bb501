/* Normal numbers, bit-identical to kernels/cpu/normal.c: a thread computes four, of a Philox
 * block. */
#include "kernels/cuda/vector.h"
#include "kernels/normal.h"

/* Computes four numbers per thread, of one Philox block, and stores those that lie in the row. */
static __global__ void normal_kernel(
	float *x, int64_t rows, int64_t cols, int64_t tiles, struct normal o)
{
	struct vector_place at = pack_place(thread_number(), tiles * NORMAL_LANES, 1);
	if (at.row >= rows)
		return;
	int64_t first = o.rng.first + at.row * o.rng.row_step;
	int64_t tile = first / NORMAL_TILE + at.col / NORMAL_LANES;
	int64_t lane = at.col % NORMAL_LANES;
	uint64_t block = (uint64_t)(tile * NORMAL_LANES + lane);
	struct philox_block w =
		philox(o.rng.key, (uint32_t)block, (uint32_t)(block >> 32), 0, 0);
	float z[4];
	normal_pair(&z[0], &z[1], w.x[0], w.x[1]);
	normal_pair(&z[2], &z[3], w.x[2], w.x[3]);
#pragma unroll
	for (int j = 0; j < 4; j++) {
		int64_t i = tile * NORMAL_TILE + j * NORMAL_LANES + lane;
		int64_t col = i - first;
		if (col < 0 || col >= cols)
			continue;
		float number =
			normal_within(o.rng.key, (uint64_t)i, z[j], o.max_deviation);
		x[at.row * cols + col] = o.mean + o.std * number;
	}
}

/* Fills x with normal numbers, bit-identical to the CPU's. */
void cuda_normal(struct device *d, struct mat x, const struct normal *params)
{
	struct normal o = *params;
	o.rng.row_step = row_step(o.rng.row_step, x);
	if (o.rng.row_step == x.cols)
		x = mat(x.p, 1, mat_size(x));
	int64_t tiles = (x.cols + NORMAL_TILE - 2) / NORMAL_TILE + 1;
	launch(d, "normal", grid_of_packs(x.rows, tiles * NORMAL_LANES, 1), THREADS, 0,
		normal_kernel, floats_of(x), x.rows, x.cols, tiles, o);
}
