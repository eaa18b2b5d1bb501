/* The plan: the training code itself, run on the planning device with arenas that only
 * measure. */
#include "train/train.h"

#include <stdlib.h>

struct parts { /* of the plan, while it is made */
	struct arena run, micro, scratch;
	struct device d;
	struct pass pass;
	struct acts acts;
};

void plan_make(
	const struct train_opts *o, struct model *m, int rank, int ranks, struct plan *p)
{
	struct parts x;
	struct comm_place place;
	comm_place(&place);
	struct comm dp = {
		.rank = rank, .size = ranks, .name = "plan", .shares = place.shares};
	arena_measure(&x.run, "run");
	arena_measure(&x.micro, "activations");
	arena_measure(&x.scratch, "scratch");
	device_plan(&x.d);
	x.d.scratch = &x.scratch;
	*p = (struct plan){0};
	struct store_config c = {.dp = &dp,
		.device = &x.d,
		.tensors = m->tensors,
		.n_tensors = m->n_tensors,
		.n_units = m->n_units,
		.n_floats = m->n_floats,
		.chunks = m->cp,
		.n_micro = trainer_micro_batches(o),
		.bucket_bytes = o->bucket_bytes};
	struct store *s = store_replicated(&c, &x.run);
	pass_init(&x.pass, m, &x.d, s, o->micro_batch, (uint64_t)o->seed, &x.run);
	x.pass.plain_kernels = o->kernels == KERNELS_REF;
	pass_precision(&x.pass, (enum precision)o->dtype, o->float8_skip_ends, &x.run);
	acts_alloc(&x.pass, &x.acts, &x.micro);
	x.pass.train = true;
	model_forward(&x.pass, &x.acts);
	model_backward(&x.pass, &x.acts, false);
	int64_t mine = s->deal[rank + 1] - s->deal[rank];
	p->run_bytes = (int64_t)x.run.peak_bytes;
	p->micro_bytes = (int64_t)x.micro.peak_bytes;
	p->scratch_bytes = (int64_t)x.scratch.peak_bytes;
	p->store = s->bytes;
	p->data_bytes =
		2 * mine * o->micro_batch * (m->c.context + 1) * (int64_t)sizeof(int32_t);
	p->step_flops = x.d.flops * (double)mine;
	free(x.acts.block);
	free(x.pass.tp.axis);
	store_free(s);
}

int64_t plan_total(const struct plan *p)
{
	return p->run_bytes + p->store.grads + p->store.buffers + p->micro_bytes +
	       p->scratch_bytes + p->data_bytes;
}

static void line(struct str *out, const char *name, int64_t n_bytes, const char *help)
{
	char text[NUM_TEXT];
	str_printf(out, "%-14s %16lld  %9s  %s\n", name, (long long)n_bytes,
		text_bytes(text, (double)n_bytes), help);
}

/* Ranks differ by how many micro-batches they have and how these lie in the tree. */
static bool alike(const struct train_opts *o, int ranks, int a, int b)
{
	int64_t n = trainer_micro_batches(o);
	struct tree_node nodes[TREE_MAX_NODES];
	int64_t begin[] = {part_begin(n, ranks, a), part_begin(n, ranks, b)};
	int64_t end[] = {part_begin(n, ranks, a + 1), part_begin(n, ranks, b + 1)};
	return end[0] - begin[0] == end[1] - begin[1] &&
	       tree_depth(begin[0], end[0]) == tree_depth(begin[1], end[1]) &&
	       tree_nodes(begin[0], end[0], nodes) == tree_nodes(begin[1], end[1], nodes);
}

/* The plan of the rank that needs most; the totals of all, equal neighbours in one line. */
static int plan_most(const struct train_opts *o, struct model *m, int ranks,
	struct plan *most, struct str *totals)
{
	struct plan p;
	int who = 0;
	for (int first = 0, r; first < ranks; first = r) {
		char name[NUM_TEXT], text[NUM_TEXT];
		for (r = first + 1; r < ranks && alike(o, ranks, first, r); r++)
			;
		plan_make(o, m, first, ranks, &p);
		if (!first || plan_total(&p) > plan_total(most)) {
			*most = p;
			who = first;
		}
		if (r == first + 1)
			snprintf(name, sizeof(name), "rank %d", first);
		else
			snprintf(name, sizeof(name), "ranks %d-%d", first, r - 1);
		str_printf(totals, "%-14s %16lld  %9s\n", name, (long long)plan_total(&p),
			text_bytes(text, (double)plan_total(&p)));
	}
	return who;
}

void plan_print(const struct train_opts *o, struct model *m, int ranks, struct str *out)
{
	char text[NUM_TEXT];
	struct plan most = {0}, *p = &most;
	struct str totals = {0};
	int who = plan_most(o, m, ranks, p, &totals);
	int64_t mine = p->store.params + p->store.optimizer;
	str_printf(out, "# memory of rank %d%s, in bytes\n", who,
		ranks > 1 ? ", which needs most" : "");
	line(out, "parameters", p->store.params, "fp32");
	line(out, "gradients", p->store.grads,
		"fp32, with the buffers of the canonical tree");
	line(out, "optimizer", p->store.optimizer, "AdamW: two moments, fp32");
	line(out, "activations", p->micro_bytes, "of one micro-batch");
	line(out, "scratch", p->scratch_bytes, "temporary, in forward and backward");
	line(out, "exchange", p->store.buffers,
		p->store.buffers || ranks == 1
			? "for sums over ranks"
			: "none: one host, shared memory; PT_SHARED=no plans several");
	line(out, "positions", p->run_bytes - mine,
		"token and position ids, rotary tables");
	line(out, "data", p->data_bytes, "windows of this step and the next");
	line(out, "total", plan_total(p), "beside the program and its libraries");
	if (ranks > 1)
		str_printf(out, "# memory of each rank\n%s", totals.s);
	str_free(&totals);
	str_puts(out,
		"# work: N parameters without positions, L layers, C dim, T context\n");
	str_printf(out, "%-14s %16.6g  %9s  6 N + 12 L C T, attention not halved\n",
		"flops/token", model_flops_per_token(m, false),
		text_count(text, model_flops_per_token(m, false)));
	str_printf(out, "%-14s %16.6g  %9s  6 N + 6 L C T, causal\n", "flops/token",
		model_flops_per_token(m, true),
		text_count(text, model_flops_per_token(m, true)));
	str_printf(out, "%-14s %16.6g  %9s  of matrix products that this rank does\n",
		"flops/step", p->step_flops, text_count(text, p->step_flops));
	str_printf(out, "%-14s %16lld\n", "tokens/step",
		(long long)(o->batch * m->c.context));
	str_puts(out, "# communication\n");
	str_printf(out, "%-14s %16d\n", "ranks", ranks);
	line(out, "sent/step", p->store.sent, "gradients, by this rank");
}
