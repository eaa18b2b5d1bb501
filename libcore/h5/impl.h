/* Shared by the files of this floor only. */
#ifndef H5_IMPL_H
#define H5_IMPL_H

#include "h5/h5.h"

#include <hdf5.h>
#include <sys/stat.h>

struct h5 {
	hid_t id;
	char *path;	    /* as messages call it */
	int64_t size_bytes; /* of the file, when it was opened to read */
	bool guarded;
};

/* A file to be read, without a look at it first. */
int h5_open_at(struct h5 **f, const char *path, const char *name, int64_t size_bytes,
	struct err *e);
/* Does it do HDF5 no harm? Once a file: -1 with *e set when it does. */
int h5_probe(const char *path, const char *name, const struct stat *st, struct err *e);
/* From here on, and as often as not taken back, faults of HDF5 are those of file `name`. */
void h5_guard(const char *name);
void h5_unguard(void);
hid_t h5_native(enum h5_type t);  /* in memory */
hid_t h5_on_disk(enum h5_type t); /* little-endian */
/* -1 when it is none of ours. */
int h5_type_of(hid_t type);
/* How objects of a class (H5P_FILE_CREATE ...) are made: the same contents give the same
 * bytes, so no times; attributes stay in the object's header. H5Pclose() it. */
hid_t h5_how(hid_t class);
/* "FILE: what": HDF5's own words are for programmers. Returns -1. */
int h5_bad(const struct h5 *f, struct err *e, int code, const char *fmt, ...)
	PRINTF(4, 5);
/* The groups above `path`. */
int h5_make_groups(struct h5 *f, const char *path, struct err *e);
int h5_info_of(struct h5 *f, hid_t dataset, struct h5_info *info);

#endif
