/* The shards of a run: opened by the ranks that read, described to the other ranks. */
#include "engine/dataset.h"

#include "data/offsets.h"
#include "engine/layout.h"

/* Returns the files of a data-parallel rank, which is counted over all workers. */
static struct strs files_of_rank(const struct train_opts *o, int rank, int ranks)
{
	struct strs files = {0};
	for (int64_t i = 0; i < o->data.n; i++)
		if (!o->data_per_rank || i % ranks == rank)
			strs_add(&files, o->data.v[i]);
	return files;
}

/* Opens the files of this rank, if it reads data. */
static int open_corpus(struct dataset *d, const struct train_opts *o,
	const struct comm *world, struct err *e)
{
	int degree[N_AXES];
	if (loader_reader(world->rank, world->size, d->readers) != world->rank)
		return 0;
	if (layout_degrees(o, world->size, degree, e))
		return -1;
	int ranks = degree[AXIS_DP] * degree[AXIS_FSDP];
	int rank = o->resolved.worker * ranks + layout_data_rank(degree, world->rank);
	ranks *= (int)max64(1, o->edit.workers);
	struct strs files = files_of_rank(o, rank, ranks);
	int rc = 0;
	d->file = files.n ? o->data.v[o->data_per_rank ? rank : 0] : "";
	if (!files.n && o->data_per_rank && o->data.n)
		rc = err_set(e, EX_USAGE,
			"--data-per-rank: %d ranks need as many files; the run has %lld",
			ranks, (long long)o->data.n);
	int flags = (o->data_per_rank ? CORPUS_SOME : 0) |
		    (o->packing == PACKING_DOCUMENTS ? CORPUS_DOCUMENTS : 0);
	rc = rc || corpus_open(&d->corpus, &files, flags, e);
	strs_free(&files);
	return rc;
}

/* Collective. Broadcasts rank 0's description of the data. Rejects other data on a reader. */
static int broadcast_description(
	struct dataset *d, bool own_files, struct comm *world, struct err *e)
{
	scoped_str packed = {0}, chat = {0};
	if (d->corpus) {
		const struct tokenizer *t = corpus_tokenizer(d->corpus);
		tokenizer_pack(t, &packed);
		str_puts(&chat, t->chat_template ? t->chat_template : "");
		for (int s = 0; s < N_SPLITS; s++)
			d->tokens[s] = corpus_tokens(d->corpus, (enum split)s);
		d->hash = corpus_hash(d->corpus);
	}
	uint64_t vocab = hash_bytes(packed.s, packed.len, 0);
	struct {
		int64_t tokens[N_SPLITS];
		uint64_t hash, vocab;
	} rank0 = {{d->tokens[0], d->tokens[1]}, d->hash, vocab};
	comm_bcast(world, &rank0, sizeof(rank0), 0);
	if (d->corpus && rank0.vocab != vocab)
		err_set(e, EX_DATAERR,
			"%s: its vocabulary differs from rank 0's: " ONE_VOCABULARY,
			d->file);
	else if (d->corpus && !own_files && rank0.hash != d->hash)
		err_set(e, EX_DATAERR,
			"the data of this rank differ from rank 0's; give the same data, or "
			"--data-per-rank");
	if (comm_agree(world, e))
		return -1;
	comm_bcast_str(world, &packed, 0);
	comm_bcast_str(world, &chat, 0);
	if (!d->corpus) {
		memcpy(d->tokens, rank0.tokens, sizeof(d->tokens));
		d->hash = rank0.hash;
	}
	if (tokenizer_unpack(&d->tokenizer, &packed, e))
		return -1;
	if (chat.len)
		d->tokenizer.chat_template = xstrdup(chat.s);
	return 0;
}

/* Warns if the vocabularies of the data and the model differ in size: a preset may belong to
 * another tokenizer, and the tokenizer of --init-from may be unknown. */
static void compare_vocabularies(const struct dataset *d, const struct train_opts *o)
{
	int64_t n_data = d->tokenizer.vocab.n, n_model = o->model.vocab;
	if (o->init_from && n_model > n_data)
		warn("the data have a vocabulary of %lld tokens, but the embedding of "
		     "--init-from has %lld rows: prepare the data with the tokenizer of the "
		     "model, or give --vocab-multiple %lld if the extra rows are padding",
			(long long)n_data, (long long)n_model, (long long)n_model);
	else if (n_model && n_model != n_data)
		warn("the data have a vocabulary of %lld tokens, but --preset or --vocab "
		     "specifies %lld: the model uses the %lld of the data, so its embedding "
		     "has another size; prepare the data with the tokenizer of the model, "
		     "or give --vocab %lld if this is intended",
			(long long)n_data, (long long)n_model, (long long)n_data,
			(long long)n_data);
}

/* Warns if the samples of a run are not the windows of its data. */
static void compare_windows(const struct dataset *d, const struct train_opts *o)
{
	if (d->window && o->model.context != d->window)
		warn("the data are windows of %lld tokens: with --context %lld, samples "
		     "begin at any offset, also within a document",
			(long long)d->window, (long long)o->model.context);
	else if (d->window && o->packing == PACKING_STREAM)
		info("documents attend to earlier documents in their window; --packing "
		     "documents prevents that");
}

int dataset_open(
	struct dataset *d, const struct train_opts *o, struct comm *world, struct err *e)
{
	bool stream = false;
	for (int64_t i = 0; i < o->data.n; i++)
		stream |= corpus_is_stream(o->data.v[i]);
	/* A stream is read only once: by rank 0, which has standard input, for all ranks. */
	comm_bcast(world, &stream, sizeof(stream), 0);
	int64_t readers = stream ? 1 : o->readers ? o->readers : world->size;
	*d = (struct dataset){.readers = (int)min64(readers, world->size)};
	comm_watchdog_pause(stream);
	open_corpus(d, o, world, e);
	int rc = comm_agree(world, e);
	comm_watchdog_pause(false);
	if (rc || broadcast_description(d, o->data_per_rank, world, e)) {
		dataset_close(d);
		return -1;
	}
	d->counted = comm_max_i64(world, d->corpus && corpus_has_spans(d->corpus));
	int64_t window = d->corpus ? corpus_window(d->corpus) : 0;
	d->window = comm_max_i64(world, window);
	if (comm_min_i64(world, d->corpus ? window : d->window) != d->window)
		d->window = 0;
	if (!world->rank && !o->resolved.worker) {
		compare_vocabularies(d, o);
		compare_windows(d, o);
	}
	return 0;
}

int64_t dataset_count_targets(
	const struct dataset *d, const int32_t *windows, int64_t n, int64_t context)
{
	int64_t counted = 0;
	if (!d->counted)
		return n * context;
	for (int64_t i = 0; i < n; i++, windows += context + 1)
		for (int64_t t = 1; t <= context; t++)
			counted += !(windows[t] & TOKEN_CONTEXT);
	return counted;
}

void dataset_close(struct dataset *d)
{
	corpus_close(d->corpus);
	tokenizer_release(&d->tokenizer);
	*d = (struct dataset){0};
}

int dataset_window_order(struct order *out, const struct dataset *d, enum sampling s,
	uint64_t seed, int64_t tokens, int64_t context, int64_t n_windows)
{
	if (order_init(out, s, seed, tokens, context, n_windows))
		return -1;
	if (d->window == context)
		order_on_grid(out);
	return 0;
}

int dataset_order(const struct dataset *d, const struct train_opts *o,
	const struct model *m, struct order *out, struct err *e)
{
	int64_t tokens = d->tokens[SPLIT_TRAIN];
	if (dataset_window_order(out, d, (enum sampling)o->sampling, (uint64_t)o->seed,
		    tokens, m->c.context, 0))
		return err_set(e, EX_DATAERR,
			"%lld training tokens, but one sample needs %lld (--context and one more)",
			(long long)tokens, (long long)m->c.context + 1);
	return 0;
}
