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
	struct pipe_stage *stages; /* stages of this rank */
	int64_t n;
	double forward, backward; /* seconds of computation, set by pipe_times() */
	double waited;		  /* seconds of waiting for other stages */
	double blocked; /* seconds of waiting within forwards and backwards, on a CPU */
	double seconds; /* duration of the whole step */
	/* Called before and after every action of a step; may be NULL. */
	void (*begin)(void *arg, const struct action *a);
	void (*done)(void *arg, const struct action *a);
	void *with;
	/* Called in each micro-batch's forward of this rank's first stage, which it delays; NULL:
	 * nothing. */
	void (*delay)(void *arg);
	void *delay_with;
};

/* The micro-batches of a rank that go through the pipeline. */
struct pipe_input {
	int64_t n; /* micro-batches of this rank; further ones in the schedule are empty */
	/* [n][sequence][context + 1]; NULL: a plan, which has no data */
	const int32_t *windows;
	int64_t n_windows; /* without padding of the last micro-batch */
	/* In training: the numbers of these micro-batches; NULL in an evaluation. */
	const struct microbatches *microbatches;
	int data_rank;
	int64_t first_turn; /* turn of the first of these micro-batches on this data rank */
	int64_t first_sample; /* number of this worker's first sample in the step */
};

/* Collective. `stages`: this rank's stages, s->per_rank of them. Allocates the activations of all
 * micro-batches that are in flight at a time from `micro`, for schedules of up to max_micro
 * micro-batches. */
void pipe_open(struct pipe *x, struct pass *p, const struct schedule *s,
	int64_t max_micro, const struct stage *stages, struct mesh *mesh,
	struct arena *micro);
/* Returns the peak of one stage over all schedules of this kind with 1 to max micro-batches; max
 * equal to s->n_micro: of s alone. */
struct schedule_peak pipe_max_peak(
	const struct schedule *s, int64_t max, int rank, int stage);
/* Frees a pipe. All transfers must be complete. */
void pipe_close(struct pipe *x);
/* Sets live[n_units] to the bytes of `micro` (`all` in all) in use while each unit's backward
 * writes gradients. Returns false unless a step is one forward and backward. */
bool pipe_live_bytes(const struct pipe *x, int64_t all, int64_t *live);
/* Collective over the mesh. Runs forwards and backwards, in the order of the schedule.
 * Micro-batches from in->n on are empty. */
void pipe_step(struct pipe *x, const struct pipe_input *in);
/* Replaces the schedule by another of the same kind with at most max_micro micro-batches. No step
 * may be in progress. */
void pipe_use_schedule(struct pipe *x, const struct schedule *s);
/* Reads the device's timers; call it when the device has finished the step. */
void pipe_times(struct pipe *x);
/* Loads the micro-batches in the order of pipe_step(), without computation. */
void pipe_reload(struct pipe *x, const struct pipe_input *in);
/* Collective over the mesh. Runs forwards only; `rounds`: most micro-batches of any rank. */
void pipe_forward(struct pipe *x, const struct pipe_input *in, int64_t rounds);
