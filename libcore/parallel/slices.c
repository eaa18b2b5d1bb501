/* Tensor and sequence parallelism: sums over virtual slices, and gathers of rows.
 *
 * Each rank sums its slices, for all rows, to nodes of the canonical tree. It sends to each other
 * rank that rank's rows of these nodes, and finishes the tree for its own rows. */
#include "parallel/slices.h"

int64_t slice_piece(const struct slices *s, int64_t rows, int i, int64_t *first)
{
	*first = part_begin(rows, s->n, i);
	return part_begin(rows, s->n, i + 1) - *first;
}

/* Returns the number of rows in the adjacent pieces of a rank's slices; *first is the first row. */
static int64_t rank_rows(const struct slices *s, int64_t rows, int rank, int64_t *first)
{
	*first = part_begin(rows, s->n, rank * s->local);
	return part_begin(rows, s->n, (rank + 1) * s->local) - *first;
}

int64_t slice_rows(const struct slices *s, int64_t rows, int64_t *first)
{
	if (s->sp)
		return rank_rows(s, rows, s->axis->rank, first);
	*first = 0;
	return rows;
}

int slice_turn(const struct slices *s, int i)
{
	return (s->first + i) % s->n;
}

/* ---- messages -------------------------------------------------------------------- */

/* The messages in flight. Set i has the messages to rank + i and from rank - i. */
struct slice_messages {
	struct comm *c;
	struct comm_requests *set; /* [size] */
	bool *unpacked;		   /* [size]: rows received in 16 bits are widened */
};

static void poll_messages(void *arg)
{
	struct slice_messages *m = arg;
	for (int i = 0; i < m->c->size; i++)
		comm_test(&m->set[i]);
}

/* Returns the number of steps from one rank to another, in the order of ranks. */
static int distance(const struct comm *c, int from, int to)
{
	return (to - from + c->size) % c->size;
}

/* Returns a message set per rank of c, polled in the background until messages_end(). */
static struct slice_messages *messages_begin(struct comm *c)
{
	struct slice_messages *m = xcalloc(1, sizeof(*m));
	m->c = c;
	m->set = xcalloc((size_t)c->size, sizeof(*m->set));
	m->unpacked = xcalloc((size_t)c->size, sizeof(*m->unpacked));
	for (int i = 0; i < c->size; i++)
		m->set[i].c = c;
	comm_background_begin(poll_messages, m);
	return m;
}

/* Adds a message to a peer, which start_sends() starts together with others. */
static void add_send(struct slice_messages *m, struct mat x, int peer)
{
	comm_send(&m->set[distance(m->c, m->c->rank, peer)], x.p, mat_bytes(x), peer,
		TAG_SLICES);
}

static void start_sends(struct slice_messages *m, int peer)
{
	comm_start(&m->set[distance(m->c, m->c->rank, peer)]);
}

static void recv_rows(struct slice_messages *m, struct mat x, int peer)
{
	struct comm_requests *set = &m->set[distance(m->c, peer, m->c->rank)];
	comm_recv(set, x.p, mat_bytes(x), peer, TAG_SLICES);
	comm_post(set);
}

/* Waits for all messages, ends the polling and frees the sets. */
static void messages_end(struct slice_messages *m)
{
	for (int i = 0; i < m->c->size; i++) {
		comm_wait(&m->set[i]);
		comm_requests_release(&m->set[i]);
	}
	comm_background_end(poll_messages, m);
	free(m->set);
	free(m->unpacked);
	free(m);
}

/* ---- gathers --------------------------------------------------------------------- */

/* Starts to send this rank's rows of x to the other ranks, and to receive theirs. Returns the
 * messages, for messages_end(). */
static struct slice_messages *gather_rows(const struct slices *s, struct mat x)
{
	struct comm *c = s->axis;
	struct slice_messages *m = messages_begin(c);
	int64_t pos, n;
	for (int i = 1; i < c->size; i++) {
		int from = (c->rank + i) % c->size;
		n = rank_rows(s, x.rows, from, &pos);
		recv_rows(m, mat_rows(x, pos, n), from);
	}
	n = rank_rows(s, x.rows, c->rank, &pos);
	for (int i = 1; i < c->size; i++) {
		int to = (c->rank - i + c->size) % c->size;
		add_send(m, mat_rows(x, pos, n), to);
		start_sends(m, to);
	}
	return m;
}

/* Narrows this rank's rows for sending, if the sent type differs. */
static void pack_own_rows(
	struct slice_gather *g, struct mat own_rows, int64_t first, enum dtype wire)
{
	struct mat all = g->all;
	if (wire == all.type)
		return;
	g->packed = mat_alloc(g->d->scratch, all.rows, all.cols, wire);
	if (own_rows.rows)
		g->d->k->narrow(g->d, mat_rows(g->packed, first, own_rows.rows).p,
			own_rows, wire);
}

/* Widens the rows that were received from another rank, once. */
static void unpack_rows(struct slice_gather *g, int rank)
{
	bool *done = &g->messages->unpacked[rank];
	int64_t pos, n = rank_rows(g->s, g->all.rows, rank, &pos);
	if (g->packed.p && n && !*done)
		g->d->k->widen(g->d, mat_rows(g->all, pos, n),
			mat_rows(g->packed, pos, n).p, g->packed.type);
	*done = true;
}

void slice_gather_begin(struct slice_gather *g, const struct slices *s, struct device *d,
	struct mat local, struct mat buffer, enum dtype wire)
{
	int64_t first, n = slice_rows(s, buffer.rows, &first);
	BUG_ON(local.rows != n || local.cols != buffer.cols);
	*g = (struct slice_gather){.s = s, .d = d, .all = local};
	if (s->axis->size == 1 || !s->sp)
		return;
	struct mat own_rows = mat_rows(buffer, first, n);
	if (own_rows.p != local.p && n)
		d->k->copy(d, own_rows, local);
	g->all = buffer;
	pack_own_rows(g, own_rows, first, wire);
	g->messages = gather_rows(s, g->packed.p ? g->packed : buffer);
	if (!s->async)
		slice_gather_end(g);
}

void slice_gather_wait(struct slice_gather *g, int piece)
{
	int owner = piece / g->s->local;
	if (!g->messages || owner == g->s->axis->rank)
		return;
	struct comm *c = g->messages->c;
	comm_wait_received(&g->messages->set[distance(c, owner, c->rank)]);
	unpack_rows(g, owner);
}

void slice_gather_end(struct slice_gather *g)
{
	if (!g->messages)
		return;
	for (int piece = 0; piece < g->s->n; piece += g->s->local)
		slice_gather_wait(g, piece);
	messages_end(g->messages);
	g->messages = NULL;
}

struct mat slice_gather(
	const struct slices *s, struct device *d, struct mat local, struct mat buffer)
{
	struct slice_gather g;
	slice_gather_begin(&g, s, d, local, buffer, buffer.type);
	slice_gather_end(&g);
	return g.all;
}

/* ---- sums ------------------------------------------------------------------------ */

/* Sets the nodes of the tree that a rank's slices form. Returns their number. */
static int rank_nodes(const struct slices *s, int rank, struct tree_node *nodes)
{
	return tree_nodes(rank * s->local, (rank + 1) * s->local, nodes);
}

/* Allocates the receive buffer for this rank's rows of the other ranks' nodes. */
static float *receive_buffer(struct slice_sum *x)
{
	const struct slices *s = x->s;
	struct tree_node nodes[TREE_MAX_NODES];
	int64_t pos, own_rows = rank_rows(s, x->rows, s->axis->rank, &pos);
	int n = 0;
	for (int rank = 0; rank < s->axis->size; rank++)
		n += rank == s->axis->rank ? 0 : rank_nodes(s, rank, nodes);
	return n ? arena_floats(x->d->scratch, n * own_rows * x->out.cols) : NULL;
}

/* Allocates buffers for rows in 16 bits, if ranks have one slice each (a sum is not rounded). */
static void allocate_packed(struct slice_sum *x, enum dtype wire)
{
	const struct slices *s = x->s;
	struct arena *a = x->d->scratch;
	int64_t pos, own_rows = rank_rows(s, x->rows, s->axis->rank, &pos);
	x->wire = s->local == 1 && s->axis->size > 1 ? wire : x->out.type;
	if (x->wire == x->out.type)
		return;
	x->sent_packed = mat_alloc(a, x->rows, x->out.cols, wire).p;
	x->received_packed =
		mat_alloc(a, (s->axis->size - 1) * own_rows, x->out.cols, wire).p;
}

void slice_sum_begin(struct slice_sum *x, const struct slices *s, struct device *d,
	struct mat out, int64_t rows, enum dtype wire)
{
	*x = (struct slice_sum){.s = s,
		.d = d,
		.out = out,
		.rows = rows,
		.n = rows,
		.piece = -1,
		.next = s->first,
		.mark = arena_mark(d->scratch)};
	BUG_ON(out.type != DT_F32 && s->n > 1); /* only fp32 is added */
	int depth = tree_depth(s->first, s->first + s->local);
	bool whole = out.rows == rows; /* the result can be a buffer */
	for (int i = 0; i < depth; i++)
		x->part[i] = i == 0 && whole ? out.p
					     : arena_floats(d->scratch, rows * out.cols);
	x->received = receive_buffer(x);
	allocate_packed(x, wire);
}

void slice_sum_rows(struct slice_sum *x, int64_t first, int64_t n)
{
	BUG_ON(x->next != x->s->first || x->piece >= 0); /* a sum is in progress */
	x->first = first;
	x->n = n;
}

void slice_sum_turn(struct slice_sum *x, int i)
{
	x->piece = slice_turn(x->s, x->s->local + i);
	x->n = slice_piece(x->s, x->rows, x->piece, &x->first);
}

/* Returns the rows of a buffer that are pushed now. */
static struct mat buffer_rows(const struct slice_sum *x, int i)
{
	struct mat whole = mat_typed(x->part[i], x->rows, x->out.cols, x->out.type);
	return mat_rows(whole, x->first, x->n);
}

struct mat slice_sum_slot(struct slice_sum *x)
{
	return buffer_rows(x, x->n_nodes);
}

static bool is_last_local(const struct slice_sum *x)
{
	return x->next == x->s->first + x->s->local - 1;
}

/* Adds the rows of the slot to the nodes that they complete. Returns the number of nodes. */
static int merge_nodes(const struct slice_sum *x)
{
	int n = x->n_nodes + 1, n_left = n - tree_merges(x->s->first, x->next);
	if (is_last_local(x) && x->s->axis->size == 1)
		n_left = 1;
	for (int top = n - 1; top >= n_left && x->n; top--)
		x->d->k->add(x->d, buffer_rows(x, top - 1), buffer_rows(x, top - 1),
			buffer_rows(x, top));
	return n_left;
}

/* Returns the buffer that receives the rows: packed in 16 bits, or the rows themselves. */
static struct mat received_message(const struct slice_sum *x, struct mat rows)
{
	if (!x->received_packed)
		return rows;
	int64_t pos = (float *)rows.p - x->received;
	return mat_typed(x->received_packed + pos, rows.rows, rows.cols, x->wire);
}

/* Returns the rows as they are sent: packed in 16 bits, or the rows themselves. */
static struct mat pack_rows(struct slice_sum *x, struct mat rows, int64_t first)
{
	if (!x->sent_packed || !rows.rows)
		return rows;
	struct mat packed = mat_typed(
		x->sent_packed + first * rows.cols, rows.rows, rows.cols, x->wire);
	x->d->k->narrow(x->d, packed.p, rows, x->wire);
	return packed;
}

/* Posts the receives of this rank's rows of the other ranks' nodes. */
static void begin_exchange(struct slice_sum *x)
{
	const struct slices *s = x->s;
	struct comm *c = s->axis;
	struct tree_node nodes[TREE_MAX_NODES];
	int64_t pos, own_rows = rank_rows(s, x->rows, c->rank, &pos);
	x->messages = messages_begin(c);
	x->known = xcalloc((size_t)s->n, sizeof(*x->known));
	float *next = x->received;
	for (int from = 0; from < c->size; from++) {
		int n = rank_nodes(s, from, nodes);
		for (int k = 0; k < n; k++) {
			struct mat rows = mat(next, own_rows, x->out.cols);
			if (from == c->rank) {
				rows = mat(x->part[k], x->rows, x->out.cols);
				rows = mat_rows(rows, pos, own_rows);
			} else {
				recv_rows(x->messages, received_message(x, rows), from);
				next += own_rows * x->out.cols;
			}
			x->known[x->n_known++] = (struct tree_part){nodes[k], rows};
		}
	}
}

/* Sends rank `to` its rows of this rank's nodes. */
static void send_rows(struct slice_sum *x, int to)
{
	struct tree_node nodes[TREE_MAX_NODES];
	int own = rank_nodes(x->s, x->s->axis->rank, nodes);
	int64_t first_row, rows = rank_rows(x->s, x->rows, to, &first_row);
	if (!x->messages)
		begin_exchange(x);
	for (int k = 0; k < own; k++) {
		struct mat whole = mat(x->part[k], x->rows, x->out.cols);
		struct mat part = mat_rows(whole, first_row, rows);
		add_send(x->messages, pack_rows(x, part, first_row), to);
	}
	start_sends(x->messages, to);
}

static void send_all_rows(struct slice_sum *x)
{
	const struct comm *c = x->s->axis;
	for (int i = 1; i < c->size; i++)
		send_rows(x, (c->rank + i) % c->size);
}

/* Sends a rank its rows (with async) once the last local slice has completed its last piece. */
static void send_piece(struct slice_sum *x)
{
	const struct slices *s = x->s;
	int to = x->piece / s->local;
	if (s->async && to != s->axis->rank && (x->piece + 1) % s->local == 0)
		send_rows(x, to);
}

void slice_sum_push(struct slice_sum *x)
{
	const struct slices *s = x->s;
	int n_nodes = merge_nodes(x);
	if (x->piece >= 0) {
		if (is_last_local(x))
			send_piece(x);
		if (x->piece != slice_turn(s, s->local - 1))
			return; /* more pieces of this slice follow */
		x->piece = -1;
		x->first = 0;
		x->n = x->rows;
	}
	x->n_nodes = n_nodes;
	if (++x->next < s->first + s->local)
		return;
	x->n_nodes = 0;
	x->next = s->first;
}

void slice_sum_send(struct slice_sum *x)
{
	BUG_ON(x->next != x->s->first || x->messages);
	if (x->s->axis->size > 1 && x->s->async)
		send_all_rows(x);
}

/* Computes this rank's rows of the sum, into `to`. */
static void sum_rows(struct slice_sum *x, struct mat to)
{
	struct tree_node root = {tree_levels(x->s->n), 0};
	int pos = 0, n_received = x->n_known - 1;
	messages_end(x->messages);
	if (x->received_packed && to.rows)
		x->d->k->widen(x->d, mat(x->received, n_received * to.rows, to.cols),
			x->received_packed, x->wire);
	struct mat sum = tree_add(x->d, x->known, x->n_known, &pos, root, to);
	BUG_ON(pos != x->n_known);
	if (sum.p != to.p)
		x->d->k->copy(x->d, to, sum);
	free(x->known);
	x->messages = NULL;
}

void slice_sum_end(struct slice_sum *x)
{
	const struct slices *s = x->s;
	BUG_ON(x->next != s->first || x->piece >= 0);
	if (s->axis->size > 1) {
		int64_t first = 0, n = rank_rows(s, x->rows, s->axis->rank, &first);
		BUG_ON(x->out.rows != (s->sp ? n : x->rows));
		if (!x->messages)
			send_all_rows(x);
		sum_rows(x, s->sp ? x->out : mat_rows(x->out, first, n));
		if (!s->sp)
			messages_end(gather_rows(s, x->out));
	}
	arena_reset(x->d->scratch, x->mark);
}
