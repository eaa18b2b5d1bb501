/* The gradient of a small model in 16 bits is near that in 32 bits of a CPU, tensor by tensor: a
 * product that overwrites what others have added takes it far away. A loss hears of that as of a
 * slightly worse gradient.
 * device: cpu cuda
 */
#include "tests/support/gradient.h"
#include "tests/support/models.h"
#include "tests/support/support.h"
#include "model/pass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, N_MICRO = 2, MEMORY = 1 << 24 };

/* One rank with all of the model. */
struct net {
	struct model m;
	struct mesh alone;
	struct device d;
	struct arena memory, micro, scratch;
	struct store *store;
	struct pass p;
	struct acts a;
	struct stage all;
};

static void fill_store(struct store *s)
{
	for (int i = 0; i < s->c.n_tensors; i++) {
		const struct tensor *t = &s->c.tensors[i];
		int64_t n = tensor_size(t);
		float *whole = xcalloc((size_t)n, sizeof(*whole));
		test_fill(whole, n, hash_str(t->name), 0.3);
		for (int64_t k = 0; k < n && t->ndim == 1; k++)
			whole[k] += 0.7f;
		store_write_rows(s, STORE_PARAM, i, 0, t->dims[0], whole);
		free(whole);
	}
	store_updated(s, false);
}

static void net_open(struct net *x, const struct model_config *m, enum device_kind kind,
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
		.microbatches = microbatches_assign(N_MICRO, x->alone.degree, 0, false),
		.copy = type};
	if (precision == PRECISION_FLOAT8)
		model_set_float8(&x->m, false);
	x->store = store_new(&c, &x->memory);
	fill_store(x->store);
	struct pass_config pc = {
		.mesh = &x->alone, .batch = BATCH, .seed = 3, .precision = precision};
	pass_init(&x->p, &x->m, &x->d, x->store, &pc, &x->memory);
	pass_recompute(&x->p, RECOMPUTE_NONE, 1, &x->micro); /* buffers of float8 */
	acts_alloc(&x->p, &x->all, &x->a, &x->micro);
}

static void net_close(struct net *x)
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

static void step(struct net *x)
{
	struct pass *p = &x->p;
	int64_t n = BATCH * (x->m.c.context + 1);
	int32_t ids[BATCH * 64];
	pass_loss_begin(p);
	pass_step_begin(p,
		&(struct pass_step){
			.loss_scale = 1.0f / (float)(N_MICRO * BATCH * x->m.c.context)});
	for (p->micro.number = 0; p->micro.number < N_MICRO; p->micro.number++) {
		p->micro.train = true;
		p->micro.first_sample = p->micro.number * BATCH;
		for (int64_t i = 0; i < n; i++)
			ids[i] = (int32_t)((double)x->m.c.vocab *
					   test_uniform(5, p->micro.number * n + i));
		pass_load(p, ids);
		model_forward(p, &x->all, &x->a);
		model_backward(p, &x->all, &x->a);
	}
	store_step_end(x->store);
}

static float *gradient(struct net *x, const struct part *o)
{
	size_t n_bytes = (size_t)(o->rows * o->cols) * sizeof(float);
	float *g = xmalloc(n_bytes + 1);
	device_get(&x->d, g, o->g, n_bytes);
	return g;
}

/* How far apart, of how long both are. */
static double apart(const float *a, const float *b, int64_t n, double least)
{
	double difference = 0, length = 0;
	for (int64_t i = 0; i < n; i++) {
		difference +=
			((double)b[i] - (double)a[i]) * ((double)b[i] - (double)a[i]);
		length += (double)a[i] * (double)a[i];
	}
	return sqrt(difference) / (sqrt(length) + least);
}

/* Each slice of each tensor. One that would be zero without rounding, as the bias of keys is,
 * counts as a small part of all. */
static void compare(struct net *plain, struct net *x, double bound)
{
	double worst = 0, least = 1e-3 * gradient_norm(plain->store);
	assert_int_equal(plain->store->n_updated, x->store->n_updated);
	for (int64_t i = 0; i < plain->store->n_updated; i++) {
		const struct part *o = &plain->store->updated[i];
		float *a = gradient(plain, o), *b = gradient(x, &x->store->updated[i]);
		double d = apart(a, b, o->rows * o->cols, least);
		free(a);
		free(b);
		if (!(d <= bound))
			fail_msg("%s, slice %d: %.3g apart", o->t->name, o->slice, d);
		worst = d > worst ? d : worst;
	}
	print_message("# gradients: %.2g apart at most\n", worst);
}

static enum device_kind asked(void)
{
	const char *name = getenv("PT_TEST_DEVICE");
	return name && !strcmp(name, "cuda") ? DEVICE_CUDA : DEVICE_CPU;
}

static void check(const struct model_config *m)
{
	static const struct {
		enum precision precision;
		enum dtype type;
		double bound;
	} of[] = {{PRECISION_FP32, DT_F32, 1e-5}, {PRECISION_BF16, DT_BF16, 0.15},
		{PRECISION_FLOAT8, DT_BF16, 0.9}};
	struct net plain, x;
	net_open(&plain, m, DEVICE_CPU, PRECISION_FP32, DT_F32);
	step(&plain);
	for (size_t i = 0; i < ARRAY_LEN(of); i++) {
		net_open(&x, m, asked(), of[i].precision, of[i].type);
		step(&x);
		compare(&plain, &x, of[i].bound);
		net_close(&x);
	}
	net_close(&plain);
}

/* A weight with two uses, and biases. */
TEST(gpt2)
{
	struct model_config c = small_gpt2;
	c.context = 32;
	check(&c);
}

/* Sums of several products in fp32, as slices have them. */
TEST(llama_in_slices)
{
	struct model_config c = small_llama;
	c.context = 32;
	c.ffn_dim = 64;
	c.virtual_degrees = "tp=2";
	check(&c);
}
