/*
 * rates: the learning rates that explain the updates. The rate of most tensors, and tensors that have another one,
 * which the optimizer's groups in the files, or --lr, may explain.
 */
#pragma once

#include "check/check.h"

/* Sets c->lr, which is negative if most tensors moved against AdamW's update, and 0 if rounding hides it or no tensor
 * moved along it. Sets c->lr_bound. */
void find_rate(struct step_check *c);
/* Returns the rate that rounding of the parameters alone may leave; infinity: the tensor has no update. */
double rate_noise(const struct tensor_check *x);
bool has_other_lr(const struct step_check *c, const struct tensor_check *x);
/* Returns whether the rate differs from --lr. */
bool lr_is_wrong(const struct step_check *c);
/* Returns false for the optimizers whose update is not AdamW's. */
bool has_adamw_update(const struct step_check *c);
/* update.c: sets the change of each element, and the update by a learning rate of 1. decay: -1: the run's. Allocated. */
void compute_updates(const struct step_check *c, const struct tensor_step *t,
	double decay, float **change, float **update);
/* storage.c: adds notes of what is stored in bf16, and of the optimizer's settings. */
void note_storage(struct step_check *c);
/* Sets c->update_unchecked. */
void find_unchecked_updates(struct step_check *c);
