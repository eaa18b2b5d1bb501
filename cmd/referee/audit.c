/* Audits: the copy and the original of a micro-batch (audit.h). */
#include "referee/audit.h"

#include "engine/step.h"

/* ---- opening --------------------------------------------------------------------- */

static int greatest_common_divisor(int a, int b)
{
	return b ? greatest_common_divisor(b, a % b) : a;
}

/* Returns the distance from which on data ranks are on different hosts, or with hybrid sharding in
 * different replicas. */
static int far_shift(const struct trainer *t)
{
	const int *degree = t->mesh.degree;
	int n = t->layout.microbatches.ranks;
	int ranks = degree[AXIS_CP] * degree[AXIS_TP]; /* per data rank and stage */
	int far = degree[AXIS_DP] > 1 ? degree[AXIS_FSDP] : 1;
	int of_host = t->mesh.host_ranks / ranks;
	return 2 * of_host <= n ? (int)max64(far, of_host) : far;
}

/* Returns the number of micro-batches of a step that `all` data ranks have, or else that some have;
 * at least 1. Ranks may have different numbers, which all ranks know. */
static int64_t count_turns(const struct microbatches *m, bool all)
{
	int64_t n = all ? m->n_micro : 1;
	for (int r = 0; r < m->ranks; r++) {
		int64_t own = microbatches_own(m, r);
		n = all ? min64(n, own) : max64(n, own);
	}
	return max64(1, n);
}

void audit_open(struct trainer *t)
{
	const struct microbatches *m = &t->layout.microbatches;
	const struct train_opts *o = &t->o;
	struct err e = {0};
	int ep = (int)max64(1, o->ep), stages = t->mesh.degree[AXIS_PP];
	if (!(o->referee > 0))
		return;
	struct audit *a = t->audit = xcalloc(1, sizeof(*a));
	int64_t turns = count_turns(m, false);
	a->c = (struct audit_config){.seed = (uint64_t)o->seed,
		.every = audit_interval(o->referee, turns, stages),
		.turns = turns,
		.data_ranks = m->ranks,
		.unit = ep / greatest_common_divisor(ep, t->mesh.degree[AXIS_CP]),
		.far = far_shift(t)};
	audit_signatures_open(t);
	if (schedule_init(
		    &a->schedule, t->schedule.kind, stages, t->schedule.per_rank, 1, &e))
		die_err(&e);
}

void audit_close(struct trainer *t)
{
	struct audit *a = t->audit;
	if (!a)
		return;
	audit_signatures_close(t);
	schedule_release(&a->schedule);
	str_free(&a->found);
	strikes_release(&a->strikes);
	free(a);
	t->audit = NULL;
}

void audit_place(const struct trainer *t, struct strike *out)
{
	memset(out, 0, sizeof(*out));
	snprintf(out->host, sizeof(out->host), "%s", comm_place()->host);
	if (t->d.discrete)
		snprintf(out->device, sizeof(out->device), "GPU %d", t->d.number);
	else
		snprintf(out->device, sizeof(out->device), "processor");
}

bool audit_watch(struct trainer *t)
{
	struct audit *a = t->audit;
	struct strike here;
	audit_place(t, &here);
	int n = strikes_count(&a->strikes, clock_wall(), here.host, here.device);
	bool is_due = comm_max_i64(t->world, n) > 0;
	if (is_due)
		a->always_until = t->step + AUDIT_WATCHED_STEPS;
	return is_due;
}

int audit_partner(const struct trainer *t, int rank, int shift)
{
	int coord[N_AXES], n = t->layout.microbatches.ranks;
	mesh_coordinates(t->mesh.degree, rank, coord);
	int data = (microbatches_rank(t->mesh.degree, coord) + shift + n) % n;
	coord[AXIS_DP] = data / t->mesh.degree[AXIS_FSDP];
	coord[AXIS_FSDP] = data % t->mesh.degree[AXIS_FSDP];
	return mesh_rank(t->mesh.degree, coord);
}

/* ---- the copy -------------------------------------------------------------------- */

/* Returns the micro-batches of a data rank in a turn: 0 if it has fewer than others, else 1. */
static int64_t micros_in_turn(const struct trainer *t, int data_rank, int64_t turn)
{
	return turn < microbatches_own(&t->layout.microbatches, data_rank);
}

/* Starts to read the samples of a turn of data rank d + shift for all ranks. */
static struct fetch *fetch_turn(struct trainer *t, int shift, int64_t turn)
{
	const struct microbatches *m = &t->layout.microbatches;
	int64_t b = t->o.micro_batch;
	scoped_ptr struct sample_run *runs =
		xcalloc((size_t)t->world->size, sizeof(*runs));
	for (int r = 0; r < t->world->size; r++) {
		int data = layout_data_rank(t->mesh.degree, audit_partner(t, r, shift));
		runs[r] = (struct sample_run){
			.first = t->samples + microbatches_index(m, data, turn) * b,
			.block = b,
			.stride = b,
			.blocks = micros_in_turn(t, data, turn)};
	}
	return loader_start(t->data.loader, SPLIT_TRAIN, &t->data.order, runs);
}

void audit_compute(struct trainer *t, int shift, int64_t turn, struct audit_signature *to)
{
	struct audit *a = t->audit;
	struct fetch *f = fetch_turn(t, shift, turn);
	struct pipe_input in = step_input(t, loader_wait(t->data.loader, f));
	int64_t fullest = t->pass.fullest_rows;
	in.data_rank =
		layout_data_rank(t->mesh.degree, audit_partner(t, t->world->rank, shift));
	in.n = micros_in_turn(t, in.data_rank, turn); /* 0: serves the other ranks only */
	in.n_windows = in.n * t->o.micro_batch;
	in.first_turn = turn;
	audit_signature_begin(t, to, &a->memory.copy);
	pass_loss_begin(&t->pass);
	flips_begin_copy(t->store->flips, true);
	audit_observe_begin(t, to, true);
	t->pipe.schedule = &a->schedule;
	pipe_step(&t->pipe, &in);
	t->pipe.schedule = &t->schedule;
	audit_observe_loss(t, to, true);
	audit_observe_end(t);
	flips_begin_copy(t->store->flips, false);
	store_discard_leaves(t->store);
	t->pass.fullest_rows = fullest;
	fetch_free(f);
}

/* ---- the original ---------------------------------------------------------------- */

/* Returns true if the head computes losses in this action. */
static bool computes_loss(const struct trainer *t, const struct action *x)
{
	return x->kind == ACTION_FORWARD && x->stage == schedule_stages(&t->schedule) - 1;
}

static void begin_action(void *context, const struct action *x)
{
	struct trainer *t = context;
	struct audit_signature *own = &t->audit->own;
	if (x->micro != t->audit->plan.turn)
		return;
	if (computes_loss(t, x))
		audit_observe_loss(t, own, false);
	audit_observe_begin(t, own, false);
}

static void end_action(void *context, const struct action *x)
{
	struct trainer *t = context;
	if (x->micro != t->audit->plan.turn)
		return;
	audit_observe_end(t);
	if (computes_loss(t, x))
		audit_observe_loss(t, &t->audit->own, true);
}

bool audit_plan_step(struct trainer *t)
{
	struct audit *a = t->audit;
	int64_t step = t->step + 1;
	if (!a)
		return false;
	if (!a->begun)
		a->first_step = step;
	/* if software differs, all pairs must show it in the first audit */
	a->c.turns = count_turns(&t->layout.microbatches, step == a->first_step);
	a->plan = audit_plan(&a->c, step, !a->begun || step <= a->always_until);
	return a->plan.audited;
}

void audit_begin_step(struct trainer *t)
{
	struct audit *a = t->audit;
	if (!a || !a->plan.audited)
		return;
	a->key = philox_key(a->c.seed, PHILOX_AUDIT, (uint64_t) - (t->step + 1));
	audit_compute(t, a->plan.shift, a->plan.turn, &a->copy);
	audit_signature_begin(t, &a->own, &a->memory.own);
	t->pipe.begin = begin_action;
	t->pipe.done = end_action;
	t->pipe.with = t;
}

void audit_end_step(struct trainer *t)
{
	struct audit *a = t->audit;
	if (!a || !a->plan.audited)
		return;
	t->pipe.begin = t->pipe.done = NULL;
	a->was_first = !a->begun;
	a->begun = true;
	a->n_audited += a->audited_step != t->step + 1; /* a step may be computed again */
	a->audited_step = t->step + 1;
}

/* ---- the word -------------------------------------------------------------------- */

bool audit_compares_own_experts(const struct trainer *t)
{
	const struct audit *a = t->audit;
	return a->plan.shift % a->c.unit != 0;
}

/* Returns the random weight of a pair: of the data rank that is audited. */
static uint64_t pair_weight(const struct audit *a, int data_rank, uint32_t what)
{
	struct philox_block b = philox(a->key, (uint32_t)data_rank, what, 0, 1);
	return 1 + b.x[0] % (GRID_PRIME - 1);
}

/* Returns the sum of the words of a signature with random weights: of experts, or of all else. */
static uint64_t fold_words(
	const struct trainer *t, const struct audit_signature *x, bool experts)
{
	const struct audit *a = t->audit;
	uint64_t sum = 0;
	for (int64_t i = 0; i < a->n_words; i++) {
		bool of_experts = i < t->model.n_tensors && t->model.tensors[i].experts;
		if (of_experts == experts)
			sum += x->word[i] * pair_weight(a, (int)i, 1) % GRID_PRIME;
	}
	return sum % GRID_PRIME;
}

uint64_t audit_word(struct trainer *t)
{
	struct audit *a = t->audit;
	uint64_t sum = 0;
	audit_signature_fetch(t, &a->copy);
	audit_signature_fetch(t, &a->own);
	int own = t->layout.data_rank, other = (own + a->plan.shift) % a->c.data_ranks;
	for (int experts = 0; experts < 2; experts++) {
		int copied = experts && audit_compares_own_experts(t) ? own : other;
		sum += pair_weight(a, own, 2) * fold_words(t, &a->own, experts) %
		       GRID_PRIME;
		sum += pair_weight(a, copied, 2) *
		       (GRID_PRIME - fold_words(t, &a->copy, experts)) % GRID_PRIME;
	}
	return sum % GRID_PRIME;
}
