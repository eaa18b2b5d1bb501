/*
 * Every kernel gives the same bits each time and on any number of threads, and those that do
 * not call OpenBLAS on any instruction set.
 * isa: sse2 avx2 avx512
 * device: cpu cuda
 */
#include "tests/support/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Every matrix is large enough for several threads (PARALLEL_FROM of the CPU), and has tails. */
enum { ROWS = 301, COLS = 211, N = ROWS * COLS, VOCAB = 40 };
enum { BATCH = 3, SEQ = 150, HEADS = 4, KV_HEADS = 2, DIM = 24 };

static int32_t *ids, *pos; /* [ROWS] */

static const struct mat nothing;

/* ---- one run of each kernel: returns a hash of all results ----------------------- */

static uint64_t run_embed_fwd(struct device *d)
{
	struct mat y = seeded(ROWS, COLS, 1);
	d->k->embed_fwd(d, y, seeded(VOCAB - 9, COLS, 2), ids, 5, true);
	return hash_of(y);
}

static uint64_t run_embed_bwd(struct device *d)
{
	struct mat dw = mat_blank(VOCAB - 9, COLS);
	d->k->embed_bwd(d, dw, seeded(ROWS, COLS, 1), ids, 5);
	return hash_of(dw);
}

static uint64_t run_linear_fwd(struct device *d)
{
	struct mat y = mat_blank(ROWS, 530);
	d->k->linear_fwd(
		d, y, seeded(ROWS, COLS, 1), seeded(530, COLS, 2), seeded(1, 530, 3));
	return hash_of(y);
}

static uint64_t run_linear_bwd_x(struct device *d)
{
	struct mat dx = seeded(ROWS, COLS, 1);
	d->k->linear_bwd_x(d, dx, seeded(ROWS, 530, 2), seeded(530, COLS, 3), true);
	return hash_of(dx);
}

static uint64_t run_linear_bwd_w(struct device *d)
{
	struct mat dw = mat_blank(530, COLS);
	d->k->linear_bwd_w(d, dw, seeded(ROWS, 530, 1), seeded(ROWS, COLS, 2), false);
	return hash_of(dw);
}

static uint64_t run_linear_gelu_fwd(struct device *d)
{
	struct mat y = mat_blank(ROWS, 530), a = mat_blank(ROWS, 530);
	d->k->linear_gelu_fwd(
		d, y, a, seeded(ROWS, COLS, 1), seeded(530, COLS, 2), seeded(1, 530, 3));
	return hash_of(y) ^ hash_of(a);
}

static uint64_t run_linear_gelu_bwd(struct device *d)
{
	struct mat da = mat_blank(ROWS, COLS);
	d->k->linear_gelu_bwd(
		d, da, seeded(ROWS, 530, 2), seeded(530, COLS, 3), seeded(ROWS, COLS, 4));
	return hash_of(da);
}

static uint64_t run_bias_fwd(struct device *d)
{
	struct mat y = seeded(ROWS, COLS, 1);
	d->k->bias_fwd(d, y, seeded(1, COLS, 2));
	return hash_of(y);
}

static uint64_t run_bias_bwd(struct device *d)
{
	struct mat db = mat_blank(1, COLS);
	d->k->bias_bwd(d, db, seeded(ROWS, COLS, 1));
	return hash_of(db);
}

static uint64_t run_norm_fwd(struct device *d)
{
	uint64_t hash = 0;
	for (int kind = 0; kind < 2; kind++) {
		struct mat y = mat_blank(ROWS, COLS), stats = mat_blank(2, ROWS);
		d->k->norm_fwd(d, kind, y, stats, seeded(ROWS, COLS, 1),
			seeded(1, COLS, 2), seeded(1, COLS, 3), 1e-5f);
		hash = hash_mix(hash + hash_of(y)) + hash_of(stats);
	}
	return hash;
}

static uint64_t run_norm_bwd_x(struct device *d)
{
	uint64_t hash = 0;
	for (int kind = 0; kind < 2; kind++) {
		struct mat dx = seeded(ROWS, COLS, 1);
		d->k->norm_bwd_x(d, kind, dx, seeded(ROWS, COLS, 2),
			seeded(ROWS, COLS, 3), seeded(2, ROWS, 4), seeded(1, COLS, 5));
		hash = hash_mix(hash + hash_of(dx));
	}
	return hash;
}

static uint64_t run_norm_bwd_w(struct device *d)
{
	struct mat dgamma = mat_blank(1, COLS), dbeta = mat_blank(1, COLS);
	d->k->norm_bwd_w(d, NORM_LAYER, dgamma, dbeta, seeded(ROWS, COLS, 1),
		seeded(ROWS, COLS, 2), seeded(2, ROWS, 3), 3, ROWS - 10);
	return hash_of(dgamma) ^ hash_of(dbeta);
}

static uint64_t run_norm_bwd(struct device *d)
{
	const struct norm_grads to = {.dx = seeded(ROWS, COLS, 1),
		.dgamma = mat_blank(1, COLS),
		.dbeta = mat_blank(1, COLS)};
	d->k->norm_bwd(d, NORM_LAYER, &to, seeded(ROWS, COLS, 2), seeded(ROWS, COLS, 3),
		seeded(2, ROWS, 4), seeded(1, COLS, 5), 3, ROWS - 10);
	return hash_of(to.dgamma) ^ hash_of(to.dbeta) ^ hash_of(to.dx);
}

static uint64_t run_rope(struct device *d)
{
	struct mat x = seeded(ROWS, HEADS * DIM, 1);
	d->k->rope(d, x, DIM, seeded(ROWS, DIM, 2), pos, 1);
	return hash_of(x);
}

static struct attn attn_shape(void)
{
	return (struct attn){
		.batch = BATCH,
		.heads = HEADS,
		.kv_heads = KV_HEADS,
		.dim = DIM,
		.q_rows = SEQ,
		.k_rows = SEQ,
		.q_first = {75, 225}, /* the first of two chunks, and itself */
		.k_first = {75, 225},
		.scale = 0.3f,
		.drop = {.key = {{1, 2}}, .p = 0.1f, .step = counter(0)},
	};
}

/* Documents of 20 to 80 tokens, by sequence, for the positions of attn_shape(). */
static const int32_t *document_starts(void)
{
	int32_t *start = ints(BATCH * SEQ);
	for (int i = 0; i < BATCH * SEQ; i++) {
		int row = i % SEQ, at = row < SEQ / 2 ? 75 + row : 225 + row - SEQ / 2;
		start[i] = at - at % (20 + 30 * (i / SEQ));
	}
	return start;
}

static uint64_t attn_fwd_hash(struct device *d, struct attn a)
{
	int64_t n = BATCH * SEQ;
	struct mat o = mat_blank(n, HEADS * DIM), max = mat_blank(n, HEADS),
		   sum = mat_blank(n, HEADS);
	d->k->attn_fwd(d, &a, o, max.p, sum.p, seeded(n, HEADS * DIM, 1),
		seeded(n, KV_HEADS * DIM, 2), seeded(n, KV_HEADS * DIM, 3), true, true);
	return hash_of(o) ^ hash_of(max);
}

/* Where numbers are finite. */
static uint64_t finite_hash(struct mat m)
{
	float *x = m.p;
	for (int64_t i = 0; i < mat_size(m); i++)
		x[i] = isfinite(x[i]);
	return hash_of(m);
}

/* The probabilities that a causal mask makes 0 meet an infinite value, and an infinite gradient. */
static uint64_t attn_infinite_hash(struct device *d)
{
	enum { AT = 29 };
	struct attn a = attn_shape();
	int64_t n = BATCH * SEQ, q = HEADS * DIM, kv = KV_HEADS * DIM;
	struct mat o = mat_blank(n, q), max = mat_blank(n, HEADS),
		   sum = mat_blank(n, HEADS);
	struct mat v = seeded(n, kv, 3), dout = seeded(n, q, 5);
	struct mat dq = seeded(n, q, 1), dk = seeded(n, kv, 2), dv = seeded(n, kv, 3);
	struct mat delta = mat_blank(n, HEADS), lse = seeded(n, HEADS, 4);
	((float *)v.p)[AT * kv] = INFINITY;
	((float *)dout.p)[AT * q] = INFINITY;
	d->k->attn_fwd(
		d, &a, o, max.p, sum.p, seeded(n, q, 1), seeded(n, kv, 2), v, true, true);
	d->k->attn_bwd(d, &a, dq, dk, dv, delta.p, dout, seeded(n, q, 6), lse.p,
		seeded(n, q, 7), seeded(n, kv, 8), seeded(n, kv, 9), true);
	return finite_hash(o) ^ finite_hash(dq) ^ hash_mix(finite_hash(dk)) ^
	       hash_mix(finite_hash(dv) + 1);
}

static uint64_t run_attn_fwd(struct device *d)
{
	struct attn a = attn_shape(), b = a;
	b.start = document_starts();
	uint64_t stream = attn_fwd_hash(d, a), documents = attn_fwd_hash(d, b);
	assert_true(stream != documents);
	return hash_mix(stream) ^ documents ^ attn_infinite_hash(d);
}

static uint64_t attn_bwd_hash(struct device *d, struct attn a)
{
	int64_t n = BATCH * SEQ, q = HEADS * DIM, kv = KV_HEADS * DIM;
	struct mat dq = seeded(n, q, 1), dk = seeded(n, kv, 2), dv = seeded(n, kv, 3);
	struct mat delta = mat_blank(n, HEADS), lse = seeded(n, HEADS, 4);
	d->k->attn_bwd(d, &a, dq, dk, dv, delta.p, seeded(n, q, 5), seeded(n, q, 6),
		lse.p, seeded(n, q, 7), seeded(n, kv, 8), seeded(n, kv, 9), true);
	return hash_of(dq) ^ hash_of(dk) ^ hash_of(dv) ^ hash_of(delta);
}

static uint64_t run_attn_bwd(struct device *d)
{
	struct attn a = attn_shape(), b = a;
	b.start = document_starts();
	uint64_t stream = attn_bwd_hash(d, a), documents = attn_bwd_hash(d, b);
	assert_true(stream != documents);
	return hash_mix(stream) ^ documents;
}

static uint64_t run_act_fwd(struct device *d)
{
	uint64_t hash = 0;
	for (int kind = 0; kind < 3; kind++) {
		struct mat y = mat_blank(ROWS, COLS);
		d->k->act_fwd(d, kind, y, seeded(ROWS, COLS, 1), seeded(ROWS, COLS, 2));
		hash = hash_mix(hash + hash_of(y));
	}
	return hash;
}

static uint64_t run_act_bwd(struct device *d)
{
	uint64_t hash = 0;
	for (int kind = 0; kind < 3; kind++) {
		bool gated = kind == ACT_SWIGLU;
		struct mat da = mat_blank(ROWS, COLS), db = seeded(ROWS, COLS, 1);
		d->k->act_bwd(d, kind, da, gated ? db : nothing, seeded(ROWS, COLS, 2),
			seeded(ROWS, COLS, 3), gated ? seeded(ROWS, COLS, 4) : nothing);
		hash = hash_mix(hash + hash_of(da)) + hash_of(db);
	}
	return hash;
}

static uint64_t run_add(struct device *d)
{
	struct mat y = mat_blank(ROWS, COLS);
	d->k->add(d, y, seeded(ROWS, COLS, 1), seeded(ROWS, COLS, 2));
	return hash_of(y);
}

static uint64_t run_dropout(struct device *d)
{
	struct dropout o = {.key = {{5, 6}},
		.p = 0.2f,
		.step = counter(0),
		.pos = pos,
		.seq_rows = 43};
	struct mat y = mat_blank(ROWS, COLS);
	o.first_col = 3;
	d->k->dropout(d, y, seeded(ROWS, COLS, 1), &o);
	return hash_of(y);
}

static uint64_t run_residual(struct device *d)
{
	struct dropout o = {.key = {{1, 2}},
		.p = 0.1f,
		.step = counter(0),
		.pos = pos,
		.seq_rows = 100};
	struct mat y = mat_blank(ROWS, COLS);
	d->k->residual(d, y, seeded(ROWS, COLS, 1), seeded(ROWS, COLS, 2),
		seeded(1, COLS, 3), &o);
	return hash_of(y);
}

static uint64_t run_residual_norm(struct device *d)
{
	struct mat y = mat_blank(ROWS, COLS);
	const struct norm n = {NORM_RMS, mat_blank(ROWS, COLS), mat_blank(2, ROWS),
		seeded(1, COLS, 4), nothing, 1e-5f};
	d->k->residual_norm(d, y, seeded(ROWS, COLS, 1), seeded(ROWS, COLS, 2),
		seeded(1, COLS, 3), NULL, &n);
	return hash_of(y) ^ hash_of(n.h) ^ hash_of(n.stats);
}

/* Casts of floats of all magnitudes to every format. */
static uint64_t run_round(struct device *d)
{
	uint64_t hash = 0;
	struct mat x = mat_blank(ROWS, COLS), y = mat_blank(ROWS, COLS);
	for (int64_t i = 0; i < N; i++) {
		uint32_t bits = (uint32_t)i * 67601u;
		memcpy((float *)x.p + i, &bits, sizeof(bits));
	}
	for (int type = DT_F32; type <= DT_E5M2; type++) {
		d->k->round(d, y, x, type, 0.7f);
		hash = hash_mix(hash + hash_of(y));
	}
	return hash;
}

/* Casts of floats of all magnitudes to 16 bits, and back. */
static uint64_t both_ways(struct device *d, enum dtype type, uint64_t *narrow)
{
	uint16_t *packed = shorts(N);
	struct mat x = mat_blank(ROWS, COLS), y = mat_blank(ROWS, COLS);
	for (int64_t i = 0; i < N; i++) {
		uint32_t bits = (uint32_t)i * 67601u;
		memcpy((float *)x.p + i, &bits, sizeof(bits));
	}
	d->k->narrow(d, packed, x, type);
	d->k->widen(d, y, packed, type);
	*narrow = hash_bytes(packed, N * sizeof(*packed), 0);
	return hash_of(y);
}

static uint64_t run_narrow(struct device *d)
{
	uint64_t bf16, fp16;
	both_ways(d, DT_BF16, &bf16);
	both_ways(d, DT_F16, &fp16);
	return bf16 ^ hash_mix(fp16);
}

static uint64_t run_widen(struct device *d)
{
	uint64_t unused;
	return both_ways(d, DT_BF16, &unused) ^ hash_mix(both_ways(d, DT_F16, &unused));
}

static uint64_t run_narrow_scaled(struct device *d)
{
	uint8_t *packed = (uint8_t *)shorts(N);
	d->k->narrow_scaled(d, packed, seeded(ROWS, COLS, 1), scalar(5));
	return hash_bytes(packed, N, 0);
}

static uint64_t run_widen_scaled(struct device *d)
{
	uint8_t *packed = (uint8_t *)shorts(N);
	struct mat y = mat_blank(ROWS, COLS);
	for (int64_t i = 0; i < N; i++)
		packed[i] = (uint8_t)i;
	d->k->widen_scaled(d, y, packed, scalar(5));
	return hash_of(y);
}

static uint64_t run_round_scaled(struct device *d)
{
	struct mat y = mat_blank(ROWS, COLS);
	float *inverse = scalar(0);
	d->k->round_scaled(d, y, inverse, seeded(ROWS, COLS, 1), DT_E4M3, scalar(5));
	return hash_of(y) ^ hash_of(mat(inverse, 1, 1));
}

static uint64_t run_amax(struct device *d)
{
	float most = amax_of(d, seeded(ROWS, COLS, 1));
	return hash_bytes(&most, sizeof(most), 0);
}

static uint64_t run_xent_stats(struct device *d)
{
	struct mat max = mat_blank(1, ROWS), sum = mat_blank(1, ROWS),
		   target = mat_blank(1, ROWS);
	d->k->xent_stats(
		d, max.p, sum.p, target.p, seeded(ROWS, COLS, 1), ids, 0, COLS - 5);
	return hash_of(max) ^ hash_of(sum) ^ hash_of(target);
}

static uint64_t run_xent_join(struct device *d)
{
	enum { LONG = 40000 };
	struct mat lse = mat_blank(1, LONG), loss = mat_blank(1, LONG),
		   sum = seeded(3, LONG, 1);
	for (int64_t i = 0; i < 3 * LONG; i++)
		((float *)sum.p)[i] = 1 + fabsf(((float *)sum.p)[i]);
	d->k->xent_join(d, lse.p, loss.p, seeded(3, LONG, 2).p, sum.p,
		seeded(3, LONG, 3).p, 3, LONG);
	return hash_of(lse) ^ hash_of(loss);
}

static uint64_t run_xent_bwd(struct device *d)
{
	struct mat x = seeded(ROWS, COLS, 1);
	d->k->xent_bwd(d, x, seeded(1, ROWS, 2).p, ids, 0, COLS - 5, scalar(0.1f));
	return hash_of(x);
}

static uint64_t run_xent_fused(struct device *d)
{
	struct mat x = seeded(ROWS, COLS, 1), loss = mat_blank(1, ROWS);
	d->k->xent_fused(d, loss.p, x, ids, COLS - 5, scalar(0.1f));
	return hash_of(x) ^ hash_of(loss);
}

static uint64_t run_adamw(struct device *d)
{
	struct update a = {.lr = 0.1f,
		.beta1 = 0.9f,
		.beta2 = 0.99f,
		.eps = 1e-8f,
		.grad_scale = 0.7f,
		.correct1 = 0.3f,
		.correct2 = 0.03f};
	struct mat p = seeded(ROWS, COLS, 1), m = seeded(ROWS, COLS, 2),
		   v = mat_blank(ROWS, COLS);
	d->k->zero(d, v);
	const struct update_part part = {.p = p.p,
		.m = m.p,
		.v = v.p,
		.g = seeded(ROWS, COLS, 3).p,
		.n = N,
		.decay = 0.1f};
	d->k->adamw(d, &part, 1, there(&a, sizeof(a)));
	return hash_of(p) ^ hash_of(m) ^ hash_of(v);
}

static const struct update momentum = {
	.lr = 0.7f, .momentum = 0.9f, .nesterov = true, .grad_scale = 0.3f};

/* An update kernel, which writes p and m. */
static uint64_t run_update(struct device *d, kern_sgd *kernel, bool has_m)
{
	struct mat p = seeded(ROWS, COLS, 1), m = seeded(ROWS, COLS, 2);
	const struct update_part part = {.p = p.p,
		.m = has_m ? m.p : NULL,
		.g = seeded(ROWS, COLS, 3).p,
		.n = N,
		.decay = 0.1f,
		.rate = 3};
	kernel(d, &part, 1, there(&momentum, sizeof(momentum)));
	return hash_of(p) ^ hash_of(m);
}

static uint64_t run_sgd(struct device *d)
{
	return run_update(d, d->k->sgd, true) ^ run_update(d, d->k->sgd, false);
}

static uint64_t run_muon_momentum(struct device *d)
{
	return run_update(d, d->k->muon_momentum, true);
}

static uint64_t run_muon_update(struct device *d)
{
	return run_update(d, d->k->muon_update, false);
}

static const struct sliced in_three = {ROWS, COLS / 3 * 3, 3};

static uint64_t run_muon_normalize(struct device *d)
{
	struct mat x = mat_blank(ROWS, in_three.cols), from = seeded(ROWS, COLS, 1);
	struct exact *squares = exact_zero();
	d->k->exact_sumsq(d, squares, &from, 1);
	d->k->muon_normalize(d, x, from.p, &in_three, squares);
	return hash_of(x);
}

static uint64_t run_muon_unpack(struct device *d)
{
	struct mat to = mat_blank(ROWS, in_three.cols);
	d->k->muon_unpack(d, to.p, seeded(ROWS, COLS, 1), &in_three);
	return hash_of(to);
}

static uint64_t run_axpby(struct device *d)
{
	struct mat y = seeded(ROWS, COLS, 1);
	d->k->axpby(d, y, 0.3f, seeded(ROWS, COLS, 2), -1.7f);
	return hash_of(y);
}

static uint64_t run_combine(struct device *d)
{
	static const float weight[] = {0.3f, 0.1f, 0, 0.4f, 0.2f};
	const float *x[ARRAY_LEN(weight)];
	const struct combine c = {ARRAY_LEN(weight), weight, SIGN_VOTE_SUM, true};
	struct mat out = mat_blank(ROWS, COLS);
	for (size_t i = 0; i < ARRAY_LEN(weight); i++)
		x[i] = seeded(ROWS, COLS, 1 + i).p;
	d->k->combine(d, out.p, x, N, &c);
	return hash_of(out);
}

static uint64_t run_keep_largest(struct device *d)
{
	struct mat x = seeded(ROWS, COLS, 1);
	d->k->keep_largest(d, x, COLS / 3);
	return hash_of(x);
}

static uint64_t run_count_sizes(struct device *d)
{
	struct mat counts = mat_blank(1, 512); /* 256 of 64 bits */
	d->k->zero(d, counts);
	d->k->count_sizes(d, counts.p, seeded(ROWS, COLS, 1), 0, 24);
	d->k->count_sizes(d, counts.p, seeded(ROWS, COLS, 1), 0x3f << 24, 16);
	return hash_of(counts);
}

static uint64_t run_keep_sizes(struct device *d)
{
	struct mat x = seeded(ROWS, COLS, 1);
	d->k->keep_sizes(d, x, 0x3f << 24);
	return hash_of(x);
}

static uint64_t run_keep_random(struct device *d)
{
	struct keep keep = {0.3f, 1, {{{1, 2}}, 5, 0}, 6};
	struct mat x = seeded(ROWS, COLS, 1);
	d->k->keep_random(d, x, &keep);
	return hash_of(x);
}

static uint64_t run_sub(struct device *d)
{
	struct mat y = mat_blank(ROWS, COLS);
	d->k->sub(d, y, seeded(ROWS, COLS, 1), seeded(ROWS, COLS, 2));
	return hash_of(y);
}

static uint64_t run_round_stochastic(struct device *d)
{
	struct mat x = seeded(ROWS, COLS, 1);
	d->k->round_stochastic(d, x, &(struct rng_stream){{{1, 2}}, 5, 0});
	return hash_of(x);
}

/* Rounding to nearest, then stochastic rounding. */
static uint64_t run_quantise(struct device *d)
{
	uint64_t hash = 0;
	for (int random = 0; random < 2; random++) {
		struct mat x = seeded(ROWS, COLS, 1);
		float *scales = floats(ROWS);
		int8_t *codes = (int8_t *)floats(N);
		d->k->quantise(d, x, codes, scales,
			random ? &(struct rng_stream){{{1, 2}}, 5, 0} : NULL);
		hash = hash * 3 + hash_of(x) + hash_bytes(codes, N, 0) +
		       hash_bytes(scales, ROWS * sizeof(*scales), 0);
	}
	return hash;
}

static uint64_t run_dequantise(struct device *d)
{
	struct mat x = seeded(ROWS, COLS, 1);
	int8_t *codes = (int8_t *)floats(N);
	for (int64_t i = 0; i < N; i++)
		codes[i] = (int8_t)(i * 7);
	d->k->dequantise(d, x, codes, seeded(1, ROWS, 2).p);
	return hash_of(x);
}

enum { PICKED = COLS / 3 };

static uint64_t run_topk_pack(struct device *d)
{
	float *values = floats(ROWS * PICKED), *places = floats(ROWS * PICKED);
	d->k->topk_pack(d, values, places, true, seeded(ROWS, COLS, 1), PICKED);
	return hash_bytes(values, ROWS * PICKED * sizeof(*values), 0) ^
	       hash_bytes(places, ROWS * PICKED * sizeof(*places), 1);
}

static uint64_t run_topk_scatter(struct device *d)
{
	struct mat x = seeded(ROWS, COLS, 1);
	uint16_t *places = (uint16_t *)(void *)floats(ROWS * PICKED);
	for (int64_t i = 0; i < ROWS * PICKED; i++)
		places[i] = (uint16_t)(i * 7 % COLS);
	d->k->topk_scatter(d, x, seeded(ROWS, PICKED, 2).p, places, false, PICKED);
	return hash_of(x);
}

static uint64_t run_step_end(struct device *d)
{
	const struct step_terms terms = {
		.update = {.lr = 0.1f}, .count = 77, .max_norm = 0.3, .scale = 8};
	struct exact *loss = exact_zero(), *squares = exact_zero();
	struct step_end none = {.loss = 0}, *e = there(&none, sizeof(none));
	struct mat x = seeded(ROWS, COLS, 1);
	d->k->exact_sum(d, loss, x.p, N);
	d->k->exact_sumsq(d, squares, &x, 1);
	d->k->step_end(d, e, loss, squares, there(&terms, sizeof(terms)));
	const float made[] = {e->loss, e->grad_norm, e->update.grad_scale, e->update.lr};
	return hash_bytes(made, sizeof(made), 0);
}

static uint64_t run_exact_sum(struct device *d)
{
	struct exact *x = exact_zero();
	d->k->exact_sum(d, x, seeded(ROWS, COLS, 1).p, N);
	return hash_bytes(x, sizeof(*x), 0);
}

static uint64_t run_exact_sumsq(struct device *d)
{
	struct exact *x = exact_zero();
	const struct mat m = seeded(ROWS, COLS, 1);
	d->k->exact_sumsq(d, x, &m, 1);
	return hash_bytes(x, sizeof(*x), 0);
}

static uint64_t run_grid_sum(struct device *d)
{
	struct grid none = {.exponent = 30}, *grid = there(&none, sizeof(none));
	int64_t *sum = (int64_t *)(void *)doubles(N);
	struct mat rounded = mat_blank(ROWS, COLS), x = seeded(ROWS, COLS, 1);
	((float *)x.p)[N / 2] = 1e30f;
	const struct grid_part parts[] = {{.leaf = x.p},
		{.leaf = seeded(ROWS, COLS, 2).p}, {.sum = (void *)doubles(N)}};
	const struct grid_sum s = {.sum = sum,
		.rounded = rounded.p,
		.parts = parts,
		.n_parts = ARRAY_LEN(parts),
		.n = N,
		.levels = 2};
	d->k->grid_sum(d, &s, grid);
	return hash_bytes(sum, N * sizeof(*sum), 0) ^ hash_of(rounded) ^ grid->beyond;
}

static uint64_t run_grid_count(struct device *d)
{
	const struct grid counted = {.beyond = 3, .not_finite = 5};
	struct exact *x = exact_zero();
	d->k->grid_count(d, x, there(&counted, sizeof(counted)));
	return hash_bytes(x, sizeof(*x), 0);
}

static uint64_t run_normal(struct device *d)
{
	struct mat x = mat_blank(ROWS, COLS);
	const struct normal o = {0, 1, 3, {{{1, 2}}, 5, COLS + 7}};
	d->k->normal(d, x, &o);
	return hash_of(x);
}

static uint64_t run_zero(struct device *d)
{
	struct mat x = seeded(ROWS, COLS, 1);
	d->k->zero(d, x);
	return hash_of(x);
}

static uint64_t run_copy(struct device *d)
{
	struct mat x = mat_blank(ROWS, COLS);
	d->k->copy(d, x, seeded(ROWS, COLS, 1));
	return hash_of(x);
}

static uint64_t run_find_nonfinite(struct device *d)
{
	struct mat x = seeded(ROWS, COLS, 1);
	for (int64_t i = N / 3; i < N; i += 100)
		((float *)x.p)[i] = NAN;
	return (uint64_t)d->k->find_nonfinite(d, x);
}

static uint64_t run_hash(struct device *d)
{
	return kernel_hash(d, seeded(ROWS, COLS, 1).p, N, 7, 8);
}

static uint64_t run_linear_row(struct device *d)
{
	struct mat y = mat_blank(19, 530);
	d->k->linear_row(
		d, y, seeded(19, COLS, 1), seeded(530, COLS, 2), seeded(1, 530, 3));
	return hash_of(y);
}

static uint64_t run_attn_row(struct device *d)
{
	struct mat o = mat_blank(19, HEADS * DIM);
	d->k->attn_row(d, o, seeded(19, HEADS * DIM, 1), seeded(SEQ, KV_HEADS * DIM, 2),
		seeded(SEQ, KV_HEADS * DIM, 3), HEADS, KV_HEADS, DIM, SEQ - 19, 0.3f);
	return hash_of(o);
}

/* ---- the comparisons ------------------------------------------------------------- */

/* Generated from the list of kernels: a kernel without a run_ function does not compile. */
static const struct kernel_run {
	const char *name;
	uint64_t (*run)(struct device *);
} runs[] = {
#define KERNEL(type, name, ...) {#name, run_##name},
#include "kernels/list.h"
};

static void rows_begin(void)
{
	ids = ints(ROWS);
	pos = ints(ROWS);
	for (int i = 0; i < ROWS; i++) {
		ids[i] = (int32_t)(test_uniform(1, i) * VOCAB);
		pos[i] = (int32_t)(test_uniform(2, i) * ROWS);
	}
}

static void threads(void **state)
{
	struct device *d = *state;
	for (size_t i = 0; i < ARRAY_LEN(runs); i++) {
		rows_begin();
		test_device_reopen(NULL, 1);
		uint64_t alone = runs[i].run(d);
		for (int n = 2; n <= 3; n++) {
			test_device_reopen(NULL, n);
			for (int again = 0; again < 2; again++)
				if (runs[i].run(d) != alone)
					fail_msg("%s: other bits on %d threads",
						runs[i].name, n);
		}
		assert_int_equal(memory_end(NULL), 0);
	}
	test_device_reopen(NULL, 0);
}

static void instruction_sets(void **state)
{
	struct device *d = *state;
	only_on_cpu();
	rows_begin();
	for (size_t i = 0; i < ARRAY_LEN(runs); i++) {
		test_device_reopen("sse2", 0);
		uint64_t sse2 = runs[i].run(d);
		test_device_reopen(NULL, 0);
		if (runs[i].run(d) != sse2)
			fail_msg("%s: other bits than with sse2", runs[i].name);
	}
}

/* e^x in xent_bwd, and the activations, on floats of all magnitudes. */
static uint64_t run_functions(struct device *d)
{
	enum { STEP = 4099, WIDE = 1024 };
	int64_t rows = (UINT32_MAX / STEP) / WIDE;
	struct mat x = mat_blank(rows, WIDE), one = mat_blank(rows, WIDE),
		   y = mat_blank(rows, WIDE);
	struct mat lse = mat_blank(1, rows);
	int32_t *none = ints(rows);
	for (int64_t i = 0; i < rows * WIDE; i++) {
		uint32_t bits = (uint32_t)i * STEP;
		float *to = (float *)x.p + i;
		memcpy(to, &bits, sizeof(bits));
		*to = isfinite(*to) ? *to : 0;
		((float *)one.p)[i] = 1;
	}
	for (int64_t i = 0; i < rows; i++)
		none[i] = -1;
	d->k->zero(d, lse);
	uint64_t hash = 0;
	for (int kind = 0; kind < 3; kind++) {
		d->k->act_fwd(d, kind, y, x, one);
		hash = hash_mix(hash + hash_of(y));
	}
	d->k->xent_bwd(d, x, lse.p, none, 0, WIDE, scalar(1));
	return hash_mix(hash + hash_of(x));
}

static void functions(void **state)
{
	struct device *d = *state;
	only_on_cpu();
	test_device_reopen("sse2", 0);
	uint64_t sse2 = run_functions(d);
	test_device_reopen(NULL, 0);
	assert_true(run_functions(d) == sse2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		on_device(threads),
		on_device(instruction_sets),
		on_device(functions),
	};
	return run_on_device(tests);
}
