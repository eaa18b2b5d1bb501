/* Shared by the files about checkpoints of PyTorch. */
#ifndef CONVERT_TORCH_INTERNAL_H
#define CONVERT_TORCH_INTERNAL_H

#include "convert/convert.h"
#include "torch/torch.h"

/* ---- torch_names.c: which item is which tensor -------------------------------------------- */

/* Whose names the tensors of the model have. */
enum naming {
	NAMES_META, /* torchtitan and Meta: ours, but rows of wq and wk are in another order */
	NAMES_LLAMA, /* Hugging Face's LlamaForCausalLM */
	NAMES_GPT2 /* its GPT2LMHeadModel, or nanoGPT's, whose matrices are not transposed */
};

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
bool torch_names_has_moments(const struct torch_names *x);
/* Sets the order of the numbers that an optimizer has instead of names. `used`: the parameters. */
int torch_names_order(struct torch_names *x, struct torch_file *f,
	const struct torch_item *const *used, int64_t n, struct err *e);
/* The first item of the optimizer's groups of parameters with this key, such as lr; NULL: none has it. */
const struct torch_item *torch_names_group(const struct torch_names *x, const char *key);
/* The first item whose whole name is this one. */
const struct torch_item *torch_names_exact(const struct torch_names *x, const char *name);

/* ---- torch_config.c: the options of the model ------------------------------------------------ */

/* From the shapes, and from --config, or a config.json beside the checkpoint. */
int torch_config(struct model_config *c, struct torch_file *f,
	const struct torch_names *x, struct err *e);
/* The options of AdamW that the checkpoint has. */
int torch_config_optimizer(struct str *out, struct torch_file *f,
	const struct torch_names *x, struct err *e);

#endif
