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
	MAX_ADDRESS = 1 << 18,
	MAX_TX = (1 << 20) - 1, /* bytes that a barrier can expect */
};

/* Phase `done` is in progress until all arrivals and bytes are counted. */
struct barrier {
	uint32_t address;
	int count, left, maker;
	int64_t n_bytes, done, made_at, cluster_at;
	bool told; /* made visible to copies */
};

struct named {
	int n, here;
	int64_t done;
};

struct load {
	struct map map;
	int at[4];
	uint32_t to;
	int barrier;
};

/* For each two bytes of shared memory, the value that a copy of a tile stored, with the flag
 * BROUGHT. Threads store operands of matmuls by clear_piece() only: matmuls see these zeros after
 * the thread's publish_stores(). */
enum { BROUGHT = 1 << 16 };

/* The state of each block that runs. */
struct state {
	int n_threads, registers_each;
	bool used;
	int64_t n_syncs; /* barriers of all threads of the block */
	struct barrier barriers[MAX_BARRIERS];
	int n_barriers;
	/* 2 + the next phase to wait for; 0: no wait yet. */
	int64_t waits[MAX_THREADS][MAX_BARRIERS];
	struct named named[NAMED];
	int64_t came[MAX_THREADS][NAMED]; /* 1 + the phase of a thread's last arrival */
	/* Registers of each thread, and the free ones of those that the block was launched with;
	 * further registers of the multiprocessor cannot be used. */
	int registers[MAX_THREADS], registers_left;
	struct load loads[MAX_LOADS];
	int n_loads;
	uint32_t brought[MAX_ADDRESS / 2];
	/* 1 + the thread that cleared 16 bytes, until it publishes its stores; how many it has. */
	uint16_t cleared[MAX_ADDRESS / 16];
	int n_cleared[MAX_THREADS];
};

static struct state states[EMU_MAX_ALIVE], *h = states;
static int arch;

void emu_hopper_use(int block)
{
	h = &states[block];
	emu_stores_use(block);
	emu_wgmma_use(block);
}

static void begin(void);

void emu_needs_hopper(const char *what)
{
	if (!h->used)
		begin();
	if (arch != 90)
		emu_stop("%s: sm_%d has none", what, arch);
}

/* ---- barriers in shared memory --------------------------------------------------------- */

static int barrier_find(uint32_t address)
{
	if (address % 8)
		emu_stop("a barrier that is not on 8 bytes");
	for (int i = 0; i < h->n_barriers; i++)
		if (h->barriers[i].address == address)
			return i;
	return -1;
}

/* How often all threads of the block have synchronized. */
static int64_t syncs(void)
{
	return h->n_syncs + emu_cluster_syncs();
}

static struct barrier *barrier_at(uint32_t address)
{
	emu_needs_hopper("a barrier");
	int i = barrier_find(address);
	if (i < 0)
		emu_stop("a barrier that nobody made");
	return &h->barriers[i];
}

static struct barrier *barrier_of(const uint64_t *p)
{
	struct barrier *b = barrier_at(emu_address(p));
	if (b->maker != emu_thread() && b->made_at == syncs())
		emu_stop("a barrier is used by others before all know that it is made");
	return b;
}

/* Returns a barrier of another block of the cluster, after emu_cluster_enter(). */
static struct barrier *barrier_there(uint32_t address)
{
	struct barrier *b = barrier_at(address);
	if (b->cluster_at == emu_cluster_syncs())
		emu_stop("a barrier of another block is used before the cluster knows "
			 "that it is made");
	return b;
}

void emu_barrier_make(uint64_t *p, int count)
{
	uint32_t address = emu_address(p);
	emu_needs_hopper("a barrier");
	if (barrier_find(address) >= 0)
		emu_stop("a barrier is made twice");
	if (h->n_barriers == MAX_BARRIERS || count < 1 || count > MAX_THREADS)
		emu_stop("a barrier of %d arrivals, or too many of them", count);
	memset(p, 0, sizeof(*p));
	h->barriers[h->n_barriers++] = (struct barrier){address, count, count,
		emu_thread(), 0, 0, syncs(), emu_cluster_syncs(), false};
}

void emu_publish_barriers(void)
{
	for (int i = 0; i < h->n_barriers; i++)
		h->barriers[i].told |= h->barriers[i].maker == emu_thread();
}

/* Bytes from a copy of another block may come before they are expected, but not after all
 * arrivals. */
static void barrier_count(struct barrier *b)
{
	if (!b->left && b->n_bytes < 0)
		emu_stop("tile_load: %d bytes more come than a barrier expects",
			(int)-b->n_bytes);
	if (b->left || b->n_bytes)
		return;
	b->done++;
	b->left = b->count;
}

static void arrive(struct barrier *b, int n_bytes)
{
	if (!b->left)
		emu_stop("more arrive at a barrier than the %d it is for", b->count);
	b->n_bytes += n_bytes;
	if (b->n_bytes > MAX_TX)
		emu_stop("a barrier is to wait for %d bytes, and can for %d",
			(int)b->n_bytes, MAX_TX);
	b->left--;
	barrier_count(b);
}

void emu_barrier_arrive(uint64_t *p, int n_bytes)
{
	arrive(barrier_of(p), n_bytes);
}

void emu_barrier_arrive_at(uint64_t *p, int rank)
{
	uint32_t address = emu_address(p);
	if (rank == emu_cluster_rank()) {
		arrive(barrier_of(p), 0);
		return;
	}
	int mine = emu_cluster_enter(rank, "barrier_arrive_at");
	arrive(barrier_there(address), 0);
	emu_cluster_leave(mine);
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
	if (!h->used)
		begin();
	if (id < 1 || id >= NAMED || n < 32 || n > h->n_threads || n % 32)
		emu_stop("%s:%d: barrier %d of %d threads", file, line, id, n);
	struct named *b = &h->named[id];
	struct named_wait w = {b, b->done};
	if (b->here && b->n != n)
		emu_stop("%s:%d: barrier %d is of %d threads and of %d", file, line, id,
			b->n, n);
	if (h->came[emu_thread()][id] == b->done + 1)
		emu_stop("%s:%d: comes to barrier %d twice before the others", file, line,
			id);
	h->came[emu_thread()][id] = b->done + 1;
	b->n = n;
	if (++b->here == n) {
		b->here = 0;
		b->done++;
	}
	if (wait)
		emu_until(named_ready, &w, "a barrier with a number", file, line);
}

/* ---- registers -------------------------------------------------------------------------- */

static bool registers_ready(void *asks)
{
	return h->registers_left >= *(const int *)asks;
}

void emu_registers(int n, bool more, const char *file, int line)
{
	emu_needs_hopper("setmaxnreg");
	int *mine = &h->registers[emu_thread()], need = n - *mine;
	if (n < 24 || n > 256 || n % 8 || (more ? need < 0 : need > 0))
		emu_stop("%s:%d: from %d registers to %d", file, line, *mine, n);
	emu_until(registers_ready, &need, "registers_more", file, line);
	h->registers_left -= need;
	*mine = n;
}

static void registers_check(void)
{
	for (int i = 0; i < h->n_threads; i++)
		if (h->registers[i] != h->registers[i / GROUP * GROUP])
			emu_stop("threads %d and %d of a warpgroup have %d and %d "
				 "registers",
				i / GROUP * GROUP, i, h->registers[i / GROUP * GROUP],
				h->registers[i]);
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

bool emu_brought(uint32_t address, uint16_t x)
{
	return h->brought[address / 2] == (BROUGHT | x);
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

/* Enqueues a copy to the running block, or to the one that emu_cluster_enter() went to. */
static void load_enqueue(struct load l, const struct barrier *b)
{
	size_t n = (size_t)box_bytes(&l.map);
	l.barrier = (int)(b - h->barriers);
	if (!b->told)
		emu_stop("tile_load: nobody told the copies of the barrier");
	memset(emu_shared_at(l.to, n), 0xff, n);
	memset(&h->brought[l.to / 2], 0, n / 2 * sizeof(*h->brought));
	if (h->n_loads == MAX_LOADS)
		emu_stop("more copies of tiles than %d", h->n_loads);
	h->loads[h->n_loads++] = l;
}

void emu_tile_load_to(void *to, const CUtensorMap *map, uint64_t *barrier,
	const int at[4], unsigned mask)
{
	struct load l;
	uint32_t address = emu_address(barrier);
	l.to = emu_address(to);
	l.map = copied_by("tile_load", map, l.to);
	memcpy(l.at, at, sizeof(l.at));
	for (int rank = 0; mask >> rank; rank++) {
		if (!(mask >> rank & 1))
			continue;
		if (rank == emu_cluster_rank()) {
			load_enqueue(l, barrier_of(barrier));
			continue;
		}
		int mine = emu_cluster_enter(rank, "a copy of a tile");
		load_enqueue(l, barrier_there(address));
		emu_cluster_leave(mine);
	}
}

void emu_tile_load(void *to, const CUtensorMap *map, uint64_t *barrier, const int at[4])
{
	emu_tile_load_to(to, map, barrier, at, 1u << emu_cluster_rank());
}

static void load_now(const struct load *l)
{
	const struct map *m = &l->map;
	int width = m->box[0] * m->size, rows = box_bytes(m) / width;
	struct barrier *b = &h->barriers[l->barrier];
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
			h->brought[address / 2] = BROUGHT | x;
		}
	}
	b->n_bytes -= box_bytes(m);
	barrier_count(b);
}

/* Ends a warp's wait for matmuls, before copies overwrite what these read; or completes the oldest or
 * the newest copy. */
bool emu_hopper_idle(void)
{
	static int turn;
	if (emu_wgmma_idle())
		return true;
	if (!h->n_loads)
		return false;
	int i = turn++ % 2 ? h->n_loads - 1 : 0;
	struct load l = h->loads[i];
	memmove(&h->loads[i], &h->loads[i + 1], (size_t)(--h->n_loads - i) * sizeof(l));
	load_now(&l);
	return true;
}

void emu_clear_piece(void *to)
{
	uint32_t address = emu_address(to);
	emu_needs_hopper("clear_piece");
	if (address % 16)
		emu_stop("clear_piece: %#x is not on 16 bytes", address);
	memset(to, 0, 16);
	memset(&h->brought[address / 2], 0, 8 * sizeof(*h->brought));
	h->n_cleared[emu_thread()] += !h->cleared[address / 16];
	h->cleared[address / 16] = (uint16_t)(1 + emu_thread());
}

void emu_publish_pieces(void)
{
	int me = emu_thread();
	for (int i = 0; h->n_cleared[me] && i < MAX_ADDRESS / 16; i++) {
		if (h->cleared[i] != 1 + me)
			continue;
		for (int j = 0; j < 8; j++)
			h->brought[8 * i + j] = BROUGHT;
		h->cleared[i] = 0;
		h->n_cleared[me]--;
	}
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
	int64_t *next = &h->waits[emu_thread()][b - h->barriers];
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

void emu_hopper_begin(int n, int registers)
{
	h->n_threads = n;
	h->registers_each = registers;
	h->n_syncs = 0;
	h->used = false;
}

/* On first use, since most blocks use none of this. */
static void begin(void)
{
	for (int i = 0; i < h->n_threads; i++)
		h->registers[i] = h->registers_each;
	h->registers_left = 0;
	memset(h->waits, 0, (size_t)h->n_threads * sizeof(*h->waits));
	memset(h->came, 0, (size_t)h->n_threads * sizeof(*h->came));
	memset(h->brought, 0, sizeof(h->brought));
	memset(h->cleared, 0, sizeof(h->cleared));
	memset(h->n_cleared, 0, sizeof(h->n_cleared));
	emu_stores_begin(h->n_threads);
	arch = emu_arch();
	h->n_barriers = 0;
	h->used = true;
}

void emu_hopper_sync(void)
{
	h->n_syncs++;
}

bool emu_hopper_end(void)
{
	if (!h->used)
		return false;
	registers_check();
	if (h->n_loads)
		emu_stop("a block ends before %d copies of tiles have come", h->n_loads);
	emu_stores_end();
	for (int i = 0; i < NAMED; i++) {
		if (h->named[i].here)
			emu_stop("a block ends with %d threads at barrier %d",
				h->named[i].here, i);
		h->named[i] = (struct named){};
	}
	emu_wgmma_end();
	return true;
}
