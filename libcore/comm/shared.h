/* Memory that the ranks on one host share. */
#pragma once

#include "comm/comm.h"

/* A segment per rank, mapped by all. Without names, they are freed even if ranks are killed. */
struct comm_shared {
	struct comm *c;
	char **data; /* [size]: the mapped data of each rank's segment, initially zero */
	int64_t *n_bytes; /* [size] */
	void **base;
	int n_slots;
};

/* Collective, in a group with comm.shares. Returns NULL with *e set on all ranks if one failed. */
struct comm_shared *comm_shared_open(
	struct comm *c, int64_t n_bytes, int n_slots, struct err *e);
/* Frees the memory, when no other rank uses this rank's segment any more. NULL: nothing. */
void comm_shared_close(struct comm_shared *m);
/* A slot has one counter per rank, which the rank raises to n by posting (release). After
 * all_posted() has returned true (acquire), the ranks' writes before posting n are visible. */
void comm_shared_post(const struct comm_shared *m, int slot, uint64_t n);
bool comm_shared_all_posted(const struct comm_shared *m, int slot, uint64_t n);
/* Returns the resident bytes of this process that belong to other ranks' segments. */
int64_t comm_shared_foreign(void);
