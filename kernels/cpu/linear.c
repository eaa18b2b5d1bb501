/*
 * Matrix multiplication. The tiling of a matmul depends on its shape only, and each tile is one
 * single-threaded OpenBLAS call, so the number of threads changes no bit. (With OpenBLAS's
 * threads it does: its AVX2 kernels round differently when a matmul is split.)
 */
#include "kernels/cpu/matmul_any.h"
#include "kernels/cpu/pieces.h"

enum { TILE = 512, TILE_MIN = 64, TILES_WANTED = 8 };

struct tiles {
	int64_t rows, cols; /* of one tile */
	int64_t n_down, n_across;
};

static struct tiles tiles_of(int64_t rows, int64_t cols)
{
	int64_t down = ceil_div(rows, TILE), across = ceil_div(cols, TILE);
	while (down * across < TILES_WANTED) {
		bool tall = rows / down >= cols / across;
		if ((tall ? rows / down : cols / across) < 2 * TILE_MIN)
			break;
		*(tall ? &down : &across) *= 2;
	}
	struct tiles t;
	t.rows = round_up(ceil_div(rows, down), 16);
	t.cols = round_up(ceil_div(cols, across), 16);
	t.n_down = ceil_div(rows, t.rows);
	t.n_across = ceil_div(cols, t.cols);
	return t;
}

/* c[m,n] = op(left) op(right) (+ c), with op(left) [m,k]; bias is added to each row of c. */
static void matmul(bool ta, bool tb, struct mat c, struct mat left, struct mat right,
	bool add, const float *bias)
{
	struct tiles t = tiles_of(c.rows, c.cols);
	const float *a = left.p, *b = right.p;
	int64_t lda = left.cols, ldb = right.cols, k = ta ? left.rows : left.cols;
	bool scaled = left.scale || right.scale;
	float scale = scaled ? *left.scale * *right.scale : 1;
	float alpha = add ? scale : 1; /* without `add`, the scale is applied below */
	blas_open();
#pragma omp parallel for schedule(dynamic, 1) if (t.n_down * t.n_across > 1)
	for (int64_t i = 0; i < t.n_down * t.n_across; i++) {
		int64_t r = i % t.n_down * t.rows, s = i / t.n_down * t.cols;
		int64_t m = min64(t.rows, c.rows - r), n = min64(t.cols, c.cols - s);
		float *out = mat_row(c, r) + s;
		blas_gemm(ta, tb, m, n, k, alpha, ta ? a + r : a + r * lda, lda,
			tb ? b + s * ldb : b + s, ldb, add ? 1 : 0, out, c.cols);
		for (int64_t y = 0; scaled && !add && y < m; y++)
			for (int64_t x = 0; x < n; x++)
				out[y * c.cols + x] *= scale;
		for (int64_t y = 0; bias && y < m; y++)
			for (int64_t x = 0; x < n; x++)
				out[y * c.cols + x] += bias[s + x];
	}
}

void K(linear_fwd)(
	struct device *d, struct mat y, struct mat x, struct mat w, struct mat bias)
{
	BUG_ON(y.rows != x.rows || y.cols != w.rows || x.cols != w.cols);
	if (!all_fp32(y, x, w, bias))
		K(matmul_any)(false, true, y, x, w, false, bias);
	else
		matmul(false, true, y, x, w, false, bias.p);
}

void K(linear_bwd_x)(
	struct device *d, struct mat dx, struct mat dy, struct mat w, bool add)
{
	const struct mat none = {0};
	BUG_ON(dx.rows != dy.rows || dx.cols != w.cols || dy.cols != w.rows);
	if (!all_fp32(dx, dy, w, none))
		K(matmul_any)(false, false, dx, dy, w, add, none);
	else
		matmul(false, false, dx, dy, w, add, NULL);
}

void K(linear_bwd_w)(
	struct device *d, struct mat dw, struct mat dy, struct mat x, bool add)
{
	const struct mat none = {0};
	BUG_ON(dw.rows != dy.cols || dw.cols != x.cols || dy.rows != x.rows);
	if (!all_fp32(dw, dy, x, none))
		K(matmul_any)(true, false, dw, dy, x, add, none);
	else
		matmul(true, false, dw, dy, x, add, NULL);
}

void K(linear_gelu_fwd)(struct device *d, struct mat y, struct mat a, struct mat x,
	struct mat w, struct mat bias)
{
	const struct mat none = {0};
	K(linear_fwd)(d, a, x, w, bias);
	K(act_fwd)(d, ACT_GELU_TANH, y, a, none);
}

void K(linear_gelu_bwd)(
	struct device *d, struct mat da, struct mat dy, struct mat w, struct mat a)
{
	const struct mat none = {0};
	K(linear_bwd_x)(d, da, dy, w, false);
	K(act_bwd)(d, ACT_GELU_TANH, da, none, da, a, none);
}

void K(bias_fwd)(struct device *d, struct mat y, struct mat bias)
{
	BUG_ON(bias.cols != y.cols);
#pragma omp parallel for if (mat_size(y) > PARALLEL_FROM)
	for (int64_t i = 0; i < y.rows; i++) {
		float room[PIECE], room_b[PIECE];
		for (int64_t c = 0; c < y.cols; c += PIECE) {
			int64_t n = min64(PIECE, y.cols - c), at = i * y.cols + c;
			float *out = piece_load(y, at, n, room);
			const float *b = piece_load(bias, c, n, room_b);
			for (int64_t j = 0; j < n; j++)
				out[j] += b[j];
			piece_store(y, at, n, out);
		}
	}
}

void K(bias_bwd)(struct device *d, struct mat db, struct mat dy)
{
	enum { COLS = 64, ROWS = 64 };
	BUG_ON(db.cols != dy.cols);
#pragma omp parallel for if (mat_size(dy) > PARALLEL_FROM)
	for (int64_t c = 0; c < dy.cols; c += COLS) {
		int64_t n = min64(COLS, dy.cols - c);
		float total[COLS] = {0}, room[PIECE];
		for (int64_t r = 0; r < dy.rows; r += ROWS) {
			float part[COLS] = {0};
			for (int64_t i = r; i < min64(r + ROWS, dy.rows); i++) {
				const float *up =
					piece_load(dy, i * dy.cols + c, n, room);
				for (int64_t j = 0; j < n; j++)
					part[j] += up[j];
			}
			for (int64_t j = 0; j < n; j++)
				total[j] += part[j];
		}
		memcpy((float *)db.p + c, total, (size_t)n * sizeof(float));
	}
}
