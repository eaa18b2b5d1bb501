/* Reads files that may be compressed by gzip or zstd. */
#pragma once

#include "base/file.h"

struct unpacked;
/* Reads the first bytes of an open file or stream, from its current position. decompress false: all
 * bytes are read as they are. least: bytes that the file must have; 0 for a stream. NULL: an error. */
struct unpacked *unpacked_open(
	int fd, const char *name, bool decompress, int64_t least, struct err *e);
/* Returns the first bytes, not decompressed: FOREIGN_BYTES or more, unless the file has fewer. */
const char *unpacked_first(const struct unpacked *u, size_t *n);
/* Reads up to n bytes; 0 at the end, -1 on an error. */
int64_t unpacked_read(struct unpacked *u, char *to, int64_t n, struct err *e);
/* Returns how many bytes of the file have been read, before decompression. */
int64_t unpacked_done(const struct unpacked *u);
void unpacked_close(struct unpacked *u); /* the descriptor stays open */
/* Returns true for bytes that begin as a file of gzip or zstd. */
bool is_packed(const char *first, size_t n);
/* Returns the descriptor of an unnamed temporary file with the contents of a compressed file, of at
 * most `most` bytes; -1: an error. */
int file_unpack(int fd, const char *name, int64_t most, struct err *e);
