/*
 * What only pt-ckpt does with checkpoints: prints them for people and programs, on standard output and as JSON, and
 * removes them. Functions that return int return 0, or -1 with *e set.
 */
#pragma once

#include "ckpt/ckpt.h"

/* ---- retain.c: what is removed ------------------------------------------------------- */

/* What pt-ckpt prune keeps: the last `last` checkpoints, those of each step that `every` divides, and the
 * `best` ones with the lowest validation losses; 0: none. */
struct ckpt_retention {
	int64_t last, every, best;
};
/* Sets *steps (allocated) to those that the rule does not keep, in ascending order, and returns their
 * number, or -1. The targets of latest.h5 and best.h5, and damaged files, are always kept. */
int64_t ckpt_outdated(const char *folder, const struct ckpt_retention *r, int64_t **steps,
	struct err *e);
/* Removes the checkpoint of a step, and those of the run's other local SGD workers. */
int ckpt_remove(const char *folder, int64_t step, struct err *e);
/* Removes a checkpoint, or with `force` a damaged file with the name of one; no other file. The targets of
 * latest.h5 and best.h5 only with `force`. */
int ckpt_remove_file(const char *path, bool force, struct err *e);

/* ---- print.c --------------------------------------------------------------------- */

/* True if the attribute `format` names another format, or if the file cannot be read now; without that
 * attribute, the file may be a damaged checkpoint. */
bool ckpt_is_other_file(const char *path);
/* The lines of the checkpoints of a run or in a directory, or of one file ("-": standard input).
 * Damaged files have a line, too, and the first of them sets *e. */
int ckpt_print_list(const char *name, struct err *e);
void ckpt_print_list_head(void);
/* The attributes. */
void ckpt_print_info(const struct ckpt *c);
/* A line for each tensor of the parameters, in the order of `order` (NULL: of the names). */
int ckpt_print_tensors(const struct ckpt *c, const int *order, struct err *e);
void ckpt_print_delta(const struct ckpt_delta *d);
/* For checkpoints with equal tensors: prints all other differences, and returns their number; -1
 * with *e set. */
int64_t ckpt_print_rest(
	const struct ckpt *a, const struct ckpt *b, bool with_optimizer, struct err *e);

/* The whole file, to standard output. */
int ckpt_print_image(const struct ckpt *c, struct err *e);
/* Removes the checkpoints of a run or in a directory that the rule does not keep, or only prints their names. */
int ckpt_print_pruned(
	const char *name, const struct ckpt_retention *rule, bool dry_run, struct err *e);

/* ---- json.c ---------------------------------------------------------------------- */

/* An object with size_bytes, attributes, options, tokenizer, vocab, edit, and tensors with name, dtype,
 * shape and a hash for each group; the hashes of the parameters sum to param_hash modulo 2^64.
 * The tensors are in the order of `order` (NULL: of the names). Reads and checks all of them. */
int ckpt_export_json(const struct ckpt *c, const int *order, FILE *f, struct err *e);
