/*
 * NCCL between the processes of this host, on the emulated GPU: the functions that are used, as late,
 * asynchronous and unforgiving as the real ones may be. PT_NCCL names this library.
 *
 * A group of operations is one operation of its stream, which is complete when all its messages have
 * been exchanged, and those behind it wait. Messages go through shared memory, a chunk at a time, with
 * a header that says what they belong to; a rank that expects another message ends the program with
 * both texts, where NCCL would wait for ever or give wrong results. It also ends the program if
 * - the program waits for the GPU while a group is open,
 * - an operation is called before its communicator is ready, or two streams use one in a group,
 * - a communicator is destroyed before its operations are complete,
 * - a communicator is finalized that a CUDA graph has operations of, which NCCL waits for.
 * With blocking=0, a group is enqueued late; a program that does not ask for asynchronous errors until it
 * is no longer in progress records its events too early.
 * Reductions begin with another rank for each thousand elements: no sum of floats has the bits of
 * another layout by accident. A rank that dies or does not come is waited for.
 *
 * PT_EMU_NCCL_ERROR=N: operation N fails asynchronously, and is never complete.
 * PT_EMU_NCCL_FLIP=N[+]: reduction N of more than 1000 numbers has a wrong bit; with +, all later ones too.
 */
#include "tests/emu/nccl_inside.h"
#include "kernels/dtype_bits.h"

static const size_t type_bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

/* ---- groups --------------------------------------------------------------------------- */

static int depth;
static struct {
	struct nccl_comm *c;
	void *stream;
	struct operation *o;
} open_group[MOST_RANKS];
static int n_open;

void emu_nccl_check(void)
{
	if (depth)
		emu_stop("NCCL: the program waits for the GPU while a group is open");
}

static long n_operations;

/* The operation of the open group on this communicator. */
static struct operation *operation_of(struct nccl_comm *c, void *stream)
{
	if (!c || !c->ready || c->child)
		emu_stop("NCCL: a communicator is used that is not ready");
	if (c->error)
		return NULL;
	const char *fail = getenv("PT_EMU_NCCL_ERROR");
	bool fails = ++n_operations == (fail ? atol(fail) : 0);
	int i = 0;
	while (i < n_open && open_group[i].c != c)
		i++;
	if (i == MOST_RANKS)
		emu_stop("NCCL: too many communicators in a group");
	if (i == n_open) {
		struct operation *o = (struct operation *)calloc(1, sizeof(*o));
		o->c = c;
		open_group[n_open++] = {c, stream, o};
	}
	if (open_group[i].stream != stream)
		emu_stop("NCCL: two streams use one communicator in a group");
	open_group[i].o->fails |= fails;
	return open_group[i].o;
}

static void add_message(struct operation *o, bool sends, const void *at, uint64_t n_bytes,
	int peer, const struct header *h)
{
	if (peer < 0 || peer >= o->c->n || peer == o->c->rank)
		emu_stop("NCCL: %s with rank %d of %d", h->what, peer, o->c->n);
	if (o->n_messages == o->room) {
		o->room = 2 * o->room + 4;
		o->message = (struct message *)realloc(
			o->message, (size_t)o->room * sizeof(*o->message));
	}
	struct message *m = &o->message[o->n_messages++];
	memset(m, 0, sizeof(*m));
	m->sends = sends;
	m->peer = peer;
	m->at = (char *)at;
	m->header = *h;
	m->header.n_bytes = n_bytes;
}

/* ---- in the stream --------------------------------------------------------------------- */

template <typename T> static T reduce_two(T a, T b, int op)
{
	switch (op) {
	case NCCL_SUM:
		return (T)(a + b);
	case NCCL_PROD:
		return (T)(a * b);
	case NCCL_MAX:
		return a > b ? a : b;
	default:
		return a < b ? a : b;
	}
}

template <typename T> static void reduce_all(const struct nccl_reduction *r)
{
	enum { OWNED = 1000 };
	int n = r->c->n;
	for (size_t i = 0; i < r->n; i++) {
		T sum = 0;
		for (int k = 0; k < n; k++) {
			int rank = (int)((i / OWNED + (size_t)k + 1) % (size_t)n);
			const T *from =
				(const T *)(rank == r->c->rank
						    ? r->own
						    : r->others + (size_t)rank * r->n *
									  sizeof(T));
			sum = k ? reduce_two(sum, from[i], r->op) : from[i];
		}
		((T *)r->to)[i] = sum;
	}
}

/* A number of 16 or 8 bits: results are rounded to it. */
template <typename bits_t, dtype TYPE> struct number {
	bits_t bits;
	number(float x) : bits((bits_t)narrow_bits(x, TYPE))
	{
	}
	operator float() const
	{
		return widen_bits(bits, TYPE);
	}
};

static void reduce_now(const struct nccl_reduction *r)
{
	switch (r->type) {
	case NCCL_I8:
		return reduce_all<int8_t>(r);
	case NCCL_U8:
		return reduce_all<uint8_t>(r);
	case NCCL_I32:
		return reduce_all<int32_t>(r);
	case NCCL_U32:
		return reduce_all<uint32_t>(r);
	case NCCL_I64:
		return reduce_all<int64_t>(r);
	case NCCL_U64:
		return reduce_all<uint64_t>(r);
	case NCCL_F32:
		return reduce_all<float>(r);
	case NCCL_F64:
		return reduce_all<double>(r);
	case NCCL_F16:
		return reduce_all<number<uint16_t, DT_F16>>(r);
	case NCCL_BF16:
		return reduce_all<number<uint16_t, DT_BF16>>(r);
	case NCCL_E4M3:
		return reduce_all<number<uint8_t, DT_E4M3>>(r);
	case NCCL_E5M2:
		return reduce_all<number<uint8_t, DT_E5M2>>(r);
	default:
		emu_stop("NCCL: a reduction of type %d", r->type);
	}
}

/* Flips a bit of a result, if PT_EMU_NCCL_FLIP counts to this reduction. */
static void flip_result(const struct nccl_reduction *r)
{
	enum { FEWEST = 1000 };
	static long n_large;
	const char *number = getenv("PT_EMU_NCCL_FLIP");
	if (!number || r->n <= FEWEST)
		return;
	long first = atol(number);
	if (++n_large == first || (n_large > first && strchr(number, '+')))
		((unsigned char *)r->to)[type_bytes[r->type] / 2] ^= 16;
}

static void check_header(
	const struct nccl_comm *c, const struct message *m, const struct header *h)
{
	if (!memcmp(&m->header, h, sizeof(*h)))
		return;
	emu_stop(
		"NCCL: rank %d of %s: %s number %llu (%llu bytes, type %d, operation %d, root "
		"%d) meets rank %d's %s number %llu (%llu bytes, type %d, operation %d, root "
		"%d)",
		c->rank, c->name, m->header.what, (unsigned long long)m->header.seq,
		(unsigned long long)m->header.n_bytes, m->header.type, m->header.op,
		m->header.root, m->peer, h->what, (unsigned long long)h->seq,
		(unsigned long long)h->n_bytes, h->type, h->op, h->root);
}

/* Moves a chunk, if the other side has done its part. */
static void move_chunk(struct nccl_comm *c, struct message *m)
{
	struct mailbox *b = m->sends ? &c->shared->box[c->rank][m->peer]
				     : &c->shared->box[m->peer][c->rank];
	bool full = b->put.load() != b->taken.load();
	if (full == m->sends)
		return;
	uint64_t left = m->header.n_bytes - m->moved;
	size_t n = (size_t)(left < CHUNK ? left : (uint64_t)CHUNK);
	if (!m->moved && m->sends)
		b->header = m->header;
	else if (!m->moved)
		check_header(c, m, &b->header);
	emu_memory(true);
	if (m->sends)
		memcpy(b->data, m->at + m->moved, n);
	else
		memcpy(m->at + m->moved, b->data, n);
	emu_memory(false);
	(m->sends ? b->put : b->taken).fetch_add(1);
	m->moved += n;
	m->done = m->moved == m->header.n_bytes;
}

/* The first message in each direction of each pair that is not complete. */
static bool move_messages(struct operation *o)
{
	bool busy[2][MOST_RANKS] = {};
	bool all = true;
	for (int i = 0; i < o->n_messages; i++) {
		struct message *m = &o->message[i];
		bool *before = &busy[m->sends][m->peer];
		if (!m->done && !*before)
			move_chunk(o->c, m);
		*before |= !m->done;
		all &= m->done;
	}
	return all;
}

/* An operation of a stream. A graph launches it again and again: its messages are then new. */
struct enqueued {
	struct operation *o;
};

static bool exchange(void *arg)
{
	const struct enqueued *q = (const struct enqueued *)arg;
	struct operation *o = q->o;
	struct nccl_comm *c = o->c;
	if (o->fails && !c->error) {
		c->error = NCCL_REMOTE_ERROR;
		snprintf(c->error_text, sizeof(c->error_text), "PT_EMU_NCCL_ERROR");
	}
	if (c->error)
		return false;
	if (c->begun == c->done) {
		c->begun++;
		for (int i = 0; i < o->n_messages; i++) {
			o->message[i].moved = 0;
			o->message[i].done = false;
		}
		o->number = c->begun;
	} else if (o->number != c->begun) {
		return false; /* another stream's is in progress */
	}
	if (!move_messages(o))
		return false;
	emu_memory(true);
	for (int i = 0; i < o->n_reductions; i++)
		if (o->reduction[i].to) {
			reduce_now(&o->reduction[i]);
			flip_result(&o->reduction[i]);
		}
	emu_memory(false);
	c->done++;
	return true;
}

void emu_nccl_in_graph(bool (*poll)(void *), const void *arg, int by)
{
	if (poll == exchange)
		((const struct enqueued *)arg)->o->c->in_graphs += by;
}

/* ---- starting groups -------------------------------------------------------------------- */

void emu_nccl_enqueue(void *stream, struct operation *o)
{
	struct enqueued q = {o};
	emu_ask_others((cudaStream_t)stream, exchange, &q, sizeof(q));
}

int emu_ncclGroupStart(void)
{
	depth++;
	return NCCL_SUCCESS;
}

int emu_ncclGroupEnd(void)
{
	int rc = NCCL_SUCCESS;
	if (!depth)
		return NCCL_INVALID_USAGE;
	if (--depth)
		return rc;
	for (int i = 0; i < n_open; i++) {
		struct nccl_comm *c = open_group[i].c;
		if (c->error) {
			rc = c->error;
			continue;
		}
		if (c->waiting)
			emu_stop("NCCL: a communicator is used before the last group is "
				 "enqueued");
		if (!c->blocking) { /* a thread enqueues it */
			static int turn;
			c->late = turn++ % 4;
			c->waiting = open_group[i].o;
			c->waiting_stream = open_group[i].stream;
			rc = NCCL_IN_PROGRESS;
			continue;
		}
		emu_nccl_enqueue(open_group[i].stream, open_group[i].o);
	}
	n_open = 0;
	return rc;
}

/* ---- operations -------------------------------------------------------------------------- */

static struct header header_of(
	const char *what, struct nccl_comm *c, int type, int op, int root)
{
	struct header h;
	memset(&h, 0, sizeof(h));
	snprintf(h.what, sizeof(h.what), "%s", what);
	h.seq = c ? ++c->collectives : 0;
	h.type = type;
	h.op = op;
	h.root = root;
	return h;
}

void emu_nccl_check_pointer(const char *what, const void *p)
{
	if (!emu_is_device(p))
		emu_stop("NCCL: %s: %p is no memory of the GPU", what, p);
}

int emu_ncclSend(
	const void *p, size_t n, int type, int peer, struct nccl_comm *c, void *stream)
{
	emu_ncclGroupStart();
	struct operation *o = operation_of(c, stream);
	struct header h = header_of("message", NULL, type, 0, 0);
	if (o && n) {
		emu_nccl_check_pointer("send", p);
		add_message(o, true, p, n * type_bytes[type], peer, &h);
	}
	return emu_ncclGroupEnd();
}

int emu_ncclRecv(void *p, size_t n, int type, int peer, struct nccl_comm *c, void *stream)
{
	emu_ncclGroupStart();
	struct operation *o = operation_of(c, stream);
	struct header h = header_of("message", NULL, type, 0, 0);
	if (o && n) {
		emu_nccl_check_pointer("receive", p);
		add_message(o, false, p, n * type_bytes[type], peer, &h);
	}
	return emu_ncclGroupEnd();
}

/* This rank's `own` (n elements) and those of all others are reduced to `to`; NULL: it gets nothing. It
 * sends `mine(rank)` to each rank that gets something. */
static void add_reduction(struct operation *o, struct nccl_comm *c, const char *own,
	char *to, size_t n, int type, int op, const struct header *h)
{
	o->reduction = (struct nccl_reduction *)realloc(
		o->reduction, (size_t)(o->n_reductions + 1) * sizeof(*o->reduction));
	struct nccl_reduction *r = &o->reduction[o->n_reductions++];
	size_t n_bytes = n * type_bytes[type];
	*r = {c, to, own, NULL, n, type, op};
	if (!to)
		return;
	r->others = (char *)malloc((size_t)c->n * n_bytes + 1);
	for (int k = 0; k < c->n && n; k++)
		if (k != c->rank)
			add_message(
				o, false, r->others + (size_t)k * n_bytes, n_bytes, k, h);
}

static void send_all(struct operation *o, struct nccl_comm *c, const char *from,
	size_t n_bytes, size_t step, const struct header *h)
{
	for (int k = 0; k < c->n && n_bytes; k++)
		if (k != c->rank)
			add_message(o, true, from + (size_t)k * step, n_bytes, k, h);
}

static void move_own(void *to, const void *from, size_t n, void *stream)
{
	if (to != from && n)
		cudaMemcpyAsync(
			to, from, n, cudaMemcpyDeviceToDevice, (cudaStream_t)stream);
}

int emu_ncclAllReduce(const void *send, void *recv, size_t n, int type, int op,
	struct nccl_comm *c, void *stream)
{
	emu_ncclGroupStart();
	struct operation *o = operation_of(c, stream);
	struct header h = header_of("all-reduce", c, type, op, 0);
	emu_nccl_check_pointer(h.what, send);
	emu_nccl_check_pointer(h.what, recv);
	if (o) {
		send_all(o, c, (const char *)send, n * type_bytes[type], 0, &h);
		add_reduction(o, c, (const char *)send, (char *)recv, n, type, op, &h);
	}
	return emu_ncclGroupEnd();
}

int emu_ncclReduce(const void *send, void *recv, size_t n, int type, int op, int root,
	struct nccl_comm *c, void *stream)
{
	emu_ncclGroupStart();
	struct operation *o = operation_of(c, stream);
	struct header h = header_of("reduce", c, type, op, root);
	emu_nccl_check_pointer(h.what, send);
	if (o && c->rank == root)
		add_reduction(o, c, (const char *)send, (char *)recv, n, type, op, &h);
	else if (o && n)
		add_message(o, true, send, n * type_bytes[type], root, &h);
	return emu_ncclGroupEnd();
}

int emu_ncclReduceScatter(const void *send, void *recv, size_t n, int type, int op,
	struct nccl_comm *c, void *stream)
{
	emu_ncclGroupStart();
	struct operation *o = operation_of(c, stream);
	struct header h = header_of("reduce-scatter", c, type, op, 0);
	size_t n_bytes = n * type_bytes[type];
	emu_nccl_check_pointer(h.what, send);
	emu_nccl_check_pointer(h.what, recv);
	if (o) {
		const char *own = (const char *)send + (size_t)c->rank * n_bytes;
		send_all(o, c, (const char *)send, n_bytes, n_bytes, &h);
		add_reduction(o, c, own, (char *)recv, n, type, op, &h);
	}
	return emu_ncclGroupEnd();
}

int emu_ncclAllGather(const void *send, void *recv, size_t n, int type,
	struct nccl_comm *c, void *stream)
{
	struct header h = header_of("all-gather", c, type, 0, 0);
	size_t place = (size_t)((char *)recv - c->window);
	h.place = c->window && place < c->window_bytes ? place + 1 : 0;
	size_t n_bytes = n * type_bytes[type];
	emu_nccl_check_pointer(h.what, send);
	emu_nccl_check_pointer(h.what, recv);
	move_own((char *)recv + (size_t)c->rank * n_bytes, send, n_bytes, stream);
	emu_ncclGroupStart();
	struct operation *o = operation_of(c, stream);
	for (int k = 0; o && k < c->n && n; k++)
		if (k != c->rank) {
			add_message(o, true, send, n_bytes, k, &h);
			add_message(o, false, (char *)recv + (size_t)k * n_bytes, n_bytes,
				k, &h);
		}
	return emu_ncclGroupEnd();
}

int emu_ncclBroadcast(const void *send, void *recv, size_t n, int type, int root,
	struct nccl_comm *c, void *stream)
{
	struct header h = header_of("broadcast", c, type, 0, root);
	size_t n_bytes = n * type_bytes[type];
	emu_nccl_check_pointer(h.what, recv);
	if (c->rank == root)
		move_own(recv, send, n_bytes, stream);
	emu_ncclGroupStart();
	struct operation *o = operation_of(c, stream);
	if (o && c->rank == root)
		send_all(o, c, (const char *)send, n_bytes, 0, &h);
	else if (o && n)
		add_message(o, false, recv, n_bytes, root, &h);
	return emu_ncclGroupEnd();
}
