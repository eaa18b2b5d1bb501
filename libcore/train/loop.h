/* Shared by loop.c and start.c only: a run while it goes on. */
#ifndef TRAIN_LOOP_H
#define TRAIN_LOOP_H

#include <pthread.h>

#include "train/train.h"

/* Sums since the last row. */
struct since {
	int64_t steps;
	double seconds, forward, backward, data, waited, bubble;
	int64_t sent, read, written; /* bytes */
};

/* Workers that train apart: how the last synchronisation went, and what was before it. */
struct syncing {
	bool done; /* after this step */
	struct edit_result r;
	int64_t sent;
	double waited;
	double loss; /* mean of all workers and steps since the one before */
	/* Where workers meet, what one wishes for all do. */
	bool wish_stop, stop, save;
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
	int64_t most_bytes; /* planned, of the rank that needs most */
	struct progress bar;
	struct since since;
	int64_t saved_step, tried_step, eval_step; /* -1: none */
	double saved_at, retry_at; /* 0: the last checkpoint was written */
	struct saving saving;	   /* while t.writing */
	pthread_t pruner;	   /* rank 0's, that removes old checkpoints */
	bool pruning;
	bool failed, stdout_gone;
	bool torn, stale; /* the journal lacks lines; run.h5 is not the latest */
	int lock;	  /* rank 0's, on the journal; -1: none */
	bool made_folder, made_journal;
};

/* Collective. Trains (or evaluates), and returns the exit code. */
int train_loop(struct run *r);

#endif
