/*
 * prepare: from text, or the token files of other programs, to shards; and training of vocabularies. For
 * pt-prepare.
 *   prepare.h       text to shards
 *   record.h        lines of JSONL that say which tokens count
 *   pipeline.h      its first half: files to batches of documents, and these to pieces of tokens
 *   assembly.h      its second half: which documents are written, and in which order
 *   block_writer.h  blocks of tokens, written by several threads
 *   shard_writer.h  the files
 *   token_file.h    token files of other programs, read and written
 *   train_vocab.h   training of a vocabulary from texts, with vocab/vocab.h
 *
 * Files are not trusted. Functions that return int return 0, or -1 with *e set.
 */
#pragma once

#include "chat/chat.h"
#include "data/data.h"

/* ---- prepare.c: text to shards --------------------------------------------------- */

#define FORMAT_WORDS "auto", "text", "jsonl"
enum { FORMAT_AUTO, FORMAT_TEXT, FORMAT_JSONL };
#define SPLIT_WORDS "tail", "document", "hash"
enum { SPLIT_BY_TAIL, SPLIT_BY_DOCUMENT, SPLIT_BY_HASH };
/* What a line of JSONL is; of all but a text, it says which tokens count as targets. */
#define RECORD_WORDS "text", "prompt", "messages", "spans", "ids", "mask"
enum {
	RECORD_TEXT,
	RECORD_PROMPT,
	RECORD_MESSAGES,
	RECORD_SPANS,
	RECORD_IDS,
	RECORD_MASK
};
/* Has a record tokens instead of text? */
static inline bool record_has_ids(int record)
{
	return record == RECORD_IDS || record == RECORD_MASK;
}
/* Documents that are longer than a window. */
#define LONG_WORDS "cut", "split", "drop"
enum { LONG_CUT, LONG_SPLIT, LONG_DROP };

struct prepare {
	struct tokenizer_source tokenizer;
	bool no_end_of_text; /* behind documents */

	/* Inputs; see pipeline.h. */
	struct strs sources; /* NAME=WEIGHT:PATH */
	int format;
	int record;
	const char *
		field; /* of JSONL, two of some records: NAME,NAME; NULL: those of the record */
	const char *chat_template; /* of turns: a name or a file; NULL: none */
	int count;		   /* which turns count */
	int64_t ids_vocab; /* of records of ids, instead of a tokenizer; 0: that of the tokenizer */
	bool strict;	       /* a broken line is an error */
	bool as_is;	       /* compressed files are not decompressed */
	const char *separator; /* end of a document; NULL: each file is a document */

	/* Documents: which, and in which order. */
	int64_t min_bytes, max_bytes; /* 0: any */
	struct strs keep, drop;	      /* regular expressions */
	bool dedup, shuffle;
	int64_t mix_tokens; /* of all sources; 0: as many as there are without repetition */
	int split_by;
	double val_fraction;
	int64_t seed;

	int64_t window; /* documents are laid out in windows of so many tokens; 0: one after the other */
	int too_long; /* those that do not fit into one */

	int64_t shard_bytes; /* bytes of tokens per file; 0: one file */
	const char *out;     /* file name, or its prefix before -00000.h5; "-": stdout */
	bool overwrite;

	int threads;	   /* 0: one */
	const char *work;  /* the folder of work files; NULL: temporary ones */
	struct comm *comm; /* NULL: this rank alone */
};

/* The result; info is that of the last file. */
struct prepared {
	struct shard_info info;
	struct strs files;
	int64_t vocab_size;
	size_t token_bytes;
	/* What was read, and why it was not written. */
	int64_t n_read, n_short, n_long, n_not_kept, n_dropped, n_duplicate, n_broken;
	int64_t n_counted;			  /* tokens; -1: all */
	int64_t n_windows, n_padding, n_too_long; /* with windows */
	int64_t longest; /* tokens of the longest of the n_too_long */
};

/* Collective over p->comm; *out is set on rank 0. */
int prepare_run(const struct prepare *p, const struct strs *inputs, struct prepared *out,
	struct err *e);
/* Writes the text of a split of the files to f. */
int prepare_decode(const struct strs *files, enum split split, FILE *f, struct err *e);

/* ---- show.c: documents, and which tokens count ------------------------------------- */

/* Writes documents [from, from + n) of the files to f, those for validation behind those for training. */
int prepare_show(
	const struct strs *files, int64_t from, int64_t n, FILE *f, struct err *e);
