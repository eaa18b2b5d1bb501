/* comm, with NCCL between GPUs, which are emulated: results, and what the emulation finds. With an
 * argument, the program makes that mistake.
 * ranks: 2
 * device: cuda
 */
#include "kernels/kernels.h"
#include "comm/sum.h"
#include "tests/support/ranks.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { N = 1 << 16 };
static struct device device;
static struct arena arena;
static float *buffer[4]; /* of N floats, on the device */

static void open_device(void)
{
	struct err e = {0};
	const struct comm_place *place = comm_place();
	const struct device_options o = {.exact = true,
		.ranks = place->local_size,
		.rank = place->local_rank,
		.sharers = comm_gpu_sharers(world)};
	char host[16];
	/* For real GPUs, of which there may be one only. */
	snprintf(host, sizeof(host), "r%d", world->rank);
	setenv("NCCL_HOSTID", host, 0);
	if (device_open(&device, DEVICE_CUDA, &o, &e) ||
		comm_device_open(world, &device, COMM_NCCL, &e))
		die_err(&e);
	device_arena_init(&device, &arena, "buffers", 4 * N * sizeof(float));
	for (int i = 0; i < 4; i++)
		buffer[i] = arena_floats(&arena, N);
}

static void close_device(void)
{
	device_arena_release(&device, &arena);
	comm_device_close();
	device_close(&device);
}

/* Float i is first + i. */
static void fill(float *at, float first, int64_t n)
{
	float *x = xcalloc((size_t)n, sizeof(*x));
	for (int64_t i = 0; i < n; i++)
		x[i] = first + (float)i;
	device_put(&device, at, x, (size_t)n * sizeof(*x));
	free(x);
}

static bool has(const float *at, float first, int64_t n)
{
	float *x = xcalloc((size_t)n, sizeof(*x));
	bool all = true;
	device_get(&device, x, at, (size_t)n * sizeof(*x));
	for (int64_t i = 0; i < n; i++)
		all = all && x[i] == first + (float)i;
	free(x);
	return all;
}

static float own(int rank)
{
	return (float)(1000000 * (rank + 1));
}

/* ---- what must work ------------------------------------------------------------------- */

TEST(messages)
{
	int other = !world->rank;
	struct comm_requests r = {.c = world};
	for (int turn = 0; turn < 20; turn++) {
		fill(buffer[0], own(world->rank) + (float)turn, N);
		comm_recv(&r, buffer[1], N * sizeof(float), other, TAG_TEST);
		comm_post(&r);
		assert_on_all(!comm_test(&r)); /* it is not started alone */
		comm_send(&r, buffer[0], N * sizeof(float), other, TAG_TEST);
		comm_start(&r);
		assert_on_all(!comm_test(&r)); /* the current stream is not behind it */
		comm_wait(&r);
		/* what is enqueued now is behind it */
		device.k->copy(&device, mat(buffer[2], 1, N), mat(buffer[1], 1, N));
		assert_on_all(has(buffer[2], own(other) + (float)turn, N));
	}
	comm_requests_release(&r);
}

/* Operations in the group's stream follow each other; others are concurrent. */
TEST(stream)
{
	int other = !world->rank;
	struct comm_requests r = {.c = world};
	fill(buffer[0], own(world->rank), N);
	int before = comm_stream_begin(world);
	for (int turn = 0; turn < 4; turn++) { /* to and fro */
		comm_send(&r, buffer[turn % 2], N * sizeof(float), other, TAG_TEST);
		comm_recv(&r, buffer[2], N * sizeof(float), other, TAG_TEST);
		comm_start(&r);
		assert_on_all(comm_test(&r));
		device.k->copy(
			&device, mat(buffer[!(turn % 2)], 1, N), mat(buffer[2], 1, N));
	}
	uint64_t ticket = comm_stream_end(world, before);
	comm_stream_wait(world, ticket);
	assert_on_all(has(buffer[0], own(world->rank), N));
	assert_on_all(has(buffer[1], own(other), N));
	assert_on_all(device_stream(&device) == before);
	comm_requests_release(&r);
}

static void blocks_of(bool contiguous, int64_t first, int64_t second)
{
	struct comm_requests r = {.c = world};
	const struct comm_block all[] = {{buffer[0], first * (int64_t)sizeof(float)},
		{buffer[0] + (contiguous ? first : first + 64),
			second * (int64_t)sizeof(float)}};
	fill(buffer[0], -1, N);
	fill(all[world->rank].p, own(world->rank), world->rank ? second : first);
	comm_gather_blocks(&r, all, contiguous, TAG_TEST);
	comm_start(&r);
	comm_wait(&r);
	assert_on_all(has(all[0].p, own(0), first) && has(all[1].p, own(1), second));
	comm_requests_release(&r);
}

TEST(blocks)
{
	blocks_of(true, 1000, 1000);
	blocks_of(false, 1000, 1000);
	blocks_of(false, 1000, 17);
	blocks_of(false, 0, 5000);
}

TEST(parts)
{
	struct comm *same = comm_split(world, 0, "same"),
		    *alone = comm_split(world, world->rank, "alone");
	assert_on_all(comm_has_stream(same) && !comm_has_stream(alone));
	for (int i = 0; i < 2; i++) {
		fill(buffer[i], own(world->rank), N);
		comm_run(i ? same : world, COLL_ALLREDUCE,
			&(struct coll_args){.recv = buffer[i],
				.count = N,
				.type = COMM_F32,
				.op = COMM_MAX});
		assert_on_all(has(buffer[i], own(1), N));
	}
	comm_free(same);
	comm_free(alone);
}

TEST(registered)
{
	struct arena a;
	comm_device_arena(world, &device, &a, "registered",
		(size_t)(1000 * (world->rank + 1)) * sizeof(float));
	float *p = arena_floats(&a, 1000);
	assert_on_all(device_owns(&device, p));
	fill(p, own(world->rank), 1000);
	comm_run(world, COLL_BROADCAST,
		&(struct coll_args){
			.recv = p, .count = 1000, .type = COMM_F32, .root = 1});
	assert_on_all(has(p, own(1), 1000));
	comm_device_arena_release(world, &device, &a);
	assert_on_all(!device_owns(&device, p));
}

/* ---- mistakes ---------------------------------------------------------------------------- */

static void reduce(int64_t n)
{
	comm_run(world, COLL_ALLREDUCE,
		&(struct coll_args){
			.recv = buffer[0], .count = n, .type = COMM_F32, .op = COMM_SUM});
}

static void broadcast(void)
{
	comm_run(world, COLL_BROADCAST,
		&(struct coll_args){.recv = buffer[0], .count = 8, .type = COMM_F32});
}

static void counts(void)
{
	reduce(8 + world->rank);
}

static void order(void)
{
	if (world->rank)
		broadcast();
	reduce(8);
	if (!world->rank)
		broadcast();
}

/* Each rank waits for what the other sends later. */
static void deadlock(void)
{
	struct comm_requests r = {.c = world};
	comm_watchdog(world, 2);
	for (int i = 0; i < 400; i++) /* the host is far ahead */
		reduce(8);
	comm_recv(&r, buffer[0], 8, !world->rank, TAG_TEST);
	comm_start(&r);
	comm_send(&r, buffer[1], 8, !world->rank, TAG_TEST);
	comm_start(&r);
	comm_wait(&r);
	for (int i = 0; i < 400; i++)
		reduce(8);
}

static void open_group(void)
{
	void *library = dlopen(getenv("PT_NCCL"), RTLD_NOW), *at;
	int (*begin)(void);
	at = dlsym(library, "ncclGroupStart");
	memcpy(&begin, &at, sizeof(at));
	begin();
}

static void host_memory(void)
{
	static float here[8];
	struct comm_requests r = {.c = world};
	comm_send(&r, here, sizeof(here), !world->rank, TAG_TEST);
	r.list->on_device = true;
	comm_start(&r);
}

static void absent(void)
{
	comm_watchdog(world, 2);
	if (!world->rank)
		reduce(8);
	else
		raise(SIGSTOP);
}

/* The result of a collective that was not waited for is not there. */
static void unwaited(void)
{
	struct comm_requests r = {.c = world};
	fill(buffer[0], own(world->rank), N);
	comm_enqueue(&r, COLL_BROADCAST,
		&(struct coll_args){
			.recv = buffer[0], .count = N, .type = COMM_F32, .root = 0});
	comm_start(&r);
	if (world->rank && !has(buffer[0], own(0), N))
		die(EX_FAILED, "the result is not there");
}

static const struct {
	const char *name;
	void (*make)(void);
} mistakes[] = {{"counts", counts}, {"order", order}, {"deadlock", deadlock},
	{"open-group", open_group}, {"host-memory", host_memory}, {"absent", absent},
	{"unwaited", unwaited}};

int main(int argc, char **argv)
{
	const char *asked = getenv("PT_TEST_DEVICE");
	if (!asked || strcmp(asked, "cuda")) {
		printf("1..1\nok 1 - all # SKIP it needs a GPU\n");
		return 0;
	}
	if (!getenv("PT_NCCL") && getenv("PT_CUDA") && strstr(getenv("PT_CUDA"), "/emu/"))
		setenv("PT_NCCL", getenv("PT_CUDA"), 1);
	ranks_open();
	open_device();
	for (size_t i = 0; argc > 1 && i < ARRAY_LEN(mistakes); i++)
		if (!strcmp(mistakes[i].name, argv[1]))
			mistakes[i].make();
	device_wait(&device);
	int rc = argc > 1 ? 0 : ranks_run();
	close_device();
	return ranks_close(rc);
}
