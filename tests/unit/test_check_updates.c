/* pt-check: right moments and wrong updates: missing, with the wrong sign, or with another
 * rate. */
#include "tests/support/check_step.h"
#include "tests/support/support.h"
#include "kernels/dtype_bits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct err e;

/* Sets tensor i after the step to so many times the update and so many times the decay. */
static void move(struct step *s, int i, double update, double decay)
{
	const struct adam *a = &s->adam;
	for (int64_t j = 0; j < tensor_size(&s->w.m.tensors[i]); j++) {
		double p = (double)s->of[0][MODEL][i][j];
		double shrink = a->lr * a->decay * p;
		double d = p - shrink - (double)s->of[1][MODEL][i][j];
		s->of[1][MODEL][i][j] = (float)(p - decay * shrink - update * d);
	}
}

static void move_all(struct step *s, int every, double update, double decay)
{
	for (int i = 0; i < s->w.m.n_tensors; i += every)
		move(s, i, update, decay);
}

/* Checks the step without a batch. Returns the printed text and JSON. */
static char *check_printed(struct step *s, bool *wrong, struct str *json)
{
	const struct strs none = {0};
	struct step_check c;
	struct str out = {0};
	const struct check_job job = {
		step_file(s, 0), step_file(s, 1), &none, {.end = -1}, s->adam};
	if (step_check_run(&c, &plain_check, &job, &e))
		fail_msg("%s", e.msg);
	step_check_print(&c, &out);
	step_check_json(&c, json);
	*wrong = c.wrong;
	step_check_close(&c);
	return out.s;
}

static void expect_printed(struct step *s, bool is_wrong, const char *text)
{
	struct str json = {0};
	bool wrong;
	char *out = check_printed(s, &wrong, &json);
	if (wrong != is_wrong || !strstr(out, text))
		fail_msg("wanted: %s\n%s", text, out);
	free(out);
	str_free(&json);
}

/* With --lr and without it. */
TEST(wrong_sign)
{
	for (int k = 0; k < 4; k++) {
		struct step s;
		step_begin(&s, LLAMA);
		s.no_batch = k < 2;
		s.warm = k & 1;
		step_train(&s);
		move_all(&s, 1, -1, 1);
		step_expect(&s, &plain_check, "update: it has the wrong sign");
		s.adam.lr = -1;
		step_expect(&s, &plain_check,
			"update: it has the wrong sign: the learning rate that explains it is "
			"-0.001");
		step_end(&s);
	}
}

TEST(missing_updates)
{
	for (int k = 0; k < 4; k++) {
		struct step s;
		step_begin(&s, LLAMA);
		s.no_batch = k < 2;
		step_train(&s);
		move_all(&s, 1, 0, 1);
		s.adam.lr = k & 1 ? 1e-3 : -1;
		step_expect(&s, &plain_check,
			"update: missing: the parameters only shrank, by 0.0001 of "
			"themselves");
		step_end(&s);
	}
}

/* Wrong updates of half of the tensors, with and without decay, and an opposite sign in one. */
TEST(half_of_updates)
{
	for (int decay = 0; decay < 2; decay++) {
		struct step s;
		step_begin(&s, LLAMA);
		step_train(&s);
		move_all(&s, 2, 0, decay);
		s.adam.lr = -1;
		step_expect(&s, &plain_check,
			decay ? "tok_embeddings.weight and 10 more: has a gradient, but no "
				"update: at most weight decay changed it\n"
			      : "tok_embeddings.weight and 10 more: has a gradient, but did "
				"not change\n");
		step_end(&s);
	}
	struct step s;
	step_begin(&s, LLAMA);
	step_train(&s);
	move(&s, step_tensor(&s, "layers.0.attention.wo.weight"), -1, 1);
	step_expect(&s, &plain_check,
		"wo.weight: update: it has the opposite sign: learning rate -0.001");
	step_end(&s);
}

/* Twice the rate is wrong if --lr differs, and a note if no rate is known. */
TEST(rates_of_their_own)
{
	struct step s;
	step_begin(&s, LLAMA);
	s.no_batch = true;
	step_train(&s);
	move(&s, step_tensor(&s, "layers.0.attention.wo.weight"), 2, 2);
	expect_printed(&s, true, "wo.weight: learning rate 0.002 instead of 0.001");
	s.adam.lr = -1;
	expect_printed(
		&s, false, "note    layers.0.attention.wo.weight: learning rate 0.002");
	step_end(&s);
}

/* Missing bias corrections: the decay distinguishes their factor from another rate. */
TEST(bias_of_one_moment)
{
	static const struct {
		double times;
		const char *text;
	} cases[] = {{0.1, "update: as if the bias of exp_avg is not corrected"},
		{4.47213595, "update: as if the bias of exp_avg_sq is not corrected"},
		{0.447213595, "update: as if the moments' bias is not corrected"}};
	for (size_t k = 0; k < 2 * ARRAY_LEN(cases); k++) {
		struct step s;
		step_begin(&s, LLAMA);
		s.no_batch = k & 1;
		s.adam.eps = 1e-14;
		step_train(&s);
		move_all(&s, 1, cases[k / 2].times, 1);
		s.adam.lr = k & 1 ? 1e-3 : -1;
		step_expect(&s, &plain_check, cases[k / 2].text);
		step_end(&s);
	}
}

/* Returns the update of one element after the warm step 7 by another optimizer. */
static double other_update(const struct step *s, int kind, int i, int64_t j)
{
	const double beta1 = 0.9, beta2 = 0.95;
	const double m0 = (double)s->of[0][EXP_AVG][i][j],
		     m = (double)s->of[1][EXP_AVG][i][j];
	const double v0 = (double)s->of[0][EXP_AVG_SQ][i][j],
		     v = (double)s->of[1][EXP_AVG_SQ][i][j];
	const double g = (m - beta1 * m0) / (1 - beta1), correction = 1 - pow(beta2, 7);
	const double nesterov =
		beta1 * m / (1 - pow(beta1, 8)) + (1 - beta1) * g / (1 - pow(beta1, 7));
	return kind == 0   ? nesterov / sqrt(v / correction)
	       : kind == 1 ? g / sqrt(v)
			   : m / (1 - pow(beta1, 7)) / sqrt(fmax(v, v0) / correction);
}

TEST(other_optimizers)
{
	static const char *const texts[] = {"update: as if the optimizer is NAdam\n",
		"update: as if the optimizer is RMSprop",
		"update: as if the optimizer has amsgrad"};
	for (int kind = 0; kind < (int)ARRAY_LEN(texts); kind++) {
		struct step s;
		step_begin(&s, LLAMA);
		s.warm = true;
		step_train(&s);
		for (int i = 0; i < s.w.m.n_tensors; i++)
			for (int64_t j = 0; j < tensor_size(&s.w.m.tensors[i]); j++)
				s.of[1][MODEL][i][j] =
					(float)((double)s.of[0][MODEL][i][j] *
							(1 - 1e-4) -
						1e-3 * other_update(&s, kind, i, j));
		step_expect(&s, &plain_check, texts[kind]);
		step_end(&s);
	}
}

/* exp_avg_sq was zero before the step, although the file before it has other values. */
TEST(lost_squares)
{
	struct step s;
	step_begin(&s, LLAMA);
	s.warm = true;
	step_train(&s);
	for (int i = 0; i < s.w.m.n_tensors; i++)
		for (int64_t j = 0; j < tensor_size(&s.w.m.tensors[i]); j++)
			s.of[1][EXP_AVG_SQ][i][j] -= 0.95f * s.of[0][EXP_AVG_SQ][i][j];
	step_expect(&s, &plain_check, "exp_avg_sq: as if it were zero before the step\n");
	step_end(&s);
}

/* Parameters slightly above 1 in bf16, which rounds them after the decay and after the update. */
TEST(update_rounded_twice)
{
	const double lr = 0.05, decay = 1;
	struct step s;
	step_begin(&s, LLAMA);
	s.no_batch = true;
	s.adam.lr = s.adam.decay = -1;
	step_train(&s);
	for (int i = 0; i < s.w.m.n_tensors; i++)
		for (int64_t j = 0; j < tensor_size(&s.w.m.tensors[i]); j++) {
			float *p = &s.of[0][MODEL][i][j];
			double m = (double)s.of[1][EXP_AVG][i][j] / (1 - 0.9);
			double v = (double)s.of[1][EXP_AVG_SQ][i][j] / (1 - 0.95);
			*p = round_bf16(
				(float)(1.12 + 0.06 * fabs(sin((double)(i + 3 * j)))));
			float decayed =
				round_bf16((float)((1 - lr * decay) * (double)*p));
			s.of[1][MODEL][i][j] = round_bf16(
				(float)((double)decayed - lr * m / (sqrt(v) + 1e-8)));
		}
	step_expect(&s, &plain_check, NULL);
	step_end(&s);
}

/* An eps that is large enough to show where it is added. */
TEST(place_of_eps)
{
	struct step s;
	step_begin(&s, LLAMA);
	step_train(&s);
	s.adam.eps = 1e-3;
	for (int i = 0; i < s.w.m.n_tensors; i++)
		for (int64_t j = 0; j < tensor_size(&s.w.m.tensors[i]); j++) {
			double m = (double)s.of[1][EXP_AVG][i][j] / 0.1;
			double v = (double)s.of[1][EXP_AVG_SQ][i][j];
			double p = (double)s.of[0][MODEL][i][j];
			s.of[1][MODEL][i][j] =
				(float)(p * (1 - 1e-4) -
					1e-3 * m / ((sqrt(v) + 1e-3) / sqrt(0.05)));
		}
	step_expect(&s, &plain_check,
		"update: as if eps is added before the bias of exp_avg_sq is corrected");
	step_end(&s);
}

/* Parameters so large that rounding hides the update; in all tensors, or in some. */
TEST(hidden_updates)
{
	for (int some = 0; some < 2; some++) {
		struct step s;
		struct str json = {0};
		bool wrong;
		step_begin(&s, LLAMA);
		s.no_batch = true;
		s.adam.decay = 0;
		for (int i = 0; i < s.w.m.n_tensors; i++)
			for (int64_t j = 0;
				(!some || i < 3) && j < tensor_size(&s.w.m.tensors[i]);
				j++)
				s.w.w[i][j] = 30000;
		step_train(&s);
		s.adam.lr = -1;
		char *out = check_printed(&s, &wrong, &json);
		assert_false(wrong);
		assert_non_null(strstr(out, "update  NOT checked: "));
		assert_non_null(strstr(out,
			some ? "without a batch, but the update of 3 tensors was not checked"
			     : "without a batch, but its update was not checked"));
		assert_non_null(strstr(json.s, "\"update\": {\n  \"checked\": false"));
		assert_non_null(strstr(json.s, "\"moments\": {\n  \"checked\": true"));
		free(out);
		str_free(&json);
		step_end(&s);
	}
}

/* Parameters in bf16 lose a decay below half of their last digit. */
TEST(decay_below_rounding)
{
	struct step s;
	step_begin(&s, LLAMA);
	s.no_batch = true;
	s.adam.lr = 0.015;
	step_train(&s);
	for (int i = 0; i < s.w.m.n_tensors; i++)
		for (int64_t j = 0; j < tensor_size(&s.w.m.tensors[i]); j++) {
			float *p0 = &s.of[0][MODEL][i][j], *p1 = &s.of[1][MODEL][i][j];
			float kept = *p0 * (1 - 0.015f * (float)s.adam.decay);
			float update = kept - *p1;
			*p0 = round_bf16(*p0);
			kept = round_bf16(*p0 * (1 - 0.015f * (float)s.adam.decay));
			*p1 = round_bf16(kept - update);
		}
	expect_printed(&s, false, "parameters: all values are bf16 numbers");
	step_end(&s);
}

/* Norms whose weights are almost equal, and are updated by the same amount: rounding then moves the weight decay that is
 * solved for by up to 0.04. */
TEST(decay_along_the_update)
{
	struct step s;
	step_begin(&s, LLAMA);
	s.no_batch = true;
	s.adam.lr = 1e-4;
	for (int i = 0; i < s.w.m.n_tensors; i++)
		for (int64_t j = 0;
			s.w.m.tensors[i].ndim == 1 && j < s.w.m.tensors[i].dims[0]; j++) {
			s.w.w[i][j] = 1 + (s.w.w[i][j] - 1) / 30;
			s.g.g[i][j] = fabsf(s.g.g[i][j]) + 1e-3f;
		}
	step_train(&s);
	step_expect(&s, &plain_check, NULL);
	step_end(&s);
}

/* Norms whose weights and updates are nearly parallel, so that no decay is fitted: the decay leaves
 * its part across the update. Adds `excess` times that part to the update. */
static void check_decay_across(bool is_given, double excess, const char *text)
{
	const double lr = 0.01, decay = 0.2;
	struct step s;
	step_begin(&s, LLAMA);
	s.no_batch = true;
	s.adam.lr = lr;
	s.adam.decay = decay;
	for (int i = 0; i < s.w.m.n_tensors; i++)
		for (int64_t j = 0;
			s.w.m.tensors[i].ndim == 1 && j < s.w.m.tensors[i].dims[0]; j++) {
			s.w.w[i][j] = 1 + 6e-4f * (float)test_normal(90 + i, j);
			s.g.g[i][j] = fabsf(s.g.g[i][j]) + 1e-3f;
		}
	step_train(&s);
	for (int i = 0; i < s.w.m.n_tensors; i++)
		for (int64_t j = 0;
			s.w.m.tensors[i].ndim == 1 && j < s.w.m.tensors[i].dims[0]; j++)
			s.of[1][MODEL][i][j] -=
				(float)(excess * lr * decay *
					((double)s.of[0][MODEL][i][j] - 1));
	s.adam.decay = is_given ? decay : -1;
	step_expect(&s, &plain_check, text);
	step_end(&s);
}

TEST(decay_across_the_update)
{
	for (int is_given = 0; is_given < 2; is_given++) {
		check_decay_across(is_given, 0, NULL);
		check_decay_across(is_given, 2, "update  16 of 21 within bounds; ");
	}
}
