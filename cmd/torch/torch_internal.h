/* Shared by the files of this wing: where the numbers of a tensor are. */
#ifndef TORCH_INTERNAL_H
#define TORCH_INTERNAL_H

#include "torch/pickle.h"
#include "torch/torch.h"
#include "torch/zip.h"

/* ---- tensor.c: one archive of torch.save() ------------------------------------------ */

/* An archive that is open: its directory, and its tree. */
struct archive {
	struct zip zip;
	struct str pkl,
		top; /* the bytes of data.pkl; what is in front of the names of its entries */
	struct pickle tree;
};
int archive_open(struct archive *a, int fd, const char *name, int64_t begin, int64_t size,
	struct err *e);
void archive_close(struct archive *a);

/* What the tree says about a tensor. */
struct described {
	const char *storage; /* the number of its storage, not ended by a NUL */
	size_t storage_bytes;
	int dtype, ndim;
	int64_t offset, n_stored; /* of the first element, of all of the storage */
	int64_t dims[TORCH_MAX_DIMS], stride[TORCH_MAX_DIMS]; /* in elements */
};
/* 1: the node is no tensor. */
int describe_tensor(
	const struct pickle *p, uint32_t node, struct described *d, struct err *e);

/* Where the numbers of a chunk are: in elements of `dtype` from byte `at` of a file on. */
struct place {
	int64_t at;
	int64_t span; /* elements from the first to the last in memory, with those between them */
	bool contiguous;
	int64_t stride[TORCH_MAX_DIMS];
};
/* Checks the checksum of its storage. *x is allocated, for free(). */
int find_place(const struct archive *a, const struct described *d, struct place **x,
	struct err *e);

/* Whether products of the dimensions, of which none is negative, fit in 60 bits, also of those
 * beside one of 0. */
bool shape_fits(const int64_t *dims, int ndim);

int dtype_of_name(const char *name, size_t n_bytes); /* of torch.float32; -1: not known */
int64_t dtype_size(int dtype);
/* Converts n numbers of a type. */
void dtype_floats(int dtype, const void *raw, int64_t n, float *out);
void dtype_doubles(int dtype, const void *raw, int64_t n, double *out);

/* ---- items.c: tensors in chunks -------------------------------------------------------- */

/* A box of a tensor, as one tensor in an archive. */
struct chunk {
	int64_t box; /* in parts.boxes: where it begins in each dimension, then its sizes */
	int64_t at, n_bytes; /* of DCP: its archive in the file */
	int32_t file;	     /* -1: not stored */
	uint32_t node;	     /* of torch.save(): in the tree */
	struct place *place; /* NULL: not looked for yet */
};

enum { OPEN_FILES = 32 };
struct torch_parts {
	bool many; /* files of a directory; else `archive` is the file */
	struct archive archive;
	struct chunk *chunks;
	int64_t n_chunks;
	int64_t *boxes;
	int64_t n_boxes;
	/* Files beside .metadata, of which some are open, at any time OPEN_FILES at most. */
	char **files;
	int *fds; /* -1: closed */
	int32_t n_files, recent[OPEN_FILES];
	int next;
	/* A tensor that is not contiguous, as it is in memory. */
	void *span;
	const struct place *span_of;
};

/* Appends an item with the name. */
struct torch_item *items_add(struct torch_file *f, const char *name, size_t n_bytes);
/* Appends a chunk to the last item, whose dimensions are set: where it begins in each, and its sizes. They
 * are to be added in the order of their begins. */
struct chunk *items_add_chunk(
	struct torch_file *f, const int64_t *begin, const int64_t *sizes);
/* Sorts them, and checks that their names differ and that chunks cover their tensors. */
int items_end(struct torch_file *f, struct err *e);
/* The descriptor of a file of DCP. */
int items_fd(struct torch_file *f, int32_t file, struct err *e);

/* ---- torch_file.c, dcp.c, shards.c, universal.c ------------------------------------------------------------------ */

int torch_file_open(struct torch_file *f, struct err *e);
int dcp_open(struct torch_file *f, struct err *e);
int shards_open(struct torch_file *f, struct err *e);
bool shards_are_in(const char *folder);
int universal_open(struct torch_file *f, struct err *e);
bool universal_is_in(const char *path);
/* The node of the tensor of an archive, which may be in a dict of DeepSpeed. */
uint32_t archive_tensor(const struct archive *a);

#endif
