/*
 * The parameter store: parameters, gradients and optimizer state, replicated (DDP) or sharded
 * (ZeRO, FSDP), in memory or offloaded. Layers call it without any `if` about a strategy.
 */
#pragma once

#include "base/base.h"
#include "comm/mesh.h"
#include "comm/requests.h"
#include "comm/sum.h"
#include "kernels/kernels.h"
#include "parallel/context.h"
#include "parallel/microbatch.h"
#include "parallel/schedule.h"
#include "parallel/slices.h"
#include "parallel/tensor.h"

/* ---- offload_file.c, offload_host.c, offload_staged.c: where state is offloaded to */

struct offload_backend;

/* An unlinked file in a directory. All of its n_bytes are allocated at once. A later I/O error ends
 * the program. NULL with *e set on failure. */
struct offload_backend *offload_file_open(
	const char *directory, int64_t n_bytes, struct err *e);
/* Pinned memory of the host, for a discrete device; initially zero. NULL with *e set. */
struct offload_backend *offload_host_open(
	struct device *d, int64_t n_bytes, struct err *e);
/* Such a file, for a discrete device, through offload_staging_bytes(n_bytes) of pinned memory. */
struct offload_backend *offload_staged_open(
	struct device *d, const char *directory, int64_t n_bytes, struct err *e);
int64_t offload_staging_bytes(int64_t n_bytes);
void offload_backend_close(struct offload_backend *x); /* NULL: nothing */

/* ---- store.c: parameters, gradients and optimizer state -------------------------- */

/* Whether parameters that were gathered for the forward are freed after it (FSDP's
 * reshard_after_forward); KEEP_LAST: except those of the last block. */
enum reshard { RESHARD_YES, RESHARD_NO, RESHARD_KEEP_LAST };
#define RESHARD_WORDS "yes", "no", "keep-last"

/* What is kept in a file or in the memory of a GPU's host: the optimizer's moments; gradients too,
 * whose sums are then written a unit at a time; parameters too, which are then read a unit at a time
 * (and gathered if they are sharded); or all of these. */
enum offload {
	OFFLOAD_NONE,
	OFFLOAD_OPTIMIZER,
	OFFLOAD_GRADS,
	OFFLOAD_PARAMS,
	OFFLOAD_ALL
};
#define OFFLOAD_WORDS "none", "optimizer", "grads", "params", "all"

static inline bool offloads_grads(enum offload o)
{
	return o == OFFLOAD_GRADS || o == OFFLOAD_ALL;
}

static inline bool offloads_params(enum offload o)
{
	return o == OFFLOAD_PARAMS || o == OFFLOAD_ALL;
}

/* The groups: fp32 values that are kept for every element of the model. Group 0 is the parameters;
 * the caller of store_open() adds the state of the optimizer and of local SGD. Checkpoints store a
 * group as /NAME/TENSOR. The memory plan reports its bytes under its owner. The gradient, which
 * belongs to a step, is no group, but is visited and offloaded like one. */
enum { STORE_PARAM, STORE_MAX_GROUPS = 12, STORE_GRAD = STORE_MAX_GROUPS };
#define STORE_BIT(group) (1u << (group))
enum store_owner { STORE_MODEL, STORE_OPTIMIZER, STORE_OUTER };

struct store_groups {
	struct store_group {
		const char *name;
		enum store_owner owner;
	} of[STORE_MAX_GROUPS];
	int n; /* 0: only the parameters */
};

/* The parameters alone. */
void store_groups_begin(struct store_groups *g);
/* Returns the number of the new group. */
int store_groups_add(struct store_groups *g, const char *name, enum store_owner owner);
/* The number of the group of that name, or -1. */
int store_groups_find(const struct store_groups *g, const char *name);

struct store_config {
	struct mesh *mesh;
	struct device *device;
	struct tensor *tensors; /* after tensors_place() */
	int n_tensors, n_units;
	struct tensor_part part; /* the argument of tensors_place() */
	bool ends_meet; /* one rank of the pipeline has its first stage and its last one */
	int chunks;	/* virtual, a micro-batch */
	struct microbatches microbatches; /* n_micro 0: no gradients */
	/* The ZeRO stage, over fsdp x cp: 0 shards nothing, 1 the optimizer's state, 2 gradients
	 * too, 3 parameters too (Rajbhandari et al. 2020; FSDP, Zhao et al. 2023). */
	int zero;
	struct store_groups groups; /* store_open() adds the parameters to an empty one */
	int workers; /* of local SGD whose gradients are summed in a warm-up; 0: none */
	bool flat;   /* shards a unit's tensors as one vector (FSDP1), else each tensor */
	int64_t bucket_bytes; /* gradients are reduced in buckets of at least this */
	int64_t sum_segment; /* floats that ranks exchange at once in a sum; 0: the default */
	enum reshard reshard;
	bool tile; /* each slice of a tile is a unit by itself, see store_tile() */
	/* The type in which operands are gathered: DT_F32 or a 16-bit type; in the latter case those of
	 * float8 matmuls in 8 bits (then parameters are not offloaded). Matmuls round their operands
	 * to it anyway, so the bits are the same. */
	enum dtype wire;
	/* offloads_params(): only with zero 3, or if nothing is sharded. offloads_grads(): only with
	 * micro-batches assigned round-robin. */
	enum offload offload;
	bool offload_outer; /* the groups of STORE_OUTER, whatever `offload` is */
	/* It has bytes.offloaded bytes, and is the caller's; NULL in a plan. */
	struct offload_backend *offload_backend;
	void *gradients_at; /* the caller's memory for them; NULL: the store allocates it */
	/* The type of the copies of parameters that matmuls read, on a device that stores half
	 * precision: kept where this rank updates whole tensors in memory, or gathered or read as
	 * such. DT_F32: no copies. */
	enum dtype copy;
};

/* Whole rows of a slice, with their gradient and state. An element of a vector is a row. */
struct part {
	const struct tensor *t;
	int slice;
	int64_t row, rows, cols; /* within the slice */
	int64_t at; /* of its first element, among the floats that this rank updates */
	/* NULL: offloaded, see store_for_each_part(), or no such group; and so is the gradient g. */
	float *state[STORE_MAX_GROUPS];
	float *g;
	struct mat copy; /* of the parameter, in store_config.copy; p NULL: none */
};

/* Bytes that the store keeps, for the memory plan. */
struct store_bytes {
	int64_t params, grads, optimizer, gathered, buffers;
	int64_t copies;	   /* of the parameters, in 16 bits; included in params */
	int64_t outer;	   /* of STORE_OUTER */
	int64_t offloaded; /* in the offload backend */
};

struct store {
	struct store_config c;
	struct store_bytes bytes;
	/* The parts that this rank updates, and behind them its parts of frozen tensors; replicas of a shard
	 * have the same ones. */
	struct part *updated;
	int64_t n_updated, n_held;
	/* For norms and hashes: each element of the model is counted on exactly one rank. */
	struct part *counted;
	int64_t n_counted, n_counted_held;
	int64_t read, written; /* bytes of offloaded state, so far */
	/* Unless NULL: adds what this rank has in the other workers to n elements, in store_step_end(). */
	void (*add_workers)(void *with, int64_t *sum, int64_t n);
	void *add_workers_with;
	int after; /* the unit that is used after the current pass: UNIT_AFTER; or -1 */
	struct store_impl *impl;
};

/* Collective over the world. Parameters and moments are allocated from `run`; with a measuring
 * arena (for a plan) nothing may be read or written. */
struct store *store_open(const struct store_config *c, struct arena *run);
void store_free(struct store *s);
/* The peak of what it allocated beside `run`: gradients, gathered parameters and buffers. */
int64_t store_peak_bytes(const struct store *s);

/*
 * For a step of one micro-batch, whose gradients may replace activations that the backward no longer needs.
 * live: bytes of the activations' memory, from its begin on, that are in use while the backward writes the
 * gradients of a unit, [n_units]; all: its bytes. Returns the first byte of it where gradients may begin;
 * `all`: behind it, as where ranks of a host share memory.
 */
int64_t store_gradients_over(const struct store *s, const int64_t *live, int64_t all);
/* The bytes of the gradients' memory. */
int64_t store_gradients_bytes(const struct store *s);

/* Calls with a unit are collective: all ranks that share it make them in the same order. */

/* Gathers the unit's parameters until store_done(). `next`: the unit that is used after this one,
 * which may be prefetched; or -1. The last unit of a pass is followed by what the executor of passes
 * has set in s->after. */
enum { UNIT_AFTER = -2 };
void store_use(struct store *s, int unit, int next);
/* Sets a function that is called before the parameters of a unit are used, or are gathered for
 * use; NULL: none. */
void store_before_use(struct store *s, void (*fn)(void *with, int unit), void *with);
/* Ends a use, in a backward or a forward. */
void store_done(struct store *s, int unit, bool backward);
/* With tiles, each slice of the tensors of a unit's tile is used, done and reduced by itself, while
 * the unit is in use. Returns its unit number for these calls; -1: it is used with the unit. */
enum { N_TILES = 6 };
int store_tile(const struct store *s, int unit, int tile, int slice);
/* Between use and done: a slice of a parameter in fp32. A vector is a row. p is NULL if only the
 * copy is on this rank. */
struct mat store_param(struct store *s, const struct tensor *t, int slice);
/* Its copy in store_config.copy; p is NULL without one. */
struct mat store_operand(struct store *s, const struct tensor *t, int slice);
/* The amax of a float8 operand, whole, in the device's memory. */
float *store_amax(const struct store *s, const struct tensor *t);
/* The buffer for a leaf of a gradient, which is what one use of a parameter in one chunk of a micro-batch
 * contributes, by one of the virtual slices that use its slice; and the call after it is written. Leaves
 * may be written in any order, one of a slice at a time; the store adds them as integers. */
struct mat store_leaf(struct store *s, const struct tensor *t, int slice);
void store_leaf_done(struct store *s, const struct tensor *t, int slice);
/* The leaf is x, of any type, which may be overwritten afterwards. */
void store_take_leaf(struct store *s, const struct tensor *t, int slice, struct mat x);
/* Reduces the gradients of a unit, after all of its leaves of a micro-batch are written: in each round, or after
 * this rank's last micro-batch in the step (microbatch.h). `use` is 0; or for a tile of a tied weight, whose uses
 * are summed at different times, first 1, the output layer's, then 0. */
void store_reduce(struct store *s, int unit, int use);
/* The rows [first, first + rows) that a rank updates of the i-th slice that it holds. `rank`: in the
 * mesh's world, of the same pipeline stage. */
struct store_rows {
	int slice;
	int64_t first, rows;
};
struct store_rows store_rows_of(
	const struct store *s, const struct tensor *t, int i, int rank);
/* The gradient of this rank's rows of a slice, from store_step_end() to the next step: in memory, or
 * read into `room` if it is offloaded. store_gradient_end() writes it in that case. */
float *store_gradient_begin(
	struct store *s, const struct tensor *t, int slice, float *room);
void store_gradient_end(
	struct store *s, const struct tensor *t, int slice, const float *x);
/* The exponent of the step's grid (kernels/grid.h); nothing is beyond it yet. */
void store_set_grid(struct store *s, int exponent);
/* Completes all sums: the parts have their gradients. Collective. */
void store_step_end(struct store *s);
/* To be called after parameters of the parts have changed, and with `copies` their copies too. With
 * ZeRO 1 and 2, an all-gather. */
void store_updated(struct store *s, bool copies);
/* Forgets what was gathered or computed from parameters that have changed since. */
void store_forget(struct store *s);
/* Forgets those of a unit that is not gathered now. Every rank that uses it calls this. */
void store_forget_unit(struct store *s, int unit);
/* Discards the leaves of this rank that were not reduced. */
void store_drop(struct store *s);
/* Enqueues the sum of squares of the gradients of the counted parts: in double within a row, exactly
 * over rows. The result, store_norm_squares(), is in the device's memory. */
void store_norm_enqueue(struct store *s);
struct exact *store_norm_squares(const struct store *s);
/* Collective over the world: a hash of all parameters, independent of the layout. */
uint64_t store_hash(struct store *s);
/* Collective over the world: do all replicas of a shard have the same bits? Appends the ranks that
 * differ from the first replica. */
bool store_replicas_agree(struct store *s, struct str *differing);
/* Collective over the world: gathers rows [row, row + n) of a whole tensor on rank `to`, in `out`. A
 * vector has dims[0] rows. Of a frozen tensor, all groups but the parameters are 0. */
void store_collect(struct store *s, int group, int tensor, int64_t row, int64_t n, int to,
	float *out);
/* Does every rank have all parameters and state in memory? Then store_collect() sends no messages,
 * and several threads may call it at once if the device's memory is the host's. */
bool store_is_whole(const struct store *s);
/* Stores rows [row, row + n) of a whole tensor that this rank updates; store_wants(): are there any? */
bool store_wants(const struct store *s, int tensor, int64_t row, int64_t n);
void store_put(
	struct store *s, int group, int tensor, int64_t row, int64_t n, const float *in);

/* ---- offload.c: state, in memory or offloaded ------------------------------------ */

typedef void store_visit(void *with, const struct part *x);
/* Calls fn for all rows of the parts that this rank updates (or counts), in order, and of frozen ones too if
 * only parameters are read and written; a part may be visited in several runs of rows. `reads`, `writes`: bits of the groups, or of STORE_GRAD, that fn
 * reads, and of those that it writes. It may read others only if they are not offloaded. */
void store_for_each_part(struct store *s, bool counted, unsigned reads, unsigned writes,
	store_visit *fn, void *with);

/* Access by position: floats [at, at + n) of a group, of the store_floats() that this rank
 * updates. store_begin() returns them in memory or reads them into `room`; store_end() writes
 * them if they are offloaded. */
int64_t store_floats(const struct store *s);
float *store_begin(struct store *s, int group, int64_t at, int64_t n, float *room);
void store_end(struct store *s, int group, int64_t at, int64_t n, const float *x);
/* Refreshes the copies, if any, of the parameters at these positions. */
void store_copy(struct store *s, int64_t at, int64_t n);
bool store_offloads(const struct store *s, int group);
