/* Shared by the forward and the backward of attention. A block keeps one tile of its own side
 * (queries or keys) and loops over the tiles of the other side, which are copied to shared
 * memory while the previous tile is computed. A warp has 16 or 32 of the block's rows with all
 * columns of every matmul, in the layout of mma(). So one warp has a whole row, and computed
 * probabilities are an operand of the next matmul without leaving their registers.
 *
 * 16-bit types use tensor cores and 2^x; fp32 uses fmaf and expf. The kernels are the same: a
 * lane has the same elements of a matrix. */
#pragma once

#include "kernels/cuda/attn_matmul.h"

extern "C" {
#include "base/philox.h"
}

/* Calls fn(head_size<D>()) with the smallest instantiated D >= dim; the padding is zero. fp32
 * has fewer sizes, because kernels take long to compile. */
template <int D> struct head_size {
	static constexpr int value = D;
};

template <typename T, typename F> static inline void call_by_head_size(int64_t dim, F fn)
{
	if constexpr (sizeof(T) < 4) {
		if (dim <= 32)
			return fn(head_size<32>());
		if (dim > 64 && dim <= 96)
			return fn(head_size<96>());
	}
	if (dim <= 64)
		fn(head_size<64>());
	else if (dim <= 128)
		fn(head_size<128>());
	else if (dim <= 256)
		fn(head_size<256>());
	else
		BUG_ON("attention heads of more than 256 elements");
}

/* ---- probabilities ------------------------------------------------------------------ */

#define LOG2_E 1.44269504f
#define LN_2 0.693147181f

/* Returns the units in a score of 1: a unit is 1 for fp32, and log 2 for 16-bit types. */
template <typename T> static __host__ __device__ constexpr float units_per_one(void)
{
	return sizeof(T) == 4 ? 1 : LOG2_E;
}

/* Returns e^x for a score x in units. */
template <typename T> static __device__ inline float exp_units(float x)
{
	return sizeof(T) == 4 ? expf(x) : exp2_fast(x);
}

/* Returns the natural logarithm of sum e^x, with x in units. */
template <typename T> static __device__ inline float log_units(float x, float sum)
{
	return sizeof(T) == 4 ? x + logf(sum) : (x + log2f(sum)) * LN_2;
}

/* Returns the rows of the other side's tile that a row at `pos` attends to (KEYS: attended by). */
template <bool KEYS>
static __device__ inline struct tile_span attended_rows(struct tile_span tile, int pos)
{
	if (KEYS)
		tile.from = max(tile.from, pos - tile.pos);
	else
		tile.to = min(tile.to, pos - tile.pos + 1);
	return tile;
}

/* Returns true if rows [pos, pos + rows) attend to all of the other side's tile, of `size` rows
 * (KEYS: if the whole tile attends to the rows). */
template <bool KEYS>
static __device__ inline bool all_attend(
	struct tile_span tile, int size, int pos, int rows)
{
	bool before = KEYS ? pos + rows - 1 <= tile.pos : tile.pos + size - 1 <= pos;
	return before && tile.from == 0 && tile.to == size;
}

/* Returns true if any of rows [pos, pos + rows) attends to the tile (KEYS: the tile to any). */
template <bool KEYS>
static __device__ inline bool any_attends(struct tile_span tile, int pos, int rows)
{
	return KEYS ? pos <= tile.pos + tile.to - 1
		    : tile.pos + tile.from <= pos + rows - 1;
}

struct drop {
	struct philox_key key;
	const uint32_t *step;
	uint32_t first_sample, first_head;
	uint32_t below; /* an element is dropped if its random word is smaller */
	float scale;
};

/* Returns the dropout of a call in the form that kernels use. */
static inline struct drop make_drop(const struct attn *a)
{
	/* philox_uniform(x) < p, without rounding, is x >> 8 < p 2^24 */
	uint32_t below = (uint32_t)ceil((double)a->drop.p * 0x1p24) << 8;
	return {a->drop.key, a->drop.step, (uint32_t)a->drop.first_sample,
		(uint32_t)a->first_head, below, 1 / (1 - a->drop.p)};
}

/* Sets keep[] to 0 or 1/(1-p) for the four elements that a lane has in 16 x 8 scores. `row` and
 * `col` are the positions of the first row and column; rows are keys if KEYS, else queries. A
 * Philox block is for one query and four consecutive keys: lanes that need words of the same blocks
 * compute one block each and exchange words. */
template <bool KEYS>
static __device__ inline void dropout_factors(
	float keep[4], const struct drop &d, int batch, int head, int row, int col)
{
	int lane = lane_id(), g = lane / 4, t = lane % 4;
	uint32_t high = (d.first_head + head) << 20, sample = d.first_sample + batch;
	uint32_t step = __ldg(d.step), w[4];
	if (KEYS) {
		/* Four lanes have rows 4j .. 4j + 3: lane i computes the block of element i of each
		 * and receives word i of the four blocks: a transposition. */
		int key = row + (g & ~3) + (g & 2) * 4, query = col + 2 * t + (g & 1);
		struct philox_block x =
			philox(d.key, high | key >> 2, query, sample, step);
		bool odd = g & 1, upper = g & 2;
		for (int i = 0; i < 4; i += 2) {
			uint32_t sent = odd ? x.x[i] : x.x[i + 1];
			uint32_t received = __shfl_xor_sync(ALL_LANES, sent, 4);
			w[i] = odd ? received : x.x[i];
			w[i + 1] = odd ? x.x[i + 1] : received;
		}
		for (int i = 0; i < 2; i++) {
			uint32_t sent = upper ? w[i] : w[i + 2];
			uint32_t received = __shfl_xor_sync(ALL_LANES, sent, 8);
			w[i] = upper ? received : w[i];
			w[i + 2] = upper ? w[i + 2] : received;
		}
	} else {
		/* Lanes t and t + 1 need halves of the two blocks of rows g and g + 8. */
		bool odd = t & 1;
		int key = col + 2 * t, query = row + g + (odd ? 8 : 0);
		struct philox_block x =
			philox(d.key, high | key >> 2, query, sample, step);
		uint32_t received0 = __shfl_xor_sync(ALL_LANES, odd ? x.x[0] : x.x[2], 1);
		uint32_t received1 = __shfl_xor_sync(ALL_LANES, odd ? x.x[1] : x.x[3], 1);
		w[0] = odd ? received0 : x.x[0];
		w[1] = odd ? received1 : x.x[1];
		w[2] = odd ? x.x[2] : received0;
		w[3] = odd ? x.x[3] : received1;
	}
	for (int i = 0; i < 4; i++)
		keep[i] = w[i] < d.below ? 0 : d.scale;
}

/* Stores x and y as T at to[0] and to[1], or only the first n. whole: `to` is aligned for both. */
template <typename T>
static __device__ inline void store_two(T *to, float x, float y, int n, bool whole)
{
	if (whole && n >= 2) {
		pack<T, 2> p = {{narrow<T>(x), narrow<T>(y)}};
		*(pack<T, 2> *)to = p;
		return;
	}
	if (n > 0)
		to[0] = narrow<T>(x);
	if (n > 1)
		to[1] = narrow<T>(y);
}

/* Returns *x, or 0 without a load. */
static __device__ inline float load_if(const float *x, bool is_present)
{
	return is_present ? *x : 0;
}

/* Stores c times the factor of each row to rows [row, row + 16 MT) of a tile; with `add`, adds to
 * the stored rows, in fp32. */
template <typename T, int D, int MT>
static __device__ inline void store_tile_rows(struct heads m, int batch, int head,
	struct tile_span s, int row, const float (&c)[MT][D / 8][4],
	const float (&factor)[MT][2], bool add)
{
	int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
	for (int i = 0; i < MT * 2; i++) {
		int r = row + 8 * i + g;
		if (r < s.from || r >= s.to)
			continue;
		int64_t at = (s.row + r) * m.stride;
		float *wide = head_at<float>(m, batch, head) + at;
		T *narrow = head_at<T>(m, batch, head) + at;
#pragma unroll
		for (int n = 0; n < D / 8; n++) {
			int col = 8 * n + 2 * t, left = m.dim - col;
			float x = c[i / 2][n][i % 2 * 2] * factor[i / 2][i % 2];
			float y = c[i / 2][n][i % 2 * 2 + 1] * factor[i / 2][i % 2];
			if (!m.wide) {
				store_two(narrow + col, x, y, left, m.whole);
				continue;
			}
			if (add) {
				x += load_if(wide + col, left > 0);
				y += load_if(wide + col + 1, left > 1);
			}
			store_two(wide + col, x, y, left, m.whole);
		}
	}
}
