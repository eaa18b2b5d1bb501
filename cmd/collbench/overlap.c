/* Overlap of communication and computation, as in OSU's micro-benchmarks of nonblocking
 * collectives: a rank starts a collective, computes for as long as the collective takes alone,
 * and then waits for it.
 *
 * A CPU computes for that time, and calls comm_test() `polls` times, as pt-train does between
 * layers; these calls do not count as computation. A GPU adds vectors in the current stream,
 * while NCCL has its own stream. */
#include "collbench/bench_internal.h"

#include "kernels/kernels.h"

enum { FLOATS = 1 << 16 };

struct bench_load {
	float *x;	/* [3 * FLOATS], device or host memory */
	double seconds; /* time of one addition on the device */
};

static void add_vectors(struct bench *b, int64_t n)
{
	float *x = b->load->x;
	for (int64_t i = 0; i < n; i++)
		b->d->k->add(b->d, mat(x, 1, FLOATS), mat(x + FLOATS, 1, FLOATS),
			mat(x + 2 * FLOATS, 1, FLOATS));
}

/* Measures the mean seconds of an addition on the device. */
static void measure_addition(struct bench *b)
{
	enum { WARM = 10, TIMED = 200 };
	add_vectors(b, WARM);
	device_wait(b->d);
	double begin = clock_seconds();
	add_vectors(b, TIMED);
	device_wait(b->d);
	b->load->seconds = (clock_seconds() - begin) / TIMED;
}

/* Allocates the computation that overlaps with collectives; on a device also measures it.
 * Exits if memory is short. */
static void create_load(struct bench *b)
{
	size_t n_bytes = 3 * FLOATS * sizeof(float);
	b->load = xcalloc(1, sizeof(*b->load));
	b->load->x = b->d ? device_alloc(b->d, n_bytes) : xcalloc(n_bytes, 1);
	if (!b->load->x)
		die(EX_FAILED, "out of memory on the device");
	if (b->d)
		measure_addition(b);
}

void overlap_close(struct bench *b)
{
	if (!b->load)
		return;
	if (b->d)
		device_free(b->d, b->load->x, 3 * FLOATS * sizeof(float));
	else
		free(b->load->x);
	free(b->load);
	b->load = NULL;
}

/* Keeps the processor busy for so many seconds, with arithmetic on x[64]. */
static void compute_on_host(float *x, double seconds)
{
	enum { ROUND = 64 };
	double begin = clock_seconds();
	while (clock_seconds() - begin < seconds)
		for (int i = 0; i < ROUND; i++)
			x[i] = x[i] * 0.999f + 1;
}

/* Computes for `seconds`, testing r on a CPU. Returns the seconds computed; 0 on a device. */
static double compute(struct bench *b, struct comm_requests *r, double seconds)
{
	double n_slices = (double)(b->o.polls + 1), seconds_in_test = 0,
	       begin = clock_seconds();
	if (b->d) {
		add_vectors(b, (int64_t)(seconds / b->load->seconds) + 1);
		return 0;
	}
	for (int64_t i = 0; i <= b->o.polls; i++) {
		compute_on_host(b->load->x, seconds / n_slices);
		double now = clock_seconds();
		if (i < b->o.polls)
			comm_test(r);
		seconds_in_test += clock_seconds() - now;
	}
	return clock_seconds() - begin - seconds_in_test;
}

/* Repeats the device's computation of an overlapped iteration, sized for `seconds`. Returns the
 * seconds that it took without communication. */
static double compute_alone(struct bench *b, double seconds)
{
	struct comm_requests none = {.c = b->comm};
	double begin = clock_seconds();
	compute(b, &none, seconds);
	bench_wait_for_device(b);
	return clock_seconds() - begin;
}

/* Times a collective during `alone` seconds of computation: t[0] both, t[1] computation. */
static void time_overlapped_iteration(
	struct bench *b, const struct coll_case *c, double alone, double t[2])
{
	struct comm_requests r = {.c = b->comm};
	struct coll_args a = bench_make_args(b, c);
	double begin = clock_seconds();
	for (int64_t i = 0; i < max64(1, b->o.aggregate); i++)
		comm_enqueue(&r, (enum coll)c->what, &a);
	comm_start(&r);
	t[1] = compute(b, &r, alone);
	comm_wait(&r);
	bench_wait_for_device(b);
	t[0] = clock_seconds() - begin;
	comm_requests_release(&r);
	if (b->d)
		t[1] = compute_alone(b, alone);
}

void overlap_measure(struct bench *b, const struct coll_case *c, double alone,
	int64_t iters, struct bench_samples *s)
{
	enum { WARM = 2 };
	bool takes_part = bench_takes_part(b, c->what);
	double sums[2] = {0}, n_collectives = (double)max64(1, b->o.aggregate);
	if (!b->load)
		create_load(b);
	comm_barrier(b->home);
	for (int64_t i = -WARM; i < iters && takes_part; i++) {
		double t[2];
		time_overlapped_iteration(b, c, alone * n_collectives, t);
		sums[0] += i >= 0 ? t[0] / n_collectives : 0;
		sums[1] += i >= 0 ? t[1] / n_collectives : 0;
	}
	bench_average_ranks(b, takes_part, sums, 2);
	s->overall += sums[0];
	s->compute += sums[1];
	s->n_overlapped += iters;
}
