/* Conversion between shards and token files of other programs. Files of other programs are read
 * twice: first to find the largest token and the number of documents, then to copy. */
#include "base/progress.h"
#include "data/offsets.h"
#include "prepare/shard_writer.h"
#include "prepare/token_file.h"

#include <fcntl.h>
#include <unistd.h>

enum { CHUNK_TOKENS = 1 << 18 }; /* tokens */

/* The tokens of a token file, or of a split of a corpus. */
struct source {
	struct token_file file, mask; /* mask.path NULL: all tokens count */
	enum split split;	      /* the split of the tokens */
	int64_t n;		      /* tokens */
};

struct job {
	const struct token_convert *c;
	struct corpus *corpus; /* NULL: token files */
	bool has_masks;	       /* the inputs mark which tokens count */
	struct tokenizer ids;  /* the tokenizer, unless it belongs to the corpus */
	const struct tokenizer *tokenizer;
	struct source *sources;
	int64_t n_sources;
	struct shard_info info;
	int64_t train_left; /* remaining training tokens; -1: `split` of a source applies */
	int64_t end_of_text; /* the token that ends a document; -1: none */
	uint32_t largest;
	struct hash_state *hash;
	struct shard_writer *shards;
	struct token_writer *files; /* NULL: `shards` is written */
	struct progress bar;
	double done;
	int64_t n_counted;
};

static bool is_shard_file(const char *path)
{
	char first[8];
	int64_t n = file_sniff(path, first, sizeof(first));
	return n > 0 && h5_has_signature(first, (size_t)n);
}

bool is_token_file(const char *path)
{
	return is_shard_file(path) || token_format_detect(path);
}

/* Returns true if an input contains tokens, by --format or, with auto, by the file. */
static bool is_token_input(const char *from, const char *path)
{
	if (strcmp(from, "auto"))
		return strcmp(from, "text") && strcmp(from, "jsonl");
	return is_token_file(path);
}

/* Sets the error that an input does not exist; if all exist, the error `otherwise`. */
static int report_not_tokens(const struct token_convert *c, const struct strs *inputs,
	const char *otherwise, struct err *e)
{
	for (int64_t i = 0; i < inputs->n; i++) {
		const char *path = inputs->v[i];
		if (strcmp(path, "-") && !strpbrk(path, "*?[") &&
			!is_token_input(c->from, path) && access(path, F_OK))
			return err_errno(e, path);
	}
	return err_set(e, EX_USAGE, "%s", otherwise);
}

int token_convert_accepts(
	const struct token_convert *c, const struct strs *inputs, struct err *e)
{
	int64_t n = 0;
	for (int64_t i = 0; i < inputs->n; i++)
		n += is_token_input(c->from, inputs->v[i]);
	if (n && n < inputs->n)
		return report_not_tokens(c, inputs,
			"some of the files contain tokens, and some text; convert them separately",
			e);
	if (!inputs->n)
		return is_token_input(c->from, "-");
	return n > 0;
}

/* Opens a token file, and its mask if there are masks, as the next source of split s. */
static int add_token_file(struct job *j, const char *path, enum split s, struct err *e)
{
	const struct token_format *f = strcmp(j->c->from, "auto")
					       ? token_format_named(j->c->from)
					       : token_format_detect(path);
	j->sources = xgrow(j->sources, j->n_sources, sizeof(*j->sources));
	struct source *p = &j->sources[j->n_sources];
	*p = (struct source){.split = s, .mask.fd = -1};
	if (!f)
		return err_set(
			e, EX_USAGE, "%s: not a token file of another program", path);
	if (token_file_open(&p->file, path, f, e))
		return -1;
	p->n = p->file.n;
	j->n_sources++;
	if (j->c->masks->n &&
		token_mask_open(&p->mask, j->c->masks->v[j->n_sources - 1], p->n, e))
		return -1;
	j->info.source_bytes += p->n * p->file.type.bytes;
	return 0;
}

/* Opens all token files as sources; standard input if there are none. Sets j->info. */
static int open_token_files(struct job *j, const struct strs *inputs, struct err *e)
{
	int64_t n = max64(1, inputs->n) + j->c->val->n;
	j->has_masks = j->c->masks->n > 0;
	if (j->has_masks && j->c->masks->n != n)
		return err_set(e, EX_USAGE,
			"%lld mask files for %lld token files; give one --mask-file per token "
			"file, "
			"in the same order, with the masks of --val-file last",
			(long long)j->c->masks->n, (long long)n);
	for (int64_t i = 0; i < inputs->n; i++)
		if (add_token_file(j, inputs->v[i], SPLIT_TRAIN, e))
			return -1;
	if (!inputs->n && add_token_file(j, "-", SPLIT_TRAIN, e))
		return -1;
	for (int64_t i = 0; i < j->c->val->n; i++)
		if (add_token_file(j, j->c->val->v[i], SPLIT_VAL, e))
			return -1;
	j->info.source_files = j->n_sources;
	j->info.split = "tail";
	j->info.val_fraction = j->c->p->val_fraction;
	j->info.seed = j->c->p->seed;
	return 0;
}

/* Opens the shards as two sources, one per split. Sets j->info to their facts. */
static int open_shards(struct job *j, const struct strs *inputs, struct err *e)
{
	const struct strs standard_input = {.v = (char *[]){(char *)"-"}, .n = 1};
	if (j->c->val->n || j->c->masks->n)
		return err_set(e, EX_USAGE,
			"--val-file and --mask-file do not apply to shards, which have "
			"their own split and masks");
	if (corpus_open(&j->corpus, inputs->n ? inputs : &standard_input,
		    CORPUS_DOCUMENTS, e))
		return -1;
	j->info = *corpus_info(j->corpus, 0);
	j->info.window_tokens = corpus_window(j->corpus);
	j->has_masks = corpus_has_spans(j->corpus);
	j->tokenizer = corpus_tokenizer(j->corpus);
	j->sources = xcalloc(N_SPLITS, sizeof(*j->sources));
	for (int s = 0; s < N_SPLITS; s++) {
		struct source *p = &j->sources[j->n_sources++];
		p->split = (enum split)s;
		p->file.fd = p->mask.fd = -1;
		p->n = corpus_tokens(j->corpus, p->split);
		j->info.total[s] = p->n;
	}
	return 0;
}

static bool are_shard_inputs(const struct job *j, const struct strs *inputs)
{
	if (strcmp(j->c->from, "auto"))
		return !strcmp(j->c->from, "shard");
	return inputs->n && is_shard_file(inputs->v[0]);
}

/* Tokens of one document that all count, or all do not. */
struct run {
	uint32_t *ids;
	int64_t n;
	bool begins_document,
		counts; /* first token begins a document; all tokens count */
};

typedef int run_fn(struct job *j, enum split s, const struct run *r, struct err *e);

/* Sets TOKEN_CONTEXT in ids of tokens that do not count. */
static int read_mask(const struct token_file *mask, int64_t at, int64_t n, uint32_t *ids,
	struct err *e)
{
	uint32_t counts[1024];
	for (int64_t i = 0, now; i < n; i += now) {
		now = min64(n - i, ARRAY_LEN(counts));
		if (token_file_read(mask, at + i, now, UINT32_MAX, counts, e))
			return -1;
		for (int64_t k = 0; k < now; k++)
			if (!counts[k])
				ids[i + k] |= (uint32_t)TOKEN_CONTEXT;
	}
	return 0;
}

/* Reads tokens [at, at + n) of a source, with their TOKEN_FLAGS. */
static int read_tokens(const struct job *j, const struct source *p, int64_t at, int64_t n,
	uint32_t *ids, struct err *e)
{
	if (j->corpus) {
		if (corpus_read(j->corpus, p->split, at, n, (int32_t *)ids, e))
			return -1;
		corpus_mark(j->corpus, p->split, at, n, (int32_t *)ids);
		return 0;
	}
	if (token_file_read(&p->file, at, n,
		    j->tokenizer ? j->tokenizer->vocab.n : MAX_VOCAB, ids, e))
		return -1;
	return p->mask.path ? read_mask(&p->mask, at, n, ids, e) : 0;
}

/* Returns how many of ids[n] precede the next document. ids[0] is token `at`. */
static int64_t document_rest(const struct job *j, const struct source *p,
	int64_t *document, int64_t at, const uint32_t *ids, int64_t n)
{
	const struct token_file *f = &p->file;
	if (f->documents) {
		while (*document < f->n_documents && f->documents[*document] <= at)
			++*document;
		return *document < f->n_documents ? min64(n, f->documents[*document] - at)
						  : n;
	}
	for (int64_t i = 0; i < n; i++) {
		if (i && (ids[i] & (uint32_t)DOCUMENT_BEGINS))
			return i;
		if ((ids[i] & ~(uint32_t)TOKEN_FLAGS) == j->end_of_text)
			return i + 1;
	}
	return n;
}

/* Returns the first tokens of ids[n] that all count or all do not, and removes their flags. */
static struct run extract_run(uint32_t *ids, int64_t n)
{
	uint32_t context = ids[0] & (uint32_t)TOKEN_CONTEXT;
	struct run r = {.ids = ids, .counts = !context};
	for (; r.n < n && (ids[r.n] & (uint32_t)TOKEN_CONTEXT) == context; r.n++)
		ids[r.n] &= ~(uint32_t)TOKEN_FLAGS;
	return r;
}

/* Calls fn() for each run of a source. */
static int for_each_run(struct job *j, const struct source *p, run_fn *fn, struct err *e)
{
	static uint32_t ids[CHUNK_TOKENS];
	const struct token_file *f = &p->file;
	int64_t document = 0;
	bool begins_document =
		f->documents ? f->n_documents && !f->documents[0] : !j->corpus;
	for (int64_t at = 0, n; at < p->n; at += n) {
		struct run r;
		n = min64(CHUNK_TOKENS, p->n - at);
		if (read_tokens(j, p, at, n, ids, e))
			return -1;
		hash_add(j->hash, ids, (size_t)n * sizeof(*ids));
		for (int64_t i = 0; i < n; i += r.n) {
			begins_document =
				begins_document || (ids[i] & (uint32_t)DOCUMENT_BEGINS);
			r = extract_run(ids + i,
				document_rest(j, p, &document, at + i, ids + i, n - i));
			r.begins_document = begins_document;
			if (fn(j, p->split, &r, e))
				return -1;
			int64_t end = at + i + r.n;
			begins_document = f->documents
						  ? document < f->n_documents &&
							    f->documents[document] == end
						  : r.ids[r.n - 1] == j->end_of_text;
		}
		progress_update(&j->bar, j->done += (double)n, NULL);
	}
	return 0;
}

/* Calls fn() for the runs of all sources, by split. Sets *hash to the hash of all tokens. */
static int for_all_runs(struct job *j, run_fn *fn, uint64_t *hash, struct err *e)
{
	int rc = 0;
	j->hash = hash_open();
	for (int s = 0; s < N_SPLITS; s++)
		for (int64_t i = 0; i < j->n_sources && !rc; i++)
			if (j->sources[i].split == (enum split)s)
				rc = for_each_run(j, &j->sources[i], fn, e);
	*hash = hash_close(j->hash);
	return rc;
}

/* Adds a run to the totals: a run_fn. */
static int count_run(struct job *j, enum split s, const struct run *r, struct err *e)
{
	(void)e;
	j->info.total[s] += r->n;
	j->info.documents += r->begins_document;
	for (int64_t i = 0; i < r->n; i++)
		j->largest = r->ids[i] > j->largest ? r->ids[i] : j->largest;
	return 0;
}

/* Appends a run of equal tokens flags to the output of split s. The first token of a
 * document never counts in shards. */
static int write_run(struct job *j, enum split s, struct run r, struct err *e)
{
	if (!r.n)
		return 0;
	j->n_counted += r.counts ? r.n : 0;
	if (j->files)
		return token_writer_append(
			j->files, s, r.begins_document, r.counts, r.ids, r.n, e);
	if (r.begins_document)
		shard_writer_begin_document(j->shards, s);
	if (r.begins_document && r.counts && !j->corpus &&
		j->has_masks) { /* nothing predicts it */
		struct run first = {r.ids, 1, false, false};
		if (write_run(j, s, first, e))
			return -1;
		r.ids++, r.n--, j->n_counted--;
	}
	if (j->has_masks)
		shard_writer_set_counted(j->shards, s, r.counts);
	return shard_writer_append(j->shards, s, r.ids, r.n, e);
}

/* Writes a run, divided if the training tokens end within it: a run_fn. */
static int copy_run(struct job *j, enum split s, const struct run *r, struct err *e)
{
	if (j->train_left < 0)
		return write_run(j, s, *r, e);
	struct run train = *r, val = *r;
	train.n = min64(r->n, j->train_left);
	j->train_left -= train.n;
	val.ids += train.n;
	val.n -= train.n;
	val.begins_document = r->begins_document && !train.n;
	return write_run(j, SPLIT_TRAIN, train, e) || write_run(j, SPLIT_VAL, val, e) ? -1
										      : 0;
}

/* Returns --end-token, or the tokenizer's end-of-text token; shards record documents otherwise. */
static int64_t choose_end_of_text(const struct job *j)
{
	const struct bpe_rules *r = j->tokenizer ? bpe_rules_of(j->tokenizer) : NULL;
	if (j->c->end_of_text >= 0 || j->corpus || !r || r->end_of_text == BPE_NONE)
		return j->c->end_of_text;
	return r->end_of_text;
}

/* Sets j->tokenizer by --vocab-files, --vocab-from or --vocab; without them it stays NULL. */
static int open_tokenizer(struct job *j, struct err *e)
{
	struct corpus *c;
	if (j->corpus)
		return 0;
	const struct tokenizer_source *files = &j->c->p->tokenizer;
	if (!!j->c->vocab + !!j->c->vocab_from + !!files->vocab_files > 1)
		return err_set(e, EX_USAGE,
			"the vocabulary is given more than once; give one of --vocab, "
			"--vocab-from and "
			"--vocab-files");
	if (files->vocab_files) {
		j->tokenizer = &j->ids;
		return tokenizer_make(&j->ids, files, e);
	}
	if (!j->c->vocab_from) {
		if (j->c->vocab && tokenizer_init_ids(&j->ids, j->c->vocab, e))
			return -1;
		j->tokenizer = j->c->vocab ? &j->ids : NULL;
		return 0;
	}
	if (corpus_open_file(&c, j->c->vocab_from, e))
		return -1;
	scoped_str packed = {0};
	tokenizer_pack(corpus_tokenizer(c), &packed);
	corpus_close(c);
	int rc = tokenizer_unpack(&j->ids, &packed, e);
	j->tokenizer = &j->ids;
	return rc;
}

/* Reads all tokens once, to set the sizes of the splits and the size of an unknown vocabulary. */
static int count_totals(struct job *j, struct err *e)
{
	int64_t *total = j->info.total;
	j->train_left = -1;
	if (j->corpus)
		return 0;
	if (for_all_runs(j, count_run, &j->info.source_xxh3, e))
		return -1;
	if (!total[SPLIT_TRAIN] && !total[SPLIT_VAL])
		return err_set(e, EX_DATAERR, "%s: no tokens",
			j->n_sources == 1 ? j->sources[0].file.path : "all files");
	if (!j->tokenizer && tokenizer_init_ids(&j->ids, (int64_t)j->largest + 1, e))
		return -1;
	j->tokenizer = &j->ids;
	if (j->c->val->n)
		return 0;
	int64_t all = total[SPLIT_TRAIN];
	shard_split(&j->info, all, j->c->p->val_fraction);
	j->train_left = total[SPLIT_TRAIN];
	return 0;
}

/* Opens the writer: token files of --to, or shards. */
static int open_output(struct job *j, struct err *e)
{
	const struct prepare *p = j->c->p;
	const struct token_format *f = token_format_named(j->c->to);
	if (f && !strcmp(p->out, "-"))
		return err_set(e, EX_USAGE,
			"--to %s writes several files, which standard output cannot hold; "
			"give --out",
			f->name);
	if (f)
		j->files =
			token_writer_open(f, p, j->tokenizer->vocab.n, j->has_masks, e);
	else
		j->shards = shard_writer_open(p, j->tokenizer, &j->info, e);
	return j->files || j->shards ? 0 : -1;
}

/* Opens inputs and output, copies all tokens, and finishes the output. Sets *out. Fails
 * if the tokens changed meanwhile. On failure the caller closes what is open. */
static int convert_inputs(
	struct job *j, const struct strs *inputs, struct prepared *out, struct err *e)
{
	uint64_t hash;
	int64_t changes = 0;
	if (are_shard_inputs(j, inputs) ? open_shards(j, inputs, e)
					: open_token_files(j, inputs, e))
		return -1;
	double n = 0;
	for (int64_t i = 0; i < j->n_sources; i++)
		n += (double)j->sources[i].n;
	progress_begin(&j->bar, "pt-prepare", j->corpus ? n : 2 * n);
	if (j->corpus)
		changes = corpus_changes(j->corpus);
	if (open_tokenizer(j, e))
		return -1;
	j->end_of_text = choose_end_of_text(j);
	if (count_totals(j, e) || open_output(j, e) ||
		for_all_runs(j, copy_run, &hash, e))
		return -1;
	if (j->corpus ? corpus_changes(j->corpus) != changes
		      : hash != j->info.source_xxh3)
		return err_set(e, EX_DATAERR, "the tokens changed while they were read");
	out->info = j->info;
	out->vocab_size = j->tokenizer->vocab.n;
	out->n_counted = j->has_masks ? j->n_counted : -1;
	return j->files ? token_writer_finish(j->files, out, e)
			: shard_writer_finish(j->shards, out, e);
}

/* Converts the inputs, and closes all files. Sets *out. Returns -1 with *e set. */
static int convert(const struct token_convert *c, const struct strs *inputs,
	struct prepared *out, struct err *e)
{
	struct job j = {.c = c};
	*out = (struct prepared){0};
	int rc = convert_inputs(&j, inputs, out, e);
	progress_end(&j.bar);
	token_writer_close(j.files);
	shard_writer_close(j.shards);
	for (int64_t i = 0; i < j.n_sources; i++)
		token_file_close(&j.sources[i].file),
			token_file_close(&j.sources[i].mask);
	free(j.sources);
	tokenizer_release(&j.ids);
	corpus_close(j.corpus);
	return rc;
}

/* Converts text to a temporary shard, and the shard to the output format. */
static int convert_text(const struct token_convert *c, const struct strs *inputs,
	struct prepared *out, struct err *e)
{
	char path[4096];
	int fd = file_temporary(path, e);
	if (fd < 0)
		return -1;
	close(fd);
	struct prepare p = *c->p;
	p.out = path;
	p.overwrite = true;
	p.shard_bytes = 0;
	struct token_convert shard_convert = *c;
	shard_convert.from = "shard";

	const struct strs shard = {.v = (char *[]){path}, .n = 1};
	int rc = prepare_run(&p, inputs, out, e);
	strs_free(&out->files);
	rc = rc || convert(&shard_convert, &shard, out, e);
	cleanup_remove(path);
	return rc ? -1 : 0;
}

int token_convert_run(const struct token_convert *c, const struct strs *inputs,
	struct prepared *out, struct err *e)
{
	int has_tokens = token_convert_accepts(c, inputs, e);
	if (has_tokens < 0)
		return -1;
	if (!has_tokens && (c->val->n || c->masks->n || c->vocab || c->vocab_from))
		return report_not_tokens(c, inputs,
			"--val-file, --mask-file, --vocab and --vocab-from are for token files, "
			"not "
			"for text",
			e);
	return has_tokens ? convert(c, inputs, out, e) : convert_text(c, inputs, out, e);
}
