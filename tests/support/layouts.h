/* Layouts for tests of law 1 (pt(7)): a table that combines every two techniques, and random
 * layouts. A layout is a model, and options as for pt-train. */
#pragma once

#include "engine/layout.h"

struct test_layout {
	const char *model; /* a name in layouts.c */
	char options[480];
};

extern const struct test_layout layouts[];
extern const int n_layouts;

/* Steps of a run. */
enum { LAYOUT_STEPS = 6 };

bool layout_has_experts(const struct test_layout *l);
/* Sets *l to the random layout number `index` of a seed: valid, with 1 to max_ranks ranks. */
void layout_random(struct test_layout *l, uint64_t seed, int64_t index, int max_ranks);
/* Sets *other to a random layout with the arithmetic of l: of experts, with another --ep. Returns
 * false if it finds none. */
bool layout_random_other(struct test_layout *other, const struct test_layout *l,
	uint64_t seed, int64_t index, int max_ranks);
/* The layout's options, resolved; -1 with *e set: the layout is invalid. */
int layout_options(const struct test_layout *l, struct train_opts *o, struct err *e);
int layout_ranks(const struct train_opts *o);
/* Returns true if a resolved layout can have --deal speed. */
bool layout_can_deal(const struct train_opts *o);
/* The options of the same run on one rank, as a text: runs with equal texts have equal bits,
 * whatever their layouts. */
void layout_arithmetic(const struct train_opts *o, struct str *text);
/* The options of such a text. */
void layout_control(const char *arithmetic, struct train_opts *o);

/* Techniques whose combinations are tested. Those of a group are mutually exclusive, and so are
 * some that require, or exclude, another. */
/* clang-format off */
#define TECHNIQUES(X) \
	X(GPT2, "gpt2", 0) X(LLAMA, "llama", 0) \
	X(TIED, "tied", 1) X(UNTIED, "untied", 1) \
	X(GROUPED, "grouped queries", 2) \
	X(DP, "dp", 3) \
	X(ZERO1, "zero 1", 4) X(ZERO2, "zero 2", 4) X(ZERO3, "zero 3", 4) \
	X(FLAT, "flat", 5) \
	X(RESHARD_NO, "no resharding", 6) X(KEEP_LAST, "keep-last", 6) \
	X(SP, "tp with sp", 7) X(NO_SP, "tp without sp", 7) \
	X(RING, "cp by a ring", 8) X(GATHER, "cp by a gather", 8) \
	X(GPIPE, "gpipe", 9) X(1F1B, "1f1b", 9) X(INTERLEAVED, "interleaved", 9) X(ZB_H1, "zb-h1", 9) \
	X(INTERLEAVED_ZB, "interleaved-zb", 9) X(ZBV, "zbv", 9) \
	X(SELECTIVE, "recompute selective", 10) X(MATMULS, "recompute matmuls", 10) X(FULL, "recompute full", 10) \
	X(UNEVEN, "uneven micro-batches", 11) \
	X(NO_ASYNC, "tp without async", 12) \
	X(OFF_STATE, "offload optimizer", 13) X(OFF_PARAMS, "offload params", 13) \
	X(OFF_GRADS, "offload grads", 16) \
	X(BF16, "bf16", 14) X(FP16, "fp16", 14) X(FLOAT8, "float8", 14) \
	X(RESIDUAL, "bf16 residual stream", 17) \
	X(SGD, "sgd", 15) X(MUON, "muon", 15)
/* clang-format on */

#define TECHNIQUE(name, ...) TECH_##name,
enum technique { TECHNIQUES(TECHNIQUE) N_TECHNIQUES };
#undef TECHNIQUE
extern const char *const technique_names[N_TECHNIQUES];

/* The bits 1 << technique of a layout. */
uint64_t layout_techniques(const struct train_opts *o);
/* Can a layout combine both? */
bool techniques_meet(enum technique a, enum technique b);
