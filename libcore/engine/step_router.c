/* The routers of experts in a step (step_router.h). */
#include "engine/step_router.h"

#include "model/router.h"

#include <math.h>

void step_set_router_factors(const struct trainer *t, struct pass_step *step)
{
	const struct model_config *c = &t->model.c;
	double rows = (double)(layout_worker_batch(&t->o) * c->context), layers = 1;
	if (c->balance_over == BALANCE_MODEL)
		layers = (double)model_layers_of_kind(&t->model, 1);
	double balance = (double)t->loss_scale * c->balance_loss / layers / rows;
	step->router_loss[ROUTER_BALANCE_LOSS] = (float)balance;
	step->router_loss[ROUTER_Z_LOSS] =
		(float)((double)t->loss_scale * c->router_z_loss / rows);
}

static void sum_over_world(struct trainer *t, void *x, int64_t n)
{
	comm_run(t->world, COLL_ALLREDUCE,
		&(struct coll_args){
			.recv = x, .count = n, .type = COMM_I64, .op = COMM_SUM});
}

/* Ranks of the tp axis have counted the same slots. */
void step_sum_router(struct trainer *t)
{
	int64_t n = router_counters(&t->model.c);
	const struct router_state *x = &t->pass.router;
	if (!n)
		return;
	if (t->mesh.coord[AXIS_TP])
		t->d.k->zero(&t->d, mat(x->slots, 1, 2 * n));
	sum_over_world(t, x->slots, n);
	sum_over_world(t, x->losses, N_ROUTER_LOSSES * EXACT_WORDS);
}

void step_read_router(struct trainer *t)
{
	const struct router_state *x = &t->pass.router;
	size_t n_bytes = (size_t)router_counters(&t->model.c) * sizeof(int64_t);
	size_t losses = N_ROUTER_LOSSES * sizeof(*x->losses);
	if (!n_bytes)
		return;
	if (!t->router_losses)
		t->router_losses = device_shared(&t->d, losses + n_bytes);
	if (!t->router_losses)
		die(EX_FAILED,
			"out of pinned memory: the counts of experts need %zu bytes",
			losses + n_bytes);
	device_copy_begin(&t->d, true, t->router_losses, x->losses, losses, 0);
	t->router_ticket = device_copy_begin(
		&t->d, true, &t->router_losses[N_ROUTER_LOSSES], x->slots, n_bytes, 0);
}

/* Raises r->expert_violation to the violation of a layer with these slots, and counts idle experts. */
static void add_layer_slots(struct step_result *r, const int64_t *slots, int64_t n)
{
	int64_t most = 0, sum = 0;
	for (int64_t e = 0; e < n; e++) {
		most = max64(most, slots[e]);
		sum += slots[e];
		r->experts_idle += !slots[e];
	}
	double violation = (double)(most * n) / (double)max64(1, sum) - 1;
	r->expert_violation = fmax(r->expert_violation, violation);
}

void step_collect_router(struct trainer *t, struct step_result *r)
{
	const struct model_config *c = &t->model.c;
	size_t n = (size_t)router_counters(c);
	double terms = (double)(layout_worker_batch(&t->o) * c->context) *
		       (double)model_layers_of_kind(&t->model, 1);
	if (!n)
		return;
	device_host_wait(&t->d, t->router_ticket);
	const struct exact *losses = t->router_losses;
	const int64_t *slots = (const int64_t *)(const void *)&losses[N_ROUTER_LOSSES];
	for (int i = 0; i < N_ROUTER_LOSSES; i++)
		r->router_loss[i] = exact_round(&losses[i]) / terms;
	r->experts_idle = 0;
	r->expert_violation = 0;
	if (c->expert_capacity > 0)
		r->dropped = (double)slots[n - 1] / terms / (double)c->experts_per_token;
	for (int64_t l = 0; l < c->layers; l++)
		if (layer_has_experts(c, l))
			add_layer_slots(r, slots + l * c->experts, c->experts);
}
