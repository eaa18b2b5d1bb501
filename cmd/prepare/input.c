/* Bytes of input files, and rows of tables. */
#include "base/unpack.h"
#include "prepare/pipeline.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

struct input {
	int fd;
	bool owns_fd; /* input_close() closes fd */
	struct unpacked *bytes;
	char first
		[FOREIGN_BYTES]; /* first decompressed bytes: [at, n) are returned first */
	int64_t at, n;
	struct table *table; /* NULL: not a table */
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

/* Copies the rest of an input, decompressed, to an unnamed file. Returns its descriptor, or -1. */
static int copy_input(struct input *in, const char *name, struct err *e)
{
	enum { BUFFER_BYTES = 1 << 18 };
	char path[4096];
	scoped_ptr char *buffer = xmalloc(BUFFER_BYTES);
	int fd = file_temporary(path, e);
	if (fd < 0)
		return err_prefix(e, "%s: ", name);
	cleanup_remove(path);
	int64_t n, total = 0, limit = file_spool_space(fd);
	while ((n = input_read(in, buffer, BUFFER_BYTES, e)) > 0 && total + n <= limit) {
		total += n;
		if (write_all(fd, buffer, (size_t)n)) {
			n = file_reject_spool(name, limit, strerror(errno), e);
			break;
		}
	}
	if (n > 0)
		n = file_reject_spool(name, limit, NULL, e);
	if (!n && !lseek(fd, 0, SEEK_SET))
		return fd;
	close(fd);
	return -1;
}

/* Starts to read a table: a regular file at its beginning, an Arrow stream in a pipe, or a copy. */
static int open_table(struct input *in, struct input_file *f, const struct prepare *p,
	enum table_kind kind, bool is_plain, struct err *e)
{
	struct stat st;
	scoped_strs columns = {0};
	struct table_source s = {.name = f->name, .kind = kind, .fd = in->fd};
	bool is_regular = !fstat(in->fd, &st) && S_ISREG(st.st_mode);
	bool is_copy = !is_plain || (is_regular && f->begin) ||
		       (!is_regular && kind != TABLE_ARROW_STREAM);
	if (!is_copy && !is_regular) {
		s.kind = TABLE_ARROW_PIPE;
		s.first = unpacked_first(in->bytes, &s.n_first);
	} else if (is_copy) {
		s.fd = copy_input(in, f->name, e);
	}
	if (s.fd < 0 || (s.kind != TABLE_ARROW_PIPE && lseek(s.fd, 0, SEEK_SET) < 0))
		return s.fd < 0 ? -1 : err_errno(e, f->name);
	record_columns(p, &columns);
	in->table = table_open(&s, p->record == RECORD_TEXT, &columns, e);
	if (is_copy)
		close(s.fd);
	f->is_table = true;
	f->is_jsonl = false;
	return in->table ? 0 : -1;
}

/* Detects a table by the first bytes, after decompression, and opens it. */
static int detect_table(
	struct input *in, struct input_file *f, const struct prepare *p, struct err *e)
{
	size_t n;
	const char *first = unpacked_first(in->bytes, &n);
	bool is_plain = p->as_is || !is_compressed(first, n);
	while (!is_plain && in->n < FOREIGN_BYTES) {
		int64_t got = unpacked_read(
			in->bytes, in->first + in->n, FOREIGN_BYTES - in->n, e);
		if (got < 0)
			return -1;
		if (!got)
			break;
		in->n += got;
	}
	enum table_kind kind = is_plain ? table_detect(first, n)
					: table_detect(in->first, (size_t)in->n);
	return kind == TABLE_NONE ? 0 : open_table(in, f, p, kind, is_plain, e);
}

struct input *input_open(struct input_file *f, const struct prepare *p, struct err *e)
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
		in->bytes = unpacked_open(in->fd, f->name, !p->as_is, min_bytes, e);
	bool may_be_table = p->format == FORMAT_AUTO;
	if (!in->bytes || (may_be_table && detect_table(in, f, p, e)) ||
		(!in->table && check_format(in, f, e))) {
		input_close(in);
		return NULL;
	}
	return in;
}

struct table *input_table(struct input *in)
{
	return in->table;
}

int64_t input_read(struct input *in, char *to, int64_t n, struct err *e)
{
	int64_t kept = min64(in->n - in->at, n);
	if (!kept)
		return unpacked_read(in->bytes, to, n, e);
	memcpy(to, in->first + in->at, (size_t)kept);
	in->at += kept;
	return kept;
}

int64_t input_bytes_read(const struct input *in)
{
	return in->table ? table_bytes_read(in->table) : unpacked_bytes_read(in->bytes);
}

void input_close(struct input *in)
{
	if (!in)
		return;
	table_close(in->table);
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
