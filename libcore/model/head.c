/*
 * The head: final norm, product with the vocabulary, cross-entropy. Rows go through in
 * tiles, and a tile's backward follows its forward at once, so that the logits of a whole
 * micro-batch never exist. The table is cut by vocabulary.
 */
#include "model/layers.h"

/* Rows of a tile: a function of shapes alone, because a weight's leaf is a chain over
 * tiles. Its logits take about 64 MiB. */
static int64_t tile_rows(const struct pass *p)
{
	int64_t rows =
		((int64_t)64 << 20) / (p->m->padded_vocab * (int64_t)sizeof(float));
	return min64(p->rows, max64(16, rows / 16 * 16));
}

struct tile {
	int64_t first, rows;
	const int32_t *targets;
	struct mat h, dh;	   /* rows of the normed stream and its gradient */
	float *logits;		   /* [slice][rows][vocabulary of a slice] */
	float *max, *sum, *target; /* [slice][rows] */
	float *lse, *loss;	   /* [rows] */
};

static struct mat logits_of(const struct pass *p, const struct tile *t, int s)
{
	int64_t cols = p->m->padded_vocab / p->tp.n;
	return mat(t->logits + s * t->rows * cols, t->rows, cols);
}

static int64_t first_token(const struct pass *p, int s)
{
	return (p->tp.first + s) * (p->m->padded_vocab / p->tp.n);
}

static void tile_forward(struct pass *p, struct tile *t)
{
	const struct kernels *k = p->d->k;
	for (int s = 0; s < p->tp.here; s++) {
		struct mat logits = logits_of(p, t, s);
		linear_forward(p, -1, logits, t->h, p->m->output, NULL, s);
		watch(p, "output", -1, logits);
		k->xent_stats(p->d, t->max + s * t->rows, t->sum + s * t->rows,
			t->target + s * t->rows, logits, t->targets, first_token(p, s),
			p->m->c.vocab);
	}
	k->xent_join(
		p->d, t->lse, t->loss, t->max, t->sum, t->target, p->tp.here, t->rows);
	watch(p, "loss", -1, mat(t->loss, 1, t->rows));
	int64_t counted = p->counted * (p->rows / p->batch) - t->first;
	k->exact_sum(p->d, &p->loss, t->loss, max64(0, min64(counted, t->rows)));
}

static void tile_backward(struct pass *p, struct tile *t)
{
	const struct kernels *k = p->d->k;
	struct slice_sum sum;
	slice_sum_begin(&sum, &p->tp, p->d, t->dh);
	for (int s = 0; s < p->tp.here; s++) {
		struct mat logits = logits_of(p, t, s);
		k->xent_bwd(p->d, logits, t->lse, t->targets, first_token(p, s),
			p->m->c.vocab, p->loss_scale);
		linear_backward_w(p, -1, p->m->output, s, logits, t->h, t->first > 0);
		linear_backward_x(
			p, -1, slice_sum_slot(&sum), logits, p->m->output, s, false);
		slice_sum_push(&sum);
	}
	slice_sum_end(&sum);
}

static struct tile tile_alloc(const struct pass *p, int64_t rows)
{
	struct arena *a = p->d->scratch;
	int64_t per_slice = rows * (p->m->padded_vocab / p->tp.n);
	return (struct tile){
		.logits = arena_floats(a, p->tp.here * per_slice),
		.max = arena_floats(a, p->tp.here * rows),
		.sum = arena_floats(a, p->tp.here * rows),
		.target = arena_floats(a, p->tp.here * rows),
		.lse = arena_floats(a, rows),
		.loss = arena_floats(a, rows),
	};
}

static void head_chunk(struct pass *p, int c, struct mat x, struct mat dx)
{
	const struct kernels *k = p->d->k;
	const struct model *m = p->m;
	struct arena *scratch = p->d->scratch;
	size_t mark = arena_mark(scratch);
	int64_t dim = m->c.dim, step = tile_rows(p);
	struct mat h = mat(arena_floats(scratch, p->rows * dim), p->rows, dim);
	struct mat dh = mat(arena_floats(scratch, p->rows * dim), p->rows, dim);
	struct mat stats = mat(arena_floats(scratch, 2 * p->rows), 2, p->rows);
	struct tile t = tile_alloc(p, step);
	k->norm_fwd(p->d, m->arch->norm, h, stats, x, param(p, m->norm, 0),
		param(p, m->norm_bias, 0), (float)m->c.norm_eps);
	watch(p, "norm", -1, h);
	for (t.first = 0; t.first < p->rows; t.first += step) {
		t.rows = min64(step, p->rows - t.first);
		t.targets = p->targets + c * p->rows + t.first;
		t.h = mat_rows(h, t.first, t.rows);
		t.dh = mat_rows(dh, t.first, t.rows);
		tile_forward(p, &t);
		double begin = clock_seconds();
		if (p->train)
			tile_backward(p, &t);
		p->head_backward += clock_seconds() - begin;
	}
	if (p->train) {
		for (int s = 0; s < p->tp.here; s++)
			linear_leaf_done(p, m->output, s);
		piece_norm_bwd(p, m->norm, m->norm_bias, dh, x, stats);
		k->zero(p->d, dx);
		k->norm_bwd_x(
			p->d, m->arch->norm, dx, dh, x, stats, param(p, m->norm, 0));
		watch(p, "norm, backward", -1, dx);
	}
	arena_reset(scratch, mark);
}

void head(struct pass *p, float *x, float *dx)
{
	for (int c = 0; c < p->cp.here; c++)
		head_chunk(p, c, chunk_of(p, x, c, p->m->c.dim),
			chunk_of(p, dx, c, p->m->c.dim));
}
