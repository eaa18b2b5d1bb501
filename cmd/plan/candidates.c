/* The layouts of a number of ranks: all combinations that could be the fastest, or that --only
 * has. */
#include "plan/planner.h"

struct walk {
	const struct space *space;
	struct layout l;
	void (*visit)(void *ctx, const struct layout *l);
	void *ctx;
	int64_t n;
};

/* The values of a setting: from --only, or else the usual values. */
struct values {
	int value[MAX_ONLY], n;
};

static struct values values_of(
	const struct walk *w, enum setting_kind kind, const int *usual, int n)
{
	struct values v;
	v.n = only_values(w->space->only, kind, v.value);
	for (int i = 0; !v.n && i < n; i++)
		v.value[i] = usual[i];
	v.n = v.n ? v.n : n;
	return v;
}

/* Visits the layout, if --only allows it. */
static void emit(struct walk *w)
{
	if (!only_allows(w->space->only, &w->l))
		return;
	w->n++;
	w->visit(w->ctx, &w->l);
}

/* Returns true if layers can be tiled: parameters must be gathered or read, and a tile must be
 * smaller than a slice of tensor parallelism. */
static bool can_tile(const struct walk *w, int tile, enum offload offload)
{
	const struct layout *l = &w->l;
	const struct model_config *c = &w->space->m->c;
	bool moves = l->zero == 3 || offloads_params(offload);
	return !tile ||
	       (moves && l->reshard == RESHARD_YES && tile > l->degree[AXIS_TP] &&
		       tile % l->degree[AXIS_TP] == 0 && c->heads % tile == 0 &&
		       c->dim % tile == 0 && c->ffn_dim % tile == 0);
}

static void each_tile_and_offload(struct walk *w)
{
	const struct space *s = w->space;
	struct values tiles = values_of(w, SET_TILE, s->tile, s->n_tiles);
	struct values offloads = values_of(w, SET_OFFLOAD, s->offload, s->n_offloads);
	for (int i = 0; i < tiles.n; i++)
		for (int k = 0; k < offloads.n; k++) {
			w->l.tile = tiles.value[i];
			w->l.offload = offloads.value[k];
			if (can_tile(w, w->l.tile, (enum offload)w->l.offload))
				emit(w);
		}
}

static void each_recompute(struct walk *w)
{
	for (int r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++) {
		w->l.recompute = r;
		each_tile_and_offload(w);
	}
}

/* Tries one stage per rank, or two or four where the schedule has several; with more stages,
 * messages get small. gpipe is left out: it keeps more than 1f1b, and is not faster. */
static void each_schedule(struct walk *w)
{
	static const int kinds[] = {SCHEDULE_1F1B, SCHEDULE_ZB_H1, SCHEDULE_INTERLEAVED,
		SCHEDULE_INTERLEAVED_ZB, SCHEDULE_ZBV};
	static const int usual[] = {1, 2, 4};
	int pp = w->l.degree[AXIS_PP];
	struct values kind = values_of(w, SET_SCHEDULE, kinds, ARRAY_LEN(kinds));
	struct values stages = values_of(w, SET_STAGES, usual, ARRAY_LEN(usual));
	for (int i = 0; i < (pp > 1 ? kind.n : 1); i++) {
		w->l.schedule = pp > 1 ? kind.value[i] : SCHEDULE_1F1B;
		const struct schedule_row *row = &schedule_kinds[w->l.schedule];
		int limit = row->max_stages	  ? row->max_stages
			    : row->min_stages > 1 ? INT32_MAX
						  : 1;
		for (int k = 0; k < stages.n; k++) {
			w->l.stages = stages.value[k];
			if (w->l.stages >= row->min_stages && w->l.stages <= limit &&
				(int64_t)pp * w->l.stages <= w->space->m->c.layers)
				each_recompute(w);
		}
	}
}

/* Tries ZeRO-3, with and without gathering again; ZeRO-2; ZeRO-1; and no sharding, if only ranks of
 * cp could share. */
static void each_zero(struct walk *w)
{
	static const int usual[] = {RESHARD_YES, RESHARD_NO};
	struct values reshard = values_of(w, SET_RESHARD, usual, ARRAY_LEN(usual));
	bool several = w->l.degree[AXIS_FSDP] > 1;
	bool sharded = several || w->l.degree[AXIS_CP] > 1;
	for (int i = 0; sharded && i < reshard.n; i++) {
		w->l.zero = 3;
		w->l.reshard = reshard.value[i];
		each_schedule(w);
	}
	w->l.reshard = RESHARD_YES;
	for (w->l.zero = sharded ? 2 : 0; w->l.zero >= (several ? 1 : 0); w->l.zero--)
		each_schedule(w);
}

static void each_micro_batch(struct walk *w)
{
	static const int powers[] = {1, 2, 4, 8, 16, 32, 64};
	int64_t data = (int64_t)w->l.degree[AXIS_DP] * w->l.degree[AXIS_FSDP];
	int64_t rank_batch = w->space->batch / data;
	struct values sizes = values_of(w, SET_MICRO_BATCH, powers, ARRAY_LEN(powers));
	if (w->space->batch % data)
		return;
	for (int i = 0; i < sizes.n; i++) {
		int size = sizes.value[i];
		if (size < 1 || rank_batch % size)
			continue;
		w->l.micro_batch = size;
		w->l.n_micro = rank_batch / size;
		each_zero(w);
	}
}

/* Tries shards over all data-parallel ranks, over a host's ranks (HSDP), and none, or as --only
 * has. */
static void each_fsdp(struct walk *w, int data)
{
	int *degree = w->l.degree;
	int inner = degree[AXIS_TP] * degree[AXIS_CP];
	int host = w->space->host_ranks / inner;
	const int usual[] = {data, host, 1};
	struct values shards = values_of(w, SET_FSDP, usual, ARRAY_LEN(usual));
	struct values replicas = values_of(w, SET_DP, NULL, 0);
	for (int i = 0; i < replicas.n && replicas.value[i] > 0; i++)
		shards.value[i] = data / replicas.value[i];
	shards.n = replicas.n ? replicas.n : shards.n;
	int last = 0;
	for (int i = 0; i < shards.n; i++) {
		int f = shards.value[i];
		if (f < 1 || f > data || data % f || f == last)
			continue;
		last = f;
		degree[AXIS_FSDP] = f;
		degree[AXIS_DP] = data / f;
		each_micro_batch(w);
	}
}

/* Returns true if tp and cp divide the model. m->tp is the degree of --virtual, else 1. */
static bool divides_model(const struct model *m, int tp, int cp)
{
	bool kv = m->tp > 1 ? m->tp % tp == 0
			    : m->c.kv_heads % tp == 0 || tp % m->c.kv_heads == 0;
	return kv && m->c.heads % tp == 0 && m->c.ffn_dim % tp == 0 &&
	       m->c.dim % tp == 0 && m->c.context % (2 * cp) == 0 &&
	       (cp == 1 || m->c.context / cp >= 64);
}

int64_t visit_layouts(const struct space *s,
	void (*visit)(void *ctx, const struct layout *l), void *ctx)
{
	struct walk w = {.space = s, .visit = visit, .ctx = ctx};
	w.l.host_ranks = s->host_ranks < s->ranks ? s->host_ranks : 0;
	int *degree = w.l.degree, given[MAX_ONLY];
	bool any = only_values(s->only, SET_TP, given) > 0;
	for (int tp = 1; tp <= min64(s->ranks, any ? s->ranks : s->host_ranks); tp++)
		for (int cp = 1; tp * cp <= s->ranks && cp <= 64; cp++) {
			if (s->ranks % (tp * cp) || !divides_model(s->m, tp, cp))
				continue;
			for (int pp = 1; pp <= s->m->c.layers; pp++) {
				if (s->ranks % (tp * cp * pp))
					continue;
				degree[AXIS_TP] = tp;
				degree[AXIS_CP] = cp;
				degree[AXIS_PP] = pp;
				each_fsdp(&w, s->ranks / (tp * cp * pp));
			}
		}
	return w.n;
}
