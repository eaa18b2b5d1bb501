/* Evaluation: the loss on a fixed set of windows. */
#include "train/train.h"

#include <math.h>
#include <stdlib.h>

double trainer_eval(struct trainer *t, enum split split)
{
	enum { ROUND = 16 }; /* micro-batches that a rank fetches at once */
	struct comm *dp = t->dp;
	struct order order;
	int64_t b = t->o.micro_batch, context = t->model.c.context;
	/* Ranks that read data of their own may have more or less of it. */
	int64_t tokens = comm_min_i64(dp, t->data->tokens[split]);
	if (order_init(&order, SAMPLING_EVEN, 0, tokens, context, t->o.eval_windows))
		return (double)NAN;
	int64_t n_micro = ceil_div(order.n_windows, b);
	int64_t *begin = xcalloc((size_t)dp->size + 1, sizeof(*begin));
	t->pass.train = false;
	t->pass.loss = (struct exact){0};
	for (int64_t first = 0; first < n_micro; first += ROUND * dp->size) {
		int64_t n = min64(n_micro - first, ROUND * dp->size);
		for (int r = 0; r <= dp->size; r++)
			begin[r] = part_begin(n, dp->size, r) * b;
		struct fetch *f =
			loader_begin(t->loader, split, &order, first * b, begin);
		const int32_t *windows = loader_end(t->loader, f);
		int64_t mine = (begin[dp->rank + 1] - begin[dp->rank]) / b;
		for (int64_t m = 0; m < mine; m++) {
			int64_t window = first * b + begin[dp->rank] + m * b;
			pass_load(&t->pass, windows + m * b * (context + 1));
			t->pass.counted = min64(b, order.n_windows - window);
			model_forward(&t->pass, &t->acts);
		}
		fetch_free(f);
	}
	free(begin);
	t->pass.counted = b;
	comm_sum_i64(dp, (int64_t *)&t->pass.loss, EXACT_WORDS);
	double loss = exact_round(&t->pass.loss) / (double)(order.n_windows * context);
	return (double)(float)loss;
}
