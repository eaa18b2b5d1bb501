/*
 * Exact sums over a group (kernels/grid.h): a reduce-scatter, or an all-reduce with one shard.
 *
 * Every rank of a group contributes a vector of n elements: a leaf, or a sum of leaves. The vector is
 * divided into shards; each rank receives one, and the ranks that receive the same shard divide it
 * into pieces, one each. All contributions to a piece are sent to its rank, which adds them, rounds the sum,
 * and sends it to the ranks that receive it. It sends as many bytes as a ring reduce-scatter or all-reduce of
 * such elements, and those of rounded results are floats.
 */
#pragma once

#include "comm/shared.h"
#include "kernels/kernels.h"

/* A shard: runs of the vector, which are contiguous when the shard is packed. */
struct sum_run {
	int64_t at, len;
};

struct sum_shard {
	struct sum_run *run;
	int n_runs;
	int64_t n; /* elements */
};

/* What a rank contributes: nothing, one leaf (fp32), or a sum of leaves (int64). The value is the size of an
 * element in floats. */
enum sum_form { SUM_NONE, SUM_LEAF, SUM_INT64 };

/*
 * Messages are exchanged a segment of the piece at a time. The sums of a group begin their segments
 * in one queue, and share its buffers: while one segment is added, the next one is under way.
 */
enum { SUM_BUFFERS = 2 };

struct sum_queue {
	/* Each has the sum_buffer_floats() of the largest of the sums. */
	float *buffer[SUM_BUFFERS];
	uint64_t joined, added; /* segments, so far */
};

/* What all sums of a vector over a group have in common; equal on all ranks, but for what says otherwise. */
struct sum_plan {
	struct comm *c;
	struct device *d;
	const struct sum_shard *shard; /* [n_shards] */
	int n_shards;
	const int *wants; /* [size]: the shard that each rank receives */
	int levels;	  /* log2 of the leaves of an element, see kernels/grid.h */
	int64_t segment;  /* elements; 0: sum_share() chooses */
	struct sum_queue *queue; /* of the group, for messages */
	/* Instead of messages, with one shard: in the shared memory of each rank, a leaf that it contributes, and
	 * later its result, begins at float leaf_at, and an int64 sum at sum_at. No other plan uses this slot. */
	const struct comm_shared *shared;
	int64_t leaf_at, sum_at;
	int slot;
	/* set by sum_share(): */
	int n_segments; /* of the longest piece */
	int *sharers;	/* [n_shards]: the number of ranks that receive the shard */
	int *before;	/* [size]: how many ranks with the same shard precede this one */
};

/* Completes the plan for all its sums; and frees that memory. */
void sum_share(struct sum_plan *p);
void sum_unshare(struct sum_plan *p);

/* The number of elements in a rank's piece, and its offset *first in the packed shard. */
int64_t sum_piece(const struct sum_plan *p, int rank, int64_t *first);

/* The number of floats that a buffer needs for a sum with such a `form` of sum_call; 0 in a group of one rank. */
int64_t sum_buffer_floats(const struct sum_plan *p, const enum sum_form *form);

struct sum;

struct sum_call {
	const struct sum_plan *plan;
	/* This sum begins when that one is complete; sum_end() then ends both. NULL: at once. */
	struct sum *after;
	struct grid *grid; /* in device memory: the exponent, and what is counted */
	/* This rank's contribution, [n]. Of an int64 sum, its own part may be overwritten. NULL: nobody
	 * contributes. */
	void *own;
	/* [size]: what each rank contributes, until sum_end(); NULL: all contribute SUM_INT64. */
	const enum sum_form *form;
	/* The sum of this rank's piece is kept here, [piece], with `add` on top of what is there; it may be this
	 * rank's part of own, int64, in one shard. NULL: not kept. */
	int64_t *kept;
	bool add;
	/* Receives the rounded sum of this rank's shard, packed, or if an element has only one leaf in all
	 * that leaf; NULL: nobody rounds. It may be the rank's own leaf. If nobody contributes and nothing is
	 * kept, it has the rank's piece already, which is sent to the others. */
	float *result;
};

/* Collective. Memory that the call points to is in use until sum_end(). In a group with a stream, all is
 * enqueued there, and sum_end() lets the current stream begin after it. */
struct sum *sum_begin(const struct sum_call *call);
void sum_end(struct sum *s); /* waits, and frees it */
