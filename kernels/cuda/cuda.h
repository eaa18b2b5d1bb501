/* Shared by the files of the CUDA plugin: the device, launches, and helper functions of
 * kernels. Kernels are `static __global__` functions next to the function of kernels.h that
 * launches them; C++ is used only for templates over number types and head sizes.
 *
 * The order of a floating-point sum is a function of the shapes alone: no floating-point
 * atomics, and the number of partial sums does not depend on the number of multiprocessors.
 * (Attention for sm_90 launches one block per multiprocessor, but each tile is summed by one
 * block, and its bits do not depend on which. Integers may add in any order.)
 *
 * With PT_EMULATED the same files are compiled for the CPU, with an emulator of the CUDA
 * runtime, where a thread of a block is a coroutine. For this, the headers that the emulator
 * replaces (inline assembly and the runtime, gpu_*.h) are in the directory ptx, which is an
 * include path only of the real build; shared memory is declared with SHARED(); and all lanes
 * of a warp take part in shuffles. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gpu_runtime.h>
#include <type_traits>

extern "C" {
#include "kernels/kernels.h"

#define KERNEL(type, name, ...) kern_##name cuda_##name;
#include "kernels/list.h"
}

enum { WARP = 32, DEFAULT_SHARED_BYTES = 48 << 10 };
#define ALL_LANES 0xffffffffu

/* ---- device.cu ---------------------------------------------------------------------- */

struct cuda_device;

/* Counters that the blocks of a launch share: items taken after the first of each block, and
 * blocks that ended. Zero between launches. */
struct attn_work {
	unsigned taken, ended;
};

/* Checks the result of a CUDA runtime call; an error ends the program with a message that
 * lists the last launches. */
void cuda_check(struct device *d, cudaError_t rc, const char *what);
cudaStream_t cuda_stream(struct device *d); /* the current stream */
/* Returns a grid of persistent blocks for n items: at most `blocks` per multiprocessor. */
dim3 cuda_persistent(struct device *d, int64_t n, int blocks);
/* Ends the program if a block cannot have n_bytes of shared memory on this device. */
void cuda_check_shared(struct device *d, const char *name, size_t n_bytes);
/* Returns temporary device memory for one function of kernels.h, such as partial sums: at most
 * CUDA_WORKSPACE bytes, SIDE_WORKSPACE in streams other than the device's own. Every call in a
 * stream returns the same memory, since the kernels of a stream run in order. */
enum { CUDA_WORKSPACE = 64 << 20 };
void *cuda_workspace(struct device *d, size_t n_bytes);
/* device_put(), device_get() and device_wait(). */
void cuda_put(struct device *d, void *to, const void *from, size_t n_bytes);
void cuda_get(struct device *d, void *to, const void *from, size_t n_bytes);
void cuda_wait(struct device *d);

/* What PT_LAB_OFF can disable and PT_LAB_ON can enable, explained in lab.cu. */
enum lab {
	LAB_SUMSQ = 1 << 0,
	LAB_AMAX_BLOCK = 1 << 1,
	LAB_BIAS = 1 << 2,
	LAB_ROPE = 1 << 3,
	LAB_ACT = 1 << 4,
	LAB_FLOAT8_RUNS = 1 << 5,
	LAB_DELTA = 1 << 6,
	LAB_ATTN_ITEM = 1 << 7,
	LAB_ATTN_STORE = 1 << 8,
	LAB_NORM_LOADS = 1 << 9,
	LAB_NORM_WARP = 1 << 10,
	LAB_ATTN_AHEAD = 1 << 11,
	LAB_ATTN_THREE = 1 << 12,
	LAB_ATTN_FIRST = 1 << 13,
	LAB_MATMUL = 1 << 14,
	LAB_MATMUL_GELU = 1 << 15,
	LAB_MATMUL_COLUMNS = 1 << 16,
	LAB_MATMUL_XENT = 1 << 17,
	LAB_GROUPS = 1 << 18
};
bool cuda_lab_off(const struct device *d, enum lab what);
bool cuda_lab_on(const struct device *d, enum lab what);

/* An argument of a launch, for error messages. */
struct cuda_arg {
	char kind; /* i, f, p; 0: not printed */
	union {
		int64_t i;
		double f;
		const void *p;
	};
};

struct cuda_launch {
	const char *name;	  /* name of the function of kernels.h; a literal */
	dim3 grid = 0, block = 0; /* 0: not a kernel */
	size_t shared_bytes = 0;
	int n_args = 0;
	struct cuda_arg args[28] = {};
};

/* Record an operation for error messages and profiles: to be called before and after each
 * operation that is enqueued. */
void cuda_before_launch(struct device *d, const struct cuda_launch *l);
void cuda_after_launch(struct device *d, const char *name);

/* ---- launches ----------------------------------------------------------------------- */

/* Returns a launch argument for error messages; structs have kind 0 and are not printed. */
template <typename T> static inline struct cuda_arg cuda_arg_of(T x)
{
	struct cuda_arg a = {};
	if constexpr (std::is_pointer<T>::value) {
		a.kind = 'p';
		a.p = (const void *)x;
	} else if constexpr (std::is_integral<T>::value) {
		a.kind = 'i';
		a.i = (int64_t)x;
	} else if constexpr (std::is_same<T, float>::value) {
		a.kind = 'f';
		a.f = (double)x;
	}
	return a;
}

/* Launches kernel(args...) in the current stream, and records it for error messages and profiles.
 * Does nothing for an empty grid; ends the program if the launch fails. */
template <typename... P, typename... A>
static inline void launch(struct device *d, const char *name, dim3 grid, dim3 block,
	size_t shared_bytes, void (*kernel)(P...), A... args)
{
	if (!grid.x || !grid.y || !grid.z)
		return;
	struct cuda_launch l = {name, grid, block, shared_bytes, (int)sizeof...(args),
		{cuda_arg_of(args)...}};
	cuda_before_launch(d, &l);
	if (shared_bytes > DEFAULT_SHARED_BYTES) {
		cuda_check_shared(d, name, shared_bytes);
		cuda_check(d,
			cudaFuncSetAttribute(kernel,
				cudaFuncAttributeMaxDynamicSharedMemorySize,
				(int)shared_bytes),
			name);
	}
#ifdef PT_EMULATED
	emu_pointer(name, NULL); /* for kernels with pointers only in structs */
	for (int i = 0; i < l.n_args; i++)
		if (l.args[i].kind == 'p')
			emu_pointer(name, l.args[i].p);
	emu_launch(
		grid, block, shared_bytes, [=] { kernel(args...); }, cuda_stream(d),
		(const void *)kernel);
#else
	kernel<<<grid, block, shared_bytes, cuda_stream(d)>>>(args...);
#endif
	cuda_check(d, cudaGetLastError(), name);
	cuda_after_launch(d, name);
}

/* Calls fn(T()) with the C++ type of a number format. */
template <typename F> static inline void call_by_type(enum dtype type, F fn)
{
	if (type == DT_F32)
		fn(float());
	else if (type == DT_BF16)
		fn(__nv_bfloat16());
	else if (type == DT_F16)
		fn(__half());
	else
		BUG_ON("a type that the kernel does not support");
}

/* ---- numbers ------------------------------------------------------------------------ */

static __device__ inline float widen(float x)
{
	return x;
}

static __device__ inline float widen(__nv_bfloat16 x)
{
	return __bfloat162float(x);
}

static __device__ inline float widen(__half x)
{
	return __half2float(x);
}

template <typename T> static __device__ inline T narrow(float x);

template <> __device__ inline float narrow(float x)
{
	return x;
}

template <> __device__ inline __nv_bfloat16 narrow(float x)
{
	return __float2bfloat16_rn(x);
}

template <> __device__ inline __half narrow(float x)
{
	return __float2half_rn(x);
}

/* N elements that one thread loads or stores in one access of up to 16 bytes. */
template <typename T, int N> struct alignas(sizeof(T) * N) pack {
	T x[N];
};

/* ---- warps -------------------------------------------------------------------------- */

/* Returns the sum over a warp, in all lanes, by a butterfly: the order of additions is fixed. */
template <typename T> static __device__ inline T warp_sum(T x)
{
	for (int i = WARP / 2; i; i /= 2)
		x += __shfl_xor_sync(ALL_LANES, x, i);
	return x;
}

/* Returns the maximum over a warp, in all lanes. */
static __device__ inline float warp_max(float x)
{
	for (int i = WARP / 2; i; i /= 2)
		x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, i));
	return x;
}
