/* Local SGD in the training loop: meetings, synchronizations, and their columns of the log. */
#include "train/train_internal.h"

#include <math.h>

static bool has_other_workers(const struct run *r)
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

/* Exchanges requests before collectives of all workers: if one requests a stop or a save, all
 * do it. `quits`: this worker has failed. Returns false if any quits. Collective over all. */
static bool meet_workers(struct run *r, bool quits)
{
	struct local_sgd *x = &r->local;
	const struct trainer *t = &r->t;
	struct {
		int64_t leaving, stop, save, ends, steps;
	} all = {quits, x->wish_stop, save_is_due(r), t->step >= t->o.steps,
		run_is_first(r) ? t->step - x->synced : 0};
	if (quits)
		comm_notify_send(&x->notify, x->meetings + 1);
	comm_sum_i64(r->all, (int64_t *)&all, 5);
	x->meetings++;
	x->enough = all.stop || all.ends || all.steps >= t->o.edit.min_total;
	set_next_sync(r);
	if (!has_other_workers(r))
		return true;
	x->stop = all.stop;
	x->save = all.save;
	r->saver.all_have = comm_min_i64(r->all, r->saver.have);
	r->deserted = all.leaving;
	return !r->deserted;
}

/* Returns true if --edit-replay determines the next synchronization. */
static bool is_sync_replayed(const struct run *r)
{
	return edit_syncs(r->local.edit) < r->local.n_replay;
}

/* Votes for a meeting; only the first rank of each worker reads the clock and notifications. */
bool local_sgd_vote(struct run *r)
{
	struct local_sgd *x = &r->local;
	return x->edit && r->t.o.edit.async && run_is_first(r) && !is_sync_replayed(r) &&
	       (clock_seconds() >= x->due_at ||
		       comm_notify_received(&x->notify, x->meetings + 1));
}

/* Returns true if an asynchronous worker must meet the others: by replay, at its end or by vote. */
static bool is_time_to_meet(struct run *r, const struct step_result *s)
{
	const struct trainer *t = &r->t;
	struct local_sgd *x = &r->local;
	if (is_sync_replayed(r))
		return t->step - x->synced ==
		       x->replay[edit_syncs(x->edit) - x->first_replay];
	if (x->wish_stop || t->step >= t->o.steps) {
		comm_notify_send(&x->notify, x->meetings + 1);
		return true;
	}
	return s->vote[VOTE_MEET] > 0;
}

/* ---- synchronization ------------------------------------------------------------- */

/* Results of find_due_sync() other than the number of a fragment. */
enum { NOTHING = -1, EVERYTHING = -2 };

static int64_t local_steps(const struct trainer *t)
{
	return t->step - t->o.edit.warmup;
}

/* Returns the fragment to synchronize after this step, EVERYTHING or NOTHING. */
static int find_due_sync(struct run *r, const struct step_result *s)
{
	const struct trainer *t = &r->t;
	if (local_steps(t) <= 0)
		return NOTHING;
	if (t->o.edit.async)
		return is_time_to_meet(r, s) ? EVERYTHING : NOTHING;
	if (t->step == t->o.steps)
		return EVERYTHING;
	int f = edit_due(r->local.edit, local_steps(t));
	return f == 0 && !edit_streams(&t->o.edit.config) ? EVERYTHING : f;
}

/* Sums losses and steps of all workers since the last synchronization. *max_steps: maximum. */
static void sum_steps(struct run *r, int64_t *max_steps)
{
	struct trainer *t = &r->t;
	struct local_sgd *x = &r->local;
	struct {
		double loss;
		int64_t steps;
	} own = {x->loss_sum, t->step - x->synced}, *all;
	int64_t steps = 0;
	double loss = 0;
	*max_steps = 0;
	all = xcalloc((size_t)x->sync->size, sizeof(*all));
	comm_allgather(x->control, &own, all, sizeof(own));
	for (int i = 0; i < x->sync->size; i++) {
		loss += all[i].loss;
		steps += all[i].steps;
		*max_steps = max64(*max_steps, all[i].steps);
	}
	free(all);
	x->loss = loss / (double)steps;
	t->n_unseen += (*max_steps * x->sync->size - steps) * layout_worker_batch(&t->o);
}

/* Writes an event to the journal, and with --verbose to standard error too. Frees the text. */
static void report_detail(struct run *r, struct str *text)
{
	report_event(r, "%s", text->s);
	if (r->t.o.verbose)
		info("step %lld: %s", (long long)r->t.step, text->s);
	str_free(text);
}

/* Reports the units that a synchronization excluded or clipped, if any, and frees their names. With
 * a delay, others may have begun meanwhile, so the event names the fragment. */
static void report_names(struct run *r, int what, const char *did, struct str *names)
{
	struct str text = {0};
	if (names->len && what >= 0 && edit_streams(&r->t.o.edit.config))
		str_printf(&text, "fragment %d: %s %s", what, did, names->s);
	else if (names->len)
		str_printf(&text, "synchronization %lld: %s %s",
			(long long)edit_syncs(r->local.edit), did, names->s);
	if (text.len)
		report_detail(r, &text);
	str_free(names);
}

/* Reports units whose outliers were included, because the norms of all workers have risen. */
static void report_readmitted(struct run *r, int units)
{
	struct str text = {0};
	str_printf(&text,
		"%d unit%s: all workers were outliers more than %d times in a row, and were "
		"included",
		units, plural(units), EDIT_LOCKOUTS);
	report_detail(r, &text);
	if (r->local.has_warned || r->all->rank)
		return;
	r->local.has_warned = true;
	warn("step %lld: --edit-skip-anomaly excluded all workers in %d synchronizations in a row: "
	     "their norms rose together; they are included from now on; a longer "
	     "--edit-ewma-warmup (now %lld) or a lower --lr prevents this",
		(long long)r->t.step, EDIT_LOCKOUTS,
		(long long)r->t.o.edit.config.detect.warmup);
}

/* Reports workers that a synchronization excluded, or included again. */
static void report_outliers(struct run *r, int fragment)
{
	const struct local_sgd *x = &r->local;
	const int n_left_out = x->result.all_left_out;
	struct str names = {0}, text = {0};
	if (n_left_out) {
		str_printf(&text,
			"%d unit%s: all workers were left out, and nothing changed",
			n_left_out, plural(n_left_out));
		report_detail(r, &text);
	}
	if (x->result.readmitted)
		report_readmitted(r, x->result.readmitted);
	edit_describe_excluded(x->edit, fragment, &names);
	report_names(r, fragment, "left out", &names);
}

/* Reports that the result of a synchronization has been applied. */
static void report_end(struct run *r, int fragment)
{
	struct str names = {0};
	r->local.ended = true;
	edit_describe_clipped(r->local.edit, fragment, &names);
	report_names(r, fragment, "clipped", &names);
}

/* Starts the exchange; the all-gather of the results may overlap the next forward. */
static void start_exchange(struct run *r, int fragment, int64_t steps)
{
	const struct trainer *t = &r->t;
	struct local_sgd *x = &r->local;
	x->begun = true;
	if (fragment != EVERYTHING) {
		struct edit_result before =
			x->result; /* result of a fragment that has just ended */
		edit_begin(x->edit, fragment, steps, &x->result);
		x->result.reduced = before.reduced;
		x->result.clip = before.clip;
		if (t->o.edit.config.delay)
			return;
		edit_end(x->edit, fragment, &x->result);
		report_end(r, fragment);
	} else if (t->step < t->o.steps && !t->o.graph &&
		   edit_completes_by_unit(x->edit)) {
		edit_begin(x->edit, 0, steps, &x->result);
		x->in_flight = true;
	} else {
		edit_sync(x->edit, steps, &x->result);
		report_end(r, fragment);
	}
}

/* Synchronizes a fragment or EVERYTHING, after all workers have met. Collective over all. */
static void synchronize(struct run *r, int fragment)
{
	struct trainer *t = &r->t;
	struct local_sgd *x = &r->local;
	double waited = comm_waited();
	int64_t max_steps;
	x->steps = t->step - x->synced;
	x->synced_before = x->synced;
	sum_steps(r, &max_steps);
	start_exchange(r, fragment, t->o.edit.compat ? t->step - t->skipped : x->steps);
	x->waited = comm_waited() - waited;
	step_skip(t, max_steps - x->steps);
	x->synced = t->step;
	x->loss_sum = 0;
	set_next_sync(r);
	report_outliers(r, fragment);
}

/* Completes a unit before its first use since a synchronization began. */
static void complete_before_use(void *context, int unit)
{
	struct run *r = context;
	double waited = comm_waited();
	if (!r->local.in_flight)
		return;
	edit_complete_unit(r->local.edit, unit);
	r->local.waited += comm_waited() - waited;
}

/* Completes the units with tied parameters, before a step that completes other units. */
static void complete_tied_parameters(struct run *r)
{
	double waited = comm_waited();
	edit_complete_tied(r->local.edit);
	r->local.waited += comm_waited() - waited;
}

/* Ends the exchange of a fragment that has been in flight for --edit-sync-delay steps. */
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

/* Sets the columns about synchronization in a row, and starts to count bytes for the next row. */
static void set_sync_columns(struct run *r, struct row *row)
{
	struct local_sgd *x = &r->local;
	bool has_anchor = !isnan(x->result.norm);
	if (x->begun) {
		row_set(row, COL_SYNCS, (double)edit_syncs(x->edit));
		row_set(row, COL_LOCAL_STEPS, (double)x->steps);
		if (!isnan(x->loss))
			row_set(row, COL_LOCAL_LOSS, x->loss);
		row_set(row, COL_WORKER_WEIGHT, x->result.weight);
		row_set(row, COL_SYNC_WAIT, x->waited + x->met);
	}
	if (x->begun && has_anchor) {
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
	set_sync_columns(r, &x->row);
	report_write_row(r, &x->row);
}

/* ---- around a step --------------------------------------------------------------- */

bool local_sgd_begin(struct run *r)
{
	struct local_sgd *x = &r->local;
	if (x->in_flight)
		complete_tied_parameters(r);
	if (!x->sync || r->t.step >= r->t.o.edit.warmup)
		return true;
	if (meet_workers(r, false))
		r->now.stop = x->stop;
	return !r->deserted && !r->now.stop;
}

/* Begins the first interval. After the warm-up, the parameters are equal, and become the anchor. */
static void begin_local_steps(struct run *r)
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
	begin_local_steps(r);
	const struct train_opts *o = &r->t.o;
	if (o->steps && o->edit.warmup >= o->steps && r->all->rank == 0)
		warn("--edit-warmup-steps %lld: the run has only %lld step%s, so its workers never "
		     "take local steps; it is plain data parallelism",
			(long long)o->edit.warmup, (long long)o->steps, plural(o->steps));
	store_before_use(r->t.store, complete_before_use, r);
}

/* Returns true if --ckpt-syncs requests a checkpoint after this synchronization. When a worker is
 * lost, a supervisor restarts the run from it, and at most an interval is lost. */
static bool is_sync_to_save(const struct run *r)
{
	const struct trainer *t = &r->t;
	int64_t n = t->o.ckpt_syncs;
	return n && (t->step == t->o.edit.warmup || edit_syncs(r->local.edit) % n == 0);
}

/* Adds a step to the sums since the last synchronization, and delays its stop or save. */
static void record_step(struct run *r, const struct step_result *s)
{
	struct local_sgd *x = &r->local;
	const struct trainer *t = &r->t;
	x->begun = x->ended = false;
	/* Workers stop and save only together. */
	if (has_other_workers(r)) {
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
		begin_local_steps(r);
		r->now.save |= is_sync_to_save(r);
	}
}

/* Returns true if all workers have the same parameters. Between synchronizations they differ. If
 * fragments are synchronized at different times, only the last step makes all equal; the warm-up,
 * which keeps them equal, counts as different, too. */
static bool have_equal_parameters(const struct run *r)
{
	const struct trainer *t = &r->t;
	return !has_other_workers(r) ||
	       (r->local.synced == t->step &&
		       (!edit_streams(&t->o.edit.config) || t->step == t->o.steps));
}

/* Synchronizes and sets r->now, unless asynchronous workers have done too few steps. Returns
 * false if a worker has quit. */
static bool meet_and_synchronize(struct run *r, int fragment)
{
	struct local_sgd *x = &r->local;
	double waited = comm_waited();
	if (!meet_workers(r, false))
		return false;
	x->met = comm_waited() - waited;
	if (r->t.o.edit.async && !is_sync_replayed(r) && !x->enough)
		return true;
	synchronize(r, fragment);
	if (has_other_workers(r)) {
		r->now.stop = x->stop;
		r->now.save = x->save;
	}
	r->now.save |= is_sync_to_save(r);
	return true;
}

/* Computes the loss over all workers in a logged step, for --edit-global-loss. They meet for it, so
 * that none waits for a worker that has failed. Returns false if a worker has quit. */
static bool compute_global_loss(struct run *r, struct step_result *s)
{
	if (!r->t.o.edit.global_loss || in_warmup(&r->t) || !report_is_due(r))
		return true;
	if (!meet_workers(r, false))
		return false;
	step_global_loss(&r->t, s);
	return true;
}

bool local_sgd_after_step(struct run *r, struct step_result *s)
{
	if (!r->local.sync)
		return true;
	local_sgd_complete(r);
	record_step(r, s);
	end_delayed_fragment(r);
	int fragment = find_due_sync(r, s);
	if (fragment != NOTHING && !meet_and_synchronize(r, fragment))
		return false;
	r->now.agreed = have_equal_parameters(r);
	r->now.log = r->local.begun || r->local.ended;
	return compute_global_loss(r, s);
}

bool local_sgd_is_due(const struct run *r, int64_t n)
{
	const struct trainer *t = &r->t;
	if (!t->o.edit.async || in_warmup(t))
		return n > 0 && t->step % n == 0;
	return n > 0 && r->local.begun && t->step / n > r->local.synced_before / n;
}

void local_sgd_sum_eval(struct run *r, struct eval_sum *sum)
{
	if (has_other_workers(r) && r->t.o.data_per_rank && r->now.agreed)
		comm_sum_i64(
			r->local.control, (int64_t *)sum, sizeof(*sum) / sizeof(int64_t));
}

bool local_sgd_fill_row(struct run *r, struct row *row)
{
	struct local_sgd *x = &r->local;
	if (x->in_flight) {
		x->holds_row = true;
		x->row = *row;
	} else if (x->begun || x->ended) {
		set_sync_columns(r, row);
	}
	return !x->in_flight;
}

void local_sgd_end(struct run *r, bool failed)
{
	local_sgd_complete(r);
	if (failed && r->local.sync && !r->deserted && !r->now.stop &&
		r->t.step < r->t.o.steps)
		meet_workers(r, true);
}
