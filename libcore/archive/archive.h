/* archive: reads containers of tensors that other programs write: files of torch.save() (.pt, .pth,
 * .bin); directories of torch.distributed.checkpoint (DCP), which FSDP, torchtitan and Megatron-LM
 * write; safetensors files; DeepSpeed's ZeRO and its universal format; nanotron. Each becomes a
 * list of named items, which are tensors or other values.
 *
 * The files are not trusted, and nothing in them is executed (pickle.h). Readers verify the
 * checksums of torch.save() archives, and that the chunks of a tensor cover each element exactly
 * once. No call is collective. Functions that return int return 0, or -1 with *e set: EX_DATAERR
 * for damage, EX_UNAVAILABLE for an intact file that is not supported, EX_IOERR. */
#pragma once

#include "base/base.h"

enum { TORCH_MAX_DIMS = 8 };

enum torch_kind {
	TORCH_TENSOR,
	TORCH_VALUE, /* anything else: torch_read_numbers(), torch_read_strings() */
};

struct torch_item {
	/* The path to the item: keys of dicts and indices of lists, joined by dots. */
	char *name;
	enum torch_kind kind;
	/* Index in the file; -1 if the file is sorted by name, not in the model's order. */
	int64_t order;
	/* tensors: */
	int dtype; /* torch_dtype_name() */
	int ndim;  /* 0: a scalar */
	int64_t dims[TORCH_MAX_DIMS];
	int64_t first, n_chunks; /* range in parts->chunks */
	int64_t max_chunk_rows;	 /* rows of the largest chunk */
	uint32_t node;		 /* values: node in the file's tree; 0: the root */
};

/* A copy of an item that another rank saved. */
struct torch_copy {
	struct torch_item item; /* has the name of the original */
	char *owner,
		*item_owner; /* ranks that saved the copy and the item, e.g. "tp 1" */
};

/* An open file or directory. */
struct torch_file {
	char *path;
	struct torch_item *items; /* sorted by name */
	int64_t n;
	struct torch_copy *copies;
	int64_t n_copies;
	struct torch_parts *parts; /* archive_internal.h */
};

/* A format of files or directories that hold tensors: a source file and a row of CONTAINERS. */
struct container {
	bool is_file;	    /* else a directory */
	bool many_archives; /* each chunk is a torch.save() archive of its own */
	/* Returns true if a path has this format, by its first bytes or its file names. */
	bool (*matches)(const char *path);
	/* Appends the items of the file or directory f->path. */
	int (*open)(struct torch_file *f, struct err *e);
};
/* find_container() tries the rows in this order. */
#define CONTAINERS(X) \
	X(file)       \
	X(dcp)        \
	X(dcp_pair)   \
	X(one_bin) X(universal) X(zero_model) X(nanotron) X(zero) X(bins) X(shards)
#define CONTAINER_ROW(name) extern const struct container container_##name;
CONTAINERS(CONTAINER_ROW)
#undef CONTAINER_ROW

/* A model and its optimizer in one directory: checkpoint-N of Hugging Face's Trainer, or
 * accelerate's save_state(). Not a row of CONTAINERS, since find_container() is for models. */
extern const struct container container_trainer;

/* Returns true if the directory has a file of this name. */
bool directory_has_file(const char *directory, const char *name);
/* Returns the container that matches a path; NULL if none does. */
const struct container *find_container(const char *path);
/* Opens a path with the container that matches it; without a match as a torch.save() file. */
int torch_open(struct torch_file *f, const char *path, struct err *e);
/* Opens a path with a known container. */
int torch_open_as(
	struct torch_file *f, const struct container *c, const char *path, struct err *e);
void torch_close(struct torch_file *f);
/* Returns NULL if no item has the name. */
const struct torch_item *torch_find(const struct torch_file *f, const char *name);
/* Returns true if two tensors share the same elements of one storage, as a tied weight does. */
bool torch_share_elements(const struct torch_file *f, const struct torch_item *a,
	const struct torch_item *b);
const char *torch_dtype_name(int dtype); /* "float32", as in PyTorch */

/* Returns the number of elements of a row, which is one index of the first dimension. */
int64_t torch_row_size(const struct torch_item *t);
/* Returns the size of the first dimension; 1 for a scalar. */
int64_t torch_rows(const struct torch_item *t);
/* Reads rows [row, row + n) of a tensor of any type to out[n][torch_row_size()]. torch_read()
 * rounds fp64 and integers to fp32; bf16 and fp16 convert exactly. The tensor need not be
 * contiguous. Not thread-safe on one file. */
int torch_read(struct torch_file *f, const struct torch_item *t, int64_t row, int64_t n,
	float *out, struct err *e);
int torch_read_doubles(struct torch_file *f, const struct torch_item *t, int64_t row,
	int64_t n, double *out, struct err *e);
/* The difference of two tensors a and b. */
struct torch_difference {
	int64_t n, first; /* elements that differ, index of the first; -1: none */
	double value[2];  /* that element of a and b */
	double distance;  /* |a - b| / |a|, 2-norms */
};
/* Compares two tensors. Fails with EX_DATAERR if their shapes differ. */
int torch_compare(struct torch_file *f, const struct torch_item *a,
	const struct torch_item *b, struct torch_difference *d, struct err *e);
/* Reads a value that is a number, a tuple or list of at most `max` numbers, or a tensor of one
 * element. Sets *n to their number; 0 for anything else, such as None. */
int torch_read_numbers(struct torch_file *f, const struct torch_item *x, int64_t max,
	double *out, int64_t *n, struct err *e);
/* Reads up to `max` numbers from a member of a value. The path joins keys, fields of objects and
 * indices of lists by dots: 0.optimizer.lr. Sets *n to 0 if the member is missing. */
int torch_read_numbers_at(struct torch_file *f, const struct torch_item *x,
	const char *path, int64_t max, double *out, int64_t *n, struct err *e);
/* Appends a description of a value, such as "a call of os.system". */
void torch_describe(
	const struct torch_file *f, const struct torch_item *x, struct str *out);
/* Appends the strings of a value: a string, or those in a list or tuple; none of anything else. */
int torch_read_strings(struct torch_file *f, const struct torch_item *x, struct strs *out,
	struct err *e);
