/* Packs of numbers: 16 bytes of a matrix, which one thread loads or stores at once. */
#ifndef KERNELS_CUDA_PACK_H
#define KERNELS_CUDA_PACK_H

#include "kernels/cuda/cuda.h"

/* Of numbers of T, or of T and narrower ones. */
template <typename T> constexpr int PER_PACK = 16 / (int)sizeof(T);

/* Can rows of so many columns be read in packs of n? Of what has no rows, cols is 0. */
template <typename T> static inline bool in_packs(const T *p, int64_t cols, int n)
{
	return (uintptr_t)p % (n * sizeof(T)) == 0 && cols % n == 0;
}

/* N numbers as they lie in memory. What is fetched is on its way until it is unpacked: a
 * kernel that needs several packs fetches them all first. */
template <typename T, int N> struct alignas(sizeof(T) * N) packed {
	enum { IN_WORD = 4 / sizeof(T), BITS = 8 * sizeof(T) };
	uint32_t word[N / IN_WORD];
};

/* Up to `left` numbers, and zeros behind them. */
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

template <int N, typename T>
static __device__ inline void load(float (&x)[N], const T *p, int64_t left, bool whole)
{
	unpack(x, fetch<N>(p, left, whole));
}

/* Bits as they are. */
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

template <int N, typename T>
static __device__ inline void store(T *p, const float (&x)[N], int64_t left, bool whole)
{
	pack<T, N> v;
#pragma unroll
	for (int i = 0; i < N; i++)
		v.x[i] = narrow<T>(x[i]);
	store_bits(p, v, left, whole);
}

/* Of a matrix that has to be of fp32. */
static inline float *floats_of(struct mat m)
{
	BUG_ON(m.p && m.type != DT_F32);
	return (float *)m.p;
}

#endif
