/* Offloading by a device: each request sees those that it follows, whatever is late.
 * device: cpu cuda
 */
#include "tests/support/device.h"
#include "tests/support/support.h"
#include "parallel/offload.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 5, PLACES = 7, N = 3000, REQUESTS = 400, BYTES = N * sizeof(float) };

static struct device device;

/* What slots of the device's memory and places of the backend must have, and their last requests. */
static float in_slot[SLOTS][N], in_place[PLACES][N];
static uint64_t slot_ticket[SLOTS], place_ticket[PLACES];
static bool place_written[PLACES];

static void fill(float *x, int request)
{
	for (int k = 0; k < N; k++)
		x[k] = (float)(request * N + k);
}

/* A request for a random run of a place. One in the direction opposite to the last one of its place
 * waits for that; the slot waits always. */
static void ask(struct offload_backend *x, float *const slot[SLOTS], int request)
{
	int s = rand() % SLOTS, p = rand() % PLACES, at = rand() % (N / 2);
	int n = 2 + rand() % (N - at - 2);
	bool write = rand() % 2;
	x->wait(x, slot_ticket[s]);
	if (place_ticket[p] && place_written[p] != write)
		x->wait(x, place_ticket[p]);
	if (write) {
		fill(in_slot[s], request);
		device_put(&device, slot[s], in_slot[s], BYTES);
		memcpy(in_place[p] + at, in_slot[s], (size_t)n * sizeof(float));
	} else {
		memcpy(in_slot[s], in_place[p] + at, (size_t)n * sizeof(float));
	}
	uint64_t after = slot_ticket[s];
	for (int i = 0; i < 2;
		i++) { /* who waits for the second half has the first one too */
		int64_t from = part_begin(n, 2, i), len = part_begin(n, 2, i + 1) - from;
		slot_ticket[s] = place_ticket[p] =
			x->enqueue(x, write, slot[s] + from, len * (int64_t)sizeof(float),
				(p * N + at + from) * (int64_t)sizeof(float), after);
	}
	place_written[p] = write;
}

static void compare(struct offload_backend *x, float *const slot[SLOTS])
{
	static float out[N];
	for (int s = 0; s < SLOTS; s++) {
		x->wait(x, slot_ticket[s]);
		device_get(&device, out, slot[s], BYTES);
		assert_memory_equal(out, in_slot[s], BYTES);
	}
	for (int p = 0; p < PLACES; p++) {
		x->copy(x, false, out, BYTES, p * (int64_t)BYTES);
		assert_memory_equal(out, in_place[p], BYTES);
	}
}

static void requests(bool file)
{
	struct err e = {0};
	float *slot[SLOTS];
	const int64_t n_bytes = PLACES * BYTES;
	struct offload_backend *x =
		file ? offload_staged_open(&device, test_folder(), n_bytes, &e)
		     : offload_host_open(&device, n_bytes, &e);
	assert_non_null(x);
	memset(in_slot, 0, sizeof(in_slot));
	memset(in_place, 0, sizeof(in_place));
	memset(slot_ticket, 0, sizeof(slot_ticket));
	memset(place_ticket, 0, sizeof(place_ticket));
	for (int s = 0; s < SLOTS; s++) {
		slot[s] = device_alloc(&device, BYTES);
		device_put(&device, slot[s], in_slot[s], BYTES);
	}
	srand(1);
	for (int i = 0; i < REQUESTS; i++) {
		ask(x, slot, i);
		if (i % 50 == 49)
			compare(x, slot);
	}
	for (int s = 0; s < SLOTS; s++)
		device_free(&device, slot[s], BYTES);
	offload_backend_close(x);
}

TEST(in_order)
{
	static const char *const late[] = {NULL, "yes", "first"};
	const struct device_options o = {.exact = true};
	struct err e = {0};
	for (size_t how = 0; how < ARRAY_LEN(late); how++) {
		if (late[how])
			setenv("PT_EMU_LAZY", late[how], 1);
		else
			unsetenv("PT_EMU_LAZY");
		if (device_open(
			    &device, test_on_cuda() ? DEVICE_CUDA : DEVICE_CPU, &o, &e))
			die_err(&e);
		requests(false);
		requests(true);
		device_close(&device);
	}
	unsetenv("PT_EMU_LAZY");
}

TEST(no_folder)
{
	struct err e = {0};
	device_open_cpu(&device, 1);
	assert_null(offload_staged_open(&device, "no-such-folder", BYTES, &e));
	assert_int_equal(e.code, EX_IOERR);
}
