/* The results of pt-collbench: rows, the columns of the table that is printed, and its file. */
#ifndef COLLBENCH_TABLE_H
#define COLLBENCH_TABLE_H

#include "base/file.h"
#include "collbench/collbench.h"

/* ---- table.c ------------------------------------------------------------------------ */

/* Names of operations and types, and of collectives; all end with "all" and NULL. */
extern const char *const bench_op_names[N_COMM_OPS + 2];
extern const char *const bench_type_names[N_COMM_TYPES + 2];
const char *const *bench_coll_names(void);

/* Codes are indices of names; -1: none. */
struct bench_row {
	int64_t collective, size, count, type, redop, root;
	struct bench_result result[N_COLL_PLACES];
};

struct bench_table {
	struct bench_row *rows;
	int64_t n_rows, n_wrong;
	bool per_iteration, checked;
};

enum column_kind {
	COLUMN_NAME,
	COLUMN_WHOLE,
	COLUMN_TALLY,
	COLUMN_REAL
}; /* a negative tally was not taken */

struct bench_column {
	const char *label, *unit;
	int width; /* 0: not printed */
	enum column_kind kind;
	size_t offset;
	const char *dataset, *doc;
	const char *const *names;
};

/* The columns of a row, and of each of its results. */
extern const struct bench_column case_columns[], result_columns[], iteration_columns[];
extern const char *const place_names[N_COLL_PLACES];

void table_heading(const struct bench_table *t, enum coll what);
void table_add(struct bench_table *t, const struct bench_row *r, bool print);
void table_footer(const struct bench_table *t);

/* ---- file.c: the results as an HDF5 file -------------------------------------------- */

/* The attributes of the file. */
struct bench_about {
	const char *format, *created_by, *started, *host;
	int64_t version, ranks, hosts, iters, warmup_iters, check;
};

struct h5;
struct bench_file {
	const char *path; /* NULL: none is wanted */
	bool overwrite;	  /* whatever is there; else only results of pt-collbench */
	struct durable out;
	struct h5 *file; /* rank 0's */
};

/* Collective. The file is made before anything is measured, so that a path that cannot be
 * written is reported at once. */
int bench_file_begin(struct bench_file *f, struct comm *c, struct err *e);
/* Collective. The file gets its contents and its name; without a table it is removed. */
int bench_file_end(struct bench_file *f, struct comm *c, const struct bench_table *t,
	const struct bench_about *about, struct err *e);

#endif
