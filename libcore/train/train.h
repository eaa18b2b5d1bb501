/*
 * train: options, the plan, the step, evaluation, checkpoints of the training state, and
 * the loop that pt-train is.
 */
#ifndef TRAIN_H
#define TRAIN_H

#include <signal.h>

#include "base/base.h"
#include "ckpt/ckpt.h"
#include "comm/comm.h"
#include "data/data.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "parallel/parallel.h"
#include "run/run.h"

/* ---- options.c ------------------------------------------------------------------- */

enum lr_schedule { LR_CONSTANT, LR_COSINE, LR_LINEAR, LR_WSD };
enum wsd_shape { WSD_LINEAR, WSD_SQRT };
enum lr_scale { LR_SCALE_NONE, LR_SCALE_SQRT, LR_SCALE_LINEAR };
enum load_how { LOAD_EACH, LOAD_BROADCAST };

enum kernel_choice { KERNELS_FUSED, KERNELS_REF };

struct train_opts {
	/* data */
	struct strs data;
	int sampling; /* SAMPLING_EPOCH or SAMPLING_RANDOM */
	int64_t seed, readers;
	bool data_per_rank;
	/* batch */
	int64_t batch, micro_batch, steps;
	struct model_config model;
	const char *preset;
	/* optimizer */
	double lr, min_lr, beta1, beta2, eps, weight_decay, clip;
	int lr_schedule, wsd_shape, lr_scale;
	int64_t warmup, decay_steps, wsd_decay, lr_scale_batch;
	/* precision */
	int dtype; /* enum precision */
	bool float8_skip_ends;
	double loss_scale;
	int64_t loss_scale_window;
	int kernels; /* enum kernel_choice */
	/* who computes */
	int64_t dp, threads, bucket_bytes;
	double watchdog;
	int device;
	/* evaluation and samples */
	int64_t eval_every, eval_windows, sample_every, sample_tokens;
	bool eval_only;
	const char *sample_prompt;
	/* checkpoints */
	const char *out, *resume, *init_from;
	int64_t ckpt_every, keep;
	double ckpt_secs;
	bool ckpt, ckpt_best, overwrite;
	int load;
	/* log */
	int64_t log_every, check_replicas_every;
	double publish_secs;
	const char *peak_flops;
	bool log_all_ranks, dry_run;
	/* not an option: --resume auto found nothing to go on from */
	bool start_over;
	/* nor this: rank 0's descriptor + 1, of a lock on the journal; 0: none */
	int lock;
};

/* A checkpoint that a run begins from, and the options that come with it. */
struct train_base {
	char *resume; /* NULL: nothing to go on from */
	bool start_over;
	int lock; /* as in the options */
	struct str options;
};

extern const struct program train_program; /* without .versions */
/* The options as text: what is saved with a run, and what fixes the arithmetic. */
void train_config(const struct train_opts *o, struct str *out);
void train_arithmetic(const struct train_opts *o, const struct model *m,
	uint64_t data_hash, struct str *out);
/* Sets a model_config from a saved config, whose other keys are passed over. */
int train_model_from_config(struct model_config *m, const char *config, struct err *e);
/* The options of this invocation only, which are not saved with a run. */
void train_invocation(const struct train_opts *o, struct str *out);
/* The options that the weights of a model need. */
void train_model_options(const struct train_opts *o, struct str *out);
/* Collective. Finds the checkpoint that o->resume or o->init_from means: the former comes
 * with all its options, the latter with those of the model. */
int train_find_base(const struct train_opts *o, struct comm *world, struct train_base *b,
	struct err *e);
/* What the option table cannot check by itself; also fills in what others decide. */
int train_opts_check(struct train_opts *o, struct err *e);

/* ---- lr.c ------------------------------------------------------------------------ */

/* The learning rate of step 1, 2, ... */
double lr_at(const struct train_opts *o, int64_t step);

/* ---- plan.c: what a rank needs, before anything is allocated --------------------- */

struct plan {
	int64_t run_bytes, micro_bytes, scratch_bytes; /* the arenas */
	struct store_bytes store;		       /* parts of the first */
	int64_t data_bytes;			       /* windows of two steps */
	double step_flops; /* of this rank: of its matrix products */
};

/* A pure function of its arguments: the code that trains, run on the planning device. */
void plan_make(
	const struct train_opts *o, struct model *m, int rank, int ranks, struct plan *p);
int64_t plan_total(const struct plan *p);
/* Of the rank that needs most, and the total of every rank. */
void plan_print(const struct train_opts *o, struct model *m, int ranks, struct str *out);

/* ---- trainer.c: everything that a run holds -------------------------------------- */

/* What is known of the data on every rank, also where none is read. */
struct data_set {
	struct corpus *corpus; /* NULL on ranks that do not read */
	struct tokenizer tokenizer;
	int64_t tokens[N_SPLITS];
	uint64_t hash;
	int readers;
};

/* Collective. Errors are agreed on. */
int data_open(
	struct data_set *d, const struct train_opts *o, struct comm *dp, struct err *e);
void data_close(struct data_set *d);

struct trainer {
	struct train_opts o;
	struct comm *dp;
	struct data_set *data;
	struct device d;
	struct arena run, micro, scratch;
	struct model model;
	struct plan plan;
	struct store *store;
	struct pass pass;
	struct acts acts;
	struct loader *loader;
	struct order order;   /* of training samples */
	struct fetch *next;   /* the next step's samples, on their way */
	int64_t *sample_deal; /* samples of a step that rank r has */
	struct action *schedule;
	int64_t n_actions;
	/* NULL, or raised by a signal: this rank's vote to stop, at the end of a step */
	const volatile sig_atomic_t *stop;
	/* the state, which checkpoints keep */
	int64_t step, samples;
	double loss, val_loss, best_val_loss;
	/* fp16: the scale of the loss, the good steps since it changed, and how many steps
	 * overflowed and updated nothing; otherwise 1, 0, 0 */
	float loss_scale;
	int64_t scale_good, skipped;
};

/* Collective. Parameters are initialised from the seed. `data` stays the caller's. */
int trainer_open(struct trainer *t, const struct train_opts *o, struct comm *dp,
	struct data_set *data, struct err *e);
void trainer_close(struct trainer *t);
/* Can so many ranks share a step, and can its sizes be counted? */
int train_check_ranks(
	const struct train_opts *o, const struct model *m, int ranks, struct err *e);
int64_t trainer_micro_batches(const struct train_opts *o);

/* ---- step.c ---------------------------------------------------------------------- */

struct step_result {
	float loss, grad_norm, lr, loss_scale;
	double forward, backward, data; /* seconds */
	int64_t stop, save;		/* how many ranks voted for it */
	bool skipped;	/* fp16: gradients overflowed, so nothing was updated */
	bool bad;	/* loss or norm is no number: nothing was updated */
	struct str why; /* then: what was found */
};

/* Collective. One optimizer step; `save` is this rank's vote. */
void trainer_step(struct trainer *t, bool save, struct step_result *r);
/* The same on given windows [sample][context + 1], those of this rank's micro-batches. */
void trainer_step_on(
	struct trainer *t, const int32_t *windows, bool save, struct step_result *r);

/* ---- eval.c ---------------------------------------------------------------------- */

/* Collective. Mean loss over the fixed windows of a split; not a number when the split is
 * too short. */
double trainer_eval(struct trainer *t, enum split split);

/* ---- state.c: checkpoints -------------------------------------------------------- */

/* Collective. */
int trainer_save(struct trainer *t, const char *path, struct err *e);
int64_t trainer_ckpt_bytes(const struct trainer *t); /* of the file that would be */
/* Collective. `path` is read by every rank, or by rank 0 and sent. weights_only: a new run
 * begins with these parameters. */
int trainer_load(struct trainer *t, const char *path, bool weights_only, struct err *e);
/* Has the checkpoint the tensors of the model, and no others? To be asked before room is made
 * for it: the options in a file may ask for any. */
int state_check_model(const struct ckpt *c, const struct model *m, struct err *e);
/* A store that can only be read, and the parameters of a checkpoint that fits in it:
 * inference. */
struct store *state_inference(
	struct model *m, struct device *d, struct comm *alone, struct arena *memory);
int state_load_model(struct store *s, const struct ckpt *c, struct err *e);

/* ---- loop.c ---------------------------------------------------------------------- */

/* The run that pt-train is. Collective. Returns the exit code. */
int train_run(struct train_opts *o, struct comm *world, const char *command);

#endif
