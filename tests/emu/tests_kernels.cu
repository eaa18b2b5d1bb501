/* Tests of the emulator: results and detected errors of kernels. */
#include "kernels/cuda/mma.h"
#include "tests/emu/tests.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static float numbers(int i)
{
	return (float)(i * 7919 % 31 - 15);
}

/* ---- barriers and shuffles ----------------------------------------------------------- */

static __global__ void sum_kernel(float *out, const float *x, int n)
{
	__shared__ float part[WARP];
	float s = 0;
	for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
		s += x[(int64_t)blockIdx.x * n + i];
	s = warp_sum(s);
	if (threadIdx.x % WARP == 0)
		part[threadIdx.x / WARP] = s;
	__syncthreads();
	if (threadIdx.x >= WARP)
		return;
	s = warp_sum(threadIdx.x < blockDim.x / WARP ? part[threadIdx.x] : 0);
	if (threadIdx.x == 0)
		out[blockIdx.x] = s;
}

static bool sums(void)
{
	const int n = 1000, rows = 9;
	float x[n * rows], y[rows];
	for (int i = 0; i < n * rows; i++)
		x[i] = numbers(i);
	for (unsigned threads = WARP; threads <= 1024; threads *= 2) {
		emu_launch(dim3(rows), dim3(threads), 0, [&] { sum_kernel(y, x, n); });
		for (int r = 0; r < rows; r++) {
			float s = 0;
			for (int i = 0; i < n; i++)
				s += x[r * n + i];
			EMU_EXPECT(s == y[r]);
		}
	}
	return true;
}

/* The threads' numbers move around the block; a missing barrier loses one. */
static __global__ void walk_kernel(int *x, int steps, bool barrier)
{
	SHARED(room);
	int *at = (int *)room;
	int i = (int)threadIdx.x, n = (int)blockDim.x;
	at[i] = i;
	__syncthreads();
	for (int s = 0; s < steps; s++) {
		int y = at[(i + 1) % n];
		if (barrier)
			__syncthreads();
		at[i] = y;
		__syncthreads();
	}
	x[(int)blockIdx.x * n + i] = at[i];
}

static bool walked(int blocks, int n, int steps, bool barrier)
{
	int x[blocks * n];
	emu_launch(dim3((unsigned)blocks), dim3((unsigned)n), (size_t)n * sizeof(int),
		[&] { walk_kernel(x, steps, barrier); });
	for (int i = 0; i < blocks * n; i++)
		if (x[i] != (i % n + steps) % n)
			return false;
	return true;
}

static bool barriers(void)
{
	EMU_EXPECT(walked(5, 96, 20, true));
	EMU_EXPECT(walked(2, 1024, 7, true));
	EMU_EXPECT(walked(3, 5, 3, true)); /* not whole warps */
	return true;
}

/* Without the barrier, some thread reads a wrong number. */
static bool missing_barriers(void)
{
	EMU_EXPECT(!walked(1, 96, 1, false));
	EMU_EXPECT(!walked(1, 32, 1, false));
	EMU_EXPECT(!walked(2, 64, 3, false));
	return true;
}

static __global__ void early_kernel(float *out)
{
	SHARED(room);
	float *at = (float *)room;
	if (threadIdx.x == 0) /* the first thread of a block that runs in order */
		at[0] = 1;
	out[(int)(blockIdx.x * blockDim.x + threadIdx.x)] = at[0];
}

/* One thread writes and all read: detected, since not every block runs in order. */
static bool early_reads(void)
{
	float out[2 * 64];
	emu_launch(dim3(2), dim3(64), 4, [&] { early_kernel(out); });
	int missed = 0;
	for (float x : out)
		missed += x != 1;
	EMU_EXPECT(missed >= 32);
	return true;
}

static __global__ void stale_kernel(float *out, bool write)
{
	__shared__ float at[WARP];
	if (write)
		at[threadIdx.x] = 1;
	out[threadIdx.x] = at[threadIdx.x];
}

/* Static shared memory does not keep the values of the block before. */
static bool stale_memory(void)
{
	float out[WARP];
	emu_launch(dim3(1), dim3(WARP), 0, [&] { stale_kernel(out, true); });
	EMU_EXPECT(out[0] == 1 && out[31] == 1);
	emu_launch(dim3(1), dim3(WARP), 0, [&] { stale_kernel(out, false); });
	EMU_EXPECT(isnan(out[0]) && isnan(out[31]));
	return true;
}

static __global__ void shuffle_kernel(int64_t *out, int width)
{
	int lane = (int)threadIdx.x % WARP;
	int64_t *to = out + 8 * threadIdx.x, x = ((int64_t)threadIdx.x << 40) + lane;
	to[0] = __shfl_sync(ALL_LANES, x, lane * 5, width);
	to[1] = __shfl_up_sync(ALL_LANES, x, 3, width);
	to[2] = __shfl_down_sync(ALL_LANES, x, 3, width);
	to[3] = __shfl_xor_sync(ALL_LANES, x, 5, width);
	to[4] = __ballot_sync(ALL_LANES, lane % 3 == 1);
	to[5] = __any_sync(ALL_LANES, lane == 31);
	to[6] = __all_sync(ALL_LANES, lane != 31);
	to[7] = __shfl_xor_sync(ALL_LANES, (float)lane, 31) == (float)(31 - lane);
}

static bool shuffles(void)
{
	int64_t out[64][8];
	for (int width = 4; width <= 32; width *= 2) {
		emu_launch(dim3(1), dim3(64), 0, [&] { shuffle_kernel(out[0], width); });
		for (int i = 0; i < 64; i++) {
			int lane = i % 32, first = lane / width * width;
			int want[4] = {first + lane * 5 % width,
				lane - 3 < first ? lane : lane - 3,
				lane + 3 >= first + width ? lane : lane + 3,
				(lane ^ 5) >= first + width || (lane ^ 5) < first
					? lane
					: lane ^ 5};
			for (int j = 0; j < 4; j++)
				EMU_EXPECT(
					out[i][j] ==
					((int64_t)(i - lane + want[j]) << 40) + want[j]);
			EMU_EXPECT(out[i][4] == 0x92492492);
			EMU_EXPECT(out[i][5] == 1 && out[i][6] == 0 && out[i][7] == 1);
		}
	}
	return true;
}

static __global__ void where_kernel(int *count)
{
	int64_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
	int64_t thread =
		threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
	count[block * blockDim.x * blockDim.y * blockDim.z + thread]++;
	atomicAdd(&count[2 * 3 * 4 * 60], 1);
}

static bool indices(void)
{
	int count[2 * 3 * 4 * 60 + 1] = {0};
	emu_launch(dim3(2, 3, 4), dim3(3, 4, 5), 0, [&] { where_kernel(count); });
	for (int i = 0; i < 2 * 3 * 4 * 60; i++)
		EMU_EXPECT(count[i] == 1);
	EMU_EXPECT(count[2 * 3 * 4 * 60] == 2 * 3 * 4 * 60);
	return true;
}

/* ---- tensor cores, copies ------------------------------------------------------------ */

/* c[16, 8] = a[16, 16] times b, which is [8, 16], or [16, 8] if `transposed`. */
template <typename T>
static __global__ void product_kernel(
	float *c, const T *a, const T *b, bool transposed, bool wait)
{
	SHARED(room);
	T *x = (T *)room, *y = x + 16 * 16;
	int lane = (int)threadIdx.x, g = lane / 4, t = lane % 4;
	uint32_t fa[4], fb[4];
	float sum[4] = {1, 1, 1, 1};
	copy_async(x + 8 * lane, a + 8 * lane, true);
	copy_commit();
	copy_async(y + 8 * lane, b + 8 * (lane % 16), lane < 16);
	copy_commit();
	if (wait)
		copy_wait<0>();
	else
		copy_wait<1>();
	__syncwarp();
	ldmatrix(fa, x + lane % 16 * 16 + lane / 16 * 8);
	if (transposed)
		ldmatrix_transposed(fb, y + lane % 16 * 8);
	else
		ldmatrix(fb, y + lane % 8 * 16 + lane / 8 % 2 * 8);
	mma(sum, fa, fb, T());
	for (int i = 0; i < 4; i++)
		c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];
}

template <typename T> static bool products_of(bool transposed)
{
	alignas(16) T a[16 * 16], b[16 * 8];
	float c[16 * 8];
	for (int i = 0; i < 16 * 16; i++)
		a[i] = narrow<T>(numbers(i));
	for (int i = 0; i < 16 * 8; i++)
		b[i] = narrow<T>(numbers(i + 1000));
	emu_launch(dim3(1), dim3(WARP), 2 * 32 * 16,
		[&] { product_kernel<T>(c, a, b, transposed, true); });
	for (int i = 0; i < 16; i++)
		for (int j = 0; j < 8; j++) {
			float s = 1;
			for (int k = 0; k < 16; k++)
				s += widen(a[i * 16 + k]) *
				     widen(transposed ? b[k * 8 + j] : b[j * 16 + k]);
			EMU_EXPECT(c[i * 8 + j] == s);
		}
	emu_launch(dim3(1), dim3(WARP), 2 * 32 * 16,
		[&] { product_kernel<T>(c, a, b, transposed, false); });
	for (float x : c)
		EMU_EXPECT(isnan(x)); /* no wait for b */
	return true;
}

static bool products(void)
{
	return products_of<__nv_bfloat16>(false) && products_of<__nv_bfloat16>(true) &&
	       products_of<__half>(false) && products_of<__half>(true);
}

/* A copy overwrites data that is read later. */
static __global__ void overtaken_kernel(float *out, const float *x)
{
	SHARED(room);
	float *at = (float *)room + 4 * threadIdx.x;
	at[0] = 1;
	copy_async(at, x, true);
	copy_commit();
	out[2 * threadIdx.x] = at[0];
	copy_wait<0>();
	out[2 * threadIdx.x + 1] = at[0];
}

static bool overtaken(void)
{
	alignas(16) float x[4] = {2}, out[2 * WARP];
	emu_launch(dim3(1), dim3(WARP), WARP * 16, [&] { overtaken_kernel(out, x); });
	for (int i = 0; i < WARP; i++)
		EMU_EXPECT(isnan(out[2 * i]) && out[2 * i + 1] == 2);
	return true;
}

/* ---- errors that must end the program ------------------------------------------------ */

static __global__ void wrong_kernel(int *x, int what)
{
	SHARED(room);
	int *at = (int *)room;
	int i = (int)threadIdx.x;
	uint32_t r[4];
	volatile uintptr_t nowhere = 8;
	if (what == 0 && i < 7)
		x[i] = __shfl_xor_sync(ALL_LANES, i, 1);
	if (what == 1 && i % WARP != 3)
		__syncthreads();
	if (what == 1)
		__syncwarp();
	if (what == 2 && i < WARP)
		__syncthreads();
	if (what == 2 && i >= WARP)
		__syncthreads();
	if (what == 3)
		x[i] = __shfl_xor_sync(0xffff, i, 1);
	if (what == 4 && i < 16)
		at[16 + i] = 1;
	if (what == 5)
		at[blockDim.x + i] = 1;
	if (what == 6)
		*(int2 *)(at + 2 * i + 1) = make_int2(1, 1);
	if (what == 7)
		ldmatrix(r, x);
	if (what == 8)
		copy_async(x, x, true);
	if (what == 9)
		x[i] = (1 << 30) * (i + 1);
	if (what == 10 && i >= WARP)
		x[0] = __shfl_xor_sync(ALL_LANES, i, 1);
	else if (what == 10)
		x[0] = *(volatile int *)nowhere;
}

template <int WHAT> static bool wrong(void)
{
	int *x = (int *)aligned_alloc(16, 4096);
	int threads = WHAT == 5 ? 1024 : 64;
	emu_launch(dim3(2), dim3((unsigned)threads),
		WHAT == 4   ? 64 + 12
		: WHAT == 5 ? 4096
			    : 1024,
		[&] { wrong_kernel(x, WHAT); });
	return true;
}

static bool part_of_warp(void)
{
	float x[48] = {0}, y[1];
	emu_launch(dim3(1), dim3(48), 0, [&] { sum_kernel(y, x, 48); });
	return true;
}

template <unsigned BLOCK, unsigned ROWS, int SHARED_BYTES> static bool too_large(void)
{
	float x[1] = {0}, y[1];
	emu_launch(
		dim3(1, ROWS), dim3(BLOCK), SHARED_BYTES, [&] { sum_kernel(y, x, 0); });
	return true;
}

/* ---- shared memory and bounds of a kernel ---------------------------------------------- */

/* 20 KiB of static shared memory, and the dynamic shared memory of the launch. */
static __global__ void __launch_bounds__(64, 2) bounded_kernel(int *out)
{
	__shared__ int fixed[5 << 10];
	SHARED(room);
	fixed[threadIdx.x] = 1;
	((int *)room)[threadIdx.x] = 2;
	out[threadIdx.x] = fixed[threadIdx.x] + ((int *)room)[threadIdx.x];
}

/* may: of the attribute; 0: without. The dynamic shared memory is enough for all threads. */
template <unsigned THREADS, int DYNAMIC, int MAY> static bool bounded(void)
{
	int out[96];
	if (MAY)
		EMU_EXPECT(!cudaFuncSetAttribute(bounded_kernel,
			cudaFuncAttributeMaxDynamicSharedMemorySize, MAY));
	emu_launch(
		dim3(1), dim3(THREADS), DYNAMIC, [&] { bounded_kernel(out); }, NULL,
		(const void *)(void (*)(int *))bounded_kernel);
	for (unsigned i = 0; i < THREADS; i++)
		EMU_EXPECT(out[i] == 3);
	return true;
}

/* More than a block can have, with what a launch has found to be static. */
static bool attribute_refused(void)
{
	EMU_EXPECT((bounded<64, 28 << 10, 0>()));
	EMU_EXPECT(cudaFuncSetAttribute(bounded_kernel,
		cudaFuncAttributeMaxDynamicSharedMemorySize, (207 << 10) + 16));
	EMU_EXPECT(!cudaFuncSetAttribute(
		bounded_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 207 << 10));
	return true;
}

const struct emu_test emu_tests_kernels[] = {
	{"sums", sums, NULL},
	{"barriers", barriers, NULL},
	{"missing_barriers", missing_barriers, NULL},
	{"early_reads", early_reads, NULL},
	{"stale_memory", stale_memory, NULL},
	{"shuffles", shuffles, NULL},
	{"indices", indices, NULL},
	{"products", products, NULL},
	{"overtaken", overtaken, NULL},
	{"a_shuffle_of_some_lanes", wrong<0>, "lanes of a warp part"},
	{"a_barrier_of_some_lanes", wrong<1>, "lanes of a warp part"},
	{"two_barriers_at_once", wrong<2>, "at different barriers"},
	{"a_mask_of_some_lanes", wrong<3>, "not of all lanes"},
	{"beyond_shared_memory", wrong<4>, "of 76 of shared memory was written"},
	{"far_beyond_shared_memory", wrong<5>, "touches"},
	{"not_aligned", wrong<6>, "misaligned address"},
	{"ldmatrix_of_global_memory", wrong<7>, "not 16 bytes of shared memory"},
	{"copy_to_global_memory", wrong<8>, "is not shared memory"},
	{"overflow", wrong<9>, "signed integer overflow"},
	{"an_address_of_nothing", wrong<10>, "touches 0x8 "},
	{"part_of_a_warp", part_of_warp, "a shuffle in a warp of 16 threads"},
	{"too_many_threads", too_large<1025, 1, 0>, "1025 x 1 x 1 threads"},
	{"too_many_blocks", too_large<32, 65536, 0>, "1 x 65536 x 1 blocks"},
	{"too_much_shared_memory", too_large<32, 1, 233000>, "233000 bytes"},
	{"shared_memory_by_default", bounded<64, 28 << 10, 0>, NULL},
	{"shared_memory_by_attribute", bounded<64, 93 << 10, 93 << 10>, NULL},
	{"attribute_refused", attribute_refused, NULL},
	{"static_and_dynamic_memory", bounded<64, (28 << 10) + 16, 0>,
		"49168 bytes of shared memory, 20480 of them static; 49152"},
	{"attribute_too_small", bounded<64, 60 << 10, 50 << 10>,
		"61440 bytes of shared memory, 0 of them static; 49152"},
	{"block_beyond_bounds", bounded<96, 1024, 0>,
		"a block of 96 threads; its __launch_bounds__ allow 64"},
	{NULL, NULL, NULL},
};
