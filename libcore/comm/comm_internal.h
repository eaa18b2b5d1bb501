/* Shared by the files of comm only: the functions of a transport, and device memory. */
#pragma once

#include "comm/requests.h"
#include "comm/simulate.h"

/* The functions of a transport. */
struct comm_ops {
	/* Starts requests in their order and sets their handles. */
	void (*start)(struct comm *c, struct comm_request *r, int n);
	/* The blocking functions of MPI. */
	void (*call)(struct comm *c, enum coll what, const struct coll_args *a);
	void (*call_send)(
		struct comm *c, const void *p, int64_t n_bytes, int peer, int tag);
	void (*call_recv)(struct comm *c, void *p, int64_t n_bytes, int peer, int tag);
	/* Returns true if the request is complete, as requests.h defines it. Never waits. */
	bool (*test)(struct comm *c, struct comm_request *r);
	/* Receives a message of at most n_bytes that has arrived; false: none has. */
	bool (*try_recv)(struct comm *c, void *p, int64_t n_bytes, int tag, int *peer);
	/* Creates a group of these ranks of c; all of them must call it. */
	struct comm *(*create_group)(struct comm *c, const int *ranks, int n);
	struct comm *(*dup)(struct comm *c);
	void (*free)(struct comm *c);
	void (*close)(struct comm *world);
};

/* Set by comm_open(). */
extern struct comm_place comm_here;
/* This host has more ranks than processors, or PT_CROWDED=yes: waits sleep. */
extern bool comm_crowded;
/* Yields the processor, or sleeps, in a waiting loop; spins during the first turns. */
void comm_yield(int turns);
/* Collective. Reads PT_OVERLAP on all ranks. */
void comm_read_overlap(struct comm *world);

/* mpi.c: initializes MPI. */
struct comm *comm_open_mpi(void);
/* start.c: lets MPI skip the search for devices if all ranks are on this host. */
void mpi_skip_device_search(void);
/* start.c: warns if the shared memory of this host is too small for MPI to start its ranks. */
void mpi_check_shared_memory(const char *dir);
/* start.c: with more ranks than processors, this thread pauses regularly until _end(). */
void mpi_yield_begin(void);
void mpi_yield_end(void);
/* progress.c: starts a thread that makes progress meanwhile. Call it before the world is split. */
void comm_progress_thread(struct comm *world);

/* device.c: true if p is in device memory. */
bool staging_needed(const void *p);
/* Copies within device memory; false: not both are in it. */
bool device_copy(void *to, const void *from, int64_t n_bytes);
/* Replaces device buffers of a request with host buffers; the end copies received data back. */
void staging_begin(const struct comm *c, struct comm_request *r);
void staging_end(struct comm_request *r);

/* flight.c: records the begin and the end of an operation in the flight record and in the trace.
 * operation_end() ignores an operation that has not begun. */
void operation_begin(struct comm_operation *o, const struct comm *c, const char *name,
	uint64_t seq, int64_t n_bytes);
void operation_end(struct comm_operation *o);
/* The path of the flight record; NULL: none is open. */
const char *flight_record_path(void);

/* watchdog.c: requests.c calls it when a wait begins, and with NULL when it ends. */
void watchdog_wait(const struct comm *group, const struct comm_what *what);
void watchdog_poll(void);
void watchdog_end(void);
