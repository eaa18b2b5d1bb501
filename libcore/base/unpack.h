/* Reads files that may be compressed by gzip or zstd. */
#pragma once

#include "base/file.h"

struct unpacked;
/* Begins to read an open file or stream from its current position. decompress false: returns bytes
 * unchanged. min_bytes: bytes that the file must have; 0 for a stream. NULL: an error. */
struct unpacked *unpacked_open(
	int fd, const char *name, bool decompress, int64_t min_bytes, struct err *e);
/* Returns the first bytes, not decompressed: at least FOREIGN_BYTES, unless the file is shorter. */
const char *unpacked_first(const struct unpacked *u, size_t *n);
/* Reads up to n bytes; 0 at the end, -1 on an error. */
int64_t unpacked_read(struct unpacked *u, char *to, int64_t n, struct err *e);
/* Returns how many bytes of the file have been read, before decompression. */
int64_t unpacked_bytes_read(const struct unpacked *u);
void unpacked_close(struct unpacked *u); /* the descriptor stays open */
/* Returns true for the first bytes of a gzip or zstd file. */
bool is_compressed(const char *first, size_t n);
/* Decompresses a file to an unnamed temporary file of at most max_bytes bytes. Returns its
 * descriptor; -1: an error. */
int file_unpack(int fd, const char *name, int64_t max_bytes, struct err *e);
