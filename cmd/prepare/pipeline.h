/* From files to tokens of documents, for prepare.c.
 *
 * A reader cuts the text of the inputs into batches of documents. The number and contents of the
 * batches depend on the inputs only. Workers (threads of one or more ranks) filter and encode
 * batches in any order; each batch becomes one piece of a work file. When all pieces are complete,
 * they are assembled into shards. So shards do not depend on threads and ranks, and a killed
 * program resumes with the pieces that it finds. */
#pragma once

#include "base/progress.h"
#include "base/file.h"
#include "prepare/record.h"
#include "table/table.h"

/* ---- input.c: bytes of a file, decompressed; or the rows of a table ------------------ */

/* A file that is read from beginning to end, once or more. gzip and zstd are decompressed. */
struct input_file {
	char *path; /* "-": standard input */
	const char *name;
	int32_t source; /* index in inputs.sources */
	bool is_jsonl;
	bool is_table;		/* Parquet or Arrow, known when it has been opened */
	bool has_given_format;	/* by --format, so that it may begin as a shard does */
	bool accepts_any_bytes; /* every byte is a token, so that any content is valid */
	bool is_stream;		/* can be read only once: a pipe */
	int fd;			/* standard input or the copy of a stream; else -1 */
	int64_t begin, end;	/* offsets in the file; end -1: unknown */
};

struct input;
/* Opens a file at its beginning, even if it was read before. Returns NULL on error. */
struct input *input_open(struct input_file *f, const struct prepare *p, struct err *e);
/* Returns the table whose rows replace the bytes; NULL: not a table. */
struct table *input_table(struct input *in);
/* Reads up to n bytes. Returns their number, 0 at the end, or -1 on an error. */
int64_t input_read(struct input *in, char *to, int64_t n, struct err *e);
/* Returns the number of bytes read from the file, before decompression. */
int64_t input_bytes_read(const struct input *in);
void input_close(struct input *in);
/* Copies a stream to a temporary file, so that it can be read twice. */
int input_copy_stream(struct input_file *f, struct err *e);

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
	int64_t n_bytes; /* sum over all files, compressed; -1: unknown */
	bool has_warned; /* the user knows that a file looks like JSONL */
};

/* Lists the files of the operands: files, directories (all their files, in order of names),
 * patterns of glob(7), and "-". Without p->sources, all of them form one source. */
int inputs_open(struct inputs *in, const struct prepare *p, const struct strs *operands,
	struct err *e);
void inputs_close(struct inputs *in);
bool inputs_have_tables(const struct inputs *in);
/* Returns true if a file has a document per line or row. */
bool inputs_have_records(const struct inputs *in);

/* ---- reader.c: batches of documents ------------------------------------------------ */

/* A document, or a part of one that is too large for a batch. In JSONL it is a line, in a table a
 * row: its text, or the cells of table.h. */
struct document_part {
	int64_t at, n_bytes; /* offset in the text of the batch; size */
	int64_t n_more; /* bytes of the next part that follow, to find where words end */
	int64_t position; /* byte offset in its file; for JSONL and tables: the number from 1 */
	int32_t file;
	bool first, last; /* first and last part of its document */
	bool is_row; /* a row of a table (parts are hashed as bytes, without padding) */
	uint8_t state; /* enum row_state; ROW_TOO_LONG also for a line of JSONL over the limit */
};

struct batch {
	int64_t number;
	int32_t source; /* source of all its documents */
	struct str text;
	struct document_part *parts;
	int64_t n_parts;
};

void batch_release(struct batch *b);

struct reader;
/* Creates a reader. Large documents are cut between words of t, or between characters if t is
 * NULL. With keeps_whole, only documents longer than p->max_bytes are cut. */
struct reader *reader_open(const struct prepare *p, struct inputs *in,
	const struct tokenizer *t, bool keeps_whole);
/* Reads the next batch: 1, 0 at the end, or -1 on an error. Not thread-safe. */
int reader_next(struct reader *r, struct batch *b, struct err *e);
/* Returns the number of bytes read from the files, before decompression. */
int64_t reader_bytes_read(const struct reader *r);
/* Returns the decompressed bytes read so far. */
int64_t reader_text_bytes(const struct reader *r);
uint64_t reader_close(struct reader *r); /* returns the hash of the text */

/* ---- filter.c: which documents are kept --------------------------------------------- */

enum fate {
	FATE_KEPT,
	FATE_SHORT,
	FATE_LONG,
	FATE_NOT_KEEP, /* an expression of --keep does not match */
	FATE_DROP,     /* an expression of --drop matches */
	FATE_DUPLICATE,
	FATE_PART, /* part of a document whose length is not known yet */
	N_FATES
};

struct filter;
/* Compiles the regular expressions. Returns NULL if one is invalid. */
struct filter *filter_new(const struct prepare *p, struct err *e);
void filter_free(struct filter *f);
bool filter_has_expressions(const struct filter *f);
/* Returns the fate of a document by its length alone. */
enum fate filter_length(const struct filter *f, int64_t n_bytes);
/* Returns the fate of a whole document, or -1 on an error. Thread-safe. */
int filter_fate(const struct filter *f, const char *text, int64_t n, struct err *e);

/* ---- jsonl.c: the text of a line ----------------------------------------------------- */

/* Appends the string in field `field` of the JSON object in line[0..n). Returns -1 with a message
 * that does not name the file and the line. */
int jsonl_read_text(
	const char *line, int64_t n, const char *field, struct str *out, struct err *e);
/* Does what jsonl_read_text() does, but without the fast parser of flat objects. */
int jsonl_parse_text(
	const char *line, int64_t n, const char *field, struct str *out, struct err *e);

/* The text of a part of a batch, with memory that the next part reuses. */
enum { MAX_MESSAGES = 10 };
struct document_text {
	const char *text;
	int64_t n;	 /* bytes */
	struct str line; /* text of a JSONL line, decoded */
	const struct records
		*records; /* reads lines that mark what counts; NULL: lines are texts */
	struct marked marked;
	int64_t n_broken;     /* broken lines so far */
	struct str *messages; /* warnings about the first MAX_MESSAGES, or NULL */
};
/* Sets *out to the text of a part; for a JSONL line, to its document and the separator. Returns 1
 * if the line is blank or broken, and -1 if it is broken and p->strict. */
int batch_read_part(const struct prepare *p, const struct input_file *f,
	const struct batch *b, const struct document_part *part,
	struct document_text *out, struct err *e);
/* Counts a line as broken, and appends *why to out->messages. Returns 1, or -1 with p->strict. */
int count_broken_line(const struct prepare *p, const struct input_file *f,
	const struct document_part *part, struct document_text *out, struct err *why,
	struct err *e);
void document_text_release(struct document_text *d);

/* Documents of a pass that makes no pieces. */
struct pass_documents {
	int64_t n, n_broken;
	int64_t batch;	     /* the first one with a broken line */
	struct str messages; /* messages of this batch */
};
/* Adds the documents of a batch, and its first messages. */
void pass_add(struct pass_documents *p, int64_t batch, int64_t n, int64_t n_broken,
	const struct str *messages);
/* Sets an error, and returns -1, if no document was read but broken lines. Releases *p. */
int pass_end(struct pass_documents *p, struct err *e);

/* ---- batches.c: all batches, by several threads --------------------------------------- */

struct batches {
	struct reader *reader;
	struct progress *bar;
	bool shows_rate; /* the bar shows bytes per second */
	/* Processes a batch; `worker` is the state of the calling thread. */
	int (*work)(void *worker, const struct batch *b, struct err *e);
};

/* Processes all batches with n threads, including the caller's; `workers` is an array of n
 * elements of worker_bytes. After an error, no other batch is begun. Returns the number of the
 * first batch with an error, and sets *e to this error; INT64_MAX: no error. */
int64_t batches_run(const struct batches *b, void *workers, size_t worker_bytes, int n,
	struct err *e);

/* ---- pieces.c: work files ------------------------------------------------------------- */

/* The fate and size of a document, or of a part of one. */
struct piece_document {
	struct hash128 hash;
	int64_t n_bytes, n_tokens;
	uint8_t fate, first, last, unused; /* unused: padding, 0 */
	uint32_t n_spans;
};

/* Tokens [begin, end) of a document, which count as targets. */
struct token_span {
	uint32_t begin, end;
};

struct piece_head {
	uint64_t magic;
	int64_t number;	    /* index of the batch */
	struct hash128 key; /* hash of the batch's text and the options */
	int64_t n_documents, n_tokens, n_spans, n_lines_broken;
	int64_t n_message_bytes;
	int32_t source, row_bytes; /* row_bytes: bytes per token */
	uint64_t check;		   /* checksum of documents, tokens, spans and messages */
	uint64_t head_check;	   /* checksum of the fields above */
};

struct piece {
	struct piece_head head;
	struct piece_document *documents;
	struct str tokens, spans, messages;
};

void piece_release(struct piece *p);

struct pieces;
/* Opens the work files of all ranks in directory `work`, or a temporary file if it is NULL. Pieces
 * are added to the file of `rank`; -1: none are added. Returns NULL on error. */
struct pieces *pieces_open(const char *work, int rank, struct err *e);
void pieces_close(struct pieces *w);
/* Removes the work files and their directory, unless it has other files. */
void pieces_remove(struct pieces *w);
/* Returns true if the piece was in the work files when they were opened. Thread-safe. */
bool pieces_contain(struct pieces *w, int64_t number, struct hash128 key);
/* Appends a piece after setting its checksums. Thread-safe. */
int pieces_add(struct pieces *w, struct piece *p, struct err *e);
/* Counts n_bytes of a temporary file as read for the last time. A file that has been read whole is
 * truncated, which frees its disk space. Thread-safe. */
void pieces_mark_read(struct pieces *w, int fd, int64_t n_bytes);
struct piece_place {
	int fd;
	int64_t at; /* file offset of its head */
};
void pieces_sort(struct pieces *w);
/* Sets *at to the place of a sorted piece. Returns -1 if no file has the piece. */
int pieces_find(const struct pieces *w, int64_t number, struct hash128 key,
	struct piece_place *at);
/* Creates an unlinked temporary file next to the work files. Returns its descriptor, or -1. */
int pieces_create_scratch(const struct pieces *w, struct err *e);

/* ---- encode.c: batches to pieces, by all threads and ranks ----------------------------- */

struct encoding {
	const struct prepare *p;
	struct inputs *inputs;
	const struct tokenizer
		*t;	     /* NULL: nothing is encoded, but a vocabulary is learned */
	int64_t end_of_text; /* token after each document; -1: none */
	int32_t row_bytes;   /* bytes per token in pieces */
	const struct records
		*records; /* NULL: lines of JSONL are texts, and all tokens count */
	struct filter *filter;
	struct pieces *pieces;
	struct comm *comm;
	struct tokenizer *learn; /* learns its vocabulary from the text; NULL: none */
	struct pass_documents learned;
	const char *title;  /* title of the progress bar */
	bool has_read_text; /* this rank has read the text before */

	/* Results. */
	struct hash128 *keys; /* [n_batches], on rank 0 */
	int64_t n_batches, keys_capacity;
	int64_t text_bytes;
	uint64_t text_hash;
};

extern const char text_changed[]; /* an error message */
/* Encodes all batches, or learns from them. Collective. Reports the first batch's error. */
int encode_all(struct encoding *x, struct err *e);
