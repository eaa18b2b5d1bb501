/* Softmax cross-entropy over slices of the vocabulary. */
#include "kernels/cpu/pieces.h"

/* lane[l] += the sum of exp(x[i] - max) over i % 16 = l */
static void sum_exp_piece(float lane[16], const float *x, int64_t n, float max)
{
	int64_t i = 0;
	for (; i + 16 <= n; i += 16)
		for (int l = 0; l < 16; l++)
			lane[l] += exp_f(x[i + l] - max);
	for (int l = 0; i + l < n; l++)
		lane[l] += exp_f(x[i + l] - max);
}

/* Sum of exp(x - max) over n numbers: in fp32 within blocks, in fp64 over blocks. */
static float sum_exp(struct mat x, int64_t first, int64_t n, float max)
{
	enum { BLOCK = 1024 };
	float room[PIECE];
	double total = 0;
	for (int64_t b = 0; b < n; b += BLOCK) {
		float lane[16] = {0};
		for (int64_t c = b; c < min64(b + BLOCK, n); c += PIECE) {
			int64_t m = min64(PIECE, n - c);
			sum_exp_piece(lane, piece_load(x, first + c, m, room), m, max);
		}
		total += (double)v16_sum(v16_load(lane));
	}
	return (float)total;
}

/* As max_of(). */
static float max_logit(struct mat x, int64_t first, int64_t n)
{
	float room[PIECE], max = -INFINITY;
	if (x.type == DT_F32)
		return max_of((const float *)x.p + first, n);
	for (int64_t c = 0; c < n; c += PIECE) {
		int64_t m = min64(PIECE, n - c);
		float top = max_of(piece_load(x, first + c, m, room), m);
		max = max > top ? max : top;
	}
	return max;
}

void K(xent_stats)(struct device *d, float *max, float *sum, float *target,
	struct mat logits, const int32_t *targets, int64_t first, int64_t vocab)
{
	int64_t real = max64(0, min64(logits.cols, vocab - first));
#pragma omp parallel for if (mat_size(logits) > PARALLEL_FROM)
	for (int64_t i = 0; i < logits.rows; i++) {
		int64_t t = targets[i] - first, row = i * logits.cols;
		float room[PIECE];
		bool here = t >= 0 && t < real;
		if (targets[i] < 0) {
			max[i] = 0, sum[i] = 1, target[i] = INFINITY;
			continue;
		}
		max[i] = max_logit(logits, row, real);
		sum[i] = real ? sum_exp(logits, row, real, max[i]) : 0;
		target[i] = here ? *piece_load(logits, row + t, 1, room) : -INFINITY;
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
		loss[i] = hit > top ? 0 : lse[i] - hit; /* no weight: infinity */
	}
}

void K(xent_bwd)(struct device *d, struct mat logits, const float *lse,
	const int32_t *targets, int64_t first, int64_t vocab, const float *scale_at)
{
	float scale = *scale_at;
	int64_t real = max64(0, min64(logits.cols, vocab - first));
#pragma omp parallel for if (mat_size(logits) > PARALLEL_FROM)
	for (int64_t i = 0; i < logits.rows; i++) {
		int64_t t = targets[i] - first, row = i * logits.cols;
		int64_t some =
			targets[i] < 0 ? 0 : real; /* of which the gradient is not 0 */
		float room[PIECE];
		for (int64_t c = 0; c < some; c += PIECE) {
			int64_t n = min64(PIECE, some - c);
			float *x = piece_load(logits, row + c, n, room);
			for (int64_t j = 0; j < n; j++)
				x[j] = scale * exp_f(x[j] - lse[i]);
			if (t >= c && t < c + n)
				x[t - c] -= scale;
			piece_store(logits, row + c, n, x);
		}
		memset(address(logits, row + some), 0,
			(size_t)((logits.cols - some) * dtype_bytes(logits.type)));
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
