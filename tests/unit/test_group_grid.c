/* The launches of the matmuls of experts at the sizes of real models, where no test runs them: grids that a
 * GPU accepts, tables that fit into the workspace, and offsets beyond 2^31. */
#include "kernels/cuda/group_grid.h"
#include "tests/support/support.h"

/* Tokens of a micro-batch, and what --ep may bring: all rows of 8 ranks. */
enum { TOKENS = 8 * 8192, EP = 8, WORKSPACE = 64 << 20 };

static const struct {
	const char *name;
	int64_t dim, f, experts, k, shared;
} models[] = {{"Mixtral 8x7B", 4096, 14336, 8, 2, 0},
	{"Mixtral 8x22B", 6144, 16384, 8, 2, 0}, {"Qwen3-30B-A3B", 2048, 768, 128, 8, 0},
	{"Qwen3-235B-A22B", 4096, 1536, 128, 8, 0},
	{"dots.llm1", 4096, 1408, 128, 6, 2816},
	{"a DeepSeek-V3 layer", 7168, 2048, 256, 8, 2048}};

/* The element of a stack of weights that a tile reads last, as the kernel computes it. */
static int64_t last_offset(const struct group_tile *tile, int64_t out, int64_t in)
{
	int64_t block_size = out * in;
	return tile->block * block_size + (out - 1) * in + in - 1;
}

static void check_matmul(int64_t rows, int64_t experts, int64_t out, int64_t in)
{
	int64_t n_tiles = group_max_tiles(rows, experts, GROUP_TILE_ROWS);
	const struct group_tile last = {
		.block = (int)(experts - 1), .row = (int)(rows - 1), .end = (int)rows};
	assert_true(rows <= INT32_MAX);
	assert_true(group_grid_fits(groups_grid(out, n_tiles)));
	assert_true(group_grid_fits(groups_grid(in, n_tiles)));
	assert_true(n_tiles * (int64_t)sizeof(last) <= WORKSPACE);
	assert_true(group_grid_fits(matrices_grid(out, in, LEAVES_AT_ONCE)));
	assert_int_equal(last_offset(&last, out, in), experts * out * in - 1);
	assert_true((last.row + 0) * out + out - 1 == rows * out - 1); /* of y */
	assert_true(groups_grid(out, n_tiles).x * GROUP_COLS >= out);
}

/* The same by warpgroups. TMA counts rows and columns in 32 bits. */
static void check_wide_matmul(int64_t rows, int64_t experts, int64_t out, int64_t in)
{
	int64_t n_tiles = group_max_tiles(rows, experts, WIDE_TILE_ROWS);
	assert_true(wide_tiles_fit(wide_tiles(n_tiles, out)));
	assert_true(wide_tiles_fit(wide_tiles(n_tiles, in)));
	assert_true(wide_tiles_fit(wide_leaf_tiles(out, in, LEAVES_AT_ONCE)));
	assert_true(rows + WIDE_TILE_ROWS <= INT32_MAX / 2);
	assert_true(experts * out + WIDE_TILE_COLS <= INT32_MAX / 2);
	assert_true(n_tiles * (int64_t)sizeof(struct group_tile) <= WORKSPACE);
	assert_true(out % 64 == 0 && in % 64 == 0); /* else other kernels compute it */
	/* elements of a leaf, and bytes of a row of operands */
	assert_true(wide_leaf_tiles(out, in, 1) * WIDE_TILE_ROWS * WIDE_TILE_COLS >=
		    out * in);
	assert_true(max64(out, in) * 2 < (int64_t)1 << 40);
}

TEST(real_sizes)
{
	int64_t largest = 0;
	for (size_t i = 0; i < ARRAY_LEN(models); i++) {
		int64_t rows = TOKENS * models[i].k * EP / 2, f = models[i].f;
		int64_t d = models[i].dim, n = models[i].experts;
		check_matmul(rows, n, 2 * f, d);
		check_matmul(rows, n, d, f);
		check_wide_matmul(rows, n, 2 * f, d);
		check_wide_matmul(rows, n, d, f);
		assert_true(group_grid_fits(matrices_grid(TOKENS, n, 1))); /* logits */
		assert_true(group_grid_fits(matrices_grid(TOKENS, d, 1))); /* their dx */
		assert_true(group_grid_fits(matrices_grid(n, d, 1)));	   /* their dw */
		assert_true(group_grid_fits(slots_grid(n, TOKENS, 256)));
		largest = max64(largest, n * 2 * f * d);
	}
	assert_true(largest > INT32_MAX); /* elements, and all the more bytes */
}

/* The maximum number of tiles is reached, and never exceeded. */
TEST(tiles)
{
	enum { BLOCKS = 7, CASES = 2000 };
	int64_t most_seen[BLOCKS + 1] = {0};
	for (int c = 0; c < CASES; c++) {
		int blocks = 1 + c % BLOCKS;
		int64_t rows = 0, tiles = 0;
		for (int b = 0; b < blocks; b++) {
			int64_t n = (int64_t)(test_uniform(3, c * BLOCKS + b) * 200);
			n = c % 3 ? n : n / GROUP_TILE_ROWS * GROUP_TILE_ROWS + 1;
			rows += n;
			tiles += ceil_div(n, GROUP_TILE_ROWS);
		}
		assert_true(tiles <= group_max_tiles(rows, blocks, GROUP_TILE_ROWS));
		most_seen[blocks] +=
			tiles == group_max_tiles(rows, blocks, GROUP_TILE_ROWS);
	}
	for (int b = 1; b <= BLOCKS; b++)
		assert_true(most_seen[b] > 0);
}

TEST(limits)
{
	assert_true(group_grid_fits(groups_grid(1, UINT16_MAX)));
	assert_true(wide_tiles_fit(INT32_MAX / 2));
	assert_false(wide_tiles_fit(INT32_MAX / 2 + 1));
	assert_true(group_grid_fits(slots_grid(INT32_MAX, 256 * UINT16_MAX, 256)));
	assert_false(group_grid_fits(slots_grid(1, 256 * UINT16_MAX + 1, 256)));
	assert_false(group_grid_fits(groups_grid(1, UINT16_MAX + 1)));
	assert_false(group_grid_fits(
		matrices_grid((int64_t)GROUP_TILE_ROWS * UINT16_MAX + 1, 1, 1)));
	assert_int_equal(group_max_tiles(0, 8, GROUP_TILE_ROWS),
		7); /* no rows: no tile, 7 empty ranges */
}
