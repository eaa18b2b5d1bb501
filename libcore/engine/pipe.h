/* pipe: executes the schedule of a pipeline, which may have a single stage. */
#pragma once

#include "model/pass.h"
#include "parallel/parallel.h"

struct pipe_stage;

/* A rank's part of the pipeline, and measurements of the last step. */
struct pipe {
	struct pass *pass;
	const struct schedule *schedule;
	struct comm *axis;
	struct pipe_stage *stages; /* of this rank */
	int64_t n;
	double forward, backward; /* seconds of computing, set by pipe_times() */
	double waited;		  /* seconds, for other stages */
	double seconds;		  /* of the whole step */
	/* NULL, or called after every action of a step */
	void (*done)(void *with, const struct action *a);
	void *with;
};

/* The micro-batches of a rank that go through the pipeline. */
struct pipe_input {
	int64_t n; /* of this rank; any others of the schedule are empty */
	/* [n][sequence][context + 1]; NULL: a plan, which has no data */
	const int32_t *windows;
	int64_t n_windows; /* that count: the last micro-batch may be padded */
	/* Training: the numbers of these micro-batches; NULL in an evaluation. */
	const struct microbatches *microbatches;
	int data_rank;
	int64_t first_sample; /* number of this worker's first sample in the step */
};

/* Collective. `stages`: of this rank, as many as the schedule says. The activations of all micro-batches
 * that are in flight at a time are allocated from `micro`. */
void pipe_open(struct pipe *x, struct pass *p, const struct schedule *s,
	const struct stage *stages, struct mesh *mesh, struct arena *micro);
void pipe_close(struct pipe *x);
/* If a step is one forward and one backward: the bytes of `micro` that are in use while the backward of each
 * unit writes its gradients, live[n_units], of `all`. */
bool pipe_live_bytes(const struct pipe *x, int64_t all, int64_t *live);
/* Collective over the mesh. Forward and backward, in the order of the schedule. */
void pipe_step(struct pipe *x, const struct pipe_input *in);
/* Reads the device's timers, once it has finished the step. */
void pipe_times(struct pipe *x);
/* Loads the micro-batches in the order of pipe_step(), and computes nothing. */
void pipe_reload(struct pipe *x, const struct pipe_input *in);
/* Collective over the mesh. Forwards only: `rounds` is the largest number of micro-batches
 * of a rank. */
void pipe_forward(struct pipe *x, const struct pipe_input *in, int64_t rounds);
