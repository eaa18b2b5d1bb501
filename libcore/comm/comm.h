/* comm: the only directory that calls MPI and NCCL. This header declares groups of ranks
 * (communicators) and the calls that every directory needs. The other headers:
 *   mesh.h        named axes, and the groups along them
 *   collective.h  collectives: their table, types and operations
 *   requests.h    nonblocking collectives and messages
 *   tags.h        message tags, one table for all directories
 *   tree.h        the canonical tree of sums of activations over virtual slices
 *   sum.h         exact sums of gradients over a group
 *   shared.h      memory that the ranks of one host share
 *   simulate.h    the time that operations of planned groups would take
 *   comm_internal.h  the functions of a transport, for the files of this directory only
 *
 * A group of one rank does not call MPI; that is the only place where "degree 1" is a special case.
 * Calls marked *collective* must be made by every rank of the group, in the same order. A failing
 * MPI call ends the program with a message that names the group, the operation and the bytes. */
#pragma once

#include "base/base.h"

struct device;

/* ---- comm.c, world.c: groups ----------------------------------------------------- */

struct comm {
	int rank, size;
	char name[24];	 /* axis name: "world", "dp", ... */
	int color;	 /* distinguishes groups of the same name */
	uint64_t seq;	 /* number of operations begun, the same on all ranks */
	uint64_t n_sums; /* number of exact sums begun, the same on all ranks */
	const struct comm_ops *ops; /* NULL: a group of one rank, or a planned group */
	void *impl;
	struct nccl_group *nccl; /* NULL: MPI also transfers device memory */
	bool shares;  /* all ranks are on one host and can map each other's memory */
	bool planned; /* created by comm_planned() */
	int64_t sent; /* bytes that this rank has sent in the group */
};

/* Collective. Returns the group of all ranks. MPI is loaded and initialized if a launcher has set
 * PMI_RANK, PMI_ID, PMI_FD, PMIX_RANK, or Slurm's variables with several tasks, or with
 * PT_MPI=yes. */
struct comm *comm_open(void);
/* Creates a group that contains only this rank. */
struct comm *comm_self(const char *name);
/* Creates a group for plans: its operations send nothing but count the bytes in `sent`. */
struct comm *comm_planned(const char *name, int rank, int size, bool shares);
/* Collective. Ranks of one color form a group, ordered by rank in c; color -1: NULL. */
struct comm *comm_split(struct comm *c, int color, const char *name);
/* Collective. Returns a group of the same ranks with its own messages; faster than a split. */
struct comm *comm_dup(struct comm *c, const char *name);
/* Collective. Frees a group from comm_split() or comm_dup(). */
void comm_free(struct comm *c);
/* Collective. Ends MPI. */
void comm_close(struct comm *world);

/* Where this rank runs: its host, the ranks of the world on the same host, and the processors
 * that these may use together (a launcher may have bound each rank to a few of them). */
struct comm_place {
	char host[64];
	int rank; /* in the world */
	int local_rank, local_size, n_hosts, processors;
	int host_number; /* from 0 on, in the order of their first ranks */
	int host_ranks; /* consecutive ranks on each host; 0: irregular, or a single host */
	bool shares; /* the ranks of a host can share memory; false with PT_SHARED=no */
};
/* Returns where this rank runs, as comm_open() found it. PT_HOST_RANKS=N pretends that hosts have
 * N consecutive ranks. */
const struct comm_place *comm_place(void);
/* Sets the number of ranks per host for later plans, and whether they share memory. */
void comm_plan_hosts(int host_ranks, bool shares);
/* Returns "MPICH 4.0.2 (MPI 4.0)", or "no MPI" while its library is not loaded. MPI need not be running. */
const char *comm_version(void);
/* Loads the library to return its version, or "no MPI library" if that fails. */
const char *comm_find_version(void);

/* ---- collective.c: blocking collectives on a few values ----------------------------- */

/* Blocks until all ranks have called it. This and the next six functions are collective. */
void comm_barrier(struct comm *c);
/* Copies n_bytes bytes from rank `root` to all ranks. */
void comm_bcast(struct comm *c, void *p, int64_t n_bytes, int root);
/* Copies a text from rank `root` to all ranks, where it replaces *s. */
void comm_bcast_str(struct comm *c, struct str *s, int root);
void comm_sum_i64(struct comm *c, int64_t *v, int64_t n); /* in place */
int64_t comm_max_i64(struct comm *c, int64_t v);
int64_t comm_min_i64(struct comm *c, int64_t v);
/* Sets all[rank] to the n_bytes bytes of each rank. */
void comm_allgather(struct comm *c, const void *own, void *all, int64_t n_bytes);
/* Error agreement: if any rank failed, every rank gets the error of the lowest rank that
 * failed, prefixed with that rank's number unless all ranks have the same error, and -1.
 * Required before the next collective after any operation that may fail on one rank only. */
int comm_agree(struct comm *c, struct err *e);

/* ---- requests.c: progress ----------------------------------------------------------- */

/* Adds background work: a function that all waits and comm_poll() call until it is removed. */
void comm_background_begin(void (*poll)(void *), void *arg);
/* Removes background work, which must have been added with the same arguments. */
void comm_background_end(void (*poll)(void *), void *arg);
/* Makes progress on background communication; never waits. */
void comm_poll(void);
/* Returns false with PT_OVERLAP=no: communication that could overlap computation is completed at once,
 * to measure what overlap saves. The order of operations depends on it, so all ranks agree. */
bool comm_overlaps(void);
/* Sets what comm_overlaps() returns, for plans. */
void comm_plan_overlap(bool on);
/* Returns the seconds that this rank has spent in waits since it started. */
double comm_waited(void);

/* ---- device.c: the memory of a device -------------------------------------------------- */

/* The library that transfers device memory. auto: NCCL, if it can be opened and each rank has
 * its own GPU (or NCCL_HOSTID is set, which lets ranks share a GPU). */
enum comm_library { COMM_AUTO, COMM_NCCL, COMM_MPI };
#define COMM_LIBRARY_WORDS "auto", "nccl", "mpi"

/* Collective. Allows buffers in this device's arenas (device_arena_init()), in this group and in
 * groups split from it. Shared memory is always host memory. Returns -1 with *e set, on all ranks,
 * if NCCL was requested but does not start; prints why MPI is used instead otherwise. */
int comm_device_open(
	struct comm *c, struct device *d, enum comm_library which, struct err *e);
/* Collective over `from`. Gives NCCL to `part`, split from it earlier; NULL: in no part. */
void comm_device_part(struct comm *from, struct comm *part);
/* Collective. In a group with NCCL, connects neighboring ranks in a ring. Otherwise they would wait
 * for each other when a connection is first used. Ends the program if device memory is short. */
void comm_connect(struct comm *c);
/* Collective over all groups. The device must stay open until this call. */
void comm_device_close(void);
struct arena;
/* Collective. Like device_arena_init(); in a group with NCCL, the memory is registered (from 2.27 on as
 * a symmetric window) for transfers without copies. Release it before the group. */
void comm_device_arena(struct comm *c, struct device *d, struct arena *a,
	const char *name, size_t n_bytes);
/* Collective. Frees an arena of comm_device_arena(), after NCCL has released its memory. */
void comm_device_arena_release(struct comm *c, struct device *d, struct arena *a);
/* Collective. Returns the number of ranks on this rank's GPU; 0: this rank has no GPU. */
int comm_gpu_sharers(struct comm *c);
/* Returns "NCCL 2.28.9", or "MPI": the library that transfers device memory. */
const char *comm_device_library(void);

/* ---- watchdog.c: a time limit for waits ----------------------------------------------- */

/* Sets the time limit: a rank that has waited this long ends the job with EX_FAILED and a
 * message that names the operation and the missing ranks. A rank that computes and polls is
 * never missing. 0: no limit. comm_open() sets COMM_WATCHDOG. */
enum { COMM_WATCHDOG = 600 }; /* seconds */
void comm_watchdog(struct comm *world, double seconds);
/* Collective. Suspends or restores the limit, e.g. while reading a pipe. */
void comm_watchdog_pause(bool pause);

/* ---- flight.c: the flight record ------------------------------------------------------ */

/* Starts recording the last 64 operations of this rank (collectives, sums, sets of messages) in
 * a text file: number, group, operation, the group's sequence number, bytes, begin
 * (clock_seconds()) and duration in seconds, "-" while it is not complete. `sort -n` orders it.
 * The file is always up to date, and remains unless it is closed. -1 with *e set on failure. */
int comm_flight_open(const char *path, struct err *e);
/* Removes the file, if one is open. */
void comm_flight_close(void);
