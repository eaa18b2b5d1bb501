/*
 * planner: the formulas against memory of Megatron-LM on A100, which Korthikanti et al. published (2022,
 * arXiv 2205.05198), and with which github.com/calculon-ai/calculon compares itself
 * (calculon/llm/validation.py): 16 memories and 20 ratios of memory.
 */
#include "tests/support/support.h"

#include <math.h>

#include "plan/planner.h"

/* Table 2 of the paper: what a block keeps in 16 bits, with tensor parallelism alone, and with sequence
 * parallelism; and the same if attention, or the whole block, is recomputed. */
enum mode { NONE, SEQUENCE, SELECTIVE, SEQUENCE_SELECTIVE, FULL, N_MODES };
static const struct kept kept[N_MODES] = {
	[NONE] = {.dim = 17, .whole = 5, .scores = 5},
	[SEQUENCE] = {.dim = 17, .scores = 5},
	[SELECTIVE] = {.dim = 17, .whole = 5},
	[SEQUENCE_SELECTIVE] = {.dim = 17},
	[FULL] = {.dim = 1, .whole = 1},
};

/* Figure 1: GiB of a rank for parameters and optimizer, and activations. Figure 7: activations in percent of
 * those without recomputation. */
static const struct {
	const char *name;
	double layers, dim, heads;
	int pp, stages, micro;
	int64_t n_micro;
	double state, none, sequence_selective;
	double ratio[N_MODES];
} models[] = {
	{"22B", 48, 6144, 64, 1, 1, 4, 1, 45.5625, 59.25, 9.5625,
		{100, 66.84, 49.42, 16.18, 7.64}},
	{"175B", 96, 12288, 96, 8, 3, 1, 64, 45.5625, 66.84375, 12.3515625,
		{100, 62.04, 56.53, 18.49, 8.71}},
	{"530B", 105, 20480, 128, 35, 3, 1, 280, 31.640625, 114.0234375, 23.076171875,
		{100, 58.31, 62.04, 20.27, 9.42}},
	{"1T", 128, 25600, 160, 64, 1, 1, 512, 32.958984375, 131.25, 26.5625,
		{100, 58.31, 62.04, 20.27, 9.42}},
};
enum { N_MODELS = ARRAY_LEN(models) };

static struct shape shape_of_model(int i)
{
	struct shape s = {.layers = models[i].layers,
		.dim = models[i].dim,
		.heads = models[i].heads,
		.kv_dim = models[i].dim,
		.q_dim = models[i].dim,
		.ffn_dim = 4 * models[i].dim,
		.vocab = 51200,
		.context = 2048,
		.tied = true};
	s.block = 12 * s.dim * s.dim;
	return s;
}

static struct layout layout_of_model(int i)
{
	return (struct layout){.degree = {models[i].pp, 1, 1, 1, 8},
		.schedule = models[i].stages > 1 ? SCHEDULE_INTERLEAVED : SCHEDULE_1F1B,
		.stages = models[i].stages,
		.micro_batch = models[i].micro,
		.n_micro = models[i].n_micro};
}

/* The published state is that of the blocks. */
static struct memory memory_of(int i, enum mode mode)
{
	const struct practice p = {.param_bytes = 2,
		.grad_bytes = 4,
		.optimizer_bytes = 12,
		.gather_bytes = 2,
		.kept = &kept[mode]};
	struct shape s = shape_of_model(i);
	struct layout l = layout_of_model(i);
	struct memory m;
	l.n_micro = 1000;
	estimate_memory(&s, &l, &p, &m);
	return m;
}

static void near(double x, double published, double bound, const char *what, int i)
{
	double error = x / published - 1;
	print_message("  %-5s %-45s %8.2f, published %8.2f, error %5.1f %%\n",
		models[i].name, what, x, published, 100 * error);
	if (!(fabs(error) <= bound))
		fail_msg("%s of model %s is off by more than %g", what, models[i].name,
			bound);
}

TEST(memory_is_published)
{
	const double gib = 1 << 30;
	for (int i = 0; i < N_MODELS; i++) {
		struct memory none = memory_of(i, NONE);
		struct memory less = memory_of(i, SEQUENCE_SELECTIVE);
		near((none.params + none.grads + none.optimizer) / gib, models[i].state,
			0.05, "state, GiB", i);
		near((less.params + less.grads + less.optimizer) / gib, models[i].state,
			0.05, "state with sequence parallelism, GiB", i);
		near(none.activations / gib, models[i].none, 0.05, "activations, GiB", i);
		near(less.activations / gib, models[i].sequence_selective, 0.05,
			"activations with sequence parallelism, GiB", i);
	}
}

/* Without the block that is computed, which the paper does not count. */
TEST(ratios_are_published)
{
	static const char *const names[] = {"of activations, none, %",
		"sequence parallelism, %", "selective recomputation, %", "both, %",
		"full recomputation, %"};
	for (int i = 0; i < N_MODELS; i++)
		for (int mode = 0; mode < N_MODES; mode++)
			near(100 * memory_of(i, (enum mode)mode).activations /
					memory_of(i, NONE).activations,
				models[i].ratio[mode], 0.05, names[mode], i);
}
