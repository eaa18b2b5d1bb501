/*
 * Sums in the stream of a group with NCCL: messages and additions follow each other there, so that all of a
 * sum is enqueued at once. Or NCCL reduces, in an order of its own, if that is allowed (numerics fast).
 */
#include "comm/sum_internal.h"

/* Does NCCL reduce, in an order of its own? */
static bool is_reduced_by_nccl(const struct tree_sum *s)
{
	const struct sum_call *x = &s->call;
	bool all = !s->plan->d->exact && (!x->take || x->takes) && !x->n_extra;
	for (int r = 0; r < s->c->size && all; r++)
		all = x->nodes[r].n > 0;
	return all;
}

/* This rank's nodes are added to the first of their buffers. */
static float *add_own(struct tree_sum *s)
{
	const struct sum_nodes *mine = &s->call.nodes[s->c->rank];
	struct device *d = s->plan->d;
	float *own = s->call.buffer[mine->buffer[0]];
	for (int x = 0; x < s->plan->n_shards; x++)
		for (int i = 0; i < s->plan->shard[x].n_runs; i++) {
			const struct sum_run *run = &s->plan->shard[x].run[i];
			struct mat to = mat(own + run->at, 1, run->len);
			for (int k = 1; k < mine->n; k++) {
				float *other = s->call.buffer[mine->buffer[k]];
				d->k->add(d, to, to, mat(other + run->at, 1, run->len));
			}
		}
	return own;
}

static void add_reduction(struct tree_sum *s, enum coll what, const float *send,
	float *recv, int64_t n, int root)
{
	comm_enqueue(&s->gather, what,
		&(struct coll_args){.send = send,
			.recv = recv,
			.count = n,
			.type = COMM_F32,
			.op = COMM_SUM,
			.root = root});
}

/* Segment k of each rank's piece is reduced to that rank. */
static void reduce_segment(struct tree_sum *s, int k, float *own)
{
	const struct sum_plan *p = s->plan;
	int me = s->c->rank;
	int64_t first, mine = sum_segment(p, me, k, &first), at, piece;
	float *room = sum_segment_buffer(s, k), *packed = room;
	bool equal = !sum_is_whole(p) && mine;
	for (int r = 0; r < s->c->size && !sum_is_whole(p); r++) {
		int64_t len = sum_segment(p, r, k, &at);
		sum_pack(p, p->wants[r], own, at, len, room);
		equal = equal && len == mine;
		room += len;
	}
	float *to = s->call.take ? room : s->call.result + first;
	if (equal)
		add_reduction(s, COLL_REDUCESCATTER, packed, to, mine, 0);
	for (int r = 0; r < s->c->size && !equal; r++) {
		int64_t len = sum_segment(p, r, k, &at);
		const float *from =
			sum_is_whole(p) ? own + p->shard[0].run[0].at + at : packed;
		if (len)
			add_reduction(s, COLL_REDUCE, from, r == me ? to : NULL, len, r);
		packed += len;
	}
	comm_start(&s->gather);
	comm_wait(&s->gather);
	sum_piece(p, me, &piece);
	if (s->call.take && mine)
		s->call.take(s->call.with,
			&(struct tree_part){*s->call.takes, mat(to, 1, mine)}, 1,
			first - piece, mine);
}

static void reduce_by_nccl(struct tree_sum *s)
{
	const struct sum_plan *p = s->plan;
	float *own = add_own(s);
	if (sum_is_whole(p) && !s->call.take) {
		const struct sum_run *all = &p->shard[0].run[0];
		add_reduction(
			s, COLL_ALLREDUCE, own + all->at, s->call.result, all->len, 0);
		comm_start(&s->gather);
		comm_wait(&s->gather);
		return;
	}
	for (int k = 0; k < p->n_segments; k++)
		reduce_segment(s, k, own);
	if (!s->call.take) {
		sum_begin_gather(s);
		comm_wait(&s->gather);
	}
}

/* In the group's stream: what follows a message there begins when it has come, so that all of the sum can
 * be enqueued at once. */
void sum_enqueue(struct tree_sum *s)
{
	struct sum_queue *q = s->call.queue;
	int before = comm_stream_begin(s->c);
	sum_join_queue(s);
	bool exact = !is_reduced_by_nccl(s);
	if (!exact)
		reduce_by_nccl(s);
	for (int k = 0; k < s->plan->n_segments && exact; k++) {
		sum_begin_segment(s, k);
		comm_wait(&s->segment[k % SUM_BUFFERS].requests);
		sum_finish_segment(s, k);
	}
	q->added = q->joined;
	if (!s->call.take && exact) {
		sum_begin_gather(s);
		comm_wait(&s->gather);
	}
	s->ticket = comm_stream_end(s->c, before);
	s->phase = DONE;
}
