/* Matrices of any type. A kernel computes with floats, in pieces of a row that stay in the L1
 * cache. A piece of an fp32 matrix is used in place; a piece of a narrower matrix is widened into
 * a buffer, and rounded when it is stored. */
#pragma once

#include "kernels/cpu/cpu.h"
#include "kernels/dtype_bits.h"

enum { PIECE = 512 }; /* elements, a multiple of 16 */

/* round.c: widens n elements to fp32, and rounds fp32 to nearest; for types other than fp32. */
void K(widen_run)(float *y, const void *x, enum dtype type, int64_t n);
void K(narrow_run)(void *y, enum dtype type, const float *x, int64_t n);

typedef uint32_t v16u __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t v16h __attribute__((vector_size(32), aligned(2), may_alias));

static inline v16 load_bf16(const uint16_t *p)
{
	return (v16)(__builtin_convertvector(*(const v16h *)p, v16u) << 16);
}

/* Rounds 16 elements as narrow_bits() does, in fewer instructions than GCC's code for a loop. */
static inline void store_bf16(uint16_t *p, v16 x)
{
	v16u u = (v16u)x, nan = (v16u)((u & ~SIGN_BIT) > INFINITE);
	v16u nearest = (u + 0x7fffu + (u >> 16 & 1)) >> 16, quiet = u >> 16 | 0x40u;
	*(v16h *)p = __builtin_convertvector((nearest & ~nan) | (quiet & nan), v16h);
}

/* Raises *y.amax to the largest |element| of y, unless it is NULL. */
static inline void raise_amax(struct device *d, struct mat y)
{
	if (y.amax)
		K(amax)(d, y.amax, y);
}

static inline void *element_address(struct mat m, int64_t at)
{
	return (char *)m.p + at * dtype_bytes(m.type);
}

/* Returns where to compute the elements from `at` on, before piece_store(); NULL if m.p is NULL. */
static inline float *piece_or_buffer(struct mat m, int64_t at, float buf[PIECE])
{
	return !m.p ? NULL : m.type == DT_F32 ? (float *)m.p + at : buf;
}

/* Returns elements [at, at + n) as floats; NULL if m.p is NULL. */
static inline float *piece_load(struct mat m, int64_t at, int64_t n, float buf[PIECE])
{
	if (m.p && m.type != DT_F32)
		K(widen_run)(buf, element_address(m, at), m.type, n);
	return piece_or_buffer(m, at, buf);
}

static inline void piece_store(struct mat m, int64_t at, int64_t n, const float *x)
{
	if (m.p && m.type != DT_F32)
		K(narrow_run)(element_address(m, at), m.type, x, n);
}
