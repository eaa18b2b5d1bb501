/* Dense matrices in the memory of a device: row-major, with shapes written [rows, cols]. Pointers
 * are borrowed. */
#pragma once

#include <stdalign.h>
#include <stddef.h>

#include "kernels/dtype.h"

/* In bytes. cuBLASLt rejects fp8 matmuls with scales of smaller alignment, though its heuristic
 * accepts them. */
enum { SCALE_ALIGN = 16 };

/* A row-major matrix in device memory, with elements stored as `type`. */
struct mat {
	void *p;
	int64_t rows, cols;
	enum dtype type;
	/* NULL, or a factor in device memory by which the elements must still be multiplied; only
	 * matmuls apply it. Aligned to SCALE_ALIGN. */
	const float *scale;
	/* fp8 only: NULL, or the transposed matrix, [cols, rows], for matmuls that sum over rows;
	 * p may then be NULL. In libcore/model, wider types: the buffer for a later cast to fp8. */
	void *transposed;
	/* NULL, or a number in device memory that the kernel which writes the matrix raises to the
	 * largest |element|, or to NaN, as `amax` does: round, norm_fwd, norm_bwd (for the copy),
	 * residual_norm, act_fwd and act_bwd. */
	float *amax;
	/* Elements from one row to the next; 0: cols. Larger if the matrix is a range of columns
	 * of a wider one, which only attention, rope, copy and head_norm_bwd_x (as dx) accept. */
	int64_t stride;
};

/* The amax of a matrix, and the `scale` of its cast to fp8. */
struct mat_scale {
	alignas(SCALE_ALIGN) float scale;
	float amax;
};

static inline struct mat_scale *mat_scale_of(float *amax)
{
	return (struct mat_scale *)(void *)((char *)amax -
					    offsetof(struct mat_scale, amax));
}

static inline struct mat mat(void *p, int64_t rows, int64_t cols)
{
	struct mat m = {p, rows, cols, DT_F32, NULL, NULL, NULL, 0};
	return m;
}

static inline struct mat mat_typed(void *p, int64_t rows, int64_t cols, enum dtype type)
{
	struct mat m = {p, rows, cols, type, NULL, NULL, NULL, 0};
	return m;
}

static inline int64_t mat_stride(struct mat m)
{
	return m.stride ? m.stride : m.cols;
}

/* Returns rows [first, first + rows) of m, without `transposed` and `amax`. */
static inline struct mat mat_rows(struct mat m, int64_t first, int64_t rows)
{
	m.p = (char *)m.p + first * mat_stride(m) * dtype_bytes(m.type);
	m.rows = rows;
	m.transposed = NULL;
	m.amax = NULL;
	return m;
}

/* Returns columns [first, first + cols) of m, without `transposed` and `amax`. */
static inline struct mat mat_cols(struct mat m, int64_t first, int64_t cols)
{
	m.stride = mat_stride(m);
	m.p = (char *)m.p + first * dtype_bytes(m.type);
	m.cols = cols;
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
