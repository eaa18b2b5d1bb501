/* The CPU's memory is the program's: nothing to bring, nobody to wait for. */
#include "kernels/cpu/cpu.h"

#include <sys/mman.h>

void K(put)(struct device *d, void *to, const void *from, size_t n_bytes)
{
	(void)d;
	if (n_bytes)
		memcpy(to, from, n_bytes);
}

void K(get)(struct device *d, void *to, const void *from, size_t n_bytes)
{
	K(put)(d, to, from, n_bytes);
}

void K(get_begin)(struct device *d, void *to, const void *from, size_t n_bytes)
{
	K(put)(d, to, from, n_bytes);
}

void K(get_end)(struct device *d)
{
	(void)d;
}

/* As an arena's block: pages that are zero, and cost nothing until they are touched. */
void *K(alloc)(struct device *d, size_t n_bytes)
{
	struct arena pages;
	(void)d;
	return arena_try(&pages, "", n_bytes) ? NULL : pages.base;
}

void K(free)(struct device *d, void *p, size_t n_bytes)
{
	(void)d;
	if (p)
		munmap(p, n_bytes);
}

void K(wait)(struct device *d)
{
	(void)d;
}
