/* Opening the CPU. */
#include "kernels/cpu/cpu.h"

#include <omp.h>

void device_cpu(struct device *d, int threads)
{
	static const struct kernels *const tables[] = {
		&cpu_sse2_kernels,
#if defined(__x86_64__)
		&cpu_avx2_kernels,
		&cpu_avx512_kernels,
#endif
	};
	device_init(d, tables[cpu_isa()], DEVICE_CPU);
	d->threads = threads > 0 ? threads : cpu_count();
	omp_set_num_threads(d->threads);
}
