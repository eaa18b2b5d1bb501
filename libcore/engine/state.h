/* state: checkpoints of a trainer. */
#pragma once

#include "ckpt/ckpt.h"
#include "engine/engine.h"
#include "engine/inference.h"

/* Collective. */
int state_save(struct trainer *t, const char *path, struct err *e);
/* Collective, each. It is saved in two parts, one checkpoint at a time. In the `background`,
 * training may continue between them, and what is written is the state at the beginning; without
 * memory for a copy of it, everything is written before the first part returns. After an error
 * of the first part there is no second. */
int state_save_begin(struct trainer *t, const char *path, bool background, struct err *e);
int state_save_end(struct trainer *t, struct err *e);
/* Has this rank written its part? */
bool state_save_done(const struct trainer *t);
/* Rank 0 warns that training waits while checkpoints are written, without memory for copies of so many bytes. */
void state_warn_no_copy(const struct trainer *t, int64_t n_bytes);
/* The size of the copy on a rank, for the plan; and of the file. */
int64_t state_copy_bytes(const struct trainer *t);
int64_t state_file_bytes(const struct trainer *t);

/* Collective. Every rank reads the file, or rank 0 reads and sends. weights_only: a new run
 * that begins with these parameters. */
int state_load(struct trainer *t, const char *path, bool weights_only, struct err *e);

/* The numbers of a worker in a checkpoint: when the workers synchronised last, this one's sum of losses
 * since then, when the warm-up ends, the samples that no worker used; the state of edit.h follows. */
enum { SYNCED, LOSS_SUM, WARMUP, UNSEEN, OWN_NUMBERS };

/* Sets the options that a checkpoint has saved, for opts_free(). An error if they are not those of a run, or if its
 * numbers of steps, samples and tokens cannot be, or its tensors contradict them. */
int state_options(const struct ckpt *c, struct train_opts *saved, struct err *e);
/* Do the options of a model give the tensors that the file has, and the shapes of them? Nothing is allocated for
 * what the options say. `whole`: all of the tensors; else parameters alone may be some of the model, and
 * tensors may have other names. */
int state_shapes(const struct ckpt *c, const struct model_config *options, bool whole,
	struct err *e);
/* The options, only to check. */
int state_check(const struct ckpt *c, struct err *e);

/* Has every rank all parameters, unsharded? */
bool state_is_whole(const struct trainer *t);
/* Collective. Gathers the model on rank 0; x->store is NULL on the others. */
void state_gather(struct trainer *t, struct inference *x);
