/* Packs: 16 bytes of a matrix, which one thread loads or stores in one access. */
#pragma once

#include "kernels/cuda/cuda.h"

/* Elements of a pack of T (where types are mixed: of the widest). */
template <typename T> constexpr int PER_PACK = 16 / (int)sizeof(T);

/* Returns true if rows of `cols` columns of all matrices p are aligned for packs of n; for vectors,
 * cols is 0. */
template <typename... T> static inline bool in_packs(int64_t cols, int n, const T *...p)
{
	return cols % n == 0 && (... && ((uintptr_t)p % (n * sizeof(T)) == 0));
}

/* N elements as stored in memory. A load is in flight until unpack(): a kernel that needs
 * several packs fetches all of them first. */
template <typename T, int N> struct alignas(sizeof(T) * N) packed {
	enum { IN_WORD = 4 / sizeof(T), BITS = 8 * sizeof(T) };
	uint32_t word[N / IN_WORD];
};

/* Returns up to `left` elements at p, then zeros. whole: p is aligned for packs. */
template <int N, typename T>
static __device__ inline packed<T, N> fetch(const T *p, int64_t left, bool whole)
{
	typedef packed<T, N> packs;
	packs r = {};
	if (whole && left >= N) {
		r = *(const packs *)p;
	} else if (left > 0) {
#pragma unroll
		for (int i = 0; i < N; i++) {
			uint32_t bits = 0;
			if (i < left)
				bits = sizeof(T) == 4 ? ((const uint32_t *)p)[i]
						      : ((const uint16_t *)p)[i];
			r.word[i / packs::IN_WORD] |= bits
						      << i % packs::IN_WORD * packs::BITS;
		}
	}
	return r;
}

template <int N>
static __device__ inline float number_of(const packed<float, N> &r, int i)
{
	return __uint_as_float(r.word[i]);
}

template <int N>
static __device__ inline float number_of(const packed<__nv_bfloat16, N> &r, int i)
{
	uint32_t w = r.word[i / 2];
	return __uint_as_float(i % 2 ? w & 0xffff0000u : w << 16);
}

template <int N>
static __device__ inline float number_of(const packed<__half, N> &r, int i)
{
	uint32_t w = r.word[i / 2];
	return __half2float(__ushort_as_half((uint16_t)(i % 2 ? w >> 16 : w)));
}

template <typename T, int N>
static __device__ inline void unpack(float (&x)[N], const packed<T, N> &r)
{
#pragma unroll
	for (int i = 0; i < N; i++)
		x[i] = number_of(r, i);
}

/* Sets x to up to `left` elements at p, as floats, then zeros. whole: p is aligned for packs. */
template <int N, typename T>
static __device__ inline void load(float (&x)[N], const T *p, int64_t left, bool whole)
{
	unpack(x, fetch<N>(p, left, whole));
}

/* Stores N elements as they are, or only the first `left`. whole: p is aligned for packs. */
template <int N, typename T>
static __device__ inline void store_bits(
	T *p, const pack<T, N> &v, int64_t left, bool whole)
{
	if (whole && left >= N) {
		*(pack<T, N> *)p = v;
	} else {
#pragma unroll
		for (int i = 0; i < N; i++)
			if (i < left)
				p[i] = v.x[i];
	}
}

/* Rounds N floats to T and stores them, or only the first `left`. whole: p is aligned for packs. */
template <int N, typename T>
static __device__ inline void store(T *p, const float (&x)[N], int64_t left, bool whole)
{
	pack<T, N> v;
#pragma unroll
	for (int i = 0; i < N; i++)
		v.x[i] = narrow<T>(x[i]);
	store_bits(p, v, left, whole);
}

/* Returns the elements of a matrix that must be fp32. */
static inline float *floats_of(struct mat m)
{
	BUG_ON(m.p && m.type != DT_F32);
	return (float *)m.p;
}
