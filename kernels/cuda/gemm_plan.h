/* A table of plans: gemm_plan.cu chooses and runs, gemm_text.cu tells and takes. */
#ifndef KERNELS_CUDA_GEMM_PLAN_H
#define KERNELS_CUDA_GEMM_PLAN_H

#include "kernels/cuda/cuda_internal.h"

enum { PLAN_BUCKETS = 1024 };

struct plan {
	struct gemm_key key;
	bool ready, possible;
	bool unfused; /* several kernels were quicker */
	bool told; /* the algorithm is one that was given to us, and not looked at yet */
	cublasLtMatmulAlgo_t algo;
	cublasLtMatmulDesc_t desc;
	cublasLtMatrixLayout_t a, b, d;
	struct plan *next;
};

struct plans {
	struct plan *bucket[PLAN_BUCKETS];
	int64_t n;
};

/* The plan for it, a new one if there is none. */
struct plan *cuda_plan_of(struct cuda_device *c, const struct gemm_key *key);

#endif
