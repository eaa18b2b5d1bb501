/*
 * search: for the causes of wrong gradients. A cause is named only if it leaves no more than rounding does.
 */
#ifndef CHECK_SEARCH_H
#define CHECK_SEARCH_H

#include "check/check.h"

enum { MAX_PARTS = 64 };

struct cause_search {
	struct step_check *c;
	int *wrong, n_wrong; /* tensors, in the order of the backward pass */
	double near; /* as near must gradients come to explain all of them; see farthest_from() */
	/* [tensors of the model]: the last layer's of those that are wrong and without a cause, whose gradients take
	 * the least time: what is far from these explains nothing. */
	bool *screen;
	bool forward_right; /* the output layer's gradient is, which all of the forward pass makes */
};

static inline const struct tensor *tensor_of(const struct step_check *c, int i)
{
	return &c->weights.m.tensors[c->of[i].in_model];
}

static inline const float *reference_of(const struct step_check *c, int i)
{
	return c->reference.g[c->of[i].in_model];
}

/* ---- causes.c: a tensor, or some ------------------------------------------------------- */

/* A cause of one tensor; of all that have none so far. */
void explain(struct cause_search *s, int i, const char *text);
void explain_all(struct cause_search *s, const char *text);
/* Marks in wanted[n_tensors of the model] those without a cause so far; their number. */
int unexplained(const struct cause_search *s, bool *wanted);
/* Are norms wrong, all of them, and nothing else? */
bool are_norms(const struct cause_search *s);
/* Does a cause leave no more than rounding, and much less than there is without it? */
bool within(const struct step_check *c, int i, double residual);
/* A factor as it is shown, no finer than the run's precision tells; and several: "1 2". */
double shown(const struct step_check *c, double f);
void put_factors(
	const struct step_check *c, char *out, size_t room, const double *f, int n);

/* Least squares. Adds the products of n elements of the parts with each other, to a[k][k], and with y, to b[k]. */
void add_products(double *a, double *b, const float *const *parts, int k, const float *y,
	int64_t n);
/* Solves a x = b for a symmetric matrix [n][n], which is overwritten; x is b. False: the parts depend on each
 * other. */
bool solve(double *a, double *b, int n);
/* |y - sum of x[i] parts[i]| / |y| */
double distance_of(
	const float *const *parts, const double *x, int k, const float *y, int64_t n);
/* Are the weights about the same, so that the parts explain nothing? */
bool are_equal(const double *x, int n, double within);

/* ---- step_causes.c: the whole step ----------------------------------------------------- */

/* Sets s->screen; false: all have a cause. */
bool set_screen(struct cause_search *s);
/* The gradients of a variant, of the tensors of the screen, or all; and how far they are. */
void gradients_of(
	const struct cause_search *s, struct variant v, bool all, struct gradients *g);
double distance_with(const struct cause_search *s, struct variant v, bool all);
/* How near the wrong tensors come to these gradients, after a factor of all: the largest residual of one, compared
 * with its bound. */
double farthest_from(const struct cause_search *s, const struct gradients *g);
/* Least squares of all wrong tensors that n gradients have, on these; false: these depend on each other. */
bool fit(const struct cause_search *s, const struct gradients *of, int n, double *x);
/* Sets s->near: a cause explains all wrong tensors within their bounds, and leaves no more than half of what
 * there is without one: in bf16 a function that hardly differs from the model's is near whatever is wrong. */
void need_near(struct cause_search *s);
void by_lost_moments(struct cause_search *s);
/* Weights of the batch's sequences. */
void by_sequences(struct cause_search *s);
/* Tensor-parallel ranks that do not sum the gradients of activations: each backpropagates its own part. */
void by_missing_all_reduce(struct cause_search *s);
/* Labels that are smoothed, or z-loss. */
void by_loss(struct cause_search *s);
/* Another function than the model's options say. */
void by_function(struct cause_search *s);
/* A layer that is left out or computed twice, a residual that is missing or detached; without `forward` only what the
 * loss does not show. */
void by_path(struct cause_search *s, bool forward);
/* Gradients that are the reference's but for noise? The smallest cosine of a wrong tensor's. */
double least_cosine(const struct cause_search *s);

/* ---- solved.c: the whole step, by causes with a number that is solved for --------------- */

void by_window(struct cause_search *s);
/* Soft caps of scores and logits; logits that are divided or multiplied. */
void by_cap(struct cause_search *s);
/* Parameters of before the last update, in all or some slices of the rows. */
void by_old_parameters(struct cause_search *s);

#endif
