/* Lower bounds of the memory and the step time of pt's layouts, so that a search need not plan
 * layouts that are bound to be slower than the ones it has found. The parts that many layouts
 * share, blocks on ranks that divide tensors and sequences, are planned once by the code that
 * trains (measure_shared_costs()). Bounds count shards of state, activations in flight,
 * the work of the busiest stage and the bubble, and bytes over the bandwidths of links. */
#include "plan/planner.h"

#include <math.h>

#include "engine/layout.h"
#include "parallel/parallel.h"

struct known_part {
	int64_t key; /* 0: unused */
	bool rejected;
	struct shared_part part;
};

/* Returns the key of a layout in the cache: all that measure_shared_costs() uses of it. */
static int64_t part_key(const struct layout *l)
{
	int64_t key = l->degree[AXIS_TP];
	key = key << 7 | l->degree[AXIS_CP];
	key = key << 32 | (uint32_t)l->micro_batch;
	return (key << 2 | l->recompute) << 1 | (l->n_micro > 1);
}

/* Returns the slot of a key, or the first unused slot after its place. */
static struct known_part *find_part_slot(
	struct known_part *table, int64_t capacity, int64_t key)
{
	uint64_t i = (uint64_t)key * 0x9e3779b97f4a7c15u >> 32;
	while (table[i & (uint64_t)(capacity - 1)].key &&
		table[i & (uint64_t)(capacity - 1)].key != key)
		i++;
	return &table[i & (uint64_t)(capacity - 1)];
}

/* Doubles the hash table of known parts, and inserts all of them again. */
static void grow_part_table(struct bounds *b)
{
	int64_t capacity = b->capacity ? 2 * b->capacity : 256;
	struct known_part *more = xcalloc((size_t)capacity, sizeof(*more));
	for (int64_t i = 0; i < b->capacity; i++)
		if (b->known[i].key)
			*find_part_slot(more, capacity, b->known[i].key) = b->known[i];
	free(b->known);
	b->known = more;
	b->capacity = capacity;
}

/* Returns the part of a layout from the cache; plans it first if it is new. NULL: pt-train rejects
 * it, and reports why when the layout is planned. */
static const struct shared_part *get_part(struct bounds *b, const struct layout *l)
{
	int64_t key = part_key(l);
	if (2 * b->n >= b->capacity)
		grow_part_table(b);
	struct known_part *known = find_part_slot(b->known, b->capacity, key);
	if (!known->key) {
		known->key = key;
		known->rejected = measure_shared_costs(b->r, l, &known->part) != 0;
		b->n++;
	}
	return known->rejected ? NULL : &known->part;
}

/* Sets *out to the part of a layout, or to its lower bound. Returns false if pt-train rejects the
 * part. A kernel takes the longer of two times,
 * one of which grows with the micro-batch, as activations do: for large micro-batches, the line
 * through two smaller ones is a bound. */
static bool part_or_bound(
	struct bounds *b, const struct layout *l, struct shared_part *out)
{
	enum { LARGE = 4 };
	struct layout small = *l;
	const struct shared_part *part;
	if (l->micro_batch > LARGE)
		small.micro_batch = LARGE;
	if (!(part = get_part(b, &small)))
		return false;
	*out = *part;
	if (l->micro_batch <= LARGE)
		return true;
	small.micro_batch = LARGE / 2;
	if (!(part = get_part(b, &small)))
		return false;
	const double *small_part = (const double *)part;
	double scratch = out->ends.scratch; /* pieces, which do not grow */
	double *large_part = (double *)out,
	       times = (double)l->micro_batch / (LARGE / 2) - 2;
	for (size_t i = 0; i < sizeof(*out) / sizeof(double); i++)
		large_part[i] += times * (large_part[i] - small_part[i]);
	out->ends.scratch = scratch;
	return true;
}

/* Returns the fraction of the parameters of all blocks that experts have. */
static double fraction_of_experts(const struct model *m)
{
	double experts = 0, all = 0;
	for (const struct tensor *t = m->tensors; t < m->tensors + m->n_tensors; t++) {
		bool in_block = t->unit >= 1 && t->unit <= m->c.layers;
		all += in_block ? (double)tensor_size(t) : 0;
		experts += t->experts ? (double)tensor_size(t) : 0;
	}
	return experts / all;
}

void bounds_init(struct bounds *b, const struct request *r)
{
	*b = (struct bounds){.r = r, .experts = fraction_of_experts(r->m)};
}

void bounds_release(struct bounds *b)
{
	for (int64_t i = 0; b->split && i <= b->r->m->c.layers; i++)
		free(b->split[i]);
	free(b->split);
	free(b->known);
	*b = (struct bounds){.r = NULL};
}

/* A layout, and the parts that its bounds follow from. */
struct bound {
	const struct request *r;
	const struct layout *l;
	const struct shared_part *p;
	const int *first; /* the first layer of each stage */
	double experts;	  /* fraction of a block's parameters */
	double ep;
};

/* Returns the first layer of each stage, from the cache. */
static const int *split_of_stages(struct bounds *b, const struct layout *l)
{
	int stages = l->degree[AXIS_PP] * l->stages;
	if (!b->split)
		b->split = xcalloc((size_t)b->r->m->c.layers + 1, sizeof(*b->split));
	if (!b->split[stages])
		b->split[stages] =
			layout_split(b->r->m, stages, b->r->o->pp_split == SPLIT_EVEN);
	return b->split[stages];
}

/* Returns the number of blocks of a pipeline rank. */
static double rank_blocks(const struct bound *x, int rank)
{
	int n = 0, pp = x->l->degree[AXIS_PP];
	for (int v = 0; v < x->l->stages; v++) {
		int i = schedule_rank_stage(
			(enum schedule_kind)x->l->schedule, pp, rank, v);
		n += x->first[i + 1] - x->first[i];
	}
	return n;
}

/* Returns true if a pipeline rank has the last stage. */
static bool has_last_stage(const struct bound *x, int rank)
{
	int pp = x->l->degree[AXIS_PP];
	return rank == schedule_stage_rank((enum schedule_kind)x->l->schedule, pp,
			       pp * x->l->stages - 1);
}

/* Counts the shards of the parameters: cp ranks shard them, too. */
static int count_shards(const struct layout *l)
{
	return l->zero ? l->degree[AXIS_FSDP] * l->degree[AXIS_CP] : 1;
}

/* Returns a cost that is proportional to the parameters of a rank, if their tensors have `shards`
 * shards. block, ends: with all parameters. ep ranks have different experts, which have fewer
 * shards. */
static double rank_cost(const struct bound *x, double block, double ends, double shards)
{
	return block * ((1 - x->experts) / shards + x->experts / fmax(shards, x->ep)) +
	       ends / shards;
}

/* Returns the costs of `n` blocks and a fraction `ends` of the embedding and the head on a rank. */
static struct part_cost scale_part(
	const struct bound *x, double n, double ends, double shards)
{
	const struct part_cost *b = &x->p->block, *e = &x->p->ends;
	return (struct part_cost){
		.values = rank_cost(x, n * b->values, ends * e->values, shards),
		.copies = rank_cost(x, n * b->copies, ends * e->copies, shards),
		.optimizer = rank_cost(x, n * b->optimizer, ends * e->optimizer, shards),
		.update = rank_cost(x, n * b->update, ends * e->update, shards)};
}

/* Returns the part of a block's cost that a rank gathers from other ranks, or reduces. Experts with
 * one shard are not gathered. */
static double gathered_cost(const struct bound *x, double block, double shards)
{
	return block * (1 - x->experts + (shards > x->ep ? x->experts / x->ep : 0));
}

/* Adjusts the bytes of experts that have one shard: a copy of 16 bits, no shard for the update, and
 * one sum of gradients. */
static void adjust_whole_experts(const struct bound *x, double blocks, struct memory *o)
{
	double n = blocks * x->experts / x->ep, values = n * x->p->block.values;
	if (x->ep <= 1 || count_shards(x->l) <= 1 || count_shards(x->l) > x->ep)
		return;
	o->params += n * x->p->block.copies - (x->l->zero < 3 ? values : 0);
	if (x->l->zero >= 2 && x->l->n_micro > 1)
		o->grads -= values;
}

/* Sets the bytes of parameters, gradients and optimizer state of a rank with this many blocks.
 * Sums over micro-batches are int64. */
static void bound_state(
	const struct bound *x, double blocks, double ends, struct memory *o)
{
	const struct layout *l = x->l;
	double shards = count_shards(l);
	const struct part_cost whole = scale_part(x, blocks, ends, 1),
			       shard = scale_part(x, blocks, ends, shards);
	const struct part_cost *block = &x->p->block;
	const enum offload kind = (enum offload)l->offload;
	double sum_size = l->n_micro > 1 ? 2 : 1;
	bool keeps_gathered = l->reshard == RESHARD_NO && l->zero == 3;
	double pieces = l->tile ? l->tile / (double)l->degree[AXIS_TP] : 1;
	*o = (struct memory){.optimizer = shard.optimizer};
	o->params = l->zero == 3 ? shard.values : whole.values;
	if (shards <= 1)
		o->params += whole.copies;
	else if (l->zero < 3)
		o->params += shard.values; /* fp32, for the update */
	o->gathered = l->zero < 3 ? 0
		      : keeps_gathered
			      ? whole.copies
			      : 2 * gathered_cost(x, block->copies, shards) / pieces;
	o->grads = l->zero >= 2
			   ? sum_size * shard.values +
				     2 * gathered_cost(x, block->values, shards) / pieces
			   : sum_size * whole.values;
	adjust_whole_experts(x, blocks, o);
	if (kind != OFFLOAD_NONE)
		o->optimizer = 0;
	if (offloads_grads(kind))
		o->grads = 0;
	if (offloads_params(kind))
		o->params = 0;
}

/* Returns a rank's fraction of the embedding and the head: the embedding is on the first rank, the
 * head with the last stage. */
static double share_of_ends(const struct bound *x, int rank)
{
	double embedding = !rank, head = has_last_stage(x, rank);
	return x->r->m->tie ? fmax(embedding, head) : (embedding + head) / 2;
}

/* Sets the activations, scratch and total of *o to lower bounds of a rank's memory, and
 * adds its state. */
static void bound_rank_memory(const struct bound *x, int rank, struct memory *o)
{
	const struct shared_part *p = x->p;
	double blocks = rank_blocks(x, rank);
	bound_state(x, blocks, share_of_ends(x, rank), o);
	o->activations = max_in_flight(x->l, rank) * blocks * p->block.activations;
	o->activations += p->ends.activations;
	if (has_last_stage(x, rank))
		o->scratch = p->ends.scratch;
	o->other = x->r->o->device == DEVICE_CUDA ? DEVICE_WORK_BYTES : 0;
	if (x->l->n_micro == 1 && x->l->degree[AXIS_PP] == 1) /* both share memory */
		o->grads = fmax(0, o->grads - o->activations);
	o->total = o->params + o->grads + o->gathered + o->optimizer + o->activations +
		   o->scratch + o->other;
}

/* Sets *largest to the memory of the rank with the largest total. */
static void bound_memory(const struct bound *x, struct memory *largest)
{
	*largest = (struct memory){.total = 0};
	for (int i = 0; i < x->l->degree[AXIS_PP]; i++) {
		struct memory m;
		bound_rank_memory(x, i, &m);
		if (m.total > largest->total)
			*largest = m;
	}
}

/* Returns the mean seconds of a part in each micro-batch of a step. */
static double mean_seconds(const struct bound *x, const struct part_cost *c)
{
	return c->micro + c->once / (double)x->l->n_micro;
}

/* Returns the seconds of a rank's blocks in a micro-batch; rank_seconds() adds the head. */
static double blocks_seconds(const struct bound *x, int rank)
{
	return rank_blocks(x, rank) * mean_seconds(x, &x->p->block);
}

static double rank_seconds(const struct bound *x, int rank)
{
	return blocks_seconds(x, rank) +
	       (has_last_stage(x, rank) ? mean_seconds(x, &x->p->ends) : 0);
}

/* Returns the seconds of one micro-batch through all stages and back, to the weight gradients of
 * the first stage. */
static double path_seconds(const struct bound *x)
{
	double blocks = (double)x->r->m->c.layers;
	if (schedule_kinds[x->l->schedule].splits_backward) /* into equal parts */
		blocks = (2 * blocks + x->first[1]) / 3;
	return blocks * mean_seconds(x, &x->p->block) + mean_seconds(x, &x->p->ends);
}

/* Returns the longest time of a pipeline rank, computing and waiting, and sets *busiest to the
 * longest micro-batch. A rank waits for the ranks before it, in both directions, and for the
 * ranks after it unless the micro-batches that it may keep fill that time. Schedules that split
 * the backward fill two thirds of the waits with weight gradients. */
static double pipeline_seconds(const struct bound *x, double *busiest)
{
	const struct layout *l = x->l;
	int pp = l->degree[AXIS_PP];
	double after = 0, before = 0, longest = path_seconds(x),
	       divisor = schedule_kinds[l->schedule].splits_backward ? 3 : 1;
	*busiest = 0;
	for (int i = 0; i < pp; i++)
		before += blocks_seconds(x, i);
	for (int i = pp - 1; i >= 0; i--) {
		double seconds = rank_seconds(x, i), wait;
		before -= blocks_seconds(x, i);
		wait = before / l->stages;
		if (l->stages == 1)
			wait += fmax(0, 2 * after - (pp - 1 - i) * seconds);
		longest = fmax(longest, (double)l->n_micro * seconds + wait / divisor);
		*busiest = fmax(*busiest, seconds);
		after += seconds;
	}
	return longest;
}

/* Returns the seconds in which the ranks of a group gather or sum n bytes: each sends its part
 * `inside` times within its host, and the ranks of a host share the data sent `across` times to
 * other hosts. */
static double group_seconds(const struct request *r, double ranks, double stride,
	double n, double inside, double across)
{
	const struct simulated_links *links = &r->cluster.links;
	double here = fmax(1, fmin(ranks, links->host_ranks / stride));
	double hosts = ranks / here;
	return fmax(
		inside * n * (here - 1) / here / links->link[LINK_HOST].bytes_per_second,
		across * n / here * (hosts - 1) / hosts /
			links->link[LINK_NETWORK].bytes_per_second);
}

/* Returns the seconds of reducing n bytes of gradients. The sum is int64 over several
 * micro-batches and between hosts, else fp32. Without shards, all ranks get the result. */
static double reduce_seconds(const struct bound *x, double ranks, double stride, double n)
{
	bool is_once = x->l->zero < 2, int64_inside = is_once && x->l->n_micro > 1;
	bool across_hosts = x->r->cluster.links.host_ranks / stride >= 2;
	double broadcast = is_once && !x->l->zero ? 1 : 0;
	return group_seconds(x->r, ranks, stride, n, (int64_inside ? 2 : 1) + broadcast,
		(int64_inside || across_hosts ? 2 : 1) + broadcast);
}

/* Returns the seconds that a micro-batch waits for a gather before its forward, and for a gather
 * and a reduction in its backward. The forward takes a quarter to a third of its time. */
static double micro_exposed(double micro, double gather, double regather, double reduce)
{
	double forward = gather - micro / 3, backward = regather + reduce - micro * 3 / 4;
	return fmax(fmax(0, gather + regather + reduce - micro), fmax(forward, backward));
}

/* Returns the seconds of copying offloaded state: the optimizer's once per step, and parameters
 * in each micro-batch. shard: of a rank. */
static double copy_seconds(const struct bound *x, const struct part_cost *shard)
{
	const enum offload kind = (enum offload)x->l->offload;
	double pcie = x->r->cluster.pcie, n = kind == OFFLOAD_NONE ? 0 : shard->optimizer;
	if (offloads_params(kind))
		n += (double)x->l->n_micro * shard->copies;
	return pcie > 0 ? n / pcie : 0;
}

/* The parameters of a pipeline rank, in bytes of fp32: of experts and all others. */
struct spread {
	double dense, experts;
};

/* Returns the seconds of gathering the parameters from `shards` ranks. type: bytes over fp32. */
static double gather_seconds(
	const struct bound *x, double shards, const struct spread *n, double type)
{
	double tp = x->l->degree[AXIS_TP];
	return group_seconds(x->r, shards, tp, n->dense, type, type) +
	       group_seconds(x->r, shards / x->ep, tp * x->ep, n->experts, type, type);
}

/* Returns the seconds of reducing the gradients over consecutive ranks. */
static double reduce_all_seconds(
	const struct bound *x, double ranks, const struct spread *n)
{
	double tp = x->l->degree[AXIS_TP];
	return reduce_seconds(x, ranks, tp, n->dense) +
	       reduce_seconds(x, ranks / x->ep, tp * x->ep, n->experts);
}

/* Returns the seconds of the sum over replicas: each piece goes to the rank that adds it, and the
 * sum comes back. */
static double replicas_seconds(
	const struct bound *x, double dp, double shards, const struct spread *n)
{
	double tp = x->l->degree[AXIS_TP], apart = fmax(shards, x->ep);
	return group_seconds(x->r, dp, tp * shards, n->dense / shards, 2, 2) +
	       group_seconds(x->r, dp * shards / apart, tp * apart,
		       n->experts * x->ep / apart, 2, 2);
}

/* Adds the exchanges of a layer's rows to the cost of a block: the seconds of sending a row of each
 * slot there and back, in the forward and in the backward, which only a shared expert hides; and
 * the memory for more than the balanced number of rows. */
static void add_exchanges(const struct bound *x, struct part_cost *block)
{
	const struct model_config *c = &x->r->m->c;
	const struct layout *l = x->l;
	const struct link *link = x->r->cluster.links.link;
	double tp = l->degree[AXIS_TP], ep = x->ep;
	double share = (double)model_layers_of_kind(x->r->m, 1) / (double)c->layers;
	double size = (double)dtype_bytes(options_gemm_dtype(x->r->o));
	double rows = (double)(l->micro_batch * c->context * c->experts_per_token) /
		      l->degree[AXIS_CP];
	double here = fmax(1, fmin(ep, x->r->cluster.links.host_ranks / tp));
	double sent = rows * (double)c->dim * size / ep;
	double most = fmin(ep, (double)c->experts / (double)c->experts_per_token);
	double room = x->r->o->expert_room > 0 ? fmin(x->r->o->expert_room, most) : most;
	if (ep <= 1)
		return;
	block->micro += (c->shared_expert_dim ? 0 : share) * (l->recompute ? 5 : 4) *
			fmax(sent * (here - 1) / link[LINK_HOST].bytes_per_second,
				sent * (ep - here) / link[LINK_NETWORK].bytes_per_second);
	if (l->recompute <= RECOMPUTE_SELECTIVE) /* results of W1 and W3 */
		block->activations +=
			share * (room - 1) * rows * size * 2 * (double)c->expert_dim / tp;
	if (l->recompute == RECOMPUTE_NONE)
		block->activations += share * room * rows * size * (double)c->dim;
}

/* Sets lower bounds of the times: the pipeline, the exposed gathers and sums, the update, the
 * copies. */
static void bound_times(const struct bound *x, struct times *o)
{
	const struct request *r = x->r;
	const struct layout *l = x->l;
	double n = (double)l->n_micro, cp = l->degree[AXIS_CP];
	double shards = l->degree[AXIS_FSDP] * cp, dp = l->degree[AXIS_DP], micro;
	double pp = l->degree[AXIS_PP], pipeline = pipeline_seconds(x, &micro);
	double blocks = (double)r->m->c.layers / pp;
	const struct part_cost shard = scale_part(x, blocks, 1 / pp, count_shards(l));
	double stacked = x->experts * blocks * x->p->block.values / x->ep;
	const struct spread all = {
		scale_part(x, blocks, 1 / pp, 1).values - stacked, stacked};
	double type = (double)dtype_bytes(options_gemm_dtype(r->o)) / sizeof(float);
	double gather = 0, regather = 0, reduce = 0, final_reduce = 0;
	if (l->zero == 3)
		gather = gather_seconds(x, shards, &all, type);
	if (l->reshard != RESHARD_NO)
		regather = gather;
	if (l->zero >= 2 && shards > 1) {
		reduce = reduce_all_seconds(x, shards, &all);
		final_reduce = replicas_seconds(x, dp, shards, &all);
	} else if (l->zero >= 2) {
		reduce = reduce_all_seconds(x, dp, &all);
	} else {
		final_reduce = reduce_all_seconds(x, shards * dp, &all) -
			       reduce_all_seconds(x, cp, &all);
	}
	final_reduce = fmax(0, final_reduce - micro);
	if (l->zero == 1 || l->zero == 2)
		final_reduce += gather_seconds(x, shards, &all, 1);
	double update = shard.update;
	*o = (struct times){.rest = update + final_reduce};
	o->computation = n * micro + update;
	o->exposed = n * micro_exposed(micro, gather, regather, reduce) + final_reduce;
	o->bubble = pipeline - n * micro;
	o->copies = copy_seconds(x, &shard);
	o->exposed += fmax(0, o->copies - o->computation - o->exposed - o->bubble);
	o->step = o->computation + o->exposed + o->bubble;
}

/* Subtracts the cost of training frozen tensors, which have no gradient and no optimizer state.
 * Layers below the lowest trained one have no backward; a quarter of their work remains if
 * activations are recomputed. */
static void subtract_frozen(const struct model *m, struct choice *c)
{
	double all = 0, trained = 0;
	for (const struct tensor *t = m->tensors; t < m->tensors + m->n_tensors; t++) {
		double n = (double)tensor_size(t);
		all += n;
		trained += t->frozen ? 0 : n;
	}
	double trained_share = trained / all,
	       forward_only = (double)model_first_trained_unit(m) / m->n_units;
	c->memory.total -= (1 - trained_share) * (c->memory.grads + c->memory.optimizer) +
			   forward_only * c->memory.activations;
	c->times.step *= (1 - forward_only) * (2 + trained_share) / 3 + forward_only / 4;
}

void bounds_compute(struct bounds *b, struct choice *c)
{
	struct shared_part p;
	const struct bound x = {
		b->r, &c->l, &p, split_of_stages(b, &c->l), b->experts, fmax(1, c->l.ep)};
	if (!part_or_bound(b, &c->l, &p))
		return;
	add_exchanges(&x, &p.block);
	bound_memory(&x, &c->memory);
	bound_times(&x, &c->times);
	if (b->r->o->freeze.n)
		subtract_frozen(b->r->m, c);
}
