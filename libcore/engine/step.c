/* One optimizer step. */
#include "engine/step.h"
#include "model/router.h"

#include <math.h>

#include "base/trace.h"
#include "engine/checks.h"
#include "engine/deal.h"
#include "engine/state.h"
#include "engine/step_router.h"

/* Returns the number of this worker's first sample in a step. */
static int64_t worker_sample(const struct trainer *t)
{
	return t->o.resolved.worker * layout_worker_batch(&t->o);
}

/* Starts to read the samples of a step whose micro-batches are assigned to ranks like this. */
static struct fetch *fetch_assigned(
	struct trainer *t, const struct microbatches *mb, int64_t first_sample)
{
	scoped_ptr struct sample_run *runs = layout_rank_samples(
		&t->o, mb, t->world->size, first_sample + worker_sample(t));
	return loader_start(t->data.loader, SPLIT_TRAIN, &t->data.order, runs);
}

static struct fetch *fetch_step(struct trainer *t, int64_t first_sample)
{
	const struct microbatches mb = deal_fetch(t);
	return fetch_assigned(t, &mb, first_sample);
}

struct pipe_input step_input(const struct trainer *t, const int32_t *windows)
{
	int64_t n = microbatches_own(&t->layout.microbatches, t->layout.data_rank);
	return (struct pipe_input){.n = n,
		.windows = windows,
		.n_windows = n * t->o.micro_batch,
		.microbatches = &t->layout.microbatches,
		.data_rank = t->layout.data_rank,
		.first_sample = worker_sample(t)};
}

/* The outcome of a step, from good to bad. */
enum outcome {
	STEP_GOOD,
	STEP_TOO_LARGE,	 /* a leaf is too large for the grid, so the norm is infinite */
	STEP_NOT_FINITE, /* a leaf or a sum is not finite, so the norm is not either */
	STEP_LOST,	 /* the loss is not finite */
	STEP_WRONG	 /* a check found the step wrong */
};

/* A step while it is computed. */
struct work {
	struct trainer *t;
	struct pipe_input input;
	const struct step_votes *votes;
	struct step_result *r;
	bool again;    /* a check found the step wrong, so it is computed again */
	int n_coarser; /* attempts with a coarser grid, after a leaf was too large */
	bool averages; /* averages gradients over all workers: warm-up of local SGD */
	enum outcome outcome; /* equal on all ranks; if `averages`, on all workers */
};

bool step_is_first_of_samples(const struct trainer *t)
{
	const int *coord = t->mesh.coord;
	return !coord[AXIS_TP] && !coord[AXIS_CP] && !coord[AXIS_PP];
}

/* Collective. Returns the targets with a weight in the batch; sends nothing if all have one. */
static int64_t count_targets(struct trainer *t, const struct pipe_input *in)
{
	const struct dataset *d = t->data.set;
	int64_t context = t->model.c.context;
	if (!d->counted)
		return layout_worker_batch(&t->o) * context;
	int64_t n = step_is_first_of_samples(t) ? dataset_count_targets(d, in->windows,
							  in->n_windows, context)
						: 0;
	comm_sum_i64(t->world, &n, 1);
	return n;
}

/* Collective. Sets the numbers of targets. Workers that average gradients divide by their mean
 * number of targets, then by their number, so that every target counts the same. */
static void count_step(struct work *w)
{
	struct trainer *t = w->t;
	bool all_workers = w->averages && t->data.set->counted;
	int64_t n = t->data.targets = count_targets(t, &w->input);
	if (all_workers)
		t->peers->sum(t->peers->with, &n, 1);
	w->r->counted = n;
	t->data.count = (double)n / (all_workers ? t->peers->n : 1);
}

/* Returns the divisor of the sums of losses and gradients. */
static double step_tokens(const struct trainer *t)
{
	return t->data.count;
}

static void write_pass_step(struct trainer *t)
{
	struct pass_step step = {.number = (uint32_t)(t->step + 1),
		.loss_scale = t->loss_scale / (float)step_tokens(t)};
	step_set_router_factors(t, &step);
	pass_step_begin(&t->pass, &step);
}

/* Copies everything that differs from step to step, except the samples, to the device. */
static void write_terms(struct trainer *t, const struct step_result *r)
{
	int64_t step = t->step + 1 - t->skipped; /* the optimizer's step */
	struct step_terms terms = {.update = {.lr = r->lr},
		.count = step_tokens(t),
		.max_norm = t->o.clip,
		.scale = t->loss_scale,
		.step = t->step + 1};
	struct optim_config c;
	options_set_optim(&t->o, &c);
	optimizers[c.kind]->prepare(&c, (double)step, &terms.update);
	device_put(&t->d, t->terms, &terms, sizeof(terms));
	store_set_grid(t->store, r->grid);
	write_pass_step(t);
	checks_write_step(t);
}

void step_gradients(struct trainer *t, const struct pipe_input *in)
{
	pass_loss_begin(&t->pass);
	pipe_step(&t->pipe, in);
	trace_begin("sums of gradients", -1);
	store_step_end(t->store);
	trace_end();
}

/* ---- sums over the ranks ----------------------------------------------------------- */

static bool is_alone(const struct trainer *t)
{
	return t->world->size == 1;
}

/* Returns the pipeline bubble: the fraction of the slowest rank's time in which ranks were idle. */
static double pipeline_bubble(const struct pipe *x)
{
	if (x->axis->size == 1)
		return 0;
	int64_t busy = (int64_t)((x->forward + x->backward) * 1e9);
	int64_t longest = comm_max_i64(x->axis, (int64_t)(x->seconds * 1e9));
	comm_sum_i64(x->axis, &busy, 1);
	if (!longest) /* a graph, which is not timed */
		return (double)NAN;
	return 1 - (double)busy / ((double)longest * x->axis->size);
}

void step_times(struct trainer *t, struct step_result *r)
{
	pipe_times(&t->pipe);
	r->bubble = pipeline_bubble(&t->pipe);
	r->forward = t->pipe.forward;
	r->backward = t->pipe.backward;
}

static void cast_votes(const struct step_votes *votes, int64_t vote[STEP_VOTES])
{
	memset(vote, 0, STEP_VOTES * sizeof(*vote));
	if (votes)
		votes->cast(votes->with, vote);
}

/* Returns true if devices sum loss, norm and votes; the host then waits for the report only. */
static bool sums_on_device(const struct trainer *t)
{
	return comm_has_stream(t->world);
}

static void write_votes(struct trainer *t, const struct step_votes *votes)
{
	int64_t vote[STEP_VOTES];
	cast_votes(votes, vote);
	device_put(&t->d, t->end->vote, vote, sizeof(vote));
}

/* Sums the loss, the squared gradient norm, the votes and the words of checks, by NCCL. */
static void sum_totals_on_device(struct trainer *t)
{
	struct comm_requests r = {.c = t->world};
	void *const sums[] = {
		t->pass.loss, store_norm_squares(t->store), t->end->vote, t->end->check};
	const int64_t counts[] = {EXACT_WORDS, EXACT_WORDS, STEP_VOTES, N_STEP_CHECKS};
	size_t n = checks_are_on(t) ? ARRAY_LEN(sums) : ARRAY_LEN(sums) - 1;
	for (size_t i = 0; i < n; i++)
		comm_enqueue(&r, COLL_ALLREDUCE,
			&(struct coll_args){.recv = sums[i],
				.count = counts[i],
				.type = COMM_I64,
				.op = COMM_SUM});
	comm_start(&r);
	comm_wait(&r);
	comm_requests_release(&r);
}

/* Sums the loss, the squared gradient norm, the votes and the words of checks, by MPI. */
static void sum_totals_on_host(
	struct trainer *t, const struct step_votes *votes, struct step_result *r)
{
	struct device *d = &t->d;
	const size_t n_bytes = sizeof(struct exact);
	struct exact *loss = t->pass.loss, *squares = store_norm_squares(t->store);
	struct {
		struct exact loss, squares;
		int64_t vote[STEP_VOTES];
		uint64_t check[N_STEP_CHECKS];
	} sums;
	memset(&sums, 0, sizeof(sums));
	bool has_others = !is_alone(t), checks = has_others && checks_are_on(t);
	cast_votes(votes, sums.vote);
	if (checks)
		device_get(d, sums.check, t->end->check, sizeof(sums.check));
	if (has_others) {
		device_get(d, &sums.loss, loss, n_bytes);
		device_get(d, &sums.squares, squares, n_bytes);
	}
	comm_sum_i64(t->world, (int64_t *)&sums, sizeof(sums) / sizeof(int64_t));
	if (has_others) {
		device_put(d, loss, &sums.loss, n_bytes);
		device_put(d, squares, &sums.squares, n_bytes);
	}
	if (checks)
		device_put(d, t->end->check, sums.check, sizeof(sums.check));
	memcpy(r->vote, sums.vote, sizeof(r->vote));
}

/* Collective, after the backward. All-reduces integers: the loss and the squares of the
 * gradient, in device memory, and the votes, to r->vote or with NCCL to the report. */
static void step_allreduce(
	struct trainer *t, const struct step_votes *votes, struct step_result *r)
{
	if (!sums_on_device(t)) {
		sum_totals_on_host(t, votes, r);
		return;
	}
	write_votes(t, votes);
	sum_totals_on_device(t);
}

/* ---- enqueuing a step --------------------------------------------------------------- */

/* Returns true if an update, also one that the GPU leaves out, gathers parameters (ZeRO 1 and 2) over
 * the copies that --check-replicas may need to replace a wrong shard. */
static bool gathers_replicas(const struct trainer *t)
{
	int zero = t->store->c.zero;
	return t->o.check_replicas && (zero == 1 || zero == 2);
}

/* Returns true if the update is enqueued before the host has the loss and the norm: on a GPU, which
 * skips the update itself if they are not finite. The host then enqueues the next step while the
 * GPU still updates. In a warm-up of local SGD the workers must agree first. */
static bool updates_ahead(const struct work *w)
{
	return w->t->d.discrete && !w->averages && !gathers_replicas(w->t);
}

void step_update(struct trainer *t)
{
	if (t->before_update)
		t->before_update(t->before_update_with);
	trace_begin("update", -1);
	router_update_state(&t->pass, &t->end->results.update);
	optim_update(t->optim, &t->end->results.update);
	if (t->model.c.router_bias_rate > 0 && t->store->c.zero && t->store->c.zero < 3)
		store_updated(t->store, false); /* also gathers biases */
	trace_end();
}

static void call_in_step(struct trainer *t, enum step_moment moment)
{
	if (t->in_step && !t->d.capturing)
		t->in_step(t->in_step_with, moment);
}

void step_enqueue(struct trainer *t, const struct pipe_input *in,
	const struct peers *peers, const struct step_votes *votes, struct step_result *r)
{
	struct device *d = &t->d;
	t->store->add_workers = peers ? peers->add : NULL;
	t->store->add_workers_with = peers ? peers->with : NULL;
	step_gradients(t, in);
	t->store->add_workers = NULL;
	if (peers)
		peers->mean_gradient(peers->with);
	call_in_step(t, STEP_BEFORE_TOTALS);
	trace_begin("norm", -1);
	store_norm_enqueue(t->store);
	checks_enqueue(t);
	if (!is_alone(t)) {
		step_allreduce(t, votes, r);
		step_sum_router(t);
	}
	trace_end();
	d->k->step_end(d, &t->end->results, t->pass.loss, store_norm_squares(t->store),
		t->terms, t->end->check, checks_are_on(t) ? N_STEP_CHECKS : 0);
}

/* Enqueues the step's work, up to reading its results; also the update, if that may run ahead. */
static void enqueue_step(struct work *w)
{
	struct trainer *t = w->t;
	write_terms(t, w->r);
	checks_begin_step(t);
	step_enqueue(t, &w->input, w->averages ? t->peers : NULL, w->votes, w->r);
	checks_end_step(t);
	device_get_begin(&t->d, &t->ended, t->end, sizeof(t->ended));
	step_read_router(t);
	if (updates_ahead(w))
		step_update(t);
}

/* Steps before a capture, in which GEMMs choose their algorithms and CUDA loads its kernels. */
enum { EAGER_STEPS = 2 };

/* Collective. Returns true if every rank has a capture. Else drops this rank's capture, since ranks
 * with and without a graph would not send the same messages. */
static bool agree_on_capture(struct trainer *t, bool captured)
{
	bool all_captured = comm_min_i64(t->world, captured);
	if (captured && !all_captured && t->d.capturing)
		device_graph_end(&t->d);
	if (captured && !all_captured)
		device_graph_drop(&t->d);
	return all_captured;
}

/* Captures the step as a graph without executing it. Returns false if a rank cannot. Collective. */
static bool capture_graph(struct work *w)
{
	struct trainer *t = w->t;
	struct store *s = t->store;
	int64_t read = s->read, written = s->written, sent = mesh_bytes_sent(&t->mesh);
	t->graph.state = GRAPH_NONE;
	store_forget(s); /* a graph computes all that it needs */
	if (!agree_on_capture(t, device_graph_begin(&t->d)))
		return false;
	enqueue_step(w);
	t->graph.read = s->read - read;
	t->graph.written = s->written - written;
	t->graph.sent = mesh_bytes_sent(&t->mesh) - sent;
	s->read = read;
	s->written = written;
	t->mesh.repeated -= t->graph.sent; /* it has not been launched yet */
	if (!agree_on_capture(t, device_graph_end(&t->d)))
		return false;
	t->graph.state = GRAPH_CAPTURED;
	return true;
}

/* Launches the CUDA graph of a step, and adds its traffic to the counters. */
static void launch_graph(struct trainer *t)
{
	device_graph_launch(&t->d);
	t->store->read += t->graph.read;
	t->store->written += t->graph.written;
	t->mesh.repeated += t->graph.sent;
	store_forget(t->store);
	call_in_step(t, STEP_LAUNCHED);
}

/* Computes a step, without a graph if it is profiled, traced, observed, audited, or computed again,
 * or if a bit is to be flipped. */
static void compute_step(struct work *w)
{
	struct trainer *t = w->t;
	const struct observer *observer = t->pass.observer;
	int64_t step = t->step + 1;
	bool profiled = checks_plan_step(t) || trace_on || observer || w->again ||
			flips_in_step(t->store->flips) ||
			(t->profile.first <= step && step <= t->profile.last);
	bool due = t->graph.state == GRAPH_WANTED && t->graph.n_eager >= EAGER_STEPS &&
		   !w->averages;
	if (observer && observer->begin)
		observer->begin(observer->with);
	if (!profiled && (due || t->graph.state == GRAPH_CAPTURED))
		call_in_step(t, STEP_BEFORE_GRAPH);
	if (t->graph.state == GRAPH_CAPTURED && !profiled) {
		device_graph_refill(&t->d); /* only terms and samples differ */
		write_terms(t, w->r);
		pipe_reload(&t->pipe, &w->input);
		if (sums_on_device(t))
			write_votes(t, w->votes);
		launch_graph(t);
	} else if (due && !profiled && capture_graph(w)) {
		launch_graph(t);
	} else {
		enqueue_step(w);
		t->graph.n_eager++;
	}
}

/* ---- fp16: the scale of the loss -------------------------------------------------- */

/* Returns true if gradients overflowed in fp16. The loss is multiplied by a scale that adapts to
 * gradients, as in PyTorch's GradScaler. All ranks have the same norm and choose the same scale. */
static bool overflowed(const struct work *w)
{
	const float min_scale = 0x1p-16f; /* a step that fails with it always fails */
	return w->t->o.dtype == PRECISION_FP16 && w->outcome > STEP_GOOD &&
	       w->outcome < STEP_LOST && w->t->loss_scale > min_scale;
}

/* Halves the scale after an overflow, and doubles it after enough steps without. */
static void adjust_scale(struct trainer *t, bool has_overflowed)
{
	const float max_scale = 0x1p120f;
	int64_t window = t->o.loss_scale_window;
	if (t->o.dtype != PRECISION_FP16)
		return;
	if (has_overflowed) {
		t->loss_scale /= 2;
		t->scale_good = 0;
		t->skipped++;
	} else if (++t->scale_good >= window && window) {
		t->loss_scale *= t->loss_scale < max_scale ? 2 : 1;
		t->scale_good = 0;
	}
}

/* ---- the grid of gradients ----------------------------------------------------------- */

/* Difference of the exponents of two attempts. */
enum { COARSER_BY = 25 };

/* Returns the grid of the first attempt. The computed gradient contains the loss scale, and in
 * a warm-up it is divided by the number of workers at the end. */
static int first_grid(const struct trainer *t, bool averages)
{
	float scale = t->loss_scale * (averages ? (float)t->o.edit.workers : 1);
	return GRID_EXPONENT - ilogbf(scale);
}

/* Sets the results that the state determines. A check may have mended the state after an attempt,
 * so each attempt sets them. */
static void set_scales(struct work *w)
{
	const struct trainer *t = w->t;
	w->r->lr = (float)lr_at(&t->o, t->step + 1);
	w->r->loss_scale = t->loss_scale;
	w->r->grid = first_grid(t, w->averages) - w->n_coarser * COARSER_BY;
	w->r->coarser = w->n_coarser > 0;
}

/* Returns true if a leaf was too large for the grid, so that the step must be repeated. */
static bool needs_coarser_grid(const struct work *w)
{
	return w->t->o.dtype != PRECISION_FP16 && w->outcome == STEP_TOO_LARGE &&
	       w->r->grid - COARSER_BY >= GRID_MIN_EXPONENT;
}

/* ---- a whole step ------------------------------------------------------------------ */

void step_global_loss(struct trainer *t, struct step_result *r)
{
	struct {
		struct exact loss;
		int64_t counted;
	} sum = {{{0}}, t->data.targets};
	if (!r->empty)
		sum.loss = pass_loss(&t->pass); /* this worker's loss */
	t->peers->sum(t->peers->with, (int64_t *)&sum, EXACT_WORDS + 1);
	r->counted = sum.counted;
	r->global_loss = (float)(exact_round(&sum.loss) / (double)sum.counted);
}

/* Returns the outcome of a step on this worker, from its results and the words of its checks. */
static enum outcome outcome_of(const struct step_end *end, const uint64_t *check_word)
{
	if (checks_alarmed(check_word))
		return STEP_WRONG;
	if (!isfinite(end->loss))
		return STEP_LOST;
	if (end->too_large)
		return STEP_TOO_LARGE;
	return isfinite(end->grad_norm) ? STEP_GOOD : STEP_NOT_FINITE;
}

/* Sets the outcome to the worst of all workers: each has counted only its own leaves, and if one
 * computes the step again, all must add their gradients again. */
static void agree_with_workers(struct work *w)
{
	w->outcome = (enum outcome)w->t->peers->largest(w->t->peers->with, w->outcome);
	if (w->outcome == STEP_TOO_LARGE)
		w->r->grad_norm = INFINITY;
	else if (w->outcome == STEP_NOT_FINITE)
		w->r->grad_norm = NAN;
	step_global_loss(w->t, w->r);
}

/* Waits for the step's result, and sets its outcome. */
static void collect_result(struct work *w)
{
	struct trainer *t = w->t;
	struct step_result *r = w->r;
	const struct step_end *end = &t->ended.results;
	if (t->d.discrete)
		trace_begin("waiting for the GPU", -1);
	device_get_end(&t->d);
	if (t->d.discrete)
		trace_end();
	BUG_ON(end->step != t->step + 1);
	if (is_alone(t))
		step_allreduce(t, w->votes, r);
	if (sums_on_device(t))
		memcpy(r->vote, t->ended.vote, sizeof(r->vote));
	memset(r->check_word, 0, sizeof(r->check_word));
	if (checks_are_on(t))
		memcpy(r->check_word, t->ended.check, sizeof(r->check_word));
	step_times(t, r);
	step_collect_router(t, r);
	r->loss = end->loss;
	r->grad_norm = end->grad_norm;
	r->global_loss = r->loss;
	w->outcome = outcome_of(end, r->check_word);
	if (w->averages)
		agree_with_workers(w);
	r->skipped = overflowed(w);
	r->bad = !r->skipped && w->outcome != STEP_GOOD;
}

/* Sets the results of an attempt on a batch without a target that counts: nothing is computed. */
static void clear_attempt(struct work *w)
{
	memset(w->r->check_word, 0, sizeof(w->r->check_word));
	w->outcome = STEP_GOOD;
	w->r->bad = w->r->skipped = false;
}

/* Computes a step again; if `reads`, from samples that are read and counted again. Collective. */
static void compute_again(struct work *w, bool reads)
{
	struct trainer *t = w->t;
	const int32_t *windows = w->input.windows;
	struct fetch *again =
		reads ? fetch_assigned(t, &t->layout.microbatches, t->samples) : NULL;
	BUG_ON(reads && w->averages); /* the other workers would not count again */
	if (reads) {
		w->input.windows = loader_wait(t->data.loader, again);
		count_step(w);
	}
	set_scales(w);
	if (w->r->counted) {
		compute_step(w);
		collect_result(w);
	} else {
		clear_attempt(w);
	}
	w->input.windows = windows;
	if (reads)
		fetch_free(again);
}

/* Sets the verdict to the worst of all workers, which end together. */
static void agree_on_verdict(struct work *w)
{
	struct step_result *r = w->r;
	enum checked own = r->checked;
	r->checked = (enum checked)w->t->peers->largest(w->t->peers->with, own);
	if (own != CHECKED_RIGHT)
		return;
	str_free(&r->found);
	if (r->checked == CHECKED_SPORADIC)
		r->checked = CHECKED_RIGHT; /* the other worker reports it */
	else if (r->checked > CHECKED_SPORADIC)
		str_printf(&r->found, "step %lld: a check failed in another worker",
			(long long)w->t->step + 1);
}

/* Computes a step, and once more if a check finds it wrong: of one worker, or if `averages`, of
 * any. */
static void compute_checked_step(struct work *w)
{
	struct step_result *r = w->r;
	uint64_t word[N_STEP_CHECKS];
	set_scales(w);
	compute_step(w);
	collect_result(w);
	if (w->outcome != STEP_WRONG)
		return;
	memcpy(word, r->check_word, sizeof(word));
	checks_begin_again(w->t, word);
	w->again = true;
	compute_again(w, checks_read_again(w->t, word));
	w->again = false;
	checks_end_again(w->t, word, r);
	if (w->averages)
		agree_on_verdict(w);
	r->bad |= r->checked > CHECKED_SPORADIC;
}

/* Handles a batch without a target that counts, as --empty-batch specifies. The ranks have
 * exchanged nothing, but must still sum their votes. */
static void skip_empty_batch(struct work *w)
{
	struct trainer *t = w->t;
	struct step_result *r = w->r;
	r->empty = true;
	r->loss = r->global_loss = r->grad_norm = NAN;
	cast_votes(w->votes, r->vote);
	comm_sum_i64(t->world, r->vote, STEP_VOTES);
	if (t->o.empty_batch == EMPTY_STOP) {
		r->bad = true;
		str_printf(&r->why,
			"step %lld: no token of the batch counts in the loss "
			"(--empty-batch skip leaves such steps out)",
			(long long)t->step + 1);
		return;
	}
	t->step++;
	t->samples += t->o.batch;
	t->skipped++;
}

void step_run_on(struct trainer *t, const int32_t *windows,
	const struct step_votes *votes, struct step_result *r)
{
	*r = (struct step_result){.slowest = (double)NAN};
	struct work w = {.t = t,
		.input = step_input(t, windows),
		.votes = votes,
		.r = r,
		.averages = t->peers && t->step < t->o.edit.warmup};
	set_scales(&w);
	count_step(&w);
	if (r->counted)
		compute_checked_step(&w);
	if (!r->counted) { /* a wrong token may have counted in the first attempt */
		skip_empty_batch(&w);
		return;
	}
	while (r->checked <= CHECKED_SPORADIC && needs_coarser_grid(&w)) {
		w.n_coarser++;
		compute_checked_step(&w);
	}
	if (r->bad && r->checked <= CHECKED_SPORADIC)
		nonfinite_explain(t, &w.input, r);
	if (r->bad)
		return;
	if (!r->skipped && !updates_ahead(&w))
		step_update(t);
	deal_end_step(t, r);
	adjust_scale(t, r->skipped);
	t->step++;
	t->samples += t->o.batch;
	t->loss = (double)r->global_loss;
	checks_after_step(t);
}

void step_autotune(struct trainer *t)
{
	struct fetch *f = fetch_step(t, t->samples);
	const struct pipe_input in = step_input(t, loader_wait(t->data.loader, f));
	t->data.count = (double)max64(1, count_targets(t, &in));
	write_pass_step(t);
	step_gradients(t, &in);
	optim_autotune(t->optim);
	fetch_free(f);
}

void step_drop_next(struct trainer *t)
{
	if (!t->data.next)
		return;
	loader_wait(t->data.loader, t->data.next);
	fetch_free(t->data.next);
	t->data.next = NULL;
}

void step_skip(struct trainer *t, int64_t steps)
{
	if (!steps)
		return;
	t->step += steps;
	t->samples += steps * t->o.batch;
	t->skipped += steps;
	step_drop_next(t);
}

void step_load(struct trainer *t, struct step_data *d)
{
	double begin = clock_seconds();
	trace_begin("data", -1);
	d->fetch = t->data.next ? t->data.next : fetch_step(t, t->samples);
	deal_begin_step(t);
	d->windows = loader_wait(t->data.loader, d->fetch);
	bool more = t->step + 1 < t->o.steps;
	t->data.next = more ? fetch_step(t, t->samples + t->o.batch) : NULL;
	trace_end();
	d->waited = clock_seconds() - begin;
}

void step_data_free(struct step_data *d)
{
	fetch_free(d->fetch);
}

void step_run(struct trainer *t, const struct step_votes *votes, struct step_result *r)
{
	struct step_data d;
	step_load(t, &d);
	step_run_on(t, d.windows, votes, r);
	r->data = d.waited;
	step_data_free(&d);
}
