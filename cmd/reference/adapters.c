/* Low-rank adapters (LoRA): adds them to matrices, and computes their gradients. */
#include "reference/reference.h"

#include <stdlib.h>
#include <string.h>

/* Redirects a pointer into the table `from` to the same tensor in the table `to`. */
static void move_tensor_pointer(
	struct tensor **t, const struct tensor *from, struct tensor *to)
{
	if (*t)
		*t = to + (*t - from);
}

/* Redirects each pointer of the block into the array `from` to the same element of `to`. */
static void move_block_pointers(
	struct block_tensors *b, const struct tensor *from, struct tensor *to)
{
	for (int i = 0; i < SUBLAYERS; i++) {
		struct sublayer_tensors *s = &b->sub[i];
		move_tensor_pointer(&s->norm, from, to);
		move_tensor_pointer(&s->norm_bias, from, to);
		move_tensor_pointer(&s->post_norm, from, to);
		move_tensor_pointer(&s->out, from, to);
		move_tensor_pointer(&s->bias, from, to);
		for (int k = 0; k < SUBLAYER_INPUTS; k++) {
			move_tensor_pointer(&s->in[k], from, to);
			move_tensor_pointer(&s->in_bias[k], from, to);
			move_tensor_pointer(&s->in_norm[k], from, to);
		}
	}
	for (int i = 0; i < b->n_operands; i++)
		move_tensor_pointer(&b->operand[i], from, to);
}

/* Appends n tensors to the model's table. */
static void append_tensors(struct model *m, const struct tensor *added, int n)
{
	struct tensor *from = m->tensors;
	struct tensor *to = xcalloc((size_t)(m->n_tensors + n), sizeof(*to));
	memcpy(to, from, (size_t)m->n_tensors * sizeof(*to));
	memcpy(to + m->n_tensors, added, (size_t)n * sizeof(*to));
	struct tensor **const all[] = {
		&m->tokens, &m->positions, &m->norm, &m->norm_bias, &m->output};
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		move_tensor_pointer(all[i], from, to);
	for (int64_t l = 0; l < m->c.layers; l++)
		move_block_pointers(&m->blocks[l], from, to);
	m->tensors = to;
	m->n_tensors += n;
	free(from);
}

/* Sets sum[columns of A] to row o of B A. */
static void adapter_product_row(
	const struct weights *w, const struct adapter *x, int64_t o, double *sum)
{
	const struct tensor *a = &w->m.tensors[x->a];
	const int64_t rank = a->dims[0], columns = a->dims[1];
	memset(sum, 0, (size_t)columns * sizeof(*sum));
	for (int64_t r = 0; r < rank; r++) {
		const double factor = (double)w->w[x->b][o * rank + r];
		const float *row = w->w[x->a] + r * columns;
		for (int64_t i = 0; i < columns; i++)
			sum[i] += factor * (double)row[i];
	}
}

/* Adds factor times B A to an adapter's matrices, as floats or as doubles; the other one is
 * NULL. */
static void add_adapter_product(const struct weights *w, const struct adapter *x,
	double factor, float **floats, double **doubles)
{
	const int64_t columns = w->m.tensors[x->a].dims[1];
	double *sum = xmalloc((size_t)columns * sizeof(*sum));
	int64_t o = 0;
	for (int p = 0; p < x->n_parts; p++)
		for (int64_t r = 0; r < w->m.tensors[x->part[p]].dims[0]; r++, o++) {
			adapter_product_row(w, x, o, sum);
			for (int64_t i = 0, at = r * columns; i < columns; i++, at++)
				if (doubles)
					doubles[x->part[p]][at] += factor * sum[i];
				else if (floats)
					floats[x->part[p]][at] =
						(float)((double)floats[x->part[p]][at] +
							factor * sum[i]);
		}
	free(sum);
}

void weights_add_adapters(struct weights *w, struct adapter *adapters, int n,
	const struct tensor *tensors, float **values)
{
	const int n_own = w->m.n_tensors;
	append_tensors(&w->m, tensors, 2 * n);
	w->w = xrealloc(w->w, (size_t)w->m.n_tensors * sizeof(*w->w));
	memcpy(w->w + n_own, values, (size_t)(2 * n) * sizeof(*w->w));
	w->adapters = adapters;
	w->n_adapters = n;
	for (int k = 0; k < n; k++)
		add_adapter_product(w, &adapters[k], adapters[k].scale, w->w, NULL);
}

void adapters_rescale(const struct weights *w, double factor, double **values)
{
	for (int k = 0; k < w->n_adapters; k++)
		add_adapter_product(w, &w->adapters[k],
			(factor - 1) * w->adapters[k].scale, NULL, values);
}

void mark_adapted_matrices(const struct weights *w, const bool *wanted, bool *needed)
{
	for (int k = 0; k < w->n_adapters; k++) {
		const struct adapter *x = &w->adapters[k];
		for (int p = 0; p < x->n_parts; p++)
			needed[x->part[p]] |= !wanted || wanted[x->a] || wanted[x->b];
	}
}

/* Sets sums[] of A and B to new arrays with their gradients, from the gradients dW of the matrices that
 * they adapt: dA = scale B^T dW, dB = scale dW A^T. */
static void differentiate_adapter(
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
				const double factor =
					scale * (double)w->w[x->b][o * rank + r];
				double sum = 0;
				for (int64_t i = 0; i < columns; i++) {
					da[r * columns + i] += factor * dw[i];
					sum += dw[i] * (double)row[i];
				}
				db[o * rank + r] = scale * sum;
			}
	sums[x->a] = da;
	sums[x->b] = db;
}

void adapt_gradients(
	const struct weights *w, const bool *wanted, double factor, double **sums)
{
	const int n_own = own_tensors(w);
	for (int k = 0; k < w->n_adapters; k++) {
		const struct adapter *x = &w->adapters[k];
		if (!wanted || wanted[x->a] || wanted[x->b])
			differentiate_adapter(w, x, factor * x->scale, sums);
	}
	for (int i = 0; w->n_adapters && i < n_own; i++) {
		free(sums[i]);
		sums[i] = NULL;
	}
}
