/* Kernels of the forward and backward of layers, and of decoding. kernels.h explains KERNEL. */
#ifndef KERNELS_LAYERS_H
#define KERNELS_LAYERS_H

#include "kernels/matrix.h"

enum norm_kind { NORM_LAYER, NORM_RMS };
/* clang-format off */
enum act_kind {
#define ACT(id, ...) ACT_##id,
#include "kernels/acts.h"
};
enum { N_ACT_KINDS = 0
#define ACT(...) + 1
#include "kernels/acts.h"
};

enum { IS_PLAIN, IS_GATED };
static inline bool act_is_gated(enum act_kind kind)
{
	static const bool gated[] = {
#define ACT(id, name, kind, ...) IS_##kind,
#include "kernels/acts.h"
	};
	return gated[kind];
}
/* clang-format on */

/* The queries that a thread of attn_row on a CPU processes at once, at most. Their scores need
 * d->threads * ATTN_ROW_QUERIES * round_up(first + rows, 16) floats of scratch memory. */
enum { ATTN_ROW_QUERIES = 4 };

/* Additions to the loss lse - x[t] of a row with the logits x, their log-sum-exp lse and the
 * target t. Label smoothing (Szegedy et al. 2016), as in PyTorch, makes it (1 - e)(lse - x[t]) +
 * e (lse - mean of x); z-loss (Chowdhery et al. 2022), as in OLMo, adds z lse^2. So the gradient
 * of x[j] is (1 + 2 z lse) softmax[j] - e / vocab - (1 - e) [j = t]. */
struct xent_terms {
	float smoothing, z; /* e and z above; 0: off */
};

/* Statistics of rows; the kernel xent_stats defines them. */
struct xent_stats {
	float *max, *sum, *target; /* [row], or [slice][row] */
};

/* One application of dropout. The mask at (sample, position, channel) is a function of these three,
 * the step and the key alone; rows are [sequence][position]. An element is dropped if a uniform
 * number is below p: word i % 4 of Philox at (head << 20 | i / 4, position, sample, step),
 * where i is the channel and head is 0. For attention, i is the position of the key, `position` the
 * position of the query, and head its index in the whole model. */
struct dropout {
	struct philox_key key;
	float p; /* probability of dropping; 0: off */
	/* In device memory, because it changes from step to step: a captured graph can be launched
	 * again after a `put`. */
	const uint32_t *step;
	int64_t first_sample; /* index in the step's global batch */
	const int32_t *pos;   /* position of each row in its sequence */
	int64_t seq_rows;     /* rows of one sequence */
	int64_t first_row;    /* index of the matrix's first row in the whole matrix */
	int64_t first_col;    /* index of the matrix's first column in the whole matrix */
};

/* One block of causal attention: the queries of a chunk against the keys and values of a chunk.
 * A chunk of a sequence is two runs of consecutive positions of equal length (zigzag).
 * q, o: [batch * q_rows, heads * dim]; k, v: [batch * k_rows, kv_heads * dim]; max and
 * sum, the state of the running softmax: [batch, heads, q_rows]. Query head h reads
 * key/value head h / (heads / kv_heads). */
struct attn {
	int64_t batch, heads, kv_heads, dim;
	int64_t q_rows, k_rows;
	int64_t q_first[2], k_first[2]; /* first position of each run */
	float scale;
	struct dropout drop; /* on probabilities; pos and seq_rows unused */
	int64_t first_head;  /* index in the whole model, for the dropout mask */
	/* [batch * q_rows], in device memory: the position of the first key that each query attends
	 * to, which is not after the query and does not decrease with its position; NULL: 0. */
	const int32_t *start;
	/* The number of keys that a query attends to, ending with its own (sliding window: Child
	 * et al. 2019; Jiang et al. 2023); 0: all since start. */
	int64_t window;
};

/* The norm that residual_norm computes. */
struct norm {
	enum norm_kind kind;
	struct mat h, stats, gamma, beta; /* as for norm_fwd; h is the result */
	float eps;
};

/* The gradients that norm_bwd computes. */
struct norm_grads {
	struct mat dx, dgamma, dbeta;
	struct mat copy; /* copy of dx (same shape), in any type */
	struct mat sums; /* [1, cols]: the sums of the copy over its rows */
};

#endif

#ifdef KERNEL

/* y[i] = (add ? y[i] : 0) + w[ids[i] - first], or + 0 if w has no such row. */
KERNEL(void, embed_fwd, struct device *d, struct mat y, struct mat w, const int32_t *ids,
	int64_t first, bool add)
/* dw[t] = the sum of dy[i] over all i with ids[i] - first = t. The order of summation depends
 * only on the number of terms: up to 256 terms, ascending i. */
KERNEL(void, embed_bwd, struct device *d, struct mat dw, struct mat dy,
	const int32_t *ids, int64_t first)

/* Matmuls: both operands have one type (e4m3 and e5m2 may mix), the result and the bias any; dw
 * is fp32, or without `add` the operands' 16-bit type. Both operands have a scale or neither.
 * The sum is multiplied by both scales, the bias or (with `add`) the old value is added, and the
 * result is rounded.
 *
 * y[n,out] = x[n,in] w[out,in]^T + bias[out]; bias.p may be NULL. A bias of higher precision than
 * y may first be cast to y's type. */
KERNEL(void, linear_fwd, struct device *d, struct mat y, struct mat x, struct mat w,
	struct mat bias)
/* dx[n,in] = (add ? dx : 0) + dy[n,out] w[out,in] */
KERNEL(void, linear_bwd_x, struct device *d, struct mat dx, struct mat dy, struct mat w,
	bool add)
/* dw[out,in] = (add ? dw : 0) + dy[n,out]^T x[n,in] */
KERNEL(void, linear_bwd_w, struct device *d, struct mat dw, struct mat dy, struct mat x,
	bool add)
/* Fused: a = linear_fwd(x), y = gelu(a) in the tanh form, with the bits of linear_fwd and
 * act_fwd. Without device_options.exact, GELU may read a before it is rounded. Backward: da =
 * gelu'(a) (dy w), as linear_bwd_x and act_bwd compute it, but a GPU need not round dy w in
 * between, so 16-bit results may differ from the two kernels; then sums = bias_bwd(da) unless
 * sums.p is NULL. y, a and da: any, of one type. */
KERNEL(void, linear_gelu_fwd, struct device *d, struct mat y, struct mat a, struct mat x,
	struct mat w, struct mat bias)
KERNEL(void, linear_gelu_bwd, struct device *d, struct mat da, struct mat dy,
	struct mat w, struct mat a, struct mat sums)
/* y[i] += bias; any */
KERNEL(void, bias_fwd, struct device *d, struct mat y, struct mat bias)
/* db[1,out] = the sum of dy (any) over its rows, in an order that depends only on the shape */
KERNEL(void, bias_bwd, struct device *d, struct mat db, struct mat dy)

/* LayerNorm (Ba, Kiros, Hinton 2016): y = (x - mean) rstd gamma + beta.
 * RMSNorm (Zhang, Sennrich 2019): y = x rstd gamma, rstd = 1/sqrt(mean(x^2) + eps).
 * beta.p may be NULL. stats[2, n] keeps mean and rstd for the backward. y and dy: any. */
KERNEL(void, norm_fwd, struct device *d, enum norm_kind kind, struct mat y,
	struct mat stats, struct mat x, struct mat gamma, struct mat beta, float eps)
/* dx += the gradient of x */
KERNEL(void, norm_bwd_x, struct device *d, enum norm_kind kind, struct mat dx,
	struct mat dy, struct mat x, struct mat stats, struct mat gamma)
/* Sets dgamma, and dbeta unless dbeta.p is NULL: sums over rows [first, first + rows) of x. */
KERNEL(void, norm_bwd_w, struct device *d, enum norm_kind kind, struct mat dgamma,
	struct mat dbeta, struct mat dy, struct mat x, struct mat stats, int64_t first,
	int64_t rows)

/* Fused, for rows [first, first + rows), with the bits of the separate kernels: norm_bwd_x,
 * norm_bwd_w, copy = round(dx) unless copy.p is NULL, and then sums = bias_bwd(copy) unless sums.p
 * is NULL. */
KERNEL(void, norm_bwd, struct device *d, enum norm_kind kind, const struct norm_grads *to,
	struct mat dy, struct mat x, struct mat stats, struct mat gamma, int64_t first,
	int64_t rows)

/* RMSNorm of each head of gamma.cols channels: y = x rstd gamma. y and x: any, of one type. */
KERNEL(void, head_norm_fwd, struct device *d, struct mat y, struct mat x,
	struct mat gamma, float eps)
/* Sets dx, any, to the gradient of x; dy: any. rstd is computed again. */
KERNEL(void, head_norm_bwd_x, struct device *d, struct mat dx, struct mat dy,
	struct mat x, struct mat gamma, float eps)
/* Sets dgamma[1, head] to the sum over all rows and heads. */
KERNEL(void, head_norm_bwd_w, struct device *d, struct mat dgamma, struct mat dy,
	struct mat x, float eps)

/* Rotary position embedding (Su et al. 2021): rotates pairs (j, j + dim/2) of each head by the
 * angle of (position, j); rope[T, dim] holds cosines, then sines. sign = -1 is the inverse, which
 * is the backward. x: any. */
KERNEL(void, rope, struct device *d, struct mat x, int64_t dim, struct mat rope,
	const int32_t *pos, float sign)

/* Blocked online-softmax attention (Dao et al. 2022; Milakov, Gimelshein 2018), called once for
 * each key/value chunk of ring attention: `begin` with the first chunk, `end` with the last, after
 * which o is the output and max the log-sum-exp. Key blocks are processed in ascending order.
 *
 * q, k, v and dout are of one type; o, dq, dk and dv are each of that type or fp32, and fp32 unless
 * one call has both `begin` and `end`. */
KERNEL(void, attn_fwd, struct device *d, const struct attn *attn, struct mat o,
	float *max, float *sum, struct mat q, struct mat k, struct mat v, bool begin,
	bool end)
/* Adds the contribution of this pair of chunks to dq, dk and dv; with `begin`, sets them instead.
 * lse is the forward's `max`; delta[batch, heads, q_rows] is scratch, computed with `begin`. */
KERNEL(void, attn_bwd, struct device *d, const struct attn *attn, struct mat dq,
	struct mat dk, struct mat dv, float *delta, struct mat dout, struct mat o,
	const float *lse, struct mat q, struct mat k, struct mat v, bool begin)

/* y = f(a), or for a gated f such as SwiGLU (Shazeer 2020) y = f(a, b). All of one type, any. */
KERNEL(void, act_fwd, struct device *d, enum act_kind kind, struct mat y, struct mat a,
	struct mat b)
/* Sets da and db; db.p is NULL unless f is gated. da may be dy. */
KERNEL(void, act_bwd, struct device *d, enum act_kind kind, struct mat da, struct mat db,
	struct mat dy, struct mat a, struct mat b)

/* y = a + b; y may be either. b: any. */
KERNEL(void, add, struct device *d, struct mat y, struct mat a, struct mat b)
/* y = a - b; y may be either. */
KERNEL(void, sub, struct device *d, struct mat y, struct mat a, struct mat b)
/* y = x mask / (1 - p); y may be x. The backward is the same kernel. y, x: any. */
KERNEL(void, dropout, struct device *d, struct mat y, struct mat x,
	const struct dropout *drop)
/* Fused, with the bits of bias_fwd, dropout and add: y = x + dropout(sum + bias). bias.p and drop
 * may be NULL; y may be sum. sum: any. */
KERNEL(void, residual, struct device *d, struct mat y, struct mat x, struct mat sum,
	struct mat bias, const struct dropout *drop)
/* Fused, with the bits of residual and norm_fwd: y = x + dropout(sum + bias), and the norm of y. A
 * 16-bit `sum` has the type of the norm's result. */
KERNEL(void, residual_norm, struct device *d, struct mat y, struct mat x, struct mat sum,
	struct mat bias, const struct dropout *drop, const struct norm *norm)

/* Cross-entropy over one slice of the vocabulary, columns [first, first + cols); columns from
 * `vocab` on are padding. The statistics have one float per row: the largest logit, the sum of
 * exp(logit - max), and the target's logit, or -infinity if another slice has it. logits: any.
 * With smoothing, target is the slice's addend of (1 - e) x[t] + e (mean of x). A row with a
 * negative target has no weight: loss and gradient are 0, the statistics 0, 1 and infinity. */
KERNEL(void, xent_stats, struct device *d, struct xent_stats to, struct mat logits,
	const int32_t *targets, int64_t first, int64_t vocab, struct xent_terms terms)
/* Reduces the statistics of n_slices slices, [slice][row] each, by the canonical tree: lse[row],
 * and loss[row] = lse - target with the terms. */
KERNEL(void, xent_join, struct device *d, float *lse, float *loss, struct xent_stats of,
	int64_t n_slices, int64_t rows, struct xent_terms terms)
/* logits = scale (softmax - onehot), with the terms, in place; *scale is in device memory. */
KERNEL(void, xent_bwd, struct device *d, struct mat logits, const float *lse,
	const int32_t *targets, int64_t first, int64_t vocab, struct xent_terms terms,
	const float *scale)
/* Fused, with the bits of xent_stats, xent_join and xent_bwd, for one slice with the whole
 * vocabulary: sets loss[row], and overwrites the logits with their gradient. */
KERNEL(void, xent_fused, struct device *d, float *loss, struct mat logits,
	const int32_t *targets, int64_t vocab, struct xent_terms terms,
	const float *scale)

/* Fused, with the bits of linear_fwd and xent_fused: logits = x w^T, then as above. */
KERNEL(void, linear_xent, struct device *d, float *loss, struct mat logits, struct mat x,
	struct mat w, const int32_t *targets, int64_t vocab, struct xent_terms terms,
	const float *scale)

/* linear_fwd for inference: the result of a row does not depend on the number of rows, so decoding
 * with a KV cache gives the same bits as decoding without. */
KERNEL(void, linear_row, struct device *d, struct mat y, struct mat x, struct mat w,
	struct mat bias)
/* Row i of q [rows, heads * dim] is at position first + i, and attends to positions 0 to first + i
 * of k, v [.., kv_heads * dim]; with a window other than 0, to the last `window` of them. */
KERNEL(void, attn_row, struct device *d, struct mat o, struct mat q, struct mat k,
	struct mat v, int64_t heads, int64_t kv_heads, int64_t dim, int64_t first,
	int64_t window, float scale)

#endif
