/* Lines of JSONL, or rows of tables, in which some tokens count as targets of the loss and the
 * rest is context: prompts and completions, conversations, texts with spans, tokens with labels. */
#pragma once

#include "chat/chat.h"
#include "prepare/prepare.h"

struct json_t;

/* ---- record.c: a line ------------------------------------------------------------ */

struct records;
/* Creates a reader of records; t is NULL when a vocabulary is trained. Returns NULL on error. */
struct records *records_new(
	const struct prepare *p, const struct tokenizer *t, struct err *e);
void records_free(struct records *r);
/* Returns true if records contain their own end, so that no end-of-text token is added. */
bool records_contain_end(const struct records *r);
/* Returns a text that differs for different options, to be hashed. */
const char *records_options(const struct records *r);
/* Returns the chat template to be stored with the tokenizer; NULL: none. */
const char *records_template(const struct records *r);
/* Sets *out to the document of a line. The caller adds the file and the line to an error. */
int record_read(const struct records *r, const char *line, int64_t n, struct marked *out,
	struct err *e);
/* Sets *out to the document of a row of a table, in the form of table.h. */
int record_read_row(const struct records *r, const char *row, int64_t n,
	struct marked *out, struct err *e);
/* Lists the columns that a table must have, for table_open(). */
void record_columns(const struct prepare *p, struct strs *out);

/* ---- jsonl.c --------------------------------------------------------------------- */

/* Reads a field that is a list of turns, or two fields that are the texts of two turns without
 * roles, into empty *turns. Returns false for a line in a rare form, which needs jansson. */
bool jsonl_scan_turns(const char *line, int64_t n, const char *const *fields,
	int n_fields, struct chat_turns *turns);
/* Parses a line; the caller owns the result. Returns NULL if the line is not an object. */
struct json_t *jsonl_parse_object(const char *line, int64_t n, struct err *e);
/* Sets the error that a field is missing or is not `what`, such as "a string". Returns -1. */
int jsonl_reject_field(
	const struct json_t *line, const char *field, const char *what, struct err *e);
