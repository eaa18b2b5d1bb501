/* fit: plans a trainer, and decides what depends on its memory. */
#pragma once

#include "engine/state.h"
#include "plan/plan.h"

/* Collective. Plans a trainer that is connected, without the copy of a checkpoint if there is no
 * memory for one, and what trainer_build() is to allocate. Sets --recompute where it is auto. -1 with *e
 * set, and the trainer abandoned: it needs more than there is. */
int fit_trainer(
	struct trainer *t, struct plan *p, struct trainer_sizes *sizes, struct err *e);
/* Collective. A trainer without a run around it: prepares, plans and builds it. The plan goes to *p, unless that
 * is NULL. */
int trainer_open(struct trainer *t, const struct train_opts *o, struct comm *world,
	struct dataset *data, struct plan *p, struct err *e);
