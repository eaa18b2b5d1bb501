/* Weighted sums of the parameters of several checkpoints: averages, moving averages, merges. */
#include "ckpt/view.h"

#include <math.h>

struct combination {
	const struct ckpt_view *views[CKPT_MAX_SOURCES];
	int *indices
		[CKPT_MAX_SOURCES]; /* [view][tensor] index of the tensor in the view */
	int n;
	double weights[CKPT_MAX_SOURCES], divisor;
};

static void add_scaled(double *sum, const float *x, int64_t n, double weight)
{
	for (int64_t i = 0; i < n; i++)
		sum[i] += weight * (double)x[i];
}

/* Computes rows of the weighted sum in fp64. Implements ckpt_view.read. */
static int read_sum(
	const struct ckpt_view *v, const struct ckpt_rows *r, float *out, struct err *e)
{
	const struct combination *c = v->with;
	int64_t n = r->n * ckpt_row_size(&v->tensors[r->tensor]);
	scoped_ptr double *sum = xcalloc((size_t)n, sizeof(*sum));
	int rc = 0;
	for (int i = 0; i < c->n && !rc; i++) {
		const struct ckpt_rows source_rows = {
			CKPT_MODEL, c->indices[i][r->tensor], r->row, r->n};
		rc = c->views[i]->read(c->views[i], &source_rows, out, e);
		if (!rc)
			add_scaled(sum, out, n, c->weights[i]);
	}
	for (int64_t i = 0; i < n && !rc; i++) {
		out[i] = (float)(sum[i] / c->divisor);
		if (!isfinite(out[i]))
			rc = err_set(e, EX_DATAERR,
				"the sum of %s is %g in fp32; use other weights, or leave out "
				"checkpoints with infinite values",
				v->tensors[r->tensor].name, (double)out[i]);
	}
	return rc;
}

static void close_sum(struct ckpt_view *v)
{
	struct combination *c = v->with;
	for (int i = 0; i < c->n; i++)
		free(c->indices[i]);
	free(c);
}

/* Sets indices[i] to the index in `b` of tensor i of `a`. Fails if the tensors differ. */
static int match_tensors(
	const struct ckpt_view *a, const struct ckpt_view *b, int *indices, struct err *e)
{
	if (a->n_tensors != b->n_tensors)
		return err_set(e, EX_DATAERR, "%s has %d tensors, but %s has %d", a->name,
			a->n_tensors, b->name, b->n_tensors);
	for (int i = 0; i < a->n_tensors; i++) {
		const struct ckpt_tensor *t = &a->tensors[i];
		indices[i] = ckpt_view_find(b, t->name);
		if (indices[i] < 0)
			return err_set(e, EX_DATAERR, "%s lacks the tensor %s of %s",
				b->name, t->name, a->name);
		if (!ckpt_same_shape(t, &b->tensors[indices[i]]))
			return err_set(e, EX_DATAERR,
				"%s: the shape of %s differs from %s", b->name, t->name,
				a->name);
	}
	return 0;
}

int ckpt_combine(struct ckpt_view *v, const struct ckpt_view *const *views, int n,
	const double *weights, double divisor, struct err *e)
{
	BUG_ON(n < 1 || n > CKPT_MAX_SOURCES);
	struct combination *c = xcalloc(1, sizeof(*c));
	const struct ckpt_view *last = views[n - 1];
	int rc = 0;
	c->divisor = divisor;
	for (; c->n < n && !rc; c->n++) {
		c->views[c->n] = views[c->n];
		c->weights[c->n] = weights[c->n];
		c->indices[c->n] = xcalloc((size_t)last->n_tensors, sizeof(int));
		rc = match_tensors(last, views[c->n], c->indices[c->n], e);
	}
	ckpt_view_copy(v, last);
	v->read = read_sum;
	v->close = close_sum;
	v->with = c;
	v->info.loss = v->info.val_loss = v->info.best_val_loss = (double)NAN;
	v->info.loss_scale = 0;
	ckpt_view_drop_optimizer(v);
	if (rc)
		ckpt_view_close(v);
	return rc;
}

void ckpt_ema_weights(double decay, int n, double *weights)
{
	double rest = 1;
	for (int i = n - 1; i > 0; i--) {
		weights[i] = rest * (1 - decay);
		rest *= decay;
	}
	weights[0] = rest;
}
