/* Mixtures of experts in double precision: forward and backward pass over one sequence (Jiang et
 * al. 2024; Dai et al. 2024; DeepSeek-AI 2024). */
#include "reference/float64_pass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The rows of one expert, with its hidden layer. */
struct expert_rows {
	int64_t n;
	int64_t *row, *slot;	   /* [n]: position, index of its gate */
	double *x, *a, *b, *u, *y; /* [n][dim], [n][width] three times, [n][dim] */
};

/* The weights of an expert, or of the shared expert; dw: where to add gradients, or NULL. */
struct expert_weights {
	const double *w1, *w3, *w2;
	double *dw1, *dw3, *dw2;
	int64_t width;
};

static int64_t slots_of(const struct sequence_work *w)
{
	return w->n * w->m->c.experts_per_token;
}

void float64_routing_init(const struct sequence_work *w, struct float64_routing *r)
{
	const struct model_config *c = &w->m->c;
	*r = (struct float64_routing){0};
	if (!c->experts)
		return;
	r->z = zeros(w->n * c->experts);
	r->score = zeros(w->n * c->experts);
	r->gate = zeros(slots_of(w));
	r->dgate = zeros(slots_of(w));
	r->ids = xcalloc((size_t)slots_of(w), sizeof(*r->ids));
}

void float64_routing_release(struct float64_routing *r)
{
	free(r->z);
	free(r->score);
	free(r->gate);
	free(r->dgate);
	free(r->ids);
}

/* ---- the choice of experts ----------------------------------------------------------------- */

/* Sets best[0] to best[k - 1] to the indices of the k largest of x[n], and best[k] to the next one
 * if k < n. (Ties: the lowest index.) */
static void find_largest(const double *x, int64_t n, int64_t k, int *best)
{
	for (int64_t j = 0; j < min64(k + 1, n); j++) {
		int at = -1;
		for (int64_t e = 0; e < n; e++) {
			bool is_taken = false;
			for (int64_t i = 0; i < j; i++)
				is_taken |= best[i] == e;
			if (!is_taken && (at < 0 || x[e] > x[at]))
				at = (int)e;
		}
		best[j] = at;
	}
}

/* A choice that rounding may turn: of the chosen experts, `in` has the lowest score, and of the
 * others, `out` the highest; or they are the best experts of two such groups. */
struct near_choice {
	double gap; /* difference of scores; INFINITY: no other expert */
	int in, out;
};

/* Masks the experts of all groups but the best ones. `exchange`: the last of them is exchanged with
 * the next one. */
static struct near_choice mask_groups(const struct model_config *c,
	const struct function *f, double *choice, bool exchange)
{
	const int64_t groups = c->router_groups, size = c->experts / groups,
		      top = c->router_top_groups;
	double *sum = zeros(groups);
	int *first = xcalloc((size_t)groups, sizeof(*first)),
	    *best = xcalloc((size_t)groups + 1, sizeof(*best)), two[3];
	for (int64_t g = 0; g < groups; g++) {
		find_largest(choice + g * size, size, 2, two);
		sum[g] = choice[g * size + two[0]];
		if (!f->groups_by_best)
			sum[g] += choice[g * size + two[1]];
		first[g] = (int)(g * size) + two[0];
	}
	find_largest(sum, groups, top, best);
	struct near_choice near = {INFINITY, 0, 0};
	if (top < groups) {
		near = (struct near_choice){sum[best[top - 1]] - sum[best[top]],
			first[best[top - 1]], first[best[top]]};
		if (exchange)
			best[top - 1] = best[top];
	}
	for (int64_t g = 0; g < groups; g++) {
		bool is_best = false;
		for (int64_t i = 0; i < top; i++)
			is_best |= best[i] == g;
		for (int64_t e = 0; e < size && !is_best; e++)
			choice[g * size + e] = f->masked_zero ? 0 : -INFINITY;
	}
	free(sum);
	free(first);
	free(best);
	return near;
}

static int by_number(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

/* Sets ids[k] to the experts best[k], ascending, with `out` in the place of `in`. */
static void set_ids(const int *best, int64_t k, struct near_choice near, int *ids)
{
	for (int64_t j = 0; j < k; j++)
		ids[j] = best[j] == near.in ? near.out : best[j];
	qsort(ids, (size_t)k, sizeof(*ids), by_number);
}

/* Sets ids[k] to the experts of a row with these scores, ascending. */
static void choose_of(const struct model_config *c, const double *choice, int *ids)
{
	const int64_t k = c->experts_per_token;
	int *best = xcalloc((size_t)k + 1, sizeof(*best));
	find_largest(choice, c->experts, k, best);
	set_ids(best, k, (struct near_choice){INFINITY, -1, -1}, ids);
	free(best);
}

/* Returns how much the difference of two experts' scores changes by a relative error of 1 of the row
 * h, in a random direction, and of both logits. */
static double unit_of_gap(const struct sequence_work *w, const double *weights,
	const double *h, const double *z, const double *score, struct near_choice near)
{
	const int64_t dim = w->dim;
	double slope[2] = {1, 1}, squares = 0, size = 0;
	for (int k = 0; k < 2 && w->m->c.router == ROUTER_SIGMOID; k++) {
		double s = score[k ? near.out : near.in];
		slope[k] = s * (1 - s);
	}
	for (int64_t j = 0; j < dim; j++) {
		double d = slope[0] * weights[near.in * dim + j] -
			   slope[1] * weights[near.out * dim + j];
		squares += d * d;
		size += h[j] * h[j];
	}
	return sqrt(squares * size / (double)dim) +
	       fmax(slope[0] * fabs(z[near.in]), slope[1] * fabs(z[near.out]));
}

/* Returns unit_of_gap() for softmax scores with a bias: each score depends on all logits. */
static double unit_of_softmax_gap(const struct sequence_work *w, const double *weights,
	const double *h, const double *z, const double *score, struct near_choice near)
{
	const int64_t dim = w->dim, n = w->m->c.experts;
	double *slope = zeros(n), squares = 0, size = 0, logits = 0;
	for (int64_t e = 0; e < n; e++) {
		slope[e] = -score[e] * (score[near.in] - score[near.out]);
		slope[e] += e == near.in ? score[e] : e == near.out ? -score[e] : 0;
		logits += fabs(slope[e] * z[e]);
	}
	for (int64_t j = 0; j < dim; j++) {
		double d = 0;
		for (int64_t e = 0; e < n; e++)
			d += slope[e] * weights[e * dim + j];
		squares += d * d;
		size += h[j] * h[j];
	}
	free(slope);
	return sqrt(squares * size / (double)dim) + logits;
}

/* Returns the gap of a choice relative to unit_of_gap(). For softmax without a bias, it is a gap
 * of logits. */
static double margin_of(const struct sequence_work *w, const double *weights,
	const double *h, const double *z, const double *score, struct near_choice near)
{
	if (!isfinite(near.gap))
		return INFINITY;
	const bool is_softmax = w->m->c.router == ROUTER_SOFTMAX;
	const bool is_biased = is_softmax && w->m->c.router_bias_rate > 0;
	const double gap = is_softmax && !is_biased ? z[near.in] - z[near.out] : near.gap;
	const double unit = is_biased ? unit_of_softmax_gap(w, weights, h, z, score, near)
				      : unit_of_gap(w, weights, h, z, score, near);
	return gap > 0 && unit > 0 ? gap / unit : 0;
}

/* A position's router: what its choices depend on. */
struct position {
	const double *weights, *h, *z, *score;
	double *choice; /* scores plus bias; minus infinity outside of the best groups */
};

/* Adds a choice to the alternatives of row `at`, sorted by margin. The last one is dropped. */
static void add_alternative(
	const struct choices *all, int64_t at, double margin, const int *ids, int64_t k)
{
	double *margins = all->margin + at * ALTERNATIVES;
	int *others = all->other + at * ALTERNATIVES * k;
	int64_t j = ALTERNATIVES - 1;
	if (!(margin < margins[j]))
		return;
	for (; j > 0 && margin < margins[j - 1]; j--) {
		margins[j] = margins[j - 1];
		memcpy(others + j * k, others + (j - 1) * k, (size_t)k * sizeof(*ids));
	}
	margins[j] = margin;
	memcpy(others + j * k, ids, (size_t)k * sizeof(*ids));
}

/* Adds the choices with one of the last two experts exchanged for one of the next two. */
static void add_next_experts(
	const struct sequence_work *w, const struct position *x, int64_t at)
{
	const struct model_config *c = &w->m->c;
	const int64_t k = c->experts_per_token, n = c->experts;
	int *best = xcalloc((size_t)k + 3, sizeof(*best)),
	    *ids = xcalloc((size_t)k, sizeof(*ids));
	find_largest(x->choice, n, k + 1, best);
	for (int64_t in = k - 1; in >= max64(0, k - 2); in--)
		for (int64_t out = k; out < min64(k + 2, n); out++) {
			struct near_choice near = {
				x->choice[best[in]] - x->choice[best[out]], best[in],
				best[out]};
			set_ids(best, k, near, ids);
			add_alternative(w->s->choices, at,
				margin_of(w, x->weights, x->h, x->z, x->score, near), ids,
				k);
		}
	free(best);
	free(ids);
}

/* Records the choice by the scores alone, and the next best one. */
static void record_plain(
	const struct sequence_work *w, const struct position *x, int64_t at)
{
	const int64_t k = w->m->c.experts_per_token, n = w->m->c.experts;
	const struct choices *all = w->s->choices;
	int *best = xcalloc((size_t)k + 2, sizeof(*best));
	struct near_choice near = {INFINITY, -1, -1};
	find_largest(x->score, n, min64(k + 1, n), best);
	set_ids(best, k, near, all->plain + at * k);
	if (k < n) {
		near = (struct near_choice){
			x->score[best[k - 1]] - x->score[best[k]], best[k - 1], best[k]};
		set_ids(best, k, near, all->plain_other + at * k);
		all->plain_margin[at] =
			margin_of(w, x->weights, x->h, x->z, x->score, near);
	}
	free(best);
}

/* Chooses the experts of position i, or takes the recorded ones. */
static void choose(const struct sequence_work *w, const struct sublayer_tensors *t,
	struct float64_routing *r, const double *h, int64_t i)
{
	const struct model_config *c = &w->m->c;
	const int64_t n = c->experts, k = c->experts_per_token;
	const double *bias = weight_of(w, t->router_bias);
	struct choices *all = w->s->choices;
	int *ids = r->ids + i * k;
	const int64_t at = all ? w->layer * all->positions + w->s->first + i : 0;
	if (all && (all->replay || (all->forced && all->forced[at]))) {
		memcpy(ids, all->ids + at * k, (size_t)k * sizeof(*ids));
		return;
	}
	double *own = zeros(n), *masked = zeros(n);
	for (int64_t e = 0; e < n; e++)
		own[e] = r->score[i * n + e] + (bias ? bias[e] : 0);
	memcpy(masked, own, (size_t)n * sizeof(*own));
	struct near_choice group = {INFINITY, 0, 0};
	if (c->router_groups)
		group = mask_groups(c, &w->f->function, masked, false);
	choose_of(c, masked, ids);
	if (all) {
		const struct position x = {weight_of(w, t->router), h, r->z + i * n,
			r->score + i * n, masked};
		memcpy(all->ids + at * k, ids, (size_t)k * sizeof(*ids));
		all->first[at] = ids[0];
		for (int64_t j = 1; j < k; j++)
			if (x.score[ids[j]] > x.score[all->first[at]])
				all->first[at] = ids[j];
		for (int j = 0; j < ALTERNATIVES; j++)
			all->margin[at * ALTERNATIVES + j] = INFINITY;
		add_next_experts(w, &x, at);
		if (all->plain)
			record_plain(w, &x, at);
		if (isfinite(group.gap)) {
			int *others = xcalloc((size_t)k, sizeof(*others));
			mask_groups(c, &w->f->function, own, true);
			choose_of(c, own, others);
			add_alternative(all, at,
				margin_of(w, x.weights, h, x.z, x.score, group), others,
				k);
			free(others);
		}
	}
	free(own);
	free(masked);
}

static double sigmoid64(double z)
{
	return 1 / (1 + exp(-z));
}

/* ---- the router ---------------------------------------------------------------------------- */

static double gate_scale(const struct model_config *c)
{
	return c->router_scale > 0 ? c->router_scale : 1;
}

/* Returns the score that the gate of an expert is made of. */
static double gate_score(
	const struct sequence_work *w, const struct float64_routing *r, int64_t i, int id)
{
	return r->score[i * w->m->c.experts + id] + (r->gate_bias ? r->gate_bias[id] : 0);
}

/* Returns the sum of the chosen scores, by which gates are divided; 1 if they are not. */
static double gate_divisor(
	const struct sequence_work *w, const struct float64_routing *r, int64_t i)
{
	const struct model_config *c = &w->m->c;
	double sum = c->router == ROUTER_SIGMOID ? 1e-20 : 0;
	for (int64_t j = 0; j < c->experts_per_token; j++)
		sum += gate_score(w, r, i, r->ids[i * c->experts_per_token + j]);
	return c->router_norm ? sum : 1;
}

static double sum_of(const double *x, int64_t n)
{
	double sum = 0;
	for (int64_t j = 0; j < n; j++)
		sum += x[j];
	return sum;
}

/* Records the sums of the layer's scores. */
static void record_mass(const struct sequence_work *w, const struct float64_routing *r)
{
	const int64_t n = w->m->c.experts;
	if (!w->s->choices || !w->s->choices->mass)
		return;
	double *mass = w->s->choices->mass +
		       (w->s->first / w->n * w->m->c.layers + w->layer) * n;
	memset(mass, 0, (size_t)n * sizeof(*mass));
	for (int64_t i = 0; i < w->n; i++)
		add_scaled(mass, 1 / sum_of(r->score + i * n, n), r->score + i * n, n);
}

static void route(const struct sequence_work *w, const struct sublayer_tensors *t,
	struct float64_routing *r, const double *h)
{
	const struct model_config *c = &w->m->c;
	const int64_t n = c->experts, k = c->experts_per_token;
	r->gate_bias = w->f->function.biased_gates ? weight_of(w, t->router_bias) : NULL;
	float64_linear(r->z, h, weight_of(w, t->router), NULL, w->n, w->dim, n);
	for (int64_t i = 0; i < w->n; i++) {
		const double *z = r->z + i * n;
		double *s = r->score + i * n, max = -INFINITY, sum = 0;
		for (int64_t e = 0; e < n; e++)
			max = fmax(max, z[e]);
		for (int64_t e = 0; e < n; e++) {
			s[e] = c->router == ROUTER_SIGMOID ? sigmoid64(z[e])
							   : exp(z[e] - max);
			sum += s[e];
		}
		for (int64_t e = 0; e < n && c->router == ROUTER_SOFTMAX; e++)
			s[e] /= sum;
		choose(w, t, r, h + i * w->dim, i);
		double scale = gate_scale(c) / gate_divisor(w, r, i);
		for (int64_t j = 0; j < k; j++)
			r->gate[i * k + j] =
				scale * gate_score(w, r, i, r->ids[i * k + j]);
	}
	record_mass(w, r);
}

/* Adds to ds the gradients of scores s, which are divided by their sum, from slopes. */
static void add_share_slopes(const double *slopes, const double *s, int64_t n, double *ds)
{
	const double sum = sum_of(s, n);
	double mean = 0;
	for (int64_t e = 0; e < n; e++)
		mean += slopes[e] * s[e] / sum;
	for (int64_t e = 0; e < n; e++)
		ds[e] += (slopes[e] - mean) / sum;
}

/* Replaces the gradients of the softmax of shares s[n] by the gradients of s. */
static void softmax_slopes(const double *s, int64_t n, double *slopes)
{
	double sum = 0, mean = 0;
	for (int64_t e = 0; e < n; e++)
		sum += exp(s[e]);
	for (int64_t e = 0; e < n; e++)
		mean += slopes[e] * exp(s[e]) / sum;
	for (int64_t e = 0; e < n; e++)
		slopes[e] = (slopes[e] - mean) * exp(s[e]) / sum;
}

/* Adds the gradient of the balance loss to the gradients of the scores s of position i. */
static void add_balance_slopes(const struct sequence_work *w,
	const struct float64_routing *r, int64_t i, const double *s, double *ds)
{
	const int64_t n = w->m->c.experts, k = w->m->c.experts_per_token;
	const double *given = w->s->balance ? w->s->balance + w->layer * n : NULL;
	const struct function *f = &w->f->function;
	if (!given || (f->balance_layer && f->balance_layer != w->layer + 1))
		return;
	double *slopes = zeros(n), *share = zeros(n);
	for (int64_t e = 0; e < n; e++)
		share[e] = s[e] / sum_of(s, n);
	if (f->balance_scores == BALANCE_CHOSEN)
		for (int64_t j = 0; j < k; j++)
			slopes[r->ids[i * k + j]] = given[r->ids[i * k + j]];
	else
		memcpy(slopes, given, (size_t)n * sizeof(*slopes));
	if (f->balance_scores == BALANCE_SOFTMAX)
		softmax_slopes(share, n, slopes);
	add_share_slopes(slopes, s, n, ds);
	free(share);
	free(slopes);
}

/* Adds the gradient of factor times the square of log(sum of exp(z)). */
static void add_z_slopes(const double *z, int64_t n, double factor, double *dz)
{
	double max = z[0], sum = 0;
	for (int64_t e = 0; e < n; e++)
		max = fmax(max, z[e]);
	for (int64_t e = 0; e < n; e++)
		sum += exp(z[e] - max);
	for (int64_t e = 0; e < n; e++)
		dz[e] += 2 * factor * (max + log(sum)) * exp(z[e] - max) / sum;
}

/* Sets dz[E] from the gradients of a position's gates. */
static void router_slopes(const struct sequence_work *w, const struct float64_routing *r,
	int64_t i, double *dz)
{
	const struct model_config *c = &w->m->c;
	const int64_t n = c->experts, k = c->experts_per_token;
	const double *s = r->score + i * n, *dgate = r->dgate + i * k;
	const double scale = gate_scale(c) / gate_divisor(w, r, i);
	double *ds = zeros(n), along = 0;
	for (int64_t j = 0; j < k && c->router_norm; j++)
		along += dgate[j] * r->gate[i * k + j] / gate_scale(c);
	for (int64_t j = 0; j < k && !w->f->function.gates_detached; j++)
		ds[r->ids[i * k + j]] = scale * (dgate[j] - along);
	add_balance_slopes(w, r, i, s, ds);
	double mean = 0;
	for (int64_t e = 0; e < n && c->router == ROUTER_SOFTMAX; e++)
		mean += s[e] * ds[e];
	for (int64_t e = 0; e < n; e++)
		dz[e] = c->router == ROUTER_SOFTMAX
				? s[e] * (ds[e] - mean)
				: sigmoid64(r->z[i * n + e]) *
					  (1 - sigmoid64(r->z[i * n + e])) * ds[e];
	if (w->s->router_z > 0)
		add_z_slopes(r->z + i * n, n, w->s->router_z, dz);
	free(ds);
}

static void route_backward(const struct sequence_work *w,
	const struct sublayer_tensors *t, const struct float64_routing *r,
	const double *h, double *dh)
{
	const int64_t n = w->m->c.experts, dim = w->dim;
	const double *weights = weight_of(w, t->router);
	double *dw = grad_of(w, t->router), *dz = zeros(n);
	for (int64_t i = 0; i < w->n; i++) {
		router_slopes(w, r, i, dz);
		for (int64_t e = 0; e < n; e++) {
			if (!w->f->function.router_detached)
				add_scaled(dh + i * dim, dz[e], weights + e * dim, dim);
			if (dw && part_has(w, i))
				add_scaled(dw + e * dim, dz[e], h + i * dim, dim);
		}
	}
	free(dz);
}

/* ---- the experts --------------------------------------------------------------------------- */

static void rows_release(struct expert_rows *x)
{
	double *const all[] = {x->x, x->a, x->b, x->u, x->y};
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		free(all[i]);
	free(x->row);
	free(x->slot);
}

/* Computes the output of an expert for the positions that chose it. expert -1: for all. */
static void rows_init(struct expert_rows *x, const struct sequence_work *w,
	const struct float64_routing *r, const struct expert_weights *p, int expert,
	const double *h)
{
	const int64_t dim = w->dim, k = w->m->c.experts_per_token;
	*x = (struct expert_rows){.row = xcalloc((size_t)w->n, sizeof(*x->row)),
		.slot = xcalloc((size_t)w->n, sizeof(*x->slot))};
	for (int64_t i = 0; i < w->n; i++)
		for (int64_t j = 0; j < (expert < 0 ? 1 : k); j++)
			if (expert < 0 || r->ids[i * k + j] == expert) {
				x->row[x->n] = i;
				x->slot[x->n++] = i * k + j;
			}
	x->x = zeros(x->n * dim);
	x->a = zeros(x->n * p->width);
	x->b = zeros(x->n * p->width);
	x->u = zeros(x->n * p->width);
	x->y = zeros(x->n * dim);
	for (int64_t i = 0; i < x->n; i++)
		memcpy(x->x + i * dim, h + x->row[i] * dim, (size_t)dim * sizeof(*h));
	float64_linear(x->a, x->x, p->w1, NULL, x->n, dim, p->width);
	float64_linear(x->b, x->x, p->w3, NULL, x->n, dim, p->width);
	for (int64_t i = 0; i < x->n * p->width; i++)
		x->u[i] = w->f->function.gate_exchanged
				  ? float64_act(w->m->act, x->b[i], x->a[i])
				  : float64_act(w->m->act, x->a[i], x->b[i]);
	float64_linear(x->y, x->u, p->w2, NULL, x->n, p->width, dim);
}

/* Adds dy^T x to dw [out][in], over the rows of the part. */
static void add_dw(const struct sequence_work *w, const struct expert_rows *rows,
	double *dw, const double *dy, const double *x, int64_t in, int64_t out)
{
#pragma omp parallel for
	for (int64_t o = 0; o < out; o++)
		for (int64_t i = 0; i < rows->n && dw; i++)
			if (part_has(w, rows->row[i]))
				add_scaled(dw + o * in, dy[i * out + o], x + i * in, in);
}

/* Returns true if the gradients of a kind have the part of an expert. */
static bool has_part_of_expert(
	const struct sequence_work *w, enum local_kind kind, int64_t expert)
{
	const struct local_experts *x = &w->f->function.local;
	const int rank = x->rank ? x->rank[w->s->first / w->n] : 0;
	return x->kind != kind || expert * x->n / w->m->c.experts == rank;
}

/* Adds the gradients of an expert, from the gradients dy [rows][dim] of its outputs. dh: NULL if
 * the input has no gradient of it. */
static void rows_backward(const struct sequence_work *w, const struct expert_rows *x,
	const struct expert_weights *p, const double *dy, double *dh)
{
	const int64_t dim = w->dim, width = p->width;
	const struct input_slice *of = &w->f->function.input_slice;
	const struct range hidden = {of->n ? of->i * width / of->n : 0,
		of->n ? (of->i + 1) * width / of->n : width};
	double *du = zeros(x->n * width), *da = zeros(x->n * width),
	       *db = zeros(x->n * width), *dx = zeros(x->n * dim);
	float64_linear_dx(du, dy, p->w2, x->n, width, dim, (struct range){0, dim});
	for (int64_t i = 0; i < x->n * width; i++) {
		double slope, other;
		if (w->f->function.gate_exchanged)
			other = float64_act_slope(w->m->act, x->b[i], x->a[i], &slope);
		else
			slope = float64_act_slope(w->m->act, x->a[i], x->b[i], &other);
		da[i] = du[i] * slope;
		db[i] = du[i] * other;
	}
	add_dw(w, x, p->dw2, dy, x->u, width, dim);
	add_dw(w, x, p->dw1, da, x->x, dim, width);
	add_dw(w, x, p->dw3, db, x->x, dim, width);
	float64_linear_dx(dx, da, p->w1, x->n, dim, width, hidden);
	float64_linear_dx(dx, db, p->w3, x->n, dim, width, hidden);
	for (int64_t i = 0; i < x->n && dh; i++)
		add_scaled(dh + x->row[i] * dim, 1, dx + i * dim, dim);
	free(du);
	free(da);
	free(db);
	free(dx);
}

/* Returns the weights of expert e of a stack. */
static struct expert_weights expert_weights(
	const struct sequence_work *w, const struct sublayer_tensors *t, int64_t e)
{
	const int64_t width = w->m->c.expert_dim, size = width * w->dim;
	const double *w13 = weight_of(w, t->w13), *w2 = weight_of(w, t->w2);
	double *dw13 = grad_of(w, t->w13), *dw2 = grad_of(w, t->w2);
	return (struct expert_weights){w13 + 2 * e * size, w13 + (2 * e + 1) * size,
		w2 + e * size, dw13 ? dw13 + 2 * e * size : NULL,
		dw13 ? dw13 + (2 * e + 1) * size : NULL, dw2 ? dw2 + e * size : NULL,
		width};
}

static struct expert_weights shared_weights(
	const struct sequence_work *w, const struct sublayer_tensors *t)
{
	return (struct expert_weights){weight_of(w, t->in[0]), weight_of(w, t->in[1]),
		weight_of(w, t->out), grad_of(w, t->in[0]), grad_of(w, t->in[1]),
		grad_of(w, t->out), w->m->c.shared_expert_dim};
}

/* Returns the weights of the shared expert's gate, or NULL. */
static const double *gate_weights(
	const struct sequence_work *w, const struct sublayer_tensors *t)
{
	return w->f->function.no_shared_gate ? NULL : weight_of(w, t->shared_gate);
}

/* Returns the gate of the shared expert for position i; 1 if it has none. */
static double shared_gate(const struct sequence_work *w, const struct sublayer_tensors *t,
	const double *h, int64_t i)
{
	const double *weights = gate_weights(w, t);
	double sum = 0;
	for (int64_t j = 0; j < w->dim && weights; j++)
		sum += weights[j] * h[i * w->dim + j];
	return weights ? sigmoid64(sum) : 1;
}

void float64_experts(const struct sequence_work *w, const struct sublayer_tensors *t,
	struct float64_routing *r, const double *h, double *out)
{
	const int64_t dim = w->dim;
	struct expert_rows x;
	memset(out, 0, (size_t)(w->n * dim) * sizeof(*out));
	route(w, t, r, h);
	for (int64_t e = 0; e < w->m->c.experts; e++) {
		const struct expert_weights p = expert_weights(w, t, e);
		rows_init(&x, w, r, &p, (int)e, h);
		for (int64_t i = 0; i < x.n; i++)
			add_scaled(out + x.row[i] * dim, r->gate[x.slot[i]],
				x.y + i * dim, dim);
		rows_release(&x);
	}
	if (!t->out)
		return;
	const struct expert_weights p = shared_weights(w, t);
	rows_init(&x, w, r, &p, -1, h);
	for (int64_t i = 0; i < w->n; i++)
		add_scaled(out + i * dim, shared_gate(w, t, h, i), x.y + i * dim, dim);
	rows_release(&x);
}

static double dot(const double *a, const double *b, int64_t n)
{
	double sum = 0;
	for (int64_t j = 0; j < n; j++)
		sum += a[j] * b[j];
	return sum;
}

/* Adds the gradients of the shared expert and of its gate. */
static void shared_backward(const struct sequence_work *w,
	const struct sublayer_tensors *t, const struct float64_routing *r,
	const double *h, const double *dout, double *dh)
{
	const int64_t dim = w->dim;
	const struct expert_weights p = shared_weights(w, t);
	const double *weights = gate_weights(w, t);
	double *dw = weights ? grad_of(w, t->shared_gate) : NULL, *dy = zeros(w->n * dim);
	struct expert_rows x;
	rows_init(&x, w, r, &p, -1, h);
	for (int64_t i = 0; i < w->n; i++) {
		double g = shared_gate(w, t, h, i);
		double dz = g * (1 - g) * dot(dout + i * dim, x.y + i * dim, dim);
		add_scaled(dy + i * dim, g, dout + i * dim, dim);
		if (weights)
			add_scaled(dh + i * dim, dz, weights, dim);
		if (dw && part_has(w, i))
			add_scaled(dw, dz, h + i * dim, dim);
	}
	rows_backward(w, &x, &p, dy, dh);
	rows_release(&x);
	free(dy);
}

void float64_experts_backward(const struct sequence_work *w,
	const struct sublayer_tensors *t, const struct float64_routing *r,
	const double *h, const double *dout, double *dh)
{
	const int64_t dim = w->dim;
	for (int64_t e = 0; e < w->m->c.experts; e++) {
		const struct expert_weights p = expert_weights(w, t, e);
		struct expert_rows x;
		rows_init(&x, w, r, &p, (int)e, h);
		double *dy = zeros(x.n * dim);
		for (int64_t i = 0; i < x.n; i++) {
			const double *up = dout + x.row[i] * dim;
			r->dgate[x.slot[i]] = has_part_of_expert(w, LOCAL_GATES, e)
						      ? dot(up, x.y + i * dim, dim)
						      : 0;
			add_scaled(dy + i * dim, r->gate[x.slot[i]], up, dim);
		}
		rows_backward(w, &x, &p, dy,
			has_part_of_expert(w, LOCAL_INPUTS, e) ? dh : NULL);
		rows_release(&x);
		free(dy);
	}
	route_backward(w, t, r, h, dh);
	if (t->out)
		shared_backward(w, t, r, h, dout, dh);
}
