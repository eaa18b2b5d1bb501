/* Functions shared by the files that measure. */
#pragma once

#include "collbench/collbench.h"
#include "comm/requests.h"

/* ---- bench.c */

struct coll_args bench_args(const struct bench *b, const struct coll_case *c);
/* Calls a collective as --calls selects. */
void bench_call_once(struct bench *b, enum coll what, const struct coll_args *a);
/* Copy both buffers with their guards to the device; from the device. */
void bench_put(struct bench *b);
void bench_get(struct bench *b);
/* Waits on the host for all work that is enqueued on the device. */
void bench_complete(struct bench *b);
/* Replaces n values by the --average over the ranks that take part. Collective over `home`. */
void bench_agree(struct bench *b, bool joins, double *v, int64_t n);

/* ---- statistics.c */

double bench_median(const double *v, int64_t n);

/* ---- messages.c */

/* Starts, waits for and frees requests. */
void bench_finish(struct comm_requests *r);
/* Returns the other rank of the pair; -1: none. */
int bench_peer(int rank, int ranks);
/* Runs an iteration of an operation made of messages; in host memory it is complete on return. */
void bench_run_messages(struct bench *b, const struct coll_case *c);
/* Returns the number of messages by which the time of an iteration is divided. */
int64_t bench_messages(const struct bench *b, int what);
/* Returns true if this rank takes part in a measurement of `what`. */
bool bench_joins(const struct bench *b, int what);
/* Returns the elements of the block that each rank sends to rank `to`; blocks are contiguous. */
int64_t bench_block(const struct coll_case *c, int64_t to);

/* ---- overlap.c */

/* Runs overlapped iterations, each with a computation of `pure` seconds, the time of an iteration
 * alone. Collective over `home`. */
void overlap_measure(struct bench *b, const struct coll_case *c, double pure,
	int64_t iters, struct bench_samples *s);
void overlap_close(struct bench *b);
