/* collbench: measures and checks collectives, for pt-collbench. */
#ifndef COLLBENCH_H
#define COLLBENCH_H

#include "base/file.h"
#include "comm/collective.h"
#include "h5/h5.h"

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

/* When the host waits for the GPU: after each iteration; after all, which are queued; or after each launch
 * of a CUDA graph that has an iteration. */
enum bench_launch { LAUNCH_BLOCKING, LAUNCH_QUEUED, LAUNCH_GRAPH };

struct bench {
	/* Set by the caller, as the fault. iterations; collectives of an iteration, which are one group;
	 * repetitions of reductions with equal inputs. */
	int64_t warmup, iters, checks, aggregate, reruns;
	struct bench_fault fault;
	struct device *d; /* whose memory the buffers are in; NULL: host memory */
	enum bench_launch launch;
	bool registered;   /* for the device's library: comm_device_arena() */
	struct comm *comm; /* of the next measurement */
	struct comm_place place;
	struct comm *home;	   /* of the memory */
	struct arena memory, host; /* of the buffers, and of copies to check them */
	char *send, *recv;
	char *host_send, *host_recv;
	int64_t room;	 /* bytes of a buffer with its guards */
	double *seconds; /* [iters + 1]: each iteration, then the mean */
	uint64_t iteration;
};

/* Values that were not measured are NaN; wrong, differ: -1. */
struct bench_result {
	double time, algbw, busbw; /* us; 1e9 bytes/s */
	int64_t wrong, differ;
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
/* Collective. The time of an iteration is the slowest rank's; times are those of one of its collectives. */
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

/* ---- table.c ------------------------------------------------------------------------ */

/* What transferred the buffers. */
enum bench_library { LIBRARY_MPI, LIBRARY_NCCL };
extern const char *const bench_library_names[3];
/* Names of operations, types and collectives, each followed by "all" and NULL. */
extern const char *const bench_op_names[N_COMM_OPS + 2];
extern const char *const bench_type_names[N_COMM_TYPES + 2];
const char *const *bench_coll_names(void);

enum column_set { SET_ALWAYS, SET_LIBRARY, SET_ITERATIONS, SET_RERUNS, N_COLUMN_SETS };

/* A measurement. collective, type, redop and library are indices of names; -1: none. */
struct bench_row {
	int64_t collective, size, count, type, redop, root, library;
	struct bench_result result[N_COLL_PLACES];
};

struct bench_table {
	struct bench_row *rows;
	int64_t n_rows, n_wrong;
	bool shown[N_COLUMN_SETS];
	bool checked;
};

/* COLUMN_TALLY: a count, negative if nothing was counted. */
enum column_kind { COLUMN_NAME, COLUMN_WHOLE, COLUMN_TALLY, COLUMN_REAL };

struct bench_column {
	const char *label, *unit;
	int width; /* 0: not printed */
	enum column_kind kind;
	size_t offset;
	const char *dataset, *doc;
	const char *const *names;
	enum column_set set; /* printed if the table shows it */
};

/* The columns of a row, and of each of its results. */
extern const struct bench_column case_columns[], result_columns[];
extern const char *const place_names[N_COLL_PLACES];

void table_heading(const struct bench_table *t, enum coll what);
void table_add(struct bench_table *t, const struct bench_row *r, bool print);
void table_footer(const struct bench_table *t);

/* ---- file.c: the HDF5 file ---------------------------------------------------------- */

/* The attributes of the file. */
struct bench_about {
	const char *format, *created_by, *started, *host;
	int64_t version, ranks, hosts, iters, warmup_iters, check;
	const char *device, *comm,
		*launch; /* NULL: host memory; what transfers it; the option */
	int64_t aggregate, reruns, registered;
};

struct bench_file {
	const char *path; /* NULL: no file */
	bool overwrite;	  /* replaces any file; else only results of pt-collbench */
	struct durable out;
	struct h5 *file; /* on rank 0 */
};

/* Collective. Creates the file before anything is measured, so that a path that cannot be written
 * is reported at once. -1: the same error on all ranks. */
int bench_file_begin(struct bench_file *f, struct comm *c, struct err *e);
/* Collective. Writes the table and gives the file its name; t NULL: removes the file. */
int bench_file_end(struct bench_file *f, struct comm *c, const struct bench_table *t,
	const struct bench_about *about, struct err *e);

#endif
