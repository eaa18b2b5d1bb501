/*
 * Simulated time of planned groups (comm_planned()), whose operations send nothing: how long they
 * would take on given links, and how much of that is exposed, which is not hidden by computation.
 *
 * There is one timeline, that of a rank. Computation advances it by what *computed grows by between
 * two calls. A set of requests begins when it is started and the earlier sets of its group are
 * complete: a group is a stream of messages in each direction. It takes the latency, and then its bytes
 * over the bandwidth of the links that they use; sets that use a link at the same time have equal
 * shares of it. Sets of a group that are started together, with no computation in between, are one
 * launch with one latency. A wait advances the time to the end of what is waited for, and the
 * sum of these advances is the exposed time.
 *
 * All ranks of a group are assumed to do the same at the same time, so what a rank receives is complete
 * when what it sends is. Transfers between pipeline stages are only counted, since those ranks do
 * not: schedule_time() simulates them.
 *
 * If comm_overlaps() is false, all that is sent is complete before computation continues. No call is
 * collective.
 */
#pragma once

#include "comm/requests.h"

enum link_kind { LINK_HOST, LINK_NETWORK, N_LINKS };
enum transfer_direction { TRANSFER_OUT, TRANSFER_IN, N_TRANSFER_DIRECTIONS };

/* What a rank has, in each direction. */
struct link {
	double bytes_per_second, latency; /* seconds */
};

struct simulated_links {
	struct link link[N_LINKS];
	int host_ranks; /* consecutive ranks of the world that are on one host */
	bool nccl; /* gathers of parameters are collectives of NCCL: see comm_gather_blocks() */
};

/* Operations of the groups of one name. */
struct simulated_row {
	char group[24], name[16];
	int64_t n[N_TRANSFER_DIRECTIONS];
	double bytes[N_TRANSFER_DIRECTIONS];
	double seconds[N_TRANSFER_DIRECTIONS]; /* each alone on its links, added up */
	double exposed;
};

/* From now on, until the end, planned groups are simulated. They must be created after it.
 * `computed`: seconds of computation so far. */
void simulate_begin(const struct simulated_links *links, const double *computed);
void simulate_end(void);
/* The time since the beginning. */
double simulate_now(void);
/* The operations so far, in the order in which their kinds first occurred; valid until the end. */
const struct simulated_row *simulate_rows(int *n);

/* ---- for the functions of comm that operate on groups ------------------------------- */

/* All of them return at once if nothing is simulated. */

/* links.nccl, or false. */
bool simulate_nccl(void);
/* The ranks of the world that a group has. */
void simulate_group(const struct comm *c, const int *ranks);
/* The next set of the group is a launch by itself, even if no time has passed. */
void simulate_launch(const struct comm *c);
/* A set has been started: first[n]. */
void simulate_start(struct comm_requests *r, const struct comm_request *first, int n);
/* Waits for a set, or for what it receives. */
void simulate_wait(struct comm_requests *r, bool only_received);
/* Until it is called with false, a wait does not advance the time: instead, what is started after it
 * begins when what was waited for is complete. */
void simulate_chain(bool on);
