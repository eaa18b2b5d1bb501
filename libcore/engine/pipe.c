/* The pipeline: executes the actions of a schedule one after the other. Messages between stages are
 * received directly into the activations of a micro-batch: on each stage, micro-batch m uses slot
 * m % n_slots, and the peak of the schedule determines n_slots.
 *
 * With MPI, a receive is posted as soon as its slot is free, long before its action; a send
 * completes before its slot is used again. No send waits for a missing receive: m's forward on the
 * earlier stage posts the receive of its gradient, before m's forward on this one.
 *
 * With NCCL, a receive starts one action before it is needed, since it occupies multiprocessors
 * until its message arrives. Each rank has a group per neighbor and direction, in which
 * messages are sent and received in the same order as the actions
 * (tests/support/schedule_check.c). Downstream messages do not wait for upstream messages.
 *
 * If the next stage is on the same rank, it copies its input when its forward begins: the
 * output stays in its slot until the backward. Gradients are copied as soon as they are
 * complete, since their slot may be used again before they are needed. */
#include "engine/pipe.h"

#include <math.h>

#include "base/trace.h"

/* Activations go downstream, to the next stage; gradients go upstream. */
enum direction { DOWNSTREAM, UPSTREAM, N_DIRECTIONS };

/* The activations of a micro-batch on a stage, and the transfers to and from them. */
struct slot {
	struct acts acts;
	struct comm_requests in[N_DIRECTIONS], out[N_DIRECTIONS];
};

struct pipe_stage {
	struct stage st;
	int number; /* index of the virtual stage in the whole pipeline */
	/* groups with the ranks that it receives from and sends to; NULL: none */
	struct comm *in[N_DIRECTIONS], *out[N_DIRECTIONS];
	int64_t n_slots, n_grads;
	struct slot *slot;
	struct block_grads **grads; /* [n_grads], between the parts of a backward */
};

/* ---- setup ----------------------------------------------------------------------- */

/* Returns this rank's stage with a global number: stages are dealt to the ranks in turn. */
static struct pipe_stage *find_stage(const struct pipe *x, int number)
{
	return &x->stages[number / x->schedule->ranks];
}

/* Returns true if this rank has the stage; false beyond the ends of the pipeline. */
static bool has_stage(const struct pipe *x, int number)
{
	return number >= 0 && number < schedule_stages(x->schedule) &&
	       schedule_rank_of(x->schedule, number) == x->axis->rank;
}

/* Returns the group for messages in direction d; each neighbor has its own groups. */
static struct mesh_part link_between(int ranks, int from, int to, enum direction d)
{
	bool is_next = (from + 1) % ranks == to;
	int way = is_next ? (int)d : N_DIRECTIONS + (int)d;
	BUG_ON(!is_next && (to + 1) % ranks != from);
	return (struct mesh_part){.axes = AXIS_BIT(AXIS_PP),
		.pp_links = mesh_link(ranks, is_next ? from : to, way)};
}

/* Collective. Creates and connects the groups between stages. */
static void open_links(struct pipe *x, struct mesh *mesh)
{
	const struct schedule *s = x->schedule;
	for (int i = 0; i < 2 * (schedule_stages(s) - 1); i++) {
		enum direction d = i % 2 ? UPSTREAM : DOWNSTREAM;
		int from = i / 2 + (d == UPSTREAM), to = i / 2 + (d == DOWNSTREAM);
		int sender = schedule_rank_of(s, from),
		    receiver = schedule_rank_of(s, to);
		if (sender == receiver)
			continue;
		struct comm *c =
			mesh_group(mesh, link_between(s->ranks, sender, receiver, d));
		comm_connect(c); /* not while a stage waits */
		if (has_stage(x, from))
			find_stage(x, from)->out[d] = c;
		if (has_stage(x, to))
			find_stage(x, to)->in[d] = c;
	}
}

/* Raises *peak to the peak of the schedule of n micro-batches. */
static void raise_peak(const struct schedule *s, int64_t n, int rank, int stage,
	struct schedule_peak *peak)
{
	struct schedule x;
	struct err e = {0};
	if (schedule_init(&x, s->kind, s->ranks, s->per_rank, n, &e))
		die_err(&e);
	struct schedule_peak one = schedule_peak(&x, rank, stage);
	peak->kept = max64(peak->kept, one.kept);
	peak->waiting = max64(peak->waiting, one.waiting);
	schedule_release(&x);
}

/* A peak rises with the micro-batches until the pipeline is full, or in gpipe always. It depends on
 * the remainder of a division by the ranks, too. */
struct schedule_peak pipe_max_peak(
	const struct schedule *s, int64_t max, int rank, int stage)
{
	struct schedule_peak peak = schedule_peak(s, rank, stage);
	int64_t few = min64(max, 4 * schedule_stages(s));
	if (max == s->n_micro)
		return peak;
	for (int64_t n = 1; n <= few; n++)
		raise_peak(s, n, rank, stage, &peak);
	for (int64_t n = max64(few, max - schedule_stages(s)) + 1; n <= max; n++)
		raise_peak(s, n, rank, stage, &peak);
	return peak;
}

void pipe_open(struct pipe *x, struct pass *p, const struct schedule *s,
	int64_t max_micro, const struct stage *stages, struct mesh *mesh,
	struct arena *micro)
{
	struct comm *axis = mesh->axis[AXIS_PP];
	*x = (struct pipe){.pass = p, .schedule = s, .axis = axis};
	BUG_ON(axis->size != s->ranks);
	x->stages = xcalloc((size_t)s->per_rank, sizeof(*x->stages));
	open_links(x, mesh);
	for (int v = 0; v < s->per_rank; v++) {
		struct pipe_stage *y = &x->stages[v];
		y->st = stages[v];
		y->number = schedule_stage_of(s, axis->rank, v);
		struct schedule_peak peak =
			pipe_max_peak(s, max_micro, axis->rank, y->number);
		y->n_slots = max64(1, peak.kept);
		y->n_grads = peak.waiting;
		y->slot = xcalloc((size_t)y->n_slots, sizeof(*y->slot));
		y->grads = xcalloc((size_t)y->n_grads, sizeof(struct block_grads *));
		for (int64_t i = 0; i < y->n_slots; i++) {
			for (int d = 0; d < N_DIRECTIONS; d++) {
				y->slot[i].in[d].c = y->in[d];
				y->slot[i].out[d].c = y->out[d];
			}
			acts_alloc(p, &y->st, &y->slot[i].acts, micro);
		}
		for (int64_t i = 0; i < y->n_grads; i++)
			y->grads[i] = grads_alloc(p, &y->st, micro);
	}
}

void pipe_use_schedule(struct pipe *x, const struct schedule *s)
{
	for (int v = 0; v < s->per_rank; v++) {
		const struct pipe_stage *y = &x->stages[v];
		struct schedule_peak peak = schedule_peak(s, x->axis->rank, y->number);
		BUG_ON(peak.kept > y->n_slots || peak.waiting > y->n_grads);
	}
	x->schedule = s;
}

void pipe_close(struct pipe *x)
{
	for (int v = 0; x->stages && v < x->schedule->per_rank; v++) {
		for (int64_t i = 0; i < x->stages[v].n_slots; i++) {
			struct slot *o = &x->stages[v].slot[i];
			for (int d = 0; d < N_DIRECTIONS; d++) {
				comm_requests_release(&o->in[d]);
				comm_requests_release(&o->out[d]);
			}
			acts_release(&o->acts);
		}
		for (int64_t i = 0; i < x->stages[v].n_grads; i++)
			free(x->stages[v].grads[i]);
		free(x->stages[v].slot);
		free(x->stages[v].grads);
	}
	free(x->stages);
	*x = (struct pipe){0};
}

bool pipe_live_bytes(const struct pipe *x, int64_t all, int64_t *live)
{
	const struct pipe_stage *y = x->stages;
	const struct model *m = x->pass->m;
	if (schedule_stages(x->schedule) > 1 || x->schedule->n_micro > 1 || y->n_grads)
		return false;
	for (int64_t i = 0; i <= m->c.layers; i++)
		live[i] = y->slot->acts.begin[i];
	live[m->n_units - 1] = all;
	return true;
}

static struct slot *find_slot(const struct pipe_stage *y, int64_t micro)
{
	return &y->slot[micro % y->n_slots];
}

/* ---- between stages -------------------------------------------------------------- */

/* Returns the tag of a message, which names the receiving stage among the stages of its rank. */
static int tag_of(const struct pipe *x, int receiver, enum direction d)
{
	return COMM_TAG(PIPELINE, receiver / x->schedule->ranks * N_DIRECTIONS + (int)d);
}

/* Returns true if counts of experts follow the slot's activations and gradients. */
static bool has_counts(const struct pipe *x, const struct slot *o)
{
	return o->acts.slots.p && x->pass->micro.train;
}

/* Starts to send the slot's output or gradient to a neighbor stage on another rank, if any. */
static void send_to_stage(
	struct pipe *x, struct pipe_stage *y, struct slot *o, enum direction d)
{
	struct mat m = d == DOWNSTREAM ? o->acts.x_out : o->acts.dx;
	if (!y->out[d])
		return;
	int tag = tag_of(x, y->number + (d == DOWNSTREAM ? 1 : -1), d);
	int to = !y->out[d]->rank;
	comm_send(&o->out[d], m.p, mat_bytes(m), to, tag);
	if (has_counts(x, o))
		comm_send(&o->out[d], o->acts.slots.p, mat_bytes(o->acts.slots), to, tag);
	comm_start(&o->out[d]);
}

/* Posts the receive of the slot's input or gradient, if the neighbor stage is on another rank. */
static void receive_from_stage(
	struct pipe *x, struct pipe_stage *y, struct slot *o, enum direction d)
{
	struct mat m = d == DOWNSTREAM ? o->acts.x_in : o->acts.dx;
	if (!y->in[d])
		return;
	int tag = tag_of(x, y->number, d);
	int from = !y->in[d]->rank;
	comm_recv(&o->in[d], m.p, mat_bytes(m), from, tag);
	if (has_counts(x, o))
		comm_recv(
			&o->in[d], o->acts.slots.p, mat_bytes(o->acts.slots), from, tag);
	comm_post(&o->in[d]);
}

/* Copies the counts of experts between stages of this rank. */
static void copy_counts(struct pipe *x, const struct slot *to, const struct slot *from)
{
	if (has_counts(x, to))
		x->pass->d->k->copy(x->pass->d, to->acts.slots, from->acts.slots);
}

/* Copies the output of the previous stage to the input, if that stage is on this rank. */
static void copy_input(
	struct pipe *x, const struct pipe_stage *y, int64_t micro, struct slot *o)
{
	if (!has_stage(x, y->number - 1))
		return;
	const struct slot *previous = find_slot(find_stage(x, y->number - 1), micro);
	x->pass->d->k->copy(x->pass->d, o->acts.x_in, previous->acts.x_out);
	copy_counts(x, o, previous);
}

/* Copies the gradient to the previous stage, if that stage is on this rank. */
static void copy_gradient(
	struct pipe *x, const struct pipe_stage *y, int64_t micro, const struct slot *o)
{
	if (!has_stage(x, y->number - 1))
		return;
	const struct slot *previous = find_slot(find_stage(x, y->number - 1), micro);
	x->pass->d->k->copy(x->pass->d, previous->acts.dx, o->acts.dx);
	copy_counts(x, previous, o);
}

/* Starts a transfer if need be, and blocks until it is complete. Adds the time to x->waited. */
static void wait_for_transfer(struct pipe *x, struct comm_requests *r)
{
	if (!r->n)
		return;
	double begin = clock_seconds();
	comm_start(r);
	comm_wait(r);
	x->waited += clock_seconds() - begin;
}

/* Posts the receive of a micro-batch into its slot, which is free. */
static void post_receive(struct pipe *x, struct pipe_stage *y, int64_t micro)
{
	if (micro < x->n)
		receive_from_stage(x, y, find_slot(y, micro), DOWNSTREAM);
}

/* Makes progress on transfers while this rank computes. */
static void poll_transfers(void *arg)
{
	struct pipe *x = arg;
	for (int v = 0; v < x->schedule->per_rank; v++)
		for (int64_t i = 0; i < x->stages[v].n_slots; i++)
			for (int d = 0; d < N_DIRECTIONS; d++) {
				struct slot *o = &x->stages[v].slot[i];
				if (o->in[d].n)
					comm_test(&o->in[d]);
				if (o->out[d].n)
					comm_test(&o->out[d]);
			}
}

/* Begins a step of n micro-batches: posts receives, and polls transfers in the background. */
static void begin_transfers(struct pipe *x, int64_t n)
{
	x->n = n;
	x->waited = 0;
	for (int v = 0; v < x->schedule->per_rank; v++)
		for (int64_t i = 0; i < x->stages[v].n_slots; i++)
			post_receive(x, &x->stages[v], i);
	if (x->axis->size > 1)
		comm_background_begin(poll_transfers, x);
}

/* Waits for all sends of the step, and ends the polling. */
static void end_transfers(struct pipe *x)
{
	for (int v = 0; v < x->schedule->per_rank; v++)
		for (int64_t i = 0; i < x->stages[v].n_slots; i++)
			for (int d = 0; d < N_DIRECTIONS; d++)
				wait_for_transfer(x, &x->stages[v].slot[i].out[d]);
	if (x->axis->size > 1)
		comm_background_end(poll_transfers, x);
}

/* ---- actions --------------------------------------------------------------------- */

/* Runs a forward, after its input has arrived, and sends the output to the next stage. */
static void run_forward(struct pipe *x, struct pipe_stage *y, int64_t micro)
{
	struct pass *p = x->pass;
	struct slot *o = find_slot(y, micro);
	if (!p->micro.empty) {
		wait_for_transfer(x, &o->out[DOWNSTREAM]);
		wait_for_transfer(x, &o->out[UPSTREAM]);
		if (p->micro.train)
			receive_from_stage(x, y, o, UPSTREAM);
		wait_for_transfer(x, &o->in[DOWNSTREAM]);
		copy_input(x, y, micro, o);
	}
	trace_begin("forward, micro-batch", micro);
	device_timer_start(p->d, TIMER_FORWARD);
	if (x->delay && p->micro.train && y == x->stages)
		x->delay(x->delay_with);
	model_forward(p, &y->st, &o->acts);
	device_timer_start(p->d, TIMER_OTHER);
	trace_end();
	if (p->micro.empty)
		return;
	send_to_stage(x, y, o, DOWNSTREAM);
	if (!p->micro.train)
		post_receive(x, y, micro + y->n_slots);
}

/* Runs a backward, or its first or second part. The first part sends the gradient to the
 * previous stage; after the last part, the slot is free. */
static void run_backward(
	struct pipe *x, struct pipe_stage *y, int64_t micro, enum action_kind kind)
{
	struct pass *p = x->pass;
	struct slot *o = find_slot(y, micro);
	bool is_first = kind != ACTION_BACKWARD_W, is_last = kind != ACTION_BACKWARD_X;
	if (is_first && !p->micro.empty)
		wait_for_transfer(x, &o->in[UPSTREAM]);
	trace_begin(kind == ACTION_BACKWARD_W	? "backward of weights, micro-batch"
		    : kind == ACTION_BACKWARD_X ? "backward of inputs, micro-batch"
						: "backward, micro-batch",
		micro);
	device_timer_start(p->d, TIMER_BACKWARD);
	if (is_first && is_last)
		model_backward(p, &y->st, &o->acts);
	else if (is_first)
		model_backward_x(p, &y->st, &o->acts, y->grads[micro % y->n_grads]);
	else
		model_backward_w(p, &y->st, &o->acts, y->grads[micro % y->n_grads]);
	device_timer_start(p->d, TIMER_OTHER);
	trace_end();
	if (p->micro.empty)
		return;
	if (is_first) {
		copy_gradient(x, y, micro, o);
		send_to_stage(x, y, o, UPSTREAM);
	}
	if (is_last)
		post_receive(x, y, micro + y->n_slots);
}

/* Starts the posted receive of the input or gradient that an action needs. Does not wait. */
static void start_receive(struct pipe *x, const struct action *a)
{
	struct slot *o = find_slot(find_stage(x, a->stage), a->micro);
	enum direction d = a->kind == ACTION_FORWARD ? DOWNSTREAM : UPSTREAM;
	if (a->kind != ACTION_BACKWARD_W && a->micro < x->n && o->in[d].c)
		comm_start(&o->in[d]);
}

/* Returns the first unit that the actions from number i on use, or -1. */
static int unit_used_from(const struct pipe *x, int64_t i)
{
	const struct schedule *s = x->schedule;
	int rank = x->axis->rank;
	for (; i < s->n[rank]; i++) {
		const struct action *a = &s->rank[rank][i];
		if (a->kind == ACTION_BACKWARD_W && x->pass->recompute == RECOMPUTE_NONE)
			continue;
		int unit = stage_first_unit(
			x->pass, &find_stage(x, a->stage)->st, a->kind != ACTION_FORWARD);
		if (unit >= 0)
			return unit;
	}
	return -1;
}

/* Loads micro-batch i of this rank into the pass. */
static void load_micro_batch(struct pipe *x, const struct pipe_input *in, int64_t i)
{
	struct pass *p = x->pass;
	int64_t b = p->c.batch;
	p->micro.empty = i >= in->n;
	p->micro.turn = in->first_turn + i;
	if (in->microbatches)
		p->micro.number = microbatches_index(
			in->microbatches, in->data_rank, in->first_turn + i);
	if (p->micro.empty || !in->windows)
		return;
	pass_load(p, in->windows + i * b * (p->m->c.context + 1));
	p->micro.counted = min64(b, in->n_windows - i * b);
	p->micro.first_sample = in->first_sample + p->micro.number * b;
}

void pipe_step(struct pipe *x, const struct pipe_input *in)
{
	const struct schedule *s = x->schedule;
	const struct action *actions = s->rank[x->axis->rank];
	double start = clock_seconds(), waited = comm_waited();
	BUG_ON(in->n > s->n_micro);
	x->pass->micro.train = true;
	device_timer_read(x->pass->d, NULL); /* drops the times of an evaluation */
	device_timer_start(x->pass->d, TIMER_OTHER);
	begin_transfers(x, in->n);
	for (int64_t i = 0; i < s->n[x->axis->rank]; i++) {
		const struct action *a = &actions[i];
		struct pipe_stage *y = find_stage(x, a->stage);
		load_micro_batch(x, in, a->micro);
		start_receive(x, a);
		if (i + 1 < s->n[x->axis->rank])
			start_receive(x, a + 1);
		x->pass->store->after = unit_used_from(x, i + 1);
		if (x->begin)
			x->begin(x->with, a);
		if (a->kind == ACTION_FORWARD) {
			flips_begin_micro(x->pass->store->flips);
			run_forward(x, y, a->micro);
		} else {
			run_backward(x, y, a->micro, a->kind);
		}
		if (x->done)
			x->done(x->with, a);
	}
	end_transfers(x);
	x->seconds = clock_seconds() - start;
	x->blocked = fmax(0, comm_waited() - waited - x->waited);
}

void pipe_times(struct pipe *x)
{
	struct device *d = x->pass->d;
	double seconds[N_DEVICE_TIMERS];
	device_timer_read(d, seconds);
	x->forward = seconds[TIMER_FORWARD];
	x->backward = seconds[TIMER_BACKWARD];
	if (d->discrete) /* the host only enqueues, so its clock does not measure the step */
		x->seconds = x->forward + x->backward + seconds[TIMER_OTHER];
}

void pipe_reload(struct pipe *x, const struct pipe_input *in)
{
	const struct schedule *s = x->schedule;
	int rank = x->axis->rank;
	x->n = in->n;
	x->waited = x->seconds = 0;
	device_timer_read(x->pass->d, NULL); /* a graph has no times */
	for (int64_t i = 0; i < s->n[rank]; i++)
		load_micro_batch(x, in, s->rank[rank][i].micro);
}

/* Repeats the forwards of the schedule, n_micro rounds at a time, until all rounds are done. */
void pipe_forward(struct pipe *x, const struct pipe_input *in, int64_t rounds)
{
	const struct schedule *s = x->schedule;
	int rank = x->axis->rank;
	x->pass->micro.train = false;
	x->pass->store->after = -1;
	begin_transfers(x, in->n);
	for (int64_t first = 0; first < rounds; first += s->n_micro) {
		for (int64_t i = 0; i < s->n[rank]; i++) {
			const struct action *a = &s->rank[rank][i];
			if (a->kind != ACTION_FORWARD || first + a->micro >= rounds)
				continue;
			load_micro_batch(x, in, first + a->micro);
			run_forward(x, find_stage(x, a->stage), first + a->micro);
		}
	}
	end_transfers(x);
}
