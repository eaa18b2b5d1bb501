/* Files of other programs' logs (--log-to): each row of the log is a record, written at once.
 *
 * Only the first rank of a worker has them. A killed run leaves all complete rows. If a file cannot
 * be written, as on a full disk, training continues, and rows are kept until they can be written.
 * A new kind is a file with a struct log_kind, and a row of kinds[] in log_files.c. */
#pragma once

#include "run/run.h"

#include <unistd.h>

struct log_kind;
struct log_file {
	const struct log_kind *kind;
	char *path;
	int fd;
	int64_t n_bytes;    /* in the file */
	struct str waiting; /* bytes that could not be written yet */
	bool torn; /* the file ends within a record, so nothing more is written */
	bool failed;
	double started; /* seconds since 1970 */
	int64_t n_records;
};

struct log_files {
	struct log_file *v;
	int64_t n;
};

/* What a kind needs to know about the run. */
struct log_start {
	const char *dir;  /* directory of this worker's files, which exists */
	const char *name; /* directory of the run */
	const char *host;
	const char *config; /* lines of name = value */
	int64_t resume;	    /* the step of the checkpoint; -1: a new run */
	bool overwrite;	    /* other files in the directory need no warning */
};

struct log_kind {
	const char *name;
	/* Opens a new file, and sets path and fd; appends its first records to f->waiting. */
	int (*open)(struct log_file *f, const struct log_start *s, struct err *e);
	void (*append_row)(struct log_file *f, const struct row *row);
	/* Appends the end of the run with an exit code; NULL: there is none. */
	void (*append_end)(struct log_file *f, int code);
};
extern const struct log_kind log_tensorboard, log_wandb;

/* Opens the files of KIND:DIRECTORY targets, in worker-N of each directory if worker > 0. */
int log_files_open(struct log_files *l, const struct strs *targets, int worker,
	struct log_start s, struct err *e);
void log_files_write(struct log_files *l, const struct row *row);
void log_files_end(struct log_files *l, int code);
bool log_files_failed(const struct log_files *l);
void log_files_close(struct log_files *l);
