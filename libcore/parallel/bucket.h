/* For the files of the store only: buckets. */
#pragma once

#include "comm/sum.h"
#include "parallel/reduction.h"
#include "parallel/store.h"

/* A slice of a tensor in a bucket. */
struct entry {
	struct tensor *t;
	int slice;
	int64_t rows, cols; /* held rows; an element of a vector is a row */
	int64_t pos;	    /* offset in the bucket's vector */
	int64_t *
		bounds; /* [shards + 1]: shard i is held rows [bounds[i], bounds[i + 1]) */
	int64_t *packed;  /* [shards]: offset of these rows in the packed shard */
	int64_t n_leaves; /* leaves that this rank has written for the next sum */
	bool checked; /* the checksum of this rank's sum is in its word (check_sums.h) */
	int64_t *
		n_expert_leaves; /* [experts]: leaves that have rows of the expert; or NULL */
};

/* The queue and the memory that all sums of a group of ranks share. */
struct group_queue {
	struct comm *c;
	struct sum_queue sums;
	int64_t n; /* floats in each buffer of `sums` */
	struct comm_shared
		*shared; /* memory of all ranks of a host for gradients, or NULL */
};

/* Ranks that sum vectors. */
struct sum_group {
	struct comm *c;
	int *ranks; /* [size]: ranks in the world */
	struct sum_plan plan;
	struct group_queue *queue;
};

/* Where a rank writes and adds the leaves of a bucket, for grads.c. */
struct bucket_leaves {
	float *memory;	  /* [n]: where leaves are written */
	bool adds;	  /* leaves are added to `sum`: a turn may have several leaves */
	int64_t *sum;	  /* [n]: this rank's sum, if `adds` */
	int64_t per_turn; /* leaves per element that this rank writes in a full turn */
	int64_t last; /* leaves per element that it writes in a turn of the last round */
	int64_t pos; /* offset in the store's buffer for leaves (contiguous, several leaves) */
};

/* The sums of a bucket over ranks, for reduce.c. The ranks that share the bucket sum it at once,
 * or in two sums (within, then across) so that fewer bytes are sent between hosts:
 * - Hybrid sharding (HSDP): in each turn, the ranks of one replica reduce-scatter their leaves.
 *   After the last turn, the replicas of this rank's shard all-reduce it.
 * - By host, if the ranks of the shards are on several hosts: in each turn, the ranks of a host
 *   reduce-scatter their leaves, then the ranks with the same place on every host sum the results.
 *   If nothing is sharded, each host all-gathers the parts at the end of the step. */
struct bucket_sums {
	struct sum_group within, across;
	struct sum_group *first,
		*last; /* groups of the first sum (of leaves) and the last */
	/* [ranks of the first group]: each rank's contribution in a full round, and in the last
	 * round. Both are equal with contiguous micro-batches. */
	enum sum_form *form[2];
	int64_t piece; /* elements of the shard that this rank adds and rounds */
	struct sum_shard *first_shard, *last_shard; /* shards of the two sums */
	/* Memory of AT_HOST and AT_KEPT (reduction.h), and a buffer for the sum of a tied weight's
	 * other stage. With offloaded gradients all units share the memory of `kept`. */
	int64_t *host_sum, *kept, *other;
	struct sum *now; /* the sum in progress, or NULL */
};

/* A turn is a sum of leaves over ranks. With contiguous micro-batches a step has one turn.
 * Round-robin, each round has one turn, or with by_use one per use. */
struct bucket_turns {
	int64_t n;	 /* turns per step */
	int64_t calls;	 /* calls of store_reduce() per turn */
	int64_t done[2]; /* calls so far in this step, per use */
	int64_t now;	 /* the turn that began last */
	bool last_round; /* that turn is in the last round */
};

/* For gather.c: a bucket's whole vector while it is gathered. */
struct bucket_gather {
	float *whole;		 /* [n] fp32, or NULL */
	char *copy;		 /* [n], the copy that matmuls read, or NULL */
	float *vector, *staging; /* memory of the last all-gather */
	int64_t *staged_at; /* [shards + 1]: offsets in `staging`; NULL: not computed */
};

/* How buckets are sharded: the buckets of stacks of experts, and all other buckets. */
enum sharding_kind { SHARDING_DENSE, SHARDING_EXPERTS, N_SHARDINGS };
struct sharding {
	struct comm *c; /* one rank per shard */
	int n, own;	/* number of shards, and this rank's shard */
	int host_run;	/* ranks per host, if gradients are summed by host; else 0 */
	int ep; /* only every ep-th rank along dp, fsdp and cp has the same experts; else 1 */
};

/* Slices of adjacent units that the same ranks reduce and gather, as one vector. */
struct bucket {
	struct store *store;
	int first_unit, last_unit; /* a backward writes the first unit's leaves last */
	struct entry *entry;
	int n_entries;
	int64_t n;	 /* floats of the vector; each entry is aligned to a cache line */
	enum dtype wire; /* type of its gathered parameters */
	const struct sharding *sharding;
	struct sum_shard *shard; /* [shards] */
	struct sum_group all;	 /* the ranks that share the bucket */
	int uses;		 /* uses of its tensors on this stage */
	int users;		 /* virtual slices per slice */
	int levels;		 /* log2 of the leaves of an element */
	bool tied; /* a weight on two pipeline ranks; the step's end adds the other rank's sum */
	/* Each use of a tied weight is reduced separately in each round (round-robin). */
	bool by_use;
	/* This rank's shard, packed: parameters, optimizer state and gradient. */
	float *state[STORE_MAX_GROUPS], *g;
	int64_t pos; /* offset of the shard in each group and region: all shards are concatenated */
	int64_t placed; /* offset in the memory of the gradients, in bytes */
	struct bucket_leaves leaves;
	struct bucket_sums sums;
	struct bucket_turns turns;
	struct reduction plan[2]; /* [1]: in a warm-up of local SGD */
	int row, end; /* the next row of the plan; the end of the rows that are due */
	struct bucket_gather gather;
	struct {		/* offloaded gradients, see offload_grads.c */
		int64_t sum_at; /* offset of the sum of the rounds in the backend's sums */
		uint64_t written; /* ticket of the last write to it */
	} offload;
};

/* bucket.c */
void buckets_make(struct store *s);
void buckets_free(struct store *s);
/* Return the ranks that share a bucket, except along tp, and the ranks of one replica. */
struct mesh_part sharding_ranks(const struct sharding *x);
struct mesh_part sharding_replica(const struct sharding *x);
/* Returns the shard of the rank with these coordinates in the mesh. */
int shard_at(const struct sharding *x, const struct mesh *m, const int coord[N_AXES]);

/* bucket_sums.c */
/* Makes the groups for buckets with two sums. Collective, even for stages without such buckets. */
void bucket_sums_make_groups(struct store *s);
/* Sets up the sums of a bucket. `part`: the ranks that share the bucket. */
void bucket_sums_init(struct store *s, struct bucket *b, struct mesh_part part);
void bucket_sums_release(struct bucket *b);
/* Returns the number of leaves per element that a rank writes in a turn. */
int64_t bucket_leaves_per_turn(
	const struct store *s, const struct bucket *b, int rank, int64_t round);
/* Returns the ranks that keep or round their pieces. */
static inline const struct sum_group *bucket_owners(const struct bucket *b)
{
	return b->sharding->host_run ? b->sums.last : b->sums.first;
}

/* Returns the memory of a place that a row reads or writes. */
static inline void *bucket_place(const struct bucket *b, enum reduction_place place)
{
	void *const memory[N_AT] = {[AT_LEAF] = b->leaves.memory,
		[AT_LEAVES] = b->leaves.sum,
		[AT_HOST] = b->sums.host_sum,
		[AT_KEPT] = b->sums.kept,
		[AT_GRADIENT] = b->g};
	BUG_ON(!memory[place]);
	return memory[place];
}

/* Returns true in the last turn. */
static inline bool in_last_turn(const struct bucket *b)
{
	return b->turns.now == b->turns.n - 1;
}

/* Returns true if a row adds to what its place holds. */
static inline bool bucket_adds(const struct bucket *b, const struct reduction_row *r)
{
	return r->add == REDUCE_ADD || (r->add == REDUCE_LATER && b->turns.now > 0);
}
