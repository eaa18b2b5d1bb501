/*
 * Attention for sm_90 (FlashAttention-3: Shah et al. 2024): two or three consumer warpgroups
 * use wgmma, and a producer warpgroup enqueues TMA copies of tiles into a ring of stages in
 * shared memory. It supports 16-bit types, heads of 64 and 128, no dropout, no documents, and the
 * queries of a chunk with the keys of the same chunk; attn_fwd.cu and attn_bwd.cu compute all
 * other calls.
 *
 * Rows of such a chunk are in the order of their positions, so a query attends to the keys up
 * to its row. Tiles begin at multiples of 64 rows; their places depend only on the rows of a chunk.
 */
#pragma once

#include "kernels/cuda/attn_bwd.h"
#include "kernels/cuda/attn_fwd.h"
#include "kernels/cuda/hopper.h"

/* Returns true if the device has these kernels and they support the call: TMA needs operands that
 * are `whole`. The result depends only on the device, types and shapes, since callers' addresses
 * are multiples of 16. */
bool attn_hopper_supports(struct device *d, const struct attn *a, enum dtype type,
	struct heads q, struct heads k, struct heads v);
void attn_hopper_fwd(struct device *d, const struct attn *a, enum dtype type,
	const struct fwd_args &x);
/* Computes the gradients; delta is already computed. */
void attn_hopper_bwd(struct device *d, const struct attn *a, enum dtype type,
	const struct bwd_args &x);

struct attn_work *attn_work(struct device *d);
/* Returns true if TMA can store rows of m, by store_rows_by_tma(). */
bool rows_storable(struct device *d, struct heads m);
/* Returns the tensor map to store rows of m; an empty one if TMA cannot. */
CUtensorMap rows_map(struct device *d, struct heads m, int64_t batch, enum dtype type);
/* Returns a grid with one block per multiprocessor (persistent blocks), except those that
 * PT_LAB_ATTN_SPARE leaves to other streams; fewer for few items. */
dim3 persistent_grid(struct device *d, const struct hopper_order &o);

/* Returns a tensor map with boxes of `rows` rows and PANEL elements of a head. */
CUtensorMap tile_map(
	struct device *d, struct heads m, int64_t batch, enum dtype type, int rows);

/* ---- the blocks of a grid ------------------------------------------------------------- */

/* A work item is one tile of rows of one head. The longest items are first, within a section
 * of heads: as many heads as fit into the L2 cache with the rows that their blocks read.
 *
 * There is one block for each multiprocessor. It takes the next free item before its last one ends,
 * so that the first tiles of an item are copied meanwhile. Its first item is a free one, too: while
 * kernels of NCCL keep multiprocessors, the blocks there begin when others end, and item i, one of
 * the longest, must not wait for block i. The bits of an item do not depend on its block. */
struct hopper_order {
	int tiles, groups, section; /* per head; key heads: in all, of a section */
	int heads, kv_heads;	    /* heads that have items; key heads */
	int items;
	bool once; /* false: PT_LAB_OFF=attn-item, consumers compute the place of an item */
	bool any_first; /* false: PT_LAB_OFF=attn-first, block i begins with item i */
	struct attn_work *work;
};

/* Returns the order of the work items of a call with tiles of tile_rows rows and `heads` heads. */
static inline struct hopper_order make_order(struct device *d, const struct attn *a,
	int tile_rows, int64_t heads, enum dtype type)
{
	enum { CACHE = 16 << 20 };
	int64_t bytes = 2 * a->k_rows * a->dim * dtype_bytes(type);
	int64_t groups = a->batch * a->kv_heads;
	int64_t tiles = (a->q_rows + tile_rows - 1) / tile_rows;
	return {(int)tiles, (int)groups, (int)min64(groups, max64(1, CACHE / bytes)),
		(int)heads, (int)a->kv_heads,
		(int)(tiles * groups * (heads / a->kv_heads)),
		!cuda_lab_off(d, LAB_ATTN_ITEM), !cuda_lab_off(d, LAB_ATTN_FIRST),
		attn_work(d)};
}

/* Takes the next item from the counter that all blocks share; o.items or more: none is left. */
static __device__ inline int next_item(const struct hopper_order &o)
{
	return (int)((o.any_first ? 0 : gridDim.x) + atomicAdd(&o.work->taken, 1u));
}

/* Returns the block's first item, which may have to be taken from the shared counter. */
static __device__ inline int first_item(const struct hopper_order &o)
{
	return o.any_first ? next_item(o) : (int)blockIdx.x;
}

/* Ends the items of a block: the last block zeroes the counters. */
static __device__ inline void items_end(const struct hopper_order &o)
{
	__threadfence(); /* its last take is visible before its end */
	if (atomicAdd(&o.work->ended, 1u) == gridDim.x - 1) {
		__threadfence();
		o.work->taken = 0;
		o.work->ended = 0;
	}
}

struct hopper_place {
	int tile, head, batch; /* tile 0 is the first to compute */
};

/* Returns the tile, head and sequence of an item. */
static __device__ inline struct hopper_place item_place(
	const struct hopper_order &o, int item)
{
	int group = o.heads / o.kv_heads, per_section = o.section * group * o.tiles;
	int first = item / per_section * o.section;
	int in_section = min(o.section, o.groups - first);
	int i = item % per_section, head = i % (in_section * group);
	int kv = first + head / group;
	return {i / (in_section * group), kv % o.kv_heads * group + head % group,
		kv / o.kv_heads};
}

/* An item and its place in shared memory. The producer computes them while its block's tiles are
 * still in use. */
struct alignas(16) hopper_item {
	int item;
	struct hopper_place at;
};

static __device__ inline struct hopper_item make_item(
	const struct hopper_order &o, int item)
{
	return {item, item < o.items ? item_place(o, item) : hopper_place()};
}

static __device__ inline struct hopper_place item_place(
	const struct hopper_order &o, const struct hopper_item &i)
{
	return o.once ? i.at : item_place(o, i.item);
}

/* ---- windows --------------------------------------------------------------------------
 *
 * Rows of a chunk that attend to each other with a window. WINDOW is false for kernels without
 * windows, which have no code for them. */

/* Returns the position in the sequence of a row of the chunk. */
static __device__ inline int row_position(struct tile_runs r, int row)
{
	return r.n > 1 && row >= r.len ? r.pos[1] + row - r.len : r.pos[0] + row;
}

/* Returns the row of the first key that a query attends to. */
static __device__ inline int first_row(struct tile_runs r, int window, int query)
{
	int pos = row_position(r, query) - window + 1;
	if (r.n > 1 && pos >= r.pos[0] + r.len)
		return r.len + max(0, pos - r.pos[1]);
	return max(0, pos - r.pos[0]);
}

/* Returns the row of the last query that attends to a key. */
static __device__ inline int last_row(struct tile_runs r, int window, int key)
{
	int pos = row_position(r, key) + window - 1;
	if (r.n > 1 && pos >= r.pos[1])
		return r.len + min(r.len - 1, pos - r.pos[1]);
	return min(r.len - 1, pos - r.pos[0]);
}

/* ---- inside a block -------------------------------------------------------------------- */

/* GROUP_ROWS: rows of a consumer warpgroup. */
enum { CONSUMERS = 2, HOPPER_THREADS = (1 + CONSUMERS) * WARPGROUP, GROUP_ROWS = 64 };

/* few, many: registers per thread of the producer warpgroup and of the consumers. Their total must
 * not exceed the registers that the block was launched with, a multiple of 8 per thread, or
 * setmaxnreg.inc would wait forever. */
static constexpr bool registers_fit(int few, int many, int consumers = CONSUMERS)
{
	int threads = (1 + consumers) * WARPGROUP;
	return few + consumers * many <= (1 + consumers) * (65536 / threads / 8 * 8);
}

/* Returns the bytes of tiles and of `other`, with padding to align the tiles to PANEL_ALIGN. */
static constexpr int hopper_bytes(int tiles, int other)
{
	return PANEL_ALIGN + tiles + other;
}

/* Returns the first aligned address for tiles in shared memory. */
static __device__ inline unsigned char *align_tiles(unsigned char *shared)
{
	return shared +
	       (PANEL_ALIGN - shared_address(shared) % PANEL_ALIGN) % PANEL_ALIGN;
}

/* Returns the warpgroup of this thread, as a value that the compiler knows to be warp-uniform. */
static __device__ inline int warpgroup_id(void)
{
	return __shfl_sync(ALL_LANES, threadIdx.x / WARPGROUP, 0);
}

/* A use of the ring of stages: its stage, and the parity of the phase of the stage's barriers. */
struct ring_use {
	int place, parity;
};

/* Returns use i of a ring, from 0 on: stage i % STAGES. */
template <int STAGES> static __device__ inline struct ring_use ring_use_at(int i)
{
	return {i % STAGES, i / STAGES % 2};
}

/* Enqueues copies of ROWS rows of a head from `row` on, panel by panel. */
template <int D, int ROWS, typename T>
static __device__ inline void load_panels(
	T *to, const CUtensorMap *map, uint64_t *barrier, int row, int head, int batch)
{
#pragma unroll
	for (int i = 0; i < D / PANEL; i++)
		tile_load(
			to + i * ROWS * PANEL, map, barrier, i * PANEL, head, row, batch);
}

/* Arrives at a barrier once for the whole warp, after all of its lanes have called this. */
static __device__ inline void warp_arrive(uint64_t *barrier)
{
	__syncwarp();
	if (lane_id() == 0)
		barrier_arrive(barrier);
}

/* ---- rows to global memory ---------------------------------------------------------------
 *
 * A warp writes its 16 rows to its own buffer in shared memory. TMA stores them from there while
 * the warp continues with its next item, and skips what is outside the chunk and the head. */

enum { WARP_ROWS = 16 };

/* Blocks until the buffers of this warp are free: TMA has read what was stored before. */
static __device__ inline void wait_buffers(void)
{
	if (lane_id() == 0)
		stores_wait();
	__syncwarp();
}

/* Enqueues the store of c times the factor of each row to the rows of a head from `row` on. buf:
 * [D / PANEL][WARP_ROWS][PANEL], swizzled as TMA expects; the lanes of a store use 32 banks. */
template <typename T, int D>
static __device__ inline void store_rows_by_tma(T *buf, const CUtensorMap *map,
	const float (&c)[D / 8][4], const float (&factor)[2], int row, int head,
	int batch)
{
	int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
	for (int n = 0; n < D / 8; n++) {
		T *panel = buf + n / 8 * WARP_ROWS * PANEL;
#pragma unroll
		for (int i = 0; i < 2; i++)
			*(uint32_t *)(piece<PANEL>(panel, g + 8 * i, n % 8) + 2 * t) =
				both<T>(c[n][2 * i] * factor[i],
					c[n][2 * i + 1] * factor[i]);
	}
	publish_stores();
	__syncwarp();
	if (lane_id() == 0) {
#pragma unroll
		for (int i = 0; i < D / PANEL; i++)
			tile_store(map, buf + i * WARP_ROWS * PANEL, i * PANEL, head, row,
				batch);
		stores_commit();
	}
}

/* Rounds sums p[16 rows, 8 NT] to 16 bits, in the layout of a left operand in registers. */
template <typename T, int NT>
static __device__ inline void pack_operand(
	uint32_t (&to)[NT / 2][4], const float (&p)[NT][4])
{
#pragma unroll
	for (int k = 0; k < NT / 2; k++) {
		to[k][0] = both<T>(p[2 * k][0], p[2 * k][1]);
		to[k][1] = both<T>(p[2 * k][2], p[2 * k][3]);
		to[k][2] = both<T>(p[2 * k + 1][0], p[2 * k + 1][1]);
		to[k][3] = both<T>(p[2 * k + 1][2], p[2 * k + 1][3]);
	}
}
