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

/* ---- checksums ------------------------------------------------------------------- */

/* Parts of pieces for one launch of the kernel word_sums. */
enum { PARTS_PER_LAUNCH = 64 };
struct batch {
	struct store *s;
	const uint32_t *u;
	const struct state_piece *list;
	int64_t n_list;
	const bool *wanted;
	uint64_t *sum;
	struct word_part part[PARTS_PER_LAUNCH];
	int n;
	int group;     /* the offloaded group that is visited */
	int64_t found; /* the piece of the last part */
};

static void launch_batch(struct batch *q)
{
	struct device *d = q->s->c.device;
	if (q->n)
		d->k->word_sums(
			d, q->sum, q->part, q->n, q->u, grid_check_key(q->s->c.seed));
	q->n = 0;
}

/* Adds n words at p, from index `first` of the packed shard on, to the checksum of piece i. */
static void add_words(
	struct batch *q, int64_t i, const float *p, int64_t n, int64_t first)
{
	q->part[q->n++] = (struct word_part){.p = p,
		.n = n,
		.first = first,
		.vector = (uint32_t)q->list[i].id,
		.sum = (int)i};
	if (q->n == PARTS_PER_LAUNCH)
		launch_batch(q);
}

static void add_piece_in_memory(struct batch *q, int64_t i)
{
	const struct state_piece *x = &q->list[i];
	const struct bucket *b = x->bucket;
	const float *state = q->s->impl->state[x->group];
	for (int k = 0; k < b->n_entries; k++) {
		const struct entry *e = &b->entry[k];
		int64_t n = entry_floats(e, x->shard), at = e->packed[x->shard];
		const float *p = x->gathered ? b->gather.whole + e->pos +
						       e->bounds[x->shard] * e->cols
					     : state + b->pos + at;
		if (n)
			add_words(q, i, p, n, at);
	}
}

/* Adds a part of an offloaded group, which is in memory until this function returns. */
static void add_offloaded_part(void *arg, const struct part *x)
{
	struct batch *q = arg;
	const struct bucket *b = bucket_of(q->s, x->t, x->slice);
	int64_t i = q->found;
	for (int64_t k = 0; k < q->n_list; k++, i = (i + 1) % q->n_list) {
		const struct state_piece *y = &q->list[i];
		if (y->bucket == b && y->group == q->group && !y->gathered)
			break;
	}
	q->found = i;
	if (!q->wanted[i])
		return;
	add_words(q, i, x->state[q->group], x->rows * x->cols, x->pos - b->pos);
	launch_batch(q);
}

void state_pieces_enqueue(struct store *s, const uint32_t *u,
	const struct state_piece *list, int64_t n, const bool *wanted, uint64_t *sum)
{
	struct batch q = {
		.s = s, .u = u, .list = list, .n_list = n, .wanted = wanted, .sum = sum};
	unsigned offloaded = 0;
	for (int64_t i = 0; i < n; i++)
		if (wanted[i] && !list[i].gathered && is_offloaded(s, list[i].group))
			offloaded |= STORE_BIT(list[i].group);
		else if (wanted[i])
			add_piece_in_memory(&q, i);
	launch_batch(&q);
	for (q.group = 0; q.group < s->c.groups.n; q.group++)
		if (offloaded & STORE_BIT(q.group))
			store_for_each_part(
				s, false, STORE_BIT(q.group), 0, add_offloaded_part, &q);
}

void state_pieces_hash(struct store *s, struct state_piece *list, int64_t n)
{
	struct device *d = s->c.device;
	uint32_t u[GRID_BLOCK];
	size_t n_sums = (size_t)n * sizeof(uint64_t), n_bytes = sizeof(u) + n_sums;
	scoped_ptr bool *all = xmalloc((size_t)n + 1);
	scoped_ptr uint64_t *sum = xmalloc(n_sums + 1);
	char *memory = device_alloc(d, n_bytes);
	if (!memory)
		die(EX_FAILED, "out of memory: checksums of the state need %zu bytes",
			n_bytes);
	grid_weights(s->c.seed, u);
	device_put(d, memory, u, sizeof(u));
	memset(all, true, (size_t)n);
	uint64_t *sums = (uint64_t *)(void *)(memory + sizeof(u));
	state_pieces_enqueue(
		s, (const uint32_t *)(const void *)memory, list, n, all, sums);
	device_get(d, sum, sums, n_sums);
	for (int64_t i = 0; i < n; i++)
		list[i].hash = sum[i] % GRID_PRIME;
	device_free(d, memory, n_bytes);
}

/* ---- copies ---------------------------------------------------------------------- */

/* A range of the floats of a piece, and its place in host memory. */
struct piece_range {
	int64_t at, n;
	float *host;
	bool write;
};

/* Copies floats [from, end) of an entry's part of a shard to or from host memory. */
static void copy_run(struct store *s, const struct state_piece *x, const struct entry *e,
	int64_t from, int64_t end, struct piece_range *r)
{
	const struct bucket *b = x->bucket;
	struct part p = {.cols = 1, .pos = b->pos + e->packed[x->shard] + from};
	int64_t n = end - from;
	if (s->impl->state[x->group])
		p.state[x->group] = s->impl->state[x->group] + p.pos;
	if (x->gathered)
		device_get(s->c.device, r->host,
			b->gather.whole + e->pos + e->bounds[x->shard] * e->cols + from,
			(size_t)n * sizeof(float));
	else if (r->write)
		part_write(s, &p, x->group, 0, n, r->host);
	else
		part_read(s, &p, x->group, 0, n, r->host);
	r->host += n;
}

static void copy_range(struct store *s, const struct state_piece *x, struct piece_range r)
{
	int64_t before = 0;
	for (int i = 0; i < x->bucket->n_entries; i++) {
		const struct entry *e = &x->bucket->entry[i];
		int64_t n = entry_floats(e, x->shard);
		int64_t from = max64(0, r.at - before),
			end = min64(n, r.at + r.n - before);
		if (from < end)
			copy_run(s, x, e, from, end, &r);
		before += n;
	}
}

void state_piece_read(
	struct store *s, const struct state_piece *x, int64_t at, int64_t n, float *out)
{
	copy_range(s, x, (struct piece_range){.at = at, .n = n, .host = out});
}

void state_piece_write(struct store *s, const struct state_piece *x, int64_t at,
	int64_t n, const float *in)
{
	BUG_ON(x->gathered);
	copy_range(s, x,
		(struct piece_range){
			.at = at, .n = n, .host = (float *)in, .write = true});
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
