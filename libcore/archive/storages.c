/* Tensors in the storages of several torch.save() archives. There may be thousands of archives, so
 * only their zip directories stay in memory, not their trees. A storage may be a flat buffer with
 * parts of many tensors. A part may begin and end within a row, so it becomes several boxes. The
 * checksum of a storage is verified once, when its first element is read. */
#include "archive/archive_internal.h"

#include <sys/stat.h>

void storages_add_files(struct torch_file *f, const struct strs *paths)
{
	for (int64_t i = 0; i < paths->n; i++)
		items_add_file(f, paths->v[i]);
	f->parts->zips = xcalloc((size_t)paths->n + 1, sizeof(*f->parts->zips));
}

int storages_open(struct torch_file *f, int32_t file, struct archive *a, struct err *e)
{
	struct stat st;
	int fd = items_fd(f, file, e);
	if (fd < 0)
		return -1;
	int64_t n_bytes = fstat(fd, &st) || !S_ISREG(st.st_mode) ? 0 : st.st_size;
	items_grant(f, n_bytes);
	return archive_open(a, fd, f->parts->files[file], 0, n_bytes, e);
}

void storages_close(struct torch_file *f, int32_t file, struct archive *a)
{
	f->parts->zips[file] = a->zip;
	a->zip = (struct zip){.fd = -1};
	archive_close(a);
}

int storages_describe(const struct archive *a, uint32_t node, struct tensor_info *d,
	struct buffer *b, struct err *e)
{
	int64_t at;
	int rc = describe_tensor(&a->tree, node, d, e);
	if (rc)
		return rc;
	const struct zip_entry *x = find_storage(a, d, e);
	if (!x || zip_locate(&a->zip, x, &at, e))
		return -1;
	b->entry = (uint32_t)(x - a->zip.entries);
	b->dtype = d->dtype;
	b->at = at + d->offset * dtype_size(d->dtype);
	return 0;
}

int storages_add_tensor(struct torch_file *f, int32_t file, const struct archive *a,
	uint32_t node, const char *name, struct err *e)
{
	struct tensor_info d;
	struct buffer b = {.file = file};
	int rc = storages_describe(a, node, &d, &b, e);
	if (rc)
		return rc;
	if (!items_add_tensor(f, name, strlen(name), &d, e))
		return -1;
	struct chunk *c = items_add_chunk(f, no_dims, d.dims);
	c->file = file;
	c->node = b.entry;
	c->at = b.at;
	c->place = make_place(&d, b.at - d.offset * dtype_size(d.dtype));
	return 0;
}

int storages_describe_buffer(const struct torch_file *f, int32_t file,
	const struct archive *a, uint32_t node, struct buffer *b, struct err *e)
{
	struct tensor_info d;
	*b = (struct buffer){.file = file};
	int rc = storages_describe(a, node, &d, b, e);
	if (rc < 0)
		return -1;
	if (rc || d.ndim != 1 || (d.dims[0] > 1 && d.stride[0] != 1))
		return err_set(e, EX_DATAERR,
			"%s: a tensor is not a flat buffer: the file is damaged",
			f->parts->files[file]);
	b->n = d.dims[0];
	return 0;
}

/* Chooses a box of one index in each dimension before k, a range of dimension k, and all of later
 * dimensions. */
int64_t storages_next_box(int ndim, const int64_t *dims, int64_t first, int64_t n,
	int64_t *begin, int64_t *sizes)
{
	int64_t size[TORCH_MAX_DIMS], inner = 1; /* size[i]: elements per index of i */
	int k = 0;
	for (int i = ndim - 1; i >= 0; i--) {
		size[i] = inner;
		begin[i] = first / inner % dims[i];
		sizes[i] = dims[i];
		inner *= dims[i];
	}
	if (!ndim)
		return 1;
	while (first % size[k] || n < size[k])
		sizes[k++] = 1;
	sizes[k] = min64(n / size[k], dims[k] - begin[k]);
	return sizes[k] * size[k];
}

void storages_add_range(struct torch_file *f, const struct buffer *b, int64_t from,
	int64_t first, int64_t n)
{
	int64_t begin[TORCH_MAX_DIMS], sizes[TORCH_MAX_DIMS];
	const struct torch_item *t = &f->items[f->n - 1];
	while (n) {
		int64_t n_box =
			storages_next_box(t->ndim, t->dims, first, n, begin, sizes);
		struct chunk *c = items_add_chunk(f, begin, sizes);
		c->file = b->file;
		c->node = b->entry;
		c->at = b->at + from * dtype_size(b->dtype);
		from += n_box;
		first += n_box;
		n -= n_box;
	}
}

int storages_verify(struct torch_file *f, struct chunk *c, struct err *e)
{
	int64_t at;
	struct zip *z = &f->parts->zips[c->file];
	struct zip_entry *x = z->n ? &z->entries[c->node] : NULL;
	if (z->n && !x->is_verified) {
		z->fd = items_fd(f, c->file, e);
		if (z->fd < 0 || zip_verify(z, x, &at, e))
			return -1;
	}
	if (!c->place)
		chunk_set_place(c, c->at);
	return 0;
}
