/* The predicted time of a step (--dry-run --cluster). The step runs on the planning device, where
 * kernels take the time of their work, and the communication of one rank is simulated
 * (comm/simulate.h). With a pipeline, one rank per stage is simulated, and then the schedule with
 * the mean times of the actions. */
#include "plan/plan_internal.h"

#include <math.h>

#include "base/file.h"
#include "base/trace.h"
#include "comm/simulate.h"
#include "engine/step.h"
#include "plan/cluster.h"
#include "plan/plan.h"

enum { MAX_ROWS = 64 };

/* The predicted step of a rank, in seconds. */
struct prediction {
	double computation, exposed;
	double pipeline; /* actions of all stages, with waiting */
	double rest;	 /* after the pipeline: the last sums, the norm, the update */
	double read, written; /* bytes of offloaded state */
	struct simulated_row row[MAX_ROWS];
	int n_rows;
};

/* The run that is predicted. */
struct subject {
	const struct train_opts *o;
	struct model *m;
	const struct cluster *c;
	struct str *trace; /* NULL, or receives the events of the timeline */
};

/* The actions of a step, by kind and stage. */
struct actions {
	double last;		       /* when the last action ended */
	double *seconds[ACTION_KINDS]; /* [stages], sums over micro-batches */
	int64_t *n[ACTION_KINDS];      /* [stages] */
};

/* ---- one rank -------------------------------------------------------------------- */

/* Adds the simulated time since the last action to the sums of this action's kind and stage. */
static void add_action_time(void *context, const struct action *a)
{
	struct actions *x = context;
	double now = simulate_now();
	x->seconds[a->kind][a->stage] += now - x->last;
	x->n[a->kind][a->stage]++;
	x->last = now;
}

/* Returns the ranks per host. */
static int host_ranks(const struct train_opts *o, const struct cluster *c)
{
	return (int)min64(mesh_ranks(o->resolved.degree), c->links.host_ranks);
}

/* Returns the peak FLOP/s of a matmul of `type`: the cluster's, scaled to --peak-flops if given. */
static double rank_peak(
	const struct train_opts *o, const struct cluster *c, enum dtype type)
{
	bool exact = o->numerics == NUMERICS_EXACT;
	int ranks_per_host = host_ranks(o, c);
	enum dtype gemm = options_gemm_dtype(o);
	double peak = cluster_peak(c, type, exact, ranks_per_host), given;
	if (o->peak_flops && !parse_double(o->peak_flops, &given))
		peak *= given / cluster_peak(c, gemm, exact, ranks_per_host);
	return peak;
}

/* Returns the speed of one rank: its share of a device, at the cluster's efficiency. */
static struct device_speed rank_speed(const struct train_opts *o, const struct cluster *c)
{
	double share = cluster_compute_fraction(c, host_ranks(o, c));
	struct device_speed s = {.memory = share * c->memory};
	for (int type = 0; type < N_DTYPES; type++)
		s.flops[type] = share * c->efficiency * rank_peak(o, c, (enum dtype)type);
	s.attention = s.flops[DT_BF16] * c->attention / c->efficiency;
	s.experts = c->experts / c->efficiency;
	return s;
}

static void add_row(struct prediction *p, const struct simulated_row *row)
{
	BUG_ON(p->n_rows == MAX_ROWS);
	p->row[p->n_rows++] = *row;
	p->exposed += row->exposed;
}

/* Begins the timeline of a rank, which does not wait for other stages. */
static void begin_trace(const struct subject *s)
{
	if (!s->trace)
		return;
	trace_clock = simulate_now;
	trace_start();
}

/* Appends the events of a rank's timeline to s->trace, if any, and stops tracing. */
static void end_trace(const struct subject *s, int rank)
{
	char name[48];
	if (!s->trace)
		return;
	trace_stop();
	snprintf(name, sizeof(name), "rank %d, predicted", rank);
	trace_print(s->trace, rank, name);
	trace_clear();
	trace_clock = clock_seconds;
}

/* Simulates a step of n_micro micro-batches on a rank. Sets *p, and adds to the times in *a. */
static void simulate_rank(const struct subject *s, int rank, int64_t n_micro,
	struct actions *a, struct prediction *p)
{
	struct device_speed speed = rank_speed(s->o, s->c);
	struct trainer t;
	int n;
	*p = (struct prediction){.exposed = 0};
	struct simulated_links links = s->c->links;
	links.nccl = s->o->comm != COMM_MPI;
	simulate_begin(&links, &speed.seconds);
	plan_open(&t, s->o, s->m, rank, n_micro);
	begin_trace(s);
	speed.counted = t.d.flops;
	t.d.speed = &speed;
	trainer_build_pipe(&t);
	t.pipe.done = add_action_time;
	t.pipe.with = a;
	a->last = 0;
	plan_run_step(&t);
	p->rest = simulate_now() - a->last;
	p->pipeline = a->last;
	p->computation = speed.seconds;
	p->read = (double)t.store->read;
	p->written = (double)t.store->written;
	const struct simulated_row *rows = simulate_rows(&n);
	for (int i = 0; i < n; i++)
		add_row(p, &rows[i]);
	end_trace(s, rank);
	simulate_end();
	plan_close(&t);
}

/* ---- the pipeline ---------------------------------------------------------------- */

/* Returns the seconds of a transfer between two stages. */
static double transfer_seconds(const struct prediction *p)
{
	for (int i = 0; i < p->n_rows; i++) {
		const struct simulated_row *row = &p->row[i];
		if (strcmp(row->name, "pipeline"))
			continue;
		int d = row->n[TRANSFER_OUT] ? TRANSFER_OUT : TRANSFER_IN;
		return row->seconds[d] / (double)row->n[d];
	}
	return 0;
}

/* Returns the mean time of an action. */
static double mean_seconds(const struct actions *a, enum action_kind kind, int stage)
{
	return a->n[kind][stage] ? a->seconds[kind][stage] / (double)a->n[kind][stage]
				 : 0;
}

/* Returns the time of all stages, if actions take their mean times and wait for each other. The
 * schedule must be valid. */
static double pipeline_seconds(const struct train_opts *o, const struct actions *a,
	double transfer, int64_t n_micro)
{
	int stages = o->resolved.degree[AXIS_PP] * (int)o->pp_stages;
	scoped_ptr double *cost = xcalloc((size_t)stages * 3, sizeof(*cost));
	double *x = cost + stages, *w = x + stages;
	struct schedule s;
	struct timeline line;
	struct err e = {0};
	for (int i = 0; i < stages; i++) {
		cost[i] = mean_seconds(a, ACTION_FORWARD, i);
		x[i] = mean_seconds(a, ACTION_BACKWARD, i) +
		       mean_seconds(a, ACTION_BACKWARD_X, i);
		w[i] = mean_seconds(a, ACTION_BACKWARD_W, i);
	}
	if (schedule_init(&s, (enum schedule_kind)o->pp_schedule,
		    o->resolved.degree[AXIS_PP], (int)o->pp_stages,
		    ceil_div(n_micro, layout_data_ranks(o)), &e))
		die_err(&e);
	const struct schedule_costs costs = {cost, x, w, .transfer = transfer};
	schedule_time(&s, &costs, &line);
	double total = line.total;
	timeline_release(&line);
	schedule_release(&s);
	return total;
}

/* Sets *p to the times of n_micro micro-batches on the busiest of all stages' first ranks. */
static void predict_short(const struct subject *s, int64_t n_micro, struct prediction *p)
{
	const struct train_opts *o = s->o;
	size_t stages = (size_t)(o->resolved.degree[AXIS_PP] * max64(1, o->pp_stages));
	struct actions a = {.last = 0};
	int at[N_AXES] = {0};
	double rest = 0;
	for (int k = 0; k < ACTION_KINDS; k++) {
		a.seconds[k] = xcalloc(stages, sizeof(*a.seconds[k]));
		a.n[k] = xcalloc(stages, sizeof(*a.n[k]));
	}
	for (int i = 0; i < o->resolved.degree[AXIS_PP]; i++) {
		struct prediction one;
		at[AXIS_PP] = i;
		simulate_rank(s, mesh_rank(o->resolved.degree, at), n_micro, &a, &one);
		if (!i || one.computation + one.exposed > p->computation + p->exposed)
			*p = one;
		rest = one.rest > rest ? one.rest : rest;
	}
	p->rest = rest;
	if (o->resolved.degree[AXIS_PP] > 1)
		p->pipeline = pipeline_seconds(o, &a, transfer_seconds(p), n_micro);
	for (int k = 0; k < ACTION_KINDS; k++) {
		free(a.seconds[k]);
		free(a.n[k]);
	}
}

/* ---- a whole step ---------------------------------------------------------------- */

/* Returns the row with the same group and name, or NULL. The order of rows may differ. */
static const struct simulated_row *find_row(
	const struct prediction *p, const struct simulated_row *row)
{
	for (int i = 0; i < p->n_rows; i++)
		if (!strcmp(p->row[i].group, row->group) &&
			!strcmp(p->row[i].name, row->name))
			return &p->row[i];
	return NULL;
}

/* Adds `times` times the difference of *value and the value with one more period. */
static void extrapolate(double *value, double more, double times)
{
	*value += times * (more - *value);
}

/* Returns the micro-batches after which a schedule repeats: the ranks of the pipeline if a rank has
 * several stages in a loop, else 1. */
static int64_t schedule_period(const struct train_opts *o)
{
	bool loop = schedule_kinds[o->pp_schedule].placement == STAGES_LOOP;
	return loop && o->pp_stages > 1 ? o->resolved.degree[AXIS_PP] : 1;
}

/* Predicts a step. With many micro-batches, further periods are assumed to take equally long. */
static void predict_step(const struct subject *s, bool overlaps, struct prediction *p)
{
	enum { FEW = 4 };
	struct prediction more;
	int64_t n = layout_micro_batches(s->o), ranks = layout_data_ranks(s->o);
	int64_t few = plan_few_micro_batches(s->o, FEW), period = schedule_period(s->o);
	few += (n - few) / ranks % period * ranks;
	double times = (double)((n - few) / ranks / period);
	bool before = comm_overlaps();
	comm_plan_overlap(overlaps);
	predict_short(s, few, p);
	if (few < n && !s->trace) {
		predict_short(s, few + period * ranks, &more);
		extrapolate(&p->computation, more.computation, times);
		extrapolate(&p->exposed, more.exposed, times);
		extrapolate(&p->pipeline, more.pipeline, times);
		extrapolate(&p->rest, more.rest, times);
		extrapolate(&p->read, more.read, times);
		extrapolate(&p->written, more.written, times);
		for (int i = 0; i < p->n_rows; i++) {
			const struct simulated_row *row = find_row(&more, &p->row[i]);
			if (!row)
				continue;
			extrapolate(&p->row[i].exposed, row->exposed, times);
			for (int d = 0; d < N_TRANSFER_DIRECTIONS; d++)
				extrapolate(
					&p->row[i].seconds[d], row->seconds[d], times);
		}
	}
	comm_plan_overlap(before);
}

/* ---- text ------------------------------------------------------------------------ */

/* Returns the seconds of communication in the slower direction. */
static double row_seconds(const struct simulated_row *row)
{
	double out = row->seconds[TRANSFER_OUT], in = row->seconds[TRANSFER_IN];
	return out > in ? out : in;
}

/* Returns the seconds of copying offloaded state, both ways at once; 0: unknown bandwidth. */
static double copy_seconds(const struct cluster *c, const struct prediction *p)
{
	return c->pcie > 0 ? fmax(p->read, p->written) / c->pcie : 0;
}

/* Returns the seconds of copies that the rest of the step cannot hide. */
static double wait_seconds(const struct cluster *c, const struct prediction *p)
{
	return fmax(0, copy_seconds(c, p) - p->pipeline - p->rest);
}

static double step_seconds(const struct cluster *c, const struct prediction *p)
{
	return p->pipeline + p->rest + wait_seconds(c, p);
}

/* Appends the seconds of communication by group, with overlap (p[0]) and without (p[1]). */
static void print_communication(const struct prediction p[2], struct str *out)
{
	double all = 0;
	if (p->n_rows)
		str_printf(out, "# %-22s %12s %12s %12s\n", "communication", "alone",
			"exposed", "no overlap");
	for (int i = 0; i < p->n_rows; i++) {
		const struct simulated_row *row = &p->row[i],
					   *without = find_row(&p[1], row);
		char name[40];
		snprintf(name, sizeof(name), "%s %s", row->group, row->name);
		all += row_seconds(row);
		str_printf(out, "  %-22s %12.6f", name, row_seconds(row));
		if (strcmp(row->name, "pipeline"))
			str_printf(out, " %12.6f %12.6f\n", row->exposed,
				without ? without->exposed : 0);
		else
			str_puts(out, "            -            -  part of the bubble\n");
	}
	if (p->n_rows)
		str_printf(out, "  %-22s %12.6f %12.6f %12.6f\n", "all", all, p->exposed,
			p[1].exposed);
}

/* Appends a row with two values in the same format, and a help text. */
static void print_pair(struct str *out, const char *name, const char *format,
	const double value[2], const char *help)
{
	char text[2][NUM_TEXT];
	for (int i = 0; i < 2; i++)
		snprintf(text[i], sizeof(text[i]), format, value[i]);
	str_printf(out, "  %-22s %12s %12s%s%s\n", name, text[0], text[1],
		*help ? "  " : "", help);
}

/* Appends tokens/s and MFU for both predictions. */
static void print_throughput(
	const struct subject *s, const struct prediction p[2], struct str *out)
{
	const struct train_opts *o = s->o;
	double ranks = (double)(max64(1, o->edit.workers) *
				mesh_ranks(o->resolved.degree)),
	       peak;
	double all[2], rate[2], mfu[2], causal[2];
	peak = rank_peak(o, s->c, options_gemm_dtype(o));
	for (int i = 0; i < 2; i++) {
		all[i] = (double)(o->batch * s->m->c.context) / step_seconds(s->c, &p[i]);
		rate[i] = all[i] / ranks;
		mfu[i] = rate[i] * model_flops_per_token(s->m, false) / peak;
		causal[i] = rate[i] * model_flops_per_token(s->m, true) / peak;
	}
	print_pair(out, "tokens/s", "%.0f", all, "");
	print_pair(out, "tokens/s/GPU", "%.0f", rate, "");
	print_pair(out, "mfu", "%.4f", mfu, "6 N + 12 L C T");
	print_pair(out, "mfu_causal", "%.4f", causal, "6 N + 6 L C T");
}

/* Appends the parts of a step, and its rates, with and without overlap. */
static void print_step(
	const struct subject *s, const struct prediction p[2], struct str *out)
{
	double step[2], bubble[2], computation[2], exposed[2], waits[2];
	double peak = rank_peak(s->o, s->c, options_gemm_dtype(s->o));
	char text[80];
	for (int i = 0; i < 2; i++) {
		computation[i] = p[i].computation;
		exposed[i] = p[i].exposed;
		step[i] = step_seconds(s->c, &p[i]);
		waits[i] = wait_seconds(s->c, &p[i]);
		bubble[i] = step[i] - computation[i] - exposed[i] - waits[i];
	}
	str_printf(out, "# %-22s %12s %12s\n", "step", "overlap", "no overlap");
	snprintf(text, sizeof(text), "matmuls at %.0f of %.0f TFLOP/s",
		1e-12 * s->c->efficiency * peak, 1e-12 * peak);
	print_pair(out, "computation", "%.6f", computation, text);
	print_pair(out, "exposed", "%.6f", exposed, "communication, not hidden");
	if (s->o->resolved.degree[AXIS_PP] > 1)
		print_pair(out, "bubble", "%.6f", bubble, "waiting for other stages");
	if (options_offload(s->o) && s->c->pcie > 0)
		print_pair(out, "copies", "%.6f", waits,
			"of offloaded state, beyond what the step hides");
	print_pair(out, "step", "%.6f", step, "");
	print_throughput(s, p, out);
}

/* Appends what the prediction leaves out. */
static void print_limits(
	const struct train_opts *o, const struct cluster *c, struct str *out)
{
	if (options_offload(o) && c->pcie <= 0)
		str_puts(out, "# without the copies of offloaded state\n");
	if (o->edit.workers)
		str_puts(out, "# a step between synchronizations\n");
}

/* ---- the timeline ---------------------------------------------------------------- */

/* Writes the events as a JSON file of Chrome's trace format. Removes the last comma. */
static int write_trace(const char *path, const struct str *events, struct err *e)
{
	scoped_str text = {0};
	int fd = file_begin(path, e), rc = -1;
	if (fd >= 0) {
		str_printf(&text,
			"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n%.*s\n]}\n",
			(int)events->len -
				(int)strlen(",\n"), /* JSON allows no last comma */
			events->s);
		rc = file_end(fd, path, write_all(fd, text.s, text.len), e);
	}
	return rc;
}

/* Writes the timeline of a step with only a few micro-batches. */
static int trace_step(const struct subject *given, struct err *e)
{
	struct subject s = *given;
	scoped_str events = {0};
	struct prediction p;
	s.trace = &events;
	predict_step(&s, comm_overlaps(), &p);
	return write_trace(s.o->trace, &events, e);
}

void predict_step_time(const struct train_opts *o, struct model *m,
	const struct cluster *c, struct step_time *t)
{
	struct prediction p;
	const struct subject s = {.o = o, .m = m, .c = c};
	predict_step(&s, true, &p);
	*t = (struct step_time){.computation = p.computation,
		.exposed = p.exposed,
		.step = p.pipeline + p.rest,
		.copies = copy_seconds(c, &p),
		.rest = p.rest};
	t->bubble = t->step - t->computation - t->exposed;
	for (int i = 0; i < p.n_rows && i < STEP_TIME_ROWS; i++) {
		struct step_time_row *row = &t->row[t->n_rows++];
		snprintf(row->group, sizeof(row->group), "%s", p.row[i].group);
		row->alone = row_seconds(&p.row[i]);
		row->exposed = p.row[i].exposed;
	}
}

int predict_print(
	const struct train_opts *o, struct model *m, struct str *out, struct err *e)
{
	struct prediction p[2]; /* with overlap, and without */
	struct cluster c;
	if (cluster_parse(o->cluster, &c, e))
		return -1;
	const struct subject s = {.o = o, .m = m, .c = &c};
	if (o->resolved.degree[AXIS_TP] > c.links.host_ranks)
		warn("--tp %d is more than the %d ranks per host of --cluster, so the all-reduces of "
		     "every layer cross the network; give a --tp that divides a host, and more "
		     "--fsdp or --pp",
			o->resolved.degree[AXIS_TP], c.links.host_ranks);
	for (int i = 0; i < 2; i++)
		predict_step(&s, i == 0, &p[i]);
	str_puts(out, "# predicted seconds of a step, on ");
	cluster_print(&c, out);
	str_putc(out, '\n');
	print_communication(p, out);
	print_step(&s, p, out);
	print_limits(o, &c, out);
	return o->trace ? trace_step(&s, e) : 0;
}
