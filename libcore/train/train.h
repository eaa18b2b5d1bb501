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
#include "edit/edit.h"
#include "kernels/kernels.h"
#include "kernels/selftest.h"
#include "model/model.h"
#include "optim/optim.h"
#include "parallel/parallel.h"
#include "run/run.h"

/* ---- options.c ------------------------------------------------------------------- */

enum lr_schedule { LR_CONSTANT, LR_COSINE, LR_LINEAR, LR_WSD };
enum wsd_shape { WSD_LINEAR, WSD_SQRT };
enum lr_scale { LR_SCALE_NONE, LR_SCALE_SQRT, LR_SCALE_LINEAR };
/* By the optimizer: Muon has it, SGD has not. */
enum nesterov { NESTEROV_BY_OPTIMIZER, NESTEROV_NO, NESTEROV_YES };
enum muon_scale { MUON_MATCH_ADAMW, MUON_ORIGINAL };
enum load_how { LOAD_EACH, LOAD_BROADCAST };
enum fsdp_kind { FSDP_PARAMETER, FSDP_FLAT };
enum cp_comm { CP_RING, CP_GATHER };
enum cp_accumulate { CP_FP32, CP_BF16 };
enum pp_split { SPLIT_AUTO, SPLIT_EVEN };

/* Auto: 16 bits where the products of the run round to them anyway. */
enum gather_dtype { GATHER_AUTO, GATHER_FP32 };

enum kernel_choice { KERNELS_FUSED, KERNELS_REF };
enum numerics { NUMERICS_EXACT, NUMERICS_FAST };
enum self_test { SELF_TEST_AUTO, SELF_TEST_YES, SELF_TEST_NO };

/* Workers that train apart; see edit.h. */
struct edit_opts {
	int64_t workers; /* 0: no such thing */
	int64_t interval, warmup;
	int outer; /* enum edit_outer */
	double lr, momentum, beta1, beta2, eps, decay;
	bool nesterov;
	int reducer, consensus, sparsify; /* the enums of those names */
	bool normalize, by_norm, skip_anomaly, by_unit;
	int wire; /* enum edit_wire */
	double density, temperature, clip, wire_density;
	double ewma_alpha, ewma_threshold;
	int64_t ewma_warmup;
	/* workers that meet when it is time, and not after so many steps */
	bool async, by_steps, compat;
	double sync_time, steps_ratio;
	int64_t min_total;
	/* streaming */
	int64_t fragments, delay;
	double keep;
	const char *replay; /* the folder of a run whose meetings are repeated */
};

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
	int optimizer; /* enum optimizer_kind */
	double lr, min_lr, beta1, beta2, eps, weight_decay, clip;
	double momentum;	  /* -1: as the optimizer has it */
	int nesterov, muon_scale; /* enum nesterov, muon_scale */
	int lr_schedule, wsd_shape, lr_scale;
	int64_t warmup, decay_steps, wsd_decay, lr_scale_batch;
	/* precision */
	int dtype; /* enum precision */
	bool float8_skip_ends;
	double loss_scale;
	int64_t loss_scale_window;
	int kernels;	   /* enum kernel_choice */
	int numerics;	   /* enum numerics */
	int cp_accumulate; /* enum cp_accumulate */
	/* who computes */
	int64_t axis[N_AXES]; /* degrees; -1: the rest */
	int64_t zero, pp_stages, memory, threads, bucket_bytes;
	int fsdp_kind, reshard, cp_comm, pp_schedule, pp_split, recompute, offload;
	const char *offload_to;
	bool sp, async_tp;
	int64_t tile;	  /* pieces; 0: off */
	int gather_dtype; /* enum gather_dtype */
	double watchdog;
	int device; /* enum device_kind; where one was opened, not auto */
	const char *profile, *algorithms;
	bool graph;
	int self_test; /* enum self_test */
	struct edit_opts edit;
	struct strs straggle;
	const char *garble;
	/* evaluation and samples */
	int64_t eval_every, eval_windows, sample_every, sample_tokens;
	bool eval_only;
	const char *sample_prompt;
	/* checkpoints */
	const char *out, *resume, *init_from;
	int64_t ckpt_every, ckpt_syncs, keep;
	double ckpt_secs;
	bool ckpt, ckpt_best, ckpt_wait, overwrite;
	int load;
	/* log */
	int64_t log_every, check_replicas_every;
	double publish_secs;
	const char *peak_flops;
	bool log_all_ranks, dry_run;
	/* not an option: which of the workers this is */
	int worker;
	/* nor this: how many ranks have the GPU that this one gets; 0: it is not known */
	int gpu_sharers;
	/* nor this: degrees as train_resolve() found them */
	int degree[N_AXES];
	/* nor this: --resume auto found nothing to go on from */
	bool start_over;
	/* nor this: rank 0's descriptor + 1, of a lock on the journal; 0: none */
	int lock;
	/* nor this: the workers of the checkpoint that the run goes on from */
	int64_t from_workers;
};

/* A checkpoint that a run begins from, and the options that come with it. */
struct train_base {
	char *resume; /* NULL: nothing to go on from */
	bool start_over;
	int lock;	 /* as in the options */
	int64_t workers; /* that train apart: what the checkpoint is of */
	struct str options;
};

extern const struct program train_program; /* without .versions */
extern const char *const offload_names[];
/* The options as text: what is saved with a run, and what fixes the arithmetic. */
void train_config(const struct train_opts *o, struct str *out);
void train_arithmetic(const struct train_opts *o, const struct model *m,
	const char *device, uint64_t data_hash, struct str *out);
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

/* ---- layout.c: who computes what ------------------------------------------------- */

/* How many ranks an axis has, of so many that were started. */
int train_degrees(
	const struct train_opts *o, int ranks, int degree[N_AXES], struct err *e);
/* Decides what the options leave to the layout: degrees, --zero, --virtual, --pp-stages. What
 * was decided before stays. */
int train_resolve(struct train_opts *o, int ranks, struct err *e);
/* Can the ranks share this model and its steps, and is its recipe sound? The options are
 * resolved. */
int train_check(const struct train_opts *o, const struct model *m, struct err *e);
/* Sequences of a step that a worker has, and micro-batches of these. */
int64_t train_batch(const struct train_opts *o);
int64_t trainer_micro_batches(const struct train_opts *o);
/* What the options say of the optimizer. */
void train_optim_config(const struct train_opts *o, struct optim_config *c);
/* What the options say of workers that train apart. */
void train_edit_config(const struct train_opts *o, struct edit_config *c);
/* The products of a token in a stage's forward, multiplications and additions in pairs. */
double stage_work(const struct model *m, const struct stage *s);
int train_data_ranks(const struct train_opts *o);
int train_data_rank(const int degree[N_AXES], int rank);
/* The micro-batches that a data-parallel rank has in a step, without those that only keep
 * others company. */
struct trainer;
int64_t trainer_own_micro(const struct trainer *t, int data_rank);
/* The samples of every rank in the step that begins with global sample `first`: [world size],
 * allocated. */
struct sample_run *trainer_samples(const struct trainer *t, int64_t first);

/* ---- gpu.c ----------------------------------------------------------------------- */

/* Which device the options ask for; what it cannot do is an error. */
int train_device(const struct train_opts *o, enum device_kind *kind, struct err *e);
/* Collective over all ranks: sets o->gpu_sharers. Ranks may see the same GPUs, or each its own,
 * as launchers arrange it. */
void train_device_sharers(struct train_opts *o, struct comm *all);
/* Opens it, and sets o->device. The ranks of a host have its GPUs in turn, and where none was
 * asked for, only if each has one for itself. */
int train_device_open(struct train_opts *o, struct device *d, struct err *e);
/* Collective. Where none was asked for, some may have found a GPU and others none: then all
 * are on CPUs. */
int train_device_agree(
	struct train_opts *o, struct comm *world, struct device *d, struct err *e);
/* What of it fixes the bits. */
void train_device_identity(const struct device *d, struct str *out);
/* Collective over `all`. Products use the algorithms in the file that is given, or in that of the
 * run of which `from`, which may be NULL, is a checkpoint: rank 0 reads it for all. Those that were
 * used go to FOLDER/algorithms. */
int train_algorithms_take(struct device *d, const struct train_opts *o, const char *from,
	struct comm *all, struct err *e);
int train_algorithms_keep(struct device *d, const char *folder, struct err *e);
/* Collective over `all`. Where the algorithms are to be the quickest, and there are several ranks:
 * all measure in a step that is not one, and have what the first that has a shape has chosen. */
int train_algorithms_agree(struct trainer *t, struct comm *all, struct err *e);
/* FLOP/s that mfu divides by: given, of the GPU's data sheet, or measured; 0: not known. */
double train_peak(const struct train_opts *o, struct device *d);
/* The steps of --profile; 0: none. */
int train_profile(
	const struct train_opts *o, int64_t *first, int64_t *last, struct err *e);

/* ---- selftest.c ------------------------------------------------------------------- */

/* Collective over `all`. Before anything is taken of the GPU's memory: holds the kernels that this
 * run will ask of it to the CPU's, if it is to be done. What is to be said of it is added to `said`. */
int train_selftest(struct trainer *t, struct comm *all, struct str *said, struct err *e);

/* ---- lr.c ------------------------------------------------------------------------ */

/* The learning rate of step 1, 2, ... */
double lr_at(const struct train_opts *o, int64_t step);

/* ---- plan.c: what a rank needs, before anything is allocated --------------------- */

enum { PLAN_GROUPS = 16 };

struct plan {
	int64_t run_bytes, micro_bytes, scratch_bytes; /* the arenas */
	struct store_bytes store;		       /* parts of the first */
	int64_t data_bytes;			       /* windows of two steps */
	int64_t copy_bytes;   /* of what is written while training goes on */
	int64_t sample_bytes; /* of rank 0 while it draws one */
	int64_t work_bytes;   /* of the device, for its kernels */
	int64_t pinned_bytes; /* of a GPU's host, for what --offload moves out */
	double step_flops;    /* of this rank: of its matrix products */
	/* Bytes that this rank sends in a step: all, and in each group of ranks. */
	double sent;
	double read, written; /* bytes of what --offload moved out, in a step */
	int64_t edit_bytes;   /* memory for what other workers send */
	double edit_sent;     /* to them, in a synchronisation */
	struct plan_group {
		char name[16];
		double sent;
	} group[PLAN_GROUPS];
	int n_groups;
};

/* A pure function of its arguments: the code that trains, run on the planning device. The
 * options are resolved; the model is left as that rank has it. */
void plan_make(const struct train_opts *o, struct model *m, int rank, struct plan *p);
/* The kernels that this rank asks for in a step, an evaluation and a sample. */
void plan_calls(const struct train_opts *o, struct model *m, int rank,
	struct kernel_calls *calls);
int64_t plan_total(const struct plan *p);
/* What of it is in the memory of the device; of a CPU, all but what is copied or read. */
int64_t plan_on_device(const struct plan *p);
/* What of it there has to be room for: on a GPU, or without a copy that there need not be. */
int64_t plan_needed(const struct train_opts *o, const struct plan *p);
/* What a rank may take: --memory, or its share of this host's that is free, of so many ranks. */
int64_t plan_limit(const struct train_opts *o, int ranks);
/* Of the rank that needs most, and the total of every rank. */
void plan_print(const struct train_opts *o, struct model *m, struct str *out);

/* ---- pipe.c: the stages of a pipeline, or the one that there is ------------------- */

/* What a rank holds of the pipeline, and what it did of the last step. */
struct pipe_stage;
struct pipe {
	struct pass *pass;
	const struct schedule *schedule;
	struct comm *axis;
	struct pipe_stage *stages; /* of this rank */
	int64_t group, n;
	double forward,
		backward; /* seconds of computing, when pipe_times() has found out */
	double waited;	  /* for other stages */
	double seconds;	  /* of all */
	/* NULL, or told of every action of a step when it was done */
	void (*done)(void *with, const struct action *a);
};

/* Prepares the pass for micro-batch i of this rank's; with p->empty there is none. */
typedef void pipe_load(void *with, int64_t i);

/* `stages`: of this rank, as many as the schedule says. The activations of all micro-batches
 * that are under way at a time come from `micro`. */
void pipe_open(struct pipe *x, struct pass *p, const struct schedule *s,
	const struct stage *stages, struct comm *axis, struct arena *micro);
void pipe_close(struct pipe *x);
/* Collective over the mesh. Does what the schedule says. This rank has n micro-batches; if
 * the schedule has more, others have them, and the store is told. */
void pipe_step(struct pipe *x, int64_t n, pipe_load *get, void *with);
/* When the device is done with the step: how long it was at each. */
void pipe_times(struct pipe *x);
/* Prepares the pass as pipe_step() does, in the same order, and computes nothing. */
void pipe_load_again(struct pipe *x, int64_t n, pipe_load *get, void *with);
/* Collective over the mesh. Only forwards: `rounds` is the most that a rank has. */
void pipe_forward(struct pipe *x, int64_t n, int64_t rounds, pipe_load *get, void *with);

/* ---- trainer.c: everything that a run holds -------------------------------------- */

/* What is known of the data on every rank, also where none is read. */
struct data_set {
	struct corpus *corpus; /* NULL on ranks that do not read */
	struct tokenizer tokenizer;
	int64_t tokens[N_SPLITS];
	uint64_t hash;
	int readers;
};

/* Phases of a start, which is the time from the beginning of the program to the first step. */
enum start_phase {
	START_PROGRAM, /* options, MPI, and all that has no phase of its own */
	START_DATA,
	START_DEVICE,
	START_PLAN,
	START_SELF_TEST,
	START_MEMORY, /* is allocated and divided among tensors */
	START_WEIGHTS,
	START_FILES,	/* a checkpoint that is read, the run's folder and journal */
	START_PRODUCTS, /* of a GPU: which algorithms they have */
	START_PHASES
};

struct start {
	double began, last; /* as clock_seconds() */
	double seconds[START_PHASES];
};

/* The time since the last phase ended was spent in this one. */
void start_phase_ends(struct start *s, enum start_phase phase);
void start_print(const struct start *s, struct str *out);

/* Collective. Errors are agreed on. */
int data_open(struct data_set *d, const struct train_opts *o, struct comm *world,
	struct err *e);
void data_close(struct data_set *d);

/* A worker that gets bad data in steps [first, last]. */
struct garble {
	int64_t worker; /* -1: none */
	int64_t first, last;
};

/* What goes wrong on purpose: faults.c. */
struct faults {
	struct straggler *stragglers;
	int n_stragglers;
	struct garble garble;
};

struct trainer {
	struct train_opts o;
	struct comm *world;
	struct mesh mesh;
	struct deal deal; /* of a step's micro-batches, to the data-parallel ranks */
	int data_rank;	  /* of which this is one */
	struct data_set *data;
	struct device d;
	struct arena run, micro, scratch;
	struct model model;
	struct tensor_part part; /* of the model that this rank has */
	struct stage *stages;	 /* of the pipeline, those of this rank */
	int n_stages;
	int64_t room; /* of the device's memory, free before any of those who share it has any */
	struct plan plan;
	struct spill *spill; /* where --offload puts it */
	struct store *store;
	struct optim *optim;
	struct pass pass;
	struct loader *loader;
	struct order order; /* of training samples */
	struct fetch *next; /* the next step's samples, on their way */
	struct schedule schedule;
	struct pipe pipe;
	/* NULL, or raised by a signal: this rank's vote to stop, at the end of a step */
	const volatile sig_atomic_t *stop;
	struct start start;
	struct edit *edit; /* NULL: no workers that train apart */
	int64_t synced;	   /* the step after which they agreed last */
	bool went_back;	   /* from where it was loaded to the anchor */
	double apart_loss; /* sum of this worker's losses since then */
	/* NULL, or this rank's vote to meet the other workers, at the end of a step */
	bool (*wants_to_meet)(void *with);
	void *with;
	int64_t profile_first, profile_last; /* steps; 0: none */
	bool profiling;
	/* whether steps are to be a graph, and how many there were without */
	enum { GRAPH_NONE, GRAPH_WANTED, GRAPH_MADE } graph;
	int64_t n_ordinary;
	/* The device's: what a step is told, and what comes of it; and that when it came. */
	struct step_terms *terms;
	struct step_end *end, ended;
	struct faults faults;
	/* A checkpoint that is being written, from a copy; whether there is memory for one
	 * is known when the first is made. */
	struct ckpt_writing *writing;
	struct arena copy;
	enum { COPY_NONE, COPY_PLANNED, COPY_MADE } copies;
	/* the state, which checkpoints keep */
	int64_t step, samples;
	int64_t from_step; /* of the checkpoint that it went on from, which may be later */
	int64_t unseen; /* of the samples, passed over: workers were slower than others */
	double loss, val_loss, best_val_loss;
	/* fp16: the scale of the loss, and the good steps since it changed, otherwise 1, 0;
	 * and how many steps updated nothing: they overflowed, or were never done */
	float loss_scale;
	int64_t scale_good, skipped;
};

/* The order of the training samples; too few tokens for one are an error. */
int train_order(const struct train_opts *o, const struct model *m,
	const struct data_set *data, struct order *out, struct err *e);
/* Collective. Parameters are initialised from the seed. `data` stays the caller's. */
int trainer_open(struct trainer *t, const struct train_opts *o, struct comm *world,
	struct data_set *data, struct err *e);
/* The same in three: options, model and device; the plan, and whether there is memory for it; and
 * with that memory all else. After the first ranks of other trainers that share the GPU may be
 * waited for, and then its room is to be seen: what is free before any of them takes some. Before
 * the last nothing of it is taken. */
int trainer_prepare(struct trainer *t, const struct train_opts *o, struct comm *world,
	struct data_set *data, struct err *e);
void trainer_see_room(struct trainer *t);
int trainer_fit(struct trainer *t, struct err *e);
int trainer_build(struct trainer *t, struct err *e);
void trainer_close(struct trainer *t);
/* Parts of it that a plan goes through as well. From the mesh, the options and the model:
 * the deal, the stages, and the model's tensors as this rank has them. */
void trainer_arrange(struct trainer *t);
/* From that and the device, with arenas that may be measuring: the store and the pass; then
 * the schedule and activations. */
void trainer_build_store(struct trainer *t);
void trainer_build_pipe(struct trainer *t);
/* All undone. */
void trainer_dismantle(struct trainer *t);
/* Rank 0 says that checkpoints are written without a copy. */
void trainer_warn_of_copy(const struct trainer *t);

/* ---- step.c ---------------------------------------------------------------------- */

struct step_result {
	float loss, grad_norm, lr, loss_scale;
	double forward, backward, data; /* seconds */
	double bubble; /* part of the time that ranks of the pipeline did not compute */
	int64_t stop, save, meet; /* how many ranks voted for it */
	int64_t written;	  /* how many have written their part of a checkpoint */
	bool skipped;		  /* fp16: gradients overflowed, so nothing was updated */
	bool bad;		  /* loss or norm is no number: nothing was updated */
	struct str why;		  /* then: what was found */
};

/* Collective. One optimizer step; `save` is this rank's vote. */
void trainer_step(struct trainer *t, bool save, struct step_result *r);
/* The same on given windows [sample][context + 1], those of this rank's micro-batches. */
void trainer_step_on(
	struct trainer *t, const int32_t *windows, bool save, struct step_result *r);
/* Collective. Of it, what follows the backward: the sums of loss and squares, of all ranks where
 * there are several, stay in the device's memory; votes come with them, in one all-reduce of
 * integers; and the bubble. */
void step_agree(struct trainer *t, bool save, struct step_result *r);

/* Collective. Forward and backward of the next step, of which nothing stays. */
void trainer_rehearse(struct trainer *t);
/* Collective. The worker was so many steps slower than others: it goes on where they do. */
void trainer_pass_over(struct trainer *t, int64_t steps);

/* ---- faults.c: what goes wrong on purpose ------------------------------------------ */

struct straggler {
	int rank;    /* of all ranks; -1: one that is drawn anew in every step */
	double ms;   /* added to a step */
	double part; /* of the steps, at random */
};

/* *list is allocated, also on an error. */
int straggle_parse(
	const struct strs *texts, struct straggler **list, int *n, struct err *e);
/* How long `rank` of so many is held up in a step. */
double straggle_ms(const struct straggler *list, int n, uint64_t seed, int64_t step,
	int rank, int ranks);
void straggle_wait(double ms);

/* "WORKER:FIRST:LAST", or NULL: nobody. */
int garble_parse(const char *text, struct garble *g, struct err *e);
/* Of a run whose workers have so many ranks each. To be closed, also after an error. */
int faults_open(struct faults *f, const struct train_opts *o, int ranks, struct err *e);
void faults_close(struct faults *f);
bool garble_is_due(const struct garble *g, int worker, int64_t step);
/* A window of n tokens that are drawn; `sample` is its number in the run. */
void garble_window(
	int32_t *window, int64_t n, int64_t vocab, uint64_t seed, int64_t sample);

/* ---- eval.c ---------------------------------------------------------------------- */

/* Collective. Mean loss over the fixed windows of a split; not a number when the split is
 * too short. */
double trainer_eval(struct trainer *t, enum split split);

/* ---- state.c: checkpoints -------------------------------------------------------- */

/* Collective. */
int trainer_save(struct trainer *t, const char *path, struct err *e);
/* Collective, each. The same in two parts, one at a time: with `behind` training may go on
 * between them, and what is written is the state at the beginning; where there is no memory
 * for a copy of that, all is written before the first part returns. On an error of that there
 * is nothing to end. */
int trainer_save_begin(struct trainer *t, const char *path, bool behind, struct err *e);
int trainer_save_end(struct trainer *t, struct err *e);
/* This rank's vote: is its part written? */
bool trainer_saved(const struct trainer *t);
/* What the store keeps beside parameters: the state of the optimizer, and of local SGD. */
void train_store_groups(const struct train_opts *o, struct store_groups *g);
/* Of the copy that rank `rank` needs, for the plan. */
int64_t state_copy_bytes(
	const struct train_opts *o, const struct model *m, int rank, int ranks);
int64_t trainer_ckpt_bytes(const struct trainer *t); /* of the file that would be */
/* Collective. `path` is read by every rank, or by rank 0 and sent. weights_only: a new run
 * begins with these parameters. */
int trainer_load(struct trainer *t, const char *path, bool weights_only, struct err *e);
/* The step after which its workers agreed last, its own where none train apart; -1: it says
 * none that can be. */
int64_t state_synced(const struct ckpt *c);
/* Has the checkpoint the tensors of the model, and no others? To be asked before room is made
 * for it: the options in a file may ask for any. */
int state_check_model(const struct ckpt *c, const struct model *m, struct err *e);
/* A store that can only be read, and the parameters of a checkpoint that fits in it:
 * inference. */
struct store *state_inference(
	struct model *m, struct device *d, struct mesh *alone, struct arena *memory);
int state_load_model(struct store *s, const struct ckpt *c, struct err *e);
/* Has every rank all parameters? */
bool trainer_is_whole(const struct trainer *t);
/* Collective. A model with all parameters, on rank 0; elsewhere `store` is NULL. */
struct whole {
	struct model model;
	struct mesh alone;
	struct device *device;
	struct arena memory; /* of it */
	struct store *store;
	struct optim *optim;
};
void state_whole_open(struct whole *w, struct trainer *t);
void state_whole_close(struct whole *w);

/* ---- elastic.c: another number of workers than a checkpoint is of ------------------ */

/* Can so many go on with it? Where they have not agreed, only with an anchor. */
int elastic_check(const struct ckpt *c, int64_t workers, struct err *e);
/* The same for ckpt_newest(), with the options that were given. */
int elastic_usable(void *with, const struct ckpt *c, struct err *e);
/* What a run goes on with: `back` where it is from the anchor, at the step it is of. */
int elastic_info(const struct train_opts *o, const struct ckpt *c, struct ckpt_info *info,
	bool *back, struct err *e);

/* ---- loop.c ---------------------------------------------------------------------- */

/* The run that pt-train is. Collective. Returns the exit code. `began`: when the program did, by
 * clock_seconds(). */
int train_run(
	struct train_opts *o, struct comm *world, const char *command, double began);

#endif
