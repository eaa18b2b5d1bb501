/* run: the log of a run. The directory of a run contains a journal (text, one write() per line),
 * the same log as HDF5 (run.h5, rewritten as a whole), and checkpoints.
 *
 * Logs are read from the journal, from run.h5, and from the standard output of pt-train; none of
 * them is trusted. No call is collective: rank 0 writes. Functions that return int return 0, or -1
 * with *e set. */
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
	bool every;	  /* a result that every run has */
	const char *unit; /* NULL: a count or a ratio */
	const char
		*tag; /* name in TensorBoard, which groups by the part before the slash */
	const char *was; /* name in earlier versions */
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
	COL_AUX_LOSS,
	COL_ROUTER_Z,
	COL_EXPERT_VIOLATION,
	COL_EXPERTS_IDLE,
	COL_EXPERT_ROWS,
	COL_DROPPED,
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
	COL_SLOWEST,
	COL_SPS,
	COL_SPS_PER_GPU,
	COL_TPS,
	COL_TPS_PER_GPU,
	COL_MFU,
	COL_MFU_CAUSAL,
	COL_MEM_ACTIVE,
	COL_MEM,
	COL_SENT,
	COL_SENT_ROWS,
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
	COL_AUDITED,
	COL_MISMATCHES,
	N_COLUMNS
};

extern const struct column columns[N_COLUMNS];
int column_find(const char *name); /* -1: none */
int column_find_tag(const char *tag, size_t n);
/* Returns true if a value is valid in a column: in an integer column, if it is an integer. */
bool column_accepts(int c, double v);

/* Returns 1 if higher values of a column are better, such as an accuracy; -1 if lower ones are,
 * such as a loss; 0 if its name, perhaps from another program, implies neither. */
int column_sense(const char *name);

/* Print the table: as a list for a manual page, or as lines of text. */
void columns_print_man(FILE *f);
void columns_print(FILE *f);

/* A row; values that were not measured are absent. */
struct row {
	double v[N_COLUMNS];
	uint64_t has;	 /* a bit per column */
	uint64_t unread; /* a bit per column: the value could not be read */
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
/* Parses a line of row_print(), and ignores unknown keys. Returns -1 if it has no step. */
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

/* A column of a log: one of the table, or one that only another program's log has. */
struct log_column {
	char *name;
	double *v; /* [n_rows] values; NULL: no row has a value */
};

enum { MAX_LOG_COLUMNS = 1024 };

struct run_log {
	char *name; /* name of its file, for messages */
	char *brief; /* name without the parts that several runs share; NULL: same as name */
	struct run_info info;
	struct str config;     /* the options, as lines `key = value` */
	struct str arithmetic; /* what determines results, as lines `key = value` */
	struct str events;     /* one per line */
	struct log_column
		*column; /* [n_columns]: the table's, then other ones; NULL: no rows */
	int n_columns;
	int64_t n_rows, capacity; /* rows are in ascending order of steps */
	int digits; /* significant decimal digits of values; 0: all bits of a float */
	struct unread unread;
};

/* Returns the value of column c in row i; absent_value() if there is none, or c is -1. */
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

/* Returns row i with the columns of the table. */
struct row run_log_row(const struct run_log *l, int64_t i);
/* Appends a row. Removes rows with the same or a later step: the run was resumed before them. */
void run_log_add(struct run_log *l, const struct row *r);
/* Makes n rows with ascending steps in a log without rows. Returns -1 if they are too many. */
int run_log_set_steps(struct run_log *l, const int64_t *steps, int64_t n);
/* Returns the index of a column, for the table's also by the earlier name; -1: none. */
int run_log_find(const struct run_log *l, const char *name);
/* Finds a column, or adds it. Returns -1 if there are too many columns. */
int run_log_column(struct run_log *l, const char *name);
void run_log_set(struct run_log *l, int64_t i, int c, double v);
/* Records that the log has a value that cannot be read. */
void run_log_set_unread(struct run_log *l, int64_t i, int c);
/* Removes the rows after `step`, at which a run was resumed. */
void run_log_rewind(struct run_log *l, int64_t step);
/* Adds one line of a journal or of standard output; a line_fn for a struct run_log. */
int run_log_line(void *log, const char *line, size_t len, struct err *e);
/* Adds the complete lines of a text, and sets *whole to their size in bytes. */
int run_log_lines(
	struct run_log *l, const struct str *text, size_t *whole, struct err *e);
/* Reads a journal, a run.h5, or standard output of pt-train, from a file, a pipe, or standard input
 * ("-"); the directory of a run stands for its run.h5. */
int run_log_read(struct run_log *l, const char *path, struct err *e);
/* Reads an open file into a log with a name. HDF5 needs the path, too. */
int run_log_read_file(void *log, int fd, const char *path, struct err *e);
/* Writes a log as an HDF5 file, which replaces `path` when it is complete. */
int run_log_write(const struct run_log *l, const char *path, struct err *e);
void run_log_free(struct run_log *l);

/* ---- tensor_hash.c: hashes of the tensors of a step ------------------------------ */

/* The parts of a step, in the order in which a difference spreads. */
enum step_phase {
	PHASE_PARAMETER, /* before the step */
	PHASE_FORWARD,	 /* activations of a micro-batch */
	PHASE_BACKWARD,	 /* gradients of activations and parameters by this micro-batch */
	PHASE_GRADIENT, /* gradients of parameters, summed over the batch and all ranks */
	PHASE_NORM,	/* values that all ranks share: the loss, the gradient norm */
	PHASE_STATE,	/* optimizer state after the step */
	PHASE_UPDATED,	/* parameters after the step */
	N_PHASES
};

/* The hash of a tensor in a step: the sum, modulo 2^64, of a hash of (index, value) over all
 * elements. It does not depend on how the elements are divided among ranks. */
struct tensor_hash {
	int64_t step, micro; /* micro: -1: the whole batch */
	enum step_phase phase;
	char name[96];
	int64_t elements, nonfinite;
	uint64_t hash;
	float max; /* the largest finite |element| */
	bool replicas_differ;
};

/* Adds n elements, which begin at index `first` of the whole tensor. */
void tensor_hash_add(struct tensor_hash *h, const float *x, int64_t n, int64_t first);
/* Adds n integers, which begin at index `first` of the whole tensor. */
void tensor_hash_add_ints(
	struct tensor_hash *h, const int32_t *x, int64_t n, int64_t first);
/* Appends a line "step=1 micro=0 phase=forward name=output elements=2048 hash=0x... max=0.5". */
void tensor_hash_print(const struct tensor_hash *h, struct str *out);
/* Parses a line of tensor_hash_print(), which is not trusted. Returns -1 if it is not valid. */
int tensor_hash_parse(const char *line, size_t len, struct tensor_hash *h);
struct tensor_hashes {
	struct tensor_hash *of; /* [n], in the order of the file */
	int64_t n;
};
/* Reads a file with lines of tensor_hash_print(); lines that begin with # are comments. */
int tensor_hashes_read(struct tensor_hashes *l, const char *path, struct err *e);
void tensor_hashes_free(struct tensor_hashes *l);

/* ---- journal.c: writing the log during the run ----------------------------------- */

struct journal {
	struct run_log log; /* all lines, including those from before a resumption */
	char *dir;
	int fd;
	bool has_partial_line; /* the file ends with an incomplete line */
	struct str lines;      /* lines since the last sync */
	size_t written; /* bytes of `lines` that are in the file; others wait, maybe for disk space */
	int64_t synced;			/* bytes of the file on disk */
	double published, publish_secs; /* last write of run.h5: its end, its duration */
	int64_t previous_ranks;		/* of the run that is resumed; 0: a new journal */
	double previous_end;		/* time of the last line before the resumption */
};

/* Locks the run in DIR against other writers until *fd is closed or the process ends. Waits at
 * most max_secs seconds. *fd is -1 if the file system has no locks (with a warning), or without
 * `create` if there is no journal. */
int journal_lock(const char *dir, bool create, double max_secs, int *fd, struct err *e);

/* Keeps the log of an earlier run in DIR, before a new run replaces it, under the first free names
 * journal.txt.N and run.h5.N, with a warning. */
int journal_archive(const char *dir, struct err *e);
/* Opens DIR/journal.txt, to continue after step `resume`, or with -1 to begin a new journal. Writes
 * `info` and the texts as its head. If run.h5 has rows up to `resume` that the journal lacks, it is
 * kept as run.h5.N, with a warning. no_steps: no step follows, so no head is written unless rows
 * were dropped. */
int journal_open(struct journal *j, const char *dir, int64_t resume, bool no_steps,
	const struct run_info *info, const char *config, const char *arithmetic,
	struct err *e);
/* Write a line of the journal. If that fails, the line is kept, and written before the next one. */
int journal_write_row(struct journal *j, const struct row *r, struct err *e);
int journal_write_event(struct journal *j, int64_t step, const char *text, struct err *e);
/* Writes the kept lines to the journal. If that fails, they are kept. */
int journal_flush(struct journal *j, struct err *e);
int64_t journal_n_unwritten(const struct journal *j); /* number of kept lines */
/* Returns true if run.h5 is older than `seconds`, and so old that rewriting it takes at most a
 * twentieth of the time. */
bool journal_is_stale(const struct journal *j, double seconds);
/* Rewrites run.h5 under a temporary name, and renames it. */
int journal_publish(struct journal *j, struct err *e);
void journal_close(struct journal *j);
