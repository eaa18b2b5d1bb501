/* The instruction sets and CPUs that this process can use. */
#include "kernels/cpu/cpu.h"

#include <sched.h>
#include <stdatomic.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static const char *const isa_names[] = {
	"sse2", "avx2", "avx512", "avx512_bf16", "amx_bf16"};

#if defined(__x86_64__)
/* Returns true if Linux (5.16 and later) saves the 8 KiB of AMX registers for this process, which
 * asks for them by ARCH_REQ_XCOMP_PERM. */
static bool has_amx(void)
{
	enum { LEAF = 7, BF16 = 1 << 22, TILE = 1 << 24 };
	enum { REQUEST = 0x1023, TILE_DATA = 18 };
	unsigned a, b, c, d;
	return __get_cpuid_count(LEAF, 0, &a, &b, &c, &d) && d & BF16 && d & TILE &&
	       !syscall(SYS_arch_prctl, REQUEST, TILE_DATA);
}
#endif

/* Returns the widest instruction set that this CPU and pt have. Requests AMX from Linux. */
static int widest_isa(void)
{
#if defined(__x86_64__)
	__builtin_cpu_init();
	if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
		return ISA_SSE2;
	if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
		!__builtin_cpu_supports("avx512dq") ||
		!__builtin_cpu_supports("avx512vl"))
		return ISA_AVX2;
	if (!__builtin_cpu_supports("avx512bf16"))
		return ISA_AVX512;
	return has_amx() ? ISA_AMX_BF16 : ISA_AVX512_BF16;
#else
	return ISA_SSE2;
#endif
}

enum isa cpu_isa(void)
{
	int widest = widest_isa();
	const char *want = getenv("PT_ISA");
	if (!want || !*want)
		return (enum isa)widest;
	for (int i = 0; i < (int)ARRAY_LEN(isa_names); i++) {
		if (strcmp(want, isa_names[i]))
			continue;
		if (i > widest)
			die(EX_USAGE, "PT_ISA: this processor does not support '%s'",
				want);
		return (enum isa)i;
	}
	die(EX_USAGE,
		"PT_ISA: '%s' is not one of sse2, avx2, avx512, avx512_bf16, amx_bf16",
		want);
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
	return isa_names[cpu_isa()];
}

int cpu_count(void)
{
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof(set), &set))
		return 1;
	return CPU_COUNT(&set);
}
