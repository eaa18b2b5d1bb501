/* The routers of experts in a step: losses and slots, on the device and in its results. */
#pragma once

#include "engine/engine.h"
#include "engine/step.h"

/* Sets the factors of the losses of routers, in which all tokens of this worker's batch count. */
void step_set_router_factors(const struct trainer *t, struct pass_step *step);
/* Sums the slots of experts and the losses of routers over all ranks. Collective. */
void step_sum_router(struct trainer *t);
/* Starts to copy these sums to the host, which need not wait for the update that follows. */
void step_read_router(struct trainer *t);
/* Sets the results of the routers from these sums, and waits for the copy. */
void step_collect_router(struct trainer *t, struct step_result *r);
