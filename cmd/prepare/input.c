/* Bytes of input files. */
#include "prepare/pipeline.h"
#include "base/unpack.h"

#include <sys/stat.h>
#include <unistd.h>

struct input {
	int fd;
	bool owns_fd; /* input_close() closes fd */
	struct unpacked *bytes;
};

static int reject_shard(const char *name, struct err *e)
{
	return err_set(e, EX_DATAERR, "%s: HDF5, such as a shard, not text%s", name,
		advice_on(ADVICE_TOKENS));
}

/* Rejects shards and binary files by their first bytes. */
static int check_format(const struct input *in, const struct input_file *f, struct err *e)
{
	size_t n;
	const char *first = unpacked_first(in->bytes, &n);
	if (!f->has_given_format && h5_has_signature(first, n))
		return reject_shard(f->name, e);
	return !f->accepts_any_bytes &&
			       file_reject_foreign(f->name, first, n, FOREIGN_TEXT, e)
		       ? -1
		       : 0;
}

struct input *input_open(struct input_file *f, bool decompress, struct err *e)
{
	struct input *in = xcalloc(1, sizeof(*in));
	in->owns_fd = f->fd < 0;
	in->fd = in->owns_fd ? file_open(f->path) : f->fd;
	struct stat st;
	int64_t min_bytes = 0;
	int rc = in->fd < 0 ? -1 : fstat(in->fd, &st);
	if (!rc && !in->owns_fd && !f->is_stream)
		rc = lseek(in->fd, f->begin, SEEK_SET) < 0 ? -1 : 0;
	if (!rc && S_ISREG(st.st_mode))
		min_bytes = (int64_t)st.st_size - (in->owns_fd ? 0 : f->begin);
	if (rc)
		err_errno(e, f->name);
	else
		in->bytes = unpacked_open(in->fd, f->name, decompress, min_bytes, e);
	if (!in->bytes || check_format(in, f, e)) {
		input_close(in);
		return NULL;
	}
	return in;
}

int64_t input_read(struct input *in, char *to, int64_t n, struct err *e)
{
	return unpacked_read(in->bytes, to, n, e);
}

int64_t input_bytes_read(const struct input *in)
{
	return unpacked_bytes_read(in->bytes);
}

void input_close(struct input *in)
{
	if (!in)
		return;
	unpacked_close(in->bytes);
	if (in->owns_fd && in->fd >= 0)
		close(in->fd);
	free(in);
}

int input_copy_stream(struct input_file *f, struct err *e)
{
	int from = f->fd >= 0 ? f->fd : file_open(f->path);
	if (from < 0)
		return err_errno(e, f->name);
	f->fd = file_copy_stream(from, f->name, INT64_MAX, e);
	close(from);
	if (f->fd < 0)
		return -1;
	f->is_stream = false;
	f->begin = 0;
	f->end = lseek(f->fd, 0, SEEK_END);
	return 0;
}
