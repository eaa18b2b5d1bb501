/*
 * reference: loss and gradients of a batch, computed here: in float64 by float64.h, or by the trainer's
 * kernels on this process in fp32 or another precision. -1 with *e set on failure.
 */
#pragma once

#include "reference/batch.h"
#include "reference/float64.h"
#include "ckpt/view.h"
#include "model/pass.h"

/* A low-rank adapter (LoRA) of a matrix W [out][in], or of several that the other program has as one:
 * W + scale B A. */
enum { ADAPTER_PARTS = 3 };
struct adapter {
	int a, b;		 /* its tensors: A [rank][in], B [out][rank] */
	int part[ADAPTER_PARTS]; /* the matrices; their rows are the rows of B, in this order */
	int n_parts;
	double scale;
};

/* The parameters of a view, in memory. With adapters, two tensors of each are at the end of m.tensors, only these have
 * gradients, and the matrices in w are W + scale B A. */
struct weights {
	struct model m;
	float **w; /* [m.n_tensors], whole tensors */
	struct adapter *adapters;
	int n_adapters;
	int64_t padding; /* 1 + the token whose embedding has no gradient as an input; 0: none */
};
static inline int own_tensors(const struct weights *w)
{
	return w->m.n_tensors - 2 * w->n_adapters;
}

int weights_read(struct weights *w, const struct ckpt_view *v, struct err *e);
void weights_free(struct weights *w);

/* ---- adapters.c ---- */

/* Adds adapters to a model; takes the list and the values of their tensors [2n]. */
void weights_adapt(struct weights *w, struct adapter *adapters, int n,
	const struct tensor *tensors, float **values);
/* Multiplies the scales of all adapters by a number, in matrices [tensors] that have them. */
void adapters_rescale(const struct weights *w, double by, double **values);
/* Sets own[i] for the matrices from whose gradients the wanted ones follow; wanted: [tensors], NULL: all. */
void adapters_want(const struct weights *w, const bool *wanted, bool *own);
/* Replaces the gradients of the matrices by those of the adapters, whose scales are multiplied by a number. */
void adapters_gradients(
	const struct weights *w, const bool *wanted, double by, double **sums);

/* ---- reference.c ---- */

/* Gradients of the mean loss over the targets that count; with weights, of the sum of weight times loss, divided by
 * batch_divisor(). */
struct gradients {
	double loss, norm;
	double size; /* the loss without the signs of weights and losses */
	int n;
	float **g; /* [n], whole tensors */
};
void gradients_free(struct gradients *g);

/* By the trainer's kernels. */
int reference_trainer(const struct weights *w, const struct token_batch *b,
	enum precision precision, struct gradients *g, struct err *e);
/* Can the trainer's kernels compute this batch? If not, *why is a sentence. */
bool reference_can_train(
	const struct weights *w, const struct token_batch *b, const char **why);

/* In float64. `how` may ask for another function, other positions or targets (the inputs; the tokens after the
 * next; those that do not count, too; all but a sequence's last, or first; its second half), and a part of the gradients. */
struct variant {
	struct function function;
	void (*change)(struct model *m); /* of options; NULL: none */
	bool other_norm; /* LayerNorm without biases in place of RMSNorm, or the other way round */
	const char *zeroed[3]; /* tensors whose names contain one of these are not used */
	const char *scaled
		[2]; /* what tensors whose names contain one of these add is multiplied, */
	double scale;	    /* by this */
	int exchanged[2];   /* layers that have each other's weights; equal: none */
	double norm_offset; /* is added to the weights of norms */
	int shift;	    /* is added to positions, up to the last row of their table */
	bool reversed;	    /* positions run backwards */
	bool still;	    /* all positions are 0 */
	bool other_gelu;
	int restart; /* positions begin again in each of so many chunks; 0: as in the batch */
	bool one_document,
		run_on; /* attention sees all documents; positions do not begin again */
	int unseen;	/* attention stays within each of so many chunks, but for */
	int before;	/* so many before; 0: as in the batch */
	int64_t window; /* so many tokens are seen in all layers; 0: as the model's options say */
	enum mask {
		MASK,
		MASK_NONE,	/* attention is not causal */
		MASK_ONE_LATER, /* all see the token after them, too; */
		MASK_BORDER,	/* the last one of each of mask_chunks chunks does */
		MASK_NOT_FIRST, /* only the first token of a sequence sees this token */
		MASK_CHUNK_BY_CHUNK, /* of each of mask_chunks chunks one sees as many tokens as of its own */
		MASK_LAST_CHUNK, /* the last of mask_chunks chunks sees all of itself, */
		MASK_ALL_CHUNKS, /* or each chunk does */
		MASK_NOT_SELF,	 /* no token sees itself, */
		MASK_NOT_SELF_BUT_FIRST /* but the first of a document does */
	} mask;
	int mask_chunks;
	struct grad_part part;
	int sequence;			/* only this one; -1: all */
	const double *weights;		/* [sequences][length], of the targets; NULL: 1 */
	const struct target_rows *rows; /* of all sequences; NULL: none */
	const bool *wanted; /* [n_tensors], whose gradients are computed; NULL: all */
	double noise;	    /* each weight has a random relative error up to this */
	double norm_eps, rope_theta; /* 0: the model's */
	int act; /* an activation function of ACT_OF_BUG and more; 0: the model's */
	double rope_linear; /* positions are divided by this; 0: as the model's */
	double rope_factor; /* rotations as Llama 3.1 scales them by it; 1: not scaled; 0: the model's */
	enum targets {
		TARGETS,
		TARGETS_UNSHIFTED,
		TARGETS_UNSHIFTED_IF_COUNTED, /* where the batch has a target */
		TARGETS_SHIFTED_TWICE,
		TARGETS_UNMASKED,
		TARGETS_MASKED_ARE_ZERO, /* those that do not count are token 0, except at the end, */
		TARGETS_ALL_MASKED_ARE_ZERO, /* or at the end, too */
		TARGETS_WITHOUT_LAST,
		TARGETS_WITHOUT_FIRST,
		TARGETS_OF_SECOND_HALF
	} targets;
	bool unweighted;      /* all weights are 1 */
	double adapter_scale; /* the scales of adapters are so many times theirs; 0: once */
};
/* With PART_RANKS and EACH_PART *g is an array [part.n]. */
void reference_float64(const struct weights *w, const struct token_batch *b,
	const struct variant *how, struct gradients *g);
