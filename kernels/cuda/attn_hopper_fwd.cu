/* Attention, forward, for sm_90. A block has queries of a head, 64 for each of its consumer
 * warpgroups. Warpgroups take turns at enqueuing matmuls: while one computes its softmax, the
 * tensor cores compute the matmuls of the others. Within a warpgroup, the softmax of a tile
 * overlaps with the matmul of the probabilities and values of the previous tile. */
#include "kernels/cuda/attn_hopper.h"

/* Shared memory: tiles of q, o, and of k and v for each stage. N: consumer warpgroups; registers
 * suffice for three with heads of 64 and no windows. */
template <typename NUMBER, int HEAD, int N, bool WITH_WINDOW> struct hopper_fwd_shape {
	using T = NUMBER;
	static constexpr int D = HEAD, GROUPS = N, THREADS = (1 + N) * WARPGROUP;
	static constexpr bool WINDOW = WITH_WINDOW;
	static constexpr int QUERIES = GROUP_ROWS * N, KEYS = 128, STAGES = 2;
	static constexpr int FEW_REGISTERS = N == 2 ? 40 : 32;
	static constexpr int MANY_REGISTERS = N == 2 ? 232 : 160;
	static constexpr int TILES = (2 * QUERIES + 2 * STAGES * KEYS) * D * 2;
	/* A warpgroup's queries lie in one tile of keys, the last one that they attend to. */
	static_assert(KEYS % GROUP_ROWS == 0, "tiles");
	static_assert(registers_fit(FEW_REGISTERS, MANY_REGISTERS, N), "registers");
};

/* Barriers, full and free, of q and of each stage of keys and values; and the item of q. */
template <class S> struct hopper_fwd_barriers {
	uint64_t q, q_free;
	uint64_t k[S::STAGES], v[S::STAGES], k_free[S::STAGES], v_free[S::STAGES];
	struct hopper_item item;
};

struct hopper_fwd_args {
	CUtensorMap q, k, v, o;
	bool store; /* store o by TMA */
	struct fwd_args a;
	struct hopper_order order;
};

/* The named barrier of warpgroup 0's turn; the other warpgroups have the next ones. */
enum { FIRST_TURN = 1 };

template <class S> struct hopper_fwd_memory {
	using T = typename S::T;
	T *q, *k, *v; /* k, v: [STAGES][KEYS][D] */
	T *o;	      /* a buffer for each warp */
	struct hopper_fwd_barriers<S> *full;

	__device__ inline explicit hopper_fwd_memory(unsigned char *shared)
	{
		q = (T *)align_tiles(shared);
		k = q + S::QUERIES * S::D;
		v = k + S::STAGES * S::KEYS * S::D;
		o = v + S::STAGES * S::KEYS * S::D;
		full = (struct hopper_fwd_barriers<S> *)(o + S::QUERIES * S::D);
	}
};

/* The queries of an item, and its n_keys visible tiles of keys from row `first` on; n_hiding of
 * them have keys before the windows of some queries. The last queries, which have the most keys,
 * come first. Tiles of queries are aligned to the end of the chunk: a short one has few keys. */
template <class S> struct fwd_tile {
	struct hopper_place at;
	int begin, rows, n_keys, first = 0, n_hiding = 0;

	__device__ inline fwd_tile(
		const struct hopper_fwd_args &x, struct hopper_place at)
	    : at(at)
	{
		int all = (int)x.a.q.rows, groups = (all + GROUP_ROWS - 1) / GROUP_ROWS;
		int end = groups * GROUP_ROWS - at.tile * S::QUERIES;
		begin = max(0, end - S::QUERIES);
		rows = min(end, all) - begin;
		if (S::WINDOW) {
			first = first_key(x, 0) / S::KEYS * S::KEYS;
			n_hiding =
				(first_key(x, rows - 1) - first + S::KEYS - 1) / S::KEYS;
		}
		n_keys = keys_until(rows - 1);
	}

	/* Returns the row of the first key that query i of the tile attends to. */
	__device__ inline int first_key(const struct hopper_fwd_args &x, int i) const
	{
		return first_row(x.a.q_runs, x.a.starts.window, begin + i);
	}

	/* Returns the number of tiles of keys up to query i. */
	__device__ inline int keys_until(int i) const
	{
		return (begin + i - first) / S::KEYS + 1;
	}
};

/* ---- the producer thread ----------------------------------------------------------------- */

/* Enqueues the keys and values of one tile of queries, from use `first` of the ring on. */
template <class S>
static __device__ inline void load_keys(const struct hopper_fwd_args &x,
	const struct hopper_fwd_memory<S> &s, const struct fwd_tile<S> &t, int first)
{
	constexpr int D = S::D, TILE = S::KEYS * D, BYTES = TILE * 2;
	int head = t.at.head / x.a.group;
	for (int i = 0; i < t.n_keys; i++) {
		struct ring_use use = ring_use_at<S::STAGES>(first + i);
		uint64_t *k = &s.full->k[use.place], *v = &s.full->v[use.place];
		barrier_wait(&s.full->k_free[use.place], use.parity ^ 1);
		barrier_expect(k, BYTES);
		int row = t.first + i * S::KEYS;
		load_panels<D, S::KEYS>(
			s.k + use.place * TILE, &x.k, k, row, head, t.at.batch);
		barrier_wait(&s.full->v_free[use.place], use.parity ^ 1);
		barrier_expect(v, BYTES);
		load_panels<D, S::KEYS>(
			s.v + use.place * TILE, &x.v, v, row, head, t.at.batch);
	}
}

/* Runs the producer thread: takes and publishes items, and enqueues copies of q, k and v. */
template <class S>
static __device__ inline void produce_fwd_tiles(
	const struct hopper_fwd_args &x, const struct hopper_fwd_memory<S> &s)
{
	int item = first_item(x.order), first = 0;
	for (int round = 0;; round++) {
		int next = next_item(x.order);
		const struct hopper_item current = make_item(x.order, item);
		barrier_wait(&s.full->q_free, round % 2 ^ 1);
		s.full->item = current;
		if (item >= x.order.items)
			break;
		const struct fwd_tile<S> t(x, current.at);
		barrier_expect(&s.full->q, S::QUERIES * S::D * 2);
		load_panels<S::D, S::QUERIES>(
			s.q, &x.q, &s.full->q, t.begin, t.at.head, t.at.batch);
		load_keys(x, s, t, first);
		first += t.n_keys;
		item = next;
	}
	barrier_arrive(&s.full->q);
	items_end(x.order);
}

/* ---- the consumer warpgroups ------------------------------------------------------------- */

/* Applies the causal mask: scores of keys after the query become -infinity. query, key: the first
 * of this warp. */
template <int NT>
static __device__ inline void mask_later_keys(float (&s)[1][NT][4], int query, int key)
{
	int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
	for (int n = 0; n < NT; n++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			if (key + 8 * n + 2 * t + e % 2 > query + g + e / 2 * 8)
				s[0][n][e] = -INFINITY;
}

/* Applies the window: scores of keys before the first key of a lane's queries become -infinity. */
template <int NT>
static __device__ inline void mask_earlier_keys(
	float (&s)[1][NT][4], const int (&first)[2], int key)
{
	int t = lane_id() % 4;
#pragma unroll
	for (int n = 0; n < NT; n++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			if (key + 8 * n + 2 * t + e % 2 < first[e / 2])
				s[0][n][e] = -INFINITY;
}

/* Enqueues the matmul for the scores of warpgroup w's queries and the keys at use i of the ring. */
template <class S, int NT>
static __device__ inline void enqueue_scores(
	float (&scores)[NT][4], const struct hopper_fwd_memory<S> &s, int i, int w)
{
	constexpr int D = S::D;
	wgmma_hold(scores);
	wgmma_fence();
	wgmma_rows<D>(scores, s.q + w * GROUP_ROWS * PANEL, S::QUERIES,
		s.k + i % S::STAGES * S::KEYS * D, S::KEYS);
	wgmma_commit();
}

/* Enqueues the matmul of probabilities and the values at use i of the ring. */
template <class S, int NT, int K>
static __device__ inline void enqueue_values(float (&o)[NT][4], uint32_t (&p)[K][4],
	const struct hopper_fwd_memory<S> &s, int i)
{
	wgmma_hold(o);
	wgmma_hold(p);
	wgmma_fence();
	wgmma_held(o, p, s.v + i % S::STAGES * S::KEYS * S::D);
	wgmma_commit();
}

/* Blocks until the data of use i of the ring are in shared memory. */
template <int STAGES>
static __device__ inline void ring_wait(uint64_t (&full)[STAGES], int i)
{
	struct ring_use t = ring_use_at<STAGES>(i);
	barrier_wait(&full[t.place], t.parity);
}

/* A warpgroup's part of a tile of queries: the online softmax, and the probabilities of the
 * last keys, not yet multiplied by their values. */
template <class S> struct fwd_part {
	using T = typename S::T;
	static constexpr int D = S::D, NT = S::KEYS / 8;
	struct running<D, 1> a;
	float scores[1][NT][4];
	uint32_t p[NT / 2][4];
	int w, row;   /* warpgroup; first row of this warp in the tile */
	int diagonal; /* the same row, counted from the begin of its tile of keys */
	int first[2]; /* with a window: the row of the first key of this lane's queries */

	/* Blocks until it is this warpgroup's turn to enqueue matmuls. */
	__device__ inline void wait_own_turn(void) const
	{
		turn_wait(FIRST_TURN + w, 2 * WARPGROUP);
	}

	/* Gives the turn to the next warpgroup. */
	__device__ inline void pass_turn(void) const
	{
		turn_give(FIRST_TURN + (w + 1) % S::GROUPS, 2 * WARPGROUP);
	}

	/* Releases uses [at, end) of the ring, which only other warpgroups need; this warpgroup has
	 * had its turns. */
	__device__ inline void skip_tiles(
		const struct hopper_fwd_memory<S> &s, int at, int end) const
	{
#pragma unroll 1
		for (; at < end; at++) {
			ring_wait(s.full->k, at);
			warp_arrive(&s.full->k_free[at % S::STAGES]);
			ring_wait(s.full->v, at);
			warp_arrive(&s.full->v_free[at % S::STAGES]);
		}
	}

	/* Waits for n turns, and gives each to the next warpgroup at once. */
	__device__ inline void skip_turns(int n) const
	{
#pragma unroll 1
		for (; n > 0; n--) {
			wait_own_turn();
			pass_turn();
		}
	}

	/* Frees the stage of the keys at use i of the ring; with the last keys, the queries too. */
	__device__ inline void scores_done(
		const struct hopper_fwd_memory<S> &s, int i, bool last)
	{
		wgmma_hold(scores[0]);
		warp_arrive(&s.full->k_free[i % S::STAGES]);
		if (last)
			warp_arrive(&s.full->q_free);
	}

	/* Adds the first keys, at use i of the ring; n: the number of tiles of keys. */
	__device__ inline void begin(const struct hopper_fwd_args &x,
		const struct hopper_fwd_memory<S> &s, const struct fwd_tile<S> &t, int n,
		int i)
	{
		float rescale[1][2];
		diagonal = (t.begin + row) % S::KEYS;
		for (int j = 0; S::WINDOW && j < 2; j++)
			first[j] = t.first_key(x, row + lane_id() / 4 + 8 * j);
		ring_wait(s.full->k, i);
		wait_own_turn();
		enqueue_scores(scores[0], s, i, w);
		pass_turn();
		init_running(a);
		wgmma_wait<0>();
		scores_done(s, i, n == 1);
		if (n == 1)
			mask_later_keys(scores, diagonal, 0);
		if (S::WINDOW && t.n_hiding > 0)
			mask_earlier_keys(scores, first, t.first);
		softmax<T>(a, rescale, scores, x.a.score);
		pack_operand<T>(p, scores[0]);
	}

	/* Adds the next keys, at use i. LAST: they need the causal mask; HIDE: the tile, from row
	 * `key` on, has keys before the windows of some queries. The softmax overlaps with the
	 * matmul of the previous values. There must be no branch between the begin and the end of
	 * that matmul: ptxas (13.0) has lost registers there. */
	template <bool LAST, bool HIDE>
	__device__ inline void next(const struct hopper_fwd_args &x,
		const struct hopper_fwd_memory<S> &s, int i, int key)
	{
		float rescale[1][2];
		ring_wait(s.full->k, i);
		ring_wait(s.full->v, i - 1);
		wait_own_turn();
		enqueue_scores(scores[0], s, i, w);
		enqueue_values(a.o[0], p, s, i - 1);
		pass_turn();
		wgmma_wait<1>();
		scores_done(s, i, LAST);
		if (LAST)
			mask_later_keys(scores, diagonal, 0);
		if (HIDE)
			mask_earlier_keys(scores, first, key);
		bool fades = softmax<T>(a, rescale, scores, x.a.score);
		wgmma_wait_after<0>(
			__float_as_uint(a.sum[0][0]) | __float_as_uint(a.sum[0][1]));
		values_done(s, i - 1);
		if (fades)
			rescale_sums(a, rescale);
		pack_operand<T>(p, scores[0]);
	}

	/* Adds the last values, at use i of the ring, to the output. */
	__device__ inline void end(const struct hopper_fwd_memory<S> &s, int i)
	{
		ring_wait(s.full->v, i);
		enqueue_values(a.o[0], p, s, i);
		wgmma_wait<0>();
		values_done(s, i);
	}

	/* Frees the stage of the values at use i of the ring. */
	__device__ inline void values_done(const struct hopper_fwd_memory<S> &s, int i)
	{
		wgmma_hold(a.o[0]);
		wgmma_hold(p);
		warp_arrive(&s.full->v_free[i % S::STAGES]);
	}
};

/* Stores the output and the softmax state of a warp's rows. */
template <class S>
static __device__ inline void store_fwd_rows(const struct hopper_fwd_args &x,
	const struct hopper_fwd_memory<S> &s, const struct fwd_part<S> &part,
	const struct fwd_tile<S> &t)
{
	using T = typename S::T;
	struct tile_span rows = {t.begin, t.begin, 0, t.rows};
	if (!x.store) {
		store_fwd_result<T>(part.a, x.a, t.at.batch, t.at.head, rows, part.row);
		return;
	}
	float factor[1][2];
	store_fwd_state<T>(factor, part.a, x.a, t.at.batch, t.at.head, rows, part.row);
	wait_buffers();
	store_rows_by_tma<T, S::D>(s.o + part.row * S::D, &x.o, part.a.o[0], factor[0],
		t.begin + part.row, t.at.head, t.at.batch);
}

/* Computes a warpgroup's queries of an item from n tiles of keys, from use `at` of the ring on, and
 * stores their output. Releases the tiles that only other warpgroups need. */
template <class S>
static __device__ inline void compute_fwd_item(const struct hopper_fwd_args &x,
	const struct hopper_fwd_memory<S> &s, struct fwd_part<S> &part,
	const struct fwd_tile<S> &t, int n, int at)
{
	int i = 1, key = t.first + S::KEYS;
	part.begin(x, s, t, n, at);
	for (; S::WINDOW && i < min(t.n_hiding, n - 1); i++) {
		part.template next<false, true>(x, s, at + i, key);
		key += S::KEYS;
	}
	for (; i < n - 1; i++)
		part.template next<false, false>(x, s, at + i, 0);
	if (S::WINDOW && i < n && i < t.n_hiding)
		part.template next<true, true>(x, s, at + i, key);
	else if (i < n)
		part.template next<true, false>(x, s, at + i, 0);
	part.skip_turns(t.n_keys - n);
	part.end(s, at + n - 1);
	part.skip_tiles(s, at + n, at + t.n_keys);
	store_fwd_rows(x, s, part, t);
}

/* Runs consumer warpgroup w. The warpgroups take turns at enqueuing matmuls; the last one begins,
 * the first one ends. */
template <class S>
static __device__ inline void consume_fwd_tiles(
	const struct hopper_fwd_args &x, const struct hopper_fwd_memory<S> &s, int w)
{
	int at = 0;
	struct fwd_part<S> part;
	part.w = w;
	part.row = w * GROUP_ROWS + threadIdx.x % WARPGROUP / WARP * WARP_ROWS;
	if (w == S::GROUPS - 1)
		part.pass_turn();
	for (int round = 0;; round++) {
		barrier_wait(&s.full->q, round % 2);
		const struct hopper_item item = s.full->item;
		if (item.item >= x.order.items)
			break;
		const struct fwd_tile<S> t(x, item_place(x.order, item));
		int group_row = w * GROUP_ROWS;
		if (group_row < t.rows) {
			compute_fwd_item(x, s, part, t, t.keys_until(group_row), at);
		} else {
			warp_arrive(&s.full->q_free);
			part.skip_turns(t.n_keys);
			part.skip_tiles(s, at, at + t.n_keys);
		}
		at += t.n_keys;
	}
	wait_buffers();
	if (w == 0)
		part.wait_own_turn();
}

/* Computes the forward, by a producer and S::GROUPS consumer warpgroups per block. */
template <class S>
static __global__ void __launch_bounds__(S::THREADS, 1)
	hopper_fwd(const __grid_constant__ struct hopper_fwd_args x)
{
	if constexpr (HOPPER) {
		SHARED(shared);
		const struct hopper_fwd_memory<S> s(shared);
		int w = warpgroup_id();
		if (threadIdx.x == 0) {
			constexpr int WARPS = S::GROUPS * WARPGROUP / WARP;
			barrier_make(&s.full->q, 1);
			barrier_make(&s.full->q_free, WARPS);
			for (int i = 0; i < S::STAGES; i++) {
				barrier_make(&s.full->k[i], 1);
				barrier_make(&s.full->v[i], 1);
				barrier_make(&s.full->k_free[i], WARPS);
				barrier_make(&s.full->v_free[i], WARPS);
			}
			publish_barriers();
		}
		__syncthreads();
		if (w == 0) {
			registers_fewer<S::FEW_REGISTERS>();
			if (threadIdx.x == 0)
				produce_fwd_tiles<S>(x, s);
		} else {
			registers_more<S::MANY_REGISTERS>();
			consume_fwd_tiles<S>(x, s, w - 1);
		}
	} else {
		__trap(); /* PTX of another architecture, compiled by the driver */
	}
}

/* Launches the kernel of shape S, with tensor maps for its operands and the output. */
template <class S>
static void hopper_fwd_launch(
	struct device *d, const struct attn *a, enum dtype type, const struct fwd_args &x)
{
	const struct hopper_fwd_args all = {
		tile_map(d, x.q, a->batch, type, S::QUERIES),
		tile_map(d, x.k, a->batch, type, S::KEYS),
		tile_map(d, x.v, a->batch, type, S::KEYS),
		rows_map(d, x.o, a->batch, type),
		rows_storable(d, x.o),
		x,
		make_order(d, a, S::QUERIES, a->heads, type),
	};
	launch(d, "attn_fwd", persistent_grid(d, all.order), dim3(S::THREADS),
		hopper_bytes(S::TILES, sizeof(struct hopper_fwd_barriers<S>)),
		hopper_fwd<S>, all);
}

template <typename T, int D, int GROUPS>
static void launch_by_window(
	struct device *d, const struct attn *a, enum dtype type, const struct fwd_args &x)
{
	if (has_starts(x.starts))
		hopper_fwd_launch<hopper_fwd_shape<T, D, 2, true>>(d, a, type, x);
	else
		hopper_fwd_launch<hopper_fwd_shape<T, D, GROUPS, false>>(d, a, type, x);
}

void attn_hopper_fwd(
	struct device *d, const struct attn *a, enum dtype type, const struct fwd_args &x)
{
	call_by_type(type, [&](auto number) {
		using T = decltype(number);
		if constexpr (sizeof(T) == 2) {
			if (a->dim > 64)
				launch_by_window<T, 128, 2>(d, a, type, x);
			else if (cuda_lab_off(d, LAB_ATTN_THREE))
				launch_by_window<T, 64, 2>(d, a, type, x);
			else
				launch_by_window<T, 64, 3>(d, a, type, x);
		}
	});
}
