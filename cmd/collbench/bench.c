/* Measurements of collectives: buffers and times. Prints nothing. */
#include "collbench/bench_internal.h"

#include "base/file.h"
#include "kernels/kernels.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

enum { PAGE = 4096 };

/* Checks that each rank of this host has memory for two buffers, and as much again for MPI's
 * internal buffers (MPICH copies the input of a reduction, and half the blocks of a gather). */
static int check_memory(const struct bench *b, int64_t max_bytes, struct err *e)
{
	char need[NUM_TEXT], has[NUM_TEXT];
	double bytes = 4.0 * (double)max_bytes * b->place.local_size;
	int64_t available = memory_available();
	if (!available || bytes < (double)available)
		return 0;
	return err_set(e, EX_USAGE,
		"%d ranks on %s need about %s of memory (2 buffers each, and as much for MPI), "
		"but %s are free%s",
		b->place.local_size, b->place.host, text_bytes(need, bytes),
		text_bytes(has, (double)available), advice_on(ADVICE_BENCH_MEMORY));
}

/* Allocates a buffer with guards. As in OSU's benchmarks it has pages of its own, since huge pages
 * of an arena make 64 KiB 20 % faster. All pages are touched now: otherwise a broadcast of 4 KiB
 * takes 20 % longer. */
static char *allocate_host_buffer(int64_t capacity)
{
	void *p;
	if (posix_memalign(&p, PAGE, (size_t)capacity))
		die(EX_OSERR, "out of memory (%lld bytes)", (long long)capacity);
	memset(p, 0, (size_t)capacity);
	return (char *)p + VERIFY_GUARD;
}

static void allocate_in_arena(struct arena *a, int64_t capacity, char **send, char **recv)
{
	*send = (char *)arena_alloc(a, (size_t)capacity) + VERIFY_GUARD;
	*recv = (char *)arena_alloc(a, (size_t)capacity) + VERIFY_GUARD;
}

int bench_open(struct bench *b, struct comm *c, int64_t max_bytes, struct err *e)
{
	b->comm = b->home = c;
	b->place = *comm_place();
	max_bytes = max64(max_bytes, c->size * (int64_t)sizeof(double));
	check_memory(b, max_bytes, e);
	if (comm_agree(c, e))
		return -1;
	b->capacity = round_up(max_bytes + 2 * VERIFY_GUARD, PAGE);
	b->send = b->host_send = allocate_host_buffer(b->capacity);
	b->recv = b->host_recv = allocate_host_buffer(b->capacity);
	if (b->d && b->o.registered)
		comm_device_arena(
			c, b->d, &b->memory, "buffers", 2 * (size_t)b->capacity);
	else if (b->d)
		device_arena_init(b->d, &b->memory, "buffers", 2 * (size_t)b->capacity);
	if (b->d)
		allocate_in_arena(&b->memory, b->capacity, &b->send, &b->recv);
	return 0;
}

void bench_close(struct bench *b)
{
	overlap_close(b);
	if (b->d && b->o.registered)
		comm_device_arena_release(b->home, b->d, &b->memory);
	else if (b->d)
		device_arena_release(b->d, &b->memory);
	free(b->host_send - VERIFY_GUARD);
	free(b->host_recv - VERIFY_GUARD);
}

void bench_copy_to_device(struct bench *b)
{
	if (!b->d)
		return;
	device_put(b->d, b->send - VERIFY_GUARD, b->host_send - VERIFY_GUARD,
		(size_t)b->capacity);
	device_put(b->d, b->recv - VERIFY_GUARD, b->host_recv - VERIFY_GUARD,
		(size_t)b->capacity);
	device_wait(b->d);
}

void bench_copy_from_device(struct bench *b)
{
	if (!b->d)
		return;
	device_get(b->d, b->host_send - VERIFY_GUARD, b->send - VERIFY_GUARD,
		(size_t)b->capacity);
	device_get(b->d, b->host_recv - VERIFY_GUARD, b->recv - VERIFY_GUARD,
		(size_t)b->capacity);
}

int64_t bench_count_for_bytes(int what, int ranks, enum comm_type t, int64_t bytes)
{
	return max64(1, bytes / bench_bytes(what, ranks, 1, t));
}

struct coll_args bench_make_args(const struct bench *b, const struct coll_case *c)
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

void bench_call_once(struct bench *b, enum coll what, const struct coll_args *a)
{
	if (b->o.calls == CALLS_BLOCKING)
		comm_call(b->comm, what, a);
	else
		comm_run(b->comm, what, a);
}

/* Enqueues an iteration; in host memory it is complete on return. */
static void enqueue_iteration(struct bench *b, const struct coll_case *c)
{
	struct coll_args a = bench_make_args(b, c);
	struct comm_requests r = {.c = b->comm};
	bool blocking = b->o.calls == CALLS_BLOCKING;
	if (c->what >= N_COLL) {
		bench_run_messages(b, c);
		return;
	}
	for (int64_t i = 0; i < max64(1, b->o.aggregate); i++)
		if (blocking)
			comm_call(b->comm, (enum coll)c->what, &a);
		else
			comm_enqueue(&r, (enum coll)c->what, &a);
	if (!blocking)
		bench_run_requests(&r);
}

void bench_wait_for_device(struct bench *b)
{
	if (b->d)
		device_host_wait(b->d, device_stream_mark(b->d));
}

/* Captures an iteration in a CUDA graph. Returns false if a graph is not wanted or not possible. */
static bool capture_graph(struct bench *b, const struct coll_case *c)
{
	if (b->o.launch != LAUNCH_GRAPH || !comm_has_stream(b->comm) ||
		c->what >= COLL_BARRIER)
		return false;
	bool begun = device_graph_begin(b->d), all_begun = comm_min_i64(b->home, begun);
	if (all_begun)
		enqueue_iteration(b, c);
	return comm_min_i64(b->home, begun && device_graph_end(b->d) && all_begun);
}

/* Runs an iteration on this rank; is_blocking: until it is complete. */
static void run_iteration(
	struct bench *b, const struct coll_case *c, bool uses_graph, bool is_blocking)
{
	if (b->o.delay > 0)
		clock_sleep(b->o.delay); /* sleeping does not count as waiting */
	if (uses_graph)
		device_graph_launch(b->d);
	else
		enqueue_iteration(b, c);
	if (is_blocking && uses_graph)
		device_wait(b->d);
	else if (is_blocking)
		bench_wait_for_device(b);
}

void bench_average_ranks(struct bench *b, bool takes_part, double *v, int64_t n)
{
	enum bench_average average = b->o.average;
	int64_t joined = average == AVERAGE_AVG ? takes_part : 0;
	for (int64_t i = 0; i < n; i++)
		if (average == AVERAGE_RANK0 ? b->home->rank != 0 : !takes_part)
			v[i] = average == AVERAGE_MIN ? INFINITY : 0;
	comm_run(b->home, COLL_ALLREDUCE,
		&(struct coll_args){.recv = v,
			.count = n,
			.type = COMM_F64,
			.op = average == AVERAGE_MIN   ? COMM_MIN
			      : average == AVERAGE_AVG ? COMM_SUM
						       : COMM_MAX});
	if (average != AVERAGE_AVG)
		return;
	comm_sum_i64(b->home, &joined, 1);
	for (int64_t i = 0; i < n; i++)
		v[i] /= (double)joined;
}

/* Returns the collectives or messages per iteration. */
static double operations_per_iteration(const struct bench *b, int what)
{
	return (double)(what >= N_COLL ? bench_count_messages(b, what)
				       : max64(1, b->o.aggregate));
}

/* Returns space for n samples and their mean. */
static double *reserve_samples(struct bench_samples *s, int64_t n)
{
	if (s->n + n + 1 > s->capacity) {
		s->capacity = 2 * s->capacity + n + 1;
		s->seconds =
			xrealloc(s->seconds, (size_t)s->capacity * sizeof(*s->seconds));
	}
	return s->seconds + s->n;
}

void bench_samples_release(struct bench_samples *s)
{
	free(s->seconds);
	free(s->part);
	*s = (struct bench_samples){.n = 0};
}

static void synchronize_ranks(struct bench *b)
{
	struct coll_args none = {.count = 0};
	bench_call_once(b, COLL_BARRIER, &none);
}

/* Times n iterations. Sets t[i] to the seconds per collective of iteration i, t[n] to the mean. */
static void time_iterations(
	struct bench *b, const struct coll_case *c, bool uses_graph, int64_t n, double *t)
{
	bool queued = b->d && b->o.launch == LAUNCH_QUEUED;
	double n_operations = operations_per_iteration(b, c->what), sum = 0;
	double begin = clock_seconds(), last = begin;
	bool pauses = b->o.barrier && c->what < N_COLL;
	for (int64_t i = 0; i < n; i++) {
		run_iteration(b, c, uses_graph, !queued);
		double now = clock_seconds();
		t[i] = (now - last) / n_operations;
		sum += t[i];
		last = now;
		if (pauses) {
			synchronize_ranks(b);
			last = clock_seconds();
		}
	}
	bench_wait_for_device(b);
	t[n] = pauses ? sum / (double)n
		      : (clock_seconds() - begin) / (n_operations * (double)n);
}

/* Returns the seconds that this thread was ready to run without a processor, the second word of
 * Linux's schedstat; 0 if the system does not have it. */
static double waited_seconds(void)
{
	long long ran, waited;
	char text[64] = "";
	int fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : pread(fd, text, sizeof(text) - 1, 0);
	if (fd >= 0)
		close(fd);
	return n > 0 && sscanf(text, "%lld %lld", &ran, &waited) == 2
		       ? 1e-9 * (double)waited
		       : 0;
}

/* Returns true if any rank waited for a processor for more than a quarter of the time. Then most
 * iterations are slow. Ranks wait either this long or hardly at all. Collective over `home`. */
static bool any_rank_waited(struct bench *b, double waited, double seconds)
{
	const double much = 0.25;
	return comm_max_i64(b->home, waited > much * seconds);
}

/* Divides n times t[] with mean t[n] into parts and appends them. Returns their number. */
static int64_t append_parts(
	struct bench *b, struct bench_samples *s, const double *t, int64_t n)
{
	enum { PARTS = 8 };
	bool queued = b->d && b->o.launch == LAUNCH_QUEUED;
	int64_t n_parts = queued ? 1 : min64(n, ceil_div(PARTS, max64(1, b->o.passes)));
	s->part = xrealloc(s->part, (size_t)(s->n_parts + n_parts) * sizeof(*s->part));
	for (int64_t i = 0; i < n_parts; i++) {
		int64_t begin = part_begin(n, n_parts, i),
			end = part_begin(n, n_parts, i + 1);
		s->part[s->n_parts++] = (struct bench_part){
			.seconds = queued ? t[n] : bench_median(t + begin, end - begin),
			.iters = end - begin};
	}
	return n_parts;
}

/* Times n iterations into *s. Returns the mean seconds of a collective. Collective over `home`. */
static double time_batch(struct bench *b, const struct coll_case *c, bool uses_graph,
	int64_t n, struct bench_samples *s)
{
	bool takes_part = bench_takes_part(b, c->what);
	double *t = reserve_samples(s, n);
	comm_barrier(b->home);
	memset(t, 0, (size_t)(n + 1) * sizeof(*t));
	double before = waited_seconds(), begin = clock_seconds();
	if (takes_part)
		time_iterations(b, c, uses_graph, n, t);
	double seconds = clock_seconds() - begin;
	bool has_waited = any_rank_waited(b, waited_seconds() - before, seconds);
	int64_t n_parts = append_parts(b, s, t, n);
	for (int64_t i = s->n_parts - n_parts; i < s->n_parts; i++) {
		bench_average_ranks(b, takes_part, &s->part[i].seconds, 1);
		s->part[i].waited = has_waited;
	}
	bench_average_ranks(b, takes_part, t, n + 1);
	s->total += t[n] * (double)n;
	s->iters += n;
	double mean = t[n];
	if (!b->d || b->o.launch != LAUNCH_QUEUED)
		s->n += n;
	return mean;
}

/* Times batches for --seconds, each at most 4 times as long as the previous one. Returns the mean
 * seconds of a collective in the last one. */
static double time_for_seconds(struct bench *b, const struct coll_case *c,
	bool uses_graph, struct bench_samples *s)
{
	enum { GROWTH = 4, MAX_ITERS = 1 << 20 };
	double spent = 0, mean = 0, n_operations = operations_per_iteration(b, c->what);
	int64_t n = 1, done = 0;
	while (spent < b->o.seconds && done < MAX_ITERS) {
		mean = time_batch(b, c, uses_graph, n, s);
		done += n;
		spent += mean * n_operations * (double)n;
		double left = (b->o.seconds - spent) / (mean * n_operations);
		if (!(left < (double)(GROWTH * n)))
			n = GROWTH * n;
		else
			n = max64(1, (int64_t)left);
		n = min64(n, MAX_ITERS - done);
	}
	return mean;
}

/* Fills the buffers with zeros: repeated multiplication of other values gives denormal numbers,
 * which are slow. */
static void zero_buffers(struct bench *b, const struct coll_case *c)
{
	size_t n_bytes = (size_t)bench_bytes(c->what, b->comm->size, c->count, c->type);
	memset(b->host_send, 0, n_bytes);
	memset(b->host_recv, 0, n_bytes);
	bench_copy_to_device(b);
}

void bench_measure(struct bench *b, const struct coll_case *c, struct bench_samples *s)
{
	bool takes_part = bench_takes_part(b, c->what), uses_graph = false;
	int64_t before = s->iters;
	if (takes_part) {
		zero_buffers(b, c);
		run_iteration(
			b, c, false, true); /* makes connections, before a capture */
		uses_graph = capture_graph(b, c);
	}
	for (int64_t i = 0; i < b->o.warmup && takes_part; i++)
		run_iteration(b, c, uses_graph, true);
	double mean = b->o.seconds > 0 ? time_for_seconds(b, c, uses_graph, s)
				       : time_batch(b, c, uses_graph, b->o.iters, s);
	if (b->o.overlap && c->what < COLL_BARRIER)
		overlap_measure(b, c, mean, s->iters - before, s);
}
