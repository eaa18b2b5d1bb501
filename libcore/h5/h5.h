/*
 * h5: the only callers of HDF5. Attributes by table, datasets by name, checksums for both,
 * and file images that pass through pipes.
 *
 * Every file we write is HDF5's 1.8 format (whose metadata carries checksums of its own),
 * complete before it gets its name, and sealed: the root attribute meta_xxh3 covers every
 * name, type, shape and attribute, and the contents of every dataset that has no block
 * checksums. So h5ls, h5dump and h5py read our files, and a flipped bit is found.
 *
 * All readers treat the file as hostile: they return -1 and say what is wrong, and take no
 * more memory or time than its size is worth. No call is collective; MPI is unknown here.
 */
#ifndef H5_H
#define H5_H

#include "base/file.h"
#include "base/base.h"

struct h5; /* an open file */

enum h5_type { H5_U8, H5_U16, H5_U32, H5_I64, H5_U64, H5_F32, H5_F64, H5_TEXT };
size_t h5_type_bytes(enum h5_type t);
const char *h5_type_name(enum h5_type t);

/* ---- file.c ---------------------------------------------------------------------- */

int h5_open(struct h5 **f, const char *path, struct err *e); /* to read */
int h5_reopen(
	struct h5 **f, const char *path, struct err *e); /* to add to what is there */
int h5_create(struct h5 **f, const char *path, struct err *e); /* empties the file */
/* Any of them, of a file that messages call `name`: what the user knows it by. (HDF5 opens
 * files by name only, and follows links, so a name under /proc will not do: a stream becomes
 * a file first, by file_spool().) */
enum h5_mode { H5_READ, H5_ADD, H5_MAKE };
int h5_open_as(struct h5 **f, const char *path, const char *name, enum h5_mode mode,
	struct err *e);
int h5_close(struct h5 *f, struct err *e); /* 0 for NULL; what is not written says so */
/* Closes after work that ended with rc; *e is the first thing that went wrong. 0 or -1. */
int h5_end(struct h5 *f, int rc, struct err *e);
const char *h5_version(void);
void h5_versions(struct str *out); /* a line, for --version */

/* ---- fields.c: attributes by table ----------------------------------------------- */

/* One attribute: where it lies in a struct, and what it means to a reader of the manual.
 * I64, U64 and F64 are as named, TEXT is a char *, which reading allocates. */
struct h5_field {
	const char *name;
	enum h5_type type;
	size_t offset;
	bool optional; /* reading leaves the struct alone when it is absent */
	const char *doc;
};

/* Tables end with a NULL name. `path` is a group or dataset ("/" for the file itself),
 * which writing creates as a group when it is missing. */
int h5_fields_write(struct h5 *f, const char *path, const struct h5_field *table,
	const void *from, struct err *e);
int h5_fields_read(struct h5 *f, const char *path, const struct h5_field *table, void *to,
	struct err *e);
/* Appends `name = value` of one of them in a struct; of a text that is NULL nothing. */
void h5_field_print(struct str *out, const struct h5_field *a, const void *from);
/* The table as a list for a manual page. */
void h5_fields_man(const struct h5_field *table, FILE *f);
/* The file says attribute format = `format`, and a version that we know. */
int h5_check_format(
	struct h5 *f, const char *format, int64_t newest_version, struct err *e);

/* ---- data.c: datasets ------------------------------------------------------------ */

enum { H5_MAX_DIMS = 4 };

struct h5_info {
	enum h5_type type;
	int ndim;
	int64_t dims[H5_MAX_DIMS];
	int64_t n;	/* elements */
	int64_t offset; /* of the first byte in the file; -1 when it is not contiguous */
	bool chunked;
};

bool h5_has(struct h5 *f, const char *path);
/* The names in a group, in alphabetical order, appended to `out`. */
int h5_list(struct h5 *f, const char *group, struct strs *out, struct err *e);
int h5_info(struct h5 *f, const char *path, struct h5_info *info, struct err *e);
/* Writes a whole dataset; the groups above it are made. */
int h5_put(struct h5 *f, const char *path, enum h5_type t, int ndim, const int64_t *dims,
	const void *data, struct err *e);
/* Reads a whole dataset that must lie in one piece, have this type, and n elements unless n
 * is -1. It is allocated: free() it. *n_read may be NULL. */
int h5_get(struct h5 *f, const char *path, enum h5_type t, int64_t n, int64_t max,
	void **data, int64_t *n_read, struct err *e);
int h5_put_text(struct h5 *f, const char *path, const char *text, struct err *e);
int h5_get_text(struct h5 *f, const char *path, struct str *out, struct err *e);

/* ---- blocks.c: large datasets, written and read at their place in the file ------- */

/*
 * A dataset whose bytes are not passed through HDF5: ranks write them with pwrite and
 * readers map them. A row is an element of the first dimension. Every block of rows has an
 * XXH3 in the dataset /xxh3/PATH, so a part can be checked when it is first touched.
 */
struct h5_blocks {
	char path[128];
	enum h5_type type;
	int64_t rows, row_bytes, block_rows, n_blocks;
	int64_t offset; /* in the file */
	uint64_t *xxh3; /* [n_blocks]; owned */
};

/* Makes room for it; block_rows is chosen so that blocks are of at most this many bytes, or
 * of one row. */
enum { H5_BLOCK_BYTES = 1 << 20 };
int h5_blocks_reserve(struct h5 *f, const char *path, enum h5_type t, int ndim,
	const int64_t *dims, struct h5_blocks *b, struct err *e);
/* Fills in where the room is. HDF5 knows once all datasets are made. */
int h5_blocks_place(struct h5 *f, struct h5_blocks *b, struct err *e);
/* Writes the checksums, when they are all known. */
int h5_blocks_finish(struct h5 *f, const struct h5_blocks *b, struct err *e);
int h5_blocks_open(struct h5 *f, const char *path, struct h5_blocks *b, struct err *e);
void h5_blocks_free(struct h5_blocks *b);
int64_t h5_block_bytes(
	const struct h5_blocks *b, int64_t block); /* the last is shorter */
/* Is this what was written? `data` is block number `block`. */
int h5_block_check(
	const struct h5_blocks *b, int64_t block, const void *data, struct err *e);
/* Reads it into out, and checks it. */
int h5_block_read(
	const struct h5_blocks *b, int fd, int64_t block, void *out, struct err *e);
/* Reads all of it from the file and checks each block. */
int h5_blocks_verify(const struct h5_blocks *b, int fd, struct err *e);

/* ---- seal.c ---------------------------------------------------------------------- */

/* The last thing a writer does. */
int h5_seal(struct h5 *f, struct err *e);
/* Does it match? What is under the seal lies in one piece each, and all of it in the file. */
int h5_check_seal(struct h5 *f, struct err *e);

#endif
