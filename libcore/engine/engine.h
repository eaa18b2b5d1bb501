/* engine: computes a step. This header declares the trainer, a model in training on the ranks of
 * one worker, which trainer.c builds. The other headers:
 *   options.h    the options of pt-train, and values resolved from them
 *   layout.h     the parts of the model and of the batch that each rank computes
 *   dataset.h    the shards of a run, described to all ranks
 *   backend.h    the device of a run, and the algorithms of its GEMMs
 *   pipe.h       executes the schedule of a pipeline
 *   step.h       one optimizer step, and evaluation
 *   deal.h       micro-batches by the speed of ranks
 *   checks.h     checks of a step by integers
 *   state.h      checkpoints of a trainer
 *   inference.h  a model without gradients
 *
 * The engine does not depend on the run around it: no log, no directory, no clock, no local SGD. */
#pragma once

#include "ckpt/ckpt.h"
#include "comm/comm.h"
#include "engine/dataset.h"
#include "engine/layout.h"
#include "engine/pipe.h"
#include "model/pass.h"

/* The phases of the start of a run, from the beginning of the program to the first step. */
enum start_phase {
	START_PROGRAM, /* options, MPI, and everything without a phase */
	START_DATA,
	START_DEVICE,
	START_PLAN,
	START_SELF_TEST,
	START_MEMORY, /* allocation */
	START_WEIGHTS,
	START_FILES,	  /* reading a checkpoint, making the run directory */
	START_ALGORITHMS, /* measuring a GPU's GEMMs */
	START_PHASES
};

struct start_times {
	double began, last; /* as clock_seconds() */
	double seconds[START_PHASES];
};

/* Adds the time since the last call to this phase. */
void start_times_add(struct start_times *s, enum start_phase phase);
void start_times_print(const struct start_times *s, struct str *out);

/* Integers of the caller that are summed over the ranks together with the loss and the norm. */
enum { STEP_VOTES = 4 };

/* The checks of a step (checks.h). Replicas come before audits, which assume equal parameters. */
enum { STEP_CHECK_SUMS, STEP_CHECK_REPLICAS, STEP_CHECK_AUDIT, N_STEP_CHECKS };
/* The outcome of the checks of a step: right; wrong, but right when the step was computed again;
 * wrong because ranks have different software; wrong again. In the last two cases the step is
 * bad. */
enum checked { CHECKED_RIGHT, CHECKED_SPORADIC, CHECKED_SOFTWARE, CHECKED_PERSISTENT };

/* The results of a step that the host reads. */
struct step_report {
	struct step_end results;
	int64_t vote[STEP_VOTES];      /* with NCCL; else the host sums them */
	uint64_t check[N_STEP_CHECKS]; /* summed over the ranks, if a check is on */
};

/* The other workers, if workers average gradients in a warm-up. Calls are collective over all. */
struct peers {
	void *with;
	int n; /* workers */
	/* Sums a piece of a gradient over the workers, as store.add_workers. */
	void (*add)(void *arg, int64_t *sum, int64_t n);
	/* Divides the sums by the number of workers. */
	void (*mean_gradient)(void *arg);
	/* The maximum of an integer, and sums of n integers. */
	int64_t (*largest)(void *arg, int64_t v);
	void (*sum)(void *arg, int64_t *v, int64_t n);
};

/* Functions for numbers of the run around the trainer that checkpoints keep, too. */
struct trainer;
struct ckpt;
struct ckpt_info;
struct saved_numbers {
	double *(*save)(const struct trainer *t, int64_t *n); /* allocated, or NULL */
	/* Chooses the state to resume with; *from_anchor: parameters are the anchor. */
	int (*choose)(const struct train_opts *o, const struct ckpt *c,
		struct ckpt_info *info, bool *from_anchor, struct err *e);
	int (*load)(
		struct trainer *t, const struct ckpt *c, bool from_anchor, struct err *e);
};

/* The state of --deal speed (deal.h). */
enum { DEAL_EVERY = 10 }; /* steps between two exchanges of times */
struct trainer_deal {
	/* [units + 1], as microbatches.begin: the table of the samples fetched last, and the
	 * table of the next samples to fetch. NULL: --deal even. */
	int64_t *fetched, *wanted;
	/* This rank's seconds per micro-batch, in each measured step. */
	double seconds[DEAL_EVERY];
	int n;		/* measured steps since the last exchange */
	double slowest; /* time of the slowest unit over the median; NAN: not known */
	int warned;	/* the rank that the last warning named, or -1 */
};

/* When trainer.in_step is called. */
enum step_moment { STEP_BEFORE_GRAPH, STEP_LAUNCHED, STEP_BEFORE_TOTALS };

struct trainer {
	struct train_opts o;
	struct comm *world;
	struct mesh mesh;
	struct rank_layout layout;
	struct device d;
	struct model model;
	struct trainer_memory {
		int64_t gpu_free; /* before any rank that shares the GPU allocates */
		struct arena run, micro, scratch;
		/* `micro` and gradients, if they share memory; bytes shared. */
		struct arena both;
		int64_t shared;
		void *gradient_memory; /* NULL: the gradients have their own memory */
		/* The destination of --offload. */
		struct offload_backend *offload_backend;
	} memory;
	struct store *store;
	struct optim *optim;
	struct pass pass;
	struct schedule schedule;
	struct pipe pipe;
	struct trainer_deal deal;
	struct trainer_data {
		struct dataset *set;
		struct loader *loader;
		struct order order; /* order of training samples */
		struct fetch *next; /* the next step's samples, being fetched */
		int64_t targets; /* targets with a weight in the worker's batch of this step */
		double count; /* `targets`, or its mean over workers that average gradients */
	} data;
	/* Inputs and results of a step's end, in device memory; and a host copy of the results. */
	struct step_terms *terms;
	struct step_report *end, ended;
	/* Host copy of the losses and the slots of the step's routers, which device_host_wait() of
	 * the ticket completes; NULL before the first step. */
	struct exact *router_losses;
	uint64_t router_ticket;
	struct trainer_profile {
		int64_t first, last; /* steps; 0: none */
		bool running;
	} profile;
	struct trainer_graph {
		enum { GRAPH_NONE, GRAPH_WANTED, GRAPH_CAPTURED } state;
		int64_t sent;	       /* bytes of messages per launch */
		int64_t n_eager;       /* steps before the capture */
		int64_t read, written; /* bytes of offloaded state per step */
	} graph;
	struct audit *audit;		  /* --referee; NULL: none */
	void (*before_update)(void *arg); /* may read the gradients; NULL: none */
	void *before_update_with;
	/* Called in each step before the loss and the norm are summed over the ranks, or before and
	 * after the launch of a graph that does so; NULL: none. */
	void (*in_step)(void *arg, enum step_moment moment);
	void *in_step_with;
	/* A checkpoint that is written in the background, from a copy of the state. */
	struct trainer_copy {
		struct ckpt_writing *writing;
		struct arena arena;
		int64_t bytes;
		enum { COPY_NONE, COPY_PLANNED, COPY_ALLOCATED } state;
	} copy;
	struct replicas
		*replicas;   /* (referee/check_replicas.h); NULL: nothing is compared */
	bool state_is_wrong; /* a check found it, and could not replace it */
	int64_t wrong_step; /* the last step with wrong state, also if it was replaced; 0: none */
	const struct peers *peers;	     /* NULL: none */
	const struct check_row *checks;	     /* [N_STEP_CHECKS] (checks.h); NULL: none */
	const struct saved_numbers *numbers; /* NULL: none */
	ckpt_opener *open_model; /* opens the model of a new run; NULL: ckpt_open() */
	struct start_times start;
	/* The state that checkpoints keep. */
	int64_t step, samples;
	struct str origin;   /* origin of the model, on rank 0: see struct ckpt */
	struct str changes;  /* changes of the arithmetic in a resumed run; empty: none */
	int64_t loaded_step; /* step of the checkpoint; the run may resume earlier */
	bool other_data; /* the data differ from those that the checkpoint was trained on */
	int64_t n_unseen; /* samples that were skipped because a worker was too slow */
	double loss, val_loss, best_val_loss;
	/* fp16: the loss scale, and the steps without overflow since it changed; else 1 and 0 */
	float loss_scale;
	int64_t scale_good;
	int64_t skipped; /* steps without an update: overflows, and steps of a slow worker */
};

/* Memory of a trainer, in bytes. */
struct trainer_sizes {
	int64_t run, micro, scratch; /* the arenas */
	/* Bytes of the gradients, and their offset in `micro`; equal to `micro`: after it. */
	int64_t gradients, gradient_memory;
	int64_t offloaded;
	int64_t copy; /* this rank's copy of a checkpoint */
	bool copies;  /* checkpoints are written in the background, from copies */
};

/* A trainer is made by trainer_prepare(), trainer_connect() and trainer_build(), all collective. If
 * trainers of several workers share a GPU, all wait for each other after trainer_prepare() and
 * query the free memory again, since nothing is allocated before trainer_build(). */

/* Sets the options, model and device of a trainer, which does not own `data`. Collective over
 * `world`. On an error, abandons the trainer. */
int trainer_prepare(struct trainer *t, const struct train_opts *o, struct comm *world,
	struct dataset *data, struct err *e);
/* Sets t->memory.gpu_free to the free memory of the GPU now. */
void trainer_query_free_memory(struct trainer *t);
/* Opens the library that transfers device memory. Collective over `all`; `workers`: the ranks that
 * local SGD synchronizes, or NULL. Queries the free memory again. On an error, abandons the
 * trainer. */
int trainer_connect(
	struct trainer *t, struct comm *all, struct comm *workers, struct err *e);
/* Allocates memory of these sizes, and builds the trainer in it. Initializes the parameters from
 * the seed, unless a checkpoint will be loaded (--resume, --init-from). Collective. On an error,
 * abandons the trainer. */
int trainer_build(struct trainer *t, const struct trainer_sizes *sizes, struct err *e);
/* Closes a trainer that is prepared and will not be built. */
void trainer_abandon(struct trainer *t);
/* Closes a trainer that was built, and frees all its memory. Collective. */
void trainer_close(struct trainer *t);

/* Builds the store, the optimizer and the pass in t->memory.run, which only measures in a plan. */
void trainer_build_state(struct trainer *t);
/* Builds the schedule and the pipeline with its activations in t->memory.micro, which only measures
 * in a plan. Call it after trainer_build_state(). */
void trainer_build_pipe(struct trainer *t);
/* Makes the schedule of this rank's current number of micro-batches. */
void trainer_set_turns(struct trainer *t);
/* Frees what trainer_build_state() and trainer_build_pipe() have built. */
void trainer_dismantle(struct trainer *t);
/* Returns the offset in `micro` at which the gradients may begin, after the calls above. A
 * backward frees the activations layer by layer, from the last layer on, and writes gradients
 * in the same order. So in a step of one micro-batch, gradients overwrite activations whose
 * backward is over. trainer_shared_bytes() returns the bytes that this saves. */
int64_t trainer_gradients_at(const struct trainer *t);
int64_t trainer_shared_bytes(const struct trainer_sizes *s);
/* Returns the peak of the memory that this rank has allocated for a step. */
int64_t trainer_peak_bytes(const struct trainer *t);
