/* Both architectures and the training step against an independent implementation, PyTorch
 * in float64: tests/golden/make_golden.py. From the same weights and windows it has the
 * gradient of the first step, and the losses, gradient norms and learning rates of all.
 * They must be met under all virtual degrees and micro-batches, with and without padding
 * of the vocabulary: the differences are those of float32 and of nothing else. */
#include "tests/support/support.h"
#include "plan/fit.h"
#include "data/offsets.h"
#include "engine/state.h"
#include "engine/step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Relative; of a tensor's gradient the norm of the difference over the norm. Measured on
 * three instruction sets: gradients 2e-6, losses 1.4e-7, norms 1.6e-6. */
static const struct {
	double gradient, loss, norm, lr;
} bound = {1e-5, 1e-6, 1e-5, 1e-7};

/* ---- a golden file --------------------------------------------------------------- */

struct golden {
	struct h5 *file;
	struct train_opts o;
	int32_t *windows; /* [step][batch][context + 1] */
	double *loss, *norm, *lr;
	bool counted; /* some tokens do not count */
};

/* Tokens of a step. */
static int64_t windows_size(const struct golden *g)
{
	return g->o.batch * (g->o.model.context + 1);
}

static void *get(struct golden *g, const char *path, enum h5_type type, int64_t n)
{
	struct err e = {0};
	void *data;
	if (h5_get(g->file, path, type, n, INT64_MAX, &data, NULL, &e))
		die_err(&e);
	return data;
}

static void *get_tensor(
	struct golden *g, const char *group, const char *name, enum h5_type type)
{
	char path[96];
	snprintf(path, sizeof(path), "%s/%s", group, name);
	return get(g, path, type, -1);
}

static int64_t golden_size(struct golden *g, const char *name)
{
	char path[96];
	struct h5_info info;
	struct err e = {0};
	snprintf(path, sizeof(path), "weights/%s", name);
	if (h5_info(g->file, path, &info, &e))
		die_err(&e);
	return info.n;
}

static void golden_open(struct golden *g, const char *name)
{
	char path[64];
	struct err e = {0};
	struct str config = {0};
	snprintf(path, sizeof(path), "tests/golden/%s.h5", name);
	if (h5_open(&g->file, path, &e) || h5_get_text(g->file, "config", &config, &e) ||
		opts_from_text(&train_program, &g->o, config.s, false, &e))
		die_err(&e);
	g->loss = get(g, "loss", H5_F64, g->o.steps);
	g->norm = get(g, "grad_norm", H5_F64, g->o.steps);
	g->lr = get(g, "lr", H5_F64, g->o.steps);
	int64_t n_tokens = g->o.steps * windows_size(g);
	uint16_t *tokens = get(g, "tokens", H5_U16, n_tokens);
	g->windows = xcalloc((size_t)n_tokens, sizeof(*g->windows));
	for (int64_t i = 0; i < n_tokens; i++)
		g->windows[i] = tokens[i];
	if (g->o.packing == PACKING_DOCUMENTS) {
		uint8_t *begins = get(g, "begins", H5_U8, n_tokens);
		for (int64_t i = 0; i < n_tokens; i++)
			g->windows[i] |= begins[i] ? DOCUMENT_BEGINS : 0;
		free(begins);
	}
	g->counted = h5_has(g->file, "context");
	if (g->counted) {
		uint8_t *context = get(g, "context", H5_U8, n_tokens);
		for (int64_t i = 0; i < n_tokens; i++)
			g->windows[i] |= context[i] ? TOKEN_CONTEXT : 0;
		free(context);
	}
	str_free(&config);
	free(tokens);
}

static void golden_close(struct golden *g)
{
	h5_close(g->file, &(struct err){0});
	free(g->windows);
	free(g->loss);
	free(g->norm);
	free(g->lr);
}

/* ---- a run that can be compared with it ------------------------------------------ */

/* What does not change what is computed, but for rounding. */
struct variant {
	const char *degrees;
	int64_t micro_batch, vocab_multiple;
};

/* Without data: the steps get their windows from the golden file. */
static void open_trainer(struct trainer *t, const struct golden *g,
	const struct variant *v, struct dataset *no_data)
{
	struct train_opts o = g->o;
	struct err e = {0};
	o.micro_batch = v->micro_batch;
	o.model.vocab_multiple = v->vocab_multiple;
	o.model.virtual_degrees = v->degrees;
	o.threads = 1;
	*no_data = (struct dataset){.tokens = {o.model.context + 1, 0},
		.readers = 1,
		.counted = g->counted}; /* as if one window */
	if (options_check(&o, &e) ||
		trainer_open(t, &o, comm_self("alone"), no_data, NULL, &e))
		die_err(&e);
}

static void close_trainer(struct trainer *t)
{
	struct comm *world = t->world;
	trainer_close(t);
	comm_free(world);
}

/* Golden tensors are those of the real vocabulary. The rows of padding follow them, and
 * get numbers that would be heard if anything listened. */
static void put_weights(struct trainer *t, struct golden *g)
{
	const double loud = 5;
	for (int64_t i = 0; i < t->store->n_held; i++) {
		const struct part *x = &t->store->updated[i];
		int64_t n = golden_size(g, x->t->name), size = tensor_size(x->t);
		float *from = get_tensor(g, "weights", x->t->name, H5_F32);
		from = xrealloc(from, (size_t)size * sizeof(*from));
		test_fill(from + n, size - n, 1, loud);
		for (int64_t r = 0; r < x->rows; r++)
			memcpy(x->state[STORE_PARAM] + r * x->cols,
				from + tensor_index(x->t, x->slice, x->row + r),
				(size_t)x->cols * sizeof(float));
		free(from);
	}
}

/* The gradient of a whole tensor, from the parts that the store has. */
static float *gradient_of(const struct trainer *t, const struct tensor *of)
{
	float *whole = xcalloc((size_t)tensor_size(of), sizeof(*whole));
	for (int64_t i = 0; i < t->store->n_updated; i++) {
		const struct part *x = &t->store->updated[i];
		for (int64_t r = 0; x->t == of && r < x->rows; r++)
			memcpy(whole + tensor_index(of, x->slice, x->row + r),
				x->g + r * x->cols, (size_t)x->cols * sizeof(float));
	}
	return whole;
}

/* ---- comparing ------------------------------------------------------------------- */

/* The largest differences of a case, to be printed. */
struct worst {
	double gradient, loss, norm;
	char tensor[64];
};

static void within(const char *run, const char *what, double error, double most)
{
	if (error <= most)
		return;
	print_error("%s: %s is off by %.3g, more than %g\n", run, what, error, most);
	fail();
}

static double relative(double x, double y)
{
	return fabs(x - y) / fabs(y);
}

/* A key bias b adds q.b to all scores of a query, and softmax does not see what is added
 * to all: the gradient is 0, and what is computed is rounding noise, here and in float64.
 * (AdamW divides it by its own size and makes steps of it, of which softmax sees as
 * little: losses and norms stay comparable.) Rotary positions turn each key by its own
 * angle after b was added, so there the gradient is one. */
static bool is_noise(const struct trainer *t, const struct tensor *of)
{
	size_t n = strlen(of->name), suffix = strlen("wk.bias");
	return !t->model.arch->rope && n > suffix &&
	       !strcmp(of->name + n - suffix, "wk.bias");
}

static void check_gradients(
	const struct trainer *t, struct golden *g, const char *run, struct worst *worst)
{
	for (int i = 0; i < t->model.n_tensors; i++) {
		const struct tensor *of = &t->model.tensors[i];
		if (of->frozen) /* the biases of routers */
			continue;
		int64_t n = golden_size(g, of->name);
		float *ours = gradient_of(t, of);
		double *golden = get_tensor(g, "gradients", of->name, H5_F64);
		if (is_noise(t, of))
			memset(golden, 0, (size_t)n * sizeof(*golden));
		double error = test_distance(ours, golden, n);
		if (is_noise(t, of))
			error /= g->norm[0]; /* nothing, beside all that is there */
		within(run, of->name, error, bound.gradient);
		if (error > worst->gradient) {
			worst->gradient = error;
			memcpy(worst->tensor, of->name, sizeof(worst->tensor));
		}
		for (int64_t j = n; j < tensor_size(of); j++)
			assert_true(ours[j] == 0); /* padding learns nothing */
		free(ours);
		free(golden);
	}
}

static void check_step(const struct step_result *r, const struct golden *g, int64_t step,
	const char *run, struct worst *worst)
{
	double loss = relative((double)r->loss, g->loss[step]);
	double norm = relative((double)r->grad_norm, g->norm[step]);
	char what[64];
	snprintf(what, sizeof(what), "the loss of step %lld", (long long)step + 1);
	within(run, what, loss, bound.loss);
	snprintf(what, sizeof(what), "the norm of step %lld", (long long)step + 1);
	within(run, what, norm, bound.norm);
	within(run, "the learning rate", relative((double)r->lr, g->lr[step]), bound.lr);
	worst->loss = fmax(worst->loss, loss);
	worst->norm = fmax(worst->norm, norm);
}

static void compare(
	struct golden *g, const char *name, const struct variant *v, struct worst *worst)
{
	struct trainer t;
	struct dataset no_data;
	struct step_result r;
	char run[128];
	snprintf(run, sizeof(run),
		"%s, virtual %s, micro-batch %lld, vocab-multiple %lld", name, v->degrees,
		(long long)v->micro_batch, (long long)v->vocab_multiple);
	open_trainer(&t, g, v, &no_data);
	put_weights(&t, g);
	for (int64_t step = 0; step < g->o.steps; step++) {
		step_run_on(&t, g->windows + step * windows_size(g), NULL, &r);
		check_step(&r, g, step, run, worst);
		if (step == 0)
			check_gradients(&t, g, run, worst);
	}
	close_trainer(&t);
}

/* ---- the tests ------------------------------------------------------------------- */

/* The models with grouped queries have two heads of keys and values, of which four slices
 * share one each. */
static const char *const degrees[] = {
	"tp=1,cp=1", "tp=2,cp=1", "tp=1,cp=2", "tp=2,cp=2", "tp=4,cp=1", "tp=4,cp=2"};

/* A norm of all heads is not computed in slices. */
static bool supports_degrees(const struct golden *g, const char *virtual_degrees)
{
	return !g->o.model.qk_norm_all || !strncmp(virtual_degrees, "tp=1,", 5);
}

static void agrees(void **state)
{
	const char *name = *state;
	struct golden g;
	struct worst worst = {0};
	golden_open(&g, name);
	for (size_t d = 0; d < ARRAY_LEN(degrees); d++)
		for (int64_t micro_batch = 1;
			micro_batch <= 4 && supports_degrees(&g, degrees[d]);
			micro_batch *= 2)
			compare(&g, name, &(struct variant){degrees[d], micro_batch, 1},
				&worst);
	golden_close(&g);
	print_message("# %s: gradients %.2g (%s), losses %.2g, norms %.2g\n", name,
		worst.gradient, worst.tensor, worst.loss, worst.norm);
}

/* 37 tokens in a table of 48 or 128; with two slices of 64 one has no token at all. */
static void ignores_padding(void **state)
{
	const char *name = *state;
	struct golden g;
	struct worst worst = {0};
	golden_open(&g, name);
	for (size_t d = 0; d < ARRAY_LEN(degrees); d++) {
		compare(&g, name, &(struct variant){degrees[d], 2, 16}, &worst);
		compare(&g, name, &(struct variant){degrees[d], 2, 128}, &worst);
	}
	golden_close(&g);
}

/* clang-format off */
#define CASE(name, fn, golden) {name, fn, NULL, NULL, (char[]){golden}}
/* clang-format on */

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE("GPT-2", agrees, "gpt2"),
		CASE("GPT-2, exact GELU, no biases, untied", agrees, "gpt2-plain"),
		CASE("Llama, grouped queries", agrees, "llama"),
		CASE("Llama, rope-scaling llama3, tied", agrees, "llama3"),
		CASE("Llama, rope-scaling linear, biases", agrees, "llama-bias"),
		CASE("Llama, biases of queries, keys and values, heads of their own size",
			agrees, "qwen2"),
		CASE("Llama, norms of queries and keys", agrees, "qwen3"),
		CASE("Llama, layers without positions", agrees, "smollm3"),
		CASE("GPT-2, documents", agrees, "gpt2-documents"),
		CASE("Llama, documents", agrees, "llama-documents"),
		CASE("GPT-2, some tokens count", agrees, "gpt2-counted"),
		CASE("Llama, documents, some tokens count", agrees, "llama-counted"),
		CASE("Llama, label smoothing and z-loss", agrees, "llama-smoothed"),
		CASE("Mixtral", agrees, "mixtral"),
		CASE("OLMoE: one norm of all heads, gates that are not normalized",
			agrees, "olmoe"),
		CASE("Qwen2-MoE: a shared expert with a gate", agrees, "qwen2-moe"),
		CASE("Qwen3-MoE, a loss that balances, z-loss of routers", agrees,
			"qwen3-moe"),
		CASE("dots1: sigmoid scores, groups of experts, biases", agrees, "dots1"),
		CASE("padding, tied", ignores_padding, "gpt2"),
		CASE("padding, untied", ignores_padding, "llama"),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
