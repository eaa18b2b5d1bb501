/* For the files of edit/ only: the state of a worker. */
#pragma once

#include "edit/exchange_internal.h"

enum { EDIT_DIGITS = 256 }; /* that threshold.c counts */

/* The groups of the store that edit_add_groups() adds. */
enum {
	EDIT_ANCHOR,
	EDIT_OUTER_MEAN,
	EDIT_OUTER_SQUARE,
	EDIT_RESIDUAL,
	EDIT_PENDING,
	EDIT_STORE_GROUPS
};

/* Norms, weights and clipping are of a group: a unit, or all units of a fragment. */
struct edit_group {
	int fragment;
	struct detector detector; /* for this worker's norms */
	int64_t outer_steps;	  /* updates with at least one contribution */
	int lockouts; /* synchronisations in a row with outliers only; up to EDIT_LOCKOUTS + 1 */
	/* The synchronisation in flight: */
	struct worker_report *report; /* [workers] */
	float *weight;		      /* [workers] */
	double norm;	  /* of this worker's pseudo-gradient, then of the reduced one */
	double scale;	  /* clipping factor */
	bool excluded;	  /* this worker */
	bool contributed; /* at least one worker */
	bool arrived;	  /* has its new parameters */
};

struct edit {
	struct edit_config c;
	struct comm *world, *sync;
	struct store *s;
	struct device *d;
	int n_groups, n_fragments;
	struct edit_group *group; /* [n_groups] */
	bool *in_flight;	  /* [fragments]: between edit_begin() and edit_end() */
	struct block *blocks;	  /* [n_blocks], ordered by fragment, then by group */
	int n_blocks;
	int64_t n_syncs;
	int store_group[EDIT_STORE_GROUPS]; /* -1: not kept */
	/* The store group that holds the pseudo-gradient: it replaces the parameters, or is kept
	 * beside them when training continues during the exchange. */
	int grad_group;
	bool blocking; /* no training during this synchronisation */
	struct exchange exchange;
	struct flight flight; /* the last one */
	/* With by_unit and several pipeline stages, for each unit the ranks of the worker that have
	 * it, which for a tied weight are those of two stages; NULL: not this rank. */
	struct comm **holders;
	bool tied; /* such a weight is in unit 0 */
	/* Device memory: gradients; for each offloaded group of the store, a block of it; sums of
	 * squares [groups]; scalars of the outer optimizer; counts of threshold.c
	 * [tensors][EDIT_DIGITS]. */
	struct arena memory;
	float *staging[EXCHANGE_SLOTS], *buffer[STORE_MAX_GROUPS];
	struct exact *squares;
	struct update *outer;
	int64_t *counts;
};

static inline bool edit_has_anchor(const struct edit *x)
{
	return x->store_group[EDIT_ANCHOR] >= 0;
}

static inline int edit_group_of(const struct edit *x, const struct part *p)
{
	return x->c.by_unit ? p->t->unit : p->t->unit % x->n_fragments;
}

static inline struct mat edit_pseudo_grad(const struct edit *x, const struct part *p)
{
	return mat(p->state[x->grad_group], p->rows, p->cols);
}

/* The groups of a fragment, or (-1) of all: one, or (-1) all. */
struct selection {
	int fragment, group;
};

static inline bool edit_selects(const struct edit *x, struct selection c, int group)
{
	return (c.fragment < 0 || x->group[group].fragment == c.fragment) &&
	       (c.group < 0 || c.group == group);
}

/* Is a part of the pseudo-gradient selected? A frozen one has none, but is visited if that takes the place of
 * the parameters. */
static inline bool edit_takes(
	const struct edit *x, struct selection c, const struct part *p)
{
	return !p->t->frozen && edit_selects(x, c, edit_group_of(x, p));
}

/* The blocks of the selected groups; returns their number. */
int edit_blocks(const struct edit *x, struct selection c, const struct block **first);
/* A block of a group of the store, in memory until store_end(). */
float *edit_block_begin(struct edit *x, int store_group, const struct block *b);

/* ---- pseudo_grad.c: the pseudo-gradient of this worker ------------------------------ */

/* The anchor minus the parameters. */
void pseudo_grad_compute(struct edit *x, struct selection c);
/* Enqueues the sums of squares of the numbers in grad_group, of each selected group. */
void pseudo_grad_squares(struct edit *x, struct selection c);
/* Waits for the device: the groups' norms; returns the norm of all. Collective over the worker; for
 * one unit, over the ranks that have it: to others its norm is 0. */
double pseudo_grad_norms(struct edit *x, struct selection c);
/* Collective over the sync group: weights of all workers from their norms, if there is an anchor. */
void pseudo_grad_weights(struct edit *x, struct selection c, int64_t steps);
/* Sparsifies and compresses, with error feedback. */
void pseudo_grad_compress(struct edit *x, struct selection c);
/* Bytes that a worker sends for the norm of a group. */
int64_t pseudo_grad_report_bytes(const struct edit *x);

/* ---- threshold.c ------------------------------------------------------------------ */

/* Collective over the worker. Keeps a fraction of the elements of each selected tensor: the largest,
 * and all that are as large as the last of them. */
void threshold_tensors(struct edit *x, struct selection c);

/* ---- outer.c: the outer optimizer --------------------------------------------------- */

/* The outer optimizer; without one, SGD with a learning rate of 1. */
struct optim_config outer_config(const struct edit_config *c);
/* Clipping factors of the reduced pseudo-gradient, collective like pseudo_grad_norms(). And its
 * norms, collective over the worker, which are computed late: without clipping, and for units of
 * other pipeline stages. */
void outer_clip(struct edit *x, struct selection c);
void outer_norms(struct edit *x, struct selection c);
/* Applies the reduced pseudo-gradient to the anchor; the parameters become the anchor, or keep a
 * fraction of their own. */
void outer_step(struct edit *x, struct selection c);
