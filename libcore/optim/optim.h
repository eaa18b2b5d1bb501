/* optim: the optimizers, one file and one row of OPTIMIZERS each.
 *
 * An optimizer keeps its state as groups of the parameter store, which shards, offloads and
 * checkpoints them like the parameters, and it updates this rank's shards. Most optimizers compute
 * element by element, so the sharding does not change the bits. For an optimizer that needs whole
 * matrices (Muon), matrix.c gathers each matrix on one rank and scatters the result. */
#pragma once

#include "parallel/parallel.h"

/* The rows: a constant, and the name of struct optimizer optimizer_NAME. */
/* clang-format off */
#define OPTIMIZERS(X) \
	X(ADAMW, adamw) \
	X(SGD, sgd) \
	X(MUON, muon)
/* clang-format on */

#define OPTIMIZER_KIND(kind, name) OPTIMIZER_##kind,
enum optimizer_kind { OPTIMIZERS(OPTIMIZER_KIND) N_OPTIMIZERS };
#undef OPTIMIZER_KIND

/* The hyperparameters of all optimizers, except the learning rate, which changes with the step. */
struct optim_config {
	int kind; /* enum optimizer_kind */
	double beta1, beta2, eps;
	double decay; /* weight decay, for tensors with tensor.decay */
	double momentum;
	bool nesterov;
	bool muon_original; /* Jordan's scale of the update, else Moonlight's: see muon.c */
	enum dtype matmul; /* Muon's matmuls, on a device that stores 16 bits */
};

/* A kernel for vectors, each of which is any number of whole rows of a tensor. */
typedef void update_fn(
	struct device *, const struct update_part *, int n_parts, const struct update *);

/* The update of whole matrices, in three parts. All other tensors get optimizer.update. */
struct matrix_rule {
	/* Returns true if the tensor is updated as a matrix. */
	bool (*applies_to)(const struct tensor *t, int n_units);
	/* First, on this rank's rows: writes `whole`'s input to part.p, the gradient. */
	update_fn *begin;
	/* Then, on one rank: the whole matrix, in place. May take scratch memory of the device. */
	void (*whole)(struct device *, const struct optim_config *, float *slices,
		const struct sliced *);
	/* Last, on this rank's rows: the update. part.g is the result of `whole`. */
	update_fn *end;
	/* part.rate in `end`: the factor of this tensor's learning rate. */
	double (*rate)(const struct optim_config *, const struct tensor *t);
};

enum { OPTIM_MAX_STATE = 2 };

/* A row of the table. */
struct optimizer {
	const char *name, *help;
	/* Options among beta1, beta2 and eps that it does not read, separated by spaces; or
	 * NULL. An optimizer with eps divides by eps plus the root of v. */
	const char *unused;
	/* The names of its state in checkpoints: the first is update_part.m, the second v. */
	const char *state[OPTIM_MAX_STATE];
	/* Returns the number of states that these hyperparameters need; NULL: all. */
	int (*n_state)(const struct optim_config *);
	/* Fills in the hyperparameters for the kernels in a step, counted from 1. The caller
	 * fills in the learning rate; step_end fills in grad_scale and off. */
	void (*prepare)(const struct optim_config *, double step, struct update *);
	update_fn *update;
	bool coupled; /* weight decay is added to the gradient; else it scales the parameters */
	/* NULL: all tensors are updated by row; else some tensors need the whole matrix. */
	const struct matrix_rule *matrix;
};

extern const struct optimizer *const optimizers[N_OPTIMIZERS];
extern const char *const optimizer_names[N_OPTIMIZERS + 1]; /* NULL-terminated */
#define OPTIMIZER_ROW(kind, name) extern const struct optimizer optimizer_##name;
OPTIMIZERS(OPTIMIZER_ROW)
#undef OPTIMIZER_ROW
update_fn adamw_update; /* Muon uses it for vectors */

/* ---- optim.c: the optimizer of a run ----------------------------------------------- */

struct optim;

/* Returns the number of state groups of the optimizer. */
int optim_n_state(const struct optim_config *c);
/* Adds the state groups of the optimizer to the groups of a store. */
void optim_add_groups(const struct optim_config *c, struct store_groups *g);
/* Opens the optimizer of a store with the groups of optim_add_groups(). The caller owns the store
 * and the device. Collective over the store's mesh. */
struct optim *optim_open(const struct optim_config *c, struct store *s, struct device *d);
void optim_close(struct optim *o); /* NULL: does nothing */
/* Updates all parameters from the gradient; `hyper` is in device memory. Overwrites the gradients of
 * tensors that are updated as matrices. Collective over the mesh. */
void optim_update(struct optim *o, const struct update *hyper);
/* Runs the matmuls of an update on arbitrary values, so that a GPU chooses their algorithms. */
void optim_autotune(struct optim *o);

/* ---- matrix.c: whole matrices ------------------------------------------------------- */

struct matrices;

/* Returns the matrices of a pipeline stage, each assigned to an owner among the stage's ranks.
 * Collective over the mesh. */
struct matrices *matrices_open(const struct optim_config *c,
	const struct matrix_rule *rule, struct store *s, struct device *d);
void matrices_close(struct matrices *x);
/* Replaces the gradient of each matrix by the result of rule->whole(), on all ranks that have rows
 * of the matrix. Collective over the stage. */
void matrices_update(struct matrices *x);
/* Runs only rule->whole(), on the matrices that this rank owns. Not collective. */
void matrices_autotune(struct matrices *x);
