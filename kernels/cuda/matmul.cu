/* Which calls the matmuls for sm_90a support, and their launches. */
#include "kernels/cuda/columns.h"
#include "kernels/cuda/matmul_launch.h"

/* The matrix is one head of attention. */
CUtensorMap matmul_map(struct device *d, struct mat m, int rows)
{
	const struct heads all = {m.p, m.cols, m.rows, (int)m.cols, false, true};
	return tile_map(d, all, 1, m.type, rows);
}

bool matmul_supports(struct mat m)
{
	return m.type == DT_BF16 && m.cols && m.rows && m.cols % 8 == 0 &&
	       mat_stride(m) == m.cols && (uintptr_t)m.p % 16 == 0 && !m.scale &&
	       !m.amax && max64(m.rows, m.cols) < INT32_MAX / 2;
}

/* Returns true if m has this type, the shape of `like`, and contiguous rows, 16-byte aligned. */
static bool has_shape(struct mat m, struct mat like, enum dtype type)
{
	return m.type == type && m.rows == like.rows && m.cols == like.cols &&
	       mat_stride(m) == m.cols && (uintptr_t)m.p % 16 == 0;
}

/* Returns true if the kernels support the types, shapes and addresses of a call. */
static bool supports_call(const struct matmul_traits *how, const struct matmul_call *c)
{
	bool wide = how->aux == AUX_STREAM;
	struct mat y = c->y;
	y.type = wide && y.type == DT_F32 ? DT_BF16 : y.type; /* fp32 is fine */
	if (!matmul_supports(y) || !matmul_supports(c->x) || !matmul_supports(c->w))
		return false;
	if (wide != (c->y.type == DT_F32))
		return false;
	if (c->bias.p &&
		(!how->bias || (uintptr_t)c->bias.p % 8 ||
			(c->bias.type != DT_F32 && (wide || c->bias.type != DT_BF16))))
		return false;
	return how->aux == AUX_NONE || has_shape(c->aux, c->y, c->y.type);
}

struct matmul_order matmul_tile_order(
	const struct matmul_traits *how, int64_t rows, int64_t cols, int64_t run)
{
	enum { SECTION = 12 };
	int64_t tile = how->sums ? 2 * run : (int64_t)TILE_M;
	int64_t m_tiles = ceil_div(rows, tile * how->blocks);
	int64_t n_tiles = ceil_div(cols, TILE_N);
	return {(int)m_tiles, (int)n_tiles, (int)min64(SECTION, n_tiles),
		(int)min64(m_tiles * n_tiles, INT32_MAX), (int)tile,
		how->sums ? (int)(run / GROUP_ROWS) : 1,
		how->sums ? (int)run : (int)GROUP_ROWS};
}

bool matmul_prepare(struct device *d, const struct matmul_traits *how,
	const struct matmul_call *c, struct matmul_args *to)
{
	struct mat y = c->y, w = c->w;
	struct column_runs runs = {GROUP_ROWS, 1};
	if (!cuda_of(d)->map_encode || !supports_call(how, c))
		return false;
	BUG_ON(c->x.rows != y.rows);
	BUG_ON(!how->groups && (how->transposed ? w.cols : w.rows) != y.cols);
	BUG_ON(!how->groups && (how->transposed ? w.rows : w.cols) != c->x.cols);
	if (how->sums)
		runs = cuda_column_runs(y.rows, y.cols);
	struct matmul_order order = matmul_tile_order(how, y.rows, y.cols, runs.rows);
	if (runs.rows % GROUP_ROWS || order.items > INT32_MAX / 2)
		return false;
	bool wide = y.type == DT_F32;
	*to = {matmul_map(d, c->x, how->sums ? (int)GROUP_ROWS : (int)TILE_M),
		matmul_map(d, w, how->transposed ? (int)PANEL : TILE_N / how->blocks),
		wide ? CUtensorMap() : matmul_map(d, y, STORE_ROWS),
		how->aux == AUX_GELU ? matmul_map(d, c->aux, STORE_ROWS) : CUtensorMap(),
		(int)y.rows, (int)y.cols, (int)ceil_div(c->x.cols, PANEL), NULL, 0,
		c->bias.type == DT_F32, c->bias.p, y.p, c->aux.p, NULL, c->tiles,
		(int)min64(c->real, y.cols), order};
	if (how->sums)
		to->part = (float *)cuda_workspace(
			d, (size_t)(runs.n * y.cols) * sizeof(float));
	return true;
}

typedef struct matmul_shape<4, true, true, true, false> shape;

/* Runs a matmul of one kind, and sums over its rows; false, with nothing done: not supported. */
template <enum matmul_kind KIND>
static bool run_kind(struct device *d, const char *name, const struct matmul_call *c)
{
	struct matmul_args args;
	if (!matmul_prepare(d, &traits_of<shape, epilogue_row<KIND>>, c, &args))
		return false;
	launch_matmul<shape, epilogue_row<KIND>>(d, name, args);
	if constexpr (epilogue_row<KIND>::SUMS) {
		const struct column_sums to = {{floats_of(c->sums)}, 1};
		cuda_join_runs(d, name, c->y.cols, &to, args.part,
			cuda_column_runs(c->y.rows, c->y.cols).n);
	}
	return true;
}

bool cuda_matmul_hopper(struct device *d, const char *name, enum matmul_kind kind,
	const struct matmul_call *c)
{
	static bool (*const kinds[])(struct device *, const char *,
		const struct matmul_call *) = {run_kind<MATMUL_FWD>,
		run_kind<MATMUL_GELU>, run_kind<MATMUL_RESIDUAL>, run_kind<MATMUL_XENT>,
		run_kind<MATMUL_BWD>, run_kind<MATMUL_DGELU>,
		run_kind<MATMUL_DGELU_SUMS>};
	static_assert(ARRAY_LEN(kinds) == N_MATMUL_KINDS, "a function for each kind");
	return kinds[kind](d, name, c);
}
