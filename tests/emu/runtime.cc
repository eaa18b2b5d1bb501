/* The part of the CUDA runtime that we use, on the emulator, with its names and prototypes.
 *
 * Device memory is protected: only kernels and copies can access it, and a program that reads
 * it crashes at once. PT_EMU_GUARD=no: no protection. PT_EMU_MEMORY: bytes of device memory;
 * PT_EMU_PINNED: bytes of host memory that can be pinned. PT_EMU_GPUS: number of GPUs;
 * PT_EMU_GPU: the number on the host of the first. PT_EMU_ARCH: their compute capability, 90
 * or 80. PT_EMU_FAIL=N: launch N breaks the device, as a faulty kernel does. PT_EMU_LOAD=N:
 * no memory to load the kernel of launch N. PT_EMU_BREAK=NAME: launches of this function of
 * kernels.h omit their last block, and its matmuls do nothing. PT_EMU_SEED: of the order in which
 * blocks that run at once go on. */
#include "tests/emu/inside.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, ALIGN = 256, MAX_PIECES = 4096, FILLED = 32 << 20 };

/* ---- errors ------------------------------------------------------------------------- */

static cudaError_t last, broken; /* `broken` stays */

cudaError_t emu_gives(cudaError_t rc)
{
	if (broken)
		rc = broken;
	if (rc)
		last = rc;
	return rc;
}

bool emu_breaks(void)
{
	static long launches;
	const char *fail = getenv("PT_EMU_FAIL"), *load = getenv("PT_EMU_LOAD");
	if (++launches == (fail ? atol(fail) : 0))
		last = broken = cudaErrorIllegalAddress;
	bool unloaded = launches == (load ? atol(load) : 0);
	if (unloaded)
		last = cudaErrorMemoryAllocation;
	return unloaded || broken != cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
	cudaError_t rc = last;
	last = broken;
	return rc;
}

cudaError_t cudaPeekAtLastError(void)
{
	return last;
}

static const struct {
	cudaError_t rc;
	const char *name, *text;
} errors[] = {
	{cudaSuccess, "cudaSuccess", "no error"},
	{cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
	{cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
	{cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
		"invalid copy direction for memcpy"},
	{cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
	{cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle",
		"invalid resource handle"},
	{cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
	{cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
		"operation not permitted when stream is capturing"},
	{cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
		"operation failed due to a previous error during capture"},
	{cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
		"capturing stream has unjoined work"},
	{cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
		"dependency created on uncaptured work in another stream"},
	{cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
		"operation not permitted on an event last recorded in a capturing stream"},
	{cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
		"an illegal memory access was encountered"},
};

const char *cudaGetErrorName(cudaError_t rc)
{
	for (const auto &e : errors)
		if (e.rc == rc)
			return e.name;
	return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t rc)
{
	for (const auto &e : errors)
		if (e.rc == rc)
			return e.text;
	return "unrecognized error code";
}

/* ---- memory ------------------------------------------------------------------------- */

struct piece {
	char *at, *map;
	size_t n_bytes, mapped_bytes;
	bool device;
};

static struct piece pieces[MAX_PIECES];
static int n_pieces, n_open;
static size_t used_bytes, pinned_bytes;
static pthread_mutex_t memory = PTHREAD_MUTEX_INITIALIZER;

static bool guarded(void)
{
	const char *guard = getenv("PT_EMU_GUARD");
	return !guard || strcmp(guard, "no");
}

static size_t limit_of(const char *name, size_t otherwise)
{
	const char *limit = getenv(name);
	return limit ? (size_t)strtoull(limit, NULL, 0) : otherwise;
}

static size_t limit_bytes(void)
{
	return limit_of("PT_EMU_MEMORY", (size_t)4 << 30);
}

static size_t *taken(bool device)
{
	return device ? &used_bytes : &pinned_bytes;
}

/* A protection key locks and unlocks all device memory at once; without support by the
 * processor, mprotect() does. */
static int memory_key(void)
{
	static int key = -2;
	if (key == -2)
		key = guarded() ? pkey_alloc(0, PKEY_DISABLE_ACCESS) : -1;
	return key;
}

static void piece_protect(const struct piece *p)
{
	int both = PROT_READ | PROT_WRITE;
	size_t n = p->mapped_bytes - PAGE;
	int failed = 0;
	if (!p->device)
		return;
	if (memory_key() >= 0)
		failed = pkey_mprotect(p->map, n, both, memory_key());
	else
		failed = mprotect(p->map, n, n_open || !guarded() ? both : PROT_NONE);
	if (failed)
		emu_stop("memory cannot be protected");
}

void emu_memory(bool open)
{
	pthread_mutex_lock(&memory);
	n_open += open ? 1 : -1;
	if (memory_key() >= 0)
		pkey_set(memory_key(), n_open ? 0 : PKEY_DISABLE_ACCESS);
	else if (guarded() && n_open == open)
		for (int i = 0; i < n_pieces; i++)
			piece_protect(&pieces[i]);
	pthread_mutex_unlock(&memory);
}

/* Makes all bytes 0xff. Of much memory a page costs nothing until it is touched: it is a private copy of
 * a page of such bytes. (Clearing and filling 84 MiB took a sixth of a short run.) */
static void fill(char *at, size_t n_bytes)
{
	enum { CHUNK = 1 << 20 };
	static char full[CHUNK];
	static int fd = -1;
	if (n_bytes >= CHUNK && fd < 0 &&
		(fd = memfd_create("emulated-gpu", MFD_CLOEXEC)) >= 0) {
		memset(full, 0xff, CHUNK);
		if (write(fd, full, CHUNK) != CHUNK)
			emu_stop("no memory for device memory");
	}
	for (; n_bytes >= CHUNK && fd >= 0; at += CHUNK, n_bytes -= CHUNK)
		if (mmap(at, CHUNK, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED)
			emu_stop("no memory for device memory");
	memset(at, 0xff, n_bytes);
}

/* A guard page follows the memory. New memory is not zero. */
static cudaError_t piece_make(void **out, size_t n_bytes, bool device)
{
	size_t n = (n_bytes + ALIGN - 1) / ALIGN * ALIGN;
	size_t mapped = (n + PAGE - 1) / PAGE * PAGE + PAGE;
	if (emu_safe())
		return last;
	if (broken || !out)
		return emu_gives(cudaErrorInvalidValue);
	*out = NULL;
	if (!n_bytes)
		return cudaSuccess;
	size_t most = device ? limit_bytes() : limit_of("PT_EMU_PINNED", SIZE_MAX);
	if (n_pieces == MAX_PIECES || n > most - *taken(device))
		return emu_gives(cudaErrorMemoryAllocation);
	char *map = (char *)mmap(NULL, mapped, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (map == MAP_FAILED)
		return emu_gives(cudaErrorMemoryAllocation);
	struct piece p = {map + mapped - PAGE - n, map, n_bytes, mapped, device};
	mprotect(map + mapped - PAGE, PAGE, PROT_NONE);
	fill(map, mapped - PAGE < FILLED ? mapped - PAGE : (size_t)FILLED);
	pthread_mutex_lock(&memory);
	piece_protect(&p);
	pieces[n_pieces++] = p;
	*taken(device) += n;
	pthread_mutex_unlock(&memory);
	*out = p.at;
	return cudaSuccess;
}

static cudaError_t piece_free(void *at, bool device)
{
	cudaError_t rc = at ? cudaErrorInvalidValue : cudaSuccess;
	if (emu_safe())
		return last;
	emu_wait_all();
	pthread_mutex_lock(&memory);
	for (int i = 0; at && i < n_pieces; i++) {
		struct piece p = pieces[i];
		if (p.at != at || p.device != device)
			continue;
		if (p.map)
			munmap(p.map, p.mapped_bytes);
		pieces[i] = pieces[--n_pieces];
		*taken(device) -= p.map ? (p.n_bytes + ALIGN - 1) / ALIGN * ALIGN : 0;
		rc = cudaSuccess;
		break;
	}
	pthread_mutex_unlock(&memory);
	return emu_gives(rc);
}

/* Whether p is in a piece or its guard page. */
static bool in_piece(const char *p)
{
	bool found = false;
	pthread_mutex_lock(&memory);
	for (int i = 0; i < n_pieces && !found; i++)
		found = p >= pieces[i].map && p <= pieces[i].map + pieces[i].mapped_bytes;
	pthread_mutex_unlock(&memory);
	return found;
}

static const char *asked = ""; /* the function of the next launch */

bool emu_is_short(const char *name)
{
	const char *wrong = getenv("PT_EMU_BREAK");
	return wrong && !strcmp(wrong, name ? name : asked);
}

const char *emu_asked(void)
{
	return asked;
}

void emu_pointer(const char *name, const void *p)
{
	asked = name;
	unsigned char resident;
	char *page = (char *)((uintptr_t)p / PAGE * PAGE);
	if (p && !in_piece((const char *)p) && !mincore(page, 1, &resident))
		emu_stop("%s: %p is memory of the program", name, p);
}

/* The piece of device memory at this address, or NULL. */
static const struct piece *piece_at(const void *at)
{
	const char *p = (const char *)at;
	for (int i = 0; i < n_pieces; i++)
		if (pieces[i].device && p >= pieces[i].at &&
			p < pieces[i].at + pieces[i].n_bytes)
			return &pieces[i];
	return NULL;
}

bool emu_is_device(const void *at)
{
	return piece_at(at);
}

/* The piece of pinned memory at this address, or NULL: copies with it are asynchronous. */
static const struct piece *pinned(const void *at)
{
	const char *p = (const char *)at;
	for (int i = 0; i < n_pieces; i++)
		if (!pieces[i].device && p >= pieces[i].at &&
			p < pieces[i].at + pieces[i].n_bytes)
			return &pieces[i];
	return NULL;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *at)
{
	memset(a, 0, sizeof(*a));
	pthread_mutex_lock(&memory);
	a->type = piece_at(at) ? cudaMemoryTypeDevice
		  : pinned(at) ? cudaMemoryTypeHost
			       : cudaMemoryTypeUnregistered;
	pthread_mutex_unlock(&memory);
	return emu_gives(cudaSuccess);
}

/* Whether the n bytes are all device memory, or all host memory. */
static bool on_side(const void *at, size_t n, bool device)
{
	const struct piece *p = device ? piece_at(at) : pinned(at);
	if (!p)
		return !device && !piece_at(at);
	return (size_t)(p->at + p->n_bytes - (const char *)at) >= n;
}

cudaError_t cudaMalloc(void **out, size_t n_bytes)
{
	return piece_make(out, n_bytes, true);
}

cudaError_t cudaFree(void *at)
{
	return piece_free(at, true);
}

cudaError_t cudaMallocHost(void **out, size_t n_bytes)
{
	return piece_make(out, n_bytes, false);
}

/* For a size beyond the address space, CUDA does not always report that it is out of
 * memory. */
cudaError_t cudaHostAlloc(void **out, size_t n_bytes, unsigned flags)
{
	(void)flags;
	if (n_bytes >> 47)
		return emu_gives(cudaErrorInvalidValue);
	return piece_make(out, n_bytes, false);
}

cudaError_t cudaFreeHost(void *at)
{
	return piece_free(at, false);
}

cudaError_t cudaHostRegister(void *at, size_t n_bytes, unsigned flags)
{
	(void)flags;
	if (!at || !n_bytes || n_pieces == MAX_PIECES)
		return emu_gives(cudaErrorInvalidValue);
	pthread_mutex_lock(&memory);
	pieces[n_pieces++] = (struct piece){(char *)at, NULL, n_bytes, 0, false};
	pthread_mutex_unlock(&memory);
	return emu_gives(cudaSuccess);
}

cudaError_t cudaHostUnregister(void *at)
{
	return piece_free(at, false);
}

cudaError_t cudaMemGetInfo(size_t *n_free, size_t *total)
{
	*total = limit_bytes();
	*n_free = *total - used_bytes;
	return emu_gives(cudaSuccess);
}

/* ---- copies ------------------------------------------------------------------------- */

struct copy {
	char *to;
	const char *from; /* NULL: `value` */
	size_t to_pitch, from_pitch, width, height;
	int value;
};

static void copy_now(void *arg)
{
	const struct copy *c = (const struct copy *)arg;
	if (broken)
		return;
	emu_memory(true);
	for (size_t i = 0; i < c->height; i++)
		if (c->from)
			memmove(c->to + i * c->to_pitch, c->from + i * c->from_pitch,
				c->width);
		else
			memset(c->to + i * c->to_pitch, c->value, c->width);
	emu_memory(false);
}

/* Unpinned host memory is copied first, or waited for; without may_wait that is an error. */
static cudaError_t copy_ask(const struct copy *c, bool from_device, bool to_device,
	cudaStream_t stream, bool may_wait)
{
	size_t n = (c->height - 1) * c->from_pitch + c->width;
	bool waits = (!from_device && c->from && !pinned(c->from)) ||
		     (!to_device && !pinned(c->to));
	if (waits && emu_not_captured(stream))
		return last;
	if (waits && !may_wait)
		emu_stop("a copy beside the program, of its memory that is not pinned");
	if (!from_device && c->from && !pinned(c->from)) {
		struct copy mine = *c;
		mine.from = (char *)malloc(n);
		memcpy((char *)mine.from, c->from, n);
		emu_ask(
			stream,
			[](void *arg) {
				copy_now(arg);
				free((char *)((struct copy *)arg)->from);
			},
			&mine, sizeof(mine));
	} else {
		emu_ask(stream, copy_now, c, sizeof(*c));
	}
	if (!to_device && !pinned(c->to))
		emu_wait(stream);
	return emu_gives(cudaSuccess);
}

static cudaError_t copy_2d(void *to, size_t to_pitch, const void *from, size_t from_pitch,
	size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t stream,
	bool may_wait)
{
	if (broken || !width || !height)
		return emu_gives(cudaSuccess);
	if (to_pitch < width || from_pitch < width)
		return emu_gives(cudaErrorInvalidValue);
	bool to_device =
		kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
	bool from_device =
		kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
	if (kind == cudaMemcpyDefault) {
		to_device = piece_at(to);
		from_device = piece_at(from);
	}
	if (to_device != !!piece_at(to) || from_device != !!piece_at(from))
		return emu_gives(cudaErrorInvalidMemcpyDirection);
	if (!on_side(to, (height - 1) * to_pitch + width, to_device) ||
		!on_side(from, (height - 1) * from_pitch + width, from_device))
		return emu_gives(cudaErrorInvalidValue);
	struct copy c = {
		(char *)to, (const char *)from, to_pitch, from_pitch, width, height, 0};
	return copy_ask(&c, from_device, to_device, stream, may_wait);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind kind)
{
	return emu_safe() ? last : copy_2d(to, n, from, n, n, 1, kind, NULL, true);
}

cudaError_t cudaMemcpyAsync(
	void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
	return copy_2d(to, n, from, n, n, 1, kind, s, false);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from,
	size_t from_pitch, size_t width, size_t height, enum cudaMemcpyKind kind,
	cudaStream_t s)
{
	return copy_2d(to, to_pitch, from, from_pitch, width, height, kind, s, false);
}

cudaError_t cudaMemset2DAsync(void *at, size_t pitch, int value, size_t width,
	size_t height, cudaStream_t stream)
{
	struct copy c = {(char *)at, NULL, pitch, 0, width, height, value};
	if (broken || !width || !height)
		return emu_gives(cudaSuccess);
	if (pitch < width || !on_side(at, (height - 1) * pitch + width, true))
		return emu_gives(cudaErrorInvalidValue);
	emu_ask(stream, copy_now, &c, sizeof(c));
	return emu_gives(cudaSuccess);
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t n, cudaStream_t stream)
{
	return cudaMemset2DAsync(at, n, value, n, 1, stream);
}

cudaError_t cudaMemset(void *at, int value, size_t n)
{
	return emu_safe() ? last : cudaMemset2DAsync(at, n, value, n, 1, NULL);
}

/* ---- the device --------------------------------------------------------------------- */

/* Equal GPUs, of each process its own; the current one. */
static int device_now;

static int device_count(void)
{
	const char *n = getenv("PT_EMU_GPUS"), *visible = getenv("CUDA_VISIBLE_DEVICES");
	if (visible && !*visible)
		return 0;
	return n ? atoi(n) : 1;
}

int emu_arch(void)
{
	const char *arch = getenv("PT_EMU_ARCH");
	return arch ? atoi(arch) : 90;
}

uint32_t emu_seed(void)
{
	const char *seed = getenv("PT_EMU_SEED");
	return seed ? (uint32_t)atol(seed) : 0;
}

cudaError_t cudaGetDeviceCount(int *n)
{
	*n = device_count();
	return emu_gives(*n ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int *device)
{
	*device = device_now;
	return emu_gives(cudaSuccess);
}

cudaError_t cudaSetDevice(int device)
{
	if (device < 0 || device >= device_count())
		return emu_gives(cudaErrorInvalidDevice);
	device_now = device;
	return emu_gives(cudaSuccess);
}

cudaError_t cudaSetDeviceFlags(unsigned)
{
	return emu_gives(cudaSuccess);
}

cudaError_t cudaDeviceReset(void)
{
	return emu_gives(cudaSuccess);
}

cudaError_t cudaDriverGetVersion(int *version)
{
	*version = CUDART_VERSION;
	return emu_gives(cudaSuccess);
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
	*version = CUDART_VERSION;
	return emu_gives(cudaSuccess);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
	if (device < 0 || device >= device_count())
		return emu_gives(cudaErrorInvalidDevice);
	memset(p, 0, sizeof(*p));
	const char *name = getenv("PT_EMU_NAME");
	snprintf(p->name, sizeof(p->name), "%s", name ? name : "emulated GPU");
	const char *first = getenv("PT_EMU_GPU");
	p->uuid.bytes[15] = (char)((first ? atoi(first) : 0) + device);
	p->totalGlobalMem = limit_bytes();
	p->sharedMemPerBlock = 48 << 10;
	p->sharedMemPerBlockOptin = emu_max_shared();
	p->sharedMemPerMultiprocessor = emu_max_shared() + (1 << 10);
	p->regsPerBlock = p->regsPerMultiprocessor = 64 << 10;
	p->warpSize = 32;
	p->maxThreadsPerBlock = 1024;
	p->maxThreadsPerMultiProcessor = 2048;
	p->major = emu_arch() / 10;
	p->minor = emu_arch() % 10;
	p->multiProcessorCount = 4;
	p->l2CacheSize = 1 << 20;
	p->asyncEngineCount = 1;
	p->concurrentKernels = p->unifiedAddressing = 1;
	return emu_gives(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
	struct cudaDeviceProp p;
	if (cudaGetDeviceProperties(&p, device))
		return last;
	switch (attr) {
	case cudaDevAttrMultiProcessorCount:
		*value = p.multiProcessorCount;
		return cudaSuccess;
	case cudaDevAttrComputeCapabilityMajor:
		*value = p.major;
		return cudaSuccess;
	case cudaDevAttrComputeCapabilityMinor:
		*value = p.minor;
		return cudaSuccess;
	case cudaDevAttrMaxSharedMemoryPerBlockOptin:
		*value = (int)p.sharedMemPerBlockOptin;
		return cudaSuccess;
	case cudaDevAttrL2CacheSize:
		*value = p.l2CacheSize;
		return cudaSuccess;
	case cudaDevAttrMaxThreadsPerMultiProcessor:
		*value = p.maxThreadsPerMultiProcessor;
		return cudaSuccess;
	default:
		return emu_gives(cudaErrorInvalidValue);
	}
}
