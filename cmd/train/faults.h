/* faults: injected delays, corrupt data and flipped bits, to measure and test what they cost. */
#pragma once

#include "engine/step.h"

struct fault_delay {
	int rank;  /* among all ranks; -1: a random rank in every step */
	double ms; /* milliseconds added to a step, or to each of its micro-batches */
	bool per_micro;
	double probability; /* probability of the delay in each step */
};

/* The worker whose data are replaced by random tokens in steps [first, last]. */
struct fault_corruption {
	int64_t worker; /* -1: none */
	int64_t first, last;
};

struct faults {
	struct fault_delay *delays;
	int n_delays;
	struct flips flips;
	struct fault_corruption corruption;
	double micro_ms; /* delay of each micro-batch of this step */
};

/* Runs a step with faults: waits before it, or computes it on random windows. Collective. */
void faults_step(struct faults *f, struct trainer *t, const struct step_votes *votes,
	struct step_result *r);

/* Parses the options of faults. `ranks`: per worker. Call faults_close() even after an error. */
int faults_open(struct faults *f, const struct train_opts *o, int ranks, struct err *e);
void faults_close(struct faults *f);

/* Parses texts RANK:MS[/micro][:PROBABILITY]; *list is allocated even on an error. */
int faults_parse_delays(
	const struct strs *texts, struct fault_delay **list, int *n, struct err *e);
/* flips.c: parses --inject-flip. `ranks`: of all workers. */
int flips_open(struct flips *f, const struct train_opts *o, int ranks, struct err *e);
void flips_release(struct flips *f);
/* Runs a step with its flips of bits. Collective. */
void flips_step(struct flips *f, struct trainer *t, const int32_t *windows,
	const struct step_votes *votes, struct step_result *r);

/* Returns the milliseconds by which a rank is delayed in a step, or per_micro in each micro-batch
 * of the step. */
double faults_delay_ms(const struct fault_delay *list, int n, uint64_t seed, int64_t step,
	int rank, int ranks, bool per_micro);
