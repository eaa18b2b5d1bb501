/* NCCL: requests with buffers in GPU memory. For the files of this directory only. */
#pragma once

#include "comm/requests.h"

struct device;

/* Opens the library: $PT_NCCL, or libnccl.so.2. Returns -1 with *e set on failure. */
int nccl_library(struct err *e);
/* Returns "NCCL 2.28.9", or "" if no group uses NCCL. */
const char *nccl_version(void);
/* Collective. Creates a communicator for a group, on its ranks' devices. -1 with *e set. */
int nccl_open(struct comm *c, struct device *d, struct err *e);
/* Collective over `from`, which has a communicator. Creates one for `part`; NULL: in no part. */
void nccl_split(struct comm *from, struct comm *part, int color);
/* Collective. Frees the communicator, if any, after its operations are complete. */
void nccl_close(struct comm *c);
void nccl_close_all(void);

/* Enqueues the device requests among the n requests as one group, after the work that has been
 * enqueued in the current stream. Returns the ticket of a mark after them. */
uint64_t nccl_start(struct comm *c, const struct comm_request *r, int n,
	const struct comm_operation *operation);
/* Returns true if the group's stream is the current one. */
bool nccl_is_current(struct comm *c);
/* Ends the program on asynchronous errors; records completed operations. Never waits. */
void nccl_poll(void);
/* Finds an operation that the GPUs have begun and not completed, and returns its group. If none
 * is known, as in a graph, *what is patient. NULL: no group uses NCCL. */
const struct comm *nccl_waits_for(struct comm_what *what);
