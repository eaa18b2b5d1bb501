/* The run around the trainer; for the files of this directory only. */
#pragma once

#include <pthread.h>

#include "base/progress.h"
#include "engine/backend.h"
#include "engine/state.h"
#include "engine/step.h"
#include "train/faults.h"
#include "train/train.h"
#include "train/local_sgd.h"
#include "plan/plan.h"
#include "run/run.h"

/* The votes of a worker's ranks in every step. */
enum vote { VOTE_STOP, VOTE_SAVE, VOTE_WRITTEN, VOTE_MEET };

/* Actions after a step; equal on all ranks of a worker. */
struct decision {
	bool stop, save, log;
	bool agreed; /* all workers have the same parameters */
};

/* ---- report.c: the log --------------------------------------------------------------- */

/* Counters that are read before and after a step. */
struct meter {
	double seconds, waited;
	int64_t sent, read, written;
};

struct run_report {
	struct journal journal; /* rank 0's */
	struct progress bar;
	struct {
		int64_t steps;
		double seconds, forward, backward, data, waited, bubble;
		int64_t sent, read, written; /* bytes */
	} since;			     /* sums since the last row */
	double peak_flops;
	bool stdout_closed;
	bool journal_incomplete; /* lines could not be written yet */
	bool publish_failed;	 /* run.h5 is older than the journal */
	bool has_warned_of_peak; /* the peak is too low */
};

struct meter report_meter(const struct run *r);
void report_step(struct run *r, const struct step_result *s, struct meter before);
struct row report_new_row(const struct run *r);
/* Does standard output get short lines, for people? */
bool report_is_short(const struct run *r);
/* Is this step logged? */
bool report_due(const struct run *r);
/* Collective over the worker. Sets the columns of every logged step. */
void report_fill_row(struct run *r, const struct step_result *s, struct row *row);
/* Writes a row to the log, and an event to the journal. */
void report_row(struct run *r, const struct row *row);
void report_event(struct run *r, const char *fmt, ...) PRINTF(2, 3);
void report_print(struct run *r, const char *line);
/* Writes run.h5 if it is at least that many seconds old. */
void report_publish(struct run *r, double seconds);
/* Writes run.h5 in any case. */
void report_publish_now(struct run *r);

/* ---- tensorboard.c: --tensorboard ----------------------------------------------------- */

struct run_tensorboard {
	char *path; /* of the event file, on the first rank of a worker; NULL: none */
	int fd;
	struct str waiting; /* records that could not be written yet */
	bool torn;	    /* the file ends within a record: nothing more is written */
	bool failed;
};

/* Creates the event file of this worker, for the steps after `resume` (-1: a new run). */
int tensorboard_open(
	struct run *r, const struct train_opts *o, int64_t resume, struct err *e);
void tensorboard_row(struct run *r, const struct row *row);
void tensorboard_close(struct run *r);

/* ---- trace.c: --trace ---------------------------------------------------------------- */

struct run_trace {
	int64_t first, last; /* steps; 0: none */
	bool failed;	     /* rank 0: the file could not be written */
};

/* Collective over all. Sets the steps, and creates the file. */
int trace_open(struct run *r, const struct train_opts *o, struct err *e);
/* Collective over the worker. Enclose a step; the last traced step writes the file. */
void trace_begin_step(struct run *r);
void trace_end_step(struct run *r);
/* Collective over the worker. Writes the file if the run ends within the traced steps. */
void trace_end_run(struct run *r);

/* ---- hash_tensors.c: --hash-tensors -------------------------------------------------- */

struct run_hashes {
	int64_t first, last; /* steps; 0: none */
	int fd;		     /* rank 0's file; -1: none */
	struct observer observer;
	/* This rank's records of the current step. */
	int64_t step;
	struct record *record;
	int64_t n;
};

/* Collective over all. Sets the steps, and creates the file. */
int hashes_open(struct run *r, const struct train_opts *o, struct err *e);
/* Collective. Enclose a step. hashes_end_step() writes the hashes of its tensors, reports a
 * failure, and returns the exit code, the same on all ranks. */
void hashes_begin_step(struct run *r);
int hashes_end_step(struct run *r, const struct step_result *s);
/* Was that the last hashed step? The run ends after it. */
bool hashes_done(const struct run *r);
void hashes_close(struct run *r);

/* ---- save.c: checkpoints ------------------------------------------------------------- */

/* A checkpoint from its beginning to its end, which may be some steps later. */
struct saving {
	int64_t step;
	const char *why;
	struct str path;
	bool best; /* the validation loss of that step is the best so far */
	double begin,
		stalled; /* clock at the begin; seconds that training waited for it */
};

struct saver {
	struct saving now; /* while one is being written */
	/* The last step of which this worker has a checkpoint, and of which all workers have
	 * one; -1: none. Without workers, all_have is beyond every step. */
	int64_t have, all_have;
	int64_t saved_step, tried_step, eval_step; /* -1: none */
	double saved_at, retry_at; /* 0: the last checkpoint was written */
	bool failed;
	pthread_t pruner; /* rank 0's thread, which removes old checkpoints */
	bool pruning;
	int64_t prune_to; /* all_have when it began */
};

/* This rank's vote: is a checkpoint due by the clock? */
bool save_due(const struct run *r);
/* Collective. Saves this step unless it is saved. `background`: training continues meanwhile. */
void save_now(struct run *r, const char *why, bool background);
/* Collective. Ends the checkpoint that is being written. */
void save_end(struct run *r);
/* Waits until old checkpoints are removed: the next checkpoint needs the space. */
void save_close(struct run *r);

/* ---- run_dir.c: the run directory ---------------------------------------------------- */

struct run_dir {
	char *path, *ckpt_path; /* NULL: none */
	int lock; /* rank 0's lock of the journal, a file descriptor; -1: none */
	bool created, created_journal; /* by this run */
	bool has_algorithms;	       /* the algorithms of the first step are saved */
};

enum { PATIENCE_SECS = 3 }; /* wait for a run that is stopping, when another resumes it */
/* Collective over all. Creates the directory of this worker unless it exists, and locks it. */
int run_dir_open(struct run *r, const struct train_opts *o, struct err *e);
/* Collective over the worker. Checks that every rank that writes checkpoints can access it. */
int run_dir_check(const struct run *r, const struct train_opts *o, struct err *e);
/* Begins the flight record of this rank in the directory; comm_flight_close() removes it. */
void run_dir_record(const struct run *r);
/* Removes what a run created that could not start. */
void run_dir_undo(struct run *r);
/* --resume auto without a checkpoint: keeps the log of a run that had steps. */
int run_dir_keep_log(const struct run *r, struct err *e);
/* --overwrite: removes run.h5 and the checkpoints of the previous run, of all its workers. */
void run_dir_clear(const struct run *r, const struct train_opts *o);
/* ckpt_begun(): another worker has no checkpoint, and its journal shows that it never wrote one. */
bool run_dir_begun(const struct ckpt *c);

/* ---- the run ------------------------------------------------------------------------- */

struct run {
	double began;		     /* start of the program, by clock_seconds() */
	const struct job_base *base; /* the checkpoint that it resumes from */
	struct comm *all;	     /* the ranks of all workers */
	struct comm *world;	     /* the ranks of this worker */
	bool error_agreed;	     /* all ranks have the error that ends the start */
	bool deserted;		     /* another worker has quit */
	struct dataset data;
	struct trainer t;
	struct local_sgd local;
	struct faults faults;
	struct decision now;
	struct run_report report;
	struct saver saver;
	struct run_dir dir;
	struct run_trace trace;
	struct run_tensorboard tensorboard;
	struct run_hashes hashes;
	struct str self_test; /* result of the self-test */
	int64_t max_bytes;    /* planned memory of the rank that needs most */
};

static inline bool run_is_first(const struct run *r)
{
	return r->world->rank == 0;
}

/* With --edit-ckpt rank0, only the first worker writes checkpoints. */
static inline bool run_writes_ckpt(const struct run *r)
{
	return r->t.o.edit.ckpt == EDIT_CKPT_GROUP || r->t.o.resolved.worker == 0;
}

/* Collective, after a phase of the start that may fail. Returns -1 if any worker has failed. */
int start_agree(struct run *r, struct err *e);
/* Prints the first screen, a description of the run. */
void describe_run(const struct run *r, const struct run_info *i);

/* ---- peak.c ---------------------------------------------------------------------------- */

/* Returns the peak FLOP/s for MFU: given, from the GPU's data sheet, or measured; 0: unknown. */
double peak_flops(const struct train_opts *o, struct device *d);

/* ---- options_idle.c -------------------------------------------------------------------- */

/* Notes options that were given but have no effect, with the reasons; `ranks`: over all workers. */
void options_note_idle(const struct train_opts *o, const struct model *m, int ranks);
/* Collective. Trains (or evaluates), and returns the exit code. */
int loop_run(struct run *r);
