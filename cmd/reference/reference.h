/* reference: loss and gradients of a batch, computed here: in float64 by float64.h, or by
 * the trainer's kernels in fp32 or another precision. Functions return -1 with *e set on
 * failure. */
#pragma once

#include "reference/batch.h"
#include "reference/float64.h"
#include "ckpt/view.h"
#include "model/pass.h"

/* A low-rank adapter (LoRA) of a matrix W [out][in]: W + scale B A. W may be several
 * matrices here that the other program stores as one. */
enum { ADAPTER_PARTS = 3 };
struct adapter {
	int a, b;		 /* indices of its tensors A [rank][in], B [out][rank] */
	int part[ADAPTER_PARTS]; /* indices of the matrices; their rows, in order, are B's rows */
	int n_parts;
	double scale;
};

/* A view's parameters, in memory. With adapters, m.tensors ends with two tensors per
 * adapter, only these have gradients, and the matrices in w are W + scale B A. */
struct weights {
	struct model m;
	float **w; /* [m.n_tensors], whole tensors */
	struct adapter *adapters;
	int n_adapters;
	int64_t padding; /* 1 + token without a gradient of its embedding as an input; 0: none */
	/* The choices that m.c.balance_loss counts, and in how many micro-batches the batch was
	 * divided (0: one). NULL: the losses have no balance loss. */
	const struct choices *counted;
	int64_t micro_batches;
	bool counts_first; /* only the first choice of a token counts */
	bool counts_plain; /* choices by the scores alone count: without bias and groups */
};
static inline int own_tensors(const struct weights *w)
{
	return w->m.n_tensors - 2 * w->n_adapters;
}

/*  */
int weights_read(struct weights *w, const struct ckpt_view *v, struct err *e);
void weights_free(struct weights *w);

/* ---- adapters.c ---- */

/* Adds adapters to a model. Takes ownership of the list and its tensors' values [2n]. */
void weights_add_adapters(struct weights *w, struct adapter *adapters, int n,
	const struct tensor *tensors, float **values);
/* Multiplies the scales of all adapters by a factor, in matrices [tensors] that include them. */
void adapters_rescale(const struct weights *w, double factor, double **values);
/* Marks in needed[tensors] the matrices that wanted[tensors] gradients (NULL: all) depend on. */
void mark_adapted_matrices(const struct weights *w, const bool *wanted, bool *needed);
/* Replaces the gradients of matrices by their adapters', with scales multiplied by a factor. */
void adapt_gradients(
	const struct weights *w, const bool *wanted, double factor, double **sums);

/* ---- balance.c ---- */

/* Returns true if the gradients have a balance loss of the experts. */
bool has_balance_loss(const struct weights *w);
/* Returns [layer][expert]: how the balance loss changes with the score of a position of a sequence;
 * for free(). */
double *balance_slopes(
	const struct weights *w, const struct token_batch *b, int64_t sequence);
/* Returns the balance loss of the batch. */
double balance_value(const struct weights *w, const struct token_batch *b);

/* ---- reference.c ---- */

/* Gradients of the mean loss over the targets that count; with weights, of the sum of
 * weight * loss divided by batch_divisor(). */
struct gradients {
	double loss, norm;
	double size; /* sum of |weight * loss| over the divisor */
	int n;
	float **g; /* [n], whole tensors */
};
void gradients_free(struct gradients *g);

/* Computes loss and gradients by the trainer's kernels. */
int reference_trainer(const struct weights *w, const struct token_batch *b,
	enum precision precision, struct gradients *g, struct err *e);
/* Returns true if the trainer's kernels can compute this batch; else sets *why to a sentence. */
bool reference_can_train(
	const struct weights *w, const struct token_batch *b, const char **why);

/* A variant of the float64 computation: another function, positions, mask or targets, as
 * bugs have them, or a part of the gradients. */
struct variant {
	struct function function;
	void (*change)(struct model *m); /* changes options; NULL: none */
	bool other_norm;       /* exchanges RMSNorm and LayerNorm (without biases) */
	const char *zeroed[3]; /* parts of names of tensors that are not used */
	const char *scaled[2]; /* parts of names of tensors, with outputs times `scale` */
	double scale;
	int exchanged[2];   /* two layers that exchange their weights; equal: none */
	double norm_offset; /* added to the weights of norms */
	int shift;	    /* added to positions, up to the last row of their table */
	bool reversed;	    /* positions run backwards */
	bool still;	    /* all positions are 0 */
	bool other_gelu;
	int restart; /* positions restart in each of so many chunks; 0: as in the batch */
	bool one_document, run_on; /* attention, positions continue across documents */
	int unseen; /* number of chunks that attention stays within; 0: as in the batch */
	int before; /* with unseen: number of preceding chunks that attention also sees */
	int64_t window; /* window of all layers, in tokens; 0: as in the model's options */
	enum mask {
		MASK,
		MASK_NONE,	/* attention is not causal */
		MASK_ONE_LATER, /* each position also sees the next one */
		MASK_BORDER, /* the last position of each of mask_chunks chunks sees the next one */
		MASK_NOT_FIRST, /* only the first position sees the first one */
		MASK_CHUNK_BY_CHUNK, /* each of mask_chunks chunks is masked like a position's own */
		MASK_LAST_CHUNK, /* the last of mask_chunks chunks sees all of itself */
		MASK_ALL_CHUNKS, /* each of mask_chunks chunks sees all of itself */
		MASK_NOT_SELF,	 /* no position sees itself */
		MASK_NOT_SELF_BUT_FIRST /* except the first of a document */
	} mask;
	int mask_chunks;
	struct grad_part part;
	int sequence;			/* the only sequence to compute; -1: all */
	const double *weights;		/* [sequences][length], of targets; NULL: all 1 */
	const struct target_rows *rows; /* for all sequences; NULL: none */
	const bool *wanted;	     /* [n_tensors]: compute this gradient; NULL: all */
	double noise;		     /* maximum relative error, random per weight */
	double norm_eps, rope_theta; /* 0: the model's */
	int act;	    /* activation function, ACT_OF_BUG or more; 0: the model's */
	double rope_linear; /* positions are divided by this; 0: the model's scaling */
	double rope_factor; /* rotary scaling of Llama 3.1 by this; 1: none; 0: the model's */
	enum targets {
		TARGETS,
		TARGETS_UNSHIFTED,
		TARGETS_UNSHIFTED_IF_COUNTED, /* where the batch has a target */
		TARGETS_SHIFTED_TWICE,
		TARGETS_UNMASKED,
		TARGETS_MASKED_ARE_ZERO, /* targets that do not count are token 0, not at the end */
		TARGETS_ALL_MASKED_ARE_ZERO, /* at the end, too */
		TARGETS_WITHOUT_LAST,
		TARGETS_WITHOUT_FIRST,
		TARGETS_OF_SECOND_HALF
	} targets;
	bool unweighted; /* all weights are 1 */
	struct choices
		*choices;     /* choices of experts; NULL: neither recorded nor given */
	double adapter_scale; /* multiplies the scales of adapters; 0: 1 */
};
/* Allocates the choices of a batch; the caller frees them. */
void choices_init(struct choices *x, const struct model *m, const struct token_batch *b);
void choices_release(struct choices *x);
/* Computes a variant in float64. With PART_RANKS and EACH_PART, *g is an array [part.n]. */
void reference_float64(const struct weights *w, const struct token_batch *b,
	const struct variant *how, struct gradients *g);
