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
	int64_t done;	   /* bytes read from the file */
	int64_t min_bytes; /* the size of the file when it was opened; 0 for a stream */
	char chunk[CHUNK]; /* compressed bytes, or the first bytes of a plain file */
	size_t at, n;	   /* bytes consumed, and bytes present, in `chunk` */
	read_fn *read;
	bool in_frame; /* the end of the compressed data has not been read */
	bool pending;  /* there may be more output without more input */
	z_stream gzip;
	ZSTD_DStream *zstd;
};

/* Reads up to n bytes of the file. Returns their number; 0: end; -1: error or truncated. */
static int64_t read_file_bytes(struct unpacked *u, char *to, int64_t n, struct err *e)
{
	ssize_t got = read_some(u->fd, to, (size_t)n);
	if (got < 0)
		return err_errno(e, u->name);
	if (!got && n && u->done < u->min_bytes)
		return err_set(
			e, EX_IOERR, "%s became shorter while it was read", u->name);
	u->done += got;
	return got;
}

/* Returns up to n bytes: first those read to detect the format; 0: end; -1 with *e set. */
static int64_t read_plain(struct unpacked *u, char *to, int64_t n, struct err *e)
{
	size_t kept = u->n - u->at;
	if (!kept)
		return read_file_bytes(u, to, n, e);
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
	int64_t got = read_file_bytes(u, u->chunk, CHUNK, e);
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

static int set_damage_error(const struct unpacked *u, const char *why, struct err *e)
{
	return err_set(e, EX_DATAERR, "%s: the compressed data are damaged: %s", u->name,
		why ? why : "unknown");
}

/* Decompresses up to n bytes of gzip members, skipping zeros. Returns their number, 0 or -1. */
static int64_t read_gzip(struct unpacked *u, char *to, int64_t n, struct err *e)
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
			return set_damage_error(u, z->msg, e);
		u->in_frame = true;
		z->next_in = (Bytef *)u->chunk + u->at;
		z->avail_in = (uInt)(u->n - u->at);
		int rc = inflate(z, Z_NO_FLUSH);
		u->at = u->n - z->avail_in;
		u->pending = !z->avail_out && rc != Z_STREAM_END;
		if (rc == Z_STREAM_END)
			u->in_frame = false;
		else if (rc != Z_OK && rc != Z_BUF_ERROR)
			return set_damage_error(u, z->msg, e);
	}
	return n - (int64_t)z->avail_out;
}

/* Decompresses up to n bytes of zstd frames. Returns their number; 0: end; -1 with *e set. */
static int64_t read_zstd(struct unpacked *u, char *to, int64_t n, struct err *e)
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
			return set_damage_error(u, ZSTD_getErrorName(rc), e);
		u->in_frame = rc != 0;
		u->pending = rc && out.pos == out.size;
	}
	return (int64_t)out.pos;
}

static const char gzip[] = {0x1f, (char)0x8b},
		  zstd[] = {0x28, (char)0xb5, 0x2f, (char)0xfd};

static bool begins_with(const char *first, size_t n, const char *prefix, size_t len)
{
	return n >= len && !memcmp(first, prefix, len);
}

bool is_compressed(const char *first, size_t n)
{
	return begins_with(first, n, gzip, sizeof(gzip)) ||
	       begins_with(first, n, zstd, sizeof(zstd));
}

/* Sets the reader by the first bytes of the file. Ends the program if memory is short. */
static void choose_reader(struct unpacked *u, bool decompress)
{
	enum { GZIP_WINDOW = 15 + 16 };
	bool ok = true;
	u->read = read_plain;
	if (decompress && begins_with(u->chunk, u->n, gzip, sizeof(gzip))) {
		u->read = read_gzip;
		ok = inflateInit2(&u->gzip, GZIP_WINDOW) == Z_OK;
	} else if (decompress && begins_with(u->chunk, u->n, zstd, sizeof(zstd))) {
		u->read = read_zstd;
		u->zstd = ZSTD_createDStream();
		ok = u->zstd;
	}
	if (!ok)
		die(EX_FAILED, "out of memory for decompression");
}

struct unpacked *unpacked_open(
	int fd, const char *name, bool decompress, int64_t min_bytes, struct err *e)
{
	struct unpacked *u = xcalloc(1, sizeof(*u));
	int64_t got = 1;
	u->fd = fd;
	u->name = name;
	u->min_bytes = min_bytes;
	while (u->n < FOREIGN_BYTES && got > 0) {
		got = read_file_bytes(u, u->chunk + u->n, CHUNK - (int64_t)u->n, e);
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

int64_t unpacked_bytes_read(const struct unpacked *u)
{
	return u->done - (int64_t)(u->n - u->at);
}

void unpacked_close(struct unpacked *u)
{
	if (!u)
		return;
	if (u->read == read_gzip)
		inflateEnd(&u->gzip);
	ZSTD_freeDStream(u->zstd);
	free(u);
}

/* Writes the whole decompressed file to a descriptor. Fails after max_bytes. */
static int copy_unpacked(struct unpacked *u, int to_fd, int64_t max_bytes, struct err *e)
{
	scoped_ptr char *buffer = xmalloc(CHUNK);
	int64_t n, total = 0;
	while ((n = unpacked_read(u, buffer, CHUNK, e)) > 0) {
		total += n;
		if (total > max_bytes)
			return err_set(e, EX_DATAERR,
				"%s: larger than %lld bytes after decompression, the limit for "
				"such a "
				"file; decompress it first",
				u->name, (long long)max_bytes);
		if (write_all(to_fd, buffer, (size_t)n))
			return err_set(e, EX_IOERR,
				"%s: cannot be decompressed to a file in %s: %s", u->name,
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
	int copy_fd = u ? file_temporary(path, e) : -1, rc = copy_fd < 0 ? -1 : 0;
	if (copy_fd >= 0) {
		cleanup_remove(path);
		rc = copy_unpacked(u, copy_fd, max_bytes, e);
		if (!rc && lseek(copy_fd, 0, SEEK_SET))
			rc = err_errno(e, name);
	}
	unpacked_close(u);
	if (!rc)
		return copy_fd;
	if (copy_fd >= 0)
		close(copy_fd);
	return -1;
}
