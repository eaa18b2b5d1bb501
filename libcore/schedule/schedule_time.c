/* The predicted timeline of a schedule and its Gantt chart, for plans. */
#include "schedule/schedule_internal.h"

#include <math.h>

/* ---- times ----------------------------------------------------------------------- */

static double action_cost(const struct schedule_costs *c, const struct action *a)
{
	switch (a->kind) {
	case ACTION_FORWARD:
		return c->forward[a->stage];
	case ACTION_BACKWARD:
		return c->backward_x[a->stage] + c->backward_w[a->stage];
	case ACTION_BACKWARD_X:
		return c->backward_x[a->stage];
	default:
		return c->backward_w[a->stage];
	}
}

/* Returns the address of an output's completion time in times[2][stage][micro-batch]. */
static double *output_time(
	const struct schedule *s, double *times, const struct action *a, int stage)
{
	int row = a->kind == ACTION_FORWARD ? stage : schedule_stages(s) + stage;
	return times + row * s->n_micro + a->micro;
}

/* Returns the time at which an action's input arrives from the previous or the next stage. */
static double arrival_time(const struct schedule *s, const struct schedule_costs *c,
	double *times, const struct action *a)
{
	int from = a->kind == ACTION_FORWARD ? a->stage - 1 : a->stage + 1;
	if (a->kind == ACTION_BACKWARD_W || from < 0 || from == schedule_stages(s))
		return 0;
	bool same_rank = schedule_rank_of(s, from) == schedule_rank_of(s, a->stage);
	return *output_time(s, times, a, from) + (same_rank ? 0 : c->transfer);
}

void schedule_time(
	const struct schedule *s, const struct schedule_costs *c, struct timeline *t)
{
	size_t outputs = (size_t)(2 * schedule_stages(s) * s->n_micro);
	scoped_ptr double *times = xcalloc(outputs + 1, sizeof(*times));
	struct schedule_iter w;
	double busy = 0;
	int rank;
	int64_t i, n_executed = 0, n_actions = 0;
	*t = (struct timeline){
		.ranks = s->ranks, .rank = xcalloc((size_t)s->ranks, sizeof(*t->rank))};
	for (int r = 0; r < s->ranks; r++) {
		t->rank[r] = xcalloc((size_t)s->n[r] + 1, sizeof(**t->rank));
		n_actions += s->n[r];
	}
	schedule_iter_begin(&w, s);
	for (; schedule_iter_next(&w, &rank, &i); n_executed++) {
		const struct action *a = &s->rank[rank][i];
		struct schedule_span *x = &t->rank[rank][i];
		x->begin = fmax(i ? x[-1].end : 0, arrival_time(s, c, times, a));
		x->end = x->begin + action_cost(c, a);
		if (a->kind != ACTION_BACKWARD_W)
			*output_time(s, times, a, a->stage) = x->end;
		busy += action_cost(c, a);
		t->total = fmax(t->total, x->end);
	}
	BUG_ON(n_executed != n_actions); /* a deadlock */
	t->bubble = t->total > 0 ? 1 - busy / (s->ranks * t->total) : 0;
	schedule_iter_end(&w);
}

void timeline_release(struct timeline *t)
{
	for (int r = 0; r < t->ranks; r++)
		free(t->rank[r]);
	free(t->rank);
	*t = (struct timeline){0};
}

/* ---- the chart ------------------------------------------------------------------- */

/* Returns a micro-batch's letter: upper case forward, lower case backward, + weights only. */
static char action_letter(const struct action *a)
{
	static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
	char c = letters[a->micro % 26];
	if (a->kind == ACTION_BACKWARD_W)
		return '+';
	return (char)(a->kind == ACTION_FORWARD ? c : c - 'A' + 'a');
}

/* Draws one letter per column: the action at the middle of the column's time. */
static void draw_rank(const struct schedule *s, const struct timeline *t, int rank,
	double column, struct str *out)
{
	int64_t i = 0, n = (int64_t)ceil(t->total / column - 1e-9);
	for (int64_t x = 0; x < n; x++) {
		double now = ((double)x + 0.5) * column;
		while (i < s->n[rank] && t->rank[rank][i].end <= now)
			i++;
		bool is_idle = i == s->n[rank] || t->rank[rank][i].begin > now;
		str_putc(out, is_idle ? '.' : action_letter(&s->rank[rank][i]));
	}
}

/* Returns the duration of the shortest action that takes any time. */
static double shortest_action(const struct schedule *s, const struct timeline *t)
{
	double shortest = t->total;
	for (int r = 0; r < s->ranks; r++)
		for (int64_t i = 0; i < s->n[r]; i++) {
			double x = t->rank[r][i].end - t->rank[r][i].begin;
			if (x > 0)
				shortest = fmin(shortest, x);
		}
	return shortest;
}

void schedule_draw(
	const struct schedule *s, const struct timeline *t, int width, struct str *out)
{
	char label[32];
	int digits = snprintf(label, sizeof(label), "%d", s->ranks - 1);
	int columns = width - snprintf(label, sizeof(label), "rank %*d  ", digits, 0);
	double shortest = shortest_action(s, t),
	       column = fmax(shortest, t->total / fmax(columns, 1));
	for (int r = 0; r < s->ranks && t->total > 0; r++) {
		str_printf(out, "rank %*d  ", digits, r);
		draw_rank(s, t, r, column, out);
		str_putc(out, '\n');
	}
	str_puts(out, "A, B, ... forward of a micro-batch; a, b, ... its backward; ");
	if (schedule_kinds[s->kind].splits_backward)
		str_puts(out, "+ its weight gradients; ");
	str_puts(out, ". idle\n");
	if (column > shortest)
		str_printf(out, "a column is %.3g times the shortest action\n",
			column / shortest);
	str_printf(out, "bubble %.1f %% of the time\n", 100 * t->bubble);
}
