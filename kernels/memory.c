/* Arenas in the memory of a device. */
#include "kernels/device.h"

struct device_span {
	const char *begin;
	size_t n_bytes;
};

/* Adds a range of device memory to the ranges that device_owns() searches. */
static void add_span(struct device *d, const void *p, size_t n_bytes)
{
	d->spans = xrealloc(d->spans, (size_t)(d->n_spans + 1) * sizeof(*d->spans));
	d->spans[d->n_spans++] = (struct device_span){p, n_bytes};
}

/* Removes the range that begins at p from the device's list; frees the list when it is empty. */
static void remove_span(struct device *d, const void *p)
{
	for (int i = 0; i < d->n_spans; i++) {
		if (d->spans[i].begin != p)
			continue;
		d->spans[i] = d->spans[--d->n_spans];
		break;
	}
	if (d->n_spans)
		return;
	free(d->spans);
	d->spans = NULL;
}

bool device_owns(const struct device *d, const void *p)
{
	for (int i = 0; i < d->n_spans; i++)
		if ((uintptr_t)p - (uintptr_t)d->spans[i].begin < d->spans[i].n_bytes)
			return true;
	return false;
}

/* Initializes an arena over a library's memory, and counts its bytes as taken from the device. */
void device_arena_over(
	struct device *d, struct arena *a, const char *name, void *base, size_t n_bytes)
{
	arena_init_over(a, name, base, n_bytes);
	add_span(d, base, n_bytes);
	d->taken_bytes += (int64_t)n_bytes;
	d->peak_bytes = max64(d->peak_bytes, d->taken_bytes);
}

/* Clears an arena over a library's memory, and no longer counts its bytes; frees nothing. */
void device_arena_forget(struct device *d, struct arena *a)
{
	remove_span(d, a->base);
	d->taken_bytes -= (int64_t)a->size_bytes;
	*a = (struct arena){0};
}

/* Allocates an arena, in host memory unless the device has its own; ends the program on failure. */
void device_arena_init(
	struct device *d, struct arena *a, const char *name, size_t n_bytes)
{
	char text[NUM_TEXT];
	if (!d->discrete) {
		arena_init(a, name, n_bytes);
		return;
	}
	void *base = n_bytes ? device_alloc(d, n_bytes) : NULL;
	if (n_bytes && !base)
		die(EX_FAILED, "out of memory on the GPU: cannot allocate %s for %s%s",
			text_bytes(text, (double)n_bytes), name,
			advice_on(ADVICE_GPU_MEMORY));
	if (base)
		device_arena_over(d, a, name, base, n_bytes);
	else
		arena_init_over(a, name, NULL, 0);
}

/* Frees the memory of an arena of device_arena_init(), and clears the arena. */
void device_arena_release(struct device *d, struct arena *a)
{
	if (!d->discrete) {
		arena_release(a);
		return;
	}
	if (a->size_bytes && !arena_is_measuring(a)) {
		device_free(d, a->base, a->size_bytes);
		device_arena_forget(d, a);
	}
	*a = (struct arena){0};
}
