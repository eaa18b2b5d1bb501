/* Rows of experts: moving them, adding them up, and activations. */
#include "kernels/cuda/activations.h"
#include "kernels/cuda/vector.h"

extern "C" {
#include "kernels/experts.h"
}

/* ---- rows ------------------------------------------------------------------------------ */

/* Copies row source of `from` to row target of `to` for each i < rows: TAKE: source index[i] /
 * divisor, target i; otherwise source i, target index[i]. */
template <bool TAKE, typename T>
static __global__ void __launch_bounds__(THREADS) move_rows_kernel(T *to, const T *from,
	const int32_t *index, int64_t rows, int64_t cols, int64_t divisor, bool whole)
{
	enum { N = PER_PACK<T> };
	struct vector_place at = pack_place(thread_number(), cols, N);
	int64_t left = cols - at.col;
	if (at.row >= rows)
		return;
	int64_t other = index[at.row];
	int64_t source = TAKE ? (int32_t)other / (int32_t)divisor : at.row;
	int64_t target = TAKE ? at.row : other;
	float x[N];
	load(x, from + source * cols + at.col, left, whole);
	store(to + target * cols + at.col, x, left, whole);
}

template <bool TAKE>
static void move_rows(struct device *d, const char *name, struct mat to, struct mat from,
	const int32_t *index, int64_t rows, int64_t divisor)
{
	BUG_ON(to.cols != from.cols || to.type != from.type || divisor > INT32_MAX);
	by_type(to.type, [&](auto t) {
		using T = decltype(t);
		enum { N = PER_PACK<T> };
		T *p = (T *)to.p;
		const T *q = (const T *)from.p;
		launch(d, name, grid_of_packs(rows, to.cols, N), THREADS, 0,
			move_rows_kernel<TAKE, T>, p, q, index, rows, to.cols, divisor,
			in_packs(to.cols, N, p, q));
	});
}

void cuda_rows_take(struct device *d, struct mat x, struct mat h, const int32_t *index,
	int64_t divisor)
{
	move_rows<true>(d, "rows_take", x, h, index, x.rows, divisor);
}

void cuda_rows_put(struct device *d, struct mat h, struct mat x, const int32_t *index)
{
	move_rows<false>(d, "rows_put", h, x, index, x.rows, 1);
}

/* Elements of `more`, whose type differs from the type of the other addends. */
struct more_rows {
	const void *p;
	enum dtype type;
};

template <int N>
static __device__ inline void load_more(
	float (&x)[N], const struct more_rows &m, int64_t at, int64_t left, bool whole)
{
	if (m.type == DT_F32)
		load(x, (const float *)m.p + at, left, whole);
	else if (m.type == DT_BF16)
		load(x, (const __nv_bfloat16 *)m.p + at, left, whole);
	else
		load(x, (const __half *)m.p + at, left, whole);
}

/* `whole`: of x, y and `more`. */
template <typename Y, typename X>
static __global__ void __launch_bounds__(THREADS) slots_combine_kernel(Y *y, const X *x,
	const int32_t *pos, int k, const float *gates, int n_gates, struct more_rows more,
	int64_t rows, int64_t cols, bool whole)
{
	enum { N = PER_PACK<float> };
	struct vector_place at = pack_place(thread_number(), cols, N);
	int64_t left = cols - at.col;
	float sum[N], in[N];
	if (at.row >= rows)
		return;
	for (int j = 0; j < k; j++) {
		int64_t from = pos ? pos[at.row * k + j] : at.row * k + j;
		float g = gates && j < n_gates ? gates[at.row * n_gates + j] : 1.0f;
		load(in, x + from * cols + at.col, left, whole);
#pragma unroll
		for (int i = 0; i < N; i++)
			sum[i] = j ? sum[i] + g * in[i] : g * in[i];
	}
	if (more.p) {
		float g = gates && k < n_gates ? gates[at.row * n_gates + k] : 1.0f;
		load_more(in, more, at.row * cols + at.col, left, whole);
#pragma unroll
		for (int i = 0; i < N; i++)
			sum[i] += g * in[i];
	}
	store(y + at.row * cols + at.col, sum, left, whole);
}

void cuda_slots_combine(struct device *d, struct mat y, struct mat x, const int32_t *pos,
	int64_t k, struct mat gates, struct mat more)
{
	enum { N = PER_PACK<float> };
	const struct more_rows rest = {more.p, more.type};
	BUG_ON(x.cols != y.cols || (more.p && more.cols != y.cols));
	by_type(y.type, [&](auto t) {
		by_type(x.type, [&](auto u) {
			using Y = decltype(t);
			using X = decltype(u);
			Y *to = (Y *)y.p;
			const X *from = (const X *)x.p;
			bool whole = in_packs(y.cols, N, to, from) &&
				     in_packs(0, N, (const float *)more.p);
			launch(d, "slots_combine", grid_of_packs(y.rows, y.cols, N),
				THREADS, 0, slots_combine_kernel<Y, X>, to, from, pos,
				(int)k, (const float *)floats_of(gates), (int)gates.cols,
				rest, y.rows, y.cols, whole);
		});
	});
}

/* ---- activations ----------------------------------------------------------------------- */

template <enum act_kind KIND, bool FAST, typename T>
static __global__ void __launch_bounds__(THREADS)
	expert_act_fwd_kernel(T *a, const T *ab, int64_t rows, int64_t f, bool whole)
{
	enum { N = PER_PACK<T> };
	struct vector_place at = pack_place(thread_number(), f, N);
	int64_t left = f - at.col;
	float u[N], v[N];
	if (at.row >= rows)
		return;
	ab += 2 * at.row * f + at.col;
	packed<T, N> first = fetch<N>(ab, left, whole);
	packed<T, N> second = fetch<N>(ab + f, left, whole);
	unpack(u, first);
	unpack(v, second);
	for (int j = 0; j < N; j++)
		u[j] = activation<KIND>::template fwd<FAST>(u[j], v[j]);
	store(a + at.row * f + at.col, u, left, whole);
}

/* Calls fn(kind, fast) with a gated kind, and std::true_type for approximate instructions. */
template <typename T, typename F>
static void call_gated(struct device *d, enum act_kind kind, F fn)
{
	call_by_kind(kind, [&](auto k) {
		if constexpr (decltype(k)::gated)
			call_by_speed<T>(d, [&](auto fast) { fn(k, fast); });
		else
			BUG_ON("an activation that is not gated");
	});
}

void cuda_expert_act_fwd(
	struct device *d, enum act_kind kind, struct mat a, struct mat ab)
{
	BUG_ON(ab.cols != 2 * a.cols || ab.rows != a.rows || ab.type != a.type);
	by_type(a.type, [&](auto t) {
		using T = decltype(t);
		T *to = (T *)a.p;
		const T *from = (const T *)ab.p;
		call_gated<T>(d, kind, [&](auto k, auto fast) {
			launch(d, "expert_act_fwd",
				grid_of_packs(a.rows, a.cols, PER_PACK<T>), THREADS, 0,
				expert_act_fwd_kernel<decltype(k)::kind,
					decltype(fast)::value, T>,
				to, from, a.rows, a.cols,
				in_packs(a.cols, PER_PACK<T>, to, from));
		});
	});
}

/* A warp or a block per row. */
template <int WARPS, enum act_kind KIND, bool FAST, typename T>
static __global__ void __launch_bounds__(threads_of_rows<WARPS>()) expert_act_bwd_kernel(
	T *dab, T *ga, float *dg, const T *z, const T *ab, const float *gates,
	const int32_t *index, int64_t stride, int64_t rows, int64_t f, bool whole)
{
	enum {
		N = PER_PACK<T>,
		STEP = threads_of_rows<WARPS>() / (WARPS == 1 ? WARPS_PER_BLOCK : 1)
	};
	int64_t row = thread_row<WARPS>();
	float sum = 0;
	if (row >= rows)
		return;
	int64_t at = index ? index[row] : row * stride;
	const float g = gates[at];
	dab += 2 * row * f;
	ab += 2 * row * f;
	ga += row * f;
	z += row * f;
	for (int64_t j = index_in_row<WARPS>() * N; j < f; j += STEP * N) {
		int64_t left = f - j;
		float a[N], b[N], up[N], act[N];
		packed<T, N> first = fetch<N>(ab + j, left, whole);
		packed<T, N> second = fetch<N>(ab + f + j, left, whole);
		packed<T, N> above = fetch<N>(z + j, left, whole);
		unpack(a, first);
		unpack(b, second);
		unpack(up, above);
		for (int i = 0; i < N; i++) {
			float rounded = widen(narrow<T>(
				activation<KIND>::template fwd<FAST>(a[i], b[i])));
			sum = i < left ? fmaf(up[i], rounded, sum) : sum;
			act[i] = g * rounded;
			up[i] *= g;
			a[i] = up[i] * activation<KIND>::template slope<FAST>(a[i], b[i]);
			b[i] *= up[i];
		}
		store(dab + j, a, left, whole);
		store(dab + f + j, b, left, whole);
		store(ga + j, act, left, whole);
	}
	sum = row_sum<WARPS>(sum);
	if (index_in_row<WARPS>() == 0)
		dg[at] = sum;
}

void cuda_expert_act_bwd(struct device *d, enum act_kind kind, struct mat dab,
	struct mat ga, float *dg, struct mat z, struct mat ab, const float *gates,
	const int32_t *index, int64_t stride)
{
	BUG_ON(ab.cols != 2 * z.cols || dab.cols != ab.cols || ga.cols != z.cols);
	BUG_ON(ab.type != z.type || dab.type != z.type || ga.type != z.type);
	by_type(z.type, [&](auto t) {
		using T = decltype(t);
		T *to = (T *)dab.p, *scaled = (T *)ga.p;
		const T *up = (const T *)z.p, *from = (const T *)ab.p;
		bool whole = in_packs(z.cols, PER_PACK<T>, to, scaled, up, from);
		call_gated<T>(d, kind, [&](auto k, auto fast) {
			by_width(ceil_div(z.cols, PER_PACK<T>), [&](auto w) {
				constexpr int WARPS = decltype(w)::WARPS;
				launch(d, "expert_act_bwd", grid_of_rows<WARPS>(z.rows),
					threads_of_rows<WARPS>(), 0,
					expert_act_bwd_kernel<WARPS, decltype(k)::kind,
						decltype(fast)::value, T>,
					to, scaled, dg, up, from, gates, index, stride,
					z.rows, z.cols, whole);
			});
		});
	});
}
