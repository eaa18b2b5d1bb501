/* The amax of float8 weights, from which their scales are computed: one all-reduce for all
 * weights at the first use after an update, as with torchao's
 * precompute_float8_dynamic_scale_for_fsdp. Units with offloaded parameters, or that local SGD
 * synchronizes during the forward, have one all-reduce each.
 *
 * An amax is the maximum over all slices and shards of a weight. It has no sign, so it can be
 * computed as the integer maximum of the bits; NaN is larger than all values. */
#include "parallel/store_internal.h"

/* Returns true if each rank computes the amax of its shards. Else it computes the amax of whole
 * slices, which only some of the ranks that share them may use, as in an evaluation. */
static bool reads_shards(const struct store *s)
{
	return is_sharded(s) && s->c.zero == 3 && !is_offloaded(s, STORE_PARAM);
}

void amax_open(struct store *s, struct arena *run)
{
	struct store_impl *o = s->impl;
	unsigned axes = AXIS_BIT(AXIS_TP);
	bool has_float8 = false;
	for (int i = 0; i < s->c.n_tensors; i++)
		has_float8 |= s->c.tensors[i].float8;
	if (!has_float8)
		return;
	if (reads_shards(s))
		axes |= AXIS_BIT(AXIS_FSDP) | AXIS_BIT(AXIS_CP);
	o->amax_ranks = mesh_group(s->c.mesh, (struct mesh_part){.axes = axes});
	o->amax = arena_floats(run, s->c.n_tensors);
	o->amax_known = xcalloc((size_t)s->c.n_units, sizeof(*o->amax_known));
}

void amax_forget(struct store *s, int first_unit, int last_unit)
{
	for (int u = first_unit; u <= last_unit && s->impl->amax; u++)
		s->impl->amax_known[u] = false;
}

float *store_amax(const struct store *s, const struct tensor *t)
{
	return s->impl->amax + (t - s->c.tensors);
}

static bool needs_amax(const struct store *s, const struct tensor *t, int unit)
{
	return t->float8 && !s->impl->amax_known[t->unit] &&
	       (unit < 0 || t->unit == unit);
}

/* Zeroes the amax of the tensors that need it, and of the tensors without float8 between them. */
static void zero_unknown_amax(struct store *s, int unit)
{
	const struct tensor *t = s->c.tensors, *end = t + s->c.n_tensors;
	while (t < end) {
		const struct tensor *first = t;
		while (t < end && (!t->float8 || needs_amax(s, t, unit)))
			t++;
		if (t > first)
			s->c.device->k->zero(
				s->c.device, mat(store_amax(s, first), 1, t - first));
		while (t < end && t->float8 && !needs_amax(s, t, unit))
			t++;
	}
}

/* Computes the amax of this rank's shards, in all units (-1) or one. */
static void compute_shard_amax(struct store *s, int unit)
{
	struct device *d = s->c.device;
	for (const struct part *x = s->updated; x < s->updated + s->n_held; x++)
		if (needs_amax(s, x->t, unit))
			d->k->amax(d, store_amax(s, x->t),
				mat(x->state[STORE_PARAM], x->rows, x->cols));
}

/* Computes the amax of this rank's whole slices, in all units (-1) or one. */
static void compute_slice_amax(struct store *s, int unit)
{
	struct device *d = s->c.device;
	for (const struct tensor *t = s->c.tensors; t < s->c.tensors + s->c.n_tensors;
		t++)
		for (int k = t->first; k < t->first + t->local; k++)
			if (needs_amax(s, t, unit))
				d->k->amax(d, store_amax(s, t), store_param(s, t, k));
}

void amax_compute(struct store *s, int unit)
{
	struct store_impl *o = s->impl;
	if (!o->amax || o->amax_known[unit])
		return;
	/* with offloaded parameters, only a gathered unit can be read */
	int only_unit = is_offloaded(s, STORE_PARAM) ? unit : -1;
	zero_unknown_amax(s, only_unit);
	if (reads_shards(s))
		compute_shard_amax(s, only_unit);
	else
		compute_slice_amax(s, only_unit);
	comm_run(o->amax_ranks, COLL_ALLREDUCE,
		&(struct coll_args){.recv = o->amax,
			.count = s->c.n_tensors,
			.type = COMM_I32,
			.op = COMM_MAX});
	for (int u = 0; u < s->c.n_units; u++)
		o->amax_known[u] |= only_unit < 0 || u == only_unit;
}
