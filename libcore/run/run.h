/*
 * run: the log of a run. The directory of a run contains a journal (text, one write() per line),
 * the same log as HDF5 (run.h5, rewritten as a whole), and checkpoints.
 *
 * Logs are read from the journal, from run.h5, and from the standard output of pt-train; none of
 * them is trusted. No call is collective: rank 0 writes. Functions that return int return 0, or -1
 * with *e set.
 */
#pragma once

#include "base/base.h"
#include "h5/h5.h"
#include "run/absent.h"

enum { RUN_VERSION = 1 };

/* ---- columns.c: the table of columns --------------------------------------------- */

enum column_kind {
	COLUMN_INT,   /* an integer of at most 2^53 */
	COLUMN_EXACT, /* a float, printed with all of its bits */
	COLUMN_ROUND, /* a measurement, printed with six digits */
};

struct column {
	const char *name;
	enum column_kind kind;
	bool curve;	  /* a result, which pt-compare compares */
	bool every;	  /* and which every run has */
	const char *unit; /* NULL: a number of something, or a ratio */
	const char *
		tag; /* its name in TensorBoard, which groups by what is before the slash */
	const char *was; /* its name in earlier versions, whose logs are read */
	const char *help;
};

enum column_id {
	COL_STEP,
	COL_TOKENS,
	COL_COUNTED,
	COL_LOSS,
	COL_GRAD_NORM,
	COL_LR,
	COL_LOSS_SCALE,
	COL_TRAIN_LOSS,
	COL_VAL_LOSS,
	COL_VAL_BPB,
	COL_REWARD,
	COL_DT,
	COL_DT_FORWARD,
	COL_DT_BACKWARD,
	COL_DT_COMM,
	COL_DT_DATA,
	COL_BUBBLE,
	COL_SPS,
	COL_SPS_PER_GPU,
	COL_TPS,
	COL_TPS_PER_GPU,
	COL_MFU,
	COL_MFU_CAUSAL,
	COL_MEM_ACTIVE,
	COL_MEM,
	COL_SENT,
	COL_SYNCS,
	COL_LOCAL_STEPS,
	COL_LOCAL_LOSS,
	COL_PSEUDO_GRAD_NORM,
	COL_OUTER_GRAD_NORM,
	COL_WORKER_WEIGHT,
	COL_ANOMALIES,
	COL_OUTER_CLIP,
	COL_SYNC_SENT,
	COL_SYNC_WAIT,
	COL_OFFLOAD_READ,
	COL_OFFLOAD_WRITTEN,
	N_COLUMNS
};

extern const struct column columns[N_COLUMNS];
int column_find(const char *name); /* -1: no such column */
int column_of_tag(const char *tag, size_t n);
/* Whether a value is valid in a column. Rows are matched by integer columns, so those must not
 * contain other values. */
bool column_fits(int c, double v);

/* Returns 1 if higher values of the column are better, such as an accuracy; -1 if lower ones are,
 * such as a loss; 0 if the name, which may be of another program, implies neither. */
int column_sense(const char *name);

/* Prints the table as a list for a manual page, and as lines for people. */
void columns_man(FILE *f);
void columns_print(FILE *f);

/* A row; values that were not measured are absent. */
struct row {
	double v[N_COLUMNS];
	uint64_t has;	 /* a bit for each column */
	uint64_t unread; /* likewise: what is there is no number */
};

_Static_assert(N_COLUMNS <= 64, "a bit for each column");

static inline bool row_has(const struct row *r, int c)
{
	return r->has >> c & 1;
}

static inline void row_set(struct row *r, int c, double v)
{
	r->v[c] = v;
	r->has |= (uint64_t)1 << c;
}

/* Appends "step=10 tokens=7680 loss=2.5 ...", without a line break. */
void row_print(const struct row *r, struct str *out);
/* Parses such a line, and ignores unknown keys. Returns -1 if it has no step. */
int row_parse(const char *line, size_t len, struct row *r, struct unread *u);

/* ---- log.c: the log of a run in memory ------------------------------------------- */

/* Properties of a run. Texts may be NULL. */
struct run_info {
	const char *format, *created_by;
	int64_t version;
	const char *started; /* UTC */
	const char *host, *job, *command, *device, *libraries, *layout;
	const char *invocation; /* options that do not affect results, as a config file */
	const char *environment; /* NAME=VALUE, separated by blanks */
	int64_t pid, ranks, hosts, threads;
	uint64_t arithmetic; /* hash of the properties that determine bitwise results */
};

extern const struct h5_field run_fields[];

/* A column of a log: of the table, or of another program's log that has more columns. */
struct log_column {
	char *name;
	double *v; /* [n_rows]; NULL: no row has a value */
};

enum { MAX_LOG_COLUMNS = 1024 };

struct run_log {
	char *name; /* of its file, for messages */
	char *brief; /* without what the names of several runs have in common; NULL: as name */
	struct run_info info;
	struct str config;     /* the options, as lines `key = value` */
	struct str arithmetic; /* properties that determine results, likewise */
	struct str events;     /* one per line */
	/* Those of the table first, in its order, then those that a log of another program has beside
	 * them. NULL: a log without rows. */
	struct log_column *column;
	int n_columns;
	int64_t n_rows, room; /* rows: in ascending order of steps */
	/* The significant decimal digits of values; 0: all bits of a float. */
	int digits;
	struct unread unread;
};

/* The value of column c (-1: of none) in row i; absent_value(): it has none. */
static inline double run_log_value(const struct run_log *l, int64_t i, int c)
{
	return c >= 0 && c < l->n_columns && l->column[c].v ? l->column[c].v[i]
							    : absent_value();
}

static inline bool run_log_has(const struct run_log *l, int64_t i, int c)
{
	return !is_absent(run_log_value(l, i, c));
}

static inline const char *run_log_brief(const struct run_log *l)
{
	return l->brief ? l->brief : l->name;
}

/* The columns of the table, as a row. */
struct row run_log_row(const struct run_log *l, int64_t i);
/* Appends a row, which replaces earlier rows with the same or a later step: the run was resumed from
 * before them. */
void run_log_add(struct run_log *l, const struct row *r);
/* Makes n rows in a log without rows, of these steps, which ascend; -1: too many. */
int run_log_rows(struct run_log *l, const int64_t *steps, int64_t n);
/* The number of the column `name` (of the table, by its earlier name too); -1: none. */
int run_log_find(const struct run_log *l, const char *name);
/* Finds a column, or adds it. -1: too many columns. */
int run_log_column(struct run_log *l, const char *name);
void run_log_set(struct run_log *l, int64_t i, int c, double v);
/* What is there cannot be read. */
void run_log_set_unread(struct run_log *l, int64_t i, int c);
/* Removes the rows after `step`, from which a run was resumed. */
void run_log_rewind(struct run_log *l, int64_t step);
/* Adds one line of a journal or of standard output: a line_fn of a struct run_log. */
int run_log_line(void *log, const char *line, size_t len, struct err *e);
/* Adds the complete lines of a text, and sets *whole to the bytes of these. */
int run_log_lines(
	struct run_log *l, const struct str *text, size_t *whole, struct err *e);
/* Reads a journal, a run.h5, or standard output of pt-train, from a file, a pipe, or standard input
 * ("-"); the directory of a run stands for its run.h5. */
int run_log_read(struct run_log *l, const char *path, struct err *e);
/* Reads an open file, which is at `path` (HDF5 needs that), into a log that has a name only. */
int run_log_read_file(void *log, int fd, const char *path, struct err *e);
int run_log_write(const struct run_log *l, const char *path, struct err *e);
void run_log_free(struct run_log *l);

/* ---- tensor_hash.c: hashes of the tensors of a step ------------------------------ */

/* The parts of a step, in the order in which a difference spreads. */
enum step_phase {
	PHASE_PARAMETER, /* before the step */
	PHASE_FORWARD,	 /* activations of a micro-batch */
	PHASE_BACKWARD, /* their gradients, and those of parameters by this micro-batch */
	PHASE_GRADIENT, /* of parameters, summed over the batch and all ranks */
	PHASE_NORM,	/* numbers that all ranks share: the loss, the gradient norm */
	PHASE_STATE,	/* of the optimizer, after the step */
	PHASE_UPDATED,	/* parameters after the step */
	N_PHASES
};

/* A tensor at some place of a step. The hash is the sum, modulo 2^64, of a hash of (index, value)
 * of each element, so it does not depend on how the elements are divided among ranks. */
struct tensor_hash {
	int64_t step, micro; /* micro: -1 where it is of the whole batch */
	enum step_phase phase;
	char name[96];
	int64_t elements, nonfinite;
	uint64_t hash;
	float max; /* the largest |element| that is finite */
	bool replicas_differ;
};

/* Adds elements whose indices in the whole tensor are from `first` on. */
void tensor_hash_add(struct tensor_hash *h, const float *x, int64_t n, int64_t first);
void tensor_hash_add_ints(
	struct tensor_hash *h, const int32_t *x, int64_t n, int64_t first);
/* Appends "step=1 micro=0 phase=forward name=output elements=2048 hash=0x... max=0.5", and a line
 * break. */
void tensor_hash_print(const struct tensor_hash *h, struct str *out);
/* Parses such a line, which is not trusted. -1: it is none. */
int tensor_hash_parse(const char *line, size_t len, struct tensor_hash *h);
/* Reads a file of such lines, in their order; lines that begin with # are comments. */
struct tensor_hashes {
	struct tensor_hash *of;
	int64_t n;
};
int tensor_hashes_read(struct tensor_hashes *l, const char *path, struct err *e);
void tensor_hashes_free(struct tensor_hashes *l);

/* ---- journal.c: writing the log during the run ----------------------------------- */

struct journal {
	struct run_log log; /* all lines, including those from before a resumption */
	char *folder;
	int fd;
	bool half;	  /* the file ends with an incomplete line */
	struct str lines; /* since the last sync */
	size_t written; /* bytes of them in the file; the others wait, as for a full disk */
	int64_t synced;			/* bytes of the file that are safe */
	double published, publish_cost; /* the last write of run.h5: time, seconds */
};

/* Locks the run in FOLDER against other writers until *fd is closed or the process ends. Waits at
 * most `patience` seconds. *fd is -1 if the file system has no locks (with a warning), or without
 * `make` if there is no journal. */
int journal_lock(const char *folder, bool make, double patience, int *fd, struct err *e);

/* Keeps the log of an earlier run in FOLDER, before a new one replaces it, under the first free
 * names journal.txt.N and run.h5.N, and says so. */
int journal_keep(const char *folder, struct err *e);
/* Opens FOLDER/journal.txt, to continue after step `resume`, or with -1 to begin a new journal.
 * Writes `info` and the texts as its head. A run.h5 with rows up to `resume` that the journal lacks
 * is kept as run.h5.N, and a warning says so. `idle`: no step follows, and an earlier head stays the
 * last unless rows are dropped. */
int journal_open(struct journal *j, const char *folder, int64_t resume, bool idle,
	const struct run_info *info, const char *config, const char *arithmetic,
	struct err *e);
/* A line that cannot be written is an error; it is kept and written before the next one. */
int journal_row(struct journal *j, const struct row *r, struct err *e);
int journal_event(struct journal *j, int64_t step, const char *text, struct err *e);
int journal_flush(struct journal *j, struct err *e); /* writes the kept lines */
int64_t journal_kept(const struct journal *j);	     /* their number */
/* Whether run.h5 is older than this, and also old enough that rewriting it, which takes longer as
 * the run grows, takes a small fraction of the time. */
bool journal_stale(const struct journal *j, double seconds);
/* Rewrites run.h5 under a temporary name, and renames it. */
int journal_publish(struct journal *j, struct err *e);
void journal_close(struct journal *j);
