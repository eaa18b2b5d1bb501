/* The self-test of attention: with the head size, formats and chunks of the run, but fewer
 * sequences and heads, and fewer rows of long chunks. There are still several tiles, sequences
 * and groups of heads, since a kernel may be right only for the first of them. The GPU repeats
 * the CPU's sequences, so that each of its blocks processes several tiles. */
#include "kernels/selftest_trial.h"

#include <math.h>

/* The arguments of a call on both sides. */
struct attn_pair {
	struct attn a[SIDES];	 /* for the key/value chunk of the call */
	struct attn self[SIDES]; /* for the queries' own chunk, the first one */
	struct trial_pair q, k, v, own_k, own_v; /* own: of the queries' chunk */
	bool is_one_chunk;			 /* there is only one chunk */
};

/* Returns a number of rows for which the CPU's forward takes a fraction of a second. */
static int64_t affordable_rows(const struct attn *a)
{
	const double enough = 2e9;
	enum { MIN_ROWS = 448 };
	double per_pair = 2.0 * (double)(a->batch * a->heads * a->dim);
	return max64(MIN_ROWS, (int64_t)sqrt(enough / per_pair));
}

/* Scales the first positions of a chunk's runs from run length `from` to run length `to`. */
static void scale_runs(int64_t first[2], int64_t from, int64_t to)
{
	for (int i = 0; i < 2; i++)
		first[i] = first[i] / max64(1, from) * to;
}

/* Returns the arguments of a smaller call: fewer sequences, groups of heads and rows. */
static struct attn shrink_attn(const struct attn *c)
{
	enum { SEQUENCES = 2, GROUPS = 2, FIRST_HEAD = 3 };
	struct attn a = *c;
	int64_t per_group = c->heads / c->kv_heads, runs = c->q_rows % 2 ? 1 : 2;
	a.batch = min64(c->batch, SEQUENCES);
	a.kv_heads = min64(c->kv_heads, GROUPS);
	a.heads = a.kv_heads * per_group;
	a.q_rows = a.k_rows = limit_size(c->q_rows, affordable_rows(&a));
	scale_runs(a.q_first, c->q_rows / runs, a.q_rows / runs);
	scale_runs(a.k_first, c->k_rows / runs, a.k_rows / runs);
	if (c->window) /* the same fraction of the rows */
		a.window = ceil_div(c->window * a.q_rows, c->q_rows);
	a.first_head = FIRST_HEAD;
	return a;
}

/* Returns the number of GPU sequences: enough for several tiles per block, if the run has so many.
 * Dropout and documents would not repeat, and their kernels have one block per tile. */
static int64_t gpu_sequences(const struct attn *run, const struct attn *a)
{
	enum { TILE = 192, TILES = 400 };
	int64_t tiles = a->heads * ceil_div(a->q_rows, TILE);
	if (a->start || run->drop.p > 0)
		return a->batch;
	return max64(a->batch,
		min64(ceil_div(TILES, tiles), run->batch * run->heads / a->heads));
}

/* Returns the shape of matrix i of the call, for `heads` heads and the rows of *a. */
static struct mat heads_shape(
	const struct trial *t, int i, const struct attn *a, int64_t heads)
{
	struct mat m = t->c->m[i];
	m.rows = a->batch * a->q_rows;
	m.cols = heads * a->dim;
	m.stride = 0;
	return m;
}

/* Makes random heads in the shape of matrix i of the call; the GPU repeats the CPU's sequences. */
static struct trial_pair make_random_heads(
	struct trial *t, int i, const struct attn_pair *x, int64_t heads, double scale)
{
	struct mat like = heads_shape(t, i, &x->a[GPU], heads);
	struct trial_pair y = pair_repeated(
		t, like, x->a[CPU].batch * x->a[CPU].q_rows, like.cols, scale);
	pair_send(t, y);
	return y;
}

static struct trial_pair make_blank_heads(
	struct trial *t, int i, const struct attn_pair *x, int64_t heads)
{
	return pair_blank_rows(t, heads_shape(t, i, &x->a[GPU], heads),
		x->a[CPU].batch * x->a[CPU].q_rows);
}

/* Makes a blank vector with one element per query and head. */
static struct trial_pair make_blank_state(struct trial *t, const struct attn_pair *x)
{
	const struct attn *a = x->a;
	return pair_blank_rows(t,
		mat(&(int){0}, a[GPU].batch, a[GPU].heads * a[GPU].q_rows), a[CPU].batch);
}

/* Makes the starts of documents: every second sequence has short documents, the others have one. */
static struct trial_pair make_starts(struct trial *t, const struct attn *a)
{
	enum { SHORT = 97 };
	int64_t n = a->batch * a->q_rows, runs = a->q_rows % 2 ? 1 : 2;
	scoped_ptr int32_t *start = xcalloc((size_t)n, sizeof(*start));
	for (int64_t i = 0; i < n; i++) {
		int64_t row = i % a->q_rows, len = a->q_rows / runs;
		int64_t pos = a->q_first[row / len] + row % len;
		start[i] = i / a->q_rows % 2 ? 0 : (int32_t)(pos - pos % SHORT);
	}
	return pair_bytes(t, start, (size_t)n * sizeof(*start));
}

/* Makes the operands; q, k and v are matrices q_at, q_at + 1 and q_at + 2 of the call. */
static struct attn_pair make_attn_pair(struct trial *t, int q_at, bool is_one_chunk)
{
	struct attn a = shrink_attn(&t->c->attn);
	struct attn_pair x = {.a = {a, a}, .is_one_chunk = is_one_chunk};
	struct dropouts o = make_dropouts(t, a.q_rows);
	struct trial_pair start = {0};
	if (a.start)
		start = make_starts(t, &a);
	for (enum side s = GPU; s < SIDES; s++) {
		x.a[s].drop = o.d[s];
		x.a[s].start = start.m[s].p;
		if (s == GPU)
			x.a[s].batch = gpu_sequences(&t->c->attn, &a);
		x.self[s] = x.a[s];
		for (int i = 0; i < 2; i++)
			x.self[s].k_first[i] = a.q_first[i];
	}
	x.q = make_random_heads(t, q_at, &x, a.heads, 1.5);
	x.k = make_random_heads(t, q_at + 1, &x, a.kv_heads, 1.5);
	x.v = make_random_heads(t, q_at + 2, &x, a.kv_heads, 1);
	x.own_k = x.k;
	x.own_v = x.v;
	if (!is_one_chunk) {
		x.own_k = make_random_heads(t, q_at + 1, &x, a.kv_heads, 1.5);
		x.own_v = make_random_heads(t, q_at + 2, &x, a.kv_heads, 1);
	}
	return x;
}

/* Runs the forward on both sides: for the own chunk first, if the call has another one. */
static void run_forward(struct trial *t, struct attn_pair *x, struct trial_pair o,
	struct trial_pair max, struct trial_pair sum)
{
	if (!x->is_one_chunk)
		BOTH(t, attn_fwd, &x->self[s], o.m[s], max.m[s].p, sum.m[s].p, x->q.m[s],
			x->own_k.m[s], x->own_v.m[s], true, false);
	BOTH(t, attn_fwd, &x->a[s], o.m[s], max.m[s].p, sum.m[s].p, x->q.m[s], x->k.m[s],
		x->v.m[s], x->is_one_chunk, true);
}

/* Tests the forward: compares its output and its log-sum-exp. */
void try_attn_fwd(struct trial *t)
{
	struct attn_pair x = make_attn_pair(t, 1, t->c->n[0]);
	const struct attn *a = &x.a[CPU];
	struct trial_pair o = make_blank_heads(t, 0, &x, a->heads);
	struct trial_pair max = make_blank_state(t, &x), sum = make_blank_state(t, &x);
	run_forward(t, &x, o, max, sum);
	trial_check(t, "o", o);
	trial_check(t, "log-sum-exp", max);
}

struct attn_grads {
	struct trial_pair dq, dk, dv, own_dk, own_dv, dout, o, lse, delta;
};

/* Runs the backward on both sides: on the queries' own chunk, then on the other one, if any. */
static void run_backward(
	struct trial *t, const struct attn_pair *x, const struct attn_grads *g)
{
	BOTH(t, attn_bwd, &x->self[s], g->dq.m[s], g->own_dk.m[s], g->own_dv.m[s],
		g->delta.m[s].p, g->dout.m[s], g->o.m[s], g->lse.m[s].p, x->q.m[s],
		x->own_k.m[s], x->own_v.m[s], true);
	if (!x->is_one_chunk)
		BOTH(t, attn_bwd, &x->a[s], g->dq.m[s], g->dk.m[s], g->dv.m[s],
			g->delta.m[s].p, g->dout.m[s], g->o.m[s], g->lse.m[s].p,
			x->q.m[s], x->k.m[s], x->v.m[s], false);
}

/* Makes the GPU's gradients columns of one matrix if they are in the run. */
static struct attn_grads join_columns(struct trial *t, struct attn_grads g)
{
	struct mat *const parts[] = {&g.dq.m[GPU], &g.own_dk.m[GPU], &g.own_dv.m[GPU]};
	int64_t at = 0, cols = 0;
	if (!t->c->m[0].stride)
		return g;
	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		cols += parts[i]->cols;
	const struct mat all = blank_with_columns(t, *parts[0], cols);
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		*parts[i] = mat_cols(all, at, parts[i]->cols);
		at += parts[i]->cols;
	}
	return g;
}

/* Checks a gradient, which the GPU wrote to `written`: columns of a wider matrix, or `own`. */
static void check_gradient(
	struct trial *t, const char *what, struct trial_pair own, struct mat written)
{
	struct device *d = t->d[GPU];
	if (written.stride)
		d->k->copy(d, own.m[GPU], written);
	trial_check(t, what, own);
}

/* Tests the backward, with the results of the forward from the CPU on both sides. */
void try_attn_bwd(struct trial *t)
{
	struct attn_pair x = make_attn_pair(t, 5, t->c->n[0]);
	const struct attn *a = &x.a[CPU];
	struct device *cpu = t->d[CPU];
	struct trial_pair sum = make_blank_state(t, &x);
	struct attn_grads g = {.dq = make_blank_heads(t, 0, &x, a->heads),
		.dk = make_random_heads(t, 1, &x, a->kv_heads, 1),
		.dv = make_random_heads(t, 2, &x, a->kv_heads, 1),
		.own_dk = make_blank_heads(t, 1, &x, a->kv_heads),
		.own_dv = make_blank_heads(t, 2, &x, a->kv_heads),
		.dout = make_random_heads(t, 3, &x, a->heads, 1),
		.o = make_blank_heads(t, 4, &x, a->heads),
		.lse = make_blank_state(t, &x),
		.delta = make_blank_state(t, &x)};
	if (!x.is_one_chunk)
		cpu->k->attn_fwd(cpu, &x.self[CPU], g.o.m[CPU], g.lse.m[CPU].p,
			sum.m[CPU].p, x.q.m[CPU], x.own_k.m[CPU], x.own_v.m[CPU], true,
			false);
	cpu->k->attn_fwd(cpu, &x.a[CPU], g.o.m[CPU], g.lse.m[CPU].p, sum.m[CPU].p,
		x.q.m[CPU], x.k.m[CPU], x.v.m[CPU], x.is_one_chunk, true);
	pair_send(t, g.o);
	pair_send(t, g.lse);
	const struct attn_grads all = join_columns(t, g);
	run_backward(t, &x, &all);
	check_gradient(t, "dq", g.dq, all.dq.m[GPU]);
	check_gradient(t, "dk", g.own_dk, all.own_dk.m[GPU]);
	check_gradient(t, "dv", g.own_dv, all.own_dv.m[GPU]);
	if (!x.is_one_chunk) {
		trial_check(t, "dk of another chunk", g.dk);
		trial_check(t, "dv of another chunk", g.dv);
	}
}

/* Tests the attention of decoding, with queries at the last positions. */
void try_attn_row(struct trial *t)
{
	const struct mat *m = t->c->m;
	int64_t heads = t->c->n[0], kv_heads = t->c->n[1], dim = t->c->n[2];
	int64_t rows = m[1].rows, first = max64(0, m[2].rows - rows);
	struct trial_pair o = pair_blank(t, m[0]), q = pair_random(t, m[1], 1.5);
	struct trial_pair k = pair_random(t, m[2], 1.5), v = pair_random(t, m[3], 1);
	float scale = (float)(1 / sqrt((double)dim));
	BOTH(t, attn_row, o.m[s], q.m[s], k.m[s], v.m[s], heads, kv_heads, dim, first,
		t->c->n[3], scale);
	trial_check(t, "o", o);
}
