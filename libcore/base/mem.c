/* Memory: the x-allocators and arenas. */
#include "base/file.h"

#include <sys/mman.h>

enum { ALIGN = 64 };

static _Noreturn void out_of_memory(size_t n_bytes)
{
	char text[NUM_TEXT];
	die(EX_FAILED, "out of memory: cannot allocate %s",
		text_bytes(text, (double)n_bytes));
}

void *xmalloc(size_t n_bytes)
{
	void *p = malloc(n_bytes ? n_bytes : 1);
	if (!p)
		out_of_memory(n_bytes);
	return p;
}

void *xcalloc(size_t n, size_t element_bytes)
{
	void *p = calloc(n ? n : 1, element_bytes ? element_bytes : 1);
	if (!p)
		out_of_memory(n * element_bytes);
	return p;
}

void *xrealloc(void *old, size_t n_bytes)
{
	void *p = realloc(old, n_bytes ? n_bytes : 1);
	if (!p)
		out_of_memory(n_bytes);
	return p;
}

void *xgrow(void *p, int64_t n, size_t element_bytes)
{
	bool is_full = (n & (n - 1)) == 0; /* 0, or a power of two */
	return is_full ? xrealloc(p, (size_t)max64(1, 2 * n) * element_bytes) : p;
}

char *xstrdup(const char *s)
{
	size_t n = strlen(s) + 1;
	return memcpy(xmalloc(n), s, n);
}

int64_t memory_available(void)
{
	scoped_str text = {0};
	int64_t kib = 0;
	if (!file_read("/proc/meminfo", 1 << 16, &text, &(struct err){0}) && text.s) {
		const char *free_now = strstr(text.s, "MemAvailable:");
		const char *swap = strstr(text.s, "SwapFree:");
		kib = free_now ? atoll(free_now + strlen("MemAvailable:")) : 0;
		kib += kib && swap ? atoll(swap + strlen("SwapFree:")) : 0;
	}
	return kib * 1024;
}

void arena_measure(struct arena *a, const char *name)
{
	*a = (struct arena){.name = name, .base = (char *)ALIGN, .size_bytes = SIZE_MAX};
}

/* Maps pages: they are zero, take no memory until touched, and may be huge, for faster matmuls. */
int arena_try_init(struct arena *a, const char *name, size_t size_bytes)
{
	*a = (struct arena){.name = name};
	if (!size_bytes)
		return 0;
	char *base = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED)
		return -1;
	madvise(base, size_bytes, MADV_HUGEPAGE);
	a->base = base;
	a->size_bytes = size_bytes;
	return 0;
}

void arena_init(struct arena *a, const char *name, size_t size_bytes)
{
	char text[NUM_TEXT];
	if (arena_try_init(a, name, size_bytes))
		die(EX_FAILED, "out of memory: %s for %s%s",
			text_bytes(text, (double)size_bytes), name,
			advice_on(ADVICE_MEMORY));
}

void arena_init_over(struct arena *a, const char *name, void *base, size_t size_bytes)
{
	*a = (struct arena){.name = name, .base = base, .size_bytes = size_bytes};
}

void arena_release(struct arena *a)
{
	if (a->size_bytes && !arena_is_measuring(a))
		munmap(a->base, a->size_bytes);
	*a = (struct arena){0};
}

void *arena_alloc(struct arena *a, size_t n_bytes)
{
	size_t begin = a->used_bytes;
	size_t aligned_bytes = (n_bytes + ALIGN - 1) / ALIGN * ALIGN;
	BUG_ON(aligned_bytes < n_bytes || aligned_bytes > a->size_bytes - begin);
	a->used_bytes = begin + aligned_bytes;
	if (a->used_bytes > a->peak_bytes)
		a->peak_bytes = a->used_bytes;
	return a->base + begin;
}
