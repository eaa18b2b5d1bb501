/* Requests: enqueue, start, test and wait; and background work. */
#include "base/trace.h"
#include "comm/comm_internal.h"
#include "comm/nccl.h"

#include <sched.h>
#include <time.h>

/* ---- background work ------------------------------------------------------------- */

static struct background {
	void (*poll)(void *);
	void *arg;
} * background;
static int n_background;

void comm_background_begin(void (*poll)(void *), void *arg)
{
	background = xgrow(background, n_background, sizeof(*background));
	background[n_background++] = (struct background){poll, arg};
}

void comm_background_end(void (*poll)(void *), void *arg)
{
	for (int i = 0; i < n_background; i++) {
		if (background[i].poll != poll || background[i].arg != arg)
			continue;
		background[i] = background[--n_background];
		return;
	}
	bug(__FILE__, __LINE__, "no such background work");
}

static bool polling; /* background work runs; the current stream may be any */

void comm_poll(void)
{
	polling = true;
	for (int i = 0; i < n_background; i++)
		background[i].poll(background[i].arg);
	polling = false;
	nccl_poll();
	watchdog_poll();
}

static bool overlaps = true;

void comm_read_overlap(struct comm *world)
{
	overlaps = comm_min_i64(world, env_switch("PT_OVERLAP") != 0);
}

bool comm_overlaps(void)
{
	return overlaps;
}

void comm_plan_overlap(bool on)
{
	overlaps = on;
}

/* ---- waiting --------------------------------------------------------------------- */

static double waited;
bool comm_crowded;

double comm_waited(void)
{
	return waited;
}

/* Lets other ranks run. On a crowded host, pauses grow longer, since many short ones cost time. */
void comm_yield(int turns)
{
	enum { SPINS = 64, SHORTEST = 50000, DOUBLINGS = 4, EACH = 8 };
	if (turns <= SPINS)
		return;
	if (!comm_crowded) {
		sched_yield();
		return;
	}
	int doublings = (turns - SPINS) / EACH;
	long nap = (long)SHORTEST << (doublings < DOUBLINGS ? doublings : DOUBLINGS);
	nanosleep(&(struct timespec){.tv_nsec = nap}, NULL);
}

void comm_wait_for(
	struct comm *c, bool (*done)(void *), void *arg, const struct comm_what *what)
{
	if (done(arg)) {
		watchdog_poll(); /* so that a rank with short waits answers too */
		return;
	}
	double begin = clock_seconds();
	trace_begin("waiting", -1);
	watchdog_wait(c, what);
	for (int turns = 0; !done(arg); turns++) {
		comm_poll();
		comm_yield(turns);
	}
	watchdog_wait(NULL, NULL);
	trace_end();
	waited += clock_seconds() - begin;
}

/* ---- a set ----------------------------------------------------------------------- */

/* Appends an empty request. Returns it; valid until the next one is added. */
static struct comm_request *add_request(struct comm_requests *r)
{
	if (r->n == r->capacity) {
		r->capacity = 2 * r->capacity + 4;
		r->list = xrealloc(r->list, (size_t)r->capacity * sizeof(*r->list));
	}
	struct comm_request *q = &r->list[r->n++];
	*q = (struct comm_request){.n_handles = 0};
	return q;
}

static bool is_on_device(const struct comm *c, const void *send, const void *recv)
{
	return c->nccl && (staging_needed(send) || staging_needed(recv));
}

/* Appends a send or a receive, which comm_start() will start. Ignores an empty message. */
static void add_message(struct comm_requests *r, enum comm_kind kind, void *p,
	int64_t n_bytes, int peer, int tag)
{
	BUG_ON(r->c->size == 1);
	if (!n_bytes)
		return;
	struct comm_request *q = add_request(r);
	q->kind = kind;
	q->what.name = kind == COMM_SEND ? "send" : "receive";
	q->what.n_bytes = n_bytes;
	q->a = (struct coll_args){.recv = p, .count = n_bytes, .type = COMM_U8};
	q->peer = peer;
	q->tag = tag;
	q->sent = kind == COMM_SEND ? n_bytes : 0;
	q->on_device = is_on_device(r->c, NULL, p);
}

void comm_send(struct comm_requests *r, const void *p, int64_t n_bytes, int peer, int tag)
{
	add_message(r, COMM_SEND, (void *)p, n_bytes, peer, tag);
}

void comm_recv(struct comm_requests *r, void *p, int64_t n_bytes, int peer, int tag)
{
	add_message(r, COMM_RECV, p, n_bytes, peer, tag);
}

void comm_enqueue(struct comm_requests *r, enum coll what, const struct coll_args *a)
{
	struct comm_request *q = add_request(r);
	q->kind = COMM_COLLECTIVE;
	q->what.name = coll_table[what].name;
	q->what.n_bytes = a->count * (int64_t)comm_type_bytes(a->type);
	q->coll = what;
	q->a = *a;
	q->sent = (int64_t)((double)coll_bytes(what, r->c->size, a->count, a->type) *
			    coll_table[what].bus(r->c->size));
	q->on_device = what != COLL_BARRIER && is_on_device(r->c, a->send, a->recv);
}

/* Performs a collective in a group of one rank. */
static void copy_within_rank(const struct comm_request *q)
{
	const struct coll_args *a = &q->a;
	if (a->send && a->recv && a->send != a->recv &&
		!device_copy(a->recv, a->send, q->what.n_bytes))
		memcpy(a->recv, a->send, (size_t)q->what.n_bytes);
}

/* Adds an all-gather of blocks as NCCL collectives: one all-gather, or a broadcast per block. */
static void add_broadcasts(
	struct comm_requests *r, const struct comm_block *block, bool contiguous)
{
	const struct comm *c = r->c;
	for (int k = 0; k < (contiguous ? 1 : c->size); k++) {
		if (!block[k].n_bytes)
			continue;
		comm_enqueue(r, contiguous ? COLL_ALLGATHER : COLL_BROADCAST,
			&(struct coll_args){.recv = block[k].p,
				.count = block[k].n_bytes,
				.type = COMM_U8,
				.root = k});
		/* same name and bytes as the messages would have */
		r->list[r->n - 1].what.name = "gather";
		r->list[r->n - 1].sent = contiguous || k == c->rank
						 ? (c->size - 1) * block[c->rank].n_bytes
						 : 0;
	}
}

void comm_gather_blocks(
	struct comm_requests *r, const struct comm_block *block, bool contiguous, int tag)
{
	struct comm *c = r->c;
	int own = c->rank;
	bool uses_nccl = c->planned && simulate_has_nccl();
	for (int k = 0; k < c->size; k++)
		uses_nccl |= is_on_device(c, NULL, block[k].p);
	if (uses_nccl) {
		add_broadcasts(r, block, contiguous);
		return;
	}
	c->seq++;
	for (int i = 1; i < c->size; i++) {
		int k = (own + i) % c->size;
		comm_recv(r, block[k].p, block[k].n_bytes, k, tag);
	}
	for (int i = 1; i < c->size; i++)
		comm_send(r, block[own].p, block[own].n_bytes, (own + i) % c->size, tag);
}

const char *comm_tag_name(int tag)
{
	/* clang-format off */
#define NAME_OF_TAG(name, n) if (tag <= TAG_##name##_LAST) return #name;
	COMM_TAGS(NAME_OF_TAG)
#undef NAME_OF_TAG
	/* clang-format on */
	return "?";
}

/* Records the start of a set, named after its first request, except messages of the watchdog. */
static void record_set(struct comm_requests *r, const struct comm_request *first, int n)
{
	int64_t n_bytes = 0;
	if (first->kind != COMM_COLLECTIVE && first->tag == TAG_WATCHDOG)
		return;
	for (int i = 0; i < n; i++)
		n_bytes += first[i].what.n_bytes;
	operation_begin(&r->operation, r->c,
		first->kind == COMM_COLLECTIVE ? first->what.name
					       : comm_tag_name(first->tag),
		first->what.seq, n_bytes);
}

/* Starts all NCCL requests together, and the MPI requests one consecutive run after another. */
static void start_all(struct comm_requests *r, struct comm_request *first, int n)
{
	struct comm *c = r->c;
	int n_device = 0;
	for (int i = 0, end; i < n; i = end) {
		for (end = i; end < n && !first[end].on_device; end++)
			staging_begin(c, &first[end]);
		if (end > i)
			c->ops->start(c, first + i, end - i);
		for (; end < n && first[end].on_device; end++)
			n_device++;
	}
	if (!n_device)
		return;
	r->ticket = nccl_start(c, first, n, &r->operation);
	r->operation.begun = false; /* it ends when the device reaches the mark */
}

void comm_start(struct comm_requests *r)
{
	struct comm *c = r->c;
	struct comm_request *first = r->list + r->n_started;
	int n = r->n - r->n_started;
	for (int i = 0; i < n; i++) {
		if (c->size == 1)
			copy_within_rank(&first[i]);
		c->seq += c->size > 1 && first[i].kind == COMM_COLLECTIVE;
		first[i].what.seq = c->seq;
		c->sent += c->size > 1 ? first[i].sent : 0;
	}
	simulate_start(r, first, n);
	if (c->size == 1 || c->planned) { /* complete at once */
		r->n = r->n_started;
		return;
	}
	if (n && !r->operation.begun)
		record_set(r, first, n);
	start_all(r, first, n);
	r->n_started = r->n;
}

void comm_post(struct comm_requests *r)
{
	if (r->n == r->n_started || !r->list[r->n - 1].on_device)
		comm_start(r);
}

/* Returns true if a request is complete. Then also ends its staging through host memory. */
static bool test_request(struct comm *c, struct comm_request *q)
{
	if (q->n_handles && !c->ops->test(c, q))
		return false;
	if (q->host)
		staging_end(q);
	return true;
}

/* Clears the ticket if the current stream follows the set's requests; returns true if clear. */
static bool clear_ticket_if_ordered(struct comm_requests *r)
{
	if (r->ticket && !polling && nccl_is_current(r->c))
		r->ticket = 0;
	return !r->ticket;
}

bool comm_test(struct comm_requests *r)
{
	if (r->n > r->n_started || !clear_ticket_if_ordered(r))
		return false;
	for (; r->n > 0; r->n_started = --r->n)
		if (!test_request(r->c, &r->list[r->n - 1]))
			return false;
	operation_end(&r->operation);
	return true;
}

static bool test_set(void *arg)
{
	return comm_test(arg);
}

/* Returns true if all receives that were started are complete. */
static bool test_receives(void *arg)
{
	struct comm_requests *r = arg;
	for (int i = 0; i < r->n_started; i++)
		if (r->list[i].kind == COMM_RECV && !test_request(r->c, &r->list[i]))
			return false;
	return true;
}

/* Blocks until done(r) is true, polling other work. The watchdog names the last request. */
static void wait_for_set(struct comm_requests *r, bool (*done)(void *))
{
	struct comm_what what = {.name = "nothing"};
	BUG_ON(r->n > r->n_started); /* it would never be complete */
	if (r->ticket)
		comm_stream_wait(r->c, r->ticket);
	r->ticket = 0;
	if (r->n) /* a copy: the list may change meanwhile */
		what = r->list[r->n - 1].what;
	comm_wait_for(r->c, done, r, &what);
}

void comm_wait(struct comm_requests *r)
{
	simulate_wait(r, false);
	wait_for_set(r, test_set);
}

void comm_wait_received(struct comm_requests *r)
{
	simulate_wait(r, true);
	wait_for_set(r, test_receives);
}

void comm_requests_release(struct comm_requests *r)
{
	BUG_ON(r->n);
	simulate_wait(r, false);
	free(r->list);
	*r = (struct comm_requests){.c = r->c};
}

void comm_run(struct comm *c, enum coll what, const struct coll_args *a)
{
	struct comm_request one;
	struct comm_requests r = {.c = c, .list = &one, .capacity = 1};
	comm_enqueue(&r, what, a);
	comm_start(&r);
	comm_wait(&r);
}

/* ---- blocking functions ------------------------------------------------------------- */

void comm_call(struct comm *c, enum coll what, const struct coll_args *a)
{
	if (c->size > 1) {
		c->seq++;
		c->ops->call(c, what, a);
		return;
	}
	struct comm_request q = {.a = *a};
	q.what.n_bytes = a->count * (int64_t)comm_type_bytes(a->type);
	copy_within_rank(&q);
}

void comm_call_send(struct comm *c, const void *p, int64_t n_bytes, int peer, int tag)
{
	c->ops->call_send(c, p, n_bytes, peer, tag);
}

void comm_call_recv(struct comm *c, void *p, int64_t n_bytes, int peer, int tag)
{
	c->ops->call_recv(c, p, n_bytes, peer, tag);
}

/* ---- messages from any rank -------------------------------------------------------- */

struct expected {
	struct comm *c;
	void *p;
	int64_t n_bytes;
	int tag;
};

/* Receives an expected message if it has arrived, else returns false. */
static bool try_receive(void *arg)
{
	const struct expected *x = arg;
	int peer;
	BUG_ON(staging_needed(x->p));
	return x->c->ops->try_recv(x->c, x->p, x->n_bytes, x->tag, &peer);
}

bool comm_try_recv_any(struct comm *c, void *p, int64_t n_bytes, int tag)
{
	return try_receive(&(struct expected){c, p, n_bytes, tag});
}

void comm_recv_any(struct comm *c, void *p, int64_t n_bytes, int tag)
{
	const struct comm_what what = {"message from any rank", n_bytes, c->seq};
	comm_wait_for(c, try_receive, &(struct expected){c, p, n_bytes, tag}, &what);
}
