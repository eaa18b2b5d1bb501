/* step: one optimizer step of a trainer, and evaluation. */
#pragma once

#include "engine/engine.h"

/* Returns the learning rate of a step, counted from 1 (lr.c). */
double lr_at(const struct train_opts *o, int64_t step);

/* Integers summed over the ranks. `cast` is called when a rank's backward is done or enqueued. */
struct step_votes {
	void (*cast)(void *arg, int64_t vote[STEP_VOTES]);
	void *with;
};

struct step_result {
	float loss, grad_norm, lr, loss_scale;
	float global_loss; /* mean over all workers, if computed; else equals loss */
	/* Mixture of experts: balance loss and z-loss per token and layer, without coefficients;
	 * the largest share of an expert in its layer, times experts, less 1; experts without a slot */
	double router_loss[N_ROUTER_LOSSES], expert_violation;
	int64_t experts_idle;
	double dropped; /* fraction of the slots beyond the capacity of an expert */
	double forward, backward, data; /* seconds */
	double slowest; /* --deal speed: time per micro-batch of the slowest unit over the median */
	struct str dealt,
		slow_rank; /* --deal speed: a change of counts, a warning; for str_free() */
	double bubble; /* fraction of the slowest rank's time in which pipeline ranks were idle */
	int64_t vote[STEP_VOTES]; /* sums over the ranks */
	int grid;	 /* exponent of the grid of gradients, see kernels/grid.h */
	bool coarser;	 /* the grid is coarser than in the first attempt */
	int64_t counted; /* targets with a weight, over the same workers as global_loss */
	bool skipped;	 /* fp16: gradients overflowed, so nothing was updated */
	bool empty; /* no target has a weight: nothing was computed, and the losses are NaN */
	bool bad; /* loss or norm is not finite: nothing was updated */
	struct str
		why; /* if bad: the first non-finite value; empty after a check's verdict */
	enum checked checked;
	struct str found; /* what the checks found; empty if checked is CHECKED_RIGHT */
	uint64_t check_word[N_STEP_CHECKS]; /* summed over the ranks (checks.h) */
};

/* Collective. One optimizer step; `votes` may be NULL. */
void step_run(struct trainer *t, const struct step_votes *votes, struct step_result *r);
/* The parts of step_run(): step_load() gets the data of the next step and starts to fetch the
 * data of the step after it; step_run_on() runs a step on these or other windows. */
struct step_data {
	const int32_t *windows; /* [sample][context + 1], this rank's micro-batches */
	double waited;		/* seconds */
	struct fetch *fetch;
};
/* Waits for the data of the next step, and starts to fetch the data of the step after it. */
void step_load(struct trainer *t, struct step_data *d);
void step_data_free(struct step_data *d);
/* Collective. Runs an optimizer step on these windows, [sample][context + 1], and sets *r. */
void step_run_on(struct trainer *t, const int32_t *windows,
	const struct step_votes *votes, struct step_result *r);
/* Collective. Runs the next step so that GEMMs choose their algorithms, and drops its results. */
void step_autotune(struct trainer *t);
/* Collective. Skips steps, so that a slow worker catches up with the other workers. */
void step_skip(struct trainer *t, int64_t steps);

/* Collective over all workers, after a step. Sets r->global_loss and r->counted to the loss and
 * the targets of the whole batch; the bits equal data parallelism's. */
void step_global_loss(struct trainer *t, struct step_result *r);
/* Frees the samples that were fetched for the next step. */
void step_drop_next(struct trainer *t);

/* Parts of a step, for the plan and for nonfinite.c. */

/* Returns true on the first of the ranks that have the same samples. */
bool step_is_first_of_samples(const struct trainer *t);
/* Returns this rank's micro-batches of a step. */
struct pipe_input step_input(const struct trainer *t, const int32_t *windows);
/* Collective over the mesh. Runs all forwards and backwards, and sums the gradients. */
void step_gradients(struct trainer *t, const struct pipe_input *in);
/* Collective. Enqueues the gradients, the sums of loss, norm and votes over all ranks, and the
 * results of the step in t->end. `peers`: workers that average their gradients, or NULL. */
void step_enqueue(struct trainer *t, const struct pipe_input *in,
	const struct peers *peers, const struct step_votes *votes, struct step_result *r);
/* Updates the parameters. */
void step_update(struct trainer *t);
/* Collective over the pipeline, after the step. Sets its times and the bubble. */
void step_times(struct trainer *t, struct step_result *r);

/* Collective. Repeats a step with a loss or norm that is not finite, and sets r->why to the place
 * of the first non-finite value (nonfinite.c). */
void nonfinite_explain(
	struct trainer *t, const struct pipe_input *in, struct step_result *r);

/* eval.c: the loss over all targets with a weight in the fixed windows of a split. All members
 * are sums over the ranks, and can be added over workers. */
struct eval_sum {
	struct exact loss;
	int64_t counted;	  /* targets with a weight; must follow `loss` */
	int64_t windows, stopped; /* stopped is 1 if the evaluation has ended early */
};
/* Collective. Sets *sum to the losses of a split's evaluation windows. Ends early if stop(arg),
 * called between rounds on every rank, returns true. */
void eval_sum(struct trainer *t, enum split split, bool (*stop)(void *arg), void *arg,
	struct eval_sum *sum);
/* Returns the mean loss; NaN without targets that count (with a warning), or if stopped. */
double eval_mean(const struct trainer *t, const struct eval_sum *sum, enum split split);
/* Collective. Returns the mean loss of a split, by eval_sum() and eval_mean(). */
double eval_loss(struct trainer *t, enum split split);
