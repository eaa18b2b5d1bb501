/*
 * targets: weights that single targets have in the loss, as solved from a gradient, and the patterns
 * that known bugs make of them.
 */
#pragma once

#include "check/search.h"

#include "stats/stats.h"

struct target_fit {
	const struct step_check *c;
	int64_t n, *at; /* [n]: sequence * length + position of each target that counts */
	int64_t length; /* positions of a sequence that may have targets: the last may have none */
	double *k,
		*b; /* [n][n], [n]: products of the targets' parts; with what was seen */
	double yy;  /* the square of what was seen */
	double bound; /* of the distance that weights may leave, relative to what was seen */
	double *p;    /* [n]: probabilities of the targets */
	double *w;    /* [n]: the solved weights; most are 1 */
};

/* Solves for the weights. False if they do not explain the last block's w2. targets_free() in any
 * case. */
bool targets_init(struct target_fit *t, const struct step_check *c);
void targets_free(struct target_fit *t);
/* Returns what weights w leave of the gradient of the last block's w2, relative to it, with the
 * factor that suits best. */
double targets_left(const struct target_fit *t, const double *w);

/* target_patterns.c: Sets w[n] to the weights that a bug would give, with numbers from t->w, and
 * *text to what follows "as if". False: t->w is far from this pattern. */
typedef bool target_pattern(
	const struct target_fit *t, double *w, char *text, size_t capacity);
target_pattern by_places, by_means, by_labels, by_label_weights, by_probability,
	by_positions, by_mask, by_any_weights;
