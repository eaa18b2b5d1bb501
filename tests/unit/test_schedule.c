/* schedules of pipelines: right ones, wrong ones, their times, what they keep, charts. */
#include "engine/pipe.h"
#include "tests/support/schedule_check.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 8, MOST_STAGES = 32, MOST_MICRO = 17 };

static struct err e;

static struct schedule make(
	enum schedule_kind kind, int ranks, int per_rank, int64_t n_micro)
{
	struct schedule s;
	e = (struct err){0};
	assert_int_equal(schedule_init(&s, kind, ranks, per_rank, n_micro, &e), 0);
	return s;
}

static bool can_have(enum schedule_kind kind, int ranks, int per_rank)
{
	const struct schedule_row *row = &schedule_kinds[kind];
	return ranks == 1 || (per_rank >= row->min_stages &&
				     (!row->max_stages || per_rank <= row->max_stages));
}

/* The maximum peak is the largest of all numbers of micro-batches, though only few are tried. */
static void check_max_peak(enum schedule_kind kind, int ranks, int per_rank, int64_t max)
{
	struct schedule first = make(kind, ranks, per_rank, 1);
	for (int r = 0; r < ranks; r++)
		for (int v = 0; v < per_rank; v++) {
			int stage = schedule_stage_of(&first, r, v);
			struct schedule_peak all = {0},
					     got = pipe_max_peak(&first, max, r, stage);
			for (int64_t n = 1; n <= max; n++) {
				struct schedule s = make(kind, ranks, per_rank, n);
				struct schedule_peak one = schedule_peak(&s, r, stage);
				all.kept = max64(all.kept, one.kept);
				all.waiting = max64(all.waiting, one.waiting);
				schedule_release(&s);
			}
			assert_int_equal(got.kept, all.kept);
			assert_int_equal(got.waiting, all.waiting);
		}
	schedule_release(&first);
}

TEST(maximum_peaks)
{
	for (int kind = 0; kind < SCHEDULE_KINDS; kind++)
		for (int ranks = 1; ranks <= 4; ranks++)
			for (int per_rank = 1; per_rank <= 3; per_rank++)
				for (int64_t max = 1; max <= 6 * ranks * per_rank + 3;
					max += 5)
					if (can_have((enum schedule_kind)kind, ranks,
						    per_rank))
						check_max_peak((enum schedule_kind)kind,
							ranks, per_rank, max);
}

/* The times with the same costs on every stage; no timeline is kept. */
static struct timeline times(
	const struct schedule *s, double forward, double x, double w, double transfer)
{
	double costs[3][MOST_STAGES];
	struct timeline t;
	for (int i = 0; i < schedule_stages(s); i++) {
		costs[0][i] = forward;
		costs[1][i] = x;
		costs[2][i] = w;
	}
	struct schedule_costs c = {costs[0], costs[1], costs[2], transfer};
	schedule_time(s, &c, &t);
	return t;
}

static double total(enum schedule_kind kind, int ranks, int per_rank, int64_t n_micro,
	double forward, double x, double w)
{
	struct schedule s = make(kind, ranks, per_rank, n_micro);
	struct timeline t = times(&s, forward, x, w, 0);
	double busy = (double)n_micro * per_rank * (forward + x + w);
	assert_near(t.bubble, 1 - busy / t.total, 1e-12);
	double result = t.total;
	timeline_release(&t);
	schedule_release(&s);
	return result;
}

/* ---- right ones ------------------------------------------------------------------ */

/* While a rank keeps micro-batches of a stage, no two of them have one slot. */
static void check_slots(const struct schedule *s, int stage)
{
	int rank = schedule_rank_of(s, stage);
	struct schedule_peak peak = schedule_peak(s, rank, stage);
	int64_t kept[MOST_MICRO];
	bool split = schedule_kinds[s->kind].splits_backward;
	assert_in_range(peak.kept, 1, s->n_micro);
	for (int64_t i = 0; i < peak.kept; i++)
		kept[i] = -1;
	for (int64_t i = 0; i < s->n[rank]; i++) {
		const struct action *a = &s->rank[rank][i];
		int64_t *slot = &kept[a->micro % peak.kept];
		if (a->stage != stage)
			continue;
		assert_int_equal(*slot, a->kind == ACTION_FORWARD ? -1 : a->micro);
		if (a->kind == ACTION_FORWARD)
			*slot = a->micro;
		else if (a->kind == (split ? ACTION_BACKWARD_W : ACTION_BACKWARD))
			*slot = -1;
	}
}

TEST(all_kinds_are_right)
{
	int made = 0;
	for (int kind = 0; kind < SCHEDULE_KINDS; kind++)
		for (int p = 1; p <= MOST_RANKS; p++)
			for (int v = 1; v <= 4; v++)
				for (int64_t m = 0; m <= MOST_MICRO; m++) {
					if (!can_have((enum schedule_kind)kind, p, v))
						continue;
					struct schedule s =
						make((enum schedule_kind)kind, p, v, m);
					if (schedule_check(&s, &e))
						print_error("%d ranks, %d stages: %s\n",
							p, v, e.msg);
					assert_int_equal(e.code, 0);
					for (int i = 0; m && i < p * v; i++)
						check_slots(&s, i);
					schedule_release(&s);
					made++;
				}
	/* gpipe 4 x 8; 1f1b, zb-h1 and zbv 7 + 4; the interleaved ones 21 + 4; each 18 times */
	assert_int_equal(made, 18 * (32 + 3 * 11 + 2 * 25));
}

TEST(stages_a_rank)
{
	struct schedule s;
	for (int kind = 0; kind < SCHEDULE_KINDS; kind++)
		for (int v = 1; v <= 3; v++) {
			e = (struct err){0};
			int rc = schedule_init(&s, (enum schedule_kind)kind, 2, v, 4, &e);
			assert_int_equal(
				rc, can_have((enum schedule_kind)kind, 2, v) ? 0 : -1);
			assert_int_equal(e.code, rc ? EX_USAGE : 0);
			schedule_release(&s);
		}
	e = (struct err){0};
	assert_int_equal(schedule_init(&s, SCHEDULE_1F1B, 2, 3, 4, &e), -1);
	assert_string_equal(e.msg,
		"the pipeline schedule 1f1b cannot have 3 stages per rank; "
		"use one of: gpipe, interleaved, interleaved-zb");
}

TEST(names)
{
	static const char *const want[] = {
		"gpipe", "1f1b", "interleaved", "zb-h1", "interleaved-zb", "zbv"};
	assert_int_equal(SCHEDULE_KINDS, ARRAY_LEN(want));
	for (int i = 0; i < SCHEDULE_KINDS; i++) {
		assert_string_equal(schedule_kinds[i].name, want[i]);
		assert_string_equal(schedule_kind_names[i], want[i]);
		assert_true(schedule_kinds[i].help && schedule_kinds[i].make);
	}
	assert_null(schedule_kind_names[SCHEDULE_KINDS]);
	assert_ptr_equal(
		schedule_kinds[SCHEDULE_ZB_H1].name, schedule_kind_names[SCHEDULE_ZB_H1]);
}

static void check_actions(const struct schedule *s, const struct action *want, int64_t n)
{
	assert_int_equal(s->n[0], n);
	for (int64_t i = 0; i < n; i++) {
		assert_int_equal(s->rank[0][i].kind, want[i].kind);
		assert_int_equal(s->rank[0][i].micro, want[i].micro);
		assert_int_equal(s->rank[0][i].stage, want[i].stage);
	}
}

/* One rank keeps one micro-batch, whatever the kind. */
TEST(one_rank)
{
	static const struct action whole[] = {{ACTION_FORWARD, 0, 0},
		{ACTION_FORWARD, 0, 1}, {ACTION_BACKWARD, 0, 1}, {ACTION_BACKWARD, 0, 0},
		{ACTION_FORWARD, 1, 0}, {ACTION_FORWARD, 1, 1}, {ACTION_BACKWARD, 1, 1},
		{ACTION_BACKWARD, 1, 0}};
	static const struct action split[] = {{ACTION_FORWARD, 0, 0},
		{ACTION_BACKWARD_X, 0, 0}, {ACTION_BACKWARD_W, 0, 0},
		{ACTION_FORWARD, 1, 0}, {ACTION_BACKWARD_X, 1, 0},
		{ACTION_BACKWARD_W, 1, 0}};
	for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
		if (schedule_kinds[kind].splits_backward)
			continue;
		struct schedule s = make((enum schedule_kind)kind, 1, 2, 2);
		check_actions(&s, whole, ARRAY_LEN(whole));
		assert_int_equal(schedule_peak(&s, 0, -1).kept, 2);
		schedule_release(&s);
	}
	struct schedule s = make(SCHEDULE_ZB_H1, 1, 1, 2);
	check_actions(&s, split, ARRAY_LEN(split));
	schedule_release(&s);
}

/* ---- wrong ones ------------------------------------------------------------------ */

static void check_refused(const struct schedule *s, const char *why)
{
	e = (struct err){0};
	assert_int_equal(schedule_check(s, &e), -1);
	assert_int_equal(e.code, EX_DATAERR);
	if (!strstr(e.msg, why))
		print_error("not \"%s\": %s\n", why, e.msg);
	assert_non_null(strstr(e.msg, why));
}

static struct schedule small(int kind)
{
	struct schedule s =
		make((enum schedule_kind)kind, 3, schedule_kinds[kind].min_stages, 5);
	assert_int_equal(schedule_check(&s, &e), 0);
	return s;
}

static void move(struct schedule *s, int rank, int64_t from, int64_t to)
{
	struct action *a = s->rank[rank], x = a[from];
	memmove(a + from, a + from + 1, (size_t)(s->n[rank] - from - 1) * sizeof(*a));
	memmove(a + to + 1, a + to, (size_t)(s->n[rank] - to - 1) * sizeof(*a));
	a[to] = x;
}

static int64_t find(const struct schedule *s, int rank, struct action x)
{
	for (int64_t i = 0; i < s->n[rank]; i++) {
		const struct action *a = &s->rank[rank][i];
		if (a->kind == x.kind && a->micro == x.micro && a->stage == x.stage)
			return i;
	}
	fail();
	return -1;
}

/* Every action, dropped, doubled, or changed places with the next of its kind and stage. */
TEST(dropped_doubled_swapped)
{
	for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
		struct schedule s = small(kind);
		for (int r = 0; r < s.ranks; r++)
			for (int64_t i = 0; i < s.n[r]; i++) {
				struct action *a = s.rank[r], x = a[i];
				int64_t last = s.n[r] - 1;
				move(&s, r, i, last);
				s.n[r]--;
				check_refused(&s, "micro-batch");
				s.n[r]++;
				move(&s, r, last, i);
				if (i < last) { /* another is doubled in place of it */
					a[i] = a[i + 1];
					check_refused(&s, "micro-batch");
				}
				a[i] = x;
				if (x.micro + 1 == s.n_micro)
					continue;
				struct action y = {x.kind, x.micro + 1, x.stage};
				int64_t j = find(&s, r, y);
				a[i] = y;
				a[j] = x;
				check_refused(&s, "comes before an earlier one");
				a[i] = x;
				a[j] = y;
			}
		assert_int_equal(schedule_check(&s, &e), 0); /* all was put back */
		schedule_release(&s);
	}
}

/* A rank completes the gradients of its first stage last. */
TEST(first_stage_too_early)
{
	struct schedule s = small(SCHEDULE_ZBV);
	int64_t w = find(&s, 2, (struct action){ACTION_BACKWARD_W, 4, 3});
	move(&s, 2, w, s.n[2] - 1);
	check_refused(&s, "comes after that of an earlier stage");
	schedule_release(&s);
}

TEST(doubled_at_the_end)
{
	struct schedule s = small(SCHEDULE_1F1B);
	s.rank[0] = xrealloc(s.rank[0], (size_t)(s.n[0] + 1) * sizeof(**s.rank));
	s.rank[0][s.n[0]] = s.rank[0][s.n[0] - 1];
	s.n[0]++;
	check_refused(&s, "comes twice");
	schedule_release(&s);
}

TEST(out_of_turn)
{
	struct schedule s = small(SCHEDULE_GPIPE);
	move(&s, 2, 5, 1); /* the last stage may well go back at once */
	assert_int_equal(schedule_check(&s, &e), 0);
	move(&s, 2, 1, 0);
	check_refused(&s, "comes before its forward");
	schedule_release(&s);
	s = small(SCHEDULE_ZB_H1);
	int64_t w = find(&s, 0, (struct action){ACTION_BACKWARD_W, 2, 0});
	move(&s, 0, w, find(&s, 0, (struct action){ACTION_BACKWARD_X, 2, 0}));
	check_refused(&s, "comes before that of the input");
	schedule_release(&s);
}

TEST(foreign)
{
	struct schedule s = small(SCHEDULE_INTERLEAVED);
	struct action *a = &s.rank[1][3], good = *a;
	a->stage = 0;
	check_refused(&s, "stage of another rank");
	a->stage = 7;
	check_refused(&s, "stage of another rank");
	*a = good;
	a->micro = 5;
	check_refused(&s, "no micro-batch of the step");
	a->micro = -1;
	check_refused(&s, "no micro-batch of the step");
	*a = good;
	a->kind = ACTION_BACKWARD_X;
	check_refused(&s, "of a kind that interleaved does not have");
	a->kind = ACTION_KINDS;
	check_refused(&s, "of a kind that interleaved does not have");
	*a = good;
	assert_int_equal(schedule_check(&s, &e), 0);
	schedule_release(&s);
}

/* Rank 0 wants micro-batch 0 back before it sends 1, for which rank 1 waits. Each of the
 * two lists would be right with another partner. */
TEST(deadlock)
{
	struct schedule s = make(SCHEDULE_1F1B, 2, 1, 3);
	move(&s, 0, find(&s, 0, (struct action){ACTION_BACKWARD, 0, 0}), 1);
	assert_int_equal(schedule_check(&s, &e), 0);
	move(&s, 1, find(&s, 1, (struct action){ACTION_FORWARD, 1, 1}), 1);
	check_refused(&s,
		"action 1 of rank 0, backward of micro-batch 0 on stage 0, waits "
		"for ever");
	schedule_release(&s);
}

/* ---- times ----------------------------------------------------------------------- */

TEST(closed_forms)
{
	for (int p = 1; p <= MOST_RANKS; p++)
		for (int64_t m = 1; m <= MOST_MICRO; m++) {
			double ideal = (double)(m + p - 1);
			for (int kind = SCHEDULE_GPIPE; kind <= SCHEDULE_1F1B; kind++) {
				struct schedule s =
					make((enum schedule_kind)kind, p, 1, m);
				struct timeline t = times(&s, 1, 0.5, 0.5, 0);
				assert_near(t.bubble, (p - 1) / ideal, 1e-12);
				assert_near(t.total, 2 * ideal, 1e-12);
				timeline_release(&t);
				schedule_release(&s);
			}
			if (m < p)
				continue;
			/* Qi et al. 2023, table 2 */
			double zb = total(SCHEDULE_ZB_H1, p, 1, m, 4, 5, 3);
			assert_near(zb, (double)m * 12 + (p - 1) * (4 + 5 - 3), 1e-9);
			/* Narayanan et al. 2021: (P - 1)(F + B) / V; here of one stage */
			for (int v = 2; v <= 4; v++) {
				double inter = total(
					SCHEDULE_INTERLEAVED, p, v, m, 1, 1.25, 0.75);
				assert_near(
					inter, 3.0 * (double)m * v + (p - 1) * 3.0, 1e-9);
				/* the bubble of zb-h1, in stages that are V times smaller */
				double split = total(
					SCHEDULE_INTERLEAVED_ZB, p, v, m, 1, 1.25, 0.75);
				if (m % p)
					assert_true(p == 1 || split < inter);
				else
					assert_near(split,
						3.0 * (double)m * v + (p - 1) * 1.5,
						1e-9);
			}
		}
}

/* With equal times, ZB-V is idle only until the first forward is on the last rank; and it never takes longer
 * than ZB-H1, whose stages have twice the work. */
TEST(zbv_has_the_least_bubble)
{
	for (int p = 2; p <= MOST_RANKS; p++) {
		print_message("%d ranks, bubble of zb-h1, interleaved-zb, zbv:", p);
		for (int64_t m = 1; m <= 3 * MOST_RANKS; m++) {
			double zb = total(SCHEDULE_ZB_H1, p, 1, m, 2, 2, 2);
			double inter = total(SCHEDULE_INTERLEAVED_ZB, p, 2, m, 1, 1, 1);
			double v = total(SCHEDULE_ZBV, p, 2, m, 1, 1, 1);
			assert_true(v <= zb);
			if (m >= 2 * p)
				assert_near(v, 6 * (double)m + p - 1, 1e-9);
			if (m == 2 * p)
				print_message(" %.1f %.1f %.1f %%\n",
					100 - 600 * (double)m / zb,
					100 - 600 * (double)m / inter,
					100 - 600 * (double)m / v);
			/* backwards that take longer */
			zb = total(SCHEDULE_ZB_H1, p, 1, m, 2, 3, 2);
			assert_true(total(SCHEDULE_ZBV, p, 2, m, 1, 1.5, 1) <= zb);
		}
	}
}

TEST(which_is_faster)
{
	for (int p = 2; p <= MOST_RANKS; p++)
		for (int64_t m = 1; m <= MOST_MICRO; m++) {
			double gpipe = total(SCHEDULE_GPIPE, p, 1, m, 1, 1, 1);
			double one = total(SCHEDULE_1F1B, p, 1, m, 1, 1, 1);
			double zb = total(SCHEDULE_ZB_H1, p, 1, m, 1, 1, 1);
			assert_true(zb < one && one <= gpipe);
			for (int v = 2; m >= p && v <= 4; v++) /* the same work */
				assert_true(total(SCHEDULE_INTERLEAVED, p, v, m, 1. / v,
						    1. / v, 1. / v) < one - 0.1);
		}
}

/* Uneven stages and a transfer, by hand: three ranks, one micro-batch. */
TEST(uneven_stages)
{
	static const double forward[] = {1, 2, 4}, x[] = {3, 5, 7}, w[] = {0.5, 0.25, 1};
	static const struct schedule_costs c = {forward, x, w, 10};
	static const struct schedule_span want[3][3] = {
		{{0, 1}, {59, 62}, {62, 62.5}},
		{{11, 13}, {44, 49}, {49, 49.25}},
		{{23, 27}, {27, 34}, {34, 35}},
	};
	struct timeline t;
	struct schedule s = make(SCHEDULE_ZB_H1, 3, 1, 1);
	schedule_time(&s, &c, &t);
	for (int r = 0; r < 3; r++)
		for (int i = 0; i < 3; i++) {
			assert_near(t.rank[r][i].begin, want[r][i].begin, 1e-12);
			assert_near(t.rank[r][i].end, want[r][i].end, 1e-12);
		}
	assert_near(t.total, 62.5, 1e-12);
	assert_near(t.bubble, 1 - (4.5 + 7.25 + 12) / (3 * 62.5), 1e-12);
	timeline_release(&t);
	schedule_release(&s);
	/* whole backwards hold the rank before up */
	s = make(SCHEDULE_1F1B, 3, 1, 1);
	schedule_time(&s, &c, &t);
	assert_near(t.total, 62.5 + 1 + 0.25, 1e-12);
	timeline_release(&t);
	schedule_release(&s);
	/* stages of one rank need no transfer */
	s = make(SCHEDULE_GPIPE, 1, 3, 2);
	schedule_time(&s, &c, &t);
	assert_near(t.total, 2 * (4.5 + 7.25 + 12), 1e-12);
	assert_near(t.bubble, 0, 1e-12);
	timeline_release(&t);
	schedule_release(&s);
}

/* ---- what is kept ---------------------------------------------------------------- */

TEST(peaks)
{
	for (int p = 2; p <= MOST_RANKS; p++)
		for (int64_t m = 1; m <= MOST_MICRO; m++) {
			struct schedule one = make(SCHEDULE_1F1B, p, 1, m),
					gpipe = make(SCHEDULE_GPIPE, p, 3, m),
					zb = make(SCHEDULE_ZB_H1, p, 1, m),
					inter = make(SCHEDULE_INTERLEAVED, p, 3, m),
					inter_zb = make(SCHEDULE_INTERLEAVED_ZB, p, 3, m),
					zbv = make(SCHEDULE_ZBV, p, 2, m);
			int64_t most = schedule_peak(&inter, 0, -1).kept;
			for (int r = 0; r < p; r++) {
				struct schedule_peak k = schedule_peak(&one, r, -1);
				assert_int_equal(k.kept, min64(p - r, m));
				assert_int_equal(k.waiting, 0);
				assert_int_equal(
					schedule_peak(&gpipe, r, -1).kept, 3 * m);
				assert_int_equal(schedule_peak(&gpipe, r, p + r).kept, m);
				/* as much as the first rank of 1F1B */
				k = schedule_peak(&zb, r, -1);
				assert_int_equal(k.kept, min64(p, m));
				assert_int_equal(k.waiting, min64(r + 1, m));
				k = schedule_peak(&inter, r, -1);
				if (m % p == 0)
					assert_int_equal(
						k.kept, min64(2 * (p - r - 1) + 2 * p + 1,
								3 * m));
				assert_in_range(k.kept, 1, 3 * m);
				/* as much as the first rank of the interleaved schedule */
				k = schedule_peak(&inter_zb, r, -1);
				assert_in_range(k.kept, 1, most);
				/* as much as the first rank of 1F1B, in stages of half the size */
				k = schedule_peak(&zbv, r, -1);
				assert_int_equal(
					k.kept, min64(min64(2 * p, 2 * m), m + r + 1));
			}
			schedule_release(&one);
			schedule_release(&gpipe);
			schedule_release(&zb);
			schedule_release(&inter);
			schedule_release(&inter_zb);
			schedule_release(&zbv);
		}
}

/* In a V, the last rank has two neighbouring stages, and rank 0 both ends. */
TEST(placements)
{
	for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
		struct schedule s = small(kind);
		for (int i = 0; i < schedule_stages(&s); i++) {
			int rank = schedule_rank_of(&s, i);
			assert_int_equal(
				rank, kind == SCHEDULE_ZBV && i > 2 ? 5 - i : i % 3);
			assert_int_equal(schedule_stage_of(&s, rank, i / 3), i);
		}
		schedule_release(&s);
	}
}

/* ---- charts ---------------------------------------------------------------------- */

static void check_chart(enum schedule_kind kind, int ranks, int per_rank, int64_t n_micro,
	int width, const char *want)
{
	struct str out = {0};
	struct schedule s = make(kind, ranks, per_rank, n_micro);
	struct timeline t = times(&s, 1, 1, 1, 0);
	schedule_draw(&s, &t, width, &out);
	assert_string_equal(out.s, want);
	str_free(&out);
	timeline_release(&t);
	schedule_release(&s);
}

TEST(charts)
{
	check_chart(SCHEDULE_1F1B, 3, 1, 4, 100,
		"rank 0  ABC....aaDbb.cc.dd\n"
		"rank 1  .AB..aaCbbDcc.dd..\n"
		"rank 2  ..AaaBbbCccDdd....\n"
		"A, B, ... forward of a micro-batch; a, b, ... its backward; . idle\n"
		"bubble 33.3 % of the time\n");
	check_chart(SCHEDULE_ZB_H1, 3, 1, 4, 100,
		"rank 0  ABC..a+Db+c+d+\n"
		"rank 1  .AB.aCb+Dc+d++\n"
		"rank 2  ..AaBbCc+Dd+++\n"
		"A, B, ... forward of a micro-batch; a, b, ... its backward; + its "
		"weight gradients; . idle\n"
		"bubble 14.3 % of the time\n");
	check_chart(SCHEDULE_ZBV, 2, 2, 4, 100,
		"rank 0  ABCAa+Bb+Da+Cc+b+Dd+c+d+.\n"
		"rank 1  .AABBa+Ca+Cb+Db+Dc+cdd+++\n"
		"A, B, ... forward of a micro-batch; a, b, ... its backward; + its "
		"weight gradients; . idle\n"
		"bubble 4.0 % of the time\n");
	check_chart(SCHEDULE_INTERLEAVED_ZB, 2, 2, 2, 100,
		"rank 0  ABAB.a+b+a+b+\n"
		"rank 1  .ABAaBb+a+b++\n"
		"A, B, ... forward of a micro-batch; a, b, ... its backward; + its "
		"weight gradients; . idle\n"
		"bubble 7.7 % of the time\n");
	check_chart(SCHEDULE_GPIPE, 11, 1, 2, 30,
		"rank  0  A..................ab\n"
		"rank  1  .B...............aab.\n"
		"rank  2  .A..............abb..\n"
		"rank  3  ..B............ab....\n"
		"rank  4  ..A...........ab.....\n"
		"rank  5  ...B.........ab......\n"
		"rank  6  ...AB.......ab.......\n"
		"rank  7  ....A.....aab........\n"
		"rank  8  .....B...abb.........\n"
		"rank  9  .....A..ab...........\n"
		"rank 10  ......Bab............\n"
		"A, B, ... forward of a micro-batch; a, b, ... its backward; . idle\n"
		"a column is 1.71 times the shortest action\n"
		"bubble 83.3 % of the time\n");
	check_chart(SCHEDULE_1F1B, 2, 1, 0, 100,
		"A, B, ... forward of a micro-batch; a, b, ... its backward; . idle\n"
		"bubble 0.0 % of the time\n");
}

/* ---- layers to stages ------------------------------------------------------------ */

enum { MOST_LAYERS = 9, MOST_CUT = 6 };

struct split {
	int stages;
	double cost[MOST_CUT];
	int first[MOST_CUT + 1];
};

/* What the tests give to the first stage and to the last one. */
static const double embedding = 2, head = 1.3;

static double largest(const struct split *d)
{
	double x = 0;
	for (int i = 0; i < d->stages; i++)
		x = fmax(x, d->cost[i]);
	return x;
}

static double smallest(const struct split *d, int from)
{
	double x = HUGE_VAL;
	for (int i = from; i < d->stages; i++)
		x = fmin(x, d->cost[i]);
	return x;
}

/* As schedule.h defines it. */
static bool better(const struct split *a, const struct split *b)
{
	if (!b->stages || largest(a) != largest(b))
		return !b->stages || largest(a) < largest(b);
	for (int i = 0; i < a->stages; i++) {
		if (smallest(a, i) != smallest(b, i))
			return smallest(a, i) > smallest(b, i);
		if (a->first[i + 1] != b->first[i + 1])
			return a->first[i + 1] < b->first[i + 1];
	}
	return false;
}

/* All ways to cut the layers behind those of the first `at` stages. */
static void try_all(
	const double *layer, int n, struct split now, int at, struct split *best)
{
	int from = now.first[at], behind = now.stages - at - 1;
	if (at == now.stages) {
		if (better(&now, best))
			*best = now;
		return;
	}
	for (int to = behind ? from + 1 : n; to <= n - behind; to++) {
		now.cost[at] = at == 0 ? embedding : 0;
		for (int i = from; i < to; i++)
			now.cost[at] += layer[i];
		now.cost[at] += behind ? 0 : head;
		now.first[at + 1] = to;
		try_all(layer, n, now, at + 1, best);
	}
}

static bool split_once(uint64_t seed, int n, int stages)
{
	double layer[MOST_LAYERS];
	int first[MOST_CUT + 1];
	struct split best = {0}, none = {.stages = stages};
	for (int i = 0; i < n; i++) { /* small whole numbers, for ties, or any numbers */
		double u = test_uniform(seed, 10 * n + i);
		layer[i] = seed % 2 ? floor(4 * u) : u;
	}
	try_all(layer, n, none, 0, &best);
	e = (struct err){0};
	assert_int_equal(schedule_split(layer, n, embedding, head, stages, first, &e), 0);
	assert_memory_equal(first, best.first, (size_t)(stages + 1) * sizeof(*first));
	return first[1] != n / stages;
}

TEST(split_against_brute_force)
{
	int uneven = 0;
	for (uint64_t seed = 0; seed < 60; seed++)
		for (int n = 1; n <= MOST_LAYERS; n++)
			for (int stages = 1; stages <= n && stages <= MOST_CUT; stages++)
				uneven += split_once(seed, n, stages);
	assert_true(uneven > 100);
}

static void check_split(const double *layer, int n, double first_more, double last_more,
	int stages, const int *want)
{
	int first[MOST_STAGES + 1];
	assert_int_equal(
		schedule_split(layer, n, first_more, last_more, stages, first, &e), 0);
	for (int i = 0; i <= stages; i++)
		assert_int_equal(first[i], want[i]);
}

TEST(splits)
{
	static const double equal[14] = {
		.1, .1, .1, .1, .1, .1, .1, .1, .1, .1, .1, .1, .1, .1};
	int first[4] = {-1};
	check_split(equal, 12, 0, 0, 4, (const int[]){0, 3, 6, 9, 12});
	check_split(equal, 14, 0, 0, 4, (const int[]){0, 3, 6, 10, 14});
	check_split(equal, 13, 0, 0, 5, (const int[]){0, 2, 4, 7, 10, 13});
	check_split(equal, 3, 0, 0, 3, (const int[]){0, 1, 2, 3});
	check_split(equal, 3, 0, 0, 1, (const int[]){0, 3});
	/* a head that costs as much as three layers */
	check_split(equal, 13, 0, .3, 4, (const int[]){0, 4, 8, 12, 13});
	check_split(equal, 13, .3, 0, 4, (const int[]){0, 1, 5, 9, 13});
	e = (struct err){0};
	assert_int_equal(schedule_split(equal, 3, 0, 0, 4, first, &e), -1);
	assert_int_equal(e.code, EX_USAGE);
	assert_int_equal(first[0], -1);
}
