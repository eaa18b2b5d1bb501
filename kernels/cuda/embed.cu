/* Embeddings. The backward sorts (token, row) pairs, so that the rows of a token are
 * contiguous and in order; no two pairs are equal, so the sorted order is unique. A token's
 * rows are added in pieces, so that no block takes long for a frequent token. Then the pieces
 * of a token are added in order. */
#include "kernels/cuda/vector.h"

/* Sets (or with `add`, increases) a pack of y by its token's row of w, by 0 outside of w. */
static __global__ void embed_fwd_kernel(float *y, const float *w, const int32_t *ids,
	int64_t first, int64_t rows, int64_t vocab, int64_t cols, bool add, bool whole)
{
	enum { N = PER_PACK<float> };
	struct vector_place at = pack_place(thread_number(), cols, N);
	int64_t left = cols - at.col;
	float v[N] = {}, u[N];
	if (at.row >= rows)
		return;
	int64_t id = ids[at.row] - first;
	bool in_slice = id >= 0 && id < vocab;
	if (!in_slice && add)
		return;
	y += at.row * cols + at.col;
	if (in_slice)
		load(v, w + id * cols + at.col, left, whole);
	if (add) {
		load(u, y, left, whole);
		for (int j = 0; j < N; j++)
			v[j] = u[j] + v[j];
	}
	store(y, v, left, whole);
}

/* Sets (or with `add`, increases) each row of y by its token's row of w, by 0 outside of w. */
void cuda_embed_fwd(struct device *d, struct mat y, struct mat w, const int32_t *ids,
	int64_t first, bool add)
{
	enum { N = PER_PACK<float> };
	float *out = floats_of(y);
	const float *in = floats_of(w);
	BUG_ON(y.cols != w.cols);
	launch(d, "embed_fwd", grid_of_packs(y.rows, y.cols, N), THREADS, 0,
		embed_fwd_kernel, out, in, ids, first, y.rows, w.rows, y.cols, add,
		in_packs(y.cols, N, out, in));
}

enum { SORTED = 1024 };	    /* keys sorted by one block */
#define OUTSIDE 0xffffffffu /* the token of a row outside this slice of the table */

/* Returns a key: the token in the upper bits, the row in the lower bits. */
static __device__ inline uint64_t sort_key(uint32_t token, uint32_t row)
{
	return (uint64_t)token << 32 | row;
}

/* Makes keys of the rows and sorts SORTED of them per block: a bitonic sort (Batcher 1968). */
static __global__ void __launch_bounds__(SORTED / 2) sort_kernel(
	uint64_t *keys, const int32_t *ids, int64_t n, int64_t first, int64_t vocab)
{
	__shared__ uint64_t key[SORTED];
	const int thread = (int)threadIdx.x;
	int64_t begin = (int64_t)blockIdx.x * SORTED;
	for (int i = thread; i < SORTED; i += SORTED / 2) {
		int64_t row = begin + i, id = row < n ? ids[row] - first : -1;
		bool in_slice = id >= 0 && id < vocab;
		key[i] = sort_key(in_slice ? (uint32_t)id : OUTSIDE, (uint32_t)row);
	}
	for (int run = 2; run <= SORTED; run *= 2) {
		for (int step = run / 2; step; step /= 2) {
			__syncthreads();
			int a = thread / step * 2 * step + thread % step, b = a + step;
			uint64_t x = key[a], y = key[b];
			if ((x > y) == ((a & run) == 0)) {
				key[a] = y;
				key[b] = x;
			}
		}
	}
	__syncthreads();
	for (int i = thread; i < SORTED && begin + i < n; i += SORTED / 2)
		keys[begin + i] = key[i];
}

/* Returns the number of n sorted keys that are below x. */
static __device__ inline int64_t count_below(const uint64_t *keys, int64_t n, uint64_t x)
{
	int64_t low = 0, high = n;
	while (low < high) {
		int64_t middle = low + (high - low) / 2;
		if (keys[middle] < x)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Merges pairs of neighboring sorted runs: the position of a key is its index plus the
 * number of smaller keys in the other run. */
static __global__ void merge_kernel(
	uint64_t *to, const uint64_t *from, int64_t n, int64_t run)
{
	int64_t i = thread_number();
	if (i >= n)
		return;
	int64_t own_run = i / run * run;
	int64_t pair = own_run / (2 * run) * (2 * run);
	int64_t other = own_run == pair ? pair + run : pair;
	int64_t n_other = max64(0, min64(run, n - other));
	uint64_t key = from[i];
	to[pair + (i - own_run) + count_below(from + other, n_other, key)] = key;
}

/* Sorts the keys; returns the buffer, a or b, that has the result. */
static uint64_t *sort_rows(struct device *d, uint64_t *a, uint64_t *b, const int32_t *ids,
	int64_t n, int64_t first, int64_t vocab)
{
	launch(d, "embed_bwd", grid_of(ceil_div(n, SORTED)), SORTED / 2, 0, sort_kernel,
		a, ids, n, first, vocab);
	for (int64_t run = SORTED; run < n; run *= 2) {
		launch(d, "embed_bwd", grid_of_packs(1, n, 1), THREADS, 0, merge_kernel,
			b, (const uint64_t *)a, n, run);
		uint64_t *swap = a;
		a = b;
		b = swap;
	}
	return a;
}

/* A block finds the pieces that begin at any of 32 sorted keys, and adds one part of their
 * columns. */
enum { SUM_WARPS = 2, SUM_COLS = SUM_WARPS * WARP * PER_PACK<float> };

struct sorted {
	const uint64_t *keys;
	int64_t n, piece;
};

static __device__ inline uint32_t token_at(const struct sorted s, int64_t i)
{
	return (uint32_t)(s.keys[i] >> 32);
}

/* The piece that begins at key i (rows is 0 if none does); first, last: it is the first (last)
 * piece of its token. */
struct piece {
	int rows;
	bool first, last;
};

/* Returns the piece that begins at key i; it has 0 rows if none begins there. */
static __device__ inline struct piece piece_at(const struct sorted s, int64_t i)
{
	struct piece p = {};
	if (i >= s.n)
		return p;
	uint32_t token = token_at(s, i);
	if (token == OUTSIDE)
		return p;
	p.first = i == 0 || token_at(s, i - 1) != token;
	if (!p.first) { /* a later piece follows a complete one */
		if (i < s.piece || token_at(s, i - s.piece) != token)
			return p;
		if ((i - count_below(s.keys, i, sort_key(token, 0))) % s.piece)
			return p;
	}
	p.last = i + s.piece >= s.n || token_at(s, i + s.piece) != token;
	p.rows = (int)s.piece;
	if (p.last)
		p.rows = (int)count_below(
			s.keys + i, min64(s.piece, s.n - i), sort_key(token + 1, 0));
	return p;
}

/* Returns the piece of another lane. */
static __device__ inline struct piece piece_of_lane(const struct piece p, int lane)
{
	struct piece r;
	int flags = p.first | p.last << 1;
	r.rows = __shfl_sync(ALL_LANES, p.rows, lane);
	flags = __shfl_sync(ALL_LANES, flags, lane);
	r.first = flags & 1;
	r.last = flags >> 1;
	return r;
}

/* Returns the slot of a piece's sum, if its token has several pieces. First pieces of such tokens
 * begin at least `piece` keys apart, and so do later pieces, so slots are unique. */
static __device__ inline int64_t slot_index(
	const struct sorted s, int64_t i, bool is_first)
{
	return 2 * (i / s.piece) + (is_first ? 0 : 1);
}

/* Adds the rows from[row of key] to sum, in the order of the keys. */
static __device__ inline void sum_piece(float (&sum)[PER_PACK<float>], const float *from,
	const uint64_t *keys, int64_t rows, int64_t cols, int64_t left, bool whole)
{
	enum { N = PER_PACK<float>, AT_ONCE = 8 };
	int64_t i = 0;
	for (; i + AT_ONCE <= rows; i += AT_ONCE) { /* independent loads */
		float v[AT_ONCE][N];
#pragma unroll
		for (int r = 0; r < AT_ONCE; r++)
			load(v[r], from + (uint32_t)keys[i + r] * cols, left, whole);
		for (int r = 0; r < AT_ONCE; r++)
			for (int j = 0; j < N; j++)
				sum[j] += v[r][j];
	}
	for (; i < rows; i++) {
		float v[N];
		load(v, from + (uint32_t)keys[i] * cols, left, whole);
		for (int j = 0; j < N; j++)
			sum[j] += v[j];
	}
}

/* Sums the pieces that begin at 32 keys: to dw if they are whole tokens, else to their slots. */
static __global__ void __launch_bounds__(SUM_WARPS *WARP) sum_pieces_kernel(float *dw,
	float *slots, const float *dy, struct sorted s, int64_t cols, bool whole)
{
	enum { N = PER_PACK<float> };
	int64_t first = (int64_t)blockIdx.x * WARP;
	int64_t col = (int64_t)blockIdx.y * SUM_COLS + threadIdx.x * N;
	struct piece own_piece = piece_at(s, first + lane_number());
	for (int l = 0; l < WARP; l++) {
		float sum[N] = {};
		int64_t i = first + l;
		struct piece p = piece_of_lane(own_piece, l);
		if (!p.rows || col >= cols)
			continue;
		sum_piece(sum, dy + col, s.keys + i, p.rows, cols, cols - col, whole);
		float *to = p.first && p.last ? dw + token_at(s, i) * cols
					      : slots + slot_index(s, i, p.first) * cols;
		store(to + col, sum, cols - col, whole);
	}
}

/* Sets the row of dw of each token with several pieces to the sum of their slots, in order. */
static __global__ void __launch_bounds__(SUM_WARPS *WARP) join_pieces_kernel(
	float *dw, const float *slots, struct sorted s, int64_t cols, bool whole)
{
	enum { N = PER_PACK<float> };
	int64_t first = (int64_t)blockIdx.x * WARP;
	int64_t col = (int64_t)blockIdx.y * SUM_COLS + threadIdx.x * N;
	struct piece own_piece = piece_at(s, first + lane_number());
	for (int l = 0; l < WARP; l++) {
		float sum[N], v[N];
		int64_t i = first + l;
		struct piece p = piece_of_lane(own_piece, l);
		if (!p.rows || !p.first || p.last || col >= cols)
			continue;
		uint32_t token = token_at(s, i);
		int64_t end =
			i + count_below(s.keys + i, s.n - i, sort_key(token + 1, 0));
		load(sum, slots + slot_index(s, i, true) * cols + col, cols - col, whole);
		for (int64_t next = i + s.piece; next < end; next += s.piece) {
			const float *from = slots + slot_index(s, next, false) * cols;
			load(v, from + col, cols - col, whole);
			for (int j = 0; j < N; j++)
				sum[j] += v[j];
		}
		store(dw + token * cols + col, sum, cols - col, whole);
	}
}

/* Returns the number of slots for the sums of n keys, in pieces of `piece` keys. */
static int64_t count_slots(int64_t n, int64_t piece)
{
	return 2 * ceil_div(n, piece);
}

/* Sets each row of dw to the sum of the rows of dy with its token; pieces of up to 256 rows. */
void cuda_embed_bwd(
	struct device *d, struct mat dw, struct mat dy, const int32_t *ids, int64_t first)
{
	enum { N = PER_PACK<float>, PIECE = 256 };
	int64_t n = dy.rows, cols = dy.cols, piece = PIECE;
	int64_t row_bytes = cols * (int64_t)sizeof(float);
	int64_t key_bytes = round_up(n * (int64_t)sizeof(uint64_t), 256);
	BUG_ON(dw.cols != cols || n >= OUTSIDE || dw.rows >= OUTSIDE);
	cuda_zero(d, dw);
	while (count_slots(n, piece) * row_bytes > CUDA_WORKSPACE - 2 * key_bytes &&
		piece < n)
		piece *= 2;
	char *buf = (char *)cuda_workspace(
		d, (size_t)(2 * key_bytes + count_slots(n, piece) * row_bytes));
	float *slots = (float *)(buf + 2 * key_bytes), *out = floats_of(dw);
	const float *up = floats_of(dy);
	struct sorted s = {sort_rows(d, (uint64_t *)buf, (uint64_t *)(buf + key_bytes),
				   ids, n, first, dw.rows),
		n, piece};
	bool whole = in_packs(cols, N, up, out);
	dim3 grid = grid_of(ceil_div(n, WARP));
	grid.y = (unsigned)ceil_div(cols, SUM_COLS);
	launch(d, "embed_bwd", grid, SUM_WARPS * WARP, 0, sum_pieces_kernel, out, slots,
		up, s, cols, whole);
	if (n > piece)
		launch(d, "embed_bwd", grid, SUM_WARPS * WARP, 0, join_pieces_kernel, out,
			(const float *)slots, s, cols, whole);
}
