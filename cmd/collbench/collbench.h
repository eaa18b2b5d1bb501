/* collbench: measures and checks collectives, for pt-collbench.
 *   collbench.h  a case: its buffers, its times, the check of its results; the smoke test
 *   table.h      the table of results, the HDF5 file, comparison, pictures
 *   suite.h      the cases of a run, and the groups that they run in
 *   fit.h        latency and bandwidth, fitted to the times */
#pragma once

#include "comm/collective.h"
#include "kernels/device.h"

/* A case measures a collective (enum coll), or one of these operations made of messages
 * (messages.c). The first three run between pairs of ranks: of n ranks, rank r < n/2 and rank r +
 * n/2, all pairs at once, as in OSU's micro-benchmarks osu_latency, osu_bw and osu_bibw. */
enum {
	BENCH_LATENCY = N_COLL, /* half a round trip */
	BENCH_BANDWIDTH,	/* a window of messages one way */
	BENCH_BIDIRECTIONAL,	/* a window of messages both ways */
	BENCH_ALLTOALLV, /* blocks to odd ranks have `count` elements, to even ranks half as many */
	BENCH_HYPERCUBE, /* an all-gather in log2(n) exchanges, as in nccl-tests */
	N_BENCH
};
/* Returns the description of a collective or of an operation made of messages. */
const struct coll_info *bench_info(int what);
/* Returns the bytes of the larger buffer of a rank; with unequal blocks, the maximum over ranks. */
int64_t bench_bytes(int what, int ranks, int64_t count, enum comm_type t);
int bench_min_ranks(int what);
/* Returns true if this number of ranks can run `what`. */
bool bench_can_run(int what, int64_t ranks);

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

/* A case to check on a rank. Input elements are functions of (rank, index, iteration). */
struct verify {
	struct coll_case c;
	int rank, n_ranks;
	uint64_t iteration;
};

enum { VERIFY_GUARD = 4096 }; /* bytes of the guards before and after a buffer */

/* Fills both buffers, as far as the case uses them, and the guards around them. */
void verify_fill(const struct verify *v, char *send, char *recv);
/* Returns the number of wrong elements on this rank after the collective: in the result, in
 * buffers that must not change, and in the guards. */
int64_t verify_count_wrong(const struct verify *v, const char *send, const char *recv);

/* ---- bench.c: measurement --------------------------------------------------------- */

/* A fault that tests the check: the lowest bit of a result's element is flipped. Elements below 0
 * and after the last one are in the guards. */
struct bench_fault {
	bool wanted, done; /* set by the environment; injected */
	int what;	   /* N_BENCH: the gradient of step_count_wrong() */
	int rank;	   /* in the world */
	int64_t element;
};

/* When the host waits for the GPU: after each iteration; after all iterations; or after each
 * launch of a CUDA graph with one iteration. */
enum bench_launch { LAUNCH_BLOCKING, LAUNCH_QUEUED, LAUNCH_GRAPH };
/* MPI calls: nonblocking and polled, as in pt-train; or blocking. */
enum bench_calls { CALLS_NONBLOCKING, CALLS_BLOCKING };
/* How the time of an iteration follows from the times on all ranks. */
enum bench_average { AVERAGE_MAX, AVERAGE_AVG, AVERAGE_MIN, AVERAGE_RANK0 };

struct bench_options {
	int64_t warmup, iters, checks; /* iterations */
	int64_t aggregate; /* collectives per iteration, started as one group */
	int64_t reruns;	   /* repetitions of reductions with equal inputs */
	int64_t window;	   /* messages in flight */
	int64_t polls;	   /* calls of comm_test() per overlapped computation */
	int64_t passes;
	double seconds;	 /* if > 0: time of each measurement, instead of `iters` */
	double delay;	 /* seconds of sleep before each iteration, to test comparisons */
	bool overlap;	 /* also measure iterations that overlap with a computation */
	bool barrier;	 /* an untimed barrier after each iteration */
	bool registered; /* buffers are registered by comm_device_arena() */
	int calls;	 /* enum bench_calls */
	int average;	 /* enum bench_average */
	int launch;	 /* enum bench_launch */
};

/* ---- settings.c */

/* Names of the enums, closed by NULL. */
extern const char *const bench_launch_names[], *const bench_calls_names[];
extern const char *const bench_average_names[];
/* Formats the options that all times depend on. */
enum { BENCH_SETTINGS = 160 };
void bench_format_settings(const struct bench_options *o, char text[BENCH_SETTINGS]);
/* Returns the index of an operation, N_BENCH for "all", or -1 with *e set. */
int bench_find_collective(const char *name, struct err *e);

struct bench {
	struct bench_options o;
	struct bench_fault fault;
	struct device *d;  /* device with the buffers; NULL: host memory */
	struct comm *comm; /* ranks of the next measurement; NULL: not this rank */
	struct comm_place place;
	struct comm *home;   /* the world, for memory and agreements */
	struct arena memory; /* buffers on a device */
	char *send, *recv;
	char *host_send, *host_recv;
	int64_t capacity;	 /* bytes of a buffer with its guards */
	struct bench_load *load; /* the computation of overlapped iterations */
};

/* The time of consecutive iterations: their median on each rank, then the maximum over ranks or as
 * `average` selects. (For single iterations, the slowest rank varies.) */
struct bench_part {
	double seconds;
	int64_t iters;
	bool waited; /* a rank waited for a processor for a quarter of the time */
};

/* The times of a case in all passes, in seconds per collective. */
struct bench_samples {
	double *seconds; /* [n], one per iteration; empty with LAUNCH_QUEUED */
	int64_t n, capacity, iters;
	double total; /* seconds of `iters` collectives */
	struct bench_part *part;
	int64_t n_parts;
	double overall, compute; /* seconds, sums over overlapped iterations */
	int64_t n_overlapped;
};
void bench_samples_release(struct bench_samples *s);
/* Sets `fault` and `o.delay` from PT_COLLBENCH_FAULT and PT_COLLBENCH_DELAY (settings.c). */
int bench_read_environment(struct bench *b, struct err *e);

/* Values that were not measured are NaN, counts -1. */
struct bench_result {
	double time, algbw, busbw; /* us; 1e9 bytes/s */
	int64_t wrong, differ, digest;
	double i_min, i_max, i_p50, i_p99, i_cv; /* over iterations: us; i_cv: percent */
	double typical; /* us: median over parts in which no rank waited for a processor */
	double noise; /* percent: standard error of `typical`; NaN: fewer than 3 parts */
	int64_t parts, waited; /* parts without and with a rank that waited */
	int64_t iters;
	double overall, compute, overlap; /* us; percent */
};
extern const struct bench_result bench_not_measured;

/* Allocates buffers for collectives of up to max_bytes. Returns -1 with the same error on all
 * ranks if one lacks memory. Collective. */
int bench_open(struct bench *b, struct comm *c, int64_t max_bytes, struct err *e);
/* Frees the buffers of *b and its load. The communicator stays open. */
void bench_close(struct bench *b);
/* Returns the elements per block, at least 1, with which the larger buffer has `bytes`. */
int64_t bench_count_for_bytes(int what, int ranks, enum comm_type t, int64_t bytes);
/* Measures a case in one pass, and adds the times to *s. Collective over `home`. */
void bench_measure(struct bench *b, const struct coll_case *c, struct bench_samples *s);
/* Checks a case and repeats reductions: sets wrong, differ and digest. Collective over `home`. */
void bench_check(struct bench *b, const struct coll_case *c, struct bench_result *r);
/* Sets the times and bandwidths of *r from all passes. `ranks` is the size of the group. */
void bench_compute_statistics(const struct bench_samples *s, const struct coll_case *c,
	int ranks, struct bench_result *r);

/* ---- step.c: a training step ------------------------------------------------------- */

/* Returns the number of gradient values, on all ranks, that differ from a computation on one rank.
 * Collective. */
int64_t step_count_wrong(struct comm *c, const struct bench_fault *fault);

/* ---- smoke.c: the smoke test of ranks, hosts and libraries ------------------------ */
struct peer {
	char host[64], libraries[192];
	int64_t pid;
};

/* Returns host, libraries and pid of each rank, [world->size], to be freed. Collective. */
struct peer *peers_gather(struct comm *world, const char *libraries);
/* Starts a timeout, before comm_open(): this rank then prints what it waits for and exits. */
void smoke_start_timeout(const char *program);
/* Runs the smoke test and cancels the timeout. Returns 0 or EX_FAILED. Collective. */
int smoke_run(struct comm *world, const struct peer *peers, const bool wanted[N_BENCH],
	const struct bench_fault *fault);
