/* Shared by loop.c, start.c, folder.c, apart.c and elastic.c only: a run while it goes on. */
#ifndef TRAIN_LOOP_H
#define TRAIN_LOOP_H

#include <pthread.h>

#include "comm/notify.h"
#include "train/train.h"

/* Sums since the last row. */
struct since {
	int64_t steps;
	double seconds, forward, backward, data, waited, bubble;
	int64_t sent, read, written; /* bytes */
};

/* Workers that train apart: how the last synchronisation went, and what was before it. */
struct syncing {
	bool begun, ended; /* after this step */
	bool under_way;	   /* units get their parameters when the next step uses them, */
	bool holds;	   /* and then this row is written, which tells how it went */
	struct row row;
	struct edit_result r;
	int64_t sent_before; /* bytes, up to the last row that told of them */
	double met, waited;  /* seconds until all were there, and after that */
	double loss;	     /* mean of all workers and steps since the one before */
	int64_t steps;	     /* of this worker since then */
	int64_t before;	     /* the step after which they agreed then */
	/* Where workers meet, what one wishes for all do. */
	bool wish_stop, stop, save;
	/* Workers that synchronise when it is time: when that is; who cannot wait so long rings
	 * for the next meeting; and whether there was enough to synchronise for. */
	double due;
	struct comm_notify notify;
	int64_t meetings;
	bool enough;
	/* steps up to synchronisations [first_replay, n_replay), from 0 on; none: by the clock */
	int64_t *replay, first_replay, n_replay;
};

/* A checkpoint from its beginning to its end, which may be some steps later. */
struct saving {
	int64_t step;
	const char *why;
	struct str path;
	bool best;	       /* the validation loss of that step is the best so far */
	double begin, stalled; /* when, and seconds that training has waited for it */
};

struct run {
	double began;	   /* the program, by clock_seconds() */
	struct comm *all;  /* the ranks of all workers that train apart */
	struct comm *sync; /* those at this place in every worker; NULL: there are none */
	bool told;	   /* all know of the error that ends the start */
	struct comm *world; /* of this worker */
	struct syncing syncing;
	/* The last step that this worker has a checkpoint of, and that all of them have;
	 * -1: none. Without workers all_have is beyond every step. */
	int64_t have, all_have;
	struct data_set data;
	struct trainer t;
	struct journal journal; /* rank 0's */
	char *folder, *ckpt_folder;
	double peak_flops;
	struct str self_test; /* what is to be said of it */
	int64_t most_bytes;   /* planned, of the rank that needs most */
	struct progress bar;
	struct since since;
	int64_t saved_step, tried_step, eval_step; /* -1: none */
	double saved_at, retry_at; /* 0: the last checkpoint was written */
	struct saving saving;	   /* while t.writing */
	pthread_t pruner;	   /* rank 0's, that removes old checkpoints */
	bool pruning;
	int64_t prune_to; /* all_have when that began: its thread reads it */
	bool failed, stdout_gone;
	bool torn, stale; /* the journal lacks lines; run.h5 is not the latest */
	int lock;	  /* rank 0's, on the journal; -1: none */
	bool made_folder, made_journal;
};

/* loop.c */

/* Collective. Trains (or evaluates), and returns the exit code. */
int train_loop(struct run *r);
/* A row of the log; a line of the journal. */
void run_row(struct run *r, const struct row *row);
void run_event(struct run *r, const char *fmt, ...) PRINTF(2, 3);
/* The log is for readers again if what they see is so many seconds old. */
void run_publish(struct run *r, double seconds);
/* Is this the rank of its worker that writes? */
bool run_first(const struct run *r);

/* save.c: checkpoints, of which one may be under way while training goes on */

/* This rank's vote: is one due by the clock? */
bool save_due(const struct run *r);
/* Collective. Of this step, if it has none; `behind`: training may go on before it is written. */
void save_now(struct run *r, const char *why, bool behind);
/* Collective. Ends the one that is being written, if there is one. */
void save_end(struct run *r);
/* Waits until those that are not kept are removed: the next needs the room. */
void save_close(struct run *r);

/* folder.c */

enum { PATIENCE_SECS = 3 }; /* for a run that is stopping, when another goes on with it */
/* Collective over all. Makes the folder of this worker, or takes it, and locks it. */
int folder_make(struct run *r, const struct train_opts *o, struct err *e);
/* Collective over the worker. Can every rank that is to write there see it? */
int folder_see(const struct run *r, const struct train_opts *o, struct err *e);
/* A run that could not begin leaves no trace. */
void folder_unmake(struct run *r);
/* What is begun anew: checkpoints of the run before are removed, of all workers that it had. */
void folder_empty(const struct run *r, const struct train_opts *o);

/* apart.c: workers that train apart; without them it has nothing to do. Collective is over
 * the ranks of all workers. */

/* Collective. Shares the ranks out to the workers: those of one are neighbours. */
int apart_open(struct run *r, struct train_opts *o, struct err *e);
/* Collective. */
void apart_close(struct run *r);
/* Collective: what computes is of one kind; nobody has taken memory of it so far. */
int apart_same_device(struct run *r, struct err *e);
/* Collective: the synchronisations of the run in `folder`, if it is not NULL, are repeated. */
int apart_replay(struct run *r, const char *folder, struct err *e);
/* Before the first step of this program. */
void apart_start(struct run *r);
/* Collective, before anything is removed or written: have all of them come so far? */
int apart_ready(struct run *r, struct err *e);
/* Collective. What went wrong in one, at the start, ends all. */
int apart_agree(struct run *r, int rc, struct err *e);
bool apart_several(const struct run *r);
/* Collective. They meet before anything that they do together, and one that will not be there
 * says so then: are all there? Who leaves meets the others once more. Wishes to stop and to
 * save, which come to workers at different steps, become everybody's here. */
bool apart_meet(struct run *r, bool leaves);
/* Before a step, and after one that went well, which may synchronise. Returns whether the
 * others are still there. */
bool apart_begin(struct run *r);
bool apart_step(struct run *r, struct step_result *s);
/* Is it time for what is done every n steps? Workers whose steps are not the same do it when
 * they have agreed. */
bool apart_due(const struct run *r, int64_t n);
/* Has this worker the parameters of the run? Between synchronisations it has its own. */
bool apart_agreed(const struct run *r);
/* Collective over the worker. A synchronisation goes on beside the next forward, unless it is
 * ended before. Until then a row that tells of it is held. */
void apart_finish(struct run *r);
bool apart_hold(struct run *r, const struct row *row);
/* What a row says of a synchronisation, if it has anything to say. */
bool apart_has_news(const struct run *r);
void apart_row(struct run *r, struct row *row);

/* elastic.c: a run that goes on with another number of workers */

/* Collective over all of them. Removes the checkpoints that lie beyond where the run goes on
 * from; first it writes that step, where no checkpoint is of it. */
int elastic_settle(struct run *r, struct err *e);
void elastic_say(struct run *r);

#endif
