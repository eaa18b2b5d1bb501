/* Tests of the emulator: results and detected errors with sm_90's features. */
#include "kernels/cuda/attn_tiles.h"
#include "kernels/cuda/hopper.h"
#include "kernels/cuda/mma.h"
#include "tests/emu/tests.h"

#include <cudaTypedefs.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 128, COLS = 64, HEADS = 3, BATCH = 2 }; /* of tiles; of the tensor */

static CUresult encode(CUtensorMap *map, void *p, int dim, int stride, int rows, int wide,
	int box_rows, CUtensorMapSwizzle swizzle, CUtensorMapDataType type)
{
	void *fn = NULL;
	const cuuint64_t row = (cuuint64_t)stride * 2;
	const cuuint64_t dims[] = {(cuuint64_t)dim, HEADS, (cuuint64_t)rows, BATCH};
	const cuuint64_t strides[] = {(cuuint64_t)dim * 2, row, row * (cuuint64_t)rows};
	const cuuint32_t box[] = {(cuuint32_t)wide, 1, (cuuint32_t)box_rows, 1};
	const cuuint32_t steps[] = {1, 1, 1, 1};
	cudaGetDriverEntryPointByVersion(
		"cuTensorMapEncodeTiled", &fn, 12000, cudaEnableDefault, NULL);
	return ((PFN_cuTensorMapEncodeTiled_v12000)fn)(map, type, 4, p, dims, strides,
		box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
		CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

/* An address that is a multiple of 1024, with space for barriers before it. */
static __device__ inline unsigned char *tiles_in(unsigned char *shared)
{
	uint32_t at = shared_address(shared) + 64;
	return shared + 64 + (PANEL_ALIGN - at % PANEL_ALIGN) % PANEL_ALIGN;
}

/* ---- copies of tiles -------------------------------------------------------------------- */

static __global__ void tile_kernel(uint16_t *out, const __grid_constant__ CUtensorMap map,
	int n, int head, int row, int batch)
{
	SHARED(shared);
	uint64_t *barrier = (uint64_t *)shared;
	uint16_t *tile = (uint16_t *)tiles_in(shared);
	if (threadIdx.x == 0) {
		barrier_make(barrier, 1);
		publish_barriers();
		barrier_expect(barrier, 2 * n);
		tile_load(tile, &map, barrier, 8, head, row, batch);
		out[n] = tile[0]; /* the old value is gone, the new one not yet there */
	}
	__syncthreads();
	barrier_wait(barrier, 0);
	for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
		out[i] = tile[i];
}

/* Heads of 40 numbers, of which the box has those from the eighth on; 10 rows of the last
 * sequence's 20, and zeros outside. The 16-byte pieces of row i are swizzled as PTX
 * specifies. */
static bool tiles(void)
{
	enum { DIM = 40, LENGTH = 20, BOX = 24, FIRST = 10, HEAD = 1 };
	static const struct {
		CUtensorMapSwizzle swizzle;
		int bytes, row_of_8; /* bytes of a row; the swizzle is by i / row_of_8 */
	} how[] = {
		{CU_TENSOR_MAP_SWIZZLE_NONE, 16, 0},
		{CU_TENSOR_MAP_SWIZZLE_32B, 32, 4},
		{CU_TENSOR_MAP_SWIZZLE_64B, 64, 2},
		{CU_TENSOR_MAP_SWIZZLE_128B, 128, 1},
	};
	const int stride = HEADS * DIM;
	uint16_t *x = (uint16_t *)aligned_alloc(64, 2 * BATCH * LENGTH * stride + 64);
	for (int i = 0; i < BATCH * LENGTH * stride; i++)
		x[i] = (uint16_t)(i + 1);
	for (const auto &h : how) {
		int wide = h.bytes / 2, n = BOX * wide, pieces = h.bytes / 16;
		uint16_t out[BOX * 64 + 1];
		CUtensorMap map;
		EMU_EXPECT(!encode(&map, x, DIM, stride, LENGTH, wide, BOX, h.swizzle,
			CU_TENSOR_MAP_DATA_TYPE_BFLOAT16));
		emu_launch(dim3(1), dim3(64), 2 * n + 2048,
			[&] { tile_kernel(out, map, n, HEAD, FIRST, BATCH - 1); });
		EMU_EXPECT(out[n] == 0xffff);
		for (int i = 0; i < n; i++) {
			int row = i / wide, col = i % wide + 8;
			int by = h.row_of_8 ? row / h.row_of_8 % pieces : 0;
			int at = row * wide + (i % wide / 8 ^ by) * 8 + i % 8;
			int from = ((BATCH - 1) * LENGTH + FIRST + row) * stride +
				   HEAD * DIM + col;
			bool there = FIRST + row < LENGTH && col < DIM;
			EMU_EXPECT(out[at] == (there ? x[from] : 0));
		}
	}
	free(x);
	return true;
}

static bool maps_refused(void)
{
	alignas(64) static uint16_t x[4096];
	CUtensorMap map;
	CUtensorMapSwizzle all = CU_TENSOR_MAP_SWIZZLE_128B;
	CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
	EMU_EXPECT(!encode(&map, x, 64, 192, 5, 64, 128, all, type));
	EMU_EXPECT(encode(&map, x + 1, 64, 192, 5, 64, 128, all, type)); /* address */
	EMU_EXPECT(encode(&map, x, 36, 108, 5, 64, 128, all, type));	 /* strides */
	EMU_EXPECT(encode(&map, x, 64, 192, 5, 128, 128, all, type));	 /* box's row */
	EMU_EXPECT(encode(&map, x, 64, 192, 5, 64, 257, all, type));	 /* box */
	EMU_EXPECT(encode(&map, x, 64, 192, 0, 64, 128, all, type));	 /* no rows */
	return true;
}

/* ---- stores of tiles -------------------------------------------------------------------- */

enum { STORE_BOX = 16, STORE_HEAD = 1, STORE_FIRST = 10 };
enum stored { STORED, STORE_OF_ONE_TOLD, STORE_REUSED, STORE_LEFT, STORE_NOT_COMMITTED };

/* A warp stores 16 rows of 64 numbers, from column 8 of a head on. */
static __global__ void store_kernel(const __grid_constant__ CUtensorMap map,
	const uint16_t *to, uint16_t *seen, enum stored what)
{
	SHARED(shared);
	uint16_t *tile = (uint16_t *)tiles_in(shared);
	for (int i = (int)threadIdx.x; i < STORE_BOX * PANEL; i += 32)
		*(piece<PANEL>(tile, i / PANEL, i % PANEL / 8) + i % 8) =
			(uint16_t)(i + 1);
	if (what != STORE_OF_ONE_TOLD || threadIdx.x == 0)
		publish_stores();
	__syncwarp();
	if (threadIdx.x == 0) {
		tile_store(&map, tile, 8, STORE_HEAD, STORE_FIRST, BATCH - 1);
		if (what != STORE_NOT_COMMITTED)
			stores_commit();
		*seen = *to; /* not yet there */
	}
	__syncwarp();
	if (what == STORE_REUSED && threadIdx.x == 9)
		tile[5] = 0;
	__syncwarp();
	if (what != STORE_LEFT && threadIdx.x == 0)
		stores_wait();
}

/* Heads of 40 numbers, 20 rows: columns from the fortieth and rows from the twentieth on are not
 * stored. */
template <enum stored WHAT> static bool stores(void)
{
	enum { DIM = 40, LENGTH = 20, ROW = HEADS * DIM, N = BATCH * LENGTH * ROW };
	alignas(64) static uint16_t x[N];
	uint16_t seen = 1;
	CUtensorMap map;
	EMU_EXPECT(!encode(&map, x, DIM, ROW, LENGTH, PANEL, STORE_BOX,
		CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16));
	emu_launch(dim3(1), dim3(32), STORE_BOX * PANEL * 2 + 2048, [&] {
		store_kernel(map,
			x + ((BATCH - 1) * LENGTH + STORE_FIRST) * ROW +
				STORE_HEAD * DIM + 8,
			&seen, WHAT);
	});
	EMU_EXPECT(seen == 0);
	for (int i = 0; i < N; i++) {
		int row = i / ROW - (BATCH - 1) * LENGTH - STORE_FIRST;
		int col = i % ROW - STORE_HEAD * DIM - 8;
		bool there = row >= 0 && col >= 0 && col < DIM - 8;
		EMU_EXPECT(x[i] == (there ? row * PANEL + col + 1 : 0));
	}
	return true;
}

/* ---- matmuls ----------------------------------------------------------------------------- */

/* A tile of ROWS x COLS, in panels of WIDE columns with swizzle MODE; c = the first 64 rows
 * times all rows, transposed, and d = c, from registers, times the tile. */
template <typename T, int MODE, int NT>
static __global__ void products_kernel(
	float *c, float *d, const __grid_constant__ CUtensorMap map)
{
	constexpr int WIDE = MODE ? 128 >> MODE : 8, PANEL_BYTES = ROWS * WIDE * 2;
	constexpr uint64_t UNIT = MODE ? 8 * WIDE * 2 : 128; /* of 8 rows */
	SHARED(shared);
	uint64_t *barrier = (uint64_t *)shared;
	unsigned char *tile = tiles_in(shared);
	int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
	int row = (int)threadIdx.x / 32 * 16;
	float x[NT][4], y[8][4] = {};
	uint32_t a[NT / 2][4];
	if (threadIdx.x == 0) {
		barrier_make(barrier, 1);
		publish_barriers();
		barrier_expect(barrier, ROWS * COLS * 2);
		for (int i = 0; i < COLS / WIDE; i++)
			tile_load(
				tile + i * PANEL_BYTES, &map, barrier, i * WIDE, 0, 0, 0);
	}
	__syncthreads();
	barrier_wait(barrier, 0);
	uint64_t mode = (uint64_t)MODE << 62, panel = PANEL_BYTES;
	wgmma_fence();
	for (int k = 0; k < COLS / 16; k++) {
		uint32_t at = shared_address(
			tile + k * 16 / WIDE * PANEL_BYTES + k * 16 % WIDE * 2);
		uint64_t columns = mode | UNIT >> 4 << 32 | panel >> 4 << 16 | at >> 4;
		wgmma<false>(x, columns, columns, k > 0, T());
	}
	wgmma_commit();
	bool gone = isnan(x[0][0]);
	wgmma_wait<0>();
	for (int k = 0; k < NT / 2; k++) {
		for (int i = 0; i < 4; i++) {
			const float *from = x[2 * k + i / 2];
			pack<T, 2> both = {{narrow<T>(from[i % 2 * 2]),
				narrow<T>(from[i % 2 * 2 + 1])}};
			memcpy(&a[k][i], &both, 4);
		}
		uint32_t at = shared_address(tile) + k * 16 * (MODE ? WIDE * 2 : 16);
		uint64_t leading = MODE ? panel : UNIT, stride = MODE ? UNIT : panel;
		uint64_t rows = mode | stride >> 4 << 32 | leading >> 4 << 16 | at >> 4;
		wgmma_fence();
		wgmma<true>(y, a[k], rows, true, T());
		wgmma_commit();
	}
	wgmma_wait<1>();
	gone &= isnan(y[0][0]); /* the last matmuls are in flight */
	wgmma_wait<0>();
	for (int i = 0; i < NT * 4; i++)
		c[(row + g + i % 4 / 2 * 8) * NT * 8 + i / 4 * 8 + 2 * t + i % 2] =
			gone ? x[i / 4][i % 4] : 0;
	for (int i = 0; i < 8 * 4; i++)
		d[(row + g + i % 4 / 2 * 8) * 64 + i / 4 * 8 + 2 * t + i % 2] =
			y[i / 4][i % 4];
}

/* 256 columns: the tile's rows, twice. */
static __global__ void wide_kernel(float *c, const __grid_constant__ CUtensorMap map)
{
	SHARED(shared);
	uint64_t *barrier = (uint64_t *)shared;
	__nv_bfloat16 *tile = (__nv_bfloat16 *)tiles_in(shared);
	int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane / 4;
	float x[32][4];
	if (threadIdx.x == 0) {
		barrier_make(barrier, 1);
		publish_barriers();
		barrier_expect(barrier, 2 * ROWS * COLS * 2);
		for (int i = 0; i < 2; i++)
			tile_load(tile + i * ROWS * PANEL, &map, barrier, 0, 0, 0, 0);
	}
	__syncthreads();
	barrier_wait(barrier, 0);
	wgmma_fence();
	for (int k = 0; k < COLS / 16; k++)
		wgmma<false>(x, columns_further(columns_of(tile), 0, k),
			columns_further(columns_of(tile), 0, k), k > 0, __nv_bfloat16());
	wgmma_commit();
	wgmma_wait<0>();
	for (int i = 0; i < 32 * 4; i++)
		c[(row + i % 4 / 2 * 8) * 256 + i / 4 * 8 + lane % 4 * 2 + i % 2] =
			x[i / 4][i % 4];
}

static bool wide_products(void)
{
	alignas(64) static __nv_bfloat16 x[BATCH * ROWS * HEADS * COLS];
	static float c[64 * 256];
	CUtensorMap map;
	for (int i = 0; i < BATCH * ROWS * HEADS * COLS; i++)
		x[i] = narrow<__nv_bfloat16>((float)(i * 7919 % 31 % 5 - 2) / 8);
	EMU_EXPECT(!encode(&map, x, COLS, HEADS * COLS, ROWS, PANEL, ROWS,
		CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16));
	emu_launch(dim3(1), dim3(WARPGROUP), 2 * ROWS * COLS * 2 + 2048,
		[&] { wide_kernel(c, map); });
	for (int i = 0; i < 64 * 256; i++) {
		float s = 0;
		for (int k = 0; k < COLS; k++)
			s += widen(x[i / 256 * HEADS * COLS + k]) *
			     widen(x[i % 256 % ROWS * HEADS * COLS + k]);
		EMU_EXPECT(c[i] == s);
	}
	return true;
}

template <typename T, int MODE, int NT> static bool products_of(void)
{
	enum { N = NT * 8 };
	alignas(64) static T x[BATCH * ROWS * HEADS * COLS];
	static float c[64 * N], d[64 * COLS];
	bool bf16 = is_bf16(T());
	CUtensorMap map;
	for (int i = 0; i < BATCH * ROWS * HEADS * COLS; i++)
		x[i] = narrow<T>((float)(i * 7919 % 31 % 5 - 2) / 8);
	EMU_EXPECT(!encode(&map, x, COLS, HEADS * COLS, ROWS, MODE ? 128 >> MODE : 8,
		ROWS, MODE ? (CUtensorMapSwizzle)(4 - MODE) : CU_TENSOR_MAP_SWIZZLE_NONE,
		bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
		     : CU_TENSOR_MAP_DATA_TYPE_FLOAT16));
	emu_launch(dim3(1), dim3(WARPGROUP), ROWS * COLS * 2 + 2048,
		[&] { products_kernel<T, MODE, NT>(c, d, map); });
	auto at = [&](int i, int k) { return widen(x[i * HEADS * COLS + k]); };
	for (int i = 0; i < 64; i++) {
		for (int j = 0; j < N; j++) {
			float s = 0;
			for (int k = 0; k < COLS; k++)
				s += at(i, k) * at(j, k);
			EMU_EXPECT(c[i * N + j] == s);
		}
		for (int j = 0; j < COLS; j++) {
			float s = 0;
			for (int k = 0; k < N; k++)
				s += widen(narrow<T>(c[i * N + k])) * at(k, j);
			EMU_EXPECT(d[i * COLS + j] == s);
		}
	}
	return true;
}

static bool products(void)
{
	return products_of<__nv_bfloat16, 1, 16>() && products_of<__half, 1, 8>() &&
	       products_of<__half, 0, 16>() && products_of<__nv_bfloat16, 2, 8>() &&
	       products_of<__half, 3, 16>();
}

/* ---- barriers ----------------------------------------------------------------------------- */

/* One half of the threads sends numbers to the other through a ring of two stages. */
static __global__ void ring_kernel(int *out, int n)
{
	SHARED(shared);
	uint64_t *full = (uint64_t *)shared, *free = full + 2;
	int *place = (int *)(free + 2), lane = (int)threadIdx.x % 64;
	if (threadIdx.x == 0) {
		for (int i = 0; i < 4; i++)
			barrier_make(full + i, 64);
		publish_barriers();
	}
	__syncthreads();
	for (int i = 0; i < n; i++) {
		int *at = place + i % 2 * 64 + lane;
		if (threadIdx.x < 64) {
			barrier_wait(free + i % 2, i / 2 % 2 ^ 1);
			*at = i * lane;
			barrier_arrive(full + i % 2);
		} else {
			barrier_wait(full + i % 2, i / 2 % 2);
			out[i * 64 + lane] = place[i % 2 * 64 + 63 - lane];
			barrier_arrive(free + i % 2);
		}
	}
}

static bool ring(void)
{
	int out[7 * 64];
	emu_launch(dim3(1), dim3(128), 32 + 512, [&] { ring_kernel(out, 7); });
	for (int i = 0; i < 7 * 64; i++)
		EMU_EXPECT(out[i] == i / 64 * (63 - i % 64));
	return true;
}

/* Two warpgroups take turns; the first waits for registers that the other releases, of the
 * 200 of each thread. */
static __global__ void turns_kernel(int *out, int n)
{
	SHARED(shared);
	int *at = (int *)shared, w = (int)threadIdx.x / WARPGROUP;
	if (threadIdx.x == 0)
		*at = 0;
	__syncthreads();
	if (w == 2)
		return;
	if (w == 0)
		registers_more<256>();
	else
		registers_fewer<144>();
	if (w == 1)
		turn_give(1, 256);
	for (int i = 0; i < n; i++) {
		turn_wait(1 + w, 256);
		if (threadIdx.x % WARPGROUP == 0) {
			out[2 * i + w] = *at;
			*at += 1;
		}
		__syncwarp();
		if (w == 0 || i < n - 1)
			turn_give(2 - w, 256);
	}
}

static bool turns(void)
{
	int out[10];
	emu_launch(dim3(1), dim3(320), 4, [&] { turns_kernel(out, 5); });
	for (int i = 0; i < 10; i++)
		EMU_EXPECT(out[i] == i);
	return true;
}

/* ---- clusters ---------------------------------------------------------------------------- */

enum cluster_case { CLUSTER, ONE_COPIES, MASK_TOO_LARGE, NOT_SYNCHRONIZED };

/* Each block of a cluster of two copies one tile for both, and waits until both have read them. */
static __global__ void cluster_kernel(
	uint16_t *out, const __grid_constant__ CUtensorMap map, enum cluster_case what)
{
	enum { N = ROWS * PANEL };
	SHARED(shared);
	uint64_t *full = (uint64_t *)shared, *read = full + 1;
	uint16_t *tiles = (uint16_t *)tiles_in(shared);
	int rank = (int)blockIdx.x % 2;
	const int at[4] = {0, 0, 0, rank};
	if (threadIdx.x == 0) {
		barrier_make(full, 1);
		barrier_make(read, 2);
		publish_barriers();
	}
	if (what != NOT_SYNCHRONIZED)
		cluster_sync();
	__syncthreads();
	if (threadIdx.x == 0) {
		barrier_expect(full, 2 * N * 2);
		if (what != ONE_COPIES || rank == 0)
			emu_tile_load_to(tiles + rank * N, &map, full, at,
				what == MASK_TOO_LARGE ? 4 : 3);
	}
	barrier_wait(full, 0);
	for (int i = (int)threadIdx.x; i < 2 * N; i += (int)blockDim.x)
		out[(int)blockIdx.x * 2 * N + i] =
			*(piece<PANEL>(tiles, i / PANEL, i % PANEL / 8) + i % 8);
	__syncthreads();
	if (threadIdx.x < 2)
		barrier_arrive_at(read, (int)threadIdx.x);
	barrier_wait(read, 0);
	cluster_sync();
}

static cudaError_t run_clusters(uint16_t *out, const CUtensorMap &map, unsigned n_blocks,
	unsigned size, enum cluster_case what)
{
	cudaLaunchConfig_t how = {};
	cudaLaunchAttribute attr = {};
	attr.id = cudaLaunchAttributeClusterDimension;
	attr.val.clusterDim.x = size;
	attr.val.clusterDim.y = attr.val.clusterDim.z = 1;
	how.gridDim = dim3(n_blocks);
	how.blockDim = dim3(64);
	how.dynamicSmemBytes = 2 * ROWS * PANEL * 2 + 2048;
	how.attrs = &attr;
	how.numAttrs = 1;
	return cudaLaunchKernelEx(&how, cluster_kernel, out, map, what);
}

template <enum cluster_case WHAT> static bool clusters(void)
{
	enum { BLOCKS = 10, N = ROWS * PANEL };
	alignas(64) static uint16_t x[BATCH * ROWS * HEADS * PANEL];
	static uint16_t out[BLOCKS * 2 * N];
	CUtensorMap map;
	for (int i = 0; i < BATCH * ROWS * HEADS * PANEL; i++)
		x[i] = (uint16_t)(i * 7919);
	EMU_EXPECT(!encode(&map, x, PANEL, HEADS * PANEL, ROWS, PANEL, ROWS,
		CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_DATA_TYPE_FLOAT16));
	EMU_EXPECT(run_clusters(out, map, BLOCKS, 16, WHAT));
	EMU_EXPECT(run_clusters(out, map, BLOCKS + 1, 2, WHAT));
	EMU_EXPECT(!cudaFuncSetAttribute(
		cluster_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10));
	EMU_EXPECT(!run_clusters(out, map, BLOCKS, 2, WHAT));
	for (int i = 0; i < BLOCKS * 2 * N; i++)
		EMU_EXPECT(out[i] == x[i % (2 * N) / PANEL * HEADS * PANEL + i % PANEL]);
	return true;
}

/* ---- errors that must end the program ---------------------------------------------------- */

enum wrong {
	NOT_MADE,
	NOT_KNOWN,
	TOO_MANY,
	WRONG_PARITY,
	PHASE_MISSED,
	NOBODY_COMES,
	NOT_TOLD,
	TOO_MUCH_COMES,
	LOAD_LEFT,
	LOAD_NOT_ALIGNED,
	TURN_LEFT,
	TURN_OF_OTHERS,
	TURN_TWICE,
	NO_REGISTERS,
	SOME_REGISTERS,
	TOO_MUCH_EXPECTED,
	NO_FENCE,
	SUMS_TOUCHED,
	OPERAND_TOUCHED,
	OPERAND_STORED,
	OPERAND_CLEARED,
	OPERAND_LOADED,
	OPERAND_FREED,
	OPERAND_HELD,
	PRODUCT_LEFT,
	WAIT_MEANWHILE,
	NOT_ALL_ASK,
	NOT_ALIGNED,
	OLD_DEVICE,
};

static __device__ inline void wrong_barrier(uint64_t *barrier, enum wrong what)
{
	int i = (int)threadIdx.x;
	if (what == TOO_MANY) /* before the expected bytes have arrived */
		barrier_expect(barrier, 16);
	if (what == WRONG_PARITY) {
		barrier_wait(barrier, 1);
		barrier_wait(barrier, 1);
	}
	if (what == PHASE_MISSED && i == 0) {
		barrier_arrive(barrier);
		barrier_arrive(barrier);
	}
	if (what == PHASE_MISSED)
		__syncthreads();
	if (what == PHASE_MISSED || what == NOBODY_COMES)
		barrier_wait(barrier, 0);
	if (what == TURN_LEFT && i < 64)
		turn_give(3, 128);
	if (what == TURN_OF_OTHERS)
		turn_wait(3, i < 64 ? 64 : 128);
	if (what == TURN_TWICE && i < 64) {
		turn_give(3, 128);
		turn_give(3, 128);
	}
	/* 200 of each of 320 threads, and the 1536 that a multiprocessor has beyond them. */
	if (what == NO_REGISTERS && i < WARPGROUP)
		registers_more<208>();
	if (what == SOME_REGISTERS && i < 64)
		registers_fewer<24>();
	if (what == TOO_MUCH_EXPECTED)
		barrier_expect(barrier, 1 << 20);
}

static __device__ inline void wrong_product(
	unsigned char *tile, const CUtensorMap *map, uint64_t *barrier, enum wrong what)
{
	float c[8][4];
	uint32_t held[4] = {};
	int i = (int)threadIdx.x;
	uint64_t a = columns_of(tile + (what == NOT_ALIGNED ? 256 : 0));
	if (what != NO_FENCE)
		wgmma_fence();
	if (what == OPERAND_STORED && i == 77)
		((uint16_t *)tile)[64] = 1;
	if (what == OPERAND_CLEARED && i == 77)
		clear_piece(tile + 128);
	if (what == OPERAND_CLEARED && i == 78)
		publish_stores();
	if (what == OPERAND_STORED || what == OPERAND_CLEARED)
		__syncthreads();
	if (what == OPERAND_HELD)
		wgmma<false>(c, held, a, false, __half());
	else
		wgmma<false>(c, what == NOT_ALL_ASK && i >= 64 ? a + 2 : a, a, false,
			__half());
	if (what == OPERAND_HELD)
		held[2] = (uint32_t)i;
	if (what == SUMS_TOUCHED)
		c[3][1] = 0;
	if (what == OPERAND_TOUCHED && i == 77)
		((uint16_t *)tile)[64] = 1;
	wgmma_commit();
	if (what == OPERAND_LOADED && i == 0) {
		barrier_expect(barrier, ROWS * PANEL * 2);
		tile_load(tile, map, barrier, 0, 0, 0, 0);
	}
	if (what == WAIT_MEANWHILE)
		barrier_wait(barrier, 1);
	if (what != PRODUCT_LEFT)
		wgmma_wait<0>();
	/* The other warps may still wait. */
	if (what == OPERAND_FREED && i == 0) {
		barrier_expect(barrier, ROWS * PANEL * 2);
		tile_load(tile, map, barrier, 0, 0, ROWS, 0);
	}
	if (what == OPERAND_FREED)
		barrier_wait(barrier, 1);
}

static __global__ void wrong_kernel(
	const __grid_constant__ CUtensorMap map, enum wrong what)
{
	SHARED(shared);
	uint64_t *barrier = (uint64_t *)shared;
	unsigned char *tile = tiles_in(shared);
	if (what == NOT_MADE)
		barrier_arrive(barrier);
	if (threadIdx.x == 0) {
		barrier_make(barrier, 1);
		if (what != NOT_TOLD)
			publish_barriers();
	}
	if (what == NOT_KNOWN) /* by all threads, before its initialization or after */
		barrier_arrive(barrier);
	__syncthreads();
	if (what < NO_FENCE && (what < NOT_TOLD || what > LOAD_NOT_ALIGNED)) {
		wrong_barrier(barrier, what);
		return;
	}
	if (threadIdx.x == 0) {
		barrier_expect(barrier, what == TOO_MUCH_COMES ? 4 : ROWS * PANEL * 2);
		tile_load(tile + (what == LOAD_NOT_ALIGNED ? 128 : 0), &map, barrier, 0,
			0, 0, 0);
	}
	if (what == LOAD_LEFT)
		return;
	barrier_wait(barrier, 0);
	wrong_product(tile, &map, barrier, what);
}

template <enum wrong WHAT> static bool wrong(void)
{
	alignas(64) static uint16_t x[BATCH * ROWS * HEADS * PANEL];
	CUtensorMap map;
	EMU_EXPECT(!encode(&map, x, PANEL, HEADS * PANEL, ROWS, PANEL, ROWS,
		CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_DATA_TYPE_FLOAT16));
	memset(x, 1, sizeof(x));
	if (WHAT == OLD_DEVICE)
		setenv("PT_EMU_ARCH", "80", 1);
	emu_launch(dim3(1), dim3(WHAT == NO_REGISTERS ? 2 * WARPGROUP + 64 : WARPGROUP),
		ROWS * PANEL * 2 + 2048, [&] { wrong_kernel(map, WHAT); });
	return true;
}

const struct emu_test emu_tests_hopper[] = {
	{"tiles", tiles, NULL},
	{"maps_refused", maps_refused, NULL},
	{"stores", stores<STORED>, NULL},
	{"store_of_one_told", stores<STORE_OF_ONE_TOLD>,
		"what thread 1 stored is not visible"},
	{"store_reused", stores<STORE_REUSED>,
		"tile_store under way reads is not left alone"},
	{"store_left", stores<STORE_LEFT>, "before 1 stores"},
	{"store_not_committed", stores<STORE_NOT_COMMITTED>, "before 1 stores"},
	{"products_of_warpgroups", products, NULL},
	{"products_of_256_columns", wide_products, NULL},
	{"ring", ring, NULL},
	{"turns", turns, NULL},
	{"clusters", clusters<CLUSTER>, NULL},
	{"cluster_of_which_one_copies", clusters<ONE_COPIES>, "no thread can go on"},
	{"cluster_mask_too_large", clusters<MASK_TOO_LARGE>, "block 2 of a cluster of 2"},
	{"cluster_not_synchronized", clusters<NOT_SYNCHRONIZED>, "barrier"},
	{"barrier_not_made", wrong<NOT_MADE>, "nobody made"},
	{"barrier_not_known", wrong<NOT_KNOWN>, " made"},
	{"barrier_of_too_many", wrong<TOO_MANY>, "than the 1 it"},
	{"barrier_of_another_phase", wrong<WRONG_PARITY>, "waits for parity 1"},
	{"barrier_missed", wrong<PHASE_MISSED>, "and 2 are done"},
	{"barrier_nobody_comes", wrong<NOBODY_COMES>, "no thread can go on"},
	{"tile_without_barrier", wrong<NOT_TOLD>, "nobody told"},
	{"tile_too_large", wrong<TOO_MUCH_COMES>, "bytes more come"},
	{"tile_left", wrong<LOAD_LEFT>, "ends before 1 copies"},
	{"tile_not_aligned", wrong<LOAD_NOT_ALIGNED>, "not on 1024 bytes"},
	{"turn_left", wrong<TURN_LEFT>, "with 64 threads at barrier 3"},
	{"turn_of_others", wrong<TURN_OF_OTHERS>, "threads and of"},
	{"turn_twice", wrong<TURN_TWICE>, "to barrier 3 twice"},
	{"no_registers", wrong<NO_REGISTERS>, "no thread can go on"},
	{"registers_of_some", wrong<SOME_REGISTERS>, "24 and 256 registers"},
	{"barrier_of_too_much", wrong<TOO_MUCH_EXPECTED>, "for 1048576 bytes"},
	{"wgmma_no_fence", wrong<NO_FENCE>, "after no fence"},
	{"wgmma_sums_touched", wrong<SUMS_TOUCHED>, "are not left alone"},
	{"wgmma_operand_touched", wrong<OPERAND_TOUCHED>, "operand of a wgmma"},
	{"wgmma_operand_stored", wrong<OPERAND_STORED>, "no copy of a tile"},
	{"wgmma_operand_cleared", wrong<OPERAND_CLEARED>, "no copy of a tile"},
	{"wgmma_operand_loaded", wrong<OPERAND_LOADED>, "operand of a wgmma"},
	{"wgmma_operand_freed", wrong<OPERAND_FREED>, "operand of a wgmma"},
	{"wgmma_operand_held", wrong<OPERAND_HELD>, "registers that a wgmma"},
	{"wgmma_left", wrong<PRODUCT_LEFT>, "wgmma under way"},
	{"wgmma_wait_meanwhile", wrong<WAIT_MEANWHILE>, "while a wgmma is under way"},
	{"wgmma_not_all_ask", wrong<NOT_ALL_ASK>, "different products"},
	{"wgmma_not_aligned", wrong<NOT_ALIGNED>, "not in the first of 8 rows"},
	{"an_old_device", wrong<OLD_DEVICE>, "sm_80 has none"},
	{NULL, NULL, NULL},
};
