/* Steps of gradient descent over ranks along all axes but the pipeline's, and then decoding: the
 * loss, the norm of the gradient, the parameters and the logits have the bits of one rank.
 * ranks: 4
 */
#include "tests/support/gradient.h"
#include "tests/support/models.h"
#include "tests/support/ranks.h"
#include "model/generate.h"
#include "model/pass.h"

#include <math.h>
#include <string.h>

enum { BATCH = 2, N_MICRO = 3, STEPS = 3, MEMORY = 1 << 26, VOCAB = 61 };

/* How it is computed. */
struct layout {
	int dp, fsdp, cp, tp, zero;
	bool sp, gather_kv;
};

/* What is computed. */
struct trace {
	double loss[STEPS], norm[STEPS];
	uint64_t hash[STEPS];
	float logits[2][VOCAB]; /* after a text, and a token more */
};

struct run {
	struct model m;
	struct mesh mesh;
	struct device d;
	struct arena memory, micro, scratch;
	struct store *store;
	struct pass p;
	struct acts a;
	struct stage all;
	struct microbatches microbatches;
	int step;
};

static void open_store(struct run *r, const struct layout *l)
{
	int here = r->m.tp / l->tp;
	struct store_config c = {.mesh = &r->mesh,
		.device = &r->d,
		.n_units = r->m.n_units,
		.part = {.n = r->m.tp,
			.first = r->mesh.coord[AXIS_TP] * here,
			.local = here},
		.chunks = r->m.cp,
		.zero = l->zero,
		.bucket_bytes = 20000};
	tensors_place(r->m.tensors, r->m.n_tensors, &c.part);
	c.tensors = r->m.tensors;
	c.n_tensors = r->m.n_tensors;
	c.microbatches = r->microbatches =
		microbatches_assign(N_MICRO, r->mesh.degree, l->zero, false);
	r->store = store_new(&c, &r->memory);
	init_parts(r->store, 1);
	store_updated(r->store, false);
}

/* Collective over c. */
static void run_open(struct run *r, const struct model_config *m, struct comm *c,
	const struct layout *l)
{
	int degree[N_AXES] = {1, l->dp, l->fsdp, l->cp, l->tp};
	struct err e = {0};
	*r = (struct run){.all = {0, m->layers, true, true}};
	if (model_init(&r->m, m, 0, &e))
		die_err(&e);
	mesh_open(&r->mesh, c, degree);
	arena_init(&r->memory, "parameters", MEMORY);
	arena_init(&r->micro, "activations", MEMORY);
	arena_init(&r->scratch, "scratch", MEMORY);
	device_open_cpu(&r->d, 1);
	r->d.scratch = &r->scratch;
	open_store(r, l);
	struct pass_config pc = {.mesh = &r->mesh,
		.batch = BATCH,
		.seed = 3,
		.sp = l->sp,
		.async_tp = l->gather_kv,
		.gather_kv = l->gather_kv};
	pass_init(&r->p, &r->m, &r->d, r->store, &pc, &r->memory);
	acts_alloc(&r->p, &r->all, &r->a, &r->micro);
}

static void run_close(struct run *r)
{
	store_free(r->store);
	acts_release(&r->a);
	arena_release(&r->memory);
	arena_release(&r->micro);
	arena_release(&r->scratch);
	mesh_close(&r->mesh);
	model_release(&r->m);
}

static void load(struct pass *p, int step)
{
	int32_t ids[BATCH * 64];
	int64_t n = BATCH * (p->m->c.context + 1);
	for (int64_t i = 0; i < n; i++) {
		double u = test_uniform(5, (step * N_MICRO + p->micro.number) * n + i);
		ids[i] = (int32_t)((double)p->m->c.vocab * u * u);
	}
	pass_load(p, ids);
}

static void micro_batch(struct run *r, int64_t micro)
{
	struct pass *p = &r->p;
	p->micro.number = micro;
	p->micro.empty = micro >= N_MICRO;
	p->micro.train = true;
	p->micro.first_sample = micro * BATCH;
	load(p, r->step);
	model_forward(p, &r->all, &r->a);
	model_backward(p, &r->all, &r->a);
}

static void descend(struct store *s)
{
	for (int64_t i = 0; i < s->n_updated; i++) {
		const struct part *o = &s->updated[i];
		for (int64_t j = 0; j < o->rows * o->cols; j++)
			o->state[STORE_PARAM][j] -= 0.5f * o->g[j];
	}
	store_updated(s, false);
}

static void step(struct run *r, int i, struct trace *out)
{
	int rank = microbatches_rank(r->mesh.degree, r->mesh.coord);
	int64_t n = microbatches_count(&r->microbatches, rank);
	const struct pass_step begin = {.number = (uint32_t)i,
		.loss_scale = 1.0f / (float)(N_MICRO * BATCH * r->m.c.context)};
	r->step = i;
	pass_step_begin(&r->p, &begin);
	pass_loss_begin(&r->p);
	for (int64_t j = 0; j < n; j++)
		micro_batch(r, microbatches_index(&r->microbatches, rank, j));
	store_step_end(r->store);
	struct exact loss = pass_loss(&r->p);
	comm_sum_i64(r->mesh.world, (int64_t *)&loss, EXACT_WORDS);
	out->loss[i] = exact_round(&loss);
	out->norm[i] = gradient_norm(r->store);
	descend(r->store);
	out->hash[i] = store_hash(r->store);
}

/* All ranks draw the same text: shards are gathered, and slices summed, as in training. */
static void decode(struct run *r, struct trace *out)
{
	uint32_t ids[21];
	struct decoder *g = decoder_open(&r->m, &r->d, r->store, true);
	for (size_t i = 0; i < ARRAY_LEN(ids); i++)
		ids[i] = (uint32_t)(VOCAB * test_uniform(9, (int64_t)i));
	decoder_feed(g, ids, ARRAY_LEN(ids) - 1);
	memcpy(out->logits[0], decoder_logits(g), sizeof(out->logits[0]));
	decoder_feed(g, &ids[ARRAY_LEN(ids) - 1], 1);
	memcpy(out->logits[1], decoder_logits(g), sizeof(out->logits[1]));
	decoder_close(g);
}

/* Collective over c. */
static void train(const struct model_config *m, struct comm *c, const struct layout *l,
	struct trace *out)
{
	struct run r;
	memset(out, 0, sizeof(*out));
	run_open(&r, m, c, l);
	for (int i = 0; i < STEPS; i++)
		step(&r, i, out);
	decode(&r, out);
	run_close(&r);
}

/* ---- comparing ------------------------------------------------------------------- */

/* Collective over the world; every rank compares with a run of its own. */
static bool same(
	const struct model_config *m, const struct layout *l, const struct trace *one)
{
	struct trace many = *one;
	int size = l->dp * l->fsdp * l->cp * l->tp;
	struct comm *some = comm_split(world, world->rank < size ? 0 : -1, "some");
	if (some) {
		train(m, some, l, &many);
		comm_free(some);
	}
	bool wrong = memcmp(&many, one, sizeof(many)) != 0;
	if (wrong)
		print_error(
			"rank %d: virtual %s on dp=%d fsdp=%d cp=%d tp=%d, zero %d%s: "
			"loss %.9g %.9g, norm %.9g %.9g, logits %.9g %.9g\n",
			world->rank, m->virtual_degrees, l->dp, l->fsdp, l->cp, l->tp,
			l->zero, l->sp ? ", sp" : "", many.loss[0], one->loss[0],
			many.norm[0], one->norm[0], (double)many.logits[1][0],
			(double)one->logits[1][0]);
	return !wrong;
}

static const struct layout layouts[] = {
	{1, 1, 1, 2, 0, true, false},
	{1, 1, 1, 4, 0, true, false},
	{1, 1, 1, 4, 0, false, false},
	{1, 1, 2, 1, 0, true, false},
	{1, 1, 4, 1, 3, true, true},
	{1, 1, 4, 1, 0, true, false},
	{1, 1, 2, 2, 0, true, true},
	{1, 1, 2, 2, 2, false, false},
	{2, 1, 1, 2, 0, true, false},
	{2, 1, 2, 1, 1, true, false},
	{1, 2, 1, 2, 3, true, false},
	{1, 2, 2, 1, 2, true, true},
};

static void check(const struct model_config *m)
{
	static const struct layout alone = {1, 1, 1, 1, 0, false, false};
	struct trace one;
	struct comm *self = comm_self("self");
	train(m, self, &alone, &one);
	comm_free(self);
	assert_true(one.loss[STEPS - 1] < one.loss[0] && one.hash[0] != one.hash[1]);
	assert_true(isfinite(one.logits[0][0]) && one.logits[0][0] != one.logits[1][0]);
	for (size_t i = 0; i < ARRAY_LEN(layouts); i++)
		assert_on_all(same(m, &layouts[i], &one));
}

TEST(gpt2)
{
	struct model_config c = small_gpt2;
	c.dropout = 0.1;
	c.virtual_degrees = "tp=4,cp=4";
	check(&c);
}

TEST(llama)
{
	struct model_config c = small_llama;
	c.virtual_degrees = "tp=4,cp=4";
	check(&c);
}

TEST(one_kv_head)
{
	struct model_config c = small_llama;
	c.layers = 1;
	c.kv_heads = 1;
	c.tie = YES;
	c.bias = YES;
	c.virtual_degrees = "tp=4,cp=4";
	check(&c);
}

TEST(experts)
{
	struct model_config c = small_llama;
	c.experts = 8;
	c.experts_per_token = 3;
	c.expert_dim = 24;
	c.shared_expert_dim = 16;
	c.shared_expert_gate = true;
	c.moe_from = 1;
	c.router = ROUTER_SIGMOID;
	c.router_scale = 1.5;
	c.balance_loss = 0.1;
	c.virtual_degrees = "tp=4,cp=4";
	check(&c);
}

int main(void)
{
	ranks_open();
	return ranks_close(ranks_run());
}
