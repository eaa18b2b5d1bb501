/*
 * The planning device: kernels that touch nothing and count the FLOPs of the matrix
 * products. A step that runs on it, with arenas that only measure, tells the memory and
 * the work of the very code that trains.
 */
#include "kernels/selftest.h"

#define PLAN_PROTOTYPE(name) static kern_##name plan_##name;
KERNELS(PLAN_PROTOTYPE)

static void note(struct device *d, const struct kernel_call *c)
{
	if (d->impl)
		kernel_note(d->impl, c);
}

void device_plan_notes(struct device *d, struct kernel_calls *calls)
{
	d->impl = calls;
}

/* A kernel without products: its name, its parameters, and what of them is noted. */
#define NOTED(name, parameters, ...)                                        \
	static void plan_##name parameters                                  \
	{                                                                   \
		note(d, &(struct kernel_call){KERNEL_##name, __VA_ARGS__}); \
	}
#define NOTHING(name, ...)                   \
	static void plan_##name(__VA_ARGS__) \
	{                                    \
	}

static float part_dropped(const struct dropout *o)
{
	return o ? o->p : 0;
}

/* Parameters are unnamed in the definitions below. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wunused-parameter"
typedef struct device dev;
/* clang-format off */
NOTED(embed_fwd, (dev *d, struct mat y, struct mat w, const int32_t *i, int64_t f, bool a),
	.m = {y, w}, .n = {a})
NOTED(embed_bwd, (dev *d, struct mat dw, struct mat dy, const int32_t *i, int64_t f),
	.m = {dw, dy})
NOTED(bias_fwd, (dev *d, struct mat y, struct mat bias), .m = {y, bias})
NOTED(bias_bwd, (dev *d, struct mat db, struct mat dy), .m = {db, dy})
NOTED(norm_fwd, (dev *d, enum norm_kind kind, struct mat y, struct mat stats,
	struct mat x, struct mat gamma, struct mat beta, float eps),
	.m = {y, stats, x, gamma, beta}, .n = {kind})
NOTED(norm_bwd_x, (dev *d, enum norm_kind kind, struct mat dx, struct mat dy,
	struct mat x, struct mat stats, struct mat gamma),
	.m = {dx, dy, x, stats, gamma}, .n = {kind})
NOTED(norm_bwd_w, (dev *d, enum norm_kind kind, struct mat dg, struct mat db,
	struct mat dy, struct mat x, struct mat stats, int64_t first, int64_t rows),
	.m = {dg, db, dy, x, stats}, .n = {kind, rows})
NOTED(norm_bwd, (dev *d, enum norm_kind kind, struct mat dx, struct mat dg,
	struct mat db, struct mat dy, struct mat x, struct mat stats, struct mat gamma,
	int64_t first, int64_t rows),
	.m = {dx, dg, db, dy, x, stats, gamma}, .n = {kind, rows})
NOTED(rope, (dev *d, struct mat x, int64_t dim, struct mat rope, const int32_t *pos,
	float sign), .m = {x, rope}, .n = {dim, sign < 0})
NOTED(act_fwd, (dev *d, enum act_kind kind, struct mat y, struct mat a, struct mat b),
	.m = {y, a, b}, .n = {kind})
NOTED(act_bwd, (dev *d, enum act_kind kind, struct mat da, struct mat db, struct mat dy,
	struct mat a, struct mat b), .m = {da, db, dy, a, b}, .n = {kind})
NOTED(add, (dev *d, struct mat y, struct mat a, struct mat b), .m = {y, a, b})
NOTED(sub, (dev *d, struct mat y, struct mat a, struct mat b), .m = {y, a, b})
NOTED(dropout, (dev *d, struct mat y, struct mat x, const struct dropout *o),
	.m = {y, x}, .p = part_dropped(o))
NOTED(residual, (dev *d, struct mat y, struct mat x, struct mat sum, struct mat bias,
	const struct dropout *o), .m = {y, x, sum, bias}, .p = part_dropped(o))
NOTED(residual_norm, (dev *d, struct mat y, struct mat x, struct mat sum,
	struct mat bias, const struct dropout *o, const struct norm *n),
	.m = {y, x, sum, bias, n->h, n->stats, n->gamma, n->beta}, .n = {n->kind},
	.p = part_dropped(o))
NOTED(round, (dev *d, struct mat y, struct mat x, enum dtype type, float scale),
	.m = {y, x}, .n = {type})
NOTED(round_scaled, (dev *d, struct mat y, float *inverse, struct mat x, enum dtype type,
	const float *amax), .m = {y, x}, .n = {type})
NOTED(amax, (dev *d, float *most, struct mat x), .m = {x})
NOTED(narrow, (dev *d, uint16_t *y, struct mat x, enum dtype type), .m = {x}, .n = {type})
NOTED(widen, (dev *d, struct mat y, const uint16_t *x, enum dtype type),
	.m = {y}, .n = {type})
NOTED(xent_stats, (dev *d, float *max, float *sum, float *target, struct mat logits,
	const int32_t *targets, int64_t first, int64_t vocab),
	.m = {logits}, .n = {min64(logits.cols, vocab - first)})
NOTED(xent_join, (dev *d, float *lse, float *loss, const float *max, const float *sum,
	const float *target, int64_t n_slices, int64_t rows), .n = {n_slices, rows})
NOTED(xent_bwd, (dev *d, struct mat logits, const float *lse, const int32_t *targets,
	int64_t first, int64_t vocab, const float *scale),
	.m = {logits}, .n = {min64(logits.cols, vocab - first)})
NOTED(xent_fused, (dev *d, float *loss, struct mat logits, const int32_t *targets,
	int64_t vocab, const float *scale), .m = {logits}, .n = {vocab})
NOTED(normal, (dev *d, struct mat x, const struct normal *o), .m = {x}, .n = {o->most > 0})
NOTED(step_end, (dev *d, struct step_end *to, const struct exact *loss,
	const struct exact *squares, const struct step_terms *terms), .n = {0})
NOTED(pseudo_grad, (dev *d, float *p, const float *anchor, int64_t n), .n = {n})
NOTED(mix, (dev *d, float *p, const float *a, int64_t n, float keep), .n = {n})
NOTED(muon_normalize, (dev *d, struct mat x, const float *slices, const struct sliced *s,
	const struct exact *squares), .m = {x}, .n = {s->rows, s->cols, s->slices})
NOTED(muon_unpack, (dev *d, float *slices, struct mat x, const struct sliced *s),
	.m = {x}, .n = {s->rows, s->cols, s->slices})
NOTED(axpby, (dev *d, struct mat y, float a, struct mat x, float b), .m = {y, x})
NOTED(combine, (dev *d, float *out, const float *const *x, int64_t n,
	const struct combine *c), .n = {n, c->workers, c->consensus, c->normalize})
NOTED(keep_largest, (dev *d, struct mat x, int64_t k), .m = {x}, .n = {k})
NOTED(keep_random, (dev *d, struct mat x, const struct keep *o), .m = {x})
NOTED(round_random, (dev *d, struct mat x, const struct chance *o), .m = {x})
NOTED(quantise, (dev *d, struct mat x, int8_t *codes, float *scales,
	const struct chance *o), .m = {x}, .n = {o != NULL})
NOTED(dequantise, (dev *d, struct mat x, const int8_t *codes, const float *scales),
	.m = {x})
NOTED(pick, (dev *d, float *values, void *places, bool wide, struct mat x, int64_t k),
	.m = {x}, .n = {k, wide})
NOTED(strew, (dev *d, struct mat x, const float *values, const void *places, bool wide,
	int64_t k), .m = {x}, .n = {k, wide})
NOTED(exact_sum, (dev *d, struct exact *x, const float *v, int64_t n), .n = {n})
NOTED(zero, (dev *d, struct mat x), .m = {x})
NOTED(hash, (dev *d, uint64_t *sum, struct mat x, uint64_t key, int64_t first,
	int64_t stride), .m = {x})
NOTED(copy, (dev *d, struct mat to, struct mat from), .m = {to, from})
NOTED(attn_row, (dev *d, struct mat o, struct mat q, struct mat k, struct mat v,
	int64_t heads, int64_t kv_heads, int64_t dim, int64_t first, float scale),
	.m = {o, q, k, v}, .n = {heads, kv_heads, dim})
NOTHING(row_sumsq, dev *d, double *out, struct mat x)
NOTHING(put, dev *d, void *to, const void *from, size_t n_bytes)
NOTHING(get, dev *d, void *to, const void *from, size_t n_bytes)
NOTHING(get_begin, dev *d, void *to, const void *from, size_t n_bytes)
NOTHING(get_end, dev *d)
NOTHING(free, dev *d, void *p, size_t n_bytes)
NOTHING(wait, dev *d)
/* clang-format on */

/* Of many matrices or vectors, each as one alone. */
static void plan_exact_sumsq(dev *d, struct exact *x, const struct mat *m, int n)
{
	for (int i = 0; i < n; i++)
		note(d, &(struct kernel_call){KERNEL_exact_sumsq, .m = {m[i]}});
}

#define PLAN_UPDATE(name)                                                              \
	static void plan_##name(                                                       \
		dev *d, const struct update_part *x, int n, const struct update *o)    \
	{                                                                              \
		for (int i = 0; i < n; i++)                                            \
			note(d, &(struct kernel_call){KERNEL_##name, .m = {x[i].copy}, \
					.n = {x[i].n, x[i].m != NULL}});               \
	}
PLAN_UPDATE(adamw)
PLAN_UPDATE(sgd)
PLAN_UPDATE(muon_momentum)
PLAN_UPDATE(muon_update)

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

/* The FLOPs of y = x w^T, y = x w and y = x^T w. */
static void count_fwd(dev *d, struct mat y, struct mat x, struct mat w)
{
	BUG_ON(y.rows != x.rows || y.cols != w.rows || x.cols != w.cols);
	d->flops += 2.0 * (double)mat_size(x) * (double)w.rows;
}

static void count_bwd_x(dev *d, struct mat dx, struct mat dy, struct mat w)
{
	BUG_ON(dx.rows != dy.rows || dx.cols != w.cols || dy.cols != w.rows);
	d->flops += 2.0 * (double)mat_size(dx) * (double)w.rows;
}

static void plan_linear_fwd(
	dev *d, struct mat y, struct mat x, struct mat w, struct mat b)
{
	count_fwd(d, y, x, w);
	note(d, &(struct kernel_call){KERNEL_linear_fwd, .m = {y, x, w, b}});
}

static void plan_linear_bwd_x(
	dev *d, struct mat dx, struct mat dy, struct mat w, bool add)
{
	count_bwd_x(d, dx, dy, w);
	note(d, &(struct kernel_call){KERNEL_linear_bwd_x, .m = {dx, dy, w}, .n = {add}});
}

static void plan_linear_bwd_w(
	dev *d, struct mat dw, struct mat dy, struct mat x, bool add)
{
	BUG_ON(dw.rows != dy.cols || dw.cols != x.cols || dy.rows != x.rows);
	d->flops += 2.0 * (double)mat_size(x) * (double)dw.rows;
	note(d, &(struct kernel_call){KERNEL_linear_bwd_w, .m = {dw, dy, x}, .n = {add}});
}

static void plan_linear_gelu_fwd(
	dev *d, struct mat y, struct mat a, struct mat x, struct mat w, struct mat b)
{
	count_fwd(d, a, x, w);
	note(d, &(struct kernel_call){KERNEL_linear_gelu_fwd, .m = {y, a, x, w, b}});
}

static void plan_linear_gelu_bwd(
	dev *d, struct mat da, struct mat dy, struct mat w, struct mat a)
{
	count_bwd_x(d, da, dy, w);
	note(d, &(struct kernel_call){KERNEL_linear_gelu_bwd, .m = {da, dy, w, a}});
}

static void plan_linear_row(
	dev *d, struct mat y, struct mat x, struct mat w, struct mat b)
{
	count_fwd(d, y, x, w);
	note(d, &(struct kernel_call){KERNEL_linear_row, .m = {y, x, w, b}});
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
	(void)max, (void)sum;
	note(d, &(struct kernel_call){KERNEL_attn_fwd, .m = {o, q, k, v},
			.n = {begin && end}, .p = a->drop.p, .attn = *a});
	d->flops += 4.0 * visible(a) * (double)a->dim; /* q k^T and p v */
}

static void plan_attn_bwd(struct device *d, const struct attn *a, struct mat dq,
	struct mat dk, struct mat dv, float *delta, struct mat dout, struct mat o,
	const float *lse, struct mat q, struct mat k, struct mat v, bool begin)
{
	(void)delta, (void)lse;
	note(d, &(struct kernel_call){KERNEL_attn_bwd,
			.m = {dq, dk, dv, dout, o, q, k, v}, .n = {begin}, .p = a->drop.p,
			.attn = *a});
	d->flops += 10.0 * visible(a) * (double)a->dim; /* q k^T again, dv, dp, dq, dk */
}

void device_plan(struct device *d, enum device_kind kind)
{
#define KERNEL_ENTRY(name) .name = plan_##name,
	static const struct kernels plan = {.name = "plan", KERNELS(KERNEL_ENTRY)};
	device_init(d, &plan, kind);
}
