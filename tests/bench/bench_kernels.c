/*
 * Speeds of single kernels, at the shapes of GPT-2 124M and 1.5B.
 *   bench_kernels DEVICE [tiny]          lines "NAME SHAPE VALUE UNIT SECONDS OF-CEILING"
 *   bench_kernels DEVICE [tiny] sums     those of exact sums of gradients
 *   bench_kernels DEVICE [tiny] norms    norms, as training calls them
 *   bench_kernels DEVICE [tiny] about    the device, and its bf16 matmul peak
 * The ceiling of matmuls is the vendor's peak, or 0 if unknown; that of the others is the measured rate of a plain copy. Bytes count each operand once.
 */
#include "tests/support/timing.h"

#include <stdio.h>
#include <string.h>

enum { PARTS = 148 }; /* tensors of GPT-2 124M */

struct call {
	enum norm_kind kind;
	struct mat a, b, c, w, bias, stats, normed, sums, d_beta, d_sums;
	float *max, *sum, *target, *lse;
	int32_t *ids;
	int64_t vocab;
	struct update *adamw;
	float *scale;
	struct update_part parts[PARTS];
	struct grid_sum sums_of;
	struct grid *grid;
};

typedef void calls(struct device *, void *);

static double copy_rate; /* bytes a second */

static void say_bytes(struct timing *t, const char *name, const char *shape, calls *call,
	struct call *c, int64_t n_bytes)
{
	double s = timing_of(t, call, c), rate = (double)n_bytes / s;
	copy_rate = copy_rate > 0 ? copy_rate : rate;
	printf("%s\t%s\t%.4g\tGB/s\t%.6g\t%.3f\n", name, shape, rate * 1e-9, s,
		rate / copy_rate);
	fflush(stdout);
}

/* ---- matmuls --------------------------------------------------------------------- */

static void linear_fwd(struct device *d, void *what)
{
	struct call *c = what;
	d->k->linear_fwd(d, c->b, c->a, c->w, c->bias);
}

static void linear_bwd_x(struct device *d, void *what)
{
	struct call *c = what;
	d->k->linear_bwd_x(d, c->a, c->b, c->w, false);
}

static void linear_bwd_w(struct device *d, void *what)
{
	struct call *c = what;
	d->k->linear_bwd_w(d, c->c, c->b, c->a, true);
}

static void matmul(struct timing *t, int64_t n, int64_t in, int64_t out)
{
	static const struct {
		const char *name;
		calls *call;
	} three[] = {{"linear_fwd", linear_fwd}, {"linear_bwd_x", linear_bwd_x},
		{"linear_bwd_w", linear_bwd_w}};
	size_t mark = arena_mark(&t->memory);
	enum dtype type = timing_type(t);
	struct call c = {.a = timing_mat(t, n, in, type),
		.b = timing_mat(t, n, out, type),
		.w = timing_mat(t, out, in, type),
		.c = timing_mat(t, out, in, DT_F32)};
	if (out < 50000) /* the head has no bias */
		c.bias = timing_mat(t, 1, out, DT_F32);
	double peak = device_peak(&t->d, type), flops = 2.0 * (double)(n * in * out);
	for (size_t i = 0; i < ARRAY_LEN(three); i++) {
		double s = timing_of(t, three[i].call, &c);
		printf("%s\t%dx%dx%d\t%.4g\tTFLOP/s\t%.6g\t%.3f\n", three[i].name, (int)n,
			(int)in, (int)out, flops / s * 1e-12, s,
			peak > 0 ? flops / s / peak : 0);
		fflush(stdout);
	}
	arena_reset(&t->memory, mark);
}

static void matmuls(struct timing *t)
{
	static const int64_t widths[] = {768, 1600};
	if (t->tiny) {
		matmul(t, 64, 32, 96);
		return;
	}
	for (size_t i = 0; i < ARRAY_LEN(widths); i++) {
		int64_t w = widths[i], n = i ? 16384 : 65536;
		matmul(t, n, w, 3 * w);
		matmul(t, n, w, w);
		matmul(t, n, w, 4 * w);
		matmul(t, n, 4 * w, w);
		matmul(t, t->d.tile_bytes / (2 * 50304) / 16 * 16, w, 50304);
	}
}

/* ---- memory-bound kernels ------------------------------------------------------------- */

static void copy(struct device *d, void *what)
{
	struct call *c = what;
	d->k->copy(d, c->b, c->a);
}

static void normal(struct device *d, void *what)
{
	struct call *c = what;
	const struct normal o = {0, 0.02F, 0, {{{1, 2}}, 0, 0}};
	d->k->normal(d, c->b, &o);
}

static void norm_fwd(struct device *d, void *what)
{
	struct call *c = what;
	d->k->norm_fwd(d, NORM_LAYER, c->b, c->stats, c->a, c->w, c->bias, 1e-5F);
}

static void norm_bwd_x(struct device *d, void *what)
{
	struct call *c = what;
	d->k->norm_bwd_x(d, NORM_LAYER, c->c, c->b, c->a, c->stats, c->w);
}

static void norm_bwd_w(struct device *d, void *what)
{
	struct call *c = what;
	struct mat none = {0};
	d->k->norm_bwd_w(d, NORM_LAYER, c->w, none, c->b, c->a, c->stats, 0, c->a.rows);
}

static void norm_bwd(struct device *d, void *what)
{
	struct call *c = what;
	const struct norm_grads to = {.dx = c->c, .dgamma = c->bias};
	d->k->norm_bwd(d, NORM_LAYER, &to, c->b, c->a, c->stats, c->w, 0, c->a.rows);
}

static void norm_bwd_copy(struct device *d, void *what)
{
	struct call *c = what;
	const struct norm_grads to = {
		.dx = c->c, .dgamma = c->bias, .copy = c->normed, .sums = c->sums};
	d->k->norm_bwd(d, NORM_LAYER, &to, c->b, c->a, c->stats, c->w, 0, c->a.rows);
}

/* As training calls them: LayerNorm with biases, RMSNorm without. */
static void train_norm_fwd(struct device *d, void *what)
{
	struct call *c = what;
	d->k->norm_fwd(d, c->kind, c->normed, c->stats, c->a, c->w, c->bias, 1e-5F);
}

static void train_residual_norm(struct device *d, void *what)
{
	struct call *c = what;
	const struct norm n = {c->kind, c->normed, c->stats, c->w, c->bias, 1e-5F};
	d->k->residual_norm(d, c->c, c->a, c->b, c->bias, NULL, &n);
}

static void train_norm_bwd(struct device *d, void *what)
{
	struct call *c = what;
	const struct norm_grads to = {.dx = c->c,
		.dgamma = c->sums,
		.dbeta = c->d_beta,
		.copy = c->normed,
		.sums = c->d_sums};
	d->k->norm_bwd(d, c->kind, &to, c->b, c->a, c->stats, c->w, 0, c->a.rows);
}

static void residual(struct device *d, void *what)
{
	struct call *c = what;
	d->k->residual(d, c->c, c->a, c->b, c->bias, NULL);
}

static void residual_norm(struct device *d, void *what)
{
	struct call *c = what;
	const struct norm n = {NORM_LAYER, c->normed, c->stats, c->w, c->bias, 1e-5F};
	d->k->residual_norm(d, c->c, c->a, c->b, c->bias, NULL, &n);
}

static void add(struct device *d, void *what)
{
	struct call *c = what;
	d->k->add(d, c->c, c->a, c->c);
}

static void bias_bwd(struct device *d, void *what)
{
	struct call *c = what;
	d->k->bias_bwd(d, c->bias, c->b);
}

static void act_fwd(struct device *d, void *what)
{
	struct call *c = what;
	d->k->act_fwd(d, ACT_GELU_TANH, c->b, c->a, (struct mat){0});
}

static void act_bwd(struct device *d, void *what)
{
	struct call *c = what;
	d->k->act_bwd(
		d, ACT_GELU_TANH, c->c, (struct mat){0}, c->b, c->a, (struct mat){0});
}

static void round_bf16(struct device *d, void *what)
{
	struct call *c = what;
	d->k->round(d, c->b, c->a, DT_BF16, 1);
}

static void streams(struct timing *t, int64_t n, int64_t cols, const char *shape)
{
	size_t mark = arena_mark(&t->memory);
	enum dtype type = timing_type(t);
	int64_t wide = n * cols * 4, thin = n * cols * dtype_bytes(type);
	struct call c = {.a = timing_mat(t, n, cols, DT_F32),
		.b = timing_mat(t, n, cols, type),
		.c = timing_mat(t, n, cols, DT_F32),
		.w = timing_mat(t, 1, cols, DT_F32),
		.bias = timing_mat(t, 1, cols, DT_F32),
		.stats = timing_mat(t, 2, n, DT_F32),
		.normed = timing_mat(t, n, cols, type),
		.sums = timing_mat(t, 1, cols, DT_F32)};
	say_bytes(t, "norm_fwd", shape, norm_fwd, &c, wide + thin);
	say_bytes(t, "norm_bwd_x", shape, norm_bwd_x, &c, 3 * wide + thin);
	say_bytes(t, "norm_bwd_w", shape, norm_bwd_w, &c, wide + thin);
	say_bytes(t, "norm_bwd", shape, norm_bwd, &c, 3 * wide + thin);
	say_bytes(t, "norm_bwd, copy", shape, norm_bwd_copy, &c, 3 * wide + 2 * thin);
	say_bytes(t, "residual", shape, residual, &c, 2 * wide + thin);
	say_bytes(t, "residual_norm", shape, residual_norm, &c, 2 * wide + 2 * thin);
	say_bytes(t, "add", shape, add, &c, 3 * wide);
	say_bytes(t, "bias_bwd", shape, bias_bwd, &c, thin);
	say_bytes(t, "round to bf16", shape, round_bf16, &c, wide + thin);
	arena_reset(&t->memory, mark);
}

/* Also with an incoming gradient in fp32, which several matmuls have added up. */
static void norms(
	struct timing *t, enum norm_kind kind, int64_t n, int64_t cols, const char *shape)
{
	size_t mark = arena_mark(&t->memory);
	enum dtype type = timing_type(t);
	int64_t wide = n * cols * 4, thin = n * cols * dtype_bytes(type);
	struct call c = {.kind = kind,
		.a = timing_mat(t, n, cols, DT_F32),
		.b = timing_mat(t, n, cols, type),
		.c = timing_mat(t, n, cols, DT_F32),
		.w = timing_mat(t, 1, cols, DT_F32),
		.stats = timing_mat(t, 2, n, DT_F32),
		.normed = timing_mat(t, n, cols, type),
		.sums = timing_mat(t, 1, cols, DT_F32)};
	if (kind == NORM_LAYER) {
		c.bias = timing_mat(t, 1, cols, DT_F32);
		c.d_beta = timing_mat(t, 1, cols, DT_F32);
		c.d_sums = timing_mat(t, 1, cols, DT_F32);
	}
	say_bytes(t, "norm_fwd in training", shape, train_norm_fwd, &c, wide + thin);
	say_bytes(t, "residual_norm in training", shape, train_residual_norm, &c,
		2 * wide + 2 * thin);
	say_bytes(t, "norm_bwd in training", shape, train_norm_bwd, &c,
		3 * wide + 2 * thin);
	c.b = timing_mat(t, n, cols, DT_F32);
	say_bytes(t, "norm_bwd in training, fp32", shape, train_norm_bwd, &c,
		4 * wide + thin);
	arena_reset(&t->memory, mark);
}

static void all_norms(struct timing *t)
{
	if (t->tiny) {
		norms(t, NORM_LAYER, 32, 768, "32x768");
		norms(t, NORM_RMS, 16, 2048, "16x2048, RMS");
		return;
	}
	norms(t, NORM_LAYER, 65536, 768, "65536x768");
	norms(t, NORM_LAYER, 8192, 1600, "8192x1600");
	norms(t, NORM_RMS, 8192, 2048, "8192x2048, RMS");
}

static void activation(struct timing *t, int64_t n, int64_t cols, const char *shape)
{
	size_t mark = arena_mark(&t->memory);
	enum dtype type = timing_type(t);
	struct call c = {.a = timing_mat(t, n, cols, type),
		.b = timing_mat(t, n, cols, type),
		.c = timing_mat(t, n, cols, type)};
	say_bytes(t, "act_fwd, gelu", shape, act_fwd, &c, 2 * mat_bytes(c.a));
	say_bytes(t, "act_bwd, gelu", shape, act_bwd, &c, 3 * mat_bytes(c.a));
	arena_reset(&t->memory, mark);
}

/* ---- the loss, the table, the optimizer -------------------------------------------- */

static void xent_stats(struct device *d, void *what)
{
	struct call *c = what;
	d->k->xent_stats(d, c->max, c->sum, c->target, c->a, c->ids, 0, c->vocab);
}

/* In place: from the second call on, its logits are gradients, which take the same time. */
static void xent_bwd(struct device *d, void *what)
{
	struct call *c = what;
	d->k->xent_bwd(d, c->a, c->lse, c->ids, 0, c->vocab, c->scale);
}

static void xent_fused(struct device *d, void *what)
{
	struct call *c = what;
	d->k->xent_fused(d, c->lse, c->a, c->ids, c->vocab, c->scale);
}

static void embed_fwd(struct device *d, void *what)
{
	struct call *c = what;
	d->k->embed_fwd(d, c->b, c->w, c->ids, 0, false);
}

static void embed_bwd(struct device *d, void *what)
{
	struct call *c = what;
	d->k->embed_bwd(d, c->w, c->b, c->ids, 0);
}

static void adamw(struct device *d, void *what)
{
	struct call *c = what;
	d->k->adamw(d, c->parts, PARTS, c->adamw);
}

static void loss(struct timing *t, int64_t rows, int64_t vocab, const char *shape)
{
	size_t mark = arena_mark(&t->memory);
	struct call c = {.a = timing_mat(t, rows, round_up(vocab, 128), timing_type(t)),
		.ids = timing_ints(t, rows, vocab),
		.vocab = vocab};
	const float one = 1;
	float **vectors[] = {&c.max, &c.sum, &c.target, &c.lse, &c.scale};
	for (size_t i = 0; i < ARRAY_LEN(vectors); i++)
		*vectors[i] = timing_mat(t, 1, rows, DT_F32).p;
	device_put(&t->d, c.scale, &one, sizeof(one));
	say_bytes(t, "xent_stats", shape, xent_stats, &c, mat_bytes(c.a));
	say_bytes(t, "xent_bwd", shape, xent_bwd, &c, 2 * mat_bytes(c.a));
	say_bytes(t, "xent_fused", shape, xent_fused, &c, 2 * mat_bytes(c.a));
	arena_reset(&t->memory, mark);
}

static void table(
	struct timing *t, int64_t n, int64_t vocab, int64_t cols, const char *shape)
{
	size_t mark = arena_mark(&t->memory);
	struct call c = {.b = timing_mat(t, n, cols, DT_F32),
		.w = timing_mat(t, vocab, cols, DT_F32),
		.ids = timing_ints(t, n, vocab)};
	say_bytes(t, "embed_fwd", shape, embed_fwd, &c, 2 * mat_bytes(c.b));
	say_bytes(t, "embed_bwd", shape, embed_bwd, &c, mat_bytes(c.b) + mat_bytes(c.w));
	arena_reset(&t->memory, mark);
}

static float *vector(struct timing *t, int64_t n)
{
	return timing_mat(t, 1, n, DT_F32).p;
}

/* PARTS vectors of n elements each. */
static void optimizer(struct timing *t, int64_t n, const char *shape)
{
	size_t mark = arena_mark(&t->memory);
	enum dtype type = timing_type(t);
	const struct update how = {.lr = 1e-4F,
		.beta1 = 0.9F,
		.beta2 = 0.95F,
		.eps = 1e-8F,
		.grad_scale = 1,
		.correct1 = 0.1F,
		.correct2 = 0.05F};
	struct call c = {.adamw = arena_alloc(&t->memory, sizeof(how))};
	device_put(&t->d, c.adamw, &how, sizeof(how));
	int64_t n_bytes = 7 * 4 * PARTS * n;
	for (int i = 0; i < PARTS; i++) {
		struct update_part *p = &c.parts[i];
		*p = (struct update_part){.p = vector(t, n),
			.m = vector(t, n),
			.v = vector(t, n),
			.g = vector(t, n),
			.n = n,
			.decay = 0.1F};
		t->d.k->zero(&t->d, mat(p->v, 1, n)); /* v holds squares, not negative */
		if (type != DT_F32)
			p->copy = timing_mat(t, 1, n, type);
		n_bytes += mat_bytes(p->copy);
	}
	say_bytes(t, "adamw", shape, adamw, &c, n_bytes);
	arena_reset(&t->memory, mark);
}

static void sum_leaf(struct device *d, void *what)
{
	struct call *c = what;
	d->k->grid_sum(d, &c->sums_of, c->grid);
}

/* A leaf that is added to the sum, a sum that is rounded, and what the owner of an eighth does with the leaves
 * of 8 ranks. */
static void exact_sums(struct timing *t, int64_t n, const char *shape)
{
	enum { RANKS = 8 };
	size_t mark = arena_mark(&t->memory);
	const struct grid grid = {.exponent = GRID_EXPONENT};
	struct call c = {.grid = arena_alloc(&t->memory, sizeof(grid)),
		.a = timing_mat(t, 1, n, DT_F32),
		.b = timing_mat(t, 1, n, DT_F32)};
	int64_t *sum = timing_mat(t, 2, n, DT_F32).p, piece = n / RANKS / 64 * 64;
	const struct grid_part leaf = {.leaf = c.a.p}, kept = {.sum = sum};
	struct grid_part of[RANKS];
	for (int r = 0; r < RANKS; r++)
		of[r].leaf = leaf.leaf + r * piece;
	device_put(&t->d, c.grid, &grid, sizeof(grid));
	say_bytes(t, "copy", shape, copy, &c, 8 * n);
	c.sums_of = (struct grid_sum){
		.sum = sum, .add = true, .parts = &leaf, .n_parts = 1, .n = n};
	say_bytes(t, "grid_sum, add", shape, sum_leaf, &c, 20 * n);
	c.sums_of =
		(struct grid_sum){.rounded = c.b.p, .parts = &kept, .n_parts = 1, .n = n};
	say_bytes(t, "grid_sum, round", shape, sum_leaf, &c, 12 * n);
	c.sums_of = (struct grid_sum){
		.rounded = c.b.p, .parts = of, .n_parts = RANKS, .n = piece, .levels = 3};
	say_bytes(t, "grid_sum, 8 leaves", shape, sum_leaf, &c, 4 * (RANKS + 1) * piece);
	arena_reset(&t->memory, mark);
}

/* Of GPT-2 124M, and of a block of Llama 3 8B. */
static void all_exact_sums(struct timing *t)
{
	exact_sums(t, t->tiny ? 1 << 16 : 124439808, "124M");
	exact_sums(t, t->tiny ? 1 << 16 : 218112000, "block of 8B");
}

static void ceiling(struct timing *t, int64_t n, const char *shape)
{
	size_t mark = arena_mark(&t->memory);
	struct call c = {
		.a = timing_mat(t, 1, n, DT_F32), .b = timing_mat(t, 1, n, DT_F32)};
	say_bytes(t, "copy", shape, copy, &c, 2 * n * 4);
	say_bytes(t, "normal", shape, normal, &c, n * 4);
	arena_reset(&t->memory, mark);
}

int main(int argc, char **argv)
{
	struct timing t;
	const char *what = argc > 1 ? argv[argc - 1] : "";
	bool about = !strcmp(what, "about");
	log_name("bench_kernels");
	timing_open(&t, argc, argv, about ? 4096 : (size_t)8 << 30,
		about ? 4096 : (size_t)64 << 20);
	if (about) {
		printf("device\t%s\npeak\t%.6g\n", t.d.name, device_peak(&t.d, DT_BF16));
	} else if (!strcmp(what, "sums")) {
		all_exact_sums(&t);
	} else if (!strcmp(what, "norms")) {
		ceiling(&t, t.tiny ? 1 << 16 : 1 << 28, "copy");
		all_norms(&t);
	} else if (t.tiny) {
		ceiling(&t, 1 << 16, "65536");
		matmuls(&t);
		streams(&t, 32, 768, "32x768");
		all_norms(&t);
		activation(&t, 32, 3072, "32x3072");
		loss(&t, 16, 1000, "16x1000");
		table(&t, 64, 1000, 64, "64x64 of 1000");
		optimizer(&t, 256, "148x256");
		all_exact_sums(&t);
	} else {
		ceiling(&t, 1 << 28, "268435456");
		matmuls(&t);
		streams(&t, 65536, 768, "65536x768");
		streams(&t, 16384, 1600, "16384x1600");
		all_norms(&t);
		activation(&t, 65536, 3072, "65536x3072");
		loss(&t, 8192, 50257, "8192x50257");
		table(&t, 65536, 50304, 768, "65536x768 of 50304");
		optimizer(&t, 840960, "148x840960");
		all_exact_sums(&t);
	}
	timing_close(&t);
	stdout_close();
	return 0;
}
