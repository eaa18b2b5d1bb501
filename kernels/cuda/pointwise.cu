/* Element-wise kernels: biases, activations, residual sums, dropout, rotary positions. */
#include "kernels/cuda/activations.h"
#include "kernels/cuda/residual.h"

/* Stores a whole pack in one store. nvcc turns store() into up to eight where it merges the
 * stores of whole packs with the stores of single elements. */
template <typename T>
static __device__ inline void store_pack(T *p, const float (&x)[PER_PACK<T>])
{
	pack<T, PER_PACK<T>> v;
	uint4 bits;
	for (int j = 0; j < PER_PACK<T>; j++)
		v.x[j] = narrow<T>(x[j]);
	memcpy(&bits, &v, sizeof(bits));
	store_16(p, bits);
}

template <typename T, typename B>
static __global__ void bias_fwd_kernel(
	T *y, const B *bias, int64_t rows, int64_t cols, bool whole)
{
	enum { N = PER_PACK<T> };
	struct vector_place at = pack_place(thread_number(), cols, N);
	int64_t left = cols - at.col;
	float v[N], b[N];
	if (at.row >= rows)
		return;
	y += at.row * cols + at.col;
	packed<T, N> from = fetch<N>(y, left, whole);
	load(b, bias + at.col, left, whole);
	unpack(v, from);
	for (int j = 0; j < N; j++)
		v[j] += b[j];
	store(y, v, left, whole);
}

void cuda_bias_fwd(struct device *d, struct mat y, struct mat bias)
{
	BUG_ON(bias.cols != y.cols);
	by_type(y.type, [&](auto t) {
		by_type(bias.type, [&](auto u) {
			using T = decltype(t);
			using B = decltype(u);
			enum { N = PER_PACK<T> };
			T *p = (T *)y.p;
			const B *b = (const B *)bias.p;
			launch(d, "bias_fwd", grid_of_packs(y.rows, y.cols, N), THREADS,
				0, bias_fwd_kernel<T, B>, p, b, y.rows, y.cols,
				in_packs(y.cols, N, p) && in_packs(0, N, b));
		});
	});
}

/* Computes y = a + sign b. */
template <typename T>
static __global__ void add_kernel(
	float *y, const float *a, const T *b, int64_t n, float sign, bool whole)
{
	enum { N = PER_PACK<float> };
	int64_t i = thread_number() * N, left = n - i;
	float u[N], v[N];
	if (left <= 0)
		return;
	packed<T, N> second = fetch<N>(b + i, left, whole);
	load(u, a + i, left, whole);
	unpack(v, second);
	for (int j = 0; j < N; j++)
		u[j] += sign * v[j];
	store(y + i, u, left, whole);
}

static void add_signed(struct device *d, const char *name, struct mat y, struct mat a,
	struct mat b, float sign)
{
	enum { N = PER_PACK<float> };
	int64_t n = mat_size(y);
	float *out = floats_of(y);
	const float *p = floats_of(a);
	by_type(b.type, [&](auto t) {
		using T = decltype(t);
		const T *q = (const T *)b.p;
		bool whole = in_packs(0, N, out, p, q);
		launch(d, name, grid_of_packs(1, n, N), THREADS, 0, add_kernel<T>, out, p,
			q, n, sign, whole);
	});
}

void cuda_add(struct device *d, struct mat y, struct mat a, struct mat b)
{
	add_signed(d, "add", y, a, b, 1);
}

void cuda_sub(struct device *d, struct mat y, struct mat a, struct mat b)
{
	add_signed(d, "sub", y, a, b, -1);
}

template <enum act_kind KIND, bool FAST, typename T>
static __global__ void __launch_bounds__(THREADS)
	act_fwd_kernel(T *y, const T *a, const T *b, int64_t n, float *amax, bool whole)
{
	enum { N = PER_PACK<T> };
	int64_t i = thread_number() * N, left = n - i;
	packed<T, N> first, second = {};
	float u[N], v[N];
	if (left <= 0 && !amax)
		return;
	unsigned old_bits = read_amax(amax);
	first = fetch<N>(a + i, left, whole);
	if (activation<KIND>::gated)
		second = fetch<N>(b + i, left, whole);
	unpack(u, first);
	unpack(v, second);
	for (int j = 0; j < N; j++)
		u[j] = activation<KIND>::template fwd<FAST>(u[j], v[j]);
	store(y + i, u, left, whole);
	raise_amax<WARPS_PER_BLOCK, T>(amax, old_bits, amax_bits(u, 0));
}

template <enum act_kind KIND, bool FAST, typename T>
static __global__ void __launch_bounds__(THREADS)
	act_bwd_kernel(T *da, T *db, const T *dy, const T *a, const T *b, int64_t n,
		float *amax_a, float *amax_b, bool whole)
{
	enum { N = PER_PACK<T> };
	int64_t i = thread_number() * N, left = n - i;
	packed<T, N> first, second = {}, above;
	float u[N], v[N], up[N];
	if (left <= 0 && !amax_a && !amax_b)
		return;
	unsigned old_a = read_amax(amax_a), old_b = read_amax(amax_b);
	first = fetch<N>(a + i, left, whole);
	above = fetch<N>(dy + i, left, whole);
	if (activation<KIND>::gated)
		second = fetch<N>(b + i, left, whole);
	unpack(u, first);
	unpack(v, second);
	unpack(up, above);
	for (int j = 0; j < N; j++) {
		u[j] = up[j] * activation<KIND>::template slope<FAST>(u[j], v[j]);
		v[j] *= up[j];
	}
	store(da + i, u, left, whole);
	raise_amax<WARPS_PER_BLOCK, T>(amax_a, old_a, amax_bits(u, 0));
	if (!activation<KIND>::gated)
		return;
	store(db + i, v, left, whole);
	raise_amax<WARPS_PER_BLOCK, T>(amax_b, old_b, amax_bits(v, 0));
}

/* The kernels above in 16 bits for n elements of whole packs, ACT_EACH packs per thread: all
 * loads are in flight before the first element is needed. */
enum { ACT_EACH = 2 };

/* Returns the first element of the thread's pack e. */
template <typename T> static __device__ inline int64_t act_pack(int e)
{
	return ((int64_t)(blockIdx.x * ACT_EACH + e) * THREADS + threadIdx.x) *
	       PER_PACK<T>;
}

template <enum act_kind KIND, typename T>
static __global__ void __launch_bounds__(THREADS)
	act_fwd_packs_kernel(T *y, const T *a, const T *b, int64_t n, float *amax)
{
	enum { N = PER_PACK<T> };
	packed<T, N> first[ACT_EACH], second[ACT_EACH] = {};
	unsigned old_bits = read_amax(amax), max_bits = 0;
	for (int e = 0; e < ACT_EACH; e++) {
		int64_t i = act_pack<T>(e);
		if (i >= n)
			break;
		first[e] = fetch<N>(a + i, N, true);
		if (activation<KIND>::gated)
			second[e] = fetch<N>(b + i, N, true);
	}
	for (int e = 0; e < ACT_EACH; e++) {
		float u[N], v[N];
		int64_t i = act_pack<T>(e);
		if (i >= n)
			break;
		unpack(u, first[e]);
		unpack(v, second[e]);
		for (int j = 0; j < N; j++)
			u[j] = activation<KIND>::template fwd<true>(u[j], v[j]);
		store_pack(y + i, u);
		if (amax)
			max_bits = amax_bits(u, max_bits);
	}
	raise_amax<WARPS_PER_BLOCK, T>(amax, old_bits, max_bits);
}

template <enum act_kind KIND, typename T>
static __global__ void __launch_bounds__(THREADS) act_bwd_packs_kernel(T *da, T *db,
	const T *dy, const T *a, const T *b, int64_t n, float *amax_a, float *amax_b)
{
	enum { N = PER_PACK<T> };
	packed<T, N> first[ACT_EACH], second[ACT_EACH] = {}, above[ACT_EACH];
	unsigned old_a = read_amax(amax_a), old_b = read_amax(amax_b);
	unsigned max_a = 0, max_b = 0;
	for (int e = 0; e < ACT_EACH; e++) {
		int64_t i = act_pack<T>(e);
		if (i >= n)
			break;
		first[e] = fetch<N>(a + i, N, true);
		above[e] = fetch<N>(dy + i, N, true);
		if (activation<KIND>::gated)
			second[e] = fetch<N>(b + i, N, true);
	}
	for (int e = 0; e < ACT_EACH; e++) {
		float u[N], v[N], up[N];
		int64_t i = act_pack<T>(e);
		if (i >= n)
			break;
		unpack(u, first[e]);
		unpack(v, second[e]);
		unpack(up, above[e]);
		for (int j = 0; j < N; j++) {
			u[j] = up[j] * activation<KIND>::template slope<true>(u[j], v[j]);
			v[j] *= up[j];
		}
		store_pack(da + i, u);
		if (amax_a)
			max_a = amax_bits(u, max_a);
		if (activation<KIND>::gated) {
			store_pack(db + i, v);
			if (amax_b)
				max_b = amax_bits(v, max_b);
		}
	}
	raise_amax<WARPS_PER_BLOCK, T>(amax_a, old_a, max_a);
	if (activation<KIND>::gated)
		raise_amax<WARPS_PER_BLOCK, T>(amax_b, old_b, max_b);
}

template <enum act_kind KIND, typename T>
static void launch_act_fwd(struct device *d, T *y, const T *a, const T *b, int64_t n,
	float *amax, bool whole)
{
	enum { N = PER_PACK<T> };
	call_by_speed<T>(d, [&](auto fast) {
		constexpr bool FAST = decltype(fast)::value;
		if constexpr (FAST)
			if (whole && n % N == 0)
				return launch(d, "act_fwd",
					grid_of_packs(1, n, N * ACT_EACH), THREADS, 0,
					act_fwd_packs_kernel<KIND, T>, y, a, b, n, amax);
		launch(d, "act_fwd", grid_of_packs(1, n, N), THREADS, 0,
			act_fwd_kernel<KIND, FAST, T>, y, a, b, n, amax, whole);
	});
}

void cuda_act_fwd(
	struct device *d, enum act_kind kind, struct mat y, struct mat a, struct mat b)
{
	int64_t n = mat_size(y);
	BUG_ON(a.type != y.type || (b.p && b.type != y.type));
	by_type(y.type, [&](auto t) {
		using T = decltype(t);
		T *out = (T *)y.p;
		const T *p = (const T *)a.p, *q = (const T *)b.p;
		bool whole = in_packs(0, PER_PACK<T>, out, p, q);
		call_by_kind(kind, [&](auto k) {
			launch_act_fwd<decltype(k)::kind>(d, out, p, q, n, y.amax, whole);
		});
	});
}

void cuda_act_bwd(struct device *d, enum act_kind kind, struct mat da, struct mat db,
	struct mat dy, struct mat a, struct mat b)
{
	int64_t n = mat_size(dy);
	BUG_ON(da.type != dy.type || a.type != dy.type);
	BUG_ON((db.p && db.type != dy.type) || (b.p && b.type != dy.type));
	by_type(dy.type, [&](auto t) {
		using T = decltype(t);
		enum { N = PER_PACK<T> };
		T *to = (T *)da.p, *to_b = (T *)db.p;
		const T *up = (const T *)dy.p, *p = (const T *)a.p, *q = (const T *)b.p;
		float *amax_a = da.amax, *amax_b = db.amax;
		bool whole = in_packs(0, N, to, to_b, up, p, q);
		call_by_kind(kind, [&](auto k) {
			constexpr enum act_kind KIND = decltype(k)::kind;
			call_by_speed<T>(d, [&](auto fast) {
				constexpr bool FAST = decltype(fast)::value;
				if constexpr (FAST)
					if (whole && n % N == 0)
						return launch(d, "act_bwd",
							grid_of_packs(1, n, N * ACT_EACH),
							THREADS, 0,
							act_bwd_packs_kernel<KIND, T>, to,
							to_b, up, p, q, n, amax_a,
							amax_b);
				launch(d, "act_bwd", grid_of_packs(1, n, N), THREADS, 0,
					act_bwd_kernel<KIND, FAST, T>, to, to_b, up, p, q,
					n, amax_a, amax_b, whole);
			});
		});
	});
}

template <typename Y, typename X>
static __global__ void dropout_kernel(
	Y *y, const X *x, int64_t rows, int64_t cols, struct dropout o, bool whole)
{
	enum { N = PER_PACK<Y> < PER_PACK<X> ? PER_PACK<Y> : PER_PACK<X> };
	struct vector_place at = pack_place(thread_number(), cols, N);
	int64_t left = cols - at.col, i = at.row * cols + at.col;
	float v[N];
	if (at.row >= rows)
		return;
	load(v, x + i, left, whole);
	apply_dropout(v, o, at);
	store(y + i, v, left, whole);
}

void cuda_dropout(struct device *d, struct mat y, struct mat x, const struct dropout *o)
{
	by_type(y.type, [&](auto t) {
		by_type(x.type, [&](auto u) {
			using Y = decltype(t);
			using X = decltype(u);
			enum {
				N = PER_PACK<Y> < PER_PACK<X> ? PER_PACK<Y> : PER_PACK<X>
			};
			Y *out = (Y *)y.p;
			const X *in = (const X *)x.p;
			launch(d, "dropout", grid_of_packs(x.rows, x.cols, N), THREADS, 0,
				dropout_kernel<Y, X>, out, in, x.rows, x.cols, *o,
				in_packs(x.cols, N, out, in));
		});
	});
}

template <typename T>
static __global__ void residual_kernel(float *y, const float *x, const T *sum,
	const float *bias, int64_t rows, int64_t cols, struct dropout o, bool drops,
	bool whole)
{
	enum { N = PER_PACK<float> };
	struct vector_place at = pack_place(thread_number(), cols, N);
	int64_t left = cols - at.col, i = at.row * cols + at.col;
	float v[N];
	if (at.row >= rows)
		return;
	packed<T, N> from = fetch<N>(sum + i, left, whole);
	load(v, x + i, left, whole);
	add_residual(v, from, bias, o, drops, at, left, whole);
	store(y + i, v, left, whole);
}

void cuda_residual(struct device *d, struct mat y, struct mat x, struct mat sum,
	struct mat bias, const struct dropout *o)
{
	enum { N = PER_PACK<float> };
	int64_t rows = y.rows, cols = y.cols;
	float *out = floats_of(y);
	const float *stream = floats_of(x), *b = floats_of(bias);
	struct dropout none = {};
	BUG_ON(x.rows != rows || sum.rows != rows || x.cols != cols || sum.cols != cols);
	by_type(sum.type, [&](auto t) {
		using T = decltype(t);
		const T *in = (const T *)sum.p;
		bool whole = in_packs(cols, N, out, stream, in) && in_packs(0, N, b);
		launch(d, "residual", grid_of_packs(rows, cols, N), THREADS, 0,
			residual_kernel<T>, out, stream, in, b, rows, cols, o ? *o : none,
			o != NULL, whole);
	});
}

template <int N>
static __device__ inline void rotate_pairs(float (&a)[N], float (&b)[N],
	const float (&cosine)[N], const float (&sine)[N], float sign)
{
	for (int j = 0; j < N; j++) {
		float u = a[j], v = b[j], s = sign * sine[j];
		a[j] = u * cosine[j] - v * s;
		b[j] = v * cosine[j] + u * s;
	}
}

/* Rotates, in each thread, a pack of first halves with their second halves. */
template <typename T>
static __global__ void rope_kernel(T *x, int64_t rows, int64_t stride, int64_t heads,
	int64_t half, const float *rope, const int32_t *pos, float sign, bool whole)
{
	enum { N = PER_PACK<T> };
	struct vector_place head = pack_place(thread_number(), half, N);
	struct vector_place at = pack_place(head.row, heads, 1);
	int64_t left = half - head.col;
	float a[N], b[N], cosine[N], sine[N];
	if (at.row >= rows)
		return;
	rope += pos[at.row] * 2 * half + head.col;
	x += at.row * stride + at.col * 2 * half + head.col;
	packed<T, N> low = fetch<N>(x, left, whole);
	packed<T, N> high = fetch<N>(x + half, left, whole);
	load(cosine, rope, left, whole);
	load(sine, rope + half, left, whole);
	unpack(a, low);
	unpack(b, high);
	rotate_pairs(a, b, cosine, sine, sign);
	store(x, a, left, whole);
	store(x + half, b, left, whole);
}

/* Rotates halves of whole packs, without 64-bit divisions. n: packs of all halves. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
	rope_packs_kernel(T *x, unsigned n, int64_t stride, unsigned heads,
		unsigned packs, const float *rope, const int32_t *pos, float sign)
{
	enum { N = PER_PACK<T> };
	unsigned i = blockIdx.x * THREADS + threadIdx.x;
	if (i >= n)
		return;
	unsigned head = i / packs, col = (i - head * packs) * N, half = packs * N;
	float a[N], b[N], cosine[N], sine[N];
	unsigned row = head / heads;
	int64_t at = pos[row];
	x += row * stride + (head - row * heads) * 2 * half + col;
	packed<T, N> low = fetch<N>(x, N, true);
	packed<T, N> high = fetch<N>(x + half, N, true);
	rope += at * 2 * half + col;
	load(cosine, rope, N, true);
	load(sine, rope + half, N, true);
	unpack(a, low);
	unpack(b, high);
	rotate_pairs(a, b, cosine, sine, sign);
	store_pack(x, a);
	store_pack(x + half, b);
}

void cuda_rope(struct device *d, struct mat x, int64_t dim, struct mat rope,
	const int32_t *pos, float sign)
{
	int64_t half = dim / 2, heads = x.cols / dim;
	BUG_ON(x.cols % dim || rope.cols != dim);
	by_type(x.type, [&](auto t) {
		using T = decltype(t);
		enum { N = PER_PACK<T> };
		T *p = (T *)x.p;
		const float *table = floats_of(rope);
		bool whole = mat_stride(x) % N == 0 && in_packs(half, N, p, table);
		int64_t packs = mat_size(x) / 2 / N;
		if (whole && packs <= INT32_MAX && !cuda_lab_off(d, LAB_ROPE))
			launch(d, "rope", grid_of_packs(1, packs, 1), THREADS, 0,
				rope_packs_kernel<T>, p, (unsigned)packs, mat_stride(x),
				(unsigned)heads, (unsigned)(half / N), table, pos, sign);
		else
			launch(d, "rope", grid_of_packs(x.rows * heads, half, N), THREADS,
				0, rope_kernel<T>, p, x.rows, mat_stride(x), heads, half,
				table, pos, sign, whole);
	});
}
