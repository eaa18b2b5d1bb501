/* How the micro-batches of a step are assigned to data-parallel ranks. No call is collective.
 *
 * Contiguous: every rank accumulates the gradients of consecutive micro-batches, which are
 * reduced over the ranks once per step. Round-robin: rank r has micro-batches r, r + ranks, ...,
 * and each round is reduced, so that a rank keeps only its shard of the gradient (which may be
 * offloaded) and the gradient of one micro-batch. A rank without a micro-batch in the last round
 * computes one with an index of n_micro or more, since other ranks need its shard of parameters.
 *
 * With expert parallelism all ranks have the same number of turns, round-robin or not, since each
 * computes the experts that it holds for the other ranks of its group.
 *
 * By speed: a unit is the ranks that wait for each other within a step, a data-parallel rank or a
 * replica of hybrid sharding. All its ranks have the same number of turns, and units have
 * different numbers, from a table which may change between steps. Since a gradient is
 * an exact sum, its bits do not depend on the table. */
#pragma once

#include "base/base.h"
#include "comm/mesh.h"

struct microbatches {
	int64_t n_micro; /* per step, over all ranks */
	int ranks;	 /* data-parallel ranks: dp x fsdp */
	bool round_robin;
	bool lockstep; /* all ranks have the same number of turns: expert parallelism */
	/* By speed: [units + 1], the first turn of each unit among the turns of all units, which
	 * the caller owns; NULL: not by speed. */
	const int64_t *begin;
	int unit_ranks; /* data-parallel ranks of a unit */
};

/* Returns the assignment for the degrees of a mesh and the settings of a store. */
struct microbatches microbatches_assign(
	int64_t n_micro, const int degree[N_AXES], int zero, bool offloads_grads);
/* Returns the number of turns of a rank, with or without a micro-batch. */
int64_t microbatches_count(const struct microbatches *mb, int rank);
/* Returns the number of micro-batches that a rank has. */
int64_t microbatches_own(const struct microbatches *mb, int rank);
/* Returns the index in the step of the micro-batch of a rank's turn i; n_micro or more: none. */
int64_t microbatches_index(const struct microbatches *mb, int rank, int64_t i);
/* Returns the data-parallel rank (over dp and fsdp) of a position in the mesh. */
int microbatches_rank(const int degree[N_AXES], const int coord[N_AXES]);
