/* Features of sm_90: barriers in shared memory, and copies of tiles by tensor maps (PTX ISA:
 * "mbarrier", "Tensors"). wgmma.cc has the matmuls. */
#include "tests/emu/tiles.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdlib.h>

#include <gpu_hopper.h>

enum {
	MAX_THREADS = 1024,
	GROUP = 128,
	MAX_BARRIERS = 64,
	MAX_LOADS = 256,
	NAMED = 16,
	REGISTERS = 64 << 10,
	MAX_ADDRESS = 1 << 18,
	MAX_TX = (1 << 20) - 1, /* bytes that a barrier can expect */
};

static int n_threads, arch;
static bool used;	/* by the running block */
static int64_t n_syncs; /* barriers of all threads of the block */

static void begin(void);

void emu_needs_hopper(const char *what)
{
	if (!used)
		begin();
	if (arch != 90)
		emu_stop("%s: sm_%d has none", what, arch);
}

/* ---- barriers in shared memory --------------------------------------------------------- */

/* Phase `done` is in progress until all arrivals and bytes are counted. */
struct barrier {
	uint32_t address;
	int count, left, maker;
	int64_t n_bytes, done, made_at;
	bool told; /* made visible to copies */
};

static struct barrier barriers[MAX_BARRIERS];
static int n_barriers;
/* 2 + the next phase to wait for; 0: no wait yet. */
static int64_t waits[MAX_THREADS][MAX_BARRIERS];

static int barrier_find(const uint64_t *p)
{
	uint32_t address = emu_address(p);
	if (address % 8)
		emu_stop("a barrier that is not on 8 bytes");
	for (int i = 0; i < n_barriers; i++)
		if (barriers[i].address == address)
			return i;
	return -1;
}

static struct barrier *barrier_of(const uint64_t *p)
{
	emu_needs_hopper("a barrier");
	int i = barrier_find(p);
	if (i < 0)
		emu_stop("a barrier that nobody made");
	struct barrier *b = &barriers[i];
	if (b->maker != emu_thread() && b->made_at == n_syncs)
		emu_stop("a barrier is used by others before all know that it is made");
	return b;
}

void emu_barrier_make(uint64_t *p, int count)
{
	emu_needs_hopper("a barrier");
	if (barrier_find(p) >= 0)
		emu_stop("a barrier is made twice");
	if (n_barriers == MAX_BARRIERS || count < 1 || count > MAX_THREADS)
		emu_stop("a barrier of %d arrivals, or too many of them", count);
	memset(p, 0, sizeof(*p));
	barriers[n_barriers++] = (struct barrier){
		emu_address(p), count, count, emu_thread(), 0, 0, n_syncs, false};
}

void emu_barriers_tell(void)
{
	for (int i = 0; i < n_barriers; i++)
		barriers[i].told |= barriers[i].maker == emu_thread();
}

static void barrier_count(struct barrier *b)
{
	if (b->left || b->n_bytes)
		return;
	b->done++;
	b->left = b->count;
}

void emu_barrier_arrive(uint64_t *p, int n_bytes)
{
	struct barrier *b = barrier_of(p);
	if (!b->left)
		emu_stop("more arrive at a barrier than the %d it is for", b->count);
	b->n_bytes += n_bytes;
	if (b->n_bytes > MAX_TX)
		emu_stop("a barrier is to wait for %d bytes, and can for %d",
			(int)b->n_bytes, MAX_TX);
	b->left--;
	barrier_count(b);
}

struct wait {
	const struct barrier *b;
	int64_t phase;
};

static bool wait_ready(void *asks)
{
	const struct wait *w = (const struct wait *)asks;
	return w->b->done > w->phase;
}

/* ---- named barriers --------------------------------------------------------------------- */

struct named {
	int n, here;
	int64_t done;
};

static struct named named[NAMED];
static int64_t came[MAX_THREADS][NAMED]; /* 1 + the phase of a thread's last arrival */

struct named_wait {
	const struct named *b;
	int64_t done;
};

static bool named_ready(void *asks)
{
	const struct named_wait *w = (const struct named_wait *)asks;
	return w->b->done > w->done;
}

void emu_named(int id, int n, bool wait, const char *file, int line)
{
	if (!used)
		begin();
	if (id < 1 || id >= NAMED || n < 32 || n > n_threads || n % 32)
		emu_stop("%s:%d: barrier %d of %d threads", file, line, id, n);
	struct named *b = &named[id];
	struct named_wait w = {b, b->done};
	if (b->here && b->n != n)
		emu_stop("%s:%d: barrier %d is of %d threads and of %d", file, line, id,
			b->n, n);
	if (came[emu_thread()][id] == b->done + 1)
		emu_stop("%s:%d: comes to barrier %d twice before the others", file, line,
			id);
	came[emu_thread()][id] = b->done + 1;
	b->n = n;
	if (++b->here == n) {
		b->here = 0;
		b->done++;
	}
	if (wait)
		emu_until(named_ready, &w, "a barrier with a number", file, line);
}

/* ---- registers -------------------------------------------------------------------------- */

/* Registers of each thread, and the free ones of those that the block was launched with;
 * further registers of the multiprocessor cannot be used. */
static int registers[MAX_THREADS], registers_left;

static bool registers_ready(void *asks)
{
	return registers_left >= *(const int *)asks;
}

void emu_registers(int n, bool more, const char *file, int line)
{
	emu_needs_hopper("setmaxnreg");
	int *mine = &registers[emu_thread()], need = n - *mine;
	if (n < 24 || n > 256 || n % 8 || (more ? need < 0 : need > 0))
		emu_stop("%s:%d: from %d registers to %d", file, line, *mine, n);
	emu_until(registers_ready, &need, "registers_more", file, line);
	registers_left -= need;
	*mine = n;
}

static void registers_check(void)
{
	for (int i = 0; i < n_threads; i++)
		if (registers[i] != registers[i / GROUP * GROUP])
			emu_stop("threads %d and %d of a warpgroup have %d and %d "
				 "registers",
				i / GROUP * GROUP, i, registers[i / GROUP * GROUP],
				registers[i]);
}

/* ---- tensor maps ------------------------------------------------------------------------ */

static_assert(sizeof(struct map) <= sizeof(CUtensorMap), "a map of ours fits in theirs");

/* Refuses what the driver refuses, and all features that are not emulated. */
static CUresult map_encode(CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank,
	void *p, const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
	const cuuint32_t *steps, CUtensorMapInterleave interleave,
	CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill)
{
	struct map m = {};
	bool good = (uintptr_t)out % 64 == 0 && (uintptr_t)p % 16 == 0 && p &&
		    rank >= 3 && rank <= MAX_RANK &&
		    interleave == CU_TENSOR_MAP_INTERLEAVE_NONE &&
		    fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE &&
		    (type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 ||
			    type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16) &&
		    swizzle <= CU_TENSOR_MAP_SWIZZLE_128B;
	for (cuuint32_t i = 0; good && i < rank; i++) {
		good = dims[i] && dims[i] <= 1ull << 32 && box[i] && box[i] <= 256 &&
		       steps[i] == 1;
		if (good && i)
			good = strides[i - 1] % 16 == 0 && strides[i - 1] < 1ull << 40;
		m.dims[i] = (uint32_t)dims[i];
		m.box[i] = (uint16_t)box[i];
		if (i)
			m.strides[i - 1] = strides[i - 1];
	}
	m.size = 2;
	m.rank = (uint16_t)rank;
	m.swizzle = (uint16_t)(16 << swizzle);
	good = good && box[0] * m.size % 16 == 0 &&
	       (swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || box[0] * m.size <= m.swizzle);
	if (!good)
		return CUDA_ERROR_INVALID_VALUE;
	m.magic = MAP;
	m.p = (char *)p;
	memset(out, 0, sizeof(*out));
	memcpy(out, &m, sizeof(m));
	return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **fn,
	unsigned version, unsigned long long, cudaDriverEntryPointQueryResult *found)
{
	bool known = !strcmp(symbol, "cuTensorMapEncodeTiled") && version >= 12000;
	*fn = known ? (void *)map_encode : NULL;
	if (found)
		*found = known ? cudaDriverEntryPointSuccess
			       : cudaDriverEntryPointSymbolNotFound;
	return emu_gives(cudaSuccess);
}

/* ---- copies of tiles --------------------------------------------------------------------- */

struct load {
	struct map map;
	int at[4];
	uint32_t to;
	int barrier;
};

static struct load loads[MAX_LOADS];
static int n_loads;

/* For each two bytes of shared memory, the value that a copy of a tile stored, with the flag
 * BROUGHT. Threads must not store operands of matmuls: these would see them only after a
 * stores_tell(), which is checked for copies from shared memory alone. */
enum { BROUGHT = 1 << 16 };
static uint32_t brought[MAX_ADDRESS / 2];

bool emu_brought(uint32_t address, uint16_t x)
{
	return brought[address / 2] == (BROUGHT | x);
}

/* The map of a copy, checked; `shared`: the address of the tile. */
static struct map copied_by(const char *what, const CUtensorMap *map, uint32_t shared)
{
	struct map m;
	memcpy(&m, map, sizeof(m));
	emu_needs_hopper(what);
	if (m.magic != MAP || m.rank != 4 || (uintptr_t)map % 64)
		emu_stop("%s: no map of a tensor of 4 dimensions", what);
	/* (CUDA allows swizzled tiles at multiples of 128 bytes, but their pattern is
	 * shifted.) */
	uint32_t whole = m.swizzle > 16 ? 8u * m.swizzle : 128u;
	if (shared % whole)
		emu_stop("%s: at %#x, not on %u bytes", what, shared, whole);
	return m;
}

void emu_tile_load(void *to, const CUtensorMap *map, uint64_t *barrier, const int at[4])
{
	struct load l;
	l.to = emu_address(to);
	l.map = copied_by("tile_load", map, l.to);
	l.barrier = (int)(barrier_of(barrier) - barriers);
	if (!barriers[l.barrier].told)
		emu_stop("tile_load: nobody told the copies of the barrier");
	memcpy(l.at, at, sizeof(l.at));
	memset(emu_shared_at(l.to, (size_t)box_bytes(&l.map)), 0xff,
		(size_t)box_bytes(&l.map));
	memset(&brought[l.to / 2], 0, (size_t)box_bytes(&l.map) / 2 * sizeof(*brought));
	if (n_loads == MAX_LOADS)
		emu_stop("more copies of tiles than %d", n_loads);
	loads[n_loads++] = l;
}

static void load_now(const struct load *l)
{
	const struct map *m = &l->map;
	int width = m->box[0] * m->size, rows = box_bytes(m) / width;
	struct barrier *b = &barriers[l->barrier];
	for (int i = 0; i < rows; i++) {
		const char *from = box_row(m, l->at, i);
		for (int c = 0; c < width; c += m->size) {
			int64_t at = l->at[0] + c / m->size;
			uint32_t address =
				swizzled(l->to + (uint32_t)(i * width + c), m->swizzle);
			uint16_t x = 0;
			if (from && at >= 0 && at < (int64_t)m->dims[0])
				memcpy(&x, from + at * m->size, sizeof(x));
			memcpy(emu_shared_at(address, sizeof(x)), &x, sizeof(x));
			brought[address / 2] = BROUGHT | x;
		}
	}
	b->n_bytes -= box_bytes(m);
	if (b->n_bytes < 0)
		emu_stop("tile_load: %d bytes more come than a barrier expects",
			(int)-b->n_bytes);
	barrier_count(b);
}

/* Ends a warp's wait for matmuls, before copies overwrite what these read; or completes the oldest or
 * the newest copy. */
bool emu_hopper_idle(void)
{
	static int turn;
	if (emu_wgmma_idle())
		return true;
	if (!n_loads)
		return false;
	int i = turn++ % 2 ? n_loads - 1 : 0;
	struct load l = loads[i];
	memmove(&loads[i], &loads[i + 1], (size_t)(--n_loads - i) * sizeof(l));
	load_now(&l);
	return true;
}

/* ---- waits for barriers ------------------------------------------------------------------ */

/* A thread must wait for each phase in order, from 0 or from the complete one before it. (A
 * wait has the parity only, which cannot distinguish two phases from none.) */
void emu_barrier_wait(uint64_t *p, int parity, bool meanwhile, const char *file, int line)
{
	struct barrier *b = barrier_of(p);
	if (emu_wgmma_under_way(meanwhile))
		emu_stop("%s:%d: a barrier is waited for, which is a loop, while a wgmma "
			 "is under way",
			file, line);
	int64_t *next = &waits[emu_thread()][b - barriers];
	if (!*next)
		*next = parity ? 1 : 2;
	struct wait w = {b, *next - 2};
	if ((*next)++ % 2 != parity)
		emu_stop("%s:%d: waits for parity %d, and the next phase is %d", file,
			line, parity, (int)w.phase);
	if (b->done > w.phase + 1)
		emu_stop("%s:%d: waits for phase %d, and %d are done", file, line,
			(int)w.phase, (int)b->done);
	emu_until(wait_ready, &w, "barrier_wait", file, line);
}

/* ---- blocks -------------------------------------------------------------------------------- */

void emu_hopper_begin(int n)
{
	n_threads = n;
	n_syncs = 0;
	used = false;
}

/* On first use, since most blocks use none of this. */
static void begin(void)
{
	int each = REGISTERS / n_threads / 8 * 8;
	each = each < 256 ? each : 256;
	for (int i = 0; i < n_threads; i++)
		registers[i] = each;
	registers_left = 0;
	memset(waits, 0, (size_t)n_threads * sizeof(*waits));
	memset(came, 0, (size_t)n_threads * sizeof(*came));
	memset(brought, 0, sizeof(brought));
	emu_stores_begin(n_threads);
	arch = emu_arch();
	n_barriers = 0;
	used = true;
}

void emu_hopper_sync(void)
{
	n_syncs++;
}

void emu_hopper_end(void)
{
	if (!used)
		return;
	registers_check();
	if (n_loads)
		emu_stop("a block ends before %d copies of tiles have come", n_loads);
	emu_stores_end();
	for (int i = 0; i < NAMED; i++) {
		if (named[i].here)
			emu_stop("a block ends with %d threads at barrier %d",
				named[i].here, i);
		named[i] = (struct named){};
	}
	emu_wgmma_end();
}
