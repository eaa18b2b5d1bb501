/* CUDA's kernel language for a CPU: a .cu file that includes this header and is compiled as
 * C++ runs its kernels on the CPU, one coroutine a thread, so that their arithmetic, indices
 * and barriers can be tested without a GPU. It says nothing about speed.
 *
 * Where CUDA leaves the order of threads and blocks open, it varies; undefined behaviour ends
 * the program with a message: a shuffle that some lanes of the warp do not reach, a barrier
 * that is not the same one for all threads, unordered accesses of two blocks. */
#pragma once

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define EMU_INSIDE __attribute__((visibility("hidden")))
/* Source position of a wait, for messages: by default that of the caller. */
#define EMU_WHERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

/* ---- emu.cc ------------------------------------------------------------------------- */

extern EMU_INSIDE uint3 threadIdx, blockIdx;
extern EMU_INSIDE dim3 blockDim, gridDim;
extern EMU_INSIDE int emu_lane; /* lane of the running thread in its warp */
static const int warpSize = 32;

/* Dynamic shared memory of the running block. */
extern EMU_INSIDE unsigned char *emu_shared;
#define SHARED(name) unsigned char *const name = emu_shared
/* Static shared memory is the library's thread-local memory, which has nothing else in it, so
 * that all of it can be found, and filled with NaN before each block. */
#undef __shared__
#define __shared__ static thread_local
/* __launch_bounds__ are kept as the number of no-operations before the kernel: 32 times the minimum
 * number of blocks, plus the warps of the largest block. */
static constexpr int emu_bounds(int threads, int blocks = 0)
{
	return blocks * 32 + (threads + 31) / 32;
}
#define __launch_bounds__(...)                   \
	__attribute__((patchable_function_entry( \
		emu_bounds(__VA_ARGS__), emu_bounds(__VA_ARGS__))))

/* Ends the program with a message that names the thread and the block. */
EMU_INSIDE __attribute__((noreturn, format(printf, 1, 2))) void emu_stop(
	const char *fmt, ...);
/* Enqueues a kernel: fn(arg) for each thread, with a copy of the argument. The launch is checked
 * against the attributes and bounds of `kernel`, if not NULL; cluster: blocks per cluster. */
EMU_INSIDE void emu_run(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
	const void *kernel, unsigned cluster, void (*fn)(void *), const void *arg,
	size_t n_bytes);
EMU_INSIDE void emu_barrier(const char *file, int line);
/* A warp-wide operation: called once, with the arguments of all lanes, when all have reached
 * it. */
typedef void emu_op(void *const lanes[32]);
EMU_INSIDE void emu_warp(
	emu_op *op, void *mine, const char *what, const char *file, int line);
/* Whether the n bytes at p are shared memory. */
EMU_INSIDE bool emu_is_shared(const void *p, size_t n);
EMU_INSIDE uint32_t emu_address(const void *p); /* of dynamic shared memory, 32 bits */

/* Checks a pointer argument of a kernel or matmul: host memory that a GPU cannot access ends
 * the program. */
EMU_INSIDE void emu_pointer(const char *name, const void *p);

template <typename F>
static inline void emu_launch(dim3 grid, dim3 block, size_t shared_bytes, F fn,
	cudaStream_t stream = NULL, const void *kernel = NULL, unsigned cluster = 1)
{
	static_assert(sizeof(F) <= 4096, "more arguments than a kernel can have");
	emu_run(
		grid, block, shared_bytes, stream, kernel, cluster,
		[](void *f) { (*(F *)f)(); }, &fn, sizeof(fn));
}

template <typename... P>
static inline cudaError_t cudaFuncSetAttribute(
	void (*kernel)(P...), enum cudaFuncAttribute attr, int value)
{
	return cudaFuncSetAttribute((const void *)kernel, attr, value);
}

/* The one attribute that is emulated is the number of blocks of a cluster, in x. */
EMU_INSIDE cudaError_t emu_cluster_of(const cudaLaunchConfig_t *how, unsigned *cluster);

#define cudaLaunchKernelEx emu_launch_ex
template <typename... P, typename... A>
static inline cudaError_t emu_launch_ex(
	const cudaLaunchConfig_t *how, void (*kernel)(P...), A... args)
{
	unsigned cluster;
	cudaError_t rc = emu_cluster_of(how, &cluster);
	if (!rc)
		emu_launch(
			how->gridDim, how->blockDim, how->dynamicSmemBytes,
			[=] { kernel(args...); }, how->stream, (const void *)kernel,
			cluster);
	return rc;
}

/* ---- barriers and shuffles ----------------------------------------------------------- */

struct emu_exchange {
	uint64_t value, result;
	int from; /* lane */
};
EMU_INSIDE emu_op emu_op_sync, emu_op_shuffle, emu_op_ballot;

static inline void emu_mask(unsigned mask, const char *file, int line)
{
	if (mask != 0xffffffffu)
		emu_stop("%s:%d: a mask that is not of all lanes", file, line);
}

static inline void __syncthreads(EMU_WHERE)
{
	emu_barrier(file, line);
}

static inline void __syncwarp(unsigned mask = 0xffffffffu, EMU_WHERE)
{
	emu_mask(mask, file, line);
	emu_warp(emu_op_sync, NULL, "__syncwarp", file, line);
}

template <typename T>
static inline T emu_shuffle(unsigned mask, T x, int from, const char *file, int line)
{
	static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles are of 32 or 64 bits");
	struct emu_exchange e = {0, 0, from};
	emu_mask(mask, file, line);
	memcpy(&e.value, &x, sizeof(x));
	emu_warp(emu_op_shuffle, &e, "a shuffle", file, line);
	memcpy(&x, &e.result, sizeof(x));
	return x;
}

/* `lane` if it is in the same group of `width` lanes, else the calling lane. */
static inline int emu_within(int lane, int width)
{
	int first = emu_lane / width * width;
	return lane >= first && lane < first + width ? lane : emu_lane;
}

template <typename T>
static inline T __shfl_sync(unsigned mask, T x, int lane, int width = 32, EMU_WHERE)
{
	int from = emu_lane / width * width + (lane & (width - 1));
	return emu_shuffle(mask, x, from, file, line);
}

template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T x, int with, int width = 32, EMU_WHERE)
{
	int from = emu_within(emu_lane ^ with, width);
	return emu_shuffle(mask, x, from, file, line);
}

template <typename T>
static inline T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = 32, EMU_WHERE)
{
	return emu_shuffle(mask, x, emu_within(emu_lane - (int)by, width), file, line);
}

template <typename T>
static inline T __shfl_down_sync(
	unsigned mask, T x, unsigned by, int width = 32, EMU_WHERE)
{
	return emu_shuffle(mask, x, emu_within(emu_lane + (int)by, width), file, line);
}

static inline unsigned __ballot_sync(unsigned mask, int yes, EMU_WHERE)
{
	struct emu_exchange e = {yes != 0, 0, 0};
	emu_mask(mask, file, line);
	emu_warp(emu_op_ballot, &e, "a ballot", file, line);
	return (unsigned)e.result;
}

static inline int __any_sync(unsigned mask, int yes, EMU_WHERE)
{
	return __ballot_sync(mask, yes, file, line) != 0;
}

static inline int __all_sync(unsigned mask, int yes, EMU_WHERE)
{
	return __ballot_sync(mask, yes, file, line) == 0xffffffffu;
}

#define __trap() emu_stop("%s:%d: __trap", __FILE__, __LINE__)

/* ---- races.cc ------------------------------------------------------------------------ */

/* Begins an atomic access, and with NULL ends it. */
EMU_INSIDE void emu_atomic(const void *p);
EMU_INSIDE void emu_fence(void);

static inline void __threadfence(void)
{
	emu_fence();
}

static inline void __threadfence_block(void)
{
}

/* ---- atomics ------------------------------------------------------------------------- */

#define EMU_ATOMIC(T, name, expression)         \
	static inline T atomic##name(T *p, T x) \
	{                                       \
		emu_atomic(p);                  \
		T old = *p;                     \
		*p = expression;                \
		emu_atomic(NULL);               \
		return old;                     \
	}
#define EMU_ATOMICS(T)                        \
	EMU_ATOMIC(T, Add, old + x)           \
	EMU_ATOMIC(T, Max, old > x ? old : x) \
	EMU_ATOMIC(T, Min, old < x ? old : x) \
	EMU_ATOMIC(T, Or, old | x)            \
	EMU_ATOMIC(T, And, old &x)            \
	EMU_ATOMIC(T, Exch, x)
EMU_ATOMICS(int)
EMU_ATOMICS(unsigned)
EMU_ATOMICS(unsigned long long)
#undef EMU_ATOMICS
#undef EMU_ATOMIC

/* ---- numbers ------------------------------------------------------------------------- */

template <typename To, typename From> static inline To emu_bits(From x)
{
	static_assert(sizeof(To) == sizeof(From), "bits of another size");
	To y;
	memcpy(&y, &x, sizeof(y));
	return y;
}

static inline unsigned __float_as_uint(float x)
{
	return emu_bits<unsigned>(x);
}

static inline int __float_as_int(float x)
{
	return emu_bits<int>(x);
}

static inline float __uint_as_float(unsigned x)
{
	return emu_bits<float>(x);
}

static inline float __int_as_float(int x)
{
	return emu_bits<float>(x);
}

static inline long long __double_as_longlong(double x)
{
	return emu_bits<long long>(x);
}

static inline double __longlong_as_double(long long x)
{
	return emu_bits<double>(x);
}

template <typename T> static inline T __ldg(const T *p)
{
	return *p;
}

template <typename T> static inline T __ldcs(const T *p)
{
	return *p;
}

template <typename T> static inline void __stcs(T *p, T x)
{
	*p = x;
}

static inline float rsqrtf(float x)
{
	return 1 / sqrtf(x);
}

static inline float __fdividef(float x, float y)
{
	return x / y;
}

/* A GPU has one NaN only. */
static inline float __fmul_rn(float x, float y)
{
	float r = x * y;
	return r == r ? r : emu_bits<float>(0x7fffffffu);
}

static inline float __frcp_rn(float x)
{
	return 1 / x;
}

/* (macros, since glibc has functions of these names) */
#define __expf(x) expf(x)
#define __logf(x) logf(x)

static inline unsigned __umulhi(unsigned x, unsigned y)
{
	return (unsigned)((uint64_t)x * y >> 32);
}

static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y)
{
	__extension__ typedef unsigned __int128 wide;
	return (unsigned long long)((wide)x * y >> 64);
}

static inline int __clz(int x)
{
	return x ? __builtin_clz((unsigned)x) : 32;
}

static inline int __clzll(long long x)
{
	return x ? __builtin_clzll((unsigned long long)x) : 64;
}

static inline int __popc(unsigned x)
{
	return __builtin_popcount(x);
}

static inline int __popcll(unsigned long long x)
{
	return __builtin_popcountll(x);
}

static inline int __ffs(int x)
{
	return __builtin_ffs(x);
}

#define EMU_LEAST(T)                  \
	static inline T min(T a, T b) \
	{                             \
		return a < b ? a : b; \
	}                             \
	static inline T max(T a, T b) \
	{                             \
		return a > b ? a : b; \
	}
EMU_LEAST(int)
EMU_LEAST(unsigned)
EMU_LEAST(long)
EMU_LEAST(unsigned long)
EMU_LEAST(long long)
EMU_LEAST(unsigned long long)
#undef EMU_LEAST

static inline float min(float a, float b)
{
	return fminf(a, b);
}

static inline float max(float a, float b)
{
	return fmaxf(a, b);
}

static inline double min(double a, double b)
{
	return fmin(a, b);
}

static inline double max(double a, double b)
{
	return fmax(a, b);
}

/* ---- asynchronous copies: see kernels/cuda/mma.h ------------------------------------- */

EMU_INSIDE void emu_copy(void *to, const void *from, bool there);
EMU_INSIDE void emu_copy_commit(void);
EMU_INSIDE void emu_copy_wait(int groups);
