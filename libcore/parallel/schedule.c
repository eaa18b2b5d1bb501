/* Pipeline schedules as data: the actions of each rank in a step. */
#include "parallel/schedule_internal.h"

#include <stdlib.h>

#define ROW(kind, name, make, splits, min_stages, max_stages, help) \
	[SCHEDULE_##kind] = {name, help, make, splits, min_stages, max_stages},
const struct schedule_row schedule_kinds[SCHEDULE_KINDS] = {SCHEDULE_LIST(ROW)};
#undef ROW

#define NAME(kind, name, ...) [SCHEDULE_##kind] = name,
/* clang-format off */
const char *const schedule_kind_names[] = {SCHEDULE_LIST(NAME) NULL};
/* clang-format on */
#undef NAME

static bool allows(const struct schedule_row *row, int per_rank)
{
	return per_rank >= row->min_stages &&
	       (!row->max_stages || per_rank <= row->max_stages);
}

static int refuse(const struct schedule_row *row, int per_rank, struct err *e)
{
	struct str others = {0};
	for (int i = 0; i < SCHEDULE_KINDS; i++)
		if (allows(&schedule_kinds[i], per_rank))
			str_printf(&others, "%s%s", others.len ? ", " : "",
				schedule_kinds[i].name);
	err_set(e, EX_USAGE,
		"the pipeline schedule %s cannot have %d stage%s a rank; others can: %s",
		row->name, per_rank, plural(per_rank), others.s);
	str_free(&others);
	return -1;
}

static int64_t max_actions(const struct schedule *s)
{
	int kinds = schedule_kinds[s->kind].splits_backward ? 3 : 2;
	return s->n_micro * s->per_rank * kinds;
}

void schedule_add(
	struct schedule *s, int rank, enum action_kind kind, int64_t micro, int stage)
{
	BUG_ON(s->n[rank] == max_actions(s));
	s->rank[rank][s->n[rank]++] = (struct action){kind, micro, stage};
}

enum action_kind schedule_backward(const struct schedule *s)
{
	return schedule_kinds[s->kind].splits_backward ? ACTION_BACKWARD_X
						       : ACTION_BACKWARD;
}

/* A single rank has no bubble to fill, and keeps one micro-batch at a time. */
static void make_single_rank(struct schedule *s)
{
	bool splits = schedule_kinds[s->kind].splits_backward;
	for (int64_t m = 0; m < s->n_micro; m++) {
		for (int stage = 0; stage < s->per_rank; stage++)
			schedule_add(s, 0, ACTION_FORWARD, m, stage);
		for (int stage = s->per_rank - 1; stage >= 0; stage--) {
			schedule_add(s, 0, schedule_backward(s), m, stage);
			if (splits)
				schedule_add(s, 0, ACTION_BACKWARD_W, m, stage);
		}
	}
}

int schedule_open(struct schedule *s, enum schedule_kind kind, int ranks, int per_rank,
	int64_t n_micro, struct err *e)
{
	BUG_ON(kind >= SCHEDULE_KINDS || ranks < 1 || per_rank < 1 || n_micro < 0);
	const struct schedule_row *row = &schedule_kinds[kind];
	*s = (struct schedule){
		.kind = kind, .ranks = ranks, .per_rank = per_rank, .n_micro = n_micro};
	if (ranks > 1 && !allows(row, per_rank))
		return refuse(row, per_rank, e);
	s->rank = xcalloc((size_t)ranks, sizeof(*s->rank));
	s->n = xcalloc((size_t)ranks, sizeof(*s->n));
	for (int r = 0; r < ranks; r++) {
		s->rank[r] = xcalloc((size_t)max_actions(s) + 1, sizeof(**s->rank));
		if (ranks > 1)
			row->make(s, r);
	}
	if (ranks == 1)
		make_single_rank(s);
	return 0;
}

void schedule_free(struct schedule *s)
{
	for (int r = 0; s->rank && r < s->ranks; r++)
		free(s->rank[r]);
	free(s->rank);
	free(s->n);
	*s = (struct schedule){0};
}
