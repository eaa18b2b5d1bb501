/* Local SGD in the training loop: meetings, synchronizations, and their columns of the log. */
#include "train/train_internal.h"

#include <math.h>

static bool has_others(const struct run *r)
{
	return r->local.sync && r->local.sync->size > 1;
}

static bool in_warmup(const struct trainer *t)
{
	return t->step <= t->o.edit.warmup;
}

static void set_next_sync(struct run *r)
{
	r->local.due_at = clock_seconds() + r->t.o.edit.sync_time;
}

/* ---- meetings -------------------------------------------------------------------- */

/* Collective. All workers meet before every collective operation. A worker that fails reports it
 * once, here. If one requests a stop or a save, all do it. False: a worker quits. */
static bool meet(struct run *r, bool quits)
{
	struct local_sgd *x = &r->local;
	const struct trainer *t = &r->t;
	struct {
		int64_t leaving, stop, save, ends, steps;
	} all = {quits, x->wish_stop, save_due(r), t->step >= t->o.steps,
		run_is_first(r) ? t->step - x->synced : 0};
	if (quits)
		comm_notify_send(&x->notify, x->meetings + 1);
	comm_sum_i64(r->all, (int64_t *)&all, 5);
	x->meetings++;
	x->enough = all.stop || all.ends || all.steps >= t->o.edit.min_total;
	set_next_sync(r);
	if (!has_others(r))
		return true;
	x->stop = all.stop;
	x->save = all.save;
	r->saver.all_have = comm_min_i64(r->all, r->saver.have);
	r->deserted = all.leaving;
	return !r->deserted;
}

/* Is the next synchronization replayed? */
static bool replays(const struct run *r)
{
	return edit_syncs(r->local.edit) < r->local.n_replay;
}

/* Only the first rank of each worker looks at the clock and receives notifications. */
bool local_sgd_vote(struct run *r)
{
	struct local_sgd *x = &r->local;
	return x->edit && r->t.o.edit.async && run_is_first(r) && !replays(r) &&
	       (clock_seconds() >= x->due_at ||
		       comm_notify_received(&x->notify, x->meetings + 1));
}

/* Asynchronous: is it time to synchronize? If a worker stops or has finished, it is. */
static bool is_time(struct run *r, const struct step_result *s)
{
	const struct trainer *t = &r->t;
	struct local_sgd *x = &r->local;
	if (replays(r))
		return t->step - x->synced ==
		       x->replay[edit_syncs(x->edit) - x->first_replay];
	if (x->wish_stop || t->step >= t->o.steps) {
		comm_notify_send(&x->notify, x->meetings + 1);
		return true;
	}
	return s->vote[VOTE_MEET] > 0;
}

/* ---- synchronization ------------------------------------------------------------- */

/* Results of find_due() other than the number of a fragment. */
enum { NOTHING = -1, EVERYTHING = -2 };

static int64_t local_steps(const struct trainer *t)
{
	return t->step - t->o.edit.warmup;
}

static int find_due(struct run *r, const struct step_result *s)
{
	const struct trainer *t = &r->t;
	if (local_steps(t) <= 0)
		return NOTHING;
	if (t->o.edit.async)
		return is_time(r, s) ? EVERYTHING : NOTHING;
	if (t->step == t->o.steps)
		return EVERYTHING;
	int f = edit_due(r->local.edit, local_steps(t));
	return f == 0 && !edit_streams(&t->o.edit.config) ? EVERYTHING : f;
}

/* Sums losses and steps of all workers since the last synchronization; *max_steps: maximum. */
static void sum_steps(struct run *r, int64_t *max_steps)
{
	struct trainer *t = &r->t;
	struct local_sgd *x = &r->local;
	struct {
		double loss;
		int64_t steps;
	} mine = {x->loss_sum, t->step - x->synced}, *all;
	int64_t steps = 0;
	double loss = 0;
	*max_steps = 0;
	all = xcalloc((size_t)x->sync->size, sizeof(*all));
	comm_allgather(x->control, &mine, all, sizeof(mine));
	for (int i = 0; i < x->sync->size; i++) {
		loss += all[i].loss;
		steps += all[i].steps;
		*max_steps = max64(*max_steps, all[i].steps);
	}
	free(all);
	x->loss = loss / (double)steps;
	t->n_unseen += (*max_steps * x->sync->size - steps) * layout_worker_batch(&t->o);
}

/* Writes an event to the journal, and with --verbose to standard error too. */
static void report_debug(struct run *r, struct str *text)
{
	report_event(r, "%s", text->s);
	if (r->t.o.verbose)
		info("step %lld: %s", (long long)r->t.step, text->s);
	str_free(text);
}

/* Reports names, if there are any. With a delay, other synchronizations may have begun
 * meanwhile, so the event names the fragment. */
static void report_names(struct run *r, int what, const char *did, struct str *names)
{
	struct str text = {0};
	if (names->len && what >= 0 && edit_streams(&r->t.o.edit.config))
		str_printf(&text, "fragment %d: %s %s", what, did, names->s);
	else if (names->len)
		str_printf(&text, "synchronization %lld: %s %s",
			(long long)edit_syncs(r->local.edit), did, names->s);
	if (text.len)
		report_debug(r, &text);
	str_free(names);
}

/* Reports outliers that were included because the norms of all workers have risen. */
static void report_readmitted(struct run *r, int units)
{
	struct str text = {0};
	str_printf(&text,
		"%d unit%s: all workers were outliers more than %d times in a row, and were "
		"included",
		units, plural(units), EDIT_LOCKOUTS);
	report_debug(r, &text);
	if (r->local.has_warned || r->all->rank)
		return;
	r->local.has_warned = true;
	warn("step %lld: edit-skip-anomaly left out all workers in %d synchronizations in a row: "
	     "their norms rose together; they are included from now on; a longer "
	     "--edit-ewma-warmup (it is %lld) or a lower --lr prevents this",
		(long long)r->t.step, EDIT_LOCKOUTS,
		(long long)r->t.o.edit.config.detect.warmup);
}

static void report_outliers(struct run *r, int what)
{
	const struct local_sgd *x = &r->local;
	const int out = x->result.all_left_out;
	struct str names = {0}, text = {0};
	if (out) {
		str_printf(&text,
			"%d unit%s: all workers were left out, and nothing changed", out,
			plural(out));
		report_debug(r, &text);
	}
	if (x->result.readmitted)
		report_readmitted(r, x->result.readmitted);
	edit_describe_excluded(x->edit, what, &names);
	report_names(r, what, "left out", &names);
}

/* Reports that the result of a synchronization has been applied. */
static void report_end(struct run *r, int what)
{
	struct str names = {0};
	r->local.ended = true;
	edit_describe_clipped(r->local.edit, what, &names);
	report_names(r, what, "clipped", &names);
}

/* Starts the exchange; the all-gather of the results may overlap the next forward. */
static void start_exchange(struct run *r, int what, int64_t steps)
{
	const struct trainer *t = &r->t;
	struct local_sgd *x = &r->local;
	x->begun = true;
	if (what != EVERYTHING) {
		struct edit_result before =
			x->result; /* of a fragment that has just ended */
		edit_begin(x->edit, what, steps, &x->result);
		x->result.reduced = before.reduced;
		x->result.clip = before.clip;
		if (t->o.edit.config.delay)
			return;
		edit_end(x->edit, what, &x->result);
		report_end(r, what);
	} else if (t->step < t->o.steps && !t->o.graph &&
		   edit_completes_by_unit(x->edit)) {
		edit_begin(x->edit, 0, steps, &x->result);
		x->in_flight = true;
	} else {
		edit_sync(x->edit, steps, &x->result);
		report_end(r, what);
	}
}

/* Collective. Synchronizes a fragment or everything, after all workers have met. */
static void synchronize(struct run *r, int what)
{
	struct trainer *t = &r->t;
	struct local_sgd *x = &r->local;
	double waited = comm_waited();
	int64_t max_steps;
	x->steps = t->step - x->synced;
	x->synced_before = x->synced;
	sum_steps(r, &max_steps);
	start_exchange(r, what, t->o.edit.compat ? t->step - t->skipped : x->steps);
	x->waited = comm_waited() - waited;
	step_skip(t, max_steps - x->steps);
	x->synced = t->step;
	x->loss_sum = 0;
	set_next_sync(r);
	report_outliers(r, what);
}

/* Completes a unit before its first use since a synchronization began. */
static void complete_before_use(void *with, int unit)
{
	struct run *r = with;
	double waited = comm_waited();
	if (!r->local.in_flight)
		return;
	edit_complete_unit(r->local.edit, unit);
	r->local.waited += comm_waited() - waited;
}

/* Called before a step in which units get their new parameters. */
static void begin_in_flight(struct run *r)
{
	double waited = comm_waited();
	edit_complete_tied(r->local.edit);
	r->local.waited += comm_waited() - waited;
}

/* Streaming: ends a fragment that has been in flight for --edit-sync-delay steps. */
static void end_delayed_fragment(struct run *r)
{
	const struct trainer *t = &r->t;
	struct local_sgd *x = &r->local;
	if (!t->o.edit.config.delay || t->step == t->o.steps)
		return;
	int f = edit_due(x->edit, local_steps(t) - t->o.edit.config.delay);
	if (f < 0 || !edit_in_flight(x->edit, f))
		return;
	edit_end(x->edit, f, &x->result);
	report_end(r, f);
}

static void add_columns(struct run *r, struct row *row)
{
	struct local_sgd *x = &r->local;
	bool anchor = !isnan(x->result.norm);
	if (x->begun) {
		row_set(row, COL_SYNCS, (double)edit_syncs(x->edit));
		row_set(row, COL_LOCAL_STEPS, (double)x->steps);
		if (!isnan(x->loss))
			row_set(row, COL_LOCAL_LOSS, x->loss);
		row_set(row, COL_WORKER_WEIGHT, x->result.weight);
		row_set(row, COL_SYNC_WAIT, x->waited + x->met);
	}
	if (x->begun && anchor) {
		row_set(row, COL_PSEUDO_GRAD_NORM, x->result.norm);
		row_set(row, COL_ANOMALIES, (double)x->result.anomalies);
	}
	if (x->ended && !isnan(x->result.reduced)) {
		row_set(row, COL_OUTER_GRAD_NORM, x->result.reduced);
		row_set(row, COL_OUTER_CLIP, x->result.clip);
	}
	row_set(row, COL_SYNC_SENT, (double)(x->sync->sent - x->sent_before));
	x->sent_before = x->sync->sent;
}

void local_sgd_complete(struct run *r)
{
	struct local_sgd *x = &r->local;
	double waited = comm_waited();
	if (!x->in_flight)
		return;
	edit_end(x->edit, 0, &x->result);
	x->in_flight = false;
	report_end(r, EVERYTHING);
	x->waited += comm_waited() - waited;
	if (!x->holds_row)
		return;
	x->holds_row = false;
	add_columns(r, &x->row);
	report_row(r, &x->row);
}

/* ---- around a step --------------------------------------------------------------- */

bool local_sgd_begin(struct run *r)
{
	struct local_sgd *x = &r->local;
	if (x->in_flight)
		begin_in_flight(r);
	if (!x->sync || r->t.step >= r->t.o.edit.warmup)
		return true;
	if (meet(r, false))
		r->now.stop = x->stop;
	return !r->deserted && !r->now.stop;
}

/* At the end of the warm-up, the parameters of all workers are equal and become the anchor. */
static void begin_intervals(struct run *r)
{
	if (r->t.step == r->t.o.edit.warmup)
		edit_anchor(r->local.edit);
	r->local.sent_before = r->local.sync->sent;
	set_next_sync(r);
}

void local_sgd_start(struct run *r)
{
	if (!r->local.edit)
		return;
	begin_intervals(r);
	const struct train_opts *o = &r->t.o;
	if (o->steps && o->edit.warmup >= o->steps && r->all->rank == 0)
		warn("edit-warmup-steps %lld: the run has only %lld step%s, so its workers never "
		     "take local steps; it is plain data parallelism",
			(long long)o->edit.warmup, (long long)o->steps, plural(o->steps));
	store_before_use(r->t.store, complete_before_use, r);
}

/* --ckpt-syncs: is a checkpoint due after this synchronization? A supervisor restarts the run
 * from it when a worker was lost, so that at most an interval is lost. */
static bool is_sync_to_save(const struct run *r)
{
	const struct trainer *t = &r->t;
	int64_t n = t->o.ckpt_syncs;
	return n && (t->step == t->o.edit.warmup || edit_syncs(r->local.edit) % n == 0);
}

static void note_step(struct run *r, const struct step_result *s)
{
	struct local_sgd *x = &r->local;
	const struct trainer *t = &r->t;
	x->begun = x->ended = false;
	/* Workers stop and save only together. */
	if (has_others(r)) {
		x->wish_stop |= r->now.stop;
		r->now.stop = false;
		r->now.save = in_warmup(t) && x->save;
	}
	x->loss_sum += s->empty ? r->t.loss : (double)s->loss;
	if (in_warmup(t)) {
		x->synced = t->step;
		x->loss_sum = 0;
	}
	if (t->step == t->o.edit.warmup) {
		begin_intervals(r);
		r->now.save |= is_sync_to_save(r);
	}
}

/* Do all workers have the same parameters? Between synchronizations they differ. */
static bool is_agreed(const struct run *r)
{
	const struct trainer *t = &r->t;
	return !has_others(r) ||
	       (r->local.synced == t->step &&
		       (!edit_streams(&t->o.edit.config) || t->step == t->o.steps));
}

static bool meet_and_synchronize(struct run *r, int what)
{
	struct local_sgd *x = &r->local;
	double waited = comm_waited();
	if (!meet(r, false))
		return false;
	x->met = comm_waited() - waited;
	if (r->t.o.edit.async && !replays(r) && !x->enough)
		return true;
	synchronize(r, what);
	if (has_others(r)) {
		r->now.stop = x->stop;
		r->now.save = x->save;
	}
	r->now.save |= is_sync_to_save(r);
	return true;
}

/* --edit-global-loss: computes the loss over all workers in a logged step. They meet for it, so
 * that none waits for a worker that has failed. */
static bool add_up_loss(struct run *r, struct step_result *s)
{
	if (!r->t.o.edit.global_loss || in_warmup(&r->t) || !report_due(r))
		return true;
	if (!meet(r, false))
		return false;
	step_global_loss(&r->t, s);
	return true;
}

bool local_sgd_after_step(struct run *r, struct step_result *s)
{
	if (!r->local.sync)
		return true;
	local_sgd_complete(r);
	note_step(r, s);
	end_delayed_fragment(r);
	int what = find_due(r, s);
	if (what != NOTHING && !meet_and_synchronize(r, what))
		return false;
	r->now.agreed = is_agreed(r);
	r->now.log = r->local.begun || r->local.ended;
	return add_up_loss(r, s);
}

bool local_sgd_due(const struct run *r, int64_t n)
{
	const struct trainer *t = &r->t;
	if (!t->o.edit.async || in_warmup(t))
		return n > 0 && t->step % n == 0;
	return n > 0 && r->local.begun && t->step / n > r->local.synced_before / n;
}

void local_sgd_eval(struct run *r, struct eval_sum *sum)
{
	if (has_others(r) && r->t.o.data_per_rank && r->now.agreed)
		comm_sum_i64(
			r->local.control, (int64_t *)sum, sizeof(*sum) / sizeof(int64_t));
}

bool local_sgd_row(struct run *r, struct row *row)
{
	struct local_sgd *x = &r->local;
	if (x->in_flight) {
		x->holds_row = true;
		x->row = *row;
	} else if (x->begun || x->ended) {
		add_columns(r, row);
	}
	return !x->in_flight;
}

void local_sgd_end(struct run *r, bool failed)
{
	local_sgd_complete(r);
	if (failed && r->local.sync && !r->deserted && !r->now.stop &&
		r->t.step < r->t.o.steps)
		meet(r, true);
}
