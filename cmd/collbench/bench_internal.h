/* Shared by the files that measure. */
#pragma once

#include "collbench/collbench.h"
#include "comm/requests.h"

/* ---- bench.c */

struct coll_args bench_args(const struct bench *b, const struct coll_case *c);
/* A collective, called as the option says. */
void bench_call_once(struct bench *b, enum coll what, const struct coll_args *a);
/* Copies both buffers with their guards to the device, or from there. */
void bench_put(struct bench *b);
void bench_get(struct bench *b);
/* The host waits for what is enqueued on the device. */
void bench_complete(struct bench *b);
/* Collective over `home`. Replaces n values by the average over the ranks that take part. */
void bench_agree(struct bench *b, bool joins, double *v, int64_t n);

/* ---- statistics.c */

double bench_median(const double *v, int64_t n);

/* ---- messages.c */

/* Starts, awaits and frees them. */
void bench_finish(struct comm_requests *r);
/* The other rank of the pair; -1: none. */
int bench_peer(int rank, int ranks);
/* An iteration of a measurement after N_COLL; in host memory it is then complete. */
void bench_run_messages(struct bench *b, const struct coll_case *c);
/* What the time of an iteration is divided by. */
int64_t bench_messages(const struct bench *b, int what);
/* Does this rank take part in a measurement of this? */
bool bench_joins(const struct bench *b, int what);
/* Elements of the block that each rank sends to rank `to`, which follow each other in both buffers. */
int64_t bench_block(const struct coll_case *c, int64_t to);

/* ---- overlap.c */

/* Collective over `home`. Overlapped iterations, each with a computation of `pure` seconds, which is the time of
 * an iteration alone. */
void overlap_measure(struct bench *b, const struct coll_case *c, double pure,
	int64_t iters, struct bench_samples *s);
void overlap_close(struct bench *b);
