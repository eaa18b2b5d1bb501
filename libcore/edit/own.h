/* Shared by edit.c, brought.c and outer.c only: a worker among others. */
#ifndef EDIT_OWN_H
#define EDIT_OWN_H

#include "edit/exchange.h"

enum { EDIT_ROOMS = 5 }; /* parameter, anchor, two moments, what is pending */

struct edit {
	struct edit_config c;
	struct comm *world, *sync;
	struct store *s;
	struct device *d;
	/* Norms, weights and clipping are of groups: units, or all units of a fragment. Blocks
	 * come by fragments, within them by groups. */
	int n_groups, n_fragments;
	int *fragment;	      /* [groups], where it belongs */
	struct block *blocks; /* [n_blocks] */
	int n_blocks;
	struct detector *detector; /* [groups] of this worker */
	int64_t n_syncs;
	int64_t *outer_steps; /* [groups], of those that somebody brought something for */
	/* Where pseudo-gradients are: in place of the parameters; or, where these are trained
	 * on meanwhile, beside them. */
	int at;
	/* Groups of the store, -1 for those that are not kept. */
	struct edit_groups {
		int anchor, outer_mean, outer_square, residual;
	} group;
	/* of the synchronisation that is under way: [groups], and [groups][workers] */
	double *norm, *all_norms;
	bool *all_out;
	int64_t *all_steps; /* [workers] */
	float *weight;
	double *scale, *reduced; /* [groups]: clipping, and the norm before it */
	bool *brought;		 /* [groups]: by somebody */
	bool *has_come;		 /* [groups]: it has its new parameters */
	bool *begun;		 /* [fragments], and not ended */
	bool at_once;		 /* nothing was trained meanwhile */
	struct exchange exchange;
	struct flight flight; /* the last one */
	/* Memory of the device: for blocks, of gradients, or of what comes from files; [groups],
	 * sums of squares; and what the outer optimizer is told. */
	struct arena memory;
	float *there[EXCHANGE_SLOTS], *room[EDIT_ROOMS];
	struct exact *squares;
	struct update *outer;
};

static inline bool edit_has_anchor(const struct edit *x)
{
	return x->group.anchor >= 0;
}

static inline int edit_group_of(const struct edit *x, const struct part *p)
{
	return x->c.by_unit ? p->t->unit : p->t->unit % x->n_fragments;
}

/* Some of the groups: of a fragment, and of these one or (-1) all. */
struct chosen {
	int fragment, group;
};

static inline bool edit_is_chosen(const struct edit *x, struct chosen c, int group)
{
	return x->fragment[group] == c.fragment && (c.group < 0 || c.group == group);
}

/* The blocks of chosen groups; returns how many. */
int edit_blocks(const struct edit *x, struct chosen c, const struct block **first);

/* ---- brought.c: what a worker brings ---------------------------------------------- */

/* Its pseudo-gradient: the anchor minus the parameters. */
void brought_take(struct edit *x, struct chosen c);
/* Of what is at x->at, squares are added up; collective over the worker, and waiting for the
 * device: norm[groups] of them. Returns that of all of them. */
void brought_square(struct edit *x, struct chosen c);
double brought_norms(struct edit *x, struct chosen c, double *norm);
/* Collective over sync, from the norms: who takes part, with what weight. */
void brought_weigh(struct edit *x, struct chosen c, int64_t steps);
/* Makes of it what goes to the others. */
void brought_round(struct edit *x, struct chosen c);
int64_t brought_words(const struct edit *x); /* bytes of a worker's say on a group */

/* ---- outer.c: what all do with it -------------------------------------------------- */

/* The outer optimizer; without one, SGD with a learning rate of 1. */
struct optim_config outer_config(const struct edit_config *c);
/* Collective over the worker, each. How long what was made of all may be, and was: where
 * nothing is clipped that is only known after outer_norms(). */
void outer_clip(struct edit *x, struct chosen c);
void outer_norms(struct edit *x, struct chosen c);
/* The pseudo-gradient that was made of all moves the anchor. The parameters become that, or
 * keep some of their own. */
void outer_step(struct edit *x, struct chosen c);

#endif
