/* Results of pt-collbench: the table and its columns, the HDF5 file, comparisons, pictures. */
#pragma once

#include "base/file.h"
#include "draw/draw.h"
#include "collbench/collbench.h"
#include "collbench/fit.h"
#include "h5/h5.h"

/* ---- table.c ------------------------------------------------------------------------ */

/* The library that transferred the buffers. */
enum bench_library { LIBRARY_MPI, LIBRARY_NCCL, N_LIBRARIES };
/* Lists of names, closed by NULL. Operations, types and collectives end with "all". Groups are
 * "world" and the axes of a mesh. */
extern const char *const bench_op_names[N_COMM_OPS + 2];
extern const char *const bench_type_names[N_COMM_TYPES + 2];
const char *const *bench_coll_names(void);
extern const char *const bench_library_names[N_LIBRARIES + 1];
const char *const *bench_group_names(void);

enum column_set {
	SET_ALWAYS,
	SET_LIBRARY,
	SET_GROUPS,
	SET_ITERATIONS,
	SET_RERUNS,
	SET_OVERLAP,
	N_COLUMN_SETS
};

/* A measurement. collective, type, redop, library and group are indices of names; -1: none. */
struct bench_row {
	int64_t collective, size, count, type, redop, root, library;
	int64_t group, group_ranks, group_hosts, groups;
	struct bench_result result[N_COLL_PLACES];
};

struct bench_table {
	struct bench_row *rows;
	int64_t n_rows, n_wrong;
	struct bench_fit *fits;
	int64_t n_fits;
	bool shown[N_COLUMN_SETS];
	bool checked;
	char settings[BENCH_SETTINGS];
};

/* COLUMN_TALLY: a count, negative if nothing was counted. */
enum column_kind { COLUMN_NAME, COLUMN_WHOLE, COLUMN_TALLY, COLUMN_REAL };

struct bench_column {
	const char *label, *unit;
	int width; /* 0: not printed */
	enum column_kind kind;
	size_t offset;
	const char *dataset, *doc;
	const char *const *(*names)(void); /* COLUMN_NAME */
	enum column_set set;		   /* printed if table.shown[set] */
};

/* The columns of a row, of each of its results, and of a fit; closed by a NULL label. */
extern const struct bench_column case_columns[], result_columns[], fit_columns[];
extern const char *const place_names[N_COLL_PLACES];

void table_print_heading(const struct bench_table *t, int what);
void table_print_row(const struct bench_table *t, const struct bench_row *r);
/* Prints the verdict of the checks, the mean bus bandwidth, and how often ranks waited. */
void table_print_footer(const struct bench_table *t);
void table_release(struct bench_table *t);
/* Sets t->fits: latency and bandwidth of each collective, library, axis and kind of group with at
 * least 3 sizes. Uses the times out of place, else in place, of float and sum, else of the first
 * type, operation and root. */
void table_add_fits(struct bench_table *t);
void table_print_fits(const struct bench_table *t);

/* ---- file.c: the HDF5 file ---------------------------------------------------------- */

enum { BENCH_VERSION = 3 };

/* The attributes of the file. */
struct bench_about {
	const char *format, *created_by, *started, *host;
	int64_t version, ranks, hosts, iters, warmup_iters, check;
	const char *device, *comm; /* NULL: host memory; the library that transfers it */
	const char *launch;
	int64_t aggregate, reruns, registered, passes;
	double seconds;
	const char *settings; /* settings of the table */
};

struct bench_file {
	const char *path; /* NULL: no file */
	bool overwrite;	  /* replace any file; else only results of pt-collbench */
	struct durable out;
	struct h5 *file; /* on rank 0 */
};

/* Creates the file before anything is measured, to report errors at once. Returns -1 with the
 * same error on all ranks. Collective. */
int bench_file_begin(struct bench_file *f, struct comm *c, struct err *e);
/* Writes the table and gives the file its name; if t is NULL, removes the file. Collective. */
int bench_file_end(struct bench_file *f, struct comm *c, const struct bench_table *t,
	const struct bench_about *about, struct err *e);
/* Reads rows and fits of a file, which is not trusted, into an empty table. On errors it stays
 * empty. */
int bench_file_read(const char *path, struct bench_table *t, struct err *e);

/* ---- regress.c: comparison with an earlier result -------------------------------------- */

/* VERDICT_NONE: a result does not have the time. */
enum bench_verdict {
	VERDICT_NONE,
	VERDICT_UNCHANGED,
	VERDICT_SLOWER,
	VERDICT_FASTER,
	VERDICT_UNJUDGED,
	N_VERDICTS
};

/* A row, compared with the same case of an earlier result. */
struct bench_judged {
	const struct bench_row *old; /* NULL: none */
	struct bench_result now[N_COLL_PLACES];
	enum bench_verdict verdict[N_COLL_PLACES];
};

/* Compares the typical times of equal cases. A time is slower or faster if it differs by more
 * than `threshold` (a ratio, such as 0.15) and significantly. A case that was measured fewer
 * than 3 times has no standard error and is not judged. The test is Welch's, on the logarithms of the times, with the
 * errors of both results and of a launch (regress.c). Its level is 5 % over the number of judged
 * times (Bonferroni), so at most 5 % of the comparisons of an unchanged network find any slower
 * time. Returns an element per row of `now`, to be freed. */
struct bench_judged *table_judge(
	const struct bench_table *old, const struct bench_table *now, double threshold);
/* Returns how many times of a row are slower, or not judged because ranks waited. */
int table_count_doubtful(const struct bench_judged *j);
/* Updates the verdicts in first[n] by a repeated measurement: times that are not slower again are
 * unchanged; times that were not judged get the new verdict. */
void table_update_verdicts(
	struct bench_judged *first, const struct bench_judged *again, int64_t n);

/* Appends a line per slower or faster time and per row that only `old` has, and the totals.
 * Returns the number of slower times; -1 with *e set if the settings differ, or nothing is
 * judged. */
int64_t table_compare(const struct bench_table *old, const struct bench_table *now,
	const struct bench_judged *j, struct str *out, struct err *e);

/* Returns -1 with *e set if the results were measured with different options. */
int table_check_settings(
	const struct bench_table *old, const struct bench_table *now, struct err *e);

/* ---- picture.c --------------------------------------------------------------------------- */

enum picture_of { PICTURE_BUSBW, PICTURE_TIME };
enum { MAX_BENCH_CURVES = 64 }; /* curves after these are left out */
struct bench_curves {
	struct graph graph;
	struct graph_series series[MAX_BENCH_CURVES];
	struct graph_point *points;
};
/* Makes a curve of times or bandwidths over the size per case. *c must not move: it points into
 * itself. */
void table_make_curves(const struct bench_table *t, enum picture_of what, bool log_scale,
	struct bench_curves *c);
void bench_curves_release(struct bench_curves *c);
