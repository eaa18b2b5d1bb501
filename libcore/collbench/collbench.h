/* collbench: measures and checks collectives, for pt-collbench. */
#ifndef COLLBENCH_H
#define COLLBENCH_H

#include "comm/collective.h"

/* ---- verify.c: inputs with known results, compared bit by bit --------------------- */

/* One collective as it is measured and checked. */
struct coll_case {
	enum coll what;
	enum coll_place place;
	enum comm_type type;
	enum comm_op op;
	int root;
	int64_t count;
};

/* A check on this rank. Input elements are a function of (rank, index, iteration). */
struct verify {
	struct coll_case c;
	int rank, n_ranks;
	uint64_t iteration;
};

enum { VERIFY_GUARD = 4096 }; /* bytes of the guards before and after a buffer */

/* Fills both buffers, as far as the case uses them, and the guards around them. */
void verify_fill(const struct verify *v, char *send, char *recv);
/* After the collective: the number of wrong elements on this rank, in the result, in buffers that
 * must not change, and in the guards. */
int64_t verify_wrong(const struct verify *v, const char *send, const char *recv);

/* ---- bench.c: measurement --------------------------------------------------------- */

/* A test of the check: flips the lowest bit of a result's element before the check. Elements below
 * 0 and after the last one are in the guards. */
struct bench_fault {
	bool wanted, done;
	enum coll what; /* N_COLL: the gradient of step_wrong() */
	int rank;
	int64_t element;
};

struct bench {
	int64_t warmup, iters, checks; /* iterations; set by the caller, as the fault */
	struct bench_fault fault;
	struct comm *comm;
	struct comm_place place;
	struct arena memory;
	char *send, *recv;
	double *seconds; /* [iters + 1]: each iteration, then the mean */
	uint64_t iteration;
};

/* Values that were not measured are NaN; wrong: -1. */
struct bench_result {
	double time, algbw, busbw; /* us; 1e9 bytes/s */
	int64_t wrong;
	double i_min, i_max, i_p99, i_cv; /* over iterations: us; i_cv: percent */
};
extern const struct bench_result bench_nothing;

/* Collective. Allocates buffers for collectives of up to max_bytes. -1: not enough memory on some
 * rank, the same error on all ranks. */
int bench_open(struct bench *b, struct comm *c, int64_t max_bytes, struct err *e);
void bench_close(struct bench *b);
/* The number of elements of a block in a collective of `bytes` (coll_bytes()); at least 1. */
int64_t bench_count(
	const struct bench *b, enum coll what, enum comm_type t, int64_t bytes);
/* Collective. The time of an iteration is the slowest rank's. */
void bench_run(struct bench *b, const struct coll_case *c, struct bench_result *r);
/* Called by ranks `leader` and `other` only. On the leader: the mean time of n round trips of 8
 * bytes, in seconds; NaN: the bytes were wrong. */
double bench_round_trip(struct comm *c, int leader, int other, int64_t n);

/* ---- step.c: a training step ------------------------------------------------------- */

/* Collective. The number of values in the gradients of all ranks that differ from those of one rank
 * alone. */
int64_t step_wrong(struct comm *c, const struct bench_fault *fault);

/* ---- smoke.c: the smoke test of ranks, hosts and libraries ------------------------ */
struct peer {
	char host[64], libraries[192];
	int64_t pid;
};

/* Collective. All-gathers struct peer: [size], to be freed by the caller. */
struct peer *peers_meet(struct comm *world, const char *libraries);
/* Sets a timeout, before comm_open(): a rank that waits at its end prints the operation and exits. */
void smoke_watch(const char *program);
/* Collective. Rank 0 prints the results. Returns 0 or EX_FAILED, and cancels the timeout. */
int smoke_run(struct comm *world, const struct peer *peers, const bool wanted[N_COLL],
	const struct bench_fault *fault);

#endif
