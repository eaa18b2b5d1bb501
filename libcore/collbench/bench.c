/* Measurements of collectives: buffers, times, checks. Prints nothing. */
#include "collbench/collbench.h"

#include "comm/requests.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct bench_result bench_nothing = {
	NAN, NAN, NAN, -1, -1, NAN, NAN, NAN, NAN}; /* in the order of the struct */

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

/* Two buffers with guards. */
static void place(struct arena *a, int64_t room, char **send, char **recv)
{
	*send = (char *)arena_alloc(a, (size_t)room) + VERIFY_GUARD;
	*recv = (char *)arena_alloc(a, (size_t)room) + VERIFY_GUARD;
}

int bench_open(struct bench *b, struct comm *c, int64_t max_bytes, struct err *e)
{
	enum { PAGE = 4096 };
	b->comm = b->home = c;
	b->place = *comm_place();
	max_bytes = max64(max_bytes, c->size * (int64_t)sizeof(double));
	check_memory(b, max_bytes, e);
	if (comm_agree(c, e))
		return -1;
	b->room = round_up(max_bytes + 2 * VERIFY_GUARD, PAGE);
	arena_init(&b->host, "buffers", 2 * (size_t)b->room);
	place(&b->host, b->room, &b->host_send, &b->host_recv);
	b->send = b->host_send;
	b->recv = b->host_recv;
	if (b->d && b->registered)
		comm_device_arena(c, b->d, &b->memory, "buffers", 2 * (size_t)b->room);
	else if (b->d)
		device_arena(b->d, &b->memory, "buffers", 2 * (size_t)b->room);
	if (b->d)
		place(&b->memory, b->room, &b->send, &b->recv);
	b->seconds = xcalloc((size_t)b->iters + 1, sizeof(*b->seconds));
	return 0;
}

void bench_close(struct bench *b)
{
	if (b->d && b->registered)
		comm_device_arena_release(b->home, b->d, &b->memory);
	else if (b->d)
		device_arena_release(b->d, &b->memory);
	arena_release(&b->host);
	free(b->seconds);
}

/* Copies both buffers with their guards to the device, or from there. */
static void put_buffers(struct bench *b)
{
	if (!b->d)
		return;
	device_put(b->d, b->send - VERIFY_GUARD, b->host_send - VERIFY_GUARD,
		(size_t)b->room);
	device_put(b->d, b->recv - VERIFY_GUARD, b->host_recv - VERIFY_GUARD,
		(size_t)b->room);
	device_wait(b->d);
}

static void get_buffers(struct bench *b)
{
	if (!b->d)
		return;
	device_get(b->d, b->host_send - VERIFY_GUARD, b->send - VERIFY_GUARD,
		(size_t)b->room);
	device_get(b->d, b->host_recv - VERIFY_GUARD, b->recv - VERIFY_GUARD,
		(size_t)b->room);
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

/* Enqueues an iteration; in host memory it is then complete. */
static void enqueue(struct bench *b, const struct coll_case *c)
{
	struct coll_args a = args_of(b, c);
	struct comm_requests r = {.c = b->comm};
	for (int64_t i = 0; i < max64(1, b->aggregate); i++)
		comm_enqueue(&r, c->what, &a);
	comm_start(&r);
	comm_wait(&r);
	comm_requests_free(&r);
}

static void complete_device(struct bench *b)
{
	if (b->d)
		device_host_wait(b->d, device_stream_mark(b->d));
}

/* False: the device has no graph of it. */
static bool capture(struct bench *b, const struct coll_case *c)
{
	if (b->launch != LAUNCH_GRAPH || !comm_has_stream(b->comm) ||
		c->what == COLL_BARRIER)
		return false;
	bool begun = device_graph_begin(b->d), all = comm_min_i64(b->home, begun);
	if (all)
		enqueue(b, c);
	return comm_min_i64(b->home, begun && device_graph_end(b->d) && all);
}

static void run_one(struct bench *b, const struct coll_case *c, bool graph, bool waits)
{
	if (graph)
		device_graph_launch(b->d);
	else
		enqueue(b, c);
	if (waits && graph)
		device_wait(b->d);
	else if (waits)
		complete_device(b);
}

static void measure(struct bench *b, const struct coll_case *c, struct bench_result *r)
{
	int ranks = b->comm->size;
	int64_t n_bytes = coll_bytes(c->what, ranks, c->count, c->type);
	bool queued = b->d && b->launch == LAUNCH_QUEUED;
	double n = (double)max64(1, b->aggregate); /* collectives of an iteration */
	/* zeros: repeated multiplication of other values gives denormal numbers, which are slow */
	memset(b->host_send, 0, (size_t)n_bytes);
	memset(b->host_recv, 0, (size_t)n_bytes);
	put_buffers(b);
	run_one(b, c, false, true); /* makes connections, before a capture */
	bool graph = capture(b, c);
	for (int64_t i = 0; i < b->warmup; i++)
		run_one(b, c, graph, true);
	comm_barrier(b->home);
	double begin = clock_seconds(), last = begin;
	for (int64_t i = 0; i < b->iters; i++) {
		run_one(b, c, graph, !queued);
		double now = clock_seconds();
		b->seconds[i] = (now - last) / n;
		last = now;
	}
	complete_device(b);
	last = clock_seconds();
	b->seconds[b->iters] = (last - begin) / (n * (double)b->iters);
	comm_run(b->home, COLL_ALLREDUCE,
		&(struct coll_args){.recv = b->seconds,
			.count = b->iters + 1,
			.type = COMM_F64,
			.op = COMM_MAX});
	double mean = b->seconds[b->iters];
	r->time = 1e6 * mean;
	r->algbw = mean > 0 ? 1e-9 * (double)n_bytes / mean : 0;
	r->busbw = r->algbw * coll_table[c->what].bus(ranks);
	if (!queued)
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
	b->host_recv[at * size] ^= 1;
	b->fault.done = true;
}

static int64_t check_buffers(struct bench *b, const struct coll_case *c)
{
	struct verify v = {*c, b->comm->rank, b->comm->size, b->iteration++};
	struct coll_args a = args_of(b, c);
	verify_fill(&v, b->host_send, b->host_recv);
	put_buffers(b);
	comm_run(b->comm, c->what, &a);
	get_buffers(b);
	inject(b, c);
	return verify_wrong(&v, b->host_send, b->host_recv);
}

/* Random numbers whose sums depend on their order. */
static void fill_random(const struct bench *b, const struct coll_case *c, char *to)
{
	int64_t n = c->count * coll_blocks(c->what, b->comm->size);
	for (int64_t i = 0; i < n; i++) {
		uint64_t x = hash_mix((uint64_t)(i * b->comm->size + b->comm->rank));
		float f = (float)x * 0x1p-60f + 0.1f;
		double g = (double)f / 3;
		size_t size = comm_type_bytes(c->type);
		const void *from = c->type == COMM_F32	 ? (void *)&f
				   : c->type == COMM_F64 ? (void *)&g
							 : (void *)&x;
		memcpy(to + i * (int64_t)size, from, size);
	}
}

/* Reduces equal inputs again and again: the elements on this rank whose bits differ from the first time. */
static int64_t count_differing(struct bench *b, const struct coll_case *c)
{
	struct coll_args a = args_of(b, c);
	int64_t size = (int64_t)comm_type_bytes(c->type), differ = 0;
	int64_t n = c->what == COLL_REDUCESCATTER
			    ? c->count
			    : coll_blocks(c->what, b->comm->size) * c->count;
	bool has = !coll_table[c->what].has_root || b->comm->rank == c->root;
	char *first = xmalloc((size_t)(n * size) + 1);
	for (int64_t run = 0; run <= b->reruns; run++) {
		fill_random(b, c, a.send ? b->host_send : b->host_recv);
		put_buffers(b);
		comm_run(b->comm, c->what, &a);
		get_buffers(b);
		if (!run)
			memcpy(first, b->host_recv, (size_t)(n * size));
		for (int64_t i = 0; i < n && has; i++)
			differ += memcmp(first + i * size, b->host_recv + i * size,
					  (size_t)size) != 0;
	}
	free(first);
	return differ;
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
	if (b->reruns && coll_table[c->what].has_op) {
		r->differ = count_differing(b, c);
		comm_sum_i64(b->home, &r->differ, 1);
	}
	if (!b->checks)
		return;
	r->wrong = 0;
	for (int64_t i = 0; i < b->checks; i++)
		r->wrong +=
			c->what == COLL_BARRIER ? check_barrier(b) : check_buffers(b, c);
	comm_sum_i64(b->home, &r->wrong, 1);
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
