/* For check_replicas.c and replicas_heal.c only. */
#pragma once

#include "engine/engine.h"
#include "referee/pieces.h"

#include <stddef.h>

/* How a piece of this rank's state is compared. */
struct watched {
	int64_t copies,
		copy; /* copies on all ranks, and the number of this one; 0: unknown */
	bool taken;   /* the checksum after the last update is known */
	uint64_t hash_taken; /* this checksum, on the host: replicas_read() */
};

/* Numbers that all ranks have: what the last update used besides state and gradients, with what
 * follows from it, as words of struct step_end; and what a trainer keeps from step to step. */
enum {
	N_STEP_WORDS = offsetof(struct step_end, too_large) / sizeof(uint32_t),
	N_KEPT_SCALARS = 6
};
struct replica_scalars {
	uint32_t of_step[N_STEP_WORDS];
	double kept[N_KEPT_SCALARS];
	bool changed; /* after they were computed, on this rank */
};

/* In device memory. */
struct replica_memory {
	uint32_t u[GRID_BLOCK]; /* weights of checksums */
	struct step_end last;	/* results of the last step, after its update */
	double kept[N_KEPT_SCALARS];
	uint64_t word; /* a word between two steps */
};

struct replicas {
	int64_t n;		   /* pieces */
	struct state_piece *piece; /* [n] */
	struct watched *list;	   /* [n] */
	/* [n]: the piece is in the word of a step; its checksum is taken after an update. */
	bool *compared, *takes;
	/* Device memory. [n + 1]: checksums of the pieces and of the scalars, now and after the
	 * last update, and the terms of the word. */
	struct replica_memory *memory;
	uint64_t *sum, *taken;
	struct checksum_term *terms;
	size_t n_bytes;
	struct replica_scalars scalars;
	uint32_t computed[N_STEP_WORDS]; /* results of the last step, before its update */
	bool remembers; /* `computed` and `loss_then` are from this program's last step */
	double loss_then; /* the trainer's loss after it */
	struct str found; /* what replicas_heal() found */
	/* [ranks]: the rank computed the step with state or numbers that were then replaced. */
	bool *replaced;
	int64_t replaced_step; /* the step before this one was the last good one */
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
/* Sets the hashes of all pieces, of what was taken after the last update, and the scalars of the
 * last update, from device memory. */
void replicas_read(struct trainer *t);
/* Copies right scalars, and the hashes as what was taken, to device memory. */
void replicas_write(struct trainer *t);
