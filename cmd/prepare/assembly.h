/*
 * From the pieces of all batches to shards: which documents are written, and in which order. For
 * prepare.c; pipeline.h makes the pieces.
 *
 * Data that would exceed the memory for a large corpus is kept in temporary files. Functions that
 * return int return 0, or -1 with *e set.
 */
#pragma once

#include "base/progress.h"
#include "prepare/block_writer.h"
#include "prepare/pipeline.h"

/* ---- walk.c: the documents of all pieces, in order -------------------------------------- */

struct assembly {
	const struct encoding *of; /* the pieces and their options */
	struct shard_info
		info; /* initially facts about the text; assemble() completes it */
	uint64_t *duplicates; /* one bit per document; NULL: no duplicates are dropped */
	bool drops; /* tokens are read once, by one stream, and pieces released as they are read */
};

/* A document, possibly composed of several parts. */
struct document {
	int64_t number; /* from 0; counts also documents that are not kept */
	int32_t source;
	struct hash128 hash;
	int64_t n_bytes, n_tokens;
	enum fate fate;
	int64_t batch, token;		/* where its tokens begin */
	const struct token_span *spans; /* [n_spans], valid until the next walk_next() */
	int64_t n_spans;
};

/* The head of a piece, and the offsets of its arrays in its file. */
struct piece_view {
	struct piece_head head;
	int fd;
	int64_t documents, tokens, spans, messages;
};

int piece_view(
	const struct assembly *a, int64_t batch, struct piece_view *v, struct err *e);

struct walk {
	const struct assembly *a;
	int64_t batch, token, number;
	bool drops; /* pieces are released after their documents were visited */
	struct piece_view view;
	struct piece_document *documents; /* of the current piece */
	struct token_span *spans;
	int64_t n, at, span;
};

void walk_begin(struct walk *w, const struct assembly *a);
/* Reads the next document: 1, 0 at the end, or -1. */
int walk_next(struct walk *w, struct document *d, struct err *e);
void walk_end(struct walk *w);
enum split document_split(const struct assembly *a, const struct document *d);

/* A position in the tokens of a document, which may continue in the next pieces. */
struct token_place {
	const struct assembly *a;
	int64_t batch, token; /* the next one */
	struct piece_view view;
	bool opened;
};

void tokens_begin(
	struct token_place *r, const struct assembly *a, int64_t batch, int64_t token);
/* Sets *at to the place of up to n of the next tokens. Returns their number, or -1. */
int64_t tokens_next(struct token_place *r, int64_t n, struct extent *at, struct err *e);

/* ---- buckets.c: temporary files ----------------------------------------------------------- */

struct buckets;
struct buckets *buckets_open(
	const struct pieces *w, int n, struct err *e); /* NULL on error */
int buckets_put(
	struct buckets *b, int bucket, const void *p, size_t n_bytes, struct err *e);
int buckets_fd(const struct buckets *b, int bucket);
/* Maps a complete bucket, to which nothing can be added any more. Valid until the next call. */
int buckets_map(struct buckets *b, int bucket, const char **p, int64_t *n, struct err *e);
void buckets_close(struct buckets *b);

/* ---- dedup.c, shuffle.c: which documents, and in which order --------------------------------- */

/* Sets a->duplicates. */
int find_duplicates(struct assembly *a, struct err *e);

/* Documents of one source and split (-1: any), shuffled if a->p->shuffle. */
struct document_stream {
	const struct assembly *a;
	int32_t source, split;
	int64_t left;			/* remaining tokens of the current document */
	const struct token_span *spans; /* [n_spans], of the current document */
	int64_t n_spans;
	struct walk walk;
	struct token_place tokens;
	/* Shuffled documents. */
	struct buckets *buckets;
	int bucket_bits, bucket;       /* bucket: the next to be read */
	const char *map;	       /* contents of the current bucket, bucket - 1 */
	struct extent next;	       /* next tokens in it */
	struct document_place *places; /* of the current bucket */
	int64_t n_places, place;
};

/* Opens one of n_streams streams, which has n_tokens. */
int stream_open(
	struct document_stream *s, int64_t n_tokens, int n_streams, struct err *e);
void stream_rewind(struct document_stream *s);
/* Enters the next document: 1, 0 at the end, or -1. */
int stream_next(struct document_stream *s, struct err *e);
/* Sets *at to the place of up to n of the document's next tokens. Returns their number, or -1. */
int64_t stream_tokens(
	struct document_stream *s, int64_t n, struct extent *at, struct err *e);
void stream_close(struct document_stream *s);

/* ---- assemble.c: pieces to shards --------------------------------------------------------- */

/* The tokens that a source has, should give, and has given. */
struct share {
	struct document_stream stream;
	int64_t has, want, done; /* tokens */
	int64_t n_repeated;
};

struct writing {
	struct assembly *a;
	struct shard_writer *w;
	struct share *shares[N_SPLITS]; /* [lane][source] */
	int n_lanes, n;			/* n: sources */
	int64_t train_left;		/* split by tail: remaining training tokens */
	int64_t train_windows;
	int64_t documents;
	struct prepared *out;
	struct progress bar;
	double done;
};

int assemble(struct assembly *a, struct prepared *out, struct err *e);
/* Enters the next document of a lane, from the source that lags most. A stream that ends begins
 * again. Returns 1, 0 if no source wants more, or -1. Of a source's last document, the caller
 * writes only the tokens still wanted. */
int lane_next(struct writing *x, int lane, struct share **from, struct err *e);
void lane_rewind(struct writing *x, int lane);
int lane_open(struct writing *x, int lane, struct err *e);
struct token_spans {
	const struct token_span *v;
	int64_t n;
};
/* Writes tokens [at, at + n) of a document, and marks which of them count. */
int put_counted(struct writing *x, enum split s, struct token_spans spans, int64_t at,
	struct extent from, int64_t n, struct err *e);

/* ---- windows.c: documents laid out in windows ------------------------------------------------ */

/* Counts the windows that the documents of a lane fill. */
int windows_count(struct writing *x, int lane, int64_t *n, struct err *e);
/* Writes the windows of a lane. The first `train` of them are for training. */
int windows_write(struct writing *x, int lane, int64_t train, struct err *e);
