/*
 * ckpt: checkpoints in global coordinates: one dataset a tensor, in its full shape, so that
 * reading under another layout is only reading. Every block of rows has a checksum, and a
 * file has its name only when it is complete.
 *
 * The bytes of a checkpoint are a function of the run and the step: no layout, host or
 * time is in it, so equal runs give files that cmp finds equal.
 */
#ifndef CKPT_H
#define CKPT_H

#include "base/base.h"
#include "comm/comm.h"
#include "data/data.h"
#include "h5/h5.h"

enum { CKPT_VERSION = 1 };

/* A file has groups, each with a dataset for every tensor: number 0 is /model, the parameters; the
 * others, by their names, are what the writer kept: state of its optimizer, and of local SGD. */
enum { CKPT_MODEL, CKPT_MAX_GROUPS = 32 };

/* The attributes of a checkpoint. */
struct ckpt_info {
	const char *format, *created_by;
	int64_t version;
	int64_t step, samples, tokens;	      /* done so far */
	double loss, val_loss, best_val_loss; /* not a number: none */
	/* fp16: the scale of the loss, good steps with it, steps that updated nothing */
	double loss_scale; /* 0: none */
	int64_t loss_scale_good, skipped_steps;
	uint64_t param_hash;
	uint64_t data_hash;	 /* of the corpus; 0: none */
	int64_t workers, worker; /* that train apart, and whose this is; 0: none do */
};

extern const struct h5_field ckpt_fields[];

struct ckpt_tensor {
	char name[64];
	int ndim;
	int64_t dims[2];
};

/* ---- write.c --------------------------------------------------------------------- */

/* Collective: all ranks ask for the same, tensors and their rows in ascending order, on the
 * thread that begins to write. Rank `to` gets rows [row, row + n) of a tensor, as in the
 * whole tensor, in `out`; elsewhere that may be NULL. Where several threads may ask it, it is not
 * collective: only `to` asks, in any order. */
typedef void ckpt_source(
	void *with, int group, int tensor, int64_t row, int64_t n, int to, float *out);

struct ckpt_write {
	struct comm *comm; /* its ranks share the writing */
	const char *path;
	struct ckpt_info info;
	const char *config; /* of the run */
	const struct tokenizer *tokenizer;
	const struct ckpt_tensor *tensors;
	int n_tensors;
	const char
		*groups[CKPT_MAX_GROUPS]; /* the names, of which the first is "model" */
	int n_groups;
	const double *numbers; /* of a worker: what else it keeps; NULL: nothing */
	int64_t n_numbers;
	ckpt_source *source;
	void *with;
	bool source_threads; /* several threads may ask the source at once: for the copy */
	bool one_writes;     /* rank 0, because others do not see its files */
};

/* At least as large as the file that would be written, by little. */
int64_t ckpt_bytes(const struct ckpt_write *w);
/* Bytes of the copy of this rank's part: a bound above, by little. Of `comm` only the rank
 * and the size are looked at. */
int64_t ckpt_copy_bytes(const struct ckpt_write *w);
/* Collective. On an error no rank has changed a file that was there; when it is known that
 * there is no room, none was begun. */
int ckpt_write(const struct ckpt_write *w, struct err *e);

/*
 * The same in two parts, between which the program goes on: this rank's part is copied, and
 * a thread, which calls neither MPI nor HDF5, writes the copy. One at a time.
 */
struct ckpt_writing;

/* Collective. `copy` is of ckpt_copy_bytes(), and the write's until it ends; NULL: this rank's
 * part is written before this returns. What `w` points at is no longer needed then. On an
 * error there is nothing to end. */
int ckpt_write_begin(
	struct ckpt_writing **x, const struct ckpt_write *w, float *copy, struct err *e);
/* Has this rank written its part, or failed to? Never waits. */
bool ckpt_write_done(const struct ckpt_writing *x);
/* Collective. Waits for all parts; then the file has its name, or *e says why not. */
int ckpt_write_end(struct ckpt_writing *x, struct err *e);

/* ---- read.c ---------------------------------------------------------------------- */

struct ckpt {
	char *path;
	struct ckpt_info info;
	struct str config;
	struct tokenizer tokenizer;
	struct ckpt_tensor *tensors;
	int n_tensors;
	struct strs groups; /* the names: "model", and the others in order */
	double *numbers;
	int64_t n_numbers;
	int64_t size_bytes;
	int fd;
	struct h5_blocks *blocks; /* [group][tensor] */
};

/* A folder, of a run or of its checkpoints, stands for the latest in it. */
int ckpt_open(struct ckpt **c, const char *path, struct err *e);
void ckpt_close(struct ckpt *c);
int ckpt_find(const struct ckpt *c, const char *name);	     /* -1: no such tensor */
int ckpt_find_group(const struct ckpt *c, const char *name); /* -1: no such group */
int64_t ckpt_row_size(const struct ckpt_tensor *t);	     /* elements */
int64_t ckpt_size(const struct ckpt_tensor *t);
/* Rows of a tensor; every block that is touched is checked. */
int ckpt_read_rows(const struct ckpt *c, int group, int tensor, int64_t row, int64_t n,
	float *out, struct err *e);
/* Checks everything there is. */
int ckpt_verify(const struct ckpt *c, struct err *e);
/* Walks a tensor a piece at a time. A nonzero answer of fn ends that and is what is returned;
 * *e is set only when the file could not be read, and then -1 is returned. */
int ckpt_each(const struct ckpt *c, int group, int tensor,
	int (*fn)(void *with, int64_t first, const float *x, int64_t n), void *with,
	struct err *e);
/* As store_hash gives it for the parameters in the file. */
int ckpt_param_hash(const struct ckpt *c, uint64_t *hash, struct err *e);

/* ---- folder.c: the checkpoints of a run ------------------------------------------ */

/* FOLDER/step-00000100.h5. Returns out->s. */
const char *ckpt_name(struct str *out, const char *folder, int64_t step);
/* Steps in ascending order of the files so named; *steps is allocated. A folder that does
 * not exist has none; -1: it cannot be read. */
int64_t ckpt_list(const char *folder, int64_t **steps, struct err *e);
/* Points FOLDER/NAME (latest.h5, best.h5) at a step, at once. */
int ckpt_mark(const char *folder, const char *name, int64_t step, struct err *e);
/* The step that a mark points at, or -1. */
int64_t ckpt_marked(const char *folder, const char *name);
/* Removes all but the last `keep` and the best, and none from step `from` on. keep 0: all
 * stay. */
void ckpt_prune(const char *folder, int64_t keep, int64_t from);
/* Removes what lies beyond step `after`, except `but`: what the run had written that is
 * not gone on with; and what killed runs had begun to write. */
void ckpt_drop(const char *folder, int64_t after, int64_t but);
/* The file that a name stands for, without links: a file, a run, or a folder of checkpoints,
 * whose latest it is. Allocated; the name itself where there is no such file. */
char *ckpt_find_file(const char *name);
/* Where another worker has what the first has at such a path: FOLDER/checkpoints/NAME is
 * FOLDER/worker-K/checkpoints/NAME of number K. */
void ckpt_of_worker(struct str *out, const char *path, int64_t worker);
/* Has a run a use for it? Else *e says why not. */
typedef int ckpt_usable(void *with, const struct ckpt *c, struct err *e);
/* The newest that is whole, verified to the last byte, that every worker has where there are
 * several, and that is usable; the caller frees. NULL: there are no checkpoints, or (then *e
 * is set) none is so or the folder cannot be read. Those that are passed over are warned
 * about. */
char *ckpt_newest(const char *folder, ckpt_usable *usable, void *with, struct err *e);

/* ---- diff.c ---------------------------------------------------------------------- */

struct ckpt_delta {
	const char *group; /* the first file has it */
	char name[64];
	bool only_a, only_b, other_shape;
	int64_t n, n_differ, first; /* elements; index of the first that differs */
	double max_abs;
	int64_t max_ulp;
};

/* What differs; *out is allocated. Returns their number, or -1. `with_optimizer`: not the
 * parameters alone. */
int64_t ckpt_diff(const struct ckpt *a, const struct ckpt *b, bool with_optimizer,
	struct ckpt_delta **out, struct err *e);

#endif
