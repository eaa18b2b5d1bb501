/* One optimizer step. */
#include "train/train.h"

#include <math.h>
#include <stdlib.h>

static int64_t window_size(const struct trainer *t)
{
	return t->model.c.context + 1;
}

/* Of a step, the first sample of this worker's. */
static int64_t worker_sample(const struct trainer *t)
{
	return t->o.worker * train_batch(&t->o);
}

static struct fetch *fetch_step(struct trainer *t, int64_t first_sample)
{
	struct sample_run *runs = trainer_samples(t, first_sample + worker_sample(t));
	struct fetch *f = loader_begin(t->loader, SPLIT_TRAIN, &t->order, runs);
	free(runs);
	return f;
}

/* A step's samples: those of this rank's micro-batches, in their order. */
struct work {
	struct trainer *t;
	const int32_t *windows;
	struct step_result *r;
	bool save;     /* this rank's vote */
	bool together; /* with other workers, who may find a bad number that is not here */
	/* when bad numbers are looked for: */
	struct probe probe;
	int64_t found_at; /* where in the step; NOWHERE */
	int64_t sample;
};

static void load_micro(void *with, int64_t i)
{
	struct work *w = with;
	struct trainer *t = w->t;
	struct pass *p = &t->pass;
	p->micro = deal_micro(&t->deal, t->data_rank, i);
	p->last = i + 1 == deal_count(&t->deal, t->data_rank);
	if (p->empty)
		return;
	pass_load(p, w->windows + i * t->o.micro_batch * window_size(t));
	p->counted = t->o.micro_batch;
	p->first_sample = worker_sample(t) + p->micro * t->o.micro_batch;
}

static double step_tokens(const struct trainer *t)
{
	return (double)(train_batch(&t->o) * t->model.c.context);
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
	struct step_terms terms = {.update = {.lr = r->lr},
		.tokens = step_tokens(t),
		.clip = t->o.clip,
		.loss_scale = t->loss_scale,
		.step = t->step + 1};
	struct optim_config c;
	train_optim_config(&t->o, &c);
	optim_prepare(&c, (double)step, &terms.update);
	t->d.k->put(&t->d, t->terms, &terms, sizeof(terms));
	put_pass_step(t);
}

static void run_schedule(struct work *w)
{
	struct trainer *t = w->t;
	pass_loss_begin(&t->pass);
	pipe_step(&t->pipe, trainer_own_micro(t, t->data_rank), load_micro, w);
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

void step_agree(struct trainer *t, bool save, struct step_result *r)
{
	struct device *d = &t->d;
	const size_t n_bytes = sizeof(struct exact);
	struct exact *loss = t->pass.loss, *squares = store_squares(t->store);
	struct {
		struct exact loss, squares;
		int64_t stop, save, written, meet;
	} all = {.stop = t->stop && *t->stop,
		.save = save,
		.written = trainer_saved(t),
		.meet = t->wants_to_meet && t->wants_to_meet(t->with)};
	bool several = !is_alone(t);
	if (several) {
		d->k->get(d, &all.loss, loss, n_bytes);
		d->k->get(d, &all.squares, squares, n_bytes);
	}
	comm_sum_i64(t->world, (int64_t *)&all, 2 * EXACT_WORDS + 4);
	if (several) {
		d->k->put(d, loss, &all.loss, n_bytes);
		d->k->put(d, squares, &all.squares, n_bytes);
	}
	r->stop = all.stop;
	r->save = all.save;
	r->written = all.written;
	r->meet = all.meet;
	pipe_times(&t->pipe);
	r->bubble = bubble(&t->pipe);
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

static void ask(struct work *w)
{
	struct trainer *t = w->t;
	struct device *d = &t->d;
	put_terms(t, w->r);
	run_schedule(w);
	if (w->together)
		edit_mean_gradient(t->edit);
	store_squares_ask(t->store);
	if (!is_alone(t))
		step_agree(t, w->save, w->r);
	d->k->step_end(d, t->end, t->pass.loss, store_squares(t->store), t->terms);
	d->k->get_begin(d, &t->ended, t->end, sizeof(t->ended));
	if (updates_ahead(w))
		optim_update(t->optim, &t->end->update);
}

/* Steps in which products find their algorithms, and CUDA loads its kernels. */
enum { ORDINARY_STEPS = 2 };

/* The step is noted and not done. */
static bool make_graph(struct work *w)
{
	struct trainer *t = w->t;
	t->graph = GRAPH_NONE;
	if (!device_graph_begin(&t->d))
		return false;
	ask(w);
	if (!device_graph_end(&t->d))
		return false;
	t->graph = GRAPH_MADE;
	return true;
}

/* All that differs from step to step is what is put: the terms, and the samples. */
static void refill_graph(struct work *w)
{
	struct trainer *t = w->t;
	device_graph_refill(&t->d);
	put_terms(t, w->r);
	pipe_load_again(&t->pipe, trainer_own_micro(t, t->data_rank), load_micro, w);
}

/* Who wants to see each kernel does not see those of a graph. */
static void compute(struct work *w)
{
	struct trainer *t = w->t;
	int64_t step = t->step + 1;
	bool profiled = t->profile_first <= step && step <= t->profile_last;
	bool due = t->graph == GRAPH_WANTED && t->n_ordinary >= ORDINARY_STEPS &&
		   !w->together;
	if (t->graph == GRAPH_MADE && !profiled) {
		refill_graph(w);
		device_graph_launch(&t->d);
	} else if (due && !profiled && make_graph(w)) {
		device_graph_launch(&t->d);
	} else {
		ask(w);
		t->n_ordinary++;
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
	w->found_at = 2 * stages * w->t->pass.micro +
		      (a->kind == ACTION_FORWARD ? a->stage : 2 * stages - 1 - a->stage);
	w->sample = w->t->samples + w->t->pass.first_sample;
}

/* Collective. Does the step again, looking at every result. Says what this rank found, if it
 * is what was first of all. */
static bool hunt(struct work *w, struct str *why)
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
	bool found = hunt(w, &why);
	str_printf(&r->why, "step %lld: loss %g, grad_norm %g", (long long)w->t->step + 1,
		(double)r->loss, (double)r->grad_norm);
	if (found) {
		int64_t who = comm_min_i64(world, why.len ? world->rank : world->size);
		comm_bcast_str(world, &why, (int)who);
		str_printf(&r->why, "; %s", why.s);
	} else {
		str_puts(&r->why,
			w->t->edit && w->t->step < w->t->o.edit.warmup
				? "; every part of it is finite: another worker's is "
				  "not, or the sum overflows"
				: "; every part of it is finite: the sum overflows");
	}
	str_free(&why);
}

static void hold_up(const struct trainer *t)
{
	int ranks = t->world->size;
	straggle_wait(straggle_ms(t->faults.stragglers, t->faults.n_stragglers,
		(uint64_t)t->o.seed, t->step + 1, t->o.worker * ranks + t->world->rank,
		ranks * (int)max64(1, t->o.edit.workers)));
}

/* NULL: the data is good. Else other windows in their place, allocated. */
static int32_t *garble(const struct trainer *t)
{
	int64_t b = t->o.micro_batch, n = trainer_own_micro(t, t->data_rank);
	int64_t len = window_size(t), step = t->step + 1;
	if (!garble_is_due(&t->faults.garble, t->o.worker, step))
		return NULL;
	int32_t *windows = xcalloc((size_t)(n * b * len) + 1, sizeof(*windows));
	for (int64_t i = 0; i < n * b; i++) {
		int64_t micro = deal_micro(&t->deal, t->data_rank, i / b);
		garble_window(windows + i * len, len, t->data->tokenizer.vocab.n,
			(uint64_t)t->o.seed,
			t->samples + worker_sample(t) + micro * b + i % b);
	}
	return windows;
}

/* Waits for the step's result. */
static void find_out(struct work *w)
{
	struct trainer *t = w->t;
	struct step_result *r = w->r;
	t->d.k->get_end(&t->d);
	BUG_ON(t->ended.step != t->step + 1);
	if (is_alone(t))
		step_agree(t, w->save, r);
	r->forward = t->pipe.forward;
	r->backward = t->pipe.backward;
	r->loss = t->ended.loss;
	r->grad_norm = t->ended.grad_norm;
	bool lost = !isfinite(r->loss);
	if (w->together) /* what one of them does all do */
		lost = edit_any(t->edit, lost);
	r->skipped = !lost && overflowed(t, r);
	r->bad = !r->skipped && (lost || !isfinite(r->grad_norm));
}

void trainer_step_on(
	struct trainer *t, const int32_t *windows, bool save, struct step_result *r)
{
	*r = (struct step_result){
		.lr = (float)lr_at(&t->o, t->step + 1), .loss_scale = t->loss_scale};
	struct work w = {.t = t,
		.windows = windows,
		.r = r,
		.save = save,
		.together = t->edit && t->step < t->o.edit.warmup};
	int32_t *garbled = garble(t);
	if (garbled)
		w.windows = garbled;
	hold_up(t);
	compute(&w);
	find_out(&w);
	if (r->bad)
		explain(&w, r);
	free(garbled);
	if (r->bad)
		return;
	if (!r->skipped && !updates_ahead(&w))
		optim_update(t->optim, &t->end->update);
	adjust_scale(t, r->skipped);
	t->step++;
	t->samples += t->o.batch;
	t->loss = (double)r->loss;
}

void trainer_rehearse(struct trainer *t)
{
	struct fetch *f = fetch_step(t, t->samples);
	struct work w = {.t = t, .windows = loader_end(t->loader, f)};
	put_pass_step(t);
	run_schedule(&w);
	optim_rehearse(t->optim);
	fetch_free(f);
}

void trainer_pass_over(struct trainer *t, int64_t steps)
{
	if (!steps)
		return;
	t->step += steps;
	t->samples += steps * t->o.batch;
	t->skipped += steps;
	if (t->next) { /* of a step that will not be */
		loader_end(t->loader, t->next);
		fetch_free(t->next);
		t->next = NULL;
	}
}

void trainer_step(struct trainer *t, bool save, struct step_result *r)
{
	double begin = clock_seconds();
	struct fetch *now = t->next ? t->next : fetch_step(t, t->samples);
	const int32_t *windows = loader_end(t->loader, now);
	bool more = t->step + 1 < t->o.steps;
	t->next = more ? fetch_step(t, t->samples + t->o.batch) : NULL;
	double waited = clock_seconds() - begin;
	trainer_step_on(t, windows, save, r);
	r->data = waited;
	fetch_free(now);
}
