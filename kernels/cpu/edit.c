/* Local SGD: weighted sums over workers, and sparsification. */
#include "kernels/cpu/cpu.h"

enum { BLOCK = 256 };
enum term { VOTE, TERM, SHARE };

struct combining {
	const struct combine *c;
	const float *const *x;
	int64_t first; /* index of the block's first element */
	int n;
	float sign[BLOCK]; /* the elected sign of each element */
};

static float sign_of(float x)
{
	return (float)((x > 0) - (x < 0));
}

/* Sets out[] to a worker's vote, term or share (the term's weight) for a block of elements. */
static void fill_leaves(const struct combining *b, enum term kind, int worker, float *out)
{
	float w = b->c->weight[worker];
	const float *x = b->x[worker] + b->first;
	enum sign_vote vote = b->c->vote;
	for (int i = 0; i < b->n; i++) {
		float weighted = w != 0 ? w * x[i] : 0;
		bool is_counted = w != 0 && (vote == SIGN_VOTE_NONE ||
						    sign_of(weighted) == b->sign[i]);
		out[i] = kind == VOTE	? (vote == SIGN_VOTE_COUNT ? sign_of(weighted)
								   : weighted)
			 : kind == TERM ? (is_counted ? weighted : 0)
					: (is_counted ? w : 0);
	}
}

/* Sets out[] to the sums of the leaves of workers [first, first + n), by the canonical tree. */
static void sum_tree(
	const struct combining *b, enum term kind, int first, int n, float *out)
{
	float right[BLOCK];
	int half = 1;
	if (n == 1) {
		fill_leaves(b, kind, first, out);
		return;
	}
	while (2 * half < n)
		half *= 2;
	sum_tree(b, kind, first, half, out);
	sum_tree(b, kind, first + half, n - half, right);
	for (int i = 0; i < b->n; i++)
		out[i] += right[i];
}

/* Sets a block of `out`: elects the signs, sums the terms, divides by shares if c->normalize. */
static void combine_block(struct combining *b, float *out)
{
	const float tiny = 1e-8f;
	const struct combine *c = b->c;
	float share[BLOCK];
	if (c->vote != SIGN_VOTE_NONE) {
		sum_tree(b, VOTE, 0, c->workers, b->sign);
		for (int i = 0; i < b->n; i++)
			b->sign[i] = b->sign[i] >= 0 ? 1.0f : -1.0f;
	}
	sum_tree(b, TERM, 0, c->workers, out + b->first);
	if (!c->normalize)
		return;
	sum_tree(b, SHARE, 0, c->workers, share);
	for (int i = 0; i < b->n; i++)
		out[b->first + i] /= fabsf(share[i]) < tiny ? 1 : share[i];
}

/* Sets out to the weighted sum of the workers' vectors, with a sign vote and normalizing if set. */
void K(combine)(struct device *d, float *out, const float *const *x, int64_t n,
	const struct combine *c)
{
#pragma omp parallel for if (n > PARALLEL_FROM)
	for (int64_t i = 0; i < n; i += BLOCK) {
		struct combining b = {
			.c = c, .x = x, .first = i, .n = (int)min64(BLOCK, n - i)};
		combine_block(&b, out);
	}
}

/* Returns the k-th largest size_bits(), by a radix search from the highest bit. */
static int32_t kth_largest(const float *x, int64_t n, int64_t k)
{
	int32_t found = 0;
	for (int bit = 30; bit >= 0; bit--) {
		int32_t probe = found | 1 << bit;
		int64_t count = 0;
		for (int64_t i = 0; i < n; i++)
			count += size_bits(x[i]) >= probe;
		found = count >= k ? probe : found;
	}
	return found;
}

/* Zeroes all but the k largest |x| of each row; of equal ones, keeps the first. */
void K(keep_largest)(struct device *d, struct mat x, int64_t k)
{
#pragma omp parallel for if (mat_size(x) > PARALLEL_FROM)
	for (int64_t r = 0; r < x.rows; r++) {
		float *row = mat_row(x, r);
		if (k >= x.cols)
			continue;
		int32_t kth = kth_largest(row, x.cols, k);
		int64_t equal = k; /* the number of elements of the k-th size to keep */
		for (int64_t i = 0; i < x.cols; i++)
			equal -= size_bits(row[i]) > kth;
		for (int64_t i = 0; i < x.cols; i++) {
			int32_t size = size_bits(row[i]);
			if (size < kth || (size == kth && equal-- <= 0))
				row[i] = 0;
		}
	}
}

enum { DIGITS = 256 };

/* Counts 8 bits of |x| from `shift` on, for each x with the higher bits of `found`. */
static void count_digits(
	int64_t *counts, const float *x, int64_t n, uint32_t found, int shift)
{
	for (int64_t i = 0; i < n; i++) {
		uint32_t size = (uint32_t)size_bits(x[i]);
		counts[size >> shift & (DIGITS - 1)] += (size ^ found) >> shift < DIGITS;
	}
}

/* Adds to counts[] a histogram of 8 bits of |x|, for elements with the higher bits of `found`. */
void K(count_sizes)(
	struct device *d, int64_t *counts, struct mat x, uint32_t found, int shift)
{
	enum { PARTS = 16 };
	int64_t part[PARTS][DIGITS] = {{0}}, n = mat_size(x);
	const float *v = x.p;
#pragma omp parallel for if (n > PARALLEL_FROM)
	for (int i = 0; i < PARTS; i++)
		count_digits(part[i], v + n * i / PARTS,
			n * (i + 1) / PARTS - n * i / PARTS, found, shift);
	for (int i = 0; i < PARTS; i++)
		for (int j = 0; j < DIGITS; j++)
			counts[j] += part[i][j];
}

void K(keep_sizes)(struct device *d, struct mat x, uint32_t least)
{
	int64_t n = mat_size(x);
	float *v = x.p;
#pragma omp parallel for simd if (n > PARALLEL_FROM)
	for (int64_t i = 0; i < n; i++)
		v[i] = (uint32_t)size_bits(v[i]) >= least ? v[i] : 0;
}

/* Keeps each element with probability `density`, times `scale`; zeroes the other elements. */
void K(keep_random)(struct device *d, struct mat x, const struct keep *o)
{
	const struct keep keep = *o;
	int64_t n = mat_size(x), step = row_step(keep.rng.row_step, x);
	float *v = x.p;
#pragma omp parallel for if (n > PARALLEL_FROM)
	for (int64_t i = 0; i < n; i++) {
		uint64_t at = (uint64_t)(keep.rng.first + i / x.cols * step + i % x.cols);
		struct philox_block b = philox(
			keep.rng.key, (uint32_t)at, (uint32_t)(at >> 32), keep.worker, 0);
		float u = (float)(b.x[0] >> 8) * 0x1p-24f;
		v[i] = u < keep.density ? v[i] * keep.scale : 0;
	}
}
