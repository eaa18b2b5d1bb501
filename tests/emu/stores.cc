/* Stores of tiles by tensor maps (PTX ISA: "cp.async.bulk.tensor", "Async Proxy"). */
#include "tests/emu/tiles.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <gpu_hopper.h>

enum { MAX_THREADS = 1024, MAX_STORES = 256, MAX_STORE = 16 << 10 /* bytes */ };

struct store {
	struct map map;
	int at[4];
	uint32_t from;
	int thread;
	int64_t group; /* of this thread */
	unsigned char seen
		[MAX_STORE]; /* at the call; a copy reads them at some time until the wait */
};

/* Of each block that runs. */
static struct state {
	int n_threads;
	struct store stores[MAX_STORES];
	int n_stores;
	/* How often each thread made its stores to shared memory visible to copies, and how often
	 * groups of copies of a warp's threads have needed it. */
	int64_t tells[MAX_THREADS], groups_of[MAX_THREADS / 32];
	int64_t committed[MAX_THREADS]; /* groups */
} states[EMU_MAX_ALIVE], *h = states;

void emu_stores_use(int block)
{
	h = &states[block];
}

void emu_publish_stores(void)
{
	emu_needs_hopper("publish_stores");
	h->tells[emu_thread()]++;
	emu_publish_pieces();
}

void emu_tile_store(const CUtensorMap *map, const void *from, const int at[4])
{
	struct store s = {};
	memcpy(&s.map, map, sizeof(s.map));
	emu_needs_hopper("tile_store");
	if (s.map.magic != MAP || s.map.rank != 4 || (uintptr_t)map % 64)
		emu_stop("tile_store: no map of a tensor of 4 dimensions");
	int warp = emu_thread() / 32, bytes = box_bytes(&s.map);
	for (int i = warp * 32; i < h->n_threads && i < (warp + 1) * 32; i++)
		if (h->tells[i] <= h->groups_of[warp])
			emu_stop(
				"tile_store: what thread %d stored is not visible to copies",
				i);
	s.from = emu_address(from);
	uint32_t whole = s.map.swizzle > 16 ? 8u * s.map.swizzle : 128u;
	if (s.from % whole || bytes > MAX_STORE)
		emu_stop("tile_store: %d bytes from %#x, not on %u bytes", bytes, s.from,
			whole);
	memcpy(s.at, at, sizeof(s.at));
	memcpy(s.seen, emu_shared_at(s.from, (size_t)bytes), (size_t)bytes);
	s.thread = emu_thread();
	s.group = h->committed[s.thread];
	if (h->n_stores == MAX_STORES)
		emu_stop("more stores of tiles than %d", h->n_stores);
	h->stores[h->n_stores++] = s;
}

void emu_stores_commit(void)
{
	emu_needs_hopper("stores_commit");
	h->groups_of[emu_thread() / 32]++;
	h->committed[emu_thread()]++;
}

static void store_now(const struct store *s)
{
	const struct map *m = &s->map;
	int width = m->box[0] * m->size, rows = box_bytes(m) / width;
	if (memcmp(s->seen, emu_shared_at(s->from, (size_t)(rows * width)),
		    (size_t)(rows * width)))
		emu_stop("what a tile_store under way reads is not left alone");
	for (int i = 0; i < rows; i++) {
		char *to = box_row(m, s->at, i);
		for (int c = 0; to && c < width; c += m->size) {
			int64_t at = s->at[0] + c / m->size;
			uint32_t address =
				swizzled(s->from + (uint32_t)(i * width + c), m->swizzle);
			if (at >= 0 && at < (int64_t)m->dims[0])
				memcpy(to + at * m->size, emu_shared_at(address, 2),
					(size_t)m->size);
		}
	}
}

/* As late as allowed: at the wait. */
void emu_stores_wait(int groups)
{
	int n = 0, me = emu_thread();
	emu_needs_hopper("stores_wait");
	for (int i = 0; i < h->n_stores; i++) {
		if (h->stores[i].thread == me &&
			h->stores[i].group < h->committed[me] - groups)
			store_now(&h->stores[i]);
		else if (n++ != i)
			h->stores[n - 1] = h->stores[i];
	}
	h->n_stores = n;
}

void emu_stores_begin(int n)
{
	h->n_threads = n;
	memset(h->tells, 0, sizeof(h->tells));
	memset(h->groups_of, 0, sizeof(h->groups_of));
	memset(h->committed, 0, sizeof(h->committed));
}

void emu_stores_end(void)
{
	if (h->n_stores)
		emu_stop("a block ends before %d stores of tiles are waited for",
			h->n_stores);
}
