/* The optimizer of a run: applies a row of the table to this rank's shards in the store. */
#include "optim/optim.h"

#define OPTIMIZER_ROW(kind, name) [OPTIMIZER_##kind] = &optimizer_##name,
const struct optimizer *const optimizers[N_OPTIMIZERS] = {OPTIMIZERS(OPTIMIZER_ROW)};
#define OPTIMIZER_NAME(kind, name) #name,
const char *const optimizer_names[N_OPTIMIZERS + 1] = {OPTIMIZERS(OPTIMIZER_NAME) NULL};

struct optim {
	struct optim_config c;
	const struct optimizer *row;
	struct store *store;
	struct device *d;
	int group[OPTIM_MAX_STATE]; /* index of each state in the store; -1: none */
	struct matrices *matrices;  /* NULL: no tensor is updated as a matrix */
};

int optim_n_state(const struct optim_config *c)
{
	const struct optimizer *row = optimizers[c->kind];
	int n = 0;
	while (n < OPTIM_MAX_STATE && row->state[n])
		n++;
	return row->n_state ? row->n_state(c) : n;
}

void optim_add_groups(const struct optim_config *c, struct store_groups *g)
{
	for (int i = 0; i < optim_n_state(c); i++)
		store_groups_add(g, optimizers[c->kind]->state[i], STORE_OPTIMIZER);
}

struct optim *optim_open(const struct optim_config *c, struct store *s, struct device *d)
{
	struct optim *o = xcalloc(1, sizeof(*o));
	*o = (struct optim){.c = *c, .row = optimizers[c->kind], .store = s, .d = d};
	int n = optim_n_state(c);
	for (int i = 0; i < OPTIM_MAX_STATE; i++)
		o->group[i] =
			i < n ? store_groups_find(&s->c.groups, o->row->state[i]) : -1;
	if (o->row->matrix)
		o->matrices = matrices_open(&o->c, o->row->matrix, s, d);
	return o;
}

void optim_close(struct optim *o)
{
	if (o)
		matrices_close(o->matrices);
	free(o);
}

enum { MAX_PARTS = 64 };

/* The parts of one kernel call. */
struct batch {
	update_fn *fn;
	struct update_part part[MAX_PARTS];
	int n;
};

struct updating {
	struct optim *o;
	const struct update *hyper;
	struct batch vectors, matrices;
	bool is_last_pass; /* matrix_rule.end, after the matrices are updated */
};

static void flush_batch(const struct updating *u, struct batch *b)
{
	if (b->n)
		b->fn(u->o->d, b->part, b->n, u->hyper);
	b->n = 0;
}

/* Adds a part to the batch. Updates all parts of the batch when it is full. */
static void add_part(const struct updating *u, struct batch *b, struct update_part part)
{
	/* an offloaded part is in device memory until this function returns */
	bool offloaded = u->o->store->c.offload != OFFLOAD_NONE;
	b->part[b->n++] = part;
	if (offloaded || b->n == MAX_PARTS)
		flush_batch(u, b);
}

static float *part_state(const struct optim *o, const struct part *x, int i)
{
	return o->group[i] < 0 ? NULL : x->state[o->group[i]];
}

/* Adds a part of a tensor to the kernel call for vectors or for matrices of this pass. */
static void update_part(void *updating, const struct part *x)
{
	struct updating *u = updating;
	const struct optim *o = u->o;
	const struct matrix_rule *rule = o->row->matrix;
	bool is_matrix = rule && rule->applies_to(x->t, o->store->c.n_units);
	struct update_part part = {.p = x->state[STORE_PARAM],
		.m = part_state(o, x, 0),
		.v = part_state(o, x, 1),
		.g = x->g,
		.copy = x->copy,
		.n = x->rows * x->cols,
		.decay = x->t->decay ? (float)o->c.decay : 0,
		.rate = x->t->lr_scale};
	if (!o->row->coupled)
		part.decay *= x->t->lr_scale;
	if (is_matrix && u->is_last_pass) {
		part.m = part.v = NULL;
		part.rate = (float)rule->rate(&o->c, x->t) * x->t->lr_scale;
	} else if (is_matrix) {
		part.p = x->g;
		part.copy = (struct mat){.p = NULL};
		part.v = NULL;
	}
	if (is_matrix || !u->is_last_pass)
		add_part(u, is_matrix ? &u->matrices : &u->vectors, part);
}

static void update_parts(struct updating *u, unsigned groups, unsigned overwritten)
{
	store_for_each_part(u->o->store, false, groups | STORE_BIT(STORE_GRAD),
		groups | overwritten, update_part, u);
	flush_batch(u, &u->vectors);
	flush_batch(u, &u->matrices);
}

/* Updates vectors in a first pass, matrices in a second. With offload, the first pass also writes
 * back matrices that are not updated yet, so 16-bit copies are made only at the end. */
void optim_update(struct optim *o, const struct update *hyper)
{
	const struct matrix_rule *rule = o->row->matrix;
	struct updating u = {.o = o, .hyper = hyper, .vectors = {.fn = o->row->update}};
	unsigned groups = STORE_BIT(STORE_PARAM);
	for (int i = 0; i < OPTIM_MAX_STATE; i++)
		groups |= o->group[i] < 0 ? 0 : STORE_BIT(o->group[i]);
	if (rule)
		u.matrices.fn = rule->begin;
	update_parts(&u, groups, rule ? STORE_BIT(STORE_GRAD) : 0);
	if (rule) {
		matrices_update(o->matrices);
		u.matrices.fn = rule->end;
		u.is_last_pass = true;
		update_parts(&u, STORE_BIT(STORE_PARAM), 0);
	}
	store_updated(o->store, !rule || !o->store->c.offload);
}

void optim_autotune(struct optim *o)
{
	if (o->matrices)
		matrices_autotune(o->matrices);
}
