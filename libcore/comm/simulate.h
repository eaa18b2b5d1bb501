/* Simulated time of planned groups (comm_planned()), whose operations send nothing: how long they
 * would take on given links, and how much of that time is exposed, i.e. not hidden by computation.
 *
 * There is one timeline, for one rank. Computation advances it by the growth of *computed
 * between two calls. A group is a stream of messages in each direction: a set of requests
 * begins when it has been started and the earlier sets of its group are complete. It takes the
 * latency, then its bytes over the bandwidth of the links they use; sets that use a link at the
 * same time get equal shares of it. Sets of a group that are started together, with no
 * computation in between, are one launch with one latency. A wait advances the time to the end
 * of the set waited for; the sum of these advances is the exposed time.
 *
 * All ranks of a group are assumed to do the same at the same time, so data received are
 * complete when the data sent are. Pipeline stages do not act alike, so transfers between them
 * are only counted; schedule_time() simulates them.
 *
 * If comm_overlaps() is false, computation waits for all transfers. No call is collective. */
#pragma once

#include "comm/requests.h"

enum link_kind { LINK_HOST, LINK_NETWORK, N_LINKS };
enum transfer_direction { TRANSFER_OUT, TRANSFER_IN, N_TRANSFER_DIRECTIONS };

/* A rank's bandwidth and latency, in each direction. */
struct link {
	double bytes_per_second, latency; /* seconds */
};

struct simulated_links {
	struct link link[N_LINKS];
	int host_ranks; /* consecutive ranks of the world that are on one host */
	bool nccl;	/* NCCL collectives gather parameters: see comm_gather_blocks() */
};

/* Totals of one operation over all groups of one name. */
struct simulated_row {
	char group[24], name[16];
	int64_t n[N_TRANSFER_DIRECTIONS];
	double bytes[N_TRANSFER_DIRECTIONS];
	double seconds[N_TRANSFER_DIRECTIONS]; /* sum, as if each had its links alone */
	double exposed;
};

/* Starts to simulate planned groups that are created later. *computed: seconds of computation. */
void simulate_begin(const struct simulated_links *links, const double *computed);
void simulate_end(void);
/* Returns the simulated seconds since simulate_begin(). */
double simulate_now(void);
/* Returns *n rows, one per kind of operation, by first occurrence; valid until simulate_end(). */
const struct simulated_row *simulate_rows(int *n);

/* ---- for the functions of comm that operate on groups ------------------------------- */

/* All of these return at once if nothing is simulated. */

/* Returns true if the simulated links are NCCL's. */
bool simulate_has_nccl(void);
/* Adds a group with these ranks of the world. */
void simulate_group(const struct comm *c, const int *ranks);
/* Makes the group's next set a separate launch, even if no time has passed. */
void simulate_launch(const struct comm *c);
/* Starts the set first[n]. */
void simulate_start(struct comm_requests *r, const struct comm_request *first, int n);
/* Waits for a set, or for its receives only. */
void simulate_wait(struct comm_requests *r, bool only_received);
/* While on, a wait does not advance the time: instead, sets that are started after the wait
 * begin when the awaited set is complete. */
void simulate_chain(bool on);
