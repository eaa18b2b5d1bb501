/* Notifications: any rank of a group announces a round, and the others see it when they look, in
 * that round or later; nobody waits. Rounds only rise. */
#ifndef COMM_NOTIFY_H
#define COMM_NOTIFY_H

#include "comm/requests.h"

struct comm_notify {
	struct comm *c; /* a group of its own, for its messages */
	int64_t sent, received;
	int64_t *message; /* [size], under way */
	struct comm_requests *requests;
};

/* Collective. Ranks with `in` form the group. */
void comm_notify_open(struct comm_notify *b, struct comm *c, bool in);
void comm_notify_send(struct comm_notify *b, int64_t round);
bool comm_notify_received(struct comm_notify *b, int64_t round);
/* Collective: returns when all have received everything. */
void comm_notify_close(struct comm_notify *b);

#endif
