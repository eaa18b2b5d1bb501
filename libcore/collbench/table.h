/* The results of pt-collbench: a table, on standard output and as a file. */
#ifndef COLLBENCH_TABLE_H
#define COLLBENCH_TABLE_H

#include "base/file.h"
#include "collbench/collbench.h"

/* ---- table.c ------------------------------------------------------------------------ */

/* Names of operations, types and collectives, each followed by "all" and NULL. */
extern const char *const bench_op_names[N_COMM_OPS + 2];
extern const char *const bench_type_names[N_COMM_TYPES + 2];
const char *const *bench_coll_names(void);

/* A measurement. collective, type and redop are indices of names; -1: none. */
struct bench_row {
	int64_t collective, size, count, type, redop, root;
	struct bench_result result[N_COLL_PLACES];
};

struct bench_table {
	struct bench_row *rows;
	int64_t n_rows, n_wrong;
	bool per_iteration, checked;
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
	bool per_iteration; /* printed if the table shows iterations */
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
};

struct h5;
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
