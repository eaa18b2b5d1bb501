/* The parts of pt-ckpt: prints checkpoints as text and JSON, and removes them. Functions that
 * return int return 0, or -1 with *e set. */
#pragma once

#include "ckpt/ckpt.h"

/* ---- retain.c: removing checkpoints ------------------------------------------------------- */

/* The checkpoints that pt-ckpt prune keeps: the `last` ones, every step that `every` divides, and
 * the `best` ones by validation loss. 0: none. */
struct ckpt_retention {
	int64_t last, every, best;
};
/* Sets *steps, for free(), to the steps that the rule does not keep, ascending. Returns their
 * number, or -1. The targets of latest.h5 and best.h5, and damaged files, are always kept. */
int64_t ckpt_list_outdated(const char *directory, const struct ckpt_retention *r,
	int64_t **steps, struct err *e);
/* Removes the checkpoint of a step, on all local SGD workers of the run. */
int ckpt_remove(const char *directory, int64_t step, struct err *e);
/* Removes a checkpoint. With `force` also a damaged file with a checkpoint's name, or the target of
 * latest.h5 or best.h5. Never removes other files. */
int ckpt_remove_file(const char *path, bool force, struct err *e);

/* ---- print.c --------------------------------------------------------------------- */

/* Returns true if the attribute `format` names another format, or if the file is unreadable now.
 * Without that attribute it may be a damaged checkpoint. */
bool ckpt_is_other_format(const char *path);
/* Prints a line per checkpoint of a run or directory, or for one file ("-": standard input).
 * Damaged files have a line, too, and the first one sets *e. */
int ckpt_print_list(const char *name, struct err *e);
void ckpt_print_list_head(void);
/* Prints the attributes. */
void ckpt_print_info(const struct ckpt *c);
/* Prints a line per parameter, in the order of `order` (NULL: by name). */
int ckpt_print_tensors(const struct ckpt *c, const int *order, struct err *e);
/* Prints the line of a tensor that differs between two checkpoints. */
void ckpt_print_delta(const struct ckpt_delta *d);
/* Prints all other differences of checkpoints with equal tensors. Returns their number, or -1. */
int64_t ckpt_print_other_differences(
	const struct ckpt *a, const struct ckpt *b, bool with_optimizer, struct err *e);

/* Copies the whole file to standard output. */
int ckpt_copy_to_stdout(const struct ckpt *c, struct err *e);
/* Removes the checkpoints of a run or directory that the rule does not keep; prints their names. */
int ckpt_print_pruned(
	const char *name, const struct ckpt_retention *rule, bool dry_run, struct err *e);

/* ---- json.c ---------------------------------------------------------------------- */

/* Writes an object with size_bytes, attributes, options, tokenizer, vocab, edit, and tensors with
 * name, dtype, shape and a hash per group. The hashes of the parameters sum to param_hash modulo
 * 2^64. The tensors are in the order of `order` (NULL: by name). Reads and verifies all of them. */
int ckpt_export_json(const struct ckpt *c, const int *order, FILE *f, struct err *e);
