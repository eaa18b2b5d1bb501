/* The table of plans: gemm_plan.cu chooses and runs them, gemm_text.cu writes and reads them. */
#ifndef KERNELS_CUDA_GEMM_PLAN_H
#define KERNELS_CUDA_GEMM_PLAN_H

#include "kernels/cuda/cuda_internal.h"

enum { PLAN_BUCKETS = 1024 };

struct gemm_plan {
	struct gemm_key key;
	bool ready, possible;
	bool unfused;	/* the unfused kernels were faster */
	bool from_text; /* the algorithm was read from text and is not checked yet */
	cublasLtMatmulAlgo_t algo;
	cublasLtMatmulDesc_t desc;
	cublasLtMatrixLayout_t a, b, d;
	struct gemm_plan *next;
};

struct plans {
	struct gemm_plan *bucket[PLAN_BUCKETS];
	int64_t n;
};

/* The plan of a key, which is added if there is none. */
struct gemm_plan *cuda_plan_of(struct cuda_device *c, const struct gemm_key *key);

#endif
