/* What all do with what was made of all: the outer optimizer. */
#include "edit/own.h"

#include <math.h>

void outer_clip(struct edit *x, struct chosen c)
{
	bool clips = x->c.clip > 0;
	brought_square(x, c);
	if (clips)
		brought_norms(x, c, x->reduced);
	for (int g = 0; g < x->n_groups; g++)
		if (edit_is_chosen(x, c, g))
			x->scale[g] =
				clips ? fmin(1, x->c.clip / (x->reduced[g] + 1e-6)) : 1;
}

void outer_norms(struct edit *x, struct chosen c)
{
	if (x->c.clip <= 0)
		brought_norms(x, c, x->reduced);
}

/* A block, in the groups of the store that the outer step looks at: NULL the others. */
struct outer_block {
	float *param, *anchor, *mean, *square, *made;
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
	struct outer_block v = {.param = begin_group(x, b, STORE_PARAM, x->room[0]),
		.anchor = begin_group(x, b, x->group.anchor, x->room[1]),
		.mean = begin_group(x, b, x->group.outer_mean, x->room[2]),
		.square = begin_group(x, b, x->group.outer_square, x->room[3])};
	v.made = x->at == STORE_PARAM ? v.param : begin_group(x, b, x->at, x->room[4]);
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
		.g = v->made,
		.n = b->n,
		.decay = (float)c.decay};
	optim_prepare(&c, (double)(x->outer_steps[b->group] + 1), &how);
	x->d->k->put(x->d, x->outer, &how, sizeof(how));
	optimizers[c.kind]->update(x->d, &part, 1, x->outer);
}

/* What was trained while others were waited for; who was left out strayed, and keeps nothing. */
static bool keeps_own(const struct edit *x, int group)
{
	return x->at != STORE_PARAM && !x->at_once &&
	       !x->all_out[group * x->sync->size + x->sync->rank];
}

void outer_step(struct edit *x, struct chosen c)
{
	const struct block *b;
	for (int n = edit_blocks(x, c, &b); n > 0; n--, b++) {
		struct outer_block v = begin_block(x, b);
		if (x->brought[b->group])
			move_anchor(x, b, &v);
		if (keeps_own(x, b->group))
			x->d->k->mix(x->d, v.param, v.anchor, b->n, (float)x->c.keep);
		else
			x->d->k->copy(
				x->d, mat(v.param, 1, b->n), mat(v.anchor, 1, b->n));
		end_block(x, b, &v);
	}
	for (int g = 0; g < x->n_groups; g++)
		if (edit_is_chosen(x, c, g))
			x->outer_steps[g] += x->brought[g];
}
