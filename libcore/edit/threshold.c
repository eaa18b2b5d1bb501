/* Sparsification over whole tensors: finds the k-th largest magnitude of a tensor that is sharded
 * over ranks, by a radix search on the bits of its elements, from the highest digit to the lowest.
 * The counts of a digit are integers, so the threshold does not depend on the layout. */
#include "edit/edit_internal.h"

enum { DIGIT_BITS = 8, FIRST_SHIFT = 32 - DIGIT_BITS };

struct threshold_search {
	struct edit *x;
	struct selection sel;
	int shift;
	uint32_t *digits; /* [tensors]: the digits of the threshold that are known */
	int64_t *
		rank; /* [tensors]: rank of the threshold among elements with these digits */
};

static int tensor_of(const struct threshold_search *s, const struct part *p)
{
	return (int)(p->t - s->x->s->c.tensors);
}

/* Returns true for a part that stays as it is: not selected, or a vector, which is small. */
static bool stays_dense(const struct threshold_search *s, const struct part *p)
{
	return p->t->ndim == 1 || !edit_includes(s->x, s->sel, p);
}

/* Counts the next digit of a part's elements that begin with the threshold's known digits. */
static void count_digits(void *arg, const struct part *p)
{
	const struct threshold_search *s = arg;
	struct device *d = s->x->d;
	int t = tensor_of(s, p);
	if (!stays_dense(s, p))
		d->k->count_sizes(d, s->x->counts + (int64_t)t * EDIT_DIGITS,
			edit_pseudo_grad(s->x, p), s->digits[t], s->shift);
}

/* Sets elements of a part's pseudo-gradient to 0 that are below the threshold of the tensor. */
static void zero_small_elements(void *arg, const struct part *p)
{
	const struct threshold_search *s = arg;
	struct device *d = s->x->d;
	if (!stays_dense(s, p))
		d->k->keep_sizes(
			d, edit_pseudo_grad(s->x, p), s->digits[tensor_of(s, p)]);
}

/* Counts the next digit in all tensors, and appends it to the thresholds. Collective. */
static void find_digits(struct threshold_search *s, int64_t *counts)
{
	struct edit *x = s->x;
	int64_t n = x->s->c.n_tensors;
	x->d->k->zero(x->d, mat((float *)(void *)x->counts, n, 2 * EDIT_DIGITS));
	store_for_each_part(x->s, true, STORE_BIT(x->grad_group), 0, count_digits, s);
	device_get(x->d, counts, x->counts, (size_t)(n * EDIT_DIGITS) * sizeof(*counts));
	comm_sum_i64(x->world, counts, n * EDIT_DIGITS);
	for (int64_t t = 0; t < n; t++, counts += EDIT_DIGITS) {
		int digit = EDIT_DIGITS - 1;
		while (digit > 0 && s->rank[t] > counts[digit])
			s->rank[t] -= counts[digit--];
		s->digits[t] |= (uint32_t)digit << s->shift;
	}
}

void threshold_tensors(struct edit *x, struct selection sel)
{
	const unsigned grad_bit = STORE_BIT(x->grad_group);
	size_t n = (size_t)x->s->c.n_tensors;
	struct threshold_search s = {.x = x, .sel = sel};
	scoped_ptr int64_t *counts = xcalloc(n * EDIT_DIGITS, sizeof(*counts));
	s.digits = xcalloc(n, sizeof(*s.digits));
	s.rank = xcalloc(n, sizeof(*s.rank));
	for (size_t t = 0; t < n; t++) {
		int64_t size = tensor_size(&x->s->c.tensors[t]);
		s.rank[t] = max64(1, (int64_t)(x->c.density * (double)size));
	}
	for (s.shift = FIRST_SHIFT; s.shift >= 0; s.shift -= DIGIT_BITS)
		find_digits(&s, counts);
	store_for_each_part(x->s, false, grad_bit, grad_bit, zero_small_elements, &s);
	free(s.digits);
	free(s.rank);
}
