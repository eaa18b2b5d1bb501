/* Matmuls of warpgroups (PTX ISA: "Asynchronous warpgroup level matrix instructions", and there
 * "Matrix descriptor", "Strides", "Canonical layouts"). */
#include "tests/emu/tiles.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdlib.h>

#include <gpu_hopper.h>

#define FAST __attribute__((target_clones("default", "avx2", "avx512f")))

enum {
	MAX_THREADS = 1024,
	GROUP = 128,
	GROUPS = MAX_THREADS / GROUP,
	LANES = 32,
	WARPS = GROUP / LANES,
	MAX_PRODUCTS = 128,
	MAX_SUMS = 16,
	MAX_ADDRESS = 1 << 18
};

/* 64 x n sums of matmuls in flight, 16 rows a warp; their registers are NaN until these complete. */
struct sums {
	float x[64][256];
	float *c[GROUP];
	int n, pending[WARPS];
};

struct product {
	struct emu_wgmma p;
	struct sums *sums;
	int64_t group;
	const uint32_t
		*registers[GROUP]; /* the registers of a, and their values at the call */
	uint32_t a[GROUP][4];
	uint16_t seen_a[64 * 16], seen_b[16 * 256];
	float y[16][256]; /* b */
	int n_warps;	  /* for which it is complete */
};

/* A wait is a warp's own: when it is over, matmuls of the warpgroup's other warps may still read
 * their operands. */
struct warpgroup {
	struct product products[MAX_PRODUCTS]; /* a ring */
	struct sums sums[MAX_SUMS];
	/* Numbers of products: asked for by any thread, by each; complete for each warp. */
	int64_t n_products, asked[GROUP], done[WARPS];
	int64_t groups[GROUP]; /* committed */
	bool fenced[GROUP];
	int waiting[WARPS];
	int64_t waited[WARPS];
};

/* Of each block that runs. */
static struct state {
	struct warpgroup *warpgroups[GROUPS];
	/* Waits that last until no thread can go on, and how often that was. */
	int n_slow;
	int64_t n_idle;
} states[EMU_MAX_ALIVE], *h = states;

void emu_wgmma_use(int block)
{
	h = &states[block];
}

static struct warpgroup *my_group(int *lane)
{
	int i = emu_thread() / GROUP;
	emu_needs_hopper("wgmma");
	*lane = emu_thread() % GROUP;
	int n = (int)(blockDim.x * blockDim.y * blockDim.z);
	if (n < (i + 1) * GROUP)
		emu_stop("a warpgroup of %d threads", n - i * GROUP);
	if (!h->warpgroups[i])
		h->warpgroups[i] = (struct warpgroup *)calloc(1, sizeof(**h->warpgroups));
	return h->warpgroups[i];
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
			if (first && !emu_brought(at, to[i * 16 + k]))
				emu_stop("wgmma: no copy of a tile has brought what is "
					 "at %#x",
					at);
		}
	}
}

static struct product *product_at(struct warpgroup *g, int64_t i)
{
	return &g->products[i % MAX_PRODUCTS];
}

static void product_read(struct product *p, uint16_t *a, uint16_t *b, bool first)
{
	operand_read(b, p->p.b, p->p.n, p->p.transposed, first);
	if (!p->p.registers)
		operand_read(a, p->p.a, 64, p->p.a_transposed, first);
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
		int pending = 0;
		for (int w = 0; w < WARPS; w++)
			pending += s->pending[w];
		if (pending && s->c[lane] == p->c && s->n == p->n)
			return s;
		if (!pending && !unused)
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
	       a->transposed == b->transposed && a->a_transposed == b->a_transposed &&
	       a->add == b->add && !a->registers == !b->registers &&
	       !strcmp(a->file, b->file);
}

void emu_wgmma_fence(void)
{
	int lane;
	my_group(&lane)->fenced[lane] = true;
}

static bool has_room(const struct warpgroup *g, int lane)
{
	int64_t done = g->done[0];
	for (int w = 1; w < WARPS; w++)
		done = g->done[w] < done ? g->done[w] : done;
	return g->asked[lane] < done + MAX_PRODUCTS;
}

/* By the first thread that asks for it. */
static void product_begin(
	struct warpgroup *g, struct product *mine, int lane, const struct emu_wgmma *p)
{
	static float wide[256][16];
	mine->p = *p;
	mine->sums = sums_of(g, lane, p);
	mine->group = g->groups[lane];
	mine->n_warps = 0;
	for (int w = 0; w < WARPS; w++)
		mine->sums->pending[w]++;
	product_read(mine, mine->seen_a, mine->seen_b, true);
	emu_widen(wide[0], mine->seen_b, p->n * 16, p->bf16);
	for (int j = 0; j < p->n; j++)
		for (int k = 0; k < 16; k++)
			mine->y[k][j] = wide[j][k];
}

/* The first thread of a warpgroup checks that the operands are loaded; the matmul completes for
 * each warp when it waits for it. */
void emu_wgmma_ask(const struct emu_wgmma *p)
{
	int lane;
	struct warpgroup *g = my_group(&lane);
	if (!g->fenced[lane])
		emu_stop("%s:%d: wgmma after no fence", p->file, p->line);
	if (p->n % 8 || p->n > 256 || !has_room(g, lane))
		emu_stop("%s:%d: a wgmma of %d columns, or too many", p->file, p->line,
			p->n);
	struct product *mine = product_at(g, g->asked[lane]);
	if (g->asked[lane]++ == g->n_products) {
		g->n_products++;
		product_begin(g, mine, lane, p);
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
	for (int i = 0; i < 16; i++)
		for (int k = 0; k < 16; k++)
			for (int j = 0; j < n; j++)
				c[i][j] += a[i][k] * b[k][j];
}

/* The warp's 16 rows of a left operand in registers. */
static void held_read(uint16_t *a, const struct product *p, int warp)
{
	for (int i = 0; i < LANES; i++) {
		int l = warp * LANES + i;
		if (memcmp(p->registers[l], p->a[l], sizeof(p->a[l])))
			emu_stop("%s:%d: registers that a wgmma under way reads are not "
				 "left alone",
				p->p.file, p->p.line);
		for (int e = 0; e < 8; e++) {
			int row = i / 4 + e / 2 % 2 * 8,
			    k = i % 4 * 2 + e % 2 + e / 4 * 8;
			a[row * 16 + k] = (uint16_t)(p->a[l][e / 2] >> 16 * (e % 2));
		}
	}
}

/* For a warp; the last checks the operands. */
static void product_do(struct product *p, int warp)
{
	static uint16_t a[64 * 16], b[256 * 16];
	uint16_t held[16 * 16];
	const uint16_t *mine = p->p.registers ? held : p->seen_a + warp * 16 * 16;
	float x[16][16];
	int n = p->p.n;
	if (p->p.registers)
		held_read(held, p, warp);
	if (++p->n_warps == WARPS) {
		product_read(p, a, b, false);
		if ((!p->p.registers && memcmp(a, p->seen_a, sizeof(a))) ||
			memcmp(b, p->seen_b, (size_t)n * 16 * sizeof(*b)))
			emu_stop("%s:%d: an operand of a wgmma under way is not left "
				 "alone",
				p->p.file, p->p.line);
	}
	emu_widen(x[0], mine, 16 * 16, p->p.bf16);
	if (!p->p.add)
		memset(p->sums->x[warp * 16], 0, 16 * sizeof(p->sums->x[0]));
	multiply(p->sums->x + warp * 16, x, p->y, n);
}

static void sums_done(struct sums *s, int warp)
{
	for (int l = warp * LANES; l < (warp + 1) * LANES; l++) {
		if (!all_bits(s->c[l], s->n / 2))
			emu_stop("the sums of a wgmma under way are not left alone");
		for (int i = 0; i < s->n / 2; i++)
			s->c[l][i] = *sum_at(s, l, i);
		s->c[l] = NULL;
	}
}

/* All threads of a warp wait: completes its committed groups up to `groups`. */
static void products_do(
	struct warpgroup *g, int warp, int groups, const char *file, int line)
{
	int first = warp * LANES;
	for (int l = first; l < first + LANES; l++)
		if (g->asked[l] != g->asked[first] || g->groups[l] != g->groups[first])
			emu_stop("%s:%d: threads of a warp wait for different products",
				file, line);
	for (; g->done[warp] < g->asked[first]; g->done[warp]++) {
		struct product *p = product_at(g, g->done[warp]);
		if (p->group >= g->groups[first] - groups)
			break;
		product_do(p, warp);
		if (!--p->sums->pending[warp])
			sums_done(p->sums, warp);
	}
}

/* Whether this thread has matmuls in flight; `held`: with an operand in registers. ptxas (13.0)
 * lost registers at branches between such a matmul and its wait; this finds only branches of
 * waits, tests/tools/machine_code finds all. */
bool emu_wgmma_under_way(bool held)
{
	struct warpgroup *g = h->warpgroups[emu_thread() / GROUP];
	int lane = emu_thread() % GROUP;
	if (!g)
		return false;
	for (int64_t i = g->done[lane / LANES]; i < g->asked[lane]; i++)
		if (!held || product_at(g, i)->p.registers)
			return true;
	return false;
}

struct meeting {
	const int64_t *n;
	int64_t was;
};

static bool met(void *asks)
{
	const struct meeting *m = (const struct meeting *)asks;
	return *m->n > m->was;
}

bool emu_wgmma_idle(void)
{
	h->n_idle += h->n_slow > 0;
	return h->n_slow > 0;
}

/* Every second wait is slow in one warp. */
void emu_wgmma_wait(int groups, const char *file, int line)
{
	int lane;
	struct warpgroup *g = my_group(&lane);
	int w = lane / LANES;
	struct meeting m = {&g->waited[w], g->waited[w]}, idle = {&h->n_idle, h->n_idle};
	if (++g->waiting[w] == LANES) {
		if ((m.was + 2) % (2 * WARPS) == w) {
			h->n_slow++;
			emu_until(met, &idle, "wgmma_wait", file, line);
			h->n_slow--;
		}
		products_do(g, w, groups, file, line);
		g->waiting[w] = 0;
		g->waited[w]++;
	}
	emu_until(met, &m, "wgmma_wait", file, line);
}

void emu_wgmma_end(void)
{
	for (int i = 0; i < GROUPS; i++) {
		struct warpgroup *g = h->warpgroups[i];
		if (!g)
			continue;
		for (int w = 0; w < WARPS; w++)
			if (g->done[w] != g->n_products)
				emu_stop("a block ends with a wgmma under way");
		memset(g->groups, 0, sizeof(g->groups));
		memset(g->fenced, 0, sizeof(g->fenced));
	}
}
