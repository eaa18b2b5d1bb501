#include "tests/support/schedule_check.h"
#include "schedule/schedule_internal.h"

static const char *const action_names[ACTION_KINDS] = {[ACTION_FORWARD] = "forward",
	[ACTION_BACKWARD] = "backward",
	[ACTION_BACKWARD_X] = "backward of the input",
	[ACTION_BACKWARD_W] = "backward of the weights"};

static bool belongs(const struct schedule *s, enum action_kind kind)
{
	if (kind == ACTION_FORWARD)
		return true;
	bool split = kind == ACTION_BACKWARD_X || kind == ACTION_BACKWARD_W;
	return kind < ACTION_KINDS && split == schedule_kinds[s->kind].splits_backward;
}

static int64_t *done(const struct schedule_iter *w, enum action_kind kind, int stage)
{
	return w->done + (int)kind * schedule_stages(w->s) + stage;
}

static int wrong(
	struct err *e, int rank, int64_t i, const struct action *a, const char *what)
{
	return err_set(e, EX_DATAERR,
		"action %lld of rank %d, %s of micro-batch %lld on stage %d, %s",
		(long long)i, rank, action_names[a->kind], (long long)a->micro, a->stage,
		what);
}

static int check_numbers(const struct schedule *s, int rank, struct err *e)
{
	for (int64_t i = 0; i < s->n[rank]; i++) {
		const struct action *a = &s->rank[rank][i];
		if (!belongs(s, a->kind))
			return err_set(e, EX_DATAERR,
				"action %lld of rank %d is of a kind that %s does not "
				"have",
				(long long)i, rank, schedule_kinds[s->kind].name);
		if (a->stage < 0 || a->stage >= schedule_stages(s) ||
			schedule_rank_of(s, a->stage) != rank)
			return wrong(e, rank, i, a, "is on a stage of another rank");
		if (a->micro < 0 || a->micro >= s->n_micro)
			return wrong(e, rank, i, a, "is of no micro-batch of the step");
	}
	return 0;
}

/* Checks that do not depend on other ranks: each action once, and in order. */
static int check_order(
	const struct schedule *s, int rank, struct schedule_iter *w, struct err *e)
{
	for (int64_t i = 0; i < s->n[rank]; i++) {
		const struct action *a = &s->rank[rank][i];
		int64_t *next = done(w, a->kind, a->stage);
		if (a->micro < *next)
			return wrong(e, rank, i, a, "comes twice, or after a later one");
		if (a->micro > *next)
			return wrong(e, rank, i, a, "comes before an earlier one");
		if (a->kind != ACTION_FORWARD &&
			*done(w, ACTION_FORWARD, a->stage) <= a->micro)
			return wrong(e, rank, i, a, "comes before its forward");
		if (a->kind == ACTION_BACKWARD_W &&
			*done(w, ACTION_BACKWARD_X, a->stage) <= a->micro)
			return wrong(e, rank, i, a, "comes before that of the input");
		++*next;
	}
	return 0;
}

/* Buckets of gradients may be of several stages of a rank: the first stage completes them. */
static int check_last(const struct schedule *s, int rank, struct err *e)
{
	int before = schedule_stages(s);
	for (int64_t i = 0; i < s->n[rank]; i++) {
		const struct action *a = &s->rank[rank][i];
		if (a->micro + 1 < s->n_micro || a->kind == ACTION_FORWARD ||
			a->kind == ACTION_BACKWARD_X)
			continue;
		if (a->stage > before)
			return wrong(
				e, rank, i, a, "comes after that of an earlier stage");
		before = a->stage;
	}
	return 0;
}

static int check_complete(const struct schedule_iter *w, struct err *e)
{
	const struct schedule *s = w->s;
	for (int stage = 0; stage < schedule_stages(s); stage++)
		for (int k = 0; k < ACTION_KINDS; k++) {
			int64_t n = *done(w, (enum action_kind)k, stage);
			if (belongs(s, (enum action_kind)k) && n < s->n_micro)
				return err_set(e, EX_DATAERR,
					"there is no %s of micro-batch %lld on stage %d",
					action_names[k], (long long)n, stage);
		}
	return 0;
}

static int check_waits(const struct schedule *s, struct err *e)
{
	struct schedule_iter w;
	int rank, rc = 0;
	int64_t i;
	schedule_iter_begin(&w, s);
	while (schedule_iter_next(&w, &rank, &i))
		;
	for (rank = 0; rank < s->ranks && !rc; rank++)
		if (w.next[rank] < s->n[rank])
			rc = wrong(e, rank, w.next[rank], &s->rank[rank][w.next[rank]],
				"waits for ever: deadlock");
	schedule_iter_end(&w);
	return rc;
}

/* Finds the next message of a rank to (or, with `receives`, from) another rank that goes downstream or
 * upstream; false: there is none. *i: the action to begin at. */
static bool next_message(const struct schedule *s, int rank, int with, bool receives,
	bool downstream, int64_t *i, struct action *message)
{
	for (; *i < s->n[rank]; ++*i) {
		const struct action *a = &s->rank[rank][*i];
		bool forward = a->kind == ACTION_FORWARD;
		int other = a->stage + (forward != receives ? 1 : -1);
		if (a->kind == ACTION_BACKWARD_W || forward != downstream || other < 0 ||
			other >= schedule_stages(s) || schedule_rank_of(s, other) != with)
			continue;
		*message = (struct action){a->kind, a->micro,
			receives ? a->stage : other}; /* its receiver */
		++*i;
		return true;
	}
	return false;
}

/* NCCL has no tags: a rank receives in the order in which another one sends. */
static int check_messages(
	const struct schedule *s, int from, int to, bool downstream, struct err *e)
{
	int64_t sent = 0, received = 0;
	struct action a, b;
	while (next_message(s, from, to, false, downstream, &sent, &a)) {
		if (!next_message(s, to, from, true, downstream, &received, &b))
			return wrong(e, from, sent - 1, &a, "sends what is not received");
		if (a.stage != b.stage || a.micro != b.micro)
			return wrong(e, to, received - 1, &b,
				"receives in another order than its neighbour sends");
	}
	return 0;
}

/* Every message goes to the next rank of the ring, or to the previous one, or stays on its rank. */
static int check_neighbours(const struct schedule *s, struct err *e)
{
	for (int i = 1; i < schedule_stages(s); i++) {
		int from = schedule_rank_of(s, i - 1), to = schedule_rank_of(s, i);
		if (from != to && (from + 1) % s->ranks != to &&
			(to + 1) % s->ranks != from)
			return err_set(e, EX_DATAERR,
				"stages %d and %d are on ranks %d and %d: no neighbours",
				i - 1, i, from, to);
	}
	return 0;
}

int schedule_check(const struct schedule *s, struct err *e)
{
	struct schedule_iter w;
	int rc = 0;
	schedule_iter_begin(&w, s);
	for (int r = 0; r < s->ranks && !rc; r++)
		rc = check_numbers(s, r, e) || check_order(s, r, &w, e);
	for (int r = 0; r < s->ranks && !rc; r++)
		rc = check_last(s, r, e);
	rc = rc || check_complete(&w, e) || check_waits(s, e);
	rc = rc || check_neighbours(s, e);
	for (int r = 0; r < s->ranks * s->ranks && !rc; r++) {
		int from = r / s->ranks, to = r % s->ranks;
		if (from != to)
			rc = check_messages(s, from, to, true, e) ||
			     check_messages(s, from, to, false, e);
	}
	schedule_iter_end(&w);
	return rc ? err_prefix(e, "pipeline schedule %s: ", schedule_kinds[s->kind].name)
		  : 0;
}
