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

/* The slices and chunks that this rank plays: those of all, dealt to the ranks of an axis. */
static void play(struct pass *p, const struct pass_config *c)
{
	const struct mesh *mesh = c->mesh;
	const struct model *m = p->m;
	BUG_ON(m->tp % mesh->degree[AXIS_TP] || m->cp % mesh->degree[AXIS_CP]);
	int slices = m->tp / mesh->degree[AXIS_TP];
	int chunks = m->cp / mesh->degree[AXIS_CP];
	p->tp = (struct slices){.axis = mesh->axis[AXIS_TP],
		.n = m->tp,
		.first = mesh->at[AXIS_TP] * slices,
		.here = slices,
		.sp = c->sp};
	p->cp = (struct chunks){.axis = mesh->axis[AXIS_CP],
		.n = m->cp,
		.first = mesh->at[AXIS_CP] * chunks,
		.here = chunks,
		.context = m->c.context,
		.gather = c->gather_kv};
}

void pass_init(struct pass *p, struct model *m, struct device *d, struct store *store,
	const struct pass_config *c, struct arena *run)
{
	*p = (struct pass){.m = m,
		.d = d,
		.store = store,
		.batch = c->batch,
		.counted = c->batch,
		.seed = c->seed};
	play(p, c);
	int64_t seq_rows = m->c.context / m->cp;
	p->rows = p->batch * seq_rows;
	p->rows_here = slice_rows(&p->tp, p->rows, &p->first_row);
	size_t ids = (size_t)(p->rows * p->cp.here) * sizeof(int32_t);
	p->pos = arena_alloc(run, ids);
	p->tokens = arena_alloc(run, ids);
	p->targets = arena_alloc(run, ids);
	p->rope = model_rope(m, run);
	if (arena_measuring(run))
		return;
	for (int c = 0; c < p->cp.here; c++)
		for (int64_t b = 0; b < p->batch; b++)
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

/* The residual stream here may be a part of the rows of a chunk. */
void acts_alloc(
	const struct pass *p, const struct stage *st, struct acts *a, struct arena *micro)
{
	int64_t rows = p->cp.here * p->rows, parts = p->tp.here * rows;
	int64_t dim = p->m->c.dim, ffn = ffn_width(p), n = st->end - st->first;
	int64_t here = p->cp.here * p->rows_here;
	bool gated = p->m->act == ACT_SWIGLU;
	a->block = xcalloc((size_t)n, sizeof(*a->block));
	for (int64_t l = 0; l < n; l++) {
		a->block[l] = (struct block_acts){
			.x = arena_floats(micro, here * dim),
			.h1 = arena_floats(micro, rows * dim),
			.stats1 = arena_floats(micro, here * 2),
			.q = arena_floats(micro, parts * q_width(p)),
			.k = arena_floats(micro, parts * kv_width(p)),
			.v = arena_floats(micro, parts * kv_width(p)),
			.o = arena_floats(micro, parts * q_width(p)),
			.max = arena_floats(micro, parts * heads_here(p)),
			.sum = arena_floats(micro, parts * heads_here(p)),
			.x2 = arena_floats(micro, here * dim),
			.h2 = arena_floats(micro, rows * dim),
			.stats2 = arena_floats(micro, here * 2),
			.a = arena_floats(micro, parts * ffn),
			.b = gated ? arena_floats(micro, parts * ffn) : NULL,
			.y = arena_floats(micro, parts * ffn),
		};
	}
	a->x_in = a->block[0].x;
	a->x = arena_floats(micro, here * dim);
	a->dx = arena_floats(micro, here * dim);
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
