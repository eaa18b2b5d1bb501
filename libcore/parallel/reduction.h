/* For the files of the store only: how the gradient of a bucket is reduced, as data. */
#pragma once

#include "base/base.h"

/* When a row is executed: when the leaves of each or the last turn are complete, or at the end. */
enum reduction_when { EVERY_TURN, LAST_TURN, STEP_END };

/* SUM: each owner adds all ranks' contributions to its piece. An int64 sum stays with its owner. A
 *   gradient is rounded once and sent to all ranks that receive it.
 * ROUND: each owner rounds its int64 sum and sends it to all ranks that receive it. SELF: in place.
 * GATHER: ranks exchange parts that are rounded already.
 * SWAP: the two stages of a tied weight exchange their sums and add them.
 * ADD_WORKERS: adds the sums of the other workers of local SGD.
 * FILE_ADD: reads the sum block by block, adds to each block and writes it back. */
enum reduction_what {
	REDUCE_SUM,
	REDUCE_ROUND,
	REDUCE_GATHER,
	REDUCE_SWAP,
	REDUCE_ADD_WORKERS,
	REDUCE_FILE_ADD,
	REDUCE_FILE_READ,
	REDUCE_FILE_WRITE,
	N_REDUCE
};

/* SELF: no message. ALL: the ranks that share the bucket. WITHIN, ACROSS: see bucket.h. */
enum reduction_over {
	OVER_SELF,
	OVER_ALL,
	OVER_WITHIN,
	OVER_ACROSS,
	OVER_STAGES,
	OVER_WORKERS,
	N_OVER
};

/* Memory of a bucket. n: elements of its vector, see bucket.h.
 * LEAF: fp32 [n], one leaf. LEAVES: int64 [n], the sum of this rank's leaves in a turn.
 * HOST: int64 [piece of WITHIN]. KEPT: int64 [piece]. GRADIENT: fp32 [shard].
 * FILE_SUM: int64 [piece], FILE_GRADIENT: fp32 [shard], in the offload backend. */
enum reduction_place {
	AT_LEAF,
	AT_LEAVES,
	AT_HOST,
	AT_KEPT,
	AT_GRADIENT,
	AT_FILE_SUM,
	AT_FILE_GRADIENT,
	N_AT
};

/* SET: overwrites. ADD: adds. LATER: the first turn overwrites, later turns add. */
enum reduction_add { REDUCE_SET, REDUCE_LATER, REDUCE_ADD };

struct reduction_row {
	enum reduction_when when;
	enum reduction_what what;
	enum reduction_over over;
	enum reduction_place from, to;
	enum reduction_add add;
	bool chained;  /* begins automatically when the row before is complete */
	bool finishes; /* FILE_ADD: the last turn rounds the sum, to FILE_GRADIENT */
	int64_t pos;   /* the first element of `to` that it writes */
};

/* Equal on all ranks of a group, except that one may sum LEAF where another sums LEAVES. */
struct reduction {
	struct reduction_row row[10];
	int n_turn_rows, n_rows; /* rows of turns come first */
};

/* Everything that a plan depends on. */
struct reduction_facts {
	/* Leaves are summed at once, by host and then across, or by replica and then across. */
	enum { SCHEME_ONE, SCHEME_HOSTS, SCHEME_REPLICAS } scheme;
	int64_t turns;	     /* per step */
	bool one_leaf;	     /* an element has one leaf, over all ranks */
	bool several_leaves; /* this rank has several leaves in a turn */
	bool one_rank;	     /* no other rank shares the bucket */
	bool sole_owner;     /* no other rank receives this shard */
	bool one_shard;	     /* nothing is sharded */
	bool rounds;	     /* micro-batches are assigned round-robin */
	bool tied;	     /* the two uses are on two pipeline stages */
	bool workers;	     /* local SGD has several workers */
	bool warm_up;	     /* the workers' gradients are summed in this step */
	bool file;	     /* gradients are offloaded */
	bool many_owners;    /* more owners than a kernel adds at once */
	int64_t part_at;     /* this rank's first element in the result of WITHIN */
	int64_t piece_at;    /* the first element of this rank's piece in its shard */
};

/* Makes the plan of a reduction. Not collective: it depends on the facts only. */
void reduction_plan(struct reduction *r, const struct reduction_facts *f);
/* Returns the first row with an operation, or NULL. */
const struct reduction_row *reduction_find(
	const struct reduction *r, enum reduction_what what);
/* Returns true if a row reads or writes this place. */
bool reduction_uses(const struct reduction *r, enum reduction_place place);
/* Appends one line per row, such as "turn  sum all leaves -> kept, later". */
void reduction_print(const struct reduction *r, struct str *out);
