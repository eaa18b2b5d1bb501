/* Shared by the files of this directory: where the elements of a tensor are stored. */
#pragma once

#include "archive/pickle.h"
#include "archive/archive.h"
#include "archive/zip.h"

/* ---- tensor.c: one archive of torch.save() ------------------------------------------ */

/* An open archive: its central directory and its tree. */
struct archive {
	struct zip zip;
	struct str pkl;	   /* bytes of data.pkl */
	struct str prefix; /* prefix of the names of all entries; ends with a slash */
	struct pickle tree;
	int64_t n_parsed; /* bytes of data.pkl and of the central directory */
};
/* Opens the torch.save() archive at bytes [begin, begin + size) of a file, and parses its
 * data.pkl. `name` is for messages; the caller closes `fd`. */
int archive_open(struct archive *a, int fd, const char *name, int64_t begin, int64_t size,
	struct err *e);
void archive_close(struct archive *a);

/* The shape and storage of a tensor. */
struct tensor_info {
	const char *storage_key; /* not NUL-terminated */
	size_t key_bytes;	 /* length of storage_key */
	int dtype, ndim;
	int64_t offset, n_stored; /* first element in the storage, size of the storage */
	int64_t dims[TORCH_MAX_DIMS], stride[TORCH_MAX_DIMS]; /* in elements */
};
/* Sets *d to the tensor of a node. Returns 1 if the node is not a tensor. */
int describe_tensor(
	const struct pickle *p, uint32_t node, struct tensor_info *d, struct err *e);

/* Where the elements of a chunk are stored. */
struct place {
	int64_t at;   /* offset of the first element in the file, in bytes */
	int64_t span; /* elements from the first to the last, gaps included */
	bool contiguous;
	int64_t stride[TORCH_MAX_DIMS]; /* in elements */
};
/* Returns the zip entry of a tensor's storage; NULL with *e set. */
struct zip_entry *find_storage(
	const struct archive *a, const struct tensor_info *d, struct err *e);
/* Returns the place of a tensor in a storage at byte `at`; for free(). */
struct place *make_place(const struct tensor_info *d, int64_t at);
/* Verifies the checksum of a tensor's storage and sets *x to its place; for free(). */
int find_verified_place(const struct archive *a, const struct tensor_info *d,
	struct place **x, struct err *e);

/* Returns true if no dimension is negative and the product of all nonzero ones fits in 60 bits. */
bool shape_fits(const int64_t *dims, int ndim);

/* Returns the type of a name without "torch.", such as float32; -1: unknown. */
int dtype_of_name(const char *name, size_t n_bytes);
int64_t dtype_size(int dtype);
/* Convert n elements of a type to float or double. */
void dtype_to_floats(int dtype, const void *raw, int64_t n, float *out);
void dtype_to_doubles(int dtype, const void *raw, int64_t n, double *out);

/* ---- items.c: tensors in chunks -------------------------------------------------------- */

/* A box of a tensor that is stored as one tensor. */
struct chunk {
	int64_t box; /* index in parts.boxes: [ndim] begin, then [ndim] sizes */
	int64_t at,
		n_bytes; /* bytes in the file: DCP: the archive; storages.c: the elements */
	int32_t file;	 /* index in parts.files; -1: not stored */
	uint32_t
		node; /* torch.save(): node in the tree; storages.c: zip entry of the storage */
	struct place *place; /* NULL until the first element is read */
};

enum { OPEN_FILES = 32 };
struct torch_parts {
	bool many_archives; /* each chunk is an archive; else `archive` is the whole file */
	struct archive archive;
	struct chunk *chunks;
	int64_t n_chunks;
	int64_t *boxes;
	int64_t n_boxes;
	/* Data files. At most OPEN_FILES of them are open at a time. */
	char **files;
	int *fds;			     /* -1: closed */
	int32_t n_files, recent[OPEN_FILES]; /* recent: ring of open files; -1: free */
	int next;			     /* next index in recent, modulo OPEN_FILES */
	struct zip *zips;		     /* [file], storages.c only; else NULL */
	/* Cache: all elements of the last tensor read that is not contiguous, and its place. */
	void *span;
	const struct place *span_place;
	int64_t budget; /* bytes that items_charge() may still subtract */
	char options_xxh3[17], param_hash[17]; /* safetensors.c: equal in all files */
};

/* The budget bounds memory by the size of the files, which may refer to one text very often. */
enum { INITIAL_FILE_BYTES = 1 << 22 }; /* granted before any file is open */
/* Adds 16 times the bytes of a file to the budget. */
void items_grant(struct torch_file *f, int64_t n_bytes);
/* Subtracts bytes of memory from the budget. Fails with EX_DATAERR when it is spent. */
int items_charge(struct torch_file *f, int64_t n_bytes, struct err *e);
/* Appends an item with this name, and charges for its memory. Returns NULL with *e set. */
struct torch_item *items_add(
	struct torch_file *f, const char *name, size_t n_bytes, struct err *e);
/* Appends a tensor with the type and shape of *d. Returns its item; NULL with *e set. */
struct torch_item *items_add_tensor(struct torch_file *f, const char *name,
	size_t n_bytes, const struct tensor_info *d, struct err *e);
/* Appends a chunk to the last item, and returns it: the box of these sizes at `begin`. Set the
 * item's shape before, and add chunks in the order of `begin`. The next items_add() fails if the
 * budget is exceeded. */
struct chunk *items_add_chunk(
	struct torch_file *f, const int64_t *begin, const int64_t *sizes);
/* Sets the place of a contiguous chunk to byte `at` of its file. */
void chunk_set_place(struct chunk *c, int64_t at);
extern const int64_t no_dims[TORCH_MAX_DIMS];
/* Moves the last item to the copies. `owner`: rank that saved the last item; `original`: rank that
 * saved the item of the same name. */
void items_move_to_copies(struct torch_file *f, const char *owner, const char *original);
/* Sorts the items; checks that their names differ and that chunks cover each tensor once. */
int items_finish(struct torch_file *f, struct err *e);
/* Appends a file. Returns its index. */
int32_t items_add_file(struct torch_file *f, const char *path);
/* Returns the descriptor of a file, which it opens if need be; -1 with *e set. */
int items_fd(struct torch_file *f, int32_t file, struct err *e);

/* ---- storages.c: tensors in storages of several archives ------------------------------------ */

/* Appends the files of a list. Must come first, so that file i is path i. */
void storages_add_files(struct torch_file *f, const struct strs *paths);
/* Opens the archive of a file. */
int storages_open(struct torch_file *f, int32_t file, struct archive *a, struct err *e);
/* Closes an archive, but keeps its zip directory, where storages are looked up later. */
void storages_close(struct torch_file *f, int32_t file, struct archive *a);
/* Appends the tensor of a node as an item. Returns 1 if the node is not a tensor. */
int storages_add_tensor(struct torch_file *f, int32_t file, const struct archive *a,
	uint32_t node, const char *name, struct err *e);

/* A flat, contiguous buffer. */
struct buffer {
	int32_t file;
	uint32_t entry; /* zip entry of the storage */
	int dtype;
	int64_t at, n; /* first byte in the file, number of elements */
};
/* Sets *d to the tensor of a node, and *b (except file and n) to its first element. Returns 1 if
 * the node is not a tensor. */
int storages_describe(const struct archive *a, uint32_t node, struct tensor_info *d,
	struct buffer *b, struct err *e);
/* Sets *b to the one-dimensional contiguous tensor of a node; fails if it is anything else. */
int storages_describe_buffer(const struct torch_file *f, int32_t file,
	const struct archive *a, uint32_t node, struct buffer *b, struct err *e);
/* Finds the largest box that begins at element `first` of a tensor of these dimensions, is
 * contiguous in it, and has at most n elements. Returns its number of elements. */
int64_t storages_next_box(int ndim, const int64_t *dims, int64_t first, int64_t n,
	int64_t *begin, int64_t *sizes);
/* Appends chunks: elements [first, first + n) of the last item are elements [from, from + n) of the
 * buffer. Ranges must be added in order. */
void storages_add_range(struct torch_file *f, const struct buffer *b, int64_t from,
	int64_t first, int64_t n);
/* Verifies the checksum of a chunk's storage the first time, and sets the chunk's place. A file
 * that is not an archive has no checksums. */
int storages_verify(struct torch_file *f, struct chunk *c, struct err *e);

/* ---- weight_map.c: the index of a model in several files ------------------------------------ */

struct json_t;
struct weight_map {
	const char *path;   /* path of the index; owned by the caller */
	struct json_t *map; /* tensor -> file */
	struct strs files;  /* distinct file names, in the index's directory */
};

/* Reads an untrusted index. */
int weight_map_read(struct weight_map *m, const char *path, struct err *e);
void weight_map_release(struct weight_map *m);
/* Sets *out to the path of a file. */
void weight_map_path(const struct weight_map *m, int64_t file, struct str *out);
/* Checks that each tensor of the index is in the file that it names, and that the index lists all
 * tensors. The files of f are m->files, in order. */
int weight_map_check(
	const struct weight_map *m, const struct torch_file *f, struct err *e);

/* ---- containers.c ------------------------------------------------------------------------ */

/* Returns true if the directory has a Hugging Face model in safetensors files. It takes precedence
 * over PyTorch files in the same directory. */
bool container_has_safetensors(const char *directory);

/* ---- bins.c ------------------------------------------------------------------------------ */

/* Appends the files, which are torch.save() dicts of tensors, and their tensors. */
int bins_add(struct torch_file *f, const struct strs *paths, struct err *e);

/* ---- torch_file.c, universal.c ------------------------------------------------------------ */

/* Opens f->path as a torch.save() file. */
int torch_file_open(struct torch_file *f, struct err *e);
/* Replaces f->path by `path`, a file inside the directory that f was, and opens it as a torch.save()
 * file. Takes ownership of `path`. */
int torch_file_open_inside(struct torch_file *f, char *path, struct err *e);
/* Opens a file as an archive. The caller closes a->zip.fd. `path` must outlive the archive. */
int archive_open_path(struct archive *a, const char *path, struct err *e);
/* Appends the items below a node of f->parts->archive; their names get the prefix `name`. */
int torch_file_add_items(
	struct torch_file *f, uint32_t node, const char *name, struct err *e);
/* Returns the node of an archive's only tensor: the root, or "param" of DeepSpeed's dict. */
uint32_t find_archive_tensor(const struct archive *a);

/* ---- zero_files.c: the files of a checkpoint of ZeRO ----------------------------------------- */

#define ZERO_UNIVERSAL \
	"convert the checkpoint with DeepSpeed's ds_to_universal.py, and pass the result"

struct zero_files {
	struct str directory;
	struct strs model, optim;     /* file names */
	bool has_experts, has_stages; /* files of experts, of pipeline stages */
};
/* Finds the files in a directory, or in the subdirectory that its file `latest` names. Returns
 * false if there are none. */
bool zero_files_find(struct zero_files *x, const char *path);
void zero_files_release(struct zero_files *x);
/* Fails unless each file has the whole model (no tensor, pipeline or expert parallelism). */
int zero_files_check(const struct zero_files *x, struct err *e);
/* Lists the optimizer files of all ranks, then the model files: one per rank with ZeRO 3, else one.
 * Fails if a file is missing. */
int zero_files_list(const struct zero_files *x, int64_t stage, int64_t ranks,
	struct strs *paths, struct err *e);
