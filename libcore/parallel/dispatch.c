/* Expert parallelism: rows go to the ranks of their experts and back. A rank sends one message to
 * each other rank: the rows of that rank's experts are adjacent in the sorted order. One pass over
 * memory puts received rows in order.
 *
 * A GPU's kernels read offsets in device memory, and the host needs them for messages. So the host
 * keeps copies, found by the address in device memory: a backward does not wait for them again. */
#include "parallel/dispatch.h"

#include <math.h>

static double planned_imbalance = 1;

void dispatch_plan_imbalance(double times)
{
	planned_imbalance = times;
}

/* Sets offsets[n_groups + 1] of rows that are balanced over groups. */
static void set_balanced(int32_t *offsets, int n_groups, int64_t rows)
{
	for (int i = 0; i <= n_groups; i++)
		offsets[i] = (int32_t)part_begin(rows, n_groups, i);
}

void dispatch_open(struct dispatch *x, const struct dispatch_config *c)
{
	int n_groups = c->experts * c->chunks;
	BUG_ON(c->experts % c->c->size);
	*x = (struct dispatch){.c = c->c,
		.d = c->d,
		.experts = c->experts,
		.chunks = c->chunks,
		.capacity = c->capacity,
		.balanced = c->rows,
		.n_groups = n_groups,
		.requests = {.c = c->c},
		.count_requests = {.c = c->c}};
	x->counts = xcalloc(
		(size_t)(c->c->size + 1) * ((size_t)n_groups + 1), sizeof(*x->counts));
	if (!c->c->planned)
		return;
	set_balanced(x->counts, n_groups, c->rows);
	if (c->c->size > 1)
		set_balanced(x->counts + n_groups + 1, n_groups,
			min64(c->capacity,
				(int64_t)ceil(planned_imbalance * (double)c->rows)));
}

void dispatch_close(struct dispatch *x)
{
	if (!x->c)
		return;
	comm_requests_release(&x->requests);
	comm_requests_release(&x->count_requests);
	for (int i = 0; i < x->n_copies; i++)
		free(x->copies[i].own);
	free(x->copies);
	if (x->own_copy)
		device_shared_free(x->d, x->own_copy);
	free(x->counts);
	*x = (struct dispatch){.c = NULL};
}

static bool is_alone(const struct dispatch *x)
{
	return x->c->size == 1;
}

/* ---- counts ---------------------------------------------------------------------- */

static int32_t *counts_of(const struct dispatch *x, int rank)
{
	return x->counts + (int64_t)rank * x->n_groups;
}

static int64_t offsets_bytes(const struct dispatch *x)
{
	return (x->n_groups + 1) * (int64_t)sizeof(*x->counts);
}

/* Returns true if the host cannot read device memory, and needs copies of offsets. */
static bool needs_copies(const struct dispatch *x)
{
	return x->d->discrete && !x->c->planned && !is_alone(x);
}

/* Returns the host copies of the offsets at `here`; allocates them at the first call. */
static struct dispatch_copy *find_copy(struct dispatch *x, const int32_t *here)
{
	size_t n = (size_t)x->n_groups + 1 + (size_t)dispatch_ints(x);
	for (int i = 0; i < x->n_copies; i++)
		if (x->copies[i].key == here)
			return &x->copies[i];
	x->copies = xgrow(x->copies, x->n_copies, sizeof(*x->copies));
	int32_t *own = xcalloc(n, sizeof(*own));
	x->copies[x->n_copies] = (struct dispatch_copy){here, own, own + x->n_groups + 1};
	return &x->copies[x->n_copies++];
}

/* Uses offsets in device memory, or their host copies; in a plan, balanced offsets. */
static void set_offsets(struct dispatch *x, const int32_t *own, int32_t *here)
{
	bool planned = x->c->planned;
	x->own = planned ? x->counts : own;
	x->here = is_alone(x) ? x->own : planned ? x->counts + x->n_groups + 1 : here;
	x->table = x->device_table = here;
	if (!needs_copies(x) || !here)
		return;
	const struct dispatch_copy *copy = find_copy(x, here);
	x->own = own ? copy->own : NULL;
	x->here = x->table = copy->here;
}

/* Starts to exchange counts. own: offsets in host memory, or NULL. */
static void start_counts(struct dispatch *x, const int32_t *own)
{
	int32_t *counts = counts_of(x, x->c->rank);
	for (int i = 0; i < x->n_groups && !x->c->planned; i++)
		counts[i] = own ? own[i + 1] - own[i] : 0;
	if (is_alone(x))
		return;
	comm_enqueue(&x->count_requests, COLL_ALLGATHER,
		&(struct coll_args){
			.recv = x->counts, .count = x->n_groups, .type = COMM_I32});
	comm_start(&x->count_requests);
}

static void finish_table(struct dispatch *x);

void dispatch_counts_begin(struct dispatch *x, const int32_t *own)
{
	finish_table(x);
	set_offsets(x, own, NULL);
	if (!needs_copies(x) || !own) {
		start_counts(x, own);
		return;
	}
	if (!x->own_copy)
		x->own_copy = device_shared(x->d, (size_t)offsets_bytes(x));
	if (!x->own_copy)
		die(EX_FAILED, "out of pinned memory: --ep needs %lld bytes",
			(long long)offsets_bytes(x));
	x->own_ticket = device_copy_begin(
		x->d, true, x->own_copy, own, (size_t)offsets_bytes(x), 0);
}

/* Returns the rows that a rank sends to the rank of experts [first, first + n). */
static int64_t count_rows(const struct dispatch *x, int source, int first, int n)
{
	const int32_t *counts = counts_of(x, source);
	int64_t rows = 0;
	for (int i = first * x->chunks; i < (first + n) * x->chunks; i++)
		rows += counts[i];
	return rows;
}

/* Completes the exchange of counts; on a GPU also starts it, once the own offsets have arrived. */
static void wait_for_counts(struct dispatch *x)
{
	if (x->own_ticket) {
		device_host_wait(x->d, x->own_ticket);
		x->own_ticket = 0;
		start_counts(x, x->own_copy);
	}
	if (!is_alone(x))
		comm_wait(&x->count_requests);
}

/* Sets the largest number of rows of a rank, and which ranks have rows. */
static void find_most_rows(struct dispatch *x)
{
	int n = x->experts / x->c->size;
	x->most_rows = 0;
	for (int rank = 0; rank < x->c->size; rank++) {
		int64_t rows = 0;
		x->table[x->n_groups + 1 + rank] = count_rows(x, rank, 0, x->experts) > 0;
		for (int source = 0; source < x->c->size; source++)
			rows += count_rows(x, source, rank * n, n);
		x->most_rows = max64(x->most_rows, rows);
	}
}

void dispatch_counts_end(struct dispatch *x, int32_t *here)
{
	int first, n = dispatch_experts_here(x, &first), group = 0;
	wait_for_counts(x);
	set_offsets(x, x->own, here);
	if (x->c->planned || is_alone(x)) {
		x->most_rows = x->own ? dispatch_rows(x) : 0;
		return;
	}
	if (needs_copies(x) && x->own)
		memcpy((void *)x->own, x->own_copy, (size_t)offsets_bytes(x));
	x->table[0] = 0;
	for (int e = first; e < first + n; e++)
		for (int source = 0; source < x->c->size; source++)
			for (int chunk = 0; chunk < x->chunks; chunk++, group++)
				x->table[group + 1] =
					x->table[group] +
					counts_of(x, source)[e * x->chunks + chunk];
	find_most_rows(x);
	x->needs_order = true;
}

void dispatch_restore(struct dispatch *x, const int32_t *own, int32_t *here)
{
	finish_table(x);
	set_offsets(x, own, here);
}

/* ---- ranges of rows -------------------------------------------------------------- */

/* Consecutive rows. */
struct range {
	int64_t first, n;
};

/* Returns the own sorted rows of a rank's experts. */
static struct range own_rows(const struct dispatch *x, int rank)
{
	int n = x->n_groups / x->c->size;
	if (!x->own)
		return (struct range){0, 0};
	return (struct range){
		x->own[rank * n], x->own[(rank + 1) * n] - x->own[rank * n]};
}

/* Returns the rows here that expert `e` of this rank has from a source. */
static struct range block_rows(const struct dispatch *x, int e, int source)
{
	int group = (e * x->c->size + source) * x->chunks;
	return (struct range){
		x->here[group], x->here[group + x->chunks] - x->here[group]};
}

/* Returns the rows here from a source, in the order of messages. */
static struct range source_rows(const struct dispatch *x, int source)
{
	int first, n = dispatch_experts_here(x, &first);
	struct range r = {0, 0};
	for (int s = 0; s <= source; s++) {
		r.first += r.n;
		r.n = 0;
		for (int e = 0; e < n; e++)
			r.n += block_rows(x, e, s).n;
	}
	return r;
}

static void copy_rows(struct dispatch *x, struct mat to, int64_t to_first,
	struct mat from, int64_t from_first, int64_t n)
{
	if (n)
		x->d->k->copy(
			x->d, mat_rows(to, to_first, n), mat_rows(from, from_first, n));
}

/* Sets the order of the table, unless it is set: the place in [source][expert here][chunk][row] of
 * each row here. Copies the table to the device. */
static void finish_table(struct dispatch *x)
{
	int64_t ints = dispatch_ints(x) - x->capacity, pos = 0;
	int first, n = dispatch_experts_here(x, &first);
	if (!x->needs_order)
		return;
	BUG_ON(dispatch_rows(x) > x->capacity);
	for (int source = 0; source < x->c->size; source++)
		for (int e = 0; e < n; e++) {
			struct range r = block_rows(x, e, source);
			int32_t *order = x->table + ints + r.first;
			for (int64_t i = 0; i < r.n; i++)
				order[i] = (int32_t)pos++;
		}
	if (x->table != x->device_table)
		device_put(x->d, x->device_table, x->table,
			(size_t)(ints + dispatch_rows(x)) * sizeof(*x->table));
	x->needs_order = false;
}

/* Copies rows between the order of messages, [source][expert here], and the order of experts. */
static void reorder_rows(
	struct dispatch *x, struct mat by_source, struct mat by_expert, bool to_experts)
{
	const int32_t *order = x->device_table + dispatch_ints(x) - x->capacity;
	struct mat sorted = mat_rows(by_expert, 0, dispatch_rows(x));
	finish_table(x);
	if (!sorted.rows)
		return;
	if (to_experts)
		x->d->k->rows_take(x->d, sorted, by_source, order, 1);
	else
		x->d->k->rows_put(x->d, by_source, sorted, order);
}

/* ---- moves ----------------------------------------------------------------------- */

/* Adds the messages of a move: `own` is sorted, `other` in the order of messages. */
static void add_messages(
	struct dispatch *x, struct mat own, struct mat other, bool to_experts)
{
	for (int i = 1; i < x->c->size; i++) { /* sends first, see comm_send() */
		int rank = (x->c->rank + i) % x->c->size;
		struct range r = to_experts ? own_rows(x, rank) : source_rows(x, rank);
		struct mat m = mat_rows(to_experts ? own : other, r.first, r.n);
		comm_send(&x->requests, m.p, mat_bytes(m), rank, TAG_DISPATCH);
		x->sent += mat_bytes(m);
	}
	for (int i = 1; i < x->c->size; i++) {
		int rank = (x->c->rank + i) % x->c->size;
		struct range r = to_experts ? source_rows(x, rank) : own_rows(x, rank);
		struct mat m = mat_rows(to_experts ? other : own, r.first, r.n);
		comm_recv(&x->requests, m.p, mat_bytes(m), rank, TAG_DISPATCH);
	}
}

static struct mat begin_move(
	struct dispatch *x, struct mat from, struct mat to, bool back)
{
	struct mat here = back ? from : to, own = back ? to : from;
	if (is_alone(x))
		return from;
	BUG_ON(x->n_moves == DISPATCH_MOVES);
	BUG_ON(from.cols != to.cols || from.type != to.type || from.stride || to.stride);
	BUG_ON(dispatch_rows(x) > x->capacity || here.rows < dispatch_rows(x) ||
		(x->own && own.rows < x->own[x->n_groups]));
	struct mat messages = mat_alloc(x->d->scratch, x->capacity, to.cols, to.type);
	struct range mine = own_rows(x, x->c->rank), same = source_rows(x, x->c->rank);
	if (back) {
		reorder_rows(x, messages, from, false);
		copy_rows(x, to, mine.first, messages, same.first, same.n);
	} else {
		copy_rows(x, messages, same.first, from, mine.first, mine.n);
	}
	add_messages(x, own, messages, !back);
	comm_start(&x->requests);
	finish_table(x); /* while rows are under way */
	if (!comm_overlaps())
		comm_wait(&x->requests);
	x->move[x->n_moves++] = (struct dispatch_move){to, messages, back};
	return to;
}

struct mat rows_to_experts_begin(struct dispatch *x, struct mat from, struct mat to)
{
	return begin_move(x, from, to, false);
}

struct mat rows_back_begin(struct dispatch *x, struct mat from, struct mat to)
{
	return begin_move(x, from, to, true);
}

void dispatch_end(struct dispatch *x)
{
	if (x->n_moves)
		comm_wait(&x->requests);
	for (int i = 0; i < x->n_moves; i++)
		if (!x->move[i].back)
			reorder_rows(x, x->move[i].received, x->move[i].to, true);
	x->n_moves = 0;
}
