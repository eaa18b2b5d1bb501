/* The training loop: step, synchronize, log, evaluate, save, until the last step or a signal.
 * Conditions that may differ between ranks (signals, the clock) are votes in the step. */
#include "base/launch.h"
#include "base/utf8.h"
#include "train/train_internal.h"
#include "model/generate.h"

#include <math.h>
#include <signal.h>
#include <unistd.h>

/* ---- signals --------------------------------------------------------------------- */

static volatile sig_atomic_t stop_signal;

/* Requests a stop after the step. A second Ctrl-C cleans up and exits at once. */
static void on_stop(int sig)
{
	if (sig == SIGINT && stop_signal) { /* Ctrl-C twice */
		cleanup_run();
		_exit(128 + SIGINT);
	}
	stop_signal = sig;
}

/* Installs a handler that requests a stop, for SIGTERM, SIGUSR1, SIGINT and SIGHUP (not
 * under nohup). */
static void catch_signals(void)
{
	static const int stops[] = {SIGTERM, SIGUSR1, SIGINT, SIGHUP};
	struct sigaction a = {.sa_handler = on_stop, .sa_flags = SA_RESTART}, hangup;
	sigaction(SIGHUP, NULL, &hangup); /* ignored under nohup */
	const size_t n = ARRAY_LEN(stops) - (hangup.sa_handler == SIG_IGN);
	sigemptyset(&a.sa_mask);
	stop_signal = 0;
	for (size_t i = 0; i < n; i++)
		sigaction(stops[i], &a, NULL);
	launch_end_by_sigterm(true);
}

/* Returns true 10 s after a signal, which then ends an evaluation or a sample. Others continue
 * after a signal, so that a stopped run has the same rows and the same best checkpoint as an
 * uninterrupted run. */
static bool is_signal_old(void)
{
	enum { STOP_SECS = 10 };
	static double since;
	if (!stop_signal)
		return false;
	double now = clock_seconds();
	since = since > 0 ? since : now;
	return now - since >= STOP_SECS;
}

/* Work that a signal may interrupt, at the same place on all ranks of the worker. The ranks agree
 * rarely as long as the work between two agreements is quick on all ranks. */
struct interruptible {
	struct run *r;
	bool interrupted;
	int64_t every, skip; /* calls between two agreements, and before the next one */
	double last;	     /* clock at the last agreement */
};

static struct interruptible interruptible_begin(struct run *r)
{
	return (struct interruptible){.r = r, .every = 1, .last = clock_seconds()};
}

/* Returns true if the work is to end because of a signal. Collective over the worker. */
static bool poll_interruption(void *context)
{
	enum { QUICK, SLOW, STOP, MAX_EVERY = 64 };
	struct interruptible *c = context;
	if (c->interrupted || c->skip-- > 0)
		return c->interrupted;
	double now = clock_seconds();
	int64_t mine = is_signal_old() ? STOP : now - c->last > 0.1 ? SLOW : QUICK;
	int64_t worst = comm_max_i64(c->r->world, mine);
	c->interrupted = worst == STOP;
	c->every = worst == QUICK ? min64(2 * c->every, MAX_EVERY) : 1;
	c->skip = c->every - 1;
	c->last = now;
	return c->interrupted;
}

/* ---- between steps -------------------------------------------------- */

/* Evaluates, and sets the losses of the row. Returns false, without a loss, if the state is wrong
 * or a signal ended the evaluation. *best: the validation loss is the lowest so far. Collective. */
static bool evaluate(struct run *r, struct row *row, bool *best)
{
	struct trainer *t = &r->t;
	struct interruptible c = interruptible_begin(r);
	double loss[2];
	*best = false;
	c.interrupted = !save_check_state(r, "an evaluation");
	r->saver.checked = false;
	for (int s = SPLIT_TRAIN; s <= SPLIT_VAL; s++) {
		struct eval_sum sum = {.stopped = 1};
		if (!c.interrupted)
			eval_sum(t, (enum split)s, poll_interruption, &c, &sum);
		local_sgd_sum_eval(r, &sum);
		loss[s] = eval_mean(t, &sum, (enum split)s);
	}
	if (t->state_is_wrong)
		return false;
	if (c.interrupted) {
		report_event(r, "the evaluation was ended by a signal");
		return false;
	}
	if (!isnan(loss[SPLIT_TRAIN]))
		row_set(row, COL_TRAIN_LOSS, loss[SPLIT_TRAIN]);
	double val = loss[SPLIT_VAL];
	if (isnan(val))
		return true;
	row_set(row, COL_VAL_LOSS, val);
	t->val_loss = val;
	r->saver.eval_step = t->step;
	*best = !(t->best_val_loss <= val) && r->now.agreed;
	if (*best)
		t->best_val_loss = val;
	return true;
}

/* A sample while it is drawn, on the rank that has the whole model. */
struct sample {
	struct decoder *g;
	struct str text;
	int64_t n; /* tokens drawn */
};

/* Begins a text sample: opens the decoder, and feeds it the prompt. */
static void begin_sample_text(
	struct run *r, struct model *m, struct store *store, struct sample *x)
{
	struct trainer *t = &r->t;
	const struct tokenizer *tok = &t->data.set->tokenizer;
	struct err e = {0};
	uint32_t *ids = NULL;
	const char *prompt = t->o.sample_prompt ? t->o.sample_prompt : "\n";
	int64_t n = tokenizer_encode_all(tok, prompt, (int64_t)strlen(prompt), &ids, &e);
	if (n < 1) { /* no prompt, or one outside the vocabulary: token 0 */
		free(ids);
		ids = xcalloc(1, sizeof(*ids));
		n = 1;
	}
	for (int64_t i = 0; i < n && strcmp(prompt, "\n"); i++)
		tokenizer_decode(tok, ids[i], &x->text);
	x->g = decoder_open(m, &t->d, store, true);
	decoder_feed(x->g, ids, n);
	free(ids);
}

/* Draws n more tokens of a sample, and appends their text to x->text. Run by one rank. */
static void draw_sample(struct run *r, struct sample *x, int64_t n)
{
	struct trainer *t = &r->t;
	const struct sampler s = {.temperature = 0.8,
		.top_k = 200,
		.top_p = 1,
		.seed = (uint64_t)t->o.seed};
	for (int64_t end = x->n + n; x->n < end; x->n++) {
		uint32_t id = (uint32_t)decoder_draw(x->g, &s, (uint64_t)t->step, x->n);
		tokenizer_decode(&t->data.set->tokenizer, id, &x->text);
		decoder_feed(x->g, &id, 1);
		comm_poll(); /* the other ranks wait for rank 0 */
	}
}

/* Prints the text of a sample, and frees it and the decoder. */
static void end_sample(struct run *r, struct sample *x)
{
	decoder_close(x->g);
	info("a sample after step %lld:", (long long)r->t.step);
	if (log_is_enabled())
		fprintf(stderr, "%s\n", x->text.s ? text_printable(x->text.s) : "");
	str_free(&x->text);
}

/* Samples on rank 0, from its model if it is whole, else from a gathered copy. Collective. */
static void write_sample(struct run *r)
{
	enum { CHUNK = 64 };
	struct trainer *t = &r->t;
	struct inference x;
	struct sample s = {0};
	struct interruptible c = interruptible_begin(r);
	bool whole = state_is_whole(t), draws = run_is_first(r);
	if (!whole)
		state_gather(t, &x);
	if (draws)
		begin_sample_text(
			r, whole ? &t->model : &x.model, whole ? t->store : x.store, &s);
	for (int64_t n = t->o.sample_tokens; n > 0 && !poll_interruption(&c); n -= CHUNK)
		if (draws)
			draw_sample(r, &s, min64(n, CHUNK));
	if (draws)
		end_sample(r, &s);
	if (!whole)
		inference_close(&x);
}

static void show_progress(struct run *r, const struct step_result *s)
{
	char note[64];
	snprintf(note, sizeof(note), "step %lld loss %.4f", (long long)r->t.step,
		(double)s->global_loss);
	progress_update(&r->report.bar, (double)r->t.step, note);
}

/* Actions that are due after a step. */
struct due {
	bool last, log, eval, save, sample;
};

/* Returns what is due after this step: logging, evaluation, checkpoint and so on. */
static struct due find_due_actions(struct run *r)
{
	const struct trainer *t = &r->t;
	const struct train_opts *o = &t->o;
	struct due due = {.last = t->step == o->steps, .log = report_is_due(r)};
	due.eval = local_sgd_is_due(r, o->eval_every) || (due.last && o->eval_every);
	due.save = local_sgd_is_due(r, o->ckpt_every) || r->now.save;
	due.sample = local_sgd_is_due(r, o->sample_every);
	return due;
}

/* Saves a checkpoint if one is due. `best`: the validation loss is the lowest so far. */
static void save_if_due(struct run *r, const struct due *due, bool best)
{
	bool stop = r->now.stop;
	if (due->save)
		save_now(r, "in time",
			due->last || stop ? SAVE_AND_WAIT : SAVE_IN_BACKGROUND);
	else if (due->last || stop)
		save_now(r, due->last ? "the last" : "stopped", SAVE_AND_WAIT);
	else if (best && r->t.o.ckpt_best)
		save_now(r, "the best", SAVE_IN_BACKGROUND);
}

/* Evaluates if due, and logs. Returns true if the validation loss is the lowest. Collective. */
static bool evaluate_and_log(
	struct run *r, const struct step_result *s, const struct due *due)
{
	struct row row = report_new_row(r);
	bool best = false, evaluated;
	if (due->log)
		report_fill_row(r, s, &row);
	evaluated = due->eval && evaluate(r, &row, &best);
	if (evaluated)
		r->saver.saved_step = r->saver.tried_step = -1; /* save the losses */
	if ((due->log || evaluated) && local_sgd_fill_row(r, &row))
		report_write_row(r, &row);
	return best;
}

/* Performs the actions that are due after a step. Returns an exit code, or 0. */
static int after_step(struct run *r, const struct step_result *s)
{
	const struct due due = find_due_actions(r);
	if (s->skipped)
		report_event(r,
			"gradients overflow with a loss scale of %g: nothing is updated, "
			"the scale halves",
			(double)s->loss_scale);
	if (s->empty)
		report_event(r, "no token of the batch counts: nothing is updated");
	if (due.eval || due.save || due.sample || due.last || r->now.stop)
		local_sgd_complete(r);
	if (r->now.stop) /* first: the sender of the signal may not wait for an evaluation */
		save_now(r, "stopped", SAVE_AND_WAIT);
	bool best = evaluate_and_log(r, s, &due);
	show_progress(r, s);
	if (s->vote[VOTE_WRITTEN] == r->t.world->size)
		save_end(r);
	run_vault_copy(r, due.last || r->now.stop);
	save_if_due(r, &due, best);
	if (due.sample && save_check_state(r, "a sample"))
		write_sample(r);
	if (due.last || r->now.stop)
		save_check_state(r, "the end");
	return r->t.state_is_wrong ? EX_OSERR : 0;
}

/* ---- on a GPU -------------------------------------------------------------------- */

/* Begins --profile in the first of its steps that this run does: it may resume within them. */
static void begin_profile(struct run *r)
{
	struct trainer *t = &r->t;
	int64_t step = t->step + 1;
	if (t->profile.running || step < t->profile.first || step > t->profile.last)
		return;
	device_profile_begin(&t->d);
	t->profile.first = step;
	t->profile.running = true;
}

/* Chooses the same GEMM algorithms on all ranks. Returns 0, or -1 after printing the error. */
static int agree_on_gemm_algorithms(struct run *r)
{
	struct err e = {0};
	int rc = r->t.step < r->t.o.steps ? gemm_algorithms_agree(&r->t, r->all, &e) : 0;
	if (rc)
		err_print(&e);
	return rc;
}

/* Saves GEMM algorithms after the first step, and with checkpoints: evaluations add shapes. */
static void save_algorithms(struct run *r)
{
	struct err e = {0};
	bool due = !r->dir.has_algorithms || r->saver.tried_step == r->t.step;
	if (!r->t.d.discrete || !r->dir.path || !run_is_first(r) || !due)
		return;
	r->dir.has_algorithms = true;
	if (gemm_algorithms_save(&r->t.d, r->dir.path, &e))
		warn("%s", e.msg);
}

/* Prints the profile after its last step. is_last_step: no steps follow. */
static void print_profile_if_done(struct run *r, bool is_last_step)
{
	struct trainer *t = &r->t;
	scoped_str table = {0};
	int64_t last = max64(t->profile.first, min64(t->step, t->profile.last));
	if (!t->profile.running || (t->step < t->profile.last && !is_last_step))
		return;
	device_profile_end(&t->d, &table);
	info("kernels of steps %lld to %lld:\n%s", (long long)t->profile.first,
		(long long)last, table.s ? table.s : "");
	t->profile.running = false;
	t->profile.first = t->profile.last = 0;
}

/* ---- the end of a run -------------------------------------------------------------- */

/* Reports why the step failed, in the journal and on stderr, and frees the reason.
 * Returns the exit status. */
static int fail_step(struct run *r, struct step_result *s)
{
	bool wrong = s->checked > CHECKED_SPORADIC;
	const char *why = wrong ? s->found.s : s->why.s;
	report_event(r, "stopped: %s", why);
	struct err e = {0};
	err_set(&e, EX_FAILED, "%s", why);
	if (run_is_first(r))
		err_print(&e);
	if (wrong) /* nothing was updated */
		save_now(r, "before a wrong step", SAVE_AND_WAIT);
	report_publish_now(r);
	str_free(&s->why);
	return s->checked == CHECKED_PERSISTENT ? EX_OSERR : EX_FAILED;
}

/* Reports that a signal stopped the run. Returns the exit code. */
static int report_stop(struct run *r)
{
	struct trainer *t = &r->t;
	report_event(r, "stopped by a signal");
	if (!t->o.ckpt) {
		info("stopped after step %lld, without a checkpoint", (long long)t->step);
		return 128 + SIGTERM;
	}
	bool saved = r->saver.saved_step == t->step;
	info("stopped after step %lld%s; --resume auto continues the run",
		(long long)t->step, saved ? "" : "; its checkpoint could not be written");
	return saved ? EX_TEMPFAIL : EX_IOERR;
}

/* ---- the loop -------------------------------------------------------------------- */

static void report_start(struct run *r)
{
	scoped_str text = {0};
	start_times_add(&r->t.start, START_PROGRAM);
	start_times_print(&r->t.start, &text);
	info("%s", text.s);
	report_event(r, "%s", text.s);
	referee_report_start(r);
}

/* Evaluates before the first step. This does not count for the best loss. */
static void evaluate_first(struct run *r)
{
	struct row row = report_new_row(r);
	bool best;
	if (evaluate(r, &row, &best))
		report_write_row(r, &row);
	r->t.best_val_loss = (double)NAN;
	if (r->t.o.sample_every && !r->t.state_is_wrong)
		write_sample(r);
}

/* Prepares the loop: signals, GEMM algorithms, progress bar, first evaluation. */
static int begin_run(struct run *r)
{
	struct trainer *t = &r->t;
	catch_signals();
	r->saver.saved_at = clock_seconds();
	if (t->step >= t->o.steps && t->step > 0)
		info("nothing to do: step %lld of %lld is already done",
			(long long)t->step, (long long)t->o.steps);
	start_times_add(&t->start, START_PROGRAM);
	if (agree_on_gemm_algorithms(r))
		return EX_FAILED;
	start_times_add(&t->start, START_ALGORITHMS);
	progress_begin(&r->report.bar, "pt-train", (double)t->o.steps);
	r->report.bar.first = (double)t->step;
	report_start(r);
	referee_begin(r);
	if (t->o.eval_first && t->step == 0)
		evaluate_first(r);
	run_vault_save_missed(r);
	run_vault_copy_restored(r);
	return 0;
}

/* Votes on conditions that may differ between ranks: signals, the clock, the writing thread. */
static void cast_votes(void *context, int64_t vote[STEP_VOTES])
{
	struct run *r = context;
	vote[VOTE_STOP] = stop_signal != 0;
	vote[VOTE_SAVE] = save_is_due(r);
	vote[VOTE_WRITTEN] = state_save_done(&r->t);
	vote[VOTE_MEET] = local_sgd_vote(r);
}

/* Sets r->now to what all ranks have voted for in this step. */
static void set_decision(struct run *r, const struct step_result *s)
{
	r->now = (struct decision){.stop = s->vote[VOTE_STOP] > 0 && !s->bad,
		.save = s->vote[VOTE_SAVE] > 0,
		.agreed = true};
}

/* Runs a step with all that precedes and follows it. Returns an exit code, or 0. */
static int run_step(struct run *r)
{
	const struct step_votes votes = {cast_votes, r};
	struct step_result s;
	trace_begin_step(r);
	run_kill_before_step(r);
	struct meter before = report_meter(r);
	int rc = 0;
	if (!local_sgd_begin(r))
		return 0;
	begin_profile(r);
	hashes_begin_step(r);
	r->saver.checked = false;
	faults_step(&r->faults, &r->t, &votes, &s);
	int hashed = hashes_end_step(r, &s);
	set_decision(r, &s);
	run_vault_withdraw_wrong(r);
	bool synchronized = !s.bad && local_sgd_after_step(r, &s);
	report_step(r, &s, before);
	report_dealing(r, &s);
	if (s.coarser)
		report_event(r,
			"a gradient of step %lld was too large for exact sums: the step was "
			"repeated, with gradients rounded to multiples of 2^%d",
			(long long)r->t.step, -s.grid);
	if (s.checked == CHECKED_SPORADIC) {
		report_event(r, "%s", s.found.s);
		if (run_is_first(r))
			warn("%s", s.found.s);
	}
	referee_write_suspects(r);
	if (r->t.o.hash_tensors && !s.bad) /* for pt-compare --locate */
		report_event(r, "parameters 0x%016llx",
			(unsigned long long)store_hash(r->t.store));
	trace_end_step(r);
	if (s.bad)
		rc = fail_step(r, &s);
	else if (synchronized)
		rc = after_step(r, &s);
	str_free(&s.found);
	print_profile_if_done(r, false);
	save_algorithms(r);
	return rc ? rc : hashed;
}

/* Runs the loop until its end. Returns the exit code. */
static int train(struct run *r)
{
	const struct trainer *t = &r->t;
	int rc = begin_run(r);
	if (rc)
		return rc;
	rc = t->state_is_wrong ? EX_OSERR : 0;
	while (!rc && !r->now.stop && !r->deserted && t->step < t->o.steps &&
		!hashes_are_done(r))
		rc = run_step(r);
	print_profile_if_done(r, true);
	trace_end_run(r);
	local_sgd_end(r, rc != 0);
	if (!rc && r->now.stop && !r->deserted)
		save_now(r, "stopped", SAVE_AND_WAIT);
	save_end(r);
	progress_end(&r->report.bar);
	if (rc || t->state_is_wrong)
		return rc ? rc : EX_OSERR;
	if (r->deserted) { /* the steps since the last checkpoint are lost */
		report_event(r, "stopped: another worker has ended");
		return EX_FAILED;
	}
	if (r->now.stop && t->step < t->o.steps)
		return report_stop(r);
	save_now(r, "the last", SAVE_AND_WAIT); /* if the run had no steps */
	const struct saver *v = &r->saver;
	return v->failed && t->o.ckpt && v->saved_step != t->step ? EX_IOERR : 0;
}

/* Evaluates once and prints the row (--eval-only). Returns an exit code, or 0. Collective. */
static int evaluate_only(struct run *r)
{
	struct row row = report_new_row(r);
	scoped_str line = {0};
	bool best;
	evaluate(r, &row, &best);
	row_print(&row, &line);
	if (run_is_first(r))
		report_print(r, line.s);
	return r->t.state_is_wrong ? EX_OSERR : 0;
}

int loop_run(struct run *r)
{
	signal(SIGPIPE, SIG_IGN); /* a reader that exits does not end the training */
	if (r->t.o.eval_only)
		return evaluate_only(r);
	int rc = train(r);
	run_vault_close(r, rc ? VAULT_STAYS : VAULT_ENDS);
	save_wait_prune(r);
	report_event(r, "ends with code %d after step %lld", rc, (long long)r->t.step);
	report_publish_now(r);
	log_files_end(&r->logs, rc);
	if (r->report.journal_incomplete)
		warn("%s/journal.txt: %lld lines could not be written", r->dir.path,
			(long long)journal_n_unwritten(&r->report.journal));
	bool log_failed = r->report.journal_incomplete || r->report.publish_failed ||
			  log_files_failed(&r->logs);
	if (rc || !(log_failed || r->trace.failed))
		return rc;
	report_event(r, "ends with code %d: not all of the %s%s%s could be written",
		EX_IOERR, log_failed ? "log" : "",
		log_failed && r->trace.failed ? " and the " : "",
		r->trace.failed ? "trace" : "");
	return EX_IOERR;
}
