/* A model with experts: its gradients against finite differences of the loss, and a mixture of one
 * expert against a dense model.
 * isa: sse2 avx512
 */
#include "optim/optim.h"
#include "tests/support/kernels_ref.h"
#include "model/router.h"
#include "tests/support/models.h"
#include "tests/support/net.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct model_config small_experts(void)
{
	struct model_config c = small_llama;
	c.context = 32;
	c.experts = 8;
	c.experts_per_token = 3;
	c.expert_dim = 24;
	c.router_norm = true;
	c.router_scale = 1;
	return c;
}

static float *whole_gradient(struct net *x, const struct tensor *t)
{
	float *g = xcalloc((size_t)tensor_size(t), sizeof(*g));
	for (int64_t i = 0; i < x->store->n_updated; i++) {
		const struct part *o = &x->store->updated[i];
		for (int64_t r = 0; o->t == t && r < o->rows; r++)
			memcpy(g + tensor_index(t, o->slice, o->row + r),
				o->g + r * o->cols, (size_t)o->cols * sizeof(*g));
	}
	return g;
}

/* Returns the loss if `step` times the direction is added to the tensor's initial values. */
static double loss_at(struct net *x, int tensor, const float *direction, double step)
{
	const struct tensor *t = &x->m.tensors[tensor];
	float *w = net_values(t);
	for (int64_t i = 0; i < tensor_size(t); i++)
		w[i] += (float)(step * (double)direction[i]);
	store_write_rows(x->store, STORE_PARAM, tensor, 0, t->dims[0], w);
	store_updated(x->store, false);
	free(w);
	return net_step(x);
}

/* The slope of the loss along the gradient of each tensor is the gradient's length. */
static void check_gradients(const struct model_config *c)
{
	struct net x;
	double worst = 0;
	net_open(&x, c, DEVICE_CPU, PRECISION_FP32, DT_F32);
	for (int64_t i = 0; x.p.router.load && i < c->layers * c->experts; i++)
		x.p.router.load[i] = 0.1f * (float)(i % 3);
	net_step(&x);
	float **g = xcalloc((size_t)x.m.n_tensors, sizeof(*g));
	for (int i = 0; i < x.m.n_tensors; i++)
		g[i] = whole_gradient(&x, &x.m.tensors[i]);
	for (int i = 0; i < x.m.n_tensors; i++) {
		const struct tensor *t = &x.m.tensors[i];
		double length = 0;
		for (int64_t k = 0; k < tensor_size(t); k++)
			length += (double)g[i][k] * (double)g[i][k];
		length = sqrt(length);
		double step = 5e-5 / length; /* few tokens choose another expert */
		assert_true(t->frozen || length > 1e-4);
		for (int64_t k = 0; k < tensor_size(t); k++)
			g[i][k] /= (float)length;
		if (!t->frozen) {
			double more = loss_at(&x, i, g[i], step);
			double slope = (more - loss_at(&x, i, g[i], -step)) / (2 * step);
			loss_at(&x, i, g[i], 0);
			if (!(fabs(slope / length - 1) < 0.01))
				fail_msg("%s: slope %.6g, gradient %.6g", t->name, slope,
					length);
			worst = fmax(worst, fabs(slope / length - 1));
		}
		free(g[i]);
	}
	free(g);
	net_close(&x);
	print_message("# finite differences: %.2g apart at most\n", worst);
}

TEST(softmax_router)
{
	struct model_config c = small_experts();
	check_gradients(&c);
	c.router_norm = false;
	c.router_scale = 1.5;
	c.qk_norm = c.qk_norm_all = true;
	check_gradients(&c);
}

TEST(balance_losses)
{
	struct model_config c = small_experts();
	c.balance_loss = 3;
	check_gradients(&c);
	c.virtual_degrees = "tp=2,cp=2";
	c.balance_over = BALANCE_SEQUENCE;
	check_gradients(&c);
	c.balance_over = BALANCE_BATCH;
	check_gradients(&c);
	c.balance_over = BALANCE_MODEL;
	check_gradients(&c);
	c.balance_loss = 0;
	c.router_z_loss = 0.5;
	check_gradients(&c);
	c.router = ROUTER_SIGMOID;
	c.balance_loss = 3;
	check_gradients(&c);
}

TEST(slices_and_chunks)
{
	struct model_config c = small_experts();
	c.virtual_degrees = "tp=2,cp=2";
	check_gradients(&c);
}

TEST(dropped_slots)
{
	struct model_config c = small_experts();
	c.expert_capacity = 0.75;
	c.virtual_degrees = "tp=2,cp=2";
	check_gradients(&c);
	c.router_norm = false;
	c.shared_expert_dim = 16;
	c.shared_expert_gate = true;
	c.balance_loss = 3;
	check_gradients(&c);
}

/* Returns true if a slot is beyond the capacity: as many slots of its expert and chunk have larger
 * gates, or equal gates in earlier rows. */
static bool is_beyond(const struct pass *p, const int32_t *ids, const float *gates,
	int64_t slot, int64_t capacity)
{
	int64_t k = p->m->c.experts_per_token, chunk = slot / k / p->rows, before = 0;
	for (int64_t i = chunk * p->rows * k; i < (chunk + 1) * p->rows * k; i++)
		before +=
			ids[i] == ids[slot] &&
			(gates[i] > gates[slot] || (gates[i] >= gates[slot] && i < slot));
	return before >= capacity;
}

/* The slots that an expert drops, against a count of the slots before each one. */
TEST(capacity)
{
	enum { K = 2, MAX_SLOTS = 2 * NET_BATCH * NET_CONTEXT * K };
	static int32_t ids[MAX_SLOTS], pos[MAX_SLOTS], slots[MAX_SLOTS], offsets[64];
	static float gates[MAX_SLOTS], kept[MAX_SLOTS], slopes[MAX_SLOTS];
	struct model_config c = small_experts();
	const struct router how = {.experts = 8, .per_row = K};
	struct net x;
	c.experts_per_token = K;
	c.expert_capacity = 0.6;
	c.virtual_degrees = "cp=2";
	net_open(&x, &c, DEVICE_CPU, PRECISION_FP32, DT_F32);
	struct pass *p = &x.p;
	int64_t rows = 2 * p->rows, n = rows * K, n_dropped = 0;
	int64_t capacity = router_capacity(&c, p->rows);
	struct mat g = mat(gates, rows, K), k = mat(kept, rows, K),
		   d = mat(slopes, rows, K);
	assert_true(n <= MAX_SLOTS &&
		    capacity == (int64_t)ceil(0.6 * (double)p->rows * K / 8));
	for (int64_t i = 0; i < n; i += K) {
		ids[i] = (int32_t)(4 * test_uniform(7, i));
		ids[i + 1] = ids[i] + 1 + (int32_t)(3 * test_uniform(8, i));
		for (int j = 0; j < K; j++) /* with ties */
			gates[i + j] = (float)(1 + (int)(6 * test_uniform(9, i + j))) / 8;
	}
	p->d->k->sort_slots(p->d, pos, slots, offsets, ids, rows, p->rows, K, &how);
	p->micro.train = true;
	router_begin(p);
	router_drop(p, k, g, slots, offsets);
	for (int64_t i = 0; i < n; i++)
		slopes[i] = 1;
	p->d->k->slots_mask(p->d, d, k, g);
	for (int64_t i = 0; i < n; i++) {
		bool beyond = is_beyond(p, ids, gates, i, capacity);
		n_dropped += beyond;
		assert_true(kept[i] == (beyond ? 0 : gates[i]));
		assert_true(slopes[i] == (beyond ? 0 : 1));
	}
	assert_true(n_dropped > n / 4 && n_dropped < 3 * n / 4);
	assert_int_equal(p->router.slots[c.layers * c.experts], n_dropped);
	p->micro.train = false; /* an evaluation */
	router_drop(p, k, g, slots, offsets);
	assert_memory_equal(kept, gates, (size_t)n * sizeof(*gates));
	net_close(&x);
}

TEST(shared_expert_with_gate)
{
	struct model_config c = small_experts();
	c.virtual_degrees = "tp=2";
	c.router_norm = false;
	c.shared_expert_dim = 16;
	c.shared_expert_gate = true;
	check_gradients(&c);
}

TEST(sigmoid_router_with_groups)
{
	struct model_config c = small_experts();
	c.moe_from = 1;
	c.shared_expert_dim = 16;
	c.router = ROUTER_SIGMOID;
	c.router_scale = 2.5;
	c.router_groups = 4;
	c.router_top_groups = 2;
	check_gradients(&c);
	c.router_norm = false;
	check_gradients(&c);
}

/* Copies a tensor of a dense model into rows of a mixture's tensor, from row `first` on. */
static void copy_rows(
	struct net *to, struct tensor *t, int64_t first, const struct tensor *w)
{
	float *x = net_values(w);
	store_write_rows(
		to->store, STORE_PARAM, (int)(t - to->m.tensors), first, w->dims[0], x);
	free(x);
}

TEST(one_expert_is_a_dense_network)
{
	struct model_config c = small_llama, one = small_llama;
	struct net dense, mixture;
	one.experts = one.experts_per_token = 1;
	one.router_norm = true;
	one.router_scale = 1;
	net_open(&dense, &c, DEVICE_CPU, PRECISION_BF16, DT_BF16);
	net_open(&mixture, &one, DEVICE_CPU, PRECISION_BF16, DT_BF16);
	assert_true(net_loss(&dense) != net_loss(&mixture));
	for (int64_t l = 0; l < c.layers; l++) {
		struct sublayer_tensors *a = &dense.m.blocks[l].sub[FFN],
					*b = &mixture.m.blocks[l].sub[FFN];
		copy_rows(&mixture, b->w13, 0, a->in[0]);
		copy_rows(&mixture, b->w13, c.ffn_dim, a->in[1]);
		copy_rows(&mixture, b->w2, 0, a->out);
	}
	store_updated(mixture.store, false);
	assert_true(net_loss(&dense) == net_loss(&mixture));
	net_close(&mixture);
	net_close(&dense);
}

/* ---- Muon ------------------------------------------------------------------------- */

/* Orthogonalizes g [r, c] in float64. */
static void orthogonalize(double *g, int64_t r, int64_t c)
{
	int64_t n = r * c, rows = min64(r, c);
	double *x = xcalloc((size_t)n, sizeof(*x)), sum = 0;
	for (int64_t i = 0; i < n; i++)
		sum += g[i] * g[i];
	for (int64_t i = 0; i < n; i++)
		x[r > c ? i % c * r + i / c : i] = g[i] / (sqrt(sum) + 1e-7);
	ref_orthogonalize(x, rows, n / rows);
	for (int64_t i = 0; i < n; i++)
		g[i] = x[r > c ? i % c * r + i / c : i];
	free(x);
}

/* Compares an update with the orthogonalized gradient of each of n blocks of rows. */
static double worst_of_blocks(
	const struct tensor *t, const float *before, const float *after, int n)
{
	int64_t rows = t->dims[0] / n, size = rows * t->dims[1];
	double *g = xcalloc((size_t)size, sizeof(*g)), worst = 0;
	for (int b = 0; b < n; b++) {
		for (int64_t i = 0; i < size; i++)
			g[i] = (double)before[b * size + i];
		orthogonalize(g, rows, t->dims[1]);
		for (int64_t i = 0; i < size; i++)
			worst = fmax(worst, fabs((double)after[b * size + i] - g[i]));
	}
	free(g);
	return worst;
}

/* Muon's update of each matrix of an expert, with slices; an expert without tokens has none. */
TEST(muon_of_each_expert)
{
	struct model_config c = small_experts();
	const struct optim_config muon = {.kind = OPTIMIZER_MUON, .matmul = DT_F32};
	struct net x;
	c.virtual_degrees = "tp=2";
	net_open(&x, &c, DEVICE_CPU, PRECISION_FP32, DT_F32);
	net_step(&x);
	struct tensor *stacks[] = {x.m.blocks[0].sub[FFN].w13, x.m.blocks[0].sub[FFN].w2};
	const int blocks[] = {2 * (int)c.experts, (int)c.experts};
	float *before[2];
	for (int i = 0; i < 2; i++)
		before[i] = whole_gradient(&x, stacks[i]);
	struct matrices *all =
		matrices_open(&muon, optimizers[OPTIMIZER_MUON]->matrix, x.store, &x.d);
	matrices_update(all);
	for (int i = 0; i < 2; i++) {
		float *after = whole_gradient(&x, stacks[i]);
		double worst = worst_of_blocks(stacks[i], before[i], after, blocks[i]);
		if (!(worst < 1e-4))
			fail_msg("%s: %.3g from an expert's matrix", stacks[i]->name,
				worst);
		assert_true(worst_of_blocks(stacks[i], before[i], after, 1) > 0.1);
		free(before[i]);
		free(after);
	}
	const double rate = optimizers[OPTIMIZER_MUON]->matrix->rate(
		&muon, x.m.blocks[0].sub[FFN].w13);
	assert_true(fabs(rate - 0.2 * sqrt(fmax((double)c.expert_dim, (double)c.dim))) <
		    1e-9);
	matrices_close(all);
	net_close(&x);
}
