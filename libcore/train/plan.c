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
	struct comm dp = {.rank = rank, .size = ranks, .name = "plan"};
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
	return p->run_bytes + p->micro_bytes + p->scratch_bytes + p->data_bytes;
}

static void line(struct str *out, const char *name, int64_t n_bytes, const char *help)
{
	char text[NUM_TEXT];
	str_printf(out, "%-14s %16lld  %9s  %s\n", name, (long long)n_bytes,
		text_bytes(text, (double)n_bytes), help);
}

void plan_print(const struct train_opts *o, const struct model *m, int ranks,
	const struct plan *p, struct str *out)
{
	char text[NUM_TEXT];
	int64_t mine =
		p->store.params + p->store.grads + p->store.optimizer + p->store.buffers;
	str_puts(out, "# memory of rank 0, in bytes\n");
	line(out, "parameters", p->store.params, "fp32");
	line(out, "gradients", p->store.grads,
		"fp32, with the buffers of the canonical tree");
	line(out, "optimizer", p->store.optimizer, "AdamW: two moments, fp32");
	line(out, "activations", p->micro_bytes, "of one micro-batch");
	line(out, "scratch", p->scratch_bytes, "temporary, in forward and backward");
	line(out, "exchange", p->store.buffers, "for sums over ranks");
	line(out, "positions", p->run_bytes - mine,
		"token and position ids, rotary tables");
	line(out, "data", p->data_bytes, "windows of this step and the next");
	line(out, "total", plan_total(p), "beside the program and its libraries");
	str_puts(out, "# work\n");
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
	line(out, "sent/step", p->store.sent, "gradients, by rank 0");
}
