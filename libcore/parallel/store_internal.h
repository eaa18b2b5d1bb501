/* For the files of the store only: its buffers and internal functions. */
#pragma once

#include "parallel/bucket.h"
#include "parallel/offload.h"

/* With round-robin micro-batches: memory for the leaves of a unit, until they are reduced. */
struct lease {
	int unit;  /* the unit that uses it, or -1 */
	bool open; /* more leaves will be written */
	float *memory;
	int64_t n; /* floats */
};

/* Memory for the gathered parameters of a unit. */
struct gathered {
	int unit, users; /* unit -1: free */
	bool ready;
	uint64_t ticket; /* ticket of the last read from the offload backend */
	float *memory;
	int64_t n;
	struct comm_requests requests[N_SHARDINGS]; /* messages of its buckets */
};

/* The bucket and the entry of a slice of a tensor. */
struct location {
	int bucket, entry;
};

/* Memory for units. Blocks alternate between two places (double buffering), and so do tiles. The
 * first and the last unit have own places, since the embedding is in use while other units are. */
enum {
	PLACE_FIRST,
	PLACE_LAST,
	PLACE_BLOCKS,
	PLACE_TILES = PLACE_BLOCKS + 2,
	N_PLACES = PLACE_TILES + 2
};

/* Checksums of sums (check_sums.h). */
struct store_checks {
	uint32_t *u; /* weights, device memory; NULL: sums are not checked */
	struct philox_key key;
	/* [buckets][N_CHECK][ranks of the world], device memory, while a wrong sum is located; else
	 * NULL. */
	uint64_t *word;
	int64_t buckets, ranks, n_words;
};

struct store_impl {
	struct bucket
		*bucket; /* [n_buckets]: n_trained, then frozen ones without state */
	int n_buckets, n_trained;
	struct location *location; /* [n_tensors][local slices] */
	void (*before_use)(void *arg, int unit);
	void *before_use_with;
	/* Parameters [n_floats], other groups [n_state]; NULL: offloaded, or no such group. */
	float *state[STORE_MAX_GROUPS];
	int64_t n_floats, n_state;
	int64_t n_collected;   /* calls of store_collect(), the same on all ranks */
	struct exact *squares; /* device memory */
	struct grid *grid;     /* device memory */
	int64_t shared_bytes; /* gradient memory that this rank shares with other ranks */
	int64_t placed_bytes; /* gradient memory that belongs to single buckets */
	float *leaves; /* [n_leaves], contiguous micro-batches: leaves until they are added */
	int64_t n_leaves;
	uint64_t *hash;			       /* device memory */
	struct sharding sharding[N_SHARDINGS]; /* over fsdp x cp */
	struct arena grad_memory, gather_memory;
	struct group_queue *queue; /* [n_queues] */
	int n_queues;
	struct lease lease[N_PLACES];
	struct lease sums; /* for the sums of offloaded gradients */
	/* float8 (amax.c): NULL: no float8. */
	float *amax;	  /* [n_tensors], device memory */
	bool *amax_known; /* [n_units] */
	struct comm *amax_ranks;
	int turn, tile_turn;	   /* the place of the next lease, 0 or 1 */
	struct gathered *gathered; /* [N_PLACES]; with RESHARD_NO one per unit */
	int n_gathered;
	struct offload_pieces offload;
	struct store_checks checks;
};

/* Returns the place of a unit. `turn`: which of two alternating places, 0 or 1. */
static inline int unit_place(const struct store *s, int unit, int turn)
{
	return unit >= s->c.n_units	  ? PLACE_TILES + turn
	       : unit == 0		  ? PLACE_FIRST
	       : unit == s->c.n_units - 1 ? PLACE_LAST
					  : PLACE_BLOCKS + turn;
}

/* Returns the number of units, including tile slices that are units of their own. */
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
	return is_tiled(s, t) ? store_tile_unit(s, t->unit, t->tile, slice) : t->unit;
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

/* Returns how the bucket of a tensor is sharded. */
static inline struct sharding *sharding_of(const struct store *s, const struct tensor *t)
{
	return &s->impl->sharding[t->experts ? SHARDING_EXPERTS : SHARDING_DENSE];
}

/* Returns true if any bucket is sharded. Stacks have at most as many shards as other tensors. */
static inline bool is_sharded(const struct store *s)
{
	return s->impl->sharding[SHARDING_DENSE].n > 1;
}

/* Returns how many floats of a group this rank has. */
static inline int64_t group_floats(const struct store *s, int group)
{
	return group == STORE_PARAM || group == STORE_COPY ? s->impl->n_floats
							   : s->impl->n_state;
}

/* store.c */
struct part part_rows(struct part x, int64_t first, int64_t end);

/* grads.c */
void grads_open(struct store *s, bool measuring);
void grads_close(struct store *s);
/* Assigns memory to the leaves of a unit (round-robin), after the sums of the unit that used it. */
void grads_assign_lease(struct store *s, int unit);
/* Assigns the memory for sums to a unit (offloaded gradients), after the previous unit's sums. */
void grads_assign_sums(struct store *s, int unit);
/* Zeroes the rows of stacks that the leaves of a turn leave out, after all of them are written. */
void grads_zero_idle_experts(struct store *s, struct bucket *b);
/* Returns the leaves' memory of a bucket's unit. It is free once all leaves are added. */
float *grads_free_leaves(const struct store *s, const struct bucket *b);

/* reduce.c */
/* Completes a bucket's sum in progress, if any. */
void reduce_end(struct bucket *b);

/* gather.c */
void gather_open(struct store *s, bool measuring);
/* Frees the buffers of gathered parameters. Collective. */
void gather_close(struct store *s);
/* Gathers all units (ZeRO 1 and 2); frozen tensors only if `frozen`. */
void gather_model(struct store *s, bool frozen);
void gather_forget(struct store *s); /* frees gathered parameters that are out of date */

/* amax.c */
void amax_open(struct store *s, struct arena *run);
/* Computes the amax of a unit's weights if needed. Collective over the ranks that use the unit. */
void amax_compute(struct store *s, int unit);
/* Marks the amax of these units as unknown, after their parameters have changed. */
void amax_forget(struct store *s, int first_unit, int last_unit);
