/* Evaluation: the loss on a fixed set of windows. */
#include "train/train.h"

#include <math.h>
#include <stdlib.h>

/* Of the n micro-batches from `first` on, those of every rank. */
static struct sample_run *eval_runs(const struct trainer *t, int64_t first, int64_t n)
{
	int64_t b = t->o.micro_batch;
	int ranks = t->deal.ranks;
	struct sample_run *runs = xcalloc((size_t)t->world->size, sizeof(*runs));
	for (int r = 0; r < t->world->size; r++) {
		int q = train_data_rank(t->o.degree, r);
		int64_t begin = part_begin(n, ranks, q);
		runs[r] = (struct sample_run){.first = (first + begin) * b,
			.block = b,
			.stride = b,
			.blocks = part_begin(n, ranks, q + 1) - begin};
	}
	return runs;
}

double trainer_eval(struct trainer *t, enum split split)
{
	enum { ROUND = 16 }; /* micro-batches that a rank fetches at once */
	struct order order;
	int64_t b = t->o.micro_batch, context = t->model.c.context;
	/* Ranks that read data of their own may have more or less of it. */
	int64_t tokens = comm_min_i64(t->world, t->data->tokens[split]);
	if (order_init(&order, SAMPLING_EVEN, 0, tokens, context, t->o.eval_windows))
		return (double)NAN;
	int64_t n_micro = ceil_div(order.n_windows, b);
	int64_t round = ROUND * t->deal.ranks;
	t->pass.train = false;
	t->pass.loss = (struct exact){0};
	for (int64_t first = 0; first < n_micro; first += round) {
		struct sample_run *runs =
			eval_runs(t, first, min64(n_micro - first, round));
		const struct sample_run *mine = &runs[t->world->rank];
		struct fetch *f = loader_begin(t->loader, split, &order, runs);
		const int32_t *windows = loader_end(t->loader, f);
		for (int64_t m = 0; m < mine->blocks; m++) {
			int64_t window = mine->first + m * b;
			pass_load(&t->pass, windows + m * b * (context + 1));
			t->pass.counted = min64(b, order.n_windows - window);
			model_forward(&t->pass, &t->stages[0], &t->acts);
		}
		fetch_free(f);
		free(runs);
	}
	t->pass.counted = b;
	comm_sum_i64(t->world, (int64_t *)&t->pass.loss, EXACT_WORDS);
	double loss = exact_round(&t->pass.loss) / (double)(order.n_windows * context);
	return (double)(float)loss;
}
