/* Shared by the files about checkpoints of PyTorch. */
#pragma once

#include "dialect/dialect.h"
#include "foreign/foreign.h"

/* ---- torch_config.c: the options of the model ------------------------------------------------ */

/* From the shapes, and from the file `given`, or a config.json beside the checkpoint (NULL). *pairs: channels that are
 * rotated together are neighbours. */
int torch_config(struct model_config *c, bool *pairs, struct torch_file *f,
	const struct torch_names *x, const char *given, struct err *e);
/* The options of AdamW that the checkpoint has. */
int torch_config_optimizer(struct str *out, struct torch_file *f,
	const struct torch_names *x, struct err *e);
