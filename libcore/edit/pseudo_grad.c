/* The pseudo-gradient of a worker: its value, norm, weight, and compression. */
#include "edit/edit_internal.h"

#include <math.h>

struct visit {
	struct edit *x;
	struct selection c;
};

static bool skips(const struct visit *v, const struct part *p)
{
	return !edit_takes(v->x, v->c, p);
}

void pseudo_grad_compute(struct edit *x, struct selection c)
{
	const struct kernels *k = x->d->k;
	const struct block *b;
	for (int n = edit_blocks(x, c, &b); n > 0; n--, b++) {
		float *p = edit_block_begin(x, STORE_PARAM, b);
		const float *a = edit_block_begin(x, x->store_group[EDIT_ANCHOR], b);
		float *to = p;
		if (x->grad_group != STORE_PARAM) {
			to = edit_block_begin(x, x->grad_group, b);
			k->copy(x->d, mat(to, 1, b->n), mat(p, 1, b->n));
		}
		k->sub(x->d, mat(to, 1, b->n), mat((float *)a, 1, b->n),
			mat(to, 1, b->n));
		store_end(x->s, x->grad_group, b->at, b->n, to);
	}
}

/* ---- norms ----------------------------------------------------------------------- */

enum { PARTS_PER_LAUNCH = 64 };

/* Parts of one group; one kernel launch sums their squares. */
struct squaring {
	struct visit v;
	struct mat part[PARTS_PER_LAUNCH];
	int n, group;
};

static void square_parts(struct squaring *q)
{
	struct edit *x = q->v.x;
	if (q->n)
		x->d->k->exact_sumsq(x->d, &x->squares[q->group], q->part, q->n);
	q->n = 0;
}

static void square_part(void *with, const struct part *p)
{
	struct squaring *q = with;
	struct edit *x = q->v.x;
	int group = edit_group_of(x, p);
	if (skips(&q->v, p))
		return;
	if (q->n == PARTS_PER_LAUNCH || group != q->group)
		square_parts(q);
	q->group = group;
	q->part[q->n++] = edit_pseudo_grad(x, p);
	/* the buffer of an offloaded part is reused after this call */
	if (store_offloads(x->s, x->grad_group))
		square_parts(q);
}

/* Returns the sums of the selected groups, one or all, which are contiguous. */
static struct exact *selected_squares(
	const struct edit *x, struct selection c, int64_t *n)
{
	*n = c.group < 0 ? x->n_groups : 1;
	return &x->squares[max64(0, c.group)];
}

void pseudo_grad_squares(struct edit *x, struct selection c)
{
	struct squaring q = {.v = {x, c}};
	int64_t n;
	struct exact *sum = selected_squares(x, c, &n);
	x->d->k->zero(x->d, mat(sum, n, EXACT_FLOATS));
	store_for_each_part(x->s, true, STORE_BIT(x->grad_group), 0, square_part, &q);
	square_parts(&q);
}

double pseudo_grad_norms(struct edit *x, struct selection c)
{
	int64_t n;
	const struct exact *from = selected_squares(x, c, &n);
	scoped_ptr struct exact *sum = xcalloc((size_t)n, sizeof(*sum));
	double all = 0;
	bool one = c.group >= 0 && x->holders;
	struct comm *ranks = one ? x->holders[c.group] : x->world;
	if (ranks) {
		device_get(x->d, sum, from, (size_t)n * sizeof(*sum));
		comm_sum_i64(ranks, (int64_t *)sum, n * EXACT_WORDS);
	}
	for (int g = 0; g < x->n_groups; g++) {
		if (!edit_selects(x, c, g))
			continue;
		double norm = sqrt(exact_round(&sum[c.group < 0 ? g : 0]));
		x->group[g].norm = norm;
		all += norm * norm;
	}
	return sqrt(all);
}

/* ---- weights --------------------------------------------------------------------- */

int64_t pseudo_grad_report_bytes(const struct edit *x)
{
	if (edit_has_anchor(x))
		return sizeof(struct worker_report);
	return x->c.weights.by_steps ? sizeof(struct worker_report) : 0;
}

static struct worker_report own_report(struct edit *x, int group, int64_t steps)
{
	struct edit_group *g = &x->group[group];
	bool excluded = false;
	if (edit_has_anchor(x))
		excluded = x->c.skip_anomaly
				   ? detector_outlier(&g->detector, &x->c.detect, g->norm)
				   : !isfinite(g->norm);
	return (struct worker_report){g->norm, excluded, steps};
}

/* Counts synchronizations in which the detectors exclude all workers. After too many in a row,
 * includes workers with a finite norm. */
static void end_lockout(struct edit *x, struct edit_group *g)
{
	struct worker_report *r = g->report;
	bool locked = x->c.skip_anomaly, finite = false;
	for (int w = 0; w < x->sync->size; w++) {
		locked &= r[w].excluded != 0;
		finite |= isfinite(r[w].norm) != 0;
	}
	g->lockouts =
		locked && finite ? (int)min64(g->lockouts + 1, EDIT_LOCKOUTS + 1) : 0;
	if (g->lockouts <= EDIT_LOCKOUTS)
		return;
	for (int w = 0; w < x->sync->size; w++)
		r[w].excluded = !isfinite(r[w].norm);
	if (isfinite(r[x->sync->rank].norm))
		detector_add(&g->detector, &x->c.detect, r[x->sync->rank].norm);
}

void pseudo_grad_weights(struct edit *x, struct selection c, int64_t steps)
{
	int workers = x->sync->size, n = 0, i = 0;
	scoped_ptr struct worker_report *mine =
		xcalloc((size_t)x->n_groups, sizeof(*mine));
	for (int g = 0; g < x->n_groups; g++)
		if (edit_selects(x, c, g))
			mine[n++] = own_report(x, g, steps);
	scoped_ptr struct worker_report *all =
		xcalloc((size_t)(n * workers), sizeof(*all));
	if (pseudo_grad_report_bytes(x)) /* else all weights are equal */
		comm_allgather(x->sync, mine, all, n * (int64_t)sizeof(*mine));
	for (int k = 0; k < x->n_groups; k++) {
		struct edit_group *g = &x->group[k];
		if (!edit_selects(x, c, k))
			continue;
		g->contributed = false;
		for (int w = 0; w < workers; w++)
			g->report[w] = all[w * n + i];
		end_lockout(x, g);
		for (int w = 0; w < workers; w++)
			g->contributed |= !g->report[w].excluded;
		g->excluded = g->report[x->sync->rank].excluded;
		worker_weights(&x->c.weights, workers, g->report, g->weight);
		i++;
	}
}

/* ---- compression ----------------------------------------------------------------- */

/* Keeps elements of each row of a virtual slice. Vectors stay dense: they are small. */
static void sparsify_part(void *with, const struct part *p)
{
	const struct visit *visit = with;
	struct edit *x = visit->x;
	struct mat v = edit_pseudo_grad(x, p);
	float density = (float)x->c.density;
	if (p->t->ndim == 1 || skips(visit, p))
		return;
	if (x->c.sparsify == EDIT_MAGNITUDE) {
		int64_t k = (int64_t)(x->c.density * (double)p->cols);
		x->d->k->keep_largest(x->d, v, max64(1, k));
		return;
	}
	const struct keep keep = {.density = density,
		.scale = x->c.sparsify == EDIT_RESCALED_RANDOM ? 1 / density : 1,
		.rng = {.key = wire_key(x->c.seed, p->t, x->n_syncs),
			.first = tensor_index(p->t, p->slice, p->row),
			.row_step = p->t->dims[1]},
		.worker = (uint32_t)x->sync->rank};
	x->d->k->keep_random(x->d, v, &keep);
}

/* Error feedback: adds the residual of earlier rounding, and keeps the error of this rounding
 * as the new residual. A worker that is excluded sends nothing, and keeps its residual. */
static void apply_error_feedback(void *with, const struct part *p)
{
	const struct visit *visit = with;
	struct edit *x = visit->x;
	const struct kernels *k = x->d->k;
	struct mat v = edit_pseudo_grad(x, p);
	struct mat left = mat(p->state[x->store_group[EDIT_RESIDUAL]], p->rows, p->cols);
	if (p->t->ndim == 1 || skips(visit, p) || x->group[edit_group_of(x, p)].excluded)
		return;
	k->add(x->d, v, v, left);
	k->copy(x->d, left, v);
	wire_round(&x->exchange.wire, v);
	k->sub(x->d, left, left, v);
}

void pseudo_grad_compress(struct edit *x, struct selection c)
{
	struct visit v = {.x = x, .c = c};
	const unsigned own = STORE_BIT(x->grad_group);
	if (x->c.sparsify == EDIT_MAGNITUDE_TENSOR && x->c.density < 1)
		threshold_tensors(x, c);
	else if (x->c.sparsify != EDIT_DENSE && x->c.density < 1)
		store_for_each_part(x->s, false, own, own, sparsify_part, &v);
	if (x->c.wire != EDIT_WIRE_FP32) {
		unsigned both = own | STORE_BIT(x->store_group[EDIT_RESIDUAL]);
		store_for_each_part(x->s, false, both, both, apply_error_feedback, &v);
	}
}
