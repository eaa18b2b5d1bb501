/* The router of a mixture of experts: its settings, and the balance of the experts.
 *
 * The slots of an expert are counted as integers over a micro-batch or a sequence, so their fractions
 * f are equal on any layout. No gradient passes through a count: the gradient of a row's scores p is
 * the factor of the loss times E f. */
#include "model/router.h"

#include <math.h>

#include "comm/collective.h"

struct router model_router(const struct pass *p)
{
	const struct model_config *c = &p->m->c;
	return (struct router){.kind = (enum router_kind)c->router,
		.normalize = c->router_norm,
		.scale = (float)c->router_scale,
		.experts = c->experts,
		.per_row = c->experts_per_token,
		.groups = c->router_groups,
		.top_groups = c->router_top_groups,
		.seq_rows = p->rows / p->c.batch};
}

static bool has_balance_loss(const struct pass *p)
{
	return p->m->c.experts && p->m->c.balance_loss > 0;
}

static bool balances_model(const struct pass *p)
{
	return has_balance_loss(p) && p->m->c.balance_over == BALANCE_MODEL;
}

static bool balances_batch(const struct pass *p)
{
	return has_balance_loss(p) && p->m->c.balance_over == BALANCE_BATCH;
}

static bool balances_by_bias(const struct pass *p)
{
	return p->m->c.experts && p->m->c.router_bias_rate > 0;
}

void router_open(struct pass *p, struct arena *run)
{
	int64_t layers = p->m->c.layers, experts = p->m->c.experts;
	if (!experts || p->c.decode_rows)
		return;
	p->router.losses = arena_alloc(run, N_ROUTER_LOSSES * sizeof(struct exact));
	p->router.slots =
		arena_alloc(run, (size_t)router_counters(&p->m->c) * sizeof(int64_t));
	if (balances_model(p))
		p->router.model_fractions = arena_floats(run, experts);
	if (balances_batch(p))
		p->router.load = arena_floats(run, layers * experts);
}

/* Returns n integers of 64 bits as a matrix of floats, for kernels that copy or clear. */
static struct mat ints_mat(int64_t *x, int64_t n)
{
	return mat(x, 1, 2 * n);
}

struct mat router_alloc_slots(const struct pass *p, struct arena *micro)
{
	int64_t n = p->m->c.experts;
	if (!balances_model(p) || p->c.decode_rows)
		return no_mat();
	return ints_mat(arena_alloc(micro, (size_t)n * sizeof(int64_t)), n);
}

/* Sets fractions to the fractions of the slots counted in this step, unless the update is off. */
static void set_load(struct pass *p, const struct update *update)
{
	if (p->router.load)
		p->d->k->counts_fractions(p->d, p->router.load, p->router.slots,
			p->m->c.layers, p->m->c.experts, update);
}

void router_reset_load(struct pass *p)
{
	router_begin(p);
	set_load(p, NULL);
}

void router_begin(struct pass *p)
{
	if (p->router.losses)
		p->d->k->zero(
			p->d, mat(p->router.losses, 1, N_ROUTER_LOSSES * EXACT_FLOATS));
	if (p->router.slots)
		p->d->k->zero(p->d, ints_mat(p->router.slots, router_counters(&p->m->c)));
}

int64_t router_fraction_sets(const struct pass *p)
{
	if (!has_balance_loss(p) || balances_model(p) || balances_batch(p))
		return 0;
	return p->m->c.balance_over == BALANCE_SEQUENCE ? p->c.batch : 1;
}

bool router_counts(const struct pass *p)
{
	return p->micro.train && !p->micro.empty;
}

/* Sums a layer's counts over this rank's chunks, for n_sets sets of sequences. */
static void sum_chunks(struct pass *p, int64_t *sums, struct mat counts, int64_t n_sets)
{
	const int32_t *of = counts.p;
	int64_t n = p->m->c.experts;
	for (int c = 0; c < p->cp.local; c++)
		p->d->k->counts_sum(p->d, sums, of + c * p->c.batch * n, p->c.batch,
			p->c.batch / n_sets, n, c > 0);
}

/* Sums counts over the ranks that have the chunks of a micro-batch. */
static void sum_ranks(struct pass *p, int64_t *sums, int64_t n)
{
	if (p->cp.axis->size > 1)
		comm_run(p->cp.axis, COLL_ALLREDUCE,
			&(struct coll_args){.recv = sums,
				.count = n,
				.type = COMM_I64,
				.op = COMM_SUM});
}

void router_forward_begins(struct pass *p, const struct stage *st, struct mat slots)
{
	p->router.model_slots = slots;
	if (slots.p && st->embeds && router_counts(p))
		p->d->k->zero(p->d, slots);
}

void router_forward_ends(struct pass *p, const struct stage *st)
{
	struct mat slots = p->router.model_slots;
	if (slots.p && st->heads && router_counts(p))
		sum_ranks(p, slots.p, p->m->c.experts);
}

void router_backward_begins(struct pass *p, struct mat slots)
{
	if (slots.p)
		p->d->k->counts_fractions(p->d, p->router.model_fractions, slots.p, 1,
			p->m->c.experts, NULL);
}

void router_count(struct pass *p, int64_t layer, struct mat counts, struct mat fractions)
{
	int64_t n = p->m->c.experts, n_sets = max64(1, fractions.rows);
	size_t mark = arena_mark(p->d->scratch);
	int64_t *sums = arena_alloc(p->d->scratch, (size_t)(n_sets * n) * sizeof(*sums));
	p->d->k->counts_sum(p->d, p->router.slots + layer * n, counts.p, counts.rows,
		counts.rows, n, true);
	if (balances_model(p)) {
		p->d->k->counts_sum(p->d, p->router.model_slots.p, counts.p, counts.rows,
			counts.rows, n, true);
	} else if (fractions.p) {
		sum_chunks(p, sums, counts, n_sets);
		sum_ranks(p, sums, n_sets * n);
		p->d->k->counts_fractions(p->d, fractions.p, sums, n_sets, n, NULL);
	}
	arena_reset(p->d->scratch, mark);
}

const struct router_losses *router_losses(
	struct pass *p, int64_t layer, struct mat fractions, struct router_losses *to)
{
	const struct model_config *c = &p->m->c;
	const float *load = p->router.load ? p->router.load + layer * c->experts : NULL;
	bool has_loss = has_balance_loss(p) || c->router_z_loss > 0;
	*to = (struct router_losses){.f = balances_model(p) ? p->router.model_fractions
					  : load	    ? load
							    : fractions.p,
		.first_row = p->first_row,
		.seq_rows = fractions.rows > 1 ? p->rows / p->c.batch : 0,
		.weights = p->step->router_loss,
		.values = arena_floats(p->d->scratch, N_ROUTER_LOSSES * p->stream_rows)};
	return has_loss ? to : NULL;
}

void router_add_losses(struct pass *p, const struct router_losses *losses)
{
	bool others_add = (!p->tp.sp && p->tp.axis->rank > 0) || p->micro.empty;
	for (int i = 0; losses && !others_add && i < N_ROUTER_LOSSES; i++)
		p->d->k->exact_sum(p->d, &p->router.losses[i],
			losses->values + i * p->stream_rows, p->stream_rows);
}

/* ---- the capacity ------------------------------------------------------------------ */

int64_t router_capacity(const struct model_config *c, int64_t rows)
{
	return (int64_t)ceil(c->expert_capacity * (double)(rows * c->experts_per_token) /
			     (double)c->experts);
}

void router_drop(struct pass *p, struct mat kept, struct mat gates, const int32_t *slots,
	const int32_t *offsets)
{
	const struct model_config *c = &p->m->c;
	p->d->k->copy(p->d, kept, gates);
	if (router_counts(p))
		p->d->k->slots_drop(p->d, kept, &p->router.slots[c->layers * c->experts],
			gates, slots, offsets, c->experts * p->cp.local, p->rows,
			router_capacity(c, p->rows));
}

/* ---- state: biases and the load ------------------------------------------------------ */

struct bias_update {
	struct pass *p;
	const struct update *update;
};

static void update_bias_part(void *arg, const struct part *x)
{
	const struct bias_update *o = arg;
	struct pass *p = o->p;
	const struct model_config *c = &p->m->c;
	size_t mark = arena_mark(p->d->scratch);
	int64_t layer = x->t->unit - 1, n = x->rows * x->cols;
	if (layer < 0 || layer >= c->layers ||
		x->t != p->m->blocks[layer].sub[FFN].router_bias)
		return;
	struct mat change = mat_alloc(p->d->scratch, 1, c->experts, DT_F32);
	struct mat bias = mat(x->state[STORE_PARAM], 1, n);
	p->d->k->zero(p->d, change);
	p->d->k->bias_balance(p->d, change.p, p->router.slots + layer * c->experts,
		c->experts, (float)c->router_bias_rate, c->router_bias_center, o->update);
	p->d->k->add(p->d, bias, bias, mat((float *)change.p + x->row, 1, n));
	arena_reset(p->d->scratch, mark);
}

void router_update_state(struct pass *p, const struct update *update)
{
	struct bias_update o = {p, update};
	set_load(p, update);
	if (balances_by_bias(p))
		store_for_each_part(p->store, false, STORE_BIT(STORE_PARAM),
			STORE_BIT(STORE_PARAM), update_bias_part, &o);
}
