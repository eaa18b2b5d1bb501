/*
 * A matmul for sm_90a (see matmul_hopper.h). One block a multiprocessor goes over tiles of 128 x
 * 256 results: a thread enqueues TMA copies of the operands into a ring of stages, two warpgroups
 * have 64 rows of the tile each and take both operands of their matmuls from there. A warp stores
 * its results by itself, through shared memory, while the copies for the next tile go on.
 *
 * With LAG, the second warpgroup is two stages behind the first. So only one of them stores at a
 * time, and meanwhile the other has the tensor cores for itself.
 */
#include "kernels/cuda/attn_hopper.h"
#include "kernels/cuda/cuda_internal.h"

extern "C" {
#include "tests/bench/matmul_hopper.h"
}

enum {
	TILE_M = 64 * CONSUMERS,
	TILE_N = 256,
	TILE_WARPS = CONSUMERS * WARPGROUP / WARP,
	STORE_ROWS = 16, /* of a warp */
	LAG_TURN = 1,	 /* a named barrier */
	LAG_STAGES = 2
};

/*
 * STAGES: of the ring, TILE_K columns of both operands each. BY_TMA: results are stored by TMA, else
 * by 16 bytes a lane. OVER: a warpgroup enqueues the matmuls of a stage before those of the stage
 * before are complete. PAIR: clusters of two blocks, with neighbouring rows and the same columns of
 * the result; each copies half of w's tile, for both.
 */
template <int STAGE_COUNT, bool BY_TMA_, bool LAG_, bool OVER_, bool PAIR_>
struct matmul_shape {
	static constexpr int STAGES = STAGE_COUNT, BLOCKS = PAIR_ ? 2 : 1;
	static constexpr bool BY_TMA = BY_TMA_, LAG = LAG_, OVER = OVER_, PAIR = PAIR_;
	static constexpr int FEW_REGISTERS = 40, MANY_REGISTERS = 232;
	static constexpr int STAGE = (TILE_M + TILE_N) * PANEL; /* numbers */
	static constexpr int STAGED = 2 * STORE_ROWS * PANEL;	/* of a warp */
	static constexpr int TILES =
		(STAGES * STAGE + TILE_WARPS * STAGED) * 2; /* bytes */
	static_assert(registers_fit(FEW_REGISTERS, MANY_REGISTERS), "registers");
};

template <int STAGES> struct matmul_rest {
	float bias[TILE_WARPS][PANEL];
	uint64_t full[STAGES], free[STAGES];
};

/* Tiles in the order of items: some columns of tiles, all rows of them, so that the tiles under way
 * at a time have few rows of x and of w, which stay in the L2 cache. A tile of a pair is one item. */
struct matmul_order {
	int m_tiles, n_tiles, section; /* columns of tiles */
	int items;
};

struct matmul_args {
	CUtensorMap x, w, y;
	__nv_bfloat16 *to;
	const float *bias; /* or NULL */
	int m, n, steps;   /* stages that a tile takes */
	struct matmul_order order;
};

template <typename S> struct matmul_room {
	__nv_bfloat16 *x, *w,
		*staged; /* [STAGES][TILE_M][PANEL], [STAGES][TILE_N][PANEL] */
	struct matmul_rest<S::STAGES> *rest;

	__device__ inline explicit matmul_room(unsigned char *shared)
	{
		x = (__nv_bfloat16 *)align_tiles(shared);
		w = x + S::STAGES * TILE_M * PANEL;
		staged = w + S::STAGES * TILE_N * PANEL;
		rest = (struct matmul_rest<S::STAGES> *)(staged + TILE_WARPS * S::STAGED);
	}
};

/* ---- which tiles ---------------------------------------------------------------------- */

struct matmul_place {
	int row, col; /* the first of the block's results */
};

template <typename S>
static __device__ inline struct matmul_place place_of(
	const struct matmul_order &o, int item)
{
	int each = o.section * o.m_tiles, first = item / each * o.section;
	int here = min(o.section, o.n_tiles - first), i = item % each;
	int row = (i / here * S::BLOCKS + (int)blockIdx.x % S::BLOCKS) * TILE_M;
	return {row, (first + i % here) * TILE_N};
}

/* Calls fn(place) for each of the block's tiles. */
template <typename S, typename F>
static __device__ inline void for_each_tile(const struct matmul_args &x, F fn)
{
	for (int item = (int)blockIdx.x / S::BLOCKS; item < x.order.items;
		item += (int)gridDim.x / S::BLOCKS)
		fn(place_of<S>(x.order, item));
}

/* ---- the producer thread ---------------------------------------------------------------- */

template <typename S>
static __device__ inline void matmul_produce(
	const struct matmul_args &x, const struct matmul_room<S> &s)
{
	constexpr int HALF = TILE_N / S::BLOCKS;
	int use = 0, half = (int)blockIdx.x % S::BLOCKS * HALF;
	for_each_tile<S>(x, [&](struct matmul_place at) {
		for (int k = 0; k < x.steps; k++, use++) {
			struct turn t = turn_of<S::STAGES>(use);
			uint64_t *full = &s.rest->full[t.place];
			__nv_bfloat16 *w = s.w + (t.place * TILE_N + half) * PANEL;
			barrier_wait(&s.rest->free[t.place], t.parity ^ 1);
			barrier_expect(full, S::STAGE * 2);
			tile_load(s.x + t.place * TILE_M * PANEL, &x.x, full, k * PANEL,
				0, at.row, 0);
			if (S::PAIR)
				tile_load_both(
					w, &x.w, full, k * PANEL, 0, at.col + half, 0);
			else
				tile_load(w, &x.w, full, k * PANEL, 0, at.col, 0);
		}
	});
}

/* ---- the consumer warpgroups ------------------------------------------------------------- */

/* A stage has been read, by this warp: for a pair, both blocks may copy to it. */
template <typename S> static __device__ inline void stage_done(uint64_t *free)
{
	if constexpr (S::PAIR) {
		__syncwarp();
		if (lane_id() < S::BLOCKS)
			barrier_arrive_at(free, lane_id());
	} else {
		warp_arrive(free);
	}
}

/* Enqueues c += the matmul of a stage, or c = for the first. */
template <typename S>
static __device__ inline void add_stage(float (&c)[TILE_N / 8][4],
	const struct matmul_room<S> &s, int place, int w, bool add)
{
	uint64_t a = columns_of(s.x + (place * TILE_M + w * 64) * PANEL);
	uint64_t b = columns_of(s.w + place * TILE_N * PANEL);
	wgmma_fence();
#pragma unroll
	for (int k = 0; k < PANEL / 16; k++)
		wgmma<false>(c, columns_further(a, 0, k), columns_further(b, 0, k),
			add || k > 0, __nv_bfloat16());
	wgmma_commit();
}

/* Computes warpgroup w's part of a tile, from use `first` of the ring on. */
template <typename S>
static __device__ inline void multiply_tile(float (&c)[TILE_N / 8][4],
	const struct matmul_args &x, const struct matmul_room<S> &s, int first, int w)
{
	bool lag = S::LAG && x.steps >= S::STAGES;
	if (lag && w == 1)
		turn_wait(LAG_TURN, CONSUMERS * WARPGROUP);
	wgmma_hold(c);
	for (int k = 0; k < x.steps; k++) {
		struct turn t = turn_of<S::STAGES>(first + k);
		if (S::OVER) {
			barrier_wait_meanwhile(&s.rest->full[t.place], t.parity);
			add_stage<S>(c, s, t.place, w, k > 0);
			wgmma_wait<1>();
			if (k > 0)
				stage_done<S>(
					&s.rest->free[turn_of<S::STAGES>(first + k - 1)
							      .place]);
		} else {
			barrier_wait(&s.rest->full[t.place], t.parity);
			add_stage<S>(c, s, t.place, w, k > 0);
			wgmma_wait<0>();
			wgmma_hold(c);
			stage_done<S>(&s.rest->free[t.place]);
		}
		if (lag && w == 0 && k == LAG_STAGES - 1)
			turn_give(LAG_TURN, CONSUMERS * WARPGROUP);
	}
	if (S::OVER) {
		wgmma_wait<0>();
		wgmma_hold(c);
		stage_done<S>(
			&s.rest->free[turn_of<S::STAGES>(first + x.steps - 1).place]);
	}
}

/* The bias of a lane's columns 64 j + 2 lane, + 1. */
struct some_bias {
	float2 of[TILE_N / PANEL];
};

template <typename S>
static __device__ inline struct some_bias bias_from(const struct matmul_args &x, int col)
{
	struct some_bias b;
#pragma unroll
	for (int j = 0; j < TILE_N / PANEL; j++) {
		int at = col + j * PANEL + 2 * lane_id();
		bool there = x.bias && at < x.n; /* n is even */
		b.of[j].x = there ? __ldg(x.bias + at) : 0;
		b.of[j].y = there ? __ldg(x.bias + at + 1) : 0;
	}
	return b;
}

/* Stores a warp's 16 x 64 results from a panel in shared memory, 16 bytes a lane. */
template <typename S>
static __device__ inline void store_panel(
	const struct matmul_args &x, const __nv_bfloat16 *panel, int row, int col)
{
	constexpr int PIECES = PANEL / 8;
#pragma unroll
	for (int i = 0; i < STORE_ROWS * PIECES / WARP; i++) {
		int r = (i * WARP + lane_id()) / PIECES, c = lane_id() % PIECES;
		uint4 v = *(const uint4 *)piece<PANEL>(panel, r, c);
		if (row + r < x.m && col + c * 8 < x.n)
			*(uint4 *)(x.to + (int64_t)(row + r) * x.n + col + c * 8) = v;
	}
}

/* Stores this warp's 16 rows from `row` on, through two panels in turn. */
template <typename S>
static __device__ inline void store_rows(const float (&c)[TILE_N / 8][4],
	const struct matmul_args &x, const struct matmul_room<S> &s,
	const struct some_bias &bias, int warp, int row, int col)
{
	int lane = lane_id(), g = lane / 4, t = lane % 4;
	float2 *add = (float2 *)s.rest->bias[warp];
#pragma unroll
	for (int j = 0; j < TILE_N / PANEL; j++) {
		__nv_bfloat16 *panel =
			s.staged + warp * S::STAGED + j % 2 * STORE_ROWS * PANEL;
		if (S::BY_TMA && lane == 0)
			stores_wait<1>(); /* the panel's last copy has read it */
		add[lane] = bias.of[j];
		__syncwarp();
		float2 b[PANEL / 8];
#pragma unroll
		for (int i = 0; i < PANEL / 8; i++)
			b[i] = add[4 * i + t];
#pragma unroll
		for (int i = 0; i < PANEL / 8; i++) {
			const float(&v)[4] = c[j * (PANEL / 8) + i];
			__nv_bfloat16 *to = piece<PANEL>(panel, g, i) + 2 * t;
			*(uint32_t *)to =
				both<__nv_bfloat16>(v[0] + b[i].x, v[1] + b[i].y);
			/* row g + 8, with the same order of pieces */
			*(uint32_t *)(to + 8 * PANEL) =
				both<__nv_bfloat16>(v[2] + b[i].x, v[3] + b[i].y);
		}
		if (S::BY_TMA)
			stores_tell();
		__syncwarp();
		if (!S::BY_TMA) {
			store_panel<S>(x, panel, row, col + j * PANEL);
		} else if (lane == 0) {
			tile_store(&x.y, panel, col + j * PANEL, 0, row, 0);
			stores_commit();
		}
	}
}

template <typename S>
static __device__ inline void matmul_consume(
	const struct matmul_args &x, const struct matmul_room<S> &s, int w)
{
	int warp = __shfl_sync(ALL_LANES, (int)threadIdx.x / WARP - WARPGROUP / WARP, 0);
	int first = 0;
	float c[TILE_N / 8][4];
	for_each_tile<S>(x, [&](struct matmul_place at) {
		const struct some_bias bias = bias_from<S>(x, at.col);
		multiply_tile<S>(c, x, s, first, w);
		first += x.steps;
		store_rows<S>(c, x, s, bias, warp, at.row + warp * STORE_ROWS, at.col);
	});
	if (S::BY_TMA && lane_id() == 0)
		stores_wait<0>();
}

template <typename S>
static __global__ void __launch_bounds__(HOPPER_THREADS, 1)
	hopper_matmul(const __grid_constant__ struct matmul_args x)
{
	if constexpr (HOPPER) {
		SHARED(shared);
		const struct matmul_room<S> s(shared);
		int w = warpgroup_id();
		if (threadIdx.x == 0) {
			for (int i = 0; i < S::STAGES; i++) {
				barrier_make(&s.rest->full[i], 1);
				barrier_make(&s.rest->free[i], TILE_WARPS * S::BLOCKS);
			}
			barriers_tell();
		}
		if constexpr (S::PAIR)
			cluster_sync();
		else
			__syncthreads();
		if (w == 0) {
			registers_fewer<S::FEW_REGISTERS>();
			if (threadIdx.x == 0)
				matmul_produce<S>(x, s);
		} else {
			registers_more<S::MANY_REGISTERS>();
			matmul_consume<S>(x, s, w - 1);
		}
		/* The other block still copies to this one's shared memory, or arrives there. */
		if constexpr (S::PAIR)
			cluster_sync();
	} else {
		__trap(); /* PTX of another architecture, compiled by the driver */
	}
}

/* ---- launches --------------------------------------------------------------------------- */

/* launch() for clusters of two blocks. */
template <typename S>
static void launch_pairs(struct device *d, const char *name, dim3 grid, int shared_bytes,
	const struct matmul_args &x)
{
	struct cuda_launch l = {name, grid, dim3(HOPPER_THREADS), (size_t)shared_bytes};
	cudaLaunchConfig_t how = {};
	cudaLaunchAttribute pair = {};
	pair.id = cudaLaunchAttributeClusterDimension;
	pair.val.clusterDim.x = 2;
	pair.val.clusterDim.y = pair.val.clusterDim.z = 1;
	how.gridDim = grid;
	how.blockDim = dim3(HOPPER_THREADS);
	how.dynamicSmemBytes = (size_t)shared_bytes;
	how.stream = cuda_stream(d);
	how.attrs = &pair;
	how.numAttrs = 1;
	cuda_before_launch(d, &l);
	cuda_check_shared(d, name, (size_t)shared_bytes);
	cuda_check(d,
		cudaFuncSetAttribute(hopper_matmul<S>,
			cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
		name);
	cuda_check(d, cudaLaunchKernelEx(&how, hopper_matmul<S>, x), name);
	cuda_after_launch(d, name);
}

/* The map of a matrix as one head of attention, with boxes of `rows` rows and PANEL columns. */
static CUtensorMap panels_of(struct device *d, struct mat m, int rows)
{
	const struct heads all = {m.p, m.cols, m.rows, (int)m.cols, false, true};
	return tile_map(d, all, 1, m.type, rows);
}

static bool takes(
	struct device *d, struct mat y, struct mat x, struct mat w, struct mat bias)
{
	uintptr_t at = (uintptr_t)y.p | (uintptr_t)x.p | (uintptr_t)w.p;
	return cuda_of(d)->map_encode && y.type == DT_BF16 && x.type == DT_BF16 &&
	       w.type == DT_BF16 && (!bias.p || bias.type == DT_F32) && y.rows &&
	       y.cols && x.cols && x.cols % 8 == 0 && y.cols % 8 == 0 && at % 16 == 0 &&
	       max64(y.rows, max64(y.cols, x.cols)) < INT32_MAX / 2;
}

template <typename S>
static bool matmul(
	struct device *d, struct mat y, struct mat x, struct mat w, struct mat bias)
{
	enum {
		SECTION = 12,
		PAD = PANEL_ALIGN - 128
	}; /* SHARED() is at a multiple of 128 */
	constexpr int BYTES = PAD + S::TILES + (int)sizeof(struct matmul_rest<S::STAGES>);
	static_assert(BYTES <= 227 << 10, "shared memory of sm_90");
	int64_t m_tiles = ceil_div(y.rows, TILE_M * S::BLOCKS);
	int64_t n_tiles = ceil_div(y.cols, TILE_N), items = m_tiles * n_tiles;
	BUG_ON(x.rows != y.rows || w.rows != y.cols || w.cols != x.cols);
	if (!takes(d, y, x, w, bias) || items > INT32_MAX / 2)
		return false;
	const struct matmul_args args = {panels_of(d, x, TILE_M),
		panels_of(d, w, TILE_N / S::BLOCKS), panels_of(d, y, STORE_ROWS),
		(__nv_bfloat16 *)y.p, (const float *)bias.p, (int)y.rows, (int)y.cols,
		(int)ceil_div(x.cols, PANEL),
		{(int)m_tiles, (int)n_tiles, (int)min64(SECTION, n_tiles), (int)items}};
	int64_t blocks =
		min64(items, cuda_of(d)->multiprocessors / S::BLOCKS) * S::BLOCKS;
	if (S::PAIR)
		launch_pairs<S>(d, "matmul_hopper", dim3((unsigned)blocks), BYTES, args);
	else
		launch(d, "matmul_hopper", dim3((unsigned)blocks), dim3(HOPPER_THREADS),
			BYTES, hopper_matmul<S>, args);
	return true;
}

/* The simplest is the first. */
extern "C" __attribute__((visibility("default")))
const struct matmul_variant pt_matmuls_hopper[] = {
	{"matmul_hopper, plain", matmul<matmul_shape<4, false, false, false, false>>},
	{"matmul_hopper, lag", matmul<matmul_shape<4, true, true, false, false>>},
	{"matmul_hopper, over", matmul<matmul_shape<4, true, true, true, false>>},
	{"matmul_hopper, pair without lag",
		matmul<matmul_shape<4, true, false, true, true>>},
	{"matmul_hopper, pair", matmul<matmul_shape<4, true, true, true, true>>},
	{NULL, NULL},
};
