/*
 * A device: the CPU, a GPU, or the planning device; its memory, copies, graphs and timers. Its
 * kernels are declared by kernels.h, the interface that it implements by backend.h. No call is
 * collective.
 */
#pragma once

#include "kernels/dtype.h"

/* The phases that device time is attributed to: device_timer_start(). */
enum device_timer { TIMER_OTHER, TIMER_FORWARD, TIMER_BACKWARD, N_DEVICE_TIMERS };

enum device_kind { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA };
#define DEVICE_WORDS "auto", "cpu", "cuda"

struct kernels;
struct device_ops;
struct device_span;

/* How fast a planned device is, and the time that its kernels took so far: each the longer one of
 * two times, that of its FLOPs and that of its matrices, each read or written once. */
struct device_speed {
	double flops[N_DTYPES]; /* per second, by the type of a matmul's operands */
	double attention; /* FLOPs per second of attention; 0: those of matmuls of its type */
	double memory; /* bytes per second */
	double seconds;
	double counted; /* of device.flops */
};

/* Where kernels run; each rank has one. */
struct device {
	const struct kernels *k;
	const struct device_ops *ops;
	/* "cpu avx512", "NVIDIA H100 80GB HBM3 (sm_90, driver 580.95, CUDA 13.0, cuBLASLt 13.1.0)":
	 * determines bitwise results of a GPU; those of all CPUs are equal */
	const char *name;
	const char *model; /* "NVIDIA H100 80GB HBM3"; "": a CPU */
	bool exact;	   /* device_options.exact; true for a CPU */
	int threads;
	double flops;		    /* counted by the planning device only */
	struct device_speed *speed; /* likewise; NULL: its kernels take no time */
	struct arena *scratch;	    /* temporary memory of kernels */
	int64_t taken_bytes,
		peak_bytes; /* allocated by device_arena(): now, and the peak */
	int64_t tile_bytes; /* of logits that are computed at a time */
	bool discrete;	    /* has separate memory, and runs asynchronously to the host */
	int number,
		sharers; /* of a GPU: its index on this host, and the ranks that share it */
	bool capturing; /* a graph */
	/* Called while the host waits for the device, and with false afterwards; NULL: none. */
	void (*poll)(bool waits);
	struct device_span *spans; /* the live arenas in its memory */
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
	int threads;  /* of the CPU; 0: all that this process may use */
	bool exact;   /* no tf32, and the order of sums is a function of shapes only */
	bool measure; /* benchmark the algorithms of each matmul, and use the fastest */
	int64_t memory_bytes; /* of a GPU, at most; 0: all that is free */
	/* The number of ranks on this host, to which its GPUs are assigned round-robin (0: 1), and this
	 * rank's index among them. sharers: ranks that share this rank's GPU; 0: computed as if all
	 * ranks saw the same GPUs. With `alone`, only a GPU that no other rank uses. */
	int ranks, rank, sharers;
	bool alone;
};

/* DEVICE_AUTO: a GPU if there is one that no other rank uses, else the CPU. -1 with *e set. */
int device_open(struct device *d, enum device_kind kind, const struct device_options *o,
	struct err *e);
void device_close(struct device *d);
/* The CPU, with the widest instructions that it and $PT_ISA (sse2, avx2, avx512, avx512_bf16, amx_bf16)
 * allow. threads 0: all that this process may use. */
void device_cpu(struct device *d, int threads);
/* The planning device: counts FLOPs and touches no memory, so pointers may be invalid. `as`: the
 * kind of device that is planned for. */
void device_plan(struct device *d, enum device_kind as);

/* An identifier, unique among all hosts, of the GPU that would be assigned to rank `rank` of this
 * host; 0: there is none. Opens no device. */
uint64_t device_gpu(int rank);
/* A hash of the CUDA plugin, pt-cuda.so; 0: there is none. */
uint64_t device_build(void);

const char *device_isa(void); /* "avx512": of the CPU's kernels */
int cpu_count(void);	      /* CPUs that this process may use */
/* The peak FLOP/s of matmuls with such operands, by the vendor's data sheet; of fp32, tf32's
 * unless matmuls are exact. 0: not known. */
double device_peak(const struct device *d, enum dtype operands);

/* ---- memory ------------------------------------------------------------------------ */

/* Zeroed device memory, to be freed by device_free(); NULL: out of memory. */
void *device_alloc(struct device *d, size_t n_bytes);
void device_free(struct device *d, void *p, size_t n_bytes);
/* An arena in the device's memory; ends the program if there is not enough. */
void device_arena(struct device *d, struct arena *a, const char *name, size_t n_bytes);
void device_arena_release(struct device *d, struct arena *a);
/* An arena in device memory that a library has allocated, and frees itself afterwards. */
void device_arena_over(
	struct device *d, struct arena *a, const char *name, void *base, size_t n_bytes);
void device_arena_forget(struct device *d, struct arena *a);
/* Is p in an arena of device memory, which the host cannot read? */
bool device_owns(const struct device *d, const void *p);
/* Bytes of a GPU's memory: in use by all processes, and free, less a reserve for what CUDA
 * allocates later. For the CPU, `used` is 0. */
void device_memory(const struct device *d, int64_t *used, int64_t *free);
/* Pinned host memory, which the device can access too; NULL: out of memory. */
void *device_shared(struct device *d, size_t n_bytes);
void device_shared_free(struct device *d, void *p);

/* ---- copies ------------------------------------------------------------------------ */

/* Copies between host and device memory, in stream order with the kernels. The source of `put` may
 * be overwritten when it returns; `get` waits for the copy. */
void device_put(struct device *d, void *to, const void *from, size_t n_bytes);
void device_get(struct device *d, void *to, const void *from, size_t n_bytes);
/* A `get` in two calls: end waits for the copy, and for nothing that was enqueued after begin. One
 * is in flight at a time, of GET_MOST bytes at most. In a graph each launch includes it, with the
 * `to` that was captured. */
enum { GET_MOST = 256 };
void device_get_begin(struct device *d, void *to, const void *from, size_t n_bytes);
void device_get_end(struct device *d);
/* Waits until all enqueued kernels and copies are complete. */
void device_wait(struct device *d);

/*
 * Copies concurrent with kernels, between device memory and device_shared() memory; `out`: from
 * the device. A copy starts after all work that was enqueued before it in the current stream and after
 * the earlier copies in its direction; of those in the other direction, only after the one with the
 * ticket `after`. Returns a ticket for device_stream_wait() or device_host_wait(). A CPU copies
 * synchronously.
 */
uint64_t device_copy_begin(struct device *d, bool out, void *to, const void *from,
	size_t n_bytes, uint64_t after);

/* ---- streams ----------------------------------------------------------------------- */

/*
 * Kernels, puts and gets are enqueued in the current stream: at first the device's own, number 0. Other
 * streams are concurrent with it, for the operations of a communication library and for kernels between
 * them. Temporary memory (d->scratch, workspaces) belongs to the device's own stream, but for a few
 * hundred kilobytes of workspace that each stream has.
 *
 * A mark is a position in a stream, after all work that has been enqueued there; its ticket is never 0,
 * so that 0 stands for no mark. Without streams (a CPU) work is complete when it is enqueued: all
 * numbers and tickets are 0.
 */
/* Opens another stream; urgent: the GPU starts its work before that of others. */
int device_stream_open(struct device *d, bool urgent);
/* The cudaStream_t, for a library. */
void *device_stream_handle(struct device *d, int stream);
int device_stream(struct device *d); /* the current one */
/* Makes it the current stream; returns the one before. */
int device_stream_use(struct device *d, int stream);
/* Marks the current stream. */
uint64_t device_stream_mark(struct device *d);
/* What is enqueued in the current stream from now on starts after that mark. */
void device_stream_wait(struct device *d, uint64_t ticket);
/* Is the work before that mark complete? Never waits. */
bool device_stream_reached(struct device *d, uint64_t ticket);
/* The host waits for that mark, and for nothing that was enqueued after it; not allowed in a graph. */
void device_host_wait(struct device *d, uint64_t ticket);

/* ---- graphs ------------------------------------------------------------------------ */

/*
 * A graph (as in CUDA): work that is captured once, and then launched repeatedly with the same
 * arguments. Work enqueued between begin and end is not executed; calls that wait for the device,
 * or that allocate or free its memory, are not allowed there. begin returns false if the device has
 * no graphs or cannot capture now: then work is executed as usual. end returns false if something
 * was enqueued that cannot be captured: then nothing was executed, and it must be enqueued again.
 *
 * Between refill and launch nothing is executed either: the puts must be those that were captured,
 * in the same order, with the same sizes and destinations; launch executes the graph with their
 * new data. A new graph replaces the last. drop frees it, after its launches.
 */
bool device_graph_begin(struct device *d);
bool device_graph_end(struct device *d);
void device_graph_refill(struct device *d);
void device_graph_launch(struct device *d);
void device_graph_drop(struct device *d);

/* ---- algorithms of matmuls ----------------------------------------------------------- */

/* The cuBLASLt algorithms chosen so far, one line for each shape, as text; they determine bitwise
 * results. take: uses the algorithms of such a text from now on, of several lines for a shape the
 * first. Those of another GPU model or cuBLASLt version are ignored with a warning. -1: the text is
 * malformed. */
void device_algorithms(struct device *d, struct str *out);
int device_take_algorithms(struct device *d, const char *text, struct err *e);
/* Forgets the chosen algorithms and stops benchmarking: shapes for which no text gives an algorithm
 * then use cuBLASLt's first choice, which is the same on every rank. */
void device_forget_algorithms(struct device *d);

/* ---- times ------------------------------------------------------------------------- */

/*
 * start: attributes the time of work that is enqueued from now on to the phase `what`. read:
 * returns the seconds of each phase up to the last device_timer_start(), which a GPU must have
 * reached, and resets them to 0; with NULL it only resets them. Graphs are not timed.
 */
void device_timer_start(struct device *d, enum device_timer what);
void device_timer_read(struct device *d, double seconds[N_DEVICE_TIMERS]);

/*
 * Stamps in the current stream: the time by clock_seconds() at which the device has passed one, which it
 * must have. Not in a graph. 0: the device has none (a CPU). clear: forgets all; then the next one waits
 * for the device.
 */
uint64_t device_stamp(struct device *d);
double device_stamp_time(struct device *d, uint64_t stamp);
void device_stamps_clear(struct device *d);

/* Profiles the kernels of a GPU; end appends a table of their times, the slowest first. */
void device_profile_begin(struct device *d);
void device_profile_end(struct device *d, struct str *out);
/* A named range of enqueued work, for GPU profilers (NVTX). Ranges nest. */
void device_range(struct device *d, const char *name);
void device_range_end(struct device *d);
