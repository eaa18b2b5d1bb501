/* What is noted once and done again by one call: a GPU's graphs.
 * device: cuda
 */
#include "tests/support/support.h"
#include "kernels/kernels.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 1 << 20, DIM = 64 }; /* N: more than goes to the device in one piece */

static struct device device;

static float *numbers(int64_t n, double scale)
{
	float *x = xmalloc((size_t)n * sizeof(*x));
	for (int64_t i = 0; i < n; i++)
		x[i] = (float)(scale * cos((double)i));
	return x;
}

static float *room(int64_t n)
{
	float *p = device_alloc(&device, (size_t)n * sizeof(*p));
	assert_non_null(p);
	return p;
}

static void put(float *to, const float *from, int64_t n)
{
	device_put(&device, to, from, (size_t)n * sizeof(*to));
}

static float *got(const float *from, int64_t n)
{
	float *x = xmalloc((size_t)n * sizeof(*x));
	device_get(&device, x, from, (size_t)n * sizeof(*x));
	return x;
}

/* What is asked for: to one place two vectors come one after the other, sum += x - 2 y; and
 * then a product, z = sum w^T. */
struct work {
	float *at, *sum, *w, *z;
};

static struct work work_begin(void)
{
	struct work k = {room(N), room(N), room(DIM * DIM), room(DIM * DIM)};
	float *w = numbers(DIM * DIM, 1);
	put(k.w, w, DIM * DIM);
	free(w);
	return k;
}

static void work_end(struct work k)
{
	device_free(&device, k.at, N * sizeof(float));
	device_free(&device, k.sum, N * sizeof(float));
	device_free(&device, k.w, DIM * DIM * sizeof(float));
	device_free(&device, k.z, DIM * DIM * sizeof(float));
}

static void ask(struct work k, const float *x, const float *y, int64_t dim)
{
	const struct device *d = &device;
	struct mat sum = mat(k.sum, 1, N), at = mat(k.at, 1, N);
	put(k.at, x, N);
	d->k->add(&device, sum, sum, at);
	put(k.at, y, N);
	d->k->sub(&device, sum, sum, at);
	d->k->sub(&device, sum, sum, at);
	d->k->linear_fwd(&device, mat(k.z, dim, dim), mat(k.sum, dim, dim),
		mat(k.w, dim, dim), mat(NULL, 0, 0));
}

/* The same steps, with a graph and without. */
static void same(void **state)
{
	struct work plain = work_begin(), noted = work_begin();
	(void)state;
	for (int step = 0; step < 6; step++) {
		bool fresh = step == 1 || step == 4; /* a second graph follows */
		float *x = numbers(N, 1 + step), *y = numbers(N, 1.0 / (3 + step));
		ask(plain, x, y, DIM);
		if (step == 0) {
			ask(noted, x, y, DIM);
		} else if (fresh) {
			assert_true(device_graph_begin(&device));
			ask(noted, x, y, DIM);
			assert_true(device_graph_end(&device));
			device_graph_launch(&device);
		} else {
			device_graph_refill(&device);
			put(noted.at, x, N);
			put(noted.at, y, N);
			device_graph_launch(&device);
		}
		memset(x, 0, N * sizeof(float)); /* what was put was read */
		float *a = got(plain.sum, N), *b = got(noted.sum, N);
		assert_memory_equal(a, b, N * sizeof(float));
		free(a);
		free(b);
		a = got(plain.z, DIM * DIM);
		b = got(noted.z, DIM * DIM);
		assert_memory_equal(a, b, DIM * DIM * sizeof(float));
		assert_true(fabsf(a[1]) > 0);
		free(a);
		free(b);
		free(x);
		free(y);
	}
	work_end(plain);
	work_end(noted);
}

/* Steps that nobody waits for: what is put does not overtake what is still to be read. */
static void in_a_row(void **state)
{
	enum { STEPS = 4 };
	struct work plain, noted;
	float *x[STEPS];
	(void)state;
	setenv("PT_EMU_LAZY", "yes", 1);
	plain = work_begin();
	noted = work_begin();
	for (int i = 0; i < STEPS; i++) {
		x[i] = numbers(N, 1 + i);
		ask(plain, x[i], x[0], DIM);
	}
	assert_true(device_graph_begin(&device));
	ask(noted, x[0], x[0], DIM);
	assert_true(device_graph_end(&device));
	device_graph_launch(&device);
	for (int i = 1; i < STEPS; i++) {
		device_graph_refill(&device);
		put(noted.at, x[i], N);
		put(noted.at, x[0], N);
		device_graph_launch(&device);
	}
	float *a = got(plain.sum, N), *b = got(noted.sum, N);
	assert_memory_equal(a, b, N * sizeof(float));
	free(a);
	free(b);
	work_end(plain);
	work_end(noted);
	for (int i = 0; i < STEPS; i++)
		free(x[i]);
	unsetenv("PT_EMU_LAZY");
}

/* What is got in two parts comes before the rest is done; and then what was put has been read. */
static void result_comes_first(void **state)
{
	enum { STEPS = 4 };
	(void)state;
	setenv("PT_EMU_LAZY", "yes", 1);
	struct work k = work_begin();
	float *x[STEPS], result = NAN, want = 0;
	struct mat sum = mat(k.sum, 1, N), at = mat(k.at, 1, N);
	for (int i = 0; i < STEPS; i++) {
		x[i] = numbers(N, 1 + i);
		bool noted = i > 0;
		if (i == 1)
			assert_true(device_graph_begin(&device));
		if (i > 1)
			device_graph_refill(&device);
		put(k.at, x[i], N);
		if (i <= 1) {
			device.k->add(&device, sum, sum, at);
			device_get_begin(&device, &result, k.sum + 1, sizeof(result));
			device.k->add(&device, sum, sum, sum);
		}
		if (i == 1)
			assert_true(device_graph_end(&device));
		if (noted)
			device_graph_launch(&device);
		device_get_end(&device);
		want += x[i][1];
		assert_true(result == want);
		want *= 2;
	}
	float *end = got(k.sum, 2);
	assert_true(end[1] == want);
	free(end);
	for (int i = 0; i < STEPS; i++)
		free(x[i]);
	work_end(k);
	unsetenv("PT_EMU_LAZY");
}

/* Copies of other streams are branches of a graph: it begins after those that were enqueued before it,
 * and what follows comes after its own. */
static void copies_are_branches(void **state)
{
	enum { STEPS = 5, FIRST = 2, SOME = 1000 };
	const size_t n_bytes = SOME * sizeof(float);
	(void)state;
	setenv("PT_EMU_LAZY", "yes", 1);
	struct work k = work_begin();
	struct mat sum = mat(k.sum, 1, SOME), at = mat(k.at, 1, SOME);
	float *in = device_shared(&device, n_bytes),
	      *out = device_shared(&device, n_bytes);
	float *late = device_shared(&device, n_bytes);
	double want = 0;
	uint64_t before = 0;
	assert_true(in && out && late);
	device.k->zero(&device, sum);
	for (int i = 0; i < STEPS; i++) {
		for (int j = 0; j < SOME; j++)
			in[j] = (float)(i + 1);
		if (i == FIRST)
			assert_true(device_graph_begin(&device));
		if (i <= FIRST) {
			/* in, added, out, and in again after that */
			device_stream_wait(&device, before);
			uint64_t t =
				device_copy_begin(&device, false, k.at, in, n_bytes, 0);
			device_stream_wait(&device, t);
			device.k->add(&device, sum, sum, at);
			t = device_copy_begin(&device, true, out, k.sum, n_bytes, 0);
			t = device_copy_begin(&device, false, k.at, out, n_bytes, t);
			device_stream_wait(&device, t);
			device.k->add(&device, sum, sum, at);
			device_copy_begin(&device, true, out, k.sum, n_bytes, 0);
		}
		if (i == FIRST)
			assert_true(device_graph_end(&device));
		if (i > FIRST)
			device_graph_refill(&device);
		if (i >= FIRST)
			device_graph_launch(&device);
		device_wait(&device);
		assert_true(i == 0 || (double)late[0] == want);
		want = 2 * (want + i + 1);
		assert_true((double)out[0] == want && (double)out[SOME - 1] == want);
		/* the next launch comes after this */
		before = device_copy_begin(&device, true, late, k.sum, n_bytes, 0);
	}
	device_shared_free(&device, in);
	device_shared_free(&device, out);
	device_shared_free(&device, late);
	work_end(k);
	unsetenv("PT_EMU_LAZY");
}

/* Between begin and end nothing is done, and when there is no graph, nothing either. */
static void new_product(void **state)
{
	struct work k = work_begin();
	float *x = numbers(N, 1);
	(void)state;
	for (int i = 0; i < 2; i++) {
		assert_true(device_graph_begin(&device));
		ask(k, x, x, DIM / 2);
		assert_true(device_graph_end(&device) == (i > 0));
		float *sum = got(k.sum, N);
		assert_true(sum[0] == (i ? -x[0] : 0));
		free(sum);
		if (i == 0)
			ask(k, x, x, DIM / 2);
	}
	device_graph_launch(&device);
	float *sum = got(k.sum, N);
	assert_true(sum[0] == -2 * x[0]);
	free(sum);
	free(x);
	work_end(k);
}

enum misuse { WAITS, ELSEWHERE, LONGER, KERNEL, TOO_LITTLE, NO_MISUSE };

static NORETURN void use(enum misuse how)
{
	const struct device_options o = {.exact = true};
	struct err e = {0};
	float x[2] = {1, 2};
	if (device_open(&device, DEVICE_CUDA, &o, &e))
		die_err(&e);
	float *p = room(2);
	bool begun = device_graph_begin(&device);
	put(p, x, 1);
	put(p + 1, x, 1);
	if (how == WAITS)
		device_wait(&device);
	if (!begun || !device_graph_end(&device))
		_exit(1);
	device_graph_refill(&device);
	put(how == ELSEWHERE ? p + 1 : p, x, how == LONGER ? 2 : 1);
	if (how == KERNEL)
		device.k->zero(&device, mat(p, 1, 2));
	if (how != TOO_LITTLE)
		put(p + 1, x, 1);
	device_graph_launch(&device);
	_exit(0);
}

/* What is put elsewhere, or not all, or asked for meanwhile, ends the program. */
static void misuses(void **state)
{
	(void)state;
	for (int how = WAITS; how <= NO_MISUSE; how++) {
		int status;
		pid_t pid = fork();
		if (pid == 0) {
			signal(SIGABRT, SIG_DFL); /* it is cmocka's */
			if (!freopen("/dev/null", "w", stderr))
				_exit(1);
			use((enum misuse)how);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (how == NO_MISUSE)
			assert_int_equal(status, 0);
		else if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
			fail_msg("way %d gives status %x", how, (unsigned)status);
	}
}

static int begin(void **state)
{
	const struct device_options o = {.exact = true};
	struct err e = {0};
	(void)state;
	if (device_open(&device, DEVICE_CUDA, &o, &e))
		die_err(&e);
	return 0;
}

static int end(void **state)
{
	(void)state;
	device_close(&device);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(misuses), /* before this process uses a GPU */
		cmocka_unit_test_setup_teardown(same, begin, end),
		cmocka_unit_test_setup_teardown(in_a_row, begin, end),
		cmocka_unit_test_setup_teardown(result_comes_first, begin, end),
		cmocka_unit_test_setup_teardown(copies_are_branches, begin, end),
		cmocka_unit_test_setup_teardown(new_product, begin, end),
	};
	const char *asked = getenv("PT_TEST_DEVICE");
	if (!asked || strcmp(asked, "cuda") != 0) {
		printf("1..1\nok 1 - all # SKIP this is for GPUs\n");
		return 0;
	}
	unsetenv("PT_CUDA_SYNC"); /* with it there are no graphs */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
