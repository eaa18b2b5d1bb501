/*
 * Lines of JSONL of which some tokens count as targets of the loss, and the others are context: prompts and
 * completions, conversations, texts with spans, tokens with labels. For encode.c and train_vocab.c.
 *
 * Files are not trusted. Functions that return int return 0, or -1 with *e set.
 */
#pragma once

#include "chat/chat.h"
#include "prepare/prepare.h"

struct json_t;

/* ---- record.c: a line ------------------------------------------------------------ */

struct records;
/* NULL: an error. t NULL: a vocabulary is trained. */
struct records *records_open(
	const struct prepare *p, const struct tokenizer *t, struct err *e);
void records_close(struct records *r);
/* Does a record say its own end, so that no token of the end of text follows? */
bool records_end(const struct records *r);
const char *records_source(const struct records *r); /* for a hash */
/* The chat template, to be kept with the tokenizer; NULL: none. */
const char *records_template(const struct records *r);
/* The document of a line. An error's message is about the line, without its name. */
int record_read(const struct records *r, const char *line, int64_t n, struct marked *out,
	struct err *e);

/* ---- jsonl.c --------------------------------------------------------------------- */

/* Reads the field of a line that is a list of turns, or two that are texts, of a turn each without a role; as most
 * lines have them, into empty *turns. False: jansson is to look. */
bool jsonl_turns(const char *line, int64_t n, const char *const *fields, int n_fields,
	struct chat_turns *turns);
/* The caller's; NULL: the line is no object. */
struct json_t *jsonl_object(const char *line, int64_t n, struct err *e);
/* Sets an error and returns -1: the field is missing, or is not `what`. */
int jsonl_not_a(
	const struct json_t *line, const char *field, const char *what, struct err *e);
