/* Exact sums of gradients, against integers made from the bits of the floats.
 * isa: sse2 avx2 avx512
 * device: cpu cuda
 */
#include "tests/support/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LARGE = 40000 }; /* enough for threads */

__extension__ typedef __int128 wide;

/* ---- the reference --------------------------------------------------------------------- */

static uint32_t bits(float x)
{
	uint32_t u;
	memcpy(&u, &x, sizeof(u));
	return u;
}

/* The nearest multiple of 2^-exponent, ties to even; 0 with a counter raised if there is none. */
static int64_t ref_leaf(float x, int exponent, int levels, struct grid *g)
{
	enum { POINT = 30 }; /* bits after the point */
	uint32_t u = bits(x), fraction = u & 0x7fffff, power = u >> 23 & 0xff;
	if (power == 0xff) {
		g->not_finite++;
		return 0;
	}
	/* |x| 2^exponent = whole 2^shift */
	wide whole = power ? fraction | 0x800000 : fraction;
	int shift = (int)(power ? power : 1) - 127 - 23 + exponent;
	if (shift < -POINT) /* below 1/64 */
		return 0;
	if (whole && (shift > 62 || whole << (POINT + shift) >
					    (wide)1 << (POINT + 62 - levels))) {
		g->beyond++;
		return 0;
	}
	wide fixed = whole ? whole << (POINT + shift) : 0, half = (wide)1 << (POINT - 1);
	wide units = fixed >> POINT, rest = fixed & (2 * half - 1);
	units += rest > half || (rest == half && units & 1);
	return (int64_t)(u >> 31 ? -units : units);
}

/* u bits of `whole`, rounded to the nearest number of `keep` bits, ties to even. */
static uint64_t ref_bits(uint64_t whole, int keep)
{
	int n = whole ? 64 - __builtin_clzll(whole) : 0, drop = n - keep;
	if (drop <= 0)
		return whole;
	uint64_t half = (uint64_t)1 << (drop - 1), rest = whole & (2 * half - 1);
	uint64_t down = whole >> drop;
	down += rest > half || (rest == half && down & 1);
	return down << drop;
}

/* To 53 bits, to 24 bits; what ldexp gives is exact unless it is subnormal or overflows. */
static float ref_round(int64_t sum, int exponent)
{
	uint64_t size = sum < 0 ? -(uint64_t)sum : (uint64_t)sum;
	uint64_t once = ref_bits(size, 53);
	double real = ldexp((double)once, -exponent);
	if (real >= 0x1p-126 && real < 0x1p127)
		real = ldexp((double)ref_bits(once, 24), -exponent);
	return sum < 0 ? -(float)real : (float)real;
}

/* ---- calls --------------------------------------------------------------------------------- */

static int64_t *words(int64_t n)
{
	return (int64_t *)(void *)doubles(n);
}

static struct grid *grid_of(int exponent)
{
	const struct grid g = {.exponent = exponent};
	return there(&g, sizeof(g));
}

static void same_grid(const struct grid *is, const struct grid *should)
{
	assert_int_equal(is->beyond, should->beyond);
	assert_int_equal(is->not_finite, should->not_finite);
}

static void same_words(const int64_t *is, const int64_t *should, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		if (is[i] != should[i])
			fail_msg("sum %lld is %lld, not %lld", (long long)i,
				(long long)is[i], (long long)should[i]);
}

/* Element i of a leaf in fp32. */
static float element(const struct grid_part *p, int64_t i)
{
	return ((const float *)p->leaf)[i];
}

/* A call with these parts, of which some may be leaves, equals the reference. add: to random sums. */
static void check_call(struct device *d, const struct grid_part *parts, int n_parts,
	int64_t n, int exponent, int levels, bool add)
{
	int64_t *sum = words(n), *want = words(n);
	float *rounded = floats(n), *nearest = floats(n);
	struct grid expected = {.exponent = exponent}, *grid = grid_of(exponent);
	for (int64_t i = 0; i < n; i++) {
		sum[i] = (int64_t)hash_mix((uint64_t)i + 7);
		uint64_t total = add ? (uint64_t)sum[i] : 0;
		for (int k = 0; k < n_parts; k++)
			total += parts[k].leaf ? (uint64_t)ref_leaf(element(&parts[k], i),
							 exponent, levels, &expected)
					       : (uint64_t)parts[k].sum[i];
		want[i] = (int64_t)total;
		nearest[i] = ref_round(want[i], exponent);
	}
	struct grid_sum s = {.sum = sum,
		.add = add,
		.rounded = rounded,
		.parts = parts,
		.n_parts = n_parts,
		.n = n,
		.levels = levels};
	d->k->grid_sum(d, &s, grid);
	same_words(sum, want, n);
	check_bits("rounded", rounded, nearest, n);
	same_grid(grid, &expected);
	if (add || n_parts > GRID_PARTS)
		return;
	memset(rounded, 0xff, (size_t)n * sizeof(float));
	s.sum = NULL; /* only rounded */
	d->k->grid_sum(d, &s, grid_of(exponent));
	check_bits("rounded without a sum", rounded, nearest, n);
}

/* ---- numbers ------------------------------------------------------------------------------- */

/* All floats of few bits, around ties and around the limit, of both signs; subnormal ones; others. */
static int64_t odd_leaves(float *to, int exponent, int levels)
{
	static const float others[] = {0, INFINITY, NAN, 1e30f, 3.4028235e38f, 0x1p-149f,
		0x1.fffffcp-127f, 0x1p-126f, 0x1p30f, 0x1p31f, 0x1p32f, 0x1p51f, 0x1p52f,
		0x1p53f, 0x1.fffffep50f, 0x1.8p31f, 0x1.fffffep31f};
	const float limit = ldexpf(1, 62 - levels - exponent);
	int64_t n = 0;
	for (int i = 0; i <= 64; i++) { /* ties, and what is beside them */
		float x = ldexpf((float)i / 4, -exponent);
		to[n++] = x;
		to[n++] = nextafterf(x, INFINITY);
		to[n++] = nextafterf(x, 0);
	}
	for (int i = -4; i <= 62; i++) { /* odd multiples of all sizes */
		to[n++] = ldexpf(0x1.fffffep0f, i - exponent);
		to[n++] = ldexpf(0x1.800002p0f, i - exponent);
		to[n++] = ldexpf(0x1.000002p0f, i - exponent);
		to[n++] = ldexpf(1, i - exponent);
	}
	to[n++] = limit;
	to[n++] = nextafterf(limit, INFINITY);
	to[n++] = nextafterf(limit, 0);
	to[n++] = 2 * limit;
	for (size_t i = 0; i < ARRAY_LEN(others); i++) {
		to[n++] = others[i];
		to[n++] = ldexpf(others[i], -exponent);
	}
	for (int64_t i = 0; i < n; i++)
		to[n + i] = -to[i];
	return 2 * n;
}

static const int exponents[] = {50, 25, 0, -25, -50, -75, 34, 59, 100, GRID_MAX_EXPONENT,
	-100, GRID_MIN_EXPONENT};

DEVICE_TEST(leaves)
{
	enum { MOST = 2000 };
	for (size_t e = 0; e < ARRAY_LEN(exponents); e++)
		for (int levels = 0; levels <= 62; levels += levels < 3 ? 1 : 59 / 2) {
			float *x = floats(MOST), *y = floats(1);
			int64_t n = odd_leaves(x, exponents[e], levels);
			const struct grid_part part = {.leaf = x}, one = {.leaf = y};
			assert_true(n <= MOST);
			check_call(d, &part, 1, n, exponents[e], levels, e % 2);
			/* and with none that is too large beside them */
			for (int64_t i = 0; i < n; i += 1 + (int64_t)(e % 5)) {
				*y = x[i];
				check_call(d, &one, 1, 1, exponents[e], levels, false);
			}
			assert_int_equal(memory_end(NULL), 0);
		}
}

/* Exactly at the limit a leaf counts, and one step above it does not. */
DEVICE_TEST(limits)
{
	for (int levels = 0; levels < 20; levels++) {
		float *x = floats(4);
		int64_t *sum = words(4);
		struct grid *grid = grid_of(GRID_EXPONENT);
		const float limit = ldexpf(1, 12 - levels);
		const float some[] = {
			limit, -limit, nextafterf(limit, INFINITY), -INFINITY};
		const int64_t most = (int64_t)1 << (62 - levels);
		const int64_t want[] = {most, -most, 0, 0};
		const struct grid_part part = {.leaf = x};
		memcpy(x, some, sizeof(some));
		d->k->grid_sum(d,
			&(struct grid_sum){.sum = sum,
				.parts = &part,
				.n_parts = 1,
				.n = 4,
				.levels = levels},
			grid);
		same_words(sum, want, 4);
		same_grid(grid, &(struct grid){.beyond = 1, .not_finite = 1});
		d->k->grid_sum(d, /* the counters add up */
			&(struct grid_sum){.sum = sum,
				.parts = &part,
				.n_parts = 1,
				.n = 4,
				.levels = levels + 1},
			grid);
		same_grid(grid, &(struct grid){.beyond = 4, .not_finite = 2});
	}
}

/* What is rounded to a float: ties of doubles and of floats, both limits of int64, 0 and -0. */
DEVICE_TEST(rounded)
{
	enum { N = 64 * 24 };
	int64_t *x = words(N), n = 0;
	for (int bit = 0; bit < 64; bit++)
		for (int i = 0; i < 12; i++) {
			static const uint64_t low[] = {0, 1, 3};
			uint64_t u = (uint64_t)1 << bit;
			u += (i & 1) ? u >> 24 : 0;
			u += (i & 2) ? u >> 53 : 0;
			u += low[i / 4] - 1;
			x[n++] = (int64_t)u;
			x[n++] = (int64_t)-u;
		}
	const struct grid_part part = {.sum = x};
	for (size_t e = 0; e < ARRAY_LEN(exponents); e++)
		check_call(d, &part, 1, n, exponents[e], 0, false);
	float *minus_0 = floats(1), *to = floats(1);
	*minus_0 = -0.0f;
	d->k->grid_sum(d,
		&(struct grid_sum){.rounded = to,
			.parts = &(struct grid_part){.leaf = minus_0},
			.n_parts = 1,
			.n = 1},
		grid_of(GRID_EXPONENT));
	assert_int_equal(bits(*to), 0);
}

/* ---- sums ---------------------------------------------------------------------------------- */

static float *random_leaf(int64_t n)
{
	float *x = floats(n);
	fill_normal(x, n, 1);
	for (int64_t i = 0; i < n; i++)
		x[i] = ldexpf(x[i], -(int)pick(0, 60));
	return x;
}

static const int64_t *random_sum(int64_t n)
{
	int64_t *x = words(n);
	for (int64_t i = 0; i < n; i++) /* of all sizes; some wrap */
		x[i] = (int64_t)hash_mix((uint64_t)pick(0, INT32_MAX)) >> pick(0, 63);
	return x;
}

/* n of all sizes, parts of both kinds. */
DEVICE_TEST(parts)
{
	static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 100,
		511, 512, 513, 1023, 1025, 4099, LARGE + 3};
	check_call(d, NULL, 0, 700, 50, 3, false); /* nothing is 0 */
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		int64_t n = sizes[i];
		struct grid_part some[9];
		for (int k = 0; k < 9; k++)
			some[k] = (k + i) % 3 ? (struct grid_part){.leaf = random_leaf(n)}
					      : (struct grid_part){.sum = random_sum(n)};
		for (int k = 1; k <= 9; k += k == 1 ? 1 : 7)
			for (int add = 0; add < 2; add++)
				check_call(d, some, k, n, 50, 4, add);
		assert_int_equal(memory_end(NULL), 0);
	}
}

/* A few leaves, which a CPU adds as doubles if none is large: also such that their sum is beyond the 53 bits of
 * one, and a tie of floats but for its last bits. */
DEVICE_TEST(few)
{
	enum { N = 1200, MOST = 5 };
	for (int power = 40; power <= 59; power++) {
		struct grid_part some[MOST];
		float *x[MOST];
		for (int k = 0; k < MOST; k++)
			some[k] = (struct grid_part){.leaf = x[k] = floats(N)};
		for (int64_t i = 0; i < N; i++) {
			float large = ldexpf(1 + (float)(i % 3), power - 2 - 50);
			float tie = large * 0x1p-24f, last = large * 0x1p-53f;
			const float of[] = {large, i % 2 ? last : tie, i % 2 ? tie : last,
				last, i % 5 ? 3 * last : -tie};
			for (int k = 0; k < MOST; k++)
				x[k][i] = i % 7 < 3 ? -of[k] : of[k];
		}
		for (int k = 2; k <= MOST; k++)
			check_call(d, some, k, N, 50, 3, false);
		assert_int_equal(memory_end(NULL), 0);
	}
}

/* More parts than a launch has room for, in two orders: the same bits. */
DEVICE_TEST(order)
{
	enum { MANY = 2 * GRID_PARTS + 7, N = 37 };
	static struct grid_part all[MANY], other[MANY];
	int64_t *sum[2] = {words(N), words(N)};
	struct grid *grid[2] = {grid_of(50), grid_of(50)};
	for (int k = 0; k < MANY; k++)
		all[k] = k % 7 ? (struct grid_part){.leaf = random_leaf(N)}
			       : (struct grid_part){.sum = random_sum(N)};
	check_call(d, all, MANY, N, 50, 10, true);
	check_call(d, all, GRID_PARTS, N, 50, 9, false);
	for (int k = 0; k < MANY; k++)
		other[k] = all[k * 100 % MANY]; /* (MANY is not divisible by 2 or 5) */
	for (int i = 0; i < 2; i++)
		d->k->grid_sum(d,
			&(struct grid_sum){.sum = sum[i],
				.parts = i ? other : all,
				.n_parts = MANY,
				.n = N,
				.levels = 10},
			grid[i]);
	same_words(sum[0], sum[1], N);
	same_grid(grid[0], grid[1]);
}

/* Micro-batches one by one, then a rounding in the last leaf's memory, equal one call with all. */
DEVICE_TEST(one_by_one)
{
	enum { LEAVES = 5 };
	int64_t *sum = words(LARGE), *at_once = words(LARGE);
	float *want = floats(LARGE), *last = NULL;
	struct grid_part all[LEAVES];
	for (int k = 0; k < LEAVES; k++)
		all[k] = (struct grid_part){.leaf = last = random_leaf(LARGE)};
	struct grid_sum s = {.sum = at_once,
		.rounded = want,
		.parts = all,
		.n_parts = LEAVES,
		.n = LARGE,
		.levels = 3};
	d->k->grid_sum(d, &s, grid_of(50));
	s.sum = sum;
	s.n_parts = 1;
	for (int k = 0; k < LEAVES; k++) {
		s.add = k > 0;
		s.parts = &all[k];
		s.rounded = k == LEAVES - 1 ? last : NULL;
		d->k->grid_sum(d, &s, grid_of(50));
	}
	same_words(sum, at_once, LARGE);
	check_bits("in the memory of a leaf", last, want, LARGE);
}

/* Leaves of 16 bits are what they are in fp32, wherever they begin. */
DEVICE_TEST(narrow_leaves)
{
	enum { LEAVES = 3, N = 1001, MOST = 2000 };
	for (enum dtype type = DT_BF16; type <= DT_F16; type++)
		for (int off = 0; off < 5; off++) {
			struct grid_part fp32[LEAVES], narrow[LEAVES];
			int64_t *sum[2] = {words(N), words(N)};
			float *to[2] = {floats(N), floats(N)};
			struct grid *grid[2] = {grid_of(50), grid_of(50)};
			for (int k = 0; k < LEAVES; k++) {
				struct mat x = mat_blank(1, MOST);
				odd_leaves(x.p, 50, 2);
				struct mat half = stored(x, type);
				d->k->round(d, x, half, DT_F32, 1);
				fp32[k] = (struct grid_part){
					.leaf = (float *)x.p + off + 16 * k};
				narrow[k] = (struct grid_part){
					.leaf = (uint16_t *)half.p + off + 16 * k};
			}
			for (int i = 0; i < 2; i++)
				d->k->grid_sum(d,
					&(struct grid_sum){.sum = sum[i],
						.rounded = to[i],
						.parts = i ? narrow : fp32,
						.n_parts = LEAVES,
						.leaf_type = i ? type : DT_F32,
						.n = N,
						.levels = 2},
					grid[i]);
			same_words(sum[1], sum[0], N);
			check_bits("of narrow leaves", to[1], to[0], N);
			same_grid(grid[1], grid[0]);
			assert_true(grid[0]->not_finite > 0);
			assert_int_equal(memory_end(NULL), 0);
		}
}

/* Addresses that are not those of whole vectors. */
DEVICE_TEST(unaligned)
{
	enum { N = 1001 };
	for (int off = 1; off < 4; off++) {
		const struct grid_part some[] = {{.leaf = random_leaf(N + off) + off},
			{.sum = random_sum(N + off) + off}, {.leaf = random_leaf(N)}};
		check_call(d, some, ARRAY_LEN(some), N, 50, 2, false);
		int64_t *sum = words(N + off);
		float *to = floats(N + off);
		struct grid_sum s = {.sum = sum + off,
			.rounded = to + off,
			.parts = some + 2,
			.n_parts = 1,
			.n = N,
			.levels = 2};
		d->k->grid_sum(d, &s, grid_of(50));
		for (int64_t i = 0; i < N; i++) {
			struct grid g = {.exponent = 50};
			int64_t want = ref_leaf(element(&some[2], i), 50, 2, &g);
			assert_true(s.sum[i] == want);
			assert_true(s.rounded[i] == ref_round(want, 50));
		}
		assert_true(sum[0] == 0);
	}
}

DEVICE_TEST(counted)
{
	for (int i = 0; i < 4; i++) {
		const struct grid g = {
			.beyond = i & 1 ? 3 : 0, .not_finite = i & 2 ? 5 : 0};
		const struct exact zero = {{0}};
		struct exact *x = there(&zero, sizeof(zero));
		d->k->grid_count(d, x, there(&g, sizeof(g)));
		double sum = exact_round(x);
		assert_true(i & 2 ? isnan(sum) : i ? sum == -(double)INFINITY : sum == 0);
	}
}

int main(void)
{
	return run_on_device();
}
