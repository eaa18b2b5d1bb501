/* Inside the wing logs: numbers with names, anywhere in a line. */
#pragma once

#include "logs/formats.h"

enum { MAX_NAMED = 64 };

/* A number, and the words before it: "Step [100/600]", "val loss: 2.5", "lr=1e-4", "loss 2.5". */
struct named {
	struct span
		name; /* its last words; empty: progress without a name, such as [640/60000 (1%)] */
	struct span number, unit; /* the letters directly after the number */
	double v;
	int64_t total; /* the number after a slash; -1: none */
	bool unread;   /* it begins as a number and is none; v is not set */
};

/* ---- named.c ------------------------------------------------------------------------- */

/* Finds at most MAX_NAMED of them. Times and dates are none. Returns their number. */
int find_named(struct span line, struct named *found);
struct span last_word(struct span name);
/* Counts a line by the names of its numbers. Returns the index of its form; -1: too many forms. */
int count_form(struct form_count forms[static MAX_FORMS], const struct named *f, int n);
/* Returns true if one of the words, upper case or not, is in the name. `words` ends with NULL. */
bool name_has_word(struct span name, const char *const *words);
/* Sets the column that the name stands for. A fraction such as 98/100 is its value. */
void set_named(struct build *b, int64_t step, const struct named *f);
/* Sets a column to the number. */
void set_named_as(
	struct build *b, int64_t step, struct span column, const struct named *f);
/* The number as a step; -1: it is none. */
int64_t named_step(const struct named *f);
/* Returns the step of the run for a step that may begin again in each epoch of `total` steps. The
 * steps after the first epoch show which of both it is. epoch, total: -1 if they are not known. */
int64_t step_in_epochs(struct build *b, int64_t epoch, int64_t step, int64_t total);
/* Returns true for a line of a rank other than 0. */
bool is_other_rank(const struct named *f, int n);
/* Begins a training row. Values that a line repeats with more digits or later replace silently. */
void begin_named_row(struct build *b, int64_t step);

/* ---- plain.c: lines of a program that is not known -------------------------------------- */

/* The numbers of a line that matter, by their place; -1: there is none. */
struct roles {
	int epoch, step, loss;
	bool evaluation;
};
struct roles find_roles(
	const struct log_how *how, struct span line, const struct named *f, int n);
/* Returns true if most lines with a loss have one form, and steps that rise. */
bool plain_detect(const struct log_how *how, struct span sample);
/* Prints which numbers were read as step and loss. */
void plain_say(const struct build *b, const char *name);

/* ---- hint.c: a log that no format reads --------------------------------------------------- */

/* Returns -1 for a directory of W&B, with an error that names what to give instead. */
int hint_directory(const char *path, struct err *e);
/* Sets an error that names the columns of a table, or a pattern that reads the commonest lines. */
int hint_unknown(
	const struct log_how *how, const char *name, struct span sample, struct err *e);
