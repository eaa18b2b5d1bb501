/* Softmax cross-entropy over slices of the vocabulary. */
#include "kernels/cpu/cpu.h"

/* Sum of exp(x - max): in fp32 within blocks, in fp64 over blocks. */
static float sum_exp(const float *x, int64_t n, float max)
{
	enum { BLOCK = 1024 };
	double total = 0;
	for (int64_t b = 0; b < n; b += BLOCK) {
		int64_t len = min64(BLOCK, n - b);
		float lane[16] = {0};
		int64_t i = 0;
		for (; i + 16 <= len; i += 16)
			for (int l = 0; l < 16; l++)
				lane[l] += exp_f(x[b + i + l] - max);
		for (int l = 0; i + l < len; l++)
			lane[l] += exp_f(x[b + i + l] - max);
		total += (double)v16_sum(v16_load(lane));
	}
	return (float)total;
}

void K(xent_stats)(struct device *d, float *max, float *sum, float *target,
	struct mat logits, const int32_t *targets, int64_t first, int64_t vocab)
{
	int64_t real = max64(0, min64(logits.cols, vocab - first));
#pragma omp parallel for if (mat_size(logits) > PARALLEL_FROM)
	for (int64_t i = 0; i < logits.rows; i++) {
		const float *x = mat_row(logits, i);
		int64_t t = targets[i] - first;
		max[i] = max_of(x, real);
		sum[i] = real ? sum_exp(x, real, max[i]) : 0;
		target[i] = t >= 0 && t < real ? x[t] : -INFINITY;
	}
}

/* The canonical tree over slices: pairs of neighbours; a node without one passes up. */
static float join_tree(const float *max, const float *sum, int64_t rows, int64_t begin,
	int64_t end, int64_t n_slices, float top)
{
	if (end - begin == 1)
		return sum[begin * rows] * exp_f(max[begin * rows] - top);
	int64_t middle = begin + (end - begin) / 2;
	float left = join_tree(max, sum, rows, begin, middle, n_slices, top);
	if (middle >= n_slices)
		return left;
	return left + join_tree(max, sum, rows, middle, end, n_slices, top);
}

void K(xent_join)(struct device *d, float *lse, float *loss, const float *max,
	const float *sum, const float *target, int64_t n_slices, int64_t rows)
{
	int64_t wide = 1;
	while (wide < n_slices)
		wide *= 2;
	for (int64_t i = 0; i < rows; i++) {
		float top = -INFINITY, hit = -INFINITY;
		for (int64_t s = 0; s < n_slices; s++) {
			float m = max[s * rows + i], t = target[s * rows + i];
			top = top > m ? top : m;
			hit = hit > t ? hit : t;
		}
		float total = join_tree(max + i, sum + i, rows, 0, wide, n_slices, top);
		lse[i] = top + logf(total);
		loss[i] = lse[i] - hit;
	}
}

void K(xent_bwd)(struct device *d, struct mat logits, const float *lse,
	const int32_t *targets, int64_t first, int64_t vocab, const float *scale_at)
{
	float scale = *scale_at;
	int64_t real = max64(0, min64(logits.cols, vocab - first));
#pragma omp parallel for if (mat_size(logits) > PARALLEL_FROM)
	for (int64_t i = 0; i < logits.rows; i++) {
		float *x = mat_row(logits, i);
		int64_t t = targets[i] - first;
		for (int64_t j = 0; j < real; j++)
			x[j] = scale * exp_f(x[j] - lse[i]);
		for (int64_t j = real; j < logits.cols; j++)
			x[j] = 0;
		if (t >= 0 && t < real)
			x[t] -= scale;
	}
}

/* Row by row, so that a row stays in the cache. */
void K(xent_fused)(struct device *d, float *loss, struct mat logits,
	const int32_t *targets, int64_t vocab, const float *scale)
{
#pragma omp parallel for if (mat_size(logits) > PARALLEL_FROM)
	for (int64_t i = 0; i < logits.rows; i++) {
		float max = 0, sum = 0, target = 0, lse = 0;
		struct mat row = mat_rows(logits, i, 1);
		K(xent_stats)(d, &max, &sum, &target, row, targets + i, 0, vocab);
		K(xent_join)(d, &lse, loss + i, &max, &sum, &target, 1, 1);
		K(xent_bwd)(d, row, &lse, targets + i, 0, vocab, scale);
	}
}
