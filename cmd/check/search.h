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
	unsigned has;		   /* enum cause_needs */
	int tensor;		   /* the one that is tried */
	char detail[FINDING_TEXT]; /* what an explanation adds to the text of its cause */
};

enum cause_scope {
	TRY_TENSOR, /* tried on each wrong tensor by itself */
	TRY_STEP,   /* tried on all tensors that are left */
};

/* What a cause needs to be tried. */
enum cause_needs {
	IF_REFERENCE = 1,
	IF_NO_REFERENCE = 2,
	IF_SEARCH = 4, /* the step can be computed often enough */
	IF_NO_SEARCH = 8,
	IF_MOST = 16,	/* most tensors are wrong, */
	IF_FEW = 32,	/* or not */
	IF_FORWARD = 64 /* the forward pass may be wrong */
};

/* A row of the table. The text has %s where an explanation adds its detail. */
struct cause {
	enum cause_scope scope;
	unsigned needs;
	bool (*explains)(struct cause_search *s);
	const char *text;
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

/* Marks in wanted[n_tensors of the model] those without a cause so far; their number. */
int unexplained(const struct cause_search *s, bool *wanted);
/* Are norms wrong, all of them, and nothing else? */
bool are_norms(struct cause_search *s);
/* Does a cause leave no more than rounding, and much less than there is without it? */
bool within(const struct step_check *c, int i, double residual);
/* A factor as it is shown, no finer than the run's precision tells; and several: "1 2". */
double shown(const struct step_check *c, double f);
void put_factors(
	const struct step_check *c, char *out, size_t room, const double *f, int n);

/* Tries two degrees of the layout, and others, as numbers of slices of each dimension of
 * s->tensor. */
bool try_slices(struct cause_search *s, const int64_t degrees[AT_LEAST(2)],
	bool (*explains)(struct cause_search *s, int dim, int n));

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
bool by_lost_moments(struct cause_search *s);
/* Weights of the batch's sequences. */
bool by_sequences(struct cause_search *s);
/* Tensor-parallel ranks that do not sum the gradients of activations: each backpropagates its own part. */
bool by_missing_all_reduce(struct cause_search *s);
bool by_smoothing(struct cause_search *s);
bool by_z_loss(struct cause_search *s);
/* Another function than the model's options say. */
bool by_function(struct cause_search *s);
/* A layer that is left out or computed twice, a residual that is missing or detached; with a
 * right forward pass, or if few tensors are wrong, only what the loss does not show. */
bool by_path(struct cause_search *s);
/* Gradients that are the reference's but for noise? The smallest cosine of a wrong tensor's. */
double least_cosine(const struct cause_search *s);

/* ---- solved.c: the whole step, by causes with a number that is solved for --------------- */

bool by_no_window(struct cause_search *s);
bool by_window(struct cause_search *s);
bool by_divided_logits(struct cause_search *s);
bool by_multiplied_logits(struct cause_search *s);
bool by_capped_scores(struct cause_search *s);
bool by_capped_logits(struct cause_search *s);
/* Parameters of before the last update, in all or some slices of the rows. */
bool by_old_parameters(struct cause_search *s);

#endif
