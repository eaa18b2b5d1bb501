/* A forward and a backward through the whole model. */
#include "model/layers.h"

#include <math.h>
#include <stdlib.h>

/* ---- rotary positions ------------------------------------------------------------ */

/* Llama 3.1's scaling: long wavelengths are stretched, short ones kept, between them a
 * smooth passage. */
static double llama3_scale(const struct model_config *c, double frequency)
{
	const double two_pi = 6.283185307179586;
	double wavelength = two_pi / frequency, original = (double)c->rope_original;
	if (wavelength < original / c->rope_high)
		return frequency;
	if (wavelength > original / c->rope_low)
		return frequency / c->rope_factor;
	double smooth =
		(original / wavelength - c->rope_low) / (c->rope_high - c->rope_low);
	return (1 - smooth) * frequency / c->rope_factor + smooth * frequency;
}

/* rope[t] = cosines, then sines, of t * theta^(-2j / head_dim). */
static void fill_rope(const struct model *m, float *rope)
{
	int64_t half = m->head_dim / 2;
	for (int64_t j = 0; j < half; j++) {
		double f = pow(m->c.rope_theta, -2.0 * (double)j / (double)m->head_dim);
		if (m->c.rope_scaling == ROPE_LINEAR)
			f /= m->c.rope_factor;
		else if (m->c.rope_scaling == ROPE_LLAMA3)
			f = llama3_scale(&m->c, f);
		for (int64_t t = 0; t < m->c.context; t++) {
			rope[t * m->head_dim + j] = (float)cos((double)t * f);
			rope[t * m->head_dim + half + j] = (float)sin((double)t * f);
		}
	}
}

float *model_rope(const struct model *m, struct arena *run)
{
	if (!m->arch->rope)
		return NULL;
	float *rope = arena_floats(run, m->c.context * m->head_dim);
	if (!arena_measuring(run))
		fill_rope(m, rope);
	return rope;
}

/* ---- setting up ------------------------------------------------------------------ */

void pass_init(struct pass *p, struct model *m, struct device *d, struct store *store,
	int64_t batch, uint64_t seed, struct arena *run)
{
	struct comm *alone = comm_self("alone");
	*p = (struct pass){.m = m,
		.d = d,
		.store = store,
		.batch = batch,
		.counted = batch,
		.seed = seed};
	p->tp = (struct slices){alone, m->tp, 0, m->tp};
	p->cp = (struct chunks){alone, m->cp, 0, m->cp, m->c.context};
	int64_t seq_rows = m->c.context / m->cp;
	p->rows = batch * seq_rows;
	size_t ids = (size_t)(p->rows * p->cp.here) * sizeof(int32_t);
	p->pos = arena_alloc(run, ids);
	p->tokens = arena_alloc(run, ids);
	p->targets = arena_alloc(run, ids);
	p->rope = model_rope(m, run);
	if (arena_measuring(run))
		return;
	for (int c = 0; c < p->cp.here; c++)
		for (int64_t b = 0; b < batch; b++)
			chunk_positions(
				&p->cp, p->cp.first + c, pos_of(p, c) + b * seq_rows);
}

void pass_load(struct pass *p, const int32_t *windows)
{
	int64_t seq_rows = p->rows / p->batch, window = p->m->c.context + 1;
	for (int c = 0; c < p->cp.here; c++) {
		for (int64_t i = 0; i < p->rows; i++) {
			const int32_t *from =
				windows + i / seq_rows * window + pos_of(p, c)[i];
			p->tokens[c * p->rows + i] = from[0];
			p->targets[c * p->rows + i] = from[1];
		}
	}
}

void acts_alloc(const struct pass *p, struct acts *a, struct arena *micro)
{
	int64_t rows = p->cp.here * p->rows, parts = p->tp.here * rows;
	int64_t dim = p->m->c.dim, ffn = ffn_width(p);
	bool gated = p->m->act == ACT_SWIGLU;
	a->block = xcalloc((size_t)p->m->c.layers, sizeof(*a->block));
	for (int64_t l = 0; l < p->m->c.layers; l++) {
		a->block[l] = (struct block_acts){
			.x = arena_floats(micro, rows * dim),
			.h1 = arena_floats(micro, rows * dim),
			.stats1 = arena_floats(micro, rows * 2),
			.q = arena_floats(micro, parts * q_width(p)),
			.k = arena_floats(micro, parts * kv_width(p)),
			.v = arena_floats(micro, parts * kv_width(p)),
			.o = arena_floats(micro, parts * q_width(p)),
			.max = arena_floats(micro, parts * heads_here(p)),
			.sum = arena_floats(micro, parts * heads_here(p)),
			.x2 = arena_floats(micro, rows * dim),
			.h2 = arena_floats(micro, rows * dim),
			.stats2 = arena_floats(micro, rows * 2),
			.a = arena_floats(micro, parts * ffn),
			.b = gated ? arena_floats(micro, parts * ffn) : NULL,
			.y = arena_floats(micro, parts * ffn),
		};
	}
	a->x = arena_floats(micro, rows * dim);
	a->dx = arena_floats(micro, rows * dim);
}

/* ---- the passes ------------------------------------------------------------------ */

void model_forward(struct pass *p, struct acts *a)
{
	int64_t layers = p->m->c.layers;
	int last = p->m->n_units - 1;
	store_use(p->store, 0);
	embed_forward(p, a->block[0].x);
	store_done(p->store, 0);
	for (int64_t l = 0; l < layers; l++) {
		store_use(p->store, 1 + (int)l);
		attention_forward(p, l, &a->block[l]);
		ffn_forward(
			p, l, &a->block[l], l + 1 < layers ? a->block[l + 1].x : a->x);
		store_done(p->store, 1 + (int)l);
	}
	store_use(p->store, last);
	if (p->m->tie)
		store_use(p->store, 0);
	head(p, a->x, a->dx);
	if (p->m->tie)
		store_done(p->store, 0);
	store_done(p->store, last);
}

void model_backward(struct pass *p, struct acts *a, bool reduce)
{
	if (reduce)
		store_reduce(p->store, p->m->n_units - 1);
	for (int64_t l = p->m->c.layers - 1; l >= 0; l--) {
		store_use(p->store, 1 + (int)l);
		ffn_backward(p, l, &a->block[l], a->dx);
		attention_backward(p, l, &a->block[l], a->dx);
		store_done(p->store, 1 + (int)l);
		if (reduce)
			store_reduce(p->store, 1 + (int)l);
	}
	embed_backward(p, a->dx);
	if (reduce)
		store_reduce(p->store, 0);
}
