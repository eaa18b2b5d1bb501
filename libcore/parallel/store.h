/* The parameter store: parameters, gradients and optimizer state, replicated (DDP) or sharded
 * (ZeRO, FSDP), in memory or offloaded. Layers call it without any `if` about a strategy. */
#pragma once

#include "base/base.h"
#include "comm/mesh.h"
#include "comm/requests.h"
#include "comm/sum.h"
#include "kernels/kernels.h"
#include "parallel/context.h"
#include "parallel/flip.h"
#include "parallel/microbatch.h"
#include "schedule/schedule.h"
#include "parallel/slices.h"
#include "parallel/tensor.h"

/* ---- offload_file.c, offload_host.c, offload_staged.c: offload backends ---------- */

struct offload_backend;

/* Offloads to an unlinked file in a directory. Allocates all n_bytes at once. A later I/O error
 * ends the program. NULL with *e set on failure. */
struct offload_backend *offload_file_open(
	const char *directory, int64_t n_bytes, struct err *e);
/* Offloads to pinned host memory, for a discrete device; initially zero. NULL with *e set. */
struct offload_backend *offload_host_open(
	struct device *d, int64_t n_bytes, struct err *e);
/* Offloads from a discrete device to an unlinked file, through offload_staging_bytes(n_bytes) of
 * pinned memory. NULL with *e set on failure. */
struct offload_backend *offload_staged_open(
	struct device *d, const char *directory, int64_t n_bytes, struct err *e);
int64_t offload_staging_bytes(int64_t n_bytes);
void offload_backend_close(struct offload_backend *x); /* NULL: nothing */

/* ---- store.c: parameters, gradients and optimizer state -------------------------- */

/* FSDP's reshard_after_forward: frees parameters that were gathered for the forward after it.
 * KEEP_LAST: except the parameters of the last block. */
enum reshard { RESHARD_YES, RESHARD_NO, RESHARD_KEEP_LAST };
#define RESHARD_WORDS "yes", "no", "keep-last"

/* What is kept in a file or in the memory of a GPU's host: the optimizer's moments; or moments and
 * gradients, which are written one unit at a time; or moments and parameters, which are read one
 * unit at a time (and gathered if they are sharded); or all three. */
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

/* State groups: a group is one fp32 value per element of the model. Group 0 is the parameters; the
 * caller of store_new() adds groups for the optimizer and for local SGD. Checkpoints store a group
 * as /NAME/TENSOR. The memory plan reports its bytes under its owner. The gradient lasts for one
 * step only and is not a group, but it is visited and offloaded like one. */
enum { STORE_PARAM, STORE_MAX_GROUPS = 12, STORE_GRAD = STORE_MAX_GROUPS };
#define STORE_BIT(group) (1u << (group))
enum store_owner { STORE_MODEL, STORE_OPTIMIZER, STORE_OUTER };

struct store_groups {
	struct store_group {
		const char *name;
		enum store_owner owner;
	} list[STORE_MAX_GROUPS];
	int n; /* 0: only the parameters */
};

/* Sets *g to the parameters alone. */
void store_groups_begin(struct store_groups *g);
/* Returns the number of the new group. */
int store_groups_add(struct store_groups *g, const char *name, enum store_owner owner);
/* Returns the number of the group of that name, or -1. */
int store_groups_find(const struct store_groups *g, const char *name);

struct store_config {
	struct mesh *mesh;
	struct device *device;
	struct tensor *tensors; /* after tensors_place() */
	int n_tensors, n_units;
	struct tensor_part part; /* the argument of tensors_place(), with ep and place */
	bool has_both_ends; /* one rank has both the first and the last pipeline stage */
	int chunks;	    /* virtual chunks per micro-batch */
	struct microbatches microbatches; /* n_micro 0: no gradients */
	/* The ZeRO stage, over fsdp x cp: 0 shards nothing, 1 the optimizer's state, 2 also the
	 * gradients, 3 also the parameters (Rajbhandari et al. 2020; FSDP, Zhao et al. 2023). */
	int zero;
	struct store_groups groups; /* store_new() adds the parameters to an empty one */
	int workers; /* local SGD: workers whose gradients are summed in a warm-up; 0: none */
	bool flat; /* shards a unit's tensors as one vector (FSDP1), else each tensor */
	int64_t bucket_bytes; /* minimum size of a gradient bucket */
	int64_t sum_segment; /* floats that ranks exchange at once in a sum; 0: the default */
	bool check_sums;     /* checksums of all sums of gradients; needs host memory */
	uint64_t seed;	     /* seed of the checksums' weights */
	enum reshard reshard;
	bool tile; /* each slice of a tile is a unit of its own, see store_tile_unit() */
	/* The type in which operands are gathered: DT_F32 or a 16-bit type. With a 16-bit type, the
	 * operands of float8 matmuls are gathered in 8 bits (then parameters are not offloaded).
	 * Matmuls round their operands to this type anyway, so the bits are the same. */
	enum dtype wire;
	/* Parameters: only with zero 3, or if nothing is sharded; gradients: only round-robin. */
	enum offload offload;
	bool offload_outer; /* offloads the groups of STORE_OUTER, whatever `offload` is */
	/* Backend of bytes.offloaded bytes, owned by the caller; NULL in a plan. */
	struct offload_backend *offload_backend;
	void *gradient_memory; /* the caller's memory for gradients; NULL: the store allocates it */
	/* The type of the copies of parameters that matmuls read, on a device that stores half
	 * precision. A copy is kept where this rank updates whole tensors in memory; otherwise it
	 * is gathered or read. DT_F32: no copies. */
	enum dtype copy;
};

/* Whole rows of a slice, with their gradient and state. A vector has rows of one element. */
struct part {
	const struct tensor *t;
	int slice;
	int64_t row, rows, cols; /* within the slice */
	int64_t pos; /* index of its first element among the floats that this rank updates */
	/* NULL: offloaded (see store_for_each_part()) or no such group; likewise the gradient g. */
	float *state[STORE_MAX_GROUPS];
	float *g;
	struct mat copy; /* copy of the parameter in store_config.copy; p NULL: none */
};

/* Bytes that the store keeps, for the memory plan. */
struct store_bytes {
	int64_t params, grads, optimizer, gathered, buffers;
	int64_t copies;	   /* 16-bit copies of the parameters; included in params */
	int64_t outer;	   /* groups of STORE_OUTER */
	int64_t offloaded; /* in the offload backend */
};

struct store {
	struct store_config c;
	const struct store_audit *audit; /* (store_audit.h); NULL: nothing is audited */
	struct flips *flips;		 /* bits to flip (--inject-flip); NULL: none */
	struct store_bytes bytes;
	/* The n_updated parts that this rank updates, then its parts of frozen tensors. All
	 * replicas of a shard have the same parts. */
	struct part *updated;
	int64_t n_updated, n_held;
	/* For norms and hashes: each element of the model is counted on exactly one rank. */
	struct part *counted;
	int64_t n_counted, n_counted_held;
	int64_t read, written; /* bytes of offloaded state, so far */
	/* Adds the other workers' sums to this rank's n elements, in store_step_end(); or NULL. */
	void (*add_workers)(void *arg, int64_t *sum, int64_t n);
	void *add_workers_with;
	int after; /* the unit used after the current pass (see UNIT_AFTER), or -1 */
	struct store_impl *impl;
};

/* Collective over the world. Parameters and moments are allocated from `run`; with a measuring
 * arena (for a plan) nothing may be read or written. */
struct store *store_new(const struct store_config *c, struct arena *run);
void store_free(struct store *s);
/* Returns the peak of gradients, gathered parameters and buffers, which are not in `run`. */
int64_t store_peak_bytes(const struct store *s);

/* In a step of one micro-batch, gradients may overwrite activations that the backward no longer
 * needs. live[n_units]: length of the prefix of the activations' memory that is in use while the
 * backward writes the gradients of a unit. all: bytes of that memory. Returns the offset in it at
 * which the gradients may begin; `all` (no overlap) if ranks share the memory of gradients. */
int64_t store_gradients_offset(const struct store *s, const int64_t *live, int64_t all);
/* Returns the bytes of the gradients' memory. */
int64_t store_gradients_bytes(const struct store *s);

/* Calls with a unit are collective: all ranks that share the unit make them in the same order. */

/* Gathers the unit's parameters until store_done(). `next`: the unit that is used after this one,
 * which may be prefetched; or -1. UNIT_AFTER, for the last unit of a pass, stands for s->after. */
enum { UNIT_AFTER = -2 };
void store_use(struct store *s, int unit, int next);
/* Sets a function to be called before a unit's parameters are used or gathered, or NULL. */
void store_before_use(struct store *s, void (*fn)(void *arg, int unit), void *arg);
/* Ends a use that store_use() began. */
void store_done(struct store *s, int unit, bool backward);
/* Returns the unit number of a slice of a unit's tile, for store_use(), store_done() and
 * store_reduce() while the unit is in use; -1: without tiles the slice belongs to the unit. */
enum { N_TILES = 6 };
int store_tile_unit(const struct store *s, int unit, int tile, int slice);
/* Returns a slice of a parameter in fp32; a vector is one row. A stack of experts has only the rows
 * of this rank's experts (tensor.held_rows). p NULL: only a copy exists. */
struct mat store_param(struct store *s, const struct tensor *t, int slice);
/* Returns the copy of a slice in store_config.copy; p is NULL if there is none. */
struct mat store_operand(struct store *s, const struct tensor *t, int slice);
/* Returns the amax of a whole float8 operand, in device memory. */
float *store_amax(const struct store *s, const struct tensor *t);
/* Returns the buffer for a leaf of a gradient: the contribution of one use of a parameter slice, in
 * one chunk of a micro-batch, by one virtual slice. store_leaf_done() follows when it is written.
 * Leaves may be written in any order, one per slice at a time; the store adds them as integers. */
struct mat store_leaf(struct store *s, const struct tensor *t, int slice);
void store_leaf_done(struct store *s, const struct tensor *t, int slice);
/* Adds a leaf that is in x, of any type. x may be overwritten afterwards. */
void store_add_leaf(struct store *s, const struct tensor *t, int slice, struct mat x);
/* The leaf of a stack of experts is written expert by expert: returns the buffer for the rows of an
 * expert, store_leaf_block_done() follows when they are written. An expert that is left out counts
 * as zero. store_leaves_written() follows when n leaves are complete. `expert` counts all experts
 * of the layer. Leaves may be interleaved, but an expert has one buffer. */
struct mat store_leaf_block(
	struct store *s, const struct tensor *t, int slice, int expert);
void store_leaf_block_done(
	struct store *s, const struct tensor *t, int slice, int expert);
/* Adds an expert's rows of a leaf that are in x, of any type. x may be overwritten afterwards. */
void store_add_leaf_block(
	struct store *s, const struct tensor *t, int slice, int expert, struct mat x);
void store_leaves_written(struct store *s, const struct tensor *t, int slice, int64_t n);
/* Reduces a unit's gradients, after all its leaves in a micro-batch are written: in each round, or
 * after this rank's last micro-batch (microbatch.h). `use` is 0, but the uses of a tied weight's
 * tile are reduced separately: first 1 (the output layer), then 0. */
void store_reduce(struct store *s, int unit, int use);
/* The rows [first, first + rows) that a rank updates of the i-th slice that it holds. `rank`: a
 * rank of the mesh's world in the same pipeline stage. */
struct store_rows {
	int slice;
	int64_t first, rows;
};
struct store_rows store_rows_of(
	const struct store *s, const struct tensor *t, int i, int rank);
/* Returns the gradient of this rank's rows of a slice, from store_step_end() to the next step: in
 * memory, or read into `buffer` if it is offloaded. store_gradient_end() writes it in that case. */
float *store_gradient_begin(
	struct store *s, const struct tensor *t, int slice, float *buffer);
void store_gradient_end(
	struct store *s, const struct tensor *t, int slice, const float *x);
/* Sets the exponent of the step's grid (kernels/grid.h) and resets its counters. */
void store_set_grid(struct store *s, int exponent);
/* Adapts to new contents of c.microbatches.begin, between two steps. Equal on all ranks. */
void store_set_turns(struct store *s);
/* After store_norm_enqueue(): copies this rank's checksum of a step's sums to a word in device
 * memory. The words of all ranks add up to 0, modulo GRID_PRIME, unless a sum went wrong. */
void store_check_sums(struct store *s, uint64_t *word);
/* Locates wrong sums in the step that follows. Collective over the world. */
void store_locate_sums(struct store *s);
/* Ends this, and appends the ranks and buckets whose sums were wrong. Returns false if all were
 * right. Collective over the world. */
bool store_located_sums(struct store *s, struct str *out);
/* Completes all sums, so that the parts have their gradients. Collective. */
void store_step_end(struct store *s);
/* Adopts changed parameters (`copies`: and copies). Gathers them with ZeRO 1 and 2. */
void store_updated(struct store *s, bool copies);
/* Discards everything that was gathered or computed from parameters that have changed since. */
void store_forget(struct store *s);
/* Discards what was computed from a unit, not gathered now. Every rank that uses it calls this. */
void store_forget_unit(struct store *s, int unit);
/* Discards the leaves of this rank that were not reduced. */
void store_discard_leaves(struct store *s);
/* Enqueues the sum of squares of the counted parts' gradients: in double within a row, exact over
 * rows. store_norm_squares() returns the result, in device memory. */
void store_norm_enqueue(struct store *s);
struct exact *store_norm_squares(const struct store *s);
/* Returns a hash of all parameters, independent of the layout. Collective over the world. */
uint64_t store_hash(struct store *s);
/* Gathers rows [row, row + n) of a whole tensor on rank `to`, in `out`. A vector has dims[0]
 * rows. All groups of a frozen tensor except the parameters are 0. Collective over the world. */
void store_collect(struct store *s, int group, int tensor, int64_t row, int64_t n, int to,
	float *out);
/* Returns true if every rank has all parameters and state in memory. Then store_collect() sends no
 * messages, and several threads may call it at once if the device uses host memory. */
bool store_is_whole(const struct store *s);
/* Returns true if this rank has any of rows [row, row + n) of a whole tensor. */
bool store_has_rows(const struct store *s, int tensor, int64_t row, int64_t n);
/* Stores the rows in [row, row + n) of a whole tensor that this rank has. */
void store_write_rows(
	struct store *s, int group, int tensor, int64_t row, int64_t n, const float *in);
/* Stores the elements of a block, [rows][cols], of a whole tensor that this rank has. */
void store_write_block(struct store *s, int group, int tensor,
	const struct tensor_block *b, const float *in);

/* ---- offload.c: state, in memory or offloaded ------------------------------------ */

typedef void store_visit(void *arg, const struct part *x);
/* Calls fn for all rows of the parts that this rank updates (or counts), in order. Includes
 * frozen parts if only parameters are read and written. A part may be visited in several runs of
 * rows. `reads`, `writes`: bits of the groups (or STORE_GRAD) that fn reads and writes. fn may
 * read further groups only if they are not offloaded. */
void store_for_each_part(struct store *s, bool counted, unsigned reads, unsigned writes,
	store_visit *fn, void *arg);

/* Returns the number of floats per group that this rank updates. */
int64_t store_floats(const struct store *s);
/* Returns floats [pos, pos + n) of these, in `buffer` if offloaded; store_end() writes them. */
float *store_begin(struct store *s, int group, int64_t pos, int64_t n, float *buffer);
void store_end(struct store *s, int group, int64_t pos, int64_t n, const float *x);
/* Recomputes the copies, if any, of the parameters at these positions. */
void store_refresh_copies(struct store *s, int64_t pos, int64_t n);
bool store_offloads(const struct store *s, int group);
/* Flips a bit of this rank's parameters, copies, gradient or first moment, if a flip is due. */
void store_flip(struct store *s, enum flip_place place);
