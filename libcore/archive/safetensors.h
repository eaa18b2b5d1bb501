/* safetensors: files with a JSON header of names, types, shapes and offsets, followed by the data
 * (see the repository huggingface/safetensors).
 *
 * The format has no checksum. Files of pt-ckpt have a metadata entry xxh3: the XXH3 of the whole
 * file, in 16 hexadecimal digits, computed with zeros in their place. It is verified when the file
 * is opened. */
#pragma once

#include "archive/archive.h"

enum { ST_DIGITS = 16 };

struct st_tensor {
	char *name;
	int type; /* index in the table of types */
	int ndim;
	int64_t dims[TORCH_MAX_DIMS];
	int64_t offset, n_bytes; /* position of the data in the file, size */
};

/* The header of one file. */
struct st_header {
	struct st_tensor *tensors; /* sorted by name */
	int64_t n, size;	   /* number of tensors, bytes of the file */
	struct json_t *root;
};

/* Reads and checks the header of an untrusted file. */
int safetensors_header(struct st_header *h, int fd, const char *path, struct err *e);
void safetensors_header_free(struct st_header *h);
/* Returns an entry of __metadata__; NULL if the key is missing. */
const char *safetensors_metadata(const struct st_header *h, const char *key);
/* Returns the torch_item dtype of a tensor; -1: not supported. */
int safetensors_dtype(const struct st_tensor *t);

/* Computes the XXH3 of a file with n bytes at offset `hole` replaced by `fill`. Returns -1 with
 * errno set. */
int file_hash_around(int fd, int64_t hole, int64_t n, char fill, uint64_t *hash);
/* Returns the name of a tensor's type, such as F32. */
const char *safetensors_type(const struct st_tensor *t);

/* A model in one file, or in the files that an index (model.safetensors.index.json) lists. */
extern const struct container container_safetensors;
/* Returns the metadata entry pt_options_xxh3, equal in all files of f; empty: none. */
const char *safetensors_options(const struct torch_file *f);
