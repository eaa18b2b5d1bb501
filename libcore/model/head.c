/* The head: final norm, output layer, cross-entropy. The backward of a band of rows follows its
 * forward at once, so that the logits of a whole micro-batch are never in memory. The output
 * weight is split by vocabulary.
 *
 * If the slices of the weight are gathered one by one (param_is_tiled()), a band is all rows: one
 * loop over the slices computes the statistics, and a second loop the backward, which recomputes
 * the logits. The sums and their order are the same. */
#include "model/linear.h"

/* Returns the number of rows with logits in memory at once. The weight's leaf is accumulated over
 * these blocks of rows, so the number depends on shapes and the kind of device only. */
static int64_t logit_rows(const struct pass *p)
{
	int64_t rows = p->d->tile_bytes / (p->m->padded_vocab * dtype_bytes(act_type(p)));
	return min64(p->rows, max64(16, rows / 16 * 16));
}

/* A band: consecutive rows, with the loss and then the backward computed before the next band. */
struct band {
	int chunk;
	int64_t first, rows, step; /* logits are computed for `step` rows at once */
	bool keeps_logits;	   /* keeps logits of all slices until the backward */
	const int32_t *targets;	   /* [rows] */
	struct mat h;		   /* rows of the final norm's output */
	char *logits;		   /* [local slice, or 1][step][vocabulary of a slice] */
	struct xent_stats stats;   /* [slice][rows] */
	float *lse, *loss;	   /* [rows] */
};

/* Returns the buffer for slice s of the logits of rows [i, i + step) of the band. */
static struct mat band_logits(
	const struct pass *p, const struct band *b, int s, int64_t i)
{
	int64_t cols = p->m->padded_vocab / p->tp.n, rows = min64(b->step, b->rows - i);
	struct mat first = mat_typed(b->logits, rows, cols, act_type(p));
	return mat_rows(first, b->keeps_logits ? s * rows : 0, rows);
}

static int64_t first_slice_token(const struct pass *p, int s)
{
	return (p->tp.first + s) * (p->m->padded_vocab / p->tp.n);
}

/* Returns the index of the output layer's use of its weight: 1 for a tied table, else 0. */
static int output_weight_use(const struct pass *p)
{
	return p->m->output->uses - 1;
}

/* Gathers the softmax statistics of all slices of the vocabulary on all ranks. Collective. */
static void gather_stats(struct pass *p, const struct band *b)
{
	float *const stats[] = {b->stats.max, b->stats.sum, b->stats.target};
	struct comm_requests requests = {.c = p->tp.axis};
	for (size_t i = 0; i < ARRAY_LEN(stats); i++)
		comm_enqueue(&requests, COLL_ALLGATHER,
			&(struct coll_args){.recv = stats[i],
				.count = p->tp.local * b->rows,
				.type = COMM_F32});
	comm_start(&requests);
	comm_wait(&requests);
	comm_requests_release(&requests);
}

/* Passes x, rows of the band from row `first` of the band on, to the observer. */
static void observe_rows(struct pass *p, const struct band *b, const char *name,
	enum extent extent, struct loc loc, struct mat x, int64_t first)
{
	if (p->observer)
		observe_result(p, (struct result){.name = name,
					  .extent = extent,
					  .at = loc,
					  .first_row = b->first + first,
					  .x = x});
}

/* Adds the losses of the band's rows to the exact sum p->loss, on the axis's first rank. */
static void add_loss(struct pass *p, const struct band *b)
{
	observe_rows(p, b, "loss", EXTENT_CHUNK,
		(struct loc){p->m->c.layers, 0, b->chunk}, mat(b->loss, b->rows, 1), 0);
	/* all ranks of the axis have the same loss: only the first rank adds it */
	int64_t counted = p->micro.counted * (p->rows / p->c.batch) - b->first;
	if (p->tp.axis->rank == 0 && !p->micro.empty)
		p->d->k->exact_sum(
			p->d, p->loss, b->loss, max64(0, min64(counted, b->rows)));
}

/* Returns true if one kernel computes the loss and its gradient: one slice has all logits. */
static bool fuses_loss(const struct pass *p)
{
	return p->micro.train && p->tp.n == 1 && !p->c.plain_kernels;
}

/* Returns the loss terms; an evaluation computes the plain loss. */
static struct xent_terms loss_terms(const struct pass *p)
{
	return p->micro.train ? p->c.loss_terms : (struct xent_terms){0};
}

static struct xent_stats stats_from_row(const struct band *b, int64_t row)
{
	return (struct xent_stats){
		b->stats.max + row, b->stats.sum + row, b->stats.target + row};
}

static struct mat compute_logits(struct pass *p, const struct band *b, int s, int64_t i)
{
	const struct linear l = {.y = band_logits(p, b, s, i), .w = p->m->output};
	linear_forward(p, (struct loc){-1, s, b->chunk}, &l, mat_rows(b->h, i, l.y.rows));
	return l.y;
}

/* Computes the logits of slice s, and their loss or softmax statistics. */
static void logits_forward(struct pass *p, const struct band *b, int s)
{
	int64_t row = (p->tp.first + s) * b->rows;
	param_use(p, p->m->output, s);
	for (int64_t i = 0; i < b->rows; i += b->step) {
		const struct linear l = {.y = band_logits(p, b, s, i), .w = p->m->output};
		if (fuses_loss(p) && !p->observer) {
			linear_loss(p, &l, mat_rows(b->h, i, l.y.rows), b->loss + i,
				b->targets + i, loss_terms(p));
			continue;
		}
		struct mat logits = compute_logits(p, b, s, i);
		observe_rows(p, b, "output", EXTENT_SLICE,
			(struct loc){p->m->c.layers, s, b->chunk}, logits, i);
		if (fuses_loss(p))
			p->d->k->xent_fused(p->d, b->loss + i, logits, b->targets + i,
				p->m->c.vocab, loss_terms(p), &p->step->loss_scale);
		else
			p->d->k->xent_stats(p->d, stats_from_row(b, row + i), logits,
				b->targets + i, first_slice_token(p, s), p->m->c.vocab,
				loss_terms(p));
	}
	param_done(p, p->m->output, s);
}

/* Computes the losses of a band's rows, and adds them to p->loss. */
static void band_forward(struct pass *p, const struct band *b)
{
	for (int s = 0; s < p->tp.local; s++)
		logits_forward(p, b, s);
	if (!fuses_loss(p)) {
		gather_stats(p, b);
		p->d->k->xent_join(
			p->d, b->lse, b->loss, b->stats, p->tp.n, b->rows, loss_terms(p));
	}
	add_loss(p, b);
}

/* Adds the band to slice s of the weight's gradient, and writes this slice's addend of dh. */
static void slice_backward(struct pass *p, const struct band *b, int s, struct mat dh)
{
	const struct tensor *output = p->m->output;
	const struct loc loc = {-1, s, b->chunk};
	param_use(p, output, s);
	for (int64_t i = 0; i < b->rows; i += b->step) {
		struct linear l = {.y = band_logits(p, b, s, i), .w = output};
		if (!b->keeps_logits)
			compute_logits(p, b, s, i);
		if (!fuses_loss(p))
			p->d->k->xent_bwd(p->d, l.y, b->lse + i, b->targets + i,
				first_slice_token(p, s), p->m->c.vocab, loss_terms(p),
				&p->step->loss_scale);
		if (!output->frozen)
			linear_backward_w(p, -1, leaf_buffer(p, output, loc), l.y,
				mat_rows(b->h, i, l.y.rows), b->first + i > 0);
		linear_backward_x(p, loc, mat_rows(dh, i, l.y.rows), &l, 1);
	}
	param_done(p, output, s);
}

/* Rounds a slice's gradient of the output layer, and starts to reduce it, unless it is frozen. */
static void finish_output_leaf(struct pass *p, struct loc loc)
{
	const struct tensor *output = p->m->output;
	if (output->frozen)
		return;
	linear_round(p, leaf_buffer(p, output, loc));
	leaf_done(p, output, loc, output_weight_use(p));
	param_reduce(p, output, loc.slice, output_weight_use(p));
}

/* Computes the band's part of the output layer's gradient, and pushes its input's to dh. */
static void band_backward(struct pass *p, const struct band *b, struct slice_sum *dh)
{
	device_timer_start(p->d, TIMER_BACKWARD);
	slice_sum_rows(dh, b->first, b->rows);
	for (int s = 0; s < p->tp.local; s++) {
		slice_backward(p, b, s, slice_sum_slot(dh));
		slice_sum_push(dh);
		if (b->first + b->rows == p->rows)
			finish_output_leaf(p, (struct loc){-1, s, b->chunk});
	}
	device_timer_start(p->d, TIMER_FORWARD);
}

/* Allocates the buffers of a band of chunk c in the scratch arena. */
static struct band band_alloc(const struct pass *p, int c)
{
	struct arena *a = p->d->scratch;
	bool tiled = param_is_tiled(p, p->m->output);
	int64_t step = logit_rows(p), rows = tiled ? p->rows : step;
	int64_t slices = tiled ? 1 : p->tp.local;
	return (struct band){
		.chunk = c,
		.rows = rows,
		.step = step,
		.keeps_logits = !tiled,
		.logits = mat_alloc(
			a, slices * step, p->m->padded_vocab / p->tp.n, act_type(p))
				  .p,
		.stats = {.max = arena_floats(a, p->tp.n * rows),
			.sum = arena_floats(a, p->tp.n * rows),
			.target = arena_floats(a, p->tp.n * rows)},
		.lse = arena_floats(a, rows),
		.loss = arena_floats(a, rows),
	};
}

/* Computes the loss of chunk c band by band and, in training, pushes the gradient of its input to
 * dh. `all`: the gathered input. */
static void head_bands(struct pass *p, int c, struct mat all, struct slice_sum *dh)
{
	struct band b = band_alloc(p, c);
	for (int64_t step = b.rows; b.first < p->rows; b.first += step) {
		b.rows = min64(step, p->rows - b.first);
		b.targets = p->in.targets + c * p->rows + b.first;
		b.h = mat_rows(all, b.first, b.rows);
		band_forward(p, &b);
		if (p->micro.train)
			band_backward(p, &b, dh);
	}
}

struct stream_norm final_norm(struct pass *p, int c)
{
	return (struct stream_norm){.name = "norm",
		.loc = {p->m->c.layers, 0, c},
		.h = mat_alloc(p->d->scratch, p->rows, p->m->c.dim, act_type(p)),
		.stats = mat_alloc(p->d->scratch, 2, p->stream_rows, DT_F32),
		.weight = p->m->norm,
		.bias = p->m->norm_bias};
}

/* Computes the losses of context chunk c and, in training, dx and the leaves of the weights. */
static void head_chunk(struct pass *p, int c, struct mat x, struct mat dx)
{
	size_t mark = arena_mark(p->d->scratch);
	const struct stream_norm norm = final_norm(p, c);
	struct mat dh = mat_alloc(p->d->scratch, x.rows, x.cols, slice_type(p));
	struct slice_sum sum;
	struct slice_gather all;
	if (p->micro.train)
		slice_sum_begin(&sum, &p->tp, p->d, dh, p->rows, act_type(p));
	norm_forward(p, &norm, x);
	norm_gather_begin(p, &all, &norm);
	slice_gather_end(&all);
	head_bands(p, c, all.all, &sum);
	if (p->micro.train) {
		slice_sum_end(&sum);
		p->d->k->zero(p->d, dx);
		norm_backward(
			p, &norm, &(struct norm_grad){.dx = dx, .dy = dh, .x = x}, true);
	}
	arena_reset(p->d->scratch, mark);
}

void head_loss(struct pass *p, struct mat x, struct mat dx)
{
	for (int c = 0; c < p->cp.local; c++)
		head_chunk(p, c, stream_chunk(p, x, c), stream_chunk(p, dx, c));
}
