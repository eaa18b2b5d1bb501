/*
 * Text to shards. The text is read twice, piece by piece so that memory does not grow with it: first
 * to learn the vocabulary and to count tokens, then to encode.
 */
#include "data/data.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct job {
	const struct prepare *p;
	struct tokenizer t;
	struct text *texts;
	int64_t n_texts;
	struct shard_info info; /* totals, when known */
	int64_t train_left;	/* split by tail: remaining training tokens */
	struct shard_writer *w;
	struct progress bar;
	double passed_bytes;
	int64_t document;	 /* number of the current one */
	bool hashed;		 /* info.source_xxh3 is known from an earlier pass */
	struct hash_state *hash; /* of the current pass */
	int64_t n_tokens[N_SPLITS];
};

static const char changed[] = "the text changed while it was read";

/* Processes a piece of a document in a pass; returns the bytes used, as a tokenizer does. */
typedef int64_t piece_fn(struct job *j, const char *text, int64_t n, bool final,
	enum split s, struct err *e);

static enum split split_of(const struct job *j)
{
	if (!j->p->by_document)
		return SPLIT_TRAIN;
	struct philox_key key = philox_key((uint64_t)j->p->seed, PHILOX_ORDER, 0x646f63);
	struct philox_block r =
		philox(key, (uint32_t)j->document, (uint32_t)(j->document >> 32), 0, 0);
	return philox_uniform64(r.x[0], r.x[1]) < j->p->val_fraction ? SPLIT_VAL
								     : SPLIT_TRAIN;
}

/* The separator is part of the document that it ends, so every byte is in a document. -1: an
 * error. */
static int64_t document_end(
	const struct job *j, struct text *t, int64_t at, struct err *e)
{
	const char *sep = j->p->separator;
	int64_t len = sep ? (int64_t)strlen(sep) : 0, n;
	for (; sep && at + len <= t->n_bytes; at += n - len + 1) {
		n = min64(TEXT_MAX_PIECE, t->n_bytes - at);
		const char *piece = text_piece(t, at, n, e);
		if (!piece)
			return -1;
		const char *hit = memmem(piece, (size_t)n, sep, (size_t)len);
		if (hit)
			return at + (hit - piece) + len;
	}
	return t->n_bytes;
}

static int each_piece(struct job *j, struct text *t, int64_t begin, int64_t end,
	piece_fn *fn, struct err *e)
{
	enum split s = split_of(j);
	for (int64_t at = begin; at < end;) {
		int64_t n = min64(TEXT_MAX_PIECE, end - at);
		const char *piece = text_piece(t, at, n, e);
		int64_t used = piece ? fn(j, piece, n, at + n == end, s, e) : -1;
		if (used < 0 && e->code != EX_DATAERR) /* not an error of the text */
			return -1;
		if (used < 0) {
			int64_t bad = at + TEXT_BAD(used);
			if (j->hashed) /* it was valid in the first pass */
				return err_set(e, EX_DATAERR, "%s: %s", t->name, changed);
			return err_prefix(e, "%s: byte %lld: ", t->name, (long long)bad);
		}
		hash_add(j->hash, piece, (size_t)used);
		at += used;
		progress_update(&j->bar, j->passed_bytes + (double)at, NULL);
	}
	return 0;
}

static int each_document(struct job *j, piece_fn *fn, struct err *e)
{
	j->document = 0;
	j->hash = hash_open();
	for (int64_t i = 0; i < j->n_texts; i++) {
		struct text *t = &j->texts[i];
		for (int64_t at = 0, end; at < t->n_bytes; at = end, j->document++) {
			end = document_end(j, t, at, e);
			if (end < 0 || each_piece(j, t, at, end, fn, e))
				return -1;
		}
		text_rest(t);
		j->passed_bytes += (double)t->n_bytes;
	}
	uint64_t was = j->info.source_xxh3;
	j->info.source_xxh3 = hash_close(j->hash);
	j->hash = NULL;
	if (j->hashed && j->info.source_xxh3 != was)
		return err_set(e, EX_DATAERR, "%s", changed);
	j->hashed = true;
	return 0;
}

/* ---- the passes ------------------------------------------------------------------ */

static int64_t learn_piece(struct job *j, const char *text, int64_t n, bool final,
	enum split s, struct err *e)
{
	return j->t.kind->learn(&j->t, text, n, final, &j->n_tokens[s], e);
}

static int64_t encode_piece(struct job *j, const char *text, int64_t n, bool final,
	enum split s, struct err *e)
{
	static uint32_t ids[TEXT_MAX_PIECE];
	int64_t n_ids;
	int64_t used =
		j->t.kind->encode(&j->t, text, n, final, ids, TEXT_MAX_PIECE, &n_ids, e);
	if (used < 0)
		return used;
	int64_t train = j->p->by_document ? (s == SPLIT_TRAIN ? n_ids : 0)
					  : min64(n_ids, j->train_left);
	j->train_left -= train;
	if (shard_writer_put(j->w, SPLIT_TRAIN, ids, train, e) ||
		shard_writer_put(j->w, SPLIT_VAL, ids + train, n_ids - train, e))
		return TEXT_BAD(0);
	return used;
}

/* The sizes of the splits; by default, as in nanoGPT, the last tokens are for validation. */
static int decide_split(struct job *j, struct err *e)
{
	int64_t all = j->n_tokens[SPLIT_TRAIN] + j->n_tokens[SPLIT_VAL];
	if (!j->p->by_document) {
		int64_t train = (int64_t)((double)all * (1 - j->p->val_fraction));
		j->n_tokens[SPLIT_TRAIN] = train;
		j->n_tokens[SPLIT_VAL] = all - train;
	}
	j->train_left = j->n_tokens[SPLIT_TRAIN];
	for (int s = 0; s < N_SPLITS; s++)
		j->info.total[s] = j->n_tokens[s];
	if (!all)
		return err_set(e, EX_DATAERR, "the text is empty");
	if (j->p->by_document &&
		(!j->n_tokens[SPLIT_TRAIN] ||
			(j->p->val_fraction > 0 && !j->n_tokens[SPLIT_VAL])))
		return err_set(e, EX_DATAERR, "of %lld documents, none is for %s%s",
			(long long)j->document,
			j->n_tokens[SPLIT_TRAIN] ? "validation" : "training",
			advice_on(ADVICE_EMPTY_SPLIT));
	return 0;
}

static int learn(struct job *j, struct err *e)
{
	if (each_document(j, learn_piece, e) || j->t.kind->learn_end(&j->t, e))
		return -1;
	j->info.documents = j->document;
	return decide_split(j, e);
}

static int open_texts(struct job *j, const struct strs *inputs, struct err *e)
{
	int64_t n = inputs->n ? inputs->n : 1;
	j->texts = xcalloc((size_t)n, sizeof(*j->texts));
	for (; j->n_texts < n; j->n_texts++) {
		const char *path = inputs->n ? inputs->v[j->n_texts] : "-";
		if (text_open(&j->texts[j->n_texts], path, e))
			return -1;
		j->info.source_bytes += j->texts[j->n_texts].n_bytes;
	}
	j->info.source_files = n;
	if (!j->info.source_bytes)
		return err_set(e, EX_DATAERR, "%s: the text is empty",
			n == 1 ? j->texts[0].name : "all files");
	return 0;
}

/* Checks the output name before the text is read. */
static int check_out(const struct prepare *p, struct err *e)
{
	struct stat st;
	size_t n = strlen(p->out);
	if (!n)
		return err_set(e, EX_USAGE, "out: the name is empty");
	if (!strcmp(p->out, "-"))
		return 0;
	bool exists = stat(p->out, &st) == 0;
	if ((exists && S_ISDIR(st.st_mode)) || p->out[n - 1] == '/')
		return err_set(e, EX_IOERR, "%s is a directory; give the name of a file",
			p->out);
	if (exists && S_ISREG(st.st_mode) && !p->shard_bytes && !p->overwrite)
		return err_set(e, EX_IOERR, "%s exists%s", p->out,
			advice_on(ADVICE_FILE_EXISTS));
	return 0;
}

static int run(
	struct job *j, const struct strs *inputs, struct prepared *out, struct err *e)
{
	if (check_out(j->p, e) || tokenizer_init(&j->t, j->p->tokenizer, e) ||
		open_texts(j, inputs, e))
		return -1;
	progress_begin(&j->bar, "pt-prepare", 2.0 * (double)j->info.source_bytes);
	if (learn(j, e))
		return -1;
	j->w = shard_writer_open(j->p, &j->t, &j->info, e);
	if (!j->w || each_document(j, encode_piece, e) ||
		shard_writer_finish(j->w, out, e))
		return -1;
	out->vocab_size = j->t.vocab.n;
	return 0;
}

int prepare_run(const struct prepare *p, const struct strs *inputs, struct prepared *out,
	struct err *e)
{
	struct job j = {.p = p};
	*out = (struct prepared){0};
	j.info.split = p->by_document ? "document" : "tail";
	j.info.val_fraction = p->val_fraction;
	j.info.seed = p->seed;
	int rc = run(&j, inputs, out, e);
	progress_end(&j.bar);
	shard_writer_close(j.w);
	if (j.hash)
		hash_close(j.hash);
	for (int64_t i = 0; i < j.n_texts; i++)
		text_close(&j.texts[i]);
	free(j.texts);
	tokenizer_free(&j.t);
	return rc;
}

int prepare_decode(const struct strs *files, enum split split, FILE *f, struct err *e)
{
	enum { N = 1 << 18 };
	static int32_t ids[N];
	struct corpus *c;
	struct str text = {0};
	if (corpus_open(&c, files, false, e))
		return -1;
	int rc = 0;
	int64_t total = corpus_tokens(c, split);
	for (int64_t at = 0; at < total && !rc; at += N) {
		int64_t n = min64(N, total - at);
		int64_t changes;
		do {
			changes = corpus_changes(c);
			rc = corpus_read(c, split, at, n, ids, e);
		} while (!rc && corpus_changes(c) != changes);
		str_clear(&text);
		for (int64_t i = 0; i < n && !rc; i++)
			tokenizer_decode(corpus_tokenizer(c), ids[i], &text);
		if (!rc && fwrite(text.s, 1, text.len, f) != text.len)
			rc = err_set(e, EX_IOERR, "standard output: %s", strerror(errno));
	}
	str_free(&text);
	corpus_close(c);
	return rc;
}
