/*
 * dialect: what a program calls the tensors of a model, where they are in a list of named items (archive.h), and
 * what their shapes determine of the model. A dialect is a file and a row of DIALECTS.
 */
#pragma once

#include "archive/archive.h"
#include "ckpt/view.h"
#include "model/model.h"

/* ---- names.c: which item is which tensor -------------------------------------------------- */

/* The names of items, without the names of wrappers (module, _orig_mod, ...), sorted. */
struct torch_name {
	char *text;
	const struct torch_item *item;
};

struct torch_names {
	const struct torch_file *file;
	struct torch_name *v;
	int64_t n;
	const struct dialect *dialect;
	const struct torch_item *table; /* the token embedding */
	struct str prefix;		/* in front of its name */
	/* The optimizer has numbers instead of names: [number] parameter; else NULL. */
	const struct torch_item **order;
	int64_t n_order;
};

/* Finds the token embedding, and by its name whose the names are. */
int torch_names_open(struct torch_names *x, const struct torch_file *f, struct err *e);
/* Finds whose the names are even if the embedding is missing: most tensors of the model have a name of that dialect. */
int torch_names_open_some(struct torch_names *x, const struct torch_file *f,
	const struct model *m, struct err *e);
void torch_names_close(struct torch_names *x);
/* The item of a parameter by the name that its model has for it; NULL: there is none. */
const struct torch_item *torch_names_find(const struct torch_names *x, const char *name);
/* What the optimizer has of a parameter: exp_avg, exp_avg_sq, step; NULL: there is none. `item`: of the
 * parameter, or NULL if only the optimizer has it under this name. */
const struct torch_item *torch_names_state(const struct torch_names *x, const char *name,
	const struct torch_item *item, const char *what);
/* Returns whether an optimizer has a state of a parameter, with or without moments. */
bool torch_names_has_state(
	const struct torch_names *x, const struct torch_item *parameter);
/* Appends the keys of the states of all optimizers, except their steps: "momentum_buffer (optimizer.muon)". */
void torch_names_describe_state(const struct torch_names *x, struct str *out);
/* 1: it has moments; 0: none; -1: some that cannot be read. */
int torch_names_has_moments(const struct torch_names *x, struct err *e);
/* The item BEGIN PREFIX NAME END, where the prefix of the token embedding may lack parts at its end, and if
 * `shorter` at its begin; NULL: there is none. */
const struct torch_item *torch_names_look_up(const struct torch_names *x,
	const char *begin, const char *name, const char *end, bool shorter);
/* The name without the names of wrappers, allocated. */
char *torch_names_plain(const char *name);
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

/* ---- order.c: optimizers that number their parameters ------------------------------------------ */

struct torch_parameter {
	const struct torch_item *item;
	bool frozen; /* the caller knows that it is not trained */
};
/* Finds which parameter each number of the optimizer is, by param_names, else by the order of the parameters, the sizes
 * of the groups and the shapes of the moments. `list`: all parameters in the order of the model. */
int torch_names_order(struct torch_names *x, struct torch_file *f,
	const struct torch_parameter *list, int64_t n, struct err *e);

/* ---- sources.c: where our tensors are --------------------------------------------------------- */

/* The parts of a fused tensor of queries, keys and values. */
enum { NOT_FUSED, FUSED_Q, FUSED_K, FUSED_V };

/* The rows of an item that are the rows of one of our tensors. */
struct tensor_source {
	const struct torch_item *item; /* NULL: zeros */
	int64_t first;		       /* row of theirs, or column if transposed */
	int64_t layer;		       /* of all layers in one tensor; -1: it has one */
	bool transposed;
	int fused; /* rows are [key head][queries, key, value][width], and this is the part */
	/* Of rows of queries and keys: channels that are rotated together are neighbours; only some are rotated. */
	bool pairs, partly;
};

/* Returns where a channel of a head is in a tensor whose rows are in such an order. */
int64_t channel_of_source(
	const struct model *m, const struct tensor_source *s, int64_t channel);
/* Are the rows of this tensor rotated? */
bool has_rotated_rows(const struct tensor *t);

/* A model, and where its tensors are. */
struct placement {
	const struct torch_names *names;
	const struct model *m;
	bool pairs;		  /* config.json has rope_interleaved */
	bool some;		  /* tensors may be missing, in any group: zeros */
	struct tensor_source *of; /* [group][tensor] */
};

enum { SOURCE_MODEL, SOURCE_MEANS, SOURCE_SQUARES, SOURCE_GROUPS };
extern const char *const source_groups[SOURCE_GROUPS]; /* model, exp_avg, exp_avg_sq */

struct tensor_source *source_of(const struct placement *x, int group, int tensor);
/* Returns the item of a name in a group; NULL: there is none. `parameter`: its item in the group model, if known. */
const struct torch_item *source_find(const struct placement *x, int group,
	const char *name, const struct torch_item *parameter);
/* Reports a tensor that is missing. An optimizer may lack the state of parameters that are not trained: zeros. */
int source_missing(const struct placement *x, int group, const char *name, struct err *e);
bool source_has_shape(const struct torch_item *t, int ndim, int64_t rows, int64_t width);
int source_wrong_shape(
	const struct placement *x, const struct torch_item *t, struct err *e);

/* ---- shapes.c: what shapes determine ------------------------------------------------------------ */

/* Sets what shapes determine of the model. */
void names_shapes(const struct torch_names *x, struct model_config *c);
/* Returns the rows of the keys of a layer; 0: no tensor has them. */
int64_t names_key_rows(const struct torch_names *x, const struct model_config *c);
/* Sets the norms of queries and keys, of this size; 0: there are none. */
void set_head_norm(struct model_config *c, int64_t size);
/* Returns the channels of a head; 0: unknown. */
int64_t width_of_heads(const struct model_config *c);

/* ---- stems.c: tensors by stems, and the classes of Hugging Face ------------------------------------------ */

struct stem {
	const char *ours, *theirs;
	bool transposed;
	bool no_bias; /* a module that never has one */
};

struct scheme {
	const char *layers; /* in front of the names of a layer; with its number */
	bool biases;	    /* all modules have one, except no_bias */
	struct stem stems[18];
	/* Their modules in the order in which the class registers them, which an optimizer numbers; the last is NULL. */
	const char *const *modules;
};
extern const char *const llama_modules[];
extern const struct scheme scheme_llama, scheme_gpt2, scheme_phi3, scheme_olmo2,
	scheme_gemma, scheme_glm4;
extern const struct scheme
	*const hf_schemes[ARCHS]; /* of Hugging Face, per architecture */

/* The parts of a fused tensor: queries, keys, values. */
enum { FOREIGN_PARTS = 3, FOREIGN_NAME = 128 };

/* A tensor of another program. Its outputs are those of our tensors part[0], part[1], ..., one after
 * the other. */
struct foreign {
	char name[FOREIGN_NAME];
	int ndim;
	int64_t dims[2];
	bool transposed; /* [in, out] instead of [out, in] */
	int n_parts;
	int part[FOREIGN_PARTS]; /* numbers in m->tensors; -1: zeros, a bias that our model lacks */
	int64_t outputs[FOREIGN_PARTS];
};

/* The list of all tensors in forward order, allocated. `vocab`: rows of the embedding and output
 * tables. Returns their number, or -1 if this model has a tensor that the other program lacks. */
int foreign_list(const struct scheme *s, const struct model *m, int64_t vocab,
	struct foreign **list, struct err *e);

/* Lists the items of the parameters, each once, in the order of scheme.modules. Returns their number, or -1. */
int64_t stems_in_order(
	const struct placement *x, const struct torch_item **out, struct err *e);
/* Returns the item of one of our tensors, by the scheme of the dialect; NULL: there is none. */
const struct torch_item *stems_item(const struct torch_names *x, const char *ours);
/* As dialect.find, of a dialect with a scheme. */
int stems_find(struct placement *x, int group, struct err *e);
/* With matrices that are not transposed, whatever the scheme says. */
int stems_find_linear(struct placement *x, int group, struct err *e);

/* ---- fused.c: queries, keys and values are one tensor, gate and up are one ------------------------------ */

struct fused_row {
	const char *ours;
	const char
		*theirs[2]; /* two: with the norm in the layer after it, or as a module */
	int part;	    /* FUSED_Q, ... */
	bool second;	    /* in the second half of the rows */
};

struct fused_names {
	const char *layers;	      /* in front of the number of a layer */
	bool stacked;		      /* all layers may be one tensor, without a number */
	const struct fused_row *rows; /* of a layer; the last is {0} */
	const struct fused_row *others; /* the last is {0} */
	const struct torch_item *(*find)(
		const struct torch_names *x, const char *group, const char *name);
};

/* As names_shapes(), names_key_rows() and dialect.find, of a dialect with such names. */
void fused_shapes(const struct torch_names *x, struct model_config *c);
int64_t fused_key_rows(const struct torch_names *x, const struct model_config *c);
int fused_find(struct placement *x, int group, struct err *e);

/* ---- groups.c -------------------------------------------------------------------------- */

/* Sets the settings of the optimizer's group that each of n parameters is in, by the item of its exp_avg. */
int torch_group_settings(struct torch_file *f, const struct torch_names *x,
	const struct torch_item *const *means, int64_t n, struct ckpt_settings *out,
	struct err *e);
/* Sets CKPT_MAXIMIZES, ..., by the settings of any group. */
int torch_group_optimizer(struct torch_file *f, const struct torch_names *x,
	unsigned *optimizer, struct err *e);

/* ---- the table ---------------------------------------------------------------------------- */

struct dialect {
	const char *name; /* of the program, in messages */
	const char *
		table; /* the end of the name of the token embedding, which only this dialect has */
	/* Ends of names of the first layer that only this one has of dialects with this table; the first row with all of
	 * them is taken. NULL: none. */
	const char *marks[2];
	int arch;
	/* Lists that end with NULL: how names of tensors of the model begin; modules that wrap others, whose names are
	 * dropped. */
	const char *const *parts, *const *wrappers;
	const char *heads, *context; /* names of saved numbers; NULL: none */
	/* Names of tensors: `scheme` for stems_find(), or `fused`; neither: our names. */
	const struct scheme *scheme;
	const struct fused_names *fused;
	/* Sets the sources of all tensors of the model in a group. */
	int (*find)(struct placement *x, int group, struct err *e);
	/* What follows is NULL in a dialect that saves the state of an optimizer as PyTorch does, by names or numbers. */
	/* Returns 1 if there are moments, 0 if there are none, -1 if they cannot be read. */
	int (*has_moments)(const struct torch_names *x, struct err *e);
	/* Sets *n numbers that are saved under a path. */
	int (*numbers)(struct torch_file *f, const struct torch_names *x,
		const char *path, int64_t most, double *out, int64_t *n, struct err *e);
	/* Sets the number of steps of the optimizer. */
	int (*step)(struct torch_file *f, const struct torch_names *x, int64_t *step,
		struct err *e);
	/* Returns whether a tensor is a copy of a parameter in fewer bits, which is not read. */
	bool (*is_copy)(const struct torch_names *x, const char *name);
};

#define DIALECTS(X) \
	X(meta)     \
	X(phi3)     \
	X(glm4) X(gemma3) X(gemma2) X(olmo2) X(llama) X(gpt2) X(megatron) X(nanotron)
#define DIALECT_ROW(name) extern const struct dialect dialect_##name;
DIALECTS(DIALECT_ROW)
#undef DIALECT_ROW
extern const struct dialect *const dialects[]; /* ends with NULL */
