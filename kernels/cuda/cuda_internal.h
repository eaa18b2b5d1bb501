/* Shared by the files that make the device itself; kernels need cuda.h only. */
#ifndef KERNELS_CUDA_INTERNAL_H
#define KERNELS_CUDA_INTERNAL_H

extern "C" {
#include "kernels/backend.h"
}
#include "kernels/cuda/cuda.h"

#include <cublasLt.h>
#include <cudaTypedefs.h>

struct plans;	     /* gemm_plan.h */
struct profile;	     /* launch.cu */
struct graph;	     /* graph.cu */
struct timer;	     /* timer.cu */
struct copy_streams; /* copies.cu */

enum { LAUNCHES_KEPT = 6 };
enum { STAGE_SLOTS = 8, STAGE_BYTES = 2 << 20 };
enum { GEMM_WORKSPACE = 32 << 20, MOST_RUNS = 128 };

/*
 * Pinned memory on the way to and from the device. What is put goes into slots that are taken
 * in turn; one is taken again when the device has got all that was in it.
 */
struct stage {
	char *put, *get; /* [STAGE_SLOTS * STAGE_BYTES], [2 * STAGE_BYTES] */
	int slot;
	size_t at; /* in it */
	cudaEvent_t gone[STAGE_SLOTS], came[2];
};

/* What was asked for and is looked at later: on its way through pinned memory. */
struct async_readback {
	char *from; /* [GET_MOST] */
	void *to;
	size_t n_bytes; /* 0: nothing */
	cudaEvent_t came;
};

struct cuda_device {
	struct device_options o;
	char model[256], name[400];
	int arch;	    /* 90: compute capability 9.0 */
	size_t shared_most; /* bytes of shared memory that a block may have */
	int multiprocessors;
	/* Maps of tensors, for the kernels of sm_90 alone; NULL: those are not used. */
	PFN_cuTensorMapEncodeTiled_v12000 map_encode;
	struct attn_work *attn_work;
	bool waits;	 /* after each launch */
	bool measures;	 /* which algorithm of a matmul is the quickest */
	int64_t lab_off; /* of enum lab: what is left out */
	cudaStream_t stream;
	struct stage stage;
	struct async_readback readback;
	void *workspace; /* CUDA_WORKSPACE */
	int64_t taken_bytes;

	struct cuda_launch last[LAUNCHES_KEPT]; /* launch i at i % LAUNCHES_KEPT */
	int64_t n_launches;
	struct profile *profile; /* NULL: not now */
	struct graph *graph;	 /* NULL: there was none yet */
	struct timer *timer;
	struct copy_streams
		*copy_streams; /* of copies beside kernels; NULL: there was none yet */

	cublasLtHandle_t cublas;
	void *gemm_workspace; /* GEMM_WORKSPACE */
	void *copies;	      /* of operands in another form; grows */
	size_t copies_bytes;
	struct plans *plans;
};

static inline struct cuda_device *cuda_of(const struct device *d)
{
	return (struct cuda_device *)d->impl;
}

/* ---- device.cu ---------------------------------------------------------------------- */

/* Memory of the device for ourselves; that there is none is the end. */
void *cuda_memory(struct device *d, size_t n_bytes, const char *what);

/* ---- lab.cu ------------------------------------------------------------------------- */

/* Reads PT_LAB_OFF. */
int cuda_lab_open(struct device *d, struct err *e);

/* ---- table.cu ----------------------------------------------------------------------- */

extern const struct kernels cuda_kernels;

/* ---- copies.cu ---------------------------------------------------------------------- */

/* A copy, as cuda_before() is told of it. */
struct cuda_launch cuda_copy_of(
	const char *name, void *to, const void *from, size_t n_bytes);
uint64_t cuda_copy_begin(struct device *d, bool out, void *to, const void *from,
	size_t n_bytes, uint64_t after);
void cuda_copy_end(struct device *d, uint64_t ticket);
/* Until all copies are done. */
void cuda_copies_wait(struct device *d);
void cuda_copies_free(struct device *d);

/* ---- launch.cu ---------------------------------------------------------------------- */

/* cuda_before() and cuda_after(), of what is asked of another stream. */
void cuda_before_in(struct device *d, const struct cuda_launch *l, cudaStream_t stream);
void cuda_after_in(struct device *d, const char *name, cudaStream_t stream);
void cuda_profile_begin(struct device *d);
void cuda_profile_end(struct device *d, struct str *out);
void cuda_range(struct device *d, const char *name);
void cuda_range_end(struct device *d);

/* ---- timer.cu: a stopwatch ------------------------------------------------------------- */

void cuda_timer_open(struct device *d);
void cuda_timer_close(struct device *d);
void cuda_timer_start(struct device *d, enum device_timer what);
void cuda_timer_read(struct device *d, double seconds[N_DEVICE_TIMERS]);

/* ---- graph.cu ----------------------------------------------------------------------- */

bool cuda_graph_begin(struct device *d);
bool cuda_graph_end(struct device *d);
void cuda_graph_refill(struct device *d);
void cuda_graph_launch(struct device *d);
void cuda_graph_free(struct device *d);
/* Between begin and end; and neither there, nor between refill and launch. */
bool cuda_graph_notes(struct device *d);
bool cuda_graph_rests(struct device *d);
/* There can be no graph; `why` stays. */
void cuda_graph_spoil(struct device *d, const char *why);
/* Whether what is put was for the graph. */
bool cuda_graph_put(struct device *d, void *to, const void *from, size_t n_bytes);
/* p may be in use by the graph: it is given back with that, or now. */
void cuda_graph_outlived(struct device *d, void *p);
/* What was put so far has been read when the `later` that is asked for now has come. */
void cuda_graph_readback(struct device *d);

/* ---- round.cu ----------------------------------------------------------------------- */

/* y = cast(x (*a *b)), to the type of y. */
void cuda_round_by(struct device *d, const char *name, struct mat y, struct mat x,
	const float *a, const float *b);

/* ---- gemm.cu: a matmul as cuBLASLt sees it ------------------------------------------ */

enum epilogue {
	EPILOGUE_NONE,
	EPILOGUE_BIAS,
	EPILOGUE_GELU,
	EPILOGUE_GELU_BIAS,
	EPILOGUE_DGELU,
	N_EPILOGUES
};

/*
 * d = op(a) op(b) + bias, or added to d. cuBLASLt's matrices are stored by columns, so that ours
 * are transposed in its eyes, and what it multiplies as a b is our b^T a^T: a is the right one of
 * our two.
 */
struct gemm {
	struct mat a, b, d;
	bool ta, tb; /* transposed in its eyes */
	void *bias;  /* as d, or NULL */
	bool add;
	/* How many such matmuls at once: operands and result of each lie behind those of the
	 * one before. More than one have no bias, and are not added to d. */
	int64_t runs;
	/* GELU of the result, whose argument goes to aux; or the result times GELU's slope at aux.
	 * Then `unfused` does the same by several kernels, which may be quicker. */
	enum epilogue epilogue = EPILOGUE_NONE;
	void *aux = NULL; /* as d */
	void (*unfused)(struct device *, const struct gemm *) = NULL;
};

/* What a plan is for; all its members are of one size, so that it can be compared as bytes. */
struct gemm_key {
	int64_t ta, tb, m, n, k, a, b, d, epilogue, add, align, runs;
};

/* ---- gemm_plan.cu: which of cuBLASLt's algorithms ------------------------------------ */

void cuda_cublas_check(struct device *d, cublasStatus_t rc, const char *what);
/* Multiplies; false: cuBLASLt has no algorithm for it, or what is done unfused is quicker or has
 * not been compared, and nothing was done. */
bool cuda_gemm(struct device *d, const char *name, const struct gemm *p);
void cuda_plans_free(struct device *d);
void cuda_forget_algorithms(struct device *d);

/* ---- gemm_text.cu: those that were chosen, as text ----------------------------------- */

void cuda_algorithms(struct device *d, struct str *out);
int cuda_take_algorithms(struct device *d, const char *text, struct err *e);

#endif
