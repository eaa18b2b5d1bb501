/*
 * What the forward and the backward of attention share. Both go over tiles: one of the
 * block's own rows, which stays, and one after another of the other side's, which are copied
 * to shared memory while the one before is computed with. A warp has 16 or 32 of the block's
 * rows, and of every matmul all the columns of these, as mma() lays them out; so a row is
 * one warp's, and what has been computed (probabilities) is an operand of the next matmul
 * as it lies in the registers.
 *
 * Numbers of 16 bits are multiplied by tensor cores and the exponential is 2^x; those of 32 by
 * fmaf, with expf. The kernels are the same: a lane has the same places of a matrix.
 */
#ifndef KERNELS_CUDA_ATTN_H
#define KERNELS_CUDA_ATTN_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/mma.h"

extern "C" {
#include "base/philox.h"
}

/* fn(head_size<D>()) with the first D that a head of `dim` numbers fits into; the rest is
 * zeros. Numbers of 32 bits do with fewer sizes, since kernels take long to compile. */
template <int D> struct head_size {
	static constexpr int value = D;
};

template <typename T, typename F> static inline void by_head_size(int64_t dim, F fn)
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
		BUG_ON("a head of attention of over 256 numbers");
}

/* ---- positions -------------------------------------------------------------------- */

/*
 * A chunk of a sequence: runs of consecutive positions, of equal length. Tiles begin at
 * positions that are multiples of 4, as the blocks of random numbers for dropout do, so the
 * first tile of a run may begin before it.
 */
struct runs {
	int n, len, pos[2];
};

static inline struct runs runs_of(int64_t rows, const int64_t first[2])
{
	int64_t half = rows / 2;
	struct runs r = {1, (int)rows, {(int)first[0], 0}};
	if (first[1] != first[0] + half && half * 2 == rows)
		r = {2, (int)half, {(int)first[0], (int)first[1]}};
	return r;
}

static __host__ __device__ inline int run_tiles(struct runs r, int run, int size)
{
	return run < r.n ? (r.pos[run] % 4 + r.len + size - 1) / size : 0;
}

static __host__ __device__ inline int all_tiles(struct runs r, int size)
{
	return run_tiles(r, 0, size) + run_tiles(r, 1, size);
}

/* A tile: row i is position pos + i, and row `row` + i of the chunk, for i in [from, to). */
struct span {
	int pos, row, from, to;
};

static __device__ inline struct span span_of(struct runs r, int size, int tile)
{
	int before = run_tiles(r, 0, size), run = tile >= before;
	int first = run ? r.pos[1] : r.pos[0];
	int pos = first - first % 4 + (run ? tile - before : tile) * size;
	return {pos, run * r.len + pos - first, max(0, first - pos),
		min(size, first + r.len - pos)};
}

/* Those of a chunk's tiles that a tile of the other side sees, or is seen from: of the first
 * run `n0` from tile `skip[0]` on, then those of the second. */
struct visible {
	int n, n0, skip[2];
};

static __device__ inline struct span visible_tile(
	struct runs r, int size, struct visible v, int i)
{
	int second = run_tiles(r, 0, size) - v.n0;
	return span_of(r, size, i < v.n0 ? i + v.skip[0] : i + second + v.skip[1]);
}

/* The tiles of keys in which a position up to `last` is. */
static __device__ inline struct visible keys_until(struct runs r, int size, int last)
{
	int n[2] = {0, 0};
#pragma unroll
	for (int i = 0; i < 2; i++)
		if (i < r.n && last >= r.pos[i])
			n[i] = min(run_tiles(r, i, size),
				(last - r.pos[i] + r.pos[i] % 4) / size + 1);
	return {n[0] + n[1], n[0], {0, 0}};
}

/* The tiles of queries in which a position from `first` on is. */
static __device__ inline struct visible queries_from(struct runs r, int size, int first)
{
	int n[2], skip[2];
#pragma unroll
	for (int i = 0; i < 2; i++) {
		int all = run_tiles(r, i, size);
		int before = max(0, first - r.pos[i] + r.pos[i] % 4) / size;
		skip[i] = first < r.pos[i] + r.len ? min(all, before) : all;
		n[i] = all - skip[i];
	}
	return {n[0] + n[1], n[0], {skip[0], skip[1]}};
}

/* ---- matrices in memory ------------------------------------------------------------ */

/* Heads of all sequences: [batch][rows][heads][dim]. */
struct heads {
	void *p;
	int64_t stride, rows;
	int dim;
	bool wide;  /* fp32, whatever the other matrices are */
	bool whole; /* every row can be read and written in 16 bytes at a time */
};

static inline struct heads heads_of(struct mat m, int64_t rows, int64_t dim)
{
	int64_t bytes = dtype_bytes(m.type);
	bool whole = dim * bytes % 16 == 0 && (uintptr_t)m.p % 16 == 0;
	return {m.p, m.cols, rows, (int)dim, m.type == DT_F32, whole};
}

template <typename T>
static __device__ inline T *head_at(struct heads m, int batch, int head)
{
	return (T *)m.p + batch * m.rows * m.stride + (int64_t)head * m.dim;
}

/* ---- tiles ------------------------------------------------------------------------ */

/*
 * Piece c, of 16 bytes, of a row of a tile in shared memory. Pieces of a row are permuted by
 * the number of the row so that one piece of each of 8 rows is in 8 different groups of banks,
 * which is what ldmatrix reads at once.
 */
template <int D, typename T> static __device__ inline T *piece(T *tile, int row, int c)
{
	constexpr int N = 16 / sizeof(T), PIECES = D / N;
	c ^= PIECES % 8 ? row >> 1 & 3 : row & 7;
	return tile + (row * PIECES + c) * N;
}

/* A tile from a head's rows, zeros where there are none. Done when waited for. */
template <int D, int ROWS, int THREADS, typename T>
static __device__ inline void load_tile(
	T *tile, struct heads m, int batch, int head, struct span s)
{
	constexpr int N = 16 / sizeof(T), PIECES = D / N;
	static_assert(ROWS * PIECES % THREADS == 0, "all threads copy as much");
	const T *rows = head_at<const T>(m, batch, head);
#pragma unroll 2
	for (int i = 0; i < ROWS * PIECES / THREADS; i++) {
		int at = i * THREADS + threadIdx.x, row = at / PIECES, c = at % PIECES;
		bool there = row >= s.from && row < s.to && c * N < m.dim;
		const T *x = there ? rows + (s.row + row) * m.stride + c * N : rows;
		T *to = piece<D>(tile, row, c);
		if (m.whole) {
			copy_async(to, x, there);
			continue;
		}
		pack<T, N> some;
		for (int e = 0; e < N; e++)
			some.x[e] = there && c * N + e < m.dim ? x[e] : narrow<T>(0);
		*(pack<T, N> *)to = some;
	}
}

/* ---- matmuls ---------------------------------------------------------------------- */

static __device__ inline int lane_id(void)
{
	return threadIdx.x % WARP;
}

template <int D, typename T, int MT, int NT>
static __device__ inline void matmul_16(
	float (&c)[MT][NT][4], const T *a, int row, const T *b)
{
	int lane = lane_id();
#pragma unroll
	for (int k = 0; k < D / 16; k++) {
		uint32_t x[MT][4], y[4];
#pragma unroll
		for (int m = 0; m < MT; m++)
			ldmatrix(x[m],
				piece<D>(a, row + 16 * m + lane % 16, 2 * k + lane / 16));
#pragma unroll
		for (int n = 0; n < NT; n += 2) {
			ldmatrix(y, piece<D>(b, 8 * n + lane / 16 * 8 + lane % 8,
					    2 * k + lane / 8 % 2));
#pragma unroll
			for (int m = 0; m < MT; m++) {
				mma(c[m][n], x[m], y, T());
				mma(c[m][n + 1], x[m], y + 2, T());
			}
		}
	}
}

static __device__ inline float dot4(float sum, float4 a, float4 b)
{
	sum = fmaf(a.x, b.x, sum);
	sum = fmaf(a.y, b.y, sum);
	sum = fmaf(a.z, b.z, sum);
	return fmaf(a.w, b.w, sum);
}

template <int D, int MT, int NT>
static __device__ inline void matmul_32(
	float (&c)[MT][NT][4], const float *a, int row, const float *b)
{
	int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll 2
	for (int k = 0; k < D / 4; k++) {
#pragma unroll
		for (int m = 0; m < MT; m++) {
			float4 x0 = *(const float4 *)piece<D>(a, row + 16 * m + g, k);
			float4 x1 = *(const float4 *)piece<D>(a, row + 16 * m + g + 8, k);
#pragma unroll
			for (int n = 0; n < NT; n++) {
				float4 y0 =
					*(const float4 *)piece<D>(b, 8 * n + 2 * t, k);
				float4 y1 = *(const float4 *)piece<D>(
					b, 8 * n + 2 * t + 1, k);
				c[m][n][0] = dot4(c[m][n][0], x0, y0);
				c[m][n][1] = dot4(c[m][n][1], x0, y1);
				c[m][n][2] = dot4(c[m][n][2], x1, y0);
				c[m][n][3] = dot4(c[m][n][3], x1, y1);
			}
		}
	}
}

/* c[16 MT, 8 NT] += rows [row, row + 16 MT) of a times the rows of b, transposed. */
template <int D, typename T, int MT, int NT>
static __device__ inline void matmul(
	float (&c)[MT][NT][4], const T *a, int row, const T *b)
{
	if constexpr (sizeof(T) == 4)
		matmul_32<D>(c, a, row, b);
	else
		matmul_16<D>(c, a, row, b);
}

template <typename T> static __device__ inline uint32_t both(float low, float high)
{
	pack<T, 2> p = {{narrow<T>(low), narrow<T>(high)}};
	uint32_t bits;
	memcpy(&bits, &p, sizeof(bits));
	return bits;
}

template <int D, typename T, int MT, int NT>
static __device__ inline void matmul_held_16(
	float (&c)[MT][D / 8][4], const float (&p)[MT][NT][4], const T *b)
{
	int lane = lane_id();
#pragma unroll
	for (int k = 0; k < NT / 2; k++) {
		uint32_t x[MT][4], y[4];
#pragma unroll
		for (int m = 0; m < MT; m++) {
			const float *left = p[m][2 * k], *right = p[m][2 * k + 1];
			x[m][0] = both<T>(left[0], left[1]);
			x[m][1] = both<T>(left[2], left[3]);
			x[m][2] = both<T>(right[0], right[1]);
			x[m][3] = both<T>(right[2], right[3]);
		}
#pragma unroll
		for (int n = 0; n < D / 8; n += 2) {
			ldmatrix_transposed(
				y, piece<D>(b, 16 * k + lane % 16, n + lane / 16));
#pragma unroll
			for (int m = 0; m < MT; m++) {
				mma(c[m][n], x[m], y, T());
				mma(c[m][n + 1], x[m], y + 2, T());
			}
		}
	}
}

/* c += the product of two columns of x, {(g, 0), (g, 1), (g + 8, 0), (g + 8, 1)}, and y. */
static __device__ inline void rank_two(float c[4], const float x[4], float2 y0, float2 y1)
{
	c[0] = fmaf(x[1], y1.x, fmaf(x[0], y0.x, c[0]));
	c[1] = fmaf(x[1], y1.y, fmaf(x[0], y0.y, c[1]));
	c[2] = fmaf(x[3], y1.x, fmaf(x[2], y0.x, c[2]));
	c[3] = fmaf(x[3], y1.y, fmaf(x[2], y0.y, c[3]));
}

template <int D, int MT, int NT>
static __device__ inline void matmul_held_32(
	float (&c)[MT][D / 8][4], const float (&p)[MT][NT][4], const float *b)
{
	int lane = lane_id(), t = lane % 4;
#pragma unroll
	for (int k = 0; k < NT; k++) {
#pragma unroll 1 /* or so many numbers are loaded early that registers run out */
		for (int i = 0; i < 4; i++) {
			const int row = 8 * k + 2 * i;
			float x[MT][4];
#pragma unroll
			for (int m = 0; m < MT; m++)
#pragma unroll
				for (int e = 0; e < 4; e++)
					x[m][e] = __shfl_sync(
						ALL_LANES, p[m][k][e], (lane & ~3) | i);
#pragma unroll
			for (int n = 0; n < D / 8; n++) {
				int at = 2 * n + t / 2, e = 2 * t % 4;
				float2 y0 = *(const float2 *)(piece<D>(b, row, at) + e);
				float2 y1 =
					*(const float2 *)(piece<D>(b, row + 1, at) + e);
#pragma unroll
				for (int m = 0; m < MT; m++)
					rank_two(c[m][n], x[m], y0, y1);
			}
		}
	}
}

/* c[16 MT, D] += p[16 MT, 8 NT], rounded to T, times the rows of b. */
template <int D, typename T, int MT, int NT>
static __device__ inline void matmul_held(
	float (&c)[MT][D / 8][4], const float (&p)[MT][NT][4], const T *b)
{
	if constexpr (sizeof(T) == 4)
		matmul_held_32<D>(c, p, b);
	else
		matmul_held_16<D>(c, p, b);
}

/* ---- probabilities ------------------------------------------------------------------ */

#define LOG2_E 1.44269504f
#define LN_2 0.693147181f

/* Scores are in units of 1 for numbers of 32 bits, and of log 2 for those of 16. */
template <typename T> static __host__ __device__ constexpr float units_a_one(void)
{
	return sizeof(T) == 4 ? 1 : LOG2_E;
}

template <typename T> static __device__ inline float exp_units(float x)
{
	return sizeof(T) == 4 ? expf(x) : exp2_fast(x);
}

/* x in units plus the logarithm of `sum`, in ones. */
template <typename T> static __device__ inline float log_units(float x, float sum)
{
	return sizeof(T) == 4 ? x + logf(sum) : (x + log2f(sum)) * LN_2;
}

/* Of the other side's tile, the rows that one row's position sees, or is seen from. */
template <bool KEYS>
static __device__ inline struct span seen(struct span theirs, int pos)
{
	if (KEYS)
		theirs.from = max(theirs.from, pos - theirs.pos);
	else
		theirs.to = min(theirs.to, pos - theirs.pos + 1);
	return theirs;
}

/* Do rows [pos, pos + rows) see all of the other side's tile, of `size` rows; and any? */
template <bool KEYS>
static __device__ inline bool sees_all(struct span theirs, int size, int pos, int rows)
{
	bool before = KEYS ? pos + rows - 1 <= theirs.pos : theirs.pos + size - 1 <= pos;
	return before && theirs.from == 0 && theirs.to == size;
}

template <bool KEYS>
static __device__ inline bool sees_any(struct span theirs, int pos, int rows)
{
	return KEYS ? pos <= theirs.pos + theirs.to - 1
		    : theirs.pos + theirs.from <= pos + rows - 1;
}

/* ---- dropout ----------------------------------------------------------------------- */

struct drop {
	struct philox_key key;
	const uint32_t *step;
	uint32_t first_sample, first_head;
	uint32_t below; /* a word below this drops */
	float scale;
};

static inline struct drop drop_of(const struct attn *a)
{
	/* philox_uniform(x) < p, without rounding, is x >> 8 < p 2^24 */
	uint32_t below = (uint32_t)ceil((double)a->drop.p * 0x1p24) << 8;
	return {a->drop.key, a->drop.step, (uint32_t)a->drop.first_sample,
		(uint32_t)a->first_head, below, 1 / (1 - a->drop.p)};
}

/*
 * keep[] of the four places that a lane has in 16 x 8 scores, whose first row and column are
 * at positions `row` and `col`; rows are keys if KEYS, else queries. A block of random numbers
 * is for four keys in a row, of one query: those who need a part of the same blocks compute
 * one each, and exchange.
 */
template <bool KEYS>
static __device__ inline void drop_places(
	float keep[4], const struct drop &d, int batch, int head, int row, int col)
{
	int lane = lane_id(), g = lane / 4, t = lane % 4;
	uint32_t high = (d.first_head + head) << 20, sample = d.first_sample + batch;
	uint32_t step = __ldg(d.step), w[4];
	if (KEYS) {
		/* Lane i of four, which have rows 4j .. 4j + 3, has the block for all their
		 * place i, and gets word i of the four blocks: a transposition. */
		int key = row + (g & ~3) + (g & 2) * 4, query = col + 2 * t + (g & 1);
		struct philox_block x =
			philox(d.key, high | key >> 2, query, sample, step);
		bool odd = g & 1, upper = g & 2;
		for (int i = 0; i < 4; i += 2) {
			uint32_t give = odd ? x.x[i] : x.x[i + 1];
			uint32_t got = __shfl_xor_sync(ALL_LANES, give, 4);
			w[i] = odd ? got : x.x[i];
			w[i + 1] = odd ? x.x[i + 1] : got;
		}
		for (int i = 0; i < 2; i++) {
			uint32_t give = upper ? w[i] : w[i + 2];
			uint32_t got = __shfl_xor_sync(ALL_LANES, give, 8);
			w[i] = upper ? got : w[i];
			w[i + 2] = upper ? w[i + 2] : got;
		}
	} else {
		/* Lanes t and t + 1 need halves of two blocks, of row g and of g + 8. */
		bool odd = t & 1;
		int key = col + 2 * t, query = row + g + (odd ? 8 : 0);
		struct philox_block x =
			philox(d.key, high | key >> 2, query, sample, step);
		uint32_t got0 = __shfl_xor_sync(ALL_LANES, odd ? x.x[0] : x.x[2], 1);
		uint32_t got1 = __shfl_xor_sync(ALL_LANES, odd ? x.x[1] : x.x[3], 1);
		w[0] = odd ? got0 : x.x[0];
		w[1] = odd ? got1 : x.x[1];
		w[2] = odd ? x.x[2] : got0;
		w[3] = odd ? x.x[3] : got1;
	}
	for (int i = 0; i < 4; i++)
		keep[i] = w[i] < d.below ? 0 : d.scale;
}

/* ---- results ----------------------------------------------------------------------- */

template <typename T>
static __device__ inline void put_two(T *to, float x, float y, int n, bool whole)
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

static __device__ inline float value_if(const float *x, bool there)
{
	return there ? *x : 0;
}

/* Rows [row, row + 16 MT) of a tile become c times the factor of each row, plus what is there
 * (in 32 bits) if `add`. */
template <typename T, int D, int MT>
static __device__ inline void put_rows(struct heads m, int batch, int head, struct span s,
	int row, const float (&c)[MT][D / 8][4], const float (&factor)[MT][2], bool add)
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
				put_two(narrow + col, x, y, left, m.whole);
				continue;
			}
			if (add) {
				x += value_if(wide + col, left > 0);
				y += value_if(wide + col + 1, left > 1);
			}
			put_two(wide + col, x, y, left, m.whole);
		}
	}
}

#endif
