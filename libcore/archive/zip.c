/* Reads zip archives by their central directory: torch.save() omits the sizes in local headers. */
#include "archive/zip.h"

#include "base/file.h"

#include <zlib.h>

/* Sizes of records, and offsets of their fields, in bytes. */
enum { LOCAL_BYTES = 30, CENTRAL_BYTES = 46, MAX_COMMENT = 65535 };
enum { END_BYTES = 22, END64_BYTES = 56, LOCATOR64_BYTES = 20 };
enum { LOCAL_NAME = 26, LOCAL_EXTRA = 28 };
enum { CENTRAL_METHOD = 10, CENTRAL_CRC = 16, CENTRAL_STORED = 20, CENTRAL_SIZE = 24 };
enum { CENTRAL_NAME = 28, CENTRAL_EXTRA = 30, CENTRAL_COMMENT = 32, CENTRAL_HEADER = 42 };
enum { END_ENTRIES = 10, END_SIZE = 12, END_BEGIN = 16 };
enum { END64_ENTRIES = 32, END64_SIZE = 40, END64_BEGIN = 48, LOCATOR64_END = 8 };
/* A 32-bit field with this value has its 64-bit value in extra field 1. */
#define IN_EXTRA 0xffffffffu
/* torch.save() names entries by numbers. A directory of a million entries has about 100 MB. */
enum { MAX_DIRECTORY = 1 << 29, MAX_NAME = 1024 };

static uint64_t read_le(const unsigned char *p, int n_bytes)
{
	uint64_t x = 0;
	while (n_bytes--)
		x = x << 8 | p[n_bytes];
	return x;
}

static int reject(const struct zip *z, const char *why, struct err *e)
{
	return err_set(e, EX_DATAERR, "%s: not a file of torch.save(), or damaged: %s",
		z->name, why);
}

struct directory {
	uint64_t n, begin, n_bytes;
};

/* Reads the zip64 end record, for over 4 GiB or 65,534 entries. `end`: offset of the end record. */
static int read_zip64_end(
	const struct zip *z, int64_t end, struct directory *d, struct err *e)
{
	unsigned char x[END64_BYTES];
	int64_t locator = end - LOCATOR64_BYTES;
	if (locator < 0)
		return reject(z, "the zip64 end record is missing", e);
	if (file_read_at(z->fd, z->name, x, LOCATOR64_BYTES, z->begin + locator, e))
		return -1;
	uint64_t at = read_le(x + LOCATOR64_END, 8);
	if (memcmp(x, "PK\6\7", 4) || at > (uint64_t)locator ||
		(uint64_t)locator - at < END64_BYTES)
		return reject(z, "the zip64 end record is missing", e);
	if (file_read_at(z->fd, z->name, x, END64_BYTES, z->begin + (int64_t)at, e))
		return -1;
	if (memcmp(x, "PK\6\6", 4))
		return reject(z, "the zip64 end record is missing", e);
	*d = (struct directory){read_le(x + END64_ENTRIES, 8),
		read_le(x + END64_BEGIN, 8), read_le(x + END64_SIZE, 8)};
	return 0;
}

/* Sets *d to the central directory, found by the end record; a comment may follow that record. */
static int find_directory(const struct zip *z, struct directory *d, struct err *e)
{
	int64_t n = min64(z->size, END_BYTES + MAX_COMMENT), at = n - END_BYTES;
	if (at < 0)
		return reject(z, "the file is too short", e);
	scoped_ptr unsigned char *tail = xmalloc((size_t)n);
	if (file_read_at(z->fd, z->name, tail, (size_t)n, z->begin + z->size - n, e))
		return -1;
	while (at >= 0 && (memcmp(tail + at, "PK\5\6", 4) ||
				  (int64_t)read_le(tail + at + END_BYTES - 2, 2) !=
					  n - at - END_BYTES))
		at--;
	if (at >= 0)
		*d = (struct directory){read_le(tail + at + END_ENTRIES, 2),
			read_le(tail + at + END_BEGIN, 4),
			read_le(tail + at + END_SIZE, 4)};
	if (at < 0)
		return reject(z, "the end record is missing: the file is truncated", e);
	int64_t end = z->size - n + at;
	if ((d->n == 0xffff || d->begin == IN_EXTRA || d->n_bytes == IN_EXTRA) &&
		read_zip64_end(z, end, d, e))
		return -1;
	if (d->begin > (uint64_t)end || d->n_bytes > (uint64_t)end - d->begin ||
		d->n_bytes > MAX_DIRECTORY || d->n > d->n_bytes / CENTRAL_BYTES)
		return reject(z, "the directory is out of bounds", e);
	return 0;
}

/* Sets the fields that have 64-bit values in an entry's extra field 1, in this order. */
static int read_extra(const unsigned char *x, size_t n, uint64_t *const *fields)
{
	while (n >= 4) {
		size_t id = read_le(x, 2), bytes = read_le(x + 2, 2);
		x += 4;
		n -= 4;
		if (bytes > n)
			return -1;
		for (; id == 1 && *fields; fields++) {
			if (**fields != IN_EXTRA)
				continue;
			if (bytes < 8)
				return -1;
			**fields = read_le(x, 8);
			x += 8;
			n -= 8;
			bytes -= 8;
		}
		x += bytes;
		n -= bytes;
	}
	return 0;
}

/* Reads an entry of the directory. Returns its size in the directory, or -1. */
static int64_t read_entry(
	struct zip *z, const unsigned char *p, uint64_t left, struct err *e)
{
	if (left < CENTRAL_BYTES || memcmp(p, "PK\1\2", 4))
		return reject(z, "the directory is damaged", e);
	uint64_t name = read_le(p + CENTRAL_NAME, 2),
		 extra = read_le(p + CENTRAL_EXTRA, 2);
	uint64_t all = CENTRAL_BYTES + name + extra + read_le(p + CENTRAL_COMMENT, 2);
	uint64_t size = read_le(p + CENTRAL_SIZE, 4),
		 stored = read_le(p + CENTRAL_STORED, 4);
	uint64_t header = read_le(p + CENTRAL_HEADER, 4);
	uint64_t *const fields[] = {&size, &stored, &header, NULL};
	if (all > left || read_extra(p + CENTRAL_BYTES + name, extra, fields))
		return reject(z, "the directory is damaged", e);
	if (read_le(p + CENTRAL_METHOD, 2) || stored != size)
		return err_set(e, EX_UNAVAILABLE,
			"%s: compressed zip entries are not supported; torch.save() and DCP do not "
			"write any",
			z->name);
	if (header > (uint64_t)z->size || size > (uint64_t)z->size - header)
		return reject(z, "an entry is out of bounds", e);
	if (name > MAX_NAME || memchr(p + CENTRAL_BYTES, 0, name))
		return reject(z, "the directory is damaged", e);
	struct zip_entry *x = &z->entries[z->n++];
	*x = (struct zip_entry){.header = z->begin + (int64_t)header,
		.n_bytes = (int64_t)size,
		.crc32 = (uint32_t)read_le(p + CENTRAL_CRC, 4)};
	x->name = xmalloc(name + 1);
	memcpy(x->name, p + CENTRAL_BYTES, name);
	x->name[name] = '\0';
	return (int64_t)all;
}

/* Reads the central directory into z->entries, sorted by name. Fails if two names are equal. */
static int read_directory(struct zip *z, const struct directory *d, struct err *e)
{
	scoped_ptr unsigned char *all = xmalloc(d->n_bytes + 1);
	uint64_t at = 0;
	int rc = file_read_at(
		z->fd, z->name, all, d->n_bytes, z->begin + (int64_t)d->begin, e);
	z->entries = xcalloc(d->n + 1, sizeof(*z->entries));
	for (uint64_t i = 0; i < d->n && !rc; i++) {
		int64_t n = read_entry(z, all + at, d->n_bytes - at, e);
		rc = n < 0 ? -1 : 0;
		at += n < 0 ? 0 : (uint64_t)n;
	}
	if (rc)
		return -1;
	qsort(z->entries, (size_t)z->n, sizeof(*z->entries), compare_texts);
	for (int64_t i = 1; i < z->n; i++)
		if (!strcmp(z->entries[i].name, z->entries[i - 1].name))
			return reject(z, "duplicate entry names", e);
	return 0;
}

int zip_open(struct zip *z, int fd, const char *name, int64_t begin, int64_t size,
	struct err *e)
{
	struct directory d = {0};
	*z = (struct zip){.fd = fd, .name = name, .begin = begin, .size = size};
	if (!find_directory(z, &d, e) && !read_directory(z, &d, e))
		return 0;
	zip_close(z);
	return -1;
}

void zip_close(struct zip *z)
{
	for (int64_t i = 0; i < z->n; i++)
		free(z->entries[i].name);
	free(z->entries);
	*z = (struct zip){.fd = -1};
}

struct zip_entry *zip_find(const struct zip *z, const char *name)
{
	const struct zip_entry key = {.name = (char *)name};
	return z->n ? bsearch(&key, z->entries, (size_t)z->n, sizeof(key), compare_texts)
		    : NULL;
}

/* Reads the local header: its extra field differs in length from the one in the directory. */
int zip_locate(const struct zip *z, const struct zip_entry *x, int64_t *at, struct err *e)
{
	unsigned char head[LOCAL_BYTES];
	int64_t end = z->begin + z->size;
	if (end - x->header < LOCAL_BYTES)
		return reject(z, "an entry is out of bounds", e);
	if (file_read_at(z->fd, z->name, head, LOCAL_BYTES, x->header, e))
		return -1;
	*at = x->header + LOCAL_BYTES + (int64_t)read_le(head + LOCAL_NAME, 2) +
	      (int64_t)read_le(head + LOCAL_EXTRA, 2);
	if (memcmp(head, "PK\3\4", 4) || *at > end - x->n_bytes)
		return reject(z, "the header of an entry is damaged", e);
	return 0;
}

static int check_crc(
	const struct zip *z, const struct zip_entry *x, uint64_t sum, struct err *e)
{
	return sum == x->crc32
		       ? 0
		       : err_set(e, EX_DATAERR,
				 "%s: %s does not match its checksum: the file is "
				 "damaged",
				 z->name, x->name);
}

int zip_verify(const struct zip *z, struct zip_entry *x, int64_t *at, struct err *e)
{
	enum { PIECE = 1 << 20 };
	if (zip_locate(z, x, at, e))
		return -1;
	if (x->is_verified) /* (a storage of many tensors is large) */
		return 0;
	scoped_ptr unsigned char *piece = xmalloc((size_t)min64(PIECE, x->n_bytes) + 1);
	uint64_t sum = crc32(0, NULL, 0);
	int rc = 0;
	for (int64_t i = 0; i < x->n_bytes && !rc; i += PIECE) {
		int64_t n = min64(PIECE, x->n_bytes - i);
		rc = file_read_at(z->fd, z->name, piece, (size_t)n, *at + i, e);
		sum = crc32(sum, piece, (uInt)n);
	}
	x->is_verified = !rc && !check_crc(z, x, sum, e);
	return x->is_verified ? 0 : -1;
}

int zip_read(
	const struct zip *z, const struct zip_entry *x, struct str *out, struct err *e)
{
	int64_t at;
	if (zip_locate(z, x, &at, e))
		return -1;
	str_reserve(out, (size_t)x->n_bytes);
	char *to = out->s + out->len;
	if (file_read_at(z->fd, z->name, to, (size_t)x->n_bytes, at, e))
		return -1;
	out->len += (size_t)x->n_bytes;
	out->s[out->len] = '\0';
	return check_crc(
		z, x, crc32_z(crc32(0, NULL, 0), (void *)to, (size_t)x->n_bytes), e);
}
