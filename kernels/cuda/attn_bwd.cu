/* Attention, backward. With p = exp(s - lse), m the dropout mask and dp = dout v^T m: dv = (p m)^T
 * dout; ds = p (dp - delta); dq = scale ds k; dk = scale ds^T q.
 *
 * One kernel does both halves: a block has a tile of keys and loops over the queries that attend to
 * them (`KEYS`), or has a tile of queries and loops over keys. So each gradient is in the registers
 * of one warp and its terms are added in a fixed order. Scores and dp are computed twice, seven
 * matmuls instead of five, but this needs neither atomics nor stored partial sums. */
#include "kernels/cuda/attn_bwd.h"
#include "kernels/cuda/attn_hopper.h"
#include "kernels/cuda/pack.h"

/* What a launch computes. Heads larger than 128 lack the registers for dk and dv in one launch. */
enum bwd_part { QUERIES, KEYS_AND_VALUES, KEYS_ONLY, VALUES_ONLY };

/* ROWS: rows of the block's tile; COLS: rows of the other side's tile. */
template <typename T, int D, enum bwd_part PART>
struct bwd_shape {
	static constexpr bool WIDE = sizeof(T) == 4, KEYS = PART != QUERIES;
	static constexpr bool TWICE = !WIDE && D <= (KEYS ? 64 : 128);
	static constexpr int MT = TWICE ? 2 : 1, WARPS = !WIDE && D > 128 ? 8 : 4;
	static constexpr int THREADS = WARPS * WARP;
	static constexpr bool SMALL = !KEYS && D <= 32;
	static constexpr int BLOCKS = D > 128 ? 1 : 2 + SMALL; /* per multiprocessor */
	static constexpr int ROWS = 16 * MT * WARPS, COLS = D > 128 ? 16 : 32;
	static constexpr int BYTES = (2 * ROWS + 4 * COLS) * D * (int)sizeof(T);
	static constexpr bool DX = PART != VALUES_ONLY; /* dq, or dk */
	static constexpr bool DV = PART == KEYS_AND_VALUES || PART == VALUES_ONLY;
};

enum { DELTA_WARPS = 8 };

/* Sets delta to the sum of dout o over a row of a head, which one warp computes. */
template <typename T, typename O>
static __global__ void __launch_bounds__(DELTA_WARPS *WARP)
	delta(const struct bwd_args x, int64_t n)
{
	int64_t i = (int64_t)blockIdx.x * DELTA_WARPS + threadIdx.x / WARP;
	if (i >= n)
		return;
	int64_t row = i % x.q.rows, at = i / x.q.rows;
	int head = at % x.n_heads, batch = at / x.n_heads;
	const T *dout = head_at<const T>(x.dout, batch, head) + row * x.dout.stride;
	const O *o = head_at<const O>(x.o, batch, head) + row * x.o.stride;
	float sum = 0;
	for (int e = lane_id(); e < x.q.dim; e += WARP)
		sum = fmaf(widen(dout[e]), widen(o[e]), sum);
	sum = warp_sum(sum);
	if (lane_id() == 0)
		x.delta[i] = sum;
}

/* How LANES lanes read a row in delta_rows(): each lane reads PACKS packs of N elements of dout and
 * of o, for EACH rows at once, which are GROUPS apart. */
template <typename T, typename O, int LANES> struct delta_shape {
	static constexpr int N = sizeof(O) == 4 ? 4 : PER_PACK<T>,
			     PACKS = LANES == WARP && N < 8 ? 2 : 1;
	static constexpr int THREADS = 256, GROUPS = THREADS / LANES;
	static constexpr int EACH = 4 / PACKS, ROWS = GROUPS * EACH;
};

/* Computes what delta() does with 16-byte accesses and as many lanes as a row needs: a lane adds
 * the products of its elements in order, then the lanes add their sums as in warp_sum(). Blocks are
 * in the order of memory: all heads of some rows, then the next rows. */
template <typename T, typename O, int LANES, bool WHOLE>
static __global__ void __launch_bounds__(delta_shape<T, O, LANES>::THREADS, 4)
	delta_rows(const struct bwd_args x, unsigned tiles)
{
	using S = delta_shape<T, O, LANES>;
	unsigned task = blockIdx.x / x.n_heads;
	int head = (int)(blockIdx.x % x.n_heads), batch = (int)(task / tiles);
	int lane = threadIdx.x % LANES;
	int64_t first = (int64_t)(task % tiles) * S::ROWS + threadIdx.x / LANES;
	const T *dout = head_at<const T>(x.dout, batch, head);
	const O *o = head_at<const O>(x.o, batch, head);
	packed<T, S::N> a[S::EACH * S::PACKS] = {};
	packed<O, S::N> b[S::EACH * S::PACKS] = {};
#pragma unroll
	for (int i = 0; i < S::EACH * S::PACKS; i++) {
		int64_t row = first + i / S::PACKS * S::GROUPS;
		int col = (i % S::PACKS * LANES + lane) * S::N;
		int left = row < x.q.rows ? x.q.dim - col : 0;
		const T *dout_at = dout + row * x.dout.stride + col;
		const O *o_at = o + row * x.o.stride + col;
		if (WHOLE) { /* rows of whole packs: no loops over elements */
			a[i] = left > 0 ? fetch<S::N>(dout_at, S::N, true) : a[i];
			b[i] = left > 0 ? fetch<S::N>(o_at, S::N, true) : b[i];
		} else {
			a[i] = fetch<S::N>(dout_at, left, false);
			b[i] = fetch<S::N>(o_at, left, false);
		}
	}
#pragma unroll
	for (int i = 0; i < S::EACH; i++) {
		int64_t row = first + i * S::GROUPS;
		float sum = 0;
#pragma unroll
		for (int e = 0; e < S::PACKS * S::N; e++)
			sum = fmaf(number_of(a[i * S::PACKS + e / S::N], e % S::N),
				number_of(b[i * S::PACKS + e / S::N], e % S::N), sum);
#pragma unroll
		for (int apart = LANES / 2; apart; apart /= 2)
			sum += __shfl_xor_sync(ALL_LANES, sum, apart);
		if (lane == 0 && row < x.q.rows)
			x.delta[((int64_t)batch * x.n_heads + head) * x.q.rows + row] =
				sum;
	}
}

/* Values of queries (lse or delta) for a lane's rows, or for its columns if KEYS. */
template <bool KEYS, int MT, int NT> struct query_values {
	float x[KEYS ? NT : MT][2];

	__device__ inline float at(int m, int n, int e) const
	{
		return KEYS ? x[n][e % 2] : x[m][e / 2];
	}
};

/* Sets a lane's values to lse or delta times `factor`; to `otherwise` outside the chunk. */
template <bool KEYS, int MT, int NT>
static __device__ inline void load_query_values(struct query_values<KEYS, MT, NT> &to,
	const float *from, float factor, float otherwise, struct tile_span s, int row)
{
	int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
	for (int i = 0; i < (KEYS ? NT : MT) * 2; i++) {
		int r = KEYS ? i / 2 * 8 + 2 * t + i % 2 : row + 8 * i + g;
		bool in_chunk = r >= s.from && r < s.to;
		to.x[i / 2][i % 2] = in_chunk ? from[s.row + r] * factor : otherwise;
	}
}

/* Sets probabilities to 0 where a key is before the query's first key. */
template <bool KEYS, int COLS, int MT, int NT>
static __device__ inline void mask_earlier_keys(float (&p)[MT][NT][4],
	struct starts starts, int batch, struct tile_span other, struct tile_span own,
	int row)
{
	int g = lane_id() / 4, t = lane_id() % 4;
	int last = start_at(
		starts, batch, KEYS ? other : own, KEYS ? COLS - 1 : row + 16 * MT - 1);
	if (last <= (KEYS ? own.pos + row : other.pos))
		return; /* no other query starts later than the last */
#pragma unroll
	for (int i = 0; i < (KEYS ? NT : MT) * 2; i++) {
		int r = KEYS ? i / 2 * 8 + 2 * t + i % 2 : row + 8 * i + g;
		int start = start_at(starts, batch, KEYS ? other : own, r);
#pragma unroll
		for (int j = 0; j < (KEYS ? MT : NT) * 2; j++) {
			int m = KEYS ? j / 2 : i / 2, n = KEYS ? i / 2 : j / 2;
			int e = KEYS ? j % 2 * 2 + i % 2 : i % 2 * 2 + j % 2;
			int key = KEYS ? own.pos + row + 8 * j + g
				       : other.pos + j / 2 * 8 + 2 * t + j % 2;
			if (key < start)
				p[m][n][e] = 0;
		}
	}
}

/* Replaces scores by probabilities, 0 where masked. */
template <typename T, bool KEYS, int COLS, int MT, int NT>
static __device__ inline void probabilities(float (&s)[MT][NT][4],
	const struct query_values<KEYS, MT, NT> &lse, float scale, struct tile_span other,
	int pos)
{
	int g = lane_id() / 4, t = lane_id() % 4;
	bool all = all_attend<KEYS>(other, COLS, pos, 16 * MT);
#pragma unroll
	for (int i = 0; i < MT * 2; i++) {
		struct tile_span cols = attended_rows<KEYS>(other, pos + 8 * i + g);
#pragma unroll
		for (int n = 0; n < NT * 2; n++) {
			int col = n / 2 * 8 + 2 * t + n % 2, e = i % 2 * 2 + n % 2;
			float p = exp_units<T>(fmaf(
				s[i / 2][n / 2][e], scale, -lse.at(i / 2, n / 2, e)));
			bool hidden = !all && (col < cols.from || col >= cols.to);
			s[i / 2][n / 2][e] = hidden ? 0 : p;
		}
	}
}

/* Adds the contribution of one tile of the other side to dx (dq or dk) and dv, in registers. own_x,
 * other_x: keys or queries; own_y, other_y: values or dout. */
template <typename T, int D, enum bwd_part PART, bool DROP, bool STARTS, int MT>
static __device__ inline void bwd_tile(float (&dx)[MT][D / 8][4],
	float (&dv)[MT][D / 8][4], const struct bwd_args &x, int batch, int head,
	struct tile_span own, int row, struct tile_span other, const T *own_x,
	const T *own_y, const T *other_x, const T *other_y)
{
	using S = bwd_shape<T, D, PART>;
	constexpr int NT = S::COLS / 8;
	struct query_values<S::KEYS, MT, NT> lse, delta;
	const struct tile_span queries = S::KEYS ? other : own;
	int64_t state = ((int64_t)batch * x.n_heads + head) * x.q.rows;
	/* lse = infinity: probabilities are 0. */
	load_query_values(lse, x.lse + state, units_per_one<T>(), INFINITY, queries, row);
	float p[MT][NT][4] = {}, ds[MT][NT][4] = {};
	matmul<D>(p, own_x, row, other_x);
	probabilities<T, S::KEYS, S::COLS>(p, lse, x.score, other, own.pos + row);
	if (STARTS)
		mask_earlier_keys<S::KEYS, S::COLS>(p, x.starts, batch, other, own, row);
	if (S::DX) {
		load_query_values(delta, x.delta + state, 1, 0, queries, row);
		matmul<D>(ds, own_y, row, other_y);
	}
#pragma unroll
	for (int i = 0; i < MT * NT; i++) {
		int m = i / NT, n = i % NT;
		float keep[4] = {1, 1, 1, 1};
		if (DROP && (!STARTS || x.drop.below)) /* else factors of 1 */
			dropout_factors<S::KEYS>(keep, x.drop, batch, head,
				own.pos + row + 16 * m, other.pos + 8 * n);
#pragma unroll
		for (int e = 0; e < 4; e++) {
			float dp = DROP ? ds[m][n][e] * keep[e] : ds[m][n][e];
			if (S::DX)
				ds[m][n][e] = p[m][n][e] * (dp - delta.at(m, n, e));
			if (DROP)
				p[m][n][e] *= keep[e];
		}
	}
	if (S::DV)
		matmul_held<D>(dv, p, other_y);
	if (S::DX)
		matmul_held<D>(dx, ds, other_x);
}

/* Enqueues the copy of tile i of the other side, if it exists. For keys these are the tiles of the
 * query heads that share the key head, head by head. */
template <typename T, int D, enum bwd_part PART>
static __device__ inline void load_other_tile(T *other_x, T *other_y,
	const struct bwd_args &x, int batch, int head, struct visible v, int n, int i)
{
	using S = bwd_shape<T, D, PART>;
	constexpr int COLS = S::COLS;
	if (i < n) {
		struct tile_span s = visible_tile(
			S::KEYS ? x.q_runs : x.k_runs, COLS, v, S::KEYS ? i % v.n : i);
		if (S::KEYS)
			head = head * x.group + i / v.n;
		else
			head /= x.group;
		load_tile<D, COLS, S::THREADS>(
			other_x, S::KEYS ? x.q : x.k, batch, head, s);
		load_tile<D, COLS, S::THREADS>(
			other_y, S::KEYS ? x.dout : x.v, batch, head, s);
	}
	copy_commit();
}

/* Computes one tile of dq, or of dk and dv, and adds it to global memory; with x.begin, sets it. */
template <typename T, int D, enum bwd_part PART, bool DROP, bool STARTS>
static __global__ void __launch_bounds__(bwd_shape<T, D, PART>::THREADS,
	bwd_shape<T, D, PART>::BLOCKS) bwd(const struct bwd_args x)
{
	using S = bwd_shape<T, D, PART>;
	constexpr int TILE = S::COLS * D;
	SHARED(shared);
	T *own_x = (T *)shared, *own_y = own_x + S::ROWS * D;
	T *other_x = own_y + S::ROWS * D, *other_y = other_x + 2 * TILE;

	/* The first keys and the last queries have the most tiles, so they are first. */
	struct tile_runs own_runs = S::KEYS ? x.k_runs : x.q_runs;
	int n_heads = S::KEYS ? x.n_heads / x.group : x.n_heads;
	int tiles = all_tiles(own_runs, S::ROWS), task = blockIdx.x / tiles;
	int tile = blockIdx.x % tiles, head = task % n_heads, batch = task / n_heads;
	struct tile_span own =
		tile_at(own_runs, S::ROWS, S::KEYS ? tile : tiles - 1 - tile);
	int row = threadIdx.x / WARP * 16 * S::MT;
	struct visible v = S::KEYS ? queries_from(x.q_runs, S::COLS, own.pos + own.from)
				   : keys_until(x.k_runs, S::COLS, own.pos + own.to - 1);
	if (STARTS)
		v = S::KEYS ? queries_until(v, x.q_runs, S::COLS, x.starts, batch,
				      own.pos + own.to - 1)
			    : keys_from(v, x.k_runs, S::COLS,
				      start_at(x.starts, batch, own, 0));
	int n = S::KEYS ? v.n * x.group : v.n;

	float dx[S::MT][D / 8][4] = {}, dv[S::MT][D / 8][4] = {};
	load_tile<D, S::ROWS, S::THREADS>(own_x, S::KEYS ? x.k : x.q, batch, head, own);
	if (S::DX)
		load_tile<D, S::ROWS, S::THREADS>(
			own_y, S::KEYS ? x.v : x.dout, batch, head, own);
	load_other_tile<T, D, PART>(other_x, other_y, x, batch, head, v, n, 0);
	for (int i = 0; i < n; i++) {
		int current = i % 2 * TILE, next = TILE - current;
		copy_wait<0>();
		__syncthreads(); /* this tile is loaded; no warp reads the previous one */
		load_other_tile<T, D, PART>(
			other_x + next, other_y + next, x, batch, head, v, n, i + 1);
		struct tile_span other = visible_tile(
			S::KEYS ? x.q_runs : x.k_runs, S::COLS, v, S::KEYS ? i % v.n : i);
		int q_head = S::KEYS ? head * x.group + i / v.n : head;
		if (any_attends<S::KEYS>(other, own.pos + row, 16 * S::MT))
			bwd_tile<T, D, PART, DROP, STARTS>(dx, dv, x, batch, q_head, own,
				row, other, own_x, own_y, other_x + current,
				other_y + current);
	}
	copy_wait<0>();
	if (S::DX)
		store_gradient_tile<T, D>(
			S::KEYS ? x.dk : x.dq, x, batch, head, own, row, dx, x.scale);
	if (S::DV)
		store_gradient_tile<T, D>(x.dv, x, batch, head, own, row, dv, 1);
}

/* Launches the kernel that computes one part of the gradients, with one block per tile. */
template <typename T, int D, enum bwd_part PART>
static void launch_bwd_part(
	struct device *d, const struct bwd_args &x, int64_t batch, bool drop)
{
	using S = bwd_shape<T, D, PART>;
	int64_t blocks =
		batch * (S::KEYS ? x.n_heads / x.group * all_tiles(x.k_runs, S::ROWS)
				 : x.n_heads * all_tiles(x.q_runs, S::ROWS));
	launch(d, "attn_bwd", dim3((unsigned)blocks), dim3(S::THREADS), S::BYTES,
		has_starts(x.starts)
			? bwd<T, D, PART, true, true> /* with or without dropout */
		: drop ? bwd<T, D, PART, true, false>
		       : bwd<T, D, PART, false, false>,
		x);
}

/* Launches delta_rows() with LANES lanes per row. */
template <typename T, typename O, int LANES>
static void launch_delta_rows(struct device *d, const struct bwd_args &x, int64_t batch)
{
	using S = delta_shape<T, O, LANES>;
	int64_t tiles = (x.q.rows + S::ROWS - 1) / S::ROWS;
	launch(d, "attn_delta", dim3((unsigned)(batch * tiles * x.n_heads)),
		dim3(S::THREADS), 0,
		x.dout.whole && x.o.whole ? delta_rows<T, O, LANES, true>
					  : delta_rows<T, O, LANES, false>,
		x, (unsigned)tiles);
}

/* Computes delta of all heads, with 8, 16 or 32 lanes per row of a head. */
template <typename T, typename O>
static void launch_delta(struct device *d, const struct bwd_args &x, int64_t batch)
{
	if (cuda_lab_off(d, LAB_DELTA)) {
		int64_t n = batch * x.n_heads * x.q.rows;
		dim3 grid((unsigned)((n + DELTA_WARPS - 1) / DELTA_WARPS));
		return launch(d, "attn_delta", grid, dim3(DELTA_WARPS * WARP), 0,
			delta<T, O>, x, n);
	}
	int packs =
		(x.q.dim + delta_shape<T, O, WARP>::N - 1) / delta_shape<T, O, WARP>::N;
	if (packs <= 8)
		launch_delta_rows<T, O, 8>(d, x, batch);
	else if (packs <= 16)
		launch_delta_rows<T, O, 16>(d, x, batch);
	else
		launch_delta_rows<T, O, WARP>(d, x, batch);
}

/* Launches the kernels for dk and dv, in two launches for large heads, and for dq. */
template <typename T, int D>
static void launch_bwd(
	struct device *d, const struct bwd_args &x, int64_t batch, bool drop)
{
	if constexpr (D <= 128) {
		launch_bwd_part<T, D, KEYS_AND_VALUES>(d, x, batch, drop);
	} else {
		launch_bwd_part<T, D, VALUES_ONLY>(d, x, batch, drop);
		launch_bwd_part<T, D, KEYS_ONLY>(d, x, batch, drop);
	}
	launch_bwd_part<T, D, QUERIES>(d, x, batch, drop);
}

/* Checks that a gradient is fp32, or has the operands' type and this call computes all of it. */
static void check_gradient(struct mat gradient, struct mat operand, bool begin)
{
	BUG_ON(gradient.type != DT_F32 && (gradient.type != operand.type || !begin));
}

/* Adds a pair of chunks to dq, dk and dv, or with `begin` sets them, and delta. */
extern "C" void cuda_attn_bwd(struct device *d, const struct attn *a, struct mat dq,
	struct mat dk, struct mat dv, float *delta, struct mat dout, struct mat o,
	const float *lse, struct mat q, struct mat k, struct mat v, bool begin)
{
	BUG_ON(q.type != k.type || q.type != v.type || q.type != dout.type);
	BUG_ON(o.type != DT_F32 && o.type != q.type);
	check_gradient(dq, q, begin);
	check_gradient(dk, k, begin);
	check_gradient(dv, v, begin);
	call_by_type(q.type, [&](auto number) {
		using T = decltype(number);
		const struct bwd_args x = {query_heads(q, a), key_heads(k, a),
			key_heads(v, a), query_heads(o, a), query_heads(dout, a),
			query_heads(dq, a), key_heads(dk, a), key_heads(dv, a), lse,
			delta, make_runs(a->q_rows, a->q_first),
			make_runs(a->k_rows, a->k_first), (int)a->heads,
			(int)(a->heads / a->kv_heads), a->scale,
			a->scale * units_per_one<T>(), make_drop(a), begin,
			make_starts(a)};
		if (begin && x.o.wide)
			launch_delta<T, float>(d, x, a->batch);
		else if (begin)
			launch_delta<T, T>(d, x, a->batch);
		if (x.dout.whole && attn_hopper_supports(d, a, q.type, x.q, x.k, x.v))
			return attn_hopper_bwd(d, a, q.type, x);
		call_by_head_size<T>(a->dim, [&](auto size) {
			launch_bwd<T, decltype(size)::value>(
				d, x, a->batch, a->drop.p > 0);
		});
	});
}
