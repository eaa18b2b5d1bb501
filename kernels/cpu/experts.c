/* Experts: moving rows to their experts and back, matmuls of groups of rows, activations. */
#include "kernels/cpu/activations.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/pieces.h"

#include <omp.h>

/* ---- rows ---------------------------------------------------------------------------- */

static char *row_address(struct mat m, int64_t row)
{
	return (char *)m.p + row * m.cols * dtype_bytes(m.type);
}

void K(rows_take)(struct device *d, struct mat x, struct mat h, const int32_t *index,
	int64_t divisor)
{
	const size_t n_bytes = (size_t)(x.cols * dtype_bytes(x.type));
	BUG_ON(x.cols != h.cols || x.type != h.type);
#pragma omp parallel for if (mat_size(x) > PARALLEL_FROM)
	for (int64_t i = 0; i < x.rows; i++)
		memcpy(row_address(x, i), row_address(h, index[i] / divisor), n_bytes);
}

void K(rows_put)(struct device *d, struct mat h, struct mat x, const int32_t *index)
{
	const size_t n_bytes = (size_t)(x.cols * dtype_bytes(x.type));
	BUG_ON(x.cols != h.cols || x.type != h.type);
#pragma omp parallel for if (mat_size(x) > PARALLEL_FROM)
	for (int64_t i = 0; i < x.rows; i++)
		memcpy(row_address(h, index[i]), row_address(x, i), n_bytes);
}

/* Adds g x to sum, or sets it to g x if this is the first addend. */
static void add_scaled(float *sum, const float *x, float g, int64_t n, bool first)
{
	if (first)
		for (int64_t j = 0; j < n; j++)
			sum[j] = g * x[j];
	else
		for (int64_t j = 0; j < n; j++)
			sum[j] += g * x[j];
}

/* Returns gate j of row i. */
static float gate_of(struct mat gates, int64_t i, int64_t j)
{
	return gates.p && j < gates.cols ? mat_row(gates, i)[j] : 1.0f;
}

void K(slots_combine)(struct device *d, struct mat y, struct mat x, const int32_t *pos,
	int64_t k, struct mat gates, struct mat more)
{
	BUG_ON(x.cols != y.cols || (more.p && more.cols != y.cols));
#pragma omp parallel for if (mat_size(y) > PARALLEL_FROM)
	for (int64_t i = 0; i < y.rows; i++) {
		for (int64_t c = 0; c < y.cols; c += PIECE) {
			int64_t n = min64(PIECE, y.cols - c);
			float sum[PIECE], buf[PIECE];
			for (int64_t j = 0; j < k; j++) {
				int64_t row = pos ? pos[i * k + j] : i * k + j;
				const float *in = piece_load(x, row * x.cols + c, n, buf);
				add_scaled(sum, in, gate_of(gates, i, j), n, !j);
			}
			if (more.p)
				add_scaled(sum,
					piece_load(more, i * more.cols + c, n, buf),
					gate_of(gates, i, k), n, false);
			if (y.type == DT_F32)
				memcpy(element_address(y, i * y.cols + c), sum,
					(size_t)n * sizeof(*sum));
			piece_store(y, i * y.cols + c, n, sum);
		}
	}
}

/* ---- matmuls of groups --------------------------------------------------------------- */

/* Matmuls of blocks of weights, cut by columns of the result into tasks of one thread each. A cut
 * changes no bit, since an element depends on its own row and column only. */
struct group_task {
	struct gemm g;
	int64_t col_step; /* columns of a task */
	int64_t n_tasks;
};

/* Returns columns [first, first + n) of a matmul. */
static struct gemm gemm_columns(const struct gemm *whole, int64_t first, int64_t n)
{
	struct gemm g = *whole;
	int64_t step = g.right.across ? 1 : g.right.stride;
	g.n = n;
	g.right.p = (const char *)g.right.p + first * step * dtype_bytes(g.right.type);
	g.c = (char *)g.c + first * dtype_bytes(g.type);
	if (g.before)
		g.before += first;
	return g;
}

/* Returns the columns of a task, so that the matmul has about n_tasks tasks. */
static int64_t choose_columns(const struct gemm *g, double n_tasks)
{
	enum { UNIT = 64, MIN_COLS = 2 * UNIT };
	int64_t parts = (int64_t)ceil(n_tasks);
	return max64(MIN_COLS, round_up(ceil_div(g->n, max64(1, parts)), UNIT));
}

/* Computes n matmuls. */
static void run_tasks(struct group_task *tasks, int64_t n)
{
	enum { TASKS_OF_THREAD = 8 };
	double all = 0;
	int64_t wanted = TASKS_OF_THREAD * omp_get_max_threads(), total = 0;
	for (int64_t i = 0; i < n; i++)
		all += (double)tasks[i].g.m * (double)tasks[i].g.n * (double)tasks[i].g.k;
	for (int64_t i = 0; i < n; i++) {
		const struct gemm *g = &tasks[i].g;
		double work = (double)g->m * (double)g->n * (double)g->k;
		tasks[i].col_step =
			choose_columns(g, all > 0 ? work / all * (double)wanted : 1);
		tasks[i].n_tasks = ceil_div(g->n, tasks[i].col_step);
		total += tasks[i].n_tasks;
	}
#pragma omp parallel for schedule(dynamic, 1) if (total > 1)
	for (int64_t t = 0; t < total; t++) {
		int64_t i = 0, at = t;
		while (at >= tasks[i].n_tasks)
			at -= tasks[i++].n_tasks;
		const struct gemm *g = &tasks[i].g;
		int64_t first = at * tasks[i].col_step;
		struct gemm part =
			gemm_columns(g, first, min64(tasks[i].col_step, g->n - first));
		part.serial = true;
		K(gemm)(&part);
	}
}

/* Computes y[i] = x[i] w^T, or x[i] w with `across`, for the rows and the block of each group. */
static void multiply_groups(struct mat y, struct mat x, struct mat w, bool across,
	const struct row_groups *groups)
{
	const int64_t blocks = groups->n / groups->per_block, out = w.rows / blocks;
	struct group_task *tasks = xcalloc((size_t)blocks, sizeof(*tasks));
	int64_t n = 0;
	for (int64_t b = 0; b < blocks; b++) {
		int64_t first = groups->offsets[b * groups->per_block];
		int64_t end = groups->offsets[(b + 1) * groups->per_block];
		struct mat block = mat_rows(w, b * out, out);
		if (end == first)
			continue;
		tasks[n].g = (struct gemm){
			.m = end - first,
			.n = y.cols,
			.k = x.cols,
			.left = {mat_rows(x, first, 0).p, x.cols, false, x.type},
			.right = {block.p, w.cols, across, w.type},
			.c = mat_rows(y, first, 0).p,
			.c_stride = y.cols,
			.type = y.type,
			.alpha = 1,
		};
		n++;
	}
	run_tasks(tasks, n);
	free(tasks);
}

void K(groups_fwd)(struct device *d, struct mat y, struct mat x, struct mat w,
	const struct row_groups *groups)
{
	BUG_ON(groups->n % groups->per_block || w.rows % (groups->n / groups->per_block));
	BUG_ON(x.cols != w.cols || y.cols * (groups->n / groups->per_block) != w.rows);
	multiply_groups(y, x, w, false, groups);
}

void K(groups_bwd_x)(struct device *d, struct mat dx, struct mat dy, struct mat w,
	const struct row_groups *groups)
{
	BUG_ON(groups->n % groups->per_block || w.rows % (groups->n / groups->per_block));
	BUG_ON(dx.cols != w.cols || dy.cols * (groups->n / groups->per_block) != w.rows);
	multiply_groups(dx, dy, w, true, groups);
}

void K(groups_bwd_w)(struct device *d, const struct group_leaf *leaves, int n_leaves,
	struct mat dy, struct mat x, const struct row_groups *groups)
{
	struct group_task *tasks = xcalloc((size_t)n_leaves, sizeof(*tasks));
	for (int i = 0; i < n_leaves; i++) {
		const struct group_leaf *l = &leaves[i];
		int64_t first = groups->offsets[l->group];
		int64_t size = dtype_bytes(dy.type);
		BUG_ON(l->dw.cols != x.cols || l->first_col + l->dw.rows > dy.cols);
		tasks[i].g = (struct gemm){
			.m = l->dw.rows,
			.n = l->dw.cols,
			.k = groups->offsets[l->group + 1] - first,
			.left = {(char *)mat_rows(dy, first, 0).p + l->first_col * size,
				dy.cols, true, dy.type},
			.right = {mat_rows(x, first, 0).p, x.cols, true, x.type},
			.c = l->dw.p,
			.c_stride = l->dw.cols,
			.type = l->dw.type,
			.before = l->before,
			.before_stride = l->dw.cols,
			.alpha = 1,
		};
	}
	run_tasks(tasks, n_leaves);
	free(tasks);
}

/* ---- activations --------------------------------------------------------------------- */

void K(expert_act_fwd)(struct device *d, enum act_kind kind, struct mat a, struct mat ab)
{
	const int64_t f = a.cols;
	BUG_ON(ab.cols != 2 * f || ab.rows != a.rows || ab.type != a.type);
#pragma omp parallel for if (mat_size(ab) > PARALLEL_FROM)
	for (int64_t i = 0; i < a.rows; i++) {
		float buf[PIECE], buf_a[PIECE], buf_b[PIECE];
		for (int64_t c = 0; c < f; c += PIECE) {
			int64_t n = min64(PIECE, f - c), at = 2 * i * f + c;
			float *out = piece_or_buffer(a, i * f + c, buf);
			act_fwd_piece(kind, out, piece_load(ab, at, n, buf_a),
				piece_load(ab, at + f, n, buf_b), n);
			piece_store(a, i * f + c, n, out);
		}
	}
}

/* Rounds n <= PIECE elements to the type. */
static void round_piece(float *x, enum dtype type, int64_t n)
{
	uint16_t bits[PIECE];
	if (type == DT_F32)
		return;
	K(narrow_run)(bits, type, x, n);
	K(widen_run)(x, bits, type, n);
}

/* Stores n elements, which are elsewhere, as elements from `at` on. */
static void store_elements(struct mat m, int64_t at, int64_t n, const float *x)
{
	if (m.type == DT_F32)
		memcpy(element_address(m, at), x, (size_t)n * sizeof(*x));
	piece_store(m, at, n, x);
}

/* Adds z a to the 16 lanes of a sum. */
static v16 add_products(v16 sum, const float *z, const float *a, int64_t n)
{
	int64_t j = 0;
	for (; j + 16 <= n; j += 16)
		sum += v16_load(z + j) * v16_load(a + j);
	if (j < n)
		sum += v16_load_tail(z + j, n - j) * v16_load_tail(a + j, n - j);
	return sum;
}

/* Computes row i of expert_act_bwd; returns the gradient of its gate g. */
static float act_bwd_row(enum act_kind kind, struct mat dab, struct mat ga, struct mat z,
	struct mat ab, float g, int64_t i)
{
	const int64_t f = z.cols;
	v16 sum = {0};
	for (int64_t c = 0; c < f; c += PIECE) {
		float buf_z[PIECE], buf_a[PIECE], buf_b[PIECE];
		float act[PIECE], up[PIECE], da[PIECE], db[PIECE];
		int64_t n = min64(PIECE, f - c), at = 2 * i * f + c;
		const float *in = piece_load(z, i * f + c, n, buf_z);
		const float *a = piece_load(ab, at, n, buf_a);
		const float *b = piece_load(ab, at + f, n, buf_b);
		act_fwd_piece(kind, act, a, b, n);
		round_piece(act, ab.type, n);
		sum = add_products(sum, in, act, n);
		for (int64_t j = 0; j < n; j++)
			up[j] = g * in[j];
		act_bwd_piece(kind, da, db, up, a, b, n);
		for (int64_t j = 0; j < n; j++)
			act[j] *= g;
		store_elements(dab, at, n, da);
		store_elements(dab, at + f, n, db);
		store_elements(ga, i * f + c, n, act);
	}
	return v16_sum(sum);
}

void K(expert_act_bwd)(struct device *d, enum act_kind kind, struct mat dab,
	struct mat ga, float *dg, struct mat z, struct mat ab, const float *gates,
	const int32_t *index, int64_t stride)
{
	BUG_ON(ab.cols != 2 * z.cols || dab.cols != ab.cols || ga.cols != z.cols);
	BUG_ON(ab.type != z.type || dab.type != z.type || ga.type != z.type);
#pragma omp parallel for if (mat_size(ab) > PARALLEL_FROM)
	for (int64_t i = 0; i < z.rows; i++) {
		int64_t at = index ? index[i] : i * stride;
		dg[at] = act_bwd_row(kind, dab, ga, z, ab, gates[at], i);
	}
}
