/* Shared by the files of this floor: where the numbers of a tensor are. */
#pragma once

#include "archive/pickle.h"
#include "archive/archive.h"
#include "archive/zip.h"

/* ---- tensor.c: one archive of torch.save() ------------------------------------------ */

/* An archive that is open: its directory, and its tree. */
struct archive {
	struct zip zip;
	struct str pkl,
		top; /* the bytes of data.pkl; what is in front of the names of its entries */
	struct pickle tree;
	int64_t n_parsed; /* bytes of data.pkl and of the directory */
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
/* The entry of its storage; NULL: *e says why there is none. */
struct zip_entry *find_storage(
	const struct archive *a, const struct described *d, struct err *e);
/* Its place, if its storage begins at byte `at`; for free(). */
struct place *make_place(const struct described *d, int64_t at);
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
	int64_t at,
		n_bytes; /* of DCP: its archive in the file; of storages.c: its numbers */
	int32_t file;	 /* -1: not stored */
	uint32_t
		node; /* of torch.save(): in the tree; of storages.c: the entry of its storage */
	struct place *place; /* NULL: not looked for yet */
};

enum { OPEN_FILES = 32 };
struct torch_parts {
	bool many; /* each chunk of a file is an archive; else `archive` is the file */
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
	struct zip *zips; /* storages.c: of each file; else NULL */
	/* A tensor that is not contiguous, as it is in memory. */
	void *span;
	const struct place *span_of;
	int64_t allowed; /* bytes that items_charge() may still take */
	char options_xxh3[17], param_hash[17]; /* safetensors.c: of all its files */
};

/* Names, items, chunks and values take memory and time in proportion to the bytes of the files, though a file may list
 * one text, dict or storage very often: items_allow() adds 16 times the bytes of a file, items_charge() takes what is
 * kept, and fails when nothing is left. */
enum { ALLOWED_ANYWAY = 1 << 22 }; /* bytes, times 16 */
void items_allow(struct torch_file *f, int64_t n_bytes);
int items_charge(struct torch_file *f, int64_t n_bytes, struct err *e);
/* Appends an item with the name, and charges it. NULL: *e is set. */
struct torch_item *items_add(
	struct torch_file *f, const char *name, size_t n_bytes, struct err *e);
/* Appends a tensor, by what the tree says about it. */
struct torch_item *items_add_tensor(struct torch_file *f, const char *name,
	size_t n_bytes, const struct described *d, struct err *e);
/* Appends a chunk to the last item, whose dimensions are set: where it begins in each, and its sizes. They
 * are to be added in the order of their begins. They are charged; the next item fails if nothing is left. */
struct chunk *items_add_chunk(
	struct torch_file *f, const int64_t *begin, const int64_t *sizes);
/* Sets its place: contiguous, from a byte of its file on. */
void chunk_place(struct chunk *c, int64_t at);
extern const int64_t no_dims[TORCH_MAX_DIMS];
/* The last item is no item, but a copy of the one with its name: what another rank has of it. Whose it is, and whose
 * the item is. */
void items_end_copy(struct torch_file *f, const char *whose, const char *first);
/* Sorts them, and checks that their names differ and that chunks cover their tensors. */
int items_end(struct torch_file *f, struct err *e);
/* Appends a file. Returns its number. */
int32_t items_add_file(struct torch_file *f, const char *path);
/* Its descriptor. */
int items_fd(struct torch_file *f, int32_t file, struct err *e);

/* ---- storages.c: tensors in storages of several archives, of which only the directories are kept ------------- */

/* Appends the files of a list, from number 0 on, before all else. */
void storages_files(struct torch_file *f, const struct strs *paths);
/* Opens one. */
int storages_open(struct torch_file *f, int32_t file, struct archive *a, struct err *e);
/* Closes it, but for its directory, in which storages are found. */
void storages_close(struct torch_file *f, int32_t file, struct archive *a);
/* Appends an item that is the tensor of a node. 1: it is none. */
int storages_tensor(struct torch_file *f, int32_t file, const struct archive *a,
	uint32_t node, const char *name, struct err *e);

/* A flat buffer. */
struct buffer {
	int32_t file;
	uint32_t entry; /* of its storage */
	int dtype;
	int64_t at, n; /* its first byte in the file, its numbers */
};
/* The tensor of a node, and where its first number is. 1: it is none. */
int storages_describe(const struct archive *a, uint32_t node, struct described *d,
	struct buffer *b, struct err *e);
int storages_buffer(const struct torch_file *f, int32_t file, const struct archive *a,
	uint32_t node, struct buffer *b, struct err *e);
/* The largest box of one of these dimensions that begins with number `first` of it and has at most n, in order. Returns
 * its size. */
int64_t storages_cut(int ndim, const int64_t *dims, int64_t first, int64_t n,
	int64_t *begin, int64_t *sizes);
/* Numbers [first, first + n) of the last item are those of the buffer from `from` on. They are to be added
 * in order. */
void storages_add(struct torch_file *f, const struct buffer *b, int64_t from,
	int64_t first, int64_t n);
/* Checks the storage of a chunk, once, and sets its place. (A file that is no archive has no checksums.) */
int storages_find(struct torch_file *f, struct chunk *c, struct err *e);

/* ---- weight_map.c: the index of a model in several files ------------------------------------ */

struct json_t;
struct weight_map {
	const char *path;   /* of the index; the caller's */
	struct json_t *map; /* the file of each tensor */
	struct strs files;  /* names of files beside the index, each once */
};

/* Reads an index that is not trusted. */
int weight_map_read(struct weight_map *m, const char *path, struct err *e);
void weight_map_free(struct weight_map *m);
/* Sets *out to the path of a file. */
void weight_map_path(const struct weight_map *m, int64_t file, struct str *out);
/* Checks that each tensor of the index is in its file, in the order of the list, and that the index has all. */
int weight_map_check(
	const struct weight_map *m, const struct torch_file *f, struct err *e);

/* ---- containers.c ------------------------------------------------------------------------ */

/* Has it a model of Hugging Face in safetensors files? It is read instead of files of PyTorch beside it. */
bool container_has_safetensors(const char *directory);

/* ---- bins.c ------------------------------------------------------------------------------ */

/* Appends the tensors of files of torch.save(), each a dict of tensors, with storages_files(). */
int bins_add(struct torch_file *f, const struct strs *paths, struct err *e);

/* ---- torch_file.c, universal.c ------------------------------------------------------------ */

/* Opens f->path as a file of torch.save(). */
int torch_file_open(struct torch_file *f, struct err *e);
/* Opens another file of that kind; takes its path, which is allocated. */
int torch_file_open_inside(struct torch_file *f, char *path, struct err *e);
/* Opens a file, whose descriptor is the caller's to close. The archive keeps `path`. */
int archive_of_path(struct archive *a, const char *path, struct err *e);
/* Appends the items below a node of f->parts->archive, with this name in front. */
int torch_file_walk(struct torch_file *f, uint32_t node, const char *name, struct err *e);
/* The node of the tensor of an archive, which may be in a dict of DeepSpeed. */
uint32_t archive_tensor(const struct archive *a);

/* ---- zero_files.c: the files of a checkpoint of ZeRO ---------------------------------------------- */

#define ZERO_UNIVERSAL \
	"make a universal checkpoint of it, with DeepSpeed's ds_to_universal.py, and give that"

struct zero_files {
	struct str folder;
	struct strs model, optim; /* names */
	bool experts, stages;
};
/* Finds them in a directory, or in the one that its file `latest` names. false: there are none. */
bool zero_files_find(struct zero_files *x, const char *path);
void zero_files_free(struct zero_files *x);
/* Are they of whole models? */
int zero_files_check(const struct zero_files *x, struct err *e);
/* Lists those of all ranks, first those of the optimizer, then those of the model: of each rank with ZeRO
 * 3, else one. All must be there. */
int zero_files_list(const struct zero_files *x, int64_t stage, int64_t ranks,
	struct strs *paths, struct err *e);
