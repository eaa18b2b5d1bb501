/*
 * Matmuls of operands and results of any type: each tile of the result widens its part of the
 * operands, a run of the summed dimension at a time, and calls OpenBLAS.
 */
#include "kernels/cpu/matmul_any.h"
#include "kernels/cpu/pieces.h"

#include <omp.h>
#include <stdlib.h>

enum { TILE = 256, DEPTH = 1024 };

/* Rows [r, r + rows) of columns [c, c + cols), in fp32. */
static void widen_part(
	float *to, struct mat m, int64_t r, int64_t rows, int64_t c, int64_t cols)
{
	for (int64_t i = 0; i < rows; i++) {
		int64_t at = (r + i) * m.cols + c;
		if (m.type == DT_F32)
			memcpy(to + i * cols, address(m, at), (size_t)cols * sizeof(*to));
		else
			K(widen_run)(to + i * cols, address(m, at), m.type, cols);
	}
}

struct product {
	bool ta, tb;
	struct mat left, right;
	int64_t depth; /* the summed dimension */
};

/* out[m,n] = the product's rows from r and columns from s on. */
static void product_tile(const struct product *p, float *out, float *room, int64_t r,
	int64_t m, int64_t s, int64_t n)
{
	float *a = room, *b = room + TILE * DEPTH;
	memset(out, 0, (size_t)(m * n) * sizeof(float));
	for (int64_t k = 0; k < p->depth; k += DEPTH) {
		int64_t len = min64(DEPTH, p->depth - k);
		if (p->ta)
			widen_part(a, p->left, k, len, r, m);
		else
			widen_part(a, p->left, r, m, k, len);
		if (p->tb)
			widen_part(b, p->right, s, n, k, len);
		else
			widen_part(b, p->right, k, len, s, n);
		blas_gemm(p->ta, p->tb, m, n, len, 1, a, p->ta ? m : len, b,
			p->tb ? len : n, 1, out, n);
	}
}

/* A row of a tile: scaled, then with the bias or the old value, in c. */
static void store_row(struct mat c, int64_t at, const float *x, int64_t n, float scale,
	bool add, struct mat bias, int64_t col)
{
	float room[PIECE], room_b[PIECE];
	float *old = add ? piece_load(c, at, n, room) : NULL;
	float *to = piece_of(c, at, room);
	const float *b = piece_load(bias, col, n, room_b);
	for (int64_t j = 0; j < n; j++) {
		float v = x[j] * scale;
		to[j] = old ? v + old[j] : b ? v + b[j] : v;
	}
	piece_store(c, at, n, to);
}

/* An operand of 8 bits may have its transposed matrix alone. */
static struct mat plain(struct mat m, bool *transposed)
{
	if (m.p)
		return m;
	*transposed = !*transposed;
	m.p = m.transposed;
	int64_t rows = m.rows;
	m.rows = m.cols;
	m.cols = rows;
	return m;
}

void K(matmul_any)(bool ta, bool tb, struct mat c, struct mat left, struct mat right,
	bool add, struct mat bias)
{
	enum { ROOM = 2 * TILE * DEPTH + TILE * TILE };
	int64_t down = ceil_div(c.rows, TILE), across = ceil_div(c.cols, TILE);
	struct product p = {.depth = ta ? left.rows : left.cols};
	float scale = left.scale ? *left.scale * *right.scale : 1;
	float *rooms =
		xmalloc(sizeof(float) * (size_t)ROOM * (size_t)omp_get_max_threads());
	p.left = plain(left, &ta);
	p.right = plain(right, &tb);
	p.ta = ta;
	p.tb = tb;
	blas_open();
#pragma omp parallel for schedule(dynamic, 1) if (down * across > 1)
	for (int64_t i = 0; i < down * across; i++) {
		float *room = rooms + (int64_t)ROOM * omp_get_thread_num();
		float *out = room + 2 * TILE * DEPTH;
		int64_t r = i % down * TILE, s = i / down * TILE;
		int64_t m = min64(TILE, c.rows - r), n = min64(TILE, c.cols - s);
		product_tile(&p, out, room, r, m, s, n);
		for (int64_t y = 0; y < m; y++)
			store_row(c, (r + y) * c.cols + s, out + y * n, n, scale, add,
				bias, s);
	}
	free(rooms);
}
