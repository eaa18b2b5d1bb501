/*
 * Lower bounds of the memory and the step time of pt's layouts, so that a search need not plan
 * layouts that are bound to be slower than the ones it has found. The parts that many layouts
 * share, blocks on ranks that divide tensors and sequences, are planned once by the code that
 * trains (exact_part()). The bounds follow by counting: shards of state, activations in flight,
 * the work of the busiest stage and the bubble, and bytes over the bandwidths of links.
 */
#include "plan/planner.h"

#include <math.h>

#include "engine/layout.h"
#include "parallel/parallel.h"

struct known_part {
	int64_t key; /* 0: unused */
	bool rejected;
	struct shared_part part;
};

/* ---- parts ---------------------------------------------------------------------------------- */

static int64_t part_key(const struct layout *l)
{
	int64_t key = l->degree[AXIS_TP];
	key = key << 7 | l->degree[AXIS_CP];
	key = key << 32 | (uint32_t)l->micro_batch;
	return (key << 2 | l->recompute) << 1 | (l->n_micro > 1);
}

/* Returns the slot of a key, or the first unused slot after its place. */
static struct known_part *find_slot(
	struct known_part *table, int64_t capacity, int64_t key)
{
	uint64_t i = (uint64_t)key * 0x9e3779b97f4a7c15u >> 32;
	while (table[i & (uint64_t)(capacity - 1)].key &&
		table[i & (uint64_t)(capacity - 1)].key != key)
		i++;
	return &table[i & (uint64_t)(capacity - 1)];
}

static void grow_table(struct bounds *b)
{
	int64_t capacity = b->capacity ? 2 * b->capacity : 256;
	struct known_part *more = xcalloc((size_t)capacity, sizeof(*more));
	for (int64_t i = 0; i < b->capacity; i++)
		if (b->known[i].key)
			*find_slot(more, capacity, b->known[i].key) = b->known[i];
	free(b->known);
	b->known = more;
	b->capacity = capacity;
}

/* Returns the part of a layout from the cache, or plans it. NULL: pt-train rejects it, and
 * reports why when the layout is planned. */
static const struct shared_part *planned_part(struct bounds *b, const struct layout *l)
{
	int64_t key = part_key(l);
	if (2 * b->n >= b->capacity)
		grow_table(b);
	struct known_part *k = find_slot(b->known, b->capacity, key);
	if (!k->key) {
		k->key = key;
		k->rejected = exact_part(b->r, l, &k->part) != 0;
		b->n++;
	}
	return k->rejected ? NULL : &k->part;
}

/* Sets *out to the part of a layout, or a bound of it. A kernel takes the longer of two times,
 * one of which grows with the micro-batch, as activations do: for large micro-batches, the line
 * through two smaller ones is a bound. */
static bool find_part(struct bounds *b, const struct layout *l, struct shared_part *out)
{
	enum { LARGE = 4 };
	struct layout small = *l;
	const struct shared_part *p;
	if (l->micro_batch > LARGE)
		small.micro_batch = LARGE;
	if (!(p = planned_part(b, &small)))
		return false;
	*out = *p;
	if (l->micro_batch <= LARGE)
		return true;
	small.micro_batch = LARGE / 2;
	if (!(p = planned_part(b, &small)))
		return false;
	const double *less = (const double *)p;
	double scratch = out->ends.scratch; /* pieces, which do not grow */
	double *x = (double *)out, times = (double)l->micro_batch / (LARGE / 2) - 2;
	for (size_t i = 0; i < sizeof(*out) / sizeof(double); i++)
		x[i] += times * (x[i] - less[i]);
	out->ends.scratch = scratch;
	return true;
}

void bounds_free(struct bounds *b)
{
	for (int64_t i = 0; b->split && i <= b->r->m->c.layers; i++)
		free(b->split[i]);
	free(b->split);
	free(b->known);
	*b = (struct bounds){.r = NULL};
}

/* ---- stages --------------------------------------------------------------------------------- */

/* A layout, and the parts that its bounds follow from. */
struct bound {
	const struct request *r;
	const struct layout *l;
	const struct shared_part *p;
	const int *first; /* the first layer of each stage */
};

static const int *stage_split(struct bounds *b, const struct layout *l)
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

/* ---- memory --------------------------------------------------------------------------------- */

/* Returns the number of shards of the parameters: cp ranks shard them, too. */
static int n_shards(const struct layout *l)
{
	return l->zero ? l->degree[AXIS_FSDP] * l->degree[AXIS_CP] : 1;
}

/* Returns the cost of `n` blocks and a fraction `ends` of the rest. */
static struct part_cost sum_parts(const struct shared_part *p, double n, double ends)
{
	return (struct part_cost){.values = n * p->block.values + ends * p->ends.values,
		.copies = n * p->block.copies + ends * p->ends.copies,
		.optimizer = n * p->block.optimizer + ends * p->ends.optimizer,
		.update = n * p->block.update + ends * p->ends.update};
}

/* Sets the bytes of parameters, gradients and optimizer state. Sums over micro-batches are
 * int64. */
static void state_bytes(const struct layout *l, const struct shared_part *p,
	double blocks, double ends, struct memory *o)
{
	const struct part_cost all = sum_parts(p, blocks, ends);
	const enum offload kind = (enum offload)l->offload;
	double shards = n_shards(l), sums = l->n_micro > 1 ? 2 : 1;
	bool keeps = l->reshard == RESHARD_NO && l->zero == 3;
	double pieces = l->tile ? l->tile / (double)l->degree[AXIS_TP] : 1;
	*o = (struct memory){.optimizer = all.optimizer / shards};
	o->params = l->zero == 3 ? all.values / shards : all.values;
	if (shards <= 1)
		o->params += all.copies;
	else if (l->zero < 3)
		o->params += all.values / shards; /* fp32, for the update */
	o->gathered = l->zero < 3 ? 0 : keeps ? all.copies : 2 * p->block.copies / pieces;
	o->grads = l->zero >= 2
			   ? sums * all.values / shards + 2 * p->block.values / pieces
			   : sums * all.values;
	if (kind != OFFLOAD_NONE)
		o->optimizer = 0;
	if (offloads_grads(kind))
		o->grads = 0;
	if (offloads_params(kind))
		o->params = 0;
}

/* Returns a rank's fraction of `ends`: the embedding is on the first rank, the head with the last
 * stage. */
static double ends_share(const struct bound *x, int rank)
{
	double embedding = !rank, head = has_last_stage(x, rank);
	return x->r->m->tie ? fmax(embedding, head) : (embedding + head) / 2;
}

static void rank_memory(const struct bound *x, int rank, struct memory *o)
{
	const struct shared_part *p = x->p;
	double blocks = rank_blocks(x, rank);
	state_bytes(x->l, p, blocks, ends_share(x, rank), o);
	o->activations = in_flight(x->l, rank) * blocks * p->block.activations;
	o->activations += p->ends.activations;
	if (has_last_stage(x, rank))
		o->scratch = p->ends.scratch;
	o->other = x->r->o->device == DEVICE_CUDA ? DEVICE_WORK_BYTES : 0;
	if (x->l->n_micro == 1 && x->l->degree[AXIS_PP] == 1) /* both share memory */
		o->grads = fmax(0, o->grads - o->activations);
	o->total = o->params + o->grads + o->gathered + o->optimizer + o->activations +
		   o->scratch + o->other;
}

/* Sets *largest to the memory of the rank that needs most. */
static void memory_bound(const struct bound *x, struct memory *largest)
{
	*largest = (struct memory){.total = 0};
	for (int i = 0; i < x->l->degree[AXIS_PP]; i++) {
		struct memory m;
		rank_memory(x, i, &m);
		if (m.total > largest->total)
			*largest = m;
	}
}

/* ---- time ----------------------------------------------------------------------------------- */

/* Returns the mean seconds of a micro-batch in a step. */
static double mean_seconds(const struct bound *x, const struct part_cost *c)
{
	return c->micro + c->once / (double)x->l->n_micro;
}

static double blocks_seconds(const struct bound *x, int rank)
{
	return rank_blocks(x, rank) * mean_seconds(x, &x->p->block);
}

static double micro_seconds(const struct bound *x, int rank)
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
	       fills = schedule_kinds[l->schedule].splits_backward ? 3 : 1;
	*busiest = 0;
	for (int i = 0; i < pp; i++)
		before += blocks_seconds(x, i);
	for (int i = pp - 1; i >= 0; i--) {
		double micro = micro_seconds(x, i), waits;
		before -= blocks_seconds(x, i);
		waits = before / l->stages;
		if (l->stages == 1)
			waits += fmax(0, 2 * after - (pp - 1 - i) * micro);
		longest = fmax(longest, (double)l->n_micro * micro + waits / fills);
		*busiest = fmax(*busiest, micro);
		after += micro;
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

/* Returns the seconds of a sum of gradients. It is int64 over several micro-batches and between
 * hosts, else fp32. Without shards, all ranks get the result. */
static double sum_seconds(const struct bound *x, double ranks, double stride, double n)
{
	bool once = x->l->zero < 2, several = once && x->l->n_micro > 1;
	bool hosts = x->r->cluster.links.host_ranks / stride >= 2;
	double back = once && !x->l->zero ? 1 : 0;
	return group_seconds(x->r, ranks, stride, n, (several ? 2 : 1) + back,
		(several || hosts ? 2 : 1) + back);
}

/* Returns the seconds that a micro-batch waits for gathers and sums. Its forward takes a quarter
 * to a third of its time. */
static double micro_exposed(double micro, double gather, double again, double sum)
{
	double forward = gather - micro / 3, backward = again + sum - micro * 3 / 4;
	return fmax(fmax(0, gather + again + sum - micro), fmax(forward, backward));
}

/* Returns the seconds of copying offloaded state: the optimizer's once per step, and parameters
 * in each micro-batch. */
static double copied_seconds(const struct bound *x, const struct part_cost *all)
{
	const enum offload kind = (enum offload)x->l->offload;
	double pcie = x->r->cluster.pcie, n = kind == OFFLOAD_NONE ? 0 : all->optimizer;
	if (offloads_params(kind))
		n += (double)x->l->n_micro * all->copies;
	return pcie > 0 ? n / n_shards(x->l) / pcie : 0;
}

/* Sets lower bounds of the times: the pipeline, the exposed gathers and sums, the update, the
 * copies. */
static void time_bound(const struct bound *x, struct times *o)
{
	const struct request *r = x->r;
	const struct layout *l = x->l;
	double n = (double)l->n_micro, tp = l->degree[AXIS_TP], cp = l->degree[AXIS_CP];
	double shards = l->degree[AXIS_FSDP] * cp, dp = l->degree[AXIS_DP], micro;
	double pp = l->degree[AXIS_PP], pipeline = pipeline_seconds(x, &micro);
	const struct part_cost all = sum_parts(x->p, (double)r->m->c.layers / pp, 1 / pp);
	double type = (double)dtype_bytes(options_gemm_dtype(r->o)) / sizeof(float);
	double gather = 0, again = 0, sum = 0, last = 0;
	if (l->zero == 3)
		gather = group_seconds(r, shards, tp, all.values, type, type);
	if (l->reshard != RESHARD_NO)
		again = gather;
	if (l->zero >= 2 && shards > 1) {
		sum = sum_seconds(x, shards, tp, all.values);
		/* once over replicas: each piece to the rank that adds it, and the sum back */
		last = group_seconds(r, dp, tp * shards, all.values / shards, 2, 2);
	} else if (l->zero >= 2) {
		sum = sum_seconds(x, dp, tp, all.values);
	} else {
		last = sum_seconds(x, shards * dp, tp, all.values) -
		       sum_seconds(x, cp, tp, all.values);
	}
	last = fmax(0, last - micro);
	if (l->zero == 1 || l->zero == 2)
		last += group_seconds(r, shards, tp, all.values, 1, 1);
	double update = all.update / n_shards(l);
	*o = (struct times){.rest = update + last};
	o->computation = n * micro + update;
	o->exposed = n * micro_exposed(micro, gather, again, sum) + last;
	o->bubble = pipeline - n * micro;
	o->copies = copied_seconds(x, &all);
	o->exposed += fmax(0, o->copies - o->computation - o->exposed - o->bubble);
	o->step = o->computation + o->exposed + o->bubble;
}

/* Subtracts the cost of training frozen tensors. They have no gradient and no optimizer state.
 * Layers below the lowest trained one have no backward; a quarter of their work remains if
 * activations are recomputed. */
static void leave_out_frozen(const struct model *m, struct choice *c)
{
	double all = 0, trained = 0;
	for (const struct tensor *t = m->tensors; t < m->tensors + m->n_tensors; t++) {
		double n = (double)tensor_size(t);
		all += n;
		trained += t->frozen ? 0 : n;
	}
	double share = trained / all,
	       forward_only = (double)model_lowest_trained(m) / m->n_units;
	c->memory.total -= (1 - share) * (c->memory.grads + c->memory.optimizer) +
			   forward_only * c->memory.activations;
	c->times.step *= (1 - forward_only) * (2 + share) / 3 + forward_only / 4;
}

void bounds_compute(struct bounds *b, struct choice *c)
{
	struct shared_part p;
	const struct bound x = {b->r, &c->l, &p, stage_split(b, &c->l)};
	if (!find_part(b, &c->l, &p))
		return;
	memory_bound(&x, &c->memory);
	time_bound(&x, &c->times);
	if (b->r->o->freeze.n)
		leave_out_frozen(b->r->m, c);
}
