/*
 * Attention, forward, for sm_90. A block has 128 queries of a head, of which each of two
 * warpgroups has half. While one of them makes probabilities of its scores the tensor cores
 * have the products of the other: they take turns at asking for products. Within a warpgroup
 * the values of the tile before are multiplied while scores become probabilities.
 */
#include "kernels/cuda/attn_hopper.h"

/* Shared memory: 16 D numbers of q, k and v each in 128 rows. */
template <int D> struct hopper_fwd_shape {
	static constexpr int QUERIES = 64 * CONSUMERS, KEYS = 128, STAGES = 2;
	static constexpr int TILES = (QUERIES + 2 * STAGES * KEYS) * D * 2;
};

/* Barriers: of q, and of each place for keys and for values, that it is full and free. */
template <int STAGES> struct hopper_fwd_barriers {
	uint64_t q, k[STAGES], v[STAGES], k_free[STAGES], v_free[STAGES];
};

struct hopper_fwd_args {
	CUtensorMap q, k, v;
	struct fwd_args a;
	struct order order;
};

/* The number of the barrier at which warpgroup 0 waits for its turn; the next is the other's. */
enum { FIRST_TURN = 1 };

template <typename T, int D> struct hopper_fwd_room {
	using S = hopper_fwd_shape<D>;
	T *q, *k, *v; /* k, v: [STAGES][KEYS][D] */
	struct hopper_fwd_barriers<S::STAGES> *full;

	__device__ inline explicit hopper_fwd_room(unsigned char *shared)
	{
		q = (T *)hopper_room(shared);
		k = q + S::QUERIES * D;
		v = k + S::STAGES * S::KEYS * D;
		full = (struct hopper_fwd_barriers<S::STAGES> *)(v +
								 S::STAGES * S::KEYS * D);
	}
};

/* Tiles of keys that the queries of a tile see. */
template <int D>
static __device__ inline int hopper_key_tiles(const struct fwd_args &x, int tile)
{
	using S = hopper_fwd_shape<D>;
	int rows = min((int)x.q.rows, (tile + 1) * S::QUERIES);
	return (rows + S::KEYS - 1) / S::KEYS;
}

template <typename T, int D>
static __device__ inline void fwd_produce(const struct hopper_fwd_args &x,
	const struct hopper_fwd_room<T, D> &s, struct place at, int tile)
{
	using S = hopper_fwd_shape<D>;
	constexpr int TILE = S::KEYS * D, BYTES = TILE * (int)sizeof(T);
	int n = hopper_key_tiles<D>(x.a, tile), kv_head = at.head / x.a.group;
	barrier_expect(&s.full->q, S::QUERIES * D * (int)sizeof(T));
	panels_load<D, S::QUERIES>(
		s.q, &x.q, &s.full->q, tile * S::QUERIES, at.head, at.batch);
	for (int i = 0; i < n; i++) {
		struct turn t = turn_of<S::STAGES>(i);
		uint64_t *k = &s.full->k[t.place], *v = &s.full->v[t.place];
		barrier_wait(&s.full->k_free[t.place], t.parity ^ 1);
		barrier_expect(k, BYTES);
		panels_load<D, S::KEYS>(
			s.k + t.place * TILE, &x.k, k, i * S::KEYS, kv_head, at.batch);
		barrier_wait(&s.full->v_free[t.place], t.parity ^ 1);
		barrier_expect(v, BYTES);
		panels_load<D, S::KEYS>(
			s.v + t.place * TILE, &x.v, v, i * S::KEYS, kv_head, at.batch);
	}
}

/* Scores of keys behind the query become -infinity. row: of the tile, of this warp. */
template <int NT>
static __device__ inline void hide_later(float (&s)[1][NT][4], int query, int key)
{
	int g = lane_id() / 4, t = lane_id() % 4;
	if (key + 8 * NT - 1 <= query)
		return;
#pragma unroll
	for (int n = 0; n < NT; n++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			if (key + 8 * n + 2 * t + e % 2 > query + g + e / 2 * 8)
				s[0][n][e] = -INFINITY;
}

/* Asks for the scores of tile i of keys, in turn; the other warpgroup's turn is given after. */
template <typename T, int D, int NT>
static __device__ inline void ask_scores(
	float (&scores)[NT][4], const struct hopper_fwd_room<T, D> &s, int i, int w)
{
	using S = hopper_fwd_shape<D>;
	struct turn t = turn_of<S::STAGES>(i);
	barrier_wait(&s.full->k[t.place], t.parity);
	turn_wait(FIRST_TURN + w, CONSUMERS * WARPGROUP);
	wgmma_hold(scores);
	wgmma_fence();
	wgmma_rows<D>(scores, s.q + w * 64 * PANEL, S::QUERIES,
		s.k + t.place * S::KEYS * D, S::KEYS);
	wgmma_commit();
}

/* Asks for the product of probabilities and tile i of values. */
template <typename T, int D, int K>
static __device__ inline void ask_values(float (&o)[D / 8][4], uint32_t (&p)[K][4],
	const struct hopper_fwd_room<T, D> &s, int i)
{
	using S = hopper_fwd_shape<D>;
	struct turn t = turn_of<S::STAGES>(i);
	barrier_wait(&s.full->v[t.place], t.parity);
	wgmma_hold(o);
	wgmma_hold(p);
	wgmma_fence();
	wgmma_held(o, p, s.v + t.place * S::KEYS * D);
	wgmma_commit();
}

/* Warpgroup w of the two. */
template <typename T, int D>
static __device__ inline void fwd_consume(const struct hopper_fwd_args &x,
	const struct hopper_fwd_room<T, D> &s, struct place at, int tile, int w)
{
	using S = hopper_fwd_shape<D>;
	constexpr int NT = S::KEYS / 8, STAGES = S::STAGES;
	int n = hopper_key_tiles<D>(x.a, tile), begin = tile * S::QUERIES;
	int row = w * 64 + threadIdx.x % WARPGROUP / WARP * 16;
	struct running<D, 1> a;
	float scores[1][NT][4], fade[1][2];
	uint32_t p[NT / 2][4];

	if (w == 1)
		turn_give(FIRST_TURN, CONSUMERS * WARPGROUP); /* the other one begins */
	barrier_wait(&s.full->q, 0);
	ask_scores(scores[0], s, 0, w);
	if (w == 0 || n > 1)
		turn_give(FIRST_TURN + 1 - w, CONSUMERS * WARPGROUP);
	running_begin(a);
	wgmma_wait<0>();
	wgmma_hold(scores[0]);
	warp_arrive(&s.full->k_free[0]);
	hide_later(scores, begin + row, 0);
	softmax<T>(a, fade, scores, x.a.score);
	operand_of<T>(p, scores[0]);
	for (int i = 1; i < n; i++) {
		ask_scores(scores[0], s, i, w);
		ask_values(a.o[0], p, s, i - 1);
		if (w == 0 || i < n - 1)
			turn_give(FIRST_TURN + 1 - w, CONSUMERS * WARPGROUP);
		wgmma_wait<1>();
		wgmma_hold(scores[0]);
		warp_arrive(&s.full->k_free[i % STAGES]);
		hide_later(scores, begin + row, i * S::KEYS);
		bool fades = softmax<T>(a, fade, scores, x.a.score);
		wgmma_wait<0>();
		wgmma_hold(a.o[0]);
		wgmma_hold(p);
		warp_arrive(&s.full->v_free[(i - 1) % STAGES]);
		if (fades)
			fade_sums(a, fade);
		operand_of<T>(p, scores[0]);
	}
	ask_values(a.o[0], p, s, n - 1);
	wgmma_wait<0>();
	wgmma_hold(a.o[0]);
	wgmma_hold(p);
	struct span mine = {begin, begin, 0, min(S::QUERIES, (int)x.a.q.rows - begin)};
	fwd_end<T>(a, x.a, at.batch, at.head, mine, row);
}

template <typename T, int D>
static __global__ void __launch_bounds__(HOPPER_THREADS, 1)
	hopper_fwd(const __grid_constant__ struct hopper_fwd_args x)
{
	if constexpr (HOPPER) {
		SHARED(shared);
		const struct hopper_fwd_room<T, D> s(shared);
		struct place at = place_of(x.order, blockIdx.x);
		int tile = x.order.tiles - 1 - at.tile, w = warpgroup_id();
		if (threadIdx.x == 0) {
			constexpr int WARPS = CONSUMERS * WARPGROUP / WARP;
			barrier_make(&s.full->q, 1);
			for (int i = 0; i < hopper_fwd_shape<D>::STAGES; i++) {
				barrier_make(&s.full->k[i], 1);
				barrier_make(&s.full->v[i], 1);
				barrier_make(&s.full->k_free[i], WARPS);
				barrier_make(&s.full->v_free[i], WARPS);
			}
			barriers_tell();
		}
		__syncthreads();
		if (w == 0) {
			registers_fewer<FEW_REGISTERS>();
			if (threadIdx.x == 0)
				fwd_produce<T, D>(x, s, at, tile);
		} else {
			registers_more<MANY_REGISTERS>();
			fwd_consume<T, D>(x, s, at, tile, w - 1);
		}
	} else {
		__trap(); /* others' code, that the driver was told to translate */
	}
}

template <typename T, int D>
static void hopper_fwd_launch(
	struct device *d, const struct attn *a, enum dtype type, const struct fwd_args &x)
{
	using S = hopper_fwd_shape<D>;
	const struct hopper_fwd_args all = {
		tile_map(d, x.q, a->batch, type, S::QUERIES),
		tile_map(d, x.k, a->batch, type, S::KEYS),
		tile_map(d, x.v, a->batch, type, S::KEYS),
		x,
		order_of(a, S::QUERIES, a->heads, type),
	};
	launch(d, "attn_fwd", order_blocks(all.order), dim3(HOPPER_THREADS),
		hopper_bytes(S::TILES, sizeof(struct hopper_fwd_barriers<S::STAGES>)),
		hopper_fwd<T, D>, all);
}

void attn_hopper_fwd(
	struct device *d, const struct attn *a, enum dtype type, const struct fwd_args &x)
{
	by_type(type, [&](auto number) {
		using T = decltype(number);
		if constexpr (sizeof(T) == 2) {
			if (a->dim <= 64)
				hopper_fwd_launch<T, 64>(d, a, type, x);
			else
				hopper_fwd_launch<T, 128>(d, a, type, x);
		}
	});
}
