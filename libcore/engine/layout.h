/* layout: the parts of the model and of the batch that each rank computes. */
#pragma once

#include "data/data.h"
#include "engine/options.h"
#include "model/pass.h"
#include "parallel/parallel.h"

/* ---- from the options to the degrees of the mesh ----------------------------------- */

/* Computes the degree of each axis for that many ranks. */
int layout_degrees(
	const struct train_opts *o, int ranks, int degree[N_AXES], struct err *e);
/* Sets options that are still open: degrees, --zero, --virtual, --pp-stages. */
int layout_resolve(struct train_opts *o, int ranks, struct err *e);
/* Returns the product of the degrees, and sets *takes_rest if an axis of -1 takes more ranks. */
int layout_min_ranks(const struct train_opts *o, bool *takes_rest, struct err *e);
/* Returns how many of o->print_ranks ranks the layout can use with the micro-batch size and the
 * virtual degrees of the options; 0: too few are available. The options must not be resolved. */
int64_t layout_count_ranks(const struct train_opts *o, struct err *e);
/* Checks that this layout can train this model. The options must be resolved. */
int layout_check(const struct train_opts *o, const struct model *m, struct err *e);
/* Warns about avoidable costs of a layout. */
void layout_warn(const struct train_opts *o);
/* Sets o->batch from --batch-per-rank, if given, for that many data-parallel ranks of a worker. */
void layout_set_batch(struct train_opts *o, int data_ranks);
/* Checks that the virtual slices of the model can be divided among that many ranks of tp. */
int layout_check_tp(int ranks, const struct model *m, struct err *e);
/* Returns the sequences of a worker in a step. */
int64_t layout_worker_batch(const struct train_opts *o);
/* Returns the number of micro-batches of a worker in a step. */
int64_t layout_micro_batches(const struct train_opts *o);
/* Returns the assignment of a worker's micro-batches to data-parallel ranks, without the table of
 * --deal speed. */
struct microbatches layout_assign_micro_batches(const struct train_opts *o);
int layout_data_ranks(const struct train_opts *o);
/* Returns the data-parallel rank of a rank of the world. */
int layout_data_rank(const int degree[N_AXES], int rank);

/* ---- a rank's part of the work ------------------------------------------------------ */

struct rank_layout {
	struct microbatches microbatches; /* their assignment to data-parallel ranks */
	int64_t *begin;			  /* microbatches.begin, allocated, or NULL */
	int data_rank;			  /* the data-parallel rank of this rank */
	struct tensor_part part;	  /* the rank's part of each tensor */
	struct stage *stages;		  /* pipeline stages of this rank */
	int n_stages;
};

/* Assigns stages, tensors and micro-batches to a rank, and places the model's tensors. */
void layout_assign(struct rank_layout *l, const struct train_opts *o,
	const struct mesh *mesh, struct model *m);
void layout_free(struct rank_layout *l);
/* Divides the layers among n stages. Returns the first layer of each stage, then the number of
 * layers: [n + 1], allocated. Balances the work, in which the head counts and the embedding
 * does not; `even`: balances the numbers of layers. */
int *layout_split(const struct model *m, int n, bool even);
/* Returns the multiply-adds per token in the forward of a stage. */
double layout_stage_work(const struct model *m, const struct stage *s);
/* Returns the samples of all ranks in the step from global sample `first` on, for free(). */
struct sample_run *layout_rank_samples(const struct train_opts *o,
	const struct microbatches *d, int ranks, int64_t first);
