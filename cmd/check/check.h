/* check: checks a step of another trainer. Compares the gradient that its optimizer saw
 * (step_files.h) with a gradient computed here (reference.h), its moments with each other, and its
 * update with AdamW's. Compares what is wrong with what known bugs would produce. */
#pragma once

#include "reference/reference.h"
#include "check/experts.h"
#include "check/given.h"
#include "lora/lora.h"
#include "check/step_files.h"
#include "check/vectors.h"

/* Precision of the run. autocast: matmuls round to bf16; bf16: so do parameters, activations.
 * auto: fp32, but a step that is right only in bf16 is undecided. */
enum run_precision { RUN_FP32, RUN_AUTOCAST, RUN_BF16, RUN_AUTO };
#define RUN_PRECISION_WORDS "fp32", "autocast", "bf16", "auto"
enum reference_kind { REFERENCE_AUTO, REFERENCE_FLOAT64, REFERENCE_FP32 };
#define REFERENCE_WORDS "auto", "float64", "fp32"

struct check_opts {
	int balance;	     /* enum balance_form */
	double balance_loss; /* its coefficient */
	int precision;	     /* enum run_precision */
	int reference;	     /* enum reference_kind */
	double grad_norm;    /* as logged; < 0: unknown */
	bool two_norms;	     /* --grad-norm X,Y: first_norm is X, grad_norm Y */
	double first_norm;
	double loss; /* as logged; NAN: unknown */
	double grad_norm_half, first_norm_half,
		loss_half;			/* half a unit of the last logged digit */
	int64_t tp, cp, fsdp, dp, accumulation; /* degrees of the other run */
};

/* What a finding is about; findings.c describes each kind. */
enum finding_kind {
	FINDING_GRADIENT, /* wrong gradient, with its cause */
	FINDING_ZERO,	  /* gradient that should be zero */
	FINDING_NO_GRADIENT,
	FINDING_FROZEN,
	FINDING_NOT_FINITE,
	FINDING_MOMENTS,
	FINDING_UPDATE,
	FINDING_LOSS, /* from here on about the whole step */
	FINDING_SCALE,
	FINDING_CLIP,
	FINDING_BETA2,
	FINDING_COPIES,
	FINDING_STEP,
	FINDING_NOTE, /* may be intended, and does not make the step wrong */
	N_FINDING_KINDS
};

enum { FINDING_TEXT = 300, MAX_FINDINGS = 64 };

/* The values that a file stores for each tensor. */
enum { STORED_PARAMETERS, STORED_MEANS, STORED_SQUARES, N_STORED };

/* One test of a tensor: its distance, and the largest distance that rounding explains. */
struct distance {
	double value, bound;
	bool tested, wrong;
};

struct tensor_check {
	char name[64];
	char file_name[128]; /* name in the checkpoint; "": same as name */
	int64_t n;
	int in_model; /* index in the model's tensor table, if the model is known */
	double norm;  /* norm of the gradient that the optimizer saw */
	double factor; /* projection on the reference gradient, relative to the common factor */
	struct distance gradient, moments, update;
	double factor_bound; /* maximum |factor - 1| */
	double near_change;  /* part of gradient.bound: what near choices may change */
	double lost;	  /* relative rounding of the gradient that the optimizer saw */
	bool frozen;	  /* not trained by the run */
	bool buffer;	  /* frozen, but the run may change it: a router's bias */
	bool zero;	  /* its gradient should be zero except for rounding */
	double lr_scale;  /* relative to the run's learning rate, from the options */
	double lr, decay; /* learning rate and decay that explain the update */
	struct update_sums {
		double uu, pp,
			left; /* squares: AdamW's direction, parameters, unexplained rest */
		double rounding,
			moment_rounding; /* relative, of parameters and moments */
		double shrinkage;	 /* fraction of the parameters lost */
		double amplification; /* factor of errors in rate and decay, 1 or more */
		/* > 0: rate and decay cannot be told apart; a decay of 1 changes the rate by
		 * decay_as_rate, and leaves decay_left of the update unexplained. */
		double decay_as_rate, decay_left;
	} sums;
	double stored[N_STORED]; /* relative rounding, see rounding_of() */
	bool decays; /* decay is measurable: the parameters are large enough */
	bool nonfinite, unchanged;
	bool dead;	   /* neither moment gained anything */
	bool squares_lost; /* exp_avg_sq was zero before the step, whatever the file says */
	int cause;	   /* index of the finding with its cause; -1: none yet */
	uint64_t found;	   /* bit k is set if finding k is about this tensor */
};

struct finding {
	enum finding_kind kind;
	char text[FINDING_TEXT];
	char first[64]; /* name of its first tensor; "": about the whole step */
	int n;		/* number of tensors */
};
static inline bool is_note(const struct finding *f)
{
	return f->kind == FINDING_NOTE;
}

/* The tests of a tensor. */
enum check_test { TEST_GRADIENT, TEST_MOMENTS, TEST_UPDATE, N_CHECK_TESTS };
static inline const struct distance *distance_in(
	const struct tensor_check *x, enum check_test t)
{
	return t == TEST_GRADIENT  ? &x->gradient
	       : t == TEST_MOMENTS ? &x->moments
				   : &x->update;
}

/* The parts of a check, each of which may be left out. */
enum check_part {
	CHECK_GRADIENTS,
	CHECK_SCALE,
	CHECK_MOMENTS,
	CHECK_UPDATE,
	N_CHECK_PARTS
};
extern const char *const check_part_names[N_CHECK_PARTS];

/* A tensor that the files store twice. */
struct copy_check {
	char *name, *owner, *read_owner; /* "tp 1", and "tp 0": whose copy is read */
	const char *kind;		 /* as in struct ckpt_copy */
	int64_t n, n_different, first_different;
	double value[2],
		distance; /* value[]: the first different elements, read_owner's first */
};
struct copy_list {
	struct copy_check *items;
	int64_t n;
};

/* Scale of the gradients that the optimizer saw, relative to the reference. */
struct scale_check {
	double common;	 /* factor of most tensors */
	int n_right;	 /* number of tensors that are right with this factor */
	double run_clip; /* factor of clipping by the logged norm; 0: unknown */
	double seen_norm;
	bool clipped, checked;
};

struct step_check {
	struct check_opts o;
	struct step_files files;
	const char *run_facts_text;   /* facts taken from files of the run; NULL: none */
	struct given_gradients given; /* --grads; n is 0 without it */
	struct lora lora;	      /* adapters; lora.used if the files have any */
	int n;
	struct tensor_check *tensors; /* [n], in the order of the files */
	int *order;		      /* [n]: indices in forward order */
	struct copy_list copies[2];   /* in the files before and after */
	/* With a batch: */
	bool has_reference;
	const char *computed; /* precision of the reference, for output */
	struct weights weights;
	struct token_batch batch;
	struct gradients reference;
	struct choice_check choices; /* choices of experts; zeros for a dense model */
	float **seen; /* [n]: gradients that the optimizer saw, of wrong tensors */
	struct scale_check scale;
	double loss_bound; /* relative bound of rounding */
	bool loss_right;   /* a loss was logged and is within this bound */
	/* About the update: */
	double lr, lr_bound, decay; /* values of most tensors */
	char update_unchecked[120]; /* why updates were not checked; "": all were */
	int n_updates_unchecked;    /* number of tensors; 0: all */
	bool lr_scaled;		    /* the learning-rate scales of tensors are known */
	struct finding findings[MAX_FINDINGS];
	int n_findings;
	bool nothing_changed; /* parameters and moments are all the same */
	bool tested, wrong;   /* any test ran; any finding, except notes */
	bool unexplained;     /* most wrong gradients have no known cause */
	bool undecided; /* wrong in fp32, right in bf16, and the run's precision is unknown */
};

/* The input of a check. */
struct check_job {
	const char *before, *after;
	const struct strs *batch; /* files; empty: only what needs no model is checked */
	struct batch_opts how;
	struct adam adam; /* options; < 0: take the files' values */
	bool two_runs;	  /* the files are of one step of two runs */
	const struct strs *freeze,
		*lr_scale_of; /* as in pt-train; empty: take the files' values */
	struct open_options open;
	const char *run_facts_text; /* facts taken from files of the run; NULL: none */
	/* Files with gradients; NULL or empty: none. `after` may then be NULL. */
	const struct strs *grads;
	const char *base; /* base model of adapters; NULL: take adapter_config.json's */
};

/* Runs all tests that the files allow. Returns -1 with *e set if the files cannot be read
 * or do not belong together. Call step_check_close() in any case. */
int step_check_run(struct step_check *c, const struct check_opts *o,
	const struct check_job *job, struct err *e);
void step_check_close(struct step_check *c);

/* findings.c: Adds a finding about a tensor, or about the whole step (x = NULL). If a finding has
 * the same text already, counts the tensor there. Returns the index of the finding. */
int add_finding(struct step_check *c, enum finding_kind kind,
	const struct tensor_check *x, const char *fmt, ...) PRINTF(4, 5);

/* names.c: Appends ": 368/370, ..." if the factor is a ratio of two counts of the batch. */
void append_count_names(
	const struct step_check *c, double factor, char *out, size_t capacity);
/* Describes another quantity of the reference gradient that has this value; NULL: none. */
const char *find_norm_name(const struct step_check *c, double norm);
/* Sorts the findings, so that causes come before their consequences. */
void sort_findings(struct step_check *c);

/* padding.c: Recomputes the reference without the embedding of pad_token_id if the run has no
 * gradient for it. config: as in struct open_options; compute: sets c->reference. */
int apply_padding_idx(struct step_check *c, const char *config, const char *before,
	int (*compute)(struct step_check *, struct err *), struct err *e);
/* judge.c: Compares the gradients with the reference, or the means of two runs. */
int judge_gradients(struct step_check *c, struct err *e);
/* Returns the bounds for gradients in bf16, allocated; NULL with *e set. */
double *compute_bf16_bounds(const struct step_check *c, struct err *e);
/* betas.c: Solves for beta1. If another value explains exp_avg, adds a finding and sets it in
 * c->files.adam and *solved. Needs the reference. */
int solve_betas(struct step_check *c, bool *solved, struct err *e);
/* Sets c->seen[tensor], and *lost to the fraction of its norm that rounding hides. */
int read_seen_gradient(struct step_check *c, int tensor, double *lost, struct err *e);
/* Describes a factor of all gradients: "4.000 times", and the parallel degree that it equals. */
void describe_factor(
	const struct step_check *c, double factor, char *out, size_t capacity);
/* given.c: Compares the ranks' copies in --grads. */
int judge_given_copies(struct step_check *c, struct err *e);
/* Adds findings for tensors whose exp_avg did not gain the gradients in --grads. */
int judge_given_moments(struct step_check *c, struct err *e);
/* Checks the scale of the gradients in --grads. given_norm: norm of all of them. */
void judge_given_scale(struct step_check *c, double given_norm);
/* adapters.c */
/* Returns true for A of an adapter with B = 0 before the step: its gradient is zero. */
bool is_zero_lora_a(const struct step_check *c, int tensor, struct err *e);
/* Sets c->lora.is_zero. Adds a note if B of an adapter is not zero before the first step. */
void record_initial_adapters(struct step_check *c);
/* causes.c: Finds causes for the wrong gradients. */
int find_causes(struct step_check *c, struct err *e);
/* update.c: Checks moments and the update. Needs no reference. */
int judge_update(struct step_check *c, struct err *e);
/* groups.c: Sets which tensors are frozen, and their scales of the learning rate. */
int read_groups(struct step_check *c, const struct check_job *job, struct err *e);
/* Sets the reference gradients of frozen tensors to zero, and recomputes the norm of all. */
void remove_frozen_gradients(struct step_check *c);
/* copies.c: Compares the copies of several ranks, and tied weights. Adds findings. */
int judge_copies(struct step_check *c, struct err *e);
void copies_release(struct copy_list *l);
/* Appends "34 of 34 are the same"; nothing if there are no copies. */
void append_copy_counts(const struct step_check *c, struct str *out);
/* findings.c: Sets *why to the reason why a part was not checked, or not for all tensors; "" if it
 * was, or if this kind of check lacks the part. Returns the number of unchecked tensors; 0: all. */
int describe_unchecked(const struct step_check *c, enum check_part part, struct str *why);
/* print.c: Appends the results as lines of text, ending with the verdict. */
void step_check_print(const struct step_check *c, struct str *out);
/* Appends only the line with the verdict. */
void step_check_print_verdict(const struct step_check *c, struct str *out);
/* Appends the whole check as one JSON object, and a newline. */
void step_check_json(const struct step_check *c, struct str *out);
/* report_page.c: Writes HTML or Markdown, by the suffix. batch: the names of its files.
 * Returns -1 with *e set on failure. */
int step_check_report(const struct step_check *c, const struct strs *batch,
	const char *path, struct err *e);

/* Returns the factor of torch.nn.utils.clip_grad_norm_() for this norm. clip <= 0: no clipping. */
double clip_factor(double clip, double norm);
