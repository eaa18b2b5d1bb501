/* The router of a mixture of experts. */
#pragma once

#include "model/block.h"

/* Returns the settings of the router kernels, the same for all layers. */
struct router model_router(const struct pass *p);

/* Returns the number of integers that a step counts: the slots of each layer and expert and, with a
 * capacity, the dropped slots. */
static inline int64_t router_counters(const struct model_config *c)
{
	return c->experts ? c->layers * c->experts + (c->expert_capacity > 0) : 0;
}
/* Returns the number of slots that an expert keeps of a chunk with this many rows. */
int64_t router_capacity(const struct model_config *c, int64_t rows);
/* Sets `kept` to gates [row][column], with 0 for the slots beyond an expert's capacity in a chunk,
 * and counts these. Evaluations drop nothing. slots, offsets: see sort_slots(). */
void router_drop(struct pass *p, struct mat kept, struct mat gates, const int32_t *slots,
	const int32_t *offsets);

/* Allocates p->router from `run`. */
void router_open(struct pass *p, struct arena *run);
/* Sets the load before the first step: equal for all experts. */
void router_reset_load(struct pass *p);
/* Returns the memory for acts.slots. */
struct mat router_alloc_slots(const struct pass *p, struct arena *micro);
/* Begins to count a micro-batch's slots of all layers in acts.slots, or continues after the stage
 * before. */
void router_forward_begins(struct pass *p, const struct stage *st, struct mat slots);
/* Completes these counts in the last stage. Collective over the ranks of the chunks. */
void router_forward_ends(struct pass *p, const struct stage *st);
/* Computes the fractions for a backward from these counts. */
void router_backward_begins(struct pass *p, struct mat slots);
/* Sets the counts and the sums of losses of a step to 0. */
void router_begin(struct pass *p);
/* Returns the sets of fractions that a layer keeps for the balance loss: one, or one per sequence. */
int64_t router_fraction_sets(const struct pass *p);
/* Returns true if the forward of this micro-batch counts the slots of each expert. */
bool router_counts(const struct pass *p);
/* Adds counts [chunk][sequence][expert] of a layer to the counts of the step, and computes the
 * fractions [set][expert] of the micro-batch. Collective over the ranks of its chunks. */
void router_count(struct pass *p, int64_t layer, struct mat counts, struct mat fractions);
/* Sets *to to the losses of this rank's rows of a chunk; the values are in scratch memory. Returns
 * `to`, or NULL without such losses. */
const struct router_losses *router_losses(
	struct pass *p, int64_t layer, struct mat fractions, struct router_losses *to);
/* Adds the values that the backward has written to the sums of losses. */
void router_add_losses(struct pass *p, const struct router_losses *losses);
/* Updates the biases and the load from the counts of the step, summed over ranks, unless the update
 * is off. */
void router_update_state(struct pass *p, const struct update *update);
