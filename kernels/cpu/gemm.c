/* Blocks of a matmul: what is packed when, by which thread. The bits do not depend on this. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/pieces.h"

#include <omp.h>

/* A buffer of a thread, which grows as needed. */
struct buffer {
	void *p;
	size_t n_bytes;
};
enum { LEFT_PANELS, RIGHT_PANELS, KEPT_SUMS, FLOATS, N_BUFFERS };
static _Thread_local struct buffer buffers[N_BUFFERS];

/* Returns this thread's buffer, enlarged if below n_bytes; ends the program if memory is out. */
static void *thread_buffer(int index, int64_t n_bytes)
{
	enum { PAGE = 4096 };
	struct buffer *r = &buffers[index];
	if (r->n_bytes < (size_t)n_bytes) {
		free(r->p);
		r->n_bytes = (size_t)round_up(n_bytes, PAGE);
		r->p = aligned_alloc(PAGE, r->n_bytes);
		if (!r->p)
			die(EX_FAILED,
				"out of memory: cannot allocate the panels of a matmul");
	}
	return r->p;
}

float *K(thread_floats)(int64_t n)
{
	return thread_buffer(FLOATS, n * (int64_t)sizeof(float));
}

/* One step of the work: the terms of one panel for a block of the result. */
struct step {
	const struct gemm *g;
	const struct gemm_unit *u;
	int64_t row, rows, col, cols; /* the block */
	int64_t k, n_k;		      /* first term, number of terms */
	char *right;		      /* panels of columns */
	float *sums;	   /* [row tile][column tile] of the block; NULL: not kept */
	int64_t task_cols; /* column tiles per task */
};

static int64_t col_tiles(const struct step *s)
{
	return ceil_div(s->cols, s->u->cols);
}

static void pack_right(const struct step *s, int64_t tile)
{
	int64_t j = tile * s->u->cols;
	s->u->pack_right(s->right + j * s->u->col_bytes, &s->g->right, s->col + j,
		min64(s->u->cols, s->cols - j), s->k, s->n_k);
}

/* Stores n elements of a row of the result: c = alpha sums (+ c, or + bias). */
static void finish_row(
	const struct gemm *g, const float *sums, const float *bias, int64_t at, int64_t n)
{
	const struct mat c = mat_typed(g->c, 1, 0, g->type);
	float buf[PIECE], *to = piece_or_buffer(c, at, buf);
	const float *addend = g->add ? piece_load(c, at, n, buf) : bias, alpha = g->alpha;
	if (addend) {
#pragma omp simd
		for (int64_t j = 0; j < n; j++)
			to[j] = addend[j] + sums[j] * alpha;
	} else {
#pragma omp simd
		for (int64_t j = 0; j < n; j++)
			to[j] = sums[j] * alpha;
	}
	piece_store(c, at, n, to);
}

/* Finishes rows of whole vectors, in fp32 or bf16, with so few instructions that they overlap with
 * the end of this tile's matmul and the beginning of the next. */
static inline __attribute__((always_inline)) void finish_vectors(const struct gemm *g,
	const float *sums, int64_t stride, const float *bias, int64_t at, int64_t rows,
	int64_t cols, enum dtype type)
{
	const float alpha = g->alpha;
	const bool add = g->add;
	const int64_t row_bytes = g->c_stride * dtype_bytes(type);
	char *c = (char *)g->c + at * dtype_bytes(type);
	for (int64_t i = 0; i < rows; i++, sums += stride, c += row_bytes) {
		for (int64_t j = 0; j < cols; j += 16) {
			void *to = c + j * dtype_bytes(type);
			v16 v = v16_load(sums + j) * alpha;
			if (add)
				v += type == DT_F32 ? v16_load(to) : load_bf16(to);
			else if (bias)
				v += v16_load(bias + j);
			if (type == DT_F32)
				v16_store(to, v);
			else
				store_bf16(to, v);
		}
	}
}

/* Stores a tile of the result, from column `col` on. */
static void finish_tile(const struct step *s, const float *sums, int64_t row,
	int64_t rows, int64_t col, int64_t cols)
{
	const struct gemm *g = s->g;
	float buf[PIECE];
	const float *bias = piece_load(g->bias, s->col + col, cols, buf);
	int64_t stride = s->u->cols;
	int64_t at = (s->row + row) * g->c_stride + s->col + col;
	if (cols % 16 == 0 && g->type == DT_F32)
		finish_vectors(g, sums, stride, bias, at, rows, cols, DT_F32);
	else if (cols % 16 == 0 && g->type == DT_BF16)
		finish_vectors(g, sums, stride, bias, at, rows, cols, DT_BF16);
	else
		for (int64_t i = 0; i < rows; i++)
			finish_row(
				g, sums + i * stride, bias, at + i * g->c_stride, cols);
}

/* Returns true if the whole tile with the first column `col` is masked. */
static bool is_masked(const struct step *s, int64_t row, int64_t rows, int64_t col)
{
	const struct gemm *g = s->g;
	return g->causal == CAUSAL_RESULT &&
	       s->col + col > s->row + row + rows - 1 + g->diagonal;
}

/* Terms [first, end) of a panel. */
struct terms {
	int64_t first, end;
};

/* Returns the terms of a tile that the causal mask of the left operand leaves, widened to groups of
 * ROWS rows: tiles have 4 or 6 rows, but where a masked 0 meets infinity, the same rows must become
 * NaN on all processors. row: within the block. */
static struct terms needed_terms(const struct step *s, int64_t row)
{
	enum { ROWS = 12 }; /* a multiple of the rows of each unit that has term_bytes */
	const struct gemm *g = s->g;
	int64_t i = (s->row + row) / ROWS * ROWS - s->k;
	struct terms t = {0, s->n_k};
	if (g->causal != CAUSAL_LEFT || !s->u->term_bytes)
		return t;
	BUG_ON(ROWS % s->u->rows);
	if (g->left.across)
		t.first = min64(max64(0, i - g->diagonal), s->n_k);
	else
		t.end = min64(max64(0, i + ROWS + g->diagonal), s->n_k);
	return t;
}

/* Sets the sums of a tile to the elements of g->before. */
static void load_before(const struct step *s, float *sums, int64_t row, int64_t rows,
	int64_t col, int64_t cols)
{
	const struct gemm *g = s->g;
	const float *from = g->before + (s->row + row) * g->before_stride + s->col + col;
	memset(sums, 0, (size_t)(s->u->rows * s->u->cols) * sizeof(*sums));
	for (int64_t i = 0; i < rows; i++)
		memcpy(sums + i * s->u->cols, from + i * g->before_stride,
			(size_t)cols * sizeof(*sums));
}

/* Adds a panel's terms to a tile of sums, unless masked; stores the result after the last panel. */
static void multiply_tile(const struct step *s, const void *left, int64_t row_bytes,
	int64_t row, int64_t rows, int64_t col)
{
	const struct gemm_unit *u = s->u;
	const struct gemm *g = s->g;
	float local[GEMM_MAX_ROWS * GEMM_MAX_COLS] __attribute__((aligned(64)));
	int64_t size = u->rows * u->cols, cols = min64(u->cols, s->cols - col);
	float *sums = local;
	if (s->sums)
		sums = s->sums + (row / u->rows * col_tiles(s) + col / u->cols) * size;
	if (is_masked(s, row, rows, col))
		return;
	if (!s->k && g->before)
		load_before(s, sums, row, rows, col, cols);
	struct terms t = needed_terms(s, row);
	u->multiply(sums, (const char *)left + t.first * u->rows * u->term_bytes,
		row_bytes,
		s->right + col * u->col_bytes + t.first * u->cols * u->term_bytes,
		t.end - t.first, g->left.across, !s->k && !g->before);
	if (s->k + s->n_k >= g->k)
		finish_tile(s, sums, row, rows, col, cols);
}

static int64_t task_rows(const struct step *s)
{
	return GEMM_TASK_ROWS / s->u->rows * s->u->rows;
}

static int64_t n_tasks(const struct step *s)
{
	return ceil_div(s->rows, task_rows(s)) * ceil_div(col_tiles(s), s->task_cols);
}

/* Returns the number of rows of a task that need no panel: whole tiles. */
static int64_t rows_in_place(const struct step *s, int64_t rows)
{
	const struct operand *x = &s->g->left;
	bool is_supported = s->u->in_place && !x->across && x->type == DT_F32;
	return is_supported ? rows / s->u->rows * s->u->rows : 0;
}

/* Computes task i of a step: packs its rows, then computes its tiles. */
static void run_task(const struct step *s, int64_t i)
{
	const struct gemm_unit *u = s->u;
	const struct operand *x = &s->g->left;
	int64_t groups = ceil_div(col_tiles(s), s->task_cols);
	int64_t max_rows = task_rows(s), row = i / groups * max_rows;
	int64_t rows = min64(max_rows, s->rows - row), in_place = rows_in_place(s, rows);
	int64_t col = i % groups * s->task_cols * u->cols;
	int64_t end = min64(col + s->task_cols * u->cols, s->cols);
	const float *first =
		in_place ? (const float *)x->p + (s->row + row) * x->stride + s->k : NULL;
	char *left = thread_buffer(LEFT_PANELS, max_rows * u->row_bytes);
	u->pack_left(left, x, s->row + row + in_place, rows - in_place, s->k, s->n_k);
	if (u->begin)
		u->begin();
	for (; col < end; col += u->cols) {
		for (int64_t r = 0; r < in_place; r += u->rows)
			multiply_tile(s, first + r * x->stride,
				x->stride * (int64_t)sizeof(*first), row + r, u->rows,
				col);
		for (int64_t r = in_place; r < rows; r += u->rows)
			multiply_tile(s, left + (r - in_place) * u->row_bytes,
				u->row_bytes, row + r, min64(u->rows, rows - r), col);
	}
	if (u->end)
		u->end();
}

/* Runs a step: packs all right panels, then runs all tasks; both in parallel unless g->serial. */
static void run_step(const struct step *s)
{
	int64_t n = col_tiles(s);
	if (s->g->serial) {
		for (int64_t i = 0; i < n; i++)
			pack_right(s, i);
		for (int64_t i = 0; i < n_tasks(s); i++)
			run_task(s, i);
		return;
	}
#pragma omp parallel for schedule(dynamic, 1) if (n > 1)
	for (int64_t i = 0; i < n; i++)
		pack_right(s, i);
#pragma omp parallel for schedule(dynamic, 1) if (n_tasks(s) > 1)
	for (int64_t i = 0; i < n_tasks(s); i++)
		run_task(s, i);
}

/* Returns the column tiles per task: all, unless there are too few rows for all threads. */
static int64_t task_cols(const struct step *s)
{
	enum { TASKS_OF_THREAD = 4 };
	int64_t n = col_tiles(s), wanted = TASKS_OF_THREAD * omp_get_max_threads();
	int64_t groups = ceil_div(wanted, ceil_div(s->rows, task_rows(s)));
	return s->g->serial ? n : max64(1, n / groups);
}

/* Computes a block of the result, one panel of terms after another. */
static void run_block(const struct gemm *g, struct step s)
{
	const struct gemm_unit *u = s.u;
	int64_t tiles = ceil_div(s.rows, u->rows) * col_tiles(&s);
	s.right = thread_buffer(RIGHT_PANELS, col_tiles(&s) * u->cols * u->col_bytes);
	if (g->k > u->depth)
		s.sums = thread_buffer(
			KEPT_SUMS, tiles * u->rows * u->cols * (int64_t)sizeof(float));
	s.task_cols = task_cols(&s);
	do {
		s.n_k = min64(u->depth, g->k - s.k);
		run_step(&s);
		s.k += u->depth;
	} while (s.k < g->k);
}

/* Returns the size of the parts, in whole tiles, into which n is split evenly; at most `max`. */
static int64_t even_part(int64_t n, int64_t max, int64_t tile)
{
	return round_up(ceil_div(n, max64(1, ceil_div(n, max))), tile);
}

/* Computes the result block by block: the columns of a block are packed once. If the sums need
 * several panels, they are kept between panels, so the blocks are smaller. */
void K(gemm_by)(const struct gemm *g, const struct gemm_unit *u)
{
	enum { KEPT_ROWS = 2112, KEPT_COLS = 1024, COLS = 4096 };
	struct step s = {.g = g, .u = u};
	bool needs_sums = g->k > u->depth;
	int64_t rows =
		even_part(g->m, needs_sums ? KEPT_ROWS : max64(1, g->m), task_rows(&s));
	int64_t cols = even_part(g->n, needs_sums ? KEPT_COLS : COLS, u->cols);
	BUG_ON(g->add && g->bias.p);
	for (s.row = 0; s.row < g->m; s.row += rows) {
		for (s.col = 0; s.col < g->n; s.col += cols) {
			s.rows = min64(rows, g->m - s.row);
			s.cols = min64(cols, g->n - s.col);
			run_block(g, s);
		}
	}
}

/* Computes the matmul by the unit for its operands' types: fp32 and fp16, or bf16 and 8 bits. */
void K(gemm)(const struct gemm *g)
{
	static const bool by_fp32[N_DTYPES] = {[DT_F32] = true, [DT_F16] = true};
	bool wide = by_fp32[g->left.type] || by_fp32[g->right.type];
	K(gemm_by)(g, wide ? &K(gemm_fp32) : K(gemm_bf16)(cpu_isa_in_use()));
}
