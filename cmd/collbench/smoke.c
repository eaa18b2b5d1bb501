/* The smoke test: checks in about a second that ranks, hosts and libraries work together. */
#include "base/launch.h"
#include "collbench/bench_internal.h"
#include "comm/requests.h"

#include <math.h>
#include <signal.h>
#include <unistd.h>

enum { TIMEOUT_SECONDS = 30 };

static const char *volatile phase = "MPI to start";
static char timeout_text[80];

static void write_text(const char *s)
{
	if (write(STDERR_FILENO, s, strlen(s)) < 0)
		return; /* standard error is closed */
}

/* Prints what this rank waits for, and exits. Calls only async-signal-safe functions. */
static void on_timeout(int sig)
{
	(void)sig;
	write_text(timeout_text);
	write_text(phase);
	write_text("\n");
	_exit(EX_FAILED);
}

void smoke_start_timeout(const char *program)
{
	struct sigaction a = {.sa_handler = on_timeout};
	snprintf(timeout_text, sizeof(timeout_text),
		"%s: rank %d: timeout while waiting for ", program, launch_rank());
	sigaction(SIGALRM, &a, NULL);
	alarm(TIMEOUT_SECONDS);
}

struct peer *peers_gather(struct comm *world, const char *libraries)
{
	struct peer own = {.pid = getpid()};
	struct peer *all = xcalloc((size_t)world->size, sizeof(*all));
	const struct comm_place *place = comm_place();
	snprintf(own.host, sizeof(own.host), "%s", place->host);
	snprintf(own.libraries, sizeof(own.libraries), "%s", libraries);
	comm_allgather(world, &own, all, sizeof(own));
	return all;
}

/* Prints OK or FAIL and a text on rank 0. Returns is_good, which is equal on all ranks. */
static bool report_check(const struct comm *c, bool is_good, const char *fmt, ...)
	PRINTF(3, 4);
/* Prints OK or FAIL and the text as a line, on rank 0. Returns is_good. */
static bool report_check(const struct comm *c, bool is_good, const char *fmt, ...)
{
	va_list ap;
	if (c->rank)
		return is_good;
	printf("%-4s ", is_good ? "OK" : "FAIL");
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
	return is_good;
}

/* Prints a line per host, in the order of their first ranks. */
static bool print_hosts(const struct comm *c, const struct peer *p)
{
	int n_hosts = 0;
	scoped_str line = {0};
	for (int first = 0; first < c->size; first++) {
		bool is_listed = false;
		for (int r = 0; r < first && !is_listed; r++)
			is_listed = !strcmp(p[r].host, p[first].host);
		if (is_listed)
			continue;
		n_hosts++;
		str_clear(&line);
		for (int r = first; r < c->size; r++)
			if (!strcmp(p[r].host, p[first].host))
				str_printf(&line, " %d", r);
		report_check(c, true, "host %s: ranks%s", p[first].host, line.s);
	}
	return report_check(c, true, "hosts: %d", n_hosts);
}

/* Checks that all ranks have the libraries of rank 0, and prints those that differ. */
static bool check_libraries(const struct comm *c, const struct peer *p)
{
	bool is_same = true;
	for (int r = 1; r < c->size; r++)
		if (strcmp(p[r].libraries, p->libraries))
			is_same = report_check(c, false, "rank %d on %s has %s", r,
				p[r].host, p[r].libraries);
	return report_check(c, is_same, "libraries: %s%s", p->libraries,
		is_same ? ", on all ranks" : " on rank 0");
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
			r = bench_not_measured;
			c.count = bench_count_for_bytes(
				what, b->comm->size, c.type, sizes[i]);
			bench_check(b, &c, &r);
			wrong += r.wrong;
			runs++;
		}
	}
	return report_check(b->comm, !wrong, "%s: %d runs, %lld wrong elements",
		info->name, runs, (long long)wrong);
}

/* Checks each wanted collective, and prints a line for each. Returns true if all are
 * right. Collective. */
static bool check_collectives(
	struct comm *c, const bool wanted[N_BENCH], const struct bench_fault *fault)
{
	struct bench b = {.o.checks = 1, .fault = *fault};
	struct err e = {0};
	if (bench_open(&b, c, 1 << 20, &e))
		return report_check(c, false, "%s", e.msg);
	bool is_good = true;
	for (int i = 0; i < N_COLL; i++)
		if (wanted[i])
			is_good &= check_collective(&b, (enum coll)i);
	bench_close(&b);
	return is_good;
}

static void send_or_receive(struct comm *c, bool is_sender, int peer, int64_t *message)
{
	struct comm_requests r = {.c = c};
	if (is_sender)
		comm_send(&r, message, sizeof(*message), peer, TAG_TEST);
	else
		comm_recv(&r, message, sizeof(*message), peer, TAG_TEST);
	bench_run_requests(&r);
}

/* Returns the mean seconds of n round trips of 8 bytes; on the leader, NaN if the bytes were
 * wrong. Only ranks `leader` and `peer` call it. */
static double time_round_trips(struct comm *c, int leader, int peer, int64_t n)
{
	enum { WARM = 8 };
	double begin = 0;
	bool is_leader = c->rank == leader, is_same = true;
	for (int64_t i = -WARM; i < n; i++) {
		int64_t message = i;
		if (i == 0)
			begin = clock_seconds();
		send_or_receive(c, is_leader, is_leader ? peer : leader, &message);
		message = is_leader ? ~i : message;
		send_or_receive(c, !is_leader, is_leader ? peer : leader, &message);
		is_same = is_same && message == i;
	}
	return is_same ? (clock_seconds() - begin) / (double)n : NAN;
}

/* Seconds of the round trips of all pairs on one host, or of all pairs on different hosts. */
struct trips {
	double min, max, sum;
	int n, n_bad, slow[2]; /* pairs; pairs with wrong bytes; the slowest pair */
};

/* Adds the round trip of ranks a and b to *t. seconds: NAN if its data were wrong. */
static void add_trip(struct trips *t, double seconds, int a, int b)
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

/* Times round trips between each rank r and ranks r + 1, r + 2, r + 4, ...: n log n pairs. */
static bool check_round_trips(struct comm *c, const struct peer *p)
{
	enum { MAX_DISTANCES = 31, TRIPS = 50 };
	double own[MAX_DISTANCES] = {0};
	struct trips kinds[2] = {{0}};
	phase = "a message between two ranks";
	for (int d = 0; 1 << d < c->size; d++)
		for (int r = 0; r < c->size; r++) {
			int other = (r + (1 << d)) % c->size;
			if (c->rank == r)
				own[d] = time_round_trips(c, r, other, TRIPS);
			else if (c->rank == other)
				time_round_trips(c, r, other, TRIPS);
		}
	scoped_ptr double *all = xcalloc((size_t)c->size, sizeof(own));
	comm_allgather(c, own, all, sizeof(own));
	for (int d = 0; 1 << d < c->size; d++)
		for (int r = 0; r < c->size; r++) {
			int other = (r + (1 << d)) % c->size;
			bool far = strcmp(p[r].host, p[other].host) != 0;
			add_trip(&kinds[far], all[r * MAX_DISTANCES + d], r, other);
		}
	bool is_good = true;
	for (int far = 0; far < 2; far++) {
		const struct trips *t = &kinds[far];
		if (t->n)
			is_good &= report_check(c, !t->n_bad,
				"round trip of 8 bytes %s: min %.2f, mean %.2f, max %.2f "
				"us (ranks %d and %d), %d pairs, %d wrong",
				far ? "between hosts" : "on a host", 1e6 * t->min,
				1e6 * t->sum / t->n, 1e6 * t->max, t->slow[0], t->slow[1],
				t->n, t->n_bad);
	}
	return is_good;
}

/* Checks the gradient of a training step of all ranks, and prints a line. Collective. */
static bool check_step(struct comm *c, const struct bench_fault *fault)
{
	phase = "the gradient of a training step";
	int64_t wrong = step_count_wrong(c, fault);
	return report_check(c, !wrong,
		"training step: gradient compared with one rank's, %lld wrong values%s",
		(long long)wrong,
		wrong ? "; do all ranks have the same kind of processor?" : "");
}

int smoke_run(struct comm *world, const struct peer *peers, const bool wanted[N_BENCH],
	const struct bench_fault *fault)
{
	phase = "the other ranks";
	bool is_good = report_check(world, true, "ranks: %d", world->size);
	is_good &= print_hosts(world, peers);
	is_good &= check_libraries(world, peers);
	is_good &= check_collectives(world, wanted, fault);
	is_good &= check_step(world, fault);
	is_good &= check_round_trips(world, peers);
	alarm(0);
	report_check(world, is_good, "%s",
		is_good ? "all checks passed"
			: "a check failed; see the lines with FAIL above");
	return is_good ? 0 : EX_FAILED;
}
