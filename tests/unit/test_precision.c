/* train: the precision of products. Each one trains, near fp32 and apart from it; linear
 * layers compute what their recipe says; fp16's scale follows overflows, through checkpoints
 * too. */
#include "model/block.h"
#include "tests/support/support.h"
#include "plan/fit.h"
#include "engine/state.h"
#include "engine/step.h"
#include "model/linear.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct err e;
static const char *shard;

static const char gpt2[] =
	"arch = gpt2\nlayers = 3\nheads = 4\ndim = 32\ncontext = 16\nbatch = 8\n"
	"micro-batch = 2\nsteps = 60\nwarmup = 5\nlr = 0.01\ndropout = 0.1\nthreads = 1\n"
	"eval-windows = 8\n";
static const char llama[] =
	"arch = llama\nlayers = 3\nheads = 4\nkv-heads = 2\ndim = 32\nffn-dim = 48\n"
	"context = 16\nbatch = 6\nmicro-batch = 2\nsteps = 60\nwarmup = 5\nlr = 0.01\n"
	"virtual = tp=2,cp=2\nthreads = 1\neval-windows = 8\n";

/* A run alone. */
struct alone {
	struct train_opts o;
	struct comm *dp;
	struct dataset data;
	struct trainer t;
	struct plan plan;
};

static void run_open(struct alone *r, const char *text, const char *more)
{
	struct str all = {0};
	str_printf(&all, "%s%s", text, more);
	e = (struct err){0};
	if (opts_from_text(&train_program, &r->o, all.s, false, &e) ||
		options_check(&r->o, &e))
		die_err(&e);
	strs_add(&r->o.data, shard);
	r->dp = comm_self("dp");
	if (dataset_open(&r->data, &r->o, r->dp, &e) ||
		trainer_open(&r->t, &r->o, r->dp, &r->data, &r->plan, &e))
		die_err(&e);
	str_free(&all);
}

static void run_close(struct alone *r)
{
	trainer_close(&r->t);
	dataset_close(&r->data);
	comm_free(r->dp);
	strs_free(&r->o.data);
}

/* ---- training -------------------------------------------------------------------- */

struct curve {
	float first, last;
	double val;
	uint64_t hash; /* of the parameters at the end */
	bool plain;
};

static struct curve train(const char *text, const char *more)
{
	struct alone r;
	struct curve c = {0};
	run_open(&r, text, more);
	for (int64_t i = 0; i < r.o.steps; i++) {
		struct step_result s;
		step_run(&r.t, NULL, &s);
		assert_false(s.bad);
		assert_false(s.skipped);
		c.first = i ? c.first : s.loss;
		c.last = s.loss;
	}
	c.val = eval_loss(&r.t, SPLIT_VAL);
	c.hash = store_hash(r.t.store);
	c.plain = r.t.pass.c.plain_kernels;
	assert_int_equal(r.t.memory.scratch.peak_bytes, r.plan.scratch_bytes);
	assert_int_equal(r.t.memory.run.peak_bytes, r.plan.run_bytes);
	run_close(&r);
	return c;
}

/* Near is what the format's last bit allows: the first loss is of equal weights. */
static void check_dtype(const char *text, const char *dtype, struct curve plain,
	double first, struct curve *out)
{
	char more[100];
	snprintf(more, sizeof(more), "dtype = %s\n", dtype);
	struct curve c = *out = train(text, more);
	print_message("# %s: first loss %+.2g, validation %+.2g of %.3f\n", dtype,
		(double)(c.first - plain.first), c.val - plain.val, plain.val);
	assert_true(c.last < 0.8f * c.first);
	assert_true(c.first != plain.first && c.last != plain.last && c.val != plain.val);
	assert_near((double)c.first, (double)plain.first, first);
	assert_near(c.val, plain.val, 0.05);
}

TEST(each_trains)
{
	static const char *const texts[] = {gpt2, llama};
	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		struct curve plain = train(texts[i], ""), bf16, fp16, float8, all;
		check_dtype(texts[i], "bf16", plain, 2e-3, &bf16);
		check_dtype(texts[i], "fp16", plain, 3e-4, &fp16);
		check_dtype(texts[i], "float8", plain, 1e-2, &float8);
		check_dtype(texts[i], "float8\nfloat8-skip-ends = no", plain, 1e-2, &all);
		assert_true(float8.first != bf16.first && all.first != float8.first);
		assert_true(fp16.first != bf16.first);
	}
}

TEST(arithmetic_is_told)
{
	static const char *const dtypes[] = {"fp32", "bf16", "fp16", "float8"};
	struct str was = {0};
	for (size_t i = 0; i < ARRAY_LEN(dtypes); i++) {
		struct train_opts o;
		struct model m;
		struct str text = {0};
		char more[100], *line;
		snprintf(more, sizeof(more), "dtype = %s\n", dtypes[i]);
		assert_int_equal(opts_from_text(&train_program, &o, more, false, &e), 0);
		assert_int_equal(model_init(&m, &o.model, 65, &e), 0);
		options_print_arithmetic(&o, &m, "CPU", 1, &text);
		line = strstr(text.s, more);
		assert_non_null(line);
		assert_null(strstr(line + 1, "\ndtype ="));
		assert_true(!i || strcmp(text.s, was.s) != 0);
		str_free(&was);
		was = text;
		model_free(&m);
	}
	str_free(&was);
}

TEST(float8_of_nothing_is_refused)
{
	struct train_opts o;
	struct dataset data;
	struct trainer t;
	struct comm *dp = comm_self("dp");
	e = (struct err){0};
	assert_int_equal(
		opts_from_text(&train_program, &o,
			"layers = 2\ncontext = 16\nthreads = 1\ndtype = float8\n", false,
			&e),
		0);
	assert_int_equal(options_check(&o, &e), 0);
	strs_add(&o.data, shard);
	assert_int_equal(dataset_open(&data, &o, dp, &e), 0);
	assert_int_equal(trainer_open(&t, &o, dp, &data, NULL, &e), -1);
	assert_int_equal(e.code, EX_USAGE);
	assert_non_null(strstr(e.msg, "no-float8-skip-ends"));
	dataset_close(&data);
	comm_free(dp);
	strs_free(&o.data);
}

/* Fused kernels are another arithmetic by name, and on the CPU the same by bits. */
TEST(plain_kernels_give_the_same)
{
	static const char *const texts[] = {gpt2, llama};
	static const char *const dtypes[] = {"fp32", "bf16"};
	for (int i = 0; i < 4; i++) {
		char more[2][100];
		for (int k = 0; k < 2; k++)
			snprintf(more[k], sizeof(more[k]),
				"steps = 10\ndtype = %s\nkernels = %s\n", dtypes[i / 2],
				k ? "ref" : "fused");
		struct curve a = train(texts[i % 2], more[0]);
		struct curve b = train(texts[i % 2], more[1]);
		assert_true(a.first == b.first && a.last == b.last && a.val == b.val);
		assert_true(a.hash == b.hash && !a.plain && b.plain);
	}
}

/* ---- a linear layer, by its recipe ------------------------------------------------ */

/* Round to nearest even, with so many bits of fraction and this smallest exponent. */
static double cast(double v, int fraction, int least, double largest)
{
	int exponent;
	frexp(v, &exponent);
	double step = ldexp(1, (exponent - 1 > least ? exponent - 1 : least) - fraction);
	double y = nearbyint(v / step) * step;
	return fabs(y) <= largest ? y : copysign(largest, v);
}

static double bf16(double v)
{
	return cast(v, 7, -126, 0x1.fep127);
}

/* What torchao makes of a tensor: numbers of the format, and the scale they have. */
static float float8(double *to, const float *from, int64_t n, bool e5m2)
{
	double most = 1e-12, largest = e5m2 ? 57344 : 448;
	for (int64_t i = 0; i < n; i++)
		most = fmax(most, fabs((double)from[i]));
	float scale = (float)(largest / most);
	for (int64_t i = 0; i < n; i++)
		to[i] = cast((double)(from[i] * scale), e5m2 ? 2 : 3, e5m2 ? -14 : -6,
			largest);
	return scale;
}

enum { ROWS = 32, DIM = 32 };

static double dot(const double *a, int64_t a_step, const double *b, int64_t b_step)
{
	double sum = 0;
	for (int k = 0; k < DIM; k++)
		sum += a[k * a_step] * b[k * b_step];
	return sum;
}

/* The kernel sums in fp32, so a result may be on the other side of a middle: one step. */
static void check_product(const char *what, const float *have, const double *want)
{
	double rms = 0;
	for (int i = 0; i < ROWS * DIM; i++)
		rms += want[i] * want[i] / (ROWS * DIM);
	int exact = 0;
	for (int i = 0; i < ROWS * DIM; i++) {
		double v = bf16(want[i]);
		exact += (double)have[i] == v;
		assert_near((double)have[i], v, 0x1p-7 * fabs(v) + 1e-6 * sqrt(rms));
		assert_true(bf16((double)have[i]) == (double)have[i]);
	}
	print_message("# %s: %d of %d are the same\n", what, exact, ROWS * DIM);
	assert_true(exact > ROWS * DIM * 98 / 100);
}

static const struct tensor *attention_tensor(
	const struct model *m, int64_t layer, const char *name)
{
	char full[64];
	int i = 0;
	snprintf(full, sizeof(full), "layers.%lld.attention.%s", (long long)layer, name);
	while (strcmp(m->tensors[i].name, full))
		i++;
	return &m->tensors[i];
}

/* Stores x in bf16; x becomes what is stored. */
static struct mat half(struct device *d, uint16_t *bits, float *x)
{
	d->k->narrow(d, bits, mat(x, ROWS, DIM), DT_BF16);
	d->k->widen(d, mat(x, ROWS, DIM), bits, DT_BF16);
	return mat_typed(bits, ROWS, DIM, DT_BF16);
}

/* Layer 1 of three is float8, the others are bf16. */
static void check_recipe(struct pass *p, int64_t layer)
{
	static float x[ROWS * DIM], dy[ROWS * DIM], y[ROWS * DIM], dx[ROWS * DIM];
	static uint16_t x_bits[ROWS * DIM], dy_bits[ROWS * DIM], y_bits[ROWS * DIM];
	static double a[ROWS * DIM], b[DIM * DIM], d[ROWS * DIM], want[3][ROWS * DIM];
	const struct tensor *w = attention_tensor(p->m, layer, "wq.weight");
	const struct tensor *bias = attention_tensor(p->m, layer, "wq.bias");
	const struct loc at = {layer, 0, 0};
	struct mat wm = param(p, w, 0), bm = param(p, bias, 0);
	bool eight = layer == 1;
	test_fill(x, ROWS * DIM, 5, 3);
	test_fill(dy, ROWS * DIM, 6, 1e-4);
	test_fill(bm.p, DIM, 8, 1);
	store_updated(p->store, false);
	store_use(p->store, (int)layer + 1, -1);
	struct mat xm = half(p->d, x_bits, x), up = half(p->d, dy_bits, dy);
	const struct linear l = {.y = half(p->d, y_bits, y), .w = w, .bias = bias};
	linear_forward(p, at, &l, xm);
	p->d->k->widen(p->d, mat(y, ROWS, DIM), y_bits, DT_BF16);
	const struct linear twice[] = {{.y = up, .w = w}, {.y = up, .w = w}};
	linear_backward_x(p, at, mat(dx, ROWS, DIM), twice, 2);
	struct mat dw = leaf_buffer(p, w, at);
	linear_backward_w(p, layer, dw, up, xm, false);
	linear_round(p, dw);
	float sa = 1, sb = 1, sd = 1;
	double most = 0;
	for (int i = 0; i < ROWS * DIM; i++) {
		a[i] = (double)x[i], d[i] = (double)dy[i];
		b[i] = bf16((double)((float *)wm.p)[i]);
	}
	if (eight) {
		sa = float8(a, x, ROWS * DIM, false);
		sb = float8(b, wm.p, DIM * DIM, false);
		sd = float8(d, dy, ROWS * DIM, true);
	}
	for (int i = 0; i < ROWS * DIM; i++) {
		int r = i / DIM, c = i % DIM;
		want[0][i] =
			dot(a + r * DIM, 1, b + c * DIM, 1) / (double)sa / (double)sb;
		double shift = bf16((double)((float *)bm.p)[c]);
		want[0][i] += shift;
		want[1][i] = dot(d + r * DIM, 1, b + c, DIM) / (double)sd / (double)sb;
		want[2][i] = dot(d + r, DIM, a + c, DIM) / (double)sd / (double)sa;
		most = fmax(most, fabs(want[1][i]));
	}
	for (int i = 0; i < ROWS * DIM; i++) /* the sum of both is fp32 */
		assert_near((double)dx[i], 2 * want[1][i], 1e-6 * most);
	check_product("y", y, want[0]);
	check_product("dw", dw.p, want[2]);
}

TEST(linear_layers_keep_to_the_recipe)
{
	struct alone r;
	run_open(&r, gpt2, "dtype = float8\n");
	for (int64_t layer = 0; layer < 3; layer++)
		check_recipe(&r.t.pass, layer);
	store_discard_leaves(r.t.store);
	run_close(&r);
}

struct shown {
	struct device *d;
	const struct linear *l;
	float dw[3][DIM * DIM];
};

static void see_weights(void *with, const struct result *r)
{
	struct shown *to = with;
	for (int i = 0; i < 3; i++) {
		if (r->tensor != to->l[i].w)
			continue;
		assert_int_equal(r->x.type, DT_BF16);
		to->d->k->round(to->d, mat(to->dw[i], DIM, DIM), r->x, DT_F32, 1);
	}
}

/* Queries, keys and values, whose gradients are columns of one matrix: their input gradient has the bits of
 * one matmul, and the leaves have those of matmuls of their own. lone: a gradient is one leaf. */
static void check_joined(const char *more, bool lone)
{
	static float x[ROWS * DIM], dy[ROWS * 3 * DIM], apart[ROWS * DIM];
	static float dw[DIM * DIM], db[DIM];
	static uint16_t x_bits[ROWS * DIM], all[ROWS * 3 * DIM], one[ROWS * DIM];
	static uint16_t weights[3 * DIM * DIM], dx[2][ROWS * DIM];
	const struct loc at = {0, 0, 0};
	struct linear l[3] = {0};
	struct block_grads g;
	struct arena measured;
	struct alone r;
	run_open(&r, gpt2, more);
	struct pass *p = &r.t.pass;
	const struct kernels *k = p->d->k;
	arena_measure(&measured, "gradients");
	block_alloc_grads(p, 0, &g, &measured);
	for (int i = 0; i < 3; i++) {
		struct mat m = g.sub[ATTENTION].m[i];
		assert_int_equal(m.stride, 3 * DIM);
		assert_int_equal((char *)m.p - (char *)g.sub[ATTENTION].m[0].p,
			i * DIM * dtype_bytes(DT_BF16));
	}
	assert_int_equal(g.sub[ATTENTION].dh.type, DT_BF16);
	const struct block_tensors *b = &p->m->blocks[0];
	struct mat up = mat_typed(all, ROWS, 3 * DIM, DT_BF16);
	test_fill(x, ROWS * DIM, 5, 3);
	test_fill(dy, ROWS * 3 * DIM, 6, 1);
	struct mat xm = half(p->d, x_bits, x);
	k->narrow(p->d, all, mat(dy, ROWS, 3 * DIM), DT_BF16);
	k->widen(p->d, mat(dy, ROWS, 3 * DIM), all, DT_BF16);
	store_updated(p->store, false);
	store_use(p->store, 1, -1);
	for (int i = 0; i < 3; i++) {
		l[i] = (struct linear){.y = mat_cols(up, i * DIM, DIM),
			.w = b->sub[ATTENTION].in[i],
			.bias = b->sub[ATTENTION].in_bias[i]};
		k->narrow(p->d, weights + i * DIM * DIM, param(p, l[i].w, 0), DT_BF16);
		/* the store's copies are adjacent, so that they need not be copied again */
		assert_ptr_equal(store_operand(p->store, l[i].w, 0).p,
			(char *)store_operand(p->store, l[0].w, 0).p +
				i * DIM * DIM * dtype_bytes(DT_BF16));
	}
	linear_backward_x(p, at, mat_typed(dx[0], ROWS, DIM, DT_BF16), l, 3);
	k->linear_bwd_x(p->d, mat_typed(dx[1], ROWS, DIM, DT_BF16), up,
		mat_typed(weights, 3 * DIM, DIM, DT_BF16), false);
	assert_memory_equal(dx[0], dx[1], sizeof(dx[0]));
	static struct shown shown;
	shown.d = p->d;
	shown.l = l;
	const struct observer observer = {.see = see_weights, .with = &shown};
	p->observer = &observer;
	linear_weights(p, at, xm, l, 3);
	p->observer = NULL;
	for (int i = 0; i < 3; i++) {
		for (int64_t row = 0; row < ROWS; row++)
			memcpy(apart + row * DIM, dy + (row * 3 + i) * DIM,
				DIM * sizeof(*dy));
		struct mat alone = half(p->d, one, apart);
		linear_backward_w(p, 0, mat(dw, DIM, DIM), alone, xm, false);
		linear_round(p, mat(dw, DIM, DIM));
		k->bias_bwd(p->d, mat(db, 1, DIM), alone);
		assert_memory_equal(shown.dw[i], dw, sizeof(dw));
		if (lone)
			assert_memory_equal(leaf_buffer(p, l[i].w, at).p, dw, sizeof(dw));
		assert_memory_equal(leaf_buffer(p, l[i].bias, at).p, db, sizeof(db));
	}
	store_discard_leaves(p->store);
	run_close(&r);
}

TEST(joined_gradients_are_one_matmul)
{
	check_joined("dtype = bf16\n", false);
	check_joined("dtype = bf16\nbatch = 2\n", true);
}

/* ---- fp16 ------------------------------------------------------------------------ */

enum { STEPS = 24 };

struct trace {
	float loss[STEPS], scale[STEPS];
	bool skipped[STEPS];
	uint64_t hash[STEPS];
};

static void take_steps(struct trainer *t, int64_t from, int64_t to, struct trace *out)
{
	for (int64_t i = from; i < to; i++) {
		struct step_result s;
		step_run(t, NULL, &s);
		assert_false(s.bad);
		out->loss[i] = s.loss;
		out->scale[i] = s.loss_scale;
		out->skipped[i] = s.skipped;
		out->hash[i] = store_hash(t->store);
	}
}

static const char scaled[] =
	"dtype = fp16\nsteps = 24\nloss-scale = 1e8\nloss-scale-window = 5\n";

TEST(overflows_skip_and_halve)
{
	struct alone r;
	struct trace x;
	int good = 0, skipped = 0, grown = 0;
	run_open(&r, gpt2, scaled);
	uint64_t before = store_hash(r.t.store);
	take_steps(&r.t, 0, STEPS, &x);
	assert_true(x.scale[0] == 1e8f && x.skipped[0]);
	for (int i = 0; i < STEPS; i++) {
		uint64_t last = i ? x.hash[i - 1] : before;
		float next = i + 1 < STEPS ? x.scale[i + 1] : r.t.loss_scale;
		assert_true(isfinite(x.loss[i]));
		if (x.skipped[i]) {
			good = 0;
			skipped++;
			assert_true(x.hash[i] == last && next == x.scale[i] / 2);
			continue;
		}
		assert_true(x.hash[i] != last);
		bool grows = ++good == 5;
		assert_true(next == x.scale[i] * (grows ? 2 : 1));
		grown += grows;
		good = grows ? 0 : good;
	}
	assert_true(skipped > 3 && skipped < STEPS - 10 && grown > 0);
	assert_int_equal(r.t.skipped, skipped);
	/* skipped steps are steps, and have consumed their samples */
	assert_int_equal(r.t.step, STEPS);
	assert_int_equal(r.t.samples, STEPS * r.o.batch);
	run_close(&r);
}

/* The optimizer's own count passes over them, as in PyTorch: after skipped steps, the first
 * update has the size of a first one, which AdamW makes lr, without a decay. */
TEST(the_optimizer_counts_updates)
{
	struct alone r;
	struct step_result s;
	run_open(&r, gpt2,
		"dtype = fp16\nloss-scale = 1e8\nweight-decay = 0\nlr-schedule = "
		"constant\n"
		"warmup = 0\n");
	struct mat w = store_param(r.t.store, r.t.model.blocks[0].operand[0], 0);
	float before = ((float *)w.p)[3];
	do
		step_run(&r.t, NULL, &s);
	while (s.skipped);
	assert_true(r.t.skipped > 3);
	assert_near(fabs((double)(((float *)w.p)[3] - before)), 0.01, 1e-4);
	run_close(&r);
}

/* It is divided out again: what remains is what fp16 loses of small gradients. */
TEST(the_scale_cancels)
{
	struct trace x, y;
	struct alone r;
	run_open(&r, gpt2, "dtype = fp16\nsteps = 24\nloss-scale = 16384\n");
	take_steps(&r.t, 0, STEPS, &x);
	run_close(&r);
	run_open(&r, gpt2, "dtype = fp16\nsteps = 24\nloss-scale = 8192\n");
	take_steps(&r.t, 0, STEPS, &y);
	run_close(&r);
	for (int i = 0; i < STEPS; i++)
		assert_near((double)x.loss[i], (double)y.loss[i], 2e-3);
}

TEST(a_checkpoint_keeps_the_scale)
{
	struct trace whole = {0}, parts = {0};
	struct alone r;
	const char *path = test_path("fp16.h5");
	for (int64_t at = 2; at < STEPS; at += 5) {
		run_open(&r, llama, scaled);
		take_steps(&r.t, 0, STEPS, &whole);
		run_close(&r);
		memset(&parts, 0, sizeof(parts));
		run_open(&r, llama, scaled);
		take_steps(&r.t, 0, at, &parts);
		assert_int_equal(state_save(&r.t, path, &e), 0);
		run_close(&r);
		run_open(&r, llama, scaled);
		assert_int_equal(state_load(&r.t, path, false, &e), 0);
		assert_int_equal(r.t.step, at);
		take_steps(&r.t, at, STEPS, &parts);
		run_close(&r);
		assert_memory_equal(&whole, &parts, sizeof(whole));
		assert_int_equal(remove(path), 0);
	}
	assert_true(whole.skipped[0] && !whole.skipped[STEPS - 1]);
}

/* A run in fp32 has no scale to hand on, so the option's is taken; and one that counts more
 * skipped steps than steps is no run. */
TEST(scales_of_other_checkpoints)
{
	struct alone r;
	struct step_result s;
	const char *path = test_path("other.h5");
	run_open(&r, gpt2, "");
	step_run(&r.t, NULL, &s);
	assert_int_equal(state_save(&r.t, path, &e), 0);
	run_close(&r);
	run_open(&r, gpt2, "dtype = fp16\nloss-scale = 512\n");
	assert_int_equal(state_load(&r.t, path, false, &e), 0);
	assert_true(r.t.step == 1 && r.t.loss_scale == 512 && r.t.skipped == 0);
	assert_int_equal(remove(path), 0);
	r.t.skipped = 2;
	assert_int_equal(state_save(&r.t, path, &e), 0);
	assert_int_equal(state_load(&r.t, path, false, &e), -1);
	assert_int_equal(e.code, EX_DATAERR);
	assert_non_null(strstr(e.msg, "2 skipped of 1"));
	e = (struct err){0};
	assert_int_equal(state_load(&r.t, path, true, &e), 0); /* its weights are good */
	assert_int_equal(remove(path), 0);
	run_close(&r);
}

/* Weights that are no numbers are no matter of the scale. */
TEST(what_no_scale_helps_fails)
{
	struct alone r;
	struct step_result s;
	run_open(&r, gpt2, "dtype = fp16\n");
	((float *)store_param(r.t.store, r.t.model.norm, 0).p)[0] = NAN;
	step_run(&r.t, NULL, &s);
	assert_true(s.bad && !s.skipped);
	assert_non_null(strstr(s.why.s, "norm.weight"));
	str_free(&s.why);
	run_close(&r);
}

/* Sets column 0 of a tensor, with the other sign in even rows if `alternates`. */
static void set_column(
	const struct alone *r, const struct tensor *t, float x, bool alternates)
{
	struct mat m = store_param(r->t.store, t, 0);
	for (int64_t i = 0; i < m.rows; i++)
		((float *)m.p)[i * m.cols] = alternates && i % 2 ? -x : x;
}

/* Activations and their gradients are finite, the sum over rows is not. */
TEST(a_leaf_is_the_first_that_is_bad)
{
	struct alone r;
	struct step_result s;
	run_open(&r, gpt2, "tie = no\nmicro-batch = 8\ndropout = 0\n");
	set_column(&r, r.t.model.tokens, 1e3f, false);
	set_column(&r, r.t.model.norm, 1e-38f, false);
	set_column(&r, r.t.model.output, 3e38f, true);
	step_run(&r.t, NULL, &s);
	assert_true(s.bad);
	assert_non_null(strstr(s.why.s,
		"samples 0 to 7: first non-finite value: gradient of norm.weight, element 0"));
	str_free(&s.why);
	run_close(&r);
}

int main(void)
{
	shard = test_shard(6000);
	return tests_run();
}
