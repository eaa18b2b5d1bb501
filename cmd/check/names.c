/* Names values of a step: ratios of counts, and norms that a gradient was clipped by. */
#include "check/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Returns the number of targets in each of n equal parts of the batch; 0: they differ. */
static int64_t targets_per_part(const struct token_batch *b, int64_t n)
{
	int64_t targets = -1;
	for (int64_t p = 0; n > 0 && b->n % n == 0 && p < n; p++) {
		int64_t from = p * (b->n / n) * b->length, own = 0;
		for (int64_t i = 0; i < b->n / n * b->length; i++)
			own += b->targets[from + i] >= 0;
		if (targets >= 0 && own != targets)
			return 0;
		targets = own;
	}
	return max64(targets, 0);
}

/* A factor that a bug would cause. */
struct named_factor {
	double value;
	const char *text;
};

/* Returns true for a power of two of at least 128, which may be a loss scale. The factor is only
 * as exact as the logged norm. */
static bool is_loss_scale(const struct step_check *c, double factor)
{
	double power = log2(factor), digits = 0;
	if (c->o.grad_norm > 0)
		digits = 2 * c->o.grad_norm_half / c->o.grad_norm;
	return factor >= 128 && fabs(power - round(power)) < 1e-4 + fmin(digits, 1e-3);
}

/* Appends ": 368/370, TEXT" for a factor a / b. n_named: ratios that precede it. */
static void append_ratio(char *out, size_t capacity, const struct named_factor *f,
	int64_t a, int64_t b, int n_named)
{
	size_t at = strlen(out);
	if (b > 1 && a > 1)
		snprintf(out + at, capacity - at, "%s %lld/%lld, %s",
			n_named ? ", or" : ":", (long long)a, (long long)b, f->text);
	else
		snprintf(out + at, capacity - at, "%s %s %lld, %s",
			n_named ? ", or" : ":", b > 1 ? "divided by" : "times",
			(long long)(b > 1 ? b : a), f->text);
}

void append_count_names(
	const struct step_check *c, double factor, char *out, size_t capacity)
{
	const struct token_batch *b = &c->batch;
	const int64_t n_positions = b->n * b->length, n = b->counted;
	const int64_t ranks = c->o.dp * c->o.fsdp, micro = ranks * c->o.accumulation;
	const int64_t of_rank = ranks > 1 ? targets_per_part(b, ranks) : 0;
	const int64_t of_micro = c->o.accumulation > 1 ? targets_per_part(b, micro) : 0;
	const int64_t of_sequence = b->n > 1 ? targets_per_part(b, b->n) : 0;
	const struct {
		int64_t a, b;
		const char *text;
	} tries[] = {{n, 1, "the number of targets: a sum, not a mean"},
		{of_rank, 1, "the targets of a rank: a sum, not a mean"},
		{of_micro, 1, "the targets of a micro-batch: a sum, not a mean"},
		{of_sequence, 1, "the targets of a sequence: a sum, not a mean"},
		{b->n, 1, "the number of sequences: a sum of their means"},
		{1, n, "the number of targets, once too often"},
		{1, of_rank, "the targets of a rank, once too often"},
		{1, b->n, "the number of sequences"},
		{1, b->length, "the number of positions"},
		{n, n + b->n,
			"targets/labels: the divisor also counts each sequence's first label"},
		{n, n - b->n,
			"targets/divisor: the divisor lacks one target per sequence"},
		{n - b->n, n,
			"as if the sum lacked one target per sequence that the divisor counts"},
		{n, n_positions,
			"targets/positions: the mean includes positions that do not count"},
		{n_positions, n,
			"positions/targets: the sum includes positions that do not count"}};
	const double within = c->o.precision == RUN_FP32 ? 1e-4 : 3e-3;
	int n_named = 0;
	for (size_t i = 0; i < ARRAY_LEN(tries); i++) {
		double ratio = (double)tries[i].a / (double)tries[i].b;
		const struct named_factor f = {ratio, tries[i].text};
		bool is_possible =
			tries[i].a > 0 && tries[i].b > 0 && fabs(ratio - 1) > 5 * within;
		if (is_possible && fabs(factor / ratio - 1) <= within)
			append_ratio(
				out, capacity, &f, tries[i].a, tries[i].b, n_named++);
	}
	size_t at = strlen(out);
	if (is_loss_scale(c, factor))
		snprintf(out + at, capacity - at,
			"%s a loss scale that was not divided out",
			n_named ? ", or" : ":");
	else if (is_loss_scale(c, 1 / factor))
		snprintf(out + at, capacity - at,
			"%s a loss scale that was divided out twice",
			n_named ? ", or" : ":");
}

enum { LARGEST, SUM_OF_SIZES, LARGEST_TENSOR, SUM_OF_TENSORS, N_NORMS };

/* Norms that a bug may use instead of the norm of all gradients. */
struct measures {
	double norms[N_NORMS];
	double all, embedding, output, vectors; /* squared norms */
	int64_t n;
};

/* Sets *x to norms of the reference gradients that a wrong grad_norm may equal. */
static void measure_gradients(const struct step_check *c, struct measures *x)
{
	const struct model *m = &c->weights.m;
	*x = (struct measures){0};
	for (int i = 0; i < c->n; i++) {
		const struct tensor *t = &m->tensors[c->tensors[i].in_model];
		const float *g = c->reference.g[c->tensors[i].in_model];
		double squares = 0;
		for (int64_t j = 0; g && j < c->tensors[i].n; j++) {
			double size = fabs((double)g[j]);
			squares += size * size;
			x->norms[LARGEST] = fmax(x->norms[LARGEST], size);
			x->norms[SUM_OF_SIZES] += size;
		}
		x->all += squares;
		x->n += c->tensors[i].n;
		x->norms[LARGEST_TENSOR] = fmax(x->norms[LARGEST_TENSOR], sqrt(squares));
		x->norms[SUM_OF_TENSORS] += sqrt(squares);
		x->embedding += t == m->tokens ? squares : 0;
		x->output += t == m->output ? squares : 0;
		x->vectors += t->ndim == 1 ? squares : 0;
	}
}

const char *find_norm_name(const struct step_check *c, double norm)
{
	struct measures x;
	const double within = c->o.precision == RUN_FP32 ? 1e-3 : 0.01;
	measure_gradients(c, &x);
	const bool tied = c->weights.m.output == c->weights.m.tokens;
	const double both = tied ? x.embedding : x.embedding + x.output;
	const struct named_factor tries[] = {
		{x.norms[LARGEST], "the largest element (norm_type inf)"},
		{x.norms[SUM_OF_SIZES],
			"the sum of the absolute values of all elements (norm_type 1)"},
		{x.all, "the square of the norm: the root is missing"},
		{sqrt(x.all / (double)max64(1, x.n)), "the root of the mean square"},
		{x.norms[LARGEST_TENSOR], "the largest norm of a tensor"},
		{x.norms[SUM_OF_TENSORS], "the sum of the norms of the tensors"},
		{sqrt(x.all - x.embedding), "the norm without the embedding"},
		{sqrt(fmax(0, x.all - x.output)), "the norm without the output layer"},
		{sqrt(fmax(0, x.all - both)),
			"the norm without embedding and output layer"},
		{sqrt(fmax(0, x.all - x.vectors)), "the norm without norms and biases"}};
	const char *name = NULL;
	double nearest = within;
	for (size_t i = 0; i < ARRAY_LEN(tries); i++) {
		double off = fabs(norm / tries[i].value - 1);
		bool is_norm = fabs(tries[i].value / sqrt(x.all) - 1) <= 2 * within;
		if (tries[i].value > 0 && !is_norm && off <= nearest) {
			nearest = off;
			name = tries[i].text;
		}
	}
	return name;
}
