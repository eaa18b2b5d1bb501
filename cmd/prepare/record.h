/*
 * Lines of JSONL in which some tokens count as targets of the loss and the rest is context: prompts
 * and completions, conversations, texts with spans, tokens with labels.
 */
#pragma once

#include "chat/chat.h"
#include "prepare/prepare.h"

struct json_t;

/* ---- record.c: a line ------------------------------------------------------------ */

struct records;
/* t is NULL when a vocabulary is trained. Returns NULL on error. */
struct records *records_open(
	const struct prepare *p, const struct tokenizer *t, struct err *e);
void records_close(struct records *r);
/* Returns true if records contain their own end, so that no end-of-text token is added. */
bool records_contain_end(const struct records *r);
const char *records_source(
	const struct records *r); /* a text for a hash of the options */
/* Returns the chat template to be stored with the tokenizer; NULL: none. */
const char *records_template(const struct records *r);
/* Reads the document of a line. An error message does not name the file and the line. */
int record_read(const struct records *r, const char *line, int64_t n, struct marked *out,
	struct err *e);

/* ---- jsonl.c --------------------------------------------------------------------- */

/* Reads a field that is a list of turns, or two fields that are the texts of two turns without
 * roles, into empty *turns. Returns false for a line in a rare form, which needs jansson. */
bool jsonl_turns(const char *line, int64_t n, const char *const *fields, int n_fields,
	struct chat_turns *turns);
/* Parses a line; the caller owns the result. Returns NULL if the line is not an object. */
struct json_t *jsonl_object(const char *line, int64_t n, struct err *e);
/* Sets the error that the field is missing or is not `what`; returns -1. */
int jsonl_not_a(
	const struct json_t *line, const char *field, const char *what, struct err *e);
