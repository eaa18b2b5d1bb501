/*
 * parallel: what moves when. The seams through which parallelism enters the model: slices
 * of tensors (TP, SP), chunks of sequences (CP), the parameter store (DDP, ZeRO, FSDP),
 * the pipeline's schedule. Layers call these and contain no `if` about a strategy.
 *
 * Law 1: arithmetic is that of *virtual* slices, chunks and micro-batches, whose numbers
 * are fixed by the run. A rank plays one or more of each.
 */
#ifndef PARALLEL_H
#define PARALLEL_H

#include "base/base.h"
#include "comm/comm.h"
#include "kernels/kernels.h"

/* ---- tensor.c: the tensor table -------------------------------------------------- */

/* Which dimension virtual slices cut. Column-parallel products cut the rows of W[out,in],
 * row-parallel ones its columns. */
enum cut { CUT_NONE, CUT_ROWS, CUT_COLS };

/* INIT_TRUNCATED: normal, drawn again beyond 3 standard deviations. */
enum init { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_TRUNCATED };

/* One row of the table: all that is known of a parameter. Names, shards, initialisation,
 * weight decay, checkpoints, plans and counts are made from it. */
struct tensor {
	char name[64];
	/* What is gathered and reduced together: 0 is the embedding, then the blocks, the
	 * last is the head. */
	int unit;
	int ndim;
	int64_t dims[2]; /* of the whole tensor */
	enum cut cut;
	bool decay;
	enum init init;
	float std;
	/* Of a tied weight 2: the embedding is use 0, the output use 1. */
	int uses;
	/* Virtual slices that it is cut into at most, 0: as many as there are. Keys and
	 * values have one for each of their heads, which several virtual slices then use. */
	int max_slices;
	/* Which of its unit's tiles has its slices: what is used together, 1 to N_TILES - 1; 0:
	 * none, it is used with the unit. */
	int tile;
	/* It is only ever an operand of products, which round it to the precision of the run. */
	bool operand;
	/* filled in by tensors_place(): */
	int slices;	    /* that it is cut into */
	int lanes;	    /* virtual slices that use one of them: all / slices */
	int64_t rows, cols; /* of a slice; a vector is one row a slice... of `cols` */
	/* Of this rank: slices [first, first + here), none where `here` is 0. */
	int first, here;
};

/* Which part of the model a rank has: virtual slices [first, first + here) of n, and the
 * tensors that its stages use (NULL: all). */
struct tensor_part {
	int n, first, here;
	const bool *used;
};

/* Cuts the tensors into slices, and notes which of them this rank has. */
void tensors_place(struct tensor *t, int n, const struct tensor_part *part);
/* The slice that virtual slice v uses, and which of its users that is. */
static inline int tensor_slice(const struct tensor *t, int v)
{
	return v / t->lanes;
}

static inline int tensor_lane(const struct tensor *t, int v)
{
	return v % t->lanes;
}

/* The element count, as users count parameters. */
int64_t tensor_size(const struct tensor *t);
/* Rows of a whole tensor as files have them: a vector has dims[0] rows of one. */
int64_t tensor_file_rows(const struct tensor *t);
/* The index in the whole tensor of the first element of a row of a slice; of a vector's
 * element. */
int64_t tensor_index(const struct tensor *t, int slice, int64_t row);

/* ---- slices.c: tensor and sequence parallelism ------------------------------------ */

/*
 * The virtual slices, and those that this rank plays: [first, first + here). The rows of the
 * residual stream of a chunk are cut into n pieces, one a virtual slice. With sequence
 * parallelism (`sp`) a rank has the rows of its own slices between the products, else all.
 */
struct slices {
	struct comm *axis;
	int n, first, here;
	bool sp;
	bool async; /* sums and gathers go on while other things are computed */
};

/* Rows [*first, *first + n) of `rows` are piece i. */
int64_t slice_piece(const struct slices *s, int64_t rows, int i, int64_t *first);
/* The rows that this rank has of the residual stream. */
int64_t slice_rows(const struct slices *s, int64_t rows, int64_t *first);
/*
 * What is computed of the rows of a chunk between its gather and its sum goes piece by piece,
 * with one rank or many, at once or not: so the shapes of products are those of the virtual
 * slices. The pieces in turn: this rank's own, then those of the ranks after it.
 */
int slice_turn(const struct slices *s, int i);

/*
 * A sum over virtual slices, by the canonical tree: the leave of a row-parallel product
 * (forward), the enter of a column-parallel one (backward). The parts, all rows, are written
 * to slots, in slice order; with one slice the slot is the result itself. `out` gets this
 * rank's rows of the residual stream (reduce-scatter), which are all without sequence
 * parallelism (all-reduce).
 */
struct slice_sum {
	const struct slices *s;
	struct device *d;
	struct mat out;
	int64_t rows;		     /* of a part */
	int64_t first, n;	     /* rows that are being pushed */
	int piece;		     /* which are a piece of one part, or -1 */
	float *part[TREE_MAX_NODES]; /* buffers, from the device's scratch */
	float *others;		     /* for what comes from other ranks */
	struct tree_stack stack;
	int next;
	struct slice_exchange *exchange; /* under way, or NULL */
	size_t mark;
};

void slice_sum_begin(struct slice_sum *x, const struct slices *s, struct device *d,
	struct mat out, int64_t rows);
/* The parts may come in blocks of rows: those of [first, first + n) are next, of all slices. */
void slice_sum_rows(struct slice_sum *x, int64_t first, int64_t n);
/* Or each part comes in its n pieces: in turn i that which slice_turn() has after this
 * rank's own, which come last. With `async`, rows that another rank waits for go there as soon
 * as the last slice here was added to them. */
void slice_sum_turn(struct slice_sum *x, int i);
struct mat slice_sum_slot(struct slice_sum *x);
void slice_sum_push(struct slice_sum *x);
/* All parts are pushed, and something else is computed before the end: with `async`, they are
 * on their way meanwhile. */
void slice_sum_send(struct slice_sum *x);
void slice_sum_end(struct slice_sum *x);

/*
 * Its dual: all rows of a chunk from this rank's (all-gather; nothing, where it has all).
 * `all` is `here` itself then, else `room`, [rows, cols]. With `async`, rows are on their way
 * from begin to end: what is here must not be written, and of what comes, a piece that was
 * waited for may be read.
 */
struct slice_gather {
	const struct slices *s;
	struct mat all;
	struct slice_mail *mail; /* under way, or NULL */
};

void slice_gather_begin(struct slice_gather *g, const struct slices *s, struct device *d,
	struct mat here, struct mat room);
void slice_gather_wait(struct slice_gather *g, int piece);
void slice_gather_end(struct slice_gather *g); /* may be said again */
/* The whole of it; returns `all`. */
struct mat slice_gather(
	const struct slices *s, struct device *d, struct mat here, struct mat room);

/* ---- context.c: context parallelism ---------------------------------------------- */

/* The virtual chunks of every sequence, zigzag: chunk i of n is pieces i and 2n-1-i of
 * 2n, so that causal work is even. */
struct chunks {
	struct comm *axis;
	int n, first, here;
	int64_t context; /* positions of the whole sequence */
	bool gather;	 /* all keys and values at once, and not by a ring */
};

/* First positions of the two runs of a chunk, and the length of one run. */
void chunk_runs(const struct chunks *c, int chunk, int64_t first[2], int64_t *len);
/* pos[context / n]: the position of each row. */
void chunk_positions(const struct chunks *c, int chunk, int32_t *pos);

/*
 * The order in which a ring brings key/value chunks: at step t the queries of chunk i
 * meet chunk i - t (mod n). dK and dV of a chunk are summed in the order in which queries
 * meet it, which the same loop gives.
 *
 * Among ranks, each step one chunk goes on to the next rank and one comes from the rank
 * before, while the step before it is computed. dK and dV travel with their chunk from query
 * to query, and in the end they come home.
 */
enum ring_part { RING_K, RING_V, RING_DK, RING_DV, N_RING_PARTS };

/* What travels: [slices][chunks here][rows] of each; without dk, only keys and values. */
struct ring_load {
	struct mat home[N_RING_PARTS];
	int slices;
	int64_t rows;
};

struct ring {
	const struct chunks *c;
	int step;
	/* of ring_carry(): */
	struct device *d; /* NULL: nothing travels */
	struct ring_load load;
	struct mat away[N_RING_PARTS]; /* chunks of other ranks: [place][slice][rows] */
	struct comm_req *reqs;	       /* of keys and values */
	int n_reqs;
	struct comm_req *sums; /* [odd or even step][slice]: dk, dv that come, that go */
	size_t mark;
};

struct ring ring_begin(const struct chunks *c);
/* Collective over the axis: from now on steps bring what the load tells. Takes memory of the
 * device's scratch until the end. */
void ring_carry(struct ring *r, struct device *d, const struct ring_load *load);
bool ring_next(struct ring *r);
void ring_end(struct ring *r);
int ring_keys_for(const struct ring *r, int query_chunk);
/* In this step, a slice of a part of a chunk of keys. */
struct mat ring_at(const struct ring *r, enum ring_part part, int slice, int key_chunk);
/* Of the query chunks that are here, the first one's dk and dv may be on their way before
 * ring_came(), and the last one's go on with ring_goes(). */
void ring_came(struct ring *r, int slice);
void ring_goes(struct ring *r, int slice);
static inline bool ring_first(const struct ring *r)
{
	return r->step == 0;
}

static inline bool ring_last(const struct ring *r)
{
	return r->step == r->c->n - 1;
}

/* ---- deal.c: whose micro-batches, and whose leaves --------------------------------- */

/*
 * How the micro-batches of a step are dealt to `ranks` data-parallel ranks. In runs, each
 * rank adds its own up and ranks exchange once. By turns (rank r has r, r + ranks, ...) each
 * round is summed over the ranks, so that no rank keeps more of a gradient than its shard,
 * and one micro-batch. A rank that has none left in the last round still goes through a
 * round, with a number of n_micro or more: others need its part of the parameters. What
 * it computes then is thrown away.
 */
struct deal {
	int64_t n_micro;
	int ranks;
	bool by_turns;
};

/* For the ranks of a mesh, with a store that shards as `zero` says. */
struct deal deal_make(int64_t n_micro, const int degree[N_AXES], int zero);
int64_t deal_count(const struct deal *d, int rank);	       /* of this rank */
int64_t deal_micro(const struct deal *d, int rank, int64_t i); /* its number i */
int deal_rank(const int degree[N_AXES], const int at[N_AXES]); /* dp x fsdp */

/* ---- spill_file.c, spill_host.c: a place for what does not fit into memory --------- */

struct spill;

/* A file in a folder, without a name: nothing is left of it. All its room is taken at once. A
 * thread reads and writes it; an error of that ends the program. */
struct spill *spill_open(const char *folder, int64_t n_bytes, struct err *e);
/* Pinned memory of the host, for a device that is apart; zeros at first. */
struct spill *spill_open_host(struct device *d, int64_t n_bytes, struct err *e);
void spill_close(struct spill *x); /* NULL: nothing */

/* ---- store.c: parameters, gradients and optimizer state -------------------------- */

/* A leaf of a gradient: what one use of a parameter in one chunk of one micro-batch, by one
 * virtual slice, adds. The canonical tree has them in this order. */
struct leaf {
	int64_t micro;
	int use, chunk, lane;
};

/* When parameters that were gathered for the forward are dropped. */
enum reshard { RESHARD_YES, RESHARD_NO, RESHARD_KEEP_LAST };

/* What is kept elsewhere, in a file or in the memory of a GPU's host: the optimizer's moments, or
 * parameters too, which then are read a unit at a time (and gathered, where they are sharded). */
enum offload { OFFLOAD_NONE, OFFLOAD_OPTIMIZER, OFFLOAD_PARAMS };

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
	struct tensor_part part; /* as they were placed */
	int chunks;		 /* virtual, a micro-batch */
	struct deal deal;	 /* n_micro 0: only parameters, to be read */
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
	struct spill *spill; /* the caller's, of bytes.spilled; NULL in a plan */
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
	float *state[STORE_MAX_GROUPS]; /* NULL: elsewhere, see store_walk(), or none */
	struct mat
		copy; /* of the parameter, as store_config.copy; p NULL: there is none */
};

/* What the store keeps, in bytes, for the plan. */
struct store_bytes {
	int64_t params, grads, optimizer, gathered, buffers;
	int64_t copies;	 /* of the parameters, of 16 bits; in params */
	int64_t outer;	 /* of STORE_OUTER */
	int64_t spilled; /* elsewhere */
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
enum { N_TILES = 5 };
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

/* ---- walk.c: what the optimizer keeps, in memory or elsewhere ------------------------ */

typedef void store_visit(void *with, const struct part *x);
/* Calls fn for all rows of the parts that this rank updates, or that it counts, in order; a
 * part may come in several runs of rows. `reads`, `writes`: bits of the groups that fn looks
 * at, and of those that it changes. Others, and gradients, it may look at where they are in
 * memory only. */
void store_walk(struct store *s, bool counted, unsigned reads, unsigned writes,
	store_visit *fn, void *with);

/* The same by position: of a group, floats [at, at + n) of the store_floats() that the parts
 * of this rank are in. They are in memory, or are read into `room`; and what was changed is
 * kept, or written. */
int64_t store_floats(const struct store *s);
float *store_begin(struct store *s, int group, int64_t at, int64_t n, float *room);
void store_end(struct store *s, int group, int64_t at, int64_t n, const float *x);
/* Of parameters there that have changed, the copies that products take, if there are any. */
void store_copy(struct store *s, int64_t at, int64_t n);

/* ---- schedule.c: pipeline schedules as data -------------------------------------- */

/*
 * The pipeline has ranks x per_rank virtual stages, and rank r has stages r, r + ranks,
 * r + 2 ranks, ... A schedule says for each rank in what order it does what; it changes no
 * bit of what is computed (law 1), since on each stage the backwards, and so the leaves of
 * its gradients, come in the order of the micro-batches.
 *
 * A kind is a row here and a file: its name, the function that makes the actions of a rank,
 * whether it splits the backward in two, how many stages a rank it can have (at least, at
 * most; 0: any), and help.
 */
/* clang-format off */
#define SCHEDULE_LIST(X) \
	X(GPIPE, "gpipe", schedule_make_gpipe, false, 1, 0, \
		"all forwards, then all backwards; keeps the activations of every micro-batch") \
	X(1F1B, "1f1b", schedule_make_1f1b, false, 1, 1, \
		"one forward, one backward in turn; keeps as many micro-batches as there are stages") \
	X(INTERLEAVED, "interleaved", schedule_make_interleaved, false, 2, 0, \
		"1f1b with several stages a rank: a smaller bubble, more transfers, keeps more") \
	X(ZB_H1, "zb-h1", schedule_make_zb_h1, true, 1, 1, \
		"1f1b, and the gradients of weights later, in what was bubble; keeps as many")
/* clang-format on */

#define SCHEDULE_KIND(kind, ...) SCHEDULE_##kind,
enum schedule_kind { SCHEDULE_LIST(SCHEDULE_KIND) SCHEDULE_KINDS };
#undef SCHEDULE_KIND

enum action_kind {
	ACTION_FORWARD,
	ACTION_BACKWARD,   /* both of the following, in one */
	ACTION_BACKWARD_X, /* the gradient of the input only */
	ACTION_BACKWARD_W, /* the gradients of the weights only */
	ACTION_KINDS
};

struct action {
	enum action_kind kind;
	int64_t micro; /* 0, 1, ... of this pipeline's own, in their order */
	int stage;     /* virtual, of the whole pipeline */
};

struct schedule {
	enum schedule_kind kind;
	int ranks, per_rank;
	int64_t n_micro;
	struct action **rank; /* of each rank, in order */
	int64_t *n;	      /* how many */
};

struct schedule_row {
	const char *name, *help;
	void (*make)(struct schedule *s, int rank);
	bool splits_backward;
	int least, most; /* stages a rank, where there are several ranks; 0: any */
};

extern const struct schedule_row schedule_kinds[SCHEDULE_KINDS];
extern const char *const schedule_kind_names[]; /* in that order, closed by NULL */

/* Makes the schedules of all ranks of a pipeline. One rank does one micro-batch after the
 * other, whatever the kind. -1: the kind cannot have so many stages a rank. */
int schedule_open(struct schedule *s, enum schedule_kind kind, int ranks, int per_rank,
	int64_t n_micro, struct err *e);
void schedule_free(struct schedule *s);

static inline int schedule_stages(const struct schedule *s)
{
	return s->ranks * s->per_rank;
}

static inline int schedule_rank_of(const struct schedule *s, int stage)
{
	return stage % s->ranks;
}

/* ---- schedule_check.c ------------------------------------------------------------ */

/*
 * Is it a right one? Every micro-batch has each action once on every stage, each kind of
 * action in the order of the micro-batches; a backward comes after its forward, the
 * weights' part after the input's; and with blocking receives and buffered sends no rank
 * waits for ever.
 */
int schedule_check(const struct schedule *s, struct err *e);

/* The most that a rank keeps at a time, in micro-batches x stages. What it keeps of one
 * stage is a run of micro-batches, so that micro % kept is a slot for them. */
struct schedule_peak {
	int64_t kept; /* activations: from the forward to the (weights') backward */
	int64_t waiting; /* gradients of outputs: from the input's backward to the weights' */
};

/* Of one stage of the rank, or with -1 of all of them together. */
struct schedule_peak schedule_peak(const struct schedule *s, int rank, int stage);

/* ---- schedule_time.c ------------------------------------------------------------- */

/* In seconds, or any other unit. */
struct schedule_costs {
	const double *forward, *backward_x, *backward_w; /* of each stage */
	double transfer; /* to another rank; neither end is busy with it */
};

struct span {
	double begin, end;
};

struct timeline {
	int ranks;
	struct span **rank; /* of each action of the schedule */
	double total;
	double bubble; /* 1 - busy / (ranks x total) */
};

/* When everything is done, each action as early as it can. The schedule is a right one. */
void schedule_time(
	const struct schedule *s, const struct schedule_costs *c, struct timeline *t);
void timeline_free(struct timeline *t);
/*
 * A Gantt chart for people: a line a rank, a column for the time of the shortest action, or
 * more where the lines would be longer than `width`; then a legend and the bubble.
 */
void schedule_draw(
	const struct schedule *s, const struct timeline *t, int width, struct str *out);

/* ---- schedule_split.c ------------------------------------------------------------ */

/*
 * Deals layers to stages, in order: first[i] is the first layer of stage i, and
 * first[n_stages] is n_layers. The largest stage costs as little as it can. Of such splits it
 * is the one whose smallest stage costs most, then whose first stage has fewest layers (it
 * keeps most micro-batches), and then so on with the stages behind the first. The embedding
 * counts at the first stage, the head at the last. -1: fewer layers than stages.
 */
int schedule_split(const double *layer, int n_layers, double embedding, double head,
	int n_stages, int *first, struct err *e);

#endif
