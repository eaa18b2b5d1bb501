/* trainers: how others than pt compute and store, for the formulas of plan/planner.h. No call is collective. */
#ifndef PLAN_TRAINERS_H
#define PLAN_TRAINERS_H

#include "engine/options.h"
#include "model/model.h"

struct layout; /* plan/planner.h */

/* What a block keeps of a token, by the mode of recomputation: numbers of values
 * of the type of matmuls, per element of dim, of keys, and of the hidden layer (with a gate, or
 * plain); bytes per head, and per attention score. `whole`: values of dim that tensor parallelism
 * does not divide. */
struct kept {
	double dim, kv, gated, plain, heads, whole, scores;
};

/*
 * How a trainer computes and stores. Bytes are per parameter, or per element; what is zero is not there.
 * trainers.c has them; their values are fitted to published measurements.
 */
struct practice {
	double param_bytes, grad_bytes, optimizer_bytes, gather_bytes;
	double fixed_bytes; /* of a rank, for its kernels and messages */
	double logit_bytes; /* per token and logit; 0: a piece of them at a time */
	double rate, attention_rate; /* of matmuls and attention, over the cluster's */
	double float8;	  /* how many times as fast the blocks' matmuls are in float8 */
	double small;	  /* a matmul takes 1 + small/out + small/in times as long */
	double attention; /* FLOPs of attention, in forwards: 2 of a causal half */
	double update_bytes; /* moved by the optimizer per parameter */
	double dim_bytes,
		ffn_bytes; /* moved by other kernels, per token and element of dim and ffn */
	double tp_bytes;       /* sent per token and element of dim, over (n - 1) / n */
	double reduce_bytes;   /* sent per parameter to sum gradients, over (n - 1) / n */
	double reduce_exposed; /* the part of a sum that backward does not hide */
	double step;	       /* seconds of each step */
	const struct kept *kept; /* [by enum recompute] */
	double passes[4];	 /* of a block's kernels, in forwards; likewise */
	bool overlap_tp;
};

enum trainer_kind { BY_PT, BY_MEGATRON, BY_TORCHTITAN, BY_NANOTRON, N_TRAINERS };
#define TRAINER_WORDS "pt", "megatron", "torchtitan", "nanotron"

/* Four of five measured values are from `low` to `high` times the predicted one. */
struct band {
	double low, high;
};

/* Of that trainer, which is not pt, with the options' types. */
void practice_of(enum trainer_kind kind, const struct train_opts *o, struct practice *p);
/* Can it compute that layout, by what it is known to do? */
bool trainer_allows(
	enum trainer_kind kind, const struct model *m, const struct layout *l);
/* Returns false for nanotron: its measured times are up to 13 times the fitted ones. */
bool trainer_has_times(enum trainer_kind kind);
/* Of a trainer that has times. */
struct band time_band(
	enum trainer_kind kind, const struct layout *l, int host_ranks, bool float8);
struct band memory_band(enum trainer_kind kind);
/* Of which measurements a band is; NULL: none were compared on GPUs of that name. */
const char *trainer_times(enum trainer_kind kind, const char *gpu);
/* Before the band of its memory. */
const char *trainer_memories(enum trainer_kind kind);
/* " --micro-batch-size 1 ...": the layout as its own options. */
void trainer_arguments(enum trainer_kind kind, const struct train_opts *o,
	const struct model *m, const struct layout *l, struct str *out);

#endif
