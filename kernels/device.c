/*
 * Opening a device, and calls through its function table. The CPU is part of the program; CUDA is
 * in a plugin, pt-cuda.so, which is loaded on demand, so that only runs on GPUs load its libraries.
 */
#include "base/file.h"
#include "kernels/backend.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the CUDA plugin -------------------------------------------------------------- */

/* $PT_CUDA, or in the program's directory, or in ../lib/pt from there; -1: not found. */
static int find_plugin(struct str *path)
{
	static const char *const places[] = {"pt-cuda.so", "../lib/pt/pt-cuda.so"};
	char exe[4096];
	const char *env = getenv("PT_CUDA");
	if (env && *env) {
		str_puts(path, env);
		return file_exists(env) ? 0 : -1;
	}
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	exe[n > 0 ? n : 0] = '\0';
	char *slash = strrchr(exe, '/');
	if (slash)
		*slash = '\0';
	for (size_t i = 0; i < ARRAY_LEN(places); i++) {
		str_clear(path);
		str_printf(path, "%s/%s", exe, places[i]);
		if (file_exists(path->s))
			return 0;
	}
	return -1;
}

/* Returns 1 if pt was built without CUDA, which is not worth a message by itself. */
static int plugin_missing(const struct str *path, struct err *e)
{
	const char *env = getenv("PT_CUDA");
	if (env && *env)
		return err_set(e, EX_FAILED, "PT_CUDA: there is no file %s", path->s);
	err_set(e, EX_FAILED,
		"built without CUDA: there is no pt-cuda.so in the program's directory "
		"or in ../lib/pt; `make` builds it if nvcc (CUDA 13) is installed, and "
		"PT_CUDA can give its path");
	return 1;
}

/* The functions that it exports. */
struct cuda_plugin {
	device_opener *open;
	device_finder *gpu;
};

static int load_plugin(struct cuda_plugin *h, void *lib, const char *path, struct err *e)
{
	const uint64_t *abi = dlsym(lib, "pt_cuda_abi");
	void *open = dlsym(lib, "pt_cuda_open"), *gpu = dlsym(lib, "pt_cuda_gpu");
	if (!abi || !open)
		return err_set(e, EX_FAILED, "%s is not the CUDA plugin of pt", path);
	if (*abi != device_abi() || !gpu)
		return err_set(e, EX_FAILED,
			"%s belongs to another version of pt than this program, which is "
			"%s; build and install both together",
			path, PT_VERSION);
	/* POSIX allows converting a data pointer to a function pointer, ISO C does not. */
	memcpy(&h->open, &open, sizeof(open));
	memcpy(&h->gpu, &gpu, sizeof(gpu));
	return 0;
}

/* 1: there is no plugin. */
static int open_plugin(struct cuda_plugin *h, struct err *e)
{
	struct str path = {0};
	int rc;
	if (find_plugin(&path)) {
		rc = plugin_missing(&path, e);
	} else {
		/* Never closed: CUDA does not support being unloaded, and dlopen() again is cheap. */
		void *lib = dlopen(path.s, RTLD_NOW | RTLD_LOCAL);
		if (!lib)
			rc = err_set(e, EX_FAILED,
				"the CUDA plugin of pt cannot be opened: %s; its libraries "
				"(cuBLASLt) come with the CUDA toolkit",
				dlerror());
		else
			rc = load_plugin(h, lib, path.s, e);
	}
	str_free(&path);
	return rc;
}

/* Without the driver no GPU can be used. This test is immediate, whereas cuBLASLt takes a tenth of a
 * second to load. The plugin that $PT_CUDA names may be an emulation, which needs no driver. */
static bool has_driver(void)
{
	const char *env = getenv("PT_CUDA");
	return (env && *env) || dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
}

/* Errors are ignored: device_open() reports them. */
uint64_t device_gpu(int rank)
{
	struct cuda_plugin h;
	return !has_driver() || open_plugin(&h, &(struct err){0}) ? 0 : h.gpu(rank);
}

uint64_t device_build(void)
{
	enum { PIECE = 1 << 20 };
	struct str path = {0};
	uint64_t hash = 0;
	int fd = find_plugin(&path) ? -1 : open(path.s, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		struct hash_state *h = hash_open();
		char *piece = xmalloc(PIECE);
		for (ssize_t n; (n = read(fd, piece, PIECE)) > 0;)
			hash_add(h, piece, (size_t)n);
		hash = hash_close(h);
		free(piece);
		close(fd);
	}
	str_free(&path);
	return hash;
}

int device_open(struct device *d, enum device_kind kind, const struct device_options *o,
	struct err *e)
{
	struct err why = {0};
	*d = (struct device){0};
	if (kind == DEVICE_CUDA || (kind == DEVICE_AUTO && has_driver())) {
		struct device_options with = *o;
		with.alone |= kind == DEVICE_AUTO;
		struct cuda_plugin h;
		int rc = open_plugin(&h, &why);
		if (!rc)
			rc = h.open(d, &with, &why);
		if (!rc)
			return 0;
		if (kind == DEVICE_CUDA) {
			*d = (struct device){0};
			*e = why;
			return err_prefix(e, "device=cuda: ");
		}
		if (rc < 0)
			info("no GPU is used: %s", why.msg);
	}
	device_cpu(d, o->threads);
	return 0;
}

/* ---- the functions of a device ------------------------------------------------------ */

void device_close(struct device *d)
{
	if (d->ops && d->ops->close)
		d->ops->close(d);
	*d = (struct device){0};
}

void *device_alloc(struct device *d, size_t n_bytes)
{
	return d->ops->alloc(d, n_bytes);
}

void device_free(struct device *d, void *p, size_t n_bytes)
{
	d->ops->free(d, p, n_bytes);
}

void device_memory(const struct device *d, int64_t *used, int64_t *free_now)
{
	d->ops->memory(d, used, free_now);
}

void *device_shared(struct device *d, size_t n_bytes)
{
	return d->ops->shared(d, n_bytes);
}

void device_shared_free(struct device *d, void *p)
{
	d->ops->shared_free(d, p);
}

void device_put(struct device *d, void *to, const void *from, size_t n_bytes)
{
	d->ops->put(d, to, from, n_bytes);
}

void device_get(struct device *d, void *to, const void *from, size_t n_bytes)
{
	d->ops->get(d, to, from, n_bytes);
}

void device_get_begin(struct device *d, void *to, const void *from, size_t n_bytes)
{
	d->ops->get_begin(d, to, from, n_bytes);
}

void device_get_end(struct device *d)
{
	if (d->ops->get_end)
		d->ops->get_end(d);
}

void device_wait(struct device *d)
{
	if (d->ops->wait)
		d->ops->wait(d);
}

uint64_t device_copy_begin(struct device *d, bool out, void *to, const void *from,
	size_t n_bytes, uint64_t after)
{
	return d->ops->copy_begin(d, out, to, from, n_bytes, after);
}

void device_copy_end(struct device *d, uint64_t ticket)
{
	if (d->ops->copy_end)
		d->ops->copy_end(d, ticket);
}

void device_copy_wait(struct device *d, uint64_t ticket)
{
	if (d->ops->copy_wait)
		d->ops->copy_wait(d, ticket);
}

bool device_graph_begin(struct device *d)
{
	return d->ops->graph_begin && d->ops->graph_begin(d);
}

bool device_graph_end(struct device *d)
{
	return d->ops->graph_end && d->ops->graph_end(d);
}

void device_graph_refill(struct device *d)
{
	BUG_ON(!d->ops->graph_refill);
	d->ops->graph_refill(d);
}

void device_graph_launch(struct device *d)
{
	BUG_ON(!d->ops->graph_launch);
	d->ops->graph_launch(d);
}

void device_algorithms(struct device *d, struct str *out)
{
	if (d->ops->algorithms)
		d->ops->algorithms(d, out);
}

int device_take_algorithms(struct device *d, const char *text, struct err *e)
{
	return d->ops->take_algorithms ? d->ops->take_algorithms(d, text, e) : 0;
}

void device_forget_algorithms(struct device *d)
{
	if (d->ops->forget_algorithms)
		d->ops->forget_algorithms(d);
}

void device_timer_start(struct device *d, enum device_timer what)
{
	d->ops->at(d, what);
}

void device_timer_read(struct device *d, double seconds[N_DEVICE_TIMERS])
{
	d->ops->times(d, seconds);
}

void device_profile_begin(struct device *d)
{
	if (d->ops->profile_begin)
		d->ops->profile_begin(d);
}

void device_profile_end(struct device *d, struct str *out)
{
	if (d->ops->profile_end)
		d->ops->profile_end(d, out);
}

void device_range(struct device *d, const char *name)
{
	if (d->ops->range)
		d->ops->range(d, name);
}

void device_range_end(struct device *d)
{
	if (d->ops->range_end)
		d->ops->range_end(d);
}
