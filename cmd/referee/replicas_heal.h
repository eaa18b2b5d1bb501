/* For check_replicas.c and replicas_heal.c only. */
#pragma once

#include "engine/engine.h"
#include "referee/pieces.h"

/* A piece of this rank's state. */
struct watched {
	struct state_piece piece;
	int64_t copies,
		copy; /* copies on all ranks, and the number of this one; 0: unknown */
	bool taken;   /* hash_taken is known */
	uint64_t hash_taken; /* after the last update */
};

/* Numbers that all ranks have: what the last update used besides state and gradients, with what
 * follows from it, and what a trainer keeps from step to step. */
enum { N_STEP_SCALARS = 12, N_KEPT_SCALARS = 6 };
struct replica_scalars {
	double of_step[N_STEP_SCALARS], kept[N_KEPT_SCALARS];
	bool changed; /* after they were computed, on this rank */
};

struct replicas {
	struct watched *list; /* [n] */
	int64_t n;
	struct replica_scalars scalars;
	bool remembers; /* `scalars` and `loss_then` are from this program's last step */
	double loss_then; /* the trainer's loss after it */
	struct str found; /* what replicas_heal() found */
};

/* A copy of a piece on any rank. */
struct piece_copy {
	uint64_t id, hash;
	int64_t at; /* order of copies: by rank, then index */
	int rank, index;
	bool exists, gathered, changed;
};

/* Sets *all to the copies of the pieces of all ranks, in the order of their ids, then of ranks; the
 * caller frees it. Returns their number. Collective. */
int64_t replicas_gather(struct trainer *t, struct piece_copy **all);
