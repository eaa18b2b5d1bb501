/* The pseudo-gradient of a worker: its value, norm, weight, and compression. */
#include "edit/edit_internal.h"

#include <math.h>

struct visit {
	struct edit *x;
	struct selection sel;
};

static bool skips_part(const struct visit *v, const struct part *p)
{
	return !edit_includes(v->x, v->sel, p);
}

void pseudo_grad_compute(struct edit *x, struct selection sel)
{
	const struct kernels *k = x->d->k;
	const struct block *b;
	for (int n = edit_blocks(x, sel, &b); n > 0; n--, b++) {
		float *p = edit_block_begin(x, STORE_PARAM, b);
		const float *a = edit_block_begin(x, x->store_group[EDIT_ANCHOR], b);
		float *grad = p;
		if (x->grad_group != STORE_PARAM) {
			grad = edit_block_begin(x, x->grad_group, b);
			k->copy(x->d, mat(grad, 1, b->n), mat(p, 1, b->n));
		}
		k->sub(x->d, mat(grad, 1, b->n), mat((float *)a, 1, b->n),
			mat(grad, 1, b->n));
		store_end(x->s, x->grad_group, b->pos, b->n, grad);
	}
}

/* ---- norms ----------------------------------------------------------------------- */

enum { PARTS_PER_LAUNCH = 64 };

/* Parts of one group, for one kernel launch that sums their squares. */
struct square_batch {
	struct visit v;
	struct mat part[PARTS_PER_LAUNCH];
	int n, group;
};

static void launch_batch(struct square_batch *q)
{
	struct edit *x = q->v.x;
	if (q->n)
		x->d->k->exact_sumsq(x->d, &x->squares[q->group], q->part, q->n);
	q->n = 0;
}

/* Adds a part to the batch, which is launched if it is full or of another group. */
static void add_to_batch(void *arg, const struct part *p)
{
	struct square_batch *q = arg;
	struct edit *x = q->v.x;
	int group = part_group(x, p);
	if (skips_part(&q->v, p))
		return;
	if (q->n == PARTS_PER_LAUNCH || group != q->group)
		launch_batch(q);
	q->group = group;
	q->part[q->n++] = edit_pseudo_grad(x, p);
	/* the buffer of an offloaded part is reused after this call */
	if (store_offloads(x->s, x->grad_group))
		launch_batch(q);
}

/* Returns the sums of squares of the selected groups: of one group, or of all *n groups. */
static struct exact *selected_squares(
	const struct edit *x, struct selection sel, int64_t *n)
{
	*n = sel.group < 0 ? x->n_groups : 1;
	return &x->squares[max64(0, sel.group)];
}

void pseudo_grad_squares(struct edit *x, struct selection sel)
{
	struct square_batch q = {.v = {x, sel}};
	int64_t n;
	struct exact *sum = selected_squares(x, sel, &n);
	x->d->k->zero(x->d, mat(sum, n, EXACT_FLOATS));
	store_for_each_part(x->s, true, STORE_BIT(x->grad_group), 0, add_to_batch, &q);
	launch_batch(&q);
}

double pseudo_grad_norms(struct edit *x, struct selection sel)
{
	int64_t n;
	const struct exact *from = selected_squares(x, sel, &n);
	scoped_ptr struct exact *sum = xcalloc((size_t)n, sizeof(*sum));
	double sum_squares = 0;
	bool holders_only = sel.group >= 0 && x->holders;
	struct comm *ranks = holders_only ? x->holders[sel.group] : x->world;
	if (ranks) {
		device_get(x->d, sum, from, (size_t)n * sizeof(*sum));
		comm_sum_i64(ranks, (int64_t *)sum, n * EXACT_WORDS);
	}
	for (int g = 0; g < x->n_groups; g++) {
		if (!edit_selects(x, sel, g))
			continue;
		double norm = sqrt(exact_round(&sum[sel.group < 0 ? g : 0]));
		x->group[g].norm = norm;
		sum_squares += norm * norm;
	}
	return sqrt(sum_squares);
}

/* ---- weights --------------------------------------------------------------------- */

int64_t pseudo_grad_report_bytes(const struct edit *x)
{
	if (edit_has_anchor(x))
		return sizeof(struct worker_report);
	return x->c.weights.by_steps ? sizeof(struct worker_report) : 0;
}

/* Returns this worker's report on a group. Adds the norm to the detector, unless an outlier. */
static struct worker_report make_report(struct edit *x, int group, int64_t steps)
{
	struct edit_group *g = &x->group[group];
	bool excluded = false;
	if (edit_has_anchor(x))
		excluded = x->c.skip_anomaly ? detector_test_and_add(&g->detector,
						       &x->c.detect, g->norm)
					     : !isfinite(g->norm);
	return (struct worker_report){g->norm, excluded, steps};
}

/* Counts the synchronizations in a row that exclude all workers. After too many, includes them. */
static void update_lockouts(struct edit *x, struct edit_group *g)
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

void pseudo_grad_weights(struct edit *x, struct selection sel, int64_t steps)
{
	int workers = x->sync->size, n = 0, n_filled = 0;
	scoped_ptr struct worker_report *own = xcalloc((size_t)x->n_groups, sizeof(*own));
	for (int g = 0; g < x->n_groups; g++)
		if (edit_selects(x, sel, g))
			own[n++] = make_report(x, g, steps);
	scoped_ptr struct worker_report *all =
		xcalloc((size_t)(n * workers), sizeof(*all));
	if (pseudo_grad_report_bytes(x)) /* else all weights are equal */
		comm_allgather(x->sync, own, all, n * (int64_t)sizeof(*own));
	for (int k = 0; k < x->n_groups; k++) {
		struct edit_group *g = &x->group[k];
		if (!edit_selects(x, sel, k))
			continue;
		g->contributed = false;
		for (int w = 0; w < workers; w++)
			g->report[w] = all[w * n + n_filled];
		update_lockouts(x, g);
		for (int w = 0; w < workers; w++)
			g->contributed |= !g->report[w].excluded;
		g->excluded = g->report[x->sync->rank].excluded;
		worker_weights(&x->c.weights, workers, g->report, g->weight);
		n_filled++;
	}
}

/* ---- compression ----------------------------------------------------------------- */

/* Zeroes all except a fraction of the elements of each row. Vectors stay dense: they are small. */
static void sparsify_part(void *arg, const struct part *p)
{
	const struct visit *visit = arg;
	struct edit *x = visit->x;
	struct mat v = edit_pseudo_grad(x, p);
	float density = (float)x->c.density;
	if (p->t->ndim == 1 || skips_part(visit, p))
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

/* Adds the residual of earlier rounding, and keeps the error of this rounding as the new residual.
 * A worker that is excluded sends nothing, and keeps its residual. */
static void apply_error_feedback(void *arg, const struct part *p)
{
	const struct visit *visit = arg;
	struct edit *x = visit->x;
	const struct kernels *k = x->d->k;
	struct mat v = edit_pseudo_grad(x, p);
	struct mat error = mat(p->state[x->store_group[EDIT_RESIDUAL]], p->rows, p->cols);
	if (p->t->ndim == 1 || skips_part(visit, p) ||
		x->group[part_group(x, p)].excluded)
		return;
	k->add(x->d, v, v, error);
	k->copy(x->d, error, v);
	wire_round(&x->exchange.wire, v);
	k->sub(x->d, error, error, v);
}

void pseudo_grad_compress(struct edit *x, struct selection sel)
{
	struct visit v = {.x = x, .sel = sel};
	const unsigned grad_bit = STORE_BIT(x->grad_group);
	if (x->c.sparsify == EDIT_MAGNITUDE_TENSOR && x->c.density < 1)
		threshold_tensors(x, sel);
	else if (x->c.sparsify != EDIT_DENSE && x->c.density < 1)
		store_for_each_part(x->s, false, grad_bit, grad_bit, sparsify_part, &v);
	if (x->c.wire != EDIT_WIRE_FP32) {
		unsigned both = grad_bit | STORE_BIT(x->store_group[EDIT_RESIDUAL]);
		store_for_each_part(x->s, false, both, both, apply_error_feedback, &v);
	}
}
