/* Exact sums over a group. Each rank adds its piece, for all ranks that receive it.
 *
 * Ranks that share memory read each other's contributions in place and write the sum to its
 * destinations: each byte is moved once, and nothing is packed. Other ranks use messages: the
 * contributions to a piece are sent to its rank (exchange), which sends the sum back (gather). */
#include "comm/sum.h"

#include "comm/comm_internal.h"

/* MAX_SEGMENTS per piece: more segments make the queue's buffers smaller. MIN_EXCHANGE: the
 * fewest floats that the ranks exchange at once. Two segments of 2^17 floats in flight took 1.5
 * times as long as one message, over MPI's shared memory. */
enum { MAX_SEGMENTS = 16, MIN_EXCHANGE = 1 << 21 };

enum phase { WAITING, EXCHANGE, GATHER, DONE };

struct sum {
	struct sum_call call;
	const struct sum_plan *plan;
	struct comm *c;
	enum phase phase;
	uint64_t seq;
	struct comm_operation operation;
	int tag; /* tag of the sum's messages, which are sent in the same order on all ranks */
	/* Without shared memory: the queue numbers its segments from `first_segment`. */
	uint64_t first_segment;
	int begun, summed;
	struct {
		struct comm_requests requests;
		float *received; /* in the queue's buffer, after the packed contributions */
	} segment[SUM_BUFFERS];
	struct comm_requests gather;
	uint64_t ticket; /* mark in the group's stream after all work; 0: none */
};

/* ---- pieces ---------------------------------------------------------------------- */

void sum_plan_init(struct sum_plan *p)
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

void sum_plan_release(struct sum_plan *p)
{
	free(p->origin);
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

/* Returns the number of contiguous elements from element `pos` of the runs on, and their index. */
static int64_t locate_in_runs(
	const struct sum_run *run, int n_runs, int64_t pos, int64_t *index)
{
	for (int i = 0; i < n_runs; i++) {
		if (pos < run[i].len) {
			*index = run[i].pos + pos;
			return run[i].len - pos;
		}
		pos -= run[i].len;
	}
	BUG_ON(true);
}

int64_t sum_locate_in_vector(
	const struct sum_plan *p, int shard, int64_t pos, int64_t *index)
{
	return locate_in_runs(p->shard[shard].run, p->shard[shard].n_runs, pos, index);
}

int64_t sum_locate(const struct sum_plan *p, int shard, int64_t pos, int64_t *index)
{
	int64_t n = sum_locate_in_vector(p, shard, pos, index);
	return p->n_origin
		       ? min64(n, locate_in_runs(p->origin, p->n_origin, *index, index))
		       : n;
}

/* Returns element `first` (of `width` floats) of a shard in a vector; NULL: it has gaps. */
static const float *address_in_vector(const struct sum_plan *p, int shard,
	const float *vector, int width, int64_t first)
{
	const struct sum_shard *s = &p->shard[shard];
	return s->n_runs == 1 ? vector + width * (s->run[0].pos + first) : NULL;
}

/* Returns the floats of a contribution in a buffer, rounded up to a cache line. */
static int64_t padded_floats(enum sum_form form, int64_t n)
{
	return round_up((int)form * n, 16);
}

static bool is_compressed(const struct sum_plan *p, int shard)
{
	return p->shard[shard].n_runs > 1;
}

static enum sum_form rank_form(const enum sum_form *form, int rank)
{
	return form ? form[rank] : SUM_INT64;
}

static enum sum_form contribution_form(const struct sum_call *x, int rank)
{
	return x->own ? rank_form(x->form, rank) : SUM_NONE;
}

/* Returns the elements in segment k of a rank's piece; *first: offset in the packed shard. */
static int64_t find_segment(const struct sum_plan *p, int rank, int k, int64_t *first)
{
	int64_t base, n = sum_piece(p, rank, &base), pos = min64(n, k * p->segment);
	*first = base + pos;
	return min64(n - pos, p->segment);
}

/* Counts the receive buffers of the longest segment, and send buffers for packed contributions. */
int64_t sum_buffer_floats(const struct sum_plan *p, const enum sum_form *form)
{
	int64_t first, own = find_segment(p, p->c->rank, 0, &first), n = 0;
	for (int r = 0; r < p->c->size; r++) {
		if (r != p->c->rank)
			n += padded_floats(rank_form(form, r), own);
		if (is_compressed(p, p->wants[r]))
			n += padded_floats(rank_form(form, p->c->rank),
				find_segment(p, r, 0, &first));
	}
	return n;
}

/* Returns the bytes that this rank sends in this sum. */
static int64_t sum_bytes(const struct sum_call *x)
{
	const struct sum_plan *p = x->plan;
	int me = p->c->rank, want = p->wants[me];
	int64_t first, own = sum_piece(p, me, &first), n = 0;
	for (int r = 0; r < p->c->size; r++)
		if (r != me)
			n += (int)contribution_form(x, me) * sum_piece(p, r, &first);
	if (x->result)
		n += own * (p->sharers[want] - 1);
	return n * (int64_t)sizeof(float);
}

/* Copies elements [first, first + n) of a shard, `width` floats each, to contiguous memory. */
static void pack_elements(const struct sum_plan *p, int shard, const float *vector,
	int width, int64_t first, int64_t n, float *out)
{
	const struct sum_shard *s = &p->shard[shard];
	for (int i = 0; i < s->n_runs && n > 0; i++) {
		const struct sum_run *run = &s->run[i];
		if (first >= run->len) {
			first -= run->len;
			continue;
		}
		int64_t len = min64(n, run->len - first), pos = run->pos + first;
		p->d->k->copy(p->d, mat(out, 1, width * len),
			mat((float *)vector + width * pos, 1, width * len));
		out += width * len;
		n -= len;
		first = 0;
	}
}

/* ---- the sum of a piece ---------------------------------------------------------- */

static void copy_or_zero(struct device *d, float *out, const float *in, int64_t len)
{
	if (!in)
		d->k->zero(d, mat(out, 1, len));
	else if (in != out)
		d->k->copy(d, mat(out, 1, len), mat((float *)in, 1, len));
}

/* Returns true if the ranks' pieces are equal parts of a vector that NCCL transfers. */
static bool has_even_pieces(const struct sum *s)
{
	const struct sum_plan *p = s->plan;
	const struct comm *c = s->c;
	int64_t first, last = sum_piece(p, c->size - 1, &first);
	return (c->nccl || (c->planned && simulate_has_nccl())) && p->n_shards == 1 &&
	       !is_compressed(p, 0) && last * c->size == p->shard[0].n;
}

/* Returns true if NCCL's reduce-scatter adds the contributions: the pieces are even, and every rank
 * contributes an int64 sum. This rank's piece of `own` becomes the sum. */
static bool uses_nccl_reduction(const struct sum *s)
{
	for (int r = 0; r < s->c->size; r++)
		if (contribution_form(&s->call, r) != SUM_INT64)
			return false;
	return has_even_pieces(s);
}

/* Returns true if the sum of this rank's piece replaces its contribution. */
static bool is_in_place(const struct sum *s)
{
	const struct sum_call *x = &s->call;
	int64_t first;
	sum_piece(s->plan, s->c->rank, &first);
	return x->kept && contribution_form(x, s->c->rank) == SUM_INT64 &&
	       x->kept == (const int64_t *)x->own + first;
}

/* Lists the contributions to `len` elements from element `first` of this rank's shard: received
 * ones and its own, unless they are added to its own in place. Returns their number. */
static int list_parts(struct sum *s, int64_t first, int64_t len, const float *packed,
	const float *received, struct grid_part *parts)
{
	const struct sum_call *x = &s->call;
	int n = 0, want = s->plan->wants[s->c->rank];
	bool reduced = uses_nccl_reduction(s);
	for (int r = 0; r < s->c->size; r++) {
		int width = (int)contribution_form(x, r);
		const void *from = received;
		if (!width || (r == s->c->rank ? is_in_place(s) : reduced))
			continue;
		if (r == s->c->rank)
			from = is_compressed(s->plan, want)
				       ? packed
				       : address_in_vector(
						 s->plan, want, x->own, width, first);
		else if (s->plan->shared)
			from = (const float *)(const void *)s->plan->shared->data[r] +
			       (width == SUM_LEAF ? s->plan->leaf_at : s->plan->sum_at) +
			       width * first;
		else
			received += padded_floats(contribution_form(x, r), len);
		BUG_ON(width == SUM_INT64 && (uintptr_t)from % sizeof(int64_t));
		parts[n++] = (struct grid_part){
			width == SUM_LEAF ? from : NULL, width == SUM_LEAF ? NULL : from};
	}
	return n;
}

/* Adds n parts, and the checksum of the sums to check->word, one run of the bucket's vector at a
 * time. `first`: of the elements in the packed shard. */
static void sum_checked(struct sum *s, struct grid_sum g, int64_t first,
	struct grid_check check, struct grid *grid)
{
	scoped_ptr struct grid_part *parts =
		xcalloc((size_t)g.n_parts + 1, sizeof(*parts));
	const struct grid_sum whole = g;
	g.parts = parts;
	g.check = &check;
	for (int64_t i = 0; i < whole.n; i += g.n) {
		g.n = min64(whole.n - i, sum_locate(s->plan, s->plan->wants[s->c->rank],
						 first + i, &check.first));
		g.sum = whole.sum ? whole.sum + i : NULL;
		g.rounded = whole.rounded ? whole.rounded + i : NULL;
		for (int k = 0; k < g.n_parts; k++) {
			const struct grid_part *part = &whole.parts[k];
			parts[k] = (struct grid_part){
				part->leaf ? (const float *)part->leaf + i : NULL,
				part->sum ? part->sum + i : NULL};
		}
		s->plan->d->k->grid_sum(s->plan->d, &g, grid);
	}
}

/* Adds the checksum of `len` elements from element `first` of the packed shard to a word. */
static void count_part(struct sum *s, struct grid_part part, int64_t first, int64_t len,
	uint64_t *word, bool subtract)
{
	struct grid_check check = s->call.check.result;
	const struct grid_sum g = {
		.parts = &part, .n_parts = 1, .n = len, .levels = s->plan->levels};
	check.word = word;
	check.subtract = subtract;
	sum_checked(s, g, first, check, s->call.grid);
}

/* Counts a part of this rank's sum, `len` elements from element `first`, as received. */
static void count_received(
	struct sum *s, struct grid_part part, int64_t first, int64_t len)
{
	count_part(s, part, first, len, s->call.check.received, true);
	count_part(s, part, first, len, s->call.check.added, false);
}

/* Counts a rank's contribution to `len` elements from element `first` as sent and received. */
static void check_received(
	struct sum *s, int rank, struct grid_part part, int64_t first, int64_t len)
{
	const struct sum_check *x = &s->call.check;
	count_part(s, part, first, len, &x->sent[x->ranks[rank]], true);
	count_received(s, part, first, len);
}

/* Returns elements of this rank's vector, which has one shard without gaps, from `first` on. */
static struct grid_part own_part(const struct sum *s, int64_t first)
{
	return (struct grid_part){.sum = (const void *)address_in_vector(
					  s->plan, 0, s->call.own, SUM_INT64, first)};
}

/* Counts all contributions to `len` elements from element `first` as received. */
static void check_contributions(
	struct sum *s, const struct grid_part *parts, int64_t first, int64_t len)
{
	int64_t piece;
	sum_piece(s->plan, s->c->rank, &piece);
	if (uses_nccl_reduction(s)) {
		count_received(s, own_part(s, first), first, len);
		return;
	}
	for (int r = 0; r < s->c->size; r++) {
		if (!contribution_form(&s->call, r))
			continue;
		if (r == s->c->rank && is_in_place(s))
			check_received(s, r,
				(struct grid_part){.sum = s->call.kept + first - piece},
				first, len);
		else
			check_received(s, r, *parts++, first, len);
	}
}

/* Adds `len` elements from element `first`; with shared memory, writes them to all ranks. */
static void add_elements(struct sum *s, int64_t first, int64_t len, const float *packed,
	const float *received)
{
	const struct sum_call *x = &s->call;
	struct comm *c = s->c;
	struct device *d = s->plan->d;
	int64_t piece;
	scoped_ptr struct grid_part *parts = xcalloc((size_t)c->size, sizeof(*parts));
	int n = list_parts(s, first, len, packed, received, parts);
	bool is_rounded = !x->own && !x->kept;
	float *rounded = x->result ? x->result + first : NULL;
	sum_piece(s->plan, c->rank, &piece);
	if (!s->plan->levels && !is_rounded) /* one leaf in all */
		copy_or_zero(d, rounded, n ? parts[0].leaf : NULL, len);
	else if (len && !is_rounded) {
		const struct grid_sum g = {
			.sum = x->kept ? x->kept + first - piece : NULL,
			.add = x->add || is_in_place(s),
			.rounded = rounded,
			.parts = parts,
			.n_parts = n,
			.n = len,
			.levels = s->plan->levels};
		if (x->check.sent)
			check_contributions(s, parts, first, len);
		if (x->check.result.u && rounded)
			sum_checked(s, g, first, x->check.result, x->grid);
		else
			d->k->grid_sum(d, &g, x->grid);
	}
	for (int r = 0; r < c->size && rounded && s->plan->shared; r++)
		if (r != c->rank)
			copy_or_zero(d,
				(float *)(void *)s->plan->shared->data[r] +
					s->plan->leaf_at + first,
				rounded, len);
}

/* Adds the whole piece without messages, in steps that fit in a cache if results are copied. */
static void add_whole_piece(struct sum *s)
{
	enum { CACHED = 1 << 16 };
	int64_t first, len = sum_piece(s->plan, s->c->rank, &first);
	int64_t step = s->plan->shared ? CACHED : len;
	float *planned = s->c->planned ? s->plan->queue->buffer[0] : NULL;
	int64_t pos = 0;
	do {
		add_elements(s, first + pos, min64(step, len - pos), planned, planned);
		pos += step;
	} while (pos < len);
}

/* ---- by messages ----------------------------------------------------------------- */

static float *segment_buffer(const struct sum *s, int k)
{
	uint64_t number = s->first_segment + (uint64_t)k;
	return s->plan->queue->buffer[number % SUM_BUFFERS];
}

/* Returns this rank's contribution to segment k of `rank`, packed to *space if it has gaps. */
static const float *contribution_to(struct sum *s, int rank, int k, float **space)
{
	const struct sum_plan *p = s->plan;
	enum sum_form form = contribution_form(&s->call, s->c->rank);
	int width = (int)form, want = p->wants[rank];
	int64_t first, len = find_segment(p, rank, k, &first);
	if (!is_compressed(p, want))
		return address_in_vector(p, want, s->call.own, width, first);
	pack_elements(p, want, s->call.own, width, first, len, *space);
	const float *packed = *space;
	*space += padded_floats(form, len);
	return packed;
}

/* Starts the messages of segment k: contributions to the other ranks' pieces and to this one. */
static void begin_segment(struct sum *s, int k)
{
	struct comm *c = s->c;
	const struct sum_plan *p = s->plan;
	int width = (int)contribution_form(&s->call, c->rank);
	struct comm_requests *requests = &s->segment[k % SUM_BUFFERS].requests;
	int64_t first, own = find_segment(p, c->rank, k, &first);
	float *space = segment_buffer(s, k);
	simulate_launch(c);
	if (width && own && is_compressed(p, p->wants[c->rank]))
		contribution_to(s, c->rank, k, &space);
	for (int i = 1; i < c->size; i++) {
		int r = (c->rank + i) % c->size;
		int64_t len = find_segment(p, r, k, &first);
		if (width && len)
			comm_send(requests, contribution_to(s, r, k, &space),
				width * len * (int64_t)sizeof(float), r, s->tag);
	}
	s->segment[k % SUM_BUFFERS].received = space;
	for (int r = 0; r < c->size; r++) {
		enum sum_form form = contribution_form(&s->call, r);
		if (r == c->rank)
			continue;
		comm_recv(requests, space, (int)form * own * (int64_t)sizeof(float), r,
			s->tag);
		space += padded_floats(form, own);
	}
	comm_start(requests);
}

static void finish_segment(struct sum *s, int k)
{
	int64_t first, len = find_segment(s->plan, s->c->rank, k, &first);
	add_elements(s, first, len, segment_buffer(s, k),
		s->segment[k % SUM_BUFFERS].received);
}

/* Begins segments as buffers become free, and adds segments that have arrived, in the order of the
 * queue. Returns true if all segments are added. Never waits. */
static bool exchange_segments(struct sum *s)
{
	struct sum_queue *q = s->plan->queue;
	for (;;) {
		while (s->begun < s->plan->n_segments &&
			s->first_segment + (uint64_t)s->begun < q->added + SUM_BUFFERS)
			begin_segment(s, s->begun++);
		if (s->summed == s->begun ||
			s->first_segment + (uint64_t)s->summed != q->added ||
			!comm_test(&s->segment[s->summed % SUM_BUFFERS].requests))
			return s->summed == s->plan->n_segments;
		if (!s->c->planned)
			finish_segment(s, s->summed);
		s->summed++;
		q->added++;
	}
}

/* Starts a collective with the name that the sum's messages would have. */
static void start_collective(
	struct comm_requests *r, enum coll what, const struct coll_args *a)
{
	comm_enqueue(r, what, a);
	r->list[r->n - 1].what.name = "sum";
	comm_start(r);
}

/* Starts the reduce-scatter of the rank's integers; in a plan, simulates it. */
static void begin_nccl_reduction(struct sum *s)
{
	int64_t first, n = sum_piece(s->plan, s->c->rank, &first);
	int64_t *own = s->call.own;
	const struct sum_check *x = &s->call.check;
	if (x->sent)
		count_part(s, own_part(s, 0), 0, s->plan->shard[0].n,
			&x->sent[x->ranks[s->c->rank]], true);
	simulate_launch(s->c);
	start_collective(&s->segment[0].requests, COLL_REDUCESCATTER,
		&(struct coll_args){.send = own,
			.recv = own + first,
			.count = n,
			.type = COMM_I64,
			.op = COMM_SUM});
}

/* Starts to exchange rounded pieces with the ranks of the same shard; sends first: comm_send(). */
static void begin_gather(struct sum *s)
{
	struct comm *c = s->c;
	const struct sum_plan *p = s->plan;
	int64_t own_first, n = sum_piece(p, c->rank, &own_first);
	simulate_launch(c);
	if (has_even_pieces(s)) {
		start_collective(&s->gather, COLL_ALLGATHER,
			&(struct coll_args){
				.recv = s->call.result, .count = n, .type = COMM_F32});
		return;
	}
	for (int i = 1; i < c->size; i++) {
		int r = (c->rank + i) % c->size;
		int64_t first, len = sum_piece(p, r, &first);
		if (p->wants[r] != p->wants[c->rank])
			continue;
		comm_send(&s->gather, s->call.result + own_first,
			n * (int64_t)sizeof(float), r, s->tag);
		comm_recv(&s->gather, s->call.result + first,
			len * (int64_t)sizeof(float), r, s->tag);
	}
	comm_start(&s->gather);
}

/* ---- progress -------------------------------------------------------------------- */

/* Returns true if the whole piece is added at once, without a queue of segments. */
static bool adds_whole_piece(const struct sum *s)
{
	return s->plan->shared || uses_nccl_reduction(s);
}

/* Enters a phase. With shared memory, posts that this rank's contribution or piece is complete. */
static void enter_phase(struct sum *s, enum phase phase)
{
	if (s->plan->shared)
		comm_shared_post(
			s->plan->shared, s->plan->slot, 2 * s->seq + (uint64_t)phase);
	else if (phase == EXCHANGE && uses_nccl_reduction(s))
		begin_nccl_reduction(s);
	else if (phase == GATHER && s->call.result)
		begin_gather(s);
	s->phase = phase;
}

static void poll_sum(void *arg);

/* Makes progress without waiting. Returns true if the sum is complete. */
static bool try_finish(void *arg)
{
	struct sum *s = arg;
	if (s->phase != DONE)
		poll_sum(s);
	return s->phase == DONE;
}

/* Makes progress in this rank's phase. Returns true if the next phase may begin. */
static bool test_phase(struct sum *s)
{
	if (s->phase == WAITING)
		return !s->call.after || try_finish(s->call.after);
	if (s->plan->shared)
		return comm_shared_all_posted(
			s->plan->shared, s->plan->slot, 2 * s->seq + (uint64_t)s->phase);
	if (s->phase == GATHER)
		return comm_test(&s->gather);
	return uses_nccl_reduction(s) ? comm_test(&s->segment[0].requests)
				      : exchange_segments(s);
}

/* Enters the phases that may begin. Never waits. */
static void poll_sum(void *arg)
{
	struct sum *s = arg;
	if (s->phase == WAITING && test_phase(s)) {
		if (s->call.after)
			sum_end(s->call.after);
		s->call.after = NULL;
		enter_phase(s, EXCHANGE);
	}
	if (s->phase == EXCHANGE && test_phase(s)) {
		if (adds_whole_piece(s) && !s->c->planned)
			add_whole_piece(s);
		enter_phase(s, GATHER);
	}
	if (s->phase == GATHER && test_phase(s)) {
		s->phase = DONE;
		operation_end(&s->operation);
	}
}

static void wait_for_sum(struct sum *s)
{
	const struct comm_what what = {"sum of gradients",
		s->plan->shard[s->plan->wants[s->c->rank]].n * (int64_t)sizeof(float),
		s->seq};
	comm_wait_for(s->c, try_finish, s, &what);
}

/* Runs the whole sum where a step is complete as soon as it is begun: in a plan, and in the stream
 * of a group with NCCL, where additions follow their messages. */
static void run_at_once(struct sum *s)
{
	bool has_stream = comm_has_stream(s->c);
	int previous = has_stream ? comm_stream_begin(s->c) : 0;
	simulate_chain(s->c->planned); /* the previous sum is not complete */
	poll_sum(s);
	BUG_ON(s->phase != DONE);
	simulate_chain(false);
	if (s->c->planned) /* a plan counts the additions apart from the messages */
		add_whole_piece(s);
	if (has_stream)
		s->ticket = comm_stream_end(s->c, previous);
	if (has_stream && !comm_overlaps())
		comm_stream_wait(s->c, s->ticket);
}

/* Starts a sum in the background, while this rank computes. */
static void start_in_background(struct sum *s)
{
	if (s->plan->shared) { /* counted as messages would be */
		int64_t n_bytes = sum_bytes(&s->call);
		s->c->sent += n_bytes;
		operation_begin(&s->operation, s->c, "sum", s->seq, n_bytes);
	}
	comm_background_begin(poll_sum, s);
	poll_sum(s);
	if (!comm_overlaps())
		wait_for_sum(s);
}

struct sum *sum_begin(const struct sum_call *call)
{
	struct comm *c = call->plan->c;
	struct sum *s = xcalloc(1, sizeof(*s));
	BUG_ON(call->plan->shared &&
		(call->plan->n_shards > 1 || is_compressed(call->plan, 0)));
	*s = (struct sum){.call = *call, .plan = call->plan, .c = c};
	s->seq = ++c->seq;
	/* Fewer sums than tags are in flight: at most one for each bucket. */
	s->tag = COMM_TAG(SUM, (int64_t)(c->n_sums++ % COMM_TAG_COUNT(SUM)));
	s->gather.c = c;
	for (int i = 0; i < SUM_BUFFERS; i++)
		s->segment[i].requests.c = c;
	if (c->size == 1) {
		add_whole_piece(s);
		s->phase = DONE;
		return s;
	}
	if (!adds_whole_piece(s)) { /* takes the next segment numbers of the queue */
		s->first_segment = call->plan->queue->joined;
		call->plan->queue->joined += (uint64_t)call->plan->n_segments;
	}
	if (c->planned || comm_has_stream(c))
		run_at_once(s);
	else
		start_in_background(s);
	return s;
}

void sum_end(struct sum *s)
{
	if (s->ticket) {
		comm_stream_wait(s->c, s->ticket);
	} else if (s->c->size > 1 && !s->c->planned) {
		wait_for_sum(s);
		comm_background_end(poll_sum, s);
	}
	for (int i = 0; i < SUM_BUFFERS; i++)
		comm_requests_release(&s->segment[i].requests);
	comm_requests_release(&s->gather);
	free(s);
}
