/* Buckets: slices that are reduced and gathered together, their group of ranks, and their shards.
 * They depend on the mesh and the tensor table only, and are equal on all ranks of the group. */
#include "parallel/store_internal.h"

#include "comm/tree.h"

enum { ALIGN = 16 }; /* floats on a cache line */

/* ---- the group of a tensor ------------------------------------------------------- */

/* Returns the number of adjacent tp ranks that share one slice. */
static int tp_run(const struct store *s, const struct tensor *t)
{
	return t->users_per_slice > s->c.part.local ? t->users_per_slice / s->c.part.local
						    : 1;
}

/* Returns the type in which a tensor is gathered or read. ZeRO 1 and 2 gather fp32 parameters. */
static enum dtype gather_dtype(const struct store *s, const struct tensor *t)
{
	bool is_gathered =
		(s->c.zero == 3 && sharding_of(s, t)->n > 1) || offloads_copies(s);
	if (!t->operand || !is_gathered)
		return DT_F32;
	return t->float8 && s->c.wire != DT_F32 ? DT_E4M3 : s->c.wire;
}

/* Returns true if a bucket may hold slices of both tensors. */
static bool can_share_bucket(
	const struct store *s, const struct tensor *a, const struct tensor *b)
{
	return a->frozen == b->frozen && sharding_of(s, a) == sharding_of(s, b) &&
	       a->users_per_slice == b->users_per_slice && a->uses == b->uses &&
	       tp_run(s, a) == tp_run(s, b) && gather_dtype(s, a) == gather_dtype(s, b);
}

struct mesh_part sharding_ranks(const struct sharding *x)
{
	return (struct mesh_part){
		.axes = AXIS_BIT(AXIS_DP) | AXIS_BIT(AXIS_FSDP) | AXIS_BIT(AXIS_CP),
		.data_every = x->ep};
}

struct mesh_part sharding_replica(const struct sharding *x)
{
	return (struct mesh_part){
		.axes = AXIS_BIT(AXIS_FSDP) | AXIS_BIT(AXIS_CP), .data_every = x->ep};
}

/* Returns the ranks that share the slices of a tensor. */
static struct mesh_part ranks_of(const struct store *s, const struct tensor *t)
{
	struct mesh_part part = sharding_ranks(sharding_of(s, t));
	if (tp_run(s, t) > 1) {
		part.axes |= AXIS_BIT(AXIS_TP);
		part.tp_run = tp_run(s, t);
	}
	return part;
}

int shard_at(const struct sharding *x, const struct mesh *m, const int coord[N_AXES])
{
	int index = coord[AXIS_FSDP] * m->degree[AXIS_CP] + coord[AXIS_CP];
	return x->n == 1 ? 0 : index / x->ep;
}

/* ---- the tensors of a bucket ----------------------------------------------------- */

/* Appends a slice of a tensor to a bucket. A vector becomes a column, so that shards divide it. */
static void add_entry(struct bucket *b, struct tensor *t, int slice)
{
	bool is_vector = t->ndim == 1;
	b->entry = xrealloc(b->entry, (size_t)(b->n_entries + 1) * sizeof(*b->entry));
	b->entry[b->n_entries++] = (struct entry){.t = t,
		.slice = slice,
		.rows = is_vector ? t->cols : t->held_rows,
		.cols = is_vector ? 1 : t->cols,
		.pos = b->n,
		.n_expert_leaves =
			t->experts ? xcalloc((size_t)t->experts, sizeof(int64_t)) : NULL};
	b->n += round_up(t->held_rows * t->cols, ALIGN);
}

/* Returns the floats of the slices in a unit that may share a bucket with `like`. */
static int64_t unit_floats(const struct store *s, const struct tensor *like, int unit)
{
	int64_t n = 0;
	for (int i = 0; i < s->c.n_tensors; i++) {
		const struct tensor *t = &s->c.tensors[i];
		if (t->unit == unit && can_share_bucket(s, t, like))
			n += t->local * round_up(t->held_rows * t->cols, ALIGN);
	}
	return n;
}

/* Returns true if a slice belongs to the bucket of `like`, which has units from `first` on. */
static bool in_bucket(const struct store *s, const struct tensor *t, int slice,
	const struct tensor *like, int like_slice, int first)
{
	if (is_tiled(s, t) || is_tiled(s, like))
		return unit_of(s, t, slice) == unit_of(s, like, like_slice) &&
		       can_share_bucket(s, t, like);
	return t->unit >= first && t->unit <= like->unit && can_share_bucket(s, t, like);
}

/* Returns log2 of the leaves of an element, rounded up. It is the same on all layouts. */
static int count_levels(const struct store *s, const struct tensor *t)
{
	int64_t n = max64(1, s->c.microbatches.n_micro) * t->uses * s->c.chunks *
		    t->users_per_slice * max64(1, s->c.workers);
	return tree_levels(n);
}

/* Adds the slices of tensors with `ndim` dimensions to the new bucket. */
static void add_entries(const struct store *s, struct bucket *b,
	const struct tensor *like, int slice, int first, int ndim)
{
	for (int i = 0; i < s->c.n_tensors; i++) {
		struct tensor *t = &s->c.tensors[i];
		for (int k = t->first; k < t->first + t->local && t->ndim == ndim; k++) {
			struct location *loc = location_of(s, t, k);
			if (loc->bucket >= 0 || !in_bucket(s, t, k, like, slice, first))
				continue;
			*loc = (struct location){s->impl->n_buckets, b->n_entries};
			add_entry(b, t, k);
		}
	}
}

/* Makes a bucket of all local slices of tensors like this one, from its unit down to the unit
 * with which the bucket is large enough. With sharded gradients, offloaded parameters or
 * micro-batches assigned round-robin, a bucket has one unit. */
static void make_bucket(struct store *s, const struct tensor *like, int slice)
{
	struct store_impl *o = s->impl;
	bool one_unit = s->c.zero >= 2 || s->c.microbatches.round_robin ||
			like->unit == 0 || !s->c.microbatches.n_micro ||
			is_offloaded(s, STORE_PARAM);
	int first = like->unit, id = unit_of(s, like, slice);
	int64_t n = unit_floats(s, like, first);
	while (!one_unit && first > 1 && n * (int64_t)sizeof(float) < s->c.bucket_bytes)
		n += unit_floats(s, like, --first);
	o->bucket = xrealloc(o->bucket, (size_t)(o->n_buckets + 1) * sizeof(*o->bucket));
	struct bucket *b = &o->bucket[o->n_buckets];
	*b = (struct bucket){.store = s,
		.first_unit = id,
		.last_unit = id,
		.sharding = sharding_of(s, like)};
	add_entries(s, b, like, slice, first, 2);
	add_entries(s, b, like, slice, first, 1); /* so that matrices are adjacent */
	for (int i = 0; i < b->n_entries; i++)
		b->first_unit = (int)min64(
			b->first_unit, unit_of(s, b->entry[i].t, b->entry[i].slice));
	b->wire = gather_dtype(s, like);
	bool has_pipeline = s->c.mesh->degree[AXIS_PP] > 1;
	b->tied = like->uses > 1 && has_pipeline && !s->c.has_both_ends;
	/* other micro-batches run between the two uses in one micro-batch */
	b->by_use = s->c.microbatches.round_robin &&
		    (is_tiled(s, like) || has_pipeline) && like->uses > 1 && !b->tied;
	b->uses = b->tied ? 1 : like->uses;
	b->users = like->users_per_slice;
	b->levels = count_levels(s, like);
	if (b->sharding->n == 1 && s->c.device->discrete) /* equal pieces, for NCCL */
		b->n = round_up(b->n, ALIGN * mesh_size(s->c.mesh, ranks_of(s, like)));
	o->n_buckets++;
}

/* ---- shards ---------------------------------------------------------------------- */

/* Computes the shards of an entry. They begin at rows, because norms add rows. The shards of a
 * flat vector are equal parts of all its entries together, rounded to rows. */
static void shard_entry(const struct store *s, const struct bucket *b, struct entry *e,
	int64_t floats_before)
{
	int n = b->sharding->n;
	int64_t total = 0;
	for (int i = 0; i < b->n_entries; i++)
		total += b->entry[i].rows * b->entry[i].cols;
	e->bounds = xcalloc((size_t)n + 1, sizeof(*e->bounds));
	e->packed = xcalloc((size_t)n, sizeof(*e->packed));
	for (int i = 0; i <= n; i++) {
		int64_t first = part_begin(total, n, i) - floats_before;
		int64_t row = first <= 0 ? 0 : ceil_div(first, e->cols);
		e->bounds[i] =
			s->c.flat ? min64(e->rows, row) : part_begin(e->rows, n, i);
	}
	e->bounds[n] = e->rows;
}

/* Computes the shards of a bucket: rows of its entries, and runs of its vector. */
static void make_shards(struct store *s, struct bucket *b)
{
	int n = b->sharding->n;
	int64_t floats_before = 0;
	b->shard = xcalloc((size_t)n, sizeof(*b->shard));
	for (int i = 0; i < b->n_entries; i++) {
		struct entry *e = &b->entry[i];
		shard_entry(s, b, e, floats_before);
		floats_before += e->rows * e->cols;
	}
	if (n == 1) { /* includes the gaps between entries */
		b->shard[0] =
			(struct sum_shard){xcalloc(1, sizeof(struct sum_run)), 1, b->n};
		b->shard[0].run[0] = (struct sum_run){0, b->n};
		for (int i = 0; i < b->n_entries; i++)
			b->entry[i].packed[0] = b->entry[i].pos;
		return;
	}
	for (int k = 0; k < n; k++) {
		struct sum_shard *x = &b->shard[k];
		x->run = xcalloc((size_t)b->n_entries, sizeof(*x->run));
		for (int i = 0; i < b->n_entries; i++) {
			struct entry *e = &b->entry[i];
			int64_t len = (e->bounds[k + 1] - e->bounds[k]) * e->cols;
			e->packed[k] = x->n;
			if (len)
				x->run[x->n_runs++] = (struct sum_run){
					e->pos + e->bounds[k] * e->cols, len};
			x->n += len;
		}
	}
}

/* Computes the rows of another rank from this rank's bounds: the ranks of a stage have the same
 * tensors and the same number of slices, so their shards have the same bounds. */
struct store_rows store_rows_of(
	const struct store *s, const struct tensor *t, int i, int rank)
{
	int coord[N_AXES];
	mesh_coordinates(s->c.mesh->degree, rank, coord);
	const struct entry *e = entry_of(s, t, t->first + i);
	const struct sharding *x = sharding_of(s, t);
	int shard = shard_at(x, s->c.mesh, coord);
	int place = mesh_data_index(s->c.mesh->degree, coord) % x->ep;
	return (struct store_rows){
		.slice = tensor_slice(t, coord[AXIS_TP] * s->c.part.local) + i,
		.first = (x->ep > 1 ? place * t->held_rows : 0) + e->bounds[shard],
		.rows = e->bounds[shard + 1] - e->bounds[shard]};
}

/* Makes buckets in the order of a backward. */
static void make_buckets(struct store *s, bool frozen)
{
	for (int i = s->c.n_tensors - 1; i >= 0; i--) {
		const struct tensor *t = &s->c.tensors[i];
		for (int k = t->first; k < t->first + t->local; k++)
			if (t->frozen == frozen && location_of(s, t, k)->bucket < 0)
				make_bucket(s, t, k);
	}
}

/* Sets the shards, and creates their group. Collective. */
static void init_sharding(struct store *s, struct sharding *x)
{
	struct mesh *m = s->c.mesh;
	int ranks = m->degree[AXIS_FSDP] * m->degree[AXIS_CP];
	bool has_experts = x == &s->impl->sharding[SHARDING_EXPERTS];
	x->ep = has_experts && s->c.part.ep > 1 ? s->c.part.ep : 1;
	x->c = mesh_group(m, sharding_replica(x));
	x->n = s->c.zero && ranks > x->ep ? ranks / x->ep : 1;
	x->own = shard_at(x, m, m->coord);
}

void buckets_make(struct store *s)
{
	int n = s->c.n_tensors * s->c.part.local;
	s->impl->location = xcalloc((size_t)n, sizeof(*s->impl->location));
	for (int i = 0; i < n; i++)
		s->impl->location[i].bucket = -1;
	for (int k = 0; k < N_SHARDINGS; k++)
		init_sharding(s, &s->impl->sharding[k]);
	/* creating a group is collective, even for stages without such a tensor */
	for (int i = 0; i < s->c.n_tensors; i++)
		mesh_group(s->c.mesh, ranks_of(s, &s->c.tensors[i]));
	bucket_sums_make_groups(s);
	make_buckets(s, false);
	s->impl->n_trained = s->impl->n_buckets;
	make_buckets(s, true);
	for (int i = 0; i < s->impl->n_buckets; i++) {
		make_shards(s, &s->impl->bucket[i]);
		bucket_sums_init(
			s, &s->impl->bucket[i], ranks_of(s, s->impl->bucket[i].entry->t));
	}
}

void buckets_free(struct store *s)
{
	struct bucket *end = s->impl->bucket + s->impl->n_buckets;
	for (struct bucket *b = s->impl->bucket; b < end; b++) {
		for (int k = 0; k < b->n_entries; k++) {
			free(b->entry[k].bounds);
			free(b->entry[k].packed);
			free(b->entry[k].n_expert_leaves);
		}
		for (int k = 0; k < b->sharding->n; k++)
			free(b->shard[k].run);
		bucket_sums_release(b);
		free(b->entry);
		free(b->gather.staged_at);
		free(b->shard);
	}
	free(s->impl->bucket);
	free(s->impl->location);
}
