/* RMSNorm of each head of queries and keys, forward and backward. */
#include "kernels/cuda/columns.h"

/* A thread has one pack of a head; `lanes` threads, a power of two, have a head, and a warp has
 * several heads. Threads of heads past the end take part in sums. */
enum { N = 8, MAX_HEAD = N * WARP };

/* Returns the number of threads per head: a power of two. */
static int lanes_per_head(int64_t dim)
{
	int lanes = 1;
	BUG_ON(dim > MAX_HEAD);
	while (lanes * N < dim)
		lanes *= 2;
	return lanes;
}

/* Returns the sum over the lanes of a head, in all of them. */
static __device__ inline float head_sum(float x, int lanes)
{
	for (int i = lanes / 2; i; i /= 2)
		x += __shfl_xor_sync(ALL_LANES, x, i);
	return x;
}

/* Returns 1 / sqrt(mean(x^2) + eps) of a head. */
static __device__ inline float head_rstd(
	const float (&x)[N], int lanes, int dim, float eps)
{
	float square = 0;
	for (int i = 0; i < N; i++)
		square += x[i] * x[i];
	return 1.0f / sqrtf(head_sum(square, lanes) / (float)dim + eps);
}

/* Returns true if heads can be loaded as one or two packs of 16 bytes. */
template <typename... T>
static bool heads_in_packs(int64_t dim, int64_t stride, const T *...p)
{
	return dim % N == 0 && stride % N == 0 && (... && ((uintptr_t)p % 16 == 0));
}

/* Loads a lane's N elements of a head, as packs of up to 16 bytes; zeros from `left` on. */
template <typename T>
static __device__ inline void load_head(
	float (&x)[N], const T *p, int64_t left, bool whole)
{
	enum { P = PER_PACK<T> < N ? PER_PACK<T> : N };
#pragma unroll
	for (int i = 0; i < N; i += P) {
		float part[P];
		load(part, p + i, left - i, whole);
#pragma unroll
		for (int k = 0; k < P; k++)
			x[i + k] = part[k];
	}
}

/* Stores a lane's N elements of a head, or only the first `left`. */
template <typename T>
static __device__ inline void store_head(
	T *p, const float (&x)[N], int64_t left, bool whole)
{
	enum { P = PER_PACK<T> < N ? PER_PACK<T> : N };
#pragma unroll
	for (int i = 0; i < N; i += P) {
		float part[P];
#pragma unroll
		for (int k = 0; k < P; k++)
			part[k] = x[i + k];
		store(p + i, part, left - i, whole);
	}
}

/* Normalizes heads by RMSNorm, `lanes` threads per head. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) head_norm_fwd_kernel(T *y, const T *x,
	const float *gamma, int64_t n, int dim, int lanes, float eps, bool whole)
{
	int64_t head = thread_number() / lanes;
	int col = (int)(threadIdx.x % lanes) * N, left = head < n ? dim - col : 0;
	float in[N], g[N], out[N];
	load_head(in, x + head * dim + col, left, whole);
	load_head(g, gamma + col, left, whole);
	float rstd = head_rstd(in, lanes, dim, eps);
	for (int i = 0; i < N; i++)
		out[i] = in[i] * rstd * g[i];
	store_head(y + head * dim + col, out, left, whole);
}

/* Normalizes each head of gamma.cols channels by RMSNorm. */
void cuda_head_norm_fwd(
	struct device *d, struct mat y, struct mat x, struct mat gamma, float eps)
{
	const int64_t dim = gamma.cols, n = mat_size(x) / dim;
	const int lanes = lanes_per_head(dim);
	BUG_ON(x.cols % dim || mat_size(y) != mat_size(x) || y.type != x.type);
	call_by_type(x.type, [&](auto t) {
		using T = decltype(t);
		T *out = (T *)y.p;
		const T *in = (const T *)x.p;
		const float *g = floats_of(gamma);
		launch(d, "head_norm_fwd", grid_of_packs(n, lanes, 1), THREADS, 0,
			head_norm_fwd_kernel<T>, out, in, g, n, (int)dim, lanes, eps,
			heads_in_packs(dim, 0, (const void *)out, (const void *)in,
				(const void *)g));
	});
}

/* Sets dx = rstd (e - h mean(e h)), with h = x rstd and e = dy gamma. heads: heads per row. */
template <typename T, typename U, typename V>
static __global__ void __launch_bounds__(THREADS) head_norm_bwd_x_kernel(V *dx,
	const U *dy, const T *x, const float *gamma, int64_t n, int64_t heads,
	int64_t stride, int dim, int lanes, float eps, bool whole)
{
	int64_t head = thread_number() / lanes;
	int col = (int)(threadIdx.x % lanes) * N, left = head < n ? dim - col : 0;
	float h[N], e[N], g[N], sum = 0;
	load_head(h, x + head * dim + col, left, whole);
	load_head(e, dy + head * dim + col, left, whole);
	load_head(g, gamma + col, left, whole);
	float rstd = head_rstd(h, lanes, dim, eps);
	for (int i = 0; i < N; i++) {
		h[i] *= rstd;
		e[i] *= g[i];
		sum += e[i] * h[i];
	}
	float mean = head_sum(sum, lanes) / (float)dim;
	for (int i = 0; i < N; i++)
		e[i] = rstd * (e[i] - h[i] * mean);
	store_head(dx + head / heads * stride + head % heads * dim + col, e, left, whole);
}

/* Sets dx to the gradient of x; rstd is computed again. */
void cuda_head_norm_bwd_x(struct device *d, struct mat dx, struct mat dy, struct mat x,
	struct mat gamma, float eps)
{
	const int64_t dim = gamma.cols, n = mat_size(x) / dim;
	const int lanes = lanes_per_head(dim);
	BUG_ON(x.cols % dim || mat_size(dy) != mat_size(x) ||
		mat_size(dx) != mat_size(x));
	const float *g = floats_of(gamma);
	const bool whole = heads_in_packs(dim, mat_stride(dx), (const char *)dx.p,
		(const char *)dy.p, (const char *)x.p, (const char *)gamma.p);
	call_by_type(x.type, [&](auto t) {
		call_by_type(dy.type, [&](auto u) {
			call_by_type(dx.type, [&](auto v) {
				launch(d, "head_norm_bwd_x", grid_of_packs(n, lanes, 1),
					THREADS, 0,
					head_norm_bwd_x_kernel<decltype(t), decltype(u),
						decltype(v)>,
					(decltype(v) *)dx.p, (const decltype(u) *)dy.p,
					(const decltype(t) *)x.p, g, n, x.cols / dim,
					mat_stride(dx), (int)dim, lanes, eps, whole);
			});
		});
	});
}

/* Sets part[run] to the sum of dy x rstd over the heads of a run. The threads of a pack of columns
 * take the heads in turn; then their sums are added in order. */
template <typename T, typename U>
static __global__ void __launch_bounds__(THREADS)
	head_norm_run_kernel(float *part, const U *dy, const T *x, int64_t n, int dim,
		int lanes, struct column_runs runs, float eps, bool whole)
{
	__shared__ float sums[THREADS][N + 1];
	const int at_once = THREADS / lanes, group = (int)threadIdx.x / lanes;
	const int col = (int)(threadIdx.x % lanes) * N;
	int64_t first = blockIdx.x * runs.rows, end = min64(first + runs.rows, n);
	float total[N] = {};
	for (int64_t i = first; i < end; i += at_once) {
		int64_t head = i + group;
		int left = head < end ? dim - col : 0;
		float h[N], up[N];
		load_head(h, x + head * dim + col, left, whole);
		load_head(up, dy + head * dim + col, left, whole);
		float rstd = head_rstd(h, lanes, dim, eps);
		for (int k = 0; k < N; k++)
			total[k] += up[k] * (h[k] * rstd);
	}
	for (int k = 0; k < N; k++)
		sums[threadIdx.x][k] = total[k];
	__syncthreads();
	if ((int)threadIdx.x >= dim)
		return;
	float sum = 0;
	for (int i = 0; i < at_once; i++)
		sum += sums[i * lanes + threadIdx.x / N][threadIdx.x % N];
	part[(int64_t)blockIdx.x * dim + threadIdx.x] = sum;
}

/* Sets dgamma to sums over all rows and heads, through partial sums in the workspace. */
void cuda_head_norm_bwd_w(
	struct device *d, struct mat dgamma, struct mat dy, struct mat x, float eps)
{
	const int64_t dim = dgamma.cols, n = mat_size(x) / dim;
	const int lanes = lanes_per_head(dim);
	const struct column_sums to = {{floats_of(dgamma)}, 1};
	const struct column_runs runs = cuda_column_runs(n, dim);
	float *part = (float *)cuda_workspace(d, (size_t)(runs.n * dim) * sizeof(float));
	BUG_ON(x.cols % dim || mat_size(dy) != mat_size(x));
	const bool whole = heads_in_packs(dim, 0, (const char *)dy.p, (const char *)x.p);
	call_by_type(x.type, [&](auto t) {
		call_by_type(dy.type, [&](auto u) {
			launch(d, "head_norm_bwd_w", grid_of(runs.n), THREADS, 0,
				head_norm_run_kernel<decltype(t), decltype(u)>, part,
				(const decltype(u) *)dy.p, (const decltype(t) *)x.p, n,
				(int)dim, lanes, runs, eps, whole);
		});
	});
	cuda_join_runs(d, "head_norm_bwd_w", dim, &to, part, runs.n);
}
