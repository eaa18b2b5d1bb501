/* Collectives: one table of them, waiting, agreement. Degree 1 collapses here. */
#include "comm/comm.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

size_t comm_type_bytes(enum comm_type t)
{
	static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 4, 8};
	return bytes[t];
}

static double bus_allreduce(int n)
{
	return 2.0 * (n - 1) / n;
}

static double bus_share(int n)
{
	return (double)(n - 1) / n;
}

static double bus_whole(int n)
{
	(void)n;
	return 1;
}

/* Places are those that MPI has: MPI_Bcast takes one buffer, MPI_Sendrecv two. */
/* clang-format off */
const struct coll_info coll_table[N_COLL] = {
	[COLL_ALLREDUCE] = {"allreduce", 1, 1, false, true, {true, true}, bus_allreduce, "2(n-1)/n",
		"every rank gets the reduction"},
	[COLL_REDUCE] = {"reduce", 1, 1, true, true, {true, true}, bus_whole, "1",
		"the root gets the reduction"},
	[COLL_BROADCAST] = {"broadcast", 1, 1, true, false, {false, true}, bus_whole, "1",
		"every rank gets what the root has"},
	[COLL_ALLGATHER] = {"allgather", 1, 0, false, false, {true, true}, bus_share, "(n-1)/n",
		"every rank gets what all ranks have"},
	[COLL_REDUCESCATTER] = {"reducescatter", 0, 1, false, true, {true, true}, bus_share, "(n-1)/n",
		"each rank gets its part of the reduction"},
	[COLL_SCATTER] = {"scatter", 0, 1, true, false, {true, true}, bus_share, "(n-1)/n",
		"each rank gets its part of what the root has"},
	[COLL_GATHER] = {"gather", 1, 0, true, false, {true, true}, bus_share, "(n-1)/n",
		"the root gets what all ranks have"},
	[COLL_ALLTOALL] = {"alltoall", 0, 0, false, false, {true, true}, bus_share, "(n-1)/n",
		"each rank sends a part to every rank"},
	[COLL_SENDRECV] = {"sendrecv", 1, 1, false, false, {true, false}, bus_whole, "1",
		"to the next rank, from the one before"},
	[COLL_BARRIER] = {"barrier", 1, 1, false, false, {true, false}, bus_whole, "1",
		"nobody leaves before all came"},
};
/* clang-format on */

int coll_blocks(enum coll what, int ranks)
{
	const struct coll_info *i = &coll_table[what];
	return i->send_parts && i->recv_parts ? 1 : ranks;
}

int64_t coll_bytes(enum coll what, int ranks, int64_t count, enum comm_type t)
{
	return count * coll_blocks(what, ranks) * (int64_t)comm_type_bytes(t);
}

/* ---- background work, and waiting ------------------------------------------------ */

static struct background {
	void (*poll)(void *);
	void *with;
} * background;
static int n_background;
static double waited;

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
	comm_watch_look();
}

static bool overlaps = true;

void comm_overlap(struct comm *world)
{
	overlaps = comm_min_i64(world, env_switch("PT_OVERLAP") != 0);
}

bool comm_overlaps(void)
{
	return overlaps;
}

double comm_waited(void)
{
	return waited;
}

bool comm_test(struct comm *c, struct comm_req *r)
{
	if (r->n && !c->ops->test(c, r))
		return false;
	if (r->host)
		stage_end(r);
	return true;
}

bool comm_crowded;

void comm_wait_for(
	struct comm *c, bool (*done)(void *), void *with, const struct comm_req *what)
{
	enum { SPINS = 64, YIELDS = 512 };
	const struct timespec nap = {.tv_nsec = 50000};
	if (done(with)) {
		comm_watch_look(); /* who never waits long answers too */
		return;
	}
	double begin = clock_seconds();
	comm_watch_wait(c, what);
	for (int spins = 0; !done(with); spins++) {
		comm_poll();
		if (spins > YIELDS && comm_crowded)
			nanosleep(&nap, NULL);
		else if (spins > SPINS)
			sched_yield();
	}
	comm_watch_wait(NULL, NULL);
	waited += clock_seconds() - begin;
}

struct pending {
	struct comm *c;
	struct comm_req *r;
};

static bool is_done(void *with)
{
	const struct pending *p = with;
	return comm_test(p->c, p->r);
}

void comm_wait(struct comm *c, struct comm_req *r)
{
	comm_wait_for(c, is_done, &(struct pending){c, r}, r);
}

struct expected {
	struct comm *c;
	void *p;
	int64_t n_bytes;
	int tag;
};

static bool has_come(void *with)
{
	const struct expected *x = with;
	int peer;
	BUG_ON(stage_needed(x->p));
	return x->c->ops->take(x->c, x->p, x->n_bytes, x->tag, &peer);
}

bool comm_take_any(struct comm *c, void *p, int64_t n_bytes, int tag)
{
	return has_come(&(struct expected){c, p, n_bytes, tag});
}

void comm_take(struct comm *c, void *p, int64_t n_bytes, int tag)
{
	struct comm_req what = {
		.what = "message of anybody", .n_bytes = n_bytes, .seq = c->seq};
	comm_wait_for(c, has_come, &(struct expected){c, p, n_bytes, tag}, &what);
}

/* ---- collectives ----------------------------------------------------------------- */

void comm_begin(
	struct comm *c, enum coll what, const struct coll_args *a, struct comm_req *r)
{
	int64_t n_bytes = a->count * (int64_t)comm_type_bytes(a->type);
	*r = (struct comm_req){.what = coll_table[what].name, .n_bytes = n_bytes};
	if (c->size == 1) {
		BUG_ON(stage_needed(a->recv) && a->send);
		if (a->send && a->recv && a->send != a->recv)
			memcpy(a->recv, a->send, (size_t)n_bytes);
		return;
	}
	r->seq = ++c->seq;
	c->sent += (int64_t)((double)coll_bytes(what, c->size, a->count, a->type) *
			     coll_table[what].bus(c->size));
	if (c->planned)
		return;
	struct coll_args via = *a;
	stage_coll(c, what, &via, r);
	c->ops->begin(c, what, &via, r);
}

void comm_send_begin(struct comm *c, const void *p, int64_t n_bytes, int peer, int tag,
	struct comm_req *r)
{
	BUG_ON(c->size == 1);
	*r = (struct comm_req){.what = "send", .n_bytes = n_bytes, .seq = c->seq};
	c->sent += n_bytes;
	if (!c->planned)
		c->ops->send(c, stage_send(p, n_bytes, r), n_bytes, peer, tag, r);
}

void comm_recv_begin(
	struct comm *c, void *p, int64_t n_bytes, int peer, int tag, struct comm_req *r)
{
	BUG_ON(c->size == 1);
	*r = (struct comm_req){.what = "receive", .n_bytes = n_bytes, .seq = c->seq};
	if (!c->planned)
		c->ops->recv(c, stage_recv(p, n_bytes, r), n_bytes, peer, tag, r);
}

void comm_run(struct comm *c, enum coll what, const struct coll_args *a)
{
	struct comm_req r;
	comm_begin(c, what, a, &r);
	comm_wait(c, &r);
}

void comm_barrier(struct comm *c)
{
	comm_run(c, COLL_BARRIER, &(struct coll_args){0});
}

void comm_bcast(struct comm *c, void *p, int64_t n_bytes, int root)
{
	comm_run(c, COLL_BROADCAST,
		&(struct coll_args){
			.recv = p, .count = n_bytes, .type = COMM_U8, .root = root});
}

void comm_bcast_str(struct comm *c, struct str *s, int root)
{
	int64_t len = (int64_t)s->len;
	comm_bcast(c, &len, sizeof(len), root);
	if (c->rank != root) {
		char *room = xcalloc((size_t)len + 1, 1);
		str_clear(s);
		str_add(s, room, (size_t)len);
		free(room);
	}
	str_add(s, "", 0);
	comm_bcast(c, s->s, len, root);
}

void comm_sum_i64(struct comm *c, int64_t *v, int64_t n)
{
	comm_run(c, COLL_ALLREDUCE,
		&(struct coll_args){
			.recv = v, .count = n, .type = COMM_I64, .op = COMM_SUM});
}

static int64_t reduce_one(struct comm *c, int64_t v, enum comm_op op)
{
	comm_run(c, COLL_ALLREDUCE,
		&(struct coll_args){.recv = &v, .count = 1, .type = COMM_I64, .op = op});
	return v;
}

int64_t comm_max_i64(struct comm *c, int64_t v)
{
	return reduce_one(c, v, COMM_MAX);
}

int64_t comm_min_i64(struct comm *c, int64_t v)
{
	return reduce_one(c, v, COMM_MIN);
}

void comm_allgather(struct comm *c, const void *mine, void *all, int64_t n_bytes)
{
	comm_run(c, COLL_ALLGATHER,
		&(struct coll_args){
			.send = mine, .recv = all, .count = n_bytes, .type = COMM_U8});
}

int comm_agree(struct comm *c, struct err *e)
{
	int64_t first = comm_min_i64(c, e->code ? c->rank : c->size);
	if (first == c->size)
		return 0;
	int64_t text = (int64_t)(hash_str(e->msg) >> 1);
	bool same = comm_min_i64(c, text) == comm_max_i64(c, text);
	struct err said = *e;
	comm_bcast(c, &said, sizeof(said), (int)first);
	*e = said;
	if (!same) /* what all have found needs no name */
		err_prefix(e, "rank %lld: ", (long long)first);
	return -1;
}
