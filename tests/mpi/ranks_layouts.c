/* Law 1 on every layout: a layout says who computes, never what is computed.
 * ranks: 8
 * device: cpu cuda
 *
 * The layouts of tests/support/layouts.c are trained side by side, each by as many ranks as it has,
 * and so are the same runs on one rank, the controls. Loss, gradient norm and parameters must
 * be equal in every bit after every step, replicas and their plan right, and a run that is
 * saved on one layout and goes on on another must end as the one that was never stopped.
 * A third of the layouts do it again with data in which few tokens count in the loss, or stretches.
 *
 * Two of three layouts that can have --deal speed have it (DEAL=yes: all): after each step, units get
 * micro-batches as if they had random speeds.
 *
 * Every third run has --check-sums yes, every other third --referee 1, and on CPUs the last third
 * --check-replicas yes and --check-memory yes (CHECK_SUMS=yes, REFEREE=yes, CHECK_REPLICAS=yes: all).
 * They must raise no alarm.
 *
 * LONG=yes adds random layouts, of SEED or of the clock, on CPUs, of up to as many ranks as there
 * are; some of experts are saved in the middle and go on with another --ep. LAYOUTS_RANDOM=N: so many
 * of them, with experts, and nothing of the table. LAYOUTS_STOP=yes: end at the first that fails. LAYOUTS_SHOW=yes: print all. LAYOUTS_ONLY=TEXT: those of the table whose options have the text. On a GPU, which all ranks share, TEST_PART=I/N is the I-th of N parts of the
 * table; a real one does a twelfth, or with LONG=yes all, and an emulated one a few. */
#include "base/file.h"
#include "tests/support/copies.h"
#include "tests/support/counted.h"
#include "tests/support/device.h"
#include "tests/support/layouts.h"
#include "tests/support/ranks.h"
#include "plan/fit.h"
#include "referee/referee.h"

#include "parallel/store_internal.h"
#include "engine/shares.h"
#include "engine/state.h"
#include "engine/step.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	COUNTED_EVERY = 3,
	PAIRS = 12,
	LONG_PAIRS = 60,
	LONG_LAYOUTS = 220,
	STOP_AT = LAYOUT_STEPS / 2
};

static char *shards[N_COUNTED];
static int n_dealt; /* steps of this rank after which --deal speed changes the counts */
static struct str folder;

/* ---- a run ----------------------------------------------------------------------- */

/* What it computed, and what is to be said of it beside that. */
struct trace {
	float loss[LAYOUT_STEPS], grad_norm[LAYOUT_STEPS];
	uint64_t hash[LAYOUT_STEPS]; /* of the parameters after the step */
	double val_loss;
	uint64_t file[2]; /* of checkpoints, in the middle and at the end */
	char trouble[256];
};

static void trouble(struct trace *out, const char *what)
{
	if (!*out->trouble)
		snprintf(out->trouble, sizeof(out->trouble), "%.255s", what);
}

/* Collective over c. A rank's own trouble is everybody's. */
static void agree(struct comm *c, struct trace *out, struct err *e)
{
	if (comm_agree(c, e))
		trouble(out, e->msg);
}

/* Collective. The bytes of a step, other than rows of experts, are those that were planned, and up to 16
 * of the number of targets, if not all count. */
static void check_sent(
	struct trainer *t, const struct plan *p, int64_t sent, struct trace *out)
{
	struct err e = {0};
	double planned = p->sent - p->sent_rows;
	double more = (double)sent - planned, most = t->data.set->counted ? 16 : 0;
	if (more < 0 || more > most)
		err_set(&e, EX_FAILED, "sent %lld bytes in a step, planned %.0f",
			(long long)sent, planned);
	agree(t->world, out, &e);
}

/* Collective. If a step updated the parameters, at most a twentieth of what was planned stays unused: of batches
 * without a token that counts, the update's scratch memory does. */
static void check_memory(
	struct trainer *t, const struct plan *p, bool updated, struct trace *out)
{
	struct err e = {0};
	double used = (double)trainer_peak_bytes(t);
	double planned = (double)(plan_total(p) - p->data_bytes - p->copy_bytes -
				  p->work_bytes - p->pinned_bytes);
	if (used > planned || (updated && used < 0.95 * planned))
		err_set(&e, EX_FAILED, "used %.0f bytes of memory, planned %.0f", used,
			planned);
	agree(t->world, out, &e);
}

/* Collective. */
static void check_replicas(struct trainer *t, struct trace *out)
{
	struct err e = {0};
	if (!test_on_cuda() && !test_copies_agree(t->store))
		err_set(&e, EX_FAILED, "replicas differ");
	agree(t->world, out, &e);
}

/* Collective. Returns a hash of the file that was written, on rank 0. */
static uint64_t save(struct trainer *t, const char *path)
{
	struct err e = {0};
	struct str bytes = {0};
	if (state_save(t, path, &e))
		die_err(&e);
	if (t->world->rank)
		return 0;
	if (file_read(path, (size_t)1 << 30, &bytes, &e))
		die_err(&e);
	uint64_t hash = hash_bytes(bytes.s, bytes.len, 0);
	str_free(&bytes);
	return hash;
}

/* Steps [from, to) of a run, and where it begins and ends: NULL: nowhere. */
struct leg {
	int from, to;
	const char *load, *middle, *end;
};

/* Deals the micro-batches of the step after next as if units had random speeds. */
static void deal_randomly(struct trainer *t)
{
	const struct microbatches *mb = &t->layout.microbatches;
	if (!t->deal.wanted)
		return;
	scoped_ptr int64_t *time = xcalloc((size_t)shares_units(mb), sizeof(*time));
	for (int64_t u = 0; u < shares_units(mb); u++)
		time[u] = 10 + (int64_t)(90 * test_uniform((uint64_t)t->step, u));
	shares_by_speed(mb, time, t->deal.wanted);
	n_dealt += memcmp(t->layout.begin, t->deal.fetched,
			   ((size_t)shares_units(mb) + 1) * sizeof(*time)) != 0;
}

/* Returns whether a step updated the parameters. */
static bool steps(
	struct trainer *t, const struct plan *p, const struct leg *leg, struct trace *out)
{
	bool sent_is_known = false, skipped = false, updated = false;
	for (int i = leg->from; i < leg->to; i++) {
		struct step_result r;
		int64_t sent = mesh_bytes_sent(&t->mesh) - t->pass.experts.sent;
		step_run(t, NULL, &r);
		sent = mesh_bytes_sent(&t->mesh) - t->pass.experts.sent - sent;
		deal_randomly(t);
		/* A step that updates nothing sends less, and so may the next. */
		bool even = i == leg->from || !t->deal.wanted;
		if (!skipped && !r.skipped && !r.empty && !sent_is_known && even &&
			!t->audit) { /* no plan has audits */
			check_sent(t, p, sent, out);
			sent_is_known = true;
		}
		skipped = r.skipped || r.empty;
		updated |= !skipped;
		if (r.checked != CHECKED_RIGHT)
			trouble(out, r.found.s);
		str_free(&r.found);
		out->loss[i] = r.loss;
		out->grad_norm[i] = r.grad_norm;
		out->hash[i] = store_hash(t->store);
		if (leg->middle && i + 1 == STOP_AT)
			out->file[0] = save(t, leg->middle);
	}
	return updated;
}

/* Collective over c. */
static void train(struct comm *c, const struct train_opts *options,
	enum counted_kind data_kind, const struct leg *leg, struct trace *out)
{
	struct train_opts o = *options;
	struct dataset data;
	struct trainer t;
	struct plan plan;
	struct err e = {0};
	strs_add(&o.data, shards[data_kind]);
	o.empty_batch = EMPTY_SKIP;
	if (dataset_open(&data, &o, c, &e) || trainer_open(&t, &o, c, &data, &plan, &e))
		die_err(&e);
	t.checks = referee_checks;
	checks_prepare(&t);
	if (leg->load && state_load(&t, leg->load, false, &e))
		die_err(&e);
	bool updated = steps(&t, &plan, leg, out);
	check_replicas(&t, out);
	check_memory(&t, &plan, updated, out);
	if (leg->end)
		out->file[1] = save(&t, leg->end);
	if (leg->to == LAYOUT_STEPS)
		out->val_loss = eval_loss(&t, SPLIT_VAL);
	trainer_close(&t);
	dataset_close(&data);
	strs_free(&o.data);
}

/* ---- what is to be done ---------------------------------------------------------- */

enum kind { CONTROL, TABLE, PAIR, RANDOM, COUNTED, N_KINDS };

struct job {
	enum kind kind;
	struct train_opts o, then; /* a pair goes on with the second */
	enum counted_kind data;
	char title[1100];
	int control; /* the job that says what is right */
	bool save;   /* a control of pairs */
	int ranks, leader;
	bool done, judged;
	struct trace out;
};

static struct job *jobs;
static int n_jobs, failed[N_KINDS], n_of[N_KINDS];
static struct strs
	arithmetics; /* of the controls, which are the first jobs; and their data, as a comment */

static struct job *new_job(enum kind kind)
{
	jobs = xrealloc(jobs, (size_t)(n_jobs + 1) * sizeof(*jobs));
	jobs[n_jobs] = (struct job){.kind = kind, .ranks = 1};
	n_of[kind]++;
	return &jobs[n_jobs++];
}

/* Its number, among the controls. */
static int control_of(const struct train_opts *o, enum counted_kind data)
{
	struct str text = {0};
	int64_t i = 0;
	layout_arithmetic(o, &text);
	str_printf(&text, "# %d\n", (int)data);
	while (i < arithmetics.n && strcmp(arithmetics.v[i], text.s))
		i++;
	if (i == arithmetics.n)
		strs_add(&arithmetics, text.s);
	str_free(&text);
	return (int)i;
}

static enum counted_kind data_of(int control)
{
	return (enum counted_kind)atoi(strrchr(arithmetics.v[control], '#') + 1);
}

static void add_layout(
	enum kind kind, const struct test_layout *l, enum counted_kind data)
{
	struct err e = {0};
	struct job *j = new_job(kind);
	if (layout_options(l, &j->o, &e))
		die(EX_USAGE, "%s: %s: %s", l->model, l->options, e.msg);
	snprintf(j->title, sizeof(j->title), "%s: %s%s", l->model, l->options,
		data ? ", some tokens count" : "");
	j->data = data;
	j->ranks = layout_ranks(&j->o);
	j->o.check_sums = n_jobs % 3 == 0 || getenv("CHECK_SUMS");
	j->o.check_replicas =
		!test_on_cuda() && (n_jobs % 3 == 1 || getenv("CHECK_REPLICAS"));
	j->o.check_memory = j->o.check_replicas;
	if (!j->o.data_per_rank && !j->o.edit.workers &&
		(n_jobs % 3 == 2 || getenv("REFEREE")))
		j->o.referee = 1;
	if (layout_can_deal(&j->o) && (n_of[kind] % 3 || getenv("DEAL")))
		j->o.deal = DEAL_SPEED;
	j->control = control_of(&j->o, data);
}

/* A random one of the layouts whose precision, and control, is this one; -1: any. `but`: not
 * that one. NULL: there is none. */
static const struct job *any_layout(
	double random, int n_layout_jobs, int dtype, int control, int but)
{
	int *those = xcalloc((size_t)n_layout_jobs, sizeof(*those)), n = 0;
	for (int i = 0; i < n_layout_jobs; i++)
		if (jobs[i].kind != PAIR && (dtype < 0 || jobs[i].o.dtype == dtype) &&
			(control < 0 || jobs[i].control == control) && i != but)
			those[n++] = i;
	const struct job *j = n ? &jobs[those[(int)(random * n)]] : NULL;
	free(those);
	return j;
}

/* Sets the job to a pair: the first layout, then the second, or one rank if that is NULL. */
static void set_pair(struct job *j, const struct job *first, const struct job *second)
{
	j->o = first->o;
	j->control = first->control;
	j->data = first->data;
	j->ranks = first->ranks;
	if (second) {
		j->then = second->o;
		j->ranks = first->ranks > second->ranks ? first->ranks : second->ranks;
	} else {
		layout_control(arithmetics.v[j->control], &j->then);
	}
	snprintf(j->title, sizeof(j->title), "%.500s, then %.500s", first->title,
		second ? second->title : "one rank");
}

/* A layout of those before, and another of the same arithmetic; where there is none, one
 * rank. Every second pair has one precision after the other: scales are saved as well. */
static void add_pair(uint64_t seed, int64_t index, int n_layout_jobs)
{
	enum { DTYPES = PRECISION_FLOAT8 + 1 };
	struct job *j = new_job(PAIR);
	double random = test_uniform(seed, 2 * index);
	const struct job *first = any_layout(random, n_layout_jobs,
		index % 2 ? (int)(index / 2 % DTYPES) : -1, -1, -1);
	if (!first) /* there are few layouts */
		first = any_layout(random, n_layout_jobs, -1, -1, -1);
	set_pair(j, first,
		any_layout(test_uniform(seed, 2 * index + 1), n_layout_jobs, -1,
			first->control, (int)(first - jobs)));
}

/* Adds a pair whose first layout is the last job, a random one with experts. */
static void add_pair_of_last(const struct test_layout *l, uint64_t seed, int64_t index)
{
	const struct job first = jobs[n_jobs - 1];
	struct job second = {.ranks = 1};
	struct test_layout other;
	struct err e = {0};
	if (!layout_random_other(&other, l, seed, index, world->size))
		return;
	if (layout_options(&other, &second.o, &e))
		die_err(&e);
	second.ranks = layout_ranks(&second.o);
	snprintf(second.title, sizeof(second.title), "%s", other.options);
	set_pair(new_job(PAIR), &first, &second);
}

/* Adds n random layouts; `experts`: only layouts with experts. */
static void add_random_layouts(int n, uint64_t seed, bool experts)
{
	enum { PAIR_EVERY = 4 };
	int n_experts = 0;
	for (int i = 0; n_of[RANDOM] < n; i++) {
		struct test_layout l;
		layout_random(&l, seed, i, world->size);
		if (experts && !layout_has_experts(&l))
			continue;
		add_layout(RANDOM, &l, (enum counted_kind)(i % N_COUNTED));
		if (layout_has_experts(&l) && ++n_experts % PAIR_EVERY == 0)
			add_pair_of_last(&l, seed, i);
	}
}

/* Controls come first: who is compared has something to be compared with. */
static void add_controls(void)
{
	int n = (int)arithmetics.n, others = n_jobs;
	for (int i = 0; i < n; i++)
		new_job(CONTROL);
	memmove(jobs + n, jobs, (size_t)others * sizeof(*jobs));
	for (int i = 0; i < n; i++) {
		jobs[i] = (struct job){
			.kind = CONTROL, .ranks = 1, .control = i, .data = data_of(i)};
		layout_control(arithmetics.v[i], &jobs[i].o);
	}
	for (int i = n; i < n_jobs; i++)
		jobs[jobs[i].control].save |= jobs[i].kind == PAIR;
}

/* Of the table, layouts FIRST, FIRST + STEP, ...: all of it, or what an emulated GPU has time for, or a
 * real one that eight ranks share, or a part. */
static void choose_layouts(int *first, int *step)
{
	enum { EMULATED = 31, REAL = 12 };
	const char *all = getenv("LONG");
	test_part(first, step);
	if (test_gpu_slow())
		*step *= EMULATED;
	else if (test_on_cuda() && !(all && !strcmp(all, "yes")))
		*step *= REAL;
}

/* Returns true if a layout of the table is wanted. */
static bool is_wanted(const struct test_layout *l)
{
	const char *only = getenv("LAYOUTS_ONLY");
	return !only || strstr(l->options, only);
}

static void make_jobs(bool more, uint64_t seed)
{
	const char *only = getenv("LAYOUTS_RANDOM");
	int first, step;
	choose_layouts(&first, &step);
	if (only)
		first = n_layouts;
	for (int i = first; i < n_layouts; i += step)
		if (is_wanted(&layouts[i]))
			add_layout(TABLE, &layouts[i], COUNTED_ALL);
	for (int i = first; i < n_layouts; i += COUNTED_EVERY * step)
		if (is_wanted(&layouts[i]))
			add_layout(COUNTED, &layouts[i],
				n_jobs % 2 ? COUNTED_FEW : COUNTED_MIXED);
	if (getenv("LAYOUTS_ONLY") && !n_jobs) {
		if (!world->rank)
			print_error("LAYOUTS_ONLY=%s: no layout has this text\n",
				getenv("LAYOUTS_ONLY"));
		comm_barrier(world);
		exit(1);
	}
	if (more)
		add_random_layouts(only ? atoi(only) : LONG_LAYOUTS, seed, only != NULL);
	int n = n_jobs;
	for (int i = 0; i < (more && !only ? LONG_PAIRS : PAIRS); i++)
		add_pair(seed, i, n);
	add_controls();
	for (int i = 0; i < n_jobs && getenv("LAYOUTS_SHOW") && !world->rank; i++)
		if (jobs[i].kind != CONTROL)
			print_error("%d, as %d: %s\n", i, jobs[i].control, jobs[i].title);
}

/* ---- doing it -------------------------------------------------------------------- */

static const char *file_name(struct str *out, int job, const char *which)
{
	str_printf(out, "%s/%d-%s.h5", folder.s, job, which);
	return out->s;
}

/* Collective over c. The first layout saves and stops, the second goes on. */
static void run_pair(struct comm *c, struct job *j, const char *middle, const char *end)
{
	const struct train_opts *of[] = {&j->o, &j->then};
	const struct leg legs[] = {
		{0, STOP_AT, NULL, middle, NULL},
		{STOP_AT, LAYOUT_STEPS, middle, NULL, end},
	};
	for (int i = 0; i < 2; i++) {
		int n = layout_ranks(of[i]);
		struct comm *some = comm_split(c, c->rank < n ? 0 : -1, "world");
		if (some) {
			train(some, of[i], j->data, &legs[i], &j->out);
			comm_free(some);
		}
		comm_barrier(c);
	}
}

static void run_job(struct comm *c, int number)
{
	struct job *j = &jobs[number];
	struct str middle = {0}, end = {0};
	file_name(&middle, number, "middle");
	file_name(&end, number, "end");
	if (j->kind == PAIR) {
		run_pair(c, j, middle.s, end.s);
	} else {
		const struct leg all = {.to = LAYOUT_STEPS,
			.middle = j->save ? middle.s : NULL,
			.end = j->save ? end.s : NULL};
		train(c, &j->o, j->data, &all, &j->out);
	}
	if (c->rank == 0 && (j->save || j->kind == PAIR)) {
		unlink(middle.s);
		unlink(end.s);
	}
	str_free(&middle);
	str_free(&end);
}

/* ---- comparing ------------------------------------------------------------------- */

/* The first value that differs, in the order in which a step has them. */
static bool first_difference(const struct trace *a, const struct trace *b, char out[256])
{
	for (int i = 0; i < LAYOUT_STEPS; i++) {
		const float x[] = {a->loss[i], a->grad_norm[i]};
		const float y[] = {b->loss[i], b->grad_norm[i]};
		static const char *const names[] = {"loss", "grad_norm"};
		for (int k = 0; k < 2; k++) {
			if (!memcmp(&x[k], &y[k], sizeof(float)))
				continue;
			snprintf(out, 256, "step %d: %s is %.9g, not %.9g", i + 1,
				names[k], (double)y[k], (double)x[k]);
			return true;
		}
		if (a->hash[i] != b->hash[i]) {
			snprintf(out, 256, "step %d: parameters differ after it", i + 1);
			return true;
		}
	}
	if (memcmp(&a->val_loss, &b->val_loss, sizeof(double))) {
		snprintf(
			out, 256, "val_loss is %.9g, not %.9g", b->val_loss, a->val_loss);
		return true;
	}
	for (int i = 0; i < 2; i++) {
		if (!b->file[i] || a->file[i] == b->file[i])
			continue;
		snprintf(out, 256, "the checkpoint of step %d has other bytes",
			i ? LAYOUT_STEPS : STOP_AT);
		return true;
	}
	return false;
}

static void judge(struct job *j)
{
	char what[256];
	bool bad = first_difference(&jobs[j->control].out, &j->out, what);
	j->judged = true;
	if (!bad && *j->out.trouble)
		snprintf(what, sizeof(what), "%.255s", j->out.trouble);
	if (!bad && !*j->out.trouble)
		return;
	failed[j->kind]++;
	if (world->rank == 0)
		print_error("%s: %s\n", j->title, what);
	if (getenv("LAYOUTS_STOP")) {
		comm_barrier(world);
		exit(1);
	}
}

/* ---- side by side ---------------------------------------------------------------- */

/* The jobs of a wave, from the first that is left on: as many as there are ranks for. Returns
 * this rank's, or -1. */
static int deal_wave(void)
{
	int used = 0, mine = -1;
	for (int i = 0; i < n_jobs; i++) {
		struct job *j = &jobs[i];
		j->leader = -1;
		if (j->done || j->ranks > world->size - used)
			continue;
		j->leader = used;
		if (world->rank >= used && world->rank < used + j->ranks)
			mine = i;
		used += j->ranks;
	}
	return mine;
}

static void run_wave(void)
{
	int mine = deal_wave();
	struct trace *all = xcalloc((size_t)world->size, sizeof(*all)), none = {0};
	struct comm *c = comm_split(world, mine, "world");
	if (c) {
		run_job(c, mine);
		comm_free(c);
	}
	comm_barrier(world);
	comm_allgather(world, mine < 0 ? &none : &jobs[mine].out, all, sizeof(*all));
	for (int i = 0; i < n_jobs; i++) {
		struct job *j = &jobs[i];
		if (j->leader < 0)
			continue;
		j->out = all[j->leader];
		j->done = true;
	}
	free(all);
	for (int i = 0; i < n_jobs; i++)
		if (jobs[i].done && !jobs[i].judged && jobs[jobs[i].control].done)
			judge(&jobs[i]);
}

static bool some_left(void)
{
	for (int i = 0; i < n_jobs; i++)
		if (!jobs[i].done)
			return true;
	return false;
}

/* ---- the tests ------------------------------------------------------------------- */

static uint64_t seed;
static bool longer;

static void every_two_techniques_meet(void **state)
{
	bool met[N_TECHNIQUES][N_TECHNIQUES] = {{false}};
	int missing = 0, three_axes = 0;
	(void)state;
	for (int i = 0; i < n_layouts; i++) {
		struct train_opts o;
		struct err e = {0};
		int axes = 0;
		assert_int_equal(layout_options(&layouts[i], &o, &e), 0);
		uint64_t has = layout_techniques(&o);
		for (int a = 0; a < N_TECHNIQUES; a++)
			for (int b = 0; b < N_TECHNIQUES; b++)
				met[a][b] |= has >> a & has >> b & 1;
		for (int a = 0; a < N_AXES; a++)
			axes += o.resolved.degree[a] > 1;
		three_axes += axes >= 3;
	}
	for (int a = 0; a < N_TECHNIQUES; a++)
		for (int b = 0; b < a; b++) {
			if (met[a][b] ||
				!techniques_meet((enum technique)a, (enum technique)b))
				continue;
			print_error("no layout has %s and %s\n", technique_names[a],
				technique_names[b]);
			missing++;
		}
	assert_int_equal(missing, 0);
	assert_true(n_layouts >= 48 && three_axes >= 8);
}

static void layouts_of_the_table(void **state)
{
	int n = 0;
	(void)state;
	for (int i = 0; i < n_jobs; i++)
		n += jobs[i].o.deal == DEAL_SPEED;
	if (n > 3) /* not only a few layouts */
		assert_true(comm_max_i64(world, n_dealt) > 0);
	assert_int_equal(failed[CONTROL], 0);
	assert_int_equal(failed[TABLE], 0);
}

static void saved_and_resumed_elsewhere(void **state)
{
	(void)state;
	assert_true(n_of[PAIR] >= PAIRS);
	assert_int_equal(failed[PAIR], 0);
}

static void random_layouts(void **state)
{
	(void)state;
	int n = 0;
	for (int i = 0; i < n_jobs; i++)
		n += jobs[i].kind == RANDOM && jobs[i].o.ep > 1;
	printf("# figure: %d random layouts of seed %llu, %d of them with --ep, %d of them differ; "
	       "%d pairs, %d of them differ\n",
		n_of[RANDOM], (unsigned long long)seed, n, failed[RANDOM], n_of[PAIR],
		failed[PAIR]);
	assert_int_equal(failed[RANDOM], 0);
}

/* The controls must not be equal to everything: other arithmetic gives other bits. */
static void other_arithmetic_differs(void **state)
{
	int n = (int)arithmetics.n;
	char what[256];
	double fallen = 0, n_fallen = 0;
	(void)state;
	for (int i = 0; i < n; i++) {
		const struct trace *x = &jobs[i].out;
		n_fallen += jobs[i].data == COUNTED_ALL;
		if (jobs[i].data == COUNTED_ALL)
			fallen += (double)(x->loss[0] - x->loss[LAYOUT_STEPS - 1]);
		/* and so it is clipped, if there is one */
		assert_true(jobs[i].data == COUNTED_FEW || x->grad_norm[0] > 0.5f);
		for (int k = 0; k < i; k++)
			assert_true(first_difference(x, &jobs[k].out, what));
	}
	assert_true(fallen / n_fallen > 0.05);
}

static void some_tokens_count(void **state)
{
	(void)state;
	assert_true(n_of[COUNTED] >= n_of[TABLE] / COUNTED_EVERY);
	assert_int_equal(failed[COUNTED], 0);
}

static void make_shards(void)
{
	struct str paths[N_COUNTED] = {{0}};
	const char *plain = ranks_shard(6000);
	for (int i = 0; i < N_COUNTED; i++) {
		if (world->rank == 0)
			shards[i] = i ? test_counted_shard(plain, (enum counted_kind)i)
				      : xstrdup(plain);
		str_puts(&paths[i], shards[i] ? shards[i] : "");
		comm_bcast_str(world, &paths[i], 0);
		shards[i] = paths[i].s;
	}
}

static void choose_seed(void)
{
	const char *say = getenv("SEED"), *much = getenv("LONG");
	const char *device = getenv("PT_TEST_DEVICE");
	longer = much && !strcmp(much, "yes") && !(device && !strcmp(device, "cuda"));
	seed = say ? strtoull(say, NULL, 10) : longer ? (uint64_t)time(NULL) : 1;
	comm_bcast(world, &seed, sizeof(seed), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_two_techniques_meet),
		cmocka_unit_test(layouts_of_the_table),
		cmocka_unit_test(some_tokens_count),
		cmocka_unit_test(saved_and_resumed_elsewhere),
		cmocka_unit_test(other_arithmetic_differs),
	};
	const struct CMUnitTest more[] = {cmocka_unit_test(random_layouts)};
	ranks_open();
	comm_watchdog(world, 120);
	make_shards();
	if (world->rank == 0)
		str_puts(&folder, test_folder());
	comm_bcast_str(world, &folder, 0);
	choose_seed();
	make_jobs(longer, seed);
	while (some_left())
		run_wave();
	int rc = ranks_run_some(tests, ARRAY_LEN(tests));
	return ranks_close(longer ? rc + ranks_run_some(more, ARRAY_LEN(more)) : rc);
}
