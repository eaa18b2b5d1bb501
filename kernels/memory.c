/* Arenas in the memory of a device. */
#include "kernels/device.h"

struct device_span {
	const char *begin;
	size_t n_bytes;
};

static void add_span(struct device *d, const void *p, size_t n_bytes)
{
	d->spans = xrealloc(d->spans, (size_t)(d->n_spans + 1) * sizeof(*d->spans));
	d->spans[d->n_spans++] = (struct device_span){p, n_bytes};
}

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

void device_arena_over(
	struct device *d, struct arena *a, const char *name, void *base, size_t n_bytes)
{
	arena_over(a, name, base, n_bytes);
	add_span(d, base, n_bytes);
	d->taken_bytes += (int64_t)n_bytes;
	d->peak_bytes = max64(d->peak_bytes, d->taken_bytes);
}

void device_arena_forget(struct device *d, struct arena *a)
{
	remove_span(d, a->base);
	d->taken_bytes -= (int64_t)a->size_bytes;
	*a = (struct arena){0};
}

void device_arena(struct device *d, struct arena *a, const char *name, size_t n_bytes)
{
	char text[NUM_TEXT];
	if (!d->discrete) {
		arena_init(a, name, n_bytes);
		return;
	}
	void *base = n_bytes ? device_alloc(d, n_bytes) : NULL;
	if (n_bytes && !base)
		die(EX_FAILED, "out of memory on the device: %s for %s%s",
			text_bytes(text, (double)n_bytes), name,
			advice_on(ADVICE_GPU_MEMORY));
	if (base)
		device_arena_over(d, a, name, base, n_bytes);
	else
		arena_over(a, name, NULL, 0);
}

void device_arena_release(struct device *d, struct arena *a)
{
	if (!d->discrete) {
		arena_release(a);
		return;
	}
	if (a->size_bytes && !arena_measuring(a)) {
		device_free(d, a->base, a->size_bytes);
		device_arena_forget(d, a);
	}
	*a = (struct arena){0};
}
