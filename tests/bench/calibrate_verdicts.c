/*
 * The error rates of the verdicts of pt-compare, and of the rules of other projects, on runs that
 * tests/bench/calibrate made: DIRECTORY/NAME.SEED are logs of pt-train.
 *   calibrate_verdicts DIRECTORY     false alarms and detections, as two tables
 *   calibrate_verdicts -r LOG ...    replicas: half of them, drawn at random, judge one of the others
 */
#include "compare/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SEEDS = 1000, DRAWS = 200 };

/* ---- runs ------------------------------------------------------------------------ */

struct kind {
	const char *name, *what;
	bool bug; /* else: the same training, with other rounding or without */
	struct run_log *log[MAX_SEEDS];
	int n; /* seeds 1 to n */
};

static struct kind kinds[] = {
	{"control", "the control", false, {NULL}, 0},
	{"round-1", "other rounding", false, {NULL}, 0},
	{"round-2", "other rounding", false, {NULL}, 0},
	{"round-3", "other rounding", false, {NULL}, 0},
	{"round-4", "other rounding", false, {NULL}, 0},
	{"lr-2", "learning rate +2 %", true, {NULL}, 0},
	{"lr-10", "learning rate +10 %", true, {NULL}, 0},
	{"half-gradient", "gradient of one layer halved", true, {NULL}, 0},
	{"clip-axis", "clipping misses an axis", true, {NULL}, 0},
	{"bias-twice", "TP bias added twice", true, {NULL}, 0},
	{"cp-positions", "CP positions off by one chunk", true, {NULL}, 0},
	{"no-dropout", "dropout lost", true, {NULL}, 0},
	{"order-repeats", "data order repeated", true, {NULL}, 0},
	{"bf16-reduction", "bf16 reduction", true, {NULL}, 0},
};

enum {
	CONTROL_KIND,
	ROUNDING,
	N_ROUNDING = 4,
	LAST_ROUNDING = ROUNDING + N_ROUNDING - 1
};

static struct run_log *read_log(const char *path)
{
	struct run_log *l = xcalloc(1, sizeof(*l));
	struct err e;
	if (run_log_read(l, path, &e))
		exit(err_print(&e));
	return l;
}

static void read_kind(struct kind *k, const char *directory)
{
	char path[4096];
	for (; k->n < MAX_SEEDS; k->n++) {
		snprintf(path, sizeof(path), "%s/%s.%d", directory, k->name, k->n + 1);
		FILE *f = fopen(path, "r");
		if (!f)
			return;
		fclose(f);
		k->log[k->n] = read_log(path);
	}
}

/* ---- random draws ---------------------------------------------------------------- */

static uint64_t random_state = 1;

static int random_below(int n)
{
	random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (int)((random_state >> 33) % (uint64_t)n);
}

/* k different numbers below n. */
static void draw(int *out, int k, int n)
{
	for (int i = 0; i < k; i++) {
		bool again = true;
		while (again) {
			out[i] = random_below(n);
			again = false;
			for (int j = 0; j < i; j++)
				again |= out[j] == out[i];
		}
	}
}

/* ---- designs --------------------------------------------------------------------- */

enum { MOST = 64 };

struct trial {
	const struct run_log *control[MOST], *test[MOST];
	int n_control, n_test;
};

struct setting {
	const char *name;
	int n_control, n_test; /* runs of each set */
	bool same_seeds;
	bool rounding; /* the controls are one seed, with different rounding */
};

static const struct setting settings[] = {
	{"one seed, 1 + 1", 1, 1, true, false},
	{"one seed, 4 + 1", 4, 1, true, true},
	{"same seeds, 10 + 10", 10, 10, true, false},
	{"other seeds, 1 + 1", 1, 1, false, false},
	{"other seeds, 10 + 10", 10, 10, false, false},
	{"other seeds, 20 + 20", 20, 20, false, false},
};

/* The kind that is no bug: for the same seeds, the control with other rounding; for others, the
 * control itself. */
static const struct kind *null_kind(const struct setting *s)
{
	return &kinds[s->same_seeds ? LAST_ROUNDING : CONTROL_KIND];
}

static int least(int a, int b)
{
	return a < b ? a : b;
}

/* How many seeds a setting can draw tests from. */
static int seeds_for(const struct setting *s, const struct kind *test)
{
	int n = least(test->n, s->same_seeds ? kinds[CONTROL_KIND].n : test->n);
	for (int i = 0; s->rounding && i < N_ROUNDING; i++)
		n = least(n, kinds[ROUNDING + i].n);
	return n;
}

/* How many trials: with one test each seed once, so that no trial repeats another; else DRAWS sets, which
 * overlap. 0: not enough runs. */
static int count_trials(const struct setting *s, const struct kind *test)
{
	int n = seeds_for(s, test);
	if (n < s->n_test || kinds[CONTROL_KIND].n < s->n_control + s->n_test)
		return 0;
	return s->n_test == 1 ? least(n, DRAWS) : DRAWS;
}

static void make_trial(
	const struct setting *s, const struct kind *test, int number, struct trial *t)
{
	int seeds[2 * MOST], n_control = kinds[CONTROL_KIND].n;
	*t = (struct trial){.n_control = s->n_control, .n_test = s->n_test};
	draw(seeds, s->n_test, seeds_for(s, test));
	if (s->n_test == 1)
		seeds[0] = number;
	for (int i = 0; i < s->n_test; i++)
		t->test[i] = test->log[seeds[i]];
	for (int i = 0; i < s->n_control; i++) {
		int seed = s->rounding ? seeds[0] : seeds[i];
		bool again = !s->same_seeds;
		while (again) {
			seed = random_below(n_control);
			again = false;
			for (int k = 0; k < s->n_test + i; k++)
				again |= seeds[k] == seed;
		}
		if (!s->same_seeds)
			seeds[s->n_test + i] = seed;
		t->control[i] = kinds[s->rounding ? i : CONTROL_KIND].log[seed];
	}
}

/* ---- tables ---------------------------------------------------------------------- */

struct counts {
	int n, shown, of[N_VERDICTS];
};

/* Sets *shown to whether a difference was shown. */
static enum verdict verdict_of(const struct trial *t, int rule, int column, bool *shown)
{
	const struct judge_opts o = {
		.column = column, .by = COL_STEP, .rule = rule, .statistics_only = true};
	struct verdict_result r;
	judge(t->control, t->n_control, t->test, t->n_test, &o, &r);
	if (getenv("VERBOSE"))
		fprintf(stderr, "%s %s: %s\n", t->test[0]->name, verdict_names[r.verdict],
			r.reason.s);
	verdict_result_release(&r);
	*shown = r.shown;
	return r.verdict;
}

static struct counts count_verdicts(
	const struct setting *s, const struct kind *test, int rule)
{
	struct counts c = {0};
	struct trial t;
	random_state = 1;
	for (int i = 0; i < count_trials(s, test); i++) {
		bool shown;
		make_trial(s, test, i, &t);
		c.of[verdict_of(&t, rule, COL_LOSS, &shown)]++;
		c.shown += shown;
		c.n++;
	}
	return c;
}

static void print_cell(const struct counts *c, int accepted)
{
	if (!c->n)
		printf(" |  ");
	else
		printf(" | %.1f", 100.0 * accepted / c->n);
}

/* The rate of which `count` or fewer of n trials have a probability of 5 %: an upper bound with a
 * confidence of 95 %, for independent trials. */
static double upper_bound(int count, int n)
{
	double low = 0, high = 1;
	for (int i = 0; i < 60 && count < n; i++) {
		double p = (low + high) / 2, sum = 0, term = pow(1 - p, n);
		for (int k = 0; k <= count; k++) {
			sum += term;
			term *= (double)(n - k) / (k + 1) * p / (1 - p);
		}
		*(sum > 0.05 ? &low : &high) = p;
	}
	return high;
}

/* Cells are "a difference is shown (identical or equivalent) of trials". */
static void print_ours(const char *what, const struct kind *test)
{
	struct counts c[ARRAY_LEN(settings)];
	printf("| %s", what);
	for (size_t i = 0; i < ARRAY_LEN(settings); i++) {
		c[i] = count_verdicts(
			&settings[i], test ? test : null_kind(&settings[i]), 0);
		print_cell(&c[i], c[i].shown);
		if (c[i].n)
			printf(" (%.0f) of %d",
				100.0 *
					(c[i].of[VERDICT_EQUIVALENT] +
						c[i].of[VERDICT_IDENTICAL]) /
					c[i].n,
				c[i].n);
	}
	printf(" |\n");
	if (!test)
		printf("| at most, with 95 %% confidence");
	for (size_t i = 0; i < ARRAY_LEN(settings) && !test; i++) {
		/* sets of several runs overlap, so they are no independent trials */
		if (settings[i].n_test > 1 || !c[i].n)
			printf(" |  ");
		else
			printf(" | %.1f", 100 * upper_bound(c[i].shown, c[i].n));
	}
	if (!test)
		printf(" |\n");
	fflush(stdout);
}

/* Cells are "better, worse, different, diverged". */
static void print_words(const char *what, const struct kind *test)
{
	static const enum verdict words[] = {
		VERDICT_BETTER, VERDICT_WORSE, VERDICT_DIFFERENT, VERDICT_DIVERGED};
	printf("| %s", what);
	for (size_t i = 0; i < ARRAY_LEN(settings); i++) {
		const struct counts c = count_verdicts(
			&settings[i], test ? test : null_kind(&settings[i]), 0);
		for (size_t k = 0; k < ARRAY_LEN(words) && c.n; k++)
			printf("%s%.1f", k ? ", " : " | ", 100.0 * c.of[words[k]] / c.n);
		printf(c.n ? "" : " | ");
	}
	printf(" |\n");
	fflush(stdout);
}

static void print_word_table(void)
{
	printf("\n| %%: better, worse, different, diverged");
	for (size_t i = 0; i < ARRAY_LEN(settings); i++)
		printf(" | %s", settings[i].name);
	printf(" |\n|---");
	for (size_t i = 0; i < ARRAY_LEN(settings); i++)
		printf("|---");
	printf("|\n");
	print_words("no bug", NULL);
	for (size_t k = 0; k < ARRAY_LEN(kinds); k++)
		if (kinds[k].bug)
			print_words(kinds[k].what, &kinds[k]);
}

static void print_our_table(void)
{
	printf("| %%: different (equivalent) of trials");
	for (size_t i = 0; i < ARRAY_LEN(settings); i++)
		printf(" | %s", settings[i].name);
	printf(" |\n|---");
	for (size_t i = 0; i < ARRAY_LEN(settings); i++)
		printf("|---");
	printf("|\n");
	print_ours("no bug: false alarms", NULL);
	for (size_t k = 0; k < ARRAY_LEN(kinds); k++)
		if (kinds[k].bug)
			print_ours(kinds[k].what, &kinds[k]);
}

static int rejected(const struct counts *c)
{
	return c->n - c->of[VERDICT_WITHIN] - c->of[VERDICT_IDENTICAL];
}

/* Rules in columns: rejections of one pair of the same seed, and of one of other seeds. */
static void print_rules(const char *what, const struct kind *test)
{
	printf("| %s", what);
	for (int rule = 1; rule < n_rules; rule++) {
		for (int other = 0; other < 2; other++) {
			const struct setting *s = &settings[other ? 3 : 0];
			const struct kind *k = test ? test : null_kind(s);
			struct counts c = count_verdicts(s, k, rule);
			if (other)
				printf(c.n ? ", %.0f" : ", ", 100.0 * rejected(&c) / c.n);
			else
				print_cell(&c, rejected(&c));
		}
	}
	printf(" |\n");
	fflush(stdout);
}

static void print_rule_table(void)
{
	printf("\n| %% rejected: one seed, other seeds");
	for (int rule = 1; rule < n_rules; rule++)
		printf(" | %s", rules[rule].name);
	printf(" |\n|---");
	for (int rule = 1; rule < n_rules; rule++)
		printf("|---");
	printf("|\n");
	print_rules("no bug: false alarms", NULL);
	for (size_t k = 0; k < ARRAY_LEN(kinds); k++)
		if (kinds[k].bug)
			print_rules(kinds[k].what, &kinds[k]);
}

/* ---- replicas of others ------------------------------------------------------------ */

/* Each split draws half of the logs as controls, and judges runs of the other half by them: one at a
 * time, and five together. */
static void judge_replicas(char **paths, int n)
{
	enum { SPLITS = 200, TOGETHER = 5 };
	int order[MAX_SEEDS], column, alarms[2] = {0, 0}, equivalent[2] = {0, 0},
				      n_trials[2] = {0, 0};
	struct run_log *log[MAX_SEEDS];
	n = n < 2 * MOST ? n : 2 * MOST;
	for (int i = 0; i < n; i++)
		log[i] = read_log(paths[i]);
	column = run_log_has(log[0], log[0]->n_rows - 1, COL_VAL_LOSS) ? COL_VAL_LOSS
								       : COL_LOSS;
	for (int i = 0; i < 2 * SPLITS; i++) {
		struct trial t = {.n_control = n / 2, .n_test = i % 2 ? TOGETHER : 1};
		if (t.n_control < 2 || n - t.n_control < t.n_test)
			continue;
		draw(order, n, n);
		for (int k = 0; k < t.n_control + t.n_test; k++)
			*(k < t.n_control ? &t.control[k] : &t.test[k - t.n_control]) =
				log[order[k]];
		bool shown;
		enum verdict v = verdict_of(&t, 0, column, &shown);
		n_trials[i % 2]++;
		alarms[i % 2] += shown;
		equivalent[i % 2] += v == VERDICT_EQUIVALENT;
	}
	printf("%d replicas, %s, %lld rows; one test: %d different and %d equivalent of %d; "
	       "five: %d and %d of %d\n",
		n, columns[column].name, (long long)log[0]->n_rows, alarms[0],
		equivalent[0], n_trials[0], alarms[1], equivalent[1], n_trials[1]);
}

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "-r")) {
		judge_replicas(argv + 2, argc - 2);
		return 0;
	}
	if (argc != 2)
		return EX_USAGE;
	for (size_t k = 0; k < ARRAY_LEN(kinds); k++)
		read_kind(&kinds[k], argv[1]);
	print_our_table();
	print_word_table();
	print_rule_table();
	return 0;
}
