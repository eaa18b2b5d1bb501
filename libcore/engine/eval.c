/* Evaluation: the loss on a fixed set of windows. */
#include "engine/step.h"

#include <math.h>
#include <stdlib.h>

/* Micro-batches [first, first + n), a contiguous range for each data-parallel rank. Returns how many targets of
 * this rank's windows count. */
static int64_t eval_round(struct trainer *t, enum split split, const struct order *order,
	int64_t first, int64_t n)
{
	int64_t b = t->o.micro_batch;
	int ranks = t->layout.microbatches.ranks;
	struct sample_run *runs = xcalloc((size_t)t->world->size, sizeof(*runs));
	for (int r = 0; r < t->world->size; r++) {
		int d = layout_data_rank(t->mesh.degree, r);
		int64_t begin = part_begin(n, ranks, d);
		runs[r] = (struct sample_run){.first = (first + begin) * b,
			.block = b,
			.stride = b,
			.blocks = part_begin(n, ranks, d + 1) - begin};
	}
	const struct sample_run *mine = &runs[t->world->rank];
	struct fetch *f = loader_begin(t->data.loader, split, order, runs);
	const struct pipe_input in = {.n = mine->blocks,
		.windows = loader_end(t->data.loader, f),
		.n_windows = order->n_windows - mine->first};
	pipe_forward(&t->pipe, &in, ceil_div(n, ranks));
	int64_t real = max64(0, min64(in.n_windows, in.n * b));
	int64_t counted = step_counts_samples(t)
				  ? dataset_targets(t->data.set, in.windows, real,
					    t->model.c.context)
				  : 0;
	fetch_free(f);
	free(runs);
	return counted;
}

/* Once, since an evaluation has the same windows each time. */
static void say_no_target(const struct trainer *t, enum split split)
{
	static bool said[N_SPLITS];
	if (t->world->rank || said[split])
		return;
	said[split] = true;
	warn("no token counts in the windows with which %s_loss is evaluated, so there is none; "
	     "more --eval-windows may have some",
		split_names[split]);
}

double eval_loss(
	struct trainer *t, enum split split, bool (*stop)(void *with), void *with)
{
	enum { ROUND = 16 }; /* micro-batches that a rank fetches at once */
	struct order order;
	int64_t context = t->model.c.context,
		most = (int64_t)ROUND * t->layout.microbatches.ranks;
	/* With --data-per-rank, ranks may have different amounts. */
	int64_t tokens = comm_min_i64(t->world, t->data.set->tokens[split]);
	if (dataset_windows(&order, t->data.set, SAMPLING_EVEN, 0, tokens, context,
		    t->o.eval_windows))
		return (double)NAN;
	int64_t n_micro = ceil_div(order.n_windows, t->o.micro_batch), counted = 0;
	pass_loss_begin(&t->pass);
	for (int64_t first = 0; first < n_micro; first += most) {
		if (first && stop && stop(with))
			return (double)NAN;
		counted +=
			eval_round(t, split, &order, first, min64(n_micro - first, most));
	}
	struct {
		struct exact loss;
		int64_t counted;
	} sum = {pass_loss(&t->pass), counted};
	comm_sum_i64(t->world, (int64_t *)&sum, EXACT_WORDS + 1);
	if (!sum.counted) {
		say_no_target(t, split);
		return (double)NAN;
	}
	return (double)(float)(exact_round(&sum.loss) / (double)sum.counted);
}
