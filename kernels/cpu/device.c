/* The CPU as a device: it shares the host's memory, and every call is synchronous. */
#include "kernels/backend.h"
#include "kernels/cpu/cpu.h"

#include <omp.h>
#include <sys/mman.h>

/* Gets the free bytes of the host; `used` is not known, 0. */
static void get_memory(const struct device *d, int64_t *used, int64_t *free_now)
{
	*used = 0;
	*free_now = memory_available();
}

/* Allocates zero pages, which use no memory until they are touched. */
static void *alloc_pages(struct device *d, size_t n_bytes)
{
	struct arena pages;
	return arena_try_init(&pages, "", n_bytes) ? NULL : pages.base;
}

static void free_pages(struct device *d, void *p, size_t n_bytes)
{
	if (p)
		munmap(p, n_bytes);
}

static void *alloc_shared(struct device *d, size_t n_bytes)
{
	return malloc(n_bytes ? n_bytes : 1);
}

static void free_shared(struct device *d, void *p)
{
	free(p);
}

static void copy_bytes(struct device *d, void *to, const void *from, size_t n_bytes)
{
	if (n_bytes)
		memcpy(to, from, n_bytes);
}

/* Copies synchronously; returns 0, a ticket that is complete. */
static uint64_t copy_now(struct device *d, bool out, void *to, const void *from,
	size_t n_bytes, uint64_t after)
{
	copy_bytes(d, to, from, n_bytes);
	return 0;
}

/* Charges the time since the last call to its phase, and begins the phase `what`. */
static void timer_start(struct device *d, enum device_timer what)
{
	double now = clock_seconds();
	d->timer.seconds[d->timer.what] += now - d->timer.since;
	d->timer.since = now;
	d->timer.what = what;
}

/* Gets the seconds of each phase, unless NULL, and resets them to 0. */
static void timer_read(struct device *d, double seconds[N_DEVICE_TIMERS])
{
	if (seconds)
		memcpy(seconds, d->timer.seconds, sizeof(d->timer.seconds));
	memset(d->timer.seconds, 0, sizeof(d->timer.seconds));
}

const struct device_ops cpu_device_ops = {
	.memory = get_memory,
	.alloc = alloc_pages,
	.free = free_pages,
	.shared = alloc_shared,
	.shared_free = free_shared,
	.put = copy_bytes,
	.get = copy_bytes,
	.get_begin = copy_bytes,
	.copy_begin = copy_now,
	.timer_start = timer_start,
	.timer_read = timer_read,
};

/* Opens the CPU with the kernels of the selected instruction set; sizes the thread pool. */
void device_open_cpu(struct device *d, int threads)
{
	static const struct kernels *const tables[] = {
		&cpu_sse2_kernels,
#if defined(__x86_64__)
		&cpu_avx2_kernels,
		&cpu_avx512_kernels,
		&cpu_avx512_kernels,
		&cpu_avx512_kernels,
#endif
	};
	device_init(d, DEVICE_CPU, tables[cpu_isa_use()], &cpu_device_ops);
	d->threads = threads > 0 ? threads : cpu_count();
	omp_set_num_threads(d->threads);
}
