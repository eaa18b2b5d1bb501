/* Interleaved 1F1B (Narayanan et al. 2021): with V stages per rank the bubble is V times
 * smaller. Micro-batches are processed in groups: a rank computes one group on its first stage,
 * then on its second, and so on; backwards run in the reverse order of stages.
 *
 * All groups have the same number of places, at least the number of ranks, so that there is no gap
 * when a group returns to the first rank for its next stage. If the micro-batches do not fill the
 * groups, some groups end with empty places, which are skipped. Skipping places cannot cause
 * a deadlock: the other actions depend on their own micro-batch only, and keep their order. */
#include "schedule/schedule_internal.h"

struct groups {
	int64_t n, size; /* places in each */
};

static struct groups make_groups(const struct schedule *s)
{
	int64_t n = max64(s->n_micro / s->ranks, 1);
	return (struct groups){n, max64(ceil_div(s->n_micro, n), s->ranks)};
}

/* Appends the action at place i among a rank's actions of that kind, unless the place is empty. */
static void add_place(
	struct schedule *s, int rank, struct groups g, enum action_kind kind, int64_t i)
{
	int64_t group = i / (g.size * s->per_rank), in_group = i % g.size;
	int turn = (int)(i / g.size % s->per_rank);
	if (kind != ACTION_FORWARD)
		turn = s->per_rank - 1 - turn;
	int64_t first = part_begin(s->n_micro, g.n, group);
	if (first + in_group < part_begin(s->n_micro, g.n, group + 1))
		schedule_add(s, rank, kind, first + in_group, rank + turn * s->ranks);
}

void schedule_interleave(struct schedule *s, int rank, int64_t delay)
{
	struct groups g = make_groups(s);
	int64_t places = g.n * g.size * s->per_rank;
	int64_t ahead =
		min64(2 * (s->ranks - rank - 1) + (s->per_rank - 1) * g.size, places);
	for (int64_t i = 0; i < ahead; i++)
		add_place(s, rank, g, ACTION_FORWARD, i);
	for (int64_t i = 0; i < places; i++) {
		if (i + ahead < places)
			add_place(s, rank, g, ACTION_FORWARD, i + ahead);
		add_place(s, rank, g, schedule_backward(s), i);
		if (schedule_kinds[s->kind].splits_backward && i >= delay)
			add_place(s, rank, g, ACTION_BACKWARD_W, i - delay);
	}
	for (int64_t i = max64(places - delay, 0); i < places; i++)
		add_place(s, rank, g, ACTION_BACKWARD_W, i);
}

void schedule_make_interleaved(struct schedule *s, int rank)
{
	schedule_interleave(s, rank, 0);
}
