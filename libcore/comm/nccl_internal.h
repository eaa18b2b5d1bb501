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
	void *temp; /* device memory for in-place all-to-alls; grows */
	size_t temp_bytes;
	/* Operations that are not complete, oldest first, in a ring buffer that grows. */
	struct in_flight *in_flight;
	uint64_t n_begun, n_ended, capacity;
	struct nccl_group *next; /* list of all groups */
};

/* Memory that a communicator transfers without copies. */
struct registered {
	struct nccl_group *g;
	void *p;
	void *handle, *window; /* only one is set */
};

/* The library, its groups and registered memory. */
struct nccl {
	void *library;
	int version;
	struct nccl_group *groups;
	struct registered *registered;
	int n_registered;
	double last_check; /* clock when errors were last checked */
#define POINTER(type, name, params) type(*name) params;
	NCCL_FUNCTIONS(POINTER)
	NCCL_NEW_FUNCTIONS(POINTER)
#undef POINTER
};
extern struct nccl nccl;

/* Ends the program unless a call's result is a success, or the call is in progress. */
void nccl_check(const struct nccl_group *g, const char *what, int rc);
/* Waits until a call has taken effect; with blocking=0 it may return earlier. */
void nccl_settle(struct nccl_group *g, const char *name);
/* Adds an enqueued operation to those in flight. */
void nccl_track(struct nccl_group *g, const struct in_flight *f);
