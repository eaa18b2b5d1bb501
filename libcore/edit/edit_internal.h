/* For the files of edit/ only: the state of a worker. */
#pragma once

#include "edit/exchange_internal.h"

enum { EDIT_DIGITS = 256 }; /* digit values that threshold.c counts */

/* The groups of the store that edit_add_groups() adds. */
enum {
	EDIT_ANCHOR,
	EDIT_OUTER_MEAN,
	EDIT_OUTER_SQUARE,
	EDIT_RESIDUAL,
	EDIT_PENDING,
	EDIT_STORE_GROUPS
};

/* A group has a norm, weights and a clipping factor. It is a unit, or all units of a fragment. */
struct edit_group {
	int fragment;
	struct detector detector; /* for this worker's norms */
	int64_t outer_steps;	  /* updates with at least one contribution */
	int lockouts; /* synchronizations in a row with only outliers; up to EDIT_LOCKOUTS + 1 */
	/* The synchronization in flight: */
	struct worker_report *report; /* [workers] */
	float *weight;		      /* [workers] */
	double norm;   /* norm of this worker's, later of the reduced pseudo-gradient */
	double scale;  /* clipping factor */
	bool excluded; /* this worker is excluded */
	bool contributed; /* at least one worker contributes */
	bool arrived;	  /* the group has its new parameters */
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
	 * in addition when training continues during the exchange. */
	int grad_group;
	bool blocking; /* no training during this synchronization */
	struct exchange exchange;
	struct flight flight; /* the last reduction over the workers */
	/* [units], with by_unit and several pipeline stages: the ranks of the worker that have
	 * the unit; for a tied weight, the ranks of two stages. NULL: not this rank. */
	struct comm **holders;
	bool tied; /* unit 0 has a tied weight */
	/* Device memory: gradients; a block per offloaded store group; sums of squares [groups];
	 * scalars of the outer optimizer; counts of threshold.c [tensors][EDIT_DIGITS]. */
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

static inline int part_group(const struct edit *x, const struct part *p)
{
	return x->c.by_unit ? p->t->unit : p->t->unit % x->n_fragments;
}

static inline struct mat edit_pseudo_grad(const struct edit *x, const struct part *p)
{
	return mat(p->state[x->grad_group], p->rows, p->cols);
}

/* Selects groups by fragment (-1: all fragments) and number (-1: all groups). */
struct selection {
	int fragment, group;
};

static inline bool edit_selects(const struct edit *x, struct selection sel, int group)
{
	return (sel.fragment < 0 || x->group[group].fragment == sel.fragment) &&
	       (sel.group < 0 || sel.group == group);
}

/* Returns true if a part of the pseudo-gradient is selected. Frozen tensors have none, but are
 * visited if the pseudo-gradient replaces the parameters. */
static inline bool edit_includes(
	const struct edit *x, struct selection sel, const struct part *p)
{
	return !p->t->frozen && edit_selects(x, sel, part_group(x, p));
}

/* Sets *first to the blocks of the selected groups; returns their number. */
int edit_blocks(const struct edit *x, struct selection sel, const struct block **first);
/* Returns a block of a group of the store, in memory until store_end(). */
float *edit_block_begin(struct edit *x, int store_group, const struct block *b);

/* ---- pseudo_grad.c: the pseudo-gradient of this worker ------------------------------ */

/* Writes the anchor minus the parameters to grad_group; STORE_PARAM: replaces the parameters. */
void pseudo_grad_compute(struct edit *x, struct selection sel);
/* Enqueues the sum of squares of the elements in grad_group, for each selected group. */
void pseudo_grad_squares(struct edit *x, struct selection sel);
/* Waits for the device, sets the groups' norms, and returns the norm over all. Collective over
 * the worker; for one unit, over the ranks that have it: on other ranks its norm is 0. */
double pseudo_grad_norms(struct edit *x, struct selection sel);
/* Collective over the sync group. Exchanges the workers' reports, and computes their weights. */
void pseudo_grad_weights(struct edit *x, struct selection sel, int64_t steps);
/* Sparsifies and rounds the pseudo-gradient, with error feedback. */
void pseudo_grad_compress(struct edit *x, struct selection sel);
/* Returns the bytes that a worker sends for its report on a group. */
int64_t pseudo_grad_report_bytes(const struct edit *x);

/* ---- threshold.c ------------------------------------------------------------------ */

/* Zeroes all except a fraction of the elements of each selected tensor: keeps the largest by
 * magnitude, and all ties with the smallest of them. Collective over the worker. */
void threshold_tensors(struct edit *x, struct selection sel);

/* ---- outer.c: the outer optimizer --------------------------------------------------- */

/* Returns the outer optimizer; without one, SGD with a learning rate of 1. */
struct optim_config outer_config(const struct edit_config *c);
/* outer_clip() computes clipping factors of the reduced pseudo-gradient, collective like
 * pseudo_grad_norms(). outer_norms() computes its norms, collective over the worker, if they
 * are not known yet: without clipping, and for units of other pipeline stages. */
void outer_clip(struct edit *x, struct selection sel);
void outer_norms(struct edit *x, struct selection sel);
/* Applies the reduced pseudo-gradient to the anchor, and mixes the anchor into the parameters. */
void outer_step(struct edit *x, struct selection sel);
