/*
 * causes: tests of what may explain wrong gradients, one function per row of the table
 * cmd/check/causes.h. This header has what the files of this directory share: functions by name,
 * numbers that are solved for, and weights of single targets.
 */
#pragma once

#include "check/search.h"

#include "stats/stats.h"

/* ---- solved.c: a number that gradients depend on smoothly -------------------------------- */

/* Computes the gradients that the number x leads to, of all tensors or of s->screen. With x = 0
 * they are the reference gradients. context: what solve_number() was given. */
typedef void compute_with_number(const struct cause_search *s, const void *context,
	double x, bool is_full, struct gradients *g);
/* Returns the number that explains the wrong tensors; 0: none. The search begins at `first`. */
double solve_number(const struct cause_search *s, compute_with_number *compute,
	const void *context, double first);

/* ---- tensor_causes.c -------------------------------------------------------------------- */

/* Returns true if a tensor's gradient is more than rounding. */
bool has_gradient(const struct step_check *c, int i);

/* ---- step_causes.c, function_causes.c: other functions ---------------------------------- */

/* Solves by least squares for factors x[n] so that x[0] g[0] + ... is near the wrong tensors, over
 * the tensors that all g have. Returns false if the gradients depend on each other. */
bool solve_factors(
	const struct cause_search *s, const struct gradients *g, int n, double *x);
/* A bug that may explain the gradients. */
struct guess {
	struct variant v; /* the model with the bug */
	const char *text; /* description, after "as if" */
	bool applies;	  /* the model may have the bug */
};
/* Returns true if a guess explains the gradients at least as well as *nearest, and lowers *nearest.
 * A guess with a cheap estimate above twice *nearest is not tried. */
bool try_guess(const struct cause_search *s, const struct guess *t, double *nearest);

/* ---- target_causes.c: weights that single targets have in the loss ---------------------- */

struct target_fit {
	const struct step_check *c;
	int64_t n,
		*position; /* [n]: sequence * length + position of each counted target */
	int64_t length; /* positions of a sequence that may have targets: the last may have none */
	double *k;    /* [n][n]: dot products of the targets' parts of the gradient */
	double *b;    /* [n]: dot products of the parts and the checked gradient */
	double yy;    /* squared norm of the checked gradient */
	double bound; /* upper bound of the relative distance after the fit */
	double *p;    /* [n]: probabilities of the targets */
	double *w;    /* [n]: solved weights; most are 1 */
};

/* Solves for the weights. Returns false if they do not explain the last block's w2; the caller
 * calls target_fit_release() in any case. */
bool target_fit_init(struct target_fit *t, const struct step_check *c);
void target_fit_release(struct target_fit *t);
/* Solves a x = b for a positive definite matrix [n][n], which is overwritten, and sets b to x.
 * Returns false if a is not positive definite. */
bool solve_definite(double *a, double *b, int64_t n);
/* Scales weights [n] so that most are 1. */
void normalize_weights(double *w, int64_t n);
/* Returns the relative residual of the last block's w2 with weights w and the best factor. */
double target_residual(const struct target_fit *t, const double *w);

/* target_patterns.c: Sets w[n] to the weights that a bug would give, with values from t->w, and
 * text to what follows "as if". Returns false if t->w does not have this pattern. */
typedef bool target_pattern(
	const struct target_fit *t, double *w, char *text, size_t capacity);
target_pattern by_places, by_means, by_labels, by_label_weights, by_probability,
	by_chunks, by_positions, by_mask, by_any_weights;
