/* Exact sums over a group (kernels/grid.h): a reduce-scatter, or an all-reduce with one shard.
 *
 * Every rank of a group contributes a vector of n elements: a leaf, or a sum of leaves. The vector
 * is divided into shards; each rank receives one, and the ranks that receive the same shard divide
 * it into pieces, one each. All contributions to a piece are sent to its rank, which adds them,
 * rounds the sum, and sends it to the ranks that receive it. The bytes sent equal those in a ring
 * reduce-scatter or all-reduce of the same elements; rounded results are sent as floats. */
#pragma once

#include "comm/shared.h"
#include "kernels/kernels.h"

/* A shard: runs of elements of the vector, which become contiguous when the shard is packed. */
struct sum_run {
	int64_t pos, len;
};

struct sum_shard {
	struct sum_run *run;
	int n_runs;
	int64_t n; /* elements */
};

/* A rank's contribution: none, a leaf (fp32), or a sum (int64). The value: floats per element. */
enum sum_form { SUM_NONE, SUM_LEAF, SUM_INT64 };

/* Messages carry one segment of the piece at a time. The sums of a group put their segments in one
 * queue and share its buffers: while one segment is added, the next one is in flight. */
enum { SUM_BUFFERS = 2 };

struct sum_queue {
	/* Each holds sum_buffer_floats() of the largest sum. */
	float *buffer[SUM_BUFFERS];
	uint64_t joined, added; /* segments queued, and segments added, so far */
};

/* The common part of all sums of a vector over a group; equal on all ranks unless noted. */
struct sum_plan {
	struct comm *c;
	struct device *d;
	const struct sum_shard *shard; /* [n_shards] */
	int n_shards;
	const int *wants; /* [size]: the shard that each rank receives */
	/* [n_origin]: the runs of a larger vector that this vector consists of, if it is itself a
	 * piece of a sum; n_origin 0: it is the larger vector */
	struct sum_run *origin;
	int n_origin;
	int levels;		 /* log2 of the leaves per element, see kernels/grid.h */
	int64_t segment;	 /* elements; 0: sum_plan_init() chooses */
	struct sum_queue *queue; /* queue of the group, for messages */
	/* Shared memory instead of messages, only with one shard. In each rank's segment,
	 * offsets in floats: its leaf, later its result, is at leaf_at; an int64 sum is at
	 * sum_at. No other plan uses this slot. */
	const struct comm_shared *shared;
	int64_t leaf_at, sum_at;
	int slot;
	/* Set by sum_plan_init(): */
	int n_segments; /* number of segments of the longest piece */
	int *sharers;	/* [n_shards]: the number of ranks that receive the shard */
	int *before;	/* [size]: the number of preceding ranks with the same shard */
};

/* Returns the number of contiguous elements from element `pos` of a packed shard on; *index: the
 * index of the first one in the whole vector (sum_plan.origin). */
int64_t sum_locate(const struct sum_plan *p, int shard, int64_t pos, int64_t *index);
/* Returns the number of contiguous elements; *index: index in the vector of this sum. */
int64_t sum_locate_in_vector(
	const struct sum_plan *p, int shard, int64_t pos, int64_t *index);

/* Completes the plan for all its sums; sum_plan_release() frees the memory. */
void sum_plan_init(struct sum_plan *p);
void sum_plan_release(struct sum_plan *p);

/* Returns the elements of a rank's piece, and sets *first to its offset in the packed shard. */
int64_t sum_piece(const struct sum_plan *p, int rank, int64_t *first);

/* Returns the floats of a queue buffer for a sum with this sum_call.form; 0 with one rank. */
int64_t sum_buffer_floats(const struct sum_plan *p, const enum sum_form *form);

struct sum;

/* Checksums of a sum. result.u NULL: none. */
struct sum_check {
	/* how to hash this rank's piece when it is rounded; `first` is set then */
	struct grid_check result;
	/* To locate a wrong sum, else NULL; device memory. The checksum of each contribution to
	 * this rank's piece is subtracted from the word of its rank, sent[ranks[r]], and from
	 * *received, and added to *added. If NCCL adds the contributions, the sum counts as
	 * received, and each rank subtracts its contribution from sent[] before. */
	uint64_t *sent, *received, *added;
	const int *ranks; /* [size] */
};

struct sum_call {
	const struct sum_plan *plan;
	/* This sum begins when `after` is complete; sum_end() ends both. NULL: at once. */
	struct sum *after;
	struct grid *grid; /* in device memory: the exponent and the counters */
	struct sum_check check;
	/* [n]: this rank's contribution. The rank's own piece of an int64 sum may be
	 * overwritten. NULL: no rank contributes. */
	void *own;
	/* [size]: each rank's contribution, until sum_end(); NULL: all contribute SUM_INT64. */
	const enum sum_form *form;
	/* [piece]: keeps the exact sum of this rank's piece; with `add`, adds it to the contents.
	 * With one shard, it may be this rank's piece of `own` (int64). NULL: not kept. */
	int64_t *kept;
	bool add;
	/* Receives the rounded sum of this rank's shard, packed; if an element has only one leaf
	 * in all, that leaf. NULL: no rank rounds. It may be the rank's own leaf. If no rank
	 * contributes and nothing is kept, it holds the rank's piece, which is sent. */
	float *result;
};

/* Collective. The memory that the call points to is in use until sum_end(). In a group with a
 * stream, all work is enqueued there, and sum_end() makes the current stream continue after it. */
struct sum *sum_begin(const struct sum_call *call);
void sum_end(struct sum *s); /* waits, and frees s */
