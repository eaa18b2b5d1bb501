/* foreign: reads and writes models of other programs. A file of any format opens as a view
 * (ckpt/view.h), and a view can be written in most formats, so formats convert to each other:
 * Hugging Face's safetensors, llm.c's model files, and PyTorch checkpoints, which are only read.
 *
 * Files are not trusted: lengths, offsets, types and shapes are checked before memory is allocated.
 * No call is collective. Functions that return int return 0, or -1 with *e set. */
#pragma once

#include "ckpt/view.h"
#include "model/model.h"

/* ---- formats.c: the table of formats --------------------------------------------------------- */

struct convert_opts {
	enum dtype dtype; /* type of the stored elements: fp32, bf16, fp16 */
	int64_t shard_bytes; /* maximum size of a safetensors file, if a tensor fits; 0: one file */
	bool padding; /* also write the rows that pad the vocabulary */
	/* huggingface: the model or tokenizer to copy tokenizer files from; NULL: none */
	const char *tokenizer_path;
};

/* Options for opening a file. NULL stands for all zeros. */
struct open_options {
	/* For formats that do not specify the whole model: Hugging Face's config.json, or a file of
	 * pt-train options. NULL: config.json next to the checkpoint, if it exists. */
	const char *config;
	/* Accept copies of a tied weight that differ; copies() of the view reports them. */
	bool copies_may_differ;
	/* Read the bias of a softmax router: only torchtitan has such a model. */
	bool reads_softmax_bias;
	/* Also read optimizer state from a file next to the model (container_trainer). */
	bool optimizer;
	/* Regular expressions for untrained tensors, which the optimizer may lack. NULL: none. */
	const struct strs *freeze;
	/* For a file of gradients: their model; else NULL. Missing gradients read as zeros. */
	const struct ckpt_view *gradients_of;
	bool *found; /* [tensor] output: the file has its gradient */
};

struct convert_format {
	const char *name, *help;
	/* Detects the format of a path by its name and first bytes. Returns data for open(), or
	 * NULL if it differs. */
	const void *(*probe)(const char *path);
	/* Returns true if an output of this name has this format. */
	bool (*is_name)(const char *path);
	/* Opens a view, which verifies checksums as it reads. `probed`: result of probe(). */
	int (*open)(struct ckpt_view *v, const char *path, const void *probed,
		const struct open_options *how, struct err *e);
	/* Writes a view with the model m to a path. */
	int (*save)(const struct ckpt_view *v, const struct model *m, const char *path,
		const struct convert_opts *o, struct err *e);
};

#define CONVERT_FORMATS(X) X(pt) X(torch) X(huggingface) X(llmc)
#define CONVERT_ROW(name) extern const struct convert_format convert_##name;
CONVERT_FORMATS(CONVERT_ROW)
#undef CONVERT_ROW
extern const struct convert_format *const convert_formats[]; /* ends with NULL */
extern const char *const
	convert_names[]; /* option values: "auto", names of formats; ends with NULL */

/* A format, and what its probe() returned. */
struct convert_kind {
	const struct convert_format *format;
	const void *probed;
};
/* Returns the format of an existing file; pt if no other format matches. */
struct convert_kind convert_detect(const char *path);
/* Returns the format of an output: the chosen one (index in convert_names), or by the path if 0. */
const struct convert_format *convert_output_format(int choice, const char *path);
/* Opens a file of any format as a view, for ckpt_view_close(). */
int convert_open(struct ckpt_view *v, const char *path, const struct open_options *how,
	struct err *e);
/* Opens a file of a known format. */
int convert_open_as(struct ckpt_view *v, const struct convert_kind *kind,
	const char *path, const struct open_options *how, struct err *e);
/* Writes a view. With the format pt, "-" is standard output. */
int convert_save(const struct ckpt_view *v, const struct convert_format *f,
	const char *path, const struct convert_opts *o, struct err *e);
/* Returns true if the name is of a tokenizer's directory or file, not of a checkpoint or shard. */
bool convert_is_tokenizer(const char *path);
/* Sets the view's vocabulary from a checkpoint, a shard, or tokenizer files; it must fit the model.
 * The caller frees *t after the view. */
int convert_set_vocabulary(
	struct ckpt_view *v, struct tokenizer *t, const char *path, struct err *e);
/* Returns the indices of n tensors in forward order of the model with these options, for free().
 * Tensors that the model lacks are last. */
int *convert_forward_order(const char *config, const struct ckpt_tensor *tensors, int n);

/* ---- huggingface.c -------------------------------------------------------------- */

/* Appends pt-train options for the model of a Hugging Face config.json, one per line. */
int convert_config_options(const char *path, struct str *out, struct err *e);

/* ---- files.c: operations on files of any format ---------------------------------- */

/* Opens a file of any format as a checkpoint to show and compare, for ckpt_close(). "-": a pt
 * checkpoint on standard input. */
int convert_open_ckpt(
	struct ckpt **c, const char *path, const struct open_options *how, struct err *e);
/* Opens the initial model of a run, in any format, with the tokenizer next to it. Warns once if
 * that tokenizer cannot be used. */
int convert_open_model(struct ckpt **c, const char *path, struct err *e);
/* Opens a model to sample from: a checkpoint, or a directory of another format with a model and its
 * tokenizer, equivalent to the output of pt-ckpt convert --vocabulary. */
int convert_open_for_sampling(struct ckpt **c, const char *path, struct err *e);
/* Computes the hash of a file's parameters. */
int convert_hash_file(
	const char *path, const struct open_options *how, uint64_t *hash, struct err *e);
/* Reads a whole file, and verifies all its checksums and the state of a checkpoint of pt. */
int convert_verify(const char *path, const struct open_options *how, struct err *e);
/* Writes (sum of weights[i] * file i) / divisor as a checkpoint. */
int convert_sum(int n, char **paths, const struct open_options *how,
	const double *weights, double divisor, const char *out, struct err *e);
/* Writes a selection of a file as a checkpoint. */
int convert_selection(const char *path, const struct open_options *how,
	const struct ckpt_selection *s, const char *out, struct err *e);

/* ---- hf_origin.c: the origin of a checkpoint (ckpt.h) ---------------------------- */

/* Sets *ids, for free(), to the tokens that end a generated text, from generation_config.json or
 * else config.json. Returns the number of tokens. */
int64_t hf_origin_end_tokens(const struct str *origin, uint32_t **ids);
/* Appends the chat template (Jinja), if there is one. */
void hf_origin_template(const struct str *origin, struct str *out);

/* ---- model_of.c: the model of a view --------------------------------------------- */

/* Computes the hash of the parameters rounded to `dtype`. Detects unreadable or unstorable values
 * before a file is created. */
int convert_hash(
	const struct ckpt_view *v, enum dtype dtype, uint64_t *hash, struct err *e);
/* Fails if the model options of two views differ, or their vocabularies if both have one. */
int convert_check_same_model(
	const struct ckpt_view *a, const struct ckpt_view *b, struct err *e);
/* Appends all model options of a config text, with the architecture's defaults filled in. `vocab`:
 * the vocabulary size if the text has none. Ignores tensors. */
int convert_options(const char *config, int64_t vocab, struct str *out, struct err *e);
/* Creates the model of a view's options, for model_release(). Fails if the view's tensors differ. */
int convert_model(const struct ckpt_view *v, struct model *m, struct err *e);
/* Initializes a view with the tensors and options of a model. The caller sets the rest. */
void convert_init_view(struct ckpt_view *v, const struct model *m, const char *path);
