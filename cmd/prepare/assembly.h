/* From the pieces of all batches to shards: which documents are written, and in which order. For
 * prepare.c; pipeline.h makes the pieces.
 *
 * Data that would exceed the memory for a large corpus is kept in temporary files. Functions that
 * return int return 0, or -1 with *e set. */
#pragma once

#include "base/progress.h"
#include "prepare/block_writer.h"
#include "prepare/pipeline.h"

/* ---- walk.c: the documents of all pieces, in order -------------------------------------- */

struct assembly {
	const struct encoding *encoding; /* the pieces and their options */
	struct shard_info info;		 /* about the text; assemble() adds split sizes */
	uint64_t *duplicates; /* one bit per document; NULL: no duplicates are dropped */
	bool frees_pieces; /* each piece is read once, and its disk space is freed afterwards */
};

/* A document, possibly composed of several parts. */
struct document {
	int64_t number; /* from 0; counts also documents that are not kept */
	int32_t source;
	struct hash128 hash;
	int64_t n_bytes, n_tokens;
	enum fate fate;
	int64_t batch, token; /* position of its first token: piece, token in the piece */
	const struct token_span *spans; /* [n_spans], valid until the next walk_next() */
	int64_t n_spans;
};

/* The head of a piece, and the offsets of its arrays in its file. */
struct piece_view {
	struct piece_head head;
	int fd;
	int64_t documents, tokens, spans, messages;
};

/* Finds the piece of a batch, and sets *v to its head and the places of its parts. Returns -1
 * with *e set. */
int piece_view_read(
	const struct assembly *a, int64_t batch, struct piece_view *v, struct err *e);

struct walk {
	const struct assembly *a;
	int64_t batch, token,
		number; /* next document: its piece, its first token in the piece, its index */
	bool frees_pieces; /* disk space of a piece is freed after its documents were visited */
	struct piece_view view;
	struct piece_document *documents; /* documents of the current piece */
	struct token_span *spans;
	int64_t n, at,
		span; /* documents in the piece; index of the next document and span */
};

void walk_begin(struct walk *w, const struct assembly *a);
/* Reads the next document: 1, 0 at the end, or -1. */
int walk_next(struct walk *w, struct document *d, struct err *e);
void walk_end(struct walk *w);
/* Returns the split of a document: random, or SPLIT_TRAIN by --split tail. */
enum split document_split(const struct assembly *a, const struct document *d);

/* A position in the tokens of a document, which may continue in the next pieces. */
struct token_place {
	const struct assembly *a;
	int64_t batch, token; /* piece of the next token, and its index there */
	struct piece_view view;
	bool opened; /* `view` describes piece `batch` */
};

void token_place_seek(
	struct token_place *r, const struct assembly *a, int64_t batch, int64_t token);
/* Sets *at to the bytes of up to n next tokens. Returns their number, or -1. */
int64_t token_place_advance(
	struct token_place *r, int64_t n, struct extent *at, struct err *e);

/* ---- buckets.c: records in temporary files ------------------------------------------------ */

struct buckets;
/* Creates n empty buckets, each a temporary file in the directory of w. Returns NULL with
 * *e set. */
struct buckets *buckets_open(const struct pieces *w, int n, struct err *e);
int buckets_append(
	struct buckets *b, int bucket, const void *p, size_t n_bytes, struct err *e);
int buckets_fd(const struct buckets *b, int bucket);
/* Maps a complete bucket, to which nothing can be added any more. Valid until the next call. */
int buckets_map(struct buckets *b, int bucket, const char **p, int64_t *n, struct err *e);
void buckets_close(struct buckets *b);

/* ---- dedup.c, shuffle.c: which documents, and in which order --------------------------------- */

/* Sets in a->duplicates the bit of each document whose text an earlier document has. */
int mark_duplicates(struct assembly *a, struct err *e);

/* The documents of one source and split (-1: any), shuffled with --shuffle. */
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
	int bucket_bits, bucket; /* log2 of the number of buckets; next bucket to read */
	const char *map;	 /* contents of the current bucket, bucket - 1 */
	struct extent next;	 /* next tokens of the document in `map` */
	struct document_place *places; /* documents of the current bucket */
	int64_t n_places, place;       /* place: index of the next document */
};

/* Opens a stream of n_tokens. Its buckets are at most a 1/n_streams share of all buckets. */
int stream_open(
	struct document_stream *s, int64_t n_tokens, int n_streams, struct err *e);
void stream_rewind(struct document_stream *s);
/* Moves to the next document: 1, 0 at the end, or -1. */
int stream_next(struct document_stream *s, struct err *e);
/* Sets *at to the bytes of up to n next tokens of the document. Returns their number, or -1. */
int64_t stream_tokens(
	struct document_stream *s, int64_t n, struct extent *at, struct err *e);
void stream_close(struct document_stream *s);

/* ---- assemble.c: pieces to shards --------------------------------------------------------- */

/* The part of a lane that comes from one source. */
struct share {
	struct document_stream stream;
	int64_t n_available, n_wanted, n_taken; /* tokens */
	int64_t n_repeated;			/* times that the stream began again */
};

struct writing {
	struct assembly *a;
	struct shard_writer *w;
	struct share *shares[N_SPLITS]; /* [lane][source] */
	int n_lanes, n;			/* lanes; sources */
	int64_t train_left;		/* split by tail: remaining training tokens */
	int64_t train_windows;
	int64_t documents;
	struct prepared *out;
	struct progress bar;
	double done; /* tokens written, for the progress bar */
};

/* Writes the encoded pieces to shards: mixes, shuffles, drops duplicates, splits. Sets
 * *out. Returns -1 with *e set. */
int assemble(struct assembly *a, struct prepared *out, struct err *e);
/* Moves to the next document of a lane and sets *from to its source: the one with the smallest
 * fraction of its tokens taken. A stream that ends begins again. Returns 1, 0 if all sources are
 * complete, or -1. The caller takes at most n_wanted - n_taken tokens. */
int lane_next(struct writing *x, int lane, struct share **from, struct err *e);
void lane_rewind(struct writing *x, int lane);
/* Opens the stream of each source for a lane. Returns -1 with *e set; the caller closes
 * them in any case. */
int lane_open(struct writing *x, int lane, struct err *e);
struct token_spans {
	const struct token_span *v;
	int64_t n;
};
/* Writes tokens [at, at + n) of a document, stored at `from`. Marks those in `spans` as counted. */
int write_marked(struct writing *x, enum split s, struct token_spans spans, int64_t at,
	struct extent from, int64_t n, struct err *e);

/* ---- windows.c: documents laid out in windows ------------------------------------------------ */

/* Sets *n to the number of windows that the documents of a lane fill. */
int windows_count(struct writing *x, int lane, int64_t *n, struct err *e);
/* Writes the windows of a lane. The first `train` of them are for training. */
int windows_write(struct writing *x, int lane, int64_t train, struct err *e);
