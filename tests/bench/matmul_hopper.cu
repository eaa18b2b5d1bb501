/* Variants of the matmuls of kernels/cuda/matmul_hopper.h that are on trial. */
#include "kernels/cuda/matmul_launch.h"

extern "C" {
#include "tests/bench/matmul_hopper.h"
}

template <typename S>
static bool matmul(
	struct device *d, struct mat y, struct mat x, struct mat w, struct mat bias)
{
	typedef epilogue_row<MATMUL_FWD> linear;
	struct matmul_call call = {};
	struct matmul_args args;
	call.y = y;
	call.x = x;
	call.w = w;
	call.bias = bias;
	if (bias.p && bias.type != DT_F32)
		return false;
	if (!matmul_prepare(d, &traits_of<S, linear>, &call, &args))
		return false;
	launch_matmul<S, linear>(d, "matmul_hopper", args);
	return true;
}

/* The simplest is the first. */
extern "C" __attribute__((visibility("default")))
const struct matmul_variant pt_matmuls_hopper[] = {
	{"matmul_hopper, plain", matmul<matmul_shape<4, false, false, false, false>>},
	{"matmul_hopper, lag", matmul<matmul_shape<4, true, true, false, false>>},
	{"matmul_hopper, over", matmul<matmul_shape<4, true, true, true, false>>},
	{"matmul_hopper, pair without lag",
		matmul<matmul_shape<4, true, false, true, true>>},
	{"matmul_hopper, pair", matmul<matmul_shape<4, true, true, true, true>>},
	{NULL, NULL},
};

extern "C" __attribute__((visibility("default")))
const struct matmul_epilogues pt_matmul_epilogues = {
	cuda_matmul_hopper, cuda_softmax_tiles};
