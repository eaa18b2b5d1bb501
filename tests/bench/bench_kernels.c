/*
 * Speeds of single kernels, at the shapes of GPT-2 124M and 1.5B and of Llama.
 *   bench_kernels DEVICE [tiny]          lines "NAME SHAPE VALUE UNIT SECONDS OF-CEILING"
 *   bench_kernels DEVICE [tiny] sums     those of exact sums of gradients
 *   bench_kernels DEVICE [tiny] reductions  of gradient norms, amax and gradients of biases
 *   bench_kernels DEVICE [tiny] matmul   our own matmuls for sm_90a beside cuBLASLt's, which are compared
 *   bench_kernels DEVICE [tiny] norms    norms, as training calls them
 *   bench_kernels DEVICE [tiny] about    the device, and its bf16 matmul peak
 * The ceiling of matmuls is the vendor's peak, or 0 if unknown; that of the others is the measured rate of a plain copy. Bytes count each operand once.
 */
#include "tests/support/matmul_hopper.h"
#include "tests/support/timing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
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
	struct exact *exact;
	const struct mat *mats;
	int n_mats;
	enum act_kind act;
	int64_t dim;
	matmul_hopper *matmul;
	struct word_part words;
	uint32_t *u;
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

/* The sum of three in fp32, as for queries, keys and values whose gradients are three matrices. */
static void linear_bwd_x_sum(struct device *d, void *what)
{
	struct call *c = what;
	for (int i = 0; i < 3; i++)
		d->k->linear_bwd_x(d, c->c, c->b, c->w, i > 0);
}

static void say_flops(struct timing *t, const char *name, calls *call, struct call *c,
	int64_t n, int64_t in, int64_t out)
{
	double peak = device_peak(&t->d, timing_type(t));
	double s = timing_of(t, call, c), flops = 2.0 * (double)(n * in * out);
	printf("%s\t%dx%dx%d\t%.4g\tTFLOP/s\t%.6g\t%.3f\n", name, (int)n, (int)in,
		(int)out, flops / s * 1e-12, s, peak > 0 ? flops / s / peak : 0);
	fflush(stdout);
}

static void say_matmul(struct timing *t, const char *name, calls *call, struct call *c)
{
	say_flops(t, name, call, c, c->a.rows, c->a.cols, c->b.cols);
}

static void matmul_sum(struct timing *t, int64_t n, int64_t in, int64_t out)
{
	size_t mark = arena_mark(&t->memory);
	enum dtype type = timing_type(t);
	struct call c = {.b = timing_mat(t, n, out, type),
		.w = timing_mat(t, out, in, type),
		.c = timing_mat(t, n, in, DT_F32)};
	say_flops(t, "linear_bwd_x, sum of 3", linear_bwd_x_sum, &c, n, in, 3 * out);
	arena_reset(&t->memory, mark);
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
	for (size_t i = 0; i < ARRAY_LEN(three); i++)
		say_matmul(t, three[i].name, three[i].call, &c);
	arena_reset(&t->memory, mark);
}

/* x in 8 bits, transposed only, as the operands of the gradient of a weight are. */
static struct mat float8(struct timing *t, int64_t rows, int64_t cols, enum dtype type)
{
	struct mat y = mat_typed(NULL, rows, cols, type);
	struct mat_scale *s = arena_alloc(&t->memory, sizeof(*s));
	y.transposed = arena_alloc(&t->memory, (size_t)mat_size(y));
	y.scale = &s->scale;
	size_t mark = arena_mark(&t->memory);
	struct mat x = timing_mat(t, rows, cols, timing_type(t));
	t->d.k->zero(&t->d, mat(&s->amax, 1, 1));
	t->d.k->amax(&t->d, &s->amax, x);
	t->d.k->round_scaled(&t->d, y, &s->scale, x, type, &s->amax);
	device_wait(&t->d);
	arena_reset(&t->memory, mark);
	return y;
}

static void linear_bwd_w_float8(struct device *d, void *what)
{
	struct call *c = what;
	d->k->linear_bwd_w(d, c->c, c->b, c->a, false);
}

/* (a CPU multiplies float8 as slowly as fp32) */
static void matmul_float8(struct timing *t, int64_t n, int64_t in, int64_t out)
{
	size_t mark = arena_mark(&t->memory);
	struct call c = {.a = float8(t, n, in, DT_E4M3),
		.b = float8(t, n, out, DT_E5M2),
		.c = timing_mat(t, out, in, DT_F32)};
	double peak = device_peak(&t->d, DT_E4M3), flops = 2.0 * (double)(n * in * out);
	double s = timing_of(t, linear_bwd_w_float8, &c);
	printf("linear_bwd_w, float8\t%dx%dx%d\t%.4g\tTFLOP/s\t%.6g\t%.3f\n", (int)n,
		(int)in, (int)out, flops / s * 1e-12, s, peak > 0 ? flops / s / peak : 0);
	fflush(stdout);
	arena_reset(&t->memory, mark);
}

static void matmuls(struct timing *t)
{
	static const int64_t widths[] = {768, 1600};
	if (t->tiny) {
		matmul(t, 64, 32, 96);
		matmul_float8(t, 4096, 32, 96);
		matmul_sum(t, 64, 32, 32);
		return;
	}
	for (size_t i = 0; i < ARRAY_LEN(widths); i++) {
		int64_t w = widths[i], n = i ? 16384 : 65536;
		matmul(t, n, w, 3 * w);
		matmul_sum(t, n, w, w);
		matmul(t, n, w, w);
		matmul(t, n, w, 4 * w);
		matmul(t, n, 4 * w, w);
		matmul_float8(t, n, w, w);
		matmul_float8(t, n, w, 4 * w);
		matmul_float8(t, n, 4 * w, w);
		matmul(t, t->d.tile_bytes / (2 * 50304) / 16 * 16, w, 50304);
	}
}

/* ---- our own matmuls -------------------------------------------------------------------- */

static void own_matmul(struct device *d, void *what)
{
	struct call *c = what;
	c->matmul(d, c->b, c->a, c->w, c->bias);
}

/* The difference of two bf16 numbers in units in the last place; of numbers below 8, in those of 8,
 * since sums in another order differ by as much wherever they end. */
static double ulps(uint16_t x, uint16_t y)
{
	uint32_t a = (uint32_t)x << 16, b = (uint32_t)y << 16, unit = 0x41000000;
	float f, g, of;
	memcpy(&f, &a, sizeof(f));
	memcpy(&g, &b, sizeof(g));
	for (int i = 0; i < 2; i++) {
		uint32_t exponent = (i ? b : a) & 0x7f800000;
		unit = exponent > unit ? exponent : unit;
	}
	memcpy(&of, &unit, sizeof(of));
	double apart = fabs((double)f - (double)g) / ((double)of * 0x1p-7);
	return apart >= 0 ? apart : INFINITY; /* NaN */
}

/* The largest difference; *differ: numbers that are not equal; *at: the first largest one. */
static double compared(
	struct timing *t, struct mat x, struct mat y, int64_t *differ, int64_t *at)
{
	enum { PIECE = 1 << 22 };
	uint16_t *a = xmalloc(PIECE * sizeof(*a)), *b = xmalloc(PIECE * sizeof(*b));
	double most = 0;
	*differ = *at = 0;
	for (int64_t from = 0; from < mat_size(x); from += PIECE) {
		int64_t n = min64(PIECE, mat_size(x) - from);
		device_get(&t->d, a, (uint16_t *)x.p + from, (size_t)n * sizeof(*a));
		device_get(&t->d, b, (uint16_t *)y.p + from, (size_t)n * sizeof(*b));
		for (int64_t i = 0; i < n; i++) {
			if (a[i] == b[i])
				continue;
			double apart = ulps(a[i], b[i]);
			++*differ;
			*at = apart > most ? from + i : *at;
			most = apart > most ? apart : most;
		}
	}
	free(a);
	free(b);
	return most;
}

/* Times a variant next to cuBLASLt with the same operands, and prints by how many ulps they differ. The values of
 * the bias are bf16 values. Returns whether the result is right. */
static bool own_matmul_at(struct timing *t, const struct matmul_variant *v, int64_t n,
	int64_t in, int64_t out, bool with_linear)
{
	size_t mark = arena_mark(&t->memory);
	struct call c = {.a = timing_mat(t, n, in, DT_BF16),
		.b = timing_mat(t, n, out, DT_BF16),
		.w = timing_mat(t, out, in, DT_BF16),
		.bias = mat_alloc(&t->memory, 1, out, DT_F32),
		.matmul = v->run};
	struct mat reference = c.b, thin = timing_mat(t, 1, out, DT_BF16);
	int64_t differ, at;
	double most = 0;
	t->d.k->round(&t->d, c.bias, thin, DT_F32, 1);
	if (with_linear)
		say_matmul(t, "linear_fwd", linear_fwd, &c);
	else
		linear_fwd(&t->d, &c);
	c.b = timing_mat(t, n, out, DT_BF16);
	if (!v->run(&t->d, c.b, c.a, c.w, c.bias)) {
		warn("%s: not on this device", v->name);
	} else {
		most = compared(t, reference, c.b, &differ, &at);
		printf("%s\t%lldx%lldx%lld\t%.3g\tulps\t0\t0\n", v->name, (long long)n,
			(long long)in, (long long)out, most);
		if (most > 1)
			warn("%s: WRONG: %lld of %lld elements differ from cuBLASLt's, by up to "
			     "%.3g ulps; the largest is row %lld, column %lld",
				v->name, (long long)differ, (long long)mat_size(c.b),
				most, (long long)(at / out), (long long)(at % out));
		say_matmul(t, v->name, own_matmul, &c);
	}
	arena_reset(&t->memory, mark);
	return most <= 1;
}

/* Variants that share operands between two blocks (pairs), which may hang, or the other ones: all shapes of a
 * variant before the next one; cuBLASLt once for each shape, and with the first shape next to each variant. Exits
 * with 1 after the last one if a result is wrong. */
static void own_matmuls(struct timing *t, bool pairs)
{
	static const int64_t shapes[][3] = {{65536, 768, 2304}, {65536, 768, 3072},
		{65536, 3072, 768}, {8192, 8192, 8192}, {5001, 1000, 1992},
		{300, 72, 520}};
	const struct matmul_variant *v = matmuls_hopper(&t->d);
	size_t last = ARRAY_LEN(shapes) - 1, first = t->tiny ? last : 0;
	bool right = true, is_first = true;
	if (!v)
		die(EX_USAGE, "%s has no matmuls of ours", t->d.name);
	for (; v->name; v++) {
		if (!!strstr(v->name, "pair") != pairs)
			continue;
		for (size_t i = first; i <= last; i++)
			right &= own_matmul_at(t, v, shapes[i][0], shapes[i][1],
				shapes[i][2], is_first || i == first);
		is_first = false;
	}
	if (!right)
		die(EX_FAILED, "a matmul computes wrongly");
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

/* As training calls them: LayerNorm with biases, RMSNorm without. */
static void norm_fwd(struct device *d, void *what)
{
	struct call *c = what;
	d->k->norm_fwd(d, c->kind, c->normed, c->stats, c->a, c->w, c->bias, 1e-5F);
}

static void residual_norm(struct device *d, void *what)
{
	struct call *c = what;
	const struct norm n = {c->kind, c->normed, c->stats, c->w, c->bias, 1e-5F};
	d->k->residual_norm(d, c->c, c->a, c->b, c->bias, NULL, &n);
}

static void norm_bwd(struct device *d, void *what)
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
	d->k->act_fwd(d, c->act, c->b, c->a, c->w);
}

static void act_bwd(struct device *d, void *what)
{
	struct call *c = what;
	d->k->act_bwd(d, c->act, c->c, c->normed, c->b, c->a, c->w);
}

/* In place. */
static void rope(struct device *d, void *what)
{
	struct call *c = what;
	d->k->rope(d, c->a, c->dim, c->w, c->ids, 1);
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
		.bias = timing_mat(t, 1, cols, DT_F32)};
	say_bytes(t, "residual", shape, residual, &c, 2 * wide + thin);
	say_bytes(t, "add", shape, add, &c, 3 * wide);
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
	say_bytes(t, "norm_fwd", shape, norm_fwd, &c, wide + thin);
	say_bytes(t, "residual_norm", shape, residual_norm, &c, 2 * wide + 2 * thin);
	say_bytes(t, "norm_bwd", shape, norm_bwd, &c, 3 * wide + 2 * thin);
	c.b = timing_mat(t, n, cols, DT_F32);
	say_bytes(t, "norm_bwd, fp32", shape, norm_bwd, &c, 4 * wide + thin);
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
	static const char *const names[][2] = {
		[ACT_GELU_TANH] = {"act_fwd, gelu", "act_bwd, gelu"},
		[ACT_GELU] = {"act_fwd, gelu erf", "act_bwd, gelu erf"},
		[ACT_SWIGLU] = {"act_fwd, swiglu", "act_bwd, swiglu"},
		[ACT_GEGLU_TANH] = {"act_fwd, geglu", "act_bwd, geglu"}};
	size_t mark = arena_mark(&t->memory);
	enum dtype type = timing_type(t);
	struct call c = {.a = timing_mat(t, n, cols, type),
		.b = timing_mat(t, n, cols, type),
		.c = timing_mat(t, n, cols, type)};
	for (c.act = 0; c.act < ARRAY_LEN(names); c.act++) {
		bool gated = act_is_gated(c.act);
		if (gated) {
			c.w = timing_mat(t, n, cols, type);
			c.normed = timing_mat(t, n, cols, type);
		}
		say_bytes(t, names[c.act][0], shape, act_fwd, &c,
			(gated ? 3 : 2) * mat_bytes(c.a));
		say_bytes(t, names[c.act][1], shape, act_bwd, &c,
			(gated ? 5 : 3) * mat_bytes(c.a));
	}
	arena_reset(&t->memory, mark);
}

static void rotation(struct timing *t, int64_t n, int64_t heads, int64_t dim)
{
	size_t mark = arena_mark(&t->memory);
	char shape[64];
	int64_t context = t->tiny ? 16 : 4096;
	struct call c = {.a = timing_mat(t, n, heads * dim, timing_type(t)),
		.w = timing_mat(t, context, dim, DT_F32),
		.ids = timing_ints(t, n, context),
		.dim = dim};
	snprintf(shape, sizeof(shape), "%dx%dx%d", (int)n, (int)heads, (int)dim);
	say_bytes(t, "rope", shape, rope, &c, 2 * mat_bytes(c.a));
	arena_reset(&t->memory, mark);
}

/* Queries and keys of Llama 1B, and of heads of 128. */
static void rotations(struct timing *t, int64_t n)
{
	static const int64_t dims[] = {64, 128}, heads[] = {32, 8};
	for (size_t i = 0; i < ARRAY_LEN(dims) * ARRAY_LEN(heads); i++)
		rotation(t, n, heads[i % 2], dims[i / 2]);
}

/* ---- the loss, the table, the optimizer -------------------------------------------- */

static const struct xent_terms no_terms;

static void xent_stats(struct device *d, void *what)
{
	struct call *c = what;
	d->k->xent_stats(d, (struct xent_stats){c->max, c->sum, c->target}, c->a, c->ids,
		0, c->vocab, no_terms);
}

/* In place: from the second call on, its logits are gradients, which take the same time. */
static void xent_bwd(struct device *d, void *what)
{
	struct call *c = what;
	d->k->xent_bwd(d, c->a, c->lse, c->ids, 0, c->vocab, no_terms, c->scale);
}

static void xent_fused(struct device *d, void *what)
{
	struct call *c = what;
	d->k->xent_fused(d, c->lse, c->a, c->ids, c->vocab, no_terms, c->scale);
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
			.decay = 0.1F,
			.rate = 1};
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

static void word_sums(struct device *d, void *what)
{
	struct call *c = what;
	d->k->word_sums(d, &c->grid->check, &c->words, 1, c->u, grid_check_key(0));
}

/* A leaf that is added to the sum, a sum that is rounded, and what the owner of an eighth does with the leaves
 * of 8 ranks; and the checksum of as many parameters. */
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
		of[r].leaf = (const float *)leaf.leaf + r * piece;
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
	uint32_t u[GRID_BLOCK];
	grid_weights(0, u);
	c.u = arena_alloc(&t->memory, sizeof(u));
	device_put(&t->d, c.u, u, sizeof(u));
	c.words = (struct word_part){.p = c.a.p, .n = n};
	say_bytes(t, "word_sums", shape, word_sums, &c, 4 * n);
	arena_reset(&t->memory, mark);
}

/* Of GPT-2 124M, and of a block of Llama 3 8B. */
static void all_exact_sums(struct timing *t)
{
	exact_sums(t, t->tiny ? 1 << 16 : 124439808, "124M");
	exact_sums(t, t->tiny ? 1 << 16 : 218112000, "block of 8B");
}

static void sumsq(struct device *d, void *what)
{
	struct call *c = what;
	d->k->exact_sumsq(d, c->exact, c->mats, c->n_mats);
}

/* The matrices of the layers of GPT-2, and its table. */
static void gradient_norm(
	struct timing *t, int64_t layers, int64_t width, int64_t vocab, const char *shape)
{
	enum { A_LAYER = 6, MOST = 48 * A_LAYER + 1 };
	size_t mark = arena_mark(&t->memory);
	static struct mat m[MOST];
	struct call c = {.exact = arena_alloc(&t->memory, sizeof(*c.exact)), .mats = m};
	const int64_t w = width, shapes[A_LAYER][2] = {{w, w}, {w, w}, {w, w}, {w, w},
					 {4 * w, w}, {w, 4 * w}};
	int64_t n_bytes = 0;
	for (int64_t i = 0; i < layers * A_LAYER; i++) {
		const int64_t *s = shapes[i % A_LAYER];
		m[c.n_mats++] = timing_mat(t, s[0], s[1], DT_F32);
	}
	m[c.n_mats++] = timing_mat(t, vocab, w, DT_F32);
	for (int i = 0; i < c.n_mats; i++)
		n_bytes += mat_bytes(m[i]);
	t->d.k->zero(&t->d, mat((float *)(void *)c.exact, 1, EXACT_FLOATS));
	say_bytes(t, "exact_sumsq", shape, sumsq, &c, n_bytes);
	arena_reset(&t->memory, mark);
}

static void amax(struct device *d, void *what)
{
	struct call *c = what;
	d->k->amax(d, c->max, c->b);
}

static void largest(struct timing *t, int64_t n, int64_t cols, const char *shape)
{
	size_t mark = arena_mark(&t->memory);
	struct call c = {.b = timing_mat(t, n, cols, timing_type(t)),
		.max = timing_mat(t, 1, 1, DT_F32).p};
	t->d.k->zero(&t->d, mat(c.max, 1, 1));
	say_bytes(t, "amax", shape, amax, &c, mat_bytes(c.b));
	arena_reset(&t->memory, mark);
}

static void bias_gradient(struct timing *t, int64_t n, int64_t cols, const char *shape)
{
	size_t mark = arena_mark(&t->memory);
	struct call c = {.b = timing_mat(t, n, cols, timing_type(t)),
		.bias = timing_mat(t, 1, cols, DT_F32)};
	say_bytes(t, "bias_bwd", shape, bias_bwd, &c, mat_bytes(c.b));
	arena_reset(&t->memory, mark);
}

/* Reductions: gradient norms, the scales of float8, gradients of biases. */
static void reductions(struct timing *t)
{
	if (t->tiny) {
		gradient_norm(t, 1, 64, 100, "tiny");
		largest(t, 64, 64, "64x64");
		bias_gradient(t, 256, 64, "256x64");
		return;
	}
	gradient_norm(t, 12, 768, 50304, "124M");
	gradient_norm(t, 48, 1600, 50304, "1.5B");
	largest(t, 1600, 1600, "1600x1600");
	largest(t, 8192, 1600, "8192x1600");
	largest(t, 65536, 768, "65536x768");
	bias_gradient(t, 65536, 768, "65536x768");
	bias_gradient(t, 65536, 3072, "65536x3072");
	bias_gradient(t, 8192, 1600, "8192x1600");
	bias_gradient(t, 8192, 6400, "8192x6400");
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
	} else if (!strcmp(what, "reductions")) {
		ceiling(&t, t.tiny ? 1 << 16 : 1 << 28, t.tiny ? "65536" : "268435456");
		reductions(&t);
	} else if (!strcmp(what, "matmul") || !strcmp(what, "pairs")) {
		own_matmuls(&t, !strcmp(what, "pairs"));
	} else if (!strcmp(what, "norms")) {
		ceiling(&t, t.tiny ? 1 << 16 : 1 << 28, "copy");
		all_norms(&t);
	} else if (t.tiny) {
		ceiling(&t, 1 << 16, "65536");
		matmuls(&t);
		streams(&t, 32, 768, "32x768");
		all_norms(&t);
		activation(&t, 32, 3072, "32x3072");
		rotations(&t, 32);
		loss(&t, 16, 1000, "16x1000");
		table(&t, 64, 1000, 64, "64x64 of 1000");
		optimizer(&t, 256, "148x256");
		all_exact_sums(&t);
		reductions(&t);
	} else {
		ceiling(&t, 1 << 28, "268435456");
		matmuls(&t);
		streams(&t, 65536, 768, "65536x768");
		streams(&t, 16384, 1600, "16384x1600");
		all_norms(&t);
		activation(&t, 65536, 3072, "65536x3072");
		activation(&t, 8192, 8192, "8192x8192");
		rotations(&t, 8192);
		loss(&t, 8192, 50257, "8192x50257");
		table(&t, 65536, 50304, 768, "65536x768 of 50304");
		optimizer(&t, 840960, "148x840960");
		all_exact_sums(&t);
		reductions(&t);
	}
	timing_close(&t);
	stdout_close();
	return 0;
}
