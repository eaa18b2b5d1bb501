/*
 * Kernels of attention, against the attention of whole sequences in float64: sequences whole
 * and cut into the chunks of a ring, grouped queries, dropout; and the rows of decoding.
 * isa: sse2 avx2 avx512
 */
#include "device.h"
#include "kernels_ref.h"
#include "parallel/parallel.h"

#include <math.h>
#include <string.h>

enum { HEADS = 4 };

/* Sequences, cut into n chunks. Kernels see rows [chunk][batch][row of the chunk], the
 * reference sees [batch][position]. */
struct seqs {
	struct ref_attn ref;
	struct chunks cut;
	int64_t rows;	/* of one sequence in one chunk */
	int32_t *whole; /* the reference's row for each of the kernels' */
};

static struct seqs seqs_of(
	int n, int64_t batch, int64_t context, int64_t kv_heads, int64_t dim, float p)
{
	struct seqs s = {
		.ref = {.batch = batch,
			.rows = context,
			.heads = HEADS,
			.kv_heads = kv_heads,
			.dim = dim,
			.first_head = 8},
		.cut = {.n = n, .here = n, .context = context},
		.rows = context / n,
		.whole = ints(batch * context),
	};
	s.ref.scale = (double)(1 / sqrtf((float)dim));
	s.ref.drop = (struct dropout){
		.key = {{11, 12}}, .p = p, .step = 5, .first_sample = 300};
	int32_t *pos = ints(s.rows);
	for (int c = 0; c < n; c++) {
		chunk_positions(&s.cut, c, pos);
		for (int64_t i = 0; i < batch * s.rows; i++)
			s.whole[c * batch * s.rows + i] =
				(int32_t)(i / s.rows * context) + pos[i % s.rows];
	}
	return s;
}

static int64_t rows_of(const struct seqs *s)
{
	return s->ref.batch * s->ref.rows;
}

/* A matrix of the kernels in the reference's order, and back. */
static double *to_whole(const struct seqs *s, struct mat m)
{
	double *whole = doubles(mat_size(m));
	for (int64_t i = 0; i < mat_size(m); i++)
		whole[s->whole[i / m.cols] * m.cols + i % m.cols] =
			(double)((const float *)m.p)[i];
	return whole;
}

static double *to_chunks(const struct seqs *s, const double *whole, int64_t cols)
{
	double *m = doubles(rows_of(s) * cols);
	for (int64_t i = 0; i < rows_of(s) * cols; i++)
		m[i] = whole[s->whole[i / cols] * cols + i % cols];
	return m;
}

/* ---- the ring -------------------------------------------------------------------- */

/* What the kernels compute with, all chunks of it. */
struct acts {
	struct mat q, k, v, o, dout, dq, dk, dv;
	float *max, *sum, *delta; /* [chunk][batch][head][row] */
};

static struct mat random_mat(int64_t rows, int64_t cols)
{
	struct mat m = mat_blank(rows, cols);
	fill_normal(m.p, rows * cols, 1);
	return m;
}

static struct acts acts_of(const struct seqs *s)
{
	int64_t n = rows_of(s), kv = s->ref.kv_heads * s->ref.dim;
	int64_t cols = HEADS * s->ref.dim;
	return (struct acts){
		.q = random_mat(n, cols),
		.k = random_mat(n, kv),
		.v = random_mat(n, kv),
		.o = mat_blank(n, cols),
		.dout = random_mat(n, cols),
		.dq = random_mat(n, cols), /* gradients are added to what is there */
		.dk = random_mat(n, kv),
		.dv = random_mat(n, kv),
		.max = floats(n * HEADS),
		.sum = floats(n * HEADS),
		.delta = floats(n * HEADS),
	};
}

static struct mat of_chunk(const struct seqs *s, struct mat m, int chunk)
{
	int64_t n = s->ref.batch * s->rows;
	return mat_rows(m, chunk * n, n);
}

static struct attn shape_of(const struct seqs *s, int q_chunk, int k_chunk)
{
	int64_t len;
	struct attn a = {
		.batch = s->ref.batch,
		.heads = HEADS,
		.kv_heads = s->ref.kv_heads,
		.dim = s->ref.dim,
		.q_rows = s->rows,
		.k_rows = s->rows,
		.scale = (float)s->ref.scale,
		.drop = s->ref.drop,
		.first_head = s->ref.first_head,
	};
	chunk_runs(&s->cut, q_chunk, a.q_first, &len);
	chunk_runs(&s->cut, k_chunk, a.k_first, &len);
	return a;
}

static void run_ring(struct device *d, const struct seqs *s, struct acts *t, bool forward)
{
	int64_t state = s->ref.batch * s->rows * HEADS;
	struct ring ring = ring_begin(&s->cut);
	while (ring_next(&ring)) {
		for (int c = 0; c < s->cut.n; c++) {
			int kc = ring_keys_for(&ring, c);
			struct attn a = shape_of(s, c, kc);
			struct mat q = of_chunk(s, t->q, c), k = of_chunk(s, t->k, kc),
				   v = of_chunk(s, t->v, kc), o = of_chunk(s, t->o, c);
			float *max = t->max + c * state, *sum = t->sum + c * state;
			if (forward)
				d->k->attn_fwd(d, &a, o, max, sum, q, k, v,
					ring_first(&ring), ring_last(&ring));
			else
				d->k->attn_bwd(d, &a, of_chunk(s, t->dq, c),
					of_chunk(s, t->dk, kc), of_chunk(s, t->dv, kc),
					t->delta + c * state, of_chunk(s, t->dout, c), o,
					max, q, k, v, ring_first(&ring));
		}
	}
}

/* ---- against the reference ------------------------------------------------------- */

/* lse: the kernels' [chunk][batch][head][row], the reference's [batch][head][position] */
static void check_lse(const struct seqs *s, const float *max, const double *lse)
{
	int64_t context = s->ref.rows, n = rows_of(s) * HEADS;
	double *want = doubles(n);
	for (int64_t i = 0; i < n; i++) {
		int64_t head = i / s->rows % HEADS, sequence = i / s->rows / HEADS;
		int64_t at = s->whole[sequence * s->rows + i % s->rows];
		want[i] = lse[(at / context * HEADS + head) * context + at % context];
	}
	check_close("attn_fwd, log-sum-exp", max, want, n, 1e-6);
}

static void check_matrix(const char *what, const struct seqs *s, struct mat m,
	const double *whole, double bound)
{
	check_close(what, m.p, to_chunks(s, whole, m.cols), mat_size(m), bound);
}

static void check_attention(struct device *d, const struct seqs *s)
{
	struct acts t = acts_of(s);
	double *q = to_whole(s, t.q), *k = to_whole(s, t.k), *v = to_whole(s, t.v);
	double *dq = to_whole(s, t.dq), *dk = to_whole(s, t.dk), *dv = to_whole(s, t.dv);
	double *o = doubles(mat_size(t.o)), *lse = doubles(rows_of(s) * HEADS);

	run_ring(d, s, &t, true);
	ref_attn_fwd(&s->ref, o, lse, q, k, v);
	check_matrix("attn_fwd", s, t.o, o, 1e-5);
	check_lse(s, t.max, lse);

	run_ring(d, s, &t, false);
	ref_attn_bwd(&s->ref, dq, dk, dv, to_whole(s, t.dout), q, k, v);
	check_matrix("attn_bwd, q", s, t.dq, dq, 1e-5);
	check_matrix("attn_bwd, k", s, t.dk, dk, 1e-5);
	check_matrix("attn_bwd, v", s, t.dv, dv, 1e-5);
	assert_int_equal(memory_end(NULL), 0); /* there are many cases */
}

static void whole_sequences(void **state)
{
	static const int64_t rows[] = {1, 7, 128, 129, 300};
	static const int64_t dims[] = {8, 16, 40, 64, 128};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		for (size_t j = 0; j < ARRAY_LEN(dims); j++) {
			for (int kv_heads = 1; kv_heads <= 2; kv_heads++) {
				float p = (i + j + (size_t)kv_heads) % 2 ? 0 : 0.2f;
				int64_t batch = rows[i] < 300 ? 2 : 1;
				struct seqs s =
					seqs_of(1, batch, rows[i], kv_heads, dims[j], p);
				check_attention(*state, &s);
			}
		}
	}
}

/* A run of a chunk is context / 2n long: one position, a few, less and more than the
 * blocks of 128 that the CPU takes. */
static void rings(void **state)
{
	static const struct {
		int n;
		int64_t context, kv_heads, dim;
		float p;
	} cases[] = {
		{1, 64, 4, 16, 0.5f},
		{2, 4, 2, 8, 0},
		{2, 4 * 5, 1, 40, 0.2f},
		{2, 4 * 64, 2, 64, 0.2f},
		{2, 4 * 129, 1, 16, 0.2f},
		{2, 4 * 150, 2, 16, 0},
		{3, 6, 4, 8, 0.2f},
		{3, 6 * 13, 2, 128, 0},
		{3, 6 * 64, 2, 16, 0.2f},
		{3, 6 * 65, 1, 16, 0},
		{4, 8, 2, 8, 0.2f},
		{4, 8 * 7, 2, 40, 0},
		{4, 8 * 43, 1, 16, 0.2f},
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct seqs s = seqs_of(cases[i].n, 2, cases[i].context,
			cases[i].kv_heads, cases[i].dim, cases[i].p);
		check_attention(*state, &s);
	}
}

/* Large scores: the softmax is one key's, or nearly, and nothing overflows. */
static void large_scores(void **state)
{
	for (int n = 1; n <= 2; n++) {
		struct seqs s = seqs_of(n, 1, 140, 2, 16, 0);
		struct acts t = acts_of(&s);
		for (int64_t i = 0; i < mat_size(t.q); i++)
			((float *)t.q.p)[i] *= 300;
		double *o = doubles(mat_size(t.o)), *lse = doubles(rows_of(&s) * HEADS);
		run_ring(*state, &s, &t, true);
		ref_attn_fwd(&s.ref, o, lse, to_whole(&s, t.q), to_whole(&s, t.k),
			to_whole(&s, t.v));
		check_matrix("attn_fwd, scores to 1e3", &s, t.o, o, 2e-4);
	}
}

/* ---- dropout --------------------------------------------------------------------- */

/*
 * With queries of zero the probabilities of row i are 1 / (i + 1), and with values that are
 * the identity, the output is the masked probabilities themselves. So the mask is seen, at
 * every (sample, head, query, key), and must be that of the definition however sequences
 * are cut.
 */
static void check_mask(struct device *d, int n, int64_t first_head, float p)
{
	enum { CONTEXT = 64 };
	struct seqs s = seqs_of(n, 2, CONTEXT, 2, CONTEXT, p);
	s.ref.first_head = first_head;
	struct acts t = acts_of(&s);
	memset(t.q.p, 0, (size_t)mat_size(t.q) * sizeof(float));
	for (int64_t i = 0; i < mat_size(t.v); i++)
		((float *)t.v.p)[i] =
			s.whole[i / t.v.cols] % CONTEXT == i % CONTEXT ? 1 : 0;
	run_ring(d, &s, &t, true);
	double *o = to_whole(&s, t.o), kept = 0, all = 0;
	for (int64_t i = 0; i < mat_size(t.o); i++) {
		int64_t key = i % CONTEXT, head = i / CONTEXT % HEADS;
		int64_t query = i / CONTEXT / HEADS % CONTEXT;
		int64_t sample = i / CONTEXT / HEADS / CONTEXT;
		double keep =
			ref_keep(&s.ref.drop, sample, first_head + head, query, key);
		assert_near(o[i], key > query ? 0 : keep / (double)(query + 1), 1e-6);
		kept += key <= query && o[i] != 0;
		all += key <= query;
	}
	double q = 1 - (double)p;
	assert_near(kept / all, q, 5 * sqrt(q * (1 - q) / all));
}

static void dropout_mask(void **state)
{
	static const int chunks[] = {1, 2, 4};
	for (size_t i = 0; i < ARRAY_LEN(chunks); i++) {
		check_mask(*state, chunks[i], 0, 0.1f);
		check_mask(*state, chunks[i], 36, 0.5f);
	}
}

/* ---- decoding -------------------------------------------------------------------- */

/* Rows [first, first + n) of a sequence whose keys and values are all there. */
static void check_rows(
	struct device *d, int64_t first, int64_t n, int64_t kv_heads, int64_t dim)
{
	struct seqs s = seqs_of(1, 1, first + n, kv_heads, dim, 0);
	struct acts t = acts_of(&s);
	int64_t cols = HEADS * dim;
	double *o = doubles(mat_size(t.o)), *lse = doubles(rows_of(&s) * HEADS);
	struct mat out = mat_rows(t.o, first, n);
	d->k->attn_row(d, out, mat_rows(t.q, first, n), t.k, t.v, HEADS, kv_heads, dim,
		first, (float)s.ref.scale);
	ref_attn_fwd(
		&s.ref, o, lse, to_whole(&s, t.q), to_whole(&s, t.k), to_whole(&s, t.v));
	check_close("attn_row", out.p, o + first * cols, n * cols, 5e-6);
	assert_int_equal(memory_end(NULL), 0);
}

static void rows(void **state)
{
	static const int64_t dims[] = {8, 16, 40, 64, 128};
	for (size_t i = 0; i < ARRAY_LEN(dims); i++) {
		for (int kv_heads = 1; kv_heads <= 4; kv_heads *= 2) {
			check_rows(*state, 0, 1, kv_heads, dims[i]);
			check_rows(*state, 0, 130, kv_heads, dims[i]);
			check_rows(*state, 37, 1, kv_heads, dims[i]);
			int64_t first = pick(1, 99), n = pick(2, 99);
			check_rows(*state, first, n, kv_heads, dims[i]);
		}
	}
}

/* Decoding gives a row the same bits alone and in company. */
static void row_is_alone(void **state)
{
	enum { FIRST = 21, ROWS = 64, DIM = 40 };
	static const int64_t at_once[] = {1, 2, 7};
	struct device *d = *state;
	struct seqs s = seqs_of(1, 1, FIRST + ROWS, 2, DIM, 0);
	struct acts t = acts_of(&s);
	float scale = (float)s.ref.scale;
	struct mat q = mat_rows(t.q, FIRST, ROWS), all = mat_blank(ROWS, q.cols);
	struct mat some = mat_blank(ROWS, q.cols);
	d->k->attn_row(d, all, q, t.k, t.v, HEADS, 2, DIM, FIRST, scale);
	for (size_t a = 0; a < ARRAY_LEN(at_once); a++) {
		for (int64_t i = 0; i < ROWS; i += at_once[a]) {
			int64_t n = min64(at_once[a], ROWS - i);
			d->k->attn_row(d, mat_rows(some, i, n), mat_rows(q, i, n), t.k,
				t.v, HEADS, 2, DIM, FIRST + i, scale);
		}
		check_bits("attn_row", some.p, all.p, mat_size(all));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		on_device(whole_sequences),
		on_device(rings),
		on_device(large_scores),
		on_device(dropout_mask),
		on_device(rows),
		on_device(row_is_alone),
	};
	return run_on_device(tests);
}
