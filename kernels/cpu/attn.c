/* Attention, a block of queries against a block of keys at a time, so that no T x T matrix
 * is stored (FlashAttention: Dao et al. 2022; the backward recomputes the probabilities from
 * the log-sum-exp). A task is a block of queries of one head (backward: one key/value head) of
 * one sequence; tasks share no results, so the bits do not depend on the number of threads. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/pieces.h"

#include <omp.h>

enum { BLOCK = 128 };

/* Consecutive positions from pos on: rows [row, row + len) of a sequence's chunk. */
struct run {
	int64_t row, len, pos;
};

/* Gets the runs of a chunk: two, or one if they are adjacent. Returns their number. */
static int get_runs(int64_t rows, const int64_t first[2], struct run r[2])
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

/* Returns a block of a run, from row `at` of the run on. */
static struct run run_block(struct run r, int64_t at)
{
	return (struct run){r.row + at, min64(BLOCK, r.len - at), r.pos + at};
}

/* Returns the position of the first key that query i attends to; it does not decrease with i. */
static int64_t first_key(const struct attn *a, int64_t b, struct run q, int64_t i)
{
	int64_t start = a->start ? a->start[b * a->q_rows + q.row + i] : 0;
	return a->window ? max64(start, q.pos + i - a->window + 1) : start;
}

/* Returns true if any of the queries attends to any of the keys. */
static bool any_visible(const struct attn *a, int64_t b, struct run q, struct run k)
{
	return k.pos <= q.pos + q.len - 1 && first_key(a, b, q, 0) < k.pos + k.len;
}

/* Returns the number of keys that are not after query i (the causal mask). */
static int64_t count_visible(struct run q, int64_t i, struct run k)
{
	return max64(0, min64(q.pos + i - k.pos + 1, k.len));
}

/* Masks the scores of keys before the first key of each query. */
static void mask_early_keys(
	const struct attn *a, int64_t b, float *s, struct run q, struct run k)
{
	if (first_key(a, b, q, q.len - 1) <= k.pos)
		return;
	for (int64_t i = 0; i < q.len; i++)
		for (int64_t j = 0; j < min64(k.len, first_key(a, b, q, i) - k.pos); j++)
			s[i * BLOCK + j] = -INFINITY;
}

/* Sets keep[j] to 0 or 1/(1-p) for n keys of one query, from position k_pos on. */
static void dropout_factors(const struct attn *a, float *keep, int64_t sample,
	int64_t head, int64_t q_pos, int64_t k_pos, int64_t n)
{
	const float p = a->drop.p, scale = 1.0f / (1.0f - p);
	uint32_t high = (uint32_t)(a->first_head + head) << 20, x[RANDOM_WORDS];
	uint32_t step = *a->drop.step;
	int64_t skip = k_pos & 3; /* words of the first block */
	for (int64_t j = 0; j < n; j += RANDOM_WORDS - skip, skip = 0) {
		int64_t words = min64(RANDOM_WORDS - skip, n - j);
		random_words(x, a->drop.key, high | (uint32_t)((k_pos + j) >> 2),
			(uint32_t)q_pos, (uint32_t)(a->drop.first_sample + sample), step);
		for (int64_t l = 0; l < words; l++)
			keep[j + l] = philox_uniform(x[skip + l]) < p ? 0 : scale;
	}
}

/* A head of a sequence: its matrix, and the index of its first element in the matrix. */
struct head {
	struct mat m;
	int64_t first;
};

static struct head get_head(struct mat m, int64_t b, int64_t rows, int64_t h, int64_t dim)
{
	return (struct head){m, b * rows * mat_stride(m) + h * dim};
}

/* Consecutive rows of a head, in fp32: in the matrix itself, or in a buffer. */
struct rows {
	float *p;
	int64_t stride;
};

static float *get_row(struct rows x, int64_t row)
{
	return x.p + row * x.stride;
}

/* Returns where rows of a head from `row` on are computed: in place if fp32, or in buf. */
static struct rows rows_or_buffer(struct head h, int64_t row, int64_t dim, float *buf)
{
	int64_t stride = mat_stride(h.m);
	if (h.m.type == DT_F32)
		return (struct rows){(float *)h.m.p + h.first + row * stride, stride};
	return (struct rows){buf, dim};
}

static void *row_address(struct head h, int64_t row)
{
	return element_address(h.m, h.first + row * mat_stride(h.m));
}

/* Returns a run of rows of a head in fp32: in place, or widened into buf. */
static struct rows load_rows(struct head h, struct run r, int64_t dim, float *buf)
{
	for (int64_t i = 0; i < r.len && h.m.type != DT_F32; i++)
		K(widen_run)(buf + i * dim, row_address(h, r.row + i), h.m.type, dim);
	return rows_or_buffer(h, r.row, dim, buf);
}

/* Rounds fp32 rows of a head to the matrix's type and stores them; nothing to do if it is fp32. */
static void store_rows(struct head h, struct run r, int64_t dim, struct rows x)
{
	for (int64_t i = 0; i < r.len && h.m.type != DT_F32; i++)
		K(narrow_run)(row_address(h, r.row + i), h.m.type, get_row(x, i), dim);
}

/* Zeroes elements [n, length) of a row. */
static void zero_tail(float *row, int64_t n, int64_t length)
{
	memset(row + n, 0, (size_t)(length - n) * sizeof(float));
}

static void zero_rows(struct rows x, int64_t n, int64_t dim)
{
	for (int64_t i = 0; i < n; i++)
		zero_tail(get_row(x, i), 0, dim);
}

/* Allocates a buffer of n floats for each thread; NULL if all matrices are fp32. */
static float *alloc_bufs(int64_t n, const struct mat *m, int n_mats)
{
	for (int i = 0; i < n_mats; i++)
		if (m[i].type != DT_F32)
			return xmalloc(
				(size_t)(n * omp_get_max_threads()) * sizeof(float));
	return NULL;
}

static float *thread_buf(float *all, int64_t n)
{
	return all ? all + n * omp_get_thread_num() : NULL;
}

static float *offset_buf(float *buffer, int64_t at)
{
	return buffer ? buffer + at : NULL;
}

/* Returns rows of a head as an operand of gemm(). */
static struct operand operand_rows(struct head h, struct run r, bool across)
{
	return (struct operand){row_address(h, r.row), mat_stride(h.m), across, h.m.type};
}

/* Sets s[queries, keys] to scale x y^T, for the rows x of queries and y of keys. Scores of keys
 * after the query are undefined. */
static void score_products(const struct attn *a, float *s, float scale, struct head x,
	struct run qb, struct head y, struct run kb)
{
	const struct gemm g = {.m = qb.len,
		.n = kb.len,
		.k = a->dim,
		.left = operand_rows(x, qb, false),
		.right = operand_rows(y, kb, false),
		.c = s,
		.c_stride = BLOCK,
		.alpha = scale,
		.causal = CAUSAL_RESULT,
		.diagonal = qb.pos - kb.pos,
		.serial = true};
	K(gemm)(&g);
}

/* Adds scale s y to sum (rows of queries), for the rows y of keys; with `across`, scale s^T y
 * (rows of keys), for the rows y of queries. s[queries, keys] is 0 where it is masked. */
static void add_weighted(const struct attn *a, struct rows sum, float scale,
	const float *s, bool across, struct head y, struct run qb, struct run kb)
{
	struct run to = across ? kb : qb, from = across ? qb : kb;
	const struct gemm g = {.m = to.len,
		.n = a->dim,
		.k = from.len,
		.left = {s, BLOCK, across, DT_F32},
		.right = operand_rows(y, from, true),
		.c = sum.p,
		.c_stride = sum.stride,
		.add = true,
		.alpha = scale,
		.causal = CAUSAL_LEFT,
		.diagonal = qb.pos - kb.pos,
		.serial = true};
	K(gemm)(&g);
}

/* Sets s[queries, keys] to scale q k^T, or to -infinity for keys before a query's first key.
 * Scores of keys after the query are undefined. */
static void masked_scores(const struct attn *a, float *s, struct head q, struct run qb,
	struct head k, struct run kb, int64_t b)
{
	score_products(a, s, a->scale, q, qb, k, kb);
	mask_early_keys(a, b, s, qb, kb);
}

/* Replaces the scores of n keys by exp(score - max) with the new running maximum, and the scores of
 * the remaining keys by 0; rescales sum and o. */
static void softmax_row(float *s, int64_t n, int64_t n_keys, float *o, int64_t dim,
	float *max, float *sum)
{
	float new_max = max_of(s, n);
	new_max = new_max > *max ? new_max : *max;
	float shift = new_max == -INFINITY ? 0 : new_max;
	float rescale = exp_f(*max - shift);
	for (int64_t j = 0; j < n; j++)
		s[j] = exp_f(s[j] - shift);
	zero_tail(s, n, n_keys);
	*sum = *sum * rescale + sum_of(s, n_keys);
	*max = new_max;
	for (int64_t j = 0; j < dim; j++)
		o[j] *= rescale;
}

/* A block of queries, and the state of their softmax. */
struct fwd_state {
	struct head q;
	struct rows o;
	struct run block;
	float *max, *sum;
};

/* Adds a block of keys to the online softmax of a block of queries. */
static void fwd_block(const struct attn *a, const struct fwd_state *x, struct head k,
	struct head v, struct run kb, int64_t b, int64_t h)
{
	float s[BLOCK * BLOCK] __attribute__((aligned(64)));
	float keep[BLOCK];
	struct run qb = x->block;
	masked_scores(a, s, x->q, qb, k, kb, b);
	for (int64_t i = 0; i < qb.len; i++) {
		int64_t n = count_visible(qb, i, kb);
		softmax_row(s + i * BLOCK, n, kb.len, get_row(x->o, i), a->dim,
			x->max + i, x->sum + i);
		if (a->drop.p > 0) {
			dropout_factors(a, keep, b, h, qb.pos + i, kb.pos, n);
			for (int64_t j = 0; j < n; j++)
				s[i * BLOCK + j] *= keep[j];
		}
	}
	add_weighted(a, x->o, 1, s, false, v, qb, kb);
}

static void fwd_begin(const struct fwd_state *x, int64_t dim)
{
	zero_rows(x->o, x->block.len, dim);
	for (int64_t i = 0; i < x->block.len; i++) {
		x->max[i] = -INFINITY;
		x->sum[i] = 0;
	}
}

/* Divides the output of a block of queries by their sums, and replaces max by the log-sum-exp. */
static void fwd_end(const struct fwd_state *x, int64_t dim)
{
	for (int64_t i = 0; i < x->block.len; i++) {
		float *out = get_row(x->o, i), scale = 1.0f / x->sum[i];
		x->max[i] += logf(x->sum[i]);
		for (int64_t j = 0; j < dim; j++)
			out[j] *= scale;
	}
}

/* Adds all blocks of keys to the online softmax of a block of queries. */
static void fwd_all_keys(const struct attn *a, const struct fwd_state *x, struct head k,
	struct head v, int64_t b, int64_t h)
{
	struct run runs[2];
	int n = get_runs(a->k_rows, a->k_first, runs);
	for (int r = 0; r < n; r++) {
		for (int64_t at = 0; at < runs[r].len; at += BLOCK) {
			struct run kb = run_block(runs[r], at);
			if (any_visible(a, b, x->block, kb))
				fwd_block(a, x, k, v, kb, b, h);
		}
	}
}

/* Adds a chunk of keys to the online softmax: `begin` starts it, `end` finishes o and max (lse). */
void K(attn_fwd)(struct device *d, const struct attn *a, struct mat o, float *max,
	float *sum, struct mat q, struct mat k, struct mat v, bool begin, bool end)
{
	struct run q_runs[2];
	int n_q = get_runs(a->q_rows, a->q_first, q_runs);
	int64_t per_run = ceil_div(q_runs[0].len, BLOCK), group = a->heads / a->kv_heads;
	int64_t dim = a->dim, size = BLOCK * dim;
	scoped_ptr float *all = alloc_bufs(size, (struct mat[]){o}, 1);
	BUG_ON(o.type != DT_F32 && !(begin && end));
#pragma omp parallel for schedule(dynamic, 1)
	for (int64_t t = 0; t < a->batch * a->heads * n_q * per_run; t++) {
		int64_t b = t / (per_run * n_q) / a->heads,
			h = t / (per_run * n_q) % a->heads;
		/* the last queries first: they have the most keys and take longest */
		struct run qr = q_runs[n_q - 1 - t / per_run % n_q];
		struct run qb = run_block(qr, (per_run - 1 - t % per_run) * BLOCK);
		struct head ho = get_head(o, b, a->q_rows, h, dim);
		struct head hq = get_head(q, b, a->q_rows, h, dim);
		int64_t state = (b * a->heads + h) * a->q_rows + qb.row;
		struct fwd_state x = {hq,
			rows_or_buffer(ho, qb.row, dim, thread_buf(all, size)), qb,
			max + state, sum + state};
		if (begin)
			fwd_begin(&x, dim);
		fwd_all_keys(a, &x, get_head(k, b, a->k_rows, h / group, dim),
			get_head(v, b, a->k_rows, h / group, dim), b, h);
		if (end)
			fwd_end(&x, dim);
		store_rows(ho, qb, dim, x.o);
	}
}

/* A query head and its key/value head; buf: two blocks of rows, then whole heads dk, dv, dq. */
struct bwd {
	struct head q, k, v, o, dout;
	struct rows dq, dk, dv;
	const float *lse;
	float *delta, *buf;
};

/* Returns block n of x->buf; NULL if x has no buffer. */
static float *block_buffer(const struct attn *a, const struct bwd *x, int n)
{
	return offset_buf(x->buf, n * BLOCK * a->dim);
}

/* Sets p = exp(s - lse) and ds = p (dp - delta), from s in p and dp without dropout in ds; then
 * applies dropout to p. Elements of keys after the query become 0. */
static void bwd_probabilities(const struct attn *a, const struct bwd *x, float *p,
	float *ds, struct run qb, struct run kb, int64_t b, int64_t h)
{
	float keep[BLOCK];
	for (int64_t i = 0; i < qb.len; i++) {
		float *pi = p + i * BLOCK, *di = ds + i * BLOCK;
		float lse = x->lse[qb.row + i], delta = x->delta[qb.row + i];
		int64_t n = count_visible(qb, i, kb);
		for (int64_t j = 0; j < n; j++)
			pi[j] = exp_f(pi[j] - lse);
		if (a->drop.p > 0) {
			dropout_factors(a, keep, b, h, qb.pos + i, kb.pos, n);
			for (int64_t j = 0; j < n; j++) {
				di[j] = pi[j] * (di[j] * keep[j] - delta);
				pi[j] *= keep[j];
			}
		} else {
			for (int64_t j = 0; j < n; j++)
				di[j] = pi[j] * (di[j] - delta);
		}
		zero_tail(pi, n, kb.len);
		zero_tail(di, n, kb.len);
	}
}

/* Adds the gradients of two blocks. With p = exp(s - lse), m the dropout mask, dp = dout v^T m: dv
 * += (p m)^T dout; ds = p (dp - delta); dq += scale ds k; dk += scale ds^T q. */
static void bwd_block(const struct attn *a, const struct bwd *x, struct run qb,
	struct run kb, int64_t b, int64_t h)
{
	float p[BLOCK * BLOCK] __attribute__((aligned(64)));
	float ds[BLOCK * BLOCK] __attribute__((aligned(64)));
	const struct rows dq = {get_row(x->dq, qb.row), x->dq.stride};
	const struct rows dk = {get_row(x->dk, kb.row), x->dk.stride};
	const struct rows dv = {get_row(x->dv, kb.row), x->dv.stride};
	masked_scores(a, p, x->q, qb, x->k, kb, b);
	score_products(a, ds, 1, x->dout, qb, x->v, kb);
	bwd_probabilities(a, x, p, ds, qb, kb, b, h);
	add_weighted(a, dv, 1, p, true, x->dout, qb, kb);
	add_weighted(a, dk, a->scale, ds, true, x->q, qb, kb);
	add_weighted(a, dq, a->scale, ds, false, x->k, qb, kb);
}

/* Sets delta[row] to the sum of dout o over the channels of a row. */
static void bwd_delta(const struct attn *a, const struct bwd *x)
{
	struct run all = {0, a->q_rows, 0};
	for (int64_t at = 0; at < a->q_rows; at += BLOCK) {
		struct run r = run_block(all, at);
		struct rows dout = load_rows(x->dout, r, a->dim, block_buffer(a, x, 0));
		struct rows o = load_rows(x->o, r, a->dim, block_buffer(a, x, 1));
		for (int64_t i = 0; i < r.len; i++)
			x->delta[r.row + i] =
				dot(get_row(dout, i), get_row(o, i), a->dim);
	}
}

/* Adds the gradients of a block of keys and all queries of a head. */
static void bwd_all_queries(
	const struct attn *a, const struct bwd *x, struct run kb, int64_t b, int64_t h)
{
	struct run runs[2];
	int n = get_runs(a->q_rows, a->q_first, runs);
	for (int r = 0; r < n; r++) {
		for (int64_t at = 0; at < runs[r].len; at += BLOCK) {
			struct run qb = run_block(runs[r], at);
			if (any_visible(a, b, qb, kb))
				bwd_block(a, x, qb, kb, b, h);
		}
	}
}

/* Adds the gradients of all pairs of blocks of a query head and its key/value head. */
static void bwd_all_keys(const struct attn *a, const struct bwd *x, int64_t b, int64_t h)
{
	struct run runs[2];
	int n = get_runs(a->k_rows, a->k_first, runs);
	for (int r = 0; r < n; r++)
		for (int64_t at = 0; at < runs[r].len; at += BLOCK)
			bwd_all_queries(a, x, run_block(runs[r], at), b, h);
}

/* The arguments of attn_bwd. */
struct bwd_args {
	struct mat dq, dk, dv, dout, o, q, k, v;
	const float *lse;
	float *delta;
	bool begin;
};

/* Adds the gradients of a query head; x.dk and x.dv are set already. */
static void bwd_query_head(const struct attn *a, const struct bwd_args *m, struct bwd x,
	int64_t b, int64_t h)
{
	const struct head to = get_head(m->dq, b, a->q_rows, h, a->dim);
	int64_t state = (b * a->heads + h) * a->q_rows;
	x.q = get_head(m->q, b, a->q_rows, h, a->dim);
	x.o = get_head(m->o, b, a->q_rows, h, a->dim);
	x.dout = get_head(m->dout, b, a->q_rows, h, a->dim);
	x.dq = rows_or_buffer(to, 0, a->dim,
		offset_buf(block_buffer(a, &x, 2), 2 * a->k_rows * a->dim));
	x.lse = m->lse + state;
	x.delta = m->delta + state;
	if (m->begin) {
		zero_rows(x.dq, a->q_rows, a->dim);
		bwd_delta(a, &x);
	}
	bwd_all_keys(a, &x, b, h);
	store_rows(to, (struct run){0, a->q_rows, 0}, a->dim, x.dq);
}

/* Computes the gradients of a key/value head and of the query heads that read it. */
static void bwd_group(const struct attn *a, const struct bwd_args *m, float *buf,
	int64_t b, int64_t kvh)
{
	const struct run keys = {0, a->k_rows, 0};
	const struct head to_k = get_head(m->dk, b, a->k_rows, kvh, a->dim);
	const struct head to_v = get_head(m->dv, b, a->k_rows, kvh, a->dim);
	int64_t group = a->heads / a->kv_heads;
	struct bwd x = {.k = get_head(m->k, b, a->k_rows, kvh, a->dim),
		.v = get_head(m->v, b, a->k_rows, kvh, a->dim),
		.buf = buf};
	x.dk = rows_or_buffer(to_k, 0, a->dim, block_buffer(a, &x, 2));
	x.dv = rows_or_buffer(
		to_v, 0, a->dim, offset_buf(block_buffer(a, &x, 2), a->k_rows * a->dim));
	if (m->begin) {
		zero_rows(x.dk, a->k_rows, a->dim);
		zero_rows(x.dv, a->k_rows, a->dim);
	}
	for (int64_t h = kvh * group; h < (kvh + 1) * group; h++)
		bwd_query_head(a, m, x, b, h);
	store_rows(to_k, keys, a->dim, x.dk);
	store_rows(to_v, keys, a->dim, x.dv);
}

/* Adds a pair of chunks to dq, dk and dv, or with `begin` sets them, and delta. */
void K(attn_bwd)(struct device *d, const struct attn *a, struct mat dq, struct mat dk,
	struct mat dv, float *delta, struct mat dout, struct mat o, const float *lse,
	struct mat q, struct mat k, struct mat v, bool begin)
{
	const struct bwd_args m = {dq, dk, dv, dout, o, q, k, v, lse, delta, begin};
	int64_t size = (2 * BLOCK + 2 * a->k_rows + a->q_rows) * a->dim;
	scoped_ptr float *all =
		alloc_bufs(size, (struct mat[]){dq, dk, dv, dout, o, q, k, v}, 8);
	bool wide = dq.type == DT_F32 && dk.type == DT_F32 && dv.type == DT_F32;
	BUG_ON(!wide && !begin);
#pragma omp parallel for schedule(dynamic, 1)
	for (int64_t t = 0; t < a->batch * a->kv_heads; t++)
		bwd_group(a, &m, thread_buf(all, size), t / a->kv_heads, t % a->kv_heads);
}
