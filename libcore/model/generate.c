/* Decoding: the forward of pass.c, a few rows at a time, with three functions replaced (pass_ops):
 * attention over the key/value cache, a matmul that computes each row separately, and a head that
 * returns the logits. A row's result does not depend on the other rows, so a step with the cache
 * has the same bits as a step that recomputes the whole window. */
#include "model/generate.h"
#include "model/block.h"

#include <math.h>

enum { MAX_ROWS = 64 }; /* rows per forward */

struct candidate {
	int64_t id;
	double p;
};

struct decoder {
	struct pass p;
	struct acts acts;
	bool uses_cache;
	uint32_t *ids;		      /* [context]: the window */
	int64_t len;		      /* tokens in the window */
	int64_t first;		      /* the first row of the current forward */
	float *k, *v;		      /* [layer][slice][context][kv width] */
	float *logits, *host_logits;  /* [vocab], of the next token */
	struct candidate *candidates; /* [vocab], buffer for decoder_draw() */
	struct arena memory, scratch;
};

/* Allocates, or measures, a decoder's memory. All blocks of a kind share their activations. */
static void decoder_alloc(struct decoder *g, struct model *m, struct device *d,
	struct store *store, struct mesh *mesh, struct arena *a)
{
	struct pass *p = &g->p;
	const struct pass_config c = {.mesh = mesh, .batch = 1, .decode_rows = MAX_ROWS};
	const struct stage stage = {.end = 1};
	struct acts acts;
	struct block_acts of_kind[LAYER_KINDS];
	pass_init(p, m, d, store, &c, a);
	pass_recompute(p, RECOMPUTE_FULL, 1, a);
	acts_alloc(p, &stage, &acts, a);
	for (int kind = 0; kind < LAYER_KINDS; kind++) {
		int64_t layer = model_layer_of_kind(m, kind);
		of_kind[kind] = acts.block[0];
		if (layer > 0)
			block_alloc(p, layer, acts.x, &of_kind[kind], a);
	}
	g->acts = acts;
	g->acts.block = xcalloc((size_t)m->c.layers, sizeof(*acts.block));
	for (int64_t l = 0; l < m->c.layers; l++)
		g->acts.block[l] = of_kind[model_layer_kind(m, l)];
	g->acts.begin = NULL;
	acts_release(&acts);
	int64_t cached = m->c.layers * p->tp.local * m->c.context * kv_width(p);
	g->k = arena_floats(a, cached);
	g->v = arena_floats(a, cached);
	g->logits = arena_floats(a, m->padded_vocab);
}

/* Returns the scratch memory of layers and kernels: addends of sums over slices, the last norm, the
 * attention scores of each thread, and the rows of experts. */
static size_t scratch_bytes(const struct pass *p)
{
	const struct model *m = p->m;
	int64_t parts = tree_depth(p->tp.first, p->tp.first + p->tp.local) +
			(p->tp.axis->size > 1 ? p->tp.n : 0);
	int64_t row = round_up(m->c.dim, 16), scores = round_up(m->c.context, 16);
	int64_t slots = MAX_ROWS * m->c.experts_per_token;
	int64_t experts = m->c.experts ? slots * ((p->tp.local + 1) * row +
							 round_up(m->c.expert_dim, 16))
				       : 0;
	int64_t floats = (parts + 1) * MAX_ROWS * row + 2 * MAX_ROWS + experts +
			 p->d->threads * ATTN_ROW_QUERIES * scores;
	return (size_t)(floats + 64) * sizeof(float);
}

int64_t decoder_bytes(struct model *m, struct device *d)
{
	struct decoder g;
	struct mesh alone;
	struct arena size;
	arena_measure(&size, "decoder");
	mesh_alone(&alone);
	decoder_alloc(&g, m, d, NULL, &alone, &size);
	size_t n_bytes = size.peak_bytes + scratch_bytes(&g.p);
	acts_release(&g.acts);
	struct comm *self = alone.world;
	mesh_close(&alone);
	comm_free(self);
	return (int64_t)n_bytes;
}

/* Returns slice s of a layer's cached keys or values `kv`. */
static struct mat cached_rows(const struct pass *p, float *kv, int64_t layer, int s)
{
	int64_t context = p->m->c.context, width = kv_width(p);
	return mat(kv + (layer * p->tp.local + s) * context * width, context, width);
}

/* Appends the rows' keys and values to the cache, then computes attention over the cache. */
static void attend_cached(struct pass *p, int64_t layer, struct sublayer_acts *a)
{
	const struct kernels *k = p->d->k;
	const struct decoder *g = p->ops.context;
	int64_t dim = p->m->head_dim;
	for (int s = 0; s < p->tp.local; s++) {
		const struct loc loc = {layer, s, 0};
		struct mat keys = cached_rows(p, g->k, layer, s);
		struct mat values = cached_rows(p, g->v, layer, s);
		k->copy(p->d, mat_rows(keys, g->first, p->rows),
			mat_at(p, att_k(a), loc));
		k->copy(p->d, mat_rows(values, g->first, p->rows),
			mat_at(p, a->m[ATT_V], loc));
		k->attn_row(p->d, mat_at(p, a->m[ATT_O], loc), mat_at(p, att_q(a), loc),
			keys, values, slice_heads(p), slice_kv_heads(p), dim, g->first,
			model_window(p->m, layer), model_attention_scale(p->m));
	}
}

/* Computes the logits of the last row of x and copies them to the host; a pass_ops.head. */
static void head_logits(struct pass *p, struct mat x, struct mat dx)
{
	struct decoder *g = p->ops.context;
	size_t mark = arena_mark(p->d->scratch);
	int64_t cols = p->m->padded_vocab / p->tp.n;
	struct mat last = mat_rows(x, p->rows - 1, 1);
	(void)dx;
	p->rows = p->stream_rows = 1;
	const struct stream_norm norm = final_norm(p, 0);
	norm_forward(p, &norm, last);
	for (int s = 0; s < p->tp.local; s++) {
		const struct linear l = {
			.y = mat(g->logits + (p->tp.first + s) * cols, 1, cols),
			.w = p->m->output};
		param_use(p, l.w, s);
		linear_forward(p, (struct loc){-1, s, 0}, &l, norm.h);
		param_done(p, l.w, s);
	}
	arena_reset(p->d->scratch, mark);
	comm_run(p->tp.axis, COLL_ALLGATHER,
		&(struct coll_args){.recv = g->logits,
			.count = p->tp.local * cols,
			.type = COMM_F32});
	device_get(p->d, g->host_logits, g->logits,
		(size_t)p->m->padded_vocab * sizeof(*g->host_logits));
}

struct decoder *decoder_open(
	struct model *m, struct device *d, struct store *store, bool cache)
{
	struct decoder *g = xcalloc(1, sizeof(*g));
	struct arena size;
	arena_measure(&size, "decoder");
	decoder_alloc(g, m, d, store, store->c.mesh, &size);
	acts_release(&g->acts);
	device_arena_init(d, &g->memory, "decoder", size.peak_bytes);
	device_arena_init(d, &g->scratch, "decoder scratch", scratch_bytes(&g->p));
	decoder_alloc(g, m, d, store, store->c.mesh, &g->memory);
	g->uses_cache = cache;
	g->p.ops = (struct pass_ops){d->k->linear_row, attend_cached, head_logits, g};
	g->ids = xcalloc((size_t)m->c.context, sizeof(*g->ids));
	g->host_logits = xcalloc((size_t)m->padded_vocab, sizeof(*g->host_logits));
	g->candidates = xcalloc((size_t)m->c.vocab, sizeof(*g->candidates));
	return g;
}

void decoder_close(struct decoder *g)
{
	if (!g)
		return;
	device_arena_release(g->p.d, &g->memory);
	device_arena_release(g->p.d, &g->scratch);
	acts_release(&g->acts);
	pass_release(&g->p);
	free(g->ids);
	free(g->host_logits);
	free(g->candidates);
	free(g);
}

/* Runs the forward of rows [first, first + n) of the window; `with_head`: also computes logits. */
static void forward_rows(struct decoder *g, int64_t first, int64_t n, bool with_head)
{
	struct pass *p = &g->p;
	const struct stage all = {0, p->m->c.layers, .embeds = true, .heads = with_head};
	size_t n_bytes = (size_t)n * sizeof(int32_t);
	for (int64_t i = 0; i < n; i++)
		p->in.host_pos[i] = (int32_t)(first + i);
	device_put(p->d, p->in.pos, p->in.host_pos, n_bytes);
	device_put(p->d, p->in.tokens, g->ids + first, n_bytes);
	g->first = first;
	p->rows = p->stream_rows = n;
	model_forward(p, &all, &g->acts);
}

/* Runs the forward of the window from row `from` on. */
static void run_window(struct decoder *g, int64_t from)
{
	for (int64_t first = from; first < g->len; first += MAX_ROWS) {
		int64_t n = min64(MAX_ROWS, g->len - first);
		forward_rows(g, first, n, first + n == g->len);
	}
}

void decoder_feed(struct decoder *g, const uint32_t *ids, int64_t n)
{
	struct device *d = g->p.d;
	struct arena *outer = d->scratch;
	int64_t context = g->p.m->c.context;
	d->scratch = &g->scratch;
	while (n > 0) {
		int64_t from = g->uses_cache ? g->len : 0;
		if (g->len == context) { /* drop the older half */
			int64_t n_kept = context / 2;
			memmove(g->ids, g->ids + g->len - n_kept,
				(size_t)n_kept * sizeof(*g->ids));
			g->len = n_kept;
			from = 0;
		}
		int64_t now = min64(n, context - g->len);
		memcpy(g->ids + g->len, ids, (size_t)now * sizeof(*ids));
		g->len += now, ids += now, n -= now;
		run_window(g, from);
	}
	d->scratch = outer;
}

const float *decoder_logits(const struct decoder *g)
{
	return g->host_logits;
}

static int by_probability(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;
	if (x->p != y->p)
		return x->p < y->p ? 1 : -1;
	return (x->id > y->id) - (x->id < y->id);
}

/* Moves the k most probable of n candidates to the front, in descending order, and returns their
 * number. Sorting all candidates would take longer than a layer. */
static int64_t select_best_candidates(struct candidate *c, int64_t n, int64_t k)
{
	struct candidate worst = {0, -1}; /* the worst of the k best so far */
	int64_t n_kept = 0;
	k = min64(k, n);
	for (int64_t i = 0; i < n; i++) {
		if (by_probability(&c[i], &worst) > 0)
			continue;
		c[n_kept++] = c[i];
		if (n_kept == 2 * k) {
			qsort(c, (size_t)n_kept, sizeof(*c), by_probability);
			n_kept = k;
			worst = c[k - 1];
		}
	}
	qsort(c, (size_t)n_kept, sizeof(*c), by_probability);
	return min64(k, n_kept);
}

/* Returns the number of candidates that top-p keeps, of n in descending order. */
static int64_t count_top_p(const struct sampler *s, const struct candidate *c, int64_t n)
{
	double total = 0, seen = 0;
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
	int64_t vocab = g->p.m->c.vocab, best = 0;
	for (int64_t i = 1; i < vocab; i++)
		if (g->host_logits[i] > g->host_logits[best])
			best = i;
	if (s->temperature <= 0)
		return best;
	struct candidate *c = g->candidates;
	for (int64_t i = 0; i < vocab; i++) {
		double x = (double)g->host_logits[i] - (double)g->host_logits[best];
		c[i] = (struct candidate){i, exp(x / s->temperature)};
	}
	int64_t n = vocab;
	if (s->top_k > 0 || s->top_p < 1) {
		n = select_best_candidates(c, vocab, s->top_k > 0 ? s->top_k : vocab);
		n = count_top_p(s, c, n);
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
	return c[i].id;
}
