/* rates: learning rates that explain the updates. Finds the common rate of most tensors, and
 * tensors with another rate, which the optimizer's groups in the files, or --lr, may explain. */
#pragma once

#include "check/check.h"

/* Sets c->lr and c->lr_bound. c->lr is negative if most tensors moved against AdamW's
 * update, and 0 if rounding hides the rate or no tensor moved along the update. */
void find_common_rate(struct step_check *c);
/* Returns the rate that rounding of parameters can cause; infinity: the tensor has no update. */
double rate_noise(const struct tensor_check *x);
bool has_other_lr(const struct step_check *c, const struct tensor_check *x);
/* Returns true if the rate differs from --lr. */
bool lr_is_wrong(const struct step_check *c);
/* Returns false for optimizers whose update is not AdamW's. */
bool has_adamw_update(const struct step_check *c);
/* update.c: Sets changes, and updates at learning rate 1; allocated. decay: -1: the run's. */
void compute_updates(const struct step_check *c, const struct tensor_step *t,
	double decay, float **change, float **update);
/* storage.c: Adds notes about values stored in bf16, and about the optimizer's settings. */
void note_storage(struct step_check *c);
/* Sets c->update_unchecked. */
void describe_unchecked_updates(struct step_check *c);
