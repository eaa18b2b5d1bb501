/* pt-check: gradients that are clipped separately or by another norm, or not reduced, and factors that are counts
 * of the batch. */
#include "tests/support/check_step.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double norm_of(const float *g, int64_t n)
{
	return sqrt(products_of(g, g, n).aa);
}

/* Scales the tensors' rows, elements from..to of n parts, to at most this norm. */
static void clip_tensors(struct step *s, double clip)
{
	for (int i = 0; i < s->g.n; i++) {
		double norm = norm_of(s->g.g[i], tensor_size(&s->w.m.tensors[i]));
		step_scale(s, s->w.m.tensors[i].name, norm > clip ? clip / norm : 1);
	}
}

static void clip_shards(struct step *s, int n, double clip)
{
	for (int k = 0; k < n; k++) {
		double squares = 0;
		for (int write = 0; write < 2; write++)
			for (int i = 0; i < s->g.n; i++) {
				const struct tensor *t = &s->w.m.tensors[i];
				int64_t cols = tensor_size(t) / t->dims[0];
				int64_t rows = (t->dims[0] + n - 1) / n;
				for (int64_t j = 0; j < tensor_size(t); j++) {
					double x = (double)s->g.g[i][j];
					if (j / cols / rows != k)
						continue;
					squares += write ? 0 : x * x;
					if (write && squares > clip * clip)
						s->g.g[i][j] =
							(float)(x * clip / sqrt(squares));
				}
			}
	}
}

TEST(clipped_apart)
{
	static const struct {
		const char *config;
		int shards, fsdp;
		double clip;
		const char *text;
	} of[] = {{LLAMA, 0, 1, 0.05,
			  "each tensor is clipped by itself, to the norm 0.05,"},
		{GPT2, 0, 1, 0.05, "each tensor is clipped by itself, to the norm 0.05,"},
		{LLAMA, 2, 2, 0.4, "each shard is clipped by its own norm, which is not"},
		{LLAMA, 2, 2, 0.4, "shards of the rows, of 2: 1 "},
		{GPT2, 4, 4, 0.4, "shards of the rows, of 4: 1 "}};
	for (size_t k = 0; k < ARRAY_LEN(of); k++) {
		struct check_opts o = plain_check;
		struct step s;
		step_begin(&s, of[k].config);
		s.adam.clip = 0;
		o.fsdp = of[k].fsdp;
		if (of[k].shards)
			clip_shards(&s, of[k].shards, of[k].clip);
		else
			clip_tensors(&s, of[k].clip);
		step_train(&s);
		s.adam.clip = -1;
		step_expect(&s, &o, of[k].text);
		step_end(&s);
	}
}

enum norm_bug { LARGEST, SIZES, SQUARE, LARGEST_TENSOR, WITHOUT_EMBEDDING };

static double wrong_norm(const struct step *s, enum norm_bug bug)
{
	double largest = 0, sizes = 0, tensor = 0, rest = 0;
	for (int i = 0; i < s->g.n; i++) {
		int64_t n = tensor_size(&s->w.m.tensors[i]);
		for (int64_t j = 0; j < n; j++) {
			largest = fmax(largest, fabs((double)s->g.g[i][j]));
			sizes += fabs((double)s->g.g[i][j]);
		}
		tensor = fmax(tensor, norm_of(s->g.g[i], n));
		if (&s->w.m.tensors[i] != s->w.m.tokens)
			rest += pow(norm_of(s->g.g[i], n), 2);
	}
	return bug == LARGEST	       ? largest
	       : bug == SIZES	       ? sizes
	       : bug == SQUARE	       ? pow(step_norm(s), 2)
	       : bug == LARGEST_TENSOR ? tensor
				       : sqrt(rest);
}

TEST(clipped_by_other_norms)
{
	static const char *const texts[] = {
		"as if it were the largest element (norm_type inf)",
		("as if clipping used the sum of the absolute values of all elements "
		 "(norm_type 1)"),
		"as if clipping used the square of the norm: the root",
		"as if it were the largest norm of a tensor",
		"as if it were the norm without the embedding"};
	for (int bug = LARGEST; bug <= WITHOUT_EMBEDDING; bug++)
		for (int logged = 0; logged < 2; logged++) {
			struct check_opts o = plain_check;
			struct step s;
			step_begin(&s, LLAMA);
			s.grad_norm = wrong_norm(&s, (enum norm_bug)bug);
			s.adam.clip = bug == LARGEST ? 0.01 : 0.5;
			o.grad_norm = logged ? s.grad_norm : -1;
			step_train(&s);
			step_expect(&s, &o,
				logged ? strstr(texts[bug], " the ") : texts[bug]);
			step_end(&s);
		}
}

TEST(clipped_by_more)
{
	for (int twice = 0; twice < 2; twice++) {
		struct step s;
		step_begin(&s, LLAMA);
		s.adam.clip = 0.2;
		s.grad_norm = step_norm(&s) * (twice ? step_norm(&s) / 0.2 : 1 / 0.73);
		step_train(&s);
		step_expect(&s, &plain_check,
			twice ? "times: as if they were clipped twice\n"
			      : "0.73 times: as if clip were 0.146 instead of 0.2\n");
		step_end(&s);
	}
}

/* Clipping hides the factor of the gradients: only the logged norm has it, in 4 digits. */
TEST(loss_scale_of_the_norm)
{
	struct check_opts o = plain_check;
	struct step s;
	step_begin(&s, LLAMA);
	s.adam.clip = 0.2;
	const double norm = 65536 * step_norm(&s), unit = pow(10, floor(log10(norm)) - 3);
	o.grad_norm = (floor(norm / unit) + 0.9) * unit;
	o.grad_norm_half = unit;
	step_train(&s);
	step_expect(&s, &o, "a loss scale that was not divided out\n");
	step_end(&s);
}

TEST(factors_of_counts)
{
	static const struct {
		bool masked;
		double factor; /* 0: targets / positions */
		int dp;
		const char *text;
	} of[] = {
		{false, 64, 1,
			"64 times: times 64, the number of targets: a sum, not a mean\n"},
		{false, 32, 2,
			"32 times: times 32, the targets of a rank: a sum, not a mean\n"},
		{false, 16, 1,
			"16 times: times 16, the targets of a sequence: a sum, not a mean\n"},
		{false, 64.0 / 68, 1,
			"64/68, targets/labels: the divisor also counts each sequence's first label"},
		{false, 60.0 / 64, 1,
			"60/64, as if the sum lacked one target per sequence"},
		{true, 0, 1,
			"55/64, targets/positions: the mean includes positions that do not count"},
		{false, 1024, 1, "1024 times: a loss scale that was not divided out\n"},
		{false, 1.0 / 65536, 1, "a loss scale that was divided out twice\n"},
		{false, 2, 2, "2 times: not divided by the 2 data-parallel ranks\n"},
		{false, 0.7, 1, "all gradients are 0.7 times\n"}};
	for (size_t k = 0; k < ARRAY_LEN(of); k++) {
		struct check_opts o = plain_check;
		struct step s;
		double factor = of[k].factor;
		step_begin(&s, LLAMA);
		if (of[k].masked)
			step_mask(&s);
		gradients_free(&s.g);
		reference_float64(
			&s.w, &s.batch, &(struct variant){.sequence = -1}, &s.g);
		if (!(factor > 0))
			factor = (double)s.batch.counted / (SEQUENCES * LENGTH);
		for (int i = 0; i < s.g.n; i++)
			for (int64_t j = 0; j < tensor_size(&s.w.m.tensors[i]); j++)
				s.g.g[i][j] *= (float)factor;
		s.adam.clip = 0;
		o.dp = of[k].dp;
		step_train(&s);
		step_expect(&s, &o, of[k].text);
		step_end(&s);
	}
}

/* The loss of each micro-batch of 2 sequences is divided by its own number of targets. */
TEST(mean_of_means)
{
	struct step s;
	step_begin(&s, LLAMA);
	step_mask(&s);
	for (int i = 0; i < s.g.n; i++)
		memset(s.g.g[i], 0,
			(size_t)tensor_size(&s.w.m.tensors[i]) * sizeof(float));
	for (int k = 0; k < SEQUENCES; k++) {
		struct gradients g;
		int64_t own = 0;
		for (int t = k / 2 * 2 * LENGTH; t < (k / 2 + 1) * 2 * LENGTH; t++)
			own += s.batch.targets[t] >= 0;
		reference_float64(&s.w, &s.batch, &(struct variant){.sequence = k}, &g);
		for (int i = 0; i < g.n; i++)
			for (int64_t j = 0; j < tensor_size(&s.w.m.tensors[i]); j++)
				s.g.g[i][j] += g.g[i][j] * (float)s.batch.counted /
					       (float)(2 * own);
		gradients_free(&g);
	}
	step_train(&s);
	step_expect(
		&s, &plain_check, "the loss is the mean of the means of 2 micro-batches");
	step_end(&s);
}

/* Returns the rank of n that has element j of a tensor. As in Hugging Face's GPT-2, matrices of layers are
 * stored transposed, and q, k and v as one tensor. */
static int64_t rank_of(const struct tensor *t, int64_t j, int n, bool is_gpt2)
{
	static const char *const fused[] = {"wq.bias", "wk.bias", "wv.bias"};
	int64_t size = t->dims[0], columns = tensor_size(t) / size, at = j / columns;
	if (is_gpt2 && t->ndim == 2 && strstr(t->name, "layers."))
		return j % columns / ((columns + n - 1) / n);
	for (int k = 0; k < 3 && is_gpt2; k++)
		if (strstr(t->name, fused[k]))
			return (k * size + at) / ((3 * size + n - 1) / n);
	return at / ((size + n - 1) / n);
}

/* Gives the shards of each of n ranks the gradient of its own sequences. */
static void keep_own_gradients(struct step *s, int n, bool is_gpt2)
{
	for (int i = 0; i < s->g.n; i++)
		memset(s->g.g[i], 0,
			(size_t)tensor_size(&s->w.m.tensors[i]) * sizeof(float));
	for (int k = 0; k < SEQUENCES; k++) {
		struct gradients g;
		reference_float64(&s->w, &s->batch, &(struct variant){.sequence = k}, &g);
		for (int i = 0; i < g.n; i++)
			for (int64_t j = 0; j < tensor_size(&s->w.m.tensors[i]); j++)
				if (rank_of(&s->w.m.tensors[i], j, n, is_gpt2) ==
					k * n / SEQUENCES)
					s->g.g[i][j] += g.g[i][j];
		gradients_free(&g);
	}
}

TEST(not_reduced)
{
	static const struct {
		const char *config;
		int shards, dp, fsdp;
		const char *text;
	} of[] = {{LLAMA, 2, 1, 2,
			  "each of 2 FSDP ranks has the gradient of its own sequences"},
		{LLAMA, 4, 1, 4,
			"each of 4 FSDP ranks has the gradient of its own sequences"},
		{LLAMA, 4, 1, 1,
			"each of 4 FSDP ranks? has the gradient of its own sequences"},
		{LLAMA, 2, 2, 1, "no known cause"},
		{GPT2, 2, 1, 2,
			"each of 2 FSDP ranks has the gradient of its own sequences"}};
	for (size_t k = 0; k < ARRAY_LEN(of); k++) {
		struct check_opts o = plain_check;
		struct step s;
		step_begin(&s, of[k].config);
		o.dp = of[k].dp;
		o.fsdp = of[k].fsdp;
		keep_own_gradients(&s, of[k].shards, strstr(of[k].config, "gpt2"));
		step_train(&s);
		step_expect(&s, &o, of[k].text);
		step_end(&s);
	}
}
