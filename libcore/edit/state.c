/* The state of a worker in checkpoints, in addition to the store's groups. */
#include "edit/edit_internal.h"

#include <math.h>

/* Doubles before the groups, and of each group without its window. */
enum { HEAD = 4, PER_GROUP = 6 };

int64_t edit_state_size(const struct edit *x)
{
	return HEAD + x->n_groups * (PER_GROUP + x->c.detect.warmup);
}

void edit_state_export(const struct edit *x, double *out)
{
	int64_t window = x->c.detect.warmup;
	out[0] = (double)x->n_syncs;
	out[1] = (double)x->c.interval;
	out[2] = x->n_fragments;
	out[3] = (double)x->c.delay;
	out += HEAD;
	for (int i = 0; i < x->n_groups; i++, out += PER_GROUP + window) {
		const struct edit_group *g = &x->group[i];
		const struct detector *d = &g->detector;
		bool begun = x->in_flight[g->fragment];
		out[0] = (double)g->outer_steps;
		out[1] = d->mean;
		out[2] = d->m2;
		out[3] = (double)d->count;
		/* [4]: 0: not in flight; 1: in flight; 2: in flight, but no worker contributes */
		out[4] = begun ? 1 + !g->contributed : 0;
		out[5] = (begun && g->excluded) + 2 * g->lockouts;
		memcpy(out + PER_GROUP, d->z, (size_t)window * sizeof(*out));
	}
}

static bool is_valid_count(double x)
{
	return x >= 0 && x < 0x1p53 && x == floor(x);
}

/* Returns true if a fragment is between edit_begin() and edit_end() after that many steps. */
static bool should_be_in_flight(const struct edit *x, int fragment, int64_t local_steps)
{
	for (int64_t i = 0; i < x->c.delay; i++)
		if (edit_due(x, local_steps - i) == fragment)
			return true;
	return false;
}

/* Restores which fragments are in flight. Rejects changed options if any fragment is. */
static int restore_in_flight(struct edit *x, const double *head, const double *first,
	int64_t local_steps, struct err *e)
{
	int64_t step = PER_GROUP + x->c.detect.warmup;
	bool any_in_flight = false, same_options = head[1] == (double)x->c.interval &&
						   head[2] == x->n_fragments &&
						   head[3] == (double)x->c.delay;
	for (int g = 0; g < x->n_groups; g++)
		any_in_flight |= first[g * step + 4] > 0;
	if (any_in_flight && !same_options)
		return err_set(e, EX_USAGE,
			"a fragment of local SGD is in flight: resume with --edit-sync-interval "
			"%g, "
			"--edit-fragments %g and --edit-sync-delay %g",
			head[1], head[2], head[3]);
	for (int i = 0; i < x->n_groups && any_in_flight; i++) {
		struct edit_group *g = &x->group[i];
		const double *in = first + i * step;
		int f = g->fragment;
		x->in_flight[f] = should_be_in_flight(x, f, local_steps);
		if (x->in_flight[f] != (in[4] > 0))
			return err_set(e, EX_DATAERR,
				"the state of fragment %d of local SGD (in flight or not) "
				"contradicts the step; give another checkpoint",
				f);
		g->contributed = in[4] < 2;
		g->excluded = (int)in[5] % 2;
	}
	return 0;
}

int edit_state_restore(
	struct edit *x, const double *in, int64_t local_steps, struct err *e)
{
	int64_t window = x->c.detect.warmup;
	const double *head = in;
	bool good = is_valid_count(in[0]);
	for (int64_t i = 0; i < edit_state_size(x); i++)
		good &= isfinite(in[i]);
	x->n_syncs = good ? (int64_t)*in : 0;
	in += HEAD;
	for (int g = 0; g < x->n_groups && good; g++, in += PER_GROUP + window) {
		struct detector *d = &x->group[g].detector;
		good = is_valid_count(in[0]) && is_valid_count(in[3]) && in[2] >= 0 &&
		       is_valid_count(in[4]) && in[4] <= 2 && is_valid_count(in[5]) &&
		       in[5] <= 2 * EDIT_LOCKOUTS + 3;
		if (!good)
			break;
		x->group[g].outer_steps = (int64_t)in[0];
		x->group[g].lockouts = (int)in[5] / 2;
		d->mean = in[1];
		d->m2 = in[2];
		d->count = (int64_t)in[3];
		memcpy(d->z, in + PER_GROUP, (size_t)window * sizeof(*in));
	}
	if (!good)
		return err_set(e, EX_DATAERR,
			"the state of local SGD has an invalid number; give another checkpoint");
	return restore_in_flight(x, head, head + HEAD, local_steps, e);
}
