/* The layouts of a number of ranks: every combination that could be the fastest. */
#include "planner/planner.h"

struct walk {
	const struct space *space;
	struct layout l;
	void (*take)(void *with, const struct layout *l);
	void *with;
	int64_t n;
};

static void take(struct walk *w)
{
	w->n++;
	w->take(w->with, &w->l);
}

static void each_recompute(struct walk *w)
{
	for (int r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++) {
		w->l.recompute = r;
		take(w);
	}
}

/* Interleaved with two or four stages a rank: more make the messages small. */
static void each_schedule(struct walk *w)
{
	static const struct {
		int kind;
		int64_t stages;
	} rows[] = {{SCHEDULE_1F1B, 1}, {SCHEDULE_ZB_H1, 1}, {SCHEDULE_INTERLEAVED, 2},
		{SCHEDULE_INTERLEAVED, 4}};
	int pp = w->l.degree[AXIS_PP];
	for (size_t i = 0; i < (pp > 1 ? ARRAY_LEN(rows) : 1); i++) {
		w->l.schedule = rows[i].kind;
		w->l.stages = rows[i].stages;
		if (pp * w->l.stages <= w->space->m->c.layers)
			each_recompute(w);
	}
}

/* Sharding of everything, with and without gathering again; of gradients and moments; of moments. */
static void each_zero(struct walk *w)
{
	static const struct {
		int zero;
		bool reshard;
	} rows[] = {{3, true}, {3, false}, {2, true}, {1, true}};
	int shards = w->l.degree[AXIS_FSDP];
	w->l.zero = 0;
	w->l.reshard = true;
	if (shards == 1) {
		each_schedule(w);
		return;
	}
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		w->l.zero = rows[i].zero;
		w->l.reshard = rows[i].reshard;
		each_schedule(w);
	}
}

static void each_micro_batch(struct walk *w)
{
	int64_t data = w->l.degree[AXIS_DP] * w->l.degree[AXIS_FSDP];
	int64_t of_rank = w->space->batch / data;
	if (w->space->batch % data)
		return;
	for (int64_t b = 1; b <= min64(of_rank, 64); b *= 2) {
		if (of_rank % b)
			continue;
		w->l.micro_batch = b;
		w->l.n_micro = of_rank / b;
		each_zero(w);
	}
}

/* Shards over all data-parallel ranks, those of a host, or none. */
static void each_fsdp(struct walk *w, int data)
{
	int *degree = w->l.degree;
	int inner = degree[AXIS_TP] * degree[AXIS_CP];
	int host = w->space->host_ranks / inner;
	int last = 0;
	const int choices[] = {data, host, 1};
	for (size_t i = 0; i < ARRAY_LEN(choices); i++) {
		int f = choices[i];
		if (f < 1 || f > data || data % f || f == last)
			continue;
		last = f;
		degree[AXIS_FSDP] = f;
		degree[AXIS_DP] = data / f;
		each_micro_batch(w);
	}
}

/* m->tp: of --virtual, else 1. */
static bool divides_model(const struct model *m, int tp, int cp)
{
	bool kv = m->tp > 1 ? m->tp % tp == 0
			    : m->c.kv_heads % tp == 0 || tp % m->c.kv_heads == 0;
	return kv && m->c.heads % tp == 0 && m->c.ffn_dim % tp == 0 &&
	       m->c.dim % tp == 0 && m->c.context % (2 * cp) == 0 &&
	       (cp == 1 || m->c.context / cp >= 64);
}

int64_t candidates(const struct space *s,
	void (*taker)(void *with, const struct layout *l), void *with)
{
	struct walk w = {.space = s, .take = taker, .with = with};
	int *degree = w.l.degree;
	for (int tp = 1; tp <= min64(s->ranks, s->host_ranks); tp++)
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
