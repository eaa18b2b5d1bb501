/* collbench: numbers of 16 and 8 bits, inputs with exact sums, statistics, fits, files, comparison. */
#include "tests/support/support.h"
#include "collbench/bench_internal.h"
#include "collbench/table.h"
#include "comm/comm_internal.h"
#include "kernels/dtype_bits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- formats --------------------------------------------------------------------- */

static const struct {
	enum dtype type;
	int exponent_bits, fraction_bits;
	bool infinite;
} formats[] = {{DT_F16, 5, 10, true}, {DT_BF16, 8, 7, true}, {DT_E4M3, 4, 3, false},
	{DT_E5M2, 5, 2, true}};

/* What the bits mean, by the definition of the format. */
static double meaning(size_t f, uint32_t u)
{
	int fraction = formats[f].fraction_bits, e = formats[f].exponent_bits;
	int bias = (1 << (e - 1)) - 1, most = (1 << e) - 1;
	int x = (int)(u >> fraction) & most, m = (int)u & ((1 << fraction) - 1);
	double sign = u >> (e + fraction) ? -1 : 1;
	if (x == most && formats[f].infinite)
		return m ? NAN : sign * INFINITY;
	if (x == most && m == (1 << fraction) - 1)
		return NAN;
	return x ? sign * ldexp(m + (1 << fraction), x - bias - fraction)
		 : sign * ldexp(m, 1 - bias - fraction);
}

TEST(every_number_widens_and_narrows)
{
	for (size_t f = 0; f < ARRAY_LEN(formats); f++) {
		enum dtype t = formats[f].type;
		uint32_t n = 1u << dtype_table[t].bits;
		for (uint32_t u = 0; u < n; u++) {
			double want = meaning(f, u);
			float got = widen_bits(u, t);
			if (isnan(want)) {
				assert_true(isnan(got));
				assert_true(isnan(widen_bits(narrow_bits(got, t), t)));
				continue;
			}
			assert_true((double)got == want);
			if (isfinite(want))
				assert_int_equal(narrow_bits(got, t), u);
		}
	}
}

TEST(halves_round_to_even)
{
	for (size_t f = 0; f < ARRAY_LEN(formats); f++) {
		enum dtype t = formats[f].type;
		for (uint32_t u = 0; isfinite(meaning(f, u + 1)); u++) {
			float half = (float)((meaning(f, u) + meaning(f, u + 1)) / 2);
			assert_int_equal(narrow_bits(half, t), u + (u & 1));
			assert_int_equal(
				narrow_bits(nextafterf(half, INFINITY), t), u + 1);
			assert_int_equal(narrow_bits(nextafterf(half, 0), t), u);
		}
	}
	assert_true(isinf(widen_bits(narrow_bits(1e6f, DT_F16), DT_F16)));
	assert_true(widen_bits(narrow_bits(-1e6f, DT_E4M3), DT_E4M3) == -448);
	assert_true(widen_bits(narrow_bits(INFINITY, DT_E5M2), DT_E5M2) == 57344);
}

/* ---- inputs ---------------------------------------------------------------------- */

static double value_at(const char *p, enum comm_type t)
{
	double d;
	float f;
	uint16_t h;
	memcpy(&d, p, sizeof(d));
	memcpy(&f, p, sizeof(f));
	memcpy(&h, p, sizeof(h));
	if (t == COMM_F64)
		return d;
	if (t == COMM_F32)
		return (double)f;
	return (double)widen_bits(comm_type_table[t].bytes == 1 ? h & 0xff : h,
		(enum dtype)comm_type_table[t].dtype);
}

static void put_value(char *p, enum comm_type t, double v)
{
	float f = (float)v;
	uint32_t bits;
	if (t == COMM_F64) {
		memcpy(p, &v, sizeof(v));
		return;
	}
	memcpy(&bits, &f, sizeof(f));
	if (t != COMM_F32)
		bits = narrow_bits(f, (enum dtype)comm_type_table[t].dtype);
	memcpy(p, &bits, comm_type_bytes(t));
}

static double reduce(enum comm_op op, double a, double b)
{
	return op == COMM_SUM	 ? a + b
	       : op == COMM_PROD ? a * b
	       : op == COMM_MIN	 ? fmin(a, b)
				 : fmax(a, b);
}

enum { COUNT = 50, ROOM = 2 * VERIFY_GUARD + 8 * COUNT };

/* Reduces the inputs of all ranks, beginning with `first`, with rounding after each step, and checks it. */
static int64_t wrong_of(enum comm_type t, enum comm_op op, int ranks, int first)
{
	static char send[ROOM], recv[ROOM], sum[8 * COUNT];
	size_t bytes = comm_type_bytes(t);
	struct verify v = {
		{COLL_ALLREDUCE, COLL_OUT_OF_PLACE, t, op, 0, COUNT}, 0, ranks, 3};
	for (int i = 0; i < ranks; i++) {
		v.rank = (first + i) % ranks;
		verify_fill(&v, send + VERIFY_GUARD, recv + VERIFY_GUARD);
		for (size_t k = 0; k < COUNT; k++) {
			const char *in = send + VERIFY_GUARD + k * bytes;
			double x = value_at(in, t);
			if (i)
				x = reduce(op, value_at(sum + k * bytes, t), x);
			put_value(sum + k * bytes, t, x);
		}
	}
	memcpy(recv + VERIFY_GUARD, sum, COUNT * bytes);
	return verify_count_wrong(&v, send + VERIFY_GUARD, recv + VERIFY_GUARD);
}

TEST(no_order_rounds)
{
	for (int t = COMM_F32; t < N_COMM_TYPES; t++)
		for (int op = 0; op < N_COMM_OPS; op++)
			for (int ranks = 1; ranks < 40; ranks++)
				for (int first = 0; first < ranks; first += 7)
					assert_int_equal(
						wrong_of((enum comm_type)t,
							(enum comm_op)op, ranks, first),
						0);
}

/* ---- calls ----------------------------------------------------------------------- */

static int n_calls, n_starts;
static float last_input[8], before_last[8];

static void count_call(struct comm *c, enum coll what, const struct coll_args *a)
{
	(void)c;
	n_calls++;
	if (what == COLL_BARRIER)
		return;
	memcpy(before_last, last_input, sizeof(last_input));
	memcpy(last_input, a->send, sizeof(last_input));
}

static void count_start(struct comm *c, struct comm_request *r, int n)
{
	(void)c, (void)r;
	n_starts += n;
}

/* The checks of a case on two ranks, by functions that only count. */
static void check(enum bench_calls calls, int what)
{
	static const struct comm_ops ops = {.call = count_call, .start = count_start};
	static char send[ROOM], recv[ROOM];
	struct comm two = {.size = 2, .name = "two", .ops = &ops};
	struct bench b = {.o = {.calls = calls, .reruns = 3, .checks = 2},
		.comm = &two,
		.home = comm_self("alone"),
		.send = send + VERIFY_GUARD,
		.recv = recv + VERIFY_GUARD};
	struct coll_case c = {.what = what, .type = COMM_F32, .count = 8};
	struct bench_result r = bench_not_measured;
	b.host_send = b.send;
	b.host_recv = b.recv;
	n_calls = n_starts = 0;
	bench_check(&b, &c, &r);
	comm_free(b.home);
}

TEST(checks_call_what_is_measured)
{
	check(CALLS_BLOCKING, COLL_ALLREDUCE); /* once, and 3 times again; 2 checks */
	assert_int_equal(n_calls, 6);
	assert_int_equal(n_starts, 0);
	assert_memory_not_equal(last_input, before_last, sizeof(last_input));
	check(CALLS_NONBLOCKING, COLL_ALLREDUCE);
	assert_int_equal(n_calls, 0);
	assert_int_equal(n_starts, 6);
	/* 2 turns of 2 checks; the ranks then tell each other when they left */
	check(CALLS_BLOCKING, COLL_BARRIER);
	assert_int_equal(n_calls, 4);
	assert_int_equal(n_starts, 4);
	check(CALLS_NONBLOCKING, COLL_BARRIER);
	assert_int_equal(n_calls, 0);
	assert_int_equal(n_starts, 8);
}

/* ---- statistics and fits ----------------------------------------------------------- */

TEST(typical_time_and_its_error)
{
	struct bench_part parts[] = {{9, 1}, {1e-6, 8}, {3e-6, 8}, {2e-6, 9}, {5e-6, 8},
		{4e-6, 8}, {9e-3, 9, true}};
	double seconds[] = {2e-6, 1e-6, 4e-6, 3e-6};
	struct bench_samples s = {.seconds = seconds,
		.n = 4,
		.iters = 4,
		.total = 10e-6,
		.part = parts,
		.n_parts = 7};
	struct coll_case c = {.what = COLL_ALLREDUCE, .type = COMM_F32, .count = 1000};
	struct bench_result r = bench_not_measured;
	bench_compute_statistics(&s, &c, 4, &r);
	assert_near(r.time, 2.5, 1e-9);
	assert_near(r.algbw, 4000 / 2.5e-6 * 1e-9, 1e-9);
	assert_near(r.busbw, r.algbw * 1.5, 1e-9);
	assert_near(r.i_p50, 2.5, 1e-9);
	assert_near(r.i_min, 1, 1e-9);
	assert_near(r.i_p99, 4, 1e-9);
	assert_near(r.i_cv, 100 * sqrt(1.25) / 2.5, 1e-9);
	/* the first part is too short, and in the last one a rank waited */
	double mean = log(1.0 * 3 * 2 * 5 * 4) / 5, squares = 0;
	for (int i = 1; i <= 5; i++)
		squares += pow(log(i) - mean, 2);
	assert_near(r.typical, 3, 1e-9);
	assert_near(r.noise, 100 * sqrt(squares / 4 / 5), 1e-9);
	assert_int_equal(r.parts, 5);
	assert_int_equal(r.waited, 1);
	s.n_parts = 3; /* two that count: no error */
	bench_compute_statistics(&s, &c, 4, &r);
	assert_true(isnan(r.noise) && r.parts == 2 && r.typical > 0);
	for (int i = 0; i < 3; i++)
		parts[i].waited = true;
	bench_compute_statistics(&s, &c, 4, &r);
	assert_true(isnan(r.noise) && r.parts == 0 && r.waited == 2 && r.typical > 0);
}

TEST(fit_finds_what_it_was_made_of)
{
	const double size[] = {8, 64, 512, 4096, 32768, 1048576};
	double time[6], off[6];
	struct bench_fit f = {0};
	for (int i = 0; i < 6; i++) {
		time[i] = 2e-6 + 3e-10 * size[i];
		off[i] = time[i] * (i % 2 ? 1.1 : 0.9);
	}
	assert_true(bench_fit_times(size, time, 6, &f));
	assert_near(f.alpha, 2e-6, 1e-12);
	assert_near(f.beta, 3e-10, 1e-16);
	assert_true(f.error < 1e-9);
	assert_true(bench_fit_times(size, off, 6, &f));
	assert_true(fabs(f.alpha / 2e-6 - 1) < 0.1 && fabs(f.beta / 3e-10 - 1) < 0.15);
	assert_true(f.error > 0.05 && f.error < 0.15);
	assert_false(bench_fit_times(size, time, 2, &f));
	/* times that fall with the size, or grow faster than it, have no negative bandwidth or latency */
	assert_true(bench_fit_times(size, (double[]){3, 2, 1}, 3, &f));
	assert_true(f.beta == 0 && f.alpha > 0);
	assert_true(bench_fit_times(size, (double[]){1e-9, 1e-7, 1e-5}, 3, &f));
	assert_true(f.alpha == 0 && f.beta > 0);
}

/* ---- files and comparison ------------------------------------------------------------ */

static struct bench_row row_of(int64_t size, double typical, double noise)
{
	struct bench_row r = {.collective = COLL_ALLREDUCE,
		.size = size,
		.count = size / 4,
		.type = COMM_F32,
		.redop = COMM_SUM,
		.root = -1,
		.library = -1,
		.group_ranks = 2,
		.group_hosts = 1,
		.groups = 1,
		.result = {bench_not_measured, bench_not_measured}};
	r.result[0].time = typical + 1;
	r.result[0].typical = typical;
	r.result[0].noise = noise;
	r.result[0].parts = isnan(noise) ? 2 : 8;
	r.result[0].digest = size;
	return r;
}

/* As of --split tp=2,fsdp=2: equal but for the axis. */
TEST(each_axis_has_a_fit)
{
	enum { SIZES = 4 };
	struct bench_row rows[2 * SIZES];
	struct bench_table t = {.rows = rows, .n_rows = 2 * SIZES};
	for (int i = 0; i < 2 * SIZES; i++) {
		int64_t size = 8 << 3 * (i % SIZES);
		bool second = i >= SIZES;
		rows[i] = row_of(size, (second ? 5 : 2) + 1e-2 * (double)size, 1);
		rows[i].group = second ? 3 : 5;
		rows[i].groups = 2;
	}
	table_add_fits(&t);
	assert_int_equal(t.n_fits, 2);
	assert_near(t.fits[0].alpha, 2e-6, 1e-12);
	assert_near(t.fits[1].alpha, 5e-6, 1e-12);
	for (int i = 0; i < 2; i++)
		assert_near(t.fits[i].beta, 1e-8, 1e-14);
	free(t.fits);
}

TEST(what_is_written_is_read)
{
	struct bench_row rows[] = {
		row_of(8, 2, 1), row_of(64, 3, 1), row_of(4096, 90, NAN)};
	struct bench_table t = {.rows = rows, .n_rows = 3}, back = {.n_rows = 0};
	struct bench_file file = {.path = "result.h5"};
	struct bench_about about = {.format = "pt-collbench",
		.version = BENCH_VERSION,
		.created_by = "a test",
		.started = "now",
		.settings = "calls=none",
		.host = "here"};
	struct bench_fit *fits;
	struct comm *c = comm_self("alone");
	struct err e = {0};
	int64_t n;
	table_add_fits(&t);
	assert_int_equal(t.n_fits, 1);
	assert_int_equal(bench_file_begin(&file, c, &e), 0);
	assert_int_equal(bench_file_end(&file, c, &t, &about, &e), 0);
	assert_int_equal(bench_file_read("result.h5", &back, &e), 0);
	assert_int_equal(back.n_rows, 3);
	assert_memory_equal(back.rows, rows, sizeof(rows));
	assert_string_equal(back.settings, "calls=none");
	table_release(&back);
	assert_int_equal(bench_fits_read("result.h5", &fits, &n, &e), 0);
	assert_int_equal(n, 1);
	assert_memory_equal(fits, t.fits, sizeof(*fits));
	assert_int_equal(fits->library, LIBRARY_MPI);
	free(fits);
	rows[1].collective = -1;
	assert_int_equal(bench_file_begin(&file, c, &e), 0);
	assert_int_equal(bench_file_end(&file, c, &t, &about, &e), 0);
	assert_int_equal(bench_file_read("result.h5", &back, &e), -1);
	assert_string_equal(e.msg, "result.h5: row 1 has no collective, size or group");
	free(t.fits);
	unlink("result.h5");
	assert_int_equal(bench_fits_read("result.h5", &fits, &n, &e), -1);
	comm_free(c);
}

/* Compares, and looks for words in what is printed; `again`, unless it is NULL, was measured after `now`. Returns the
 * number of slower times, or minus the code of an error. */
static int64_t compare(const struct bench_table *old, const struct bench_table *now,
	const struct bench_table *again, const char *want)
{
	struct str out = {0};
	struct err e = {0};
	struct bench_judged *judged = table_judge(old, now, 0.05), *second = NULL;
	int64_t open = 0;
	if (again) {
		second = table_judge(old, again, 0.05);
		table_update_verdicts(judged, second, now->n_rows);
	}
	int64_t n = table_compare(old, now, judged, &out, &e);
	if (!strstr(out.s, want))
		fail_msg("%s: %s", want, out.s);
	for (int64_t i = 0; i < now->n_rows; i++)
		open += table_count_doubtful(&judged[i]);
	if (n >= 0)
		assert_int_equal(n, open);
	free(judged);
	free(second);
	str_free(&out);
	return n < 0 ? -e.code : n;
}

static int64_t slower(double ratio, double noise, const char *want)
{
	struct bench_row old = row_of(8, 10, noise), now = row_of(8, 10 * ratio, noise);
	return compare(&(struct bench_table){.rows = &old, .n_rows = 1},
		&(struct bench_table){.rows = &now, .n_rows = 1}, NULL, want);
}

/* With errors of 1 and of 6 %, and of each launch 3 % and 0.1 of 10 us: 4.7 and 9.6 %; of one case, t is at least 1.64. */
TEST(slower_needs_more_than_the_noise)
{
	assert_int_equal(slower(1.2, 1, "compared 1: 1 slower"), 1);
	assert_int_equal(slower(1.06, 1, "1 unchanged"), 0);
	assert_int_equal(slower(1.09, 1, "1 slower"), 1);
	assert_int_equal(slower(1.04, 0.1, "1 unchanged"), 0); /* below 5 % */
	assert_int_equal(slower(1.15, 6, "1 unchanged"), 0);
	assert_int_equal(slower(1.25, 6, "1 slower"), 1);
	assert_int_equal(slower(0.8, 1, "1 faster"), 0);
	assert_int_equal(slower(1, 1, "0 of 1 differ bitwise"), 0);
}

/* The more times are compared, the more one must differ: of 1000 times, by 4.1 errors instead of 1.64. */
TEST(many_times_need_more)
{
	enum { N = 1000 };
	struct bench_row old[N], now[N];
	struct bench_table a = {.rows = old, .n_rows = N}, b = {.rows = now, .n_rows = N};
	for (int i = 0; i < N; i++) {
		old[i] = row_of(8 + 4 * i, 10, 1);
		now[i] = row_of(8 + 4 * i, i == 7 ? 11.5 : 10, 1);
	}
	assert_int_equal(compare(&a, &b, NULL, "0 slower, 0 faster, 1000 unchanged"), 0);
	now[7] = row_of(8 + 4 * 7, 13, 1);
	assert_int_equal(compare(&a, &b, NULL, "1 slower, 0 faster, 999 unchanged"), 1);
}

/* Of 0.5 us, 0.1 us more are no news of a network. */
TEST(short_times_need_more)
{
	struct bench_row old = row_of(8, 0.5, 1), now = row_of(8, 0.65, 1);
	assert_int_equal(compare(&(struct bench_table){.rows = &old, .n_rows = 1},
				 &(struct bench_table){.rows = &now, .n_rows = 1}, NULL,
				 "1 unchanged"),
		0);
}

/* Times during which ranks waited for processors are judged when they are measured again. */
TEST(what_waited_is_measured_again)
{
	struct bench_row old = row_of(8, 10, 1), now = row_of(8, 100, NAN),
			 slow = row_of(8, 13, 1), same = row_of(8, 10, 1);
	const struct bench_table a = {.rows = &old, .n_rows = 1},
				 b = {.rows = &now, .n_rows = 1},
				 c = {.rows = &slow, .n_rows = 1},
				 d = {.rows = &same, .n_rows = 1};
	now.result[0].waited = 8;
	struct bench_judged *j = table_judge(&a, &b, 0.05);
	assert_true(j->verdict[0] == VERDICT_UNJUDGED && table_count_doubtful(j) > 0);
	free(j);
	assert_int_equal(compare(&a, &b, &c, "13.00 us, before 10.00 us: +30.0 %"), 1);
	assert_int_equal(compare(&a, &b, &d, "1 unchanged, 0 not judged"), 0);
}

/* A comparison of nothing is no pass. */
TEST(something_must_be_judged)
{
	struct bench_row old[] = {row_of(8, 10, 1), row_of(64, 10, 1)},
			 now[] = {row_of(8, 10, NAN), row_of(64, 10, 1)};
	struct bench_table a = {.rows = old, .n_rows = 1}, b = {.rows = now, .n_rows = 1};
	assert_int_equal(slower(1.2, NAN, "1 not judged"), -EX_DATAERR);
	assert_int_equal(compare(&a, &b, NULL, "1 not judged"), -EX_DATAERR);
	a.n_rows = b.n_rows = 2;
	assert_int_equal(compare(&a, &b, NULL, "1 unchanged, 1 not judged"), 0);
	b.rows = now + 1;
	b.n_rows = 1;
	assert_int_equal(compare(&a, &b, NULL,
				 "missing    allreduce float sum, 8 bytes, world of 2"),
		0);
	assert_int_equal(compare(&a, &b, NULL, "0 rows are new, 1 are missing"), 0);
	a.n_rows = 1;
	assert_int_equal(
		compare(&a, &b, NULL, "1 rows are new, 1 are missing"), -EX_DATAERR);
}

/* The second measurement decides, but the first is what is printed. */
TEST(slower_only_if_it_is_so_again)
{
	struct bench_row old[] = {row_of(8, 10, 1), row_of(64, 10, 1)},
			 now[] = {row_of(8, 20, 1), row_of(64, 20, 1)},
			 then[] = {row_of(8, 5, 1), row_of(64, 15, 1)};
	struct bench_table a = {.rows = old, .n_rows = 2}, b = {.rows = now, .n_rows = 2},
			   c = {.rows = then, .n_rows = 2};
	assert_int_equal(compare(&a, &b, NULL, "2 slower, 0 faster, 0 unchanged"), 2);
	assert_int_equal(compare(&a, &b, &c, "1 slower, 0 faster, 1 unchanged"), 1);
	assert_int_equal(compare(&a, &b, &c,
				 "64 bytes, world of 2 ranks, out_of_place: "
				 "20.00 us, before 10.00 us: +100.0 %"),
		1);
	assert_int_equal(compare(&a, &b, &c, "geometric mean: 2.000"), 1);
	/* what was not slower is not looked at again */
	assert_int_equal(compare(&a, &a, &b, "0 slower, 0 faster, 2 unchanged"), 0);
}
