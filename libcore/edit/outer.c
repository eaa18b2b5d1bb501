/* The outer optimizer step. */
#include "edit/edit_internal.h"

#include <math.h>

void outer_clip(struct edit *x, struct selection c)
{
	bool clips = x->c.clip > 0;
	pseudo_grad_squares(x, c);
	if (clips)
		pseudo_grad_norms(x, c, x->reduced);
	for (int g = 0; g < x->n_groups; g++)
		if (edit_selects(x, c, g))
			x->scale[g] =
				clips ? fmin(1, x->c.clip / (x->reduced[g] + 1e-6)) : 1;
}

void outer_norms(struct edit *x, struct selection c)
{
	if (x->c.clip <= 0)
		pseudo_grad_norms(x, c, x->reduced);
}

/* A block in the store groups of the outer step; NULL: not kept. */
struct outer_block {
	float *param, *anchor, *mean, *square, *reduced;
};

static float *begin_group(struct edit *x, const struct block *b, int group, float *room)
{
	return group < 0 ? NULL : store_begin(x->s, group, b->at, b->n, room);
}

static void end_group(struct edit *x, const struct block *b, int group, const float *v)
{
	if (v)
		store_end(x->s, group, b->at, b->n, v);
}

static struct outer_block begin_block(struct edit *x, const struct block *b)
{
	struct outer_block v = {.param = begin_group(x, b, STORE_PARAM, x->buffer[0]),
		.anchor = begin_group(x, b, x->group.anchor, x->buffer[1]),
		.mean = begin_group(x, b, x->group.outer_mean, x->buffer[2]),
		.square = begin_group(x, b, x->group.outer_square, x->buffer[3])};
	v.reduced = x->grad_group == STORE_PARAM
			    ? v.param
			    : begin_group(x, b, x->grad_group, x->buffer[4]);
	return v;
}

static void end_block(struct edit *x, const struct block *b, const struct outer_block *v)
{
	end_group(x, b, STORE_PARAM, v->param);
	end_group(x, b, x->group.anchor, v->anchor);
	end_group(x, b, x->group.outer_mean, v->mean);
	end_group(x, b, x->group.outer_square, v->square);
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

static void move_anchor(
	struct edit *x, const struct block *b, const struct outer_block *v)
{
	const struct optim_config c = outer_config(&x->c);
	struct update how = {.lr = x->c.outer == EDIT_OUTER_NONE ? 1 : (float)x->c.lr,
		.grad_scale = (float)x->scale[b->group]};
	const struct update_part part = {.p = v->anchor,
		.m = v->mean,
		.v = v->square,
		.g = v->reduced,
		.n = b->n,
		.decay = (float)c.decay};
	optimizers[c.kind]->prepare(&c, (double)(x->outer_steps[b->group] + 1), &how);
	device_put(x->d, x->outer, &how, sizeof(how));
	optimizers[c.kind]->update(x->d, &part, 1, x->outer);
}

/* Local steps during the exchange; a worker that was excluded had diverged, and keeps nothing. */
static bool keeps_own(const struct edit *x, int group)
{
	return x->grad_group != STORE_PARAM && !x->blocking &&
	       !x->all_excluded[group * x->sync->size + x->sync->rank];
}

void outer_step(struct edit *x, struct selection c)
{
	const struct block *b;
	for (int n = edit_blocks(x, c, &b); n > 0; n--, b++) {
		struct outer_block v = begin_block(x, b);
		if (x->contributed[b->group])
			move_anchor(x, b, &v);
		if (keeps_own(x, b->group))
			x->d->k->mix(x->d, v.param, v.anchor, b->n, (float)x->c.keep);
		else
			x->d->k->copy(
				x->d, mat(v.param, 1, b->n), mat(v.anchor, 1, b->n));
		end_block(x, b, &v);
	}
	for (int g = 0; g < x->n_groups; g++)
		if (edit_selects(x, c, g))
			x->outer_steps[g] += x->contributed[g];
}
