/*
 * attn_row, the attention of decoding, against attention of whole sequences in float64; and the bits of a row
 * alone and among others.
 * isa: sse2 avx2 avx512
 * device: cpu cuda
 */
#include "tests/support/device.h"
#include "tests/support/kernels_ref.h"

#include <math.h>

enum { HEADS = 4 };

static struct mat random_mat(int64_t rows, int64_t cols)
{
	struct mat m = mat_blank(rows, cols);
	fill_normal(m.p, rows * cols, 1);
	return m;
}

static double *to_doubles(struct mat m)
{
	double *x = doubles(mat_size(m));
	for (int64_t i = 0; i < mat_size(m); i++)
		x[i] = (double)((const float *)m.p)[i];
	return x;
}

/* Rows [first, first + n) of a sequence, with the keys and values of all rows. */
static void check_rows(struct device *d, int64_t first, int64_t n, int64_t kv_heads,
	int64_t dim, int64_t window)
{
	float scale = 1 / sqrtf((float)dim);
	const struct ref_attn r = {.batch = 1,
		.rows = first + n,
		.heads = HEADS,
		.kv_heads = kv_heads,
		.dim = dim,
		.scale = (double)scale,
		.window = window};
	struct mat q = random_mat(r.rows, HEADS * dim);
	struct mat k = random_mat(r.rows, kv_heads * dim);
	struct mat v = random_mat(r.rows, kv_heads * dim), out = mat_blank(n, q.cols);
	double *o = doubles(mat_size(q)), *lse = doubles(r.rows * HEADS);
	d->k->attn_row(d, out, mat_rows(q, first, n), k, v, HEADS, kv_heads, dim, first,
		window, scale);
	ref_attn_fwd(&r, o, lse, to_doubles(q), to_doubles(k), to_doubles(v));
	check_close("attn_row", out.p, o + first * q.cols, mat_size(out), 5e-6);
	assert_int_equal(memory_end(NULL), 0);
}

DEVICE_TEST(rows)
{
	static const int64_t dims[] = {8, 16, 40, 64, 128};
	for (size_t i = 0; i < ARRAY_LEN(dims); i++) {
		for (int kv_heads = 1; kv_heads <= 4; kv_heads *= 2) {
			check_rows(d, 0, 1, kv_heads, dims[i], 0);
			check_rows(d, 0, 130, kv_heads, dims[i], 0);
			check_rows(d, 37, 1, kv_heads, dims[i], 0);
			int64_t first = pick(1, 99), n = pick(2, 99);
			check_rows(d, first, n, kv_heads, dims[i], 0);
			check_rows(d, first, n, kv_heads, dims[i], pick(1, 120));
		}
	}
	check_rows(d, 99, 60, 2, 16, 1);
	check_rows(d, 99, 60, 2, 16, 64);
}

/* attn_row gives a row the same bits alone and among others. */
static void check_alone(struct device *d, int64_t dim, int64_t window)
{
	enum { FIRST = 21, ROWS = 66 };
	static const int64_t at_once[] = {1, 2, 7, 19};
	float scale = 1 / sqrtf((float)dim);
	struct mat q = random_mat(ROWS, HEADS * dim), all = mat_blank(ROWS, q.cols);
	struct mat k = random_mat(FIRST + ROWS, 2 * dim);
	struct mat v = random_mat(FIRST + ROWS, 2 * dim), some = mat_blank(ROWS, q.cols);
	d->k->attn_row(d, all, q, k, v, HEADS, 2, dim, FIRST, window, scale);
	for (size_t a = 0; a < ARRAY_LEN(at_once); a++) {
		for (int64_t i = 0; i < ROWS; i += at_once[a]) {
			int64_t n = min64(at_once[a], ROWS - i);
			d->k->attn_row(d, mat_rows(some, i, n), mat_rows(q, i, n), k, v,
				HEADS, 2, dim, FIRST + i, window, scale);
		}
		check_bits("attn_row", some.p, all.p, mat_size(all));
	}
}

DEVICE_TEST(row_is_alone)
{
	check_alone(d, 40, 0);
	check_alone(d, 64, 0);
	check_alone(d, 88, 0);
	check_alone(d, 64, 30);
	check_alone(d, 40, 51);
}

int main(void)
{
	return run_on_device();
}
