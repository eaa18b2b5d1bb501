/*
 * check: is a step of another trainer right? The gradient that its optimizer saw (step_files.h) is compared with
 * one that is computed here (reference.h), its moments with each other, and its update with AdamW's; what is wrong
 * is compared with what known bugs would make of it.
 */
#pragma once

#include "reference/reference.h"
#include "check/given.h"
#include "lora/lora.h"
#include "check/step_files.h"
#include "check/vectors.h"

/* How the other run computed. Autocast: matmuls round to bf16; bf16: parameters and activations, too. */
enum run_precision { RUN_FP32, RUN_AUTOCAST, RUN_BF16 };
#define RUN_PRECISION_WORDS "fp32", "autocast", "bf16"
enum reference_kind { REFERENCE_AUTO, REFERENCE_FLOAT64, REFERENCE_FP32 };
#define REFERENCE_WORDS "auto", "float64", "fp32"

struct check_opts {
	int precision;	  /* enum run_precision */
	int reference;	  /* enum reference_kind */
	double grad_norm; /* as logged; below 0: not known */
	bool two_norms;	  /* --grad-norm X,Y: first_norm is X, grad_norm Y */
	double first_norm;
	double loss; /* as logged; NAN: not known */
	double grad_norm_half, first_norm_half,
		loss_half; /* half a unit of the last digit that was logged */
	int64_t tp, cp, fsdp, dp, accumulation; /* degrees of the other run; 1: none */
};

/* What a finding is about: findings.c has what each kind means. */
enum finding_kind {
	FINDING_GRADIENT, /* a wrong gradient, with its cause */
	FINDING_ZERO,	  /* a gradient that should be zero */
	FINDING_NO_GRADIENT,
	FINDING_FROZEN,
	FINDING_NOT_FINITE,
	FINDING_MOMENTS,
	FINDING_UPDATE,
	FINDING_LOSS, /* from here on: about the whole step */
	FINDING_SCALE,
	FINDING_CLIP,
	FINDING_BETA2,
	FINDING_COPIES,
	FINDING_STEP,
	FINDING_NOTE, /* it may be meant so: nothing is wrong for it */
	N_FINDING_KINDS
};

enum { FINDING_TEXT = 300, MAX_FINDINGS = 64 };

/* What files store of a tensor after the step. */
enum { STORED_PARAMETERS, STORED_MEANS, STORED_SQUARES, N_STORED };

/* The result of one test of a tensor: a distance, and the largest that rounding explains. */
struct distance {
	double value, bound;
	bool tested, wrong;
};

struct tensor_check {
	char name[64];
	char file_name[128]; /* in the checkpoint; "": the same */
	int64_t n;
	int in_model; /* its number among the model's tensors, where the model is known */
	double norm;  /* of the gradient that the optimizer saw */
	double factor; /* its projection on the reference's, after the common factor */
	struct distance gradient, moments, update;
	double factor_bound; /* how far factor may be from 1 */
	bool frozen;	     /* the run does not train it */
	bool zero;	     /* its gradient should be zero, except for rounding */
	double lr_scale;     /* of the run's learning rate, as it was told */
	double lr, decay;    /* that explain the update */
	struct update_sums {
		double uu, pp,
			left; /* squares: its direction, parameters, what is not explained */
		double round; /* of the parameters */
		double fine,
			shrink; /* of the moments; the part of the parameters that is lost */
		/* By how much rate and decay are confounded: 1 or more. If `along` > 0, they cannot be told apart at all,
		 * and a decay of 1 looks like so large a relative change of the rate. */
		double unclear, along;
	} sums;
	double stored[N_STORED]; /* rounding_of() */
	bool decays; /* a decay can be told: the parameters are not too small */
	bool nonfinite, unchanged;
	bool dead;	   /* neither moment gained anything */
	bool squares_lost; /* exp_avg_sq is the gradient's alone: before the step it was zero */
	int cause;	   /* finding with the cause of a wrong gradient; -1: none yet */
	uint64_t found; /* bit k: finding k is about it */
};

struct finding {
	enum finding_kind kind;
	char text[FINDING_TEXT];
	char first[64]; /* one of the tensors; "": it is about the whole step */
	int n;		/* tensors */
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

/* What the files have twice. */
struct copy_check {
	char *name, *whose, *first;
	const char *kind;
	int64_t n, differ, at;
	double value[2], distance;
};
struct copy_list {
	struct copy_check *of;
	int64_t n;
};

/* The gradients that the optimizer saw, as a multiple of the reference's. */
struct scale_check {
	double common; /* factor of most tensors */
	int n_right;   /* tensors that are right with this factor */
	double run_clip; /* factor of the run's clipping, by the norm that it logged; 0: not known */
	double seen_norm;
	bool clipped, checked;
};

struct step_check {
	struct check_opts o;
	struct step_files files;
	const char *told; /* what was taken from files of the run; NULL: nothing */
	struct given_gradients given; /* --grads; n is 0 without it */
	struct lora lora;	      /* the files have adapters of a base model */
	int n;
	struct tensor_check *of;    /* [n] in the order of the files */
	int *order;		    /* [n]: of the forward pass */
	struct copy_list copies[2]; /* before and after */
	/* With a batch: */
	bool has_reference;
	const char *computed; /* how the reference was */
	struct weights weights;
	struct token_batch batch;
	struct gradients reference;
	float **seen; /* [n]: gradients that the optimizer saw, of wrong tensors */
	struct scale_check scale;
	double loss_bound; /* what rounding makes of the loss, relative to it */
	bool loss_right;   /* it was logged, and is the reference's within this bound */
	/* Of the update: */
	double lr, lr_bound, decay; /* what most tensors had */
	char update_unchecked[120]; /* why updates were not checked; "": all were */
	int n_updates_unchecked;    /* number of tensors; 0: all */
	bool lr_scaled;		    /* scales of the learning rate are known */
	struct finding findings[MAX_FINDINGS];
	int n_findings;
	bool nothing_changed; /* neither parameters nor moments */
	bool tested, wrong;   /* anything */
};

/* What is checked. */
struct check_job {
	const char *before, *after;
	const struct strs *batch; /* files; none: what needs no model is checked */
	struct batch_opts how;
	struct adam adam; /* below 0: as the files say */
	bool two_runs;	  /* of one step, whatever their optimizers count */
	const struct strs *freeze,
		*lr_scale_of; /* as pt-train's; none: as the files say */
	struct open_how open;
	const char *told; /* what was taken from files of the run; NULL: nothing */
	/* Files of gradients; NULL or empty: none. `after` may then be NULL. */
	const struct strs *grads;
	const char *
		base; /* the model whose adapters the files have; NULL: as adapter_config.json says */
};

/* Makes all tests that the files allow; -1 with *e set if they cannot be read, or do not belong together.
 * step_check_close() in any case. */
int step_check_run(struct step_check *c, const struct check_opts *o,
	const struct check_job *job, struct err *e);
void step_check_close(struct step_check *c);

/* findings.c: adds a finding about a tensor, or about the whole step (NULL). A finding with the
 * same text gets one more tensor. Returns its number. */
int add_finding(struct step_check *c, enum finding_kind kind,
	const struct tensor_check *x, const char *fmt, ...) PRINTF(4, 5);

/* names.c: appends ": 368/370, ..." if the batch has counts whose ratio is the factor. */
void add_count_names(
	const struct step_check *c, double factor, char *out, size_t capacity);
/* Returns what else than the norm of the reference's gradient this number is; NULL: not known. */
const char *name_of_norm(const struct step_check *c, double norm);
/* Puts what other findings may follow from first. */
void order_findings(struct step_check *c);

/* padding.c: computes the reference again, if the run gives the embedding of pad_token_id no gradient. config: as in
 * struct open_how; compute: sets c->reference. */
int use_padding(struct step_check *c, const char *config, const char *before,
	int (*compute)(struct step_check *, struct err *), struct err *e);
/* judge.c: gradients against the reference, or the means of two runs. */
int judge_gradients(struct step_check *c, struct err *e);
/* Returns the bounds that gradients in bf16 would have, allocated; NULL with *e set. */
double *bounds_in_bf16(const struct step_check *c, struct err *e);
/* betas.c: if another beta1 explains exp_avg, adds a finding and sets it. Needs the reference. */
int solve_betas(struct step_check *c, bool *solved, struct err *e);
/* Sets c->seen[tensor], and how much of it is lost to rounding. */
int read_seen(struct step_check *c, int tensor, double *lost, struct err *e);
/* Describes a factor of all gradients: "4.000 times", and what of the layout has this degree. */
void say_times(const struct step_check *c, double factor, char *out, size_t room);
/* given.c: compares the copies of the ranks, and the moments with the gradients that --grads has. */
int judge_given_copies(struct step_check *c, struct err *e);
int judge_witness(struct step_check *c, struct err *e);
/* The scale of the gradients that --grads has. norm: theirs, of all tensors; of `common` times the reference's scale. */
void judge_given_scale(struct step_check *c, double norm);
/* adapters.c */
/* Returns whether the tensor is the A of an adapter whose B was zero before the step: it has no gradient. */
bool lora_expects_zero(const struct step_check *c, int tensor, struct err *e);
/* Sets c->lora.is_zero, and adds a note if an adapter is not zero before the first step. */
void lora_examine(struct step_check *c);
/* causes.c: explains those that are wrong. */
int find_causes(struct step_check *c, struct err *e);
/* update.c: moments, and the update; needs no reference. */
int judge_update(struct step_check *c, struct err *e);
/* groups.c: sets which tensors are frozen, and scales of the learning rate. */
int read_groups(struct step_check *c, const struct check_job *job, struct err *e);
/* A reference without them. */
void leave_out_frozen(struct step_check *c);
/* copies.c: what ranks have saved twice, and tied weights. */
int judge_copies(struct step_check *c, struct err *e);
void copies_free(struct copy_list *l);
/* "34 of 34 are the same"; nothing if there are none. */
void step_check_copies(const struct step_check *c, struct str *out);
/* findings.c: sets why a part was not checked, or not for all tensors; "": it was, or this check does not have it.
 * Returns for how many tensors; 0: for all. */
int find_unchecked(const struct step_check *c, enum check_part part, struct str *why);
/* print.c */
void step_check_print(const struct step_check *c, struct str *out);
/* Its last line. */
void step_check_print_verdict(const struct step_check *c, struct str *out);
void step_check_json(const struct step_check *c, struct str *out);
/* report_page.c: a page or Markdown, as the suffix says; `batch`: the names of its files. 0, or -1 with *e set. */
int step_check_report(const struct step_check *c, const struct strs *batch,
	const char *path, struct err *e);

/* What clipping makes of a gradient with this norm, as torch.nn.utils.clip_grad_norm_(). clip 0 or less: none. */
double clip_factor(double clip, double norm);
