/* prepare: converts text and token files of other programs to shards, and trains vocabularies.
 *   prepare.h       text to shards
 *   record.h        lines of JSONL that mark which tokens count as targets of the loss
 *   pipeline.h      first half: files to batches of documents, and batches to pieces of tokens
 *   assembly.h      second half: which documents are written, and in which order
 *   block_writer.h  blocks of tokens, written by several threads
 *   shard_writer.h  the shard files
 *   token_file.h    writes token files of other programs, and converts them (tokens/tokens.h)
 *   train_vocab.h   training of a vocabulary on texts, with vocab/vocab.h
 *
 * Input files are not trusted. Functions that return int return 0, or -1 with *e set. */
#pragma once

#include "chat/chat.h"
#include "data/data.h"

/* ---- prepare.c: text to shards --------------------------------------------------- */

#define FORMAT_WORDS "auto", "text", "jsonl"
enum { FORMAT_AUTO, FORMAT_TEXT, FORMAT_JSONL };
#define SPLIT_WORDS "tail", "document", "hash"
enum { SPLIT_BY_TAIL, SPLIT_BY_DOCUMENT, SPLIT_BY_HASH };
/* What a line of JSONL holds. All records except texts mark which tokens count as targets. */
#define RECORD_WORDS "text", "prompt", "messages", "spans", "ids", "mask"
enum {
	RECORD_TEXT,
	RECORD_PROMPT,
	RECORD_MESSAGES,
	RECORD_SPANS,
	RECORD_IDS,
	RECORD_MASK
};
/* Returns true if records of this kind have tokens instead of text. */
static inline bool record_has_ids(int record)
{
	return record == RECORD_IDS || record == RECORD_MASK;
}
/* What happens to a document that is longer than a window. */
#define LONG_WORDS "cut", "split", "drop"
enum { LONG_CUT, LONG_SPLIT, LONG_DROP };

struct prepare {
	struct tokenizer_source tokenizer;
	bool no_end_of_text; /* no end-of-text token after documents */

	/* Inputs; see pipeline.h. */
	struct strs sources; /* NAME=WEIGHT:PATH */
	int format;
	int record;
	const char *
		field; /* JSONL field, NAME,NAME for records with two; NULL: the default */
	const char *chat_template; /* for turns: a name or a file; NULL: none */
	int count;	       /* which turns count as targets: COUNT_ASSISTANT, ... */
	int64_t ids_vocab;     /* vocabulary size of records of ids; 0: the tokenizer's */
	bool strict;	       /* a broken line is an error */
	bool as_is;	       /* compressed files are read without decompression */
	const char *separator; /* end of a document; NULL: each file is a document */

	/* Selection and order of documents. */
	int64_t min_bytes, max_bytes; /* 0: any */
	struct strs keep, drop;	      /* regular expressions */
	bool dedup, shuffle;
	int64_t mix_tokens; /* tokens from all sources; 0: as many as possible without repetition */
	int split_by;
	double val_fraction;
	int64_t seed;

	int64_t window; /* tokens per window of documents; 0: documents are concatenated */
	int too_long; /* LONG_CUT, ...: what happens to documents longer than a window */

	int64_t shard_bytes; /* bytes of tokens per file; 0: one file */
	const char *out;     /* file name, or its prefix before -00000.h5; "-": stdout */
	bool overwrite;

	int threads;	   /* 0: one */
	const char *work;  /* directory of work files; NULL: temporary files */
	struct comm *comm; /* NULL: this rank alone */
};

struct prepared {
	struct shard_info info; /* attributes of the last file */
	struct strs files;
	int64_t vocab_size;
	size_t token_bytes;
	/* Documents read, and documents not written by reason. */
	int64_t n_read, n_short, n_long, n_not_kept, n_dropped, n_duplicate, n_broken;
	int64_t n_counted;			  /* tokens that count; -1: all */
	int64_t n_windows, n_padding, n_too_long; /* with windows */
	int64_t longest; /* tokens of the longest document that does not fit into a window */
};

/* Why documents are not written: numbers and reasons. */
#define PREPARED_DROPPED(d)                                     \
	{(d)->n_short, "too short"}, {(d)->n_long, "too long"}, \
		{(d)->n_not_kept, "without a match of --keep"}, \
		{(d)->n_dropped, "with a match of --drop"},     \
	{                                                       \
		(d)->n_duplicate, "duplicates"                  \
	}

/* Converts the inputs to shards. Collective over p->comm; *out is set on rank 0. */
int prepare_run(const struct prepare *p, const struct strs *inputs, struct prepared *out,
	struct err *e);
/* Writes the text of one split of the shards to f. */
int prepare_decode(const struct strs *files, enum split split, FILE *f, struct err *e);

/* ---- show.c: documents, and which tokens count ------------------------------------- */

/* Writes documents [from, from + n) of the shards to f, first training, then validation. */
int prepare_show(
	const struct strs *files, int64_t from, int64_t n, FILE *f, struct err *e);
