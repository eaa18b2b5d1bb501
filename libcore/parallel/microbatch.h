/*
 * How the micro-batches of a step are assigned to data-parallel ranks. No call is collective.
 *
 * In runs: every rank accumulates the gradients of neighbouring micro-batches, which are reduced over
 * the ranks once a step. Round-robin: rank r has micro-batches r, r + ranks, ..., and each round is
 * reduced, so that a rank keeps only its shard of the gradient, which may be offloaded, and the
 * gradient of one micro-batch. A rank without a micro-batch in the last round computes one with an index of n_micro or more, because
 * other ranks need its shard of the parameters; its results are discarded.
 */
#pragma once

#include "base/base.h"
#include "comm/mesh.h"

struct microbatches {
	int64_t n_micro; /* of a step, of all ranks */
	int ranks;	 /* data-parallel: dp x fsdp */
	bool round_robin;
};

/* For a mesh with these degrees, and a store with ZeRO stage `zero` that may offload gradients. */
struct microbatches microbatches_assign(
	int64_t n_micro, const int degree[N_AXES], int zero, bool offloads_grads);
/* The number of micro-batches that a rank computes, and the index in the step of its i-th. */
int64_t microbatches_count(const struct microbatches *mb, int rank);
int64_t microbatches_index(const struct microbatches *mb, int rank, int64_t i);
/* The data-parallel rank (over dp and fsdp) of a position in the mesh. */
int microbatches_rank(const int degree[N_AXES], const int at[N_AXES]);
