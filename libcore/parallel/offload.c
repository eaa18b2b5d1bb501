/* Iteration over state that is in memory, in a file, or in the memory of a GPU's host
 * (ZeRO-Offload, Ren et al. 2021; ZeRO-Infinity, Rajbhandari et al. 2021). While the optimizer
 * updates a piece of offloaded state, the next piece is read and, on a GPU, the previous one is
 * written.
 *
 * The backend has one region per group, with the concatenated shards of all buckets, and on a GPU
 * one more for the 16-bit copies of parameters that matmuls read. */
#include "parallel/store_internal.h"

/* A piece is a sixteenth of a region, within limits. */
enum { PIECES = 16, MIN_FLOATS = 64, MAX_FLOATS = 1 << 20, PAGE_FLOATS = 1024 };

/* ---- regions --------------------------------------------------------------------- */

static bool is_outer_group(const struct store *s, int group)
{
	const struct store_groups *x = &s->c.groups;
	return group < STORE_MAX_GROUPS && group < x->n &&
	       x->list[group].owner == STORE_OUTER;
}

bool is_offloaded(const struct store *s, int group)
{
	if (s->c.offload_outer && is_outer_group(s, group))
		return true;
	if (group == STORE_PARAM)
		return offloads_params(s->c.offload);
	if (group == STORE_GRAD)
		return offloads_grads(s->c.offload) && s->c.microbatches.n_micro;
	return s->c.offload != OFFLOAD_NONE;
}

bool store_offloads(const struct store *s, int group)
{
	return is_offloaded(s, group);
}

bool offloads_copies(const struct store *s)
{
	return is_offloaded(s, STORE_PARAM) && s->c.wire != DT_F32;
}

static unsigned offloaded_groups(const struct store *s)
{
	unsigned bits = offloads_copies(s) ? STORE_BIT(STORE_COPY) : 0;
	for (int g = 0; g < s->c.groups.n; g++)
		bits |= is_offloaded(s, g) ? STORE_BIT(g) : 0;
	return bits | (is_offloaded(s, STORE_GRAD) ? STORE_BIT(STORE_GRAD) : 0);
}

/* Returns the bytes of an element of a group. */
static int64_t size_of(const struct store *s, int group)
{
	return group == STORE_COPY ? dtype_bytes(s->c.wire) : (int64_t)sizeof(float);
}

void offload_open(struct store *s, struct arena *run)
{
	struct offload_pieces *pieces = &s->impl->offload;
	unsigned offloaded = offloaded_groups(s);
	/* bytes of an element in all groups, and in the groups of local SGD */
	int64_t width = 0, outer_width = 0, bytes = 0;
	int64_t longest = max64(MIN_FLOATS, offload_sums_floats(s));
	if (!offloaded)
		return;
	const struct bucket *end = s->impl->bucket + s->impl->n_buckets;
	for (const struct bucket *b = s->impl->bucket; b < end; b++)
		for (int k = 0; k < b->n_entries; k++)
			longest = max64(longest, b->entry[k].cols);
	pieces->n_slots = s->c.device->discrete ? OFFLOAD_SLOTS : 2;
	pieces->floats = round_up(s->impl->n_floats, PAGE_FLOATS) / PIECES;
	pieces->floats = max64(longest, min64(MAX_FLOATS, pieces->floats));
	for (int g = 0; g < N_OFFLOADED; g++) {
		if (!(offloaded & STORE_BIT(g)))
			continue;
		pieces->begin[g] = bytes;
		bytes += size_of(s, g) * round_up(group_floats(s, g), PAGE_FLOATS);
		width += size_of(s, g);
		outer_width += is_outer_group(s, g) ? size_of(s, g) : 0;
		for (int slot = 0; slot < pieces->n_slots; slot++)
			pieces->piece[slot][g] = arena_alloc(
				run, (size_t)(pieces->floats * size_of(s, g)));
	}
	s->bytes.offloaded = bytes;
	s->bytes.offloaded += offload_place_sums(s, s->bytes.offloaded);
	s->bytes.optimizer += pieces->n_slots * (width - outer_width) * pieces->floats;
	s->bytes.outer += pieces->n_slots * outer_width * pieces->floats;
}

static int64_t backend_offset(const struct store *s, int group, int64_t pos)
{
	return s->impl->offload.begin[group] + pos * size_of(s, group);
}

uint64_t offload_enqueue_bytes(struct store *s, bool write, void *memory, int64_t pos,
	int64_t n_bytes, uint64_t after)
{
	*(write ? &s->written : &s->read) += n_bytes;
	struct offload_backend *x = s->c.offload_backend;
	if (!x) /* a plan */
		return 0;
	return x->enqueue(x, write, memory, n_bytes, pos, after);
}

uint64_t offload_enqueue(struct store *s, int group, bool write, void *memory,
	int64_t pos, int64_t n, uint64_t after)
{
	return offload_enqueue_bytes(s, write, memory, backend_offset(s, group, pos),
		n * size_of(s, group), after);
}

void offload_wait(struct store *s, uint64_t ticket)
{
	struct offload_backend *x = s->c.offload_backend;
	if (x)
		x->wait(x, ticket);
}

/* Copies floats [pos, pos + n) of a group from or to host memory, and waits. */
static void copy_now(
	struct store *s, int group, bool write, float *memory, int64_t pos, int64_t n)
{
	int64_t n_bytes = n * size_of(s, group);
	*(write ? &s->written : &s->read) += n_bytes;
	struct offload_backend *x = s->c.offload_backend;
	if (x)
		x->copy(x, write, memory, n_bytes, backend_offset(s, group, pos));
}

/* ---- pieces ---------------------------------------------------------------------- */

/* A position in a list of parts. */
struct position {
	int64_t part, row;
};

struct piece {
	struct position from, to;
	int64_t pos, n; /* floats [pos, pos + n) of a region; n 0: the end */
};

struct part_list {
	const struct part *part;
	int64_t n;
};

/* Returns the next piece: as many whole rows as fit into a slot. */
static struct piece next_piece(
	const struct store *s, const struct part_list *l, struct position from)
{
	int64_t capacity = s->impl->offload.floats;
	struct piece p = {.from = from, .to = from};
	while (p.to.part < l->n) {
		const struct part *x = &l->part[p.to.part];
		int64_t begin = x->pos + p.to.row * x->cols;
		if (!p.n)
			p.pos = begin;
		int64_t rows =
			min64(x->rows - p.to.row, (p.pos + capacity - begin) / x->cols);
		if (rows <= 0)
			break;
		p.to.row += rows;
		p.n = begin + rows * x->cols - p.pos;
		if (p.to.row < x->rows)
			break;
		p.to = (struct position){p.to.part + 1, 0};
	}
	return p;
}

/* Reads or writes a piece in a slot. `busy`: the ticket of the last request for this slot. */
static void enqueue_piece(struct store *s, const struct piece *p, unsigned groups,
	bool write, uint64_t *busy, int slot)
{
	uint64_t previous = *busy;
	for (int g = 0; g < N_OFFLOADED && p->n; g++)
		if (groups & STORE_BIT(g))
			*busy = offload_enqueue(s, g, write,
				s->impl->offload.piece[slot][g], p->pos, p->n, previous);
}

/* Calls fn for the rows of a piece, with offloaded groups in the slot's buffers. */
static void visit_piece(struct store *s, const struct part_list *l, const struct piece *p,
	unsigned groups, int slot, store_visit *fn, void *arg)
{
	const struct offload_pieces *w = &s->impl->offload;
	struct position pos = p->from;
	while (pos.part < p->to.part || (pos.part == p->to.part && pos.row < p->to.row)) {
		const struct part *x = &l->part[pos.part];
		int64_t end = pos.part == p->to.part ? p->to.row : x->rows;
		struct part r = part_rows(*x, pos.row, end);
		for (int g = 0; g < s->c.groups.n; g++)
			if (groups & STORE_BIT(g))
				r.state[g] =
					(float *)w->piece[slot][g] + (r.pos - p->pos);
		if (groups & STORE_BIT(STORE_COPY))
			r.copy = mat_typed(
				(char *)w->piece[slot][STORE_COPY] +
					(r.pos - p->pos) * size_of(s, STORE_COPY),
				1, r.rows * r.cols, s->c.wire);
		if (groups & STORE_BIT(STORE_GRAD))
			r.g = (float *)w->piece[slot][STORE_GRAD] + (r.pos - p->pos);
		fn(arg, &r);
		pos = (struct position){pos.part + 1, 0};
	}
}

/* Calls fn for the rows of each piece, after reading it ahead, and writes the piece back. */
static void visit_pieces(struct store *s, const struct part_list *l, unsigned reads,
	unsigned writes, store_visit *fn, void *arg)
{
	int n_slots = s->impl->offload.n_slots;
	uint64_t busy[OFFLOAD_SLOTS] = {0}; /* tickets of the last requests */
	struct piece now = next_piece(s, l, (struct position){0});
	enqueue_piece(s, &now, reads, false, &busy[0], 0);
	for (int slot = 0, next; now.n; slot = next) {
		struct piece ahead = next_piece(s, l, now.to);
		next = (slot + 1) % n_slots;
		enqueue_piece(s, &ahead, reads, false, &busy[next], next);
		offload_wait(s, busy[slot]);
		visit_piece(s, l, &now, reads | writes, slot, fn, arg);
		enqueue_piece(s, &now, writes, true, &busy[slot], slot);
		now = ahead;
	}
	for (int slot = 0; slot < n_slots; slot++)
		offload_wait(s, busy[slot]);
}

void store_for_each_part(struct store *s, bool counted, unsigned reads, unsigned writes,
	store_visit *fn, void *arg)
{
	bool includes_frozen = !((reads | writes) & ~STORE_BIT(STORE_PARAM));
	const struct part_list l = {counted ? s->counted : s->updated,
		counted ? (includes_frozen ? s->n_counted_held : s->n_counted)
			: (includes_frozen ? s->n_held : s->n_updated)};
	unsigned offloaded = offloaded_groups(s);
	if (writes & STORE_BIT(STORE_PARAM))
		writes |= STORE_BIT(STORE_COPY);
	/* a step that overflows changes neither parameters nor copies, but both are written back */
	if (s->c.wire == DT_F16 && (reads & writes & STORE_BIT(STORE_PARAM)))
		reads |= STORE_BIT(STORE_COPY);
	reads &= offloaded;
	writes &= offloaded;
	if (reads | writes) {
		visit_pieces(s, &l, reads, writes, fn, arg);
		return;
	}
	for (int64_t i = 0; i < l.n; i++)
		fn(arg, &l.part[i]);
}

static void round_part(void *arg, const struct part *x)
{
	struct device *d = arg;
	d->k->round(d, x->copy, mat(x->state[STORE_PARAM], 1, x->rows * x->cols),
		x->copy.type, 1);
}

void offload_copies(struct store *s)
{
	const struct part_list l = {s->updated, s->n_held};
	if (offloads_copies(s))
		visit_pieces(s, &l, STORE_BIT(STORE_PARAM), STORE_BIT(STORE_COPY),
			round_part, s->c.device);
}

/* ---- rows of a part -------------------------------------------------------------- */

void part_read(struct store *s, const struct part *x, int group, int64_t row,
	int64_t rows, float *out)
{
	int64_t skip = row * x->cols, n = rows * x->cols;
	if (is_offloaded(s, group))
		copy_now(s, group, false, out, x->pos + skip, n);
	else
		device_get(s->c.device, out, x->state[group] + skip,
			(size_t)n * sizeof(float));
}

void part_write(struct store *s, const struct part *x, int group, int64_t row,
	int64_t rows, const float *in)
{
	int64_t skip = row * x->cols, n = rows * x->cols;
	if (is_offloaded(s, group))
		copy_now(s, group, true, (float *)in, x->pos + skip, n);
	else
		device_put(s->c.device, x->state[group] + skip, in,
			(size_t)n * sizeof(float));
}
