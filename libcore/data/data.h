/*
 * data: tokenizers, shards, the order of samples, and the data loader.
 *
 * Only the loader's calls are collective. Files are not trusted. Functions that return int return
 * 0, or -1 with *e set.
 */
#ifndef DATA_H
#define DATA_H

#include "base/base.h"
#include "comm/comm.h"
#include "h5/h5.h"
#include "token/token.h"

/* ---- tokenizer.c: tokenizers, one table; byte.c, char.c, bpe.c: the kinds --------- */

struct tokenizer;

/*
 * A kind of tokenizer. Text is passed in pieces; `final` marks the last piece of a document.
 * Functions return the number of bytes that they used, and the rest (half a character, for example)
 * is passed again with the next piece; or TEXT_BAD(i) with *e set, if byte i is invalid.
 */
#define TEXT_BAD(i) (-1 - (int64_t)(i))

struct tokenizer_kind {
	const char *name, *help;
	bool from_text; /* the vocabulary depends on the text */
	/* Called for all of the text; then learn_end() builds t->vocab. Adds the number of tokens
	 * to *n_tokens. */
	int64_t (*learn)(struct tokenizer *t, const char *text, int64_t n, bool final,
		int64_t *n_tokens, struct err *e);
	int (*learn_end)(struct tokenizer *t, struct err *e);
	/* Prepares encode() after t->vocab has been read from a file. */
	int (*ready)(struct tokenizer *t, struct err *e);
	/* Writes at most `room` tokens to out (NULL: counts only), and their number to *n_out. */
	int64_t (*encode)(const struct tokenizer *t, const char *text, int64_t n,
		bool final, uint32_t *out, int64_t room, int64_t *n_out, struct err *e);
	/* The beginning of the last word of text[0..n), or of an earlier one, that is sure whatever
	 * follows; 0: not known. NULL: never known. */
	int64_t (*cut)(const struct tokenizer *t, const char *text, int64_t n);
	/* What the kind has beside the vocabulary; each NULL if there is nothing. read() and
	 * unpack() come before ready(). */
	int (*write)(const struct tokenizer *t, struct h5 *f, struct err *e);
	int (*read)(struct tokenizer *t, struct h5 *f, struct err *e);
	void (*pack)(const struct tokenizer *t, struct str *out);
	void (*unpack)(struct tokenizer *t, const char *packed);
	void (*release)(struct tokenizer *t); /* but for t->own itself */
};

struct tokenizer {
	const struct tokenizer_kind *kind;
	struct vocab vocab;
	void *own; /* state of the kind, one allocation */
};

extern const struct tokenizer_kind *const tokenizer_kinds[]; /* ends with NULL */
/* A tokenizer is a file and an entry here. */
#define TOKENIZERS(X) X(byte) X(char) X(bpe)
#define TOKENIZER_ROW(name) extern const struct tokenizer_kind tokenizer_##name;
TOKENIZERS(TOKENIZER_ROW)
#undef TOKENIZER_ROW
/* Their names and those of bpe_models[], for an option; closed by NULL. */
extern const char *const tokenizer_names[];

/* What to make a tokenizer of. */
struct tokenizer_source {
	const char *name;	 /* of tokenizer_names[] */
	const char *vocab_files; /* of byte-pair encoding: a folder or a file */
	const char *pattern;	 /* of its words; NULL: that of the model or the files */
	bool special;		 /* special tokens in the text become these tokens */
};

int tokenizer_init(struct tokenizer *t, const char *kind, struct err *e);
int tokenizer_make(struct tokenizer *t, const struct tokenizer_source *s, struct err *e);
/* One of n tokens whose bytes are not known: it cannot encode, and decodes to nothing. */
enum { MAX_VOCAB = 1 << 24 };
int tokenizer_of_ids(struct tokenizer *t, int64_t n, struct err *e);
void tokenizer_free(struct tokenizer *t);
int tokenizer_write(const struct tokenizer *t, struct h5 *f, struct err *e);
int tokenizer_read(struct tokenizer *t, struct h5 *f, struct err *e);
/* Serialises a tokenizer to send it to another rank, and back. */
void tokenizer_pack(const struct tokenizer *t, struct str *out);
int tokenizer_unpack(struct tokenizer *t, const struct str *packed, struct err *e);
/* Encodes a whole text. *ids is allocated; returns the number of tokens, or -1. */
int64_t tokenizer_encode_all(const struct tokenizer *t, const char *text, int64_t n,
	uint32_t **ids, struct err *e);
/* How many of text[0..n), the beginning of a longer text, can be encoded apart from the rest; 0: more
 * text is needed. t NULL: up to the end of a UTF-8 character. -1 on an error. */
int64_t tokenizer_cut(
	const struct tokenizer *t, const char *text, int64_t n, struct err *e);
/* Appends the bytes of a token; nothing for an id outside the vocabulary. */
void tokenizer_decode(const struct tokenizer *t, int64_t id, struct str *out);
bool tokenizer_same(const struct tokenizer *a, const struct tokenizer *b);
/* The token at the end of a document; -1: the tokenizer has none. */
int64_t tokenizer_end_of_text(const struct tokenizer *t);
extern const struct h5_field tokenizer_fields[], bpe_fields[]; /* for the manual */

/* ---- bpe.c ----------------------------------------------------------------------- */

/* The state of a tokenizer of kind bpe: t->own. NULL: of another kind, or not ready. */
const struct bpe_rules *bpe_rules_of(const struct tokenizer *t);
/* Reads the vocabulary and the rules of t. */
int bpe_make(struct tokenizer *t, const struct tokenizer_source *s,
	const struct bpe_model *model, struct err *e);
/* The text of a special token becomes this token from now on. */
int tokenizer_allow_special(struct tokenizer *t, struct err *e);

/* ---- shard.c: the file format ---------------------------------------------------- */

enum split { SPLIT_TRAIN, SPLIT_VAL, N_SPLITS };
extern const char *const split_names[N_SPLITS]; /* also the names of the datasets */
/* The datasets with the token offsets at which the documents of a file begin. */
extern const char *const document_paths[N_SPLITS];

/* Version 2: the documents. A file has at most so many of each split, because its seal covers them. */
enum { SHARD_VERSION = 2, SHARD_MAX_DOCUMENTS = 1 << 25 };

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
	const char *split; /* "tail" or "document" */
	double val_fraction;
	int64_t seed; /* of the split by document */
};

extern const struct h5_field shard_fields[];
/* Checks the format and the checksum of the metadata, then reads. */
int shard_read(struct h5 *h, const char *name, struct shard_info *s, struct tokenizer *t,
	struct err *e);
void shard_info_free(struct shard_info *s);

/* ---- prepare.c: text to shards --------------------------------------------------- */

#define FORMAT_WORDS "auto", "text", "jsonl"
enum { FORMAT_AUTO, FORMAT_TEXT, FORMAT_JSONL };
#define SPLIT_WORDS "tail", "document", "hash"
enum { SPLIT_BY_TAIL, SPLIT_BY_DOCUMENT, SPLIT_BY_HASH };

struct prepare {
	struct tokenizer_source tokenizer;
	bool no_end_of_text; /* behind documents */

	/* Inputs; see pipeline.h. */
	struct strs sources; /* NAME=WEIGHT:PATH */
	int format;
	const char *field;     /* of JSONL; NULL: "text" */
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
};

/* Collective over p->comm; *out is set on rank 0. */
int prepare_run(const struct prepare *p, const struct strs *inputs, struct prepared *out,
	struct err *e);
/* Writes the text of a split of the files to f. */
int prepare_decode(const struct strs *files, enum split split, FILE *f, struct err *e);

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
uint64_t corpus_hash(const struct corpus
		*c); /* of the vocabulary, all tokens, and documents if read */
const struct shard_info *corpus_info(const struct corpus *c, int64_t file);
/* Reads tokens [at, at + n) of a split as int32. At its first use, each block is checked against
 * its checksum, and its tokens against the size of the vocabulary. Thread-safe, with one *e per
 * thread; opening and closing are not. */
int corpus_read(struct corpus *c, enum split split, int64_t at, int64_t n, int32_t *out,
	struct err *e);
/* Adds DOCUMENT_BEGINS to those of the tokens that corpus_read() has read which begin a document. The
 * first token of a file does, unless it continues tokens of the files before it in its corpus. */
void corpus_mark_documents(
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
};

/* Returns -1 if there are fewer than context + 1 tokens. n_windows applies to SAMPLING_EVEN; 0: as
 * many as fit without overlap. */
int order_init(struct order *o, enum sampling s, uint64_t seed, int64_t n_tokens,
	int64_t context, int64_t n_windows);
/* The first token of global sample g, counted from the start of the run. */
int64_t order_start(const struct order *o, int64_t g);

/* ---- loader.c: prefetching of samples -------------------------------------------- */

struct loader_config {
	struct comm *comm;     /* all ranks */
	struct corpus *corpus; /* NULL on ranks that do not read */
	int readers; /* ranks that read for all; comm->size: each rank reads its own */
	int64_t context;
	bool documents; /* tokens that begin one have DOCUMENT_BEGINS */
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
/* Waits for the windows [n][context + 1] of this rank, which are valid until fetch_free(). Ends the
 * program if the data are damaged. A file may change under a run, but not its tokens. */
const int32_t *loader_end(struct loader *l, struct fetch *f);
void fetch_free(struct fetch *f);

#endif
