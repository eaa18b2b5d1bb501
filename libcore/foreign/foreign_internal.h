/* Shared by the files of this floor: files of numbers in fp32 or 16 bits, with a hash of the file in the
 * file itself. */
#pragma once

#include "base/file.h"
#include "dialect/dialect.h"
#include "ckpt/view.h"

/* Reads n numbers at an offset, widened to fp32. */
int numbers_read(int fd, const char *path, enum dtype dtype, int64_t at, int64_t n,
	float *out, struct err *e);

/* A file of numbers that is being written: it appears when it is complete. */
struct number_file {
	struct durable d;
	int fd;
	const char *path;
	enum dtype dtype;
	struct device device;
	struct hash_state *hash;
	uint16_t *half;
	int64_t n; /* numbers so far */
};

int number_file_begin(
	struct number_file *f, const char *path, enum dtype dtype, struct err *e);
int number_file_bytes(
	struct number_file *f, const void *p, int64_t n_bytes, struct err *e);
/* Narrows them to the type of the file. */
int number_file_put(struct number_file *f, const float *x, int64_t n, struct err *e);
/* Puts rows of a view, and zeros for those that its tensor lacks. */
int number_file_rows(struct number_file *f, const struct ckpt_view *v,
	const struct ckpt_rows *rows, struct err *e);
/* The hash of all bytes so far; to be called once, after the last. */
uint64_t number_file_hash(struct number_file *f);
/* Overwrites bytes that were written before, such as a place for the hash. */
int number_file_patch(
	struct number_file *f, const void *p, int64_t n_bytes, int64_t at, struct err *e);
/* Completes the temporary file, which f->d commits; with rc != 0 removes it. */
int number_file_close(struct number_file *f, int rc, struct err *e);
/* The same, and commits the file. */
int number_file_end(struct number_file *f, int rc, struct err *e);

/* A checkpoint of ours, or standard input ("-"); of another file the error says what would work. */
int convert_open_own(struct ckpt **c, const char *path, struct err *e);

/* Appends the name of an item, and the range of its rows or columns (n from first on) unless it is all of them. */
void item_name(const struct torch_item *t, int64_t first, int64_t n, bool columns,
	struct str *out);

/* ---- torch_config.c: the options of the model ------------------------------------------------ */

/* From the shapes, and from the file `given`, or a config.json beside the checkpoint (NULL). *pairs: channels that are
 * rotated together are neighbours. */
int torch_config(struct model_config *c, bool *pairs, struct torch_file *f,
	const struct torch_names *x, const char *given, struct err *e);
/* Rejects a checkpoint whose config.json is of another class than the ones that are read, whatever its tensors are. */
int torch_config_class(const char *checkpoint, const char *given, struct err *e);
/* The options of AdamW that the checkpoint has. */
int torch_config_optimizer(struct str *out, struct torch_file *f,
	const struct torch_names *x, struct err *e);
