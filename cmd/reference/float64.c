/* The model in double precision: forward and backward pass over one sequence. */
#include "reference/float64_pass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Returns slice i of n of a column-parallel layer's outputs for parts of this kind; else all. */
static struct range output_range(
	const struct sequence_work *w, enum part_kind kind, int64_t out)
{
	const struct grad_part *p = &w->part;
	if (p->kind != kind)
		return (struct range){0, out};
	return (struct range){
		part_begin(out, p->n, p->i), part_begin(out, p->n, p->i + 1)};
}

/* Zeros the columns of x[n][width] that other tensor-parallel ranks hold. */
static void zero_other_ranks(const struct sequence_work *w, double *x, int64_t width)
{
	const struct range own = output_range(w, PART_RANKS, width);
	for (int64_t i = 0; i < w->n; i++)
		for (int64_t j = 0; j < width; j++)
			if (j < own.from || j >= own.to)
				x[i * width + j] = 0;
}

/* Adds the gradients of weights [out][in] and of biases, from the gradients dy of the outputs. */
static void linear_dw(const struct sequence_work *w, const struct tensor *weights,
	const struct tensor *biases, const double *dy, const double *x, int64_t in,
	int64_t out)
{
	double *dw = grad_of(w, weights), *db = grad_of(w, biases);
#pragma omp parallel for
	for (int64_t o = 0; o < out; o++)
		for (int64_t i = 0; i < w->n; i++) {
			if (!part_has(w, i))
				continue;
			if (dw)
				add_scaled(dw + o * in, dy[i * out + o], x + i * in, in);
			if (db)
				db[o] += dy[i * out + o];
		}
}

/* Returns true if a norm subtracts the mean. */
static bool is_centered(const struct sequence_work *w, const struct tensor *gamma)
{
	const char *other = w->f->function.other_norm;
	return (w->m->arch->norm == NORM_LAYER) != (other && strstr(gamma->name, other));
}

/* Sets h[dim] to the normalized x[dim]. Returns 1 / the standard deviation. */
static double normalize(
	const struct sequence_work *w, double *h, const double *x, bool subtract_mean)
{
	double mean = 0, square = 0, n = (double)w->dim;
	for (int64_t j = 0; j < w->dim && subtract_mean; j++)
		mean += x[j] / n;
	for (int64_t j = 0; j < w->dim; j++)
		square += (x[j] - mean) * (x[j] - mean) / n;
	double rstd = 1 / sqrt(square + w->m->c.norm_eps);
	for (int64_t j = 0; j < w->dim; j++)
		h[j] = (x[j] - mean) * rstd;
	return rstd;
}

/* Returns the constant that is added to weights of norms. */
static double norm_offset(const struct sequence_work *w)
{
	return w->m->arch->norm_adds_one ? 1 : 0;
}

/* Sets y to the norm of x; without weights y = x. */
static void apply_norm(const struct sequence_work *w, const struct tensor *gamma,
	const struct tensor *beta, double *y, const double *x)
{
	const double *g = weight_of(w, gamma), *b = weight_of(w, beta);
	if (!g)
		memcpy(y, x, (size_t)(w->n * w->dim) * sizeof(*y));
	for (int64_t i = 0; i < w->n && g; i++) {
		double *row = y + i * w->dim;
		normalize(w, row, x + i * w->dim, is_centered(w, gamma));
		for (int64_t j = 0; j < w->dim; j++)
			row[j] = row[j] * (g[j] + norm_offset(w)) + (b ? b[j] : 0);
	}
}

/* Adds the gradient of the input to dx, and the gradients of weights. dy: gradient of the output.
 * dy_weights: the part of dy that the gradients of the norm's weights are computed from. */
static void norm_backward(const struct sequence_work *w, const struct tensor *gamma,
	const struct tensor *beta, double *dx, const double *dy, const double *dy_weights,
	const double *x)
{
	const double *g = weight_of(w, gamma);
	double *dg = grad_of(w, gamma), *db = grad_of(w, beta), *h = zeros(w->dim);
	double n = (double)w->dim, centered = g && is_centered(w, gamma);
	if (!g)
		add_scaled(dx, 1, dy, w->n * w->dim);
	for (int64_t i = 0; i < w->n && g; i++) {
		const double *up = dy + i * w->dim, *for_w = dy_weights + i * w->dim;
		double rstd = normalize(w, h, x + i * w->dim, centered > 0);
		double mean = 0, along = 0;
		for (int64_t j = 0; j < w->dim; j++) {
			mean += centered * up[j] * (g[j] + norm_offset(w)) / n;
			along += up[j] * (g[j] + norm_offset(w)) * h[j] / n;
		}
		for (int64_t j = 0; j < w->dim; j++)
			dx[i * w->dim + j] += rstd * (up[j] * (g[j] + norm_offset(w)) -
							     mean - h[j] * along);
		for (int64_t j = 0; j < w->dim && part_has(w, i); j++) {
			if (dg)
				dg[j] += for_w[j] * h[j];
			if (db)
				db[j] += for_w[j];
		}
	}
	free(h);
}

static double inverse_rms(const double *x, int64_t n, double eps)
{
	double square = 0;
	for (int64_t j = 0; j < n; j++)
		square += x[j] * x[j] / (double)n;
	return 1 / sqrt(square + eps);
}

/* Returns the number of channels that a norm of queries or keys covers. */
static int64_t qk_norm_width(const struct sequence_work *w, int64_t width)
{
	return model_has_wide_qk_norm(w->m) ? width : w->m->head_dim;
}

/* Sets y to the RMSNorm of each head of x [n][width], or of all heads at once. */
static void apply_head_norm(const struct sequence_work *w, const struct tensor *gamma,
	double *y, const double *x, int64_t width)
{
	int64_t dim = qk_norm_width(w, width);
	const double *g = weight_of(w, gamma);
	for (int64_t at = 0; at < w->n * width; at += dim) {
		double rstd = inverse_rms(x + at, dim, w->m->c.norm_eps);
		for (int64_t j = 0; j < dim; j++)
			y[at + j] = x[at + j] * rstd * (g[j] + norm_offset(w));
	}
}

/* Backpropagates through the norms of heads: adds the gradient of gamma, and replaces dy, the
 * gradient of the outputs, by the gradient of x. A slice has whole heads. */
static void head_norm_backward(const struct sequence_work *w, const struct tensor *gamma,
	double *dy, const double *x, int64_t width)
{
	int64_t dim = qk_norm_width(w, width);
	const double *g = weight_of(w, gamma);
	double *dg = grad_of(w, gamma);
	const struct range slice = output_range(w, PART_SLICE, width);
	for (int64_t at = 0; at < w->n * width; at += dim) {
		double *up = dy + at, along = 0, rstd;
		bool counts = part_has(w, at / width);
		rstd = inverse_rms(x + at, dim, w->m->c.norm_eps);
		for (int64_t j = 0; j < dim; j++)
			along += up[j] * (g[j] + norm_offset(w)) * x[at + j] * rstd /
				 (double)dim;
		for (int64_t j = 0; j < dim; j++) {
			double h = x[at + j] * rstd;
			int64_t channel = (at + j) % width;
			if (dg && counts && channel >= slice.from && channel < slice.to)
				dg[j] += up[j] * h;
			up[j] = rstd * (up[j] * (g[j] + norm_offset(w)) - h * along);
		}
	}
}

/* Allocates the activations of one sublayer of a sequence, as zeros. */
static void acts_init64(const struct sequence_work *w, struct float64_acts *a)
{
	int64_t n = w->n, norms = w->m->c.qk_norm;
	const int64_t widths[] = {w->dim, w->q, w->kv, w->kv, w->q, w->ffn, w->ffn,
		w->ffn, norms ? w->q : 0, norms ? w->kv : 0};
	double **const to[] = {
		&a->h, &a->q, &a->k, &a->v, &a->o, &a->a, &a->b, &a->y, &a->q0, &a->k0};
	for (size_t i = 0; i < ARRAY_LEN(to); i++)
		*to[i] = zeros(n * widths[i]);
	float64_routing_init(w, &a->routing);
}

static void acts_release64(struct float64_acts *a)
{
	double *const all[] = {
		a->h, a->q, a->k, a->v, a->o, a->a, a->b, a->y, a->q0, a->k0};
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		free(all[i]);
	float64_routing_release(&a->routing);
}

/* Rotates queries, keys or values in place. sign -1: the inverse rotation. */
static void rotate_heads(
	const struct sequence_work *w, const struct float64_acts *a, double sign)
{
	const enum rotation which = w->f->function.rotation;
	if (which != ROTATE_KEYS)
		float64_rotate(w, a->q, w->q, sign);
	if (which != ROTATE_QUERIES)
		float64_rotate(w, a->k, w->kv, sign);
	if (which == ROTATE_ALL)
		float64_rotate(w, a->v, w->kv, sign);
}

/* Computes attention before its row-parallel layer. Returns that layer's input. */
static double *run_attention(const struct sequence_work *w,
	const struct sublayer_tensors *t, struct float64_acts *a, const double *x)
{
	bool norms = w->m->c.qk_norm;
	double *const qkv[] = {norms ? a->q0 : a->q, norms ? a->k0 : a->k, a->v};
	apply_norm(w, t->norm, t->norm_bias, a->h, x);
	for (int i = 0; i < 3; i++)
		float64_linear(qkv[i], a->h, weight_of(w, t->in[i]),
			weight_of(w, t->in_bias[i]), w->n, w->dim, i ? w->kv : w->q);
	if (norms) {
		apply_head_norm(w, t->in_norm[0], a->q, a->q0, w->q);
		apply_head_norm(w, t->in_norm[1], a->k, a->k0, w->kv);
	}
	rotate_heads(w, a, 1);
	float64_attend(w, a);
	zero_other_ranks(w, a->o, w->q);
	return a->o;
}

/* Computes the FFN before its row-parallel layer. Returns that layer's input. */
static double *run_ffn(const struct sequence_work *w, const struct sublayer_tensors *t,
	struct float64_acts *a, const double *x)
{
	double *const ab[] = {a->a, a->b};
	apply_norm(w, t->norm, t->norm_bias, a->h, x);
	for (int i = 0; i < 2 && t->in[i]; i++)
		float64_linear(ab[i], a->h, weight_of(w, t->in[i]),
			weight_of(w, t->in_bias[i]), w->n, w->dim, w->ffn);
	for (int64_t i = 0; i < w->n * w->ffn && !t->in[1]; i++)
		a->b[i] = 1;
	for (int64_t i = 0; i < w->n * w->ffn; i++)
		a->y[i] = w->f->function.gate_exchanged
				  ? float64_act(w->m->act, a->b[i], a->a[i])
				  : float64_act(w->m->act, a->a[i], a->b[i]);
	zero_other_ranks(w, a->y, w->ffn);
	return a->y;
}

/* Computes sublayer k (attention, FFN of layer k / 2) before its row-parallel layer. */
static double *run_sublayer(
	struct sequence_work *w, int64_t k, struct float64_acts *a, const double *x)
{
	const struct sublayer_tensors *t = &w->m->blocks[k / 2].sub[k % 2];
	w->layer = t->out->unit - 1; /* (its own, if it is computed twice) */
	return k % 2 == ATTENTION ? run_attention(w, t, a, x) : run_ffn(w, t, a, x);
}

/* Backpropagates through the column-parallel layers after a norm: adds the gradient of the norm's
 * output to dh, and the part for the norm's weights to dh_weights, if that is another array. */
static void columns_backward(const struct sequence_work *w,
	const struct sublayer_tensors *t, double *const dy[], const int64_t widths[],
	const double *h, double *dh, double *dh_weights)
{
	for (int i = 0; i < SUBLAYER_INPUTS && t->in[i]; i++) {
		linear_dw(w, t->in[i], t->in_bias[i], dy[i], h, w->dim, widths[i]);
		float64_linear_dx(dh, dy[i], weight_of(w, t->in[i]), w->n, w->dim,
			widths[i], (struct range){0, widths[i]});
		if (dh_weights != dh)
			float64_linear_dx(dh_weights, dy[i], weight_of(w, t->in[i]), w->n,
				w->dim, widths[i],
				output_range(w, PART_SLICE, widths[i]));
	}
}

/* Backpropagates dx, the gradient of the output of attention: adds the gradients of its
 * weights, and the gradient of the norm's output to dh (and to dh_weights). */
static void attention_backward64(const struct sequence_work *w,
	const struct sublayer_tensors *t, const struct float64_acts *a, const double *dx,
	double *dh, double *dh_weights)
{
	const int64_t widths[] = {w->q, w->kv, w->kv};
	struct float64_acts d;
	acts_init64(w, &d);
	linear_dw(w, t->out, t->bias, dx, a->o, w->q, w->dim);
	float64_linear_dx(d.o, dx, weight_of(w, t->out), w->n, w->q, w->dim,
		(struct range){0, w->dim});
	zero_other_ranks(w, d.o, w->q);
	float64_attend_backward(w, a, &d);
	rotate_heads(w, &d, -1);
	if (w->m->c.qk_norm) {
		head_norm_backward(w, t->in_norm[0], d.q, a->q0, w->q);
		head_norm_backward(w, t->in_norm[1], d.k, a->k0, w->kv);
	}
	columns_backward(
		w, t, (double *const[]){d.q, d.k, d.v}, widths, a->h, dh, dh_weights);
	acts_release64(&d);
}

/* Stores dy and x of the last block's w2, if struct target_rows requests them. */
static void store_rows(const struct sequence_work *w, const double *dy, const double *x)
{
	const struct target_rows *rows = w->s->rows;
	if (!rows || !rows->dy || w->layer != w->m->c.layers - 1)
		return;
	memcpy(rows->dy, dy, (size_t)(w->n * w->dim) * sizeof(*dy));
	memcpy(rows->x, x, (size_t)(w->n * w->ffn) * sizeof(*x));
}

/* Backpropagates dx, the gradient of the FFN's output: adds the gradients of its weights, and the
 * gradient of the norm's output to dh (and dh_weights). Stores rows for struct target_rows. */
static void ffn_backward64(const struct sequence_work *w,
	const struct sublayer_tensors *t, const struct float64_acts *a, const double *dx,
	double *dh, double *dh_weights)
{
	if (t->router) { /* (PART_SLICE is not used for models with experts) */
		float64_experts_backward(w, t, &a->routing, a->h, dx, dh);
		return;
	}
	const int64_t widths[] = {w->ffn, w->ffn};
	struct float64_acts d;
	acts_init64(w, &d);
	linear_dw(w, t->out, t->bias, dx, a->y, w->ffn, w->dim);
	store_rows(w, dx, a->y);
	float64_linear_dx(d.y, dx, weight_of(w, t->out), w->n, w->ffn, w->dim,
		(struct range){0, w->dim});
	zero_other_ranks(w, d.y, w->ffn);
	for (int64_t i = 0; i < w->n * w->ffn; i++) {
		double da, db;
		if (w->f->function.gate_exchanged)
			db = float64_act_slope(w->m->act, a->b[i], a->a[i], &da);
		else
			da = float64_act_slope(w->m->act, a->a[i], a->b[i], &db);
		d.a[i] = d.y[i] * da;
		d.b[i] = d.y[i] * db;
	}
	columns_backward(w, t, (double *const[]){d.a, d.b}, widths, a->h, dh, dh_weights);
	acts_release64(&d);
}

static double embedding_scale(const struct sequence_work *w)
{
	double scale =
		variant_or_model(w->f->function.embedding_scale, w->m->c.embedding_scale);
	return scale > 0 ? scale : w->m->arch->root_embedding ? sqrt((double)w->dim) : 1;
}

/* Adds the scaled embeddings of the tokens and of their positions to x[n][dim]. */
static void embed(const struct sequence_work *w, double *x)
{
	const double *table = weight_of(w, w->m->tokens),
		     *pos = weight_of(w, w->m->positions);
	for (int64_t i = 0; i < w->n; i++) {
		add_scaled(x + i * w->dim, embedding_scale(w),
			table + w->s->tokens[i] * w->dim, w->dim);
		if (pos)
			add_scaled(
				x + i * w->dim, 1, pos + w->s->pos[i] * w->dim, w->dim);
	}
}

/* Returns true if the part includes this use of the token table, which may be tied. */
static bool has_table_use(const struct sequence_work *w, int use)
{
	return w->part.kind != PART_USE || w->m->output != w->m->tokens ||
	       w->part.i == use;
}

/* Adds dx[n][dim], the gradient of the first block's input, to the gradients of the
 * embeddings, except of the padding token. */
static void embed_backward64(const struct sequence_work *w, const double *dx)
{
	double *table = grad_of(w, w->m->tokens), *pos = grad_of(w, w->m->positions);
	for (int64_t i = 0; i < w->n; i++) {
		const double *row = dx + i * w->dim;
		if (w->s->rows && w->s->rows->dx)
			add_scaled(w->s->rows->dx + i * w->dim, embedding_scale(w), row,
				w->dim);
		if (table && part_has(w, i) && has_table_use(w, 0) &&
			w->s->tokens[i] + 1 != w->f->padding)
			add_scaled(table + w->s->tokens[i] * w->dim, embedding_scale(w),
				row, w->dim);
		if (pos && part_has(w, i))
			add_scaled(pos + w->s->pos[i] * w->dim, 1, row, w->dim);
	}
}

/* A tensor-parallel rank, or the only rank. */
struct rank {
	struct sequence_work w;
	double *x; /* [2 layers + 1][n][dim]: input of each sublayer; last: final output */
	double *y;   /* [n][dim]: this rank's part of a sublayer's output */
	double *sum; /* [n][dim]: sum of y over ranks */
	double *dy;  /* [n][dim]: gradient of sum */
	double *dx;  /* [n][dim]: gradient of x */
	double *dx_shared; /* [n][dim]: added to the gradient of the layer's input: from an FFN that
			    * shares this input, or minus the gradient of a detached residual */
	double *dh;	    /* [n][dim]: gradient of a norm's output */
	double *dh_weights; /* [n][dim]: part of dh for the norm's weights; or dh */
	struct float64_acts a;
};

struct pass {
	struct rank *ranks;
	int n;
	enum missing missing;
	int64_t size, last; /* elements of [n][dim]; number of sublayers */
};

/* Returns true if the residual around sublayer k is removed. */
static bool lacks_residual(const struct pass *p, int64_t k, bool is_backward)
{
	const struct path *path = &p->ranks->w.f->function.path;
	return (path->kind == PATH_NO_RESIDUAL ||
		       (path->kind == PATH_DETACHED && is_backward)) &&
	       path->sublayer == k % 2 && (path->layer < 0 || path->layer == k / 2);
}

/* Returns true if the FFN of sublayer k's layer reads the input of attention. */
static bool reads_attention_input(const struct pass *p, int64_t k)
{
	const struct path *path = &p->ranks->w.f->function.path;
	return path->kind == PATH_PARALLEL && (path->layer < 0 || path->layer == k / 2);
}

/* Returns true if the residual around the whole layer of sublayer k is detached. */
static bool is_layer_detached(const struct pass *p, int64_t k)
{
	const struct path *path = &p->ranks->w.f->function.path;
	return path->kind == PATH_DETACHED && path->sublayer == SUBLAYERS &&
	       (path->layer < 0 || path->layer == k / 2);
}

/* Returns which of rank->x[] is the input of sublayer k: k, or k - 1 for an FFN that is parallel to
 * attention. k = p->last is the final norm. */
static int64_t input_index(const struct pass *p, int64_t k)
{
	return k - (reads_attention_input(p, k) && k < p->last && k % 2 == FFN);
}

static double times_or_once(double times)
{
	return times > 0 ? times : 1;
}

static const struct sublayer_tensors *tensors_of(const struct pass *p, int64_t k)
{
	return &p->ranks->w.m->blocks[k / 2].sub[k % 2];
}

static double residual_scale(const struct pass *p)
{
	double scale = p->ranks->w.m->c.residual_scale;
	return scale > 0 ? scale : 1;
}

/* Sums the ranks' parts of sublayer k's output, and adds the bias. */
static void sum_outputs(const struct pass *p, int64_t k)
{
	const struct sequence_work *w = &p->ranks->w;
	const struct function *f = &w->f->function;
	const double *bias = weight_of(w, tensors_of(p, k)->bias);
	bool is_missing =
		p->missing == (k % 2 == ATTENTION ? MISSING_ATTENTION : MISSING_FFN) ||
		p->missing == MISSING_BOTH;
	for (int r = 0; r < p->n; r++) {
		double *sum = p->ranks[r].sum;
		memset(sum, 0, (size_t)p->size * sizeof(*sum));
		for (int q = 0; q < p->n; q++)
			if (q == r || !is_missing)
				add_scaled(sum, times_or_once(f->times[k % 2]),
					p->ranks[q].y, p->size);
		for (int64_t i = 0; i < w->n && bias; i++)
			add_scaled(sum + i * w->dim, times_or_once(f->bias_times[k % 2]),
				bias, w->dim);
	}
}

/* Returns the array for the gradient of sublayer k's input. */
static double *input_gradient(const struct pass *p, const struct rank *rank, int64_t k)
{
	return input_index(p, k) == k ? rank->dx : rank->dx_shared;
}

/* Completes sublayer k after its row-parallel layer: norm of the output, and residual. */
static void finish_sublayer(const struct pass *p, int64_t k)
{
	sum_outputs(p, k);
	for (int r = 0; r < p->n; r++) {
		struct rank *rank = &p->ranks[r];
		const double *input = rank->x + k * p->size;
		double *output = rank->x + (k + 1) * p->size;
		apply_norm(
			&rank->w, tensors_of(p, k)->post_norm, NULL, rank->y, rank->sum);
		if (!lacks_residual(p, k, false))
			memcpy(output, input, (size_t)p->size * sizeof(*output));
		add_scaled(output, residual_scale(p), rank->y, p->size);
	}
}

/* Sets each rank's dy from the gradient of the stream after sublayer k. */
static void finish_sublayer_backward(const struct pass *p, int64_t k)
{
	const struct tensor *post = tensors_of(p, k)->post_norm;
	if (post)
		sum_outputs(p, k);
	for (int r = 0; r < p->n; r++) {
		struct rank *rank = &p->ranks[r];
		double *dz = rank->y; /* (y is no longer needed) */
		memset(dz, 0, (size_t)p->size * sizeof(*dz));
		memset(rank->dy, 0, (size_t)p->size * sizeof(*rank->dy));
		add_scaled(dz, residual_scale(p), rank->dx, p->size);
		norm_backward(&rank->w, post, NULL, rank->dy, dz, dz, rank->sum);
	}
}

/* Sums dh over ranks before column-parallel layers, and backpropagates through the norm to dx. */
static void enter_norm_backward(const struct pass *p, const struct tensor *gamma,
	const struct tensor *beta, int64_t k)
{
	double *sum = p->ranks->dh;
	bool is_missing = p->missing == MISSING_ENTER;
	for (int r = 1; r < p->n && !is_missing; r++)
		add_scaled(sum, 1, p->ranks[r].dh, p->size);
	for (int r = 0; r < p->n; r++) {
		const struct rank *rank = &p->ranks[r];
		const double *dy = is_missing ? rank->dh : sum;
		norm_backward(&rank->w, gamma, beta, input_gradient(p, rank, k), dy,
			rank->dh_weights == rank->dh ? dy : rank->dh_weights,
			rank->x + input_index(p, k) * p->size);
	}
	for (int r = 0; r < p->n; r++) {
		memset(p->ranks[r].dh, 0, (size_t)p->size * sizeof(double));
		memset(p->ranks[r].dh_weights, 0, (size_t)p->size * sizeof(double));
	}
}

/* Computes a rank's part of the output of sublayer k. */
static void compute_rank_output(const struct pass *p, struct rank *rank, int64_t k)
{
	struct sequence_work *w = &rank->w;
	const struct sublayer_tensors *t = tensors_of(p, k);
	const double *x = rank->x + input_index(p, k) * p->size;
	if (t->router) {
		w->layer = t->w2->unit - 1;
		apply_norm(w, t->norm, t->norm_bias, rank->a.h, x);
		float64_experts(w, t, &rank->a.routing, rank->a.h, rank->y);
		return;
	}
	const double *in = run_sublayer(w, k, &rank->a, x);
	float64_linear(rank->y, in, weight_of(w, t->out), NULL, w->n,
		k % 2 == ATTENTION ? w->q : w->ffn, w->dim);
}

static void forward_pass(const struct pass *p)
{
	for (int64_t k = 0; k < p->last; k++) {
		for (int r = 0; r < p->n; r++)
			compute_rank_output(p, &p->ranks[r], k);
		finish_sublayer(p, k);
	}
}

/* Returns the first sublayer of the first block that has a requested gradient. */
static int64_t first_needed_sublayer(const struct pass *p)
{
	const struct sequence_work *w = &p->ranks->w;
	int64_t k = 0, unit = w->m->n_units - 1;
	for (int i = 0; i < w->m->n_tensors; i++)
		if (w->grad[i])
			unit = min64(unit, w->m->tensors[i].unit);
	while (k < p->last && w->m->blocks[k / 2].sub->out->unit < unit)
		k += 2;
	return k;
}

/* Runs all sublayers backward. Recomputes their activations: only their inputs are stored. */
static void backward_pass(const struct pass *p)
{
	for (int64_t k = p->last - 1, first = first_needed_sublayer(p); k >= first; k--) {
		const struct sublayer_tensors *t = tensors_of(p, k);
		for (int r = 0; r < p->n; r++)
			compute_rank_output(p, &p->ranks[r], k);
		finish_sublayer_backward(p, k);
		for (int r = 0; r < p->n; r++) {
			struct rank *rank = &p->ranks[r];
			if (is_layer_detached(p, k) && k % 2 == FFN)
				add_scaled(rank->dx_shared, -1, rank->dx, p->size);
			(k % 2 == ATTENTION ? attention_backward64 : ffn_backward64)(
				&rank->w, t, &rank->a, rank->dy, rank->dh,
				rank->dh_weights);
			if (lacks_residual(p, k, true))
				memset(rank->dx, 0, (size_t)p->size * sizeof(double));
		}
		enter_norm_backward(p, t->norm, t->norm_bias, k);
		const bool adds = reads_attention_input(p, k) || is_layer_detached(p, k);
		for (int r = 0; r < p->n && adds && k % 2 == ATTENTION; r++) {
			add_scaled(p->ranks[r].dx, 1, p->ranks[r].dx_shared, p->size);
			memset(p->ranks[r].dx_shared, 0,
				(size_t)p->size * sizeof(double));
		}
	}
}

/* Adds the gradients of the output layer and of its input, h, from positions [at, at + n). */
static void head_backward(const struct rank *rank, const double *h, const double *dlogits,
	int64_t at, int64_t n)
{
	const struct sequence_work *w = &rank->w;
	const struct tensor *out = w->m->output;
	int64_t dim = w->dim, vocab = w->m->c.vocab;
	double *dw = has_table_use(w, 1) ? grad_of(w, out) : NULL;
	float64_linear_dx(rank->dh + at * dim, dlogits, weight_of(w, out), n, dim, vocab,
		output_range(w, PART_RANKS, vocab));
	if (rank->dh_weights != rank->dh)
		float64_linear_dx(rank->dh_weights + at * dim, dlogits, weight_of(w, out),
			n, dim, vocab, output_range(w, PART_SLICE, vocab));
#pragma omp parallel for
	for (int64_t o = 0; o < vocab; o++)
		for (int64_t i = 0; i < n && dw; i++)
			if (part_has(w, at + i))
				add_scaled(dw + o * dim, dlogits[i * vocab + o],
					h + (at + i) * dim, dim);
}

/* Computes each rank's columns of the logits of n positions, and gathers them. */
static void gather_logits(
	const struct pass *p, double *logits, double *own, int64_t at, int64_t n)
{
	const struct sequence_work *w = &p->ranks->w;
	int64_t vocab = w->m->c.vocab;
	for (int r = 0; r < p->n; r++) {
		const struct range cols = output_range(&p->ranks[r].w, PART_RANKS, vocab);
		float64_linear(own, p->ranks[r].a.h + at * w->dim,
			weight_of(w, w->m->output), NULL, n, w->dim, vocab);
		for (int64_t i = 0; i < n; i++)
			memcpy(logits + i * vocab + cols.from,
				own + i * vocab + cols.from,
				(size_t)(cols.to - cols.from) * sizeof(*own));
	}
}

/* Returns weight times loss of position i. Replaces the logits by their gradients. */
static double weighted_loss(
	const struct sequence_work *w, double *logits, double *slope, int64_t i)
{
	const struct sequence *s = w->s;
	const double weight = s->weights ? s->weights[i] : 1;
	if (s->targets[i] < 0) {
		memset(logits, 0, (size_t)w->m->c.vocab * sizeof(*logits));
		return 0;
	}
	const double loss =
		float64_loss(w, logits, slope, s->targets[i], weight * w->scale);
	if (s->rows && s->rows->loss)
		s->rows->loss[i] = loss;
	if (s->size)
		*s->size += fabs(weight * loss);
	return weight * loss;
}

/* Returns the sum of losses, and computes the gradient of the last sublayer's output. Holds the
 * logits of BAND positions at a time. */
static double head_pass(const struct pass *p)
{
	enum { BAND = 64 };
	const struct sequence_work *w = &p->ranks->w;
	int64_t vocab = w->m->c.vocab;
	double *logits = zeros(BAND * vocab), *rank_logits = zeros(BAND * vocab),
	       *slope = zeros(vocab), loss = 0;
	for (int r = 0; r < p->n; r++)
		apply_norm(&p->ranks[r].w, w->m->norm, w->m->norm_bias, p->ranks[r].a.h,
			p->ranks[r].x + p->last * p->size);
	for (int64_t at = 0; at < w->n; at += BAND) {
		int64_t n = min64(BAND, w->n - at);
		gather_logits(p, logits, rank_logits, at, n);
		for (int64_t i = 0; i < n; i++)
			loss += weighted_loss(w, logits + i * vocab, slope, at + i);
		for (int r = 0; r < p->n; r++)
			head_backward(&p->ranks[r], p->ranks[r].a.h, logits, at, n);
	}
	enter_norm_backward(p, w->m->norm, w->m->norm_bias, p->last);
	free(logits);
	free(rank_logits);
	free(slope);
	return loss;
}

/* Allocates the activations and gradients of a rank, and embeds the sequence in x. */
static void rank_init(struct rank *rank, const struct pass *p)
{
	rank->x = zeros((p->last + 1) * p->size);
	rank->y = zeros(p->size);
	rank->sum = zeros(p->size);
	rank->dy = zeros(p->size);
	rank->dx = zeros(p->size);
	rank->dx_shared = zeros(p->size);
	rank->dh = zeros(p->size);
	rank->dh_weights = rank->w.part.kind == PART_SLICE ? zeros(p->size) : rank->dh;
	acts_init64(&rank->w, &rank->a);
	embed(&rank->w, rank->x);
}

static void rank_release(struct rank *rank)
{
	free(rank->x);
	free(rank->y);
	free(rank->sum);
	free(rank->dy);
	free(rank->dx);
	free(rank->dx_shared);
	if (rank->dh_weights != rank->dh)
		free(rank->dh_weights);
	free(rank->dh);
	acts_release64(&rank->a);
}

double float64_sequence(const struct float64 *f, const struct sequence *s, double scale,
	const struct grad_part *part, double **grad)
{
	const struct model *m = f->m;
	struct sequence_work w = {.f = f,
		.m = m,
		.s = s,
		.n = s->n,
		.dim = m->c.dim,
		.ffn = m->c.ffn_dim,
		.q = m->c.heads * m->head_dim,
		.kv = m->c.kv_heads * m->head_dim,
		.scale = scale,
		.grad = grad};
	if (part)
		w.part = *part;
	if (m->arch->rope)
		w.table = float64_rotations(&w);
	struct pass p = {.n = w.part.kind == PART_RANKS ? w.part.n : 1,
		.missing = w.part.missing,
		.size = w.n * w.dim,
		.last = 2 * m->c.layers};
	p.ranks = xcalloc((size_t)p.n, sizeof(*p.ranks));
	for (int r = 0; r < p.n; r++) {
		p.ranks[r].w = w;
		if (w.part.kind == PART_RANKS)
			p.ranks[r].w.part.i = r;
		p.ranks[r].w.grad = grad + r * m->n_tensors;
		rank_init(&p.ranks[r], &p);
	}
	forward_pass(&p);
	double loss = 0;
	const bool each_part = w.part.kind != PART_WHOLE && w.part.i == EACH_PART;
	for (int i = 0; i < (each_part ? w.part.n : 1); i++) {
		if (each_part) {
			p.ranks->w.part.i = i;
			p.ranks->w.grad = grad + i * m->n_tensors;
			memset(p.ranks->dx, 0, (size_t)p.size * sizeof(*p.ranks->dx));
		}
		loss = head_pass(&p);
		backward_pass(&p);
		for (int r = 0; r < p.n; r++)
			embed_backward64(&p.ranks[r].w, p.ranks[r].dx);
	}
	for (int r = 0; r < p.n; r++)
		rank_release(&p.ranks[r]);
	free(p.ranks);
	free(w.table);
	return loss;
}

double float64_work(const struct model *m, int64_t n)
{
	double tokens = (double)n, block = model_layer_work(m, 0) * (double)m->c.layers;
	return tokens * (4 * block + 3 * (double)m->c.dim * (double)m->c.vocab);
}
