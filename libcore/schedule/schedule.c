/* Pipeline schedules as data: the actions of each rank in a step. */
#include "schedule/schedule_internal.h"

#define ROW(kind, name, make, splits, placement, min_stages, max_stages, help) \
	[SCHEDULE_##kind] = {name, help, make, splits, placement, min_stages, max_stages},
const struct schedule_row schedule_kinds[SCHEDULE_KINDS] = {SCHEDULE_LIST(ROW)};
#undef ROW

#define NAME(kind, name, ...) [SCHEDULE_##kind] = name,
/* clang-format off */
const char *const schedule_kind_names[] = {SCHEDULE_LIST(NAME) NULL};
/* clang-format on */
#undef NAME

static bool allows_stages(const struct schedule_row *row, int per_rank)
{
	return per_rank >= row->min_stages &&
	       (!row->max_stages || per_rank <= row->max_stages);
}

/* Sets an error that lists the schedules with that many stages per rank. Returns -1. */
static int reject_stages(const struct schedule_row *row, int per_rank, struct err *e)
{
	scoped_str allowed = {0};
	for (int i = 0; i < SCHEDULE_KINDS; i++)
		if (allows_stages(&schedule_kinds[i], per_rank))
			str_printf(&allowed, "%s%s", allowed.len ? ", " : "",
				schedule_kinds[i].name);
	err_set(e, EX_USAGE,
		"the pipeline schedule %s cannot have %d stage%s per rank; use one of: %s",
		row->name, per_rank, plural(per_rank), allowed.s);
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

/* Makes the schedule of a single rank, which has no bubble to fill: one micro-batch at a time. */
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

int schedule_init(struct schedule *s, enum schedule_kind kind, int ranks, int per_rank,
	int64_t n_micro, struct err *e)
{
	BUG_ON(kind >= SCHEDULE_KINDS || ranks < 1 || per_rank < 1 || n_micro < 0);
	const struct schedule_row *row = &schedule_kinds[kind];
	*s = (struct schedule){
		.kind = kind, .ranks = ranks, .per_rank = per_rank, .n_micro = n_micro};
	if (ranks > 1 && !allows_stages(row, per_rank))
		return reject_stages(row, per_rank, e);
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

void schedule_release(struct schedule *s)
{
	for (int r = 0; s->rank && r < s->ranks; r++)
		free(s->rank[r]);
	free(s->rank);
	free(s->n);
	*s = (struct schedule){0};
}

struct schedule_peak schedule_peak(const struct schedule *s, int rank, int stage)
{
	struct schedule_peak now = {0}, peak = {0};
	for (int64_t i = 0; i < s->n[rank]; i++) {
		const struct action *a = &s->rank[rank][i];
		if (stage >= 0 && a->stage != stage)
			continue;
		now.kept += a->kind == ACTION_FORWARD;
		now.waiting += a->kind == ACTION_BACKWARD_X;
		peak.kept = max64(peak.kept, now.kept);
		peak.waiting = max64(peak.waiting, now.waiting);
		now.kept -= a->kind == ACTION_BACKWARD || a->kind == ACTION_BACKWARD_W;
		now.waiting -= a->kind == ACTION_BACKWARD_W;
	}
	return peak;
}

/* ---- an order of execution over all ranks ---------------------------------------- */

void schedule_iter_begin(struct schedule_iter *w, const struct schedule *s)
{
	size_t stages = (size_t)schedule_stages(s);
	*w = (struct schedule_iter){.s = s,
		.next = xcalloc((size_t)s->ranks, sizeof(*w->next)),
		.done = xcalloc(ACTION_KINDS * stages, sizeof(*w->done))};
}

void schedule_iter_end(struct schedule_iter *w)
{
	free(w->next);
	free(w->done);
	*w = (struct schedule_iter){0};
}

/* Returns the counter of finished actions of a kind on a stage. */
static int64_t *n_done(const struct schedule_iter *w, enum action_kind kind, int stage)
{
	return w->done + (int)kind * schedule_stages(w->s) + stage;
}

/* Returns true if the actions that compute this action's inputs, on any rank, are done. */
static bool is_ready(const struct schedule_iter *w, const struct action *a)
{
	switch (a->kind) {
	case ACTION_FORWARD:
		return a->stage == 0 ||
		       *n_done(w, ACTION_FORWARD, a->stage - 1) > a->micro;
	case ACTION_BACKWARD:
	case ACTION_BACKWARD_X:
		return *n_done(w, ACTION_FORWARD, a->stage) > a->micro &&
		       (a->stage == schedule_stages(w->s) - 1 ||
			       *n_done(w, a->kind, a->stage + 1) > a->micro);
	default:
		return *n_done(w, ACTION_BACKWARD_X, a->stage) > a->micro;
	}
}

bool schedule_iter_next(struct schedule_iter *w, int *rank, int64_t *i)
{
	for (int r = 0; r < w->s->ranks; r++) {
		const struct action *a = &w->s->rank[r][w->next[r]];
		if (w->next[r] == w->s->n[r] || !is_ready(w, a))
			continue;
		++*n_done(w, a->kind, a->stage);
		*rank = r;
		*i = w->next[r]++;
		return true;
	}
	return false;
}
