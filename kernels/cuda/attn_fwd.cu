/* Attention, forward: a block has a tile of queries of one head and loops over the keys and
 * values that they attend to, with an online softmax (FlashAttention-2: Dao 2023). The state
 * between calls is in the units of attn.h; o is fp32 and not yet divided by the sum. */
#include "kernels/cuda/attn_fwd.h"
#include "kernels/cuda/attn_hopper.h"

/* Tile sizes for the 64 K registers and 228 KB of a multiprocessor: MT tiles of 16 rows per
 * warp, 2 where registers suffice, so that each load from shared memory is used twice. */
template <typename T, int D, bool DROP> struct fwd_shape {
	static constexpr bool WIDE = sizeof(T) == 4;
	static constexpr int MT = WIDE || D > 128 ? 1 : 2;
	static constexpr int WARPS = !WIDE && D > 128 ? 8 : 4;
	static constexpr int THREADS = WARPS * WARP;
	static constexpr int BLOCKS = D > 128 ? 1 : 2; /* per multiprocessor */
	static constexpr bool FEW = D > 128 || (D == 128 && DROP && !WIDE);
	static constexpr int QUERIES = 16 * MT * WARPS, KEYS = (WIDE ? 32 : 64) >> FEW;
	static constexpr int BYTES = (QUERIES + 4 * KEYS) * D * (int)sizeof(T);
};

/* Loads the softmax state and the output of these rows from the previous call, if there was one. */
template <int D, int MT>
static __device__ inline void load_fwd_state(struct running<D, MT> &a,
	const struct fwd_args &x, int batch, int head, struct tile_span own, int row)
{
	int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
	for (int i = 0; i < MT * 2; i++) {
		int r = row + 8 * i + g;
		bool in_chunk = !x.begin && r >= own.from && r < own.to;
		int64_t at = in_chunk ? state_index(x, batch, head, own, r) : 0;
		a.top[i / 2][i % 2] = in_chunk ? x.max[at] : -INFINITY;
		a.sum[i / 2][i % 2] = in_chunk && t == 0 ? x.sum[at] : 0;
		const float *o = head_at<float>(x.o, batch, head) +
				 (in_chunk ? (own.row + r) * x.o.stride : 0);
#pragma unroll
		for (int n = 0; n < D / 8; n++) {
			int col = 8 * n + 2 * t;
			float *to = &a.o[i / 2][n][i % 2 * 2];
			to[0] = load_if(o + col, in_chunk && col < x.o.dim);
			to[1] = load_if(o + col + 1, in_chunk && col + 1 < x.o.dim);
		}
	}
}

/* Adds a tile of keys and values to the online softmax of a warp's queries, from `row` on. */
template <typename T, int D, bool DROP, bool STARTS, int MT>
static __device__ inline void fwd_tile(struct running<D, MT> &a, const struct fwd_args &x,
	int batch, int head, struct tile_span keys, struct tile_span own, const T *q,
	int row, const T *k, const T *v)
{
	constexpr int KEYS = fwd_shape<T, D, DROP>::KEYS, NT = KEYS / 8;
	int g = lane_id() / 4, t = lane_id() % 4, pos = own.pos + row;
	float s[MT][NT][4] = {};
	matmul<D>(s, q, row, k);
	bool all = all_attend<false>(keys, KEYS, pos, 16 * MT);
	if (STARTS && all) /* the last query has the last start */
		all = start_at(x.starts, batch, own, row + 16 * MT - 1) <= keys.pos;
	if (!all) {
#pragma unroll
		for (int i = 0; i < MT * 2; i++) {
			struct tile_span cols =
				attended_rows<false>(keys, pos + 8 * i + g);
			if (STARTS)
				cols.from = max(cols.from,
					start_at(x.starts, batch, own, row + 8 * i + g) -
						keys.pos);
#pragma unroll
			for (int n = 0; n < NT * 2; n++) {
				int col = n / 2 * 8 + 2 * t + n % 2;
				if (col < cols.from || col >= cols.to)
					s[i / 2][n / 2][i % 2 * 2 + n % 2] = -INFINITY;
			}
		}
	}
	float rescale[MT][2];
	if (softmax<T>(a, rescale, s, x.score))
		rescale_sums(a, rescale);
	if (DROP) {
#pragma unroll
		for (int i = 0; i < MT * NT; i++) {
			float keep[4];
			dropout_factors<false>(keep, x.drop, batch, head,
				pos + i / NT * 16, keys.pos + i % NT * 8);
#pragma unroll
			for (int e = 0; e < 4; e++)
				s[i / NT][i % NT][e] *= keep[e];
		}
	}
	matmul_held<D>(a.o, s, v);
}

/* Enqueues the copies of visible tile i to k and v, if the tile exists. */
template <typename T, int D, bool DROP>
static __device__ inline void load_keys(T *k, T *v, const struct fwd_args &x, int batch,
	int kv_head, struct visible keys, int i)
{
	using S = fwd_shape<T, D, DROP>;
	if (i < keys.n) {
		struct tile_span s = visible_tile(x.k_runs, S::KEYS, keys, i);
		load_tile<D, S::KEYS, S::THREADS>(k, x.k, batch, kv_head, s);
		load_tile<D, S::KEYS, S::THREADS>(v, x.v, batch, kv_head, s);
	}
	copy_commit();
}

/* Computes a tile of queries from all tiles of keys; stores their output and softmax state. */
template <typename T, int D, bool DROP, bool STARTS>
static __global__ void __launch_bounds__(fwd_shape<T, D, DROP>::THREADS,
	fwd_shape<T, D, DROP>::BLOCKS) fwd(const struct fwd_args x)
{
	using S = fwd_shape<T, D, DROP>;
	constexpr int TILE = S::KEYS * D, THREADS = S::THREADS, ROWS = 16 * S::MT;
	SHARED(shared);
	T *q = (T *)shared, *k = q + S::QUERIES * D, *v = k + 2 * TILE;

	/* The last queries first: they have the most keys. */
	int tiles = all_tiles(x.q_runs, S::QUERIES), task = blockIdx.x / tiles;
	int head = task % x.n_heads, batch = task / x.n_heads, kv_head = head / x.group;
	struct tile_span own =
		tile_at(x.q_runs, S::QUERIES, tiles - 1 - (int)(blockIdx.x % tiles));
	int row = threadIdx.x / WARP * ROWS, last = own.pos + own.to - 1;
	struct visible keys = keys_until(x.k_runs, S::KEYS, last);
	if (STARTS)
		keys = keys_from(
			keys, x.k_runs, S::KEYS, start_at(x.starts, batch, own, 0));

	struct running<D, S::MT> a;
	load_tile<D, S::QUERIES, THREADS>(q, x.q, batch, head, own);
	load_keys<T, D, DROP>(k, v, x, batch, kv_head, keys, 0);
	load_fwd_state(a, x, batch, head, own, row);
	for (int i = 0; i < keys.n; i++) {
		int current = i % 2 * TILE, next = TILE - current;
		copy_wait<0>();
		__syncthreads(); /* this tile is loaded; no warp reads the previous one */
		load_keys<T, D, DROP>(k + next, v + next, x, batch, kv_head, keys, i + 1);
		struct tile_span tile = visible_tile(x.k_runs, S::KEYS, keys, i);
		if (any_attends<false>(tile, own.pos + row, ROWS))
			fwd_tile<T, D, DROP, STARTS>(a, x, batch, head, tile, own, q, row,
				k + current, v + current);
	}
	copy_wait<0>();
	store_fwd_result<T, D>(a, x, batch, head, own, row);
}

template <typename T, int D, bool DROP, bool STARTS>
static void launch_fwd_kernel(struct device *d, const struct fwd_args &x, int64_t batch)
{
	using S = fwd_shape<T, D, DROP>;
	int64_t blocks = batch * x.n_heads * all_tiles(x.q_runs, S::QUERIES);
	launch(d, "attn_fwd", dim3((unsigned)blocks), dim3(S::THREADS), S::BYTES,
		fwd<T, D, DROP, STARTS>, x);
}

template <typename T, int D, bool STARTS>
static void launch_fwd(struct device *d, const struct fwd_args &x, const struct attn *a)
{
	if (a->drop.p > 0)
		launch_fwd_kernel<T, D, true, STARTS>(d, x, a->batch);
	else
		launch_fwd_kernel<T, D, false, STARTS>(d, x, a->batch);
}

/* Adds a chunk of keys to the online softmax: `begin` starts it, `end` finishes o and max (lse). */
extern "C" void cuda_attn_fwd(struct device *d, const struct attn *a, struct mat o,
	float *max, float *sum, struct mat q, struct mat k, struct mat v, bool begin,
	bool end)
{
	BUG_ON(q.type != k.type || q.type != v.type || !(a->scale > 0));
	BUG_ON(o.type != DT_F32 && (o.type != q.type || !begin || !end));
	call_by_type(q.type, [&](auto number) {
		using T = decltype(number);
		const struct fwd_args x = {query_heads(o, a), query_heads(q, a),
			key_heads(k, a), key_heads(v, a), max, sum,
			make_runs(a->q_rows, a->q_first),
			make_runs(a->k_rows, a->k_first), (int)a->heads,
			(int)(a->heads / a->kv_heads), a->scale * units_per_one<T>(),
			make_drop(a), begin, end, make_starts(a)};
		if (begin && end && attn_hopper_supports(d, a, q.type, x.q, x.k, x.v))
			return attn_hopper_fwd(d, a, q.type, x);
		call_by_head_size<T>(a->dim, [&](auto size) {
			constexpr int D = decltype(size)::value;
			if (has_starts(x.starts))
				launch_fwd<T, D, true>(d, x, a);
			else
				launch_fwd<T, D, false>(d, x, a);
		});
	});
}
