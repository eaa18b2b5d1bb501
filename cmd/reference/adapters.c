/* Low-rank adapters (LoRA): the matrices with them, and their gradients from the gradients of these matrices. */
#include "reference/reference.h"

#include <stdlib.h>
#include <string.h>

/* ---- their tensors after those of the model ------------------------------------------------ */

/* Lets a pointer to a tensor point to its copy. */
static void move(struct tensor **t, const struct tensor *from, struct tensor *to)
{
	if (*t)
		*t = to + (*t - from);
}

static void move_block(
	struct block_tensors *b, const struct tensor *from, struct tensor *to)
{
	for (int i = 0; i < SUBLAYERS; i++) {
		struct sublayer_tensors *s = &b->sub[i];
		move(&s->norm, from, to);
		move(&s->norm_bias, from, to);
		move(&s->post_norm, from, to);
		move(&s->out, from, to);
		move(&s->bias, from, to);
		for (int k = 0; k < SUBLAYER_INPUTS; k++) {
			move(&s->in[k], from, to);
			move(&s->in_bias[k], from, to);
			move(&s->in_norm[k], from, to);
		}
	}
	for (int i = 0; i < b->n_operands; i++)
		move(&b->operand[i], from, to);
}

/* Appends n tensors to the table of the model. */
static void add_tensors(struct model *m, const struct tensor *added, int n)
{
	struct tensor *from = m->tensors;
	struct tensor *to = xcalloc((size_t)(m->n_tensors + n), sizeof(*to));
	memcpy(to, from, (size_t)m->n_tensors * sizeof(*to));
	memcpy(to + m->n_tensors, added, (size_t)n * sizeof(*to));
	struct tensor **const all[] = {
		&m->tokens, &m->positions, &m->norm, &m->norm_bias, &m->output};
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		move(all[i], from, to);
	for (int64_t l = 0; l < m->c.layers; l++)
		move_block(&m->blocks[l], from, to);
	m->tensors = to;
	m->n_tensors += n;
	free(from);
}

/* ---- products ------------------------------------------------------------------------------- */

/* Sets sum[columns of A] to row o of B A. */
static void product_row(
	const struct weights *w, const struct adapter *x, int64_t o, double *sum)
{
	const struct tensor *a = &w->m.tensors[x->a];
	const int64_t rank = a->dims[0], columns = a->dims[1];
	memset(sum, 0, (size_t)columns * sizeof(*sum));
	for (int64_t r = 0; r < rank; r++) {
		const double by = (double)w->w[x->b][o * rank + r];
		const float *row = w->w[x->a] + r * columns;
		for (int64_t i = 0; i < columns; i++)
			sum[i] += by * (double)row[i];
	}
}

/* Adds `by` times B A to the matrices of an adapter, in floats or in doubles; the other array is NULL. */
static void add_product(const struct weights *w, const struct adapter *x, double by,
	float **floats, double **wide)
{
	const int64_t columns = w->m.tensors[x->a].dims[1];
	double *sum = xmalloc((size_t)columns * sizeof(*sum));
	int64_t o = 0;
	for (int p = 0; p < x->n_parts; p++)
		for (int64_t r = 0; r < w->m.tensors[x->part[p]].dims[0]; r++, o++) {
			product_row(w, x, o, sum);
			for (int64_t i = 0, at = r * columns; i < columns; i++, at++)
				if (wide)
					wide[x->part[p]][at] += by * sum[i];
				else if (floats)
					floats[x->part[p]][at] =
						(float)((double)floats[x->part[p]][at] +
							by * sum[i]);
		}
	free(sum);
}

void weights_adapt(struct weights *w, struct adapter *adapters, int n,
	const struct tensor *tensors, float **values)
{
	const int own = w->m.n_tensors;
	add_tensors(&w->m, tensors, 2 * n);
	w->w = xrealloc(w->w, (size_t)w->m.n_tensors * sizeof(*w->w));
	memcpy(w->w + own, values, (size_t)(2 * n) * sizeof(*w->w));
	w->adapters = adapters;
	w->n_adapters = n;
	for (int k = 0; k < n; k++)
		add_product(w, &adapters[k], adapters[k].scale, w->w, NULL);
}

void adapters_rescale(const struct weights *w, double by, double **values)
{
	for (int k = 0; k < w->n_adapters; k++)
		add_product(w, &w->adapters[k], (by - 1) * w->adapters[k].scale, NULL,
			values);
}

/* ---- gradients -------------------------------------------------------------------------------- */

void adapters_want(const struct weights *w, const bool *wanted, bool *own)
{
	for (int k = 0; k < w->n_adapters; k++) {
		const struct adapter *x = &w->adapters[k];
		for (int p = 0; p < x->n_parts; p++)
			own[x->part[p]] |= !wanted || wanted[x->a] || wanted[x->b];
	}
}

/* dA = scale B^T dW, dB = scale dW A^T. */
static void differentiate(
	const struct weights *w, const struct adapter *x, double scale, double **sums)
{
	const struct tensor *a = &w->m.tensors[x->a], *b = &w->m.tensors[x->b];
	const int64_t rank = a->dims[0], columns = a->dims[1];
	double *da = xcalloc((size_t)tensor_size(a), sizeof(*da));
	double *db = xcalloc((size_t)tensor_size(b), sizeof(*db));
	int64_t o = 0;
	for (int p = 0; p < x->n_parts; p++)
		for (int64_t k = 0; k < w->m.tensors[x->part[p]].dims[0]; k++, o++)
			for (int64_t r = 0; r < rank; r++) {
				const double *dw = sums[x->part[p]] + k * columns;
				const float *row = w->w[x->a] + r * columns;
				const double by =
					scale * (double)w->w[x->b][o * rank + r];
				double sum = 0;
				for (int64_t i = 0; i < columns; i++) {
					da[r * columns + i] += by * dw[i];
					sum += dw[i] * (double)row[i];
				}
				db[o * rank + r] = scale * sum;
			}
	sums[x->a] = da;
	sums[x->b] = db;
}

void adapters_gradients(
	const struct weights *w, const bool *wanted, double by, double **sums)
{
	const int own = own_tensors(w);
	for (int k = 0; k < w->n_adapters; k++) {
		const struct adapter *x = &w->adapters[k];
		if (!wanted || wanted[x->a] || wanted[x->b])
			differentiate(w, x, by * x->scale, sums);
	}
	for (int i = 0; w->n_adapters && i < own; i++) {
		free(sums[i]);
		sums[i] = NULL;
	}
}
