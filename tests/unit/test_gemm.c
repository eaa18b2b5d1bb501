/* Products of matrices, to the last bit: each unit that this processor has computes the sums in the
 * order that its file states, whatever the shape, the layout of the operands and the threads. */
#include "tests/support/support.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/pieces.h"
#include "kernels/dtype_bits.h"

#include <omp.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

typedef void gemm_by(const struct gemm *, const struct gemm_unit *);
typedef const struct gemm_unit *gemm_unit_of(enum isa);

#define DECLARE(name)                        \
	gemm_by cpu_##name##_gemm_by;        \
	gemm_unit_of cpu_##name##_gemm_bf16; \
	extern const struct gemm_unit cpu_##name##_gemm_fp32;
#if defined(__x86_64__)
DECLARE(avx2)
DECLARE(avx512)
#endif

static const struct {
	enum isa isa;
	gemm_by *by;
	gemm_unit_of *bf16;
	const struct gemm_unit *fp32;
} units[] = {
	{ISA_SSE2, cpu_sse2_gemm_by, cpu_sse2_gemm_bf16, &cpu_sse2_gemm_fp32},
#if defined(__x86_64__)
	{ISA_AVX2, cpu_avx2_gemm_by, cpu_avx2_gemm_bf16, &cpu_avx2_gemm_fp32},
	{ISA_AVX512, cpu_avx512_gemm_by, cpu_avx512_gemm_bf16, &cpu_avx512_gemm_fp32},
	{ISA_AVX512_BF16, cpu_avx512_gemm_by, cpu_avx512_gemm_bf16,
		&cpu_avx512_gemm_fp32},
	{ISA_AMX_BF16, cpu_avx512_gemm_by, cpu_avx512_gemm_bf16, &cpu_avx512_gemm_fp32},
#endif
};

enum { MOST = 200 * 1000 };

/* ---- the orders ------------------------------------------------------------------ */

static float at(const struct operand *x, int64_t i, int64_t k)
{
	int64_t n = x->across ? k * x->stride + i : i * x->stride + k;
	float f;
	if (x->type == DT_F32)
		return ((const float *)x->p)[n];
	cpu_sse2_widen_run(&f, (const char *)x->p + n * dtype_bytes(x->type), x->type, 1);
	return f;
}

static float sum_fp32(const struct gemm *g, int64_t i, int64_t j)
{
	enum { DEPTH = 384 };
	float sum = 0;
	for (int64_t k = 0; k < g->k; k += DEPTH) {
		float chain = 0;
		for (int64_t l = k; l < min64(k + DEPTH, g->k); l++)
			chain = fmaf(at(&g->left, i, l), at(&g->right, j, l), chain);
		sum = k ? sum + chain : chain;
	}
	return sum;
}

static float sum_bf16(const struct gemm *g, int64_t i, int64_t j)
{
	enum { GROUP = 32 };
	float sum = 0;
	for (int64_t k = 0; k < g->k; k += GROUP) {
		float chain[2] = {0, 0};
		for (int64_t l = k; l < min64(k + GROUP, g->k); l++)
			chain[l & 1] = fmaf(
				at(&g->left, i, l), at(&g->right, j, l), chain[l & 1]);
		sum += chain[0] + chain[1];
	}
	return sum;
}

/* ---- cases ----------------------------------------------------------------------- */

static char left[4 * MOST], right[4 * MOST], bias[4 * MOST];
static float want[MOST];
static char got[4 * MOST], old[4 * MOST];

/* Numbers of very different size, times 2^exponent, with some that are 0, subnormal, or not finite. */
static void fill(
	void *to, enum dtype type, int64_t n, int seed, bool strange, int exponent)
{
	static const float some[] = {0, -0.0f, 1e-39f, -3e-40f, INFINITY, NAN};
	for (int64_t i = 0; i < n; i++) {
		int power = (int)(test_uniform(seed + 1, i) * 12) - 6;
		float size = ldexpf(1, power + exponent);
		float x = (float)(2 * test_uniform(seed, i) - 1) * size;
		if (strange && test_uniform(seed + 2, i) < 0.002)
			x = some[(int)(test_uniform(seed + 3, i) * 6)];
		if (type == DT_F32)
			((float *)to)[i] = x;
		else
			cpu_sse2_narrow_run(
				(char *)to + i * dtype_bytes(type), type, &x, 1);
	}
}

struct layout {
	int64_t m, n, k;
	bool left_across, right_across;
};

static const struct layout layouts[] = {
	{1, 1, 1, false, false},
	{3, 5, 0, false, false},
	{5, 33, 31, false, false},
	{13, 70, 385, false, true},
	{37, 45, 800, true, true},
	{140, 31, 33, true, false},
	{12, 64, 1700, false, false},
	{150, 90, 64, false, true},
};

static struct gemm case_of(
	const struct layout *l, enum dtype a, enum dtype b, enum dtype c)
{
	return (struct gemm){.m = l->m,
		.n = l->n,
		.k = l->k,
		.left = {left, l->left_across ? l->m : l->k, l->left_across, a},
		.right = {right, l->right_across ? l->n : l->k, l->right_across, b},
		.c = got,
		.c_stride = l->n,
		.type = c,
		.alpha = 1};
}

static void expect(const struct gemm *g, bool narrow)
{
	for (int64_t i = 0; i < g->m; i++) {
		for (int64_t j = 0; j < g->n; j++) {
			float v = narrow ? sum_bf16(g, i, j) : sum_fp32(g, i, j);
			int64_t n = i * g->n + j;
			v *= g->alpha;
			if (g->add)
				v += at(&(struct operand){old, g->n, false, g->type}, i,
					j);
			else if (g->bias.p)
				v += at(&(struct operand){bias, 0, false, g->bias.type},
					0, j);
			want[n] = v;
		}
	}
}

/* Also subnormal numbers are 0 for the units of bf16, in their sums and their results. */
static void check_case(struct gemm g, bool narrow)
{
#if defined(__x86_64__)
	unsigned control = _mm_getcsr();
	_mm_setcsr(narrow ? control | 0x8040 : control);
	expect(&g, narrow);
	_mm_setcsr(control);
#else
	expect(&g, narrow);
#endif
	for (size_t u = 0; u < ARRAY_LEN(units) && units[u].isa <= cpu_isa(); u++) {
		const struct gemm_unit *unit =
			narrow ? units[u].bf16(units[u].isa) : units[u].fp32;
		for (int threads = 1; threads <= 3; threads++) {
			omp_set_num_threads(threads);
			g.serial = threads == 1;
			memcpy(got, old, sizeof(got));
			units[u].by(&g, unit);
			for (int64_t i = 0; i < g.m * g.n; i++) {
				struct operand c = {got, g.n, false, g.type};
				float x = at(&c, 0, i), y = want[i];
				if (g.type != DT_F32)
					y = round_to(y, dtype_table[g.type]);
				if (bits_of(x) != bits_of(y) && !(isnan(x) && isnan(y)))
					fail_msg("%s of isa %d, %dx%dx%d, %d threads: "
						 "element %d is %a instead of %a",
						unit->name, (int)units[u].isa, (int)g.m,
						(int)g.n, (int)g.k, threads, (int)i,
						(double)x, (double)y);
			}
		}
	}
}

static void check_types(
	enum dtype a, enum dtype b, enum dtype c, bool narrow, int exponent)
{
	for (size_t i = 0; i < ARRAY_LEN(layouts); i++) {
		const struct layout *l = &layouts[i];
		struct gemm g = case_of(l, a, b, c);
		fill(left, a, l->m * l->k, 1, i % 2, exponent);
		fill(right, b, l->n * l->k, 5, i % 2, 0);
		fill(old, c, l->m * l->n, 9, false, exponent);
		fill(bias, DT_BF16, l->n, 13, false, exponent);
		check_case(g, narrow);
		g.add = true;
		g.alpha = 0.3f;
		check_case(g, narrow);
		g.add = false;
		g.bias = mat_typed(bias, 1, l->n, DT_BF16);
		check_case(g, narrow);
	}
}

static void fp32(void **state)
{
	(void)state;
	check_types(DT_F32, DT_F32, DT_F32, false, 0);
	check_types(DT_F32, DT_BF16, DT_F32, false, 0); /* as attention multiplies */
	check_types(DT_F16, DT_F16, DT_F16, false, 0);
	check_types(DT_F32, DT_F32, DT_F32, false, -126);
}

static void bf16(void **state)
{
	(void)state;
#if defined(__x86_64__)
	/* Else the instruction was not taken. */
	if (cpu_isa() >= ISA_AVX512_BF16)
		assert_string_equal(
			cpu_avx512_gemm_bf16(ISA_AVX512_BF16)->name, "avx512_bf16");
	if (cpu_isa() >= ISA_AMX_BF16)
		assert_string_equal(cpu_avx512_gemm_bf16(ISA_AMX_BF16)->name, "amx_bf16");
#endif
	check_types(DT_BF16, DT_BF16, DT_F32, true, 0);
	check_types(DT_BF16, DT_BF16, DT_BF16, true, 0);
	check_types(DT_E4M3, DT_E5M2, DT_F32, true, 0);
	check_types(DT_BF16, DT_BF16, DT_F32, true, -126); /* sums around the subnormal */
}

/* Makes 0 of what a causal mask masks, in a matrix of `lines` lines of n numbers. */
static void mask(float *x, int64_t lines, int64_t n, int64_t diagonal)
{
	for (int64_t i = 0; i < lines; i++)
		for (int64_t j = max64(0, i + diagonal + 1); j < n; j++)
			x[i * n + j] = 0;
}

/* Only what is masked is left out of the sums. */
static void check_causal(const struct layout *l, int64_t diagonal)
{
	struct gemm g = case_of(l, DT_F32, DT_F32, DT_F32);
	fill(left, DT_F32, l->m * l->k, 1, false, 0);
	fill(right, DT_F32, l->n * l->k, 5, false, 0);
	fill(old, DT_F32, l->m * l->n, 9, false, 0);
	mask((float *)left, l->left_across ? l->k : l->m, l->left_across ? l->m : l->k,
		diagonal);
	g.causal = CAUSAL_LEFT;
	g.diagonal = diagonal;
	check_case(g, false);
	g.add = true;
	check_case(g, false);
}

/* The results that are not masked. */
static void check_causal_result(
	const struct layout *l, enum dtype type, int64_t diagonal, bool narrow)
{
	struct gemm g = case_of(l, type, type, DT_F32);
	fill(left, type, l->m * l->k, 1, false, 0);
	fill(right, type, l->n * l->k, 5, false, 0);
	expect(&g, narrow);
	g.causal = CAUSAL_RESULT;
	g.diagonal = diagonal;
	for (size_t u = 0; u < ARRAY_LEN(units) && units[u].isa <= cpu_isa(); u++) {
		const struct gemm_unit *unit =
			narrow ? units[u].bf16(units[u].isa) : units[u].fp32;
		memset(got, 0xff, sizeof(got));
		units[u].by(&g, unit);
		for (int64_t i = 0; i < l->m; i++)
			for (int64_t j = 0; j < l->n && j <= i + diagonal; j++)
				assert_true(bits_of(((float *)got)[i * l->n + j]) ==
					    bits_of(want[i * l->n + j]));
	}
}

static void causal(void **state)
{
	static const struct layout attention[] = {{128, 64, 128, false, true},
		{128, 64, 128, true, true}, {70, 33, 128, false, true},
		{128, 64, 70, true, true}, {12, 64, 700, false, false},
		{400, 32, 450, true, false}};
	static const int64_t diagonals[] = {0, 1, 37, 300, 1000, -1, -50, -127, -1000};
	static const struct layout scored[] = {{128, 128, 64, false, false},
		{70, 101, 40, false, false}, {75, 80, 1000, false, false}};
	(void)state;
	for (size_t d = 0; d < ARRAY_LEN(diagonals); d++) {
		for (size_t i = 0; i < ARRAY_LEN(attention); i++)
			check_causal(&attention[i], diagonals[d]);
		for (size_t i = 0; i < ARRAY_LEN(scored); i++) {
			check_causal_result(&scored[i], DT_F32, diagonals[d], false);
			check_causal_result(&scored[i], DT_BF16, diagonals[d], true);
		}
	}
}

/* More rows and columns than a block of the result has, in tasks of some columns. */
static void blocks(void **state)
{
	enum { M = 2200, N = 1100, K = 3 };
	float *c = xmalloc(sizeof(float) * M * N);
	(void)state;
	fill(left, DT_F32, M * K, 1, false, 0);
	fill(right, DT_F32, N * K, 5, false, 0);
	struct gemm g = {.m = M,
		.n = N,
		.k = K,
		.left = {left, K, false, DT_F32},
		.right = {right, K, false, DT_F32},
		.c = c,
		.c_stride = N,
		.alpha = 1};
	for (size_t u = 0; u < ARRAY_LEN(units) && units[u].isa <= cpu_isa(); u++) {
		omp_set_num_threads(2);
		units[u].by(&g, units[u].fp32);
		for (int64_t i = 0; i < M; i += 7)
			for (int64_t j = 0; j < N; j += 3)
				assert_true(bits_of(c[i * N + j]) ==
					    bits_of(sum_fp32(&g, i, j)));
	}
	free(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fp32),
		cmocka_unit_test(bf16),
		cmocka_unit_test(causal),
		cmocka_unit_test(blocks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
