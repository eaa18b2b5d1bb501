/* The state of a rank in pieces (pieces.h). */
#include "referee/pieces.h"

#include "parallel/store_internal.h"

/* Returns the floats of an entry in a shard. */
static int64_t entry_floats(const struct entry *e, int shard)
{
	return (e->bounds[shard + 1] - e->bounds[shard]) * e->cols;
}

int64_t state_piece_floats(const struct state_piece *x)
{
	int64_t n = 0;
	for (int i = 0; i < x->bucket->n_entries; i++)
		n += entry_floats(&x->bucket->entry[i], x->shard);
	return n;
}

/* Returns true if the rank keeps the gathered parameters of a sharded bucket. */
static bool is_kept_gathered(const struct store *s, const struct bucket *b)
{
	return b->sharding->n > 1 && s->c.zero < 3;
}

/* Returns a number that is equal on the ranks that have a copy of the piece. */
static uint64_t piece_id(const struct store *s, const struct state_piece *x)
{
	const struct entry *e = x->bucket->entry;
	const int64_t key[] = {
		e->t - s->c.tensors, e->slice, e->t->held_first, x->group, x->shard};
	return hash_bytes(key, sizeof(key), 0);
}

int64_t state_pieces_list(const struct store *s, struct state_piece **list)
{
	const struct store_impl *o = s->impl;
	int64_t n = 0;
	*list = NULL;
	for (int i = 0; i < o->n_buckets; i++) {
		const struct bucket *b = &o->bucket[i];
		int groups = i < o->n_trained ? s->c.groups.n : STORE_PARAM + 1;
		int shards = is_kept_gathered(s, b) ? b->sharding->n : 0;
		*list = xrealloc(*list, (size_t)(n + groups + shards) * sizeof(**list));
		for (int k = 0; k < groups + shards; k++) {
			struct state_piece x = {.bucket = b,
				.group = k < groups ? k : STORE_PARAM,
				.shard = k < groups ? b->sharding->own : k - groups,
				.gathered = k >= groups};
			x.id = piece_id(s, &x);
			if (state_piece_floats(&x))
				(*list)[n++] = x;
		}
	}
	return n;
}

/* Floats of offloaded state that are read at once. */
enum { CHUNK = 1 << 16 };

/* Calls fn(arg) for the elements of a piece, in runs of contiguous floats. Offloaded elements are
 * in a buffer. */
static void visit_piece(struct store *s, const struct state_piece *x,
	void (*fn)(void *arg, float *p, int64_t n), void *arg)
{
	const struct bucket *b = x->bucket;
	scoped_ptr float *buffer =
		is_offloaded(s, x->group) ? xmalloc(CHUNK * sizeof(*buffer)) : NULL;
	for (int i = 0; i < b->n_entries; i++) {
		const struct entry *e = &b->entry[i];
		int64_t n = entry_floats(e, x->shard), len = buffer ? CHUNK : n;
		int64_t pos = b->pos + e->packed[x->shard];
		for (int64_t at = 0; at < n; at += len) {
			int64_t part = min64(len, n - at);
			float *p = x->gathered ? b->gather.whole + e->pos +
							 e->bounds[x->shard] * e->cols
					       : store_begin(s, x->group, pos + at, part,
							 buffer);
			fn(arg, p, part);
		}
	}
}

/* A checksum of bits: of pairs of floats, as integers of 64 bits. */
struct checksum {
	struct device *d;
	struct grid_check check;
};

static void add_pairs(struct checksum *x, const int64_t *pairs, int64_t n)
{
	const struct grid_part part = {.sum = pairs};
	struct grid ignored = {.exponent = GRID_EXPONENT};
	x->d->k->grid_sum(x->d,
		&(struct grid_sum){
			.parts = &part, .n_parts = 1, .n = n, .check = &x->check},
		&ignored);
	x->check.first += n;
}

/* Adds contiguous floats; the last one is a pair with 0 if their number is odd. */
static void add_floats(void *context, float *p, int64_t n)
{
	struct checksum *x = context;
	int64_t pairs[GRID_BLOCK + 1];
	bool aligned = (uintptr_t)p % sizeof(*pairs) == 0;
	if (aligned)
		add_pairs(x, (const int64_t *)(const void *)p, n / 2);
	for (int64_t at = aligned ? n / 2 * 2 : 0; at < n; at += 2 * GRID_BLOCK) {
		int64_t floats = min64(n - at, 2 * GRID_BLOCK);
		pairs[floats / 2] = 0;
		memcpy(pairs, p + at, (size_t)floats * sizeof(*p));
		add_pairs(x, pairs, ceil_div(floats, 2));
	}
}

void state_pieces_hash(struct store *s, struct state_piece *list, int64_t n)
{
	uint32_t **u = &s->impl->piece_weights;
	if (!*u) {
		*u = xcalloc(GRID_BLOCK, sizeof(**u));
		grid_weights(s->c.seed, *u);
	}
	for (int64_t i = 0; i < n; i++) {
		struct checksum x = {.d = s->c.device,
			.check = {.u = *u,
				.key = grid_check_key(s->c.seed),
				.bucket = (uint32_t)list[i].id,
				.word = &list[i].hash}};
		list[i].hash = 0;
		visit_piece(s, &list[i], add_floats, &x);
	}
}

static void append_floats(void *out, float *p, int64_t n)
{
	float **next = out;
	memcpy(*next, p, (size_t)n * sizeof(*p));
	*next += n;
}

void state_piece_read(struct store *s, const struct state_piece *x, float *out)
{
	visit_piece(s, x, append_floats, &out);
}

void state_piece_write(struct store *s, const struct state_piece *x, const float *in)
{
	const struct bucket *b = x->bucket;
	BUG_ON(x->gathered);
	for (int i = 0; i < b->n_entries; i++) {
		const struct entry *e = &b->entry[i];
		int64_t n = entry_floats(e, x->shard);
		int64_t pos = b->pos + e->packed[x->shard];
		if (n && !is_offloaded(s, x->group))
			memcpy(s->impl->state[x->group] + pos, in,
				(size_t)n * sizeof(*in));
		else if (n)
			store_end(s, x->group, pos, n, in);
		in += n;
	}
}

void state_piece_name(const struct store *s, const struct state_piece *x, struct str *out)
{
	const struct bucket *b = x->bucket;
	const struct tensor *first = b->entry->t, *last = b->entry[b->n_entries - 1].t;
	str_printf(out, "%s%s of the bucket of %s", x->gathered ? "gathered " : "",
		x->group == STORE_PARAM ? "parameters" : s->c.groups.list[x->group].name,
		first->name);
	if (first != last)
		str_printf(out, " to %s", last->name);
}
