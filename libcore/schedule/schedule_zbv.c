/* ZB-V (Qi et al. 2024): each rank has two stages in a V, and computes weight gradients
 * separately. Micro-batches turn around on the last rank without a transfer, and end on the first
 * rank, which begins their backwards. In mid-step every rank repeats six actions without waiting.
 *
 * With P ranks and F = X = W (the times of a stage), and at least 2 P micro-batches, ranks are
 * idle only while the first forward reaches them: P - 1 times F. No rank keeps more than 2 P
 * activations of a stage. A stage has half of a rank's layers, so this is as much as the first
 * rank keeps in 1F1B.
 *
 * A step with fewer than 2 P micro-batches is scheduled as one with 2 P micro-batches, and the
 * missing ones are skipped. That causes no deadlock: actions depend on their own micro-batch. */
#include "schedule/schedule_internal.h"

/* The two stages of a rank: DOWN is on the way to the last rank, UP on the way back. */
enum { DOWN, UP, TURNS };

struct vee {
	struct schedule *s;
	int rank;
	int64_t next[ACTION_KINDS][TURNS]; /* the next micro-batch */
};

/* Adds the next action of a kind on a stage of this rank, unless all micro-batches have it. */
static void add_next(struct vee *v, enum action_kind kind, int turn)
{
	int64_t micro = v->next[kind][turn]++;
	if (micro < v->s->n_micro)
		schedule_add(v->s, v->rank, kind, micro,
			schedule_stage_of(v->s, v->rank, turn));
}

static void add_backward(struct vee *v, int turn)
{
	add_next(v, ACTION_BACKWARD_X, turn);
	add_next(v, ACTION_BACKWARD_W, turn);
}

/* Adds the actions before the first backward reaches this rank's DOWN stage. */
static void add_warm_up(struct vee *v)
{
	int n_ranks = v->s->ranks - v->rank; /* this rank and the ranks after it */
	for (int i = 0; i < 2 * n_ranks - 1; i++)
		add_next(v, ACTION_FORWARD, DOWN);
	for (int i = 0; i < v->rank; i++) {
		add_next(v, ACTION_FORWARD, UP);
		add_next(v, ACTION_FORWARD, DOWN);
	}
	for (int i = 0; i < n_ranks; i++) {
		add_next(v, ACTION_FORWARD, UP);
		add_backward(v, UP);
	}
}

/* Adds the remaining backwards; gradients that other ranks wait for come first. */
static void add_remaining(struct vee *v)
{
	for (int i = 0; i < v->rank; i++) {
		add_next(v, ACTION_BACKWARD_X, DOWN);
		add_next(v, ACTION_BACKWARD_X, UP);
	}
	for (int i = v->rank; i < v->s->ranks; i++)
		add_backward(v, DOWN);
	for (int turn = UP; turn >= DOWN; turn--)
		for (int i = 0; i < v->rank; i++)
			add_next(v, ACTION_BACKWARD_W, turn);
}

/* Adds a rank's actions for ZB-V: two stages per rank, from the first rank to the last and back. */
void schedule_make_zbv(struct schedule *s, int rank)
{
	struct vee v = {.s = s, .rank = rank};
	int64_t n = max64(s->n_micro, 2 * s->ranks);
	add_warm_up(&v);
	for (int64_t i = 0; i < n - s->ranks; i++) {
		add_next(&v, ACTION_FORWARD, DOWN);
		add_backward(&v, DOWN);
		add_next(&v, ACTION_FORWARD, UP);
		add_backward(&v, UP);
	}
	add_remaining(&v);
}
