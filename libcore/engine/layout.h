/* layout: the parts of the model and of the batch that each rank computes. */
#pragma once

#include "data/data.h"
#include "engine/options.h"
#include "model/pass.h"
#include "parallel/parallel.h"

/* ---- from the options to the degrees of the mesh ----------------------------------- */

/* The degree of each axis for that many ranks. */
int layout_degrees(
	const struct train_opts *o, int ranks, int degree[N_AXES], struct err *e);
/* Sets what the options leave open: degrees, --zero, --virtual, --pp-stages. */
int layout_resolve(struct train_opts *o, int ranks, struct err *e);
/* Can this layout train this model? The options are resolved. */
int layout_check(const struct train_opts *o, const struct model *m, struct err *e);
/* Says what a layout that can train costs without need. */
void layout_warn(const struct train_opts *o);
/* With --batch-per-rank: sets the batch for that many data-parallel ranks of a worker. */
void layout_batch(struct train_opts *o, int data_ranks);
/* Can the virtual slices of the model be divided among that many ranks of tp? */
int layout_check_tp(int ranks, const struct model *m, struct err *e);
/* Sequences and micro-batches of a worker in a step. */
int64_t layout_worker_batch(const struct train_opts *o);
int64_t layout_micro_batches(const struct train_opts *o);
/* The latter's assignment to data-parallel ranks. */
struct microbatches layout_assign_micro_batches(const struct train_opts *o);
int layout_data_ranks(const struct train_opts *o);
/* The data-parallel rank of a rank. */
int layout_data_rank(const int degree[N_AXES], int rank);

/* ---- what is assigned to a rank ---------------------------------------------------- */

struct rank_layout {
	struct microbatches microbatches; /* their assignment to data-parallel ranks */
	int data_rank;			  /* which of these this rank belongs to */
	struct tensor_part part;	  /* of the model */
	struct stage *stages;		  /* of the pipeline, those of this rank */
	int n_stages;
};

/* Stages, tensors and micro-batches of the rank at this place of the mesh; sets the model's
 * tensors to this rank's part of them. */
void layout_assign(struct rank_layout *l, const struct train_opts *o,
	const struct mesh *mesh, struct model *m);
void layout_free(struct rank_layout *l);
/* The first layer of each of n stages, and the number of layers: [n + 1], allocated. The head counts as work of the
 * last stage, the embedding not; or they are equal as far as layers can be. */
int *layout_split(const struct model *m, int n, bool even);
/* Multiply-adds of one token in the forward of a stage. */
double layout_stage_work(const struct model *m, const struct stage *s);
/* The number of micro-batches of a data-parallel rank in a step, without those of
 * microbatches_count() that are computed only for their collectives. */
int64_t layout_own_micro(const struct microbatches *d, int data_rank);
/* The samples of every rank in the step that begins with global sample `first`:
 * [number of ranks], allocated. */
struct sample_run *layout_samples(const struct train_opts *o,
	const struct microbatches *d, int ranks, int64_t first);
