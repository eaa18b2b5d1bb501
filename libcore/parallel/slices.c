/* Tensor parallelism: sums over virtual slices. */
#include "parallel/parallel.h"

void slice_sum_begin(
	struct slice_sum *x, const struct slices *s, struct device *d, struct mat out)
{
	*x = (struct slice_sum){
		.s = s, .d = d, .out = out, .mark = arena_mark(d->scratch)};
	int depth = tree_depth(s->first, s->first + s->here);
	for (int i = 0; i < depth - 1; i++)
		x->more[i] = arena_floats(d->scratch, mat_size(out));
	x->next = s->first;
}

static struct mat buffer(struct slice_sum *x, int i)
{
	return i == 0 ? x->out : mat(x->more[i - 1], x->out.rows, x->out.cols);
}

struct mat slice_sum_slot(struct slice_sum *x)
{
	return buffer(x, x->stack.n);
}

static void merge(struct slice_sum *x, int merges)
{
	for (int top = x->stack.n + merges - 1; merges > 0; merges--, top--)
		x->d->k->add(
			x->d, buffer(x, top - 1), buffer(x, top - 1), buffer(x, top));
}

void slice_sum_push(struct slice_sum *x)
{
	merge(x, tree_push(&x->stack, x->next++));
}

void slice_sum_end(struct slice_sum *x)
{
	BUG_ON(x->s->axis->size != 1); /* one rank plays all slices, so far */
	merge(x, tree_finish(&x->stack, x->s->n));
	BUG_ON(x->stack.n != 1);
	arena_reset(x->d->scratch, x->mark);
}
