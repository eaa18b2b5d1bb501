/* What every parameter store shares: norms and hashes. */
#include "parallel/parallel.h"

#include <math.h>
#include <stdlib.h>

void store_free(struct store *s)
{
	if (!s)
		return;
	s->ops->free(s);
	free((void *)s->deal);
	free(s->updated);
	free(s->counted);
	free(s);
}

/* A vector's elements are its rows. */
static struct mat as_rows(const struct part *o, float *p)
{
	if (o->t->ndim == 1)
		return mat(p, o->rows * o->t->cols, 1);
	return mat(p, o->rows, o->t->cols);
}

static void add_squares(struct store *s, struct mat g, struct exact *sum)
{
	enum { ROWS = 4096 };
	static double squares[ROWS];
	for (int64_t i = 0; i < g.rows; i += ROWS) {
		int64_t n = min64(ROWS, g.rows - i);
		s->c.device->k->row_sumsq(s->c.device, squares, mat_rows(g, i, n));
		for (int64_t j = 0; j < n; j++)
			exact_add(sum, squares[j]);
	}
	exact_normalize(sum);
}

double store_grad_norm(struct store *s)
{
	struct exact sum = {0};
	for (int64_t i = 0; i < s->n_counted; i++)
		add_squares(s, as_rows(&s->counted[i], s->counted[i].g), &sum);
	comm_sum_i64(s->c.dp, (int64_t *)&sum, EXACT_WORDS);
	return sqrt(exact_round(&sum));
}

/* Elements of a slice lie together in the whole tensor, or a row at a time. */
static uint64_t hash_part(struct store *s, const struct part *o)
{
	struct device *d = s->c.device;
	uint64_t key = hash_str(o->t->name), sum = 0;
	bool whole_rows = o->t->cut != CUT_COLS;
	int64_t step = whole_rows ? o->rows : 1;
	for (int64_t r = 0; r < o->rows; r += step)
		sum += d->k->hash(d, o->p + r * o->t->cols, step * o->t->cols, key,
			tensor_index(o->t, o->slice, o->row + r));
	return sum;
}

uint64_t store_hash(struct store *s, bool alone)
{
	uint64_t sum = 0;
	if (alone) {
		for (int i = 0; i < s->c.n_tensors; i++) {
			const struct tensor *t = &s->c.tensors[i];
			for (int slice = 0; slice < t->slices; slice++) {
				struct mat p = store_param(s, t, slice);
				struct part all = {.t = t,
					.slice = slice,
					.rows = t->rows,
					.p = p.p};
				sum += hash_part(s, &all);
			}
		}
		return sum;
	}
	for (int64_t i = 0; i < s->n_counted; i++)
		sum += hash_part(s, &s->counted[i]);
	comm_run(s->c.dp, COLL_ALLREDUCE,
		&(struct coll_args){
			.recv = &sum, .count = 1, .type = COMM_U64, .op = COMM_SUM});
	return sum;
}
