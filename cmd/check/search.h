/*
 * search: for the causes of wrong gradients and updates.
 */
#pragma once

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
	unsigned has;		/* enum cause_needs */
	int tensor;		/* the one that is tried */
	float *change, *update; /* of it; the update is AdamW's, with learning rate 1 */
	const char *rule; /* the variant of AdamW that most updates follow; NULL: AdamW */
	struct err e;	  /* of files that cannot be read */
	char detail[FINDING_TEXT]; /* what an explanation adds to the text of its cause */
};

enum cause_scope {
	TRY_FIRST,   /* on all tensors with a wrong gradient, before each by itself */
	TRY_TENSOR,  /* on each tensor with a wrong gradient, by itself */
	TRY_STEP,    /* on all of these tensors that are left */
	TRY_UPDATES, /* on the updates of all tensors */
	TRY_UPDATE,  /* then on the update of each tensor */
	TRY_REST     /* then on the updates of all tensors again */
};

/* What a cause needs to be tried. */
enum cause_needs {
	IF_REFERENCE = 1,
	IF_NO_REFERENCE = 2,
	IF_SEARCH = 4, /* the step can be computed often enough */
	IF_NO_SEARCH = 8,
	IF_MOST = 16,	 /* most tensors are wrong, */
	IF_FEW = 32,	 /* or not */
	IF_FORWARD = 64, /* the forward pass may be wrong */
	IF_ALSO = 128,	 /* (none: it is tried even if another cause has been found) */
	IF_SURE = 256,	 /* the tensor is none that a few numbers may fit by chance */
	IF_FUNCTION = IF_SEARCH | IF_MOST | IF_FORWARD
};

/* Was a layout given? */
static inline bool has_layout(const struct step_check *c)
{
	const struct check_opts *o = &c->o;
	return o->tp > 1 || o->cp > 1 || o->fsdp > 1 || o->dp > 1;
}

/* May the run have this axis? Where no layout was given, a cause of an axis is a question. */
static inline bool may_have(const struct step_check *c, int64_t degree)
{
	return degree > 1 || !has_layout(c);
}

static inline const char *question(const struct step_check *c)
{
	return has_layout(c) ? "" : "?";
}

/* Returns true if the cause explains what is tried. Sets s->detail if the text needs one. */
typedef bool cause_test(struct cause_search *s);

/* A row of the table. The text has %s where an explanation adds its detail. */
struct cause {
	enum cause_scope scope;
	unsigned needs;
	cause_test *explains;
	const char *text;
	enum finding_kind kind;
};

#define CAUSE(scope, needs, test, ...) cause_test test;
#include "check/causes.h"

static inline const struct tensor *tensor_of(const struct step_check *c, int i)
{
	return &c->weights.m.tensors[c->of[i].in_model];
}

static inline const float *reference_of(const struct step_check *c, int i)
{
	return c->reference.g[c->of[i].in_model];
}

/* ---- causes.c ---------------------------------------------------------------------------- */

void explain(struct cause_search *s, int i, const char *text);
/* Adds what is wrong with the updates. rule: see struct cause_search. */
int find_update_causes(struct step_check *c, const char *rule, struct err *e);

/* Marks in wanted[n_tensors of the model] those without a cause so far; their number. */
int unexplained(const struct cause_search *s, bool *wanted);
/* ---- cmd/causes/tensor_causes.c: a tensor, or some -------------------------------------------------- */

/* Does a cause leave no more than rounding, and much less than there is without it? */
bool within(const struct step_check *c, int i, double residual);
/* A factor as it is shown, no finer than the run's precision tells; and several: "1 2". */
double shown(const struct step_check *c, double f);
void put_factors(
	const struct step_check *c, char *out, size_t room, const double *f, int n);

/* May a few numbers fit this tensor by chance? Within the bounds of bf16: a norm or a bias, where most tensors are
 * wrong, or where it is wrong by little. */
bool may_chance(const struct cause_search *s, int i);

/* Tries two degrees of the layout, and others, as numbers of slices of each dimension of
 * s->tensor. */
bool try_slices(struct cause_search *s, const int64_t degrees[AT_LEAST(2)],
	bool (*explains)(struct cause_search *s, int dim, int n));

/* ---- cmd/causes/step_causes.c: the whole step ------------------------------------------ */

/* Sets s->screen; false: all have a cause. */
bool set_screen(struct cause_search *s);
/* The gradients of a variant, of the tensors of the screen, or all; and how far they are. */
void gradients_of(
	const struct cause_search *s, struct variant v, bool all, struct gradients *g);
double distance_with(const struct cause_search *s, struct variant v, bool all);
/* How near the wrong tensors come to these gradients, after a factor of all: the largest residual of one, compared
 * with its bound. */
double farthest_from(const struct cause_search *s, const struct gradients *g);
/* Sets s->near: a cause explains all wrong tensors within their bounds, and leaves no more than half of what
 * there is without one: in bf16 a function that hardly differs from the model's is near whatever is wrong. */
void need_near(struct cause_search *s);
/* Gradients that are the reference's but for noise? The smallest cosine of a wrong tensor's. */
double least_cosine(const struct cause_search *s);
