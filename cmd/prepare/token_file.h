/* Writes token files of other programs, and converts them to and from shards. */
#pragma once

#include "prepare/prepare.h"
#include "tokens/tokens.h"

/* ---- token_writer.c: writing ----------------------------------------------------- */

/* Writes PREFIX_train.bin and PREFIX_val.bin, or with p->shard_bytes PREFIX_train_00000.bin and so
 * on; p->out is PREFIX or PREFIX.bin, and '_' is omitted after a '/'. With `masks`, also writes
 * PREFIX_train.mask and so on, with one byte per token, 1 if it counts. */
struct token_writer;
struct token_writer *token_writer_open(const struct token_format *format,
	const struct prepare *p, int64_t vocab, bool masks,
	struct err *e); /* NULL on error */
/* Appends n tokens to a split; all of them count, or none. begins_document: with the first. */
int token_writer_append(struct token_writer *w, enum split s, bool begins_document,
	bool counts, const uint32_t *ids, int64_t n, struct err *e);
/* Completes and renames the files, after the last token. */
int token_writer_finish(struct token_writer *w, struct prepared *out, struct err *e);
/* Removes unfinished files, and frees w (may be NULL). */
void token_writer_close(struct token_writer *w);

/* ---- token_convert.c: tokens to tokens ---------------------------------------------- */

/* Converts between token files of other programs and shards. */
struct token_convert {
	const struct prepare *p;  /* options */
	const char *from, *to;	  /* formats: words of the options */
	const struct strs *val;	  /* token files for validation; none: p->val_fraction */
	const struct strs *masks; /* one per token file; none: all tokens count */
	const char *vocab_from;	  /* a shard with the tokenizer; NULL: none */
	int64_t vocab; /* vocabulary size without a tokenizer; 0: largest id + 1 */
	int64_t end_of_text; /* token that ends a document; -1: the tokenizer's, if it has one */
};

/* Returns true for a shard or a token file of another program, by its name and first bytes. */
bool is_token_file(const char *path);
/* Returns 1 if all inputs contain tokens, 0 if all are text, and -1 with *e set otherwise. */
int token_convert_accepts(
	const struct token_convert *c, const struct strs *inputs, struct err *e);
/* Converts the inputs. Text is first converted to a shard in a temporary file. */
int token_convert_run(const struct token_convert *c, const struct strs *inputs,
	struct prepared *out, struct err *e);

/* ---- outputs.c ----------------------------------------------------------------------- */

/* Fails if an output is also an input. has_tokens: the operands contain tokens, not text. */
int outputs_check(const struct token_convert *c, bool has_tokens,
	const struct strs *operands, struct err *e);
