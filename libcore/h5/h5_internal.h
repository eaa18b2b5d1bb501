/* Shared by the files of this directory. */
#pragma once

#include "h5/h5.h"

#include <hdf5.h>
#include <sys/stat.h>

struct h5 {
	hid_t id;
	char *path;	    /* name of the file in messages */
	int64_t size_bytes; /* size of a file that is open for reading; else 0 */
	int64_t n_links;    /* links per new group, from h5_expect_links() */
	bool sealed;	    /* h5_probe() has checked the seal */
	/* While a file is written: the sum of the checksums of all attributes and datasets,
	 * computed from the values in memory. */
	uint64_t written;
	bool whole;	 /* `written` covers the file from its beginning */
	char *file;	 /* path of the file */
	int failure;	 /* errno of a system call in HDF5 that failed; or 0 */
	char group[256]; /* the last group that h5_make_groups() made or found */
};

/* Opens an existing file, without h5_probe(). size_bytes: 0 for writing. */
int h5_open_at(struct h5 **f, const char *path, const char *name, int64_t size_bytes,
	struct err *e);
/* Checks in a child process, once per file, that HDF5 survives reading it. Sets *sealed if the seal
 * is right. Returns 0, or -1 with *e set. */
int h5_probe(const char *path, const char *name, const struct stat *st, bool *sealed,
	struct err *e);
typedef void h5_visit_fn(struct h5 *f, hid_t object, const char *path);
/* Checks the seal, and calls `visit` with each object, once the file is known to be large enough
 * for the object's contents. */
int h5_check_seal_visiting(struct h5 *f, h5_visit_fn *visit, struct err *e);
/* Returns true if the file at the path is still the file of *st, unchanged. */
bool h5_is_unchanged(const char *path, const struct stat *st);
/* errors.c: errors of HDF5 that do not mean that the file is damaged. */
/* Makes HDF5 report its errors to errors.c. */
void h5_watch_errors(void);
/* Begins a call of HDF5 for f (NULL: it opens a file), and clears errno. Lack of memory is recorded
 * for this call, and a failed system call for the file, until h5_forget_file(). */
void h5_begin_call(struct h5 *f);
/* Stops recording errors of a file that is closed. */
void h5_forget_file(const struct h5 *f);
/* Returns the errno value of a failure in f (NULL: the file that is being opened), or 0. */
int h5_failure(const struct h5 *f);
bool h5_ran_out_of_memory(
	void); /* returns true after any lack of memory in this process */
hid_t h5_native(enum h5_type t);  /* in memory */
hid_t h5_on_disk(enum h5_type t); /* little-endian */
hid_t h5_text_type(size_t n);	  /* of n bytes; the caller calls H5Tclose() */
/* Returns the enum h5_type of a type of HDF5; -1 for other types. */
int h5_find_type(hid_t type);
/* Returns a property list of a class (H5P_FILE_CREATE ...): no times, so that equal contents give
 * equal bytes, and up to H5_MAX_COMPACT attributes and links in the object header, which has a
 * checksum. (HDF5's dense storage, an index, has padding without a checksum. But a header with many
 * links is slow, and even slower when it is converted to an index.) The caller calls H5Pclose(). */
enum { H5_MAX_COMPACT = 255 };
hid_t h5_properties(hid_t class);
/* Return the checksum of an attribute or a dataset. A file's checksum is their sum: order does not
 * matter, and a replaced value is subtracted. `data`: as on disk; NULL: with block checksums. */
uint64_t h5_attribute_sum(
	const char *path, const char *name, hid_t type, const void *data);
/* Returns the checksum of a dataset: of its path, type, shape and, unless NULL, its data. */
uint64_t h5_dataset_sum(
	const char *path, hid_t type, int ndim, const int64_t *dims, const void *data);
/* Reads an attribute as it is on disk; the caller frees *data. */
int h5_attribute_get(hid_t attribute, hid_t type, void **data);
/* Sets the error "FILE: text of errno: OBJECT could not be written". Returns -1. */
int h5_write_error(const struct h5 *f, struct err *e, const char *fmt, ...) PRINTF(3, 4);
/* Sets the error "FILE: message", since HDF5's messages are for programmers. Returns -1. */
int h5_error(const struct h5 *f, struct err *e, int code, const char *fmt, ...)
	PRINTF(4, 5);
/* Creates a dataset and the groups above it, or replaces an existing one. `blocks`: its bytes are
 * allocated at once and not written. Returns -1 with *e set. */
hid_t h5_create_dataset(struct h5 *f, const char *path, hid_t type, int ndim,
	const int64_t *dims, bool blocks, struct err *e);
/* Opens a dataset; the caller calls H5Dclose(). Returns -1 with *e set. */
hid_t h5_open_dataset(struct h5 *f, const char *path, struct err *e);
/* Creates the groups above `path`. */
int h5_make_groups(struct h5 *f, const char *path, struct err *e);
/* Write and read the fields of an open object; `path` is for messages. */
int h5_object_write(struct h5 *f, hid_t object, const char *path,
	const struct h5_field *table, const void *values, struct err *e);
/* Reads the attributes of an open object into the struct `values`; `path` is for messages. */
int h5_object_read(struct h5 *f, hid_t object, const char *path,
	const struct h5_field *table, void *values, struct err *e);
/* Sets *info to the type, shape and offset of an open dataset. */
int h5_read_info(struct h5 *f, hid_t dataset, const char *path, struct h5_info *info,
	struct err *e);
