/* Sums in the stream of a group with NCCL: messages and additions follow each other there, so that all of a sum
 * is enqueued at once. */
#include "comm/sum_internal.h"

/* In the group's stream: what follows a message there begins when it has come, so that all of the sum can
 * be enqueued at once. */
void sum_enqueue(struct sum *s)
{
	struct sum_queue *q = s->call.queue;
	int before = comm_stream_begin(s->c);
	sum_join_queue(s);
	if (sum_by_library(s)) {
		sum_begin_library(s);
		comm_wait(&s->segment[0].requests);
		sum_finish_piece(s);
	}
	for (int k = 0; k < s->plan->n_segments && !s->reduced; k++) {
		sum_begin_segment(s, k);
		comm_wait(&s->segment[k % SUM_BUFFERS].requests);
		sum_finish_segment(s, k);
	}
	q->added = q->joined;
	if (s->call.result) {
		sum_begin_gather(s);
		comm_wait(&s->gather);
	}
	s->ticket = comm_stream_end(s->c, before);
	s->phase = DONE;
}
