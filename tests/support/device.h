/*
 * What the tests of kernels share: the device they run on, numbers in its memory, and the
 * comparison of what it computed with what float64 says.
 */
#ifndef TESTS_DEVICE_H
#define TESTS_DEVICE_H

#include "tests/support/support.h"
#include "kernels/kernels.h"

/* The device under test, which $PT_TEST_DEVICE says: cpu or cuda; opened once. */
struct device *test_device(void);
bool test_on_cuda(void); /* $PT_TEST_DEVICE */
/* Opens it again, if it is the CPU: with this instruction set, NULL for the one that the program was started
 * with, and this many threads, 0 for all. */
void test_device_reopen(const char *isa, int threads);
/* Ends the test, as one that is skipped, where the device is another. */
void only_on_cpu(void);
/* An emulated GPU, or any under compute-sanitizer ($SANITIZER), takes its time: tests with many
 * cases do some of them. On others, and with LONG=yes, all. */
bool test_device_slow(const struct device *d);
/* The same of the GPU that is here, which is opened for it; false: the test's device is a CPU. */
bool test_gpu_slow(void);
/* $TEST_PART=I/N, of a program's tests or cases: number *first and every *step-th from there. */
void test_part(int *first, int *step);
/* True, and said in TAP, when this machine lacks what $PT_ISA asks for. */
bool test_device_missing(void);

/* Memory of the device that the test can use too, until the test ends. Floats begin as NaN and stand between fences:
 * what a kernel reads and should not spoils its result, what it writes and should not is
 * found at the end. */
float *floats(int64_t n);
int32_t *ints(int64_t n);    /* zeros */
double *doubles(int64_t n);  /* zeros */
uint16_t *shorts(int64_t n); /* zeros */
struct exact *exact_zero(void);
/* Copies. */
void *there(const void *x, size_t n_bytes);
float *scalar(float x);
uint32_t *counter(uint32_t x);
/* Of n numbers that lie together. */
uint64_t kernel_hash(
	struct device *d, const float *x, int64_t n, uint64_t key, int64_t first);
/* What `amax` makes of 0 and x. */
float amax_of(struct device *d, struct mat x);
struct mat mat_blank(int64_t rows, int64_t cols);

/* Of a device that is narrow: the numbers of x, of fp32, rounded to `type` and stored as it; and
 * back, which is exact. By tables and shifts, not by the kernels that do it. */
struct mat stored(struct mat x, enum dtype type);
struct mat loaded(struct mat x);

/* Random numbers: the same ones each time a test runs, others at each call. */
int64_t pick(int64_t low, int64_t high); /* both included */
void fill_normal(float *x, int64_t n, double scale);

/* The same matrix for the kernel and for the reference. */
struct twin {
	struct mat f;
	double *r;
};

struct twin twin_random(int64_t rows, int64_t cols, double scale); /* normal */
struct twin twin_blank(int64_t rows, int64_t cols); /* a result: NaN, and zeros */
struct twin twin_none(void);
void twin_sync(struct twin t); /* the reference gets the kernel's numbers */

/* Fails when |x - y| / (|y| + rms(y)) is above the bound anywhere. */
void check_close(
	const char *what, const float *x, const double *y, int64_t n, double bound);
void twin_check(const char *what, struct twin t, double bound);
/* Equal, but for which NaN: a GPU makes one only, and a CPU hands on what it was given. */
void check_bits(const char *what, const float *x, const float *y, int64_t n);

/* Fixtures. A test's state is the device. */
int device_begin(void **state);
int device_end(void **state); /* says the worst error of each check */
int memory_begin(void **state);
int memory_end(void **state);

#define on_device(f) cmocka_unit_test_setup_teardown(f, memory_begin, memory_end)
#define run_on_device(tests) run_some_on_device(tests, ARRAY_LEN(tests))
/* Those of $TEST_PART. */
int run_some_on_device(const struct CMUnitTest *tests, size_t n);

#endif
