/* step: one optimizer step of a trainer, and its evaluation. */
#pragma once

#include "engine/engine.h"

/* lr.c: the learning rate of step 1, 2, ... */
double lr_at(const struct train_opts *o, int64_t step);

/* `cast` is called on each rank when its backward is done, or enqueued. */
struct step_votes {
	void (*cast)(void *with, int64_t vote[STEP_VOTES]);
	void *with;
};

struct step_result {
	float loss, grad_norm, lr, loss_scale;
	float global_loss; /* mean over all workers; else, where they differ, the loss */
	double forward, backward, data; /* seconds */
	double bubble; /* the fraction of time that the pipeline's ranks idled */
	int64_t vote[STEP_VOTES]; /* the sums over the ranks */
	int grid;	 /* the exponent of the grid of gradients, see kernels/grid.h */
	bool coarser;	 /* than that of the first attempt */
	int64_t counted; /* targets, as global_loss */
	bool skipped;	 /* fp16: gradients overflowed, so nothing was updated */
	bool empty; /* no target counts: nothing was computed, and the losses are NaN */
	bool bad;   /* loss or norm is not finite: nothing was updated */
	struct str why; /* then: the first number that is not finite */
};

/* Collective. One optimizer step; `votes` may be NULL. */
void step_run(struct trainer *t, const struct step_votes *votes, struct step_result *r);
/* Its parts: the data of the next step, [sample][context + 1] of this rank's micro-batches, while those of the
 * step after are fetched; and the step on such windows, or on others. */
struct step_data {
	const int32_t *windows;
	double waited; /* seconds */
	struct fetch *fetch;
};
void step_load(struct trainer *t, struct step_data *d);
void step_data_free(struct step_data *d);
void step_run_on(struct trainer *t, const int32_t *windows,
	const struct step_votes *votes, struct step_result *r);
/* Collective. Forward and backward of the next step, in which GEMMs find their algorithms;
 * the results are dropped. */
void step_autotune(struct trainer *t);
/* Collective. Leaves out steps: a worker that was slower than others catches up with them. */
void step_skip(struct trainer *t, int64_t steps);

/* Collective over all workers. After a step: the loss of the whole batch, with the bits that data
 * parallelism has, and its targets. */
void step_global_loss(struct trainer *t, struct step_result *r);
/* Frees the samples that are fetched for the next step. */
void step_drop_next(struct trainer *t);

/* Parts of a step, for the plan and for nonfinite.c. */

/* Is this the first of the ranks with the same samples? */
bool step_counts_samples(const struct trainer *t);
/* The micro-batches of a step that are this rank's. */
struct pipe_input step_input(const struct trainer *t, const int32_t *windows);
/* Collective over the mesh. All forwards and backwards, and the sums of the gradients. */
void step_gradients(struct trainer *t, const struct pipe_input *in);
/* Collective. These, the sums over all ranks of loss, norm and votes, and the results of the step in t->end.
 * `of`: workers that average their gradients, or NULL. */
void step_enqueue(struct trainer *t, const struct pipe_input *in, const struct peers *of,
	const struct step_votes *votes, struct step_result *r);
/* Updates the parameters. */
void step_update(struct trainer *t);
/* Collective over the pipeline, when the step is complete: sets its times and the bubble. */
void step_times(struct trainer *t, struct step_result *r);

/* nonfinite.c. Collective. The loss or the norm of the step is not finite: computes it again, and sets r->why
 * to where the first such number appears. */
void nonfinite_explain(
	struct trainer *t, const struct pipe_input *in, struct step_result *r);

/* eval.c: the loss over the targets that count in the fixed windows of a split. All members are sums, of all ranks, and
 * add up over workers. */
struct eval_sum {
	struct exact loss;
	int64_t counted;	  /* targets, behind `loss` */
	int64_t windows, stopped; /* 1: the evaluation has ended early */
};
/* Collective. Between rounds of micro-batches every rank asks stop(with), which is collective: if it says so, the
 * evaluation ends. */
void eval_sum(struct trainer *t, enum split split, bool (*stop)(void *with), void *with,
	struct eval_sum *sum);
/* NaN when none counts, the split is too short, or the evaluation was stopped. */
double eval_mean(const struct trainer *t, const struct eval_sum *sum, enum split split);
double eval_loss(struct trainer *t, enum split split); /* both; collective */
