/*
 * The head: final norm, product with the vocabulary, cross-entropy. Rows go through in
 * tiles, and a tile's backward follows its forward at once, so that the logits of a whole
 * micro-batch never exist. The table is cut by vocabulary.
 *
 * Where slices of the table are gathered one by one (--tile), all rows go through a slice
 * before the next comes: once for the statistics, and once more for the backward, which makes
 * the logits again. Sums are the same, in the same order.
 */
#include "model/layers.h"

/* Rows of a tile: a function of shapes and the kind of device alone, because a weight's leaf
 * is a chain over tiles. */
static int64_t tile_rows(const struct pass *p)
{
	int64_t rows = p->d->tile_bytes / (p->m->padded_vocab * dtype_bytes(act_type(p)));
	return min64(p->rows, max64(16, rows / 16 * 16));
}

struct tile {
	int c; /* chunk */
	int64_t first, rows;
	const int32_t *targets;
	struct mat h;		   /* rows of the normed stream */
	char *logits;		   /* [slice here][rows][vocabulary of a slice] */
	float *max, *sum, *target; /* [slice][rows] */
	float *lse, *loss;	   /* [rows] */
};

static struct mat logits_of(const struct pass *p, const struct tile *t, int s)
{
	int64_t cols = p->m->padded_vocab / p->tp.n;
	enum dtype type = act_type(p);
	return mat_typed(
		t->logits + s * t->rows * cols * dtype_bytes(type), t->rows, cols, type);
}

static int64_t first_token(const struct pass *p, int s)
{
	return (p->tp.first + s) * (p->m->padded_vocab / p->tp.n);
}

/* Of a tied table, this is the second use. */
static int use_of_output(const struct pass *p)
{
	return p->m->output->uses - 1;
}

/* Every rank has the statistics of its slices, and gets those of all. */
static void share_stats(struct pass *p, const struct tile *t)
{
	float *const stats[] = {t->max, t->sum, t->target};
	struct comm_requests requests = {.c = p->tp.axis};
	for (size_t i = 0; i < ARRAY_LEN(stats); i++)
		comm_enqueue(&requests, COLL_ALLGATHER,
			&(struct coll_args){.recv = stats[i],
				.count = p->tp.here * t->rows,
				.type = COMM_F32});
	comm_start(&requests);
	comm_wait(&requests);
	comm_requests_free(&requests);
}

static void count_loss(struct pass *p, const struct tile *t)
{
	watch(p, "loss", -1, mat(t->loss, 1, t->rows));
	/* Every rank of the axis knows the loss: one counts it. */
	int64_t counted = p->counted * (p->rows / p->batch) - t->first;
	if (p->tp.axis->rank == 0 && !p->empty)
		p->d->k->exact_sum(
			p->d, p->loss, t->loss, max64(0, min64(counted, t->rows)));
}

/* The loss of the rows, from the statistics of this rank's slices. */
static void tile_loss(struct pass *p, const struct tile *t)
{
	share_stats(p, t);
	p->d->k->xent_join(
		p->d, t->lse, t->loss, t->max, t->sum, t->target, p->tp.n, t->rows);
	count_loss(p, t);
}

/* One slice is the whole vocabulary: one kernel makes the loss of its logits, and their gradient. */
static bool is_fused(const struct pass *p)
{
	return p->train && p->tp.n == 1 && !p->plain_kernels;
}

static void tile_forward(struct pass *p, struct tile *t)
{
	const struct kernels *k = p->d->k;
	for (int s = 0; s < p->tp.here; s++) {
		int64_t at = (p->tp.first + s) * t->rows;
		struct mat logits = logits_of(p, t, s);
		linear_forward(p, -1, logits, t->h, p->m->output, NULL, s);
		watch(p, "output", -1, logits);
		if (is_fused(p))
			k->xent_fused(p->d, t->loss, logits, t->targets, p->m->c.vocab,
				&p->step->loss_scale);
		else
			k->xent_stats(p->d, t->max + at, t->sum + at, t->target + at,
				logits, t->targets, first_token(p, s), p->m->c.vocab);
	}
	if (is_fused(p))
		count_loss(p, t);
	else
		tile_loss(p, t);
}

static void logits_backward(
	struct pass *p, const struct tile *t, int s, struct mat logits)
{
	p->d->k->xent_bwd(p->d, logits, t->lse, t->targets, first_token(p, s),
		p->m->c.vocab, &p->step->loss_scale);
}

/* Of slice s: from the gradient of its logits to the leaf, which rows are added to, and to its
 * part of dh. */
static void slice_backward(
	struct pass *p, const struct tile *t, int s, struct mat logits, struct mat dh)
{
	const struct tensor *output = p->m->output;
	linear_backward_w(p, -1, leaf_of_use(p, output, s, t->c, use_of_output(p)),
		logits, t->h, t->first > 0);
	linear_backward_x(p, -1, dh, &(struct linear){.y = logits, .w = output}, 1, s);
}

static void leaf_complete(struct pass *p, int s, int c)
{
	const struct tensor *output = p->m->output;
	linear_round(p, leaf_of_use(p, output, s, c, use_of_output(p)));
	leaf_of_use_done(p, output, s, c, use_of_output(p));
}

static void tile_backward(struct pass *p, struct tile *t, struct slice_sum *dh)
{
	slice_sum_rows(dh, t->first, t->rows);
	for (int s = 0; s < p->tp.here; s++) {
		if (!is_fused(p))
			logits_backward(p, t, s, logits_of(p, t, s));
		slice_backward(p, t, s, logits_of(p, t, s), slice_sum_slot(dh));
		slice_sum_push(dh);
	}
}

static struct tile tile_alloc(const struct pass *p, int c, int64_t rows)
{
	struct arena *a = p->d->scratch;
	int64_t per_slice = rows * (p->m->padded_vocab / p->tp.n);
	return (struct tile){
		.c = c,
		.logits = mat_take(a, p->tp.here, per_slice, act_type(p)).p,
		.max = arena_floats(a, p->tp.n * rows),
		.sum = arena_floats(a, p->tp.n * rows),
		.target = arena_floats(a, p->tp.n * rows),
		.lse = arena_floats(a, rows),
		.loss = arena_floats(a, rows),
	};
}

/* ---- a slice after the other ------------------------------------------------------ */

/* Rows [first, first + rows) of what t has of all. */
static struct tile rows_of(
	const struct pass *p, const struct tile *t, struct mat all, int64_t first)
{
	struct tile x = *t;
	x.first = first;
	x.rows = min64(tile_rows(p), p->rows - first);
	x.targets += first;
	x.lse += first;
	x.h = mat_rows(all, first, x.rows);
	return x;
}

static struct mat slice_logits(struct pass *p, const struct tile *t, int s)
{
	struct mat logits = logits_of(p, t, 0);
	linear_forward(p, -1, logits, t->h, p->m->output, NULL, s);
	watch(p, "output", -1, logits);
	return logits;
}

static void slices_forward(struct pass *p, const struct tile *whole, struct mat all)
{
	for (int s = 0; s < p->tp.here; s++) {
		table_use(p, p->m->output, s);
		for (int64_t i = 0; i < p->rows; i += tile_rows(p)) {
			struct tile t = rows_of(p, whole, all, i);
			int64_t at = (p->tp.first + s) * p->rows + i;
			p->d->k->xent_stats(p->d, t.max + at, t.sum + at, t.target + at,
				slice_logits(p, &t, s), t.targets, first_token(p, s),
				p->m->c.vocab);
		}
		table_done(p, p->m->output, s);
	}
	tile_loss(p, whole);
}

static void slices_backward(
	struct pass *p, const struct tile *whole, struct mat all, struct slice_sum *dh)
{
	for (int s = 0; s < p->tp.here; s++) {
		struct mat slot = slice_sum_slot(dh);
		table_use(p, p->m->output, s);
		for (int64_t i = 0; i < p->rows; i += tile_rows(p)) {
			struct tile t = rows_of(p, whole, all, i);
			struct mat logits = slice_logits(p, &t, s);
			logits_backward(p, &t, s, logits);
			slice_backward(p, &t, s, logits, mat_rows(slot, i, t.rows));
		}
		table_done(p, p->m->output, s);
		slice_sum_push(dh);
		leaf_complete(p, s, whole->c);
		table_reduce(p, p->m->output, s, use_of_output(p));
	}
}

static void head_slices(struct pass *p, int c, struct mat all, struct slice_sum *dh)
{
	struct arena *a = p->d->scratch;
	const struct tile whole = {
		.c = c,
		.rows = p->rows,
		.targets = p->targets + c * p->rows,
		.logits = mat_take(
			a, tile_rows(p), p->m->padded_vocab / p->tp.n, act_type(p))
				  .p,
		.max = arena_floats(a, p->tp.n * p->rows),
		.sum = arena_floats(a, p->tp.n * p->rows),
		.target = arena_floats(a, p->tp.n * p->rows),
		.lse = arena_floats(a, p->rows),
		.loss = arena_floats(a, p->rows),
	};
	slices_forward(p, &whole, all);
	if (!p->train)
		return;
	device_at(p->d, AT_BACKWARD);
	slices_backward(p, &whole, all, dh);
	device_at(p->d, AT_FORWARD);
}

/* ---- rows after rows -------------------------------------------------------------- */

static void head_rows(struct pass *p, int c, struct mat all, struct slice_sum *dh)
{
	int64_t step = tile_rows(p);
	struct tile t = tile_alloc(p, c, step);
	for (t.first = 0; t.first < p->rows; t.first += step) {
		t.rows = min64(step, p->rows - t.first);
		t.targets = p->targets + c * p->rows + t.first;
		t.h = mat_rows(all, t.first, t.rows);
		tile_forward(p, &t);
		if (!p->train)
			continue;
		device_at(p->d, AT_BACKWARD);
		tile_backward(p, &t, dh);
		device_at(p->d, AT_FORWARD);
	}
	for (int s = 0; s < p->tp.here && p->train; s++)
		leaf_complete(p, s, c);
}

static void head_chunk(struct pass *p, int c, struct mat x, struct mat dx)
{
	const struct model *m = p->m;
	struct arena *scratch = p->d->scratch;
	size_t mark = arena_mark(scratch);
	int64_t dim = m->c.dim;
	struct stream_norm norm = {"norm", -1, no_mat(), no_mat(), m->norm, m->norm_bias};
	norm.h = mat_take(scratch, p->rows, dim, act_type(p));
	struct mat dh = mat_take(scratch, x.rows, dim, slice_type(p));
	norm.stats = mat_take(scratch, 2, p->rows_here, DT_F32);
	struct slice_sum sum;
	if (p->train)
		slice_sum_begin(&sum, &p->tp, p->d, dh, p->rows);
	struct slice_gather all;
	norm_forward(p, &norm, x, 0);
	norm_gather(p, &all, &norm, 0);
	slice_gather_end(&all);
	if (table_is_tiled(p, m->output))
		head_slices(p, c, all.all, &sum);
	else
		head_rows(p, c, all.all, &sum);
	if (p->train) {
		slice_sum_end(&sum);
		p->d->k->zero(p->d, dx);
		norm_backward(p, m->norm, m->norm_bias, c, dx, dh, x, norm.stats);
		watch(p, "norm, backward", -1, dx);
	}
	arena_reset(scratch, mark);
}

void head(struct pass *p, struct mat x, struct mat dx)
{
	for (int c = 0; c < p->cp.here; c++)
		head_chunk(p, c, stream_of(p, x, c), stream_of(p, dx, c));
}
