/* Names of torchtitan's mixtures of experts. Only files of this directory include it. */
#pragma once

#include "dialect/dialect.h"

/* Returns true for a tensor of experts, a router or a shared expert. */
bool titan_has_expert(const char *ours);
/* Returns the item of such a tensor, or the first of its items; NULL: it is missing. */
const struct torch_item *titan_find_expert(const struct torch_names *x, const char *ours);
/* Sets the source of such a tensor. Fails if it is missing or has the wrong shape. */
int titan_set_expert(struct placement *x, int group, int tensor, struct err *e);
