/* Attention, backward, for sm_90: the formulas and the two halves of attn_bwd.cu. A block has
 * keys and loops over the queries that attend to them, for dk and dv, or has queries and loops
 * over keys, for dq. Scores and the gradients of probabilities are computed in both halves,
 * seven matmuls instead of five. With dq in the first half, many blocks would add to the same
 * rows, in no fixed order or one after another; and probabilities, which are register
 * operands here, would also be needed transposed, through shared memory.
 *
 * In the first half scores are transposed: one row for each key. */
#include "kernels/cuda/attn_hopper.h"

/* ROWS: rows of the block's tile, half for each warpgroup; COLS: rows of the other side's tile.
 * HELD: a warpgroup's rows are in registers, which dk and dv of large heads do not allow. A matmul
 * of 64 columns takes 32 cycles, in which shared memory delivers just the 4 KB of both operands.
 *
 * OVERLAP: tensor cores are not idle between two tiles. LATE: the matmul for dk or dq of a tile is
 * enqueued after the next tile's scores, and overlaps with that tile's probabilities. AHEAD: the
 * next tile's scores are enqueued as soon as this tile's probabilities are computed; large heads
 * leave no registers for them. dk, dv and dq receive the same matmuls in the same order. */
template <typename NUMBER, int HEAD, bool OF_KEYS, bool WITH_WINDOW, bool OVERLAP>
struct hopper_bwd_shape {
	using T = NUMBER;
	static constexpr int D = HEAD;
	static constexpr bool KEYS = OF_KEYS, WINDOW = WITH_WINDOW;
	static constexpr bool AHEAD = OVERLAP && D <= 64;
	static constexpr bool LATE = OVERLAP;
	static constexpr int ROWS = 64 * CONSUMERS, COLS = 64, STAGES = AHEAD ? 4 : 3;
	static constexpr int NT = COLS / 8, TILE = COLS * D;
	static constexpr int FEW_REGISTERS = 24, MANY_REGISTERS = 240;
	static constexpr bool HELD = !KEYS || D <= 64;
	static constexpr int RESULTS = KEYS ? 2 : 1; /* dk and dv, or dq */
	static constexpr int TILES =
		(2 * (ROWS + STAGES * COLS) + RESULTS * ROWS) * D * 2;
	static_assert(registers_fit(FEW_REGISTERS, MANY_REGISTERS), "registers");
};

template <class S> struct hopper_bwd_rest {
	uint64_t own_full, own_free, full[S::STAGES], free[S::STAGES];
	float lse[S::STAGES][S::COLS],
		delta[S::STAGES][S::COLS]; /* delta of the tile's queries, with KEYS */
	struct hopper_item item;	   /* rows that the block computes */
};

/* x: the operands of q k^T, keys and queries; y: the operands of dout v^T, values and dout. */
struct hopper_bwd_args {
	CUtensorMap own_x, own_y, other_x, other_y, dx, dy; /* dx: dk or dq; dy: dv */
	bool store_x, store_y;				    /* store dx, dy by TMA */
	struct bwd_args a;
	struct hopper_order order;
};

template <class S> struct hopper_bwd_memory {
	using T = typename S::T;
	T *own_x, *own_y, *other_x, *other_y; /* other_x, other_y: [STAGES][COLS][D] */
	T *dx, *dy;			      /* a buffer for each warp */
	struct hopper_bwd_rest<S> *rest;

	__device__ inline explicit hopper_bwd_memory(unsigned char *shared)
	{
		own_x = (T *)align_tiles(shared);
		own_y = own_x + S::ROWS * S::D;
		other_x = own_y + S::ROWS * S::D;
		other_y = other_x + S::STAGES * S::TILE;
		dx = other_y + S::STAGES * S::TILE;
		dy = dx + S::ROWS * S::D;
		rest = (struct hopper_bwd_rest<S> *)(dx + S::RESULTS * S::ROWS * S::D);
	}

	/* Returns the tile at use i of the ring. */
	__device__ inline const T *x_at(int i) const
	{
		return other_x + ring_use_at<S::STAGES>(i).place * S::TILE;
	}

	__device__ inline const T *y_at(int i) const
	{
		return other_y + ring_use_at<S::STAGES>(i).place * S::TILE;
	}

	__device__ inline void wait(int i) const
	{
		struct ring_use t = ring_use_at<S::STAGES>(i);
		barrier_wait(&rest->full[t.place], t.parity);
	}

	__device__ inline void release(int i) const
	{
		warp_arrive(&rest->free[ring_use_at<S::STAGES>(i).place]);
	}
};

/* ---- which tiles ---------------------------------------------------------------------- */

/* The rows of an item. The first keys and the last queries, which have the most tiles, are the
 * first items. With KEYS, queries before row `end` attend to some of the keys; otherwise, keys
 * from row `first` on are visible to some of the queries. */
template <class S> struct bwd_tile {
	struct hopper_place at;
	int begin, first = 0, end;

	__device__ inline bwd_tile(
		const struct hopper_bwd_args &x, struct hopper_place at)
	    : at(at)
	{
		constexpr int ROWS = S::ROWS, COLS = S::COLS;
		begin = (S::KEYS ? at.tile : x.order.tiles - 1 - at.tile) * ROWS;
		end = (int)x.a.q.rows;
		if (S::WINDOW && S::KEYS)
			end = last_row(x.a.q_runs, x.a.starts.window,
				      min(end, begin + ROWS) - 1) +
			      1;
		else if (S::WINDOW)
			first = first_row(x.a.q_runs, x.a.starts.window, begin) / COLS *
				COLS;
	}
};

/* Returns the number of tiles of the other side for rows [begin, end) of a block; for keys, the
 * tiles of all query heads. */
template <class S>
static __device__ inline int count_other_tiles(
	const struct bwd_args &x, const struct bwd_tile<S> &t, int begin, int end)
{
	constexpr int COLS = S::COLS;
	if (S::KEYS)
		return max(0, (t.end + COLS - 1) / COLS - begin / COLS) * x.group;
	return (min(t.end, end) + COLS - 1) / COLS - t.first / COLS;
}

/* Gets the first row of tile i, and its head: tiles of queries from the last to the first,
 * alternating between heads, so that the first tiles are visible to all keys. */
template <class S>
static __device__ inline void get_other_tile(const struct bwd_args &x,
	const struct bwd_tile<S> &t, int i, int *row, int *other_head)
{
	constexpr int COLS = S::COLS;
	int all = (t.end + COLS - 1) / COLS, head = t.at.head;
	*row = S::KEYS ? (all - 1 - i / x.group) * COLS : t.first + i * COLS;
	*other_head = S::KEYS ? head * x.group + i % x.group : head / x.group;
}

/* ---- the producer warp ------------------------------------------------------------------ */

/* Enqueues the other side's tiles for one item, from use `first` of the ring on; returns
 * their number. Lanes copy lse and delta of queries, which may not be aligned to 16 bytes;
 * outside the chunk they give probabilities of 0. */
template <class S>
static __device__ inline int load_other_tiles(const struct hopper_bwd_args &x,
	const struct hopper_bwd_memory<S> &s, const struct bwd_tile<S> &own, int first)
{
	constexpr int D = S::D, TILE = S::TILE, BYTES = TILE * 2;
	constexpr bool KEYS = S::KEYS;
	constexpr int EACH = S::COLS / WARP;
	struct hopper_place at = own.at;
	int n = count_other_tiles(x.a, own, own.begin, own.begin + S::ROWS);
	int lane = lane_id();
	for (int i = 0; i < n; i++) {
		struct ring_use t = ring_use_at<S::STAGES>(first + i);
		int row, head;
		float lse[EACH], delta[EACH];
		get_other_tile(x.a, own, i, &row, &head);
		int64_t state =
			((int64_t)at.batch * x.a.n_heads + head) * x.a.q.rows + row;
#pragma unroll
		for (int j = 0; KEYS && j < EACH; j++) {
			int query = j * WARP + lane;
			bool in_chunk = row + query < x.a.q.rows;
			lse[j] = in_chunk ? x.a.lse[state + query] * LOG2_E : INFINITY;
			delta[j] = in_chunk ? x.a.delta[state + query] : 0;
		}
		barrier_wait(&s.rest->free[t.place], t.parity ^ 1);
#pragma unroll
		for (int j = 0; KEYS && j < EACH; j++) {
			s.rest->lse[t.place][j * WARP + lane] = lse[j];
			s.rest->delta[t.place][j * WARP + lane] = delta[j];
		}
		if (lane != 0) {
			barrier_arrive(&s.rest->full[t.place]);
			continue;
		}
		barrier_expect(&s.rest->full[t.place], 2 * BYTES);
		load_panels<D, S::COLS>(s.other_x + t.place * TILE, &x.other_x,
			&s.rest->full[t.place], row, head, at.batch);
		load_panels<D, S::COLS>(s.other_y + t.place * TILE, &x.other_y,
			&s.rest->full[t.place], row, head, at.batch);
	}
	return n;
}

/* Enqueues the copies of the block's own rows of an item; own_full counts their bytes. */
template <class S>
static __device__ inline void load_own_rows(const struct hopper_bwd_args &x,
	const struct hopper_bwd_memory<S> &s, const struct bwd_tile<S> &own)
{
	constexpr int D = S::D;
	struct hopper_place at = own.at;
	barrier_expect(&s.rest->own_full, 2 * S::ROWS * D * 2);
	load_panels<D, S::ROWS>(
		s.own_x, &x.own_x, &s.rest->own_full, own.begin, at.head, at.batch);
	load_panels<D, S::ROWS>(
		s.own_y, &x.own_y, &s.rest->own_full, own.begin, at.head, at.batch);
}

/* Runs the producer warp: takes items, publishes each one, and enqueues copies of its tiles. */
template <class S>
static __device__ inline void produce_bwd_tiles(
	const struct hopper_bwd_args &x, const struct hopper_bwd_memory<S> &s)
{
	int first = 0, lane = lane_id();
	int item = __shfl_sync(ALL_LANES, lane == 0 ? first_item(x.order) : 0, 0);
	for (int round = 0;; round++) {
		int next = lane == 0 ? next_item(x.order) : 0;
		const struct hopper_item current = make_item(x.order, item);
		barrier_wait(&s.rest->own_free, round % 2 ^ 1);
		if (lane == 0)
			s.rest->item = current;
		if (item >= x.order.items)
			break;
		const struct bwd_tile<S> own(x, current.at);
		if (lane == 0)
			load_own_rows(x, s, own);
		first += load_other_tiles(x, s, own, first);
		item = __shfl_sync(ALL_LANES, next, 0);
	}
	if (lane == 0) {
		barrier_arrive(&s.rest->own_full);
		items_end(x.order);
	}
}

/* ---- a block's rows --------------------------------------------------------------------- */

/* Rows of a block's side, [ROWS][D] in shared memory, as an operand: the rows of warpgroup w in
 * shared memory, or the rows of this warp in registers. */
template <class S> struct own_rows {
	using T = typename S::T;
	static constexpr int D = S::D;
	const T *tile;
	uint32_t held[S::HELD ? D / 16 : 1][4];

	__device__ inline own_rows(const T *tile, int w) : tile(tile + w * 64 * PANEL)
	{
	}

	__device__ inline void hold(void)
	{
		int lane = lane_id(), row = threadIdx.x % WARPGROUP / WARP * 16;
#pragma unroll
		for (int k = 0; S::HELD && k < D / 16; k++)
			ldmatrix(
				held[k], piece<PANEL>(tile + k / 4 * S::ROWS * PANEL,
						 row + lane % 16, k % 4 * 2 + lane / 16));
	}

	/* Enqueues c = these rows times the transposed rows of a tile of the other side. */
	template <int NT>
	__device__ inline void multiply(float (&c)[NT][4], const T *other) const
	{
		wgmma_hold(c);
		wgmma_fence();
		if constexpr (S::HELD)
			wgmma_held_rows<D>(c, held, other, S::COLS);
		else
			wgmma_rows<D>(c, tile, S::ROWS, other, S::COLS);
		wgmma_commit();
	}
};

/* Enqueues c += p times the rows of a tile of the other side. */
template <typename T, int NT, int K>
static __device__ inline void add_matmul(
	float (&c)[NT][4], uint32_t (&p)[K][4], const T *other)
{
	wgmma_hold(c);
	wgmma_hold(p);
	wgmma_fence();
	wgmma_held(c, p, other);
	wgmma_commit();
}

/* Stores a warp's rows, from `row` of the block's tile on; by TMA, if its buffers are free. */
template <typename T, int D>
static __device__ inline void store_gradient(struct heads to, bool by_tma,
	const CUtensorMap *map, T *buffers, const struct bwd_args &x,
	struct hopper_place at, int begin, int row, const float (&c)[1][D / 8][4],
	float scale)
{
	const float factor[2] = {scale, scale};
	if (by_tma) {
		store_rows_by_tma<T, D>(buffers + row * D, map, c[0], factor, begin + row,
			at.head, at.batch);
		return;
	}
	enum { ROWS = 64 * CONSUMERS };
	struct tile_span rows = {begin, begin, 0, min((int)ROWS, (int)x.q.rows - begin)};
	store_gradient_tile<T, D>(to, x, at.batch, at.head, rows, row, c, scale);
}

/* ---- keys: dk, dv ----------------------------------------------------------------------- */

/* p = the probabilities of scores s, for keys from `key` on and queries from `query` on. MASKED:
 * with the causal mask. WINDOW: queries up to row until[] attend to this lane's keys. */
template <bool MASKED, bool WINDOW, int NT>
static __device__ inline void key_probabilities(float (&p)[NT][4],
	const float (&s)[NT][4], const float *lse, float scale, int key, int query,
	const int (&until)[2])
{
	int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
	for (int n = 0; n < NT; n++) {
		float2 l = *(const float2 *)(lse + 8 * n + 2 * t);
#pragma unroll
		for (int e = 0; e < 4; e++) {
			int row = query + 8 * n + 2 * t + e % 2;
			bool hidden = row < key + g + e / 2 * 8 ||
				      (WINDOW && row > until[e / 2]);
			float x = exp2_fast(fmaf(s[n][e], scale, e % 2 ? -l.y : -l.x));
			p[n][e] = MASKED && hidden ? 0 : x;
		}
	}
}

/* Sets dp to p (dp - delta), for rows of keys. */
template <int NT>
static __device__ inline void key_gradients(
	float (&dp)[NT][4], const float (&p)[NT][4], const float *delta)
{
	int t = lane_id() % 4;
#pragma unroll
	for (int n = 0; n < NT; n++) {
		float2 d = *(const float2 *)(delta + 8 * n + 2 * t);
#pragma unroll
		for (int e = 0; e < 4; e++)
			dp[n][e] = p[n][e] * (dp[n][e] - (e % 2 ? d.y : d.x));
	}
}

/* Flags of one of the other side's tiles of an item. */
enum { MASKED = 1, FIRST = 2, LAST = 4 };

template <int WHAT> struct tile_flags {
	static constexpr int value = WHAT;
};

/* Calls add(tile_flags<WHAT>(), i) for i in [0, n). The first `plain` tiles are before the causal
 * mask. */
template <class S, typename F>
static __device__ inline void for_each_other_tile(int n, int plain, F add)
{
	int i = 0, end = n - S::LATE;
	if (S::LATE && n <= 1) {
		if (n)
			add(tile_flags<MASKED | FIRST | LAST>(), 0);
		return;
	}
	if (S::LATE)
		add(tile_flags<MASKED | FIRST>(), i++);
	for (; i < min(plain, end); i++)
		add(tile_flags<0>(), i);
	if (S::KEYS || !S::LATE)
		for (; i < end; i++)
			add(tile_flags<MASKED>(), i);
	if (S::LATE)
		add(tile_flags<MASKED | LAST>(), i);
}

/* Returns the combined bits of the magnitudes of 16-bit numbers, for wgmma_wait_after(). */
template <int K> static __device__ inline uint32_t magnitudes(const uint32_t (&x)[K][4])
{
	uint32_t bits = 0;
#pragma unroll
	for (int i = 0; i < K * 4; i++)
		bits |= x[i / 4][i % 4];
	return bits & 0x7fffffff;
}

/* Computes the scores of an item's first tile, at use i of the ring, if S::AHEAD; blocks for it. */
template <class S, class PART>
static __device__ inline void begin_scores(
	PART &part, const struct hopper_bwd_memory<S> &s, int i)
{
	if constexpr (S::AHEAD) {
		s.wait(i);
		part.own_x.multiply(part.scores, s.x_at(i));
		wgmma_wait<0>();
		wgmma_hold(part.scores);
	}
}

/* Waits for and releases tiles [at, end) of the ring, which only the other warpgroup needs. */
template <class S>
static __device__ inline void skip_tiles(
	const struct hopper_bwd_memory<S> &s, int at, int end)
{
	for (; at < end; at++) {
		s.wait(at);
		s.release(at);
	}
}

/* A warpgroup's keys of an item. */
template <class S> struct keys_part {
	using T = typename S::T;
	struct own_rows<S> own_x, own_y;
	float dk[1][S::D / 8][4] = {}, dv[1][S::D / 8][4] = {};
	float scores[S::NT][4];	   /* AHEAD: of the next tile */
	uint32_t ds[S::NT / 2][4]; /* LATE: of the previous tile, not yet in dk */
	int until[2] =
		{}; /* the row of the last query that attends to each of this lane's keys */

	__device__ inline keys_part(const struct hopper_bwd_memory<S> &s, int w)
	    : own_x(s.own_x, w), own_y(s.own_y, w)
	{
		own_x.hold();
		own_y.hold();
	}

	/* Adds the queries from `query` on, at use i of the ring. */
	template <int WHAT>
	__device__ inline void add(const struct hopper_bwd_memory<S> &s, int i,
		float score, int key, int query)
	{
		constexpr bool NEXT = S::AHEAD && !(WHAT & LAST);
		constexpr bool BEFORE = S::LATE && !(WHAT & FIRST);
		constexpr bool LATER = S::LATE && !(WHAT & LAST);
		int place = ring_use_at<S::STAGES>(i).place;
		float p[S::NT][4], dp[S::NT][4];
		uint32_t p_narrow[S::NT / 2][4];
		if (!S::AHEAD || NEXT)
			s.wait(i + S::AHEAD);
		if (!S::AHEAD)
			own_x.multiply(scores, s.x_at(i));
		own_y.multiply(dp, s.y_at(i));
		if (BEFORE)
			add_matmul(dk[0], ds, s.x_at(i - 1));
		if (!S::AHEAD) {
			wgmma_wait<1 + BEFORE>();
			wgmma_hold(scores);
		}
		key_probabilities<WHAT & MASKED, S::WINDOW>(
			p, scores, s.rest->lse[place], score, key, query, until);
		pack_operand<T>(p_narrow, p);
		add_matmul(dv[0], p_narrow, s.y_at(i));
		if (NEXT)
			own_x.multiply(scores, s.x_at(i + 1));
		wgmma_wait<1 + NEXT>();
		wgmma_hold(dp);
		if (BEFORE) {
			wgmma_hold(dk[0]);
			wgmma_hold(ds);
			s.release(i - 1);
		}
		key_gradients(dp, p, s.rest->delta[place]);
		pack_operand<T>(ds, dp);
		if (LATER) {
			wgmma_wait_after<0>(magnitudes(ds));
		} else {
			add_matmul(dk[0], ds, s.x_at(i));
			wgmma_wait<0>();
			wgmma_hold(dk[0]);
			wgmma_hold(ds);
			s.release(i);
		}
		wgmma_hold(dv[0]);
		wgmma_hold(p_narrow);
		if (NEXT)
			wgmma_hold(scores);
	}
};

/* Computes and stores dk and dv of warpgroup w's keys of an item, from use `first` of the ring on;
 * returns the next use. The last tiles, one for each head, are masked. */
template <class S>
static __device__ inline int compute_keys_item(const struct hopper_bwd_args &x,
	const struct hopper_bwd_memory<S> &s, struct hopper_place at, int first, int w)
{
	using T = typename S::T;
	static_assert(S::COLS == 64, "a warpgroup's rows");
	const struct bwd_tile<S> own(x, at);
	int begin = own.begin, row = w * 64 + threadIdx.x % WARPGROUP / WARP * 16;
	int all = count_other_tiles(x.a, own, begin, begin + S::ROWS);
	int n = count_other_tiles(x.a, own, begin + w * 64, begin + w * 64 + 64);
	struct keys_part<S> part(s, w);
	int seen = 0; /* queries up to this row attend to all keys before them */
	if (S::WINDOW) {
		seen = last_row(x.a.q_runs, x.a.starts.window, begin + w * 64);
		for (int j = 0; j < 2; j++)
			part.until[j] = last_row(x.a.q_runs, x.a.starts.window,
				begin + row + lane_id() / 4 + 8 * j);
	}
	if (S::HELD)
		warp_arrive(&s.rest->own_free);
	if (n)
		begin_scores(part, s, first);
	for_each_other_tile<S>(n, n - x.a.group, [&](auto what, int i) {
		constexpr int WHAT = decltype(what)::value;
		int query, head;
		get_other_tile(x.a, own, i, &query, &head);
		if (S::WINDOW && query + S::COLS - 1 > seen)
			part.template add<WHAT | MASKED>(
				s, first + i, x.a.score, begin + row, query);
		else
			part.template add<WHAT>(
				s, first + i, x.a.score, begin + row, query);
	});
	if (!S::HELD)
		warp_arrive(&s.rest->own_free);
	skip_tiles(s, first + n, first + all);
	wait_buffers();
	store_gradient<T, S::D>(
		x.a.dk, x.store_x, &x.dx, s.dx, x.a, at, begin, row, part.dk, x.a.scale);
	store_gradient<T, S::D>(
		x.a.dv, x.store_y, &x.dy, s.dy, x.a, at, begin, row, part.dv, 1);
	return first + all;
}

/* ---- queries: dq ------------------------------------------------------------------------ */

/* p = the probabilities of scores s, for queries from `query` on and keys from `key` on. MASKED:
 * with the causal mask, and with a WINDOW the mask of keys before row from[]. Returns their
 * combined bits. lse, from: of this lane's rows. */
template <bool MASKED, bool WINDOW, int NT>
static __device__ inline uint32_t query_probabilities(float (&p)[NT][4],
	const float (&s)[NT][4], const float (&lse)[2], float scale, int query, int key,
	const int (&from)[2])
{
	int g = lane_id() / 4, t = lane_id() % 4;
	uint32_t bits = 0;
#pragma unroll
	for (int n = 0; n < NT; n++)
#pragma unroll
		for (int e = 0; e < 4; e++) {
			int col = key + 8 * n + 2 * t + e % 2;
			bool hidden = col > query + g + e / 2 * 8 ||
				      (WINDOW && col < from[e / 2]);
			float x = exp2_fast(fmaf(s[n][e], scale, -lse[e / 2]));
			p[n][e] = MASKED && hidden ? 0 : x;
			bits |= __float_as_uint(p[n][e]);
		}
	return bits;
}

/* Sets dp to p (dp - delta), for rows of queries. */
template <int NT>
static __device__ inline void query_gradients(
	float (&dp)[NT][4], const float (&p)[NT][4], const float (&delta)[2])
{
#pragma unroll
	for (int i = 0; i < NT * 4; i++)
		dp[i / 4][i % 4] =
			p[i / 4][i % 4] * (dp[i / 4][i % 4] - delta[i % 4 / 2]);
}

/* A warpgroup's queries of an item. */
template <class S> struct queries_part {
	using T = typename S::T;
	struct own_rows<S> own_x, own_y;
	float dq[1][S::D / 8][4] = {}, lse[2], delta[2];
	float scores[S::NT][4];	   /* AHEAD: of the next tile */
	uint32_t ds[S::NT / 2][4]; /* LATE: of the previous tile, not yet in dq */
	int from[2] = {}; /* the row of the first key of each of this lane's queries */

	__device__ inline queries_part(const struct hopper_bwd_memory<S> &s, int w)
	    : own_x(s.own_x, w), own_y(s.own_y, w)
	{
		own_x.hold();
		own_y.hold();
	}

	/* Loads lse and delta of this lane's rows from `query` on; `state` is the index of
	 * their head. */
	__device__ inline void load_stats(
		const struct bwd_args &x, int64_t state, int query)
	{
		for (int i = 0; i < 2; i++) {
			int row = query + lane_id() / 4 + 8 * i;
			bool in_chunk = row < x.q.rows;
			lse[i] = in_chunk ? x.lse[state + row] * LOG2_E : INFINITY;
			delta[i] = in_chunk ? x.delta[state + row] : 0;
			if (S::WINDOW)
				from[i] = first_row(x.q_runs, x.starts.window, row);
		}
	}

	/* Adds the keys from `key` on, at use i of the ring. */
	template <int WHAT>
	__device__ inline void add(const struct hopper_bwd_memory<S> &s, int i,
		float score, int query, int key)
	{
		constexpr bool NEXT = S::AHEAD && !(WHAT & LAST);
		constexpr bool BEFORE = S::LATE && !(WHAT & FIRST);
		constexpr bool LATER = S::LATE && !(WHAT & LAST);
		float p[S::NT][4], dp[S::NT][4];
		if (!S::AHEAD || NEXT)
			s.wait(i + S::AHEAD);
		if (!S::AHEAD)
			own_x.multiply(scores, s.x_at(i));
		own_y.multiply(dp, s.y_at(i));
		if (BEFORE)
			add_matmul(dq[0], ds, s.x_at(i - 1));
		if (!S::AHEAD) {
			wgmma_wait<1 + BEFORE>();
			wgmma_hold(scores);
		}
		uint32_t bits = query_probabilities<WHAT & MASKED, S::WINDOW>(
			p, scores, lse, score, query, key, from);
		if (NEXT)
			own_x.multiply(scores, s.x_at(i + 1));
		wgmma_wait_after<NEXT>(bits);
		wgmma_hold(dp);
		if (BEFORE) {
			wgmma_hold(dq[0]);
			wgmma_hold(ds);
			s.release(i - 1);
		}
		query_gradients(dp, p, delta);
		pack_operand<T>(ds, dp);
		if (!LATER) {
			add_matmul(dq[0], ds, s.x_at(i));
			wgmma_wait<0>();
			wgmma_hold(dq[0]);
			wgmma_hold(ds);
			s.release(i);
		} else if (NEXT) {
			wgmma_wait_after<0>(magnitudes(ds));
			wgmma_hold(scores);
		}
	}
};

/* Computes and stores dq of warpgroup w's queries of an item, from use `first` of the ring on;
 * returns the next use. The last tile of keys is masked. */
template <class S>
static __device__ inline int compute_queries_item(const struct hopper_bwd_args &x,
	const struct hopper_bwd_memory<S> &s, struct hopper_place at, int first, int w)
{
	static_assert(S::COLS == 64, "a warpgroup's rows");
	static_assert(S::HELD, "own rows are read once");
	const struct bwd_tile<S> own(x, at);
	int begin = own.begin, row = w * 64 + threadIdx.x % WARPGROUP / WARP * 16;
	int all = count_other_tiles(x.a, own, begin, begin + S::ROWS);
	int n = count_other_tiles(x.a, own, begin + w * 64, begin + w * 64 + 64);
	int seen = 0; /* all queries attend to the keys from this row on before them */
	if (S::WINDOW)
		seen = first_row(x.a.q_runs, x.a.starts.window, begin + w * 64 + 63);
	struct queries_part<S> part(s, w);
	part.load_stats(x.a, ((int64_t)at.batch * x.a.n_heads + at.head) * x.a.q.rows,
		begin + row);
	warp_arrive(&s.rest->own_free);
	begin_scores(part, s, first);
	for_each_other_tile<S>(n, n - 1, [&](auto what, int i) {
		constexpr int WHAT = decltype(what)::value;
		int key = own.first + i * S::COLS;
		if (S::WINDOW && key < seen)
			part.template add<WHAT | MASKED>(
				s, first + i, x.a.score, begin + row, key);
		else
			part.template add<WHAT>(
				s, first + i, x.a.score, begin + row, key);
	});
	skip_tiles(s, first + n, first + all);
	wait_buffers();
	store_gradient<typename S::T, S::D>(
		x.a.dq, x.store_x, &x.dx, s.dx, x.a, at, begin, row, part.dq, x.a.scale);
	return first + all;
}

/* ---- launches --------------------------------------------------------------------------- */

/* Runs consumer warpgroup w: computes and stores its gradients of each published item. */
template <class S>
static __device__ inline void consume_bwd_tiles(
	const struct hopper_bwd_args &x, const struct hopper_bwd_memory<S> &s, int w)
{
	int first = 0;
	for (int round = 0;; round++) {
		barrier_wait(&s.rest->own_full, round % 2);
		const struct hopper_item item = s.rest->item;
		if (item.item >= x.order.items)
			break;
		struct hopper_place at = item_place(x.order, item);
		if constexpr (S::KEYS)
			first = compute_keys_item<S>(x, s, at, first, w);
		else
			first = compute_queries_item<S>(x, s, at, first, w);
	}
	wait_buffers();
}

/* Computes dk and dv (S::KEYS) or dq, by a producer and two consumer warpgroups per block. */
template <class S>
static __global__ void __launch_bounds__(HOPPER_THREADS, 1)
	hopper_bwd(const __grid_constant__ struct hopper_bwd_args x)
{
	if constexpr (HOPPER) {
		SHARED(shared);
		const struct hopper_bwd_memory<S> s(shared);
		constexpr int WARPS = CONSUMERS * WARPGROUP / WARP;
		int w = warpgroup_id();
		if (threadIdx.x == 0) {
			barrier_make(&s.rest->own_full, 1);
			barrier_make(&s.rest->own_free, WARPS);
			for (int i = 0; i < S::STAGES; i++) {
				barrier_make(&s.rest->full[i], WARP);
				barrier_make(&s.rest->free[i], WARPS);
			}
			publish_barriers();
		}
		__syncthreads();
		if (w == 0) {
			registers_fewer<S::FEW_REGISTERS>();
			if (threadIdx.x < WARP)
				produce_bwd_tiles<S>(x, s);
		} else {
			registers_more<S::MANY_REGISTERS>();
			consume_bwd_tiles<S>(x, s, w - 1);
		}
	} else {
		__trap(); /* PTX of another architecture, compiled by the driver */
	}
}

/* Launches the kernel of shape S, with tensor maps for its operands and gradients. */
template <class S>
static void hopper_bwd_launch(
	struct device *d, const struct attn *a, enum dtype type, const struct bwd_args &x)
{
	constexpr bool KEYS = S::KEYS;
	int64_t heads = KEYS ? a->kv_heads : a->heads;
	struct heads dx = KEYS ? x.dk : x.dq;
	const struct hopper_bwd_args all = {
		tile_map(d, KEYS ? x.k : x.q, a->batch, type, S::ROWS),
		tile_map(d, KEYS ? x.v : x.dout, a->batch, type, S::ROWS),
		tile_map(d, KEYS ? x.q : x.k, a->batch, type, S::COLS),
		tile_map(d, KEYS ? x.dout : x.v, a->batch, type, S::COLS),
		rows_map(d, dx, a->batch, type),
		KEYS ? rows_map(d, x.dv, a->batch, type) : CUtensorMap(),
		rows_storable(d, dx),
		KEYS && rows_storable(d, x.dv),
		x,
		make_order(d, a, S::ROWS, heads, type),
	};
	launch(d, "attn_bwd", persistent_grid(d, all.order), dim3(HOPPER_THREADS),
		hopper_bytes(S::TILES, sizeof(struct hopper_bwd_rest<S>)), hopper_bwd<S>,
		all);
}

/* Computes dk and dv (KEYS) or dq, by the kernel with or without windows and overlap. */
template <typename T, int D, bool KEYS>
static void hopper_bwd_half(
	struct device *d, const struct attn *a, enum dtype type, const struct bwd_args &x)
{
	constexpr bool CAN = D <= 64 || !KEYS; /* registers suffice for overlap */
	bool window = has_starts(x.starts), overlap = !cuda_lab_off(d, LAB_ATTN_AHEAD);
	if (window && overlap)
		hopper_bwd_launch<hopper_bwd_shape<T, D, KEYS, true, CAN>>(d, a, type, x);
	else if (window)
		hopper_bwd_launch<hopper_bwd_shape<T, D, KEYS, true, false>>(
			d, a, type, x);
	else if (overlap)
		hopper_bwd_launch<hopper_bwd_shape<T, D, KEYS, false, CAN>>(
			d, a, type, x);
	else
		hopper_bwd_launch<hopper_bwd_shape<T, D, KEYS, false, false>>(
			d, a, type, x);
}

void attn_hopper_bwd(
	struct device *d, const struct attn *a, enum dtype type, const struct bwd_args &x)
{
	call_by_type(type, [&](auto number) {
		using T = decltype(number);
		if constexpr (sizeof(T) == 2) {
			if (a->dim <= 64) {
				hopper_bwd_half<T, 64, true>(d, a, type, x);
				hopper_bwd_half<T, 64, false>(d, a, type, x);
			} else {
				hopper_bwd_half<T, 128, true>(d, a, type, x);
				hopper_bwd_half<T, 128, false>(d, a, type, x);
			}
		}
	});
}
