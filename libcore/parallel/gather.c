/* All-gathers of parameters: of the whole model after an update (ZeRO 1 and 2), or of a unit
 * while it is in use, with the next unit prefetched (ZeRO 3, FSDP). Each rank sends its shard to
 * the ranks with the other shards, and unpacks what it receives into the bucket's vector.
 *
 * Matmul operands are sent in the run's precision if it has 16 or 8 bits, since matmuls round
 * them anyway. Each rank rounds its own shard too. A device that stores half precision keeps the
 * vector in 16 bits. Shards, which the optimizer updates, stay fp32.
 *
 * An offloaded shard is prefetched from the backend (in 16 bits if copies are offloaded) and sent
 * when it is read, at the latest in store_use(). A rank sends before it waits for other ranks. */
#include "parallel/store_internal.h"

/* ---- a bucket -------------------------------------------------------------------- */

static bool is_narrow(const struct bucket *b)
{
	return b->wire != DT_F32;
}

/* Returns true if the bucket's vector is gathered from several ranks. */
static bool has_shards(const struct bucket *b)
{
	return b->sharding->n > 1;
}

/* Returns true if the vector is kept in 16 bits. Elements received in 8 bits are widened to fp32,
 * since a matmul casts its operand or the transposed one: 8 bits save traffic, but no memory. */
static bool keeps_half_vector(const struct bucket *b)
{
	return dtype_bytes(b->wire) == 2;
}

/* Returns elements [pos, pos + n) of a bucket's vector. */
static struct mat vector_elements(const struct bucket *b, int64_t pos, int64_t n)
{
	enum dtype type = keeps_half_vector(b) ? b->wire : DT_F32;
	return mat_typed((char *)b->gather.vector + pos * dtype_bytes(type), 1, n, type);
}

/* Returns the memory of a bucket's vector in floats. */
static int64_t vector_floats(const struct bucket *b)
{
	return keeps_half_vector(b) ? round_up(ceil_div(b->n, 2), 16) : b->n;
}

/* Returns the bytes of a shard in a message. */
static int64_t wire_bytes(const struct bucket *b, int shard)
{
	return b->shard[shard].n * dtype_bytes(b->wire);
}

/* Returns true if a shard is received into the staging buffer; else it is received into the
 * vector, where it is contiguous. This rank's fp32 shard has its own memory. */
static bool is_staged(const struct bucket *b, int shard)
{
	bool contiguous = b->shard[shard].n_runs == 1;
	if (is_narrow(b))
		return !keeps_half_vector(b) || !contiguous;
	return shard != b->sharding->own && !contiguous;
}

/* Returns true on a GPU: gathered data has the same offset on all ranks, as NCCL's symmetric
 * windows require. So there is space for every shard, and for the longest one as the own shard. */
static bool has_equal_offsets(const struct store *s)
{
	return s->c.device->discrete;
}

/* Returns the floats of a shard in the staging buffer; 0: it is not staged. */
static int64_t staged_floats(const struct store *s, const struct bucket *b, int shard)
{
	bool reserved = has_equal_offsets(s) && shard == b->sharding->own &&
			!is_narrow(b) && b->shard[shard].n_runs != 1;
	return is_staged(b, shard) || reserved
		       ? round_up(ceil_div(wire_bytes(b, shard), sizeof(float)), 16)
		       : 0;
}

static int64_t staging_floats(const struct store *s, const struct bucket *b)
{
	int64_t n = 0;
	for (int k = 0; k < b->sharding->n; k++)
		n += staged_floats(s, b, k);
	return n;
}

/* Sets the staging buffer. The first call also computes the offsets of the shards in it. */
static void set_staging(const struct store *s, struct bucket *b, float *staging)
{
	b->gather.staging = staging;
	if (b->gather.staged_at)
		return;
	b->gather.staged_at =
		xcalloc((size_t)b->sharding->n + 1, sizeof(*b->gather.staged_at));
	for (int k = 0; k < b->sharding->n; k++)
		b->gather.staged_at[k + 1] =
			b->gather.staged_at[k] + staged_floats(s, b, k);
}

/* Returns the memory of a shard's message, which is in the staging buffer or in the vector. */
static void *message_buffer(const struct bucket *b, int shard)
{
	return is_staged(b, shard) ? b->gather.staging + b->gather.staged_at[shard]
				   : vector_elements(b, b->shard[shard].run[0].pos, 0).p;
}

static bool params_offloaded(const struct store *s)
{
	return is_offloaded(s, STORE_PARAM);
}

/* Returns true if this rank's shard is read in the type in which it is sent. */
static bool reads_copies(const struct store *s, const struct bucket *b)
{
	return is_narrow(b) && offloads_copies(s);
}

/* Returns the floats for an offloaded shard after the staging buffer; 0: read into the vector. */
static int64_t own_floats(const struct store *s, const struct bucket *b)
{
	int64_t n = b->shard[b->sharding->own].n;
	for (int k = 0; k < b->sharding->n && has_equal_offsets(s); k++)
		n = max64(n, b->shard[k].n);
	return params_offloaded(s) && has_shards(b) && !reads_copies(s, b)
		       ? round_up(n, 16)
		       : 0;
}

/* Returns this rank's shard in fp32. */
static float *own_shard(const struct store *s, const struct bucket *b)
{
	if (!params_offloaded(s))
		return b->state[STORE_PARAM];
	return has_shards(b) ? b->gather.staging + staging_floats(s, b)
			     : b->gather.vector;
}

/* Returns this rank's shard in the type in which it is sent. */
static void *own_message(const struct store *s, const struct bucket *b)
{
	return is_narrow(b) ? message_buffer(b, b->sharding->own) : own_shard(s, b);
}

/* Starts to read this rank's offloaded shard. Returns a ticket. */
static uint64_t read_own_shard(struct store *s, const struct bucket *b)
{
	bool copies = reads_copies(s, b);
	return offload_enqueue(s, copies ? (int)STORE_COPY : STORE_PARAM, false,
		copies ? own_message(s, b) : own_shard(s, b), b->pos,
		b->shard[b->sharding->own].n, 0);
}

/* Returns the number of an entry's elements in a shard; *pos is their offset in the vector. */
static int64_t entry_shard_elements(const struct entry *e, int shard, int64_t *pos)
{
	*pos = e->pos + e->bounds[shard] * e->cols;
	return (e->bounds[shard + 1] - e->bounds[shard]) * e->cols;
}

/* Narrows this rank's shard into the message; 8 bits use the scale of each tensor. */
static void narrow_own_shard(const struct store *s, const struct bucket *b, void *message)
{
	struct device *d = s->c.device;
	int own = b->sharding->own;
	float *x = own_shard(s, b);
	int64_t pos;
	if (b->wire != DT_E4M3)
		d->k->narrow(d, message, mat(x, 1, b->shard[own].n), b->wire);
	for (int i = 0; i < b->n_entries && b->wire == DT_E4M3; i++) {
		const struct entry *e = &b->entry[i];
		int64_t n = entry_shard_elements(e, own, &pos);
		if (n)
			d->k->narrow_scaled(d, (uint8_t *)message + e->packed[own],
				mat(x + e->packed[own], 1, n), store_amax(s, e->t));
	}
}

/* Returns true if all messages, this rank's too, have equal lengths and are adjacent. */
static bool are_messages_contiguous(const struct bucket *b)
{
	const char *first = message_buffer(b, 0);
	int64_t n_bytes = wire_bytes(b, 0);
	bool equal = is_narrow(b);
	for (int k = 1; k < b->sharding->n && equal; k++)
		equal = wire_bytes(b, k) == n_bytes &&
			(const char *)message_buffer(b, k) == first + k * n_bytes;
	return equal;
}

/* Adds messages that send this rank's shard to all ranks and receive their shards. */
static void gather_shards(
	struct store *s, const struct bucket *b, struct comm_requests *requests)
{
	scoped_ptr struct comm_block *all = xcalloc((size_t)b->sharding->n, sizeof(*all));
	void *own = own_message(s, b);
	requests->c = b->sharding->c;
	if (is_narrow(b) && !reads_copies(s, b))
		narrow_own_shard(s, b, own);
	for (int k = 0; k < b->sharding->n; k++)
		all[k] = (struct comm_block){
			k == b->sharding->own ? own : message_buffer(b, k),
			wire_bytes(b, k)};
	comm_gather_blocks(requests, all, are_messages_contiguous(b), TAG_GATHER);
}

/* Widens a shard in 8 bits with the scale of each tensor. */
static void unpack_scaled_shard(
	struct store *s, const struct bucket *b, int shard, const uint8_t *message)
{
	struct device *d = s->c.device;
	for (int i = 0; i < b->n_entries; i++) {
		const struct entry *e = &b->entry[i];
		int64_t pos, n = entry_shard_elements(e, shard, &pos);
		if (n)
			d->k->widen_scaled(d, vector_elements(b, pos, n),
				message + e->packed[shard], store_amax(s, e->t));
	}
}

/* Copies a shard from its message to the bucket's vector. */
static void unpack_shard(
	struct store *s, const struct bucket *b, int shard, const void *message)
{
	struct device *d = s->c.device;
	const struct sum_shard *x = &b->shard[shard];
	int64_t pos = 0;
	if (b->wire == DT_E4M3) {
		unpack_scaled_shard(s, b, shard, message);
		return;
	}
	for (int i = 0; i < x->n_runs; pos += x->run[i++].len) {
		struct mat dst = vector_elements(b, x->run[i].pos, x->run[i].len);
		if (is_narrow(b) && dst.type == DT_F32)
			d->k->widen(d, dst, (const uint16_t *)message + pos, b->wire);
		else
			d->k->copy(d, dst,
				mat_typed((char *)message + pos * dtype_bytes(dst.type),
					1, dst.cols, dst.type));
	}
}

/* Unpacks the shards of all ranks, which have been received. */
static void unpack_bucket(struct store *s, struct bucket *b)
{
	const struct sharding *x = b->sharding;
	const void *own = own_message(s, b);
	if (is_narrow(b) ? is_staged(b, x->own) : own != b->gather.vector)
		unpack_shard(s, b, x->own, own);
	for (int i = 1; i < x->n; i++) {
		int k = (x->own + i) % x->n;
		const void *message = message_buffer(b, k);
		if (is_staged(b, k))
			unpack_shard(s, b, k, message);
	}
	if (keeps_half_vector(b))
		b->gather.copy = (char *)b->gather.vector;
	else
		b->gather.whole = b->gather.vector;
}

/* ---- the whole model ------------------------------------------------------------- */

/* Returns the floats that a bucket takes in the memory of its unit. */
static int64_t bucket_floats(const struct store *s, const struct bucket *b)
{
	return vector_floats(b) + staging_floats(s, b) + own_floats(s, b);
}

/* Gathers bucket by bucket. The staging buffer is scratch memory, so that the plan counts it. */
void gather_model(struct store *s, bool frozen)
{
	struct store_impl *o = s->impl;
	struct arena *scratch = s->c.device->scratch;
	struct comm_requests requests = {.c = NULL};
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_buckets; b++) {
		if (!has_shards(b))
			continue;
		size_t mark = arena_mark(scratch);
		float *staging = arena_floats(scratch, staging_floats(s, b));
		/* (the staging buffer is allocated even if it is not used, for plans) */
		if (frozen || b < o->bucket + o->n_trained) {
			b->gather.vector = b->gather.whole;
			set_staging(s, b, staging);
			gather_shards(s, b, &requests);
			comm_start(&requests);
			comm_wait(&requests);
			unpack_bucket(s, b);
		}
		arena_reset(scratch, mark);
	}
	comm_requests_release(&requests);
}

/* ---- a unit ---------------------------------------------------------------------- */

/* Returns the gathered or offloaded bucket of a unit that follows b (NULL: the first), or NULL. */
static struct bucket *next_bucket(const struct store *s, int unit, struct bucket *b)
{
	struct bucket *end = s->impl->bucket + s->impl->n_buckets;
	b = b ? b + 1 : s->impl->bucket;
	while (b < end &&
		(b->first_unit != unit || (!has_shards(b) && !params_offloaded(s))))
		b++;
	return b < end ? b : NULL;
}

/* Returns the messages of a bucket's unit over the ranks that share the bucket. */
static struct comm_requests *bucket_requests(
	const struct store *s, struct gathered *g, const struct bucket *b)
{
	return &g->requests[b->sharding - s->impl->sharding];
}

/* Starts the messages that gather a unit. */
static void start_gather(struct store *s, struct gathered *g)
{
	for (struct bucket *b = NULL; (b = next_bucket(s, g->unit, b));)
		if (has_shards(b))
			gather_shards(s, b, bucket_requests(s, g, b));
	for (int k = 0; k < N_SHARDINGS; k++)
		if (g->requests[k].n)
			comm_start(&g->requests[k]);
}

/* Completes the gather of a unit. A second call does nothing. Offloaded parameters: the shards
 * arrive only now, so their messages start here. */
static void finish_gather(struct store *s, struct gathered *g)
{
	if (g->ready)
		return;
	if (params_offloaded(s)) {
		offload_wait(s, g->ticket);
		start_gather(s, g);
	}
	for (int k = 0; k < N_SHARDINGS; k++)
		if (g->requests[k].c)
			comm_wait(&g->requests[k]);
	for (struct bucket *b = NULL; (b = next_bucket(s, g->unit, b));)
		unpack_bucket(s, b);
	if (params_offloaded(s) && g->unit < s->c.n_units)
		amax_compute(s, g->unit);
	g->ready = true;
}

/* Frees the memory of a unit, if it holds one. */
static void drop_unit(struct store *s, struct gathered *g)
{
	if (g->unit < 0)
		return;
	finish_gather(s, g);
	for (struct bucket *b = NULL; (b = next_bucket(s, g->unit, b));)
		if (keeps_half_vector(b))
			b->gather.copy = NULL;
		else
			b->gather.whole = NULL;
	g->unit = -1;
}

static struct gathered *find_gathered(struct store *s, int unit)
{
	for (int i = 0; i < s->impl->n_gathered; i++)
		if (s->impl->gathered[i].unit == unit)
			return &s->impl->gathered[i];
	return NULL;
}

/* Returns memory for a unit, from which an unused unit may be dropped. NULL: all is in use. */
static struct gathered *claim_memory(struct store *s, int unit)
{
	struct gathered *unused = NULL;
	if (s->c.reshard == RESHARD_NO)
		return &s->impl->gathered[unit];
	for (int turn = 1; turn >= 0; turn--) {
		struct gathered *g = &s->impl->gathered[unit_place(s, unit, turn)];
		if (!g->users && (!unused || unused->unit >= 0 || g->unit < 0))
			unused = g;
	}
	if (unused)
		drop_unit(s, unused);
	return unused;
}

void store_before_use(struct store *s, void (*fn)(void *arg, int unit), void *arg)
{
	s->impl->before_use = fn;
	s->impl->before_use_with = arg;
}

static void prepare_use(struct store *s, int unit)
{
	if (s->impl->before_use && unit < s->c.n_units)
		s->impl->before_use(s->impl->before_use_with, unit);
	if (!params_offloaded(s) && unit < s->c.n_units)
		amax_compute(s, unit);
}

/* Begins to gather a unit. Returns NULL if there is no memory for it. */
static struct gathered *begin_gather(struct store *s, int unit)
{
	struct gathered *g = claim_memory(s, unit);
	if (!g)
		return NULL;
	prepare_use(s, unit);
	float *next = g->memory;
	g->unit = unit;
	g->ready = false;
	g->ticket = 0;
	for (struct bucket *b = NULL; (b = next_bucket(s, unit, b));) {
		b->gather.vector = next;
		set_staging(s, b, next + vector_floats(b));
		next += bucket_floats(s, b);
		uint64_t ticket = params_offloaded(s) ? read_own_shard(s, b) : 0;
		g->ticket = ticket ? ticket : g->ticket; /* 0: nothing was read */
	}
	if (!params_offloaded(s))
		start_gather(s, g);
	return g;
}

static bool gathers_units(const struct store *s)
{
	return s->impl->n_gathered > 0;
}

void store_use(struct store *s, int unit, int next)
{
	if (!gathers_units(s)) {
		prepare_use(s, unit);
		return;
	}
	struct gathered *g = find_gathered(s, unit);
	if (!g)
		g = begin_gather(s, unit);
	BUG_ON(!g);
	g->users++;
	finish_gather(s, g);
	if (next == UNIT_AFTER)
		next = s->after;
	if (next < 0 || !(params_offloaded(s) || comm_overlaps()) ||
		find_gathered(s, next) || !next_bucket(s, next, NULL))
		return;
	begin_gather(s, next);
}

void store_done(struct store *s, int unit, bool backward)
{
	if (!gathers_units(s))
		return;
	struct gathered *g = find_gathered(s, unit);
	BUG_ON(!g || !g->users);
	g->users--;
	bool keep = s->c.reshard == RESHARD_NO ||
		    (s->c.reshard == RESHARD_KEEP_LAST && unit == s->c.n_units - 2);
	if (!g->users && (backward || !keep))
		drop_unit(s, g);
}

void gather_forget(struct store *s)
{
	for (int i = 0; i < s->impl->n_gathered; i++) {
		BUG_ON(s->impl->gathered[i].users);
		drop_unit(s, &s->impl->gathered[i]);
	}
}

/* ---- memory ---------------------------------------------------------------------- */

void gather_open(struct store *s, bool measuring)
{
	struct store_impl *o = s->impl;
	bool one_per_unit = s->c.reshard == RESHARD_NO;
	int64_t total = 0;
	o->n_gathered = one_per_unit ? n_units(s) : N_PLACES;
	o->gathered = xcalloc((size_t)o->n_gathered, sizeof(*o->gathered));
	for (int u = 0; u < n_units(s); u++) {
		int64_t n = 0;
		for (struct bucket *b = NULL; (b = next_bucket(s, u, b));)
			n += bucket_floats(s, b);
		for (int turn = 0; turn < (one_per_unit ? 1 : 2); turn++) {
			struct gathered *g =
				&o->gathered[one_per_unit ? u : unit_place(s, u, turn)];
			g->n = max64(g->n, n);
		}
	}
	for (int i = 0; i < o->n_gathered; i++) {
		o->gathered[i].unit = -1;
		total += round_up(o->gathered[i].n, 16);
	}
	s->bytes.gathered = total * (int64_t)sizeof(float);
	if (measuring)
		arena_measure(&o->gather_memory, "gathered parameters");
	else
		comm_device_arena(o->sharding[SHARDING_DENSE].c, s->c.device,
			&o->gather_memory, "gathered parameters",
			(size_t)s->bytes.gathered);
	for (int i = 0; i < o->n_gathered; i++)
		o->gathered[i].memory = arena_floats(&o->gather_memory, o->gathered[i].n);
}

void gather_close(struct store *s)
{
	struct store_impl *o = s->impl;
	if (gathers_units(s))
		gather_forget(s);
	for (int i = 0; i < o->n_gathered; i++)
		for (int k = 0; k < N_SHARDINGS; k++)
			comm_requests_release(&o->gathered[i].requests[k]);
	free(o->gathered);
	comm_device_arena_release(
		o->sharding[SHARDING_DENSE].c, s->c.device, &o->gather_memory);
}
