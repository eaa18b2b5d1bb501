/* Notifications: any rank of a group announces a round, and the other ranks receive it when
 * they poll, in that round or later; no rank waits. Rounds only increase. */
#pragma once

#include "comm/requests.h"

struct comm_notify {
	struct comm *c;		/* used by these messages only */
	int64_t sent, received; /* last rounds announced: own, and by others */
	int64_t *message;	/* [size]: send buffers */
	struct comm_requests *requests;
};

/* Opens notifications between the ranks of c with is_member. Collective. */
void comm_notify_open(struct comm_notify *b, struct comm *c, bool is_member);
/* Announces a round to all other ranks, unless this rank has announced it or a later one. */
void comm_notify_send(struct comm_notify *b, int64_t round);
/* Receives what has arrived, and returns true if another rank has announced this round or a
 * later one. */
bool comm_notify_received(struct comm_notify *b, int64_t round);
/* Returns when this rank has received all messages and sent its own. Collective. */
void comm_notify_close(struct comm_notify *b);
