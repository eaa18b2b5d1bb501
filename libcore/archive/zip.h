/* Zip archives as torch.save() writes them: not compressed, with sizes and checksums in the central
 * directory. Only files of this directory include it. */
#pragma once

#include "base/base.h"

struct zip_entry {
	char *name;
	int64_t header;	 /* byte of the local header in the file */
	int64_t n_bytes; /* number of bytes of the data */
	uint32_t crc32;
	bool is_verified; /* the data matched crc32 */
};

struct zip {
	int fd;			   /* owned by the caller */
	const char *name;	   /* for messages; owned by the caller */
	int64_t begin, size;	   /* byte range of the archive in the file */
	struct zip_entry *entries; /* sorted by name */
	int64_t n;
};

/* Reads the directory of the archive at bytes [begin, begin + size) of a file. Fails if an entry is
 * compressed (EX_UNAVAILABLE) or out of bounds. */
int zip_open(struct zip *z, int fd, const char *name, int64_t begin, int64_t size,
	struct err *e);
void zip_close(struct zip *z);
/* Returns the entry with a name; NULL if there is none. */
struct zip_entry *zip_find(const struct zip *z, const char *name);
/* Sets *at to the offset of an entry's data in the file. */
int zip_locate(
	const struct zip *z, const struct zip_entry *x, int64_t *at, struct err *e);
/* Sets *at as zip_locate() does; verifies the checksum the first time (EX_DATAERR). */
int zip_verify(const struct zip *z, struct zip_entry *x, int64_t *at, struct err *e);
/* Appends the data of an entry to `out`, and verifies the checksum. */
int zip_read(
	const struct zip *z, const struct zip_entry *x, struct str *out, struct err *e);
