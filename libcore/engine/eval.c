/* Evaluation: the loss on a fixed set of windows. */
#include "engine/step.h"

#include <math.h>

/* Evaluates micro-batches [first, first + n), a contiguous range per data-parallel rank.
 * Returns the number of targets with a weight in this rank's windows. */
static int64_t eval_round(struct trainer *t, enum split split, const struct order *order,
	int64_t first, int64_t n)
{
	int64_t b = t->o.micro_batch;
	int ranks = t->layout.microbatches.ranks;
	scoped_ptr struct sample_run *runs =
		xcalloc((size_t)t->world->size, sizeof(*runs));
	for (int r = 0; r < t->world->size; r++) {
		int data_rank = layout_data_rank(t->mesh.degree, r);
		int64_t begin = part_begin(n, ranks, data_rank);
		runs[r] = (struct sample_run){.first = (first + begin) * b,
			.block = b,
			.stride = b,
			.blocks = part_begin(n, ranks, data_rank + 1) - begin};
	}
	const struct sample_run *own_run = &runs[t->world->rank];
	struct fetch *f = loader_begin(t->data.loader, split, order, runs);
	const struct pipe_input in = {.n = own_run->blocks,
		.windows = loader_end(t->data.loader, f),
		.n_windows = order->n_windows - own_run->first};
	pipe_forward(&t->pipe, &in, ceil_div(n, ranks));
	int64_t n_real = max64(0, min64(in.n_windows, in.n * b));
	int64_t counted = step_is_first_of_samples(t)
				  ? dataset_count_targets(t->data.set, in.windows, n_real,
					    t->model.c.context)
				  : 0;
	fetch_free(f);
	return counted;
}

void eval_sum(struct trainer *t, enum split split, bool (*stop)(void *arg), void *arg,
	struct eval_sum *sum)
{
	enum { ROUND = 16 }; /* micro-batches that a rank fetches at once */
	struct order order;
	int64_t context = t->model.c.context,
		max_micro = (int64_t)ROUND * t->layout.microbatches.ranks;
	/* With --data-per-rank, ranks may have different numbers of tokens. */
	int64_t tokens = comm_min_i64(t->world, t->data.set->tokens[split]);
	*sum = (struct eval_sum){.counted = 0};
	if (dataset_window_order(&order, t->data.set, SAMPLING_EVEN, 0, tokens, context,
		    t->o.eval_windows))
		return;
	sum->windows = order.n_windows;
	int64_t n_micro = ceil_div(order.n_windows, t->o.micro_batch);
	pass_loss_begin(&t->pass);
	for (int64_t first = 0; first < n_micro; first += max_micro) {
		if (first && stop && stop(arg)) {
			sum->stopped = 1;
			return;
		}
		sum->counted += eval_round(
			t, split, &order, first, min64(n_micro - first, max_micro));
	}
	sum->loss = pass_loss(&t->pass);
	comm_sum_i64(t->world, (int64_t *)sum, EXACT_WORDS + 1);
}

double eval_mean(const struct trainer *t, const struct eval_sum *sum, enum split split)
{
	/* warns once, since an evaluation has the same windows each time */
	static bool warned[N_SPLITS];
	if (sum->counted && !sum->stopped)
		return (double)(float)(exact_round(&sum->loss) / (double)sum->counted);
	if (!t->world->rank && sum->windows && !sum->stopped && !warned[split]) {
		warned[split] = true;
		warn("%s_loss cannot be evaluated: no target in its windows has a weight; give "
		     "more --eval-windows",
			split_names[split]);
	}
	return (double)NAN;
}

double eval_loss(struct trainer *t, enum split split)
{
	struct eval_sum sum;
	eval_sum(t, split, NULL, NULL, &sum);
	return eval_mean(t, &sum, split);
}
