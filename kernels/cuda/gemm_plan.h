/* The table of plans: gemm_plan.cu chooses and runs them, gemm_text.cu writes and reads them,
 * gemm_candidates.cu lists the candidates. */
#pragma once

#include "kernels/cuda/cuda_internal.h"

enum { PLAN_BUCKETS = 1024 };

struct gemm_plan {
	struct gemm_key key;
	bool ready, possible; /* the algorithm is chosen; cuBLASLt has an algorithm */
	bool unfused;	      /* the unfused kernels were faster */
	bool from_text; /* the algorithm was read from text and is not checked yet */
	bool converted; /* cuda_warn_converted() has warned */
	cublasLtMatmulAlgo_t algo;
	cublasLtMatmulDesc_t desc;
	cublasLtMatrixLayout_t a, b, d;
	struct gemm_plan *next;
};

struct plans {
	struct gemm_plan *bucket[PLAN_BUCKETS];
	int64_t n;
};

/* Returns the plan of a key; adds the plan if it is missing. */
struct gemm_plan *cuda_get_plan(struct cuda_device *c, const struct gemm_key *key);

/* The number of algorithms to request from cuBLASLt; MANY if none of the first can be used, for
 * example because all split sums, or if a text has an algorithm. */
enum { CANDIDATES = 8, MANY_CANDIDATES = 64 };
/* Gets the usable algorithms among the first `asked`, in the order of cuBLASLt's heuristic; returns
 * their number. `exact`: requests algorithms that do not split sums. */
int cuda_gemm_suggested(struct device *d, const struct gemm_plan *p, bool exact,
	cublasLtMatmulHeuristicResult_t *found, int asked);
/* Returns true if an algorithm does not split sums, or need not be exact. */
bool cuda_gemm_is_usable(bool exact, const cublasLtMatmulAlgo_t *algo);

/* The resources for measuring algorithms: memory for the result, and events. */
struct gemm_trial {
	void *to;
	bool own; /* `to` must be freed */
	cudaEvent_t begin, end;
};

enum { GEMM_TRIALS = 3 };
/* Begins a measurement; false: no memory for the result. */
bool cuda_gemm_trial(
	struct device *d, const struct cuda_product *x, struct gemm_trial *t);
void cuda_gemm_end_trial(struct device *d, struct gemm_trial *t);
/* Returns the milliseconds of GEMM_TRIALS calls, infinity if one fails; with algo NULL, of the
 * unfused kernels. */
float cuda_gemm_measure(struct device *d, const struct gemm_plan *p,
	const struct cuda_product *x, const struct gemm_trial *t,
	const cublasLtMatmulAlgo_t *algo);

/* gemm_text.cu: append the first line of a text; a key; an algorithm. */
void cuda_gemm_head(struct device *d, struct str *out);
void cuda_gemm_key_text(const struct gemm_key *k, struct str *out);
void cuda_gemm_algorithm_text(const cublasLtMatmulAlgo_t *algo, struct str *out);

/* gemm_candidates.cu: appends the suggested algorithms for a plan, with times, to c->candidates. */
void cuda_gemm_list(struct device *d, const char *name, const struct gemm_plan *p,
	const struct cuda_product *x);
