/* The table of plans: gemm_plan.cu chooses and runs them, gemm_text.cu writes and reads them,
 * gemm_candidates.cu lists what was to choose from. */
#pragma once

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

/* Algorithms that cuBLASLt is asked for; more if all of them split sums and must not, or if a text
 * names one. */
enum { CANDIDATES = 8, MANY_CANDIDATES = 64 };
/* The algorithms that run here of the first `asked`, in the order of cuBLASLt's heuristic. `exact`:
 * it is told not to split sums. */
int cuda_gemm_suggested(struct device *d, const struct gemm_plan *p, bool exact,
	cublasLtMatmulHeuristicResult_t *found, int asked);
/* Whether an algorithm does not split sums, or need not be exact. */
bool cuda_gemm_suits(bool exact, const cublasLtMatmulAlgo_t *algo);

/* What a measurement of algorithms needs: where the result goes, and events. */
struct gemm_trial {
	void *to;
	bool own;
	cudaEvent_t begin, end;
};

enum { GEMM_TRIALS = 3 };
/* false: no memory for the result. */
bool cuda_gemm_trial(
	struct device *d, const struct cuda_product *x, struct gemm_trial *t);
void cuda_gemm_trial_end(struct device *d, struct gemm_trial *t);
/* Milliseconds of GEMM_TRIALS calls, infinity if one fails; without an algorithm, of the unfused
 * kernels. */
float cuda_gemm_measure(struct device *d, const struct gemm_plan *p,
	const struct cuda_product *x, const struct gemm_trial *t,
	const cublasLtMatmulAlgo_t *algo);

/* gemm_text.cu: the first line of a text; a key, an algorithm in a line. */
void cuda_gemm_head(struct device *d, struct str *out);
void cuda_gemm_key_text(const struct gemm_key *k, struct str *out);
void cuda_gemm_algorithm_text(const cublasLtMatmulAlgo_t *algo, struct str *out);

/* gemm_candidates.cu: lists the algorithms for a plan in the file c->candidates. */
void cuda_gemm_list(struct device *d, const char *name, const struct gemm_plan *p,
	const struct cuda_product *x);
