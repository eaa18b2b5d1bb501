/* pt-check: losses with wrong weights of single targets. */
#include "tests/support/check_step.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TARGETS_ALL = SEQUENCES * LENGTH };

/* What a bug may use: the batch and its targets' losses; and the weights to set. */
struct plant {
	struct step *s;
	double loss[TARGETS_ALL], w[TARGETS_ALL];
};

static double probability(const struct plant *p, int i)
{
	return exp(-p->loss[i]);
}

static void last_four(struct plant *p)
{
	for (int i = 0; i < TARGETS_ALL; i++)
		p->w[i] = i % LENGTH < LENGTH - 4;
}

static void first_of_chunks(struct plant *p)
{
	for (int i = 0; i < TARGETS_ALL; i++)
		p->w[i] = i % 8 > 1;
}

static void some_positions(struct plant *p)
{
	for (int i = 0; i < TARGETS_ALL; i++)
		p->w[i] = i % LENGTH != 3 && i % LENGTH != 10;
}

/* Returns the most frequent label. */
static int common_label(const struct plant *p)
{
	int count[VOCAB] = {0}, best = 0;
	for (int i = 0; i < TARGETS_ALL; i++) {
		int label = p->s->batch.targets[i];
		if (label >= 0 && ++count[label] > count[best])
			best = label;
	}
	return best;
}

static void label_ignored(struct plant *p)
{
	for (int i = 0; i < TARGETS_ALL; i++)
		p->w[i] = p->s->batch.targets[i] != common_label(p);
}

static void rare_labels(struct plant *p)
{
	int count[VOCAB] = {0};
	for (int i = 0; i < TARGETS_ALL; i++)
		if (p->s->batch.targets[i] >= 0)
			count[p->s->batch.targets[i]]++;
	for (int i = 0; i < TARGETS_ALL; i++)
		p->w[i] = p->s->batch.targets[i] < 0
				  ? 0
				  : 1.0 / count[p->s->batch.targets[i]];
}

static void means_of_chunks(struct plant *p)
{
	int count[4] = {0};
	for (int i = 0; i < TARGETS_ALL; i++)
		count[i % LENGTH / 4] += p->s->batch.targets[i] >= 0;
	for (int i = 0; i < TARGETS_ALL; i++)
		p->w[i] = 1.0 / count[i % LENGTH / 4];
}

static void means_in_sequences(struct plant *p)
{
	int count[SEQUENCES * 2] = {0};
	for (int i = 0; i < TARGETS_ALL; i++)
		count[i / 8] += p->s->batch.targets[i] >= 0;
	for (int i = 0; i < TARGETS_ALL; i++)
		p->w[i] = count[i / 8] ? 1.0 / count[i / 8] : 0;
}

static void focal(struct plant *p)
{
	for (int i = 0; i < TARGETS_ALL; i++) {
		/* derivative of -(1 - p)^2 log p by the target's logit z, relative to -log p's */
		double at[2], h = 1e-5, prob = probability(p, i);
		for (int side = 0; side < 2; side++) {
			double odds = prob / (1 - prob) * exp(side ? -h : h);
			double q = odds / (1 + odds);
			at[side] = -(1 - q) * (1 - q) * log(q);
		}
		p->w[i] = (at[0] - at[1]) / (2 * h) / -(1 - prob);
	}
}

static void focal_detached(struct plant *p)
{
	for (int i = 0; i < TARGETS_ALL; i++)
		p->w[i] = pow(1 - probability(p, i), 1.5);
}

static void by_confidence(struct plant *p)
{
	for (int i = 0; i < TARGETS_ALL; i++)
		p->w[i] = probability(p, i);
}

static void chunk_weighted(struct plant *p)
{
	for (int i = 0; i < TARGETS_ALL; i++)
		p->w[i] = i % LENGTH < 8 ? 1 : 0.5;
}

static void growing(struct plant *p)
{
	for (int i = 0; i < TARGETS_ALL; i++)
		p->w[i] = 1 + 0.1 * (i % LENGTH);
}

static void two_lost(struct plant *p)
{
	for (int i = 0; i < TARGETS_ALL; i++)
		p->w[i] = i != 5 && i != 3 * LENGTH + 9;
}

static void arbitrary(struct plant *p)
{
	for (int i = 0; i < TARGETS_ALL; i++)
		p->w[i] = 1 + 0.3 * test_uniform(9, i);
}

/* Sets the step's gradients to the gradients with the bug's weights. */
static void plant(struct step *s, void (*set_weights)(struct plant *))
{
	struct plant p = {.s = s};
	const struct model_config *m = &s->w.m.c;
	struct target_rows rows = {xcalloc(TARGETS_ALL * (size_t)m->dim, sizeof(double)),
		xcalloc(TARGETS_ALL * (size_t)m->ffn_dim, sizeof(double)), p.loss, NULL};
	gradients_free(&s->g);
	reference_float64(&s->w, &s->batch,
		&(struct variant){.sequence = -1, .rows = &rows}, &s->g);
	double sum = 0;
	for (int i = 0; i < TARGETS_ALL; i++)
		sum += p.loss[i];
	assert_near(sum / (double)s->batch.counted, s->g.loss, 1e-12);
	set_weights(&p);
	gradients_free(&s->g);
	reference_float64(&s->w, &s->batch,
		&(struct variant){.sequence = -1, .weights = p.w}, &s->g);
	free(rows.dy);
	free(rows.x);
}

static const struct {
	const char *config;
	bool masked;
	void (*bug)(struct plant *);
	const char *text;
} bugs[] = {
	{LLAMA, false, last_four,
		"as if the last 4 targets of each sequence did not count\n"},
	{LLAMA "tie = yes\n", false, last_four,
		"the last 4 targets of each sequence did not"},
	{LLAMA, true, last_four,
		"as if the last 4 targets of each sequence did not count\n"},
	{GPT2, false, first_of_chunks,
		"as if the first 2 targets of each chunk of 8 positions did not count\n"},
	{LLAMA, false, some_positions,
		"the targets at these positions did not count (counted from 0): 3 10\n"},
	{LLAMA, false, label_ignored, "as if targets with token "},
	{LLAMA, true, label_ignored, "as if targets with token "},
	{LLAMA, false, rare_labels,
		"weight of a target were 1 / n, where n is the number"},
	{LLAMA, true, means_of_chunks,
		"as if the loss were the mean of the means of 4 chunks of the positions\n"},
	{GPT2, true, means_in_sequences,
		"the mean of the means of 2 chunks of the positions of each sequence\n"},
	{LLAMA, false, focal, "as if the loss were focal: -(1 - p)^2 log p,"},
	{LLAMA, false, focal_detached, "as if each target had the weight (1 - p)^1.5,"},
	{LLAMA, false, by_confidence, "as if each target had the weight p^1,"},
	{LLAMA, false, chunk_weighted,
		"as if targets of 2 chunks of the positions had the weights "},
	{LLAMA, false, growing,
		"as if the weight of a target depended on its position: "},
	{LLAMA, false, two_lost,
		"as if 2 of 64 targets did not count (sequence:position, from 0): 0:5 3:9\n"},
	{LLAMA, false, arbitrary, "as if each target had a weight of its own, from "},
};

TEST(weights_of_targets)
{
	for (size_t k = 0; k < ARRAY_LEN(bugs); k++) {
		struct step s;
		step_begin(&s, bugs[k].config);
		if (bugs[k].masked)
			step_mask(&s);
		plant(&s, bugs[k].bug);
		step_train(&s);
		step_expect(&s, &plain_check, bugs[k].text);
		step_end(&s);
	}
}

/* Labels that do not count are token 0, also where the last inputs have no labels. */
TEST(masked_are_zero)
{
	for (int last = 0; last < 2; last++) {
		struct step s;
		step_begin(&s, LLAMA);
		for (int i = 0; i < SEQUENCES && last; i++) {
			s.batch.targets[i * LENGTH + LENGTH - 1] = -1;
			s.batch.counted--;
		}
		step_mask(&s);
		struct token_batch right = s.batch;
		s.batch.targets = xmalloc(TARGETS_ALL * sizeof(*s.batch.targets));
		for (int i = 0; i < TARGETS_ALL; i++)
			s.batch.targets[i] =
				right.targets[i] < 0 &&
						!(last && i % LENGTH == LENGTH - 1)
					? 0
					: right.targets[i];
		gradients_free(&s.g);
		reference_float64(
			&s.w, &s.batch, &(struct variant){.sequence = -1}, &s.g);
		free(s.batch.targets);
		s.batch.targets = right.targets;
		step_train(&s);
		step_expect(&s, &plain_check, "as if masked targets were token 0");
		step_end(&s);
	}
}

/* Labels that are not shifted, and do not count where the batch has no targets. */
TEST(unshifted_and_masked)
{
	struct step s;
	step_begin(&s, LLAMA);
	step_mask(&s);
	const struct variant v = {
		.sequence = -1, .targets = TARGETS_UNSHIFTED_IF_COUNTED};
	gradients_free(&s.g);
	reference_float64(&s.w, &s.batch, &v, &s.g);
	step_train(&s);
	step_expect(&s, &plain_check, "as if the inputs were their own targets");
	step_end(&s);
}

/* Adds noise of 1 % to all gradients. */
static void add_noise(struct step *s)
{
	for (int i = 0; i < s->g.n; i++) {
		int64_t n = tensor_size(&s->w.m.tensors[i]);
		double rms = sqrt(products_of(s->g.g[i], s->g.g[i], n).aa / (double)n);
		for (int64_t j = 0; j < n; j++)
			s->g.g[i][j] +=
				(float)(0.01 * rms * test_normal(81 + (uint64_t)i, j));
	}
}

/* Weights of masks are also found in bf16. */
TEST(weights_in_bf16)
{
	struct check_opts o = plain_check;
	o.precision = RUN_BF16;
	for (int k = 0; k < 2; k++) {
		struct step s;
		step_begin(&s, LLAMA);
		plant(&s, k ? growing : last_four);
		add_noise(&s);
		step_train(&s);
		step_expect(&s, &o,
			k ? "as if the weight of a target depended on its position: "
			  : "as if the last 4 targets of each sequence did not count\n");
		step_end(&s);
	}
}

static void label_doubled(struct plant *p)
{
	for (int i = 0; i < TARGETS_ALL; i++)
		p->w[i] = p->s->batch.targets[i] == common_label(p) ? 2 : 1;
}

/* Weights per token, with several targets for each token; also in bf16. */
TEST(weights_of_tokens)
{
	for (int bf16 = 0; bf16 < 2; bf16++) {
		struct check_opts o = plain_check;
		struct step s;
		char text[80];
		step_begin(&s, LLAMA);
		for (int i = 0; i < TARGETS_ALL; i++) {
			s.batch.tokens[i] %= 12;
			s.batch.targets[i] %= 12;
		}
		step_mask(&s);
		plant(&s, label_doubled);
		if (bf16)
			add_noise(&s);
		o.precision = bf16 ? RUN_BF16 : RUN_FP32;
		step_train(&s);
		snprintf(text, sizeof(text), "depended on its token: token %d 2 times\n",
			common_label(&(struct plant){.s = &s}));
		step_expect(&s, &o, text);
		step_end(&s);
	}
}

static void equal(struct plant *p)
{
	for (int i = 0; i < TARGETS_ALL; i++)
		p->w[i] = 1;
}

/* Equal weights are right. Weights that one tensor's gradient lacks are not a cause. */
TEST(no_weights_of_targets)
{
	struct step s;
	step_begin(&s, LLAMA);
	step_mask(&s);
	plant(&s, equal);
	step_train(&s);
	step_expect(&s, &plain_check, NULL);
	step_end(&s);
	step_begin(&s, LLAMA);
	plant(&s, last_four);
	int i = step_tensor(&s, "layers.0.attention.wo.weight");
	for (int j = 0; j < 32 * 32; j++)
		s.g.g[i][j] *= (float)test_normal(90, j);
	step_train(&s);
	step_expect(&s, &plain_check, "no known cause");
	step_end(&s);
}
