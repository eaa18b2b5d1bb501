/*
 * Kernels of the forward and backward of layers, and of decoding. A list: kernels.h says how it
 * is read.
 */
#ifndef KERNELS_LAYERS_H
#define KERNELS_LAYERS_H

#include "kernels/matrix.h"

enum norm_kind { NORM_LAYER, NORM_RMS };
enum act_kind { ACT_GELU_TANH, ACT_GELU, ACT_SWIGLU };

/*
 * One use of dropout. The mask at (sample, position, channel) is a function of these and
 * the key alone; rows are [sequence][position]. An element is dropped where a uniform
 * number is below p: word i % 4 of Philox at (head << 20 | i / 4, position, sample, step),
 * i being the channel and head 0; of attention, i is the key's position, position the
 * query's, and head counts those of the whole model.
 */
struct dropout {
	struct philox_key key;
	float p; /* probability of dropping; 0: off */
	/* The device's, which `put` may change between two uses: all else about a use of dropout
	 * is the same in each step. */
	const uint32_t *step;
	int64_t first_sample; /* of the step, over the whole batch */
	const int32_t *pos;   /* position of each row in its sequence */
	int64_t seq_rows;     /* rows of one sequence */
	int64_t first_row; /* of these sequences, where these are a part of their rows */
	int64_t first_col; /* of the whole tensor, where this is a slice of its columns */
};

/*
 * One block of attention: the queries of a chunk against the keys and values of a chunk.
 * A chunk of a sequence is two runs of consecutive positions (zigzag), of equal length.
 * q, o: [batch * q_rows, heads * dim]; k, v: [batch * k_rows, kv_heads * dim]; max and
 * sum, the state of the running softmax: [batch, heads, q_rows]. Query head h reads
 * key/value head h / (heads / kv_heads). Causal, by position.
 */
struct attn {
	int64_t batch, heads, kv_heads, dim;
	int64_t q_rows, k_rows;
	int64_t q_first[2], k_first[2]; /* first position of each run */
	float scale;
	struct dropout drop; /* on probabilities; pos and seq_rows unused */
	int64_t first_head;  /* of the whole model, for the dropout mask */
};

/* The norm that residual_norm computes. */
struct norm {
	enum norm_kind kind;
	struct mat h, stats, gamma, beta; /* as norm_fwd's; h is its result */
	float eps;
};

/* The gradients that norm_bwd computes. */
struct norm_grads {
	struct mat dx, dgamma, dbeta;
	struct mat copy; /* of all of dx, any */
	struct mat sums; /* [1, cols] */
};

#endif

#ifdef KERNEL

/* y[i] = w[ids[i] - first], or 0 when that is not a row of w; added to y if `add`. */
KERNEL(void, embed_fwd, struct device *d, struct mat y, struct mat w, const int32_t *ids,
	int64_t first, bool add)
/* dw[t] = the sum of dy[i] where ids[i] - first is t, in an order that is that of how many
 * there are: as far as 256 of them for i ascending. */
KERNEL(void, embed_bwd, struct device *d, struct mat dw, struct mat dy,
	const int32_t *ids, int64_t first)

/* Matmuls: the two operands are of one type (of 8 bits e4m3 and e5m2 mix), the result and the
 * bias of any; dw is fp32. Where operands have a scale, both have, and the sum is multiplied by
 * both before the bias, or what it is added to, is added and the result is rounded.
 *
 * y[n,out] = x[n,in] w[out,in]^T + bias[out]; bias.p may be NULL. A bias of more precision than y
 * may be cast to its type before. */
KERNEL(void, linear_fwd, struct device *d, struct mat y, struct mat x, struct mat w,
	struct mat bias)
/* dx[n,in] = dy[n,out] w[out,in]; added to dx if `add`. */
KERNEL(void, linear_bwd_x, struct device *d, struct mat dx, struct mat dy, struct mat w,
	bool add)
/* dw[out,in] = dy[n,out]^T x[n,in]; added to dw if `add`. */
KERNEL(void, linear_bwd_w, struct device *d, struct mat dw, struct mat dy, struct mat x,
	bool add)
/* Fused: a as linear_fwd gives it, and y = gelu(a) in its tanh form, with the bits of linear_fwd and
 * act_fwd unless sums need not be exact: then GELU may take what a was before it was rounded. And
 * da = slope(a) (dy w), as linear_bwd_x and act_bwd give it, but that a GPU need not round dy w in
 * between: in 16 bits this is a kernel of its own. y, a and da: any, of one type. */
KERNEL(void, linear_gelu_fwd, struct device *d, struct mat y, struct mat a, struct mat x,
	struct mat w, struct mat bias)
KERNEL(void, linear_gelu_bwd, struct device *d, struct mat da, struct mat dy,
	struct mat w, struct mat a)
/* y[i] += bias; any */
KERNEL(void, bias_fwd, struct device *d, struct mat y, struct mat bias)
/* db[1,out] = sum of the rows of dy (any), in an order that is that of the shape */
KERNEL(void, bias_bwd, struct device *d, struct mat db, struct mat dy)

/*
 * LayerNorm (Ba, Kiros, Hinton 2016): y = (x - mean) rstd gamma + beta.
 * RMSNorm (Zhang, Sennrich 2019): y = x rstd gamma, rstd = 1/sqrt(mean(x^2) + eps).
 * beta.p may be NULL. stats[2, n] keeps mean and rstd for the backward. y and dy: any.
 */
KERNEL(void, norm_fwd, struct device *d, enum norm_kind kind, struct mat y,
	struct mat stats, struct mat x, struct mat gamma, struct mat beta, float eps)
/* dx += the gradient of x */
KERNEL(void, norm_bwd_x, struct device *d, enum norm_kind kind, struct mat dx,
	struct mat dy, struct mat x, struct mat stats, struct mat gamma)
/* dgamma = , dbeta = (if there is one): sums over rows [first, first + rows) of x */
KERNEL(void, norm_bwd_w, struct device *d, enum norm_kind kind, struct mat dgamma,
	struct mat dbeta, struct mat dy, struct mat x, struct mat stats, int64_t first,
	int64_t rows)

/* Fused, with the bits of the separate kernels: norm_bwd_x of all rows, norm_bwd_w of rows
 * [first, first + rows), copy = round(dx) unless copy.p is NULL, and the sums of the rows of the copy
 * as bias_bwd computes them unless sums.p is. */
KERNEL(void, norm_bwd, struct device *d, enum norm_kind kind, const struct norm_grads *to,
	struct mat dy, struct mat x, struct mat stats, struct mat gamma, int64_t first,
	int64_t rows)

/* Turns pairs (j, j + dim/2) of each head by the angle of (position, j); rope[T, dim]
 * holds cosines, then sines. `sign` -1 turns back, which is the backward. x: any. */
KERNEL(void, rope, struct device *d, struct mat x, int64_t dim, struct mat rope,
	const int32_t *pos, float sign)

/*
 * Blocked online-softmax attention (Dao et al. 2022; Milakov, Gimelshein 2018), over the
 * chunks that a ring brings: `begin` with the first, `end` with the last, after which o is
 * the output and max the log-sum-exp. Key blocks are taken in ascending order.
 *
 * q, k, v and dout are of one type; o, dq, dk and dv each of that or fp32, which they must be
 * where one call does not both begin and end.
 */
KERNEL(void, attn_fwd, struct device *d, const struct attn *attn, struct mat o,
	float *max, float *sum, struct mat q, struct mat k, struct mat v, bool begin,
	bool end)
/* dq, dk, dv += the part of this pair of chunks; = when `begin`. lse is the forward's `max`;
 * delta[batch, heads, q_rows] is scratch, filled when `begin`. */
KERNEL(void, attn_bwd, struct device *d, const struct attn *attn, struct mat dq,
	struct mat dk, struct mat dv, float *delta, struct mat dout, struct mat o,
	const float *lse, struct mat q, struct mat k, struct mat v, bool begin)

/* y = gelu(a), or for SwiGLU (Shazeer 2020) y = silu(a) b. All of one type, any. */
KERNEL(void, act_fwd, struct device *d, enum act_kind kind, struct mat y, struct mat a,
	struct mat b)
/* da, db = ; db.p is NULL for GELU. da may be dy. */
KERNEL(void, act_bwd, struct device *d, enum act_kind kind, struct mat da, struct mat db,
	struct mat dy, struct mat a, struct mat b)

/* y = a + b; y may be either. b: any. */
KERNEL(void, add, struct device *d, struct mat y, struct mat a, struct mat b)
/* y = a - b; y may be either. */
KERNEL(void, sub, struct device *d, struct mat y, struct mat a, struct mat b)
/* y = x mask / (1 - p); y may be x. Its own backward. y, x: any. */
KERNEL(void, dropout, struct device *d, struct mat y, struct mat x,
	const struct dropout *drop)
/* Fused, with the bits of bias_fwd, dropout and add one after the other: y = x +
 * dropout(sum + bias). bias.p may be NULL, the dropout too; y may be sum. sum: any. */
KERNEL(void, residual, struct device *d, struct mat y, struct mat x, struct mat sum,
	struct mat bias, const struct dropout *drop)
/* Fused, with the bits of residual and norm_fwd one after the other: y = x + dropout(sum + bias),
 * and the norm of y. A sum that is narrow is of the type of the norm's result. */
KERNEL(void, residual_norm, struct device *d, struct mat y, struct mat x, struct mat sum,
	struct mat bias, const struct dropout *drop, const struct norm *norm)

/*
 * Cross-entropy over one slice of the vocabulary, columns [first, first + cols) of which
 * those below `vocab` are real. max, sum, target: a float a row: the largest logit, the
 * sum of exp(logit - max), the logit of the row's target or -infinity when it is not here.
 * logits: any.
 */
KERNEL(void, xent_stats, struct device *d, float *max, float *sum, float *target,
	struct mat logits, const int32_t *targets, int64_t first, int64_t vocab)
/* Joins the stats of n_slices slices, [slice][row] each, by the canonical tree:
 * lse[row], loss[row] = lse - target. */
KERNEL(void, xent_join, struct device *d, float *lse, float *loss, const float *max,
	const float *sum, const float *target, int64_t n_slices, int64_t rows)
/* logits = scale (softmax - onehot), in place; *scale is in the device's memory. */
KERNEL(void, xent_bwd, struct device *d, struct mat logits, const float *lse,
	const int32_t *targets, int64_t first, int64_t vocab, const float *scale)
/* Fused, with the bits of xent_stats, xent_join and xent_bwd one after the other, where one slice
 * is the whole vocabulary: loss[row], and the logits become their gradient. */
KERNEL(void, xent_fused, struct device *d, float *loss, struct mat logits,
	const int32_t *targets, int64_t vocab, const float *scale)

/* Inference: a row's result does not depend on how many rows are given at once, so that
 * decoding with a cache gives the bits of decoding without. y as linear_fwd. */
KERNEL(void, linear_row, struct device *d, struct mat y, struct mat x, struct mat w,
	struct mat bias)
/* Row i of q [rows, heads * dim] is at position first + i and attends to the positions up
 * to its own of k, v [.., kv_heads * dim]. */
KERNEL(void, attn_row, struct device *d, struct mat o, struct mat q, struct mat k,
	struct mat v, int64_t heads, int64_t kv_heads, int64_t dim, int64_t first,
	float scale)

#endif
