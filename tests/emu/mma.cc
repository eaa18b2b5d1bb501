/* Warp-wide operations: shuffles and ballots, and the matmuls and loads of matrices of
 * kernels/cuda/mma.h. */
#include "tests/emu/inside.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <gpu_mma.h>

#define FAST __attribute__((target_clones("default", "avx2", "avx512f")))

void emu_op_sync(void *const lanes[32])
{
	(void)lanes;
}

void emu_op_shuffle(void *const lanes[32])
{
	struct emu_exchange *const *e = (struct emu_exchange *const *)lanes;
	for (int i = 0; i < 32; i++)
		e[i]->result = e[e[i]->from]->value;
}

void emu_op_ballot(void *const lanes[32])
{
	struct emu_exchange *const *e = (struct emu_exchange *const *)lanes;
	uint64_t all = 0;
	for (int i = 0; i < 32; i++)
		all |= e[i]->value << i;
	for (int i = 0; i < 32; i++)
		e[i]->result = all;
}

static float f16_table[1 << 16];

static float from_bf16(uint32_t bits)
{
	return emu_bits<float>(bits << 16);
}

static float from_f16(uint32_t bits)
{
	return f16_table[bits];
}

static void f16_table_make(void)
{
	for (unsigned i = 0; i < 1 << 16; i++) {
		__half_raw r;
		r.x = (unsigned short)i;
		f16_table[i] = __half2float(__half(r));
	}
}

void emu_widen(float *to, const uint16_t *from, int n, bool bf16)
{
	if (!bf16 && !f16_table[1])
		f16_table_make();
	for (int i = 0; i < n; i++)
		to[i] = bf16 ? from_bf16(from[i]) : from_f16(from[i]);
}

typedef float row8 __attribute__((vector_size(32)));

/* Adds to c in the order of k. */
template <float (*WIDEN)(uint32_t)>
static inline __attribute__((always_inline)) void product(void *const lanes[32])
{
	struct emu_product *const *p = (struct emu_product *const *)lanes;
	float a[16][16], b[16][8], c[16][8];
	row8 rows[16];
	for (int l = 0; l < 32; l++) {
		int g = l / 4, t = l % 4;
		for (int i = 0; i < 4; i++) {
			float *at = &a[g + i % 2 * 8][2 * t + i / 2 * 8];
			at[0] = WIDEN(p[l]->a[i] & 0xffff);
			at[1] = WIDEN(p[l]->a[i] >> 16);
		}
		memcpy(&c[g][2 * t], &p[l]->c[0], 8);
		memcpy(&c[g + 8][2 * t], &p[l]->c[2], 8);
		for (int i = 0; i < 2; i++) {
			b[2 * t + i * 8][g] = WIDEN(p[l]->b[i] & 0xffff);
			b[2 * t + i * 8 + 1][g] = WIDEN(p[l]->b[i] >> 16);
		}
	}
	memcpy(rows, b, sizeof(rows));
	for (int i = 0; i < 16; i++) {
		row8 sum;
		memcpy(&sum, c[i], sizeof(sum));
		for (int k = 0; k < 16; k++)
			sum += a[i][k] * rows[k];
		memcpy(c[i], &sum, sizeof(sum));
	}
	for (int l = 0; l < 32; l++) {
		memcpy(&p[l]->c[0], &c[l / 4][2 * (l % 4)], 8);
		memcpy(&p[l]->c[2], &c[l / 4 + 8][2 * (l % 4)], 8);
	}
}

FAST void emu_op_mma_bf16(void *const lanes[32])
{
	product<from_bf16>(lanes);
}

FAST void emu_op_mma_f16(void *const lanes[32])
{
	if (!f16_table[1])
		f16_table_make();
	product<from_f16>(lanes);
}

static void load(void *const lanes[32], bool transposed)
{
	struct emu_rows *const *m = (struct emu_rows *const *)lanes;
	uint16_t x[4][8][8];
	for (int l = 0; l < 32; l++) {
		if ((uintptr_t)m[l]->row % 16 || !emu_is_shared(m[l]->row, 16))
			emu_stop("ldmatrix: lane %d gives %p: not 16 bytes of shared "
				 "memory",
				l, m[l]->row);
		memcpy(x[l / 8][l % 8], m[l]->row, 16);
	}
	for (int l = 0; l < 32; l++)
		for (int i = 0; i < 4; i++) {
			int g = l / 4, t = l % 4;
			uint32_t low = transposed ? x[i][2 * t][g] : x[i][g][2 * t];
			uint32_t high =
				transposed ? x[i][2 * t + 1][g] : x[i][g][2 * t + 1];
			m[l]->r[i] = low | high << 16;
		}
}

void emu_op_ldmatrix(void *const lanes[32])
{
	load(lanes, false);
}

void emu_op_ldmatrix_transposed(void *const lanes[32])
{
	load(lanes, true);
}
