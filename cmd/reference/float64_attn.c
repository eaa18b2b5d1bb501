/* Rotary positions and attention in double precision. */
#include "reference/float64_pass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Returns the frequency of pair j of rotated channels. */
static double rotary_frequency(const struct sequence_work *w, int64_t layer, int64_t j)
{
	int64_t rotated = w->f->function.rotated, kept = w->f->function.kept_angles;
	if (kept && j >= kept)
		return 0;
	return rotated ? pow(w->m->c.rope_theta, -2.0 * (double)j / (double)rotated)
		       : rope_frequency(w->m, layer, j);
}

/* Sets t [n][head_dim] to the cosines and sines of a layer's rotations. */
static void fill_rotations(const struct sequence_work *w, int64_t layer, double *t)
{
	int64_t dim = w->m->head_dim, half = dim / 2;
	for (int64_t j = 0; j < half; j++) {
		double f = rotary_frequency(w, layer, j);
		double size = f > 0 ? rope_amplitude(w->m) : 1;
		for (int64_t i = 0; i < w->n; i++) {
			t[i * dim + j] = size * cos(w->s->pos[i] * f);
			t[i * dim + half + j] = size * sin(w->s->pos[i] * f);
		}
	}
}

double *float64_rotations(const struct sequence_work *w)
{
	double *t = zeros(2 * w->n * w->m->head_dim);
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
static int64_t channel_of_pairs(int64_t c, int64_t half)
{
	return c % 2 ? half + c / 2 : c / 2;
}

/* Sets the two channels of a head that angle j rotates. */
static void rotated_channels(
	enum rope_kind kind, int64_t j, int64_t half, int64_t *a, int64_t *b)
{
	*a = kind == ROPE_HALVES  ? j
	     : kind == ROPE_PAIRS ? 2 * j
				  : channel_of_pairs(j, half);
	*b = kind == ROPE_HALVES  ? j + half
	     : kind == ROPE_PAIRS ? 2 * j + 1
				  : channel_of_pairs(j + half, half);
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
				rotated_channels(w->f->function.rope, j, pairs, &a, &b);
				double *u = x + i * width + head + a;
				double *v = x + i * width + head + b;
				double cosine = table[i * dim + j];
				double sine = sign * table[i * dim + half + j];
				double old = *u;
				*u = old * cosine - *v * sine;
				*v = old * sine + *v * cosine;
			}
}

static double softmax_scale(const struct sequence_work *w)
{
	double scale =
		variant_or_model(w->f->function.softmax_scale, w->m->c.attention_scale);
	return scale > 0 ? scale : 1 / sqrt((double)w->m->head_dim);
}

/* Returns the first column of a query head's keys. */
static int64_t key_column(const struct sequence_work *w, int64_t head)
{
	int64_t n = w->m->c.kv_heads, shared = w->m->c.heads / n;
	return (w->f->function.heads_in_turn ? head % n : head / shared) * w->m->head_dim;
}

/* Returns the first column of a query head's values. */
static int64_t value_column(const struct sequence_work *w, int64_t head)
{
	const struct function *f = &w->f->function;
	int64_t n = w->m->c.kv_heads, shared = w->m->c.heads / n;
	bool in_turn = f->heads_in_turn != f->values_exchanged;
	return (in_turn ? head % n : head / shared) * w->m->head_dim;
}

/* Returns the first position that position i attends to, in its document and window. */
static int64_t first_visible(const struct sequence_work *w, int64_t i)
{
	const struct function *f = &w->f->function;
	bool has_window = layer_has_window(&w->m->c, w->layer);
	int64_t window = has_window ? w->m->c.window : i + 1;
	if (f->layer_window && f->window_layer == w->layer)
		window = f->layer_window;
	return max64(w->s->start[i], i - window + 1);
}

static int64_t last_visible(const struct sequence_work *w, int64_t i)
{
	return w->s->last ? w->s->last[i] : i;
}

/* Returns true if the mask lets position i attend to position j. */
static bool attends_to(const struct sequence_work *w, int64_t i, int64_t j)
{
	int64_t chunk = w->s->chunk;
	return j >= first_visible(w, i) && j <= last_visible(w, i) &&
	       (!chunk || i / chunk == j / chunk || j % chunk <= i % chunk);
}

/* Returns the first key with a probability above 0; last_key() returns the last one. */
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
	const double *k = a->k + key_column(w, head);

	int64_t dim = w->m->head_dim, first = first_key(w, i), last = last_key(w, i);
	double max_score = -INFINITY, sum = 0, scale = softmax_scale(w);
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
		max_score = fmax(max_score, p[j]);
	}
	for (int64_t j = first; j <= last; j++)
		sum += p[j] = exp(p[j] - max_score);
	sum += w->f->function.softmax_plus_one ? exp(-max_score) : 0;
	for (int64_t j = first; j <= last; j++)
		p[j] /= sum;
}

void float64_attend(const struct sequence_work *w, const struct float64_acts *a)
{
	int64_t dim = w->m->head_dim, heads = w->m->c.heads;
	memset(a->o, 0, (size_t)(w->n * w->q) * sizeof(double));
#pragma omp parallel for
	for (int64_t h = 0; h < heads; h++) {
		int64_t column = h * dim, v_column = value_column(w, h);
		double *p = zeros(2 * w->n);
		for (int64_t i = 0; i < w->n; i++) {
			probabilities(w, p, p + w->n, a, h, i);
			for (int64_t j = first_key(w, i); j <= last_key(w, i); j++)
				add_scaled(a->o + i * w->q + column, p[j],
					a->v + j * w->kv + v_column, dim);
		}
		free(p);
	}
}

/* Backpropagates through the softmax of query i: ds = p (dp - sum of p dp), with dp = do v^T. */
static void query_backward(const struct sequence_work *w, const struct float64_acts *a,
	const struct float64_acts *d, int64_t i, int64_t head, double *p)
{
	int64_t column = head * w->m->head_dim, keys = key_column(w, head),
		values = value_column(w, head);
	int64_t dim = w->m->head_dim, first = first_key(w, i), last = last_key(w, i);
	const double *dout = d->o + i * w->q + column, *q = a->q + i * w->q + column;
	double sum = 0, *slope = p + w->n, *dp = p + 2 * w->n, scale = softmax_scale(w);
	probabilities(w, p, slope, a, head, i);
	for (int64_t j = first; j <= last; j++) {
		dp[j] = 0;
		for (int64_t c = 0; c < dim; c++)
			dp[j] += dout[c] * a->v[j * w->kv + values + c];
		add_scaled(d->v + j * w->kv + values, p[j], dout, dim);
		sum += p[j] * dp[j];
	}
	for (int64_t j = first; j <= last; j++) {
		double ds = p[j] * (dp[j] - sum) * slope[j] * scale;
		add_scaled(d->q + i * w->q + column, ds, a->k + j * w->kv + keys, dim);
		add_scaled(d->k + j * w->kv + keys, ds, q, dim);
	}
}

void float64_attend_backward(const struct sequence_work *w, const struct float64_acts *a,
	const struct float64_acts *d)
{
	int64_t dim = w->m->head_dim, heads = w->m->c.heads;
#pragma omp parallel for if (!w->f->function.values_exchanged)
	for (int64_t g = 0; g < w->m->c.kv_heads; g++) {
		double *p = zeros(3 * w->n);
		for (int64_t h = 0; h < heads; h++)
			for (int64_t i = 0; key_column(w, h) == g * dim && i < w->n; i++)
				query_backward(w, a, d, i, h, p);
		free(p);
	}
}
