/*
 * optim: optimizers. Each is a file and a row of OPTIMIZERS.
 *
 * An optimizer keeps groups of state in the parameter store, which shards, offloads and
 * checkpoints them like the parameters, and updates what the store has on this rank. Most
 * compute element by element, so that it does not matter where a tensor is cut. One that needs
 * whole matrices (Muon) says so, and matrix.c brings each to one rank and takes the result back.
 */
#ifndef OPTIM_H
#define OPTIM_H

#include "parallel/store.h"

/* The rows: a constant, and the name of struct optimizer optimizer_NAME. */
#define OPTIMIZERS(X) X(ADAMW, adamw) X(SGD, sgd) X(MUON, muon)

#define OPTIMIZER_KIND(kind, name) OPTIMIZER_##kind,
enum optimizer_kind { OPTIMIZERS(OPTIMIZER_KIND) N_OPTIMIZERS };
#undef OPTIMIZER_KIND

/* The hyperparameters of all of them but for the learning rate, which changes from step to step. */
struct optim_config {
	int kind; /* enum optimizer_kind */
	double beta1, beta2, eps;
	double decay; /* of tensors that have `decay` */
	double momentum;
	bool nesterov;
	bool muon_original; /* Jordan's scale of the update, not Moonlight's */
	enum dtype matmul;  /* what Muon multiplies, on a device that stores 16 bits */
};

/* What an optimizer does with whole matrices. Its row update is for all other tensors. */
struct matrix_rule {
	/* Is this tensor updated as a matrix? */
	bool (*takes)(const struct tensor *t, int n_units);
	/* Before, on the rows that this rank has: makes p, the vector that the matrix is made of. */
	void (*begin)(struct device *, const struct update_part *, int n_parts,
		const struct update *);
	/* On one rank, in place, with temporary memory from the device's scratch. */
	void (*whole)(struct device *, const struct optim_config *, float *slices,
		const struct sliced *);
	/* After, on the rows again: g is what `whole` made, and `rate` this tensor's: */
	void (*end)(struct device *, const struct update_part *, int n_parts,
		const struct update *);
	double (*rate)(const struct optim_config *, const struct tensor *t);
};

enum { OPTIM_MAX_STATE = 2 };

/* A row of the table. */
struct optimizer {
	const char *name, *help;
	/* Its state, by the names that checkpoints have: the first is update_part.m, the second v.
	 * n_state() tells how many of them it keeps. */
	const char *state[OPTIM_MAX_STATE];
	int (*n_state)(const struct optim_config *);
	/* Fills in what kernels read in step number `step`, counted from 1: all but the learning
	 * rate and what is known when the gradient is there (grad_scale, off). */
	void (*prepare)(const struct optim_config *, double step, struct update *);
	/* Updates vectors: whole rows of tensors, cut anywhere between two rows. */
	void (*update)(struct device *, const struct update_part *, int n_parts,
		const struct update *);
	/* The unit of the update: NULL: a row; else some tensors need the whole matrix. */
	const struct matrix_rule *matrix;
};

extern const struct optimizer *const optimizers[N_OPTIMIZERS];
extern const char *const optimizer_names[N_OPTIMIZERS + 1]; /* NULL at the end */

/* ---- optim.c: the optimizer of a run ----------------------------------------------- */

struct optim;

/* Adds the state of the optimizer to the groups of a store. */
void optim_add_groups(const struct optim_config *c, struct store_groups *g);
/* Collective over the ranks of the store's mesh. Its store has these groups. */
struct optim *optim_open(const struct optim_config *c, struct store *s, struct device *d);
void optim_free(struct optim *o); /* NULL: nothing */
/* What the kernels read in this step, but for the learning rate, see struct optimizer. */
void optim_prepare(const struct optim_config *c, double step, struct update *out);
/* Collective over the mesh. Updates all parameters from the gradient; `how` is in the device's
 * memory. Matrices make the gradient something else. */
void optim_update(struct optim *o, const struct update *how);
/* The matrix products of an update, on numbers that do not matter: so that a GPU chooses their
 * algorithms. */
void optim_rehearse(struct optim *o);

/* ---- matrix.c: whole matrices ------------------------------------------------------- */

struct matrices;

/* Collective over the mesh. Matrices are dealt out to the ranks that have parts of them, or replicas:
 * those of a pipeline stage, so that all have about the same work. */
struct matrices *matrices_open(const struct optim_config *c,
	const struct matrix_rule *rule, struct store *s, struct device *d);
void matrices_free(struct matrices *x);
/* Collective over these ranks. Where the gradient of a matrix is, on all of them, the result of
 * rule->whole() takes its place. */
void matrices_update(struct matrices *x);
/* rule->whole() alone, on the matrices that this rank has to compute. */
void matrices_rehearse(struct matrices *x);

/* ---- muon.c ------------------------------------------------------------------------- */

/* Newton-Schulz: x [r, c], r <= c, of singular values in (0, 1] becomes a matrix with the same singular
 * vectors and singular values near 1. The result is in x or in `other`, and is returned; gram and
 * square are [r, r]. All of one type. */
struct mat muon_orthogonalize(struct device *d, struct mat x, struct mat other,
	struct mat gram, struct mat square);

#endif
