/* audit_plan: which steps are audited, which rank computes which micro-batch again, and what
 * follows from the results. All are pure functions, equal on all ranks. No call is collective. */
#pragma once

#include "base/base.h"

/* ---- audit_plan.c: which micro-batch, by which rank -------------------------------- */

struct audit_config {
	uint64_t seed;
	int64_t every; /* length of an interval of steps, in which one is audited */
	int64_t turns; /* one of the first `turns` micro-batches of each data rank is drawn */
	int data_ranks; /* ranks with different micro-batches: dp x fsdp */
	int unit;	/* data ranks that exchange rows of experts; else 1 */
	int far; /* data ranks at a distance of `far` are on different hosts or replicas */
};

/* Data rank d computes again what data rank (d + shift) % data_ranks computes in its turn. */
struct audit_plan {
	bool audited;
	int shift; /* 0: there is one data rank */
	int64_t turn; /* number of the micro-batch among the micro-batches of its data rank */
};

/* Returns the plan of a step, counted from 1. `always`: the step is audited in any case. */
struct audit_plan audit_plan(const struct audit_config *c, int64_t step, bool always);
/* Returns the number of data ranks between a rank and its referee: a multiple of the unit, if there
 * are several units. `random`: 0 to 1; `far`: the smallest distance that is preferred. */
int audit_shift(const struct audit_config *c, double random);
/* Returns the share of a step's work that an audit adds: `turns` micro-batches of each data rank,
 * in a pipeline of `stages` ranks. */
double audit_cost(int64_t turns, int stages);
/* Returns the smallest interval at which audits add at most `share` of the work; 1 if `share` is
 * 1. */
int64_t audit_interval(double share, int64_t turns, int stages);

/* ---- audit_verdict.c: who computed wrongly ------------------------------------------ */

/* A micro-batch has been computed by A, whose micro-batch it is, and by its referee B; then once
 * more by A, by B and by other data ranks. Equal results have equal numbers. */
enum { AUDIT_OTHERS = 3 };
struct audit_opinions {
	uint64_t a, b, a_again, b_again;
	uint64_t other[AUDIT_OTHERS];
	int n_others;
	bool alone; /* A and B are the same data rank */
};

/* What follows from the opinions: the results are equal; a rank computed wrongly once; it computes
 * wrongly each time; nobody knows which one did. */
enum audit_verdict { AUDIT_EQUAL, AUDIT_SPORADIC, AUDIT_PERSISTENT, AUDIT_UNDECIDED };
extern const char *const audit_verdict_names[]; /* as in the file of suspects */

struct audit_finding {
	enum audit_verdict verdict;
	bool a, b; /* the ranks that are suspected */
};
struct audit_finding audit_judge(const struct audit_opinions *o);
/* Returns true if so many of the pairs of an audit differ that no single rank explains it. */
bool audit_is_software(int differing, int pairs);
