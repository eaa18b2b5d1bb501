/* NCCL: requests whose buffers are in the memory of GPUs. For the files of this floor only. */
#pragma once

#include "comm/requests.h"

struct device;

/* Opens the library: $PT_NCCL, or libnccl.so.2. -1 with *e set. */
int nccl_library(struct err *e);
/* "NCCL 2.28.9"; "": no group uses it. */
const char *nccl_version(void);
/* Collective. Gives a group that has none a communicator, on its ranks' devices. -1 with *e set. */
int nccl_open(struct comm *c, struct device *d, struct err *e);
/* Collective over `from`: the same for a part of a group that has one; NULL: this rank is in none. */
void nccl_split(struct comm *from, struct comm *part, int color);
/* Collective. Frees the communicator, if any, after its operations. */
void nccl_close(struct comm *c);
void nccl_close_all(void);

/* Enqueues those of the n requests that are on the device, as one group, after the work that has been
 * enqueued in the current stream. Returns the ticket of a mark after them. */
uint64_t nccl_start(struct comm *c, const struct comm_request *r, int n,
	const struct comm_operation *operation);
/* Is the group's stream the current one? */
bool nccl_is_current(struct comm *c);
/* Asks for asynchronous errors, which end the program, and notes which operations are complete. Never
 * waits. */
void nccl_poll(void);
/* An operation that the GPUs have begun and not completed, and its group. If none is known, as in a
 * graph, *what is patient. NULL: no group uses NCCL. */
const struct comm *nccl_waits_for(struct comm_what *what);
