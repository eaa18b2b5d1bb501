/* check_step: made-up steps for tests of pt-check: a small model, a batch, its gradients, and two
 * checkpoints of an AdamW step, with gradients that a test may spoil. A failure ends the test. */
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

/* Two checkpoints as arrays: [before, after][group][tensor]. */
struct step {
	const char *config;
	struct weights w;
	struct token_batch batch;
	const char *batch_file;
	struct gradients g; /* input of the optimizer, before clipping */
	struct adam adam;
	double grad_norm; /* norm that clipping uses; 0: g's */
	bool warm, uncorrected;
	bool no_batch;		   /* for step_expect() */
	const struct strs *freeze; /* for step_expect(): --freeze; NULL: none */
	float **of[2][GROUPS];
	int n_groups[2];
};

/* Sets up a model with arbitrary weights, a batch, and its gradients. */
void step_begin(struct step *s, const char *config);
void step_end(struct step *s);
/* Masks the last 5 targets of sequence 0 and 4 of sequence 2. The gradients stay the same. */
void step_mask(struct step *s);
/* Computes the checkpoints of the step from the gradients s->g. */
void step_train(struct step *s);
double step_norm(const struct step *s); /* norm of s->g */
/* Sets exp_avg and exp_avg_sq of element j of tensor i before a warm step. */
void step_moments(int i, int64_t j, float *m, float *v);
/* Writes a checkpoint of the step. Returns its path. */
const char *step_file(struct step *s, int file);
/* Checks the step. Expects the text in the output; NULL: expects no finding. */
void step_expect(struct step *s, const struct check_opts *o, const char *text);
extern const struct check_opts plain_check;
int step_tensor(const struct step *s, const char *name);
/* Multiplies a tensor's gradient by a factor. */
void step_scale(struct step *s, const char *name, double by);
