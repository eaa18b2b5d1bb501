/* Bytes of files, decompressed. */
#include "prepare/pipeline.h"

#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { CHUNK = 1 << 18, MAGIC_BYTES = FOREIGN_BYTES };

struct input;
typedef int64_t read_fn(struct input *in, char *to, int64_t n, struct err *e);

struct input {
	const char *name;
	int fd;
	bool own_fd;
	int64_t done;
	int64_t least; /* bytes that it must have: its size when it was opened; a stream: 0 */
	/* Compressed bytes, or the first bytes of a plain file. */
	char chunk[CHUNK];
	size_t at, n;
	read_fn *read;
	bool in_frame; /* the end of the compressed data is still to come */
	bool pending;  /* there may be more output without more input */
	z_stream gzip;
	ZSTD_DStream *zstd;
};

static int64_t raw_read(struct input *in, char *to, int64_t n, struct err *e)
{
	ssize_t got = read_some(in->fd, to, (size_t)n);
	if (got < 0)
		return err_errno(e, in->name);
	if (!got && n && in->done < in->least)
		return err_set(
			e, EX_IOERR, "%s became shorter while it was read", in->name);
	in->done += got;
	return got;
}

static int64_t plain_read(struct input *in, char *to, int64_t n, struct err *e)
{
	size_t kept = in->n - in->at;
	if (!kept)
		return raw_read(in, to, n, e);
	kept = (size_t)min64((int64_t)kept, n);
	memcpy(to, in->chunk + in->at, kept);
	in->at += kept;
	return (int64_t)kept;
}

/* More compressed bytes, if there are none left: 1, 0 at the end of the file, -1. */
static int refill(struct input *in, struct err *e)
{
	if (in->at < in->n)
		return 1;
	int64_t got = raw_read(in, in->chunk, CHUNK, e);
	if (got < 0)
		return -1;
	in->at = 0;
	in->n = (size_t)got;
	if (!got && in->in_frame)
		return err_set(e, EX_DATAERR,
			"%s: the compressed data end too early: the file is truncated",
			in->name);
	return got > 0;
}

static int damaged(const struct input *in, const char *why, struct err *e)
{
	return err_set(e, EX_DATAERR, "%s: the compressed data are damaged: %s", in->name,
		why ? why : "unknown");
}

static int64_t gzip_read(struct input *in, char *to, int64_t n, struct err *e)
{
	z_stream *z = &in->gzip;
	z->next_out = (Bytef *)to;
	z->avail_out = (uInt)n;
	while (z->avail_out == (uInt)n) {
		int more = in->pending ? 1 : refill(in, e);
		if (more <= 0)
			return more;
		if (!in->in_frame && in->chunk[in->at] == 0) { /* padding */
			in->at++;
			continue;
		}
		if (!in->in_frame && inflateReset(z) != Z_OK)
			return damaged(in, z->msg, e);
		in->in_frame = true;
		z->next_in = (Bytef *)in->chunk + in->at;
		z->avail_in = (uInt)(in->n - in->at);
		int rc = inflate(z, Z_NO_FLUSH);
		in->at = in->n - z->avail_in;
		in->pending = !z->avail_out && rc != Z_STREAM_END;
		if (rc == Z_STREAM_END)
			in->in_frame = false;
		else if (rc != Z_OK && rc != Z_BUF_ERROR)
			return damaged(in, z->msg, e);
	}
	return n - (int64_t)z->avail_out;
}

static int64_t zstd_read(struct input *in, char *to, int64_t n, struct err *e)
{
	ZSTD_outBuffer out = {to, (size_t)n, 0};
	while (!out.pos) {
		int more = in->pending ? 1 : refill(in, e);
		if (more <= 0)
			return more;
		ZSTD_inBuffer from = {in->chunk, in->n, in->at};
		size_t rc = ZSTD_decompressStream(in->zstd, &out, &from);
		in->at = from.pos;
		if (ZSTD_isError(rc))
			return damaged(in, ZSTD_getErrorName(rc), e);
		in->in_frame = rc != 0;
		in->pending = rc && out.pos == out.size;
	}
	return (int64_t)out.pos;
}

static int is_shard(const char *name, struct err *e)
{
	return err_set(e, EX_DATAERR, "%s: is HDF5, as shards are, and no text%s", name,
		advice_on(ADVICE_TOKENS));
}

/* Looks at the first bytes. */
static int begin(
	struct input *in, bool decompress, const struct input_file *f, struct err *e)
{
	static const char gzip[] = {0x1f, (char)0x8b},
			  zstd[] = {0x28, (char)0xb5, 0x2f, (char)0xfd};
	while (in->n < MAGIC_BYTES) {
		int64_t got = raw_read(in, in->chunk + in->n, CHUNK - (int64_t)in->n, e);
		if (got < 0)
			return -1;
		if (!got)
			break;
		in->n += (size_t)got;
	}
	in->read = plain_read;
	if (!f->given && h5_begins(in->chunk, in->n))
		return is_shard(in->name, e);
	if (!f->any_bytes &&
		file_refuse_foreign(in->name, in->chunk, in->n, FOREIGN_TEXT, e))
		return -1;
	if (decompress && in->n >= sizeof(gzip) &&
		!memcmp(in->chunk, gzip, sizeof(gzip))) {
		enum { GZIP_WINDOW = 15 + 16 };
		in->read = gzip_read;
		if (inflateInit2(&in->gzip, GZIP_WINDOW) != Z_OK)
			die(EX_FAILED, "out of memory for decompression");
	} else if (decompress && in->n >= sizeof(zstd) &&
		   !memcmp(in->chunk, zstd, sizeof(zstd))) {
		in->read = zstd_read;
		in->zstd = ZSTD_createDStream();
		if (!in->zstd)
			die(EX_FAILED, "out of memory for decompression");
	}
	return 0;
}

struct input *input_open(struct input_file *f, bool decompress, struct err *e)
{
	struct input *in = xcalloc(1, sizeof(*in));
	in->name = f->name;
	in->own_fd = f->fd < 0;
	in->fd = in->own_fd ? file_open(f->path) : f->fd;
	struct stat st;
	int rc = in->fd < 0 ? -1 : fstat(in->fd, &st);
	if (!rc && !in->own_fd && !f->stream)
		rc = lseek(in->fd, f->begin, SEEK_SET) < 0 ? -1 : 0;
	if (!rc && S_ISREG(st.st_mode))
		in->least = (int64_t)st.st_size - (in->own_fd ? 0 : f->begin);
	if (rc)
		err_errno(e, f->name);
	if (rc || begin(in, decompress, f, e)) {
		input_close(in);
		return NULL;
	}
	return in;
}

int64_t input_read(struct input *in, char *to, int64_t n, struct err *e)
{
	return in->read(in, to, min64(n, 1 << 30), e);
}

int64_t input_done(const struct input *in)
{
	return in->done - (int64_t)(in->n - in->at);
}

void input_close(struct input *in)
{
	if (!in)
		return;
	if (in->read == gzip_read)
		inflateEnd(&in->gzip);
	ZSTD_freeDStream(in->zstd);
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
