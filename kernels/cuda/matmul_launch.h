/* Launches of matmul_hopper.h: for matmul_hopper.cu, and for variants that are on trial. */
#pragma once

#include "kernels/cuda/matmul_hopper.h"

/* What the host must know about a shape and an epilogue. */
struct matmul_traits {
	bool transposed, bias, sums, groups;
	enum aux_use aux;
	int blocks; /* blocks per cluster */
};

template <typename S, typename E>
static constexpr struct matmul_traits traits_of = {
	E::TRANSPOSED, E::BIAS, E::SUMS, E::GROUPS, E::AUX, S::BLOCKS};

/* Sets the arguments of the kernel. Returns false if it does not support the call. */
bool matmul_prepare(struct device *d, const struct matmul_traits *how,
	const struct matmul_call *c, struct matmul_args *to);

/* Returns a tensor map with boxes of `rows` rows and PANEL columns. */
CUtensorMap matmul_map(struct device *d, struct mat m, int rows);
/* Returns true if TMA can copy the bf16 matrix. */
bool matmul_supports(struct mat m);
/* Returns the order of tiles. With sums, an item is two runs of `run` rows, one per warpgroup. */
struct matmul_order matmul_tile_order(
	const struct matmul_traits *how, int64_t rows, int64_t cols, int64_t run);

/* Launches the matmul in clusters of two blocks, and records it for error messages and profiles.
 * Ends the program if the launch fails. */
template <typename S, typename E>
static void launch_pairs(struct device *d, const char *name, dim3 grid, int shared_bytes,
	const struct matmul_args &x)
{
	struct cuda_launch l = {name, grid, dim3(HOPPER_THREADS), (size_t)shared_bytes};
	cudaLaunchConfig_t how = {};
	cudaLaunchAttribute pair = {};
	pair.id = cudaLaunchAttributeClusterDimension;
	pair.val.clusterDim.x = 2;
	pair.val.clusterDim.y = pair.val.clusterDim.z = 1;
	how.gridDim = grid;
	how.blockDim = dim3(HOPPER_THREADS);
	how.dynamicSmemBytes = (size_t)shared_bytes;
	how.stream = cuda_stream(d);
	how.attrs = &pair;
	how.numAttrs = 1;
	cuda_before_launch(d, &l);
	cuda_check_shared(d, name, (size_t)shared_bytes);
	cuda_check(d,
		cudaFuncSetAttribute(hopper_matmul<S, E>,
			cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
		name);
	cuda_check(d, cudaLaunchKernelEx(&how, hopper_matmul<S, E>, x), name);
	cuda_after_launch(d, name);
}

/* Returns the bytes of shared memory of a block. */
template <typename S> static constexpr int matmul_shared_bytes()
{
	enum { PAD = PANEL_ALIGN - 128 }; /* SHARED() is at a multiple of 128 */
	constexpr int BYTES = PAD + S::TILES + (int)sizeof(struct matmul_rest<S::STAGES>);
	static_assert(BYTES <= 227 << 10, "shared memory of sm_90");
	return BYTES;
}

/* Launches the matmul with one block per multiprocessor, or fewer for few tiles. */
template <typename S, typename E>
static void launch_matmul(struct device *d, const char *name, const struct matmul_args &x)
{
	constexpr int BYTES = matmul_shared_bytes<S>();
	int64_t blocks =
		min64(x.order.items, cuda_of(d)->multiprocessors / S::BLOCKS) * S::BLOCKS;
	if constexpr (S::PAIR)
		launch_pairs<S, E>(d, name, dim3((unsigned)blocks), BYTES, x);
	else
		launch(d, name, dim3((unsigned)blocks), dim3(HOPPER_THREADS), BYTES,
			hopper_matmul<S, E>, x);
}
