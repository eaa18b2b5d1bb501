/* The options of pt-train. */
#pragma once

#include "edit/edit.h"
#include "model/pass.h"
#include "options/options.h"

/* (Each enum is followed by the words of its option, in the same order.) */
enum lr_schedule { LR_CONSTANT, LR_COSINE, LR_LINEAR, LR_WSD };
#define LR_SCHEDULE_WORDS "constant", "cosine", "linear", "wsd"
enum wsd_shape { WSD_LINEAR, WSD_SQRT };
#define WSD_SHAPE_WORDS "linear", "sqrt"
enum lr_scale { LR_SCALE_NONE, LR_SCALE_SQRT, LR_SCALE_LINEAR };
#define CHECK_WORDS "no", "yes"
#define LR_SCALE_WORDS "none", "sqrt", "linear"
/* BY_OPTIMIZER: on for Muon, off for SGD. */
enum nesterov { NESTEROV_BY_OPTIMIZER, NESTEROV_NO, NESTEROV_YES };
#define NESTEROV_WORDS "by-optimizer", "no", "yes"
enum muon_scale { MUON_MATCH_ADAMW, MUON_ORIGINAL };
#define MUON_SCALE_WORDS "match-adamw", "original"
enum log_format { LOG_AUTO, LOG_SHORT, LOG_FULL };
#define LOG_FORMAT_WORDS "auto", "short", "full"
enum load_how { LOAD_EACH, LOAD_BROADCAST };
#define LOAD_WORDS "each", "broadcast"
/* Documents in a sample form one sequence, or are separate. */
enum packing { PACKING_STREAM, PACKING_DOCUMENTS };
#define PACKING_WORDS "stream", "documents"
enum fsdp_kind { FSDP_PARAMETER, FSDP_FLAT };
#define FSDP_KIND_WORDS "parameter", "flat"
enum cp_comm { CP_RING, CP_GATHER };
#define CP_COMM_WORDS "ring", "gather"
enum cp_accumulate { CP_FP32, CP_BF16 };
/* What to do in a step whose batch has no target with a weight. */
#define EMPTY_BATCH_WORDS "stop", "skip"
enum empty_batch { EMPTY_STOP, EMPTY_SKIP };
#define CP_ACCUMULATE_WORDS "fp32", "bf16"
enum residual_dtype { RESIDUAL_FP32, RESIDUAL_BF16 };
#define RESIDUAL_DTYPE_WORDS "fp32", "bf16"
enum pp_split { SPLIT_AUTO, SPLIT_EVEN };
#define PP_SPLIT_WORDS "auto", "even"
enum deal { DEAL_EVEN, DEAL_SPEED };
#define DEAL_WORDS "even", "speed"

/* AUTO: 16 bits where the matmuls of the run round to 16 bits anyway. */
enum gather_dtype { GATHER_AUTO, GATHER_FP32 };
#define GATHER_DTYPE_WORDS "auto", "fp32"

enum kernel_choice { KERNELS_FUSED, KERNELS_REF };
#define KERNELS_WORDS "fused", "ref"
enum numerics { NUMERICS_EXACT, NUMERICS_FAST };
#define NUMERICS_WORDS "exact", "fast"
enum self_test { SELF_TEST_AUTO, SELF_TEST_YES, SELF_TEST_NO };
#define SELF_TEST_WORDS "auto", "yes", "no"

/* The checkpoints of workers: each worker writes its own, or the first writes one for all. */
enum edit_ckpt { EDIT_CKPT_GROUP, EDIT_CKPT_RANK0 };
#define EDIT_CKPT_WORDS "group", "rank0"

/* Options of local SGD. */
struct edit_opts {
	struct edit_config config; /* without .seed */
	int64_t workers;	   /* 0: no local SGD */
	int64_t warmup;
	/* async: workers synchronize by the clock, not after a number of steps */
	bool async, compat;
	int ckpt;	  /* enum edit_ckpt */
	bool global_loss; /* log the global loss after the warm-up, too */
	bool offload;	  /* offload the state of local SGD */
	double sync_time;
	int64_t min_total;
	const char *replay; /* run directory whose synchronizations are repeated */
};

/* Values that layout_resolve(), the machine and a checkpoint add to the options. */
struct resolved {
	int worker;	 /* number of this worker */
	int gpu_sharers; /* ranks that share this rank's GPU; 0: unknown */
	int degree[N_AXES];
	int64_t from_workers; /* workers of the checkpoint that the run resumes from */
};

struct train_opts {
	/* data */
	struct strs data;
	struct opt_given given;
	int sampling;	 /* SAMPLING_EPOCH or SAMPLING_RANDOM */
	int packing;	 /* enum packing */
	int empty_batch; /* enum empty_batch */
	int64_t seed, readers, spool_limit;
	bool data_per_rank;
	/* batch */
	int64_t batch, batch_per_rank, micro_batch, steps;
	struct model_config model;
	const char *preset;
	/* optimizer */
	int optimizer; /* enum optimizer_kind */
	double lr, min_lr, beta1, beta2, eps, weight_decay, clip;
	double label_smoothing, z_loss; /* see struct xent_terms */
	double momentum;		/* -1: the optimizer's default */
	int nesterov, muon_scale;	/* enum nesterov, muon_scale */
	int lr_schedule, wsd_shape, lr_scale;
	struct strs freeze, lr_scale_of; /* REGEX; REGEX=X */
	int64_t warmup, decay_steps, wsd_decay, lr_scale_batch;
	/* precision */
	int dtype; /* enum precision */
	bool float8_skip_ends;
	double loss_scale;
	int64_t loss_scale_window;
	int kernels;	   /* enum kernel_choice */
	int numerics;	   /* enum numerics */
	int cp_accumulate; /* enum cp_accumulate */
	int residual_dtype;
	/* parallel layout */
	int64_t ep;	      /* ranks that divide the experts of a layer */
	double expert_room;   /* see pass_config.expert_room */
	int64_t axis[N_AXES]; /* degrees; -1: the rest */
	int64_t zero, pp_stages, memory, threads, bucket_bytes;
	int fsdp_kind, reshard, cp_comm, pp_schedule, pp_split, deal, recompute, offload;
	int64_t recompute_every;
	const char *offload_to;
	bool sp, async_tp;
	int64_t tile;	  /* pieces; 0: off */
	int gather_dtype; /* enum gather_dtype */
	double watchdog;
	int device; /* enum device_kind; not auto once a device is open */
	int comm;   /* enum comm_library */
	const char *profile, *algorithms, *trace, *trace_steps;
	const char *hash_tensors, *hash_steps;
	bool graph;
	int self_test; /* enum self_test */
	struct edit_opts edit;
	struct strs inject_delay, inject_flip;
	const char *inject_kill;
	int check_sums, check_replicas, check_memory; /* CHECK_WORDS */
	double referee; /* share of the work that audits add; 0: none */
	int64_t referee_strikes;
	const char *corrupt_batch;
	const char *cluster; /* only for plans */
	/* evaluation and samples */
	int64_t eval_every, eval_windows, sample_every, sample_tokens;
	bool eval_only, eval_first;
	const char *sample_prompt;
	/* checkpoints */
	const char *out, *resume, *resume_reason, *init_from;
	int64_t ckpt_every, ckpt_syncs, keep;
	double ckpt_secs;
	bool ckpt, ckpt_best, ckpt_wait, overwrite, resume_exact;
	const char *vault;   /* directory; NULL: none */
	int64_t vault_every; /* steps; 0: as rarely as the cost requires */
	int load;
	/* log */
	int64_t log_every;
	double publish_secs;
	const char *peak_flops;
	struct strs log_to;
	int log_format; /* enum log_format */
	bool log_all_ranks, dry_run, verbose, columns;
	int64_t print_ranks;	  /* ranks that are available; -1: train */
	struct resolved resolved; /* not an option */
};

extern const struct program train_program;
extern const struct opt_answer train_answers[];
/* Prints the list of unsupported features for the manual page. */
void options_man_absent(FILE *f); /* without .versions */
/* Makes messages of the lower directories end with advice about these options. */
void options_give_advice(void);
/* Appends the options that are saved with a run. */
void options_print_saved(const struct train_opts *o, struct str *out);
/* Appends the options that determine results. For DEVICE_CPU, both --kernels give the same text,
 * as they give the same bits. options_print_arithmetic() appends all that determines results. */
void options_print_result_options(
	const struct train_opts *o, int device, struct str *out);
/* Appends everything that determines results: options, device, versions and data. */
void options_print_arithmetic(const struct train_opts *o, const struct model *m,
	const char *device, uint64_t data_hash, struct str *out);
/* Sets a model_config from a saved config. */
int options_parse_model(struct model_config *m, const char *config, struct err *e);

/* ---- groups.c ----------------------------------------------------------------------- */

/* Applies --freeze and --lr-scale-of to the tensors. */
int options_set_groups(const struct train_opts *o, struct model *m, struct err *e);
/* Makes a run's model: model_init(), a check that the kernels support it, options_set_groups(). */
int options_model_init(
	const struct train_opts *o, struct model *m, int64_t vocab, struct err *e);
/* Marks the tensors that --freeze names. */
int options_mark_frozen(struct model *m, const struct strs *list, struct err *e);

/* ---- options_check.c ---------------------------------------------------------------- */

/* Checks what the option table cannot express; sets defaults that depend on other options. */
int options_check(struct train_opts *o, struct err *e);
/* options_reject() returns an error with the message of the first mistake that was made. */
struct mistake {
	bool made;
	const char *message;
};
int options_reject(const struct mistake *list, size_t n, struct err *e);
/* Returns true if anything is offloaded. */
bool options_offload(const struct train_opts *o);
/* Parses the steps of --profile or --trace-steps: FIRST:LAST or FIRST. */
int options_parse_steps(const struct train_opts *o, const char *option, const char *text,
	int64_t *first, int64_t *last, struct err *e);
/* Returns the type of GEMM operands, on a device that stores 16 bits. */
enum dtype options_gemm_dtype(const struct train_opts *o);
/* Sets the hyperparameters of the optimizer, with its defaults. */
void options_set_optim(const struct train_opts *o, struct optim_config *c);
