/* Matmuls by cuBLASLt. Its matrices are column-major: it reads our matrices as transposed, and our
 * right operand is its first. Operands for which it has no algorithm are converted. */
#include "kernels/cuda/cuda_internal.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/vector.h"

#include <cuda_fp8.h>

static int64_t terms_per_sum(const struct cuda_product *p)
{
	return p->ta ? p->a.cols : p->a.rows;
}

static bool is_byte(enum dtype type)
{
	return dtype_bytes(type) == 1;
}

/* ---- converted operands -------------------------------------------------------------- */

/* Returns temporary memory for one matmul, which grows as needed. While capturing it cannot grow:
 * then the capture is rejected, and the result is memory that must not be used. */
static void *conversion_buffer(struct device *d, size_t n_bytes)
{
	struct cuda_device *c = cuda_of(d);
	bool grows = n_bytes > c->copies_bytes;
	if (grows && cuda_graph_capturing(d)) {
		cuda_graph_reject(d, "the step has a matmul of a new shape");
		return c->workspace;
	}
	if (grows) {
		cuda_graph_free_later(d, c->copies);
		c->copies = cuda_alloc_or_die(d, n_bytes, "a matmul's operands");
		c->copies_bytes = n_bytes;
	}
	return c->copies;
}

enum { TILE = 64, TILE_THREADS = 256 };

/* Sets to[cols, rows] to from[rows, cols]^T, for bytes: one block per tile. */
static __global__ void transpose_bytes(
	uint8_t *to, const uint8_t *from, int64_t rows, int64_t cols)
{
	__shared__ uint8_t tile[TILE][TILE + 4];
	int64_t row = (int64_t)blockIdx.y * TILE, col = (int64_t)blockIdx.x * TILE;
	int x = (int)threadIdx.x % TILE, y = (int)threadIdx.x / TILE;
	for (int i = y; i < TILE; i += TILE_THREADS / TILE)
		if (row + i < rows && col + x < cols)
			tile[i][x] = from[(row + i) * cols + col + x];
	__syncthreads();
	for (int i = y; i < TILE; i += TILE_THREADS / TILE)
		if (col + i < cols && row + x < rows)
			to[(col + i) * rows + row + x] = tile[x][i];
}

/* Enqueues the transposition of an 8-bit matrix to `to`; returns the result, with m's scale. */
static struct mat transpose_operand(
	struct device *d, const char *name, struct mat m, void *to)
{
	dim3 grid((unsigned)ceil_div(m.cols, TILE), (unsigned)ceil_div(m.rows, TILE));
	BUG_ON(grid.y > 65535);
	launch(d, name, grid, dim3(TILE_THREADS), 0, transpose_bytes, (uint8_t *)to,
		(const uint8_t *)m.p, m.rows, m.cols);
	struct mat t = mat_typed(to, m.cols, m.rows, m.type);
	t.scale = m.scale;
	return t;
}

/* Converts fp8 to bf16, which is exact. */
static __global__ void widen_bytes(
	__nv_bfloat16 *to, const uint8_t *from, int64_t n, __nv_fp8_interpretation_t kind)
{
	int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		to[i] = __float2bfloat16_rn(
			__half2float(__half(__nv_cvt_fp8_to_halfraw(from[i], kind))));
}

/* Enqueues the conversion of an fp8 matrix to bf16 at `to`; returns the result, with m's scale. */
static struct mat widen_operand(
	struct device *d, const char *name, struct mat m, void *to)
{
	int64_t n = mat_size(m);
	launch(d, name, dim3((unsigned)ceil_div(n, TILE_THREADS)), dim3(TILE_THREADS), 0,
		widen_bytes, (__nv_bfloat16 *)to, (const uint8_t *)m.p, n,
		m.type == DT_E4M3 ? __NV_E4M3 : __NV_E5M2);
	struct mat wide = mat_typed(to, m.rows, m.cols, DT_BF16);
	wide.scale = m.scale;
	return wide;
}

/* ---- fp8 ----------------------------------------------------------------------------- */

enum { LINE = 256 };

static struct mat stored_transpose(struct mat m)
{
	struct mat t = mat_typed(m.transposed, m.cols, m.rows, m.type);
	t.scale = m.scale;
	return t;
}

/* Uses the stored transposed copy of an operand where the copy is contiguous along k. */
static struct cuda_product use_stored_transposes(struct cuda_product p)
{
	if (p.a.transposed && (!p.ta || !p.a.p)) {
		p.a = stored_transpose(p.a);
		p.ta = !p.ta;
	}
	if (p.b.transposed && (p.tb || !p.b.p)) {
		p.b = stored_transpose(p.b);
		p.tb = !p.tb;
	}
	return p;
}

/* Returns true if fp8 tensor cores support the matmul: sm_89 or later, a result of 16 or 32 bits,
 * multiples of 16 rows, columns and terms, 16-byte addresses, and not e5m2 x e5m2. */
static bool supports_fp8(struct device *d, const struct cuda_product *p)
{
	uintptr_t addresses = (uintptr_t)p->a.p | (uintptr_t)p->b.p;
	return cuda_of(d)->arch >= 89 && !is_byte(p->d.type) &&
	       (p->d.cols | p->d.rows | terms_per_sum(p)) % 16 == 0 &&
	       addresses % 16 == 0 && !(p->a.type == DT_E5M2 && p->b.type == DT_E5M2);
}

/* Makes both operands contiguous along k, as fp8 tensor cores need them. */
static struct cuda_product make_contiguous(
	struct device *d, const char *name, struct cuda_product p)
{
	size_t a_bytes = p.ta ? 0 : (size_t)round_up(mat_bytes(p.a), LINE);
	size_t b_bytes = p.tb ? (size_t)mat_bytes(p.b) : 0;
	char *copies = (char *)conversion_buffer(d, a_bytes + b_bytes);
	if (!p.ta)
		p.a = transpose_operand(d, name, p.a, copies);
	if (p.tb)
		p.b = transpose_operand(d, name, p.b, copies + a_bytes);
	p.ta = true;
	p.tb = false;
	return p;
}

/* Converts the operands of a matmul to bf16. */
static struct cuda_product convert_to_bf16(
	struct device *d, const char *name, struct cuda_product p)
{
	size_t a_bytes = (size_t)round_up(2 * mat_size(p.a), LINE);
	char *copies = (char *)conversion_buffer(d, a_bytes + 2 * (size_t)mat_size(p.b));
	p.a = widen_operand(d, name, p.a, copies);
	p.b = widen_operand(d, name, p.b, copies + a_bytes);
	return p;
}

/* Converts 16-bit operands to fp32, for shapes without an algorithm; not after convert_to_bf16(),
 * which uses the same buffer. The result of a gradient of weights becomes fp32, too. */
static struct cuda_product convert_to_fp32(
	struct device *d, const char *name, struct cuda_product p)
{
	size_t a_bytes = (size_t)round_up(4 * mat_size(p.a), LINE);
	size_t b_bytes = (size_t)round_up(4 * mat_size(p.b), LINE);
	bool narrow = p.tb && p.d.type != DT_F32;
	size_t n_bytes = a_bytes + b_bytes + (narrow ? 4 * (size_t)mat_size(p.d) : 0);
	cuda_warn_converted(d, name, &p, n_bytes);
	char *copies = (char *)conversion_buffer(d, n_bytes);
	struct mat a = mat(copies, p.a.rows, p.a.cols);
	struct mat b = mat(copies + a_bytes, p.b.rows, p.b.cols);
	if (narrow)
		p.d = mat(copies + a_bytes + b_bytes, p.d.rows, p.d.cols);
	cuda_round(d, a, p.a, DT_F32, 1);
	cuda_round(d, b, p.b, DT_F32, 1);
	a.scale = p.a.scale;
	b.scale = p.b.scale;
	p.a = a;
	p.b = b;
	return p;
}

/* ---- split-k sums -------------------------------------------------------------------- */

/* Returns true if the sum is split into runs. Without runs, exact float8 matmuls are unbearably
 * slow: cuBLASLt has no algorithm for their long sums, so the operands are converted. */
static bool splits_sum(struct device *d, const struct cuda_product *p)
{
	if (p->ta || !p->tb)
		return false;
	if (is_byte(p->a.type))
		return cuda_of(d)->o.exact && !cuda_lab_off(d, LAB_FLOAT8_RUNS);
	return !p->a.scale;
}

/* Returns the number of runs into which the rows are cut, each with a partial sum (split-k): the
 * gradient of a weight has few tiles and a long sum, so with one block per tile most
 * multiprocessors would be idle. The number depends only on the shape and the type: enough to use
 * all multiprocessors, and twice as many for float8, because cuBLASLt has no algorithm without
 * split-k for longer sums. A run has a multiple of 16 rows, and at least 1024, so that adding the
 * partial sums is cheap. */
static int64_t choose_runs(struct device *d, const struct cuda_product *p)
{
	enum { SIDE = 128, LINES = 16, MIN_ROWS = 1024 };
	int64_t n = terms_per_sum(p), runs = 1,
		max_tiles = (is_byte(p->a.type) ? 2 : 1) * MAX_RUNS;
	int64_t tiles = ceil_div(p->d.rows, SIDE) * ceil_div(p->d.cols, SIDE);
	if (!splits_sum(d, p))
		return 1;
	while (tiles * runs < max_tiles && runs < MAX_RUNS &&
		n % (2 * runs * LINES) == 0 && n / (2 * runs) >= MIN_ROWS &&
		2 * runs * mat_size(p->d) * (int64_t)sizeof(float) <= CUDA_WORKSPACE)
		runs *= 2;
	return runs;
}

/* Sets to = (add ? to : 0) + part[0] + part[1] + ..., n elements each. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) add_parts_kernel(
	T *to, const float *part, int64_t n, int64_t n_parts, bool add, bool whole)
{
	enum { N = PER_PACK<float>, AT_ONCE = 8 };
	int64_t at = thread_number() * N, left = n - at;
	float total[N] = {};
	if (left <= 0)
		return;
	if (add)
		load(total, to + at, left, whole);
	for (int64_t i = 0; i < n_parts; i += AT_ONCE) {
		packed<float, N> x[AT_ONCE];
#pragma unroll
		for (int r = 0; r < AT_ONCE; r++)
			x[r] = fetch<N>(part + (i + r) * n + at,
				i + r < n_parts ? left : 0, whole);
#pragma unroll
		for (int r = 0; r < AT_ONCE; r++)
			for (int k = 0; k < N && i + r < n_parts; k++)
				total[k] += number_of(x[r], k);
	}
	store(to + at, total, left, whole);
}

/* Returns the first run of an operand: n rows or, if it is contiguous along the sum, n columns. */
static struct mat first_run(struct mat m, bool along_sum, int64_t n)
{
	if (!along_sum)
		return mat_rows(m, 0, n);
	m.cols = n;
	return m;
}

/* Computes the matmul in runs. Returns false, with nothing done, for one run, or if cuBLASLt has no
 * algorithm for several. */
static bool gemm_in_runs(
	struct device *d, const char *name, struct cuda_product p, int64_t runs)
{
	enum { N = PER_PACK<float> };
	int64_t rows = terms_per_sum(&p) / runs, n = mat_size(p.d);
	struct mat all = p.d;
	bool add = p.add, scale_after = p.a.scale && !is_byte(p.a.type);
	if (runs == 1)
		return false;
	BUG_ON((add || scale_after) && all.type != DT_F32);
	BUG_ON(add && p.a.scale);
	p.a = first_run(p.a, p.ta, rows);
	p.b = first_run(p.b, !p.tb, rows);
	p.d = mat(cuda_workspace(d, (size_t)(runs * n) * sizeof(float)), p.d.rows,
		p.d.cols);
	p.add = false;
	p.runs = runs;
	if (!cuda_gemm(d, name, &p))
		return false;
	const float *part = (const float *)p.d.p;
	call_by_type(all.type, [&](auto t) {
		using T = decltype(t);
		T *to = (T *)all.p;
		launch(d, name, grid_of_packs(1, n, N), THREADS, 0, add_parts_kernel<T>,
			to, part, n, runs, add, in_packs(n, N, to));
	});
	if (scale_after)
		cuda_round_by(d, name, all, all, p.a.scale, p.b.scale);
	return true;
}

/* ---- types of results and biases ----------------------------------------------------- */

/* Computes the matmul with a bias, which is cast to the type of the result at the end of the
 * workspace, as cuBLASLt needs it. (For fp8 operands with an fp32 result it needs bf16, which is
 * less precise, so the bias is added afterwards.) */
static bool gemm_with_bias(
	struct device *d, const char *name, struct cuda_product p, struct mat bias)
{
	enum { BIAS_BYTES = CUDA_WORKSPACE / 4 };
	bool adds_bias_later = bias.p && is_byte(p.a.type) && p.d.type == DT_F32;
	if (bias.p && bias.type != p.d.type) {
		BUG_ON(bias.cols * dtype_bytes(p.d.type) > BIAS_BYTES);
		void *to = (char *)cuda_workspace(d, CUDA_WORKSPACE) + CUDA_WORKSPACE -
			   BIAS_BYTES;
		struct mat same = mat_typed(to, 1, bias.cols, p.d.type);
		cuda_round(d, same, bias, same.type, 1);
		bias = same;
	}
	p.bias = adds_bias_later ? NULL : bias.p;
	if (!cuda_gemm(d, name, &p))
		return false;
	if (adds_bias_later)
		cuda_bias_fwd(d, p.d, bias);
	return true;
}

/* Casts fp32 sums to the type of the result. cuBLASLt applies scales only with fp8; the bias
 * is added after the scales. */
static void finish_result(struct device *d, const char *name, struct mat to,
	struct mat from, const struct cuda_product *p, struct mat bias)
{
	const float *a = p->a.scale, *b = p->b.scale;
	if (a && (bias.p || p->add)) {
		cuda_round_by(d, name, from, from, a, b);
		if (bias.p)
			cuda_bias_fwd(d, from, bias);
		a = NULL;
	}
	if (p->add && to.p != from.p)
		cuda_add(d, to, to, from);
	else if (a)
		cuda_round_by(d, name, to, from, a, b);
	else if (to.p != from.p)
		cuda_round(d, to, from, to.type, 1);
}

/* Returns the bias; empty if the operands have scales, as finish_result() then adds it. */
static struct mat bias_unless_scaled(const struct cuda_product *p, struct mat bias)
{
	return p->a.scale ? mat(NULL, 0, 0) : bias;
}

/* Computes the result in fp32, some rows at a time, and casts or adds it to the destination. Rows
 * of d are rows of b. finish_result() adds the bias if there are scales, else gemm_with_bias(). */
static bool gemm_in_fp32(
	struct device *d, const char *name, struct cuda_product p, struct mat bias)
{
	enum { RESULT_BYTES = CUDA_WORKSPACE / 2 };
	int64_t max_rows = RESULT_BYTES / (p.d.cols * (int64_t)sizeof(float));
	struct cuda_product part = p;
	BUG_ON(p.tb || max_rows < 1 || (p.add && p.d.type != DT_F32));
	part.add = false;
	for (int64_t row = 0; row < p.d.rows; row += max_rows) {
		int64_t n = min64(max_rows, p.d.rows - row);
		part.b = mat_rows(p.b, row, n);
		part.d = mat(cuda_workspace(d, RESULT_BYTES), n, p.d.cols);
		if (!gemm_with_bias(d, name, part, bias_unless_scaled(&p, bias)))
			return false;
		finish_result(d, name, mat_rows(p.d, row, n), part.d, &p, bias);
	}
	return true;
}

/* Computes results of any type; cuBLASLt's are fp32 or in the type of the operands. */
static bool gemm_to_any_type(
	struct device *d, const char *name, struct cuda_product p, struct mat bias)
{
	bool given = p.a.scale ? p.d.type == DT_F32 && !p.add
			       : p.d.type == DT_F32 || p.d.type == p.a.type;
	if (!given)
		return gemm_in_fp32(d, name, p, bias);
	if (!gemm_with_bias(d, name, p, bias_unless_scaled(&p, bias)))
		return false;
	finish_result(d, name, p.d, p.d, &p, bias);
	return true;
}

/* Computes a matmul in runs, directly, or with converted operands: whatever works first. */
static void run_matmul(
	struct device *d, const char *name, struct cuda_product p, struct mat bias)
{
	BUG_ON(terms_per_sum(&p) != (p.tb ? p.b.rows : p.b.cols));
	BUG_ON(p.d.cols != (p.ta ? p.a.rows : p.a.cols));
	BUG_ON(p.d.rows != (p.tb ? p.b.cols : p.b.rows));
	BUG_ON(p.a.type != p.b.type && !(is_byte(p.a.type) && is_byte(p.b.type)));
	BUG_ON(!p.a.scale != !p.b.scale || (p.a.scale && p.add && p.tb));
	BUG_ON(p.tb && p.d.type != DT_F32 &&
		(p.d.type != p.a.type || p.add || p.a.scale));
	if (!mat_size(p.d))
		return;
	if (!terms_per_sum(&p)) {
		BUG_ON(bias.p);
		if (!p.add)
			cuda_zero(d, p.d);
		return;
	}
	bool bytes = is_byte(p.a.type);
	int64_t runs = choose_runs(d, &p);
	if (bytes) {
		p = use_stored_transposes(p);
		if (supports_fp8(d, &p)) {
			struct cuda_product q = make_contiguous(d, name, p);
			if (gemm_in_runs(d, name, q, runs) ||
				gemm_with_bias(d, name, q, bias))
				return;
		}
		p = convert_to_bf16(d, name, p);
	}
	if (gemm_in_runs(d, name, p, runs))
		return;
	bool done = gemm_to_any_type(d, name, p, bias);
	if (!done && !bytes && dtype_bytes(p.a.type) == 2) {
		struct cuda_product wide = convert_to_fp32(d, name, p);
		done = gemm_to_any_type(d, name, wide, bias);
		if (done && wide.d.p != p.d.p)
			cuda_round(d, p.d, wide.d, p.d.type, 1);
	}
	if (!done)
		die(EX_FAILED,
			"%s: cuBLASLt has no algorithm for a result of [%lld, %lld] with "
			"sums of %lld terms",
			name, (long long)p.d.rows, (long long)p.d.cols,
			(long long)terms_per_sum(&p));
}

/* ---- GELU as an epilogue ------------------------------------------------------------- */

/* Returns true if cuBLASLt can fuse GELU. 16-bit types only: its GELU is the tanh form of an
 * unrounded argument, precise enough for these. It needs rows of multiples of 16 bytes. */
static bool supports_fused_gelu(const struct cuda_product *p)
{
	return dtype_bytes(p->a.type) == 2 && p->d.type == p->a.type &&
	       p->d.cols % 8 == 0 && (uintptr_t)p->aux % 16 == 0 && mat_size(p->d) &&
	       terms_per_sum(p);
}

static struct mat aux_matrix(const struct cuda_product *p)
{
	return mat_typed(p->aux, p->d.rows, p->d.cols, p->d.type);
}

static void gelu_fwd_unfused(struct device *d, const struct cuda_product *p)
{
	struct mat bias = mat_typed(p->bias, 1, p->d.cols, p->d.type);
	cuda_linear_fwd(d, aux_matrix(p), p->b, p->a, bias);
	cuda_act_fwd(d, ACT_GELU_TANH, p->d, aux_matrix(p), mat(NULL, 0, 0));
}

static void gelu_bwd_unfused(struct device *d, const struct cuda_product *p)
{
	const struct mat none = mat(NULL, 0, 0);
	cuda_linear_bwd_x(d, p->d, p->b, p->a, false);
	cuda_act_bwd(d, ACT_GELU_TANH, p->d, none, p->d, aux_matrix(p), none);
}

/* ---- our own matmuls ----------------------------------------------------------------- */

/* Runs the kernel of matmul.h; false: PT_LAB_ON lacks matmul, or the call is not supported. */
static bool run_own_matmul(struct device *d, const char *name, enum matmul_kind kind,
	const struct matmul_call *c)
{
	return cuda_lab_on(d, LAB_MATMUL) && cuda_matmul_hopper(d, name, kind, c);
}

/* Runs the kernel of matmul.h with GELU in its epilogue, which has the bits of act_fwd and act_bwd
 * with approximate instructions. Returns false if it is not enabled or not supported. */
static bool run_own_gelu(struct device *d, const char *name, enum matmul_kind kind,
	const struct matmul_call *c)
{
	return cuda_lab_on(d, LAB_MATMUL_GELU) && !cuda_lab_off(d, LAB_ACT) &&
	       run_own_matmul(d, name, kind, c);
}

/* Computes a = x w^T + bias and y = gelu(a): fused where that is supported, else by two kernels. */
void cuda_linear_gelu_fwd(struct device *d, struct mat y, struct mat a, struct mat x,
	struct mat w, struct mat bias)
{
	struct cuda_product p = {w, x, y, true, false, bias.p, false, 1, EPILOGUE_GELU,
		a.p, gelu_fwd_unfused};
	BUG_ON(a.type != y.type || a.rows != y.rows || a.cols != y.cols);
	const struct matmul_call own = {y, x, w, bias, a, mat(NULL, 0, 0), NULL, 0};
	bool same = !bias.p || bias.type == y.type;
	if (run_own_gelu(d, "linear_gelu_fwd", MATMUL_GELU, &own))
		return;
	if (same && !cuda_of(d)->o.exact && !cuda_lab_on(d, LAB_MATMUL) &&
		supports_fused_gelu(&p) && cuda_gemm(d, "linear_gelu_fwd", &p))
		return;
	cuda_linear_fwd(d, a, x, w, bias);
	cuda_act_fwd(d, ACT_GELU_TANH, y, a, mat(NULL, 0, 0));
}

/* Computes da, and the sums of MATMUL_DGELU_SUMS, by a kernel of matmul.h; false: not possible. */
static bool run_own_gelu_bwd(struct device *d, enum matmul_kind kind, struct mat da,
	struct mat dy, struct mat w, struct mat a, struct mat sums)
{
	const struct matmul_call own = {da, dy, w, mat(NULL, 0, 0), a, sums, NULL, 0};
	return run_own_gelu(d, "linear_gelu_bwd", kind, &own);
}

/* Computes da = gelu'(a) (dy w), and its column sums unless sums.p is NULL. Exact matmuls use the
 * epilogue even where it is slower: all degrees of recomputation share this backward. */
void cuda_linear_gelu_bwd(struct device *d, struct mat da, struct mat dy, struct mat w,
	struct mat a, struct mat sums)
{
	struct cuda_product p = {w, dy, da, false, false, NULL, false, 1, EPILOGUE_DGELU,
		a.p, cuda_of(d)->o.exact ? NULL : gelu_bwd_unfused};
	BUG_ON(a.type != da.type || a.rows != da.rows || a.cols != da.cols);
	if (sums.p && cuda_lab_on(d, LAB_MATMUL_COLUMNS) &&
		run_own_gelu_bwd(d, MATMUL_DGELU_SUMS, da, dy, w, a, sums))
		return;
	if (!run_own_gelu_bwd(d, MATMUL_DGELU, da, dy, w, a, sums) &&
		(cuda_lab_on(d, LAB_MATMUL) || !supports_fused_gelu(&p) ||
			!cuda_gemm(d, "linear_gelu_bwd", &p)))
		gelu_bwd_unfused(d, &p);
	if (sums.p)
		cuda_bias_bwd(d, sums, da);
}

void cuda_linear_fwd(
	struct device *d, struct mat y, struct mat x, struct mat w, struct mat bias)
{
	struct cuda_product p = {w, x, y, true, false, NULL, false, 1};
	BUG_ON(bias.p && bias.cols != y.cols);
	const struct matmul_call own = {
		y, x, w, bias, mat(NULL, 0, 0), mat(NULL, 0, 0), NULL, 0};
	if (!run_own_matmul(d, "linear_fwd", MATMUL_FWD, &own))
		run_matmul(d, "linear_fwd", p, bias);
}

void cuda_linear_bwd_x(
	struct device *d, struct mat dx, struct mat dy, struct mat w, bool add)
{
	struct cuda_product p = {w, dy, dx, false, false, NULL, add, 1};
	const struct mat none = mat(NULL, 0, 0);
	const struct matmul_call own = {dx, dy, w, none, none, none, NULL, 0};
	if (add || !run_own_matmul(d, "linear_bwd_x", MATMUL_BWD, &own))
		run_matmul(d, "linear_bwd_x", p, none);
}

void cuda_linear_bwd_w(
	struct device *d, struct mat dw, struct mat dy, struct mat x, bool add)
{
	struct cuda_product p = {x, dy, dw, false, true, NULL, add, 1};
	run_matmul(d, "linear_bwd_w", p, mat(NULL, 0, 0));
}
