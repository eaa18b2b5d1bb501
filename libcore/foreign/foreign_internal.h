/* Shared by the files of this directory: files of fp32 or 16-bit elements with their own hash. */
#pragma once

#include "base/file.h"
#include "dialect/dialect.h"
#include "ckpt/view.h"

/* Reads n elements at byte `at`, widened to fp32. */
int read_floats(int fd, const char *path, enum dtype dtype, int64_t at, int64_t n,
	float *out, struct err *e);

/* A file that is being written. It appears under its name when it is complete. */
struct number_file {
	struct durable d;
	int fd;
	const char *path;
	enum dtype dtype;
	struct device device;
	struct hash_state *hash;
	uint16_t *half;
	int64_t n; /* elements written so far */
};

/* Creates the temporary file, and starts the hash. */
int number_file_open(
	struct number_file *f, const char *path, enum dtype dtype, struct err *e);
/* Appends bytes. */
int number_file_append_bytes(
	struct number_file *f, const void *p, int64_t n_bytes, struct err *e);
/* Appends elements, narrowed to the file's type. */
int number_file_append(struct number_file *f, const float *x, int64_t n, struct err *e);
/* Appends rows of a view, with zeros for rows beyond its tensor. */
int number_file_append_rows(struct number_file *f, const struct ckpt_view *v,
	const struct ckpt_rows *rows, struct err *e);
/* Returns the hash of all bytes. Call it once, after the last byte. */
uint64_t number_file_hash(struct number_file *f);
/* Overwrites earlier bytes, such as a placeholder for the hash. */
int number_file_patch(
	struct number_file *f, const void *p, int64_t n_bytes, int64_t at, struct err *e);
/* Completes the temporary file, for durable_commit(&f->d); removes the file if rc != 0. */
int number_file_close(struct number_file *f, int rc, struct err *e);
/* Completes the file and gives it its final name; removes it if rc != 0. */
int number_file_commit(struct number_file *f, int rc, struct err *e);

/* Opens a pt checkpoint, or standard input ("-"). The error for other files lists the formats. */
int convert_open_own(struct ckpt **c, const char *path, struct err *e);

/* Appends the name of an item, and "[first:first + n]" unless these are all its rows or columns. */
void append_item_range(const struct torch_item *t, int64_t first, int64_t n, bool columns,
	struct str *out);

/* ---- torch_config.c: the options of the model ------------------------------------------------ */

/* Sets *c from the shapes and the file `given` (NULL: config.json next to the checkpoint). Sets
 * *pairs if channels that rotate together are adjacent. */
int torch_config_read(struct model_config *c, bool *pairs, struct torch_file *f,
	const struct torch_names *x, const char *given, struct err *e);
/* Rejects a checkpoint if the class in its config.json is not supported. */
int torch_config_check_class(const char *checkpoint, const char *given, struct err *e);
/* Appends the AdamW options of a checkpoint. */
int torch_config_append_adamw(struct str *out, struct torch_file *f,
	const struct torch_names *x, struct err *e);
