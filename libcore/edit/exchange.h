/*
 * What workers bring goes to those who make one of it, each a piece, and what these have made
 * comes back to all. Nothing here knows what it is.
 */
#ifndef EXCHANGE_H
#define EXCHANGE_H

#include "edit/edit.h"

struct exchange {
	struct comm *sync;
	struct device *d;
	int64_t block; /* floats at a time, at most */
	float *received, *made;
	struct comm_req *reqs; /* [2][workers] */
};

/* Of all workers, whose pieces from[i][0..n) lie at `at`, makes one. */
typedef void exchange_make(
	void *with, float *out, const float *const *from, int64_t at, int64_t n);

void exchange_open(
	struct exchange *x, struct comm *sync, struct device *d, int64_t block);
void exchange_close(struct exchange *x);
int64_t exchange_bytes(const struct exchange *x); /* of memory */
/* Collective over sync: v[0..n) of all workers, which lies at `at`, becomes one. */
void exchange_block(struct exchange *x, float *v, int64_t at, int64_t n,
	exchange_make *make, void *with);
int64_t exchange_sent(const struct exchange *x, int64_t n); /* bytes, of n floats */

#endif
