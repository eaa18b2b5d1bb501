/* The parameter store alone: a small model, and layouts of it, for tests of the store. */
#pragma once

#include "parallel/store.h"

enum {
	STORE_VIRTUAL_TP = 4,
	STORE_CHUNKS = 4,
	STORE_UNITS = 5,
	STORE_PER_BLOCK = 5,
	STORE_EXPERTS = 4, /* two stacks of them in units 1 and 3 */
	STORE_TENSORS = 3 + 3 * STORE_PER_BLOCK + 2 * 2
};

struct store_layout {
	int degree[N_AXES];
	int zero;
	bool flat;
	int64_t micros;
	enum offload offload;
	bool tile;
	int host_ranks; /* as if a host had so many; 0: all */
	int ep;		/* ranks that divide the experts of the stacks; 0: none do */
};

extern const struct store_layout store_layouts[];
extern const int n_store_layouts;
/* Layouts of two workers of local SGD. */
extern const struct store_layout store_workers[];
extern const int n_store_workers;

/* The tensors of the model; the first one has so many rows, or with 0 as usual. */
void store_table(struct tensor *list, int64_t rows);
/* Returns true if a leaf has no rows of an expert of a stack. */
bool store_expert_is_idle(
	const struct tensor *t, int64_t expert, int64_t micro, int chunk);
/* The first unit of pipeline stage `at` of n. */
int store_first_unit(int n, int at);
/* Does this rank have a use of a tensor? */
bool store_has_use(const struct mesh *m, const struct tensor *t, int use);
/* The unit that a slice is used with: the tensor's, or a tile's. */
int store_used_with(const struct store *s, const struct tensor *t, int virtual_slice);
