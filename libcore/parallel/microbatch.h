/*
 * How the micro-batches of a step are assigned to data-parallel ranks. No call is collective.
 *
 * In runs, every rank has neighbouring micro-batches, accumulates their gradients, and the ranks
 * exchange once a step. By turns (rank r has micro-batches r, r + ranks, ...) each round is
 * reduced over the ranks, so that a rank keeps its shard of the gradient and one micro-batch's
 * only. A rank that has none left in the last round still takes part in it, with a number of
 * n_micro or more, because other ranks need its part of the parameters; its results are
 * discarded.
 */
#ifndef PARALLEL_MICROBATCH_H
#define PARALLEL_MICROBATCH_H

#include "base/base.h"
#include "comm/mesh.h"

struct microbatches {
	int64_t n_micro; /* of a step, of all ranks */
	int ranks;	 /* data-parallel: dp x fsdp */
	bool by_turns;
};

/* For a mesh with these degrees, and a store with ZeRO stage `zero`. */
struct microbatches microbatches_assign(
	int64_t n_micro, const int degree[N_AXES], int zero);
/* How many micro-batches a rank computes; and the number, of a step, of its i-th. */
int64_t microbatches_count(const struct microbatches *d, int rank);
int64_t microbatches_index(const struct microbatches *d, int rank, int64_t i);
/* The data-parallel rank at a position of the mesh. */
int microbatches_rank(const int degree[N_AXES], const int at[N_AXES]);

#endif
