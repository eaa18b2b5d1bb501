/* Shared by the files of comm only: what a transport implements, and device memory. */
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
	/* Is it complete, in the sense of requests.h? Never waits. */
	bool (*test)(struct comm *c, struct comm_request *r);
	/* Takes a message that has arrived, of n_bytes at most; false: there is none. */
	bool (*take)(struct comm *c, void *p, int64_t n_bytes, int tag, int *peer);
	/* of these ranks of c, all of which call it */
	struct comm *(*create_group)(struct comm *c, const int *ranks, int n);
	struct comm *(*dup)(struct comm *c);
	void (*free)(struct comm *c);
	void (*close)(struct comm *world);
};

/* Set by comm_open(). */
extern struct comm_place comm_here;
/* More ranks on this host than processors, or PT_CROWDED=yes: waits sleep. */
extern bool comm_crowded;
/* Yields the processor, or sleeps, in a loop that waits; not in its first turns. */
void comm_yield(int turns);
/* Collective. Reads PT_OVERLAP on all ranks. */
void comm_read_overlap(struct comm *world);

/* mpi.c: initialises MPI. */
struct comm *comm_open_mpi(void);
/* start.c: if all ranks are on this host, MPI need not look for devices; and where they are more than its
 * processors, until _end() this thread pauses again and again, whatever it waits for. */
void mpi_spare_devices(void);
/* start.c: warns if the shared memory of this host is too small for MPI to start its ranks. */
void mpi_check_shared_memory(const char *folder);
void mpi_give_way(void);
void mpi_give_way_end(void);
/* progress.c: from now on a thread makes communication progress while this rank computes. Must
 * be called before the world is split. */
void comm_progress_thread(struct comm *world);

/* device.c: replaces the buffers of a request that are in device memory by host buffers; and on
 * completion, copies received data to the device. */
bool staging_needed(const void *p);
/* Copies within the memory of a device; false: neither is in it. */
bool device_copy(void *to, const void *from, int64_t n_bytes);
void staging_begin(const struct comm *c, struct comm_request *r);
void staging_end(struct comm_request *r);

/* flight.c: records that an operation began, and that it is complete, in the flight record and in the
 * trace. An operation that has not begun may end. */
void operation_begin(struct comm_operation *o, const struct comm *c, const char *name,
	uint64_t seq, int64_t n_bytes);
void operation_end(struct comm_operation *o);
/* The file's path; NULL: there is none. */
const char *flight_record_path(void);

/* watchdog.c: requests.c calls it when a wait begins, and with NULL when it ends. */
void watchdog_wait(const struct comm *group, const struct comm_what *what);
void watchdog_poll(void);
void watchdog_end(void);
