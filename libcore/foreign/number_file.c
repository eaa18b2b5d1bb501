/* Files of fp32 or 16-bit elements. */
#include "foreign/foreign_internal.h"

#include <errno.h>
#include <unistd.h>

int read_floats(int fd, const char *path, enum dtype dtype, int64_t at, int64_t n,
	float *out, struct err *e)
{
	struct device d;
	size_t n_bytes = (size_t)(n * dtype_bytes(dtype));
	if (dtype == DT_F32)
		return file_read_at(fd, path, out, n_bytes, at, e);
	scoped_ptr uint16_t *half = xmalloc(n_bytes + 1);
	int rc = file_read_at(fd, path, half, n_bytes, at, e);
	device_open_cpu(&d, 0);
	if (!rc)
		d.k->widen(&d, mat(out, 1, n), half, dtype);
	return rc;
}

int number_file_open(
	struct number_file *f, const char *path, enum dtype dtype, struct err *e)
{
	*f = (struct number_file){.path = path, .dtype = dtype};
	if (durable_begin_own(&f->d, path, e))
		return -1;
	device_open_cpu(&f->device, 0);
	f->hash = hash_open();
	f->fd = durable_open(&f->d);
	return f->fd < 0
		       ? number_file_commit(f,
				 err_set(e, EX_IOERR, "%s: %s", path, strerror(errno)), e)
		       : 0;
}

int number_file_append_bytes(
	struct number_file *f, const void *p, int64_t n_bytes, struct err *e)
{
	hash_add(f->hash, p, (size_t)n_bytes);
	if (write_all(f->fd, p, (size_t)n_bytes))
		return err_set(e, EX_IOERR, "%s: %s", f->path, strerror(errno));
	return 0;
}

int number_file_append(struct number_file *f, const float *x, int64_t n, struct err *e)
{
	int64_t n_bytes = n * dtype_bytes(f->dtype);
	f->n += n;
	if (f->dtype == DT_F32)
		return number_file_append_bytes(f, x, n_bytes, e);
	f->half = xrealloc(f->half, (size_t)n_bytes + 1);
	f->device.k->narrow(&f->device, f->half, mat((float *)x, 1, n), f->dtype);
	return number_file_append_bytes(f, f->half, n_bytes, e);
}

/* Reads and writes blocks of a few MiB. */
int number_file_append_rows(struct number_file *f, const struct ckpt_view *v,
	const struct ckpt_rows *rows, struct err *e)
{
	enum { BLOCK_FLOATS = 1 << 20 };
	const struct ckpt_tensor *t = &v->tensors[rows->tensor];
	int64_t width = ckpt_row_size(t), end = rows->row + rows->n;
	int64_t step = min64(rows->n, max64(1, BLOCK_FLOATS / width));
	scoped_ptr float *x = xmalloc((size_t)(step * width) * sizeof(*x));
	struct ckpt_rows part = *rows;
	int rc = 0;
	for (int64_t r = rows->row; r < end && !rc; r += step) {
		int64_t n = min64(step, end - r);
		part.row = r;
		part.n = max64(0, min64(n, t->dims[0] - r));
		memset(x, 0, (size_t)(n * width) * sizeof(*x));
		rc = (part.n && v->read(v, &part, x, e)) ||
		     number_file_append(f, x, n * width, e);
	}
	return rc ? -1 : 0;
}

uint64_t number_file_hash(struct number_file *f)
{
	uint64_t hash = hash_close(f->hash);
	f->hash = NULL;
	return hash;
}

int number_file_patch(
	struct number_file *f, const void *p, int64_t n_bytes, int64_t at, struct err *e)
{
	if (pwrite_all(f->fd, p, (size_t)n_bytes, at))
		return err_set(e, EX_IOERR, "%s: %s", f->path, strerror(errno));
	return 0;
}

int number_file_close(struct number_file *f, int rc, struct err *e)
{
	if (!rc && fsync(f->fd))
		rc = err_set(e, EX_IOERR, "%s: %s", f->path, strerror(errno));
	if (f->hash)
		hash_close(f->hash);
	if (f->fd >= 0 && close(f->fd) && !rc)
		rc = err_set(e, EX_IOERR, "%s: %s", f->path, strerror(errno));
	free(f->half);
	if (rc)
		durable_abort(&f->d);
	return rc ? -1 : 0;
}

int number_file_commit(struct number_file *f, int rc, struct err *e)
{
	return number_file_close(f, rc, e) ? -1 : durable_commit(&f->d, e);
}
