/* Training of a vocabulary. Each thread reads the next batch of documents and counts its words in
 * its own table. The sum of the tables does not depend on which thread had which batch. */
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
	struct str messages;
	struct pass_documents pass;
	int64_t n_dropped;
};

/* Returns where the reader may cut a text: the encode() of a tokenizer that makes no tokens. */
static int64_t find_cut(const struct tokenizer *t, const char *text, int64_t n,
	bool final, uint32_t *out, int64_t capacity, int64_t *n_out, struct err *e)
{
	enum {
		MAX_UNCUT = 1 << 26
	}; /* bytes; a longer text is cut at any character boundary */
	(void)t, (void) final, (void)out, (void)capacity;
	*n_out = 0;
	int64_t at = split_cut(text, n);
	return at || n < MAX_UNCUT ? at : tokenizer_cut(NULL, text, n, e);
}

static const struct tokenizer_kind cut_finder = {.name = "cut", .encode = find_cut};

/* Counts the words of a part of a batch, unless the document is filtered out. Run by
 * several threads, each with its own worker. */
static int count_part(struct worker *w, const struct batch *b,
	const struct document_part *part, struct err *e)
{
	const struct prepare *p = w->j->c->p;
	struct document_text *d = &w->document;
	int rc = batch_read_part(p, &w->j->inputs.files[part->file], b, part, d, e);
	if (rc || !d->n)
		return rc < 0 ? -1 : 0;
	int fate = part->first && part->last ? filter_fate(w->j->filter, d->text, d->n, e)
		   : p->max_bytes ? FATE_LONG /* the reader cuts only longer documents */
				  : FATE_KEPT;
	if (fate < 0)
		return -1;
	w->pass.n += part->last;
	w->n_dropped += part->last && fate != FATE_KEPT;
	return fate == FATE_KEPT ? train_words_add(&w->words, d->text, d->n, e) : 0;
}

static int count_words(void *worker, const struct batch *b, struct err *e)
{
	struct worker *w = worker;
	str_clear(&w->messages);
	w->document.messages = &w->messages;
	w->document.n_broken = 0;
	for (int64_t i = 0; i < b->n_parts; i++)
		if (count_part(w, b, &b->parts[i], e))
			return -1;
	pass_add(&w->pass, b->number, 0, w->document.n_broken, &w->messages);
	return 0;
}

/* Adds a worker's counts to the first worker's words and to *out. */
static void add_worker(struct worker *first, struct worker *w, struct trained_vocab *out)
{
	if (w != first)
		train_words_merge(&first->words, &w->words);
	out->n_documents += w->pass.n;
	out->n_dropped += w->n_dropped;
	out->n_broken += w->pass.n_broken;
	if (w != first)
		pass_add(&first->pass, w->pass.batch, w->pass.n, w->pass.n_broken,
			&w->pass.messages);
}

/* Counts the words of all batches with all threads, into the words of w[0]. */
static int count_batches(
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
	if (batches_run(&all, w, sizeof(*w), threads, e) < INT64_MAX) /* a batch failed */
		return -1;
	for (int i = 0; i < threads; i++)
		add_worker(&w[0], &w[i], j->out);
	return 0;
}

/* Counts the words of all inputs into the workers' tables. Sets the bytes of text in j->out. */
static int count_texts(
	struct job *j, struct worker *w, const struct strs *inputs, struct err *e)
{
	const struct prepare *p = j->c->p;
	const struct tokenizer cutter = {.kind = &cut_finder};
	if (inputs_open(&j->inputs, p, inputs, e))
		return -1;
	j->filter = filter_new(p, e);
	if (p->record != RECORD_TEXT)
		j->records = records_new(p, NULL, e);
	if (!j->filter || (p->record != RECORD_TEXT && !j->records))
		return -1;
	bool needs_whole_documents =
		p->min_bytes || p->max_bytes || filter_has_expressions(j->filter);
	struct reader *reader =
		reader_open(p, &j->inputs, &cutter, needs_whole_documents);
	progress_begin(&j->bar, "words", (double)max64(0, j->inputs.n_bytes));
	int rc = count_batches(j, reader, w, e);
	progress_end(&j->bar);
	j->out->n_text_bytes = reader_text_bytes(reader);
	reader_close(reader);
	if (!rc && !j->out->n_text_bytes)
		rc = err_set(e, EX_DATAERR, "the text is empty");
	if (!rc)
		rc = pass_end(&w[0].pass, e);
	if (!rc && j->out->n_documents == j->out->n_dropped)
		rc = err_set(e, EX_DATAERR, "documents: %lld; none is left: %s",
			(long long)j->out->n_documents,
			j->out->n_dropped ? "all are filtered out" : "all are empty");
	return rc;
}

/* Learns the merges from the counts of words, and writes the vocabulary to files. */
static int merge_words(struct job *j, const struct train_words *words, struct err *e)
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
	vocab_release(&v);
	bpe_rules_release(&r);
	return rc ? -1 : 0;
}

int train_vocab_run(const struct train_vocab *c, const struct strs *inputs,
	struct trained_vocab *out, struct err *e)
{
	struct job j = {.c = c, .out = out};
	int threads = c->p->threads;
	scoped_ptr struct worker *w = xcalloc((size_t)threads, sizeof(*w));
	*out = (struct trained_vocab){0};
	int rc = count_texts(&j, w, inputs, e) || merge_words(&j, &w[0].words, e);
	for (int i = 0; i < threads; i++) {
		train_words_close(&w[i].words);
		str_free(&w[i].messages);
		str_free(&w[i].pass.messages);
		document_text_release(&w[i].document);
	}
	if (j.filter)
		filter_free(j.filter);
	records_free(j.records);
	inputs_close(&j.inputs);
	return rc ? -1 : 0;
}
