/*
 * safetensors: files with a JSON header of names, types, shapes and offsets, then the data (the format's
 * own description is in the repository huggingface/safetensors).
 *
 * The format has no checksum. Files that pt-ckpt writes have the metadata entry xxh3: 16 hexadecimal
 * digits, the XXH3 of the whole file with zeros in their place. It is checked when the file is opened.
 */
#pragma once

#include "archive/archive.h"
#include "kernels/dtype.h"

enum { ST_DIGITS = 16 };

struct st_tensor {
	char *name;
	int type; /* number in the table of types */
	int ndim;
	int64_t dims[TORCH_MAX_DIMS];
	int file;
	int64_t offset, n_bytes; /* in the file */
};

/* The header of one file. */
struct st_header {
	struct st_tensor *tensors; /* in the order of their data, which have no holes */
	int64_t n, size;	   /* of the file, in bytes */
	struct json_t *root;
};

/* Reads and checks the header of a file that is not trusted. */
int safetensors_header(struct st_header *h, int fd, const char *path, struct err *e);
void safetensors_header_free(struct st_header *h);
/* Returns a text of __metadata__; NULL: there is none of this key. */
const char *safetensors_metadata(const struct st_header *h, const char *key);
/* Returns the type of torch_item that a tensor has; -1: it is not supported. */
int safetensors_dtype(const struct st_tensor *t);

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

/* ---- numbers.c -------------------------------------------------------------------- */

/* Reads n numbers at an offset, widened to fp32. */
int numbers_read(int fd, const char *path, enum dtype dtype, int64_t at, int64_t n,
	float *out, struct err *e);
/* The XXH3 of a file in which n bytes at `hole` are replaced by `fill`. -1 with errno set. */
int file_hash_around(int fd, int64_t hole, int64_t n, char fill, uint64_t *hash);
