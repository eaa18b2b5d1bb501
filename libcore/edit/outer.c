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

/* A block in each store group that is kept; NULL for the others. */
static void begin_block(struct edit *x, const struct block *b, float *v[N_STORE_GROUPS])
{
	unsigned used = edit_groups(&x->c) & ~STORE_BIT(STORE_RESIDUAL);
	int room = 0;
	used |= STORE_BIT(STORE_PARAM);
	for (int g = 0; g < N_STORE_GROUPS; g++)
		v[g] = used & STORE_BIT(g) ? store_begin(x->s, (enum store_group)g, b->at,
						     b->n, x->buffer[room++])
					   : NULL;
}

static void move_anchor(
	struct edit *x, const struct block *b, float *v[N_STORE_GROUPS], const float *g)
{
	float *a = v[STORE_ANCHOR];
	double steps = (double)(x->outer_steps[b->group] + 1);
	float scale = (float)x->scale[b->group];
	if (x->c.outer == EDIT_OUTER_ADAMW) {
		const struct adamw o = {.lr = (float)x->c.lr,
			.beta1 = (float)x->c.beta1,
			.beta2 = (float)x->c.beta2,
			.eps = (float)x->c.eps,
			.grad_scale = scale,
			.correct1 = (float)(1 - pow(x->c.beta1, steps)),
			.correct2 = (float)(1 - pow(x->c.beta2, steps))};
		const struct adamw_part part = {.p = a,
			.m = v[STORE_OUTER_MEAN],
			.v = v[STORE_OUTER_SQUARE],
			.g = g,
			.n = b->n,
			.decay = (float)x->c.decay};
		device_put(x->d, x->outer, &o, sizeof(o));
		x->d->k->adamw(x->d, &part, 1, x->outer);
	} else {
		bool sgd = x->c.outer == EDIT_OUTER_SGD;
		const struct outer_sgd o = {.lr = sgd ? (float)x->c.lr : 1,
			.momentum = sgd ? (float)x->c.momentum : 0,
			.decay = sgd ? (float)x->c.decay : 0,
			.nesterov = x->c.nesterov,
			.grad_scale = scale};
		x->d->k->outer_sgd(x->d, a, v[STORE_OUTER_MEAN], g, b->n, &o);
	}
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
		float *v[N_STORE_GROUPS];
		begin_block(x, b, v);
		float *p = v[STORE_PARAM], *a = v[STORE_ANCHOR];
		if (x->contributed[b->group])
			move_anchor(x, b, v, v[x->grad_group]);
		if (keeps_own(x, b->group))
			x->d->k->mix(x->d, p, a, b->n, (float)x->c.keep);
		else
			x->d->k->copy(x->d, mat(p, 1, b->n), mat(a, 1, b->n));
		for (int g = 0; g < N_STORE_GROUPS; g++)
			if (v[g] && g != STORE_PENDING)
				store_end(x->s, (enum store_group)g, b->at, b->n, v[g]);
	}
	for (int g = 0; g < x->n_groups; g++)
		if (edit_selects(x, c, g))
			x->outer_steps[g] += x->contributed[g];
}
