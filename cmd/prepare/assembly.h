/*
 * From the pieces of all batches to shards: which documents are written, and in which order. For prepare.c;
 * pipeline.h makes the pieces.
 *
 * What would not fit into memory for a large corpus is in temporary files. Functions that return int return
 * 0, or -1 with *e set.
 */
#pragma once

#include "base/progress.h"
#include "prepare/block_writer.h"
#include "prepare/pipeline.h"

/* ---- walk.c: the documents of all pieces, in order -------------------------------------- */

struct assembly {
	const struct encoding *of; /* the pieces, and what they are of */
	struct shard_info info;	   /* of the text, when it begins */
	uint64_t *duplicates;	   /* a bit for each document; NULL: none are dropped */
	bool drops; /* tokens are read once, by one stream: then pieces are not needed any more */
};

/* A document of all of the text. */
struct document {
	int64_t number; /* from 0; also of those that are not kept */
	int32_t source;
	struct hash128 hash;
	int64_t n_bytes, n_tokens;
	enum fate fate;
	int64_t batch, token;		/* where its tokens begin */
	const struct token_span *spans; /* [n_spans], of a walk: until it goes on */
	int64_t n_spans;
};

/* The head of a piece, and where its tokens are in its file. */
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
	bool drops; /* nobody else needs the documents */
	struct piece_view view;
	struct piece_document *documents; /* of the current piece */
	struct token_span *spans;
	int64_t n, at, span;
};

void walk_begin(struct walk *w, const struct assembly *a);
/* 1: the next document, 0: there are no more, -1. */
int walk_next(struct walk *w, struct document *d, struct err *e);
void walk_end(struct walk *w);
enum split document_split(const struct assembly *a, const struct document *d);

/* Where the tokens of a document are, which may go on in the next pieces. */
struct token_place {
	const struct assembly *a;
	int64_t batch, token; /* the next one */
	struct piece_view view;
	bool opened;
};

void tokens_begin(
	struct token_place *r, const struct assembly *a, int64_t batch, int64_t token);
/* Up to n of the next tokens. Returns their number, or -1. */
int64_t tokens_next(struct token_place *r, int64_t n, struct extent *at, struct err *e);

/* ---- buckets.c: temporary files ----------------------------------------------------------- */

struct buckets;
struct buckets *buckets_open(
	const struct pieces *w, int n, struct err *e); /* NULL: an error */
int buckets_put(
	struct buckets *b, int bucket, const void *p, size_t n_bytes, struct err *e);
int buckets_fd(const struct buckets *b, int bucket);
/* All of a bucket, to which nothing can be added any more; valid until the next call. */
int buckets_map(struct buckets *b, int bucket, const char **p, int64_t *n, struct err *e);
void buckets_close(struct buckets *b);

/* ---- dedup.c, shuffle.c: which documents, and in which order --------------------------------- */

/* Sets a->duplicates. */
int find_duplicates(struct assembly *a, struct err *e);

/* Documents of one source and split (-1: any), shuffled if a->p->shuffle. */
struct document_stream {
	const struct assembly *a;
	int32_t source, split;
	int64_t left;			/* tokens of the current document */
	const struct token_span *spans; /* [n_spans] of it, until the next one */
	int64_t n_spans;
	struct walk walk;
	struct token_place tokens;
	/* Shuffled documents. */
	struct buckets *buckets;
	int bucket_bits, bucket; /* the next one */
	const char *map;	 /* the one before it */
	struct extent next;	 /* tokens in it */
	struct place *places;	 /* of the current bucket */
	int64_t n_places, place;
};

/* It has n_tokens, and is one of n_streams. */
int stream_open(
	struct document_stream *s, int64_t n_tokens, int n_streams, struct err *e);
void stream_rewind(struct document_stream *s);
/* 1: the next document, 0: there are no more, -1. */
int stream_next(struct document_stream *s, struct err *e);
/* Up to n of its next tokens; -1 on an error. */
int64_t stream_tokens(
	struct document_stream *s, int64_t n, struct extent *at, struct err *e);
void stream_close(struct document_stream *s);

/* ---- assemble.c: pieces to shards --------------------------------------------------------- */

/* What a source has and gives. */
struct share {
	struct document_stream stream;
	int64_t has, want, done; /* tokens */
	int64_t n_repeated;
};

struct writing {
	struct assembly *a;
	struct shard_writer *w;
	struct share *shares[N_SPLITS]; /* [n] of each lane */
	int n_lanes, n;
	int64_t train_left; /* split by tail: remaining training tokens */
	int64_t train_windows;
	int64_t documents;
	struct prepared *out;
	struct progress bar;
	double done;
};

int assemble(struct assembly *a, struct prepared *out, struct err *e);
/* The next document of a lane, of the source that is most behind; a stream begins again at its end. 0: there are
 * no more; -1. Of the last one of a source, only as many tokens are wanted as its `want` leaves. */
int lane_next(struct writing *x, int lane, struct share **from, struct err *e);
void lane_rewind(struct writing *x, int lane);
int lane_open(struct writing *x, int lane, struct err *e);
/* Writes tokens [at, at + n) of a document with these spans. */
struct token_spans {
	const struct token_span *v;
	int64_t n;
};
int put_counted(struct writing *x, enum split s, struct token_spans spans, int64_t at,
	struct extent from, int64_t n, struct err *e);

/* ---- windows.c: documents laid out in windows ------------------------------------------------ */

/* Both read all documents of a lane. The first counts windows; of all, the first `train` are for training. */
int windows_count(struct writing *x, int lane, int64_t *n, struct err *e);
int windows_write(struct writing *x, int lane, int64_t train, struct err *e);
