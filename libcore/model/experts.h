/* The feed-forward sublayer with experts: what experts.c and shared_expert.c share. */
#pragma once

#include "model/block.h"

/* Activations. Shared expert: y = act(a, b). Experts: results of W1 and W3; the choice of a row's
 * experts, ascending; their gates; log-sum-exp of the scores; the place of each slot in the sorted
 * rows; the slot at each place; the first place of each (expert, chunk); results of W2; the slots
 * of each [chunk][sequence][expert]; their fractions for the balance loss. If ranks divide the
 * experts: the offsets of the rows here, the rows of h that are here, and the shared expert's
 * result. With a capacity: the gates, with 0 for dropped slots. */
enum {
	SY = INNER_RESULT,
	SA = IN_RESULT,
	SB,
	AB,
	IDS,
	GATES,
	LSE,
	PLACES,
	SLOTS,
	OFFSETS,
	Y,
	COUNTS,
	FRACTIONS,
	HERE,
	X,
	SHARED,
	KEPT_GATES
};
/* Gradients of sa, sb and ab; gate times the input of W2, of the experts and of the shared expert;
 * of the router's scores and the shared expert's score; of the input of W1 and W3; of the gates. If
 * ranks divide the experts: of y, the rows here; of the shared expert's input. */
enum { DSA, DSB, DAB = SUBLAYER_INPUTS, GA, GSY, DSCORES, DSHARED, DX, DGATES, DY, DSX };

/* ---- shapes ---------------------------------------------------------------------- */

/* Returns the number of experts of a row. */
static inline int64_t per_row(const struct pass *p)
{
	return p->m->c.experts_per_token;
}

/* Returns the columns of gates: of a row's experts, and of the shared expert. */
static inline int64_t gate_cols(const struct pass *p)
{
	return per_row(p) + p->m->c.shared_expert_gate;
}

/* Returns the rows of all local chunks. */
static inline int64_t all_rows(const struct pass *p)
{
	return p->cp.local * p->rows;
}

static inline bool divides_experts(const struct pass *p)
{
	return p->experts.c->size > 1;
}

static inline bool has_shared(const struct pass *p)
{
	return p->m->c.shared_expert_dim > 0;
}

/* Returns true if the shared expert is computed while rows are sent. */
static inline bool overlaps_shared(const struct pass *p)
{
	return has_shared(p) && divides_experts(p);
}

/* Returns the rows of local slice s of x [slice][rows]. */
static inline struct mat slice_of(struct mat x, int s, int64_t rows)
{
	return mat_rows(x, s * rows, rows);
}

/* ---- shared_expert.c ------------------------------------------------------------- */

/* Computes the input of the shared expert's W2, and W1 and W3 unless in_forward() has computed
 * them. */
void shared_forward(struct pass *p, const struct sublayer_run *sub);
/* Computes W2 of the shared expert in slice s of all chunks, for out_forward(), if that is done
 * while rows are sent. */
void shared_w2_forward(struct pass *p, const struct sublayer_run *sub, int s);
/* Computes the gradient of the shared expert's y in DSA. */
void shared_w2_backward(struct pass *p, const struct sublayer_run *sub, struct loc loc,
	struct slice_gather *d);
/* Computes the gradients of the shared expert's a and b, and the gradient of y unless
 * out_backward() has computed it. */
void shared_backward(struct pass *p, const struct sublayer_run *sub);
/* Computes the gradient of the shared expert's input in `to`. */
void shared_x_backward(
	struct pass *p, const struct sublayer_run *sub, struct loc loc, struct mat to);
/* Computes the gradient of the shared expert's input in slice s of all chunks, for in_backward(),
 * if that is done while rows are sent. */
void shared_x_backward_early(struct pass *p, const struct sublayer_run *sub, int s);
/* Returns the input of the shared expert's W2 for the gradient of W2. */
struct mat shared_out_input(const struct pass *p, const struct sublayer_run *sub);
