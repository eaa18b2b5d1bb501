/* The cases of a run: listed first, then measured in one or several passes. */
#include "collbench/suite.h"

struct suite_case {
	struct coll_case c;
	const struct bench_group *group;
	struct comm *comm;
	struct bench_samples samples[N_COLL_PLACES];
	bool has_heading; /* the table has a heading before it */
};

int suite_select(struct suite_options *o, char **names, int n, struct err *e)
{
	for (int i = 0; i < n; i++) {
		int what = bench_find_collective(names[i], e);
		if (what < 0)
			return -1;
		for (int c = 0; c < N_COLL; c++)
			o->wanted[c] |= what == N_BENCH;
		o->wanted[what % N_BENCH] |= what < N_BENCH;
	}
	return 0;
}

/* Appends a case to the suite, with its row in the table; nothing is measured yet. */
static void append_row(struct suite *s, const struct suite_case *x, int library)
{
	struct bench_table *t = &s->table;
	const struct coll_case *c = &x->c;
	const struct coll_info *info = bench_info(c->what);
	bool has_type = c->what != COLL_BARRIER;
	t->rows = xgrow(t->rows, t->n_rows, sizeof(*t->rows));
	s->cases = xgrow(s->cases, t->n_rows, sizeof(*s->cases));
	s->cases[t->n_rows] = *x;
	t->rows[t->n_rows++] = (struct bench_row){
		.collective = c->what,
		.size = bench_bytes(c->what, (int)x->group->ranks, c->count, c->type),
		.count = c->count,
		.type = has_type ? (int64_t)c->type : -1,
		.redop = info->has_op ? (int64_t)c->op : -1,
		.root = info->has_root ? c->root : -1,
		.library = s->bench->d && has_type ? library : -1,
		.group = x->group->name,
		.group_ranks = x->group->ranks,
		.group_hosts = x->group->hosts,
		.groups = x->group->groups,
		.result = {bench_not_measured, bench_not_measured},
	};
}

/* Adds a case per library; a barrier has no memory, so it is added once. */
static void add_case(struct suite *s, struct suite_case *x)
{
	bool is_added_once = x->c.what == COLL_BARRIER;
	for (int l = 0; l < N_LIBRARIES; l++) {
		x->comm = x->group->comm[l];
		if (!x->comm || !comm_has_type(x->comm, x->c.type, &(struct err){0}))
			continue;
		append_row(s, x, l);
		x->has_heading = false;
		if (is_added_once)
			return;
	}
}

/* Adds a case per size. Sizes are rounded down to whole elements per rank, and equal sizes are
 * added once. */
static void add_sizes(struct suite *s, struct suite_case *x)
{
	const struct suite_options *o = &s->o;
	int64_t last = 0, next;
	for (int64_t size = o->minbytes; size <= o->maxbytes; size = next) {
		x->c.count = bench_count_for_bytes(
			x->c.what, (int)x->group->ranks, x->c.type, size);
		if (x->c.count != last)
			add_case(s, x);
		last = x->c.count;
		if (o->stepbytes ? __builtin_add_overflow(size, o->stepbytes, &next)
				 : __builtin_mul_overflow(size, o->stepfactor, &next))
			break;
	}
}

/* Returns true if a choice includes index i of n. A choice outside [0, n) includes all. */
static bool is_chosen(int64_t choice, int i, int n)
{
	return choice == i || choice < 0 || choice >= n;
}

/* Adds the cases of an operation: all chosen types, reductions, roots and sizes. */
static void add_collective(struct suite *s, const struct bench_group *g, int what)
{
	const struct coll_info *info = bench_info(what);
	struct suite_case x = {.c.what = what, .group = g, .has_heading = true};
	int n_ops = info->has_op ? N_COMM_OPS : 1;
	int n_roots = info->has_root ? (int)g->ranks : 1;
	if (what == COLL_BARRIER) {
		add_case(s, &x);
		return;
	}
	for (int type = 0; type < N_COMM_TYPES; type++) {
		for (int op = 0; op < n_ops; op++) {
			for (int root = 0; root < n_roots; root++) {
				if (!is_chosen(s->o.type, type, N_COMM_TYPES) ||
					!is_chosen(s->o.op, op, n_ops) ||
					!is_chosen(s->o.root, root, n_roots))
					continue;
				x.c.type = (enum comm_type)type;
				x.c.op = (enum comm_op)op;
				x.c.root = root;
				add_sizes(s, &x);
			}
		}
	}
}

/* Rejects operations, types and roots that cannot be measured. */
static int check_selection(const struct suite *s, struct err *e)
{
	for (int i = 0; i < s->groups->n; i++) {
		const struct bench_group *g = &s->groups->list[i];
		for (int l = 0; l < N_LIBRARIES; l++)
			if (g->comm[l] && s->o.type < N_COMM_TYPES &&
				!comm_has_type(g->comm[l], (enum comm_type)s->o.type, e))
				return -1;
		for (int what = 0; what < N_BENCH; what++)
			if (s->o.wanted[what] && !bench_can_run(what, g->ranks))
				return err_set(e, EX_USAGE, "%s: needs %d ranks%s",
					bench_info(what)->name, bench_min_ranks(what),
					what == BENCH_HYPERCUBE ? ", or 4, 8, 16, ..."
								: "");
		if (s->o.root >= g->ranks)
			return err_set(e, EX_USAGE,
				"--root %lld: the rank does not exist: the group has %lld ranks",
				(long long)s->o.root, (long long)g->ranks);
	}
	return 0;
}

/* Pauses before a pass: ranks that shared a processor may get one each when they wake up. */
static void pause_before_pass(void)
{
	clock_sleep(0.02);
}

/* Measures case i in each placement that its collective has. Collective over all ranks,
 * also over ranks outside of the group. */
static void measure_case(struct suite *s, int64_t i)
{
	struct suite_case *x = &s->cases[i];
	const struct coll_info *info = bench_info(x->c.what);
	s->bench->comm = x->group->takes_part ? x->comm : NULL;
	for (int p = 0; p < N_COLL_PLACES; p++) {
		x->c.place = (enum coll_place)p;
		if (info->has_place[p])
			bench_measure(s->bench, &x->c, &x->samples[p]);
	}
}

/* Sets the results of a case after the last pass, and checks them if is_checked. Collective. */
static void finish_case(struct suite *s, int64_t i, struct bench_row *to, bool is_checked)
{
	struct suite_case *x = &s->cases[i];
	for (int p = 0; p < N_COLL_PLACES; p++) {
		struct bench_result *r = &to->result[p];
		x->c.place = (enum coll_place)p;
		if (!bench_info(x->c.what)->has_place[p])
			continue;
		*r = bench_not_measured;
		bench_compute_statistics(&x->samples[p], &x->c, (int)x->group->ranks, r);
		if (is_checked)
			bench_check(s->bench, &x->c, r);
		bench_samples_release(&x->samples[p]);
		s->table.n_wrong += max64(0, r->wrong);
	}
}

void suite_print_header(
	const struct suite *s, const struct peer *peers, const char *library)
{
	static const char *const averages[] = {[AVERAGE_MAX] = "of the slowest rank",
		[AVERAGE_AVG] = "mean over ranks",
		[AVERAGE_MIN] = "of the fastest rank",
		[AVERAGE_RANK0] = "of rank 0"};
	const struct bench_options *o = &s->bench->o;
	const struct device *d = s->bench->d;
	int ranks = s->bench->home->size;
	printf("# %s\n# ranks %d, hosts %d\n", peers->libraries, ranks,
		s->bench->place.n_hosts);
	for (int r = 0; r < ranks; r++)
		printf("#   rank %3d pid %7lld on %s\n", r, (long long)peers[r].pid,
			peers[r].host);
	if (d)
		printf("# buffers on %s, transferred by %s\n", d->model, library);
	printf("# minbytes %lld, maxbytes %lld, %s %lld, iters %lld, warmup-iters %lld, "
	       "check %lld\n",
		(long long)s->o.minbytes, (long long)s->o.maxbytes,
		s->o.stepbytes ? "stepbytes" : "stepfactor",
		(long long)(s->o.stepbytes ? s->o.stepbytes : s->o.stepfactor),
		(long long)o->iters, (long long)o->warmup, (long long)o->checks);
	if (o->seconds > 0 || o->passes > 1 || o->calls || o->barrier)
		printf("# seconds %g, passes %lld, calls %s%s\n", o->seconds,
			(long long)o->passes, bench_calls_names[o->calls],
			o->barrier ? ", barriers between" : "");
	if (d)
		printf("# device %s, by %s, launch %s, aggregate %lld%s\n", d->name,
			library, bench_launch_names[o->launch], (long long)o->aggregate,
			o->registered ? ", registered" : "");
	printf("# time: mean over iterations, %s; algbw = size / time; GB = 1e9 B\n",
		averages[o->average]);
}

/* Prints the row of case i, after the headings of its collective and group if it is their
 * first. */
static void print_row(const struct suite *s, int64_t i)
{
	const struct bench_group *g = s->cases[i].group;
	if (s->cases[i].has_heading)
		table_print_heading(&s->table, s->cases[i].c.what);
	if (s->cases[i].has_heading && g->name)
		printf("# %s: %lld group%s of %lld ranks on %lld host%s%s\n",
			bench_group_names()[g->name], (long long)g->groups,
			plural(g->groups), (long long)g->ranks, (long long)g->hosts,
			plural(g->hosts), g->groups > 1 ? " at once" : "");
	table_print_row(&s->table, &s->table.rows[i]);
}

int suite_add_cases(struct suite *s, struct err *e)
{
	if (check_selection(s, e))
		return -1;
	for (int i = 0; i < s->groups->n; i++)
		for (int what = 0; what < N_BENCH; what++)
			if (s->o.wanted[what])
				add_collective(s, &s->groups->list[i], what);
	return 0;
}

void suite_run(struct suite *s)
{
	for (int64_t pass = 1; pass <= s->bench->o.passes; pass++) {
		if (pass > 1)
			pause_before_pass();
		for (int64_t i = 0; i < s->table.n_rows; i++) {
			measure_case(s, i);
			if (pass < s->bench->o.passes)
				continue;
			finish_case(s, i, &s->table.rows[i], true);
			if (s->bench->home->rank == 0)
				print_row(s, i);
		}
	}
	table_add_fits(&s->table);
}

/* Measures the cases with row[i] set again, into `again`. Collective. */
static void measure_again(struct suite *s, const bool *row, struct bench_table *again)
{
	for (int64_t pass = 1; pass <= s->bench->o.passes; pass++) {
		pause_before_pass();
		for (int64_t i = 0; i < s->table.n_rows; i++) {
			if (!row[i])
				continue;
			measure_case(s, i);
			if (pass == s->bench->o.passes)
				finish_case(s, i, &again->rows[i], false);
		}
	}
}

/* Sets row[i] if row i must be measured again. Returns the number of doubtful times. Collective. */
static int64_t find_doubtful_rows(struct suite *s, bool *row)
{
	struct comm *world = s->bench->home;
	int64_t n = 0;
	for (int64_t i = 0; i < s->table.n_rows && s->judged; i++) {
		int doubtful = table_count_doubtful(&s->judged[i]);
		row[i] = doubtful > 0;
		n += doubtful;
	}
	comm_bcast(world, row, s->table.n_rows, 0);
	return comm_max_i64(world, n);
}

void suite_compare(
	struct suite *s, const struct bench_table *old, double threshold, int64_t retries)
{
	const struct bench_table *t = &s->table;
	size_t n = (size_t)t->n_rows;
	bool is_printing = s->bench->home->rank == 0, *row = xcalloc(n + 1, sizeof(*row));
	struct bench_table again = {
		.rows = xcalloc(n + 1, sizeof(*again.rows)), .n_rows = t->n_rows};
	memcpy(again.rows, t->rows, n * sizeof(*again.rows));
	if (is_printing)
		s->judged = table_judge(old, t, threshold);
	for (int64_t i = 0; i < retries; i++) {
		int64_t n_doubtful = find_doubtful_rows(s, row);
		if (!n_doubtful)
			break;
		measure_again(s, row, &again);
		if (!is_printing)
			continue;
		struct bench_judged *judged = table_judge(old, &again, threshold);
		table_update_verdicts(s->judged, judged, t->n_rows);
		free(judged);
		printf("# measured again: %lld times that were slower or not judged\n",
			(long long)n_doubtful);
	}
	table_release(&again);
	free(row);
}

void suite_release(struct suite *s)
{
	table_release(&s->table);
	free(s->judged);
	free(s->cases);
}
