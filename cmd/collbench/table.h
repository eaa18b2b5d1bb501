/* Results of pt-collbench: the table and its columns, the HDF5 file, comparison with an older one, pictures. */
#pragma once

#include "base/file.h"
#include "draw/draw.h"
#include "collbench/collbench.h"
#include "collbench/fit.h"
#include "h5/h5.h"

/* ---- table.c ------------------------------------------------------------------------ */

/* What transferred the buffers. */
enum bench_library { LIBRARY_MPI, LIBRARY_NCCL, N_LIBRARIES };
/* Names, each list closed by NULL: of operations, types and collectives, followed by "all"; of libraries; of
 * groups, "world" and the axes of a mesh. */
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
	enum column_set set;		   /* printed if the table shows it */
};

/* The columns of a row, of each of its results, and of a fit; closed by a NULL label. */
extern const struct bench_column case_columns[], result_columns[], fit_columns[];
extern const char *const place_names[N_COLL_PLACES];

void table_heading(const struct bench_table *t, int what);
void table_print_row(const struct bench_table *t, const struct bench_row *r);
void table_footer(const struct bench_table *t);
void table_free(struct bench_table *t);
/* Sets t->fits from the rows: of each collective, library, axis and kind of group with 3 sizes or more, times out of
 * place (else in place) of the first type, operation and root, but of float and sum if they are there. */
void table_fit(struct bench_table *t);
void table_print_fits(const struct bench_table *t);

/* ---- file.c: the HDF5 file ---------------------------------------------------------- */

enum { BENCH_VERSION = 3 };

/* The attributes of the file. */
struct bench_about {
	const char *format, *created_by, *started, *host;
	int64_t version, ranks, hosts, iters, warmup_iters, check;
	const char *device, *comm,
		*launch; /* NULL: host memory; what transfers it; the option */
	int64_t aggregate, reruns, registered, passes;
	double seconds;
	const char *settings; /* of the table */
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
/* Reads rows and fits of a file, which is not trusted. *t is empty before, and if it fails. */
int bench_file_read(const char *path, struct bench_table *t, struct err *e);

/* ---- regress.c: comparison with an older result ---------------------------------------- */

/* VERDICT_NONE: one of the results does not have it. */
enum bench_verdict {
	VERDICT_NONE,
	VERDICT_UNCHANGED,
	VERDICT_SLOWER,
	VERDICT_FASTER,
	VERDICT_UNJUDGED,
	N_VERDICTS
};

/* What a row was compared with: the case of the old result, or NULL; and its own result. */
struct bench_judged {
	const struct bench_row *old;
	struct bench_result now[N_COLL_PLACES];
	enum bench_verdict verdict[N_COLL_PLACES];
};

/*
 * Compares the typical times of equal cases: slower or faster if they differ by more than `threshold` (a ratio,
 * such as 0.15) and significantly. A case without an error, of fewer than 3 parts, is not judged. The test is Welch's,
 * of the logarithms of the times, with the errors of both and that of a launch (regress.c); its level is 5 % over the
 * number of times that are judged (Bonferroni), so that of two equal networks any one is called slower in 5 % of
 * the comparisons at most. Returns an element for each row of `now`, to be freed.
 */
struct bench_judged *table_judge(
	const struct bench_table *old, const struct bench_table *now, double threshold);
/* How many of the row's times are slower, or not judged because ranks waited for processors? */
int table_n_open(const struct bench_judged *j);
/* What was measured again: of times that were slower, those that are not slower now are unchanged; those that were
 * not judged have the verdict of now. */
void table_confirm(
	struct bench_judged *first, const struct bench_judged *again, int64_t n);

/* Appends a line for each time that is slower or faster and for each row that only `old` has, and sums. Returns the
 * number of slower ones. -1, with *e set: the settings differ, or nothing is judged. */
int64_t table_compare(const struct bench_table *old, const struct bench_table *now,
	const struct bench_judged *j, struct str *out, struct err *e);

/* -1, with *e set: the results were measured with other options. */
int table_check_settings(
	const struct bench_table *old, const struct bench_table *now, struct err *e);

/* ---- picture.c --------------------------------------------------------------------------- */

enum picture_of { PICTURE_BUSBW, PICTURE_TIME };
enum { MAX_BENCH_CURVES = 64 }; /* more are left out */
struct bench_curves {
	struct graph graph;
	struct graph_series series[MAX_BENCH_CURVES];
	struct graph_point *points;
};
/* Times or bandwidths over the size, a curve for each case; times are on a logarithmic scale. *c must not move: its
 * graph points into it. */
void table_curves(const struct bench_table *t, enum picture_of what, bool log_scale,
	struct bench_curves *c);
void bench_curves_free(struct bench_curves *c);
