/* Softmax cross-entropy over slices of the vocabulary. */
#include "kernels/cpu/pieces.h"

/* Adds the sum of exp(x[i] - max) over all i with i % 16 = l to lane[l]. */
static void sum_exp_piece(float lane[16], const float *x, int64_t n, float max)
{
	int64_t i = 0;
	for (; i + 16 <= n; i += 16)
		for (int l = 0; l < 16; l++)
			lane[l] += exp_f(x[i + l] - max);
	for (int l = 0; i + l < n; l++)
		lane[l] += exp_f(x[i + l] - max);
}

/* Returns the sum of exp(x - max) over n elements: in fp32 within blocks, in fp64 over blocks. */
static float sum_exp(struct mat x, int64_t first, int64_t n, float max)
{
	enum { BLOCK = 1024 };
	float buf[PIECE];
	double total = 0;
	for (int64_t b = 0; b < n; b += BLOCK) {
		float lane[16] = {0};
		for (int64_t c = b; c < min64(b + BLOCK, n); c += PIECE) {
			int64_t m = min64(PIECE, n - c);
			sum_exp_piece(lane, piece_load(x, first + c, m, buf), m, max);
		}
		total += (double)v16_sum(v16_load(lane));
	}
	return (float)total;
}

/* Returns the maximum of n elements of a matrix of any type, as max_of() does. */
static float max_logit(struct mat x, int64_t first, int64_t n)
{
	float buf[PIECE], max = -INFINITY;
	if (x.type == DT_F32)
		return max_of((const float *)x.p + first, n);
	for (int64_t c = 0; c < n; c += PIECE) {
		int64_t m = min64(PIECE, n - c);
		float top = max_of(piece_load(x, first + c, m, buf), m);
		max = max > top ? max : top;
	}
	return max;
}

/* Returns the sum of n elements: in fp32 within pieces, in fp64 over pieces. */
static float sum_logits(struct mat x, int64_t first, int64_t n)
{
	float buf[PIECE];
	double total = 0;
	for (int64_t c = 0; c < n; c += PIECE) {
		int64_t m = min64(PIECE, n - c);
		total += (double)sum_of(piece_load(x, first + c, m, buf), m);
	}
	return (float)total;
}

/* Returns a slice's addend of (1 - e) x[t] + e (mean of x); target_logit is x[t], or -infinity. */
static float smoothed(float target_logit, float sum, float e, int64_t vocab)
{
	float even = e / (float)vocab * sum;
	return target_logit > -INFINITY ? (1 - e) * target_logit + even : even;
}

/* Sets the max, sum and target of rows for this slice of the vocabulary; targets < 0: no weight. */
void K(xent_stats)(struct device *d, struct xent_stats to, struct mat logits,
	const int32_t *targets, int64_t first, int64_t vocab, struct xent_terms terms)
{
	int64_t n_real = max64(0, min64(logits.cols, vocab - first));
#pragma omp parallel for if (mat_size(logits) > PARALLEL_FROM)
	for (int64_t i = 0; i < logits.rows; i++) {
		int64_t t = targets[i] - first, row = i * logits.cols;
		float buf[PIECE];
		bool in_slice = t >= 0 && t < n_real;
		if (targets[i] < 0) {
			to.max[i] = 0, to.sum[i] = 1, to.target[i] = INFINITY;
			continue;
		}
		to.max[i] = max_logit(logits, row, n_real);
		to.sum[i] = n_real ? sum_exp(logits, row, n_real, to.max[i]) : 0;
		to.target[i] =
			in_slice ? *piece_load(logits, row + t, 1, buf) : -INFINITY;
		if (terms.smoothing > 0)
			to.target[i] = smoothed(to.target[i],
				sum_logits(logits, row, n_real), terms.smoothing, vocab);
	}
}

/* Returns the sum of e^(x - top) over slices by the canonical tree; an unpaired node moves up. */
static float sum_exp_tree(const float *max, const float *sum, int64_t rows, int64_t begin,
	int64_t end, int64_t n_slices, float top)
{
	if (end - begin == 1)
		return sum[begin * rows] * exp_f(max[begin * rows] - top);
	int64_t middle = begin + (end - begin) / 2;
	float left = sum_exp_tree(max, sum, rows, begin, middle, n_slices, top);
	if (middle >= n_slices)
		return left;
	return left + sum_exp_tree(max, sum, rows, middle, end, n_slices, top);
}

/* Returns the sum of the addends of slices [begin, end) by the canonical tree. */
static float sum_tree(
	const float *x, int64_t rows, int64_t begin, int64_t end, int64_t n_slices)
{
	if (end - begin == 1)
		return x[begin * rows];
	int64_t middle = begin + (end - begin) / 2;
	float left = sum_tree(x, rows, begin, middle, n_slices);
	return middle >= n_slices ? left
				  : left + sum_tree(x, rows, middle, end, n_slices);
}

/* Combines the statistics of all slices into the log-sum-exp and the loss of each row. */
void K(xent_join)(struct device *d, float *lse, float *loss, struct xent_stats stats,
	int64_t n_slices, int64_t rows, struct xent_terms terms)
{
	int64_t wide = 1;
	while (wide < n_slices)
		wide *= 2;
	for (int64_t i = 0; i < rows; i++) {
		float top = -INFINITY, target_logit = -INFINITY;
		for (int64_t s = 0; s < n_slices; s++) {
			float m = stats.max[s * rows + i], t = stats.target[s * rows + i];
			top = top > m ? top : m;
			target_logit = target_logit > t ? target_logit : t;
		}
		float total = sum_exp_tree(
			stats.max + i, stats.sum + i, rows, 0, wide, n_slices, top);
		lse[i] = top + logf(total);
		bool weightless = target_logit - top == INFINITY;
		if (terms.smoothing > 0)
			target_logit =
				sum_tree(stats.target + i, rows, 0, wide, n_slices);
		loss[i] = lse[i] - target_logit;
		if (terms.z > 0)
			loss[i] += terms.z * lse[i] * lse[i];
		if (weightless)
			loss[i] = 0;
	}
}

/* Overwrites the logits with their gradient; padding columns and rows without weight become 0. */
void K(xent_bwd)(struct device *d, struct mat logits, const float *lse,
	const int32_t *targets, int64_t first, int64_t vocab, struct xent_terms terms,
	const float *scale_at)
{
	float scale = *scale_at, smoothing = scale * terms.smoothing / (float)vocab;
	float target_share = scale * (1 - terms.smoothing);
	int64_t n_real = max64(0, min64(logits.cols, vocab - first));
#pragma omp parallel for if (mat_size(logits) > PARALLEL_FROM)
	for (int64_t i = 0; i < logits.rows; i++) {
		int64_t t = targets[i] - first, row = i * logits.cols;
		int64_t n_used =
			targets[i] < 0 ? 0 : n_real; /* columns with a gradient */
		float buf[PIECE], factor = scale;
		if (terms.z > 0)
			factor *= 1 + 2 * terms.z * lse[i];
		for (int64_t c = 0; c < n_used; c += PIECE) {
			int64_t n = min64(PIECE, n_used - c);
			float *x = piece_load(logits, row + c, n, buf);
			for (int64_t j = 0; j < n; j++)
				x[j] = factor * exp_f(x[j] - lse[i]) - smoothing;
			if (t >= c && t < c + n)
				x[t - c] -= target_share;
			piece_store(logits, row + c, n, x);
		}
		memset(element_address(logits, row + n_used), 0,
			(size_t)((logits.cols - n_used) * dtype_bytes(logits.type)));
	}
}

/* Sets the loss and overwrites the logits with their gradient, row by row: a row stays in cache. */
void K(xent_fused)(struct device *d, float *loss, struct mat logits,
	const int32_t *targets, int64_t vocab, struct xent_terms terms,
	const float *scale)
{
#pragma omp parallel for if (mat_size(logits) > PARALLEL_FROM)
	for (int64_t i = 0; i < logits.rows; i++) {
		float max = 0, sum = 0, target = 0, lse = 0;
		struct mat row = mat_rows(logits, i, 1);
		const struct xent_stats stats = {&max, &sum, &target};
		K(xent_stats)(d, stats, row, targets + i, 0, vocab, terms);
		K(xent_join)(d, &lse, loss + i, stats, 1, 1, terms);
		K(xent_bwd)(d, row, &lse, targets + i, 0, vocab, terms, scale);
	}
}

void K(linear_xent)(struct device *d, float *loss, struct mat logits, struct mat x,
	struct mat w, const int32_t *targets, int64_t vocab, struct xent_terms terms,
	const float *scale)
{
	const struct mat none = {0};
	K(linear_fwd)(d, logits, x, w, none);
	K(xent_fused)(d, loss, logits, targets, vocab, terms, scale);
}
