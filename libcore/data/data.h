/*
 * data: shards, the order of samples, and the data loader.
 *
 * Only the loader's calls are collective. Files are not trusted. Functions that return int return
 * 0, or -1 with *e set.
 */
#pragma once

#include "base/base.h"
#include "comm/comm.h"
#include "h5/h5.h"
#include "token/tokenizer.h"

/* ---- shard.c: the file format ---------------------------------------------------- */

enum split { SPLIT_TRAIN, SPLIT_VAL, N_SPLITS };
extern const char *const split_names[N_SPLITS]; /* also the names of the datasets */
/* The datasets with the token offsets at which the documents of a file begin. */
extern const char *const document_paths[N_SPLITS];

/* Those with begin0, end0, begin1, ... of the spans of tokens that count as targets of the loss. Both or
 * neither: then all tokens count. */
extern const char *const counted_paths[N_SPLITS];

/* Version 2: the documents; 3: spans or windows, if a file has them. A file has at most so many
 * documents and spans of each split, because its seal covers them. */
enum {
	SHARD_VERSION = 3,
	SHARD_VERSION_PLAIN = 2,
	SHARD_MAX_DOCUMENTS = 1 << 25,
	SHARD_MAX_SPANS = 1 << 25
};

/* The attributes of a shard. */
struct shard_info {
	const char *format, *created_by; /* allocated if read: shard_info_free() */
	int64_t version;
	int64_t index, count;	  /* this is file `index` of `count` */
	int64_t tokens[N_SPLITS]; /* in this file */
	uint64_t xxh3[N_SPLITS];  /* of these tokens */
	int64_t total[N_SPLITS];  /* in all files of the corpus */
	int64_t source_bytes, source_files, documents;
	uint64_t source_xxh3;
	const char *split; /* "tail", "document" or "hash" */
	double val_fraction;
	int64_t seed;	       /* of the split by document */
	int64_t window_tokens; /* 0: not laid out in windows */
};

extern const struct h5_field shard_fields[];
/* Writes the fields that a shard has. */
int shard_info_write(struct h5 *h, const struct shard_info *s, struct err *e);
/* Checks the format and the checksum of the metadata, then reads. */
int shard_read(struct h5 *h, const char *name, struct shard_info *s, struct tokenizer *t,
	struct err *e);
void shard_info_free(struct shard_info *s);

/* ---- corpus.c: reading shards ---------------------------------------------------- */

struct corpus;

/* How to open a corpus: files may be missing; read where documents begin, or if the file says it. */
enum { CORPUS_SOME = 1, CORPUS_DOCUMENTS = 2, CORPUS_DOCUMENTS_IF = 4 };

/* True for "-" (standard input) and for a FIFO, which can be read only once. */
bool corpus_is_stream(const char *path);
/* Sorts the files of each corpus by index. A missing file is an error, unless `how` has CORPUS_SOME. A
 * stream is copied to a temporary file. */
int corpus_open(struct corpus **c, const struct strs *files, int how, struct err *e);
/* Opens one file, which may be a part of a corpus. */
int corpus_open_file(struct corpus **c, const char *path, struct err *e);
void corpus_close(struct corpus *c);
const struct tokenizer *corpus_tokenizer(const struct corpus *c);
int64_t corpus_tokens(const struct corpus *c, enum split split);
/* Of the vocabulary, all tokens, documents if read, spans and windows. */
uint64_t corpus_hash(const struct corpus *c);
bool corpus_counted(const struct corpus *c); /* does a file have spans? */
/* In windows of how many tokens all files are laid out; 0: in none, or not alike. */
int64_t corpus_window(const struct corpus *c);
const struct shard_info *corpus_info(const struct corpus *c, int64_t file);
/* Reads tokens [at, at + n) of a split as int32. At its first use, each block is checked against
 * its checksum, and its tokens against the size of the vocabulary. Thread-safe, with one *e per
 * thread; opening and closing are not. */
int corpus_read(struct corpus *c, enum split split, int64_t at, int64_t n, int32_t *out,
	struct err *e);
/* Adds flags (offsets.h) to tokens that corpus_read() has read: TOKEN_CONTEXT to those that do not count
 * and, in a corpus opened with CORPUS_DOCUMENTS, DOCUMENT_BEGINS to those that begin a document. The
 * first token of a file does, unless it continues tokens of the files before it in its corpus. */
void corpus_mark(
	const struct corpus *c, enum split split, int64_t at, int64_t n, int32_t *tokens);
/* Looks whether files have changed; if so, all blocks are checked again at their next use. Returns
 * the number of changes so far: what was read between two equal answers matches the checksums.
 * Thread-safe. */
int64_t corpus_changes(struct corpus *c);
/* Checks all blocks, and the checksum of all tokens of each file. */
int corpus_verify(struct corpus *c, struct err *e);

/* ---- order.c: the order of samples ----------------------------------------------- */

/* A random permutation of [0, n), evaluated at i: a Feistel network on the next power of
 * four, with cycle-walking (Black, Rogaway 2002). */
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
	int64_t n_windows; /* per epoch; SAMPLING_EVEN: in all */
	bool on_grid;	   /* windows begin at multiples of the context only */
};

/* Returns -1 if there are fewer than context + 1 tokens. n_windows applies to SAMPLING_EVEN; 0: as
 * many as fit without overlap. */
int order_init(struct order *o, enum sampling s, uint64_t seed, int64_t n_tokens,
	int64_t context, int64_t n_windows);
/* The tokens were laid out in windows of `context`: only these are samples, and no grid is shifted. */
void order_on_grid(struct order *o);
/* The first token of global sample g, counted from the start of the run. */
int64_t order_start(const struct order *o, int64_t g);

/* ---- loader.c: prefetching of samples -------------------------------------------- */

struct loader_config {
	struct comm *comm;     /* all ranks */
	struct corpus *corpus; /* NULL on ranks that do not read */
	int readers; /* ranks that read for all; comm->size: each rank reads its own */
	int64_t context;
};

struct loader;
struct loader *loader_open(const struct loader_config *c);
void loader_close(struct loader *l);
/* The rank that reads for `rank`. */
int loader_reader(int rank, int size, int readers);

/* The samples of a rank: `blocks` blocks of `block` samples; block i begins at sample
 * first + i * stride. */
struct sample_run {
	int64_t first, block, stride, blocks;
};

static inline int64_t run_samples(const struct sample_run *r)
{
	return r->block * r->blocks;
}

/*
 * Collective. Starts to fetch samples runs[rank] of `order` for every rank in the background.
 * Consecutive ranks with equal runs share one read. At most two fetches may be in progress.
 */
struct fetch;
struct fetch *loader_begin(struct loader *l, enum split split, const struct order *order,
	const struct sample_run *runs);
/* Waits for the windows [n][context + 1] of this rank, whose tokens have flags, and which are valid until fetch_free(). Ends the
 * program if the data are damaged. A file may change under a run, but not its tokens. */
const int32_t *loader_end(struct loader *l, struct fetch *f);
void fetch_free(struct fetch *f);
