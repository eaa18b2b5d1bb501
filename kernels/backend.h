/* The backend interface: the functions that a device implements, its initialization, and the ABI of
 * the CUDA plugin. Code that only uses devices includes device.h. */
#pragma once

#include "kernels/device.h"
#include "kernels/kernels.h"

/* The function table of a device; device.h documents each function (device_close() and so on). A
 * device may copy the table of another device and override entries. Optional entries are NULL where
 * the device has nothing to do or lacks the feature. */
struct device_ops {
	void (*memory)(const struct device *, int64_t *used, int64_t *free);
	void *(*alloc)(struct device *, size_t n_bytes);
	void (*free)(struct device *, void *p, size_t n_bytes);
	void *(*shared)(struct device *, size_t n_bytes);
	void (*shared_free)(struct device *, void *p);
	void (*put)(struct device *, void *to, const void *from, size_t n_bytes);
	void (*get)(struct device *, void *to, const void *from, size_t n_bytes);
	void (*get_begin)(struct device *, void *to, const void *from, size_t n_bytes);
	uint64_t (*copy_begin)(struct device *, bool out, void *to, const void *from,
		size_t n_bytes, uint64_t after);
	void (*timer_start)(struct device *, enum device_timer what);
	void (*timer_read)(struct device *, double seconds[N_DEVICE_TIMERS]);
	/* ---- optional ---- */
	void (*close)(struct device *);
	void (*get_end)(struct device *);
	int (*stream_open)(struct device *, bool urgent);
	void *(*stream_handle)(struct device *, int stream);
	int (*stream)(struct device *);
	int (*stream_use)(struct device *, int stream);
	uint64_t (*stream_mark)(struct device *);
	void (*stream_wait)(struct device *, uint64_t ticket);
	bool (*stream_reached)(struct device *, uint64_t ticket);
	void (*host_wait)(struct device *, uint64_t ticket);
	void (*wait)(struct device *);
	bool (*graph_begin)(struct device *);
	bool (*graph_end)(struct device *);
	void (*graph_refill)(struct device *);
	void (*graph_launch)(struct device *);
	void (*graph_drop)(struct device *);
	void (*algorithms)(struct device *, struct str *out);
	int (*set_algorithms)(struct device *, const char *text, struct err *e);
	void (*forget_algorithms)(struct device *);
	uint64_t (*stamp)(struct device *);
	double (*stamp_time)(struct device *, uint64_t stamp);
	void (*stamps_clear)(struct device *);
	void (*profile_begin)(struct device *);
	void (*profile_end)(struct device *, struct str *out);
	void (*range)(struct device *, const char *name);
	void (*range_end)(struct device *);
};

extern const struct device_ops cpu_device_ops;

/* Initializes *d with these tables, the name of the kernels, and the properties of its kind. The
 * planning device is initialized with the kind of device that it plans for. */
static inline void device_init(struct device *d, enum device_kind kind,
	const struct kernels *k, const struct device_ops *ops)
{
	/* Logits computed at a time: enough to keep a whole GPU busy. */
	enum { CPU_TILE_BYTES = 64 << 20, GPU_TILE_BYTES = 1 << 30 };
	bool is_gpu = kind == DEVICE_CUDA;
	memset(d, 0, sizeof(*d));
	d->k = k;
	d->ops = ops;
	d->name = k->name;
	d->model = "";
	d->exact = true;
	d->threads = 1;
	d->discrete = is_gpu;
	d->tile_bytes = is_gpu ? GPU_TILE_BYTES : CPU_TILE_BYTES;
}

/* ---- the CUDA plugin --------------------------------------------------------------- */

/* pt-cuda.so exports three symbols. `pt_cuda_open` is a device_opener; it returns 1 if the host has
 * no GPU, or none for this rank alone, which is reported only if a GPU was requested. `pt_cuda_gpu`
 * implements device_gpu_id(). `pt_cuda_abi` must equal the program's device_abi(), a hash of the
 * prototypes of all kernels and of the sizes of structs. */
typedef int device_opener(
	struct device *d, const struct device_options *o, struct err *e);
typedef uint64_t device_finder(int rank);

static inline uint64_t device_abi_text(uint64_t h, const char *text)
{
	for (const char *s = text; *s; s++)
		h = hash_mix(h + (unsigned char)*s);
	return h;
}

/* Returns a hash of the version, the prototypes of all kernels and the sizes of shared structs. */
static inline uint64_t device_abi(void)
{
	uint64_t h = device_abi_text(0, PT_VERSION);
	static const size_t sizes[] = {sizeof(struct device), sizeof(struct device_ops),
		sizeof(struct kernels), sizeof(struct mat), sizeof(struct dropout),
		sizeof(struct attn), sizeof(struct norm), sizeof(struct norm_grads),
		sizeof(struct update), sizeof(struct update_part), sizeof(struct sliced),
		sizeof(struct step_end), sizeof(struct step_terms), sizeof(struct router),
		sizeof(struct router_losses), sizeof(struct row_groups),
		sizeof(struct group_leaf), sizeof(struct combine), sizeof(struct keep),
		sizeof(struct rng_stream), sizeof(struct normal), sizeof(struct exact),
		sizeof(struct grid), sizeof(struct grid_part), sizeof(struct grid_sum),
		sizeof(struct grid_check), sizeof(struct device_options),
		sizeof(struct err)};
#define KERNEL(type, name, ...) \
	h = device_abi_text(h, #type " " #name "(" #__VA_ARGS__ ")");
#include "kernels/list.h"
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
		h = hash_mix(h + sizes[i]);
	return h;
}
