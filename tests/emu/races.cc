/* Finds races: two blocks of a launch access the same word of global memory, at least one of them
 * writes, at least one access is not atomic, and nothing orders the two. (Reads that race with
 * atomics are allowed: kernels read a maximum before they raise it.) Only __threadfence() and
 * atomics order accesses of two blocks (CUDA C++: "Memory consistency model"), so what is found does
 * not depend on the order in which the blocks run.
 *
 * This file sees all atomics, and the other accesses of files that are compiled with
 * -fsanitize=thread: it has the functions that the compiler then calls. Grids of more than MAX_BLOCKS
 * blocks are not checked.
 *
 * Each block has a clock, which its fences advance, and knows a time of the clock of each other
 * block; what happened there until this time is ordered before what the block does. An atomic
 * passes on what its block knew at its last fence. What an atomic finds is known from the next
 * fence on. */
#include "tests/emu/inside.h"

#include <dlfcn.h>

enum { MAX_BLOCKS = 64, WORDS = 1 << 18, TRIES = 16, SYNCS = 1 << 12 };

struct access {
	uint32_t clock;
	int8_t block;
	uint8_t bytes; /* of the word; 0: none */
};

struct word {
	uintptr_t at;
	int64_t launch;
	struct access write, read; /* the last ones that are not atomic */
};

struct clocks {
	uint32_t of[MAX_BLOCKS];
};

/* A word with atomics: what these pass on, and the time of each block's last one. */
struct sync {
	uintptr_t at;
	int64_t launch;
	struct clocks passed, accessed;
};

static struct word words[WORDS];
static struct sync syncs[SYNCS];
static int n_syncs, n_blocks;
/* Of each block: what it knows, knew at its last fence, and will know at the next. */
static struct clocks known[MAX_BLOCKS], published[MAX_BLOCKS], found[MAX_BLOCKS];
static bool fenced[MAX_BLOCKS]; /* it has accessed nothing since its last fence */
static bool is_atomic;
static int64_t launch;

void emu_races_begin(int64_t n)
{
	n_blocks = n > 1 && n <= MAX_BLOCKS ? (int)n : 0;
	n_syncs = 0;
	launch++;
	for (int i = 0; i < n_blocks; i++) {
		known[i] = published[i] = found[i] = (struct clocks){};
		known[i].of[i] = 1;
		fenced[i] = false;
	}
}

static void join(struct clocks *to, const struct clocks *from)
{
	for (int i = 0; i < n_blocks; i++)
		to->of[i] = to->of[i] > from->of[i] ? to->of[i] : from->of[i];
}

static size_t hash(uintptr_t at)
{
	return (size_t)(at / 4 * 0x9e3779b97f4a7c15u >> 32);
}

static struct word *word_at(uintptr_t at)
{
	for (size_t i = hash(at), end = i + TRIES; i < end; i++) {
		struct word *w = &words[i % WORDS];
		if (w->launch != launch)
			*w = (struct word){at, launch, {}, {}};
		if (w->at == at)
			return w;
	}
	return NULL; /* no space: not checked */
}

/* Returns NULL if the word has no atomics and `create` is false. */
static struct sync *sync_at(uintptr_t at, bool create)
{
	size_t i = hash(at) % SYNCS;
	while (syncs[i].launch == launch && syncs[i].at != at)
		i = (i + 1) % SYNCS;
	if (syncs[i].launch == launch)
		return &syncs[i];
	if (!create)
		return NULL;
	syncs[i] = (struct sync){at, launch, {}, {}};
	n_syncs++;
	return &syncs[i];
}

static void check(int before, uint32_t clock, int now, uintptr_t at, void *from)
{
	Dl_info library;
	if (before == now || clock <= known[now].of[before])
		return;
	uintptr_t base = dladdr(from, &library) ? (uintptr_t)library.dli_fbase : 0;
	emu_stop("a race with block %d for %#lx, at %#lx for addr2line -e", before,
		(unsigned long)at, (unsigned long)((uintptr_t)from - base));
}

static void check_plain(
	const struct access *before, const struct access *a, uintptr_t at, void *from)
{
	if (before->bytes & a->bytes)
		check(before->block, before->clock, a->block, at, from);
}

static void note(struct access a, uintptr_t at, bool write, void *from)
{
	struct word *w = word_at(at);
	const struct sync *sync = write && n_syncs ? sync_at(at, false) : NULL;
	for (int i = 0; sync && i < n_blocks; i++)
		check(i, sync->accessed.of[i], a.block, at, from);
	if (!w)
		return;
	check_plain(&w->write, &a, at, from);
	if (write) {
		check_plain(&w->read, &a, at, from);
		w->write = a;
	} else if (!w->read.bytes || w->read.block == a.block ||
		   w->read.clock <= known[a.block].of[w->read.block]) {
		w->read = a;
	}
}

/* From the first address of this library to the last: threadIdx, arguments, and so on. */
extern const char library_begin[] __asm__("__ehdr_start")
	__attribute__((visibility("hidden")));
extern const char library_end[] __asm__("_end") __attribute__((visibility("hidden")));

static void access(const void *p, size_t n, bool write, void *from)
{
	if ((const char *)p >= library_begin && (const char *)p < library_end)
		return;
	if (!n_blocks || is_atomic || !emu_is_global(p) ||
		emu_is_global(__builtin_frame_address(0))) /* the program's own access */
		return;
	int b = (int)emu_block_number();
	uintptr_t at = (uintptr_t)p, end = at + n;
	fenced[b] = false;
	for (; at < end; at = at / 4 * 4 + 4) {
		uintptr_t skip = at % 4, until = end - at / 4 * 4 < 4 ? end % 4 : 4;
		uint8_t bytes = (uint8_t)((1u << until) - (1u << skip));
		note({known[b].of[b], (int8_t)b, bytes}, at / 4 * 4, write, from);
	}
}

/* An access right after a fence is passed on by itself. */
void emu_atomic(const void *p)
{
	uintptr_t at = (uintptr_t)p;
	is_atomic = p;
	if (!p || !n_blocks || !emu_is_global(p))
		return;
	if (n_syncs == SYNCS / 2) { /* no space: no more checks in this launch */
		n_blocks = 0;
		return;
	}
	int b = (int)emu_block_number();
	const struct access a = {0, (int8_t)b, 15};
	struct word *w = word_at(at);
	struct sync *sync = sync_at(at, true);
	if (w)
		check_plain(&w->write, &a, at, __builtin_return_address(0));
	sync->accessed.of[b] = fenced[b] ? published[b].of[b] : known[b].of[b];
	join(&found[b], &sync->passed);
	join(&sync->passed, &published[b]);
}

void emu_fence(void)
{
	if (!n_blocks)
		return;
	int b = (int)emu_block_number();
	join(&known[b], &found[b]);
	published[b] = known[b];
	known[b].of[b]++;
	fenced[b] = true;
}

/* ---- what -fsanitize=thread calls ------------------------------------------------------- */

#define FROM __builtin_return_address(0)
#define CALLS(name, n)                                               \
	extern "C" EMU_INSIDE void __tsan_##name##read##n(void *p);  \
	extern "C" EMU_INSIDE void __tsan_##name##write##n(void *p); \
	void __tsan_##name##read##n(void *p)                         \
	{                                                            \
		access(p, n, false, FROM);                           \
	}                                                            \
	void __tsan_##name##write##n(void *p)                        \
	{                                                            \
		access(p, n, true, FROM);                            \
	}
CALLS(, 1)
CALLS(, 2)
CALLS(, 4)
CALLS(, 8)
CALLS(, 16)
CALLS(unaligned_, 2)
CALLS(unaligned_, 4)
CALLS(unaligned_, 8)
CALLS(unaligned_, 16)

extern "C" EMU_INSIDE void __tsan_init(void);
extern "C" EMU_INSIDE void __tsan_read_range(void *p, size_t n);
extern "C" EMU_INSIDE void __tsan_write_range(void *p, size_t n);

void __tsan_init(void)
{
}

void __tsan_read_range(void *p, size_t n)
{
	access(p, n, false, FROM);
}

void __tsan_write_range(void *p, size_t n)
{
	access(p, n, true, FROM);
}
