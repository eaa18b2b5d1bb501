/* Gradients that are clipped apart: each tensor by itself, or the shards of each rank. See
 * causes.c. */
#include "causes/causes.h"

#include <math.h>

/* Returns the relative error that a gradient norm may have. */
static double tolerance(const struct step_check *c)
{
	return c->o.precision == RUN_FP32 ? 1e-3 : 0.02;
}

/* Returns true if the checked gradient of tensor i is the reference times a factor. Sets *seen to
 * the norm of the checked gradient and *own to the norm of the reference. */
static bool fits_as_multiple(const struct step_check *c, int i, double *seen, double *own)
{
	const struct products p =
		products_of(c->seen[i], reference_of(c, i), c->tensors[i].n);
	*seen = sqrt(p.aa);
	*own = sqrt(p.bb);
	return p.bb > 0 && p.ab > 0 &&
	       residual_of(&p, p.ab / p.bb) <= c->tensors[i].gradient.bound;
}

/* Returns true if each tensor was clipped alone: norms have a common upper bound, and tensors
 * below it are unchanged. Sets s->detail. */
bool explained_by_clipped_tensors(struct cause_search *s)
{
	const struct step_check *c = s->c;
	double clip = 0, seen, own;
	int clipped = 0, whole = 0;
	for (int k = 0; k < s->n_wrong; k++)
		if (fits_as_multiple(c, s->wrong[k], &seen, &own))
			clip = fmax(clip, seen);
	for (int k = 0; k < s->n_wrong; k++) {
		if (!fits_as_multiple(c, s->wrong[k], &seen, &own))
			return false;
		bool is_clipped = fabs(seen / clip - 1) <= tolerance(c);
		clipped += is_clipped && own > clip * (1 - tolerance(c));
		whole += !is_clipped && fabs(seen / own - 1) <= tolerance(c);
	}
	snprintf(s->detail, sizeof(s->detail), "%.4g", clip);
	return clipped > 2 && clipped + whole == s->n_wrong;
}

/* Sums the dot products of n slices of the rows of all wrong tensors, as torch.chunk divides rows.
 * only: the index of one tensor; -1: all. */
static void sum_shard_products(
	const struct cause_search *s, int n, int only, struct products p[AT_LEAST(1)])
{
	const struct step_check *c = s->c;
	memset(p, 0, (size_t)n * sizeof(*p));
	for (int k = 0; k < s->n_wrong; k++) {
		int i = s->wrong[k];
		const struct tensor *t = model_tensor(c, i);
		int64_t cols = t->ndim > 1 ? t->dims[1] : 1,
			rows = (t->dims[0] + n - 1) / n;
		if (only >= 0 && i != only)
			continue;
		for (int64_t from = 0, shard = 0; from < t->dims[0];
			from += rows, shard++) {
			int64_t to = min64(from + rows, t->dims[0]);
			const struct products x = products_of(c->seen[i] + from * cols,
				reference_of(c, i) + from * cols, (to - from) * cols);
			p[shard].aa += x.aa;
			p[shard].ab += x.ab;
			p[shard].bb += x.bb;
		}
	}
}

/* Returns true if a tensor is the reference with the shard of each rank times f[rank]. */
static bool factors_explain_tensor(
	const struct cause_search *s, int n, int tensor, const double *f)
{
	struct products p[MAX_SLICES];
	double left = 0, all = 0;
	sum_shard_products(s, n, tensor, p);
	for (int k = 0; k < n; k++) {
		left += p[k].aa - 2 * f[k] * p[k].ab + f[k] * f[k] * p[k].bb;
		all += f[k] * f[k] * p[k].bb;
	}
	return left <= pow(s->c->tensors[tensor].gradient.bound, 2) * all;
}

/* Returns true if each of n ranks clipped by the norm of its own shards; f[rank]: its factor. */
static bool are_shards_clipped(const struct cause_search *s, int n, double *f)
{
	struct products p[MAX_SLICES];
	double clip = 0;
	int clipped = 0, whole = 0;
	sum_shard_products(s, n, -1, p);
	for (int k = 0; k < n; k++) {
		f[k] = p[k].bb > 0 ? p[k].ab / p[k].bb : 0;
		clip = fmax(clip, sqrt(p[k].aa));
	}
	for (int k = 0; k < n; k++) {
		bool is_clipped = fabs(sqrt(p[k].aa) / clip - 1) <= tolerance(s->c);
		clipped += is_clipped;
		whole += !is_clipped && fabs(f[k] - 1) <= tolerance(s->c);
	}
	if (!clipped || clipped + whole < n || are_equal(f, n, 2e-4))
		return false;
	for (int k = 0; k < s->n_wrong; k++)
		if (!factors_explain_tensor(s, n, s->wrong[k], f))
			return false;
	return true;
}

/* Returns true if each FSDP rank clipped its shards by their own norm. Sets s->detail. */
bool explained_by_clipped_shards(struct cause_search *s)
{
	const struct step_check *c = s->c;
	const int64_t tries[] = {c->o.fsdp, 2, 4, 8};
	char list[120];
	double f[MAX_SLICES];
	for (size_t k = 0; k < ARRAY_LEN(tries); k++) {
		int n = (int)tries[k];
		if (n < 2 || n > MAX_SLICES || !are_shards_clipped(s, n, f))
			continue;
		for (int i = n - 1; i >= 0; i--)
			f[i] /= f[0];
		append_factors(c, list, sizeof(list), f, n);
		snprintf(s->detail, sizeof(s->detail), "%d: %s times as much", n, list);
		return true;
	}
	return false;
}
