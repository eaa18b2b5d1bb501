/*
 * local_sgd: workers that take local steps and then synchronise (Post-Local SGD, DiLoCo, EDiT,
 * A-EDiT). This is the schedule of synchronisations, and their part in the run and its
 * checkpoints; edit/ has the arithmetic. In the warm-up, all workers average their gradients in
 * every step. Without workers, every function does nothing.
 *
 * "Collective" is over the ranks of all workers.
 */
#pragma once

#include "train/notify.h"
#include "edit/edit.h"
#include "engine/state.h"
#include "engine/step.h"
#include "run/run.h"

struct run;

struct local_sgd {
	struct comm *sync; /* ranks at this position of all workers; NULL: no workers */
	struct comm *control; /* the same, for values beside the synchronisations */
	struct edit *edit;
	struct peers peers; /* the trainer's */
	/* Saved in checkpoints. */
	int64_t synced;	  /* the step of the last synchronisation */
	double loss_sum;  /* of this worker's steps since then */
	bool from_anchor; /* the run resumed from the last synchronisation */
	/* The last synchronisation, for the log. */
	bool begun, ended; /* after this step */
	bool in_flight;	   /* each unit gets its parameters when the next step uses it */
	bool holds_row;	   /* `row` is written when all units have them */
	struct row row;
	struct edit_result result;
	bool has_warned;     /* that the norms of all workers have risen */
	int64_t sent_before; /* bytes, up to the last row */
	double met, waited;  /* seconds of waiting in the meeting, and after it */
	double loss;	     /* mean over all workers and steps since the one before */
	int64_t steps;	     /* of this worker since then */
	int64_t synced_before;
	/* Meetings, at which all workers adopt a stop or save that one requests. */
	bool wish_stop, stop, save;
	bool enough; /* steps for a synchronisation */
	/* Asynchronous: when the next one is due; a worker that cannot wait notifies the others. */
	double due_at;
	struct comm_notify notify;
	int64_t meetings;
	/* Replay: the steps up to synchronisations [first_replay, n_replay); none: by the clock. */
	int64_t *replay, first_replay, n_replay;
};

/* ---- local_sgd.c: the training loop ---------------------------------------------------- */

/* After the start, before the first step of the program. */
void local_sgd_start(struct run *r);
/* Collective in the warm-up. Before a step; false: no step is done, because all stop or another
 * worker has left. */
bool local_sgd_begin(struct run *r);
/* This rank's vote, in a step: is it time to meet the other workers? */
bool local_sgd_vote(struct run *r);
/* After a finite step: synchronises if it is due, and sets r->now. False: another worker has
 * left. */
bool local_sgd_after_step(struct run *r, struct step_result *s);
/* Is an action of every n steps due? Workers whose steps differ do it when they synchronise. */
bool local_sgd_due(const struct run *r, int64_t n);
/* Collective over the worker. Waits for a synchronisation that overlaps the forward: then all
 * parameters are updated. */
void local_sgd_complete(struct run *r);
/* With --data-per-rank workers evaluate different windows. Where their parameters are equal, this is collective over
 * all workers, and adds up their sums; else nothing. */
void local_sgd_eval(struct run *r, struct eval_sum *sum);
/* Adds the columns of a synchronisation. False: it is in flight, and the row is kept and written
 * when it ends. */
bool local_sgd_row(struct run *r, struct row *row);
/* After the last step. A worker that failed notifies the others, which would wait for it. */
void local_sgd_end(struct run *r, bool failed);

/* ---- local_sgd_start.c: start and checkpoints ------------------------------------------ */

/* Collective, each, in this order. */
int local_sgd_open(struct run *r, struct train_opts *o, struct err *e);
/* Do all workers have the same kind of device? Nothing is allocated on it yet. */
int local_sgd_check_devices(struct run *r, struct err *e);
void local_sgd_build(struct run *r);
/* After a checkpoint was loaded: reads the steps of --edit-replay. */
int local_sgd_read_replay(struct run *r, struct err *e);
/* Removes checkpoints later than the step that the run resumes at; first it writes that step, if
 * no checkpoint has it. */
int local_sgd_settle(struct run *r, struct err *e);
/* Reports a changed number of workers. */
void local_sgd_report_resume(struct run *r);
void local_sgd_close(struct run *r);

/* The worker's numbers in checkpoints; also of a run without workers, which may resume one that had some. */
extern const struct saved_numbers local_sgd_numbers;
/* May a run with that many workers resume from it? Between synchronisations, another number
 * needs the anchor. */
int local_sgd_check_ckpt(const struct ckpt *c, int64_t workers, struct err *e);
/* local_sgd_check_ckpt() for ckpt_newest(); `with` is a struct train_opts. */
int local_sgd_usable(void *with, const struct ckpt *c, struct err *e);
/* The state that a run resumes with; *from_anchor: at the last synchronisation. */
int local_sgd_info(const struct train_opts *o, const struct ckpt *c,
	struct ckpt_info *info, bool *from_anchor, struct err *e);
