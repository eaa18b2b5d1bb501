/* A directory of torch.distributed.checkpoint (DCP). Its .metadata is a pickle of one object that
 * lists the items, the boxes of each tensor (state_dict_metadata), and where each box is stored
 * (storage_data): a torch.save() archive, at a byte range of a file.
 *
 * A large run has millions of boxes, so a look-up takes logarithmic time. */
#include "archive/archive_internal.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FILES = 1 << 20 };

struct dcp {
	struct torch_file *f;
	const char *dir, *name; /* paths of the directory and of its .metadata */
	struct pickle tree;
	int64_t n_bytes; /* size of all .metadata files so far */
	/* Hash table of file paths: 1 + index of the file; 0: free. */
	int32_t *slots;
	int64_t n_slots;
	uint32_t
		last_path; /* node of the file path of the last look-up; last_file: its index */
	int32_t last_file;
	uint32_t *item_of; /* [node of a name] 1 + index of the item; 0: not looked up */
	struct err *e;
};

static int reject(const struct dcp *d, const char *what)
{
	return err_set(d->e, EX_DATAERR,
		"%s: not the .metadata of a PyTorch checkpoint, or damaged: %s", d->name,
		what);
}

static int reject_item(const struct dcp *d, const struct torch_item *x, const char *why)
{
	return err_set(d->e, EX_DATAERR, "%s: item %s %s: the file is damaged", d->name,
		x->name, why);
}

/* Returns true if the node is an object of this class. */
static bool is_object(const struct dcp *d, uint32_t node, const char *name)
{
	size_t n;
	const char *class_name = pickle_global_name(
		&d->tree, pickle_part(&d->tree, node, PICKLE_CALLED), &n);
	return pickle_kind(&d->tree, node) == PICKLE_OBJECT && class_name &&
	       n == strlen(name) && !memcmp(class_name, name, n);
}

/* Returns a field of an object. If its class has __slots__, the state is (None, fields). */
static uint32_t get_field(const struct dcp *d, uint32_t object, const char *name)
{
	uint32_t state = pickle_part(&d->tree, object, PICKLE_STATE);
	if (pickle_kind(&d->tree, state) == PICKLE_TUPLE)
		state = pickle_item(&d->tree, state, 1);
	return pickle_field(&d->tree, state, name);
}

/* Reads a torch.Size of `ndim` dimensions (-1: any number). Returns their number, or -1. */
static int read_size(const struct dcp *d, uint32_t node, int ndim, int64_t *out)
{
	struct pickle_each it;
	uint32_t x;
	int n = 0;
	if (pickle_kind(&d->tree, node) != PICKLE_TUPLE)
		return -1;
	pickle_begin(&it, &d->tree, node);
	while (pickle_next(&it, &x))
		if (n == TORCH_MAX_DIMS || pickle_int(&d->tree, x, &out[n]) ||
			out[n++] < 0)
			return -1;
	return ndim < 0 || n == ndim ? n : -1;
}

/* ---- files ------------------------------------------------------------------------------ */

/* Returns true if a path is relative and has no "..", so it stays in the checkpoint's directory. */
static bool is_path_inside(const char *name, size_t n)
{
	if (!n || *name == '/' || n > 1024 || memchr(name, 0, n))
		return false;
	for (size_t i = 0; i + 1 < n; i++)
		if (name[i] == '.' && name[i + 1] == '.' && (!i || name[i - 1] == '/') &&
			(i + 2 == n || name[i + 2] == '/'))
			return false;
	return true;
}

/* Returns the hash slot of a file path, 0 if the path was not added. A slot must be free. */
static int32_t *find_slot(const struct dcp *d, const char *name)
{
	uint64_t at = hash_str(name);
	for (;; at++) {
		int32_t *slot = &d->slots[at & (uint64_t)(d->n_slots - 1)];
		if (!*slot || !strcmp(d->f->parts->files[*slot - 1], name))
			return slot;
	}
}

/* Doubles the hash table of file paths until less than half is used, and rehashes the paths. */
static void grow_slots(struct dcp *d)
{
	if (d->f->parts->n_files * 2 < d->n_slots)
		return;
	do
		d->n_slots = max64(64, d->n_slots * 2);
	while (d->f->parts->n_files * 2 >= d->n_slots);
	free(d->slots);
	d->slots = xcalloc((size_t)d->n_slots, sizeof(*d->slots));
	for (int32_t i = 0; i < d->f->parts->n_files; i++)
		*find_slot(d, d->f->parts->files[i]) = i + 1;
}

/* Sets *file to the index of the file that a text names, and appends the file the first time. */
static int intern_file(struct dcp *d, uint32_t node, int32_t *file)
{
	struct torch_parts *p = d->f->parts;
	size_t n;
	const char *name = pickle_text(&d->tree, node, &n);
	if (node == d->last_path && node) {
		*file = d->last_file;
		return 0;
	}
	if (!name || !is_path_inside(name, n))
		return reject(d, "invalid file name");
	scoped_ptr char *path = text_printf("%s/%.*s", d->dir, (int)n, name);
	grow_slots(d);
	int32_t *slot = find_slot(d, path);
	if (!*slot && p->n_files == MAX_FILES)
		return reject(d, "too many files");
	if (!*slot)
		*slot = items_add_file(d->f, path) + 1;
	*file = d->last_file = *slot - 1;
	d->last_path = node;
	return 0;
}

/* ---- tensors ------------------------------------------------------------------------------ */

struct box {
	int64_t begin[TORCH_MAX_DIMS], sizes[TORCH_MAX_DIMS];
};

static int by_begin(const void *a, const void *b)
{
	const struct box *x = a, *y = b;
	for (int i = 0; i < TORCH_MAX_DIMS; i++)
		if (x->begin[i] != y->begin[i])
			return (x->begin[i] > y->begin[i]) - (x->begin[i] < y->begin[i]);
	return 0;
}

/* Reads a ChunkStorageMetadata. Returns -1 if it is invalid or outside of the tensor. */
static int read_box(
	const struct dcp *d, const struct torch_item *t, uint32_t node, struct box *b)
{
	*b = (struct box){.begin = {0}};
	if (!is_object(d, node, "ChunkStorageMetadata") ||
		read_size(d, get_field(d, node, "offsets"), t->ndim, b->begin) < 0 ||
		read_size(d, get_field(d, node, "sizes"), t->ndim, b->sizes) < 0)
		return -1;
	for (int i = 0; i < t->ndim; i++)
		if (b->begin[i] > t->dims[i] || b->sizes[i] > t->dims[i] - b->begin[i])
			return -1;
	return 0;
}

static bool is_box_empty(const struct torch_item *t, const struct box *b)
{
	bool any_zero = false;
	for (int i = 0; i < t->ndim; i++)
		any_zero = any_zero || !b->sizes[i];
	return any_zero;
}

/* Appends the boxes of the last item, sorted, except empty ones: many may begin at one index. */
static int add_boxes(struct dcp *d, const char *name, uint32_t chunks)
{
	struct torch_item *t = &d->f->items[d->f->n - 1];
	struct pickle_each it;
	uint32_t node;
	int64_t n = 0;
	int rc = 0;
	pickle_begin(&it, &d->tree, chunks);
	scoped_ptr struct box *list = xcalloc((size_t)it.left + 1, sizeof(*list));
	while (!rc && pickle_next(&it, &node)) {
		rc = read_box(d, t, node, &list[n]);
		n += !rc && !is_box_empty(t, &list[n]);
	}
	/* (each box takes at least 16 bytes of .metadata) */
	if (!rc && d->f->parts->n_chunks + n > d->n_bytes / 16)
		rc = -1;
	if (n)
		qsort(list, (size_t)n, sizeof(*list), by_begin);
	for (int64_t i = 0; i < n && !rc; i++)
		items_add_chunk(d->f, list[i].begin, list[i].sizes);
	return rc ? err_set(d->e, EX_DATAERR,
			    "%s: a part of %s is out of bounds or damaged", d->name, name)
		  : 0;
}

/* Returns the type of a TensorProperties object, the first member of its state; -1: unknown. */
static int read_type(const struct dcp *d, uint32_t properties)
{
	size_t n;
	uint32_t state = pickle_part(&d->tree, properties, PICKLE_STATE);
	const char *type =
		pickle_global_name(&d->tree, pickle_item(&d->tree, state, 0), &n);
	return type ? dtype_of_name(type, n) : -1;
}

/* Sets the type, shape and boxes of the last item from a TensorStorageMetadata. */
static int add_tensor(struct dcp *d, struct torch_item *x, uint32_t node)
{
	x->kind = TORCH_TENSOR;
	x->dtype = read_type(d, get_field(d, node, "properties"));
	x->ndim = read_size(d, get_field(d, node, "size"), -1, x->dims);
	if (x->ndim < 0 || !shape_fits(x->dims, x->ndim)) {
		x->ndim = 0;
		return err_set(
			d->e, EX_DATAERR, "%s: invalid shape of %s", d->name, x->name);
	}
	if (x->dtype < 0)
		return err_set(d->e, EX_UNAVAILABLE,
			"%s: the dtype of %s is not supported", d->name, x->name);
	return add_boxes(d, x->name, get_field(d, node, "chunks"));
}

/* Appends all items, in the order of the file. */
static int add_items(struct dcp *d, uint32_t dict)
{
	struct pickle_each it;
	uint32_t key, node;
	size_t n;
	if (pickle_kind(&d->tree, dict) != PICKLE_DICT)
		return reject(d, "state_dict_metadata is missing");
	pickle_begin(&it, &d->tree, dict);
	while (pickle_next(&it, &key) && pickle_next(&it, &node)) {
		const char *name = pickle_text(&d->tree, key, &n);
		if (!name)
			return reject(d, "invalid item name");
		struct torch_item *x = items_add(d->f, name, n, d->e);
		if (!x)
			return -1;
		if (is_object(d, node, "BytesStorageMetadata"))
			items_add_chunk(d->f, no_dims, no_dims);
		else if (!is_object(d, node, "TensorStorageMetadata"))
			return reject_item(d, x, "has an unknown class");
		else if (add_tensor(d, x, node))
			return -1;
	}
	return 0;
}

/* ---- where boxes are stored -------------------------------------------------------- */

/* Returns the item that a text names, or NULL. Caches it: many entries may share a long text. */
static const struct torch_item *find_item(struct dcp *d, uint32_t node)
{
	size_t n;
	const char *name = pickle_text(&d->tree, node, &n);
	int64_t low = 0, high = name && !memchr(name, 0, n) ? d->f->n : 0;
	if (d->item_of[node])
		return &d->f->items[d->item_of[node] - 1];
	while (low < high) {
		int64_t middle = low + (high - low) / 2;
		const struct torch_item *x = &d->f->items[middle];
		int order = strncmp(x->name, name, n);
		order = order ? order : x->name[n] != '\0';
		if (!order) {
			d->item_of[node] = (uint32_t)middle + 1;
			return x;
		}
		if (order > 0)
			high = middle;
		else
			low = middle + 1;
	}
	return NULL;
}

/* Returns the box of a tensor that begins at an index; NULL if none does. */
static struct chunk *find_box(
	const struct dcp *d, const struct torch_item *t, const int64_t *begin)
{
	const struct torch_parts *p = d->f->parts;
	int64_t low = t->first, high = t->first + t->n_chunks;
	while (low < high) {
		int64_t middle = low + (high - low) / 2;
		const int64_t *at = p->boxes + p->chunks[middle].box;
		int k = 0;
		while (k < t->ndim && at[k] == begin[k])
			k++;
		if (k == t->ndim)
			return &p->chunks[middle];
		if (at[k] > begin[k])
			high = middle;
		else
			low = middle + 1;
	}
	return NULL;
}

/* Sets the file, offset and length of *c from a _StorageInfo. Rejects compressed items. */
static int read_storage_info(struct dcp *d, uint32_t info, struct chunk *c)
{
	uint32_t transforms = get_field(d, info, "transform_descriptors");
	enum pickle_kind kind = pickle_kind(&d->tree, transforms);
	if (!is_object(d, info, "_StorageInfo"))
		return reject(d, "invalid storage_data");
	if (kind != PICKLE_NONE && !(kind == PICKLE_LIST && !d->tree.nodes[transforms].n))
		return err_set(d->e, EX_UNAVAILABLE,
			"%s: items are transformed (e.g. compressed), which is not supported",
			d->name);
	if (pickle_int(&d->tree, get_field(d, info, "offset"), &c->at) ||
		pickle_int(&d->tree, get_field(d, info, "length"), &c->n_bytes) ||
		c->at < 0 || c->n_bytes < 0 || c->n_bytes > INT64_MAX - c->at)
		return reject(d, "invalid offset or length of an item");
	return intern_file(d, get_field(d, info, "relative_path"), &c->file);
}

/* Finds the chunk that a MetadataIndex names, and sets where it is stored. */
static int read_storage_entry(struct dcp *d, uint32_t index, uint32_t info)
{
	int64_t begin[TORCH_MAX_DIMS];
	if (!is_object(d, index, "MetadataIndex"))
		return reject(d, "invalid name of a stored item");
	const struct torch_item *x = find_item(d, get_field(d, index, "fqn"));
	if (!x)
		return reject(d, "storage_data names an unknown item");
	uint32_t offset = get_field(d, index, "offset");
	if (x->kind == TORCH_TENSOR && read_size(d, offset, x->ndim, begin) < 0)
		return reject_item(d, x, "has an invalid offset");
	struct chunk *c = find_box(d, x, begin);
	return c ? read_storage_info(d, info, c) : 0; /* (empty boxes were skipped) */
}

/* Sets where all chunks are stored; fails if one is missing from storage_data. */
static int read_storage_data(struct dcp *d, uint32_t dict)
{
	struct pickle_each it;
	uint32_t index, info;
	if (pickle_kind(&d->tree, dict) != PICKLE_DICT)
		return reject(d, "storage_data is missing");
	d->item_of = xcalloc(d->tree.n_nodes, sizeof(*d->item_of));
	pickle_begin(&it, &d->tree, dict);
	while (pickle_next(&it, &index) && pickle_next(&it, &info))
		if (read_storage_entry(d, index, info))
			return -1;
	for (int64_t i = 0; i < d->f->n; i++) {
		const struct torch_item *x = &d->f->items[i];
		for (int64_t k = x->first; k < x->first + x->n_chunks; k++)
			if (d->f->parts->chunks[k].file < 0)
				return reject_item(d, x, "is not in storage_data");
	}
	return 0;
}

/* Megatron-core 0.16 has the state common to all ranks in a file of torch.save(). It becomes an
 * item, as Megatron-LM of 2026 has it. */
static const char common_file[] = "common.pt", common_item[] = "common_state/common.pt";

/* Appends the item of the common state, if its file exists; sets *size to its bytes, or -1. */
static int add_common(struct dcp *d, int64_t *size)
{
	struct stat st;
	scoped_ptr char *path = text_printf("%s/%s", d->dir, common_file);
	*size = stat(path, &st) || !S_ISREG(st.st_mode) ? -1 : (int64_t)st.st_size;
	if (*size < 0)
		return 0;
	items_grant(d->f, *size);
	if (!items_add(d->f, common_item, strlen(common_item), d->e))
		return -1;
	items_add_chunk(d->f, no_dims, no_dims);
	return 0;
}

/* Sets where the common state is stored. */
static void place_common(struct dcp *d, int64_t size)
{
	scoped_ptr char *path = text_printf("%s/%s", d->dir, common_file);
	for (int64_t i = 0; i < d->f->n && size >= 0; i++) {
		const struct torch_item *x = &d->f->items[i];
		if (strcmp(x->name, common_item) != 0 || x->n_chunks != 1)
			continue;
		struct chunk *c = &d->f->parts->chunks[x->first];
		c->file = items_add_file(d->f, path);
		c->at = 0;
		c->n_bytes = size;
	}
}

/* Appends all items of the parsed .metadata, checks them, and sets where chunks are stored. */
static int add_metadata(struct dcp *d)
{
	int64_t common;
	if (!is_object(d, d->tree.root, "Metadata"))
		return reject(d, "not a Metadata object");
	if (add_items(d, get_field(d, d->tree.root, "state_dict_metadata")) ||
		add_common(d, &common) || items_finish(d->f, d->e))
		return -1;
	place_common(d, common);
	return read_storage_data(d, get_field(d, d->tree.root, "storage_data"));
}

/* Parses the .metadata file into d->tree. Adds its size to d->n_bytes and to the memory budget. */
static int parse_metadata(struct dcp *d)
{
	struct stat st;
	int fd = open(d->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc = -1;
	if (fd < 0 || fstat(fd, &st)) {
		err_set(d->e, EX_IOERR, "%s: %s", d->name, strerror(errno));
	} else if (!S_ISREG(st.st_mode)) {
		reject(d, "not a regular file");
	} else if (!st.st_size) {
		reject(d, "the file is empty");
	} else {
		const struct pickle_bytes b = {.n = (size_t)st.st_size, .fd = fd};
		d->n_bytes += st.st_size;
		items_grant(d->f, st.st_size);
		rc = pickle_parse(&d->tree, &b, d->name, d->e);
	}
	if (fd >= 0)
		close(fd);
	return rc;
}

static bool dcp_matches(const char *path)
{
	return directory_has_file(path, ".metadata");
}

/* Appends the items of a directory. *n_bytes: size of all .metadata files so far. */
static int add_directory(
	struct torch_file *f, const char *dir, int64_t *n_bytes, struct err *e)
{
	scoped_ptr char *name = text_printf("%s/.metadata", dir);
	struct dcp d = {.f = f, .dir = dir, .name = name, .n_bytes = *n_bytes, .e = e};
	int rc = parse_metadata(&d);
	if (!rc) {
		rc = add_metadata(&d);
		pickle_release(&d.tree);
	}
	*n_bytes = d.n_bytes;
	free(d.slots);
	free(d.item_of);
	return rc;
}

static int dcp_open(struct torch_file *f, struct err *e)
{
	int64_t n_bytes = 0;
	return add_directory(f, f->path, &n_bytes, e);
}

const struct container container_dcp = {
	.many_archives = true, .matches = dcp_matches, .open = dcp_open};

/* ---- accelerate with FSDP: a directory for the model and one for the optimizer -------------- */

static const char *const pair_dirs[] = {"pytorch_model_fsdp_0", "optimizer_0"};

static bool dcp_pair_matches(const char *path)
{
	scoped_ptr char *model = text_printf("%s/.metadata", pair_dirs[0]);
	return directory_has_file(path, model);
}

/* Appends the items of the model's directory, then of the optimizer's directory if it exists. */
static int dcp_pair_open(struct torch_file *f, struct err *e)
{
	int64_t n_bytes = 0;
	int rc = 0;
	for (size_t i = 0; i < ARRAY_LEN(pair_dirs) && !rc; i++) {
		scoped_ptr char *dir = text_printf("%s/%s", f->path, pair_dirs[i]);
		if (!i || directory_has_file(dir, ".metadata"))
			rc = add_directory(f, dir, &n_bytes, e);
	}
	return rc;
}

const struct container container_dcp_pair = {
	.many_archives = true, .matches = dcp_pair_matches, .open = dcp_pair_open};
