/*
 * Reductions over a group by the canonical tree: a reduce-scatter, or an all-reduce with one shard.
 *
 * Every rank of a group has some nodes of one tree, each a vector of n floats. The vector is
 * divided into shards; each rank receives one, and the ranks that receive the same shard divide it
 * into pieces, one each. Nodes of a piece are sent to its rank, which finishes the tree and sends
 * the sum to the ranks that receive it. For equal powers of two, it sends as many bytes as a ring
 * reduce-scatter or all-reduce.
 */
#ifndef COMM_SUM_H
#define COMM_SUM_H

#include "comm/shared.h"
#include "comm/tree.h"

/* A shard: runs of the vector, which are contiguous when the shard is packed. */
struct sum_run {
	int64_t at, len;
};

struct sum_shard {
	struct sum_run *run;
	int n_runs;
	int64_t n; /* floats */
};

/* The nodes of a rank, in ascending order, and the indices of their buffers. */
struct sum_nodes {
	struct tree_node *node;
	int *buffer;
	int n;
};

/* Equal on all ranks of the group. */
struct sum_plan {
	struct comm *c;
	struct device *d;
	const struct sum_shard *shard; /* [n_shards] */
	int n_shards;
	const int *wants; /* [size]: the shard that each rank receives */
	int levels;	  /* of the tree */
	int64_t segment;  /* floats; 0: sum_share() chooses */
	/* set by sum_share(): */
	int n_segments; /* of the longest piece */
	int *sharers;	/* [n_shards]: the number of ranks that receive the shard */
	int *before;	/* [size]: how many ranks with the same shard precede this one */
};

/* Completes the plan for all its sums; and frees that memory. */
void sum_share(struct sum_plan *p);
void sum_unshare(struct sum_plan *p);

/* The number of floats in a rank's piece, and its offset *first in the packed shard. */
int64_t sum_piece(const struct sum_plan *p, int rank, int64_t *first);

/*
 * Messages are exchanged a segment of the piece at a time. The sums of a group begin their segments
 * in one queue, and share its buffers: while one segment is added, the next one is under way.
 */
enum { SUM_BUFFERS = 2 };

struct sum_queue {
	/* Of sum_buffer_floats() floats, for the largest of the sums. */
	float *buffer[SUM_BUFFERS];
	uint64_t joined, added; /* segments, so far */
};

/* The number of floats that a buffer needs for such a sum; 0 in a group of one rank. */
int64_t sum_buffer_floats(const struct sum_plan *p, const struct sum_nodes *nodes);

struct sum_call {
	const struct sum_plan *plan;
	const struct sum_nodes *nodes; /* [size] */
	float *const *buffer;	       /* this rank's, [n] each */
	/* Additional nodes of this rank's piece that are already summed, or none. */
	const struct tree_part *extra;
	int n_extra;
	/* Receives the sum of this rank's shard, packed; may be its only buffer. With `take`,
	 * nothing is added: the function is called with the sorted parts of floats
	 * [first, first + len) of this rank's piece, for one segment after another. Of the nodes that
	 * it adds them to, `takes` is the only one, or NULL: if NCCL may reduce (numerics fast), the
	 * one part is the sum of that. */
	float *result;
	const struct tree_node *takes;
	void (*take)(void *with, const struct tree_part *parts, int n_parts,
		int64_t first, int64_t len);
	void *with;
	struct sum_queue *queue; /* of the group, for messages */
	/* Instead of messages, with one shard: rank r's buffer b begins at float from[r] + b * n of
	 * its shared memory; no other sum in progress uses this slot. */
	const struct comm_shared *shared;
	const int64_t *from;
	int slot;
};

struct tree_sum;
/* Collective. Memory that the call points to is in use until tree_sum_end(). In a group with a stream, all
 * is enqueued there, and tree_sum_end() lets the current stream begin after it. */
struct tree_sum *tree_sum_begin(const struct sum_call *call);
bool tree_sum_done(
	struct tree_sum *s); /* never waits; in a group with a stream always true */
void tree_sum_end(struct tree_sum *s); /* waits, and frees it */

#endif
