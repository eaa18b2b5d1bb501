/* step_files: two checkpoints of one step, with AdamW's moments. They determine the gradient that
 * the optimizer saw: exp_avg is a mean to which the step added (1 - beta1) times the clipped
 * gradient (Kingma, Ba 2015). Functions that return int return 0, or -1 with *e set. */
#pragma once

#include "foreign/foreign.h"

struct lora;

/* Settings of the optimizer; < 0: unknown. */
struct adam {
	double beta1, beta2, eps, decay, clip, lr;
};

struct step_files {
	struct ckpt_view before, after;
	int n_open;
	struct adam adam;
	int64_t n_tensors;
	int m0, v0, m1, v1; /* indices of the moments' groups; -1: zeros */
	double step;	    /* the optimizer's step count in `after` */
	double from;	    /* its count in `before`; -1: unknown */
	/* The files are of one step of two runs; `before` is the first run. */
	bool two_runs;
	bool no_after; /* `after` is the file of `before` again, without moments */
};

/* Are the files from one run, before and after a step, or from two runs after the same
 * step? ONE_OR_TWO_RUNS: from two if both have the same step count. */
enum run_count { ONE_RUN, TWO_RUNS, ONE_OR_TWO_RUNS };
/* Opens the files, and finds the step counts and moments of the optimizer. after: NULL if missing.
 * lora: NULL if the files have no adapters. asked: settings from options, which override the
 * files'. Returns -1 with *e set; call step_files_close() in any case. */
int step_files_open(struct step_files *s, const char *before, const char *after,
	const struct open_options *how, const struct adam *asked, enum run_count runs,
	const struct lora *lora, struct err *e);
void step_files_close(struct step_files *s);
bool step_files_have_moments(const struct step_files *s);
int64_t step_files_size(const struct step_files *s, int tensor);

/* A tensor in both files, in fp32; NULL: missing, or not requested. */
enum { STEP_PARAMETERS = 1, STEP_MEANS = 2, STEP_SQUARES = 4, STEP_ALL = 7 };
struct tensor_step {
	int64_t n;
	float *p0, *p1, *m0, *m1, *v0, *v1;
};
/* Reads the values of a tensor before and after the step; what: a set of STEP_*. Returns -1 with
 * *e set on failure. The caller calls tensor_step_free() in any case. */
int tensor_step_read(struct tensor_step *t, const struct step_files *s, int tensor,
	unsigned what, struct err *e);
void tensor_step_free(struct tensor_step *t);

/* Returns the gradient that the optimizer saw, [n], allocated. Sets *lost to the fraction
 * that the rounding of the moments hides, relative to its norm. */
float *gradient_from_means(
	const struct step_files *s, const struct tensor_step *t, double *lost);

/* Returns the relative rounding of the values: 2^-24 for fp32, more if no value needs all digits
 * of fp32, so that a shorter type was stored. */
double rounding_of(const float *x, int64_t n);
