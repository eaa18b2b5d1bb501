/* The GPU as a device: opening it, its memory, and copies in both directions. These operations
 * are enqueued in the current stream and complete in order; streams.cu has the copies that
 * overlap with it. */
#include "kernels/cuda/cuda_internal.h"

extern "C" {
#include "base/file.h"
}

extern "C" {
__attribute__((visibility("default"))) extern const uint64_t pt_cuda_abi;
const uint64_t pt_cuda_abi = device_abi();
__attribute__((visibility("default"))) device_opener pt_cuda_open;
__attribute__((visibility("default"))) device_finder pt_cuda_gpu;
}

/* ---- memory ------------------------------------------------------------------------- */

/* Gets the used and the free memory. Part of the free memory is reserved for what CUDA allocates
 * lazily: kernels (cuBLASLt has large ones), their stacks, and graphs. */
static void get_memory(const struct device *d, int64_t *used, int64_t *free_now)
{
	enum { LOADED_PART = 256 };
	struct cuda_device *c = cuda_of(d);
	size_t left = 0, total = 0;
	cudaMemGetInfo(&left, &total);
	*used = (int64_t)(total - left);
	*free_now = max64(0, (int64_t)left - (int64_t)(total / LOADED_PART));
	if (c->o.memory_bytes)
		*free_now = min64(
			*free_now, max64(0, c->o.memory_bytes - c->allocated_bytes));
}

/* Ends the program with a message that reports the memory in use and the free memory. */
static NORETURN void out_of_memory(struct device *d, size_t n_bytes, const char *what)
{
	char asked[NUM_TEXT], in_use[NUM_TEXT], left[NUM_TEXT];
	int64_t used, free_now;
	get_memory(d, &used, &free_now);
	die(EX_FAILED, "%s: out of memory: cannot allocate %s for %s; %s in use, %s free",
		cuda_of(d)->model, text_bytes(asked, (double)n_bytes), what,
		text_bytes(in_use, (double)used), text_bytes(left, (double)free_now));
}

/* Sets *p to device memory; -1 and NULL: not enough. Other errors end the program. */
static int try_alloc(struct device *d, void **p, size_t n_bytes)
{
	*p = NULL;
	cudaError_t rc = cudaMalloc(p, n_bytes);
	if (rc == cudaErrorMemoryAllocation) {
		cudaGetLastError(); /* clears the runtime's last error */
		return -1;
	}
	cuda_check(d, rc, "alloc");
	return 0;
}

void *cuda_alloc_or_die(struct device *d, size_t n_bytes, const char *what)
{
	void *p;
	if (try_alloc(d, &p, n_bytes))
		out_of_memory(d, n_bytes, what);
	return p;
}

char *cuda_alloc_pinned(struct device *d, size_t n_bytes)
{
	void *p;
	cuda_check(d, cudaMallocHost(&p, n_bytes), "pinned memory");
	return (char *)p;
}

cudaEvent_t cuda_create_event(struct device *d)
{
	cudaEvent_t e;
	cuda_check(d, cudaEventCreateWithFlags(&e, cudaEventDisableTiming), "events");
	return e;
}

/* Allocates zeroed device memory within the limit memory_bytes; NULL: not enough. */
static void *cuda_alloc(struct device *d, size_t n_bytes)
{
	struct cuda_device *c = cuda_of(d);
	int64_t limit = c->o.memory_bytes;
	void *p;
	BUG_ON(!cuda_graph_idle(d));
	if (!n_bytes || (limit && (int64_t)n_bytes > limit - c->allocated_bytes) ||
		try_alloc(d, &p, n_bytes))
		return NULL;
	c->allocated_bytes += (int64_t)n_bytes;
	cuda_check(d, cudaMemsetAsync(p, 0, n_bytes, cuda_stream(d)), "alloc");
	return p;
}

/* Waits for the device, and frees memory of cuda_alloc(). */
static void cuda_free(struct device *d, void *p, size_t n_bytes)
{
	if (!p)
		return;
	cuda_wait(d);
	cuda_check(d, cudaFree(p), "free");
	cuda_of(d)->allocated_bytes -= (int64_t)n_bytes;
}

/* Allocates pinned memory. NULL: not enough memory, or beyond the system's limit of pinned memory,
 * for which the runtime has several codes. */
static void *alloc_shared(struct device *d, size_t n_bytes)
{
	void *p = NULL;
	cudaError_t rc = cudaHostAlloc(
		&p, n_bytes ? n_bytes : 1, cudaHostAllocPortable | cudaHostAllocMapped);
	if (rc == cudaErrorMemoryAllocation || rc == cudaErrorInvalidValue ||
		rc == cudaErrorOperatingSystem) {
		cudaGetLastError();
		return NULL;
	}
	cuda_check(d, rc, "pinned memory");
	return p;
}

static void free_shared(struct device *d, void *p)
{
	cuda_wait(d);
	cuda_check(d, cudaFreeHost(p), "pinned memory");
}

/* ---- copies -------------------------------------------------------------------------- */

void cuda_copy_async(
	struct device *d, void *to, const void *from, size_t n_bytes, const char *what)
{
	cudaStream_t stream = cuda_stream(d);
	cuda_check(
		d, cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyDefault, stream), what);
}

/* Moves to the next slot of the staging buffer; blocks until the device has read its contents. */
static void use_next_slot(struct device *d)
{
	struct cuda_device *c = cuda_of(d);
	struct cuda_stage *s = &c->stage;
	cudaStream_t stream = (cudaStream_t)cuda_stream_handle(d, s->stream);
	cuda_check(d, cudaEventRecord(s->put_done[s->slot], stream), "put");
	int next = (s->slot + 1) % STAGE_SLOTS;
	cuda_await(d, s->put_done[next], "put");
	s->slot = next;
	s->at = 0;
}

/* Moves to the next slot if the stream has changed: only one stream reads a slot. */
static void begin_slot(struct device *d)
{
	struct cuda_stage *s = &cuda_of(d)->stage;
	int stream = cuda_stream_current(d);
	if (s->at && s->stream != stream)
		use_next_slot(d);
	s->stream = stream;
}

/* Copies to the device through pinned memory, or into the graph that is captured or refilled. */
void cuda_put(struct device *d, void *to, const void *from, size_t n_bytes)
{
	enum { LINE = 64 };
	struct cuda_device *c = cuda_of(d);
	struct cuda_stage *s = &c->stage;
	if (!n_bytes || cuda_graph_put(d, to, from, n_bytes))
		return;
	struct cuda_launch l = cuda_copy_of("put", to, from, n_bytes);
	cuda_before_launch(d, &l);
	begin_slot(d);
	for (size_t at = 0, n; at < n_bytes; at += n) {
		n = (size_t)min64((int64_t)(n_bytes - at), STAGE_BYTES);
		if (n > STAGE_BYTES - s->at)
			use_next_slot(d);
		char *place = s->put + (size_t)s->slot * STAGE_BYTES + s->at;
		memcpy(place, (const char *)from + at, n);
		cuda_copy_async(d, (char *)to + at, place, n, "put");
		s->at = (size_t)min64(round_up((int64_t)(s->at + n), LINE), STAGE_BYTES);
	}
	cuda_after_launch(d, "put");
}

/* Copies to the host and waits; a piece is copied while the last one leaves pinned memory. */
void cuda_get(struct device *d, void *to, const void *from, size_t n_bytes)
{
	struct cuda_device *c = cuda_of(d);
	struct cuda_stage *s = &c->stage;
	int64_t n_pieces = ceil_div((int64_t)n_bytes, STAGE_BYTES);
	BUG_ON(!cuda_graph_idle(d));
	if (!n_bytes)
		return;
	struct cuda_launch l = cuda_copy_of("get", to, from, n_bytes);
	cuda_before_launch(d, &l);
	for (int64_t i = 0; i <= n_pieces; i++) {
		size_t at = (size_t)i * STAGE_BYTES, n;
		if (i < n_pieces) {
			n = (size_t)min64((int64_t)(n_bytes - at), STAGE_BYTES);
			cuda_copy_async(d, s->get + i % 2 * STAGE_BYTES,
				(const char *)from + at, n, "get");
			cuda_check(d, cudaEventRecord(s->get_done[i % 2], cuda_stream(d)),
				"get");
		}
		if (i == 0)
			continue;
		at -= STAGE_BYTES;
		n = (size_t)min64((int64_t)(n_bytes - at), STAGE_BYTES);
		cuda_await(d, s->get_done[(i - 1) % 2], "get");
		memcpy((char *)to + at, s->get + (i - 1) % 2 * STAGE_BYTES, n);
	}
	cuda_after_launch(d, "get");
}

/* Enqueues a readback. While capturing, its event must be recorded as external, so that each launch
 * of the graph records the event; otherwise it must not be. */
static void cuda_get_begin(struct device *d, void *to, const void *from, size_t n_bytes)
{
	struct cuda_device *c = cuda_of(d);
	struct async_readback *l = &c->readback;
	bool capturing = cuda_graph_capturing(d);
	BUG_ON(n_bytes > MAX_GET_BYTES);
	struct cuda_launch launch = cuda_copy_of("get", to, from, n_bytes);
	cuda_before_launch(d, &launch);
	l->to = to;
	l->n_bytes = n_bytes;
	cuda_copy_async(d, l->from, from, n_bytes, "get");
	cuda_check(d,
		cudaEventRecordWithFlags(l->done, cuda_stream(d),
			capturing ? cudaEventRecordExternal : cudaEventRecordDefault),
		"get");
	if (capturing)
		cuda_graph_readback(d);
	cuda_after_launch(d, "get");
}

/* Waits for the readback that cuda_get_begin() enqueued, and copies it to its destination. */
static void cuda_get_end(struct device *d)
{
	struct async_readback *l = &cuda_of(d)->readback;
	BUG_ON(!cuda_graph_idle(d) || !l->n_bytes);
	cuda_await(d, l->done, "get");
	memcpy(l->to, l->from, l->n_bytes);
}

void cuda_wait(struct device *d)
{
	BUG_ON(!cuda_graph_idle(d));
	cuda_streams_wait(d);
}

/* ---- opening ------------------------------------------------------------------------- */

/* Allocates the pinned staging buffers and creates their events. */
static void open_stage(struct device *d)
{
	struct cuda_stage *s = &cuda_of(d)->stage;
	struct async_readback *l = &cuda_of(d)->readback;
	s->put = cuda_alloc_pinned(d, (size_t)STAGE_SLOTS * STAGE_BYTES);
	s->get = cuda_alloc_pinned(d, (size_t)2 * STAGE_BYTES);
	l->from = cuda_alloc_pinned(d, MAX_GET_BYTES);
	l->done = cuda_create_event(d);
	for (cudaEvent_t &e : s->put_done)
		e = cuda_create_event(d);
	for (cudaEvent_t &e : s->get_done)
		e = cuda_create_event(d);
}

/* Waits for the device, and releases everything that pt_cuda_open() allocated. */
static void close_device(struct device *d)
{
	struct cuda_device *c = cuda_of(d);
	struct cuda_stage *s = &c->stage;
	struct str unused = {};
	cuda_wait(d);
	cuda_profile_end(d, &unused);
	str_free(&unused);
	cuda_graph_free(d);
	cuda_timer_close(d);
	cuda_plans_free(d);
	cublasLtDestroy(c->cublas);
	for (cudaEvent_t e : s->put_done)
		cudaEventDestroy(e);
	for (cudaEvent_t e : s->get_done)
		cudaEventDestroy(e);
	cudaEventDestroy(c->readback.done);
	cudaFreeHost(s->put);
	cudaFreeHost(s->get);
	cudaFreeHost(c->readback.from);
	cudaFree(c->workspace);
	cudaFree(c->gemm_workspace);
	cudaFree(c->attn_work);
	cudaFree(c->copies);
	cuda_streams_free(d);
	free(c);
}

/* (in the order of struct device_ops) */
static const struct device_ops ops = {get_memory, cuda_alloc, cuda_free, alloc_shared,
	free_shared, cuda_put, cuda_get, cuda_get_begin, cuda_copy_begin,
	cuda_timer_start, cuda_timer_read, close_device, cuda_get_end, cuda_stream_open,
	cuda_stream_handle, cuda_stream_current, cuda_stream_use, cuda_stream_mark,
	cuda_stream_wait, cuda_stream_reached, cuda_host_wait, cuda_wait,
	cuda_graph_begin, cuda_graph_end, cuda_graph_refill, cuda_graph_launch,
	cuda_graph_free, cuda_algorithms, cuda_set_algorithms, cuda_forget_algorithms,
	cuda_stamp, cuda_stamp_time, cuda_stamps_clear, cuda_profile_begin,
	cuda_profile_end, cuda_range, cuda_range_end};

/* Gets the driver version, "580.95.05", from a text like "NVRM version: NVIDIA UNIX x86_64 Kernel
 * Module 580.95.05 Tue ...": the first number with a point, or "unknown". */
static void get_driver_version(char text[32])
{
	static const char digits[] = "0123456789.";
	struct str s = {};
	struct err e = {};
	size_t n = 0;
	snprintf(text, 32, "unknown");
	file_read("/proc/driver/nvidia/version", 1 << 16, &s, &e);
	for (const char *at = s.s; at && (at = strpbrk(at, digits)); at += n) {
		n = strspn(at, digits);
		if (!memchr(at, '.', n) || n >= 32)
			continue;
		snprintf(text, 32, "%.*s", (int)n, at);
		break;
	}
	str_free(&s);
}

/* Sets c->name to the model and the versions and switches that determine bits. */
static void set_device_name(struct cuda_device *c)
{
	char driver[32];
	int cuda = 0;
	size_t lt = cublasLtGetVersion();
	const char *on = c->lab_on ? getenv("PT_LAB_ON") : NULL;
	get_driver_version(driver);
	cudaRuntimeGetVersion(&cuda);
	snprintf(c->name, sizeof(c->name),
		"%s (sm_%d, driver %s, CUDA %d.%d, cuBLASLt %zu.%zu.%zu%s%s%s)", c->model,
		c->arch, driver, cuda / 1000, cuda % 1000 / 10, lt / 10000,
		lt / 100 % 100, lt % 100,
		c->arch == 90 && !c->map_encode ? ", PT_ATTENTION=mma" : "",
		on ? ", PT_LAB_ON=" : "", on ? on : "");
}

/* Sets *e; returns 1: there are no GPUs, which is reported only if one was requested. */
static int no_gpu_error(struct err *e)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	err_set(e, EX_FAILED, "the driver lists no GPU%s%s%s",
		visible ? " (CUDA_VISIBLE_DEVICES is '" : "; see nvidia-smi",
		visible ? visible : "", visible ? "')" : "");
	return 1;
}

/* Sets *e; returns 1: there is no driver, which is reported only if a GPU was requested. */
static int no_driver_error(struct err *e)
{
	err_set(e, EX_FAILED, "no NVIDIA driver is installed on this machine%s",
		advice_on(ADVICE_GPU));
	return 1;
}

/* Returns a hash of the UUID of the GPU that the rank would get; 0: no GPU. */
extern "C" uint64_t pt_cuda_gpu(int rank)
{
	struct cudaDeviceProp p;
	uint64_t id = 0;
	int n = 0;
	if (cudaGetDeviceCount(&n) || !n || cudaGetDeviceProperties(&p, rank % n)) {
		cudaGetLastError();
		return 0;
	}
	for (char byte : p.uuid.bytes)
		id = hash_mix(id + (unsigned char)byte);
	return id | 1;
}

/* Sets d->number and d->sharers, by round-robin; nonzero: the GPU is shared but must not be. */
static int assign_gpu(struct device *d, const struct device_options *o, int n)
{
	int ranks = o->ranks > 1 ? o->ranks : 1;
	d->number = o->rank % n;
	d->sharers = o->sharers ? o->sharers : (ranks - d->number + n - 1) / n;
	return o->alone && d->sharers > 1;
}

/* Opens the rank's GPU. Returns 1 if there is none, or none for this rank alone (device_opener). */
static int open_gpu(struct device *d, struct cuda_device *c, struct err *e)
{
	struct cudaDeviceProp p;
	int n = 0, driver = 0;
	cudaError_t rc = cudaDriverGetVersion(&driver);
	if (rc == cudaSuccess && !driver)
		return no_driver_error(e);
	rc = cudaGetDeviceCount(&n);
	if (rc == cudaErrorInsufficientDriver)
		return err_set(e, EX_FAILED,
			"the NVIDIA driver supports CUDA %d.%d, but pt was built with "
			"CUDA %d.%d; install a newer driver, build pt with an older CUDA, "
			"or, on a GPU for data centers, add the libraries of NVIDIA's "
			"package cuda-compat to LD_LIBRARY_PATH",
			driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
			CUDART_VERSION % 1000 / 10);
	if (rc == cudaErrorNoDevice || (rc == cudaSuccess && !n))
		return no_gpu_error(e);
	if (rc == cudaSuccess && assign_gpu(d, &c->o, n)) {
		err_set(e, EX_FAILED, "%d ranks would share %d GPU%s", c->o.ranks, n,
			n == 1 ? "" : "s");
		return 1;
	}
	if (rc == cudaSuccess)
		rc = cudaGetDeviceProperties(&p, d->number);
	if (rc == cudaSuccess)
		rc = cudaSetDevice(d->number);
	if (rc == cudaSuccess)
		rc = cudaFree(
			0); /* creates the context; another process may have exclusive use */
	if (rc != cudaSuccess)
		return err_set(e, EX_FAILED,
			"cannot open the GPU: %s (%s); check with nvidia-smi that the "
			"GPU works and is free",
			cudaGetErrorString(rc), cudaGetErrorName(rc));
	snprintf(c->model, sizeof(c->model), "%s", p.name);
	c->arch = 10 * p.major + p.minor;
	c->max_shared_bytes = p.sharedMemPerBlockOptin;
	c->multiprocessors = p.multiProcessorCount;
	if (c->arch < 80)
		return err_set(e, EX_FAILED,
			"%s has compute capability %d.%d, but pt needs 8.0 (Ampere, "
			"2020) or later%s",
			p.name, p.major, p.minor, advice_on(ADVICE_GPU));
	return 0;
}

dim3 cuda_persistent(struct device *d, int64_t n, int blocks)
{
	return dim3((unsigned)min64(n, (int64_t)blocks * cuda_of(d)->multiprocessors));
}

/* Returns -1 with *e set if the free memory is too small for the fixed buffers. */
static int check_free_memory(struct cuda_device *c, struct err *e)
{
	enum { NEEDED = CUDA_WORKSPACE + GEMM_WORKSPACE + (32 << 20) };
	char left_text[NUM_TEXT], need_text[NUM_TEXT];
	size_t left = 0, total = 0;
	cudaMemGetInfo(&left, &total);
	if (left >= NEEDED)
		return 0;
	return err_set(e, EX_FAILED,
		"%s has only %s of free memory, but pt needs %s for workspaces; "
		"nvidia-smi lists the processes that use GPU memory",
		c->model, text_bytes(left_text, (double)left),
		text_bytes(need_text, NEEDED));
}

/* Sets c->map_encode to the driver function that the sm_90 kernels need, unless the GPU is not
 * sm_90 or PT_ATTENTION=mma disables these kernels. -1: failed, *e set. */
static int set_map_encode(struct cuda_device *c, struct err *e)
{
	cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
	const char *attention = getenv("PT_ATTENTION");
	void *fn = NULL;
	if (attention && strcmp(attention, "mma") && strcmp(attention, "auto"))
		return err_set(
			e, EX_USAGE, "PT_ATTENTION: '%s' is not auto or mma", attention);
	if (c->arch != 90 || (attention && !strcmp(attention, "mma")))
		return 0;
	cudaError_t rc = cudaGetDriverEntryPointByVersion(
		"cuTensorMapEncodeTiled", &fn, 12000, cudaEnableDefault, &found);
	if (rc != cudaSuccess || found != cudaDriverEntryPointSuccess)
		return err_set(e, EX_FAILED,
			"%s: the driver has no cuTensorMapEncodeTiled; "
			"set PT_ATTENTION=mma to use other kernels",
			c->model);
	c->map_encode = (PFN_cuTensorMapEncodeTiled_v12000)fn;
	return 0;
}

/* Opens the rank's GPU and its buffers; 1: no GPU for this rank, -1: failed; both set *e. */
extern "C" int pt_cuda_open(
	struct device *d, const struct device_options *o, struct err *e)
{
	struct cuda_device *c = (struct cuda_device *)xcalloc(1, sizeof(*c));
	device_init(d, DEVICE_CUDA, &cuda_kernels, &ops);
	c->o = *o;
	d->impl = c;
	int rc = cuda_lab_read(d, e);
	if (!rc)
		rc = open_gpu(d, c, e);
	if (!rc)
		rc = check_free_memory(c, e);
	if (!rc)
		rc = set_map_encode(c, e);
	if (rc) {
		free(c);
		return rc;
	}
	set_device_name(c);
	d->name = c->name;
	d->model = c->model;
	d->exact = o->exact;
	c->waits = env_switch("PT_CUDA_SYNC") == 1;
	c->measures = o->measure;
	c->candidates = getenv("PT_LAB_CANDIDATES");
	cuda_streams_open(d);
	open_stage(d);
	c->workspace = cuda_alloc_or_die(d, CUDA_WORKSPACE, "kernels");
	c->gemm_workspace = cuda_alloc_or_die(d, GEMM_WORKSPACE, "matmuls");
	if (c->map_encode) {
		c->attn_work = (struct attn_work *)cuda_alloc_or_die(
			d, sizeof(*c->attn_work), "attention");
		cuda_check(d,
			cudaMemsetAsync(
				c->attn_work, 0, sizeof(*c->attn_work), cuda_stream(d)),
			"attention");
	}
	cuda_cublas_check(d, cublasLtCreate(&c->cublas), "cublasLtCreate");
	return 0;
}
