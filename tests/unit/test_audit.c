/* Which steps are audited, by which rank, and what follows from the results. */
#include "referee/audit_plan.h"
#include "referee/strikes.h"
#include "tests/support/support.h"

#include <string.h>

/* ---- which micro-batch, by which rank ---------------------------------------------- */

TEST(intervals)
{
	/* share of the work, micro-batches of a data rank, stages; interval */
	static const struct {
		double share;
		int64_t turns;
		int stages;
		int64_t every;
	} cases[] = {
		{0.01, 1, 1, 102},
		{0.01, 8, 1, 13},
		{0.01, 32, 1, 4},
		{0.03, 1, 1, 34},
		{1, 1, 1, 1},
		{1, 8, 1, 1},
		{0.5, 8, 1, 1},
		{1e-3, 8, 1, 128},
		/* a pipeline of 4 stages computes 8 micro-batches in 11 slots, and one in 4 */
		{0.01, 8, 4, 38},
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		assert_int_equal(
			audit_interval(cases[i].share, cases[i].turns, cases[i].stages),
			cases[i].every);
	assert_true(audit_interval(1e-300, 8, 1) > 1000000);
}

TEST(one_step_of_each_interval)
{
	struct audit_config c = {
		.seed = 7, .every = 13, .turns = 8, .data_ranks = 4, .unit = 1, .far = 1};
	int places[13] = {0}, turns[8] = {0}, shifts[4] = {0};
	for (int64_t first = 1; first < 13 * 400; first += 13) {
		int n = 0;
		for (int64_t step = first; step < first + 13; step++) {
			struct audit_plan p = audit_plan(&c, step, false);
			struct audit_plan always = audit_plan(&c, step, true);
			assert_true(always.audited);
			assert_int_equal(always.shift, p.shift);
			assert_int_equal(always.turn, p.turn);
			assert_in_range(p.shift, 1, 3);
			assert_in_range(p.turn, 0, 7);
			if (!p.audited)
				continue;
			n++;
			places[step - first]++;
			turns[p.turn]++;
			shifts[p.shift]++;
		}
		assert_int_equal(n, 1);
	}
	for (int i = 0; i < 13; i++)
		assert_in_range(places[i], 10, 60);
	for (int i = 0; i < 8; i++)
		assert_in_range(turns[i], 25, 80);
	for (int i = 1; i < 4; i++)
		assert_in_range(shifts[i], 90, 180);
	/* another seed draws other steps */
	int same = 0;
	for (int64_t step = 1; step <= 13 * 100; step++) {
		struct audit_config other = c;
		other.seed = 8;
		same += audit_plan(&c, step, false).audited &&
			audit_plan(&other, step, false).audited;
	}
	assert_in_range(same, 1, 25);
}

/* Checks that exactly these shifts are drawn. */
static void check_shifts(int data_ranks, int unit, int far, const char *shifts)
{
	struct audit_config c = {.data_ranks = data_ranks, .unit = unit, .far = far};
	bool drawn[64] = {false};
	scoped_str text = {0};
	for (int i = 0; i < 1000; i++) {
		int shift = audit_shift(&c, i / 1000.0);
		assert_in_range(shift, 0, data_ranks - 1);
		drawn[shift] = true;
	}
	for (int i = 0; i < 64; i++)
		if (drawn[i])
			str_printf(&text, "%s%d", text.len ? " " : "", i);
	assert_string_equal(text.s, shifts);
}

TEST(shifts)
{
	check_shifts(1, 1, 1, "0");
	check_shifts(2, 1, 1, "1");
	check_shifts(5, 1, 1, "1 2 3 4");
	/* other replicas, or other hosts */
	check_shifts(8, 1, 4, "4");
	check_shifts(8, 1, 2, "2 3 4 5 6");
	check_shifts(6, 1, 4, "1 2 3 4 5"); /* none is far for all ranks */
	/* ranks that exchange rows of experts */
	check_shifts(8, 2, 1, "2 4 6");
	check_shifts(8, 4, 1, "4");
	check_shifts(8, 4, 2, "4");
	check_shifts(8, 2, 3, "4");
	check_shifts(4, 4, 1, "1 2 3"); /* all ranks do */
}

/* ---- who computed wrongly ---------------------------------------------------------- */

/* Opinions as letters: a1 b1 a2 b2, then the other ranks; "R" is what a right rank computes. */
static void check_verdict(
	const char *text, bool alone, enum audit_verdict verdict, bool a, bool b)
{
	struct audit_opinions o = {.a = (uint64_t)text[0],
		.b = (uint64_t)text[1],
		.a_again = (uint64_t)text[2],
		.b_again = (uint64_t)text[3],
		.n_others = (int)strlen(text) - 4,
		.alone = alone};
	for (int i = 0; i < o.n_others; i++)
		o.other[i] = (uint64_t)text[4 + i];
	struct audit_finding f = audit_judge(&o);
	if (f.verdict != verdict || f.a != a || f.b != b)
		print_error("%s\n", text);
	assert_int_equal(f.verdict, verdict);
	assert_int_equal(f.a, a);
	assert_int_equal(f.b, b);
}

TEST(other_ranks_decide)
{
	check_verdict("RRRRRRR", false, AUDIT_EQUAL, false, false);
	/* A was wrong once, or is wrong each time, alike or not */
	check_verdict("xRRRRRR", false, AUDIT_SPORADIC, true, false);
	check_verdict("xRxRRRR", false, AUDIT_PERSISTENT, true, false);
	check_verdict("xRyRRRR", false, AUDIT_PERSISTENT, true, false);
	/* B */
	check_verdict("RxRRRRR", false, AUDIT_SPORADIC, false, true);
	check_verdict("RxRxRRR", false, AUDIT_PERSISTENT, false, true);
	check_verdict("RxRyRRR", false, AUDIT_PERSISTENT, false, true);
	/* one other rank, and two */
	check_verdict("xRRRR", false, AUDIT_SPORADIC, true, false);
	check_verdict("RxRxR", false, AUDIT_PERSISTENT, false, true);
	check_verdict("xRxRRR", false, AUDIT_PERSISTENT, true, false);
	/* another rank is wrong, too: the majority decides */
	check_verdict("xRRRRzR", false, AUDIT_SPORADIC, true, false);
	check_verdict("RxRxzRR", false, AUDIT_PERSISTENT, false, true);
	/* the others agree with neither, or not with each other */
	check_verdict("xyxyRRR", false, AUDIT_UNDECIDED, true, true);
	check_verdict("xRxRRz", false, AUDIT_UNDECIDED, true, true);
	check_verdict("xRxRzyv", false, AUDIT_UNDECIDED, true, true);
}

TEST(two_data_ranks)
{
	check_verdict("xRRR", false, AUDIT_SPORADIC, true, false);
	check_verdict("RxRR", false, AUDIT_SPORADIC, false, true);
	/* a rank that contradicts itself is wrong each time */
	check_verdict("xRyR", false, AUDIT_PERSISTENT, true, false);
	check_verdict("RxRy", false, AUDIT_PERSISTENT, false, true);
	/* two against two */
	check_verdict("xRxR", false, AUDIT_UNDECIDED, true, true);
	check_verdict("xRyz", false, AUDIT_UNDECIDED, true, true);
}

TEST(one_data_rank)
{
	check_verdict("RRRR", true, AUDIT_EQUAL, false, false);
	check_verdict("xRRR", true, AUDIT_SPORADIC, true, false);
	check_verdict("RxRR", true, AUDIT_SPORADIC, true, false);
	check_verdict("xRxR", true, AUDIT_PERSISTENT, true, false);
	check_verdict("xyRR", true, AUDIT_PERSISTENT, true, false);
}

TEST(software)
{
	/* one rank computes in two pairs */
	assert_false(audit_is_software(1, 1));
	assert_false(audit_is_software(2, 2));
	assert_false(audit_is_software(2, 3));
	assert_true(audit_is_software(3, 3));
	assert_true(audit_is_software(3, 4));
	assert_false(audit_is_software(4, 8));
	assert_true(audit_is_software(5, 8));
	assert_false(audit_is_software(2, 100));
}

/* ---- faults within a day ------------------------------------------------------------- */

#define LINE(host, device, verdict) \
	"2026-11-30T12:00:00Z\t7\t" host "\t" device "\t0\t" verdict "\tnorm.weight\n"

static int64_t parse_text(struct strikes *x, const char *text)
{
	return strikes_parse(x, text, strlen(text));
}

TEST(strikes_of_a_file)
{
	const double noon = 1796040000, day = 24 * 3600; /* 2026-11-30T12:00:00Z */
	struct strikes x = {0};
	assert_int_equal(
		parse_text(&x, LINE("n1", "GPU 0", "sporadic") LINE("n1", "GPU 0",
				       "persistent") LINE("n1", "GPU 1", "sporadic")
				       LINE("n2", "GPU 0", "undecided") "\n" LINE(
					       "n3", "GPU 0", "persistent")),
		0);
	assert_int_equal(x.n, 4);
	assert_int_equal(strikes_count(&x, noon, "n1", "GPU 0"), 2);
	assert_int_equal(strikes_count(&x, noon + day - 1, "n1", "GPU 0"), 2);
	assert_int_equal(strikes_count(&x, noon - day + 1, "n1", "GPU 0"), 2);
	assert_int_equal(strikes_count(&x, noon + day, "n1", "GPU 0"), 0);
	assert_int_equal(strikes_count(&x, noon - day, "n1", "GPU 0"), 0);
	assert_int_equal(strikes_count(&x, noon, "n1", "GPU 1"), 1);
	assert_int_equal(strikes_count(&x, noon, "n2", "GPU 0"), 0);
	assert_int_equal(strikes_count_devices(&x, noon), 2);
	assert_int_equal(strikes_count_devices(&x, noon + day), 0);
	struct strike new = {.time = noon + day, .host = "n1", .device = "GPU 0"};
	strikes_add(&x, &new);
	assert_int_equal(strikes_count(&x, noon + day, "n1", "GPU 0"), 1);
	assert_int_equal(strikes_count_devices(&x, noon + day), 1);
	strikes_release(&x);
}

TEST(hostile_files_of_suspects)
{
	static const char *const bad[] = {"x\n", "\t\t\t\t\t\t\n",
		LINE("", "GPU 0", "sporadic"), LINE("n1", "", "sporadic"),
		LINE("n1", "GPU 0", "sporadi"), LINE("n1", "GPU 0", ""),
		LINE("n1\tn2", "GPU 0", "sporadic"), LINE("n1", "GPU 0\tx", "sporadic"),
		"2026-11-30T12:00:00Z\tx\tn1\tGPU 0\t0\tsporadic\tw\n",
		"2026-11-30T12:00:00Z\t7\tn1\tGPU 0\t\tsporadic\tw\n",
		"2026-11-30T12:00:00\t7\tn1\tGPU 0\t0\tsporadic\tw\n",
		"2026-13-30T12:00:00Z\t7\tn1\tGPU 0\t0\tsporadic\tw\n",
		"2026-11-30T12:00:00Z\t7\tn1\tGPU 0\t0\tsporadic"};
	struct strikes x = {0};
	char text[2000], host[65];
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(parse_text(&x, bad[i]), 1);
	memset(host, 'h', sizeof(host));
	host[64] = 0;
	snprintf(text, sizeof(text), "2026-11-30T12:00:00Z\t7\t%s\tGPU 0\t0\tsporadic\tw",
		host);
	assert_int_equal(parse_text(&x, text), 1);
	memset(text, 'x', sizeof(text)); /* a long line */
	text[sizeof(text) - 1] = '\n';
	assert_int_equal(strikes_parse(&x, text, sizeof(text)), 1);
	memset(text, 0, sizeof(text));
	assert_int_equal(strikes_parse(&x, text, sizeof(text)), 1);
	assert_int_equal(strikes_parse(&x, text, 0), 0);
	assert_int_equal(x.n, 0);
	/* a last line without a line break */
	host[63] = 0;
	snprintf(text, sizeof(text), "2026-11-30T12:00:00Z\t7\t%s\tGPU 0\t0\tsporadic\tw",
		host);
	assert_int_equal(parse_text(&x, text), 0);
	assert_int_equal(x.n, 1);
	strikes_release(&x);
}
