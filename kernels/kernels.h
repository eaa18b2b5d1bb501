/*
 * kernels: every piece of arithmetic, declared once, and one table of them a device.
 *
 * A kernel is a pure function of its arguments: no state, no communication, no
 * parallelism strategy. Its result does not depend on the number of threads. Sums inside
 * a kernel run in an order that its shapes alone fix; nothing is summed with atomics.
 * Nothing here knows what a layer is; the layers are libcore/model.
 *
 * Shapes are written [rows, cols], row-major and dense. Pointers are borrowed.
 */
#ifndef KERNELS_H
#define KERNELS_H

#include "base/base.h"

#include <string.h>

/*
 * Number formats: bfloat16, IEEE's binary16, and the two of fp8 (Micikevicius et al. 2022),
 * e4m3 without infinity.
 *
 * A CPU stores every number as fp32; one of less precision is a float that has only the bits
 * of its format, as `round` makes it. A device that is `narrow` stores it in its own 16 or 8
 * bits: there a kernel widens what it reads, computes in fp32 and rounds what it writes, to
 * nearest, ties to even. Which matrices of a kernel may be narrow is said with it (`any`: each
 * for itself; others are fp32); those that may be have 16 bits, and 8 in products only.
 */
enum dtype { DT_F32, DT_BF16, DT_F16, DT_E4M3, DT_E5M2 };

static inline int64_t dtype_bytes(enum dtype t)
{
	return t == DT_F32 ? 4 : t == DT_BF16 || t == DT_F16 ? 2 : 1;
}

/* A dense matrix somewhere in the device's memory, stored as `type` says. */
struct mat {
	void *p;
	int64_t rows, cols;
	enum dtype type;
	/* NULL, or in the device's memory what its numbers are yet to be multiplied by; only
	 * products do that. */
	const float *scale;
	/* Of 8 bits: NULL, or the same numbers transposed, [cols, rows], for products that sum over
	 * the rows, which then need not transpose them; p may be NULL beside it. In libcore/model a
	 * matrix of more bits has here what its cast to 8 bits will have. */
	void *transposed;
	/* NULL, or a number in the device's memory, which `round` raises to the largest |number| that
	 * it stores in the matrix, or to NaN, as `amax` does; on a device that stores numbers narrow,
	 * where nothing is left to be rounded, norm_fwd, residual_norm, act_fwd and act_bwd do too. */
	float *amax;
};

static inline struct mat mat(void *p, int64_t rows, int64_t cols)
{
	struct mat m = {p, rows, cols, DT_F32, NULL, NULL, NULL};
	return m;
}

static inline struct mat mat_typed(void *p, int64_t rows, int64_t cols, enum dtype type)
{
	struct mat m = {p, rows, cols, type, NULL, NULL, NULL};
	return m;
}

/* Rows [first, first + rows) of m, without what m has as a whole. */
static inline struct mat mat_rows(struct mat m, int64_t first, int64_t rows)
{
	m.p = (char *)m.p + first * m.cols * dtype_bytes(m.type);
	m.rows = rows;
	m.transposed = NULL;
	m.amax = NULL;
	return m;
}

static inline int64_t mat_size(struct mat m)
{
	return m.rows * m.cols;
}

static inline int64_t mat_bytes(struct mat m)
{
	return mat_size(m) * dtype_bytes(m.type);
}

static inline struct mat mat_take(
	struct arena *a, int64_t rows, int64_t cols, enum dtype type)
{
	struct mat m = mat_typed(NULL, rows, cols, type);
	m.p = arena_alloc(a, (size_t)mat_bytes(m));
	return m;
}

/* What a device is at: device_at(). */
enum stretch { AT_NOTHING, AT_FORWARD, AT_BACKWARD, STRETCHES };

struct kernels;
struct device_ops;
struct device_span;

/* Where kernels run. One a rank; the planning device counts in it what would be done. */
struct device {
	const struct kernels *k;
	int threads;
	double flops;	       /* counted by the planning device only */
	struct arena *scratch; /* kernels take temporary memory here and give it back */
	int64_t taken_bytes,
		most_bytes; /* of its memory, by device_arena(): now, and at most */
	int64_t tile_bytes; /* of logits that are worth computing at once */
	int64_t sum_block;  /* floats of gradients that are worth adding up at once */
	bool narrow;	    /* stores numbers of 16 bits in 16 bits */
	bool apart; /* its memory is not the program's, and it works while that goes on */
	int number,
		sharers; /* of a GPU: which of this host's, and how many ranks have it */
	struct device_span *spans; /* what device_arena() gave of memory that is apart */
	int n_spans;
	struct {
		enum stretch what;
		double since, seconds[STRETCHES];
	} watch;		      /* of the CPU */
	const struct device_ops *ops; /* NULL: those of the CPU */
	void *impl;		      /* the device's own */
};

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

/* The hyperparameters of an optimizer in a step; each kernel reads its own. */
struct update {
	float lr, beta1, beta2, eps;
	float grad_scale;	  /* clipping */
	float correct1, correct2; /* 1 - beta^step */
	bool off;		  /* nothing is updated */
	bool nesterov;
	float momentum;
};

/* A vector that an optimizer updates: parameters, its state, gradient, [n] each; and, unless copy.p
 * is NULL, what the parameters are when they are stored narrow. */
struct update_part {
	float *p, *m, *v; /* without such state NULL */
	const float *g;
	struct mat copy; /* [1, n] */
	int64_t n;
	float decay;
	float rate; /* of muon_update */
};

/* How a matrix of [rows, cols] lies in memory: slices of its columns one after the other, each
 * [rows, cols / slices]. */
struct sliced {
	int64_t rows, cols, slices;
};

/* What is known of a step before it is computed; and at its end, when its loss and gradient are
 * there: what the optimizer does with that gradient, which is nothing where one of them is no
 * finite number. */
struct step_terms {
	struct update update; /* but for grad_scale and off */
	double tokens;	      /* that the loss is the mean of */
	double clip;	      /* the largest norm; 0: any */
	float loss_scale;     /* that the gradient has */
	int64_t step;
};

struct step_end {
	struct update update;
	float loss, grad_norm;
	int64_t step;
};

/* Signs that workers vote for: with none all take part; else by the sum of what they bring,
 * or of its signs. */
enum consensus { CONSENSUS_NONE, CONSENSUS_SUM, CONSENSUS_COUNT };
#define CONSENSUS_WORDS "none", "sum", "count"

struct combine {
	int workers;
	const float *weight; /* [workers]; who has 0 takes no part, whatever it brings */
	enum consensus consensus;
	bool normalize; /* by the weights of those that take part */
};

struct keep {
	float density, scale; /* the part that is kept, and what it is multiplied by */
	struct philox_key key;
	int64_t first; /* see chance */
	uint32_t worker;
	int64_t row_step;
};

/* Where the random numbers of elements come from: element (row, col) of what a kernel is given
 * is number first + row * row_step + col of all that the key is for. A step of 0: rows lie
 * together, as they are given. */
struct chance {
	struct philox_key key;
	int64_t first, row_step;
};

static inline int64_t row_step(int64_t step, struct mat x)
{
	return step ? step : x.cols;
}

/* Normally distributed numbers with this mean and standard deviation. A number that is more than
 * `most` deviations from the mean is drawn again. How they are made: kernels/normal.h. */
struct normal {
	float mean, std;
	float most; /* 0: any */
	struct chance chance;
};

/* ---- the kernels ----------------------------------------------------------------- */

/* y[i] = w[ids[i] - first], or 0 when that is not a row of w; added to y if `add`. */
typedef void kern_embed_fwd(struct device *, struct mat y, struct mat w,
	const int32_t *ids, int64_t first, bool add);
/* dw[t] = the sum of dy[i] where ids[i] - first is t, in an order that is that of how many
 * there are: as far as 256 of them for i ascending. */
typedef void kern_embed_bwd(
	struct device *, struct mat dw, struct mat dy, const int32_t *ids, int64_t first);

/* Products: the two operands are of one type (of 8 bits e4m3 and e5m2 mix), the result and the
 * bias of any; dw is fp32. Where operands have a scale, both have, and the sum is multiplied by
 * both before the bias, or what it is added to, is added and the result is rounded.
 *
 * y[n,out] = x[n,in] w[out,in]^T + bias[out]; bias.p may be NULL. A bias of more precision than y
 * may be cast to its type before. */
typedef void kern_linear_fwd(
	struct device *, struct mat y, struct mat x, struct mat w, struct mat bias);
/* dx[n,in] = dy[n,out] w[out,in]; added to dx if `add`. */
typedef void kern_linear_bwd_x(
	struct device *, struct mat dx, struct mat dy, struct mat w, bool add);
/* dw[out,in] = dy[n,out]^T x[n,in]; added to dw if `add`. */
typedef void kern_linear_bwd_w(
	struct device *, struct mat dw, struct mat dy, struct mat x, bool add);
/* Fused: a as linear_fwd gives it, and y = gelu(a) in its tanh form, with the bits of linear_fwd and
 * act_fwd unless sums need not be exact: then GELU may take what a was before it was rounded. And
 * da = slope(a) (dy w), as linear_bwd_x and act_bwd give it, but that a GPU need not round dy w in
 * between: in 16 bits this is a kernel of its own. y, a and da: any, of one type. */
typedef void kern_linear_gelu_fwd(struct device *, struct mat y, struct mat a,
	struct mat x, struct mat w, struct mat bias);
typedef void kern_linear_gelu_bwd(
	struct device *, struct mat da, struct mat dy, struct mat w, struct mat a);
/* y[i] += bias; any */
typedef void kern_bias_fwd(struct device *, struct mat y, struct mat bias);
/* db[1,out] = sum of the rows of dy (any), in an order that is that of the shape */
typedef void kern_bias_bwd(struct device *, struct mat db, struct mat dy);

/*
 * LayerNorm (Ba, Kiros, Hinton 2016): y = (x - mean) rstd gamma + beta.
 * RMSNorm (Zhang, Sennrich 2019): y = x rstd gamma, rstd = 1/sqrt(mean(x^2) + eps).
 * beta.p may be NULL. stats[2, n] keeps mean and rstd for the backward. y and dy: any.
 */
typedef void kern_norm_fwd(struct device *, enum norm_kind, struct mat y,
	struct mat stats, struct mat x, struct mat gamma, struct mat beta, float eps);
/* dx += the gradient of x */
typedef void kern_norm_bwd_x(struct device *, enum norm_kind, struct mat dx,
	struct mat dy, struct mat x, struct mat stats, struct mat gamma);
/* dgamma = , dbeta = (if there is one): sums over rows [first, first + rows) of x */
typedef void kern_norm_bwd_w(struct device *, enum norm_kind, struct mat dgamma,
	struct mat dbeta, struct mat dy, struct mat x, struct mat stats, int64_t first,
	int64_t rows);

/* Fused, with the bits of both: norm_bwd_x of rows [first, first + rows), of all matrices, and
 * norm_bwd_w of these. */
typedef void kern_norm_bwd(struct device *, enum norm_kind, struct mat dx,
	struct mat dgamma, struct mat dbeta, struct mat dy, struct mat x,
	struct mat stats, struct mat gamma, int64_t first, int64_t rows);

/* Turns pairs (j, j + dim/2) of each head by the angle of (position, j); rope[T, dim]
 * holds cosines, then sines. `sign` -1 turns back, which is the backward. x: any. */
typedef void kern_rope(struct device *, struct mat x, int64_t dim, struct mat rope,
	const int32_t *pos, float sign);

/*
 * Blocked online-softmax attention (Dao et al. 2022; Milakov, Gimelshein 2018), over the
 * chunks that a ring brings: `begin` with the first, `end` with the last, after which o is
 * the output and max the log-sum-exp. Key blocks are taken in ascending order.
 *
 * q, k, v and dout are of one type; o, dq, dk and dv each of that or fp32, which they must be
 * where one call does not both begin and end.
 */
typedef void kern_attn_fwd(struct device *, const struct attn *, struct mat o, float *max,
	float *sum, struct mat q, struct mat k, struct mat v, bool begin, bool end);
/* dq, dk, dv += the part of this pair of chunks; = when `begin`. lse is the forward's `max`;
 * delta[batch, heads, q_rows] is scratch, filled when `begin`. */
typedef void kern_attn_bwd(struct device *, const struct attn *, struct mat dq,
	struct mat dk, struct mat dv, float *delta, struct mat dout, struct mat o,
	const float *lse, struct mat q, struct mat k, struct mat v, bool begin);

/*
 * y = cast(x scale), to the nearest number of the format, ties to even; y may be x. Beyond
 * the largest number bf16 and fp16 give infinity; e4m3 and e5m2 saturate, at 448 and
 * 57344, infinity too. Subnormal numbers are kept, NaN stays NaN. With DT_F32 a product.
 * x: any; y: fp32, or stored as the format that it is cast to.
 *
 * A product of less precision is what matrix units do: operands cast, each with its scale;
 * the product of what the casts gave, summed in fp32; the sum times the inverse of both, and
 * that cast to the format of the result.
 */
typedef void kern_round(
	struct device *, struct mat y, struct mat x, enum dtype, float scale);
/* The same for bf16 and fp16, as the 16 bits of the format, and back: y = widen(narrow(x)) has
 * the bits of round(x, 1). */
typedef void kern_narrow(struct device *, uint16_t *y, struct mat x, enum dtype);
typedef void kern_widen(struct device *, struct mat y, const uint16_t *x, enum dtype);
/* *most becomes the largest of it and |x|, or NaN when there is one. x: any. */
typedef void kern_amax(struct device *, float *most, struct mat x);
/* `round` to one of fp8 with the scale that numbers up to *amax ask for, so that the largest is
 * the format's. *inverse, for the `scale` of y, becomes 1 over it. Both are the device's. Where
 * y.transposed is not NULL, it gets the same numbers; only a device that stores 8 bits has it. */
typedef void kern_round_scaled(struct device *, struct mat y, float *inverse,
	struct mat x, enum dtype, const float *amax);

/* y = gelu(a), or for SwiGLU (Shazeer 2020) y = silu(a) b. All of one type, any. */
typedef void kern_act_fwd(
	struct device *, enum act_kind, struct mat y, struct mat a, struct mat b);
/* da, db = ; db.p is NULL for GELU. da may be dy. */
typedef void kern_act_bwd(struct device *, enum act_kind, struct mat da, struct mat db,
	struct mat dy, struct mat a, struct mat b);

/* y = a + b; y may be either. b: any. */
typedef void kern_add(struct device *, struct mat y, struct mat a, struct mat b);
/* y = a - b; y may be either. */
typedef void kern_sub(struct device *, struct mat y, struct mat a, struct mat b);
/* y = x mask / (1 - p); y may be x. Its own backward. y, x: any. */
typedef void kern_dropout(
	struct device *, struct mat y, struct mat x, const struct dropout *);
/* Fused, with the bits of bias_fwd, dropout and add one after the other: y = x +
 * dropout(sum + bias). bias.p may be NULL, the dropout too; y may be sum. sum: any. */
typedef void kern_residual(struct device *, struct mat y, struct mat x, struct mat sum,
	struct mat bias, const struct dropout *);
/* Fused, with the bits of residual and norm_fwd one after the other: y = x + dropout(sum + bias),
 * and the norm of y. A sum that is narrow is of the type of the norm's result. */
struct norm {
	enum norm_kind kind;
	struct mat h, stats, gamma, beta; /* as norm_fwd's; h is its result */
	float eps;
};
typedef void kern_residual_norm(struct device *, struct mat y, struct mat x,
	struct mat sum, struct mat bias, const struct dropout *, const struct norm *);

/*
 * Cross-entropy over one slice of the vocabulary, columns [first, first + cols) of which
 * those below `vocab` are real. max, sum, target: a float a row: the largest logit, the
 * sum of exp(logit - max), the logit of the row's target or -infinity when it is not here.
 * logits: any.
 */
typedef void kern_xent_stats(struct device *, float *max, float *sum, float *target,
	struct mat logits, const int32_t *targets, int64_t first, int64_t vocab);
/* Joins the stats of n_slices slices, [slice][row] each, by the canonical tree:
 * lse[row], loss[row] = lse - target. */
typedef void kern_xent_join(struct device *, float *lse, float *loss, const float *max,
	const float *sum, const float *target, int64_t n_slices, int64_t rows);
/* logits = scale (softmax - onehot), in place; *scale is in the device's memory. */
typedef void kern_xent_bwd(struct device *, struct mat logits, const float *lse,
	const int32_t *targets, int64_t first, int64_t vocab, const float *scale);
/* Fused, with the bits of xent_stats, xent_join and xent_bwd one after the other, where one slice
 * is the whole vocabulary: loss[row], and the logits become their gradient. */
typedef void kern_xent_fused(struct device *, float *loss, struct mat logits,
	const int32_t *targets, int64_t vocab, const float *scale);

/* AdamW (Loshchilov, Hutter 2019), decoupled decay, in the order PyTorch has it. What it is to
 * do is in the device's memory, too, where step_end makes it. */
typedef void kern_adamw(
	struct device *, const struct update_part *, int n_parts, const struct update *);
/* SGD as PyTorch has it, decay coupled: g' = grad_scale g + decay p; m = momentum m + g';
 * p -= lr (nesterov ? g' + momentum m : m). Without m, p -= lr g'. */
typedef void kern_sgd(
	struct device *, const struct update_part *, int n_parts, const struct update *);
/* Muon (Jordan et al. 2024), the momentum: g' = grad_scale g; m = momentum m + (1 - momentum) g';
 * p, which may be g, = nesterov ? momentum m + (1 - momentum) g' : m. */
typedef void kern_muon_momentum(
	struct device *, const struct update_part *, int n_parts, const struct update *);
/* And the update, when g is the orthogonalized momentum: p = (1 - lr decay) p - lr rate g */
typedef void kern_muon_update(
	struct device *, const struct update_part *, int n_parts, const struct update *);
/* x = the matrix, divided by (its Frobenius norm, the root of *squares, + 1e-7): [rows, cols], or
 * transposed where it has more rows than columns. x: any. *squares is in the device's memory. */
typedef void kern_muon_normalize(struct device *, struct mat x, const float *slices,
	const struct sliced *, const struct exact *squares);
/* And back, transposed again, into slices. */
typedef void kern_muon_unpack(
	struct device *, float *slices, struct mat x, const struct sliced *);
/* y = a x + b y. Both of one type, any. */
typedef void kern_axpby(struct device *, struct mat y, float a, struct mat x, float b);
/* The loss, from the sum over tokens; the norm, from the sum of squares of the scaled gradient;
 * and clipping. All are in the device's memory, so that nobody waits for a step to end before
 * its update can be asked for. Of equal sums every device makes equal bits. */
typedef void kern_step_end(struct device *, struct step_end *, const struct exact *loss,
	const struct exact *squares, const struct step_terms *);
/* Local SGD: a worker's pseudo-gradient is what it moved from the anchor, the parameters that
 * all workers had when they last agreed. p = anchor - p */
typedef void kern_pseudo_grad(struct device *, float *p, const float *anchor, int64_t n);
/* p = keep p + (1 - keep) a */
typedef void kern_mix(struct device *, float *p, const float *a, int64_t n, float keep);
/* Of each worker x[i][0..n), one vector: the terms t = weight x, summed by the canonical tree
 * over the workers. With a consensus only terms of the sign that won (which is + where nothing
 * did) count, and no zeros. Normalised, over the weights that count, or 1 where these are
 * next to nothing (GTA: generalized task arithmetic, as in TIES, Yadav et al. 2023). */
typedef void kern_combine(struct device *, float *out, const float *const *x, int64_t n,
	const struct combine *);
/* All but the k largest of each row become 0; of equals the first stay. */
typedef void kern_keep_largest(struct device *, struct mat x, int64_t k);
/* Each element stays with probability `density`. */
typedef void kern_keep_random(struct device *, struct mat x, const struct keep *);

/*
 * What is sent in fewer bits. To nearest, ties to even; with a chance, to one of the two
 * numbers around x, so that in the mean it is x.
 *
 * bfloat16 with a chance; without one it is `round`, and the bits are those of `narrow`.
 */
typedef void kern_round_random(struct device *, struct mat x, const struct chance *);
/* Each row becomes scale code, of codes in [-127, 127] and a scale: max |x| / 127 in bfloat16,
 * so that the product is exact and what is of that form already stays as it is. A row that is
 * not finite, or smaller than any scale, becomes 0. codes and scales may be NULL. */
typedef void kern_quantise(struct device *, struct mat x, int8_t *codes, float *scales,
	const struct chance *);
typedef void kern_dequantise(
	struct device *, struct mat x, const int8_t *codes, const float *scales);
/* k elements of each row in their order, with where they are, in 32 bits if `wide`, else in
 * 16: those that are not 0, at most k, and as many zeros as there is room for. */
typedef void kern_pick(
	struct device *, float *values, void *places, bool wide, struct mat x, int64_t k);
/* And back; what was not picked is 0. */
typedef void kern_strew(struct device *, struct mat x, const float *values,
	const void *places, bool wide, int64_t k);

/* out[i] = sum of squares of row i, in double */
typedef void kern_row_sumsq(struct device *, double *out, struct mat x);
/* x += the sum of v[0..n), exactly. x is in the device's memory. */
typedef void kern_exact_sum(struct device *, struct exact *x, const float *v, int64_t n);
/* x += the sums of squares of the rows of n matrices, each rounded to double, exactly. x
 * likewise. */
typedef void kern_exact_sumsq(
	struct device *, struct exact *x, const struct mat *m, int n);
/* x = initial weights, fp32. Every device makes the same bits. */
typedef void kern_normal(struct device *, struct mat x, const struct normal *);
typedef void kern_zero(struct device *, struct mat x);			 /* any */
typedef void kern_copy(struct device *, struct mat to, struct mat from); /* of one type */
/* Index of the first element that is not finite, or -1. x: any. Waits for the device. */
typedef int64_t kern_find_bad(struct device *, struct mat x);
/* To *sum, in the device's memory, is added the sum over elements (i, j) of a hash of (key,
 * first + i stride + j, bits): equal for any division of a tensor into parts. */
typedef void kern_hash(struct device *, uint64_t *sum, struct mat x, uint64_t key,
	int64_t first, int64_t stride);

/*
 * Between the program's memory and the device's, in the order in which kernels are asked for.
 * What `put` was given may be changed when it returns; `get` waits until it has come.
 */
typedef void kern_put(struct device *, void *to, const void *from, size_t n_bytes);
typedef void kern_get(struct device *, void *to, const void *from, size_t n_bytes);
/* A `get` in two parts: end waits until it has come, and for nothing that was asked for after
 * begin. One at a time, of GET_MOST bytes. It may be part of a graph: then of each launch, and
 * `to` is what it was when that was noted. */
enum { GET_MOST = 256 };
typedef void kern_get_begin(struct device *, void *to, const void *from, size_t n_bytes);
typedef void kern_get_end(struct device *);
/* Memory of the device, zero at first; NULL: there is not so much. */
typedef void *kern_alloc(struct device *, size_t n_bytes);
typedef void kern_free(struct device *, void *p, size_t n_bytes);
/* Until all that was asked for is done, copies too. */
typedef void kern_wait(struct device *);

/* Inference: a row's result does not depend on how many rows are given at once, so that
 * decoding with a cache gives the bits of decoding without. y as linear_fwd. */
typedef void kern_linear_row(
	struct device *, struct mat y, struct mat x, struct mat w, struct mat bias);
/* Row i of q [rows, heads * dim] is at position first + i and attends to the positions up
 * to its own of k, v [.., kv_heads * dim]. */
typedef void kern_attn_row(struct device *, struct mat o, struct mat q, struct mat k,
	struct mat v, int64_t heads, int64_t kv_heads, int64_t dim, int64_t first,
	float scale);

/* The one list: the table of a device, its prototypes and the tests are made from it. */
/* clang-format off */
#define KERNELS(X) \
	X(embed_fwd) X(embed_bwd) \
	X(linear_fwd) X(linear_bwd_x) X(linear_bwd_w) X(bias_fwd) X(bias_bwd) \
	X(linear_gelu_fwd) X(linear_gelu_bwd) \
	X(norm_fwd) X(norm_bwd_x) X(norm_bwd_w) X(norm_bwd) \
	X(rope) X(attn_fwd) X(attn_bwd) \
	X(act_fwd) X(act_bwd) X(add) X(sub) X(dropout) X(residual) X(residual_norm) \
	X(round) X(round_scaled) X(narrow) X(widen) X(amax) \
	X(xent_stats) X(xent_join) X(xent_bwd) X(xent_fused) \
	X(adamw) X(sgd) X(muon_momentum) X(muon_update) X(muon_normalize) X(muon_unpack) X(axpby) \
	X(step_end) X(row_sumsq) X(exact_sum) X(exact_sumsq) X(normal) X(zero) X(copy) X(find_bad) X(hash) \
	X(put) X(get) X(get_begin) X(get_end) X(alloc) X(free) X(wait) \
	X(pseudo_grad) X(mix) X(combine) X(keep_largest) X(keep_random) \
	X(round_random) X(quantise) X(dequantise) X(pick) X(strew) \
	X(linear_row) X(attn_row)
/* clang-format on */

#define KERNEL_FIELD(name) kern_##name *name;
struct kernels {
	const char *name; /* "cpu avx512", ... */
	KERNELS(KERNEL_FIELD)
};
#undef KERNEL_FIELD

/* ---- devices --------------------------------------------------------------------- */

enum { DEVICE_WORK_BYTES = 96 << 20 }; /* that kernels of a GPU have for themselves */

enum device_kind { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA };
#define DEVICE_WORDS "auto", "cpu", "cuda"

struct device_options {
	int threads; /* of the CPU; 0: all that this process may use */
	bool exact; /* products of fp32 are of fp32, and no sum is split but as its shape says */
	bool measure; /* products try the algorithms that there are, and take the quickest */
	int64_t memory_bytes; /* that kernels may have of a GPU, at most; 0: all there is */
	/* Ranks of this host, which have its GPUs in turn, and this one's number. 0 is 1. And how
	 * many have the one that this rank gets; 0: as if all saw the same GPUs. With `alone`,
	 * only a GPU that no other rank has. */
	int ranks, rank, sharers;
	bool alone;
};

/* Makes *d a device with these kernels, and all that the model asks of its kind: narrow, apart,
 * tile_bytes, sum_block. The CPU, a GPU and the planning device each begin with it, so that what is planned
 * for a kind is what a device of that kind does. */
static inline void device_init(
	struct device *d, const struct kernels *k, enum device_kind kind)
{
	/* Logits that are worth computing at once: as many as keep all of a GPU busy. */
	enum { CPU_TILE_BYTES = 64 << 20, GPU_TILE_BYTES = 1 << 30 };
	/* Floats that are worth adding up at once: of a CPU, those that stay in its cache from one
	 * addition to the next; of a GPU, so many that a launch is worth its while. */
	enum { CPU_SUM_BLOCK = 1 << 15, GPU_SUM_BLOCK = 1 << 28 };
	bool gpu = kind == DEVICE_CUDA;
	memset(d, 0, sizeof(*d));
	d->k = k;
	d->threads = 1;
	d->narrow = gpu;
	d->apart = gpu;
	d->tile_bytes = gpu ? GPU_TILE_BYTES : CPU_TILE_BYTES;
	d->sum_block = gpu ? GPU_SUM_BLOCK : CPU_SUM_BLOCK;
}

/* DEVICE_AUTO: the GPU where there is one that can be used, by this rank alone, else the CPU. */
int device_open(struct device *d, enum device_kind kind, const struct device_options *o,
	struct err *e);
/* A number that the GPU which rank `rank` of this host would get has, and no other, of any host;
 * 0: there is none. Nothing is opened. */
uint64_t device_gpu(int rank);
void device_close(struct device *d);
/* A hash of the file that GPUs are used by, pt-cuda.so; 0: there is none. */
uint64_t device_build(void);
/* "cpu avx512", "NVIDIA H100 80GB HBM3 (sm_90, driver 580.95, CUDA 13.0, cuBLASLt 13.1.0)":
 * what fixes the bits, with device_blas() for the CPU. */
const char *device_name(const struct device *d);
/* Bytes of a GPU's memory: in use, by everybody, and still free, but for what CUDA is still going to
 * load. Of the CPU's, 0 in use. */
void device_memory(const struct device *d, int64_t *used, int64_t *free);
/* Operations a second that the device can do at most in products of such numbers, by its
 * maker; fp32 is tf32's where products need not be exact. 0: not known. */
double device_peak(const struct device *d, enum dtype operands);

/*
 * A stopwatch: what is asked for from here on is `what`. And the seconds that the device was at
 * each until it was last told of another, which a GPU must have come to; then they begin anew.
 * NULL: they only begin anew. What becomes a graph has no times.
 */
void device_at(struct device *d, enum stretch what);
void device_times(struct device *d, double seconds[STRETCHES]);

/* What each kernel takes, of a GPU: from here on; and the table of it, the slowest first. */
void device_profile_begin(struct device *d);
void device_profile_end(struct device *d, struct str *out);
/* A named stretch of what the program asks for, which profilers of GPUs show. They nest. */
void device_range(struct device *d, const char *name);
void device_range_end(struct device *d);

/*
 * What is asked for again and again with the same arguments, asked for once: a graph. Between
 * begin and end nothing is done, but all is noted that is asked for; nothing may be asked that
 * waits for the device, or that takes or gives back its memory. false: the device has no
 * graphs, or now not, and all is done at once; of end: something was asked for that a graph
 * cannot have, so nothing was done and it is to be asked for once more.
 *
 * From refill to launch nothing is done either: what is put must be what was put between begin
 * and end, in that order, as many bytes to the same places; then launch does all that was noted,
 * with what was put last. A new graph takes the place of the one before.
 */
bool device_graph_begin(struct device *d);
bool device_graph_end(struct device *d);
void device_graph_refill(struct device *d);
void device_graph_launch(struct device *d);

/* Products of a GPU: which of cuBLASLt's algorithms each shape has got so far, as text, which
 * fixes the bits; and such a text for the products from here on, of which the first line on a
 * shape counts. What was chosen on another GPU, or by another cuBLASLt, is not taken, and that
 * is said. -1: it is no such text. */
void device_algorithms(struct device *d, struct str *out);
int device_take_algorithms(struct device *d, const char *text, struct err *e);
/* Forgets what was chosen, and measures no more: what is not told from here on has the algorithm
 * that cuBLASLt names first, as everywhere. */
void device_forget_algorithms(struct device *d);

/* Memory of the program that the device can use as well, and that stays where it is (pinned);
 * NULL: there is not so much. */
void *device_shared(struct device *d, size_t n_bytes);
void device_shared_free(struct device *d, void *p);

/*
 * Copies beside kernels, between the device's memory and such shared memory; `out`: from the
 * device. A copy comes after all kernels that were asked for before it and after the copies of its
 * way; those of the other way go on beside it, but for the one with the ticket `after`. What is
 * asked for after device_copy_end(), kernels and copies, comes after that copy. The program waits
 * for none of this. Not in a graph.
 *
 * Returns a ticket; 0 is one of nothing. A CPU copies at once.
 */
uint64_t device_copy_begin(struct device *d, bool out, void *to, const void *from,
	size_t n_bytes, uint64_t after);
void device_copy_end(struct device *d, uint64_t ticket);

/* How a device from a shared object does these. */
struct device_ops {
	void (*close)(struct device *);
	const char *(*name)(const struct device *);
	void (*memory)(const struct device *, int64_t *used, int64_t *free);
	const char *(*model)(const struct device *); /* "NVIDIA H100 80GB HBM3" */
	bool (*exact)(const struct device *);
	void (*at)(struct device *, enum stretch what);
	void (*times)(struct device *, double seconds[STRETCHES]);
	void (*profile_begin)(struct device *);
	void (*profile_end)(struct device *, struct str *out);
	void (*range)(struct device *, const char *name);
	void (*range_end)(struct device *);
	bool (*graph_begin)(struct device *);
	bool (*graph_end)(struct device *);
	void (*graph_refill)(struct device *);
	void (*graph_launch)(struct device *);
	void (*algorithms)(struct device *, struct str *out);
	int (*take_algorithms)(struct device *, const char *text, struct err *e);
	void (*forget_algorithms)(struct device *);
	void *(*shared)(struct device *, size_t n_bytes);
	void (*shared_free)(struct device *, void *p);
	uint64_t (*copy_begin)(struct device *, bool out, void *to, const void *from,
		size_t n_bytes, uint64_t after);
	void (*copy_end)(struct device *, uint64_t ticket);
};

/* pt-cuda.so has `pt_cuda_open`, which is such a function (1: an error, and it is only that there
 * is no GPU, or none for this rank alone, which who did not ask for one need not hear),
 * `pt_cuda_gpu`, which is device_gpu(), and `pt_cuda_abi`. It is one with the program when the two
 * agree about all that this file says. */
typedef int device_opener(
	struct device *d, const struct device_options *o, struct err *e);
typedef uint64_t device_finder(int rank);
#define DEVICE_ABI_NAME(name) #name " "
#define DEVICE_ABI PT_VERSION " " KERNELS(DEVICE_ABI_NAME)
static inline uint64_t device_abi(void)
{
	static const size_t sizes[] = {sizeof(struct device), sizeof(struct device_ops),
		sizeof(struct kernels), sizeof(struct mat), sizeof(struct dropout),
		sizeof(struct attn), sizeof(struct norm), sizeof(struct update),
		sizeof(struct step_end), sizeof(struct step_terms),
		sizeof(struct update_part), sizeof(struct sliced), sizeof(struct combine),
		sizeof(struct keep), sizeof(struct chance), sizeof(struct normal),
		sizeof(struct exact), sizeof(struct device_options), sizeof(struct err)};
	uint64_t h = 0;
	for (const char *s = DEVICE_ABI; *s; s++)
		h = hash_mix(h + (unsigned char)*s);
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
		h = hash_mix(h + sizes[i]);
	return h;
}

/* The CPU, with the widest instructions that it and $PT_ISA (sse2, avx2, avx512) allow.
 * The first matrix product opens OpenBLAS. threads 0: all this process may use. */
void device_cpu(struct device *d, int threads);
/* Counts FLOPs and touches nothing: pointers may be addresses of nothing. */
void device_plan(struct device *d, enum device_kind as);
/* An arena in the device's memory; the end of the program where there is not so much. */
void device_arena(struct device *d, struct arena *a, const char *name, size_t n_bytes);
void device_arena_release(struct device *d, struct arena *a);
/* Is p in an arena that is apart from the program's memory? */
bool device_owns(const struct device *d, const void *p);
/* "OpenBLAS 0.3.21 SkylakeX" of the CPU: part of what fixes the bits. Opens it. */
const char *device_blas(void);
int cpu_count(void); /* that this process may use */

#endif
