/* Matmuls of our own for sm_90a, and their epilogues: what a block computes from its sums before
 * they leave its registers. (Tests include this file, so it is C, too.) */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif
#include "kernels/kernels.h"

/* All matrices are bf16 unless a row says otherwise. round(): to bf16; ^T: transposed. */
enum matmul_kind {
	MATMUL_FWD,  /* y = round(x w^T + bias) */
	MATMUL_GELU, /* aux = round(x w^T + bias), and y = gelu(aux) in the tanh form */
	MATMUL_RESIDUAL, /* y = aux + (round(x w^T) + bias); y, aux and bias: fp32 */
	MATMUL_XENT,	 /* y = round(x w^T), and `tiles`: the softmax statistics of y */
	MATMUL_BWD,	 /* y = round(x w) */
	MATMUL_DGELU,	 /* y = round(round(x w) gelu'(aux)) */
	MATMUL_DGELU_SUMS, /* the same, and sums = bias_bwd(y) */
	N_MATMUL_KINDS
};

enum { MATMUL_TILE_N = 256 }; /* columns of a tile */

/* The largest x of some elements of a row, and the sum of e^(x - largest). NaN does not change the
 * maximum, but makes the sum NaN. */
struct softmax_state {
	float max, sum;
};

/* x[m][k], w[n][k] or [k][n], y[m][n], bias[1][n] (fp32 or bf16, or empty). */
struct matmul_call {
	struct mat y, x, w, bias, aux;
	struct mat sums;	     /* [1][n], fp32 */
	struct softmax_state *tiles; /* [m][tiles of MATMUL_TILE_N columns] */
	int64_t real;		     /* columns of y that are not padding, for `tiles` */
};

/* Enqueues the matmul with its epilogue. Returns false, with nothing done, if the device, the
 * types, the shapes or the addresses are not supported.
 *
 * An element of the product is one fp32 sum in the order of k, 16 products at a time as the tensor
 * cores add them. It depends on nothing else, neither on shapes nor on the kind, and epilogues
 * have the bits of separate kernels. */
bool cuda_matmul_hopper(struct device *d, const char *name, enum matmul_kind kind,
	const struct matmul_call *c);

/* Computes the `tiles` of MATMUL_XENT from stored logits. */
void cuda_softmax_tiles(
	struct device *d, struct softmax_state *tiles, struct mat logits, int64_t real);

#ifdef __cplusplus
}
#endif
