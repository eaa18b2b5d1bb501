/*
 * step_files: two checkpoints of one step, with AdamW's moments. The gradient that the optimizer saw follows from
 * them: exp_avg is a mean whose last addend is (1 - beta1) times the clipped gradient (Kingma, Ba 2015).
 * Functions that return int return 0, or -1 with *e set.
 */
#pragma once

#include "foreign/foreign.h"

struct lora;

/* What the optimizer was configured with; below 0: not known. */
struct adam {
	double beta1, beta2, eps, decay, clip, lr;
};

struct step_files {
	struct ckpt_view before, after;
	int n_open;
	struct adam adam;
	int64_t n_tensors;
	int m0, v0, m1, v1; /* groups of the moments; -1: zeros */
	double step;	    /* of the optimizer, that led to `after` */
	double from;	    /* and to `before`; -1: not known */
	/* The files are of one step, of two runs: `before` is the first one's. */
	bool two_runs;
	bool no_after; /* `after` is the file of `before` again, and its moments are not used */
};

/* Are the files of one run, before and after a step, or of one step of two runs? ONE_OR_TWO: of two if both have
 * the same step. */
enum whose_files { ONE_RUN, TWO_RUNS, ONE_OR_TWO_RUNS };
/* after: NULL if there is none. lora: of files of adapters; else NULL. `asked`: what the user says of the optimizer goes before what the files say. */
int step_files_open(struct step_files *s, const char *before, const char *after,
	const struct open_how *how, const struct adam *asked, enum whose_files whose,
	const struct lora *lora, struct err *e);
void step_files_close(struct step_files *s);
bool step_files_have_moments(const struct step_files *s);
int64_t step_files_size(const struct step_files *s, int tensor);

/* A tensor in both files, in fp32; NULL: not there, or not asked for. */
enum { STEP_PARAMETERS = 1, STEP_MEANS = 2, STEP_SQUARES = 4, STEP_ALL = 7 };
struct tensor_step {
	int64_t n;
	float *p0, *p1, *m0, *m1, *v0, *v1;
};
int tensor_step_read(struct tensor_step *t, const struct step_files *s, int tensor,
	unsigned what, struct err *e);
void tensor_step_free(struct tensor_step *t);

/* The gradient that the optimizer saw, [n], allocated, and the part of it that is lost to the rounding of the
 * moments, relative to its norm. */
float *seen_gradient(
	const struct step_files *s, const struct tensor_step *t, double *lost);

/* 2^-24 for fp32; more if no number needs the precision of fp32, for then they were rounded. */
double rounding_of(const float *x, int64_t n);
