/*
 * From files to tokens of documents, for prepare.c.
 *
 * A reader cuts the text of the inputs into batches of documents, whose number and contents depend on
 * the inputs only. Workers (threads of one or more ranks) filter and encode batches, in any order; each
 * gives one piece of a work file. When all pieces are there, they are assembled to shards. So shards do
 * not depend on threads and ranks, and a killed program continues with the pieces that it finds.
 *
 * Files are not trusted. Functions that return int return 0, or -1 with *e set.
 */
#pragma once

#include "base/progress.h"
#include "base/file.h"
#include "prepare/record.h"

/* ---- input.c: bytes of a file, decompressed ---------------------------------------- */

/* A file that is read from its beginning to its end, once or more. Bytes that begin as a file of gzip
 * or zstd are decompressed. */
struct input_file {
	char *path; /* "-": standard input */
	const char *name;
	int32_t source;	    /* its number */
	bool jsonl, given;  /* given: its format, so that it may begin as a shard */
	bool any_bytes;	    /* they are tokens, whatever they are */
	bool stream;	    /* can be read once: a pipe */
	int fd;		    /* of standard input and of the copy of a stream; else -1 */
	int64_t begin, end; /* offsets in the file; end -1: not known */
};

struct input;
/* The file is open again from its beginning. NULL: an error. */
struct input *input_open(struct input_file *f, bool decompress, struct err *e);
/* Reads up to n bytes; 0 at the end, -1 on an error. */
int64_t input_read(struct input *in, char *to, int64_t n, struct err *e);
/* How many bytes of the file have been read, before decompression. */
int64_t input_done(const struct input *in);
void input_close(struct input *in);
/* Copies a stream to a temporary file, so that it can be read twice. */
int input_keep(struct input_file *f, struct err *e);

/* ---- inputs.c: the list of files --------------------------------------------------- */

struct source {
	char *name;
	double weight;
};

struct inputs {
	struct input_file *files;
	int64_t n;
	struct source *sources;
	int32_t n_sources;
	int64_t n_bytes; /* of all files; -1: not known */
	bool warned;	 /* that one looks like JSONL */
};

/* Files, folders (all their files, in order of their names), patterns of glob(7), and "-". Without
 * sources, all are one source without a name. */
int inputs_open(struct inputs *in, const struct prepare *p, const struct strs *operands,
	struct err *e);
void inputs_close(struct inputs *in);

/* ---- reader.c: batches of documents ------------------------------------------------ */

/* A document, or a part of one that is too large for a batch. In JSONL it is a line. */
struct document_part {
	int64_t at, n_bytes; /* in the text of the batch */
	int64_t n_more; /* bytes behind it that belong to the next part, which tell where words end */
	int64_t where; /* offset in its file; of JSONL: the number of the line, from 1 */
	int32_t file;
	bool first, last; /* of its document */
	bool too_long;	  /* a line that was not read */
	bool unused;
};

struct batch {
	int64_t number;
	int32_t source; /* of all its documents */
	struct str text;
	struct document_part *parts;
	int64_t n_parts;
};

void batch_free(struct batch *b);

struct reader;
/* t: where large documents may be cut; NULL: between characters. `whole`: none is cut, but those of
 * more than p->max_bytes. */
struct reader *reader_open(const struct prepare *p, struct inputs *in,
	const struct tokenizer *t, bool whole);
/* 1: the next batch, 0: there are no more, -1: an error. One thread at a time. */
int reader_next(struct reader *r, struct batch *b, struct err *e);
/* How many bytes of the files have been read, and of their text; and the hash of the latter at the
 * end. */
int64_t reader_done(const struct reader *r);
int64_t reader_text_bytes(const struct reader *r);
uint64_t reader_close(struct reader *r);

/* ---- filter.c: which documents are kept --------------------------------------------- */

enum fate {
	FATE_KEPT,
	FATE_SHORT,
	FATE_LONG,
	FATE_NOT_KEEP, /* an expression of --keep does not match */
	FATE_DROP,     /* one of --drop does */
	FATE_DUPLICATE,
	FATE_PART, /* of a document: its length is not known yet */
	N_FATES
};

struct filter;
/* NULL: an expression is wrong. */
struct filter *filter_open(const struct prepare *p, struct err *e);
void filter_close(struct filter *f);
bool filter_has_expressions(const struct filter *f);
enum fate filter_length(const struct filter *f, int64_t n_bytes);
/* For a whole document; -1 on an error. Thread-safe. */
int filter_fate(const struct filter *f, const char *text, int64_t n, struct err *e);

/* ---- jsonl.c: the text of a line ----------------------------------------------------- */

/* Appends the string that is field `field` of the JSON object in line[0..n). -1 with a message about
 * the line, without its name. */
int jsonl_text(
	const char *line, int64_t n, const char *field, struct str *out, struct err *e);
/* Parses by jansson alone. */
int jsonl_text_any(
	const char *line, int64_t n, const char *field, struct str *out, struct err *e);

/* The text of a part of a batch. Kept from one to the next: `line`, and how many lines were broken, of which messages
 * has the first (NULL: it is not wanted). */
enum { MAX_MESSAGES = 10 };
struct document_text {
	const char *text;
	int64_t n;
	struct str line;
	const struct records *records; /* lines say what counts; NULL: they do not */
	struct marked marked;
	int64_t n_broken;
	struct str *messages;
};
/* In a file of lines it is the document of the line, with the separator behind it: 0; 1 if the line is blank, or
 * broken; -1 with a message that names the file and the line if it is broken and p->strict. */
int batch_text(const struct prepare *p, const struct input_file *f, const struct batch *b,
	const struct document_part *part, struct document_text *out, struct err *e);
/* Counts the line as a broken one, for this reason: 1, or -1 with p->strict. */
int batch_broken(const struct prepare *p, const struct input_file *f,
	const struct document_part *part, struct document_text *out, struct err *why,
	struct err *e);
void document_text_free(struct document_text *d);

/* ---- batches.c: all batches, by several threads --------------------------------------- */

struct batches {
	struct reader *reader;
	struct progress *bar;
	bool shows_rate; /* the bar */
	/* A thread has a batch; `worker` is its own. */
	int (*work)(void *worker, const struct batch *b, struct err *e);
};

/* The caller's is one of n threads; workers[n] are of so many bytes each. Returns the first batch that has an error,
 * which is in *e, after which none is begun; INT64_MAX: there is none. */
int64_t batches_run(const struct batches *b, void *workers, size_t worker_bytes, int n,
	struct err *e);

/* ---- pieces.c: work files ------------------------------------------------------------- */

/* What became of a document, or of a part of it. */
struct piece_document {
	struct hash128 hash;
	int64_t n_bytes, n_tokens;
	uint8_t fate, first, last, unused;
	uint32_t n_spans;
};

/* Of a document's tokens, [begin, end) count as targets. */
struct token_span {
	uint32_t begin, end;
};

struct piece_head {
	uint64_t magic;
	int64_t number;	    /* of the batch */
	struct hash128 key; /* of the batch's text and the options */
	int64_t n_documents, n_tokens, n_spans, n_lines_broken;
	int64_t n_message_bytes;
	int32_t source, row_bytes; /* of a token */
	uint64_t check;	     /* of what follows: documents, tokens, spans, messages */
	uint64_t head_check; /* of the head before */
};

struct piece {
	struct piece_head head;
	struct piece_document *documents;
	struct str tokens, spans, messages;
};

void piece_free(struct piece *p);

struct pieces;
/* The work files of all ranks in folder `work`; NULL: temporary files. Pieces are added to that of
 * `rank`; -1: none. */
struct pieces *pieces_open(const char *work, int rank, struct err *e);
void pieces_close(struct pieces *w);
/* Removes the work files. */
void pieces_remove(struct pieces *w);
/* Was it there when the files were opened? Thread-safe. */
bool pieces_have(struct pieces *w, int64_t number, struct hash128 key);
/* Appends a piece, and sets its check. Thread-safe. */
int pieces_add(struct pieces *w, struct piece *p, struct err *e);
/* So many bytes of a temporary file have been read for the last time; when all have, it is emptied.
 * Thread-safe. */
void pieces_drop(struct pieces *w, int fd, int64_t n_bytes);
/* Where a piece is; -1: it is in none of the files. After pieces_sort(). */
struct piece_place {
	int fd;
	int64_t at; /* of its head */
};
void pieces_sort(struct pieces *w);
int pieces_find(const struct pieces *w, int64_t number, struct hash128 key,
	struct piece_place *at);
/* A temporary file beside them, which has no name any more; a descriptor or -1. */
int pieces_scratch(const struct pieces *w, struct err *e);

/* ---- encode.c: batches to pieces, by all threads and ranks ----------------------------- */

struct encoding {
	const struct prepare *p;
	struct inputs *inputs;
	const struct tokenizer *t; /* NULL: nothing is encoded, see learn */
	int64_t end_of_text;	   /* the token behind each document; -1: none */
	int32_t row_bytes;	   /* of a token in pieces */
	const struct records
		*records; /* NULL: lines of JSONL are texts, and all counts */
	struct filter *filter;
	struct pieces *pieces;
	struct comm *comm;
	/* The learning tokenizer, of one thread at a time. */
	struct tokenizer *learn;
	const char *title; /* of the progress bar */
	bool again;	   /* this rank has read the text before */

	/* Results. */
	struct hash128 *keys; /* [n_batches], on rank 0 */
	int64_t n_batches, room;
	int64_t text_bytes;
	uint64_t text_hash;
};

extern const char text_changed[];
/* Collective. The error, if any, is that of the first batch that has one. */
int encode_all(struct encoding *x, struct err *e);
