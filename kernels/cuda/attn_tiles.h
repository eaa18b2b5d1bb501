/* Data layouts of attention: tiles of a chunk of a sequence, matrices in global memory, and tiles
 * in shared memory. */
#pragma once

#include "kernels/cuda/mma.h"

#include <limits.h>

/* A chunk of a sequence: runs of consecutive positions, of equal length. Tiles begin at
 * positions that are multiples of 4, like the Philox blocks of dropout, so the first tile of
 * a run may begin before the run. */
struct tile_runs {
	int n, len, pos[2];
};

/* Returns the runs of a chunk: two, or one if they are adjacent. */
static inline struct tile_runs make_runs(int64_t rows, const int64_t first[2])
{
	int64_t half = rows / 2;
	struct tile_runs r = {1, (int)rows, {(int)first[0], 0}};
	if (first[1] != first[0] + half && half * 2 == rows)
		r = {2, (int)half, {(int)first[0], (int)first[1]}};
	return r;
}

/* Returns the number of tiles of `size` rows of a run of the chunk; 0 if the run is missing. */
static __host__ __device__ inline int run_tiles(struct tile_runs r, int run, int size)
{
	return run < r.n ? (r.pos[run] % 4 + r.len + size - 1) / size : 0;
}

static __host__ __device__ inline int all_tiles(struct tile_runs r, int size)
{
	return run_tiles(r, 0, size) + run_tiles(r, 1, size);
}

/* A tile: its row i is at position pos + i, and is row `row` + i of the chunk, for i in
 * [from, to). */
struct tile_span {
	int pos, row, from, to;
};

/* Returns tile number `tile` of the chunk, in tiles of `size` rows. */
static __device__ inline struct tile_span tile_at(struct tile_runs r, int size, int tile)
{
	int before = run_tiles(r, 0, size), run = tile >= before;
	int first = run ? r.pos[1] : r.pos[0];
	int pos = first - first % 4 + (run ? tile - before : tile) * size;
	return {pos, run * r.len + pos - first, max(0, first - pos),
		min(size, first + r.len - pos)};
}

/* The tiles of a chunk that a tile of the other side attends to, or that attend to it: n0 tiles
 * of the first run from skip[0] on, then n - n0 tiles of the second run from skip[1] on. */
struct visible {
	int n, n0, skip[2];
};

/* Returns the i-th of the visible tiles of a chunk. */
static __device__ inline struct tile_span visible_tile(
	struct tile_runs r, int size, struct visible v, int i)
{
	int second = run_tiles(r, 0, size) - v.n0;
	return tile_at(r, size, i < v.n0 ? i + v.skip[0] : i + second + v.skip[1]);
}

/* Returns the tiles of keys that have a position <= last. */
static __device__ inline struct visible keys_until(struct tile_runs r, int size, int last)
{
	int n[2] = {0, 0};
#pragma unroll
	for (int i = 0; i < 2; i++)
		if (i < r.n && last >= r.pos[i])
			n[i] = min(run_tiles(r, i, size),
				(last - r.pos[i] + r.pos[i] % 4) / size + 1);
	return {n[0] + n[1], n[0], {0, 0}};
}

/* Returns v without the tiles of keys that are before position `first`. */
static __device__ inline struct visible keys_from(
	struct visible v, struct tile_runs r, int size, int first)
{
	int n[2] = {v.n0, v.n - v.n0};
#pragma unroll
	for (int i = 0; i < 2; i++) {
		int before = max(0, first - r.pos[i] + r.pos[i] % 4) / size;
		v.skip[i] = min(n[i], before);
		n[i] -= v.skip[i];
	}
	v.n0 = n[0];
	v.n = n[0] + n[1];
	return v;
}

/* Returns the tiles of queries that have a position >= first. */
static __device__ inline struct visible queries_from(
	struct tile_runs r, int size, int first)
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

/* Windows and documents determine the first key that each query attends to: struct attn. STARTS is
 * false for kernels without either, which have no code for them. */
struct starts {
	const int *p; /* attn.start: [batch][row of the chunk] */
	int rows, window;
};

/* Returns attn.window as an int; INT_MAX: all keys. */
static inline int kernel_window(int64_t window)
{
	return window ? (int)min64(window, INT_MAX) : INT_MAX;
}

static inline struct starts make_starts(const struct attn *a)
{
	return {a->start, (int)a->q_rows, kernel_window(a->window)};
}

/* Returns true if some queries may not attend to the first keys: documents, or a window. */
static inline bool has_starts(struct starts x)
{
	return x.p || x.window != INT_MAX;
}

/* Returns the first key of row r of a tile of queries; outside the chunk, of the nearest row. */
static __device__ inline int start_at(
	struct starts x, int batch, struct tile_span s, int r)
{
	int near = min(max(r, s.from), s.to - 1);
	int start = x.p ? __ldg(x.p + batch * x.rows + s.row + near) : 0;
	return max(start, s.pos + near - x.window + 1);
}

/* Returns v without the tiles of queries that attend to none of the keys up to `last`. */
static __device__ inline struct visible queries_until(struct visible v,
	struct tile_runs r, int size, struct starts x, int batch, int last)
{
	while (v.n > v.n0 &&
		start_at(x, batch, visible_tile(r, size, v, v.n - 1), 0) > last)
		v.n--;
	while (v.n0 > 0 &&
		start_at(x, batch, visible_tile(r, size, v, v.n0 - 1), 0) > last) {
		v.n0--;
		v.n--;
	}
	return v;
}

/* Heads of all sequences: [batch][rows][heads][dim]. */
struct heads {
	void *p;
	int64_t stride, rows;
	int dim;
	bool wide;  /* fp32, whatever the other matrices are */
	bool whole; /* rows are aligned for 16-byte accesses */
};

static inline struct heads make_heads(struct mat m, int64_t rows, int64_t dim)
{
	int64_t bytes = dtype_bytes(m.type);
	bool whole = (dim | mat_stride(m)) * bytes % 16 == 0 && (uintptr_t)m.p % 16 == 0;
	return {m.p, mat_stride(m), rows, (int)dim, m.type == DT_F32, whole};
}

static inline struct heads query_heads(struct mat m, const struct attn *a)
{
	return make_heads(m, a->q_rows, a->dim);
}

static inline struct heads key_heads(struct mat m, const struct attn *a)
{
	return make_heads(m, a->k_rows, a->dim);
}

template <typename T>
static __device__ inline T *head_at(struct heads m, int batch, int head)
{
	return (T *)m.p + batch * m.rows * m.stride + (int64_t)head * m.dim;
}

/* Returns piece c, of 16 bytes, of a row of a tile in shared memory. Pieces of a row are permuted
 * by the row's index (a swizzle), so that ldmatrix, which reads one piece of each of 8 rows,
 * has no bank conflicts. */
template <int D, typename T> static __device__ inline T *piece(T *tile, int row, int c)
{
	constexpr int N = 16 / sizeof(T), PIECES = D / N;
	c ^= PIECES % 8 ? row >> 1 & 3 : row & 7;
	return tile + (row * PIECES + c) * N;
}

/* Enqueues the copy of a tile from the rows of a head, zeros outside; copy_wait() waits for it. */
template <int D, int ROWS, int THREADS, typename T>
static __device__ inline void load_tile(
	T *tile, struct heads m, int batch, int head, struct tile_span s)
{
	constexpr int N = 16 / sizeof(T), PIECES = D / N;
	static_assert(ROWS * PIECES % THREADS == 0, "all threads copy as much");
	const T *rows = head_at<const T>(m, batch, head);
#pragma unroll 2
	for (int i = 0; i < ROWS * PIECES / THREADS; i++) {
		int at = i * THREADS + threadIdx.x, row = at / PIECES, c = at % PIECES;
		bool in_tile = row >= s.from && row < s.to && c * N < m.dim;
		const T *x = in_tile ? rows + (s.row + row) * m.stride + c * N : rows;
		T *to = piece<D>(tile, row, c);
		if (m.whole) {
			copy_async(to, x, in_tile);
			continue;
		}
		pack<T, N> some;
		for (int e = 0; e < N; e++)
			some.x[e] = in_tile && c * N + e < m.dim ? x[e] : narrow<T>(0);
		*(pack<T, N> *)to = some;
	}
}
