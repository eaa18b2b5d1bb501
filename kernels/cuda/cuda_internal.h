/* Shared by the files that implement the device; kernels need only cuda.h. */
#pragma once

extern "C" {
#include "kernels/backend.h"
}
#include "kernels/cuda/cuda.h"

#include <cublasLt.h>
#include <cudaTypedefs.h>

struct plans;	/* gemm_plan.h */
struct profile; /* launch.cu */
struct graph;	/* graph.cu */
struct streams; /* streams.cu */

enum { LAUNCHES_KEPT = 6 };
enum { STAGE_SLOTS = 8, STAGE_BYTES = 2 << 20 };
enum { GEMM_WORKSPACE = 32 << 20, SIDE_WORKSPACE = 1 << 20, MAX_RUNS = 128 };

/* Pinned staging buffers. device_put() copies through slots that are used in turn; a slot is
 * reused after the device has read its contents. */
struct cuda_stage {
	char *put, *get;  /* [STAGE_SLOTS * STAGE_BYTES], [2 * STAGE_BYTES] */
	int slot, stream; /* the current slot; the stream of the copies that read it */
	size_t at;	  /* offset in the slot */
	cudaEvent_t put_done[STAGE_SLOTS], get_done[2];
};

/* An asynchronous copy to the host, through pinned memory. */
struct async_readback {
	char *from; /* [MAX_GET_BYTES] */
	void *to;
	size_t n_bytes; /* 0: none in progress */
	cudaEvent_t done;
};

/* The device's timer: an event at each begin of an interval. */
struct timer_mark {
	cudaEvent_t event;
	enum device_timer what; /* timer of the interval that begins */
};

struct timer {
	struct timer_mark *mark; /* grows on demand; events are reused */
	int64_t n, n_made;
};

struct stamps {
	cudaEvent_t *event; /* grows on demand; events are reused */
	uint64_t n, n_made;
	double begun; /* clock_seconds() at the first event */
};

struct cuda_device {
	struct device_options o;
	char model[256], name[400];
	int arch;		 /* 90: compute capability 9.0 */
	size_t max_shared_bytes; /* bytes of shared memory that a block may have */
	int multiprocessors;
	/* Encodes tensor maps, for the kernels of sm_90; NULL: these kernels are not used. */
	PFN_cuTensorMapEncodeTiled_v12000 map_encode;
	struct attn_work *attn_work;
	bool waits;	 /* synchronizes after each launch */
	bool measures;	 /* benchmarks matmul algorithms to choose one */
	int64_t lab_off; /* bits of enum lab: optimizations that are disabled */
	int64_t lab_on;	 /* bits of enum lab: kernels on trial that are enabled */
	int attn_spare, matmul_spare; /* multiprocessors left to other streams */
	struct streams *streams;
	struct cuda_stage stage;
	struct async_readback readback;
	void *workspace; /* CUDA_WORKSPACE */
	int64_t allocated_bytes;

	struct cuda_launch last[LAUNCHES_KEPT]; /* launch i at i % LAUNCHES_KEPT */
	int64_t n_launches;
	struct profile *profile; /* NULL: not profiling */
	struct graph *graph;	 /* NULL: none yet */
	struct timer timer;
	struct stamps stamps;

	cublasLtHandle_t cublas;
	void *gemm_workspace; /* GEMM_WORKSPACE */
	void *copies;	      /* converted operands; grows */
	size_t copies_bytes;
	struct plans *plans;
	const char *candidates; /* PT_LAB_CANDIDATES, or NULL */
};

static inline struct cuda_device *cuda_of(const struct device *d)
{
	return (struct cuda_device *)d->impl;
}

/* Allocates device memory for the plugin itself; failure ends the program. */
void *cuda_alloc_or_die(struct device *d, size_t n_bytes, const char *what);
char *cuda_alloc_pinned(struct device *d, size_t n_bytes); /* host memory */
/* Enqueues a copy in the compute stream. */
void cuda_copy_async(
	struct device *d, void *to, const void *from, size_t n_bytes, const char *what);
cudaEvent_t cuda_create_event(struct device *d); /* to synchronize by; has no time */

/* Reads PT_LAB_OFF, PT_LAB_ON, PT_LAB_ATTN_SPARE and PT_LAB_MATMUL_SPARE. */
int cuda_lab_read(struct device *d, struct err *e);

extern const struct kernels cuda_kernels;

/* Blocks the host until an event, and calls d->poll, if any, meanwhile. */
void cuda_await(struct device *d, cudaEvent_t event, const char *what);
/* Returns the description of a copy for cuda_before_launch(). */
struct cuda_launch cuda_copy_of(
	const char *name, void *to, const void *from, size_t n_bytes);

/* ---- streams.cu: device_stream_open() and so on --------------------------------------- */

void cuda_streams_open(struct device *d);
void cuda_streams_free(struct device *d);
int cuda_stream_open(struct device *d, bool urgent);
void *cuda_stream_handle(struct device *d, int number);
int cuda_stream_current(struct device *d);
int cuda_stream_use(struct device *d, int number);
uint64_t cuda_stream_mark(struct device *d);
void cuda_stream_wait(struct device *d, uint64_t ticket);
bool cuda_stream_reached(struct device *d, uint64_t ticket);
void cuda_host_wait(struct device *d, uint64_t ticket);
uint64_t cuda_copy_begin(struct device *d, bool out, void *to, const void *from,
	size_t n_bytes, uint64_t after);
/* Blocks the host until all work in all streams is complete. */
void cuda_streams_wait(struct device *d);
/* Orders what is enqueued next in the device's own stream after the work of all other streams; in a
 * capture, after the captured work. */
cudaError_t cuda_streams_join(struct device *d);
/* Forgets all marks at the end of a capture: they are events of the graph. */
void cuda_streams_forget(struct device *d);

/* cuda_before_launch() and cuda_after_launch() for another stream. */
void cuda_before_in(struct device *d, const struct cuda_launch *l, cudaStream_t stream);
void cuda_after_in(struct device *d, const char *name, cudaStream_t stream);
void cuda_profile_begin(struct device *d);
void cuda_profile_end(struct device *d, struct str *out);
void cuda_range(struct device *d, const char *name);
void cuda_range_end(struct device *d);

uint64_t cuda_stamp(struct device *d);
double cuda_stamp_time(struct device *d, uint64_t stamp);
void cuda_stamps_clear(struct device *d);
void cuda_timer_close(struct device *d);
void cuda_timer_start(struct device *d, enum device_timer what);
void cuda_timer_read(struct device *d, double seconds[N_DEVICE_TIMERS]);

bool cuda_graph_begin(struct device *d);
bool cuda_graph_end(struct device *d);
void cuda_graph_refill(struct device *d);
void cuda_graph_launch(struct device *d);
void cuda_graph_free(struct device *d);
/* Returns true between begin and end of a capture; cuda_graph_idle(): outside of captures and of
 * refills (between refill and launch). */
bool cuda_graph_capturing(struct device *d);
bool cuda_graph_idle(struct device *d);
/* Rejects the capture, which cannot become a graph; `why`, a literal, is the reason. */
void cuda_graph_reject(struct device *d, const char *why);
/* While capturing or refilling, stores a device_put() in the graph's pinned memory and, capturing,
 * captures its copy; otherwise does nothing and returns false. */
bool cuda_graph_put(struct device *d, void *to, const void *from, size_t n_bytes);
/* Frees p with the graph that may use it; without one, waits for the device and frees p now. */
void cuda_graph_free_later(struct device *d, void *p);
/* Notes that the readback enqueued now completes after the device has read all data put so far. */
void cuda_graph_readback(struct device *d);

/* y = cast(x * *a * *b), to the type of y. */
void cuda_round_by(struct device *d, const char *name, struct mat y, struct mat x,
	const float *a, const float *b);

/* ---- gemm.cu: a matmul in cuBLASLt's layout ----------------------------------------- */

enum epilogue {
	EPILOGUE_NONE,
	EPILOGUE_BIAS,
	EPILOGUE_GELU,
	EPILOGUE_GELU_BIAS,
	EPILOGUE_DGELU,
	N_EPILOGUES
};

/* d = (add ? d : 0) + op(a) op(b) + bias. cuBLASLt's matrices are column-major, so it reads our
 * row-major matrices as transposed, and its a b is our b^T a^T: a is our right operand. */
struct cuda_product {
	struct mat a, b, d;
	bool ta, tb; /* transposed, for cuBLASLt */
	void *bias;  /* [column], in the type of d; or NULL */
	bool add;
	/* The batch size of a strided batched matmul. Results are contiguous, and so are operands,
	 * except an operand that is contiguous along the sum: a run is a range of its columns, and
	 * its rows have `runs` times a.cols (b.cols) elements. With more than 1 run, bias is NULL
	 * and add is false. */
	int64_t runs;
	/* GELU of the result, with its argument stored in aux; or the result times GELU's
	 * derivative at aux. `unfused` computes the same with several kernels, which may be
	 * faster. */
	enum epilogue epilogue = EPILOGUE_NONE;
	void *aux = NULL; /* second result, in the type and shape of d */
	void (*unfused)(struct device *, const struct cuda_product *) = NULL;
};

/* The key of a plan; all members have one size, so that keys can be compared as bytes. */
struct gemm_key {
	int64_t ta, tb, m, n, k, a, b, d, epilogue, add, align, runs;
};

void cuda_cublas_check(struct device *d, cublasStatus_t rc, const char *what);
/* Enqueues the matmul. Returns false, with nothing done, if cuBLASLt has no algorithm for it, or
 * `unfused` is faster or was not compared. */
bool cuda_gemm(struct device *d, const char *name, const struct cuda_product *p);
/* Warns, once for each key, that the operands are converted to fp32 copies of n_bytes. */
void cuda_warn_converted(
	struct device *d, const char *name, const struct cuda_product *p, size_t n_bytes);
void cuda_plans_free(struct device *d);
void cuda_forget_algorithms(struct device *d);

void cuda_algorithms(struct device *d, struct str *out);
int cuda_set_algorithms(struct device *d, const char *text, struct err *e);
