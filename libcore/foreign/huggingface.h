/* Hugging Face models. Only files of this directory include it. */
#pragma once

#include "foreign/foreign.h"
#include "archive/safetensors.h"
#include "dialect/dialect.h"

#include <jansson.h>

#define HF_ONE_FILE "model.safetensors"
#define HF_INDEX_FILE "model.safetensors.index.json"

#define HF_POSITIONS "max_position_embeddings"
enum { HF_MAX_POSITIONS = 1 << 22 };

/* ---- hf_config.c: config.json ------------------------------------------------------ */

/* The model of a config.json, and properties of the model's files. */
struct hf_config {
	struct model_config c;
	bool attention_bias, mlp_bias; /* Llama: these modules have biases */
	bool rope_interleaved;	       /* channels that rotate together are adjacent */
	const struct scheme *scheme;   /* names of tensors */
};

/* The classes with Llama's keys in config.json. */
enum hf_class_id {
	HF_LLAMA,
	HF_MISTRAL,
	HF_QWEN2,
	HF_QWEN3,
	HF_SMOLLM3,
	HF_PHI3,
	HF_OLMO2,
	HF_GRANITE,
	HF_GEMMA2,
	HF_GEMMA3,
	HF_GLM4,
	HF_MIXTRAL,
	HF_OLMOE,
	HF_QWEN2_MOE,
	HF_QWEN3_MOE,
	HF_DOTS1,
	HF_CLASSES
};
struct hf_reader;
struct hf_class {
	const char *name, *type;
	enum arch_id arch;	     /* 0: ARCH_LLAMA */
	const struct scheme *scheme; /* NULL: scheme_llama */
	/* Defaults of keys: */
	int64_t kv_heads; /* 0: as many as heads */
	int64_t context;
	int64_t head_dim; /* 0: hidden_size / heads */
	double theta;
	double local_theta; /* theta of layers with a window; 0: all layers have `theta` */
	double eps;	    /* 0: 1e-6 */
	double rotary; /* fraction of channels that rotate; 0: the class has no such key */
	bool rope_pairs;     /* channels that rotate together are adjacent */
	bool plain_rope;     /* rope scaling is not supported */
	bool windows;	     /* the class has the key sliding_window */
	int64_t window;	     /* sliding_window; 0: none */
	int64_t window_from; /* max_window_layers: the first layer with a window */
	int64_t window_skip; /* every Nth layer has no window; 0: all have it */
	bool window_off;     /* use_sliding_window is false by default */
	bool tie;
	bool qkv_bias, qk_norm, no_rope_layers; /* the class always has these */
	bool qkv_switch; /* attention_bias is only for queries, keys and values; default true */
	bool attention_bias, mlp_bias; /* the class has these keys */
	const char *act_key, *act;     /* NULL: "hidden_act", "silu" */
	/* Reads the class's other keys; NULL: none. */
	int (*read)(const struct hf_reader *r, struct model_config *c);
};
extern const struct hf_class hf_classes[HF_CLASSES];

/* A key of pt-ckpt: the multiple to which readers pad the vocabulary; files lack these rows. */
#define HF_MULTIPLE_KEY "pt_vocab_multiple"
enum { MAX_MULTIPLE = 1 << 20 };

/* Reads config.json. Missing keys get the class's defaults. */
int hf_config_read(struct hf_config *h, const char *path, struct err *e);
/* Writes an object to a file, and frees it. */
int hf_json_write(const char *path, json_t *object, size_t flags, struct err *e);
/* Returns the multiple to which this model's vocabulary is padded. */
int64_t hf_vocab_multiple(const struct model *m);
/* Fails if no class supports the model; writes its config.json unless path is NULL. `vocab`: rows
 * of the embedding; `keys`: from hf_origin_keys(). */
int hf_config_write(const struct model *m, int64_t vocab, enum dtype dtype,
	const char *path, json_t *keys, struct err *e);
/* Hashes the options of the model, to detect a changed config.json. */
void hf_hash_options(const struct model *m, char out[static ST_DIGITS + 1]);

/* ---- hf_origin.c: a model's files except weights, options and vocabulary -------------- */

/* Appends the files of a directory that a run keeps, in the format of ckpt_view.origin. */
void hf_origin_read(const char *directory, struct str *out);
/* Appends the origin of a model without files: only its number of positions. */
void hf_origin_set_positions(int64_t positions, struct str *out);
/* Returns the files to write with a view, by name: from the directory (or NULL), else the view. */
json_t *hf_origin_collect(const struct ckpt_view *v, const char *directory);
/* Writes all files except config.json to a directory, and appends their paths to `written`. */
int hf_origin_save(
	const json_t *origin, const char *directory, struct strs *written, struct err *e);
/* Returns the keys of config.json that are not our options: the tokens that begin, end and pad a
 * text, and the number of positions. */
json_t *hf_origin_keys(
	const json_t *origin, const struct model *m, const struct tokenizer *t);

/* ---- safetensors_write.c ----------------------------------------------------------- */

/* A tensor to write. */
struct st_source {
	const char *name;
	int ndim;
	const int64_t *dims;
	int number; /* argument of st_write.write */
};

struct number_file;
struct st_write {
	const struct st_source *list; /* in the order of the file */
	int n;
	enum dtype dtype; /* fp32, bf16, fp16 */
	const char *options_xxh3, *param_hash;
	/* Appends all elements of a tensor to the file, in order. */
	int (*write)(void *arg, int number, struct number_file *f, struct err *e);
	void *arg;
};
int safetensors_write(const char *path, const struct st_write *w, struct err *e);
int64_t safetensors_bytes(const struct st_source *t, enum dtype dtype);

/* ---- hf_save.c --------------------------------------------------------------------- */

/* Implements convert_format.save. */
int hf_save(const struct ckpt_view *v, const struct model *m, const char *path,
	const struct convert_opts *o, struct err *e);
