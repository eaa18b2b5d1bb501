/*
 * archive: containers of tensors that other programs write. Each is a list of named items, tensors and other
 * values: files of torch.save() (.pt, .pth, .bin); directories of torch.distributed.checkpoint (DCP), which FSDP,
 * torchtitan and Megatron-LM write; safetensors files of ranks; DeepSpeed's ZeRO and its universal format; nanotron.
 *
 * The files are not trusted, and nothing in them is executed (pickle.h). What is read is checked: the
 * checksums of torch.save()'s archives, and that the chunks of a tensor cover it once. No call is
 * collective. Functions that return int return 0, or -1 with *e set: EX_DATAERR for damage, EX_UNAVAILABLE
 * for what is whole and cannot be read here, EX_IOERR.
 */
#pragma once

#include "base/base.h"

enum { TORCH_MAX_DIMS = 8 };

enum torch_kind {
	TORCH_TENSOR,
	TORCH_VALUE, /* anything else: torch_numbers(), torch_texts() */
};

struct torch_item {
	/* The keys that lead to it, with dots between them: of dicts, and numbers in lists of dicts or tensors. */
	char *name;
	enum torch_kind kind;
	/* Its place in the file: parameters have that of the model. -1: the file sorts them by name. */
	int64_t order;
	/* Of a tensor: */
	int dtype; /* torch_dtype_name() */
	int ndim;  /* 0: one number */
	int64_t dims[TORCH_MAX_DIMS];
	int64_t first, n_chunks; /* in the file's list of chunks */
	int64_t most_rows;	 /* of a chunk */
	uint32_t node;		 /* of a value in the tree of its file; 0: all of it */
};

/* What another rank has saved of an item. */
struct torch_copy {
	struct torch_item is; /* with the name of the item */
	char *whose, *first;  /* "tp 1" and "tp 0", whose the item is */
};

/* A file or directory that is open. */
struct torch_file {
	char *path;
	struct torch_item *items; /* sorted by name */
	int64_t n;
	struct torch_copy *copies;
	int64_t n_copies;
	struct torch_parts *parts; /* archive_internal.h */
};

/* One way to keep tensors in a file or in the files of a directory. A container is a file and a row of CONTAINERS. */
struct container {
	bool is_file; /* else a directory */
	bool many;    /* each chunk is an archive of torch.save() */
	/* Returns whether the path is one, by the first bytes or the names of files. */
	bool (*is_in)(const char *path);
	/* Appends the items of f->path. */
	int (*open)(struct torch_file *f, struct err *e);
};
/* The first row that a path is in counts. */
#define CONTAINERS(X) \
	X(file)       \
	X(dcp)        \
	X(dcp_pair)   \
	X(one_bin) X(universal) X(zero_model) X(nanotron) X(zero) X(bins) X(shards)
#define CONTAINER_ROW(name) extern const struct container container_##name;
CONTAINERS(CONTAINER_ROW)
#undef CONTAINER_ROW

/* A model and its optimizer in two files of one directory: checkpoint-N of Hugging Face's Trainer, and what
 * accelerate's save_state() writes. No row, since others read the model only. */
extern const struct container container_trainer;

/* Has the directory a file of this name? */
bool container_has(const char *directory, const char *name);
/* Returns NULL if the path is no container. */
const struct container *container_of(const char *path);
int torch_open(struct torch_file *f, const char *path, struct err *e);
/* Opens a path whose container is known. */
int torch_open_as(
	struct torch_file *f, const struct container *c, const char *path, struct err *e);
void torch_close(struct torch_file *f);
/* NULL: there is none. */
const struct torch_item *torch_find(const struct torch_file *f, const char *name);
/* Are two tensors one, such as a tied weight, with the same numbers of the same storage? */
bool torch_same(const struct torch_file *f, const struct torch_item *a,
	const struct torch_item *b);
const char *torch_dtype_name(int dtype); /* "float32", as in PyTorch */

/* The numbers of a row, which is all of a tensor but its first dimension, and the number of rows. */
int64_t torch_row_size(const struct torch_item *t);
int64_t torch_rows(const struct torch_item *t);
/* Reads rows [row, row + n) of a tensor of any type, [n][torch_row_size()]. torch_read() rounds fp64 and
 * integers to fp32; bf16 and fp16 are exact. The tensor need not be contiguous. Not for two threads at a
 * time on one file. */
int torch_read(struct torch_file *f, const struct torch_item *t, int64_t row, int64_t n,
	float *out, struct err *e);
int torch_read_doubles(struct torch_file *f, const struct torch_item *t, int64_t row,
	int64_t n, double *out, struct err *e);
/* How two tensors of one shape differ: in so many numbers, from number `first` on, which has these values; `distance` is
 * relative to a. EX_DATAERR: of other shapes. */
struct torch_difference {
	int64_t n, first;
	double value[2], distance;
};
int torch_compare(struct torch_file *f, const struct torch_item *a,
	const struct torch_item *b, struct torch_difference *d, struct err *e);
/* A value that is a number, or a tuple or list of numbers, or a tensor of one element. Sets *n to how many of
 * at most `most` there are; 0: it is something else, such as None. */
int torch_numbers(struct torch_file *f, const struct torch_item *x, int64_t most,
	double *out, int64_t *n, struct err *e);
/* The same, of a part of the value: keys of dicts and fields of objects, and places in lists, with dots between
 * them, such as 0.optimizer.lr. *n is 0 if there is no such part. */
int torch_numbers_in(struct torch_file *f, const struct torch_item *x, const char *path,
	int64_t most, double *out, int64_t *n, struct err *e);
/* Appends what a value is, such as "a call of os.system". */
void torch_describe(
	const struct torch_file *f, const struct torch_item *x, struct str *out);
/* Appends the texts of a value that is a list or tuple of them, or one text; none of anything else. */
int torch_texts(struct torch_file *f, const struct torch_item *x, struct strs *out,
	struct err *e);
