/* Shared by the tests of kernels: the device under test, matrices in its memory, and the
 * comparison of results with a reference in float64. */
#pragma once

#include "tests/support/support.h"
#include "kernels/kernels.h"

/* The device under test, by $PT_TEST_DEVICE: cpu or cuda; opened once. */
struct device *test_device(void);
bool test_on_cuda(void); /* $PT_TEST_DEVICE */
/* Reopens it, if it is the CPU, with this instruction set (NULL: that of $PT_ISA at the start) and
 * this many threads (0: all). */
void test_device_reopen(const char *isa, int threads);
/* Skips the test on other devices. */
void only_on_cpu(void);
/* True for an emulated GPU, and for any GPU under compute-sanitizer ($SANITIZER), unless LONG=yes:
 * tests with many cases then run some of them only. */
bool test_device_slow(const struct device *d);
/* The same for this machine's GPU, which is opened for it; false: the test's device is a CPU. */
bool test_gpu_slow(void);
/* $TEST_PART=I/N selects tests or cases of a program: number *first, and every *step-th after it. */
void test_part(int *first, int *step);
/* True, after a SKIP line in TAP, if this machine lacks the instruction set of $PT_ISA. */
bool test_device_missing(void);

/* Memory that device and test can access, until the test ends. Floats are NaN at first and lie
 * between guard zones: reads out of bounds spoil a result, and writes out of bounds are detected
 * when the test ends. */
float *floats(int64_t n);
int32_t *ints(int64_t n);    /* zeros */
double *doubles(int64_t n);  /* zeros */
uint16_t *shorts(int64_t n); /* zeros */
struct exact *exact_zero(void);
/* A copy of x in such memory. */
void *there(const void *x, size_t n_bytes);
float *scalar(float x);
uint32_t *counter(uint32_t x);
/* The hash kernel on n contiguous numbers. */
uint64_t kernel_hash(
	struct device *d, const float *x, int64_t n, uint64_t key, int64_t first);
/* The result of the amax kernel, starting from 0. */
float amax_of(struct device *d, struct mat x);
/* That of exact_sumsq on one row. */
double sumsq_of(struct device *d, struct mat row);
struct mat mat_blank(int64_t rows, int64_t cols);
/* The same numbers for the same seed; and a hash of a matrix. */
struct mat seeded(int64_t rows, int64_t cols, uint64_t seed);
uint64_t hash_of(struct mat m);

/* The fp32 numbers of x rounded to `type` and stored in it; and the
 * inverse, which is exact. Computed with tables and shifts, independently of the kernels. */
struct mat stored(struct mat x, enum dtype type);
struct mat loaded(struct mat x);

/* Random numbers: different at each call, but the same each time a test runs. */
int64_t pick(int64_t low, int64_t high); /* both included */
void fill_normal(float *x, int64_t n, double scale);

/* The same matrix for the kernel and for the reference. */
struct twin {
	struct mat f;
	double *r;
};

struct twin twin_random(int64_t rows, int64_t cols, double scale); /* normal */
struct twin twin_blank(int64_t rows, int64_t cols); /* for results: NaN; reference: 0 */
struct twin twin_none(void);
void twin_sync(struct twin t); /* the reference gets the kernel's numbers */

/* Fails when |x - y| / (|y| + rms(y)) is above the bound anywhere. */
void check_close(
	const char *what, const float *x, const double *y, int64_t n, double bound);
void twin_check(const char *what, struct twin t, double bound);
/* Equal bits, except that any NaN equals any other: a CPU propagates payloads, a GPU does not. */
void check_bits(const char *what, const float *x, const float *y, int64_t n);

/* Fixtures. A test's state is the device. */
int device_begin(void **state);
int device_end(void **state); /* prints the largest error of each check */
int memory_begin(void **state);
int memory_end(void **state);

/* DEVICE_TEST(name) { ... } defines a test of the device `d`; main() is: return run_on_device(); */
#define DEVICE_TEST(name)                                              \
	static void name(struct device *d);                            \
	static void test_run_##name(void **state)                      \
	{                                                              \
		name(*state);                                          \
	}                                                              \
	__attribute__((constructor)) static void test_add_##name(void) \
	{                                                              \
		add_device_test(__FILE__, #name, test_run_##name);     \
	}                                                              \
	static void name(__attribute__((unused)) struct device *d)
void add_device_test(const char *file, const char *name, CMUnitTestFunction run);
/* Runs the tests of a file that $TEST_PART selects; a program may have several files. */
int run_device_tests(const char *file);
#define run_on_device() run_device_tests(__FILE__)
