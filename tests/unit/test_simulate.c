/* comm: the simulated time of planned groups, against timelines computed by hand. */
#include "comm/simulate.h"
#include "tests/support/support.h"

#include <string.h>

/* In seconds and bytes: a link within a host moves 1000 bytes in a second, after one second; the
 * network 100, after two. */
static const struct simulated_links links = {
	.link = {{1000, 1}, {100, 2}}, .host_ranks = 4};

static double computed;

/* Rank 0 of a planned group of consecutive ranks. */
static struct comm *group(const char *name, int size, int step)
{
	int ranks[16];
	for (int r = 0; r < size; r++)
		ranks[r] = r * step;
	struct comm *c = comm_planned(name, 0, size, false);
	simulate_group(c, ranks);
	return c;
}

static void begin(void)
{
	computed = 100; /* what was computed before does not count */
	simulate_begin(&links, &computed);
}

/* A set that sends n_bytes to a rank and receives as many. */
static struct comm_requests exchange(struct comm *c, int peer, int64_t n_bytes)
{
	struct comm_requests r = {.c = c};
	comm_send(&r, NULL, n_bytes, peer, TAG_GATHER);
	comm_recv(&r, NULL, n_bytes, peer, TAG_GATHER);
	comm_start(&r);
	return r;
}

static double exposed(const char *group_name)
{
	int n;
	double sum = 0;
	const struct simulated_row *row = simulate_rows(&n);
	for (int i = 0; i < n; i++)
		sum += strcmp(row[i].group, group_name) ? 0 : row[i].exposed;
	return sum;
}

#define TOLERANCE 1e-9

/* a: [0, 3), hidden by 5 seconds. b: [5, 10), and behind it c: [10, 12), of which 6 are hidden. */
TEST(operations_of_a_group_follow_each_other)
{
	begin();
	struct comm *c = group("fsdp", 2, 1);
	struct comm_requests a = exchange(c, 1, 2000);
	computed += 5;
	comm_wait(&a);
	assert_near(simulate_now(), 5, TOLERANCE);
	struct comm_requests b = exchange(c, 1, 4000);
	computed += 2;
	struct comm_requests d = exchange(c, 1, 1000);
	computed += 4;
	comm_wait(&b);
	assert_near(simulate_now(), 11, TOLERANCE);
	assert_near(exposed("fsdp"), 0, TOLERANCE);
	comm_wait(&d);
	assert_near(simulate_now(), 12, TOLERANCE);
	assert_near(exposed("fsdp"), 1, TOLERANCE);
	int n;
	const struct simulated_row *row = simulate_rows(&n);
	assert_int_equal(n, 1);
	assert_string_equal(row->name, "gather");
	assert_int_equal(row->n[TRANSFER_OUT], 3);
	assert_near(row->bytes[TRANSFER_IN], 7000, 0);
	assert_near(row->seconds[TRANSFER_OUT], 10, TOLERANCE);
	comm_free(c);
	simulate_end();
}

/* Both need the link after a second: a has 1000 bytes and half of the rate, [0, 3); b then has 2000 of
 * its 3000 left, [0, 5). The network of c is another link: [0, 4). */
TEST(groups_share_links)
{
	begin();
	struct comm *near = group("tp", 2, 1), *other = group("fsdp", 2, 1);
	struct comm *far = group("dp", 2, 4);
	struct comm_requests a = exchange(near, 1, 1000), b = exchange(other, 1, 3000);
	struct comm_requests c = exchange(far, 1, 200);
	comm_wait(&a);
	assert_near(simulate_now(), 3, TOLERANCE);
	comm_wait(&c);
	assert_near(simulate_now(), 4, TOLERANCE);
	comm_wait(&b);
	assert_near(simulate_now(), 5, TOLERANCE);
	assert_near(exposed("tp"), 3, TOLERANCE);
	assert_near(exposed("dp"), 1, TOLERANCE);
	assert_near(exposed("fsdp"), 1, TOLERANCE);
	comm_free(near);
	comm_free(other);
	comm_free(far);
	simulate_end();
}

/* Sets that are started together have one latency, and the directions are independent. */
TEST(launches)
{
	begin();
	struct comm *c = group("tp", 4, 1);
	struct comm_requests a = {.c = c}, b = {.c = c};
	comm_recv(&a, NULL, 1000, 1, TAG_SLICES);
	comm_start(&a);
	comm_recv(&b, NULL, 2000, 2, TAG_SLICES);
	comm_start(&b);
	comm_send(&a, NULL, 5000, 1, TAG_SLICES);
	comm_start(&a);
	comm_wait_received(&a);
	assert_near(simulate_now(), 2, TOLERANCE);
	comm_wait_received(&b);
	assert_near(simulate_now(), 4, TOLERANCE);
	comm_wait(&a);
	assert_near(simulate_now(), 6, TOLERANCE);
	struct comm_requests d = exchange(c, 1, 1000);
	simulate_launch(c);
	struct comm_requests e = exchange(c, 1, 1000);
	comm_wait(&d);
	assert_near(simulate_now(), 8, TOLERANCE);
	comm_wait(&e);
	assert_near(simulate_now(), 10, TOLERANCE);
	comm_free(c);
	simulate_end();
}

/* The sum of replicas begins when that of shards is complete, and nobody waits for that. */
TEST(chains)
{
	begin();
	struct comm *shards = group("fsdp", 2, 1), *replicas = group("dp", 2, 1);
	struct comm_requests a = exchange(shards, 1, 2000);
	simulate_chain(true);
	comm_wait(&a);
	struct comm_requests b = exchange(replicas, 1, 4000);
	simulate_chain(false);
	assert_near(simulate_now(), 0, TOLERANCE);
	computed += 6;
	comm_wait(&b); /* [3, 8) */
	assert_near(simulate_now(), 8, TOLERANCE);
	assert_near(exposed("fsdp"), 0, TOLERANCE);
	assert_near(exposed("dp"), 2, TOLERANCE);
	comm_free(shards);
	comm_free(replicas);
	simulate_end();
}

/* What is sent is complete before computation continues; a receive may be posted early. */
TEST(without_overlap)
{
	begin();
	comm_plan_overlap(false);
	struct comm *c = group("fsdp", 2, 1);
	struct comm_requests early = {.c = c};
	comm_recv(&early, NULL, 1000, 1, TAG_RING_SUMS);
	comm_start(&early);
	computed += 10;
	assert_near(simulate_now(), 10, TOLERANCE);
	struct comm_requests a = exchange(c, 1, 2000);
	assert_near(simulate_now(), 10, TOLERANCE);
	computed += 5;
	assert_near(simulate_now(), 18, TOLERANCE);
	assert_near(exposed("fsdp"), 3, TOLERANCE);
	comm_wait(&a);
	comm_wait(&early);
	assert_near(simulate_now(), 18, TOLERANCE);
	comm_plan_overlap(true);
	comm_free(c);
	simulate_end();
}

/* Of 8 ranks on two hosts, 3 others are on this one: 3 x 1000 bytes within the host, 4 x 1000 to the
 * other one. */
TEST(hosts)
{
	computed = 0;
	simulate_begin(&links, &computed);
	struct comm *c = group("fsdp", 8, 1);
	struct comm_requests r = {.c = c};
	for (int peer = 1; peer < 8; peer++)
		comm_send(&r, NULL, 1000, peer, TAG_GATHER);
	comm_start(&r);
	comm_wait(&r);
	assert_near(simulate_now(), 2 + 40, TOLERANCE);
	int n;
	assert_near(simulate_rows(&n)->bytes[TRANSFER_OUT], 7000, 0);
	comm_free(c);
	simulate_end();
}

/* An all-reduce of 800 bytes: 7/4 of them, of which every rank of a host sends a quarter to the other one;
 * two levels of a tree within a host and one between hosts, up and down. */
TEST(collectives)
{
	int64_t v[100] = {0};
	begin();
	struct comm *c = group("world", 8, 1), *alone = group("alone", 1, 1);
	comm_sum_i64(c, v, 100);
	assert_near(simulate_now(), 2 * (2 * 1 + 1 * 2) + 1400 / 4 / 100., TOLERANCE);
	comm_sum_i64(alone, v, 100);
	assert_near(exposed("alone"), 0, 0);
	assert_near(simulate_now(), 8 + 3.5, TOLERANCE);
	comm_free(c);
	comm_free(alone);
	simulate_end();
}

/* Transfers between stages are counted; that is all. */
TEST(pipelines)
{
	int n;
	begin();
	struct comm *c = group("pp", 2, 4);
	struct comm_requests r = {.c = c};
	comm_send(&r, NULL, 300, 1, COMM_TAG(PIPELINE, 1));
	comm_start(&r);
	comm_wait(&r);
	assert_near(simulate_now(), 0, 0);
	assert_near(simulate_rows(&n)->seconds[TRANSFER_OUT], 5, TOLERANCE);
	comm_free(c);
	simulate_end();
}
