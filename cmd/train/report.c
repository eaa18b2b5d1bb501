/* The log of a run: rows, events, standard output, run.h5. */
#include "train/train_internal.h"

#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- the journal ----------------------------------------------------------------- */

/* Warns when writing the journal fails (rc != 0) for the first time, and when it works again. */
static void report_journal_state(struct run *r, int rc, const struct err *e)
{
	struct run_report *p = &r->report;
	if (rc && !p->journal_incomplete)
		warn("%s; training continues, and lines of the journal are kept until they "
		     "can be written",
			e->msg);
	else if (!rc && p->journal_incomplete)
		warn("%s/journal.txt can be written again, and has every line",
			r->dir.path);
	p->journal_incomplete = rc != 0;
}

void report_event(struct run *r, const char *fmt, ...)
{
	struct err e = {0};
	char text[1024];
	va_list ap;
	if (!run_is_first(r) || r->t.o.eval_only) /* an evaluation has no journal */
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	int rc = journal_write_event(&r->report.journal, r->t.step, text, &e);
	report_journal_state(r, rc, &e);
}

void report_print(struct run *r, const char *line)
{
	if (r->report.stdout_closed || r->t.o.resolved.worker > 0)
		return;
	if (r->report.bar.shown)
		fprintf(stderr, "\r\033[K");
	if (printf("%s\n", line) < 0 || fflush(stdout)) {
		warn("standard output: %s; training continues, and the journal has every line",
			strerror(errno));
		r->report.stdout_closed = true;
	}
}

void report_publish_now(struct run *r)
{
	struct err e = {0};
	if (!run_is_first(r))
		return;
	bool failed = journal_publish(&r->report.journal, &e) != 0;
	if (failed && !r->report.publish_failed)
		warn("%s; training continues, and run.h5 is written later", e.msg);
	r->report.publish_failed = failed;
}

void report_publish(struct run *r, double seconds)
{
	if (run_is_first(r) && journal_is_stale(&r->report.journal, seconds))
		report_publish_now(r);
}

bool report_uses_short_rows(const struct run *r)
{
	return r->t.o.log_format == LOG_SHORT ||
	       (r->t.o.log_format == LOG_AUTO && isatty(STDOUT_FILENO));
}

/* Appends a row with fewer columns, and an estimate of the time until the last step. */
static void append_short_row(const struct run *r, const struct row *row, struct str *out)
{
	static const int shown[] = {COL_STEP, COL_LOSS, COL_LR, COL_VAL_LOSS, COL_TPS};
	struct row few = {.has = 0};
	int64_t left = (int64_t)progress_secs_left(&r->report.bar, (double)r->t.step);
	for (size_t i = 0; i < ARRAY_LEN(shown); i++)
		if (row_has(row, shown[i]))
			row_set(&few, shown[i], row->v[shown[i]]);
	row_print(&few, out);
	str_printf(out, " left=%lld:%02d:%02d", (long long)left / 3600,
		(int)(left / 60 % 60), (int)(left % 60));
}

void report_write_row(struct run *r, const struct row *row)
{
	struct err e = {0};
	scoped_str line = {0};
	if (!run_is_first(r))
		return;
	int rc = journal_write_row(&r->report.journal, row, &e);
	report_journal_state(r, rc, &e);
	log_files_write(&r->logs, row);
	if (report_uses_short_rows(r))
		append_short_row(r, row, &line);
	else
		row_print(row, &line);
	report_print(r, line.s);
	report_publish(r, r->t.o.publish_secs);
}

/* ---- measurements ---------------------------------------------------------------- */

struct meter report_meter(const struct run *r)
{
	const struct local_sgd *x = &r->local;
	return (struct meter){.seconds = clock_seconds(),
		.waited = comm_waited(),
		.sent = mesh_bytes_sent(&r->t.mesh) +
			(x->sync ? x->sync->sent + x->control->sent : 0),
		.sent_rows = r->t.pass.experts.sent,
		.read = r->t.store->read,
		.written = r->t.store->written};
}

void report_step(struct run *r, const struct step_result *s, struct meter before)
{
	struct meter now = report_meter(r);
	struct run_report *p = &r->report;
	p->since.steps++;
	p->since.seconds += now.seconds - before.seconds;
	p->since.forward += s->forward;
	p->since.backward += s->backward;
	p->since.data += s->data;
	p->since.waited += now.waited - before.waited;
	p->since.sent += now.sent - before.sent;
	p->since.sent_rows += now.sent_rows - before.sent_rows;
	p->since.read += now.read - before.read;
	p->since.written += now.written - before.written;
	p->since.bubble += s->bubble;
}

/* Returns the peak of this rank's arenas, including the shared-memory segments that it sums in. */
static int64_t active_memory(const struct run *r)
{
	const struct trainer *t = &r->t;
	int64_t edit = r->local.edit ? edit_bytes(r->local.edit) : 0;
	return trainer_peak_bytes(t) + edit;
}

/* Returns the maximum over the ranks of peak memory: the memory allocated on the GPU, or resident
 * memory without pages of other ranks. Collective. */
static double peak_memory(struct run *r)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	int64_t peak = (int64_t)u.ru_maxrss * 1024 - comm_shared_foreign();
	if (r->t.d.discrete)
		peak = r->t.d.peak_bytes + DEVICE_WORK_BYTES;
	return (double)comm_max_i64(r->world, peak);
}

/* Returns the maximum over the ranks of a sum since the last row, per step. Collective. */
static double max_per_step(struct run *r, int64_t sum)
{
	return (double)comm_max_i64(r->world, sum) / (double)r->report.since.steps;
}

void report_dealing(struct run *r, struct step_result *s)
{
	if (s->dealt.len)
		report_event(r, "%s", s->dealt.s);
	if (s->slow_rank.len && run_is_first(r))
		warn("step %lld: %s", (long long)r->t.step, s->slow_rank.s);
	if (s->slow_rank.len)
		report_event(r, "%s", s->slow_rank.s);
	str_free(&s->dealt);
	str_free(&s->slow_rank);
}

bool report_is_due(const struct run *r)
{
	const struct trainer *t = &r->t;
	return r->now.log || t->step % t->o.log_every == 0 || t->step == 1 ||
	       t->step == t->o.steps;
}

/* Returns true if the rows of this run have this column. */
static bool has_column(const struct run *r, int column)
{
	const struct train_opts *o = &r->t.o;
	bool has_anchor = o->edit.config.outer != EDIT_OUTER_NONE ||
			  o->edit.config.reducer != EDIT_MEAN;
	switch (column) {
	case COL_COUNTED:
		return r->t.data.set->counted;
	case COL_LOSS_SCALE:
		return o->dtype == PRECISION_FP16;
	case COL_AUX_LOSS:
		return o->model.experts > 0 && o->model.balance_loss > 0;
	case COL_ROUTER_Z:
		return o->model.experts > 0 && o->model.router_z_loss > 0;
	case COL_EXPERT_VIOLATION:
	case COL_EXPERTS_IDLE:
		return o->model.experts > 0;
	case COL_EXPERT_ROWS:
	case COL_SENT_ROWS:
		return o->ep > 1;
	case COL_DROPPED:
		return o->model.experts > 0 && o->model.expert_capacity > 0;
	case COL_TRAIN_LOSS:
	case COL_VAL_LOSS:
		return o->eval_every > 0;
	case COL_VAL_BPB:
	case COL_REWARD:
		return false; /* only in logs of other programs */
	case COL_DT_FORWARD:
	case COL_DT_BACKWARD:
		return r->t.graph.state == GRAPH_NONE; /* a graph is not timed */
	case COL_BUBBLE:
		return r->t.schedule.ranks > 1;
	case COL_SLOWEST:
		return o->deal == DEAL_SPEED;
	case COL_MFU:
	case COL_MFU_CAUSAL:
		return r->report.peak_flops > 0;
	case COL_SENT:
		return r->all->size > 1;
	case COL_SYNCS:
	case COL_LOCAL_STEPS:
	case COL_LOCAL_LOSS:
	case COL_WORKER_WEIGHT:
	case COL_SYNC_SENT:
	case COL_SYNC_WAIT:
		return r->local.sync;
	case COL_PSEUDO_GRAD_NORM:
	case COL_ANOMALIES:
	case COL_OUTER_GRAD_NORM:
	case COL_OUTER_CLIP:
		return r->local.sync && has_anchor;
	case COL_OFFLOAD_READ:
	case COL_OFFLOAD_WRITTEN:
		return options_offload(o);
	case COL_AUDITED:
	case COL_MISMATCHES:
		return o->referee > 0;
	default:
		return true;
	}
}

/* Sets a column if this run has it. */
static void set_column(const struct run *r, struct row *row, int column, double v)
{
	if (has_column(r, column))
		row_set(row, column, v);
}

/* Warns once that the peak is too low: no step does more FLOP/s than its device can. */
static void warn_of_low_peak(struct run *r, double mfu)
{
	struct run_report *p = &r->report;
	if (p->has_warned_of_peak || r->all->rank)
		return;
	p->has_warned_of_peak = true;
	warn("step %lld: an MFU of %.3g %% is impossible, so it is not logged: the peak of %.3g "
	     "FLOP/s is too low, perhaps measured while the device was busy; give --peak-flops",
		(long long)r->t.step, 100 * mfu, p->peak_flops);
}

/* Sets an MFU if it is possible. float8 runs use the bf16 peak, and are at most twice as fast. */
static void set_mfu(struct run *r, struct row *row, int column, double mfu)
{
	double max_mfu = r->t.o.dtype == PRECISION_FLOAT8 ? 2 : 1;
	if (mfu <= max_mfu)
		set_column(r, row, column, mfu);
	else if (has_column(r, column))
		warn_of_low_peak(r, mfu);
}

/* Sets the throughput over all workers. */
static void fill_rates(struct run *r, double dt, struct row *row)
{
	const struct model *m = &r->t.model;
	double sps = (double)r->t.o.batch / dt, context = (double)m->c.context;
	double ranks = (double)r->all->size, peak = r->report.peak_flops;
	double rate = sps * context / ranks / peak;
	row_set(row, COL_SPS, sps);
	row_set(row, COL_SPS_PER_GPU, sps / ranks);
	row_set(row, COL_TPS, sps * context);
	row_set(row, COL_TPS_PER_GPU, sps * context / ranks);
	set_mfu(r, row, COL_MFU, rate * model_flops_per_token(m, false));
	set_mfu(r, row, COL_MFU_CAUSAL, rate * model_flops_per_token(m, true));
}

static void fill_experts(struct run *r, const struct step_result *s, struct row *row)
{
	set_column(r, row, COL_AUX_LOSS, s->router_loss[ROUTER_BALANCE_LOSS]);
	set_column(r, row, COL_ROUTER_Z, s->router_loss[ROUTER_Z_LOSS]);
	set_column(r, row, COL_EXPERT_VIOLATION, s->expert_violation);
	set_column(r, row, COL_EXPERTS_IDLE, (double)s->experts_idle);
	set_column(r, row, COL_DROPPED, s->dropped);
}

/* Sets the bytes sent, and the part for rows of experts: what is left are the bytes of the rank
 * that sends most of all else, which a plan predicts. Collective. */
static void fill_sent(struct run *r, struct row *row)
{
	struct run_report *p = &r->report;
	struct pass *pass = &r->t.pass;
	double sent = max_per_step(r, p->since.sent), fullest;
	row_set(row, COL_SENT, sent);
	if (!has_column(r, COL_SENT_ROWS))
		return;
	row_set(row, COL_SENT_ROWS,
		sent - max_per_step(r, p->since.sent - p->since.sent_rows));
	fullest = (double)comm_max_i64(r->world, pass->fullest_rows);
	row_set(row, COL_EXPERT_ROWS, fullest / (double)pass->experts.balanced);
	pass->fullest_rows = 0;
}

void report_fill_row(struct run *r, const struct step_result *s, struct row *row)
{
	struct run_report *p = &r->report;
	double n = (double)p->since.steps, dt = p->since.seconds / n;
	set_column(r, row, COL_COUNTED, (double)s->counted);
	if (!isnan(s->global_loss))
		row_set(row, COL_LOSS, (double)s->global_loss);
	if (!s->skipped && !s->empty)
		row_set(row, COL_GRAD_NORM, (double)s->grad_norm);
	set_column(r, row, COL_LOSS_SCALE, (double)s->loss_scale);
	if (!s->empty)
		fill_experts(r, s, row);
	row_set(row, COL_LR, (double)s->lr);
	row_set(row, COL_DT, dt);
	set_column(r, row, COL_DT_FORWARD, p->since.forward / n);
	set_column(r, row, COL_DT_BACKWARD, p->since.backward / n);
	row_set(row, COL_DT_COMM, p->since.waited / n);
	row_set(row, COL_DT_DATA, p->since.data / n);
	if (!isnan(p->since.bubble))
		set_column(r, row, COL_BUBBLE, p->since.bubble / n);
	if (!isnan(s->slowest))
		set_column(r, row, COL_SLOWEST, s->slowest);
	fill_rates(r, dt, row);
	row_set(row, COL_MEM_ACTIVE, (double)comm_max_i64(r->world, active_memory(r)));
	row_set(row, COL_MEM, peak_memory(r));
	if (has_column(r, COL_SENT))
		fill_sent(r, row);
	if (has_column(r, COL_OFFLOAD_READ)) {
		row_set(row, COL_OFFLOAD_READ, max_per_step(r, p->since.read));
		row_set(row, COL_OFFLOAD_WRITTEN, max_per_step(r, p->since.written));
	}
	referee_fill_row(r, row);
	memset(&p->since, 0, sizeof(p->since));
}

struct row report_new_row(const struct run *r)
{
	const struct trainer *t = &r->t;
	struct row row = {.has = 0};
	row_set(&row, COL_STEP, (double)t->step);
	row_set(&row, COL_TOKENS,
		(double)((t->samples - t->n_unseen) * t->model.c.context));
	return row;
}
