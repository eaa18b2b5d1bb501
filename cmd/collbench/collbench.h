/*
 * collbench: measures and checks collectives, for pt-collbench.
 *   collbench.h  a case: its buffers, its times, the check of its results; the smoke test
 *   table.h      the table of results, the HDF5 file, comparison, pictures
 *   suite.h      the cases of a run, and the groups that they run in
 *   fit.h        latency and bandwidth, fitted to the times
 */
#pragma once

#include "comm/collective.h"
#include "kernels/device.h"

/*
 * What is measured: a collective (enum coll), or what is made of messages (messages.c). The first three of these
 * are between pairs of ranks: of n ranks, rank r < n/2 and rank r + n/2, all pairs at once, as in OSU's
 * micro-benchmarks osu_latency, osu_bw and osu_bibw.
 */
enum {
	BENCH_LATENCY = N_COLL, /* half a round trip */
	BENCH_BANDWIDTH,	/* a window of messages one way */
	BENCH_BIDIRECTIONAL,	/* the same both ways */
	BENCH_ALLTOALLV, /* blocks to ranks with odd numbers have `count` elements, others half as many */
	BENCH_HYPERCUBE, /* an all-gather in log2(n) exchanges, as in nccl-tests */
	N_BENCH
};
/* coll_table, and rows of the same form for messages. */
const struct coll_info *bench_info(int what);
/* The bytes of the larger of a rank's two buffers; with unequal blocks, on the rank with the largest. */
int64_t bench_bytes(int what, int ranks, int64_t count, enum comm_type t);
/* The smallest number of ranks for which `what` does anything; and can so many ranks run it? */
int bench_least_ranks(int what);
bool bench_has_ranks(int what, int64_t ranks);

/* ---- verify.c: inputs with known results, compared bit by bit --------------------- */

/* One collective as it is measured and checked. */
struct coll_case {
	int what;
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
	int what; /* N_BENCH: the gradient of step_wrong() */
	int rank; /* of the world */
	int64_t element;
};

/* When the host waits for the GPU: after each iteration; after all, which are queued; or after each launch
 * of a CUDA graph that has an iteration. */
enum bench_launch { LAUNCH_BLOCKING, LAUNCH_QUEUED, LAUNCH_GRAPH };
/* How MPI is called: as pt-train does, nonblocking and polled; or by its blocking functions. */
enum bench_calls { CALLS_NONBLOCKING, CALLS_BLOCKING };
/* The time of an iteration, of the times on all ranks. */
enum bench_average { AVERAGE_MAX, AVERAGE_AVG, AVERAGE_MIN, AVERAGE_RANK0 };

/* What is set by the caller. */
struct bench_options {
	/* iterations; collectives of an iteration, which are one group; repetitions of reductions with equal
	 * inputs; messages of a window; calls of comm_test() while an overlapped iteration computes; passes
	 * that there will be. */
	int64_t warmup, iters, checks, aggregate, reruns, window, polls, passes;
	double seconds;	 /* if > 0: of each measurement, instead of `iters` */
	double delay;	 /* at the beginning of each iteration: a test of comparisons */
	bool overlap;	 /* also measures iterations with computation beside them */
	bool barrier;	 /* between iterations, not timed */
	bool registered; /* for the device's library: comm_device_arena() */
	int calls;	 /* enum bench_calls, and so on */
	int average;
	int launch;
};

/* ---- settings.c */

/* Names of the enums, closed by NULL. */
extern const char *const bench_launch_names[], *const bench_calls_names[];
extern const char *const bench_average_names[];
/* The options that all times depend on, as text. */
enum { BENCH_SETTINGS = 160 };
void bench_settings(const struct bench_options *o, char text[BENCH_SETTINGS]);
/* The number of a collective or of messages between pairs; N_BENCH: "all". -1: neither. */
int bench_find(const char *name, struct err *e);

struct bench {
	struct bench_options o;
	struct bench_fault fault;
	struct device *d;  /* whose memory the buffers are in; NULL: host memory */
	struct comm *comm; /* of the next measurement; NULL: this rank takes no part */
	struct comm_place place;
	struct comm *home;   /* of the memory, and of agreements: the world */
	struct arena memory; /* of a device's buffers */
	char *send, *recv;
	char *host_send, *host_recv;
	int64_t room;		 /* bytes of a buffer with its guards */
	struct bench_load *load; /* what overlapped iterations compute */
};

/* The median of the times of some iterations that follow each other; of the slowest rank, or as `average`
 * says. (Of single iterations, now one rank is the slowest and now another.) */
struct bench_part {
	double seconds;
	int64_t iters;
	bool waited; /* a rank waited for a processor for much of that time */
};

/* Iterations of one case, in one or several passes: seconds of a collective. */
struct bench_samples {
	double *seconds; /* [n]: each iteration; none if they are queued */
	int64_t n, room, iters;
	double total; /* seconds of `iters` collectives */
	struct bench_part *part;
	int64_t n_parts;
	double overall, compute; /* sums over overlapped iterations */
	int64_t n_overlapped;
};
void bench_samples_free(struct bench_samples *s);
/* settings.c: sets `fault` and `o.delay` if PT_COLLBENCH_FAULT and PT_COLLBENCH_DELAY say so. */
int bench_tests_from_environment(struct bench *b, struct err *e);

/* Values that were not measured are NaN; counts: -1. */
struct bench_result {
	double time, algbw, busbw; /* us; 1e9 bytes/s */
	int64_t wrong, differ, digest;
	double i_min, i_max, i_p50, i_p99, i_cv; /* over iterations: us; i_cv: percent */
	/* us: median over parts of the run, without those in which a rank waited for a processor; percent: the standard
	 * error, of so many parts; NaN: fewer than 3. */
	double typical, noise;
	int64_t parts,
		waited; /* parts that count, and those that do not for that reason */
	int64_t iters;
	double overall, compute, overlap; /* us; percent */
};
extern const struct bench_result bench_nothing;

/* Collective. Allocates buffers for collectives of up to max_bytes. -1: not enough memory on some
 * rank, the same error on all ranks. */
int bench_open(struct bench *b, struct comm *c, int64_t max_bytes, struct err *e);
void bench_close(struct bench *b);
/* The number of elements of a block in a collective of `bytes` (bench_bytes()) on so many ranks; at least 1. */
int64_t bench_count(int what, int ranks, enum comm_type t, int64_t bytes);
/* Collective over `home`. Adds a pass of measurements to *s. */
void bench_measure(struct bench *b, const struct coll_case *c, struct bench_samples *s);
/* Collective over `home`. Checks results, and reduces again: sets wrong, differ and digest. */
void bench_check(struct bench *b, const struct coll_case *c, struct bench_result *r);
/* The times, from all passes: sets the rest. `ranks` is the size of the group. */
void bench_statistics(const struct bench_samples *s, const struct coll_case *c, int ranks,
	struct bench_result *r);

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
int smoke_run(struct comm *world, const struct peer *peers, const bool wanted[N_BENCH],
	const struct bench_fault *fault);
