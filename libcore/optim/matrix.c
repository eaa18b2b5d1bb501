/* Whole matrices: each is gathered on one rank, its owner, which computes the result and sends
 * it to all ranks that have rows of the matrix. Owners compute with shapes that do not depend
 * on the layout, so the bits equal the bits on one rank. A stack of experts has a matrix per block:
 * W1, W3 or W2 of one expert.
 *
 * The matrices of a pipeline stage are assigned to its ranks, balanced by work. A round has at most
 * one matrix per owner, so that a rank has only one matrix in memory at a time. */
#include "optim/optim.h"
#include "comm/requests.h"

/* Tags of the two directions. */
enum { TO_OWNER, FROM_OWNER };

struct matrix {
	const struct tensor *t;
	int block; /* index among the tensor's blocks of rows */
	int owner; /* member of the stage; -1: not assigned */
	int round;
	double cost;
};

struct matrices {
	const struct optim_config *config;
	const struct matrix_rule *rule;
	struct store *s;
	struct device *d;
	struct comm *c;
	int *ranks;		       /* [size]: world ranks of the stage's members */
	struct matrix *matrix;	       /* [n], in the order of the tensor table */
	struct comm_requests requests; /* messages of a round */
	struct received *received;     /* [n_received]: pieces being received */
	int n_received;
	int n, n_rounds;
};

/* ---- owners -------------------------------------------------------------------------- */

/* Returns a cost proportional to the multiply-adds of an iteration of Muon's orthogonalization. */
static double matrix_cost(const struct tensor *t)
{
	double a = (double)tensor_block_dim(t), b = (double)t->dims[1];
	return a < b ? a * a * (2 * b + a) : b * b * (2 * a + b);
}

/* Returns the costliest matrix that has no owner yet; NULL: all have one. */
static struct matrix *next_costliest(struct matrices *x)
{
	struct matrix *next = NULL;
	for (struct matrix *m = x->matrix; m < x->matrix + x->n; m++)
		if (m->owner < 0 && (!next || m->cost > next->cost))
			next = m;
	return next;
}

/* Assigns greedily: the costliest matrix first, to the member with the smallest load. */
static void assign_owners(struct matrices *x)
{
	scoped_ptr double *load = xcalloc((size_t)x->c->size, sizeof(*load));
	scoped_ptr int *rounds = xcalloc((size_t)x->c->size, sizeof(*rounds));
	struct matrix *m;
	while ((m = next_costliest(x))) {
		m->owner = 0;
		for (int r = 1; r < x->c->size; r++)
			if (load[r] < load[m->owner])
				m->owner = r;
		load[m->owner] += m->cost;
		m->round = rounds[m->owner]++;
		if (m->round >= x->n_rounds)
			x->n_rounds = m->round + 1;
	}
}

/* Adds the blocks of a tensor. */
static void add_matrices(struct matrices *x, const struct tensor *t)
{
	int n = tensor_blocks(t);
	x->matrix = xrealloc(x->matrix, (size_t)(x->n + n) * sizeof(*x->matrix));
	for (int block = 0; block < n; block++)
		x->matrix[x->n++] = (struct matrix){
			.t = t, .block = block, .owner = -1, .cost = matrix_cost(t)};
}

struct matrices *matrices_open(const struct optim_config *c,
	const struct matrix_rule *rule, struct store *s, struct device *d)
{
	const struct mesh_part stage = {.axes = AXIS_BIT(AXIS_DP) | AXIS_BIT(AXIS_FSDP) |
						AXIS_BIT(AXIS_CP) | AXIS_BIT(AXIS_TP)};
	struct matrices *x = xcalloc(1, sizeof(*x));
	*x = (struct matrices){.config = c, .rule = rule, .s = s, .d = d};
	x->c = mesh_group(s->c.mesh, stage);
	x->requests.c = x->c;
	int n_members = mesh_members(s->c.mesh, stage, &x->ranks);
	BUG_ON(n_members != x->c->size);
	for (int i = 0; i < s->c.n_tensors; i++)
		if (s->c.tensors[i].local && !s->c.tensors[i].frozen &&
			rule->applies_to(&s->c.tensors[i], s->c.n_units))
			add_matrices(x, &s->c.tensors[i]);
	assign_owners(x);
	return x;
}

void matrices_close(struct matrices *x)
{
	if (!x)
		return;
	free(x->ranks);
	free(x->matrix);
	free(x->received);
	comm_requests_release(&x->requests);
	free(x);
}

/* ---- pieces of a matrix: rows of a slice that a member updates ------------------------- */

/* Returns the rows of a matrix in a slice. */
static int64_t matrix_rows(const struct matrix *m)
{
	return m->t->rows / tensor_blocks(m->t);
}

/* Returns the number of elements of a matrix. */
static int64_t matrix_size(const struct matrix *m)
{
	return tensor_size(m->t) / tensor_blocks(m->t);
}

/* Returns the rows of the matrix that a member updates of the i-th slice that it has. */
static struct store_rows member_rows(
	const struct matrices *x, const struct matrix *m, int i, int member)
{
	struct store_rows p = store_rows_of(x->s, m->t, i, x->ranks[member]);
	int64_t first = m->block * matrix_rows(m), end = first + matrix_rows(m);
	int64_t begin = max64(first, p.first), stop = min64(end, p.first + p.rows);
	p.first = begin;
	p.rows = max64(0, stop - begin);
	return p;
}

/* Returns true if a member updates exactly these rows of the matrix. */
static bool has_piece(const struct matrices *x, const struct matrix *m, int member,
	const struct store_rows *p)
{
	for (int i = 0; i < m->t->local; i++) {
		struct store_rows own = member_rows(x, m, i, member);
		if (own.slice == p->slice && own.first == p->first && own.rows == p->rows)
			return true;
	}
	return false;
}

/* Returns the member that sends its replica of a piece: the owner, or the next that has one. */
static int find_sender(
	const struct matrices *x, const struct matrix *m, const struct store_rows *p)
{
	int member = m->owner;
	while (!has_piece(x, m, member, p))
		member = (member + 1) % x->c->size;
	return member;
}

/* A piece of this rank's gradient that is being received. */
struct received {
	const struct tensor *t;
	int slice;
	float *g;
};

/* Returns the gradient of a piece, in scratch memory if offloaded: then all rows of the slice that
 * this rank updates are read. `to_member`: to be received. */
static float *begin_gradient(struct matrices *x, const struct tensor *t,
	const struct store_rows *p, bool to_member)
{
	int i = p->slice - t->first;
	const struct store_rows all = store_rows_of(x->s, t, i, x->ranks[x->c->rank]);
	float *buffer = NULL;
	if (offloads_grads(x->s->c.offload))
		buffer = arena_floats(x->d->scratch, all.rows * t->cols);
	float *g = store_gradient_begin(x->s, t, p->slice, buffer);
	if (to_member) {
		x->received = xgrow(x->received, x->n_received, sizeof(*x->received));
		x->received[x->n_received++] = (struct received){t, p->slice, g};
	}
	return g + (p->first - all.first) * t->cols;
}

/* Waits for all messages, and ends the use of the received pieces. */
static void complete_moves(struct matrices *x)
{
	comm_start(&x->requests);
	comm_wait(&x->requests);
	for (int i = 0; i < x->n_received; i++)
		store_gradient_end(
			x->s, x->received[i].t, x->received[i].slice, x->received[i].g);
	x->n_received = 0;
}

/* Moves a piece between the gradient of a member and the matrix at its owner. */
static void move_piece(struct matrices *x, const struct matrix *m, int member,
	const struct store_rows *p, float *slices, bool to_member)
{
	const struct tensor *t = m->t;
	int me = x->c->rank;
	int from = to_member ? m->owner : member, to = to_member ? member : m->owner;
	int tag = COMM_TAG(MATRIX, to_member ? FROM_OWNER : TO_OWNER);
	struct mat whole = {.p = NULL}, part = {.p = NULL};
	int64_t row = p->slice * matrix_rows(m) + p->first - m->block * matrix_rows(m);
	if (m->owner == me)
		whole = mat(slices + row * t->cols, p->rows, t->cols);
	if (member == me)
		part = mat(begin_gradient(x, t, p, to_member), p->rows, t->cols);
	struct mat source = to_member ? whole : part, target = to_member ? part : whole;
	if (from == me && to == me)
		x->d->k->copy(x->d, target, source);
	else if (from == me)
		comm_send(&x->requests, source.p, mat_bytes(source), to, tag);
	else if (to == me)
		comm_recv(&x->requests, target.p, mat_bytes(target), from, tag);
}

/* Starts to move a matrix to its owner, or to its members, until complete_moves(). */
static void move_matrix(
	struct matrices *x, const struct matrix *m, float *slices, bool to_member)
{
	for (int member = 0; member < x->c->size; member++)
		for (int i = 0; i < m->t->local; i++) {
			struct store_rows p = member_rows(x, m, i, member);
			if (p.rows && (to_member || find_sender(x, m, &p) == member))
				move_piece(x, m, member, &p, slices, to_member);
		}
}

/* Moves the matrices of a round: all at once, or one at a time if gradients are offloaded. */
static void move_round(struct matrices *x, int round, float *slices, bool to_member)
{
	size_t mark = arena_mark(x->d->scratch);
	for (int i = 0; i < x->n; i++) {
		if (x->matrix[i].round != round)
			continue;
		move_matrix(x, &x->matrix[i], slices, to_member);
		if (offloads_grads(x->s->c.offload)) {
			complete_moves(x);
			arena_reset(x->d->scratch, mark);
		}
	}
	complete_moves(x);
}

/* ---- an update ------------------------------------------------------------------------- */

/* Returns the matrix that this rank owns in a round, or NULL. */
static const struct matrix *owned_matrix(const struct matrices *x, int round)
{
	for (const struct matrix *m = x->matrix; m < x->matrix + x->n; m++)
		if (m->round == round && m->owner == x->c->rank)
			return m;
	return NULL;
}

/* Applies the rule to a matrix whose slices are in memory one after the other. */
static void compute_whole(struct matrices *x, const struct matrix *m, float *slices)
{
	const struct tensor *t = m->t;
	const struct sliced shape = {.rows = tensor_block_dim(t),
		.cols = t->dims[1],
		.slices = t->tp_split == TP_SPLIT_COLS ? t->slices : 1};
	x->rule->whole(x->d, x->config, slices, &shape);
}

void matrices_update(struct matrices *x)
{
	for (int round = 0; round < x->n_rounds; round++) {
		const struct matrix *m = owned_matrix(x, round);
		size_t mark = arena_mark(x->d->scratch);
		float *slices = m ? arena_floats(x->d->scratch, matrix_size(m)) : NULL;
		move_round(x, round, slices, false);
		if (m)
			compute_whole(x, m, slices);
		move_round(x, round, slices, true);
		arena_reset(x->d->scratch, mark);
	}
}

void matrices_autotune(struct matrices *x)
{
	for (const struct matrix *m = x->matrix; m < x->matrix + x->n; m++) {
		size_t mark = arena_mark(x->d->scratch);
		if (m->owner == x->c->rank)
			compute_whole(x, m, arena_floats(x->d->scratch, matrix_size(m)));
		arena_reset(x->d->scratch, mark);
	}
}
