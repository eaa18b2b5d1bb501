/* The outer optimizer step. */
#include "edit/edit_internal.h"

#include <math.h>

/* Sets the factor that limits the norm of each selected group; 1 without clipping. */
static void set_clip_factors(struct edit *x, struct selection sel)
{
	for (int i = 0; i < x->n_groups; i++) {
		struct edit_group *g = &x->group[i];
		if (edit_selects(x, sel, i))
			g->scale =
				x->c.clip > 0 ? fmin(1, x->c.clip / (g->norm + 1e-6)) : 1;
	}
}

void outer_clip(struct edit *x, struct selection sel)
{
	pseudo_grad_squares(x, sel);
	if (x->c.clip > 0)
		pseudo_grad_norms(x, sel);
	set_clip_factors(x, sel);
}

void outer_norms(struct edit *x, struct selection sel)
{
	if (x->c.clip > 0 && !x->holders)
		return;
	pseudo_grad_norms(x, sel);
	set_clip_factors(x, sel);
}

/* Pointers to a block in each store group of the outer step; NULL: not kept. */
struct outer_block {
	float *param, *state[EDIT_OUTER_SQUARE + 1], *reduced;
};

/* Returns a block of each store group, loaded if it is offloaded. end_block() ends this. */
static struct outer_block begin_block(struct edit *x, const struct block *b)
{
	struct outer_block v = {.param = edit_block_begin(x, STORE_PARAM, b)};
	for (int i = EDIT_ANCHOR; i <= EDIT_OUTER_SQUARE; i++)
		if (x->store_group[i] >= 0)
			v.state[i] = edit_block_begin(x, x->store_group[i], b);
	v.reduced = x->grad_group == STORE_PARAM ? v.param
						 : edit_block_begin(x, x->grad_group, b);
	return v;
}

static void end_block(struct edit *x, const struct block *b, const struct outer_block *v)
{
	store_end(x->s, STORE_PARAM, b->pos, b->n, v->param);
	for (int i = EDIT_ANCHOR; i <= EDIT_OUTER_SQUARE; i++)
		if (v->state[i])
			store_end(x->s, x->store_group[i], b->pos, b->n, v->state[i]);
}

struct optim_config outer_config(const struct edit_config *c)
{
	if (c->outer == EDIT_OUTER_NONE)
		return (struct optim_config){.kind = OPTIMIZER_SGD};
	return (struct optim_config){
		.kind = c->outer == EDIT_OUTER_ADAMW ? OPTIMIZER_ADAMW : OPTIMIZER_SGD,
		.beta1 = c->beta1,
		.beta2 = c->beta2,
		.eps = c->eps,
		.decay = c->decay,
		.momentum = c->momentum,
		.nesterov = c->nesterov};
}

/* Returns the factor of the gradient, which includes the weight decay: v = momentum v + (1 -
 * dampening) g, but v = g in the first step, as torch.optim.SGD. */
static float gradient_factor(const struct edit_config *c, int64_t step)
{
	bool damps = c->outer == EDIT_OUTER_SGD && c->momentum > 0 && step > 1;
	return damps ? (float)(1 - c->dampening) : 1;
}

/* Applies the outer optimizer to a block of the anchor. */
static void move_anchor(
	struct edit *x, const struct block *b, const struct outer_block *v)
{
	const struct optim_config c = outer_config(&x->c);
	int64_t step = x->group[b->group].outer_steps + 1;
	float factor = gradient_factor(&x->c, step);
	struct update terms = {.lr = x->c.outer == EDIT_OUTER_NONE ? 1 : (float)x->c.lr,
		.grad_scale = (float)x->group[b->group].scale * factor};
	const struct update_part part = {.p = v->state[EDIT_ANCHOR],
		.m = v->state[EDIT_OUTER_MEAN],
		.v = v->state[EDIT_OUTER_SQUARE],
		.g = v->reduced,
		.n = b->n,
		.decay = (float)c.decay * factor,
		.rate = 1};
	optimizers[c.kind]->prepare(&c, (double)step, &terms);
	device_put(x->d, x->outer, &terms, sizeof(terms));
	optimizers[c.kind]->update(x->d, &part, 1, x->outer);
}

/* Returns true if this worker keeps a fraction of its local steps during the exchange. A worker
 * that was excluded has diverged, and keeps nothing. */
static bool keeps_local_steps(const struct edit *x, int group)
{
	return x->grad_group != STORE_PARAM && !x->blocking && !x->group[group].excluded;
}

void outer_step(struct edit *x, struct selection sel)
{
	const struct block *b;
	float keep = (float)x->c.keep;
	for (int n = edit_blocks(x, sel, &b); n > 0; n--, b++) {
		struct outer_block v = begin_block(x, b);
		struct mat anchor = mat(v.state[EDIT_ANCHOR], 1, b->n);
		struct mat p = mat(v.param, 1, b->n);
		if (x->group[b->group].contributed)
			move_anchor(x, b, &v);
		if (keeps_local_steps(x, b->group))
			x->d->k->axpby(x->d, p, 1 - keep, anchor, keep);
		else
			x->d->k->copy(x->d, p, anchor);
		end_block(x, b, &v);
	}
	for (int g = 0; g < x->n_groups; g++)
		if (edit_selects(x, sel, g))
			x->group[g].outer_steps += x->group[g].contributed;
}
