/*
 * Sums over a group, by the canonical tree.
 *
 * Every rank of a group has some nodes of one tree, each a vector of n floats. The vector is
 * cut into shards, of which each rank wants one (one shard: every rank wants all), and the
 * ranks that want the same shard cut it into pieces, one each. The nodes of a piece go to
 * its rank, which finishes the tree, and the sum to the ranks that want it. For a power of two
 * of equal shares, these are the bytes of a ring reduce-scatter, or all-reduce.
 */
#ifndef COMM_SUM_H
#define COMM_SUM_H

#include "comm/shared.h"
#include "comm/tree.h"

/* A shard: runs of the vector that lie behind each other when it is packed. */
struct sum_run {
	int64_t at, len;
};

struct sum_shard {
	struct sum_run *run;
	int n_runs;
	int64_t n; /* floats */
};

/* The nodes of a rank, in ascending order, and in which of its buffers they are. */
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
	const int *wants; /* [size]: the shard of each rank */
	int levels;	  /* of the tree */
	/* filled in by sum_share(): */
	int *sharers; /* [n_shards]: the number of ranks that want it */
	int *before;  /* [size]: how many of them come before this rank */
};

/* Fills in the plan, once for all its sums; and frees that. */
void sum_share(struct sum_plan *p);
void sum_unshare(struct sum_plan *p);

/* Floats of the piece of rank `rank`, and the scratch that messages need. */
int64_t sum_piece(const struct sum_plan *p, int rank, int64_t *first);
int64_t sum_scratch(const struct sum_plan *p, const struct sum_nodes *nodes);

struct sum_call {
	const struct sum_plan *plan;
	const struct sum_nodes *nodes; /* [size] */
	float *const *buffer;	       /* this rank's, [n] each */
	/* Nodes of this rank's piece that were added up before, or none. */
	const struct tree_part *extra;
	int n_extra;
	/* The sum goes to this rank's shard, packed, which may be its only buffer. Or, with
	 * `take`, nothing is added: the function gets the parts of this rank's piece, sorted. */
	float *result;
	void (*take)(void *with, const struct tree_part *parts, int n_parts);
	void *with;
	float *scratch; /* sum_scratch() floats, for messages */
	/* Or, with one shard: rank r's buffer b begins at float from[r] + b * n of its shared
	 * memory; no other sum that is under way uses this slot. */
	const struct comm_shared *shared;
	const int64_t *from;
	int slot;
};

struct tree_sum;
/* Collective. What the call points to is in use until the end. */
struct tree_sum *tree_sum_begin(const struct sum_call *call);
bool tree_sum_done(struct tree_sum *s); /* never waits */
void tree_sum_end(struct tree_sum *s);	/* waits, and frees it */

#endif
