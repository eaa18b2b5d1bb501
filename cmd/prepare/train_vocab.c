/*
 * Training of a vocabulary. Each thread takes the next batch of documents and counts its words in
 * its own table. The sum of the tables does not depend on which thread had which batch.
 */
#include "base/progress.h"
#include "prepare/train_vocab.h"
#include "prepare/pipeline.h"

struct job {
	const struct train_vocab *c;
	struct inputs inputs;
	struct filter *filter;
	struct records *records; /* NULL: documents are texts */
	struct progress bar;
	struct trained_vocab *out;
};

struct worker {
	struct job *j;
	struct train_words words;
	struct document_text document;
	int64_t n_documents, n_dropped;
};

/* Returns where the reader may cut a document: the encode() of a tokenizer that makes no tokens. */
static int64_t find_cut(const struct tokenizer *t, const char *text, int64_t n,
	bool final, uint32_t *out, int64_t capacity, int64_t *n_out, struct err *e)
{
	enum {
		MAX_UNCUT = 1 << 26
	}; /* bytes after which any character boundary will do */
	(void)t, (void) final, (void)out, (void)capacity;
	*n_out = 0;
	int64_t at = split_cut(text, n);
	return at || n < MAX_UNCUT ? at : tokenizer_cut(NULL, text, n, e);
}

static const struct tokenizer_kind cutting = {.name = "cut", .encode = find_cut};

/* ---- a batch ---------------------------------------------------------------------- */

static int count_part(struct worker *w, const struct batch *b,
	const struct document_part *part, struct err *e)
{
	const struct prepare *p = w->j->c->p;
	struct document_text *d = &w->document;
	int rc = batch_text(p, &w->j->inputs.files[part->file], b, part, d, e);
	if (rc || !d->n)
		return rc < 0 ? -1 : 0;
	int fate = part->first && part->last ? filter_fate(w->j->filter, d->text, d->n, e)
		   : p->max_bytes	     ? FATE_LONG /* see reader_open() */
					     : FATE_KEPT;
	if (fate < 0)
		return -1;
	w->n_documents += part->last;
	w->n_dropped += part->last && fate != FATE_KEPT;
	return fate == FATE_KEPT ? train_words_add(&w->words, d->text, d->n, e) : 0;
}

static int count_words(void *worker, const struct batch *b, struct err *e)
{
	for (int64_t i = 0; i < b->n_parts; i++)
		if (count_part(worker, b, &b->parts[i], e))
			return -1;
	return 0;
}

/* ---- all of them ------------------------------------------------------------------ */

/* Adds a worker's counts to the first worker's words and to *out. */
static void add_worker(struct worker *first, struct worker *w, struct trained_vocab *out)
{
	if (w != first)
		train_words_merge(&first->words, &w->words);
	out->n_documents += w->n_documents;
	out->n_dropped += w->n_dropped;
	out->n_broken += w->document.n_broken;
}

static int count_all(
	struct job *j, struct reader *reader, struct worker *w, struct err *e)
{
	const struct batches all = {reader, &j->bar, false, count_words};
	int threads = j->c->p->threads;
	for (int i = 0; i < threads; i++) {
		w[i].j = j;
		w[i].document.records = j->records;
		if (train_words_open(&w[i].words, j->c->config.pattern, e))
			return -1;
	}
	if (batches_run(&all, w, sizeof(*w), threads, e) < INT64_MAX)
		return -1;
	for (int i = 0; i < threads; i++)
		add_worker(&w[0], &w[i], j->out);
	return 0;
}

static int read_all(
	struct job *j, struct worker *w, const struct strs *inputs, struct err *e)
{
	const struct prepare *p = j->c->p;
	const struct tokenizer cutter = {.kind = &cutting};
	if (inputs_open(&j->inputs, p, inputs, e))
		return -1;
	j->filter = filter_open(p, e);
	if (p->record != RECORD_TEXT)
		j->records = records_open(p, NULL, e);
	if (!j->filter || (p->record != RECORD_TEXT && !j->records))
		return -1;
	bool filters = p->min_bytes || p->max_bytes || filter_has_expressions(j->filter);
	struct reader *reader = reader_open(p, &j->inputs, &cutter, filters);
	progress_begin(&j->bar, "words", (double)max64(0, j->inputs.n_bytes));
	int rc = count_all(j, reader, w, e);
	progress_end(&j->bar);
	j->out->n_text_bytes = reader_text_bytes(reader);
	reader_close(reader);
	if (!rc && !j->out->n_text_bytes)
		rc = err_set(e, EX_DATAERR, "the text is empty");
	return rc;
}

static int merge_all(struct job *j, const struct train_words *words, struct err *e)
{
	struct vocab v = {0};
	struct bpe_rules r = {0};
	struct train_config c = j->c->config;
	progress_begin(&j->bar, "merges", (double)c.vocab);
	c.bar = &j->bar;
	int rc = train_bpe(words, &c, &v, &r, e);
	progress_end(&j->bar);
	j->out->n_words = words->n;
	j->out->n_tokens = v.n;
	rc = rc || train_write(j->c->out, j->c->p->overwrite, &v, &r, &j->out->files, e);
	vocab_free(&v);
	bpe_rules_free(&r);
	return rc ? -1 : 0;
}

int train_vocab_run(const struct train_vocab *c, const struct strs *inputs,
	struct trained_vocab *out, struct err *e)
{
	struct job j = {.c = c, .out = out};
	int threads = c->p->threads;
	scoped_ptr struct worker *w = xcalloc((size_t)threads, sizeof(*w));
	*out = (struct trained_vocab){0};
	int rc = read_all(&j, w, inputs, e) || merge_all(&j, &w[0].words, e);
	for (int i = 0; i < threads; i++) {
		train_words_close(&w[i].words);
		document_text_free(&w[i].document);
	}
	if (j.filter)
		filter_close(j.filter);
	records_close(j.records);
	inputs_close(&j.inputs);
	return rc ? -1 : 0;
}
