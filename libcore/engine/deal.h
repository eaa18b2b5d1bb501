/* deal: micro-batches by the speed of ranks (--deal speed). Every DEAL_EVERY steps, ranks exchange
 * their times per micro-batch, and all compute the same table of micro-batches. It holds from the
 * step after next on, since the samples of the next step are being fetched. */
#pragma once

#include "engine/step.h"

/* Allocates the tables of --deal speed, with even shares; --deal even: nothing. */
void deal_open(struct trainer *t);
void deal_close(struct trainer_deal *x);
/* Returns the assignment of the next samples to fetch. */
struct microbatches deal_fetch(struct trainer *t);
/* Begins a step with the samples that deal_fetch() assigned last. */
void deal_begin_step(struct trainer *t);
/* Measures a step, and sets the results of --deal speed in *r. Collective. */
void deal_end_step(struct trainer *t, struct step_result *r);
