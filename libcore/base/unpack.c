/* Reading compressed files. */
#include "base/unpack.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { CHUNK = 1 << 18 };

struct unpacked;
typedef int64_t read_fn(struct unpacked *u, char *to, int64_t n, struct err *e);

struct unpacked {
	const char *name;
	int fd;
	int64_t done; /* bytes read */
	int64_t least; /* bytes that it must have: the size when it was opened; 0 for a stream */
	char chunk[CHUNK]; /* compressed bytes, or the first bytes of a plain file */
	size_t at, n;
	read_fn *read;
	bool in_frame; /* the end of the compressed data has not been read */
	bool pending;  /* there may be more output without more input */
	z_stream gzip;
	ZSTD_DStream *zstd;
};

static int64_t raw_read(struct unpacked *u, char *to, int64_t n, struct err *e)
{
	ssize_t got = read_some(u->fd, to, (size_t)n);
	if (got < 0)
		return err_errno(e, u->name);
	if (!got && n && u->done < u->least)
		return err_set(
			e, EX_IOERR, "%s became shorter while it was read", u->name);
	u->done += got;
	return got;
}

static int64_t plain_read(struct unpacked *u, char *to, int64_t n, struct err *e)
{
	size_t kept = u->n - u->at;
	if (!kept)
		return raw_read(u, to, n, e);
	kept = (size_t)min64((int64_t)kept, n);
	memcpy(to, u->chunk + u->at, kept);
	u->at += kept;
	return (int64_t)kept;
}

/* Reads more compressed bytes if none are left. Returns 1; 0: end of file; -1: error. */
static int refill(struct unpacked *u, struct err *e)
{
	if (u->at < u->n)
		return 1;
	int64_t got = raw_read(u, u->chunk, CHUNK, e);
	if (got < 0)
		return -1;
	u->at = 0;
	u->n = (size_t)got;
	if (!got && u->in_frame)
		return err_set(e, EX_DATAERR,
			"%s: the compressed data end too early; the file is truncated",
			u->name);
	return got > 0;
}

static int damaged(const struct unpacked *u, const char *why, struct err *e)
{
	return err_set(e, EX_DATAERR, "%s: the compressed data are damaged: %s", u->name,
		why ? why : "unknown");
}

static int64_t gzip_read(struct unpacked *u, char *to, int64_t n, struct err *e)
{
	z_stream *z = &u->gzip;
	z->next_out = (Bytef *)to;
	z->avail_out = (uInt)n;
	while (z->avail_out == (uInt)n) {
		int more = u->pending ? 1 : refill(u, e);
		if (more <= 0)
			return more;
		if (!u->in_frame && u->chunk[u->at] == 0) { /* padding */
			u->at++;
			continue;
		}
		if (!u->in_frame && inflateReset(z) != Z_OK)
			return damaged(u, z->msg, e);
		u->in_frame = true;
		z->next_in = (Bytef *)u->chunk + u->at;
		z->avail_in = (uInt)(u->n - u->at);
		int rc = inflate(z, Z_NO_FLUSH);
		u->at = u->n - z->avail_in;
		u->pending = !z->avail_out && rc != Z_STREAM_END;
		if (rc == Z_STREAM_END)
			u->in_frame = false;
		else if (rc != Z_OK && rc != Z_BUF_ERROR)
			return damaged(u, z->msg, e);
	}
	return n - (int64_t)z->avail_out;
}

static int64_t zstd_read(struct unpacked *u, char *to, int64_t n, struct err *e)
{
	ZSTD_outBuffer out = {to, (size_t)n, 0};
	while (!out.pos) {
		int more = u->pending ? 1 : refill(u, e);
		if (more <= 0)
			return more;
		ZSTD_inBuffer from = {u->chunk, u->n, u->at};
		size_t rc = ZSTD_decompressStream(u->zstd, &out, &from);
		u->at = from.pos;
		if (ZSTD_isError(rc))
			return damaged(u, ZSTD_getErrorName(rc), e);
		u->in_frame = rc != 0;
		u->pending = rc && out.pos == out.size;
	}
	return (int64_t)out.pos;
}

static const char gzip[] = {0x1f, (char)0x8b},
		  zstd[] = {0x28, (char)0xb5, 0x2f, (char)0xfd};

static bool begins(const char *first, size_t n, const char *with, size_t length)
{
	return n >= length && !memcmp(first, with, length);
}

bool is_packed(const char *first, size_t n)
{
	return begins(first, n, gzip, sizeof(gzip)) ||
	       begins(first, n, zstd, sizeof(zstd));
}

/* Chooses the reader by the first bytes of the file. */
static void choose_reader(struct unpacked *u, bool decompress)
{
	enum { GZIP_WINDOW = 15 + 16 };
	bool ok = true;
	u->read = plain_read;
	if (decompress && begins(u->chunk, u->n, gzip, sizeof(gzip))) {
		u->read = gzip_read;
		ok = inflateInit2(&u->gzip, GZIP_WINDOW) == Z_OK;
	} else if (decompress && begins(u->chunk, u->n, zstd, sizeof(zstd))) {
		u->read = zstd_read;
		u->zstd = ZSTD_createDStream();
		ok = u->zstd;
	}
	if (!ok)
		die(EX_FAILED, "out of memory for decompression");
}

struct unpacked *unpacked_open(
	int fd, const char *name, bool decompress, int64_t least, struct err *e)
{
	struct unpacked *u = xcalloc(1, sizeof(*u));
	int64_t got = 1;
	u->fd = fd;
	u->name = name;
	u->least = least;
	while (u->n < FOREIGN_BYTES && got > 0) {
		got = raw_read(u, u->chunk + u->n, CHUNK - (int64_t)u->n, e);
		u->n += got > 0 ? (size_t)got : 0;
	}
	if (got < 0) {
		free(u);
		return NULL;
	}
	choose_reader(u, decompress);
	return u;
}

const char *unpacked_first(const struct unpacked *u, size_t *n)
{
	*n = u->n;
	return u->chunk;
}

int64_t unpacked_read(struct unpacked *u, char *to, int64_t n, struct err *e)
{
	return u->read(u, to, min64(n, 1 << 30), e);
}

int64_t unpacked_done(const struct unpacked *u)
{
	return u->done - (int64_t)(u->n - u->at);
}

void unpacked_close(struct unpacked *u)
{
	if (!u)
		return;
	if (u->read == gzip_read)
		inflateEnd(&u->gzip);
	ZSTD_freeDStream(u->zstd);
	free(u);
}

static int copy_unpacked(struct unpacked *u, int to, int64_t max_bytes, struct err *e)
{
	scoped_ptr char *piece = xmalloc(CHUNK);
	int64_t n, total = 0;
	while ((n = unpacked_read(u, piece, CHUNK, e)) > 0) {
		total += n;
		if (total > max_bytes)
			return err_set(e, EX_DATAERR,
				"%s: larger than %lld bytes after decompression, the limit for such a "
				"file; decompress it first",
				u->name, (long long)max_bytes);
		if (write_all(to, piece, (size_t)n))
			return err_set(e, EX_IOERR,
				"%s, decompressed to a file in %s: %s", u->name,
				file_temporary_directory(), strerror(errno));
	}
	return n < 0 ? -1 : 0;
}

int file_unpack(int fd, const char *name, int64_t max_bytes, struct err *e)
{
	char path[4096];
	if (lseek(fd, 0, SEEK_SET))
		return err_errno(e, name);
	struct unpacked *u = unpacked_open(fd, name, true, 0, e);
	int to = u ? file_temporary(path, e) : -1, rc = to < 0 ? -1 : 0;
	if (to >= 0) {
		cleanup_remove(path);
		rc = copy_unpacked(u, to, max_bytes, e);
		if (!rc && lseek(to, 0, SEEK_SET))
			rc = err_errno(e, name);
	}
	unpacked_close(u);
	if (!rc)
		return to;
	if (to >= 0)
		close(to);
	return -1;
}
