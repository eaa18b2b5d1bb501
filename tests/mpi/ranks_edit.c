/* Workers of local SGD agree on the same bits, whatever the layout inside each.
 * ranks: 8
 * device: cpu cuda
 */
#include "parallel/store_internal.h"
#include "tests/support/copies.h"
#include "tests/support/edit_workers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SYNCS = 5 };

/* Collective over the worker. Elements of this rank's parts that are not what products get. */
static int64_t not_in_use(struct worker *w)
{
	int64_t wrong = 0;
	for (int u = 0; u < UNITS; u++) {
		store_use(w->s, u, -1);
		for (int64_t i = 0; i < w->s->n_updated; i++) {
			const struct part *x = &w->s->updated[i];
			int64_t n = x->rows * x->cols;
			if (x->t->unit != u || !x->state[STORE_PARAM])
				continue;
			const float *all = store_param(w->s, x->t, x->slice).p;
			float *p = worker_fetch(x->state[STORE_PARAM], n);
			float *used = worker_fetch(all + x->row * x->cols, n);
			for (int64_t k = 0; k < n; k++)
				wrong += used[k] != p[k];
			free(p);
			free(used);
		}
		store_done(w->s, u, true);
	}
	return wrong;
}

static uint64_t unit_hash(const struct worker *w, int unit)
{
	uint64_t hash = 0;
	for (int64_t i = 0; i < w->s->n_updated; i++) {
		const struct part *x = &w->s->updated[i];
		int64_t n = x->rows * x->cols;
		if (x->t->unit != unit)
			continue;
		float *p = worker_fetch(x->state[STORE_PARAM], n);
		hash = hash_bytes(p, (size_t)n * sizeof(*p), hash);
		free(p);
	}
	return hash;
}

static bool is_on_stage(const struct worker *w, int unit)
{
	bool some = false;
	for (int i = 0; i < N_TENSORS; i++)
		some |= w->table[i].unit == unit && w->used[i];
	return some;
}

/* A synchronisation whose units are used as soon as they have come. How many of them were not
 * there yet? */
static int64_t sync_by_units(struct worker *w, int64_t steps, struct edit_result *r)
{
	uint64_t used[UNITS];
	int64_t wrong = 0;
	edit_begin(w->x, 0, steps, r);
	edit_complete_tied(w->x);
	for (int u = 0; u < UNITS; u++) {
		if (is_on_stage(w, u))
			edit_complete_unit(w->x, u);
		used[u] = unit_hash(w, u);
	}
	edit_end(w->x, 0, r);
	for (int u = 0; u < UNITS; u++)
		wrong += used[u] != unit_hash(w, u);
	return wrong;
}

/* Collective over c. A hash of the parameters after each sync; 0 where workers differ, or a
 * rank has something else than it should. */
struct history {
	uint64_t hash[SYNCS];
	double norm[SYNCS], weight[SYNCS], clip[SYNCS], reduced[SYNCS];
	int anomalies[SYNCS];
};

static void run(struct comm *c, int workers, const struct worker_layout *l,
	const struct edit_config *ec, int bad, struct history *h)
{
	struct worker w;
	memset(h, 0, sizeof(*h));
	worker_open(&w, c, workers, l, ec);
	worker_move(&w, -1, 0, NOWHERE);
	edit_anchor(w.x);
	for (int i = 0; i < SYNCS; i++) {
		struct edit_result r;
		int64_t sent = w.sync->sent;
		worker_move(&w, w.sync->rank, i, i == 2 ? bad : NOWHERE);
		int64_t wrong = 0;
		if (i % 2 && edit_completes_by_unit(w.x))
			wrong = sync_by_units(&w, 1 + w.sync->rank, &r);
		else
			edit_sync(w.x, 1 + w.sync->rank, &r);
		wrong += w.sync->sent - sent != edit_sent(w.x);
		uint64_t hash = store_hash(w.s);
		wrong += not_in_use(&w);
		wrong += !test_copies_agree(w.s);
		int64_t least = comm_min_i64(c, (int64_t)hash);
		wrong += comm_max_i64(c, (int64_t)hash) != least;
		h->hash[i] = comm_max_i64(c, wrong) ? 0 : hash;
		if (w.sync->rank == 0) { /* the first worker's view */
			h->norm[i] = r.norm;
			h->weight[i] = r.weight;
			h->clip[i] = r.clip;
			h->reduced[i] = r.reduced;
			h->anomalies[i] = r.anomalies;
		}
	}
	worker_close(&w);
}

/* ---- the same bits on any layout ------------------------------------------------- */

static const struct worker_layout layouts[] = {
	/* pp dp fsdp cp tp */
	{{1, 2, 1, 1, 1}, 0, OFFLOAD_NONE, false},
	{{1, 1, 3, 1, 1}, 2, OFFLOAD_NONE, false},
	{{1, 1, 2, 1, 2}, 1, OFFLOAD_NONE, false},
	{{4, 1, 1, 1, 1}, 0, OFFLOAD_NONE, false},
	{{1, 1, 2, 1, 1}, 3, OFFLOAD_OPTIMIZER, false},
	{{1, 1, 2, 1, 1}, 3, OFFLOAD_NONE, false},
	{{1, 1, 1, 1, 2}, 0, OFFLOAD_NONE, false},
	{{1, 1, 1, 1, 1}, 0, OFFLOAD_ALL, false},
	{{1, 1, 2, 1, 1}, 3, OFFLOAD_PARAMS, false},
	{{2, 1, 1, 1, 1}, 0, OFFLOAD_NONE, false},
	{{2, 1, 2, 1, 1}, 3, OFFLOAD_NONE, true},
	{{1, 1, 2, 1, 1}, 2, OFFLOAD_NONE, true},
};

/* Of all there are, a quarter; a slow GPU does a few, mostly of the last layouts. */
static bool is_due(size_t config, int workers, size_t layout)
{
	const struct worker_layout *l = &layouts[layout];
	if (workers * ranks_needed(l->degree) > world->size)
		return false;
	size_t of = worker_device.discrete && test_device_slow(&worker_device) ? 23 : 4;
	return ((size_t)workers + config + layout) % of == 0;
}

static bool some_are_due(size_t config, int workers)
{
	bool some = false;
	for (size_t l = 0; l < ARRAY_LEN(layouts); l++)
		some |= is_due(config, workers, l);
	return some;
}

/* An average of parameters has none. */
static bool has_anchor(const struct edit_config *c)
{
	struct store_groups g = {.n = 0};
	edit_add_groups(c, &g);
	return store_groups_find(&g, "anchor") > 0;
}

TEST(bits_of_any_layout)
{
	static const struct worker_layout alone = {
		{1, 1, 1, 1, 1}, 0, OFFLOAD_NONE, false};
	int n = 0;
	for (size_t i = 0; i < N_EDIT_CONFIGS; i++)
		for (int workers = 2; workers <= 4; workers++) {
			if (!some_are_due(i, workers))
				continue;
			struct history want, got;
			struct comm *c =
				comm_split(world, world->rank < workers ? 0 : -1, "some");
			int bad = (int)(i % 3) - 1;
			if (!has_anchor(&edit_configs[i]))
				bad = NOWHERE; /* an average has no way back */
			if (c)
				run(c, workers, &alone, &edit_configs[i], bad, &want);
			comm_free(c);
			comm_bcast(world, &want, sizeof(want), 0);
			for (int k = 0; k < SYNCS; k++)
				assert_on_all(want.hash[k] != 0);
			for (size_t l = 0; l < ARRAY_LEN(layouts); l++) {
				int ranks = workers * ranks_needed(layouts[l].degree);
				bool differs = false;
				if (!is_due(i, workers, l))
					continue;
				c = comm_split(
					world, world->rank < ranks ? 0 : -1, "some");
				if (c) {
					run(c, workers, &layouts[l], &edit_configs[i],
						bad, &got);
					differs = memcmp(
						got.hash, want.hash, sizeof(got.hash));
					if (world->rank == 0)
						differs =
							memcmp(&got, &want, sizeof(got));
				}
				comm_free(c);
				n++;
				if (differs)
					fprintf(stderr,
						"# config %zu, %d workers, layout %zu\n",
						i, workers, l);
				assert_on_all(!differs);
			}
		}
	if (world->rank == 0)
		printf("# figure: %d runs of workers that train apart, with the bits of "
		       "one rank a worker\n",
			n);
}

int main(void)
{
	ranks_open();
	worker_device_open();
	int rc = ranks_run();
	worker_device_close();
	return ranks_close(rc);
}
