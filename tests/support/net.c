/* A small model on one rank. */
#include "tests/support/net.h"
#include "tests/support/support.h"

#include <stdlib.h>

enum { MEMORY = 1 << 24 };

float *net_values(const struct tensor *t)
{
	int64_t n = tensor_size(t);
	float *whole = xcalloc((size_t)n, sizeof(*whole));
	test_fill(whole, n, hash_str(t->name), 0.3);
	for (int64_t k = 0; k < n && t->ndim == 1; k++)
		whole[k] += 0.7f;
	return whole;
}

static void fill_store(struct store *s)
{
	for (int i = 0; i < s->c.n_tensors; i++) {
		const struct tensor *t = &s->c.tensors[i];
		float *whole = net_values(t);
		store_write_rows(s, STORE_PARAM, i, 0, t->dims[0], whole);
		free(whole);
	}
	store_updated(s, false);
}

void net_open(struct net *x, const struct model_config *m, enum device_kind kind,
	enum precision precision, enum dtype type)
{
	struct device_options o = {.threads = 1, .exact = true};
	struct err e = {0};
	*x = (struct net){.all = {0, m->layers, true, true}};
	if (device_open(&x->d, kind, &o, &e) || model_init(&x->m, m, 0, &e))
		die_err(&e);
	x->d.tile_bytes = 1; /* the head adds its leaf up of tiles of the fewest rows */
	mesh_alone(&x->alone);
	device_arena_init(&x->d, &x->memory, "parameters", MEMORY);
	device_arena_init(&x->d, &x->micro, "activations", MEMORY);
	device_arena_init(&x->d, &x->scratch, "scratch", MEMORY);
	x->d.scratch = &x->scratch;
	struct store_config c = {.mesh = &x->alone,
		.device = &x->d,
		.tensors = x->m.tensors,
		.n_tensors = x->m.n_tensors,
		.n_units = x->m.n_units,
		.part = {.n = x->m.tp, .local = x->m.tp},
		.chunks = x->m.cp,
		.microbatches = microbatches_assign(NET_MICRO, x->alone.degree, 0, false),
		.copy = type};
	if (precision == PRECISION_FLOAT8)
		model_set_float8(&x->m, false);
	x->store = store_new(&c, &x->memory);
	fill_store(x->store);
	struct pass_config pc = {
		.mesh = &x->alone, .batch = NET_BATCH, .seed = 3, .precision = precision};
	pass_init(&x->p, &x->m, &x->d, x->store, &pc, &x->memory);
	pass_recompute(&x->p, RECOMPUTE_NONE, 1, &x->micro); /* buffers of float8 */
	acts_alloc(&x->p, &x->all, &x->a, &x->micro);
}

void net_close(struct net *x)
{
	struct comm *self = x->alone.world;
	store_free(x->store);
	acts_release(&x->a);
	pass_release(&x->p);
	device_arena_release(&x->d, &x->scratch);
	device_arena_release(&x->d, &x->micro);
	device_arena_release(&x->d, &x->memory);
	mesh_close(&x->alone);
	comm_free(self);
	device_close(&x->d);
	model_release(&x->m);
}

/* Runs the forward of all micro-batches and, with `train`, their backward. Returns the mean loss. */
static double run(struct net *x, bool train)
{
	struct pass *p = &x->p;
	int64_t n = NET_BATCH * (x->m.c.context + 1);
	int64_t targets = NET_MICRO * NET_BATCH * x->m.c.context;
	int32_t ids[NET_BATCH * (NET_CONTEXT + 1)];
	pass_loss_begin(p);
	const struct model_config *c = &x->m.c;
	float balance = (float)(c->balance_loss / (double)targets);
	if (c->balance_over == BALANCE_MODEL)
		balance /= (float)model_layers_of_kind(&x->m, 1);
	float router[N_ROUTER_LOSSES] = {
		balance, (float)(c->router_z_loss / (double)targets)};
	pass_step_begin(p, &(struct pass_step){.loss_scale = 1.0f / (float)targets,
				   .router_loss = {router[0], router[1]}});
	for (p->micro.number = 0; p->micro.number < NET_MICRO; p->micro.number++) {
		p->micro.train = train;
		p->micro.first_sample = p->micro.number * NET_BATCH;
		for (int64_t i = 0; i < n; i++)
			ids[i] = (int32_t)((double)x->m.c.vocab *
					   test_uniform(5, p->micro.number * n + i));
		pass_load(p, ids);
		model_forward(p, &x->all, &x->a);
		if (train)
			model_backward(p, &x->all, &x->a);
	}
	if (train)
		store_step_end(x->store);
	struct exact loss = pass_loss(p);
	double sum = exact_round(&loss) / (double)targets;
	for (int i = 0; train && x->m.c.experts && i < N_ROUTER_LOSSES; i++) {
		device_get(&x->d, &loss, &p->router.losses[i], sizeof(loss));
		sum += exact_round(&loss) * (double)router[i];
	}
	return sum;
}

double net_step(struct net *x)
{
	return run(x, true);
}

double net_loss(struct net *x)
{
	return run(x, false);
}
