/* One optimizer step. */
#include "train/step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/local_sgd.h"
#include "train/state.h"

static int64_t window_size(const struct trainer *t)
{
	return t->model.c.context + 1;
}

/* Of a step, the first sample of this worker's. */
static int64_t worker_sample(const struct trainer *t)
{
	return t->o.worker * layout_worker_batch(&t->o);
}

static struct fetch *fetch_step(struct trainer *t, int64_t first_sample)
{
	struct sample_run *runs = layout_samples(
		&t->o, &t->layout.deal, t->world->size, first_sample + worker_sample(t));
	struct fetch *f = loader_begin(t->data.loader, SPLIT_TRAIN, &t->data.order, runs);
	free(runs);
	return f;
}

struct pipe_input step_input(const struct trainer *t, const int32_t *windows)
{
	int64_t n = layout_own_micro(&t->layout.deal, t->layout.data_rank);
	return (struct pipe_input){.n = n,
		.windows = windows,
		.n_windows = n * t->o.micro_batch,
		.deal = &t->layout.deal,
		.data_rank = t->layout.data_rank,
		.first_sample = worker_sample(t)};
}

struct work {
	struct trainer *t;
	struct pipe_input input;
	const struct step_votes *votes;
	struct step_result *r;
	bool together; /* with other workers, who may find a bad number that is not here */
	/* when bad numbers are looked for: */
	struct probe probe;
	int64_t found_at; /* where in the step; NOWHERE */
	int64_t sample;
};

static double step_tokens(const struct trainer *t)
{
	return (double)(layout_worker_batch(&t->o) * t->model.c.context);
}

static void put_pass_step(struct trainer *t)
{
	const struct pass_step step = {.number = (uint32_t)(t->step + 1),
		.loss_scale = t->loss_scale / (float)step_tokens(t)};
	pass_step_begin(&t->pass, &step);
}

/* What differs from step to step and is no sample: the device reads it where it is needed. */
static void put_terms(struct trainer *t, const struct step_result *r)
{
	int64_t step = t->step + 1 - t->skipped; /* of the optimizer */
	const struct step_terms terms = {
		.adamw = {.lr = r->lr,
			.beta1 = (float)t->o.beta1,
			.beta2 = (float)t->o.beta2,
			.eps = (float)t->o.eps,
			.correct1 = (float)(1 - pow(t->o.beta1, (double)step)),
			.correct2 = (float)(1 - pow(t->o.beta2, (double)step))},
		.count = step_tokens(t),
		.max_norm = t->o.clip,
		.scale = t->loss_scale,
		.step = t->step + 1};
	device_put(&t->d, t->terms, &terms, sizeof(terms));
	put_pass_step(t);
}

static void run_schedule(struct work *w)
{
	struct trainer *t = w->t;
	pass_loss_begin(&t->pass);
	pipe_step(&t->pipe, &w->input);
	store_step_end(t->store);
}

/* ---- what ranks agree upon -------------------------------------------------------- */

static bool is_alone(const struct trainer *t)
{
	return t->world->size == 1;
}

/* 1 - what was computed, over what could have been while the slowest rank was at it. */
static double bubble(const struct pipe *x)
{
	if (x->axis->size == 1)
		return 0;
	int64_t busy = (int64_t)((x->forward + x->backward) * 1e9);
	int64_t longest = comm_max_i64(x->axis, (int64_t)(x->seconds * 1e9));
	comm_sum_i64(x->axis, &busy, 1);
	return 1 - (double)busy / ((double)longest * x->axis->size);
}

void step_allreduce(
	struct trainer *t, const struct step_votes *votes, struct step_result *r)
{
	struct device *d = &t->d;
	const size_t n_bytes = sizeof(struct exact);
	struct exact *loss = t->pass.loss, *squares = store_squares(t->store);
	struct {
		struct exact loss, squares;
		int64_t vote[STEP_VOTES];
	} all = {.vote = {0}};
	bool several = !is_alone(t);
	if (votes)
		votes->cast(votes->with, all.vote);
	if (several) {
		device_get(d, &all.loss, loss, n_bytes);
		device_get(d, &all.squares, squares, n_bytes);
	}
	comm_sum_i64(t->world, (int64_t *)&all, 2 * EXACT_WORDS + STEP_VOTES);
	if (several) {
		device_put(d, loss, &all.loss, n_bytes);
		device_put(d, squares, &all.squares, n_bytes);
	}
	memcpy(r->vote, all.vote, sizeof(r->vote));
	pipe_times(&t->pipe);
	r->bubble = bubble(&t->pipe);
}

/* ---- the update -------------------------------------------------------------------- */

enum { AT_ONCE = 64 };

struct update {
	struct trainer *t;
	struct adamw_part part[AT_ONCE];
	int n;
};

static void update_parts(struct update *u)
{
	u->t->d.k->adamw(&u->t->d, u->part, u->n, &u->t->end->adamw);
	u->n = 0;
}

static void update_part(void *with, const struct part *x)
{
	struct update *u = with;
	u->part[u->n++] = (struct adamw_part){.p = x->state[STORE_PARAM],
		.m = x->state[1],
		.v = x->state[2],
		.g = x->g,
		.copy = x->copy,
		.n = x->rows * x->cols,
		.decay = x->t->decay ? (float)u->t->o.weight_decay : 0};
	bool leaves = u->t->o.offload != OFFLOAD_NONE; /* when this returns */
	if (leaves || u->n == AT_ONCE)
		update_parts(u);
}

void step_update(struct trainer *t)
{
	struct update u = {.t = t};
	store_walk(t->store, false, 7, 7, update_part, &u);
	update_parts(&u);
	store_updated(t->store, true);
}

/* ---- a step, as the device is asked for it ------------------------------------------- */

/*
 * A GPU is asked for the update before anybody has seen whether there is to be one, which it
 * finds out itself; then the program waits for the step's result, which comes before the update
 * is done. So a step's result is known before the next one begins, as on a CPU, and the GPU is
 * at its update while that is looked at and the next step is asked for.
 *
 * On a CPU the result is there by then, and what other workers have found has to be waited for.
 */
static bool updates_ahead(const struct work *w)
{
	return w->t->d.apart && !w->together;
}

static void enqueue_step(struct work *w)
{
	struct trainer *t = w->t;
	struct device *d = &t->d;
	put_terms(t, w->r);
	run_schedule(w);
	if (w->together)
		edit_mean_gradient(t->local->edit);
	store_squares_ask(t->store);
	if (!is_alone(t))
		step_allreduce(t, w->votes, w->r);
	d->k->step_end(d, t->end, t->pass.loss, store_squares(t->store), t->terms);
	device_get_begin(d, &t->ended, t->end, sizeof(t->ended));
	if (updates_ahead(w))
		step_update(t);
}

/* Steps in which products find their algorithms, and CUDA loads its kernels. */
enum { ORDINARY_STEPS = 2 };

/* The step is noted and not done. */
static bool capture_graph(struct work *w)
{
	struct trainer *t = w->t;
	t->graph.state = GRAPH_NONE;
	if (!device_graph_begin(&t->d))
		return false;
	enqueue_step(w);
	if (!device_graph_end(&t->d))
		return false;
	t->graph.state = GRAPH_MADE;
	return true;
}

/* All that differs from step to step is what is put: the terms, and the samples. */
static void refill_graph(struct work *w)
{
	struct trainer *t = w->t;
	device_graph_refill(&t->d);
	put_terms(t, w->r);
	pipe_reload(&t->pipe, &w->input);
}

/* Who wants to see each kernel does not see those of a graph. */
static void compute(struct work *w)
{
	struct trainer *t = w->t;
	int64_t step = t->step + 1;
	bool profiled = t->profile.first <= step && step <= t->profile.last;
	bool due = t->graph.state == GRAPH_WANTED && t->graph.n_eager >= ORDINARY_STEPS &&
		   !w->together;
	if (t->graph.state == GRAPH_MADE && !profiled) {
		refill_graph(w);
		device_graph_launch(&t->d);
	} else if (due && !profiled && capture_graph(w)) {
		device_graph_launch(&t->d);
	} else {
		enqueue_step(w);
		t->graph.n_eager++;
	}
}

/* ---- fp16: the scale of the loss -------------------------------------------------- */

/* Small gradients would be lost in fp16, so the loss is multiplied by a scale that follows
 * what they allow, as in PyTorch's GradScaler. Every rank sees the same norm of the whole
 * gradient, so all come to the same scale. */
static bool overflowed(const struct trainer *t, const struct step_result *r)
{
	const float least = 0x1p-16f; /* no scale helps a step that fails with this */
	return t->o.dtype == PRECISION_FP16 && isfinite(r->loss) &&
	       !isfinite(r->grad_norm) && t->loss_scale > least;
}

static void adjust_scale(struct trainer *t, bool overflow)
{
	const float most = 0x1p120f;
	int64_t window = t->o.loss_scale_window;
	if (t->o.dtype != PRECISION_FP16)
		return;
	if (overflow) {
		t->loss_scale /= 2;
		t->scale_good = 0;
		t->skipped++;
	} else if (++t->scale_good >= window && window) {
		t->loss_scale *= t->loss_scale < most ? 2 : 1;
		t->scale_good = 0;
	}
}

/* ---- when a number is none ------------------------------------------------------- */

struct search {
	struct device *d;
	struct probe *probe;
	bool gradients;
};

static void search_part(void *with, const struct part *x)
{
	struct search *s = with;
	struct probe *p = s->probe;
	float *v = s->gradients ? x->g : x->state[STORE_PARAM];
	int64_t at = p->found ? -1 : s->d->k->find_bad(s->d, mat(v, x->rows, x->cols));
	if (at < 0)
		return;
	p->found = true;
	p->index = tensor_index(x->t, x->slice, x->row) + at;
	snprintf(p->where, sizeof(p->where), "%s %s",
		s->gradients ? "gradient of" : "parameter", x->t->name);
}

/* Looks through the parameters, or through what this rank has of their gradients. */
static bool bad_tensor(struct trainer *t, bool gradients, struct probe *p)
{
	struct search s = {&t->d, p, gradients};
	store_walk(t->store, false, gradients ? 0 : STORE_BIT(STORE_PARAM), 0,
		search_part, &s);
	return p->found;
}

enum { NOWHERE = -1 };

/* A bad number spreads: from a stage to the next, and in the backward to those before. Where
 * it was met first is a number that rises in that order. */
static void look(void *with, const struct action *a)
{
	struct work *w = with;
	int64_t stages = schedule_stages(&w->t->schedule);
	if (!w->probe.found || w->found_at != NOWHERE)
		return;
	w->found_at = 2 * stages * w->t->pass.micro.number +
		      (a->kind == ACTION_FORWARD ? a->stage : 2 * stages - 1 - a->stage);
	w->sample = w->t->samples + w->t->pass.micro.first_sample;
}

/* Collective. Does the step again, looking at every result. Says what this rank found, if it
 * is what was first of all. */
static bool locate_nonfinite(struct work *w, struct str *why)
{
	struct trainer *t = w->t;
	struct comm *world = t->world;
	w->probe.found = false;
	w->found_at = NOWHERE;
	bool bad = bad_tensor(t, false, &w->probe);
	int64_t first = comm_min_i64(world, bad ? world->rank : world->size);
	if (first < world->size) {
		if (first == world->rank)
			str_printf(why,
				"rank %d, before any sample: first bad: %s, element %lld",
				world->rank, w->probe.where, (long long)w->probe.index);
		return true;
	}
	t->pass.probe = &w->probe;
	t->pipe.done = look;
	t->pipe.with = w;
	run_schedule(w);
	t->pass.probe = NULL;
	t->pipe.done = NULL;
	if (!w->probe.found)
		bad_tensor(t, true, &w->probe);
	int64_t last = INT64_MAX - 1, none = INT64_MAX;
	int64_t mine = w->found_at != NOWHERE ? w->found_at
		       : w->probe.found	      ? last
					      : none;
	int64_t at = comm_min_i64(world, mine);
	first = comm_min_i64(world, mine == at ? world->rank : world->size);
	if (first == world->rank && mine < last)
		str_printf(why,
			"rank %d, samples %lld to %lld: first bad: %s, element %lld",
			world->rank, (long long)w->sample,
			(long long)(w->sample + t->o.micro_batch - 1), w->probe.where,
			(long long)w->probe.index);
	else if (first == world->rank && mine == last)
		str_printf(why, "rank %d, all samples: first bad: %s, element %lld",
			world->rank, w->probe.where, (long long)w->probe.index);
	return at < none;
}

/* The rank that found what was first says what. */
static void explain(struct work *w, struct step_result *r)
{
	struct str why = {0};
	struct comm *world = w->t->world;
	bool found = locate_nonfinite(w, &why);
	str_printf(&r->why, "step %lld: loss %g, grad_norm %g", (long long)w->t->step + 1,
		(double)r->loss, (double)r->grad_norm);
	if (found) {
		int64_t who = comm_min_i64(world, why.len ? world->rank : world->size);
		comm_bcast_str(world, &why, (int)who);
		str_printf(&r->why, "; %s", why.s);
	} else {
		str_puts(&r->why,
			w->together ? "; every part of it is finite: another worker's is "
				      "not, or the sum overflows"
				    : "; every part of it is finite: the sum overflows");
	}
	str_free(&why);
}

static void inject_delay(const struct trainer *t)
{
	int ranks = t->world->size;
	faults_wait(faults_delay_ms(t->faults.delays, t->faults.n_delays,
		(uint64_t)t->o.seed, t->step + 1, t->o.worker * ranks + t->world->rank,
		ranks * (int)max64(1, t->o.edit.workers)));
}

/* NULL: the data is good. Else other windows in their place, allocated. */
static int32_t *corrupt_batch(const struct trainer *t)
{
	int64_t b = t->o.micro_batch,
		n = layout_own_micro(&t->layout.deal, t->layout.data_rank);
	int64_t len = window_size(t), step = t->step + 1;
	if (!faults_corrupt_step(&t->faults, t->o.worker, step))
		return NULL;
	int32_t *windows = xcalloc((size_t)(n * b * len) + 1, sizeof(*windows));
	for (int64_t i = 0; i < n * b; i++) {
		int64_t micro = deal_micro(&t->layout.deal, t->layout.data_rank, i / b);
		faults_random_window(windows + i * len, len,
			t->data.set->tokenizer.vocab.n, (uint64_t)t->o.seed,
			t->samples + worker_sample(t) + micro * b + i % b);
	}
	return windows;
}

/* Waits for the step's result. */
static void collect_result(struct work *w)
{
	struct trainer *t = w->t;
	struct step_result *r = w->r;
	device_get_end(&t->d);
	BUG_ON(t->ended.step != t->step + 1);
	if (is_alone(t))
		step_allreduce(t, w->votes, r);
	r->forward = t->pipe.forward;
	r->backward = t->pipe.backward;
	r->loss = t->ended.loss;
	r->grad_norm = t->ended.grad_norm;
	bool lost = !isfinite(r->loss);
	if (w->together) /* what one of them does all do */
		lost = edit_any_worker(t->local->edit, lost);
	r->skipped = !lost && overflowed(t, r);
	r->bad = !r->skipped && (lost || !isfinite(r->grad_norm));
}

void trainer_step_on(struct trainer *t, const int32_t *windows,
	const struct step_votes *votes, struct step_result *r)
{
	*r = (struct step_result){
		.lr = (float)lr_at(&t->o, t->step + 1), .loss_scale = t->loss_scale};
	int32_t *corrupted = corrupt_batch(t);
	struct work w = {.t = t,
		.input = step_input(t, corrupted ? corrupted : windows),
		.votes = votes,
		.r = r,
		.together = t->local && t->step < t->o.edit.warmup};
	inject_delay(t);
	compute(&w);
	collect_result(&w);
	if (r->bad)
		explain(&w, r);
	free(corrupted);
	if (r->bad)
		return;
	if (!r->skipped && !updates_ahead(&w))
		step_update(t);
	adjust_scale(t, r->skipped);
	t->step++;
	t->samples += t->o.batch;
	t->loss = (double)r->loss;
}

void trainer_autotune_step(struct trainer *t)
{
	struct fetch *f = fetch_step(t, t->samples);
	struct work w = {.t = t, .input = step_input(t, loader_end(t->data.loader, f))};
	put_pass_step(t);
	run_schedule(&w);
	fetch_free(f);
}

void trainer_skip_steps(struct trainer *t, int64_t steps)
{
	if (!steps)
		return;
	t->step += steps;
	t->samples += steps * t->o.batch;
	t->skipped += steps;
	if (t->data.next) { /* of a step that will not be */
		loader_end(t->data.loader, t->data.next);
		fetch_free(t->data.next);
		t->data.next = NULL;
	}
}

void trainer_step(
	struct trainer *t, const struct step_votes *votes, struct step_result *r)
{
	double begin = clock_seconds();
	struct fetch *now = t->data.next ? t->data.next : fetch_step(t, t->samples);
	const int32_t *windows = loader_end(t->data.loader, now);
	bool more = t->step + 1 < t->o.steps;
	t->data.next = more ? fetch_step(t, t->samples + t->o.batch) : NULL;
	double waited = clock_seconds() - begin;
	trainer_step_on(t, windows, votes, r);
	r->data = waited;
	fetch_free(now);
}
