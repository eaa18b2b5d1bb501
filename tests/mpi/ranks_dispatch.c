/* Rows of experts: every row arrives once, in an order that depends on the rows alone, and comes back
 * with its bits to where it was, whatever the counts of rows are.
 * ranks: 2 1 4
 * device: cpu cuda
 */
#include "tests/support/ranks.h"
#include "parallel/dispatch.h"

#include <stdlib.h>
#include <string.h>

enum {
	MOST_RANKS = 4,
	EXPERTS = 8,
	CHUNKS = 2,
	GROUPS = EXPERTS * CHUNKS,
	MOST = 9,
	COLS = 5,
	CASES = 60,
	CASES_ON_GPU = 12
};

static struct device device;
static struct arena scratch, kept; /* memory of the device */
static struct arena host;

/* Copies a matrix to, or from, the memory of the device. */
static struct mat there(struct mat m)
{
	struct mat to = mat_alloc(&scratch, m.rows, m.cols, m.type);
	device_put(&device, to.p, m.p, (size_t)mat_bytes(m));
	return to;
}

static struct mat here(struct mat m)
{
	struct mat to = mat_alloc(&host, m.rows, m.cols, m.type);
	device_get(&device, to.p, m.p, (size_t)mat_bytes(m));
	return to;
}

/* ---- rows ------------------------------------------------------------------------ */

/* The rows of a source for an expert in a chunk: in some cases few experts have many, some sources have
 * none, and in the first case nobody has any. */
static int count_of(int number, int source, int expert, int chunk)
{
	uint64_t key[] = {
		(uint64_t)number, (uint64_t)source, (uint64_t)expert, (uint64_t)chunk};
	uint64_t h = hash_bytes(key, sizeof(key), 0);
	if (!number || (number % 3 == 1 && source % 2) ||
		(number % 4 == 2 && expert != number % 8))
		return 0;
	return (int)(h % (MOST + 1));
}

static bool has_rows(int number, int source)
{
	for (int i = 0; i < GROUPS; i++)
		if (count_of(number, source, i / CHUNKS, i % CHUNKS))
			return true;
	return false;
}

/* The offsets of a source's sorted rows. */
static void set_offsets(int number, int source, int32_t *offsets)
{
	offsets[0] = 0;
	for (int i = 0; i < GROUPS; i++)
		offsets[i + 1] =
			offsets[i] + count_of(number, source, i / CHUNKS, i % CHUNKS);
}

/* A number that no other element has. */
static uint32_t element(int source, int group, int64_t row, int64_t col)
{
	return (uint32_t)((((source + 1) * GROUPS + group) * (MOST + 1) + row) * 16 +
			  col);
}

/* The rows that a source has sorted; 16-bit elements have the lower half. */
static struct mat own_rows(
	int source, const int32_t *offsets, int64_t cols, enum dtype type)
{
	struct mat m = mat_alloc(&host, EXPERTS * CHUNKS * MOST, cols, type);
	for (int g = 0; g < GROUPS; g++)
		for (int64_t r = offsets[g]; r < offsets[g + 1]; r++)
			for (int64_t c = 0; c < cols; c++) {
				uint32_t x = element(source, g, r - offsets[g], c);
				if (type == DT_F32)
					((uint32_t *)m.p)[r * cols + c] = x;
				else
					((uint16_t *)m.p)[r * cols + c] = (uint16_t)x;
			}
	return m;
}

/* Counts the rows here that are not where they belong. */
static int64_t count_misplaced(const struct dispatch *x, int number, struct mat m)
{
	int first, n = dispatch_experts_here(x, &first);
	int64_t wrong = 0, row = 0, group = 0;
	for (int e = first; e < first + n; e++)
		for (int s = 0; s < x->c->size; s++)
			for (int c = 0; c < CHUNKS; c++, group++) {
				int count = count_of(number, s, e, c);
				wrong += x->here[group] != row;
				for (int r = 0; r < count; r++, row++)
					for (int64_t k = 0; k < m.cols; k++) {
						uint32_t want =
							element(s, e * CHUNKS + c, r, k);
						wrong +=
							m.type == DT_F32
								? ((uint32_t *)m.p)[row * m.cols +
										    k] !=
									  want
								: ((uint16_t *)m.p)[row * m.cols +
										    k] !=
									  (uint16_t)want;
					}
			}
	return wrong + (dispatch_rows(x) != row);
}

static bool same(struct mat a, struct mat b, int64_t rows)
{
	return !memcmp(a.p, b.p, (size_t)(rows * a.cols * dtype_bytes(a.type)));
}

/* ---- a case ---------------------------------------------------------------------- */

/* The widths and types that are moved at once. */
static const struct {
	int64_t cols;
	enum dtype type;
} kinds[] = {{COLS, DT_F32}, {1, DT_F32}, {3, DT_BF16}};
enum { KINDS = ARRAY_LEN(kinds) };

struct counted {
	int32_t own[GROUPS + 1];
	int32_t *own_there, *here; /* in the memory of the device */
	bool empty;
};

static void open_dispatch(struct dispatch *x)
{
	dispatch_open(x, &(struct dispatch_config){.c = world,
				 .d = &device,
				 .experts = EXPERTS,
				 .chunks = CHUNKS,
				 .capacity = world->size * EXPERTS * CHUNKS * MOST});
}

static void exchange_counts(struct dispatch *x, int number, struct counted *k)
{
	set_offsets(number, x->c->rank, k->own);
	k->own_there = arena_alloc(&kept, sizeof(k->own));
	k->here = arena_alloc(&kept, (size_t)dispatch_ints(x) * sizeof(*k->here));
	device_put(&device, k->own_there, k->own, sizeof(k->own));
	k->empty = !has_rows(number, x->c->rank) && x->c->size > 1;
	dispatch_counts_begin(x, k->empty ? NULL : k->own_there);
	dispatch_counts_end(x, k->here);
	for (int r = 0; r < x->c->size && x->c->size > 1; r++)
		BUG_ON(dispatch_has_rows(x, r) != has_rows(number, r));
}

/* Returns a matrix on the device whose bytes are all 0xff. */
static struct mat marked(int64_t rows, int64_t cols, enum dtype type)
{
	struct mat m = mat_alloc(&host, rows, cols, type);
	memset(m.p, 0xff, (size_t)mat_bytes(m));
	return there(m);
}

/* Moves rows of all kinds there and back. Returns the number of errors. */
static int64_t move(struct dispatch *x, int number, const struct counted *k)
{
	size_t mark = arena_mark(&scratch), host_mark = arena_mark(&host);
	int64_t capacity = x->c->size * EXPERTS * CHUNKS * MOST, own = k->own[GROUPS],
		wrong = 0;
	struct mat from[KINDS], moved[KINDS], back[KINDS];
	for (int i = 0; i < KINDS; i++) {
		from[i] = own_rows(x->c->rank, k->own, kinds[i].cols, kinds[i].type);
		moved[i] = marked(capacity, kinds[i].cols, kinds[i].type);
		back[i] = marked(from[i].rows, kinds[i].cols, kinds[i].type);
	}
	for (int i = 0; i < KINDS; i++)
		moved[i] = rows_to_experts_begin(x, there(from[i]), moved[i]);
	dispatch_end(x);
	for (int i = 0; i < KINDS; i++)
		wrong += count_misplaced(x, number, here(moved[i]));
	for (int i = 0; i < KINDS; i++)
		back[i] = rows_back_begin(x, moved[i], back[i]);
	dispatch_end(x);
	for (int i = 0; i < KINDS; i++) {
		struct mat got = here(back[i]);
		const unsigned char *beyond = (unsigned char *)mat_rows(got, own, 0).p;
		wrong += !same(from[i], got, own);
		wrong += x->c->size > 1 && own < got.rows && *beyond != 0xff;
	}
	arena_reset(&scratch, mark);
	arena_reset(&host, host_mark);
	return wrong;
}

/* ---- tests ----------------------------------------------------------------------- */

TEST(there_and_back)
{
	struct dispatch x;
	struct counted k;
	int64_t wrong = 0;
	int cases = device.discrete ? CASES_ON_GPU : CASES;
	open_dispatch(&x);
	for (int number = 0; number < cases && (x.c->size > 1 || !device.discrete);
		number++) {
		arena_reset(&kept, 0);
		exchange_counts(&x, number, &k);
		wrong += move(&x, number, &k);
		int64_t rows = dispatch_rows(&x), all = rows, own = k.own[GROUPS];
		comm_sum_i64(world, &all, 1);
		comm_sum_i64(world, &own, 1);
		wrong += all != own; /* each row is somewhere */
		wrong += x.most_rows != comm_max_i64(world, rows);
	}
	dispatch_close(&x);
	assert_on_all(!wrong);
}

/* Moves for a backward use the counts of its forward, after those of other micro-batches. */
TEST(restored)
{
	struct dispatch x;
	struct counted k[4];
	int64_t wrong = 0;
	open_dispatch(&x);
	arena_reset(&kept, 0);
	for (int i = 0; i < 4; i++)
		exchange_counts(&x, 3 + i, &k[i]);
	for (int i = 3; i >= 0; i--) {
		dispatch_restore(&x, k[i].empty ? NULL : k[i].own_there, k[i].here);
		wrong += move(&x, 3 + i, &k[i]);
	}
	dispatch_close(&x);
	assert_on_all(!wrong);
}

/* A rank sends each row of another rank's expert once, in each direction. */
TEST(bytes)
{
	struct dispatch x;
	struct counted k;
	int first, n;
	int64_t bytes = 0;
	open_dispatch(&x);
	arena_reset(&kept, 0);
	exchange_counts(&x, 7, &k);
	n = dispatch_experts_here(&x, &first);
	for (int i = 0; i < KINDS; i++) {
		int64_t width = kinds[i].cols * dtype_bytes(kinds[i].type);
		int64_t stays = k.own[(first + n) * CHUNKS] - k.own[first * CHUNKS];
		bytes += width * (k.own[GROUPS] - stays);     /* there */
		bytes += width * (dispatch_rows(&x) - stays); /* back */
	}
	int64_t before = world->sent;
	int64_t wrong = move(&x, 7, &k);
	wrong += world->sent - before != (world->size > 1 ? bytes : 0);
	dispatch_close(&x);
	assert_on_all(!wrong);
}

int main(void)
{
	const char *kind = getenv("PT_TEST_DEVICE");
	struct err e = {0};
	if (kind && getenv("PT_CUDA") &&
		strstr(getenv("PT_CUDA"), "/emu/")) /* NCCL too */
		setenv("PT_NCCL", getenv("PT_CUDA"), 1);
	ranks_open();
	if (!kind || strcmp(kind, "cuda"))
		device_open_cpu(&device, 1);
	else if (device_open(&device, DEVICE_CUDA,
			 &(struct device_options){.exact = true,
				 .ranks = world->size,
				 .rank = world->rank},
			 &e) ||
		 comm_device_open(world, &device, COMM_AUTO, &e))
		die_err(&e);
	comm_device_arena(world, &device, &scratch, "scratch", 1 << 22);
	device_arena_init(&device, &kept, "kept", 1 << 20);
	arena_init(&host, "host", 1 << 22);
	device.scratch = &scratch;
	int rc = ranks_run();
	comm_device_arena_release(world, &device, &scratch);
	device_arena_release(&device, &kept);
	arena_release(&host);
	comm_device_close();
	device_close(&device);
	return ranks_close(rc);
}
