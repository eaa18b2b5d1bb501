/*
 * causes: what may explain wrong gradients, each a function of the table cmd/check/causes.h. Here is what the files of
 * this directory share: functions by name, numbers that are solved for, and weights of single targets.
 */
#pragma once

#include "check/search.h"

#include "stats/stats.h"

/* ---- solved.c: a number that gradients depend on smoothly -------------------------------- */

/* Computes the gradients with the number x of all tensors, or of the tensors of the screen.
 * With 0 they are the reference gradients. */
typedef void gradients_with(const struct cause_search *s, const void *with, double x,
	bool all, struct gradients *g);
/* Returns the number that explains the wrong tensors, or 0 if none does. `first`: where the search
 * begins. */
double solve_number(const struct cause_search *s, gradients_with *compute,
	const void *with, double first);

/* ---- tensor_causes.c -------------------------------------------------------------------- */

/* Returns whether a tensor has a gradient that is more than rounding. */
bool has_gradient(const struct step_check *c, int i);

/* ---- step_causes.c, function_causes.c: other functions ---------------------------------- */

/* Fits the wrong tensors by least squares as sums of n gradients, over the tensors that all n
 * have. Returns false if the gradients depend on each other. */
bool fit(const struct cause_search *s, const struct gradients *of, int n, double *x);
/* A function that a bug may have made. */
struct guess {
	struct variant v;
	const char *text;
	bool applies;
};
/* Returns whether the gradients of a guess come nearer than *nearest, and then sets *nearest to
 * their distance. */
bool is_nearer(const struct cause_search *s, const struct guess *t, double *nearest);

/* ---- target_causes.c: weights that single targets have in the loss ---------------------- */

struct target_fit {
	const struct step_check *c;
	int64_t n, *at; /* [n]: sequence * length + position of each target that counts */
	int64_t length; /* positions of a sequence that may have targets: the last may have none */
	double *k,
		*b; /* [n][n], [n]: products of the targets' parts; with what was seen */
	double yy;  /* the square of what was seen */
	double bound; /* upper bound of the relative distance after the fit */
	double *p;    /* [n]: probabilities of the targets */
	double *w;    /* [n]: the solved weights; most are 1 */
};

/* Solves for the weights. False if they do not explain the last block's w2. targets_free() in any
 * case. */
bool targets_init(struct target_fit *t, const struct step_check *c);
void targets_free(struct target_fit *t);
/* Solves a x = b for a positive definite matrix [n][n], which is overwritten. x is b. False: it is
 * not definite. */
bool solve_definite(double *a, double *b, int64_t n);
/* Scales weights [n] so that most are 1. */
void normalize_weights(double *w, int64_t n);
/* Returns the residual of the gradient of the last block's w2 with weights w and the best
 * factor, relative to the gradient. */
double targets_left(const struct target_fit *t, const double *w);

/* target_patterns.c: Sets w[n] to the weights that a bug would give, with numbers from t->w, and
 * *text to what follows "as if". False: t->w is far from this pattern. */
typedef bool target_pattern(
	const struct target_fit *t, double *w, char *text, size_t capacity);
target_pattern by_places, by_means, by_labels, by_label_weights, by_probability,
	by_chunks, by_positions, by_mask, by_any_weights;
