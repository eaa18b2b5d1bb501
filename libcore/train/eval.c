/* Evaluation: the loss on a fixed set of windows. */
#include "train/train.h"

#include <math.h>
#include <stdlib.h>

/* The windows of this rank in a round, and the first one's number. */
struct evaluation {
	struct trainer *t;
	struct order order;
	const int32_t *windows;
	int64_t first;
};

static void load_micro(void *with, int64_t i)
{
	const struct evaluation *v = with;
	struct pass *p = &v->t->pass;
	int64_t b = p->c.batch;
	if (p->micro.empty)
		return;
	pass_load(p, v->windows + i * b * (p->m->c.context + 1));
	p->micro.counted = min64(b, v->order.n_windows - v->first - i * b);
}

/* Micro-batches [first, first + n), dealt to the data-parallel ranks in runs. */
static void eval_round(struct trainer *t, enum split split, struct evaluation *v,
	int64_t first, int64_t n)
{
	int64_t b = t->o.micro_batch;
	int ranks = t->deal.ranks;
	struct sample_run *runs = xcalloc((size_t)t->world->size, sizeof(*runs));
	for (int r = 0; r < t->world->size; r++) {
		int d = train_data_rank(t->mesh.degree, r);
		int64_t begin = part_begin(n, ranks, d);
		runs[r] = (struct sample_run){.first = (first + begin) * b,
			.block = b,
			.stride = b,
			.blocks = part_begin(n, ranks, d + 1) - begin};
	}
	const struct sample_run *mine = &runs[t->world->rank];
	struct fetch *f = loader_begin(t->loader, split, &v->order, runs);
	v->windows = loader_end(t->loader, f);
	v->first = mine->first;
	pipe_forward(&t->pipe, mine->blocks, ceil_div(n, ranks), load_micro, v);
	fetch_free(f);
	free(runs);
}

double trainer_eval(struct trainer *t, enum split split)
{
	enum { ROUND = 16 }; /* micro-batches that a rank fetches at once */
	struct evaluation v = {.t = t};
	int64_t context = t->model.c.context, most = (int64_t)ROUND * t->deal.ranks;
	/* Ranks that read data of their own may have more or less of it. */
	int64_t tokens = comm_min_i64(t->world, t->data->tokens[split]);
	if (order_init(&v.order, SAMPLING_EVEN, 0, tokens, context, t->o.eval_windows))
		return (double)NAN;
	int64_t n_micro = ceil_div(v.order.n_windows, t->o.micro_batch);
	pass_loss_begin(&t->pass);
	for (int64_t first = 0; first < n_micro; first += most)
		eval_round(t, split, &v, first, min64(n_micro - first, most));
	struct exact sum = pass_loss(&t->pass);
	comm_sum_i64(t->world, (int64_t *)&sum, EXACT_WORDS);
	double loss = exact_round(&sum) / (double)(v.order.n_windows * context);
	return (double)(float)loss;
}
