/* Pipeline schedules as data: for each rank, a list of forwards and backwards of micro-batches
 * on stages, which one executor runs (engine/pipe.c). No call is collective. */
#pragma once

#include "base/base.h"

/* The placement of the ranks x per_rank virtual stages of a pipeline. A turn is `ranks`
 * consecutive stages, one per rank. In a loop, rank r has stages r, r + ranks, r + 2 ranks, ...
 * In a V, every second turn runs backward: rank r has stages r and 2 ranks - 1 - r, so that the
 * last rank has two adjacent stages, and rank 0 has the first and the last stage. */
enum stage_placement { STAGES_LOOP, STAGES_V };

/* The schedule does not change the bits of a run (law 1 of pt(7)), since each stage adds to its
 * gradients in the order of the micro-batches.
 *
 * A kind of schedule is a row of this list and a file. The columns are the fields of struct
 * schedule_row, with the help text last. */
/* clang-format off */
#define SCHEDULE_LIST(X) \
	X(GPIPE, "gpipe", schedule_make_gpipe, false, STAGES_LOOP, 1, 0, \
		"all forwards, then all backwards; keeps the activations of every micro-batch") \
	X(1F1B, "1f1b", schedule_make_1f1b, false, STAGES_LOOP, 1, 1, \
		"one forward, one backward in turn; keeps as many micro-batches as there are stages") \
	X(INTERLEAVED, "interleaved", schedule_make_interleaved, false, STAGES_LOOP, 2, 0, \
		"1f1b with several stages per rank: a smaller bubble, more transfers, keeps more") \
	X(ZB_H1, "zb-h1", schedule_make_zb_h1, true, STAGES_LOOP, 1, 1, \
		"1f1b with weight gradients delayed into the bubble; keeps as many as 1f1b") \
	X(INTERLEAVED_ZB, "interleaved-zb", schedule_make_interleaved_zb, true, STAGES_LOOP, 2, 0, \
		"interleaved with weight gradients delayed as in zb-h1; keeps as many as interleaved") \
	X(ZBV, "zbv", schedule_make_zbv, true, STAGES_V, 2, 2, \
		"two stages per rank, in a V: the smallest bubble; keeps as many as 1f1b, on every rank")
/* clang-format on */

#define SCHEDULE_KIND(kind, ...) SCHEDULE_##kind,
enum schedule_kind { SCHEDULE_LIST(SCHEDULE_KIND) SCHEDULE_KINDS };
#undef SCHEDULE_KIND

enum action_kind {
	ACTION_FORWARD,
	ACTION_BACKWARD,   /* both of the following */
	ACTION_BACKWARD_X, /* the gradient of the input only */
	ACTION_BACKWARD_W, /* the gradients of the weights only */
	ACTION_KINDS
};

struct action {
	enum action_kind kind;
	int64_t micro; /* index among the micro-batches of this pipeline */
	int stage;     /* virtual stage of the whole pipeline */
};

struct schedule {
	enum schedule_kind kind;
	int ranks, per_rank;
	int64_t n_micro;
	struct action **rank; /* [ranks][n[rank]], in the order of execution */
	int64_t *n;
};

struct schedule_row {
	const char *name, *help;
	void (*make)(struct schedule *s, int rank);
	bool splits_backward;
	enum stage_placement placement;
	int min_stages, max_stages; /* per rank, with several ranks; max 0: no limit */
};

extern const struct schedule_row schedule_kinds[SCHEDULE_KINDS];
extern const char *const schedule_kind_names[]; /* in that order, then NULL */

/* Makes the schedules of all ranks, to be freed by schedule_release(). A single rank computes one
 * micro-batch after the other, whatever the kind. -1: the kind does not allow per_rank stages. */
int schedule_init(struct schedule *s, enum schedule_kind kind, int ranks, int per_rank,
	int64_t n_micro, struct err *e);
void schedule_release(struct schedule *s);

/* Returns the rank of a virtual stage. */
static inline int schedule_stage_rank(enum schedule_kind kind, int ranks, int stage)
{
	bool back = schedule_kinds[kind].placement == STAGES_V && stage / ranks % 2;
	return back ? ranks - 1 - stage % ranks : stage % ranks;
}

/* Returns the virtual stage that a rank has in a turn: 0 to per_rank - 1. */
static inline int schedule_rank_stage(
	enum schedule_kind kind, int ranks, int rank, int turn)
{
	return turn * ranks + schedule_stage_rank(kind, ranks, turn * ranks + rank);
}

static inline int schedule_stages(const struct schedule *s)
{
	return s->ranks * s->per_rank;
}

static inline int schedule_rank_of(const struct schedule *s, int stage)
{
	return schedule_stage_rank(s->kind, s->ranks, stage);
}

static inline int schedule_stage_of(const struct schedule *s, int rank, int turn)
{
	return schedule_rank_stage(s->kind, s->ranks, rank, turn);
}

/* The maximum numbers of (micro-batch, stage) pairs that a rank keeps at a time. The pairs of one
 * stage have consecutive micro-batches, so micro % kept is a free slot. */
struct schedule_peak {
	int64_t kept; /* activations: from the forward to the (weights') backward */
	int64_t waiting; /* gradients of outputs: from the input's backward to the weights' */
};

/* Returns the peak of one stage of a rank, or with stage -1 of all its stages together. */
struct schedule_peak schedule_peak(const struct schedule *s, int rank, int stage);

/* ---- schedule_time.c ------------------------------------------------------------- */

/* Times, in seconds or any other unit. */
struct schedule_costs {
	const double *forward, *backward_x, *backward_w; /* [stage] */
	double transfer; /* to another rank; overlaps with computation at both ends */
};

struct schedule_span {
	double begin, end;
};

struct timeline {
	int ranks;
	struct schedule_span **rank; /* [ranks][action of the schedule] */
	double total;
	double bubble; /* 1 - busy / (ranks x total) */
};

/* Computes when each action can run at the earliest. Release with timeline_release(). */
void schedule_time(
	const struct schedule *s, const struct schedule_costs *c, struct timeline *t);
void timeline_release(struct timeline *t);
/* Appends a Gantt chart as text: one line per rank, a legend, and the bubble. A column is the
 * duration of the shortest action, or longer if lines would exceed `width`. */
void schedule_draw(
	const struct schedule *s, const struct timeline *t, int width, struct str *out);

/* ---- schedule_split.c ------------------------------------------------------------ */

/* Assigns layers to stages, in order: first[i] is the first layer of stage i, and first[n_stages]
 * is n_layers. Minimizes the cost of the most expensive stage; then maximizes the cost of the
 * cheapest stage; then gives the first stages the fewest layers. `embedding` is added to the
 * first stage's cost, `head` to the last. -1: fewer layers than stages. */
int schedule_split(const double *layer, int n_layers, double embedding, double head,
	int n_stages, int *first, struct err *e);
