/* collbench: collectives, timed and checked; what pt-collbench is made of. */
#ifndef COLLBENCH_H
#define COLLBENCH_H

#include "comm/collective.h"

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

#endif
