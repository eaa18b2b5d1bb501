/* The model in double precision: GPT-2 and Llama, forward and backward of one sequence. */
#include "check/float64.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- matrices ---------------------------------------------------------------------- */

/* A range of rows or columns. */
struct range {
	int64_t from, to;
};

/* y[n][out] = x[n][in] w[out][in]^T + bias */
static void linear(double *y, const double *x, const double *w, const double *bias,
	int64_t n, int64_t in, int64_t out)
{
#pragma omp parallel for
	for (int64_t i = 0; i < n; i++) {
		const double *row = x + i * in;
		for (int64_t o = 0; o < out; o++) {
			const double *v = w + o * in;
			double sum = 0;
#pragma omp simd reduction(+ : sum)
			for (int64_t j = 0; j < in; j++)
				sum += row[j] * v[j];
			y[i * out + o] = sum + (bias ? bias[o] : 0);
		}
	}
}

static void add_scaled(double *y, double a, const double *x, int64_t n)
{
#pragma omp simd
	for (int64_t j = 0; j < n; j++)
		y[j] += a * x[j];
}

/* dx += dy w, of the outputs in the range */
static void linear_dx(double *dx, const double *dy, const double *w, int64_t n,
	int64_t in, int64_t out, struct range of)
{
#pragma omp parallel for
	for (int64_t i = 0; i < n; i++)
		for (int64_t o = of.from; o < of.to; o++)
			add_scaled(dx + i * in, dy[i * out + o], w + o * in, in);
}

/* ---- a pass over one sequence ------------------------------------------------------- */

struct work {
	const struct float64 *f;
	const struct model *m;
	const struct sequence *s;
	int64_t n, dim, ffn, q, kv; /* positions; widths */
	int64_t window;		    /* of the block's attention; 0: none */
	double scale;
	struct grad_part part;
	double **grad;
	double *table; /* of rotations, [n][head_dim]: cosines, then sines */
};

/* The activations of a block. */
struct acts {
	double *x, *h, *q, *k, *v, *o, *x2, *h2, *a, *b, *y;
};

static double *doubles(int64_t n)
{
	return xcalloc((size_t)max64(n, 1), sizeof(double));
}

static double *weight(const struct work *w, const struct tensor *t)
{
	return t ? w->f->w[t - w->m->tensors] : NULL;
}

static double *gradient(const struct work *w, const struct tensor *t)
{
	return t ? w->grad[t - w->m->tensors] : NULL;
}

/* Is the position among those whose contributions to gradients of weights are computed? */
static bool in_part(const struct work *w, int64_t i)
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

/* The outputs of a column-parallel layer through which the gradients of a norm are computed. */
static struct range outputs_of(const struct work *w, int64_t out)
{
	if (w->part.kind != PART_SLICE && w->part.kind != PART_RANK)
		return (struct range){0, out};
	return (struct range){part_begin(out, w->part.n, w->part.i),
		part_begin(out, w->part.n, w->part.i + 1)};
}

/* The gradients of a weight [out][in] and a bias, from those of its outputs. */
static void linear_dw(const struct work *w, const struct tensor *weights,
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

/* Sets h to the normalised row; returns 1 / the standard deviation. */
static double normalize(const struct work *w, double *h, const double *x)
{
	double mean = 0, square = 0, n = (double)w->dim;
	for (int64_t j = 0; j < w->dim && w->m->arch->norm == NORM_LAYER; j++)
		mean += x[j] / n;
	for (int64_t j = 0; j < w->dim; j++)
		square += (x[j] - mean) * (x[j] - mean) / n;
	double rstd = 1 / sqrt(square + w->m->c.norm_eps);
	for (int64_t j = 0; j < w->dim; j++)
		h[j] = (x[j] - mean) * rstd;
	return rstd;
}

static void norm(const struct work *w, const struct tensor *gamma,
	const struct tensor *beta, double *y, const double *x)
{
	const double *g = weight(w, gamma), *b = weight(w, beta);
	for (int64_t i = 0; i < w->n; i++) {
		double *row = y + i * w->dim;
		normalize(w, row, x + i * w->dim);
		for (int64_t j = 0; j < w->dim; j++)
			row[j] = row[j] * g[j] + (b ? b[j] : 0);
	}
}

/* dx += the gradient of the input; `dy` is that of the output, `for_weights` what is known of it where the
 * gradients of the norm's weights are computed. */
static void norm_backward(const struct work *w, const struct tensor *gamma,
	const struct tensor *beta, double *dx, const double *dy,
	const double *for_weights, const double *x)
{
	const double *g = weight(w, gamma);
	double *dg = gradient(w, gamma), *db = gradient(w, beta), *h = doubles(w->dim);
	double n = (double)w->dim, centre = w->m->arch->norm == NORM_LAYER ? 1 : 0;
	for (int64_t i = 0; i < w->n; i++) {
		const double *up = dy + i * w->dim, *mine = for_weights + i * w->dim;
		double rstd = normalize(w, h, x + i * w->dim), mean = 0, along = 0;
		for (int64_t j = 0; j < w->dim; j++) {
			mean += centre * up[j] * g[j] / n;
			along += up[j] * g[j] * h[j] / n;
		}
		for (int64_t j = 0; j < w->dim; j++)
			dx[i * w->dim + j] += rstd * (up[j] * g[j] - mean - h[j] * along);
		for (int64_t j = 0; j < w->dim && in_part(w, i); j++) {
			if (dg)
				dg[j] += mine[j] * h[j];
			if (db)
				db[j] += mine[j];
		}
	}
	free(h);
}

/* ---- attention ---------------------------------------------------------------------- */

static double *rotation_table(const struct work *w)
{
	int64_t dim = w->m->head_dim, half = dim / 2;
	double *t = doubles(w->n * dim);
	for (int64_t i = 0; i < w->n; i++)
		for (int64_t j = 0; j < half; j++) {
			double angle = w->s->pos[i] * rope_frequency(w->m, j);
			t[i * dim + j] = cos(angle);
			t[i * dim + half + j] = sin(angle);
		}
	return t;
}

/* The channel of a head that is number c where Meta's order of rows has it: even ones are first here. */
static int64_t channel_of(int64_t c, int64_t half)
{
	return c % 2 ? half + c / 2 : c / 2;
}

/* The two channels of a head that angle j rotates. */
static void channels(enum rope_kind kind, int64_t j, int64_t half, int64_t *a, int64_t *b)
{
	*a = kind == ROPE_HALVES ? j : kind == ROPE_PAIRS ? 2 * j : channel_of(j, half);
	*b = kind == ROPE_HALVES  ? j + half
	     : kind == ROPE_PAIRS ? 2 * j + 1
				  : channel_of(j + half, half);
}

/* Rotates the heads of x in place; sign -1: the transposed rotation. */
static void rotate(const struct work *w, double *x, int64_t width, double sign)
{
	int64_t dim = w->m->head_dim, half = dim / 2;
	for (int64_t i = 0; i < w->n && w->table; i++)
		for (int64_t head = 0; head < width; head += dim)
			for (int64_t j = 0; j < half; j++) {
				int64_t a, b;
				channels(w->f->function.rope, j, half, &a, &b);
				double *u = x + i * width + head + a;
				double *v = x + i * width + head + b;
				double cosine = w->table[i * dim + j];
				double sine = sign * w->table[i * dim + half + j];
				double was = *u;
				*u = was * cosine - *v * sine;
				*v = was * sine + *v * cosine;
			}
}

static double softmax_scale(const struct work *w)
{
	double scale = w->f->function.softmax_scale;
	return scale > 0 ? scale : 1 / sqrt((double)w->m->head_dim);
}

/* The first column of the keys of a query head. */
static int64_t keys_of(const struct work *w, int64_t head)
{
	int64_t n = w->m->c.kv_heads, shared = w->m->c.heads / n;
	return (w->f->function.heads_in_turn ? head % n : head / shared) * w->m->head_dim;
}

static int64_t first_key(const struct work *w, int64_t i)
{
	return max64(w->s->start[i], w->window ? i - w->window + 1 : 0);
}

static int64_t last_key(const struct work *w, int64_t i)
{
	return w->s->last ? w->s->last[i] : i;
}

static bool sees(const struct work *w, int64_t i, int64_t j)
{
	int64_t chunk = w->s->chunk;
	return !chunk || i / chunk == j / chunk || j % chunk <= i % chunk;
}

/* A score or logit that is softly capped, and the slope there. */
static double capped(double x, double cap, double *slope)
{
	double t = cap > 0 ? tanh(x / cap) : 0;
	*slope = 1 - t * t;
	return cap > 0 ? cap * t : x;
}

/* p[j] = softmax of the scores of query i over the keys that it sees; slope[j]: of their caps. */
static void probabilities(const struct work *w, double *p, double *slope, const double *q,
	const double *k, int64_t i)
{
	int64_t dim = w->m->head_dim, first = first_key(w, i), last = last_key(w, i);
	double top = -INFINITY, sum = 0, scale = softmax_scale(w);
	for (int64_t j = first; j <= last; j++) {
		double score = 0;
		for (int64_t c = 0; c < dim; c++)
			score += q[c] * k[j * w->kv + c];
		p[j] = capped(score * scale, w->f->function.score_cap, &slope[j]);
		p[j] = sees(w, i, j) ? p[j] : -INFINITY;
		top = fmax(top, p[j]);
	}
	for (int64_t j = first; j <= last; j++)
		sum += p[j] = exp(p[j] - top);
	for (int64_t j = first; j <= last; j++)
		p[j] /= sum;
}

static void attend(const struct work *w, const struct acts *a)
{
	int64_t dim = w->m->head_dim, heads = w->m->c.heads;
	memset(a->o, 0, (size_t)(w->n * w->q) * sizeof(double));
#pragma omp parallel for
	for (int64_t h = 0; h < heads; h++) {
		int64_t at = h * dim, kv = keys_of(w, h);
		double *p = doubles(2 * w->n);
		for (int64_t i = 0; i < w->n; i++) {
			probabilities(w, p, p + w->n, a->q + i * w->q + at, a->k + kv, i);
			for (int64_t j = first_key(w, i); j <= last_key(w, i); j++)
				add_scaled(a->o + i * w->q + at, p[j],
					a->v + j * w->kv + kv, dim);
		}
		free(p);
	}
}

/* For query i of a head: ds = p (dp - sum of p dp), with dp = do v^T. */
static void query_backward(const struct work *w, const struct acts *a,
	const struct acts *d, int64_t i, int64_t at, int64_t kv, double *p)
{
	int64_t dim = w->m->head_dim, first = first_key(w, i), last = last_key(w, i);
	const double *up = d->o + i * w->q + at, *q = a->q + i * w->q + at;
	double sum = 0, *slope = p + w->n, *dp = p + 2 * w->n, scale = softmax_scale(w);
	probabilities(w, p, slope, q, a->k + kv, i);
	for (int64_t j = first; j <= last; j++) {
		dp[j] = 0;
		for (int64_t c = 0; c < dim; c++)
			dp[j] += up[c] * a->v[j * w->kv + kv + c];
		add_scaled(d->v + j * w->kv + kv, p[j], up, dim);
		sum += p[j] * dp[j];
	}
	for (int64_t j = first; j <= last; j++) {
		double ds = p[j] * (dp[j] - sum) * slope[j] * scale;
		add_scaled(d->q + i * w->q + at, ds, a->k + j * w->kv + kv, dim);
		add_scaled(d->k + j * w->kv + kv, ds, q, dim);
	}
}

/* From d->o to d->q, d->k and d->v. Heads that share keys are computed by one thread. */
static void attend_backward(
	const struct work *w, const struct acts *a, const struct acts *d)
{
	int64_t dim = w->m->head_dim, heads = w->m->c.heads;
#pragma omp parallel for
	for (int64_t g = 0; g < w->m->c.kv_heads; g++) {
		double *p = doubles(3 * w->n);
		for (int64_t h = 0; h < heads; h++)
			for (int64_t i = 0; keys_of(w, h) == g * dim && i < w->n; i++)
				query_backward(w, a, d, i, h * dim, g * dim, p);
		free(p);
	}
}

/* ---- activation functions ------------------------------------------------------------ */

static const double pi = 3.14159265358979323846;

static double act(enum act_kind kind, double x, double gate)
{
	if (kind == ACT_GELU_TANH)
		return 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)));
	if (kind == ACT_GELU)
		return x * 0.5 * erfc(-x / sqrt(2));
	return x / (1 + exp(-x)) * gate;
}

/* The derivatives by x, and by the gate. */
static void act_backward(
	enum act_kind kind, double x, double gate, double *dx, double *dgate)
{
	double t = tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x));
	double s = 1 / (1 + exp(-x));
	*dgate = x * s;
	if (kind == ACT_GELU_TANH)
		*dx = 0.5 * (1 + t) +
		      0.5 * x * (1 - t * t) * sqrt(2 / pi) * (1 + 3 * 0.044715 * x * x);
	else if (kind == ACT_GELU)
		*dx = 0.5 * erfc(-x / sqrt(2)) + x * exp(-x * x / 2) / sqrt(2 * pi);
	else
		*dx = gate * s * (1 + x * (1 - s));
}

/* ---- a block ------------------------------------------------------------------------ */

static void acts_alloc64(const struct work *w, struct acts *a)
{
	int64_t n = w->n, dim = w->dim;
	const int64_t widths[] = {
		dim, dim, w->q, w->kv, w->kv, w->q, dim, dim, w->ffn, w->ffn, w->ffn};
	double **const to[] = {&a->x, &a->h, &a->q, &a->k, &a->v, &a->o, &a->x2, &a->h2,
		&a->a, &a->b, &a->y};
	for (size_t i = 0; i < ARRAY_LEN(to); i++)
		*to[i] = doubles(n * widths[i]);
}

static void acts_free64(struct acts *a)
{
	double *const all[] = {
		a->x, a->h, a->q, a->k, a->v, a->o, a->x2, a->h2, a->a, a->b, a->y};
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		free(all[i]);
}

/* From a->x; the output of block l goes to `out`. */
static void block(struct work *w, int64_t l, struct acts *a, double *out)
{
	const struct block_tensors *b = &w->m->blocks[l];
	const struct sublayer_tensors *at = &b->sub[ATTENTION], *ff = &b->sub[FFN];
	double *const qkv[] = {a->q, a->k, a->v};
	double *const ab[] = {a->a, a->b};
	int64_t n = w->n, dim = w->dim;
	w->window = layer_has_window(&w->m->c, l) ? w->m->c.window : 0;
	norm(w, at->norm, at->norm_bias, a->h, a->x);
	for (int i = 0; i < 3; i++)
		linear(qkv[i], a->h, weight(w, at->in[i]), weight(w, at->in_bias[i]), n,
			dim, i ? w->kv : w->q);
	rotate(w, a->q, w->q, 1);
	rotate(w, a->k, w->kv, 1);
	attend(w, a);
	linear(a->x2, a->o, weight(w, at->out), weight(w, at->bias), n, w->q, dim);
	add_scaled(a->x2, 1, a->x, n * dim);
	norm(w, ff->norm, ff->norm_bias, a->h2, a->x2);
	for (int i = 0; i < 2 && ff->in[i]; i++)
		linear(ab[i], a->h2, weight(w, ff->in[i]), weight(w, ff->in_bias[i]), n,
			dim, w->ffn);
	for (int64_t i = 0; i < n * w->ffn; i++)
		a->y[i] = w->f->function.gate_exchanged
				  ? act(w->m->act, a->b[i], a->a[i])
				  : act(w->m->act, a->a[i], a->b[i]);
	linear(out, a->y, weight(w, ff->out), weight(w, ff->bias), n, w->ffn, dim);
	add_scaled(out, 1, a->x2, n * dim);
}

/* The column-parallel layers behind a norm: from the gradients of their outputs to dx. */
static void enter_backward(const struct work *w, const struct sublayer_tensors *t,
	double *const dy[], const int64_t widths[], const double *h, const double *x,
	double *dx)
{
	int64_t n = w->n, dim = w->dim;
	double *dh = doubles(n * dim), *mine = doubles(n * dim);
	for (int i = 0; i < SUBLAYER_INPUTS && t->in[i]; i++) {
		const struct range of = outputs_of(w, widths[i]);
		linear_dw(w, t->in[i], t->in_bias[i], dy[i], h, dim, widths[i]);
		linear_dx(dh, dy[i], weight(w, t->in[i]), n, dim, widths[i],
			w->part.kind == PART_RANK ? of : (struct range){0, widths[i]});
		linear_dx(mine, dy[i], weight(w, t->in[i]), n, dim, widths[i], of);
	}
	norm_backward(w, t->norm, t->norm_bias, dx, dh, mine, x);
	free(dh);
	free(mine);
}

/* dx: from the gradient of the block's output to that of its input, in place. */
static void block_backward64(const struct work *w, const struct block_tensors *b,
	const struct acts *a, double *dx)
{
	const struct sublayer_tensors *at = &b->sub[ATTENTION], *ff = &b->sub[FFN];
	const int64_t qkv[] = {w->q, w->kv, w->kv}, ab[] = {w->ffn, w->ffn};
	int64_t n = w->n, dim = w->dim;
	struct acts d;
	acts_alloc64(w, &d);
	linear_dw(w, ff->out, ff->bias, dx, a->y, w->ffn, dim);
	linear_dx(d.y, dx, weight(w, ff->out), n, w->ffn, dim, (struct range){0, dim});
	for (int64_t i = 0; i < n * w->ffn; i++) {
		double da, db;
		if (w->f->function.gate_exchanged)
			act_backward(w->m->act, a->b[i], a->a[i], &db, &da);
		else
			act_backward(w->m->act, a->a[i], a->b[i], &da, &db);
		d.a[i] = d.y[i] * da;
		d.b[i] = d.y[i] * db;
	}
	enter_backward(w, ff, (double *const[]){d.a, d.b}, ab, a->h2, a->x2, dx);
	linear_dw(w, at->out, at->bias, dx, a->o, w->q, dim);
	linear_dx(d.o, dx, weight(w, at->out), n, w->q, dim, (struct range){0, dim});
	attend_backward(w, a, &d);
	rotate(w, d.q, w->q, -1);
	rotate(w, d.k, w->kv, -1);
	enter_backward(w, at, (double *const[]){d.q, d.k, d.v}, qkv, a->h, a->x, dx);
	acts_free64(&d);
}

/* ---- embedding and head -------------------------------------------------------------- */

static double embedding_scale(const struct work *w)
{
	double scale = w->f->function.embedding_scale;
	return scale > 0 ? scale : 1;
}

static void embed(const struct work *w, double *x)
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

/* Is this use of the token table, which may be tied to the output layer, in the part? */
static bool has_use(const struct work *w, int use)
{
	return w->part.kind != PART_USE || w->m->output != w->m->tokens ||
	       w->part.i == use;
}

static void embed_backward64(const struct work *w, const double *dx)
{
	double *table = gradient(w, w->m->tokens), *pos = gradient(w, w->m->positions);
	for (int64_t i = 0; i < w->n; i++) {
		const double *row = dx + i * w->dim;
		if (table && in_part(w, i) && has_use(w, 0))
			add_scaled(table + w->s->tokens[i] * w->dim, embedding_scale(w),
				row, w->dim);
		if (pos && in_part(w, i))
			add_scaled(pos + w->s->pos[i] * w->dim, 1, row, w->dim);
	}
}

static double log_sum_exp(const double *x, int64_t n)
{
	double top = x[0], sum = 0;
	for (int64_t j = 1; j < n; j++)
		top = fmax(top, x[j]);
	for (int64_t j = 0; j < n; j++)
		sum += exp(x[j] - top);
	return top + log1p(sum - 1);
}

/* Of one position: the loss; the logits become their gradients. slope[vocab] is scratch. */
static double loss_of(const struct function *f, double *logits, double *slope,
	int64_t vocab, int32_t target, double scale)
{
	double sum = 0;
	for (int64_t j = 0; j < vocab; j++)
		sum += logits[j] = capped(logits[j], f->logit_cap, &slope[j]);
	double lse = log_sum_exp(logits, vocab), loss = lse - logits[target];
	for (int64_t j = 0; j < vocab; j++) {
		double p = exp(logits[j] - lse), wanted = j == target;
		if (f->loss == LOSS_UNIFORM)
			wanted = 1 / (double)vocab;
		logits[j] =
			scale * slope[j] * (f->loss == LOSS_Z ? 2 * lse * p : p - wanted);
	}
	return f->loss == LOSS_Z	 ? lse * lse
	       : f->loss == LOSS_UNIFORM ? lse - sum / (double)vocab
					 : loss;
}

/* Loss, and dx: the gradient of the last block's output. The logits of a band of positions are in memory at a
 * time. */
static double head(const struct work *w, const double *x, double *dx)
{
	enum { BAND = 64 };
	const struct tensor *out = w->m->output;
	int64_t dim = w->dim, vocab = w->m->c.vocab;
	double *h = doubles(w->n * dim), *dh = doubles(w->n * dim),
	       *mine = doubles(w->n * dim);
	double *logits = doubles(BAND * vocab), *slope = doubles(vocab), loss = 0;
	double *dw = has_use(w, 1) ? gradient(w, out) : NULL;
	const struct range of = outputs_of(w, vocab);
	norm(w, w->m->norm, w->m->norm_bias, h, x);
	for (int64_t at = 0; at < w->n; at += BAND) {
		int64_t n = min64(BAND, w->n - at);
		linear(logits, h + at * dim, weight(w, out), NULL, n, dim, vocab);
		for (int64_t i = 0; i < n; i++)
			if (w->s->targets[at + i] < 0)
				memset(logits + i * vocab, 0,
					(size_t)vocab * sizeof(double));
			else
				loss += loss_of(&w->f->function, logits + i * vocab,
					slope, vocab, w->s->targets[at + i], w->scale);
		linear_dx(dh + at * dim, logits, weight(w, out), n, dim, vocab,
			w->part.kind == PART_RANK ? of : (struct range){0, vocab});
		linear_dx(mine + at * dim, logits, weight(w, out), n, dim, vocab, of);
#pragma omp parallel for
		for (int64_t o = 0; o < vocab; o++)
			for (int64_t i = 0; i < n && dw; i++)
				if (in_part(w, at + i))
					add_scaled(dw + o * dim, logits[i * vocab + o],
						h + (at + i) * dim, dim);
	}
	norm_backward(w, w->m->norm, w->m->norm_bias, dx, dh, mine, x);
	free(h);
	free(dh);
	free(mine);
	free(logits);
	free(slope);
	return loss;
}

/* ---- a sequence ---------------------------------------------------------------------- */

double float64_sequence(const struct float64 *f, const struct sequence *s, double scale,
	const struct grad_part *part, double **grad)
{
	const struct model *m = f->m;
	struct work w = {.f = f,
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
		w.table = rotation_table(&w);
	/* Only the inputs of blocks are kept; the backward computes a block again. */
	int64_t size = w.n * w.dim, layers = m->c.layers;
	double *x = doubles((layers + 1) * size), *dx = doubles(size);
	struct acts a;
	acts_alloc64(&w, &a);
	double *own = a.x;
	embed(&w, x);
	for (int64_t l = 0; l < layers; l++) {
		a.x = x + l * size;
		block(&w, l, &a, x + (l + 1) * size);
	}
	double loss = head(&w, x + layers * size, dx);
	double *again = doubles(size);
	for (int64_t l = layers - 1; l >= 0; l--) {
		a.x = x + l * size;
		block(&w, l, &a, again);
		block_backward64(&w, &m->blocks[l], &a, dx);
	}
	embed_backward64(&w, dx);
	a.x = own;
	acts_free64(&a);
	free(again);
	free(x);
	free(dx);
	free(w.table);
	return loss;
}

double float64_work(const struct model *m, int64_t n)
{
	double tokens = (double)n, block = model_block_work(m) * (double)m->c.layers;
	return tokens * (4 * block + 3 * (double)m->c.dim * (double)m->c.vocab);
}
