/* lora: training steps of PEFT's low-rank adapters (LoRA). The files have only the
 * adapters: A and B of each target module, and their moments. The base model's matrices W
 * become W + scale B A. Functions that return int return 0, or -1 with *e set. */
#pragma once

#include "dialect/dialect.h"
#include "foreign/foreign.h"
#include "reference/reference.h"

struct lora {
	bool used;    /* the files have adapters */
	char *config; /* path of adapter_config.json */
	double alpha;
	int64_t rank; /* 0: it differs between modules */
	bool is_zero; /* all B are 0: a wrong scale is then a factor of all gradients of B */
	bool is_rslora; /* use_rslora: scale = alpha / sqrt(rank), else alpha / rank */
	struct json_t *json;
	struct ckpt_view base;
	bool has_base;
	struct model m;	      /* the base model */
	struct foreign *list; /* [n_list]: the base model, with Hugging Face's names */
	int n_list;
};

/* Reads adapter_config.json and opens the base model, if `path` has an adapter or `base`
 * is not NULL. Call lora_close() in any case. */
int lora_open(struct lora *l, const char *path, const char *base,
	const struct open_options *how, struct err *e);
void lora_close(struct lora *l);
/* Opens adapters as a view with tensors NAME.lora_A and NAME.lora_B; or their gradients,
 * where tensors may be missing. */
int lora_open_view(struct ckpt_view *v, const struct lora *l, const char *path,
	bool gradients, struct err *e);
/* Reads the base model and adds the adapters of the view. */
int lora_read_weights(struct weights *w, const struct lora *l, const struct ckpt_view *v,
	struct err *e);

/* Sets the scale of a module's adapter of this rank. */
int lora_scale(const struct lora *l, const char *module, int64_t rank, double *scale,
	struct err *e);

/* Returns the known wrong scale that is `factor` times the right scale; NULL: none. */
const char *lora_wrong_scale(const struct lora *l, double factor);
