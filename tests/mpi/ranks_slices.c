/* Slices and chunks, over ranks. Sums and gathers of rows, and the ring, have the bits of one
 * rank, for every number of slices and chunks and every number of ranks that divides it.
 * ranks: 4
 */
#include "tests/support/ranks.h"
#include "parallel/context.h"
#include "schedule/schedule.h"
#include "parallel/slices.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct device device;
static struct arena scratch;

/* Ranks [0, size) of the world; NULL for the others. */
static struct comm *axis_of(int size)
{
	return comm_split(world, world->rank < size ? 0 : -1, "axis");
}

static int64_t count_different(const float *x, const float *y, int64_t n)
{
	int64_t wrong = 0;
	for (int64_t i = 0; i < n; i++)
		wrong += memcmp(&x[i], &y[i], sizeof(*x)) != 0;
	return wrong;
}

/* ---- sums and gathers ------------------------------------------------------------ */

enum { COLS = 5, MAX_ROWS = 33 };

static enum dtype wire; /* of messages */

/* If they are sent in 16 bits, numbers that bf16 holds. */
static float part_value(int slice, int64_t i)
{
	float x = (float)test_normal(1 + (uint64_t)slice, i);
	return wire == DT_F32 ? x : (float)round((double)x * 16) / 16;
}

/* The canonical tree, as it is defined. */
static float tree_value(int begin, int end, int n, int64_t i)
{
	if (end - begin == 1)
		return part_value(begin, i);
	int middle = begin + (end - begin) / 2;
	float left = tree_value(begin, middle, n, i);
	return middle < n ? left + tree_value(middle, end, n, i) : left;
}

static float sum_value(int n, int64_t i)
{
	int wide = 1;
	while (wide < n)
		wide *= 2;
	return tree_value(0, wide, n, i);
}

/* Pushes rows in blocks of `block`, all slices of each. */
static void sum_all(struct slice_sum *sum, int64_t rows, int64_t block)
{
	const struct slices *s = sum->s;
	for (int64_t first = 0; first < rows; first += block) {
		int64_t n = min64(block, rows - first);
		slice_sum_rows(sum, first, n);
		for (int v = s->first; v < s->first + s->local; v++) {
			float *slot = slice_sum_slot(sum).p;
			for (int64_t i = 0; i < n * COLS; i++)
				slot[i] = part_value(v, first * COLS + i);
			slice_sum_push(sum);
		}
	}
}

/* The same, each slice's rows piece by piece. */
static void sum_pieces(struct slice_sum *sum)
{
	const struct slices *s = sum->s;
	for (int v = s->first; v < s->first + s->local; v++) {
		for (int i = 0; i < s->n; i++) {
			slice_sum_turn(sum, i);
			float *slot = slice_sum_slot(sum).p;
			for (int64_t at = 0; at < sum->n * COLS; at++)
				slot[at] = part_value(v, sum->first * COLS + at);
			slice_sum_push(sum);
			comm_poll();
		}
	}
}

/* Rows of a gather that are there when their piece was waited for, this rank's at once. */
static int64_t wrong_pieces(
	const struct slices *s, struct mat here, struct mat room, const float *want)
{
	struct slice_gather g;
	int64_t wrong = 0;
	size_t mark = arena_mark(&scratch);
	slice_gather_begin(&g, s, &device, here, room, wire);
	for (int i = 0; i < s->n; i++) {
		int piece = slice_turn(s, i);
		int64_t first, n = slice_piece(s, room.rows, piece, &first);
		wrong += i < s->local && piece != s->first + i;
		slice_gather_wait(&g, piece);
		wrong += count_different(
			(float *)g.all.p + first * COLS, want + first * COLS, n * COLS);
	}
	slice_gather_end(&g);
	arena_reset(&scratch, mark);
	return wrong;
}

/* In blocks of rows, or 0: in pieces. */
static int64_t wrong_rows(const struct slices *s, int64_t rows, int64_t block)
{
	float x[MAX_ROWS * COLS], room[MAX_ROWS * COLS], want[MAX_ROWS * COLS];
	int64_t first, n = slice_rows(s, rows, &first);
	struct slice_sum sum;
	for (int64_t i = 0; i < rows * COLS; i++)
		want[i] = sum_value(s->n, i);
	memset(x, 0xff, sizeof(x));
	memset(room, 0xff, sizeof(room));
	slice_sum_begin(&sum, s, &device, mat(x, n, COLS), rows, wire);
	if (block)
		sum_all(&sum, rows, block);
	else
		sum_pieces(&sum);
	slice_sum_end(&sum);
	int64_t wrong = count_different(x, want + first * COLS, n * COLS);
	for (int64_t i = 0; i < rows * COLS; i++) /* what is gathered is not a sum */
		want[i] = part_value(s->n, i);
	memcpy(x, want + first * COLS, (size_t)(n * COLS) * sizeof(*x));
	wrong += wrong_pieces(s, mat(x, n, COLS), mat(room, rows, COLS), want);
	return wrong + (arena_mark(&scratch) != 0);
}

TEST(sums_and_gathers)
{
	static const int64_t some_rows[] = {1, 2, 7, 16, MAX_ROWS};
	for (int size = 1; size <= world->size; size++) {
		struct comm *axis = axis_of(size);
		int64_t wrong = 0;
		for (int n = size; n <= 12 && axis; n += size) {
			struct slices s = {axis, n, axis->rank * (n / size), n / size};
			for (size_t i = 0; i < ARRAY_LEN(some_rows) * 4; i++) {
				int64_t rows = some_rows[i / 4];
				s.sp = i & 1;
				s.async = i & 2;
				wrong += wrong_rows(&s, rows, s.sp ? 3 : rows);
				wrong += wrong_rows(&s, rows, 0);
				wire = DT_BF16;
				wrong += wrong_rows(&s, rows, 0);
				wire = DT_F32;
			}
		}
		assert_on_all(!wrong);
		if (axis)
			comm_free(axis);
	}
}

/* Of the turn of a sum. */
static int64_t rows_of_turn(const struct slices *s, int turn)
{
	int64_t first;
	return slice_piece(s, MAX_ROWS, slice_turn(s, s->local + turn), &first);
}

/* A sum that a rank computes a piece of after the other: what is whole goes to its rank at
 * once, so the first of the others has all it needs while this rank's own is not computed. */
TEST(early_rows)
{
	struct comm *axis = axis_of(world->size);
	for (int async = 0; async < 2; async++) {
		float x[MAX_ROWS * COLS];
		struct slices s = {axis, axis->size, axis->rank, 1, true, async};
		int64_t first, n = slice_rows(&s, MAX_ROWS, &first);
		int64_t before = axis->sent, rows_sent = 0;
		int64_t wrong = 0;
		struct slice_sum sum;
		slice_sum_begin(&sum, &s, &device, mat(x, n, COLS), MAX_ROWS, DT_F32);
		for (int i = 0; i < s.n; i++) {
			slice_sum_turn(&sum, i);
			memset(slice_sum_slot(&sum).p, 0,
				(size_t)(sum.n * COLS) * sizeof(float));
			slice_sum_push(&sum);
			rows_sent += async && i < s.n - 1 ? rows_of_turn(&s, i) : 0;
			int64_t bytes = rows_sent * COLS * (int64_t)sizeof(float);
			wrong += axis->sent - before != bytes;
		}
		slice_sum_end(&sum);
		assert_on_all(!wrong);
	}
	comm_free(axis);
}

/* The pieces of all slices are all rows, in order, and a rank has those of its slices. */
TEST(pieces)
{
	for (int64_t rows = 1; rows <= 40; rows++) {
		for (int n = 1; n <= 12; n++) {
			struct slices s = {world, n, 0, 1, true};
			int64_t next = 0, first;
			for (int i = 0; i < n; i++) {
				int64_t len = slice_piece(&s, rows, i, &first);
				assert_int_equal(first, next);
				assert_true(len >= rows / n && len <= rows / n + 1);
				next += len;
			}
			assert_int_equal(next, rows);
		}
	}
}

/* ---- the ring -------------------------------------------------------------------- */

enum { FLOATS = 6, MAX_CHUNKS = 8, MAX_SLICES = 2, MAX_PARTS = MAX_SLICES * MAX_CHUNKS };

/* What one rank with all chunks computes, [slice][chunk][FLOATS]: sums whose bits tell the
 * order of what was added, and to what. */
struct sums {
	float o[MAX_PARTS * FLOATS], dk[MAX_PARTS * FLOATS], dv[MAX_PARTS * FLOATS];
};

static float key_value(enum ring_part part, int slice, int chunk, int i)
{
	return (float)test_normal((uint64_t)part + 7, (slice * 64 + chunk) * 64 + i);
}

/* Queries of a chunk meet keys. */
static void meet(float *o, float *dk, float *dv, const float *k, const float *v,
	int slice, int query_chunk)
{
	for (int i = 0; i < FLOATS; i++) {
		float q = (float)test_normal(99, (slice * 64 + query_chunk) * 64 + i);
		o[i] = 0.75f * o[i] + q * k[i] + v[i];
		dk[i] = 0.75f * dk[i] + q * v[i];
		dv[i] = 0.75f * dv[i] + q + k[i];
	}
}

static void one_rank(int n, int slices, struct sums *out)
{
	memset(out, 0, sizeof(*out));
	for (int t = 0; t < n; t++)
		for (int s = 0; s < slices; s++)
			for (int c = 0; c < n; c++) {
				float k[FLOATS], v[FLOATS];
				int kc = (c - t + n) % n;
				for (int i = 0; i < FLOATS; i++) {
					k[i] = key_value(RING_K, s, kc, i);
					v[i] = key_value(RING_V, s, kc, i);
				}
				meet(out->o + (s * n + c) * FLOATS,
					out->dk + (s * n + kc) * FLOATS,
					out->dv + (s * n + kc) * FLOATS, k, v, s, c);
			}
}

static void pass_ring(struct ring *r, const struct ring_kv *kv, float *o)
{
	const struct chunks *c = r->c;
	float none[2][FLOATS] = {{0}};
	ring_exchange(r, &device, kv);
	while (ring_next(r)) {
		for (int s = 0; s < kv->slices; s++) {
			for (int q = c->local - 1; q >= 0; q--) {
				int kc = ring_keys_for(r, c->first + q);
				bool sums = kv->local[RING_DK].p;
				if (q == 0 && sums)
					ring_recv_grads(r, s);
				meet(o + (s * c->local + q) * FLOATS,
					sums ? ring_at(r, RING_DK, s, kc).p : none[0],
					sums ? ring_at(r, RING_DV, s, kc).p : none[1],
					ring_at(r, RING_K, s, kc).p,
					ring_at(r, RING_V, s, kc).p, s, c->first + q);
				if (q == c->local - 1 && sums)
					ring_send_grads(r, s);
			}
		}
		comm_poll();
	}
	ring_end(r);
}

static int64_t wrong_chunks(const struct chunks *c, int slices, bool sums)
{
	struct sums want, got = {{0}};
	float k[MAX_PARTS * FLOATS], v[MAX_PARTS * FLOATS];
	int64_t wrong = 0;
	one_rank(c->n, slices, &want);
	for (int s = 0; s < slices; s++)
		for (int i = 0; i < c->local * FLOATS; i++) {
			int at = s * c->local * FLOATS + i, chunk = c->first + i / FLOATS;
			k[at] = key_value(RING_K, s, chunk, i % FLOATS);
			v[at] = key_value(RING_V, s, chunk, i % FLOATS);
		}
	struct ring r = ring_begin(c);
	int64_t rows = slices * c->local;
	struct ring_kv kv = {{mat(k, rows, FLOATS), mat(v, rows, FLOATS),
				     mat(sums ? got.dk : NULL, rows, FLOATS),
				     mat(sums ? got.dv : NULL, rows, FLOATS)},
		slices, 1};
	pass_ring(&r, &kv, got.o);
	for (int s = 0; s < slices; s++) {
		int at = s * c->local * FLOATS, from = (s * c->n + c->first) * FLOATS;
		int n = c->local * FLOATS;
		wrong += count_different(got.o + at, want.o + from, n);
		wrong += sums ? count_different(got.dk + at, want.dk + from, n) : 0;
		wrong += sums ? count_different(got.dv + at, want.dv + from, n) : 0;
	}
	return wrong + (arena_mark(&scratch) != 0);
}

TEST(rings)
{
	for (int size = 1; size <= world->size; size++) {
		struct comm *axis = axis_of(size);
		int64_t wrong = 0;
		for (int n = size; n <= MAX_CHUNKS && axis; n += size) {
			int here = n / size;
			struct chunks c = {axis, n, axis->rank * here, here, 0, false};
			for (int i = 0; i < 8; i++) {
				c.gather = i & 1;
				wrong += wrong_chunks(&c, 1 + (i >> 1 & 1), i & 4);
			}
		}
		assert_on_all(!wrong);
		if (axis)
			comm_free(axis);
	}
}

/* Messages that are too long to be buffered: nobody waits for ever, and a rank gets in a ring
 * what it gives. */
TEST(long_messages)
{
	enum { LONG = 100000 };
	struct comm *axis = axis_of(world->size);
	for (int here = 1; here <= 2; here++) {
		struct chunks c = {
			axis, here * axis->size, axis->rank * here, here, 0, 0};
		float *x[N_RING_PARTS];
		for (int part = 0; part < N_RING_PARTS; part++) {
			x[part] = xcalloc((size_t)(here * LONG), sizeof(**x));
			for (int i = 0; i < here * LONG; i++)
				x[part][i] = (float)(c.first + i / LONG);
		}
		struct ring r = ring_begin(&c);
		struct ring_kv kv = {.slices = 1, .rows = 1};
		for (int part = 0; part < N_RING_PARTS; part++)
			kv.local[part] = mat(x[part], here, LONG);
		ring_exchange(&r, &device, &kv);
		int64_t wrong = 0;
		while (ring_next(&r)) {
			for (int q = here - 1; q >= 0; q--) {
				int kc = ring_keys_for(&r, c.first + q);
				if (q == 0)
					ring_recv_grads(&r, 0);
				for (int part = 0; part < N_RING_PARTS; part++) {
					const float *at =
						ring_at(&r, (enum ring_part)part, 0, kc)
							.p;
					wrong += at[LONG - 1] != (float)kc;
				}
				if (q == here - 1)
					ring_send_grads(&r, 0);
			}
		}
		ring_end(&r);
		for (int part = 0; part < N_RING_PARTS; part++) {
			wrong += x[part][0] != (float)c.first;
			free(x[part]);
		}
		assert_on_all(!wrong);
	}
	comm_free(axis);
}

/* A planned axis: nothing is touched, and the bytes are those that ranks really send. */
TEST(plans)
{
	struct device plan;
	struct arena nothing;
	device_open_plan(&plan, DEVICE_CPU);
	arena_measure(&nothing, "plan");
	plan.scratch = &nothing;
	struct comm *axis = axis_of(world->size);
	for (int sp = 0; sp < 2; sp++) {
		struct comm *planned =
			comm_planned("axis", axis->rank, axis->size, axis->shares);
		struct slices s = {planned, 8, axis->rank * 2, 2, sp};
		struct chunks c = {planned, 8, axis->rank * 2, 2, 0, sp};
		struct slices real = s;
		struct chunks real_chunks = c;
		int64_t before = axis->sent, first, n = slice_rows(&s, MAX_ROWS, &first);
		real.axis = real_chunks.axis = axis;
		struct slice_sum sum;
		slice_sum_begin(&sum, &s, &plan, mat(arena_floats(&nothing, n), n, COLS),
			MAX_ROWS, DT_F32);
		for (int i = 0; i < s.local; i++)
			slice_sum_push(&sum);
		slice_sum_end(&sum);
		slice_gather(&s, &plan, mat((void *)64, n, COLS),
			mat((void *)64, MAX_ROWS, COLS));
		struct ring r = ring_begin(&c);
		struct mat bogus = mat((float *)64, 2 * c.local, FLOATS);
		ring_exchange(
			&r, &plan, &(struct ring_kv){{bogus, bogus, bogus, bogus}, 2, 1});
		while (ring_next(&r))
			for (int i = 0; i < 2; i++) {
				ring_recv_grads(&r, i);
				ring_send_grads(&r, i);
			}
		ring_end(&r);
		int64_t wrong = wrong_rows(&real, MAX_ROWS, MAX_ROWS);
		wrong += wrong_chunks(&real_chunks, 2, true);
		if (planned->sent != axis->sent - before)
			print_error("planned %lld bytes, sent %lld\n",
				(long long)planned->sent,
				(long long)(axis->sent - before));
		assert_on_all(!wrong && planned->sent == axis->sent - before);
		assert_true(planned->sent > 0 && nothing.peak_bytes > 0);
		comm_free(planned);
	}
	comm_free(axis);
}

int main(void)
{
	ranks_open();
	device_open_cpu(&device, 1);
	arena_init(&scratch, "scratch", 1 << 24);
	device.scratch = &scratch;
	int rc = ranks_run();
	arena_release(&scratch);
	return ranks_close(rc);
}
