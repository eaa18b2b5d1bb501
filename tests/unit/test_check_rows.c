/* pt-check: gradients with few wrong rows or elements, and rows of the embedding. */
#include "tests/support/check_step.h"
#include "tests/support/support.h"
#include "kernels/dtype_bits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define W1 "layers.0.feed_forward.w1.weight"
#define TABLE "tok_embeddings.weight"

static float *gradient(struct step *s, const char *name)
{
	return s->g.g[step_tensor(s, name)];
}

static void scale_row(float *g, int row, double by)
{
	for (int j = 0; j < 32; j++)
		g[row * 32 + j] = (float)(by * (double)g[row * 32 + j]);
}

static void three_rows_doubled(struct step *s)
{
	scale_row(gradient(s, W1), 41, 2);
	scale_row(gradient(s, W1), 3, 2);
	scale_row(gradient(s, W1), 17, 2);
}

static void eight_rows_spoiled(struct step *s)
{
	for (int i = 0; i < 8; i++)
		for (int j = 0; j < 32; j++)
			gradient(s, W1)[(1 + 5 * i) * 32 + j] *= (float)test_normal(i, j);
}

static void column_lost(struct step *s)
{
	for (int i = 0; i < 48; i++)
		gradient(s, W1)[i * 32 + 7] = 0;
}

static void element_flipped(struct step *s)
{
	gradient(s, W1)[3 * 32 + 5] *= -1;
}

static void element_of_norm(struct step *s)
{
	gradient(s, "layers.1.ffn_norm.weight")[11] *= 3;
}

static void padding_left_out(struct step *s)
{
	scale_row(gradient(s, TABLE), s->batch.tokens[0], 0);
}

static void twelve_rows_doubled(struct step *s)
{
	for (int i = 0; i < 13; i++)
		scale_row(gradient(s, W1), i * 3, 2 + 0.1 * i);
}

/* Sets the embedding's part of the table from n parts of the batch: scaled by their
 * counts, or each token's last row. */
static void set_rows(struct step *s, int n, bool last)
{
	struct gradients g;
	float *table = gradient(s, TABLE);
	enum { ALL = SEQUENCES * LENGTH };
	double *dx = xcalloc(ALL * 32, sizeof(*dx));
	const struct target_rows rows = {.dx = dx};
	reference_float64(
		&s->w, &s->batch, &(struct variant){.sequence = -1, .rows = &rows}, &g);
	gradients_free(&g);
	for (int i = 0; i < ALL; i++) {
		int k = s->batch.tokens[i], part = i / (ALL / n), count = 0, later = 0;
		for (int o = part * (ALL / n); o < (part + 1) * (ALL / n); o++) {
			count += s->batch.tokens[o] == k;
			later += s->batch.tokens[o] == k && o > i;
		}
		double by = last ? !later : 1.0 / count;
		for (int j = 0; j < 32; j++)
			table[k * 32 + j] += (float)((by - 1) * dx[i * 32 + j]);
	}
	free(dx);
}

static void by_frequency(struct step *s)
{
	set_rows(s, 1, false);
}

static void by_frequency_of_sequence(struct step *s)
{
	set_rows(s, SEQUENCES, false);
}

static void rows_written(struct step *s)
{
	set_rows(s, 1, true);
}

static const struct {
	const char *config;
	void (*make)(struct step *);
	const char *text;
} bugs[] = {
	{LLAMA, three_rows_doubled, W1 " (1): rows "},
	{LLAMA, three_rows_doubled, " of 48, from 0: 2 times\n"},
	{LLAMA, eight_rows_spoiled, " and 2 more of 48, from 0: all others are right\n"},
	{LLAMA, column_lost, W1 " (1): column 7 of 32, from 0: no gradient\n"},
	{LLAMA, element_flipped, W1 " (1): element [3][5] of 1536, from 0: -1 times\n"},
	{LLAMA, element_of_norm,
		"ffn_norm.weight (1): element 11 of 32, from 0: 3 times\n"},
	{LLAMA, padding_left_out, " of 60, from 0: no gradient (padding_idx?)\n"},
	{LLAMA, twelve_rows_doubled, W1 " (1): no known cause: "},
	{LLAMA, by_frequency,
		TABLE " (1): each row is divided by how often its token occurs "
		      "in the batch (scale_grad_by_freq)\n"},
	{LLAMA "tie = yes\n", by_frequency,
		"its token occurs in the batch (scale_grad_by_freq)\n"},
	{GPT2, by_frequency_of_sequence,
		"its token occurs in each of 4 parts of the batch"},
	{LLAMA, rows_written, "in the batch, only the last one counts: rows are written"},
	{LLAMA "tie = yes\n", rows_written, "only the last one counts: rows are written"},
};

TEST(few_rows)
{
	for (size_t k = 0; k < ARRAY_LEN(bugs); k++) {
		struct step s;
		step_begin(&s, bugs[k].config);
		bugs[k].make(&s);
		step_train(&s);
		step_expect(&s, &plain_check, bugs[k].text);
		step_end(&s);
	}
}

/* A tensor whose gradient is rounded to bf16. */
TEST(few_rounded_to_bf16)
{
	struct step s;
	step_begin(&s, LLAMA);
	for (int j = 0; j < 48 * 32; j++) {
		float *g = gradient(&s, W1);
		g[j] = round_bf16(g[j]);
	}
	step_train(&s);
	step_expect(&s, &plain_check,
		W1
		" (1): off by up to 0.002, like rounding to bf16: are these gradients");
	step_end(&s);
}

/* In bf16 a norm with few wrong elements has no cause of its own if a matrix has none. */
TEST(few_elements_beside_a_matrix)
{
	struct check_opts o = plain_check;
	struct step s;
	step_begin(&s, LLAMA);
	o.precision = RUN_BF16;
	for (int j = 0; j < 48 * 32; j++)
		gradient(&s, W1)[j] *= (float)(1 + test_normal(3, j));
	gradient(&s, "layers.1.ffn_norm.weight")[11] *= 30;
	step_train(&s);
	step_expect(&s, &o, W1 ", layers.1.ffn_norm.weight (2): no known cause");
	step_end(&s);
}

/* Norms with noise of 0.2 %, as from bf16, and norms that lack a part, without tensor
 * parallelism. */
TEST(norms_without_ranks)
{
	struct check_opts o = plain_check;
	o.dp = 2;
	for (int lack = 0; lack < 2; lack++) {
		struct step s;
		step_begin(&s, LLAMA);
		for (int i = 0; i < s.w.m.n_tensors; i++)
			for (int j = 0; s.w.m.tensors[i].ndim == 1 && j < 32; j++)
				s.g.g[i][j] *= (float)(1 + (lack ? 0.5 : 0.002) *
								   test_normal(i, j));
		step_train(&s);
		step_expect(&s, &o,
			lack ? "(5): no known cause"
			     : "(5): only norms are wrong, by up to 0.00");
		step_end(&s);
	}
}
