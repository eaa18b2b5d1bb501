/*
 * How often does pt-collbench's comparison call a time slower, of equal networks and of slower ones?
 *   judge_results THRESHOLD FILE...    results of equal runs; the threshold in percent
 * Each result is compared with each other one, without retries: as it is; and with times of the later one multiplied by
 * 1.3 and 1.5: all of them, those of one collective, or one time. A line: the comparisons in which a time is judged, those
 * that call any time slower, and of the times that were made slower the part that is called so.
 */
#include "base/base.h"
#include "collbench/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct bench_table *results;
static int n_results;

struct tally {
	int64_t comparisons, alarms; /* in which a time is judged, is called slower */
	int64_t planted, found;	     /* times */
};

/* The rows of a result, of which those of `collective` (-1: all) from `first` to `last` take longer. */
static struct bench_row *slow_down(const struct bench_table *t, int64_t collective,
	int64_t first, int64_t last, double factor)
{
	struct bench_row *rows = xcalloc((size_t)t->n_rows + 1, sizeof(*rows));
	memcpy(rows, t->rows, (size_t)t->n_rows * sizeof(*rows));
	for (int64_t i = first; i <= last && i < t->n_rows; i++)
		for (int p = 0; p < N_COLL_PLACES; p++)
			if (collective < 0 || rows[i].collective == collective)
				rows[i].result[p].typical *= factor;
	return rows;
}

static void add_verdicts(struct tally *s, const struct bench_table *old,
	const struct bench_table *now, const struct bench_row *before, double threshold)
{
	struct bench_judged *judged = table_judge(old, now, threshold);
	int64_t n = 0, slower = 0;
	for (int64_t i = 0; i < now->n_rows; i++)
		for (int p = 0; p < N_COLL_PLACES; p++) {
			enum bench_verdict v = judged[i].verdict[p];
			bool planted = now->rows[i].result[p].typical >
				       before[i].result[p].typical;
			if (v == VERDICT_NONE || v == VERDICT_UNJUDGED)
				continue;
			n++;
			slower += v == VERDICT_SLOWER;
			s->planted += planted;
			s->found += planted && v == VERDICT_SLOWER;
		}
	s->comparisons += n > 0;
	s->alarms += slower > 0;
	free(judged);
}

static void compare(struct tally *s, const struct bench_table *old,
	const struct bench_table *now, int64_t collective, int64_t row, double factor,
	double threshold)
{
	int64_t first = row < 0 ? 0 : row, last = row < 0 ? now->n_rows - 1 : row;
	struct bench_table slow = *now;
	slow.rows = slow_down(now, collective, first, last, factor);
	add_verdicts(s, old, &slow, now->rows, threshold);
	free(slow.rows);
}

/* Every pair, each way. `each_row`: every row alone is made slower. */
static void all_pairs(const char *what, int64_t collective, bool each_row, double factor,
	double threshold)
{
	struct tally s = {0};
	for (int i = 0; i < n_results; i++)
		for (int k = 0; k < n_results; k++)
			for (int64_t r = each_row ? 0 : -1;
				i != k && r < (each_row ? results[k].n_rows : 0); r++)
				compare(&s, &results[i], &results[k], collective, r,
					factor, threshold);
	printf("%-28s %6.2f %12lld %10.4f %10.3f\n", what, factor,
		(long long)s.comparisons,
		(double)s.alarms / (double)max64(1, s.comparisons),
		(double)s.found / (double)max64(1, s.planted));
}

int main(int argc, char **argv)
{
	static const double factors[] = {1.3, 1.5};
	double threshold;
	log_name("judge_results");
	if (argc < 4 || parse_double(argv[1], &threshold))
		die(EX_USAGE, "usage: judge_results THRESHOLD FILE FILE...");
	n_results = argc - 2;
	results = xcalloc((size_t)n_results, sizeof(*results));
	for (int i = 0; i < n_results; i++) {
		struct err e = {0};
		if (bench_file_read(argv[2 + i], &results[i], &e))
			die(e.code, "%s", e.msg);
	}
	printf("%-28s %6s %12s %10s %10s\n", "slower", "factor", "comparisons",
		"any slower", "times");
	all_pairs("nothing", -1, false, 1, threshold / 100);
	for (size_t i = 0; i < ARRAY_LEN(factors); i++) {
		all_pairs("all times", -1, false, factors[i], threshold / 100);
		all_pairs("those of allreduce", COLL_ALLREDUCE, false, factors[i],
			threshold / 100);
		all_pairs("one time", -1, true, factors[i], threshold / 100);
	}
	return 0;
}
