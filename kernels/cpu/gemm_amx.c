/* The unit of bf16 by AMX, Intel's instructions on tiles: registers of SIDE rows of 64 bytes. A
 * TDPBF16PS multiplies a GROUP of terms of SIDE rows and of SIDE columns in 16 cycles, in the order
 * of gemm_bf16.c, with subnormal numbers as 0.
 *
 * Four tiles of sums, two tiles of rows and two of columns use all eight registers. So four
 * tiles, 8 cycles each from the L1 cache, are loaded for four instructions. The panel of columns
 * stays in the L1 cache, the panels of rows come from the L2 cache. */
#include "kernels/cpu/gemm_unit.h"

#if defined(__AVX512F__)

enum { SIDE = 16, HALVES = 2, TILE = SIDE * SIDE, TILE_DEPTH = 512 };
enum { ROW_BYTES = SIDE * sizeof(word), SUMS = HALVES * SIDE };

/* ---- panels ------------------------------------------------------------------------ */

/* Packs [SIDE][SIDE] pairs of terms. A line has the pairs of one row (or column) or, with
 * x->across, one pair of every row. Missing elements are 0. */
static void pack_tile(word *to, const struct operand *x, int64_t i, int64_t count,
	int64_t k, int64_t n_k)
{
	static const uint16_t zero[SIDE];
	uint16_t buf[2][GROUP];
	for (int64_t l = 0; l < SIDE; l++, to += SIDE) {
		__m512i line = _mm512_setzero_si512();
		if (!x->across && l < count) {
			line = _mm512_maskz_loadu_epi16(
				first_mask(n_k), line_bf16(x, i + l, k, n_k, buf[0]));
		} else if (x->across && 2 * l < n_k) {
			const uint16_t *low, *high = zero;
			low = line_bf16(x, k + 2 * l, i, count, buf[0]);
			if (2 * l + 1 < n_k)
				high = line_bf16(x, k + 2 * l + 1, i, count, buf[1]);
			line = pairs_of(low, high, count);
		}
		_mm512_store_si512(to, line);
	}
}

/* Packs [groups][HALVES] tiles. With `across`, a line of a tile has one pair of every row. */
static void pack_tiles(void *to, const struct operand *x, int64_t i, int64_t count,
	int64_t k, int64_t n_k, bool across)
{
	word buf[TILE] __attribute__((aligned(64))), *tile = to;
	for (int64_t at = 0; at < n_k; at += GROUP) {
		for (int64_t half = 0; half < SUMS; half += SIDE, tile += TILE) {
			int64_t n_present = max64(0, min64(SIDE, count - half));
			pack_tile(x->across == across ? tile : buf, x, i + half,
				n_present, k + at, min64(GROUP, n_k - at));
			if (x->across != across)
				transpose_words(tile, SIDE, buf, SIDE, SIDE, SIDE);
		}
	}
}

/* Packs `count` rows from the i-th on, SUMS to a panel. */
static void pack_left(void *to, const struct operand *x, int64_t i, int64_t count,
	int64_t k, int64_t n_k)
{
	char *panel = to;
	for (int64_t r = 0; r < count;
		r += SUMS, panel += SUMS * TILE_DEPTH * sizeof(uint16_t))
		pack_tiles(panel, x, i + r, min64(SUMS, count - r), k, n_k, false);
}

static void pack_right(void *to, const struct operand *x, int64_t j, int64_t count,
	int64_t k, int64_t n_k)
{
	pack_tiles(to, x, j, count, k, n_k, true);
}

/* Sets sums = (first ? 0 : sums) + left right. AMX tiles: 0-3 sums, 4-5 rows, 6-7 columns. */
__attribute__((target("amx-tile,amx-bf16"))) static void multiply_panels(float *sums,
	const void *left, int64_t row_bytes, const void *right, int64_t n_k, bool across,
	bool first)
{
	const word *rows = left, *cols = right;
	float *lower = sums + SIDE * SUMS;
	if (first) {
		_tile_zero(0);
		_tile_zero(1);
		_tile_zero(2);
		_tile_zero(3);
	} else {
		_tile_loadd(0, sums, HALVES * ROW_BYTES);
		_tile_loadd(1, sums + SIDE, HALVES * ROW_BYTES);
		_tile_loadd(2, lower, HALVES * ROW_BYTES);
		_tile_loadd(3, lower + SIDE, HALVES * ROW_BYTES);
	}
	for (int64_t k = 0; k < n_k; k += GROUP) {
		_tile_loadd(4, rows, ROW_BYTES);
		_tile_loadd(6, cols, ROW_BYTES);
		_tile_dpbf16ps(0, 4, 6);
		_tile_loadd(7, cols + TILE, ROW_BYTES);
		_tile_dpbf16ps(1, 4, 7);
		_tile_loadd(5, rows + TILE, ROW_BYTES);
		_tile_dpbf16ps(2, 5, 6);
		_tile_dpbf16ps(3, 5, 7);
		rows += HALVES * TILE;
		cols += HALVES * TILE;
	}
	_tile_stored(0, sums, HALVES * ROW_BYTES);
	_tile_stored(1, sums + SIDE, HALVES * ROW_BYTES);
	_tile_stored(2, lower, HALVES * ROW_BYTES);
	_tile_stored(3, lower + SIDE, HALVES * ROW_BYTES);
}

/* Configures eight AMX tiles of 16 rows of 64 bytes; makes vector code flush subnormals to 0. */
__attribute__((target("amx-tile"))) static void begin_tiles(void)
{
	static const struct {
		uint8_t palette, start_row, reserved[14];
		uint16_t row_bytes[16];
		uint8_t rows[16];
	} tiles = {.palette = 1,
		.row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
		.rows = {16, 16, 16, 16, 16, 16, 16, 16}};
	K(flush_begin)();
	_tile_loadconfig(&tiles);
}

/* Releases the AMX tiles, so that Linux need not save them and the processor may sleep deeply;
 * restores the caller's treatment of subnormal numbers. */
__attribute__((target("amx-tile"))) static void end_tiles(void)
{
	_tile_release();
	K(flush_end)();
}

const struct gemm_unit K(gemm_amx) = {.name = "amx_bf16",
	.rows = SUMS,
	.cols = SUMS,
	.depth = TILE_DEPTH,
	.row_bytes = TILE_DEPTH * sizeof(uint16_t),
	.col_bytes = TILE_DEPTH * sizeof(uint16_t),
	.pack_left = pack_left,
	.pack_right = pack_right,
	.multiply = multiply_panels,
	.begin = begin_tiles,
	.end = end_tiles};

#endif
