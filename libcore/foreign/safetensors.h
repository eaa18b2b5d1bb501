/*
 * safetensors: files with a JSON header of names, types, shapes and offsets, then the data (the format's
 * own description is in the repository huggingface/safetensors). Only the files of this floor include it.
 *
 * The format has no checksum. Files that pt-ckpt writes have the metadata entry xxh3: 16 hexadecimal
 * digits, the XXH3 of the whole file with zeros in their place. It is checked when the file is opened.
 */
#ifndef FOREIGN_SAFETENSORS_H
#define FOREIGN_SAFETENSORS_H

#include "base/base.h"
#include "kernels/dtype.h"

enum { ST_MAX_DIMS = 8, ST_DIGITS = 16 };

struct st_tensor {
	char *name;
	int type; /* number in the table of types */
	int ndim;
	int64_t dims[ST_MAX_DIMS];
	int file;
	int64_t offset, n_bytes; /* in the file */
};

struct safetensors {
	char **paths;
	int *fds;
	int n_files;
	struct st_tensor *tensors; /* sorted by name */
	int64_t n;
	/* The metadata entries pt_options_xxh3 and pt_param_hash, which all files of an index have in
	 * common; empty: none. */
	char options_xxh3[ST_DIGITS + 1], param_hash[ST_DIGITS + 1];
};

/* Opens one file, or all files of an index (model.safetensors.index.json). */
int safetensors_open(struct safetensors *s, const char *path, struct err *e);
void safetensors_close(struct safetensors *s);
/* NULL: there is none. */
const struct st_tensor *safetensors_find(const struct safetensors *s, const char *name);
/* Reads n elements from element `first` on, widened to fp32. */
int safetensors_read(const struct safetensors *s, const struct st_tensor *t,
	int64_t first, int64_t n, float *out, struct err *e);
const char *safetensors_type(const struct st_tensor *t);

/* A tensor to be written. */
struct st_source {
	const char *name;
	int ndim;
	const int64_t *dims;
	int number; /* what `give` calls it */
};

struct number_file;
struct st_write {
	const struct st_source *list; /* in the order of the file */
	int n;
	enum dtype dtype; /* fp32, bf16, fp16 */
	const char *options_xxh3, *param_hash;
	/* Puts all elements in order. */
	int (*give)(void *with, int number, struct number_file *f, struct err *e);
	void *with;
};
int safetensors_write(const char *path, const struct st_write *w, struct err *e);
int64_t safetensors_bytes(const struct st_source *t, enum dtype dtype);

#endif
