/* dialect: maps the tensor names of other programs to ours. Finds each tensor of a model in a list
 * of named items (archive.h), and derives the model from their shapes. A dialect is a source file
 * and a row of DIALECTS. */
#pragma once

#include "archive/archive.h"
#include "ckpt/view.h"
#include "model/model.h"

/* ---- names.c: which item is which tensor -------------------------------------------------- */

/* The name of an item without wrappers (module, _orig_mod, ...). */
struct torch_name {
	char *text;
	const struct torch_item *item;
};

struct torch_names {
	const struct torch_file *file;
	struct torch_name *v; /* sorted by text */
	int64_t n;
	const struct dialect *dialect;
	const struct torch_item *table; /* the token embedding */
	struct str prefix; /* start of the embedding's name, before dialect->table */
	/* [number] parameter, if the optimizer numbers its parameters; else NULL. */
	const struct torch_item **order;
	int64_t n_order;
};

/* Lists the names, and finds the token embedding: its name determines the dialect. */
int torch_names_open(struct torch_names *x, const struct torch_file *f, struct err *e);
/* Lists names that may lack the embedding: then the dialect is the one that names most of m. */
int torch_names_open_partial(struct torch_names *x, const struct torch_file *f,
	const struct model *m, struct err *e);
void torch_names_close(struct torch_names *x);
/* Returns the tensor of a parameter by its name in the dialect; NULL if it is missing. */
const struct torch_item *torch_names_find(const struct torch_names *x, const char *name);
/* Returns a tensor of a parameter's optimizer state: exp_avg, exp_avg_sq, step; NULL if it is
 * missing. `item`: the parameter, or NULL if only the optimizer uses this name. */
const struct torch_item *torch_names_find_state(const struct torch_names *x,
	const char *name, const struct torch_item *item, const char *what);
/* Returns true if an optimizer has any state of a parameter, except a step. */
bool torch_names_has_state(
	const struct torch_names *x, const struct torch_item *parameter);
/* Appends the keys of all optimizer states, except steps: "momentum_buffer (optimizer.muon)". */
void torch_names_describe_state(const struct torch_names *x, struct str *out);
/* Returns 1 if the file has moments, 0 if it has none, -1 if they are not supported. */
int torch_names_has_moments(const struct torch_names *x, struct err *e);
/* Finds the item BEGIN PREFIX NAME END; NULL if it is missing. PREFIX is the token embedding's
 * prefix, which may lack parts at its end, and with `shorter` also at its begin. */
const struct torch_item *torch_names_find_prefixed(const struct torch_names *x,
	const char *begin, const char *name, const char *end, bool shorter);
/* Returns the name without wrappers; for free(). */
char *torch_names_unwrap(const char *name);
/* Returns the fp32 parameters that DeepSpeed without ZeRO saved for a 16-bit model, in the order of
 * x->order, up to the first that is missing. Ends with NULL; for free(). */
const struct torch_item **torch_names_list_masters(const struct torch_names *x);
/* Returns the next item of a key of parameter groups from name *at on (or NULL), and moves *at. */
const struct torch_item *torch_names_next_option(
	const struct torch_names *x, const char *key, int64_t *at);
/* Returns the item optimizer.KIND.n.WHAT, KIND "state" or "param_groups"; NULL if it is missing. */
const struct torch_item *torch_names_find_numbered(
	const struct torch_names *x, const char *kind, int64_t n, const char *what);
/* Returns the first item with exactly this name, or NULL. */
const struct torch_item *torch_names_find_exact(
	const struct torch_names *x, const char *name);

/* ---- sources.c: where our tensors are -------------------------------------------------------- */

/* Parts of a fused QKV tensor. */
enum { NOT_FUSED, FUSED_Q, FUSED_K, FUSED_V };

/* The item that has one matrix of a stack of experts (NULL: zeros), and the matrix's first row among
 * all rows of the item, which is [rows][width], [experts][rows][width] or
 * [layers][experts][rows][width]. */
struct block_source {
	const struct torch_item *item;
	int64_t first;
};

/* The rows of an item that make up one of our tensors. */
struct tensor_source {
	const struct torch_item *item; /* NULL: zeros */
	int64_t first;		       /* row in the item, or column if transposed */
	int64_t layer;		       /* index, if the item has all layers; else -1 */
	bool transposed;
	int fused;  /* part of rows [key head][queries, key, value][width] */
	bool pairs; /* query and key rows: channels that rotate together are adjacent */
	bool rotates_partly; /* query and key rows: only some channels rotate */
	/* [t->blocks], for a stack of experts; `item` is then the first one. NULL: no stack. */
	struct block_source *blocks;
};

/* Returns the index of a head's channel in the row order of a source. */
int64_t source_channel(
	const struct model *m, const struct tensor_source *s, int64_t channel);
/* Returns true if rotary embedding applies to the rows of this tensor. */
bool has_rotated_rows(const struct tensor *t);

/* A model, and the sources of its tensors in a file. */
struct placement {
	const struct torch_names *names;
	const struct model *m;
	bool pairs;		       /* config.json has rope_interleaved */
	bool allows_missing;	       /* a missing tensor is not an error: zeros */
	struct tensor_source *sources; /* [group][tensor] */
};

enum { SOURCE_MODEL, SOURCE_MEANS, SOURCE_SQUARES, SOURCE_GROUPS };
extern const char *const source_groups[SOURCE_GROUPS]; /* model, exp_avg, exp_avg_sq */

struct tensor_source *get_source(const struct placement *x, int group, int tensor);
/* Allocates the sources of all tensors of x->m, and frees them. */
void placement_init(struct placement *x);
void placement_release(struct placement *x);
/* Sets the source of one matrix of a stack of experts. */
void set_block(
	struct placement *x, int group, int tensor, int block, struct block_source s);
/* Returns true for a tensor that no optimizer has: the bias of a router. */
bool is_buffer_of_router(const struct tensor *t);
/* Returns an item of a group, or NULL. `parameter`: the item of the parameter itself, or NULL. */
const struct torch_item *find_group_item(const struct placement *x, int group,
	const char *name, const struct torch_item *parameter);
/* Fails if a missing tensor is required: moments are not, since the optimizer may lack state. */
int report_missing(const struct placement *x, int group, const char *name, struct err *e);
/* Returns true for a tensor of ndim (1 or 2) dimensions with these sizes. */
bool has_shape(const struct torch_item *t, int ndim, int64_t rows, int64_t width);
/* Sets the error that an item has the wrong shape. Returns -1. */
int report_wrong_shape(
	const struct placement *x, const struct torch_item *t, struct err *e);

/* ---- shapes.c: the model that shapes determine ----------------------------------------------- */

/* Sets the fields of the configuration that shapes determine. */
void set_config_from_shapes(const struct torch_names *x, struct model_config *c);
/* Returns the number of key rows of a layer; 0: missing. */
int64_t count_key_rows(const struct torch_names *x, const struct model_config *c);
/* Sets qk_norm and the head size from the size of the query norm (0: none). */
void set_head_norm(struct model_config *c, int64_t size);
/* Returns the channels per head; 0: unknown. */
int64_t head_width(const struct model_config *c);

/* ---- stems.c: tensors by stems, and the classes of Hugging Face ------------------------------ */

struct stem {
	/* Names of a module in pt and in the other program. For a stack of experts, theirs has a * in the
	 * place of the number of an expert, and names the matrix of even blocks. */
	const char *ours, *theirs;
	bool transposed;
	bool no_bias;	    /* never has a bias */
	const char *second; /* module of the odd blocks of a stack; NULL: as `theirs` */
	const char *bias;   /* their name of the bias; NULL: ".bias" */
	const char *
		stack; /* their name of the whole stack, [experts][rows][width]; NULL: none */
};

struct scheme {
	const char *layers; /* name before the number of a layer */
	bool has_biases;    /* all modules have a bias, except no_bias */
	struct stem stems[24];
	/* Modules in the class's order of registration, which optimizers number; ends with NULL.
	 * Names of an expert's modules have a * for its number. Stacks of experts are listed,
	 * too. */
	const char *const *modules;
};
extern const char *const llama_modules[];
extern const struct scheme scheme_llama, scheme_gpt2, scheme_phi3, scheme_olmo2,
	scheme_gemma, scheme_glm4, scheme_mixtral, scheme_qwen_moe, scheme_dots1;
/* Returns the names of the Hugging Face class that a model is written as. */
const struct scheme *hf_scheme(const struct model *m);

/* FOREIGN_PARTS: queries, keys, values. */
enum { FOREIGN_PARTS = 3, FOREIGN_NAME = 128 };

/* A tensor of another program. It concatenates the outputs of our tensors part[0], part[1], ... */
struct foreign {
	char name[FOREIGN_NAME];
	int ndim;
	int64_t dims[3];
	bool transposed; /* [in, out] instead of [out, in] */
	int n_parts;
	int part[FOREIGN_PARTS]; /* indices in m->tensors; -1: a zero bias that our model lacks */
	int64_t outputs[FOREIGN_PARTS];
	/* One matrix of one expert, rows [first, first + outputs[0]) of part[0]; the matrices of a stack
	 * follow each other in its order. With three dimensions, a stack [experts][rows][width]. */
	bool stacked;
	int64_t first;
};

/* Lists all tensors in forward order; for free(). `vocab`: rows of the embedding and output
 * matrices. Returns their number, or -1 if the other program has no name for one of our tensors. */
int foreign_list(const struct scheme *s, const struct model *m, int64_t vocab,
	struct foreign **list, struct err *e);
/* Lists each stack of experts as one tensor, and other tensors as foreign_list() does. */
int foreign_list_stacks(const struct scheme *s, const struct model *m, int64_t vocab,
	struct foreign **list, struct err *e);
/* Returns the scheme of a class with the names of its tensors in the memory of transformers 5. */
const struct scheme *scheme_in_memory(const struct scheme *s);
/* Sets the other program's name of a whole stack of experts. Returns false if it has none. */
bool set_stack_name(const struct scheme *s, const char *ours, char name[FOREIGN_NAME]);
/* Returns a bound of the tensors that foreign_list() lists, except zero biases. */
int64_t foreign_max(const struct model *m);

/* How a class has its experts: as stacks, or as a tensor per matrix. The router is registered
 * before or after them. */
struct class_order {
	bool stacks, router_last;
};
/* Lists the distinct items of all parameters, in the order of scheme.modules. Returns n or -1. */
struct torch_parameter; /* order.h */
int64_t stems_list_in_order(const struct placement *x, struct class_order order,
	struct torch_parameter *out, struct err *e);
/* Returns the item of one of our tensors by the dialect's scheme; NULL if it is missing. */
const struct torch_item *stems_find_item(const struct torch_names *x, const char *ours);
/* Implements dialect.set_sources for a dialect whose names are a scheme of stems. */
int stems_set_sources(struct placement *x, int group, struct err *e);
/* Implements dialect.set_sources if no matrix is transposed. */
int stems_set_linear_sources(struct placement *x, int group, struct err *e);

/* ---- fused.c: one tensor for queries, keys and values, and one for gate and up --------------- */

struct fused_row {
	const char *ours;
	const char
		*theirs[2];  /* alternatives: a norm may be fused into the next linear */
	int part;	     /* FUSED_Q, ... */
	bool is_second_half; /* it is the second half of the rows */
	/* Names of the tensor of one expert, with a * in place of its number; NULL: none. */
	const char *experts[2];
};

struct fused_names {
	const char *layers; /* name before the number of a layer */
	bool stacked;	    /* one tensor may have all layers, without a number */
	const struct fused_row *rows;	/* tensors of a layer; ends with {0} */
	const struct fused_row *others; /* tensors outside of layers; ends with {0} */
	const struct torch_item *(*find)(
		const struct torch_names *x, const char *group, const char *name);
};

/* Implement set_config_from_shapes(), count_key_rows() and dialect.set_sources for fused names. */
void fused_set_config(const struct torch_names *x, struct model_config *c);
int64_t fused_count_key_rows(const struct torch_names *x, const struct model_config *c);
int fused_set_sources(struct placement *x, int group, struct err *e);

/* ---- groups.c -------------------------------------------------------------------------- */

/* Sets the settings of each of n parameters from its optimizer group. `means`: their exp_avg. */
int torch_read_settings(struct torch_file *f, const struct torch_names *x,
	const struct torch_item *const *means, int64_t n, struct ckpt_settings *out,
	struct err *e);
/* Adds to *optimizer the flags CKPT_MAXIMIZES, ... of settings that any group has. */
int torch_read_variant(struct torch_file *f, const struct torch_names *x,
	unsigned *optimizer, struct err *e);

/* ---- the table ---------------------------------------------------------------------------- */

struct dialect {
	const char *name;  /* name of the program, for messages */
	const char *table; /* suffix of the name of the token embedding */
	/* Suffixes of names in layer 0, or after a * in any layer, to tell dialects with the same
	 * table apart: the first row whose marks all exist matches. NULL: none. */
	const char *marks[2];
	int arch;
	/* NULL-terminated: prefixes of the model's tensors; wrapper modules, dropped from names. */
	const char *const *parts, *const *wrappers;
	const char *heads, *context; /* names of saved arguments; NULL: none */
	/* Tensor names: a scheme, or names of fused tensors; if both are NULL, our names. */
	const struct scheme *scheme;
	const struct fused_names *fused;
	/* Finds the item of one of our tensors, if there are neither; NULL: by our name. */
	const struct torch_item *(*find)(const struct torch_names *x, const char *ours);
	/* Sets the sources of all tensors of the model in a group. */
	int (*set_sources)(struct placement *x, int group, struct err *e);
	/* The rest is NULL if the optimizer state has PyTorch's layout, by names or numbers. */
	/* Returns 1 if there are moments, 0 if there are none, -1 if they are not supported. */
	int (*has_moments)(const struct torch_names *x, struct err *e);
	/* Reads a saved value of up to `max` numbers; sets *n to their number. */
	int (*read_numbers)(struct torch_file *f, const struct torch_names *x,
		const char *path, int64_t max, double *out, int64_t *n, struct err *e);
	/* Reads the number of optimizer steps. */
	int (*read_step)(struct torch_file *f, const struct torch_names *x, int64_t *step,
		struct err *e);
	/* Returns true if a tensor is a lower-precision copy of a parameter, to be ignored. */
	bool (*is_copy)(const struct torch_names *x, const char *name);
};

#define DIALECTS(X) \
	X(meta)     \
	X(phi3)     \
	X(glm4)     \
	X(gemma3)   \
	X(gemma2)   \
	X(olmo2)    \
	X(mixtral) X(dots1) X(qwen_moe) X(llama) X(gpt2) X(megatron) X(nanotron)
#define DIALECT_ROW(name) extern const struct dialect dialect_##name;
DIALECTS(DIALECT_ROW)
#undef DIALECT_ROW
extern const struct dialect *const dialects[]; /* ends with NULL */
