/* What the processor has. */
#include "kernels/cpu/cpu.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

static const char *const names[] = {"sse2", "avx2", "avx512", "avx512_bf16"};

static int widest(void)
{
#if defined(__x86_64__)
	__builtin_cpu_init();
	if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
		return ISA_SSE2;
	if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
		!__builtin_cpu_supports("avx512dq") ||
		!__builtin_cpu_supports("avx512vl"))
		return ISA_AVX2;
	return __builtin_cpu_supports("avx512bf16") ? ISA_AVX512_BF16 : ISA_AVX512;
#else
	return ISA_SSE2;
#endif
}

enum isa cpu_isa(void)
{
	int most = widest();
	const char *want = getenv("PT_ISA");
	if (!want || !*want)
		return (enum isa)most;
	for (int i = 0; i < (int)ARRAY_LEN(names); i++) {
		if (strcmp(want, names[i]))
			continue;
		if (i > most)
			die(EX_USAGE, "PT_ISA: this processor has no %s", want);
		return (enum isa)i;
	}
	die(EX_USAGE, "PT_ISA: '%s' is none of sse2, avx2, avx512, avx512_bf16", want);
}

static atomic_int in_use = -1;

enum isa cpu_isa_in_use(void)
{
	int isa = atomic_load_explicit(&in_use, memory_order_relaxed);
	return isa >= 0 ? (enum isa)isa : cpu_isa_use();
}

enum isa cpu_isa_use(void)
{
	enum isa isa = cpu_isa();
	atomic_store_explicit(&in_use, (int)isa, memory_order_relaxed);
	return isa;
}

const char *device_isa(void)
{
	return names[cpu_isa()];
}

int cpu_count(void)
{
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof(set), &set))
		return 1;
	return CPU_COUNT(&set);
}
