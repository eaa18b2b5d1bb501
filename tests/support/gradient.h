/* Of a store, when a step has ended. */
#ifndef TESTS_GRADIENT_H
#define TESTS_GRADIENT_H

#include "parallel/store.h"

/* Collective over the store's world. The norm of the whole gradient. */
double gradient_norm(struct store *s);

#endif
