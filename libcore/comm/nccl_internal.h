/* Shared by nccl.c and nccl_calls.c. */
#pragma once

#include "comm/comm_internal.h"
#include "comm/nccl.h"
#include "comm/nccl_api.h"
#include "kernels/kernels.h"

struct in_flight {
	uint64_t before, after; /* tickets of marks in the group's stream */
	struct comm_what what;
	struct comm_operation operation;
};

struct nccl_group {
	struct comm *group;
	struct nccl_comm *c;
	struct device *d;
	int stream;
	void *temp; /* device memory of an all-to-all in place; grows */
	size_t temp_bytes;
	/* Operations that are not complete, in a ring that grows, the oldest first. */
	struct in_flight *in_flight;
	uint64_t n_begun, n_ended, room;
	struct nccl_group *next; /* of all groups */
};

/* Memory that a communicator transfers without copies. */
struct registered {
	struct nccl_group *g;
	void *p;
	void *handle, *window; /* one of them */
};

/* The library, and what is open. */
struct nccl {
	void *library;
	int version;
	struct nccl_group *groups;
	struct registered *registered;
	int n_registered;
	double asked; /* for errors */
#define POINTER(type, name, params) type(*name) params;
	NCCL_FUNCTIONS(POINTER)
	NCCL_NEW_FUNCTIONS(POINTER)
#undef POINTER
};
extern struct nccl nccl;

/* Ends the program unless the result of a call is a success, or the call is in progress. */
void nccl_check(const struct nccl_group *g, const char *what, int rc);
/* With blocking=0, a call may return before it has an effect: waits for that. */
void nccl_settle(struct nccl_group *g, const char *name);
/* An operation that has been enqueued. */
void nccl_note(struct nccl_group *g, const struct in_flight *f);
