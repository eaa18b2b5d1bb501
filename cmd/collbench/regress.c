/* Comparison of a result with an earlier one. */
#include "collbench/table.h"
#include "stats/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Returns true if both rows measure the same case. */
static bool same_case(const struct bench_row *a, const struct bench_row *b)
{
	return !memcmp(a, b, offsetof(struct bench_row, result));
}

/* Returns the row of the same case, or NULL. The search begins after the last row found, since
 * the rows of both results are usually in the same order. */
static const struct bench_row *find_case(
	const struct bench_table *t, const struct bench_row *r, int64_t *last)
{
	for (int64_t i = 0; i < t->n_rows; i++) {
		int64_t at = (*last + 1 + i) % t->n_rows;
		if (same_case(&t->rows[at], r)) {
			*last = at;
			return &t->rows[at];
		}
	}
	return NULL;
}

static const char *const verdict_names[N_VERDICTS] = {[VERDICT_UNCHANGED] = "unchanged",
	[VERDICT_SLOWER] = "slower",
	[VERDICT_FASTER] = "faster",
	[VERDICT_UNJUDGED] = "not judged"};

/* Two launches of a program differ by more than the parts of one launch. The standard
 * deviation of a launch is 3 % of the time, plus 0.1 us for one cache line more or less that
 * moves between processors. (Measured by tests/bench/repeat over 66 launches of 42 cases on a
 * machine with two busy processors.) */
static const double launch_ratio = 0.03, launch_us = 0.1;
/* Probability that any time of an unchanged network is reported as slower. */
static const double error_level = 0.05;

/* Returns the variance of the logarithm of a time between launches. */
static double launch_variance(const struct bench_result *r)
{
	return pow(launch_ratio, 2) + pow(launch_us / r->typical, 2);
}

/* Returns the logarithm of now / old with its standard error. Degrees of freedom are by Welch and
 * Satterthwaite; the variance between launches counts as known. */
static struct estimate time_change(
	const struct bench_result *old, const struct bench_result *now)
{
	double a = pow(1e-2 * old->noise, 2), b = pow(1e-2 * now->noise, 2);
	double sum = a + b + launch_variance(old) + launch_variance(now);
	double df = sum * sum /
		    (a * a / (double)(old->parts - 1) + b * b / (double)(now->parts - 1));
	return (struct estimate){log(now->typical / old->typical), sqrt(sum),
		df < MAX_DF ? (int64_t)fmax(df, 1) : MAX_DF + 1};
}

static bool can_judge(const struct bench_result *old, const struct bench_result *now)
{
	struct estimate e = time_change(old, now);
	return old->parts >= 3 && now->parts >= 3 && isfinite(e.mean) && isfinite(e.se);
}

/* Returns the verdict on a time. p: two-sided probability of a wrong verdict. */
static enum bench_verdict judge_time(const struct bench_result *old,
	const struct bench_result *now, double threshold, double p)
{
	struct estimate e = time_change(old, now);
	if (isnan(old->time) || isnan(now->time))
		return VERDICT_NONE;
	if (!can_judge(old, now))
		return VERDICT_UNJUDGED;
	struct interval change = interval_of(&e, 1 - p);
	if (fabs(change.value) <= log1p(threshold) || !is_beyond(&change, 0))
		return VERDICT_UNCHANGED;
	return change.value > 0 ? VERDICT_SLOWER : VERDICT_FASTER;
}

struct bench_judged *table_judge(
	const struct bench_table *old, const struct bench_table *now, double threshold)
{
	struct bench_judged *all = xcalloc((size_t)now->n_rows + 1, sizeof(*all));
	int64_t last = -1, n = 0;
	for (int64_t i = 0; i < now->n_rows; i++) {
		const struct bench_row *row = &now->rows[i];
		memcpy(all[i].now, row->result, sizeof(all[i].now));
		all[i].old = find_case(old, row, &last);
		for (int p = 0; p < N_COLL_PLACES && all[i].old; p++)
			n += can_judge(&all[i].old->result[p], &row->result[p]);
	}
	for (int64_t i = 0; i < now->n_rows; i++)
		for (int p = 0; p < N_COLL_PLACES && all[i].old; p++)
			all[i].verdict[p] =
				judge_time(&all[i].old->result[p], &all[i].now[p],
					threshold, error_level / (double)max64(1, n));
	return all;
}

int table_count_doubtful(const struct bench_judged *j)
{
	int open = 0;
	for (int p = 0; p < N_COLL_PLACES; p++)
		open += j->verdict[p] == VERDICT_SLOWER ||
			(j->verdict[p] == VERDICT_UNJUDGED && j->now[p].waited);
	return open;
}

/* Updates the verdict on time p by a repeated measurement. */
static void update_verdict(
	struct bench_judged *first, const struct bench_judged *again, int p)
{
	enum bench_verdict was = first->verdict[p], is = again->verdict[p];
	if (was == VERDICT_SLOWER && is != VERDICT_SLOWER && is != VERDICT_UNJUDGED)
		first->verdict[p] = VERDICT_UNCHANGED;
	if (was != VERDICT_UNJUDGED || is == VERDICT_UNJUDGED)
		return;
	first->verdict[p] = is;
	first->now[p] = again->now[p];
}

void table_update_verdicts(
	struct bench_judged *first, const struct bench_judged *again, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		for (int p = 0; p < N_COLL_PLACES; p++)
			update_verdict(&first[i], &again[i], p);
}

/* Appends the begin of a line about a case: the verdict, collective, type, size and group. */
static void begin_line(const char *what, const struct bench_row *r, struct str *out)
{
	const char *type = r->type < 0 ? "" : bench_type_names[r->type];
	str_printf(out, "%-10s %s %s%s%s, %lld bytes, %s of %lld ranks", what,
		bench_info((int)r->collective)->name, type, r->redop < 0 ? "" : " ",
		r->redop < 0 ? "" : bench_op_names[r->redop], (long long)r->size,
		bench_group_names()[r->group], (long long)r->group_ranks);
}

/* Appends the line of a result that became faster or slower: both times and the noise. */
static void print_change(const struct bench_row *now, int place,
	const struct bench_judged *j, struct str *out)
{
	const struct bench_result *a = &j->old->result[place], *b = &j->now[place];
	struct estimate e = time_change(a, b);
	begin_line(verdict_names[j->verdict[place]], now, out);
	str_printf(out, ", %s: %.2f us, before %.2f us: %+.1f %%, noise %.1f %%\n",
		place_names[place], b->typical, a->typical,
		100 * (b->typical / a->typical - 1), 100 * e.se);
}

struct comparison {
	int64_t verdicts[N_VERDICTS];
	int64_t n_reductions,
		n_reductions_differ; /* reductions of random values; those with other bits */
	int64_t only_now, only_old; /* rows that only one result has */
	double log_ratio;	    /* sum of the logarithms of now / old */
	struct str *out;
};

static int64_t count_judged(const struct comparison *t)
{
	return t->verdicts[VERDICT_SLOWER] + t->verdicts[VERDICT_FASTER] +
	       t->verdicts[VERDICT_UNCHANGED];
}

/* Counts the verdicts on a row, and appends a line about each slower or faster time. */
static void compare_row(
	struct comparison *t, const struct bench_row *now, const struct bench_judged *j)
{
	t->only_now += !j->old;
	for (int p = 0; p < N_COLL_PLACES && j->old; p++) {
		const struct bench_result *a = &j->old->result[p], *b = &j->now[p];
		enum bench_verdict v = j->verdict[p];
		if (a->digest >= 0 && b->digest >= 0) {
			t->n_reductions++;
			t->n_reductions_differ += a->digest != b->digest;
		}
		t->verdicts[v]++;
		if (v != VERDICT_NONE && v != VERDICT_UNJUDGED)
			t->log_ratio += time_change(a, b).mean;
		if (v == VERDICT_SLOWER || v == VERDICT_FASTER)
			print_change(now, p, j, t->out);
	}
}

/* Counts the rows that only the earlier result has, and appends a line about each. */
static void print_missing_rows(struct comparison *t, const struct bench_table *old,
	const struct bench_table *now)
{
	int64_t last = -1;
	for (int64_t i = 0; i < old->n_rows; i++) {
		if (find_case(now, &old->rows[i], &last))
			continue;
		t->only_old++;
		begin_line("missing", &old->rows[i], t->out);
		str_puts(t->out, ": only the earlier result has it\n");
	}
}

/* Appends the counts of all verdicts, the mean ratio of times, and the sums that differ. */
static void print_totals(const struct comparison *t)
{
	int64_t judged = count_judged(t), not_judged = t->verdicts[VERDICT_UNJUDGED];
	str_printf(t->out,
		"# compared %lld: %lld slower, %lld faster, %lld unchanged, %lld not judged; "
		"%lld rows are new, %lld are missing\n",
		(long long)(judged + not_judged), (long long)t->verdicts[VERDICT_SLOWER],
		(long long)t->verdicts[VERDICT_FASTER],
		(long long)t->verdicts[VERDICT_UNCHANGED], (long long)not_judged,
		(long long)t->only_now, (long long)t->only_old);
	if (judged)
		str_printf(t->out, "# time over time before, geometric mean: %.3f\n",
			exp(t->log_ratio / (double)judged));
	if (t->n_reductions)
		str_printf(t->out,
			"# reductions of random values: %lld of %lld differ bitwise from the "
			"earlier result\n",
			(long long)t->n_reductions_differ, (long long)t->n_reductions);
}

int table_check_settings(
	const struct bench_table *old, const struct bench_table *now, struct err *e)
{
	return strcmp(old->settings, now->settings)
		       ? err_set(e, EX_USAGE,
				 "--compare: the earlier result has other settings: %s; now %s",
				 old->settings, now->settings)
		       : 0;
}

int64_t table_compare(const struct bench_table *old, const struct bench_table *now,
	const struct bench_judged *j, struct str *out, struct err *e)
{
	struct comparison t = {.out = out};
	if (table_check_settings(old, now, e))
		return -1;
	for (int64_t i = 0; i < now->n_rows; i++)
		compare_row(&t, &now->rows[i], &j[i]);
	print_missing_rows(&t, old, now);
	print_totals(&t);
	if (count_judged(&t))
		return t.verdicts[VERDICT_SLOWER];
	return t.verdicts[VERDICT_UNJUDGED]
		       ? err_set(e, EX_DATAERR,
				 "--compare: no case can be judged: in each result, a case needs "
				 "three parts of its iterations in which no rank waited for a "
				 "processor; raise --iters or --passes, or give each rank its "
				 "own processor")
		       : err_set(e, EX_DATAERR, "--compare: no case is in both results");
}
