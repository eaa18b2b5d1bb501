/* pt-check: causes are reported only with evidence, and only for axes that the layout has. */
#include "tests/support/check_step.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sets the gradient to the weighted sum of the sequences' gradients. */
static void weigh_sequences(struct step *s, const double *weights)
{
	struct gradients g[SEQUENCES];
	for (int k = 0; k < SEQUENCES; k++)
		reference_float64(
			&s->w, &s->batch, &(struct variant){.sequence = k}, &g[k]);
	for (int i = 0; i < s->g.n; i++)
		for (int64_t j = 0; j < tensor_size(&s->w.m.tensors[i]); j++) {
			double sum = 0;
			for (int k = 0; k < SEQUENCES; k++)
				sum += weights[k] * (double)g[k].g[i][j];
			s->g.g[i][j] = (float)sum;
		}
	for (int k = 0; k < SEQUENCES; k++)
		gradients_free(&g[k]);
}

/* Replaces some tensors' gradients by a variant's. */
static void replace(struct step *s, const struct variant *v, const char *what)
{
	struct gradients g;
	reference_float64(&s->w, &s->batch, v, &g);
	for (int i = 0; i < g.n; i++)
		if (strstr(s->w.m.tensors[i].name, what))
			memcpy(s->g.g[i], g.g[i],
				(size_t)tensor_size(&s->w.m.tensors[i]) * sizeof(float));
	gradients_free(&g);
}

/* A weight of 0 does not hide another wrong weight. */
TEST(weights_of_sequences)
{
	static const struct {
		double weights[SEQUENCES];
		const char *text;
	} cases[] = {{{1, 0.5, 0, 1}, "(21): sequences have weights 1 0.5 0 1\n"},
		{{1, -0.5, -0.5, 0}, "(21): sequences have weights 1 -0.5 -0.5 0\n"},
		{{1, 0, 1, 0}, "(21): sequences 2 4 of 4 do not count\n"},
		{{1, 1, 3, 1}, "(21): sequences 3 of 4 count 3 times"}};
	for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
		struct step s;
		step_begin(&s, LLAMA);
		weigh_sequences(&s, cases[k].weights);
		step_train(&s);
		step_expect(&s, &plain_check, cases[k].text);
		step_end(&s);
	}
}

/* Eight elements with their own factors, which eight parts of any sum would explain. */
TEST(few_elements)
{
	struct step s;
	step_begin(&s, LLAMA "qk-norm = yes\n");
	int i = step_tensor(&s, "layers.1.attention.q_norm.weight");
	for (int j = 0; j < 8; j++)
		s.g.g[i][j] *= (float)(1 + 0.3 * test_normal(91, j));
	step_train(&s);
	step_expect(
		&s, &plain_check, "q_norm.weight (1): no known cause: the output layer");
	step_end(&s);
}

/* A cause of an axis is a question without a layout, and not reported if the layout lacks the
 * axis. */
TEST(axes_of_the_layout)
{
	static const struct {
		int64_t dp, tp, cp;
		const char *norms, *positions;
	} cases[] = {{1, 1, 1, "tensor-parallel slices: not summed over the ranks?\n",
			     "in each chunk (context parallelism?)\n"},
		{2, 1, 1, "(5): no known cause: ", "in each chunk\n"},
		{2, 2, 2, "tensor-parallel slices: not summed over the ranks\n",
			"in each chunk (context parallelism)\n"}};
	for (size_t k = 0; k < ARRAY_LEN(cases); k++)
		for (int positions = 0; positions < 2; positions++) {
			struct check_opts o = plain_check;
			struct step s;
			o.dp = cases[k].dp;
			o.tp = cases[k].tp;
			o.cp = cases[k].cp;
			step_begin(&s, LLAMA);
			if (positions)
				replace(&s,
					&(struct variant){.sequence = -1, .restart = 2},
					"");
			else
				replace(&s,
					&(struct variant){.sequence = -1,
						.part = {PART_SLICE, 2, 0}},
					"norm");
			step_train(&s);
			step_expect(
				&s, &o, positions ? cases[k].positions : cases[k].norms);
			step_end(&s);
		}
}

/* Adds noise in a random direction, this fraction of each gradient. */
static void add_noise(struct step *s, double part)
{
	for (int i = 0; i < s->g.n; i++) {
		int64_t n = tensor_size(&s->w.m.tensors[i]);
		double rms = sqrt(products_of(s->g.g[i], s->g.g[i], n).aa / (double)n);
		for (int64_t j = 0; j < n; j++)
			s->g.g[i][j] +=
				(float)(part * rms * test_normal(81 + (uint64_t)i, j));
	}
}

/* With --precision auto, two runs that differ as far as rounding to bf16 are not decided. */
TEST(unknown_precision_of_two_runs)
{
	static const double noises[] = {0, 0.008, 0.3};
	static const char *const verdicts[] = {
		"the gradients of both", "not decided: ", "wrong: "};
	for (size_t k = 0; k < ARRAY_LEN(noises); k++) {
		struct step s;
		struct step_check c;
		struct err e = {0};
		scoped_str out = {0};
		const struct strs none = {0};
		struct check_opts o = plain_check;
		step_begin(&s, LLAMA);
		s.warm = true;
		step_train(&s);
		for (int i = 0; i < s.w.m.n_tensors; i++)
			for (int64_t j = 0; j < tensor_size(&s.w.m.tensors[i]); j++) {
				float x = s.of[1][EXP_AVG][i][j];
				s.of[0][EXP_AVG][i][j] = x;
				s.of[1][EXP_AVG][i][j] +=
					(float)(noises[k] * sin((double)j * 37 + i) * x);
			}
		o.precision = RUN_AUTO;
		const struct check_job job = {step_file(&s, 0), step_file(&s, 1), &none,
			{.end = -1}, s.adam, true};
		assert_int_equal(step_check_run(&c, &o, &job, &e), 0);
		step_check_print_verdict(&c, &out);
		if (!strstr(out.s, verdicts[k]))
			fail_msg("case %zu: %s", k, out.s);
		step_check_close(&c);
		step_end(&s);
	}
}

/* With --precision auto, a step that only the bounds of bf16 allow is neither right nor wrong. */
TEST(unknown_precision)
{
	static const struct {
		double noise, loss, squares;
		const char *verdict;
	} cases[] = {{0, 1, 1, "the step is right"}, {0.008, 1, 1, "not decided: "},
		{0.008, 1.00002, 1, "not decided: "}, {0.008, NAN, 1, "not decided: "},
		{0.008, 1, 1.1, "wrong: "}, {0.3, 1, 1, "wrong: "}};
	for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
		struct step s;
		struct step_check c;
		struct err e = {0};
		scoped_str out = {0};
		struct strs files = {0};
		struct check_opts o = plain_check;
		step_begin(&s, LLAMA);
		add_noise(&s, cases[k].noise);
		step_train(&s);
		for (int64_t j = 0; j < 48 * 32; j++)
			s.of[1][EXP_AVG_SQ]
			    [step_tensor(&s, "layers.0.feed_forward.w1.weight")][j] *=
				(float)cases[k].squares;
		strs_add(&files, s.batch_file);
		o.precision = RUN_AUTO;
		o.loss = cases[k].loss * s.g.loss;
		s.adam.clip = -1;
		const struct check_job job = {step_file(&s, 0), step_file(&s, 1), &files,
			{.shape = "4,17", .end = -1}, s.adam};
		assert_int_equal(step_check_run(&c, &o, &job, &e), 0);
		step_check_print_verdict(&c, &out);
		if (strncmp(out.s + strlen("verdict: "), cases[k].verdict,
			    strlen(cases[k].verdict)) != 0)
			fail_msg("case %zu: %s", k, out.s);
		assert_int_equal(c.wrong, *cases[k].verdict == 'w');
		assert_int_equal(c.undecided, *cases[k].verdict == 'n');
		step_check_close(&c);
		strs_free(&files);
		step_end(&s);
	}
}

/* A run in bf16 without --precision, and with unknown clipping. */
TEST(bf16_unsaid)
{
	struct step s;
	step_begin(&s, LLAMA);
	add_noise(&s, 0.008);
	step_train(&s);
	s.adam.clip = -1;
	step_expect(&s, &plain_check,
		"(21): beyond the bounds of fp32, but within the bounds of bf16");
	/* a wrong loss may be another function's, and far off it is not rounding */
	struct check_opts o = plain_check;
	o.loss = 1.0005 * s.g.loss;
	step_expect(
		&s, &o, "in bf16 (--precision), or does the function differ slightly?");
	o.loss = 1.02 * s.g.loss;
	step_expect(&s, &o,
		"(21): no known cause: all gradients have about the right direction");
	step_end(&s);
	/* nor is it a run in bf16 if gradients are much closer than bf16 makes them */
	step_begin(&s, LLAMA);
	add_noise(&s, 0.0003);
	step_train(&s);
	o.loss = 1.0005 * s.g.loss;
	step_expect(&s, &o,
		"(21): no known cause: all gradients have about the right direction");
	step_end(&s);
}

/* A loss with few digits does not prove the forward pass. */
TEST(loss_in_few_digits)
{
	struct step s;
	struct check_opts o = plain_check;
	step_begin(&s, LLAMA);
	o.loss = s.g.loss;
	add_noise(&s, 0.3);
	step_train(&s);
	step_expect(&s, &o, "no known cause: the loss is right, and so are the batch");
	o.loss_half = 0.005;
	step_expect(&s, &o, "no known cause: the loss agrees in the logged digits");
	step_end(&s);
}

/* If most tensors are wrong in bf16, a factor that happens to explain a norm is not a
 * cause; it is if the other tensors are explained or right. */
TEST(norms_by_chance)
{
	static const struct {
		double noise, times, norm;
		const char *text;
	} cases[] = {{0.3, 1, 1.2, "(21): no known cause: "},
		{0, 2, 1.5, "norm.weight (1): 1.5 times what it should be"},
		{0, 1, 1.5, "norm.weight (1): 1.5 times what it should be"}};
	for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
		struct step s;
		struct check_opts o = plain_check;
		o.precision = RUN_BF16;
		step_begin(&s, LLAMA);
		int norm = step_tensor(&s, "norm.weight");
		size_t size = (size_t)tensor_size(&s.w.m.tensors[norm]) * sizeof(float);
		float *own = xmalloc(size);
		memcpy(own, s.g.g[norm], size);
		add_noise(&s, cases[k].noise);
		for (int i = 0; i < s.g.n; i++)
			if (strstr(s.w.m.tensors[i].name, "w1."))
				step_scale(&s, s.w.m.tensors[i].name, cases[k].times);
		memcpy(s.g.g[norm], own, size);
		step_scale(&s, "norm.weight", cases[k].norm);
		free(own);
		step_train(&s);
		step_expect(&s, &o, cases[k].text);
		step_end(&s);
	}
}

/* A model with one tied table, and a norm with too few elements to distinguish the weights of
 * sequences. */
TEST(sequences_of_a_narrow_model)
{
	struct step s;
	step_begin(&s, LLAMA "dim = 8\nheads = 2\nkv-heads = 1\ntie = yes\n");
	weigh_sequences(&s, (const double[]){1, 0, 1, 0});
	step_train(&s);
	step_expect(&s, &plain_check, ": sequences 2 4 of 4 do not count\n");
	step_end(&s);
}

/* In bf16, a loss beyond its rounding is not right, and a loss within it proves little. */
TEST(forward_pass_in_bf16)
{
	static const struct {
		double times;
		const char *text;
	} cases[] = {
		{1, "the loss is within the rounding of bf16, which hides small errors"},
		{1.0008, "no known cause: all gradients have about the right direction"},
		{1.004, "finding loss: "}};
	for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
		struct step s;
		struct check_opts o = plain_check;
		step_begin(&s, LLAMA);
		o.precision = RUN_BF16;
		o.loss = cases[k].times * s.g.loss;
		add_noise(&s, 0.3);
		step_train(&s);
		step_expect(&s, &o, cases[k].text);
		step_end(&s);
	}
}

/* The logged norm is right. It differs from the optimizer's norm because gradients are wrong. */
TEST(what_follows_comes_last)
{
	struct step s;
	struct check_opts o = plain_check;
	step_begin(&s, LLAMA);
	o.grad_norm = s.g.norm;
	s.adam.clip = 0;
	for (int i = 0; i < s.w.m.n_tensors; i++)
		if (strstr(s.w.m.tensors[i].name, "wo."))
			step_scale(&s, s.w.m.tensors[i].name, 0.5);
	step_train(&s);
	step_expect(&s, &o, "0.5 times what it should be\nfinding scale: grad_norm");
	step_end(&s);
}

/* torch.optim.Adam adds the decay to the clipped gradient. */
TEST(decay_after_clipping)
{
	struct step s;
	step_begin(&s, LLAMA);
	s.grad_norm = s.g.norm;
	for (int i = 0; i < s.g.n; i++)
		for (int64_t j = 0; j < tensor_size(&s.w.m.tensors[i]); j++)
			s.g.g[i][j] += (float)(0.1 * (s.g.norm + 1e-6) / 0.5 *
					       (double)s.w.w[i][j]);
	step_train(&s);
	step_expect(&s, &plain_check,
		"the gradient plus 0.1 times the parameter, after clipping: weight decay");
	step_end(&s);
}
