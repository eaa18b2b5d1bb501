/* Shared by the files of the store only: buckets, and what is in them. */
#ifndef PARALLEL_STORE_INTERNAL_H
#define PARALLEL_STORE_INTERNAL_H

#include "parallel/leaves.h"
#include "parallel/store.h"

/* A slice of a tensor in a bucket. */
struct entry {
	struct tensor *t;
	int slice;
	int64_t rows, cols; /* an element of a vector is a row */
	int64_t at;	    /* in the bucket's vector */
	int64_t *bounds; /* [shards + 1]: shard i has rows [bounds[i], bounds[i + 1]) */
	int64_t *packed; /* [shards]: where these begin in the packed shard */
	struct tree_stack stack[2]; /* of the leaves of this rank, by use */
};

/* Slices of neighbouring units that the same ranks share, as one vector. */
struct bucket {
	int first_unit, last_unit;
	struct entry *entry;
	int n_entries;
	int64_t n; /* floats of the vector, which begins each entry on a cache line */
	enum dtype wire; /* what it is gathered as */
	/* Whose it is, and how its gradient is summed. */
	struct mesh_part group;
	struct comm *c;
	int *ranks;		 /* [size]: of the world */
	struct sum_shard *shard; /* [shards] */
	struct sum_plan plan;
	struct leaf_shape shape;
	struct sum_nodes *nodes; /* [size]: of the sum that is under way, or next */
	/* Of a tied weight that two stages have: this one's use is all of the tree, and the
	 * other's sum is added at the end of the step. */
	bool tied;
	/* A tile of a tied weight whose uses are summed one after the other, each as a round by
	 * turns has its leaves, so that they need one use's memory. */
	bool apart;
	/* Buffers of this rank's leaves, [n] each: of use u from depth * u on. */
	int depth, n_buffers;
	float **buffer;
	int64_t n_scratch; /* floats, of a round in which all have leaves */
	float *scratch;	   /* for messages */
	/* The sums of micro-batches that were summed by turns, of this rank's piece: by use, a
	 * stack and its buffers; and its nodes, for the sum of all. */
	struct tree_stack turns[2];
	float **turn_buffer[2];
	struct tree_part *turn_nodes;
	float *other;		    /* tied: the other stage's sum */
	struct tree_sum *sum;	    /* under way */
	int64_t round[2];	    /* of the next sum by turns, by use */
	int units_left;		    /* of this step, before all leaves are there */
	struct comm_shared *shared; /* or NULL */
	int64_t *from;		    /* [size]: where buffers begin there */
	int slot;
	/* Parameters, optimizer state and gradient of this rank's shard, packed. */
	float *state[STORE_MAX_GROUPS], *g;
	int64_t at; /* of all shards of this rank, one after the other; elsewhere too */
	/* All parameters of the vector, while they are here, and as products take them; one of both
	 * may be all that there is. */
	float *whole;
	char *copy;
};

/* Memory for the leaves of a unit, until they are summed by turns. */
struct lease {
	int unit;  /* who has it; -1: nobody */
	bool open; /* leaves still come */
	float *memory;
	int64_t n; /* floats */
};

/* Memory for the parameters of a unit, gathered from their shards. */
struct gathered {
	int unit, users; /* -1: nothing is here */
	bool ready;
	uint64_t ticket; /* of what is read */
	float *memory;
	int64_t n;
	struct comm_requests requests; /* of its buckets */
};

/* Where a slice of a tensor is. */
struct where {
	int bucket, entry;
};

/* Blocks take turns in two places, and so do tiles; the first and the last unit have their
 * own: the embedding is in use while others are. */
enum { OF_FIRST, OF_LAST, OF_BLOCKS, OF_TILES = OF_BLOCKS + 2, N_PLACES = OF_TILES + 2 };

/* What is kept elsewhere: the groups, and after them copies of parameters as products take them. */
enum { STORE_COPY = STORE_MAX_GROUPS, N_OFFLOADED };

/* Pieces of that, by group: one that is used, one that comes and, where both go on at once, one
 * that goes. */
enum { OFFLOAD_SLOTS = 3 };
struct offload_pieces {
	int64_t region, floats;	    /* of the place for a group, of a piece: floats */
	int64_t begin[N_OFFLOADED]; /* of the regions, in bytes */
	void *piece[OFFLOAD_SLOTS][N_OFFLOADED];
	int n_slots;
};

struct store_own {
	struct bucket *bucket;
	int n_buckets;
	struct where *where; /* [n_tensors][slices here] */
	void (*before_use)(void *with, int unit);
	void *before_use_with;
	float *state[STORE_MAX_GROUPS]; /* [n_floats], NULL: elsewhere, or none */
	int64_t n_floats;
	int64_t n_collected;   /* calls of store_collect(), the same on all ranks */
	struct exact *squares; /* the device's */
	uint64_t *hashes;      /* the device's: [n_buckets + 1] */
	int n_shards, shard;   /* over fsdp x cp; which one this rank has */
	struct comm *shards;   /* the ranks that have the others */
	struct arena *run;     /* the caller's */
	struct arena grad_memory, gather_memory;
	struct comm_shared **shared; /* one a group of buckets that are summed whole */
	int n_shared;
	struct lease lease[N_PLACES];
	int turn, tile_turn;	   /* whose the next lease is */
	struct gathered *gathered; /* [N_PLACES], or one a unit with RESHARD_NO */
	int n_gathered;
	struct offload_pieces offload;
};

/* Which place a unit takes. */
static inline int place_of(const struct store *s, int unit, int turn)
{
	return unit >= s->c.n_units	  ? OF_TILES + turn
	       : unit == 0		  ? OF_FIRST
	       : unit == s->c.n_units - 1 ? OF_LAST
					  : OF_BLOCKS + turn;
}

/* Units, and the tiles' slices that are units by themselves. */
static inline int n_units(const struct store *s)
{
	return s->c.n_units * (s->c.tile ? 1 + N_TILES * s->c.part.here : 1);
}

static inline bool is_tiled(const struct store *s, const struct tensor *t)
{
	return s->c.tile && t->tile && t->users_per_slice == 1;
}

static inline int unit_of(const struct store *s, const struct tensor *t, int slice)
{
	return is_tiled(s, t) ? store_tile(s, t->unit, t->tile, slice) : t->unit;
}

static inline struct where *where_of(
	const struct store *s, const struct tensor *t, int slice)
{
	BUG_ON(slice < t->first || slice >= t->first + t->here);
	return &s->own->where[(t - s->c.tensors) * s->c.part.here + slice - t->first];
}

static inline struct bucket *bucket_of(
	const struct store *s, const struct tensor *t, int slice)
{
	return &s->own->bucket[where_of(s, t, slice)->bucket];
}

static inline struct entry *entry_of(
	const struct store *s, const struct tensor *t, int slice)
{
	return &bucket_of(s, t, slice)->entry[where_of(s, t, slice)->entry];
}

/* bucket.c: what lies where */
void buckets_make(struct store *s);
void buckets_free(struct store *s);
/* Levels that the nodes of this rank's leaves grow to: a micro-batch, where these are summed
 * by turns. */
static inline int bucket_top(const struct store *s, const struct bucket *b)
{
	return s->c.microbatches.by_turns ? leaf_micro_level(&b->shape) : b->plan.levels;
}

/* Pushes the leaves that a member of the group has in one use: of all its micro-batches, or
 * of a round. Returns how many positions that takes at the worst moment. */
int bucket_push(const struct store *s, const struct bucket *b, int member, int use,
	int64_t round, struct tree_stack *stack);

/* store.c */
struct part part_rows(struct part x, int64_t first, int64_t end);

/* offload.c */
void offload_open(struct store *s, struct arena *run);
bool is_offloaded(const struct store *s, int group); /* kept elsewhere */
/* Are copies of the parameters kept there too, of the type of the wire? */
bool offloads_copies(const struct store *s);
/* Makes them of the parameters. */
void offload_copies(struct store *s);
/* Reads or writes elements [at, at + n) of a group, or of the copies: see offload_backend_enqueue(). */
uint64_t offload_enqueue(struct store *s, int group, bool write, void *memory, int64_t at,
	int64_t n, uint64_t after);
void offload_wait(struct store *s, uint64_t ticket);
/* Rows of a part, in the program's memory, from and to wherever they are kept. */
void part_get(struct store *s, const struct part *x, int group, int64_t row, int64_t rows,
	float *out);
void part_put(struct store *s, const struct part *x, int group, int64_t row, int64_t rows,
	const float *in);

/*
 * offload_file.c, offload_host.c: how a place for what is out of memory does its work. Requests of one
 * way are done in their order, and all after what was asked of the device before; what is asked
 * for stays the caller's until it was waited for.
 */
struct offload_backend {
	uint64_t (*ask)(struct offload_backend *, bool write, void *memory,
		int64_t n_bytes, int64_t at, uint64_t after);
	void (*wait)(struct offload_backend *, uint64_t ticket);
	void (*move)(struct offload_backend *, bool write, void *memory, int64_t n_bytes,
		int64_t at);
	void (*close)(struct offload_backend *);
};

/* From or to memory of the device, and after the request with that ticket; 0: of nothing. */
static inline uint64_t offload_backend_enqueue(struct offload_backend *x, bool write,
	void *memory, int64_t n_bytes, int64_t at, uint64_t after)
{
	return x->ask(x, write, memory, n_bytes, at, after);
}

/* What is asked for from here on, of the device and of the spill, comes after it. */
static inline void offload_backend_wait(struct offload_backend *x, uint64_t ticket)
{
	x->wait(x, ticket);
}

/* At once, after all that was asked for before; from or to the program's memory. */
static inline void offload_backend_copy(
	struct offload_backend *x, bool write, void *memory, int64_t n_bytes, int64_t at)
{
	x->move(x, write, memory, n_bytes, at);
}

/* grads.c */
void grads_open(struct store *s, bool measuring);
void grads_close(struct store *s);

/* gather.c */
void gather_open(struct store *s, bool measuring);
void gather_close(struct store *s);
/* Parameters of all units from the shards of those that update them. */
void gather_whole(struct store *s);
/* Those that are gathered are old. */
void gather_forget(struct store *s);

#endif
