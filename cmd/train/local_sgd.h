/* local_sgd: workers that take local steps and then synchronize (Post-Local SGD, DiLoCo, EDiT,
 * A-EDiT). This is the schedule of synchronizations, and their part in the run and its
 * checkpoints; edit/ has the arithmetic. In the warm-up, all workers average their gradients in
 * every step. Without workers, every function does nothing.
 *
 * "Collective" is over the ranks of all workers. */
#pragma once

#include "train/notify.h"
#include "edit/edit.h"
#include "engine/state.h"
#include "engine/step.h"
#include "run/run.h"

struct run;

struct local_sgd {
	struct comm *sync; /* ranks at this position of all workers; NULL: no workers */
	struct comm *control; /* the same ranks, for values other than synchronizations */
	struct edit *edit;
	struct peers peers; /* used by the trainer */
	/* Saved in checkpoints. */
	int64_t synced;	  /* step of the last synchronization */
	double loss_sum;  /* sum over this worker's steps since then */
	bool from_anchor; /* the run resumed from the last synchronization */
	/* The last synchronization, for the log. */
	bool begun, ended; /* a synchronization began, or ended, after this step */
	bool in_flight;	   /* each unit gets its parameters when the next step uses it */
	bool holds_row;	   /* `row` is written when all units have their parameters */
	struct row row;
	struct edit_result result;
	bool has_warned;     /* the warning that all norms have risen was printed */
	int64_t sent_before; /* bytes that `sync` had sent at the last row */
	double met, waited;  /* seconds of waiting in the meeting, and after it */
	double loss; /* mean over all workers and steps since the previous synchronization */
	int64_t steps; /* steps of this worker between the last two synchronizations */
	int64_t synced_before; /* step of the previous synchronization */
	/* Meetings: if one worker requests a stop or a save, all do it. */
	bool wish_stop, stop, save;
	bool enough; /* enough steps for a synchronization */
	/* Asynchronous workers: clock when the next synchronization is due, and requests for one. */
	double due_at;
	struct comm_notify notify;
	int64_t meetings;
	/* Replay: the steps up to synchronizations [first_replay, n_replay); NULL: by the clock. */
	int64_t *replay, first_replay, n_replay;
};

/* ---- local_sgd.c: the training loop ---------------------------------------------------- */

/* Begins local SGD after the start, before the program's first step. */
void local_sgd_start(struct run *r);
/* Returns false if no step may follow: all workers stop, or one has quit. Collective in warm-up. */
bool local_sgd_begin(struct run *r);
/* Returns this rank's vote in a step: true if it is time to meet the other workers. */
bool local_sgd_vote(struct run *r);
/* Synchronizes after a finite step if due, and sets r->now. Returns false if a worker has quit. */
bool local_sgd_after_step(struct run *r, struct step_result *s);
/* Returns true if an action of every n steps is due, or was since asynchronous workers last met. */
bool local_sgd_is_due(const struct run *r, int64_t n);
/* Completes a synchronization that overlaps the forward pass. Collective over the worker. */
void local_sgd_complete(struct run *r);
/* Adds the sums of all workers with --data-per-rank, where they evaluate different windows, if
 * their parameters are equal; else does nothing. Collective over all workers. */
void local_sgd_sum_eval(struct run *r, struct eval_sum *sum);
/* Sets the columns of the last sync. Returns false if it is in flight; its end writes the row. */
bool local_sgd_fill_row(struct run *r, struct row *row);
/* Ends local SGD after the last step. A failed worker notifies the others, which may be waiting. */
void local_sgd_end(struct run *r, bool failed);

/* ---- local_sgd_start.c: start and checkpoints ------------------------------------------ */

/* The following functions are collective, and called in this order. */
/* Divides the ranks into workers: sets r->world to the worker's ranks, and opens the communicators
 * between workers. Does nothing without --edit-workers. Collective over all. */
int local_sgd_open(struct run *r, struct train_opts *o, struct err *e);
/* Checks that all workers have the same kind of device, before anything is allocated on it. */
int local_sgd_check_devices(struct run *r, struct err *e);
void local_sgd_build(struct run *r);
/* Reads the steps of --edit-replay, after a checkpoint was loaded. */
int local_sgd_read_replay(struct run *r, struct err *e);
/* Removes checkpoints after the step that the run resumes at; first writes one if none exists. */
int local_sgd_settle(struct run *r, struct err *e);
/* Reports a changed number of workers. */
void local_sgd_report_resume(struct run *r);
void local_sgd_close(struct run *r);

/* Saves and loads the numbers of a worker in checkpoints. A run without workers may resume a run
 * with workers. */
extern const struct saved_numbers local_sgd_numbers;
/* Checks that a run with that many workers can resume from it. Between synchronizations,
 * another number of workers needs the anchor. */
int local_sgd_check_ckpt(const struct ckpt *c, int64_t workers, struct err *e);
/* Calls local_sgd_check_ckpt() for a checkpoint that ckpt_find_newest() has found. context: a
 * struct train_opts. */
int local_sgd_check_usable(void *context, const struct ckpt *c, struct err *e);
/* Chooses the state that a run resumes with; *from_anchor: from the last synchronization. */
int local_sgd_choose_state(const struct train_opts *o, const struct ckpt *c,
	struct ckpt_info *info, bool *from_anchor, struct err *e);
