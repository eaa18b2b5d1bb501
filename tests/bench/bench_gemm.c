/*
 * The CPU's products of matrices, in one thread, at the shapes of a model of 6 x 384 and of GPT-2 124M;
 * beside OpenBLAS, if it is installed, in turns.
 *   bench_gemm      lines "SHAPE FP32 OPENBLAS BF16": GFLOP/s, OPENBLAS 0 without it
 * The processor's time counts, which other programs disturb less.
 */
#include "kernels/cpu/gemm.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 7, ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

typedef void cblas_sgemm_fn(int order, int ta, int tb, int m, int n, int k, float alpha,
	const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
typedef void gemm_fn(const struct gemm *);
gemm_fn cpu_avx2_gemm, cpu_avx512_gemm;

static cblas_sgemm_fn *sgemm;

static const struct shape {
	const char *name;
	int64_t m, n, k;
	bool left_across, right_across;
} shapes[] = {
	{"forward", 4096, 1152, 384, false, false},
	{"forward", 4096, 384, 1536, false, false},
	{"backward_x", 4096, 384, 1536, false, true},
	{"backward_w", 1536, 384, 4096, true, true},
	{"forward", 1024, 3072, 768, false, false},
	{"backward_x", 1024, 768, 3072, false, true},
	{"backward_w", 3072, 768, 1024, true, true},
	{"head", 320, 50304, 768, false, false},
	{"scores", 128, 128, 64, false, false},
	{"values", 128, 64, 128, false, true},
};

static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static gemm_fn *ours = cpu_sse2_gemm;

static void choose_ours(void)
{
#if defined(__x86_64__)
	gemm_fn *const by_isa[] = {cpu_sse2_gemm, cpu_avx2_gemm, cpu_avx512_gemm,
		cpu_avx512_gemm, cpu_avx512_gemm};
	ours = by_isa[cpu_isa()];
#endif
}

static void theirs(const struct gemm *g)
{
	sgemm(ROW_MAJOR, g->left.across ? TRANS : NO_TRANS,
		g->right.across ? NO_TRANS : TRANS, (int)g->m, (int)g->n, (int)g->k, 1,
		g->left.p, (int)g->left.stride, g->right.p, (int)g->right.stride, 0, g->c,
		(int)g->c_stride);
}

static double rate(gemm_fn *call, const struct gemm *g)
{
	double flops = 2.0 * (double)(g->m * g->n * g->k), begin = seconds();
	int calls = 1 + (int)(2e9 / flops);
	for (int i = 0; i < calls; i++)
		call(g);
	return calls * flops / (seconds() - begin) * 1e-9;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static void measure(const struct shape *s, void *a, void *b, void *c)
{
	struct gemm g = {.m = s->m,
		.n = s->n,
		.k = s->k,
		.left = {a, s->left_across ? s->m : s->k, s->left_across, DT_F32},
		.right = {b, s->right_across ? s->n : s->k, s->right_across, DT_F32},
		.c = c,
		.c_stride = s->n,
		.alpha = 1,
		.serial = true};
	struct gemm narrow = g;
	double rates[3][ROUNDS] = {{0}};
	narrow.left.type = narrow.right.type = narrow.type = DT_BF16;
	for (int i = 0; i < ROUNDS; i++) {
		rates[0][i] = rate(ours, &g);
		if (sgemm)
			rates[1][i] = rate(theirs, &g);
		rates[2][i] = rate(ours, &narrow);
	}
	for (int i = 0; i < 3; i++)
		qsort(rates[i], ROUNDS, sizeof(double), compare);
	printf("%s %dx%dx%d\t%.1f\t%.1f\t%.1f\n", s->name, (int)s->m, (int)s->n,
		(int)s->k, rates[0][ROUNDS / 2], rates[1][ROUNDS / 2],
		rates[2][ROUNDS / 2]);
	fflush(stdout);
}

/* OpenBLAS 0.3.21 chooses its slowest kernels on processors that it does not know. */
static void open_theirs(void)
{
	static const char *const cores[] = {
		"Nehalem", "Haswell", "SkylakeX", "SkylakeX", "SkylakeX"};
	setenv("OPENBLAS_CORETYPE", cores[cpu_isa()], 0);
	setenv("OPENBLAS_NUM_THREADS", "1", 1);
	void *lib = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
	void *p = lib ? dlsym(lib, "cblas_sgemm") : NULL;
	memcpy(&sgemm, &p, sizeof(p));
}

int main(void)
{
	enum { LARGEST = 50304 * 1024 };
	struct arena room; /* of huge pages, as the memory of a run */
	arena_init(&room, "operands", sizeof(float) * (3 * LARGEST + 64));
	float *a = arena_floats(&room, LARGEST), *b = arena_floats(&room, LARGEST);
	float *c = arena_floats(&room, LARGEST);
	for (int64_t i = 0; i < LARGEST; i++) {
		a[i] = (float)(i * 2654435761 >> 8 & 0xffff) / 65536 - 0.5f;
		b[i] = (float)(i * 40503 >> 4 & 0xffff) / 65536 - 0.5f;
		c[i] = 0;
	}
	choose_ours();
	open_theirs();
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
		measure(&shapes[i], a, b, c);
	arena_release(&room);
	return 0;
}
