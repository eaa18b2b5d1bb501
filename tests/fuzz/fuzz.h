/* Shared by the fuzz targets, tests/fuzz/fuzz_*.c: bytes that choose, bytes that become a file. */
#pragma once

#include "base/base.h"

/* A target: reads `n` bytes from anywhere, and returns 0. What it finds wrong, aborts. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* What is left of an input. Taking from an empty one gives zeros, and empty texts. */
struct bytes {
	const uint8_t *p;
	size_t n;
};

uint8_t take_byte(struct bytes *b);
/* Often one of the numbers that programs get wrong: powers of two, and their neighbours. */
int64_t take_number(struct bytes *b);
/* Up to a NUL, `most` bytes, or the end. Allocated. */
char *take_text(struct bytes *b, size_t most);

/* A folder of this process, in $TMPDIR; and a name in it, which lasts until it is asked for
 * again. */
const char *fuzz_folder(void);
const char *fuzz_path(const char *name);
/* The file of that name has these bytes now. Returns its path. */
const char *fuzz_file(const char *name, const void *p, size_t n_bytes);

/* What torch.save() writes, with right checksums: data.pkl, and a storage that is all of data/0 to data/3. */
void fuzz_archive(
	struct str *out, const void *pkl, size_t n_pkl, const void *data, size_t n_data);

/* A promise that did not hold. */
#define FUZZ_ON(cond) BUG_ON(cond)
