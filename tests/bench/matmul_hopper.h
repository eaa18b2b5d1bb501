/* A matmul for sm_90a that is on trial. The emulated plugin has it, and the plugin that is built with LAB=yes, where
 * benchmarks and tests find it as a symbol. */
#pragma once

#include "kernels/cuda/matmul.h"

/* y[m][n] = x[m][k] w[n][k]^T + bias[n], in bf16 with a bias of fp32 or none. A number of y is one
 * fp32 sum in the order of k, 16 products at a time as the tensor cores add them, then the bias, then
 * one rounding; it depends on nothing else, neither on shapes nor on the variant.
 * False, with nothing done: not for this device, or these shapes or addresses. */
typedef bool matmul_hopper(
	struct device *d, struct mat y, struct mat x, struct mat w, struct mat bias);

struct matmul_variant {
	const char *name;
	matmul_hopper *run;
};

/* The last has no name. Its name in the plugin is "pt_matmuls_hopper". */
extern const struct matmul_variant pt_matmuls_hopper[];

/* The epilogues of kernels/cuda/matmul.h. Their name in the plugin is "pt_matmul_epilogues". */
struct matmul_epilogues {
	bool (*run)(struct device *d, const char *name, enum matmul_kind kind,
		const struct matmul_call *c);
	void (*softmax_tiles)(struct device *d, struct softmax_state *tiles,
		struct mat logits, int64_t real);
};
extern const struct matmul_epilogues pt_matmul_epilogues;
