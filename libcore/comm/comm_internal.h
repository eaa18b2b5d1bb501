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

/* Loads and initializes MPI (mpi.c). Returns the group of all ranks. Dies if MPI does not start. */
struct comm *comm_open_mpi(void);
/* Lets MPI skip the search for devices if all ranks are on this host (start.c). */
void mpi_skip_device_search(void);
/* Warns if the shared memory of this host is too small for MPI to start its ranks (start.c). */
void mpi_check_shared_memory(const char *dir);
/* Makes this thread pause regularly if ranks outnumber processors (start.c). */
void mpi_yield_begin(void);
void mpi_yield_end(void);
/* Starts a thread that makes progress on MPI (progress.c), before the world is split. */
void comm_progress_thread(struct comm *world);

/* Returns true if p is in device memory (device.c). */
bool staging_needed(const void *p);
/* Copies within device memory; false: not both are in it. */
bool device_copy(void *to, const void *from, int64_t n_bytes);
/* Replaces device buffers of a request with host buffers; the end copies received data back. */
void staging_begin(const struct comm *c, struct comm_request *r);
void staging_end(struct comm_request *r);

/* Records the begin of an operation in the flight record and the trace, and sets *o. */
void operation_begin(struct comm_operation *o, const struct comm *c, const char *name,
	uint64_t seq, int64_t n_bytes);
/* Records the end of an operation; ignores one that has not begun. */
void operation_end(struct comm_operation *o);
/* Returns the path of the flight record; NULL: none is open. */
const char *flight_record_path(void);

/* Notes that this rank begins to wait for an operation; NULL: the wait has ended (watchdog.c). */
void watchdog_wait(const struct comm *group, const struct comm_what *what);
/* Answers other ranks. After a long wait, asks them; at the limit, ends the job. */
void watchdog_poll(void);
/* Frees the watchdog's memory, except messages that are still being sent. */
void watchdog_end(void);
