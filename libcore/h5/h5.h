/* h5: the only callers of HDF5. Attributes by table, datasets by name, checksums for both.
 *
 * Files are written in HDF5's 1.8 format (its metadata blocks have checksums), are complete before
 * they get their names, and are sealed: the root attribute meta_xxh3 is a checksum of all names,
 * types, shapes and attributes, and of the contents of all datasets without block checksums. So
 * h5ls, h5dump and h5py can read them, and a flipped bit is detected.
 *
 * Readers do not trust a file: they return -1 with *e set if it is damaged, and use memory and
 * time in proportion to its size. Functions that return int return 0 or -1 with *e set. No call is
 * collective or uses MPI. */
#pragma once

#include "base/file.h"
#include "base/base.h"

struct h5; /* an open file */

enum h5_type { H5_U8, H5_U16, H5_U32, H5_I64, H5_U64, H5_F32, H5_F64, H5_TEXT };
size_t h5_type_bytes(enum h5_type t);
const char *h5_type_name(enum h5_type t);

/* ---- file.c ---------------------------------------------------------------------- */

int h5_open(struct h5 **f, const char *path, struct err *e);   /* read only */
int h5_reopen(struct h5 **f, const char *path, struct err *e); /* read and write */
int h5_create(struct h5 **f, const char *path, struct err *e); /* truncates the file */
/* Opens a file that messages call `name`. (HDF5 opens files by name only and follows links, so a
 * name under /proc cannot be used: file_spool() first copies a stream to a file.) */
enum h5_mode { H5_READ, H5_ADD, H5_MAKE };
int h5_open_as(struct h5 **f, const char *path, const char *name, enum h5_mode mode,
	struct err *e);
/* Announces n links per group created from now on: 256 and more get dense storage at once. */
void h5_expect_links(struct h5 *f, int64_t n);
int h5_close(struct h5 *f, struct err *e); /* frees f (or NULL); reports I/O errors */
/* Closes a file after an operation with result rc. *e is the first error of the two, except that
 * an I/O error replaces EX_DATAERR: an unreadable file is not damaged. */
int h5_end(struct h5 *f, int rc, struct err *e);
/* Sealing checks the file against the written values. If a file is written in two parts, pass the
 * result of h5_get_written_sum(), before the first part is closed, to h5_resume_writing(), after h5_reopen(). */
uint64_t h5_get_written_sum(const struct h5 *f);
void h5_resume_writing(struct h5 *f, uint64_t written);
/* Seals and closes a file that was written with result rc so far, and reads it again to check the
 * seal. Datasets with block checksums: see h5_blocks_check_written(). */
int h5_finish(struct h5 *f, int rc, struct err *e);
/* Returns true if the first n bytes of a file have the signature of HDF5. */
bool h5_has_signature(const char *first, size_t n);
/* Checks an open file for the signature. Returns 1, 0, or -1 with *e set. */
int h5_file_is_hdf5(int fd, const char *name, struct err *e);
const char *h5_version(void);
void h5_versions(struct str *out); /* appends a line for --version */

/* ---- fields.c: attributes by table ----------------------------------------------- */

/* An attribute, with its offset in a struct and its description for the manual. I64, U64 and F64
 * are int64_t, uint64_t and double; TEXT is a char *, which reading allocates. */
struct h5_field {
	const char *name;
	enum h5_type type;
	size_t offset;
	bool optional; /* if it is missing, reading does not change the struct */
	const char *doc;
};

/* Tables end with a NULL name. `path` is a group or a dataset ("/" is the root group); writing
 * creates a missing group. */
int h5_fields_write(struct h5 *f, const char *path, const struct h5_field *table,
	const void *values, struct err *e);
/* Reads the attributes of a group or dataset into `values`. Fails if one is missing. */
int h5_fields_read(struct h5 *f, const char *path, const struct h5_field *table,
	void *values, struct err *e);
/* Appends `name = value` of an attribute in a struct, or nothing for a NULL text; NaN is `none`. */
void h5_field_append(struct str *out, const struct h5_field *a, const void *values);
/* Prints the table as a list for a manual page. */
void h5_fields_print_man(const struct h5_field *table, FILE *f);
/* Checks the attributes format, which must be `format`, and version, at most newest_version. */
int h5_check_format(
	struct h5 *f, const char *format, int64_t newest_version, struct err *e);

/* ---- data.c: datasets ------------------------------------------------------------ */

enum { H5_MAX_DIMS = 4 };

struct h5_info {
	enum h5_type type;
	int ndim;
	int64_t dims[H5_MAX_DIMS];
	int64_t n;	/* elements */
	int64_t offset; /* first byte in the file; -1: not contiguous */
	bool chunked;
};

/* Returns true if the file has a group or dataset with this path. */
bool h5_has(struct h5 *f, const char *path);
/* Appends the names in a group to `out`, in alphabetical order. */
int h5_list(struct h5 *f, const char *group, struct strs *out, struct err *e);
int h5_info(struct h5 *f, const char *path, struct h5_info *info, struct err *e);
/* Writes a whole dataset, and creates the groups above it. */
int h5_put(struct h5 *f, const char *path, enum h5_type t, int ndim, const int64_t *dims,
	const void *data, struct err *e);
/* Reads a whole dataset, which must be contiguous and have this type and n elements (n = -1: up to
 * max). Allocates *data; the caller frees it. n_read may be NULL. */
int h5_get(struct h5 *f, const char *path, enum h5_type t, int64_t n, int64_t max,
	void **data, int64_t *n_read, struct err *e);
int h5_put_text(struct h5 *f, const char *path, const char *text, struct err *e);
/* Appends the text of a dataset to *out. */
int h5_get_text(struct h5 *f, const char *path, struct str *out, struct err *e);

/* ---- blocks.c: large datasets, written and read without HDF5 --------------------- */

/* A contiguous dataset that is written with pwrite and read with pread, not through HDF5. A row is
 * an element of the first dimension. The dataset /xxh3/PATH has the XXH3 of each block of rows, so
 * a part can be checked at first use. */
struct h5_blocks {
	char path[128];
	enum h5_type type;
	int ndim;
	int64_t dims[H5_MAX_DIMS];
	int64_t rows, row_bytes, block_rows, n_blocks;
	int64_t offset; /* first byte in the file */
	uint64_t *xxh3; /* [n_blocks]; owned */
};

/* Creates the dataset without writing its bytes, which begin at b->offset. Chooses block_rows so
 * that a block has at most H5_BLOCK_BYTES, or one row. */
enum { H5_BLOCK_BYTES = 1 << 20 };
int h5_blocks_reserve(struct h5 *f, const char *path, enum h5_type t, int ndim,
	const int64_t *dims, struct h5_blocks *b, struct err *e);
/* Writes the checksums b->xxh3. */
int h5_blocks_finish(struct h5 *f, const struct h5_blocks *b, struct err *e);
/* Opens a dataset for h5_blocks_release(): reads its shape, offset and checksums. */
int h5_blocks_open(struct h5 *f, const char *path, struct h5_blocks *b, struct err *e);
void h5_blocks_release(struct h5_blocks *b);
/* Returns the size of a block; the last one may be shorter. */
int64_t h5_block_bytes(const struct h5_blocks *b, int64_t block);
/* Checks `data`, the bytes of block number `block`, against its checksum. */
int h5_block_check(
	const struct h5_blocks *b, int64_t block, const void *data, struct err *e);
/* Reads block number `block` into out, and checks it. */
int h5_block_read(
	const struct h5_blocks *b, int fd, int64_t block, void *out, struct err *e);
/* Checks after writing that the file has the values from memory; else sets EX_IOERR for file
 * `name`. `piece`: a buffer for the block. */
int h5_block_check_written(const struct h5_blocks *b, int fd, int64_t block, void *piece,
	const char *name, struct err *e);
int h5_blocks_check_written(
	const struct h5_blocks *b, int fd, const char *name, struct err *e);

/* ---- seal.c ---------------------------------------------------------------------- */

/* Checks the checksum of the metadata, and that all datasets it covers are contiguous and within
 * the file, unless that was done when the file was opened. */
int h5_check_seal(struct h5 *f, struct err *e);
