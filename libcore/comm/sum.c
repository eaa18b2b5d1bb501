/*
 * Sums over a group by the canonical tree. Each rank finishes the tree of its piece, for all ranks
 * that receive it.
 *
 * Ranks that share memory read each other's nodes in place and write the sum to its destinations:
 * each byte is moved once, and nothing is packed. Others use messages: the nodes of a piece are sent
 * to its rank (exchange), which sends the sum back (gather).
 */
#include "comm/sum_internal.h"

#include <stdlib.h>

/* Segments of a piece: with more of them the queue's buffers are smaller. And the fewest floats that
 * the ranks exchange at once: two segments of 2^17 floats in flight took 1.5 times as long as one
 * message, by shared memory of MPI. */
enum { MAX_SEGMENTS = 16, MIN_EXCHANGE = 1 << 21 };

/* ---- pieces ---------------------------------------------------------------------- */

void sum_share(struct sum_plan *p)
{
	p->sharers = xcalloc((size_t)p->n_shards, sizeof(*p->sharers));
	p->before = xcalloc((size_t)p->c->size, sizeof(*p->before));
	for (int r = 0; r < p->c->size; r++)
		p->before[r] = p->sharers[p->wants[r]]++;
	int64_t first, longest = 1;
	for (int r = 0; r < p->c->size; r++)
		longest = max64(longest, sum_piece(p, r, &first));
	if (!p->segment)
		p->segment = round_up(
			max64(ceil_div(longest, MAX_SEGMENTS), MIN_EXCHANGE / p->c->size),
			16);
	p->n_segments = (int)ceil_div(longest, p->segment);
}

void sum_unshare(struct sum_plan *p)
{
	free(p->sharers);
	free(p->before);
}

int64_t sum_piece(const struct sum_plan *p, int rank, int64_t *first)
{
	int shard = p->wants[rank], before = p->before[rank];
	int64_t n = p->shard[shard].n;
	int64_t step = round_up(ceil_div(n, p->sharers[shard]), 16);
	*first = min64(n, step * before);
	return min64(n, step * (before + 1)) - *first;
}

/* Is the whole vector one shard with one run? */
bool sum_is_whole(const struct sum_plan *p)
{
	return p->n_shards == 1 && p->shard[0].n_runs == 1;
}

/* The number of floats in segment k of a rank's piece, and its offset *first in the packed shard. */
int64_t sum_segment(const struct sum_plan *p, int rank, int k, int64_t *first)
{
	int64_t piece, n = sum_piece(p, rank, &piece), at = min64(n, k * p->segment);
	*first = piece + at;
	return min64(n - at, p->segment);
}

/* Receive buffers for the nodes of other ranks, and send buffers where this rank's floats are not
 * contiguous, of a segment. The first segments are the longest. */
int64_t sum_buffer_floats(const struct sum_plan *p, const struct sum_nodes *nodes)
{
	int64_t first, own = sum_segment(p, p->c->rank, 0, &first), n = 0;
	const struct sum_nodes *mine = &nodes[p->c->rank];
	bool packs = !sum_is_whole(p) || mine->n > 1;
	for (int r = 0; r < p->c->size; r++) {
		bool me = r == p->c->rank;
		n += !me ? nodes[r].n * own : 0;
		if (me ? !sum_is_whole(p) : packs)
			n += mine->n * sum_segment(p, r, 0, &first);
	}
	return n;
}

/* The bytes that this rank sends in such a sum. */
static int64_t sum_bytes(
	const struct sum_plan *p, const struct sum_nodes *nodes, bool gathers)
{
	int me = p->c->rank, want = p->wants[me];
	int64_t first, own = sum_piece(p, me, &first), n = 0;
	for (int r = 0; r < p->c->size; r++)
		if (r != me)
			n += nodes[me].n * sum_piece(p, r, &first);
	if (gathers)
		n += own * (p->sharers[want] - 1);
	return n * (int64_t)sizeof(float);
}

/* Floats [first, first + n) of a packed shard, from a vector. */
void sum_pack(const struct sum_plan *p, int shard, const float *vector, int64_t first,
	int64_t n, float *out)
{
	const struct sum_shard *s = &p->shard[shard];
	for (int i = 0; i < s->n_runs && n > 0; i++) {
		const struct sum_run *run = &s->run[i];
		if (first >= run->len) {
			first -= run->len;
			continue;
		}
		int64_t len = min64(n, run->len - first);
		p->d->k->copy(p->d, mat(out, 1, len),
			mat((float *)vector + run->at + first, 1, len));
		out += len;
		n -= len;
		first = 0;
	}
}

/* ---- the tree of a piece --------------------------------------------------------- */

/* A buffer of a rank, as mapped by this one; NULL: it is not mapped. */
static float *buffer_of(const struct tree_sum *s, int rank, int buffer)
{
	const struct comm_shared *m = s->call.shared;
	if (rank == s->c->rank)
		return s->call.buffer[buffer];
	if (!m)
		return NULL;
	return (float *)(void *)m->data[rank] + s->call.from[rank] +
	       buffer * s->plan->shard[0].n;
}

/* The sorted parts of `len` floats of this rank's piece, from float `first` of its shard: received
 * nodes of others, and its own, packed at the beginning of `packed` or in their buffers. To be freed
 * by the caller. */
static struct tree_part *find_parts(struct tree_sum *s, int64_t first, int64_t len,
	float *packed, float *received, int *n_parts)
{
	struct comm *c = s->c;
	int64_t piece;
	int n = 0, total = s->call.n_extra;
	sum_piece(s->plan, c->rank, &piece);
	for (int r = 0; r < c->size; r++)
		total += s->call.nodes[r].n;
	struct tree_part *parts = xcalloc((size_t)total + 1, sizeof(*parts));
	for (int r = 0; r < c->size; r++) {
		const struct sum_nodes *of = &s->call.nodes[r];
		for (int i = 0; i < of->n; i++, n++) {
			float *whole = buffer_of(s, r, of->buffer[i]);
			float **from = r == c->rank ? &packed : &received;
			parts[n] = (struct tree_part){of->node[i], mat(*from, 1, len)};
			if (whole && sum_is_whole(s->plan))
				parts[n].x.p = whole + first;
			else
				*from += len;
		}
	}
	for (int i = 0; i < s->call.n_extra; i++)
		tree_cut(&s->call.extra[i], 1, first - piece, len, &parts[n++]);
	tree_sort(parts, n);
	*n_parts = n;
	return parts;
}

static void put(struct device *d, float *to, const float *from, int64_t len)
{
	if (!from)
		d->k->zero(d, mat(to, 1, len));
	else if (from != to)
		d->k->copy(d, mat(to, 1, len), mat((float *)from, 1, len));
}

/* Writes the root of these floats to this rank's result, and with shared memory to every rank's. */
static void finish_root(struct tree_sum *s, const struct tree_part *parts, int n_parts,
	int64_t first, int64_t len)
{
	struct comm *c = s->c;
	struct device *d = s->plan->d;
	struct tree_node root = {s->plan->levels, 0};
	struct tree_part *block = xcalloc((size_t)n_parts + 1, sizeof(*block));
	for (int64_t from = 0; from < len; from += d->sum_block) {
		int64_t n = min64(d->sum_block, len - from);
		int next = 0;
		tree_cut(parts, n_parts, from, n, block);
		struct mat sum =
			tree_add(d, block, n_parts, &next, root, (struct mat){0});
		BUG_ON(next != n_parts);
		for (int r = 0; r < c->size; r++) {
			if (r == c->rank)
				put(d, s->call.result + first + from, sum.p, n);
			else if (s->call.shared)
				put(d, buffer_of(s, r, 0) + first + from, sum.p, n);
		}
	}
	free(block);
}

/* call.take may wait for a disk, and a wait polls all sums. */
static bool adding;

/* Adds the nodes of `len` floats of this rank's piece, from float `first` of its shard. */
static void finish_floats(
	struct tree_sum *s, int64_t first, int64_t len, float *packed, float *received)
{
	int n_parts;
	int64_t piece;
	struct tree_part *parts = find_parts(s, first, len, packed, received, &n_parts);
	sum_piece(s->plan, s->c->rank, &piece);
	BUG_ON(adding);
	adding = true;
	if (s->call.take)
		s->call.take(s->call.with, parts, n_parts, first - piece, len);
	else
		finish_root(s, parts, n_parts, first, len);
	adding = false;
	free(parts);
}

/* The whole piece, in shared memory, in a group of one rank or in a plan. */
static void finish_piece(struct tree_sum *s)
{
	int64_t first, len = sum_piece(s->plan, s->c->rank, &first);
	float *planned = s->c->planned ? s->call.queue->buffer[0] : NULL;
	finish_floats(s, first, len, planned, planned);
}

/* ---- by messages ----------------------------------------------------------------- */

float *sum_segment_buffer(const struct tree_sum *s, int k)
{
	uint64_t number = s->first_segment + (uint64_t)k;
	return s->call.queue->buffer[number % SUM_BUFFERS];
}

/* This rank's nodes of segment k of `rank`, contiguous: in place, or packed to *room. */
static const float *packed_for(struct tree_sum *s, int rank, int k, float **room)
{
	const struct sum_plan *p = s->plan;
	const struct sum_nodes *mine = &s->call.nodes[s->c->rank];
	int64_t first, len = sum_segment(p, rank, k, &first);
	if (sum_is_whole(p) && (mine->n == 1 || rank == s->c->rank))
		return s->call.buffer[mine->buffer[0]] + p->shard[0].run[0].at + first;
	const float *begin = *room;
	for (int i = 0; i < mine->n; i++, *room += len)
		sum_pack(p, p->wants[rank], s->call.buffer[mine->buffer[i]], first, len,
			*room);
	return begin;
}

void sum_begin_segment(struct tree_sum *s, int k)
{
	struct comm *c = s->c;
	const struct sum_plan *p = s->plan;
	const struct sum_nodes *mine = &s->call.nodes[c->rank];
	struct comm_requests *requests = &s->segment[k % SUM_BUFFERS].requests;
	int64_t first, own = sum_segment(p, c->rank, k, &first);
	float *room = sum_segment_buffer(s, k);
	if (mine->n && own && !sum_is_whole(p))
		packed_for(s, c->rank, k, &room);
	for (int i = 1; i < c->size; i++) {
		int r = (c->rank + i) % c->size;
		int64_t len = sum_segment(p, r, k, &first);
		if (mine->n && len)
			comm_send(requests, packed_for(s, r, k, &room),
				mine->n * len * (int64_t)sizeof(float), r, s->tag);
	}
	s->segment[k % SUM_BUFFERS].received = room;
	for (int r = 0; r < c->size; r++) {
		int64_t n = s->call.nodes[r].n * own;
		if (r == c->rank)
			continue;
		comm_recv(requests, room, n * (int64_t)sizeof(float), r, s->tag);
		room += n;
	}
	comm_start(requests);
}

void sum_finish_segment(struct tree_sum *s, int k)
{
	int64_t first, len = sum_segment(s->plan, s->c->rank, k, &first);
	finish_floats(s, first, len, sum_segment_buffer(s, k),
		s->segment[k % SUM_BUFFERS].received);
}

/* Begins segments as buffers become free, and adds those that have arrived, in the queue's order.
 * Returns whether all are added. */
static bool exchange(struct tree_sum *s)
{
	struct sum_queue *q = s->call.queue;
	for (;;) {
		while (s->begun < s->plan->n_segments &&
			s->first_segment + (uint64_t)s->begun < q->added + SUM_BUFFERS)
			sum_begin_segment(s, s->begun++);
		if (s->summed == s->begun ||
			s->first_segment + (uint64_t)s->summed != q->added ||
			!comm_test(&s->segment[s->summed % SUM_BUFFERS].requests))
			return s->summed == s->plan->n_segments;
		sum_finish_segment(s, s->summed++);
		q->added++;
	}
}

/* Sends this rank's piece to the ranks with the same shard, and receives theirs. Sends are first, see
 * comm_send(). */
void sum_begin_gather(struct tree_sum *s)
{
	struct comm *c = s->c;
	const struct sum_plan *p = s->plan;
	int64_t at, mine = sum_piece(p, c->rank, &at);
	for (int i = 1; i < c->size; i++) {
		int r = (c->rank + i) % c->size;
		int64_t first, len = sum_piece(p, r, &first);
		if (p->wants[r] != p->wants[c->rank])
			continue;
		comm_send(&s->gather, s->call.result + at, mine * (int64_t)sizeof(float),
			r, s->tag);
		comm_recv(&s->gather, s->call.result + first,
			len * (int64_t)sizeof(float), r, s->tag);
	}
	comm_start(&s->gather);
}

/* ---- progress -------------------------------------------------------------------- */

/* Takes the next numbers of the queue. */
void sum_join_queue(struct tree_sum *s)
{
	struct sum_queue *q = s->call.queue;
	s->first_segment = q->joined;
	q->joined += (uint64_t)s->plan->n_segments;
}

/* With shared memory, a rank first posts that its nodes are complete, then that its piece is written
 * to all ranks. */
static void enter(struct tree_sum *s, enum phase phase)
{
	if (s->call.shared)
		comm_shared_post(
			s->call.shared, s->call.slot, 2 * s->seq + (uint64_t)phase);
	else if (phase == EXCHANGE)
		sum_join_queue(s);
	else if (!s->call.take)
		sum_begin_gather(s);
	s->phase = phase;
}

/* Have all ranks reached this rank's phase? */
static bool phase_reached(struct tree_sum *s)
{
	if (s->call.shared)
		return comm_shared_all_posted(
			s->call.shared, s->call.slot, 2 * s->seq + (uint64_t)s->phase);
	return s->phase == EXCHANGE ? exchange(s) : comm_test(&s->gather);
}

static void poll_sum(void *with)
{
	struct tree_sum *s = with;
	if (adding)
		return;
	if (s->phase == EXCHANGE && phase_reached(s)) {
		if (s->call.shared)
			finish_piece(s);
		enter(s, GATHER);
	}
	if (s->phase == GATHER && phase_reached(s)) {
		s->phase = DONE;
		operation_end(&s->operation);
	}
}

static bool is_done(void *with)
{
	return tree_sum_done(with);
}

static void wait_for(struct tree_sum *s)
{
	const struct comm_what what = {"tree sum",
		s->plan->shard[s->plan->wants[s->c->rank]].n * (int64_t)sizeof(float),
		s->seq};
	comm_wait_for(s->c, is_done, s, &what);
}

/* In a plan, which counts bytes, in the order of the real sum. */
static void plan_messages(struct tree_sum *s)
{
	sum_join_queue(s);
	for (int k = 0; k < s->plan->n_segments; k++) {
		simulate_launch(s->c);
		sum_begin_segment(s, k);
	}
	simulate_launch(s->c);
	s->call.queue->added = s->call.queue->joined;
	if (!s->call.take)
		sum_begin_gather(s);
}

struct tree_sum *tree_sum_begin(const struct sum_call *call)
{
	struct comm *c = call->plan->c;
	struct tree_sum *s = xcalloc(1, sizeof(*s));
	BUG_ON(call->shared && !sum_is_whole(call->plan));
	*s = (struct tree_sum){.call = *call, .plan = call->plan, .c = c};
	s->seq = ++c->seq;
	/* Fewer sums than tags are in flight: at most one for each bucket. */
	s->tag = COMM_TAG(SUM, (int64_t)(c->n_sums++ % COMM_TAG_COUNT(SUM)));
	s->gather.c = c;
	for (int i = 0; i < SUM_BUFFERS; i++)
		s->segment[i].requests.c = c;
	if (c->size == 1 || c->planned) {
		if (c->size > 1)
			plan_messages(s);
		finish_piece(s);
		s->phase = DONE;
		return s;
	}
	if (comm_has_stream(c)) {
		sum_enqueue(s);
		if (!comm_overlaps())
			comm_stream_wait(c, s->ticket);
		return s;
	}
	if (call->shared) { /* counted as messages would be */
		int64_t n_bytes = sum_bytes(s->plan, call->nodes, !call->take);
		c->sent += n_bytes;
		operation_begin(&s->operation, c, "sum", s->seq, n_bytes);
	}
	enter(s, EXCHANGE);
	comm_background(poll_sum, s);
	if (!comm_overlaps())
		wait_for(s);
	return s;
}

bool tree_sum_done(struct tree_sum *s)
{
	if (s->phase != DONE)
		poll_sum(s);
	return s->phase == DONE; /* or all is enqueued */
}

void tree_sum_end(struct tree_sum *s)
{
	if (s->ticket) {
		comm_stream_wait(s->c, s->ticket);
	} else if (s->c->size > 1 && !s->c->planned) {
		wait_for(s);
		comm_background_end(poll_sum, s);
	}
	for (int i = 0; i < SUM_BUFFERS; i++)
		comm_requests_free(&s->segment[i].requests);
	comm_requests_free(&s->gather);
	free(s);
}
