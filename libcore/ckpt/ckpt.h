/* ckpt: checkpoints. Each tensor is one dataset in its unsharded shape, so any layout can read it.
 * Each block of rows has a checksum, and a file gets its name only when it is complete.
 *
 * The bytes of a checkpoint depend on the run and the step only, not on layout, host or time, so
 * equal runs write files that are equal to cmp. Functions that return int return 0, or -1 with *e
 * set. */
#pragma once

#include "base/base.h"
#include "comm/comm.h"
#include "token/tokenizer.h"
#include "h5/h5.h"

/* 2: some tensors are stateless, which readers of version 1 would take for damage; else 1. */
enum { CKPT_VERSION = 2 };

/* The groups of a file, each with a dataset per tensor. Group 0 is /model, the parameters; the
 * rest, sorted by name, is the state of the optimizer and of local SGD. */
enum { CKPT_MODEL, CKPT_MAX_GROUPS = 32 };

/* The attributes of a checkpoint. */
struct ckpt_info {
	const char *format, *created_by;
	int64_t version;
	int64_t step, samples, tokens;	      /* done so far */
	double loss, val_loss, best_val_loss; /* NaN: none */
	/* fp16: the loss scale, good steps since it changed, skipped steps */
	double loss_scale; /* 0: none */
	int64_t loss_scale_good, skipped_steps;
	uint64_t param_hash;
	uint64_t data_hash; /* hash of the corpus; 0: none */
	int64_t grid;  /* exponent of the gradients' grid; 0: none, summed in a tree */
	int64_t order; /* PASS_VERSION of the program; 0: before there were versions */
	int64_t workers,
		worker; /* local SGD: number of workers (0: none), index of the worker */
};

extern const struct h5_field ckpt_fields[];

struct device;	  /* kernels/device.h */
struct ckpt_view; /* ckpt/view.h */

struct ckpt_tensor {
	char name[64];
	int ndim;
	int64_t dims[2];
	bool stateless; /* frozen: only /model has it, other groups read as zeros */
};

/* ---- write.c --------------------------------------------------------------------- */

/* Fills `out` on rank `to` with rows [row, row + n) of the unsharded tensor; elsewhere it may be
 * NULL. Collective: all ranks make the same calls, in ascending order of tensors and rows, on the
 * thread that called ckpt_write_begin(). If source_threads is set it is not collective: only `to`
 * calls it, on any thread and in any order. */
typedef void ckpt_source(
	void *arg, int group, int tensor, int64_t row, int64_t n, int to, float *out);

struct ckpt_write {
	struct comm *comm; /* the ranks that write the file together */
	const char *path;
	struct ckpt_info info;
	const char *config; /* options of the run */
	const char *origin; /* dataset /origin, see struct ckpt; NULL or empty: none */
	const struct tokenizer *tokenizer;
	const struct ckpt_tensor *tensors;
	int n_tensors;
	const char *groups[CKPT_MAX_GROUPS]; /* the first is "model" */
	int n_groups;
	const double *numbers; /* [n_numbers], dataset /edit of a worker; NULL: none */
	int64_t n_numbers;
	const double
		*load; /* [n_load], dataset /router.load, see struct ckpt; NULL: none */
	int64_t n_load;
	ckpt_source *source;
	void *with;
	bool source_threads; /* the source is thread-safe: threads make the copy */
	bool one_writes; /* rank 0 writes all, because other ranks cannot access its files */
	/* The error that the source sets; the file is not committed then. NULL: it cannot fail. */
	const struct err *source_error;
};

/* Returns a tight upper bound of the size of the file. */
int64_t ckpt_estimate_bytes(const struct ckpt_write *w);
/* Returns a tight upper bound of the bytes of this rank's part. Uses only rank and size of comm. */
int64_t ckpt_copy_bytes(const struct ckpt_write *w);
/* Writes a checkpoint. Collective. On an error an existing file is unchanged; if the disk is known
 * to have too little space, nothing is written. */
int ckpt_write(const struct ckpt_write *w, struct err *e);

/* An asynchronous write: this rank's part is copied, and a thread, which calls neither MPI nor
 * HDF5, writes the copy. One at a time. */
struct ckpt_writing;

/* Starts a write. Collective. `copy`: a buffer of ckpt_copy_bytes(), in use until the end of the
 * write; NULL: writes this rank's part before it returns. `w` and what it points to are not needed
 * afterwards. After an error, do not call ckpt_write_end(). */
int ckpt_write_begin(
	struct ckpt_writing **x, const struct ckpt_write *w, float *copy, struct err *e);
/* Returns true if this rank has written its part, or failed to. Does not block. */
bool ckpt_write_done(const struct ckpt_writing *x);
/* Waits for all parts, renames the file, and frees x. Collective. */
int ckpt_write_end(struct ckpt_writing *x, struct err *e);

/* ---- read.c ---------------------------------------------------------------------- */

struct ckpt {
	char *path;
	struct ckpt_info info;
	struct str config;
	/* Small files of the foreign model that the run began with: a JSON object, name -> text. */
	struct str origin;
	struct tokenizer tokenizer;
	struct ckpt_tensor *tensors;
	int n_tensors;
	struct strs groups; /* "model", then the rest sorted by name */
	double *numbers;
	int64_t n_numbers;
	double *load; /* [layer][expert]: fractions of the slots of the last step, or NULL */
	int64_t n_load;
	int64_t size_bytes;
	int fd;
	struct h5_blocks *blocks; /* [group][tensor] */
	struct ckpt_view *view;	  /* the source of tensors; NULL: the file */
};

/* Opens a checkpoint, for ckpt_close(): a file, or the latest one of a run or directory. */
int ckpt_open(struct ckpt **c, const char *path, struct err *e);
typedef int ckpt_opener(struct ckpt **c, const char *path, struct err *e);
/* Opens a checkpoint as ckpt_open(), or standard input ("-"), copied to a temporary file first. */
int ckpt_open_stream(struct ckpt **c, const char *path, struct err *e);
/* Rejects a PEFT directory or its file of tensors: an adapter, not a model. */
int ckpt_reject_adapter(const char *path, struct err *e);
/* Returns a checkpoint with the tensors of a view, to show and compare. Takes over the view:
 * ckpt_close() closes it. */
struct ckpt *ckpt_from_view(struct ckpt_view *v);
void ckpt_close(struct ckpt *c);
/* Return the index of a tensor or group; -1 if the name is missing. */
int ckpt_find(const struct ckpt *c, const char *name);
int ckpt_find_group(const struct ckpt *c, const char *name);
int64_t ckpt_row_size(const struct ckpt_tensor *t); /* elements of a row */
int64_t ckpt_size(const struct ckpt_tensor *t);	    /* elements of the tensor */
bool ckpt_same_shape(const struct ckpt_tensor *a, const struct ckpt_tensor *b);
/* Reads rows [row, row + n) of a tensor, and verifies every block that they touch. */
int ckpt_read_rows(const struct ckpt *c, int group, int tensor, int64_t row, int64_t n,
	float *out, struct err *e);
/* Calls fn with each block of a tensor, until it returns nonzero. Returns its last result, or -1
 * with *e set if the file cannot be read. */
int ckpt_for_each_block(const struct ckpt *c, int group, int tensor,
	int (*fn)(void *arg, int64_t first, const float *x, int64_t n), void *arg,
	struct err *e);
/* Adds elements [first, first + n) of a tensor to a hash, initially 0. Over all parameters this is
 * the hash of the model, as in store_hash(). */
void ckpt_hash_add(struct device *d, uint64_t *hash, const struct ckpt_tensor *t,
	int64_t first, const float *x, int64_t n);

/* ---- verify.c -------------------------------------------------------------------- */

/* Verifies all blocks, with all threads of the device. */
int ckpt_verify(const struct ckpt *c, struct err *e);
/* Verifies all blocks and the hash of the parameters. */
int ckpt_verify_hash(const struct ckpt *c, struct err *e);

/* ---- directory.c: the checkpoints of a run ---------------------------------------------- */

/* Sets `out` to DIRECTORY/step-00000100.h5. Returns out->s. */
const char *ckpt_set_path(struct str *out, const char *directory, int64_t step);
int64_t ckpt_parse_step(
	const char *name); /* returns the step in step-00000100.h5; else -1 */
/* Sets *steps, for free(), to the steps of a directory's checkpoints, ascending. Returns their
 * number, 0 if the directory does not exist, -1 if it cannot be read. */
int64_t ckpt_list(const char *directory, int64_t **steps, struct err *e);
/* Atomically points the link DIRECTORY/NAME (latest.h5, best.h5) to a step. */
int ckpt_set_link(const char *directory, const char *name, int64_t step, struct err *e);
/* Returns the step that a link points to, or -1. */
int64_t ckpt_get_link(const char *directory, const char *name);
/* Removes checkpoints before step `from`, except the last `keep` and the best. keep = 0: none.
 * Warns if that fails. */
void ckpt_prune(const char *directory, int64_t keep, int64_t from);
/* Removes checkpoints of steps later than `after`, from which a run resumes, except step `except`;
 * and unfinished files of killed runs. */
void ckpt_remove_after(const char *directory, int64_t after, int64_t except);
/* Removes unfinished files of killed runs. */
void ckpt_remove_unfinished(const char *directory);
/* Resolves a file, a run, or a directory of checkpoints (the latest one) to a path without links,
 * for free(). If there is no such file, returns the name itself. */
char *ckpt_find_file(const char *name);
bool ckpt_is_empty_directory(const char *name); /* true: a directory without latest.h5 */
/* Appends the path of worker K's checkpoint for the first worker's: RUN/worker-K/checkpoints/NAME
 * for RUN/checkpoints/NAME. */
void ckpt_worker_path(struct str *out, const char *path, int64_t worker);
/* Returns 0 if a run can use the checkpoint, or -1 with the reason in *e. */
typedef int ckpt_usable(void *arg, const struct ckpt *c, struct err *e);
/* Returns true if the run was killed while its workers wrote their first checkpoint, this one. */
typedef bool ckpt_has_just_begun(const struct ckpt *c);
/* Returns the path of the newest checkpoint that is intact, usable, and complete on all workers;
 * for free(). NULL: there is none, or only an intact one of a run that had just begun; or, with *e
 * set, none qualifies or the directory cannot be read. Warns of each skipped checkpoint. */
char *ckpt_find_newest(const char *directory, ckpt_usable *usable,
	ckpt_has_just_begun *begun, void *arg, struct err *e);

/* ---- diff.c ---------------------------------------------------------------------- */

struct ckpt_delta {
	const char *
		group; /* group of the tensor; NULL: `name` is a group that one file lacks */
	char name[64];
	bool only_a, only_b, other_shape;
	int64_t n, n_differ,
		first; /* elements, elements that differ, index of the first */
	double max_abs;
	int64_t max_ulp;
};

/* Sets *out, for free(), to the differences of tensors, then missing groups. Returns their number,
 * or -1. `order`: indices of the tensors of `a` in the order to list; NULL: by name.
 * with_optimizer: compares all groups, not only the parameters. */
int64_t ckpt_diff(const struct ckpt *a, const struct ckpt *b, const int *order,
	bool with_optimizer, struct ckpt_delta **out, struct err *e);
