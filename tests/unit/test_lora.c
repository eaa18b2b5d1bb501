/* Adapters (LoRA): gradients of A and B from the gradients of matrices. tests/cli/check_given.bats
 * has steps of PEFT. */
#include "check/check.h"
#include "tests/support/check_step.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct err e;

enum { N_ADAPTERS = 3, RANK = 3 };

/* Adds adapters to a matrix, a matrix with more columns than rows, and fused queries, keys and
 * values. zero: B = 0. along (may be NULL): h times this is added to all A and B. */
static void adapt(
	struct step *s, double by, bool zero, const struct gradients *along, double h)
{
	static const char *const names[N_ADAPTERS][ADAPTER_PARTS] = {
		{"layers.0.attention.wo.weight"}, {"layers.1.feed_forward.w2.weight"},
		{"layers.1.attention.wq.weight", "layers.1.attention.wk.weight",
			"layers.1.attention.wv.weight"}};
	struct adapter *list = xcalloc(N_ADAPTERS, sizeof(*list));
	struct tensor tensors[2 * N_ADAPTERS] = {0};
	float *values[2 * N_ADAPTERS];
	const int own = s->w.m.n_tensors;
	for (int k = 0; k < N_ADAPTERS; k++) {
		struct adapter *x = &list[k];
		int64_t rows = 0, columns = 0;
		*x = (struct adapter){
			.a = own + 2 * k, .b = own + 2 * k + 1, .scale = by * (1 + k)};
		for (int p = 0; p < ADAPTER_PARTS && names[k][p]; p++) {
			x->part[x->n_parts++] = step_tensor(s, names[k][p]);
			rows += s->w.m.tensors[x->part[p]].dims[0];
			columns = s->w.m.tensors[x->part[p]].dims[1];
		}
		for (int i = 0; i < 2; i++) {
			struct tensor *t = &tensors[2 * k + i];
			*t = s->w.m.tensors[x->part[0]];
			snprintf(t->name, sizeof(t->name), "adapter %d", 2 * k + i);
			t->dims[0] = i ? rows : RANK;
			t->dims[1] = i ? RANK : columns;
			float *v = values[2 * k + i] =
				xcalloc((size_t)tensor_size(t), sizeof(*v));
			if (!i || !zero)
				test_fill(v, tensor_size(t), (uint64_t)(90 + 2 * k + i),
					0.2);
			for (int64_t j = 0; along && j < tensor_size(t); j++)
				v[j] += (float)(h * (double)along->g[own + 2 * k + i][j]);
		}
	}
	weights_add_adapters(&s->w, list, N_ADAPTERS, tensors, values);
}

static void compute(struct step *s, const struct variant *how, struct gradients *g)
{
	reference_float64(&s->w, &s->batch, how, g);
}

static const struct variant whole = {.sequence = -1};

/* Along its gradient, the loss rises by the gradient's norm. The model's matrices have no
 * gradient. */
TEST(gradients_of_adapters)
{
	for (int zero = 0; zero < 2; zero++) {
		struct step s;
		struct gradients g, at[2];
		step_begin(&s, LLAMA);
		adapt(&s, 0.5, zero, NULL, 0);
		compute(&s, &whole, &g);
		for (int i = 0; i < own_tensors(&s.w); i++)
			assert_null(g.g[i]);
		for (int k = 0; k < N_ADAPTERS; k++) {
			const struct adapter *x = &s.w.adapters[k];
			const struct products a = products_of(
				g.g[x->a], g.g[x->a], tensor_size(&s.w.m.tensors[x->a]));
			assert_int_equal(a.aa > 0, !zero);
		}
		step_end(&s);
		for (int side = 0; side < 2; side++) {
			step_begin(&s, LLAMA);
			adapt(&s, 0.5, zero, &g, (side ? -2e-3 : 2e-3) / g.norm);
			compute(&s, &whole, &at[side]);
			step_end(&s);
		}
		assert_near((at[0].loss - at[1].loss) / 4e-3, g.norm, 1e-4 * g.norm);
		gradients_free(&g);
		gradients_free(&at[0]);
		gradients_free(&at[1]);
	}
}

/* Equal results: another scale, as a variant or in the adapters; single tensors; the trainer's
 * kernels. */
TEST(ways_to_the_same)
{
	struct step s, twice;
	struct gradients g, of_twice, some, trained;
	step_begin(&s, LLAMA);
	step_begin(&twice, LLAMA);
	adapt(&s, 0.5, false, NULL, 0);
	adapt(&twice, 1, false, NULL, 0);
	compute(&s, &(struct variant){.sequence = -1, .adapter_scale = 2}, &g);
	compute(&twice, &whole, &of_twice);
	assert_near(g.loss, of_twice.loss, 1e-6);
	assert_near(g.norm, of_twice.norm, 1e-5 * g.norm);
	bool *wanted = xcalloc((size_t)s.w.m.n_tensors, sizeof(*wanted));
	wanted[s.w.adapters[1].b] = true;
	compute(&twice, &(struct variant){.sequence = -1, .wanted = wanted}, &some);
	if (reference_trainer(&twice.w, &twice.batch, PRECISION_FP32, &trained, &e))
		fail_msg("%s", e.msg);
	for (int i = own_tensors(&s.w); i < s.w.m.n_tensors; i++) {
		const int64_t n = tensor_size(&s.w.m.tensors[i]);
		const struct products p = products_of(g.g[i], of_twice.g[i], n);
		const struct products q = products_of(trained.g[i], of_twice.g[i], n);
		assert_true(residual_of(&p, 1) < 1e-5);
		assert_true(residual_of(&q, 1) < 1e-5);
		if (i == s.w.adapters[1].b)
			assert_memory_equal(
				some.g[i], of_twice.g[i], (size_t)n * sizeof(float));
	}
	assert_null(some.g[s.w.adapters[0].a]);
	gradients_free(&g);
	gradients_free(&of_twice);
	gradients_free(&some);
	gradients_free(&trained);
	free(wanted);
	step_end(&s);
	step_end(&twice);
}
