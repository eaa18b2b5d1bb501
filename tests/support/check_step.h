/*
 * check_step: made-up steps for tests of pt-check: a small model, a batch, its gradients, and the checkpoints of a
 * step of AdamW with gradients that a test has made wrong. Failures end the test.
 */
#pragma once

#include "check/check.h"

#define LLAMA                                                                                     \
	"arch = llama\nlayers = 2\nheads = 4\nkv-heads = 2\ndim = 32\nffn-dim = 48\nvocab = 60\n" \
	"vocab-multiple = 1\ncontext = 16\n"
#define GPT2_OF(context)                                                           \
	"arch = gpt2\nlayers = 2\nheads = 4\ndim = 32\nffn-dim = 64\nvocab = 60\n" \
	"vocab-multiple = 1\ndropout = 0\ncontext = " context "\n"
#define GPT2 GPT2_OF("16")

enum { SEQUENCES = 4, LENGTH = 16, VOCAB = 60 };
enum { MODEL, EXP_AVG, EXP_AVG_SQ, GROUPS };

/* Two checkpoints that are arrays: [before, after][group][tensor]. */
struct step {
	const char *config;
	struct weights w;
	struct token_batch batch;
	const char *batch_file;
	struct gradients g; /* what the optimizer is given, before clipping */
	struct adam adam;
	double grad_norm; /* of the clipping; 0: of g */
	bool warm, uncorrected;
	bool no_batch;		   /* for step_expect(), */
	const struct strs *freeze; /* and --freeze; NULL: none */
	float **of[2][GROUPS];
	int n_groups[2];
};

/* A model with arbitrary weights, a batch, and its gradients. */
void step_begin(struct step *s, const char *config);
void step_end(struct step *s);
/* Masks the last 5 targets of the first sequence and 4 of the third; the gradients stay. */
void step_mask(struct step *s);
/* The checkpoints of the step with the gradients s->g. */
void step_train(struct step *s);
double step_norm(const struct step *s); /* of s->g */
/* The moments before a warm step, of element j of tensor i: exp_avg, exp_avg_sq. */
void step_moments(int i, int64_t j, float *m, float *v);
/* A file of the step; returns its path. */
const char *step_file(struct step *s, int file);
/* Checks the step, and that what is found contains the text; NULL: that nothing is. */
void step_expect(struct step *s, const struct check_opts *o, const char *text);
extern const struct check_opts plain_check;
int step_tensor(const struct step *s, const char *name);
/* The gradient of a tensor times a factor. */
void step_scale(struct step *s, const char *name, double by);
