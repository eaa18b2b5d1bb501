/* For the files of the store only: buckets, their buffers, and offloaded state. */
#ifndef PARALLEL_STORE_INTERNAL_H
#define PARALLEL_STORE_INTERNAL_H

#include "parallel/offload.h"

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

/* Ranks that sum vectors. */
struct sum_group {
	struct comm *c;
	int *ranks; /* [size]: of the world */
	struct sum_plan plan;
	enum sum_form
		*form; /* [size]: what each contributes to the current or next sum */
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
	/* The uses of its tensors on this stage, the virtual slices that use a slice, and log2 of the leaves
	 * of an element. */
	int uses, users, levels;
	/* The ranks that share it sum it at once, or, so that fewer bytes are sent between hosts, in two sums
	 * (within, then across).
	 * With hybrid sharding: the ranks of the shards sum their leaves (a reduce-scatter), and after the last
	 * of these sums the replicas of this rank's shard the results (an all-reduce of shards).
	 * by_host, if the ranks of the shards are on several hosts: those of a host sum their leaves, so
	 * that each has the sums of the shards of all ranks with its place on their hosts; and each time
	 * these ranks sum these. If nothing is sharded, the parts of the result are gathered within the hosts
	 * at the end of the step. */
	struct sum_group all, within, across;
	struct sum_group *leaves, *last; /* of the sums of leaves and of the last one */
	bool by_host, pending; /* pending: the second sum is to begin after the first */
	struct sum_shard
		*in_host; /* by_host: those of the first sum, if anything is sharded */
	struct sum_shard *last_shard; /* those of the second sum */
	int64_t *host_sum;	      /* by_host: the result of the first sum */
	/* A tied weight of two pipeline stages: the other stage's sum is added at the end of the step. */
	bool tied;
	/* A tile of a tied weight, round-robin: each use is reduced by itself in each round. */
	bool by_use;
	/* Where leaves are written, [n]; the sum of this rank's leaves, [n], if there may be more than one in
	 * a sum over ranks; the sum of its piece over rounds, uses and replicas, unless the sum over ranks is
	 * the last one; and, tied, that of the other stage. */
	float *leaf;
	int64_t *local, *kept, *other;
	int64_t n_local;  /* the most leaves of this rank in a sum over ranks */
	int64_t leaf_at;  /* in runs, of several: in the store's room for leaves */
	bool added;	  /* something is in `kept` */
	bool adds;	  /* the sum in progress is added to that */
	struct sum *sum;  /* in progress, or NULL */
	int64_t round[2]; /* round-robin: of the next sum, by use */
	int units_left;	  /* of this step, whose leaves are not complete */
	struct comm_shared *shared; /* memory that the ranks of a host share, or NULL */
	int64_t *from,
		*to; /* [size]: offsets of what the ranks contribute in it, and of their results */
	int slot;
	/* This rank's shard, packed: parameters, optimizer state and gradient. */
	float *state[STORE_MAX_GROUPS], *g;
	int64_t at; /* of the shard, in each group and region: all shards are concatenated */
	/* Offloaded gradients: where the sum of the rounds is in the backend, see offload_grads.c, and the
	 * ticket of the last write to it. */
	int64_t sum_at;
	uint64_t sum_written;
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
	struct grid *grid;     /* the device's */
	/* In runs: room for leaves that are added to sums. */
	float *leaves;
	int64_t n_leaves;
	uint64_t *hashes;    /* the device's: [n_buckets + 1] */
	int n_shards, shard; /* over fsdp x cp, and this rank's */
	int host_run;	     /* ranks of a host that sum gradients by host; 0: not so */
	struct comm *shards; /* the group of the ranks of the other shards */
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
/* The leaves that a rank has in a sum over ranks: of one use or of all (-1), of one round, or in runs of all
 * its micro-batches. */
int64_t bucket_leaves(
	const struct store *s, const struct bucket *b, int rank, int use, int64_t round);
/* Sets what each rank contributes to the next sum. */
void bucket_set_forms(const struct store *s, struct bucket *b, int use, int64_t round);
/* Does the sum of this rank's piece stay an int64 until the end of the step? */
bool bucket_keeps(const struct store *s, const struct bucket *b);
/* What this rank keeps: the elements of a piece of its shard, from element *first. */
int64_t bucket_piece(const struct bucket *b, int64_t *first);
/* By host, if nothing is sharded: the result is gathered within hosts, this rank's part from element
 * bucket_gathered_at() on. */
bool bucket_is_gathered(const struct bucket *b);
int64_t bucket_gathered_at(const struct bucket *b);
/* Has no other rank this rank's shard of the gradient? */
bool bucket_is_alone(const struct bucket *b);
/* Is the sum that is kept rounded in its own memory? */
bool bucket_rounds_kept(const struct store *s, const struct bucket *b);

/* store.c */
struct part part_rows(struct part x, int64_t first, int64_t end);

static inline bool bucket_has_unit(const struct bucket *b, int unit)
{
	return b->first_unit <= unit && unit <= b->last_unit;
}

/* grads.c */
/* Memory for the leaves of a bucket's unit, which is free between steps. */
float *grads_free_lease(const struct store *s, const struct bucket *b);
void grads_open(struct store *s, bool measuring);
void grads_close(struct store *s);
void grads_begin_step(struct store *s);
/* Round-robin: takes memory for the unit's leaves, after the sums of the unit that used it before. */
void grads_take_lease(struct store *s, int unit);

/* reduce.c */
void reduce_open(struct store *s);
void reduce_close(struct store *s);
/* Completes the sum of a bucket that is in progress, if any. */
void reduce_end(struct store *s, struct bucket *b);
/* By host, if nothing is sharded: begins the gather within the host, after reduce_end(). */
void reduce_gather(struct store *s, struct bucket *b);
/* Begins the last sum of a bucket, with which all is rounded. */
void reduce_finish(struct store *s, struct bucket *b);

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
