/* A device: the CPU, a GPU, or the planning device; its memory, copies, graphs and timers.
 * kernels.h declares its kernels, backend.h its other functions. No call is collective. */
#pragma once

#include "kernels/dtype.h"

/* The phases that device time is attributed to: device_timer_start(). */
enum device_timer { TIMER_OTHER, TIMER_FORWARD, TIMER_BACKWARD, N_DEVICE_TIMERS };

enum device_kind { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA };
#define DEVICE_WORDS "auto", "cpu", "cuda"

struct kernels;
struct device_ops;
struct device_span;

/* The speed of a planned device, and the time that its kernels would have taken so far. A kernel
 * takes the time of its FLOPs or the time of its memory traffic, whichever is longer. */
struct device_speed {
	double flops[N_DTYPES]; /* per second, by the type of a matmul's operands */
	double attention; /* FLOPs per second of attention; 0: as a matmul of its type */
	double experts;	  /* rate of the matmuls of experts over `flops`; 0: 1 */
	double memory;	  /* bytes per second */
	double seconds;	  /* seconds of all kernels so far */
	double counted;	  /* the part of device.flops that `seconds` includes */
};

/* Where kernels run; each rank has one. */
struct device {
	const struct kernels *k;
	const struct device_ops *ops;
	/* "cpu avx512", "NVIDIA H100 80GB HBM3 (sm_90, driver 580.95, CUDA 13.0, cuBLASLt 13.1.0)".
	 * GPUs with equal names give equal bits; all CPUs give the same bits. */
	const char *name;
	const char *model; /* "NVIDIA H100 80GB HBM3"; "": a CPU */
	bool exact;	   /* device_options.exact; true for a CPU */
	int threads;
	double flops;		    /* counted by the planning device only */
	struct device_speed *speed; /* planning device only; NULL: kernels take no time */
	struct arena *scratch;	    /* temporary memory of kernels */
	int64_t taken_bytes,
		peak_bytes; /* allocated by device_arena_init(): now, and the peak */
	int64_t tile_bytes; /* logits computed at a time */
	bool discrete;	    /* has separate memory, and runs asynchronously to the host */
	int number,
		sharers; /* GPU only: its index on this host, the number of ranks that use it */
	bool capturing; /* between device_graph_begin() and device_graph_end() */
	/* Called with true while the host waits for the device, then with false; NULL: none. */
	void (*poll)(bool waits);
	struct device_span *spans; /* the live arenas in its memory */
	int n_spans;
	struct {
		enum device_timer what;
		double since, seconds[N_DEVICE_TIMERS];
	} timer;    /* CPU only */
	void *impl; /* private to the device */
};

/* ---- opening ----------------------------------------------------------------------- */

enum { DEVICE_WORK_BYTES = 96 << 20 }; /* GPU memory reserved for workspaces */

struct device_options {
	int threads;  /* threads of the CPU; 0: all that this process may use */
	bool exact;   /* no tf32, and the order of sums is a function of shapes only */
	bool measure; /* benchmark the algorithms of each matmul, and use the fastest */
	int64_t memory_bytes; /* maximum GPU memory to use; 0: all that is free */
	/* The ranks on this host (0: 1), this rank's index among them, and the ranks that share
	 * its GPU (0: computed as if all ranks saw the same GPUs). GPUs are assigned to ranks
	 * round-robin. With `alone`, only a GPU that no other rank uses. */
	int ranks, rank, sharers;
	bool alone;
};

/* Opens a device; DEVICE_AUTO: a GPU that no other rank uses, else the CPU. -1: failed, *e set. */
int device_open(struct device *d, enum device_kind kind, const struct device_options *o,
	struct err *e);
void device_close(struct device *d);
/* Opens the CPU, with the widest instruction set that both it and $PT_ISA (sse2, avx2, avx512,
 * avx512_bf16, amx_bf16) allow. threads 0: all that this process may use. */
void device_open_cpu(struct device *d, int threads);
/* Opens the planning device: it counts FLOPs and touches no memory, so pointers may be invalid.
 * `as`: the kind of device that is planned for. */
void device_open_plan(struct device *d, enum device_kind as);

/* Returns an identifier, unique among all hosts, of the GPU that would be assigned to rank `rank`
 * of this host; 0: none. Opens no device. */
uint64_t device_gpu_id(int rank);
/* Returns a hash of the CUDA plugin, pt-cuda.so; 0: not found. */
uint64_t device_plugin_hash(void);

const char *device_isa(void); /* the instruction set of the CPU's kernels: "avx512" */
int cpu_count(void);	      /* CPUs that this process may use */
/* Returns the vendor's peak FLOP/s of matmuls with operands of this type; for fp32 the peak of
 * tf32, unless matmuls are exact. 0: not known. */
double device_peak(const struct device *d, enum dtype operands);

/* ---- memory ------------------------------------------------------------------------ */

/* Allocates zeroed device memory, to be freed by device_free(); NULL: out of memory. */
void *device_alloc(struct device *d, size_t n_bytes);
void device_free(struct device *d, void *p, size_t n_bytes);
/* Initializes an arena in device memory; ends the program if there is not enough. */
void device_arena_init(
	struct device *d, struct arena *a, const char *name, size_t n_bytes);
void device_arena_release(struct device *d, struct arena *a);
/* Initializes an arena over device memory that a library allocated, and frees after _forget. */
void device_arena_over(
	struct device *d, struct arena *a, const char *name, void *base, size_t n_bytes);
void device_arena_forget(struct device *d, struct arena *a);
/* Returns true if p is in an arena of device memory, which the host cannot read. */
bool device_owns(const struct device *d, const void *p);
/* Gets the bytes of GPU memory used by all processes, and the free bytes less a reserve for what
 * CUDA allocates later. For the CPU, `used` is 0. */
void device_memory(const struct device *d, int64_t *used, int64_t *free);
/* Allocates pinned host memory, which the device can access too; NULL: out of memory. */
void *device_shared(struct device *d, size_t n_bytes);
void device_shared_free(struct device *d, void *p);

/* ---- copies ------------------------------------------------------------------------ */

/* Copies between host and device memory, in stream order with the kernels. The source of `put` may
 * be overwritten when it returns; `get` waits for the copy. */
void device_put(struct device *d, void *to, const void *from, size_t n_bytes);
void device_get(struct device *d, void *to, const void *from, size_t n_bytes);
/* A `get` in two calls: end waits for the copy, but not for work enqueued after begin. At most one
 * is in flight, of up to MAX_GET_BYTES bytes. Each launch of a graph repeats it with the same
 * `to`. */
enum { MAX_GET_BYTES = 256 };
void device_get_begin(struct device *d, void *to, const void *from, size_t n_bytes);
void device_get_end(struct device *d);
/* Waits until all enqueued kernels and copies are complete. */
void device_wait(struct device *d);

/* Starts a copy that is concurrent with kernels, between device memory and device_shared()
 * memory; `out`: from the device. The copy waits for all work enqueued before it in the current
 * stream, for the earlier copies in its direction, and for the copy with the ticket `after`, but
 * for no other copy in the opposite direction. Returns a ticket for device_stream_wait() or
 * device_host_wait(). A CPU copies synchronously. */
uint64_t device_copy_begin(struct device *d, bool out, void *to, const void *from,
	size_t n_bytes, uint64_t after);

/* ---- streams ----------------------------------------------------------------------- */

/* Kernels, puts and gets are enqueued in the current stream: initially the device's own, number
 * 0. Other streams run concurrently, for the operations of a communication library and for
 * kernels between them. Temporary memory (d->scratch, workspaces) belongs to the device's own
 * stream, except for a few hundred kilobytes of workspace per stream.
 *
 * A mark is a position in a stream, after all work that has been enqueued there. Its ticket is
 * never 0, so 0 means no mark. Without streams (a CPU) work is complete when it is enqueued: all
 * stream numbers and tickets are 0. */
/* Opens another stream; urgent: the GPU starts its work before the work of other streams. */
int device_stream_open(struct device *d, bool urgent);
/* Returns the cudaStream_t, for a library. */
void *device_stream_handle(struct device *d, int stream);
int device_stream(struct device *d); /* the current stream */
/* Makes `stream` the current stream; returns the previous one. */
int device_stream_use(struct device *d, int stream);
/* Marks the current stream; returns the ticket. */
uint64_t device_stream_mark(struct device *d);
/* Makes work that is enqueued in the current stream from now on start after the mark. */
void device_stream_wait(struct device *d, uint64_t ticket);
/* Returns true if the work before the mark is complete. Never waits. */
bool device_stream_reached(struct device *d, uint64_t ticket);
/* Blocks the host until the mark is reached; not allowed in a graph. */
void device_host_wait(struct device *d, uint64_t ticket);

/* ---- graphs ------------------------------------------------------------------------ */

/* A graph (as in CUDA): work that is captured once, and then launched repeatedly with the same
 * arguments. Work enqueued between begin and end is not executed; calls that wait for the device,
 * or that allocate or free its memory, are not allowed there. begin returns false if the device has
 * no graphs or cannot capture now: then work is executed as usual. end returns false if something
 * was enqueued that cannot be captured: then nothing was executed, and it must be enqueued again.
 *
 * Between refill and launch nothing is executed either: the captured puts must be repeated in the
 * same order, with the same sizes and destinations; launch executes the graph with their new
 * data. A new graph replaces the last. drop frees the graph after its launches. */
bool device_graph_begin(struct device *d);
bool device_graph_end(struct device *d);
void device_graph_refill(struct device *d);
void device_graph_launch(struct device *d);
void device_graph_drop(struct device *d);

/* ---- algorithms of matmuls ----------------------------------------------------------- */

/* Appends the cuBLASLt algorithms chosen so far as text, one line per shape. They determine the
 * bits of results. */
void device_algorithms(struct device *d, struct str *out);
/* Uses the algorithms of such a text from now on; if several lines have the same shape, the first
 * one counts. Ignores lines of another GPU model or cuBLASLt version, with a warning. Returns -1
 * if the text is malformed. */
int device_set_algorithms(struct device *d, const char *text, struct err *e);
/* Forgets the chosen algorithms and stops benchmarking: shapes without an algorithm in a text
 * then use cuBLASLt's first choice, which is the same on every rank. */
void device_forget_algorithms(struct device *d);

/* ---- times ------------------------------------------------------------------------- */

/* start: attributes the time of work that is enqueued from now on to the phase `what`. read:
 * returns the seconds of each phase up to the last device_timer_start(), which a GPU must have
 * reached, and resets them to 0; with NULL it only resets them. Graphs are not timed. */
void device_timer_start(struct device *d, enum device_timer what);
void device_timer_read(struct device *d, double seconds[N_DEVICE_TIMERS]);

/* Puts a time stamp into the current stream, not in a graph; 0: the device has none (a CPU).
 * stamp_time: returns the clock_seconds() at which the device passed the stamp, which it must have
 * done. clear: forgets all stamps; the next device_stamp() then waits for the device. */
uint64_t device_stamp(struct device *d);
double device_stamp_time(struct device *d, uint64_t stamp);
void device_stamps_clear(struct device *d);

/* Profiles the kernels of a GPU; end appends a table of their times, the slowest first. */
void device_profile_begin(struct device *d);
void device_profile_end(struct device *d, struct str *out);
/* A named range of enqueued work, for GPU profilers (NVTX). Ranges nest. */
void device_range(struct device *d, const char *name);
void device_range_end(struct device *d);
