/*
 * engine: what computes a step. This header has the trainer, a model in training on the ranks of one worker,
 * which trainer.c prepares and builds; each of the others has one subject:
 *   options.h    the options of pt-train, and what is resolved from them
 *   layout.h     the parts of the model and of the batch that each rank computes
 *   dataset.h    the shards of a run, as all ranks know them
 *   backend.h    the device of a run, and which algorithms its GEMMs use
 *   pipe.h       executes the schedule of a pipeline
 *   step.h       one optimizer step, and its evaluation
 *   state.h      checkpoints of a trainer
 *   inference.h  a model without gradients
 *
 * It knows nothing of the run around it: no log, no directory, no clock, no local SGD.
 */
#pragma once

#include "ckpt/ckpt.h"
#include "comm/comm.h"
#include "engine/dataset.h"
#include "engine/layout.h"
#include "engine/pipe.h"
#include "model/pass.h"

/* How long the start of a run takes, from the beginning of the program to the first step. */
enum start_phase {
	START_PROGRAM, /* options, MPI, and everything without a phase */
	START_DATA,
	START_DEVICE,
	START_PLAN,
	START_SELF_TEST,
	START_MEMORY, /* allocation */
	START_WEIGHTS,
	START_FILES,	  /* reading a checkpoint, making the run directory */
	START_ALGORITHMS, /* of a GPU's GEMMs */
	START_PHASES
};

struct start_times {
	double began, last; /* as clock_seconds() */
	double seconds[START_PHASES];
};

/* The time since the end of the last phase was spent in this one. */
void start_times_add(struct start_times *s, enum start_phase phase);
void start_times_print(const struct start_times *s, struct str *out);

/* Numbers of the caller's that are summed over the ranks together with the loss and the norm. */
enum { STEP_VOTES = 4 };

/* What the host reads after a step. */
struct step_report {
	struct step_end of;
	int64_t vote[STEP_VOTES]; /* with NCCL; else the host has summed them */
};

/* The other workers of a run whose workers average gradients in the first steps of a warm-up. Each call is
 * collective over all workers. */
struct peers {
	void *with;
	int n; /* workers */
	/* Adds a piece of a gradient, as store.add_workers; then the sums are divided by n. */
	void (*add)(void *with, int64_t *sum, int64_t n);
	void (*mean_gradient)(void *with);
	/* The largest of a number, and sums of several. */
	int64_t (*largest)(void *with, int64_t mine);
	void (*sum)(void *with, int64_t *v, int64_t n);
};

/* What checkpoints keep beside the trainer's state, for the run around it. */
struct trainer;
struct ckpt;
struct ckpt_info;
struct saved_numbers {
	double *(*save)(const struct trainer *t, int64_t *n); /* allocated, or NULL */
	/* The state that a run resumes with; *from_anchor: the parameters are the anchor's. */
	int (*choose)(const struct train_opts *o, const struct ckpt *c,
		struct ckpt_info *info, bool *from_anchor, struct err *e);
	int (*load)(
		struct trainer *t, const struct ckpt *c, bool from_anchor, struct err *e);
};

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
		/* Of `micro` and the gradients, where they share memory; and the bytes that they share. */
		struct arena both;
		int64_t shared;
		void *gradients_at; /* NULL: memory of their own */
		/* Where --offload moves state to. */
		struct offload_backend *offload_backend;
	} memory;
	struct store *store;
	struct optim *optim;
	struct pass pass;
	struct schedule schedule;
	struct pipe pipe;
	struct trainer_data {
		struct dataset *set;
		struct loader *loader;
		struct order order; /* of training samples */
		struct fetch *next; /* the next step's samples, being fetched */
		int64_t targets;    /* of this step that count, of the worker */
		double count; /* the same, or the mean of workers that average their gradients */
	} data;
	/* On the device: the inputs of a step's end and its results; and a copy of the results. */
	struct step_terms *terms;
	struct step_report *end, ended;
	struct trainer_profile {
		int64_t first, last; /* steps; 0: none */
		bool running;
	} profile;
	struct trainer_graph {
		enum { GRAPH_NONE, GRAPH_WANTED, GRAPH_CAPTURED } state;
		int64_t sent;	       /* bytes of messages, by a launch */
		int64_t n_eager;       /* steps before it was captured */
		int64_t read, written; /* by a step, of offloaded state */
	} graph;
	void (*before_update)(void *with); /* sees the gradients; NULL: none */
	void *before_update_with;
	/* A checkpoint that is written in the background, from a copy of the state. */
	struct trainer_copy {
		struct ckpt_writing *writing;
		struct arena arena;
		int64_t bytes;
		enum { COPY_NONE, COPY_PLANNED, COPY_ALLOCATED } state;
	} copy;
	const struct peers *peers;	     /* NULL: none */
	const struct saved_numbers *numbers; /* NULL: none */
	ckpt_opener *open_model; /* of what a new run begins with; NULL: checkpoints */
	struct start_times start;
	/* The state that checkpoints keep. */
	int64_t step, samples;
	struct str origin;   /* of the model, on rank 0: see struct ckpt */
	struct str changes;  /* of the arithmetic, in a resumed run; empty: none */
	int64_t loaded_step; /* of the checkpoint; the run may resume at an earlier step */
	bool other_data;     /* than those of the checkpoint that it resumed from */
	int64_t n_unseen; /* of the samples, skipped because a worker was slower than others */
	double loss, val_loss, best_val_loss;
	/* fp16: the scale of the loss, and the steps without overflow since it changed;
	 * otherwise 1, 0 */
	float loss_scale;
	int64_t scale_good;
	int64_t skipped; /* steps without an update: overflows, and steps of a slow worker */
};

/* What a trainer takes of memory, in bytes. */
struct trainer_sizes {
	int64_t run, micro, scratch; /* the arenas */
	/* Gradients: their bytes, and from which byte of `micro` on they lie; `micro`: behind it. */
	int64_t gradients, gradients_at;
	int64_t offloaded;
	int64_t copy; /* of a checkpoint, of this rank */
	bool copies;  /* are checkpoints written in the background, from copies? */
};

/*
 * A trainer is made in three parts: options, model and device; what transfers the memory of devices, which is
 * collective over `all` ranks (`workers`: the group of ranks that local SGD synchronises, or NULL); and
 * the allocation of its memory, before which the caller plans how much that is. Where trainers of several
 * workers share a GPU, all wait for each other after the first part, and query the free memory again:
 * nothing is allocated before the last part. Parameters are initialised from the seed, unless those of a
 * checkpoint follow: --resume or --init-from. `data` stays the caller's. Collective.
 */
int trainer_prepare(struct trainer *t, const struct train_opts *o, struct comm *world,
	struct dataset *data, struct err *e);
void trainer_query_free_memory(struct trainer *t);
int trainer_connect(
	struct trainer *t, struct comm *all, struct comm *workers, struct err *e);
int trainer_build(struct trainer *t, const struct trainer_sizes *sizes, struct err *e);
/* Closes one that is prepared and will not be built. */
void trainer_abandon(struct trainer *t);
void trainer_close(struct trainer *t);

/* The parts of trainer_build() that a plan needs as well, with arenas that may only measure:
 * first the store, the optimizer and the pass, then the schedule and the activations. */
void trainer_build_state(struct trainer *t);
void trainer_build_pipe(struct trainer *t);
void trainer_dismantle(struct trainer *t);
/*
 * After these: where the gradients may lie. A backward frees the activations of a layer after another, from the
 * last one on, and writes gradients in the same order: in a step of one micro-batch they take the place of
 * activations whose backward is over. trainer_shared_bytes(): how much less memory that is.
 */
int64_t trainer_gradients_at(const struct trainer *t);
int64_t trainer_shared_bytes(const struct trainer_sizes *s);
/* The peak of what this rank has allocated for a step. */
int64_t trainer_peak_bytes(const struct trainer *t);
