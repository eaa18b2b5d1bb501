/* Shared by the files about checkpoints of PyTorch. */
#ifndef FOREIGN_TORCH_H
#define FOREIGN_TORCH_H

#include "foreign/foreign.h"
#include "archive/archive.h"

/* ---- torch_names.c: which item is which tensor -------------------------------------------- */

/* Whose names the tensors of the model have. */
enum naming {
	NAMES_META, /* torchtitan and Meta: ours, but rows of wq and wk are in another order */
	NAMES_LLAMA, /* Hugging Face's LlamaForCausalLM */
	NAMES_GPT2, /* its GPT2LMHeadModel, or nanoGPT's, whose matrices are not transposed */
	NAMES_MEGATRON, /* Megatron-LM's GPTModel: fused, and layers may be one tensor */
	NAMES_NANOTRON	/* nanotron's Llama: fused, all queries in front of all keys */
};

/* The parts of a fused tensor of queries, keys and values. */
enum { NOT_FUSED = -1, FUSED_Q, FUSED_K, FUSED_V };

/* The names of items, without those of wrappers (module, _orig_mod, ...), sorted. */
struct torch_name {
	char *text;
	const struct torch_item *item;
};

struct torch_names {
	const struct torch_file *file;
	struct torch_name *v;
	int64_t n;
	enum naming naming;
	const struct torch_item *table; /* the token embedding */
	struct str prefix;		/* in front of its name */
	/* The optimizer has numbers instead of names: those of parameters in this order; else NULL. */
	const struct torch_item **order;
	int64_t n_order;
};

/* Finds the token embedding, and by its name whose the names are. */
int torch_names_open(struct torch_names *x, const struct torch_file *f, struct err *e);
void torch_names_close(struct torch_names *x);
/* The item of a parameter by the name that its model has for it; NULL: there is none. */
const struct torch_item *torch_names_find(const struct torch_names *x, const char *name);
/* What the optimizer has of a parameter: exp_avg, exp_avg_sq, step; NULL: there is none. `item`: of the
 * parameter, or NULL if only the optimizer has it under this name. */
const struct torch_item *torch_names_state(const struct torch_names *x, const char *name,
	const struct torch_item *item, const char *what);
/* 1: it has moments; 0: none; -1: some that cannot be read. */
int torch_names_has_moments(const struct torch_names *x, struct err *e);
/* The item BEGIN PREFIX NAME END, where the prefix of the token embedding may lack parts at its end, and if
 * `shorter` at its begin; NULL: there is none. */
const struct torch_item *torch_names_look_up(const struct torch_names *x,
	const char *begin, const char *name, const char *end, bool shorter);
/* Sets the order of the numbers that an optimizer has instead of names. `used`: the parameters. */
int torch_names_order(struct torch_names *x, struct torch_file *f,
	const struct torch_item *const *used, int64_t n, struct err *e);
/* DeepSpeed without ZeRO: the fp32 parameters of a model in 16 bits, in that order, as far as they are there; NULL behind
 * them. Allocated. */
const struct torch_item **torch_names_masters(const struct torch_names *x);
/* The value of a key in the next group of parameters that has it, from name *at on; NULL: no more. */
const struct torch_item *torch_names_group(
	const struct torch_names *x, const char *key, int64_t *at);
/* The item of number n of a kind, "state" or "param_groups", of an optimizer that has numbers; NULL: none. */
const struct torch_item *torch_names_numbered(
	const struct torch_names *x, const char *kind, int64_t n, const char *what);
/* The first item whose whole name is this one. */
const struct torch_item *torch_names_exact(const struct torch_names *x, const char *name);

/* ---- torch_megatron.c ----------------------------------------------------------------------- */

/* A tensor of Megatron-LM or nanotron that has one of ours. */
struct megatron {
	const struct torch_item *item; /* NULL: there is none */
	int64_t layer;		       /* of its first dimension; -1: it has none */
	int fused;
	bool second; /* in the second half of its rows */
	char name[96];
};
static inline bool names_are_fused(const struct torch_names *x)
{
	return x->naming >= NAMES_MEGATRON;
}
/* Finds ours in a group of the checkpoint ("exp_avg"; "": the parameters, in fp32 if the optimizer has them). */
void megatron_find(const struct torch_names *x, const char *ours, const char *group,
	struct megatron *out);
/* The number of layers, and the hidden sizes of the feed-forward layers and of queries, keys and values. */
void megatron_shapes(
	const struct torch_names *x, int64_t *layers, int64_t *ffn, int64_t *qkv);
/* The size of the norms of queries and keys; 0: there are none. */
int64_t megatron_head_norm(const struct torch_names *x);
/* Has it moments? -1: in buffers without names, which are refused. */
int megatron_has_moments(const struct torch_names *x, struct err *e);
/* Sets *n numbers of what all ranks have in common, such as iteration or args.seq_length. */
int megatron_numbers(struct torch_file *f, const struct torch_names *x, const char *path,
	int64_t most, double *out, int64_t *n, struct err *e);

/* ---- torch_config.c: the options of the model ------------------------------------------------ */

/* From the shapes, and from the file `given`, or a config.json beside the checkpoint (NULL). *pairs: channels that are
 * rotated together are neighbours. */
int torch_config(struct model_config *c, bool *pairs, struct torch_file *f,
	const struct torch_names *x, const char *given, struct err *e);
/* The options of AdamW that the checkpoint has. */
int torch_config_optimizer(struct str *out, struct torch_file *f,
	const struct torch_names *x, struct err *e);

/* ---- torch_groups.c -------------------------------------------------------------------------- */

/* Sets the weight decay of the optimizer's group that each parameter is in, by the item of its exp_avg; -1: not known. */
int torch_group_decays(struct torch_file *f, const struct torch_names *x,
	const struct torch_item *const *means, int64_t n, double *decays, struct err *e);

#endif
