/* data: shards, the order of samples, and the data loader.
 *
 * Only the loader's calls are collective. Files are not trusted. Functions that return int return
 * 0, or -1 with *e set. */
#pragma once

#include "base/base.h"
#include "comm/comm.h"
#include "h5/h5.h"
#include "token/tokenizer.h"

/* ---- shard.c: the file format ---------------------------------------------------- */

enum split { SPLIT_TRAIN, SPLIT_VAL, N_SPLITS };
extern const char *const split_names[N_SPLITS]; /* also the names of the datasets */
/* Datasets with the token offset of each document in a file. */
extern const char *const document_paths[N_SPLITS];

/* Datasets with the spans (begin0, end0, begin1, ...) of tokens that count as targets of the
 * loss. A file has both datasets or neither: then all tokens count. */
extern const char *const counted_paths[N_SPLITS];

/* Format version 2: documents; 3: also spans or windows. The numbers of documents and spans per
 * split are limited, because the seal covers them. */
enum {
	SHARD_VERSION = 3,
	SHARD_VERSION_PLAIN = 2,
	SHARD_MAX_DOCUMENTS = 1 << 25,
	SHARD_MAX_SPANS = 1 << 25
};

/* The attributes of a shard. */
struct shard_info {
	const char *format, *created_by; /* allocated if read; see shard_info_release() */
	int64_t version;
	int64_t index, count;	  /* this is file `index` of `count` */
	int64_t tokens[N_SPLITS]; /* in this file */
	uint64_t xxh3[N_SPLITS];  /* hashes of these tokens */
	int64_t total[N_SPLITS];  /* in all files of the corpus */
	int64_t source_bytes, source_files, documents;
	uint64_t source_xxh3;
	const char *split; /* "tail", "document" or "hash" */
	double val_fraction;
	int64_t seed;	       /* seed of the split by document */
	int64_t window_tokens; /* length of the windows that hold the documents; 0: no windows */
};

extern const struct h5_field shard_fields[];
/* Writes the fields that a shard has. */
int shard_info_write(struct h5 *h, const struct shard_info *s, struct err *e);
/* Reads the fields, after it has checked the format and the checksum of the metadata. */
int shard_read(struct h5 *h, const char *name, struct shard_info *s, struct tokenizer *t,
	struct err *e);
void shard_info_release(struct shard_info *s);

/* ---- corpus.c: reading shards ---------------------------------------------------- */

struct corpus;

/* How to open a corpus: files may be missing; read document offsets; read existing offsets. */
enum { CORPUS_SOME = 1, CORPUS_DOCUMENTS = 2, CORPUS_DOCUMENTS_IF = 4 };

/* Returns true for "-" (standard input) and for a FIFO, which can be read only once. */
bool corpus_is_stream(const char *path);
/* Opens files, sorted by their index in each corpus. A missing file is an error, unless `how` has
 * CORPUS_SOME. A stream is copied to a temporary file. */
int corpus_open(struct corpus **c, const struct strs *files, int how, struct err *e);
/* Opens one file, which may be a part of a corpus. */
int corpus_open_file(struct corpus **c, const char *path, struct err *e);
void corpus_close(struct corpus *c);
const struct tokenizer *corpus_tokenizer(const struct corpus *c);
int64_t corpus_tokens(const struct corpus *c, enum split split);
/* Returns a hash of the vocabulary, all tokens, documents if read, spans and windows. */
uint64_t corpus_hash(const struct corpus *c);
bool corpus_has_spans(const struct corpus *c); /* returns true if a file has spans */
/* Returns the length of the windows of all files, in tokens; 0: no windows, or different ones. */
int64_t corpus_window(const struct corpus *c);
const struct shard_info *corpus_info(const struct corpus *c, int64_t file);
/* Reads tokens [at, at + n) of a split as int32. At its first use, each block is checked against
 * its checksum, and its tokens against the size of the vocabulary. Thread-safe, with one *e per
 * thread (unlike opening and closing). */
int corpus_read(struct corpus *c, enum split split, int64_t at, int64_t n, int32_t *out,
	struct err *e);
/* Adds flags (offsets.h) to tokens from corpus_read(): TOKEN_CONTEXT to tokens that do not count
 * and, with CORPUS_DOCUMENTS, DOCUMENT_BEGINS to tokens that begin a document. The first token of
 * a file begins a document, unless it continues the previous file of its corpus. */
void corpus_mark(
	const struct corpus *c, enum split split, int64_t at, int64_t n, int32_t *tokens);
/* Checks whether files have changed; if so, all blocks are checked again at their next use. Tokens
 * read between two calls with equal results match the checksums. Returns the number of changes so
 * far. Thread-safe. */
int64_t corpus_changes(struct corpus *c);
/* Checks all blocks, and the checksum of all tokens of each file. */
int corpus_verify(struct corpus *c, struct err *e);

/* ---- order.c: the order of samples ----------------------------------------------- */

/* Returns element i of a random permutation of [0, n): a Feistel network on the next power of four,
 * with cycle-walking (Black, Rogaway 2002). */
int64_t order_permute(struct philox_key key, int64_t n, int64_t i);

#define SAMPLING_WORDS "epoch", "random"
enum sampling {
	SAMPLING_EPOCH, /* each window of a grid once per epoch; each epoch shifts the grid */
	SAMPLING_RANDOM, /* each sample at a random offset */
	SAMPLING_EVEN,	 /* n equidistant windows, for evaluation */
};

struct order {
	enum sampling sampling;
	uint64_t seed;
	int64_t n_tokens, context;
	int64_t n_windows; /* per epoch; SAMPLING_EVEN: in total */
	bool on_grid;	   /* windows begin only at multiples of the context */
};

/* Initializes an order. Returns -1 if there are fewer than context + 1 tokens. n_windows applies to
 * SAMPLING_EVEN; 0: as many as fit without overlap. */
int order_init(struct order *o, enum sampling s, uint64_t seed, int64_t n_tokens,
	int64_t context, int64_t n_windows);
/* Restricts samples to the unshifted grid, for tokens in windows of `context`. */
void order_on_grid(struct order *o);
/* Returns the first token of global sample g, counted from the start of the run. */
int64_t order_start(const struct order *o, int64_t g);

/* ---- loader.c: prefetching of samples -------------------------------------------- */

struct loader_config {
	struct comm *comm;     /* all ranks */
	struct corpus *corpus; /* NULL on ranks that do not read */
	int readers; /* ranks that read for all ranks; comm->size: each rank for itself */
	int64_t context;
};

struct loader;
struct loader *loader_open(const struct loader_config *c);
void loader_close(struct loader *l);
/* Returns the rank that reads for `rank`. */
int loader_reader(int rank, int size, int readers);

/* The samples of a rank: `blocks` blocks of `block` samples, block i from first + i * stride on. */
struct sample_run {
	int64_t first, block, stride, blocks;
};

static inline int64_t run_samples(const struct sample_run *r)
{
	return r->block * r->blocks;
}

struct fetch;
/* Starts to fetch samples runs[rank] of `order` for every rank in the background. Consecutive
 * ranks with equal runs share one read. At most four fetches may be in progress. Collective. */
struct fetch *loader_start(struct loader *l, enum split split, const struct order *order,
	const struct sample_run *runs);
/* Waits for the windows [n][context + 1] of this rank, with flags in the tokens. They are valid
 * until fetch_free(). Ends the program if the data are damaged. A file may be replaced during a
 * run, but its tokens must not change. */
const int32_t *loader_wait(struct loader *l, struct fetch *f);
/* Frees a fetch that loader_wait() has completed, and its windows. */
void fetch_free(struct fetch *f);
