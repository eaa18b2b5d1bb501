/* The device under test, its memory, and comparisons. */
#include "tests/support/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct device device;
static struct arena scratch;
static const char *isa_asked; /* $PT_ISA when the program began, or NULL */

bool test_on_cuda(void)
{
	const char *asked = getenv("PT_TEST_DEVICE");
	return asked && !strcmp(asked, "cuda");
}

/* Tests read results without waiting, so the device executes synchronously. */
static void open_cuda(void)
{
	struct device_options o = {.exact = true, .measure = true};
	struct err e = {0};
	setenv("PT_CUDA_SYNC", "yes", 1);
	if (device_open(&device, DEVICE_CUDA, &o, &e))
		die_err(&e);
	device.scratch = &scratch;
}

void test_device_reopen(const char *isa, int threads)
{
	if (test_on_cuda())
		return;
	if (!isa)
		isa = isa_asked;
	if (isa)
		setenv("PT_ISA", isa, 1);
	else
		unsetenv("PT_ISA");
	device_open_cpu(&device, threads);
	device.scratch = &scratch;
}

struct device *test_device(void)
{
	if (!device.k) {
		isa_asked = getenv("PT_ISA");
		isa_asked = isa_asked ? xstrdup(isa_asked) : NULL;
		if (test_on_cuda())
			open_cuda();
		arena_init(&scratch, "scratch", (size_t)64 << 20);
		test_device_reopen(NULL, 0);
	}
	return &device;
}

void only_on_cpu(void)
{
	if (test_device()->discrete)
		skip();
}

bool test_device_slow(const struct device *d)
{
	const char *sanitizer = getenv("SANITIZER"), *all = getenv("LONG");
	bool slow = strstr(d->name, "emulated") || (sanitizer && *sanitizer);
	return slow && !(all && !strcmp(all, "yes"));
}

bool test_gpu_slow(void)
{
	const struct device_options o = {.exact = true};
	struct device d;
	struct err e = {0};
	if (!test_on_cuda())
		return false;
	if (device_open(&d, DEVICE_CUDA, &o, &e))
		die_err(&e);
	bool slow = test_device_slow(&d);
	device_close(&d);
	return slow;
}

void test_part(int *first, int *step)
{
	const char *asked = getenv("TEST_PART");
	int part = 1, of = 1;
	if (asked && *asked &&
		(sscanf(asked, "%d/%d", &part, &of) != 2 || part < 1 || part > of))
		die(EX_USAGE, "TEST_PART is '%s', not as 1/3", asked);
	*first = part - 1;
	*step = of;
}

bool test_device_missing(void)
{
	static const char *const isas[] = {"sse2", "avx2", "avx512"};
	const char *asked = getenv("PT_ISA");
	struct device best;
	if (!asked || test_on_cuda())
		return false;
	char *want = xstrdup(asked);
	unsetenv("PT_ISA");
	device_open_cpu(&best, 1);
	setenv("PT_ISA", want, 1);
	bool above = false, missing = false;
	for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
		missing |= above && !strcmp(want, isas[i]);
		above |= strstr(best.k->name, isas[i]) != NULL;
	}
	if (missing)
		printf("1..1\nok 1 - all # SKIP this processor has no %s\n", want);
	free(want);
	return missing;
}

/* ---- memory ---------------------------------------------------------------------- */

enum { FENCE = 32, FENCE_BITS = 0x7fc0dead }; /* a NaN */

struct piece {
	void *p;
	int64_t n_floats; /* between fences; -1: something else, without */
};

static struct piece *pieces;
static int64_t n_pieces;
static uint64_t seed;

/* Memory of a discrete device is allocated in large blocks, since many small ones are slow. */
enum { BLOCK_BYTES = 64 << 20, PLACE_BYTES = 256 };
static struct block {
	char *p;
	size_t used_bytes, size_bytes;
} blocks[64];

static void *from_block(struct device *d, size_t n_bytes)
{
	size_t need = (size_t)round_up((int64_t)n_bytes + 1, PLACE_BYTES), i = 0;
	while (i < ARRAY_LEN(blocks) && blocks[i].p &&
		need > blocks[i].size_bytes - blocks[i].used_bytes)
		i++;
	assert_true(i < ARRAY_LEN(blocks));
	struct block *b = &blocks[i];
	if (!b->p) {
		b->size_bytes = (size_t)max64((int64_t)need, BLOCK_BYTES);
		b->p = device_shared(d, b->size_bytes);
	}
	assert_non_null(b->p);
	b->used_bytes += need;
	return b->p + b->used_bytes - need;
}

static void *piece_new(size_t n_bytes, int64_t n_floats)
{
	struct device *d = test_device();
	void *p = d->discrete ? from_block(d, n_bytes) : xmalloc(n_bytes);
	memset(p, 0, n_bytes);
	pieces = xrealloc(pieces, (size_t)(n_pieces + 1) * sizeof(*pieces));
	pieces[n_pieces++] = (struct piece){p, n_floats};
	return p;
}

static void fence(int32_t *p)
{
	for (int i = 0; i < FENCE; i++)
		p[i] = FENCE_BITS;
}

static bool fence_broken(const int32_t *p)
{
	int broken = 0;
	for (int i = 0; i < FENCE; i++)
		broken += p[i] != FENCE_BITS;
	return broken > 0;
}

float *floats(int64_t n)
{
	float *p = piece_new((size_t)(n + 2 * FENCE) * sizeof(float), n);
	fence((int32_t *)p);
	fence((int32_t *)p + FENCE + n);
	for (int64_t i = 0; i < n; i++)
		p[FENCE + i] = NAN;
	return p + FENCE;
}

int32_t *ints(int64_t n)
{
	return piece_new((size_t)n * sizeof(int32_t), -1);
}

uint16_t *shorts(int64_t n)
{
	return piece_new((size_t)n * sizeof(uint16_t), -1);
}

double *doubles(int64_t n)
{
	return piece_new((size_t)n * sizeof(double), -1);
}

struct exact *exact_zero(void)
{
	return piece_new(sizeof(struct exact), -1);
}

void *there(const void *x, size_t n_bytes)
{
	return memcpy(piece_new(n_bytes, -1), x, n_bytes);
}

float *scalar(float x)
{
	return there(&x, sizeof(x));
}

uint32_t *counter(uint32_t x)
{
	return there(&x, sizeof(x));
}

uint64_t kernel_hash(
	struct device *d, const float *x, int64_t n, uint64_t key, int64_t first)
{
	uint64_t sum, *word = device_alloc(d, sizeof(*word));
	d->k->hash(d, word, mat((float *)x, 1, n), key, first, n);
	device_get(d, &sum, word, sizeof(sum));
	device_free(d, word, sizeof(*word));
	return sum;
}

float amax_of(struct device *d, struct mat x)
{
	float *most = scalar(0);
	d->k->amax(d, most, x);
	return *most;
}

double sumsq_of(struct device *d, struct mat row)
{
	struct exact *sum = exact_zero();
	d->k->exact_sumsq(d, sum, &row, 1);
	return exact_round(sum);
}

struct mat mat_blank(int64_t rows, int64_t cols)
{
	return mat(floats(rows * cols), rows, cols);
}

struct mat seeded(int64_t rows, int64_t cols, uint64_t of)
{
	struct mat m = mat_blank(rows, cols);
	test_fill(m.p, rows * cols, of, 1);
	return m;
}

uint64_t hash_of(struct mat m)
{
	return hash_bytes(m.p, (size_t)mat_size(m) * sizeof(float), 0);
}

int memory_begin(void **state)
{
	(void)state;
	seed = 0;
	return 0;
}

int memory_end(void **state)
{
	int broken = 0;
	(void)state;
	for (int64_t i = 0; i < n_pieces; i++) {
		const int32_t *p = pieces[i].p;
		int64_t n = pieces[i].n_floats;
		if (n >= 0 && (fence_broken(p) || fence_broken(p + FENCE + n))) {
			print_error("written outside of piece %d, of %d floats\n", (int)i,
				(int)n);
			broken = -1;
		}
		if (!test_device()->discrete)
			free(pieces[i].p);
	}
	for (size_t i = 0; i < ARRAY_LEN(blocks); i++)
		blocks[i].used_bytes = 0;
	free(pieces);
	pieces = NULL;
	n_pieces = 0;
	return broken;
}

/* ---- formats --------------------------------------------------------------------- */

/* Bits of the exponent and of the fraction. */
static const int format[][2] = {
	[DT_BF16] = {8, 7}, [DT_F16] = {5, 10}, [DT_E4M3] = {4, 3}, [DT_E5M2] = {5, 2}};

/* The value of a code; all formats except e4m3 have infinity. */
static float number_of(unsigned code, enum dtype type)
{
	int e_bits = format[type][0], f_bits = format[type][1];
	int exponent = (int)(code >> f_bits) & ((1 << e_bits) - 1),
	    bias = (1 << (e_bits - 1)) - 1;
	int fraction = (int)code & ((1 << f_bits) - 1), last = (1 << e_bits) - 1;
	bool negative = code >> (e_bits + f_bits) & 1;
	double x = ldexp(fraction + (exponent ? 1 << f_bits : 0),
		(exponent ? exponent : 1) - bias - f_bits);
	if (type == DT_E4M3 && exponent == last && fraction == 7)
		x = (double)NAN;
	else if (type != DT_E4M3 && exponent == last)
		x = fraction ? (double)NAN : (double)INFINITY;
	return (float)(negative ? -x : x);
}

/* The code of the nearest number, ties to even; |numbers| increase with their codes. Overflow gives
 * infinity, or the largest number of fp8. */
static unsigned code_of(float x, enum dtype type)
{
	int bits = format[type][0] + format[type][1];
	bool saturates = type == DT_E4M3 || type == DT_E5M2;
	unsigned sign = signbit(x) ? 1u << bits : 0;
	unsigned top = ((1u << format[type][0]) - 1) << format[type][1]; /* infinity */
	if (type == DT_E4M3)
		top += 7;
	double size = fabs((double)x);
	if (isnan(x))
		return sign | (type == DT_E4M3 ? top : top + 1);
	unsigned low = 0, high = top; /* numbers: of low <= size, of high above */
	while (high - low > 1) {
		unsigned middle = (low + high) / 2;
		if ((double)number_of(middle, type) <= size)
			low = middle;
		else
			high = middle;
	}
	double below = (double)number_of(low, type);
	/* overflow is decided as if one more number followed the largest */
	double step = low ? below - (double)number_of(low - 1, type)
			  : (double)number_of(1, type);
	double above = high == top ? below + step : (double)number_of(high, type);
	bool up =
		size - below > above - size || (size - below == above - size && low & 1);
	return sign | (up && !(saturates && high == top) ? high : low);
}

struct mat stored(struct mat x, enum dtype type)
{
	int64_t n = mat_size(x);
	struct mat y = mat_typed(
		floats(ceil_div(n * dtype_bytes(type), 4)), x.rows, x.cols, type);
	const float *from = x.p;
	for (int64_t i = 0; i < n; i++) {
		if (type == DT_F32)
			((float *)y.p)[i] = from[i];
		else if (dtype_bytes(type) == 2)
			((uint16_t *)y.p)[i] = (uint16_t)code_of(from[i], type);
		else
			((uint8_t *)y.p)[i] = (uint8_t)code_of(from[i], type);
	}
	return y;
}

struct mat loaded(struct mat x)
{
	struct mat y = mat_blank(x.rows, x.cols);
	float *to = y.p;
	for (int64_t i = 0; i < mat_size(x); i++) {
		if (x.type == DT_F32)
			to[i] = ((const float *)x.p)[i];
		else if (dtype_bytes(x.type) == 2)
			to[i] = number_of(((const uint16_t *)x.p)[i], x.type);
		else
			to[i] = number_of(((const uint8_t *)x.p)[i], x.type);
	}
	return y;
}

/* ---- numbers --------------------------------------------------------------------- */

int64_t pick(int64_t low, int64_t high)
{
	return low + (int64_t)(test_uniform(seed++, 0) * (double)(high - low + 1));
}

void fill_normal(float *x, int64_t n, double scale)
{
	test_fill(x, n, seed++, scale);
}

void twin_sync(struct twin t)
{
	for (int64_t i = 0; i < mat_size(t.f); i++)
		t.r[i] = (double)((const float *)t.f.p)[i];
}

struct twin twin_blank(int64_t rows, int64_t cols)
{
	return (struct twin){mat_blank(rows, cols), doubles(rows * cols)};
}

struct twin twin_random(int64_t rows, int64_t cols, double scale)
{
	struct twin t = twin_blank(rows, cols);
	fill_normal(t.f.p, rows * cols, scale);
	twin_sync(t);
	return t;
}

struct twin twin_none(void)
{
	return (struct twin){mat(NULL, 0, 0), NULL};
}

/* ---- comparing ----------------------------------------------------------------------------*/

static struct {
	const char *what;
	double worst, bound;
} checks[64];

static void remember(const char *what, double error, double bound)
{
	size_t i = 0;
	while (i < ARRAY_LEN(checks) - 1 && checks[i].what &&
		strcmp(checks[i].what, what) != 0)
		i++;
	checks[i].what = what;
	if (error > checks[i].worst)
		checks[i].worst = error;
	if (bound > checks[i].bound)
		checks[i].bound = bound;
}

void check_close(
	const char *what, const float *x, const double *y, int64_t n, double bound)
{
	double sum = 0, worst = 0;
	int64_t at = 0;
	for (int64_t i = 0; i < n; i++)
		sum += y[i] * y[i];
	double rms = n > 0 ? sqrt(sum / (double)n) : 0;
	for (int64_t i = 0; i < n; i++) {
		double error = fabs((double)x[i] - y[i]);
		if (error > 0)
			error /= fabs(y[i]) + rms;
		if (!(error <= worst)) { /* NaN too */
			worst = error;
			at = i;
		}
	}
	remember(what, worst, bound);
	if (worst <= bound)
		return;
	print_error("%s: element %d of %d is %.9g, not %.9g: error %.2g, allowed %.2g\n",
		what, (int)at, (int)n, (double)x[at], y[at], worst, bound);
	fail();
}

void twin_check(const char *what, struct twin t, double bound)
{
	check_close(what, t.f.p, t.r, mat_size(t.f), bound);
}

void check_bits(const char *what, const float *x, const float *y, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		if (!memcmp(x + i, y + i, sizeof(float)) || (isnan(x[i]) && isnan(y[i])))
			continue;
		print_error("%s: element %d of %d is %a, not %a\n", what, (int)i, (int)n,
			(double)x[i], (double)y[i]);
		fail();
	}
}

int device_begin(void **state)
{
	*state = test_device();
	return 0;
}

int device_end(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(checks) && checks[i].what; i++)
		print_message("# %-34s worst error %8.2g, allowed %8.2g\n",
			checks[i].what, checks[i].worst, checks[i].bound);
	memset(checks, 0,
		sizeof(checks)); /* another program may follow: tests/together.c */
	return 0;
}

static struct device_test {
	const char *file;
	struct CMUnitTest test;
} * all;
static size_t n_all;

void add_device_test(const char *file, const char *name, CMUnitTestFunction run)
{
	all = xrealloc(all, (n_all + 1) * sizeof(*all));
	all[n_all++] =
		(struct device_test){file, {name, run, memory_begin, memory_end, NULL}};
}

int run_device_tests(const char *file)
{
	struct CMUnitTest *some = xcalloc(n_all, sizeof(*some));
	size_t n = 0, n_some = 0;
	int first, step, rc = 0;
	test_part(&first, &step);
	for (size_t i = 0; i < n_all; i++)
		if (!strcmp(all[i].file, file) && (int)(n++ % (size_t)step) == first)
			some[n_some++] = all[i].test;
	if (!n_some)
		printf("1..0\n");
	else if (!test_device_missing())
		rc = _cmocka_run_group_tests(
			"tests", some, n_some, device_begin, device_end);
	free(some);
	return rc;
}
