/*
 * Decoding with a key/value cache. Every row goes through kernels whose result does not
 * depend on the other rows, so a cached step has the bits of computing the whole window
 * again.
 */
#include "model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 64 }; /* rows that go through at once */

struct decoder {
	struct model *m;
	struct device *d;
	struct store *store;
	struct slices tp;
	bool cache;
	uint32_t *ids; /* the window: [context] */
	int64_t len;
	struct arena memory, scratch;
	float *rope;
	float *k, *v;			  /* [layer][slice][context][kv width] */
	float *x, *h, *q, *o, *a, *b, *y; /* [PIECE][...] */
	float *stats, *logits;
	float *read; /* the logits of the next token, in the program's memory: [vocab] */
	int32_t *pos, *tokens;
};

/* Of one slice. Slices that share a head keep it each for themselves. */
static int64_t kv_heads(const struct decoder *g)
{
	return max64(1, g->m->c.kv_heads / g->m->tp);
}

static int64_t kv_width(const struct decoder *g)
{
	return kv_heads(g) * g->m->head_dim;
}

static int64_t q_width(const struct decoder *g)
{
	return g->m->c.heads / g->m->tp * g->m->head_dim;
}

/* Run once to measure and once to place. */
static void place(struct decoder *g, struct arena *a)
{
	const struct model_config *c = &g->m->c;
	int64_t cached = c->layers * g->m->tp * c->context * kv_width(g);
	g->rope = model_rope(g->m, g->d, a);
	g->k = arena_floats(a, cached);
	g->v = arena_floats(a, cached);
	g->x = arena_floats(a, PIECE * c->dim);
	g->h = arena_floats(a, PIECE * c->dim);
	g->q = arena_floats(a, PIECE * q_width(g));
	g->o = arena_floats(a, PIECE * q_width(g));
	g->a = arena_floats(a, PIECE * c->ffn_dim / g->m->tp);
	g->b = arena_floats(a, PIECE * c->ffn_dim / g->m->tp);
	g->y = arena_floats(a, PIECE * c->ffn_dim / g->m->tp);
	g->stats = arena_floats(a, 2 * PIECE);
	g->logits = arena_floats(a, g->m->padded_vocab);
	g->pos = arena_alloc(a, PIECE * sizeof(int32_t));
	g->tokens = arena_alloc(a, PIECE * sizeof(int32_t));
}

/* What kernels take beside that: the sums of slices, and the scores of each thread. */
static size_t scratch_bytes(const struct model *m, const struct device *d)
{
	size_t sums = (size_t)tree_depth(0, m->tp) *
		      (PIECE * (size_t)m->c.dim * sizeof(float) + 64);
	size_t scores =
		(size_t)d->threads * (size_t)round_up(m->c.context, 16) * sizeof(float);
	return sums + scores + 64;
}

int64_t decoder_bytes(struct model *m, struct device *d)
{
	struct decoder g = {.m = m, .d = d};
	struct arena size;
	arena_measure(&size, "decoder");
	place(&g, &size);
	return (int64_t)(size.peak_bytes + scratch_bytes(m, d));
}

struct decoder *decoder_open(
	struct model *m, struct device *d, struct store *store, bool cache)
{
	struct decoder *g = xcalloc(1, sizeof(*g));
	*g = (struct decoder){.m = m,
		.d = d,
		.store = store,
		.cache = cache,
		.tp = {.axis = comm_self("alone"), .n = m->tp, .here = m->tp}};
	struct arena size;
	arena_measure(&size, "decoder");
	place(g, &size);
	device_arena(d, &g->memory, "decoder", size.peak_bytes);
	place(g, &g->memory);
	device_arena(d, &g->scratch, "decoder scratch", scratch_bytes(m, d));
	g->ids = xcalloc((size_t)m->c.context, sizeof(*g->ids));
	g->read = xcalloc((size_t)m->padded_vocab, sizeof(*g->read));
	return g;
}

void decoder_close(struct decoder *g)
{
	if (!g)
		return;
	device_arena_release(g->d, &g->memory);
	device_arena_release(g->d, &g->scratch);
	free(g->ids);
	free(g->read);
	free(g->tp.axis);
	free(g);
}

static struct mat param(struct decoder *g, const struct tensor *t, int s)
{
	return t ? store_param(g->store, t, tensor_slice(t, s)) : (struct mat){0};
}

static struct mat norm(struct decoder *g, struct mat y, struct mat x,
	const struct tensor *w, const struct tensor *bias)
{
	g->d->k->norm_fwd(g->d, g->m->arch->norm, y, mat(g->stats, 2, x.rows), x,
		param(g, w, 0), param(g, bias, 0), (float)g->m->c.norm_eps);
	return y;
}

static float *cached(struct decoder *g, float *kv, int64_t layer, int s)
{
	return kv + (layer * g->m->tp + s) * g->m->c.context * kv_width(g);
}

/* Slice s of the attention of rows at positions [first, first + n), into g->o. */
static struct mat attend(
	struct decoder *g, int64_t layer, int s, struct mat h, int64_t first, int64_t n)
{
	const struct kernels *k = g->d->k;
	const struct block_tensors *t = &g->m->blocks[layer];
	int64_t kv = kv_width(g), context = g->m->c.context;
	struct mat q = mat(g->q, n, q_width(g)), o = mat(g->o, n, q_width(g));
	struct mat keys = mat(cached(g, g->k, layer, s), context, kv);
	struct mat values = mat(cached(g, g->v, layer, s), context, kv);
	struct mat key = mat_rows(keys, first, n), value = mat_rows(values, first, n);
	k->linear_row(g->d, q, h, param(g, t->wq, s), param(g, t->bq, s));
	k->linear_row(g->d, key, h, param(g, t->wk, s), param(g, t->bk, s));
	k->linear_row(g->d, value, h, param(g, t->wv, s), param(g, t->bv, s));
	if (g->rope) {
		struct mat rope = mat(g->rope, context, g->m->head_dim);
		k->rope(g->d, q, g->m->head_dim, rope, g->pos, 1);
		k->rope(g->d, key, g->m->head_dim, rope, g->pos, 1);
	}
	k->attn_row(g->d, o, q, keys, values, g->m->c.heads / g->m->tp, kv_heads(g),
		g->m->head_dim, first, 1.0f / sqrtf((float)g->m->head_dim));
	return o;
}

static struct mat hidden(
	struct decoder *g, const struct block_tensors *t, int s, struct mat h)
{
	const struct kernels *k = g->d->k;
	int64_t ffn = g->m->c.ffn_dim / g->m->tp;
	struct mat a = mat(g->a, h.rows, ffn), y = mat(g->y, h.rows, ffn);
	struct mat b = t->w3 ? mat(g->b, h.rows, ffn) : (struct mat){0};
	k->linear_row(g->d, a, h, param(g, t->w1, s), param(g, t->b1, s));
	if (t->w3)
		k->linear_row(g->d, b, h, param(g, t->w3, s), param(g, t->b3, s));
	k->act_fwd(g->d, g->m->act, y, a, b);
	return y;
}

static void block(struct decoder *g, int64_t layer, struct mat x, int64_t first)
{
	const struct kernels *k = g->d->k;
	const struct block_tensors *t = &g->m->blocks[layer];
	struct mat h = mat(g->h, x.rows, x.cols), none = {0};
	size_t mark = arena_mark(&g->scratch);
	struct mat y = mat(arena_floats(&g->scratch, mat_size(x)), x.rows, x.cols);
	struct slice_sum sum;
	norm(g, h, x, t->norm1, t->norm1_bias);
	slice_sum_begin(&sum, &g->tp, g->d, y, y.rows);
	for (int s = 0; s < g->m->tp; s++) {
		struct mat o = attend(g, layer, s, h, first, x.rows);
		k->linear_row(g->d, slice_sum_slot(&sum), o, param(g, t->wo, s), none);
		slice_sum_push(&sum);
	}
	slice_sum_end(&sum);
	if (t->bo)
		k->bias_fwd(g->d, y, param(g, t->bo, 0));
	k->add(g->d, x, x, y);
	norm(g, h, x, t->norm2, t->norm2_bias);
	slice_sum_begin(&sum, &g->tp, g->d, y, y.rows);
	for (int s = 0; s < g->m->tp; s++) {
		struct mat u = hidden(g, t, s, h);
		k->linear_row(g->d, slice_sum_slot(&sum), u, param(g, t->w2, s), none);
		slice_sum_push(&sum);
	}
	slice_sum_end(&sum);
	if (t->b2)
		k->bias_fwd(g->d, y, param(g, t->b2, 0));
	k->add(g->d, x, x, y);
	arena_reset(&g->scratch, mark);
}

static void embed(struct decoder *g, struct mat x)
{
	const struct kernels *k = g->d->k;
	for (int s = 0; s < g->m->tp; s++) {
		struct mat w = param(g, g->m->tokens, s);
		k->embed_fwd(g->d, x, w, g->tokens, s * w.rows, s > 0);
	}
	if (g->m->positions)
		k->embed_fwd(g->d, x, param(g, g->m->positions, 0), g->pos, 0, true);
}

/* Rows of the window [first, first + n) go through; `last`: to the logits. */
static void run_piece(struct decoder *g, int64_t first, int64_t n, bool last)
{
	struct mat x = mat(g->x, n, g->m->c.dim);
	int32_t pos[PIECE];
	for (int64_t i = 0; i < n; i++)
		pos[i] = (int32_t)(first + i);
	device_put(g->d, g->pos, pos, (size_t)n * sizeof(*pos));
	device_put(g->d, g->tokens, g->ids + first, (size_t)n * sizeof(*g->ids));
	embed(g, x);
	for (int64_t l = 0; l < g->m->c.layers; l++)
		block(g, l, x, first);
	if (!last)
		return;
	struct mat end = mat_rows(x, n - 1, 1);
	struct mat h = norm(g, mat(g->h, 1, x.cols), end, g->m->norm, g->m->norm_bias);
	int64_t cols = g->m->padded_vocab / g->m->tp;
	for (int s = 0; s < g->m->tp; s++)
		g->d->k->linear_row(g->d, mat(g->logits + s * cols, 1, cols), h,
			param(g, g->m->output, s), (struct mat){0});
	device_get(
		g->d, g->read, g->logits, (size_t)g->m->padded_vocab * sizeof(*g->read));
}

static void run_window(struct decoder *g, int64_t from)
{
	for (int64_t at = from; at < g->len; at += PIECE) {
		int64_t n = min64(PIECE, g->len - at);
		run_piece(g, at, n, at + n == g->len);
	}
}

void decoder_feed(struct decoder *g, const uint32_t *ids, int64_t n)
{
	struct arena *outer = g->d->scratch;
	int64_t context = g->m->c.context;
	g->d->scratch = &g->scratch;
	for (int u = 0; u < g->m->n_units; u++)
		store_use(g->store, u, u + 1 < g->m->n_units ? u + 1 : -1);
	while (n > 0) {
		int64_t from = g->cache ? g->len : 0;
		if (g->len == context) { /* forget the older half */
			int64_t keep = context / 2;
			memmove(g->ids, g->ids + g->len - keep,
				(size_t)keep * sizeof(*g->ids));
			g->len = keep;
			from = 0;
		}
		int64_t now = min64(n, context - g->len);
		memcpy(g->ids + g->len, ids, (size_t)now * sizeof(*ids));
		g->len += now, ids += now, n -= now;
		run_window(g, from);
	}
	for (int u = 0; u < g->m->n_units; u++)
		store_done(g->store, u, false);
	g->d->scratch = outer;
}

const float *decoder_logits(const struct decoder *g)
{
	return g->read;
}

/* ---- drawing --------------------------------------------------------------------- */

struct candidate {
	int64_t id;
	double p;
};

static int likeliest_first(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;
	if (x->p != y->p)
		return x->p < y->p ? 1 : -1;
	return (x->id > y->id) - (x->id < y->id);
}

/* How many of the sorted candidates may be drawn. */
static int64_t cut_off(const struct sampler *s, const struct candidate *c, int64_t n)
{
	double total = 0, seen = 0;
	if (s->top_k > 0)
		n = min64(n, s->top_k);
	for (int64_t i = 0; i < n; i++)
		total += c[i].p;
	for (int64_t i = 0; i < n; i++) { /* the nucleus (Holtzman et al. 2020) */
		seen += c[i].p;
		if (seen >= s->top_p * total)
			return i + 1;
	}
	return n;
}

int64_t decoder_draw(
	struct decoder *g, const struct sampler *s, uint64_t stream, int64_t index)
{
	int64_t vocab = g->m->c.vocab, best = 0;
	for (int64_t i = 1; i < vocab; i++)
		if (g->read[i] > g->read[best])
			best = i;
	if (s->temperature <= 0)
		return best;
	struct candidate *c = xcalloc((size_t)vocab, sizeof(*c));
	for (int64_t i = 0; i < vocab; i++) {
		double x = (double)g->read[i] - (double)g->read[best];
		c[i] = (struct candidate){i, exp(x / s->temperature)};
	}
	int64_t n = vocab;
	if (s->top_k > 0 || s->top_p < 1) {
		qsort(c, (size_t)vocab, sizeof(*c), likeliest_first);
		n = cut_off(s, c, vocab);
	}
	double total = 0, seen = 0;
	for (int64_t i = 0; i < n; i++)
		total += c[i].p;
	struct philox_key key = philox_key(s->seed, PHILOX_SAMPLE, stream);
	struct philox_block r =
		philox(key, (uint32_t)index, (uint32_t)(index >> 32), 0, 0);
	double u = philox_uniform64(r.x[0], r.x[1]) * total;
	int64_t i = 0;
	for (; i < n - 1; i++)
		if ((seen += c[i].p) > u)
			break;
	int64_t id = c[i].id;
	free(c);
	return id;
}
