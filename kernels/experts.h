/* Kernels of mixture of experts: the router, the permutation of rows, matmuls with one weight
 * matrix per group of rows, activations, and load balance. kernels.h explains KERNEL.
 *
 * E: experts, k: experts of a row, f: width of an expert. A slot is one of the k choices of a row;
 * the slots of a row are in ascending order of their experts. Index arrays are in device memory,
 * which the caller owns, and so are all results.
 *
 * No element of a result depends on which rows lie next to its row, or on the number of threads:
 *	ids, gates, lse		the row of h, wr and bias
 *	dz			the row of dg, ids, gates and h; wr, f and the weights
 *	groups_fwd, _bwd_x	the row, the column and the number of terms
 *	groups_bwd_w		the rows of the group, in their order
 *	slots_combine		the k slots of the row, in ascending order */
#ifndef KERNELS_EXPERTS_H
#define KERNELS_EXPERTS_H

#include "kernels/matrix.h"

struct update; /* optimizer.h */

enum router_kind {
	ROUTER_SOFTMAX,
#define SCORE(id, ...) ROUTER_##id,
#include "kernels/scores.inc"
	N_ROUTER_KINDS
};

enum { MAX_ROUTER_EXPERTS = 1024, MAX_EXPERTS_PER_ROW = 64 };

/* How a row chooses its experts. z = wr h; the scores are p = softmax(z), or a function of each
 * logit (scores.inc) such as s = sigmoid(z). The k experts with the largest scores are chosen, the
 * lowest index at a tie; with a bias, those with the largest score + bias; gates are functions of
 * the scores alone. NaN counts as -infinity in the choice; then all gates of the row are NaN.
 *
 * With groups, the experts are `groups` runs of E / groups, and the choice is among the experts of
 * the `top_groups` groups with the largest sums of their two best scores + bias. */
struct router {
	enum router_kind kind;
	bool normalize; /* divide the scores of a row's chosen experts by their sum */
	float scale;	/* factor of all gates */
	int64_t experts, per_row;   /* E, k */
	int64_t groups, top_groups; /* groups 0 or 1: no groups */
	int64_t seq_rows; /* rows of one set of counts, a sequence (or its part in a chunk) */
	/* 0: off. Otherwise slot j of row i has expert (pos[i] k + j) % force, for k <= force <= E:
	 * for tests and measurements. */
	int64_t force;
	const int32_t *pos; /* [row], device memory; only read with `force` */
};

/* Losses of the router, as additions to the gradient of z and as values. Set s of f is for rows i
 * with (first_row + i) / seq_rows = s; seq_rows 0: one set for all rows.
 *	balance: E times the sum of f[e] p[e] over e, with p = s / sum of s without softmax
 *	z-loss:  lse^2 */
struct router_losses {
	const float *
		f; /* [set][E], device memory: fractions of slots; NULL: no balance loss */
	int64_t first_row, seq_rows;
	const float *
		weights; /* [2], device memory: factors of the balance loss and the z-loss */
	float *values; /* [2][row]: the row's losses without factors; NULL: not wanted */
};

/* Groups of consecutive rows: group g has rows [offsets[g], offsets[g + 1]), and uses block
 * g / per_block of a weight tensor, which has n / per_block blocks of equal size. Groups may be
 * empty. Rows from offsets[n] on are neither read nor written. */
struct row_groups {
	const int32_t *offsets; /* [n + 1], device memory */
	int64_t n, per_block;
};

/* The gradient of a block of weights from the rows of one group. */
struct group_leaf {
	/* [out, in]: fp32, or the operands' 16-bit type; all elements are set. */
	struct mat dw;
	/* NULL, or an earlier result in fp32, [out, in], from the preceding rows of the same leaf,
	 * a multiple of GROUP_CUT; then dw has the bits of one call with all rows. May be dw.p. */
	const float *before;
	int64_t group;
	int64_t first_col; /* column of dy that belongs to row 0 of dw */
};

enum { GROUP_CUT = 384 }; /* rows */

#endif

#ifdef KERNEL

/* Routes the rows of h (any). wr [E, d]; bias [E] or NULL. Sets ids[row][k], ascending; gates
 * [rows, k]; lse[row], the log-sum-exp of z; and, unless counts is NULL, counts[row / seq_rows][E],
 * the slots of each expert. With shared.p, [1, d], gates has k + 1 columns, and the last one is
 * sigmoid(shared h). */
KERNEL(void, route_fwd, struct device *d, int32_t *ids, struct mat gates, float *lse,
	int32_t *counts, struct mat h, struct mat wr, const float *bias,
	struct mat shared, const struct router *how)
/* Sets dz [rows, E], the gradient of z, from dg, which has the shape of gates; and, if gates has
 * k + 1 columns, dshared[row], the gradient of shared h. `losses` may be NULL. Computes z again. */
KERNEL(void, route_bwd, struct device *d, struct mat dz, float *dshared, struct mat dg,
	const int32_t *ids, struct mat gates, const float *lse, struct mat h,
	struct mat wr, const struct router *how, const struct router_losses *losses)
/* dh (any) += dz wr, for dz [rows, E] and wr [E, d], or for dshared [rows, 1] and shared [1, d] */
KERNEL(void, route_bwd_x, struct device *d, struct mat dh, struct mat dz, struct mat wr)
/* dw [E, d] = dz^T h. h: any. The order of summation depends only on the number of rows. */
KERNEL(void, route_bwd_w, struct device *d, struct mat dw, struct mat dz, struct mat h)

/* Sorts the slots of ids[rows][k] by (expert, chunk, row); chunk_rows consecutive rows are a chunk.
 * Slot (i, j) goes to place pos[i k + j], and place p has slot slots[p] = i * slot_stride + j.
 * offsets[e * chunks + c], [E * chunks + 1], is the first place of expert e and chunk c. */
KERNEL(void, sort_slots, struct device *d, int32_t *pos, int32_t *slots, int32_t *offsets,
	const int32_t *ids, int64_t rows, int64_t chunk_rows, int64_t slot_stride,
	const struct router *how)
/* Sets kept to 0 at the slots of each group that are not among its `capacity` slots with the
 * largest gates, of equal gates the first ones; NaN counts as the smallest. Group g has slots[i]
 * for i from offsets[g] on, up to offsets[g + 1] and at most max_slots; kept and gates have one
 * element per slot. *n_dropped += the number of these slots. */
KERNEL(void, slots_drop, struct device *d, struct mat kept, int64_t *n_dropped,
	struct mat gates, const int32_t *slots, const int32_t *offsets, int64_t groups,
	int64_t max_slots, int64_t capacity)
/* dgates = 0 where kept is 0 and gates is not. All are fp32 and have one shape. */
KERNEL(void, slots_mask, struct device *d, struct mat dgates, struct mat kept,
	struct mat gates)
/* x[i] = h[index[i] / divisor], for all rows of x. Both of one type, any. */
KERNEL(void, rows_take, struct device *d, struct mat x, struct mat h,
	const int32_t *index, int64_t divisor)
/* h[index[i]] = x[i], for all rows of x. No index occurs twice. Both of one type, any. */
KERNEL(void, rows_put, struct device *d, struct mat h, struct mat x, const int32_t *index)
/* y[i] = ((g[0] x[pos[0]] + g[1] x[pos[1]]) + ...) + g[k] more[i], in fp32, rounded to y's type; g
 * is gates[i], pos[i][k] places of slots. gates.p NULL: 1; with k columns, g[k] is 1. more.p may be
 * NULL. pos NULL: i k + j. y, x and more: any. y may be more. */
KERNEL(void, slots_combine, struct device *d, struct mat y, struct mat x,
	const int32_t *pos, int64_t k, struct mat gates, struct mat more)

/* Matmuls of groups: y, x, dy and dx have the rows of the groups, w [blocks * out, in] the blocks.
 * Operands have one type other than fp8, the results any.
 * y[i] = x[i] w[block of i]^T */
KERNEL(void, groups_fwd, struct device *d, struct mat y, struct mat x, struct mat w,
	const struct row_groups *groups)
/* dx[i] = dy[i] w[block of i] */
KERNEL(void, groups_bwd_x, struct device *d, struct mat dx, struct mat dy, struct mat w,
	const struct row_groups *groups)
/* dw = dy^T x of the leaf's group, for each leaf; of an empty group, `before` or 0. */
KERNEL(void, groups_bwd_w, struct device *d, const struct group_leaf *leaves,
	int n_leaves, struct mat dy, struct mat x, const struct row_groups *groups)

/* a[rows, f] = f(left half, right half of ab[rows, 2 f]), with the bits of act_fwd of a gated kind.
 * Both of one type, any. */
KERNEL(void, expert_act_fwd, struct device *d, enum act_kind kind, struct mat a,
	struct mat ab)
/* From z = dy w2 and the forward's a, which is computed again and rounded: da = g z;
 * dab [rows, 2 f] = the gradient of ab; ga = g a, for the gradient of w2; dg = the sum of z a over
 * the row. Row i has g = gates[n] and sets dg[n], n = index[i], or i * stride with index NULL. dab
 * may be ab, ga may be z. All matrices of one type, any. */
KERNEL(void, expert_act_bwd, struct device *d, enum act_kind kind, struct mat dab,
	struct mat ga, float *dg, struct mat z, struct mat ab, const float *gates,
	const int32_t *index, int64_t stride)

/* sums[s / per_sum][e] = (add ? sums : 0) + counts[s][e] for n_sets sets of counts. */
KERNEL(void, counts_sum, struct device *d, int64_t *sums, const int32_t *counts,
	int64_t n_sets, int64_t per_sum, int64_t experts, bool add)
/* f[s][e] = counts[s][e] / their sum over e, rounded once; 1 / E if the sum is 0. Changes nothing if
 * update, which may be NULL, is off. */
KERNEL(void, counts_fractions, struct device *d, float *f, const int64_t *counts,
	int64_t n_sets, int64_t experts, const struct update *update)
/* Balance without a loss (Wang et al. 2024): bias[e] += rate * sign(sum of counts - E counts[e]);
 * with `center`, less the mean of these additions. Changes nothing if update, which may be NULL, is
 * off. */
KERNEL(void, bias_balance, struct device *d, float *bias, const int64_t *counts,
	int64_t experts, float rate, bool center, const struct update *update)

#endif
