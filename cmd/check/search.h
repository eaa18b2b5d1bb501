/* search: the search for causes of wrong gradients and updates. */
#pragma once

#include "check/check.h"

enum { MAX_PARTS = 64 };

struct cause_search {
	struct step_check *c;
	int *wrong, n_wrong; /* indices of tensors, in backward order */
	double near; /* maximum of largest_residual() at which a cause explains all wrong tensors */
	/* [tensors of the model]: the unexplained tensors in the last layer that has any. Their
	 * gradients are the cheapest; a cause that is far from these explains nothing. */
	bool *screen;
	bool forward_right; /* the output layer's gradient is right, and so is the whole forward pass */
	unsigned has; /* conditions that this step meets, enum cause_needs */
	int tensor;   /* index of the tensor that is tried */
	float *change,
		*update;  /* parameters before minus after; AdamW's at learning rate 1 */
	const char *rule; /* variant of AdamW that most updates follow; NULL: AdamW */
	struct err e;	  /* from files that cannot be read */
	char detail[FINDING_TEXT]; /* replaces %s in the text of the cause */
};

enum cause_scope {
	TRY_FIRST,   /* all tensors with a wrong gradient, before each by itself */
	TRY_TENSOR,  /* each tensor with a wrong gradient, by itself */
	TRY_STEP,    /* all wrong tensors that still have no cause */
	TRY_UPDATES, /* the updates of all tensors */
	TRY_UPDATE,  /* then the update of each tensor */
	TRY_REST     /* then the updates of all tensors again */
};

/* Conditions under which a cause is tried. */
enum cause_needs {
	IF_REFERENCE = 1,
	IF_NO_REFERENCE = 2,
	IF_SEARCH = 4, /* the step can be computed many times */
	IF_NO_SEARCH = 8,
	IF_MOST = 16,	   /* most tensors are wrong */
	IF_FEW = 32,	   /* most are not */
	IF_FORWARD = 64,   /* the forward pass may be wrong */
	IF_ALSO = 128,	   /* (no condition: tried even after another cause was found) */
	IF_SURE = 256,	   /* the tensor has too many elements to fit by chance */
	IF_NO_CAUSE = 512, /* (no condition: the text names no known cause) */
	IF_FUNCTION = IF_SEARCH | IF_MOST | IF_FORWARD
};

/* Returns true if the user gave a layout. */
static inline bool has_layout(const struct step_check *c)
{
	const struct check_opts *o = &c->o;
	return o->tp > 1 || o->cp > 1 || o->fsdp > 1 || o->dp > 1;
}

/* Returns true if an axis with this degree may exist. If no layout is known, any axis may. */
static inline bool may_have(const struct step_check *c, int64_t degree)
{
	return degree > 1 || !has_layout(c);
}

/* Returns "?" for the texts of causes if the layout is unknown, else "". */
static inline const char *layout_mark(const struct step_check *c)
{
	return has_layout(c) ? "" : "?";
}

/* Returns true if the cause explains s->tensor, or all that is wrong. Sets s->detail for %s. */
typedef bool cause_test(struct cause_search *s);

/* A row of the table. %s in the text stands for the detail. */
struct cause {
	enum cause_scope scope;
	unsigned needs;
	cause_test *explains;
	const char *text;
	enum finding_kind kind;
};

#define CAUSE(scope, needs, test, ...) cause_test test;
#include "check/causes.h"

static inline const struct tensor *model_tensor(const struct step_check *c, int i)
{
	return &c->weights.m.tensors[c->tensors[i].in_model];
}

static inline const float *reference_of(const struct step_check *c, int i)
{
	return c->reference.g[c->tensors[i].in_model];
}

/* ---- causes.c ---------------------------------------------------------------------------- */

void set_cause(struct cause_search *s, int i, const char *text);
/* Adds findings about wrong updates. rule: see struct cause_search. */
int find_update_causes(struct step_check *c, const char *rule, struct err *e);

/* Marks in wanted[tensors of the model] the tensors without a cause. Returns their number. */
int mark_unexplained(const struct cause_search *s, bool *wanted);
/* ---- cmd/causes/tensor_causes.c: a tensor, or some ------------------------------------------- */

/* Returns true if a residual is within rounding and much smaller than without the cause. */
bool is_within(const struct step_check *c, int i, double residual);
/* Rounds a factor to the digits that the run's precision allows; append_factors() appends several. */
double to_shown_digits(const struct step_check *c, double f);
void append_factors(
	const struct step_check *c, char *out, size_t capacity, const double *f, int n);

/* Returns true if a few values may fit this tensor by chance. Within the bounds of bf16,
 * a norm or a bias may, if most tensors are wrong, or if it is wrong by little. */
bool may_fit_by_chance(const struct cause_search *s, int i);

/* Calls explains() with two degrees of the layout, and other numbers, as numbers of slices of each
 * dimension of s->tensor, until it returns true. */
bool try_slices(struct cause_search *s, const int64_t degrees[AT_LEAST(2)],
	bool (*explains)(struct cause_search *s, int dim, int n));

/* ---- cmd/causes/step_causes.c: the whole step ------------------------------------------ */

/* Sets s->screen. Returns false if all tensors have a cause. */
bool set_screen(struct cause_search *s);
/* Computes a variant's gradients into *g, of all tensors (is_full) or only of s->screen. */
void variant_gradients(const struct cause_search *s, struct variant v, bool is_full,
	struct gradients *g);
/* Returns how far a variant's gradients are from the wrong tensors, as largest_residual() does. */
double variant_distance(const struct cause_search *s, struct variant v, bool is_full);
/* Returns how far the wrong tensors are from these gradients, after a common factor: the
 * largest residual relative to its bound. */
double largest_residual(const struct cause_search *s, const struct gradients *g);
/* Sets s->near: a cause must explain all wrong tensors within their bounds, and at least halve the
 * distance. In bf16, a function that hardly differs from the model's is near in any case. */
void set_required_distance(struct cause_search *s);
/* Returns the smallest cosine of a wrong tensor and the reference: high if only noise differs. */
double smallest_cosine(const struct cause_search *s);
