/* For the files of the store only: buckets. */
#pragma once

#include "comm/sum.h"
#include "parallel/reduction.h"
#include "parallel/store.h"

/* A slice of a tensor in a bucket. */
struct entry {
	struct tensor *t;
	int slice;
	int64_t rows, cols; /* an element of a vector is a row */
	int64_t at;	    /* in the bucket's vector */
	int64_t *bounds;    /* [shards + 1]: shard i is rows [bounds[i], bounds[i + 1]) */
	int64_t *packed;    /* [shards]: offset of these rows in the packed shard */
	int64_t n_leaves;   /* that this rank has written for the next sum */
};

/* What the sums of a group of ranks share: segments, in buffers of n floats; and, with unsharded gradients of one
 * host, memory of all of its ranks, or NULL. */
struct group_queue {
	struct comm *c;
	struct sum_queue sums;
	int64_t n;
	struct comm_shared *shared;
};

/* Ranks that sum vectors. */
struct sum_group {
	struct comm *c;
	int *ranks; /* [size]: of the world */
	struct sum_plan plan;
	struct group_queue *queue;
};

/* Where a rank writes and adds the leaves of a bucket, for grads.c. */
struct bucket_leaves {
	float *memory; /* [n]: where leaves are written */
	int64_t *sum;  /* [n], if this rank may have several in a sum over ranks */
	int64_t most;  /* that this rank has in a sum over ranks */
	int64_t at;    /* in runs, of several: in the store's room for leaves */
};

/*
 * The sums of a bucket over ranks, for reduce.c. The ranks that share the bucket sum it at once, or, so that
 * fewer bytes are sent between hosts, in two sums (within, then across).
 * With hybrid sharding (HSDP): the ranks of the shards sum their leaves (a reduce-scatter), and after the last
 * of these sums the replicas of this rank's shard the results (an all-reduce of shards).
 * By host, if the ranks of the shards are on several hosts: those of a host sum their leaves, so that each has
 * the sums of the shards of all ranks with its place on their hosts; and each time these ranks sum these. If
 * nothing is sharded, the parts of the result are gathered within the hosts at the end of the step.
 */
struct bucket_sums {
	struct sum_group within, across;
	struct sum_group *first, *last; /* of the sums of leaves and of the last one */
	/* [ranks of the first group]: what each has in a sum of leaves, in a full round and in the
	 * last one. In runs both are equal. */
	enum sum_form *form[2];
	int64_t piece; /* elements of the shard that this rank adds and rounds */
	struct sum_shard *first_shard, *last_shard; /* of two sums */
	/* Memory of rows (reduction.h), and of what the other stage of a tied weight kept. With
	 * offloaded gradients the units share the memory of kept. */
	int64_t *of_host, *kept, *other;
	struct sum *now; /* in progress, or NULL */
};

/* A turn is a sum of leaves over ranks. In runs a step has one turn. Round-robin each round has
 * one, or with by_use one for each use. */
struct bucket_turns {
	int64_t n;	 /* in a step */
	int64_t calls;	 /* of store_reduce(), in a turn */
	int64_t done[2]; /* calls in this step, of each use */
	int64_t now;	 /* the turn that began last */
	bool last_round; /* its round is the last one */
};

/* For gather.c: the whole vector of a bucket while it is gathered, in fp32, and the copy that matmuls read; or
 * NULL. */
struct bucket_gather {
	float *whole;
	char *copy;
	float *vector, *staging; /* of the last all-gather */
	int64_t *
		staged_at; /* [shards + 1]: the shards' places in `staging`; NULL: not yet */
};

/* How buckets are sharded. */
struct sharding {
	struct comm *c; /* the ranks of the other shards */
	int n, own;	/* shards, and this rank's */
	int host_run;	/* ranks of a host that sum gradients by host; 0: not so */
};

/* Slices of neighbouring units that the same ranks reduce and gather, as one vector. */
struct bucket {
	struct store *store;
	int first_unit, last_unit; /* whose leaves a backward writes last and first */
	struct entry *entry;
	int n_entries;
	int64_t n;	 /* floats of the vector; each entry is aligned to a cache line */
	enum dtype wire; /* the type in which it is gathered */
	const struct sharding *sharding;
	struct sum_shard *shard; /* [shards] */
	struct sum_group all;	 /* the ranks that share it */
	/* The uses of its tensors on this stage, the virtual slices that use a slice, and log2 of the leaves
	 * of an element. */
	int uses, users, levels;
	/* A tied weight on two ranks of the pipeline: the other rank's sum is added at the end of the step. */
	bool tied;
	/* Round-robin, a tied weight that is tiled or whose uses are on two stages of this rank: each use is
	 * reduced by itself in each round. */
	bool by_use;
	/* This rank's shard, packed: parameters, optimizer state and gradient. */
	float *state[STORE_MAX_GROUPS], *g;
	int64_t at; /* of the shard, in each group and region: all shards are concatenated */
	int64_t placed; /* its first byte in the memory of the gradients */
	struct bucket_leaves leaves;
	struct bucket_sums sums;
	struct bucket_turns turns;
	struct reduction plan[2]; /* [1]: in a warm-up of local SGD */
	int row, end;		  /* rows of the plan that are done, and that are due */
	struct bucket_gather gather;
	/* Offloaded gradients: where the sum of the rounds is in the backend, see offload_grads.c, and the
	 * ticket of the last write to it. */
	struct {
		int64_t sum_at;
		uint64_t written;
	} offload;
};

/* bucket.c */
void buckets_make(struct store *s);
void buckets_free(struct store *s);
/* The shard of the ranks at a place of the mesh. */
int shard_at(const struct sharding *x, const struct mesh *m, const int at[N_AXES]);

/* bucket_sums.c */
/* Makes the groups of all second sums. Collective, also for stages without such buckets. */
void bucket_sums_groups(struct store *s);
/* `part`: the ranks that share the bucket. */
void bucket_sums_make(struct store *s, struct bucket *b, struct mesh_part part);
void bucket_sums_free(struct bucket *b);
/* Returns the leaves that a rank has in a turn: of one round, or in runs of all micro-batches. */
int64_t bucket_leaves(
	const struct store *s, const struct bucket *b, int rank, int64_t round);
/* Memory of a row. */
static inline void *bucket_place(const struct bucket *b, enum reduction_place place)
{
	void *const at[N_AT] = {[AT_LEAF] = b->leaves.memory,
		[AT_LEAVES] = b->leaves.sum,
		[AT_HOST] = b->sums.of_host,
		[AT_KEPT] = b->sums.kept,
		[AT_GRADIENT] = b->g};
	BUG_ON(!at[place]);
	return at[place];
}

/* Is the current turn the last one? */
static inline bool bucket_is_last(const struct bucket *b)
{
	return b->turns.now == b->turns.n - 1;
}

/* Does a row add to what its place holds? */
static inline bool bucket_adds(const struct bucket *b, const struct reduction_row *r)
{
	return r->add == REDUCE_ADD || (r->add == REDUCE_LATER && b->turns.now > 0);
}
