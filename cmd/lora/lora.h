/*
 * lora: steps of PEFT's low-rank adapters (LoRA), whose files have the adapters only: A and B of each target module, and
 * the moments of these. The model is a base model, whose matrices W become W + scale B A. Functions that return int
 * return 0, or -1 with *e set.
 */
#pragma once

#include "dialect/dialect.h"
#include "foreign/foreign.h"
#include "reference/reference.h"

struct lora {
	bool used;    /* the files have adapters */
	char *config; /* path of adapter_config.json */
	double alpha;
	int64_t rank; /* 0: it differs between modules */
	bool is_zero; /* B of all adapters is: a wrong scale is a factor of all gradients of B */
	bool by_root; /* use_rslora: scale is alpha / sqrt(rank), else alpha / rank */
	struct json_t *json;
	struct ckpt_view base;
	bool has_base;
	struct model m;	      /* of the base */
	struct foreign *list; /* its tensors by Hugging Face's names */
	int n_list;
};

/* Reads adapter_config.json and opens the base model, if `path` has an adapter or a base is given (else NULL).
 * lora_close() in any case. */
int lora_open(struct lora *l, const char *path, const char *base,
	const struct open_how *how, struct err *e);
void lora_close(struct lora *l);
/* Opens a file of adapters as a view, whose tensors are NAME.lora_A and NAME.lora_B; or of their gradients, some of which
 * may be missing. */
int lora_view(struct ckpt_view *v, const struct lora *l, const char *path, bool gradients,
	struct err *e);
/* Reads the base model, and adds the adapters of the view. */
int lora_weights(struct weights *w, const struct lora *l, const struct ckpt_view *v,
	struct err *e);

/* Sets the scale of the adapter of a module, which has this rank. */
int lora_scale(const struct lora *l, const char *module, int64_t rank, double *scale,
	struct err *e);

/* Returns what a wrong scale has instead of the scale of the adapters if it is so many times it; NULL: nothing known. */
const char *lora_wrong_scale(const struct lora *l, double times);
