/* What a worker brings: how far it moved, whether that is credible, what of it is sent. */
#include "edit/own.h"

#include <math.h>
#include <stdlib.h>

struct visit {
	struct edit *x;
	struct chosen c;
	struct exact *sum; /* [groups] */
};

static bool skips(const struct visit *v, const struct part *p)
{
	return !edit_is_chosen(v->x, v->c, edit_group_of(v->x, p));
}

static struct mat brought_part(const struct edit *x, const struct part *p)
{
	return mat(p->state[x->at], p->rows, p->cols);
}

void brought_take(struct edit *x, struct chosen c)
{
	const struct kernels *k = x->d->k;
	const struct block *b;
	for (int n = edit_blocks(x, c, &b); n > 0; n--, b++) {
		float *p = store_begin(x->s, STORE_PARAM, b->at, b->n, x->room[0]);
		const float *a = store_begin(x->s, STORE_ANCHOR, b->at, b->n, x->room[1]);
		float *to = p;
		if (x->at != STORE_PARAM) {
			to = store_begin(x->s, x->at, b->at, b->n, x->room[2]);
			k->copy(x->d, mat(to, 1, b->n), mat(p, 1, b->n));
		}
		k->pseudo_grad(x->d, to, a, b->n);
		store_end(x->s, x->at, b->at, b->n, to);
	}
}

/* ---- norms ----------------------------------------------------------------------- */

static void add_squares(void *with, const struct part *p)
{
	enum { ROWS = 512 };
	struct visit *v = with;
	double row[ROWS];
	struct exact *sum = &v->sum[edit_group_of(v->x, p)];
	struct mat m = brought_part(v->x, p);
	for (int64_t i = 0; i < p->rows && !skips(v, p); i += ROWS) {
		int64_t n = min64(ROWS, p->rows - i);
		v->x->d->k->row_sumsq(v->x->d, row, mat_rows(m, i, n));
		for (int64_t j = 0; j < n; j++)
			exact_add(sum, row[j]);
	}
	exact_normalize(sum);
}

double brought_norms(struct edit *x, struct chosen c, double *norm)
{
	struct visit v = {x, c, xcalloc((size_t)x->n_groups, sizeof(*v.sum))};
	double all = 0;
	store_walk(x->s, true, STORE_BIT(x->at), 0, add_squares, &v);
	if (c.group < 0)
		comm_sum_i64(x->world, (int64_t *)v.sum, x->n_groups * EXACT_WORDS);
	else
		comm_sum_i64(x->world, (int64_t *)&v.sum[c.group], EXACT_WORDS);
	for (int g = 0; g < x->n_groups; g++) {
		if (!edit_is_chosen(x, c, g))
			continue;
		norm[g] = sqrt(exact_round(&v.sum[g]));
		all += norm[g] * norm[g];
	}
	free(v.sum);
	return sqrt(all);
}

/* ---- weights --------------------------------------------------------------------- */

/* What a worker says of a group. */
struct word {
	double norm;
	int64_t out, steps;
};

int64_t brought_words(const struct edit *x)
{
	if (edit_has_anchor(x))
		return sizeof(struct word);
	return x->c.weigh.by_steps ? sizeof(struct word) : 0;
}

static struct word own_word(struct edit *x, int group, int64_t steps)
{
	double norm = x->norm[group];
	bool out = false;
	if (edit_has_anchor(x))
		out = x->c.skip_anomaly
			      ? detector_outlier(&x->detector[group], &x->c.detect, norm)
			      : !isfinite(norm);
	return (struct word){norm, out, steps};
}

void brought_weigh(struct edit *x, struct chosen c, int64_t steps)
{
	int workers = x->sync->size, n = 0, i = 0;
	struct word *mine = xcalloc((size_t)x->n_groups, sizeof(*mine));
	for (int g = 0; g < x->n_groups; g++)
		if (edit_is_chosen(x, c, g))
			mine[n++] = own_word(x, g, steps);
	struct word *all = xcalloc((size_t)(n * workers), sizeof(*all));
	comm_allgather(x->sync, mine, all, n * (int64_t)sizeof(*mine));
	for (int g = 0; g < x->n_groups; g++) {
		if (!edit_is_chosen(x, c, g))
			continue;
		for (int w = 0; w < workers; w++) {
			const struct word *of = &all[w * n + i];
			x->all_norms[g * workers + w] = of->norm;
			x->all_out[g * workers + w] = of->out;
			x->all_steps[w] = of->steps;
		}
		weigh(&x->c.weigh, workers, x->all_norms + g * workers,
			x->all_out + g * workers, x->all_steps, x->weight + g * workers);
		i++;
	}
	free(mine);
	free(all);
}

/* ---- what is sent of it ---------------------------------------------------------- */

/* Of each row as whole as the model has it in its virtual slices. Vectors stay dense: there is
 * little of them. */
static void sparsify_part(void *with, const struct part *p)
{
	const struct visit *visit = with;
	struct edit *x = visit->x;
	struct mat v = brought_part(x, p);
	float *row = v.p, density = (float)x->c.density;
	if (p->t->ndim == 1 || skips(visit, p))
		return;
	if (x->c.sparsify == EDIT_MAGNITUDE) {
		int64_t k = (int64_t)(x->c.density * (double)p->cols);
		x->d->k->keep_largest(x->d, v, max64(1, k));
		return;
	}
	struct keep keep = {.density = density,
		.scale = x->c.sparsify == EDIT_RESCALED_RANDOM ? 1 / density : 1,
		.key = wire_key(x->c.seed, p->t, x->n_syncs),
		.worker = (uint32_t)x->sync->rank};
	for (int64_t r = 0; r < p->rows; r++, row += p->cols) {
		keep.first = tensor_index(p->t, p->slice, p->row + r);
		x->d->k->keep_random(x->d, row, p->cols, &keep);
	}
}

/* What the wire cannot carry of this worker's pseudo-gradient and of what is left from the
 * times before is left for the next. Who is left out brings nothing, and keeps what it has. */
static void feed_back(void *with, const struct part *p)
{
	const struct visit *visit = with;
	struct edit *x = visit->x;
	const struct kernels *k = x->d->k;
	int mine = edit_group_of(x, p) * x->sync->size + x->sync->rank;
	struct mat v = brought_part(x, p);
	struct mat left = mat(p->state[STORE_RESIDUAL], p->rows, p->cols);
	if (p->t->ndim == 1 || skips(visit, p) || x->all_out[mine])
		return;
	k->add(x->d, v, v, left);
	k->copy(x->d, left, v);
	wire_round(&x->exchange.wire, v);
	k->sub(x->d, left, left, v);
}

void brought_round(struct edit *x, struct chosen c)
{
	struct visit v = {.x = x, .c = c};
	const unsigned own = STORE_BIT(x->at), both = own | STORE_BIT(STORE_RESIDUAL);
	if (x->c.sparsify != EDIT_DENSE && x->c.density < 1)
		store_walk(x->s, false, own, own, sparsify_part, &v);
	if (x->c.wire != EDIT_WIRE_FP32)
		store_walk(x->s, false, both, both, feed_back, &v);
}
