/* Copies beside kernels, to and from pinned memory: who waits for whom, and that nobody else does.
 * device: cpu cuda
 */
#include "tests/support/device.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PIECES = 40, SLOTS = 3, N = 1000, BYTES = N * sizeof(float), TURNS = 2 };

static struct device device;

/* `late`: of an emulated GPU, what of it does no more than it must. */
static void begin(const char *late)
{
	const struct device_options o = {.exact = true};
	struct err e = {0};
	if (late)
		setenv("PT_EMU_LAZY", late, 1);
	else
		unsetenv("PT_EMU_LAZY");
	if (device_open(&device, test_on_cuda() ? DEVICE_CUDA : DEVICE_CPU, &o, &e))
		die_err(&e);
}

static float *room(void)
{
	float *p = device_alloc(&device, BYTES);
	assert_non_null(p);
	return p;
}

/* Pieces of what is in pinned memory come, are doubled and go back, in turn in the same places: as
 * optimizers go through what is offloaded. The last ones take what the first ones left. */
static void turns(float *home, float *const slot[SLOTS])
{
	uint64_t busy[SLOTS] = {0};
	int all = TURNS * PIECES;
	busy[0] = device_copy_begin(&device, false, slot[0], home, BYTES, 0);
	for (int i = 0; i < all; i++) {
		int now = i % SLOTS, next = (i + 1) % SLOTS;
		if (i + 1 < all)
			busy[next] = device_copy_begin(&device, false, slot[next],
				home + (i + 1) % PIECES * N, BYTES, busy[next]);
		device_stream_wait(&device, busy[now]);
		struct mat x = mat(slot[now], 1, N);
		device.k->add(&device, x, x, x);
		busy[now] = device_copy_begin(
			&device, true, home + i % PIECES * N, slot[now], BYTES, 0);
	}
}

TEST(pieces)
{
	static const char *const late[] = {NULL, "yes", "first"};
	for (size_t how = 0; how < ARRAY_LEN(late); how++) {
		float *slot[SLOTS];
		begin(late[how]);
		float *home = device_shared(&device, (size_t)PIECES * BYTES);
		assert_non_null(home);
		for (int i = 0; i < PIECES * N; i++)
			home[i] = (float)i;
		for (int i = 0; i < SLOTS; i++)
			slot[i] = room();
		turns(home, slot);
		device_wait(&device);
		for (int i = 0; i < PIECES * N; i++)
			if (home[i] != (float)(4 * i))
				fail_msg(
					"%zu: element %d is %g", how, i, (double)home[i]);
		for (int i = 0; i < SLOTS; i++)
			device_free(&device, slot[i], BYTES);
		device_shared_free(&device, home);
		device_close(&device);
	}
	unsetenv("PT_EMU_LAZY");
}

/* A ticket of nothing, the newest, and one that is so old that its event tells of another copy. */
TEST(tickets)
{
	enum { MANY = 100 };
	uint64_t ticket[MANY];
	float out = 0;
	begin("yes");
	float *home = device_shared(&device, BYTES), *there = room();
	device_stream_wait(&device, 0);
	assert_int_equal(device_copy_begin(&device, true, home, there, 0, 0), 0);
	for (int i = 0; i < MANY; i++) {
		home[i] = (float)(i + 1);
		ticket[i] = device_copy_begin(&device, false, there + i, home + i,
			sizeof(*home), i ? ticket[0] : 0);
	}
	device_stream_wait(&device, ticket[0]);
	device_get(&device, &out, there, sizeof(out));
	assert_true(out == 1);
	device_stream_wait(&device, ticket[MANY - 1]);
	device_get(&device, &out, there + MANY - 1, sizeof(out));
	assert_true(out == MANY);
	device_free(&device, there, BYTES);
	device_shared_free(&device, home);
	device_close(&device);
	unsetenv("PT_EMU_LAZY");
}

/* They are in the table of times; and there may be no such memory. */
TEST(told)
{
	struct str table = {0};
	if (!test_on_cuda())
		skip();
	begin(NULL);
	float *home = device_shared(&device, BYTES), *there = room();
	device_profile_begin(&device);
	for (int i = 0; i < 3; i++)
		device_copy_begin(&device, true, home, there, BYTES, 0);
	device_copy_begin(&device, false, there, home, BYTES, 0);
	device_profile_end(&device, &table);
	long long calls = 0;
	assert_int_equal(
		sscanf(strstr(table.s, "\ncopy_out "), " copy_out %lld", &calls), 1);
	assert_int_equal(calls, 3);
	assert_non_null(strstr(table.s, "\ncopy_in "));
	assert_null(device_shared(&device, (size_t)1 << 60));
	str_free(&table);
	device_free(&device, there, BYTES);
	device_shared_free(&device, home);
	device_close(&device);
}

/* What cannot be copied ends the program, which says what it was. */
TEST(too_much)
{
	char said[4096] = {0};
	int to[2], status;
	if (!test_on_cuda())
		skip();
	assert_int_equal(pipe(to), 0);
	pid_t pid = fork();
	if (pid == 0) {
		dup2(to[1], STDERR_FILENO);
		begin(NULL);
		float *home = device_shared(&device, BYTES), *there = room();
		device_copy_begin(&device, true, home, there, 1000 * BYTES, 0);
		_exit(0);
	}
	close(to[1]);
	for (size_t at = 0, n = 1; n && at < sizeof(said) - 1; at += n)
		n = (size_t)max64(0, read(to[0], said + at, sizeof(said) - 1 - at));
	close(to[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == EX_FAILED);
	assert_non_null(strstr(said, "copy_out (0x"));
	assert_non_null(strstr(said, ", 4000000)"));
}

int main(void)
{
	unsetenv("PT_CUDA_SYNC"); /* which makes all wait */
	return tests_run();
}
