/* fit: plans a trainer, and decides the settings that depend on its memory. */
#pragma once

#include "engine/state.h"
#include "plan/plan.h"

/* Plans a connected trainer, and sets *sizes to what trainer_build() allocates, with the copy of a
 * checkpoint if it fits. Chooses --recompute if it is auto. Returns -1 with *e set, after
 * trainer_abandon(), if the trainer does not fit. Collective. */
int fit_trainer(
	struct trainer *t, struct plan *p, struct trainer_sizes *sizes, struct err *e);
/* Prepares, plans and builds a trainer without a run. Sets *p, if not NULL. Collective. */
int trainer_open(struct trainer *t, const struct train_opts *o, struct comm *world,
	struct dataset *data, struct plan *p, struct err *e);
