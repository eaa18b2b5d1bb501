/* Functions shared by the files that measure. */
#pragma once

#include "collbench/collbench.h"
#include "comm/requests.h"

/* ---- bench.c */

/* Returns the arguments of the collective for this rank, on the buffers of *b. */
struct coll_args bench_make_args(const struct bench *b, const struct coll_case *c);
/* Calls a collective as --calls selects. */
void bench_call_once(struct bench *b, enum coll what, const struct coll_args *a);
/* Copies both buffers with their guards to the device. Does nothing without a device. */
void bench_copy_to_device(struct bench *b);
/* Copies both buffers with their guards from the device. Does nothing without a device. */
void bench_copy_from_device(struct bench *b);
/* Waits on the host for all work that is enqueued on the device. */
void bench_wait_for_device(struct bench *b);
/* Replaces n values by their --average over the ranks that take part. Collective over `home`. */
void bench_average_ranks(struct bench *b, bool takes_part, double *v, int64_t n);

/* ---- statistics.c */

double bench_median(const double *v, int64_t n);

/* ---- messages.c */

/* Starts requests, waits for them and frees them. */
void bench_run_requests(struct comm_requests *r);
/* Returns the rank that messages between pairs go to; -1: the last of an odd number of ranks. */
int bench_peer(int rank, int ranks);
/* Runs an iteration of an operation made of messages; in host memory it is complete on return. */
void bench_run_messages(struct bench *b, const struct coll_case *c);
/* Returns the number of messages by which the time of an iteration is divided. */
int64_t bench_count_messages(const struct bench *b, int what);
/* Returns true if this rank takes part in a measurement of `what`. */
bool bench_takes_part(const struct bench *b, int what);
/* Returns the elements of each block that is sent to rank `to`. */
int64_t bench_block_elements(const struct coll_case *c, int64_t to);

/* ---- overlap.c */

/* Times iterations that overlap with a computation of `alone` seconds, the time of a collective
 * without computation. Collective over `home`. */
void overlap_measure(struct bench *b, const struct coll_case *c, double alone,
	int64_t iters, struct bench_samples *s);
void overlap_close(struct bench *b);
