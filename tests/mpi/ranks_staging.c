/* comm, with a device whose memory nobody can touch: what is sent and received goes by way of
 * the program's.
 * ranks: 2 3
 */
#include "collbench/collbench.h"
#include "kernels/backend.h"
#include "tests/support/ranks.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- a device ---------------------------------------------------------------------- */

/* Its memory, which faults when it is touched, and what is in it. */
enum { HALF = 1 << 18, ALL = 2 * HALF };
static char *far_away, *contents;
static int n_put, n_got;

static char *contents_at(const void *p, size_t n_bytes)
{
	size_t at = (size_t)((const char *)p - far_away);
	assert_true(at <= ALL && n_bytes <= ALL - at);
	return contents + at;
}

static void put(struct device *d, void *to, const void *from, size_t n_bytes)
{
	(void)d;
	memcpy(contents_at(to, n_bytes), from, n_bytes);
	n_put++;
}

static void get(struct device *d, void *to, const void *from, size_t n_bytes)
{
	(void)d;
	memcpy(to, contents_at(from, n_bytes), n_bytes);
	n_got++;
}

static void *take(struct device *d, size_t n_bytes)
{
	(void)d;
	assert_int_equal(n_bytes, ALL);
	return far_away;
}

static void give(struct device *d, void *p, size_t n_bytes)
{
	(void)d, (void)p, (void)n_bytes;
}

static const struct device_ops ops = {
	.put = put, .get = get, .alloc = take, .free = give};
static struct device device = {.ops = &ops, .discrete = true};
static struct arena arena;

static void open_device(void)
{
	far_away = mmap(NULL, ALL, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	BUG_ON(far_away == MAP_FAILED);
	contents = xcalloc(1, ALL);
	device_arena_init(&device, &arena, "far away", ALL);
	assert_on_all(!comm_device_open(world, &device, COMM_MPI, &(struct err){0}));
}

static void close_device(void)
{
	comm_device_close();
	device_arena_release(&device, &arena);
	BUG_ON(device_owns(&device, far_away));
	munmap(far_away, ALL);
	free(contents);
}

/* ---- what goes through it ------------------------------------------------------------ */

/* `send_away`, `recv_away`: these buffers are on the device; the others are the program's. */
static int64_t wrong_in(
	const struct coll_case *c, uint64_t iteration, bool send_away, bool recv_away)
{
	static char near_by[ALL];
	const size_t send_at = VERIFY_GUARD, recv_at = HALF + VERIFY_GUARD;
	struct verify v = {*c, world->rank, world->size, iteration};
	char *send = (send_away ? contents : near_by) + send_at;
	char *recv = (recv_away ? contents : near_by) + recv_at;
	struct coll_args a = {.send = (send_away ? far_away : near_by) + send_at,
		.recv = (recv_away ? far_away : near_by) + recv_at,
		.count = c->count,
		.type = c->type,
		.op = c->op,
		.root = c->root};
	if (c->place == COLL_IN_PLACE)
		a.send = NULL;
	verify_fill(&v, send, recv);
	comm_run(world, c->what, &a);
	return verify_count_wrong(&v, send, recv);
}

TEST(collectives)
{
	const int64_t counts[] = {1, 1000};
	uint64_t iteration = 0;
	for (int what = 0; what < COLL_BARRIER; what++) {
		for (int i = 0; i < 2 * N_COLL_PLACES * 4; i++) {
			struct coll_case c = {.what = (enum coll)what,
				.place = (enum coll_place)(i % 2),
				.type = COMM_F32,
				.op = COMM_SUM,
				.root = world->size - 1,
				.count = counts[i / 2 % 2]};
			if (coll_table[what].has_place[c.place])
				assert_on_all(wrong_in(&c, iteration++, i / 4 % 2,
						      i / 8 % 2) == 0);
		}
	}
}

TEST(messages)
{
	enum { N = 100000 };
	int next = (world->rank + 1) % world->size;
	int before = (world->rank + world->size - 1) % world->size;
	struct comm_requests out = {.c = world}, in = {.c = world};
	memset(contents, world->rank, N);
	memset(contents + HALF, 100, N + 1);
	n_put = n_got = 0;
	comm_recv(&in, far_away + HALF, N, before, TAG_TEST);
	comm_start(&in);
	comm_send(&out, far_away, N, next, TAG_TEST);
	comm_start(&out);
	memset(contents, 99, N); /* it has been copied */
	comm_wait(&in);
	comm_wait(&out);
	bool right = contents[HALF + N] == 100 && contents[0] == 99;
	for (int i = 0; i < N; i++)
		right = right && contents[HALF + i] == before;
	assert_on_all(right);
	assert_on_all(comm_test(&in) && comm_test(&out));
	assert_on_all(n_put == 1 && n_got == 1);
	comm_requests_release(&in);
	comm_requests_release(&out);
}

/* Ends of the memory, and what lies beside it. */
TEST(ownership)
{
	assert_on_all(device_owns(&device, far_away));
	assert_on_all(device_owns(&device, far_away + ALL - 1));
	assert_on_all(!device_owns(&device, far_away + ALL));
	assert_on_all(!device_owns(&device, far_away - 1));
	assert_on_all(!device_owns(&device, NULL));
}

int main(void)
{
	ranks_open();
	open_device();
	int rc = ranks_run();
	close_device();
	return ranks_close(rc);
}
