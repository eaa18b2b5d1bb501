/* Memory and time of another trainer's layout, by formulas. Layouts of pt are planned. */
#include "plan/planner.h"

#include <math.h>

void shape_init(struct shape *s, const struct model *m)
{
	const struct model_config *c = &m->c;
	*s = (struct shape){.layers = (double)c->layers,
		.dim = (double)c->dim,
		.heads = (double)c->heads,
		.q_dim = (double)model_q_width(m),
		.kv_dim = (double)(c->kv_heads * m->head_dim),
		.ffn_dim = (double)c->ffn_dim,
		.vocab = (double)m->padded_vocab,
		.context = (double)c->context,
		.attended = model_attended(m),
		.embedding = (double)(m->padded_vocab * c->dim),
		.gated = act_is_gated(m->act),
		.head_norms = m->c.qk_norm,
		.tied = m->tie};
	double ffn = (s->gated ? 3 : 2) * s->dim, others = 2 * s->dim;
	double width = s->ffn_dim, active = s->ffn_dim;
	if (c->experts) {
		others += s->dim * (double)c->experts;
		width = (double)(c->experts * c->expert_dim + c->shared_expert_dim);
		active = (double)(c->experts_per_token * c->expert_dim +
				  c->shared_expert_dim);
	}
	others += 2 * s->dim * (s->q_dim + s->kv_dim);
	s->block = others + ffn * width;
	s->active = others + ffn * active;
}

int host_ranks_of(const struct cluster *c, int ranks, int stride)
{
	int here = c->links.host_ranks / stride;
	return here < 1 ? 1 : here < ranks ? here : ranks;
}

/* Returns the distance in ranks between neighbors along an axis. */
static int axis_stride(const struct layout *l, enum axis axis)
{
	int stride = 1;
	for (int a = axis + 1; a < N_AXES; a++)
		stride *= l->degree[a];
	return stride;
}

/* Counts the shards of the parameters: cp ranks shard them, too. */
static int count_shards(const struct layout *l)
{
	return l->degree[AXIS_FSDP] * l->degree[AXIS_CP];
}

/* Returns the innermost axis along which parameters are shared, next to tensor parallelism. */
static enum axis shard_axis(const struct layout *l)
{
	return l->degree[AXIS_CP] > 1 ? AXIS_CP : AXIS_FSDP;
}

bool reduces_each_micro_batch(const struct layout *l)
{
	return l->zero >= 2;
}

/* Returns the maximum number of blocks of a rank. */
static double rank_blocks(const struct shape *s, const struct layout *l)
{
	double stages = (double)(l->degree[AXIS_PP] * l->stages);
	return ceil(s->layers / stages) * (double)l->stages;
}

/* Returns the blocks that the slowest rank computes, if the head is as much work as `head` blocks.
 * Stages have equal work as far as whole blocks allow. */
static double slowest_blocks(const struct shape *s, const struct layout *l, double head)
{
	double stages = (double)(l->degree[AXIS_PP] * l->stages),
	       per_rank = (double)l->stages;
	double even = (s->layers + head) / stages * per_rank;
	if (stages <= 1)
		return s->layers;
	return fmax(ceil((s->layers - head) / stages) * per_rank, even);
}

static double head_as_blocks(const struct shape *s)
{
	return s->vocab * s->dim / (s->block + s->attended * s->q_dim);
}

/* Returns the bytes that a rank keeps per token of a block. Tensor parallelism does not divide
 * `whole`. */
static double block_bytes(const struct shape *s, const struct layout *l,
	const struct practice *p, int recompute)
{
	const struct kept *k = &p->kept[recompute];
	double type = p->gather_bytes;
	double whole = type * k->whole * s->dim;
	bool ring = l->degree[AXIS_CP] > 1; /* which keeps its own sums of attention */
	double kv = type * k->kv * s->kv_dim;
	double ffn = type * (s->gated ? k->gated : k->plain) * s->ffn_dim;
	/* of the values of size dim, two are the queries and the output of attention */
	double q = recompute == RECOMPUTE_FULL ? 0 : fmin(2, k->dim);
	double unnormed = 0; /* queries and keys before their norms */
	if (s->head_norms && recompute != RECOMPUTE_FULL)
		unnormed = s->q_dim + (recompute <= RECOMPUTE_SELECTIVE ? s->kv_dim : 0);
	double all = type * ((k->dim - q) * s->dim + (q + ring) * s->q_dim + unnormed) +
		     kv + ffn + (k->heads + k->scores * s->context) * s->heads;
	return whole + (all - whole) / l->degree[AXIS_TP];
}

double max_in_flight(const struct layout *l, int rank)
{
	double after = l->degree[AXIS_PP] - 1 - rank, v = l->stages,
	       n = (double)l->n_micro;
	double pp = l->degree[AXIS_PP], interleaved = (2 * after + (v - 1) * pp + 1) / v;
	if (schedule_kinds[l->schedule].placement == STAGES_V)
		return fmin(fmin(n, pp), (n + rank + 1) / v);
	return l->degree[AXIS_PP] == 1	       ? 1
	       : l->schedule == SCHEDULE_GPIPE ? n
					       : fmin(n, v > 1 ? interleaved : after + 1);
}

/* Sets the bytes of parameters, gathered parameters, gradients and optimizer state. */
static void estimate_state(const struct layout *l, const struct practice *p, double n,
	double block, double ends, struct memory *o)
{
	double shards = count_shards(l), type = p->gather_bytes;
	bool sharded = shards > 1 && l->zero > 0;
	double shard_size = sharded ? n / shards : n;
	o->optimizer = p->optimizer_bytes * shard_size;
	o->params = p->param_bytes * (sharded && l->zero == 3 ? shard_size : n);
	if (sharded && l->zero == 3)
		o->gathered = l->reshard != RESHARD_NO
				      ? ends * p->param_bytes + 3.5 * type * block
				      : type * n + ends * p->param_bytes;
	o->grads = p->grad_bytes * (l->zero >= 2 ? shard_size : n);
}

void estimate_memory(const struct shape *s, const struct layout *l,
	const struct practice *p, struct memory *o)
{
	double tp = l->degree[AXIS_TP], type = p->gather_bytes;
	double blocks = rank_blocks(s, l);
	double tokens = (double)l->micro_batch * s->context / l->degree[AXIS_CP];
	bool is_one_stage = l->degree[AXIS_PP] == 1;
	double ends = s->embedding * (is_one_stage && !s->tied ? 2 : 1) / tp;
	double n = blocks * s->block / tp + ends;
	*o = (struct memory){0};
	estimate_state(l, p, n, s->block / tp, ends, o);
	o->activations = tokens * (max_in_flight(l, 0) * blocks *
						  block_bytes(s, l, p, l->recompute) +
					  8 * s->dim / tp);
	if (l->recompute != RECOMPUTE_NONE)
		o->activations += tokens * block_bytes(s, l, p, RECOMPUTE_NONE);
	double logits = p->logit_bytes > 0 ? p->logit_bytes * s->vocab
					   : type * fmin(s->vocab, 16384);
	o->scratch = tokens * fmax(logits, 3 * type * s->ffn_dim + 4 * s->dim) / tp;
	o->other = p->fixed_bytes;
	o->total = o->params + o->grads + o->gathered + o->optimizer + o->activations +
		   o->scratch + o->other;
}

/* The inputs of a layout's time. */
struct timing {
	const struct shape *s;
	const struct layout *l;
	const struct cluster *c;
	const struct practice *p;
	double rate, memory; /* FLOP/s and bytes/s of a rank */
	double tokens;	     /* per micro-batch and rank, divided by cp */
	double blocks;	     /* per rank */
};

/* Returns the seconds in which each rank of a group exchanges `n` bytes with all others, within the
 * host and with other hosts. `shares`: the ranks of a host share the data sent to other hosts. */
static double group_seconds(const struct timing *t, enum axis axis, int ranks, double n,
	bool shares, double messages)
{
	const struct link *host = &t->c->links.link[LINK_HOST];
	const struct link *net = &t->c->links.link[LINK_NETWORK];
	int here = host_ranks_of(t->c, ranks, axis_stride(t->l, axis));
	double away = ranks > here
			      ? n * (shares ? 1.0 / here : (ranks - here) / (double)ranks)
			      : 0;
	double latency = messages * (ranks > here ? net->latency : host->latency);
	double inside = here > 1 ? n * (ranks - 1) / ranks / host->bytes_per_second : 0;
	if (ranks == 1)
		return 0;
	return latency + fmax(inside, away / net->bytes_per_second);
}

/* Returns the seconds of y[n,out] = x[n,in] w[out,in]^T. Small sides do not fill the device. */
static double matmul_seconds(const struct timing *t, double n, double out, double in)
{
	double small = 1 + t->p->small / out + t->p->small / in;
	return fmax(2 * n * out * in * small / t->rate,
		out * in * t->p->gather_bytes / t->memory);
}

/* Returns the FLOP/s of attention: of the cluster, or else the trainer's. */
static double attention_rate(const struct timing *t)
{
	const struct cluster *c = t->c;
	double rate = t->rate / t->p->rate * t->p->attention_rate;
	return c->attention > 0 ? t->rate / t->p->rate * c->attention / c->efficiency
				: rate;
}

/* Returns the seconds of a block's forward of a micro-batch, without communication. */
static double forward_seconds(const struct timing *t)
{
	const struct shape *s = t->s;
	double tp = t->l->degree[AXIS_TP], n = t->tokens;
	double scores = t->p->attention * n * s->attended / tp * s->q_dim;
	double moved = n / tp * (t->p->dim_bytes * s->dim + t->p->ffn_bytes * s->ffn_dim);
	double linear =
		matmul_seconds(t, n, (s->q_dim + 2 * s->kv_dim) / tp, s->dim) +
		matmul_seconds(t, n, s->dim, s->q_dim / tp) +
		matmul_seconds(t, n, (s->gated ? 2 : 1) * s->ffn_dim / tp, s->dim) +
		matmul_seconds(t, n, s->dim, s->ffn_dim / tp);
	return linear / t->p->float8 + scores / attention_rate(t) + moved / 3 / t->memory;
}

/* Returns the seconds of all passes of the head and the loss of a micro-batch. */
static double head_seconds(const struct timing *t)
{
	double part = t->s->vocab / t->l->degree[AXIS_TP];
	return 3 * matmul_seconds(t, t->tokens, part, t->s->dim) +
	       16 * t->tokens * part / t->memory;
}

/* The communication of a block for a micro-batch. */
struct exchange {
	double alone;	/* seconds without computation */
	double exposed; /* seconds that computation does not hide */
};

/* Returns the seconds of tensor-parallel communication, and how many of them computation does
 * not hide. */
static struct exchange tp_exchange(const struct timing *t, double compute)
{
	int tp = t->l->degree[AXIS_TP];
	double full = t->l->recompute == RECOMPUTE_FULL ? 1.3 : 1;
	double n = full * t->p->tp_bytes * t->tokens * t->s->dim;
	struct exchange x = {.alone = group_seconds(t, AXIS_TP, tp, n, true, 0)};
	x.exposed = t->p->overlap_tp ? fmax(0, x.alone - compute / 2) : x.alone;
	return x;
}

/* Returns the seconds of passing keys, values and their gradients around the cp ring, and how
 * many of them attention does not hide. */
static struct exchange cp_exchange(const struct timing *t, double attention)
{
	int cp = t->l->degree[AXIS_CP];
	double kv = t->tokens * t->s->kv_dim / t->l->degree[AXIS_TP] * cp;
	double n = kv * (2 * 2 * t->p->gather_bytes + 2 * 4);
	struct exchange x = {
		.alone = group_seconds(t, AXIS_CP, cp, n, false, 6.0 * (cp - 1))};
	x.exposed = fmax(0, x.alone - attention);
	return x;
}

/* Returns the gathers of parameters and the sums of gradients in each micro-batch. */
static struct exchange fsdp_exchange(
	const struct timing *t, double forward, double backward)
{
	const struct layout *l = t->l;
	int ranks = count_shards(l);
	double block = t->s->block / l->degree[AXIS_TP];
	double messages = 3; /* a tree within the host and one over hosts */
	double gather = 0, reduce = 0;
	if (l->zero == 3)
		gather = group_seconds(t, shard_axis(l), ranks,
			t->p->gather_bytes * block, true, messages);
	if (reduces_each_micro_batch(l))
		reduce = ranks > 1 ? group_seconds(t, shard_axis(l), ranks,
					     t->p->reduce_bytes * block, false, 1)
				   : group_seconds(t, AXIS_DP, l->degree[AXIS_DP],
					     t->p->reduce_bytes * block, false, 1);
	double regather = l->reshard != RESHARD_NO ? gather : 0;
	struct exchange x = {.alone = gather + regather + reduce};
	x.exposed = fmax(0, gather - forward) + fmax(0, regather + reduce - backward);
	return x;
}

/* Returns the reduction of gradients at the end of a step, for trainers that send a rank's whole
 * part through its own network adapter, hide some of it, and then gather the updated parameters. */
static struct exchange final_reduce_exchange(const struct timing *t, double params)
{
	const struct layout *l = t->l;
	double ranks = l->degree[AXIS_DP] * count_shards(l);
	bool inside = ranks * l->degree[AXIS_TP] <= t->c->links.host_ranks;
	double sums = t->p->reduce_bytes * (l->zero ? 1 : 2);
	double gathers = l->zero ? t->p->gather_bytes : 0;
	double rate = inside ? t->c->links.link[LINK_HOST].bytes_per_second
			     : t->c->links.link[LINK_NETWORK].bytes_per_second;
	double each = params * (ranks - 1) / ranks / rate;
	double gather = gathers * each;
	return (struct exchange){.alone = sums * each + gather,
		.exposed = t->p->reduce_exposed * sums * each + gather};
}

/* Returns the communication once per step. If shards are summed in each micro-batch, it is the sum
 * over replicas, which a backward hides; else the sum over all ranks. */
static struct exchange step_exchange(
	const struct timing *t, double params, double backward)
{
	const struct layout *l = t->l;
	if (!reduces_each_micro_batch(l))
		return final_reduce_exchange(t, params);
	double sums = group_seconds(t, AXIS_DP, l->degree[AXIS_DP],
		2 * t->p->reduce_bytes * params / count_shards(l), false,
		2); /* each piece to the rank that adds it, and the sum back */
	return (struct exchange){.alone = sums, .exposed = fmax(0, sums - backward)};
}

/* Returns the bubble in micro-batches. */
static double bubble_micro_batches(const struct layout *l)
{
	double pp = l->degree[AXIS_PP];
	if (l->schedule == SCHEDULE_INTERLEAVED)
		return fmax((pp - 1) / (double)l->stages, pp - (double)l->n_micro);
	return pp - 1;
}

/* Sets the rates, the tokens and the blocks of a rank. */
static void set_rates(struct timing *t, double peak)
{
	double share = cluster_compute_fraction(
		t->c, host_ranks_of(t->c, mesh_ranks(t->l->degree), 1));
	t->rate = share * fmin(1, t->p->rate * t->c->efficiency) * peak;
	t->memory = share * t->c->memory;
	t->tokens = (double)t->l->micro_batch * t->s->context / t->l->degree[AXIS_CP];
	t->blocks = slowest_blocks(t->s, t->l, head_as_blocks(t->s));
}

/* Returns the seconds of a micro-batch on the slowest rank. In a pipeline, the rank with the head
 * has fewer blocks. */
static double micro_batch_seconds(const struct timing *t, double block)
{
	double head = head_seconds(t);
	if (t->l->degree[AXIS_PP] == 1)
		return t->blocks * block + head;
	return slowest_blocks(t->s, t->l, head / block) * block;
}

/* Sets the times of a step: adds the exchange per step, the update and the bubble. */
static void add_step_times(
	const struct timing *t, double micro, double exposed, struct times *o)
{
	const struct layout *l = t->l;
	double pp = l->degree[AXIS_PP], n = (double)l->n_micro;
	double ends = t->s->embedding * (pp == 1 && !t->s->tied ? 2 : 1);
	double params = (t->s->layers / pp * t->s->block + ends) / l->degree[AXIS_TP];
	double part = l->zero ? params / count_shards(l) : params;
	double hop = group_seconds(t, AXIS_PP, pp > 1 ? 2 : 1,
		4 * t->tokens * t->s->dim / l->degree[AXIS_TP], false, 1);
	double update = t->p->update_bytes * part / t->memory + t->p->step;
	struct exchange last = step_exchange(t, params, micro * 2 / 3);
	o->axis[AXIS_PP] += hop * 2 * n * (double)l->stages;
	o->axis[l->degree[AXIS_DP] > 1 ? AXIS_DP : AXIS_FSDP] += last.alone;
	o->computation = n * micro + update;
	o->exposed = n * exposed + last.exposed;
	o->bubble = bubble_micro_batches(l) * (micro + exposed) +
		    (pp > 1 ? 2 * (pp - 1) * (double)l->stages * hop : 0);
	o->rest = update + last.exposed;
	o->step = o->computation + o->exposed + o->bubble;
}

void estimate_time(const struct shape *s, const struct layout *l, const struct cluster *c,
	const struct practice *p, double peak, struct times *o)
{
	struct timing t = {.s = s, .l = l, .c = c, .p = p};
	set_rates(&t, peak);
	double forward = forward_seconds(&t), passes = p->passes[l->recompute];
	double block = passes * forward, n = (double)l->n_micro;
	double attention = 3 * p->attention * t.tokens * s->attended * s->q_dim /
			   l->degree[AXIS_TP] / attention_rate(&t);
	struct exchange tp = tp_exchange(&t, block), cp = cp_exchange(&t, attention);
	struct exchange fsdp = fsdp_exchange(
		&t, forward + tp.exposed / 3, block - forward + tp.exposed * 2 / 3);
	*o = (struct times){.computation = 0};
	o->axis[AXIS_TP] = n * t.blocks * tp.alone;
	o->axis[AXIS_CP] = n * t.blocks * cp.alone;
	o->axis[AXIS_FSDP] = n * t.blocks * fsdp.alone;
	double exposed = t.blocks * (tp.exposed + cp.exposed + fsdp.exposed);
	add_step_times(&t, micro_batch_seconds(&t, block), exposed, o);
}
