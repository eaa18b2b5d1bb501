/*
 * The loop: step, log, evaluate, save, until the last step or until somebody says stop.
 * Everything that ranks could see differently (signals, the clock) is a vote in the step.
 */
#include "train/train.h"
#include "train/loop.h"
#include "model/generate.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- signals --------------------------------------------------------------------- */

static volatile sig_atomic_t stop_signal;

static void on_stop(int sig)
{
	if (sig == SIGINT && stop_signal) { /* asked twice */
		file_remove_doomed();
		_exit(128 + SIGINT);
	}
	stop_signal = sig;
}

static void catch_signals(void)
{
	static const int stops[] = {SIGTERM, SIGUSR1, SIGINT};
	struct sigaction a = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
	sigemptyset(&a.sa_mask);
	stop_signal = 0;
	for (size_t i = 0; i < ARRAY_LEN(stops); i++)
		sigaction(stops[i], &a, NULL);
}

/* ---- what is written ------------------------------------------------------------- */

bool run_first(const struct run *r)
{
	return r->world->rank == 0;
}

/* After something was written to the journal, or could not be: said once. */
static void journal_state(struct run *r, int rc, const struct err *e)
{
	if (rc && !r->torn)
		warn("%s; training goes on, and lines of the journal are kept until they "
		     "can be written",
			e->msg);
	else if (!rc && r->torn)
		warn("%s/journal.txt can be written again, and has every line",
			r->folder);
	r->torn = rc != 0;
}

void run_event(struct run *r, const char *fmt, ...)
{
	struct err e = {0};
	char text[1024];
	va_list ap;
	if (!run_first(r))
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	int rc = journal_event(&r->journal, r->t.step, &e, "%s", text);
	journal_state(r, rc, &e);
}

static void print_line(struct run *r, const char *line)
{
	if (r->stdout_gone || r->t.o.worker > 0)
		return;
	if (r->bar.shown)
		fprintf(stderr, "\r\033[K");
	if (printf("%s\n", line) < 0 || fflush(stdout)) {
		warn("standard output: %s; going on, the journal has every line",
			strerror(errno));
		r->stdout_gone = true;
	}
}

static void publish(struct run *r)
{
	struct err e = {0};
	if (!run_first(r))
		return;
	bool failed = journal_publish(&r->journal, &e) != 0;
	if (failed && !r->stale)
		warn("%s; training goes on, and it is tried again", e.msg);
	r->stale = failed;
}

void run_publish(struct run *r, double seconds)
{
	if (run_first(r) && journal_stale(&r->journal, seconds))
		publish(r);
}

void run_row(struct run *r, const struct row *row)
{
	struct err e = {0};
	struct str line = {0};
	if (run_first(r)) {
		int rc = journal_row(&r->journal, row, &e);
		journal_state(r, rc, &e);
		row_print(row, &line);
		print_line(r, line.s);
		str_free(&line);
		run_publish(r, r->t.o.publish_secs);
	}
}

/* ---- measurements ---------------------------------------------------------------- */

/* What a step takes, read before and after it. */
struct meter {
	double seconds, waited;
	int64_t sent, read, written;
};

static struct meter read_meter(const struct run *r)
{
	int64_t sent = mesh_sent(&r->t.mesh) + (r->sync ? r->sync->sent : 0);
	return (struct meter){clock_seconds(), comm_waited(), sent, r->t.store->read,
		r->t.store->written};
}

static void measure(struct run *r, const struct step_result *s, struct meter before)
{
	struct meter now = read_meter(r);
	r->since.steps++;
	r->since.seconds += now.seconds - before.seconds;
	r->since.forward += s->forward;
	r->since.backward += s->backward;
	r->since.data += s->data;
	r->since.waited += now.waited - before.waited;
	r->since.sent += now.sent - before.sent;
	r->since.read += now.read - before.read;
	r->since.written += now.written - before.written;
	r->since.bubble += s->bubble;
}

/* Collective: the largest resident memory of a rank, without what it sees of others'; on a
 * GPU, what was taken there. */
static double peak_memory(struct run *r)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	int64_t peak = (int64_t)u.ru_maxrss * 1024 - comm_shared_foreign();
	if (r->t.d.apart)
		peak = r->t.d.most_bytes + DEVICE_WORK_BYTES;
	return (double)comm_max_i64(r->world, peak);
}

static void fill_row(struct run *r, const struct step_result *s, struct row *row)
{
	const struct trainer *t = &r->t;
	double n = (double)r->since.steps, dt = r->since.seconds / n;
	double sps = (double)t->o.batch / dt, context = (double)t->model.c.context;
	double ranks = (double)r->all->size;
	row_set(row, COL_LOSS, (double)s->loss);
	if (!s->skipped)
		row_set(row, COL_GRAD_NORM, (double)s->grad_norm);
	if (t->o.dtype == PRECISION_FP16)
		row_set(row, COL_LOSS_SCALE, (double)s->loss_scale);
	row_set(row, COL_LR, (double)s->lr);
	row_set(row, COL_DT, dt);
	if (t->graph == GRAPH_NONE) { /* which has no parts */
		row_set(row, COL_DTF, r->since.forward / n);
		row_set(row, COL_DTB, r->since.backward / n);
	}
	row_set(row, COL_DTC, r->since.waited / n);
	row_set(row, COL_DTD, r->since.data / n);
	if (t->schedule.ranks > 1)
		row_set(row, COL_BUBBLE, r->since.bubble / n);
	row_set(row, COL_SPS, sps);
	row_set(row, COL_SPS_PER_GPU, sps / ranks);
	row_set(row, COL_TPS, sps * context);
	row_set(row, COL_TPS_PER_GPU, sps * context / ranks);
	if (r->peak_flops > 0) {
		double rate = sps * context / ranks / r->peak_flops;
		row_set(row, COL_MFU, rate * model_flops_per_token(&t->model, false));
		row_set(row, COL_MFU_CAUSAL,
			rate * model_flops_per_token(&t->model, true));
	}
	row_set(row, COL_MEM, peak_memory(r));
	if (r->all->size > 1)
		row_set(row, COL_SENT, (double)comm_max_i64(r->world, r->since.sent) / n);
	if (apart_has_news(r) && !r->syncing.under_way)
		apart_row(r, row);
	if (t->o.offload) {
		row_set(row, COL_READ, (double)comm_max_i64(r->world, r->since.read) / n);
		row_set(row, COL_WRITTEN,
			(double)comm_max_i64(r->world, r->since.written) / n);
	}
	r->since = (struct since){.steps = 0};
}

static struct row new_row(const struct run *r)
{
	struct row row = {.has = 0};
	row_set(&row, COL_STEP, (double)r->t.step);
	row_set(&row, COL_TOKENS,
		(double)((r->t.samples - r->t.unseen) * r->t.model.c.context));
	return row;
}

/* ---- what happens between steps -------------------------------------------------- */

/* Returns whether the validation loss is the best so far. */
static bool evaluate(struct run *r, struct row *row)
{
	struct trainer *t = &r->t;
	double train = trainer_eval(t, SPLIT_TRAIN), val = trainer_eval(t, SPLIT_VAL);
	if (!isnan(train))
		row_set(row, COL_TRAIN_LOSS, train);
	if (isnan(val))
		return false;
	row_set(row, COL_VAL_LOSS, val);
	t->val_loss = val;
	r->eval_step = t->step;
	if (t->best_val_loss <= val || !apart_agreed(r))
		return false;
	t->best_val_loss = val;
	return true;
}

static void draw_sample(struct run *r, struct model *m, struct store *store)
{
	struct trainer *t = &r->t;
	const struct tokenizer *tok = &t->data->tokenizer;
	struct sampler s = {.temperature = 0.8,
		.top_k = 200,
		.top_p = 1,
		.seed = (uint64_t)t->o.seed};
	struct err e = {0};
	struct str text = {0};
	uint32_t *ids = NULL;
	const char *prompt = t->o.sample_prompt ? t->o.sample_prompt : "\n";
	int64_t n = tokenizer_encode_all(tok, prompt, (int64_t)strlen(prompt), &ids, &e);
	if (n < 1) { /* no prompt, or not in the vocabulary, which then begins it */
		free(ids);
		ids = xcalloc(1, sizeof(*ids));
		n = 1;
	}
	struct decoder *g = decoder_open(m, &t->d, store, true);
	decoder_feed(g, ids, n);
	for (int64_t i = 0; i < t->o.sample_tokens; i++) {
		uint32_t id = (uint32_t)decoder_draw(g, &s, (uint64_t)t->step, i);
		tokenizer_decode(tok, id, &text);
		decoder_feed(g, &id, 1);
		comm_poll(); /* the others wait for rank 0 */
	}
	decoder_close(g);
	info("a sample after step %lld:", (long long)t->step);
	if (log_speaks())
		fprintf(stderr, "%s\n", text.s ? text.s : "");
	str_free(&text);
	free(ids);
}

/* Collective. Rank 0 samples, from a model that is whole: its own, or a copy for the while. */
static void write_sample(struct run *r)
{
	struct trainer *t = &r->t;
	struct whole w;
	if (trainer_is_whole(t)) {
		if (run_first(r))
			draw_sample(r, &t->model, t->store);
		return;
	}
	state_whole_open(&w, t);
	if (w.store)
		draw_sample(r, &w.model, w.store);
	state_whole_close(&w);
}

/* Collective. Have all ranks the same parameters that should? */
static int check_replicas(struct run *r)
{
	struct str who = {0};
	uint64_t hash = store_hash(r->t.store);
	bool agree = store_replicas_agree(r->t.store, &who);
	if (!agree && run_first(r))
		warn("step %lld: the parameters differ from those of other ranks on "
		     "rank%s",
			(long long)r->t.step, who.s ? who.s : "s");
	run_event(r, "replicas 0x%016llx %s", (unsigned long long)hash,
		agree ? "are the same" : "DIFFER");
	str_free(&who);
	return agree ? 0 : EX_FAILED;
}

static bool every(int64_t n, int64_t step)
{
	return n > 0 && step % n == 0;
}

static void show_progress(struct run *r, const struct step_result *s)
{
	char note[64];
	snprintf(note, sizeof(note), "step %lld loss %.4f", (long long)r->t.step,
		(double)s->loss);
	progress_update(&r->bar, (double)r->t.step, note);
}

/* After a step: rows, evaluation, checkpoint, sample. Rows and evaluations are those that the
 * run would have had if nobody had stopped it. */
static int after_step(struct run *r, const struct step_result *s)
{
	struct trainer *t = &r->t;
	struct row row = new_row(r);
	bool last = t->step == t->o.steps, best = false, behind = !last && !s->stop;
	bool log = every(t->o.log_every, t->step) || t->step == 1 || last ||
		   apart_has_news(r);
	if (s->skipped)
		run_event(r,
			"gradients overflow with a loss scale of %g: nothing is updated, "
			"the scale halves",
			(double)s->loss_scale);
	bool eval = apart_due(r, t->o.eval_every) || (last && t->o.eval_every);
	bool saves = apart_due(r, t->o.ckpt_every) || s->save || s->stop || last;
	bool looks = eval || apart_due(r, t->o.sample_every) ||
		     every(t->o.check_replicas_every, t->step);
	if (saves || looks)
		apart_finish(r);
	if (s->stop) /* first of all: who says stop may not wait for an evaluation */
		save_now(r, "stopped", false);
	if (log)
		fill_row(r, s, &row);
	if (eval) {
		best = evaluate(r, &row);
		r->saved_step = r->tried_step = -1; /* its losses belong there */
	}
	if ((log || eval) && !apart_hold(r, &row))
		run_row(r, &row);
	show_progress(r, s);
	if (s->written == t->world->size)
		save_end(r);
	if (every(t->o.check_replicas_every, t->step) && check_replicas(r))
		return EX_FAILED; /* and this step is not saved */
	if (apart_due(r, t->o.ckpt_every) || s->save)
		save_now(r, "in time", behind);
	else if (last || s->stop)
		save_now(r, last ? "the last" : "stopped", false);
	else if (best && t->o.ckpt_best)
		save_now(r, "the best", behind);
	if (apart_due(r, t->o.sample_every))
		write_sample(r);
	return 0;
}

/* ---- on a GPU -------------------------------------------------------------------- */

/* A run may go on from within the steps of --profile, and a worker may leave some out. */
static void before_step(struct run *r)
{
	struct trainer *t = &r->t;
	int64_t step = t->step + 1;
	if (t->profiling || step < t->profile_first || step > t->profile_last)
		return;
	device_profile_begin(&t->d);
	t->profile_first = step;
	t->profiling = true;
}

static int agree_about_products(struct run *r)
{
	struct err e = {0};
	int rc = r->t.step < r->t.o.steps ? train_algorithms_agree(&r->t, r->all, &e) : 0;
	if (rc)
		err_say(&e);
	return rc;
}

/* The first step finds algorithms for its products, an evaluation for others. */
static void keep_algorithms(struct run *r, bool first)
{
	struct err e = {0};
	bool due = first || r->tried_step == r->t.step;
	if (!r->t.d.apart || !r->folder || !run_first(r) || !due)
		return;
	if (train_algorithms_keep(&r->t.d, r->folder, &e))
		warn("%s", e.msg);
}

/* `over`: there are no more steps. */
static void show_profile(struct run *r, bool over)
{
	struct trainer *t = &r->t;
	struct str table = {0};
	int64_t last = max64(t->profile_first, min64(t->step, t->profile_last));
	if (!t->profiling || (t->step < t->profile_last && !over))
		return;
	device_profile_end(&t->d, &table);
	info("kernels of steps %lld to %lld:\n%s", (long long)t->profile_first,
		(long long)last, table.s ? table.s : "");
	str_free(&table);
	t->profiling = false;
	t->profile_first = t->profile_last = 0;
}

static int fail_step(struct run *r, struct step_result *s)
{
	run_event(r, "stopped: %s", s->why.s);
	struct err e = {0};
	err_set(&e, EX_FAILED, "%s", s->why.s);
	if (run_first(r))
		err_say(&e);
	publish(r);
	str_free(&s->why);
	return EX_FAILED;
}

static int stopped(struct run *r)
{
	struct trainer *t = &r->t;
	run_event(r, "stopped by a signal");
	publish(r);
	if (!t->o.ckpt) {
		info("stopped after step %lld, without a checkpoint", (long long)t->step);
		return 128 + SIGTERM;
	}
	bool saved = r->saved_step == t->step;
	info("stopped after step %lld%s; --resume auto goes on", (long long)t->step,
		saved ? "" : ", whose checkpoint could not be written");
	return saved ? EX_TEMPFAIL : EX_IOERR;
}

/* What this worker has since the last checkpoint is of no use without the others. */
static int deserted(struct run *r)
{
	run_event(r, "stopped: another worker has ended");
	publish(r);
	return EX_FAILED;
}

static void say_start(struct run *r)
{
	struct str text = {0};
	start_phase_ends(&r->t.start, START_PROGRAM);
	start_print(&r->t.start, &text);
	info("%s", text.s);
	run_event(r, "%s", text.s);
	str_free(&text);
}

static int train(struct run *r)
{
	struct trainer *t = &r->t;
	int rc = 0;
	bool stop = false, first = true;
	catch_signals();
	t->stop = &stop_signal;
	r->saved_at = clock_seconds();
	if (t->step >= t->o.steps && t->step > 0)
		info("nothing is left to do: step %lld is done, and %lld are asked for",
			(long long)t->step, (long long)t->o.steps);
	start_phase_ends(&r->t.start, START_PROGRAM);
	if (agree_about_products(r))
		return EX_FAILED;
	start_phase_ends(&r->t.start, START_PRODUCTS);
	progress_begin(&r->bar, "pt-train", (double)t->o.steps);
	bool together = true;
	apart_start(r);
	say_start(r);
	while (t->step < t->o.steps && !stop && !rc) {
		struct step_result s;
		struct meter before = read_meter(r);
		together = apart_begin(r);
		stop = !together || r->syncing.stop;
		if (stop)
			break;
		before_step(r);
		trainer_step(t, !apart_several(r) && save_due(r), &s);
		if (!s.bad)
			together = apart_step(r, &s);
		measure(r, &s, before);
		stop = s.stop > 0 || !together;
		if (s.bad)
			rc = fail_step(r, &s);
		else if (together)
			rc = after_step(r, &s);
		show_profile(r, false);
		keep_algorithms(r, first);
		first = false;
	}
	show_profile(r, true);
	apart_finish(r);
	if (together && rc && !stop && t->step < t->o.steps)
		apart_meet(r, true);
	if (together && stop && apart_several(r))
		save_now(r, "stopped", false);
	save_end(r);
	progress_end(&r->bar);
	if (rc)
		return rc;
	if (!together)
		return deserted(r);
	if (stop && t->step < t->o.steps)
		return stopped(r);
	save_now(r, "the last", false); /* where no step was left to do */
	return r->failed && t->o.ckpt && r->saved_step != t->step ? EX_IOERR : 0;
}

static int eval_only(struct run *r)
{
	struct row row = new_row(r);
	struct str line = {0};
	evaluate(r, &row);
	row_print(&row, &line);
	if (run_first(r))
		print_line(r, line.s);
	str_free(&line);
	return 0;
}

int train_loop(struct run *r)
{
	signal(SIGPIPE, SIG_IGN); /* a reader that leaves does not end the training */
	if (r->t.o.eval_only)
		return eval_only(r);
	int rc = train(r);
	save_close(r);
	run_event(r, "ends with code %d after step %lld", rc, (long long)r->t.step);
	publish(r);
	if (r->torn)
		warn("%s/journal.txt: %lld lines could not be written", r->folder,
			(long long)r->journal.n_kept);
	if (rc || !(r->torn || r->stale))
		return rc;
	run_event(r, "ends with code %d: not all of the log could be written", EX_IOERR);
	return EX_IOERR;
}
