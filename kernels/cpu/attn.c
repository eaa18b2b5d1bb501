/*
 * Attention, a block of queries against a block of keys at a time, so that no T x T matrix
 * is stored (FlashAttention: Dao et al. 2022; the backward recomputes the probabilities from
 * the log-sum-exp). A task is a block of queries of one head (backward: one key/value head) of
 * one sequence; tasks share no results, so the number of threads changes no bit.
 */
#include "kernels/cpu/gemm.h"

enum { BLOCK = 128 };

/* Consecutive positions from pos on: rows [row, row + len) of a sequence's chunk. */
struct run {
	int64_t row, len, pos;
};

/* The runs of a chunk: two, or one if they are adjacent. Returns their number. */
static int runs_of(int64_t rows, const int64_t first[2], struct run r[2])
{
	int64_t half = rows / 2;
	if (first[1] == first[0] + half || half * 2 != rows) {
		r[0] = (struct run){0, rows, first[0]};
		return 1;
	}
	r[0] = (struct run){0, half, first[0]};
	r[1] = (struct run){half, half, first[1]};
	return 2;
}

/* A block of a run, from row `at` of the run on. */
static struct run block_of(struct run r, int64_t at)
{
	return (struct run){r.row + at, min64(BLOCK, r.len - at), r.pos + at};
}

/* Of the queries of a sequence, by row: the first key that they attend to; NULL: the first of all. */
static const int32_t *starts_of(const struct attn *a, int64_t b)
{
	return a->start ? a->start + b * a->q_rows : NULL;
}

/* Does any of the queries attend to any of the keys? Starts do not decrease. */
static bool is_visible(const int32_t *start, struct run q, struct run k)
{
	return k.pos <= q.pos + q.len - 1 && (!start || start[q.row] < k.pos + k.len);
}

/* Hides keys after the position of the query (the causal mask), and keys before its start. */
static void mask(float *s, const int32_t *start, struct run q, struct run k)
{
	for (int64_t i = 0; i < q.len && k.pos + k.len - 1 > q.pos; i++)
		for (int64_t j = max64(0, q.pos + i - k.pos + 1); j < k.len; j++)
			s[i * BLOCK + j] = -INFINITY;
	for (int64_t i = 0; i < q.len && start; i++)
		for (int64_t j = 0; j < min64(k.len, start[q.row + i] - k.pos); j++)
			s[i * BLOCK + j] = -INFINITY;
}

/* keep[j] = 0 or 1/(1-p) for keys [k.pos, k.pos + k.len) of one query. */
static void drop_row(const struct attn *a, float *keep, int64_t sample, int64_t head,
	int64_t q_pos, struct run k)
{
	const float p = a->drop.p, scale = 1.0f / (1.0f - p);
	uint32_t high = (uint32_t)(a->first_head + head) << 20, x[RANDOM_WORDS];
	uint32_t step = *a->drop.step;
	int64_t skip = k.pos & 3; /* of the words of the first block */
	for (int64_t j = 0; j < k.len; j += RANDOM_WORDS - skip, skip = 0) {
		int64_t n = min64(RANDOM_WORDS - skip, k.len - j);
		random_words(x, a->drop.key, high | (uint32_t)((k.pos + j) >> 2),
			(uint32_t)q_pos, (uint32_t)(a->drop.first_sample + sample), step);
		for (int64_t l = 0; l < n; l++)
			keep[j + l] = philox_uniform(x[skip + l]) < p ? 0 : scale;
	}
}

/* A head of a sequence: its first element, and the distance between its rows. */
struct head {
	float *p;
	int64_t stride;
};

static struct head head_of(struct mat m, int64_t b, int64_t rows, int64_t h, int64_t dim)
{
	return (struct head){(float *)m.p + b * rows * m.cols + h * dim, m.cols};
}

static float *row_of(struct head h, int64_t row)
{
	return h.p + row * h.stride;
}

/* c[m,n] = alpha op(a) op(b) (+ c), in this thread */
static void product(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha,
	const float *a, int64_t a_stride, const float *b, int64_t b_stride, bool add,
	float *c, int64_t c_stride)
{
	const struct gemm g = {m, n, k, {a, a_stride, ta, DT_F32},
		{b, b_stride, !tb, DT_F32}, c, c_stride, DT_F32, add, alpha, NULL, true};
	K(gemm)(&g);
}

/* ---- forward --------------------------------------------------------------------- */

/* s[len, keys] = scale q k^T, masked. */
static void scores(const struct attn *a, float *s, struct head q, struct run qb,
	struct head k, struct run kb, int64_t b)
{
	product(false, true, qb.len, kb.len, a->dim, a->scale, row_of(q, qb.row),
		q.stride, row_of(k, kb.row), k.stride, false, s, BLOCK);
	mask(s, starts_of(a, b), qb, kb);
}

/* Replaces scores by exp(score - max) with the new running maximum, and rescales sum and o to it. */
static void softmax_row(
	float *s, int64_t n, float *o, int64_t dim, float *max, float *sum)
{
	float top = max_of(s, n);
	top = top > *max ? top : *max;
	float base = top == -INFINITY ? 0 : top;
	float fade = exp_f(*max - base);
	for (int64_t j = 0; j < n; j++)
		s[j] = exp_f(s[j] - base);
	*sum = *sum * fade + sum_of(s, n);
	*max = top;
	for (int64_t j = 0; j < dim; j++)
		o[j] *= fade;
}

static void fwd_block(const struct attn *a, struct head o, float *max, float *sum,
	struct head q, struct head k, struct head v, struct run qb, struct run kb,
	int64_t b, int64_t h)
{
	float s[BLOCK * BLOCK] __attribute__((aligned(64)));
	float keep[BLOCK];
	scores(a, s, q, qb, k, kb, b);
	for (int64_t i = 0; i < qb.len; i++) {
		int64_t row = qb.row + i;
		softmax_row(s + i * BLOCK, kb.len, row_of(o, row), a->dim, max + row,
			sum + row);
		if (a->drop.p > 0) {
			drop_row(a, keep, b, h, qb.pos + i, kb);
			for (int64_t j = 0; j < kb.len; j++)
				s[i * BLOCK + j] *= keep[j];
		}
	}
	product(false, false, qb.len, a->dim, kb.len, 1, s, BLOCK, row_of(v, kb.row),
		v.stride, true, row_of(o, qb.row), o.stride);
}

static void fwd_begin(struct head o, float *max, float *sum, struct run qb, int64_t dim)
{
	for (int64_t i = qb.row; i < qb.row + qb.len; i++) {
		max[i] = -INFINITY;
		sum[i] = 0;
		memset(row_of(o, i), 0, (size_t)dim * sizeof(float));
	}
}

static void fwd_end(
	struct head o, float *max, const float *sum, struct run qb, int64_t dim)
{
	for (int64_t i = qb.row; i < qb.row + qb.len; i++) {
		float *out = row_of(o, i), scale = 1.0f / sum[i];
		max[i] += logf(sum[i]);
		for (int64_t j = 0; j < dim; j++)
			out[j] *= scale;
	}
}

void K(attn_fwd)(struct device *d, const struct attn *a, struct mat o, float *max,
	float *sum, struct mat q, struct mat k, struct mat v, bool begin, bool end)
{
	struct run q_runs[2], k_runs[2];
	int n_q = runs_of(a->q_rows, a->q_first, q_runs);
	int n_k = runs_of(a->k_rows, a->k_first, k_runs);
	int64_t per_run = ceil_div(q_runs[0].len, BLOCK), group = a->heads / a->kv_heads;
#pragma omp parallel for schedule(dynamic, 1)
	for (int64_t t = 0; t < a->batch * a->heads * n_q * per_run; t++) {
		int64_t b = t / (per_run * n_q) / a->heads,
			h = t / (per_run * n_q) % a->heads;
		/* the last queries first: they have most keys and take longest */
		struct run qr = q_runs[n_q - 1 - t / per_run % n_q];
		struct run qb = block_of(qr, (per_run - 1 - t % per_run) * BLOCK);
		struct head ho = head_of(o, b, a->q_rows, h, a->dim);
		struct head hq = head_of(q, b, a->q_rows, h, a->dim);
		struct head hk = head_of(k, b, a->k_rows, h / group, a->dim);
		struct head hv = head_of(v, b, a->k_rows, h / group, a->dim);
		float *m = max + (b * a->heads + h) * a->q_rows;
		float *s = sum + (b * a->heads + h) * a->q_rows;
		if (begin)
			fwd_begin(ho, m, s, qb, a->dim);
		for (int r = 0; r < n_k; r++) {
			for (int64_t at = 0; at < k_runs[r].len; at += BLOCK) {
				struct run kb = block_of(k_runs[r], at);
				if (is_visible(starts_of(a, b), qb, kb))
					fwd_block(a, ho, m, s, hq, hk, hv, qb, kb, b, h);
			}
		}
		if (end)
			fwd_end(ho, m, s, qb, a->dim);
	}
}

/* ---- backward -------------------------------------------------------------------- */

struct bwd {
	struct head q, k, v, o, dout, dq, dk, dv;
	const float *lse;
	float *delta;
};

/*
 * With p = exp(s - lse), m the dropout mask and dp = dout v^T m:
 * dv += (p m)^T dout; ds = p (dp - delta); dq += scale ds k; dk += scale ds^T q.
 */
static void bwd_block(const struct attn *a, const struct bwd *x, struct run qb,
	struct run kb, int64_t b, int64_t h)
{
	float p[BLOCK * BLOCK] __attribute__((aligned(64)));
	float ds[BLOCK * BLOCK] __attribute__((aligned(64)));
	float keep[BLOCK];
	scores(a, p, x->q, qb, x->k, kb, b);
	product(false, true, qb.len, kb.len, a->dim, 1, row_of(x->dout, qb.row),
		x->dout.stride, row_of(x->v, kb.row), x->v.stride, false, ds, BLOCK);
	for (int64_t i = 0; i < qb.len; i++) {
		float *pi = p + i * BLOCK, *di = ds + i * BLOCK;
		float lse = x->lse[qb.row + i], delta = x->delta[qb.row + i];
		for (int64_t j = 0; j < kb.len; j++)
			pi[j] = exp_f(pi[j] - lse);
		if (a->drop.p > 0) {
			drop_row(a, keep, b, h, qb.pos + i, kb);
			for (int64_t j = 0; j < kb.len; j++) {
				di[j] = pi[j] * (di[j] * keep[j] - delta);
				pi[j] *= keep[j];
			}
		} else {
			for (int64_t j = 0; j < kb.len; j++)
				di[j] = pi[j] * (di[j] - delta);
		}
	}
	product(true, false, kb.len, a->dim, qb.len, 1, p, BLOCK,
		row_of(x->dout, qb.row), x->dout.stride, true, row_of(x->dv, kb.row),
		x->dv.stride);
	product(true, false, kb.len, a->dim, qb.len, a->scale, ds, BLOCK,
		row_of(x->q, qb.row), x->q.stride, true, row_of(x->dk, kb.row),
		x->dk.stride);
	product(false, false, qb.len, a->dim, kb.len, a->scale, ds, BLOCK,
		row_of(x->k, kb.row), x->k.stride, true, row_of(x->dq, qb.row),
		x->dq.stride);
}

static void zero_head(struct head h, int64_t rows, int64_t dim)
{
	for (int64_t i = 0; i < rows; i++)
		memset(row_of(h, i), 0, (size_t)dim * sizeof(float));
}

static void bwd_begin(const struct attn *a, const struct bwd *x, bool first_of_group)
{
	zero_head(x->dq, a->q_rows, a->dim);
	if (first_of_group) {
		zero_head(x->dk, a->k_rows, a->dim);
		zero_head(x->dv, a->k_rows, a->dim);
	}
	for (int64_t i = 0; i < a->q_rows; i++)
		x->delta[i] = dot(row_of(x->dout, i), row_of(x->o, i), a->dim);
}

static void bwd_head(const struct attn *a, const struct bwd *x, const struct run *q_runs,
	int n_q, struct run kb, int64_t b, int64_t h)
{
	for (int r = 0; r < n_q; r++) {
		for (int64_t at = 0; at < q_runs[r].len; at += BLOCK) {
			struct run qb = block_of(q_runs[r], at);
			if (is_visible(starts_of(a, b), qb, kb))
				bwd_block(a, x, qb, kb, b, h);
		}
	}
}

void K(attn_bwd)(struct device *d, const struct attn *a, struct mat dq, struct mat dk,
	struct mat dv, float *delta, struct mat dout, struct mat o, const float *lse,
	struct mat q, struct mat k, struct mat v, bool begin)
{
	struct run q_runs[2], k_runs[2];
	int n_q = runs_of(a->q_rows, a->q_first, q_runs);
	int n_k = runs_of(a->k_rows, a->k_first, k_runs);
	int64_t group = a->heads / a->kv_heads;
#pragma omp parallel for schedule(dynamic, 1)
	for (int64_t t = 0; t < a->batch * a->kv_heads; t++) {
		int64_t b = t / a->kv_heads, kvh = t % a->kv_heads;
		for (int64_t h = kvh * group; h < (kvh + 1) * group; h++) {
			int64_t state = (b * a->heads + h) * a->q_rows;
			struct bwd x = {
				.q = head_of(q, b, a->q_rows, h, a->dim),
				.k = head_of(k, b, a->k_rows, kvh, a->dim),
				.v = head_of(v, b, a->k_rows, kvh, a->dim),
				.o = head_of(o, b, a->q_rows, h, a->dim),
				.dout = head_of(dout, b, a->q_rows, h, a->dim),
				.dq = head_of(dq, b, a->q_rows, h, a->dim),
				.dk = head_of(dk, b, a->k_rows, kvh, a->dim),
				.dv = head_of(dv, b, a->k_rows, kvh, a->dim),
				.lse = lse + state,
				.delta = delta + state,
			};
			if (begin)
				bwd_begin(a, &x, h == kvh * group);
			for (int r = 0; r < n_k; r++)
				for (int64_t at = 0; at < k_runs[r].len; at += BLOCK)
					bwd_head(a, &x, q_runs, n_q,
						block_of(k_runs[r], at), b, h);
		}
	}
}
