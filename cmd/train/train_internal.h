/* The run around the trainer; for the files of this directory only. */
#pragma once

#include <pthread.h>

#include "base/progress.h"
#include "engine/backend.h"
#include "engine/state.h"
#include "engine/step.h"
#include "train/faults.h"
#include "train/log_files.h"
#include "train/train.h"
#include "train/local_sgd.h"
#include "plan/plan.h"
#include "run/run.h"
#include "vault/vault.h"

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
	int64_t sent_rows; /* part of `sent`: rows of experts */
};

struct run_report {
	struct journal journal; /* rank 0's */
	struct progress bar;
	struct {
		int64_t steps;
		double seconds, forward, backward, data, waited, bubble;
		int64_t sent, read, written, sent_rows; /* bytes */
	} since;					/* sums since the last row */
	double peak_flops;
	bool stdout_closed;
	bool journal_incomplete; /* lines could not be written yet */
	bool publish_failed;	 /* run.h5 is older than the journal */
	bool has_warned_of_peak; /* the peak is too low */
};

/* Returns the current values of the counters of time and bytes. */
struct meter report_meter(const struct run *r);
void report_step(struct run *r, const struct step_result *s, struct meter before);
/* Reports and frees what --deal speed has changed or found in a step. */
void report_dealing(struct run *r, struct step_result *s);
/* Returns a row with only the step and its tokens. */
struct row report_new_row(const struct run *r);
/* Returns true if standard output gets short rows, for people. */
bool report_uses_short_rows(const struct run *r);
/* Returns true if this step is logged. */
bool report_is_due(const struct run *r);
/* Sets the columns of a logged step, and clears the sums. Collective over the worker. */
void report_fill_row(struct run *r, const struct step_result *s, struct row *row);
/* Writes a row to the journal and the event file, prints it, and writes run.h5 if it is due. Only
 * the first rank does anything. */
void report_write_row(struct run *r, const struct row *row);
/* Writes an event to the journal on the first rank. A failure is a warning. */
void report_event(struct run *r, const char *fmt, ...) PRINTF(2, 3);
/* Prints a line and a newline in place of the progress bar. If stdout fails, warns once
 * and prints no more. */
void report_print(struct run *r, const char *line);
/* Writes run.h5 if it is at least that many seconds old. */
void report_publish(struct run *r, double seconds);
/* Writes run.h5 now. */
void report_publish_now(struct run *r);

/* ---- trace.c: --trace ---------------------------------------------------------------- */

struct run_trace {
	int64_t first, last; /* steps; 0: none */
	bool failed;	     /* rank 0: the file could not be written */
};

/* Sets the steps to trace, and creates the file. Collective over all. */
int trace_open(struct run *r, const struct train_opts *o, struct err *e);
/* Begins the record of the next step; before the first traced step, waits for all ranks and starts
 * recording. */
void trace_begin_step(struct run *r);
/* Ends the record of a step; after the last traced step, writes the file. Collective over the
 * worker. */
void trace_end_step(struct run *r);
/* Writes the file if the run ends within the traced steps. Collective over the worker. */
void trace_end_run(struct run *r);

/* ---- hash_tensors.c: --hash-tensors -------------------------------------------------- */

struct run_hashes {
	int64_t first, last; /* steps; 0: none */
	int fd;		     /* rank 0's file; -1: none */
	struct observer observer;
	int64_t step;
	struct record *record; /* [n]: this rank's records of the current step */
	int64_t n;
};

/* Writes the name of a result to `name`: layers.N.NAME, or its parameter's name. */
void hashes_name_result(
	const struct model *m, const struct result *x, char *name, size_t size);
/* Sets the steps to hash, and creates the file. Collective over all. */
int hashes_open(struct run *r, const struct train_opts *o, struct err *e);
/* Installs the observers that hash the tensors of the next step, if that step is to be hashed. */
void hashes_begin_step(struct run *r);
/* Writes the hashes of the step's tensors, and reports a failure. Returns the exit status, the same
 * on all ranks; 0: success, or the step is not hashed. Collective. */
int hashes_end_step(struct run *r, const struct step_result *s);
/* Returns true after the last hashed step, with which the run ends. */
bool hashes_are_done(const struct run *r);
void hashes_close(struct run *r);

/* ---- referee.c: --referee ------------------------------------------------------------ */

/* Reports how much of the work audits compute again. */
void referee_report_start(struct run *r);
/* Prepares trials, and reads the faults of earlier starts from the file of suspects. If a device of the
 * run has had one within a day, the next steps are audited. Collective. */
void referee_begin(struct run *r);
/* Sets the columns of audits. */
void referee_fill_row(const struct run *r, struct row *row);
/* Appends the ranks that an audit of the step has found to the file of suspects, on rank 0. */
void referee_write_suspects(struct run *r);

/* ---- save.c: checkpoints ------------------------------------------------------------- */

/* A checkpoint from its beginning to its end, which may be some steps later. */
struct saving {
	int64_t step;
	const char *why;
	struct str path;
	bool best; /* the validation loss of that step is the lowest so far */
	double begin,
		stalled; /* clock at the begin; seconds that training waited for it */
};

struct saver {
	struct saving now; /* the checkpoint that is being written */
	/* The last step with a checkpoint of this worker, and of all workers; -1: none. Without
	 * workers, all_have is INT64_MAX. */
	int64_t have, all_have;
	int64_t saved_step, tried_step, eval_step; /* -1: none */
	double saved_at, retry_at;		   /* clock; retry_at 0: no failure */
	bool failed;
	bool checked; /* save_check_state() was called, and nothing was computed since */
	pthread_t pruner; /* rank 0's thread, which removes old checkpoints */
	bool pruning;
	int64_t prune_to; /* all_have when the thread began */
};

/* Returns this rank's vote: true if a checkpoint is due by the clock. */
bool save_is_due(const struct run *r);
/* Compares replicas, and the state with the last update, if the run has such checks. Call it before
 * anything is kept of the state, or computed from it to be kept; `before` names this in messages.
 * Returns false if the state is wrong. Collective over the worker. */
bool save_check_state(struct run *r, const char *before);
enum save_mode { SAVE_AND_WAIT, SAVE_IN_BACKGROUND /* training continues meanwhile */ };
/* Saves this step unless it is saved. Collective. */
void save_now(struct run *r, const char *why, enum save_mode mode);
/* Waits for the checkpoint that is being written, and reports it. Collective. */
void save_end(struct run *r);
/* Waits until the thread that removes old checkpoints has ended: the next checkpoint needs their
 * space. */
void save_wait_prune(struct run *r);

/* ---- run_dir.c: the run directory ---------------------------------------------------- */

struct run_dir {
	char *path, *ckpt_path; /* NULL: none */
	int lock; /* rank 0's lock of the journal, a file descriptor; -1: none */
	bool created, created_journal; /* this run created the directory, the journal */
	bool has_algorithms;	       /* the algorithms of the first step are saved */
};

enum { PATIENCE_SECS = 3 }; /* wait of a resumed run for the one that is stopping */
/* Creates the directory of this worker unless it exists, and locks it. Collective over all. */
int run_dir_open(struct run *r, const struct train_opts *o, struct err *e);
/* Checks access by all ranks that write checkpoints. Collective over the worker. */
int run_dir_check(const struct run *r, const struct train_opts *o, struct err *e);
/* Begins the flight record of this rank in the directory; comm_flight_close() removes it. */
void run_dir_open_record(const struct run *r);
/* Removes the files and directories of a run that could not start. */
void run_dir_undo(struct run *r);
/* Archives the log of an earlier run with steps if --resume auto has found no checkpoint. */
int run_dir_archive_log(const struct run *r, struct err *e);
/* Removes run.h5 and the checkpoints of the previous run, of all its workers, for --overwrite. */
void run_dir_clear(const struct run *r, const struct train_opts *o);
/* Returns true if another worker of the run has never written a checkpoint; a ckpt_has_just_begun(). */
bool run_dir_has_just_begun(const struct ckpt *c);

/* ---- vault.c: --vault ---------------------------------------------------------------- */

struct run_vault {
	struct vault *vault;	/* NULL: none */
	uint64_t run;		/* number of the run */
	int64_t every;		/* steps between two copies */
	int64_t step, n_copies; /* step of the last copy or of the start; copies so far */
	double ended;		/* clock at the end of the last copy */
};

/* Sets b->vault to the newest state in the vaults of all hosts, for --resume auto. Collective. */
void run_vault_find(const struct train_opts *o, struct comm *world, struct job_base *b);
/* Loads the state of the vault that the run resumes from. Collective. */
int run_vault_load(struct run *r, struct err *e);
/* Saves a checkpoint that was due at the step of the vault and is missing. Collective. */
void run_vault_save_missed(struct run *r);
/* Opens the vault of the run for writing. Fails if its memory is too small. Collective. */
int run_vault_open(struct run *r, struct err *e);
/* Writes the number of the run to its directory, from which --resume auto reads it, and removes
 * the files of an overwritten run. Collective. */
int run_vault_write_number(struct run *r, struct err *e);
/* Begins or ends a phase in which ranks read and write files, and may not answer the watchdog: its
 * limit is COMM_WATCHDOG or more. */
void run_watchdog_files(const struct run *r, bool begins);
/* Copies the state if a copy is due, or `now`. Collective. */
void run_vault_copy(struct run *r, bool now);
/* Copies the state that a run has restored from a vault: with a host, its only copy may be lost.
 * Collective. */
void run_vault_copy_restored(struct run *r);
/* Closes the vault. Collective. */
void run_vault_close(struct run *r, enum vault_end end);
/* Withdraws the last copy if a check has found the state of its step wrong since. Collective. */
void run_vault_withdraw_wrong(struct run *r);
/* Parses --inject-kill. */
int run_kill_open(const struct train_opts *o, const struct comm *world, struct err *e);
void run_kill_before_step(const struct run *r);

/* ---- the run ------------------------------------------------------------------------- */

struct run {
	double began;		     /* start of the program, by clock_seconds() */
	const struct job_base *base; /* the checkpoint that it resumes from */
	struct comm *all;	     /* the ranks of all workers */
	struct comm *world;	     /* the ranks of this worker */
	double watchdog;	     /* seconds; 0: none */
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
	struct run_vault vault;
	struct run_trace trace;
	struct log_files logs;
	struct run_hashes hashes;
	struct str self_test; /* result of the self-test */
	int64_t max_bytes;    /* planned memory of the rank that needs most */
};

static inline bool run_is_first(const struct run *r)
{
	return r->world->rank == 0;
}

/* Returns true if this worker writes checkpoints; with --edit-ckpt rank0, only the first does. */
static inline bool run_writes_ckpt(const struct run *r)
{
	return r->t.o.edit.ckpt == EDIT_CKPT_GROUP || r->t.o.resolved.worker == 0;
}

/* Returns -1 if any worker has failed in a phase of the start. Collective over workers that
 * synchronize; nothing without local SGD. */
int agree_on_start(struct run *r, struct err *e);
/* Prints the first screen, a description of the run. */
void describe_run(const struct run *r, const struct run_info *i);

/* ---- peak.c ---------------------------------------------------------------------------- */

/* Returns the peak FLOP/s for MFU: given, from the GPU's data sheet, or measured; 0: unknown. */
double peak_flops(const struct train_opts *o, struct device *d);

/* ---- options_idle.c -------------------------------------------------------------------- */

/* Notes options that were given but have no effect, with the reasons; `ranks`: over all workers. */
void options_note_idle(const struct train_opts *o, const struct model *m, int ranks);
/* Trains (or evaluates), and returns the exit code. Collective. */
int loop_run(struct run *r);
