/*
 * Features of sm_90: barriers in shared memory, copies of tiles by tensor maps, and matmuls
 * of warpgroups (PTX ISA: "mbarrier", "Tensors", "Asynchronous warpgroup level matrix
 * instructions", and there "Matrix descriptor", "Strides", "Canonical layouts").
 */
#include "tests/emu/inside.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdio.h>
#include <stdlib.h>

#include <gpu_hopper.h>

#define FAST __attribute__((target_clones("default", "avx2", "avx512f")))

enum {
	MAX_THREADS = 1024,
	GROUP = 128,
	GROUPS = MAX_THREADS / GROUP,
	MAX_BARRIERS = 64,
	MAX_LOADS = 256,
	MAX_STORES = 256,
	MAX_PRODUCTS = 128,
	MAX_SUMS = 4,
	NAMED = 16,
	REGISTERS = 64 << 10,
	MAX_ADDRESS = 1 << 18,
	MAX_TX = (1 << 20) - 1, /* bytes that a barrier can expect */
};

static int n_threads, arch;
static bool used;	/* by the running block */
static int64_t n_syncs; /* barriers of all threads of the block */

static void begin(void);

static void needs_hopper(const char *what)
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
	needs_hopper("a barrier");
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
	needs_hopper("a barrier");
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
	needs_hopper("setmaxnreg");
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

enum { MAP = 0x7e450b, MAX_RANK = 5 };

struct map {
	uint32_t magic;
	uint16_t size, rank; /* bytes of an element; dimensions */
	uint32_t dims[MAX_RANK];
	uint16_t box[MAX_RANK], swizzle; /* bytes of a row */
	const char *p;
	uint64_t strides[MAX_RANK - 1];
};
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
	m.p = (const char *)p;
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

/* The swizzled address: pieces of 16 bytes are permuted by the number of the 128-byte row of
 * the address. */
static uint32_t swizzled(uint32_t address, int bytes)
{
	return address ^ (address >> 3 & (uint32_t)(bytes - 1) & ~15u);
}

static int box_bytes(const struct map *m)
{
	int n = m->size;
	for (int i = 0; i < m->rank; i++)
		n *= m->box[i];
	return n;
}

/* The map of a copy, checked; `shared`: the address of the tile. */
static struct map copied_by(const char *what, const CUtensorMap *map, uint32_t shared)
{
	struct map m;
	memcpy(&m, map, sizeof(m));
	needs_hopper(what);
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

/* The address of row i of a box, counted over all dimensions except the first, or NULL
 * outside the tensor. */
static const char *box_row(const struct map *m, const int *first, int i)
{
	const char *p = m->p;
	for (int d = 1; d < m->rank; d++) {
		int64_t at = first[d] + i % m->box[d];
		i /= m->box[d];
		if (at < 0 || at >= (int64_t)m->dims[d])
			return NULL;
		p += (uint64_t)at * m->strides[d - 1];
	}
	return p;
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

/* Completes the oldest or the newest copy. */
bool emu_hopper_idle(void)
{
	static int turn;
	if (!n_loads)
		return false;
	int i = turn++ % 2 ? n_loads - 1 : 0;
	struct load l = loads[i];
	memmove(&loads[i], &loads[i + 1], (size_t)(--n_loads - i) * sizeof(l));
	load_now(&l);
	return true;
}

/* ---- stores of tiles --------------------------------------------------------------------- */

/* A copy reads its tile when a thread waits for that, the last moment allowed. */
struct store {
	struct map map;
	int at[4], thread;
	int64_t group;
	uint32_t from;
	unsigned char *seen; /* the tile at the call */
};

static struct store stores[MAX_STORES];
static int n_stores;
static int64_t store_groups[MAX_THREADS]; /* committed */
/* Shared memory when a thread last told of its stores. */
static unsigned char told[MAX_ADDRESS];

void emu_stores_tell(void)
{
	uint32_t begin = emu_address(emu_shared);
	needs_hopper("stores_tell");
	memcpy(told + begin, emu_shared, emu_shared_bytes());
}

void emu_tile_store(const CUtensorMap *map, const void *from, const int at[4])
{
	struct store s = {};
	s.from = emu_address(from);
	s.map = copied_by("tile_store", map, s.from);
	size_t n = (size_t)box_bytes(&s.map);
	if (memcmp(emu_shared_at(s.from, n), told + s.from, n))
		emu_stop("tile_store: nobody told of the stores to its tile");
	if (n_stores == MAX_STORES)
		emu_stop("more copies from tiles than %d", n_stores);
	memcpy(s.at, at, sizeof(s.at));
	s.thread = emu_thread();
	s.group = store_groups[s.thread];
	s.seen = (unsigned char *)malloc(n);
	memcpy(s.seen, told + s.from, n);
	stores[n_stores++] = s;
}

void emu_stores_commit(void)
{
	store_groups[emu_thread()]++;
}

static void store_now(const struct store *s)
{
	const struct map *m = &s->map;
	int width = m->box[0] * m->size, rows = box_bytes(m) / width;
	if (memcmp(emu_shared_at(s->from, (size_t)box_bytes(m)), s->seen,
		    (size_t)box_bytes(m)))
		emu_stop("tile_store: a tile that it has yet to read is not left alone");
	for (int i = 0; i < rows; i++) {
		char *to = (char *)box_row(m, s->at, i);
		for (int c = 0; to && c < width; c += m->size) {
			int64_t at = s->at[0] + c / m->size;
			uint32_t address =
				swizzled(s->from + (uint32_t)(i * width + c), m->swizzle);
			if (at >= 0 && at < (int64_t)m->dims[0])
				memcpy(to + at * m->size, emu_shared_at(address, m->size),
					m->size);
		}
	}
	free(s->seen);
}

void emu_stores_wait(int groups)
{
	int me = emu_thread(), left = 0;
	for (int i = 0; i < n_stores; i++) {
		const struct store *s = &stores[i];
		if (s->thread == me && s->group < store_groups[me] - groups)
			store_now(s);
		else
			stores[left++] = *s;
	}
	n_stores = left;
}

/* ---- matmuls of warpgroups -------------------------------------------------------------- */

/* 64 x n sums of matmuls in flight; their registers are NaN until these complete. */
struct sums {
	float x[64][256];
	float *c[GROUP];
	int n, pending;
};

struct product {
	struct emu_wgmma p;
	struct sums *sums;
	int64_t group;
	const uint32_t
		*registers[GROUP]; /* the registers of a, and their values at the call */
	uint32_t a[GROUP][4];
	uint16_t seen_a[64 * 16], seen_b[16 * 256];
};

static struct warpgroup {
	struct product products[MAX_PRODUCTS];
	struct sums sums[MAX_SUMS];
	int n_products, asked[GROUP];
	int64_t groups[GROUP]; /* committed */
	bool fenced[GROUP];
	int waiting;
	int64_t waited;
} * warpgroups[GROUPS];

static struct warpgroup *my_group(int *lane)
{
	int i = emu_thread() / GROUP;
	needs_hopper("wgmma");
	*lane = emu_thread() % GROUP;
	if (n_threads < (i + 1) * GROUP)
		emu_stop("a warpgroup of %d threads", n_threads - i * GROUP);
	if (!warpgroups[i])
		warpgroups[i] = (struct warpgroup *)calloc(1, sizeof(**warpgroups));
	return warpgroups[i];
}

/* [i * 16 + k] = element k of 16 of row i of an operand in shared memory, which is row-major,
 * or column-major if `transposed`. The descriptor has in bits 0-13 the address / 16, in 16-29
 * and 32-45 the strides / 16, in 62-63 the swizzle. first: at the call, not at completion.
 * */
static void operand_read(uint16_t *to, uint64_t d, int rows, bool transposed, bool first)
{
	static const int bytes_of[] = {16, 128, 64, 32};
	uint32_t start = (d & 0x3fff) << 4;
	uint32_t leading = (d >> 16 & 0x3fff) << 4, stride = (d >> 32 & 0x3fff) << 4;
	int bytes = bytes_of[d >> 62], wide = bytes / 2;
	if (d & ~0xc0003fff3fff3fffull)
		emu_stop("wgmma: %#llx is no descriptor, or one with a base offset",
			(unsigned long long)d);
	if (bytes > 16 && start % (uint32_t)(8 * bytes) >= (uint32_t)bytes)
		emu_stop("wgmma: address %#x is not in the first of 8 rows of %d bytes",
			start, bytes);
	for (uint32_t i = 0; i < (uint32_t)rows; i++) {
		for (uint32_t k = 0; k < 16; k++) {
			uint32_t at = start;
			if (transposed && bytes == 16)
				at += i / 8 * stride + i % 8 * 2 + k / 8 * leading +
				      k % 8 * 16;
			else if (transposed)
				at += i / wide * leading + i % wide * 2 + k / 8 * stride +
				      k % 8 * bytes;
			else if (bytes == 16)
				at += i / 8 * stride + i % 8 * 16 + k / 8 * leading +
				      k % 8 * 2;
			else
				at += i / 8 * stride + i % 8 * bytes + k * 2;
			at = swizzled(at & (MAX_ADDRESS - 1), bytes);
			memcpy(&to[i * 16 + k], emu_shared_at(at, 2), 2);
			if (first && brought[at / 2] != (BROUGHT | to[i * 16 + k]))
				emu_stop("wgmma: no copy of a tile has brought what is "
					 "at %#x",
					at);
		}
	}
}

static void product_read(struct product *p, uint16_t *a, uint16_t *b, bool first)
{
	operand_read(b, p->p.b, p->p.n, p->p.transposed, first);
	if (!p->p.registers)
		operand_read(a, p->p.a, 64, false, first);
}

/* The element of register i of a thread in 64 x n sums: 16 rows a warp, laid out as by
 * mma(). */
static float *sum_at(struct sums *s, int lane, int i)
{
	int row = lane / 32 * 16 + lane % 32 / 4 + i % 4 / 2 * 8;
	return &s->x[row][i / 4 * 8 + lane % 4 * 2 + i % 2];
}

static bool all_bits(const float *c, int n)
{
	const unsigned char *at = (const unsigned char *)c;
	return at[0] == 0xff && !memcmp(at, at + 1, (size_t)n * sizeof(*c) - 1);
}

static struct sums *sums_of(struct warpgroup *g, int lane, const struct emu_wgmma *p)
{
	struct sums *unused = NULL;
	for (int i = 0; i < MAX_SUMS; i++) {
		struct sums *s = &g->sums[i];
		if (s->pending && s->c[lane] == p->c && s->n == p->n)
			return s;
		if (!s->pending && !unused)
			unused = s;
	}
	if (!unused)
		emu_stop("%s:%d: products of more than %d matrices at once", p->file,
			p->line, MAX_SUMS);
	memset(unused->c, 0, sizeof(unused->c));
	unused->n = p->n;
	return unused;
}

static bool same_product(const struct emu_wgmma *a, const struct emu_wgmma *b)
{
	return a->a == b->a && a->b == b->b && a->n == b->n && a->line == b->line &&
	       a->transposed == b->transposed && a->add == b->add &&
	       !a->registers == !b->registers && !strcmp(a->file, b->file);
}

void emu_wgmma_fence(void)
{
	int lane;
	my_group(&lane)->fenced[lane] = true;
}

/* The first thread of a warpgroup checks that the operands are loaded; after the last one's
 * call, the matmul completes when it is waited for. */
void emu_wgmma_ask(const struct emu_wgmma *p)
{
	int lane;
	struct warpgroup *g = my_group(&lane);
	if (!g->fenced[lane])
		emu_stop("%s:%d: wgmma after no fence", p->file, p->line);
	if (p->n % 8 || p->n > 256 || g->asked[lane] == MAX_PRODUCTS)
		emu_stop("%s:%d: a wgmma of %d columns, or too many", p->file, p->line,
			p->n);
	struct product *mine = &g->products[g->asked[lane]];
	if (g->asked[lane]++ == g->n_products) {
		g->n_products++;
		mine->p = *p;
		mine->sums = sums_of(g, lane, p);
		mine->sums->pending++;
		mine->group = g->groups[lane];
		product_read(mine, mine->seen_a, mine->seen_b, true);
	}
	if (!same_product(&mine->p, p) || mine->group != g->groups[lane])
		emu_stop("%s:%d: threads of a warpgroup ask for different products",
			p->file, p->line);
	struct sums *s = mine->sums;
	if (!s->c[lane]) {
		s->c[lane] = p->c;
		for (int i = 0; i < p->n / 2; i++)
			*sum_at(s, lane, i) = p->c[i];
		memset(p->c, 0xff, (size_t)p->n / 2 * sizeof(*p->c));
	}
	if (s->c[lane] != p->c || !all_bits(p->c, p->n / 2))
		emu_stop("%s:%d: the sums of a wgmma under way are not left alone",
			p->file, p->line);
	mine->registers[lane] = p->registers;
	if (p->registers)
		memcpy(mine->a[lane], p->registers, sizeof(mine->a[lane]));
}

void emu_wgmma_commit(void)
{
	int lane;
	struct warpgroup *g = my_group(&lane);
	g->groups[lane]++;
	g->fenced[lane] = false;
}

FAST static void multiply(
	float (*c)[256], const float (*a)[16], const float (*b)[256], int n)
{
	for (int i = 0; i < 64; i++)
		for (int k = 0; k < 16; k++)
			for (int j = 0; j < n; j++)
				c[i][j] += a[i][k] * b[k][j];
}

static void product_do(struct product *p)
{
	static uint16_t a[64 * 16], b[256 * 16];
	static float x[64][16], wide[256][16], y[16][256];
	int n = p->p.n;
	if (p->p.registers) {
		for (int l = 0; l < GROUP; l++) {
			if (memcmp(p->registers[l], p->a[l], sizeof(p->a[l])))
				emu_stop("%s:%d: registers that a wgmma under way reads "
					 "are not left alone",
					p->p.file, p->p.line);
			for (int i = 0; i < 8; i++) {
				int row = l / 32 * 16 + l % 32 / 4 + i / 2 % 2 * 8;
				int k = l % 4 * 2 + i % 2 + i / 4 * 8;
				a[row * 16 + k] =
					(uint16_t)(p->a[l][i / 2] >> 16 * (i % 2));
			}
		}
	}
	product_read(p, a, b, false);
	if ((!p->p.registers && memcmp(a, p->seen_a, sizeof(a))) ||
		memcmp(b, p->seen_b, (size_t)n * 16 * sizeof(*b)))
		emu_stop("%s:%d: an operand of a wgmma under way is not left alone",
			p->p.file, p->p.line);
	emu_widen(x[0], a, 64 * 16, p->p.bf16);
	emu_widen(wide[0], b, n * 16, p->p.bf16);
	for (int j = 0; j < n; j++)
		for (int k = 0; k < 16; k++)
			y[k][j] = wide[j][k];
	if (!p->p.add)
		memset(p->sums->x, 0, sizeof(p->sums->x));
	multiply(p->sums->x, x, y, n);
}

static void sums_done(struct sums *s)
{
	for (int l = 0; l < GROUP; l++) {
		if (!all_bits(s->c[l], s->n / 2))
			emu_stop("the sums of a wgmma under way are not left alone");
		for (int i = 0; i < s->n / 2; i++)
			s->c[l][i] = *sum_at(s, l, i);
	}
}

/* All threads wait: completes the committed groups up to `groups`. */
static void products_do(struct warpgroup *g, int groups, const char *file, int line)
{
	int n = 0;
	for (int l = 0; l < GROUP; l++)
		if (g->asked[l] != g->n_products || g->groups[l] != g->groups[0])
			emu_stop("%s:%d: threads of a warpgroup wait for different "
				 "products",
				file, line);
	while (n < g->n_products && g->products[n].group < g->groups[0] - groups) {
		struct product *p = &g->products[n++];
		product_do(p);
		if (!--p->sums->pending)
			sums_done(p->sums);
	}
	g->n_products -= n;
	memmove(g->products, g->products + n,
		(size_t)g->n_products * sizeof(*g->products));
	for (int l = 0; l < GROUP; l++)
		g->asked[l] = g->n_products;
}

/* Whether this thread has matmuls in flight; `held`: with an operand in registers. ptxas (13.0)
 * lost registers at branches between such a matmul and its wait; this finds only branches of
 * waits, tests/machine_code finds all. */
static bool products_under_way(bool held)
{
	const struct warpgroup *g = warpgroups[emu_thread() / GROUP];
	int n = g ? g->asked[emu_thread() % GROUP] : 0, any = !held;
	for (int i = 0; i < n; i++)
		any |= g->products[i].p.registers != NULL;
	return n && any;
}

/* A thread must wait for each phase in order, from 0 or from the complete one before it. (A
 * wait has the parity only, which cannot distinguish two phases from none.) */
void emu_barrier_wait(uint64_t *p, int parity, bool meanwhile, const char *file, int line)
{
	struct barrier *b = barrier_of(p);
	if (products_under_way(meanwhile))
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

struct meeting {
	const struct warpgroup *g;
	int64_t waited;
};

static bool met(void *asks)
{
	const struct meeting *m = (const struct meeting *)asks;
	return m->g->waited > m->waited;
}

void emu_wgmma_wait(int groups, const char *file, int line)
{
	int lane;
	struct warpgroup *g = my_group(&lane);
	struct meeting m = {g, g->waited};
	if (++g->waiting == GROUP) {
		products_do(g, groups, file, line);
		g->waiting = 0;
		g->waited++;
	}
	emu_until(met, &m, "wgmma_wait", file, line);
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
	memset(told, 0, sizeof(told));
	memset(store_groups, 0, sizeof(store_groups));
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
	if (n_stores)
		emu_stop("a block ends before %d copies have read their tiles", n_stores);
	for (int i = 0; i < NAMED; i++) {
		if (named[i].here)
			emu_stop("a block ends with %d threads at barrier %d",
				named[i].here, i);
		named[i] = (struct named){};
	}
	for (int i = 0; i < GROUPS; i++) {
		struct warpgroup *g = warpgroups[i];
		if (!g)
			continue;
		if (g->n_products)
			emu_stop("a block ends with a wgmma under way");
		memset(g->groups, 0, sizeof(g->groups));
		memset(g->fenced, 0, sizeof(g->fenced));
	}
}
