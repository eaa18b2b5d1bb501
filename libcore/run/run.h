/*
 * run: what a run leaves behind. Its folder holds a journal (text, a line a write), the
 * same as HDF5 (run.h5, republished whole), and checkpoints.
 *
 * The readers take the journal, run.h5, and the lines that pt-train prints; all of it is
 * foreign. No call is collective: rank 0 writes.
 */
#ifndef RUN_H
#define RUN_H

#include "base/base.h"
#include "h5/h5.h"

enum { RUN_VERSION = 1 };

/* ---- columns.c: one table of what is logged -------------------------------------- */

enum column_kind {
	COLUMN_INT,   /* whole, below 2^53 */
	COLUMN_EXACT, /* a float, written so that no bit is lost */
	COLUMN_ROUND, /* a measurement: six digits */
};

struct column {
	const char *name;
	enum column_kind kind;
	bool curve;	  /* a result: pt-compare compares it */
	const char *unit; /* NULL: a number of something, or a ratio */
	const char *was;  /* its name in earlier versions, whose logs are read */
	const char *help;
};

enum column_id {
	COL_STEP,
	COL_TOKENS,
	COL_LOSS,
	COL_GRAD_NORM,
	COL_LR,
	COL_LOSS_SCALE,
	COL_TRAIN_LOSS,
	COL_VAL_LOSS,
	COL_DT,
	COL_DTF,
	COL_DTB,
	COL_DTC,
	COL_DTD,
	COL_BUBBLE,
	COL_SPS,
	COL_SPS_PER_GPU,
	COL_TPS,
	COL_TPS_PER_GPU,
	COL_MFU,
	COL_MFU_CAUSAL,
	COL_MEM,
	COL_SENT,
	COL_SYNC,
	COL_SYNC_STEPS,
	COL_SYNC_LOSS,
	COL_SYNC_NORM,
	COL_SYNC_REDUCED,
	COL_SYNC_WEIGHT,
	COL_SYNC_ANOMALIES,
	COL_SYNC_CLIP,
	COL_SYNC_SENT,
	COL_SYNC_WAIT,
	COL_READ,
	COL_WRITTEN,
	N_COLUMNS
};

extern const struct column columns[N_COLUMNS];
int column_find(const char *name, size_t len); /* -1: no such column */
/* May it be in this column? Rows are matched by whole columns, so nothing else gets into
 * one. */
bool column_fits(int c, double v);

/* The table as a list for a manual page. */
void columns_man(FILE *f);

/* A row; what was not measured is absent. */
struct row {
	double v[N_COLUMNS];
	uint64_t has; /* a bit a column */
};

_Static_assert(N_COLUMNS <= 64, "a bit a column");

static inline bool row_has(const struct row *r, int c)
{
	return r->has >> c & 1;
}

static inline void row_set(struct row *r, int c, double v)
{
	r->v[c] = v;
	r->has |= (uint64_t)1 << c;
}

/* "step=10 tokens=7680 loss=2.5 ...", without a newline. */
void row_print(const struct row *r, struct str *out);
/* Reads such a line; unknown keys are passed over. -1: it is none. */
int row_parse(const char *line, size_t len, struct row *r);

/* ---- log.c: a run's log in memory ------------------------------------------------ */

/* Who ran what, where. Texts may be NULL. */
struct run_info {
	const char *format, *created_by;
	int64_t version;
	const char *started; /* UTC */
	const char *host, *job, *command, *device, *libraries, *layout;
	const char *invocation;	 /* options that compute nothing else, as a config */
	const char *environment; /* NAME=VALUE, blanks between them */
	int64_t pid, ranks, hosts, threads;
	uint64_t
		arithmetic; /* hash of what fixes the bits: equal for runs that can be equal */
};

extern const struct h5_field run_fields[];

struct run_log {
	char *name; /* for messages: the file it came from */
	struct run_info info;
	struct str config;     /* `key = value` lines: the options */
	struct str arithmetic; /* the same, of what fixes the bits */
	struct str events;     /* a line each */
	struct row *rows;      /* ascending steps */
	int64_t n_rows, room;
};

/* A row with a step that is there already, or was passed, means that the run went back:
 * rows from that step on are superseded. */
void run_log_add(struct run_log *l, const struct row *r);
/* Forgets rows after `step`: a run was resumed from there. */
void run_log_rewind(struct run_log *l, int64_t step);
/* One line of a journal or of standard output. */
int run_log_line(struct run_log *l, const char *line, size_t len, struct err *e);
/* A journal, a run.h5, printed lines, through a pipe too, or "-" for any of them on standard
 * input; a run's folder stands for its run.h5. */
int run_log_read(struct run_log *l, const char *path, struct err *e);
int run_log_write(const struct run_log *l, const char *path, struct err *e);
void run_log_free(struct run_log *l);

/* ---- journal.c: writing while the run goes on ------------------------------------ */

struct journal {
	struct run_log
		log; /* all that was written, and what earlier parts of the run wrote */
	char *folder;
	int fd;
	bool half;	 /* the file ends in a part of a line */
	struct str kept; /* lines that could not be written yet: a full disk, say */
	int64_t n_kept;
	struct str late; /* lines written since the last sync, which may yet be lost */
	int64_t n_late, synced; /* up to where the file is safe */
	double published,
		publish_cost; /* when run.h5 was last written; seconds it took */
};

/* Nobody else may write to the run in FOLDER until *fd is closed, or the process has ended,
 * however. Waits so many seconds for who is at work there. Where the file system knows no
 * locks, that is a warning, and *fd is -1; also without `make`, where there is no journal. */
int journal_lock(const char *folder, bool make, double patience, int *fd, struct err *e);

/* Continues FOLDER/journal.txt when `resume` is a step, beginning after it; -1 begins a
 * new one. `info` and the texts are written as its head. */
int journal_open(struct journal *j, const char *folder, int64_t resume,
	const struct run_info *info, const char *config, const char *arithmetic,
	struct err *e);
/* A line that cannot be written is an error, and kept: it is written before the next one. */
int journal_row(struct journal *j, const struct row *r, struct err *e);
int journal_event(struct journal *j, int64_t step, struct err *e, const char *fmt, ...)
	PRINTF(4, 5);
int journal_flush(struct journal *j, struct err *e); /* what was kept, again */
/* Has run.h5 become this old? And is it so long ago that writing it anew, which takes longer
 * the longer the run is, stays a small part of the time? */
bool journal_stale(const struct journal *j, double seconds);
/* Writes run.h5 anew, under its name only when complete. */
int journal_publish(struct journal *j, struct err *e);
void journal_close(struct journal *j);

#endif
