/*
 * comm: the only callers of MPI (and later NCCL). Groups of ranks, collectives, the
 * canonical tree, agreement on errors.
 *
 * A group of one rank answers everything itself, without MPI; that is the only place
 * where "degree 1" is a special case. Calls marked *collective* must be made by every
 * rank of the group, in the same order. A failing MPI call ends the program with a message
 * that names the group, the operation and the bytes.
 */
#ifndef COMM_H
#define COMM_H

#include "base/base.h"
#include "kernels/kernels.h"

/* ---- comm.c, world.c: groups ----------------------------------------------------- */

struct comm {
	int rank, size;
	char name[16];		    /* of the axis: "world", "dp", ... */
	int color;		    /* tells groups of one name apart */
	uint64_t seq;		    /* operations begun: the same on all ranks */
	const struct comm_ops *ops; /* NULL: of one rank, or of a plan */
	void *impl;
	bool shares;  /* all are on one host, and can have shared memory */
	bool planned; /* of a plan: nothing moves, bytes are counted */
	int64_t sent; /* bytes that this rank has sent in it */
};

/* All ranks that were started together: MPI is initialised when a launcher's variables
 * are there (PMI_RANK, PMI_ID, PMI_FD, PMIX_RANK, or Slurm's with several tasks), or with
 * PT_MPI=yes; with PT_MPI=no never. */
struct comm *comm_open(void);
/* This rank's number as the launcher's variables have it, before MPI runs; 0 alone. */
int comm_rank_hint(void);
/* A group of this rank alone. */
struct comm *comm_self(const char *name);
/* Collective. Ranks of one color form a group, ordered by their rank in c; a rank with
 * color -1 gets NULL. */
struct comm *comm_split(struct comm *c, int color, const char *name);
/* Collective. Of a group of comm_split. */
void comm_free(struct comm *c);
/* Collective. Ends MPI. */
void comm_close(struct comm *world);

/* Where this rank is: its host, the ranks of the world on the same host, and the processors
 * that these may use together (a launcher may have bound each to a few of them). */
struct comm_place {
	char host[64];
	int local_rank, local_size, n_hosts, processors;
	bool shares; /* all ranks can have shared memory: not with PT_SHARED=no */
};
/* Of the ranks that comm_open has found, which it writes there. */
void comm_place(struct comm_place *place);
extern struct comm_place comm_here;
const char *comm_version(void); /* "MPICH 4.0.2"; may be asked without MPI running */

/* ---- mesh.c: named axes ---------------------------------------------------------- */

/* Slowest first: neighbours in tensor parallelism are neighbours in the world, on one host
 * where they fit, and stages of a pipeline are farthest apart. */
enum axis {
	AXIS_PP,   /* pipeline: other layers */
	AXIS_DP,   /* replicate: other samples, the same parameters */
	AXIS_FSDP, /* shard: other samples, other parts of the parameters */
	AXIS_CP,   /* context: other positions of a sequence */
	AXIS_TP,   /* tensor: other slices of a weight */
	N_AXES
};
extern const char *const axis_names[N_AXES];
#define AXIS_BIT(a) (1u << (a))

/* All ranks as a box, and where this one is in it. */
struct mesh {
	int degree[N_AXES], at[N_AXES];
	struct comm *world;
	struct comm *axis[N_AXES]; /* ranks that differ from this one along it only */
	struct mesh_group *groups; /* made so far */
	int n_groups;
};

/* Turns wanted degrees (-1, once: the rest) into a box that holds `ranks`. */
int mesh_resolve(
	const int64_t wanted[N_AXES], int ranks, int degree[N_AXES], struct err *e);
/* Collective. */
void mesh_open(struct mesh *m, struct comm *world, const int degree[N_AXES]);
/* The mesh as rank `rank` of so many would have it, to plan with: its groups only count. */
void mesh_plan(struct mesh *m, const int degree[N_AXES], int rank, bool shares);
/* Of this rank alone, in a world that is made for it: as with mesh_plan(), the caller frees
 * m->world, with comm_free(). */
void mesh_alone(struct mesh *m);
/* Not the world that it was opened with. */
void mesh_close(struct mesh *m);
int mesh_rank(const struct mesh *m, const int at[N_AXES]);
void mesh_place(const struct mesh *m, int rank, int at[N_AXES]);
/*
 * Collective over the world. The ranks that differ from this one only along `axes` (bits),
 * in the order of the world. Of the tp axis, only runs of `tp_run` neighbours, 0: all of
 * it; of the pp axis, `pp_ends`: only the first and the last; ranks of another stage are
 * together with those of their own stage only. Groups are kept, and the same one is made once.
 */
struct mesh_part {
	unsigned axes;
	int tp_run;
	bool pp_ends;
};
struct comm *mesh_group(struct mesh *m, struct mesh_part part);
/* The world ranks of that group, in its order; *ranks is allocated. Returns their number. */
int mesh_members(const struct mesh *m, struct mesh_part part, int **ranks);
/* Number i of the groups that were made so far, and the world at last; NULL: there are no
 * more. */
const struct comm *mesh_group_number(const struct mesh *m, int i);
/* "dp=2 tp=2": the axes that are not 1, or "dp=1". */
void mesh_name(const int degree[N_AXES], struct str *out);
/* Rows of ranks, for people. */
void mesh_draw(const int degree[N_AXES], struct str *out);
/* Bytes that this rank has sent in all groups. */
int64_t mesh_sent(const struct mesh *m);

/* ---- coll.c: collectives --------------------------------------------------------- */

enum comm_type {
	COMM_I8,
	COMM_U8,
	COMM_I32,
	COMM_U32,
	COMM_I64,
	COMM_U64,
	COMM_F32,
	COMM_F64
};
enum comm_op { COMM_SUM, COMM_PROD, COMM_MIN, COMM_MAX };
enum { N_COMM_TYPES = COMM_F64 + 1, N_COMM_OPS = COMM_MAX + 1 };
size_t comm_type_bytes(enum comm_type t);

enum coll {
	COLL_ALLREDUCE,
	COLL_REDUCE,
	COLL_BROADCAST,
	COLL_ALLGATHER,
	COLL_REDUCESCATTER,
	COLL_SCATTER,
	COLL_GATHER,
	COLL_ALLTOALL,
	COLL_SENDRECV, /* to the next rank, from the one before, in a ring */
	COLL_BARRIER,
	N_COLL
};

/* Where a collective may find its input and leave its result. */
enum coll_place { COLL_OUT_OF_PLACE, COLL_IN_PLACE, N_COLL_PLACES };

/*
 * What a collective is: `send_parts` and `recv_parts` tell how many blocks of `count`
 * elements a rank's buffers hold (0: as many as there are ranks). Bus bandwidth is
 * coll_bytes() over the time, times bus(n) (nccl-tests doc/PERFORMANCE.md).
 */
struct coll_info {
	const char *name;
	int send_parts, recv_parts;
	bool has_root, has_op;
	bool has_place[N_COLL_PLACES]; /* out of place, in place */
	double (*bus)(int ranks);
	const char *bus_text; /* the formula of bus() */
	const char *help;
};
extern const struct coll_info coll_table[N_COLL];

/* Blocks of the larger of a rank's two buffers. */
int coll_blocks(enum coll what, int ranks);
/* The bytes of that buffer: what nccl-tests calls size. */
int64_t coll_bytes(enum coll what, int ranks, int64_t count, enum comm_type t);

/*
 * In place, `recv` is the only buffer and holds coll_blocks() blocks on every rank. Each
 * block lies where it has its place in the larger buffer: in an allgather, gather and
 * scatter, that of rank r is number r, before and after. A reducescatter leaves its result
 * in block 0, and anything in the others, as MPI does.
 */
struct coll_args {
	const void *send; /* NULL: in place */
	void *recv;
	int64_t count; /* elements of one block */
	enum comm_type type;
	enum comm_op op;
	int root;
};

/* What is under way, and what messages call it. Zeroed: nothing. */
struct comm_req {
	int64_t handle[2];
	int n;
	const char *what;
	int64_t n_bytes;
	uint64_t seq; /* of the group, when it was begun */
	/* Of a device's memory: it goes by way of `host`, and what comes belongs to `to`. */
	char *host, *came;
	void *to;
	int64_t to_bytes;
};

/* Collective: begins it. Buffers are the library's until it is done. */
void comm_begin(
	struct comm *c, enum coll what, const struct coll_args *a, struct comm_req *r);
/*
 * Point to point: bytes to or from rank `peer`. Messages of one tag arrive in order.
 *
 * Two ranks that send each other large messages begin with the send. UCX asks before it sends
 * one, and what is asked for then goes out whole, with answers behind it on the same TCP
 * connection. A rank that is late and begins with the receive lets the other send before its
 * own question is there; the answer to that comes when all is sent, and messages that could
 * have crossed go one after the other.
 */
void comm_send_begin(struct comm *c, const void *p, int64_t n_bytes, int peer, int tag,
	struct comm_req *r);
void comm_recv_begin(
	struct comm *c, void *p, int64_t n_bytes, int peer, int tag, struct comm_req *r);
/* Waits for a message of this tag from anybody, of n_bytes at most. */
void comm_take(struct comm *c, void *p, int64_t n_bytes, int tag);
/* Takes one if it is there. Never waits. */
bool comm_take_any(struct comm *c, void *p, int64_t n_bytes, int tag);
/* Done? Never waits. */
bool comm_test(struct comm *c, struct comm_req *r);
/* More ranks on this host than processors, or others use it too: those that wait make room. */
extern bool comm_crowded;
/* Waits, giving the processor to others meanwhile (MPICH's own waiting does not, which
 * is ruinous when ranks outnumber cores), and keeps background work going. */
void comm_wait(struct comm *c, struct comm_req *r);
/* The same, for anything that comes true when others do their part of `what`. */
void comm_wait_for(
	struct comm *c, bool (*done)(void *), void *with, const struct comm_req *what);
/* PT_OVERLAP=no: what could go on beside computation is waited for at once, so that one can
 * measure what overlap saves. What is begun when depends on it, so all ranks do, or none:
 * comm_open asks them (collective). */
void comm_overlap(struct comm *world);
bool comm_overlaps(void);
/* Seconds this rank has spent in waits since it started. */
double comm_waited(void);

/* Collective, and they wait. */
void comm_run(struct comm *c, enum coll what, const struct coll_args *a);
/* A group for plans: calls do nothing but count bytes. */
struct comm *comm_planned(const char *name, int rank, int size, bool shares);
void comm_barrier(struct comm *c);
void comm_bcast(struct comm *c, void *p, int64_t n_bytes, int root);
void comm_bcast_str(struct comm *c, struct str *s, int root);
void comm_sum_i64(struct comm *c, int64_t *v, int64_t n); /* in place */
int64_t comm_max_i64(struct comm *c, int64_t v);
int64_t comm_min_i64(struct comm *c, int64_t v);
/* all[rank] = each rank's n_bytes */
void comm_allgather(struct comm *c, const void *mine, void *all, int64_t n_bytes);
/*
 * Did any rank fail? If so every rank gets the error of the lowest one that did, with the
 * rank's number in front, and -1. Ranks must ask before the next collective after
 * anything that may fail on one of them alone.
 */
int comm_agree(struct comm *c, struct err *e);

/* Background work: a function that comm_wait() and comm_poll() call until it is told
 * otherwise. */
void comm_background(void (*poll)(void *), void *with);
void comm_background_end(void (*poll)(void *), void *with);
void comm_poll(void);

/* ---- stage.c: memory of a device ----------------------------------------------------- */

/* From now on buffers of messages and collectives may be in its arenas (device_arena); NULL: in
 * none. Of ranks that share memory, what they share is the program's. */
void comm_device(struct device *d);
/* For coll.c: where the library finds what is sent, or leaves what comes; and when it is done,
 * what came goes to its place. */
bool stage_needed(const void *p);
const void *stage_send(const void *p, int64_t n_bytes, struct comm_req *r);
void *stage_recv(void *p, int64_t n_bytes, struct comm_req *r);
void stage_coll(
	const struct comm *c, enum coll what, struct coll_args *a, struct comm_req *r);
void stage_end(struct comm_req *r);

/* ---- bell.c: calling others that are at work ---------------------------------------- */

/* Any rank of a group rings for round n, and the others hear it when they look, in that round
 * or later; nobody waits for anybody. Rounds only rise. */
struct comm_bell {
	struct comm *c; /* for its messages */
	int64_t rung, heard;
	int64_t *said; /* [size], on its way */
	struct comm_req *reqs;
};

/* Collective. Ranks with `in` form the group. */
void comm_bell_open(struct comm_bell *b, struct comm *c, bool in);
void comm_bell_ring(struct comm_bell *b, int64_t round);
bool comm_bell_heard(struct comm_bell *b, int64_t round);
/* Collective: until all have it behind them. */
void comm_bell_close(struct comm_bell *b);

/* ---- shared.c: memory that ranks of one host share --------------------------------- */

/* Each rank has some, and sees that of all. It has no name, so nothing is left behind
 * whatever happens to the ranks. */
struct comm_shared {
	struct comm *c;
	char **data;	  /* [size]: of each rank, as this one sees it; zero at first */
	int64_t *n_bytes; /* [size] */
	void **base;
	int n_slots;
};

/* Collective, in a group that shares (struct comm); `n_bytes` may differ. NULL: it cannot
 * be had, on any rank, and *e says why. */
struct comm_shared *comm_shared_open(
	struct comm *c, int64_t n_bytes, int n_slots, struct err *e);
/* When nobody uses this rank's data any more. */
void comm_shared_close(struct comm_shared *m);
/* A slot is a number that every rank says, and never takes back. What a rank wrote before
 * it said `n` is seen by those who find that all ranks have said n or more. */
void comm_shared_say(const struct comm_shared *m, int slot, uint64_t n);
bool comm_shared_said(const struct comm_shared *m, int slot, uint64_t n);
/* Resident bytes of this process that are other ranks' memory. */
int64_t comm_shared_foreign(void);

/* ---- watch.c: ranks that do not come ----------------------------------------------- */

/* From now on, a rank that has waited for others this long ends the job with EX_FAILED, and
 * says for what, and which ranks are missing; work that polls, however long, is not taken
 * for missing. 0: never. comm_open() begins with COMM_WATCH. */
enum { COMM_WATCH = 600 };
void comm_watch(struct comm *world, double seconds);
void comm_watch_end(void);
/* Collective: until it is let go, whatever is waited for may take its time: a pipe, say. */
void comm_watch_hold(bool hold);
/* coll.c says when a wait begins, and with NULL when it ends. */
void comm_watch_wait(const struct comm *group, const struct comm_req *what);
void comm_watch_look(void);

/* ---- tree.c: the canonical tree -----------------------------------------------------
 *
 * A sum over n leaves is one binary tree over their indices: node (level, i) is the sum of
 * leaves [i 2^level, (i+1) 2^level) that exist, as its left half plus its right half; a
 * half that does not exist adds nothing. The tree is a function of n alone, so whoever
 * holds which leaves, the sum has the same bits.
 */
struct tree_node {
	int level;
	int64_t index;
};

enum { TREE_MAX_NODES = 128 };

/* The fewest nodes whose leaves are exactly [begin, end), in ascending order. */
int tree_nodes(int64_t begin, int64_t end, struct tree_node out[static TREE_MAX_NODES]);

/*
 * A stack of nodes that leaves are pushed on in ascending order: neighbours that are the
 * two halves of a node become that node. Position p of the stack is buffer p, so n leaves
 * need log2(n) + 1 buffers.
 */
struct tree_stack {
	struct tree_node node[TREE_MAX_NODES];
	int n;
};

/* The next leaf is `index`. Tells how many times buffer top-1 must now become buffer
 * top-1 plus buffer top (top: the last one in use, one less after each time). */
int tree_push(struct tree_stack *s, int64_t index);
/* No leaf below `end` will come any more: the same, for halves that stay empty. */
int tree_finish(struct tree_stack *s, int64_t end);
/* Buffers that leaves [begin, end) need at the worst moment. */
int tree_depth(int64_t begin, int64_t end);

/*
 * Leaves with coordinates (use, micro, chunk, lane), the last one fastest. Each but the first
 * takes a power of two of indices, so that all leaves of a chunk, of a micro-batch, of a use
 * are a node of their own.
 */
enum tree_axis { TREE_USE, TREE_MICRO, TREE_CHUNK, TREE_LANE, N_TREE_AXES };

struct tree_shape {
	int64_t n[N_TREE_AXES];
};

/* Leaves that somebody holds: [first, end) along each. */
struct tree_box {
	int64_t first[N_TREE_AXES], end[N_TREE_AXES];
};

int64_t tree_index(const struct tree_shape *t, const int64_t at[N_TREE_AXES]);
/* Levels from a leaf up to all leaves, and up to those of a micro-batch. */
int tree_levels(const struct tree_shape *t);
int tree_micro_level(const struct tree_shape *t);
/* As tree_push, for a leaf (level 0) or a whole node of such a tree; halves that no leaf is
 * in count as there. Nodes grow to `top` levels at most. */
int tree_push_node(
	struct tree_stack *s, const struct tree_shape *t, int top, struct tree_node node);
/* Pushes the leaves of a box, which is in one use, on an empty stack. Returns the positions
 * that this takes at the worst moment. */
int tree_push_box(struct tree_stack *s, const struct tree_shape *t, int top,
	const struct tree_box *box);

/* The sum of a node's leaves, and where it lies; some rows of one, wherever these do. */
struct tree_part {
	struct tree_node node;
	struct mat x;
};

/* Puts them in the order of their leaves. */
void tree_sort(struct tree_part *parts, int n);
/* Adds up what there is of node `sum`, of sorted parts from *at on, and moves *at behind them.
 * The sum is left in `to`, or without one in the memory of the first of the parts, which is
 * overwritten; or it is the only part itself. Nothing (p NULL): there are no such leaves. */
struct mat tree_add(struct device *d, const struct tree_part *parts, int n, int *at,
	struct tree_node sum, struct mat to);

/* ---- sum.c: sums over a group, by the canonical tree ------------------------------
 *
 * Every rank of a group brings nodes of one tree, each a vector of n floats. The vector is
 * cut into shards, of which each rank wants one (one shard: every rank wants all), and the
 * ranks that want the same shard cut it into pieces, one each. The nodes of a piece go to
 * its rank, which finishes the tree, and the sum to those who want it. For a power of two
 * of equal shares, these are the bytes of a ring reduce-scatter, or all-reduce.
 */

/* A shard: runs of the vector that lie behind each other when it is packed. */
struct sum_run {
	int64_t at, len;
};

struct sum_shard {
	struct sum_run *run;
	int n_runs;
	int64_t n; /* floats */
};

/* The nodes that a rank brings, in ascending order, and in which of its buffers they are. */
struct sum_nodes {
	struct tree_node *node;
	int *buffer;
	int n;
};

/* Equal on all ranks of the group. */
struct sum_plan {
	struct comm *c;
	struct device *d;
	const struct sum_shard *shard; /* [n_shards] */
	int n_shards;
	const int *wants;	 /* [size]: the shard of each rank */
	int levels, micro_level; /* of the tree */
	/* filled in by sum_share(): */
	int *sharers; /* [n_shards]: the ranks that want it */
	int *before;  /* [size]: of them, those before this one */
};

/* Who shares what, once for all sums of the plan; and frees that. */
void sum_share(struct sum_plan *p);
void sum_unshare(struct sum_plan *p);

/* Floats of this rank's piece, those of rank `rank`, and what messages need. */
int64_t sum_piece(const struct sum_plan *p, int rank, int64_t *first);
int64_t sum_scratch(const struct sum_plan *p, const struct sum_nodes *nodes);

/* Micro-batch nodes of this rank's piece, added up as rounds go on: by use, a stack, and
 * buffers of a piece each. */
struct sum_stack {
	struct tree_stack of[2];
	float **buffer[2];
	const struct tree_shape *shape;
};

struct sum_call {
	const struct sum_plan *plan;
	const struct sum_nodes *nodes; /* [size] */
	float *const *buffer;	       /* this rank's, [n] each */
	/* Either: the sums of micro-batches are pushed on a stack, and no more; or the sum of
	 * everything, that stack or none and the nodes, goes to this rank's shard, packed,
	 * which may be the only buffer itself. */
	struct sum_stack *onto;
	const struct sum_stack *with;
	float *result;
	float *scratch; /* sum_scratch() floats, for messages */
	/* Or, with one shard: rank r's buffer b begins at float from[r] + b * n of its shared
	 * memory; no other sum that is under way uses this slot. */
	const struct comm_shared *shared;
	const int64_t *from;
	int slot;
};

struct tree_sum;
/* Collective. What the call points to is in use until the end. */
struct tree_sum *tree_sum_begin(const struct sum_call *call);
bool tree_sum_done(struct tree_sum *s); /* never waits */
void tree_sum_end(struct tree_sum *s);	/* waits, and frees it */

/* ---- verify.c: inputs whose results are known to the last bit -------------------- */

/* One collective as it is measured and checked. */
struct coll_case {
	enum coll what;
	enum coll_place place;
	enum comm_type type;
	enum comm_op op;
	int root;
	int64_t count;
};

/* Elements are a function of (rank, index, iteration). */
struct verify {
	struct coll_case c;
	int rank, n_ranks;
	uint64_t iteration;
};

enum { VERIFY_GUARD = 4096 }; /* bytes before and after a buffer that nobody may write */

/* Fills both buffers, as far as the case uses them, and the guards around them. */
void verify_fill(const struct verify *v, char *send, char *recv);
/* After the collective: the elements of this rank that are not what they should be, in
 * the result, in what should have stayed as it was, and in the guards. */
int64_t verify_wrong(const struct verify *v, const char *send, const char *recv);

/* ---- bench.c: collectives, timed and checked ------------------------------------- */

/* Flips the lowest bit of an element of a result before it is checked, so that the check
 * itself can be tested. Elements below 0 and behind the last one are in the guards. */
struct bench_fault {
	bool wanted, done;
	enum coll what;
	int rank;
	int64_t element;
};

struct bench {
	int64_t warmup, iters, checks; /* iterations: set them, and the fault, first */
	struct bench_fault fault;
	struct comm *comm;
	struct comm_place place;
	struct arena memory;
	char *send, *recv;
	double *seconds; /* [iters + 1]: of each iteration, and their mean */
	uint64_t iteration;
};

/* What was measured: not a number, where it was not; wrong: -1. */
struct bench_result {
	double time, algbw, busbw; /* us; 1e9 bytes a second */
	int64_t wrong;
	double i_min, i_max, i_p99, i_cv; /* of the iterations: us, and percent */
};
extern const struct bench_result bench_nothing;

/* Collective. Buffers for collectives of up to this size; all ranks get the same error. */
int bench_open(struct bench *b, struct comm *c, int64_t max_bytes, struct err *e);
void bench_close(struct bench *b);
/* Elements of a block when the collective is to be about `bytes` large; at least one. */
int64_t bench_count(
	const struct bench *b, enum coll what, enum comm_type t, int64_t bytes);
/* Collective. Times of an iteration are the slowest rank's. */
void bench_run(struct bench *b, const struct coll_case *c, struct bench_result *r);
/* Of ranks `leader` and `other` only: 8 bytes there and back, in seconds, the mean of n
 * times; known to the leader. Not a number: other bytes came back. */
double bench_round_trip(struct comm *c, int leader, int other, int64_t n);

/* ---- smoke.c: do ranks, hosts and libraries work together? ----------------------- */

/* What a rank tells all others about itself. */
struct peer {
	char host[64], libraries[192];
	int64_t pid;
};

/* Collective. Of every rank; free() it. */
struct peer *peers_meet(struct comm *world, const char *libraries);
/* To be called before comm_open: should anything hang, the end comes after some seconds,
 * and the ranks that wait say for what. */
void smoke_watch(const char *program);
/* Collective. Rank 0 prints what was found. 0: all is well; EX_FAILED. */
int smoke_run(struct comm *world, const struct peer *peers, const bool wanted[N_COLL],
	const struct bench_fault *fault);

/* The largest tag that anything here uses: MPI promises 32767, and all known ones have more. */
enum { COMM_TAG_MAX = (1 << 20) + (1 << 16) };

/* ---- backends -------------------------------------------------------------------- */

/* Requests come with their names, and get their handles. */
struct comm_ops {
	void (*begin)(struct comm *c, enum coll what, const struct coll_args *a,
		struct comm_req *r);
	void (*send)(struct comm *c, const void *p, int64_t n_bytes, int peer, int tag,
		struct comm_req *r);
	void (*recv)(struct comm *c, void *p, int64_t n_bytes, int peer, int tag,
		struct comm_req *r);
	bool (*test)(struct comm *c, struct comm_req *r);
	/* A message that has arrived, of this many bytes at most; false: there is none. */
	bool (*take)(struct comm *c, void *p, int64_t n_bytes, int tag, int *peer);
	struct comm *(*split)(struct comm *c, int color);
	void (*free)(struct comm *c);
	void (*close)(struct comm *world);
	/* Lets what is under way go on. */
	void (*progress)(struct comm *world);
};

/* mpi.c; fills in the place */
struct comm *comm_open_mpi(struct comm_place *place);
/* progress.c: from now on a thread lets communication go on while this rank computes. Before
 * the world has any parts. */
void comm_progress(struct comm *world);

#endif
