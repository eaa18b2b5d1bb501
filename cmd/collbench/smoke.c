/* The smoke test: checks in about a second that ranks, hosts and libraries work together. */
#include "base/launch.h"
#include "collbench/bench_internal.h"
#include "comm/requests.h"

#include <math.h>
#include <signal.h>
#include <unistd.h>

enum { TIMEOUT_SECONDS = 30 };

/* ---- timeout --------------------------------------------------------------------- */

static const char *volatile phase = "MPI to start";
static char timeout_text[80];

static void write_text(const char *s)
{
	if (write(STDERR_FILENO, s, strlen(s)) < 0)
		return; /* standard error is closed */
}

/* Calls only async-signal-safe functions. */
static void on_timeout(int sig)
{
	(void)sig;
	write_text(timeout_text);
	write_text(phase);
	write_text("\n");
	_exit(EX_FAILED);
}

void smoke_watch(const char *program)
{
	struct sigaction a = {.sa_handler = on_timeout};
	snprintf(timeout_text, sizeof(timeout_text), "%s: rank %d: gave up waiting for ",
		program, launch_rank());
	sigaction(SIGALRM, &a, NULL);
	alarm(TIMEOUT_SECONDS);
}

/* ---- checks ---------------------------------------------------------------------- */

struct peer *peers_gather(struct comm *world, const char *libraries)
{
	struct peer mine = {.pid = getpid()};
	struct peer *all = xcalloc((size_t)world->size, sizeof(*all));
	const struct comm_place *place = comm_place();
	snprintf(mine.host, sizeof(mine.host), "%s", place->host);
	snprintf(mine.libraries, sizeof(mine.libraries), "%s", libraries);
	comm_allgather(world, &mine, all, sizeof(mine));
	return all;
}

/* Prints a line on rank 0. Returns `good`, which is equal on all ranks. */
static bool verdict(const struct comm *c, bool good, const char *fmt, ...) PRINTF(3, 4);
static bool verdict(const struct comm *c, bool good, const char *fmt, ...)
{
	va_list ap;
	if (c->rank)
		return good;
	printf("%-4s ", good ? "OK" : "FAIL");
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
	return good;
}

/* Prints a line per host, in the order of their first ranks. */
static bool check_hosts(const struct comm *c, const struct peer *p)
{
	int n_hosts = 0;
	scoped_str line = {0};
	for (int first = 0; first < c->size; first++) {
		bool seen = false;
		for (int r = 0; r < first && !seen; r++)
			seen = !strcmp(p[r].host, p[first].host);
		if (seen)
			continue;
		n_hosts++;
		str_clear(&line);
		for (int r = first; r < c->size; r++)
			if (!strcmp(p[r].host, p[first].host))
				str_printf(&line, " %d", r);
		verdict(c, true, "host %s: ranks%s", p[first].host, line.s);
	}
	return verdict(c, true, "hosts: %d", n_hosts);
}

static bool check_libraries(const struct comm *c, const struct peer *p)
{
	bool same = true;
	for (int r = 1; r < c->size; r++)
		if (strcmp(p[r].libraries, p->libraries))
			same = verdict(c, false, "rank %d on %s has %s", r, p[r].host,
				p[r].libraries);
	return verdict(c, same, "libraries: %s%s", p->libraries,
		same ? ", on all ranks" : " on rank 0");
}

/* Checks a collective with three sizes, in and out of place, from the first and the last root. */
static bool check_collective(struct bench *b, enum coll what)
{
	static const int64_t sizes[] = {1, 1000, 100000};
	const struct coll_info *info = &coll_table[what];
	struct coll_case c = {.what = what, .type = COMM_F32, .op = COMM_SUM};
	int last = info->has_root ? b->comm->size - 1 : 0;
	int64_t wrong = 0;
	int runs = 0;
	phase = info->name;
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		for (int p = 0; p < N_COLL_PLACES; p++) {
			struct bench_result r;
			if (!info->has_place[p])
				continue;
			c.place = (enum coll_place)p;
			c.root = i % 2 ? last : 0;
			r = bench_nothing;
			c.count = bench_count(what, b->comm->size, c.type, sizes[i]);
			bench_check(b, &c, &r);
			wrong += r.wrong;
			runs++;
		}
	}
	return verdict(b->comm, !wrong, "%s: %d runs, %lld wrong elements", info->name,
		runs, (long long)wrong);
}

static bool check_collectives(
	struct comm *c, const bool wanted[N_BENCH], const struct bench_fault *fault)
{
	struct bench b = {.o.checks = 1, .fault = *fault};
	struct err e = {0};
	if (bench_open(&b, c, 1 << 20, &e))
		return verdict(c, false, "%s", e.msg);
	bool good = true;
	for (int i = 0; i < N_COLL; i++)
		if (wanted[i])
			good &= check_collective(&b, (enum coll)i);
	bench_close(&b);
	return good;
}

/* ---- round trips ----------------------------------------------------------------- */

/* Sends the ball to a rank, or receives it. */
static void pass(struct comm *c, bool sends, int other, int64_t *ball)
{
	struct comm_requests r = {.c = c};
	if (sends)
		comm_send(&r, ball, sizeof(*ball), other, TAG_TEST);
	else
		comm_recv(&r, ball, sizeof(*ball), other, TAG_TEST);
	bench_finish(&r);
}

/* Returns the mean seconds of n round trips of 8 bytes, on the leader; NaN if the bytes were
 * wrong. Only ranks `leader` and `other` call it. */
static double round_trip(struct comm *c, int leader, int other, int64_t n)
{
	enum { WARM = 8 };
	double begin = 0;
	bool leads = c->rank == leader, same = true;
	for (int64_t i = -WARM; i < n; i++) {
		int64_t ball = i;
		if (i == 0)
			begin = clock_seconds();
		pass(c, leads, leads ? other : leader, &ball);
		ball = leads ? ~i : ball;
		pass(c, !leads, leads ? other : leader, &ball);
		same = same && ball == i;
	}
	return same ? (clock_seconds() - begin) / (double)n : NAN;
}

/* Round trips of the pairs on one host, or of the pairs on different hosts. */
struct trips {
	double min, max, sum;
	int n, n_bad, slow[2];
};

static void trips_add(struct trips *t, double seconds, int a, int b)
{
	t->n++;
	t->n_bad += isnan(seconds);
	if (isnan(seconds))
		return;
	t->sum += seconds;
	if (t->n == 1 || seconds < t->min)
		t->min = seconds;
	if (seconds >= t->max) {
		t->max = seconds;
		t->slow[0] = a, t->slow[1] = b;
	}
}

/* Measures the pairs (r, r + 1), (r, r + 2), (r, r + 4), ... of each rank r: n log n pairs, with
 * all pairs of four ranks, and all links of a ring. */
static bool check_round_trips(struct comm *c, const struct peer *p)
{
	enum { MAX_DISTANCES = 31, TRIPS = 50 };
	double mine[MAX_DISTANCES] = {0};
	struct trips kinds[2] = {{0}};
	phase = "a message between two ranks";
	for (int d = 0; 1 << d < c->size; d++)
		for (int r = 0; r < c->size; r++) {
			int other = (r + (1 << d)) % c->size;
			if (c->rank == r)
				mine[d] = round_trip(c, r, other, TRIPS);
			else if (c->rank == other)
				round_trip(c, r, other, TRIPS);
		}
	scoped_ptr double *all = xcalloc((size_t)c->size, sizeof(mine));
	comm_allgather(c, mine, all, sizeof(mine));
	for (int d = 0; 1 << d < c->size; d++)
		for (int r = 0; r < c->size; r++) {
			int other = (r + (1 << d)) % c->size;
			bool far = strcmp(p[r].host, p[other].host) != 0;
			trips_add(&kinds[far], all[r * MAX_DISTANCES + d], r, other);
		}
	bool good = true;
	for (int far = 0; far < 2; far++) {
		const struct trips *t = &kinds[far];
		if (t->n)
			good &= verdict(c, !t->n_bad,
				"round trip of 8 bytes %s: min %.2f, mean %.2f, max %.2f "
				"us (ranks %d and %d), %d pairs, %d wrong",
				far ? "between hosts" : "on a host", 1e6 * t->min,
				1e6 * t->sum / t->n, 1e6 * t->max, t->slow[0], t->slow[1],
				t->n, t->n_bad);
	}
	return good;
}

static bool check_step(struct comm *c, const struct bench_fault *fault)
{
	phase = "the gradient of a training step";
	int64_t wrong = step_count_wrong(c, fault);
	return verdict(c, !wrong,
		"training step: gradient compared with one rank's, %lld wrong values%s",
		(long long)wrong,
		wrong ? "; do all ranks have the same kind of processor?" : "");
}

int smoke_run(struct comm *world, const struct peer *peers, const bool wanted[N_BENCH],
	const struct bench_fault *fault)
{
	phase = "the other ranks";
	bool good = verdict(world, true, "ranks: %d", world->size);
	good &= check_hosts(world, peers);
	good &= check_libraries(world, peers);
	good &= check_collectives(world, wanted, fault);
	good &= check_step(world, fault);
	good &= check_round_trips(world, peers);
	alarm(0);
	verdict(world, good, "%s",
		good ? "all is well" : "something is wrong: see above");
	return good ? 0 : EX_FAILED;
}
