#include "tests/support/reduction_fakes.h"

#include <stdlib.h>
#include <string.h>

/* A sum of one rank in a group. */
struct member {
	struct fake_rank *p;
	struct sum_call call;
	struct sum *after;
	uint64_t *own, *kept; /* [vector], [piece]: before the sum, then after it */
	uint32_t *result;     /* [shard] */
	uint64_t own_hash, kept_hash, result_hash; /* of memory, until the end */
};

/* A sum of all ranks of a group. */
struct exchange {
	uint64_t key;
	int begun, size;
	bool complete;
	char what[160];
	struct member *member;
};

/* sum_begin() returns it. */
struct sum {
	struct exchange *x;
	int me;
};

const struct reduction_case *checked;
struct fake_rank *peers, *now;
ucontext_t scheduler;
int64_t progress;
struct err *fault;
static struct exchange **exchanges;
static int n_exchanges;

void wrong(const char *what)
{
	if (!fault->code)
		err_set(fault, EX_FAILED, "rank %d of worker %d: %s", now->rank,
			now->worker, what);
}

void yield(void)
{
	swapcontext(&now->context, &scheduler);
}

/* ---- arithmetic ------------------------------------------------------------------ */

uint64_t widen(uint32_t leaf)
{
	return leaf ? hash_mix((uint64_t)leaf + 1) : 0;
}

uint32_t rounded(uint64_t sum)
{
	return (uint32_t)(hash_mix(sum) >> 13);
}

static bool overlap(const void *a, int64_t a_bytes, const void *b, int64_t b_bytes)
{
	return a && b && (const char *)a < (const char *)b + b_bytes &&
	       (const char *)b < (const char *)a + a_bytes;
}

void fake_checksum(
	const struct grid_check *c, const uint64_t *sum, int64_t n, int64_t first)
{
	for (int64_t i = 0; i < n; i++) {
		uint64_t weight =
			hash_mix((uint64_t)c->bucket << 40 | (uint64_t)(first + i));
		*c->word += (c->subtract ? -sum[i] : sum[i]) * weight;
	}
}

void fake_grid_sum(struct device *d, const struct grid_sum *g, struct grid *grid)
{
	uint64_t *sum = (uint64_t *)g->sum;
	(void)d, (void)grid;
	for (int k = 0; k < g->n_parts; k++)
		if (overlap(g->rounded, 4 * g->n, g->parts[k].sum, 8 * g->n))
			wrong("a sum is rounded over what is still to be read");
	for (int64_t i = 0; i < g->n; i++) {
		uint64_t v = g->add ? sum[i] : 0;
		for (int k = 0; k < g->n_parts; k++)
			v += g->parts[k].leaf
				     ? widen(((const uint32_t *)g->parts[k].leaf)[i])
				     : (uint64_t)g->parts[k].sum[i];
		if (sum)
			sum[i] = v;
		if (g->rounded)
			((uint32_t *)(void *)g->rounded)[i] = rounded(v);
		if (g->check)
			fake_checksum(g->check, &v, 1, g->check->first + i);
	}
	now->rounded += g->rounded ? g->n : 0;
}

/* Memory that must not be read. */
static void spoil(void *p, int64_t n_bytes)
{
	static uint64_t n;
	for (int64_t i = 0; p && i < n_bytes / 4; i++)
		((uint32_t *)p)[i] = (uint32_t)hash_mix(++n);
}

static void *copy_of(const void *p, int64_t n_bytes)
{
	void *copy = xmalloc((size_t)n_bytes + 1);
	return memcpy(copy, p, (size_t)n_bytes);
}

static uint64_t hash_of(const void *p, int64_t n_bytes)
{
	return p ? hash_bytes(p, (size_t)n_bytes, 0) : 0;
}

/* ---- sums over ranks ------------------------------------------------------------- */

static int64_t vector_size(const struct sum_plan *p)
{
	int64_t n = 0;
	for (int k = 0; k < p->n_shards; k++)
		for (int i = 0; i < p->shard[k].n_runs; i++)
			n = max64(n, p->shard[k].run[i].pos + p->shard[k].run[i].len);
	return n;
}

/* Where element i of a packed shard is in the vector. */
static int64_t in_vector(const struct sum_shard *x, int64_t i)
{
	for (int k = 0; k < x->n_runs; k++) {
		if (i < x->run[k].len)
			return x->run[k].pos + i;
		i -= x->run[k].len;
	}
	return -1;
}

static enum sum_form form_of(const struct sum_call *c, int rank)
{
	return !c->own ? SUM_NONE : c->form ? c->form[rank] : SUM_INT64;
}

static int64_t own_bytes(const struct sum_call *c)
{
	return 4 * (int)form_of(c, c->plan->c->rank) * vector_size(c->plan);
}

static int64_t piece_of(const struct sum_call *c, int64_t *first)
{
	return sum_piece(c->plan, c->plan->c->rank, first);
}

static int64_t shard_of(const struct sum_call *c)
{
	return c->plan->shard[c->plan->wants[c->plan->c->rank]].n;
}

/* What all ranks of a group must agree on. */
static void describe(const struct sum_call *c, const struct bucket *b, char out[160])
{
	const struct sum_plan *p = c->plan;
	uint64_t forms = 0;
	for (int r = 0; r < p->c->size; r++)
		forms = hash_mix(forms + (uint64_t)form_of(c, r));
	snprintf(out, 160,
		"%s.%d n %lld shards %d levels %d kept %d add %d result %d forms %llx at %lld %lld",
		b->entry->t->name, b->entry->slice, (long long)vector_size(p),
		p->n_shards, p->levels, c->kept != NULL, c->add, c->result != NULL,
		(unsigned long long)forms % 65536,
		p->shared ? (long long)p->leaf_at : 0LL,
		p->shared ? (long long)p->sum_at : 0LL);
}

/* The next sum of the group. */
static struct exchange *join(const struct sum_call *c, const struct sum_group *g)
{
	struct comm *comm = c->plan->c;
	uint64_t key[] = {hash_str(comm->name), (uint64_t)now->worker, ++comm->n_sums,
		hash_bytes(g->ranks, (size_t)comm->size * sizeof(int), 0)};
	uint64_t k = hash_bytes(key, sizeof(key), 0);
	for (int i = n_exchanges - 1; i >= 0; i--)
		if (exchanges[i]->key == k)
			return exchanges[i];
	struct exchange *x = xcalloc(1, sizeof(*x));
	x->key = k;
	x->size = comm->size;
	x->member = xcalloc((size_t)x->size, sizeof(*x->member));
	exchanges = xgrow(exchanges, n_exchanges, sizeof(*exchanges));
	exchanges[n_exchanges++] = x;
	return x;
}

/* The bucket of a plan. */
static const struct bucket *bucket_of_plan(const struct sum_plan *p)
{
	const struct store_impl *o = now->s->impl;
	for (const struct bucket *b = o->bucket; b < o->bucket + o->n_trained; b++)
		if (p == &b->all.plan || p == &b->sums.within.plan ||
			p == &b->sums.across.plan)
			return b;
	return NULL;
}

/* May a sum use its memory so? See sum.h. */
static void check_places(const struct sum_call *c)
{
	int64_t first, piece = piece_of(c, &first), own = own_bytes(c);
	bool leaf = form_of(c, c->plan->c->rank) != SUM_INT64;
	const struct sum_plan *p = c->plan;
	bool in_place =
		p->n_shards == 1 && !leaf && c->kept == (const int64_t *)c->own + first;
	if (overlap(c->result, 4 * shard_of(c), c->own, own) &&
		!(leaf && (void *)c->result == c->own))
		wrong("a result is written over what is added");
	if (overlap(c->kept, 8 * piece, c->own, own) && !in_place)
		wrong("a sum is kept where it is read");
	if (overlap(c->result, 4 * shard_of(c), c->kept, 8 * piece))
		wrong("a result is written over the sum that is kept");
	if (p->shared) {
		float *base = (float *)(void *)p->shared->data[p->c->rank];
		if ((c->own && own && c->own != base + (leaf ? p->leaf_at : p->sum_at)) ||
			(c->result && c->result != base + p->leaf_at))
			wrong("memory is not where other ranks of the host read it");
	}
}

static void check_untouched(const struct member *m)
{
	int64_t first, piece = piece_of(&m->call, &first);
	if (m->own_hash != hash_of(m->call.own, own_bytes(&m->call)))
		wrong("what a sum reads has changed");
	if (m->kept_hash != hash_of(m->call.kept, 8 * piece))
		wrong("the memory of a sum that is kept has changed");
	if (m->result_hash != hash_of(m->call.result, 4 * shard_of(&m->call)))
		wrong("the memory of a result has changed");
}

struct sum *__wrap_sum_begin(const struct sum_call *c);
void __wrap_sum_end(struct sum *s);

struct sum *__wrap_sum_begin(const struct sum_call *c)
{
	const struct bucket *b = bucket_of_plan(c->plan);
	const struct sum_plan *p = c->plan;
	const struct sum_group *g = p == &b->all.plan		? &b->all
				    : p == &b->sums.within.plan ? &b->sums.within
								: &b->sums.across;
	struct sum *s = xcalloc(1, sizeof(*s));
	struct exchange *x = join(c, g);
	*s = (struct sum){x, p->c->rank};
	struct member *m = &x->member[s->me];
	char what[160];
	int64_t first, piece = piece_of(c, &first), n = vector_size(p);
	enum sum_form form = form_of(c, s->me);
	describe(c, b, what);
	if (x->begun++ == 0)
		memcpy(x->what, what, sizeof(what));
	if (strcmp(x->what, what)) {
		struct str both = {0};
		str_printf(&both, "it begins the sum %s, another rank of %s %s", what,
			p->c->name, x->what);
		wrong(both.s);
		str_free(&both);
	}
	*m = (struct member){.p = now, .call = *c, .after = c->after};
	check_places(c);
	m->own = xcalloc((size_t)n + 1, sizeof(*m->own));
	if (c->after) {
		const struct sum_call *before = &c->after->x->member[c->after->me].call;
		if (before->kept != c->own || form != SUM_INT64)
			wrong("a chained sum reads something else than the sum before wrote");
	}
	for (int64_t i = 0; i < n && form && !c->after; i++)
		m->own[i] = form == SUM_LEAF ? widen(((uint32_t *)c->own)[i])
					     : ((uint64_t *)c->own)[i];
	if (form == SUM_LEAF && !p->levels) /* as it is */
		for (int64_t i = 0; i < n; i++)
			m->own[i] = ((uint32_t *)c->own)[i];
	m->kept = c->kept ? copy_of(c->kept, 8 * piece) : NULL;
	m->result = c->result ? copy_of(c->result, 4 * shard_of(c)) : NULL;
	struct member *before = c->after ? &c->after->x->member[c->after->me] : NULL;
	if (before)
		check_untouched(before);
	spoil(c->kept, 8 * piece);
	spoil(c->result, 4 * shard_of(c));
	if (before) /* it begins after that one: it may write what that one reads */
		before->own_hash = hash_of(before->call.own, own_bytes(&before->call));
	m->own_hash = hash_of(c->own, own_bytes(c));
	m->kept_hash = hash_of(c->kept, 8 * piece);
	m->result_hash = hash_of(c->result, 4 * shard_of(c));
	progress++;
	return s;
}

/* The sum of this owner's piece. */
static void add_piece(struct exchange *x, struct member *m, int owner)
{
	const struct sum_plan *p = m->call.plan;
	int64_t first, n = sum_piece(p, owner, &first);
	bool ready = !m->call.own && !m->call.kept;
	for (int64_t i = 0; i < n && !ready; i++) {
		int64_t at = in_vector(&p->shard[p->wants[owner]], first + i);
		uint64_t v = m->call.add ? m->kept[i] : 0;
		for (int r = 0; r < x->size; r++)
			v += form_of(&m->call, r) ? x->member[r].own[at] : 0;
		if (m->kept)
			m->kept[i] = v;
		if (m->result)
			m->result[first + i] = p->levels ? rounded(v) : (uint32_t)v;
		if (m->result && p->levels && m->call.check.result.u) {
			sum_locate(p, p->wants[owner], first + i, &at);
			fake_checksum(&m->call.check.result, &v, 1, at);
		}
	}
	m->p->rounded += m->result && !ready && p->levels ? n : 0;
}

/* Adds, when all ranks have begun. */
static bool is_complete(struct exchange *x)
{
	if (x->complete || x->begun < x->size)
		return x->complete;
	for (int r = 0; r < x->size; r++)
		if (x->member[r].after && !is_complete(x->member[r].after->x))
			return false;
	for (int r = 0; r < x->size; r++) {
		struct member *m = &x->member[r];
		int64_t first, n = piece_of(&m->call, &first);
		if (!m->after)
			continue;
		struct member *before = &m->after->x->member[m->after->me];
		n = piece_of(&before->call, &first);
		if (n > vector_size(m->call.plan))
			n = vector_size(m->call.plan);
		if (before->kept)
			memcpy(m->own, before->kept, (size_t)n * sizeof(*m->own));
	}
	for (int r = 0; r < x->size; r++)
		add_piece(x, &x->member[r], r);
	for (int r = 0; r < x->size; r++) { /* to those that receive it */
		struct member *m = &x->member[r];
		for (int k = 0; k < x->size && m->result; k++) {
			int64_t first, n = sum_piece(m->call.plan, k, &first);
			if (k != r && m->call.plan->wants[k] == m->call.plan->wants[r] &&
				x->member[k].result)
				memcpy(m->result + first, x->member[k].result + first,
					(size_t)n * sizeof(*m->result));
		}
	}
	progress++;
	return x->complete = true;
}

/* The memory of the sums has what they give, first that of the sum before. */
static void write_back(struct sum *s)
{
	struct member *m = &s->x->member[s->me];
	const struct sum_plan *p = m->call.plan;
	int64_t first, piece = piece_of(&m->call, &first);
	if (m->after)
		write_back(m->after);
	bool int64 = m->call.own && form_of(&m->call, s->me) == SUM_INT64;
	if (int64 && p->n_shards == 1 && piece) /* it may be overwritten, see sum.h */
		spoil((int64_t *)m->call.own + p->shard->run[0].pos + first, 8 * piece);
	if (m->kept)
		memcpy(m->call.kept, m->kept, (size_t)piece * 8);
	if (m->result)
		memcpy(m->call.result, m->result, (size_t)shard_of(&m->call) * 4);
	free(s);
}

void __wrap_sum_end(struct sum *s)
{
	while (!is_complete(s->x))
		yield();
	for (struct sum *x = s; x; x = x->x->member[x->me].after)
		check_untouched(&x->x->member[x->me]);
	write_back(s);
}

void __real_reduce_end(struct bucket *b);
void __wrap_reduce_end(struct bucket *b);

/* grads.c calls it. */
void __wrap_reduce_end(struct bucket *b)
{
	if (!checked->hurries)
		__real_reduce_end(b);
}

/* ---- messages and files ---------------------------------------------------------- */

static void post(struct fake_mailbox *b, const void *v, int64_t n)
{
	b->mail = xgrow(b->mail, b->n, sizeof(*b->mail));
	b->mail[b->n++] = (struct mail){copy_of(v, 8 * n), n};
	progress++;
}

/* Waits for letter `number` of a box. */
static const struct mail *letter(const struct fake_rank *p, size_t box, int number)
{
	const struct fake_mailbox *b = (const void *)((const char *)p + box);
	while (b->n <= number)
		yield();
	return &b->mail[number];
}

static struct fake_rank *peer_at(int worker, int rank)
{
	int ranks = mesh_ranks(checked->l.degree);
	return &peers[worker * ranks + rank];
}

void __wrap_comm_send(
	struct comm_requests *r, const void *p, int64_t n_bytes, int peer, int tag);
void __wrap_comm_recv(
	struct comm_requests *r, void *p, int64_t n_bytes, int peer, int tag);

/* Only the stages of a tied weight send messages. */
void __wrap_comm_send(
	struct comm_requests *r, const void *p, int64_t n_bytes, int peer, int tag)
{
	(void)r, (void)peer, (void)tag;
	post(&now->swap, p, n_bytes / 8);
}

void __wrap_comm_recv(
	struct comm_requests *r, void *p, int64_t n_bytes, int peer, int tag)
{
	int at[N_AXES], n = checked->l.degree[AXIS_PP];
	(void)r, (void)peer, (void)tag;
	mesh_coordinates(checked->l.degree, now->rank, at);
	at[AXIS_PP] = n - 1 - at[AXIS_PP];
	const struct mail *m =
		letter(peer_at(now->worker, mesh_rank(checked->l.degree, at)),
			offsetof(struct fake_rank, swap), now->swap.taken++);
	if (m->n != n_bytes / 8)
		wrong("the stages of a tied weight keep sums of different lengths");
	memcpy(p, m->v, (size_t)min64(8 * m->n, n_bytes));
}

void add_workers(void *with, int64_t *sum, int64_t n)
{
	struct fake_rank *p = with;
	int number = p->sums.n;
	post(&p->sums, sum, n);
	for (int w = 0; w < checked->workers; w++) {
		const struct mail *m = letter(
			peer_at(w, p->rank), offsetof(struct fake_rank, sums), number);
		if (m->n != n)
			wrong("workers keep sums of different lengths");
		for (int64_t i = 0; i < n && i < m->n && w != p->worker; i++)
			sum[i] = (int64_t)((uint64_t)sum[i] + m->v[i]);
	}
}

static void execute(struct store_file *f, uint64_t ticket, bool write)
{
	for (uint64_t t = 1; t <= ticket; t++) {
		struct request *q = &f->request[t];
		if (q->done || q->write != write)
			continue;
		memcpy(write ? f->bytes + q->at : q->memory, write ? q->memory : q->read,
			(size_t)q->n);
		q->done = true;
		free(q->read);
	}
}

uint64_t file_enqueue(struct offload_backend *x, bool write, void *memory,
	int64_t n_bytes, int64_t at, uint64_t after)
{
	struct store_file *f = (struct store_file *)x;
	BUG_ON(++f->n == MAX_TICKETS);
	if (after)
		execute(f, after, f->request[after].write);
	f->request[f->n] = (struct request){write, false, memory,
		write ? NULL : copy_of(f->bytes + at, n_bytes), n_bytes, at};
	if (!write)
		spoil(memory, n_bytes);
	return f->n;
}

void file_wait(struct offload_backend *x, uint64_t ticket)
{
	struct store_file *f = (struct store_file *)x;
	if (ticket)
		execute(f, ticket, f->request[ticket].write);
}

/* What ranks of a host share, without other ranks. */
struct comm_shared *__wrap_comm_shared_open(
	struct comm *c, int64_t n_bytes, int n_slots, struct err *e);
void __wrap_comm_shared_close(struct comm_shared *m);

struct comm_shared *__wrap_comm_shared_open(
	struct comm *c, int64_t n_bytes, int n_slots, struct err *e)
{
	struct comm_shared *m = xcalloc(1, sizeof(*m));
	(void)n_slots, (void)e;
	m->c = c;
	m->data = xcalloc((size_t)c->size, sizeof(*m->data));
	m->n_bytes = xcalloc((size_t)c->size, sizeof(*m->n_bytes));
	m->data[c->rank] = xcalloc((size_t)n_bytes, 1);
	m->n_bytes[c->rank] = n_bytes;
	return m;
}

void __wrap_comm_shared_close(struct comm_shared *m)
{
	if (!m)
		return;
	free(m->data[m->c->rank]);
	free(m->data);
	free(m->n_bytes);
	free(m);
}

void free_sums(void)
{
	for (int i = 0; i < n_exchanges; i++) {
		for (int r = 0; r < exchanges[i]->size; r++) {
			free(exchanges[i]->member[r].own);
			free(exchanges[i]->member[r].kept);
			free(exchanges[i]->member[r].result);
		}
		free(exchanges[i]->member);
		free(exchanges[i]);
	}
	n_exchanges = 0;
}
