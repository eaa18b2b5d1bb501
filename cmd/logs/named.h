/* For the implementation of logs.h only: numbers with names, anywhere in a line. */
#pragma once

#include "logs/formats.h"

enum { MAX_NAMED = 64 };

/* A number and the words before it: "Step [100/600]", "val loss: 2.5", "lr=1e-4", "loss 2.5". */
struct named {
	struct span name; /* last words; empty: progress, such as [640/60000 (1%)] */
	struct span number, unit; /* unit: letters directly after the number */
	double v;
	int64_t total; /* the number after a slash; -1: none */
	bool unread;   /* the text only begins like a number; v is not set */
};

/* ---- named.c ------------------------------------------------------------------------- */

/* Finds at most MAX_NAMED numbers, except times and dates. Returns their number. */
int find_named_numbers(struct span line, struct named *found);
/* Returns the text after the last blank of a name. */
struct span last_word(struct span name);
/* Counts a line by its form. Returns the index of the form; -1: too many forms. */
int count_form(struct form_count forms[static MAX_FORMS], const struct named *f, int n);
/* Returns true if one of the words, upper case or not, is in the name. `words` ends with NULL. */
bool name_has_word(struct span name, const char *const *words);
/* Sets the column of the number's name. A fraction such as 98/100 is one value. */
void set_named_column(struct build *b, int64_t step, const struct named *f);
/* Sets a column to the number, whatever the number's name is. */
void set_column_from(
	struct build *b, int64_t step, struct span column, const struct named *f);
/* Returns the number as a step; -1: not a step. */
int64_t step_of_number(const struct named *f);
/* Returns the step of the run for a step that may restart in each epoch of `total` steps, as known
 * after the first epoch; updates b->epochs. epoch, total: -1 if unknown. */
int64_t step_in_epochs(struct build *b, int64_t epoch, int64_t step, int64_t total);
/* Returns true for a line of a rank other than 0. */
bool is_other_rank(const struct named *f, int n);
/* Begins a training row. A repeated row replaces values silently. */
void begin_named_row(struct build *b, int64_t step);

/* ---- plain.c: lines of an unknown program ------------------------------------------------ */

/* Indices of the numbers of a line that matter; -1: none. */
struct roles {
	int epoch, step, loss;
	bool is_evaluation;
};
/* Finds the epoch, the step and the loss among the numbers f[n] of a line. */
struct roles find_roles(
	const struct log_options *opts, struct span line, const struct named *f, int n);
/* Returns true if most lines with a loss have one form, and their steps rise. */
bool plain_detect(const struct log_options *opts, struct span sample);
/* Warns which numbers were read as step and loss. */
void plain_warn(const struct build *b, const char *name);

/* ---- hint.c: errors for logs in unknown formats ------------------------------------------- */

/* Returns -1 for a directory of W&B, with an error that names the file to read instead. */
int reject_wandb_directory(const char *path, struct err *e);
/* Sets an error that lists the columns of a table, or a pattern for the most common lines. */
int reject_unknown_format(const struct log_options *opts, const char *name,
	struct span sample, struct err *e);
