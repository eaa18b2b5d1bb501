/*
 * Zip archives as torch.save() writes them: nothing is compressed, the central directory has sizes and
 * checksums. Only the files of this floor include it.
 */
#pragma once

#include "base/base.h"

struct zip_entry {
	char *name;
	int64_t header;	 /* its local header, in bytes of the file */
	int64_t n_bytes; /* of its data */
	uint32_t crc32;
	bool checked; /* its data have matched it */
};

struct zip {
	int fd;			   /* the caller's */
	const char *name;	   /* in messages; the caller's */
	int64_t begin, size;	   /* the archive is these bytes of the file */
	struct zip_entry *entries; /* sorted by name */
	int64_t n;
};

/* Reads the directory of an archive that is bytes [begin, begin + size) of a file. Its entries may not be
 * compressed (EX_UNAVAILABLE) and are within it. */
int zip_open(struct zip *z, int fd, const char *name, int64_t begin, int64_t size,
	struct err *e);
void zip_close(struct zip *z);
/* NULL: there is none. */
struct zip_entry *zip_find(const struct zip *z, const char *name);
/* Sets *at to where the data of an entry are in the file. */
int zip_data(const struct zip *z, const struct zip_entry *x, int64_t *at, struct err *e);
/* The same, and the first time checks their checksum: EX_DATAERR. */
int zip_check(const struct zip *z, struct zip_entry *x, int64_t *at, struct err *e);
/* Its whole data, checked, appended to `out`. */
int zip_read(
	const struct zip *z, const struct zip_entry *x, struct str *out, struct err *e);
