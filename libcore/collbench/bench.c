/* Measurements of collectives: buffers, times, checks. Prints nothing. */
#include "collbench/collbench.h"

#include "comm/requests.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct bench_result bench_nothing = {
	NAN, NAN, NAN, -1, NAN, NAN, NAN, NAN}; /* in the order of the struct */

/* ---- buffers --------------------------------------------------------------------- */

/* Two buffers, and as much for MPI's internal buffers (MPICH copies the input of a reduction, and
 * half the blocks of a gather). */
static int check_memory(const struct bench *b, int64_t max_bytes, struct err *e)
{
	char need[NUM_TEXT], has[NUM_TEXT];
	double bytes = 4.0 * (double)max_bytes * b->place.local_size;
	int64_t available = memory_available();
	if (!available || bytes < (double)available)
		return 0;
	return err_set(e, EX_USAGE,
		"%d ranks on %s need about %s (2 buffers each, and as much for MPI), and "
		"%s are free%s",
		b->place.local_size, b->place.host, text_bytes(need, bytes),
		text_bytes(has, (double)available), advice_on(ADVICE_BENCH_MEMORY));
}

int bench_open(struct bench *b, struct comm *c, int64_t max_bytes, struct err *e)
{
	enum { PAGE = 4096 };
	b->comm = c;
	b->place = *comm_place();
	max_bytes = max64(max_bytes, c->size * (int64_t)sizeof(double));
	check_memory(b, max_bytes, e);
	if (comm_agree(c, e))
		return -1;
	int64_t room = round_up(max_bytes + 2 * VERIFY_GUARD, PAGE);
	arena_init(&b->memory, "buffers", 2 * (size_t)room);
	b->send = (char *)arena_alloc(&b->memory, (size_t)room) + VERIFY_GUARD;
	b->recv = (char *)arena_alloc(&b->memory, (size_t)room) + VERIFY_GUARD;
	b->seconds = xcalloc((size_t)b->iters + 1, sizeof(*b->seconds));
	return 0;
}

void bench_close(struct bench *b)
{
	arena_release(&b->memory);
	free(b->seconds);
}

int64_t bench_count(
	const struct bench *b, enum coll what, enum comm_type t, int64_t bytes)
{
	return max64(1, bytes / coll_bytes(what, b->comm->size, 1, t));
}

static struct coll_args args_of(const struct bench *b, const struct coll_case *c)
{
	return (struct coll_args){
		.send = c->place == COLL_IN_PLACE ? NULL : b->send,
		.recv = b->recv,
		.count = c->count,
		.type = c->type,
		.op = c->op,
		.root = c->root,
	};
}

/* ---- times ----------------------------------------------------------------------- */

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void statistics(double *seconds, int64_t n, struct bench_result *r)
{
	double sum = 0, squares = 0;
	qsort(seconds, (size_t)n, sizeof(*seconds), ascending);
	for (int64_t i = 0; i < n; i++)
		sum += seconds[i];
	double mean = sum / (double)n;
	for (int64_t i = 0; i < n; i++)
		squares += (seconds[i] - mean) * (seconds[i] - mean);
	r->i_min = 1e6 * seconds[0];
	r->i_max = 1e6 * seconds[n - 1];
	r->i_p99 = 1e6 * seconds[ceil_div(99 * n, 100) - 1]; /* nearest rank */
	r->i_cv = mean > 0 ? 100 * sqrt(squares / (double)n) / mean : 0;
}

static void measure(struct bench *b, const struct coll_case *c, struct bench_result *r)
{
	int ranks = b->comm->size;
	int64_t n_bytes = coll_bytes(c->what, ranks, c->count, c->type);
	struct coll_args a = args_of(b, c);
	/* zeros: repeated multiplication of other values gives denormal numbers, which are slow */
	memset(b->send, 0, (size_t)n_bytes);
	memset(b->recv, 0, (size_t)n_bytes);
	for (int64_t i = 0; i < b->warmup; i++)
		comm_run(b->comm, c->what, &a);
	comm_barrier(b->comm);
	double begin = clock_seconds(), last = begin;
	for (int64_t i = 0; i < b->iters; i++) {
		comm_run(b->comm, c->what, &a);
		double now = clock_seconds();
		b->seconds[i] = now - last;
		last = now;
	}
	b->seconds[b->iters] = (last - begin) / (double)b->iters;
	comm_run(b->comm, COLL_ALLREDUCE,
		&(struct coll_args){.recv = b->seconds,
			.count = b->iters + 1,
			.type = COMM_F64,
			.op = COMM_MAX});
	double mean = b->seconds[b->iters];
	r->time = 1e6 * mean;
	r->algbw = mean > 0 ? 1e-9 * (double)n_bytes / mean : 0;
	r->busbw = r->algbw * coll_table[c->what].bus(ranks);
	statistics(b->seconds, b->iters, r);
}

/* ---- checks ---------------------------------------------------------------------- */

static bool fault_is_here(const struct bench *b, enum coll what)
{
	const struct bench_fault *f = &b->fault;
	return f->wanted && f->what == what && f->rank == b->comm->rank;
}

static void inject(struct bench *b, const struct coll_case *c)
{
	int64_t size = (int64_t)comm_type_bytes(c->type), guard = VERIFY_GUARD / size;
	int64_t n = coll_blocks(c->what, b->comm->size) * c->count;
	int64_t at = b->fault.element;
	if (!fault_is_here(b, c->what) || at < -guard || at >= n + guard)
		return;
	b->recv[at * size] ^= 1;
	b->fault.done = true;
}

static int64_t check_buffers(struct bench *b, const struct coll_case *c)
{
	struct verify v = {*c, b->comm->rank, b->comm->size, b->iteration++};
	struct coll_args a = args_of(b, c);
	verify_fill(&v, b->send, b->recv);
	comm_run(b->comm, c->what, &a);
	inject(b, c);
	return verify_wrong(&v, b->send, b->recv);
}

/* Equal for ranks that run on one kernel, and so share its monotonic clock. */
static uint64_t clock_id(int rank)
{
	struct str boot = {0};
	uint64_t id = (uint64_t)rank;
	if (!file_read("/proc/sys/kernel/random/boot_id", 4096, &boot, &(struct err){0}))
		id = hash_bytes(boot.s, boot.len, 0);
	str_free(&boot);
	return id;
}

/* No rank may leave a barrier before the last one has entered it. Another rank is late in each turn. */
static int64_t check_barrier(struct bench *b)
{
	struct visit {
		uint64_t clock;
		double entered, left;
	};
	enum { MAX_TURNS = 8, LATE_US = 500 };
	struct comm *c = b->comm;
	struct visit *all = xcalloc((size_t)c->size, sizeof(*all));
	struct visit mine = {.clock = clock_id(c->rank)};
	int64_t turns = min64(c->size, MAX_TURNS), wrong = 0;
	for (int64_t turn = 0; turn < turns; turn++) {
		if (c->rank == part_begin(c->size, turns, turn))
			usleep(LATE_US);
		mine.entered = clock_seconds();
		comm_barrier(c);
		mine.left = clock_seconds();
		if (fault_is_here(b, COLL_BARRIER)) {
			mine.left = 0;
			b->fault.done = true;
		}
		comm_allgather(c, &mine, all, sizeof(mine));
		bool early = false;
		for (int r = 0; r < c->size; r++)
			early = early || (all[r].clock == mine.clock &&
						 mine.left < all[r].entered);
		wrong += early;
	}
	free(all);
	return wrong;
}

void bench_run(struct bench *b, const struct coll_case *c, struct bench_result *r)
{
	*r = bench_nothing;
	measure(b, c, r);
	if (!b->checks)
		return;
	r->wrong = 0;
	for (int64_t i = 0; i < b->checks; i++)
		r->wrong +=
			c->what == COLL_BARRIER ? check_barrier(b) : check_buffers(b, c);
	comm_sum_i64(b->comm, &r->wrong, 1);
}

/* ---- point to point -------------------------------------------------------------- */

static void complete(struct comm_requests *r)
{
	comm_start(r);
	comm_wait(r);
}

double bench_round_trip(struct comm *c, int leader, int other, int64_t n)
{
	enum { WARM = 8 };
	double begin = 0;
	bool same = true;
	struct comm_requests r = {.c = c};
	for (int64_t i = -WARM; i < n; i++) {
		int64_t ball = i;
		if (i == 0)
			begin = clock_seconds();
		if (c->rank == leader) {
			comm_send(&r, &ball, sizeof(ball), other, TAG_TEST);
			complete(&r);
			ball = ~i;
			comm_recv(&r, &ball, sizeof(ball), other, TAG_TEST);
			complete(&r);
			same = same && ball == i;
		} else {
			comm_recv(&r, &ball, sizeof(ball), leader, TAG_TEST);
			complete(&r);
			comm_send(&r, &ball, sizeof(ball), leader, TAG_TEST);
			complete(&r);
		}
	}
	comm_requests_free(&r);
	return same ? (clock_seconds() - begin) / (double)n : NAN;
}
