/*
 * Buckets: the slices that are reduced and gathered together, the group of ranks that does so, and
 * their shards. They are a pure function of the mesh and the tensor table, and equal on all ranks
 * of a bucket's group.
 */
#include "parallel/store_internal.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 16 }; /* floats on a cache line */

/* ---- the group of a tensor ------------------------------------------------------- */

/* The number of neighbouring ranks along tp whose virtual slices use the same slice. */
static int tp_run(const struct store *s, const struct tensor *t)
{
	return t->users_per_slice > s->c.part.local ? t->users_per_slice / s->c.part.local
						    : 1;
}

/* The type in which a tensor is gathered or read. ZeRO 1 and 2 gather the updated parameters
 * themselves, not copies for matmuls, and so in fp32. */
static enum dtype wire_of(const struct store *s, const struct tensor *t)
{
	bool gathered = (s->c.zero == 3 && s->impl->n_shards > 1) || offloads_copies(s);
	if (!t->operand || !gathered)
		return DT_F32;
	return t->float8 && s->c.wire != DT_F32 ? DT_E4M3 : s->c.wire;
}

static bool same_group(
	const struct store *s, const struct tensor *a, const struct tensor *b)
{
	return a->users_per_slice == b->users_per_slice && a->uses == b->uses &&
	       tp_run(s, a) == tp_run(s, b) && wire_of(s, a) == wire_of(s, b);
}

static struct mesh_part group_of(const struct store *s, const struct tensor *t)
{
	struct mesh_part part = {
		.axes = AXIS_BIT(AXIS_DP) | AXIS_BIT(AXIS_FSDP) | AXIS_BIT(AXIS_CP)};
	if (tp_run(s, t) > 1) {
		part.axes |= AXIS_BIT(AXIS_TP);
		part.tp_run = tp_run(s, t);
	}
	return part;
}

static int shard_of(const struct store *s, const int at[N_AXES])
{
	if (s->impl->n_shards == 1)
		return 0;
	return at[AXIS_FSDP] * s->c.mesh->degree[AXIS_CP] + at[AXIS_CP];
}

/* ---- the tensors of a bucket ----------------------------------------------------- */

static void add_entry(struct bucket *b, struct tensor *t, int slice)
{
	bool vector = t->ndim == 1;
	b->entry = xrealloc(b->entry, (size_t)(b->n_entries + 1) * sizeof(*b->entry));
	b->entry[b->n_entries++] = (struct entry){.t = t,
		.slice = slice,
		.rows = vector ? t->cols : t->rows,
		.cols = vector ? 1 : t->cols,
		.at = b->n};
	b->n += round_up(t->rows * t->cols, ALIGN);
}

static int64_t unit_floats(const struct store *s, const struct tensor *like, int unit)
{
	int64_t n = 0;
	for (int i = 0; i < s->c.n_tensors; i++) {
		const struct tensor *t = &s->c.tensors[i];
		if (t->unit == unit && same_group(s, t, like))
			n += t->local * round_up(t->rows * t->cols, ALIGN);
	}
	return n;
}

/* Does a slice belong to the bucket of the other one? The bucket's units begin at `first`. */
static bool same_bucket(const struct store *s, const struct tensor *t, int slice,
	const struct tensor *like, int like_slice, int first)
{
	if (is_tiled(s, t) || is_tiled(s, like))
		return unit_of(s, t, slice) == unit_of(s, like, like_slice) &&
		       same_group(s, t, like);
	return t->unit >= first && t->unit <= like->unit && same_group(s, t, like);
}

/* On all layouts alike. */
static int levels_of(const struct store *s, const struct tensor *t)
{
	int64_t n = max64(1, s->c.microbatches.n_micro) * t->uses * s->c.chunks *
		    t->users_per_slice * max64(1, s->c.workers);
	int levels = 0;
	while ((int64_t)1 << levels < n)
		levels++;
	return levels;
}

/* All local slices of tensors like this one, from its unit down to the unit with which the bucket
 * is large enough. With sharded gradients, offloaded parameters or micro-batches assigned
 * round-robin, a bucket has one unit. */
static void make_bucket(struct store *s, const struct tensor *like, int slice)
{
	struct store_impl *o = s->impl;
	bool by_unit = s->c.zero >= 2 || s->c.microbatches.round_robin ||
		       like->unit == 0 || !s->c.microbatches.n_micro ||
		       is_offloaded(s, STORE_PARAM);
	int first = like->unit, id = unit_of(s, like, slice);
	int64_t n = unit_floats(s, like, first);
	while (!by_unit && first > 1 && n * (int64_t)sizeof(float) < s->c.bucket_bytes)
		n += unit_floats(s, like, --first);
	o->bucket = xrealloc(o->bucket, (size_t)(o->n_buckets + 1) * sizeof(*o->bucket));
	struct bucket *b = &o->bucket[o->n_buckets];
	*b = (struct bucket){
		.store = s, .first_unit = by_unit ? id : first, .last_unit = id};
	for (int i = 0; i < s->c.n_tensors; i++) {
		struct tensor *t = &s->c.tensors[i];
		for (int k = t->first; k < t->first + t->local; k++) {
			struct location *w = location_of(s, t, k);
			if (w->bucket >= 0 || !same_bucket(s, t, k, like, slice, first))
				continue;
			*w = (struct location){o->n_buckets, b->n_entries};
			add_entry(b, t, k);
		}
	}
	b->wire = wire_of(s, like);
	/* the uses are on two pipeline stages */
	b->tied = like->uses > 1 && s->c.mesh->degree[AXIS_PP] > 1;
	b->by_use = s->c.microbatches.round_robin && is_tiled(s, like) &&
		    like->uses > 1 && !b->tied;
	b->uses = b->tied ? 1 : like->uses;
	b->users = like->users_per_slice;
	b->levels = levels_of(s, like);
	if (o->n_shards == 1 && s->c.device->discrete) /* equal pieces, for NCCL */
		b->n = round_up(b->n, ALIGN * mesh_size(s->c.mesh, group_of(s, like)));
	o->n_buckets++;
}

/* ---- shards ---------------------------------------------------------------------- */

/* Shards begin at rows, because norms add rows. Those of a flat vector are equal parts of all of
 * its entries together, rounded to rows. */
static void shard_entry(
	const struct store *s, const struct bucket *b, struct entry *e, int64_t before)
{
	int n = s->impl->n_shards;
	int64_t total = 0;
	for (int i = 0; i < b->n_entries; i++)
		total += b->entry[i].rows * b->entry[i].cols;
	e->bounds = xcalloc((size_t)n + 1, sizeof(*e->bounds));
	e->packed = xcalloc((size_t)n, sizeof(*e->packed));
	for (int i = 0; i <= n; i++) {
		int64_t at = part_begin(total, n, i) - before;
		int64_t row = at <= 0 ? 0 : ceil_div(at, e->cols);
		e->bounds[i] =
			s->c.flat ? min64(e->rows, row) : part_begin(e->rows, n, i);
	}
	e->bounds[n] = e->rows;
}

static void make_shards(struct store *s, struct bucket *b)
{
	int n = s->impl->n_shards;
	int64_t before = 0;
	b->shard = xcalloc((size_t)n, sizeof(*b->shard));
	for (int i = 0; i < b->n_entries; i++) {
		struct entry *e = &b->entry[i];
		shard_entry(s, b, e, before);
		before += e->rows * e->cols;
	}
	if (n == 1) { /* with the gaps between entries */
		b->shard[0] =
			(struct sum_shard){xcalloc(1, sizeof(struct sum_run)), 1, b->n};
		b->shard[0].run[0] = (struct sum_run){0, b->n};
		for (int i = 0; i < b->n_entries; i++)
			b->entry[i].packed[0] = b->entry[i].at;
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
					e->at + e->bounds[k] * e->cols, len};
			x->n += len;
		}
	}
}

/* The ranks of a part of the mesh, and the plan of their sums of vectors with these shards. A rank receives
 * the number of its shard, divided by `divisor`, modulo n_shards. */
static void make_sum_group(struct store *s, struct bucket *b, struct sum_group *g,
	struct mesh_part part, const struct sum_shard *shard, int n_shards, int divisor)
{
	struct mesh *m = s->c.mesh;
	g->c = mesh_group(m, part);
	int n = mesh_members(m, part, &g->ranks);
	int *wants = xcalloc((size_t)n, sizeof(*wants));
	BUG_ON(n != g->c->size);
	for (int r = 0; r < n && n_shards > 1; r++) {
		int at[N_AXES];
		mesh_place(m, g->ranks[r], at);
		wants[r] = shard_of(s, at) / divisor % n_shards;
	}
	g->plan = (struct sum_plan){.c = g->c,
		.d = s->c.device,
		.shard = shard,
		.n_shards = n_shards,
		.wants = wants,
		.levels = b->levels,
		.segment = s->c.sum_segment,
		.int64 = g == &b->across};
	sum_share(&g->plan);
	g->form = xcalloc((size_t)n, sizeof(*g->form));
}

static void free_sum_group(struct sum_group *g)
{
	if (g->c)
		sum_unshare(&g->plan);
	free((void *)g->plan.wants);
	free(g->form);
	free(g->ranks);
}

static const struct mesh_part of_shards = {
	.axes = AXIS_BIT(AXIS_FSDP) | AXIS_BIT(AXIS_CP)};
static const struct mesh_part of_replicas = {.axes = AXIS_BIT(AXIS_DP)};
static const struct mesh_part of_hosts = {
	.axes = AXIS_BIT(AXIS_DP) | AXIS_BIT(AXIS_FSDP) | AXIS_BIT(AXIS_CP)};

static struct mesh_part with_hosts(struct mesh_part part, enum mesh_hosts hosts)
{
	part.hosts = hosts;
	return part;
}

static bool sums_gradients(const struct store *s)
{
	return s->c.microbatches.n_micro > 0;
}

/* Are the gradients of all ranks with the same shards summed within the replicas first? */
static bool is_hybrid(const struct store *s)
{
	return s->impl->n_shards > 1 && s->c.mesh->degree[AXIS_DP] > 1 &&
	       sums_gradients(s) && !s->impl->host_run;
}

/* Replicas that are on one host each, or share one, are summed as hybrid. */
static int host_run(const struct store *s)
{
	int run = mesh_host_run(s->c.mesh, of_hosts), n = s->impl->n_shards;
	return run && sums_gradients(s) && (n == 1 || (n > run && n % run == 0)) ? run
										 : 0;
}

/* Appends the runs of a shard. */
static void append_shard(struct sum_shard *x, const struct sum_shard *more)
{
	x->run = xrealloc(
		x->run, (size_t)(x->n_runs + more->n_runs + 1) * sizeof(*x->run));
	memcpy(x->run + x->n_runs, more->run, (size_t)more->n_runs * sizeof(*x->run));
	x->n_runs += more->n_runs;
	x->n += more->n;
}

/* The n shards of the second sum, of lengths len[n], one after another. */
static void make_last_shards(struct bucket *b, const int64_t *len, int n)
{
	int64_t at = 0;
	b->last_shard = xcalloc((size_t)n, sizeof(*b->last_shard));
	for (int i = 0; i < n; at += len[i++]) {
		struct sum_run run = {at, len[i]};
		append_shard(
			&b->last_shard[i], &(struct sum_shard){&run, len[i] > 0, len[i]});
	}
}

static void divide_by_host(struct store *s, struct bucket *b)
{
	int n = s->impl->n_shards, run = s->impl->host_run, place = s->impl->shard % run;
	int n_last = n > 1 ? n / run : 1;
	int64_t first, *len = xcalloc((size_t)n_last, sizeof(*len));
	b->by_host = true;
	if (n > 1)
		b->in_host = xcalloc((size_t)run, sizeof(*b->in_host));
	for (int k = 0; k < n && n > 1; k++)
		append_shard(&b->in_host[k % run], &b->shard[k]);
	make_sum_group(s, b, &b->within, with_hosts(of_hosts, HOSTS_THIS),
		n > 1 ? b->in_host : b->shard, n > 1 ? run : 1, 1);
	for (int i = 0; i < n_last; i++)
		len[i] = n > 1 ? b->shard[place + i * run].n
			       : sum_piece(&b->within.plan, b->within.c->rank, &first);
	make_last_shards(b, len, n_last);
	make_sum_group(s, b, &b->across, with_hosts(of_hosts, HOSTS_ACROSS),
		b->last_shard, n_last, run);
	free(len);
}

static void make_sums(struct store *s, struct bucket *b)
{
	struct mesh_part part = group_of(s, b->entry->t);
	int n = s->impl->n_shards;
	make_sum_group(s, b, &b->all, part, b->shard, n, 1);
	b->leaves = b->last = &b->all;
	if (!b->levels || part.tp_run)
		return;
	if (s->impl->host_run) {
		divide_by_host(s, b);
	} else if (is_hybrid(s)) {
		make_last_shards(b, &b->shard[s->impl->shard].n, 1);
		make_sum_group(s, b, &b->within, of_shards, b->shard, n, 1);
		make_sum_group(s, b, &b->across, of_replicas, b->last_shard, 1, 1);
	} else {
		return;
	}
	b->leaves = &b->within;
	b->last = &b->across;
	for (int r = 0; r < b->across.c->size; r++)
		b->across.form[r] = SUM_INT64;
}

/* The ranks of a stage have the same tensors and the same number of slices, so their shards have the
 * same bounds. */
struct store_rows store_rows_of(
	const struct store *s, const struct tensor *t, int i, int rank)
{
	int at[N_AXES];
	mesh_place(s->c.mesh, rank, at);
	const struct entry *e = entry_of(s, t, t->first + i);
	int shard = shard_of(s, at);
	return (struct store_rows){
		.slice = tensor_slice(t, at[AXIS_TP] * s->c.part.local) + i,
		.first = e->bounds[shard],
		.rows = e->bounds[shard + 1] - e->bounds[shard]};
}

void buckets_make(struct store *s)
{
	int n = s->c.n_tensors * s->c.part.local;
	s->impl->location = xcalloc((size_t)n, sizeof(*s->impl->location));
	for (int i = 0; i < n; i++)
		s->impl->location[i].bucket = -1;
	s->impl->n_shards =
		s->c.zero ? s->c.mesh->degree[AXIS_FSDP] * s->c.mesh->degree[AXIS_CP] : 1;
	s->impl->shard = shard_of(s, s->c.mesh->at);
	/* creating a group is collective, also for stages without such a tensor */
	for (int i = 0; i < s->c.n_tensors; i++)
		mesh_group(s->c.mesh, group_of(s, &s->c.tensors[i]));
	s->impl->host_run = host_run(s);
	if (s->impl->host_run) {
		mesh_group(s->c.mesh, with_hosts(of_hosts, HOSTS_THIS));
		mesh_group(s->c.mesh, with_hosts(of_hosts, HOSTS_ACROSS));
	} else if (is_hybrid(s)) {
		mesh_group(s->c.mesh, of_shards);
		mesh_group(s->c.mesh, of_replicas);
	}
	for (int i = s->c.n_tensors - 1; i >= 0; i--) { /* the order of a backward */
		const struct tensor *t = &s->c.tensors[i];
		for (int k = t->first; k < t->first + t->local; k++)
			if (location_of(s, t, k)->bucket < 0)
				make_bucket(s, t, k);
	}
	for (int i = 0; i < s->impl->n_buckets; i++) {
		make_shards(s, &s->impl->bucket[i]);
		make_sums(s, &s->impl->bucket[i]);
	}
}

void buckets_free(struct store *s)
{
	struct bucket *end = s->impl->bucket + s->impl->n_buckets;
	for (struct bucket *b = s->impl->bucket; b < end; b++) {
		for (int k = 0; k < b->n_entries; k++) {
			free(b->entry[k].bounds);
			free(b->entry[k].packed);
		}
		for (int k = 0; k < s->impl->n_shards; k++)
			free(b->shard[k].run);
		for (int k = 0; k < b->within.plan.n_shards && b->in_host; k++)
			free(b->in_host[k].run);
		for (int k = 0; k < b->across.plan.n_shards; k++)
			free(b->last_shard[k].run);
		free(b->in_host);
		free(b->last_shard);
		free_sum_group(&b->all);
		free_sum_group(&b->within);
		free_sum_group(&b->across);
		free(b->entry);
		free(b->staged_at);
		free(b->shard);
	}
	free(s->impl->bucket);
	free(s->impl->location);
}

/* ---- leaves ---------------------------------------------------------------------- */

int64_t bucket_leaves(
	const struct store *s, const struct bucket *b, int rank, int use, int64_t round)
{
	const struct mesh *m = s->c.mesh;
	const struct microbatches *d = &s->c.microbatches;
	int at[N_AXES];
	mesh_place(m, rank, at);
	int data_rank = microbatches_rank(m->degree, at);
	int64_t micros = !d->round_robin
				 ? microbatches_count(d, data_rank)
				 : microbatches_index(d, data_rank, round) < d->n_micro;
	int64_t chunks = s->c.chunks / m->degree[AXIS_CP];
	return micros * chunks * min64(b->users, s->c.part.local) *
	       (use < 0 ? b->uses : 1);
}

void bucket_set_forms(const struct store *s, struct bucket *b, int use, int64_t round)
{
	const struct sum_group *g = b->leaves;
	for (int r = 0; r < g->c->size; r++) {
		int64_t n = bucket_leaves(s, b, g->ranks[r], use, round);
		g->form[r] = n > 1 ? SUM_INT64 : n ? SUM_LEAF : SUM_NONE;
	}
}

/* The ranks whose pieces are rounded, or kept. */
static const struct sum_group *owners_of(const struct bucket *b)
{
	return b->by_host ? b->last : b->leaves;
}

bool bucket_is_gathered(const struct bucket *b)
{
	return b->by_host && !b->in_host;
}

int64_t bucket_gathered_at(const struct bucket *b)
{
	int64_t first;
	sum_piece(&b->leaves->plan, b->leaves->c->rank, &first);
	return first;
}

int64_t bucket_piece(const struct bucket *b, int64_t *first)
{
	const struct sum_group *g = owners_of(b);
	int64_t n = sum_piece(&g->plan, g->c->rank, first);
	if (bucket_is_gathered(b)) /* a piece of a piece */
		*first += bucket_gathered_at(b);
	return n;
}

bool bucket_keeps(const struct store *s, const struct bucket *b)
{
	const struct microbatches *m = &s->c.microbatches;
	bool hybrid = b->last != b->leaves && !b->by_host;
	bool rounds = m->round_robin &&
		      (m->n_micro > m->ranks || b->by_use || is_offloaded(s, STORE_GRAD));
	return b->levels && (rounds || s->c.workers > 1 || b->tied || hybrid ||
				    owners_of(b)->c->size > GRID_PARTS);
}

bool bucket_is_alone(const struct bucket *b)
{
	const struct sum_plan *p = &b->all.plan;
	return p->sharers[p->wants[b->all.c->rank]] == 1;
}

bool bucket_rounds_kept(const struct store *s, const struct bucket *b)
{
	return bucket_keeps(s, b) && s->c.microbatches.round_robin &&
	       !is_offloaded(s, STORE_GRAD) && bucket_is_alone(b);
}
