/* Nonblocking notifications between ranks. */
#include "train/notify.h"

void comm_notify_open(struct comm_notify *b, struct comm *c, bool is_member)
{
	*b = (struct comm_notify){.c = comm_split(c, is_member ? 0 : -1, "notify")};
	if (!b->c)
		return;
	b->message = xcalloc((size_t)b->c->size, sizeof(*b->message));
	b->requests = xcalloc((size_t)b->c->size, sizeof(*b->requests));
	for (int r = 0; r < b->c->size; r++)
		b->requests[r].c = b->c;
}

void comm_notify_send(struct comm_notify *b, int64_t round)
{
	if (!b->c || round <= b->sent)
		return;
	b->sent = round;
	for (int r = 0; r < b->c->size; r++) {
		if (r == b->c->rank)
			continue;
		comm_wait(&b->requests[r]); /* until the previous message to r is sent */
		b->message[r] = round;
		comm_send(&b->requests[r], &b->message[r], sizeof(*b->message), r,
			TAG_NOTIFY);
		comm_start(&b->requests[r]);
	}
}

bool comm_notify_received(struct comm_notify *b, int64_t round)
{
	int64_t n;
	while (b->c && b->c->size > 1 &&
		comm_try_recv_any(b->c, &n, sizeof(n), TAG_NOTIFY))
		b->received = max64(b->received, n);
	return b->received >= round;
}

void comm_notify_close(struct comm_notify *b)
{
	int64_t n;
	if (!b->c)
		return;
	comm_notify_send(b, INT64_MAX); /* each rank's last message */
	for (int n_open = b->c->size - 1; n_open > 0; n_open -= n == INT64_MAX)
		comm_recv_any(b->c, &n, sizeof(n), TAG_NOTIFY);
	for (int r = 0; r < b->c->size; r++) {
		comm_wait(&b->requests[r]);
		comm_requests_release(&b->requests[r]);
	}
	free(b->message);
	free(b->requests);
	comm_free(b->c);
	*b = (struct comm_notify){0};
}
