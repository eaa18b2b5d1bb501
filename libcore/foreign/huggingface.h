/* Models of Hugging Face: GPT2LMHeadModel and LlamaForCausalLM. Only the files of this floor include it. */
#pragma once

#include "foreign/foreign.h"
#include "archive/safetensors.h"
#include "dialect/dialect.h"

#include <jansson.h>

#define HF_ONE_FILE "model.safetensors"
#define HF_INDEX_FILE "model.safetensors.index.json"

#define HF_POSITIONS "max_position_embeddings"
enum { HF_MOST_POSITIONS = 1 << 22 };

/* ---- hf_config.c: config.json ------------------------------------------------------ */

/* What config.json says beside the model. */
struct hf_config {
	struct model_config c;
	bool attention_bias, mlp_bias; /* Llama: these modules have biases */
	bool rope_interleaved; /* channels that are rotated together are neighbours */
	const struct scheme *scheme; /* names of tensors */
};

/* A class whose config.json has Llama's keys, and what is meant without a key. */
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
	HF_CLASSES
};
struct hf_reader;
struct hf_class {
	const char *name, *type;
	enum arch_id arch;	     /* 0: ARCH_LLAMA */
	const struct scheme *scheme; /* NULL: scheme_llama */
	int64_t kv_heads;	     /* 0: as many as heads */
	int64_t context;
	int64_t head_dim; /* 0: hidden_size / heads */
	double theta;
	double local_theta; /* of layers with a window, which have their own rotations; 0: they do not */
	double eps; /* 0: 1e-6 */
	double rotary; /* the part of the channels that is rotated, of a class with this key; 0: it has none */
	bool rope_pairs; /* channels that are rotated together are neighbours */
	bool plain_rope; /* rotations are not scaled */
	bool windows;	 /* has sliding_window */
	int64_t window;	 /* 0: there are none */
	int64_t window_from; /* if use_sliding_window: from layer max_window_layers on, which is that */
	int64_t window_skip; /* every Nth layer has no window; 0: all have it */
	bool window_off;     /* unless use_sliding_window, which is the default */
	bool tie;
	bool qkv_bias, qk_norm, no_rope_layers; /* has them always */
	bool qkv_switch; /* attention_bias is of queries, keys and values, and true without the key */
	bool attention_bias, mlp_bias; /* has these switches */
	const char *act_key, *act;     /* NULL: "hidden_act", "silu" */
	int (*read)(const struct hf_reader *r,
		struct model_config *c); /* other keys; NULL: none */
};
extern const struct hf_class hf_classes[HF_CLASSES];

/* A key of our own: their tables have no rows that pad the vocabulary, and the model that comes back has them. */
#define OUR_MULTIPLE "pt_vocab_multiple"
enum { MOST_MULTIPLE = 1 << 20 };

/* Keys that are absent have the defaults of the class. */
int hf_config_read(struct hf_config *h, const char *path, struct err *e);
/* Writes an object to a file, and frees it. */
int hf_json_write(const char *path, json_t *object, size_t flags, struct err *e);
/* The multiple that the rows of this model's tables are padded to. */
int64_t hf_vocab_multiple(const struct model *m);
/* Checks that the model can be one of these classes, and writes its config.json unless path is NULL.
 * `vocab`: rows of the embedding table; `keys`: of hf_origin_keys(). */
int hf_config_write(const struct model *m, int64_t vocab, enum dtype dtype,
	const char *path, json_t *keys, struct err *e);
/* The hash of the options of the model, by which a changed config.json is noticed. */
void hf_hash_options(const struct model *m, char out[static ST_DIGITS + 1]);

/* ---- hf_origin.c: what a model has beside weights, options and vocabulary ------------ */

/* Appends the files of a folder that a run keeps, as a text for ckpt_view.origin. */
void hf_origin_put(const char *folder, struct str *out);
/* The same of a model that comes from no folder: the number of positions. */
void hf_origin_make(int64_t positions, struct str *out);
/* What a view is written with, files by their names: those of the folder (NULL: none), then those of the view. */
json_t *hf_origin_of(const struct ckpt_view *v, const char *folder);
/* Writes all but config.json to a folder, and adds their names. */
int hf_origin_save(
	const json_t *origin, const char *folder, struct strs *made, struct err *e);
/* The keys of config.json that are not of our options: the tokens that begin, end and pad a text, and how many
 * positions there are. */
json_t *hf_origin_keys(
	const json_t *origin, const struct model *m, const struct tokenizer *t);

/* ---- safetensors_write.c ----------------------------------------------------------- */

/* A tensor to be written. */
struct st_source {
	const char *name;
	int ndim;
	const int64_t *dims;
	int number; /* what `give` calls it */
};

struct number_file;
struct st_write {
	const struct st_source *list; /* in the order of the file */
	int n;
	enum dtype dtype; /* fp32, bf16, fp16 */
	const char *options_xxh3, *param_hash;
	/* Puts all elements in order. */
	int (*give)(void *with, int number, struct number_file *f, struct err *e);
	void *with;
};
int safetensors_write(const char *path, const struct st_write *w, struct err *e);
int64_t safetensors_bytes(const struct st_source *t, enum dtype dtype);

/* ---- hf_save.c --------------------------------------------------------------------- */

/* As convert_format.save. */
int hf_save(const struct ckpt_view *v, const struct model *m, const char *path,
	const struct convert_opts *o, struct err *e);
