/* Requests: enqueue, start, test and wait; and background work. */
#include "base/trace.h"
#include "comm/comm_internal.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- background work ------------------------------------------------------------- */

static struct background {
	void (*poll)(void *);
	void *with;
} * background;
static int n_background;

void comm_background(void (*poll)(void *), void *with)
{
	background =
		xrealloc(background, (size_t)(n_background + 1) * sizeof(*background));
	background[n_background++] = (struct background){poll, with};
}

void comm_background_end(void (*poll)(void *), void *with)
{
	for (int i = 0; i < n_background; i++) {
		if (background[i].poll != poll || background[i].with != with)
			continue;
		background[i] = background[--n_background];
		return;
	}
	bug(__FILE__, __LINE__, "not in the background");
}

void comm_poll(void)
{
	for (int i = 0; i < n_background; i++)
		background[i].poll(background[i].with);
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

void comm_wait_for(
	struct comm *c, bool (*done)(void *), void *with, const struct comm_what *what)
{
	enum { SPINS = 64, YIELDS = 512 };
	const struct timespec nap = {.tv_nsec = 50000};
	if (done(with)) {
		watchdog_poll(); /* so that a rank whose waits are short answers too */
		return;
	}
	double begin = clock_seconds();
	trace_begin("waiting", -1);
	watchdog_wait(c, what);
	for (int spins = 0; !done(with); spins++) {
		comm_poll();
		if (spins > YIELDS && comm_crowded)
			nanosleep(&nap, NULL);
		else if (spins > SPINS)
			sched_yield();
	}
	watchdog_wait(NULL, NULL);
	trace_end();
	waited += clock_seconds() - begin;
}

/* ---- a set ----------------------------------------------------------------------- */

static struct comm_request *add(struct comm_requests *r)
{
	if (r->n == r->room) {
		r->room = 2 * r->room + 4;
		r->list = xrealloc(r->list, (size_t)r->room * sizeof(*r->list));
	}
	struct comm_request *q = &r->list[r->n++];
	*q = (struct comm_request){.n_handles = 0};
	return q;
}

static void add_message(struct comm_requests *r, enum comm_kind kind, void *p,
	int64_t n_bytes, int peer, int tag)
{
	BUG_ON(r->c->size == 1);
	if (!n_bytes)
		return;
	struct comm_request *q = add(r);
	q->kind = kind;
	q->what.name = kind == COMM_SEND ? "send" : "receive";
	q->what.n_bytes = n_bytes;
	q->a = (struct coll_args){.recv = p, .count = n_bytes, .type = COMM_U8};
	q->peer = peer;
	q->tag = tag;
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
	struct comm_request *q = add(r);
	q->kind = COMM_COLLECTIVE;
	q->what.name = coll_table[what].name;
	q->what.n_bytes = a->count * (int64_t)comm_type_bytes(a->type);
	q->coll = what;
	q->a = *a;
}

/* A collective of one rank. */
static void copy_to_itself(const struct comm_request *q)
{
	const struct coll_args *a = &q->a;
	BUG_ON(a->send && staging_needed(a->recv));
	if (a->send && a->recv && a->send != a->recv)
		memcpy(a->recv, a->send, (size_t)q->what.n_bytes);
}

static int64_t sent_bytes(const struct comm *c, const struct comm_request *q)
{
	if (q->kind != COMM_COLLECTIVE)
		return q->kind == COMM_SEND ? q->what.n_bytes : 0;
	return (int64_t)((double)coll_bytes(q->coll, c->size, q->a.count, q->a.type) *
			 coll_table[q->coll].bus(c->size));
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

/* A set is one operation, named after its first request. Questions and answers of
 * the watchdog are none. */
static void record(struct comm_requests *r, const struct comm_request *first, int n)
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

void comm_start(struct comm_requests *r)
{
	struct comm *c = r->c;
	struct comm_request *first = r->list + r->n_started;
	int n = r->n - r->n_started;
	for (int i = 0; i < n; i++) {
		if (c->size == 1)
			copy_to_itself(&first[i]);
		c->seq += c->size > 1 && first[i].kind == COMM_COLLECTIVE;
		first[i].what.seq = c->seq;
		c->sent += c->size > 1 ? sent_bytes(c, &first[i]) : 0;
	}
	simulate_start(r, first, n);
	if (c->size == 1 || c->planned) { /* complete at once */
		r->n = r->n_started;
		return;
	}
	for (int i = 0; i < n; i++)
		staging_begin(c, &first[i]);
	if (n && !r->operation.begun)
		record(r, first, n);
	if (n)
		c->ops->start(c, first, n);
	r->n_started = r->n;
}

static bool test_one(struct comm *c, struct comm_request *q)
{
	if (q->n_handles && !c->ops->test(c, q))
		return false;
	if (q->host)
		staging_end(q);
	return true;
}

bool comm_test(struct comm_requests *r)
{
	BUG_ON(r->n > r->n_started); /* it would never be complete */
	for (; r->n > 0; r->n_started = --r->n)
		if (!test_one(r->c, &r->list[r->n - 1]))
			return false;
	operation_end(&r->operation);
	return true;
}

static bool is_complete(void *with)
{
	return comm_test(with);
}

static bool is_received(void *with)
{
	struct comm_requests *r = with;
	for (int i = 0; i < r->n_started; i++)
		if (r->list[i].kind == COMM_RECV && !test_one(r->c, &r->list[i]))
			return false;
	return true;
}

static void wait_for(struct comm_requests *r, bool (*done)(void *))
{
	struct comm_what what = {.name = "nothing"};
	if (r->n) /* a copy: the list may change meanwhile */
		what = r->list[r->n - 1].what;
	comm_wait_for(r->c, done, r, &what);
}

void comm_wait(struct comm_requests *r)
{
	simulate_wait(r, false);
	wait_for(r, is_complete);
}

void comm_wait_received(struct comm_requests *r)
{
	simulate_wait(r, true);
	wait_for(r, is_received);
}

void comm_requests_free(struct comm_requests *r)
{
	BUG_ON(r->n);
	simulate_wait(r, false);
	free(r->list);
	*r = (struct comm_requests){.c = r->c};
}

void comm_run(struct comm *c, enum coll what, const struct coll_args *a)
{
	struct comm_request one;
	struct comm_requests r = {.c = c, .list = &one, .room = 1};
	comm_enqueue(&r, what, a);
	comm_start(&r);
	comm_wait(&r);
}

/* ---- messages from any rank -------------------------------------------------------- */

struct expected {
	struct comm *c;
	void *p;
	int64_t n_bytes;
	int tag;
};

static bool has_arrived(void *with)
{
	const struct expected *x = with;
	int peer;
	BUG_ON(staging_needed(x->p));
	return x->c->ops->take(x->c, x->p, x->n_bytes, x->tag, &peer);
}

bool comm_try_take(struct comm *c, void *p, int64_t n_bytes, int tag)
{
	return has_arrived(&(struct expected){c, p, n_bytes, tag});
}

void comm_take(struct comm *c, void *p, int64_t n_bytes, int tag)
{
	const struct comm_what what = {"message from any rank", n_bytes, c->seq};
	comm_wait_for(c, has_arrived, &(struct expected){c, p, n_bytes, tag}, &what);
}
