/* Gradients that FSDP did not reduce: each rank has the gradient of its own sequences in its
 * shards. See causes.c. */
#include "causes/causes.h"

#include <math.h>

/* How FSDP divides the checked tensor: by rows; by columns, if the file has the tensor transposed;
 * or by the rows of a fused tensor, if the file has q, k and v as one tensor. */
enum cut { CUT_ROWS, CUT_COLUMNS, CUT_FIRST, CUT_SECOND, CUT_THIRD, N_CUTS };

/* Returns the rank of n that has the element at a row and column, as torch.chunk divides them. */
static int rank_of_element(
	const struct tensor *t, enum cut cut, int n, int64_t row, int64_t column)
{
	int64_t size = t->dims[0], at = row;
	if (cut == CUT_COLUMNS)
		size = t->dims[1], at = column;
	else if (cut != CUT_ROWS) {
		at += (cut - CUT_FIRST) * size;
		size *= 3;
	}
	return (int)(at / ((size + n - 1) / n));
}

/* Sets out to the tensor with the elements of each rank from its own gradients g[rank]. */
static void mix_ranks(float *out, const struct gradients *g, int n, int tensor,
	const struct tensor *t, enum cut cut)
{
	const int64_t columns = t->ndim > 1 ? t->dims[1] : 1;
	for (int64_t row = 0, at = 0; row < t->dims[0]; row++)
		for (int64_t column = 0; column < columns; column++, at++)
			out[at] =
				g[rank_of_element(t, cut, n, row, column)].g[tensor][at];
}

/* Replaces g[0] of wrong tensor i by the mix of ranks that is nearest to the checked gradient. */
static void choose_mix(const struct cause_search *s, struct gradients *g, int n, int i)
{
	const struct tensor *t = model_tensor(s->c, i);
	const int tensor = s->c->tensors[i].in_model;
	const int64_t size = tensor_size(t);
	float *best = xcalloc((size_t)size, sizeof(*best)),
	      *mix = xcalloc((size_t)size, sizeof(*mix));
	double nearest = INFINITY;
	for (enum cut cut = CUT_ROWS; cut < N_CUTS; cut++) {
		if (cut == CUT_COLUMNS && t->ndim < 2)
			continue;
		mix_ranks(mix, g, n, tensor, t, cut);
		const struct products p = products_of(s->c->seen[i], mix, size);
		double left = p.bb > 0 ? residual_of(&p, p.ab / p.bb) : INFINITY;
		if (left < nearest) {
			nearest = left;
			memcpy(best, mix, (size_t)size * sizeof(*best));
		}
	}
	memcpy(g[0].g[tensor], best, (size_t)size * sizeof(*best));
	free(best);
	free(mix);
}

/* Returns the number of targets of a sequence. */
static int64_t count_targets(const struct token_batch *b, int64_t sequence)
{
	int64_t n = 0;
	for (int64_t t = 0; t < b->length; t++)
		n += b->targets[sequence * b->length + t] >= 0;
	return n;
}

/* Sets g[n] to the gradients of the ranks' own losses, of all tensors or of the screen. */
static void compute_ranks(
	const struct cause_search *s, int n, bool is_full, struct gradients *g)
{
	const struct token_batch *b = &s->c->batch;
	const int64_t per_rank = b->n / n;
	for (int64_t j = 0; j < b->n; j++) {
		struct gradients one = {0}, *sum = &g[j / per_rank];
		const struct variant v = {
			.sequence = (int)j, .wanted = is_full ? NULL : s->screen};
		reference_float64(&s->c->weights, b, &v, &one);
		if (j % per_rank == 0) {
			*sum = one;
			continue;
		}
		for (int i = 0; i < one.n; i++)
			for (int64_t k = 0;
				one.g[i] && k < tensor_size(&s->c->weights.m.tensors[i]);
				k++)
				sum->g[i][k] += one.g[i][k];
		gradients_free(&one);
	}
	for (int r = 0; r < n && !b->weights; r++) {
		int64_t counted = 0;
		for (int64_t j = r * per_rank; j < (r + 1) * per_rank; j++)
			counted += count_targets(b, j);
		const float times = counted ? (float)b->counted / (float)counted : 1;
		for (int i = 0; i < g[r].n; i++)
			for (int64_t k = 0;
				g[r].g[i] && k < tensor_size(&s->c->weights.m.tensors[i]);
				k++)
				g[r].g[i][k] *= times;
	}
}

/* Returns the distance of the wrong tensors from gradients that n ranks did not reduce. */
static double unreduced_distance(const struct cause_search *s, int n, bool is_full)
{
	struct gradients g[MAX_PARTS] = {{0}};
	compute_ranks(s, n, is_full, g);
	for (int k = 0; k < s->n_wrong; k++)
		if (g[0].g[s->c->tensors[s->wrong[k]].in_model])
			choose_mix(s, g, n, s->wrong[k]);
	double dist = largest_residual(s, &g[0]);
	for (int r = 0; r < n; r++)
		gradients_free(&g[r]);
	return dist;
}

bool explained_by_missing_reduce_scatter(struct cause_search *s)
{
	const struct step_check *c = s->c;
	const int64_t tries[] = {c->o.fsdp, 2, 4, 8};
	for (size_t k = 0; k < ARRAY_LEN(tries); k++) {
		const int64_t n = tries[k];
		if (n < 2 || n > MAX_PARTS || c->batch.n % n ||
			(has_layout(c) && n != c->o.fsdp))
			continue;
		if (unreduced_distance(s, (int)n, false) > s->near ||
			unreduced_distance(s, (int)n, true) > s->near)
			continue;
		snprintf(s->detail, sizeof(s->detail), "%lld FSDP ranks%s", (long long)n,
			layout_mark(c));
		return true;
	}
	return false;
}
