/* Models of Hugging Face: GPT2LMHeadModel and LlamaForCausalLM. Only the files of this wing use it. */
#ifndef CONVERT_HUGGINGFACE_H
#define CONVERT_HUGGINGFACE_H

#include "convert/convert.h"
#include "convert/safetensors.h"

#include <jansson.h>

#define HF_ONE_FILE "model.safetensors"
#define HF_INDEX_FILE "model.safetensors.index.json"

/* ---- hf_config.c: config.json ------------------------------------------------------ */

/* What config.json says beside the model. */
struct hf_config {
	struct model_config c;
	bool attention_bias, mlp_bias; /* Llama: these modules have biases */
	bool rope_interleaved; /* nanotron: channels that are rotated together are neighbours */
};

/* Keys that are absent have the defaults of the class. */
int hf_config_read(struct hf_config *h, const char *path, struct err *e);
/* Writes an object to a file, and frees it. */
int hf_json_write(const char *path, json_t *object, size_t flags, struct err *e);
/* The multiple that the rows of this model's tables are padded to. */
int64_t hf_vocab_multiple(const struct model *m);
/* Checks that the model can be one of these classes, and writes its config.json unless path is NULL.
 * `vocab`: rows of the embedding table. */
int hf_config_write(const struct model *m, int64_t vocab, enum dtype dtype,
	const char *path, struct err *e);
/* The hash of the options of the model, by which a changed config.json is noticed. */
void hf_hash_options(const struct model *m, char out[static ST_DIGITS + 1]);

/* ---- hf_save.c --------------------------------------------------------------------- */

/* As convert_format.save. */
int hf_save(const struct ckpt_view *v, const struct model *m, const char *path,
	const struct convert_opts *o, struct err *e);

#endif
