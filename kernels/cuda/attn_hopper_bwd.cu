/*
 * Attention, backward, for sm_90: the formulas and the two halves of attn_bwd.cu. A block has
 * keys and goes over the queries that attend to them, for dk and dv, or has queries and goes
 * over keys, for dq. Scores and the gradients of probabilities are computed in both halves,
 * seven matmuls instead of five: with dq in the first half, many blocks would add to the same
 * rows, in no fixed order or one after the other; and probabilities, which are register
 * operands here, would also be needed transposed, through shared memory.
 *
 * In the first half scores are transposed: one row for each key.
 */
#include "kernels/cuda/attn_hopper.h"

/*
 * ROWS: of the block's tile, half for each warpgroup; COLS: of the other side's tile. HELD: a
 * warpgroup's rows are in registers, which dk and dv of large heads do not allow. A matmul of
 * 64 columns takes 32 cycles, in which shared memory delivers just the 4 KB of both operands.
 */
template <int D, bool KEYS> struct hopper_bwd_shape {
	static constexpr int ROWS = 64 * CONSUMERS, COLS = 64, STAGES = 3;
	static constexpr int FEW_REGISTERS = 24, MANY_REGISTERS = 240;
	static constexpr bool HELD = !KEYS || D <= 64;
	static constexpr int RESULTS = KEYS ? 2 : 1; /* dk and dv, or dq */
	static constexpr int TILES =
		(2 * (ROWS + STAGES * COLS) + RESULTS * ROWS) * D * 2;
	static_assert(registers_fit(FEW_REGISTERS, MANY_REGISTERS), "registers");
};

template <int COLS, int STAGES> struct hopper_bwd_rest {
	uint64_t mine, mine_free, full[STAGES], free[STAGES];
	float lse[STAGES][COLS],
		delta[STAGES][COLS]; /* with KEYS: of the tile's queries */
	struct hopper_item item;     /* of the block's rows */
};

/* x: the operands of q k^T, keys and queries; y: those of dout v^T, values and dout. */
struct hopper_bwd_args {
	CUtensorMap my_x, my_y, their_x, their_y, dx, dy; /* dx: dk or dq; dy: dv */
	bool store_x, store_y;				  /* these by TMA */
	struct bwd_args a;
	struct hopper_order order;
};

template <typename T, int D, bool KEYS> struct hopper_bwd_room {
	using S = hopper_bwd_shape<D, KEYS>;
	T *my_x, *my_y, *their_x, *their_y; /* theirs: [STAGES][COLS][D] */
	T *dx, *dy;			    /* a room for each warp */
	struct hopper_bwd_rest<S::COLS, S::STAGES> *rest;

	__device__ inline explicit hopper_bwd_room(unsigned char *shared)
	{
		my_x = (T *)hopper_room(shared);
		my_y = my_x + S::ROWS * D;
		their_x = my_y + S::ROWS * D;
		their_y = their_x + S::STAGES * S::COLS * D;
		dx = their_y + S::STAGES * S::COLS * D;
		dy = dx + S::ROWS * D;
		rest = (struct hopper_bwd_rest<S::COLS, S::STAGES> *)(dx +
								      S::RESULTS *
									      S::ROWS *
									      D);
	}
};

/* ---- which tiles ---------------------------------------------------------------------- */

/* The rows of an item. The first keys and the last queries, which have the most tiles, are
 * the first items. With KEYS tiles of queries until row `end` attend to some of the keys; else tiles of keys
 * from row `first` on are visible to some of the queries. */
template <int D, bool KEYS, bool WINDOW> struct bwd_tile {
	struct hopper_place at;
	int begin, first = 0, end;

	__device__ inline bwd_tile(
		const struct hopper_bwd_args &x, struct hopper_place at)
	    : at(at)
	{
		constexpr int ROWS = hopper_bwd_shape<D, KEYS>::ROWS;
		constexpr int COLS = hopper_bwd_shape<D, KEYS>::COLS;
		begin = (KEYS ? at.tile : x.order.tiles - 1 - at.tile) * ROWS;
		end = (int)x.a.q.rows;
		if (WINDOW && KEYS)
			end = last_row(x.a.q_runs, x.a.starts.window,
				      min(end, begin + ROWS) - 1) +
			      1;
		else if (WINDOW)
			first = first_row(x.a.q_runs, x.a.starts.window, begin) / COLS *
				COLS;
	}
};

/* The number of tiles of the other side for rows [begin, end) of a block; for keys, those of
 * all query heads. */
template <int D, bool KEYS, bool WINDOW>
static __device__ inline int their_tiles(const struct bwd_args &x,
	const struct bwd_tile<D, KEYS, WINDOW> &t, int begin, int end)
{
	constexpr int COLS = hopper_bwd_shape<D, KEYS>::COLS;
	if (KEYS)
		return max(0, (t.end + COLS - 1) / COLS - begin / COLS) * x.group;
	return (min(t.end, end) + COLS - 1) / COLS - t.first / COLS;
}

/* The first row of tile i, and its head: tiles of queries from the last to the first,
 * alternating between heads, so that the first tiles are visible to all keys. */
template <int D, bool KEYS, bool WINDOW>
static __device__ inline void their_tile(const struct bwd_args &x,
	const struct bwd_tile<D, KEYS, WINDOW> &t, int i, int *row, int *their_head)
{
	constexpr int COLS = hopper_bwd_shape<D, KEYS>::COLS;
	int all = (t.end + COLS - 1) / COLS, head = t.at.head;
	*row = KEYS ? (all - 1 - i / x.group) * COLS : t.first + i * COLS;
	*their_head = KEYS ? head * x.group + i % x.group : head / x.group;
}

/* ---- the producer warp ------------------------------------------------------------------ */

/* Enqueues the other side's tiles for one item, from use `first` of the ring on; returns
 * their number. Lanes copy lse and delta of queries, which may not be aligned to 16 bytes;
 * outside the chunk they give probabilities of 0. */
template <typename T, int D, bool KEYS, bool WINDOW>
static __device__ inline int load_theirs(const struct hopper_bwd_args &x,
	const struct hopper_bwd_room<T, D, KEYS> &s,
	const struct bwd_tile<D, KEYS, WINDOW> &mine, int first)
{
	using S = hopper_bwd_shape<D, KEYS>;
	constexpr int TILE = S::COLS * D, BYTES = TILE * (int)sizeof(T);
	constexpr int EACH = S::COLS / WARP;
	struct hopper_place at = mine.at;
	int n = their_tiles(x.a, mine, mine.begin, mine.begin + S::ROWS);
	int lane = lane_id();
	for (int i = 0; i < n; i++) {
		struct turn t = turn_of<S::STAGES>(first + i);
		int row, head;
		float lse[EACH], delta[EACH];
		their_tile(x.a, mine, i, &row, &head);
		int64_t state =
			((int64_t)at.batch * x.a.n_heads + head) * x.a.q.rows + row;
#pragma unroll
		for (int j = 0; KEYS && j < EACH; j++) {
			int query = j * WARP + lane;
			bool there = row + query < x.a.q.rows;
			lse[j] = there ? x.a.lse[state + query] * LOG2_E : INFINITY;
			delta[j] = there ? x.a.delta[state + query] : 0;
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
		panels_load<D, S::COLS>(s.their_x + t.place * TILE, &x.their_x,
			&s.rest->full[t.place], row, head, at.batch);
		panels_load<D, S::COLS>(s.their_y + t.place * TILE, &x.their_y,
			&s.rest->full[t.place], row, head, at.batch);
	}
	return n;
}

/* Enqueues the block's rows of an item. */
template <typename T, int D, bool KEYS, bool WINDOW>
static __device__ inline void load_mine(const struct hopper_bwd_args &x,
	const struct hopper_bwd_room<T, D, KEYS> &s,
	const struct bwd_tile<D, KEYS, WINDOW> &mine)
{
	using S = hopper_bwd_shape<D, KEYS>;
	struct hopper_place at = mine.at;
	barrier_expect(&s.rest->mine, 2 * S::ROWS * D * (int)sizeof(T));
	panels_load<D, S::ROWS>(
		s.my_x, &x.my_x, &s.rest->mine, mine.begin, at.head, at.batch);
	panels_load<D, S::ROWS>(
		s.my_y, &x.my_y, &s.rest->mine, mine.begin, at.head, at.batch);
}

template <typename T, int D, bool KEYS, bool WINDOW>
static __device__ inline void bwd_produce(
	const struct hopper_bwd_args &x, const struct hopper_bwd_room<T, D, KEYS> &s)
{
	int item = blockIdx.x, first = 0, lane = lane_id();
	for (int round = 0;; round++) {
		int next = lane == 0 ? item_take(x.order) : 0;
		const struct hopper_item here = item_of(x.order, item);
		barrier_wait(&s.rest->mine_free, round % 2 ^ 1);
		if (lane == 0)
			s.rest->item = here;
		if (item >= x.order.items)
			break;
		const struct bwd_tile<D, KEYS, WINDOW> mine(x, here.at);
		if (lane == 0)
			load_mine(x, s, mine);
		first += load_theirs(x, s, mine, first);
		item = __shfl_sync(ALL_LANES, next, 0);
	}
	if (lane == 0) {
		barrier_arrive(&s.rest->mine);
		items_end(x.order);
	}
}

/* ---- a block's rows --------------------------------------------------------------------- */

/* Rows of a block's side, [ROWS][D] in shared memory, as an operand: those of warpgroup w in
 * shared memory, or this warp's in registers. */
template <typename T, int D, bool KEYS> struct own_rows {
	using S = hopper_bwd_shape<D, KEYS>;
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

	/* Enqueues c = these rows times the rows of a tile of the other side, transposed. */
	template <int NT>
	__device__ inline void times(float (&c)[NT][4], const T *theirs) const
	{
		wgmma_hold(c);
		wgmma_fence();
		if constexpr (S::HELD)
			wgmma_held_rows<D>(c, held, theirs, S::COLS);
		else
			wgmma_rows<D>(c, tile, S::ROWS, theirs, S::COLS);
		wgmma_commit();
	}
};

/* Enqueues c += p times the rows of a tile of the other side. */
template <typename T, int NT, int K>
static __device__ inline void add_matmul(
	float (&c)[NT][4], uint32_t (&p)[K][4], const T *theirs)
{
	wgmma_hold(c);
	wgmma_hold(p);
	wgmma_fence();
	wgmma_held(c, p, theirs);
	wgmma_commit();
}

/* Stores a warp's rows, from `row` of the block's tile on: by TMA, whose rooms are free. */
template <typename T, int D>
static __device__ inline void store_gradient(struct heads to, bool by_tma,
	const CUtensorMap *map, T *rooms, const struct bwd_args &x,
	struct hopper_place at, int begin, int row, const float (&c)[1][D / 8][4],
	float scale)
{
	const float factor[2] = {scale, scale};
	if (by_tma) {
		rows_store<T, D>(rooms + row * D, map, c[0], factor, begin + row, at.head,
			at.batch);
		return;
	}
	enum { ROWS = 64 * CONSUMERS };
	struct tile_span rows = {begin, begin, 0, min((int)ROWS, (int)x.q.rows - begin)};
	put_gradient<T, D>(to, x, at.batch, at.head, rows, row, c, scale);
}

/* ---- keys: dk, dv ----------------------------------------------------------------------- */

/* Scores to probabilities, for keys from `key` on and queries from `query` on; MASKED: with
 * the causal mask; with a WINDOW, this lane's keys are seen until these rows. */
template <bool MASKED, bool WINDOW, int NT>
static __device__ inline void key_probabilities(float (&s)[NT][4], const float *lse,
	float scale, int key, int query, const int (&until)[2])
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
			float p = exp2_fast(fmaf(s[n][e], scale, e % 2 ? -l.y : -l.x));
			s[n][e] = MASKED && hidden ? 0 : p;
		}
	}
}

/* dp = p (dp - delta). */
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

/* Releases the remaining tiles of an item, from use `at` of the ring on, which only the other
 * warpgroup needs. */
template <typename T, int D, bool KEYS>
static __device__ inline void pass_by(
	const struct hopper_bwd_room<T, D, KEYS> &s, int at, int end)
{
	constexpr int STAGES = hopper_bwd_shape<D, KEYS>::STAGES;
	for (; at < end; at++) {
		struct turn t = turn_of<STAGES>(at);
		barrier_wait(&s.rest->full[t.place], t.parity);
		warp_arrive(&s.rest->free[t.place]);
	}
}

/* A warpgroup's keys of an item. */
template <typename T, int D, bool WINDOW> struct keys_part {
	using S = hopper_bwd_shape<D, true>;
	static constexpr int NT = S::COLS / 8, TILE = S::COLS * D;
	struct own_rows<T, D, true> my_x, my_y;
	float dk[1][D / 8][4] = {}, dv[1][D / 8][4] = {};
	int until[2] =
		{}; /* the row of the last query that attends to each of this lane's keys */

	__device__ inline keys_part(const struct hopper_bwd_room<T, D, true> &s, int w)
	    : my_x(s.my_x, w), my_y(s.my_y, w)
	{
		my_x.hold();
		my_y.hold();
	}

	/* The queries from `query` on, at use i of the ring. */
	template <bool MASKED>
	__device__ inline void add(const struct hopper_bwd_room<T, D, true> &s, int i,
		float score, int key, int query)
	{
		struct turn t = turn_of<S::STAGES>(i);
		const T *their_x = s.their_x + t.place * TILE;
		const T *their_y = s.their_y + t.place * TILE;
		float p[NT][4], dp[NT][4];
		uint32_t p_narrow[NT / 2][4], ds[NT / 2][4];
		barrier_wait(&s.rest->full[t.place], t.parity);
		my_x.times(p, their_x);
		my_y.times(dp, their_y);
		wgmma_wait<1>();
		wgmma_hold(p);
		key_probabilities<MASKED, WINDOW>(
			p, s.rest->lse[t.place], score, key, query, until);
		operand_of<T>(p_narrow, p);
		add_matmul(dv[0], p_narrow, their_y);
		wgmma_wait<1>();
		wgmma_hold(dp);
		key_gradients(dp, p, s.rest->delta[t.place]);
		operand_of<T>(ds, dp);
		add_matmul(dk[0], ds, their_x);
		wgmma_wait<0>();
		wgmma_hold(dv[0]);
		wgmma_hold(p_narrow);
		wgmma_hold(dk[0]);
		wgmma_hold(ds);
		warp_arrive(&s.rest->free[t.place]);
	}
};

/* Computes warpgroup w's part of an item, from use `first` of the ring on; returns the next
 * use. Its last tiles, one for each head, are masked. */
template <typename T, int D, bool WINDOW>
static __device__ inline int keys_item(const struct hopper_bwd_args &x,
	const struct hopper_bwd_room<T, D, true> &s, struct hopper_place at, int first,
	int w)
{
	using S = hopper_bwd_shape<D, true>;
	static_assert(S::COLS == 64, "a warpgroup's rows");
	const struct bwd_tile<D, true, WINDOW> mine(x, at);
	int begin = mine.begin, row = w * 64 + threadIdx.x % WARPGROUP / WARP * 16;
	int all = their_tiles(x.a, mine, begin, begin + S::ROWS);
	int n = their_tiles(x.a, mine, begin + w * 64, begin + w * 64 + 64);
	struct keys_part<T, D, WINDOW> part(s, w);
	int i = 0, query, head,
	    seen = 0; /* queries up to row `seen` attend to all keys before them */
	if (WINDOW) {
		seen = last_row(x.a.q_runs, x.a.starts.window, begin + w * 64);
		for (int j = 0; j < 2; j++)
			part.until[j] = last_row(x.a.q_runs, x.a.starts.window,
				begin + row + lane_id() / 4 + 8 * j);
	}
	if (S::HELD)
		warp_arrive(&s.rest->mine_free);
	for (; i < n - x.a.group; i++) {
		their_tile(x.a, mine, i, &query, &head);
		if (WINDOW && query + S::COLS - 1 > seen)
			part.template add<true>(
				s, first + i, x.a.score, begin + row, query);
		else
			part.template add<false>(
				s, first + i, x.a.score, begin + row, query);
	}
	for (; i < n; i++) {
		their_tile(x.a, mine, i, &query, &head);
		part.template add<true>(s, first + i, x.a.score, begin + row, query);
	}
	if (!S::HELD)
		warp_arrive(&s.rest->mine_free);
	pass_by(s, first + n, first + all);
	rooms_wait();
	store_gradient<T, D>(
		x.a.dk, x.store_x, &x.dx, s.dx, x.a, at, begin, row, part.dk, x.a.scale);
	store_gradient<T, D>(
		x.a.dv, x.store_y, &x.dy, s.dy, x.a, at, begin, row, part.dv, 1);
	return first + all;
}

/* ---- queries: dq ------------------------------------------------------------------------ */

/* Scores to probabilities, for queries from `query` on and keys from `key` on; MASKED: with
 * the causal mask, and with a WINDOW that of keys before these rows. Returns their combined bits.
 * lse, from: of this lane's rows. */
template <bool MASKED, bool WINDOW, int NT>
static __device__ inline uint32_t query_probabilities(float (&s)[NT][4],
	const float (&lse)[2], float scale, int query, int key, const int (&from)[2])
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
			float p = exp2_fast(fmaf(s[n][e], scale, -lse[e / 2]));
			s[n][e] = MASKED && hidden ? 0 : p;
			bits |= __float_as_uint(s[n][e]);
		}
	return bits;
}

/* dp = p (dp - delta). */
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
template <typename T, int D, bool WINDOW> struct queries_part {
	using S = hopper_bwd_shape<D, false>;
	static constexpr int NT = S::COLS / 8, TILE = S::COLS * D;
	struct own_rows<T, D, false> my_x, my_y;
	float dq[1][D / 8][4] = {}, lse[2], delta[2];
	int from[2] = {}; /* the row of the first key of each of this lane's queries */

	__device__ inline queries_part(
		const struct hopper_bwd_room<T, D, false> &s, int w)
	    : my_x(s.my_x, w), my_y(s.my_y, w)
	{
		my_x.hold();
		my_y.hold();
	}

	/* Loads lse and delta of this lane's rows from `query` on; `state` is the index of
	 * their head. */
	__device__ inline void know(const struct bwd_args &x, int64_t state, int query)
	{
		for (int i = 0; i < 2; i++) {
			int row = query + lane_id() / 4 + 8 * i;
			bool there = row < x.q.rows;
			lse[i] = there ? x.lse[state + row] * LOG2_E : INFINITY;
			delta[i] = there ? x.delta[state + row] : 0;
			if (WINDOW)
				from[i] = first_row(x.q_runs, x.starts.window, row);
		}
	}

	/* The keys from `key` on, at use i of the ring. */
	template <bool MASKED>
	__device__ inline void add(const struct hopper_bwd_room<T, D, false> &s, int i,
		float score, int query, int key)
	{
		struct turn t = turn_of<S::STAGES>(i);
		const T *their_x = s.their_x + t.place * TILE;
		float p[NT][4], dp[NT][4];
		uint32_t ds[NT / 2][4];
		barrier_wait(&s.rest->full[t.place], t.parity);
		my_x.times(p, their_x);
		my_y.times(dp, s.their_y + t.place * TILE);
		wgmma_wait<1>();
		wgmma_hold(p);
		wgmma_wait_after<0>(query_probabilities<MASKED, WINDOW>(
			p, lse, score, query, key, from));
		wgmma_hold(dp);
		query_gradients(dp, p, delta);
		operand_of<T>(ds, dp);
		add_matmul(dq[0], ds, their_x);
		wgmma_wait<0>();
		wgmma_hold(dq[0]);
		wgmma_hold(ds);
		warp_arrive(&s.rest->free[t.place]);
	}
};

/* As keys_item(). The last tile of keys is masked. */
template <typename T, int D, bool WINDOW>
static __device__ inline int queries_item(const struct hopper_bwd_args &x,
	const struct hopper_bwd_room<T, D, false> &s, struct hopper_place at, int first,
	int w)
{
	using S = hopper_bwd_shape<D, false>;
	static_assert(S::COLS == 64, "a warpgroup's rows");
	static_assert(S::HELD, "own rows are read once");
	const struct bwd_tile<D, false, WINDOW> mine(x, at);
	int begin = mine.begin, row = w * 64 + threadIdx.x % WARPGROUP / WARP * 16;
	int all = their_tiles(x.a, mine, begin, begin + S::ROWS);
	int n = their_tiles(x.a, mine, begin + w * 64, begin + w * 64 + 64);
	int seen = 0; /* keys from this row on are seen by all queries after them */
	if (WINDOW)
		seen = first_row(x.a.q_runs, x.a.starts.window, begin + w * 64 + 63);
	struct queries_part<T, D, WINDOW> part(s, w);
	part.know(x.a, ((int64_t)at.batch * x.a.n_heads + at.head) * x.a.q.rows,
		begin + row);
	warp_arrive(&s.rest->mine_free);
	for (int i = 0; i < n - 1; i++) {
		int key = mine.first + i * S::COLS;
		if (WINDOW && key < seen)
			part.template add<true>(
				s, first + i, x.a.score, begin + row, key);
		else
			part.template add<false>(
				s, first + i, x.a.score, begin + row, key);
	}
	part.template add<true>(
		s, first + n - 1, x.a.score, begin + row, mine.first + (n - 1) * S::COLS);
	pass_by(s, first + n, first + all);
	rooms_wait();
	store_gradient<T, D>(
		x.a.dq, x.store_x, &x.dx, s.dx, x.a, at, begin, row, part.dq, x.a.scale);
	return first + all;
}

/* ---- launches --------------------------------------------------------------------------- */

template <typename T, int D, bool KEYS, bool WINDOW>
static __device__ inline void bwd_consume(const struct hopper_bwd_args &x,
	const struct hopper_bwd_room<T, D, KEYS> &s, int w)
{
	int first = 0;
	for (int round = 0;; round++) {
		barrier_wait(&s.rest->mine, round % 2);
		const struct hopper_item item = s.rest->item;
		if (item.item >= x.order.items)
			break;
		struct hopper_place at = place_of(x.order, item);
		if constexpr (KEYS)
			first = keys_item<T, D, WINDOW>(x, s, at, first, w);
		else
			first = queries_item<T, D, WINDOW>(x, s, at, first, w);
	}
	rooms_wait();
}

template <typename T, int D, bool KEYS, bool WINDOW>
static __global__ void __launch_bounds__(HOPPER_THREADS, 1)
	hopper_bwd(const __grid_constant__ struct hopper_bwd_args x)
{
	if constexpr (HOPPER) {
		SHARED(shared);
		using S = hopper_bwd_shape<D, KEYS>;
		const struct hopper_bwd_room<T, D, KEYS> s(shared);
		constexpr int WARPS = CONSUMERS * WARPGROUP / WARP;
		int w = warpgroup_id();
		if (threadIdx.x == 0) {
			barrier_make(&s.rest->mine, 1);
			barrier_make(&s.rest->mine_free, WARPS);
			for (int i = 0; i < S::STAGES; i++) {
				barrier_make(&s.rest->full[i], WARP);
				barrier_make(&s.rest->free[i], WARPS);
			}
			barriers_tell();
		}
		__syncthreads();
		if (w == 0) {
			registers_fewer<S::FEW_REGISTERS>();
			if (threadIdx.x < WARP)
				bwd_produce<T, D, KEYS, WINDOW>(x, s);
		} else {
			registers_more<S::MANY_REGISTERS>();
			bwd_consume<T, D, KEYS, WINDOW>(x, s, w - 1);
		}
	} else {
		__trap(); /* PTX of another architecture, compiled by the driver */
	}
}

template <typename T, int D, bool KEYS>
static void hopper_bwd_launch(
	struct device *d, const struct attn *a, enum dtype type, const struct bwd_args &x)
{
	using S = hopper_bwd_shape<D, KEYS>;
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
		order_of(d, a, S::ROWS, heads, type),
	};
	launch(d, "attn_bwd", grid_of(d, all.order), dim3(HOPPER_THREADS),
		hopper_bytes(
			S::TILES, sizeof(struct hopper_bwd_rest<S::COLS, S::STAGES>)),
		has_starts(x.starts) ? hopper_bwd<T, D, KEYS, true>
				     : hopper_bwd<T, D, KEYS, false>,
		all);
}

void attn_hopper_bwd(
	struct device *d, const struct attn *a, enum dtype type, const struct bwd_args &x)
{
	by_type(type, [&](auto number) {
		using T = decltype(number);
		if constexpr (sizeof(T) == 2) {
			if (a->dim <= 64) {
				hopper_bwd_launch<T, 64, true>(d, a, type, x);
				hopper_bwd_launch<T, 64, false>(d, a, type, x);
			} else {
				hopper_bwd_launch<T, 128, true>(d, a, type, x);
				hopper_bwd_launch<T, 128, false>(d, a, type, x);
			}
		}
	});
}
