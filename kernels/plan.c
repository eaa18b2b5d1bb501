/*
 * The planning device: kernels that touch nothing and count the FLOPs of the matrix
 * products. A step that runs on it, with arenas that only measure, tells the memory and
 * the work of the very code that trains.
 */
#include "kernels/kernels.h"

#define PLAN_PROTOTYPE(name) static kern_##name plan_##name;
KERNELS(PLAN_PROTOTYPE)

#define NOTHING(name, ...)                   \
	static void plan_##name(__VA_ARGS__) \
	{                                    \
	}

/* The kernels without products; parameters are unnamed in the definitions below. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wunused-parameter"
typedef struct device dev;
NOTHING(embed_fwd, dev *d, struct mat y, struct mat w, const int32_t *i, int64_t f,
	bool a)
NOTHING(embed_bwd, dev *d, struct mat dw, struct mat dy, const int32_t *i, int64_t f)
NOTHING(bias_fwd, dev *d, struct mat y, struct mat bias)
NOTHING(bias_bwd, dev *d, struct mat db, struct mat dy)
NOTHING(norm_fwd, dev *d, enum norm_kind kind, struct mat y, struct mat stats,
	struct mat x, struct mat gamma, struct mat beta, float eps)
NOTHING(norm_bwd_x, dev *d, enum norm_kind kind, struct mat dx, struct mat dy,
	struct mat x, struct mat stats, struct mat gamma)
NOTHING(norm_bwd_w, dev *d, enum norm_kind kind, struct mat dg, struct mat db,
	struct mat dy, struct mat x, struct mat stats, int64_t first, int64_t rows)
NOTHING(norm_bwd, dev *d, enum norm_kind kind, struct mat dx, struct mat dg,
	struct mat db, struct mat dy, struct mat x, struct mat stats, struct mat gamma,
	int64_t first, int64_t rows)
NOTHING(rope, dev *d, struct mat x, int64_t dim, struct mat rope, const int32_t *pos,
	float sign)
NOTHING(act_fwd, dev *d, enum act_kind kind, struct mat y, struct mat a, struct mat b)
NOTHING(act_bwd, dev *d, enum act_kind kind, struct mat da, struct mat db, struct mat dy,
	struct mat a, struct mat b)
NOTHING(add, dev *d, struct mat y, struct mat a, struct mat b)
NOTHING(sub, dev *d, struct mat y, struct mat a, struct mat b)
NOTHING(dropout, dev *d, struct mat y, struct mat x, const struct dropout *o)
NOTHING(residual, dev *d, struct mat y, struct mat x, struct mat sum, struct mat bias,
	const struct dropout *o)
NOTHING(residual_norm, dev *d, struct mat y, struct mat x, struct mat sum,
	struct mat bias, const struct dropout *o, const struct norm *n)
NOTHING(round, dev *d, struct mat y, struct mat x, enum dtype type, float scale)
NOTHING(round_scaled, dev *d, struct mat y, float *inverse, struct mat x, enum dtype type,
	const float *amax)
NOTHING(amax, dev *d, float *most, struct mat x)
NOTHING(narrow, dev *d, uint16_t *y, struct mat x, enum dtype type)
NOTHING(widen, dev *d, struct mat y, const uint16_t *x, enum dtype type)
NOTHING(xent_stats, dev *d, float *max, float *sum, float *target, struct mat logits,
	const int32_t *targets, int64_t first, int64_t vocab)
NOTHING(xent_join, dev *d, float *lse, float *loss, const float *max, const float *sum,
	const float *target, int64_t n_slices, int64_t rows)
NOTHING(xent_bwd, dev *d, struct mat logits, const float *lse, const int32_t *targets,
	int64_t first, int64_t vocab, const float *scale)
NOTHING(xent_fused, dev *d, float *loss, struct mat logits, const int32_t *targets,
	int64_t vocab, const float *scale)
NOTHING(adamw, dev *d, const struct adamw_part *x, int n, const struct adamw *a)
NOTHING(step_end, dev *d, struct step_end *to, const struct exact *loss,
	const struct exact *squares, const struct step_terms *terms)
NOTHING(pseudo_grad, dev *d, float *p, const float *anchor, int64_t n)
NOTHING(mix, dev *d, float *p, const float *a, int64_t n, float keep)
NOTHING(outer_sgd, dev *d, float *a, float *m, const float *g, int64_t n,
	const struct outer_sgd *o)
NOTHING(combine, dev *d, float *out, const float *const *x, int64_t n,
	const struct combine *c)
NOTHING(keep_largest, dev *d, struct mat x, int64_t k)
NOTHING(keep_random, dev *d, struct mat x, const struct keep *o)
NOTHING(round_random, dev *d, struct mat x, const struct chance *o)
NOTHING(quantise, dev *d, struct mat x, int8_t *codes, float *scales,
	const struct chance *o)
NOTHING(dequantise, dev *d, struct mat x, const int8_t *codes, const float *scales)
NOTHING(pick, dev *d, float *values, void *places, bool wide, struct mat x, int64_t k)
NOTHING(strew, dev *d, struct mat x, const float *values, const void *places, bool wide,
	int64_t k)
NOTHING(row_sumsq, dev *d, double *out, struct mat x)
NOTHING(exact_sum, dev *d, struct exact *x, const float *v, int64_t n)
NOTHING(exact_sumsq, dev *d, struct exact *x, const struct mat *m, int n)
NOTHING(normal, dev *d, struct mat x, const struct normal *o)
NOTHING(zero, dev *d, struct mat x)
NOTHING(hash, dev *d, uint64_t *sum, struct mat x, uint64_t key, int64_t first,
	int64_t stride)
NOTHING(copy, dev *d, struct mat to, struct mat from)
NOTHING(put, dev *d, void *to, const void *from, size_t n_bytes)
NOTHING(get, dev *d, void *to, const void *from, size_t n_bytes)
NOTHING(get_begin, dev *d, void *to, const void *from, size_t n_bytes)
NOTHING(get_end, dev *d)
NOTHING(free, dev *d, void *p, size_t n_bytes)
NOTHING(wait, dev *d)
NOTHING(attn_row, dev *d, struct mat o, struct mat q, struct mat k, struct mat v,
	int64_t heads, int64_t kv_heads, int64_t dim, int64_t first, float scale)

/* An address that is never touched, as an arena's that only measures. */
static void *plan_alloc(dev *d, size_t n_bytes)
{
	static char nothing[64];
	return nothing;
}

static int64_t plan_find_bad(dev *d, struct mat x)
{
	return -1;
}

static void plan_linear_fwd(
	dev *d, struct mat y, struct mat x, struct mat w, struct mat b)
{
	BUG_ON(y.rows != x.rows || y.cols != w.rows || x.cols != w.cols);
	d->flops += 2.0 * (double)mat_size(x) * (double)w.rows;
}

static void plan_linear_bwd_x(
	dev *d, struct mat dx, struct mat dy, struct mat w, bool add)
{
	BUG_ON(dx.rows != dy.rows || dx.cols != w.cols || dy.cols != w.rows);
	d->flops += 2.0 * (double)mat_size(dx) * (double)w.rows;
}

static void plan_linear_bwd_w(
	dev *d, struct mat dw, struct mat dy, struct mat x, bool add)
{
	BUG_ON(dw.rows != dy.cols || dw.cols != x.cols || dy.rows != x.rows);
	d->flops += 2.0 * (double)mat_size(x) * (double)dw.rows;
}

static void plan_linear_gelu_fwd(
	dev *d, struct mat y, struct mat a, struct mat x, struct mat w, struct mat b)
{
	plan_linear_fwd(d, a, x, w, b);
}

static void plan_linear_gelu_bwd(
	dev *d, struct mat da, struct mat dy, struct mat w, struct mat a)
{
	plan_linear_bwd_x(d, da, dy, w, false);
}

static void plan_linear_row(
	dev *d, struct mat y, struct mat x, struct mat w, struct mat b)
{
	plan_linear_fwd(d, y, x, w, b);
}
#pragma GCC diagnostic pop

/* Scores that a causal mask leaves, between two chunks: of two runs each, which may touch,
 * or of one, where the length is odd. */
static double visible(const struct attn *a)
{
	double n = 0;
	int runs = a->q_rows % 2 ? 1 : 2;
	for (int i = 0; i < runs; i++) {
		for (int j = 0; j < runs; j++) {
			double len = (double)a->q_rows / runs;
			if (a->q_first[i] == a->k_first[j])
				n += len * (len + 1) / 2;
			else if (a->q_first[i] > a->k_first[j])
				n += len * len;
		}
	}
	return n * (double)(a->batch * a->heads);
}

static void plan_attn_fwd(struct device *d, const struct attn *a, struct mat o,
	float *max, float *sum, struct mat q, struct mat k, struct mat v, bool begin,
	bool end)
{
	(void)o, (void)max, (void)sum, (void)q, (void)k, (void)v, (void)begin, (void)end;
	d->flops += 4.0 * visible(a) * (double)a->dim; /* q k^T and p v */
}

static void plan_attn_bwd(struct device *d, const struct attn *a, struct mat dq,
	struct mat dk, struct mat dv, float *delta, struct mat dout, struct mat o,
	const float *lse, struct mat q, struct mat k, struct mat v, bool begin)
{
	(void)dq, (void)dk, (void)dv, (void)delta, (void)dout, (void)o, (void)lse;
	(void)q, (void)k, (void)v, (void)begin;
	d->flops += 10.0 * visible(a) * (double)a->dim; /* q k^T again, dv, dp, dq, dk */
}

void device_plan(struct device *d, enum device_kind kind)
{
#define KERNEL_ENTRY(name) .name = plan_##name,
	static const struct kernels plan = {.name = "plan", KERNELS(KERNEL_ENTRY)};
	device_init(d, &plan, kind);
}
