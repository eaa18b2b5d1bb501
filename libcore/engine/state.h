/* state: checkpoints of a trainer. */
#pragma once

#include "ckpt/ckpt.h"
#include "engine/engine.h"
#include "engine/inference.h"

/* Collective. Writes a checkpoint of the trainer, and waits. */
int state_save(struct trainer *t, const char *path, struct err *e);
/* Both are collective. Save a checkpoint in two parts, one checkpoint at a time. `background`:
 * training may continue in between, and the state at _begin is written; without memory for a copy,
 * _begin writes all. After an error of _begin, do not call _end. */
int state_save_begin(struct trainer *t, const char *path, bool background, struct err *e);
int state_save_end(struct trainer *t, struct err *e);
/* Returns true if this rank has written its part of the checkpoint that was begun. */
bool state_save_done(const struct trainer *t);
/* Warns on rank 0 that training waits for checkpoints, without memory for a copy. */
void state_warn_no_copy(const struct trainer *t, int64_t n_bytes);
/* Returns the bytes of a rank's copy of a checkpoint, for the plan. */
int64_t state_copy_bytes(const struct trainer *t);
/* Returns an upper bound of the bytes of a rank's part of the state. */
int64_t state_part_bytes(const struct trainer *t);
/* Returns the bytes of a checkpoint file. */
int64_t state_file_bytes(const struct trainer *t);

/* Collective. Describes the state of the trainer, as a checkpoint has it; `source` reads rows of
 * tensors. The result points to the trainer. Free it with state_free_description(). */
struct ckpt_write state_describe(struct trainer *t);
void state_free_description(struct ckpt_write *w);

/* Collective. All ranks read the file, or rank 0 broadcasts it. weights_only: for a new run. */
int state_load(struct trainer *t, const char *path, bool weights_only, struct err *e);

/* Collective. Loads the rows that this rank has into the store. from[g]: the group of the source
 * for group g of the store; -1: not loaded. */
typedef int state_loader(void *with, struct store *s, const int *from, struct err *e);
/* Collective. Loads the whole state from another source than a file. c: everything except the
 * rows of tensors, on all ranks. Fails if the parameters do not have their hash. */
int state_load_from(
	struct trainer *t, struct ckpt *c, state_loader *load, void *with, struct err *e);

/* The numbers of a worker in a checkpoint: step of the last synchronization, sum of losses since
 * then, end of the warm-up, samples that no worker used. The state of edit.h follows. */
enum { SYNCED, LOSS_SUM, WARMUP, UNSEEN, OWN_NUMBERS };

/* Sets *saved to the options in a checkpoint; free it with opts_free(). An error if they are
 * not the options of a run, if the numbers of steps, samples and tokens are impossible, or if
 * the tensors contradict the options. */
int state_options(const struct ckpt *c, struct train_opts *saved, struct err *e);
/* Checks that the options of a model give the tensors of the file and their shapes. Allocates
 * nothing of a size that the options specify. `whole`: all tensors must be there; else a file
 * with only parameters may have some of them, and under other names. */
int state_check_shapes(const struct ckpt *c, const struct model_config *options,
	bool whole, struct err *e);
/* Checks the options in a checkpoint as state_options() does. */
int state_check(const struct ckpt *c, struct err *e);

/* Returns true if every rank holds all parameters, unsharded. */
bool state_is_whole(const struct trainer *t);
/* Collective. Gathers the model on rank 0; x->store is NULL on the other ranks. */
void state_gather(struct trainer *t, struct inference *x);
