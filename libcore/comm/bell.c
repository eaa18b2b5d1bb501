/* A bell: calling others that are at work. */
#include "comm/comm.h"

#include <stdlib.h>

enum { BELL_TAG = 1 << 18 };

void comm_bell_open(struct comm_bell *b, struct comm *c, bool in)
{
	*b = (struct comm_bell){.c = comm_split(c, in ? 0 : -1, "bell")};
	if (!b->c)
		return;
	b->said = xcalloc((size_t)b->c->size, sizeof(*b->said));
	b->reqs = xcalloc((size_t)b->c->size, sizeof(*b->reqs));
}

void comm_bell_ring(struct comm_bell *b, int64_t round)
{
	if (!b->c || round <= b->rung)
		return;
	b->rung = round;
	for (int r = 0; r < b->c->size; r++) {
		if (r == b->c->rank)
			continue;
		comm_wait(b->c, &b->reqs[r]); /* that of a round before */
		b->said[r] = round;
		comm_send_begin(
			b->c, &b->said[r], sizeof(*b->said), r, BELL_TAG, &b->reqs[r]);
	}
}

bool comm_bell_heard(struct comm_bell *b, int64_t round)
{
	int64_t n;
	while (b->c && b->c->size > 1 && comm_take_any(b->c, &n, sizeof(n), BELL_TAG))
		b->heard = max64(b->heard, n);
	return b->heard >= round;
}

void comm_bell_close(struct comm_bell *b)
{
	int64_t n;
	if (!b->c)
		return;
	comm_bell_ring(b, INT64_MAX); /* each says that it was its last */
	for (int left = b->c->size - 1; left > 0; left -= n == INT64_MAX)
		comm_take(b->c, &n, sizeof(n), BELL_TAG);
	for (int r = 0; r < b->c->size; r++)
		comm_wait(b->c, &b->reqs[r]);
	free(b->said);
	free(b->reqs);
	comm_free(b->c);
	*b = (struct comm_bell){0};
}
