/*
 * Opening a device, and calls through its function table. The CPU is part of the program; CUDA is
 * in a plugin, pt-cuda.so, which is loaded on demand, so that only runs on GPUs load its libraries.
 */
#include "base/file.h"
#include "base/trace.h"
#include "kernels/backend.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

/* Sets *path to $PT_CUDA, or the plugin next to the program or in ../lib/pt; -1: not found. */
static int find_plugin(struct str *path)
{
	const char *env = getenv("PT_CUDA");
	if (env && *env) {
		str_puts(path, env);
		return file_exists(env) ? 0 : -1;
	}
	return file_find_near_program(path, "pt-cuda.so") ||
			       file_find_near_program(path, "../lib/pt/pt-cuda.so")
		       ? 0
		       : -1;
}

/* Sets *e, and returns -1 if $PT_CUDA names a missing file, or 1 if pt was built without CUDA,
 * which matters only if a GPU was requested. */
static int plugin_missing_error(const struct str *path, struct err *e)
{
	const char *env = getenv("PT_CUDA");
	if (env && *env)
		return err_set(e, EX_FAILED, "PT_CUDA: '%s' does not exist", path->s);
	err_set(e, EX_FAILED,
		"built without CUDA: pt-cuda.so is missing in the program's directory "
		"and in ../lib/pt; `make` builds it if nvcc (CUDA 13) is installed, `make "
		"wheel-cuda` packs it for pip, or set PT_CUDA to its path");
	return 1;
}

/* The functions that the plugin exports. */
struct cuda_plugin {
	device_opener *open;
	device_finder *gpu;
};

/* Sets *h to the functions of the loaded library; -1, *e set: not the plugin of this version. */
static int get_plugin(struct cuda_plugin *h, void *lib, const char *path, struct err *e)
{
	const uint64_t *abi = dlsym(lib, "pt_cuda_abi");
	void *open = dlsym(lib, "pt_cuda_open"), *gpu = dlsym(lib, "pt_cuda_gpu");
	if (!abi || !open)
		return err_set(e, EX_FAILED, "%s is not the CUDA plugin of pt", path);
	if (*abi != device_abi() || !gpu)
		return err_set(e, EX_FAILED,
			"%s is from another version of pt than this program, %s; build "
			"and install both together",
			path, PT_VERSION);
	/* POSIX allows converting a data pointer to a function pointer, ISO C does not. */
	memcpy(&h->open, &open, sizeof(open));
	memcpy(&h->gpu, &gpu, sizeof(gpu));
	return 0;
}

/* Loads the cuBLASLt that pip installed in the environment of the program, if any. The dynamic
 * linker then uses it for the plugin, which needs a library of this name. */
static void load_cublaslt(void)
{
	scoped_str path = {0};
	if (file_find_near_program(&path,
		    "../lib*/python3*/*-packages/nvidia/cu13/lib/libcublasLt.so.13"))
		dlopen(path.s, RTLD_LAZY | RTLD_LOCAL);
}

/* Loads the plugin for good, and sets *h; 1: built without CUDA, -1: failed; both set *e. */
static int open_plugin(struct cuda_plugin *h, struct err *e)
{
	scoped_str path = {0};
	int rc;
	if (find_plugin(&path)) {
		rc = plugin_missing_error(&path, e);
	} else {
		/* One queue per stream: a stream that waits for a GPU must not delay others. */
		setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
		load_cublaslt();
		/* Never closed: CUDA cannot be unloaded, and another dlopen() is cheap. */
		void *lib = dlopen(path.s, RTLD_NOW | RTLD_LOCAL);
		if (!lib)
			rc = err_set(e, EX_FAILED,
				"cannot open the CUDA plugin of pt: %s; cuBLASLt comes with the "
				"CUDA toolkit, or with `pip install nvidia-cublas` next to pt; "
				"elsewhere, its directory nvidia/cu13/lib must be in "
				"LD_LIBRARY_PATH",
				dlerror());
		else
			rc = get_plugin(h, lib, path.s, e);
	}
	return rc;
}

/* Returns false if no driver is installed, without which no GPU can be used: loading cuBLASLt to
 * detect this takes 0.1 s. $PT_CUDA may name an emulator, which needs no driver. */
static bool has_driver(void)
{
	const char *env = getenv("PT_CUDA");
	return (env && *env) || dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
}

/* Loads the plugin, and ignores errors (0), which device_open() reports. */
uint64_t device_gpu_id(int rank)
{
	struct cuda_plugin h;
	return !has_driver() || open_plugin(&h, &(struct err){0}) ? 0 : h.gpu(rank);
}

uint64_t device_plugin_hash(void)
{
	enum { PIECE = 1 << 20 };
	scoped_str path = {0};
	uint64_t hash = 0;
	int fd = find_plugin(&path) ? -1 : open(path.s, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		struct hash_state *h = hash_open();
		scoped_ptr char *piece = xmalloc(PIECE);
		for (ssize_t n; (n = read(fd, piece, PIECE)) > 0;)
			hash_add(h, piece, (size_t)n);
		hash = hash_close(h);
		close(fd);
	}
	return hash;
}

/* Opens the device. DEVICE_AUTO prints why no GPU is used, and opens the CPU then. */
int device_open(struct device *d, enum device_kind kind, const struct device_options *o,
	struct err *e)
{
	struct err error = {0};
	*d = (struct device){0};
	if (kind == DEVICE_CUDA || (kind == DEVICE_AUTO && has_driver())) {
		struct device_options opts = *o;
		opts.alone |= kind == DEVICE_AUTO;
		struct cuda_plugin h;
		int rc = open_plugin(&h, &error);
		if (!rc)
			rc = h.open(d, &opts, &error);
		if (!rc)
			return 0;
		if (kind == DEVICE_CUDA) {
			*d = (struct device){0};
			*e = error;
			return err_prefix(e, "--device cuda: ");
		}
		if (rc < 0)
			info("using the CPU, not a GPU: %s", error.msg);
	}
	device_open_cpu(d, o->threads);
	return 0;
}

void device_close(struct device *d)
{
	if (d->ops && d->ops->close)
		d->ops->close(d);
	*d = (struct device){0};
}

/* Defines device_NAME(), which calls the function in the device's table; if that is NULL, it does
 * nothing and returns 0. */
#define CALL(name, params, ...)                    \
	void device_##name params                  \
	{                                          \
		if (d->ops->name)                  \
			d->ops->name(__VA_ARGS__); \
	}
#define CALL_VALUE(type, name, params, ...)                          \
	type device_##name params                                    \
	{                                                            \
		return d->ops->name ? d->ops->name(__VA_ARGS__) : 0; \
	}

void device_range(struct device *d, const char *name)
{
	trace_begin(name, -1);
	if (d->ops->range)
		d->ops->range(d, name);
}

void device_range_end(struct device *d)
{
	if (d->ops->range_end)
		d->ops->range_end(d);
	trace_end();
}

/* Begins a capture, and records in d->capturing whether the device captures. */
bool device_graph_begin(struct device *d)
{
	d->capturing = d->ops->graph_begin && d->ops->graph_begin(d);
	return d->capturing;
}

bool device_graph_end(struct device *d)
{
	d->capturing = false;
	return d->ops->graph_end && d->ops->graph_end(d);
}

bool device_stream_reached(struct device *d, uint64_t ticket)
{
	return !d->ops->stream_reached || d->ops->stream_reached(d, ticket);
}

/* clang-format off */
CALL(memory, (const struct device *d, int64_t *used, int64_t *free_now), d, used, free_now)
CALL_VALUE(void *, alloc, (struct device *d, size_t n_bytes), d, n_bytes)
CALL(free, (struct device *d, void *p, size_t n_bytes), d, p, n_bytes)
CALL_VALUE(void *, shared, (struct device *d, size_t n_bytes), d, n_bytes)
CALL(shared_free, (struct device *d, void *p), d, p)
CALL(put, (struct device *d, void *to, const void *from, size_t n_bytes), d, to, from, n_bytes)
CALL(get, (struct device *d, void *to, const void *from, size_t n_bytes), d, to, from, n_bytes)
CALL(get_begin, (struct device *d, void *to, const void *from, size_t n_bytes), d, to, from, n_bytes)
CALL(get_end, (struct device *d), d)
CALL_VALUE(uint64_t, copy_begin, (struct device *d, bool out, void *to, const void *from,
	size_t n_bytes, uint64_t after), d, out, to, from, n_bytes, after)
CALL_VALUE(int, stream_open, (struct device *d, bool urgent), d, urgent)
CALL_VALUE(void *, stream_handle, (struct device *d, int stream), d, stream)
CALL_VALUE(int, stream, (struct device *d), d)
CALL_VALUE(int, stream_use, (struct device *d, int stream), d, stream)
CALL_VALUE(uint64_t, stream_mark, (struct device *d), d)
CALL(stream_wait, (struct device *d, uint64_t ticket), d, ticket)
CALL(host_wait, (struct device *d, uint64_t ticket), d, ticket)
CALL(wait, (struct device *d), d)
CALL(graph_refill, (struct device *d), d)
CALL(graph_launch, (struct device *d), d)
CALL(graph_drop, (struct device *d), d)
CALL(algorithms, (struct device *d, struct str *out), d, out)
CALL_VALUE(int, set_algorithms, (struct device *d, const char *text, struct err *e), d, text, e)
CALL(forget_algorithms, (struct device *d), d)
CALL(timer_start, (struct device *d, enum device_timer what), d, what)
CALL(timer_read, (struct device *d, double seconds[N_DEVICE_TIMERS]), d, seconds)
CALL_VALUE(uint64_t, stamp, (struct device *d), d)
CALL_VALUE(double, stamp_time, (struct device *d, uint64_t stamp), d, stamp)
CALL(stamps_clear, (struct device *d), d)
CALL(profile_begin, (struct device *d), d)
CALL(profile_end, (struct device *d, struct str *out), d, out)
