/*
 * foreign: models of other programs. A file of any format is opened as a view (ckpt/view.h), and a view can be
 * written in most formats, so all formats convert to each other: safetensors with Hugging Face's names, llm.c's
 * model files, and checkpoints of PyTorch, which are only read.
 *
 * Files are not trusted: lengths, offsets, types and shapes are checked before memory is allocated.
 * No call is collective. Functions that return int return 0, or -1 with *e set.
 */
#pragma once

#include "ckpt/view.h"
#include "model/model.h"

/* ---- formats.c: the table of formats ---------------------------------------------------------- */

struct convert_opts {
	enum dtype dtype; /* of the stored numbers: fp32, bf16, fp16 */
	int64_t shard_bytes; /* of a safetensors file at most, if a tensor fits; 0: one file */
	bool padding;	     /* also the rows that pad the vocabulary */
	/* huggingface: a model or a tokenizer whose files of a tokenizer are copied; NULL: none */
	const char *tokenizer_of;
};

/* How files are opened; NULL stands for zeros. */
struct open_how {
	/* For formats whose files do not specify the whole model: Hugging Face's config.json, or a file with options
	 * of pt-train. NULL: config.json beside the checkpoint, if there is one. */
	const char *config;
	/* A tied weight that is saved twice must have the same values; with this, copies() of the view reports them. */
	bool copies_may_differ;
	/* Reads the optimizer's state, too, from a file beside the model (container_trainer). */
	bool optimizer;
	/* Regular expressions: tensors that the run does not train, which its optimizer may lack. NULL: none. */
	const struct strs *freeze;
	/* The file has gradients of the model of this view, perhaps without those of some tensors, which are zeros.
	 * Sets found[tensors of the opened view]. NULL: the file has a model. */
	const struct ckpt_view *gradients_of;
	bool *found;
};

struct convert_format {
	const char *name, *help;
	/* Returns what open() needs of a file or directory in this format, by its name and first bytes; NULL if it is
	 * in another one. */
	const void *(*probe)(const char *path);
	/* Is this the name of an output in this format? */
	bool (*is_name)(const char *path);
	/* Opens a view, which checks all of the file that has a checksum. `probed`: what probe() returned. */
	int (*open)(struct ckpt_view *v, const char *path, const void *probed,
		const struct open_how *how, struct err *e);
	/* `m` is the model of the view. */
	int (*save)(const struct ckpt_view *v, const struct model *m, const char *path,
		const struct convert_opts *o, struct err *e);
};

#define CONVERT_FORMATS(X) X(pt) X(torch) X(huggingface) X(llmc)
#define CONVERT_ROW(name) extern const struct convert_format convert_##name;
CONVERT_FORMATS(CONVERT_ROW)
#undef CONVERT_ROW
extern const struct convert_format *const convert_formats[]; /* ends with NULL */
extern const char
	*const convert_names[]; /* "auto", then those of the formats, for an option */

/* What an existing file is; pt if it is none of the others. */
struct convert_kind {
	const struct convert_format *format;
	const void *probed;
};
struct convert_kind convert_detect(const char *path);
/* The format of an output: that of the name if there is one, else by the path. */
const struct convert_format *convert_target(int choice, const char *path);
int convert_open(
	struct ckpt_view *v, const char *path, const struct open_how *how, struct err *e);
/* Opens a file whose kind is known. */
int convert_open_as(struct ckpt_view *v, const struct convert_kind *kind,
	const char *path, const struct open_how *how, struct err *e);
/* With the format pt, "-" is standard output. */
int convert_save(const struct ckpt_view *v, const struct convert_format *f,
	const char *path, const struct convert_opts *o, struct err *e);
/* Gives the view the vocabulary of a checkpoint, a shard, or the files of a tokenizer, which must be that of its model. *t is the
 * caller's. */
/* Is it a folder or a file of a tokenizer, by its name, and no checkpoint or shard? */
bool convert_is_tokenizer(const char *path);
int convert_vocabulary(
	struct ckpt_view *v, struct tokenizer *t, const char *path, struct err *e);
/* The numbers of n tensors in the order of the forward pass of the model of these options, allocated.
 * Those that the model does not have are last. */
int *convert_forward_order(const char *config, const struct ckpt_tensor *tensors, int n);

/* ---- huggingface.c -------------------------------------------------------------- */

/* Appends the options of pt-train for the model that a config.json of Hugging Face describes, one per line. */
int convert_config_options(const char *path, struct str *out, struct err *e);

/* ---- files.c: a file from files of any format ------------------------------------ */

/* A checkpoint of a file of any format, to be shown and compared. "-" is one of pt on standard input.
 * ckpt_close(). */
int convert_open_ckpt(
	struct ckpt **c, const char *path, const struct open_how *how, struct err *e);
/* What a new run begins with: a checkpoint, or a model of any format, with the tokenizer that is beside it. */
int convert_open_model(struct ckpt **c, const char *path, struct err *e);
/* What text is drawn from: a checkpoint, or a directory of another format with a model and its
 * tokenizer, as good as what pt-ckpt convert --vocabulary makes of it. */
int convert_open_speaker(struct ckpt **c, const char *path, struct err *e);
/* The hash of the parameters of a file. */
int convert_hash_of(
	const char *path, const struct open_how *how, uint64_t *hash, struct err *e);
/* Reads a file whole, and checks what it has checksums of. */
int convert_verify(const char *path, const struct open_how *how, struct err *e);
/* Writes the sum of weights[i] times file i, over the divisor, as a checkpoint. */
int convert_sum(int n, char **paths, const struct open_how *how, const double *weights,
	double divisor, const char *out, struct err *e);
/* Writes what is selected of a file as a checkpoint. */
int convert_selection(const char *path, const struct open_how *how,
	const struct ckpt_selection *s, const char *out, struct err *e);

/* ---- hf_origin.c: the origin of a checkpoint (ckpt.h) ---------------------------- */

/* Sets *ids, allocated, to the tokens that end what is generated: of generation_config.json,
 * else of config.json. Returns their number. */
int64_t hf_origin_ends(const struct str *origin, uint32_t **ids);
/* Appends the chat template, which is Jinja; nothing if there is none. */
void hf_origin_template(const struct str *origin, struct str *out);

/* ---- model_of.c: the model of a view --------------------------------------------- */

/* Reads the parameters, rounded to the type in which they are to be stored, and computes their hash: what
 * cannot be read or stored is found before a file is made. */
int convert_hash(
	const struct ckpt_view *v, enum dtype dtype, uint64_t *hash, struct err *e);
/* Checks that two views have the same options of the model, and the same vocabulary if both have one. */
int convert_same_model(
	const struct ckpt_view *a, const struct ckpt_view *b, struct err *e);
/* All options of the model that a config text describes, without the defaults of its architecture. `vocab`: of a
 * text that has none. The tensors need not be those of the model. */
int convert_options(const char *config, int64_t vocab, struct str *out, struct err *e);
/* From the options of the view, whose tensors must be those of the model. model_free(). */
int convert_model(const struct ckpt_view *v, struct model *m, struct err *e);
/* A view of a file with the tensors of the model and its options; the other members are the
 * caller's. */
void convert_view(struct ckpt_view *v, const struct model *m, const char *path);
