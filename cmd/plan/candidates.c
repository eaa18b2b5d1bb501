/* The layouts of a number of ranks: all combinations that could be the fastest, or that --only
 * specifies. */
#include "plan/planner.h"

struct layout_walk {
	const struct space *space;
	struct layout l;
	void (*visit)(void *ctx, const struct layout *l);
	void *ctx;
	int64_t n;
};

/* The values of a setting to try. */
struct values {
	int value[MAX_ONLY], n;
};

/* Returns the values of a setting in --only, or else the usual values [n]. */
static struct values values_to_try(
	const struct layout_walk *w, enum setting_kind kind, const int *usual, int n)
{
	struct values v;
	v.n = only_values(w->space->only, kind, v.value);
	for (int i = 0; !v.n && i < n; i++)
		v.value[i] = usual[i];
	v.n = v.n ? v.n : n;
	return v;
}

/* Visits the layout, if --only allows it. */
static void visit_if_allowed(struct layout_walk *w)
{
	if (!only_allows(w->space->only, &w->l))
		return;
	w->n++;
	w->visit(w->ctx, &w->l);
}

/* Returns true if layers can be tiled: parameters must be gathered or read, and a tile must be
 * smaller than a slice of tensor parallelism. */
static bool can_tile(const struct layout_walk *w, int tile, enum offload offload)
{
	const struct layout *l = &w->l;
	const struct model_config *c = &w->space->m->c;
	bool is_copied = l->zero == 3 || offloads_params(offload);
	return !tile ||
	       (is_copied && l->reshard == RESHARD_YES && tile > l->degree[AXIS_TP] &&
		       tile % l->degree[AXIS_TP] == 0 && c->heads % tile == 0 &&
		       c->dim % tile == 0 && c->ffn_dim % tile == 0);
}

/* Visits the layout with each tile and offload. The try functions nest, one setting each. */
static void try_tiles_and_offloads(struct layout_walk *w)
{
	const struct space *s = w->space;
	struct values tiles = values_to_try(w, SET_TILE, s->tile, s->n_tiles);
	struct values offloads = values_to_try(w, SET_OFFLOAD, s->offload, s->n_offloads);
	for (int i = 0; i < tiles.n; i++)
		for (int k = 0; k < offloads.n; k++) {
			w->l.tile = tiles.value[i];
			w->l.offload = offloads.value[k];
			if (can_tile(w, w->l.tile, (enum offload)w->l.offload))
				visit_if_allowed(w);
		}
}

/* Visits the layout with each kind of recomputation. */
static void try_recompute(struct layout_walk *w)
{
	for (int r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++) {
		w->l.recompute = r;
		try_tiles_and_offloads(w);
	}
}

/* Returns the maximum of stages per rank to try: several only for kinds that are made for them. */
static int max_stages_to_try(const struct schedule_row *row)
{
	int max = row->min_stages > 1 ? INT32_MAX : 1;
	return row->max_stages ? row->max_stages : max;
}

/* Tries each schedule with one stage per rank, or two or four if it has several; with more stages,
 * messages get small. Not gpipe: it needs more memory than 1f1b, and is not faster. */
static void try_schedules(struct layout_walk *w)
{
	static const int kinds[] = {SCHEDULE_1F1B, SCHEDULE_ZB_H1, SCHEDULE_INTERLEAVED,
		SCHEDULE_INTERLEAVED_ZB, SCHEDULE_ZBV};
	static const int usual[] = {1, 2, 4};
	int pp = w->l.degree[AXIS_PP];
	struct values kind = values_to_try(w, SET_SCHEDULE, kinds, ARRAY_LEN(kinds));
	struct values stages = values_to_try(w, SET_STAGES, usual, ARRAY_LEN(usual));
	for (int i = 0; i < (pp > 1 ? kind.n : 1); i++) {
		w->l.schedule = pp > 1 ? kind.value[i] : SCHEDULE_1F1B;
		const struct schedule_row *row = &schedule_kinds[w->l.schedule];
		for (int k = 0; k < stages.n; k++) {
			w->l.stages = stages.value[k];
			if (w->l.stages >= row->min_stages &&
				w->l.stages <= max_stages_to_try(row) &&
				(int64_t)pp * w->l.stages <= w->space->m->c.layers)
				try_recompute(w);
		}
	}
}

/* Tries ZeRO-3, with and without gathering again; ZeRO-2; ZeRO-1; and no sharding, if there are no
 * fsdp ranks. */
static void try_zero(struct layout_walk *w)
{
	static const int usual[] = {RESHARD_YES, RESHARD_NO};
	struct values reshard = values_to_try(w, SET_RESHARD, usual, ARRAY_LEN(usual));
	bool has_fsdp = w->l.degree[AXIS_FSDP] > 1;
	bool has_shards = has_fsdp || w->l.degree[AXIS_CP] > 1;
	for (int i = 0; has_shards && i < reshard.n; i++) {
		w->l.zero = 3;
		w->l.reshard = reshard.value[i];
		try_schedules(w);
	}
	w->l.reshard = RESHARD_YES;
	for (w->l.zero = has_shards ? 2 : 0; w->l.zero >= (has_fsdp ? 1 : 0); w->l.zero--)
		try_schedules(w);
}

/* Tries the sizes of micro-batches that divide the batch of a data-parallel rank. */
static void try_micro_batches(struct layout_walk *w)
{
	static const int powers[] = {1, 2, 4, 8, 16, 32, 64};
	int64_t data = (int64_t)w->l.degree[AXIS_DP] * w->l.degree[AXIS_FSDP];
	int64_t rank_batch = w->space->batch / data;
	struct values sizes =
		values_to_try(w, SET_MICRO_BATCH, powers, ARRAY_LEN(powers));
	if (w->space->batch % data)
		return;
	for (int i = 0; i < sizes.n; i++) {
		int size = sizes.value[i];
		if (size < 1 || rank_batch % size)
			continue;
		w->l.micro_batch = size;
		w->l.n_micro = rank_batch / size;
		try_zero(w);
	}
}

/* Returns true if ep ranks can divide the experts: they are in a replica of the shards, or have
 * whole replicas. */
static bool can_divide_experts(const struct layout *l, int64_t experts, int ep)
{
	int shards = l->degree[AXIS_FSDP] * l->degree[AXIS_CP];
	return experts % ep == 0 && shards * l->degree[AXIS_DP] % ep == 0 &&
	       (shards % ep == 0 || ep % shards == 0);
}

/* Tries each degree of expert parallelism that the ranks allow. */
static void try_eps(struct layout_walk *w)
{
	int64_t experts = w->space->m->c.experts;
	w->l.ep = 0;
	if (!experts)
		try_micro_batches(w);
	for (int ep = 1; ep <= experts; ep++)
		if (can_divide_experts(&w->l, experts, ep)) {
			w->l.ep = ep;
			try_micro_batches(w);
		}
}

/* Tries shards over all data-parallel ranks, a host's ranks (HSDP), none; or --only's values. */
static void try_shards(struct layout_walk *w, int data_ranks)
{
	int *degree = w->l.degree;
	int inner = degree[AXIS_TP] * degree[AXIS_CP];
	int host_shards = w->space->host_ranks / inner;
	const int usual[] = {data_ranks, host_shards, 1};
	struct values shards = values_to_try(w, SET_FSDP, usual, ARRAY_LEN(usual));
	struct values replicas = values_to_try(w, SET_DP, NULL, 0);
	for (int i = 0; i < replicas.n && replicas.value[i] > 0; i++)
		shards.value[i] = data_ranks / replicas.value[i];
	shards.n = replicas.n ? replicas.n : shards.n;
	int previous = 0;
	for (int i = 0; i < shards.n; i++) {
		int n_shards = shards.value[i];
		if (n_shards < 1 || n_shards > data_ranks || data_ranks % n_shards ||
			n_shards == previous)
			continue;
		previous = n_shards;
		degree[AXIS_FSDP] = n_shards;
		degree[AXIS_DP] = data_ranks / n_shards;
		try_eps(w);
	}
}

/* Returns true if tp and cp divide the model. m->tp is the degree of --virtual, else 1. */
static bool divides_model(const struct model *m, int tp, int cp)
{
	bool divides_kv = m->tp > 1 ? m->tp % tp == 0
				    : m->c.kv_heads % tp == 0 || tp % m->c.kv_heads == 0;
	return divides_kv && m->c.heads % tp == 0 && m->c.ffn_dim % tp == 0 &&
	       m->c.dim % tp == 0 && m->c.expert_dim % tp == 0 &&
	       m->c.shared_expert_dim % tp == 0 && m->c.context % (2 * cp) == 0 &&
	       (cp == 1 || m->c.context / cp >= 64);
}

int64_t visit_layouts(const struct space *s,
	void (*visit)(void *ctx, const struct layout *l), void *ctx)
{
	struct layout_walk w = {.space = s, .visit = visit, .ctx = ctx};
	w.l.host_ranks = s->host_ranks < s->ranks ? s->host_ranks : 0;
	int *degree = w.l.degree, tp_values[MAX_ONLY];
	bool has_tp_values = only_values(s->only, SET_TP, tp_values) > 0;
	for (int tp = 1; tp <= min64(s->ranks, has_tp_values ? s->ranks : s->host_ranks);
		tp++)
		for (int cp = 1; tp * cp <= s->ranks && cp <= 64; cp++) {
			if (s->ranks % (tp * cp) || !divides_model(s->m, tp, cp))
				continue;
			for (int pp = 1; pp <= s->m->c.layers; pp++) {
				if (s->ranks % (tp * cp * pp))
					continue;
				degree[AXIS_TP] = tp;
				degree[AXIS_CP] = cp;
				degree[AXIS_PP] = pp;
				try_shards(&w, s->ranks / (tp * cp * pp));
			}
		}
	return w.n;
}
