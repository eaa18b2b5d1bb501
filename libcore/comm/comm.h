/*
 * comm: the only callers of MPI. This header has groups of ranks and the calls that every floor
 * needs; the others have a subject each:
 *   mesh.h        named axes, and the groups along them
 *   collective.h  collectives: their table, types and operations
 *   requests.h    collectives and messages that go on in the background
 *   tags.h        the tags of messages, one table for all floors
 *   tree.h        the canonical tree of a sum
 *   sum.h         sums over a group by that tree
 *   shared.h      memory that the ranks of one host share
 *   notify.h      notifications between ranks that do not wait for each other
 *   comm_internal.h  what a transport implements, for the files of this floor only
 *
 * A group of one rank answers everything itself, without MPI; that is the only place
 * where "degree 1" is a special case. Calls marked *collective* must be made by every
 * rank of the group, in the same order. A failing MPI call ends the program with a message
 * that names the group, the operation and the bytes.
 */
#ifndef COMM_H
#define COMM_H

#include "base/base.h"

struct device;

/* ---- comm.c, world.c: groups ----------------------------------------------------- */

struct comm {
	int rank, size;
	char name[16];		    /* of the axis: "world", "dp", ... */
	int color;		    /* distinguishes groups of the same name */
	uint64_t seq;		    /* operations begun: the same on all ranks */
	uint64_t n_sums;	    /* tree sums begun: the same on all ranks */
	const struct comm_ops *ops; /* NULL: a group of one rank, or a planned group */
	void *impl;
	bool shares;  /* all ranks are on one host and can map each other's memory */
	bool planned; /* for plans: nothing is sent, bytes are counted */
	int64_t sent; /* bytes that this rank has sent in the group */
};

/* All ranks that were started together: MPI is initialised when a launcher's variables
 * are set (PMI_RANK, PMI_ID, PMI_FD, PMIX_RANK, or Slurm's with several tasks), or with
 * PT_MPI=yes; with PT_MPI=no never. */
struct comm *comm_open(void);
/* This rank's number from the launcher's variables, before MPI runs; 0 without a launcher. */
int comm_rank_hint(void);
/* A group of this rank alone. */
struct comm *comm_self(const char *name);
/* A group for plans: its operations only count bytes. */
struct comm *comm_planned(const char *name, int rank, int size, bool shares);
/* Collective. Ranks of one color form a group, ordered by their rank in c; a rank with
 * color -1 gets NULL. */
struct comm *comm_split(struct comm *c, int color, const char *name);
/* Collective. Frees a group of comm_split. */
void comm_free(struct comm *c);
/* Collective. Ends MPI. */
void comm_close(struct comm *world);

/* Where this rank runs: its host, the ranks of the world on the same host, and the processors
 * that these may use together (a launcher may have bound each rank to a few of them). */
struct comm_place {
	char host[64];
	int local_rank, local_size, n_hosts, processors;
	bool shares; /* all ranks can share memory; false with PT_SHARED=no */
};
/* What comm_open has found out about this rank. */
void comm_place(struct comm_place *place);
const char *comm_version(void); /* "MPICH 4.0.2"; works without MPI running, too */

/* ---- collective.c: collectives on a few values ------------------------------------- */

/* Collective, and they return when they are complete. */
void comm_barrier(struct comm *c);
void comm_bcast(struct comm *c, void *p, int64_t n_bytes, int root);
void comm_bcast_str(struct comm *c, struct str *s, int root);
void comm_sum_i64(struct comm *c, int64_t *v, int64_t n); /* in place */
int64_t comm_max_i64(struct comm *c, int64_t v);
int64_t comm_min_i64(struct comm *c, int64_t v);
/* all[rank] = each rank's n_bytes */
void comm_allgather(struct comm *c, const void *mine, void *all, int64_t n_bytes);
/*
 * Did any rank fail? If so every rank gets the error of the lowest rank that failed, with the
 * rank's number in front, and -1. Ranks must call this before the next collective after
 * anything that may fail on one of them alone.
 */
int comm_agree(struct comm *c, struct err *e);

/* ---- requests.c: progress ----------------------------------------------------------- */

/* Background work: a function that waits and comm_poll() call until it is removed. */
void comm_background(void (*poll)(void *), void *with);
void comm_background_end(void (*poll)(void *), void *with);
/* Lets communication in the background make progress; never waits. */
void comm_poll(void);
/* PT_OVERLAP=no: communication that could overlap with computation is waited for at once, so
 * that one can measure what overlap saves. The order of operations depends on it, so it holds
 * for all ranks or for none. */
bool comm_overlaps(void);
/* Seconds that this rank has spent in waits since it started. */
double comm_waited(void);

/* ---- staging.c: the memory of a device ------------------------------------------------ */

/* From now on buffers of messages and collectives may be in this device's arenas
 * (device_arena); NULL: in no device's. Memory that ranks share is always the host's. */
void comm_device(struct device *d);

/* ---- watchdog.c: ranks that are missing ----------------------------------------------- */

/* From now on, a rank that has waited for others this long ends the job with EX_FAILED, and
 * names what it waited for and which ranks are missing. A rank that computes and polls is not
 * missing, however long that takes. 0: no limit. comm_open() begins with COMM_WATCHDOG. */
enum { COMM_WATCHDOG = 600 }; /* seconds */
void comm_watchdog(struct comm *world, double seconds);
/* Collective: while it is paused, a wait may take any time, e.g. for a pipe. */
void comm_watchdog_pause(bool pause);

#endif
