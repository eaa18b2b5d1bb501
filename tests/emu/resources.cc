/* What a kernel may use: the dynamic shared memory that cudaFuncSetAttribute() permits, its static
 * shared memory, and its __launch_bounds__. */
#include "tests/emu/inside.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	MAX_KERNELS = 4096,
	DEFAULT_SHARED = 48 << 10,
	CHECKED = 4 /* launches of a kernel in which its static memory is searched */
};

struct emu_kernel {
	const void *fn;
	const char *name;
	size_t may, static_bytes; /* may: dynamic shared memory, or 0: no attribute */
	bool *uses;		  /* of each variable in static shared memory */
	int checked;
	bool is_hopper;	     /* some launch has used features of sm_90 */
	int threads, blocks; /* bounds; 0: none */
};

static struct emu_kernel kernels[MAX_KERNELS];
static pthread_mutex_t kernels_lock = PTHREAD_MUTEX_INITIALIZER;

size_t emu_max_shared(void)
{
	return emu_arch() >= 90 ? 227 << 10 : 163 << 10;
}

/* ---- bounds ---------------------------------------------------------------------------- */

/* The addresses of the no-operations before each kernel: emu_bounds() of them. */
extern const unsigned char *const bounds_begin[] __asm__(
	"__start___patchable_function_entries") __attribute__((visibility("hidden")));
extern const unsigned char *const bounds_end[] __asm__(
	"__stop___patchable_function_entries") __attribute__((visibility("hidden")));

static void bounds_read(struct emu_kernel *k)
{
	enum { NOP = 0x90, WARPS = 32 };
	const unsigned char *fn = (const unsigned char *)k->fn, *from = NULL, *p;
	for (const unsigned char *const *at = bounds_begin; at < bounds_end; at++)
		if (*at < fn && (!from || *at > from))
			from = *at;
	for (p = from; p && p < fn && *p == NOP; p++)
		;
	if (!p || p < fn)
		return;
	k->threads = ((int)(fn - from) - 1) % WARPS * 32 + 32;
	k->blocks = ((int)(fn - from) - 1) / WARPS;
}

struct emu_kernel *emu_kernel_of(const void *fn, const char *name)
{
	size_t i = (uintptr_t)fn / 16 % MAX_KERNELS;
	if (!fn)
		return NULL;
	pthread_mutex_lock(&kernels_lock);
	for (int tries = 0; kernels[i].fn && kernels[i].fn != fn;
		i = (i + 1) % MAX_KERNELS)
		if (++tries == MAX_KERNELS)
			emu_stop("more than %d kernels", MAX_KERNELS);
	if (!kernels[i].fn) {
		kernels[i].fn = fn;
		kernels[i].name = "";
		bounds_read(&kernels[i]);
	}
	if (name)
		kernels[i].name = name;
	pthread_mutex_unlock(&kernels_lock);
	return &kernels[i];
}

cudaError_t cudaFuncSetAttribute(const void *fn, enum cudaFuncAttribute attr, int value)
{
	struct emu_kernel *k = emu_kernel_of(fn, NULL);
	if (!k || attr != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
		(size_t)value + k->static_bytes > emu_max_shared())
		return emu_gives(cudaErrorInvalidValue);
	k->may = (size_t)value;
	return emu_gives(cudaSuccess);
}

/* ---- static shared memory --------------------------------------------------------------- */

static struct variable {
	size_t at, n; /* offset in thread-local memory */
} * variables;
static int n_variables;

/* Reads the thread-local variables of this library from its file, at the first launch. */
static void variables_read(const char *path)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st))
		emu_stop("%s, the emulator itself, cannot be read", path);
	char *p = (char *)mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	if (p == MAP_FAILED)
		emu_stop("%s, the emulator itself, cannot be read", path);
	const Elf64_Ehdr *h = (const Elf64_Ehdr *)p;
	const Elf64_Shdr *section = (const Elf64_Shdr *)(p + h->e_shoff);
	for (const Elf64_Shdr *s = section; s < section + h->e_shnum; s++) {
		const Elf64_Sym *symbol = (const Elf64_Sym *)(p + s->sh_offset);
		size_t n = s->sh_type == SHT_SYMTAB ? s->sh_size / sizeof(*symbol) : 0;
		variables = (struct variable *)realloc(
			variables, ((size_t)n_variables + n + 1) * sizeof(*variables));
		for (size_t i = 0; i < n; i++)
			if (ELF64_ST_TYPE(symbol[i].st_info) == STT_TLS)
				variables[n_variables++] = {(size_t)symbol[i].st_value,
					(size_t)symbol[i].st_size};
	}
	munmap(p, (size_t)st.st_size);
	if (!n_variables)
		emu_stop("%s has no symbols", path);
}

bool emu_was_written(const char *p, size_t n)
{
	return n && ((unsigned char)*p != 0xff || memcmp(p, p + 1, n - 1));
}

/* After a block, whose shared memory began as NaN: finds the variables that it wrote. */
void emu_kernel_check(struct emu_kernel *k, size_t dynamic_bytes, const char *memory,
	size_t n, const char *path)
{
	if (!k || k->checked == CHECKED)
		return;
	k->checked++;
	if (!n_variables && n)
		variables_read(path);
	if (!k->uses)
		k->uses = (bool *)calloc((size_t)n_variables + 1, sizeof(bool));
	for (int i = 0; i < n_variables && emu_was_written(memory, n); i++) {
		const struct variable *v = &variables[i];
		if (k->uses[i] || !emu_was_written(memory + v->at, v->n))
			continue;
		k->uses[i] = true;
		k->static_bytes += (v->n + 15) / 16 * 16;
	}
	emu_kernel_fits(k, dynamic_bytes);
}

void emu_kernel_hopper(struct emu_kernel *k)
{
	if (k)
		k->is_hopper = true;
}

bool emu_kernel_at_once(const struct emu_kernel *k)
{
	return k && k->is_hopper && !k->static_bytes;
}

/* ---- launches --------------------------------------------------------------------------- */

void emu_kernel_fits(const struct emu_kernel *k, size_t dynamic_bytes)
{
	size_t fixed = k ? k->static_bytes : 0, all = fixed + dynamic_bytes;
	bool is_default =
		k && dynamic_bytes + fixed > DEFAULT_SHARED && k->may < dynamic_bytes;
	if (all > emu_max_shared() || is_default)
		emu_stop("%s: %zu bytes of shared memory, %zu of them static; %zu are "
			 "allowed",
			k ? k->name : "", all, fixed,
			is_default ? (size_t)DEFAULT_SHARED : emu_max_shared());
}

void emu_kernel_bounds(const struct emu_kernel *k, unsigned n_threads)
{
	enum { MULTIPROCESSOR = 2048 };
	if (!k || !k->threads)
		return;
	if (n_threads > (unsigned)k->threads)
		emu_stop("%s: a block of %u threads; its __launch_bounds__ allow %d",
			k->name, n_threads, k->threads);
	if (k->blocks * k->threads > MULTIPROCESSOR)
		emu_stop("%s: %d blocks of %d threads do not fit, as its "
			 "__launch_bounds__ want",
			k->name, k->blocks, k->threads);
}

int emu_kernel_registers(const struct emu_kernel *k, int n_threads)
{
	int threads = k && k->threads ? k->threads : n_threads;
	int each = (64 << 10) / (threads * (k && k->blocks ? k->blocks : 1)) / 8 * 8;
	return each < 256 ? each : 256;
}

cudaError_t emu_cluster_of(const cudaLaunchConfig_t *how, unsigned *cluster)
{
	*cluster = 1;
	for (unsigned i = 0; i < how->numAttrs; i++) {
		const auto &dim = how->attrs[i].val.clusterDim;
		if (how->attrs[i].id != cudaLaunchAttributeClusterDimension ||
			dim.y != 1 || dim.z != 1)
			return emu_gives(cudaErrorInvalidValue);
		*cluster = dim.x;
	}
	bool good = *cluster && *cluster <= EMU_MAX_ALIVE &&
		    how->gridDim.x % *cluster == 0 && (*cluster == 1 || emu_arch() >= 90);
	return emu_gives(good ? cudaSuccess : cudaErrorInvalidClusterSize);
}
