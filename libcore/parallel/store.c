/* The parameter store: opening, the parts that this rank updates and counts, norms and hashes,
 * and rows of whole tensors for checkpoints. Ranks with the same shard are replicas (HSDP). */
#include "parallel/check_sums.h"

/* ---- parts ----------------------------------------------------------------------- */

/* Appends a part to a list, cut where its rows are not adjacent in the whole tensor. n: trained
 * parts; n_held: all parts. */
static void append_part(struct part **list, int64_t *n, int64_t *n_held, struct part part)
{
	int64_t adjacent = tensor_adjacent_rows(part.t), end = part.row + part.rows;
	for (int64_t row = part.row, next; row < end; row = next) {
		next = min64(end, (row / adjacent + 1) * adjacent);
		*list = xrealloc(*list, (size_t)(*n_held + 1) * sizeof(**list));
		(*list)[(*n_held)++] = part_rows(part, row - part.row, next - part.row);
		*n += !part.t->frozen;
	}
}

/* Returns this rank's shard of an entry. */
static struct part shard_part(
	const struct store *s, const struct bucket *b, const struct entry *e)
{
	int k = b->sharding->own;
	int64_t pos = e->packed[k];
	struct part x = {.t = e->t,
		.slice = e->slice,
		.row = e->t->held_first + e->bounds[k],
		.rows = e->bounds[k + 1] - e->bounds[k],
		.cols = e->cols,
		.pos = b->pos + pos,
		.g = b->g && !is_offloaded(s, STORE_GRAD) ? b->g + pos : NULL};
	for (int g = 0; g < s->c.groups.n; g++)
		x.state[g] = b->state[g] ? b->state[g] + pos : NULL;
	if (b->gather.copy)
		x.copy = mat_typed(b->gather.copy + pos * dtype_bytes(s->c.copy), 1,
			x.rows * x.cols, s->c.copy);
	return x;
}

struct part part_rows(struct part x, int64_t first, int64_t end)
{
	int64_t skip = first * x.cols;
	x.row += first;
	x.rows = end - first;
	x.pos += skip;
	x.g = x.g ? x.g + skip : NULL;
	if (x.copy.p)
		x.copy = mat_typed((char *)x.copy.p + skip * dtype_bytes(x.copy.type), 1,
			x.rows * x.cols, x.copy.type);
	for (int g = 0; g < STORE_MAX_GROUPS; g++)
		x.state[g] = x.state[g] ? x.state[g] + skip : NULL;
	return x;
}

/* Lists the parts that this rank updates (its shards) and counts. The replicas of a shard divide
 * its rows to count them. A tied weight is counted on the first stage. */
static void list_parts(struct store *s)
{
	const struct bucket *end = s->impl->bucket + s->impl->n_buckets;
	for (const struct bucket *b = s->impl->bucket; b < end; b++) {
		int n = b->all.plan.sharers[b->sharding->own];
		int replica = b->all.plan.before[b->all.c->rank];
		for (int k = 0; k < b->n_entries; k++) {
			struct part x = shard_part(s, b, &b->entry[k]);
			append_part(&s->updated, &s->n_updated, &s->n_held, x);
			if (b->tied && s->c.mesh->coord[AXIS_PP] > 0)
				continue;
			append_part(&s->counted, &s->n_counted, &s->n_counted_held,
				part_rows(x, part_begin(x.rows, n, replica),
					part_begin(x.rows, n, replica + 1)));
		}
	}
}

/* ---- opening --------------------------------------------------------------------- */

void store_groups_begin(struct store_groups *g)
{
	if (!g->n)
		g->list[g->n++] = (struct store_group){"model", STORE_MODEL};
}

int store_groups_add(struct store_groups *g, const char *name, enum store_owner owner)
{
	store_groups_begin(g);
	BUG_ON(g->n == STORE_MAX_GROUPS || store_groups_find(g, name) >= 0);
	g->list[g->n] = (struct store_group){name, owner};
	return g->n++;
}

int store_groups_find(const struct store_groups *g, const char *name)
{
	for (int i = 0; i < g->n; i++)
		if (!strcmp(g->list[i].name, name))
			return i;
	return -1;
}

static int64_t *owner_bytes(struct store_bytes *b, enum store_owner owner)
{
	return owner == STORE_MODEL	  ? &b->params
	       : owner == STORE_OPTIMIZER ? &b->optimizer
					  : &b->outer;
}

/* Allocates all groups. Each group is one vector: the concatenated shards of all buckets. */
static void place_state(struct store *s, struct arena *run)
{
	struct store_impl *o = s->impl;
	int64_t float_bytes = sizeof(float);
	struct bucket *end = o->bucket + o->n_buckets;
	for (struct bucket *b = o->bucket; b < end; b++) {
		b->pos = o->n_floats;
		o->n_floats += b->shard[b->sharding->own].n;
		if (b < o->bucket + o->n_trained)
			o->n_state = o->n_floats;
	}
	for (int g = 0; g < s->c.groups.n; g++) {
		if (is_offloaded(s, g))
			continue;
		int64_t n = group_floats(s, g);
		int last = g == STORE_PARAM ? o->n_buckets : o->n_trained;
		o->state[g] = arena_floats(run, n);
		*owner_bytes(&s->bytes, s->c.groups.list[g].owner) += n * float_bytes;
		for (struct bucket *b = o->bucket; b < o->bucket + last; b++)
			b->state[g] = o->state[g] + b->pos;
	}
	for (struct bucket *b = o->bucket; b < end; b++) {
		if (b->sharding->n == 1) {
			b->gather.whole = b->state[STORE_PARAM];
		} else if (s->c.zero < 3) {
			b->gather.whole = arena_floats(run, b->n);
			s->bytes.params += b->n * float_bytes;
		}
		if (s->c.copy != DT_F32 && b->state[STORE_PARAM] && b->sharding->n == 1) {
			struct mat copy = mat_alloc(run, 1, b->n, s->c.copy);
			b->gather.copy = copy.p;
			s->bytes.copies += mat_bytes(copy);
			s->bytes.params += mat_bytes(copy);
		}
	}
}

int64_t store_floats(const struct store *s)
{
	return s->impl->n_state;
}

float *store_begin(struct store *s, int group, int64_t pos, int64_t n, float *buffer)
{
	if (!is_offloaded(s, group))
		return s->impl->state[group] + pos;
	offload_wait(s, offload_enqueue(s, group, false, buffer, pos, n, 0));
	return buffer;
}

void store_end(struct store *s, int group, int64_t pos, int64_t n, const float *x)
{
	if (is_offloaded(s, group))
		offload_wait(s, offload_enqueue(s, group, true, (float *)x, pos, n, 0));
}

static struct part own_part(const struct store *s, const struct tensor *t, int slice)
{
	return shard_part(s, bucket_of(s, t, slice), entry_of(s, t, slice));
}

float *store_gradient_begin(
	struct store *s, const struct tensor *t, int slice, float *buffer)
{
	struct part x = own_part(s, t, slice);
	return is_offloaded(s, STORE_GRAD)
		       ? store_begin(s, STORE_GRAD, x.pos, x.rows * x.cols, buffer)
		       : x.g;
}

void store_gradient_end(
	struct store *s, const struct tensor *t, int slice, const float *x)
{
	struct part p = own_part(s, t, slice);
	store_end(s, STORE_GRAD, p.pos, p.rows * p.cols, x);
}

struct store *store_new(const struct store_config *c, struct arena *run)
{
	struct store *s = xcalloc(1, sizeof(*s));
	bool measuring = arena_is_measuring(run);
	s->c = *c;
	s->after = -1;
	store_groups_begin(&s->c.groups);
	s->impl = xcalloc(1, sizeof(*s->impl));
	if (c->mesh->degree[AXIS_PP] > 1 &&
		!c->has_both_ends) /* collective, although only the two ends use it */
		mesh_group(c->mesh,
			(struct mesh_part){.axes = AXIS_BIT(AXIS_PP), .pp_ends = true});
	buckets_make(s);
	BUG_ON(offloads_params(c->offload) && is_sharded(s) && c->zero < 3);
	BUG_ON(is_offloaded(s, STORE_GRAD) && !c->microbatches.round_robin);
	s->impl->squares = arena_alloc(run, sizeof(*s->impl->squares));
	s->impl->grid = arena_alloc(run, sizeof(*s->impl->grid));
	s->impl->hash = arena_alloc(run, sizeof(*s->impl->hash));
	place_state(s, run);
	offload_open(s, run);
	amax_open(s, run);
	if (is_offloaded(s, STORE_PARAM) || (is_sharded(s) && c->zero == 3))
		gather_open(s, measuring);
	if (c->microbatches.n_micro)
		grads_open(s, measuring);
	list_parts(s);
	checks_open(s, run, measuring);
	if (!measuring)
		store_set_grid(s, GRID_EXPONENT);
	return s;
}

void store_set_grid(struct store *s, int exponent)
{
	const struct grid g = {.exponent = exponent};
	device_put(s->c.device, s->impl->grid, &g, sizeof(g));
	flips_begin(s->flips);
}

void store_free(struct store *s)
{
	if (!s)
		return;
	gather_close(s);
	checks_close(s);
	grads_close(s);
	buckets_free(s);
	free(s->impl->amax_known);
	free(s->impl);
	free(s->updated);
	free(s->counted);
	free(s);
}

int64_t store_gradients_bytes(const struct store *s)
{
	return (int64_t)s->impl->grad_memory.peak_bytes;
}

int64_t store_peak_bytes(const struct store *s)
{
	const struct store_impl *o = s->impl;
	return (int64_t)(o->grad_memory.peak_bytes + o->gather_memory.peak_bytes) +
	       o->shared_bytes;
}

int store_tile_unit(const struct store *s, int unit, int tile, int slice)
{
	if (!s->c.tile)
		return -1;
	return s->c.n_units + (unit * N_TILES + tile) * s->c.part.local + slice -
	       s->c.part.first;
}

struct mat store_param(struct store *s, const struct tensor *t, int slice)
{
	const struct bucket *b = bucket_of(s, t, slice);
	BUG_ON(!b->gather.whole && !b->gather.copy);
	return mat(b->gather.whole ? b->gather.whole + entry_of(s, t, slice)->pos : NULL,
		t->held_rows, t->cols);
}

struct mat store_operand(struct store *s, const struct tensor *t, int slice)
{
	const struct bucket *b = bucket_of(s, t, slice);
	int64_t pos = entry_of(s, t, slice)->pos * dtype_bytes(s->c.copy);
	return mat_typed(b->gather.copy ? b->gather.copy + pos : NULL, t->held_rows,
		t->cols, s->c.copy);
}

void store_refresh_copies(struct store *s, int64_t pos, int64_t n)
{
	struct device *d = s->c.device;
	const struct bucket *end = s->impl->bucket + s->impl->n_buckets;
	for (const struct bucket *b = s->impl->bucket; b < end; b++) {
		int64_t begin = max64(0, pos - b->pos);
		int64_t len = min64(b->n, pos + n - b->pos) - begin;
		if (b->gather.copy && b->sharding->n == 1 && len > 0)
			d->k->round(d,
				mat_typed(b->gather.copy + begin * dtype_bytes(s->c.copy),
					1, len, s->c.copy),
				mat(b->gather.whole + begin, 1, len), s->c.copy, 1);
	}
}

void store_forget(struct store *s)
{
	gather_forget(s);
	amax_forget(s, 0, s->c.n_units - 1);
}

void store_forget_unit(struct store *s, int unit)
{
	amax_forget(s, unit, unit);
}

void store_updated(struct store *s, bool copies)
{
	store_forget(s);
	if (!copies) {
		store_refresh_copies(s, 0, s->impl->n_floats);
		offload_copies(s);
	}
	if (is_sharded(s) && s->c.zero < 3)
		gather_model(s, !copies);
}

/* ---- norms and hashes ------------------------------------------------------------ */

enum { PARTS_PER_LAUNCH = 64 };

/* Parts for one kernel launch that sums their squares. */
struct square_batch {
	struct store *s;
	struct mat m[PARTS_PER_LAUNCH];
	int n;
};

static void launch_batch(struct square_batch *q)
{
	struct device *d = q->s->c.device;
	if (q->n)
		d->k->exact_sumsq(d, q->s->impl->squares, q->m, q->n);
	q->n = 0;
}

/* Adds a part's gradient to the batch. Launches it if it is full or the part is offloaded. */
static void add_to_batch(void *arg, const struct part *x)
{
	struct square_batch *q = arg;
	q->m[q->n++] = mat(x->g, x->rows, x->cols);
	/* an offloaded part is in memory until this function returns */
	if (q->n == PARTS_PER_LAUNCH || is_offloaded(q->s, STORE_GRAD))
		launch_batch(q);
}

void store_norm_enqueue(struct store *s)
{
	struct square_batch q = {.s = s, .n = 0};
	s->c.device->k->zero(s->c.device, mat(s->impl->squares, 1, EXACT_FLOATS));
	store_for_each_part(s, true, STORE_BIT(STORE_GRAD), 0, add_to_batch, &q);
	launch_batch(&q);
	s->c.device->k->grid_count(s->c.device, s->impl->squares, s->impl->grid);
}

struct exact *store_norm_squares(const struct store *s)
{
	return s->impl->squares;
}

/* Adds the hash of a part's parameters to the sum, on the device. */
static void hash_part(void *arg, const struct part *x)
{
	struct store *s = arg;
	struct device *d = s->c.device;
	d->k->hash(d, s->impl->hash, mat(x->state[STORE_PARAM], x->rows, x->cols),
		hash_str(x->t->name), tensor_index(x->t, x->slice, x->row),
		tensor_width(x->t));
}

uint64_t store_hash(struct store *s)
{
	struct device *d = s->c.device;
	uint64_t sum;
	d->k->zero(d, mat(s->impl->hash, 1, sizeof(sum) / sizeof(float)));
	store_for_each_part(s, true, STORE_BIT(STORE_PARAM), 0, hash_part, s);
	device_get(d, &sum, s->impl->hash, sizeof(sum));
	comm_run(s->c.mesh->world, COLL_ALLREDUCE,
		&(struct coll_args){
			.recv = &sum, .count = 1, .type = COMM_U64, .op = COMM_SUM});
	return sum;
}

/* ---- rows of whole tensors ------------------------------------------------------- */

/* Rows [row, row + n) of a whole tensor. */
struct rows {
	const struct tensor *t;
	int64_t row, n;
};

/* The rows that a range and a part have in common. */
struct overlap {
	const struct part *part;
	int64_t first, rows; /* rows [first, first + rows) of the part */
	int64_t pos;	     /* offset of the first row in an array of the range's rows */
	int64_t next;	     /* the index of the part after this one */
};

/* Sets *o to the next of n parts with rows of the range; initially 0. False: there is none. */
static bool next_overlap(
	const struct part *list, int64_t n, const struct rows *r, struct overlap *o)
{
	const struct tensor *t = r->t;
	int64_t width = tensor_width(t);
	while (o->next < n) {
		const struct part *x = &list[o->next++];
		if (x->t != t)
			continue;
		int64_t index = tensor_index(t, x->slice, x->row);
		int64_t begin = index / width, from = max64(r->row, begin);
		o->part = x;
		o->first = from - begin;
		o->rows = min64(r->row + r->n, begin + x->rows) - from;
		o->pos = (from - r->row) * width + index % width;
		if (o->rows > 0)
			return true;
	}
	return false;
}

static void copy_rows(float *out, int64_t out_width, const float *in, int64_t in_width,
	int64_t rows, int64_t cols)
{
	for (int64_t i = 0; i < rows; i++)
		memcpy(out + i * out_width, in + i * in_width,
			(size_t)cols * sizeof(float));
}

bool store_has_rows(const struct store *s, int tensor, int64_t row, int64_t n)
{
	const struct rows r = {&s->c.tensors[tensor], row, n};
	return next_overlap(s->updated, s->n_held, &r, &(struct overlap){0});
}

void store_write_block(struct store *s, int group, int tensor,
	const struct tensor_block *b, const float *in)
{
	const struct rows r = {&s->c.tensors[tensor], b->row, b->rows};
	const int64_t width = tensor_width(r.t);
	struct overlap o = {.next = 0};
	while (next_overlap(s->updated, s->n_held, &r, &o)) {
		int64_t cols = o.part->cols, col = o.pos % width;
		int64_t from = max64(col, b->col),
			n = min64(col + cols, b->col + b->cols) - from;
		if (n <= 0)
			continue;
		scoped_ptr float *rows = xmalloc((size_t)(o.rows * cols) * sizeof(float));
		if (n < cols)
			part_read(s, o.part, group, o.first, o.rows, rows);
		copy_rows(rows + from - col, cols,
			in + o.pos / width * b->cols + from - b->col, b->cols, o.rows, n);
		part_write(s, o.part, group, o.first, o.rows, rows);
	}
}

void store_write_rows(
	struct store *s, int group, int tensor, int64_t row, int64_t n, const float *in)
{
	const struct tensor_block b = {row, n, 0, tensor_width(&s->c.tensors[tensor])};
	store_write_block(s, group, tensor, &b, in);
}

bool store_is_whole(const struct store *s)
{
	const int *degree = s->c.mesh->degree;
	return !s->c.zero && !s->c.offload && !s->c.offload_outer && s->c.part.ep <= 1 &&
	       degree[AXIS_PP] == 1 && degree[AXIS_TP] == 1;
}

/* Copies the rows of a range from this rank's parts to `out`. */
static void collect_local(struct store *s, int group, const struct rows *r, float *out)
{
	struct overlap o = {.next = 0};
	while (next_overlap(s->updated, s->n_held, r, &o)) {
		int64_t cols = o.part->cols;
		scoped_ptr float *rows = xmalloc((size_t)(o.rows * cols) * sizeof(float));
		part_read(s, o.part, group, o.first, o.rows, rows);
		copy_rows(out + o.pos, tensor_width(r->t), rows, cols, o.rows, cols);
	}
}

/* Header of a message: the place in the output of the floats that follow. */
struct rows_header {
	int64_t pos, rows, cols, width;
};

/* Copies the rows of a message to the output. Returns the number of floats. */
static int64_t copy_message(const void *message, float *out)
{
	struct rows_header h;
	memcpy(&h, message, sizeof(h));
	const float *from = (const void *)((const char *)message + sizeof(h));
	copy_rows(out + h.pos, h.width, from, h.cols, h.rows, h.cols);
	return h.rows * h.cols;
}

/* Sends the counted parts of all ranks to rank `to`, so that each element is sent once. */
void store_collect(struct store *s, int group, int tensor, int64_t row, int64_t n, int to,
	float *out)
{
	struct comm *w = s->c.mesh->world;
	const struct rows range = {&s->c.tensors[tensor], row, n};
	if (range.t->frozen && group != STORE_PARAM) {
		if (w->rank == to)
			memset(out, 0,
				(size_t)(n * tensor_width(range.t)) * sizeof(*out));
		return;
	}
	if (store_is_whole(s)) {
		if (w->rank == to)
			collect_local(s, group, &range, out);
		return;
	}
	int64_t width = tensor_width(range.t), missing = n * width;
	int64_t max_bytes =
		(int64_t)sizeof(struct rows_header) + missing * (int64_t)sizeof(float);
	int64_t number = s->impl->n_collected++ % COMM_TAG_COUNT(COLLECT);
	int tag = COMM_TAG(COLLECT, number);
	if (!number) /* earlier messages with these tags have been received */
		comm_barrier(w);
	scoped_ptr char *message = xmalloc((size_t)max_bytes);
	struct comm_requests r = {.c = w};
	struct overlap o = {.next = 0};
	while (next_overlap(s->counted, s->n_counted_held, &range, &o)) {
		const struct rows_header h = {o.pos, o.rows, o.part->cols, width};
		size_t floats = (size_t)(h.rows * h.cols) * sizeof(float);
		memcpy(message, &h, sizeof(h));
		part_read(s, o.part, group, o.first, o.rows,
			(float *)(void *)(message + sizeof(h)));
		if (w->rank == to) {
			missing -= copy_message(message, out);
			continue;
		}
		comm_send(&r, message, (int64_t)(sizeof(h) + floats), to, tag);
		comm_start(&r);
		comm_wait(&r);
	}
	while (w->rank == to && missing > 0) {
		comm_recv_any(w, message, max_bytes, tag);
		missing -= copy_message(message, out);
	}
	comm_requests_release(&r);
}
