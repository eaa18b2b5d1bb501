/* For the files of the store only: buckets, their buffers, and offloaded state. */
#ifndef PARALLEL_STORE_INTERNAL_H
#define PARALLEL_STORE_INTERNAL_H

#include "parallel/leaves.h"
#include "parallel/offload.h"

/* A slice of a tensor in a bucket. */
struct entry {
	struct tensor *t;
	int slice;
	int64_t rows, cols; /* an element of a vector is a row */
	int64_t at;	    /* in the bucket's vector */
	int64_t *bounds;    /* [shards + 1]: shard i is rows [bounds[i], bounds[i + 1]) */
	int64_t *packed;    /* [shards]: offset of these rows in the packed shard */
	struct tree_stack stack[2]; /* of the leaves of this rank, by use */
};

/* Ranks that sum vectors. */
struct sum_group {
	struct comm *c;
	int *ranks; /* [size]: of the world */
	struct sum_plan plan;
	struct sum_nodes *nodes; /* [size]: of the current or next sum */
	struct sum_queue *queue; /* of c */
};

/* Slices of neighbouring units that the same ranks reduce and gather, as one vector. */
struct bucket {
	struct store *store;
	int first_unit, last_unit;
	struct entry *entry;
	int n_entries;
	int64_t n;	 /* floats of the vector; each entry is aligned to a cache line */
	enum dtype wire; /* the type in which it is gathered */
	struct sum_shard *shard; /* [shards] */
	struct leaf_shape shape;
	/* The ranks that share it. With hybrid sharding, the ranks of the shards sum their leaves first
	 * (a reduce-scatter), then the replicas of this rank's shard sum the results (an all-reduce of
	 * shards, so that fewer bytes are sent between hosts); else these are one sum. */
	struct sum_group all, shards, replicas;
	struct sum_group *leaves, *last; /* of the first sum and of the last one */
	struct sum_shard replicated; /* the vector of the second sum: this rank's shard */
	float *replica_sum[2]; /* its buffers: the results of the first one, by use */
	bool pending;	       /* the second sum is to begin after the first */
	/* A tied weight of two pipeline stages: its tree has this stage's use only; the other
	 * stage's sum is added at the end of the step. */
	bool tied;
	/* A tile of a tied weight, round-robin: each use is reduced by itself in each round. */
	bool by_use;
	/* Buffers for this rank's leaves, [n] each; those of use u begin at depth * u. */
	int depth, n_buffers;
	float **buffer;
	/* Round-robin: the reduced rounds of this rank's piece, a stack and its buffers for each use; as
	 * it was before the sum in progress, and the nodes that this sum adds; and the nodes of the
	 * stacks, for the last sum of the step. */
	struct tree_stack round_sums[2], round_sums_before[2];
	float **round_buffer[2];
	int64_t round_first; /* the first float of the piece in them, see nodes_visit() */
	struct tree_node *round_node[2];
	int n_round_nodes; /* of each use */
	struct tree_part *round_parts;
	float *other;		    /* tied: receive buffer for the other stage's sum */
	struct tree_sum *sum;	    /* in progress, or NULL */
	int64_t round[2];	    /* round-robin: of the next sum, by use */
	int units_left;		    /* of this step, whose leaves are not complete */
	struct comm_shared *shared; /* memory that the ranks of a host share, or NULL */
	int64_t *from;		    /* [size]: offsets of the ranks' buffers in it */
	int slot;
	/* This rank's shard, packed: parameters, optimizer state and gradient. */
	float *state[STORE_MAX_GROUPS], *g;
	int64_t at; /* of the shard, in each group and region: all shards are concatenated */
	/* Offloaded gradients: where the nodes of the rounds are in the backend, see offload_grads.c, and
	 * the ticket of the last write to them. */
	int64_t nodes_at;
	uint64_t nodes_written;
	/* The whole vector while it is gathered: in fp32, and the copy that matmuls read; or NULL. */
	float *whole;
	char *copy;
	float *vector, *staging; /* of the last all-gather, see gather.c */
	int64_t *
		staged_at; /* [shards + 1]: the shards' places in `staging`; NULL: not yet */
};

/* Round-robin: memory for the leaves of a unit, until they are reduced. */
struct lease {
	int unit;  /* the unit that uses it, or -1 */
	bool open; /* more leaves will be written */
	float *memory;
	int64_t n; /* floats */
};

/* The queue of the sums of a group, whose buffers have n floats. */
struct group_queue {
	struct comm *c;
	struct sum_queue sums;
	int64_t n;
};

/* Memory for the gathered parameters of a unit. */
struct gathered {
	int unit, users; /* unit -1: free */
	bool ready;
	uint64_t ticket; /* of the last read from the offload backend */
	float *memory;
	int64_t n;
	struct comm_requests requests; /* of its buckets */
};

/* The bucket and the entry of a slice of a tensor. */
struct location {
	int bucket, entry;
};

/* Memory for units: blocks alternate between two places (double buffering), and so do tiles; the
 * first and the last unit have one each, since the embedding is in use while others are. */
enum {
	PLACE_FIRST,
	PLACE_LAST,
	PLACE_BLOCKS,
	PLACE_TILES = PLACE_BLOCKS + 2,
	N_PLACES = PLACE_TILES + 2
};

struct store_impl {
	struct bucket *bucket;
	int n_buckets;
	struct location *location; /* [n_tensors][local slices] */
	void (*before_use)(void *with, int unit);
	void *before_use_with;
	/* [n_floats]; NULL: offloaded, or no such group. */
	float *state[STORE_MAX_GROUPS];
	int64_t n_floats;
	int64_t n_collected;   /* calls of store_collect(), the same on all ranks */
	struct exact *squares; /* the device's */
	uint64_t *hashes;      /* the device's: [n_buckets + 1] */
	int n_shards, shard;   /* over fsdp x cp, and this rank's */
	struct comm *shards;   /* the group of the ranks of the other shards */
	struct arena grad_memory, gather_memory;
	struct comm_shared **shared; /* one for each group with unsharded buckets */
	int n_shared;
	struct group_queue *queue; /* [n_queues] */
	int n_queues;
	struct bucket **pending; /* [n_pending]: in the order of their sums */
	int n_pending;
	struct lease lease[N_PLACES];
	/* float8, see amax.c: the amax of each tensor, in the device's memory, and of which units they
	 * are known; NULL: no float8. */
	float *amax;
	bool *amax_known;
	struct comm *amax_ranks;
	int turn, tile_turn;	   /* the place of the next lease, 0 or 1 */
	struct gathered *gathered; /* [N_PLACES], or one for each unit with RESHARD_NO */
	int n_gathered;
	struct offload_pieces offload;
};

/* `turn`: which of two places, 0 or 1. */
static inline int unit_place(const struct store *s, int unit, int turn)
{
	return unit >= s->c.n_units	  ? PLACE_TILES + turn
	       : unit == 0		  ? PLACE_FIRST
	       : unit == s->c.n_units - 1 ? PLACE_LAST
					  : PLACE_BLOCKS + turn;
}

/* With the tiles' slices that are units by themselves. */
static inline int n_units(const struct store *s)
{
	return s->c.n_units * (s->c.tile ? 1 + N_TILES * s->c.part.local : 1);
}

static inline bool is_tiled(const struct store *s, const struct tensor *t)
{
	return s->c.tile && t->tile && t->users_per_slice == 1;
}

static inline int unit_of(const struct store *s, const struct tensor *t, int slice)
{
	return is_tiled(s, t) ? store_tile(s, t->unit, t->tile, slice) : t->unit;
}

static inline struct location *location_of(
	const struct store *s, const struct tensor *t, int slice)
{
	BUG_ON(slice < t->first || slice >= t->first + t->local);
	return &s->impl->location[(t - s->c.tensors) * s->c.part.local + slice -
				  t->first];
}

static inline struct bucket *bucket_of(
	const struct store *s, const struct tensor *t, int slice)
{
	return &s->impl->bucket[location_of(s, t, slice)->bucket];
}

static inline struct entry *entry_of(
	const struct store *s, const struct tensor *t, int slice)
{
	return &bucket_of(s, t, slice)->entry[location_of(s, t, slice)->entry];
}

/* bucket.c */
void buckets_make(struct store *s);
void buckets_free(struct store *s);
/* The level up to which a rank adds its own leaves: a micro-batch if round-robin, else the root. */
static inline int bucket_top(const struct store *s, const struct bucket *b)
{
	return s->c.microbatches.round_robin ? leaf_micro_level(&b->shape)
					     : b->all.plan.levels;
}

/* Pushes the leaves of a rank of the world in one use: of all its micro-batches, or round-robin of one
 * round. Returns the largest depth of the stack. */
int bucket_push(const struct store *s, const struct bucket *b, int rank, int use,
	int64_t round, struct tree_stack *stack);
/* The same for all ranks of the shards of that rank's replica. */
int bucket_push_replica(const struct store *s, const struct bucket *b, int rank, int use,
	int64_t round, struct tree_stack *stack);

/* store.c */
struct part part_rows(struct part x, int64_t first, int64_t end);

static inline int bucket_uses(const struct bucket *b)
{
	return (int)b->shape.n[LEAF_USE];
}

static inline bool bucket_has_unit(const struct bucket *b, int unit)
{
	return b->first_unit <= unit && unit <= b->last_unit;
}

/* grads.c */
/* The number of nodes in the stack of the rounds, of each use. */
int rounds_depth(const struct microbatches *mb);
/* Memory for the leaves of a bucket's unit, which is free between steps. */
float *grads_free_lease(const struct store *s, const struct bucket *b);
void grads_open(struct store *s, bool measuring);
void grads_close(struct store *s);
void grads_begin_step(struct store *s);
/* Round-robin: takes memory for the unit's leaves, after the sums of the unit that used it before. */
void grads_take_lease(struct store *s, int unit);

/* reduce.c */
/* Adds what the rank at the other end of the pipeline has for a tied weight; `other`: its buffer. */
void reduce_add_other(struct store *s, float *mine, float *other, int64_t n);
void reduce_open(struct store *s);
void reduce_close(struct store *s);
/* Completes the sum of a bucket that is in progress, if any. */
void reduce_end(struct store *s, struct bucket *b);
/* Sets the nodes that each rank contributes in a round: of one use if the uses are reduced separately,
 * else of all (-1). For round 0, also the number of this rank's buffers. */
void bucket_set_nodes(struct store *s, struct bucket *b, int use, int64_t round);

/* gather.c */
void gather_open(struct store *s, bool measuring);
void gather_close(struct store *s);
void gather_whole(struct store *s);  /* all units (ZeRO 1 and 2) */
void gather_forget(struct store *s); /* frees parameters that are out of date */

/* amax.c */
void amax_open(struct store *s, struct arena *run);
/* Makes the amax of a unit's weights known. Collective over the ranks that use the unit. */
void amax_compute(struct store *s, int unit);
/* The parameters of these units have changed. */
void amax_forget(struct store *s, int first_unit, int last_unit);

#endif
