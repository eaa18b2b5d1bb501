/* Rotary positions and attention in double precision. */
#include "reference/float64_pass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Returns the frequency of pair j of rotated channels. */
static double frequency(const struct sequence_work *w, int64_t layer, int64_t j)
{
	int64_t rotated = w->f->function.rotated, kept = w->f->function.kept_angles;
	if (kept && j >= kept)
		return 0;
	return rotated ? pow(w->m->c.rope_theta, -2.0 * (double)j / (double)rotated)
		       : rope_frequency(w->m, layer, j);
}

static void fill_rotations(const struct sequence_work *w, int64_t layer, double *t)
{
	int64_t dim = w->m->head_dim, half = dim / 2;
	for (int64_t j = 0; j < half; j++) {
		double f = frequency(w, layer, j);
		double size = f > 0 ? rope_amplitude(w->m) : 1;
		for (int64_t i = 0; i < w->n; i++) {
			t[i * dim + j] = size * cos(w->s->pos[i] * f);
			t[i * dim + half + j] = size * sin(w->s->pos[i] * f);
		}
	}
}

double *float64_rotations(const struct sequence_work *w)
{
	double *t = doubles(2 * w->n * w->m->head_dim);
	bool done[2] = {false};
	for (int64_t layer = 0; layer < w->m->c.layers; layer++) {
		int local = layer_has_window(&w->m->c, layer);
		if (!done[local])
			fill_rotations(w, layer, t + local * w->n * w->m->head_dim);
		done[local] = true;
	}
	return t;
}

/* Returns our channel for channel c in Meta's row order. (Here, even channels come first.) */
static int64_t channel_of(int64_t c, int64_t half)
{
	return c % 2 ? half + c / 2 : c / 2;
}

/* Sets the two channels of a head that angle j rotates. */
static void channels(enum rope_kind kind, int64_t j, int64_t half, int64_t *a, int64_t *b)
{
	*a = kind == ROPE_HALVES ? j : kind == ROPE_PAIRS ? 2 * j : channel_of(j, half);
	*b = kind == ROPE_HALVES  ? j + half
	     : kind == ROPE_PAIRS ? 2 * j + 1
				  : channel_of(j + half, half);
}

void float64_rotate(const struct sequence_work *w, double *x, int64_t width, double sign)
{
	int64_t dim = w->m->head_dim, half = dim / 2, rotated = w->f->function.rotated;
	const double *table = w->table;
	if (!model_rotates(w->m, w->layer) ||
		w->f->function.unrotated_layer == w->layer + 1)
		return;
	table += layer_has_window(&w->m->c, w->layer) ? w->n * dim : 0;
	const int64_t pairs = rotated ? rotated / 2 : half;
	for (int64_t i = 0; i < w->n; i++)
		for (int64_t head = 0; head < width; head += dim)
			for (int64_t j = 0; j < pairs; j++) {
				int64_t a, b;
				channels(w->f->function.rope, j, pairs, &a, &b);
				double *u = x + i * width + head + a;
				double *v = x + i * width + head + b;
				double cosine = table[i * dim + j];
				double sine = sign * table[i * dim + half + j];
				double was = *u;
				*u = was * cosine - *v * sine;
				*v = was * sine + *v * cosine;
			}
}

static double softmax_scale(const struct sequence_work *w)
{
	double scale =
		variant_or_model(w->f->function.softmax_scale, w->m->c.attention_scale);
	return scale > 0 ? scale : 1 / sqrt((double)w->m->head_dim);
}

/* Returns the first column of a query head's keys. */
static int64_t keys_of(const struct sequence_work *w, int64_t head)
{
	int64_t n = w->m->c.kv_heads, shared = w->m->c.heads / n;
	return (w->f->function.heads_in_turn ? head % n : head / shared) * w->m->head_dim;
}

/* Returns the first column of a query head's values. */
static int64_t values_of(const struct sequence_work *w, int64_t head)
{
	const struct function *f = &w->f->function;
	int64_t n = w->m->c.kv_heads, shared = w->m->c.heads / n;
	bool in_turn = f->heads_in_turn != f->values_exchanged;
	return (in_turn ? head % n : head / shared) * w->m->head_dim;
}

static int64_t first_visible(const struct sequence_work *w, int64_t i)
{
	const struct function *f = &w->f->function;
	bool cut = layer_has_window(&w->m->c, w->layer);
	int64_t window = cut ? w->m->c.window : i + 1;
	if (f->layer_window && f->window_layer == w->layer)
		window = f->layer_window;
	return max64(w->s->start[i], i - window + 1);
}

static int64_t last_visible(const struct sequence_work *w, int64_t i)
{
	return w->s->last ? w->s->last[i] : i;
}

static bool attends_to(const struct sequence_work *w, int64_t i, int64_t j)
{
	int64_t chunk = w->s->chunk;
	return j >= first_visible(w, i) && j <= last_visible(w, i) &&
	       (!chunk || i / chunk == j / chunk || j % chunk <= i % chunk);
}

/* Returns the first and the last key whose probability may not be 0. */
static int64_t first_key(const struct sequence_work *w, int64_t i)
{
	return w->f->function.masked_score_zero ? 0 : first_visible(w, i);
}

static int64_t last_key(const struct sequence_work *w, int64_t i)
{
	return w->f->function.masked_score_zero ? w->n - 1 : last_visible(w, i);
}

/* Returns what ALiBi adds to the score of key j for query i. */
static double alibi(const struct sequence_work *w, int64_t head, int64_t i, int64_t j)
{
	double slope = exp2(-8 * (double)(head + 1) / (double)w->m->c.heads);
	return slope * (double)(w->s->pos[j] - w->s->pos[i]);
}

/* Sets p[j] to the softmax of query i's scores over the keys that it attends to, and slope[j] to
 * the derivatives of capped scores. */
static void probabilities(const struct sequence_work *w, double *p, double *slope,
	const struct float64_acts *a, int64_t head, int64_t i)
{
	const double *q = a->q + i * w->q + head * w->m->head_dim;
	const double *k = a->k + keys_of(w, head);

	int64_t dim = w->m->head_dim, first = first_key(w, i), last = last_key(w, i);
	double top = -INFINITY, sum = 0, scale = softmax_scale(w);
	double cap = variant_or_model(w->f->function.score_cap, w->m->c.score_cap);
	for (int64_t j = first; j <= last; j++) {
		double score = 0;
		for (int64_t c = 0; c < dim; c++)
			score += q[c] * k[j * w->kv + c];
		p[j] = soft_cap(score * scale, cap, &slope[j]);
		p[j] += w->f->function.alibi ? alibi(w, head, i, j) : 0;
		if (!attends_to(w, i, j)) {
			p[j] = w->f->function.masked_score_zero ? 0 : -INFINITY;
			slope[j] = 0;
		}
		top = fmax(top, p[j]);
	}
	for (int64_t j = first; j <= last; j++)
		sum += p[j] = exp(p[j] - top);
	sum += w->f->function.softmax_plus_one ? exp(-top) : 0;
	for (int64_t j = first; j <= last; j++)
		p[j] /= sum;
}

void float64_attend(const struct sequence_work *w, const struct float64_acts *a)
{
	int64_t dim = w->m->head_dim, heads = w->m->c.heads;
	memset(a->o, 0, (size_t)(w->n * w->q) * sizeof(double));
#pragma omp parallel for
	for (int64_t h = 0; h < heads; h++) {
		int64_t at = h * dim, kv = values_of(w, h);
		double *p = doubles(2 * w->n);
		for (int64_t i = 0; i < w->n; i++) {
			probabilities(w, p, p + w->n, a, h, i);
			for (int64_t j = first_key(w, i); j <= last_key(w, i); j++)
				add_scaled(a->o + i * w->q + at, p[j],
					a->v + j * w->kv + kv, dim);
		}
		free(p);
	}
}

/* Goes back through the softmax of query i: ds = p (dp - sum of p dp), with dp = do v^T. */
static void query_backward(const struct sequence_work *w, const struct float64_acts *a,
	const struct float64_acts *d, int64_t i, int64_t head, double *p)
{
	int64_t at = head * w->m->head_dim, keys = keys_of(w, head),
		values = values_of(w, head);
	int64_t dim = w->m->head_dim, first = first_key(w, i), last = last_key(w, i);
	const double *up = d->o + i * w->q + at, *q = a->q + i * w->q + at;
	double sum = 0, *slope = p + w->n, *dp = p + 2 * w->n, scale = softmax_scale(w);
	probabilities(w, p, slope, a, head, i);
	for (int64_t j = first; j <= last; j++) {
		dp[j] = 0;
		for (int64_t c = 0; c < dim; c++)
			dp[j] += up[c] * a->v[j * w->kv + values + c];
		add_scaled(d->v + j * w->kv + values, p[j], up, dim);
		sum += p[j] * dp[j];
	}
	for (int64_t j = first; j <= last; j++) {
		double ds = p[j] * (dp[j] - sum) * slope[j] * scale;
		add_scaled(d->q + i * w->q + at, ds, a->k + j * w->kv + keys, dim);
		add_scaled(d->k + j * w->kv + keys, ds, q, dim);
	}
}

/* Computes each group of heads that share keys and values in one thread. */
void float64_attend_backward(const struct sequence_work *w, const struct float64_acts *a,
	const struct float64_acts *d)
{
	int64_t dim = w->m->head_dim, heads = w->m->c.heads;
#pragma omp parallel for if (!w->f->function.values_exchanged)
	for (int64_t g = 0; g < w->m->c.kv_heads; g++) {
		double *p = doubles(3 * w->n);
		for (int64_t h = 0; h < heads; h++)
			for (int64_t i = 0; keys_of(w, h) == g * dim && i < w->n; i++)
				query_backward(w, a, d, i, h, p);
		free(p);
	}
}
