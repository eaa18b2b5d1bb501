/* comm, as ranks use it: collectives, groups, messages, agreement.
 * ranks: 1 2 3 5
 *
 * What is right is written out here, apart from verify.c, with which the programs check
 * collectives. */
#include "base/file.h"
#include "kernels/dtype_bits.h"
#include "comm/comm_internal.h"
#include "train/notify.h"
#include "tests/support/ranks.h"

#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- collectives ----------------------------------------------------------------- */

/* Element i of block b of a rank: such that no type or order loses anything. Of minima and
 * maxima, every other one has the highest bit: large without a sign, and negative with one. */
static double element(int rank, int64_t b, int64_t i, const struct coll_args *a)
{
	static const double top[N_COMM_TYPES] = {-128, 0x1p7, -0x1p31, 0x1p31, -0x1p63,
		0x1p63, -0x1p127, -0x1p1023, -0x1p15, -0x1p127, -0x1p8, -0x1p15};
	int64_t x = rank * 31 + b * 7 + i * 3;
	if (a->op == COMM_PROD)
		return (double)(1 + x % 2);
	if (a->op == COMM_SUM && a->type >= COMM_E4M3)
		return (double)(x % 2);
	if (a->op == COMM_SUM || x % 2)
		return (double)(1 + x % 20);
	return top[a->type] + (double)(1 + x % 20);
}

static double fold(enum comm_op op, double a, double b)
{
	return op == COMM_SUM	 ? a + b
	       : op == COMM_PROD ? a * b
	       : op == COMM_MIN	 ? (a < b ? a : b)
				 : (a > b ? a : b);
}

static double reduced(int size, int64_t b, int64_t i, const struct coll_args *a)
{
	double x = element(0, b, i, a);
	for (int r = 1; r < size; r++)
		x = fold(a->op, x, element(r, b, i, a));
	return x;
}

static void put(void *p, enum comm_type t, int64_t i, double v)
{
	const struct comm_type_info *info = &comm_type_table[t];
	uint64_t bits = !info->is_signed && v > 0 ? (uint64_t)v : (uint64_t)(int64_t)v;
	float f = (float)v;
	if (t == COMM_F64)
		memcpy(&bits, &v, sizeof(v));
	else if (t == COMM_F32)
		memcpy(&bits, &f, sizeof(f));
	else if (info->is_floating)
		bits = narrow_bits(f, (enum dtype)info->dtype);
	/* the low bytes: of a little-endian machine */
	memcpy((char *)p + i * info->bytes, &bits, (size_t)info->bytes);
}

struct buffers {
	struct comm *c;
	enum coll what;
	struct coll_args a;
	bool in_place;
	char *send, *recv, *want;
};

static int64_t block_bytes(const struct buffers *x)
{
	return x->a.count * (int64_t)comm_type_bytes(x->a.type);
}

/* What block b of the result is: UNTOUCHED, or a block of a rank or of the reduction. */
enum { UNTOUCHED = -1, REDUCED = -2, ANYTHING = -3 };
struct source {
	int rank;
	int64_t block;
};

static struct source source_of(const struct buffers *x, int64_t b)
{
	const struct comm *c = x->c;
	bool at_root = c->rank == x->a.root;
	switch (x->what) {
	case COLL_ALLREDUCE:
		return (struct source){REDUCED, 0};
	case COLL_REDUCE:
		return (struct source){at_root ? REDUCED : UNTOUCHED, 0};
	case COLL_BROADCAST:
		return (struct source){x->a.root, 0};
	case COLL_ALLGATHER:
		return (struct source){(int)b, 0};
	case COLL_GATHER:
		return (struct source){at_root ? (int)b : UNTOUCHED, 0};
	case COLL_REDUCESCATTER:
		return (struct source){b ? ANYTHING : REDUCED, c->rank};
	case COLL_SCATTER:
		if (x->in_place && b != c->rank)
			return (struct source){UNTOUCHED, 0};
		return (struct source){x->a.root, c->rank};
	case COLL_ALLTOALL:
		return (struct source){(int)b, c->rank};
	case COLL_SENDRECV:
		return (struct source){(c->rank + c->size - 1) % c->size, 0};
	default:
		return (struct source){UNTOUCHED, 0};
	}
}

/* The input of this rank: in place, where the header says that it lies. */
static void fill_input(struct buffers *x)
{
	const struct coll_info *info = &coll_table[x->what];
	int64_t blocks = info->send_parts ? 1 : x->c->size, shift = 0;
	char *to = x->in_place ? x->recv : x->send;
	if (x->in_place && (x->what == COLL_ALLGATHER || x->what == COLL_GATHER))
		shift = x->c->rank;
	for (int64_t b = 0; b < blocks; b++)
		for (int64_t i = 0; i < x->a.count; i++)
			put(to, x->a.type, (b + shift) * x->a.count + i,
				element(x->c->rank, b, i, &x->a));
}

static bool right(const struct buffers *x)
{
	int64_t blocks = x->in_place ? coll_blocks(&coll_table[x->what], x->c->size)
			 : coll_table[x->what].recv_parts ? 1
							  : x->c->size;
	bool good = true;
	for (int64_t b = 0; b < blocks; b++) {
		struct source s = source_of(x, b);
		size_t at = (size_t)(b * block_bytes(x));
		if (s.rank == ANYTHING)
			continue;
		for (int64_t i = 0; i < x->a.count && s.rank != UNTOUCHED; i++)
			put(x->want + at, x->a.type, i,
				s.rank == REDUCED ? reduced(x->c->size, s.block, i, &x->a)
						  : element(s.rank, s.block, i, &x->a));
		good = good &&
		       !memcmp(x->recv + at, x->want + at, (size_t)block_bytes(x));
	}
	return good;
}

static bool blocking; /* by comm_call() */

/* Runs a collective on a group; false: the result, or what lies behind it, is not right. */
static bool run_one(struct comm *c, enum coll what, bool in_place, struct coll_args a)
{
	enum { GUARD = 64 };
	struct buffers x = {.c = c, .what = what, .a = a, .in_place = in_place};
	size_t n = (size_t)(block_bytes(&x) * c->size), all = n + GUARD;
	x.send = xmalloc(all);
	x.recv = xmalloc(all);
	x.want = xmalloc(all);
	memset(x.send, 0x5a, all);
	memset(x.recv, 0x5a, all);
	fill_input(&x);
	memcpy(x.want, x.recv, all);
	x.a.send = in_place ? NULL : x.send;
	x.a.recv = x.recv;
	if (blocking)
		comm_call(c, what, &x.a);
	else
		comm_run(c, what, &x.a);
	bool good = right(&x) && !memcmp(x.recv + n, x.want + n, GUARD);
	free(x.send);
	free(x.recv);
	free(x.want);
	return good;
}

/* Every collective with every type, operation, root and place that it has; of the blocking ones, in which
 * many ranks spin while they wait for a processor, operations and roots in turn. */
static bool run_all(struct comm *c, enum coll what, int64_t count)
{
	const struct coll_info *info = &coll_table[what];
	int ops = info->has_op ? N_COMM_OPS : 1, roots = info->has_root ? c->size : 1;
	int every = !blocking || c->size <= 2 ? 1 : ops > roots ? ops : roots;
	bool good = true;
	for (int t = 0; t < N_COMM_TYPES; t++)
		for (int op = 0; op < ops; op++)
			for (int root = 0; root < roots; root++)
				for (int p = 0; p < N_COLL_PLACES; p++) {
					struct coll_args a = {.count = count,
						.type = (enum comm_type)t,
						.op = (enum comm_op)op,
						.root = root};
					if (info->has_place[p] &&
						(t + op + root + p) % every == 0)
						good &= run_one(
							c, what, p == COLL_IN_PLACE, a);
				}
	return good;
}

TEST(collectives)
{
	static const int64_t counts[] = {0, 1, 7, 1001};
	for (int what = 0; what < COLL_BARRIER; what++)
		for (size_t i = 0; i < ARRAY_LEN(counts); i++)
			assert_on_all(run_all(world, (enum coll)what, counts[i]));
}

TEST(large_collectives)
{
	for (int what = 0; what < COLL_BARRIER; what++) {
		const struct coll_info *info = &coll_table[what];
		struct coll_args a = {.count = 100003, .type = COMM_F32};
		bool in_place = !info->has_place[COLL_OUT_OF_PLACE];
		assert_on_all(run_one(world, (enum coll)what, in_place, a));
	}
}

TEST(short_forms)
{
	int64_t n = world->size, r = world->rank;
	int64_t v[] = {r, 1, -r * 1000000007};
	comm_sum_i64(world, v, 3);
	assert_on_all(v[0] == n * (n - 1) / 2 && v[1] == n);
	assert_on_all(v[2] == -1000000007 * (n * (n - 1) / 2));
	assert_on_all(comm_max_i64(world, -r) == 0 && comm_min_i64(world, -r) == 1 - n);
	assert_on_all(comm_max_i64(world, r ? INT64_MIN : INT64_MAX) == INT64_MAX);
	struct pair {
		char name[3];
		int32_t n;
	} mine = {"ab", (int32_t)r}, *all = xcalloc((size_t)n, sizeof(*all));
	mine.name[1] = (char)('0' + r);
	comm_allgather(world, &mine, all, sizeof(mine));
	bool good = true;
	for (int i = 0; i < n; i++)
		good = good && all[i].n == i && all[i].name[1] == '0' + i;
	free(all);
	assert_on_all(good);
}

TEST(texts_of_any_length)
{
	for (int root = 0; root < world->size; root++) {
		for (int64_t n = 0; n < 100000; n = 7 * n + 1) {
			struct str s = {0};
			if (world->rank != root)
				str_puts(&s, "something else");
			for (int64_t i = 0; i < n && world->rank == root; i++)
				str_putc(&s, (char)(i % 251)); /* and NULs */
			comm_bcast_str(world, &s, root);
			bool good = (int64_t)s.len == n && s.s && !s.s[n];
			for (int64_t i = 0; i < n && good; i++)
				good = s.s[i] == (char)(i % 251);
			str_free(&s);
			assert_on_all(good);
		}
	}
}

/* ---- groups ---------------------------------------------------------------------- */

/* Two groups at once, the ranks of one being those of odd number; one rank in none. */
TEST(groups)
{
	int odd = world->rank % 2;
	bool out = world->size > 2 && world->rank == 2;
	struct comm *c = comm_split(world, out ? -1 : odd, "half");
	assert_on_all(out ? !c : c && !strcmp(c->name, "half"));
	bool good = true;
	if (c) {
		int size = 0, rank = 0;
		for (int r = odd; r < world->size; r += 2) {
			rank += r < world->rank && (world->size <= 2 || r != 2);
			size += world->size <= 2 || r != 2;
		}
		good = c->size == size && c->rank == rank;
		for (int what = 0; what < COLL_BARRIER; what++)
			good = good && run_all(c, (enum coll)what, 5);
		comm_free(c);
	}
	assert_on_all(good);
}

/* What one group does is nothing to the other, even in another order and number. */
TEST(groups_do_not_meet)
{
	struct comm *a = comm_split(world, world->rank % 2, "a");
	struct comm *b = comm_split(world, world->rank < world->size / 2, "b");
	bool good = true;
	for (int64_t i = 0; i < 3 + 2 * (world->rank % 2); i++) {
		int64_t x = i;
		comm_sum_i64(a, &x, 1);
		good = good && x == i * a->size;
	}
	for (int64_t i = 0; i < 20; i++) {
		good = good && comm_max_i64(b, i + b->rank) == i + b->size - 1;
		good = good && comm_min_i64(a, i + a->rank) == i;
	}
	comm_free(a);
	comm_free(b);
	assert_on_all(good);
	struct comm *alone = comm_split(world, world->rank, "alone");
	assert_on_all(alone->size == 1 && alone->rank == 0);
	assert_on_all(run_all(alone, COLL_ALLREDUCE, 5));
	comm_free(alone);
}

/* ---- messages -------------------------------------------------------------------- */

/* From each to each, of uneven sizes, some of them 0; those of one tag in order. */
TEST(messages)
{
	enum { N = 4, ROOM = 5000 };
	int n = world->size;
	if (n == 1)
		return;
	char(*in)[N][ROOM] = xcalloc((size_t)n, sizeof(*in));
	char(*to)[N][ROOM] = xcalloc((size_t)n, sizeof(*to));
	struct comm_requests r = {.c = world};
	for (int peer = 0; peer < n; peer++) {
		for (int k = 0; k < N && peer != world->rank; k++) {
			int64_t bytes = k == 2 ? 0 : 1000 * k + 10 * world->rank + peer;
			memset(to[peer][k], 1 + k + 10 * world->rank, (size_t)bytes);
			comm_send(&r, to[peer][k], bytes, peer, TAG_TEST + k / 2);
		}
	}
	for (int peer = n - 1; peer >= 0; peer--) {
		for (int k = 0; k < N && peer != world->rank; k++) {
			int64_t bytes = k == 2 ? 0 : 1000 * k + 10 * peer + world->rank;
			comm_recv(&r, in[peer][k], bytes, peer, TAG_TEST + k / 2);
		}
	}
	comm_start(&r);
	comm_wait_received(&r);
	while (!comm_test(&r))
		sched_yield();
	comm_requests_release(&r);
	bool good = true;
	for (int peer = 0; peer < n; peer++) {
		for (int k = 0; k < N && peer != world->rank; k++) {
			int64_t bytes = k == 2 ? 0 : 1000 * k + 10 * peer + world->rank;
			for (int64_t i = 0; i < ROOM; i++)
				good = good &&
				       in[peer][k][i] ==
					       (i < bytes ? 1 + k + 10 * peer : 0);
		}
	}
	free(in);
	free(to);
	assert_on_all(good);
}

static jmp_buf died;

static void remember_death(int code)
{
	longjmp(died, code);
}

/* What a wait finds says what was waited for: here a message too long for its buffer. */
TEST(failures_have_names)
{
	char bytes[64] = "", said[512] = "";
	const char *path = test_path("said");
	struct comm_requests r = {.c = world};
	void (*hook)(int) = die_hook;
	int err = dup(STDERR_FILENO);
	volatile int code = 0;
	if (world->size > 1 && world->rank == 0) {
		comm_send(&r, bytes, 64, 1, TAG_TEST);
		comm_start(&r);
		comm_wait(&r);
		comm_requests_release(&r);
	} else if (world->rank == 1) {
		int to = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
		die_hook = remember_death;
		dup2(to, STDERR_FILENO);
		code = setjmp(died);
		if (!code) {
			comm_recv(&r, bytes, 24, 0, TAG_TEST);
			comm_start(&r);
			comm_wait(&r);
		}
		dup2(err, STDERR_FILENO);
		die_hook = hook;
		assert_true(pread(to, said, sizeof(said) - 1, 0) > 0);
		close(to);
	}
	close(err);
	assert_on_all(world->rank != 1 || code == EX_FAILED);
	assert_on_all(world->rank != 1 ||
		      strstr(said, "receive of 24 bytes on world (") != NULL);
}

static int n_polls;

static void count_polls(void *with)
{
	++*(int *)with;
}

/* An empty set is complete, and the background is called until its end. */
TEST(waiting)
{
	struct comm_requests none = {.c = world};
	assert_on_all(comm_test(&none));
	comm_wait(&none);
	comm_background_begin(count_polls, &n_polls);
	comm_poll();
	comm_poll();
	comm_background_end(count_polls, &n_polls);
	int before = n_polls;
	comm_poll();
	assert_on_all(before >= 2 && n_polls == before);
	assert_on_all(comm_waited() >= 0);
}

/* Who waits often and briefly, or works and polls, is not taken for missing. On two ranks,
 * and in seconds: a processor that is shared may well stand still for half of one. */
TEST(busy_ranks_answer)
{
	if (world->size != 2)
		return;
	struct comm *busy = comm_split(world, world->rank == 0, "busy");
	comm_watchdog(world, 3);
	double begin = clock_seconds();
	int64_t go = world->rank != 0;
	while (go) {
		go = clock_seconds() - begin < 7;
		comm_bcast(busy, &go, sizeof(go), 0);
		comm_poll();
	}
	comm_barrier(world); /* where rank 0 has been for seven seconds */
	comm_watchdog(world, COMM_WATCHDOG);
	assert_on_all(clock_seconds() - begin >= 6);
	comm_free(busy);
}

/* The last 64 operations, with those that are not complete. */
TEST(flight_record)
{
	char path[4096];
	struct err e = {0};
	struct str text = {0};
	double x = 1, xs[64];
	int lines = 0, open = 0;
	if (world->size == 1)
		ranks_skip();
	int fd = file_temporary(path, &e);
	assert_on_all(fd >= 0 && !close(fd));
	assert_on_all(!comm_flight_open(path, &e));
	for (int i = 0; i < 100; i++)
		comm_allgather(world, &x, xs, sizeof(x));
	struct comm_requests r = {.c = world};
	int next = (world->rank + 1) % world->size,
	    before = (world->rank + world->size - 1) % world->size;
	comm_recv(&r, xs, sizeof(x), before, COMM_TAG(TEST, 3));
	comm_start(&r);
	assert_on_all(!file_read(path, 1 << 16, &text, &e));
	for (const char *line = text.s; line && *line; lines++) {
		const char *end = strchr(line, '\n');
		open += end && strstr(line, " - ") && strstr(line, " - ") < end;
		line = end ? end + 1 : NULL;
	}
	bool good = lines == 65 && open == 1 && strstr(text.s, " TEST ") &&
		    strstr(text.s, "    102 world") && strstr(text.s, "     39 world") &&
		    !strstr(text.s, "     38 world");
	if (!good)
		printf("%d lines, %d open:\n%s", lines, open, text.s);
	assert_on_all(good);
	comm_barrier(world);
	struct comm_requests s = {.c = world};
	comm_send(&s, &x, sizeof(x), next, COMM_TAG(TEST, 3));
	comm_start(&s);
	comm_wait(&r);
	comm_wait(&s);
	comm_requests_release(&r);
	comm_requests_release(&s);
	str_clear(&text);
	assert_on_all(!file_read(path, 1 << 16, &text, &e) && !strstr(text.s, " - "));
	comm_flight_close();
	assert_on_all(!file_exists(path));
	str_free(&text);
}

/* ---- agreement ------------------------------------------------------------------- */

/* The last rank announces round 2 while the others are in round 1, and wait for nobody. */
TEST(notifications_arrive)
{
	struct comm_notify b;
	bool last = world->rank == world->size - 1, early, arrived;
	comm_notify_open(&b, world, true);
	early = comm_notify_received(&b, 1);
	comm_barrier(world);
	if (last)
		comm_notify_send(&b, 2);
	double begin = clock_seconds();
	do
		arrived = comm_notify_received(&b, 2);
	while (!arrived && !last && clock_seconds() - begin < 60);
	assert_on_all(!early && arrived != last && !comm_notify_received(&b, 3));
	comm_notify_close(&b);
}

/* Each set of ranks that fail, as bits: all hear of the lowest. */
TEST(agreement)
{
	for (int who = 0; who < 1 << world->size; who++) {
		struct err e = {0};
		char want[200];
		int first = who ? __builtin_ctz((unsigned)who) : 0;
		if (who >> world->rank & 1)
			err_set(&e, world->rank % 2 ? EX_IOERR : EX_DATAERR,
				"file %d: bad", world->rank);
		int rc = comm_agree(world, &e);
		if (world->size > 1) /* they say different things */
			snprintf(want, sizeof(want), "rank %d: file %d: bad", first,
				first);
		else
			snprintf(want, sizeof(want), "file 0: bad");
		assert_on_all(rc == (who ? -1 : 0));
		assert_on_all(who || (e.code == 0 && !*e.msg));
		assert_on_all(!who || e.code == (first % 2 ? EX_IOERR : EX_DATAERR));
		assert_on_all(!who || !strcmp(e.msg, want));
	}
	struct err e = {0};
	err_set(&e, EX_USAGE, "all say this");
	assert_on_all(comm_agree(world, &e) == -1 && !strcmp(e.msg, "all say this"));
}

/* ---- the progress thread ----------------------------------------------------------- */

/* To the next rank, and from the one before. */
static bool pass_on(void)
{
	enum { TOKEN = 1234 };
	int64_t token = world->rank ? 0 : TOKEN;
	int n = world->size, next = (world->rank + 1) % n,
	    before = (world->rank + n - 1) % n;
	if (world->rank)
		comm_call_recv(world, &token, sizeof(token), before, TAG_TEST);
	token += 1;
	comm_call_send(world, &token, sizeof(token), next, TAG_TEST);
	if (!world->rank)
		comm_call_recv(world, &token, sizeof(token), before, TAG_TEST);
	return token == TOKEN + (world->rank ? world->rank + 1 : n);
}

static bool call_all(struct comm *c)
{
	bool good = true;
	blocking = true;
	for (int what = 0; what < COLL_BARRIER; what++)
		good &= run_all(c, (enum coll)what, 7);
	blocking = false;
	return good;
}

TEST(blocking_functions)
{
	assert_on_all(call_all(world));
	assert_on_all(world->size == 1 || pass_on());
}

/* The last test, since the thread stays until the end. */
TEST(blocking_functions_beside_the_progress_thread)
{
	if (world->size == 1)
		ranks_skip();
	comm_progress_thread(world);
	struct comm *c = comm_split(world, 0, "all");
	struct comm_requests r = {.c = c};
	int64_t sum = world->rank;
	comm_enqueue(&r, COLL_ALLREDUCE,
		&(struct coll_args){.recv = &sum, .count = 1, .type = COMM_I64});
	comm_start(&r); /* is under way meanwhile */
	assert_on_all(call_all(world));
	assert_on_all(pass_on());
	comm_wait(&r);
	assert_on_all(sum == (int64_t)world->size * (world->size - 1) / 2);
	assert_on_all(call_all(c));
	comm_free(c);
}

int main(void)
{
	ranks_open();
	return ranks_close(ranks_run());
}
