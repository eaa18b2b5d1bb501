/* The gradient of a store, after a step. */
#pragma once

#include "parallel/store.h"

/* Collective over the store's world. The norm of the whole gradient. */
double gradient_norm(struct store *s);
