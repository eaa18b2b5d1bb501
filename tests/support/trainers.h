/* A trainer without a run around it. */
#ifndef TRAINERS_H
#define TRAINERS_H

#include "engine/step.h"
#include "plan/plan.h"

/* Collective. Prepares, plans and builds; the plan goes to *p, unless that is NULL. */
int trainer_open(struct trainer *t, const struct train_opts *o, struct comm *world,
	struct dataset *data, struct plan *p, struct err *e);

#endif
