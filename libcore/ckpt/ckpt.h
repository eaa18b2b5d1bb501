/*
 * ckpt: checkpoints. Each tensor is one dataset in its unsharded shape, so any layout can read it.
 * Each block of rows has a checksum, and a file gets its name only when it is complete.
 *
 * The bytes of a checkpoint are a function of the run and the step, without layout, host or time,
 * so equal runs give files that cmp finds equal. Functions that return int return 0, or -1 with *e
 * set.
 */
#pragma once

#include "base/base.h"
#include "comm/comm.h"
#include "token/tokenizer.h"
#include "h5/h5.h"

/* 1; 2: some tensors are stateless, which programs that know 1 only would take for damage. */
enum { CKPT_VERSION = 2 };

/* The groups of a file, each with a dataset for every tensor: group 0 is /model, the parameters; the
 * others, by name, are the state of the optimizer and of local SGD. */
enum { CKPT_MODEL, CKPT_MAX_GROUPS = 32 };

/* The attributes of a checkpoint. */
struct ckpt_info {
	const char *format, *created_by;
	int64_t version;
	int64_t step, samples, tokens;	      /* so far */
	double loss, val_loss, best_val_loss; /* NaN: none */
	/* fp16: the loss scale, good steps since it changed, skipped steps */
	double loss_scale; /* 0: none */
	int64_t loss_scale_good, skipped_steps;
	uint64_t param_hash;
	uint64_t data_hash; /* of the corpus; 0: none */
	int64_t grid; /* the exponent of that of gradients; 0: none, sums were a tree's */
	int64_t order; /* PASS_VERSION of the program, 0: before there was one */
	int64_t workers, worker; /* local SGD: their number (0: none), this one's index */
};

extern const struct h5_field ckpt_fields[];

struct device;	  /* kernels/device.h */
struct ckpt_view; /* ckpt/view.h */

struct ckpt_tensor {
	char name[64];
	int ndim;
	int64_t dims[2];
	bool stateless; /* frozen: no group but /model has it, and reading it gives zeros */
};

/* ---- write.c --------------------------------------------------------------------- */

/* Gives rank `to` rows [row, row + n) of the unsharded tensor in `out`, which may be NULL on other
 * ranks. Collective: all ranks make the same calls, in ascending order of tensors and rows, on the
 * thread that called ckpt_write_begin(). If source_threads is set it is not collective: only `to`
 * calls it, on any thread and in any order. */
typedef void ckpt_source(
	void *with, int group, int tensor, int64_t row, int64_t n, int to, float *out);

struct ckpt_write {
	struct comm *comm; /* its ranks write the file together */
	const char *path;
	struct ckpt_info info;
	const char *config; /* of the run */
	const char *origin; /* dataset /origin, see struct ckpt; NULL or empty: none */
	const struct tokenizer *tokenizer;
	const struct ckpt_tensor *tensors;
	int n_tensors;
	const char *groups[CKPT_MAX_GROUPS]; /* names, the first is "model" */
	int n_groups;
	const double *numbers; /* [n_numbers], dataset /edit of a worker; NULL: none */
	int64_t n_numbers;
	ckpt_source *source;
	void *with;
	bool source_threads; /* the source is thread-safe: threads make the copy */
	bool one_writes;     /* rank 0 writes all, because others do not see its files */
	/* A source that can fail sets this error, and the file is not committed. NULL: it
	 * cannot. */
	const struct err *source_error;
};

/* A close upper bound of the size of the file. */
int64_t ckpt_bytes(const struct ckpt_write *w);
/* A close upper bound of the bytes of the copy of this rank's part. Uses only rank and size of
 * `comm`. */
int64_t ckpt_copy_bytes(const struct ckpt_write *w);
/* Collective. On an error, an existing file is unchanged; if there is known to be too little space,
 * nothing is written. */
int ckpt_write(const struct ckpt_write *w, struct err *e);

/*
 * An asynchronous write: this rank's part is copied, and a thread, which calls neither MPI nor HDF5,
 * writes the copy. One at a time.
 */
struct ckpt_writing;

/* Collective. `copy` has ckpt_copy_bytes() bytes and is in use until the end of the write; NULL:
 * this rank's part is written before the function returns. `w` and what it points to are not needed
 * afterwards. After an error, do not call ckpt_write_end(). */
int ckpt_write_begin(
	struct ckpt_writing **x, const struct ckpt_write *w, float *copy, struct err *e);
/* True if this rank has written its part, or failed to. Does not wait. */
bool ckpt_write_done(const struct ckpt_writing *x);
/* Collective. Waits for all parts, and renames the file. Frees x. */
int ckpt_write_end(struct ckpt_writing *x, struct err *e);

/* ---- read.c ---------------------------------------------------------------------- */

struct ckpt {
	char *path;
	struct ckpt_info info;
	struct str config;
	/* Small files of the model of another program that the run began with: JSON, an object of names and texts */
	struct str origin;
	struct tokenizer tokenizer;
	struct ckpt_tensor *tensors;
	int n_tensors;
	struct strs groups; /* names: "model", then the others in order */
	double *numbers;
	int64_t n_numbers;
	int64_t size_bytes;
	int fd;
	struct h5_blocks *blocks; /* [group][tensor] */
	struct ckpt_view *view;	  /* instead of a file; NULL: a file */
};

/* The directory of a run, or of its checkpoints, stands for the latest checkpoint. *c is allocated:
 * ckpt_close(). */
int ckpt_open(struct ckpt **c, const char *path, struct err *e);
typedef int ckpt_opener(struct ckpt **c, const char *path, struct err *e);
/* ckpt_open(), but "-" is the image of a file on standard input, which is first copied to a temporary file. */
int ckpt_open_stream(struct ckpt **c, const char *path, struct err *e);
/* Refuses a directory of PEFT, or its file of tensors, which have no model. */
int ckpt_refuse_adapter(const char *path, struct err *e);
/* A checkpoint whose tensors a view computes, without the sums of a file, to be shown and compared. Takes the
 * view: ckpt_close() closes it. */
struct ckpt *ckpt_of_view(struct ckpt_view *v);
void ckpt_close(struct ckpt *c);
int ckpt_find(const struct ckpt *c, const char *name);	     /* -1: no such tensor */
int ckpt_find_group(const struct ckpt *c, const char *name); /* -1: no such group */
int64_t ckpt_row_size(const struct ckpt_tensor *t);	     /* elements */
int64_t ckpt_size(const struct ckpt_tensor *t);
bool ckpt_same_shape(const struct ckpt_tensor *a, const struct ckpt_tensor *b);
/* Reads rows [row, row + n) of a tensor, and checks every block that they touch. */
int ckpt_read_rows(const struct ckpt *c, int group, int tensor, int64_t row, int64_t n,
	float *out, struct err *e);
/* Calls fn with each block of a tensor. A nonzero result of fn ends the loop and is returned; -1
 * with *e set if the file cannot be read. */
int ckpt_each(const struct ckpt *c, int group, int tensor,
	int (*fn)(void *with, int64_t first, const float *x, int64_t n), void *with,
	struct err *e);
/* Adds elements [first, first + n) of a tensor to a hash, which begins with 0: those of all parameters give
 * the hash of the model, as of store_hash(). */
void ckpt_hash_add(struct device *d, uint64_t *hash, const struct ckpt_tensor *t,
	int64_t first, const float *x, int64_t n);

/* ---- verify.c -------------------------------------------------------------------- */

/* Checks all blocks, with all threads of the device. */
int ckpt_verify(const struct ckpt *c, struct err *e);
/* ckpt_verify(), and that the parameters have the hash in the file. */
int ckpt_verify_hash(const struct ckpt *c, struct err *e);

/* ---- directory.c: the checkpoints of a run ---------------------------------------------- */

/* Sets `out` to FOLDER/step-00000100.h5. Returns out->s. */
const char *ckpt_name(struct str *out, const char *folder, int64_t step);
int64_t ckpt_step(const char *name); /* of such a name, without its directory; else -1 */
/* The steps of the checkpoints in a directory, in ascending order; *steps is allocated. Returns their
 * number, 0 if the directory does not exist, -1 if it cannot be read. */
int64_t ckpt_list(const char *folder, int64_t **steps, struct err *e);
/* Atomically replaces the link FOLDER/NAME (latest.h5, best.h5) by one to a step. */
int ckpt_mark(const char *folder, const char *name, int64_t step, struct err *e);
/* The step that a link points to, or -1. */
int64_t ckpt_marked(const char *folder, const char *name);
/* Removes all checkpoints before step `from` except the last `keep` and the best. keep = 0: removes
 * none. */
void ckpt_prune(const char *folder, int64_t keep, int64_t from);
/* When a run resumes from step `after`: removes checkpoints of later steps, except step `but`, and
 * unfinished files of killed runs. */
void ckpt_drop(const char *folder, int64_t after, int64_t but);
void ckpt_drop_torn(const char *folder); /* the unfinished files only */
/* Resolves a name to a file without links: a file, a run, or a directory of checkpoints, which stands
 * for the latest. Allocated; the name itself if there is no such file. */
char *ckpt_find_file(const char *name);
bool ckpt_none_in(const char *name); /* is it a directory without any? */
/* The checkpoint of worker K that corresponds to a checkpoint of the first worker: for
 * FOLDER/checkpoints/NAME it is FOLDER/worker-K/checkpoints/NAME. */
void ckpt_of_worker(struct str *out, const char *path, int64_t worker);
/* Whether a run can use the checkpoint: 0, or -1 with the reason in *e. */
typedef int ckpt_usable(void *with, const struct ckpt *c, struct err *e);
/* Whether the run was killed while its workers wrote their first checkpoint, which this one has. */
typedef bool ckpt_begun(const struct ckpt *c);
/* The path of the newest checkpoint whose checksums are right, that all workers have, and that is
 * usable; allocated. NULL: there are no checkpoints, or one that is whole and with which the run had only
 * begun, or, with *e set, none qualifies or the directory cannot be read. Prints a warning for each
 * skipped checkpoint. */
char *ckpt_newest(const char *folder, ckpt_usable *usable, ckpt_begun *begun, void *with,
	struct err *e);

/* ---- diff.c ---------------------------------------------------------------------- */

struct ckpt_delta {
	const char *
		group; /* the first file has it; NULL: `name` is a group that one of them lacks */
	char name[64];
	bool only_a, only_b, other_shape;
	int64_t n, n_differ, first; /* elements; index of the first difference */
	double max_abs;
	int64_t max_ulp;
};

/* Lists the differences in *out, which is allocated: those of tensors, then missing groups. Returns their number, or -1. `order`: the numbers of
 * the tensors of `a` in the order of the list; NULL: that of the names. with_optimizer: compares all groups, not only the parameters. */
int64_t ckpt_diff(const struct ckpt *a, const struct ckpt *b, const int *order,
	bool with_optimizer, struct ckpt_delta **out, struct err *e);
