/*
 * A device: the CPU, a GPU, or the planning device; its memory, copies, graphs and timers. What a
 * device computes is kernels.h; how one is made is backend.h.
 */
#ifndef KERNELS_DEVICE_H
#define KERNELS_DEVICE_H

#include "kernels/dtype.h"

/* What the time of a device is counted as: device_timer_start(). */
enum device_timer { TIMER_OTHER, TIMER_FORWARD, TIMER_BACKWARD, N_DEVICE_TIMERS };

enum device_kind { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA };
#define DEVICE_WORDS "auto", "cpu", "cuda"

struct kernels;
struct device_ops;
struct device_span;

/* Where kernels run; each rank has one. */
struct device {
	const struct kernels *k;
	const struct device_ops *ops;
	int threads;
	double flops;			 /* counted by the planning device only */
	struct arena *scratch;		 /* temporary memory of kernels */
	int64_t taken_bytes, most_bytes; /* of device_arena(): now, and at most */
	int64_t tile_bytes;		 /* of logits that are computed at once */
	int64_t sum_block; /* floats of gradients that are added up at once */
	bool stores_half;  /* stores numbers of 16 bits in 16 bits */
	bool discrete; /* has memory of its own, and runs asynchronously to the program */
	int number,
		sharers; /* of a GPU: its index on this host, and the ranks that share it */
	struct device_span *spans; /* of its own memory, that device_arena() gave */
	int n_spans;
	struct {
		enum device_timer what;
		double since, seconds[N_DEVICE_TIMERS];
	} timer;    /* of the CPU */
	void *impl; /* private to the device */
};

/* ---- opening ----------------------------------------------------------------------- */

enum { DEVICE_WORK_BYTES = 96 << 20 }; /* of a GPU's memory, for its kernels */

struct device_options {
	int threads; /* of the CPU; 0: all that this process may use */
	bool exact; /* fp32 is multiplied as fp32, and the order of sums is a function of shapes */
	bool measure; /* benchmark the algorithms of each matmul, and use the fastest */
	int64_t memory_bytes; /* of a GPU, at most; 0: all that is free */
	/* Ranks of this host, among which its GPUs are dealt in turn, and this one's number; 0 is 1.
	 * sharers: ranks that share this rank's GPU; 0: as if all ranks saw the same GPUs. With
	 * `alone`, only a GPU that no other rank uses. */
	int ranks, rank, sharers;
	bool alone;
};

/* DEVICE_AUTO: a GPU if there is one that this rank can have for itself, else the CPU. */
int device_open(struct device *d, enum device_kind kind, const struct device_options *o,
	struct err *e);
void device_close(struct device *d);
/* The CPU, with the widest instructions that it and $PT_ISA (sse2, avx2, avx512) allow.
 * The first matmul opens OpenBLAS. threads 0: all that this process may use. */
void device_cpu(struct device *d, int threads);
/* Counts FLOPs and touches no memory: pointers may be invalid addresses. */
void device_plan(struct device *d, enum device_kind as);

/* An identifier, unique among all hosts, of the GPU that rank `rank` of this host would get;
 * 0: there is none. Opens nothing. */
uint64_t device_gpu(int rank);
/* A hash of the CUDA plugin, pt-cuda.so; 0: there is none. */
uint64_t device_build(void);

/* "cpu avx512", "NVIDIA H100 80GB HBM3 (sm_90, driver 580.95, CUDA 13.0, cuBLASLt 13.1.0)":
 * determines the bits, with device_blas() for the CPU. */
const char *device_name(const struct device *d);
/* "OpenBLAS 0.3.21 SkylakeX" of the CPU: part of what determines the bits. Opens it. */
const char *device_blas(void);
int cpu_count(void); /* that this process may use */
/* Operations a second, at most, of matmuls of such numbers, by the maker's data sheet; fp32 is
 * tf32's where matmuls need not be exact. 0: not known. */
double device_peak(const struct device *d, enum dtype operands);

/* ---- memory ------------------------------------------------------------------------ */

/* Memory of the device, zeroed; NULL: there is not so much. */
void *device_alloc(struct device *d, size_t n_bytes);
void device_free(struct device *d, void *p, size_t n_bytes);
/* An arena in the device's memory; ends the program where there is not so much. */
void device_arena(struct device *d, struct arena *a, const char *name, size_t n_bytes);
void device_arena_release(struct device *d, struct arena *a);
/* Is p in an arena of the device's own memory, which the program cannot read? */
bool device_owns(const struct device *d, const void *p);
/* Bytes of a GPU's memory: in use, by all processes, and free, less a reserve for what CUDA loads
 * later. Of the CPU's, 0 in use. */
void device_memory(const struct device *d, int64_t *used, int64_t *free);
/* Memory of the program that the device can use as well, and that stays where it is (pinned);
 * NULL: there is not so much. */
void *device_shared(struct device *d, size_t n_bytes);
void device_shared_free(struct device *d, void *p);

/* ---- copies ------------------------------------------------------------------------ */

/*
 * Between the program's memory and the device's, in stream order with the kernels. The source of
 * `put` may be changed when it returns; `get` waits for the copy.
 */
void device_put(struct device *d, void *to, const void *from, size_t n_bytes);
void device_get(struct device *d, void *to, const void *from, size_t n_bytes);
/* A `get` in two parts: end waits for the copy, and for nothing that was enqueued after begin. One
 * at a time, of GET_MOST bytes. In a graph it is part of each launch, with the `to` of when the
 * graph was captured. */
enum { GET_MOST = 256 };
void device_get_begin(struct device *d, void *to, const void *from, size_t n_bytes);
void device_get_end(struct device *d);
/* Until all that was enqueued is done, copies too. */
void device_wait(struct device *d);

/*
 * Copies concurrent with kernels, between the device's memory and device_shared() memory; `out`:
 * from the device. A copy starts after all kernels that were enqueued before it and after the
 * earlier copies of its direction; of the other direction, it waits only for the one with the
 * ticket `after`. Kernels and copies enqueued after device_copy_end() start after that copy. The
 * program waits for none of this. Not in a graph.
 *
 * Returns a ticket; 0 is the ticket of no copy. A CPU copies at once.
 */
uint64_t device_copy_begin(struct device *d, bool out, void *to, const void *from,
	size_t n_bytes, uint64_t after);
void device_copy_end(struct device *d, uint64_t ticket);

/* ---- graphs ------------------------------------------------------------------------ */

/*
 * A graph: work that is enqueued again and again with the same arguments, captured once. Between
 * begin and end nothing is executed; nothing may be called that waits for the device, or that
 * allocates or frees its memory. false: the device has no graphs, or cannot capture now, and all
 * is executed at once; of end: something was enqueued that a graph cannot have, so nothing was
 * executed and it must be enqueued once more.
 *
 * From refill to launch nothing is executed either: the puts must be those between begin and end,
 * in that order, of as many bytes to the same places; then launch executes the graph with what was
 * put last. A new graph replaces the one before.
 */
bool device_graph_begin(struct device *d);
bool device_graph_end(struct device *d);
void device_graph_refill(struct device *d);
void device_graph_launch(struct device *d);

/* ---- algorithms of matmuls ----------------------------------------------------------- */

/* Of a GPU: the cuBLASLt algorithm that each shape has got so far, as text, which determines the
 * bits; and such a text for the matmuls from here on, of which the first line of a shape counts.
 * What was chosen on another GPU model, or by another cuBLASLt, is ignored with a warning. -1: it
 * is no such text. */
void device_algorithms(struct device *d, struct str *out);
int device_take_algorithms(struct device *d, const char *text, struct err *e);
/* Forgets what was chosen, and stops measuring: a shape that gets no algorithm by text from here
 * on has cuBLASLt's first choice, on every rank. */
void device_forget_algorithms(struct device *d);

/* ---- times ------------------------------------------------------------------------- */

/*
 * A stopwatch: the time of what is enqueued from here on is counted as `what`. And the seconds of
 * each, up to the last device_timer_start(), which a GPU must have reached; then they start from
 * 0. NULL: they only start from 0. Graphs have no times.
 */
void device_timer_start(struct device *d, enum device_timer what);
void device_timer_read(struct device *d, double seconds[N_DEVICE_TIMERS]);

/* The time of each kernel of a GPU, from here on; and the table of them, the slowest first. */
void device_profile_begin(struct device *d);
void device_profile_end(struct device *d, struct str *out);
/* A named range of what the program enqueues, which profilers of GPUs show. They nest. */
void device_range(struct device *d, const char *name);
void device_range_end(struct device *d);

#endif
