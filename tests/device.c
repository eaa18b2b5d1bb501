/* The device that the tests of kernels run on. */
#include "device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct device device;
static struct arena scratch;
static const char *isa_asked; /* $PT_ISA when the program began, or NULL */

void test_device_reopen(const char *isa, int threads)
{
	if (!isa)
		isa = isa_asked;
	if (isa)
		setenv("PT_ISA", isa, 1);
	else
		unsetenv("PT_ISA");
	device_cpu(&device, threads);
	device.scratch = &scratch;
}

struct device *test_device(void)
{
	if (!device.k) {
		isa_asked = getenv("PT_ISA");
		isa_asked = isa_asked ? xstrdup(isa_asked) : NULL;
		arena_init(&scratch, "scratch", (size_t)64 << 20);
		test_device_reopen(NULL, 0);
	}
	return &device;
}

bool test_device_missing(void)
{
	static const char *const isas[] = {"sse2", "avx2", "avx512"};
	const char *asked = getenv("PT_ISA");
	struct device best;
	if (!asked)
		return false;
	char *want = xstrdup(asked);
	unsetenv("PT_ISA");
	device_cpu(&best, 1);
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

static void *piece_add(void *p, int64_t n_floats)
{
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
	float *p = piece_add(xmalloc((size_t)(n + 2 * FENCE) * sizeof(float)), n);
	fence((int32_t *)p);
	fence((int32_t *)p + FENCE + n);
	for (int64_t i = 0; i < n; i++)
		p[FENCE + i] = NAN;
	return p + FENCE;
}

int32_t *ints(int64_t n)
{
	return piece_add(xcalloc((size_t)n, sizeof(int32_t)), -1);
}

double *doubles(int64_t n)
{
	return piece_add(xcalloc((size_t)n, sizeof(double)), -1);
}

struct mat mat_blank(int64_t rows, int64_t cols)
{
	return mat(floats(rows * cols), rows, cols);
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
		free(pieces[i].p);
	}
	free(pieces);
	pieces = NULL;
	n_pieces = 0;
	return broken;
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
		if (!memcmp(x + i, y + i, sizeof(float)))
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
	return 0;
}
