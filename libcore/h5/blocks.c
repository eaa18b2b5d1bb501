/* Large datasets with block checksums, written and read without HDF5. */
#include "base/file.h"
#include "h5/h5_internal.h"

#include <errno.h>

static int set_checksum_path(const struct h5_blocks *b, char path[static 160])
{
	return snprintf(path, 160, "/xxh3%s", b->path) < 160 ? 0 : -1;
}

static const struct h5_field block_fields[] = {
	{"block_rows", H5_I64, offsetof(struct h5_blocks, block_rows), false,
		"rows of the dataset under one checksum"},
	{0},
};

/* Sets the shape, and the number and size of rows. */
static void set_block_shape(struct h5_blocks *b, int ndim, const int64_t *dims)
{
	b->ndim = ndim;
	memcpy(b->dims, dims, (size_t)ndim * sizeof(*dims));
	b->rows = ndim ? dims[0] : 1;
	b->row_bytes = (int64_t)h5_type_bytes(b->type);
	for (int i = 1; i < ndim; i++)
		b->row_bytes *= dims[i];
}

int h5_blocks_reserve(struct h5 *f, const char *path, enum h5_type t, int ndim,
	const int64_t *dims, struct h5_blocks *b, struct err *e)
{
	*b = (struct h5_blocks){.type = t, .offset = -1};
	snprintf(b->path, sizeof(b->path), "%s", path);
	set_block_shape(b, ndim, dims);
	b->block_rows = max64(1, H5_BLOCK_BYTES / max64(1, b->row_bytes));
	b->n_blocks = ceil_div(b->rows, b->block_rows);
	b->xxh3 = xcalloc((size_t)b->n_blocks, sizeof(*b->xxh3));
	hid_t d = h5_create_dataset(f, path, h5_on_disk(t), ndim, dims, true, e);
	if (d < 0)
		return -1;
	haddr_t at = H5Dget_offset(d);
	int rc = h5_object_write(f, d, path, block_fields, b, e);
	if (H5Dclose(d) < 0 && !rc)
		rc = h5_write_error(f, e, "%s", path);
	if (!rc && at == HADDR_UNDEF && b->rows)
		return h5_error(f, e, EX_IOERR, "%s has no offset in the file", b->path);
	b->offset = at == HADDR_UNDEF ? -1 : (int64_t)at;
	return rc;
}

int h5_blocks_finish(struct h5 *f, const struct h5_blocks *b, struct err *e)
{
	char path[160];
	if (set_checksum_path(b, path))
		return h5_error(f, e, EX_IOERR, "%s: the name is too long", b->path);
	return h5_put(f, path, H5_U64, 1, &b->n_blocks, b->xxh3, e);
}

int h5_blocks_open(struct h5 *f, const char *path, struct h5_blocks *b, struct err *e)
{
	struct h5_info info;
	char sums[160];
	*b = (struct h5_blocks){0};
	snprintf(b->path, sizeof(b->path), "%s", path);
	hid_t d = h5_open_dataset(f, path, e);
	if (d < 0)
		return -1;
	int rc = h5_read_info(f, d, path, &info, e) ||
		 h5_object_read(f, d, path, block_fields, b, e);
	H5Dclose(d);
	if (rc)
		return -1;
	b->type = info.type;
	b->offset = info.offset;
	set_block_shape(b, info.ndim, info.dims);
	if (info.n && b->offset < 0)
		return h5_error(f, e, EX_DATAERR,
			"dataset %s is %s; it must be contiguous", path,
			info.chunked ? "chunked" : "not allocated");
	if (b->block_rows < 1)
		return h5_error(f, e, EX_DATAERR, "dataset %s is damaged", path);
	b->block_rows = min64(b->block_rows, max64(1, b->rows));
	b->n_blocks = ceil_div(b->rows, b->block_rows);
	if (set_checksum_path(b, sums))
		return h5_error(f, e, EX_DATAERR, "%s: the name is too long", b->path);
	return h5_get(
		f, sums, H5_U64, b->n_blocks, b->n_blocks, (void **)&b->xxh3, NULL, e);
}

void h5_blocks_free(struct h5_blocks *b)
{
	free(b->xxh3);
	*b = (struct h5_blocks){0};
}

int64_t h5_block_bytes(const struct h5_blocks *b, int64_t block)
{
	return min64(b->block_rows, b->rows - block * b->block_rows) * b->row_bytes;
}

int h5_block_check(
	const struct h5_blocks *b, int64_t block, const void *data, struct err *e)
{
	if (hash_bytes(data, (size_t)h5_block_bytes(b, block), 0) == b->xxh3[block])
		return 0;
	return err_set(e, EX_DATAERR,
		"%s: rows %lld to %lld do not match their checksum: the file is damaged",
		b->path, (long long)(block * b->block_rows),
		(long long)(min64((block + 1) * b->block_rows, b->rows) - 1));
}

int h5_block_read(
	const struct h5_blocks *b, int fd, int64_t block, void *out, struct err *e)
{
	int64_t at = b->offset + block * b->block_rows * b->row_bytes;
	errno = 0;
	if (pread_all(fd, out, (size_t)h5_block_bytes(b, block), at))
		return err_set(e, EX_IOERR, "%s: %s", b->path,
			errno ? strerror(errno) : "the file ends too early");
	return h5_block_check(b, block, out, e);
}

int h5_block_check_written(const struct h5_blocks *b, int fd, int64_t block, void *piece,
	const char *name, struct err *e)
{
	if (!h5_block_read(b, fd, block, piece, e))
		return 0;
	e->code = EX_IOERR;
	return err_prefix(e, "%s, read back after writing: ", name);
}

int h5_blocks_check_written(
	const struct h5_blocks *b, int fd, const char *name, struct err *e)
{
	int rc = 0;
	scoped_ptr char *piece = xmalloc((size_t)(b->block_rows * b->row_bytes));
	for (int64_t i = 0; i < b->n_blocks && !rc; i++)
		rc = h5_block_check_written(b, fd, i, piece, name, e);
	return rc;
}
