/*
 * Going through what the optimizer keeps, wherever that is: in memory, or in a file (ZeRO-
 * Offload, Ren et al. 2021; ZeRO-Infinity, Rajbhandari et al. 2021), from which it comes in
 * pieces, one ahead of the one that is used.
 *
 * The file has a region for each group of numbers (parameters, means, squares), and in each
 * the shards of all buckets, one after the other.
 */
#include "parallel/store.h"

#include <string.h>

/* A piece is a sixteenth of a region, where that is not too small or too large. */
enum { PIECES = 16, LEAST_FLOATS = 64, MOST_FLOATS = 1 << 20, PAGE_FLOATS = 1024 };

/* ---- what is where ----------------------------------------------------------------- */

bool is_spilled(const struct store *s, enum store_group g)
{
	return is_kept(s, g) &&
	       (s->c.offload == OFFLOAD_PARAMS ||
		       (s->c.offload == OFFLOAD_OPTIMIZER && g != STORE_PARAM));
}

static unsigned spilled_groups(const struct store *s)
{
	unsigned bits = 0;
	for (int g = 0; g < N_STORE_GROUPS; g++)
		bits |= is_spilled(s, (enum store_group)g) ? STORE_BIT(g) : 0;
	return bits;
}

void walk_open(struct store *s, struct arena *run)
{
	struct walk *w = &s->own->walk;
	int64_t longest = LEAST_FLOATS;
	int regions = 0;
	if (!spilled_groups(s))
		return;
	for (int i = 0; i < s->own->n_buckets; i++) {
		const struct bucket *b = &s->own->bucket[i];
		for (int k = 0; k < b->n_entries; k++)
			longest = max64(longest, b->entry[k].cols);
	}
	w->region = round_up(s->own->n_floats, PAGE_FLOATS);
	w->floats = max64(longest, min64(MOST_FLOATS, w->region / PIECES));
	for (int g = 0; g < N_STORE_GROUPS; g++) {
		if (!is_spilled(s, (enum store_group)g))
			continue;
		w->begin[g] = regions++ * w->region;
		for (int slot = 0; slot < 2; slot++)
			w->piece[slot][g] = arena_floats(run, w->floats);
	}
	s->bytes.spilled = regions * w->region * (int64_t)sizeof(float);
	s->bytes.optimizer += 2 * regions * w->floats * (int64_t)sizeof(float);
}

/* Floats [at, at + n) of a region. What was asked for before is done before. */
uint64_t walk_ask(struct store *s, enum store_group g, bool write, float *memory,
	int64_t at, int64_t n)
{
	const int64_t size = sizeof(float);
	*(write ? &s->written : &s->read) += n * size;
	if (!s->c.spill) /* a plan */
		return 0;
	return spill_ask(
		s->c.spill, write, memory, n * size, (s->own->walk.begin[g] + at) * size);
}

void walk_wait(struct store *s, uint64_t ticket)
{
	if (s->c.spill)
		spill_wait(s->c.spill, ticket);
}

/* ---- pieces ------------------------------------------------------------------------ */

/* A place in a list of parts. */
struct place {
	int64_t part, row;
};

struct piece {
	struct place from, to;
	int64_t at, n; /* floats of a region; 0: there are no more */
};

struct list {
	const struct part *part;
	int64_t n;
};

/* Whole rows, as many as there is room for. */
static struct piece next_piece(
	const struct store *s, const struct list *l, struct place from)
{
	int64_t room = s->own->walk.floats;
	struct piece p = {.from = from, .to = from};
	while (p.to.part < l->n) {
		const struct part *x = &l->part[p.to.part];
		int64_t begin = x->at + p.to.row * x->cols;
		if (!p.n)
			p.at = begin;
		int64_t rows = min64(x->rows - p.to.row, (p.at + room - begin) / x->cols);
		if (rows <= 0)
			break;
		p.to.row += rows;
		p.n = begin + rows * x->cols - p.at;
		if (p.to.row < x->rows)
			break;
		p.to = (struct place){p.to.part + 1, 0};
	}
	return p;
}

static void ask_piece(struct store *s, const struct piece *p, unsigned groups, bool write,
	uint64_t *ticket, int slot)
{
	for (int g = 0; g < N_STORE_GROUPS && p->n; g++)
		if (groups & STORE_BIT(g))
			*ticket = walk_ask(s, (enum store_group)g, write,
				s->own->walk.piece[slot][g], p->at, p->n);
}

/* Its rows, with what is in a file taken from the piece. */
static void visit_piece(struct store *s, const struct list *l, const struct piece *p,
	unsigned groups, int slot, store_visit *fn, void *with)
{
	struct place at = p->from;
	while (at.part < p->to.part || (at.part == p->to.part && at.row < p->to.row)) {
		const struct part *x = &l->part[at.part];
		int64_t end = at.part == p->to.part ? p->to.row : x->rows;
		struct part y = part_rows(*x, at.row, end);
		for (int g = 0; g < N_STORE_GROUPS; g++)
			if (groups & STORE_BIT(g))
				y.state[g] = s->own->walk.piece[slot][g] + (y.at - p->at);
		fn(with, &y);
		at = (struct place){at.part + 1, 0};
	}
}

void store_walk(struct store *s, bool counted, unsigned reads, unsigned writes,
	store_visit *fn, void *with)
{
	const struct list l = {
		counted ? s->counted : s->updated, counted ? s->n_counted : s->n_updated};
	unsigned spilled = spilled_groups(s);
	reads &= spilled;
	writes &= spilled;
	if (!(reads | writes)) {
		for (int64_t i = 0; i < l.n; i++)
			fn(with, &l.part[i]);
		return;
	}
	uint64_t busy[2] = {0}; /* what was asked for last of a slot */
	struct piece now = next_piece(s, &l, (struct place){0});
	ask_piece(s, &now, reads, false, &busy[0], 0);
	for (int slot = 0; now.n; slot = !slot) {
		struct piece ahead = next_piece(s, &l, now.to);
		ask_piece(s, &ahead, reads, false, &busy[!slot], !slot);
		walk_wait(s, busy[slot]);
		visit_piece(s, &l, &now, reads | writes, slot, fn, with);
		ask_piece(s, &now, writes, true, &busy[slot], slot);
		now = ahead;
	}
	walk_wait(s, busy[0]);
	walk_wait(s, busy[1]);
}

/* ---- rows of a part ---------------------------------------------------------------- */

void part_get(struct store *s, const struct part *x, enum store_group g, int64_t row,
	int64_t rows, float *out)
{
	struct device *d = s->c.device;
	int64_t n = rows * x->cols;
	if (is_spilled(s, g))
		walk_wait(s, walk_ask(s, g, false, out, x->at + row * x->cols, n));
	else
		d->k->get(d, out, x->state[g] + row * x->cols, (size_t)n * sizeof(float));
}

void part_put(struct store *s, const struct part *x, enum store_group g, int64_t row,
	int64_t rows, const float *in)
{
	struct device *d = s->c.device;
	int64_t n = rows * x->cols;
	if (is_spilled(s, g))
		walk_wait(s, walk_ask(s, g, true, (float *)in, x->at + row * x->cols, n));
	else
		d->k->put(d, x->state[g] + row * x->cols, in, (size_t)n * sizeof(float));
}
