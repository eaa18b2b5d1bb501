/*
 * Sparsification over whole tensors: finds the k-th largest magnitude of a tensor that is sharded
 * over ranks, by a radix search on the bits of its elements, from the highest digit to the lowest.
 * The counts of a digit are integers, so the threshold does not depend on the layout.
 */
#include "edit/edit_internal.h"

enum { DIGIT_BITS = 8, FIRST_SHIFT = 32 - DIGIT_BITS };

struct search {
	struct edit *x;
	struct selection c;
	int shift;
	/* [tensors]: known digits of the threshold, and its rank among elements with these
	 * digits. */
	uint32_t *found;
	int64_t *rank;
};

static int tensor_of(const struct search *s, const struct part *p)
{
	return (int)(p->t - s->x->s->c.tensors);
}

/* Vectors stay dense: they are small. */
static bool skips(const struct search *s, const struct part *p)
{
	return p->t->ndim == 1 || !edit_takes(s->x, s->c, p);
}

static void count_part(void *with, const struct part *p)
{
	const struct search *s = with;
	struct device *d = s->x->d;
	int t = tensor_of(s, p);
	if (!skips(s, p))
		d->k->count_sizes(d, s->x->counts + (int64_t)t * EDIT_DIGITS,
			edit_pseudo_grad(s->x, p), s->found[t], s->shift);
}

static void keep_part(void *with, const struct part *p)
{
	const struct search *s = with;
	struct device *d = s->x->d;
	if (!skips(s, p))
		d->k->keep_sizes(d, edit_pseudo_grad(s->x, p), s->found[tensor_of(s, p)]);
}

/* Collective over the worker. Finds the next digit of all thresholds. */
static void find_digits(struct search *s, int64_t *counts)
{
	struct edit *x = s->x;
	int64_t n = x->s->c.n_tensors;
	x->d->k->zero(x->d, mat((float *)(void *)x->counts, n, 2 * EDIT_DIGITS));
	store_for_each_part(x->s, true, STORE_BIT(x->grad_group), 0, count_part, s);
	device_get(x->d, counts, x->counts, (size_t)(n * EDIT_DIGITS) * sizeof(*counts));
	comm_sum_i64(x->world, counts, n * EDIT_DIGITS);
	for (int64_t t = 0; t < n; t++, counts += EDIT_DIGITS) {
		int digit = EDIT_DIGITS - 1;
		while (digit > 0 && s->rank[t] > counts[digit])
			s->rank[t] -= counts[digit--];
		s->found[t] |= (uint32_t)digit << s->shift;
	}
}

void threshold_tensors(struct edit *x, struct selection c)
{
	const unsigned own = STORE_BIT(x->grad_group);
	size_t n = (size_t)x->s->c.n_tensors;
	struct search s = {.x = x, .c = c};
	scoped_ptr int64_t *counts = xcalloc(n * EDIT_DIGITS, sizeof(*counts));
	s.found = xcalloc(n, sizeof(*s.found));
	s.rank = xcalloc(n, sizeof(*s.rank));
	for (size_t t = 0; t < n; t++) {
		int64_t size = tensor_size(&x->s->c.tensors[t]);
		s.rank[t] = max64(1, (int64_t)(x->c.density * (double)size));
	}
	for (s.shift = FIRST_SHIFT; s.shift >= 0; s.shift -= DIGIT_BITS)
		find_digits(&s, counts);
	store_for_each_part(x->s, false, own, own, keep_part, &s);
	free(s.found);
	free(s.rank);
}
