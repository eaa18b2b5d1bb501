/* pt-check: the float64 model compared with the trainer's kernels and finite
 * differences; made-up steps with wrong scales and updates. test_check_causes.c has wrong
 * gradients, and tests/bench/oracle has steps of other programs. */
#include "base/file.h"
#include "check/check.h"
#include "foreign/foreign.h"
#include "engine/options.h"
#include "tests/support/check_step.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct err e;

/* ---- the float64 model ------------------------------------------------------------------ */

/* The trainer's fp32 kernels compute the same function as float64. */
TEST(as_the_trainer)
{
	static const char *const configs[] = {LLAMA, GPT2, LLAMA "tie = yes\n",
		LLAMA
		"rope-scaling = llama3\nrope-factor = 8\nrope-low = 1\nrope-high = 4\n"
		"rope-original = 8192\n",
		LLAMA
		"rope-scaling = yarn\nrope-factor = 4\nrope-original = 64\nrope-theta = 100\n",
		LLAMA
		"act = geglu-tanh\nrotary-channels = 4\nattention-scale = 0.7\nhead-dim = 10\n",
		LLAMA "qk-norm = yes\nhead-dim = 6\nnope-every = 2\n",
		GPT2 "act = gelu\n", GPT2 "tie = no\nbias = no\n"};
	for (size_t k = 0; k < ARRAY_LEN(configs); k++) {
		struct step s;
		struct gradients g;
		step_begin(&s, configs[k]);
		if (reference_trainer(&s.w, &s.batch, PRECISION_FP32, &g, &e))
			fail_msg("%s", e.msg);
		assert_near(g.loss, s.g.loss, 1e-6);
		assert_near(g.norm, s.g.norm, 1e-5 * s.g.norm);
		for (int i = 0; i < g.n; i++) {
			const struct products p = products_of(
				g.g[i], s.g.g[i], tensor_size(&s.w.m.tensors[i]));
			if (p.bb > 1e-12)
				assert_true(residual_of(&p, 1) < 1e-5);
		}
		gradients_free(&g);
		step_end(&s);
	}
}

/* The parts of each kind add up to the whole gradient. */
TEST(parts_add_up)
{
	static const enum part_kind kinds[] = {
		PART_CHUNK, PART_ZIGZAG, PART_SLICE, PART_USE};
	for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
		struct step s;
		struct gradients g[2];
		step_begin(&s, LLAMA "tie = yes\nqk-norm = yes\n");
		for (int i = 0; i < 2; i++) {
			const struct variant v = {
				.sequence = -1, .part = {kinds[k], 2, i}};
			reference_float64(&s.w, &s.batch, &v, &g[i]);
		}
		for (int i = 0; i < s.g.n; i++) {
			const struct tensor *t = &s.w.m.tensors[i];
			bool norm = strstr(t->name, "norm") != NULL;
			bool split = kinds[k] == PART_SLICE ? norm
				     : kinds[k] == PART_USE ? t == s.w.m.tokens
							    : true;
			for (int64_t j = 0; j < tensor_size(t); j++)
				assert_near((double)g[0].g[i][j] +
						    (split ? (double)g[1].g[i][j] : 0),
					(double)s.g.g[i][j], 1e-6 * s.g.norm);
		}
		gradients_free(&g[0]);
		gradients_free(&g[1]);
		step_end(&s);
	}
}

/* Pairs of variants with the same mask: a window of one token, and chunks of one token; a
 * border after each token, and each also sees the next one; chunk by chunk with one token
 * each, and no mask. */
TEST(masks_agree)
{
	static const struct variant pairs[][2] = {
		{{.sequence = -1, .window = 1}, {.sequence = -1, .unseen = LENGTH}},
		{{.sequence = -1, .mask = MASK_BORDER, .mask_chunks = LENGTH},
			{.sequence = -1, .mask = MASK_ONE_LATER}},
		{{.sequence = -1, .mask = MASK_CHUNK_BY_CHUNK, .mask_chunks = LENGTH},
			{.sequence = -1}},
		{{.sequence = -1, .unseen = LENGTH, .before = 2},
			{.sequence = -1, .window = 3}}};
	for (size_t k = 0; k < ARRAY_LEN(pairs); k++) {
		struct step s;
		struct gradients g[2];
		step_begin(&s, LLAMA);
		for (int i = 0; i < 2; i++)
			reference_float64(&s.w, &s.batch, &pairs[k][i], &g[i]);
		assert_near(g[0].loss, g[1].loss, 1e-12);
		assert_near(g[0].norm, g[1].norm, 1e-12);
		assert_int_equal(k == 2, fabs(g[0].loss - s.g.loss) < 1e-9);
		gradients_free(&g[0]);
		gradients_free(&g[1]);
		step_end(&s);
	}
}

/* A model's own window equals a variant's window, and layers may have no window. */
TEST(own_window)
{
	static const char *const configs[] = {LLAMA "sliding-window = 3\n",
		LLAMA "sliding-window = 3\nsliding-window-from = 100\n",
		LLAMA "sliding-window = 3\nsliding-window-skip = 1\n"};
	static const struct variant as[] = {{.sequence = -1, .window = 3},
		{.sequence = -1, .window = LENGTH}, {.sequence = -1, .window = LENGTH}};
	for (size_t k = 0; k < ARRAY_LEN(configs); k++) {
		struct step s;
		struct gradients g;
		step_begin(&s, configs[k]);
		reference_float64(&s.w, &s.batch, &as[k], &g);
		for (int i = 0; i < g.n; i++)
			for (int64_t j = 0; j < tensor_size(&s.w.m.tensors[i]); j++)
				assert_near((double)g.g[i][j], (double)s.g.g[i][j],
					1e-6 * s.g.norm);
		gradients_free(&g);
		step_end(&s);
	}
}

static void without_final_norm(struct model *m)
{
	m->norm = m->norm_bias = NULL;
}

/* Along its gradient, a function rises by the gradient's norm; functions of bugs, too. */
TEST(finite_differences)
{
	static const struct variant of[] = {{.sequence = -1},
		{.sequence = -1, .function = {.score_cap = 0.1}},
		{.sequence = -1, .function = {.logit_cap = 0.5}},
		{.sequence = -1, .function = {.logit_scale = 0.7, .logit_cap = 0.5}},
		{.sequence = -1, .mask = MASK_BORDER, .mask_chunks = 2},
		{.sequence = -1, .mask = MASK_CHUNK_BY_CHUNK, .mask_chunks = 4},
		{.sequence = -1, .function = {.path = {PATH_NO_RESIDUAL, 1, FFN}}},
		{.sequence = -1, .function = {.path = {PATH_NO_RESIDUAL, -1, ATTENTION}}},
		{.sequence = -1, .function = {.path = {PATH_SKIPPED, 0, 0}}},
		{.sequence = -1, .function = {.path = {PATH_TWICE, 1, 0}}},
		{.sequence = -1, .window = 3}, {.sequence = -1, .mask = MASK_NOT_SELF},
		{.sequence = -1, .mask = MASK_ALL_CHUNKS, .mask_chunks = 2},
		{.sequence = -1, .other_norm = true, .norm_offset = 1},
		{.sequence = -1, .scaled = {".w2."}, .scale = 0.7, .zeroed = {"wo.bias"}},
		{.sequence = -1, .act = ACT_RELU}, {.sequence = -1, .act = ACT_SILU},
		{.sequence = -1, .act = ACT_PLAIN_GELU},
		{.sequence = -1, .act = ACT_TANH_GELU},
		{.sequence = -1, .function = {.rotated = 4, .alibi = true}},
		{.sequence = -1,
			.function = {.softmax_plus_one = true, .values_exchanged = true}},
		{.sequence = -1, .function = {.window_layer = 1, .layer_window = 3}},
		{.sequence = -1, .function = {.path = {PATH_PARALLEL, -1, 0}}},
		{.sequence = -1, .function = {.path = {PATH_SWAPPED, 0, 0, 1}}},
		{.sequence = -1, .change = without_final_norm}};
	for (size_t k = 0; k < 2 * ARRAY_LEN(of); k++) {
		struct step s;
		struct gradients g, at[2];
		const struct variant *v = &of[k / 2];
		step_begin(&s, k % 2 ? GPT2 : LLAMA);
		reference_float64(&s.w, &s.batch, v, &g);
		for (int side = 0; side < 2; side++) {
			double h = (side ? -2e-3 : 1e-3) / g.norm;
			for (int i = 0; i < g.n; i++)
				for (int64_t j = 0; j < tensor_size(&s.w.m.tensors[i]);
					j++)
					s.w.w[i][j] += (float)(h * (double)g.g[i][j]);
			reference_float64(&s.w, &s.batch, v, &at[side]);
		}
		assert_near((at[0].loss - at[1].loss) / 2e-3, g.norm,
			v->act == ACT_RELU ? 5e-3 * g.norm
					   : 1e-4 * g.norm); /* (second-order terms) */
		gradients_free(&g);
		gradients_free(&at[0]);
		gradients_free(&at[1]);
		step_end(&s);
	}
}

/* A layer that adds nothing may as well be skipped. The other layers keep their numbers,
 * and some have no rotary positions. */
TEST(layer_left_out)
{
	static const char *const outputs[] = {
		"layers.0.attention.wo.weight", "layers.0.feed_forward.w2.weight"};
	const struct variant without = {
		.sequence = -1, .function = {.path = {PATH_SKIPPED, 0, 0}}};
	struct step s;
	struct gradients g[2];
	step_begin(&s, LLAMA "layers = 3\nnope-every = 2\n");
	for (int k = 0; k < 2; k++) {
		int i = step_tensor(&s, outputs[k]);
		memset(s.w.w[i], 0,
			(size_t)tensor_size(&s.w.m.tensors[i]) * sizeof(float));
	}
	reference_float64(&s.w, &s.batch, &(struct variant){.sequence = -1}, &g[0]);
	reference_float64(&s.w, &s.batch, &without, &g[1]);
	for (int i = 0; i < g->n; i++)
		for (int64_t j = 0; j < tensor_size(&s.w.m.tensors[i]); j++)
			assert_near((double)g[1].g[i][j],
				s.w.m.tensors[i].unit == 1 ? 0 : (double)g[0].g[i][j],
				1e-7);
	gradients_free(&g[0]);
	gradients_free(&g[1]);
	step_end(&s);
}

/* Without one sequence's targets, the mean is the mean of the other sequences. */
TEST(masked_targets)
{
	struct step s;
	struct gradients masked, one;
	step_begin(&s, LLAMA);
	reference_float64(&s.w, &s.batch, &(struct variant){.sequence = 3}, &one);
	for (int t = 0; t < LENGTH; t++)
		s.batch.targets[3 * LENGTH + t] = -1;
	s.batch.counted -= LENGTH;
	reference_float64(&s.w, &s.batch, &(struct variant){.sequence = -1}, &masked);
	assert_near(masked.loss, (s.g.loss - one.loss) * 4 / 3, 1e-12);
	for (int i = 0; i < s.g.n; i++)
		for (int64_t j = 0; j < tensor_size(&s.w.m.tensors[i]); j++)
			assert_near((double)masked.g[i][j],
				((double)s.g.g[i][j] - (double)one.g[i][j]) * 4 / 3,
				1e-6 * s.g.norm);
	gradients_free(&one);
	/* the trainer's kernels compute it, too */
	s.batch.masked = true;
	s.batch.targets[5] = s.batch.targets[LENGTH - 1] = -1;
	s.batch.counted -= 2;
	gradients_free(&masked);
	reference_float64(&s.w, &s.batch, &(struct variant){.sequence = -1}, &masked);
	if (reference_trainer(&s.w, &s.batch, PRECISION_FP32, &one, &e))
		fail_msg("%s", e.msg);
	assert_near(one.loss, masked.loss, 1e-6);
	for (int i = 0; i < one.n; i++) {
		const struct products p = products_of(
			one.g[i], masked.g[i], tensor_size(&s.w.m.tensors[i]));
		assert_true(residual_of(&p, 1) < 1e-5);
	}
	gradients_free(&masked);
	gradients_free(&one);
	step_end(&s);
}

/* ---- right steps -------------------------------------------------------------------------- */

TEST(right_steps)
{
	static const char *const configs[] = {LLAMA, GPT2, LLAMA "tie = yes\n",
		LLAMA "qk-norm = yes\n", LLAMA "nope-every = 2\n"};
	for (size_t k = 0; k < ARRAY_LEN(configs); k++)
		for (int warm = 0; warm < 2; warm++)
			for (int clip = 0; clip < 2; clip++) {
				struct step s;
				struct check_opts o = plain_check;
				step_begin(&s, configs[k]);
				s.warm = warm;
				s.adam.clip = clip ? 0.5 : 0;
				o.grad_norm = s.g.norm;
				step_train(&s);
				step_expect(&s, &o, NULL);
				step_end(&s);
			}
}

/* ---- what else is checked -------------------------------------------------------------------- */

/* A logged value may be off by half a unit of its last digit. */
TEST(logged_digits)
{
	struct step s;
	struct check_opts o = plain_check;
	step_begin(&s, LLAMA);
	step_train(&s);
	o.grad_norm = s.g.norm + 0.004;
	o.loss = s.g.loss - 0.004;
	o.grad_norm_half = o.loss_half = 0.005;
	step_expect(&s, &o, NULL);
	o.grad_norm_half = 0.0005;
	step_expect(&s, &o, "scale: grad_norm");
	step_end(&s);
	/* without clipping, only the logged norm is wrong */
	step_begin(&s, LLAMA);
	s.adam.clip = 0;
	step_train(&s);
	o = plain_check;
	o.grad_norm = 0.7 * s.g.norm;
	step_expect(&s, &o, "verdict: wrong: 1 finding\n");
	step_end(&s);
}

/* The second of two runs is not finite. */
TEST(nan_in_two_runs)
{
	struct step s;
	struct step_check c;
	const struct strs none = {0};
	step_begin(&s, LLAMA);
	s.warm = true;
	step_train(&s);
	for (int k = 0; k < GROUPS; k++)
		for (int i = 0; i < s.w.m.n_tensors; i++)
			memcpy(s.of[0][k][i], s.of[1][k][i],
				(size_t)tensor_size(&s.w.m.tensors[i]) * sizeof(float));
	for (int nan = 0; nan < 2; nan++) {
		if (nan)
			s.of[1][EXP_AVG][3][7] = NAN;
		const struct check_job job = {step_file(&s, 0), step_file(&s, 1), &none,
			{.end = -1}, s.adam, true};
		if (step_check_run(&c, &plain_check, &job, &e))
			fail_msg("%s", e.msg);
		assert_int_equal(c.wrong, nan);
		assert_true(c.tested);
		step_check_close(&c);
	}
	step_end(&s);
}

/* The gradients of two runs differ in all norms, or in all norms except one. */
TEST(norms_of_two_runs)
{
	struct step s;
	struct step_check c;
	const struct strs none = {0};
	for (int some = 0; some < 2; some++) {
		step_begin(&s, LLAMA);
		s.warm = true;
		step_train(&s);
		for (int i = 0; i < s.w.m.n_tensors; i++)
			for (int64_t j = 0; j < tensor_size(&s.w.m.tensors[i]); j++) {
				bool norm = s.w.m.tensors[i].ndim == 1 && i > some * 2;
				float *mean = s.of[1][EXP_AVG][i];
				s.of[0][EXP_AVG][i][j] = mean[j];
				mean[j] *= norm && j % 3 == 0 ? 0.5F : 1;
			}
		const struct check_job job = {step_file(&s, 0), step_file(&s, 1), &none,
			{.end = -1}, s.adam, true};
		if (step_check_run(&c, &plain_check, &job, &e))
			fail_msg("%s", e.msg);
		assert_int_equal(c.n_findings, 1);
		if (some)
			assert_string_equal(c.findings[0].text, "no known cause");
		else
			assert_non_null(
				strstr(c.findings[0].text, "only norms are wrong"));
		step_check_close(&c);
		step_end(&s);
	}
}

/* With more findings than fit, the last entry collects the rest and is not a note. */
TEST(many_findings)
{
	struct step s;
	step_begin(&s,
		"arch = llama\nlayers = 9\nheads = 4\ndim = 32\nffn-dim = 48\nvocab = 60\n"
		"vocab-multiple = 1\ncontext = 16\n");
	for (int i = 0; i < s.w.m.n_tensors; i++)
		for (int64_t j = 0; j < tensor_size(&s.w.m.tensors[i]); j++)
			s.g.g[i][j] *= (float)(1 + i * 0.01);
	step_train(&s);
	step_expect(&s, &plain_check, "more findings; --json lists all tensors");
	step_end(&s);
}

/* ---- wrong scales ---------------------------------------------------------------------------- */

static void scale_all(struct step *s, double by)
{
	for (int i = 0; i < s->w.m.n_tensors; i++)
		step_scale(s, s->w.m.tensors[i].name, by);
}

TEST(wrong_scales)
{
	struct step s;
	struct check_opts o = plain_check;
	o.dp = 4;
	/* not divided by dp: clipping hides it, except in the logged norm */
	step_begin(&s, LLAMA);
	scale_all(&s, 4);
	step_train(&s);
	step_expect(&s, &o, NULL);
	o.grad_norm = 4 * s.g.norm;
	step_expect(&s, &o, "4 times: not divided by the 4 data-parallel ranks");
	step_end(&s);
	/* and without clipping */
	o.grad_norm = -1;
	step_begin(&s, LLAMA);
	s.adam.clip = 0;
	scale_all(&s, 4);
	step_train(&s);
	step_expect(&s, &o,
		"all gradients are 4 times: not divided by the 4 data-parallel ranks");
	step_end(&s);
	/* gradient ascent is not clipping, with and without --clip and --grad-norm */
	for (int k = 0; k < 4; k++) {
		step_begin(&s, LLAMA);
		scale_all(&s, -1);
		step_train(&s);
		s.adam.clip = k & 1 ? 0.5 : -1;
		o.grad_norm = k & 2 ? s.g.norm : -1;
		step_expect(
			&s, &o, "finding scale: all gradients are negated: the loss is");
		step_expect(&s, &o, "verdict: wrong: 1 finding\n");
		step_end(&s);
	}
	o.grad_norm = -1;
	/* nor is a factor above 1 */
	step_begin(&s, LLAMA);
	s.adam.clip = 0;
	scale_all(&s, 1.5);
	step_train(&s);
	s.adam.clip = -1;
	step_expect(&s, &o, "scale: all gradients are 1.5 times");
	step_end(&s);
	/* clipped by the norm of some tensors only */
	step_begin(&s, LLAMA);
	s.grad_norm = 0.7 * s.g.norm;
	step_train(&s);
	step_expect(&s, &plain_check, "it was divided by 0.7 of its norm");
	step_end(&s);
	/* not clipped at all */
	step_begin(&s, LLAMA);
	s.grad_norm = 0.1 * s.adam.clip;
	step_train(&s);
	step_expect(&s, &plain_check, "clip: the gradient was not clipped: its norm is ");
	step_end(&s);
	/* a factor that exp_avg_sq shares is not a wrong beta1: 1 - beta2 is small by default */
	step_begin(&s, LLAMA);
	s.adam.clip = 0;
	s.adam.beta2 = 0.999;
	scale_all(&s, 0.94);
	step_train(&s);
	step_expect(&s, &plain_check, "finding scale: all gradients are 0.94 times");
	step_expect(&s, &plain_check, "verdict: wrong: 1 finding\n");
	step_end(&s);
}

/* ---- wrong updates ---------------------------------------------------------------------------- */

/* With clipping, only the last of three layers has a right backward pass. The factor of
 * the right tensors is the clipping factor, whether --clip is given or not. */
TEST(third_is_right)
{
	static const char *const clips[] = {
		"as if clipped to 0.5 (--clip 0.5?)", ", clipping to 0.5"};
	for (int told = 0; told < 2; told++) {
		struct step s;
		step_begin(&s, LLAMA "layers = 3\n");
		for (int i = 0; i < s.w.m.n_tensors; i++)
			for (int64_t j = 0; s.w.m.tensors[i].unit < 3 &&
					    j < tensor_size(&s.w.m.tensors[i]);
				j++)
				s.g.g[i][j] *= 0.2F + (float)test_uniform(i, j);
		step_train(&s);
		s.adam.clip = told ? 0.5 : -1;
		step_expect(&s, &plain_check, clips[told]);
		step_expect(&s, &plain_check, "grads   11 of 30 within bounds");
		step_end(&s);
	}
}

TEST(wrong_updates)
{
	struct step s;
	step_begin(&s, LLAMA);
	s.uncorrected = true;
	step_train(&s);
	step_expect(&s, &plain_check, "bias is not corrected");
	step_end(&s);

	step_begin(&s, LLAMA);
	step_train(&s);
	s.adam.beta2 = 0.999; /* as an option */
	step_expect(&s, &plain_check, "as if beta2 were 0.95 instead of 0.999");
	s.adam.beta2 = 0.95;
	s.adam.decay = 0.3;
	step_expect(&s, &plain_check, "weight decay 0.1 instead of 0.3");
	s.adam.decay = 0.1;
	s.adam.lr = 2e-3;
	step_expect(&s, &plain_check, "learning rate 0.001 instead of 0.002");
	s.adam.lr = 1e-3;
	int i = step_tensor(&s, "layers.0.feed_forward.w1.weight");
	memcpy(s.of[1][MODEL][i], s.of[0][MODEL][i], 48 * 32 * sizeof(float));
	step_expect(&s, &plain_check, "has a gradient, but did not change");
	step_end(&s);

	step_begin(&s, LLAMA);
	step_train(&s);
	s.of[1][EXP_AVG][3][7] = NAN;
	step_expect(&s, &plain_check, "not finite");
	step_end(&s);
}

/* The norm's weights are 1 and its gradients have one sign: its decay is not another
 * learning rate, but twice the rate is. */
TEST(norm_of_one_sign)
{
	for (int k = 0; k < 3; k++) {
		struct step s;
		step_begin(&s, LLAMA);
		s.no_batch = true;
		int i = step_tensor(&s, "norm.weight");
		for (int j = 0; j < 32; j++) {
			s.w.w[i][j] = 1;
			s.g.g[i][j] = copysignf(0.01F + fabsf(s.g.g[i][j]), k ? 1 : -1);
		}
		step_train(&s);
		for (int j = 0; k == 2 && j < 32; j++)
			s.of[1][MODEL][i][j] = 2 * s.of[1][MODEL][i][j] - 1;
		const struct strs none = {0};
		struct step_check c;
		const struct check_job job = {
			step_file(&s, 0), step_file(&s, 1), &none, {.end = -1}, s.adam};
		if (step_check_run(&c, &plain_check, &job, &e))
			fail_msg("%s", e.msg);
		assert_int_equal(c.n_findings, k == 2);
		step_check_close(&c);
		step_end(&s);
	}
}

/* ---- without a batch, and tensors that are not trained ------------------------------------------ */

static void set_zero(struct step *s, const char *name)
{
	int i = step_tensor(s, name);
	memset(s->g.g[i], 0, (size_t)tensor_size(&s->w.m.tensors[i]) * sizeof(float));
}

static void keep_parameters(struct step *s, const char *name)
{
	int i = step_tensor(s, name);
	memcpy(s->of[1][MODEL][i], s->of[0][MODEL][i],
		(size_t)tensor_size(&s->w.m.tensors[i]) * sizeof(float));
}

TEST(without_a_batch)
{
	static const char w1[] = "layers.0.feed_forward.w1.weight";
	for (int warm = 0; warm < 2; warm++) {
		struct step s;
		step_begin(&s, LLAMA);
		s.warm = warm;
		s.no_batch = true;
		step_train(&s);
		step_expect(&s, &plain_check, NULL);
		keep_parameters(&s, w1);
		step_expect(&s, &plain_check,
			"w1.weight: has a gradient, but did not change");
		s.of[1][EXP_AVG_SQ][3][7] = INFINITY;
		step_expect(&s, &plain_check, "not finite");
		step_end(&s);

		step_begin(&s, LLAMA);
		s.warm = warm;
		s.no_batch = true;
		set_zero(&s, w1);
		step_train(&s);
		step_expect(
			&s, &plain_check, "w1.weight: no gradient: it is not trained");
		step_end(&s);
	}
}

/* The output layer equals the embedding before the step, and not after it. */
TEST(no_longer_tied)
{
	struct step s;
	struct step_check c;
	struct str out = {0};
	const struct strs none = {0};
	for (int apart = 0; apart < 2; apart++) {
		step_begin(&s, LLAMA);
		int in = step_tensor(&s, "tok_embeddings.weight"),
		    to = step_tensor(&s, "output.weight");
		size_t n_bytes = (size_t)tensor_size(&s.w.m.tensors[in]) * sizeof(float);
		memcpy(s.w.w[to], s.w.w[in], n_bytes);
		if (!apart)
			memcpy(s.g.g[to], s.g.g[in], n_bytes);
		step_train(&s);
		const struct check_job job = {
			step_file(&s, 0), step_file(&s, 1), &none, {.end = -1}, s.adam};
		if (step_check_run(&c, &plain_check, &job, &e))
			fail_msg("%s", e.msg);
		str_clear(&out);
		step_check_print(&c, &out);
		assert_false(c.wrong);
		assert_int_equal(
			strstr(out.s, "note    output.weight: equaled the embedding "
				      "before this step") != NULL,
			apart);
		step_check_close(&c);
		step_end(&s);
	}
	str_free(&out);
}

/* Returns the norm of the reference. */
static double norm_seen(struct step *s)
{
	struct strs files = {0};
	struct step_check c;
	strs_add(&files, s->batch_file);
	const struct check_job job = {step_file(s, 0), step_file(s, 1), &files,
		{.shape = "4,17", .end = -1}, s->adam, false, s->freeze};
	if (step_check_run(&c, &plain_check, &job, &e))
		fail_msg("%s", e.msg);
	double norm = c.reference.norm;
	step_check_close(&c);
	strs_free(&files);
	return norm;
}

/* Frozen tensors do not count in the norm. If AdamW has them anyway, weight decay shrinks them. */
TEST(frozen_tensors)
{
	static const char w1[] = "layers.0.feed_forward.w1.weight";
	struct check_opts o = plain_check;
	struct strs freeze = {0};
	strs_add(&freeze, "layers.0.*w1");
	for (int k = 0; k < 4; k++) {
		struct step s;
		step_begin(&s, LLAMA);
		s.warm = k & 1;
		s.no_batch = k & 2;
		set_zero(&s, w1);
		o.grad_norm = step_norm(&s);
		step_train(&s);
		if (s.warm) { /* it has no gradient */
			int i = step_tensor(&s, w1);
			for (int g = EXP_AVG; g < GROUPS; g++)
				for (int f = 0; f < 2; f++)
					memset(s.of[f][g][i], 0, 48 * 32 * sizeof(float));
		}
		s.freeze = &freeze;
		if (!s.warm)
			step_expect(&s, &o,
				"w1.weight: is frozen (--freeze), but changed: weight decay alone");
		keep_parameters(&s, w1);
		step_expect(&s, &o, NULL);
		if (!s.no_batch)
			assert_near(norm_seen(&s), o.grad_norm, 1e-6 * o.grad_norm);
		s.freeze = NULL;
		step_expect(&s, &o, "no gradient: it is not trained (--freeze), or");
		step_end(&s);

		step_begin(&s, LLAMA);
		s.no_batch = k & 2;
		step_train(&s);
		s.freeze = &freeze;
		step_expect(&s, &plain_check,
			"w1.weight: is frozen (--freeze), but has a gradient");
		step_expect(
			&s, &plain_check, "w1.weight: is frozen (--freeze), but changed");
		step_end(&s);
	}
	strs_free(&freeze);
}
