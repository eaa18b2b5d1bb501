/* Dense matrices in the memory of a device: row-major, with shapes written [rows, cols]. Pointers
 * are borrowed. */
#ifndef KERNELS_MATRIX_H
#define KERNELS_MATRIX_H

#include "kernels/dtype.h"

/* A dense matrix somewhere in the device's memory, stored as `type` says. */
struct mat {
	void *p;
	int64_t rows, cols;
	enum dtype type;
	/* NULL, or in the device's memory what its numbers are yet to be multiplied by; only
	 * matmuls do that. */
	const float *scale;
	/* Of 8 bits: NULL, or the same numbers transposed, [cols, rows], for matmuls that sum over
	 * the rows, which then need not transpose them; p may be NULL beside it. In libcore/model a
	 * matrix of more bits has here what its cast to 8 bits will have. */
	void *transposed;
	/* NULL, or a number in the device's memory, which `round` raises to the largest |number| that
	 * it stores in the matrix, or to NaN, as `amax` does; on a device that stores numbers narrow,
	 * where nothing is left to be rounded, norm_fwd, norm_bwd (of the copy), residual_norm,
	 * act_fwd and act_bwd do too. */
	float *amax;
};

static inline struct mat mat(void *p, int64_t rows, int64_t cols)
{
	struct mat m = {p, rows, cols, DT_F32, NULL, NULL, NULL};
	return m;
}

static inline struct mat mat_typed(void *p, int64_t rows, int64_t cols, enum dtype type)
{
	struct mat m = {p, rows, cols, type, NULL, NULL, NULL};
	return m;
}

/* Rows [first, first + rows) of m, without what m has as a whole. */
static inline struct mat mat_rows(struct mat m, int64_t first, int64_t rows)
{
	m.p = (char *)m.p + first * m.cols * dtype_bytes(m.type);
	m.rows = rows;
	m.transposed = NULL;
	m.amax = NULL;
	return m;
}

static inline int64_t mat_size(struct mat m)
{
	return m.rows * m.cols;
}

static inline int64_t mat_bytes(struct mat m)
{
	return mat_size(m) * dtype_bytes(m.type);
}

static inline struct mat mat_take(
	struct arena *a, int64_t rows, int64_t cols, enum dtype type)
{
	struct mat m = mat_typed(NULL, rows, cols, type);
	m.p = arena_alloc(a, (size_t)mat_bytes(m));
	return m;
}

#endif
