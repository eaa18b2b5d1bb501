/* The model in double precision: forward and backward pass over one sequence. */
#include "reference/float64_pass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- a pass over one sequence ------------------------------------------------------- */

static double *weight(const struct sequence_work *w, const struct tensor *t)
{
	return t ? w->f->w[t - w->m->tensors] : NULL;
}

static double *gradient(const struct sequence_work *w, const struct tensor *t)
{
	return t ? w->grad[t - w->m->tensors] : NULL;
}

/* Returns true if the gradients of weights include this position's contribution. */
static bool in_part(const struct sequence_work *w, int64_t i)
{
	int n = w->part.n, k = w->part.i;
	if (w->part.kind == PART_CHUNK)
		return i * n / w->n == k;
	if (w->part.kind == PART_ZIGZAG) {
		int64_t piece = i * 2 * n / w->n;
		return piece == k || piece == 2 * n - 1 - k;
	}
	return true;
}

/* Returns slice i of n of a column-parallel layer's outputs for parts of this kind; else all. */
static struct range outputs_of(
	const struct sequence_work *w, enum part_kind kind, int64_t out)
{
	const struct grad_part *p = &w->part;
	if (p->kind != kind)
		return (struct range){0, out};
	return (struct range){
		part_begin(out, p->n, p->i), part_begin(out, p->n, p->i + 1)};
}

/* Zeros the columns of x[n][width] that another tensor-parallel rank holds. */
static void keep_own(const struct sequence_work *w, double *x, int64_t width)
{
	const struct range own = outputs_of(w, PART_RANKS, width);
	for (int64_t i = 0; i < w->n; i++)
		for (int64_t j = 0; j < width; j++)
			if (j < own.from || j >= own.to)
				x[i * width + j] = 0;
}

/* Adds the gradients of a weight [out][in] and of a bias, from the gradients of the outputs. */
static void linear_dw(const struct sequence_work *w, const struct tensor *weights,
	const struct tensor *biases, const double *dy, const double *x, int64_t in,
	int64_t out)
{
	double *dw = gradient(w, weights), *db = gradient(w, biases);
#pragma omp parallel for
	for (int64_t o = 0; o < out; o++)
		for (int64_t i = 0; i < w->n; i++) {
			if (!in_part(w, i))
				continue;
			if (dw)
				add_scaled(dw + o * in, dy[i * out + o], x + i * in, in);
			if (db)
				db[o] += dy[i * out + o];
		}
}

/* ---- norms ------------------------------------------------------------------------- */

/* Returns true if a norm subtracts the mean. */
static bool is_centered(const struct sequence_work *w, const struct tensor *gamma)
{
	const char *other = w->f->function.other_norm;
	return (w->m->arch->norm == NORM_LAYER) != (other && strstr(gamma->name, other));
}

/* Sets h to the normalized row. Returns 1 / the standard deviation. */
static double normalize(
	const struct sequence_work *w, double *h, const double *x, bool centered)
{
	double mean = 0, square = 0, n = (double)w->dim;
	for (int64_t j = 0; j < w->dim && centered; j++)
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
	const double *g = weight(w, gamma), *b = weight(w, beta);
	if (!g)
		memcpy(y, x, (size_t)(w->n * w->dim) * sizeof(*y));
	for (int64_t i = 0; i < w->n && g; i++) {
		double *row = y + i * w->dim;
		normalize(w, row, x + i * w->dim, is_centered(w, gamma));
		for (int64_t j = 0; j < w->dim; j++)
			row[j] = row[j] * (g[j] + norm_offset(w)) + (b ? b[j] : 0);
	}
}

/* Adds the gradient of the input to dx. dy: gradient of the output. for_weights: the part
 * of dy that the gradients of the norm's weights are computed from. */
static void norm_backward(const struct sequence_work *w, const struct tensor *gamma,
	const struct tensor *beta, double *dx, const double *dy,
	const double *for_weights, const double *x)
{
	const double *g = weight(w, gamma);
	double *dg = gradient(w, gamma), *db = gradient(w, beta), *h = doubles(w->dim);
	double n = (double)w->dim, centre = g && is_centered(w, gamma);
	if (!g)
		add_scaled(dx, 1, dy, w->n * w->dim);
	for (int64_t i = 0; i < w->n && g; i++) {
		const double *up = dy + i * w->dim, *mine = for_weights + i * w->dim;
		double rstd = normalize(w, h, x + i * w->dim, centre > 0);
		double mean = 0, along = 0;
		for (int64_t j = 0; j < w->dim; j++) {
			mean += centre * up[j] * (g[j] + norm_offset(w)) / n;
			along += up[j] * (g[j] + norm_offset(w)) * h[j] / n;
		}
		for (int64_t j = 0; j < w->dim; j++)
			dx[i * w->dim + j] += rstd * (up[j] * (g[j] + norm_offset(w)) -
							     mean - h[j] * along);
		for (int64_t j = 0; j < w->dim && in_part(w, i); j++) {
			if (dg)
				dg[j] += mine[j] * h[j];
			if (db)
				db[j] += mine[j];
		}
	}
	free(h);
}

static double rstd_of(const double *x, int64_t n, double eps)
{
	double square = 0;
	for (int64_t j = 0; j < n; j++)
		square += x[j] * x[j] / (double)n;
	return 1 / sqrt(square + eps);
}

/* Returns the number of channels that a norm of queries or keys covers. */
static int64_t qk_norm_width(const struct sequence_work *w, int64_t width)
{
	return w->m->arch->wide_qk_norm ? width : w->m->head_dim;
}

/* Sets y to the RMSNorm of each head of x [n][width], or of all heads at once. */
static void head_norm(const struct sequence_work *w, const struct tensor *gamma,
	double *y, const double *x, int64_t width)
{
	int64_t dim = qk_norm_width(w, width);
	const double *g = weight(w, gamma);
	for (int64_t at = 0; at < w->n * width; at += dim) {
		double rstd = rstd_of(x + at, dim, w->m->c.norm_eps);
		for (int64_t j = 0; j < dim; j++)
			y[at + j] = x[at + j] * rstd * (g[j] + norm_offset(w));
	}
}

/* Replaces the gradient of the norms by the gradient of x. A slice has whole heads. */
static void head_norm_backward(const struct sequence_work *w, const struct tensor *gamma,
	double *dy, const double *x, int64_t width)
{
	int64_t dim = qk_norm_width(w, width);
	const double *g = weight(w, gamma);
	double *dg = gradient(w, gamma);
	const struct range of = outputs_of(w, PART_SLICE, width);
	for (int64_t at = 0; at < w->n * width; at += dim) {
		double *up = dy + at, along = 0, rstd;
		bool mine = in_part(w, at / width);
		rstd = rstd_of(x + at, dim, w->m->c.norm_eps);
		for (int64_t j = 0; j < dim; j++)
			along += up[j] * (g[j] + norm_offset(w)) * x[at + j] * rstd /
				 (double)dim;
		for (int64_t j = 0; j < dim; j++) {
			double h = x[at + j] * rstd;
			int64_t channel = (at + j) % width;
			if (dg && mine && channel >= of.from && channel < of.to)
				dg[j] += up[j] * h;
			up[j] = rstd * (up[j] * (g[j] + norm_offset(w)) - h * along);
		}
	}
}

/* ---- sublayers ---------------------------------------------------------------------- */

static void acts_alloc64(const struct sequence_work *w, struct float64_acts *a)
{
	int64_t n = w->n, norms = w->m->c.qk_norm;
	const int64_t widths[] = {w->dim, w->q, w->kv, w->kv, w->q, w->ffn, w->ffn,
		w->ffn, norms ? w->q : 0, norms ? w->kv : 0};
	double **const to[] = {
		&a->h, &a->q, &a->k, &a->v, &a->o, &a->a, &a->b, &a->y, &a->q0, &a->k0};
	for (size_t i = 0; i < ARRAY_LEN(to); i++)
		*to[i] = doubles(n * widths[i]);
}

static void acts_free64(struct float64_acts *a)
{
	double *const all[] = {
		a->h, a->q, a->k, a->v, a->o, a->a, a->b, a->y, a->q0, a->k0};
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		free(all[i]);
}

/* Rotates queries, keys or values in place. sign -1: the inverse rotation. */
static void rotate(
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

/* Computes attention up to its row-parallel layer. Returns that layer's input. */
static double *attention(const struct sequence_work *w, const struct sublayer_tensors *t,
	struct float64_acts *a, const double *x)
{
	bool norms = w->m->c.qk_norm;
	double *const qkv[] = {norms ? a->q0 : a->q, norms ? a->k0 : a->k, a->v};
	apply_norm(w, t->norm, t->norm_bias, a->h, x);
	for (int i = 0; i < 3; i++)
		float64_linear(qkv[i], a->h, weight(w, t->in[i]),
			weight(w, t->in_bias[i]), w->n, w->dim, i ? w->kv : w->q);
	if (norms) {
		head_norm(w, t->in_norm[0], a->q, a->q0, w->q);
		head_norm(w, t->in_norm[1], a->k, a->k0, w->kv);
	}
	rotate(w, a, 1);
	float64_attend(w, a);
	keep_own(w, a->o, w->q);
	return a->o;
}

static double *feed_forward(const struct sequence_work *w,
	const struct sublayer_tensors *t, struct float64_acts *a, const double *x)
{
	double *const ab[] = {a->a, a->b};
	apply_norm(w, t->norm, t->norm_bias, a->h, x);
	for (int i = 0; i < 2 && t->in[i]; i++)
		float64_linear(ab[i], a->h, weight(w, t->in[i]), weight(w, t->in_bias[i]),
			w->n, w->dim, w->ffn);
	for (int64_t i = 0; i < w->n * w->ffn && !t->in[1]; i++)
		a->b[i] = 1;
	for (int64_t i = 0; i < w->n * w->ffn; i++)
		a->y[i] = w->f->function.gate_exchanged
				  ? float64_act(w->m->act, a->b[i], a->a[i])
				  : float64_act(w->m->act, a->a[i], a->b[i]);
	keep_own(w, a->y, w->ffn);
	return a->y;
}

static double *sublayer(
	struct sequence_work *w, int64_t k, struct float64_acts *a, const double *x)
{
	const struct sublayer_tensors *t = &w->m->blocks[k / 2].sub[k % 2];
	w->layer = t->out->unit - 1; /* (its own, if it is computed twice) */
	return k % 2 == ATTENTION ? attention(w, t, a, x) : feed_forward(w, t, a, x);
}

/* Goes back through the column-parallel layers after a norm: adds the gradient of the norm's
 * output to dh, and the part for the norm's weights to `mine`, if that is another array. */
static void enter_backward(const struct sequence_work *w,
	const struct sublayer_tensors *t, double *const dy[], const int64_t widths[],
	const double *h, double *dh, double *mine)
{
	for (int i = 0; i < SUBLAYER_INPUTS && t->in[i]; i++) {
		linear_dw(w, t->in[i], t->in_bias[i], dy[i], h, w->dim, widths[i]);
		float64_linear_dx(dh, dy[i], weight(w, t->in[i]), w->n, w->dim, widths[i],
			(struct range){0, widths[i]});
		if (mine != dh)
			float64_linear_dx(mine, dy[i], weight(w, t->in[i]), w->n, w->dim,
				widths[i], outputs_of(w, PART_SLICE, widths[i]));
	}
}

static void attention_backward64(const struct sequence_work *w,
	const struct sublayer_tensors *t, const struct float64_acts *a, const double *dx,
	double *dh, double *mine)
{
	const int64_t widths[] = {w->q, w->kv, w->kv};
	struct float64_acts d;
	acts_alloc64(w, &d);
	linear_dw(w, t->out, t->bias, dx, a->o, w->q, w->dim);
	float64_linear_dx(d.o, dx, weight(w, t->out), w->n, w->q, w->dim,
		(struct range){0, w->dim});
	keep_own(w, d.o, w->q);
	float64_attend_backward(w, a, &d);
	rotate(w, &d, -1);
	if (w->m->c.qk_norm) {
		head_norm_backward(w, t->in_norm[0], d.q, a->q0, w->q);
		head_norm_backward(w, t->in_norm[1], d.k, a->k0, w->kv);
	}
	enter_backward(w, t, (double *const[]){d.q, d.k, d.v}, widths, a->h, dh, mine);
	acts_free64(&d);
}

/* Stores the rows of the last block's w2, if requested. */
static void store_rows(const struct sequence_work *w, const double *dy, const double *x)
{
	const struct target_rows *to = w->s->rows;
	if (!to || !to->dy || w->layer != w->m->c.layers - 1)
		return;
	memcpy(to->dy, dy, (size_t)(w->n * w->dim) * sizeof(*dy));
	memcpy(to->x, x, (size_t)(w->n * w->ffn) * sizeof(*x));
}

static void feed_forward_backward(const struct sequence_work *w,
	const struct sublayer_tensors *t, const struct float64_acts *a, const double *dx,
	double *dh, double *mine)
{
	const int64_t widths[] = {w->ffn, w->ffn};
	struct float64_acts d;
	acts_alloc64(w, &d);
	linear_dw(w, t->out, t->bias, dx, a->y, w->ffn, w->dim);
	store_rows(w, dx, a->y);
	float64_linear_dx(d.y, dx, weight(w, t->out), w->n, w->ffn, w->dim,
		(struct range){0, w->dim});
	keep_own(w, d.y, w->ffn);
	for (int64_t i = 0; i < w->n * w->ffn; i++) {
		double da, db;
		if (w->f->function.gate_exchanged)
			db = float64_act_slope(w->m->act, a->b[i], a->a[i], &da);
		else
			da = float64_act_slope(w->m->act, a->a[i], a->b[i], &db);
		d.a[i] = d.y[i] * da;
		d.b[i] = d.y[i] * db;
	}
	enter_backward(w, t, (double *const[]){d.a, d.b}, widths, a->h, dh, mine);
	acts_free64(&d);
}

/* ---- embedding and head -------------------------------------------------------------- */

static double embedding_scale(const struct sequence_work *w)
{
	double scale =
		variant_or_model(w->f->function.embedding_scale, w->m->c.embedding_scale);
	return scale > 0 ? scale : w->m->arch->root_embedding ? sqrt((double)w->dim) : 1;
}

static void embed(const struct sequence_work *w, double *x)
{
	const double *table = weight(w, w->m->tokens), *pos = weight(w, w->m->positions);
	for (int64_t i = 0; i < w->n; i++) {
		add_scaled(x + i * w->dim, embedding_scale(w),
			table + w->s->tokens[i] * w->dim, w->dim);
		if (pos)
			add_scaled(
				x + i * w->dim, 1, pos + w->s->pos[i] * w->dim, w->dim);
	}
}

/* Returns true if the part includes this use of the token table, which may be tied. */
static bool has_use(const struct sequence_work *w, int use)
{
	return w->part.kind != PART_USE || w->m->output != w->m->tokens ||
	       w->part.i == use;
}

static void embed_backward64(const struct sequence_work *w, const double *dx)
{
	double *table = gradient(w, w->m->tokens), *pos = gradient(w, w->m->positions);
	for (int64_t i = 0; i < w->n; i++) {
		const double *row = dx + i * w->dim;
		if (w->s->rows && w->s->rows->dx)
			add_scaled(w->s->rows->dx + i * w->dim, embedding_scale(w), row,
				w->dim);
		if (table && in_part(w, i) && has_use(w, 0) &&
			w->s->tokens[i] + 1 != w->f->padding)
			add_scaled(table + w->s->tokens[i] * w->dim, embedding_scale(w),
				row, w->dim);
		if (pos && in_part(w, i))
			add_scaled(pos + w->s->pos[i] * w->dim, 1, row, w->dim);
	}
}

/* ---- ranks ---------------------------------------------------------------------------- */

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
	double *dh;   /* [n][dim]: gradient of a norm's output */
	double *mine; /* [n][dim]: part of dh for the norm's weights; or dh */
	struct float64_acts a;
};

struct pass {
	struct rank *ranks;
	int n;
	enum missing missing;
	int64_t size, last; /* elements of [n][dim]; number of sublayers */
};

/* Returns true if the residual around sublayer k is removed. */
static bool lacks_residual(const struct pass *p, int64_t k, bool backward)
{
	const struct path *path = &p->ranks->w.f->function.path;
	return (path->kind == PATH_NO_RESIDUAL ||
		       (path->kind == PATH_DETACHED && backward)) &&
	       path->sublayer == k % 2 && (path->layer < 0 || path->layer == k / 2);
}

/* Does the FFN of the layer of sublayer k have the input of attention? */
static bool is_parallel(const struct pass *p, int64_t k)
{
	const struct path *of = &p->ranks->w.f->function.path;
	return of->kind == PATH_PARALLEL && (of->layer < 0 || of->layer == k / 2);
}

/* Returns true if the residual around the whole layer of sublayer k is detached. */
static bool is_cut_around(const struct pass *p, int64_t k)
{
	const struct path *of = &p->ranks->w.f->function.path;
	return of->kind == PATH_DETACHED && of->sublayer == SUBLAYERS &&
	       (of->layer < 0 || of->layer == k / 2);
}

/* Returns the index in x of the input of sublayer k, or with p->last of the final norm. */
static int64_t input_of(const struct pass *p, int64_t k)
{
	return k - (is_parallel(p, k) && k < p->last && k % 2 == FFN);
}

static double once_if_zero(double times)
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
	const double *bias = weight(w, tensors_of(p, k)->bias);
	bool alone =
		p->missing == (k % 2 == ATTENTION ? MISSING_ATTENTION : MISSING_FFN) ||
		p->missing == MISSING_BOTH;
	for (int r = 0; r < p->n; r++) {
		double *to = p->ranks[r].sum;
		memset(to, 0, (size_t)p->size * sizeof(*to));
		for (int q = 0; q < p->n; q++)
			if (q == r || !alone)
				add_scaled(to, once_if_zero(f->times[k % 2]),
					p->ranks[q].y, p->size);
		for (int64_t i = 0; i < w->n && bias; i++)
			add_scaled(to + i * w->dim, once_if_zero(f->bias_times[k % 2]),
				bias, w->dim);
	}
}

/* Returns the array for the gradient of sublayer k's input. */
static double *gradient_of_input(const struct pass *p, const struct rank *me, int64_t k)
{
	return input_of(p, k) == k ? me->dx : me->dx_shared;
}

/* Completes sublayer k after its row-parallel layer: norm of the output, and residual. */
static void finish_sublayer(const struct pass *p, int64_t k)
{
	sum_outputs(p, k);
	for (int r = 0; r < p->n; r++) {
		struct rank *me = &p->ranks[r];
		const double *x = me->x + k * p->size;
		double *to = me->x + (k + 1) * p->size;
		apply_norm(&me->w, tensors_of(p, k)->post_norm, NULL, me->y, me->sum);
		if (!lacks_residual(p, k, false))
			memcpy(to, x, (size_t)p->size * sizeof(*to));
		add_scaled(to, residual_scale(p), me->y, p->size);
	}
}

/* Sets each rank's dy from the gradient of the stream after sublayer k. */
static void finish_sublayer_backward(const struct pass *p, int64_t k)
{
	const struct tensor *post = tensors_of(p, k)->post_norm;
	if (post)
		sum_outputs(p, k);
	for (int r = 0; r < p->n; r++) {
		struct rank *me = &p->ranks[r];
		double *dz = me->y; /* (y is no longer needed) */
		memset(dz, 0, (size_t)p->size * sizeof(*dz));
		memset(me->dy, 0, (size_t)p->size * sizeof(*me->dy));
		add_scaled(dz, residual_scale(p), me->dx, p->size);
		norm_backward(&me->w, post, NULL, me->dy, dz, dz, me->sum);
	}
}

/* Sums dh over ranks before column-parallel layers, and backpropagates through the norm to dx. */
static void norms_backward(const struct pass *p, const struct tensor *gamma,
	const struct tensor *beta, int64_t k)
{
	double *sum = p->ranks->dh;
	bool alone = p->missing == MISSING_ENTER;
	for (int r = 1; r < p->n && !alone; r++)
		add_scaled(sum, 1, p->ranks[r].dh, p->size);
	for (int r = 0; r < p->n; r++) {
		const struct rank *me = &p->ranks[r];
		const double *up = alone ? me->dh : sum;
		norm_backward(&me->w, gamma, beta, gradient_of_input(p, me, k), up,
			me->mine == me->dh ? up : me->mine,
			me->x + input_of(p, k) * p->size);
	}
	for (int r = 0; r < p->n; r++) {
		memset(p->ranks[r].dh, 0, (size_t)p->size * sizeof(double));
		memset(p->ranks[r].mine, 0, (size_t)p->size * sizeof(double));
	}
}

/* Computes a rank's part of the output of sublayer k. */
static void compute_part(const struct pass *p, struct rank *me, int64_t k)
{
	const struct sequence_work *w = &me->w;
	const double *in = sublayer(&me->w, k, &me->a, me->x + input_of(p, k) * p->size);
	float64_linear(me->y, in, weight(w, tensors_of(p, k)->out), NULL, w->n,
		k % 2 == ATTENTION ? w->q : w->ffn, w->dim);
}

static void forward(const struct pass *p)
{
	for (int64_t k = 0; k < p->last; k++) {
		for (int r = 0; r < p->n; r++)
			compute_part(p, &p->ranks[r], k);
		finish_sublayer(p, k);
	}
}

/* Returns the first sublayer of the first block that has a requested gradient. */
static int64_t first_wanted(const struct pass *p)
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

/* (Only the inputs of sublayers are stored; activations are recomputed.) */
static void backward(const struct pass *p)
{
	for (int64_t k = p->last - 1, first = first_wanted(p); k >= first; k--) {
		const struct sublayer_tensors *t = tensors_of(p, k);
		for (int r = 0; r < p->n; r++)
			compute_part(p, &p->ranks[r], k);
		finish_sublayer_backward(p, k);
		for (int r = 0; r < p->n; r++) {
			struct rank *me = &p->ranks[r];
			if (is_cut_around(p, k) && k % 2 == FFN)
				add_scaled(me->dx_shared, -1, me->dx, p->size);
			(k % 2 == ATTENTION ? attention_backward64
					    : feed_forward_backward)(
				&me->w, t, &me->a, me->dy, me->dh, me->mine);
			if (lacks_residual(p, k, true))
				memset(me->dx, 0, (size_t)p->size * sizeof(double));
		}
		norms_backward(p, t->norm, t->norm_bias, k);
		const bool adds = is_parallel(p, k) || is_cut_around(p, k);
		for (int r = 0; r < p->n && adds && k % 2 == ATTENTION; r++) {
			add_scaled(p->ranks[r].dx, 1, p->ranks[r].dx_shared, p->size);
			memset(p->ranks[r].dx_shared, 0,
				(size_t)p->size * sizeof(double));
		}
	}
}

/* Adds the gradients of the output layer and of its input, from n positions. */
static void head_backward(const struct rank *me, const double *h, const double *dlogits,
	int64_t at, int64_t n)
{
	const struct sequence_work *w = &me->w;
	const struct tensor *out = w->m->output;
	int64_t dim = w->dim, vocab = w->m->c.vocab;
	double *dw = has_use(w, 1) ? gradient(w, out) : NULL;
	float64_linear_dx(me->dh + at * dim, dlogits, weight(w, out), n, dim, vocab,
		outputs_of(w, PART_RANKS, vocab));
	if (me->mine != me->dh)
		float64_linear_dx(me->mine + at * dim, dlogits, weight(w, out), n, dim,
			vocab, outputs_of(w, PART_SLICE, vocab));
#pragma omp parallel for
	for (int64_t o = 0; o < vocab; o++)
		for (int64_t i = 0; i < n && dw; i++)
			if (in_part(w, at + i))
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
		const struct range of = outputs_of(&p->ranks[r].w, PART_RANKS, vocab);
		float64_linear(own, p->ranks[r].a.h + at * w->dim,
			weight(w, w->m->output), NULL, n, w->dim, vocab);
		for (int64_t i = 0; i < n; i++)
			memcpy(logits + i * vocab + of.from, own + i * vocab + of.from,
				(size_t)(of.to - of.from) * sizeof(*own));
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

/* Returns the loss, and computes the gradient of the last sublayer's output. Holds the
 * logits of BAND positions at a time. */
static double head(const struct pass *p)
{
	enum { BAND = 64 };
	const struct sequence_work *w = &p->ranks->w;
	int64_t vocab = w->m->c.vocab;
	double *logits = doubles(BAND * vocab), *own = doubles(BAND * vocab),
	       *slope = doubles(vocab), loss = 0;
	for (int r = 0; r < p->n; r++)
		apply_norm(&p->ranks[r].w, w->m->norm, w->m->norm_bias, p->ranks[r].a.h,
			p->ranks[r].x + p->last * p->size);
	for (int64_t at = 0; at < w->n; at += BAND) {
		int64_t n = min64(BAND, w->n - at);
		gather_logits(p, logits, own, at, n);
		for (int64_t i = 0; i < n; i++)
			loss += weighted_loss(w, logits + i * vocab, slope, at + i);
		for (int r = 0; r < p->n; r++)
			head_backward(&p->ranks[r], p->ranks[r].a.h, logits, at, n);
	}
	norms_backward(p, w->m->norm, w->m->norm_bias, p->last);
	free(logits);
	free(own);
	free(slope);
	return loss;
}

/* ---- a sequence ---------------------------------------------------------------------- */

static void rank_open(struct rank *me, const struct pass *p)
{
	me->x = doubles((p->last + 1) * p->size);
	me->y = doubles(p->size);
	me->sum = doubles(p->size);
	me->dy = doubles(p->size);
	me->dx = doubles(p->size);
	me->dx_shared = doubles(p->size);
	me->dh = doubles(p->size);
	me->mine = me->w.part.kind == PART_SLICE ? doubles(p->size) : me->dh;
	acts_alloc64(&me->w, &me->a);
	embed(&me->w, me->x);
}

static void rank_close(struct rank *me)
{
	free(me->x);
	free(me->y);
	free(me->sum);
	free(me->dy);
	free(me->dx);
	free(me->dx_shared);
	if (me->mine != me->dh)
		free(me->mine);
	free(me->dh);
	acts_free64(&me->a);
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
		rank_open(&p.ranks[r], &p);
	}
	forward(&p);
	double loss = 0;
	const bool each = w.part.kind != PART_WHOLE && w.part.i == EACH_PART;
	for (int i = 0; i < (each ? w.part.n : 1); i++) {
		if (each) {
			p.ranks->w.part.i = i;
			p.ranks->w.grad = grad + i * m->n_tensors;
			memset(p.ranks->dx, 0, (size_t)p.size * sizeof(*p.ranks->dx));
		}
		loss = head(&p);
		backward(&p);
		for (int r = 0; r < p.n; r++)
			embed_backward64(&p.ranks[r].w, p.ranks[r].dx);
	}
	for (int r = 0; r < p.n; r++)
		rank_close(&p.ranks[r]);
	free(p.ranks);
	free(w.table);
	return loss;
}

double float64_work(const struct model *m, int64_t n)
{
	double tokens = (double)n, block = model_block_work(m) * (double)m->c.layers;
	return tokens * (4 * block + 3 * (double)m->c.dim * (double)m->c.vocab);
}
