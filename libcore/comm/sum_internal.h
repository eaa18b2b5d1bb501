/* Shared by sum.c and sum_stream.c. */
#ifndef COMM_SUM_INTERNAL_H
#define COMM_SUM_INTERNAL_H

#include "comm/comm_internal.h"
#include "comm/sum.h"

enum phase { EXCHANGE, GATHER, DONE };

struct sum {
	struct sum_call call;
	const struct sum_plan *plan;
	struct comm *c;
	enum phase phase;
	uint64_t seq;
	struct comm_operation operation;
	int tag; /* of its messages, which are sent in the same order on all ranks */
	/* Without shared memory. Segments are numbered from `first_segment` in the queue. */
	uint64_t first_segment;
	int begun, summed;
	struct {
		struct comm_requests requests;
		float *received; /* in the queue's buffer, behind what was packed */
	} segment[SUM_BUFFERS];
	bool reduced; /* this rank's part of its contribution is the sum of all */
	struct comm_requests gather;
	uint64_t
		ticket; /* of a mark in the group's stream: all is enqueued there; 0: none */
};

/* The number of elements in segment k of a rank's piece, and its offset *first in the packed shard. */
int64_t sum_segment(const struct sum_plan *p, int rank, int k, int64_t *first);
/* Elements [first, first + n) of a packed shard, from a vector whose elements are so many floats. */
void sum_pack(const struct sum_plan *p, int shard, const float *vector, int width,
	int64_t first, int64_t n, float *out);
/* The queue's buffer for segment k. */
float *sum_segment_buffer(const struct sum *s, int k);
/* Takes the next numbers of the queue. */
void sum_join_queue(struct sum *s);
/* Starts the messages of segment k; adds what has been received. */
void sum_begin_segment(struct sum *s, int k);
void sum_finish_segment(struct sum *s, int k);
/* Sends this rank's piece to the ranks with the same shard, and receives theirs. */
void sum_begin_gather(struct sum *s);
/* By a collective of NCCL instead of messages: can it add what the ranks contribute? It begins to. */
bool sum_by_library(const struct sum *s);
void sum_begin_library(struct sum *s);
/* Adds the whole piece. */
void sum_finish_piece(struct sum *s);

/* sum_stream.c: enqueues all of it in the group's stream. */
void sum_enqueue(struct sum *s);

#endif
