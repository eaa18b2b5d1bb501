/*
 * parallel: what moves when. The seams through which parallelism enters the model: slices
 * of tensors (TP, SP), chunks of sequences (CP), the parameter store (DDP, ZeRO, FSDP),
 * the pipeline's schedule. Layers call these and contain no `if` about a strategy.
 *
 * Law 1: arithmetic is that of *virtual* slices, chunks and micro-batches, whose numbers
 * are fixed by the run. A rank plays one or more of each.
 */
#ifndef PARALLEL_STORE_H
#define PARALLEL_STORE_H

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

/* ---- offload_file.c, offload_host.c: a place for what does not fit into memory --------- */

struct offload_backend;

/* A file in a folder, without a name: nothing is left of it. All its room is taken at once. A
 * thread reads and writes it; an error of that ends the program. */
struct offload_backend *offload_file_open(
	const char *folder, int64_t n_bytes, struct err *e);
/* Pinned memory of the host, for a discrete device; zeros at first. */
struct offload_backend *offload_host_open(
	struct device *d, int64_t n_bytes, struct err *e);
void offload_backend_close(struct offload_backend *x); /* NULL: nothing */

/* ---- store.c: parameters, gradients and optimizer state -------------------------- */

/* A leaf of a gradient: what one use of a parameter in one chunk of one micro-batch, by one
 * virtual slice, adds. The canonical tree has them in this order. */
struct leaf {
	int64_t micro;
	int use, chunk, user;
};

/* When parameters that were gathered for the forward are dropped. */
enum reshard { RESHARD_YES, RESHARD_NO, RESHARD_KEEP_LAST };
#define RESHARD_WORDS "yes", "no", "keep-last"

/* What is kept elsewhere, in a file or in the memory of a GPU's host: the optimizer's moments, or
 * parameters too, which then are read a unit at a time (and gathered, where they are sharded). */
enum offload { OFFLOAD_NONE, OFFLOAD_OPTIMIZER, OFFLOAD_PARAMS };
#define OFFLOAD_WORDS "none", "optimizer", "params"

/*
 * The groups: fp32 values that are kept for every element of the model. Group 0 is the
 * parameters; whoever opens the store adds the state of the optimizer and of local SGD. The name
 * of a group is where checkpoints have it: /NAME/TENSOR. The owner is for the memory plan.
 */
enum { STORE_PARAM, STORE_MAX_GROUPS = 12 };
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
/* Adds a group, after that of the parameters. Returns its number. */
int store_groups_add(struct store_groups *g, const char *name, enum store_owner owner);
/* The number of the group of that name; -1: there is none. */
int store_groups_find(const struct store_groups *g, const char *name);

struct store_config {
	struct mesh *mesh;
	struct device *device;
	struct tensor *tensors; /* placed */
	int n_tensors, n_units;
	struct tensor_part part;	  /* as they were placed */
	int chunks;			  /* virtual, a micro-batch */
	struct microbatches microbatches; /* n_micro 0: only parameters, to be read */
	/* What is sharded over fsdp x cp: 0 nothing, 1 the optimizer's state, 2 gradients too,
	 * 3 parameters too (ZeRO, Rajbhandari et al. 2020; FSDP, Zhao et al. 2023). */
	int zero;
	struct store_groups groups; /* parameters need not be in it */
	bool flat; /* shards of a unit's tensors as one vector (FSDP1); else of each tensor */
	int64_t bucket_bytes; /* gradients are reduced in buckets of at least this */
	enum reshard reshard;
	bool tile; /* each slice of a tile is a unit by itself, see store_tile() */
	/* What operands are gathered as: where products round them to it anyway, the bits are
	 * the same. DT_F32, or one of 16 bits. */
	enum dtype wire;
	enum offload
		offload; /* parameters: only with zero 3, or where nothing is sharded */
	struct offload_backend
		*offload_backend; /* the caller's, of bytes.offloaded; NULL in a plan */
	/* A device that is narrow keeps copies of parameters as products take them, where this
	 * rank updates all of them and they are in memory, or parameters come as such; DT_F32: it
	 * does not. */
	enum dtype copy;
};

/* A part of a tensor: whole rows of one slice, with its gradient and optimizer state. An
 * element of a vector is a row. */
struct part {
	const struct tensor *t;
	int slice;
	int64_t row, rows, cols; /* within the slice */
	int64_t at;		 /* of its first element, in all that this rank updates */
	float *g;
	float *state
		[STORE_MAX_GROUPS]; /* NULL: elsewhere, see store_for_each_part(), or none */
	struct mat
		copy; /* of the parameter, as store_config.copy; p NULL: there is none */
};

/* What the store keeps, in bytes, for the plan. */
struct store_bytes {
	int64_t params, grads, optimizer, gathered, buffers;
	int64_t copies;	   /* of the parameters, of 16 bits; in params */
	int64_t outer;	   /* of STORE_OUTER */
	int64_t offloaded; /* elsewhere */
};

struct store {
	struct store_config c;
	struct store_bytes bytes;
	/* What the optimizer of this rank updates. Ranks of the same shard have the same. */
	struct part *updated;
	int64_t n_updated;
	/* Every element of the model on exactly one rank: for norms and hashes. */
	struct part *counted;
	int64_t n_counted;
	int64_t read, written; /* bytes of what is kept elsewhere, so far */
	struct store_own *own;
};

/* Collective over the world. `run` is where parameters and moments are kept; with a
 * measuring arena nothing may be touched. */
struct store *store_open(const struct store_config *c, struct arena *run);
void store_free(struct store *s);

/* All calls that take a unit are made in one order by all ranks that share it. */

/* From use until done the unit's parameters are here. `next`: the unit that will be used
 * after this one, or -1: it may be gathered ahead. */
void store_use(struct store *s, int unit, int next);
/* Called before the parameters of a unit are used, or gathered to be; NULL: nothing is. */
void store_before_use(struct store *s, void (*fn)(void *with, int unit), void *with);
/* The unit's parameters are not needed until the next use; in a backward, or a forward. */
void store_done(struct store *s, int unit, bool backward);
/* With tiles, a slice of what a unit's tile has is used, done and reduced by itself, while the
 * unit is in use. The number that stands for it in these calls; -1: it is used with the unit. */
enum { N_TILES = 6 };
int store_tile(const struct store *s, int unit, int tile, int slice);
/* Between use and done: a slice of a parameter. A vector is a row. p is NULL where there is only
 * a copy. */
struct mat store_param(struct store *s, const struct tensor *t, int slice);
/* Its copy; without one, p is NULL. */
struct mat store_operand(struct store *s, const struct tensor *t, int slice);
/* Where a leaf of a gradient is to be written, and that it was. The leaves of a (tensor,
 * slice, use) come in ascending order; the store sums them in the canonical tree. */
struct mat store_leaf(
	struct store *s, const struct tensor *t, int slice, const struct leaf *at);
void store_leaf_done(
	struct store *s, const struct tensor *t, int slice, const struct leaf *at);
/* To be said after each backward of a unit, when all leaves of the micro-batch were pushed;
 * `last`: it was the last of this rank's in this step. */
void store_reduce(struct store *s, int unit, bool last);
/* The same of a tile of a tied weight, whose uses are summed at different times: use 1, the
 * output's, comes first. */
void store_reduce_use(struct store *s, int unit, int use, bool last);
/* Which rows [first, first + rows) of a slice a rank updates: of slice number i of those that it has.
 * A rank of this one's stage of the pipeline, by its number in the mesh. */
struct store_rows {
	int slice;
	int64_t first, rows;
};
struct store_rows store_rows_of(
	const struct store *s, const struct tensor *t, int i, int rank);
/* Between store_step_end() and the next step: the gradient of this rank's rows of a slice. */
float *store_gradient(const struct store *s, const struct tensor *t, int slice);
/* All sums are complete: the parts have their gradient. */
void store_step_end(struct store *s);
/* The parameters of the parts have changed; and so have their `copies`. */
void store_updated(struct store *s, bool copies);
/* Forgets the leaves of this rank that were not reduced. */
void store_drop(struct store *s);
/* Asks the device for the sum of squares of what this rank counts of the gradient: of a row in
 * double, of rows exactly. Every parameter counts once. It is in the device's memory. */
void store_squares_ask(struct store *s);
struct exact *store_squares(const struct store *s);
/* A hash of all parameters that no layout changes. Collective over the world. */
uint64_t store_hash(struct store *s);
/* Collective over the world: have all ranks the same parameters that should? `who`: the
 * ranks that differ from the first that has them. */
bool store_replicas_agree(struct store *s, struct str *who);
/* Collective over the world: rows [row, row + n) of a whole tensor go to rank `to`. A vector
 * has dims[0] rows. */
void store_collect(struct store *s, int group, int tensor, int64_t row, int64_t n, int to,
	float *out);
/* Has every rank all parameters and all moments? Then rows are collected without messages; and
 * where they are in the program's memory, by several threads at once, if that is wanted. */
bool store_is_whole(const struct store *s);
/* Has this rank any of rows [row, row + n) of a whole tensor? Else it need not read them. */
bool store_wants(const struct store *s, int tensor, int64_t row, int64_t n);
/* Puts rows [row, row + n) of a whole tensor where this rank has them. */
void store_put(
	struct store *s, int group, int tensor, int64_t row, int64_t n, const float *in);

/* ---- offload.c: what the optimizer keeps, in memory or elsewhere ------------------------ */

typedef void store_visit(void *with, const struct part *x);
/* Calls fn for all rows of the parts that this rank updates, or that it counts, in order; a
 * part may come in several runs of rows. `reads`, `writes`: bits of the groups that fn looks
 * at, and of those that it changes. Others, and gradients, it may look at where they are in
 * memory only. */
void store_for_each_part(struct store *s, bool counted, unsigned reads, unsigned writes,
	store_visit *fn, void *with);

/* The same by position: of a group, floats [at, at + n) of the store_floats() that the parts
 * of this rank are in. They are in memory, or are read into `room`; and what was changed is
 * kept, or written. */
int64_t store_floats(const struct store *s);
float *store_begin(struct store *s, int group, int64_t at, int64_t n, float *room);
void store_end(struct store *s, int group, int64_t at, int64_t n, const float *x);
/* Of parameters there that have changed, the copies that products take, if there are any. */
void store_copy(struct store *s, int64_t at, int64_t n);

#endif
