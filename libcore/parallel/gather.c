/*
 * Parameters from their shards: a rank sends its own to those that have the others, and puts
 * what comes where the bucket's vector has it. For the whole model after an update (ZeRO 1
 * and 2), or for a unit while it is used (ZeRO 3, FSDP), one unit ahead of its use.
 *
 * What is only an operand of products, which round it, travels in 16 bits where that is the
 * precision of the run, and every rank has it rounded, of its own shard too. A device that is
 * narrow has the vector so, as products take it. Shards, which the optimizer changes, stay fp32.
 *
 * A shard that is kept elsewhere is read ahead, in 16 bits where copies of it are there, and sent
 * when it is here: at the latest when the unit is used, where every rank does so before it waits
 * for others.
 */
#include "parallel/store_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- a bucket -------------------------------------------------------------------- */

static int64_t shard_floats(const struct bucket *b, int shard)
{
	return b->shard[shard].n;
}

/* Does a shard lie together in the vector? */
static bool in_place(const struct bucket *b, int shard)
{
	return b->shard[shard].n_runs == 1;
}

static bool is_narrow(const struct bucket *b)
{
	return b->wire != DT_F32;
}

static bool narrow_vector(const struct store *s, const struct bucket *b)
{
	return is_narrow(b) && s->c.device->stores_half;
}

/* Of the vector, from element `at` on. */
static struct mat elements(const struct store *s, const struct bucket *b, float *vector,
	int64_t at, int64_t n)
{
	enum dtype type = narrow_vector(s, b) ? b->wire : DT_F32;
	return mat_typed((char *)vector + at * dtype_bytes(type), 1, n, type);
}

static int64_t vector_floats(const struct store *s, const struct bucket *b)
{
	return narrow_vector(s, b) ? round_up(ceil_div(b->n, 2), 16) : b->n;
}

/* Bytes of a shard on its way. */
static int64_t wire_bytes(const struct bucket *b, int shard)
{
	return shard_floats(b, shard) * dtype_bytes(b->wire);
}

/* Does a shard get a place in the staging? Else it comes at its place in the vector. In 16 bits
 * so does this rank's, which would have the first place; in 32 it has one of its own. */
static bool is_staged(const struct store *s, const struct bucket *b, int shard)
{
	if (is_narrow(b))
		return !narrow_vector(s, b) || !in_place(b, shard);
	return shard != s->own->shard && !in_place(b, shard);
}

static int64_t place_floats(const struct bucket *b, int shard)
{
	return round_up(ceil_div(wire_bytes(b, shard), sizeof(float)), 16);
}

static int64_t staging_floats(const struct store *s, const struct bucket *b)
{
	int64_t n = 0;
	for (int k = 0; k < s->own->n_shards; k++)
		n += is_staged(s, b, k) ? place_floats(b, k) : 0;
	return n;
}

static bool is_read(const struct store *s)
{
	return is_offloaded(s, STORE_PARAM);
}

/* Is what is read of this rank's shard what is sent? */
static bool reads_copies(const struct store *s, const struct bucket *b)
{
	return is_narrow(b) && offloads_copies(s);
}

/* A shard of the only rank is the vector; another one gets a place behind the staging. */
static int64_t own_floats(const struct store *s, const struct bucket *b)
{
	return is_read(s) && s->own->n_shards > 1 && !reads_copies(s, b)
		       ? round_up(shard_floats(b, s->own->shard), 16)
		       : 0;
}

/* Of fp32. */
static float *own_shard(
	const struct store *s, const struct bucket *b, float *vector, float *staging)
{
	if (!is_read(s))
		return b->state[STORE_PARAM];
	return s->own->n_shards > 1 ? staging + staging_floats(s, b) : vector;
}

/* As it is sent. */
static void *own_wire(
	const struct store *s, const struct bucket *b, float *vector, float *staging)
{
	int k = s->own->shard;
	if (!is_narrow(b))
		return own_shard(s, b, vector, staging);
	return is_staged(s, b, k) ? staging
				  : elements(s, b, vector, b->shard[k].run[0].at, 0).p;
}

static uint64_t read_own(struct store *s, struct bucket *b, float *vector, float *staging)
{
	bool copies = reads_copies(s, b);
	return offload_enqueue(s, copies ? (int)STORE_COPY : STORE_PARAM, false,
		copies ? own_wire(s, b, vector, staging)
		       : own_shard(s, b, vector, staging),
		b->at, shard_floats(b, s->own->shard), 0);
}

static void send_own(struct store *s, struct bucket *b, float *vector, float *staging,
	struct comm_requests *requests)
{
	struct comm *c = s->own->shards;
	struct device *d = s->c.device;
	int64_t n_bytes = wire_bytes(b, s->own->shard);
	void *own = own_wire(s, b, vector, staging);
	if (is_narrow(b) && !reads_copies(s, b))
		d->k->narrow(d, own,
			mat(own_shard(s, b, vector, staging), 1,
				shard_floats(b, s->own->shard)),
			b->wire);
	for (int i = 1; i < c->size; i++)
		comm_send(requests, own, n_bytes, (s->own->shard + i) % c->size,
			TAG_GATHER);
}

/* The places of the staging that are for others. */
static float *others_staging(
	const struct store *s, const struct bucket *b, float *staging)
{
	int k = s->own->shard;
	return staging + (is_staged(s, b, k) ? place_floats(b, k) : 0);
}

static void receive_others(struct store *s, struct bucket *b, float *vector,
	float *staging, struct comm_requests *requests)
{
	struct store_own *o = s->own;
	struct comm *c = o->shards;
	c->seq++;
	staging = others_staging(s, b, staging);
	for (int i = 1; i < o->n_shards; i++) {
		int k = (o->shard + i) % c->size;
		int64_t n_bytes = wire_bytes(b, k);
		void *to = staging;
		if (is_staged(s, b, k))
			staging += place_floats(b, k);
		else
			to = elements(s, b, vector, b->shard[k].run[0].at, 0).p;
		comm_recv(requests, to, n_bytes, k, TAG_GATHER);
	}
}

static void unpack(
	struct store *s, struct bucket *b, int shard, float *vector, const void *from)
{
	struct device *d = s->c.device;
	const struct sum_shard *x = &b->shard[shard];
	int64_t at = 0;
	for (int i = 0; i < x->n_runs; at += x->run[i++].len) {
		struct mat to = elements(s, b, vector, x->run[i].at, x->run[i].len);
		if (is_narrow(b) && to.type == DT_F32)
			d->k->widen(d, to, (const uint16_t *)from + at, b->wire);
		else
			d->k->copy(d, to,
				mat_typed((char *)from + at * dtype_bytes(to.type), 1,
					to.cols, to.type));
	}
}

/* The shards of others have been received. */
static void end_bucket(struct store *s, struct bucket *b, float *vector, float *staging)
{
	struct store_own *o = s->own;
	struct comm *c = o->shards;
	const void *own = own_wire(s, b, vector, staging);
	if (is_narrow(b) ? is_staged(s, b, o->shard) : own != vector)
		unpack(s, b, o->shard, vector, own);
	staging = others_staging(s, b, staging);
	for (int i = 1; i < o->n_shards; i++) {
		int k = (o->shard + i) % c->size;
		if (!is_staged(s, b, k))
			continue;
		unpack(s, b, k, vector, staging);
		staging += place_floats(b, k);
	}
	if (narrow_vector(s, b))
		b->copy = (char *)vector;
	else
		b->whole = vector;
}

/* ---- the whole model ------------------------------------------------------------- */

/* Memory for what is on its way: of a discrete device, its own. */
static float *staging_take(struct store *s, struct bucket *b)
{
	int64_t n = staging_floats(s, b);
	if (s->c.device->discrete)
		return arena_floats(s->c.device->scratch, n);
	return s->own->shards->planned ? b->whole
				       : xmalloc((size_t)(n + 1) * sizeof(float));
}

static void staging_drop(struct store *s, struct bucket *b, float *staging, size_t mark)
{
	if (s->c.device->discrete)
		arena_reset(s->c.device->scratch, mark);
	else if (staging != b->whole)
		free(staging);
}

void gather_whole(struct store *s)
{
	struct store_own *o = s->own;
	struct device *d = s->c.device;
	struct comm_requests requests = {.c = o->shards};
	for (int i = 0; i < o->n_buckets; i++) {
		struct bucket *b = &o->bucket[i];
		size_t mark = d->discrete ? arena_mark(d->scratch) : 0;
		float *staging = staging_take(s, b);
		receive_others(s, b, b->whole, staging, &requests);
		send_own(s, b, b->whole, staging, &requests);
		comm_start(&requests);
		comm_wait(&requests);
		end_bucket(s, b, b->whole, staging);
		staging_drop(s, b, staging, mark);
	}
	comm_requests_free(&requests);
}

/* ---- a unit ---------------------------------------------------------------------- */

static bool begins_in(const struct bucket *b, int unit)
{
	return b->first_unit == unit;
}

static int unit_buckets(const struct store *s, int unit)
{
	int n = 0;
	for (int i = 0; i < s->own->n_buckets; i++)
		n += begins_in(&s->own->bucket[i], unit);
	return n;
}

/* Where the buckets of a unit lie in its memory. */
static int64_t bucket_floats(const struct store *s, const struct bucket *b)
{
	return vector_floats(s, b) + staging_floats(s, b) + own_floats(s, b);
}

static void send_unit(struct store *s, struct gathered *g)
{
	struct store_own *o = s->own;
	float *at = g->memory;
	if (o->n_shards == 1)
		return;
	for (int i = 0; i < o->n_buckets; i++) {
		struct bucket *b = &o->bucket[i];
		if (!begins_in(b, g->unit))
			continue;
		send_own(s, b, at, at + vector_floats(s, b), &g->requests);
		at += bucket_floats(s, b);
	}
	comm_start(&g->requests);
}

static void end_unit(struct store *s, struct gathered *g)
{
	struct store_own *o = s->own;
	float *at = g->memory;
	if (is_read(s) && !g->ready) {
		offload_wait(s, g->ticket);
		send_unit(s, g);
	}
	if (!g->ready)
		comm_wait(&g->requests);
	for (int i = 0; i < o->n_buckets && !g->ready; i++) {
		struct bucket *b = &o->bucket[i];
		if (!begins_in(b, g->unit))
			continue;
		end_bucket(s, b, at, at + vector_floats(s, b));
		at += bucket_floats(s, b);
	}
	g->ready = true;
}

static void drop(struct store *s, struct gathered *g)
{
	if (g->unit < 0)
		return;
	end_unit(s, g);
	for (int i = 0; i < s->own->n_buckets; i++) {
		struct bucket *b = &s->own->bucket[i];
		if (begins_in(b, g->unit) && narrow_vector(s, b))
			b->copy = NULL;
		else if (begins_in(b, g->unit))
			b->whole = NULL;
	}
	g->unit = -1;
}

static struct gathered *find(struct store *s, int unit)
{
	for (int i = 0; i < s->own->n_gathered; i++)
		if (s->own->gathered[i].unit == unit)
			return &s->own->gathered[i];
	return NULL;
}

/* A place for a unit, which nobody uses now; NULL: none. */
static struct gathered *room_for(struct store *s, int unit)
{
	struct store_own *o = s->own;
	if (s->c.reshard == RESHARD_NO)
		return &o->gathered[unit];
	for (int turn = 0; turn < 2; turn++) {
		struct gathered *g = &o->gathered[place_of(s, unit, turn)];
		if (g->unit < 0)
			return g;
	}
	for (int turn = 0; turn < 2; turn++) {
		struct gathered *g = &o->gathered[place_of(s, unit, turn)];
		if (!g->users) {
			drop(s, g);
			return g;
		}
	}
	return NULL;
}

void store_before_use(struct store *s, void (*fn)(void *with, int unit), void *with)
{
	s->own->before_use = fn;
	s->own->before_use_with = with;
}

static void before_use(struct store *s, int unit)
{
	if (s->own->before_use && unit < s->c.n_units)
		s->own->before_use(s->own->before_use_with, unit);
}

/* NULL: there is no room for it. */
static struct gathered *begin_unit(struct store *s, int unit)
{
	struct store_own *o = s->own;
	struct gathered *g = room_for(s, unit);
	if (!g)
		return NULL;
	before_use(s, unit);
	float *at = g->memory;
	g->unit = unit;
	g->ready = false;
	g->ticket = 0;
	for (int i = 0; i < o->n_buckets; i++) {
		struct bucket *b = &o->bucket[i];
		if (!begins_in(b, unit))
			continue;
		receive_others(s, b, at, at + vector_floats(s, b), &g->requests);
		if (is_read(s)) { /* of nothing there is no ticket */
			uint64_t ticket = read_own(s, b, at, at + vector_floats(s, b));
			g->ticket = ticket ? ticket : g->ticket;
		}
		at += bucket_floats(s, b);
	}
	if (!is_read(s))
		send_unit(s, g);
	return g;
}

static bool is_gathered(const struct store *s)
{
	return s->own->n_gathered > 0;
}

void store_use(struct store *s, int unit, int next)
{
	if (!is_gathered(s)) {
		before_use(s, unit);
		return;
	}
	struct gathered *g = find(s, unit);
	if (!g)
		g = begin_unit(s, unit);
	BUG_ON(!g);
	g->users++;
	end_unit(s, g);
	if (next < 0 || !(is_read(s) || comm_overlaps()) || find(s, next) ||
		!unit_buckets(s, next))
		return;
	begin_unit(s, next);
}

void store_done(struct store *s, int unit, bool backward)
{
	if (!is_gathered(s))
		return;
	struct gathered *g = find(s, unit);
	BUG_ON(!g || !g->users);
	g->users--;
	bool keep = s->c.reshard == RESHARD_NO ||
		    (s->c.reshard == RESHARD_KEEP_LAST && unit == s->c.n_units - 2);
	if (!g->users && (backward || !keep))
		drop(s, g);
}

void gather_forget(struct store *s)
{
	for (int i = 0; i < s->own->n_gathered; i++) {
		BUG_ON(s->own->gathered[i].users);
		drop(s, &s->own->gathered[i]);
	}
}

/* ---- memory ---------------------------------------------------------------------- */

void gather_open(struct store *s, bool measuring)
{
	struct store_own *o = s->own;
	bool all = s->c.reshard == RESHARD_NO;
	int64_t total = 0;
	o->n_gathered = all ? n_units(s) : N_PLACES;
	o->gathered = xcalloc((size_t)o->n_gathered, sizeof(*o->gathered));
	for (int u = 0; u < n_units(s); u++) {
		int64_t n = 0;
		for (int i = 0; i < o->n_buckets; i++)
			if (begins_in(&o->bucket[i], u))
				n += bucket_floats(s, &o->bucket[i]);
		for (int turn = 0; turn < (all ? 1 : 2); turn++) {
			struct gathered *g = &o->gathered[all ? u : place_of(s, u, turn)];
			g->n = max64(g->n, n);
		}
	}
	for (int i = 0; i < o->n_gathered; i++) {
		o->gathered[i].unit = -1;
		o->gathered[i].requests.c = o->shards;
		total += round_up(o->gathered[i].n, 16);
	}
	s->bytes.gathered = total * (int64_t)sizeof(float);
	if (measuring)
		arena_measure(&o->gather_memory, "gathered parameters");
	else
		device_arena(s->c.device, &o->gather_memory, "gathered parameters",
			(size_t)s->bytes.gathered);
	for (int i = 0; i < o->n_gathered; i++)
		o->gathered[i].memory = arena_floats(&o->gather_memory, o->gathered[i].n);
}

void gather_close(struct store *s)
{
	struct store_own *o = s->own;
	if (is_gathered(s))
		gather_forget(s);
	for (int i = 0; i < o->n_gathered; i++)
		comm_requests_free(&o->gathered[i].requests);
	free(o->gathered);
	device_arena_release(s->c.device, &o->gather_memory);
}
