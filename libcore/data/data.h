/*
 * data: text to tokens, shards on disk, which sample comes when, and getting it.
 *
 * No call is collective except the loader's. Everything read from a file is foreign.
 */
#ifndef DATA_H
#define DATA_H

#include "base/base.h"
#include "comm/comm.h"
#include "h5/h5.h"

/* ---- tokenizer.c: tokenizers, one table; byte.c, char.c, foreign.c: the kinds ---- */

/* What every token stands for: token i is bytes [offset[i], offset[i + 1]). */
struct vocab {
	int64_t n;
	uint8_t *bytes;
	int64_t *offset; /* [n + 1] */
};

struct tokenizer;

/*
 * A kind of tokenizer. Text comes in pieces; `final` says that none follows in this
 * document. What is left of an unfinished piece (half a character, say) is given again
 * with the next one: functions return how many bytes they used, or TEXT_BAD(i) with *e
 * set, where byte i is the bad one.
 */
#define TEXT_BAD(i) (-1 - (int64_t)(i))

struct tokenizer_kind {
	const char *name, *help;
	/* Learning: called for all text, then learn_end() makes t->vocab. Adds the number of
	 * tokens to *n_tokens, where it can be known yet; else sets it to -1. */
	int64_t (*learn)(struct tokenizer *t, const char *text, int64_t n, bool final,
		int64_t *n_tokens, struct err *e);
	int (*learn_end)(struct tokenizer *t, struct err *e);
	/* From t->vocab, read from a file, whatever encode() needs. */
	int (*ready)(struct tokenizer *t, struct err *e);
	/* At most `room` tokens to out (NULL: only counted); *n_out of them. */
	int64_t (*encode)(const struct tokenizer *t, const char *text, int64_t n,
		bool final, uint32_t *out, int64_t room, int64_t *n_out, struct err *e);
	void (*free)(struct tokenizer *t);
};

struct tokenizer {
	const struct tokenizer_kind *kind;
	struct vocab vocab;
	void *own; /* the kind's */
};

extern const struct tokenizer_kind *const tokenizer_kinds[]; /* closed by NULL */
extern const struct tokenizer_kind tokenizer_byte, tokenizer_char;

int tokenizer_init(struct tokenizer *t, const char *kind, struct err *e);
/* A kind by any other name, which can decode and do no more. */
int tokenizer_init_foreign(struct tokenizer *t, const char *kind, struct err *e);
void tokenizer_free(struct tokenizer *t);
int tokenizer_write(const struct tokenizer *t, struct h5 *f, struct err *e);
int tokenizer_read(struct tokenizer *t, struct h5 *f, struct err *e);
/* As bytes of its own, to send to another rank; and back. */
void tokenizer_pack(const struct tokenizer *t, struct str *out);
int tokenizer_unpack(struct tokenizer *t, const struct str *packed, struct err *e);
/* A whole text; *ids is allocated. Returns their number or -1. */
int64_t tokenizer_encode_all(const struct tokenizer *t, const char *text, int64_t n,
	uint32_t **ids, struct err *e);
/* Appends what a token stands for; nothing for an id outside the vocabulary. */
void tokenizer_decode(const struct tokenizer *t, int64_t id, struct str *out);
bool tokenizer_same(const struct tokenizer *a, const struct tokenizer *b);
extern const struct h5_field tokenizer_fields[]; /* for the manual */

/* ---- map.c: files in memory ------------------------------------------------------ */

/* The bytes of an open file, to read. When it becomes shorter meanwhile, touching what is
 * gone (SIGBUS) is an error of map_touch(), where that is what touches; elsewhere it ends the
 * program. Either way the message names the file, and it is EX_IOERR. */
struct map {
	char *p;
	size_t n_bytes;
	struct map_name *name; /* map.c's */
};

/* Of `n_bytes` bytes, at least one; the descriptor may be closed then. One thread at a time. */
int map_open(struct map *m, int fd, size_t n_bytes, const char *name, struct err *e);
void map_close(struct map *m);
/* Calls fn, which is left where it stands when a file became shorter: it may hold nothing that
 * would be lost then. One rank's trouble can so be told to the others; a rank that only ends
 * leaves it to the launcher what all of them ended with. */
int map_touch(int (*fn)(void *with, struct err *e), void *with, struct err *e);

/* ---- text.c: sources of text ----------------------------------------------------- */

/* Files, all mapped at once, so that text may be read twice; only its pages come and go. A
 * pipe is spooled to a temporary file first. Standard input ("-") is read from where it
 * stands, and stands at its end then. */
struct text {
	const char *name;
	const char *p; /* in the map */
	int64_t n_bytes;
	struct map map;
};

int text_open(struct text *t, const char *path, struct err *e);
/* Tells the kernel that bytes before `at` will not be read again soon. */
void text_passed(const struct text *t, int64_t at);
void text_close(struct text *t);

/* ---- shard.c: the file format ---------------------------------------------------- */

enum split { SPLIT_TRAIN, SPLIT_VAL, N_SPLITS };
extern const char *const split_names[N_SPLITS]; /* the datasets' names too */

enum { SHARD_VERSION = 1 };

/* The attributes of a shard. */
struct shard_info {
	const char *format, *created_by; /* shard_info_free() what was read */
	int64_t version;
	int64_t index, count;	  /* this is file `index` of `count` */
	int64_t tokens[N_SPLITS]; /* in this file */
	uint64_t xxh3[N_SPLITS];  /* of those */
	int64_t total[N_SPLITS];  /* in all files of the corpus */
	int64_t source_bytes, source_files, documents;
	uint64_t source_xxh3;
	const char *split; /* "tail" or "document" */
	double val_fraction;
	int64_t seed; /* of the split by document */
};

extern const struct h5_field shard_fields[];
/* Checks the format and the seal, then reads. */
int shard_read(struct h5 *h, const char *name, struct shard_info *s, struct tokenizer *t,
	struct err *e);
void shard_info_free(struct shard_info *s);

/* ---- prepare.c: text to shards --------------------------------------------------- */

struct prepare {
	const char *tokenizer; /* a kind */
	const char *separator; /* text between documents; NULL: a file is a document */
	bool by_document;      /* split */
	double val_fraction;
	int64_t seed;
	int64_t shard_bytes; /* of tokens in a file; 0: one file */
	const char *out;     /* file name; several: before -00000.h5; "-": stdout */
	bool overwrite;
};

/* What was made; info is of the last file. */
struct prepared {
	struct shard_info info;
	struct strs files;
	int64_t vocab_size;
	size_t token_bytes;
};

int prepare_run(const struct prepare *p, const struct strs *inputs, struct prepared *out,
	struct err *e);
/* Writes the text of a split of the files to f. */
int prepare_decode(const struct strs *files, enum split split, FILE *f, struct err *e);

/* ---- corpus.c: shards, opened to be read ----------------------------------------- */

struct corpus;

/* Can be read only once, from its beginning to its end: "-" (standard input), or a FIFO. */
bool corpus_is_stream(const char *path);
/* Files that belong together are put in order; one that is missing is an error, unless
 * `some` of them are enough. A stream is kept in a temporary file. */
int corpus_open(struct corpus **c, const struct strs *files, bool some, struct err *e);
/* One file, though it may be a part of a corpus. */
int corpus_open_file(struct corpus **c, const char *path, struct err *e);
void corpus_close(struct corpus *c);
const struct tokenizer *corpus_tokenizer(const struct corpus *c);
int64_t corpus_tokens(const struct corpus *c, enum split split);
uint64_t corpus_hash(const struct corpus *c); /* of all tokens and the vocabulary */
const struct shard_info *corpus_info(const struct corpus *c, int64_t file);
int64_t corpus_files(const struct corpus *c);
/* Tokens [at, at + n) of a split, widened. Each block of the file is checked against its
 * checksum, and its tokens against the vocabulary, when it is first touched. Threads may read
 * at once, each with an *e of its own; what opens and closes is for one thread. */
int corpus_read(struct corpus *c, enum split split, int64_t at, int64_t n, int32_t *out,
	struct err *e);
/* Checks all tokens: block by block, and each file's as a whole. */
int corpus_verify(struct corpus *c, struct err *e);

/* ---- order.c: which sample comes when -------------------------------------------- */

/* A random permutation of [0, n), evaluated at i: a Feistel network on the next power of
 * four, walked until it lands inside (Black, Rogaway 2002). */
int64_t order_permute(struct philox_key key, int64_t n, int64_t i);

#define SAMPLING_WORDS "epoch", "random"
enum sampling {
	SAMPLING_EPOCH,	 /* every window of a grid once, the grid shifted each epoch */
	SAMPLING_RANDOM, /* each sample at its own random offset */
	SAMPLING_EVEN,	 /* n windows at equal distances: evaluation */
};

struct order {
	enum sampling sampling;
	uint64_t seed;
	int64_t n_tokens, context;
	int64_t n_windows; /* of an epoch; SAMPLING_EVEN: of the set */
};

/* -1: there are fewer than context + 1 tokens. n_windows: for SAMPLING_EVEN, 0 for as
 * many as fit side by side. */
int order_init(struct order *o, enum sampling s, uint64_t seed, int64_t n_tokens,
	int64_t context, int64_t n_windows);
/* First token of global sample number g (counted from the start of the run). */
int64_t order_start(const struct order *o, int64_t g);

/* ---- loader.c: windows of tokens, fetched ahead ---------------------------------- */

struct loader_config {
	struct comm *comm;     /* all ranks */
	struct corpus *corpus; /* NULL on ranks that do not read */
	int readers; /* ranks that read for the others; comm->size: each its own */
	int64_t context;
};

struct loader;
struct loader *loader_open(const struct loader_config *c);
void loader_close(struct loader *l);
/* Which rank reads for `rank`. */
int loader_reader(int rank, int size, int readers);

/* Samples of a rank: `blocks` blocks of `block` samples, the first one's at `first` of the
 * order, and each next block's `stride` further on. */
struct sample_run {
	int64_t first, block, stride, blocks;
};

static inline int64_t run_samples(const struct sample_run *r)
{
	return r->block * r->blocks;
}

/*
 * Collective. Begins to fetch the samples runs[rank] of `order` for every rank, in the
 * background. Neighbours that have the same are read for once. At most two fetches may be
 * under way.
 */
struct fetch;
struct fetch *loader_begin(struct loader *l, enum split split, const struct order *order,
	const struct sample_run *runs);
/* The windows, [n][context + 1]. Dies on damaged data. They are valid until fetch_free. */
const int32_t *loader_end(struct loader *l, struct fetch *f);
void fetch_free(struct fetch *f);

#endif
