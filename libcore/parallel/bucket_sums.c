/* The sums of a bucket: their ranks (one sum or two), contributions, and this rank's piece. */
#include "parallel/store_internal.h"

/* ---- the ranks ------------------------------------------------------------------- */

/* Makes a group of the ranks of a part of the mesh, and the plan of its sums of vectors with
 * these shards. The rank of shard k receives shard k / divisor % n_shards of the sum. */
static void make_sum_group(struct store *s, struct bucket *b, struct sum_group *g,
	struct mesh_part part, const struct sum_shard *shard, int n_shards, int divisor)
{
	struct mesh *m = s->c.mesh;
	g->c = mesh_group(m, part);
	int n = mesh_members(m, part, &g->ranks);
	int *wants = xcalloc((size_t)n, sizeof(*wants));
	BUG_ON(n != g->c->size);
	for (int r = 0; r < n && n_shards > 1; r++) {
		int coord[N_AXES];
		mesh_coordinates(m->degree, g->ranks[r], coord);
		wants[r] = shard_at(b->sharding, m, coord) / divisor % n_shards;
	}
	g->plan = (struct sum_plan){.c = g->c,
		.d = s->c.device,
		.shard = shard,
		.n_shards = n_shards,
		.wants = wants,
		.levels = b->levels,
		.segment = s->c.sum_segment};
	sum_plan_init(&g->plan);
}

static void release_sum_group(struct sum_group *g)
{
	if (g->c)
		sum_plan_release(&g->plan);
	free((void *)g->plan.wants);
	free(g->ranks);
}

static bool sums_gradients(const struct store *s)
{
	return s->c.microbatches.n_micro > 0;
}

/* Returns true if gradients are summed within each replica first, then across replicas (HSDP). */
static bool is_hybrid(const struct store *s, const struct sharding *x)
{
	return x->n > 1 && s->c.mesh->degree[AXIS_DP] > 1 && sums_gradients(s) &&
	       !x->host_run;
}

/* Returns the ranks per host if gradients are summed by host, else 0 (one sum, or HSDP). By host,
 * all ranks meet in each turn, so replicas with different numbers of turns sum as in HSDP. */
static int choose_host_run(const struct store *s, const struct sharding *x)
{
	if (s->c.microbatches.begin && s->c.microbatches.round_robin)
		return 0;
	int run = mesh_ranks_per_host(s->c.mesh, sharding_ranks(x)), n = x->n;
	return run && sums_gradients(s) && (n == 1 || (n > run && n % run == 0)) ? run
										 : 0;
}

/* Sets the ranks of the first and the second sum. Returns false if one sum is enough. */
static bool split_sums(const struct store *s, const struct sharding *x,
	struct mesh_part *within, struct mesh_part *across)
{
	*within = *across = sharding_ranks(x);
	within->hosts = HOSTS_THIS;
	across->hosts = HOSTS_ACROSS;
	if (is_hybrid(s, x)) {
		*within = sharding_replica(x);
		*across = (struct mesh_part){.axes = AXIS_BIT(AXIS_DP)};
	}
	return x->host_run || is_hybrid(s, x);
}

void bucket_sums_make_groups(struct store *s)
{
	for (int k = 0; k < N_SHARDINGS; k++) {
		struct mesh_part within, across;
		struct sharding *x = &s->impl->sharding[k];
		x->host_run = choose_host_run(s, x);
		if (split_sums(s, x, &within, &across)) {
			mesh_group(s->c.mesh, within);
			mesh_group(s->c.mesh, across);
		}
	}
}

/* Appends n runs to a shard of a sum, and adds their lengths to its size. */
static void append_runs(struct sum_shard *x, const struct sum_run *run, int n)
{
	x->run = xrealloc(x->run, (size_t)(x->n_runs + n + 1) * sizeof(*x->run));
	for (int i = 0; i < n; i++) {
		x->run[x->n_runs++] = run[i];
		x->n += run[i].len;
	}
}

/* Sets the runs of the bucket's vector that elements [first, first + n) of a packed shard are. */
static void set_origin(
	struct sum_plan *p, const struct sum_shard *shard, int64_t first, int64_t n)
{
	p->origin = xcalloc((size_t)shard->n_runs + 1, sizeof(*p->origin));
	for (int i = 0; i < shard->n_runs && n > 0; i++) {
		const struct sum_run *run = &shard->run[i];
		int64_t skip = min64(first, run->len), len = min64(n, run->len - skip);
		if (len)
			p->origin[p->n_origin++] = (struct sum_run){run->pos + skip, len};
		first -= skip;
		n -= len;
	}
}

/* Makes the groups of two sums. Shard i of the first sum (n_first shards) consists of the shards
 * k of the bucket with k % n_first == i; the second sum divides it into these shards. */
static void make_two_groups(struct store *s, struct bucket *b, struct mesh_part within,
	struct mesh_part across, int n_first)
{
	struct bucket_sums *x = &b->sums;
	int n = b->sharding->n, n_last = n / n_first;
	int64_t offset = 0, first;
	x->first_shard = xcalloc((size_t)n_first, sizeof(*x->first_shard));
	x->last_shard = xcalloc((size_t)n_last, sizeof(*x->last_shard));
	for (int k = 0; k < n; k++)
		append_runs(&x->first_shard[k % n_first], b->shard[k].run,
			b->shard[k].n_runs);
	make_sum_group(s, b, &x->within, within, x->first_shard, n_first, 1);
	int64_t own_elements = sum_piece(&x->within.plan, x->within.c->rank, &first);
	for (int i = 0; i < n_last; i++) {
		int shard = b->sharding->own % n_first + i * n_first;
		int64_t len = n > 1 ? b->shard[shard].n : own_elements;
		append_runs(&x->last_shard[i], &(struct sum_run){offset, len}, len > 0);
		offset += len;
	}
	make_sum_group(s, b, &x->across, across, x->last_shard, n_last, n_first);
	set_origin(&x->across.plan, &x->first_shard[b->sharding->own % n_first], first,
		own_elements);
}

/* Makes the groups of ranks for one sum or for two. */
static void make_groups(struct store *s, struct bucket *b, struct mesh_part part)
{
	struct bucket_sums *x = &b->sums;
	struct mesh_part within, across;
	int n = b->sharding->n, run = b->sharding->host_run;
	make_sum_group(s, b, &b->all, part, b->shard, n, 1);
	x->first = x->last = &b->all;
	if (!b->levels || part.tp_run || !split_sums(s, b->sharding, &within, &across))
		return;
	make_two_groups(s, b, within, across, n > 1 && run ? run : n);
	x->first = &x->within;
	x->last = &x->across;
}

/* Sets the turns of a step, and this rank's leaves in them. Returns the number of rounds. */
static int64_t set_turns(struct store *s, struct bucket *b)
{
	const struct microbatches *m = &s->c.microbatches;
	const struct mesh *mesh = s->c.mesh;
	int rank = mesh->world->rank;
	int64_t n = microbatches_count(m, microbatches_rank(mesh->degree, mesh->coord));
	int64_t rounds = m->round_robin ? n : 1;
	b->turns.n = rounds * (b->by_use ? 2 : 1);
	b->turns.calls = m->round_robin ? 1 : n;
	b->leaves.per_turn = bucket_leaves_per_turn(s, b, rank, 0);
	b->leaves.last = bucket_leaves_per_turn(s, b, rank, rounds - 1);
	return rounds;
}

void store_set_turns(struct store *s)
{
	for (int i = 0; i < s->impl->n_trained; i++)
		set_turns(s, &s->impl->bucket[i]);
}

/* Sets the turns of a step, and what each rank contributes in a full and in the last round: by
 * speed always a sum, since a rank with one leaf may have several in the next step. */
static void make_turns(struct store *s, struct bucket *b)
{
	const struct microbatches *m = &s->c.microbatches;
	const struct sum_group *g = b->sums.first;
	int64_t rounds = set_turns(s, b),
		most_leaves = m->begin && !m->round_robin ? 0 : 1;
	b->leaves.adds = b->leaves.per_turn > most_leaves;
	for (int k = 0; k < 2; k++) {
		enum sum_form *form = xcalloc((size_t)g->c->size, sizeof(*form));
		for (int r = 0; r < g->c->size; r++) {
			int rank = g->ranks[r];
			int64_t full = bucket_leaves_per_turn(s, b, rank, 0), n = full;
			if (k)
				n = bucket_leaves_per_turn(s, b, rank, rounds - 1);
			form[r] = !n		       ? SUM_NONE
				  : full > most_leaves ? SUM_INT64
						       : SUM_LEAF;
		}
		b->sums.form[k] = form;
	}
}

/* Computes this rank's piece and the plans from the groups. */
static void make_plans(struct store *s, struct bucket *b)
{
	struct bucket_sums *x = &b->sums;
	const struct sum_plan *all = &b->all.plan, *first_plan = &x->first->plan;
	bool two = x->last != x->first, by_host = two && b->sharding->host_run;
	const struct sum_plan *owners = &bucket_owners(b)->plan;
	struct reduction_facts f = {.scheme = by_host ? SCHEME_HOSTS
					      : two   ? SCHEME_REPLICAS
						      : SCHEME_ONE,
		.turns = b->turns.n,
		.one_leaf = !b->levels,
		.several_leaves = b->leaves.adds,
		.one_rank = all->c->size == 1,
		.sole_owner = all->sharers[all->wants[all->c->rank]] == 1,
		.one_shard = b->sharding->n == 1,
		.rounds = s->c.microbatches.round_robin,
		.tied = b->tied,
		.workers = s->c.workers > 1,
		.file = is_offloaded(s, STORE_GRAD),
		.many_owners = owners->c->size > GRID_PARTS};
	x->piece = sum_piece(owners, owners->c->rank, &f.piece_at);
	if (by_host && f.one_shard) /* a piece of a piece */
		sum_piece(first_plan, first_plan->c->rank, &f.part_at);
	f.piece_at += f.part_at;
	reduction_plan(&b->plan[0], &f);
	f.warm_up = f.workers;
	reduction_plan(&b->plan[1], &f);
}

void bucket_sums_init(struct store *s, struct bucket *b, struct mesh_part part)
{
	make_groups(s, b, part);
	make_turns(s, b);
	make_plans(s, b);
}

void bucket_sums_release(struct bucket *b)
{
	struct bucket_sums *x = &b->sums;
	for (int k = 0; k < x->within.plan.n_shards; k++)
		free(x->first_shard[k].run);
	for (int k = 0; k < x->across.plan.n_shards; k++)
		free(x->last_shard[k].run);
	free(x->first_shard);
	free(x->last_shard);
	free(x->form[0]);
	free(x->form[1]);
	release_sum_group(&b->all);
	release_sum_group(&x->within);
	release_sum_group(&x->across);
}

/* ---- leaves ---------------------------------------------------------------------- */

/* Returns the micro-batches that a data-parallel rank has in a turn. */
static int64_t micros_per_turn(const struct microbatches *d, int data_rank, int64_t round)
{
	return d->round_robin ? microbatches_index(d, data_rank, round) < d->n_micro
			      : microbatches_own(d, data_rank);
}

int64_t bucket_leaves_per_turn(
	const struct store *s, const struct bucket *b, int rank, int64_t round)
{
	const struct mesh *m = s->c.mesh;
	int coord[N_AXES], ep = b->sharding->ep;
	int64_t micros = 0, chunks = s->c.chunks / m->degree[AXIS_CP];
	mesh_coordinates(m->degree, rank, coord);
	int first = mesh_data_index(m->degree, coord) / ep * ep;
	for (int i = first; i < first + ep; i++) /* the sources of the experts' rows */
		micros += micros_per_turn(
			&s->c.microbatches, i / m->degree[AXIS_CP], round);
	return micros * chunks * min64(b->users, s->c.part.local) *
	       (b->by_use ? 1 : b->uses);
}
