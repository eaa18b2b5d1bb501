/* Memory that the ranks of one host share. */
#ifndef COMM_SHARED_H
#define COMM_SHARED_H

#include "comm/comm.h"

/* Each rank has a segment, and all ranks map all segments. The memory has no name, so nothing
 * is left behind whatever happens to the ranks. */
struct comm_shared {
	struct comm *c;
	char **data;	  /* [size]: each rank's segment as mapped here; zero at first */
	int64_t *n_bytes; /* [size] */
	void **base;
	int n_slots;
};

/* Collective, in a group that shares (struct comm); `n_bytes` may differ. NULL: there is none,
 * on any rank, and *e says why. */
struct comm_shared *comm_shared_open(
	struct comm *c, int64_t n_bytes, int n_slots, struct err *e);
/* When nobody uses this rank's segment any more. */
void comm_shared_close(struct comm_shared *m);
/* A slot is a counter that every rank raises. What a rank wrote before it posted `n` is visible
 * to those who find that all ranks have posted n or more. */
void comm_shared_post(const struct comm_shared *m, int slot, uint64_t n);
bool comm_shared_all_posted(const struct comm_shared *m, int slot, uint64_t n);
/* Resident bytes of this process that are other ranks' segments. */
int64_t comm_shared_foreign(void);

#endif
