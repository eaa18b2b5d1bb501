/* Opening a device, its memory, its times, and what makers say that it can do.
 * `test_device COMMAND` is for tests/cli/device.bats: it does one thing with the GPU.
 * device: cpu cuda
 */
#include "tests/support/device.h"
#include "kernels/backend.h"

#include <stdlib.h>
#include <string.h>

/* ---- what GPUs can do ------------------------------------------------------------ */

DEVICE_TEST(peaks)
{
	static const struct {
		const char *model;
		double half, fp8, tf32, fp32;
	} known[] = {
		{"NVIDIA H100 80GB HBM3", 989.4, 1978.9, 494.7, 66.9},
		{"NVIDIA H100 PCIe", 756, 1513, 378, 51},
		{"NVIDIA H200", 989.4, 1978.9, 494.7, 66.9},
		{"NVIDIA A100-SXM4-80GB", 312, 0, 156, 19.5},
		{"NVIDIA A10", 125, 0, 62.5, 31.2},
		{"NVIDIA L40S", 362.1, 733, 183, 91.6},
		{"NVIDIA GeForce RTX 4090", 165.2, 330.3, 82.6, 82.6},
		{"NVIDIA GeForce RTX 4090 Laptop GPU", 0, 0, 0, 0},
		{"emulated GPU", 0, 0, 0, 0},
		{"", 0, 0, 0, 0},
	};
	struct device cpu;
	for (size_t i = 0; i < ARRAY_LEN(known); i++) {
		cpu = (struct device){.model = known[i].model};
		assert_near(device_peak(&cpu, DT_BF16), 1e12 * known[i].half, 1);
		assert_near(device_peak(&cpu, DT_F16), 1e12 * known[i].half, 1);
		assert_near(device_peak(&cpu, DT_E4M3), 1e12 * known[i].fp8, 1);
		assert_near(device_peak(&cpu, DT_F32), 1e12 * known[i].tf32, 1);
		cpu.exact = true;
		assert_near(device_peak(&cpu, DT_F32), 1e12 * known[i].fp32, 1);
	}
	device_open_cpu(&cpu, 1);
	assert_near(device_peak(&cpu, DT_F32), 0, 0);
}

/* ---- what the model asks of a device ---------------------------------------------- */

/* What is planned for a kind of device is what the device does. */
DEVICE_TEST(planned)
{
	struct device plan;
	device_open_plan(&plan, d->discrete ? DEVICE_CUDA : DEVICE_CPU);
	assert_int_equal(d->discrete, plan.discrete);
	assert_true(d->tile_bytes > 0);
	assert_int_equal(d->tile_bytes, plan.tile_bytes);
}

/* ---- memory ---------------------------------------------------------------------- */

/* A device that may have 1 MiB gives no more, and again what came back. */
DEVICE_TEST(memory_limit)
{
	struct device_options o = {.exact = true, .memory_bytes = 1 << 20};
	struct device own;
	struct err e = {0};
	int64_t used, left;
	if (!d->discrete)
		skip();
	assert_int_equal(device_open(&own, DEVICE_CUDA, &o, &e), 0);
	device_memory(&own, &used, &left);
	assert_true(used > 0);
	assert_int_equal(left, 1 << 20);
	void *most = device_alloc(&own, 1 << 20);
	assert_non_null(most);
	device_memory(&own, &used, &left);
	assert_int_equal(left, 0);
	assert_null(device_alloc(&own, 1));
	device_free(&own, most, 1 << 20);
	void *half = device_alloc(&own, 1 << 19), *rest = device_alloc(&own, 1 << 19);
	assert_non_null(half);
	assert_non_null(rest);
	assert_null(device_alloc(&own, 1));
	device_free(&own, half, 1 << 19);
	device_free(&own, rest, 1 << 19);
	device_close(&own);
	assert_null(device_alloc(d, (size_t)1 << 60));
	void *after = device_alloc(d, 1000); /* that did no harm */
	assert_non_null(after);
	device_free(d, after, 1000);
}

DEVICE_TEST(cpu_memory)
{
	struct device cpu;
	int64_t used, left;
	device_open_cpu(&cpu, 1);
	device_memory(&cpu, &used, &left);
	assert_int_equal(used, 0);
	assert_true(left > 0);
	void *p = device_shared(&cpu, 100);
	assert_non_null(p);
	device_shared_free(&cpu, p);
}

/* ---- names, ranges, times -------------------------------------------------------- */

DEVICE_TEST(names)
{
	assert_non_null(strstr(d->name, d->discrete ? "(sm_" : "cpu"));
	assert_string_equal(d->k->name, d->discrete ? "cuda" : d->name);
}

/* Of each kernel that was asked for meanwhile, how often: more often than times are kept, too;
 * and nothing of what came before or after. */
DEVICE_TEST(profile)
{
	enum { OFTEN = 3000 };
	struct twin x = twin_random(20, 30, 1), w = twin_random(40, 30, 1);
	struct mat y = mat_blank(20, 40);
	struct str table = {0};
	device_range(d, "a test");
	d->k->copy(d, x.f, x.f);
	device_profile_begin(d);
	for (int i = 0; i < OFTEN; i++)
		d->k->zero(d, x.f);
	d->k->linear_fwd(d, y, x.f, w.f, mat(NULL, 0, 0));
	d->k->linear_fwd(d, y, x.f, w.f, mat(NULL, 0, 0));
	device_profile_end(d, &table);
	d->k->zero(d, y);
	device_range_end(d);
	if (!d->discrete) {
		assert_int_equal(table.len, 0);
		return;
	}
	long long calls = 0;
	double ms, us, part;
	const char *row = strstr(table.s, "\nlinear_fwd ");
	assert_non_null(row);
	assert_int_equal(
		sscanf(row, " linear_fwd %lld %lf %lf %lf", &calls, &ms, &us, &part), 4);
	assert_int_equal(calls, 2);
	assert_near(us, 1e3 * ms / 2, 0.5 + 1e-3 * us);
	assert_true(part >= 0 && part <= 100); /* 0.0: on a busy machine */
	row = strstr(table.s, "\nzero ");
	assert_non_null(row);
	assert_int_equal(sscanf(row, " zero %lld", &calls), 1);
	assert_int_equal(calls, OFTEN);
	assert_null(strstr(table.s, "copy"));
	str_clear(&table);
	device_profile_end(d, &table); /* none was begun */
	assert_int_equal(table.len, 0);
	str_free(&table);
}

/* What is asked for is done in that order, whichever way numbers go. */
DEVICE_TEST(order)
{
	enum { N = 3000, TURNS = 40 };
	float *there = device_alloc(d, N * sizeof(float)), here[N], back[N];
	assert_non_null(there);
	for (int turn = 0; turn < TURNS; turn++) {
		for (int i = 0; i < N; i++)
			here[i] = (float)(turn * N + i);
		device_put(d, there, here, sizeof(here));
		memset(here, 0, sizeof(here));
		d->k->add(d, mat(there, 1, N), mat(there, 1, N), mat(there, 1, N));
		if (turn % 3)
			continue;
		device_get(d, back, there, sizeof(back));
		for (int i = 0; i < N; i++)
			assert_true(back[i] == (float)(2 * (turn * N + i)));
	}
	device_free(d, there, N * sizeof(float));
}

/* ---- commands -------------------------------------------------------------------- */

static void work(struct device *d)
{
	enum { ROWS = 33, COLS = 65 };
	float *x = device_alloc(d, ROWS * COLS * sizeof(float));
	struct mat m = mat(x, ROWS, COLS);
	d->k->zero(d, m);
	d->k->add(d, m, m, m);
	d->k->sub(d, m, m, m);
	device_wait(d);
	printf("done\n");
}

/* All the memory, piece by piece, and then a product that needs some for itself. */
static void fill(struct device *d)
{
	enum { SIDE = 1024 };
	int64_t n_bytes = 0;
	uint8_t *x = device_alloc(d, SIDE * SIDE);
	float *y = device_alloc(d, SIDE * SIDE * sizeof(float));
	for (size_t piece = (size_t)1 << 40; piece >= 4096; piece /= 2)
		while (device_alloc(d, piece))
			n_bytes += (int64_t)piece;
	printf("%lld bytes\n", (long long)n_bytes);
	fflush(stdout);
	struct mat m = mat_typed(x, SIDE, SIDE, DT_E4M3);
	d->k->linear_bwd_x(d, mat(y, SIDE, SIDE), m, m, false);
	device_wait(d);
}

static void room(struct device *d)
{
	int64_t used, left;
	device_memory(d, &used, &left);
	printf("%lld\n", (long long)left);
}

static int command(const char *what)
{
	struct device_options o = {.exact = true, .measure = true};
	struct device d;
	struct err e = {0};
	enum device_kind kind = !strcmp(what, "auto") ? DEVICE_AUTO : DEVICE_CUDA;
	log_name("test_device");
	if (device_open(&d, kind, &o, &e))
		die_err(&e);
	if (!strcmp(what, "work"))
		work(&d);
	else if (!strcmp(what, "fill"))
		fill(&d);
	else if (!strcmp(what, "room"))
		room(&d);
	else
		printf("%s\n", d.name);
	device_close(&d);
	return 0;
}

int main(int argc, char **argv)
{
	return argc == 2 ? command(argv[1]) : run_on_device();
}
