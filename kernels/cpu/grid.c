/* Exact sums of gradients on a grid: grid.h. Sums are unsigned here, since they may wrap. */
#include "kernels/cpu/pieces.h"
#include "kernels/grid.h"

/* Adding it rounds a double of at most 2^51 to an integer, ties to even, in the low bits. */
static const double magic = 0x1.8p52;

static inline uint64_t bits_of_double(double x)
{
	uint64_t u;
	memcpy(&u, &x, sizeof(u));
	return u;
}

static inline double double_of(uint64_t u)
{
	double x;
	memcpy(&x, &u, sizeof(x));
	return x;
}

static inline double power_of_2(int64_t n)
{
	return double_of((uint64_t)(n + 1023) << 52);
}

/* Rounds a double of at most 2^51 to an integer, ties to even. */
static inline uint64_t to_integer(double x)
{
	return bits_of_double(x + magic) - bits_of_double(magic);
}

/* Adds a leaf with elements below 2^51 units. */
static void add_small_leaf(uint64_t *to, const float *x, int64_t n, float scale)
{
	for (int64_t i = 0; i < n; i++)
		to[i] += to_integer((double)(x[i] * scale));
}

/* Adds a leaf with elements of up to 2^62 units: a multiple of 2^32 and the remainder, which a
 * double holds exactly, since a float has 24 bits. */
static void add_large_leaf(uint64_t *to, const float *x, int64_t n, float scale)
{
	for (int64_t i = 0; i < n; i++) {
		double units = (double)(x[i] * scale), upper = units * 0x1p-32;
		double rest = units - ((upper + magic) - magic) * 0x1p32;
		to[i] += (to_integer(upper) << 32) + to_integer(rest);
	}
}

/* Copies a leaf with its bad elements, which are rare, as zeros, and counts them. */
static void copy_good_elements(float *to, const float *x, int64_t n, float scale,
	float max_units, struct grid *grid)
{
	uint64_t beyond = 0, not_finite = 0;
	for (int64_t i = 0; i < n; i++) {
		bool good = fabsf(x[i] * scale) <= max_units;
		to[i] = good ? x[i] : 0;
		not_finite += !isfinite(x[i]);
		beyond += !good && isfinite(x[i]);
	}
#pragma omp atomic
	grid->beyond += beyond;
#pragma omp atomic
	grid->not_finite += not_finite;
}

/* Returns elements [at, at + n) of a leaf. */
static const float *leaf_piece(const struct grid_sum *s, const struct grid_part *p,
	int64_t at, int64_t n, float buf[PIECE])
{
	struct mat leaf = mat_typed((void *)p->leaf, 1, s->n, s->leaf_type);
	return piece_load(leaf, at, n, buf);
}

/* Adds a leaf of any size, with its bad elements as zeros. */
static void add_leaf(uint64_t *to, const float *x, int64_t n, float scale, int levels,
	struct grid *grid)
{
	float buf[PIECE], largest = float_of((uint32_t)max_size_bits(x, n)) * scale;
	float max_units = (float)power_of_2(62 - levels);
	bool small = largest < 0x1p51f;
	if (!(largest <= max_units)) {
		copy_good_elements(buf, x, n, scale, max_units, grid);
		x = buf;
	}
	if (small)
		add_small_leaf(to, x, n, scale);
	else
		add_large_leaf(to, x, n, scale);
}

/* Adds n sums, which may wrap. */
static void add_sum(uint64_t *to, const int64_t *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		to[i] += (uint64_t)x[i];
}

/* Returns the nearest double: the upper 32 bits, exactly, plus the lower 32 bits. */
static inline double to_double(uint64_t u)
{
	double upper = double_of(u >> 32 ^ 0x4530000080000000u); /* + 2^84 + 2^63 */
	double lower = double_of((u & 0xffffffffu) | 0x4330000000000000u); /* + 2^52 */
	return (upper - 0x1.00000801p84) + lower;
}

/* Converts sums in multiples of unit to fp32. */
static void round_sums(float *to, const uint64_t *x, int64_t n, double unit)
{
	for (int64_t i = 0; i < n; i++)
		to[i] = (float)(to_double(x[i]) * unit);
}

/* Returns the sums of elements [at, at + n), in `buf` unless they are kept. */
static const uint64_t *sum_piece(const struct grid_sum *s, int64_t at, int64_t n,
	float scale, struct grid *grid, uint64_t buf[PIECE])
{
	uint64_t *to = s->sum ? (uint64_t *)s->sum + at : buf;
	if (!s->sum && s->n_parts == 1 && s->parts->sum) /* only rounded */
		return (const uint64_t *)s->parts->sum + at;
	if (!s->add)
		memset(to, 0, (size_t)n * sizeof(*to));
	for (int i = 0; i < s->n_parts; i++) {
		const struct grid_part *p = &s->parts[i];
		float wide[PIECE];
		if (p->leaf)
			add_leaf(to, leaf_piece(s, p, at, n, wide), n, scale, s->levels,
				grid);
		else
			add_sum(to, p->sum + at, n);
	}
	return to;
}

/* Sets acc to (first ? 0 : acc) + two leaves, rounded to integers of units. */
static void add_two_leaves(
	double *acc, bool first, const float *x, const float *y, int64_t n, float scale)
{
	for (int64_t i = 0; i < n; i++) {
		double a = ((double)(x[i] * scale) + magic) - magic;
		double b = ((double)(y[i] * scale) + magic) - magic;
		acc[i] = (first ? 0 : acc[i]) + (a + b);
	}
}

/* Computes only `rounded`, from a few leaves of the usual sizes: doubles hold their sums exactly,
 * which takes a third of the time. Returns false, with nothing done, if that is not possible. */
static bool round_leaves(
	const struct grid_sum *s, int64_t at, int64_t n, float scale, double unit)
{
	static const float zeros[PIECE];
	double acc[PIECE];
	if (s->sum || s->n_parts < 2 || s->leaf_type != DT_F32)
		return false;
	for (int i = 0; i < s->n_parts; i++) {
		const float *x = s->parts[i].leaf;
		float max_units = x ? float_of((uint32_t)max_size_bits(x + at, n)) * scale
				    : INFINITY;
		if (!(max_units * (float)s->n_parts < 0x1p51f &&
			    max_units <= (float)power_of_2(62 - s->levels)))
			return false;
	}
	for (int i = 0; i < s->n_parts; i += 2) {
		const float *x = s->parts[i].leaf;
		const float *y = i + 1 < s->n_parts ? s->parts[i + 1].leaf : NULL;
		add_two_leaves(acc, !i, x + at, y ? y + at : zeros, n, scale);
	}
	for (int64_t i = 0; i < n; i++)
		s->rounded[at + i] = (float)(acc[i] * unit);
	return true;
}

/* Sets (or with s->add increases) the sums, and the rounded sums if wanted; counts bad elements. */
void K(grid_sum)(struct device *d, const struct grid_sum *s, struct grid *grid)
{
	const float scale = (float)power_of_2(grid->exponent);
	const double unit = power_of_2(-grid->exponent);
	BUG_ON(!s->sum && (s->add || s->n_parts > GRID_PARTS));
	BUG_ON(s->levels < 0 || s->levels > 62);
	BUG_ON(grid->exponent < GRID_MIN_EXPONENT || grid->exponent > GRID_MAX_EXPONENT);
#pragma omp parallel for if (s->n > PARALLEL_FROM)
	for (int64_t at = 0; at < s->n; at += PIECE) {
		uint64_t buf[PIECE];
		int64_t n = min64(PIECE, s->n - at);
		if (round_leaves(s, at, n, scale, unit))
			continue;
		const uint64_t *sum = sum_piece(s, at, n, scale, grid, buf);
		if (s->rounded)
			round_sums(s->rounded + at, sum, n, unit);
	}
}

/* Adds the counts of bad elements to a sum of squares, as -infinities and NaNs. */
void K(grid_count)(struct device *d, struct exact *x, const struct grid *grid)
{
	x->n_neg_inf += (int64_t)grid->beyond;
	x->n_nan += (int64_t)grid->not_finite;
}
