/* trainers: how other trainers compute and store, for the formulas of plan/planner.h. No call is
 * collective. */
#ifndef PLAN_TRAINERS_H
#define PLAN_TRAINERS_H

#include "engine/options.h"
#include "model/model.h"

struct layout; /* plan/planner.h */

/* The activations that a block keeps per token in one mode of recomputation. */
struct kept {
	/* values of the type of matmuls, per element of dim, of the keys, of the hidden layer */
	double dim, kv, gated, plain;
	double heads, scores; /* bytes per head, and per attention score */
	double whole; /* values per element of dim that tensor parallelism does not divide */
};

/* How a trainer computes and stores. Bytes are per parameter or per element; 0: none.
 * The values in trainers.c are fitted to published measurements. */
struct practice {
	double param_bytes, grad_bytes, optimizer_bytes, gather_bytes;
	double fixed_bytes; /* per rank, for its kernels and messages */
	double logit_bytes; /* per token and logit; 0: logits are computed in pieces */
	double rate, attention_rate; /* relative to the cluster's rates */
	double float8;		     /* speedup of the blocks' matmuls in float8 */
	double small;	     /* a matmul takes 1 + small/out + small/in times as long */
	double attention;    /* FLOPs of attention, in forwards: 2 of a causal half */
	double update_bytes; /* moved by the optimizer per parameter */
	/* moved by other kernels, per token and element of dim and of ffn */
	double dim_bytes, ffn_bytes;
	double tp_bytes;       /* sent per token and element of dim, over (n - 1) / n */
	double reduce_bytes;   /* sent per parameter to sum gradients, over (n - 1) / n */
	double reduce_exposed; /* fraction of a sum that backward does not hide */
	double step;	       /* fixed seconds per step */
	const struct kept *kept; /* [enum recompute] */
	double passes[4];	 /* [enum recompute], time of a block in forwards */
	bool overlap_tp;
};

enum trainer_kind { BY_PT, BY_MEGATRON, BY_TORCHTITAN, BY_NANOTRON, N_TRAINERS };
#define TRAINER_WORDS "pt", "megatron", "torchtitan", "nanotron"

/* Four of five measured values are within `low` to `high` times the predicted value. */
struct band {
	double low, high;
};

/* Sets *p to the practice of a trainer other than pt. */
void practice_init(
	enum trainer_kind kind, const struct train_opts *o, struct practice *p);
/* Returns true if the trainer is known to support a layout. */
bool trainer_allows(
	enum trainer_kind kind, const struct model *m, const struct layout *l);
/* Returns false for nanotron: its measured times are up to 13 times the fitted times. */
bool trainer_has_times(enum trainer_kind kind);
/* Returns the factors between which a trainer's measured times were, relative to the estimates.
 * The trainer must have times. */
struct band time_band(
	enum trainer_kind kind, const struct layout *l, int host_ranks, bool float8);
/* Returns the factors between which a trainer's measured memory was, relative to the estimate. */
struct band memory_band(enum trainer_kind kind);
/* Describes the measurements that the band of times is from; NULL: none were compared on this
 * GPU. */
const char *time_sources(enum trainer_kind kind, const char *gpu);
/* Returns the text before the band of memory, such as "memory is within". */
const char *memory_band_text(enum trainer_kind kind);
/* Prints " --micro-batch-size 1 ...": the layout as options of the trainer. */
void trainer_arguments(enum trainer_kind kind, const struct train_opts *o,
	const struct model *m, const struct layout *l, struct str *out);

#endif
