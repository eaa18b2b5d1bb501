/* Attention of single rows, for decoding: a block has one row and one head. A group of eight
 * lanes computes a key; the keys of a group and the order in which the groups' results are
 * combined depend only on the row's position. */
#include "kernels/cuda/attn.h"

enum { ROW_THREADS = 256, LANES_PER_KEY = 8, GROUPS = ROW_THREADS / LANES_PER_KEY };

struct row_args {
	struct heads o, q, k, v;
	int n_heads, group, first, window; /* INT_MAX: all keys */
	float scale;
};

/* Loads this lane's N pieces, of four elements each, of a row of a head. */
template <int N>
static __device__ inline void load_pieces(
	float4 (&to)[N], const float *row, struct heads m, bool is_present)
{
#pragma unroll
	for (int i = 0; i < N; i++) {
		int at = 4 * ((int)threadIdx.x % LANES_PER_KEY + LANES_PER_KEY * i);
		to[i] = make_float4(0, 0, 0, 0);
		if (m.whole) {
			if (is_present && at < m.dim)
				to[i] = *(const float4 *)(row + at);
			continue;
		}
		to[i].x = load_if(row + at, is_present && at < m.dim);
		to[i].y = load_if(row + at + 1, is_present && at + 1 < m.dim);
		to[i].z = load_if(row + at + 2, is_present && at + 2 < m.dim);
		to[i].w = load_if(row + at + 3, is_present && at + 3 < m.dim);
	}
}

/* The online softmax of a group of lanes over its keys. */
template <int N> struct row_part {
	float top, sum;
	float4 o[N];
};

template <int N> static __device__ inline void init_row_part(struct row_part<N> &a)
{
	a.top = -INFINITY;
	a.sum = 0;
#pragma unroll
	for (int i = 0; i < N; i++)
		a.o[i] = make_float4(0, 0, 0, 0);
}

/* Adds a key and its value to the online softmax, if the key is present. */
template <int N>
static __device__ inline void add_key(
	struct row_part<N> &a, float score, const float4 (&v)[N], bool is_present)
{
	float top = is_present ? fmaxf(a.top, score) : a.top;
	float base = top == -INFINITY ? 0 : top;
	float rescale = expf(a.top - base), p = is_present ? expf(score - base) : 0;
	a.top = top;
	a.sum = fmaf(a.sum, rescale, p);
#pragma unroll
	for (int i = 0; i < N; i++) {
		a.o[i].x = fmaf(a.o[i].x, rescale, p * v[i].x);
		a.o[i].y = fmaf(a.o[i].y, rescale, p * v[i].y);
		a.o[i].z = fmaf(a.o[i].z, rescale, p * v[i].z);
		a.o[i].w = fmaf(a.o[i].w, rescale, p * v[i].w);
	}
}

/* Returns scale q . k, in all of the eight lanes that have parts of q and k. */
template <int N>
static __device__ inline float scaled_score(
	const float4 (&q)[N], const float4 (&k)[N], float scale)
{
	float score = 0;
#pragma unroll
	for (int i = 0; i < N; i++)
		score = dot4(score, q[i], k[i]);
	for (int i = 1; i < LANES_PER_KEY; i *= 2)
		score += __shfl_xor_sync(ALL_LANES, score, i);
	return score * scale;
}

/* Sets out[dim] to the combined results of all groups of the block, through shared memory. */
template <int D, int N>
static __device__ inline void combine_groups(
	float *out, int dim, const struct row_part<N> &a)
{
	__shared__ float top[GROUPS], sum[GROUPS];
	__shared__ __align__(16) float o[GROUPS][D];
	int g = threadIdx.x / LANES_PER_KEY, l = threadIdx.x % LANES_PER_KEY;
	if (l == 0) {
		top[g] = a.top;
		sum[g] = a.sum;
	}
#pragma unroll
	for (int i = 0; i < N; i++)
		*(float4 *)&o[g][4 * (l + LANES_PER_KEY * i)] = a.o[i];
	__syncthreads();
	for (int e = threadIdx.x; e < dim; e += ROW_THREADS) {
		float highest = -INFINITY, total = 0, y = 0;
		for (int i = 0; i < GROUPS; i++)
			highest = fmaxf(highest, top[i]);
		float base = highest == -INFINITY ? 0 : highest;
		for (int i = 0; i < GROUPS; i++) {
			float part = expf(top[i] - base);
			total = fmaf(sum[i], part, total);
			y = fmaf(o[i][e], part, y);
		}
		out[e] = y / total;
	}
}

/* Computes one row of one head: each group of lanes adds every GROUPS-th key. */
template <int D>
static __global__ void __launch_bounds__(ROW_THREADS)
	attend_kernel(const struct row_args x)
{
	constexpr int N = D / (4 * LANES_PER_KEY);
	int64_t row = blockIdx.x / x.n_heads, n = x.first + row + 1;
	int head = blockIdx.x % x.n_heads, kv_head = head / x.group;
	const float *keys = head_at<const float>(x.k, 0, kv_head);
	const float *values = head_at<const float>(x.v, 0, kv_head);
	struct row_part<N> a;
	float4 q[N], k[N], v[N];
	init_row_part(a);
	load_pieces(q, head_at<const float>(x.q, 0, head) + row * x.q.stride, x.q, true);
	int64_t from = max((int64_t)0, n - x.window);
	for (int64_t j = from; j < n; j += GROUPS) {
		int64_t key = j + threadIdx.x / LANES_PER_KEY;
		bool is_present = key < n;
		load_pieces(
			k, keys + (is_present ? key * x.k.stride : 0), x.k, is_present);
		load_pieces(
			v, values + (is_present ? key * x.v.stride : 0), x.v, is_present);
		add_key(a, scaled_score(q, k, x.scale), v, is_present);
	}
	combine_groups<D>(head_at<float>(x.o, 0, head) + row * x.o.stride, x.o.dim, a);
}

/* Computes the attention of query i to keys 0 to first + i, or to the last `window` of them. */
extern "C" void cuda_attn_row(struct device *d, struct mat o, struct mat q, struct mat k,
	struct mat v, int64_t heads, int64_t kv_heads, int64_t dim, int64_t first,
	int64_t window, float scale)
{
	BUG_ON(o.type != DT_F32 || q.type != DT_F32 || k.type != DT_F32 ||
		v.type != DT_F32);
	const struct row_args x = {make_heads(o, q.rows, dim), make_heads(q, q.rows, dim),
		make_heads(k, k.rows, dim), make_heads(v, v.rows, dim), (int)heads,
		(int)(heads / kv_heads), (int)first, kernel_window(window), scale};
	call_by_head_size<float>(dim, [&](auto size) {
		launch(d, "attn_row", dim3((unsigned)(q.rows * heads)), dim3(ROW_THREADS),
			0, attend_kernel<decltype(size)::value>, x);
	});
}
