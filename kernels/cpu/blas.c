/*
 * OpenBLAS, loaded by the first matmul: programs without matmuls need not load it, and the
 * environment can be set first to select its kernels.
 *
 * OpenBLAS 0.3.21 does not know newer processors, for which it selects its slowest kernels
 * (5 times slower on an Emerald Rapids). The choice also determines bitwise results, so it is
 * made here and recorded in the run file.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/selftest.h"

#include <dlfcn.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 }; /* of the CBLAS interface */

typedef void cblas_sgemm_fn(int order, int ta, int tb, int m, int n, int k, float alpha,
	const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);

typedef char *get_text_fn(void);

static cblas_sgemm_fn *sgemm;
static char blas_text[96];
static pthread_once_t once = PTHREAD_ONCE_INIT;

int cpu_isa(void)
{
	static const char *const names[] = {"sse2", "avx2", "avx512"};
	int best = 0;
#if defined(__x86_64__)
	__builtin_cpu_init();
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		best = 1;
	if (best && __builtin_cpu_supports("avx512f") &&
		__builtin_cpu_supports("avx512bw") &&
		__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
		best = 2;
#endif
	const char *want = getenv("PT_ISA");
	if (!want || !*want)
		return best;
	for (int i = 0; i < 3; i++) {
		if (strcmp(want, names[i]))
			continue;
		if (i > best)
			die(EX_USAGE, "PT_ISA: this processor has no %s", want);
		return i;
	}
	die(EX_USAGE, "PT_ISA: '%s' is none of sse2, avx2, avx512", want);
}

/* POSIX allows converting a data pointer to a function pointer, ISO C does not. */
static void load_symbol(void *lib, const char *name, void *fn)
{
	void *p = dlsym(lib, name);
	if (!p)
		die(EX_FAILED, "libopenblas.so.0 has no %s: not OpenBLAS", name);
	memcpy(fn, &p, sizeof(p));
}

/* NULL: not installed. */
static void *open_library(void)
{
	static const char *const cores[] = {"Nehalem", "Haswell", "SkylakeX"};
	setenv("OPENBLAS_CORETYPE", cores[cpu_isa()], 0);
	setenv("OPENBLAS_NUM_THREADS", "1", 1); /* threads are in linear.c */
	void *lib = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
	return lib ? lib : dlopen("libopenblas.so", RTLD_NOW | RTLD_LOCAL);
}

bool selftest_has_blas(void)
{
	return open_library() != NULL;
}

static void load(void)
{
	void *lib = open_library();
	if (!lib)
		die(EX_FAILED, "OpenBLAS cannot be opened: %s (Debian: libopenblas0)",
			dlerror());
	get_text_fn *config, *core;
	load_symbol(lib, "cblas_sgemm", &sgemm);
	load_symbol(lib, "openblas_get_config", &config);
	load_symbol(lib, "openblas_get_corename", &core);
	const char *text = config();
	int n = (int)strcspn(text, " "); /* "OpenBLAS 0.3.21 NO_LAPACKE ..." */
	if (text[n])
		n += 1 + (int)strcspn(text + n + 1, " ");
	snprintf(blas_text, sizeof(blas_text), "%.*s %s", n, text, core());
}

/* OpenBLAS maps a buffer for each concurrent matmul, and retries for ever if that fails, as with a
 * limit on the address space. So mapping as much is tried first; no page is touched. */
static void check_room(int n_threads)
{
	enum { BUFFER = (128 << 20) + 4096 };
	static int n_checked;
	char text[NUM_TEXT];
	if (n_threads <= n_checked)
		return;
	size_t n_bytes = (size_t)(n_threads - n_checked) * BUFFER;
	void *p = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		-1, 0);
	if (p == MAP_FAILED)
		die(EX_FAILED,
			"out of memory: no room for OpenBLAS's buffers, %s of address "
			"space for %d thread%s; is it limited (ulimit -v)?",
			text_bytes(text, (double)n_bytes), n_threads,
			n_threads == 1 ? "" : "s");
	munmap(p, n_bytes);
	n_checked = n_threads;
}

void blas_open(void)
{
	pthread_once(&once, load);
	check_room(omp_get_max_threads());
}

const char *device_blas(void)
{
	pthread_once(&once, load);
	return blas_text;
}

void blas_gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha,
	const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
	int64_t ldc)
{
	sgemm(ROW_MAJOR, ta ? TRANS : NO_TRANS, tb ? TRANS : NO_TRANS, (int)m, (int)n,
		(int)k, alpha, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
}

int cpu_count(void)
{
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof(set), &set))
		return 1;
	return CPU_COUNT(&set);
}
