/* Text to shards: the vocabulary, if it depends on the text, then pieces, then shards. */
#include "prepare/assembly.h"
#include "prepare/shard_writer.h"

#include <errno.h>
#include <sys/stat.h>

struct job {
	const struct prepare *p;
	struct comm *comm;
	struct inputs inputs;
	struct tokenizer t;
	struct records *records; /* NULL: documents are texts */
	struct encoding encoding;
	uint64_t hash; /* hash of the text in the previous pass */
};

/* Checks the output name before the text is read. */
static int check_output_name(const struct prepare *p, struct err *e)
{
	struct stat st;
	size_t n = strlen(p->out);
	if (!n)
		return err_set(e, EX_USAGE, "--out: the name is empty");
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

/* Rejects what several ranks cannot do: work without --work, or read a stream. */
static int check_ranks(const struct job *j, struct err *e)
{
	if (j->comm->size == 1)
		return 0;
	if (!j->p->work)
		return err_set(e, EX_USAGE, "several ranks need a --work directory%s",
			advice_on(ADVICE_WORK_DIRECTORY));
	for (int64_t i = 0; i < j->inputs.n; i++)
		if (j->inputs.files[i].is_stream || j->inputs.files[i].fd >= 0)
			return err_set(e, EX_USAGE,
				"%s: is a stream, which several ranks cannot read; give a file",
				j->inputs.files[i].name);
	return 0;
}

/* Creates the tokenizer, possibly without a vocabulary yet, and the reader of records. */
static int open_tokenizer(struct job *j, struct err *e)
{
	const struct prepare *p = j->p;
	if (p->ids_vocab ? tokenizer_init_ids(&j->t, p->ids_vocab, e)
			 : tokenizer_make(&j->t, &p->tokenizer, e))
		return -1;
	if (p->record == RECORD_TEXT)
		return 0;
	j->records = records_new(p, &j->t, e);
	j->encoding.records = j->records;
	if (j->records && records_template(j->records))
		j->t.chat_template = xstrdup(records_template(j->records));
	return j->records ? 0 : -1;
}

/* Checks the output's name, and opens tokenizer, inputs and filters in *j. */
static int open_inputs(struct job *j, const struct strs *operands, struct err *e)
{
	if (check_output_name(j->p, e) || open_tokenizer(j, e) ||
		inputs_open(&j->inputs, j->p, operands, e) || check_ranks(j, e))
		return -1;
	j->encoding.filter = filter_new(j->p, e);
	return j->encoding.filter ? 0 : -1;
}

/* Reads all text, which must not have changed since the previous pass. Collective. */
static int read_all_text(struct job *j, const char *title, struct err *e)
{
	struct encoding *x = &j->encoding;
	x->title = title;
	if (encode_all(x, e))
		return -1;
	if (x->has_read_text && x->text_hash != j->hash)
		err_set(e, EX_DATAERR, "%s", text_changed);
	j->hash = x->text_hash;
	x->has_read_text = true;
	return comm_agree(x->comm, e);
}

/* Learns the vocabulary from the text on rank 0 into *j; other ranks do nothing. */
static int learn_text(struct job *j, struct err *e)
{
	struct comm *all = j->encoding.comm, self = {.size = 1};
	j->encoding.learn = &j->t;
	j->encoding.comm = &self;
	int rc = all->rank ? 0 : read_all_text(j, "pt-prepare: vocabulary", e);
	if (pass_end(&j->encoding.learned, rc ? &(struct err){0} : e))
		rc = -1;
	if (!rc && !all->rank && !j->encoding.text_bytes)
		rc = err_set(e, EX_DATAERR, "%s: the text is empty",
			j->inputs.n == 1 ? j->inputs.files[0].name : "all files");
	rc = rc || (!all->rank && j->t.kind->learn_end(&j->t, e));
	j->encoding.comm = all;
	j->encoding.learn = NULL;
	return rc ? -1 : 0;
}

/* Learns the vocabulary on rank 0 if the tokenizer has none, and broadcasts it. Collective. */
static int learn_vocab(struct job *j, struct err *e)
{
	scoped_str packed = {0};
	if (!j->t.kind->learn || j->t.vocab.n)
		return j->t.vocab.n ? 0 : j->t.kind->learn_end(&j->t, e);
	learn_text(j, e);
	if (comm_agree(j->comm, e))
		return -1;
	if (j->comm->size == 1)
		return 0;
	if (!j->comm->rank)
		tokenizer_pack(&j->t, &packed);
	comm_bcast_str(j->comm, &packed, 0);
	if (j->comm->rank) {
		tokenizer_release(&j->t);
		tokenizer_unpack(&j->t, &packed, e);
	}
	return comm_agree(j->comm, e);
}

/* Encodes all text into pieces. Collective. */
static int encode_all_text(struct job *j, struct err *e)
{
	struct encoding *x = &j->encoding;
	x->t = &j->t;
	bool has_own_end =
		j->p->no_end_of_text || (j->records && records_contain_end(j->records));
	x->end_of_text = has_own_end ? -1 : tokenizer_end_of_text(&j->t);
	x->row_bytes = shard_token_bytes(&j->t);
	x->pieces = pieces_open(j->p->work, j->comm->rank, e);
	if (comm_agree(j->comm, e))
		return -1;
	return read_all_text(j, "pt-prepare", e);
}

/* Assembles the pieces of all ranks into shards, on rank 0. */
static int write_shards(struct job *j, struct prepared *out, struct err *e)
{
	const struct prepare *p = j->p;
	static const char *const split_words[] = {SPLIT_WORDS};
	if (j->comm->size > 1) { /* with the pieces of all ranks */
		pieces_close(j->encoding.pieces);
		j->encoding.pieces = pieces_open(p->work, 0, e);
		if (!j->encoding.pieces)
			return -1;
	}
	pieces_sort(j->encoding.pieces);
	struct assembly a = {.encoding = &j->encoding};
	a.info.source_bytes = j->encoding.text_bytes;
	a.info.source_files = j->inputs.n;
	a.info.source_xxh3 = j->encoding.text_hash;
	a.info.split = split_words[p->split_by];
	a.info.val_fraction = p->val_fraction;
	a.info.seed = p->seed;
	if (assemble(&a, out, e))
		return -1;
	out->vocab_size = j->t.vocab.n;
	pieces_remove(j->encoding.pieces);
	return 0;
}

/* Opens the inputs, learns a vocabulary, encodes all text; then rank 0 writes the shards.
 * Returns -1 with the same *e on all ranks. Collective. */
static int run_job(
	struct job *j, const struct strs *operands, struct prepared *out, struct err *e)
{
	open_inputs(j, operands, e);
	if (comm_agree(j->comm, e) || learn_vocab(j, e) || encode_all_text(j, e))
		return -1;
	if (!j->comm->rank)
		write_shards(j, out, e);
	return comm_agree(j->comm, e);
}

int prepare_run(const struct prepare *p, const struct strs *operands,
	struct prepared *out, struct err *e)
{
	struct comm self = {.size = 1};
	struct job j = {.p = p, .comm = p->comm ? p->comm : &self};
	*out = (struct prepared){0};
	j.encoding = (struct encoding){.p = p, .inputs = &j.inputs, .comm = j.comm};
	*e = (struct err){0};
	int rc = run_job(&j, operands, out, e);
	if (!j.records && !p->window)
		out->n_counted = -1;
	pieces_close(j.encoding.pieces);
	records_free(j.records);
	filter_free(j.encoding.filter);
	inputs_close(&j.inputs);
	tokenizer_release(&j.t);
	free(j.encoding.keys);
	return rc;
}

int prepare_decode(const struct strs *files, enum split split, FILE *f, struct err *e)
{
	enum { N = 1 << 18 };
	static int32_t ids[N];
	struct corpus *c;
	scoped_str text = {0};
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
	corpus_close(c);
	return rc;
}
