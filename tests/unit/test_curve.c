/* base/graph: scales, ticks, thinning, text; curve and speed: what they make of logs. */
#include "tests/support/support.h"
#include "draw/graph.h"
#include "compare/series.h"
#include "compare/speed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- ticks ------------------------------------------------------------------------- */

static void check_ticks(double low, double high, int most, bool log, const char *expected)
{
	struct ticks t;
	struct str text = {0};
	ticks_of(&(struct scale){low, high, log}, most, &t);
	for (int i = 0; i < t.n; i++)
		str_printf(&text, "%s%s", i ? " " : "", t.text[i]);
	assert_string_equal(text.s, expected);
	str_free(&text);
}

TEST(ticks_are_round)
{
	check_ticks(0, 10, 5, false, "0 2 4 6 8 10");
	check_ticks(1.93, 4.1, 5, false, "2.0 2.5 3.0 3.5 4.0");
	check_ticks(-1, 1, 4, false, "-1.0 -0.5 0.0 0.5 1.0");
	check_ticks(0, 1e6, 5, false, "0.0M 0.2M 0.4M 0.6M 0.8M 1.0M");
	check_ticks(0, 1.3e5, 3, false, "0k 50k 100k");
	check_ticks(1e-3, 10, 5, true, "0.001 0.01 0.1 1 10");
	check_ticks(2, 30, 8, true, "2 5 10 20");
	check_ticks(3, 3, 5, false, "3");
}

/* Any range has ticks within it, none twice. */
TEST(ticks_of_any_range)
{
	static const double values[] = {-1.7e308, -1e300, -3, -1e-300, -5e-324, 0, 5e-324,
		1e-300, 1, 1 + 2.3e-16, 3, 1e21, 1e300, 1.7e308};
	for (size_t i = 0; i < ARRAY_LEN(values); i++)
		for (size_t j = i; j < ARRAY_LEN(values); j++)
			for (int most = -1; most < 40; most++)
				for (int log = 0; log <= (values[i] > 0); log++) {
					struct ticks t;
					struct scale s = {values[i], values[j], log};
					ticks_of(&s, most, &t);
					assert_true(t.n >= 0 && t.n <= MAX_TICKS);
					for (int k = 0; k < t.n; k++) {
						assert_true(
							isfinite(t.v[k]) && t.text[k][0]);
						assert_true(!k || t.v[k] > t.v[k - 1]);
					}
				}
}

/* ---- thinning ---------------------------------------------------------------------- */

TEST(thinning_keeps_extremes)
{
	enum { N = 10000, GROUPS = 50 };
	struct graph_point *p = xmalloc(N * sizeof(*p));
	for (int i = 0; i < N; i++)
		p[i] = (struct graph_point){i, test_normal(1, i)};
	p[777].y = 100;
	p[7777].y = -100;
	const struct scale x = {0, N - 1, false};
	int64_t n = points_thin(p, N, &x, GROUPS);
	assert_true(n <= 4 * (GROUPS + 1) && n > 3 * GROUPS);
	assert_true(p[0].x == 0 && p[n - 1].x == N - 1);
	bool high = false, low = false;
	for (int64_t i = 0; i < n; i++) {
		assert_true(!i || p[i].x > p[i - 1].x);
		high |= p[i].x == 777 && p[i].y == 100;
		low |= p[i].x == 7777 && p[i].y == -100;
	}
	assert_true(high && low);
	/* fewer points than groups stay */
	assert_int_equal(points_thin(p, 7, &x, 1 << 20), 7);
	assert_int_equal(points_thin(p, 0, &x, 10), 0);
	free(p);
}

/* ---- text -------------------------------------------------------------------------- */

static struct str text_of(
	const struct graph_point *p, int64_t n, struct graph_style style, bool log)
{
	const struct graph_series s = {"a", p, n};
	const struct graph g = {"step", "loss", &s, 1, false, log};
	struct str out = {0};
	graph_text(&g, &style, &out);
	return out;
}

TEST(a_line_of_dots)
{
	static const struct graph_point diagonal[] = {{0, 0}, {1, 1}};
	struct str out = text_of(
		diagonal, 2, (struct graph_style){MARKS_BRAILLE, false, 25, 8}, false);
	assert_string_equal(out.s, "  loss\n"
				   "1 ┤                  ⣀⠤⠒⠉\n"
				   "  │             ⢀⡠⠔⠊⠉\n"
				   "  │        ⢀⣀⠤⠒⠉⠁\n"
				   "  │    ⣀⡠⠔⠊⠁\n"
				   "0 ┤⣀⠤⠒⠉\n"
				   "  └┬──────────┬─────────┬\n"
				   "  0.0        0.5 step 1.0\n"
				   "   ⠒⠒ a\n");
	str_free(&out);
}

/* Values without a place are left out, and nothing is written outside. */
TEST(points_of_any_kind)
{
	static const double values[] = {NAN, INFINITY, -INFINITY, -1.7e308, 1.7e308, 0,
		-0.0, 5e-324, -5e-324, 1, 3, 1e300};
	struct graph_point p[ARRAY_LEN(values) * ARRAY_LEN(values)];
	int64_t n = 0;
	for (size_t i = 0; i < ARRAY_LEN(values); i++)
		for (size_t j = 0; j < ARRAY_LEN(values); j++)
			p[n++] = (struct graph_point){values[i], values[j]};
	for (int kind = 0; kind < 8; kind++)
		for (int64_t m = 0; m <= n; m += 11) {
			struct graph_style style = {
				kind & 1 ? MARKS_ASCII : MARKS_BRAILLE, kind & 2, (int)m,
				7};
			struct str out = text_of(p, m, style, kind & 4);
			assert_true(out.len > 0);
			str_free(&out);
		}
	struct str out = text_of(p, 1, (struct graph_style){0}, false);
	assert_string_equal(out.s, "no values of loss\n");
	str_free(&out);
}

/* ---- curves ------------------------------------------------------------------------ */

static struct run_log log_of(const char *lines)
{
	struct run_log l = {.name = xstrdup("a log")};
	struct err e;
	for (; *lines; lines += strcspn(lines, "\n") + 1)
		assert_int_equal(run_log_line(&l, lines, strcspn(lines, "\n"), &e), 0);
	return l;
}

static int points_of(const struct run_log *logs, int n, const char *column,
	enum curve_axis axis, struct series_point **p, int64_t *n_points, struct err *e)
{
	struct series_list l = {.logs = logs, .n_runs = n};
	const struct curve_series s = {0, n, true, NULL};
	return series_get_points(&l, &s, column, axis, p, n_points, e);
}

/* The time and the bytes of a row are the means of the steps since the previous one. */
TEST(axes_are_sums)
{
	struct run_log l =
		log_of("step=1 tokens=100 loss=9 dt=0.5 sent=1000\n"
		       "step=3 tokens=300 loss=8 dt=0.25 sent=500\n"
		       "step=5 loss=nan dt=1\nstep=7 tokens=700 loss=7 dt=1 sent=0\n");
	static const double x[N_CURVE_AXES][4] = {{1, 3, 5, 7}, {100, 300, NAN, 700},
		{2, 6, 10, 14}, {0.5, 1, 3, 5}, {1000, 2000, 2000, 2000}};
	struct err e = {0};
	int samples = run_log_column(&l, "samples");
	int elapsed = run_log_column(&l, "elapsed"); /* not used where there is dt */
	for (int i = 0; i < 4; i++) {
		run_log_set(&l, i, samples, x[AXIS_SAMPLES][i]);
		run_log_set(&l, i, elapsed, 100.0 + i);
	}
	for (enum curve_axis a = 0; a < N_CURVE_AXES; a++) {
		double *v = curve_axis_values(&l, a);
		for (int i = 0; i < 4; i++)
			assert_true(v[i] == x[a][i] || (isnan(x[a][i]) && isnan(v[i])));
		free(v);
		struct series_point *p;
		int64_t n;
		assert_int_equal(points_of(&l, 1, "loss", a, &p, &n, &e), 0);
		assert_true(n == 3 && p[2].x == x[a][3] && p[2].y == 7 && p[2].step == 7);
		free(p);
	}
	struct series_point *p;
	int64_t n;
	assert_int_equal(points_of(&l, 1, "no such", AXIS_STEPS, &p, &n, &e), 0);
	assert_int_equal(n, 0);
	free(p);
	run_log_free(&l);
	l = log_of("step=1 loss=2\n");
	assert_int_equal(points_of(&l, 1, "loss", AXIS_BYTES, &p, &n, &e), -1);
	assert_non_null(strstr(e.msg, "a log: no column 'sent'"));
	assert_int_equal(points_of(&l, 1, "val_loss", AXIS_BYTES, &p, &n, &e), 0);
	free(p);
	run_log_free(&l);
}

/* Of replicas: the mean and the extremes where more than half of them have a value; a group of points has the mean of
 * their means, and the extremes of all. */
TEST(replicas_are_a_band)
{
	struct run_log logs[] = {
		log_of("step=1 loss=4\nstep=2 loss=3 dt=1\nstep=3 loss=1\nstep=9 loss=1\n"),
		log_of("step=1 loss=6\nstep=2 loss=nan\nstep=3 loss=2\n"),
		log_of("step=1 loss=5\nstep=2 loss=5\nstep=4 loss=2\n")};
	struct series_point *p;
	int64_t n;
	struct err e;
	assert_int_equal(points_of(logs, 3, "loss", AXIS_STEPS, &p, &n, &e), 0);
	assert_int_equal(n, 3); /* not 4 and 9, which one of them has */
	assert_true(p[0].y == 5 && p[0].low == 4 && p[0].high == 6);
	assert_true(p[1].y == 4 && p[1].low == 3 && p[1].high == 5 && p[1].n_runs == 2);
	assert_true(p[2].step == 3 && p[2].y == 1.5);
	assert_int_equal(series_thin(p, n, 3), 3);
	assert_int_equal(series_thin(p, n, 2), 2);
	assert_true(p[0].y == 4.5 && p[0].low == 3 && p[0].high == 6 && p[1].y == 1.5);
	free(p);
	for (int i = 0; i < 3; i++)
		run_log_free(&logs[i]);
}

/* Names without the folders and files that all have in common, of which something remains. */
static void check_names(const char *const *paths, const char *const *names, int n)
{
	struct run_log logs[4] = {{0}};
	struct series_list l;
	for (int i = 0; i < n; i++)
		logs[i].name = (char *)(uintptr_t)paths[i];
	series_list_init(&l, logs, n, &(struct series_opts){1});
	for (int i = 0; i < n; i++)
		assert_string_equal(l.names[i], names[i]);
	series_list_release(&l);
}

#define NAMES(...) ((const char *const[]){__VA_ARGS__})

TEST(names_are_short)
{
	check_names(NAMES("/a/bc/x/log.txt", "/a/bd/x/log.txt"), NAMES("bc", "bd"), 2);
	check_names(NAMES("a/run", "a/rut", "a/b/c"), NAMES("run", "rut", "b/c"), 3);
	check_names(NAMES("x/log", "x/y/log"), NAMES("log", "y/log"), 2);
	check_names(NAMES("a/log", "a/log"), NAMES("log", "log"), 2);
	check_names(NAMES("r/a/", "r/b/"), NAMES("a", "b"), 2);
	check_names(NAMES("r/", "r/a"), NAMES("r/", "r/a"), 2);
	check_names(NAMES("w.csv#one", "w.csv#two"), NAMES("one", "two"), 2);
	check_names(NAMES("", "/", "//", "a"), NAMES("", "/", "//", "a"), 4);
	check_names(NAMES("/only/one.log"), NAMES("/only/one.log"), 1);
}

/* A range without the first steps, nor a value far from the rest; but with all where little would be left out. */
TEST(ranges_are_settled)
{
	enum { N = 200 };
	struct graph_point p[N];
	const struct graph_series s = {"a", p, N};
	struct graph g = {"step", "loss", &s, 1, .settled = true};
	struct scale x, y;
	struct str text = {0};
	struct outside o = {0};
	for (int i = 0; i < N; i++)
		p[i] = (struct graph_point){i, i < 10 ? 11 - i : 2 + 0.001 * (i % 7)};
	p[150].y = 90;
	assert_true(graph_scales(&g, &x, &y));
	assert_true(
		x.low == 0 && x.high == N - 1 && y.low == 2 && y.high == 2 + 0.001 * 6);
	for (int i = 0; i < N; i++)
		scale_outside(&y, p[i].y, &o);
	outside_print(&o, &text);
	assert_string_equal(text.s, "10 of 200 points are outside: 3 to 90");
	str_free(&text);
	g.settled = false;
	assert_true(graph_scales(&g, &x, &y) && y.high == 90);
	/* a curve that falls all the time is shown whole */
	for (int i = 0; i < N; i++)
		p[i].y = 4 - 0.01 * i;
	g.settled = true;
	assert_true(graph_scales(&g, &x, &y) && y.high == 4);
	/* and so is one that does not change after its begin */
	for (int i = 0; i < N; i++)
		p[i].y = i < 5 ? 7 : 2;
	assert_true(graph_scales(&g, &x, &y) && y.high == 7);
	/* a value outside is not drawn at the edge */
	for (int i = 0; i < N; i++)
		p[i].y = i == 100 ? 90 : i % 10;
	graph_text(&g, &(struct graph_style){MARKS_ASCII, false, 60, 12}, &text);
	assert_non_null(strstr(text.s, "1 of 200 points is outside: 90\n"));
	str_free(&text);
}

TEST(columns_of_other_programs)
{
	struct run_log l = log_of("step=1 loss=2\nstep=2 loss=1\n");
	struct strs names = {0};
	struct series_point *p;
	int64_t n;
	struct err e;
	run_log_set(&l, 1, run_log_column(&l, "reward"), 0.125);
	assert_int_equal(points_of(&l, 1, "reward", AXIS_STEPS, &p, &n, &e), 0);
	assert_true(n == 1 && p[0].x == 2 && p[0].y == 0.125);
	curve_list_columns(&l, 1, &names);
	assert_true(names.n == 2 && !strcmp(names.v[0], "loss") &&
		    !strcmp(names.v[1], "reward"));
	struct str out = {0};
	curve_print_table(&l, 1, "reward", AXIS_STEPS, &out);
	assert_string_equal(out.s, "# step\ta log\n2\t0.125\n");
	str_free(&out);
	strs_free(&names);
	free(p);
	run_log_free(&l);
}

/* ---- speed ------------------------------------------------------------------------- */

/* Tokens per second with noise, of which each value keeps `memory` of the one before; a tenth of
 * the steps are much slower. */
static struct run_log timed(uint64_t seed, int n, double mean, double memory)
{
	struct run_log l = {.name = xstrdup("a log")};
	double noise = test_normal(seed, 0);
	for (int i = 1; i <= n; i++) {
		struct row r = {.has = 0};
		noise = memory * noise + sqrt(1 - memory * memory) * test_normal(seed, i);
		bool slow = i <= 2 || test_uniform(seed + 1, i) < 0.1;
		row_set(&r, COL_STEP, i);
		row_set(&r, COL_TPS, mean * (1 + 0.02 * noise) * (slow ? 0.3 : 1));
		row_set(&r, COL_MEM, 1000);
		run_log_add(&l, &r);
	}
	return l;
}

static struct speed_diff tps_diff(struct run_log a, struct run_log b)
{
	struct speed_diff d[MAX_SPEEDS];
	int n = speed_compare(&a, 1, &b, 1, d);
	assert_true(n == 2 && d[0].column == COL_TPS && d[1].column == COL_MEM);
	assert_string_equal(d[1].words, "the same");
	run_log_free(&a);
	run_log_free(&b);
	return d[0];
}

/* Of runs that are equally fast, at most 5 in 100 are called different, and a difference of 3 % is
 * found in most. */
TEST(noise_is_no_difference)
{
	enum { PAIRS = 400 };
	int wrong = 0, found = 0;
	for (int i = 0; i < PAIRS; i++) {
		uint64_t seed = (uint64_t)i * 8;
		struct speed_diff d = tps_diff(
			timed(seed, 200, 1000, 0.5), timed(seed + 4, 200, 1000, 0.5));
		wrong += strcmp(d.words, "no difference beyond noise") != 0;
		assert_true(d.low < d.ratio && d.ratio < d.high);
		d = tps_diff(
			timed(seed, 200, 1000, 0.5), timed(seed + 4, 200, 1030, 0.5));
		found += !strcmp(d.words, "faster");
	}
	print_message("of %d pairs: %d wrong, %d found\n", PAIRS, wrong, found);
	assert_true(wrong <= PAIRS * 5 / 100 && found >= PAIRS * 90 / 100);
}

/* Controls that differ by 10 % from each other: a test that is 5 % faster than their mean is not. */
TEST(noise_between_runs)
{
	struct run_log logs[] = {timed(1, 200, 950, 0), timed(11, 200, 1050, 0),
		timed(21, 200, 1000, 0), timed(31, 200, 1050, 0),
		timed(41, 200, 2000, 0)};
	struct speed_diff d[MAX_SPEEDS];
	speed_compare(logs, 3, &logs[3], 1, d);
	assert_string_equal(d[0].words, "no difference beyond noise");
	assert_true(d[0].control.n_runs == 3 && d[0].test.df == 2);
	speed_compare(logs, 3, &logs[4], 1, d);
	assert_string_equal(d[0].words, "faster");
	/* of one control, the noise within the runs */
	speed_compare(&logs[2], 1, &logs[3], 1, d);
	assert_string_equal(d[0].words, "faster");
	for (size_t i = 0; i < ARRAY_LEN(logs); i++)
		run_log_free(&logs[i]);
}

TEST(speed_of_few_rows)
{
	struct speed_diff d = tps_diff(timed(1, 5, 1000, 0), timed(9, 300, 2000, 0));
	assert_string_equal(d.words, "too few steps for a statement");
	assert_true(isnan(d.low));
	/* the mean of a whole run, beside its last row */
	struct run_log whole =
		log_of("step=1 loss=3\nstep=2 loss=2\nstep=3 loss=1 dt=0.5 sps=8\n");
	struct speed_diff means[MAX_SPEEDS];
	assert_int_equal(speed_compare(&whole, 1, &whole, 1, means), 2);
	assert_true(
		means[0].column == COL_DT && fabs(means[0].control.value - 0.5) < 1e-12);
	assert_true(
		means[1].column == COL_SPS && fabs(means[1].control.value - 8) < 1e-12);
	assert_string_equal(means[0].words, "too few steps for a statement");
	run_log_free(&whole);
	struct run_log l = log_of("step=1 loss=3 tps=nan\nstep=2 loss=2 tps=inf\n");
	struct speed_diff none[MAX_SPEEDS];
	assert_true(isnan(measure_speed(&l, 1, COL_TPS).value));
	assert_int_equal(speed_compare(&l, 1, &l, 1, none), 0);
	run_log_free(&l);
}
