/* Attention kernels, against attention of whole sequences in float64: whole sequences and
 * chunks as in ring attention, grouped queries, dropout, documents, windows.
 * isa: sse2 avx2 avx512
 * device: cpu cuda
 */
#include "tests/support/device.h"
#include "tests/support/kernels_ref.h"
#include "parallel/store.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 4 };

/* Sequences of one type, cut into n chunks. The kernels' rows are [chunk][batch][row of the chunk],
 * the reference's [batch][position]. */
struct seqs {
	struct ref_attn ref;
	struct chunks cut;
	enum dtype type;
	int64_t rows;	/* of one sequence in one chunk */
	int32_t *whole; /* the reference's row for each of the kernels' */
	int32_t *start; /* ref.start in the order of the kernels' rows */
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
		.cut = {.n = n, .local = n, .context = context},
		.rows = context / n,
		.whole = ints(batch * context),
	};
	s.ref.scale = (double)(1 / sqrtf((float)dim));
	s.ref.drop = (struct dropout){
		.key = {{11, 12}}, .p = p, .step = counter(5), .first_sample = 300};
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

/* Divides the sequences into documents of 1 to `longest` tokens, another way in each sequence; 0: one
 * document. */
static void cut_documents(struct seqs *s, int64_t longest)
{
	int32_t *start = ints(rows_of(s));
	s->start = ints(rows_of(s));
	for (int64_t b = 0; b < s->ref.batch; b++)
		for (int64_t t = 0, next = 0, first = 0; t < s->ref.rows; t++) {
			if (t == next && longest) {
				first = t;
				next = t + pick(1, longest);
			}
			start[b * s->ref.rows + t] = (int32_t)first;
		}
	for (int64_t i = 0; i < rows_of(s); i++)
		s->start[i] = start[s->whole[i]];
	s->ref.start = start;
}

/* The numbers of a matrix as fp32. */
static const float *numbers(struct mat m)
{
	struct device *d = test_device();
	if (m.type == DT_F32)
		return m.p;
	struct mat y = mat_blank(m.rows, m.cols);
	d->k->widen(d, y, m.p, m.type);
	return y.p;
}

/* A matrix of the kernels in the reference's order, and back. */
static double *to_whole(const struct seqs *s, struct mat m)
{
	double *whole = doubles(mat_size(m));
	const float *x = numbers(m);
	for (int64_t i = 0; i < mat_size(m); i++)
		whole[s->whole[i / m.cols] * m.cols + i % m.cols] = (double)x[i];
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

/* The kernels' tensors, with all chunks. */
struct acts {
	struct mat q, k, v, o, dout, dq, dk, dv;
	float *max, *sum, *delta; /* [chunk][batch][head][row] */
	bool joined;		  /* dq, dk and dv are columns of one matrix */
};

static struct mat blank_mat(int64_t rows, int64_t cols, enum dtype type)
{
	int64_t per_float = (int64_t)sizeof(float) / dtype_bytes(type);
	return mat_typed(floats(ceil_div(rows * cols, per_float)), rows, cols, type);
}

static struct mat random_mat(int64_t rows, int64_t cols, enum dtype type)
{
	struct device *d = test_device();
	struct mat m = mat_blank(rows, cols), y = blank_mat(rows, cols, type);
	fill_normal(m.p, rows * cols, 1);
	if (type == DT_F32)
		return m;
	d->k->narrow(d, y.p, m, type);
	return y;
}

static struct acts acts_of(const struct seqs *s)
{
	int64_t n = rows_of(s), kv = s->ref.kv_heads * s->ref.dim;
	int64_t heads = s->ref.heads, cols = heads * s->ref.dim;
	/* Results of a single call may have 16 bits too. */
	enum dtype some = s->cut.n == 1 ? s->type : DT_F32;
	enum dtype others = n % 2 ? DT_F32 : some;
	return (struct acts){
		.q = random_mat(n, cols, s->type),
		.k = random_mat(n, kv, s->type),
		.v = random_mat(n, kv, s->type),
		.o = blank_mat(n, cols, n % 4 == 1 ? DT_F32 : some),
		.dout = random_mat(n, cols, s->type),
		.dq = blank_mat(
			n, cols, some), /* the first pair of chunks sets gradients */
		.dk = blank_mat(n, kv, others),
		.dv = blank_mat(n, kv, some),
		.max = floats(n * heads),
		.sum = floats(n * heads),
		.delta = floats(n * heads),
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
		.heads = s->ref.heads,
		.kv_heads = s->ref.kv_heads,
		.dim = s->ref.dim,
		.q_rows = s->rows,
		.k_rows = s->rows,
		.scale = (float)s->ref.scale,
		.drop = s->ref.drop,
		.first_head = s->ref.first_head,
		.start = s->start ? s->start + q_chunk * s->ref.batch * s->rows : NULL,
		.window = s->ref.window,
	};
	chunk_runs(&s->cut, q_chunk, a.q_first, &len);
	chunk_runs(&s->cut, k_chunk, a.k_first, &len);
	return a;
}

static void run_ring(struct device *d, const struct seqs *s, struct acts *t, bool forward)
{
	int64_t state = s->ref.batch * s->rows * s->ref.heads;
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

/* Tolerances: probabilities, their gradients and 16-bit results are rounded to the type. */
static const struct bounds {
	const char *o, *lse, *q, *k, *v;
	double bound;
} bounds[] = {
	[DT_F32] = {"attn_fwd", "attn_fwd, log-sum-exp", "attn_bwd, q", "attn_bwd, k",
		"attn_bwd, v", 1e-5},
	[DT_BF16] = {"attn_fwd, bf16", "attn_fwd, log-sum-exp, bf16", "attn_bwd, q, bf16",
		"attn_bwd, k, bf16", "attn_bwd, v, bf16", 2e-2},
	[DT_F16] = {"attn_fwd, fp16", "attn_fwd, log-sum-exp, fp16", "attn_bwd, q, fp16",
		"attn_bwd, k, fp16", "attn_bwd, v, fp16", 3e-3},
};

/* lse: the kernels' [chunk][batch][head][row], the reference's [batch][head][position] */
static void check_lse(const struct seqs *s, const float *max, const double *lse)
{
	int64_t context = s->ref.rows, heads = s->ref.heads, n = rows_of(s) * heads;
	double *want = doubles(n);
	for (int64_t i = 0; i < n; i++) {
		int64_t head = i / s->rows % heads, sequence = i / s->rows / heads;
		int64_t at = s->whole[sequence * s->rows + i % s->rows];
		want[i] = lse[(at / context * heads + head) * context + at % context];
	}
	check_close(bounds[s->type].lse, max, want, n, 1e-6);
}

static void check_matrix(const char *what, const struct seqs *s, struct mat m,
	const double *whole, double bound)
{
	const double *want = to_chunks(s, whole, m.cols);
	check_close(what, numbers(m), want, mat_size(m), bound);
}

/* Resets results and gradients to NaN. */
static void blank_results(struct acts *t)
{
	struct mat *all[] = {&t->o, &t->dq, &t->dk, &t->dv};
	int64_t at = 0, width = t->dq.cols + t->dk.cols + t->dv.cols;
	struct mat joined = blank_mat(t->dq.rows, width, t->dq.type);
	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		if (!i || !t->joined) {
			*all[i] = blank_mat(all[i]->rows, all[i]->cols, all[i]->type);
			continue;
		}
		*all[i] = mat_cols(joined, at, all[i]->cols);
		at += all[i]->cols;
	}
}

/* The first sequence alone. */
static struct acts first_of(const struct acts *t, int64_t rows)
{
	struct acts one = *t;
	struct mat *all[] = {
		&one.q, &one.k, &one.v, &one.o, &one.dout, &one.dq, &one.dk, &one.dv};
	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		*all[i] = mat_rows(*all[i], 0, rows);
		if (i == 3 || i > 4)
			*all[i] = blank_mat(rows, all[i]->cols, all[i]->type);
	}
	return one;
}

static struct mat contiguous(struct device *d, struct mat m)
{
	struct mat y = blank_mat(m.rows, m.cols, m.type);
	if (!m.stride)
		return m;
	d->k->copy(d, y, m);
	return y;
}

static void run_both(struct device *d, const struct seqs *s, struct acts *t)
{
	run_ring(d, s, t, true);
	run_ring(d, s, t, false);
}

static void check_same(struct device *d, const struct acts *x, const struct acts *y)
{
	const struct mat a[] = {x->o, x->dq, x->dk, x->dv};
	const struct mat b[] = {y->o, y->dq, y->dk, y->dv};
	for (size_t i = 0; i < ARRAY_LEN(a); i++)
		check_bits("with less overlap", numbers(contiguous(d, b[i])),
			numbers(contiguous(d, a[i])), mat_size(a[i]));
}

/* The first rows have few keys, and so larger results, and rounding errors, than most rows. */
static double bound_of(const struct seqs *s)
{
	return bounds[s->type].bound * (s->ref.rows > 600 ? 1.5 : 1);
}

/* Compares each of the devices with one reference. */
static void check_attention_on(
	struct device *const *devices, size_t n_devices, const struct seqs *s)
{
	struct acts t = acts_of(s);
	double *q = to_whole(s, t.q), *k = to_whole(s, t.k), *v = to_whole(s, t.v);
	/* Gradients may be nearly 0, so they are added to numbers near 1 and compared there. */
	const struct mat to[] = {random_mat(t.q.rows, t.q.cols, DT_F32),
		random_mat(t.k.rows, t.k.cols, DT_F32),
		random_mat(t.v.rows, t.v.cols, DT_F32)};
	double *want[] = {to_whole(s, to[0]), to_whole(s, to[1]), to_whole(s, to[2])};
	const struct bounds b = bounds[s->type];
	const char *const names[] = {b.q, b.k, b.v};
	double *o = doubles(mat_size(t.o)), *lse = doubles(rows_of(s) * s->ref.heads);
	ref_attn_fwd(&s->ref, o, lse, q, k, v);
	t.joined = t.dq.type == t.dk.type && t.dq.type == t.dv.type && pick(0, 1);
	ref_attn_bwd(&s->ref, want[0], want[1], want[2], to_whole(s, t.dout), q, k, v);
	for (size_t i = 0; i < n_devices; i++) {
		struct device *d = devices[i];
		blank_results(&t);
		run_ring(d, s, &t, true);
		check_matrix(b.o, s, t.o, o, bound_of(s));
		check_lse(s, t.max, lse);
		run_ring(d, s, &t, false);
		const struct mat grads[] = {t.dq, t.dk, t.dv};
		for (int g = 0; g < 3; g++) {
			struct mat sum = mat_blank(to[g].rows, to[g].cols);
			d->k->add(d, sum, to[g], contiguous(d, grads[g]));
			check_matrix(names[g], s, sum, want[g], bound_of(s));
		}
	}
	assert_int_equal(memory_end(NULL), 0); /* there are many cases */
}

static void check_attention(struct device *d, const struct seqs *s)
{
	check_attention_on(&d, 1, s);
}

/* A slow device tests one case out of several. */
static bool is_left_out(const struct device *d, size_t number)
{
	enum { OF = 7 };
	return d->discrete && test_device_slow(d) && number % OF;
}

DEVICE_TEST(whole_sequences)
{
	size_t number = 0;
	static const int64_t rows[] = {1, 7, 128, 129, 300};
	static const int64_t dims[] = {8, 16, 40, 64, 128};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		for (size_t j = 0; j < ARRAY_LEN(dims); j++) {
			for (int kv_heads = 1; kv_heads <= 2; kv_heads++) {
				float p = (i + j + (size_t)kv_heads) % 2 ? 0 : 0.2f;
				if (is_left_out(d, number++))
					continue;
				int64_t batch = rows[i] < 300 ? 2 : 1;
				struct seqs s =
					seqs_of(1, batch, rows[i], kv_heads, dims[j], p);
				check_attention(d, &s);
			}
		}
	}
}

/* Head sizes between those that a device has kernels for, and rows that cannot be copied 16 bytes
 * at a time. */
DEVICE_TEST(odd_heads)
{
	static const int64_t dims[] = {1, 3, 20, 31, 80, 96, 130, 256};
	for (size_t j = 0; j < ARRAY_LEN(dims); j++) {
		struct seqs s = seqs_of(1, 2, 70, 1 << j % 3, dims[j], j % 2 ? 0 : 0.2f);
		if (!is_left_out(d, j + 4))
			check_attention(d, &s);
	}
}

struct chunked {
	int n;
	int64_t context, kv_heads, dim;
	float p;
};

/* A run of a chunk has context / 2n positions: one, a few, less and more than the CPU's blocks of
 * 128. */
DEVICE_TEST(rings)
{
	static const struct chunked cases[] = {
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
		if (is_left_out(d, i + 5))
			continue;
		struct seqs s = seqs_of(cases[i].n, 2, cases[i].context,
			cases[i].kv_heads, cases[i].dim, cases[i].p);
		check_attention(d, &s);
	}
}

/* Documents of one token, shorter and longer than the tiles of a kernel, in whole sequences and in
 * chunks. */
DEVICE_TEST(documents)
{
	static const struct {
		int n;
		int64_t context, kv_heads, dim, longest;
		float p;
		enum dtype type;
	} cases[] = {
		{1, 1, 2, 8, 1, 0, DT_F32},
		{1, 40, 4, 16, 1, 0, DT_BF16},
		{1, 129, 2, 64, 20, 0, DT_BF16},
		{1, 300, 1, 40, 90, 0.2f, DT_F32},
		{1, 700, 2, 16, 400, 0, DT_F32},
		{1, 201, 4, 128, 60, 0.2f, DT_F16},
		{1, 90, 1, 256, 30, 0, DT_BF16},
		{2, 4 * 5, 1, 40, 3, 0.2f, DT_BF16},
		{2, 4 * 129, 1, 16, 700, 0.2f, DT_F32},
		{2, 4 * 150, 2, 16, 150, 0, DT_F32},
		{3, 6 * 39, 1, 32, 50, 0, DT_F16},
		{3, 6 * 65, 1, 16, 30, 0, DT_F32},
		{4, 8 * 43, 1, 96, 200, 0.2f, DT_BF16},
		{4, 8 * 43, 1, 16, 1, 0, DT_F32},
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		if (d->discrete && test_device_slow(d) && i % 3)
			continue;
		struct seqs s = seqs_of(cases[i].n, 2, cases[i].context,
			cases[i].kv_heads, cases[i].dim, cases[i].p);
		s.type = cases[i].type;
		cut_documents(&s, cases[i].longest);
		check_attention(d, &s);
	}
}

/* Windows of one token, of less, as much and more than a tile or a chunk has, and than the sequence; with
 * documents, too. */
DEVICE_TEST(windows)
{
	static const struct {
		int n;
		int64_t context, kv_heads, dim, window, longest;
		float p;
		enum dtype type;
	} cases[] = {
		{1, 40, 2, 8, 1, 0, 0, DT_F32},
		{1, 300, 1, 16, 2, 0, 0.2f, DT_F32},
		{1, 300, 2, 64, 64, 0, 0, DT_BF16},
		{1, 300, 4, 40, 127, 0, 0, DT_F32},
		{1, 300, 2, 16, 128, 100, 0, DT_F32},
		{1, 300, 2, 128, 129, 0, 0.2f, DT_F16},
		{1, 257, 2, 32, 256, 0, 0, DT_BF16},
		{1, 200, 2, 16, 200, 0, 0, DT_F32},
		{1, 90, 1, 256, 33, 0, 0, DT_BF16},
		{2, 4 * 5, 1, 40, 3, 0, 0.2f, DT_BF16},
		{2, 4 * 129, 1, 16, 70, 0, 0, DT_F32},
		{2, 4 * 70, 2, 32, 71, 90, 0, DT_BF16},
		{2, 4 * 100, 2, 64, 150, 0, 0,
			DT_BF16}, /* a chunk's runs see each other */
		{2, 4 * 100, 1, 128, 240, 0, 0, DT_BF16},
		{3, 6 * 39, 1, 32, 39, 0, 0, DT_F16},
		{3, 6 * 65, 1, 16, 66, 0, 0, DT_F32},
		{4, 8 * 43, 1, 96, 100, 0, 0.2f, DT_BF16},
		{4, 8 * 43, 1, 16, 300, 200, 0, DT_F32},
		{4, 8 * 43, 2, 16, 1, 0, 0, DT_F32},
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		if (d->discrete && test_device_slow(d) && i % 3 == 0)
			continue;
		struct seqs s = seqs_of(cases[i].n, 2, cases[i].context,
			cases[i].kv_heads, cases[i].dim, cases[i].p);
		s.type = cases[i].type;
		s.ref.window = cases[i].window;
		if (cases[i].longest)
			cut_documents(&s, cases[i].longest);
		check_attention(d, &s);
	}
}

/* If every sequence is one document, or shorter than a window, the bits are those of all keys. */
DEVICE_TEST(one_document)
{
	for (int i = 0; i < 4; i++) {
		int n = 1 + i % 2;
		struct seqs s = seqs_of(n, 2, 4 * 65, 2, 64, 0.2f), one = s;
		struct acts t = acts_of(&s), u = t;
		struct mat *const out[] = {&t.o, &t.dq, &t.dk, &t.dv};
		blank_results(&u);
		if (i < 2)
			cut_documents(&one, 0);
		else
			one.ref.window = 4 * 65;
		for (int forward = 1; forward >= 0; forward--) {
			run_ring(d, &s, &t, forward);
			run_ring(d, &one, &u, forward);
		}
		const struct mat same[] = {u.o, u.dq, u.dk, u.dv};
		for (size_t j = 0; j < ARRAY_LEN(out); j++)
			check_bits("attention, one document", same[j].p, out[j]->p,
				mat_size(same[j]));
		assert_int_equal(memory_end(NULL), 0);
	}
}

/* 16-bit types: head sizes that the kernels have and others, and rows
 * that cannot be copied 16 bytes at a time. */
DEVICE_TEST(narrow_sequences)
{
	static const int64_t rows[] = {1, 65, 128, 201};
	static const int64_t dims[] = {8, 20, 31, 64, 96, 128, 256};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		for (size_t j = 0; j < ARRAY_LEN(dims); j++) {
			size_t n = i + j;
			if (is_left_out(d, i * ARRAY_LEN(dims) + j + i * 2))
				continue;
			struct seqs s = seqs_of(
				1, 2, rows[i], 1 << n % 3, dims[j], n % 2 ? 0 : 0.2f);
			s.type = n / 2 % 2 ? DT_F16 : DT_BF16;
			check_attention(d, &s);
		}
	}
}

DEVICE_TEST(narrow_rings)
{
	static const struct chunked cases[] = {
		{2, 4 * 5, 1, 40, 0.2f},
		{2, 4 * 65, 2, 64, 0.2f},
		{2, 4 * 64, 4, 128, 0},
		{3, 6 * 39, 1, 32, 0.2f},
		{4, 8 * 7, 2, 20, 0},
		{4, 8 * 43, 1, 96, 0.2f},
		{4, 8 * 32, 2, 256, 0.2f},
	};
	for (size_t i = 0; i < ARRAY_LEN(cases) * 2; i++) {
		size_t c = i / 2;
		if (is_left_out(d, i + 4))
			continue;
		struct seqs s = seqs_of(cases[c].n, 2, cases[c].context,
			cases[c].kv_heads, cases[c].dim, cases[c].p);
		s.type = i % 2 ? DT_F16 : DT_BF16;
		check_attention(d, &s);
	}
}

/* Opens the device that the value of a variable makes of it. */
static void open_other(const struct device *d, struct device *other, const char *variable,
	const char *value)
{
	struct device_options o = {.exact = true};
	struct err e = {0};
	setenv(variable, value, 1);
	int failed = device_open(other, DEVICE_CUDA, &o, &e);
	unsetenv(variable);
	assert_int_equal(failed, 0);
	other->scratch = d->scratch;
}

struct shape {
	int64_t batch, rows, heads, kv_heads, dim;
	enum dtype type;
	int64_t window;
};

/* A device's kernels have the same bits as those that overlap less; they and the kernels of all GPUs
 * are compared with the reference, unless it would take minutes. */
static void check_shapes(struct device *d, const struct shape *x, size_t n)
{
	struct device plain, mma, *const both[] = {d, &mma};
	open_other(d, &plain, "PT_LAB_OFF", "attn-ahead,attn-first,attn-three");
	open_other(d, &mma, "PT_ATTENTION", "mma");
	for (; n--; x++) {
		struct seqs s = seqs_of(1, x->batch, x->rows, x->kv_heads, x->dim, 0);
		s.ref.heads = x->heads;
		s.type = x->type;
		s.ref.window = x->window;
		struct acts t = acts_of(&s), other = first_of(&t, rows_of(&s));
		run_both(d, &s, &t);
		run_both(&plain, &s, &other);
		check_same(d, &t, &other);
		if (x->batch * x->heads * x->rows * x->rows < 1 << 27)
			check_attention_on(both, 2, &s);
	}
	device_close(&mma);
	device_close(&plain);
}

/* Calls that a device may have warpgroup kernels for. Tiles have 64 to 192 rows: there are cases with
 * less than one and with several tiles each way, of several heads and sequences. */
DEVICE_TEST(warpgroups)
{
	static const struct shape shapes[] = {
		{2, 1, HEADS, 2, 128, DT_BF16},
		{1, 63, HEADS, 4, 64, DT_F16},
		{3, 65, HEADS, 1, 64, DT_BF16},
		{1, 128, HEADS, 1, 128, DT_F16},
		{2, 129, HEADS, 4, 64, DT_BF16},
		{2, 192, 2, 2, 64, DT_BF16},
		{1, 200, HEADS, 2, 104, DT_BF16},
		{1, 201, HEADS, 1, 56, DT_F16},
		{1, 520, HEADS, 2, 64, DT_BF16},
		{2, 264, HEADS, 2, 128, DT_BF16},
		{1, 201, HEADS, 1, 56, DT_F16, 1},
		{1, 264, HEADS, 2, 128, DT_BF16, 64},
		{1, 520, HEADS, 2, 64, DT_BF16, 130},
		{2, 300, HEADS, 4, 64, DT_F16, 257},
	};
	if (!d->discrete)
		skip();
	check_shapes(d, shapes, ARRAY_LEN(shapes));
}

/* Results in 16 bits, which a device may store another way, are those in fp32, rounded. */
DEVICE_TEST(narrow_results)
{
	static const struct shape cases[] = {
		{2, 150, HEADS, 2, 64, DT_BF16},
		{1, 257, HEADS, 4, 56, DT_F16},
		{1, 140, HEADS, 1, 128, DT_BF16},
		{2, 33, HEADS, 2, 104, DT_F16},
		{1, 40, HEADS, 2, 31, DT_BF16},
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct seqs s = seqs_of(1, cases[i].batch, cases[i].rows,
			cases[i].kv_heads, cases[i].dim, 0);
		s.type = cases[i].type;
		struct acts t = acts_of(&s), wide;
		struct mat *const out[] = {&t.o, &t.dq, &t.dk, &t.dv};
		struct mat *const wides[] = {&wide.o, &wide.dq, &wide.dk, &wide.dv};
		for (size_t j = 0; j < ARRAY_LEN(out); j++)
			*out[j] = blank_mat(out[j]->rows, out[j]->cols, s.type);
		wide = t;
		for (size_t j = 0; j < ARRAY_LEN(out); j++)
			*wides[j] = blank_mat(out[j]->rows, out[j]->cols, DT_F32);
		run_ring(d, &s, &wide, true);
		run_ring(d, &s, &t, true);
		struct mat o = wide.o;
		wide.o = t.o;
		run_ring(d, &s, &wide, false);
		run_ring(d, &s, &t, false);
		wide.o = o;
		for (size_t j = 0; j < ARRAY_LEN(out); j++) {
			struct mat y = blank_mat(out[j]->rows, out[j]->cols, s.type);
			d->k->narrow(d, y.p, *wides[j], s.type);
			check_bits("attention in 16 bits", numbers(y), numbers(*out[j]),
				mat_size(y));
		}
		assert_int_equal(memory_end(NULL), 0);
	}
}

/* Shapes as in training, which take minutes on an emulated GPU. */
DEVICE_TEST(large_shapes)
{
	static const struct shape shapes[] = {
		{2, 1024, 12, 12, 64, DT_BF16},
		{2, 1024, 12, 12, 128, DT_BF16},
		{2, 1024, 12, 4, 64, DT_F16},
		{2, 1000, 8, 2, 128, DT_BF16},
		{1, 2048, 4, 4, 64, DT_BF16},
		{16, 1024, 12, 12, 64, DT_BF16},
		{1, 8192, 32, 8, 64, DT_BF16},
		{1, 8192, 32, 8, 128, DT_BF16},
		{1, 8192, 32, 8, 64, DT_BF16, 4096},
	};
	if (!d->discrete || test_device_slow(d))
		skip();
	check_shapes(d, shapes, ARRAY_LEN(shapes));
}

/* Large scores: one key has nearly all of the probability, and nothing overflows. */
DEVICE_TEST(large_scores)
{
	for (int n = 1; n <= 2; n++) {
		struct seqs s = seqs_of(n, 1, 140, 2, 16, 0);
		struct acts t = acts_of(&s);
		for (int64_t i = 0; i < mat_size(t.q); i++)
			((float *)t.q.p)[i] *= 300;
		double *o = doubles(mat_size(t.o)), *lse = doubles(rows_of(&s) * HEADS);
		run_ring(d, &s, &t, true);
		ref_attn_fwd(&s.ref, o, lse, to_whole(&s, t.q), to_whole(&s, t.k),
			to_whole(&s, t.v));
		check_matrix("attn_fwd, scores to 1e3", &s, t.o, o, 2e-4);
	}
}

/* Two equal sequences get the same bits, and so does one of them alone. */
static void check_twice(struct device *d, enum dtype type, int64_t rows, int64_t dim)
{
	struct seqs s = seqs_of(1, 2, rows, 2, dim, 0),
		    alone = seqs_of(1, 1, rows, 2, dim, 0);
	s.type = alone.type = type;
	struct acts t = acts_of(&s), one = first_of(&t, rows);
	struct mat in[] = {t.q, t.k, t.v, t.dout}, out[] = {t.o, t.dq, t.dk, t.dv};
	struct mat others[] = {one.o, one.dq, one.dk, one.dv};
	for (size_t i = 0; i < ARRAY_LEN(in); i++) {
		size_t half = (size_t)mat_bytes(in[i]) / 2;
		memcpy((char *)in[i].p + half, in[i].p, half);
	}
	run_both(d, &s, &t);
	run_both(d, &alone, &one);
	for (size_t i = 0; i < ARRAY_LEN(out); i++) {
		const float *x = numbers(out[i]), *y = numbers(others[i]);
		int64_t half = mat_size(out[i]) / 2;
		check_bits("attention of another sequence", x + half, x, half);
		check_bits("attention of a sequence alone", y, x, half);
	}
}

DEVICE_TEST(sequences_are_alone)
{
	check_twice(d, DT_F32, 131, 64);
	check_twice(d, DT_BF16, 131, 64);
	check_twice(d, DT_BF16, 70, 24);
}

/* ---- dropout --------------------------------------------------------------------- */

/* With queries of zero the probabilities of row i are 1 / (i + 1), and with the identity as
 * values the output is the masked probabilities. So the output shows the mask at every
 * (sample, head, query, key), which must be that of the definition for every number of chunks. */
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

DEVICE_TEST(dropout_mask)
{
	static const int chunks[] = {1, 2, 4};
	for (size_t i = 0; i < ARRAY_LEN(chunks); i++) {
		check_mask(d, chunks[i], 0, 0.1f);
		check_mask(d, chunks[i], 36, 0.5f);
	}
}

int main(void)
{
	return run_on_device();
}
