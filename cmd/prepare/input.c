/* Bytes of input files. */
#include "prepare/pipeline.h"
#include "base/unpack.h"

#include <sys/stat.h>
#include <unistd.h>

struct input {
	int fd;
	bool own_fd;
	struct unpacked *bytes;
};

static int reject_shard(const char *name, struct err *e)
{
	return err_set(e, EX_DATAERR, "%s: is HDF5, as shards are, not text%s", name,
		advice_on(ADVICE_TOKENS));
}

/* Rejects files that are not text, by their first bytes. */
static int check_format(const struct input *in, const struct input_file *f, struct err *e)
{
	size_t n;
	const char *first = unpacked_first(in->bytes, &n);
	if (!f->given && h5_begins(first, n))
		return reject_shard(f->name, e);
	return !f->any_bytes && file_refuse_foreign(f->name, first, n, FOREIGN_TEXT, e)
		       ? -1
		       : 0;
}

struct input *input_open(struct input_file *f, bool decompress, struct err *e)
{
	struct input *in = xcalloc(1, sizeof(*in));
	in->own_fd = f->fd < 0;
	in->fd = in->own_fd ? file_open(f->path) : f->fd;
	struct stat st;
	int64_t least = 0;
	int rc = in->fd < 0 ? -1 : fstat(in->fd, &st);
	if (!rc && !in->own_fd && !f->stream)
		rc = lseek(in->fd, f->begin, SEEK_SET) < 0 ? -1 : 0;
	if (!rc && S_ISREG(st.st_mode))
		least = (int64_t)st.st_size - (in->own_fd ? 0 : f->begin);
	if (rc)
		err_errno(e, f->name);
	else
		in->bytes = unpacked_open(in->fd, f->name, decompress, least, e);
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

int64_t input_done(const struct input *in)
{
	return unpacked_done(in->bytes);
}

void input_close(struct input *in)
{
	if (!in)
		return;
	unpacked_close(in->bytes);
	if (in->own_fd && in->fd >= 0)
		close(in->fd);
	free(in);
}

int input_keep(struct input_file *f, struct err *e)
{
	int from = f->fd >= 0 ? f->fd : file_open(f->path);
	if (from < 0)
		return err_errno(e, f->name);
	f->fd = file_keep(from, f->name, INT64_MAX, e);
	close(from);
	if (f->fd < 0)
		return -1;
	f->stream = false;
	f->begin = 0;
	f->end = lseek(f->fd, 0, SEEK_END);
	return 0;
}
