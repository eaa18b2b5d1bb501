/* order: optimizers that number their parameters (order.c). */
#pragma once

#include "dialect/dialect.h"

struct torch_parameter {
	const struct torch_item *item;
	bool frozen; /* --freeze names it */
	/* The shape of a stack of experts that begins with `item`; ndim 0: the item's shape. */
	int ndim;
	int64_t dims[TORCH_MAX_DIMS];
};
/* Sets x->order by param_names, or else by the order of the parameters, the sizes of the groups
 * and the shapes of the moments. `list`: all parameters, in the model's order. Sets *is_ambiguous
 * if it fails because several assignments fit. */
int torch_names_set_order(struct torch_names *x, struct torch_file *f,
	const struct torch_parameter *list, int64_t n, bool *is_ambiguous, struct err *e);
